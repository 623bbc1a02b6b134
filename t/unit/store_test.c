
/* The protocol: who may do what to a token, and when it is fresh again. */


#include "zone.h"
#include "workers_double.h"
#include "store/file/ngx_idempotency_owners.h"


static void
complete(op_t *op, ngx_idempotency_outcome_e outcome,
    ngx_uint_t status, size_t size)
{
    op->outcome = outcome;
    op->status = status;
    op_respond(op, size, op->fence);

    check_equal(op_complete(&zone, op), NGX_IDEMPOTENCY_OK);
}


/* as often as that; an answer that got lost counts, too, and what leaves memory
   takes its count along */

static ngx_uint_t
replayed(op_t *op, ngx_uint_t n)
{
    if (!zone_is(ZONE_STAYS)) {
        return 1;
    }

    return zone_is(ZONE_IN_TURN) ? op->replays == n : op->replays >= n;
}


unit_case("a token's way: claim, repeat, complete, replay, forget")
{
    ngx_uint_t  i;

    check_equal(op_finds(&op, 1, 1, 100), NGX_IDEMPOTENCY_ABSENT);
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
    check(op.fence > 0);
    check_equal(double_workers[0].owned, 1);

    check_equal(op_claims(&other, 1, 1, 110), NGX_IDEMPOTENCY_BOUND);
    check_equal(other.outcome, NGX_IDEMPOTENCY_PENDING);
    check_equal(other.recorded, 100);
    check_equal(other.fence, op.fence);
    check_equal(other.waiting, 0);
    check(other.response.data == NULL);
    check_equal(double_workers[0].owned, 1);

    op.now = 120;
    complete(&op, NGX_IDEMPOTENCY_DONE, 201, 300);
    check_equal(double_workers[0].owned, 0);

    for (i = 1; i <= 3; i++) {
        check_equal(op_claims(&other, 1, 1, 120 + i), NGX_IDEMPOTENCY_BOUND);
        check_equal(other.outcome, NGX_IDEMPOTENCY_DONE);
        check_equal(other.status, 201);
        check_equal(other.recorded, 120);
        check(replayed(&other, i));
        op_responded(&other, 300, op.fence);
    }

    /* looking is not replaying */

    check_equal(op_finds(&other, 1, 7, 130), NGX_IDEMPOTENCY_BOUND);
    check_equal(other.outcome, NGX_IDEMPOTENCY_DONE);
    check_equal(other.status, 201);
    check(replayed(&other, 3));
    check_equal(other.response.len, 300);
    check(other.response.data == NULL);
    check(ngx_memcmp(other.fingerprint, op.fingerprint,
                     NGX_IDEMPOTENCY_DIGEST_LEN) == 0);

    op_init(&other, 1, 0, 130);
    check_equal(op_forget(&zone, &other), NGX_IDEMPOTENCY_OK);
    check_equal(op_forget(&zone, &other), NGX_IDEMPOTENCY_ABSENT);
    check_equal(op_find(&zone, &other), NGX_IDEMPOTENCY_ABSENT);

    check(double_nwakes == 0 || !zone_is(ZONE_CALM));
}


unit_case("a released token is fresh")
{
    uint64_t  fence;

    check_equal(op_claims(&op, 1, 1, 0), NGX_IDEMPOTENCY_CLAIMED);
    fence = op.fence;

    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
    check_equal(double_workers[0].owned, 0);
    check_equal(op_find(&zone, &op), NGX_IDEMPOTENCY_ABSENT);
    zone_check_empty(&zone);

    /* for whatever it is then used */

    check_equal(op_claims(&op, 1, 2, 0), NGX_IDEMPOTENCY_CLAIMED);
    check(op.fence > fence);
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
}


/* each outcome that there is, and a claim with another fingerprint */

unit_case("another fingerprint is a conflict, whatever the outcome")
{
    ngx_uint_t  i;

    static const struct {
        ngx_idempotency_outcome_e  outcome;
        size_t                     size;
    } bound[] = {
        { NGX_IDEMPOTENCY_PENDING, 0 },
        { NGX_IDEMPOTENCY_DONE, 100 },
        { NGX_IDEMPOTENCY_NOT_KEPT, 0 },
        { NGX_IDEMPOTENCY_IN_DOUBT, 100 },
        { NGX_IDEMPOTENCY_IN_DOUBT, 0 }
    };

    for (i = 0; i < sizeof(bound) / sizeof(bound[0]); i++) {

        check_equal(op_claims(&op, i, 1, 50), NGX_IDEMPOTENCY_CLAIMED);

        if (bound[i].outcome != NGX_IDEMPOTENCY_PENDING) {
            complete(&op, bound[i].outcome, 504, bound[i].size);
        }

        /* even one that would wait, or take over */

        op_init(&other, i, 2, 60);
        other.wait = 1;
        other.retry = 1;

        check_equal(op_claim(&zone, &other), NGX_IDEMPOTENCY_CONFLICT);
        check_equal(other.outcome, bound[i].outcome);
        check_equal(other.waiting, 0);
        check(other.response.data == NULL);

        /* and the token is as it was */

        check_equal(op_claims(&other, i, 1, 60), NGX_IDEMPOTENCY_BOUND);
        check_equal(other.outcome, bound[i].outcome);

        /* what may change elsewhere is told under a number of its own */

        check(other.fence == op.fence
              || (bound[i].outcome == NGX_IDEMPOTENCY_IN_DOUBT
                  && !zone_is(ZONE_ALONE)));
        check(replayed(&other, bound[i].size ? 1 : 0));
        op_responded(&other, bound[i].size, op.fence);

        forget(i, 60);
    }
}


