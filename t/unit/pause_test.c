
/*
 * When a zone tells what stands behind it: at once, or with what comes next.
 * By a backing that has only what it was handed, and answers when it is told
 * to.
 */


#include "unit.h"
#include "backing_double.h"
#include "workers_double.h"


#define ZONE  (384 * 1024)


static ngx_idempotency_tier_t        tier;
static ngx_idempotency_shm_t         shm;
static ngx_idempotency_store_t       store;
static ngx_shm_zone_t                zone;
static ngx_idempotency_secret_t      secret;
static ngx_idempotency_counters_t    counters;
static ngx_rbtree_node_t             timers;
static ngx_str_t                     name = ngx_string("unit");

static const ngx_idempotency_backing_t  *behind = &double_backing;
static ngx_idempotency_result_e          says;


static void
answer(ngx_idempotency_batch_t *batch)
{
    ngx_uint_t  i;

    for (i = 0; i < batch->n; i++) {
        batch->items[i].result =
            (batch->items[i].what == NGX_IDEMPOTENCY_ITEM_ASK)
                ? NGX_IDEMPOTENCY_CLAIMED : says;
    }
}


static void
begin(ngx_uint_t strict)
{
    ngx_slab_pool_t  *pool;

    double_backing_reset();

    ngx_rbtree_init(&ngx_event_timer_rbtree, &timers,
                    ngx_rbtree_insert_timer_value);

    ngx_memzero(&tier, sizeof(ngx_idempotency_tier_t));
    ngx_memzero(&shm, sizeof(ngx_idempotency_shm_t));
    ngx_memzero(&store, sizeof(ngx_idempotency_store_t));
    ngx_memzero(&zone, sizeof(ngx_shm_zone_t));

    zone.shm.size = ZONE;
    zone.shm.addr = unit_shared(ZONE);
    zone.shm.name = name;
    zone.shm.log = unit_cycle.log;
    zone.init = ngx_idempotency_shm_init;
    zone.data = &shm;

    shm.store = &store;
    shm.tier = &tier;
    store.name = name;
    store.secret = &secret;
    store.counters = &counters;
    store.engine = &ngx_idempotency_shm_engine;
    store.data = &shm;
    store.strict = strict;
    tier.backing = behind;
    tier.name = name;
    tier.shm = &shm;
    tier.strict = strict;

    pool = (ngx_slab_pool_t *) zone.shm.addr;
    pool->end = zone.shm.addr + ZONE;
    pool->min_shift = 3;
    pool->addr = zone.shm.addr;

    check_equal(ngx_shmtx_create(&pool->mutex, &pool->lock, NULL), NGX_OK);
    ngx_slab_init(pool);
    check_equal(ngx_idempotency_shm_init(&zone, NULL), NGX_OK);

    double_renew(0);
    double_become(0);

    check_equal(ngx_idempotency_tier_init_process(&shm, &unit_cycle), NGX_OK);
}


/* ... which others share */

static void
begin_shared(void)
{
    behind = &double_shared;
    ngx_queue_init(&ngx_posted_events);
    begin(0);
}


static void
end(void)
{
    double_answers = answer;

    while (double_batches[0]) {
        answer(double_batch(0));
    }

    if (tier.watch.timer_set) {
        ngx_del_timer(&tier.watch);
    }

    ngx_idempotency_tier_flush(&shm);
    ngx_idempotency_tier_exit_process(&shm);

    check(shm.sh->tier.first == NULL);

    if (behind == &double_backing) {
        check_equal(shm.sh->tier.writer.process.pid, 0);
    }

    if (tier.retry.timer_set) {
        ngx_del_timer(&tier.retry);
    }

    unit_unshared(zone.shm.addr, ZONE);
    behind = &double_backing;
}


static void
never_told(ngx_idempotency_op_t *op)
{
}


static void
claim(ngx_idempotency_claim_t *claim, u_char token)
{
    ngx_memzero(claim, sizeof(ngx_idempotency_claim_t));

    memset(claim->op.token, token, NGX_IDEMPOTENCY_DIGEST_LEN);
    memset(claim->fingerprint, 'f', NGX_IDEMPOTENCY_DIGEST_LEN);

    claim->op.now = ngx_current_msec;
    claim->op.handler = never_told;
    claim->window = 100000;
    claim->lease = 60000;
    claim->pool = unit_pool;

    (void) ngx_idempotency_shm_engine.claim(&store, claim);
}


/* again, and is answered */

