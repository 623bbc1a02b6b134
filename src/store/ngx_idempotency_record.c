
/*
 * Records in shared memory: found by token, claimed, bound to an outcome, left
 * to those who waited, removed.  All of it runs with the zone's lock held.
 */


#include "ngx_idempotency_shm.h"


/* the first window, which needs no memory, as long as none was named */

#define NGX_IDEMPOTENCY_NO_WINDOW  ((ngx_msec_t) -1)


static ngx_rbtree_node_t **record_bucket(ngx_idempotency_shm_t *shm,
    u_char *token);
static ngx_idempotency_result_e record_new(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t **new);
static ngx_idempotency_record_t *record_split(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_msec_t now);
static void record_claim(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_idempotency_window_t *window,
    ngx_idempotency_claim_t *claim);
static void record_pend(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_msec_t now);
static uint32_t record_lease(ngx_msec_t lease);
static void record_left_token(u_char *token, uint64_t fence);
static ngx_idempotency_window_t *record_window(ngx_idempotency_shm_t *shm,
    ngx_msec_t length, ngx_msec_t span);
static void record_unlink(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);
static ngx_uint_t record_counts(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);
static void record_unpublish(ngx_idempotency_record_t *rec);


ngx_int_t
ngx_idempotency_records_init(ngx_idempotency_shm_sh_t *sh,
    ngx_slab_pool_t *shpool)
{
    ngx_uint_t  i, n;

    /* one for each two pages: no more than 32 records, if all is full */

    n = 8;

    while (n < (ngx_uint_t) (shpool->end - shpool->start)
               / (2 * ngx_pagesize))
    {
        n *= 2;
    }

    sh->buckets = ngx_slab_alloc_locked(shpool,
                                        n * sizeof(ngx_rbtree_node_t *));
    if (sh->buckets == NULL) {
        return NGX_ERROR;
    }

    sh->mask = n - 1;

    ngx_rbtree_sentinel_init(&sh->sentinel);

    for (i = 0; i < n; i++) {
        sh->buckets[i] = &sh->sentinel;
    }

    sh->quotas = &sh->sentinel;

    sh->window.length = NGX_IDEMPOTENCY_NO_WINDOW;
    ngx_queue_init(&sh->window.records);

    sh->left.length = NGX_IDEMPOTENCY_SHM_LEFT;
    sh->left.span = NGX_IDEMPOTENCY_SHM_LEFT;
    ngx_queue_init(&sh->left.records);

    /* nothing is ever claimed with this one */

    sh->copies.length = NGX_IDEMPOTENCY_NO_WINDOW - 1;
    ngx_queue_init(&sh->copies.records);

    sh->window.next = &sh->left;
    sh->left.next = &sh->copies;

    ngx_queue_init(&sh->pending);
    ngx_queue_init(&sh->elsewhere);
    ngx_queue_init(&sh->kept);

    return NGX_OK;
}


/* the tree that a token belongs to */

static ngx_rbtree_node_t **
record_bucket(ngx_idempotency_shm_t *shm, u_char *token)
{
    return &shm->sh->buckets[ngx_idempotency_tree_key(token)
                             & shm->sh->mask];
}


/* the record bound to the token now; one whose time is over is freed here */

ngx_idempotency_record_t *
ngx_idempotency_record_current(ngx_idempotency_shm_t *shm, u_char *token,
    ngx_msec_t now)
{
    ngx_idempotency_record_t  *rec;

    rec = (ngx_idempotency_record_t *)
              ngx_idempotency_tree_find(shm, *record_bucket(shm, token), token);

    if (rec
        && !ngx_idempotency_record_pends(rec)
        && ngx_idempotency_record_expired(rec, now))
    {
        ngx_idempotency_record_end(shm, rec);
        return NULL;
    }

    return rec;
}


/* binds a fresh token; what keeps it from being bound is asked first */

ngx_idempotency_result_e
ngx_idempotency_record_create(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim)
{
    ngx_idempotency_record_t  *rec;
    ngx_idempotency_result_e   result;

    if (claim->old) {
        return NGX_IDEMPOTENCY_EXPIRED;
    }

    result = ngx_idempotency_quota_check(shm, claim);

    if (result != NGX_IDEMPOTENCY_OK) {
        return result;
    }

    result = record_new(shm, claim, &rec);

    if (result != NGX_IDEMPOTENCY_OK) {
        return result;
    }

    claim->fence = rec->fence;

    return NGX_IDEMPOTENCY_CLAIMED;
}


