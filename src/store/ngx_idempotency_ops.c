
/*
 * The store's protocol over shared memory.  Each operation is one critical
 * section; only a response too large for one is copied piece by piece, and
 * the record is looked up anew before each piece.  Workers with requests that
 * wait are noted under the lock, and woken without it.
 *
 * Claims that wait for a change: a record knows in which workers there are
 * some, and each worker has its own, by token.  In each turn of the event loop
 * some of those that are woken claim again.  A claim whose owner has died is
 * noticed by another claim, or by a sweep.
 *
 * A list has some records at a time: bucket by bucket, and in each in the order
 * of its tree.  The cursor is a place in that order and no record, so whatever
 * comes or goes meanwhile moves none of the others across it.
 */


#include "ngx_idempotency_shm.h"


/* a response that goes in piece by piece, and how far it is */

typedef struct {
    ngx_chain_t               *pieces;
    size_t                     size;

    ngx_chain_t               *in;
    u_char                    *pos;
    ngx_idempotency_cursor_t   cur;
} shm_source_t;


/* the start of a response, copied in the critical section that found it */

static u_char  shm_scratch[4096];


/* what a list looks at, at most, while the lock is held once */

#define NGX_IDEMPOTENCY_LIST_RECORDS  64
#define NGX_IDEMPOTENCY_LIST_BUCKETS  4096


/* this worker's claims that wait for a change, by token */

#define NGX_IDEMPOTENCY_SHM_BUCKETS  1024

static ngx_queue_t  shm_waiting[NGX_IDEMPOTENCY_SHM_BUCKETS];


/* ... those that are to be made again: so many in each turn of the event loop,
   as one may have a large response to copy, or much to free */

#define NGX_IDEMPOTENCY_SHM_TURN  8

static ngx_queue_t  shm_ready = { &shm_ready, &shm_ready };
static ngx_event_t  shm_ready_event;


/* claims of the dead that are dealt with while the lock is held once */

#define NGX_IDEMPOTENCY_ORPHANS  64


/* a claim whose owner has died: the workers with requests that wait for it;
   its fence, if it is in doubt now, for the log */

typedef struct {
    u_char                     token[NGX_IDEMPOTENCY_DIGEST_LEN];
    uint64_t                   fence;
    ngx_idempotency_workers_t  wake;
} orphan_t;


static ngx_int_t shm_claim(ngx_idempotency_store_t *store,
    ngx_idempotency_claim_t *claim);
static ngx_idempotency_record_t *shm_claim_locked(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_workers_t *wake);
static ngx_uint_t shm_of_other_version(ngx_idempotency_record_t *rec,
    ngx_idempotency_claim_t *claim);
static ngx_int_t shm_complete(ngx_idempotency_store_t *store,
    ngx_idempotency_complete_t *complete);
static void shm_flushed(ngx_idempotency_op_t *op);
static ngx_int_t shm_append(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_idempotency_op_t *op,
    shm_source_t *src);
static ngx_int_t shm_release(ngx_idempotency_store_t *store,
    ngx_idempotency_release_t *release);
static ngx_int_t shm_leave(ngx_idempotency_shm_t *shm,
    ngx_idempotency_release_t *release);
static ngx_int_t shm_find(ngx_idempotency_store_t *store,
    ngx_idempotency_find_t *find);
static ngx_int_t shm_find_here(ngx_idempotency_shm_t *shm,
    ngx_idempotency_find_t *find);
static void shm_find_known(ngx_idempotency_op_t *op);
static ngx_int_t shm_forget(ngx_idempotency_store_t *store,
    ngx_idempotency_forget_t *forget);
static void shm_forget_here(ngx_idempotency_shm_t *shm,
    ngx_idempotency_forget_t *forget);
static void shm_wait_gone(ngx_idempotency_shm_t *shm,
    ngx_idempotency_op_t *op, uint32_t sequence);
static void shm_gone_flushed(ngx_idempotency_op_t *op);
static void shm_forget_known(ngx_idempotency_op_t *op);
static ngx_int_t shm_renew(ngx_idempotency_store_t *store,
    ngx_idempotency_renew_t *renew);
static ngx_idempotency_record_t *shm_own(ngx_idempotency_shm_t *shm,
    ngx_idempotency_op_t *op, uint64_t fence);
static void shm_read_locked(ngx_idempotency_record_t *rec,
    ngx_idempotency_cursor_t *cur);
static ngx_int_t shm_read(ngx_idempotency_shm_t *shm, ngx_idempotency_op_t *op,
    uint32_t left, ngx_idempotency_found_t *found, ngx_pool_t *pool,
    ngx_idempotency_cursor_t *cur);
static ngx_uint_t list_some(ngx_idempotency_shm_t *shm,
    ngx_idempotency_list_t *list, ngx_uint_t bucket, u_char *behind);
static ngx_uint_t list_record(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_msec_t now,
    ngx_idempotency_listed_t *listed);