static ngx_uint_t
asks(ngx_idempotency_claim_t *claim)
{
    claim->op.now = ngx_current_msec;
    check_equal(ngx_idempotency_shm_engine.claim(&store, claim), NGX_OK);

    return claim->op.result;
}


static void
complete(ngx_idempotency_claim_t *claim)
{
    ngx_idempotency_complete_t  complete;

    ngx_memzero(&complete, sizeof(ngx_idempotency_complete_t));

    memcpy(complete.op.token, claim->op.token, NGX_IDEMPOTENCY_DIGEST_LEN);

    complete.op.now = ngx_current_msec;
    complete.fence = claim->fence;
    complete.outcome = NGX_IDEMPOTENCY_NOT_KEPT;
    complete.status = 200;

    check_equal(ngx_idempotency_shm_engine.complete(&store, &complete),
                NGX_OK);
    check_equal(complete.op.result, NGX_IDEMPOTENCY_OK);
}


static ngx_uint_t
taken(void)
{
    return double_batches[0] ? double_batches[0]->n : 0;
}


/* that alone */

static ngx_uint_t
takes(void)
{
    check_equal(taken(), 1);

    return taken() ? double_batches[0]->items[0].what : 0;
}


/* so much later it has answered */

static void
answers(ngx_msec_t later)
{
    ngx_idempotency_batch_t  *batch;

    ngx_current_msec += later;

    batch = double_batch(0);

    if (check(batch != NULL)) {
        answer(batch);
        ngx_idempotency_batch_flushed(&tier, batch);
    }
}


/* a millisecond passes: has the pause ended? */

static ngx_uint_t
passes(void)
{
    ngx_current_msec++;

    if (!tier.retry.timer_set
        || (ngx_msec_int_t) (tier.retry.timer.key - ngx_current_msec) > 0)
    {
        return 0;
    }

    tier.retry.timer_set = 0;
    ngx_rbtree_delete(&ngx_event_timer_rbtree, &tier.retry.timer);
    tier.retry.handler(&tier.retry);

    return 1;
}


/* what asked for it was answered, and asks again */

static void
hears(ngx_idempotency_claim_t *claim)
{
    if (claim->op.waiting) {
        ngx_idempotency_shm_dequeue(&claim->op);
    }

    check_equal(asks(claim), NGX_IDEMPOTENCY_CLAIMED);
}


/* claims that are granted */

static void
claimed(ngx_idempotency_claim_t *claims, ngx_uint_t n)
{
    ngx_uint_t  i;

    for (i = 0; i < n; i++) {
        claim(&claims[i], 'a' + i);
    }

    while (taken()) {
        answers(1);
    }

    for (i = 0; i < n; i++) {
        hears(&claims[i]);
    }
}


/* nobody waits: what comes behind one is gathered */

unit_case("what nobody waits for is gathered")
{
    ngx_idempotency_claim_t  claims[4];

    begin(0);
    claimed(claims, 4);

    complete(&claims[0]);
    check_equal(taken(), 1);
    complete(&claims[1]);
    answers(1);

    check_equal(taken(), 0);
    check(!passes());
    complete(&claims[2]);
    check_equal(taken(), 0);
    check(passes());
    check_equal(taken(), 2);

    /* nothing comes: whatever comes later is told at once */

    answers(1);
    check(shm.sh->tier.writer.process.pid != 0);
    check(!passes());
    check(passes());
    check_equal(taken(), 0);
    check_equal(shm.sh->tier.writer.process.pid, 0);

    complete(&claims[3]);
    check_equal(taken(), 1);

    /* an end waits for no pause */

    answers(1);
    claim(&claims[0], 'x');
    ngx_idempotency_shm_dequeue(&claims[0].op);
    end();
}


/* who asks is not kept waiting, neither in a pause nor behind another one */

unit_case("who asks is not kept waiting")
{
    ngx_idempotency_claim_t  claims[2], late;

    begin(0);
    claimed(claims, 2);

    complete(&claims[0]);
    answers(1);
    complete(&claims[1]);
    check_equal(taken(), 0);

    claim(&late, 'x');
    check_equal(late.op.waiting, 1);
    check_equal(taken(), 2);
    check_equal(double_batches[0]->items[0].what, NGX_IDEMPOTENCY_ITEM_PUT);
    check_equal(double_batches[0]->items[1].what, NGX_IDEMPOTENCY_ITEM_ASK);
    answers(1);
    hears(&late);

    complete(&late);
    check_equal(taken(), 1);

    end();
}


/* a claim is there before anybody is told that he has it, whatever the mode;
   one that asks for the same waits for the same answer */