/*
 * What is not known here is asked for, by a record that nobody else may have
 * meanwhile.  Whether a fresh one may be bound is said along with that: one
 * that is bound already is answered in any case.
 */

ngx_idempotency_result_e
ngx_idempotency_record_ask(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t **rec)
{
    ngx_uint_t                flags;
    ngx_idempotency_result_e  result;

    flags = claim->retry ? NGX_IDEMPOTENCY_ASK_RETRY : 0;

    result = claim->old ? NGX_IDEMPOTENCY_EXPIRED
                        : ngx_idempotency_quota_check(shm, claim);

    if (result == NGX_IDEMPOTENCY_UNFINISHED) {
        return result;
    }

    if (result != NGX_IDEMPOTENCY_OK) {
        flags |= NGX_IDEMPOTENCY_ASK_OLD;
    }

    result = record_new(shm, claim, rec);

    if (result == NGX_IDEMPOTENCY_OK) {
        ngx_idempotency_record_tally(shm, *rec, -1);
        (*rec)->outcome = NGX_IDEMPOTENCY_ASKING;
        (*rec)->status = flags;
        shm->sh->tier.asked = 1;
    }

    return result;
}


static ngx_idempotency_result_e
record_new(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim,
    ngx_idempotency_record_t **new)
{
    ngx_idempotency_record_t  *rec;
    ngx_idempotency_window_t  *window;
    ngx_idempotency_result_e   result;

    result = ngx_idempotency_record_make_room(shm, claim);

    if (result != NGX_IDEMPOTENCY_OK) {
        return result;
    }

    window = record_window(shm, claim->window, claim->span);
    if (window == NULL) {
        return NGX_IDEMPOTENCY_UNAVAILABLE;
    }

    rec = ngx_slab_calloc_locked(shm->shpool,
                                 sizeof(ngx_idempotency_record_t));
    if (rec == NULL) {
        return NGX_IDEMPOTENCY_UNAVAILABLE;
    }

    if (ngx_idempotency_quota_take(shm, rec, claim) != NGX_OK) {
        ngx_slab_free_locked(shm->shpool, rec);
        return NGX_IDEMPOTENCY_UNAVAILABLE;
    }

    ngx_memcpy(rec->token, claim->op.token, NGX_IDEMPOTENCY_DIGEST_LEN);
    ngx_memcpy(rec->fingerprint, claim->fingerprint,
               NGX_IDEMPOTENCY_DIGEST_LEN);

    ngx_idempotency_tree_insert(shm, record_bucket(shm, rec->token),
                                &rec->node);

    if (claim->local) {
        rec->owes = NGX_IDEMPOTENCY_OWES_NEVER;
    }

    record_claim(shm, rec, window, claim);

    *new = rec;

    return NGX_IDEMPOTENCY_OK;
}


/* what is in doubt is claimed once more: whatever was kept of it goes */

ngx_idempotency_result_e
ngx_idempotency_record_reclaim(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_idempotency_claim_t *claim)
{
    ngx_idempotency_window_t  *window;
    ngx_idempotency_result_e   result;

    result = ngx_idempotency_record_make_room(shm, claim);

    if (result != NGX_IDEMPOTENCY_OK) {
        return result;
    }

    window = record_window(shm, claim->window, claim->span);
    if (window == NULL) {
        return NGX_IDEMPOTENCY_UNAVAILABLE;
    }

    ngx_idempotency_record_tally(shm, rec, -1);
    record_unpublish(rec);
    ngx_idempotency_chunks_free(shm, rec);
    record_claim(shm, rec, window, claim);

    rec->taken = 1;
    claim->fence = rec->fence;

    return NGX_IDEMPOTENCY_CLAIMED;
}


/* what is in doubt is its owner's again, under the same fence */

void
ngx_idempotency_record_revive(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_msec_t now)
{
    ngx_idempotency_record_tally(shm, rec, -1);
    record_unpublish(rec);
    ngx_idempotency_chunks_free(shm, rec);
    record_pend(shm, rec, now);
}


