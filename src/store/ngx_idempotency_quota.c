
/*
 * How many tokens there are for one value, such as a client's address: they
 * are counted where they are bound and where they go, so that nobody can fill
 * a zone for all.  All of it runs with the zone's lock held.
 */


#include "ngx_idempotency_shm.h"


/* those looked at, at most, for one that has ended before its turn */

#define NGX_IDEMPOTENCY_QUOTA_LOOK  64


static ngx_idempotency_quota_t *quota_find(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim);
static ngx_uint_t quota_full(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim);
static void quota_expire(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim);


/*
 * Whether one more token may be bound.  Those whose time is over don't count:
 * if it would be one too many they are freed, all that there are, as far as
 * may be while the lock is held once.
 */

ngx_idempotency_result_e
ngx_idempotency_quota_check(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim)
{
    ngx_queue_t               *q;
    ngx_idempotency_quota_t   *quota;
    ngx_idempotency_record_t  *rec;

    if (!quota_full(shm, claim)) {
        return NGX_IDEMPOTENCY_OK;
    }

    if (ngx_idempotency_record_expire(shm, claim->op.now,
                                      NGX_IDEMPOTENCY_SHM_FREE)
        == NGX_IDEMPOTENCY_SHM_FREE)
    {
        return NGX_IDEMPOTENCY_UNFINISHED;
    }

    quota_expire(shm, claim);

    if (!quota_full(shm, claim)) {
        return NGX_IDEMPOTENCY_OK;
    }

    quota = quota_find(shm, claim);

    if (ngx_queue_empty(&quota->bound)) {

        /* all of them are pending: one that ends now has its window yet */

        claim->found.left = ngx_max(claim->window, claim->least);
        return NGX_IDEMPOTENCY_LIMITED;
    }

    q = ngx_queue_head(&quota->bound);
    rec = ngx_queue_data(q, ngx_idempotency_record_t, as.bound.quota);

    claim->found.left = ngx_idempotency_record_lasts(rec, claim->op.now);

    return NGX_IDEMPOTENCY_LIMITED;
}


static ngx_uint_t
quota_full(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim)
{
    ngx_idempotency_quota_t  *quota;

    if (claim->quota == 0) {
        return 0;
    }

    quota = quota_find(shm, claim);

    return quota && quota->live >= claim->quota;
}


/* keys that tell their own time do not end in the order of a window */

static void
quota_expire(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim)
{
    ngx_uint_t                 n, last;
    ngx_queue_t               *q, *next;
    ngx_idempotency_quota_t   *quota;
    ngx_idempotency_record_t  *rec;

    quota = quota_find(shm, claim);
    if (quota == NULL) {
        return;
    }

    q = ngx_queue_head(&quota->bound);

    for (n = 0; n < NGX_IDEMPOTENCY_QUOTA_LOOK; n++, q = next) {

        if (q == ngx_queue_sentinel(&quota->bound)) {
            return;
        }

        next = ngx_queue_next(q);
        rec = ngx_queue_data(q, ngx_idempotency_record_t, as.bound.quota);

        if (!ngx_idempotency_record_expired(rec, claim->op.now)) {
            continue;
        }

        /* the last one takes the quota along */

        last = (quota->live == 1);
        ngx_idempotency_record_remove(shm, rec);

        if (last) {
            return;
        }
    }
}


/* a record that is about to be bound counts from now on */

ngx_int_t
ngx_idempotency_quota_take(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_idempotency_claim_t *claim)
{
    ngx_idempotency_quota_t  *quota;

    if (claim->quota == 0) {
        return NGX_OK;
    }

    quota = quota_find(shm, claim);

    if (quota == NULL) {
        quota = ngx_slab_calloc_locked(shm->shpool,
                                       sizeof(ngx_idempotency_quota_t));
        if (quota == NULL) {
            return NGX_ERROR;
        }

        ngx_memcpy(quota->value, claim->value, NGX_IDEMPOTENCY_DIGEST_LEN);
        ngx_queue_init(&quota->bound);

        ngx_idempotency_tree_insert(shm, &shm->sh->quotas, &quota->node);
    }

    quota->live++;
    rec->quota = quota;

    return NGX_OK;
}


/* it has an end now, and is the last one to come to it */

void
ngx_idempotency_quota_bind(ngx_idempotency_record_t *rec)
{
    if (rec->quota) {
        ngx_queue_insert_tail(&rec->quota->bound, &rec->as.bound.quota);
    }
}


void
ngx_idempotency_quota_unbind(ngx_idempotency_record_t *rec)
{
    if (rec->quota) {
        ngx_queue_remove(&rec->as.bound.quota);
    }
}


/* it counts no more; it is pending, or unbound */

void
ngx_idempotency_quota_drop(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec)
{
    ngx_idempotency_quota_t  *quota;

    quota = rec->quota;

    if (quota == NULL) {
        return;
    }

    rec->quota = NULL;

    if (--quota->live) {
        return;
    }

    ngx_idempotency_tree_delete(shm, &shm->sh->quotas, &quota->node);

    ngx_slab_free_locked(shm->shpool, quota);
}


static ngx_idempotency_quota_t *
quota_find(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim)
{
    return (ngx_idempotency_quota_t *)
               ngx_idempotency_tree_find(shm, shm->sh->quotas, claim->value);
}