/* digests that differ in a single bit are two */

unit_case("each byte of a token and of a fingerprint counts")
{
    ngx_uint_t  i;

    check_equal(op_claims(&op, 1, 1, 50), NGX_IDEMPOTENCY_CLAIMED);
    complete(&op, NGX_IDEMPOTENCY_DONE, 200, 10);

    for (i = 0; i < NGX_IDEMPOTENCY_DIGEST_LEN; i++) {

        op_init(&other, 1, 1, 60);
        other.fingerprint[i] ^= 0x01;
        check_equal(op_claim(&zone, &other), NGX_IDEMPOTENCY_CONFLICT);

        op_init(&other, 1, 1, 60);
        other.token[i] ^= 0x80;
        check_equal(op_find(&zone, &other), NGX_IDEMPOTENCY_ABSENT);
    }

    forget(1, 60);
}


unit_case("fences rise")
{
    uint64_t    last;
    ngx_uint_t  i;

    last = 0;

    for (i = 0; i < 100; i++) {
        check_equal(op_claims(&op, i % 7, i, i), NGX_IDEMPOTENCY_CLAIMED);
        check(op.fence > last);
        last = op.fence;

        if (i & 1) {
            check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);

        } else {
            complete(&op, NGX_IDEMPOTENCY_DONE, 200, 10);
            forget(i % 7, i);
        }
    }
}


unit_case("stale owners change nothing")
{
    op_t  late, look;

    /* its token was forgotten */

    check_equal(op_claims(&late, 1, 1, 10), NGX_IDEMPOTENCY_CLAIMED);
    forget(1, 10);

    late.outcome = NGX_IDEMPOTENCY_DONE;
    op_respond(&late, 70000, 9);
    check_equal(op_complete(&zone, &late), NGX_IDEMPOTENCY_STALE);
    check_equal(op_release(&zone, &late), NGX_IDEMPOTENCY_STALE);
    zone_check_empty(&zone);

    /* and claimed by another */

    check_equal(op_claims(&op, 1, 1, 20), NGX_IDEMPOTENCY_CLAIMED);

    check_equal(op_complete(&zone, &late), NGX_IDEMPOTENCY_STALE);
    check_equal(op_release(&zone, &late), NGX_IDEMPOTENCY_STALE);

    check_equal(op_finds(&look, 1, 1, 20), NGX_IDEMPOTENCY_BOUND);
    check_equal(look.outcome, NGX_IDEMPOTENCY_PENDING);
    check_equal(look.fence, op.fence);

    /* who completed: nobody can again, not even the owner */

    complete(&op, NGX_IDEMPOTENCY_DONE, 200, 10);

    check_equal(op_complete(&zone, &late), NGX_IDEMPOTENCY_STALE);
    check_equal(op_release(&zone, &late), NGX_IDEMPOTENCY_STALE);
    check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_STALE);
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_STALE);

    check_equal(op_claims(&look, 1, 1, 30), NGX_IDEMPOTENCY_BOUND);
    check_equal(look.status, 200);
    op_responded(&look, 10, op.fence);

    forget(1, 30);

    /* nor if what it told was that nobody knows */

    check_equal(op_claims(&op, 1, 1, 40), NGX_IDEMPOTENCY_CLAIMED);
    complete(&op, NGX_IDEMPOTENCY_IN_DOUBT, 504, 10);
    check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_STALE);
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_STALE);

    check_equal(op_claims(&look, 1, 1, 40), NGX_IDEMPOTENCY_BOUND);
    op_responded(&look, 10, op.fence);

    forget(1, 40);
}


/* windows of all lengths at once, each ended to the millisecond */

static void
expiry_from(ngx_msec_t base)
{
    op_t        op;
    ngx_uint_t  i, n;

    static const ngx_msec_t  windows[] = { 1000, 1, 500, 2, 999, 70, 1001, 70,
                                           86400000, 3 };

    unit_setup();

    n = sizeof(windows) / sizeof(windows[0]);

    for (i = 0; i < n; i++) {
        check_equal(op_bind(&zone, i, 1, base, windows[i], i * 30),
                    NGX_IDEMPOTENCY_OK);
    }

    for (i = 0; i < n; i++) {

        /* a repeat at the last moment replays, and does not extend it */

        op_init(&op, i, 1, base + windows[i] - 1);
        op.window = 1000000;
        check_equal(op_find(&zone, &op), NGX_IDEMPOTENCY_BOUND);
        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_BOUND);
        op_responded(&op, i * 30, i);

        /* nor does one for something else, or before it */

        check_equal(op_claims(&op, i, 2, base), NGX_IDEMPOTENCY_CONFLICT);

        check_equal(op_finds(&op, i, 1, base + windows[i]),
                    NGX_IDEMPOTENCY_ABSENT);

        /* time for one worker may be a little behind another's */

        check_equal(op_finds(&op, i, 1, base), NGX_IDEMPOTENCY_ABSENT);

        check_equal(op_bind(&zone, i, 1, base, windows[i], i * 30),
                    NGX_IDEMPOTENCY_OK);
        check_equal(op_claims(&op, i, 9, base + windows[i]),
                    NGX_IDEMPOTENCY_CLAIMED);
        check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);

        zone_check(&zone);

        /* those that the claim expired come back for their own turn */

        for (n = i + 1; n < sizeof(windows) / sizeof(windows[0]); n++) {
            op_init(&op, n, 1, base);

            if (op_find(&zone, &op) == NGX_IDEMPOTENCY_ABSENT) {
                check(windows[n] <= windows[i]);
                check_equal(op_bind(&zone, n, 1, base, windows[n], n * 30),
                            NGX_IDEMPOTENCY_OK);
            }
        }
    }

    unit_teardown();
}


