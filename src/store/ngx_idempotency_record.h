
/*
 * Records in shared memory: their states, layout, and what may be done with
 * one, always under the zone's lock.  A record is found by its token and
 * expires by its own time.  Its response, if one is kept, is a chain of chunks.
 */


#ifndef _NGX_IDEMPOTENCY_RECORD_H_INCLUDED_
#define _NGX_IDEMPOTENCY_RECORD_H_INCLUDED_


#include "ngx_idempotency_store.h"
#include "ngx_idempotency_tier.h"
#include "ngx_idempotency_workers.h"


typedef struct ngx_idempotency_chunk_s  ngx_idempotency_chunk_t;

struct ngx_idempotency_chunk_s {
    ngx_idempotency_chunk_t        *next;
    u_char                          data[1];
};


/*
 * Records of one window, in the order in which they were recorded, and so in
 * that in which they end.  The clocks of two workers may differ by a moment,
 * and the end of some keys lies anywhere up to the span, so one may be freed
 * that much later; but none is found past its time, or freed before it.
 */

typedef struct ngx_idempotency_window_s  ngx_idempotency_window_t;

struct ngx_idempotency_window_s {
    ngx_idempotency_window_t       *next;
    ngx_msec_t                      length;
    ngx_msec_t                      span;
    ngx_queue_t                     records;
};


/*
 * A record's state: one of the four outcomes (ngx_idempotency_outcome_e), or
 * what the zone knows of the backing.  One table in record.c says which event
 * changes which state into which.
 */

typedef enum {
    NGX_IDEMPOTENCY_ASKING = NGX_IDEMPOTENCY_IN_DOUBT + 1,
                                   /* the backing is asked for a claim, and a
                                      request waits for the answer */
    NGX_IDEMPOTENCY_ABANDONED,     /* ... and no request waits any more */
    NGX_IDEMPOTENCY_GRANTED,       /* the backing has granted the claim; the
                                      request that asked does not know it yet */
    NGX_IDEMPOTENCY_REMOTE,        /* pending there, claimed by another zone */
    NGX_IDEMPOTENCY_DOUBTED,       /* in doubt there */
    NGX_IDEMPOTENCY_NOTHING,       /* not there, and not to be claimed */
    NGX_IDEMPOTENCY_FAILED,        /* the backing did not answer */
    NGX_IDEMPOTENCY_GONE,          /* the record has left the zone */
    NGX_IDEMPOTENCY_STATES
} ngx_idempotency_state_e;


/* the events that change a record's state */

typedef enum {
    NGX_IDEMPOTENCY_ON_CLAIM = 0,  /* a request owns it, without the backing */
    NGX_IDEMPOTENCY_ON_ASK,        /* a request asks the backing, or waits for
                                      an answer that no request waited for */
    NGX_IDEMPOTENCY_ON_LEAVE,      /* the request that asked has ended */
    NGX_IDEMPOTENCY_ON_TAKE,       /* ... knows that its claim is granted */
    NGX_IDEMPOTENCY_ON_DONE,       /* the owner's outcome */
    NGX_IDEMPOTENCY_ON_NOT_KEPT,
    NGX_IDEMPOTENCY_ON_DOUBT,
    NGX_IDEMPOTENCY_ON_EVICT,      /* the response leaves memory */
    NGX_IDEMPOTENCY_ON_ORPHAN,     /* the owner's worker has died */
    NGX_IDEMPOTENCY_ON_GRANT,      /* the backing's answers */
    NGX_IDEMPOTENCY_ON_FOUND_PENDING,
    NGX_IDEMPOTENCY_ON_FOUND_DONE,
    NGX_IDEMPOTENCY_ON_FOUND_NOT_KEPT,
    NGX_IDEMPOTENCY_ON_FOUND_DOUBT,
    NGX_IDEMPOTENCY_ON_FOUND_NOTHING,
    NGX_IDEMPOTENCY_ON_FAIL,
    NGX_IDEMPOTENCY_ON_REMOVE,     /* the record leaves the zone */
    NGX_IDEMPOTENCY_ON_FORGET,     /* ... by hand, and the backing, too */
    NGX_IDEMPOTENCY_EVENTS
} ngx_idempotency_event_e;


/* whether the backing has a record's last change */

typedef enum {
    NGX_IDEMPOTENCY_FLUSHED = 0,   /* it has */
    NGX_IDEMPOTENCY_QUEUED,        /* the record is in the write-back queue */
    NGX_IDEMPOTENCY_FLUSHING,      /* a batch has the change */
    NGX_IDEMPOTENCY_OUTDATED,      /* a batch has the change before it */
    NGX_IDEMPOTENCY_ASIDE          /* the backing has no room for the record, or
                                      its batch failed: it waits beside the
                                      queue */
} ngx_idempotency_flush_e;


/* the tokens of one value of idempotency_quota */

