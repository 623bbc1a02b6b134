
/* A release that leaves its response to those who wait: none of them claims. */


#include "zone.h"
#include "workers_double.h"


#define PAGE     4096
#define WAITERS  10


static ngx_uint_t  ncalled;
static op_t        waiters[WAITERS];


static void
open_zone(size_t pages)
{
    double_reset();
    zone_open(&zone, pages * PAGE, 0);
    ncalled = 0;
}


static void
handler(op_t *op)
{
    check_equal(op->result, NGX_IDEMPOTENCY_CHANGED);
    ncalled++;
}


static void
owner(op_t *op, size_t size, ngx_uint_t wait)
{
    ngx_uint_t  i;

    op_init(op, 1, 1, 100);
    check_equal(op_claim(&zone, op), NGX_IDEMPOTENCY_CLAIMED);

    op->leave = 1;
    op->status = 429;
    op_respond(op, size, 429);

    for (i = 0; i < wait; i++) {
        op_init(&waiters[i], 1, 1, 100);
        waiters[i].wait = 1;
        waiters[i].handler = handler;
        check_equal(op_claim(&zone, &waiters[i]), NGX_IDEMPOTENCY_BOUND);
        check_equal(waiters[i].waiting, 1);
        check_equal(waiters[i].waited, (uint32_t) zone.shm.sh->sequence);
    }
}


static void
wake(ngx_uint_t n)
{
    uint64_t  key;

    check_equal(double_nwakes, n ? 1 : 0);
    double_nwakes = 0;

    key = ngx_idempotency_tree_key(waiters[0].token);
    ngx_idempotency_shm_woken(&key);
    zone_settle(&zone);
    check_equal(ncalled, n);
    ncalled = 0;
}


static void
served(op_t *op, size_t size)
{
    check_equal(op_claim(&zone, op), NGX_IDEMPOTENCY_BOUND);
    check_equal(op->left, 1);
    check_equal(op->waiting, 0);
    check_equal(op->outcome, NGX_IDEMPOTENCY_DONE);
    check_equal(op->status, 429);
    op_responded(op, size, 429);
}


static void
close_later(ngx_msec_t now)
{
    ngx_idempotency_record_expire(&zone.shm, now + NGX_IDEMPOTENCY_SHM_LEFTOVER,
                                  100);
    zone_check_empty(&zone);
    zone_close(&zone);
}


unit_case("all who wait get what is left to them")
{
    op_t        fresh;
    ngx_uint_t  i, n;

    static const size_t   sizes[] = { 1, 300, 4088, 5000, 70000, 200000 };

    for (n = 0; n < sizeof(sizes) / sizeof(sizes[0]); n++) {

        open_zone(256);
        owner(&op, sizes[n], WAITERS);

        check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
        wake(WAITERS);
        zone_check(&zone);

        /* the token is fresh for anybody else, at once */

        check_equal(op_finds(&fresh, 1, 2, 100), NGX_IDEMPOTENCY_ABSENT);
        check_equal(op_claim(&zone, &fresh), NGX_IDEMPOTENCY_CLAIMED);

        for (i = 0; i < WAITERS; i++) {
            served(&waiters[i], sizes[n]);
            ngx_reset_pool(unit_pool);
        }

        /* the last moment, and the one behind it */

        waiters[0].now = 100 + NGX_IDEMPOTENCY_SHM_LEFTOVER - 1;
        served(&waiters[0], sizes[n]);

        waiters[0].now++;
        check_equal(op_claim(&zone, &waiters[0]), NGX_IDEMPOTENCY_CONFLICT);

        check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_STALE);

        forget(1, 100);
        close_later(100);
    }
}


/* without anybody who waits, without a response, or without memory */

unit_case("nothing is left: one of them claims")
{
    ngx_uint_t  i;

    open_zone(64);

    owner(&op, 300, 0);
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
    zone_check_empty(&zone);

    owner(&op, 0, WAITERS);
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
    wake(WAITERS);
    zone_check_empty(&zone);

    owner(&op, 300, WAITERS);
    op.leave = 0;
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
    wake(WAITERS);
    zone_check_empty(&zone);

    owner(&op, 5 * PAGE, WAITERS);
    zone_occupy(&zone, 3);
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
    wake(WAITERS);
    zone_vacate(&zone);
    zone_check_empty(&zone);

    /* then exactly one of them is the next owner */

    check_equal(op_claim(&zone, &waiters[0]), NGX_IDEMPOTENCY_CLAIMED);

    for (i = 1; i < WAITERS; i++) {
        check_equal(op_claim(&zone, &waiters[i]), NGX_IDEMPOTENCY_BOUND);
        check_equal(waiters[i].outcome, NGX_IDEMPOTENCY_PENDING);
        check_equal(waiters[i].waited, (uint32_t) zone.shm.sh->sequence);
    }

    /* and what it leaves is for those who wait for it */

    op = waiters[0];
    op.leave = 1;
    op.status = 429;
    op_respond(&op, 300, 429);
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
    wake(WAITERS - 1);

    for (i = 1; i < WAITERS; i++) {
        served(&waiters[i], 300);
    }

    close_later(100);
}