bare_case("expiry is exact, for mixed windows")
{
    expiry_from(5000000);
}


bare_case("expiry is exact where time wraps")
{
    expiry_from((ngx_msec_t) -1);
    expiry_from((ngx_msec_t) -500);
}


engine_case("what has ended is freed in its turn", ZONE_STAYS)
{
    ngx_uint_t  i;

    for (i = 0; i < 10; i++) {
        check_equal(op_bind(&zone, i, 1, 100 + 5 * i, 50, 10),
                    NGX_IDEMPOTENCY_OK);
    }

    for (i = 0; i < 10; i++) {
        ngx_idempotency_record_expire(&zone.shm, 149 + 5 * i, 100);
        check_equal(zone_bound(&zone), 10 - i);

        ngx_idempotency_record_expire(&zone.shm, 150 + 5 * i, 100);
        check_equal(zone_bound(&zone), 9 - i);
    }
}


unit_case("the window starts with the outcome")
{
    op_init(&op, 1, 1, 1000);
    op.window = 10;
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);

    /* long over, if it had */

    op.now = 500000;
    complete(&op, NGX_IDEMPOTENCY_NOT_KEPT, 500, 0);

    check_equal(op_claims(&op, 1, 1, 500009), NGX_IDEMPOTENCY_BOUND);
    check_equal(op.outcome, NGX_IDEMPOTENCY_NOT_KEPT);
    check_equal(op.recorded, 500000);

    check_equal(op_finds(&op, 1, 1, 500010), NGX_IDEMPOTENCY_ABSENT);
}


/* one that binds for no time at all takes nothing from one that does */

unit_case("a window of no length")
{
    op_t  none, some;

    op_init(&none, 1, 1, 100);
    none.window = 0;
    check_equal(op_claim(&zone, &none), NGX_IDEMPOTENCY_CLAIMED);

    check_equal(op_claims(&some, 2, 1, 100), NGX_IDEMPOTENCY_CLAIMED);

    /* it is pending like any other, and gone as soon as it is bound */

    check_equal(op_claims(&op, 1, 1, 100), NGX_IDEMPOTENCY_BOUND);

    complete(&none, NGX_IDEMPOTENCY_DONE, 200, 10);
    complete(&some, NGX_IDEMPOTENCY_DONE, 200, 10);

    check_equal(op_find(&zone, &op), NGX_IDEMPOTENCY_ABSENT);

    check_equal(op_finds(&op, 2, 1, 1099), NGX_IDEMPOTENCY_BOUND);
    check_equal(op_finds(&op, 2, 1, 1100), NGX_IDEMPOTENCY_ABSENT);
}


/* a timer frees what has expired, so much in a millisecond and no more, be it
   that of one worker or of many */

engine_case("what expired is freed on the way", ZONE_STAYS)
{
    ngx_uint_t  i, n;
    ngx_msec_t  now;

    n = 2 * NGX_IDEMPOTENCY_SHM_EXPIRE + 10;

    for (i = 0; i < n; i++) {
        check_equal(op_bind(&zone, i, 1, 100, 10, 100), NGX_IDEMPOTENCY_OK);
    }

    /* whoever is pending stays */

    op_init(&op, 1000, 1, 100);
    op.window = 1;
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);

    check(ngx_idempotency_shm_expire(&zone.shm, 109) > 100);

    if (zone_is(ZONE_STAYS)) {
        check_equal(zone_bound(&zone), n);
    }

    now = 1000000;

    for (i = 0; i < 2; i++, now++) {
        check_equal(ngx_idempotency_shm_expire(&zone.shm, now), 1);
        check(ngx_idempotency_shm_expire(&zone.shm, now) > 100);
        check_equal(zone_bound(&zone),
                    n - (i + 1) * NGX_IDEMPOTENCY_SHM_EXPIRE);
    }

    check(ngx_idempotency_shm_expire(&zone.shm, now) > 1);
    check_equal(zone_bound(&zone), 0);

    check(ngx_idempotency_shm_expire(&zone.shm, now + 1) > 100);

    check_equal(op_finds(&op, 1000, 1, 1000000), NGX_IDEMPOTENCY_BOUND);
    check_equal(op.outcome, NGX_IDEMPOTENCY_PENDING);

    forget(1000, 1000000);
}


