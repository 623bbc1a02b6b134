
/* So many tokens for a value, and no more: counted wherever they come or go. */


#include "zone.h"
#include "workers_double.h"


static void
counted(op_t *op, ngx_uint_t token, ngx_uint_t value,
    ngx_uint_t quota, ngx_msec_t now)
{
    op_init(op, token, 1, now);
    op->quota = quota;
    op_token(op->value, 9000 + value);
}


static ngx_uint_t
claim(ngx_uint_t token, ngx_uint_t value, ngx_uint_t quota, ngx_msec_t now)
{
    op_t  op;

    counted(&op, token, value, quota, now);

    return op_claim(&zone, &op);
}


static void
keep(ngx_uint_t token, ngx_uint_t value, ngx_uint_t quota, ngx_msec_t now,
    ngx_msec_t window)
{
    op_t  op;

    counted(&op, token, value, quota, now);
    op.window = window;
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);

    op.outcome = NGX_IDEMPOTENCY_DONE;
    op.status = 200;
    op_respond(&op, 10, 1);
    check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_OK);
}


unit_case("so many for a value, and no more")
{
    ngx_uint_t  i;

    for (i = 0; i < 5; i++) {
        keep(i, 1, 5, 100 + i, 1000);
    }

    counted(&op, 9, 1, 5, 200);
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_LIMITED);
    check_equal(op.ends, 1100);
    check_equal(op_find(&zone, &op), NGX_IDEMPOTENCY_ABSENT);
    zone_check(&zone);

    /* repeats are answered, conflicts told, and others not concerned */

    for (i = 0; i < 5; i++) {
        check_equal(claim(i, 1, 5, 200), NGX_IDEMPOTENCY_BOUND);
    }

    counted(&op, 0, 1, 5, 200);
    op.fingerprint[0] ^= 1;
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CONFLICT);

    keep(10, 2, 1, 200, 1000);
    check_equal(claim(11, 2, 1, 200), NGX_IDEMPOTENCY_LIMITED);

    /* places with another number share the count, those with none don't */

    keep(12, 1, 6, 200, 1000);
    check_equal(claim(13, 1, 6, 200), NGX_IDEMPOTENCY_LIMITED);
    check_equal(claim(13, 1, 2, 200), NGX_IDEMPOTENCY_LIMITED);
    keep(14, 1, 0, 200, 1000);
    check_equal(claim(13, 1, 7, 200), NGX_IDEMPOTENCY_CLAIMED);
    forget(13, 200);

    /* whatever they are asked with later */

    forget(14, 200);
    check_equal(claim(13, 1, 6, 200), NGX_IDEMPOTENCY_LIMITED);

    for (i = 0; i < 5; i++) {
        forget(i, 200);
    }

    forget(10, 200);
    forget(12, 200);
}


/* a place is free again in the very millisecond, however a token goes */

unit_case("a place is free again however its token goes")
{
    keep(1, 1, 1, 100, 50);
    check_equal(claim(2, 1, 1, 149), NGX_IDEMPOTENCY_LIMITED);
    check_equal(claim(2, 1, 1, 150), NGX_IDEMPOTENCY_CLAIMED);

    /* pending */

    counted(&op, 3, 1, 1, 150);
    op.window = 77;
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_LIMITED);
    check_equal(op.ends, 227);

    forget(2, 150);

    /* released */

    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
    check_equal(claim(4, 1, 1, 150), NGX_IDEMPOTENCY_LIMITED);
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);

    /* released, its response left to who waits */

    counted(&op, 5, 1, 1, 150);
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);

    counted(&other, 5, 1, 1, 150);
    other.wait = 1;
    check_equal(op_claim(&zone, &other), NGX_IDEMPOTENCY_BOUND);
    check_equal(other.waiting, 1);
    op_cancel(&zone, &other);

    op.leave = 1;
    op_respond(&op, 100, 5);
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
    double_nwakes = 0;
    zone_check(&zone);

    /* in doubt: it counts, and whoever takes it over has no second place */

    counted(&op, 6, 1, 1, 160);
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
    double_renew(0);
    ngx_idempotency_shm_sweep(&zone.shm, 160);
    zone_check(&zone);

    check_equal(claim(7, 1, 1, 160), NGX_IDEMPOTENCY_LIMITED);

    op.retry = 1;
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
    zone_check(&zone);
    check_equal(claim(7, 1, 1, 160), NGX_IDEMPOTENCY_LIMITED);
    check_equal(claim(7, 1, 2, 160), NGX_IDEMPOTENCY_CLAIMED);

    /* taken for dead, and heard after all */

    double_renew(0);
    ngx_idempotency_shm_sweep(&zone.shm, 170);

    op.now = 180;
    op.outcome = NGX_IDEMPOTENCY_DONE;
    check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_OK);
    zone_check(&zone);

    forget(6, 180);
    check_equal(claim(8, 1, 1, 180), NGX_IDEMPOTENCY_LIMITED);
    forget(7, 180);
    check_equal(claim(8, 1, 1, 180), NGX_IDEMPOTENCY_CLAIMED);
    forget(8, 180);

    ngx_idempotency_record_expire(&zone.shm, 180 + NGX_IDEMPOTENCY_SHM_LEFTOVER,
                                  10);
}


