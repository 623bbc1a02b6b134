
/*
 * Random operations, against a model that keeps no memory, no trees and no
 * queues: every answer of the store must be the model's, and in the end all
 * memory must be back.  Where what is bound need not stay in memory, nothing is
 * said of what is counted there alone.
 *
 * UNIT_SEED and UNIT_STEPS repeat a run, or make it longer.
 */


#include "zone.h"
#include "workers_double.h"


#define TOKENS   40
#define PRINTS   3
#define CLAIMS   48
#define WAITERS  24
#define SLOTS    6
#define QUEUED   16
#define VALUES   3
#define LEFTS    32


typedef struct {
    ngx_uint_t                  bound;

    ngx_idempotency_outcome_e   outcome;
    ngx_uint_t                  print;
    ngx_uint_t                  status;
    uint64_t                    fence;
    uint32_t                    sequence;
    ngx_msec_t                  recorded;
    ngx_msec_t                  window;
    ngx_msec_t                  ends;
    /* which one it counts for, or 0; the how-manieth outcome it was */
    ngx_uint_t                  value;
    /* pending: it was in doubt before */
    ngx_uint_t                  taken;
    ngx_uint_t                  order;
    ngx_msec_t                  lease;
    ngx_uint_t                  slot;
    uint32_t                    epoch;

    size_t                      size;
    uint64_t                    seed;
    ngx_uint_t                  replays;
    /* the how-manieth response that was ever kept */
    ngx_uint_t                  serial;

    ngx_idempotency_workers_t   waiting;
} token_t;


/* a request that owns, or thinks it does */

typedef struct {
    ngx_uint_t                  used;
    ngx_uint_t                  token;
    ngx_uint_t                  slot;
    uint32_t                    epoch;
    uint64_t                    fence;
} claim_t;


typedef struct {
    op_t        op;
    ngx_uint_t                  token;
    ngx_uint_t                  print;
    ngx_uint_t                  slot;
    ngx_uint_t                  waiting;
    ngx_uint_t                  serial;
    /* it was called, and asks again once the model knows why */
    ngx_uint_t                  again;
} waiter_t;


/* a response that was left to those who waited for it */

typedef struct {
    uint32_t                    sequence;
    uint64_t                    fence;
    ngx_uint_t                  token;
    ngx_uint_t                  print;
    ngx_uint_t                  status;
    ngx_msec_t                  ends;
    size_t                      size;
    uint64_t                    seed;
    ngx_uint_t                  replays;
    ngx_uint_t                  serial;
    ngx_uint_t                  there;
} left_t;


static token_t           tokens[TOKENS];
static claim_t           claims[CLAIMS];
static waiter_t          waiters[WAITERS];
static left_t            lefts[LEFTS];
static uint64_t          queued[QUEUED];
static ngx_uint_t        nqueued;

static uint64_t          rnd;
static ngx_msec_t        now;
static uint64_t          fence;
static ngx_uint_t        serial;
static ngx_uint_t        order;
static ngx_uint_t        step;

static ngx_uint_t        told;
static ngx_uint_t        last_called;

/* how often what happened: a run that meets too little proves too little */

static ngx_uint_t        seen_claimed, seen_replayed, seen_pending,
                         seen_conflict, seen_doubt, seen_retry, seen_stale,
                         seen_trimmed, seen_unavailable, seen_evicted,
                         seen_called, seen_expired, seen_orphan, seen_old,
                         seen_limited, seen_left, seen_served, seen_again;

static const ngx_uint_t  slots[SLOTS] = { 0, 1, 63, 64, 100, 127 };


static void again(waiter_t *w);
static void claim_as(ngx_uint_t slot, op_t *op, ngx_uint_t token,
    ngx_uint_t print, ngx_uint_t wait, waiter_t *w);


static ngx_uint_t
below(ngx_uint_t n)
{
    return unit_below(&rnd, n);
}


static void
fail(char *what, ngx_uint_t token)
{
    if (told++ < 10) {
        unit_note("step %u: %s, token %u", (unsigned) step, what,
                  (unsigned) token);
    }
}


static size_t
random_size(void)
{
    static const size_t  sizes[] = { 0, 0, 1, 7, 8, 9, 24, 56, 120, 504, 1000,
                                     2039, 2040, 2041, 4087, 4088, 4089, 8176,
                                     20000 };

    if (below(100) == 0) {
        return 65000 + below(80000);
    }

    if (below(3) == 0) {
        return below(6000);
    }

    return sizes[below(sizeof(sizes) / sizeof(sizes[0]))];
}


/* the model */