/* tokens that differ only behind their first bytes share a tree key */

unit_case("tokens with equal first bytes are told apart")
{
    ngx_uint_t  i, n;

    for (i = 0; i < 256; i++) {
        op_init(&op, 1, 1, 100);
        op.token[NGX_IDEMPOTENCY_DIGEST_LEN - 1] = (u_char) (i * 37);
        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
        complete(&op, NGX_IDEMPOTENCY_DONE, 200 + i, 0);
    }

    zone_check(&zone);

    for (i = 0; i < 256; i++) {
        n = (i * 41) % 256;
        op_init(&op, 1, 1, 100);
        op.token[NGX_IDEMPOTENCY_DIGEST_LEN - 1] = (u_char) (n * 37);
        check_equal(op_find(&zone, &op), NGX_IDEMPOTENCY_BOUND);
        check_equal(op.status, 200 + n);
        op.fence = 0;
        check_equal(op_forget(&zone, &op), NGX_IDEMPOTENCY_OK);
        check_equal(op_find(&zone, &op), NGX_IDEMPOTENCY_ABSENT);

        if (i % 16 == 0) {
            zone_check(&zone);
        }
    }
}


unit_case("a doubt is replayed, or taken over")
{
    check_equal(op_claims(&op, 1, 1, 100), NGX_IDEMPOTENCY_CLAIMED);
    complete(&op, NGX_IDEMPOTENCY_IN_DOUBT, 504, 5000);

    check_equal(op_claims(&other, 1, 1, 200), NGX_IDEMPOTENCY_BOUND);
    check_equal(other.outcome, NGX_IDEMPOTENCY_IN_DOUBT);
    check_equal(other.status, 504);
    op_responded(&other, 5000, op.fence);

    op_init(&other, 1, 1, 300);
    other.retry = 1;
    other.window = 77;
    check_equal(op_claim(&zone, &other), NGX_IDEMPOTENCY_CLAIMED);
    check(other.fence > op.fence);
    check_equal(zone_size(&zone.shm.sh->kept), 0);
    check_equal(zone_bound(&zone), 0);
    zone_check(&zone);

    /* it is pending again, for others who would retry as well */

    op_init(&op, 1, 1, 310);
    op.retry = 1;
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_BOUND);
    check_equal(op.outcome, NGX_IDEMPOTENCY_PENDING);
    check_equal(op.recorded, 300);
    check_equal(op.replays, 0);

    other.now = 320;
    complete(&other, NGX_IDEMPOTENCY_DONE, 200, 20);

    /* done is done: retry is for doubts only */

    op_init(&op, 1, 1, 320 + 76);
    op.retry = 1;
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_BOUND);
    check_equal(op.outcome, NGX_IDEMPOTENCY_DONE);
    check(replayed(&op, 1));
    op_responded(&op, 20, other.fence);

    check_equal(op_finds(&op, 1, 1, 320 + 77), NGX_IDEMPOTENCY_ABSENT);
}


/* whoever settles it knows: it is fresh if nobody executed it */

unit_case("a doubt is taken over and released")
{
    ngx_uint_t  i;

    for (i = 0; i < 4; i++) {
        check_equal(op_claims(&op, i, 1, 100), NGX_IDEMPOTENCY_CLAIMED);
        complete(&op, NGX_IDEMPOTENCY_IN_DOUBT, 504, i & 1 ? 20 : 0);

        if (i & 2) {

            /* it is known by then, and something else is under way */

            zone_settle(&zone);
            check_equal(op_bind(&zone, 100, 1, 200, 1000, 10),
                        NGX_IDEMPOTENCY_OK);
        }

        op_init(&op, i, 1, 200);
        op.retry = 1;
        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
        op.settled = 1;
        check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);

        check_equal(op_finds(&op, i, 1, 200), NGX_IDEMPOTENCY_ABSENT);

        check_equal(op_claims(&op, i, 2, 200), NGX_IDEMPOTENCY_CLAIMED);
        check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);

        if (i & 2) {
            forget(100, 200);
        }
    }
}


/* who took it over has not executed it: it may have been executed before, and
   nobody does so who does not want to retry */

