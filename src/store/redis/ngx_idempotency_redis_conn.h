
/*
 * What the client's files share: servers as nodes, connections to them, and the
 * worker's view of all of them.
 */


#ifndef _NGX_IDEMPOTENCY_REDIS_CONN_H_INCLUDED_
#define _NGX_IDEMPOTENCY_REDIS_CONN_H_INCLUDED_


#include "ngx_idempotency_redis.h"
#include "ngx_idempotency_redis_resp.h"

#include <ngx_event_connect.h>


typedef struct ngx_idempotency_redis_node_s   redis_node_t;
typedef struct ngx_idempotency_redis_conn_s   redis_conn_t;


/* gets an answer; answers come in the order of the commands.  NULL: the
   connection is lost, see its "error" and "why" */

typedef void (*redis_answer_pt)(redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);


typedef struct {
    ngx_queue_t                      queue;
    redis_answer_pt                  handler;
    void                            *data;
    /* in time, or the connection is lost; a call has its own deadline */
    ngx_uint_t                       expected;
} redis_due_t;


/* the kinds of connections */

typedef struct {
    /* asks where other servers are: roles and clocks don't matter */
    ngx_uint_t                       seeks;
    /* the connection leads to a master, has done its handshake, and is ready */
    void                           (*ready)(redis_conn_t *conn);
    /* the connection is lost, or could not be made; all answers that were due
       have been given, as NULL */
    void                           (*lost)(redis_conn_t *conn);
    /* a message that answers no command; NGX_DECLINED: it is none */
    ngx_int_t                      (*push)(redis_conn_t *conn,
                                         ngx_idempotency_redis_reply_t *reply);
    /* NULL, or writes into "out" what waits, at the end of a turn of the event
       loop in which it was posted */
    void                           (*flush)(redis_conn_t *conn);
    /* the first deadline of a call has passed */
    ngx_event_handler_pt             expire;
} redis_kind_t;


typedef enum {
    redis_closed = 0,
    redis_connecting,
    redis_handshake,
    redis_ready
} redis_state_e;


struct ngx_idempotency_redis_conn_s {
    ngx_queue_t                      queue;
    ngx_idempotency_redis_t         *redis;
    redis_node_t                    *node;
    redis_kind_t                    *kind;
    /* the handshake asks for the server's settings, too */
    ngx_uint_t                       info;

    redis_state_e                    state;
    /* rises whenever the connection is closed */
    ngx_uint_t                       generation;

    ngx_peer_connection_t            peer;
    ngx_connection_t                *c;
    ngx_pool_t                      *pool;
    ngx_resolver_ctx_t              *resolving;
    ngx_sockaddr_t                   sockaddr;
    ngx_uint_t                       attempts;

    ngx_idempotency_resp_t           in;
    /* sent by "flush", at the end of a turn of the event loop */
    ngx_idempotency_resp_buf_t       out;
    ngx_event_t                      flush;

    /* the answers that are due */
    ngx_queue_t                      due;
    ngx_uint_t                       ndue;

    /* while connecting, pausing before the next try, or waiting for expected
       answers; an exiting worker does not wait for it */
    ngx_event_t                      timer;
    ngx_msec_t                       backoff;
    /* when the last try began */
    ngx_msec_t                       begun;
    /* since when the connection is not ready */
    ngx_msec_t                       since;
    /* for so long that no call waits for it any more */
    ngx_uint_t                       down;

    /* why the connection was last lost */
    ngx_idempotency_redis_error_e    error;
    ngx_str_t                        why;
    u_char                           text[256];
    /* catches nginx's messages, for our own log line */
    ngx_log_t                        log;
    u_char                           caught[192];
    size_t                           ncaught;

    /* close when no answer is due any more: the node is no master */
    unsigned                         retire:1;
    /* the number of answers that "timer" waits for */
    ngx_uint_t                       expected;

    /* the state of each mark of the block, see the pipeline */
    u_char                          *marks;

