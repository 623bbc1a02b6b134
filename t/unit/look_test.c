
/*
 * A look at what stands behind a zone: asked for only what is not known here,
 * answered later, and by nothing else than what is there; cancelled at any
 * time.  What stands behind is a double: what it is handed, it is told how to
 * answer.
 */


#include "zone.h"
#include "backing_double.h"
#include "workers_double.h"


#define PAGE  4096


static ngx_idempotency_tier_t   tier;
static ngx_idempotency_secret_t secret;
static ngx_rbtree_node_t        timers;

static ngx_uint_t               called;

static const ngx_idempotency_backing_t  *behind = &double_backing;

/* a look at the first token */

static ngx_idempotency_find_t   find;


static void token(ngx_idempotency_op_t *op, ngx_uint_t n);


void
unit_setup(void)
{
    double_reset();
    double_backing_reset();

    ngx_rbtree_init(&ngx_event_timer_rbtree, &timers,
                    ngx_rbtree_insert_timer_value);
    ngx_queue_init(&ngx_posted_events);

    ngx_current_msec = 5000;

    zone_open(&zone, 128 * PAGE, 0);

    ngx_memzero(&tier, sizeof(ngx_idempotency_tier_t));
    ngx_str_set(&tier.name, "script");

    tier.backing = behind;
    tier.shm = &zone.shm;
    tier.instance = 7;

    zone.shm.tier = &tier;
    zone.store.secret = &secret;

    ngx_idempotency_tier_init(&zone.shm);
    check_equal(ngx_idempotency_tier_init_process(&zone.shm, &unit_cycle),
                NGX_OK);

    ngx_memzero(&find, sizeof(ngx_idempotency_find_t));
    token(&find.op, 1);

    called = 0;
}


void
unit_teardown(void)
{
    ngx_event_t  *ev;

    check(double_batches[0] == NULL);

    while (ngx_event_timer_rbtree.root != &timers) {
        ev = ngx_rbtree_data(ngx_event_timer_rbtree.root, ngx_event_t, timer);
        ngx_del_timer(ev);
    }

    ngx_free(tier.batches);
    unit_unshared(zone.zone.shm.addr, zone.zone.shm.size);
}


static void
call(ngx_idempotency_op_t *op)
{
    called++;
}


static void
token(ngx_idempotency_op_t *op, ngx_uint_t n)
{
    op_token(op->token, n);
    op->now = ngx_current_msec;
    op->handler = call;
}


/* what is handed gets this answer; whoever waits for it is told */

static ngx_idempotency_item_t *
answer(ngx_idempotency_result_e result, ngx_idempotency_outcome_e outcome)
{
    uint64_t                  key;
    ngx_idempotency_item_t   *item;
    ngx_idempotency_batch_t  *batch;

    static ngx_idempotency_item_t  was;

    if (!check(double_batches[0] != NULL)
        || !check_equal(double_batches[0]->n, 1))
    {
        return &was;
    }

    batch = double_batch(0);

    item = &batch->items[0];
    was = *item;

    item->result = result;
    item->unsent = (result == NGX_IDEMPOTENCY_UNAVAILABLE);
    batch->rc = NGX_OK;

    if (result == NGX_IDEMPOTENCY_BOUND) {
        ngx_memset(item->fingerprint, 0x5f, NGX_IDEMPOTENCY_DIGEST_LEN);
        ngx_memset(item->parts.identity, 0x1d, NGX_IDEMPOTENCY_IDENTITY_LEN);
        item->outcome = outcome;
        item->status = 201;
        item->instance = 9;
        item->fence = 77;
        item->recorded = double_now(&tier) - 2000;
        item->ends = double_now(&tier) + 600000;
    }

    ngx_idempotency_batch_flushed(&tier, batch);

    key = ngx_idempotency_tree_key(was.token);
    ngx_idempotency_shm_woken(&key);

    return &was;
}