bare_case("a doubt is one again, if who took it over has not executed it")
{
    op_t        third;
    ngx_uint_t  leave;

    for (leave = 0; leave < 2; leave++) {

        unit_setup();

        check_equal(op_claims(&op, 1, 1, 100), NGX_IDEMPOTENCY_CLAIMED);
        complete(&op, NGX_IDEMPOTENCY_IN_DOUBT, 504, 5000);

        op_init(&other, 1, 1, 200);
        other.retry = 1;
        check_equal(op_claim(&zone, &other), NGX_IDEMPOTENCY_CLAIMED);

        op_init(&third, 1, 1, 300);
        third.wait = leave;
        check_equal(op_claim(&zone, &third), NGX_IDEMPOTENCY_BOUND);
        check_equal(third.outcome, NGX_IDEMPOTENCY_PENDING);

        other.now = 400;
        other.status = 503;
        other.leave = leave;
        op_respond(&other, 6000, other.fence);
        check_equal(op_release(&zone, &other), NGX_IDEMPOTENCY_OK);
        check(other.doubt);
        zone_check(&zone);

        /* who waited has the response of who released it */

        if (leave) {
            check_equal(op_claim(&zone, &third), NGX_IDEMPOTENCY_BOUND);
            check(third.left);
            check_equal(third.status, 503);
            op_responded(&third, 6000, other.fence);
        }

        check_equal(op_claims(&third, 1, 1, 500), NGX_IDEMPOTENCY_BOUND);
        check_equal(third.outcome, NGX_IDEMPOTENCY_IN_DOUBT);
        check_equal(third.status, 0);
        check_equal(third.response.len, 0);

        check_equal(op_claims(&third, 1, 2, 500), NGX_IDEMPOTENCY_CONFLICT);

        op_init(&third, 1, 1, 600);
        third.retry = 1;
        check_equal(op_claim(&zone, &third), NGX_IDEMPOTENCY_CLAIMED);
        check(third.fence > other.fence);

        /* who has settled it knows that it was not executed */

        third.settled = 1;
        check_equal(op_release(&zone, &third), NGX_IDEMPOTENCY_OK);
        check(!third.doubt);

        check_equal(op_finds(&op, 1, 1, 700), NGX_IDEMPOTENCY_ABSENT);

        check_equal(op_claims(&op, 1, 1, 60000), NGX_IDEMPOTENCY_CLAIMED);
        check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
        check(!op.doubt);

        ngx_idempotency_record_expire(&zone.shm, 60000, 10);
        unit_teardown();
    }
}


/* its owner died: known at the next claim */

unit_case("a dead owner is noticed by a claim")
{
    double_become(3);
    check_equal(op_claims(&op, 1, 1, 100), NGX_IDEMPOTENCY_CLAIMED);

    double_become(4);
    check_equal(op_claims(&other, 1, 1, 1000000), NGX_IDEMPOTENCY_BOUND);
    check_equal(other.outcome, NGX_IDEMPOTENCY_PENDING);

    double_workers[3].state = DOUBLE_DEAD;

    /* the window begins where the death is noticed */

    check_equal(op_claims(&other, 1, 1, 1000001), NGX_IDEMPOTENCY_BOUND);
    check_equal(other.outcome, NGX_IDEMPOTENCY_IN_DOUBT);
    check_equal(other.status, 0);
    check_equal(other.recorded, 1000001);
    check(other.response.data == NULL);
    zone_check(&zone);

    check_equal(op_finds(&other, 1, 1, 1000001 + 999), NGX_IDEMPOTENCY_BOUND);
    check_equal(op_finds(&other, 1, 1, 1000001 + 1000),
                NGX_IDEMPOTENCY_ABSENT);

    /* by then it is too late for the owner, were it not dead at all */

    double_workers[3].state = DOUBLE_ALIVE;
    double_become(3);
    op.now = 1000001 + 1000;
    check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_STALE);
    zone_check_empty(&zone);

    /* with retry, the same claim takes it over at once */

    double_become(3);
    check_equal(op_claims(&op, 1, 1, 2000000), NGX_IDEMPOTENCY_CLAIMED);

    double_renew(3);
    double_become(4);

    op_init(&other, 1, 1, 2000001);
    other.retry = 1;
    check_equal(op_claim(&zone, &other), NGX_IDEMPOTENCY_CLAIMED);
    check(other.fence > op.fence);

    double_become(3);
    op.outcome = NGX_IDEMPOTENCY_DONE;
    check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_STALE);
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_STALE);

    double_become(4);
    complete(&other, NGX_IDEMPOTENCY_DONE, 200, 10);

    forget(1, 2000001);

    /* a conflict stays one when its owner dies */

    double_become(3);
    check_equal(op_claims(&op, 1, 1, 3000000), NGX_IDEMPOTENCY_CLAIMED);
    double_workers[3].state = DOUBLE_DEAD;

    double_become(4);
    op_init(&other, 1, 2, 3000000);
    other.retry = 1;
    check_equal(op_claim(&zone, &other), NGX_IDEMPOTENCY_CONFLICT);
    check_equal(other.outcome, NGX_IDEMPOTENCY_IN_DOUBT);

    forget(1, 3000000);
}


/* ... and by a sweep, of as many as there are, sparing the living */

bare_case("dead owners are swept")
{
    ngx_uint_t  i, n;

    static const ngx_uint_t  many[] = { 0, 1, 63, 64, 65, 128, 200 };

    for (n = 0; n < sizeof(many) / sizeof(many[0]); n++) {

        unit_setup();

        for (i = 0; i < many[n]; i++) {
            double_become(i % 2 ? 70 : 5);
            check_equal(op_claims(&op, i, 1, 100), NGX_IDEMPOTENCY_CLAIMED);

            double_become(6);
            check_equal(op_claims(&op, 1000 + i, 1, 100),
                        NGX_IDEMPOTENCY_CLAIMED);
        }

        ngx_idempotency_shm_sweep(&zone.shm, 200);
        check_equal(zone_records(&zone, NGX_IDEMPOTENCY_PENDING), 2 * many[n]);

        double_workers[5].state = DOUBLE_DEAD;
        double_renew(70);

        ngx_idempotency_shm_sweep(&zone.shm, 300);
        check_equal(zone_records(&zone, NGX_IDEMPOTENCY_PENDING), many[n]);
        check(double_nwakes == 0 || !zone_is(ZONE_CALM));
        double_nwakes = 0;
        zone_check(&zone);

        for (i = 0; i < many[n]; i++) {
            check_equal(op_finds(&op, i, 1, 300), NGX_IDEMPOTENCY_BOUND);
            check_equal(op.outcome, NGX_IDEMPOTENCY_IN_DOUBT);
            check_equal(op.recorded, 300);
            forget(i, 300);

            check_equal(op_finds(&op, 1000 + i, 1, 300),
                        NGX_IDEMPOTENCY_BOUND);
            check_equal(op.outcome, NGX_IDEMPOTENCY_PENDING);
            forget(1000 + i, 300);
        }

        unit_teardown();
    }
}


