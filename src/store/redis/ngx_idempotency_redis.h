
/*
 * A Redis or Valkey, as an idempotency_redis block names it: calls of scripts
 * go out, answers come back, whatever is in between: names, TLS, passwords,
 * sentinels, slots, broken connections.  Knows no tokens and no zones.
 *
 * Everything is a worker's own; the block's settings are the configuration's.
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
    NGX_IDEMPOTENCY_REDIS_STRING = 0,    /* or a status */
    NGX_IDEMPOTENCY_REDIS_ERROR,
    NGX_IDEMPOTENCY_REDIS_INTEGER,
    NGX_IDEMPOTENCY_REDIS_NIL,
    NGX_IDEMPOTENCY_REDIS_ARRAY
} ngx_idempotency_redis_type_e;


/* as long as the handler that is given it runs */

struct ngx_idempotency_redis_reply_s {
    ngx_idempotency_redis_type_e    type;
    ngx_str_t                       str;
    int64_t                         integer;
    ngx_uint_t                      n;
    ngx_idempotency_redis_reply_t  *elts;
};


/* why there is no reply, or what an error says */

typedef enum {
    NGX_IDEMPOTENCY_REDIS_OK = 0,
    NGX_IDEMPOTENCY_REDIS_CONNECT,       /* no connection, or no server */
    NGX_IDEMPOTENCY_REDIS_TIMEOUT,
    NGX_IDEMPOTENCY_REDIS_CLOSED,
    NGX_IDEMPOTENCY_REDIS_PROTOCOL,
    NGX_IDEMPOTENCY_REDIS_DENIED,        /* NOAUTH, NOPERM, ... */
    NGX_IDEMPOTENCY_REDIS_FULL,          /* OOM, MISCONF, NOREPLICAS */
    NGX_IDEMPOTENCY_REDIS_AWAY,          /* LOADING, CLUSTERDOWN, READONLY,
                                            and the like */
    NGX_IDEMPOTENCY_REDIS_UNACKED,       /* fewer replicas than asked for */
    NGX_IDEMPOTENCY_REDIS_REFUSED,       /* it has another mark */
    NGX_IDEMPOTENCY_REDIS_FAULT          /* any other error */
} ngx_idempotency_redis_error_e;


/* called by its digest, and by its text where the server lacks it */

typedef struct {
    ngx_str_t                       text;
    /* in hex, set at configuration */
    u_char                          sha1[40];
} ngx_idempotency_redis_script_t;


/*
 * One call of a script with one key, or with none for a master.  It is the
 * caller's memory, and stays until its handler is called: once, and never from
 * within ngx_idempotency_redis_call().  What is said to be sent again (for
 * another server, by its text) may overtake what was called behind it.
 */

struct ngx_idempotency_redis_call_s {
    ngx_idempotency_redis_script_t *script;
    ngx_str_t                       key;
    /* without a key, see ngx_idempotency_redis_master() */
    uint64_t                        master;
    ngx_str_t                      *args;
    ngx_uint_t                      nargs;

    /* NULL, or what must stand there */
    ngx_idempotency_redis_mark_t   *mark;

    /* it is answered by then (ngx_current_msec), or given up */
    ngx_msec_t                      deadline;
    /* answered once it is where `replicas` and `fsync` of the block want it,
       if they want anything */
    unsigned                        durable:1;
    /* refused at once, and not sent, as long as replicas have acknowledged
       nothing for a second */
    unsigned                        fresh:1;
    /* the script gets one argument more, behind the others: the deadline by
       the clock of the server that it is sent to, in microseconds since 1970,
       in decimal, rather too early than too late.  It is put there when it is
       sent, as that may be another server then.  What is answered is an array:
       "L" if it came later than that, else anything; and that clock, in
       milliseconds.  A clock that was set forward makes all late, once: such
       a call is sent again */
    unsigned                        until:1;
    /* where its mark has a single stamp, the script compares it: that is its
       second key, and the mark's `meant` are its last two arguments.  "I":
       that is another one, and nothing was done; the stamp is asked for, and
       such a call is sent again */
    unsigned                        meant:1;

    void                          (*handler)(
                                       ngx_idempotency_redis_call_t *call);
    void                           *data;

    /* out: NULL if there is none.  It is there with an error, too, if the
       server answered: an error, or if UNACKED, what the script said */
    ngx_idempotency_redis_reply_t  *reply;
    ngx_idempotency_redis_error_e   error;
    /* ... its connection was lost as this one took too long, of all that were
       sent the first */
    unsigned                        slow:1;
    /* ... for the log */
    ngx_str_t                       why;
    /* without a reply, or with an error: it may have been executed, or may
       be yet */
    unsigned                        maybe:1;

    /* the connection's own */
    ngx_queue_t                     queue;
    ngx_uint_t                      n;
    ngx_uint_t                      tries;
    unsigned                        eval:1;
    unsigned                        asking:1;
};


/*
 * What must stand in a server before a call that names it goes there, as its
 * address may lead to another one by now: a stamp, or in a cluster many, of
 * which each node is asked for those that it has.  Each new connection asks
 * with its greeting, before it is ready; behind that it is tried whether other
 * scripts may do all they do: see try.lua.  That, and a stamp that did not
 * stand there, is looked at again every few seconds.
 */

#define NGX_IDEMPOTENCY_REDIS_STAMP_ARGS  5

struct ngx_idempotency_redis_stamp_s {
    ngx_idempotency_redis_mark_t   *mark;
    ngx_str_t                       key;
};