static uint64_t
key_of(ngx_uint_t token)
{
    u_char  digest[NGX_IDEMPOTENCY_DIGEST_LEN];

    op_token(digest, token);

    return ngx_idempotency_tree_key(digest);
}


static ngx_uint_t
over(token_t *t)
{
    return t->bound && t->outcome != NGX_IDEMPOTENCY_PENDING
           && (ngx_msec_int_t) (now - t->ends) >= 0;
}


static token_t *
current(ngx_uint_t token)
{
    token_t  *t;

    t = &tokens[token];

    if (over(t)) {
        t->bound = 0;
        seen_expired++;
    }

    return t;
}


static ngx_uint_t
owner_alive(token_t *t)
{
    double_worker_t  *w;

    w = &double_workers[t->slot];

    if (w->epoch != t->epoch || w->state == DOUBLE_DEAD) {
        return 0;
    }

    return w->state == DOUBLE_ALIVE || now - t->recorded < t->lease;
}


/* the oldest wake there is; or, among some that are in vain, one of them, that
   may be of more */

static void
must_wake(token_t *t)
{
    ngx_uint_t      i, n;
    double_wake_t  *wake;

    if ((t->waiting.bits[0] | t->waiting.bits[1]) == 0) {
        return;
    }

    wake = NULL;
    n = zone_is(ZONE_CALM) ? ngx_min(double_nwakes, 1) : double_nwakes;

    for (i = 0; i < n; i++) {
        if (double_wakes[i].key == key_of(t - tokens)) {
            wake = &double_wakes[i];
            break;
        }
    }

    if (!check(wake != NULL)) {
        fail("nobody was woken", t - tokens);
        return;
    }

    for (n = 0; n < 2; n++) {
        if (!check(zone_is(ZONE_CALM)
                   ? wake->set.bits[n] == t->waiting.bits[n]
                   : (wake->set.bits[n] & t->waiting.bits[n])
                     == t->waiting.bits[n]))
        {
            fail("the wrong ones were woken", t - tokens);
        }
    }

    double_nwakes--;
    ngx_memmove(&double_wakes[i], &double_wakes[i + 1],
                (double_nwakes - i) * sizeof(double_wake_t));

    ngx_memzero(&t->waiting, sizeof(t->waiting));

    if (nqueued < QUEUED) {
        queued[nqueued++] = key_of(t - tokens);
    }
}


static void
publish(token_t *t, ngx_idempotency_outcome_e outcome, ngx_uint_t status,
    size_t size, uint64_t seed)
{
    t->outcome = outcome;
    t->status = status;
    t->size = size;
    t->seed = seed;
    t->recorded = now;
    t->serial = size ? ++serial : 0;
    t->order = ++order;

    if ((ngx_msec_int_t) (now + t->window - t->ends) > 0) {
        t->ends = now + t->window;
    }
}


/* how many there are for a value, and when the first of them ends */

static ngx_uint_t
counted(ngx_uint_t value, ngx_msec_t *ends)
{
    token_t     *t;
    ngx_uint_t   n, bound;

    n = 0;
    bound = 0;

    for (t = tokens; t < tokens + TOKENS; t++) {

        if (!t->bound || t->value != value || over(t)) {
            continue;
        }

        n++;

        if (t->outcome != NGX_IDEMPOTENCY_PENDING
            && (!bound || (ngx_msec_int_t) (t->ends - *ends) < 0))
        {
            bound = 1;
            *ends = t->ends;
        }
    }

    return n;
}


static left_t *
left_by(uint32_t by)
{
    left_t  *l;

    for (l = lefts; l < lefts + LEFTS; l++) {

        if (by && l->sequence == by && l->serial) {

            if ((ngx_msec_int_t) (now - l->ends) < 0) {
                return l;
            }

            l->sequence = 0;
        }
    }

    return NULL;
}


static void
orphan(token_t *t)
{
    publish(t, NGX_IDEMPOTENCY_IN_DOUBT, 0, 0, 0);
    must_wake(t);
    seen_orphan++;
}


/* what was evicted: the oldest, and only for want of memory; if responses stay,
   only what was left */

