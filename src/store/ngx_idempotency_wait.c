
/*
 * Claims that wait for a change: a record knows in which workers there are
 * some, and each worker its own, by token.  Claims that have to free more than
 * may be in one turn of the event loop: they are made again in the next.  And claims whose owner is gone: met
 * by another claim, or by a sweep over all that are pending.
 */


#include "ngx_idempotency_shm.h"


#define NGX_IDEMPOTENCY_SHM_BUCKETS  1024


/* this worker's claims that wait for a change, by token */

static ngx_queue_t  shm_waiting[NGX_IDEMPOTENCY_SHM_BUCKETS];


/* ... those that are to be made again: so many in each turn of the event loop,
   as one may have a large response to copy, or much to free */

#define NGX_IDEMPOTENCY_SHM_TURN  8

static ngx_queue_t  shm_ready = { &shm_ready, &shm_ready };
static ngx_event_t  shm_ready_event;


/* claims of the dead that are dealt with while the lock is held once */

#define NGX_IDEMPOTENCY_ORPHANS  64


/* a claim without an owner: who waits for it, and what the log is told, if
   it is in doubt by that: its fence, or 0 */

typedef struct {
    u_char                     token[NGX_IDEMPOTENCY_DIGEST_LEN];
    uint64_t                   fence;
    ngx_idempotency_workers_t  wake;
} orphan_t;


static void shm_enqueue(ngx_idempotency_op_t *op);
static void shm_ready_handler(ngx_event_t *ev);
static void shm_post_ready(void);
static ngx_queue_t *shm_bucket(uint64_t key);
static void orphans_told(ngx_idempotency_shm_t *shm, orphan_t *orphan);



/* noted with the lock held, so that no change can pass by unseen */

void
ngx_idempotency_shm_wait(ngx_idempotency_record_t *rec,
    ngx_idempotency_claim_t *claim)
{
    ngx_idempotency_op_t       *op;
    ngx_idempotency_worker_t    self;
    ngx_idempotency_workers_t  *waiting;

    op = &claim->op;
    self = ngx_idempotency_worker_self();

    waiting = (rec->state == NGX_IDEMPOTENCY_ELSEWHERE)
              ? &rec->as.elsewhere.waiting : &rec->as.pending.waiting;

    if (self.slot != NGX_IDEMPOTENCY_NO_WORKER) {
        waiting->bits[self.slot / 64] |= (uint64_t) 1 << (self.slot % 64);
    }

    /* a claim that is made again waits for what it did before */

    if (claim->waited != rec->sequence) {
        claim->waited = rec->sequence;
        claim->answer = ngx_idempotency_elsewhere_next(rec);
    }

    shm_enqueue(op);
}


/* the same, for a request that holds back until an outcome is told */

void
ngx_idempotency_shm_wait_told(ngx_idempotency_record_t *rec,
    ngx_idempotency_op_t *op)
{
    ngx_uint_t                slot;
    ngx_idempotency_worker_t  self;

    self = ngx_idempotency_worker_self();
    slot = self.slot + 1;

    if (self.slot != NGX_IDEMPOTENCY_NO_WORKER && rec->holding != slot) {
        rec->holding = rec->holding ? NGX_IDEMPOTENCY_HOLD_ALL : slot;
    }

    shm_enqueue(op);
}


static void
shm_enqueue(ngx_idempotency_op_t *op)
{
    op->waiting = 1;

    ngx_queue_insert_tail(shm_bucket(ngx_idempotency_tree_key(op->token)),
                          &op->queue);
}


/* while it is pending */

ngx_uint_t
ngx_idempotency_shm_awaited(ngx_idempotency_record_t *rec)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_IDEMPOTENCY_WORKERS / 64; i++) {
        if (rec->as.pending.waiting.bits[i]) {
            return 1;
        }
    }

    return 0;
}


/* before it is anything but pending, here or elsewhere */

void
ngx_idempotency_shm_take_waiting(ngx_idempotency_record_t *rec,
    ngx_idempotency_workers_t *wake)
{
    ngx_idempotency_workers_t  *waiting;

    if (ngx_idempotency_record_pends(rec)) {
        waiting = &rec->as.pending.waiting;

    } else if (rec->state == NGX_IDEMPOTENCY_ELSEWHERE) {
        waiting = &rec->as.elsewhere.waiting;

    } else {
        ngx_memzero(wake, sizeof(ngx_idempotency_workers_t));
        return;
    }

    *wake = *waiting;
    ngx_memzero(waiting, sizeof(ngx_idempotency_workers_t));
}


/*
 * Calls those that wait for the token, the first of them now.  They are taken
 * aside before: a handler may wait again, or cancel another.
 */

void
ngx_idempotency_shm_woken(uint64_t *key)
{
    ngx_uint_t             i;
    ngx_queue_t           *bucket, *q, *next;
    ngx_idempotency_op_t  *op;

    for (i = 0; i < NGX_IDEMPOTENCY_SHM_BUCKETS; i++) {

        bucket = shm_bucket(key ? *key : i);

        for (q = ngx_queue_head(bucket);
             q != ngx_queue_sentinel(bucket);
             q = next)
        {
            next = ngx_queue_next(q);
            op = ngx_queue_data(q, ngx_idempotency_op_t, queue);

            if (key == NULL || ngx_idempotency_tree_key(op->token) == *key) {
                ngx_queue_remove(q);
                ngx_queue_insert_tail(&shm_ready, q);
            }
        }

        if (key) {
            break;
        }
    }

    if (!shm_ready_event.posted) {
        shm_ready_handler(&shm_ready_event);
    }
}


