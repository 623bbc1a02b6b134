
/*
 * The store's protocol: what a request may ask of a store of tokens, whatever
 * engine keeps it.  Knows no requests; the time is an argument.
 *
 * Each operation may be answered now (NGX_OK: op->result is set) or later
 * (NGX_AGAIN: op->handler is called once with op->result set, unless the
 * operation is cancelled before).  An operation that changes something on
 * behalf of an owner names its fence, and does nothing under an old one.
 */


#ifndef _NGX_IDEMPOTENCY_STORE_H_INCLUDED_
#define _NGX_IDEMPOTENCY_STORE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include "digest/ngx_idempotency_digest.h"


/* what a token is bound to */

typedef enum {
    NGX_IDEMPOTENCY_PENDING = 0,   /* an owner is executing it */
    NGX_IDEMPOTENCY_DONE,          /* a response is kept */
    NGX_IDEMPOTENCY_NOT_KEPT,      /* executed, the response is not kept */
    NGX_IDEMPOTENCY_IN_DOUBT       /* may have executed; with the gateway
                                      error that the first client got, if
                                      there was one */
} ngx_idempotency_outcome_e;


/* how an operation ended */

typedef enum {
    NGX_IDEMPOTENCY_OK = 0,
    NGX_IDEMPOTENCY_CLAIMED,       /* claim: the caller owns the token now */
    NGX_IDEMPOTENCY_BOUND,         /* claim, find: see op->outcome */
    NGX_IDEMPOTENCY_CONFLICT,      /* claim: bound to something else */
    NGX_IDEMPOTENCY_CHANGED,       /* a claim that waited may be tried again */
    NGX_IDEMPOTENCY_UNFINISHED,    /* within an engine: there is more to free */
    NGX_IDEMPOTENCY_ABSENT,        /* find, forget: no such token */
    NGX_IDEMPOTENCY_STALE,         /* complete, release: an old fence */
    NGX_IDEMPOTENCY_TRIMMED,       /* complete: without its response, for
                                      want of memory */
    NGX_IDEMPOTENCY_EXPIRED,       /* claim: fresh, or so old that it ended */
    NGX_IDEMPOTENCY_LIMITED,       /* claim: fresh, and over its quota */
    NGX_IDEMPOTENCY_UNAVAILABLE    /* no memory, or no store */
} ngx_idempotency_result_e;


/*
 * Places where a test may have the worker die, or something fail: named by a
 * request header, and compiled only with -DNGX_IDEMPOTENCY_FAULTS
 */

typedef enum {
    NGX_IDEMPOTENCY_FAULT_NONE = 0,
    NGX_IDEMPOTENCY_FAULT_DIE_CLAIMED,
    NGX_IDEMPOTENCY_FAULT_DIE_RECORDING,
    NGX_IDEMPOTENCY_FAULT_DIE_LOCKED,
    NGX_IDEMPOTENCY_FAULT_NO_MEMORY,
    NGX_IDEMPOTENCY_FAULT_DROP_WAKE,
    NGX_IDEMPOTENCY_FAULT_BUSY,
    NGX_IDEMPOTENCY_FAULT_NO_POOL
} ngx_idempotency_fault_e;

#if (NGX_IDEMPOTENCY_FAULTS)

#define ngx_idempotency_fault(op, at)  ((op)->fault == (at))

#define ngx_idempotency_die(op, at)                                          \
    if ((op)->fault == (at)) {                                               \
        kill(ngx_pid, SIGKILL);                                              \
        pause();                                                             \
    }

/* for longer than the leases of the tests */

#define ngx_idempotency_busy(op)                                             \
    if ((op)->fault == NGX_IDEMPOTENCY_FAULT_BUSY) {                         \
        ngx_log_error(NGX_LOG_INFO, ngx_cycle->log, 0, "busy for a while");  \
        ngx_msleep(4000);                                                    \
    }

#else

#define ngx_idempotency_busy(op)
#define ngx_idempotency_fault(op, at)  0
#define ngx_idempotency_die(op, at)

#endif


/*
 * What a token is bound to is the fingerprint, of action and body, and the
 * identity, of who asks; all zero: nobody that is known.  The rest only tells
 * why two requests differ: digests too short to compare anything else by.
 */

#define NGX_IDEMPOTENCY_IDENTITY_LEN      16
#define NGX_IDEMPOTENCY_HINT_LEN          4

typedef struct {
    u_char                          identity[NGX_IDEMPOTENCY_IDENTITY_LEN];
    u_char                          action[NGX_IDEMPOTENCY_HINT_LEN];
    u_char                          body[NGX_IDEMPOTENCY_HINT_LEN];
    /* that the others were made by */
    u_char                          settings[NGX_IDEMPOTENCY_HINT_LEN];
} ngx_idempotency_parts_t;

