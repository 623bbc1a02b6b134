
/*
 * What the files here share: a server as a node, connections to it, and the
 * worker's view of all of them.
 */


#ifndef _NGX_IDEMPOTENCY_REDIS_CONN_H_INCLUDED_
#define _NGX_IDEMPOTENCY_REDIS_CONN_H_INCLUDED_


#include "ngx_idempotency_redis.h"
#include "ngx_idempotency_redis_resp.h"

#include <ngx_event_connect.h>


typedef struct ngx_idempotency_redis_node_s   ngx_idempotency_redis_node_t;
typedef struct ngx_idempotency_redis_conn_s   ngx_idempotency_redis_conn_t;


/* an answer, in the order of what was sent.  NULL: the connection is lost,
   "error" and "why" of it say how */

typedef void (*ngx_idempotency_redis_answer_pt)(
    ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);


typedef struct {
    ngx_idempotency_redis_answer_pt  handler;
    void                            *data;
    /* it is no call's: it comes in time, or all is lost */
    ngx_uint_t                       expected;
} ngx_idempotency_redis_due_t;


/* what a connection is for */

typedef struct {
    /* it asks where other servers are: roles and clocks don't matter */
    ngx_uint_t                       seeks;
    /* it is the master's, has greeted, and is ready */
    void                           (*ready)(
                                         ngx_idempotency_redis_conn_t *conn);
    /* it is lost, or there is none: all that was due has been answered */
    void                           (*lost)(
                                         ngx_idempotency_redis_conn_t *conn);
    /* a message, which answers no question; NGX_DECLINED: it is none */
    ngx_int_t                      (*push)(
                                         ngx_idempotency_redis_conn_t *conn,
                                         ngx_idempotency_redis_reply_t *reply);
    /* it may go, once the worker exits */
    ngx_uint_t                     (*idle)(
                                         ngx_idempotency_redis_conn_t *conn);
} ngx_idempotency_redis_kind_t;


typedef enum {
    ngx_idempotency_redis_closed = 0,
    ngx_idempotency_redis_naming,
    ngx_idempotency_redis_connecting,
    ngx_idempotency_redis_handshake,
    ngx_idempotency_redis_ready
} ngx_idempotency_redis_state_e;


struct ngx_idempotency_redis_conn_s {
    ngx_idempotency_redis_t         *redis;
    ngx_idempotency_redis_node_t    *node;
    ngx_idempotency_redis_kind_t    *kind;
    /* it asks for the settings of the server, too */
    ngx_uint_t                       info;

    ngx_idempotency_redis_state_e    state;
    /* rises whenever the connection is closed */
    ngx_uint_t                       generation;

    ngx_peer_connection_t            peer;
    ngx_connection_t                *c;
    ngx_pool_t                      *pool;
    ngx_resolver_ctx_t              *resolving;
    ngx_sockaddr_t                   sockaddr;
    socklen_t                        socklen;
    ngx_uint_t                       attempts;

    ngx_idempotency_resp_t           in;
    ngx_idempotency_resp_out_t       out;

    /* what is to be answered, as a ring */
    ngx_idempotency_redis_due_t     *due;
    ngx_uint_t                       ndue;
    ngx_uint_t                       first;
    ngx_uint_t                       size;

    /* connecting, pausing before the next, waiting for an answer that is no
       call's: no worker's exit waits for it */
    ngx_event_t                      timer;
    ngx_msec_t                       backoff;
    /* when the last one was begun */
    ngx_msec_t                       begun;
    /* since when there is none that is ready */
    ngx_msec_t                       since;
    /* ... for so long that nothing waits for it any more */
    ngx_uint_t                       down;

    /* why the last one was lost */
    ngx_idempotency_redis_error_e    error;
    ngx_str_t                        why;
    u_char                           text[256];
    /* what nginx says of it, for our own line of the log */
    ngx_log_t                        log;
    u_char                           heard[192];
    size_t                           nheard;

    /* end it when nothing is due any more: it is no master's */
    unsigned                         retire:1;
    /* answers that "timer" waits for */
    ngx_uint_t                       expected;

    /* for each mark of the block, see mark */
    u_char                          *marks;

    /* channels, see pubsub */
    ngx_queue_t                      channels;

