
/*
 * All records of a zone, some at a time: bucket by bucket, and in each in the
 * order of its tree.  The cursor is a place in that order and no record, so
 * whatever comes or goes meanwhile moves none of the others across it.
 */


#include "ngx_idempotency_shm.h"


/* what is looked at, at most, while the lock is held once */

#define NGX_IDEMPOTENCY_LIST_RECORDS  64
#define NGX_IDEMPOTENCY_LIST_BUCKETS  4096


static ngx_uint_t list_some(ngx_idempotency_shm_t *shm,
    ngx_idempotency_list_t *list, ngx_uint_t bucket, u_char *behind);
static ngx_uint_t list_record(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_msec_t now,
    ngx_idempotency_listed_t *listed);


/*
 * The cursor is the bucket to go on in, and one more; the token is the last one
 * that was looked at, in that bucket or in one before.
 */

ngx_int_t
ngx_idempotency_shm_list(ngx_idempotency_store_t *store,
    ngx_idempotency_list_t *list)
{
    u_char                 *token;
    uint64_t                key;
    ngx_uint_t              bucket;
    ngx_idempotency_shm_t  *shm;

    shm = store->data;
    token = list->op.token;

    if (list->behind) {
        return ngx_idempotency_look_list(shm, list);
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


/* not what is over, nor what is asked for, nor what is left to those who
   waited: that has no token */

static ngx_uint_t
list_record(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec,
    ngx_msec_t now, ngx_idempotency_listed_t *listed)
{
    if (ngx_idempotency_record_asks(rec)
        || (rec->state != NGX_IDEMPOTENCY_PENDING
            && (rec->window == &shm->sh->left
                || ngx_idempotency_record_expired(rec, now))))
    {
        return 0;
    }

    ngx_memcpy(listed->token, rec->token, NGX_IDEMPOTENCY_DIGEST_LEN);
    ngx_memcpy(listed->fingerprint, rec->fingerprint,
               NGX_IDEMPOTENCY_DIGEST_LEN);
    ngx_idempotency_record_describe(rec, now, &listed->found);

    return 1;
}
