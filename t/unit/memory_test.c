
/* A full zone: what is refused, trimmed, or may go, and what comes back. */


#include "zone.h"
#include "workers_double.h"


#define PAGE  ngx_pagesize


static void
open_zone(size_t size, ngx_uint_t evict)
{
    double_reset();
    zone_open(&zone, size, evict);
}


static void
close_empty(void)
{
    zone_check_empty(&zone);
    zone_close(&zone);
}


/* tokens alone, until there is no room for one more */

unit_case("claims fill a zone, and their outcomes still fit")
{
    size_t      slot;
    ngx_uint_t  i, n;

    static op_t  ops[20000];

    open_zone(64 * PAGE, 0);

    for (n = 0; n < 20000; n++) {
        op_init(&ops[n], n, 1, 100);

        if (op_claim(&zone, &ops[n]) != NGX_IDEMPOTENCY_CLAIMED) {
            break;
        }
    }

    /* with a reserve of nothing, but for a page of its header and its own */

    check_equal(ops[n].result, NGX_IDEMPOTENCY_UNAVAILABLE);
    check_equal(zone.shm.shpool->pfree, 1);

    for (slot = 8; slot < sizeof(ngx_idempotency_record_t); slot *= 2) {
        /* void */
    }

    check(n >= (zone.pfree - 2) * (PAGE / slot));

    check_equal(double_workers[0].owned, n);
    zone_check(&zone);

    /* those that are known are told as ever, and nothing is lost */

    for (i = 0; i < n; i++) {
        check_equal(op_claims(&op, i, i % 2, 100),
                    i % 2 ? NGX_IDEMPOTENCY_BOUND : NGX_IDEMPOTENCY_CONFLICT);
        check_equal(op.outcome, NGX_IDEMPOTENCY_PENDING);
    }

    /* the outcome always fits, the response only while there is room */

    for (i = 0; i < n; i++) {
        ops[i].outcome = i % 2 ? NGX_IDEMPOTENCY_DONE
                               : NGX_IDEMPOTENCY_IN_DOUBT;
        ops[i].status = 200;
        op_respond(&ops[i], 3 * PAGE, i);
        check_equal(op_complete(&zone, &ops[i]), NGX_IDEMPOTENCY_TRIMMED);

        if (i % 1000 == 0) {
            ngx_reset_pool(unit_pool);
        }
    }

    zone_check(&zone);
    check_equal(zone_size(&zone.shm.sh->kept), 0);
    check_equal(zone.shm.shpool->pfree, 1);

    for (i = 0; i < n; i++) {
        check_equal(op_claims(&op, i, 1, 100), NGX_IDEMPOTENCY_BOUND);
        check_equal(op.outcome, i % 2 ? NGX_IDEMPOTENCY_NOT_KEPT
                                      : NGX_IDEMPOTENCY_IN_DOUBT);
        check_equal(op.status, 200);
        check(op.response.data == NULL);
    }

    /* until the time comes: then one claim makes the room that it needs */

    check_equal(op_claims(&op, n, 1, 1099), NGX_IDEMPOTENCY_UNAVAILABLE);
    check_equal(zone_bound(&zone), n);

    check_equal(op_claims(&op, n, 1, 1100), NGX_IDEMPOTENCY_CLAIMED);
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
    check(zone_bound(&zone) < n);

    for (i = 0; i < n; i++) {
        check_equal(op_finds(&op, i, 1, 1100), NGX_IDEMPOTENCY_ABSENT);
    }

    close_empty();
}


/* what is claimed can be kept: a reserve is asked for, if not set aside */

