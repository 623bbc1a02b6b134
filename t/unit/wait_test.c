
/* Requests that wait for another's outcome: who is woken, and in what order. */


#include "zone.h"
#include "workers_double.h"


#define WAITERS  64


typedef struct {
    op_t         op;
    ngx_uint_t   called;

    /* in the handler: waits again, or cancels this one */
    ngx_uint_t   again;
    op_t        *cancel;
} waiter_t;


static waiter_t     waiters[WAITERS];

/* in the order in which they were called */

static waiter_t    *called[WAITERS * 2];
static ngx_uint_t   ncalled;


static void
handler(op_t *op)
{
    waiter_t  *w;

    w = op->data;

    check(op == &w->op);
    check_equal(op->result, NGX_IDEMPOTENCY_CHANGED);
    check_equal(op->waiting, 0);

    w->called++;

    if (check(ncalled < WAITERS * 2)) {
        called[ncalled++] = w;
    }

    if (w->cancel) {
        op_cancel(&zone, w->cancel);
    }

    if (w->again) {
        w->again--;
        op_claim(&zone, op);
    }
}


void
unit_setup(void)
{
    double_reset();
    zone_open(&zone, 512 * 1024, 0);

    ngx_memzero(waiters, sizeof(waiters));
    ncalled = 0;
}


/* an owner may have waited before it was one, and is woken for that */

static void
nobody_woken(void)
{
    check(double_nwakes == 0 || !zone_is(ZONE_CALM));

    double_nwakes = 0;
}


void
unit_teardown(void)
{
    nobody_woken();
    zone_check_empty(&zone);
    zone_close(&zone);
}


static uint64_t
key_of(ngx_uint_t token)
{
    u_char  digest[NGX_IDEMPOTENCY_DIGEST_LEN];

    op_token(digest, token);

    return ngx_idempotency_tree_key(digest);
}


/* whoever waits for it has heard, when this returns */

static void
woken(ngx_uint_t token)
{
    uint64_t  key;

    key = key_of(token);
    ngx_idempotency_shm_woken(&key);
    zone_settle(&zone);
}


static void
all_woken(void)
{
    ngx_idempotency_shm_woken(NULL);
    zone_settle(&zone);
}


/* a wake, of these slots */

static void
woke(ngx_uint_t token, ngx_int_t slot, ngx_int_t another)
{
    double_wake_t  *wake;

    if (zone_is(ZONE_CALM)) {
        check(double_woke(key_of(token), slot, another));
        return;
    }

    if (!check(double_nwakes > 0)) {
        return;
    }

    wake = &double_wakes[--double_nwakes];

    check(wake->key == key_of(token));
    check(wake->set.bits[slot / 64] & ((uint64_t) 1 << (slot % 64)));
    check(another < 0 || (wake->set.bits[another / 64]
                          & ((uint64_t) 1 << (another % 64))));
}


static void
own(op_t *op, ngx_uint_t token)
{
    op_init(op, token, 1, 100);
    check_equal(op_claim(&zone, op), NGX_IDEMPOTENCY_CLAIMED);
    op->outcome = NGX_IDEMPOTENCY_DONE;
    op->status = 200;
    op_respond(op, 10, 5);
}


/* the i-th waiter waits for a token as a request of some worker's */

static void
wait_for(ngx_uint_t i, ngx_uint_t token, ngx_uint_t slot)
{
    waiter_t  *w;

    w = &waiters[i];

    op_init(&w->op, token, 1, 100);
    w->op.wait = 1;
    w->op.handler = handler;
    w->op.data = w;

    double_become(slot);
    check_equal(op_claim(&zone, &w->op), NGX_IDEMPOTENCY_BOUND);
    check_equal(w->op.outcome, NGX_IDEMPOTENCY_PENDING);
    check_equal(w->op.waiting, 1);
    double_become(0);
}


/* whatever ends a claim wakes those slots that wait for it, each once */

