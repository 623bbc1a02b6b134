
/* What a zone counts of itself: records, ends, space, and how that changes. */


#include "zone.h"
#include "workers_double.h"


#define PAGE    4096
#define MINUTE  60000
#define HOUR    3600000


static ngx_idempotency_figures_t  figures;


static void
open_zone(size_t pages, ngx_uint_t evict)
{
    double_reset();
    zone_open(&zone, pages * PAGE, evict);
    zone.shm.sh->stats.warned = 0;
}


static ngx_uint_t
ask(ngx_msec_t now)
{
    return zone.store.engine->figures(&zone.store, now, &figures) == NGX_OK;
}


static uint64_t
records(ngx_uint_t outcome)
{
    return figures.records[outcome];
}


unit_case("records are counted, and what became of them")
{
    op_t  pending, released;

    open_zone(64, 0);

    check(ask(0));
    check(figures.empty);
    check(figures.kind == NULL);
    check_equal(figures.size, 64 * PAGE);

    op_bind(&zone, 1, 1, 1000, 5000, 100);
    op_bind(&zone, 2, 2, 2000, 9000, 0);

    op_init(&pending, 3, 3, 2500);
    pending.window = 5000;
    check_equal(op_claim(&zone, &pending), NGX_IDEMPOTENCY_CLAIMED);

    op_init(&released, 4, 4, 2500);
    released.window = 5000;
    check_equal(op_claim(&zone, &released), NGX_IDEMPOTENCY_CLAIMED);
    check_equal(op_release(&zone, &released), NGX_IDEMPOTENCY_OK);

    check(ask(3000));
    check_equal(records(NGX_IDEMPOTENCY_PENDING), 1);
    check_equal(records(NGX_IDEMPOTENCY_DONE)
                + records(NGX_IDEMPOTENCY_NOT_KEPT), 2);
    check_equal(figures.oldest, 2000);
    check(!figures.empty);
    check_equal(figures.counters.released, 1);
    check_equal(figures.counters.in_doubt, 0);

    pending.outcome = NGX_IDEMPOTENCY_IN_DOUBT;
    pending.status = 504;
    pending.now = 3000;
    check_equal(op_complete(&zone, &pending), NGX_IDEMPOTENCY_OK);

    check(ask(3000));
    check_equal(records(NGX_IDEMPOTENCY_PENDING), 0);
    check_equal(records(NGX_IDEMPOTENCY_IN_DOUBT), 1);
    check_equal(figures.counters.in_doubt, 1);

    /* taken over, and by hand */

    op_init(&op, 3, 3, 3500);
    op.window = 5000;
    op.retry = 1;
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);

    check(ask(3500));
    check_equal(records(NGX_IDEMPOTENCY_PENDING), 1);
    check_equal(records(NGX_IDEMPOTENCY_IN_DOUBT), 0);
    check_equal(figures.counters.in_doubt, 1);

    check_equal(op_forget(&zone, &op), NGX_IDEMPOTENCY_OK);

    /* the figures themselves make those end that are over */

    check(ask(6001));
    check_equal(figures.counters.expired, 1);
    check_equal(figures.oldest, 4001);

    check(ask(20000));
    check_equal(figures.counters.expired, 2);
    check(figures.empty);

    zone_check_empty(&zone);
    zone_close(&zone);
}


/* more than ends at once do so by steps, and none is told as being there */

unit_case("what is over ends by steps")
{
    ngx_uint_t  i;

    open_zone(256, 0);

    for (i = 0; i < 700; i++) {
        op_bind(&zone, i + 1, 1, 1000, 5000, 0);
    }

    check(ask(1000));
    check_equal(records(NGX_IDEMPOTENCY_DONE)
                + records(NGX_IDEMPOTENCY_NOT_KEPT), 700);

    check(ask(6000));
    check_equal(figures.counters.expired, 700);
    check(figures.empty);

    zone_check_empty(&zone);
    zone_close(&zone);
}


unit_case("counters rise over the death of a process")
{
    uint64_t  released;

    open_zone(64, 0);

    op_init(&op, 1, 1, 1000);
    op.window = 5000;
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
    op_bind(&zone, 2, 1, 1000, 5000, 100);

    ngx_idempotency_stats_add(zone.store.counters->results[3], 7);

    check(ask(1000));
    released = figures.counters.released;

    zone.shm.sh->inside = 4711;

    check(!ask(1000));
    check(unit_logged("4711"));
    check_equal(figures.counters.results[3], 7);

    zone_reload(&zone, &zone);
    check_equal(zone_init_process(&zone), NGX_OK);
    check(unit_logged("was recreated"));

    check(ask(1000));
    check_equal(figures.counters.results[3], 7);
    check_equal(figures.counters.released, released);
    check_equal(records(NGX_IDEMPOTENCY_DONE), 0);

    zone_close(&zone);
}