static ngx_msec_t found_lasts(ngx_idempotency_record_t *rec, ngx_msec_t now);
static ngx_uint_t found_anonymous(ngx_idempotency_record_t *rec);
static ngx_int_t shm_list(ngx_idempotency_store_t *store,
    ngx_idempotency_list_t *list);
static void record_describe(ngx_idempotency_record_t *rec, ngx_msec_t now,
    ngx_idempotency_found_t *found);
static ngx_uint_t shm_untouched(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);
static void shm_enqueue(ngx_idempotency_op_t *op);
static void shm_ready_handler(ngx_event_t *ev);
static void shm_post_ready(void);
static ngx_queue_t *shm_bucket(uint64_t key);
static void orphans_told(ngx_idempotency_shm_t *shm, orphan_t *orphan);
static ngx_uint_t shm_awaited(ngx_idempotency_record_t *rec);
static void shm_cancel(ngx_idempotency_store_t *store,
    ngx_idempotency_op_t *op);
static void shm_orphan(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_msec_t now,
    ngx_idempotency_workers_t *wake);
static void shm_resume(ngx_idempotency_op_t *op);


const ngx_idempotency_engine_t  ngx_idempotency_shm_engine = {
    shm_claim,
    shm_complete,
    shm_release,
    shm_find,
    shm_forget,
    shm_renew,
    shm_list,
    shm_cancel,
    ngx_idempotency_shm_figures,
    ngx_idempotency_shm_keep,
    ngx_idempotency_workers_init_module,
    ngx_idempotency_shm_init_process,
    ngx_idempotency_shm_exit_process
};


static ngx_int_t
shm_claim(ngx_idempotency_store_t *store, ngx_idempotency_claim_t *claim)
{
    ngx_int_t                   rc;
    ngx_uint_t                  full, remote;
    ngx_msec_t                  due;
    ngx_idempotency_op_t       *op;
    ngx_idempotency_shm_t      *shm;
    ngx_idempotency_cursor_t    cur;
    ngx_idempotency_record_t   *rec;
    ngx_idempotency_workers_t   wake;

    shm = store->data;
    op = &claim->op;

    /* it may still wait for the change that it is made again in place of */

    ngx_idempotency_shm_dequeue(op);

    do {
        if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
            op->result = NGX_IDEMPOTENCY_UNAVAILABLE;
            claim->leftover = 0;
            return NGX_OK;
        }

        ngx_memzero(&wake, sizeof(ngx_idempotency_workers_t));

        rec = shm_claim_locked(shm, claim, &wake);

        ngx_idempotency_die(op, NGX_IDEMPOTENCY_FAULT_DIE_LOCKED);

        cur.offset = 0;
        remote = 0;
        due = 0;

        if (op->result == NGX_IDEMPOTENCY_BOUND) {

            /* a size is set with the outcome, chunks may come before */

            if (rec->size) {
                claim->found.replays = ++rec->replays;
                shm_read_locked(rec, &cur);
            }

            if (claim->wait && ngx_idempotency_record_pends(rec)) {
                ngx_idempotency_shm_wait(rec, claim);
            }

            if (claim->wait && rec->state == NGX_IDEMPOTENCY_REMOTE) {
                ngx_idempotency_shm_wait(rec, claim);
                remote = 1;
                due = rec->as.remote.due;
            }
        }

        full = ngx_idempotency_stats_space(&shm->sh->stats,
                                           shm->shpool->pfree, op->now);

        ngx_idempotency_shm_unlock(shm);

        ngx_idempotency_workers_wake(&wake,
                                     ngx_idempotency_tree_key(op->token));
        ngx_idempotency_writeback_schedule(shm);

        if (remote) {
            ngx_idempotency_remote_wait(shm, op->token, due);
        }

        if (full) {
            ngx_idempotency_shm_warn(shm, full);
        }

        switch (op->result) {

        case NGX_IDEMPOTENCY_CHANGED:

            /* the backing is to answer */

            return NGX_AGAIN;

        case NGX_IDEMPOTENCY_UNFINISHED:

            /* more is to be freed than may be in one turn of the event loop */

            shm_resume(op);
            return NGX_AGAIN;

        case NGX_IDEMPOTENCY_CLAIMED:
            ngx_idempotency_worker_owns(1, op->now);
            break;

        default:
            break;
        }

        rc = shm_read(shm, op, claim->leftover ? claim->waited : 0,
                      &claim->found, claim->pool, &cur);

    } while (rc == NGX_DECLINED);

    return rc;
}