unit_case("what is there is found")
{
    ngx_idempotency_item_t  *item;

    check_equal(zone.store.engine->find(&zone.store, &find), NGX_AGAIN);
    check(find.op.waiting);
    check_equal(called, 0);

    item = answer(NGX_IDEMPOTENCY_BOUND, NGX_IDEMPOTENCY_DONE);

    /* it would not be claimed if it were fresh */

    check_equal(item->what, NGX_IDEMPOTENCY_ITEM_ASK);
    check(item->old && !item->retry);

    check_equal(called, 1);
    check(!find.op.waiting);
    check_equal(find.op.result, NGX_IDEMPOTENCY_BOUND);
    check_equal(find.found.outcome, NGX_IDEMPOTENCY_DONE);
    check_equal(find.found.status, 201);
    check_equal(find.found.age, 2000);
    check_equal(find.found.left, 600000);
    check_equal(find.found.replays, 0);
    check_equal(find.fingerprint[0], 0x5f);
    check_equal(find.parts.identity[0], 0x1d);

    /* now it is known here */

    check_equal(zone.store.engine->find(&zone.store, &find), NGX_OK);
    check_equal(find.op.result, NGX_IDEMPOTENCY_BOUND);
    check_equal(double_handed, 1);
}


unit_case("what is not, or can't be told, or changes")
{
    check_equal(zone.store.engine->find(&zone.store, &find), NGX_AGAIN);
    answer(NGX_IDEMPOTENCY_ABSENT, 0);
    check_equal(called, 1);
    check_equal(find.op.result, NGX_IDEMPOTENCY_ABSENT);

    token(&find.op, 2);

    check_equal(zone.store.engine->find(&zone.store, &find), NGX_AGAIN);
    answer(NGX_IDEMPOTENCY_UNAVAILABLE, 0);
    check_equal(called, 2);
    check_equal(find.op.result, NGX_IDEMPOTENCY_UNAVAILABLE);

    /* pending there: asked anew each time, as it changes */

    token(&find.op, 3);

    check_equal(zone.store.engine->find(&zone.store, &find), NGX_AGAIN);
    answer(NGX_IDEMPOTENCY_BOUND, NGX_IDEMPOTENCY_PENDING);
    check_equal(called, 3);
    check_equal(find.op.result, NGX_IDEMPOTENCY_BOUND);
    check_equal(find.found.outcome, NGX_IDEMPOTENCY_PENDING);

    token(&find.op, 3);

    check_equal(zone.store.engine->find(&zone.store, &find), NGX_AGAIN);
    answer(NGX_IDEMPOTENCY_BOUND, NGX_IDEMPOTENCY_DONE);
    check_equal(called, 4);
    check_equal(find.found.outcome, NGX_IDEMPOTENCY_DONE);
}


unit_case("nobody wants to know any more")
{
    ngx_idempotency_find_t  other;
    ngx_idempotency_list_t  list;

    ngx_memzero(&other, sizeof(ngx_idempotency_find_t));
    ngx_memzero(&list, sizeof(ngx_idempotency_list_t));

    /* of two that want the same one stays */

    token(&other.op, 1);

    check_equal(zone.store.engine->find(&zone.store, &find), NGX_AGAIN);
    check_equal(zone.store.engine->find(&zone.store, &other), NGX_AGAIN);
    check_equal(double_handed, 1);

    zone.store.engine->cancel(&zone.store, &find.op);
    check(!find.op.waiting);

    answer(NGX_IDEMPOTENCY_BOUND, NGX_IDEMPOTENCY_DONE);
    check_equal(called, 1);
    check(!other.op.waiting);
    check_equal(other.op.result, NGX_IDEMPOTENCY_BOUND);

    /* ... a page that nobody wants any more is read all the same */

    token(&list.op, 0);
    list.behind = 1;
    list.n = 10;

    check_equal(zone.store.engine->list(&zone.store, &list), NGX_AGAIN);
    zone.store.engine->cancel(&zone.store, &list.op);

    double_page->n = 0;
    ngx_idempotency_page_listed(double_page);
    check_equal(called, 1);
}


unit_case("forgotten there, too")
{
    ngx_idempotency_item_t   *item;
    ngx_idempotency_forget_t  forget;

    ngx_memzero(&forget, sizeof(ngx_idempotency_forget_t));
    token(&forget.op, 1);

    check_equal(zone.store.engine->forget(&zone.store, &forget), NGX_AGAIN);
    answer(NGX_IDEMPOTENCY_BOUND, NGX_IDEMPOTENCY_DONE);
    check_equal(called, 1);
    check_equal(forget.op.result, NGX_IDEMPOTENCY_OK);

    /* ... and what stands behind hears of it */

    item = answer(NGX_IDEMPOTENCY_OK, 0);
    check_equal(item->what, NGX_IDEMPOTENCY_ITEM_FORGET);
    check_equal(item->fence, 0);
    check_equal(ngx_memcmp(item->token, forget.op.token,
                           NGX_IDEMPOTENCY_DIGEST_LEN), 0);

    token(&forget.op, 2);
    double_handed = 0;

    check_equal(zone.store.engine->forget(&zone.store, &forget), NGX_AGAIN);
    answer(NGX_IDEMPOTENCY_ABSENT, 0);
    check_equal(called, 2);
    check_equal(forget.op.result, NGX_IDEMPOTENCY_ABSENT);
    check_equal(double_handed, 1);
}