unit_case("a reserve must fit, up to an eighth of the zone")
{
    size_t      size;
    ngx_uint_t  n, i, limit;

    open_zone(256 * PAGE, 0);

    size = 10 * (PAGE - offsetof(ngx_idempotency_chunk_t, data));
    limit = (zone.shm.shpool->end - zone.shm.shpool->start) / PAGE / 8;

    for (n = 0; n < 1000; n++) {
        op_init(&op, n, 1, 100);
        op.reserve = size;

        if (op_claim(&zone, &op) != NGX_IDEMPOTENCY_CLAIMED) {
            break;
        }

        check(zone.shm.shpool->pfree >= 10 + 1);

        op.outcome = NGX_IDEMPOTENCY_DONE;
        op_respond(&op, size, n);
        check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_OK);
    }

    check_equal(op.result, NGX_IDEMPOTENCY_UNAVAILABLE);
    check(zone.shm.shpool->pfree < 10 + 2);
    check(n >= zone.pfree / 10 - 2);

    /* a smaller one still fits */

    op_init(&op, n, 1, 100);
    op.reserve = 100;
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);

    for (i = 0; i < n; i++) {
        forget(i, 100);
    }

    zone_check_empty(&zone);

    /* one can't reserve more than its share, an eighth */

    zone_occupy(&zone, limit);
    op_init(&op, 0, 1, 100);
    op.reserve = 1024 * 1024 * 1024;
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
    zone_vacate(&zone);

    zone_occupy(&zone, limit - 1);
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_UNAVAILABLE);
    zone_vacate(&zone);

    close_empty();
}


/* eviction: the oldest first, no more than needed, and tokens stay bound */

unit_case("the oldest responses go first, their tokens stay")
{
    size_t      size;
    ngx_uint_t  i, n, gone;

    open_zone(128 * PAGE, 1);

    size = 5 * PAGE;

    /* of different windows, in an order of their own */

    for (n = 0; n < 200; n++) {
        op_init(&op, n, 1, 100 + n);
        op.window = (n % 3) ? 100000 : 50000;
        op.reserve = size;
        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);

        op.outcome = (n % 5) ? NGX_IDEMPOTENCY_DONE : NGX_IDEMPOTENCY_IN_DOUBT;
        op.status = 200;
        op_respond(&op, size, n);
        check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_OK);

        zone_check(&zone);
        ngx_reset_pool(unit_pool);
    }

    gone = 200 - zone_size(&zone.shm.sh->kept);
    check(gone > 100 && gone < 195);

    /* it was as full as it may be: one more would not have fit */

    check(zone.shm.shpool->pfree < 2 * (5 + 2) + 2);

    for (i = 0; i < 200; i++) {
        check_equal(op_claims(&op, i, 2, 400), NGX_IDEMPOTENCY_CONFLICT);

        check_equal(op_claims(&op, i, 1, 400), NGX_IDEMPOTENCY_BOUND);
        check_equal(op.status, 200);
        check_equal(op.outcome, i % 5 == 0 ? NGX_IDEMPOTENCY_IN_DOUBT
                                : i < gone ? NGX_IDEMPOTENCY_NOT_KEPT
                                           : NGX_IDEMPOTENCY_DONE);

        op_responded(&op, i < gone ? 0 : size, i);
        ngx_reset_pool(unit_pool);
    }

    /* expired ones go before kept ones */

    n = zone_size(&zone.shm.sh->kept);
    zone_occupy(&zone, 0);

    op_init(&op, 1000, 1, 100 + 200 + 50000);
    op.reserve = 10;
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
    check(zone_size(&zone.shm.sh->kept) >= n - n / 3 - 1);
    zone_vacate(&zone);

    for (i = 0; i < 200; i++) {
        if (i % 3) {
            forget(i, 100);

        } else {
            check_equal(op_finds(&op, i, 1, 100 + 200 + 50000),
                        NGX_IDEMPOTENCY_ABSENT);
        }
    }

    close_empty();
}


/* an owner that completes may need room too */