static ngx_idempotency_record_t *
shm_claim_locked(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim,
    ngx_idempotency_workers_t *wake)
{
    ngx_int_t                  rc;
    ngx_idempotency_op_t      *op;
    ngx_idempotency_record_t  *rec;

    op = &claim->op;

    op->result = NGX_IDEMPOTENCY_CHANGED;
    claim->leftover = 0;
    claim->taken = 0;

    if (claim->waited) {

        /* the claim that it waited for has left a response */

        rec = ngx_idempotency_record_leftover(shm, op, claim->waited);

        if (rec && rec->size) {
            claim->leftover = 1;
            op->result = NGX_IDEMPOTENCY_BOUND;
            record_describe(rec, op->now, &claim->found);

            return rec;
        }
    }

    rec = ngx_idempotency_record_current(shm, op->token, op->now);

    if (rec && shm_of_other_version(rec, claim)) {
        op->result = NGX_IDEMPOTENCY_VERSION;

        return NULL;
    }

    if (rec && rec->state == NGX_IDEMPOTENCY_PENDING
        && !ngx_idempotency_record_alive(rec, op->now))
    {
        /* what is behind hears of the doubt before anybody takes it over */

        shm_orphan(shm, rec, op->now, wake);
    }

    if (shm->tier && !claim->local) {

        rc = ngx_idempotency_ask_lookup(shm, claim, &rec, wake);

        if (rc != NGX_DECLINED) {
            return (rc == NGX_AGAIN) ? NULL : rec;
        }
    }

    claim->since = 0;

    if (rec == NULL) {
        op->result = ngx_idempotency_record_create(shm, claim);
        return NULL;
    }

    claim->differs = ngx_idempotency_record_differs(rec, claim);

    if (claim->differs) {
        op->result = NGX_IDEMPOTENCY_CONFLICT;

    } else if (rec->state == NGX_IDEMPOTENCY_IN_DOUBT && claim->retry) {

        op->result = ngx_idempotency_record_reclaim(shm, rec, claim);
        claim->taken = (op->result == NGX_IDEMPOTENCY_CLAIMED);

        return rec;

    } else {
        op->result = NGX_IDEMPOTENCY_BOUND;
    }

    record_describe(rec, op->now, &claim->found);

    return rec;
}


/* a record that only asks has the fingerprint of the request that asked */

static ngx_uint_t
shm_of_other_version(ngx_idempotency_record_t *rec,
    ngx_idempotency_claim_t *claim)
{
    return rec->parts.version != claim->parts.version
           && (!ngx_idempotency_record_unknown(rec)
               || rec->state == NGX_IDEMPOTENCY_GRANTED);
}


/*
 * The response goes in piece by piece, the outcome with the last one.  If
 * memory is short, the outcome is recorded without the response.
 */

static ngx_int_t
shm_complete(ngx_idempotency_store_t *store,
    ngx_idempotency_complete_t *complete)
{
    ngx_int_t                   rc;
    shm_source_t                src;
    ngx_idempotency_op_t       *op;
    ngx_idempotency_shm_t      *shm;
    ngx_idempotency_record_t   *rec;
    ngx_idempotency_workers_t   wake;

    shm = store->data;
    op = &complete->op;

    ngx_memzero(&src, sizeof(shm_source_t));
    src.pieces = complete->pieces;
    src.size = complete->size;

    ngx_memzero(&wake, sizeof(ngx_idempotency_workers_t));

    ngx_idempotency_worker_owns(-1, op->now);

    do {
        if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
            op->result = NGX_IDEMPOTENCY_UNAVAILABLE;
            return NGX_OK;
        }

        rec = shm_own(shm, op, complete->fence);

        if (rec == NULL) {
            ngx_idempotency_shm_unlock(shm);
            return NGX_OK;
        }

        rc = shm_append(shm, rec, op, &src);

        if (rc == NGX_ERROR) {

            if (complete->outcome == NGX_IDEMPOTENCY_DONE) {
                complete->outcome = NGX_IDEMPOTENCY_NOT_KEPT;
            }

            op->result = NGX_IDEMPOTENCY_TRIMMED;
        }

        if (rc != NGX_AGAIN) {
            ngx_idempotency_record_take_waiting(rec, &wake);
            ngx_idempotency_record_publish(shm, rec, complete->outcome,
                                           complete->status, op->now);
            complete->left = found_lasts(rec, op->now);

            if (shm->tier && shm->tier->strict
                && ngx_idempotency_record_unflushed(shm, rec))
            {
                op->store = store;
                op->resume = shm_flushed;
                ngx_idempotency_shm_wait_flushed(rec, op);
            }
        }

        ngx_idempotency_shm_unlock(shm);

    } while (rc == NGX_AGAIN);

    if (ngx_idempotency_fault(op, NGX_IDEMPOTENCY_FAULT_DROP_WAKE)) {
        return NGX_OK;
    }

    ngx_idempotency_workers_wake(&wake, ngx_idempotency_tree_key(op->token));
    ngx_idempotency_writeback_schedule(shm);

    return op->waiting ? NGX_AGAIN : NGX_OK;
}


/* the backing has taken something of this token: its outcome? */

