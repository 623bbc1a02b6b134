
/*
 * How long operations took, how the space of a zone is used, and when it will
 * be full.
 */


#include "ngx_idempotency_stats.h"


const ngx_msec_t
    ngx_idempotency_stats_bounds[NGX_IDEMPOTENCY_STATS_BOUNDS] = {
    1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000
};


const char  *ngx_idempotency_error_names[NGX_IDEMPOTENCY_ERRORS] = {
    "timeout", "connect", "refused", "protocol", "full", "other"
};


static void stats_note(ngx_idempotency_stats_t *stats, ngx_uint_t used,
    uint32_t at);


void
ngx_idempotency_stats_time(ngx_idempotency_times_t *times, ngx_msec_t ms)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_IDEMPOTENCY_STATS_BOUNDS; i++) {
        if (ms <= ngx_idempotency_stats_bounds[i]) {
            break;
        }
    }

    ngx_idempotency_stats_add(times->buckets[i], 1);
    ngx_idempotency_stats_add(times->sum, ms);
}


/* Called with each claim, as little changes without claims.  The log is warned
   once of 80 and of 95 percent, and again only after a fall by 5. */

ngx_uint_t
ngx_idempotency_stats_space(ngx_idempotency_stats_t *stats, ngx_uint_t pfree,
    ngx_msec_t now)
{
    ngx_uint_t  used, level;

    used = stats->pages - pfree;

    stats_note(stats, used, (uint32_t) (now / 1000));

    used *= 100;

    if (stats->warned == 95 && used < 90 * stats->pages) {
        stats->warned = 80;
    }

    if (stats->warned == 80 && used < 75 * stats->pages) {
        stats->warned = 0;
    }

    level = (used >= 95 * stats->pages) ? 95
            : (used >= 80 * stats->pages) ? 80 : 0;

    if (level <= stats->warned) {
        return 0;
    }

    stats->warned = level;

    return level;
}


/* each minute since the last note has this figure */

static void
stats_note(ngx_idempotency_stats_t *stats, ngx_uint_t used, uint32_t at)
{
    int32_t     since;
    ngx_uint_t  n;

    if (stats->noted == 0) {
        stats->began = at;
    }

    since = (int32_t) (at - stats->began);
    n = ngx_max(since, 0) / 60;

    if (n >= stats->noted + NGX_IDEMPOTENCY_STATS_MINUTES) {
        stats->noted = n - NGX_IDEMPOTENCY_STATS_MINUTES + 1;
    }

    while (stats->noted <= n) {
        stats->used[stats->noted++ % NGX_IDEMPOTENCY_STATS_MINUTES] = used;
    }
}


/* the trend of the last hour, if at least a minute is known */

void
ngx_idempotency_stats_trend(ngx_idempotency_stats_t *stats, ngx_uint_t pfree,
    ngx_msec_t now, ngx_idempotency_figures_t *figures)
{
    int32_t     since;
    int64_t     grown;
    ngx_uint_t  n;

    figures->known = 0;
    figures->full_in = -1;

    since = (int32_t) ((uint32_t) (now / 1000) - stats->began);

    if (stats->noted == 0 || since < 60) {
        return;
    }

    n = (since > 3600) ? since / 60 - 60 : 0;
    n = ngx_min(n, stats->noted - 1);
    since = ngx_min(since - 60 * (int32_t) n, 3600);

    grown = (int64_t) (stats->pages - pfree)
            - stats->used[n % NGX_IDEMPOTENCY_STATS_MINUTES];

    figures->known = 1;
    figures->growth = grown * (int64_t) ngx_pagesize * 3600 / since;

    if (grown > 0) {
        figures->full_in = (int64_t) pfree * since / grown;
    }
}