    /* calls, see pipeline */
    ngx_queue_t                      calls;
    ngx_queue_t                      sent;
    ngx_queue_t                      waiting;
    ngx_event_t                      flush;
    ngx_event_t                      expire;
    ngx_event_t                      pause;
    ngx_msec_t                       paused;
    /* replicas and disks are asked about those that are "waiting" */
    unsigned                         durable:1;
    unsigned                         asked:2;
    ngx_msec_t                       asked_at;
};


/* a server, by its place in the configuration or as others told it */

struct ngx_idempotency_redis_node_s {
    ngx_queue_t                      queue;
    ngx_idempotency_redis_t         *redis;
    /* for the log, and what it is found by */
    ngx_str_t                        name;
    ngx_str_t                        host;
    in_port_t                        port;

    /* none: it is a name, or nothing yet */
    ngx_addr_t                      *addrs;
    ngx_uint_t                       naddrs;
    /* ... if others told it */
    ngx_addr_t                       addr;
    ngx_sockaddr_t                   sockaddr;
    u_char                          *told;

    /* those that are not durable, then those that are; made when needed */
    ngx_idempotency_redis_conn_t   **conns;
    ngx_idempotency_redis_conn_t    *pubsub;

    /* what it said of itself */
    u_char                           run_id[40];
    uint64_t                         evicted;
    /* its clock, and ours at that time, in microseconds */
    uint64_t                         clock;
    uint64_t                         clock_at;

    /* its health: when it was looked at last, and when it was well */
    ngx_msec_t                       looked;
    ngx_msec_t                       well;
    /* if "missing": since when nothing was acknowledged, when that was tried
       last; and how far a replica must have come, 0: this is not known yet */
    ngx_msec_t                       missed;
    ngx_msec_t                       tried;
    int64_t                          offset;
    unsigned                         missing:1;
    unsigned                         looking:1;

    /* calls go there; it is only asked where others are */
    unsigned                         known:1;
    unsigned                         seed:1;
    /* the last map of slots that has it */
    ngx_uint_t                       map;
    /* what was said in the log, see ngx_idempotency_redis_warn() */
    ngx_uint_t                       warned;
};


struct ngx_idempotency_redis_s {
    ngx_idempotency_redis_conf_t       conf;
    ngx_idempotency_redis_mark_t      *marks;
    ngx_uint_t                         nmarks;

    /* a worker's own */
    ngx_log_t                         *log;
    ngx_queue_t                        nodes;
    /* the only server, or the master; in a cluster where calls wait for the
       map of slots */
    ngx_idempotency_redis_node_t      *home;
    /* of a cluster, by slot; NULL: it is none */
    ngx_idempotency_redis_node_t     **slots;
    ngx_uint_t                         maps;
    /* to the server that is asked where others are, or NULL */
    ngx_idempotency_redis_conn_t      *discovery;
    ngx_uint_t                         turn;
    ngx_event_t                        tick;
    ngx_event_t                        look;
    ngx_uint_t                         ticks;
    unsigned                           started:1;

    /* subscriptions, see pubsub */
    ngx_rbtree_t                       channels;
    ngx_rbtree_node_t                  channels_sentinel;
    ngx_uint_t                         nchannels;
    ngx_event_t                        unwatch;
};


/* the connections of a node */

#define redis_conns(redis)  ((ngx_uint_t) (2 * (redis)->conf.connections))


/* conn */

ngx_idempotency_redis_conn_t *ngx_idempotency_redis_conn_create(
    ngx_idempotency_redis_node_t *node, ngx_idempotency_redis_kind_t *kind);
/* the process ends: no handler is called */
void ngx_idempotency_redis_conn_exit(ngx_idempotency_redis_conn_t *conn);
/* if there is none, and none on its way */
void ngx_idempotency_redis_conn_connect(ngx_idempotency_redis_conn_t *conn);
void ngx_idempotency_redis_conn_lose(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_error_e error, char *why, ngx_str_t *what);
/* the node is there again: a line of the log, if one said that it was not */
void ngx_idempotency_redis_conn_back(ngx_idempotency_redis_conn_t *conn);
/* something has ended: does anything keep it? */
void ngx_idempotency_redis_conn_settle(ngx_idempotency_redis_conn_t *conn);
/* quietly: it is not needed any more, or has to be another one */
void ngx_idempotency_redis_conn_stop(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_error_e error, char *why);
void ngx_idempotency_redis_conn_restart(ngx_idempotency_redis_conn_t *conn,
    ngx_msec_t pause, char *why);

