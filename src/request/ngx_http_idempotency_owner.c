
/*
 * The context of a request, and the claim that an owner holds in it.  Both
 * outlive internal redirects, named locations and error pages, which clear
 * the contexts of all modules; the claim is settled on every way out.
 */


#include "ngx_http_idempotency.h"


/* a store that has not heard of an outcome for so long is told of in the log */

#define NGX_HTTP_IDEMPOTENCY_OWNER_SILENCE  5000


/* how the store is told; as that may take longer than the request, this has
   memory of its own, until there is an answer */

struct ngx_http_idempotency_report_s {
    /* must be the first member */
    union {
        ngx_idempotency_op_t         op;
        ngx_idempotency_complete_t   complete;
        ngx_idempotency_release_t    release;
    } as;

    ngx_idempotency_store_t         *store;
    /* NULL: the request is gone */
    ngx_http_idempotency_ctx_t      *ctx;
    ngx_event_t                      timer;

    /* for the log */
    uint64_t                         fence;
    ngx_uint_t                       level;
    ngx_int_t                        outcome;
    ngx_uint_t                       status;
};


static void owner_cleanup(void *data);
static void owner_leave(ngx_http_idempotency_ctx_t *ctx);
static void owner_complete(ngx_http_idempotency_ctx_t *ctx,
    ngx_int_t outcome);
static void owner_release(ngx_http_idempotency_ctx_t *ctx, ngx_int_t outcome);
static void owner_begin(ngx_http_idempotency_ctx_t *ctx, ngx_int_t outcome);
static void owner_end(ngx_idempotency_op_t *op, ngx_int_t rc);
static void owner_silence_handler(ngx_event_t *ev);
static void owner_answered(ngx_idempotency_op_t *op);
static ngx_chain_t *owner_response(ngx_http_idempotency_ctx_t *ctx,
    ngx_int_t outcome, size_t *size);
static void owner_free(ngx_http_idempotency_ctx_t *ctx);


ngx_http_idempotency_ctx_t *
ngx_http_idempotency_create_ctx(ngx_http_request_t *r)
{
    ngx_http_cleanup_t          *cln;
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ngx_pcalloc(r->pool, sizeof(ngx_http_idempotency_ctx_t));
    if (ctx == NULL) {
        return NULL;
    }

    /* before anything is claimed, so that no claim can be left behind */

    cln = ngx_http_cleanup_add(r, 0);
    if (cln == NULL) {
        return NULL;
    }

    cln->handler = owner_cleanup;
    cln->data = ctx;

    ctx->request = r;

    ngx_http_set_ctx(r, ctx, ngx_http_idempotency_module);

    return ctx;
}


ngx_http_idempotency_ctx_t *
ngx_http_idempotency_get_ctx(ngx_http_request_t *r)
{
    ngx_http_cleanup_t          *cln;
    ngx_http_idempotency_ctx_t  *ctx;

    r = r->main;

    ctx = ngx_http_get_module_ctx(r, ngx_http_idempotency_module);

    if (ctx == NULL && (r->internal || r->filter_finalize)) {

        for (cln = r->cleanup; cln; cln = cln->next) {

            if (cln->handler == owner_cleanup) {
                ctx = cln->data;
                ngx_http_set_ctx(r, ctx, ngx_http_idempotency_module);
                break;
            }
        }
    }

    return ctx;
}


/*
 * The last way out: it runs before the log phase, and behind the cleanup of
 * the upstream, which knows by then what was sent
 */

static void
owner_cleanup(void *data)
{
    ngx_http_idempotency_ctx_t  *ctx = data;

    ngx_uint_t           asks;
    ngx_http_request_t  *r;

    r = ctx->request;

    asks = (ctx->wait.claim && ctx->wait.claim->op.waiting);

    ngx_http_idempotency_wait_cancel(ctx);
    ngx_http_idempotency_hold_cancel(ctx);

    ngx_http_idempotency_client_end(ctx);

    if (ngx_http_idempotency_owns(ctx)) {

        if (asks) {
            /* whether its content was seen: nothing was executed */

            ngx_http_idempotency_give_up(ctx);

        } else {
            ngx_http_idempotency_settle(r, ctx);
        }
    }

    owner_leave(ctx);

    ngx_http_idempotency_count_end(ctx);

    /* for the variables in the log */

    ngx_http_set_ctx(r, ctx, ngx_http_idempotency_module);
}


/* nothing outlives the request but what the store has not answered yet */