unit_case("completing evicts")
{
    op_t        late;
    ngx_uint_t  i;

    open_zone(128 * PAGE, 1);

    check_equal(op_claims(&late, 1000, 1, 100), NGX_IDEMPOTENCY_CLAIMED);

    for (i = 0; zone.shm.shpool->pfree > 10; i++) {
        check_equal(op_bind(&zone, i, 1, 100, 1000, 8000),
                    NGX_IDEMPOTENCY_OK);
    }

    late.outcome = NGX_IDEMPOTENCY_DONE;
    op_respond(&late, 60 * PAGE, 7);
    check_equal(op_complete(&zone, &late), NGX_IDEMPOTENCY_OK);
    zone_check(&zone);

    check_equal(op_claims(&op, 1000, 1, 100), NGX_IDEMPOTENCY_BOUND);
    op_responded(&op, 60 * PAGE, 7);

    /* even its own size may be too much: then it goes, behind all others */

    check_equal(op_claims(&late, 1001, 1, 100), NGX_IDEMPOTENCY_CLAIMED);
    late.outcome = NGX_IDEMPOTENCY_DONE;
    op_respond(&late, 200 * PAGE, 7);
    check_equal(op_complete(&zone, &late), NGX_IDEMPOTENCY_TRIMMED);
    check_equal(zone_size(&zone.shm.sh->kept), 0);
    zone_check(&zone);

    forget(1000, 100);
    forget(1001, 100);

    while (i--) {
        forget(i, 100);
    }

    close_empty();
}


unit_case("without eviction nothing kept goes")
{
    op_t        late;
    ngx_uint_t  i, n;

    open_zone(128 * PAGE, 0);

    check_equal(op_claims(&late, 1000, 1, 100), NGX_IDEMPOTENCY_CLAIMED);

    for (n = 0; n < 1000; n++) {
        if (op_bind(&zone, n, 1, 100, 1000, 100 + 300 * (n % 20))
            != NGX_IDEMPOTENCY_OK)
        {
            break;
        }
    }

    late.outcome = NGX_IDEMPOTENCY_DONE;
    op_respond(&late, 10 * PAGE, 7);
    check_equal(op_complete(&zone, &late), NGX_IDEMPOTENCY_TRIMMED);

    for (i = 0; i < 10; i++) {
        op_init(&op, 2000 + i, 1, 100);
        op.reserve = PAGE;
        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_UNAVAILABLE);
    }

    zone_check(&zone);

    for (i = 0; i < n; i++) {
        check_equal(op_claims(&op, i, 1, 1099), NGX_IDEMPOTENCY_BOUND);
        check_equal(op.outcome, NGX_IDEMPOTENCY_DONE);
        op_responded(&op, 100 + 300 * (i % 20), i);
        forget(i, 100);
        ngx_reset_pool(unit_pool);
    }

    /* the one that met the full zone was bound, or not claimed at all */

    op_init(&op, n, 1, 100);

    if (op_find(&zone, &op) == NGX_IDEMPOTENCY_BOUND) {
        check_equal(op.outcome, NGX_IDEMPOTENCY_NOT_KEPT);
        forget(n, 100);
    }

    forget(1000, 100);
    close_empty();
}


/* a retry that finds no room for a new window loses nothing */

unit_case("a retry in a full zone loses nothing")
{
    ngx_uint_t  i, n;

    open_zone(64 * PAGE, 0);

    check_equal(op_claims(&op, 0, 1, 100), NGX_IDEMPOTENCY_CLAIMED);
    op.outcome = NGX_IDEMPOTENCY_IN_DOUBT;
    op.status = 502;
    op_respond(&op, 100, 1);
    check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_OK);

    /* every page, and whatever is left in those of small slots */

    zone_occupy(&zone, 0);

    for (n = 0; ngx_slab_alloc_locked(zone.shm.shpool,
                                      sizeof(ngx_idempotency_window_t));
         n++)
    { /* void */ }

    check(n < 200);

    op_init(&op, 0, 1, 100);
    op.window = 123456;
    op.retry = 1;
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_UNAVAILABLE);

    check_equal(op_claims(&op, 0, 1, 100), NGX_IDEMPOTENCY_BOUND);
    check_equal(op.outcome, NGX_IDEMPOTENCY_IN_DOUBT);
    check_equal(op.status, 502);
    op_responded(&op, 100, 1);

    /* nor is it claimed if its response would not fit */

    op_init(&op, 0, 1, 100);
    op.retry = 1;
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_UNAVAILABLE);

    zone_vacate(&zone);

    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
    op.settled = 1;
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);

    for (i = 0; i <= zone.shm.sh->mask; i++) {
        check(zone.shm.sh->buckets[i] == &zone.shm.sh->sentinel);
    }

    unit_unshared(zone.zone.shm.addr, zone.zone.shm.size);
}


