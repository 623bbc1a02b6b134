
/*
 * The store's protocol over shared memory.  Each operation is one critical
 * section; only a response too large for one is copied piece by piece, and
 * the record is looked up anew before each piece.  Whom a change concerns is
 * noted under the lock and woken without it.
 */


#include "ngx_idempotency_shm.h"


#define NGX_IDEMPOTENCY_SHM_BUCKETS  1024

/* claims of the dead that are dealt with while the lock is held once */

#define NGX_IDEMPOTENCY_SHM_SWEEP    64


/* where a response stands that goes in piece by piece, and how far it is */

typedef struct {
    ngx_chain_t               *in;
    u_char                    *pos;
    ngx_idempotency_cursor_t   cur;
} shm_source_t;


static ngx_int_t shm_claim(ngx_idempotency_store_t *store,
    ngx_idempotency_op_t *op);
static ngx_idempotency_record_t *shm_claim_locked(ngx_idempotency_shm_t *shm,
    ngx_idempotency_op_t *op, ngx_idempotency_workers_t *wake);
static ngx_int_t shm_complete(ngx_idempotency_store_t *store,
    ngx_idempotency_op_t *op);
static ngx_int_t shm_append(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_idempotency_op_t *op,
    shm_source_t *src);
static ngx_int_t shm_release(ngx_idempotency_store_t *store,
    ngx_idempotency_op_t *op);
static ngx_int_t shm_leave(ngx_idempotency_shm_t *shm,
    ngx_idempotency_op_t *op);
static ngx_uint_t shm_awaited(ngx_idempotency_record_t *rec);
static ngx_int_t shm_find(ngx_idempotency_store_t *store,
    ngx_idempotency_op_t *op);
static ngx_int_t shm_forget(ngx_idempotency_store_t *store,
    ngx_idempotency_op_t *op);
static void shm_cancel(ngx_idempotency_store_t *store,
    ngx_idempotency_op_t *op);

static ngx_idempotency_record_t *shm_own(ngx_idempotency_shm_t *shm,
    ngx_idempotency_op_t *op);
static ngx_uint_t shm_differs(ngx_idempotency_record_t *rec,
    ngx_idempotency_op_t *op);
static ngx_uint_t shm_anonymous(ngx_idempotency_record_t *rec);
static void shm_describe(ngx_idempotency_record_t *rec,
    ngx_idempotency_op_t *op);
static ngx_int_t shm_read(ngx_idempotency_shm_t *shm, ngx_idempotency_op_t *op,
    ngx_idempotency_cursor_t *cur);
static void shm_orphan(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_msec_t now,
    ngx_idempotency_workers_t *wake);
static void shm_take_waiting(ngx_idempotency_record_t *rec,
    ngx_idempotency_workers_t *wake);
static void shm_wait(ngx_idempotency_record_t *rec, ngx_idempotency_op_t *op);
static ngx_queue_t *shm_bucket(uint64_t key);


const ngx_idempotency_engine_t  ngx_idempotency_shm_engine = {
    shm_claim,
    shm_complete,
    shm_release,
    shm_find,
    shm_forget,
    shm_cancel
};


/* the start of a response, copied in the critical section that found it */

static u_char       shm_scratch[4096];

/* this worker's claims that wait for a change, by token */

static ngx_queue_t  shm_waiting[NGX_IDEMPOTENCY_SHM_BUCKETS];