struct ngx_idempotency_redis_mark_s {
    ngx_idempotency_redis_script_t *tries;
    ngx_idempotency_redis_script_t *script;
    ngx_idempotency_redis_stamp_t  *stamps;
    ngx_uint_t                      nstamps;
    ngx_str_t                       meant[2];

    /* the arguments of the script, when it is called */
    void                          (*says)(
                                       ngx_idempotency_redis_stamp_t *stamp,
                                       ngx_str_t *args);
    /* NGX_OK: it stands there; NGX_AGAIN: ask again; else calls are answered
       REFUSED, and why is to be set */
    ngx_int_t                     (*handler)(
                                       ngx_idempotency_redis_stamp_t *stamp,
                                       ngx_idempotency_redis_reply_t *reply);
    ngx_str_t                       why;
    u_char                          text[NGX_IDEMPOTENCY_REDIS_WHY];
    /* ... is that scripts may not do what they do */
    ngx_uint_t                      lacks;

    /* the block's own */
    ngx_idempotency_redis_mark_t   *next;
    ngx_uint_t                      n;
};


/* the settings of a block: the HTTP side reads them */

typedef enum {
    NGX_IDEMPOTENCY_REDIS_STANDALONE = 0,
    NGX_IDEMPOTENCY_REDIS_SENTINEL,
    NGX_IDEMPOTENCY_REDIS_CLUSTER
} ngx_idempotency_redis_mode_e;


/* a "server": with a resolver, a name has no addresses yet */

typedef struct {
    ngx_url_t                       url;
    ngx_str_t                       file;
    ngx_uint_t                      line;
} ngx_idempotency_redis_server_t;


typedef struct {
    ngx_str_t                       name;
    /* the block was read; where it, or who named it first, is */
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

    /* for each worker */
    ngx_int_t                       connections;
    ngx_msec_t                      connect_timeout;
    ngx_msec_t                      timeout;

    ngx_int_t                       replicas;
    ngx_flag_t                      fsync;
    /* one that is another, or has forgotten, is gone on with */
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

    /* NULL: none that could resolve a name */
    ngx_resolver_t                 *resolver;
    ngx_msec_t                      resolver_timeout;
} ngx_idempotency_redis_conf_t;


ngx_idempotency_redis_t *ngx_idempotency_redis_create(ngx_conf_t *cf);

/* a block may stand below the store that names it: they are known once the
   configuration is read */

ngx_idempotency_redis_conf_t *ngx_idempotency_redis_conf(
    ngx_idempotency_redis_t *redis);


/* the slot of a key in a cluster, of so many */

#define NGX_IDEMPOTENCY_REDIS_SLOTS  16384

ngx_uint_t ngx_idempotency_redis_slot(ngx_str_t *key);

/* of a store behind it, in the configuration */

void ngx_idempotency_redis_mark(ngx_idempotency_redis_t *redis,
    ngx_idempotency_redis_mark_t *mark);


/* in a worker; the second call of each does nothing, as two stores may share a
   block */

ngx_int_t ngx_idempotency_redis_init_process(ngx_idempotency_redis_t *redis,
    ngx_cycle_t *cycle);
void ngx_idempotency_redis_exit_process(ngx_idempotency_redis_t *redis);

/* without an event loop: what is answered within so long is given to who
   called; `first`: nothing has been waited for yet */

void ngx_idempotency_redis_wait(ngx_idempotency_redis_t *redis,
    ngx_msec_t time, ngx_uint_t first);

/* over connection n: goes out at the end of this round of the event loop, with
   all others of it: one write, and one WAIT for those that are durable */

void ngx_idempotency_redis_call(ngx_idempotency_redis_t *redis,
    ngx_uint_t n, ngx_idempotency_redis_call_t *call);

/* it stands there by now: where it did not, it is asked for again */

void ngx_idempotency_redis_marked(ngx_idempotency_redis_t *redis,
    ngx_idempotency_redis_mark_t *mark);

/*
 * One master of a cluster after the other, from 0 on, in an order that stays
 * as long as they are the same ones, which "all" tells.  NGX_DONE: there is
 * none behind it; NGX_ERROR: it is not known which there are.
 */

ngx_int_t ngx_idempotency_redis_master(ngx_idempotency_redis_t *redis,
    uint64_t *master, uint64_t *all);

/* The handler is called when something is published in the channel that is
   named as the key; also once that is subscribed, and when the connection was
   lost and is back, as something may have been published before.  It is wanted
   for 2.5 seconds, and may be so again and again, by the same handler */

typedef void (*ngx_idempotency_redis_changed_pt)(void *data, ngx_str_t *key);

void ngx_idempotency_redis_watch(ngx_idempotency_redis_t *redis,
    ngx_str_t *key, ngx_idempotency_redis_changed_pt handler, void *data);

/* the server's clock, in microseconds since 1970, as it was told last, and
   aged since: never ahead of what the server will say; 0: it was never
   told.  In a cluster each has its own: that of one of them */

uint64_t ngx_idempotency_redis_time(ngx_idempotency_redis_t *redis);

/* false: it would be answered at once that there is no server, as the last
   tries found none */

ngx_uint_t ngx_idempotency_redis_up(ngx_idempotency_redis_t *redis);

/* each server to which calls go has answered lately, and so many replicas as
   `replicas` wants have what it was told; they are asked, so that the next call
   knows */

ngx_uint_t ngx_idempotency_redis_well(ngx_idempotency_redis_t *redis);


#endif /* _NGX_IDEMPOTENCY_REDIS_H_INCLUDED_ */