/* what ended long ago does not count, be it more than is freed at once */

unit_case("what ended does not count")
{
    ngx_uint_t  i;

    for (i = 0; i < 500; i++) {
        keep(i, 1, 500, 100, 50);
    }

    check_equal(claim(1000, 1, 500, 149), NGX_IDEMPOTENCY_LIMITED);
    check_equal(claim(1000, 1, 1, 150), NGX_IDEMPOTENCY_CLAIMED);
    check_equal(zone_bound(&zone), 0);
    forget(1000, 150);

    /* keys with a time of their own end in any order, before their span */

    for (i = 0; i < 3; i++) {
        counted(&op, i, 1, 3, 200);
        op.window = 10;
        op.span = 1000;
        op.least = i == 0 ? 900 : 20 * i;
        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
        op.outcome = NGX_IDEMPOTENCY_NOT_KEPT;
        check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_OK);
    }

    check_equal(claim(9, 1, 3, 219), NGX_IDEMPOTENCY_LIMITED);
    check_equal(claim(9, 1, 3, 220), NGX_IDEMPOTENCY_CLAIMED);
    forget(9, 220);
    check_equal(claim(9, 1, 2, 239), NGX_IDEMPOTENCY_LIMITED);
    check_equal(claim(9, 1, 2, 240), NGX_IDEMPOTENCY_CLAIMED);
    forget(9, 240);
    check_equal(claim(9, 1, 1, 1099), NGX_IDEMPOTENCY_LIMITED);
    check_equal(claim(9, 1, 1, 1100), NGX_IDEMPOTENCY_CLAIMED);
    forget(9, 1100);
}


/* ... but only those of the value are looked at, and not many at once */

bare_case("... which is found out in small steps")
{
    ngx_uint_t  i, n, turns, most;

    double_reset();
    zone_open(&zone, 16 * 1024 * 1024, 0);

    for (i = 0; i < 10000; i++) {
        keep(i, i < 3 ? 1 : i < 5000 ? 2 : 3, 10000, 100, 50);
    }

    /* one of three makes room, however many of others there are */

    zone_freed = 0;
    check_equal(claim(20000, 1, 3, 150), NGX_IDEMPOTENCY_CLAIMED);
    check(zone_freed < 10);

    /* thousands of its own, which the next turns go on with */

    for (n = 2; n < 4; n++) {
        counted(&op, 20000 + n, n, 1, 150);
        most = 0;
        zone_freed = 0;

        op_start(&zone, &op);

        for (turns = 0; op.waiting && check(turns < 1000); turns++) {
            most = ngx_max(most, zone_freed);
            zone_freed = 0;
            check(zone_pass(&zone));
        }

        check_equal(op.result, NGX_IDEMPOTENCY_CLAIMED);
        check(turns > 5);
        check(ngx_max(most, zone_freed) <= 300);
    }

    check_equal(zone_bound(&zone), 2);
    check_equal(claim(20001, 1, 1, 150), NGX_IDEMPOTENCY_LIMITED);

    forget(20000, 150);
    forget(20002, 150);
    forget(20003, 150);

    ngx_idempotency_record_expire(&zone.shm, 150, 10);
    unit_teardown();
}


/* in whatever order they end, and however many last longer */

