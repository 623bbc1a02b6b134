
/*
 * Tokens in shared memory: the layout of a zone, and what the files of this
 * engine share.  A record is found by its token and expires by its own time.
 * Its response, if one is kept, is a chain of chunks.
 */


#ifndef _NGX_IDEMPOTENCY_SHM_H_INCLUDED_
#define _NGX_IDEMPOTENCY_SHM_H_INCLUDED_


#include "ngx_idempotency_store.h"
#include "ngx_idempotency_tier.h"
#include "ngx_idempotency_workers.h"


/* what is copied, expired by a timer, or freed to make room, at most while the
   lock is held once */

#define NGX_IDEMPOTENCY_SHM_PIECE    65536
#define NGX_IDEMPOTENCY_SHM_EXPIRE   128
#define NGX_IDEMPOTENCY_SHM_FREE     128

/* a released request's response stays this long for those who waited for it */

#define NGX_IDEMPOTENCY_SHM_LEFTOVER     10000


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
                                      an answer that nobody waited for */
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
            /* by hand, whoever claimed it; or settled, whatever it was
               before */
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
    /* the backing is never told of it */
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

/* what a token costs, as the documents tell it: it does not compile above */

typedef char  ngx_idempotency_record_fits_its_slot_t[
    (sizeof(ngx_idempotency_record_t) <= 256) ? 1 : -1];


typedef struct {
    /* who is changing it now: not zero on entry means that it is torn */
    ngx_pid_t                       inside;
    /* the highest generation of a worker; the one that is to make it anew */
    ngx_uint_t                      generation;
    ngx_uint_t                      poisoned;

    /* of the last claim; it is never below its sequence */
    uint64_t                        fence;
    uint64_t                        sequence;

    /* roots of red-black trees, each of few tokens: a descent through one
       large tree would miss the processor's cache at every step */
    ngx_rbtree_node_t             **buckets;
    ngx_uint_t                      mask;
    ngx_rbtree_node_t               sentinel;

    /* the root of another one */
    ngx_rbtree_node_t              *quotas;

    /* the first one; the next are those of leftovers, for requests that wait */
    ngx_idempotency_window_t        window;
    ngx_idempotency_window_t        leftovers;
    /* copies of what the backing has, which end when they do there */
    ngx_idempotency_window_t        copies;

    ngx_queue_t                     pending;
    /* remote claims; the one that was not wanted for the longest time first */
    ngx_queue_t                     remote;
    /* the oldest response first */
    ngx_queue_t                     kept;

    /* when a timer last freed what is over */
    ngx_msec_t                      freed;

    ngx_idempotency_tier_sh_t       tier;

    /* others than who has the lock write here: not into what is above */
    u_char                          apart[64];
    ngx_idempotency_stats_t         stats;
} ngx_idempotency_shm_sh_t;


/* the data of a store, and of its zone */

struct ngx_idempotency_shm_s {
    ngx_idempotency_store_t        *store;
    /* what stands behind, or NULL */
    ngx_idempotency_tier_t         *tier;

    ngx_idempotency_shm_sh_t       *sh;
    ngx_slab_pool_t                *shpool;

    /* configurations that had this zone since the start */
    ngx_uint_t                      generation;
    /* responses may go early, for want of memory */
    ngx_uint_t                      evict;
    /* no directive names it: it stays for those who had it */
    ngx_uint_t                      unnamed;
};


extern const ngx_idempotency_engine_t  ngx_idempotency_shm_engine;


/* a zone's life */

ngx_int_t ngx_idempotency_shm_init(ngx_shm_zone_t *shm_zone, void *data);
ngx_int_t ngx_idempotency_shm_keep(ngx_conf_t *cf);
ngx_int_t ngx_idempotency_shm_init_process(ngx_cycle_t *cycle);
void ngx_idempotency_shm_exit_process(ngx_cycle_t *cycle);

/* frees some expired records; returns after how long to call it again */

ngx_msec_t ngx_idempotency_shm_expire(ngx_idempotency_shm_t *shm,
    ngx_msec_t now);

