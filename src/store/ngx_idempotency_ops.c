
/*
 * The store's protocol over shared memory.  Each operation is one critical
 * section.  Only a response too large for that is copied piece by piece; the
 * record is looked up anew before each piece.  Workers to wake are noted under
 * the lock, and woken without it.
 *
 * Claims that wait for a change: a record notes the workers that have such
 * claims, and each worker keeps its own, by token.  In each turn of the event
 * loop some of the woken ones are made again.  If an owner has died, the next
 * claim of its token finds out, or a sweep.
 *
 * Find and forget ask the backing for tokens that the zone does not know for
 * sure.  The answer becomes a record in the zone, and the operation looks there
 * again.
 *
 * A list returns some records at a time: bucket by bucket, and in each bucket
 * in its tree's order.  The cursor is a position in that order, not a record,
 * so records that come or go meanwhile move none of the others across it.
 */


#include "ngx_idempotency_shm.h"


/* goes on with an operation that waited; NGX_AGAIN: it waits again */

typedef ngx_int_t (*shm_resume_pt)(ngx_idempotency_op_t *op);


/* the start of a response, copied in the critical section that found it */

static u_char  shm_scratch[4096];


/* while the lock is held once, a list looks at so many at most */

#define NGX_IDEMPOTENCY_LIST_RECORDS  64
#define NGX_IDEMPOTENCY_LIST_BUCKETS  4096


/* this worker's claims that wait for a change, by token */

#define NGX_IDEMPOTENCY_SHM_BUCKETS  1024

static ngx_queue_t  shm_waiting[NGX_IDEMPOTENCY_SHM_BUCKETS];


/* those of them that are to be made again, so many in each turn of the event
   loop: one may have a large response to copy, or much to free */

#define NGX_IDEMPOTENCY_SHM_TURN  8

static ngx_queue_t  shm_ready = { &shm_ready, &shm_ready };
static ngx_event_t  shm_ready_event;


/* an operation that goes on by itself looks again after so long, as a wake-up
   may be lost */

#define NGX_IDEMPOTENCY_LOOK_RETRY  500

static ngx_event_t       shm_look_event;
static ngx_connection_t  shm_look_dumb;


static ngx_int_t shm_claim(ngx_idempotency_store_t *store,
    ngx_idempotency_claim_t *claim);
static ngx_idempotency_record_t *shm_claim_locked(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim);
static ngx_int_t shm_complete(ngx_idempotency_store_t *store,
    ngx_idempotency_complete_t *complete);
static void shm_publish(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_idempotency_complete_t *complete,
    ngx_int_t rc);
static void shm_release(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_idempotency_complete_t *complete,
    ngx_int_t rc);
static ngx_int_t shm_find(ngx_idempotency_store_t *store,
    ngx_idempotency_find_t *find);
static ngx_int_t shm_find_resume(ngx_idempotency_op_t *op);
static ngx_int_t shm_forget(ngx_idempotency_store_t *store,
    ngx_idempotency_forget_t *forget);
static ngx_int_t shm_forget_resume(ngx_idempotency_op_t *op);
static ngx_idempotency_record_t *shm_look(ngx_idempotency_shm_t *shm,
    ngx_idempotency_op_t *op, shm_resume_pt resume);
static void shm_look_handler(ngx_event_t *ev);
static void shm_wait_flushed(ngx_idempotency_shm_t *shm,
    ngx_idempotency_op_t *op, uint32_t sequence);
static ngx_int_t shm_flushed(ngx_idempotency_op_t *op);
static void shm_start(ngx_idempotency_store_t *store,
    ngx_idempotency_op_t *op);
static ngx_int_t shm_begin(ngx_idempotency_shm_t *shm,
    ngx_idempotency_op_t *op);
static void shm_end(ngx_idempotency_shm_t *shm);
static ngx_idempotency_record_t *shm_own(ngx_idempotency_shm_t *shm,
    ngx_idempotency_op_t *op, uint64_t fence);