static ngx_int_t
shm_claim(ngx_idempotency_store_t *store, ngx_idempotency_op_t *op)
{
    ngx_int_t                   rc;
    ngx_idempotency_shm_t      *shm;
    ngx_idempotency_cursor_t    cur;
    ngx_idempotency_record_t   *rec;
    ngx_idempotency_workers_t   wake;

    shm = (ngx_idempotency_shm_t *) store;

    do {
        if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
            op->result = NGX_IDEMPOTENCY_UNAVAILABLE;
            return NGX_OK;
        }

        ngx_idempotency_record_expire(shm, op->now,
                                      NGX_IDEMPOTENCY_SHM_EXPIRE);

        ngx_memzero(&wake, sizeof(ngx_idempotency_workers_t));

        rec = shm_claim_locked(shm, op, &wake);

        ngx_idempotency_die(op, NGX_IDEMPOTENCY_FAULT_DIE_LOCKED);

        cur.offset = 0;

        if (op->result == NGX_IDEMPOTENCY_BOUND) {

            /* a size is set with the outcome, chunks may come before */

            if (rec->size) {
                op->replays = ++rec->replays;
                cur.chunk = rec->chunks;

                ngx_idempotency_chunks_read(&cur, shm_scratch,
                                            ngx_min(rec->size,
                                                    sizeof(shm_scratch)));
            }

            if (op->wait && rec->outcome == NGX_IDEMPOTENCY_PENDING) {
                shm_wait(rec, op);
            }
        }

        ngx_idempotency_shm_unlock(shm);

        ngx_idempotency_workers_wake(&wake,
                                     ngx_idempotency_tree_key(op->token));

        if (op->result == NGX_IDEMPOTENCY_CLAIMED) {
            ngx_idempotency_worker_owns(1, op->now);
        }

        /* more had to be freed than may be while the lock is held once */

        rc = (op->result == NGX_IDEMPOTENCY_UNFINISHED)
                 ? NGX_DECLINED : shm_read(shm, op, &cur);

    } while (rc == NGX_DECLINED);

    return rc;
}


static ngx_idempotency_record_t *
shm_claim_locked(ngx_idempotency_shm_t *shm, ngx_idempotency_op_t *op,
    ngx_idempotency_workers_t *wake)
{
    ngx_idempotency_record_t  *rec;

    op->left = 0;

    if (op->waited) {

        /* what it waited for has left a response to those who did */

        rec = ngx_idempotency_record_left(shm, op);

        if (rec && rec->size) {
            op->left = 1;
            op->result = NGX_IDEMPOTENCY_BOUND;
            shm_describe(rec, op);

            return rec;
        }
    }

    rec = ngx_idempotency_record_current(shm, op->token, op->now);

    if (rec == NULL) {
        op->result = ngx_idempotency_record_create(shm, op);
        return NULL;
    }

    if (rec->outcome == NGX_IDEMPOTENCY_PENDING
        && !ngx_idempotency_record_alive(rec, op->now))
    {
        shm_orphan(shm, rec, op->now, wake);
    }

    op->differs = shm_differs(rec, op);

    if (op->differs) {
        op->result = NGX_IDEMPOTENCY_CONFLICT;

    } else if (rec->outcome == NGX_IDEMPOTENCY_IN_DOUBT && op->retry) {

        op->result = ngx_idempotency_record_reclaim(shm, rec, op);
        return rec;

    } else {
        op->result = NGX_IDEMPOTENCY_BOUND;
    }

    shm_describe(rec, op);

    return rec;
}


/*
 * The response goes in piece by piece, the outcome with the last one.  If
 * memory is short, what was executed is still told: the outcome is recorded
 * without the response.
 */