bare_case("whatever ends a claim wakes who waits, once")
{
    ngx_uint_t  end;

    for (end = 0; end < 6; end++) {

        unit_setup();

        double_become(7);
        own(&op, 1);
        double_become(0);

        wait_for(0, 1, 3);
        wait_for(1, 1, 100);
        wait_for(2, 1, 3);

        switch (end) {

        case 0:
            check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_OK);
            break;

        case 1:
            check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
            break;

        case 2:
            op_init(&op, 1, 0, 100);
            check_equal(op_forget(&zone, &op), NGX_IDEMPOTENCY_OK);
            break;

        case 3:
            double_workers[7].state = DOUBLE_DEAD;
            ngx_idempotency_shm_sweep(&zone.shm, 100);
            break;

        case 4:
            double_workers[7].state = DOUBLE_DEAD;
            check_equal(op_claims(&op, 1, 1, 100), NGX_IDEMPOTENCY_BOUND);
            break;

        case 5:
            /* taken over: there is another to wait for */
            double_workers[7].state = DOUBLE_DEAD;
            op_init(&op, 1, 1, 100);
            op.retry = 1;
            check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
            break;
        }

        check_equal(double_nwakes, 1);
        woke(1, 3, 100);

        /* but who hears that it is told has woken all of this process */

        check(ncalled == 0 || !zone_is(ZONE_CALM));
        woken(1);
        check_equal(ncalled, 3);

        /* once: neither the store nor the worker knows of them any more */

        woken(1);
        all_woken();
        check_equal(ncalled, 3);

        op_init(&op, 1, 0, 100);
        op_forget(&zone, &op);
        nobody_woken();

        unit_teardown();
    }
}


/* slots at the ends of the set's words, and one that has none */

unit_case("every slot has its bit")
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_IDEMPOTENCY_WORKERS; i++) {
        own(&op, 1);
        wait_for(0, 1, i);
        check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
        woke(1, i, -1);
        woken(1);
    }

    check_equal(ncalled, NGX_IDEMPOTENCY_WORKERS);
    ncalled = 0;

    /* it waits, but nobody can wake it: its own timer has to */

    own(&op, 1);
    wait_for(0, 1, NGX_IDEMPOTENCY_NO_WORKER);
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
    check_equal(double_nwakes, 0);

    op_cancel(&zone, &waiters[0].op);
    woken(1);
    check_equal(ncalled, 0);
}


unit_case("first come, first served")
{
    op_t        op[4];
    ngx_uint_t  i, n;

    for (i = 0; i < 4; i++) {
        own(&op[i], i);
    }

    for (i = 0; i < WAITERS; i++) {
        wait_for(i, (i * 7) % 4, 1);
    }

    for (n = 0; n < 4; n++) {
        ncalled = 0;

        check_equal(op_complete(&zone, &op[n]), NGX_IDEMPOTENCY_OK);
        woke(n, 1, -1);
        woken(n);
        check_equal(ncalled, WAITERS / 4);

        for (i = 0; i < ncalled; i++) {
            check((called[i] - waiters) * 7 % 4 == (int) n);
            check(i == 0 || called[i] > called[i - 1]
                  || !zone_is(ZONE_IN_TURN));
            check_equal(called[i]->called, 1);
        }

        forget(n, 100);
    }
}


/* so many that each turn of the event loop has some of them: others are served
   in between, may come, and may go */

unit_case("many are called in many turns")
{
    uint64_t    key;
    ngx_uint_t  i, n, left, turns;

    own(&op, 1);

    for (i = 0; i < WAITERS; i++) {
        wait_for(i, 1, 1);
    }

    left = WAITERS;

    if (zone_is(ZONE_AT_ONCE)) {
        waiters[0].cancel = &waiters[--left].op;
    }

    check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_OK);
    woke(1, 1, -1);

    key = key_of(1);
    ngx_idempotency_shm_woken(&key);

    if (zone_is(ZONE_AT_ONCE)) {
        op_cancel(&zone, &waiters[--left].op);
    }

    n = 0;

    for (turns = 0; n < ncalled; turns++) {
        check(ncalled - n <= 10 || !zone_is(ZONE_AT_ONCE));
        n = ncalled;
        (void) zone_pass(&zone);
    }

    check(turns > 5 || !zone_is(ZONE_AT_ONCE));

    zone_settle(&zone);
    check_equal(ncalled, left);

    for (i = 0; i < WAITERS; i++) {
        check_equal(waiters[i].called, i < left);
    }

    forget(1, 100);
}