static void shm_read_locked(ngx_idempotency_record_t *rec,
    ngx_idempotency_cursor_t *cur);
static ngx_int_t shm_read(ngx_idempotency_shm_t *shm, ngx_idempotency_op_t *op,
    uint32_t left, ngx_idempotency_found_t *found, ngx_pool_t *pool,
    ngx_idempotency_cursor_t *cur);
static ngx_int_t shm_list(ngx_idempotency_store_t *store,
    ngx_idempotency_list_t *list);
static ngx_uint_t list_record(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_msec_t now,
    ngx_idempotency_listed_t *listed);
static ngx_int_t list_backing(ngx_idempotency_store_t *store,
    ngx_idempotency_list_t *list);
static ngx_int_t list_page(ngx_idempotency_op_t *op);
static void record_describe(ngx_idempotency_record_t *rec, ngx_msec_t now,
    ngx_idempotency_found_t *found);
static ngx_msec_t record_lasts(ngx_idempotency_record_t *rec, ngx_msec_t now);
static void shm_wait(ngx_idempotency_record_t *rec, ngx_idempotency_op_t *op,
    shm_resume_pt resume);
static void shm_ready_handler(ngx_event_t *ev);
static void shm_resume(ngx_idempotency_op_t *op);
static void shm_post_ready(void);
static ngx_queue_t *shm_bucket(uint64_t key);
static void shm_cancel(ngx_idempotency_store_t *store,
    ngx_idempotency_op_t *op);


const ngx_idempotency_engine_t  ngx_idempotency_shm_engine = {
    shm_claim,
    shm_complete,
    shm_find,
    shm_forget,
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
    ngx_int_t                  rc;
    ngx_msec_t                 due;
    ngx_idempotency_op_t      *op;
    ngx_idempotency_shm_t     *shm;
    ngx_idempotency_cursor_t   cur;
    ngx_idempotency_record_t  *rec;

    shm = store->data;
    op = &claim->op;

    /* a claim that is made again may still wait */

    ngx_idempotency_shm_dequeue(op);

    do {
        claim->leftover = 0;

        if (shm_begin(shm, op) != NGX_OK) {
            return NGX_OK;
        }

        rec = shm_claim_locked(shm, claim);

        ngx_idempotency_die(op, NGX_IDEMPOTENCY_FAULT_DIE_LOCKED);

        cur.offset = 0;
        due = 0;

        if (op->result == NGX_IDEMPOTENCY_BOUND) {

            /* chunks come before the outcome, the size comes with it */

            if (rec->size) {
                claim->found.replays = ++rec->replays;
                shm_read_locked(rec, &cur);
            }

            if (claim->wait && ngx_idempotency_record_waiting(rec)) {
                shm_wait(rec, op, NULL);

                if (rec->state == NGX_IDEMPOTENCY_REMOTE) {
                    due = rec->as.remote.due;
                }
            }
        }

        shm->full = ngx_idempotency_stats_space(&shm->sh->stats,
                                                shm->shpool->pfree, op->now);

        shm_end(shm);

        if (due) {
            ngx_idempotency_remote_wait(shm, op->token, due);
        }

        switch (op->result) {

        case NGX_IDEMPOTENCY_CHANGED:

            return NGX_AGAIN;

        case NGX_IDEMPOTENCY_UNFINISHED:

            /* more has to be freed than one turn of the event loop should */

            shm_resume(op);
            return NGX_AGAIN;

        case NGX_IDEMPOTENCY_CLAIMED:
            ngx_idempotency_worker_owns(1, op->now);
            break;

        default:
            break;
        }

        rc = shm_read(shm, op, claim->leftover ? op->waited : 0,
                      &claim->found, claim->pool, &cur);

    } while (rc == NGX_DECLINED);

    return rc;
}


