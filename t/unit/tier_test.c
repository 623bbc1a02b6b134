
/*
 * Two instances of nginx, of two workers each, and one file behind both: in
 * random order they claim, wait, complete and release the same few tokens;
 * answers of the file come late, twice, not at all, or say that it failed;
 * workers die or stand still at any point, instances come, go and are killed.
 * Whatever happens, nobody executes what another one executes or has executed.
 */


#include "unit.h"
#include "file.h"
#include "workers_double.h"
#include "store/ngx_idempotency_shm.h"


#define WORKERS  4
#define GROUPS   2
#define ACTORS   12
#define TOKENS   5
#define ZONE     (384 * 1024)

#define WINDOW   400
#define LEASE    100
#define LIVES    10


typedef enum {
    FRESH = 0,
    PENDING,
    DONE,
    DOUBT
} state_e;

/* what is true of a token, and until when it is bound */

typedef struct {
    state_e                    state;
    ngx_int_t                  owner;
    ngx_msec_t                 claimed;
    ngx_msec_t                 until;
    /* in doubt: perhaps no longer than this */
    ngx_msec_t                 least;
    ngx_uint_t                 executed;
    /* its owner has stood still */
    ngx_uint_t                 stood;
} truth_t;

typedef struct {
    ngx_uint_t                 up;
    ngx_shm_zone_t             zone;
    uint64_t                   instance;
    uint64_t                   fence;
    ngx_idempotency_db_t      *db;
} group_t;

typedef struct {
    /* must be the first member */
    ngx_idempotency_tier_t     tier;
    ngx_idempotency_shm_t      shm;
    ngx_idempotency_store_t    store;
    ngx_uint_t                 up;
    ngx_uint_t                 exiting;
    ngx_uint_t                 flying;
} worker_t;

typedef enum {
    IDLE = 0,
    WAITS,
    OWNS,
    TELLS
} act_e;

typedef struct {
    ngx_idempotency_claim_t    claim;
    ngx_idempotency_complete_t complete;
    act_e                      act;
    ngx_uint_t                 worker;
    ngx_uint_t                 token;
    ngx_uint_t                 woken;
    ngx_msec_t                 asked;
    /* what it has claimed may have been executed before */
    ngx_uint_t                 taken;
} actor_t;


static ngx_uint_t  strict, kills;
static uint64_t    seed;
static group_t     groups[GROUPS];
static worker_t    workers[WORKERS];
static actor_t     actors[ACTORS];
static truth_t     truths[TOKENS];
static ngx_uint_t  failing, crammed, down, hangs;
static ngx_uint_t  executions, replays, doubts, refusals;
static int64_t     base;

static ngx_rbtree_node_t         timers;
static ngx_str_t                 name = ngx_string("unit");
static ngx_idempotency_secret_t  secret;
static ngx_idempotency_counters_t  counters;

static void asks_for(actor_t *a, ngx_uint_t worker, ngx_uint_t token);
static void comes(actor_t *a, ngx_uint_t worker, ngx_uint_t token,
    ngx_uint_t waits);
static void result(actor_t *a);


static group_t *
group_of(void *tier)
{
    return &groups[((worker_t *) tier - workers) / (WORKERS / GROUPS)];
}


/* --- the backing ---------------------------------------------------------- */


static int64_t
backing_now(ngx_idempotency_tier_t *tier)
{
    return base + ngx_current_msec;
}


/* as a lock tells, and who asks knows of itself */

static ngx_uint_t
alive(void *data, uint64_t instance)
{
    ngx_uint_t  i;

    for (i = 0; i < GROUPS; i++) {
        if (groups[i].up && groups[i].instance == instance) {
            return 1;
        }
    }

    return 0;
}


/* as a file that has no room for one claim more */

static ngx_uint_t
refused(ngx_idempotency_item_t *item)
{
    item->full = (crammed
                  && (item->what == NGX_IDEMPOTENCY_ITEM_ASK
                      || (item->what == NGX_IDEMPOTENCY_ITEM_PUT
                          && item->outcome == NGX_IDEMPOTENCY_PENDING)));

    if (item->full) {
        item->result = NGX_IDEMPOTENCY_UNAVAILABLE;
    }

    return item->full;
}


static void
commit(worker_t *w)
{
    ngx_uint_t                i;
    ngx_idempotency_batch_t  *batch;

    batch = w->tier.batches;
    batch->rc = NGX_ERROR;
    strcpy(batch->error, "unit");

    if (!ngx_idempotency_batch_current(&w->tier, batch)
        || down || (failing && unit_below(&seed, 3)))
    {
        return;
    }

    if (!crammed) {
        batch->rc = ngx_idempotency_db_commit(group_of(w)->db, batch->items,
                                              batch->n,
                                              backing_now(&w->tier));

        check_equal(batch->rc, NGX_OK);
        return;
    }

    for (i = 0; i < batch->n; i++) {
        batch->rc = refused(&batch->items[i])
                    ? NGX_OK
                    : ngx_idempotency_db_commit(group_of(w)->db,
                                                &batch->items[i], 1,
                                                backing_now(&w->tier));
        check_equal(batch->rc, NGX_OK);
    }
}


static ngx_int_t
backing_hand(ngx_idempotency_tier_t *tier, ngx_idempotency_batch_t *batch)
{
    worker_t  *w = (worker_t *) tier;

    if (w->exiting) {
        commit(w);
        return NGX_OK;
    }

    check(!w->flying);
    w->flying = 1;

    return NGX_AGAIN;
}


