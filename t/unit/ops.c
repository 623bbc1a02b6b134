
/*
 * Operations in short: a test speaks to the engine here, whichever it is, and
 * each operation is run to its answer.
 */


#include "zone.h"


/* answers that got lost, at most, and what goes on before one comes */

#define OP_LOST   100
#define OP_STEPS  10000


op_t  op, other;


static ngx_int_t op_run(zone_t *z, ngx_idempotency_op_t *op, ngx_int_t rc);
static void op_go_on(op_t *op);
static void op_make(op_t *op);
static void op_claimed(op_t *op);
static void op_answered(op_t *op, ngx_idempotency_op_t *head);
static void op_prepare(ngx_idempotency_op_t *head, op_t *op,
    ngx_idempotency_op_handler_pt handler);
static void op_handler(ngx_idempotency_op_t *head);
static void op_changed(ngx_idempotency_op_t *head);
static void op_found(op_t *op, ngx_idempotency_found_t *found);
static u_char op_byte(uint64_t seed, size_t i);


void
op_token(u_char *token, uint64_t n)
{
    uint64_t    word;
    ngx_uint_t  i;

    for (i = 0; i < NGX_IDEMPOTENCY_DIGEST_LEN; i += sizeof(word)) {
        word = unit_random(&n);
        ngx_memcpy(token + i, &word, sizeof(word));
    }
}


void
op_init(op_t *op, ngx_uint_t token, ngx_uint_t print,
    ngx_msec_t now)
{
    ngx_memzero(op, sizeof(op_t));

    op_token(op->token, token);
    op_token(op->fingerprint, print + 1000000);

    op->now = now;
    op->window = 1000;
    op->lease = 500;
    op->pool = unit_pool;
}


/* all that an operation has in common with others, and its answer; it is made
   now */

static void
op_prepare(ngx_idempotency_op_t *head, op_t *op,
    ngx_idempotency_op_handler_pt handler)
{
    ngx_memzero(head, sizeof(ngx_idempotency_op_t));

    ngx_memcpy(head->token, op->token, NGX_IDEMPOTENCY_DIGEST_LEN);
    head->now = op->now;
    head->handler = handler;
    head->data = op;

    op->answered = 0;

    ngx_current_msec = op->now;
}


/* an engine that answers later does so in between; NGX_AGAIN: it does not */

static ngx_int_t
op_run(zone_t *z, ngx_idempotency_op_t *op, ngx_int_t rc)
{
    op_t        *o;
    ngx_uint_t   n;

    o = op->data;

    if (rc == NGX_AGAIN) {
        o->asks++;

        for (n = 0; !o->answered && check(n < OP_STEPS); n++) {
            if (!zone_pass(z)) {
                break;
            }
        }

        o->asks--;

        if (!o->answered) {
            return NGX_AGAIN;
        }

    } else {
        op_answered(o, op);
    }

    if (z->engine->answered && o->result != NGX_IDEMPOTENCY_CHANGED) {
        z->engine->answered(z);
    }

    return (rc == NGX_AGAIN) ? NGX_OK : rc;
}


static void
op_answered(op_t *op, ngx_idempotency_op_t *head)
{
    op->answered = 1;
    op->result = head->result;
    op->waiting = head->waiting;
}


/* of an operation that is answered once */

static void
op_handler(ngx_idempotency_op_t *head)
{
    op_t  *op;

    op = head->data;

    check(op->asks && !op->answered);

    op_answered(op, head);
}


/* of a claim: the answer, or the change that it waits for */

static void
op_changed(ngx_idempotency_op_t *head)
{
    op_t  *op;

    op = head->data;

    op_answered(op, head);

    if (!op->asks) {
        op->called = 1;
        op->handler(op);
    }
}


void
op_start(zone_t *z, op_t *op)
{
    op->data = z;
    op->handler = op_go_on;
    op_make(op);

    op->claim.op.waiting = 0;
    op_go_on(op);
}


/* whoever is told that something has changed asks once more */

static void
op_go_on(op_t *op)
{
    zone_t  *z;

    z = op->data;

    if (z->store.engine->claim(&z->store, &op->claim) == NGX_OK) {
        op_answered(op, &op->claim.op);
        op_claimed(op);
    }

    op->waiting = op->claim.op.waiting;
}


ngx_int_t
op_try_claim(zone_t *z, op_t *op)
{
    ngx_int_t                 rc;
    ngx_uint_t                n;
    ngx_idempotency_claim_t  *claim;

    claim = &op->claim;
    op_make(op);

    rc = NGX_AGAIN;

    /* an answer may get lost, or say that there is another one now */

    for (n = 0; check(n < OP_LOST); n++) {
        op->answered = 0;
        rc = op_run(z, &claim->op, z->store.engine->claim(&z->store, claim));

        if (rc != NGX_AGAIN && op->result != NGX_IDEMPOTENCY_CHANGED) {
            break;
        }
    }

    op_claimed(op);

    return rc;
}


