
/* Keys that tell their own time: how long they bind, and when they don't. */


#include "zone.h"
#include "workers_double.h"


/* an old key opens nothing, and is answered as long as it is bound */

unit_case("an old key opens nothing")
{
    op_init(&op, 1, 1, 100);
    op.old = 1;
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_EXPIRED);
    check_equal(op_find(&zone, &op), NGX_IDEMPOTENCY_ABSENT);
    zone_check_empty(&zone);

    check_equal(op_claims(&op, 1, 1, 100), NGX_IDEMPOTENCY_CLAIMED);

    op_init(&other, 1, 1, 200);
    other.old = 1;
    check_equal(op_claim(&zone, &other), NGX_IDEMPOTENCY_BOUND);
    check_equal(other.outcome, NGX_IDEMPOTENCY_PENDING);

    op.outcome = NGX_IDEMPOTENCY_DONE;
    op_respond(&op, 10, 1);
    check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_OK);

    op_init(&other, 1, 1, 1099);
    other.old = 1;
    check_equal(op_claim(&zone, &other), NGX_IDEMPOTENCY_BOUND);
    check_equal(other.outcome, NGX_IDEMPOTENCY_DONE);
    check_equal(other.ends, 1100);

    op_init(&other, 1, 2, 1099);
    other.old = 1;
    check_equal(op_claim(&zone, &other), NGX_IDEMPOTENCY_CONFLICT);

    op_init(&other, 1, 1, 1100);
    other.old = 1;
    check_equal(op_claim(&zone, &other), NGX_IDEMPOTENCY_EXPIRED);

    /* too old goes before too many, and before a zone that is full */

    op_init(&other, 1, 1, 1100);
    other.old = 1;
    other.quota = 1;
    zone_occupy(&zone, 0);
    check_equal(op_claim(&zone, &other), NGX_IDEMPOTENCY_EXPIRED);
    zone_vacate(&zone);

    /* a doubt is bound: whoever may retry takes it over, however late */

    check_equal(op_claims(&op, 1, 1, 2000), NGX_IDEMPOTENCY_CLAIMED);
    op.outcome = NGX_IDEMPOTENCY_IN_DOUBT;
    op_respond(&op, 0, 1);
    check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_OK);

    op_init(&other, 1, 1, 2100);
    other.old = 1;
    other.retry = 1;
    check_equal(op_claim(&zone, &other), NGX_IDEMPOTENCY_CLAIMED);

    /* released it is a doubt again; once it is settled it is fresh, and too
       old */

    check_equal(op_release(&zone, &other), NGX_IDEMPOTENCY_OK);
    check_equal(op_claim(&zone, &other), NGX_IDEMPOTENCY_CLAIMED);

    other.settled = 1;
    check_equal(op_release(&zone, &other), NGX_IDEMPOTENCY_OK);
    check_equal(op_claim(&zone, &other), NGX_IDEMPOTENCY_EXPIRED);
}


/* bound until the later of two ends, to the millisecond */

unit_case("bound until the later end")
{
    ngx_uint_t  i;
    ngx_msec_t  ends;

    static const struct {
        ngx_msec_t  window, least, takes;
    } keys[] = {
        { 100, 0, 0 }, { 100, 99, 0 }, { 100, 100, 0 }, { 100, 101, 0 },
        { 100, 5000, 0 }, { 100, 5000, 4899 }, { 100, 5000, 4900 },
        { 100, 5000, 4901 }, { 100, 5000, 6000 }, { 0, 1, 0 }, { 1, 0, 500 }
    };

    for (i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {

        op_init(&op, i, 1, 1000);
        op.window = keys[i].window;
        op.least = keys[i].least;
        op.span = 6000;
        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);

        op.now = 1000 + keys[i].takes;
        op.outcome = NGX_IDEMPOTENCY_NOT_KEPT;
        check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_OK);

        ends = ngx_max(1000 + keys[i].least, op.now + keys[i].window);
        check_equal(op.ends, ends);

        check_equal(op_finds(&op, i, 1, ends - 1), NGX_IDEMPOTENCY_BOUND);
        check_equal(op.ends, ends);

        check_equal(op_finds(&op, i, 1, ends), NGX_IDEMPOTENCY_ABSENT);
    }
}


/*
 * One that ends late keeps its place among its like, and so keeps none of the
 * others; and nothing is freed before its time.
 */

unit_case("nothing is freed early, or kept by another")
{
    ngx_uint_t  i;

    for (i = 0; i < 40; i++) {
        op_init(&op, i, 1, 1000);
        op.window = 100;
        op.span = (i % 2) ? 5000 : 0;
        op.least = (i % 2) ? (i * 719) % 5000 : 0;
        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
        op.outcome = NGX_IDEMPOTENCY_NOT_KEPT;
        check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_OK);
    }

    ngx_idempotency_record_expire(&zone.shm, 1099, 100);
    check_equal(zone_bound(&zone), 40);

    ngx_idempotency_record_expire(&zone.shm, 1100, 100);
    check(zone_bound(&zone) >= 19 && zone_bound(&zone) <= 20);

    for (i = 1; i < 40; i += 2) {
        op_init(&op, i, 1, 1000 + ngx_max(100, (i * 719) % 5000) - 1);
        check_equal(op_find(&zone, &op), NGX_IDEMPOTENCY_BOUND);
    }

    ngx_idempotency_record_expire(&zone.shm, 6000, 100);
    check_equal(zone_bound(&zone), 0);
}


/* taken over, it has the end of who took it over; in doubt, its own */

unit_case("the ends of a doubt")
{
    op_init(&op, 1, 1, 1000);
    op.window = 100;
    op.least = 500;
    op.span = 1000;
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
    double_renew(0);
    ngx_idempotency_shm_sweep(&zone.shm, 1200);

    check_equal(op_claims(&other, 1, 1, 1499), NGX_IDEMPOTENCY_BOUND);
    check_equal(other.outcome, NGX_IDEMPOTENCY_IN_DOUBT);
    check_equal(other.ends, 1500);

    /* its owner was not dead, and is heard late */

    op.now = 1450;
    op.outcome = NGX_IDEMPOTENCY_NOT_KEPT;
    check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_OK);
    check_equal(op.ends, 1550);
    zone_check(&zone);
    forget(1, 1450);

    op_init(&op, 1, 1, 2000);
    op.window = 100;
    op.least = 500;
    op.span = 1000;
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
    double_renew(0);
    ngx_idempotency_shm_sweep(&zone.shm, 2100);

    op_init(&other, 1, 1, 2200);
    other.window = 50;
    other.least = 700;
    other.span = 2000;
    other.retry = 1;
    check_equal(op_claim(&zone, &other), NGX_IDEMPOTENCY_CLAIMED);
    other.outcome = NGX_IDEMPOTENCY_NOT_KEPT;
    check_equal(op_complete(&zone, &other), NGX_IDEMPOTENCY_OK);
    check_equal(other.ends, 2900);
    zone_check(&zone);

    forget(1, 2200);
}