static ngx_idempotency_record_t *
shm_claim_locked(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim)
{
    ngx_int_t                  rc;
    ngx_idempotency_op_t      *op;
    ngx_idempotency_record_t  *rec;

    op = &claim->op;

    op->resume = NULL;
    op->result = NGX_IDEMPOTENCY_CHANGED;
    claim->taken = 0;

    if (op->waited) {

        /* the claim that this one waited for has left a response; one that
           differs waited only to be told so */

        rec = ngx_idempotency_record_leftover(shm, op, op->waited);

        if (rec && rec->size && !ngx_idempotency_record_differs(rec, claim)) {
            claim->leftover = 1;
            op->result = NGX_IDEMPOTENCY_BOUND;
            record_describe(rec, op->now, &claim->found);

            return rec;
        }
    }

    rec = ngx_idempotency_record_current(shm, op->token, op->now);

    /* until the answer, the fingerprint is that of the request that asked */

    if (rec && rec->parts.version != claim->parts.version
        && (!ngx_idempotency_record_unknown(rec)
            || rec->state == NGX_IDEMPOTENCY_GRANTED))
    {
        op->result = NGX_IDEMPOTENCY_VERSION;
        return NULL;
    }

    if (rec && rec->state == NGX_IDEMPOTENCY_PENDING
        && !ngx_idempotency_record_alive(rec, op->now))
    {
        /* the backing learns of the doubt before any claim takes it over */

        ngx_idempotency_record_orphan(shm, rec, op->now);
    }

    if (shm->tier && !claim->local) {

        rc = ngx_idempotency_ask_lookup(shm, claim, &rec);

        if (rc == NGX_AGAIN) {
            shm_wait(rec, op, NULL);
        }

        if (rc != NGX_DECLINED) {
            return rec;
        }
    }

    op->since = 0;

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


/*
 * The response goes in piece by piece, the outcome with the last one.  If
 * memory is short, the outcome is recorded without the response.
 *
 * A response that is left with a release goes to the requests that wait, so
 * that none of them executes.  If none waits, or memory is short, no response
 * is left: then the next request that comes executes.
 */

static ngx_int_t
shm_complete(ngx_idempotency_store_t *store,
    ngx_idempotency_complete_t *complete)
{
    ngx_int_t                  rc;
    ngx_idempotency_source_t   src;
    ngx_idempotency_op_t      *op;
    ngx_idempotency_shm_t     *shm;
    ngx_idempotency_record_t  *rec;

    shm = store->data;
    op = &complete->op;

    ngx_memzero(&src, sizeof(ngx_idempotency_source_t));
    src.pieces = complete->pieces;
    src.size = complete->size;

    shm_start(store, op);
    ngx_idempotency_worker_owns(-1, op->now);

    do {
        if (shm_begin(shm, op) != NGX_OK) {
            return NGX_OK;
        }

        rc = NGX_DECLINED;
        rec = shm_own(shm, op, complete->fence);

        if (rec
            && (!complete->release
                || (complete->size && !complete->settled
                    && ngx_idempotency_record_awaited(rec))))
        {
            rc = ngx_idempotency_chunks_append(shm, rec, &src, op->now);

            if (ngx_idempotency_fault(op, NGX_IDEMPOTENCY_FAULT_NO_MEMORY)) {
                ngx_idempotency_chunks_free(shm, rec);
                rc = NGX_ERROR;
            }
        }

        if (rec && rc != NGX_AGAIN) {

            if (complete->release) {
                shm_release(shm, rec, complete, rc);

            } else {
                shm_publish(shm, rec, complete, rc);
            }
        }

        if (ngx_idempotency_fault(op, NGX_IDEMPOTENCY_FAULT_DROP_WAKE)) {
            shm->nwoken = 0;
        }

        shm_end(shm);

    } while (rc == NGX_AGAIN);

    return op->waiting ? NGX_AGAIN : NGX_OK;
}


static void
shm_publish(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec,
    ngx_idempotency_complete_t *complete, ngx_int_t rc)
{
    ngx_idempotency_op_t  *op;

    op = &complete->op;

    if (rc == NGX_ERROR) {

        if (complete->outcome == NGX_IDEMPOTENCY_DONE) {
            complete->outcome = NGX_IDEMPOTENCY_NOT_KEPT;
        }

        op->result = NGX_IDEMPOTENCY_TRIMMED;
    }

    ngx_idempotency_record_publish(shm, rec, complete->outcome,
                                   complete->status, op->now);
    complete->left = record_lasts(rec, op->now);

    if (shm->tier && shm->tier->strict) {
        shm_wait_flushed(shm, op, rec->sequence);
    }
}


static void
shm_release(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec,
    ngx_idempotency_complete_t *complete, ngx_int_t rc)
{
    uint32_t               sequence;
    ngx_idempotency_op_t  *op;

    op = &complete->op;

    shm->sh->stats.counters.released++;

    complete->doubt = (rec->taken && !complete->settled);

    if (rc == NGX_OK) {
        ngx_idempotency_record_leave(shm, rec, complete->status, op->now);

    } else if (complete->settled) {
        sequence = rec->sequence;
        ngx_idempotency_record_remove(shm, rec);
        shm_wait_flushed(shm, op, sequence);

    } else {
        ngx_idempotency_record_release(shm, rec, op->now);
    }
}


static ngx_int_t
shm_find(ngx_idempotency_store_t *store, ngx_idempotency_find_t *find)
{
    shm_start(store, &find->op);

    return shm_find_resume(&find->op);
}


static ngx_int_t
shm_find_resume(ngx_idempotency_op_t *op)
{
    ngx_int_t                  rc;
    ngx_idempotency_shm_t     *shm;
    ngx_idempotency_find_t    *find;
    ngx_idempotency_cursor_t   cur;
    ngx_idempotency_record_t  *rec;

    shm = op->store->data;
    find = (ngx_idempotency_find_t *) op;

    do {
        if (shm_begin(shm, op) != NGX_OK) {
            return NGX_OK;
        }

        cur.offset = 0;

        rec = shm_look(shm, op, shm_find_resume);

        if (rec) {
            op->result = NGX_IDEMPOTENCY_BOUND;

            record_describe(rec, op->now, &find->found);
            find->parts = rec->parts;
            ngx_memcpy(find->fingerprint, rec->fingerprint,
                       NGX_IDEMPOTENCY_DIGEST_LEN);

            if (ngx_idempotency_record_unknown(rec)) {
                op->result = NGX_IDEMPOTENCY_ABSENT;

            } else if (find->pool && rec->size) {
                shm_read_locked(rec, &cur);
            }
        }

        shm_end(shm);

        if (op->waiting) {
            return NGX_AGAIN;
        }

        rc = shm_read(shm, op, 0, &find->found, find->pool, &cur);

    } while (rc == NGX_DECLINED);

    return rc;
}


static ngx_int_t
shm_forget(ngx_idempotency_store_t *store, ngx_idempotency_forget_t *forget)
{
    shm_start(store, &forget->op);

    return shm_forget_resume(&forget->op);
}


/* with a fence it is a record of this zone: no need to ask the backing */

static ngx_int_t
shm_forget_resume(ngx_idempotency_op_t *op)
{
    uint32_t                   sequence;
    ngx_idempotency_shm_t     *shm;
    ngx_idempotency_forget_t  *forget;
    ngx_idempotency_record_t  *rec;

    shm = op->store->data;
    forget = (ngx_idempotency_forget_t *) op;

    if (shm_begin(shm, op) != NGX_OK) {
        return NGX_OK;
    }

    if (forget->fence == 0) {
        rec = shm_look(shm, op, shm_forget_resume);

    } else {
        rec = ngx_idempotency_record_current(shm, op->token, op->now);

        if (rec && forget->fence != rec->fence) {
            rec = NULL;
        }

        op->result = rec ? NGX_IDEMPOTENCY_OK : NGX_IDEMPOTENCY_ABSENT;
    }

    if (rec) {
        forget->was = ngx_idempotency_record_unknown(rec) ? 0 : rec->fence;

        sequence = rec->sequence;

        ngx_idempotency_record_change(shm, rec, NGX_IDEMPOTENCY_ON_FORGET,
                                      op->now);

        if (forget->fence == 0) {
            shm_wait_flushed(shm, op, sequence);
        }
    }

    shm_end(shm);

    return op->waiting ? NGX_AGAIN : NGX_OK;
}


/*
 * The record that a find or forget is about; NULL: op->result says why.  If the
 * zone is not sure about the token, it asks the backing, by a claim that never
 * takes a fresh token.  The operation waits for the answer and then looks
 * again.
 */

static ngx_idempotency_record_t *
shm_look(ngx_idempotency_shm_t *shm, ngx_idempotency_op_t *op,
    shm_resume_pt resume)
{
    ngx_int_t                  rc;
    ngx_idempotency_claim_t    claim;
    ngx_idempotency_record_t  *rec;

    rec = ngx_idempotency_record_current(shm, op->token, op->now);

    op->result = rec ? NGX_IDEMPOTENCY_OK : NGX_IDEMPOTENCY_ABSENT;

    if (shm->tier == NULL
        || (rec && !ngx_idempotency_record_unknown(rec)
            && rec->state != NGX_IDEMPOTENCY_REMOTE
            && rec->state != NGX_IDEMPOTENCY_DOUBTED))
    {
        return rec;
    }

    ngx_memzero(&claim, sizeof(ngx_idempotency_claim_t));

    /* any window will do */

    claim.op = *op;
    claim.window = shm->sh->window.length;
    claim.span = shm->sh->window.span;
    claim.lease = NGX_IDEMPOTENCY_SHM_LEFTOVER;
    claim.old = 1;

    rc = ngx_idempotency_ask_lookup(shm, &claim, &rec);

    *op = claim.op;

    if (rc == NGX_DECLINED) {
        op->result = NGX_IDEMPOTENCY_OK;
        return rec;
    }

    if (rc == NGX_AGAIN) {
        shm_wait(rec, op, resume);

    } else if (op->result == NGX_IDEMPOTENCY_UNFINISHED) {
        op->resume = resume;
        shm_resume(op);

    } else {
        op->result = (op->result == NGX_IDEMPOTENCY_EXPIRED)
                     ? NGX_IDEMPOTENCY_ABSENT : NGX_IDEMPOTENCY_UNAVAILABLE;
    }

    return NULL;
}


static void
shm_look_handler(ngx_event_t *ev)
{
    ngx_idempotency_shm_woken(NULL);
}


/*
 * The operation waits as long as the backing lacks the outcome of this claim,
 * and will have it soon.  A request that forgets or settles a token waits, too,
 * over a backing that takes many batches at once: the next question for the
 * token might overtake the release, and be answered by the old record.
 */

static void
shm_wait_flushed(ngx_idempotency_shm_t *shm, ngx_idempotency_op_t *op,
    uint32_t sequence)
{
    ngx_idempotency_record_t  *rec;

    if (shm->tier == NULL) {
        return;
    }

    rec = ngx_idempotency_record_current(shm, op->token, op->now);

    if (rec == NULL || rec->sequence != sequence) {
        rec = ngx_idempotency_writeback_gone(shm, op->token, sequence);

    } else if (!ngx_idempotency_record_unflushed(shm, rec)) {
        rec = NULL;
    }

    if (rec) {
        op->waited = sequence;
        shm_wait(rec, op, shm_flushed);
    }
}


/* the backing has taken a change of this token: perhaps not yet this one */

static ngx_int_t
shm_flushed(ngx_idempotency_op_t *op)
{
    ngx_idempotency_shm_t  *shm;

    shm = op->store->data;

    if (shm_begin(shm, op) == NGX_OK) {
        shm_wait_flushed(shm, op, op->waited);
        ngx_idempotency_shm_unlock(shm);
    }

    return op->waiting ? NGX_AGAIN : NGX_OK;
}


/* a new operation does not wait yet */

static void
shm_start(ngx_idempotency_store_t *store, ngx_idempotency_op_t *op)
{
    op->store = store;
    op->asker = 0;
    op->waited = 0;
    op->since = 0;
}


static ngx_int_t
shm_begin(ngx_idempotency_shm_t *shm, ngx_idempotency_op_t *op)
{
    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        op->result = NGX_IDEMPOTENCY_UNAVAILABLE;
        return NGX_ERROR;
    }

    return NGX_OK;
}