static void
sync_kept(ngx_uint_t allowed)
{
    left_t                    *l;
    token_t                   *t;
    ngx_uint_t                 i, first, n, last, token, at;
    ngx_queue_t               *q;
    ngx_idempotency_record_t  *rec;

    static u_char              digests[TOKENS][NGX_IDEMPOTENCY_DIGEST_LEN];

    if (!zone_is(ZONE_STAYS)) {
        return;
    }

    if (digests[0][0] == digests[1][0]) {
        for (i = 0; i < TOKENS; i++) {
            op_token(digests[i], i);
        }
    }

    first = 0;
    last = 0;
    n = 0;

    for (q = ngx_queue_head(&zone.shm.sh->kept);
         q != ngx_queue_sentinel(&zone.shm.sh->kept);
         q = ngx_queue_next(q))
    {
        rec = ngx_queue_data(q, ngx_idempotency_record_t, queue);

        for (token = 0; token < TOKENS; token++) {
            if (ngx_memcmp(rec->token, digests[token],
                           NGX_IDEMPOTENCY_DIGEST_LEN)
                == 0)
            {
                break;
            }
        }

        if (token == TOKENS) {

            /* under no name of its own: it was left */

            if ((ngx_msec_int_t) (now - rec->ends) >= 0) {
                continue;
            }

            l = left_by(rec->sequence);

            /* to an owner, who had waited before he was one */

            if (l == NULL && !zone_is(ZONE_CALM)) {
                continue;
            }

            if (!check(l != NULL)) {
                return;
            }

            check_equal(rec->size, l->size);
            l->there = 1;
            at = l->serial;

        } else {
            t = &tokens[token];

            if (!t->bound || over(t)) {
                continue;
            }

            check_equal(rec->size, t->size);
            check_equal(rec->fence, t->fence);
            at = t->serial;
        }

        if (!check(at > last)) {
            fail("responses are out of order", token);
        }

        last = at;
        n++;

        if (first == 0) {
            first = at;
        }
    }

    for (l = lefts; l < lefts + LEFTS; l++) {

        if (left_by(l->sequence) == NULL) {
            continue;
        }

        if (l->there) {
            l->there = 0;
            n--;
            continue;
        }

        check(allowed);
        l->sequence = 0;
    }

    for (i = 0; i < TOKENS; i++) {
        t = &tokens[i];

        if (!t->bound || over(t) || t->serial == 0) {
            continue;
        }

        if (first && t->serial >= first) {
            n--;
            continue;
        }

        if (!check(allowed && zone.shm.evict)) {
            fail("a response went early", i);
        }

        if (t->outcome == NGX_IDEMPOTENCY_DONE) {
            t->outcome = NGX_IDEMPOTENCY_NOT_KEPT;
        }

        t->size = 0;
        t->serial = 0;
        seen_evicted++;
    }

    check_equal(n, 0);
}


/* nothing that had ended was left where memory was short */

static ngx_uint_t
nothing_to_free(void)
{
    ngx_queue_t               *q;
    ngx_idempotency_record_t  *rec;
    ngx_idempotency_window_t  *window;

    for (window = &zone.shm.sh->window; window; window = window->next) {

        q = ngx_queue_head(&window->records);

        if (q == ngx_queue_sentinel(&window->records)) {
            continue;
        }

        rec = ngx_queue_data(q, ngx_idempotency_record_t, as.bound.expiry);

        if ((ngx_msec_int_t) (now - rec->ends) >= 0) {
            return 0;
        }
    }

    return !zone.shm.evict || ngx_queue_empty(&zone.shm.sh->kept);
}


/* the steps */

static void
handler(op_t *op)
{
    waiter_t  *w, *victim;

    w = op->data;

    check_equal(op->result, NGX_IDEMPOTENCY_CHANGED);
    check(w->waiting);
    check(w->serial > last_called || !zone_is(ZONE_AT_ONCE));
    check(!op->waiting);

    last_called = w->serial;
    w->waiting = 0;
    seen_called++;

    switch (below(4)) {

    case 0:
        victim = &waiters[below(WAITERS)];
        op_cancel(&zone, &victim->op);
        victim->waiting = 0;
        break;

    case 1:
        w->again = 1;

        if (zone_is(ZONE_AT_ONCE)) {
            again(w);
        }

        break;
    }
}


static void
again(waiter_t *w)
{
    if (!w->again) {
        return;
    }

    w->again = 0;

    if (double_workers[w->slot].state != DOUBLE_DEAD) {
        claim_as(w->slot, &w->op, w->token, w->print, 1, w);
    }
}


/* what is counted in memory: all of it, or more if an answer was lost */

static void
counts(ngx_uint_t replays, ngx_uint_t *model)
{
    if (!zone_is(ZONE_STAYS)) {
        return;
    }

    if (zone_is(ZONE_IN_TURN)) {
        check_equal(replays, *model);

    } else {
        check(replays >= *model);
        *model = replays;
    }
}