static void
shm_flushed(ngx_idempotency_op_t *op)
{
    ngx_uint_t                   lacks;
    ngx_idempotency_shm_t       *shm;
    ngx_idempotency_record_t    *rec;
    ngx_idempotency_complete_t  *complete;

    shm = op->store->data;
    complete = (ngx_idempotency_complete_t *) op;

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        op->result = NGX_IDEMPOTENCY_UNAVAILABLE;
        op->handler(op);
        return;
    }

    rec = ngx_idempotency_record_current(shm, op->token, op->now);

    lacks = (rec && rec->fence == complete->fence
             && ngx_idempotency_record_unflushed(shm, rec));

    if (lacks) {
        ngx_idempotency_shm_wait_flushed(rec, op);
    }

    ngx_idempotency_shm_unlock(shm);

    if (!lacks) {
        op->handler(op);
    }
}


/*
 * The next piece of a response.  NGX_AGAIN: there is more; NGX_ERROR: there is
 * no memory, and the record is left without any of it.
 */

static ngx_int_t
shm_append(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec,
    ngx_idempotency_op_t *op, shm_source_t *src)
{
    if (src->size > NGX_MAX_UINT32_VALUE) {
        return NGX_ERROR;
    }

    if (rec->chunks == NULL) {

        /* the first piece; or it was in doubt meanwhile, and lost them */

        ngx_memzero(&src->cur, sizeof(ngx_idempotency_cursor_t));
        src->in = src->pieces;
        src->pos = src->in ? src->in->buf->pos : NULL;
    }

    if (ngx_idempotency_fault(op, NGX_IDEMPOTENCY_FAULT_NO_MEMORY)) {
        ngx_idempotency_chunks_free(shm, rec);
        return NGX_ERROR;
    }

    if (ngx_idempotency_chunks_append(shm, rec, &src->cur, &src->in, &src->pos,
                                      src->size, op->now)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (src->cur.offset < src->size) {
        return NGX_AGAIN;
    }

    rec->size = src->size;

    return NGX_OK;
}


static ngx_int_t
shm_release(ngx_idempotency_store_t *store,
    ngx_idempotency_release_t *release)
{
    uint32_t                    sequence;
    ngx_idempotency_op_t       *op;
    ngx_idempotency_shm_t      *shm;
    ngx_idempotency_record_t   *rec;
    ngx_idempotency_workers_t   wake;

    shm = store->data;
    op = &release->op;

    ngx_idempotency_worker_owns(-1, op->now);

    if (release->leave && release->size && !release->settled) {
        return shm_leave(shm, release);
    }

    ngx_memzero(&wake, sizeof(ngx_idempotency_workers_t));

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        op->result = NGX_IDEMPOTENCY_UNAVAILABLE;
        return NGX_OK;
    }

    rec = shm_own(shm, op, release->fence);

    if (rec) {
        ngx_idempotency_record_take_waiting(rec, &wake);

        shm->sh->stats.counters.released++;

        if (release->settled) {
            sequence = rec->sequence;
            ngx_idempotency_record_remove(shm, rec);
            shm_wait_gone(shm, op, sequence);

        } else {
            release->doubt = rec->taken;
            ngx_idempotency_record_release(shm, rec, op->now);
        }
    }

    ngx_idempotency_shm_unlock(shm);

    ngx_idempotency_workers_wake(&wake, ngx_idempotency_tree_key(op->token));
    ngx_idempotency_writeback_schedule(shm);

    return op->waiting ? NGX_AGAIN : NGX_OK;
}


/*
 * Released, with a response for the requests that wait, so that none of them
 * executes.  Without any, or if memory is short, it is released as any other
 * claim: then one of them executes.
 */

static ngx_int_t
shm_leave(ngx_idempotency_shm_t *shm, ngx_idempotency_release_t *release)
{
    ngx_int_t                   rc;
    shm_source_t                src;
    ngx_idempotency_op_t       *op;
    ngx_idempotency_record_t   *rec;
    ngx_idempotency_workers_t   wake;

    op = &release->op;

    ngx_memzero(&src, sizeof(shm_source_t));
    src.pieces = release->pieces;
    src.size = release->size;

    ngx_memzero(&wake, sizeof(ngx_idempotency_workers_t));

    do {
        if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
            op->result = NGX_IDEMPOTENCY_UNAVAILABLE;
            return NGX_OK;
        }

        rec = shm_own(shm, op, release->fence);

        if (rec == NULL) {
            ngx_idempotency_shm_unlock(shm);
            return NGX_OK;
        }

        rc = shm_awaited(rec)
             ? shm_append(shm, rec, op, &src) : NGX_ERROR;

        if (rc != NGX_AGAIN) {
            ngx_idempotency_record_take_waiting(rec, &wake);
            shm->sh->stats.counters.released++;

            release->doubt = rec->taken;

            if (rc == NGX_OK) {
                ngx_idempotency_record_leave(shm, rec, release->status,
                                             op->now);

            } else {
                ngx_idempotency_record_release(shm, rec, op->now);
            }
        }

        ngx_idempotency_shm_unlock(shm);

    } while (rc == NGX_AGAIN);

    ngx_idempotency_workers_wake(&wake, ngx_idempotency_tree_key(op->token));
    ngx_idempotency_writeback_schedule(shm);

    return NGX_OK;
}