unit_case("\"who knows\" wakes all")
{
    op_t        op[WAITERS];
    ngx_uint_t  i;

    for (i = 0; i < WAITERS; i++) {
        own(&op[i], i);
        wait_for(i, i, 1);
    }

    all_woken();
    check_equal(ncalled, WAITERS);

    for (i = 0; i < WAITERS; i++) {
        check_equal(waiters[i].called, 1);
        check_equal(op_release(&zone, &op[i]), NGX_IDEMPOTENCY_OK);
    }

    /* their slots are still noted: woken once for nothing, and never again */

    check_equal(double_nwakes, WAITERS);
    double_nwakes = 0;
}


unit_case("what is cancelled is not called")
{
    own(&op, 1);

    wait_for(0, 1, 1);
    wait_for(1, 1, 1);
    wait_for(2, 1, 1);

    op_cancel(&zone, &waiters[1].op);
    op_cancel(&zone, &waiters[1].op);

    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
    woke(1, 1, -1);
    woken(1);

    check_equal(waiters[0].called, 1);
    check_equal(waiters[1].called, 0);
    check_equal(waiters[2].called, 1);

    /* one that does not wait at all */

    op_init(&op, 1, 1, 100);
    op_cancel(&zone, &op);
}


unit_case("cancelling inside a handler is safe")
{
    ngx_uint_t  i;

    own(&op, 1);

    for (i = 0; i < 6; i++) {
        wait_for(i, 1, 1);
    }

    waiters[0].cancel = &waiters[1].op;
    waiters[2].cancel = &waiters[5].op;
    waiters[3].cancel = &waiters[0].op;
    waiters[4].cancel = &waiters[4].op;

    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
    woke(1, 1, -1);
    woken(1);

    /* who cancels whom is for those to say who are called first */

    for (i = 0; i < 6; i++) {
        check(waiters[i].called <= 1);
        check_equal(waiters[i].op.waiting, 0);
    }

    if (zone_is(ZONE_IN_TURN)) {
        check_equal(waiters[0].called, 1);
        check_equal(waiters[1].called, 0);
        check_equal(waiters[2].called, 1);
        check_equal(waiters[3].called, 1);
        check_equal(waiters[4].called, 1);
        check_equal(waiters[5].called, 0);
    }
}


unit_case("after a release one waiter becomes the owner")
{
    waiter_t   *owner;
    ngx_uint_t  i, round;

    own(&op, 1);

    for (i = 0; i < 5; i++) {
        wait_for(i, 1, 0);
        waiters[i].again = 100;
    }

    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);

    for (round = 0; round < 5; round++) {

        woke(1, 0, -1);
        ncalled = 0;
        woken(1);
        check_equal(ncalled, 5 - round);

        owner = NULL;

        for (i = 0; i < 5; i++) {

            if (waiters[i].called != round + 1) {
                continue;
            }

            if (waiters[i].op.result == NGX_IDEMPOTENCY_CLAIMED) {
                check(owner == NULL);
                owner = &waiters[i];
                continue;
            }

            check_equal(waiters[i].op.result, NGX_IDEMPOTENCY_BOUND);
            check_equal(waiters[i].op.waiting, 1);
        }

        if (!check(owner != NULL)) {
            break;
        }

        /* the first in the queue, which then gives it back */

        if (zone_is(ZONE_IN_TURN)) {
            check(owner == called[0]);
            check(owner == &waiters[round]);
        }

        check_equal(op_release(&zone, &owner->op), NGX_IDEMPOTENCY_OK);
    }
}


unit_case("all waiters replay an outcome")
{
    ngx_uint_t  i, sum;

    own(&op, 1);

    for (i = 0; i < 5; i++) {
        wait_for(i, 1, 0);
        waiters[i].again = 1;
    }

    check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_OK);
    woke(1, 0, -1);
    woken(1);

    sum = 0;

    for (i = 0; i < 5; i++) {
        check_equal(waiters[i].called, 1);
        check_equal(waiters[i].op.result, NGX_IDEMPOTENCY_BOUND);
        check_equal(waiters[i].op.waiting, 0);
        op_responded(&waiters[i].op, 10, 5);
        sum += waiters[i].op.replays;
    }

    /* each of them is counted, as long as what counts is there, and once more
       for each answer that got lost */

    check(sum >= 1 + 2 + 3 + 4 + 5 || !zone_is(ZONE_STAYS));
    check(sum <= 1 + 2 + 3 + 4 + 5 || !zone_is(ZONE_IN_TURN));

    forget(1, 100);
}