static ngx_int_t
shm_complete(ngx_idempotency_store_t *store, ngx_idempotency_op_t *op)
{
    ngx_int_t                   rc;
    shm_source_t                src;
    ngx_idempotency_shm_t      *shm;
    ngx_idempotency_record_t   *rec;
    ngx_idempotency_workers_t   wake;

    shm = (ngx_idempotency_shm_t *) store;

    ngx_memzero(&src, sizeof(shm_source_t));
    ngx_memzero(&wake, sizeof(ngx_idempotency_workers_t));

    ngx_idempotency_worker_owns(-1, op->now);

    do {
        if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
            op->result = NGX_IDEMPOTENCY_UNAVAILABLE;
            return NGX_OK;
        }

        rec = shm_own(shm, op);

        if (rec == NULL) {
            ngx_idempotency_shm_unlock(shm);
            return NGX_OK;
        }

        rc = shm_append(shm, rec, op, &src);

        if (rc == NGX_ERROR) {

            if (op->outcome == NGX_IDEMPOTENCY_DONE) {
                op->outcome = NGX_IDEMPOTENCY_NOT_KEPT;
            }

            op->result = NGX_IDEMPOTENCY_TRIMMED;
        }

        if (rc != NGX_AGAIN) {
            shm_take_waiting(rec, &wake);
            ngx_idempotency_record_publish(shm, rec, op->outcome, op->status,
                                           op->now);
            op->ends = rec->ends;
        }

        ngx_idempotency_shm_unlock(shm);

    } while (rc == NGX_AGAIN);

    if (ngx_idempotency_fault(op, NGX_IDEMPOTENCY_FAULT_DROP_WAKE)) {
        return NGX_OK;
    }

    ngx_idempotency_workers_wake(&wake, ngx_idempotency_tree_key(op->token));

    return NGX_OK;
}


/*
 * The next piece of a response.  NGX_AGAIN: there is more; NGX_ERROR: there is
 * no memory, and the record is left without any of it.
 */

static ngx_int_t
shm_append(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec,
    ngx_idempotency_op_t *op, shm_source_t *src)
{
    if (rec->chunks == NULL) {

        /* the first piece; or it was in doubt meanwhile, and lost them */

        ngx_memzero(&src->cur, sizeof(ngx_idempotency_cursor_t));
        src->in = op->pieces;
        src->pos = src->in ? src->in->buf->pos : NULL;
    }

    while (ngx_idempotency_fault(op, NGX_IDEMPOTENCY_FAULT_NO_MEMORY)
           || ngx_idempotency_chunks_append(shm, rec, &src->cur, &src->in,
                                            &src->pos, op->size)
              != NGX_OK)
    {
        if (ngx_idempotency_record_free_some(shm, op->now)
            && !ngx_idempotency_fault(op, NGX_IDEMPOTENCY_FAULT_NO_MEMORY))
        {
            continue;
        }

        ngx_idempotency_chunks_free(shm, rec);

        return NGX_ERROR;
    }

    if (src->cur.offset < op->size) {
        return NGX_AGAIN;
    }

    rec->size = op->size;

    return NGX_OK;
}


static ngx_int_t
shm_release(ngx_idempotency_store_t *store, ngx_idempotency_op_t *op)
{
    ngx_idempotency_shm_t      *shm;
    ngx_idempotency_record_t   *rec;
    ngx_idempotency_workers_t   wake;

    shm = (ngx_idempotency_shm_t *) store;

    ngx_idempotency_worker_owns(-1, op->now);

    if (op->leave && op->size) {
        return shm_leave(shm, op);
    }

    ngx_memzero(&wake, sizeof(ngx_idempotency_workers_t));

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        op->result = NGX_IDEMPOTENCY_UNAVAILABLE;
        return NGX_OK;
    }

    rec = shm_own(shm, op);

    if (rec) {
        shm_take_waiting(rec, &wake);
        ngx_idempotency_record_remove(shm, rec);
    }

    ngx_idempotency_shm_unlock(shm);

    ngx_idempotency_workers_wake(&wake, ngx_idempotency_tree_key(op->token));

    return NGX_OK;
}


/*
 * Released, with a response for those who wait, so that none of them executes.
 * If nobody does, or memory is short, it is released as any other: then one of
 * them may.
 */