typedef struct {
    /* key: the value's first bytes; these two must be the first members */
    ngx_rbtree_node_t               node;
    u_char                          value[NGX_IDEMPOTENCY_DIGEST_LEN];
    /* those that are not pending.  None of them ends before `ends`, and none
       that was looked at in this round before `next`: these are the last */
    ngx_queue_t                     bound;
    ngx_msec_t                      ends;
    ngx_msec_t                      next;
    /* all of them */
    ngx_uint_t                      live;
    ngx_uint_t                      round;
} ngx_idempotency_quota_t;


struct ngx_idempotency_record_s {
    /* key: the token's first bytes; these two must be the first members */
    ngx_rbtree_node_t               node;
    u_char                          token[NGX_IDEMPOTENCY_DIGEST_LEN];
    /* in sh->pending, in sh->remote, or in sh->kept with a response, or in
       none */
    ngx_queue_t                     queue;

    u_char                          fingerprint[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_idempotency_parts_t         parts;
    unsigned                        replays:30;
    /* its response took too long to be flushed, so often */
    unsigned                        slow:2;

    /* what owners and upstreams know its claim by: made here, or by what has
       granted it */
    uint64_t                        fence;
    /* pending: when it was claimed, and before when it will not end */
    ngx_msec_t                      recorded;
    ngx_msec_t                      ends;
    ngx_idempotency_window_t       *window;
    ngx_idempotency_quota_t        *quota;

    /* all but the last chunk are full pages */
    ngx_idempotency_chunk_t        *chunks;
    uint32_t                        size;
    /* what it is known by here, from when it is asked for: the last bits of
       the zone's number for that */
    uint32_t                        sequence;

    union {
        struct {
            /* the workers with requests that wait for it; its owner; and how
               long after its claim the owner last gave a sign of life */
            ngx_idempotency_workers_t   waiting;
            ngx_idempotency_worker_t    owner;
            uint32_t                    renewed;
        } pending;

        struct {
            /* likewise.  The number of the request that asks, and what its
               claim says */
            ngx_idempotency_workers_t   waiting;
            ngx_idempotency_worker_t    owner;
            unsigned                    asker:30;
            unsigned                    retry:1;
            unsigned                    old:1;
        } asking;

        struct {
            /* in the queues of its window, and of its quota, if it has one */
            ngx_queue_t                 expiry;
            ngx_queue_t                 quota;
        } bound;

        struct {
            /* a negative entry in sh->leftovers, or a copy in sh->copies; since
               when */
            ngx_queue_t                 expiry;
            ngx_msec_t                  copied;
        } copy;

        struct {
            /* the workers with requests that wait, as of one that is pending
               here; when the backing is asked next; how often it has
               answered; when a request last wanted it, and whether one waits
               for the next answer */
            ngx_idempotency_workers_t   waiting;
            ngx_msec_t                  due;
            uint32_t                    wanted;
            unsigned                    answers:31;
            unsigned                        polled:1;
        } remote;

        struct {
            /* by hand, also a claim of another instance; or fresh, even if it
               was in doubt before */
            ngx_uint_t                  forgotten;
            ngx_uint_t                  freed;
        } gone;
    } as;

    /* the next one in the write-back queue, or in the batch */
    ngx_idempotency_record_t       *next;

    /* see ngx_idempotency_state_e, ngx_idempotency_flush_e */
    unsigned                        state:4;
    unsigned                        flush:3;
    unsigned                        status:10;
    /* pending: it was in doubt before */
    unsigned                        taken:1;
    /* the backing never gets it */
    unsigned                        local:1;
    /* the claim was sent, so the backing may know it; it has said that it
       does; the last change was sent, and the answer is not known */
    unsigned                        sent:1;
    unsigned                        known:1;
    unsigned                        unsure:1;
    /* see ngx_idempotency_quota_t */
    unsigned                        round:1;
    /* requests of this worker wait until it is flushed: its slot and one, or
       all workers */
    unsigned                        holding:8;
    /* for how long an owner that can't be asked keeps it */
    uint32_t                        lease;
};

#define NGX_IDEMPOTENCY_HOLD_ALL    255

/* a request owns it, or the backing is asked for it */

#define ngx_idempotency_record_pends(rec)                                    \
    ((rec)->state == NGX_IDEMPOTENCY_PENDING                                 \
     || ngx_idempotency_record_asks(rec))

/* the backing is asked for it, or a granted claim was not taken yet */

#define ngx_idempotency_record_asks(rec)                                     \
    ((rec)->state == NGX_IDEMPOTENCY_ASKING                                  \
     || (rec)->state == NGX_IDEMPOTENCY_ABANDONED                            \
     || (rec)->state == NGX_IDEMPOTENCY_GRANTED)

/* a negative entry: the answer for the requests that waited, and no copy */

#define ngx_idempotency_record_negative(rec)                                 \
    ((rec)->state == NGX_IDEMPOTENCY_DOUBTED                                 \
     || (rec)->state == NGX_IDEMPOTENCY_NOTHING                              \
     || (rec)->state == NGX_IDEMPOTENCY_FAILED)

/* nothing is known of the token */

#define ngx_idempotency_record_unknown(rec)                                  \
    (ngx_idempotency_record_asks(rec)                                        \
     || (rec)->state == NGX_IDEMPOTENCY_NOTHING                              \
     || (rec)->state == NGX_IDEMPOTENCY_FAILED)

/* it can't be evicted: the backing does not have it */

#define ngx_idempotency_record_stays(rec)                                    \
    ((rec)->local || (rec)->flush != NGX_IDEMPOTENCY_FLUSHED                 \
     || ngx_idempotency_record_negative(rec))

/* the documents say what a token costs: it does not compile above */

typedef char  ngx_idempotency_record_fits_its_slot_t[
    (sizeof(ngx_idempotency_record_t) <= 256) ? 1 : -1];


/* records, always with the lock held */

ngx_idempotency_record_t *ngx_idempotency_record_current(
    ngx_idempotency_shm_t *shm, u_char *token, ngx_msec_t now);
ngx_idempotency_result_e ngx_idempotency_record_create(
    ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim);
ngx_idempotency_result_e ngx_idempotency_record_reclaim(
    ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec,
    ngx_idempotency_claim_t *claim);
ngx_idempotency_result_e ngx_idempotency_record_ask(
    ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim,
    ngx_idempotency_record_t **rec);
void ngx_idempotency_record_asker(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_idempotency_claim_t *claim);
void ngx_idempotency_record_take(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_idempotency_claim_t *claim);
void ngx_idempotency_record_found(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_idempotency_event_e event,
    ngx_msec_t now);
void ngx_idempotency_record_change(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_idempotency_event_e event,
    ngx_msec_t now);
void ngx_idempotency_record_own(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_msec_t now);
void ngx_idempotency_record_renew(ngx_idempotency_record_t *rec,
    ngx_msec_t lease, ngx_msec_t now);
void ngx_idempotency_record_publish(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_idempotency_outcome_e outcome,
    ngx_uint_t status, ngx_msec_t now);
void ngx_idempotency_record_leave(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_uint_t status, ngx_msec_t now);
ngx_idempotency_record_t *ngx_idempotency_record_leftover(
    ngx_idempotency_shm_t *shm, ngx_idempotency_op_t *op, uint32_t sequence);
uint64_t ngx_idempotency_record_sequence(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);
void ngx_idempotency_record_release(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_msec_t now);
void ngx_idempotency_record_remove(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);
ngx_uint_t ngx_idempotency_record_expired(ngx_idempotency_record_t *rec,
    ngx_msec_t now);
ngx_uint_t ngx_idempotency_record_expire(ngx_idempotency_shm_t *shm,
    ngx_msec_t now, ngx_uint_t n);
void ngx_idempotency_record_evict(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);
ngx_uint_t ngx_idempotency_record_free_some(ngx_idempotency_shm_t *shm,
    ngx_msec_t now);
ngx_uint_t ngx_idempotency_record_alive(ngx_idempotency_record_t *rec,
    ngx_msec_t now);

/* the machine's clock, in microseconds: no number of a claim is below it */

uint64_t ngx_idempotency_record_micros(void);

/* what an answer says of a record */

ngx_uint_t ngx_idempotency_record_differs(ngx_idempotency_record_t *rec,
    ngx_idempotency_claim_t *claim);

/* the backing lacks its outcome, and will have it soon */

ngx_uint_t ngx_idempotency_record_unflushed(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);

/* the workers with requests that wait for it, or NULL: it is neither pending
   nor remote; whether there are any; they are woken by the unlock */

ngx_idempotency_workers_t *ngx_idempotency_record_waiting(
    ngx_idempotency_record_t *rec);
ngx_uint_t ngx_idempotency_record_awaited(ngx_idempotency_record_t *rec);
void ngx_idempotency_record_wake(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);

/* how many of them a value of idempotency_quota has */

ngx_idempotency_result_e ngx_idempotency_quota_check(
    ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim);

/* the node behind this digest in its tree; NULL: the first */

ngx_rbtree_node_t *ngx_idempotency_tree_next(ngx_idempotency_shm_t *shm,
    ngx_rbtree_node_t *root, u_char *digest);
uint64_t ngx_idempotency_tree_key(u_char *token);

/* the chunks of one response, likewise */

typedef struct {
    ngx_idempotency_chunk_t        *chunk;
    size_t                          offset;      /* in the response */
} ngx_idempotency_cursor_t;

ngx_uint_t ngx_idempotency_chunks_pages(size_t size);
ngx_int_t ngx_idempotency_chunks_append(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_idempotency_cursor_t *cur,
    ngx_chain_t **in, u_char **pos, size_t size, ngx_msec_t now);
void ngx_idempotency_chunks_read(ngx_idempotency_cursor_t *cur, u_char *dst,
    size_t n);
void ngx_idempotency_chunks_free(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);


#endif /* _NGX_IDEMPOTENCY_RECORD_H_INCLUDED_ */
