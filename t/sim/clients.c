
/*
 * Clients, as the module sees them: a request claims its token, waits, is
 * refused or replayed, or owns it; then the upstream executes it, and its
 * outcome is recorded or released.
 */


#include "world.h"


req_t          reqs[REQUESTS];
ngx_uint_t     nreqs;

static u_char  body[200000];


void
response_of(u_char *body, exec_t *e)
{
    size_t  i;

    for (i = 0; i < e->size; i++) {
        body[i] = (u_char) (e->n * 31 + i * 7 + i / 251);
    }
}


static void
request_result(req_t *q)
{
    if (q->claim.op.waiting) {
        q->act = WAITS;
        return;
    }

    q->act = IDLE;

    switch (q->claim.op.result) {

    case NGX_IDEMPOTENCY_CHANGED:
        request_ask(q);
        return;

    case NGX_IDEMPOTENCY_CLAIMED:
        q->act = OWNS;
        q->end = "executes";
        q->exec = judge_execution(q);
        message(M_EXECUTED, (q->chance >> 8) % 8 ? (q->chance >> 11) % 60
                                                 : (q->chance >> 11) % 1500,
                q->proc)->req = q;
        return;

    case NGX_IDEMPOTENCY_BOUND:
        judge_bound(q);
        return;

    case NGX_IDEMPOTENCY_LIMITED:
        q->end = "refused, over its quota";
        counts[N_LIMITED]++;
        judge_limited(q);
        break;

    case NGX_IDEMPOTENCY_UNAVAILABLE:
        if (q->local && !q->claim.alone) {
            q->claim.alone = 1;
            request_ask(q);
            return;
        }

        q->end = "refused, unavailable";
        counts[N_REFUSED]++;
        break;

    default:
        fault("request %u has result %u", (unsigned) q->n,
              (unsigned) q->claim.op.result);
        return;
    }

    tell("request %u: %s", (unsigned) q->n, q->end);
}


static void
request_handler(ngx_idempotency_op_t *op)
{
    req_t  *q = op->data;

    /* an operation that was cancelled has no answer */

    if (q->act != WAITS) {
        fault("request %u has an answer that it did not wait for",
              (unsigned) q->n);
        return;
    }

    request_result(q);
}


/* within its worker */

void
request_ask(req_t *q)
{
    ngx_int_t   rc;
    proc_t     *p;

    p = q->proc;

    q->claim.op.now = now + p->nginx->offset;
    q->claim.wait = (q->waits && now < q->deadline);
    q->asked = now;
    q->act = WAITS;

    if (q->claim.alone) {
        q->peek = proc_has(p, q->token);
    }

    rc = p->w->engine->claim(p->w->store, &q->claim);

    if (rc == NGX_OK) {
        request_result(q);

    } else if (rc != NGX_AGAIN) {
        fault("request %u: no memory", (unsigned) q->n);
    }
}


req_t *
request(proc_t *p, ngx_uint_t token, uint64_t r)
{
    req_t  *q;

    if (nreqs == REQUESTS) {
        fprintf(stderr, "too many requests\n");
        exit(2);
    }

    q = &reqs[nreqs++];
    memset(q, 0, sizeof(req_t));

    q->n = nreqs;
    q->proc = p;
    q->token = token;
    q->chance = r;
    q->waits = (r % 4 != 0);
    q->local = (set.local && !settling);
    q->final = settling;
    q->deadline = now + PATIENCE;

    memset(q->claim.op.token, 'a' + (int) token, NGX_IDEMPOTENCY_DIGEST_LEN);
    memset(q->claim.fingerprint, 'f', NGX_IDEMPOTENCY_DIGEST_LEN);
    memset(q->claim.parts.identity, 'i', NGX_IDEMPOTENCY_IDENTITY_LEN);
    memset(q->claim.value, 'v', NGX_IDEMPOTENCY_DIGEST_LEN);

    q->claim.op.handler = request_handler;
    q->claim.op.data = q;
    q->claim.window = set.window;
    q->claim.lease = set.lease;
    q->claim.quota = settling ? 0 : set.quota;
    q->claim.pool = p->w->pool;
    q->claim.retry = (token % 2 && (set.local || (r >> 18) % 4));

    tell("request %u for %c%s comes to nginx %c, worker %u", (unsigned) q->n,
         token_name(token), q->claim.retry ? " (retry)" : "", p->nginx->name,
         (unsigned) p->slot);

    message(M_AGAIN, AGAIN, p)->req = q;

    if (!settling && (r >> 4) % 12 == 0) {
        message(M_LEAVES, (r >> 8) % 100, p)->req = q;
    }

    if (!enter(p)) {
        died(p);
        return q;
    }

    request_ask(q);
    leave(p);

    return q;
}


/* its client has left, or its worker may wait for it no longer */

void
request_leaves(req_t *q)
{
    if (q->act == WAITS) {
        tell("the client of request %u leaves", (unsigned) q->n);
        q->proc->w->engine->cancel(q->proc->w->store, &q->claim.op);
        q->act = IDLE;
        q->end = "its client has left";
    }
}


static void
owner_told(ngx_idempotency_op_t *op)
{
    req_t       *q = op->data;
    sim_peek_t   peek;

    if (q->act != TELLS) {
        return;
    }

    q->act = IDLE;
    peek = proc_has(q->proc, q->token);

    if (peek.fence == q->exec->fence && peek.told == NGX_IDEMPOTENCY_FLUSHED
        && peek.state == NGX_IDEMPOTENCY_DONE && !q->exec->alone
        && !q->exec->outdone)
    {
        q->exec->sure = now;
    }

    tell("the client of request %u has its end", (unsigned) q->n);
}


/* within its worker: what its upstream says, if that was waited for */

void
owner_ends(req_t *q, ngx_uint_t given_up)
{
    ngx_int_t     rc;
    exec_t       *e;
    ngx_buf_t     b;
    ngx_uint_t    n, releases;
    ngx_chain_t   cl;

    e = q->exec;
    n = (q->chance >> 32) % 20;
    releases = (n < 4 && !q->final && !given_up);
    e->until = now + set.window;
    e->releasing = releases;
    e->state = releases ? RUNS : RECORDING;
    e->outcome = (given_up || (n == 6 && !q->final)) ? NGX_IDEMPOTENCY_IN_DOUBT
                 : (n == 4) ? NGX_IDEMPOTENCY_NOT_KEPT : NGX_IDEMPOTENCY_DONE;
    e->status = 200 + e->n % 300;
    e->size = (releases || e->outcome != NGX_IDEMPOTENCY_DONE) ? 0
              : 1 + (q->chance >> 40) % (n == 5 ? 100000 : n < 9 ? 9000 : 90);
    response_of(body, e);

    memset(&b, 0, sizeof(ngx_buf_t));
    b.pos = body;
    b.last = body + e->size;
    cl.buf = &b;
    cl.next = NULL;

    q->complete.op = q->claim.op;
    q->complete.op.now = now + q->proc->nginx->offset;
    q->complete.op.handler = owner_told;
    q->complete.op.resume = NULL;
    q->complete.release = releases;
    q->complete.fence = q->claim.fence;
    q->complete.outcome = e->outcome;
    q->complete.status = e->status;
    q->complete.size = e->size;
    q->complete.pieces = e->size ? &cl : NULL;

    /* others may act within this */

    q->act = releases ? IDLE : TELLS;
    rc = q->proc->w->engine->complete(q->proc->w->store, &q->complete);
    q->act = (rc == NGX_AGAIN && !releases) ? TELLS : IDLE;

    judge_ended(q, q->complete.op.result, releases);
}