/* where many things are on their way at once, the next question may overtake what
   is forgotten: whoever says that it is forgotten says so behind it */

static void
round_ends(void)
{
    if (tier.scheduled.posted) {
        ngx_delete_posted_event(&tier.scheduled);
        tier.scheduled.handler(&tier.scheduled);
    }
}


bare_case("forgotten there, and then said so")
{
    uint64_t                    key;
    ngx_idempotency_item_t     *item;
    ngx_idempotency_claim_t     claim;
    ngx_idempotency_forget_t    forget;
    ngx_idempotency_complete_t  release;

    behind = &double_shared;
    unit_setup();

    ngx_memzero(&forget, sizeof(ngx_idempotency_forget_t));
    token(&forget.op, 1);

    check_equal(zone.store.engine->forget(&zone.store, &forget), NGX_AGAIN);
    round_ends();
    answer(NGX_IDEMPOTENCY_BOUND, NGX_IDEMPOTENCY_DONE);
    check_equal(called, 0);

    /* ... whatever else changes */

    key = ngx_idempotency_tree_key(forget.op.token);
    ngx_idempotency_shm_woken(&key);
    check_equal(called, 0);

    round_ends();
    ngx_idempotency_shm_woken(&key);
    check_equal(called, 0);

    item = answer(NGX_IDEMPOTENCY_OK, 0);
    check_equal(item->what, NGX_IDEMPOTENCY_ITEM_FORGET);
    check_equal(called, 1);
    check_equal(forget.op.result, NGX_IDEMPOTENCY_OK);

    /* ... settled by hand */

    ngx_memzero(&claim, sizeof(ngx_idempotency_claim_t));
    token(&claim.op, 2);
    claim.window = 600000;
    claim.lease = 60000;

    check_equal(zone.store.engine->claim(&zone.store, &claim), NGX_AGAIN);
    round_ends();
    answer(NGX_IDEMPOTENCY_CLAIMED, 0);
    check_equal(called, 2);
    check_equal(zone.store.engine->claim(&zone.store, &claim), NGX_OK);
    check_equal(claim.op.result, NGX_IDEMPOTENCY_CLAIMED);

    ngx_memzero(&release, sizeof(ngx_idempotency_complete_t));
    token(&release.op, 2);
    release.fence = claim.fence;
    release.release = 1;
    release.settled = 1;

    check_equal(zone.store.engine->complete(&zone.store, &release), NGX_AGAIN);
    round_ends();
    item = answer(NGX_IDEMPOTENCY_OK, 0);
    check_equal(item->what, NGX_IDEMPOTENCY_ITEM_RELEASE);
    check(item->freed);
    check_equal(called, 3);
    check_equal(release.op.result, NGX_IDEMPOTENCY_OK);

    /* ... and what is told in vain keeps nobody */

    token(&forget.op, 3);
    check_equal(zone.store.engine->forget(&zone.store, &forget), NGX_AGAIN);
    round_ends();
    answer(NGX_IDEMPOTENCY_BOUND, NGX_IDEMPOTENCY_DONE);
    round_ends();

    unit_expect("is unavailable");
    double_batches[0]->items[0].failed = 1;
    answer(NGX_IDEMPOTENCY_UNAVAILABLE, 0);
    check_equal(called, 4);
    check_equal(forget.op.result, NGX_IDEMPOTENCY_OK);

    unit_teardown();
    behind = &double_backing;
}


/* its response needs room, and makes it of others than the record itself, however
   long nobody has wanted that; where there is none, it is what it was */