/* the released record's own slot is enough */

unit_case("left where the released record was")
{
    void       *slots[64];
    ngx_uint_t  n;

    open_zone(64);
    owner(&op, 4000, WAITERS);
    zone_occupy(&zone, 0);

    n = 0;

    do {
        slots[n] = ngx_slab_alloc_locked(zone.shm.shpool,
                                         sizeof(ngx_idempotency_record_t));
    } while (slots[n++]);

    zone_vacate(&zone);
    zone_occupy(&zone, 1);

    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
    wake(WAITERS);

    for (n--; n; n--) {
        ngx_slab_free_locked(zone.shm.shpool, slots[n - 1]);
    }

    zone_vacate(&zone);

    served(&waiters[0], 4000);
    served(&waiters[WAITERS - 1], 4000);

    close_later(100);
}


/* no quota counts it, so it must not keep others out */

unit_case("what is left leaves room for a new token")
{
    op_t  fresh;

    open_zone(64);
    zone_occupy(&zone, 12);

    owner(&op, 5 * PAGE, 1);
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
    wake(1);

    op_init(&fresh, 2, 2, 100);
    fresh.reserve = 8 * PAGE;
    check_equal(op_claim(&zone, &fresh), NGX_IDEMPOTENCY_CLAIMED);

    /* nothing is left any more, and who waited is the next owner */

    op_init(&op, 1, 1, 100);
    check_equal(op_claim(&zone, &waiters[0]), NGX_IDEMPOTENCY_CLAIMED);

    check_equal(op_release(&zone, &fresh), NGX_IDEMPOTENCY_OK);
    forget(1, 100);
    zone_vacate(&zone);
    close_later(100);
}


/* a zone that drops old responses is always full of them */

unit_case("left where old responses fill the zone")
{
    op_t        old;
    ngx_uint_t  i;

    double_reset();
    zone_open(&zone, 64 * PAGE, 1);
    ncalled = 0;

    for (i = 0; i < 64; i++) {
        op_init(&old, 10 + i, 1, 100);
        old.reserve = PAGE;
        check_equal(op_claim(&zone, &old), NGX_IDEMPOTENCY_CLAIMED);
        op_respond(&old, 4000, i);
        check_equal(op_complete(&zone, &old), NGX_IDEMPOTENCY_OK);
    }

    check(zone.shm.shpool->pfree < 8);

    owner(&op, 4000, WAITERS);
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
    wake(WAITERS);

    for (i = 0; i < WAITERS; i++) {
        served(&waiters[i], 4000);
    }

    for (i = 0; i < 64; i++) {
        forget(10 + i, 100);
    }

    close_later(100);
}


/* those who came while a long one went in wait as well; and it may be lost */

static void
come_late(zone_t *z)
{
    op_init(&waiters[1], 1, 1, 100);
    waiters[1].wait = 1;
    waiters[1].handler = handler;
    check_equal(op_claim(z, &waiters[1]), NGX_IDEMPOTENCY_BOUND);
    check_equal(waiters[1].waiting, 1);
}


static void
take_away(zone_t *z)
{
    forget(1, 100);
}


static void
expire_left(zone_t *z)
{
    ngx_idempotency_record_expire(&z->shm,
                                  100 + NGX_IDEMPOTENCY_SHM_LEFTOVER, 9);
}


unit_case("between the pieces of a long response")
{
    open_zone(256);

    owner(&op, 200000, 1);
    zone_between(1, come_late, &zone);
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
    wake(2);
    served(&waiters[0], 200000);
    served(&waiters[1], 200000);
    close_later(100);

    /* forgotten by hand: nothing is left of it */

    open_zone(256);

    owner(&op, 200000, 1);
    zone_between(2, take_away, &zone);
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_STALE);
    wake(1);
    zone_check_empty(&zone);
    zone_close(&zone);

    /* it ends while it is read: asked again, the token is fresh */

    open_zone(256);

    owner(&op, 200000, 1);
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
    wake(1);
    zone_between(2, expire_left, &zone);
    check_equal(op_claim(&zone, &waiters[0]), NGX_IDEMPOTENCY_CLAIMED);
    check_equal(waiters[0].left, 0);
    check_equal(op_release(&zone, &waiters[0]), NGX_IDEMPOTENCY_OK);
    zone_check_empty(&zone);
    zone_close(&zone);
}


/* what went early, for want of memory, serves nobody */

unit_case("what was left may go early")
{
    double_reset();
    zone_open(&zone, 64 * PAGE, 1);
    ncalled = 0;

    owner(&op, 5 * PAGE, 1);
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
    wake(1);

    zone_occupy(&zone, 0);

    op_init(&op, 2, 1, 100);
    op.reserve = 2 * PAGE;
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
    check_equal(op_claim(&zone, &waiters[0]), NGX_IDEMPOTENCY_CLAIMED);
    check_equal(waiters[0].left, 0);

    zone_vacate(&zone);
    forget(1, 100);
    forget(2, 100);
    close_later(100);
}