#define NGX_IDEMPOTENCY_DIFFERS_ACTION    0x01
#define NGX_IDEMPOTENCY_DIFFERS_IDENTITY  0x02
#define NGX_IDEMPOTENCY_DIFFERS_BODY      0x04
#define NGX_IDEMPOTENCY_DIFFERS_SETTINGS  0x08


typedef struct ngx_idempotency_store_s  ngx_idempotency_store_t;
typedef struct ngx_idempotency_op_s     ngx_idempotency_op_t;

typedef void (*ngx_idempotency_op_handler_pt)(ngx_idempotency_op_t *op);
typedef ngx_int_t (*ngx_idempotency_op_pt)(ngx_idempotency_store_t *store,
    ngx_idempotency_op_t *op);


struct ngx_idempotency_op_s {
    u_char                          token[NGX_IDEMPOTENCY_DIGEST_LEN];
    u_char                          fingerprint[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_idempotency_parts_t         parts;

    /* monotonic, in milliseconds */
    ngx_msec_t                      now;

    /* claim: for how long the outcome will bind the token; for how long from
       now at least; and for how long at most, or 0 where the window is all */
    ngx_msec_t                      window;
    ngx_msec_t                      least;
    ngx_msec_t                      span;
    /* claim: for how long an owner that can't be asked keeps it */
    ngx_msec_t                      lease;
    /* claim: a response of this size must fit, or nothing is claimed */
    size_t                          reserve;
    /* claim: so many tokens there may be for a value, told by its digest */
    ngx_uint_t                      quota;
    u_char                          value[NGX_IDEMPOTENCY_DIGEST_LEN];
    /* claim: take over what is in doubt */
    unsigned                        retry:1;
    /* claim: not what is fresh, as it may have been bound once */
    unsigned                        old:1;
    /* claim: if it is pending, call op->handler once that has changed */
    unsigned                        wait:1;
    unsigned                        waiting:1;
    /* set by a claim that waits: the fence of what it waits for */
    uint64_t                        waited;

    /* set by claim, asked for by complete and release */
    uint64_t                        fence;

    /* complete: in; claim and find: out */
    ngx_idempotency_outcome_e       outcome;
    ngx_uint_t                      status;
    /* complete: the response in pieces, of op->size in all; release: the
       same for those who wait, if it is left to them */
    ngx_chain_t                    *pieces;
    size_t                          size;
    unsigned                        leave:1;
    /* claim: a copy of it in op->pool */
    ngx_str_t                       response;
    ngx_pool_t                     *pool;

    /* claim and find: when it was recorded, and how often replayed since */
    ngx_msec_t                      recorded;
    ngx_uint_t                      replays;
    /* claim and find: when it ends, unless it is pending; of a claim over its
       quota, when the oldest one does */
    ngx_msec_t                      ends;
    /* claim: of a conflict, what differs */
    ngx_uint_t                      differs;
    /* claim and find: it was bound by nobody that is known */
    unsigned                        anonymous:1;
    /* claim: the response was left by what it waited for, which released the
       token */
    unsigned                        left:1;

    ngx_idempotency_result_e        result;

    ngx_idempotency_op_handler_pt   handler;
    void                           *data;

    /* the engine's own: where the op waits */
    ngx_queue_t                     queue;

#if (NGX_IDEMPOTENCY_FAULTS)
    ngx_idempotency_fault_e         fault;
#endif
};


typedef struct {
    /* check, bind and claim in one step; counts a replay */
    ngx_idempotency_op_pt           claim;
    /* the owner's outcome; keeps the response, or says that it could not */
    ngx_idempotency_op_pt           complete;
    /* it did not execute: the token is fresh again; those who wait get the
       response that is left to them, or else one of them may claim it */
    ngx_idempotency_op_pt           release;
    /* looks; of all changes it makes only the one that every operation does,
       freeing what is over, so that nobody finds it again */
    ngx_idempotency_op_pt           find;
    /* by hand, whoever owns it: a pending owner loses its claim; with a
       fence, only the record that has it */
    ngx_idempotency_op_pt           forget;
    /* the answer, or the change waited for, isn't wanted any more */
    void                          (*cancel)(ngx_idempotency_store_t *store,
                                       ngx_idempotency_op_t *op);
} ngx_idempotency_engine_t;


struct ngx_idempotency_store_s {
    const ngx_idempotency_engine_t  *engine;
};


#endif /* _NGX_IDEMPOTENCY_STORE_H_INCLUDED_ */