unit_case("a silent owner has its lease")
{
    double_become(3);
    op_init(&op, 1, 1, 100);
    op.lease = 500;
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
    double_workers[3].state = DOUBLE_SILENT;

    /* the lease is that of the claim, not of who asks */

    double_become(4);
    op_init(&other, 1, 1, 599);
    other.lease = 1;
    other.retry = 1;
    check_equal(op_claim(&zone, &other), NGX_IDEMPOTENCY_BOUND);
    check_equal(other.outcome, NGX_IDEMPOTENCY_PENDING);

    ngx_idempotency_shm_sweep(&zone.shm, 599);
    check_equal(zone_records(&zone, NGX_IDEMPOTENCY_PENDING), 1);

    /* it may still say what came of it */

    double_become(3);
    op.now = 599;
    complete(&op, NGX_IDEMPOTENCY_DONE, 200, 10);
    forget(1, 599);

    check_equal(op_claims(&op, 1, 1, 1000), NGX_IDEMPOTENCY_CLAIMED);

    double_become(4);
    op_init(&other, 1, 1, 1500);
    other.retry = 1;
    check_equal(op_claim(&zone, &other), NGX_IDEMPOTENCY_CLAIMED);

    double_become(3);
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_STALE);

    double_become(4);
    other.settled = 1;
    check_equal(op_release(&zone, &other), NGX_IDEMPOTENCY_OK);

    /* who has no slot, or a sweep */

    double_become(NGX_IDEMPOTENCY_NO_WORKER);
    check_equal(op_claims(&op, 1, 1, 2000), NGX_IDEMPOTENCY_CLAIMED);

    ngx_idempotency_shm_sweep(&zone.shm, 2499);
    check_equal(zone_records(&zone, NGX_IDEMPOTENCY_PENDING), 1);

    ngx_idempotency_shm_sweep(&zone.shm, 2500);
    check_equal(zone_records(&zone, NGX_IDEMPOTENCY_PENDING), 0);

    forget(1, 2500);
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_STALE);
}


/*
 * An owner that was taken for dead knows better, as long as nobody took over
 * its claim.
 */

engine_case("an owner that was not dead is heard", ZONE_ALONE)
{
    /* it says what came of it */

    double_become(3);
    op_init(&op, 1, 1, 100);
    op.window = 300;
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
    double_workers[3].state = DOUBLE_SILENT;

    double_become(4);
    check_equal(op_claims(&other, 1, 1, 700), NGX_IDEMPOTENCY_BOUND);
    check_equal(other.outcome, NGX_IDEMPOTENCY_IN_DOUBT);
    check_equal(zone_bound(&zone), 1);

    double_become(3);
    op.now = 800;
    complete(&op, NGX_IDEMPOTENCY_DONE, 200, 5000);
    check_equal(zone_bound(&zone), 1);
    zone_check(&zone);

    check_equal(op_claims(&other, 1, 1, 1099), NGX_IDEMPOTENCY_BOUND);
    check_equal(other.outcome, NGX_IDEMPOTENCY_DONE);
    check_equal(other.recorded, 800);
    op_responded(&other, 5000, op.fence);

    check_equal(op_finds(&other, 1, 1, 1100), NGX_IDEMPOTENCY_ABSENT);

    /* or that nothing did */

    check_equal(op_claims(&op, 1, 1, 2000), NGX_IDEMPOTENCY_CLAIMED);

    double_become(4);
    ngx_idempotency_shm_sweep(&zone.shm, 2500);
    check_equal(zone_bound(&zone), 1);

    double_become(3);
    op.now = 2600;
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
    zone_check_empty(&zone);

    /* but not if its claim was taken over, whatever came of that */

    check_equal(op_claims(&op, 1, 1, 3000), NGX_IDEMPOTENCY_CLAIMED);

    double_become(4);
    op_init(&other, 1, 1, 3500);
    other.retry = 1;
    check_equal(op_claim(&zone, &other), NGX_IDEMPOTENCY_CLAIMED);

    double_become(3);
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_STALE);

    double_become(4);
    complete(&other, NGX_IDEMPOTENCY_IN_DOUBT, 504, 10);

    double_become(3);
    op.outcome = NGX_IDEMPOTENCY_DONE;
    op_respond(&op, 20, 1);
    check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_STALE);

    check_equal(op_claims(&other, 1, 1, 3500), NGX_IDEMPOTENCY_BOUND);
    check_equal(other.status, 504);

    forget(1, 3500);
}


