
/*
 * A zone in shared memory as nginx makes one, the operations on it in short,
 * and a look inside that finds whatever is inconsistent.
 */


#ifndef _ZONE_H_INCLUDED_
#define _ZONE_H_INCLUDED_


#include "unit.h"
#include "store/ngx_idempotency_shm.h"


#define ZONE_SLOTS  16


/* what is so of one engine and not of each: a case says what it takes */

/* an operation is answered when it returns, and wakes whom it has to */
#define ZONE_AT_ONCE   0x01
/* an owner has waited for nothing, so no wake is in vain */
#define ZONE_CALM      0x10
/* what is asked first is answered first */
#define ZONE_IN_TURN   0x20
/* what is bound is in the zone until its time is over */
#define ZONE_STAYS     0x02
/* ... which refuses what it has no room for */
#define ZONE_FILLS     0x40
/* nothing stands behind it */
#define ZONE_ALONE     0x04
/* what is bound outlives the zone */
#define ZONE_OUTLIVES  0x08


typedef struct zone_s         zone_t;
typedef struct zone_engine_s  zone_engine_t;

struct zone_engine_s {
    char                            *name;
    const ngx_idempotency_engine_t  *engine;
    ngx_uint_t                       is;

    /* NULL: nothing is to be done.  What stands behind a zone, before that is
       made; when a worker begins and ends; and when the zone is gone, for good
       or until it is opened again */
    void                           (*open)(zone_t *z);
    void                           (*begin)(zone_t *z);
    void                           (*end)(zone_t *z);
    void                           (*close)(zone_t *z, ngx_uint_t again);

    /* a thread does its work, or a timer's time has come, while no time passes;
       false: nothing is under way */
    ngx_uint_t                     (*pass)(zone_t *z);
    /* an operation was answered */
    void                           (*answered)(zone_t *z);
};


struct zone_s {
    const zone_engine_t     *engine;

    ngx_shm_zone_t           zone;
    ngx_idempotency_shm_t    shm;
    ngx_idempotency_store_t  store;

    /* by how much the clocks of those who use it may differ */
    ngx_msec_int_t           skew;

    /* of the empty zone */
    ngx_uint_t               pfree;
    ngx_uint_t               used[ZONE_SLOTS];
};


/* of the zones that are opened from now on */

extern const zone_engine_t  *zone_engine;
extern const zone_engine_t   zone_shm;

/* is this so of it? */

#define zone_is(what)  (zone_engine->is & (what))

/* the one that a test has, if it has one */

extern zone_t  zone;

void zone_open(zone_t *z, size_t size, ngx_uint_t evict);
void zone_close(zone_t *z);

/* the zone as processes of the next configuration see it; may be the same */

void zone_reload(zone_t *z, zone_t *old);
ngx_int_t zone_init_process(zone_t *z);
void zone_exit_process(zone_t *z);

/* nginx ends in peace, and is started again */

void zone_restart(zone_t *z);

/* the next turn of the event loop, or what else is under way; all of that */

ngx_uint_t zone_pass(zone_t *z);
void zone_settle(zone_t *z);

/* trees, queues, chunks and the allocator agree with each other */

void zone_check(zone_t *z);

/* and nothing is left: all memory is back, and in one piece */

void zone_check_empty(zone_t *z);

/* takes all free pages but some, and gives them back */

void zone_occupy(zone_t *z, ngx_uint_t leave);
void zone_vacate(zone_t *z);

/* so many of this outcome, as the engine says */

ngx_uint_t zone_records(zone_t *z, ngx_idempotency_outcome_e outcome);

ngx_uint_t zone_size(ngx_queue_t *queue);
ngx_uint_t zone_bound(zone_t *z);

/* called once, after the n-th next unlock of a zone */

void zone_between(ngx_uint_t n, void (*run)(zone_t *z), zone_t *z);
ngx_uint_t zone_between_due(void);

/* ngx_pnalloc() fails */

extern ngx_uint_t  zone_no_memory;

/* how often shared memory was given back */

