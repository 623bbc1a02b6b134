
/* What is told of a zone as a whole. */


#include "ngx_idempotency_shm.h"


/* what is over is freed first, so much while the lock is held once, and so
   often: the rest may be told as if it were there */

#define NGX_IDEMPOTENCY_FIGURES_FREE   64
#define NGX_IDEMPOTENCY_FIGURES_TIMES  16


static ngx_uint_t figures_locked(ngx_idempotency_shm_t *shm, ngx_msec_t now,
    ngx_idempotency_figures_t *figures);
static void figures_oldest(ngx_idempotency_shm_t *shm, ngx_msec_t now,
    ngx_idempotency_figures_t *figures);
static void figures_record(ngx_idempotency_record_t *rec, ngx_msec_t now,
    ngx_idempotency_figures_t *figures);
static void figures_tier(ngx_idempotency_tier_t *tier,
    ngx_idempotency_figures_t *figures);


ngx_int_t
ngx_idempotency_shm_figures(ngx_idempotency_store_t *store, ngx_msec_t now,
    ngx_idempotency_figures_t *figures)
{
    ngx_uint_t              i, freed, full;
    ngx_idempotency_shm_t  *shm;

    shm = store->data;

    ngx_memzero(figures, sizeof(ngx_idempotency_figures_t));

    figures->evict = shm->evict;
    figures->size = shm->shpool->end - (u_char *) shm->shpool;

    if (shm->tier) {
        figures->kind = shm->tier->backing->kind(shm->tier, &figures->sync);
    }

    for (i = 0; i < NGX_IDEMPOTENCY_FIGURES_TIMES; i++) {

        if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
            figures->counters = shm->sh->stats.counters;
            return NGX_DECLINED;
        }

        freed = ngx_idempotency_record_expire(shm, now,
                                              NGX_IDEMPOTENCY_FIGURES_FREE);

        full = figures_locked(shm, now, figures);

        ngx_idempotency_shm_unlock(shm);

        if (full) {
            ngx_idempotency_shm_warn(shm, full);
        }

        if (freed < NGX_IDEMPOTENCY_FIGURES_FREE) {
            break;
        }
    }

    ngx_idempotency_tier_kick(shm);

    return NGX_OK;
}


static ngx_uint_t
figures_locked(ngx_idempotency_shm_t *shm, ngx_msec_t now,
    ngx_idempotency_figures_t *figures)
{
    ngx_uint_t                full, pfree;
    ngx_idempotency_stats_t  *stats;

    stats = &shm->sh->stats;
    pfree = shm->shpool->pfree;

    full = ngx_idempotency_stats_space(stats, pfree, now);

    figures->counters = stats->counters;
    ngx_memcpy(figures->records, stats->records, sizeof(stats->records));
    figures->used = figures->size - pfree * ngx_pagesize;

    ngx_idempotency_stats_trend(stats, pfree, now, figures);
    figures_oldest(shm, now, figures);

    if (shm->tier) {
        figures_tier(shm->tier, figures);
    }

    return full;
}


/* all but the copies of what stands behind are in order in their windows */

static void
figures_oldest(ngx_idempotency_shm_t *shm, ngx_msec_t now,
    ngx_idempotency_figures_t *figures)
{
    ngx_idempotency_window_t  *window;

    figures->empty = 1;
    figures->oldest = 0;

    for (window = &shm->sh->window; window; window = window->next) {

        if (window != &shm->sh->left && !ngx_queue_empty(&window->records)) {
            figures_record(ngx_queue_data(ngx_queue_head(&window->records),
                                          ngx_idempotency_record_t,
                                          as.bound.expiry),
                           now, figures);
        }
    }

    if (!ngx_queue_empty(&shm->sh->pending)) {
        figures_record(ngx_queue_data(ngx_queue_head(&shm->sh->pending),
                                      ngx_idempotency_record_t, queue),
                       now, figures);
    }
}


static void
figures_record(ngx_idempotency_record_t *rec, ngx_msec_t now,
    ngx_idempotency_figures_t *figures)
{
    ngx_msec_int_t  age;

    age = (ngx_msec_int_t) (now - rec->recorded);
    age = ngx_max(age, 0);

    figures->empty = 0;
    figures->oldest = ngx_max(figures->oldest, (ngx_msec_t) age);
}


static void
figures_tier(ngx_idempotency_tier_t *tier, ngx_idempotency_figures_t *figures)
{
    ngx_idempotency_tier_sh_t  *sh;

    sh = &tier->shm->sh->tier;

    figures->up = !sh->failing && !sh->said;
    figures->undelivered = sh->listed - sh->told;
}


/* one that stands before another store is full by and by, as it may be */

void
ngx_idempotency_shm_warn(ngx_idempotency_shm_t *shm, ngx_uint_t percent)
{
    if (shm->tier) {
        return;
    }

    ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0,
                  "idempotency zone \"%V\" is full to %ui percent, %uz bytes "
                  "are free",
                  &shm->store->name, percent,
                  (size_t) shm->shpool->pfree * ngx_pagesize);
}