engine_case("a fence tells what is forgotten", ZONE_STAYS)
{
    check_equal(op_claims(&op, 1, 1, 100), NGX_IDEMPOTENCY_CLAIMED);
    complete(&op, NGX_IDEMPOTENCY_DONE, 200, 10);

    op_init(&other, 1, 0, 100);
    other.fence = op.fence + 1;
    check_equal(op_forget(&zone, &other), NGX_IDEMPOTENCY_ABSENT);
    check_equal(op_find(&zone, &other), NGX_IDEMPOTENCY_BOUND);

    op_init(&other, 1, 0, 100);
    other.fence = op.fence;
    check_equal(op_forget(&zone, &other), NGX_IDEMPOTENCY_OK);
    check_equal(op_forget(&zone, &other), NGX_IDEMPOTENCY_ABSENT);
}


/* an exiting worker leaves nothing pending */

bare_case("exit and start put claims of the dead in doubt")
{
    zone_t  next, last;

    unit_setup();

    double_become(3);
    check_equal(op_claims(&op, 1, 1, ngx_current_msec),
                NGX_IDEMPOTENCY_CLAIMED);

    zone_exit_process(&zone);
    check_equal(zone_records(&zone, NGX_IDEMPOTENCY_PENDING), 0);

    double_become(4);
    zone_reload(&next, &zone);
    check_equal(zone_init_process(&next), NGX_OK);

    op_init(&op, 1, 1, ngx_current_msec);
    check_equal(op_find(&next, &op), NGX_IDEMPOTENCY_BOUND);
    check_equal(op.outcome, NGX_IDEMPOTENCY_IN_DOUBT);

    op.fence = 0;
    check_equal(op_forget(&next, &op), NGX_IDEMPOTENCY_OK);

    /* and one that starts deals with those of the dead */

    op_init(&op, 1, 1, ngx_current_msec);
    check_equal(op_claim(&next, &op), NGX_IDEMPOTENCY_CLAIMED);
    double_workers[4].state = DOUBLE_DEAD;

    double_become(5);
    zone_reload(&last, &next);
    check_equal(zone_init_process(&last), NGX_OK);
    check_equal(zone_records(&zone, NGX_IDEMPOTENCY_PENDING), 0);
    zone_exit_process(&next);

    op_init(&op, 1, 1, ngx_current_msec);
    check_equal(op_forget(&last, &op), NGX_IDEMPOTENCY_OK);

    zone_check_empty(&last);
    zone_close(&last);
}


/* a reload keeps the zone: old and new processes work on the same tokens */

unit_case("a reload keeps tokens")
{
    zone_t  next;

    check_equal(op_claims(&op, 1, 1, 100), NGX_IDEMPOTENCY_CLAIMED);

    zone_reload(&next, &zone);
    double_become(1);
    check_equal(zone_init_process(&next), NGX_OK);

    op_init(&other, 1, 1, 100);
    check_equal(op_claim(&next, &other), NGX_IDEMPOTENCY_BOUND);
    check_equal(other.outcome, NGX_IDEMPOTENCY_PENDING);

    double_become(0);
    complete(&op, NGX_IDEMPOTENCY_DONE, 200, 10);

    double_become(1);
    check_equal(op_claim(&next, &other), NGX_IDEMPOTENCY_BOUND);
    op_responded(&other, 10, op.fence);
    zone_exit_process(&next);

    double_become(0);
    forget(1, 100);

    /* but what it means must not change */

    next.shm.evict = 1;
    check_equal(ngx_idempotency_shm_init(&next.zone, &zone.shm), NGX_ERROR);
    check(unit_logged("idempotency_zone \"unit\" uses evict=responses"));
}


/* what is behind the zone knows what was bound, and of no owner any more */

