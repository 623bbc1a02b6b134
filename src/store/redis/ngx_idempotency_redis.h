
/*
 * The client of a Redis or Valkey, as an idempotency_redis block names it:
 * calls of scripts go out, replies come back.  Names, TLS, passwords,
 * sentinels, slots and broken connections are its business; tokens and zones
 * are not.
 *
 * All state is the worker's own; the block's settings are the configuration's.
 */


#ifndef _NGX_IDEMPOTENCY_REDIS_H_INCLUDED_
#define _NGX_IDEMPOTENCY_REDIS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>


#define NGX_IDEMPOTENCY_REDIS_WHY  256


typedef struct ngx_idempotency_redis_s         ngx_idempotency_redis_t;
typedef struct ngx_idempotency_redis_reply_s   ngx_idempotency_redis_reply_t;
typedef struct ngx_idempotency_redis_call_s    ngx_idempotency_redis_call_t;
typedef struct ngx_idempotency_redis_mark_s    ngx_idempotency_redis_mark_t;
typedef struct ngx_idempotency_redis_stamp_s   ngx_idempotency_redis_stamp_t;


typedef enum {
    NGX_IDEMPOTENCY_REDIS_STRING = 0,    /* a string or a status */
    NGX_IDEMPOTENCY_REDIS_ERROR,
    NGX_IDEMPOTENCY_REDIS_INTEGER,
    NGX_IDEMPOTENCY_REDIS_NIL,
    NGX_IDEMPOTENCY_REDIS_ARRAY
} ngx_idempotency_redis_type_e;


/* valid while the handler runs that got it */

struct ngx_idempotency_redis_reply_s {
    ngx_idempotency_redis_type_e    type;
    ngx_str_t                       str;
    int64_t                         integer;
    ngx_uint_t                      n;
    ngx_idempotency_redis_reply_t  *elts;
};


/* why there is no reply, or the class of the error in it */

typedef enum {
    NGX_IDEMPOTENCY_REDIS_OK = 0,
    NGX_IDEMPOTENCY_REDIS_CONNECT,       /* no connection, or it was lost */
    NGX_IDEMPOTENCY_REDIS_TIMEOUT,
    NGX_IDEMPOTENCY_REDIS_PROTOCOL,
    NGX_IDEMPOTENCY_REDIS_DENIED,        /* NOAUTH, NOPERM, ... */
    NGX_IDEMPOTENCY_REDIS_FULL,          /* OOM, MISCONF, NOREPLICAS */
    NGX_IDEMPOTENCY_REDIS_AWAY,          /* LOADING, CLUSTERDOWN, READONLY,
                                            and the like */
    NGX_IDEMPOTENCY_REDIS_UNACKED,       /* fewer replicas than asked for */
    NGX_IDEMPOTENCY_REDIS_REFUSED,       /* the mark was not found there */
    NGX_IDEMPOTENCY_REDIS_FAULT          /* any other error */
} ngx_idempotency_redis_error_e;


/* a script is called by its digest, and by its text if the server lacks it */

typedef struct {
    ngx_str_t                       text;
    /* in hex, set at configuration */
    u_char                          sha1[40];
} ngx_idempotency_redis_script_t;


/*
 * One call of a script, with one key, or for a given master without a key.  It
 * is the caller's memory, and stays until its handler is called: once, and
 * never from within ngx_idempotency_redis_call().  A call that has to be sent
 * again (to another server, or with the script's text) may overtake later
 * calls.
 */

struct ngx_idempotency_redis_call_s {
    ngx_idempotency_redis_script_t *script;
    ngx_str_t                       key;
    /* for a call without a key, see ngx_idempotency_redis_master() */
    uint64_t                        master;
    ngx_str_t                      *args;
    ngx_uint_t                      nargs;

    /* NULL, or the mark that must be on the server */
    ngx_idempotency_redis_mark_t   *mark;