/* what was put into "out" will be answered there; NULL: the answer is of no
   interest */
ngx_int_t ngx_idempotency_redis_conn_due(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_answer_pt handler, void *data);
void ngx_idempotency_redis_conn_write(ngx_idempotency_redis_conn_t *conn);
/* as above, but the answer is no call's: it comes in time, or all is lost */
void ngx_idempotency_redis_conn_expect(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_answer_pt handler, void *data);

/* once for each of these and each server */

#define NGX_IDEMPOTENCY_REDIS_WARN_AWAY       0x01
#define NGX_IDEMPOTENCY_REDIS_WARN_ROLE       0x02
#define NGX_IDEMPOTENCY_REDIS_WARN_INFO       0x04
#define NGX_IDEMPOTENCY_REDIS_WARN_SUBSCRIBE  0x08
#define NGX_IDEMPOTENCY_REDIS_WARN_PUBLISH    0x10

void ngx_idempotency_redis_warn(ngx_idempotency_redis_conn_t *conn,
    ngx_uint_t what, char *text, ngx_str_t *says);

/* is it there, what time is it there; "info": and its settings */
void ngx_idempotency_redis_conn_check(ngx_idempotency_redis_conn_t *conn,
    ngx_uint_t info);
/* its clock, in microseconds, was just told; 0: it was never told */
void ngx_idempotency_redis_node_told_time(ngx_idempotency_redis_node_t *node,
    uint64_t time);
uint64_t ngx_idempotency_redis_node_time(ngx_idempotency_redis_node_t *node);

/* pipeline */

extern ngx_idempotency_redis_kind_t  ngx_idempotency_redis_pipeline;

void ngx_idempotency_redis_pipeline_init(ngx_idempotency_redis_conn_t *conn);
void ngx_idempotency_redis_pipeline_call(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_call_t *call);
/* all marks are asked for; "anew": whatever was known */
void ngx_idempotency_redis_mark_ask(ngx_idempotency_redis_conn_t *conn,
    ngx_uint_t anew);
/* all that waits here goes where it belongs now */
void ngx_idempotency_redis_pipeline_leave(ngx_idempotency_redis_conn_t *conn);

/* pubsub */

void ngx_idempotency_redis_pubsub_init(ngx_idempotency_redis_t *redis);
void ngx_idempotency_redis_pubsub_tick(ngx_idempotency_redis_conn_t *conn);
void ngx_idempotency_redis_pubsub_route(ngx_idempotency_redis_t *redis);

/* client */

/* some node is no master, or there is none: look again, later; "news": not so
   when it was asked last */
void ngx_idempotency_redis_doubt(ngx_idempotency_redis_t *redis,
    ngx_uint_t news);

/* the one behind it, or the first one: NULL */
ngx_idempotency_redis_node_t *ngx_idempotency_redis_node_next(
    ngx_idempotency_redis_t *redis, ngx_idempotency_redis_node_t *node);

/* where a key is */
ngx_idempotency_redis_node_t *ngx_idempotency_redis_node_of(
    ngx_idempotency_redis_t *redis, ngx_str_t *key);

/* "MOVED slot host:port", "ASK ...": where that is; NULL: nobody knows */
ngx_idempotency_redis_node_t *ngx_idempotency_redis_moved(
    ngx_idempotency_redis_t *redis, ngx_str_t *text, ngx_uint_t ask);

/* the connection for a call; NULL: no memory */
ngx_idempotency_redis_conn_t *ngx_idempotency_redis_node_conn(
    ngx_idempotency_redis_node_t *node, ngx_uint_t n, ngx_uint_t durable);

/* a call goes where it belongs now */
void ngx_idempotency_redis_route(ngx_idempotency_redis_t *redis,
    ngx_idempotency_redis_call_t *call);

/* replicas have what was sent at that time, or not */
void ngx_idempotency_redis_acked(ngx_idempotency_redis_node_t *node);
void ngx_idempotency_redis_unacked(ngx_idempotency_redis_node_t *node,
    ngx_msec_t sent);
/* so for a second */
ngx_uint_t ngx_idempotency_redis_missing(ngx_idempotency_redis_node_t *node);


#endif /* _NGX_IDEMPOTENCY_REDIS_CONN_H_INCLUDED_ */