static void
remember_claim(ngx_uint_t token, op_t *op, ngx_uint_t slot)
{
    claim_t  *c;

    for (c = claims; c < claims + CLAIMS; c++) {

        if (!c->used) {
            c->used = 1;
            c->token = token;
            c->slot = slot;
            c->epoch = double_workers[slot].epoch;
            c->fence = op->fence;
            return;
        }
    }

    /* too many: its owner stays silent for ever */
}


static uint32_t
sequence_of(op_t *op)
{
    ngx_idempotency_record_t  *rec;

    rec = ngx_idempotency_record_current(&zone.shm, op->token, now);

    return check(rec != NULL) ? rec->sequence : 0;
}


/* those who may be others' by now are told under a number of their own */

static ngx_uint_t
briefly(token_t *t)
{
    return t->outcome == NGX_IDEMPOTENCY_IN_DOUBT && !zone_is(ZONE_STAYS);
}


static void
claim_as(ngx_uint_t slot, op_t *op, ngx_uint_t token,
    ngx_uint_t print, ngx_uint_t wait, waiter_t *w)
{
    left_t            *l;
    token_t           *t;
    uint32_t           waited;
    ngx_msec_t         ends;
    ngx_uint_t         pfree, need, limit, result, retry, evict, value, taken;

    static ngx_msec_t  windows[] = { 1, 20, 20, 21, 50, 300, 2000 };
    static ngx_msec_t  spans[] = { 0, 0, 0, 400, 3000 };

    retry = (below(3) == 0);
    value = below(2) && zone_is(ZONE_STAYS) ? 1 + below(VALUES) : 0;
    waited = (w && w->token == token) ? w->op.waited : 0;

    op_init(op, token, print, now);
    op->waited = waited;
    op->old = (below(20) == 0);
    op->span = spans[below(5)];
    op->least = op->span ? below(op->span) : 0;
    op->quota = value ? 4 + below(8) : 0;
    op_token(op->value, 5000000 + value);
    op->window = windows[below(7)];
    op->lease = 10 + below(100);
    op->reserve = below(2) ? 0 : random_size();
    op->retry = retry;
    op->wait = wait;
    op->handler = handler;
    op->data = w;

    limit = (zone.shm.shpool->end - zone.shm.shpool->start) / ngx_pagesize / 8;
    need = ngx_idempotency_chunks_pages(op->reserve) + 2 + (value != 0);
    need = ngx_min(need, ngx_max(limit, 1));

    double_become(slot);

    pfree = zone.shm.shpool->pfree;
    result = op_claim(&zone, op);

    l = left_by(waited);

    /* a zone that is made anew may give the number of a question once more; and
       who asks for something else has no part in it */

    if (l && (l->token != token || l->print != print)) {
        l = NULL;
    }

    check_equal(op->left, l != NULL);

    if (l) {
        check_equal(result, NGX_IDEMPOTENCY_BOUND);
        check_equal(op->outcome, NGX_IDEMPOTENCY_DONE);
        check_equal(op->status, l->status);
        check_equal(op->fence, l->fence);
        l->replays++;
        counts(op->replays, &l->replays);
        check_equal(op->waiting, 0);

        if (!op_responded(op, l->size, l->seed)) {
            fail("another response was left", token);
        }

        seen_served++;
        return;
    }

    t = current(token);

    if (t->bound && t->outcome == NGX_IDEMPOTENCY_PENDING && !owner_alive(t)) {
        orphan(t);
    }

    if (!t->bound
        || (retry && t->outcome == NGX_IDEMPOTENCY_IN_DOUBT
            && t->print == print))
    {
        if (!t->bound && op->old) {
            check_equal(result, NGX_IDEMPOTENCY_EXPIRED);
            seen_old++;
            return;
        }

        ends = now + ngx_max(op->window, op->least);

        if (!t->bound && value && counted(value, &ends) >= op->quota) {

            if (!check_equal(result, NGX_IDEMPOTENCY_LIMITED)) {
                fail("not limited", token);
            }

            /* one that ended first may have gone before */

            check(op->ends > now && op->ends <= ends);
            seen_limited++;
            return;
        }

        evict = (pfree < need);

        if (result == NGX_IDEMPOTENCY_UNAVAILABLE) {
            sync_kept(evict);
            check(zone.shm.shpool->pfree < need);
            check(nothing_to_free());
            seen_unavailable++;
            return;
        }

        if (!check_equal(result, NGX_IDEMPOTENCY_CLAIMED)) {
            fail("not claimed", token);
            return;
        }

        seen_claimed++;
        seen_retry += t->bound;
        taken = t->bound;

        check(op->fence == fence + 1
              || (op->fence > fence && !zone_is(ZONE_AT_ONCE)));
        check_equal(op->waiting, 0);
        fence = op->fence;

        if (t->bound) {
            /* it counts as it did */
            value = t->value;
        }

        ngx_memzero(t, sizeof(token_t));
        t->bound = 1;
        t->taken = taken;
        t->value = value;
        t->ends = now + op->least;
        t->print = print;
        t->fence = fence;
        t->sequence = sequence_of(op);
        t->recorded = now;
        t->window = op->window;
        t->lease = op->lease;
        t->slot = slot;
        t->epoch = double_workers[slot].epoch;

        remember_claim(token, op, slot);
        sync_kept(evict);
        return;
    }

    if (t->print != print) {
        if (!check_equal(result, NGX_IDEMPOTENCY_CONFLICT)) {
            fail("no conflict", token);
        }

        check_equal(op->outcome, t->outcome);
        check_equal(op->waiting, 0);
        seen_conflict++;
        return;
    }

    if (!check_equal(result, NGX_IDEMPOTENCY_BOUND)) {
        fail("not bound", token);
        return;
    }

    if (!check_equal(op->outcome, t->outcome)) {
        fail("another outcome", token);
    }

    check(op->fence == t->fence || briefly(t));
    check_equal(op->recorded, t->recorded);

    if (t->outcome == NGX_IDEMPOTENCY_PENDING) {
        seen_pending++;
        check_equal(op->waiting, wait);

        if (wait) {
            w->token = token;
            w->print = print;
            w->slot = slot;
            check_equal(op->waited, t->sequence);
            w->waiting = 1;
            w->serial = ++serial;
            t->waiting.bits[slot / 64] |= (uint64_t) 1 << (slot % 64);
        }

        return;
    }

    check_equal(op->waiting, 0);
    check_equal(op->status, t->status);
    check_equal(op->ends, t->ends);
    seen_doubt += (t->outcome == NGX_IDEMPOTENCY_IN_DOUBT);

    if (t->size) {
        t->replays++;
        seen_replayed++;
    }

    counts(op->replays, &t->replays);

    if (!op_responded(op, t->size, t->seed)) {
        fail("another response", token);
    }
}


