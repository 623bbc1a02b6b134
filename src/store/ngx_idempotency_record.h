
/*
 * Records in shared memory: their states and layout, and what may be done with
 * one, always under the zone's lock.  A record is found by its token and
 * expires by its own time.  Its response, if one is kept, is a chain of chunks.
 * What must hold is at the head of record.c.
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
 * Records of one window, in the order in which they were recorded, so in the
 * order in which they end.  The clocks of two workers may differ by a moment,
 * and some keys end at any time up to the span: a record may be freed that much
 * later.  But no record is found after its end, or freed before it.
 */

typedef struct ngx_idempotency_window_s  ngx_idempotency_window_t;

/* the length of a zone's first window until a claim names one */

#define NGX_IDEMPOTENCY_NO_WINDOW  ((ngx_msec_t) -1)

struct ngx_idempotency_window_s {
    ngx_idempotency_window_t       *next;
    ngx_msec_t                      length;
    ngx_msec_t                      span;
    ngx_queue_t                     records;
};


/*
 * A record's state: one of the four outcomes (ngx_idempotency_outcome_e), or
 * what the zone knows of the backing.  The table record_states in record.c says
 * which event leads from which state to which.
 */

typedef enum {
    NGX_IDEMPOTENCY_ASKING = NGX_IDEMPOTENCY_IN_DOUBT + 1,
                                   /* the backing is asked for a claim, and a
                                      request waits for the answer */
    NGX_IDEMPOTENCY_ABANDONED,     /* ... and no request waits any more */
    NGX_IDEMPOTENCY_GRANTED,       /* the backing has granted the claim; the
                                      request that asked does not know it yet */
    NGX_IDEMPOTENCY_REMOTE,        /* pending in the backing, by another zone */
    NGX_IDEMPOTENCY_DOUBTED,       /* in doubt in the backing */
    NGX_IDEMPOTENCY_NOTHING,       /* absent there, and not to be claimed */
    NGX_IDEMPOTENCY_FAILED,        /* the backing did not answer */
    NGX_IDEMPOTENCY_GONE,          /* the record has left the zone */
    NGX_IDEMPOTENCY_STATES
} ngx_idempotency_state_e;


/* the events that change a record's state */

typedef enum {
    NGX_IDEMPOTENCY_ON_CLAIM = 0,  /* a request owns it, without the backing */
    NGX_IDEMPOTENCY_ON_ASK,        /* a request asks the backing, or adopts the
                                      question of one that has ended */
    NGX_IDEMPOTENCY_ON_ABANDON,    /* the request that asked has ended */
    NGX_IDEMPOTENCY_ON_TAKE,       /* that request takes its granted claim */
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
    NGX_IDEMPOTENCY_ON_FORGET,     /* ... by an operator, in the backing, too */
    NGX_IDEMPOTENCY_EVENTS
} ngx_idempotency_event_e;


/* whether the backing has a record's last change */

typedef enum {
    NGX_IDEMPOTENCY_FLUSHED = 0,   /* it has */
    NGX_IDEMPOTENCY_QUEUED,        /* in the write-back queue */
    NGX_IDEMPOTENCY_FLUSHING,      /* in a batch on its way */
    NGX_IDEMPOTENCY_OUTDATED,      /* a batch has an older change */
    NGX_IDEMPOTENCY_ASIDE          /* the backing has no room for the record, or
                                      its batch failed: it waits beside the
                                      queue */
} ngx_idempotency_flush_e;


/* the tokens of one value of idempotency_quota */

typedef struct {
    /* key: the value's first bytes; these two must be the first members */
    ngx_rbtree_node_t               node;
    u_char                          value[NGX_IDEMPOTENCY_DIGEST_LEN];
    /* records that are not pending.  None of them ends before `ends`; none that
       this round has checked, which are the last ones, ends before `next` */
    ngx_queue_t                     bound;
    ngx_msec_t                      ends;
    ngx_msec_t                      next;
    /* the number of all, pending ones included */
    ngx_uint_t                      live;
    ngx_uint_t                      round;
} ngx_idempotency_quota_t;