static void
shm_end(ngx_idempotency_shm_t *shm)
{
    ngx_idempotency_shm_unlock(shm);
    ngx_idempotency_writeback_schedule(shm);
}


/*
 * The record under the caller's fence; no other may be changed.  An owner that
 * was taken for dead gets its claim back, unless another request may have taken
 * it over: here, or in another nginx, if the backing knows of the doubt, or has
 * the claim under a lease that may be over.
 */

static ngx_idempotency_record_t *
shm_own(ngx_idempotency_shm_t *shm, ngx_idempotency_op_t *op,
    uint64_t fence)
{
    ngx_uint_t                 unknown;
    ngx_idempotency_record_t  *rec;

    op->result = NGX_IDEMPOTENCY_STALE;

    rec = ngx_idempotency_record_current(shm, op->token, op->now);

    if (rec == NULL || rec->fence != fence) {
        return NULL;
    }

    if (rec->state == NGX_IDEMPOTENCY_IN_DOUBT && rec->status == 0) {

        unknown = (shm->tier == NULL || rec->local || !rec->sent
                   || (!ngx_idempotency_tier_shared(shm->tier) && !rec->unsure
                       && (rec->flush == NGX_IDEMPOTENCY_QUEUED
                           || rec->flush == NGX_IDEMPOTENCY_ASIDE)));

        if (unknown) {
            ngx_idempotency_record_own(shm, rec, op->now);
        }
    }

    if (rec->state != NGX_IDEMPOTENCY_PENDING) {
        return NULL;
    }

    op->result = NGX_IDEMPOTENCY_OK;

    return rec;
}