static void
owner_leave(ngx_http_idempotency_ctx_t *ctx)
{
    ngx_http_idempotency_report_t  *report;

    if (ctx->similar && ctx->similar->note) {
        ngx_free(ctx->similar->note);
    }

    report = ctx->settled.report;

    if (report == NULL) {
        return;
    }

    if (report->as.op.handler) {
        report->ctx = NULL;

    } else {
        ngx_free(report);
    }
}


/*
 * Memory to tell the store by, before anything is claimed: so no claim can be
 * left behind for want of it
 */

ngx_int_t
ngx_http_idempotency_prepare(ngx_http_idempotency_ctx_t *ctx)
{
    ngx_http_idempotency_report_t  *report;

    report = ngx_calloc(sizeof(ngx_http_idempotency_report_t),
                        ctx->request->connection->log);
    if (report == NULL) {
        return NGX_ERROR;
    }

    report->store = ctx->conf->store;
    report->ctx = ctx;

    ctx->settled.report = report;

    return NGX_OK;
}


/* tells the store what became of the claim, once */

void
ngx_http_idempotency_settle(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_int_t  outcome;

    ngx_idempotency_die(&ctx->claim.op, NGX_IDEMPOTENCY_FAULT_DIE_RECORDING);

    outcome = ngx_http_idempotency_outcome(r, ctx);

    if (outcome == NGX_HTTP_IDEMPOTENCY_RELEASE
        || outcome == NGX_HTTP_IDEMPOTENCY_LEAVE)
    {
        ctx->state = NGX_HTTP_IDEMPOTENCY_STATE_RELEASED;

        ngx_http_idempotency_unlike(ctx);
        owner_release(ctx, outcome);

        return;
    }

    ctx->state = NGX_HTTP_IDEMPOTENCY_STATE_SETTLED;
    ctx->settled.ends = ngx_http_idempotency_ends(ctx);

    owner_complete(ctx, outcome);
}


/* it is refused all the same, and nothing was executed */

void
ngx_http_idempotency_give_up(ngx_http_idempotency_ctx_t *ctx)
{
    ctx->state = NGX_HTTP_IDEMPOTENCY_STATE_DECIDED;

    owner_release(ctx, NGX_HTTP_IDEMPOTENCY_RELEASE);
}


static void
owner_complete(ngx_http_idempotency_ctx_t *ctx, ngx_int_t outcome)
{
    ngx_idempotency_store_t     *store;
    ngx_idempotency_complete_t  *complete;

    complete = &ctx->settled.report->as.complete;

    complete->fence = ctx->claim.fence;
    complete->outcome = outcome;
    complete->status = ctx->capture.status;
    complete->pieces = owner_response(ctx, outcome, &complete->size);

    store = ctx->conf->store;

    owner_begin(ctx, outcome);
    owner_end(&complete->op, store->engine->complete(store, complete));
    owner_free(ctx);
}


static void
owner_release(ngx_http_idempotency_ctx_t *ctx, ngx_int_t outcome)
{
    ngx_idempotency_store_t    *store;
    ngx_idempotency_release_t  *release;

    release = &ctx->settled.report->as.release;

    release->fence = ctx->claim.fence;
    release->leave = (outcome == NGX_HTTP_IDEMPOTENCY_LEAVE);
    release->status = ctx->capture.status;
    release->pieces = owner_response(ctx, outcome, &release->size);

    store = ctx->conf->store;

    owner_begin(ctx, outcome);
    owner_end(&release->op, store->engine->release(store, release));
    owner_free(ctx);
}


static void
owner_begin(ngx_http_idempotency_ctx_t *ctx, ngx_int_t outcome)
{
    ngx_idempotency_op_t           *op;
    ngx_http_idempotency_report_t  *report;

    report = ctx->settled.report;

    report->fence = ctx->claim.fence;
    report->level = ngx_http_idempotency_log_trail(ctx->conf);
    report->outcome = outcome;
    report->status = ctx->capture.status;

    op = &report->as.op;

    ngx_memcpy(op->token, ctx->claim.op.token, NGX_IDEMPOTENCY_DIGEST_LEN);

    op->now = ngx_current_msec;
    op->handler = owner_answered;
    op->data = report;

#if (NGX_IDEMPOTENCY_FAULTS)
    op->fault = ctx->claim.op.fault;
#endif
}