static void
step_claim(void)
{
    op_t        op;
    waiter_t   *w;
    ngx_uint_t  i, token, print;

    for (i = 0; i < SLOTS; i++) {
        /* the dead ask nothing, nor do the silent */
        if (double_workers[slots[i]].state == DOUBLE_ALIVE) {
            break;
        }
    }

    if (i == SLOTS) {
        return;
    }

    do {
        i = below(SLOTS);
    } while (double_workers[slots[i]].state != DOUBLE_ALIVE);

    w = &waiters[below(WAITERS)];
    token = below(TOKENS);
    print = (below(10) == 0);

    if (below(3) == 0 && !w->waiting) {
        claim_as(slots[i], &w->op, token, print, 1, w);

    } else {
        claim_as(slots[i], &op, token, print, 0, NULL);
    }
}


static claim_t *
some_claim(void)
{
    claim_t     *c;
    ngx_uint_t   i, first;

    first = below(CLAIMS);

    for (i = 0; i < CLAIMS; i++) {
        c = &claims[(first + i) % CLAIMS];

        if (c->used) {
            return c;
        }
    }

    return NULL;
}


/* one that was taken for dead is heard no more if others may know that */

static ngx_uint_t
unheard(token_t *t, ngx_uint_t result)
{
    return result == NGX_IDEMPOTENCY_STALE && !zone_is(ZONE_ALONE)
           && t->bound && t->outcome == NGX_IDEMPOTENCY_IN_DOUBT;
}


static ngx_uint_t
owns(claim_t *c)
{
    token_t  *t;

    t = &tokens[c->token];

    /* one that was taken for dead is heard, unless another took over */

    return t->bound && t->fence == c->fence
           && (t->outcome == NGX_IDEMPOTENCY_PENDING
               || t->outcome == NGX_IDEMPOTENCY_IN_DOUBT);
}


