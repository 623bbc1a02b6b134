
/*
 * The context of a request, and the claim that an owner holds in it.  Both
 * outlive internal redirects, named locations and error pages, which clear
 * the contexts of all modules; the claim is settled on every way out.
 */


#include "ngx_http_idempotency.h"


static void owner_cleanup(void *data);
static void owner_response(ngx_http_idempotency_ctx_t *ctx,
    ngx_int_t outcome);


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

    ngx_http_request_t  *r;

    r = ctx->request;

    ngx_http_idempotency_wait_cancel(ctx);

    if (ctx->client.timer.timer_set) {
        ngx_del_timer(&ctx->client.timer);
    }

    if (ngx_http_idempotency_owns(ctx)) {
        ngx_http_idempotency_settle(r, ctx);
    }

    /* for the variables in the log */

    ngx_http_set_ctx(r, ctx, ngx_http_idempotency_module);
}


/* tells the store what became of the claim, once */

void
ngx_http_idempotency_settle(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_int_t                 rc, outcome;
    ngx_idempotency_op_t     *op;
    ngx_idempotency_store_t  *store;

    ctx->state = NGX_HTTP_IDEMPOTENCY_STATE_SETTLED;

    op = &ctx->op;
    store = ctx->conf->shm_zone->data;

    ngx_idempotency_die(op, NGX_IDEMPOTENCY_FAULT_DIE_RECORDING);

    outcome = ngx_http_idempotency_outcome(r, ctx);

    op->now = ngx_current_msec;
    op->handler = NULL;
    op->status = ctx->capture.status;

    owner_response(ctx, outcome);

    if (outcome == NGX_HTTP_IDEMPOTENCY_RELEASE
        || outcome == NGX_HTTP_IDEMPOTENCY_LEAVE)
    {
        ngx_http_idempotency_unlike(ctx);

        op->leave = (outcome == NGX_HTTP_IDEMPOTENCY_LEAVE);

        rc = store->engine->release(store, op);

        if (rc == NGX_OK && op->result == NGX_IDEMPOTENCY_OK) {
            ctx->state = NGX_HTTP_IDEMPOTENCY_STATE_RELEASED;
        }

    } else {
        op->outcome = outcome;

        rc = store->engine->complete(store, op);
    }

    if (rc != NGX_OK) {
        return;
    }

    switch (op->result) {

    case NGX_IDEMPOTENCY_STALE:
        ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                      "idempotency: the claim was taken over, "
                      "the outcome of its late owner is not recorded");
        break;

    case NGX_IDEMPOTENCY_TRIMMED:
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "idempotency: zone \"%V\" is full, a response of %uz "
                      "bytes is not kept",
                      &ctx->conf->shm_zone->shm.name, op->size);
        break;

    case NGX_IDEMPOTENCY_UNAVAILABLE:
        ngx_log_error(NGX_LOG_CRIT, r->connection->log, 0,
                      "idempotency: zone \"%V\" is unavailable, the outcome "
                      "of an owner is not recorded, token: %*xs",
                      &ctx->conf->shm_zone->shm.name,
                      (size_t) NGX_IDEMPOTENCY_DIGEST_LEN, op->token);
        break;

    default:
        break;
    }
}


/* what there is of the response that can be kept */

static void
owner_response(ngx_http_idempotency_ctx_t *ctx, ngx_int_t outcome)
{
    ngx_chain_t           *cl;
    ngx_idempotency_op_t  *op;

    op = &ctx->op;

    op->pieces = NULL;
    op->size = 0;

    if (outcome == NGX_IDEMPOTENCY_NOT_KEPT
        || !ctx->capture.whole || ctx->capture.too_large)
    {
        return;
    }

    op->pieces = ctx->capture.pieces;

    for (cl = op->pieces; cl; cl = cl->next) {
        op->size += cl->buf->last - cl->buf->pos;
    }
}