unit_case("a claim is there before it is granted")
{
    ngx_uint_t               strict;
    ngx_idempotency_claim_t  claims[2];

    for (strict = 0; strict < 2; strict++) {

        begin(strict);

        claim(&claims[0], 'a');
        check_equal(claims[0].op.waiting, 1);
        claim(&claims[1], 'a');
        check_equal(claims[1].op.waiting, 1);

        check_equal(takes(), NGX_IDEMPOTENCY_ITEM_ASK);
        answers(1);
        check_equal(taken(), 0);

        hears(&claims[0]);

        ngx_idempotency_shm_dequeue(&claims[1].op);
        check_equal(ngx_idempotency_shm_engine.claim(&store, &claims[1]),
                    NGX_OK);
        check_equal(claims[1].op.result, NGX_IDEMPOTENCY_BOUND);

        end();
    }
}


unit_case("strict: one by one, at once")
{
    ngx_idempotency_claim_t  claims[2];

    begin(1);

    claim(&claims[0], 'a');
    check_equal(taken(), 1);
    claim(&claims[1], 'b');
    answers(30);
    check_equal(taken(), 1);

    ngx_idempotency_shm_dequeue(&claims[0].op);
    ngx_idempotency_shm_dequeue(&claims[1].op);
    end();
}


/* requests that came together stay together: a part of what it took */

unit_case("strict: together, a moment later")
{
    ngx_uint_t               i, k;
    ngx_idempotency_claim_t  claims[4];

    static struct {
        ngx_msec_t   took;
        ngx_uint_t   pause;
    } cases[] = { { 0, 0 }, { 2, 0 }, { 3, 1 }, { 9, 3 }, { 100, 5 } };

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {

        begin(1);

        claim(&claims[0], 'a');
        claim(&claims[1], 'b');
        claim(&claims[2], 'c');
        answers(1);
        check_equal(taken(), 2);
        claim(&claims[3], 'd');
        answers(cases[i].took);

        for (k = 0; k < cases[i].pause; k++) {
            check_equal(taken(), 0);
            (void) passes();
        }

        check_equal(taken(), 1);

        for (k = 0; k < 4; k++) {
            ngx_idempotency_shm_dequeue(&claims[k].op);
        }

        end();
    }
}


/* of the event loop: what was put off until then */

static void
round_ends(void)
{
    if (tier.scheduled.posted) {
        ngx_delete_posted_event(&tier.scheduled);
        tier.scheduled.handler(&tier.scheduled);
    }
}


/* the process stood still: who shares what stands behind may have it since, or
   before the lease is renewed */

unit_case("what is granted when its lease may be over is given back")
{
    ngx_idempotency_claim_t  c;

    begin_shared();

    claim(&c, 'a');
    round_ends();
    check_equal(taken(), 1);
    answers(39999);
    check_equal(asks(&c), NGX_IDEMPOTENCY_CLAIMED);
    complete(&c);
    round_ends();
    check_equal(taken(), 1);
    answers(1);

    claim(&c, 'b');
    round_ends();
    check_equal(takes(), NGX_IDEMPOTENCY_ITEM_ASK);
    answers(40000);
    round_ends();

    check_equal(takes(), NGX_IDEMPOTENCY_ITEM_RELEASE);

    check_equal(asks(&c), NGX_IDEMPOTENCY_UNAVAILABLE);

    answers(1);
    end();
}


/* ... also if it was heard in time, and who asked stood still before it took
   what it was granted: that may have been granted as soon as it was asked for */

unit_case("... also behind its answer")
{
    ngx_idempotency_claim_t  c;

    begin_shared();

    claim(&c, 'a');
    round_ends();
    answers(10000);
    ngx_current_msec += 29999;
    check_equal(asks(&c), NGX_IDEMPOTENCY_CLAIMED);
    complete(&c);
    round_ends();
    check_equal(taken(), 1);
    answers(1);

    claim(&c, 'b');
    round_ends();
    answers(10000);
    ngx_current_msec += 30000;
    check_equal(asks(&c), NGX_IDEMPOTENCY_UNAVAILABLE);
    round_ends();

    check_equal(takes(), NGX_IDEMPOTENCY_ITEM_RELEASE);
    answers(1);
    end();
}


/* ... and whoever asks by then: the question is as old as it is */