static void
backing_tend(ngx_idempotency_tier_t *tier)
{
    if (unit_below(&seed, 4) == 0) {
        check(ngx_idempotency_db_tidy(group_of(tier)->db, backing_now(tier), 3)
              != NGX_ERROR);
    }
}


static ngx_int_t
backing_init(ngx_idempotency_tier_t *tier, ngx_idempotency_tier_t *old,
    ngx_log_t *log)
{
    tier->instance = group_of(tier)->instance;
    tier->fence = group_of(tier)->fence;

    return NGX_OK;
}


static ngx_int_t
backing_init_process(ngx_idempotency_tier_t *tier, ngx_cycle_t *cycle)
{
    return NGX_OK;
}


static void
backing_finish(ngx_idempotency_tier_t *tier)
{
    worker_t  *w = (worker_t *) tier;

    w->exiting = 1;

    if (w->flying) {
        commit(w);
        w->flying = 0;
    }
}


static void
backing_exit_process(ngx_idempotency_tier_t *tier)
{
}


static ngx_uint_t
backing_up(ngx_idempotency_tier_t *tier)
{
    return 1;
}


static const ngx_idempotency_backing_t  backing = {
    .soon = 5,
    .seldom = 50,
    .now = backing_now,
    .flush = backing_hand,
    .maintain = backing_tend,
    .init = backing_init,
    .init_process = backing_init_process,
    .finish = backing_finish,
    .exit_process = backing_exit_process,
    .up = backing_up
};


/* --- instances and workers ------------------------------------------------ */


static void
worker_up(ngx_uint_t n)
{
    group_t   *group;
    worker_t  *w, *first;

    w = &workers[n];
    group = group_of(w);
    first = &workers[(group - groups) * (WORKERS / GROUPS)];

    double_renew(n);
    double_become(n);

    w->up = 1;
    w->exiting = 0;
    w->flying = 0;

    if (w != first) {
        w->shm = first->shm;
        w->store = first->store;
        w->tier = first->tier;
        w->shm.store = &w->store;
        w->store.data = &w->shm;
        w->shm.tier = &w->tier;
        w->tier.shm = &w->shm;
    }

    w->tier.busy = 0;
    ngx_memzero(&w->tier.retry, sizeof(ngx_event_t));
    ngx_memzero(&w->tier.poll, sizeof(ngx_event_t));
    ngx_memzero(&w->tier.watch, sizeof(ngx_event_t));

    check_equal(ngx_idempotency_tier_init_process(&w->shm, &unit_cycle),
                NGX_OK);

    ngx_idempotency_shm_sweep(&w->shm, ngx_current_msec);
}


static void
group_up(ngx_uint_t n)
{
    group_t          *group;
    worker_t         *w;
    ngx_slab_pool_t  *pool;

    group = &groups[n];
    w = &workers[n * (WORKERS / GROUPS)];

    file.start.boottime = ngx_current_msec;
    check_equal(file_start(1), NGX_OK);

    base = file.start.base;
    group->instance = file.start.instance;
    group->fence = file.start.fence;
    group->up = 1;

    file.conf.alive = alive;
    file.conf.data = group;
    file_open(NGX_IDEMPOTENCY_SYNC_BATCHED, 0);
    check(file.db != NULL);
    group->db = file.db;
    file.db = NULL;

    ngx_memzero(&group->zone, sizeof(ngx_shm_zone_t));

    group->zone.shm.size = ZONE;
    group->zone.shm.addr = unit_shared(ZONE);
    group->zone.shm.name = name;
    group->zone.shm.log = unit_cycle.log;
    group->zone.init = ngx_idempotency_shm_init;
    group->zone.data = &w->shm;

    ngx_memzero(w, sizeof(worker_t));

    w->shm.store = &w->store;
    w->shm.tier = &w->tier;
    w->store.name = name;
    w->store.secret = &secret;
    w->store.counters = &counters;
    w->store.engine = &ngx_idempotency_shm_engine;
    w->store.data = &w->shm;
    w->store.strict = strict;
    w->tier.backing = &backing;
    w->tier.name = name;
    w->tier.shm = &w->shm;
    w->tier.strict = strict;

    pool = (ngx_slab_pool_t *) group->zone.shm.addr;
    pool->end = group->zone.shm.addr + ZONE;
    pool->min_shift = 3;
    pool->addr = group->zone.shm.addr;

    check_equal(ngx_shmtx_create(&pool->mutex, &pool->lock, NULL), NGX_OK);
    ngx_slab_init(pool);
    check_equal(ngx_idempotency_shm_init(&group->zone, NULL), NGX_OK);

    worker_up(w - workers);
    worker_up(w - workers + 1);
}


/* what it executed, nobody knows now */

static void
owner_gone(actor_t *a)
{
    truth_t  *t;

    t = &truths[a->token];

    if ((a->act == OWNS || a->act == TELLS) && t->owner == a - actors) {
        t->state = DOUBT;
        t->owner = -1;

        /* it may have stood still before, and somebody noticed */

        t->least = ngx_min(t->claimed + LEASE, ngx_current_msec) + WINDOW;

        if (a->act == OWNS) {
            t->until = t->least;
        }

        t->least = ngx_min(t->least, t->until);
    }

    ngx_idempotency_shm_dequeue(&a->claim.op);
    ngx_idempotency_shm_dequeue(&a->complete.op);
    a->act = IDLE;
}