static void
step_complete(void)
{
    op_t                       op;
    size_t                     size;
    claim_t                   *c;
    token_t                   *t;
    uint64_t                   seed;
    ngx_uint_t                 pfree, pages, status, result;
    ngx_idempotency_outcome_e  outcome;

    c = some_claim();
    if (c == NULL) {
        return;
    }

    size = random_size();
    seed = unit_random(&rnd);
    status = 200 + below(300);

    switch (below(5)) {
    case 0:
        outcome = NGX_IDEMPOTENCY_IN_DOUBT;
        break;
    case 1:
        outcome = NGX_IDEMPOTENCY_NOT_KEPT;
        size = 0;
        break;
    default:
        outcome = NGX_IDEMPOTENCY_DONE;
    }

    op_init(&op, c->token, 0, now);
    op.fence = c->fence;
    op.outcome = outcome;
    op.status = status;
    op_respond(&op, size, seed);

    double_become(c->slot);

    pfree = zone.shm.shpool->pfree;
    result = op_complete(&zone, &op);

    t = current(c->token);
    c->used = 0;

    if (!owns(c) || unheard(t, result)) {
        if (!check_equal(result, NGX_IDEMPOTENCY_STALE)) {
            fail("a late owner was heard", c->token);
        }

        sync_kept(0);
        seen_stale++;
        return;
    }

    pages = ngx_idempotency_chunks_pages(size);

    if (result == NGX_IDEMPOTENCY_TRIMMED) {
        check(pfree < pages);
        check(nothing_to_free());
        seen_trimmed++;

        if (outcome == NGX_IDEMPOTENCY_DONE) {
            outcome = NGX_IDEMPOTENCY_NOT_KEPT;
        }

        size = 0;

    } else if (!check_equal(result, NGX_IDEMPOTENCY_OK)) {
        fail("an owner was not heard", c->token);
    }

    publish(t, outcome, status, size, seed);
    must_wake(t);
    sync_kept(pfree < pages);
}


/* by the record that has its fence and not its name, or there is no memory */

static void
remember_left(claim_t *c, op_t *op, size_t size,
    uint64_t seed, ngx_uint_t full)
{
    left_t                    *l;
    ngx_queue_t               *q;
    ngx_idempotency_record_t  *rec;

    for (q = ngx_queue_head(&zone.shm.sh->kept);
         q != ngx_queue_sentinel(&zone.shm.sh->kept);
         q = ngx_queue_next(q))
    {
        rec = ngx_queue_data(q, ngx_idempotency_record_t, queue);

        if (rec->fence == c->fence) {
            break;
        }
    }

    if (q == ngx_queue_sentinel(&zone.shm.sh->kept)) {

        if (!check(full)) {
            fail("no response was left", c->token);
        }

        sync_kept(1);
        return;
    }

    check(ngx_memcmp(rec->token, op->token, NGX_IDEMPOTENCY_DIGEST_LEN) != 0);

    for (l = lefts; l < lefts + LEFTS; l++) {
        if (left_by(l->sequence) == NULL) {
            break;
        }
    }

    if (!check(l < lefts + LEFTS)) {
        return;
    }

    l->sequence = rec->sequence;
    l->fence = c->fence;
    l->token = c->token;
    l->print = tokens[c->token].print;
    l->status = op->status;
    l->ends = now + NGX_IDEMPOTENCY_SHM_LEFTOVER;
    l->size = size;
    l->seed = seed;
    l->replays = 0;
    l->serial = ++serial;

    sync_kept(full);
    seen_left++;
}


static void
step_release(void)
{
    op_t        op;
    size_t      size;
    claim_t    *c;
    token_t    *t;
    uint64_t    seed;
    ngx_uint_t  result, pfree, leave;

    c = some_claim();
    if (c == NULL) {
        return;
    }

    size = random_size();
    seed = unit_random(&rnd);

    op_init(&op, c->token, 0, now);
    op.fence = c->fence;
    op.leave = (below(4) != 0);
    op.settled = (below(4) == 0);
    op.status = 400 + below(100);
    op_respond(&op, size, seed);

    t = &tokens[c->token];
    leave = (op.leave && size && !op.settled && owns(c)
             && t->outcome == NGX_IDEMPOTENCY_PENDING
             && (t->waiting.bits[0] | t->waiting.bits[1]));

    double_become(c->slot);
    pfree = zone.shm.shpool->pfree;
    result = op_release(&zone, &op);

    t = current(c->token);
    c->used = 0;

    if (leave) {
        remember_left(c, &op, size, seed,
                      pfree < ngx_idempotency_chunks_pages(size) + t->taken);
    }

    if (!owns(c) || unheard(t, result)) {
        check_equal(result, NGX_IDEMPOTENCY_STALE);
        seen_stale++;
        return;
    }

    if (!check_equal(result, NGX_IDEMPOTENCY_OK)) {
        fail("an owner was not heard", c->token);
    }

    must_wake(t);
    check_equal(op.doubt, t->taken && !op.settled);

    if (op.doubt) {

        /* as it was before it was claimed */

        publish(t, NGX_IDEMPOTENCY_IN_DOUBT, 0, 0, 0);
        seen_again++;
        return;
    }

    t->bound = 0;
}


