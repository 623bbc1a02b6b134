
/* An owner that says that it lives: its lease counts from then on. */


#include "zone.h"
#include "workers_double.h"


#define ZONE  (512 * 1024)


void
unit_setup(void)
{
    double_reset();
    zone_open(&zone, ZONE, 0);
}


void
unit_teardown(void)
{
    zone_check(&zone);
    zone_close(&zone);
}


/* by one that can't be asked any more */

static void
claim(op_t *op, ngx_msec_t now, ngx_msec_t lease)
{
    double_renew(3);
    double_become(3);

    op_init(op, 1, 1, now);
    op->lease = lease;
    check_equal(op_claim(&zone, op), NGX_IDEMPOTENCY_CLAIMED);

    double_workers[3].state = DOUBLE_SILENT;
}


static ngx_uint_t
renew(op_t *op, ngx_msec_t now, ngx_msec_t lease)
{
    ngx_uint_t  result;

    double_become(3);

    op->now = now;
    op->lease = lease;
    result = op_renew(&zone, op);

    double_become(4);

    return result;
}


/* what others find, and since when it is so */

static void
found(ngx_msec_t now, ngx_idempotency_outcome_e outcome, ngx_msec_t recorded)
{
    op_t  op;

    check_equal(op_claims(&op, 1, 1, now), NGX_IDEMPOTENCY_BOUND);
    check_equal(op.outcome, outcome);
    check_equal(op.recorded, recorded);

    zone_check(&zone);
}


unit_case("the lease counts anew")
{
    ngx_uint_t  i;

    static const struct {
        ngx_msec_t  at, lease;
    } renewals[] = {
        { 100, 500 }, { 599, 500 }, { 599, 1 }, { 300, 100 }, { 300, 10000 },
        { 101, 499 }
    };

    for (i = 0; i < sizeof(renewals) / sizeof(renewals[0]); i++) {

        claim(&op, 100, 500);
        check_equal(renew(&op, renewals[i].at, renewals[i].lease),
                    NGX_IDEMPOTENCY_OK);

        /* it was claimed when it was */

        found(renewals[i].at + renewals[i].lease - 1,
              NGX_IDEMPOTENCY_PENDING, 100);
        found(renewals[i].at + renewals[i].lease,
              NGX_IDEMPOTENCY_IN_DOUBT, renewals[i].at + renewals[i].lease);

        forget(1, renewals[i].at + renewals[i].lease);
    }

    /* again and again, for much longer than one lease, where time wraps */

    claim(&op, (ngx_msec_t) -2000, 500);

    for (i = 0; i < 20; i++) {
        check_equal(renew(&op, (ngx_msec_t) -2000 + i * 450, 500),
                    NGX_IDEMPOTENCY_OK);
        found((ngx_msec_t) -2000 + i * 450 + 499, NGX_IDEMPOTENCY_PENDING,
              (ngx_msec_t) -2000);
    }

    op.outcome = NGX_IDEMPOTENCY_DONE;
    check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_OK);
}


/* two clocks may differ by a moment */

unit_case("a renewal from before the claim")
{
    claim(&op, 100, 500);
    check_equal(renew(&op, 95, 500), NGX_IDEMPOTENCY_OK);

    found(599, NGX_IDEMPOTENCY_PENDING, 100);
    found(600, NGX_IDEMPOTENCY_IN_DOUBT, 600);
}


unit_case("only the owner renews, as long as it is one")
{
    op_init(&other, 1, 1, 100);
    other.fence = 1;
    check_equal(op_renew(&zone, &other), NGX_IDEMPOTENCY_ABSENT);

    claim(&op, 100, 500);

    other.fence = op.fence + 1;
    check_equal(renew(&other, 400, 5000), NGX_IDEMPOTENCY_STALE);
    found(599, NGX_IDEMPOTENCY_PENDING, 100);

    /* nobody took it over: it still is its own */

    found(600, NGX_IDEMPOTENCY_IN_DOUBT, 600);
    check_equal(renew(&op, 700, 500), NGX_IDEMPOTENCY_OK);
    found(1199, NGX_IDEMPOTENCY_PENDING, 700);

    /* now somebody did */

    op_init(&other, 1, 1, 1200);
    other.retry = 1;
    check_equal(op_claim(&zone, &other), NGX_IDEMPOTENCY_CLAIMED);
    check_equal(renew(&op, 1200, 500), NGX_IDEMPOTENCY_STALE);

    /* and it is done */

    other.outcome = NGX_IDEMPOTENCY_DONE;
    check_equal(op_complete(&zone, &other), NGX_IDEMPOTENCY_OK);
    check_equal(renew(&other, 1200, 500), NGX_IDEMPOTENCY_STALE);

    op_init(&op, 1, 1, 1200 + 1000);
    op.fence = other.fence;
    check_equal(op_renew(&zone, &op), NGX_IDEMPOTENCY_ABSENT);

    zone_check_empty(&zone);
}
