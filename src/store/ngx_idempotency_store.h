
/*
 * The store's protocol: what a request may ask of a store of tokens, whatever
 * engine keeps it.  Nothing here knows requests; the time is an argument.
 *
 * An operation is answered now (NGX_OK: op.result is set) or later (NGX_AGAIN:
 * op.handler is called once, unless the operation is cancelled before).  Until
 * then it belongs to the engine: one that may outlive its request has memory of
 * its own.  NGX_ERROR: the caller's pool has no memory for the answer.  An
 * owner's operation names its fence, and does nothing under an old one.
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
                                      error that was sent, if there was one */
} ngx_idempotency_outcome_e;


/* how an operation ended */

typedef enum {
    NGX_IDEMPOTENCY_OK = 0,
    NGX_IDEMPOTENCY_CLAIMED,       /* claim: the caller owns the token now */
    NGX_IDEMPOTENCY_BOUND,         /* claim, find: see found.outcome */
    NGX_IDEMPOTENCY_CONFLICT,      /* claim: bound to something else */
    NGX_IDEMPOTENCY_VERSION,       /* claim: bound by another version */
    NGX_IDEMPOTENCY_CHANGED,       /* a claim that waited may be tried again */
    NGX_IDEMPOTENCY_UNFINISHED,    /* within an engine: there is more to free */
    NGX_IDEMPOTENCY_ABSENT,        /* find, forget: no such token */
    NGX_IDEMPOTENCY_STALE,         /* complete: an old fence */
    NGX_IDEMPOTENCY_TRIMMED,       /* complete: no memory for its response */
    NGX_IDEMPOTENCY_EXPIRED,       /* claim: absent, perhaps as it ended */
    NGX_IDEMPOTENCY_LIMITED,       /* claim: fresh, and over its quota */
    NGX_IDEMPOTENCY_UNAVAILABLE    /* no memory, or no store */
} ngx_idempotency_result_e;


/* where a test has the worker die, or something fail.  A request header names
   the fault of an operation; with -DNGX_IDEMPOTENCY_FAULTS only */