/* copies the start of the response; the cursor has the position */

static void
shm_read_locked(ngx_idempotency_record_t *rec, ngx_idempotency_cursor_t *cur)
{
    cur->chunk = rec->chunks;

    ngx_idempotency_chunks_read(cur, shm_scratch,
                                ngx_min(rec->size, sizeof(shm_scratch)));
}


/*
 * Copies the response into the caller's pool.  `left`: the sequence of the
 * claim that left the response to requests that waited, or 0.  NGX_DECLINED:
 * the record ended meanwhile, so the operation has to begin again.
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
 * The cursor is one more than the bucket to go on in; the token is the last one
 * that was looked at, in that bucket or in an earlier one.
 */

static ngx_int_t
shm_list(ngx_idempotency_store_t *store, ngx_idempotency_list_t *list)
{
    u_char                    *token, *behind;
    ngx_uint_t                 n, bucket, last, looked;
    ngx_idempotency_shm_t     *shm;
    ngx_idempotency_record_t  *rec;

    shm = store->data;
    token = list->op.token;

    if (list->behind) {
        return list_backing(store, list);
    }

    n = list->n;
    list->n = 0;

    if (shm_begin(shm, &list->op) != NGX_OK) {
        return NGX_OK;
    }

    if (list->cursor == 0) {
        list->cursor = 1;
        ngx_memzero(token, NGX_IDEMPOTENCY_DIGEST_LEN);
    }

    looked = 0;
    bucket = list->cursor - 1;
    last = bucket + NGX_IDEMPOTENCY_LIST_BUCKETS;
    behind = (ngx_idempotency_tree_key(token) & shm->sh->mask) == bucket
             ? token : NULL;

    while (bucket <= shm->sh->mask && bucket < last
           && list->n < n && looked < NGX_IDEMPOTENCY_LIST_RECORDS)
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
        list->n += list_record(shm, rec, list->op.now, &list->listed[list->n]);

        behind = token;
        ngx_memcpy(token, rec->token, NGX_IDEMPOTENCY_DIGEST_LEN);
    }

    list->cursor = (bucket > shm->sh->mask) ? 0 : bucket + 1;

    ngx_idempotency_shm_unlock(shm);

    list->op.result = NGX_IDEMPOTENCY_OK;

    return NGX_OK;
}