static void
claim_it(zone_t *z)
{
    op_t  op;

    op_init(&op, 9999, 1, 1100);
    check_equal(op_claim(z, &op), NGX_IDEMPOTENCY_CLAIMED);
}


static void
look(zone_t *z)
{
    check_equal(z->shm.sh->inside, 0);
    zone_check(z);
}


/* much room is made in steps, so that nobody waits long; all may change then */

unit_case("much room is made in steps")
{
    ngx_uint_t  n, round;

    for (round = 0; round < 2; round++) {

        open_zone(1024 * PAGE, 0);

        for (n = 0; op_bind(&zone, n, 1, 100, 1000, 0) == NGX_IDEMPOTENCY_OK;
             n++)
        { /* void */ }

        check(zone.shm.shpool->pfree < 2);

        op_init(&op, 9999, 1, 1100);
        op.reserve = 90 * PAGE;
        zone_between(1, round ? claim_it : look, &zone);

        if (round) {

            /* here it is claimed by another, which needs less */

            check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_BOUND);
            check_equal(op.outcome, NGX_IDEMPOTENCY_PENDING);

        } else {
            check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
            check(zone.shm.shpool->pfree >= 90);
        }

        check_equal(zone_between_due(), 0);

        /* no more than needed was freed */

        check(zone_bound(&zone) > n / 2);

        forget(9999, 100);

        while (n--) {
            check_equal(op_finds(&op, n, 1, 1100), NGX_IDEMPOTENCY_ABSENT);
        }

        close_empty();
    }
}


/* a claim that needs much room has others served while it is made */

unit_case("... between which others are served")
{
    ngx_uint_t  n, turns, most;

    open_zone(4096 * PAGE, 0);

    for (n = 0; op_bind(&zone, n, 1, 100, 1000, 0) == NGX_IDEMPOTENCY_OK; n++) {
        /* void */
    }

    op_init(&op, 999999, 1, 1100);
    op.reserve = 500 * PAGE;

    op_start(&zone, &op);
    most = 0;

    for (turns = 0; op.waiting && check(turns < 1000); turns++) {
        zone_freed = 0;
        check(zone_pass(&zone));
        most = ngx_max(most, zone_freed);
    }

    check_equal(op.result, NGX_IDEMPOTENCY_CLAIMED);
    check(turns > 3);
    check(most <= 1000);

    op.now = 1101;
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);

    while (ngx_idempotency_record_expire(&zone.shm, 1101, 1000)) {
        /* void */
    }

    close_empty();
}


/* one that nobody waits for any more makes no room */