typedef enum {
    NGX_IDEMPOTENCY_FAULT_NONE = 0,
    NGX_IDEMPOTENCY_FAULT_DIE_CLAIMED,
    NGX_IDEMPOTENCY_FAULT_DIE_RECORDING,
    NGX_IDEMPOTENCY_FAULT_DIE_LOCKED,
    NGX_IDEMPOTENCY_FAULT_NO_MEMORY,
    NGX_IDEMPOTENCY_FAULT_DROP_WAKE,
    NGX_IDEMPOTENCY_FAULT_BUSY,
    NGX_IDEMPOTENCY_FAULT_NO_POOL,
    /* of the late engine: a claim's first answer is lost, or comes much later;
       a claim's complete or release gets no answer */
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

#else

#define ngx_idempotency_fault(op, at)  0
#define ngx_idempotency_die(op, at)

#endif


/*
 * A token is bound to the fingerprint (of action and body) and to the identity
 * (of the client's credentials; all zero: the request has none).  The other
 * digests are too short to compare by, and tell only why two requests differ.
 */

#define NGX_IDEMPOTENCY_IDENTITY_LEN      16
#define NGX_IDEMPOTENCY_HINT_LEN          4
#define NGX_IDEMPOTENCY_SETTINGS_LEN      3

typedef struct {
    u_char                          identity[NGX_IDEMPOTENCY_IDENTITY_LEN];
    u_char                          action[NGX_IDEMPOTENCY_HINT_LEN];
    u_char                          body[NGX_IDEMPOTENCY_HINT_LEN];
    u_char                          settings[NGX_IDEMPOTENCY_SETTINGS_LEN];
    /* of the parts and the fingerprint: two versions can't be compared */
    u_char                          version;
} ngx_idempotency_parts_t;

#define NGX_IDEMPOTENCY_DIFFERS_ACTION    0x01
#define NGX_IDEMPOTENCY_DIFFERS_IDENTITY  0x02
#define NGX_IDEMPOTENCY_DIFFERS_BODY      0x04
#define NGX_IDEMPOTENCY_DIFFERS_SETTINGS  0x08


typedef struct ngx_idempotency_store_s  ngx_idempotency_store_t;
typedef struct ngx_idempotency_op_s     ngx_idempotency_op_t;

typedef void (*ngx_idempotency_op_handler_pt)(ngx_idempotency_op_t *op);

/* the head of each operation: the first member of the structs below */

struct ngx_idempotency_op_s {
    u_char                          token[NGX_IDEMPOTENCY_DIGEST_LEN];
    /* monotonic, in milliseconds */
    ngx_msec_t                      now;

    ngx_idempotency_result_e        result;

    ngx_idempotency_op_handler_pt   handler;
    void                           *data;

    /* the engine has the operation: the handler is yet to be called */
    unsigned                        waiting:1;
    /* the engine's own: the queue where the operation waits, and how it goes
       on.  NULL: it is a claim, which its caller makes again */
    ngx_queue_t                     queue;
    ngx_int_t                     (*resume)(ngx_idempotency_op_t *op);
    ngx_idempotency_store_t        *store;
    /* the sequence of the record that the operation waits for; its own number,
       if it has asked the backing; which answer is new enough for it; since
       when it waits */
    uint32_t                        waited;
    uint32_t                        asker;
    uint32_t                        answer;
    ngx_msec_t                      since;

#if (NGX_IDEMPOTENCY_FAULTS)
    ngx_idempotency_fault_e         fault;
#endif
};


/* what a token is bound to.  Ages, as they mean the same on another machine and
   after a restart; points in time do not */

typedef struct {
    ngx_idempotency_outcome_e       outcome;
    ngx_uint_t                      status;
    uint64_t                        fence;
    /* since the outcome was recorded; until it ends, unless it is pending */
    ngx_msec_t                      age;
    ngx_msec_t                      left;
    ngx_uint_t                      replays;
    /* the token was bound without an identity */
    ngx_uint_t                      anonymous;
    /* pending: the process that owns it here, or 0; in a list of the backing:
       the instance that owns it, or 0 */
    ngx_pid_t                       owner;
    uint64_t                        instance;
    /* the length, and the bytes if there is a pool to copy them to */
    ngx_str_t                       response;
} ngx_idempotency_found_t;


/* check, bind and claim in one step; counts a replay.  If the caller makes the
   claim again while it waits, it is the same claim, and is answered once */

typedef struct {
    ngx_idempotency_op_t            op;

    u_char                          fingerprint[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_idempotency_parts_t         parts;

    /* the token is bound for the window from its outcome on, and until at least
       `least` from now on; `span`: at most so long, 0: as long as the window */
    ngx_msec_t                      window;
    ngx_msec_t                      least;
    ngx_msec_t                      span;
    /* how long a silent owner keeps the claim */
    ngx_msec_t                      lease;
    /* if a response of this size would not fit, nothing is claimed */
    size_t                          reserve;
    /* at most so many tokens for one value, of this digest */
    ngx_uint_t                      quota;
    u_char                          value[NGX_IDEMPOTENCY_DIGEST_LEN];
    /* for the response, if there is one */
    ngx_pool_t                     *pool;

    /* take over a token that is in doubt */
    unsigned                        retry:1;
    /* don't claim an absent token: it may have been bound before */
    unsigned                        old:1;
    /* never ask the backing, as for idempotency_similar; don't ask it while it
       is out of reach (idempotency_unavailable local) */
    unsigned                        local:1;
    unsigned                        alone:1;
    /* if the token is pending, wait, and call the handler at its change */
    unsigned                        wait:1;
    /* out: the claim waited for was released, and left a response */
    unsigned                        leftover:1;
    /* out: the token was in doubt before */
    unsigned                        taken:1;

    /* out, if it is claimed */
    uint64_t                        fence;
    /* out: what it is bound to; over its quota: `left` is the oldest's */
    ngx_idempotency_found_t         found;
    ngx_uint_t                      differs;
} ngx_idempotency_claim_t;


/* the owner records its outcome; or releases the token, as it did not execute:
   then the token is as it was before the claim, fresh or in doubt, and requests
   that wait get the response if there is one, else one of them claims */

typedef struct {
    ngx_idempotency_op_t            op;
    uint64_t                        fence;
    /* out, if it was trimmed: what was recorded instead */
    ngx_idempotency_outcome_e       outcome;
    ngx_uint_t                      status;
    /* the response, of this size.  The caller may use it again when the
       operation has returned, answered or not */
    ngx_chain_t                    *pieces;
    size_t                          size;
    /* released; fresh even if it was in doubt before */
    unsigned                        release:1;
    unsigned                        settled:1;
    /* out: the released token is in doubt */
    unsigned                        doubt:1;
    /* out: for how long the token is bound */
    ngx_msec_t                      left;
} ngx_idempotency_complete_t;


/* looks; changes nothing but that it frees expired records */

typedef struct {
    ngx_idempotency_op_t            op;
    /* for the response; NULL: its length only */
    ngx_pool_t                     *pool;
    /* out */
    ngx_idempotency_found_t         found;
    u_char                          fingerprint[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_idempotency_parts_t         parts;
} ngx_idempotency_find_t;


/* an operator forgets a token, pending or not; with a fence, only the record
   that has it */

typedef struct {
    ngx_idempotency_op_t            op;
    uint64_t                        fence;
    /* out: the fence of the forgotten record, or 0 */
    uint64_t                        was;
} ngx_idempotency_forget_t;


/* Up to n records, in no order.  Repeated until the cursor is 0 again, a list
   has each record that exists all the time exactly once, whatever else comes
   and goes.  An answer may be empty although there are more records. */

typedef struct {
    u_char                          token[NGX_IDEMPOTENCY_DIGEST_LEN];
    u_char                          fingerprint[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_idempotency_found_t         found;
} ngx_idempotency_listed_t;

typedef struct {
    ngx_idempotency_op_t            op;
    /* 0 at first and at the end, else the engine's, as is op.token.  For the
       next part the caller makes the answered operation again with a new n */
    ngx_uint_t                      cursor;
    ngx_idempotency_listed_t       *listed;
    /* in: the array's size; out: the number of records */
    ngx_uint_t                      n;
    /* list the backing, which may give more than n at once, up to
       NGX_IDEMPOTENCY_TIER_BATCH */
    unsigned                        behind:1;
    /* the engine's: what it reads of the backing */
    struct ngx_idempotency_page_s  *page;
} ngx_idempotency_list_t;


typedef struct {
    ngx_int_t                     (*claim)(ngx_idempotency_store_t *store,
                                       ngx_idempotency_claim_t *claim);
    ngx_int_t                     (*complete)(ngx_idempotency_store_t *store,
                                       ngx_idempotency_complete_t *complete);
    ngx_int_t                     (*find)(ngx_idempotency_store_t *store,
                                       ngx_idempotency_find_t *find);
    ngx_int_t                     (*forget)(ngx_idempotency_store_t *store,
                                       ngx_idempotency_forget_t *forget);
    ngx_int_t                     (*list)(ngx_idempotency_store_t *store,
                                       ngx_idempotency_list_t *list);

    /* the caller does not want the answer any more; a claim that is granted
       later is released */
    void                          (*cancel)(ngx_idempotency_store_t *store,
                                       ngx_idempotency_op_t *op);

    /* answered at once; expired records are freed first.  NGX_DECLINED: the
       zone is torn, and only its counters are known */
    ngx_int_t                     (*figures)(ngx_idempotency_store_t *store,
                                       ngx_msec_t now,
                                       ngx_idempotency_figures_t *figures);

    /* for all stores of the engine; `keep`: once the directives are read, adds
       zones that none of them names but old workers use */
    ngx_int_t                     (*keep)(ngx_conf_t *cf);
    ngx_int_t                     (*init_module)(ngx_cycle_t *cycle);
    ngx_int_t                     (*init_process)(ngx_cycle_t *cycle);
    void                          (*exit_process)(ngx_cycle_t *cycle);
} ngx_idempotency_engine_t;


/* made when a directive first names it; the directive that defines it calls the
   function below, which sets engine and data */

struct ngx_idempotency_store_s {
    ngx_str_t                        name;
    /* NULL: no directive has defined the store */
    const ngx_idempotency_engine_t  *engine;
    void                            *data;
    /* the client gets the end of its response after `complete` is answered */
    ngx_uint_t                       strict;
    /* the largest response that the store keeps by default, or 0 */
    size_t                           max_response;
    /* for tokens and seals; all zero: there is none */
    const ngx_idempotency_secret_t  *secret;
    /* counted by the engine and by requests */
    ngx_idempotency_counters_t      *counters;
};


/* a store in shared memory; `evict`: responses may go early */

ngx_int_t ngx_idempotency_shm_zone_add(ngx_conf_t *cf,
    ngx_idempotency_store_t *store, size_t size, ngx_uint_t evict);

/* an operator agrees to another backing; NGX_DECLINED: it is none */

ngx_int_t ngx_idempotency_store_agree(ngx_idempotency_store_t *store);

/* the engine of all stores; for tests, the late engine (t/late_engine.c) */

#if (NGX_IDEMPOTENCY_LATE)
#define ngx_idempotency_engine  ngx_idempotency_late_engine
#else
#define ngx_idempotency_engine  ngx_idempotency_shm_engine
#endif

extern const ngx_idempotency_engine_t  ngx_idempotency_engine;


#endif /* _NGX_IDEMPOTENCY_STORE_H_INCLUDED_ */