/* A list has no expired records, no questions, and no leftovers. */

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


/* here the cursor is the backing's */

static ngx_int_t
list_backing(ngx_idempotency_store_t *store, ngx_idempotency_list_t *list)
{
    ngx_idempotency_op_t    *op;
    ngx_idempotency_shm_t   *shm;
    ngx_idempotency_page_t  *page;

    shm = store->data;
    op = &list->op;
    page = NULL;

    if (shm->tier) {
        page = ngx_calloc(sizeof(ngx_idempotency_page_t), ngx_cycle->log);
    }

    if (page) {
        page->data = op;
        page->n = ngx_min(list->n, NGX_IDEMPOTENCY_TIER_BATCH);
        page->cursor = list->cursor;

        if (list->cursor) {
            ngx_memcpy(page->token, op->token, NGX_IDEMPOTENCY_DIGEST_LEN);
        }

        if (shm->tier->backing->list(shm->tier, page) == NGX_AGAIN) {
            list->page = page;

            op->store = store;
            op->resume = list_page;
            op->waiting = 1;
            ngx_queue_init(&op->queue);

            return NGX_AGAIN;
        }

        ngx_free(page);
    }

    list->n = 0;
    op->result = NGX_IDEMPOTENCY_UNAVAILABLE;

    return NGX_OK;
}