static void
shm_ready_handler(ngx_event_t *ev)
{
    ngx_uint_t             n;
    ngx_queue_t           *q, turn;
    ngx_idempotency_op_t  *op;

    ngx_queue_init(&turn);

    for (n = 0; n < NGX_IDEMPOTENCY_SHM_TURN; n++) {

        if (ngx_queue_empty(&shm_ready)) {
            break;
        }

        q = ngx_queue_head(&shm_ready);

        ngx_queue_remove(q);
        ngx_queue_insert_tail(&turn, q);
    }

    shm_post_ready();

    while (!ngx_queue_empty(&turn)) {

        op = ngx_queue_data(ngx_queue_head(&turn), ngx_idempotency_op_t,
                            queue);

        ngx_idempotency_shm_dequeue(op);

        if (op->again) {
            op->again(op);
            continue;
        }

        op->result = NGX_IDEMPOTENCY_CHANGED;

        op->handler(op);
    }
}


/* a claim that is unfinished */

void
ngx_idempotency_shm_resume(ngx_idempotency_op_t *op)
{
    op->waiting = 1;

    ngx_queue_insert_tail(&shm_ready, &op->queue);

    shm_post_ready();
}


/* the rest is for the next turn */

static void
shm_post_ready(void)
{
    if (ngx_queue_empty(&shm_ready)) {
        return;
    }

    shm_ready_event.handler = shm_ready_handler;
    shm_ready_event.log = ngx_cycle->log;

    ngx_post_event(&shm_ready_event, &ngx_posted_next_events);
}


/* it waits for a change, or, with a backing, for what that has to say */

void
ngx_idempotency_shm_cancel(ngx_idempotency_store_t *store,
    ngx_idempotency_op_t *op)
{
    ngx_idempotency_claim_t  *claim;

    if (!op->waiting) {
        return;
    }

    ngx_idempotency_shm_dequeue(op);

    if (op->again) {
        ngx_idempotency_look_cancel(op);
        return;
    }

    claim = (ngx_idempotency_claim_t *) op;

    if (claim->asker) {
        ngx_idempotency_ask_cancel(store->data, claim);
    }
}


/* it asks once more */

void
ngx_idempotency_shm_dequeue(ngx_idempotency_op_t *op)
{
    if (op->waiting) {
        op->waiting = 0;
        ngx_queue_remove(&op->queue);
    }
}


static ngx_queue_t *
shm_bucket(uint64_t key)
{
    ngx_queue_t  *bucket;

    bucket = &shm_waiting[key % NGX_IDEMPOTENCY_SHM_BUCKETS];

    if (bucket->next == NULL) {
        ngx_queue_init(bucket);
    }

    return bucket;
}


/* the claims of workers that died, or can't be asked any more */

void
ngx_idempotency_shm_sweep(ngx_idempotency_shm_t *shm, ngx_msec_t now)
{
    ngx_uint_t                  i, n;
    ngx_queue_t                *q, *next;
    orphan_t                   *orphan;
    orphan_t                    orphans[NGX_IDEMPOTENCY_ORPHANS];
    ngx_idempotency_record_t   *rec;

    do {
        if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
            return;
        }

        n = 0;

        for (q = ngx_queue_head(&shm->sh->pending);
             q != ngx_queue_sentinel(&shm->sh->pending)
             && n < NGX_IDEMPOTENCY_ORPHANS;
             q = next)
        {
            next = ngx_queue_next(q);
            rec = ngx_queue_data(q, ngx_idempotency_record_t, queue);

            if (rec->state != NGX_IDEMPOTENCY_ABANDONED
                && !ngx_idempotency_record_alive(rec, now))
            {
                orphan = &orphans[n++];

                ngx_memcpy(orphan->token, rec->token,
                           NGX_IDEMPOTENCY_DIGEST_LEN);
                orphan->fence = (rec->state == NGX_IDEMPOTENCY_PENDING)
                                ? rec->fence : 0;

                ngx_idempotency_shm_orphan(shm, rec, now, &orphan->wake);
            }
        }

        ngx_idempotency_shm_unlock(shm);

        for (i = 0; i < n; i++) {
            orphans_told(shm, &orphans[i]);
        }

    } while (n == NGX_IDEMPOTENCY_ORPHANS);

    ngx_idempotency_tier_kick(shm);
}


/* ... and whoever waits is to know */

static void
orphans_told(ngx_idempotency_shm_t *shm, orphan_t *orphan)
{
    if (orphan->fence) {
        ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                      "idempotency: the owner of a claim has gone, it is in "
                      "doubt, token: %*xs, zone: \"%V\", fence: %uL",
                      (size_t) NGX_IDEMPOTENCY_DIGEST_LEN, orphan->token,
                      &shm->store->name, orphan->fence);
    }

    ngx_idempotency_workers_wake(&orphan->wake,
                                 ngx_idempotency_tree_key(orphan->token));
}


/* it may have executed, and nobody is left who knows; nothing was sent before
   it was told that it may */

void
ngx_idempotency_shm_orphan(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_msec_t now,
    ngx_idempotency_workers_t *wake)
{
    ngx_idempotency_shm_take_waiting(rec, wake);

    if (rec->state != NGX_IDEMPOTENCY_PENDING) {
        ngx_idempotency_record_change(shm, rec, NGX_IDEMPOTENCY_ON_ORPHAN,
                                      now);
        return;
    }

    ngx_idempotency_chunks_free(shm, rec);

    ngx_idempotency_record_publish(shm, rec, NGX_IDEMPOTENCY_IN_DOUBT, 0, now);
}