    /* the channels that it subscribes to */
    ngx_uint_t                       nchannels;

    /* calls, see the pipeline */
    ngx_queue_t                      calls;
    ngx_queue_t                      sent;
    ngx_queue_t                      waiting;
    ngx_event_t                      expire;
    ngx_event_t                      pause;
    ngx_msec_t                       paused;
    /* calls in "waiting" need replicas or the disk; how many questions about
       that are unanswered, and when they were asked */
    unsigned                         durable:1;
    unsigned                         asked:2;
    ngx_msec_t                       asked_at;
};


/* a server, as the configuration or another server names it */

struct ngx_idempotency_redis_node_s {
    ngx_queue_t                      queue;
    ngx_idempotency_redis_t         *redis;
    /* the name is for the log and to find the node */
    ngx_str_t                        name;
    ngx_str_t                        host;
    in_port_t                        port;

    /* none: the address of the name is not known yet */
    ngx_addr_t                      *addrs;
    ngx_uint_t                       naddrs;
    /* the address, if another server told it */
    ngx_addr_t                       addr;
    ngx_sockaddr_t                   sockaddr;
    u_char                          *named;

    /* first those for calls that are not durable, then those for durable ones;
       made when needed */
    redis_conn_t                   **conns;
    redis_conn_t                    *pubsub;

    /* as the server says */
    u_char                           run_id[40];
    uint64_t                         evicted;
    /* its clock, and ours at that moment, in microseconds */
    uint64_t                         clock;
    uint64_t                         clock_at;

    /* its health: when it was last checked, and when it was last well */
    ngx_msec_t                       looked;
    ngx_msec_t                       well;
    /* if "missing": since when nothing was acknowledged, and when it was last
       tried; how far a replica must have come, 0: not known yet */
    ngx_msec_t                       missed;
    ngx_msec_t                       tried;
    int64_t                          offset;
    unsigned                         missing:1;
    /* it refuses WAITAOF */
    unsigned                         unsynced:1;

    /* calls go to this node; it is only asked where others are */
    unsigned                         known:1;
    unsigned                         seed:1;
    /* the last map of slots with this node */
    ngx_uint_t                       map;
    /* warnings that were logged, see ngx_idempotency_redis_warn() */
    ngx_uint_t                       warned;
};


struct ngx_idempotency_redis_s {
    ngx_idempotency_redis_conf_t       conf;
    ngx_idempotency_redis_mark_t      *marks;
    ngx_uint_t                         nmarks;

    /* all below is a worker's own */
    ngx_log_t                         *log;
    ngx_queue_t                        nodes;
    ngx_queue_t                        conns;
    /* the only server, or the master; where calls wait for a cluster's map */
    redis_node_t                      *home;
    /* the nodes of a cluster, by slot; NULL: this is no cluster */
    redis_node_t                     **slots;
    ngx_uint_t                         maps;
    /* the connection to the server that is asked where others are, or NULL */
    redis_conn_t                      *discovery;
    ngx_event_t                        tick;
    ngx_event_t                        look;
    ngx_uint_t                         ticks;
    unsigned                           started:1;

    /* subscriptions */
    ngx_rbtree_t                       channels;
    ngx_rbtree_node_t                  channels_sentinel;
    ngx_uint_t                         nchannels;
    ngx_event_t                        unwatch;
};


/* conn */

void ngx_idempotency_redis_event(ngx_event_t *ev, ngx_event_handler_pt handler,
    void *data);

redis_conn_t *ngx_idempotency_redis_conn_create(redis_node_t *node,
    redis_kind_t *kind);
/* calls no handler */
void ngx_idempotency_redis_conn_close(redis_conn_t *conn);
/* the next connection of all; NULL: the first one */
redis_conn_t *ngx_idempotency_redis_conn_next(ngx_idempotency_redis_t *redis,
    redis_conn_t *conn);
/* connects, unless it is connected or connecting */
void ngx_idempotency_redis_conn_connect(redis_conn_t *conn);
void ngx_idempotency_redis_conn_lose(redis_conn_t *conn,
    ngx_idempotency_redis_error_e error, const char *format, ...);