unit_case("room for itself")
{
    ngx_idempotency_item_t   *item;
    ngx_idempotency_batch_t  *batch;

    check_equal(zone.store.engine->find(&zone.store, &find), NGX_AGAIN);
    answer(NGX_IDEMPOTENCY_BOUND, NGX_IDEMPOTENCY_PENDING);
    check_equal(find.found.outcome, NGX_IDEMPOTENCY_PENDING);

    token(&find.op, 1);
    check_equal(zone.store.engine->find(&zone.store, &find), NGX_AGAIN);

    ngx_current_msec += NGX_IDEMPOTENCY_SHM_LEFTOVER + 1;
    zone_occupy(&zone, 1);

    batch = double_batch(0);
    item = &batch->items[0];
    batch->rc = NGX_OK;
    item->result = NGX_IDEMPOTENCY_BOUND;
    item->outcome = NGX_IDEMPOTENCY_DONE;
    item->recorded = double_now(&tier) - 2000;
    item->ends = double_now(&tier) + 600000;
    item->response.len = 3 * PAGE;
    item->response.data = ngx_calloc(item->response.len, unit_cycle.log);

    ngx_idempotency_batch_flushed(&tier, batch);
    zone_vacate(&zone);

    check_equal(zone_size(&zone.shm.sh->remote), 1);

    zone.store.engine->cancel(&zone.store, &find.op);
}


/* a doubt that memory alone guards now, and that is taken over, makes room of
   others than itself */

unit_case("room for a doubt that is taken over")
{
    ngx_idempotency_claim_t     claim;
    ngx_idempotency_complete_t  complete;

    ngx_memzero(&claim, sizeof(ngx_idempotency_claim_t));
    token(&claim.op, 1);
    claim.window = 600000;
    claim.lease = 60000;
    claim.retry = 1;

    check_equal(zone.store.engine->claim(&zone.store, &claim), NGX_AGAIN);
    answer(NGX_IDEMPOTENCY_CLAIMED, 0);
    check_equal(zone.store.engine->claim(&zone.store, &claim), NGX_OK);

    ngx_memzero(&complete, sizeof(ngx_idempotency_complete_t));
    token(&complete.op, 1);
    complete.fence = claim.fence;
    complete.outcome = NGX_IDEMPOTENCY_IN_DOUBT;
    complete.status = 504;

    check_equal(zone.store.engine->complete(&zone.store, &complete), NGX_OK);
    answer(NGX_IDEMPOTENCY_OK, 0);

    zone.shm.sh->tier.failing = 1;
    claim.alone = 1;
    zone_occupy(&zone, 1);

    check_equal(zone.store.engine->claim(&zone.store, &claim), NGX_OK);
    check_equal(claim.op.result, NGX_IDEMPOTENCY_UNAVAILABLE);

    zone_vacate(&zone);

    check_equal(zone.store.engine->claim(&zone.store, &claim), NGX_OK);
    check_equal(claim.op.result, NGX_IDEMPOTENCY_CLAIMED);
    check_equal(claim.taken, 1);
    zone_check(&zone);
}


/* another nginx may have made what stands behind forget it: for a minute the copy
   that is here is as good */

unit_case("forgotten by another nginx")
{
    ngx_idempotency_claim_t  claim;

    check_equal(zone.store.engine->find(&zone.store, &find), NGX_AGAIN);
    answer(NGX_IDEMPOTENCY_BOUND, NGX_IDEMPOTENCY_DONE);

    ngx_memzero(&claim, sizeof(ngx_idempotency_claim_t));
    claim.window = 1000;
    claim.lease = 500;
    claim.pool = unit_pool;

    /* no other one was ever there */

    ngx_current_msec += 60001;
    token(&claim.op, 1);

    check_equal(zone.store.engine->claim(&zone.store, &claim), NGX_OK);
    check_equal(claim.op.result, NGX_IDEMPOTENCY_CONFLICT);

    /* one is, and the copy is young, or old */

    ngx_current_msec -= 2;
    zone.shm.sh->tier.others = ngx_current_msec - 1000;
    token(&claim.op, 1);

    check_equal(zone.store.engine->claim(&zone.store, &claim), NGX_OK);
    check_equal(claim.op.result, NGX_IDEMPOTENCY_CONFLICT);
    check_equal(double_handed, 1);

    ngx_current_msec++;
    token(&claim.op, 1);

    check_equal(zone.store.engine->claim(&zone.store, &claim), NGX_AGAIN);
    check_equal(double_handed, 2);
    answer(NGX_IDEMPOTENCY_CLAIMED, 0);
    check_equal(called, 2);

    check_equal(zone.store.engine->claim(&zone.store, &claim), NGX_OK);
    check_equal(claim.op.result, NGX_IDEMPOTENCY_CLAIMED);
}


