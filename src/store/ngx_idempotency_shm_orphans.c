
/*
 * Claims whose owner is gone: met by another claim, or by a sweep over all that
 * are pending.
 */


#include "ngx_idempotency_shm.h"


/* claims of the dead that are dealt with while the lock is held once */

#define NGX_IDEMPOTENCY_ORPHANS  64


/* a claim without an owner: who waits for it, and what the log is told, if
   it is in doubt by that: its fence, or 0 */

typedef struct {
    u_char                     token[NGX_IDEMPOTENCY_DIGEST_LEN];
    uint64_t                   fence;
    ngx_idempotency_workers_t  wake;
} orphan_t;


static void orphans_told(ngx_idempotency_shm_t *shm, orphan_t *orphan);


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