/* NGX_ERROR, and nothing locked: the zone is torn */

ngx_int_t ngx_idempotency_shm_lock(ngx_idempotency_shm_t *shm);
void ngx_idempotency_shm_unlock(ngx_idempotency_shm_t *shm);

/* claims whose owner is gone: all that there are; and one that was met, with
   the lock held */

void ngx_idempotency_shm_sweep(ngx_idempotency_shm_t *shm, ngx_msec_t now);

/* NGX_AGAIN: what stands behind is asked for a token that this machine does
   not know for sure, and `found` is called; or the result says whether it may
   be here by now: OK, ABSENT, or UNAVAILABLE */

ngx_int_t ngx_idempotency_remote_find(ngx_idempotency_shm_t *shm,
    ngx_idempotency_op_t *op, void (*found)(ngx_idempotency_op_t *op));
ngx_int_t ngx_idempotency_remote_list(ngx_idempotency_shm_t *shm,
    ngx_idempotency_list_t *list);
void ngx_idempotency_remote_cancel(ngx_idempotency_op_t *op);

/* what is told of a zone, and who waits no more */

ngx_int_t ngx_idempotency_shm_figures(ngx_idempotency_store_t *store,
    ngx_msec_t now, ngx_idempotency_figures_t *figures);
void ngx_idempotency_shm_warn(ngx_idempotency_shm_t *shm, ngx_uint_t percent);


/* who waits for a record that is pending, with the lock held; and who is
   called once it is given back */

void ngx_idempotency_shm_wait(ngx_idempotency_record_t *rec,
    ngx_idempotency_claim_t *claim);
void ngx_idempotency_shm_wait_flushed(ngx_idempotency_record_t *rec,
    ngx_idempotency_op_t *op);
ngx_uint_t ngx_idempotency_record_unflushed(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);
void ngx_idempotency_shm_dequeue(ngx_idempotency_op_t *op);
void ngx_idempotency_record_take_waiting(ngx_idempotency_record_t *rec,
    ngx_idempotency_workers_t *wake);
void ngx_idempotency_shm_woken(uint64_t *key);

/* the records, all to be called with the lock held */

ngx_int_t ngx_idempotency_records_init(ngx_idempotency_shm_sh_t *sh,
    ngx_slab_pool_t *shpool);
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
void ngx_idempotency_record_revive(ngx_idempotency_shm_t *shm,
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

/* what is told of one, likewise */

ngx_uint_t ngx_idempotency_record_differs(ngx_idempotency_record_t *rec,
    ngx_idempotency_claim_t *claim);

/* a claim, and who has asked the backing for it, likewise; but cancel.
   answered: true if the record may be asked for once more */

ngx_int_t ngx_idempotency_ask_lookup(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t **rec,
    ngx_idempotency_workers_t *wake);
ngx_uint_t ngx_idempotency_ask_answered(ngx_idempotency_tier_t *tier,
    ngx_idempotency_record_t *rec, ngx_idempotency_item_t *item,
    ngx_idempotency_workers_t *wake);
void ngx_idempotency_ask_cancel(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim);

/* remote claims, likewise; but wait, without the lock: `due` is when the
   backing is asked next */

uint32_t ngx_idempotency_remote_next(ngx_idempotency_record_t *rec);
ngx_uint_t ngx_idempotency_remote_unwanted(ngx_idempotency_record_t *rec,
    ngx_msec_t now, ngx_msec_t time);
void ngx_idempotency_remote_wait(ngx_idempotency_shm_t *shm,
    u_char *token, ngx_msec_t due);
void ngx_idempotency_remote_init_process(ngx_idempotency_tier_t *tier,
    ngx_cycle_t *cycle);

/* how many of them a value has, likewise */

ngx_idempotency_result_e ngx_idempotency_quota_check(
    ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim);

/* what is told by a digest, likewise; next: behind this one, NULL: the first */

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


#endif /* _NGX_IDEMPOTENCY_SHM_H_INCLUDED_ */