static ngx_int_t
shm_leave(ngx_idempotency_shm_t *shm, ngx_idempotency_op_t *op)
{
    ngx_int_t                   rc;
    shm_source_t                src;
    ngx_idempotency_record_t   *rec;
    ngx_idempotency_workers_t   wake;

    ngx_memzero(&src, sizeof(shm_source_t));
    ngx_memzero(&wake, sizeof(ngx_idempotency_workers_t));

    do {
        if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
            op->result = NGX_IDEMPOTENCY_UNAVAILABLE;
            return NGX_OK;
        }

        rec = shm_own(shm, op);

        if (rec == NULL) {
            ngx_idempotency_shm_unlock(shm);
            return NGX_OK;
        }

        rc = shm_awaited(rec) ? shm_append(shm, rec, op, &src) : NGX_ERROR;

        if (rc != NGX_AGAIN) {
            shm_take_waiting(rec, &wake);

            if (rc == NGX_OK) {
                ngx_idempotency_record_leave(shm, rec, op->status, op->now);

            } else {
                ngx_idempotency_record_remove(shm, rec);
            }
        }

        ngx_idempotency_shm_unlock(shm);

    } while (rc == NGX_AGAIN);

    ngx_idempotency_workers_wake(&wake, ngx_idempotency_tree_key(op->token));

    return NGX_OK;
}


/* while it is pending */

static ngx_uint_t
shm_awaited(ngx_idempotency_record_t *rec)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_IDEMPOTENCY_WORKERS / 64; i++) {
        if (rec->as.pending.waiting.bits[i]) {
            return 1;
        }
    }

    return 0;
}


static ngx_int_t
shm_find(ngx_idempotency_store_t *store, ngx_idempotency_op_t *op)
{
    ngx_idempotency_shm_t     *shm;
    ngx_idempotency_record_t  *rec;

    shm = (ngx_idempotency_shm_t *) store;

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        op->result = NGX_IDEMPOTENCY_UNAVAILABLE;
        return NGX_OK;
    }

    rec = ngx_idempotency_record_current(shm, op->token, op->now);

    if (rec) {
        shm_describe(rec, op);
        op->parts = rec->parts;
        ngx_memcpy(op->fingerprint, rec->fingerprint,
                   NGX_IDEMPOTENCY_DIGEST_LEN);
    }

    ngx_idempotency_shm_unlock(shm);

    op->result = rec ? NGX_IDEMPOTENCY_BOUND : NGX_IDEMPOTENCY_ABSENT;

    return NGX_OK;
}


static ngx_int_t
shm_forget(ngx_idempotency_store_t *store, ngx_idempotency_op_t *op)
{
    ngx_idempotency_shm_t      *shm;
    ngx_idempotency_record_t   *rec;
    ngx_idempotency_workers_t   wake;

    shm = (ngx_idempotency_shm_t *) store;

    ngx_memzero(&wake, sizeof(ngx_idempotency_workers_t));

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        op->result = NGX_IDEMPOTENCY_UNAVAILABLE;
        return NGX_OK;
    }

    rec = ngx_idempotency_record_current(shm, op->token, op->now);

    if (rec && op->fence && op->fence != rec->fence) {
        rec = NULL;
    }

    if (rec) {
        shm_take_waiting(rec, &wake);
        ngx_idempotency_record_remove(shm, rec);
    }

    ngx_idempotency_shm_unlock(shm);

    ngx_idempotency_workers_wake(&wake, ngx_idempotency_tree_key(op->token));

    op->result = rec ? NGX_IDEMPOTENCY_OK : NGX_IDEMPOTENCY_ABSENT;

    return NGX_OK;
}


/* every operation was answered at once: it can only wait for a change */

static void
shm_cancel(ngx_idempotency_store_t *store, ngx_idempotency_op_t *op)
{
    if (op->waiting) {
        op->waiting = 0;
        ngx_queue_remove(&op->queue);
    }
}


/*
 * The record under the caller's fence; no other may be changed.  An owner that
 * was taken for dead, and whose claim nobody took over, knows better.
 */

static ngx_idempotency_record_t *
shm_own(ngx_idempotency_shm_t *shm, ngx_idempotency_op_t *op)
{
    ngx_idempotency_record_t  *rec;

    rec = ngx_idempotency_record_current(shm, op->token, op->now);

    if (rec == NULL || rec->fence != op->fence) {
        op->result = NGX_IDEMPOTENCY_STALE;
        return NULL;
    }

    if (rec->outcome == NGX_IDEMPOTENCY_IN_DOUBT && rec->status == 0) {
        ngx_idempotency_record_revive(shm, rec, op);
    }

    if (rec->outcome != NGX_IDEMPOTENCY_PENDING) {
        op->result = NGX_IDEMPOTENCY_STALE;
        return NULL;
    }

    op->result = NGX_IDEMPOTENCY_OK;

    return rec;
}


