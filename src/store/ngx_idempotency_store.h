
/*
 * The store's protocol: what a request may ask of a store of tokens, whatever
 * engine keeps it.  Knows no requests; the time is an argument.
 *
 * Each operation may be answered now (NGX_OK: op.result is set) or later
 * (NGX_AGAIN: op.handler is called once with op.result set, unless the
 * operation is cancelled before).  Until then it is the engine's, with all
 * that it points to: one that may outlive its request has memory of its own.
 * NGX_ERROR: the caller's pool has no memory for the answer.
 * An operation that changes something on behalf of an owner names its fence,
 * and does nothing under an old one.
 */


#ifndef _NGX_IDEMPOTENCY_STORE_H_INCLUDED_
#define _NGX_IDEMPOTENCY_STORE_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include "digest/ngx_idempotency_digest.h"
#include "ngx_idempotency_secret.h"
#include "ngx_idempotency_stats.h"


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
    NGX_IDEMPOTENCY_BOUND,         /* claim, find: see found.outcome */
    NGX_IDEMPOTENCY_CONFLICT,      /* claim: bound to something else */
    NGX_IDEMPOTENCY_VERSION,       /* claim: bound, to what can't be compared */
    NGX_IDEMPOTENCY_CHANGED,       /* a claim that waited may be tried again */
    NGX_IDEMPOTENCY_UNFINISHED,    /* within an engine: there is more to free */
    NGX_IDEMPOTENCY_ABSENT,        /* find, forget, renew: no such token */
    NGX_IDEMPOTENCY_STALE,         /* complete, release, renew: an old fence */
    NGX_IDEMPOTENCY_TRIMMED,       /* complete: without its response, for
                                      want of memory */
    NGX_IDEMPOTENCY_EXPIRED,       /* claim: fresh, or so old that it ended */
    NGX_IDEMPOTENCY_LIMITED,       /* claim: fresh, and over its quota */
    NGX_IDEMPOTENCY_UNAVAILABLE    /* no memory, or no store */
} ngx_idempotency_result_e;


/*
 * Places where a test may have the worker die, or something fail: named by a
 * request header, and compiled only with -DNGX_IDEMPOTENCY_FAULTS.  Each is of
 * an operation: `op` is its head.
 */