void
ngx_idempotency_page_listed(ngx_idempotency_page_t *page)
{
    ngx_idempotency_op_t  *op;

    op = page->data;

    if (op) {
        ngx_idempotency_shm_dequeue(op);
        (void) list_page(op);
    }

    ngx_free(page);

    if (op) {
        op->handler(op);
    }
}


static ngx_int_t
list_page(ngx_idempotency_op_t *op)
{
    ngx_uint_t                 i, n;
    ngx_idempotency_shm_t     *shm;
    ngx_idempotency_item_t    *item;
    ngx_idempotency_list_t    *list;
    ngx_idempotency_page_t    *page;
    ngx_idempotency_found_t   *found;
    ngx_idempotency_listed_t  *listed;

    list = (ngx_idempotency_list_t *) op;
    shm = op->store->data;
    page = list->page;
    n = 0;

    op->result = NGX_IDEMPOTENCY_UNAVAILABLE;

    if (page->rc == NGX_OK) {
        op->result = NGX_IDEMPOTENCY_OK;

        ngx_idempotency_unseal(op->store->secret, page->items, page->n,
                               !ngx_idempotency_tier_shared(shm->tier));

        /* records that ended since, or are damaged or forged, are left out */

        for (i = 0; i < page->n; i++) {
            item = &page->items[i];

            if (item->result != NGX_IDEMPOTENCY_BOUND) {
                continue;
            }

            listed = &list->listed[n++];
            found = &listed->found;

            ngx_memcpy(listed->token, item->token, NGX_IDEMPOTENCY_DIGEST_LEN);
            ngx_memcpy(listed->fingerprint, item->fingerprint,
                       NGX_IDEMPOTENCY_DIGEST_LEN);

            ngx_memzero(found, sizeof(ngx_idempotency_found_t));

            found->outcome = item->outcome;
            found->status = item->status;
            found->fence = item->fence;
            found->replays = item->replays;
            found->age = (item->recorded < page->now)
                         ? page->now - item->recorded : 0;
            found->response.len = item->response.len;

            if (item->outcome == NGX_IDEMPOTENCY_PENDING) {
                found->instance = item->instance;

            } else if (item->ends > page->now) {
                found->left = item->ends - page->now;
            }
        }

        list->cursor = page->cursor;
        ngx_memcpy(op->token, page->token, NGX_IDEMPOTENCY_DIGEST_LEN);
    }

    list->n = n;

    return NGX_OK;
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
    found->left = record_lasts(rec, now);
    found->replays = rec->replays;
    found->anonymous = ngx_idempotency_record_anonymous(rec);
    found->owner = (rec->state == NGX_IDEMPOTENCY_PENDING)
                       ? rec->as.pending.owner.pid : 0;
    found->instance = 0;
    found->response.len = rec->size;
    found->response.data = NULL;
}