unit_case("... also to who took the question over")
{
    ngx_idempotency_claim_t  c, next;

    begin_shared();

    claim(&c, 'a');
    round_ends();
    ngx_idempotency_shm_engine.cancel(&store, &c.op);

    ngx_current_msec += 59999;
    claim(&next, 'a');
    round_ends();
    check_equal(taken(), 1);
    answers(1);
    round_ends();

    check_equal(takes(), NGX_IDEMPOTENCY_ITEM_RELEASE);
    answers(1);

    next.op.now = ngx_current_msec;
    check_equal(ngx_idempotency_shm_engine.claim(&store, &next), NGX_AGAIN);
    round_ends();
    answers(1);
    check_equal(asks(&next), NGX_IDEMPOTENCY_CLAIMED);

    complete(&next);
    round_ends();
    answers(1);
    end();
}


/* the owner has died, and others may have heard of the doubt and taken it over:
   what is behind hears of it, and is asked then */

unit_case("what a dead owner had is asked for before it is retried")
{
    ngx_idempotency_claim_t  c, again;

    begin_shared();

    claim(&c, 'a');
    round_ends();
    answers(1);
    check_equal(asks(&c), NGX_IDEMPOTENCY_CLAIMED);

    double_workers[0].state = DOUBLE_DEAD;
    double_renew(1);
    double_become(1);

    again = c;
    again.retry = 1;
    again.op.now = ngx_current_msec;
    check_equal(ngx_idempotency_shm_engine.claim(&store, &again), NGX_AGAIN);
    round_ends();

    check_equal(takes(), NGX_IDEMPOTENCY_ITEM_PUT);
    check_equal(double_batches[0]->items[0].outcome, NGX_IDEMPOTENCY_IN_DOUBT);
    answers(1);

    again.op.now = ngx_current_msec;
    check_equal(ngx_idempotency_shm_engine.claim(&store, &again), NGX_AGAIN);
    round_ends();
    check_equal(takes(), NGX_IDEMPOTENCY_ITEM_ASK);
    answers(1);

    check_equal(asks(&again), NGX_IDEMPOTENCY_CLAIMED);

    complete(&again);
    round_ends();
    answers(1);
    end();
}


/* one batch is told again while another one is answered: what was in vain may
   be on its way yet */

unit_case("available again: when all is told that was in vain")
{
    ngx_uint_t               i;
    ngx_idempotency_claim_t  c[3];

    begin_shared();

    claim(&c[0], 'a');
    round_ends();
    answers(1);
    check_equal(ngx_idempotency_shm_engine.claim(&store, &c[0]), NGX_OK);
    complete(&c[0]);
    round_ends();

    for (i = 0; i < taken(); i++) {
        double_batches[0]->items[i].failed = 1;
    }

    unit_expect("is unavailable");
    check_equal(taken(), 1);
    answers(1);
    check_equal(shm.sh->tier.failing, 1);

    ngx_current_msec += 1000;
    ngx_del_timer(&tier.watch);
    tier.watch.handler(&tier.watch);
    round_ends();
    check_equal(taken(), 1);

    claim(&c[1], 'b');
    round_ends();

    if (check(double_batches[1] != NULL)) {
        answer(double_batches[1]);
        ngx_idempotency_batch_flushed(&tier, double_batch(1));
    }

    check_equal(shm.sh->tier.failing, 1);

    answers(1);
    check_equal(shm.sh->tier.failing, 0);
    check_equal(taken(), 0);

    end();
}


/* a sync has failed while a batch was on its way: its answer brings nothing
   back */

unit_case("... never, if it is lost")
{
    ngx_idempotency_claim_t  c[2];

    begin(0);
    claimed(c, 2);

    complete(&c[0]);
    check_equal(taken(), 1);

    unit_expect("is unavailable: a sync failed");
    ngx_idempotency_tier_lost(&tier, "a sync failed");
    check_equal(shm.sh->tier.failing, 1);

    answers(1);
    check_equal(shm.sh->tier.failing, 1);

    complete(&c[1]);
    end();
}


/* as a file at its max_size: it answers, and has no room for a fresh claim */

static void
crammed(ngx_idempotency_batch_t *batch)
{
    answer(batch);

    batch->items[0].result = NGX_IDEMPOTENCY_UNAVAILABLE;
    batch->items[0].full = 1;
}


unit_case("no room for a claim is none for a batch no more")
{
    ngx_uint_t  i;

    begin(0);

    shm.sh->tier.failing = 1;
    shm.sh->tier.was_full = 1;
    shm.sh->tier.failed = ngx_current_msec;

    unit_expect("is unavailable");
    double_answers = crammed;

    for (i = 0; i < 30; i++) {
        ngx_current_msec += 100;
        ngx_idempotency_tier_probe(&tier);
    }

    check_equal(shm.sh->tier.failing, 0);
    check_equal(shm.sh->tier.said_full, 1);

    end();
}