typedef enum {
    NGX_IDEMPOTENCY_FAULT_NONE = 0,
    NGX_IDEMPOTENCY_FAULT_DIE_CLAIMED,
    NGX_IDEMPOTENCY_FAULT_DIE_RECORDING,
    NGX_IDEMPOTENCY_FAULT_DIE_LOCKED,
    NGX_IDEMPOTENCY_FAULT_NO_MEMORY,
    NGX_IDEMPOTENCY_FAULT_DROP_WAKE,
    NGX_IDEMPOTENCY_FAULT_BUSY,
    NGX_IDEMPOTENCY_FAULT_NO_POOL,
    /* of a store that answers late: a claim is not answered the first time,
       or heard much later; the answer to what settles it never comes */
    NGX_IDEMPOTENCY_FAULT_UNANSWERED,
    NGX_IDEMPOTENCY_FAULT_SLOW,
    NGX_IDEMPOTENCY_FAULT_UNSETTLED
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
#define NGX_IDEMPOTENCY_SETTINGS_LEN      3

typedef struct {
    u_char                          identity[NGX_IDEMPOTENCY_IDENTITY_LEN];
    u_char                          action[NGX_IDEMPOTENCY_HINT_LEN];
    u_char                          body[NGX_IDEMPOTENCY_HINT_LEN];
    /* that the others were made by */
    u_char                          settings[NGX_IDEMPOTENCY_SETTINGS_LEN];
    /* of all this and of the fingerprint: what is of two can't be compared */
    u_char                          version;
} ngx_idempotency_parts_t;

#define NGX_IDEMPOTENCY_DIFFERS_ACTION    0x01
#define NGX_IDEMPOTENCY_DIFFERS_IDENTITY  0x02
#define NGX_IDEMPOTENCY_DIFFERS_BODY      0x04
#define NGX_IDEMPOTENCY_DIFFERS_SETTINGS  0x08


typedef struct ngx_idempotency_store_s  ngx_idempotency_store_t;
typedef struct ngx_idempotency_op_s     ngx_idempotency_op_t;

typedef void (*ngx_idempotency_op_handler_pt)(ngx_idempotency_op_t *op);


/* what each operation begins with: the first member of the structs below */

struct ngx_idempotency_op_s {
    u_char                          token[NGX_IDEMPOTENCY_DIGEST_LEN];
    /* monotonic, in milliseconds */
    ngx_msec_t                      now;

    ngx_idempotency_result_e        result;

    ngx_idempotency_op_handler_pt   handler;
    void                           *data;

    /* the engine has it: the handler is yet to be called */
    unsigned                        waiting:1;
    /* the engine's own: where the operation waits, and what it does then */
    ngx_queue_t                     queue;
    void                          (*resume)(ngx_idempotency_op_t *op);
    ngx_idempotency_store_t        *store;
    uint32_t                        gone;

#if (NGX_IDEMPOTENCY_FAULTS)
    ngx_idempotency_fault_e         fault;
#endif
};


/* what an answer tells of a token.  Ages, not moments: they mean the same on
   another machine and after a restart */

typedef struct {
    ngx_idempotency_outcome_e       outcome;
    ngx_uint_t                      status;
    uint64_t                        fence;
    /* how long ago it was recorded, and for how long it will be bound yet,
       unless it is pending */
    ngx_msec_t                      age;
    ngx_msec_t                      left;
    /* how often it was replayed since */
    ngx_uint_t                      replays;
    /* it was bound by nobody that is known */
    ngx_uint_t                      anonymous;
    /* pending here: the process that owns it, or 0; listed of what stands
       behind, and pending: whose it is there, or 0 */
    ngx_pid_t                       owner;
    uint64_t                        instance;
    /* its size; and its bytes, if there is a pool to copy them to */
    ngx_str_t                       response;
} ngx_idempotency_found_t;


/* check, bind and claim in one step; counts a replay.  Made again while the
   engine has it, it is the same claim, and is answered once */

typedef struct {
    ngx_idempotency_op_t            op;

    u_char                          fingerprint[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_idempotency_parts_t         parts;

    /* for how long the outcome will bind the token; for how long from now at
       least; and for how long at most, or 0 where the window is all */
    ngx_msec_t                      window;
    ngx_msec_t                      least;
    ngx_msec_t                      span;
    /* for how long an owner that can't be asked keeps it */
    ngx_msec_t                      lease;
    /* a response of this size must fit, or nothing is claimed */
    size_t                          reserve;
    /* so many tokens there may be for a value, told by its digest */
    ngx_uint_t                      quota;
    u_char                          value[NGX_IDEMPOTENCY_DIGEST_LEN];
    /* for the response that is found */
    ngx_pool_t                     *pool;

    /* take over what is in doubt */
    unsigned                        retry:1;
    /* not what is fresh, as it may have been bound once */
    unsigned                        old:1;
    /* of no interest to what stands behind this machine's memory */
    unsigned                        local:1;
    /* by this machine's memory alone, where that is out of reach */
    unsigned                        alone:1;
    /* if it is pending, call the handler once that has changed */
    unsigned                        wait:1;
    /* out: the response was left by what it waited for, which released the
       token */
    unsigned                        leftover:1;
    /* out: what it owns now was in doubt before, and another's */
    unsigned                        taken:1;
    /* set by a claim that waits: the sequence of what it waits for; the number
       by which what stands behind answers it, if it has asked; and which
       answer of that is new enough for it */
    uint32_t                        waited;
    uint32_t                        asker;
    uint32_t                        answer;
    /* ... and since when it waits for one */
    ngx_msec_t                      since;

    /* out: the caller's own, if it is claimed */
    uint64_t                        fence;
    /* out: what it is bound to; of a claim over its quota, `left` tells when
       the oldest one ends */
    ngx_idempotency_found_t         found;
    /* out: of a conflict, what differs */
    ngx_uint_t                      differs;
} ngx_idempotency_claim_t;


/* the owner's outcome; keeps the response, or says that it could not */

typedef struct {
    ngx_idempotency_op_t            op;
    uint64_t                        fence;
    /* out, if it was trimmed: what was recorded instead */
    ngx_idempotency_outcome_e       outcome;
    ngx_uint_t                      status;
    /* the response, of this size in all; the caller's, which may go once the
       operation has returned, be it answered or not */
    ngx_chain_t                    *pieces;
    size_t                          size;
    /* out: for how long it is bound */
    ngx_msec_t                      left;
} ngx_idempotency_complete_t;


/* it did not execute: the token is fresh again, or, if it was in doubt before
   it was claimed, that; those who wait get the response, if it is left to
   them, or else one of them may claim it.  The pieces may go as those of
   `complete` */

typedef struct {
    ngx_idempotency_op_t            op;
    uint64_t                        fence;
    ngx_uint_t                      status;
    ngx_chain_t                    *pieces;
    size_t                          size;
    unsigned                        leave:1;
    /* nor did who claimed it before: it is fresh in any case */
    unsigned                        settled:1;
    /* out: it is in doubt */
    unsigned                        doubt:1;
} ngx_idempotency_release_t;


/* looks; of all changes it makes only the one that every operation does,
   freeing what is over, so that nobody finds it again */

typedef struct {
    ngx_idempotency_op_t            op;
    /* for the response; NULL: without it */
    ngx_pool_t                     *pool;
    /* out */
    ngx_idempotency_found_t         found;
    u_char                          fingerprint[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_idempotency_parts_t         parts;
} ngx_idempotency_find_t;


/* by hand, whoever owns it: a pending owner loses its claim; with a fence,
   only the record that has it */

typedef struct {
    ngx_idempotency_op_t            op;
    uint64_t                        fence;
    /* out: that of what is forgotten, or 0 if nobody knows */
    uint64_t                        was;
} ngx_idempotency_forget_t;


/* the owner lives, and keeps its claim for this long from now on */

typedef struct {
    ngx_idempotency_op_t            op;
    uint64_t                        fence;
    ngx_msec_t                      lease;
} ngx_idempotency_renew_t;


/* up to n records, in no particular order.  Asked again and again until the
   cursor is back at zero, the operation tells each one that is there all the
   time exactly once, even while others come and go.  An answer may well be
   empty while there is more */

typedef struct {
    u_char                          token[NGX_IDEMPOTENCY_DIGEST_LEN];
    u_char                          fingerprint[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_idempotency_found_t         found;
} ngx_idempotency_listed_t;

typedef struct {
    ngx_idempotency_op_t            op;
    /* 0 at first and at the end.  Between it is the engine's own, as op.token
       is, so the next question is the answered operation, with a new n */
    ngx_uint_t                      cursor;
    ngx_idempotency_listed_t       *listed;
    /* in: room for so many; out: how many there are */
    ngx_uint_t                      n;
    /* of what stands behind, and not of this machine's memory.  That may have
       more to tell at once than n: there is to be room for as many as a batch
       has, NGX_IDEMPOTENCY_TIER_BATCH */
    unsigned                        behind:1;
} ngx_idempotency_list_t;


typedef struct {
    ngx_int_t                     (*claim)(ngx_idempotency_store_t *store,
                                       ngx_idempotency_claim_t *claim);
    ngx_int_t                     (*complete)(ngx_idempotency_store_t *store,
                                       ngx_idempotency_complete_t *complete);
    ngx_int_t                     (*release)(ngx_idempotency_store_t *store,
                                       ngx_idempotency_release_t *release);
    ngx_int_t                     (*find)(ngx_idempotency_store_t *store,
                                       ngx_idempotency_find_t *find);
    ngx_int_t                     (*forget)(ngx_idempotency_store_t *store,
                                       ngx_idempotency_forget_t *forget);
    ngx_int_t                     (*renew)(ngx_idempotency_store_t *store,
                                       ngx_idempotency_renew_t *renew);
    ngx_int_t                     (*list)(ngx_idempotency_store_t *store,
                                       ngx_idempotency_list_t *list);

    /* the answer, or the change waited for, isn't wanted any more: a claim
       that is granted all the same is released */
    void                          (*cancel)(ngx_idempotency_store_t *store,
                                       ngx_idempotency_op_t *op);

    /* what it has counted, and how it is now, at once; frees what is over
       first, or a part of it.  NGX_DECLINED: it can't be told */
    ngx_int_t                     (*figures)(ngx_idempotency_store_t *store,
                                       ngx_msec_t now,
                                       ngx_idempotency_figures_t *figures);

    /* of all its stores: once the directives are read, what stays although
       none names it; and what a module does in the master and in a worker */
    ngx_int_t                     (*keep)(ngx_conf_t *cf);
    ngx_int_t                     (*init_module)(ngx_cycle_t *cycle);
    ngx_int_t                     (*init_process)(ngx_cycle_t *cycle);
    void                          (*exit_process)(ngx_cycle_t *cycle);
} ngx_idempotency_engine_t;


/* made when a directive names it first; its engine and its data are set by
   the function below that the directive which defines it calls */

struct ngx_idempotency_store_s {
    ngx_str_t                        name;
    /* NULL: no directive has defined it */
    const ngx_idempotency_engine_t  *engine;
    void                            *data;
    /* the answer to `complete` is waited for before the client has the whole
       response: what it is told then is not forgotten */
    ngx_uint_t                       strict;
    /* the largest response that it keeps if nobody says how large; 0: it does
       not mind */
    size_t                           most;
    /* by which its tokens are made, and what leaves this machine's memory is
       sealed; all of it is zero where there is none */
    const ngx_idempotency_secret_t  *secret;
    /* what others than the engine count, too */
    ngx_idempotency_counters_t      *counters;
};


/* a store in shared memory of this size; responses may go early for want of
   it.  An error is logged; one is that the store was defined before */

ngx_int_t ngx_idempotency_shm_zone_add(ngx_conf_t *cf,
    ngx_idempotency_store_t *store, size_t size, ngx_uint_t evict);

/* an operator agrees to what stands behind, which is another one than it was,
   or has forgotten; NGX_DECLINED: there is nothing to agree to */

ngx_int_t ngx_idempotency_store_agree(ngx_idempotency_store_t *store);

/* the engine of all stores: shared memory, or, for tests, one before it that
   takes its time (t/late_engine.c) */

#if (NGX_IDEMPOTENCY_LATE)
#define ngx_idempotency_engine  ngx_idempotency_late_engine
#else
#define ngx_idempotency_engine  ngx_idempotency_shm_engine
#endif

extern const ngx_idempotency_engine_t  ngx_idempotency_engine;


#endif /* _NGX_IDEMPOTENCY_STORE_H_INCLUDED_ */