static void
del_timers(worker_t *w)
{
    if (w->tier.retry.timer_set) {
        ngx_del_timer(&w->tier.retry);
    }

    if (w->tier.poll.timer_set) {
        ngx_del_timer(&w->tier.poll);
    }

    if (w->tier.watch.timer_set) {
        ngx_del_timer(&w->tier.watch);
    }
}


static void
worker_killed(ngx_uint_t n)
{
    ngx_uint_t  i;
    worker_t   *w;

    w = &workers[n];

    /* perhaps its thread was done, and nobody has heard of it */

    if (w->flying && unit_below(&seed, 2)) {
        commit(w);
    }

    if (w->flying) {
        for (i = 0; i < w->tier.batches->n; i++) {
            if (w->tier.batches->items[i].what == NGX_IDEMPOTENCY_ITEM_ASK) {
                free(w->tier.batches->items[i].response.data);
            }
        }

        free(w->tier.batches->large);
    }

    for (i = 0; i < ACTORS; i++) {
        if (actors[i].worker == n) {
            owner_gone(&actors[i]);
        }
    }

    del_timers(w);
    ngx_free(w->tier.batches);
    w->tier.batches = NULL;
    w->up = 0;
    w->flying = 0;
    double_workers[n].state = DOUBLE_DEAD;
}


static void
group_gone(ngx_uint_t n)
{
    groups[n].up = 0;
    ngx_idempotency_db_close(groups[n].db);
    unit_unshared(groups[n].zone.shm.addr, ZONE);
}


/* what it could not tell a file that had failed was not waited for */