unit_case("... in whatever order they end")
{
    ngx_uint_t  i, n;
    ngx_msec_t  now;

    n = 600;

    for (i = 0; i < n; i++) {
        counted(&op, i, 1, 0, 100);
        op.quota = n;
        op.window = (i % 3) ? 10 : 20;
        op.span = 10000;
        op.least = 100 + (i * 37) % n;
        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
        op.outcome = NGX_IDEMPOTENCY_NOT_KEPT;
        check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_OK);
    }

    /* one ends in each millisecond */

    for (now = 200; now < 200 + n; now++) {
        counted(&op, 1000 + now, 1, n, now - 1);
        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_LIMITED);
        check_equal(op.ends, now);

        op.now = now;
        op.window = 10000;
        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
        op.outcome = NGX_IDEMPOTENCY_NOT_KEPT;
        check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_OK);
    }

    check_equal(zone_bound(&zone), n);
    check_equal(claim(5000, 1, n, now), NGX_IDEMPOTENCY_LIMITED);

    for (now = 200; now < 200 + n; now++) {
        forget(1000 + now, now);
    }
}


/* each byte of a value counts, and any number of them is found again */

unit_case("values are told apart")
{
    ngx_uint_t  i, n;

    for (i = 0; i < NGX_IDEMPOTENCY_DIGEST_LEN; i++) {
        counted(&op, i, 1, 1, 100);
        op.value[i] ^= 0x10;
        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);

        counted(&op, 100, 1, 1, 100);
        op.value[i] ^= 0x10;
        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_LIMITED);
    }

    for (i = 0; i < NGX_IDEMPOTENCY_DIGEST_LEN; i++) {
        forget(i, 100);
    }

    for (n = 0; n < 3; n++) {

        for (i = 0; i < 500; i++) {
            keep(i, i, 1, 100, 50 + i % 7);
        }

        for (i = 0; i < 500; i++) {
            check_equal(claim(1000, (i * 37) % 500, 1, 149),
                        NGX_IDEMPOTENCY_LIMITED);
        }

        zone_check(&zone);

        for (i = 0; i < 500; i++) {
            forget((i * (2 * n + 7)) % 500, 100);
        }

        zone_check_empty(&zone);
    }
}


/* one that takes all it may leaves the rest to others */

unit_case("one client does not fill a zone for all")
{
    void       *slots[64];
    ngx_uint_t  i, n, full;

    for (i = 0; claim(i, 1, 200, 100) == NGX_IDEMPOTENCY_CLAIMED; i++) {
        /* void */
    }

    check_equal(i, 200);
    check_equal(claim(1000, 2, 200, 100), NGX_IDEMPOTENCY_CLAIMED);
    check_equal(claim(1001, 1, 0, 100), NGX_IDEMPOTENCY_CLAIMED);

    forget(1000, 100);
    forget(1001, 100);

    /* no memory for a record, or for a count: nothing is left of either */

    for (n = 0; n < 3; n++) {

        zone_occupy(&zone, 3 + n);

        for (full = 0; full < 2000; full++) {
            counted(&op, 2000 + full, 10 + full, 1, 100);

            if (op_claim(&zone, &op) != NGX_IDEMPOTENCY_CLAIMED) {
                break;
            }

            zone_check(&zone);
        }

        check_equal(op.result, NGX_IDEMPOTENCY_UNAVAILABLE);
        check_equal(op_find(&zone, &op), NGX_IDEMPOTENCY_ABSENT);

        /* over its quota: told so, and not that there is no room */

        check_equal(claim(1000, 1, 200, 100), NGX_IDEMPOTENCY_LIMITED);

        while (full) {
            forget(2000 + --full, 100);
        }

        zone_vacate(&zone);
        zone_check(&zone);
    }

    for (i = 0; i < 200; i++) {
        forget(i, 100);
    }

    unit_teardown();

    /* in a small zone the last page may be the record's */

    zone_open(&zone, 16 * 4096, 0);
    zone_occupy(&zone, 0);

    for (n = 0; n < 64; n++) {
        slots[n] = ngx_slab_alloc_locked(zone.shm.shpool,
                                         sizeof(ngx_idempotency_record_t));
        if (slots[n] == NULL) {
            slots[n] = ngx_slab_alloc_locked(zone.shm.shpool,
                                             sizeof(ngx_idempotency_quota_t));
        }

        if (slots[n] == NULL) {
            break;
        }
    }

    zone_vacate(&zone);
    zone_occupy(&zone, 1);

    counted(&op, 1, 1, 1, 100);
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_UNAVAILABLE);

    while (n) {
        ngx_slab_free_locked(zone.shm.shpool, slots[--n]);
    }

    zone_vacate(&zone);
}