/* what was asked for is granted: it is its asker's from now on */

void
ngx_idempotency_record_grant(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_msec_t now)
{
    rec->outcome = NGX_IDEMPOTENCY_PENDING;
    rec->status = 0;
    rec->recorded = now;

    ngx_memzero(&rec->as.pending.waiting, sizeof(ngx_idempotency_workers_t));

    ngx_idempotency_record_tally(shm, rec, 1);
}


/* out of the queues that it is in as a record that is not pending */

static void
record_unpublish(ngx_idempotency_record_t *rec)
{
    ngx_queue_remove(&rec->as.bound.expiry);
    ngx_idempotency_quota_unbind(rec);

    if (rec->chunks) {
        ngx_queue_remove(&rec->queue);
    }
}


/* from here on the caller owns it, under a fence higher than any before */

static void
record_claim(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec,
    ngx_idempotency_window_t *window, ngx_idempotency_claim_t *claim)
{
    ngx_msec_t  now;

    now = claim->op.now;

    /* who takes over what nobody in particular asked for makes it his own */

    rec->parts = claim->parts;

    rec->fence = ngx_idempotency_tier_fence(shm);
    rec->ends = now + claim->least;
    rec->status = 0;
    rec->window = window;
    rec->replays = 0;

    rec->lease = record_lease(claim->lease);
    rec->known = 0;
    rec->taken = 0;

    record_pend(shm, rec, now);
}


static void
record_pend(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec,
    ngx_msec_t now)
{
    rec->outcome = NGX_IDEMPOTENCY_PENDING;
    rec->recorded = now;

    ngx_memzero(&rec->as.pending.waiting, sizeof(ngx_idempotency_workers_t));
    rec->as.pending.owner = ngx_idempotency_worker_self();
    rec->as.pending.renewed = 0;

    ngx_queue_insert_tail(&shm->sh->pending, &rec->queue);
    ngx_idempotency_record_tally(shm, rec, 1);

    ngx_idempotency_tier_owe(shm, rec);
}


/* the owner has said that it lives: its lease counts from here on */

void
ngx_idempotency_record_renew(ngx_idempotency_record_t *rec, ngx_msec_t lease,
    ngx_msec_t now)
{
    ngx_msec_int_t  since;

    since = (ngx_msec_int_t) (now - rec->recorded);
    since = ngx_max(since, 0);

    rec->lease = record_lease(lease);
    rec->as.pending.renewed = record_lease(since);
}


/* milliseconds as a record has them: as many as 24 days */

static uint32_t
record_lease(ngx_msec_t lease)
{
    return ngx_min(lease, (ngx_msec_t) NGX_MAX_INT32_VALUE);
}


/* there are as many windows as configurations ever named */

static ngx_idempotency_window_t *
record_window(ngx_idempotency_shm_t *shm, ngx_msec_t length, ngx_msec_t span)
{
    ngx_idempotency_window_t  *window;

    span = ngx_max(span, length);
    window = &shm->sh->window;

    if (window->length == NGX_IDEMPOTENCY_NO_WINDOW) {
        window->length = length;
        window->span = span;
    }

    for ( ;; ) {

        if (window->length == length && window->span == span) {
            return window;
        }

        if (window->next == NULL) {
            break;
        }

        window = window->next;
    }

    window->next = ngx_slab_calloc_locked(shm->shpool,
                                          sizeof(ngx_idempotency_window_t));
    if (window->next == NULL) {
        return NULL;
    }

    window = window->next;
    window->length = length;
    window->span = span;
    ngx_queue_init(&window->records);

    return window;
}


/*
 * From here on the token is bound to the outcome, and its window runs.  Who
 * waits for it was taken note of, and is to be woken once the lock is given
 * back.
 */

void
ngx_idempotency_record_publish(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_idempotency_outcome_e outcome,
    ngx_uint_t status, ngx_msec_t now)
{
    ngx_msec_t  ends;

    ngx_idempotency_record_tally(shm, rec, -1);

    rec->outcome = outcome;
    rec->status = status;
    rec->recorded = now;

    ngx_idempotency_record_tally(shm, rec, 1);
    shm->sh->stats.counters.in_doubt += (outcome == NGX_IDEMPOTENCY_IN_DOUBT);

    ends = now + rec->window->length;

    if ((ngx_msec_int_t) (ends - rec->ends) > 0) {
        rec->ends = ends;
    }

    ngx_queue_remove(&rec->queue);

    if (rec->chunks) {
        ngx_queue_insert_tail(&shm->sh->kept, &rec->queue);
    }

    ngx_queue_insert_tail(&rec->window->records, &rec->as.bound.expiry);
    ngx_idempotency_quota_bind(rec);

    ngx_idempotency_tier_owe(shm, rec);
}