unit_case("a zone that fills warns once at each level")
{
    ngx_uint_t                i;
    ngx_idempotency_stats_t  *stats;

    open_zone(64, 0);

    stats = &zone.shm.sh->stats;
    stats->pages = 100;

    for (i = 100; i > 20; i--) {
        check_equal(ngx_idempotency_stats_space(stats, i, 1000), 0);
    }

    check_equal(ngx_idempotency_stats_space(stats, 20, 1000), 80);

    for (i = 24; i > 5; i--) {
        check_equal(ngx_idempotency_stats_space(stats, i, 1000), 0);
    }

    check_equal(ngx_idempotency_stats_space(stats, 5, 1000), 95);
    check_equal(ngx_idempotency_stats_space(stats, 0, 1000), 0);

    /* once more only when it has fallen, by as much as it may sway */

    check_equal(ngx_idempotency_stats_space(stats, 9, 1000), 0);
    check_equal(ngx_idempotency_stats_space(stats, 0, 1000), 0);
    check_equal(ngx_idempotency_stats_space(stats, 11, 1000), 0);
    check_equal(ngx_idempotency_stats_space(stats, 20, 1000), 0);
    check_equal(ngx_idempotency_stats_space(stats, 5, 1000), 95);

    check_equal(ngx_idempotency_stats_space(stats, 99, 1000), 0);
    check_equal(ngx_idempotency_stats_space(stats, 5, 1000), 95);
    check_equal(ngx_idempotency_stats_space(stats, 99, 1000), 0);
    check_equal(ngx_idempotency_stats_space(stats, 19, 1000), 80);

    /* by those who fill it */

    stats->pages = zone.shm.shpool->pfree;
    stats->warned = 0;

    zone_occupy(&zone, 6);
    op_bind(&zone, 1, 1, 1000, 5000, 100);
    check(unit_logged("zone \"unit\" is full to 80 percent"));
    zone_vacate(&zone);

    zone_close(&zone);
}


/* of a hundred pages */

unit_case("an hour's trend")
{
    int                       i;
    ngx_msec_t                now;
    ngx_idempotency_stats_t  *stats;

    open_zone(64, 0);

    stats = &zone.shm.sh->stats;
    stats->pages = 1000;

    /* the clock is about to begin anew */

    now = (ngx_msec_t) 0xffffffff * 1000 - 30 * MINUTE;

    (void) ngx_idempotency_stats_space(stats, 990, now);
    ngx_idempotency_stats_trend(stats, 990, now, &figures);
    check(!figures.known);

    (void) ngx_idempotency_stats_space(stats, 980, now + MINUTE);
    ngx_idempotency_stats_trend(stats, 980, now + MINUTE, &figures);
    check(figures.known);
    check_equal(figures.growth, 10 * ngx_pagesize * 60);
    check_equal(figures.full_in, 980 * 6);

    /* a page each minute, for three hours */

    for (i = 2; i <= 180; i++) {
        (void) ngx_idempotency_stats_space(stats, 982 - i,
                                           now + i * MINUTE);
    }

    ngx_idempotency_stats_trend(stats, 802, now + 180 * MINUTE, &figures);
    check(figures.known);
    check(figures.growth >= 59 * (int64_t) ngx_pagesize);
    check(figures.growth <= 61 * (int64_t) ngx_pagesize);
    check(figures.full_in >= 802 * 59 && figures.full_in <= 802 * 61);

    /* silence: nothing grows, though what came last was not noted at once */

    now += 180 * MINUTE;

    (void) ngx_idempotency_stats_space(stats, 500, now + 1000);
    (void) ngx_idempotency_stats_space(stats, 500, now + 10 * HOUR);
    ngx_idempotency_stats_trend(stats, 500, now + 10 * HOUR, &figures);
    check(figures.known);
    check_equal(figures.growth, 0);
    check_equal(figures.full_in, -1);

    /* it falls */

    ngx_idempotency_stats_trend(stats, 600, now + 10 * HOUR + MINUTE,
                                &figures);
    check(figures.growth < 0);
    check_equal(figures.full_in, -1);

    zone_close(&zone);
}


unit_case("how long things took")
{
    uint64_t                 count;
    ngx_uint_t               i;
    ngx_idempotency_times_t  t;

    ngx_memzero(&t, sizeof(ngx_idempotency_times_t));

    ngx_idempotency_stats_time(&t, 0);
    ngx_idempotency_stats_time(&t, 1);
    ngx_idempotency_stats_time(&t, 2);
    ngx_idempotency_stats_time(&t, 10000);
    ngx_idempotency_stats_time(&t, 10001);
    ngx_idempotency_stats_time(&t, 999999);

    check_equal(t.buckets[0], 2);
    check_equal(t.buckets[1], 1);
    check_equal(t.buckets[NGX_IDEMPOTENCY_STATS_BOUNDS - 1], 1);
    check_equal(t.buckets[NGX_IDEMPOTENCY_STATS_BOUNDS], 2);
    check_equal(t.sum, 1020003);

    count = 0;

    for (i = 0; i <= NGX_IDEMPOTENCY_STATS_BOUNDS; i++) {
        count += t.buckets[i];
    }

    check_equal(count, 6);
}