static void
step_find(void)
{
    op_t        op;
    u_char      print[NGX_IDEMPOTENCY_DIGEST_LEN];
    token_t    *t;
    ngx_uint_t  token;

    token = below(TOKENS);
    t = current(token);

    op_init(&op, token, 99, now);

    if (!check_equal(op_find(&zone, &op), t->bound ? NGX_IDEMPOTENCY_BOUND
                                                   : NGX_IDEMPOTENCY_ABSENT))
    {
        fail("found or not", token);
        return;
    }

    if (!t->bound) {
        return;
    }

    check_equal(op.outcome, t->outcome);
    check(op.fence == t->fence || briefly(t));
    check_equal(op.recorded, t->recorded);

    if (t->outcome != NGX_IDEMPOTENCY_PENDING) {
        check_equal(op.ends, t->ends);
    }

    counts(op.replays, &t->replays);
    check_equal(op.response.len, t->size);
    check(op.response.data == NULL);

    op_token(print, t->print + 1000000);
    check(ngx_memcmp(op.fingerprint, print, sizeof(print)) == 0);
}


static void
forgets(ngx_uint_t token)
{
    op_t        op;
    token_t    *t;
    ngx_uint_t  bound;

    t = current(token);
    bound = t->bound;

    op_init(&op, token, 0, now);

    if (!check_equal(op_forget(&zone, &op), bound ? NGX_IDEMPOTENCY_OK
                                                  : NGX_IDEMPOTENCY_ABSENT))
    {
        fail("forgotten or not", token);
    }

    if (bound) {
        must_wake(t);
        t->bound = 0;
    }
}


static void
sweep(void)
{
    token_t  *t, *first;

    ngx_current_msec = now;
    ngx_idempotency_shm_sweep(&zone.shm, now);

    /* in the order in which they were claimed */

    do {
        first = NULL;

        for (t = tokens; t < tokens + TOKENS; t++) {
            if (t->bound && t->outcome == NGX_IDEMPOTENCY_PENDING
                && !owner_alive(t)
                && (first == NULL || t->fence < first->fence))
            {
                first = t;
            }
        }

        if (first) {
            orphan(first);
        }

    } while (first);
}


static void
step_worker(void)
{
    claim_t     *c;
    waiter_t    *w;
    ngx_uint_t   slot;

    slot = slots[below(SLOTS)];

    switch (below(4)) {

    case 0:
        /* dies, with all its requests */
        double_workers[slot].state = DOUBLE_DEAD;

        for (c = claims; c < claims + CLAIMS; c++) {
            if (c->slot == slot) {
                c->used = 0;
            }
        }

        for (w = waiters; w < waiters + WAITERS; w++) {
            if (w->slot == slot && w->waiting) {
                op_cancel(&zone, &w->op);
                w->waiting = 0;
            }
        }

        break;

    case 1:
        if (double_workers[slot].state == DOUBLE_DEAD) {
            double_renew(slot);
        }

        break;

    case 2:
        if (double_workers[slot].state == DOUBLE_ALIVE) {
            double_workers[slot].state = DOUBLE_SILENT;
        }

        break;

    default:
        if (double_workers[slot].state == DOUBLE_SILENT) {
            double_workers[slot].state = DOUBLE_ALIVE;
        }

        break;
    }
}


static void
step_woken(void)
{
    uint64_t     key;
    waiter_t    *w;
    ngx_uint_t   before;

    before = serial;
    last_called = 0;

    if (below(100) == 0) {

        /* all, token by token: their order is not one of time */

        for (w = waiters; w < waiters + WAITERS; w++) {
            if (w->waiting) {
                op_cancel(&zone, &w->op);
                w->waiting = 0;
            }
        }

        ngx_idempotency_shm_woken(NULL);
        zone_settle(&zone);
        check_equal(last_called, 0);
        return;
    }

    if (nqueued && below(2)) {
        key = queued[0];
        nqueued--;
        ngx_memmove(&queued[0], &queued[1], nqueued * sizeof(queued[0]));

    } else {
        key = key_of(below(TOKENS));
    }

    ngx_idempotency_shm_woken(&key);
    zone_settle(&zone);

    /* nobody is left but who came since */

    for (w = waiters; w < waiters + WAITERS; w++) {
        check(!w->waiting || key_of(w->token) != key || w->serial > before);
        check_equal(w->op.waiting, w->waiting);
    }
}