/* for how long the record still binds, unless it is pending */

static ngx_msec_t
record_lasts(ngx_idempotency_record_t *rec, ngx_msec_t now)
{
    ngx_msec_int_t  left;

    if (ngx_idempotency_record_waiting(rec)) {
        return 0;
    }

    left = (ngx_msec_int_t) (rec->ends - now);

    return ngx_max(left, 0);
}


/* Called with the lock held, so that no change is missed.  A bound record has
   room for one worker only. */

static void
shm_wait(ngx_idempotency_record_t *rec, ngx_idempotency_op_t *op,
    shm_resume_pt resume)
{
    ngx_uint_t                  slot;
    ngx_idempotency_workers_t  *waiting;

    slot = ngx_idempotency_worker_self().slot;
    waiting = ngx_idempotency_record_waiting(rec);

    if (slot == NGX_IDEMPOTENCY_NO_WORKER) {

        /* no other worker can wake this one: it polls */

    } else if (waiting) {
        waiting->bits[slot / 64] |= (uint64_t) 1 << (slot % 64);

    } else if (rec->holding != slot + 1) {
        rec->holding = rec->holding ? NGX_IDEMPOTENCY_HOLD_ALL : slot + 1;
    }

    /* an operation that is made again keeps waiting for the same answer */

    if (waiting && op->waited != rec->sequence) {
        op->waited = rec->sequence;

        /* a question on its way was sent too early: wait for the next */

        op->answer = (rec->flush == NGX_IDEMPOTENCY_FLUSHING
                      || rec->flush == NGX_IDEMPOTENCY_OUTDATED) ? 2 : 1;

        if (rec->state == NGX_IDEMPOTENCY_REMOTE) {
            op->answer += rec->as.remote.answers;
        }
    }

    op->resume = resume;
    op->waiting = 1;

    ngx_queue_insert_tail(shm_bucket(ngx_idempotency_tree_key(op->token)),
                          &op->queue);

    if (resume && !shm_look_event.timer_set) {
        shm_look_dumb.fd = (ngx_socket_t) -1;

        shm_look_event.handler = shm_look_handler;
        shm_look_event.data = &shm_look_dumb;
        shm_look_event.log = ngx_cycle->log;
        shm_look_event.cancelable = 1;

        ngx_add_timer(&shm_look_event, NGX_IDEMPOTENCY_LOOK_RETRY);
    }
}


/*
 * Calls the operations that wait for the token, the first of them now.  They
 * are moved aside before: a handler may wait again, or cancel another one.
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
    ngx_int_t              rc;
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

        if (op->resume == NULL) {
            op->result = NGX_IDEMPOTENCY_CHANGED;

        } else {
            op->now = ngx_current_msec;

            rc = op->resume(op);

            if (rc == NGX_AGAIN) {
                continue;
            }

            if (rc != NGX_OK) {
                op->result = NGX_IDEMPOTENCY_UNAVAILABLE;
            }
        }

        op->handler(op);
    }
}


static void
shm_resume(ngx_idempotency_op_t *op)
{
    op->waiting = 1;

    ngx_queue_insert_tail(&shm_ready, &op->queue);

    shm_post_ready();
}


/* the next turn of the event loop goes on */

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
    if (!op->waiting) {
        return;
    }

    ngx_idempotency_shm_dequeue(op);

    if (op->resume == list_page) {
        ((ngx_idempotency_list_t *) op)->page->data = NULL;

    } else if (op->asker) {
        ngx_idempotency_ask_cancel(store->data, op);
    }
}


/* the operation is made again, or cancelled */

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