engine_case("a restart keeps tokens", ZONE_OUTLIVES)
{
    op_t        kept;
    ngx_uint_t  i;

    static const struct {
        ngx_idempotency_outcome_e  outcome;
        ngx_uint_t                 status;
        size_t                     size;
    } bound[] = {
        { NGX_IDEMPOTENCY_DONE, 201, 300 },
        { NGX_IDEMPOTENCY_DONE, 200, 70000 },
        { NGX_IDEMPOTENCY_NOT_KEPT, 200, 0 },
        { NGX_IDEMPOTENCY_IN_DOUBT, 504, 20 },
        /* whoever owned it is gone */
        { NGX_IDEMPOTENCY_IN_DOUBT, 0, 0 },
        /* released: there is no such token */
        { NGX_IDEMPOTENCY_PENDING, 0, 0 }
    };

    ngx_memzero(&kept, sizeof(op_t));

    for (i = 0; i < sizeof(bound) / sizeof(bound[0]); i++) {
        op_init(&op, i, 1, 100);
        op.window = 100000;
        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);

        if (bound[i].outcome == NGX_IDEMPOTENCY_PENDING) {
            check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);

        } else if (bound[i].status) {
            op.outcome = bound[i].outcome;
            op.status = bound[i].status;
            op_respond(&op, bound[i].size, i);
            check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_OK);
        }

        kept.fence = op.fence;
    }

    ngx_current_msec = 200;
    zone_restart(&zone);
    double_renew(0);

    for (i = 0; i < sizeof(bound) / sizeof(bound[0]); i++) {
        op_init(&op, i, 1, 300);

        if (bound[i].outcome == NGX_IDEMPOTENCY_PENDING) {
            check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
            check(op.fence > kept.fence);
            check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
            continue;
        }

        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_BOUND);
        check_equal(op.outcome, bound[i].outcome);
        check_equal(op.status, bound[i].status);
        op_responded(&op, bound[i].size, i);

        if (bound[i].status) {
            check_equal(op.recorded, 100);
            check_equal(op.ends, 100 + 100000);
        }

        op_init(&op, i, 2, 300);
        op.retry = 1;
        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CONFLICT);
    }

    /* a doubt is taken over, a promise is kept until it ends */

    for (i = 0; i < sizeof(bound) / sizeof(bound[0]) - 1; i++) {

        op_init(&op, i, 1, 400);
        op.retry = 1;

        if (bound[i].outcome == NGX_IDEMPOTENCY_IN_DOUBT) {
            check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
            check(op.fence > kept.fence);
            complete(&op, NGX_IDEMPOTENCY_DONE, 200, 10);
            forget(i, 400);
            continue;
        }

        check_equal(op_claims(&op, i, 1, 100 + 100000 - 1),
                    NGX_IDEMPOTENCY_BOUND);
    }

    for (i = 0; i < sizeof(bound) / sizeof(bound[0]) - 1; i++) {
        check_equal(op_claims(&op, i, 1, 100 + 100000),
                    NGX_IDEMPOTENCY_CLAIMED);
        check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
    }
}


/* another size would be other memory, while old processes use the old one */

unit_case("a reload changes no size")
{
    zone_t  next;

    unit_cycle.shared_memory.part.elts = &zone.zone;
    unit_cycle.shared_memory.part.nelts = 1;

    zone_reload(&next, &zone);
    next.zone.shm.size *= 2;
    check_equal(ngx_idempotency_shm_init(&next.zone, NULL), NGX_ERROR);
    check(unit_logged("idempotency_zone \"unit\" uses the size"));

    /* no directive named it, and nobody is left who had it */

    zone.shm.unnamed = 1;
    ngx_process = NGX_PROCESS_MASTER;
    ngx_processes[0].pid = 4711;
    ngx_processes[0].exiting = 1;
    ngx_last_process = 1;

    check_equal(ngx_idempotency_shm_init(&next.zone, NULL), NGX_ERROR);
    check(unit_logged("idempotency_zone \"unit\" uses the size"));

    next.shm.evict = 1;
    check_equal(ngx_idempotency_shm_init(&next.zone, &zone.shm), NGX_ERROR);
    check(unit_logged("idempotency_zone \"unit\" uses evict=responses"));

    ngx_processes[0].exited = 1;
    check_equal(ngx_idempotency_shm_init(&next.zone, &zone.shm), NGX_OK);

    ngx_processes[0].exited = 0;
    ngx_processes[0].exiting = 0;
    check_equal(ngx_idempotency_shm_init(&next.zone, &zone.shm), NGX_OK);

    ngx_processes[0].exiting = 1;
    ngx_processes[0].pid = -1;
    check_equal(ngx_idempotency_shm_init(&next.zone, &zone.shm), NGX_OK);

    ngx_process = NGX_PROCESS_SINGLE;
    check_equal(ngx_idempotency_shm_init(&next.zone, &zone.shm), NGX_ERROR);
    check(unit_logged("idempotency_zone \"unit\" uses evict=responses"));

    ngx_last_process = 0;
    unit_cycle.shared_memory.part.nelts = 0;
}


/* two that close a file at the same moment each find the other one, and leave
   its log: so one waits for the other's lock */

engine_case("a file is closed by one after the other", ZONE_OUTLIVES|UNIT_BARE)
{
#if (NGX_IDEMPOTENCY_FILE)
    int              fd;
    char             path[256];
    zone_t           next;
    ngx_str_t       *name;
    struct timespec  from, to;

    unit_setup();

    check_equal(op_claims(&op, 1, 1, 100), NGX_IDEMPOTENCY_CLAIMED);
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);

    name = &zone.shm.tier->name;
    snprintf(path, sizeof(path), "%.*s",
             (int) (name->len - sizeof("state file \"\"") + 1),
             name->data + sizeof("state file \"") - 1);

    fd = ngx_idempotency_owners_open(path, 0);
    check_equal(ngx_idempotency_owners_lock(fd, NGX_IDEMPOTENCY_OWNERS_COMMIT,
                                            0), NGX_OK);

    (void) clock_gettime(CLOCK_MONOTONIC_RAW, &from);
    zone_exit_process(&zone);
    (void) clock_gettime(CLOCK_MONOTONIC_RAW, &to);

    check((to.tv_sec - from.tv_sec) * 1000
          + (to.tv_nsec - from.tv_nsec) / 1000000 >= 600);

    (void) close(fd);

    zone_reload(&next, &zone);
    check_equal(zone_init_process(&next), NGX_OK);

    zone_check_empty(&next);
    zone_close(&next);
#endif
}
