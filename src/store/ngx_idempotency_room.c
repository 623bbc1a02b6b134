
/*
 * Room in a zone: what is over goes, a few at a time; where memory is short
 * what may go early does; and what there is no room for is not claimed.  All of
 * it runs with the zone's lock held.
 */


#include "ngx_idempotency_shm.h"


/* how many are looked at, at most, for one that may leave */

#define NGX_IDEMPOTENCY_ROOM_LOOK  64


static ngx_uint_t room_evict(ngx_idempotency_shm_t *shm);
static ngx_uint_t room_evict_told(ngx_idempotency_shm_t *shm);


/* frees up to n records whose time is over */

ngx_uint_t
ngx_idempotency_record_expire(ngx_idempotency_shm_t *shm, ngx_msec_t now,
    ngx_uint_t n)
{
    ngx_uint_t                 i;
    ngx_idempotency_record_t  *rec;
    ngx_idempotency_window_t  *window;

    i = 0;

    for (window = &shm->sh->window; window; window = window->next) {

        while (i < n && !ngx_queue_empty(&window->records)) {

            rec = ngx_queue_data(ngx_queue_head(&window->records),
                                 ngx_idempotency_record_t, as.bound.expiry);

            if (!ngx_idempotency_record_expired(rec, now)) {
                break;
            }

            ngx_idempotency_record_end(shm, rec);
            i++;
        }
    }

    while (i < n && !ngx_queue_empty(&shm->sh->elsewhere)) {

        rec = ngx_queue_data(ngx_queue_head(&shm->sh->elsewhere),
                             ngx_idempotency_record_t, queue);

        if (!ngx_idempotency_record_expired(rec, now)) {
            break;
        }

        ngx_idempotency_record_remove(shm, rec);
        i++;
    }

    return i;
}


ngx_uint_t
ngx_idempotency_record_expired(ngx_idempotency_record_t *rec, ngx_msec_t now)
{
    if (rec->state == NGX_IDEMPOTENCY_ELSEWHERE) {
        return ngx_idempotency_elsewhere_unwanted(rec, now,
                                                  NGX_IDEMPOTENCY_SHM_LEFT);
    }

    if (ngx_idempotency_record_brief(rec)
        && (ngx_msec_int_t) (now - rec->as.brief.copied)
           >= NGX_IDEMPOTENCY_SHM_LEFT)
    {
        return 1;
    }

    /* brief ones but those in doubt tell nothing that could end */

    if (rec->state == NGX_IDEMPOTENCY_NOTHING
        || rec->state == NGX_IDEMPOTENCY_FAILED)
    {
        return 0;
    }

    return (ngx_msec_int_t) (now - rec->ends) >= 0;
}


/*
 * A zone is full when it could not take one more response of the size asked
 * for; but a single response may claim no more than an eighth of the zone
 * for itself.  So nothing is claimed whose response could not be kept, unless
 * those under way at the same time are larger than what is left together.
 * UNFINISHED: some room was made, and more is to be.
 */

ngx_idempotency_result_e
ngx_idempotency_record_make_room(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim)
{
    ngx_uint_t        n, pages, limit;
    ngx_slab_pool_t  *shpool;

    shpool = shm->shpool;

    limit = (shpool->end - shpool->start) / ngx_pagesize / 8;

    /* more for the record, for the header block, and for the quota */

    pages = ngx_idempotency_chunks_pages(claim->reserve) + 2
            + (claim->quota != 0);
    pages = ngx_min(pages, ngx_max(limit, 1));

    for (n = 0; shpool->pfree < pages; n++) {

        if (n == NGX_IDEMPOTENCY_SHM_FREE) {
            return NGX_IDEMPOTENCY_UNFINISHED;
        }

        if (!ngx_idempotency_record_free_some(shm, claim->op.now)) {
            return NGX_IDEMPOTENCY_UNAVAILABLE;
        }
    }

    return NGX_IDEMPOTENCY_OK;
}


/* what may go: what has expired, then, if it may, the oldest response */

ngx_uint_t
ngx_idempotency_record_free_some(ngx_idempotency_shm_t *shm, ngx_msec_t now)
{
    return ngx_idempotency_record_expire(shm, now, NGX_IDEMPOTENCY_SHM_EXPIRE)
           || room_evict(shm);
}


/* the token of a response that went stays bound */

static ngx_uint_t
room_evict(ngx_idempotency_shm_t *shm)
{
    ngx_idempotency_record_t  *rec;

    if (shm->tier) {
        return room_evict_told(shm);
    }

    if (!shm->evict || ngx_queue_empty(&shm->sh->kept)) {
        return 0;
    }

    rec = ngx_queue_data(ngx_queue_head(&shm->sh->kept),
                         ngx_idempotency_record_t, queue);

    ngx_queue_remove(&rec->queue);
    ngx_idempotency_chunks_free(shm, rec);

    ngx_idempotency_record_change(shm, rec, NGX_IDEMPOTENCY_ON_EVICT, 0);

    return 1;
}


/*
 * What the backing has may leave, the oldest first: those with responses, then
 * those of each window.  Some of the oldest may be owed yet.
 */

static ngx_uint_t
room_evict_told(ngx_idempotency_shm_t *shm)
{
    ngx_uint_t                 n;
    ngx_queue_t               *q;
    ngx_idempotency_record_t  *rec;
    ngx_idempotency_window_t  *window;

    q = ngx_queue_head(&shm->sh->kept);

    for (n = 0; n < NGX_IDEMPOTENCY_ROOM_LOOK; n++) {

        if (q == ngx_queue_sentinel(&shm->sh->kept)) {
            break;
        }

        rec = ngx_queue_data(q, ngx_idempotency_record_t, queue);

        if (!ngx_idempotency_record_stays(rec)) {
            ngx_idempotency_record_remove(shm, rec);
            return 1;
        }

        q = ngx_queue_next(q);
    }

    for (window = &shm->sh->window; window; window = window->next) {

        q = ngx_queue_head(&window->records);

        for (n = 0; n < NGX_IDEMPOTENCY_ROOM_LOOK; n++) {

            if (q == ngx_queue_sentinel(&window->records)) {
                break;
            }

            rec = ngx_queue_data(q, ngx_idempotency_record_t,
                                 as.bound.expiry);

            if (!ngx_idempotency_record_stays(rec)) {
                ngx_idempotency_record_remove(shm, rec);
                return 1;
            }

            q = ngx_queue_next(q);
        }
    }

    return 0;
}