    /* until then (ngx_current_msec) the call is answered or given up */
    ngx_msec_t                      deadline;
    /* answered when the write is where the block's `replicas` and `fsync` want
       it, if they want anything */
    unsigned                        durable:1;
    /* refused unsent, if replicas have acknowledged nothing for a second */
    unsigned                        fresh:1;
    /* The script gets one more argument, the last one but `known`: the deadline
       by the clock of the server, in microseconds since 1970, in decimal,
       rather too early than too late.  It is written when the call is sent, as
       a call may be sent again to another server.  The reply must be an array:
       "L" if the call came after the deadline, else any code; and the server's
       time in milliseconds.  If a server's clock is set forward, all calls are
       late, once: such a call is sent again. */
    unsigned                        until:1;
    /* The script checks the mark, if that has a single stamp: the stamp is its
       second key, and the mark's `known` are its last two arguments.  "I" means
       that the stamp is another one, and nothing was done: the stamp is asked
       for, and the call is sent again. */
    unsigned                        compare:1;

    void                          (*handler)(
                                       ngx_idempotency_redis_call_t *call);
    void                           *data;

    /* out: NULL if there is none.  With an error there is a reply if the server
       answered: the error, or for UNACKED the script's reply */
    ngx_idempotency_redis_reply_t  *reply;
    ngx_idempotency_redis_error_e   error;
    /* out: the connection was lost because of this call: it took too long, and
       was the oldest one sent */
    unsigned                        slow:1;
    /* out: the reason, for the log */
    ngx_str_t                       why;
    /* out: without a reply, or with an error: the call may have been executed,
       or may yet be */
    unsigned                        maybe:1;

    /* the connection's own */
    ngx_queue_t                     queue;
    ngx_uint_t                      n;
    ngx_uint_t                      tries;
    unsigned                        eval:1;
    unsigned                        asking:1;
};


/*
 * A mark: stamps that must be on a server before calls that name the mark go
 * there, as its address may lead to another server by now.  In a cluster there
 * are many stamps, and each node is asked for those of its slots.  Each new
 * connection asks in its handshake, and then whether the scripts may do all
 * that they do: see try.lua.  That, and a stamp that was not found, is checked
 * again every few seconds.
 */

#define NGX_IDEMPOTENCY_REDIS_STAMP_ARGS  5

typedef struct {
    ngx_str_t                       args[NGX_IDEMPOTENCY_REDIS_STAMP_ARGS];
    /* what they point to */
    u_char                          known[2 * sizeof(uint64_t)];
    u_char                          beat[NGX_INT64_LEN];
} ngx_idempotency_redis_question_t;


struct ngx_idempotency_redis_stamp_s {
    ngx_idempotency_redis_mark_t   *mark;
    ngx_str_t                       key;
};


struct ngx_idempotency_redis_mark_s {
    /* try.lua, stamp.lua */
    ngx_idempotency_redis_script_t *rights;
    ngx_idempotency_redis_script_t *script;
    ngx_idempotency_redis_stamp_t  *stamps;
    ngx_uint_t                      nstamps;
    ngx_str_t                       known[2];

    /* writes the arguments of the script */
    void                          (*ask)(
                                       ngx_idempotency_redis_stamp_t *stamp,
                                       ngx_idempotency_redis_question_t
                                           *question);
    /* NGX_OK: the stamp is there; NGX_AGAIN: ask again; else calls are answered
       REFUSED, and the handler sets the reason */
    ngx_int_t                     (*handler)(
                                       ngx_idempotency_redis_stamp_t *stamp,
                                       ngx_idempotency_redis_reply_t *reply);
    /* the caller's own */
    void                           *data;
    ngx_str_t                       why;
    u_char                          text[NGX_IDEMPOTENCY_REDIS_WHY];

    /* the client's own */
    ngx_idempotency_redis_mark_t   *next;
    ngx_uint_t                      n;
};


/* the settings of a block, read by the HTTP side */

typedef enum {
    NGX_IDEMPOTENCY_REDIS_STANDALONE = 0,
    NGX_IDEMPOTENCY_REDIS_SENTINEL,
    NGX_IDEMPOTENCY_REDIS_CLUSTER
} ngx_idempotency_redis_mode_e;


/* a "server" line; with a resolver, a name has no addresses yet */

typedef struct {
    ngx_url_t                       url;
    ngx_str_t                       file;
    ngx_uint_t                      line;
} ngx_idempotency_redis_server_t;