/* the backing is asked for an unknown token, which is found here then */

static ngx_int_t
shm_find(ngx_idempotency_store_t *store, ngx_idempotency_find_t *find)
{
    ngx_idempotency_op_t   *op;
    ngx_idempotency_shm_t  *shm;

    shm = store->data;
    op = &find->op;

    if (ngx_idempotency_remote_find(shm, op, shm_find_known) == NGX_AGAIN) {
        return NGX_AGAIN;
    }

    return (op->result == NGX_IDEMPOTENCY_OK) ? shm_find_here(shm, find)
                                              : NGX_OK;
}


static void
shm_find_known(ngx_idempotency_op_t *op)
{
    if (op->result == NGX_IDEMPOTENCY_OK
        && shm_find_here(op->store->data, (ngx_idempotency_find_t *) op)
           != NGX_OK)
    {
        op->result = NGX_IDEMPOTENCY_UNAVAILABLE;
    }

    op->handler(op);
}


static ngx_int_t
shm_find_here(ngx_idempotency_shm_t *shm, ngx_idempotency_find_t *find)
{
    ngx_int_t                  rc;
    ngx_idempotency_op_t      *op;
    ngx_idempotency_cursor_t   cur;
    ngx_idempotency_record_t  *rec;

    op = &find->op;

    do {
        if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
            op->result = NGX_IDEMPOTENCY_UNAVAILABLE;
            return NGX_OK;
        }

        cur.offset = 0;

        rec = ngx_idempotency_record_current(shm, op->token, op->now);

        if (rec && ngx_idempotency_record_unknown(rec)) {
            rec = NULL;
        }

        if (rec) {
            record_describe(rec, op->now, &find->found);
            find->parts = rec->parts;
            ngx_memcpy(find->fingerprint, rec->fingerprint,
                       NGX_IDEMPOTENCY_DIGEST_LEN);

            if (find->pool && rec->size) {
                shm_read_locked(rec, &cur);
            }
        }

        ngx_idempotency_shm_unlock(shm);

        op->result = rec ? NGX_IDEMPOTENCY_BOUND : NGX_IDEMPOTENCY_ABSENT;

        rc = shm_read(shm, op, 0, &find->found, find->pool, &cur);

    } while (rc == NGX_DECLINED);

    return rc;
}


/* a fence is of a record that is here */

static ngx_int_t
shm_forget(ngx_idempotency_store_t *store, ngx_idempotency_forget_t *forget)
{
    ngx_idempotency_op_t   *op;
    ngx_idempotency_shm_t  *shm;

    shm = store->data;
    op = &forget->op;

    if (forget->fence == 0
        && ngx_idempotency_remote_find(shm, op, shm_forget_known) == NGX_AGAIN)
    {
        return NGX_AGAIN;
    }

    if (forget->fence || op->result == NGX_IDEMPOTENCY_OK) {
        shm_forget_here(shm, forget);
    }

    return op->waiting ? NGX_AGAIN : NGX_OK;
}


static void
shm_forget_known(ngx_idempotency_op_t *op)
{
    if (op->result == NGX_IDEMPOTENCY_OK) {
        shm_forget_here(op->store->data, (ngx_idempotency_forget_t *) op);
    }

    if (!op->waiting) {
        op->handler(op);
    }
}


static void
shm_forget_here(ngx_idempotency_shm_t *shm, ngx_idempotency_forget_t *forget)
{
    uint32_t                    sequence;
    ngx_idempotency_op_t       *op;
    ngx_idempotency_record_t   *rec;
    ngx_idempotency_workers_t   wake;

    op = &forget->op;

    ngx_memzero(&wake, sizeof(ngx_idempotency_workers_t));

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        op->result = NGX_IDEMPOTENCY_UNAVAILABLE;
        return;
    }

    rec = ngx_idempotency_record_current(shm, op->token, op->now);

    if (rec && forget->fence && forget->fence != rec->fence) {
        rec = NULL;
    }

    if (rec) {
        forget->was = ngx_idempotency_record_unknown(rec) ? 0 : rec->fence;

        sequence = rec->sequence;

        ngx_idempotency_record_take_waiting(rec, &wake);
        ngx_idempotency_record_change(shm, rec, NGX_IDEMPOTENCY_ON_FORGET,
                                      op->now);

        if (forget->fence == 0) {
            shm_wait_gone(shm, op, sequence);
        }
    }

    ngx_idempotency_shm_unlock(shm);

    op->result = rec ? NGX_IDEMPOTENCY_OK : NGX_IDEMPOTENCY_ABSENT;

    ngx_idempotency_workers_wake(&wake, ngx_idempotency_tree_key(op->token));
    ngx_idempotency_writeback_schedule(shm);
}