/* the node is back: logged, if the log has it as away */
void ngx_idempotency_redis_conn_back(redis_conn_t *conn);
/* no channel and no call needs it: an exiting worker may close it */
ngx_uint_t ngx_idempotency_redis_conn_idle(redis_conn_t *conn);
/* an answer has arrived: closes the connection if nothing needs it any more */
void ngx_idempotency_redis_conn_reap(redis_conn_t *conn);
/* closes the connection quietly: it is not needed any more, or a new one is */
void ngx_idempotency_redis_conn_stop(redis_conn_t *conn, char *why);
void ngx_idempotency_redis_conn_restart(redis_conn_t *conn, ngx_msec_t pause,
    char *why);

/* the answer to the command just written into "out" goes to the handler; NULL:
   no one needs it */
ngx_int_t ngx_idempotency_redis_conn_due(redis_conn_t *conn,
    redis_answer_pt handler, void *data, ngx_uint_t expected);
/* writes a command that is no call, see ngx_idempotency_resp_say(): its answer
   comes in time, or the connection is lost */
void ngx_idempotency_redis_conn_ask(redis_conn_t *conn,
    redis_answer_pt handler, void *data, const char *format, ...);

/* each warning is logged once for each server */

#define NGX_IDEMPOTENCY_REDIS_WARN_AWAY       0x01
#define NGX_IDEMPOTENCY_REDIS_WARN_ROLE       0x02
#define NGX_IDEMPOTENCY_REDIS_WARN_INFO       0x04
#define NGX_IDEMPOTENCY_REDIS_WARN_SUBSCRIBE  0x08
#define NGX_IDEMPOTENCY_REDIS_WARN_PUBLISH    0x10

void ngx_idempotency_redis_warn(redis_conn_t *conn, ngx_uint_t what,
    char *text, ngx_str_t *says);

/* asks if the server is there, and its time; "info": its settings, too */
void ngx_idempotency_redis_conn_check(redis_conn_t *conn, ngx_uint_t info);
/* the server has just told its time, in microseconds; 0: it has not */
void ngx_idempotency_redis_node_set_time(redis_node_t *node, uint64_t time);
uint64_t ngx_idempotency_redis_node_time(redis_node_t *node);

/* pipeline */

extern redis_kind_t  ngx_idempotency_redis_pipeline;

void ngx_idempotency_redis_pipeline_call(redis_conn_t *conn,
    ngx_idempotency_redis_call_t *call);
/* asks for all marks; "anew": even for those already known */
void ngx_idempotency_redis_mark_ask(redis_conn_t *conn, ngx_uint_t anew);
/* all calls of this connection go where they belong now */
void ngx_idempotency_redis_pipeline_leave(redis_conn_t *conn);

/* client */

/* a node is no master, or has no address: look again where servers are, later;
   "news": the last look did not show it */
void ngx_idempotency_redis_seek(ngx_idempotency_redis_t *redis,
    ngx_uint_t news);

/* the node of a key */
redis_node_t *ngx_idempotency_redis_node_of(ngx_idempotency_redis_t *redis,
    ngx_str_t *key);

/* the node of "MOVED slot host:port" or "ASK ..."; NULL: unknown */
redis_node_t *ngx_idempotency_redis_moved(ngx_idempotency_redis_t *redis,
    ngx_str_t *text, ngx_uint_t ask);

/* the connection for a call; NULL: no memory */
redis_conn_t *ngx_idempotency_redis_node_conn(redis_node_t *node, ngx_uint_t n,
    ngx_uint_t durable);

/* replicas have acknowledged what was sent at that time, or have not */
void ngx_idempotency_redis_acked(redis_node_t *node);
void ngx_idempotency_redis_unacked(redis_node_t *node, ngx_msec_t sent);


#endif /* _NGX_IDEMPOTENCY_REDIS_CONN_H_INCLUDED_ */