struct ngx_idempotency_record_s {
    /* key: the token's first bytes; these two must be the first members */
    ngx_rbtree_node_t               node;
    u_char                          token[NGX_IDEMPOTENCY_DIGEST_LEN];
    /* in sh->pending, sh->remote, sh->kept if it has a response, or none */
    ngx_queue_t                     queue;

    u_char                          fingerprint[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_idempotency_parts_t         parts;
    unsigned                        replays:30;
    /* how often its response took too long to be flushed */
    unsigned                        slow:2;

    /* owners and upstreams know the claim by this number, made here or by the
       backing that granted the claim */
    uint64_t                        fence;
    /* pending: when it was claimed; its outcome will not end before `ends` */
    ngx_msec_t                      recorded;
    ngx_msec_t                      ends;
    ngx_idempotency_window_t       *window;
    ngx_idempotency_quota_t        *quota;

    /* all but the last chunk are full pages */
    ngx_idempotency_chunk_t        *chunks;
    uint32_t                        size;
    /* the claim's number in this zone, from its first question on: the low bits
       of sh->sequence */
    uint32_t                        sequence;

    union {
        struct {
            /* the workers with requests that wait for it; its owner */
            ngx_idempotency_workers_t   waiting;
            ngx_idempotency_worker_t    owner;
        } pending;

        struct {
            /* likewise; the number of the request that asks; its claim */
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
            /* a negative entry is in sh->leftovers, a copy in sh->copies; since
               when */
            ngx_queue_t                 expiry;
            ngx_msec_t                  copied;
            /* of a failure: memory alone must not guard this token */
            ngx_uint_t                  refused;
        } copy;

        struct {
            /* the workers with requests that wait, at the same offset as above;
               when the backing is asked next; how often it has answered; when a
               request last wanted the record, and whether one waits for the
               next answer */
            ngx_idempotency_workers_t   waiting;
            ngx_msec_t                  due;
            uint32_t                    wanted;
            unsigned                    answers:31;
            unsigned                    polled:1;
        } remote;

        struct {
            /* the backing must forget the token, whoever claimed it; the token
               is fresh, even if it was in doubt before */
            ngx_uint_t                  forgotten;
            ngx_uint_t                  freed;
        } gone;
    } as;

    /* the next record in the write-back queue, or in the batch */
    ngx_idempotency_record_t       *next;

    /* see ngx_idempotency_state_e, ngx_idempotency_flush_e */
    unsigned                        state:4;
    unsigned                        flush:3;
    unsigned                        status:10;
    /* pending: the token was in doubt before */
    unsigned                        taken:1;
    /* the backing never gets this record */
    unsigned                        local:1;
    /* the claim was sent, so the backing may have it; the backing has
       acknowledged it; the last change was sent, and its answer is missing */
    unsigned                        sent:1;
    unsigned                        known:1;
    unsigned                        unsure:1;
    /* see ngx_idempotency_quota_t */
    unsigned                        round:1;
    /* requests wait until the record is flushed: the slot of their worker plus
       one, or NGX_IDEMPOTENCY_HOLD_ALL */
    unsigned                        holding:8;
    /* how long a silent owner keeps the claim */
    uint32_t                        lease;
};

#define NGX_IDEMPOTENCY_HOLD_ALL    255

/* a request owns it, or the backing is asked for it */

#define ngx_idempotency_record_pends(rec)                                    \
    ((rec)->state == NGX_IDEMPOTENCY_PENDING                                 \
     || ngx_idempotency_record_asks(rec))

/* the backing is asked for it, or has granted a claim, not taken yet */

#define ngx_idempotency_record_asks(rec)                                     \
    ((rec)->state == NGX_IDEMPOTENCY_ASKING                                  \
     || (rec)->state == NGX_IDEMPOTENCY_ABANDONED                            \
     || (rec)->state == NGX_IDEMPOTENCY_GRANTED)

/* a negative entry answers the requests that waited for it, and no others */

#define ngx_idempotency_record_negative(rec)                                 \
    ((rec)->state == NGX_IDEMPOTENCY_DOUBTED                                 \
     || (rec)->state == NGX_IDEMPOTENCY_NOTHING                              \
     || (rec)->state == NGX_IDEMPOTENCY_FAILED)

/* the zone does not know what the token is bound to */

#define ngx_idempotency_record_unknown(rec)                                  \
    (ngx_idempotency_record_asks(rec)                                        \
     || (rec)->state == NGX_IDEMPOTENCY_NOTHING                              \
     || (rec)->state == NGX_IDEMPOTENCY_FAILED)

/* no request has wanted the remote claim for so long; clocks may differ */

#define ngx_idempotency_remote_unwanted(rec, now, time)                      \
    ((int32_t) ((uint32_t) (now) - (rec)->as.remote.wanted)                  \
     >= (int32_t) (time))

/* the root of the tree with the token */

#define ngx_idempotency_bucket(shm, token)                                   \
    (&(shm)->sh->buckets[ngx_idempotency_tree_key(token) & (shm)->sh->mask])

/* can't be evicted: the backing lacks it */

#define ngx_idempotency_record_stays(rec)                                    \
    ((rec)->local || (rec)->flush != NGX_IDEMPOTENCY_FLUSHED)


/* all of this with the lock held */

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
void ngx_idempotency_record_orphan(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_msec_t now);
ngx_uint_t ngx_idempotency_record_alive(ngx_idempotency_record_t *rec,
    ngx_msec_t now);

/* this machine's clock, in microseconds: no claim's number is below it */

uint64_t ngx_idempotency_record_micros(void);

/* how a request differs from the one that the record's token is bound to; the
   token was bound without an identity */

ngx_uint_t ngx_idempotency_record_differs(ngx_idempotency_record_t *rec,
    ngx_idempotency_claim_t *claim);
ngx_uint_t ngx_idempotency_record_anonymous(ngx_idempotency_record_t *rec);

/* the backing lacks the outcome, and will have it soon */

ngx_uint_t ngx_idempotency_record_unflushed(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);

/* the workers with requests that wait for the record, or NULL if it is neither
   pending nor remote; whether there are any; wakes them with the unlock */

ngx_idempotency_workers_t *ngx_idempotency_record_waiting(
    ngx_idempotency_record_t *rec);
ngx_uint_t ngx_idempotency_record_awaited(ngx_idempotency_record_t *rec);
void ngx_idempotency_record_wake(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);

/* the backing lacks the record's last change: the record is added to the
   write-back queue, unless it is there; it goes to the end of that */

void ngx_idempotency_writeback_add(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);
void ngx_idempotency_writeback_append(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);

/* quotas */

ngx_idempotency_result_e ngx_idempotency_quota_check(
    ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim);

/* the node that follows this digest in the tree; NULL: the first one */

ngx_rbtree_node_t *ngx_idempotency_tree_next(ngx_idempotency_shm_t *shm,
    ngx_rbtree_node_t *root, u_char *digest);
uint64_t ngx_idempotency_tree_key(u_char *token);

/* the chunks of a response, with the lock held */

typedef struct {
    ngx_idempotency_chunk_t        *chunk;
    size_t                          offset;      /* in the response */
} ngx_idempotency_cursor_t;

/* a response that is appended piece by piece, and how far that is */

typedef struct {
    ngx_chain_t                    *pieces;
    size_t                          size;

    ngx_chain_t                    *in;
    u_char                         *pos;
    ngx_idempotency_cursor_t        cur;
} ngx_idempotency_source_t;

ngx_uint_t ngx_idempotency_chunks_pages(size_t size);
ngx_int_t ngx_idempotency_chunks_append(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_idempotency_source_t *src,
    ngx_msec_t now);
void ngx_idempotency_chunks_read(ngx_idempotency_cursor_t *cur, u_char *dst,
    size_t n);
void ngx_idempotency_chunks_free(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);


#endif /* _NGX_IDEMPOTENCY_RECORD_H_INCLUDED_ */