/*
 * Where many batches are on their way at once, the next question for the token
 * may overtake this release, and be answered by what was there before.  So a
 * request that forgets a token by hand, or settles it, is answered once the
 * release was flushed, or has failed.
 */

static void
shm_wait_gone(ngx_idempotency_shm_t *shm, ngx_idempotency_op_t *op,
    uint32_t sequence)
{
    ngx_idempotency_record_t  *rec;

    if (shm->tier == NULL || !ngx_idempotency_tier_shared(shm->tier)
        || ngx_idempotency_worker_self().slot == NGX_IDEMPOTENCY_NO_WORKER)
    {
        return;
    }

    rec = ngx_idempotency_writeback_gone(shm, op->token, sequence);

    if (rec) {
        op->store = shm->store;
        op->resume = shm_gone_flushed;
        op->gone = sequence;

        ngx_idempotency_shm_wait_flushed(rec, op);
    }
}


/* the backing has taken something of this token: that? */

static void
shm_gone_flushed(ngx_idempotency_op_t *op)
{
    ngx_idempotency_shm_t  *shm;

    shm = op->store->data;

    if (ngx_idempotency_shm_lock(shm) == NGX_OK) {
        shm_wait_gone(shm, op, op->gone);
        ngx_idempotency_shm_unlock(shm);
    }

    if (!op->waiting) {
        op->handler(op);
    }
}


static ngx_int_t
shm_renew(ngx_idempotency_store_t *store, ngx_idempotency_renew_t *renew)
{
    ngx_idempotency_op_t      *op;
    ngx_idempotency_shm_t     *shm;
    ngx_idempotency_record_t  *rec;

    shm = store->data;
    op = &renew->op;

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        op->result = NGX_IDEMPOTENCY_UNAVAILABLE;
        return NGX_OK;
    }

    rec = ngx_idempotency_record_current(shm, op->token, op->now);

    if (rec == NULL) {
        op->result = NGX_IDEMPOTENCY_ABSENT;

    } else {
        rec = shm_own(shm, op, renew->fence);

        if (rec) {
            ngx_idempotency_record_renew(rec, renew->lease, op->now);
        }
    }

    ngx_idempotency_shm_unlock(shm);

    return NGX_OK;
}


/*
 * The record under the caller's fence; no other may be changed.  An owner that
 * was taken for dead has its claim again, unless that was taken over, here or,
 * as the backing may know of the doubt, by another nginx.
 */

static ngx_idempotency_record_t *
shm_own(ngx_idempotency_shm_t *shm, ngx_idempotency_op_t *op,
    uint64_t fence)
{
    ngx_idempotency_record_t  *rec;

    rec = ngx_idempotency_record_current(shm, op->token, op->now);

    if (rec == NULL || rec->fence != fence) {
        op->result = NGX_IDEMPOTENCY_STALE;
        return NULL;
    }

    if (rec->state == NGX_IDEMPOTENCY_IN_DOUBT && rec->status == 0
        && shm_untouched(shm, rec))
    {
        ngx_idempotency_record_revive(shm, rec, op->now);
    }

    if (rec->state != NGX_IDEMPOTENCY_PENDING) {
        op->result = NGX_IDEMPOTENCY_STALE;
        return NULL;
    }

    op->result = NGX_IDEMPOTENCY_OK;

    return rec;
}


/*
 * No other nginx knows of the doubt: the backing does not know the claim, or
 * knows it as one of an instance that lives.  Where claims live by leases, the
 * lease may have ended.
 */

static ngx_uint_t
shm_untouched(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec)
{
    if (shm->tier == NULL || rec->local || !rec->sent) {
        return 1;
    }

    return !ngx_idempotency_tier_shared(shm->tier) && !rec->unsure
           && (rec->flush == NGX_IDEMPOTENCY_QUEUED
               || rec->flush == NGX_IDEMPOTENCY_ASIDE);
}


/* the start of the response; the cursor tells how much of it was copied */

static void
shm_read_locked(ngx_idempotency_record_t *rec, ngx_idempotency_cursor_t *cur)
{
    cur->chunk = rec->chunks;

    ngx_idempotency_chunks_read(cur, shm_scratch,
                                ngx_min(rec->size, sizeof(shm_scratch)));
}


/*
 * Copies the response into the caller's pool; `left` is the sequence of the
 * claim that left it to requests that waited, or 0.  NGX_DECLINED: the record
 * ended while it was read, so the operation begins again.
 */