/* it was asked for, and is as the backing has it: that knows its times */

void
ngx_idempotency_record_copy(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_idempotency_outcome_e outcome,
    ngx_msec_t now)
{
    ngx_idempotency_quota_drop(shm, rec);

    rec->outcome = outcome;
    rec->owes = 0;
    rec->window = &shm->sh->copies;

    ngx_queue_remove(&rec->queue);

    if (rec->chunks) {
        ngx_queue_insert_tail(&shm->sh->kept, &rec->queue);
    }

    rec->as.brief.copied = now;

    ngx_queue_insert_tail(&rec->window->records, &rec->as.brief.expiry);
    ngx_idempotency_record_tally(shm, rec, 1);
}


/* ... but not for long, as it may change there */

void
ngx_idempotency_record_brief(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_uint_t outcome, ngx_msec_t now)
{
    ngx_uint_t  owes;

    owes = rec->owes;

    ngx_idempotency_record_copy(shm, rec, outcome, now);
    ngx_idempotency_record_tally(shm, rec, -1);

    rec->owes = owes | NGX_IDEMPOTENCY_OWES_BRIEF;
    rec->window = &shm->sh->left;

    ngx_queue_remove(&rec->as.brief.expiry);
    ngx_queue_insert_tail(&rec->window->records, &rec->as.brief.expiry);
}


/*
 * The token is fresh again, and the response stays for a moment under another
 * one, that only those who waited under this fence can name.
 */

void
ngx_idempotency_record_leave(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_uint_t status, ngx_msec_t now)
{
    if (rec->taken
        || (shm->tier && (rec->owes & NGX_IDEMPOTENCY_OWES_NEVER) == 0))
    {
        /* it is in doubt, or the backing is to hear of the token */

        rec = record_split(shm, rec, now);

        if (rec == NULL) {
            return;
        }
    }

    ngx_idempotency_quota_drop(shm, rec);

    ngx_idempotency_tree_delete(shm, record_bucket(shm, rec->token),
                                &rec->node);
    record_left_token(rec->token, rec->fence);
    ngx_idempotency_tree_insert(shm, record_bucket(shm, rec->token),
                                &rec->node);

    rec->window = &shm->sh->left;
    rec->ends = now;

    ngx_idempotency_record_publish(shm, rec, NGX_IDEMPOTENCY_DONE, status,
                                   now);
}


/* without memory the response is left to nobody */

static ngx_idempotency_record_t *
record_split(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec,
    ngx_msec_t now)
{
    ngx_idempotency_record_t  *left;

    left = ngx_slab_calloc_locked(shm->shpool,
                                  sizeof(ngx_idempotency_record_t));

    if (left) {
        ngx_memcpy(left->token, rec->token, NGX_IDEMPOTENCY_DIGEST_LEN);
        ngx_memcpy(left->fingerprint, rec->fingerprint,
                   NGX_IDEMPOTENCY_DIGEST_LEN);
        left->parts = rec->parts;
        left->fence = rec->fence;
        left->chunks = rec->chunks;
        left->size = rec->size;
        left->owes = NGX_IDEMPOTENCY_OWES_NEVER;

        rec->chunks = NULL;
        rec->size = 0;
    }

    ngx_idempotency_record_release(shm, rec, now);

    if (left) {
        ngx_queue_insert_tail(&shm->sh->pending, &left->queue);
        ngx_idempotency_record_tally(shm, left, 1);
        ngx_idempotency_tree_insert(shm, record_bucket(shm, left->token),
                                    &left->node);
    }

    return left;
}