extern ngx_uint_t  zone_freed;

/* the process dies where it takes or gives back shared memory so many times */

extern ngx_uint_t  zone_die_after;


/*
 * An operation as a test says it and sees it, whichever one it is to be, with
 * times instead of ages; and the claim that it may be.  What one operation
 * answers is what the next one of the same op_t asks with.
 */

typedef struct op_s  op_t;

struct op_s {
    u_char                     token[NGX_IDEMPOTENCY_DIGEST_LEN];
    u_char                     fingerprint[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_idempotency_parts_t    parts;
    ngx_msec_t                 now;

    ngx_msec_t                 window;
    ngx_msec_t                 least;
    ngx_msec_t                 span;
    ngx_msec_t                 lease;
    size_t                     reserve;
    ngx_uint_t                 quota;
    u_char                     value[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_uint_t                 retry;
    ngx_uint_t                 old;
    ngx_uint_t                 wait;
    ngx_uint_t                 waiting;
    uint64_t                   waited;

    uint64_t                   fence;
    ngx_idempotency_outcome_e  outcome;
    ngx_uint_t                 status;
    ngx_chain_t               *pieces;
    size_t                     size;
    ngx_uint_t                 leave;
    ngx_uint_t                 settled;
    ngx_uint_t                 doubt;

    ngx_str_t                  response;
    ngx_pool_t                *pool;
    ngx_msec_t                 recorded;
    ngx_uint_t                 replays;
    /* unless it is pending */
    ngx_msec_t                 ends;
    ngx_uint_t                 differs;
    ngx_uint_t                 anonymous;
    ngx_uint_t                 left;

    ngx_idempotency_result_e   result;

    /* called when what a claim waits for has changed */
    void                     (*handler)(op_t *op);
    void                      *data;

    /* of the claim: its maker waits for the answer, and has it; it was called,
       and is to be made again as it is */
    ngx_uint_t                 asks;
    ngx_uint_t                 answered;
    ngx_uint_t                 called;

    ngx_idempotency_claim_t    claim;
};


/* tokens and fingerprints are made of numbers */

void op_token(u_char *token, uint64_t n);
void op_init(op_t *op, ngx_uint_t token, ngx_uint_t print, ngx_msec_t now);

/* each is run to its answer; a claim that waits may be made again */

ngx_uint_t op_claim(zone_t *z, op_t *op);
ngx_uint_t op_complete(zone_t *z, op_t *op);
ngx_uint_t op_release(zone_t *z, op_t *op);
ngx_uint_t op_find(zone_t *z, op_t *op);
ngx_uint_t op_forget(zone_t *z, op_t *op);
ngx_uint_t op_list(zone_t *z, ngx_idempotency_list_t *list);
void op_cancel(zone_t *z, op_t *op);

/* on the one zone; what a case asks for, and what another one does */

extern op_t  op, other;

ngx_uint_t op_claims(op_t *op, ngx_uint_t token, ngx_uint_t print,
    ngx_msec_t now);
ngx_uint_t op_finds(op_t *op, ngx_uint_t token, ngx_uint_t print,
    ngx_msec_t now);

/* a token that is known there */

void forget(ngx_uint_t token, ngx_msec_t now);

/* a claim that is under way for as long as it is `waiting`: see zone_pass() */

void op_start(zone_t *z, op_t *op);

/* what op_claim() and op_find() of the response got: NGX_ERROR, if there was
   no memory for it */

ngx_int_t op_try_claim(zone_t *z, op_t *op);
ngx_int_t op_try_read(zone_t *z, op_t *op);

/* a response of so many bytes, told by its seed, in pieces that vary with it */

void op_respond(op_t *op, size_t size, uint64_t seed);
int op_responded(op_t *op, size_t size, uint64_t seed);

/* all of it at one time: claims, completes and lets go of it */

ngx_uint_t op_bind(zone_t *z, ngx_uint_t token, ngx_uint_t print,
    ngx_msec_t now, ngx_msec_t window, size_t size);


#endif /* _ZONE_H_INCLUDED_ */