static ngx_int_t
shm_read(ngx_idempotency_shm_t *shm, ngx_idempotency_op_t *op, uint32_t left,
    ngx_idempotency_found_t *found, ngx_pool_t *pool,
    ngx_idempotency_cursor_t *cur)
{
    size_t                     n;
    ngx_str_t                 *response;
    ngx_uint_t                 gone;
    ngx_idempotency_record_t  *rec;

    if (cur->offset == 0) {
        return NGX_OK;
    }

    response = &found->response;

    response->data = ngx_pnalloc(pool, response->len);
    if (response->data == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(response->data, shm_scratch, cur->offset);

    while (cur->offset < response->len) {

        n = ngx_min(response->len - cur->offset, NGX_IDEMPOTENCY_SHM_PIECE);

        if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
            return NGX_DECLINED;
        }

        rec = left ? ngx_idempotency_record_leftover(shm, op, left)
                   : ngx_idempotency_record_current(shm, op->token, op->now);

        gone = (rec == NULL || rec->fence != found->fence || rec->size == 0);

        if (!gone) {
            ngx_idempotency_chunks_read(cur, response->data + cur->offset, n);
        }

        ngx_idempotency_shm_unlock(shm);

        if (gone) {
            return NGX_DECLINED;
        }
    }

    return NGX_OK;
}


/*
 * The cursor is the bucket to go on in, and one more; the token is the last one
 * that was looked at, in that bucket or in one before.
 */

static ngx_int_t
shm_list(ngx_idempotency_store_t *store,
    ngx_idempotency_list_t *list)
{
    u_char                 *token;
    uint64_t                key;
    ngx_uint_t              bucket;
    ngx_idempotency_shm_t  *shm;

    shm = store->data;
    token = list->op.token;

    if (list->behind) {
        return ngx_idempotency_remote_list(shm, list);
    }

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        list->n = 0;
        list->op.result = NGX_IDEMPOTENCY_UNAVAILABLE;
        return NGX_OK;
    }

    if (list->cursor == 0) {
        list->cursor = 1;
        ngx_memzero(token, NGX_IDEMPOTENCY_DIGEST_LEN);
    }

    bucket = list->cursor - 1;
    key = ngx_idempotency_tree_key(token);

    bucket = list_some(shm, list, bucket,
                       (key & shm->sh->mask) == bucket ? token : NULL);

    list->cursor = (bucket > shm->sh->mask) ? 0 : bucket + 1;

    ngx_idempotency_shm_unlock(shm);

    list->op.result = NGX_IDEMPOTENCY_OK;

    return NGX_OK;
}


/* the bucket to go on in */

static ngx_uint_t
list_some(ngx_idempotency_shm_t *shm, ngx_idempotency_list_t *list,
    ngx_uint_t bucket, u_char *behind)
{
    ngx_uint_t                 n, last, looked;
    ngx_idempotency_record_t  *rec;

    n = 0;
    looked = 0;
    last = bucket + NGX_IDEMPOTENCY_LIST_BUCKETS;

    while (bucket <= shm->sh->mask && bucket < last
           && n < list->n && looked < NGX_IDEMPOTENCY_LIST_RECORDS)
    {
        rec = (ngx_idempotency_record_t *)
                  ngx_idempotency_tree_next(shm, shm->sh->buckets[bucket],
                                            behind);
        if (rec == NULL) {
            bucket++;
            behind = NULL;
            continue;
        }

        looked++;
        n += list_record(shm, rec, list->op.now, &list->listed[n]);

        behind = list->op.token;
        ngx_memcpy(behind, rec->token, NGX_IDEMPOTENCY_DIGEST_LEN);
    }

    list->n = n;

    return bucket;
}


/* A list has no record whose window is over, none that only waits for the
   backing's answer, and no response that is left for requests which waited:
   that is under another token. */

static ngx_uint_t
list_record(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec,
    ngx_msec_t now, ngx_idempotency_listed_t *listed)
{
    if (ngx_idempotency_record_asks(rec)
        || (rec->state != NGX_IDEMPOTENCY_PENDING
            && (rec->window == &shm->sh->leftovers
                || ngx_idempotency_record_expired(rec, now))))
    {
        return 0;
    }

    ngx_memcpy(listed->token, rec->token, NGX_IDEMPOTENCY_DIGEST_LEN);
    ngx_memcpy(listed->fingerprint, rec->fingerprint,
               NGX_IDEMPOTENCY_DIGEST_LEN);
    record_describe(rec, now, &listed->found);

    return 1;
}


/*
 * What differs between the request and the one that the token is bound to, or
 * 0.  A record without an identity is anybody's: a client could as well have
 * left its own out.  Other settings alone are no difference.
 */