unit_case("... as long as somebody wants it")
{
    op_t        third;
    ngx_uint_t  n;

    open_zone(4096 * PAGE, 0);

    for (n = 0; op_bind(&zone, n, 1, 100, 1000, 0) == NGX_IDEMPOTENCY_OK; n++) {
        /* void */
    }

    op_init(&op, 999998, 1, 1100);
    op.reserve = 500 * PAGE;
    op_start(&zone, &op);
    check_equal(op.waiting, 1);

    op_init(&other, 999999, 1, 1100);
    other.reserve = 500 * PAGE;
    op_start(&zone, &other);
    check_equal(other.waiting, 1);

    op_init(&third, 999997, 1, 1100);
    third.reserve = 500 * PAGE;
    op_start(&zone, &third);
    check_equal(third.waiting, 1);

    op_cancel(&zone, &op);

    while ((other.waiting || third.waiting) && check(zone_pass(&zone))) {
        /* void */
    }

    check_equal(other.result, NGX_IDEMPOTENCY_CLAIMED);
    check_equal(third.result, NGX_IDEMPOTENCY_CLAIMED);
    check_equal(zone_pass(&zone), 0);
    check_equal(op_find(&zone, &op), NGX_IDEMPOTENCY_ABSENT);

    check_equal(op_release(&zone, &other), NGX_IDEMPOTENCY_OK);
    check_equal(op_release(&zone, &third), NGX_IDEMPOTENCY_OK);

    while (ngx_idempotency_record_expire(&zone.shm, 1101, 1000)) {
        /* void */
    }

    close_empty();
}


/* from the smallest zone that there can be on, all that fits comes back */

unit_case("zones of all sizes give everything back")
{
    size_t      size;
    ngx_uint_t  i, n, round;

    for (size = 8 * PAGE; size <= 40 * PAGE; size += PAGE) {

        open_zone(size, size / PAGE % 2);

        for (round = 0; round < 3; round++) {

            for (n = 0; n < 2000; n++) {
                if (op_bind(&zone, n, 1, 100, 1000, n * 97 % 6000)
                    != NGX_IDEMPOTENCY_OK)
                {
                    break;
                }
            }

            check(n > 0);
            zone_check(&zone);

            for (i = 0; i <= n; i++) {
                check_equal(op_finds(&op, i, 1, 1100), NGX_IDEMPOTENCY_ABSENT);
            }

            zone_check_empty(&zone);
            ngx_reset_pool(unit_pool);
        }

        zone_close(&zone);
    }
}


/* the smallest zone there can be is full as well, when it has no page left */

unit_case("the smallest zone can be full")
{
    open_zone(8 * PAGE, 0);
    check((size_t) (zone.shm.shpool->end - zone.shm.shpool->start)
          < 8 * PAGE);

    check_equal(op_claims(&op, 1, 1, 100), NGX_IDEMPOTENCY_CLAIMED);

    /* a slot for a record there would be */

    zone_occupy(&zone, 0);
    check_equal(op_claims(&other, 2, 1, 100), NGX_IDEMPOTENCY_UNAVAILABLE);

    zone_vacate(&zone);
    zone_occupy(&zone, 1);
    check_equal(op_claim(&zone, &other), NGX_IDEMPOTENCY_CLAIMED);
    zone_vacate(&zone);

    forget(1, 100);
    forget(2, 100);
    close_empty();
}


unit_case("what has expired goes first")
{
    ngx_uint_t  i;

    open_zone(256 * PAGE, 1);

    for (i = 0; i < 5; i++) {
        check_equal(op_bind(&zone, i, 1, 100, 1000, 5000),
                    NGX_IDEMPOTENCY_OK);
    }

    for (i = 5; i < 40; i++) {
        check_equal(op_bind(&zone, i, 1, 100, 10, 5000), NGX_IDEMPOTENCY_OK);
    }

    zone_occupy(&zone, 0);

    op_init(&op, 100, 1, 200);
    op.reserve = 20 * PAGE;
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
    check(zone_bound(&zone) < 40 - 3);
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);

    for (i = 0; i < 5; i++) {
        check_equal(op_claims(&op, i, 1, 200), NGX_IDEMPOTENCY_BOUND);
        check_equal(op.outcome, NGX_IDEMPOTENCY_DONE);
        check_equal(op.response.len, 5000);
    }

    zone_vacate(&zone);

    ngx_idempotency_record_expire(&zone.shm, 2000, 100);
    close_empty();
}