static void
run(size_t size, ngx_uint_t evict, uint64_t seed, ngx_uint_t steps)
{
    ngx_uint_t  i, action;

    ngx_memzero(tokens, sizeof(tokens));
    ngx_memzero(claims, sizeof(claims));
    ngx_memzero(waiters, sizeof(waiters));
    ngx_memzero(lefts, sizeof(lefts));
    nqueued = 0;

    seen_claimed = seen_replayed = seen_pending = seen_conflict = 0;
    seen_doubt = seen_retry = seen_again = seen_stale = seen_trimmed = 0;
    seen_unavailable = seen_evicted = seen_called = seen_expired = 0;
    seen_orphan = seen_old = seen_limited = seen_left = seen_served = 0;

    seed += unit_setting("UNIT_SEED", 0);
    steps = unit_setting("UNIT_STEPS", steps);

    rnd = seed;
    now = 1000;
    serial = 0;
    order = 0;
    told = 0;

    double_reset();
    zone_open(&zone, size, evict);
    fence = zone.shm.sh->fence;

    for (step = 0; step < steps && told < 10; step++) {

        action = below(100);

        if (action < 10) {
            now += below(100) ? below(8) : below(3000);

        } else if (action < 50) {
            step_claim();

        } else if (action < 66) {
            step_complete();

        } else if (action < 74) {
            step_release();

        } else if (action < 78) {
            step_find();

        } else if (action < 80) {
            forgets(below(TOKENS));

        } else if (action < 83) {
            sweep();

        } else if (action < 88) {
            step_worker();

        } else {
            step_woken();
        }

        for (i = 0; i < WAITERS; i++) {
            again(&waiters[i]);
        }

        if (!check(double_nwakes == 0 || !zone_is(ZONE_CALM))) {
            fail("somebody was woken for nothing", 0);
        }

        double_nwakes = 0;

        if (step % 256 == 0) {
            sync_kept(0);
            zone_check(&zone);
        }

        if (step % 16 == 0) {
            ngx_reset_pool(unit_pool);
        }
    }

    for (i = 0; i < TOKENS; i++) {
        forgets(i);
    }

    now += NGX_IDEMPOTENCY_SHM_LEFTOVER;
    ngx_current_msec = now;

    while (ngx_idempotency_record_expire(&zone.shm, now, LEFTS)) {
        /* void */
    }

    for (i = 0; i < WAITERS; i++) {
        op_cancel(&zone, &waiters[i].op);
    }

    zone_check_empty(&zone);
    zone_close(&zone);

    unit_note("seed %llu, %u steps: claimed %u (retry %u), replayed %u, "
              "pending %u, conflict %u, in doubt %u, orphan %u, stale %u, "
              "expired %u, trimmed %u, unavailable %u, evicted %u, called %u, "
              "old %u, limited %u, left %u (served %u)",
              (unsigned long long) seed, (unsigned) step,
              (unsigned) seen_claimed, (unsigned) seen_retry,
              (unsigned) seen_replayed, (unsigned) seen_pending,
              (unsigned) seen_conflict, (unsigned) seen_doubt,
              (unsigned) seen_orphan, (unsigned) seen_stale,
              (unsigned) seen_expired, (unsigned) seen_trimmed,
              (unsigned) seen_unavailable, (unsigned) seen_evicted,
              (unsigned) seen_called, (unsigned) seen_old,
              (unsigned) seen_limited, (unsigned) seen_left,
              (unsigned) seen_served);

    if (steps < 100000) {
        return;
    }

    /* a long run meets everything */

    check(seen_claimed && seen_retry && seen_again);
    check(seen_replayed && seen_pending);
    check(seen_conflict && seen_doubt && seen_orphan && seen_stale);
    check(seen_expired && seen_called && seen_old && seen_limited);
    check(seen_left && seen_served);

    if (size > 1024 * 1024) {
        check_equal(seen_trimmed + seen_unavailable + seen_evicted, 0);

    } else if (evict) {
        check(seen_evicted);

    } else {
        check(seen_trimmed && seen_unavailable);
        check_equal(seen_evicted, 0);
    }
}


/* a file takes its time */

unit_case("random operations")
{
    run(8 * 1024 * 1024, 0, 1, zone_is(ZONE_OUTLIVES) ? 6000 : 200000);
}


engine_case("random operations in a full zone", ZONE_FILLS)
{
    run(160 * 1024, 0, 2, 200000);
}


engine_case("random operations in a full zone that evicts", ZONE_FILLS)
{
    run(160 * 1024, 1, 3, 200000);
}
