
/*
 * How long things took, and how a zone's space is used: what can't be told by
 * a counter alone.  Time is an argument.
 */


#include "ngx_idempotency_stats.h"


/* of how much of a zone in use is warned, once; and from where on once more */

typedef struct {
    ngx_uint_t  percent;
    ngx_uint_t  again;
} stats_level_t;


static const stats_level_t  stats_levels[] = {
    { 95, 90 },
    { 80, 75 },
    { 0, 0 }
};


const ngx_msec_t
    ngx_idempotency_stats_bounds[NGX_IDEMPOTENCY_STATS_BOUNDS] = {
    1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000
};


const char  *ngx_idempotency_error_names[NGX_IDEMPOTENCY_ERRORS] = {
    "timeout", "connect", "refused", "protocol", "full", "other"
};


static void stats_note(ngx_idempotency_stats_t *stats, ngx_uint_t used,
    uint32_t at);
static ngx_idempotency_moment_t *stats_moment(ngx_idempotency_stats_t *stats,
    ngx_uint_t n);


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


/* called with each claim, as but for claims little changes */

ngx_uint_t
ngx_idempotency_stats_space(ngx_idempotency_stats_t *stats, ngx_uint_t pfree,
    ngx_msec_t now)
{
    ngx_uint_t  used, i;

    used = stats->pages - pfree;

    stats_note(stats, used, (uint32_t) (now / 1000));

    used *= 100;

    for (i = 0; stats_levels[i].percent; i++) {

        if (stats->warned < stats_levels[i].percent
            && used >= stats_levels[i].percent * stats->pages)
        {
            stats->warned = stats_levels[i].percent;
            return stats->warned;
        }

        if (stats->warned == stats_levels[i].percent
            && used < stats_levels[i].again * stats->pages)
        {
            stats->warned = stats_levels[i + 1].percent;
        }
    }

    return 0;
}


static void
stats_note(ngx_idempotency_stats_t *stats, ngx_uint_t used, uint32_t at)
{
    int32_t                    since;
    ngx_idempotency_moment_t  *moment;

    if (stats->noted) {
        moment = stats_moment(stats, stats->noted - 1);
        since = (int32_t) (at - moment->at);

        if (since < NGX_IDEMPOTENCY_STATS_APART) {
            return;
        }

        if (since > 2 * NGX_IDEMPOTENCY_STATS_APART) {

            /* what is new since came before the silence, not with its end */

            since = moment->at + NGX_IDEMPOTENCY_STATS_APART;

            moment = stats_moment(stats, stats->noted++);
            moment->at = since;
            moment->used = (uint32_t) used;
        }
    }

    moment = stats_moment(stats, stats->noted++);
    moment->at = at;
    moment->used = (uint32_t) used;
}


static ngx_idempotency_moment_t *
stats_moment(ngx_idempotency_stats_t *stats, ngx_uint_t n)
{
    return &stats->moments[n % NGX_IDEMPOTENCY_STATS_MOMENTS];
}


/* by what has changed within the last hour, if it is at least a minute */

void
ngx_idempotency_stats_trend(ngx_idempotency_stats_t *stats, ngx_uint_t pfree,
    ngx_msec_t now, ngx_idempotency_figures_t *figures)
{
    int64_t                    grown;
    uint32_t                   at, since;
    ngx_uint_t                 n, first;
    ngx_idempotency_moment_t  *moment, *next;

    at = (uint32_t) (now / 1000);

    figures->known = 0;
    figures->full_in = -1;

    if (stats->noted == 0) {
        return;
    }

    first = (stats->noted > NGX_IDEMPOTENCY_STATS_MOMENTS)
                ? stats->noted - NGX_IDEMPOTENCY_STATS_MOMENTS : 0;

    moment = stats_moment(stats, first);

    for (n = first + 1; n < stats->noted; n++) {
        next = stats_moment(stats, n);

        /* the last one that is an hour old tells how it was an hour ago */

        if ((int32_t) (at - next->at) < 3600) {
            break;
        }

        moment = next;
    }

    since = at - moment->at;

    if ((int32_t) since < NGX_IDEMPOTENCY_STATS_APART) {
        return;
    }

    since = ngx_min(since, 3600);

    grown = (int64_t) (stats->pages - pfree) - (int64_t) moment->used;

    figures->known = 1;
    figures->growth = grown * (int64_t) ngx_pagesize * 3600 / since;

    if (grown > 0) {
        figures->full_in = (int64_t) pfree * since / grown;
    }
}