/*
 * What keeps the request from being the one that the token is bound to, or 0.
 * Whoever asks for what was bound without an identity could have left his out
 * as well, so he is told.  Settings alone are no difference.
 */

static ngx_uint_t
shm_differs(ngx_idempotency_record_t *rec, ngx_idempotency_op_t *op)
{
    ngx_uint_t                differs;
    ngx_idempotency_parts_t  *was, *is;

    differs = 0;

    was = &rec->parts;
    is = &op->parts;

    if (ngx_memcmp(rec->fingerprint, op->fingerprint,
                   NGX_IDEMPOTENCY_DIGEST_LEN)
        != 0)
    {
        if (ngx_memcmp(was->action, is->action, NGX_IDEMPOTENCY_HINT_LEN)
            != 0)
        {
            differs |= NGX_IDEMPOTENCY_DIFFERS_ACTION;
        }

        /* two bodies may have one hint */

        if (differs == 0
            || ngx_memcmp(was->body, is->body, NGX_IDEMPOTENCY_HINT_LEN) != 0)
        {
            differs |= NGX_IDEMPOTENCY_DIFFERS_BODY;
        }
    }

    if (!shm_anonymous(rec)
        && ngx_memcmp(was->identity, is->identity,
                      NGX_IDEMPOTENCY_IDENTITY_LEN)
           != 0)
    {
        differs |= NGX_IDEMPOTENCY_DIFFERS_IDENTITY;
    }

    if (differs
        && ngx_memcmp(was->settings, is->settings, NGX_IDEMPOTENCY_HINT_LEN)
           != 0)
    {
        differs |= NGX_IDEMPOTENCY_DIFFERS_SETTINGS;
    }

    return differs;
}


static ngx_uint_t
shm_anonymous(ngx_idempotency_record_t *rec)
{
    static u_char  nobody[NGX_IDEMPOTENCY_IDENTITY_LEN];

    return ngx_memcmp(rec->parts.identity, nobody,
                      NGX_IDEMPOTENCY_IDENTITY_LEN)
           == 0;
}


static void
shm_describe(ngx_idempotency_record_t *rec, ngx_idempotency_op_t *op)
{
    op->anonymous = shm_anonymous(rec);
    op->outcome = rec->outcome;
    op->status = rec->status;
    op->fence = rec->fence;
    op->recorded = rec->recorded;
    op->replays = rec->replays;
    op->ends = rec->ends;
    op->response.len = rec->size;
    op->response.data = NULL;
}


/*
 * Copies what was found into the caller's pool.  NGX_DECLINED: the record
 * ended while it was read, so the question is to be asked again.
 */

static ngx_int_t
shm_read(ngx_idempotency_shm_t *shm, ngx_idempotency_op_t *op,
    ngx_idempotency_cursor_t *cur)
{
    size_t                     n;
    ngx_uint_t                 gone;
    ngx_idempotency_record_t  *rec;

    if (cur->offset == 0) {
        return NGX_OK;
    }

    op->response.data = ngx_pnalloc(op->pool, op->response.len);
    if (op->response.data == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(op->response.data, shm_scratch, cur->offset);

    while (cur->offset < op->response.len) {

        n = ngx_min(op->response.len - cur->offset, NGX_IDEMPOTENCY_SHM_PIECE);

        if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
            return NGX_DECLINED;
        }

        rec = op->left
              ? ngx_idempotency_record_left(shm, op)
              : ngx_idempotency_record_current(shm, op->token, op->now);

        gone = (rec == NULL || rec->fence != op->fence || rec->size == 0);

        if (!gone) {
            ngx_idempotency_chunks_read(cur, op->response.data + cur->offset,
                                        n);
        }

        ngx_idempotency_shm_unlock(shm);

        if (gone) {
            return NGX_DECLINED;
        }
    }

    return NGX_OK;
}