static void
group_forgets(ngx_uint_t n)
{
    u_char                     token[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_uint_t                 i;
    ngx_idempotency_shm_t     *shm;
    ngx_idempotency_record_t  *rec;

    shm = &workers[n * 2].shm;

    for (i = 0; i < TOKENS; i++) {
        memset(token, 'a' + (int) i, NGX_IDEMPOTENCY_DIGEST_LEN);

        rec = ngx_idempotency_record_current(shm, token, ngx_current_msec);

        if (rec && rec->state == NGX_IDEMPOTENCY_DONE
            && rec->flush != NGX_IDEMPOTENCY_FLUSHED
            && truths[i].state == DONE)
        {
            truths[i].state = DOUBT;
        }
    }
}


static void
group_killed(ngx_uint_t n)
{
    ngx_uint_t  i;

    group_forgets(n);

    for (i = n * 2; i < n * 2 + 2; i++) {
        if (workers[i].up) {
            worker_killed(i);
        }
    }

    group_gone(n);
}


static ngx_uint_t
group_busy(ngx_uint_t n)
{
    ngx_uint_t  i;

    for (i = 0; i < ACTORS; i++) {
        if (actors[i].worker / 2 == n && actors[i].act != IDLE) {
            return 1;
        }
    }

    return failing || crammed || hangs;
}


/* it goes when nobody wants anything of it any more */

static void
group_quits(ngx_uint_t n)
{
    ngx_uint_t  i;
    worker_t   *w;

    for (i = n * 2; i < n * 2 + 2; i++) {
        w = &workers[i];

        if (!w->up) {
            continue;
        }

        double_become(i);
        double_workers[i].state = DOUBLE_DEAD;

        ngx_idempotency_tier_finish(&w->shm);
        ngx_idempotency_shm_sweep(&w->shm, ngx_current_msec);
        ngx_idempotency_tier_flush(&w->shm);
        ngx_idempotency_tier_exit_process(&w->shm);

        del_timers(w);
        w->up = 0;
    }

    /* who was killed before may have left something to others */

    group_gone(n);
}


/* --- requests ------------------------------------------------------------- */


static void
claim_handler(ngx_idempotency_op_t *op)
{
    ((actor_t *) op->data)->woken = 1;
}


static void
ask(actor_t *a)
{
    ngx_int_t   rc;
    worker_t   *w;

    w = &workers[a->worker];

    double_become(a->worker);

    a->woken = 0;
    a->asked = ngx_current_msec;
    a->act = WAITS;
    a->claim.op.now = ngx_current_msec;

    rc = ngx_idempotency_shm_engine.claim(&w->store, &a->claim);

    if (rc == NGX_OK) {
        result(a);
    }
}


static void
begins(actor_t *a)
{
    ngx_uint_t  worker;

    worker = unit_below(&seed, WORKERS);

    if (!workers[worker].up
        || double_workers[worker].state != DOUBLE_ALIVE)
    {
        return;
    }

    comes(a, worker, unit_below(&seed, TOKENS), unit_below(&seed, 3) != 0);
}


static void
comes(actor_t *a, ngx_uint_t worker, ngx_uint_t token, ngx_uint_t waits)
{
    asks_for(a, worker, token);

    a->claim.retry = (a->token % 2 && unit_below(&seed, 3));
    a->claim.wait = waits;

    ask(a);
}


static void
asks_for(actor_t *a, ngx_uint_t worker, ngx_uint_t token)
{
    a->worker = worker;
    a->token = token;

    ngx_memzero(&a->claim, sizeof(ngx_idempotency_claim_t));

    memset(a->claim.op.token, 'a' + (int) a->token,
           NGX_IDEMPOTENCY_DIGEST_LEN);
    memset(a->claim.fingerprint, 'f', NGX_IDEMPOTENCY_DIGEST_LEN);
    memset(a->claim.parts.identity, 'i', NGX_IDEMPOTENCY_IDENTITY_LEN);

    a->claim.op.handler = claim_handler;
    a->claim.op.data = a;
    a->claim.window = WINDOW;
    a->claim.lease = LEASE;
    a->claim.pool = unit_pool;
}


/* may it have the token? */

static void
claimed(actor_t *a)
{
    truth_t                   *t;
    ngx_int_t                  since;
    ngx_uint_t                 bound;
    ngx_idempotency_record_t  *rec;

    t = &truths[a->token];
    since = (ngx_int_t) (ngx_current_msec - t->claimed);
    a->taken = 0;

    switch (t->state) {

    case FRESH:
        break;

    case DONE:
        check((ngx_int_t) (ngx_current_msec - t->until) >= 0);
        break;

    case DOUBT:
        bound = ((ngx_int_t) (ngx_current_msec - t->least) < 0);
        check(a->claim.retry || !bound);
        a->taken = bound;
        doubts++;
        break;

    case PENDING:
        check(t->stood);
        check(since >= (a->claim.retry ? 0 : WINDOW));
        a->taken = (since < WINDOW);
        doubts++;
        break;
    }

    executions++;

    t->state = PENDING;
    t->stood = 0;
    t->owner = a - actors;
    t->executed++;

    /* its lease runs from when it was granted, which it may hear of later */

    rec = ngx_idempotency_record_current(&workers[a->worker].shm,
                                         a->claim.op.token, ngx_current_msec);
    t->claimed = rec->recorded;

    a->act = OWNS;
}


/* what is told of a token is in the file, unless that fails, or is full */

static ngx_uint_t
file_has_it(ngx_idempotency_claim_t *claim)
{
    ngx_idempotency_shm_t     *shm;
    ngx_idempotency_record_t  *rec;

    shm = &workers[((actor_t *) claim->op.data)->worker].shm;
    rec = ngx_idempotency_record_current(shm, claim->op.token,
                                         ngx_current_msec);

    return rec == NULL || rec->fence != claim->found.fence
           || shm->sh->tier.failing
           || rec->flush == NGX_IDEMPOTENCY_ASIDE
           || rec->flush == NGX_IDEMPOTENCY_FLUSHED;
}


static void
result(actor_t *a)
{
    truth_t  *t;

    t = &truths[a->token];

    if (a->claim.op.waiting) {
        return;
    }

    a->act = IDLE;

    switch (a->claim.op.result) {

    case NGX_IDEMPOTENCY_CLAIMED:
        claimed(a);
        return;

    case NGX_IDEMPOTENCY_BOUND:

        if (a->claim.found.outcome == NGX_IDEMPOTENCY_DONE) {
            replays++;

            check(!strict || file_has_it(&a->claim));

            /* the last execution's, and it is bound yet */

            check_equal(a->claim.found.status, t->executed);
            check(t->state == DONE || t->state == DOUBT);
            check((ngx_int_t) (ngx_current_msec - t->until) < 0);
        }

        return;

    case NGX_IDEMPOTENCY_UNAVAILABLE:
        refusals++;
        return;

    default:
        check(!"a result that may be");
    }
}


/* the file has it, unless that fails, or is full */

static void
told(ngx_idempotency_op_t *op)
{
    actor_t                   *a;
    ngx_idempotency_shm_t     *shm;
    ngx_idempotency_record_t  *rec;

    a = op->data;
    shm = &workers[a->worker].shm;
    rec = ngx_idempotency_record_current(shm, op->token, ngx_current_msec);

    check(rec == NULL || shm->sh->tier.failing
          || rec->fence != a->complete.fence
          || rec->flush == NGX_IDEMPOTENCY_ASIDE
          || rec->flush == NGX_IDEMPOTENCY_FLUSHED);

    check_equal(a->act, TELLS);
    a->act = IDLE;
}


static void
ends(actor_t *a, ngx_uint_t releases)
{
    u_char                      body[6000];
    truth_t                    *t;
    ngx_buf_t                   b;
    ngx_int_t                   rc;
    worker_t                   *w;
    ngx_uint_t                  mine;
    ngx_chain_t                 cl;
    ngx_idempotency_complete_t  release;
    ngx_idempotency_result_e    how;

    w = &workers[a->worker];
    t = &truths[a->token];
    mine = (t->owner == a - actors);

    double_become(a->worker);

    if (releases) {
        ngx_memzero(&release, sizeof(ngx_idempotency_complete_t));
        release.op = a->claim.op;
        release.op.now = ngx_current_msec;
        release.fence = a->claim.fence;
        release.release = 1;

        (void) ngx_idempotency_shm_engine.complete(&w->store, &release);
        how = release.op.result;
        rc = NGX_OK;

    } else {
        ngx_memzero(&a->complete, sizeof(ngx_idempotency_complete_t));
        a->complete.op = a->claim.op;
        a->complete.op.now = ngx_current_msec;
        a->complete.op.handler = told;
        a->complete.op.resume = NULL;
        a->complete.fence = a->claim.fence;
        a->complete.outcome = NGX_IDEMPOTENCY_DONE;
        a->complete.status = t->executed;
        a->complete.size = 1 + unit_below(&seed, unit_below(&seed, 2)
                                                 ? sizeof(body) : 20);

        memset(body, 'r', a->complete.size);
        ngx_memzero(&b, sizeof(ngx_buf_t));
        b.pos = body;
        b.last = body + a->complete.size;
        cl.buf = &b;
        cl.next = NULL;
        a->complete.pieces = &cl;

        rc = ngx_idempotency_shm_engine.complete(&w->store, &a->complete);
        how = a->complete.op.result;
    }

    a->act = (rc == NGX_AGAIN) ? TELLS : IDLE;

    switch (how) {

    case NGX_IDEMPOTENCY_OK:

        /* a stale owner never records */

        check(mine);

        /* what was in doubt before is so again */

        t->state = !releases ? DONE : a->taken ? DOUBT : FRESH;
        t->until = ngx_current_msec + WINDOW;
        t->least = t->until;

        if (releases) {
            t->owner = -1;
        }

        break;

    case NGX_IDEMPOTENCY_STALE:

        if (mine) {
            t->state = DOUBT;
            t->owner = -1;

            /* from when somebody noticed, which is before now */

            t->until = t->claimed + LEASE + WINDOW;
            t->least = t->until;
        }

        break;

    default:
        check(!"a result that may be");
    }
}


static void
leaves(actor_t *a)
{
    double_become(a->worker);
    ngx_idempotency_shm_engine.cancel(&workers[a->worker].store,
                                      &a->claim.op);
    a->act = IDLE;
}


/* --- what happens --------------------------------------------------------- */


static void
wake(void)
{
    uint64_t      keys[DOUBLE_WAKES];
    ngx_uint_t    i, n;
    ngx_event_t  *ev;

    if (double_woken_all) {
        double_woken_all = 0;
        ngx_idempotency_shm_woken(NULL);
    }

    while (double_nwakes) {
        n = double_nwakes;

        for (i = 0; i < n; i++) {
            keys[i] = double_wakes[i].key;
        }

        double_nwakes = 0;

        for (i = 0; i < n; i++) {
            ngx_idempotency_shm_woken(&keys[i]);
        }
    }

    /* the next turns of the event loop */

    while (!ngx_queue_empty(&ngx_posted_next_events)) {
        ev = ngx_queue_data(ngx_queue_head(&ngx_posted_next_events),
                            ngx_event_t, queue);

        ngx_delete_posted_event(ev);
        ev->handler(ev);
    }
}


static void
expire_timer(ngx_event_t *ev)
{
    if (ev->timer_set
        && (ngx_msec_int_t) (ev->timer.key - ngx_current_msec) <= 0)
    {
        ngx_del_timer(ev);
        ev->handler(ev);
    }
}


static void
worker_runs(ngx_uint_t n)
{
    worker_t  *w;

    w = &workers[n];

    if (!w->up || double_workers[n].state != DOUBLE_ALIVE) {
        return;
    }

    double_become(n);

    expire_timer(&w->tier.retry);
    expire_timer(&w->tier.poll);
    expire_timer(&w->tier.watch);

    if (w->flying && !hangs && unit_below(&seed, 2)) {
        commit(w);
        w->flying = 0;
        ngx_idempotency_batch_flushed(&w->tier, w->tier.batches);
    }

}


static void
actor_runs(actor_t *a, ngx_uint_t quiet)
{
    if (a->act != IDLE
        && double_workers[a->worker].state != DOUBLE_ALIVE)
    {
        return;
    }

    switch (a->act) {

    case IDLE:
        if (!quiet) {
            begins(a);
        }

        break;

    case WAITS:
        if (a->woken || ngx_current_msec - a->asked >= 500) {

            if (a->claim.wait && !quiet && unit_below(&seed, 30) == 0) {
                a->claim.wait = 0;
            }

            ask(a);

        } else if (!quiet && unit_below(&seed, 20) == 0) {
            leaves(a);
        }

        break;

    case OWNS:
        if (quiet || unit_below(&seed, 3) == 0) {
            ends(a, unit_below(&seed, 5) == 0);
        }

        break;

    case TELLS:
        break;
    }
}


static void
worker_stands(ngx_uint_t n)
{
    ngx_uint_t  i;

    double_workers[n].state = DOUBLE_SILENT;

    for (i = 0; i < TOKENS; i++) {
        if (truths[i].state == PENDING
            && actors[truths[i].owner].worker == n)
        {
            truths[i].stood = 1;
        }
    }
}


/* all that may leave the zone does */

static void
memory_is_short(ngx_idempotency_shm_t *shm)
{
    check_equal(ngx_idempotency_shm_lock(shm), NGX_OK);

    while (ngx_idempotency_record_free_some(shm, ngx_current_msec)) {
        /* void */
    }

    ngx_idempotency_shm_unlock(shm);
}


/* all who have nothing to do come at once */

static void
crowd(void)
{
    ngx_uint_t  i;

    for (i = 0; i < ACTORS; i++) {
        if (actors[i].act == IDLE) {
            begins(&actors[i]);
            wake();
        }
    }
}


static void
upset(void)
{
    ngx_uint_t  n;

    n = unit_below(&seed, WORKERS);

    switch (unit_below(&seed, 13)) {

    case 0:
        if (workers[n].up) {
            worker_killed(n);
        }
        break;

    case 1:
    case 2:
        if (!workers[n].up && groups[n / 2].up) {
            worker_up(n);
        }
        break;

    case 3:
        if (workers[n].up) {
            worker_stands(n);
        }
        break;

    case 4:
        for (n = 0; n < WORKERS; n++) {
            if (workers[n].up) {
                double_workers[n].state = DOUBLE_ALIVE;
            }
        }
        break;

    case 5:
        failing = !failing;
        break;

    case 6:
    case 7:
        if (!groups[n / 2].up) {
            crowd();
            group_up(n / 2);
            crowd();

        } else if (kills) {
            group_killed(n / 2);

        } else if (!group_busy(n / 2) && workers[n / 2 * 2].up
                   && workers[n / 2 * 2 + 1].up
                   && double_workers[n / 2 * 2].state == DOUBLE_ALIVE
                   && double_workers[n / 2 * 2 + 1].state == DOUBLE_ALIVE)
        {
            group_quits(n / 2);
        }
        break;

    case 8:
        ngx_current_msec += unit_below(&seed, WINDOW);
        break;

    case 9:
        crammed = !crammed;
        break;

    case 10:
        hangs = !hangs;
        ngx_current_msec += hangs ? 1100 : 0;
        break;

    default:
        if (workers[n].up) {
            memory_is_short(&workers[n].shm);
        }
        break;
    }
}


static void
round_of(ngx_uint_t quiet)
{
    ngx_uint_t  i;

    ngx_current_msec += unit_below(&seed, 12);

    for (i = 0; i < WORKERS; i++) {
        worker_runs(i);
        wake();
    }

    for (i = 0; i < ACTORS; i++) {
        if (quiet || unit_below(&seed, 3) == 0) {
            actor_runs(&actors[i], quiet);
            wake();
        }
    }
}


static ngx_uint_t
is_pending(actor_t *a)
{
    return a->act == IDLE
           && a->claim.op.result == NGX_IDEMPOTENCY_BOUND
           && a->claim.found.outcome == NGX_IDEMPOTENCY_PENDING;
}


/* once nothing goes wrong any more, nobody waits, and each token has its
   answer in each instance */

static void
settle(void)
{
    ngx_uint_t  i, n;
    actor_t    *a;

    failing = crammed = hangs = 0;

    for (i = 0; i < GROUPS; i++) {
        if (!groups[i].up) {
            group_up(i);
        }
    }

    for (i = 0; i < WORKERS; i++) {
        if (!workers[i].up) {
            worker_up(i);
        }

        double_workers[i].state = DOUBLE_ALIVE;
    }

    for (n = 0; n < 600; n++) {
        round_of(1);
    }

    a = actors;

    for (i = 0; i < ACTORS; i++) {
        check_equal(actors[i].act, IDLE);
    }

    for (i = 0; i < WORKERS * TOKENS; i++) {
        asks_for(a, i % WORKERS, i / WORKERS);
        ask(a);

        /* what was so before the file failed is so no more: whoever comes again
           is told that */

        for (n = 0; n < 200 && (a->act == WAITS || is_pending(a)); n++) {
            round_of(1);

            if (is_pending(a)) {
                ask(a);
            }
        }

        check(a->act == OWNS
              || (a->act == IDLE && !is_pending(a)
                  && a->claim.op.result == NGX_IDEMPOTENCY_BOUND));

        if (a->act == OWNS) {
            ends(a, 0);
        }

        /* until the other one can know */

        for (n = 0; n < 100; n++) {
            round_of(1);
        }

        check_equal(a->act, IDLE);
    }
}


static void
life_begins(uint64_t first, ngx_uint_t is_strict, ngx_uint_t is_killed)
{
    ngx_uint_t  i;

    ngx_rbtree_init(&ngx_event_timer_rbtree, &timers,
                    ngx_rbtree_insert_timer_value);

    unit_expect("idempotency: ");

    strict = is_strict;
    kills = is_killed;
    seed = first;

    double_reset();
    ngx_memzero(actors, sizeof(actors));
    ngx_memzero(truths, sizeof(truths));
    ngx_memzero(groups, sizeof(groups));
    ngx_memzero(workers, sizeof(workers));

    ngx_current_msec = 100000;
    failing = crammed = down = hangs = 0;
    executions = replays = doubts = refusals = 0;

    file_make(NULL);
    group_up(0);

    for (i = 0; i < TOKENS; i++) {
        truths[i].owner = -1;
    }
}


/* one nginx over a batched file */

void
unit_setup(void)
{
    life_begins(1, 0, 1);
}


void
unit_teardown(void)
{
    ngx_uint_t  i;

    for (i = 0; i < GROUPS; i++) {
        if (groups[i].up) {
            group_killed(i);
        }
    }

    unit_expect(NULL);
    file_remove();
}


static void
life(uint64_t first, ngx_uint_t is_strict, ngx_uint_t is_killed)
{
    ngx_uint_t  i, n;

    n = unit_setting("UNIT_STEPS", 20000);

    life_begins(first, is_strict, is_killed);

    for (i = 1; i <= n; i++) {
        round_of(0);

        if (unit_below(&seed, 12) == 0) {
            upset();
            wake();
        }

        if (i % 500 == 0) {
            settle();
        }
    }

    unit_note("%lu executions, %lu replays, %lu of what was in doubt, "
              "%lu unavailable", executions, replays, doubts, refusals);

    check(executions > 50);
    check(replays > 50);

    unit_teardown();
}


static void
lives(ngx_uint_t is_strict, ngx_uint_t is_killed)
{
    uint64_t  first, i;

    first = unit_setting("UNIT_SEED", 1);

    for (i = 0; i < LIVES; i++) {
        life(first * LIVES + i, is_strict, is_killed);
    }
}


bare_case("strict: two instances, kill -9")
{
    lives(1, 1);
}


bare_case("batched: two instances, kill -9")
{
    lives(0, 1);
}


bare_case("batched: two instances that come and go, their workers die")
{
    lives(0, 0);
}


/* --- one after the other -------------------------------------------------- */


/* what it has taken over is told */

static ngx_uint_t
tells(ngx_uint_t n)
{
    worker_t  *w;

    w = &workers[n];

    double_become(n);
    expire_timer(&w->tier.retry);

    if (!w->flying) {
        return 0;
    }

    commit(w);
    w->flying = 0;
    ngx_idempotency_batch_flushed(&w->tier, w->tier.batches);
    wake();

    return 1;
}


/* ... and whoever waited for that asks again */

static void
hear(ngx_uint_t n)
{
    ngx_uint_t  i;

    for (i = 0; i < ACTORS; i++) {
        if (actors[i].worker == n && actors[i].act == WAITS
            && actors[i].woken)
        {
            ask(&actors[i]);
        }
    }
}


static void
tells_all(ngx_uint_t n)
{
    ngx_uint_t  i;

    for (i = 0; i < 10; i++) {
        ngx_current_msec += 2;

        if (tells(n)) {
            hear(n);
        }
    }
}


/* what was told to be in doubt another instance may have taken over */

unit_case("what another one took over is its own, even if it has gone")
{
    comes(&actors[0], 1, 1, 1);
    tells_all(1);
    check_equal(actors[0].act, OWNS);
    worker_killed(1);

    ngx_current_msec += 200;
    double_become(0);
    ngx_idempotency_shm_sweep(&workers[0].shm, ngx_current_msec);
    tells_all(0);

    group_up(1);

    comes(&actors[1], 2, 1, 1);
    tells_all(2);
    check_equal(actors[1].act, OWNS);
    ends(&actors[1], 0);
    tells_all(2);
    group_killed(1);

    comes(&actors[2], 0, 1, 1);
    tells_all(0);

    check_equal(actors[2].claim.op.result, NGX_IDEMPOTENCY_BOUND);
    check_equal(actors[2].claim.found.outcome, NGX_IDEMPOTENCY_DONE);
}


static ngx_idempotency_record_t *
record_of(ngx_uint_t n, ngx_uint_t token)
{
    u_char  digest[NGX_IDEMPOTENCY_DIGEST_LEN];

    memset(digest, 'a' + (int) token, NGX_IDEMPOTENCY_DIGEST_LEN);

    return ngx_idempotency_record_current(&workers[n].shm, digest,
                                          ngx_current_msec);
}


static void
looks(ngx_uint_t n)
{
    double_become(n);

    ngx_del_timer(&workers[n].tier.watch);
    workers[n].tier.watch.handler(&workers[n].tier.watch);
    wake();
}


/* a client goes while its question is on its way: who comes next asks no other
   one, and gets the answer */

unit_case("a question whose client has gone")
{
    uint64_t  fence;

    comes(&actors[0], 0, 0, 1);
    check(workers[0].flying);
    fence = record_of(0, 0)->fence;
    leaves(&actors[0]);

    comes(&actors[1], 1, 0, 1);
    check_equal(actors[1].act, WAITS);
    check_equal(record_of(1, 0)->fence, fence);

    check(tells(0));
    hear(1);
    check_equal(actors[1].act, OWNS);
    check_equal(actors[1].claim.fence, fence);

    ends(&actors[1], 0);
    tells_all(0);
    tells_all(1);
}


/* ... and if nobody comes it is given back: it holds up no other instance */

unit_case("... that nobody asks again")
{
    comes(&actors[0], 0, 0, 1);
    leaves(&actors[0]);
    tells_all(0);

    group_up(1);
    comes(&actors[1], 2, 0, 1);
    tells_all(2);
    check_equal(actors[1].act, OWNS);
}


/* the file hangs, and its answer comes when nobody waits for it any more */

unit_case("a file that hangs, and answers late")
{
    comes(&actors[0], 0, 0, 1);
    check(workers[0].flying);

    ngx_current_msec += 999;
    looks(1);
    check(!workers[0].shm.sh->tier.failing);

    ngx_current_msec += 2;
    looks(1);
    check(workers[0].shm.sh->tier.failing);

    hear(0);
    check_equal(actors[0].act, IDLE);
    check_equal(refusals, 1);

    /* who comes then is told at once */

    comes(&actors[1], 1, 0, 1);
    check_equal(actors[1].act, IDLE);
    comes(&actors[2], 1, 2, 1);
    check_equal(actors[2].act, IDLE);
    check_equal(refusals, 3);
    check(!workers[1].flying);

    /* it has granted what nobody wants, and takes it back before anybody is
       let in */

    check(tells(0));
    check(workers[0].shm.sh->tier.failing);
    comes(&actors[1], 1, 0, 1);
    check_equal(refusals, 4);
    check(tells(0));
    check(!workers[0].shm.sh->tier.failing);

    group_up(1);
    comes(&actors[1], 2, 0, 1);
    tells_all(2);
    check_equal(actors[1].act, OWNS);
}


/* by its own timers: a hang shows when it is 1 s old, and the file is back 0.1 s
   after its first answer */

static ngx_msec_t
until_failing(ngx_uint_t failing, ngx_uint_t answers)
{
    ngx_uint_t  n;
    ngx_msec_t  since;

    since = ngx_current_msec;

    while (workers[0].shm.sh->tier.failing != failing
           && ngx_current_msec - since < 10000)
    {
        for (n = 0; n < 2; n++) {
            if (answers) {
                (void) tells(n);
            }

            worker_runs(n);
        }

        ngx_current_msec++;
    }

    return ngx_current_msec - since;
}


bare_case("... when it shows, and when the file is back")
{
    ngx_uint_t  i;
    ngx_msec_t  after;

    /* what hangs: a question, an outcome; batched, and strict */

    for (i = 0; i < 4; i++) {
        life_begins(1, i & 1, 1);
        comes(&actors[0], 0, 0, 1);

        if (i & 2) {
            tells_all(0);
            ends(&actors[0], 0);

            while (!workers[0].flying) {
                ngx_current_msec++;
                worker_runs(0);
            }
        }

        hangs = 1;
        after = until_failing(1, 0);
        check(after >= 1000 && after <= 1100);

        (void) until_failing(0, 0);
        check(workers[0].shm.sh->tier.failing);

        check(until_failing(0, 1) <= 100);
        hangs = 0;

        comes(&actors[1], 1, 1, 1);
        tells_all(0);
        tells_all(1);
        hear(1);
        check_equal(actors[1].act, OWNS);

        unit_teardown();
    }
}


/* a busy worker hears late what the file has answered in time: no hang */

unit_case("a file that answers, and is heard late, does not hang")
{
    comes(&actors[0], 0, 0, 1);
    check(workers[0].flying);

    ngx_idempotency_batch_answered(workers[0].tier.batches);
    ngx_current_msec += 5000;
    looks(1);
    check(!workers[0].shm.sh->tier.failing);

    comes(&actors[1], 1, 1, 1);
    check_equal(actors[1].act, WAITS);

    tells_all(0);
    check_equal(actors[0].act, OWNS);
    check_equal(refusals, 0);
}


/* ... and meanwhile this memory alone guards: the question is the claim of who
   does, whatever comes of it */

unit_case("... and this memory alone guards meanwhile")
{
    uint64_t  fence;

    comes(&actors[0], 0, 0, 1);
    fence = record_of(0, 0)->fence;
    ngx_current_msec += 1001;
    looks(1);
    hear(0);
    check_equal(refusals, 1);

    comes(&actors[1], 1, 0, 1);
    check_equal(refusals, 2);
    actors[1].claim.alone = 1;
    ask(&actors[1]);
    check_equal(actors[1].act, OWNS);
    check_equal(actors[1].claim.fence, fence);

    check(tells(0));
    check_equal(record_of(0, 0)->state, NGX_IDEMPOTENCY_PENDING);
    tells_all(0);
    check(!workers[0].shm.sh->tier.failing);

    comes(&actors[0], 0, 0, 1);
    check_equal(actors[0].claim.op.result, NGX_IDEMPOTENCY_BOUND);

    ends(&actors[1], 0);
    tells_all(1);
    tells_all(0);

    group_up(1);
    comes(&actors[2], 2, 0, 1);
    tells_all(2);
    check_equal(actors[2].claim.op.result, NGX_IDEMPOTENCY_BOUND);
    check_equal(actors[2].claim.found.outcome, NGX_IDEMPOTENCY_DONE);
}


unit_case("a file that fails is asked whether it does still")
{
    ngx_uint_t  i;

    comes(&actors[0], 0, 0, 1);
    down = 1;
    check(tells(0));
    check(workers[0].shm.sh->tier.failing);
    hear(0);
    check_equal(refusals, 1);

    for (i = 0; i < 5; i++) {
        ngx_current_msec += 100;
        looks(0);
        looks(1);
        (void) tells(0);
        (void) tells(1);
        check(workers[0].shm.sh->tier.failing);
    }

    down = 0;

    for (i = 0; i < 3; i++) {
        ngx_current_msec += 100;
        looks(0);
        looks(1);
        (void) tells(0);
        (void) tells(1);
    }

    check(!workers[0].shm.sh->tier.failing);

    comes(&actors[1], 1, 0, 1);
    tells_all(1);
    check_equal(actors[1].act, OWNS);
}


/* one stands still with its question, and another asks the same under its
   number: whose the answer is, is told by another one */

unit_case("a worker that stands still while it asks")
{
    comes(&actors[0], 0, 0, 1);
    check(workers[0].flying);

    worker_stands(0);
    ngx_current_msec += 1500;

    comes(&actors[1], 1, 0, 1);
    looks(1);
    check(workers[1].flying);
    check(tells(1));

    /* it goes on: what it was telling is another's, as is what it asked for,
       though that one has yet to hear of it */

    double_workers[0].state = DOUBLE_ALIVE;
    actors[0].woken = 1;
    hear(0);
    check(actors[0].act != OWNS);

    hear(1);
    check_equal(actors[1].act, OWNS);

    check(tells(0));
    actors[0].woken = 1;
    hear(0);
    check(actors[0].act != OWNS);

    ends(&actors[1], 0);
    tells_all(1);
}