/* the look's is the last of the timers */

static void
look_again(void)
{
    ngx_event_t        *ev;
    ngx_rbtree_node_t  *node;

    if (!check(ngx_event_timer_rbtree.root != &timers)) {
        return;
    }

    for (node = ngx_event_timer_rbtree.root; node->right != &timers;
         node = node->right)
    {
        /* void */
    }

    ev = ngx_rbtree_data(node, ngx_event_t, timer);

    ngx_current_msec = node->key;
    ngx_rbtree_delete(&ngx_event_timer_rbtree, node);
    ev->timer_set = 0;
    ev->handler(ev);
}


/* an answer that nobody was woken for is looked for all the same */

unit_case("a wake-up that was lost")
{
    ngx_idempotency_batch_t  *batch;

    check_equal(zone.store.engine->find(&zone.store, &find), NGX_AGAIN);

    batch = double_batch(0);
    batch->items[0].result = NGX_IDEMPOTENCY_ABSENT;
    batch->rc = NGX_OK;
    ngx_idempotency_batch_flushed(&tier, batch);

    check_equal(called, 0);
    look_again();
    check_equal(called, 1);
    check_equal(find.op.result, NGX_IDEMPOTENCY_ABSENT);
}


/* ... and so is the end of a release, whether or not it was looked for before */

bare_case("a wake-up that was lost, behind a release")
{
    ngx_idempotency_batch_t  *batch;
    ngx_idempotency_forget_t  forget;

    behind = &double_shared;
    unit_setup();

    check_equal(zone.store.engine->find(&zone.store, &find), NGX_AGAIN);
    round_ends();
    answer(NGX_IDEMPOTENCY_BOUND, NGX_IDEMPOTENCY_DONE);
    check_equal(called, 1);

    ngx_memzero(&forget, sizeof(ngx_idempotency_forget_t));
    token(&forget.op, 1);

    check_equal(zone.store.engine->forget(&zone.store, &forget), NGX_AGAIN);
    round_ends();

    look_again();
    check_equal(called, 1);

    batch = double_batch(0);
    batch->items[0].result = NGX_IDEMPOTENCY_OK;
    batch->rc = NGX_OK;
    ngx_idempotency_batch_flushed(&tier, batch);

    check_equal(called, 1);
    look_again();
    check_equal(called, 2);
    check_equal(forget.op.result, NGX_IDEMPOTENCY_OK);

    unit_teardown();
    behind = &double_backing;
}


unit_case("a list, page by page")
{
    ngx_idempotency_list_t    list;
    ngx_idempotency_listed_t  rows[10];

    ngx_memzero(&list, sizeof(ngx_idempotency_list_t));
    token(&list.op, 0);
    list.behind = 1;
    list.listed = rows;
    list.n = 10;

    check_equal(zone.store.engine->list(&zone.store, &list), NGX_AGAIN);
    check_equal(double_page->cursor, 0);
    check_equal(double_page->n, 10);

    double_page->n = 3;
    double_page->now = 1000000;
    double_page->cursor = 42;
    op_token(double_page->token, 99);

    ngx_memzero(double_page->items, 3 * sizeof(ngx_idempotency_item_t));

    op_token(double_page->items[0].token, 11);
    double_page->items[0].result = NGX_IDEMPOTENCY_BOUND;
    double_page->items[0].outcome = NGX_IDEMPOTENCY_DONE;
    double_page->items[0].what = NGX_IDEMPOTENCY_ITEM_FIND;
    double_page->items[0].length_only = 1;
    double_page->items[0].response.len = 10;
    double_page->items[0].recorded = 990000;
    double_page->items[0].ends = 1050000;

    /* it has ended since */

    double_page->items[1].result = NGX_IDEMPOTENCY_ABSENT;

    op_token(double_page->items[2].token, 13);
    double_page->items[2].result = NGX_IDEMPOTENCY_BOUND;
    double_page->items[2].outcome = NGX_IDEMPOTENCY_PENDING;
    double_page->items[2].instance = 9;
    double_page->items[2].recorded = 999000;

    ngx_idempotency_page_listed(double_page);

    check_equal(called, 1);
    check_equal(list.op.result, NGX_IDEMPOTENCY_OK);
    check_equal(list.n, 2);
    check_equal(list.cursor, 42);
    check_equal(rows[0].found.age, 10000);
    check_equal(rows[0].found.left, 50000);
    check_equal(rows[0].found.instance, 0);
    check_equal(rows[1].found.outcome, NGX_IDEMPOTENCY_PENDING);
    check_equal(rows[1].found.instance, 9);
    check_equal(rows[1].found.age, 1000);

    /* on from there; and it fails */

    list.n = 10;

    check_equal(zone.store.engine->list(&zone.store, &list), NGX_AGAIN);
    check_equal(double_page->cursor, 42);
    check_equal(ngx_memcmp(double_page->token, list.op.token,
                           NGX_IDEMPOTENCY_DIGEST_LEN), 0);

    double_page->rc = NGX_ERROR;
    ngx_idempotency_page_listed(double_page);

    check_equal(called, 2);
    check_equal(list.n, 0);
    check_equal(list.op.result, NGX_IDEMPOTENCY_UNAVAILABLE);
}