/* the claims of workers that died, or can't be asked any more */

void
ngx_idempotency_shm_sweep(ngx_idempotency_shm_t *shm, ngx_msec_t now)
{
    uint64_t                    keys[NGX_IDEMPOTENCY_SHM_SWEEP];
    ngx_uint_t                  i, n;
    ngx_queue_t                *q, *next;
    ngx_idempotency_record_t   *rec;
    ngx_idempotency_workers_t   wake[NGX_IDEMPOTENCY_SHM_SWEEP];

    do {
        if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
            return;
        }

        n = 0;

        for (q = ngx_queue_head(&shm->sh->pending);
             q != ngx_queue_sentinel(&shm->sh->pending)
             && n < NGX_IDEMPOTENCY_SHM_SWEEP;
             q = next)
        {
            next = ngx_queue_next(q);
            rec = ngx_queue_data(q, ngx_idempotency_record_t, queue);

            if (!ngx_idempotency_record_alive(rec, now)) {
                keys[n] = ngx_idempotency_tree_key(rec->token);
                shm_orphan(shm, rec, now, &wake[n++]);
            }
        }

        ngx_idempotency_shm_unlock(shm);

        for (i = 0; i < n; i++) {
            ngx_idempotency_workers_wake(&wake[i], keys[i]);
        }

    } while (n == NGX_IDEMPOTENCY_SHM_SWEEP);
}


/* it may have executed, and nobody is left who knows */

static void
shm_orphan(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec,
    ngx_msec_t now, ngx_idempotency_workers_t *wake)
{
    shm_take_waiting(rec, wake);

    ngx_idempotency_chunks_free(shm, rec);

    ngx_idempotency_record_publish(shm, rec, NGX_IDEMPOTENCY_IN_DOUBT, 0, now);
}


/* before it is anything but pending */

static void
shm_take_waiting(ngx_idempotency_record_t *rec,
    ngx_idempotency_workers_t *wake)
{
    if (rec->outcome == NGX_IDEMPOTENCY_PENDING) {
        *wake = rec->as.pending.waiting;

    } else {
        ngx_memzero(wake, sizeof(ngx_idempotency_workers_t));
    }
}


/* noted with the lock held, so that no change can pass by unseen */

static void
shm_wait(ngx_idempotency_record_t *rec, ngx_idempotency_op_t *op)
{
    ngx_idempotency_worker_t  self;

    self = ngx_idempotency_worker_self();

    if (self.slot != NGX_IDEMPOTENCY_NO_WORKER) {
        rec->as.pending.waiting.bits[self.slot / 64] |=
                                              (uint64_t) 1 << (self.slot % 64);
    }

    op->waiting = 1;
    op->waited = rec->fence;

    ngx_queue_insert_tail(shm_bucket(ngx_idempotency_tree_key(op->token)),
                          &op->queue);
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


/*
 * Calls those that wait for the token.  They are taken aside first: a handler
 * may wait again, or cancel another.
 */

void
ngx_idempotency_shm_woken(uint64_t *key)
{
    ngx_uint_t             i;
    ngx_queue_t           *bucket, *q, *next, ready;
    ngx_idempotency_op_t  *op;

    ngx_queue_init(&ready);

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
                ngx_queue_insert_tail(&ready, q);
            }
        }

        if (key) {
            break;
        }
    }

    while (!ngx_queue_empty(&ready)) {

        q = ngx_queue_head(&ready);
        op = ngx_queue_data(q, ngx_idempotency_op_t, queue);

        ngx_queue_remove(q);
        op->waiting = 0;
        op->result = NGX_IDEMPOTENCY_CHANGED;

        op->handler(op);
    }
}
