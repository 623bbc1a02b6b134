
/*
 * A new key with content just seen under another one: perhaps a client that
 * makes a key per attempt.  The content has a record of its own, bound to the
 * key under which it was first seen.
 */


#include "ngx_http_idempotency.h"


static void similar_note(ngx_http_idempotency_ctx_t *ctx);
static void similar_told(ngx_idempotency_op_t *op);
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
                                 ctx->similar->claim.op.token);
    return NGX_OK;
}


/*
 * The request owns its key by now; what is bound is the key itself.  With
 * memory for the note at hand no claim can be left behind.
 */

ngx_int_t
ngx_http_idempotency_similar(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_idempotency_claim_t         *claim;
    ngx_http_idempotency_similar_t  *similar;

    similar = ctx->similar;

    if (similar->note == NULL) {
        similar->note = ngx_calloc(sizeof(ngx_idempotency_complete_t),
                                   r->connection->log);
        if (similar->note == NULL) {
            return NGX_ERROR;
        }
    }

    claim = &similar->claim;

    ngx_memcpy(claim->fingerprint, ctx->claim.op.token,
               NGX_IDEMPOTENCY_DIGEST_LEN);

    claim->op.now = ngx_current_msec;
    claim->window = ctx->conf->content_window;
    claim->lease = ctx->conf->lease;
    claim->pool = r->pool;
    claim->local = 1;

    return NGX_OK;
}


/* NGX_OK: the owner goes on */

ngx_int_t
ngx_http_idempotency_similar_answer(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_http_idempotency_similar_t  *similar;

    similar = ctx->similar;

    switch (similar->claim.op.result) {

    case NGX_IDEMPOTENCY_CLAIMED:
        similar->seen = 1;
        similar->fence = similar->claim.fence;

        similar_note(ctx);

        return NGX_OK;

    case NGX_IDEMPOTENCY_BOUND:

        /* with this very key, which was released since */

        similar->seen = 1;
        similar->fence = similar->claim.found.fence;

        return NGX_OK;

    case NGX_IDEMPOTENCY_CONFLICT:
        return similar_found(r, ctx);

    default: /* NGX_IDEMPOTENCY_UNAVAILABLE */
        return similar_refuse(r, ctx, NGX_HTTP_IDEMPOTENCY_STATUS_UNAVAILABLE);
    }
}


/* seen now, which is all that there is to be known */

static void
similar_note(ngx_http_idempotency_ctx_t *ctx)
{
    ngx_idempotency_store_t     *store;
    ngx_idempotency_complete_t  *note;

    store = ctx->conf->store;
    note = ctx->similar->note;

    ctx->similar->note = NULL;

    ngx_memcpy(note->op.token, ctx->similar->claim.op.token,
               NGX_IDEMPOTENCY_DIGEST_LEN);

    note->op.now = ngx_current_msec;
    note->op.handler = similar_told;
    note->fence = ctx->similar->fence;
    note->outcome = NGX_IDEMPOTENCY_NOT_KEPT;

    if (store->engine->complete(store, note) != NGX_AGAIN) {
        similar_told(&note->op);
    }
}


/* if it was in vain, there will be no warning: nothing depends on it */

static void
similar_told(ngx_idempotency_op_t *op)
{
    ngx_free(op);
}


static ngx_int_t
similar_found(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    if (ctx->conf->similar == NGX_HTTP_IDEMPOTENCY_SIMILAR_REJECT) {
        return similar_refuse(r, ctx, NGX_HTTP_IDEMPOTENCY_STATUS_SIMILAR);
    }

    ctx->status = NGX_HTTP_IDEMPOTENCY_STATUS_SIMILAR;

    ngx_http_idempotency_log_similar(r, ctx);

    return NGX_OK;
}


/* nothing was executed under the key: if it is refused, it is fresh again */

static ngx_int_t
similar_refuse(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_status_e why)
{
    if (!ngx_http_idempotency_refuses(ctx, why)) {
        return ngx_http_idempotency_refuse(r, ctx, why);
    }

    ngx_http_idempotency_give_up(ctx);

    return ngx_http_idempotency_refuse(r, ctx, why);
}


/* the content wasn't executed: another key may bring it */

void
ngx_http_idempotency_unlike(ngx_http_idempotency_ctx_t *ctx)
{
    ngx_idempotency_store_t   *store;
    ngx_idempotency_forget_t  *forget;

    if (ctx->similar == NULL || !ctx->similar->seen) {
        return;
    }

    forget = ngx_calloc(sizeof(ngx_idempotency_forget_t), ngx_cycle->log);
    if (forget == NULL) {
        return;
    }

    store = ctx->conf->store;

    ngx_memcpy(forget->op.token, ctx->similar->claim.op.token,
               NGX_IDEMPOTENCY_DIGEST_LEN);

    forget->op.now = ngx_current_msec;
    forget->op.handler = similar_told;
    forget->fence = ctx->similar->fence;

    if (store->engine->forget(store, forget) != NGX_AGAIN) {
        similar_told(&forget->op);
    }
}