/* what a stranger's claim here leaves as it is */

unit_case("a look counts as nothing")
{
    ngx_idempotency_figures_t  figures;

    check_equal(zone.store.engine->find(&zone.store, &find), NGX_AGAIN);

    check_equal(zone.store.engine->figures(&zone.store, ngx_current_msec,
                                           &figures), NGX_OK);
    check_equal(figures.records[NGX_IDEMPOTENCY_PENDING], 0);
    check_equal(figures.undelivered, 1);
    check(ngx_strcmp(figures.kind, "script") == 0);

    answer(NGX_IDEMPOTENCY_BOUND, NGX_IDEMPOTENCY_DONE);

    check_equal(zone.store.engine->figures(&zone.store, ngx_current_msec,
                                           &figures), NGX_OK);
    check_equal(figures.records[NGX_IDEMPOTENCY_DONE], 1);
    check_equal(figures.undelivered, 0);
    check_equal(figures.counters.races, 0);
}


/* a claim of the first token */

static void
claim_as(ngx_idempotency_claim_t *claim, u_char who)
{
    ngx_memzero(claim, sizeof(ngx_idempotency_claim_t));

    token(&claim->op, 1);

    ngx_memset(claim->fingerprint, who, NGX_IDEMPOTENCY_DIGEST_LEN);
    ngx_memset(claim->parts.identity, who, NGX_IDEMPOTENCY_IDENTITY_LEN);

    claim->window = 60000;
    claim->lease = 60000;
    claim->pool = unit_pool;
    claim->wait = 1;
}


/* it waited for the owner's answer, and looks only when the owner has gone */

unit_case("a release leaves nothing to a stranger")
{
    op_t                        response;
    ngx_idempotency_claim_t     owner, stranger, same;
    ngx_idempotency_complete_t  release;

    claim_as(&owner, 1);
    claim_as(&stranger, 2);
    claim_as(&same, 1);

    check_equal(zone.store.engine->claim(&zone.store, &owner), NGX_AGAIN);
    check_equal(zone.store.engine->claim(&zone.store, &stranger), NGX_AGAIN);

    answer(NGX_IDEMPOTENCY_CLAIMED, 0);
    check_equal(called, 2);

    check_equal(zone.store.engine->claim(&zone.store, &owner), NGX_OK);
    check_equal(owner.op.result, NGX_IDEMPOTENCY_CLAIMED);

    check_equal(zone.store.engine->claim(&zone.store, &same), NGX_OK);
    check(same.op.waiting);

    op_init(&response, 1, 1, ngx_current_msec);
    op_respond(&response, 10, 429);

    ngx_memzero(&release, sizeof(ngx_idempotency_complete_t));
    token(&release.op, 1);

    release.fence = owner.fence;
    release.release = 1;
    release.status = 429;
    release.pieces = response.pieces;
    release.size = response.size;

    check_equal(zone.store.engine->complete(&zone.store, &release), NGX_OK);

    check_equal(zone.store.engine->claim(&zone.store, &stranger), NGX_AGAIN);
    check(!stranger.leftover);

    check_equal(zone.store.engine->claim(&zone.store, &same), NGX_OK);
    check(same.leftover);
    check_equal(same.found.response.len, 10);

    zone.store.engine->cancel(&zone.store, &stranger.op);
    answer(NGX_IDEMPOTENCY_UNAVAILABLE, 0);
}