static void
op_make(op_t *op)
{
    ngx_idempotency_claim_t  *claim;

    claim = &op->claim;

    /* one that waits, or did, may be made again as it is */

    if (!claim->op.waiting && !op->called) {
        ngx_memzero(claim, sizeof(ngx_idempotency_claim_t));
        op_prepare(&claim->op, op, op_changed);
        claim->op.waited = op->waited;
    }

    op->called = 0;
    claim->op.now = op->now;
    ngx_current_msec = op->now;

    ngx_memcpy(claim->fingerprint, op->fingerprint,
               NGX_IDEMPOTENCY_DIGEST_LEN);
    ngx_memcpy(claim->value, op->value, NGX_IDEMPOTENCY_DIGEST_LEN);

    claim->parts = op->parts;
    claim->window = op->window;
    claim->least = op->least;
    claim->span = op->span;
    claim->lease = op->lease;
    claim->reserve = op->reserve;
    claim->quota = op->quota;
    claim->pool = op->pool;
    claim->retry = op->retry;
    claim->old = op->old;
    claim->wait = op->wait;
}


static void
op_claimed(op_t *op)
{
    ngx_idempotency_claim_t  *claim;

    claim = &op->claim;

    op->waited = claim->op.waited;
    op->differs = claim->differs;
    op->left = claim->leftover;

    switch (op->result) {

    case NGX_IDEMPOTENCY_CLAIMED:
        op->fence = claim->fence;
        break;

    case NGX_IDEMPOTENCY_BOUND:
    case NGX_IDEMPOTENCY_CONFLICT:
        op_found(op, &claim->found);
        break;

    case NGX_IDEMPOTENCY_LIMITED:
        op->ends = op->now + claim->found.left;
        break;

    default:
        break;
    }
}


static void
op_found(op_t *op, ngx_idempotency_found_t *found)
{
    op->outcome = found->outcome;
    op->status = found->status;
    op->fence = found->fence;
    op->recorded = op->now - found->age;
    op->ends = op->now + found->left;
    op->replays = found->replays;
    op->anonymous = found->anonymous;
    op->response = found->response;
}


ngx_uint_t
op_claim(zone_t *z, op_t *op)
{
    check_equal(op_try_claim(z, op), NGX_OK);

    return op->result;
}


ngx_uint_t
op_complete(zone_t *z, op_t *op)
{
    ngx_int_t                   rc;
    ngx_idempotency_complete_t  complete;

    ngx_memzero(&complete, sizeof(ngx_idempotency_complete_t));
    op_prepare(&complete.op, op, op_handler);

    complete.fence = op->fence;
    complete.outcome = op->outcome;
    complete.status = op->status;
    complete.pieces = op->pieces;
    complete.size = op->size;

    rc = z->store.engine->complete(&z->store, &complete);
    check_equal(op_run(z, &complete.op, rc), NGX_OK);

    op->outcome = complete.outcome;
    op->ends = op->now + complete.left;

    return op->result;
}


ngx_uint_t
op_release(zone_t *z, op_t *op)
{
    ngx_int_t                   rc;
    ngx_idempotency_complete_t  release;

    ngx_memzero(&release, sizeof(ngx_idempotency_complete_t));
    op_prepare(&release.op, op, op_handler);

    release.fence = op->fence;
    release.release = 1;
    release.status = op->status;
    release.settled = op->settled;

    if (op->leave) {
        release.pieces = op->pieces;
        release.size = op->size;
    }

    rc = z->store.engine->complete(&z->store, &release);
    check_equal(op_run(z, &release.op, rc), NGX_OK);

    op->doubt = release.doubt;

    return op->result;
}


/* without the response */

ngx_uint_t
op_find(zone_t *z, op_t *op)
{
    ngx_pool_t  *pool;

    pool = op->pool;
    op->pool = NULL;

    check_equal(op_try_read(z, op), NGX_OK);

    op->pool = pool;

    return op->result;
}


ngx_int_t
op_try_read(zone_t *z, op_t *op)
{
    ngx_int_t               rc;
    ngx_idempotency_find_t  find;

    ngx_memzero(&find, sizeof(ngx_idempotency_find_t));
    op_prepare(&find.op, op, op_handler);

    find.pool = op->pool;

    rc = op_run(z, &find.op, z->store.engine->find(&z->store, &find));

    if (op->result == NGX_IDEMPOTENCY_BOUND) {
        op_found(op, &find.found);
        op->parts = find.parts;
        ngx_memcpy(op->fingerprint, find.fingerprint,
                   NGX_IDEMPOTENCY_DIGEST_LEN);
    }

    return rc;
}