typedef struct {
    ngx_str_t                       name;
    /* the block was read; the place of the block, or of the first directive
       that names it */
    ngx_uint_t                      defined;
    ngx_str_t                       file;
    ngx_uint_t                      line;

    /* of ngx_idempotency_redis_server_t */
    ngx_array_t                     servers;
    ngx_uint_t                      mode;
    ngx_str_t                       master;

    ngx_str_t                       user;
    ngx_str_t                       password;
    ngx_int_t                       database;
    ngx_str_t                       prefix;

    /* of each worker */
    ngx_int_t                       connections;
    ngx_msec_t                      connect_timeout;
    ngx_msec_t                      timeout;

    ngx_int_t                       replicas;
    ngx_flag_t                      fsync;
    /* go on with a store that is another one, or has forgotten */
    ngx_uint_t                      lost;

    ngx_flag_t                      ssl;
    ngx_str_t                       ssl_name;
    ngx_flag_t                      ssl_verify;
    ngx_str_t                       ssl_trusted_certificate;
    ngx_str_t                       ssl_certificate;
    ngx_str_t                       ssl_certificate_key;
#if (NGX_SSL)
    ngx_ssl_t                       ssl_ctx;
#endif

    /* NULL: there is none */
    ngx_resolver_t                 *resolver;
    ngx_msec_t                      resolver_timeout;
} ngx_idempotency_redis_conf_t;


ngx_idempotency_redis_t *ngx_idempotency_redis_create(ngx_conf_t *cf);

/* the settings, known when all of the configuration is read, as a block may
   stand below the store that names it */

ngx_idempotency_redis_conf_t *ngx_idempotency_redis_conf(
    ngx_idempotency_redis_t *redis);


/* a key's slot in a cluster, of so many */

#define NGX_IDEMPOTENCY_REDIS_SLOTS  16384

ngx_uint_t ngx_idempotency_redis_slot(ngx_str_t *key);

/* a mark of a store that uses the block; in the configuration */

void ngx_idempotency_redis_mark(ngx_idempotency_redis_t *redis,
    ngx_idempotency_redis_mark_t *mark);


/* in a worker; two stores may share a block: only the first call counts */

ngx_int_t ngx_idempotency_redis_init_process(ngx_idempotency_redis_t *redis,
    ngx_cycle_t *cycle);
void ngx_idempotency_redis_exit_process(ngx_idempotency_redis_t *redis);

/* without an event loop: delivers the replies that come in so long; `first`:
   the first call of this */

void ngx_idempotency_redis_wait(ngx_idempotency_redis_t *redis,
    ngx_msec_t time, ngx_uint_t first);

/* Sends the call over connection n, at the end of this turn of the event loop,
   with all others of the turn: one write, and one WAIT for the durable ones. */

void ngx_idempotency_redis_call(ngx_idempotency_redis_t *redis,
    ngx_uint_t n, ngx_idempotency_redis_call_t *call);

/* the mark's stamp is right now: connections that did not find it ask again */

void ngx_idempotency_redis_marked(ngx_idempotency_redis_t *redis,
    ngx_idempotency_redis_mark_t *mark);

/*
 * The masters of a cluster, one by one, from 0 on, in an order that lasts as
 * long as they are the same; "all" identifies the set.  NGX_DONE: there is no
 * further one; NGX_ERROR: the masters are not known.
 */

ngx_int_t ngx_idempotency_redis_master(ngx_idempotency_redis_t *redis,
    uint64_t *master, uint64_t *all);

/* Calls the handler when something is published in the channel with the key's
   name; also when the channel was subscribed, for the first time or after its
   connection was lost, as a message may have been missed.  Each call watches
   for 2.5 seconds; it may be repeated with the same handler. */

typedef void (*ngx_idempotency_redis_changed_pt)(void *data, ngx_str_t *key);

void ngx_idempotency_redis_watch(ngx_idempotency_redis_t *redis,
    ngx_str_t *key, ngx_idempotency_redis_changed_pt handler, void *data);

/* the server's clock, in microseconds since 1970, as last told, aged since:
   never ahead of what the server will say; 0: never told.  Of a cluster, that
   of any node. */

uint64_t ngx_idempotency_redis_time(ngx_idempotency_redis_t *redis);

/* false: a call would be answered at once that there is no server, as the last
   tries found none */

ngx_uint_t ngx_idempotency_redis_up(ngx_idempotency_redis_t *redis);

/* all servers that get calls have answered lately, and as many replicas as
   `replicas` wants are up to date.  Also asks them, so that the next call
   knows */

ngx_uint_t ngx_idempotency_redis_well(ngx_idempotency_redis_t *redis);


#endif /* _NGX_IDEMPOTENCY_REDIS_H_INCLUDED_ */