ngx_idempotency_record_t *
ngx_idempotency_record_left(ngx_idempotency_shm_t *shm,
    ngx_idempotency_op_t *op, uint64_t fence)
{
    u_char  token[NGX_IDEMPOTENCY_DIGEST_LEN];

    ngx_memcpy(token, op->token, NGX_IDEMPOTENCY_DIGEST_LEN);
    record_left_token(token, fence);

    return ngx_idempotency_record_current(shm, token, op->now);
}


/* a token is a digest: none that anybody can have is so close to another */

static void
record_left_token(u_char *token, uint64_t fence)
{
    uint64_t  key;

    key = ngx_idempotency_tree_key(token) ^ fence;

    ngx_memcpy(token, &key, sizeof(key));
}


/* its owner has not executed it; but somebody else may have, before */

void
ngx_idempotency_record_release(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_msec_t now)
{
    if (!rec->taken) {
        ngx_idempotency_record_remove(shm, rec);
        return;
    }

    ngx_idempotency_chunks_free(shm, rec);

    ngx_idempotency_record_publish(shm, rec, NGX_IDEMPOTENCY_IN_DOUBT, 0, now);

    /* it is no other doubt than before */

    shm->sh->stats.counters.in_doubt--;
}


void
ngx_idempotency_record_remove(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec)
{
    ngx_uint_t  tell, knows;

    /* the backing may have it as claimed, and is to hear that it is not */

    tell = (ngx_idempotency_record_pends(rec)
            || rec->outcome == NGX_IDEMPOTENCY_FAILED)
           && (rec->owes & NGX_IDEMPOTENCY_OWES_HEARD);

    /* whether it was in doubt before is known there alone, until it answers */

    knows = (rec->outcome == NGX_IDEMPOTENCY_ASKING
             || rec->outcome == NGX_IDEMPOTENCY_FAILED);

    record_unlink(shm, rec);

    if (tell || (rec->owes & NGX_IDEMPOTENCY_OWES)) {
        rec->outcome = NGX_IDEMPOTENCY_GONE;
        rec->status = knows ? 0 : NGX_IDEMPOTENCY_FREED;
        ngx_idempotency_tier_owe(shm, rec);

    } else {
        ngx_slab_free_locked(shm->shpool, rec);
    }
}


/* there, too, whoever claimed it */

void
ngx_idempotency_record_forget(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec)
{
    if (shm->tier == NULL || (rec->owes & NGX_IDEMPOTENCY_OWES_NEVER)) {
        ngx_idempotency_record_remove(shm, rec);
        return;
    }

    record_unlink(shm, rec);

    rec->outcome = NGX_IDEMPOTENCY_GONE;
    rec->status = NGX_IDEMPOTENCY_FORGOTTEN;
    rec->owes |= NGX_IDEMPOTENCY_OWES_HEARD;

    ngx_idempotency_tier_owe(shm, rec);
}


static void
record_unlink(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec)
{
    ngx_idempotency_record_tally(shm, rec, -1);

    if (ngx_idempotency_record_pends(rec)
        || rec->outcome == NGX_IDEMPOTENCY_ELSEWHERE)
    {
        ngx_queue_remove(&rec->queue);

    } else {
        record_unpublish(rec);
    }

    ngx_idempotency_tree_delete(shm, record_bucket(shm, rec->token),
                                &rec->node);

    ngx_idempotency_quota_drop(shm, rec);
    ngx_idempotency_chunks_free(shm, rec);
}


/* its time is over */

void
ngx_idempotency_record_end(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec)
{
    shm->sh->stats.counters.expired += record_counts(shm, rec);

    ngx_idempotency_record_remove(shm, rec);
}


/* those that a token is bound to, and not answers for those who wait */

static ngx_uint_t
record_counts(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec)
{
    return rec->outcome == NGX_IDEMPOTENCY_PENDING
           || (rec->outcome < NGX_IDEMPOTENCY_STATS_RECORDS
               && rec->window != &shm->sh->left);
}


void
ngx_idempotency_record_tally(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_int_t n)
{
    if (record_counts(shm, rec)) {
        shm->sh->stats.records[rec->outcome] += n;
    }
}


ngx_uint_t
ngx_idempotency_record_alive(ngx_idempotency_record_t *rec, ngx_msec_t now)
{
    return ngx_idempotency_worker_alive(&rec->as.pending.owner,
                                        rec->recorded
                                        + rec->as.pending.renewed,
                                        rec->lease, now);
}