/* one key for two tokens: whoever is woken in vain waits again */

unit_case("tokens with one key")
{
    op_t  twin;

    own(&op, 1);
    wait_for(0, 1, 1);

    op_init(&twin, 1, 1, 100);
    twin.token[20] ^= 1;
    check_equal(op_claim(&zone, &twin), NGX_IDEMPOTENCY_CLAIMED);

    waiters[1].op = twin;
    waiters[1].op.wait = 1;
    waiters[1].op.handler = handler;
    waiters[1].op.data = &waiters[1];
    waiters[1].again = 1;
    check_equal(op_claim(&zone, &waiters[1].op), NGX_IDEMPOTENCY_BOUND);

    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
    woke(1, 1, -1);
    woken(1);

    check_equal(waiters[0].called, 1);
    check_equal(waiters[1].called, 1);
    check_equal(waiters[1].op.waiting, 1);

    check_equal(op_release(&zone, &twin), NGX_IDEMPOTENCY_OK);
    woke(1, 0, -1);
    woken(1);
    check_equal(waiters[0].called, 1);
    check_equal(waiters[1].called, 2);
}


/* one that need not wait, or must not */

unit_case("only what is pending is waited for")
{
    own(&op, 1);
    check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_OK);

    op_init(&op, 1, 1, 100);
    op.wait = 1;
    op.handler = handler;
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_BOUND);
    check_equal(op.waiting, 0);

    forget(1, 100);

    op.wait = 1;
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
    check_equal(op.waiting, 0);
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);

    all_woken();
    check_equal(ncalled, 0);
}


/* wherever in the hash they are */

unit_case("\"who knows\" wakes wherever it waits")
{
    ngx_uint_t  i;

    double_become(1);

    for (i = 0; i < 1024; i++) {

        op_init(&op, 1, 1, 100);
        op.token[0] = (u_char) i;
        op.token[1] = (u_char) (i >> 8);
        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);

        waiters[0].called = 0;
        waiters[0].op = op;
        waiters[0].op.wait = 1;
        waiters[0].op.handler = handler;
        waiters[0].op.data = &waiters[0];
        check_equal(op_claim(&zone, &waiters[0].op), NGX_IDEMPOTENCY_BOUND);
        check_equal(waiters[0].op.waiting, 1);

        ncalled = 0;
        all_woken();
        check_equal(ncalled, 1);
        check_equal(waiters[0].op.waiting, 0);

        check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
        double_nwakes = 0;
    }

    ncalled = 0;
}


/* a claim that waits may be made again: it waits once, or is granted */

unit_case("a claim is made again while it waits")
{
    own(&op, 1);
    wait_for(0, 1, 0);
    wait_for(1, 1, 0);

    check_equal(op_claim(&zone, &waiters[0].op), NGX_IDEMPOTENCY_BOUND);
    check_equal(op_claim(&zone, &waiters[0].op), NGX_IDEMPOTENCY_BOUND);
    check_equal(waiters[0].op.waiting, 1);

    woken(1);
    check_equal(ncalled, 2);
    check_equal(waiters[0].called, 1);
    check_equal(waiters[1].called, 1);

    /* before it hears that it may */

    check_equal(op_claim(&zone, &waiters[0].op), NGX_IDEMPOTENCY_BOUND);
    check_equal(waiters[0].op.waiting, 1);
    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);

    check_equal(op_claim(&zone, &waiters[0].op), NGX_IDEMPOTENCY_CLAIMED);
    check_equal(waiters[0].op.waiting, 0);

    woken(1);
    check_equal(ncalled, 2);

    check_equal(op_release(&zone, &waiters[0].op), NGX_IDEMPOTENCY_OK);

    double_nwakes = 0;
}
