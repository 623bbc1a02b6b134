
/*
 * A new key with content just seen under another one: perhaps a client that
 * makes a key per attempt.  The content has a record of its own, bound to the
 * key under which it was first seen.
 */


#include "ngx_http_idempotency.h"


static ngx_int_t similar_found(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t similar_refuse(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_http_idempotency_status_e why);


ngx_int_t
ngx_http_idempotency_similar_bind(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *scope)
{
    ctx->similar = ngx_pcalloc(r->pool,
                               sizeof(ngx_http_idempotency_similar_t));
    if (ctx->similar == NULL) {
        return NGX_ERROR;
    }

    ngx_http_idempotency_content(r, ctx, scope,
                                 NGX_IDEMPOTENCY_DIGEST_SIMILAR,
                                 ctx->similar->op.token);
    return NGX_OK;
}


/* the request owns its key by now; what is bound is the key itself */

void
ngx_http_idempotency_similar(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_idempotency_op_t  *op;

    op = &ctx->similar->op;

    ngx_memcpy(op->fingerprint, ctx->op.token, NGX_IDEMPOTENCY_DIGEST_LEN);

    op->now = ngx_current_msec;
    op->window = ctx->conf->content_window;
    op->lease = ctx->conf->lease;
    op->pool = r->pool;
}


/* NGX_OK: the owner goes on */

ngx_int_t
ngx_http_idempotency_similar_answer(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_idempotency_op_t     *op;
    ngx_idempotency_store_t  *store;

    op = &ctx->similar->op;

    switch (op->result) {

    case NGX_IDEMPOTENCY_CLAIMED:

        /* seen now, which is all that there is to be known */

        op->outcome = NGX_IDEMPOTENCY_NOT_KEPT;

        store = ctx->conf->shm_zone->data;
        (void) store->engine->complete(store, op);

        /* fall through */

    case NGX_IDEMPOTENCY_BOUND:

        /* with this very key, which was released since */

        ctx->similar->seen = 1;
        return NGX_OK;

    case NGX_IDEMPOTENCY_CONFLICT:
        return similar_found(r, ctx);

    default: /* NGX_IDEMPOTENCY_UNAVAILABLE */
        return similar_refuse(r, ctx, NGX_HTTP_IDEMPOTENCY_STATUS_UNAVAILABLE);
    }
}


static ngx_int_t
similar_found(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    if (ctx->conf->similar == NGX_HTTP_IDEMPOTENCY_SIMILAR_REJECT) {
        return similar_refuse(r, ctx, NGX_HTTP_IDEMPOTENCY_STATUS_SIMILAR);
    }

    ctx->status = NGX_HTTP_IDEMPOTENCY_STATUS_SIMILAR;

    ngx_log_error(ctx->conf->log_level, r->connection->log, 0,
                  "idempotency: passed a new key with content just seen, "
                  "token: %*xs, zone: \"%V\"",
                  (size_t) NGX_IDEMPOTENCY_DIGEST_LEN, ctx->op.token,
                  &ctx->conf->shm_zone->shm.name);

    return NGX_OK;
}


/* nothing was executed under the key: if it is refused, it is fresh again */

static ngx_int_t
similar_refuse(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_status_e why)
{
    ngx_idempotency_store_t  *store;

    if (!ngx_http_idempotency_refuses(ctx, why)) {
        return ngx_http_idempotency_refuse(r, ctx, why);
    }

    ctx->state = NGX_HTTP_IDEMPOTENCY_STATE_DECIDED;

    store = ctx->conf->shm_zone->data;
    (void) store->engine->release(store, &ctx->op);

    return ngx_http_idempotency_refuse(r, ctx, why);
}


/* the content wasn't executed: another key may bring it */

void
ngx_http_idempotency_unlike(ngx_http_idempotency_ctx_t *ctx)
{
    ngx_idempotency_store_t  *store;

    if (ctx->similar && ctx->similar->seen) {
        store = ctx->conf->shm_zone->data;
        (void) store->engine->forget(store, &ctx->similar->op);
    }
}