ngx_uint_t
ngx_idempotency_record_differs(ngx_idempotency_record_t *rec,
    ngx_idempotency_claim_t *claim)
{
    ngx_uint_t                differs;
    ngx_idempotency_parts_t  *was, *is;

    differs = 0;

    was = &rec->parts;
    is = &claim->parts;

    if (ngx_memcmp(rec->fingerprint, claim->fingerprint,
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

    if (!found_anonymous(rec)
        && ngx_memcmp(was->identity, is->identity,
                      NGX_IDEMPOTENCY_IDENTITY_LEN)
           != 0)
    {
        differs |= NGX_IDEMPOTENCY_DIFFERS_IDENTITY;
    }

    if (differs
        && ngx_memcmp(was->settings, is->settings,
                      NGX_IDEMPOTENCY_SETTINGS_LEN)
           != 0)
    {
        differs |= NGX_IDEMPOTENCY_DIFFERS_SETTINGS;
    }

    return differs;
}


static ngx_uint_t
found_anonymous(ngx_idempotency_record_t *rec)
{
    static u_char  nobody[NGX_IDEMPOTENCY_IDENTITY_LEN];

    return ngx_memcmp(rec->parts.identity, nobody,
                      NGX_IDEMPOTENCY_IDENTITY_LEN)
           == 0;
}


/* the clocks of two workers may differ by a moment */

static void
record_describe(ngx_idempotency_record_t *rec, ngx_msec_t now,
    ngx_idempotency_found_t *found)
{
    ngx_msec_int_t  age;

    age = (ngx_msec_int_t) (now - rec->recorded);

    switch (rec->state) {

    case NGX_IDEMPOTENCY_REMOTE:
    case NGX_IDEMPOTENCY_GRANTED:
        found->outcome = NGX_IDEMPOTENCY_PENDING;
        break;

    case NGX_IDEMPOTENCY_DOUBTED:
        found->outcome = NGX_IDEMPOTENCY_IN_DOUBT;
        break;

    default:
        found->outcome = rec->state;
    }

    found->status = rec->status;
    found->fence = rec->fence;
    found->age = ngx_max(age, 0);
    found->left = found_lasts(rec, now);
    found->replays = rec->replays;
    found->anonymous = found_anonymous(rec);
    found->owner = (rec->state == NGX_IDEMPOTENCY_PENDING)
                       ? rec->as.pending.owner.pid : 0;
    found->instance = 0;
    found->response.len = rec->size;
    found->response.data = NULL;
}


/* for how long yet, unless it is pending */

static ngx_msec_t
found_lasts(ngx_idempotency_record_t *rec, ngx_msec_t now)
{
    ngx_msec_int_t  left;

    if (ngx_idempotency_record_pends(rec)
        || rec->state == NGX_IDEMPOTENCY_REMOTE)
    {
        return 0;
    }

    left = (ngx_msec_int_t) (rec->ends - now);

    return ngx_max(left, 0);
}


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

    waiting = (rec->state == NGX_IDEMPOTENCY_REMOTE)
              ? &rec->as.remote.waiting : &rec->as.pending.waiting;

    if (self.slot != NGX_IDEMPOTENCY_NO_WORKER) {
        waiting->bits[self.slot / 64] |= (uint64_t) 1 << (self.slot % 64);
    }

    /* a claim that is made again waits for what it did before */

    if (claim->waited != rec->sequence) {
        claim->waited = rec->sequence;
        claim->answer = ngx_idempotency_remote_next(rec);
    }

    shm_enqueue(op);
}


/* the same, for a request that waits until the backing has an outcome */

void
ngx_idempotency_shm_wait_flushed(ngx_idempotency_record_t *rec,
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


/* a request waits for a record that is pending */

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

        if (op->resume) {
            op->resume(op);
            continue;
        }

        op->result = NGX_IDEMPOTENCY_CHANGED;

        op->handler(op);
    }
}


/* a claim that is unfinished */

static void
shm_resume(ngx_idempotency_op_t *op)
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


/* the operation waits for a change, or for the backing's answer */

static void
shm_cancel(ngx_idempotency_store_t *store,
    ngx_idempotency_op_t *op)
{
    ngx_idempotency_claim_t  *claim;

    if (!op->waiting) {
        return;
    }

    ngx_idempotency_shm_dequeue(op);

    if (op->resume) {
        ngx_idempotency_remote_cancel(op);
        return;
    }

    claim = (ngx_idempotency_claim_t *) op;

    if (claim->asker) {
        ngx_idempotency_ask_cancel(store->data, claim);
    }
}


/* the operation is made again, or its answer isn't wanted any more */

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

                shm_orphan(shm, rec, now, &orphan->wake);
            }
        }

        ngx_idempotency_shm_unlock(shm);

        for (i = 0; i < n; i++) {
            orphans_told(shm, &orphans[i]);
        }

    } while (n == NGX_IDEMPOTENCY_ORPHANS);

    ngx_idempotency_writeback_schedule(shm);
}


/* without the lock: logs it, and wakes requests that wait */

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


/* An owner that died may have executed: in doubt.  One that only asked has sent
   nothing. */

static void
shm_orphan(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_msec_t now,
    ngx_idempotency_workers_t *wake)
{
    ngx_idempotency_record_take_waiting(rec, wake);

    if (rec->state != NGX_IDEMPOTENCY_PENDING) {
        ngx_idempotency_record_change(shm, rec, NGX_IDEMPOTENCY_ON_ORPHAN,
                                      now);
        return;
    }

    ngx_idempotency_chunks_free(shm, rec);

    ngx_idempotency_record_publish(shm, rec, NGX_IDEMPOTENCY_IN_DOUBT, 0, now);
}