ngx_uint_t
op_forget(zone_t *z, op_t *op)
{
    ngx_int_t                 rc;
    ngx_idempotency_forget_t  forget;

    ngx_memzero(&forget, sizeof(ngx_idempotency_forget_t));
    op_prepare(&forget.op, op, op_handler);

    forget.fence = op->fence;

    rc = z->store.engine->forget(&z->store, &forget);
    check_equal(op_run(z, &forget.op, rc), NGX_OK);

    return op->result;
}


ngx_uint_t
op_claims(op_t *op, ngx_uint_t token, ngx_uint_t print, ngx_msec_t now)
{
    op_init(op, token, print, now);

    return op_claim(&zone, op);
}


ngx_uint_t
op_finds(op_t *op, ngx_uint_t token, ngx_uint_t print, ngx_msec_t now)
{
    op_init(op, token, print, now);

    return op_find(&zone, op);
}


void
forget(ngx_uint_t token, ngx_msec_t now)
{
    op_t  op;

    op_init(&op, token, 0, now);
    check_equal(op_forget(&zone, &op), NGX_IDEMPOTENCY_OK);
}


/* the operation itself: its cursor goes on in it */

ngx_uint_t
op_list(zone_t *z, ngx_idempotency_list_t *list)
{
    op_t       op;
    ngx_int_t  rc;

    ngx_memzero(&op, sizeof(op_t));

    list->op.handler = op_handler;
    list->op.data = &op;

    rc = z->store.engine->list(&z->store, list);
    check_equal(op_run(z, &list->op, rc), NGX_OK);

    return op.result;
}


void
op_cancel(zone_t *z, op_t *op)
{
    z->store.engine->cancel(&z->store, &op->claim.op);

    op->waiting = op->claim.op.waiting;
    check_equal(op->waiting, 0);
}


static u_char
op_byte(uint64_t seed, size_t i)
{
    uint64_t  n;

    n = seed * 0x9e3779b97f4a7c15 + (i + 1) * 0xbf58476d1ce4e5b9;

    return (u_char) (n >> 40);
}


/* pieces have sizes from 0 on, with empty ones at both ends and inside */

void
op_respond(op_t *op, size_t size, uint64_t seed)
{
    size_t         n, done, i;
    u_char        *p;
    uint64_t       state;
    ngx_buf_t     *b;
    ngx_chain_t  **last, *cl;

    op->size = size;
    op->pieces = NULL;

    state = seed;
    last = &op->pieces;
    done = 0;

    while (done < size || op->pieces == NULL || unit_below(&state, 2)) {

        switch (unit_below(&state, 4)) {
        case 0:
            n = 0;
            break;
        case 1:
            n = unit_below(&state, 100);
            break;
        case 2:
            n = unit_below(&state, 10000);
            break;
        default:
            n = size;
        }

        n = ngx_min(n, size - done);

        b = ngx_calloc_buf(op->pool);
        p = ngx_palloc(op->pool, n + 1);
        cl = ngx_alloc_chain_link(op->pool);

        for (i = 0; i < n; i++) {
            p[i] = op_byte(seed, done + i);
        }

        b->pos = p;
        b->last = p + n;

        cl->buf = b;
        cl->next = NULL;
        *last = cl;
        last = &cl->next;

        done += n;
    }
}


int
op_responded(op_t *op, size_t size, uint64_t seed)
{
    size_t  i;

    if (size == 0) {
        return check_equal(op->response.len, 0)
               && check(op->response.data == NULL);
    }

    if (!check_equal(op->response.len, size)
        || !check(op->response.data != NULL))
    {
        return 0;
    }

    for (i = 0; i < size; i++) {
        if (op->response.data[i] != op_byte(seed, i)) {
            return check_equal(i, size);
        }
    }

    return 1;
}


ngx_uint_t
op_bind(zone_t *z, ngx_uint_t token, ngx_uint_t print, ngx_msec_t now,
    ngx_msec_t window, size_t size)
{
    op_t  op;

    op_init(&op, token, print, now);
    op.window = window;

    if (op_claim(z, &op) != NGX_IDEMPOTENCY_CLAIMED) {
        return op.result;
    }

    op.outcome = NGX_IDEMPOTENCY_DONE;
    op.status = 200;
    op_respond(&op, size, token);

    return op_complete(z, &op);
}