static void
owner_end(ngx_idempotency_op_t *op, ngx_int_t rc)
{
    ngx_http_idempotency_report_t  *report;

    if (rc == NGX_AGAIN) {
        report = op->data;

        report->timer.handler = owner_silence_handler;
        report->timer.data = report;
        report->timer.log = ngx_cycle->log;
        report->timer.cancelable = 1;

        ngx_add_timer(&report->timer, NGX_HTTP_IDEMPOTENCY_OWNER_SILENCE);

        return;
    }

    if (rc == NGX_ERROR) {
        op->result = NGX_IDEMPOTENCY_UNAVAILABLE;
    }

    owner_answered(op);
}


/* the answer may come yet, and is logged then, if it is no good news */

static void
owner_silence_handler(ngx_event_t *ev)
{
    ngx_http_idempotency_report_t  *report;

    report = ev->data;

    ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                  "idempotency: zone \"%V\" does not answer, it is not known "
                  "whether the outcome of an owner is recorded, token: %*xs",
                  &report->store->name,
                  (size_t) NGX_IDEMPOTENCY_DIGEST_LEN, report->as.op.token);
}


/* of a request that may be gone by now */

static void
owner_answered(ngx_idempotency_op_t *op)
{
    ngx_log_t                      *log;
    ngx_http_idempotency_ctx_t     *ctx;
    ngx_http_idempotency_report_t  *report;

    report = op->data;
    ctx = report->ctx;

    if (report->timer.timer_set) {
        ngx_del_timer(&report->timer);
    }

    log = ctx ? ctx->request->connection->log : ngx_cycle->log;

    switch (op->result) {

    case NGX_IDEMPOTENCY_STALE:
        ngx_log_error(NGX_LOG_WARN, log, 0,
                      "idempotency: the claim was taken over, "
                      "the outcome of its late owner is not recorded, "
                      "token: %*xs, zone: \"%V\", fence: %uL",
                      (size_t) NGX_IDEMPOTENCY_DIGEST_LEN, op->token,
                      &report->store->name, report->fence);
        break;

    case NGX_IDEMPOTENCY_TRIMMED:
        ngx_log_error(NGX_LOG_ERR, log, 0,
                      "idempotency: zone \"%V\" is full, a response of %uz "
                      "bytes is not kept, token: %*xs",
                      &report->store->name, report->as.complete.size,
                      (size_t) NGX_IDEMPOTENCY_DIGEST_LEN, op->token);

        report->outcome = report->as.complete.outcome;
        break;

    case NGX_IDEMPOTENCY_UNAVAILABLE:
        ngx_log_error(NGX_LOG_CRIT, log, 0,
                      "idempotency: zone \"%V\" is unavailable, the outcome "
                      "of an owner is not recorded, token: %*xs",
                      &report->store->name,
                      (size_t) NGX_IDEMPOTENCY_DIGEST_LEN, op->token);
        break;

    default:
        break;
    }

    if (op->result == NGX_IDEMPOTENCY_OK
        || op->result == NGX_IDEMPOTENCY_TRIMMED)
    {
        ngx_http_idempotency_log_outcome(log, report->level, report->store,
                                         op, report->fence, report->outcome,
                                         report->outcome < 0
                                             && report->as.release.doubt,
                                         report->status);
    }

    if (ctx) {
        ctx->settled.report = NULL;

        if (op->result == NGX_IDEMPOTENCY_STALE
            || op->result == NGX_IDEMPOTENCY_UNAVAILABLE)
        {
            ctx->settled.refused = 1;

        } else if (ctx->state == NGX_HTTP_IDEMPOTENCY_STATE_SETTLED) {
            ctx->settled.ends = ngx_current_msec + report->as.complete.left;
        }
    }

    ngx_free(report);

    if (ctx) {
        ngx_http_idempotency_hold_end(ctx);
    }
}


/* what there is of the response that can be kept */

static ngx_chain_t *
owner_response(ngx_http_idempotency_ctx_t *ctx, ngx_int_t outcome,
    size_t *size)
{
    ngx_chain_t  *cl;

    *size = 0;

    if (outcome == NGX_IDEMPOTENCY_NOT_KEPT
        || !ctx->capture.whole || ctx->capture.too_large)
    {
        return NULL;
    }

    for (cl = ctx->capture.pieces; cl; cl = cl->next) {
        *size += cl->buf->last - cl->buf->pos;
    }

    return ctx->capture.pieces;
}


/* the store has what it keeps, and the client may take long */

static void
owner_free(ngx_http_idempotency_ctx_t *ctx)
{
    ngx_chain_t  *cl;

    for (cl = ctx->capture.pieces; cl; cl = cl->next) {
        (void) ngx_pfree(ctx->request->pool, cl->buf->start);
    }

    ctx->capture.pieces = NULL;
    ctx->capture.last_piece = NULL;
}
