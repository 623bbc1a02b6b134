
/* What is known of a request, for logs, headers and maps. */


#include "ngx_http_idempotency.h"
#include "request/ngx_http_idempotency_refuse.h"


/* NGX_DECLINED: it has no value */

typedef ngx_int_t (*variable_value_pt)(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *value);

typedef struct {
    ngx_str_t          name;
    variable_value_pt  value;
} variable_t;


static ngx_int_t variable_get(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t variable_status(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *value);
static ngx_int_t variable_key(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *value);
static ngx_int_t variable_token(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *value);
static ngx_int_t variable_digest(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *value);
static ngx_int_t variable_reason(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *value);
static ngx_int_t variable_age(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *value);
static ngx_int_t variable_replays(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *value);
static ngx_int_t variable_expires(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *value);
static ngx_int_t variable_fence(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *value);
static ngx_int_t variable_refusal(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *value);
static ngx_int_t variable_detail(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *value);
static ngx_int_t variable_hex(ngx_http_request_t *r, u_char *digest,
    ngx_str_t *value);
static ngx_int_t variable_number(ngx_http_request_t *r, uint64_t n,
    ngx_str_t *value);


static variable_t  variables[] = {
    { ngx_string("idempotency_status"), variable_status },
    { ngx_string("idempotency_key"), variable_key },
    { ngx_string("idempotency_token"), variable_token },
    { ngx_string("idempotency_digest"), variable_digest },
    { ngx_string("idempotency_reason"), variable_reason },
    { ngx_string("idempotency_age"), variable_age },
    { ngx_string("idempotency_replays"), variable_replays },
    { ngx_string("idempotency_expires"), variable_expires },
    { ngx_string("idempotency_fence"), variable_fence },
    { ngx_string("idempotency_refusal"), variable_refusal },
    { ngx_string("idempotency_detail"), variable_detail },
    /* any name that begins so */
    { ngx_string("idempotency_field_"), NULL },
    { ngx_null_string, NULL }
};


ngx_int_t
ngx_http_idempotency_add_variables(ngx_conf_t *cf)
{
    variable_t           *v;
    ngx_http_variable_t  *var;

    for (v = variables; v->name.len; v++) {
        var = ngx_http_add_variable(cf, &v->name,
                                    v->value ? NGX_HTTP_VAR_NOCACHEABLE
                                             : NGX_HTTP_VAR_PREFIX);
        if (var == NULL) {
            return NGX_ERROR;
        }

        if (v->value) {
            var->get_handler = variable_get;
            var->data = (uintptr_t) v;

        } else {
            var->get_handler = ngx_http_idempotency_field_variable;
        }
    }

    return NGX_OK;
}


/* one of ours that says what became of a request, so not a field of it */

ngx_uint_t
ngx_http_idempotency_is_own(ngx_str_t *name)
{
    variable_t  *v;

    for (v = variables; v->name.len; v++) {
        if (v->value
            && v->name.len == name->len
            && ngx_strncasecmp(v->name.data, name->data, name->len) == 0)
        {
            return 1;
        }
    }

    return 0;
}


static ngx_int_t
variable_get(ngx_http_request_t *r, ngx_http_variable_value_t *v,
    uintptr_t data)
{
    variable_t *variable = (variable_t *) data;

    ngx_int_t                    rc;
    ngx_str_t                    value;
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ngx_http_idempotency_get_ctx(r);

    rc = ctx ? variable->value(r, ctx, &value) : NGX_DECLINED;

    if (rc == NGX_ERROR) {
        return NGX_ERROR;
    }

    ngx_http_idempotency_set_variable(v, rc, &value);

    return NGX_OK;
}


static ngx_int_t
variable_status(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_str_t *value)
{
    if (ctx->status == NGX_HTTP_IDEMPOTENCY_STATUS_NONE) {
        return NGX_DECLINED;
    }

    *value = ngx_http_idempotency_statuses[ctx->status].label;

    if (!ctx->conf->dry_run) {
        value->len -= NGX_HTTP_IDEMPOTENCY_LABEL_SUFFIX;
    }

    return NGX_OK;
}


static ngx_int_t
variable_key(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_str_t *value)
{
    if (ctx->verdict != NGX_HTTP_IDEMPOTENCY_STATUS_NEW) {
        return NGX_DECLINED;
    }

    *value = ctx->key;

    return NGX_OK;
}


static ngx_int_t
variable_token(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_str_t *value)
{
    return ngx_http_idempotency_bound(ctx)
           ? variable_hex(r, ctx->claim.op.token, value) : NGX_DECLINED;
}


static ngx_int_t
variable_digest(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_str_t *value)
{
    return ngx_http_idempotency_bound(ctx)
           ? variable_hex(r, ctx->body.digest, value) : NGX_DECLINED;
}


static ngx_int_t
variable_reason(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_str_t *value)
{
    u_char  *text;

    if (ctx->status != NGX_HTTP_IDEMPOTENCY_STATUS_CONFLICT) {
        return NGX_DECLINED;
    }

    text = ngx_pnalloc(r->pool, NGX_HTTP_IDEMPOTENCY_REASON_LEN);
    if (text == NULL) {
        return NGX_ERROR;
    }

    *value = ngx_http_idempotency_reason(ctx, text);

    return NGX_OK;
}


/* this and the next: of the record that a repeat met */

static ngx_int_t
variable_age(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_str_t *value)
{
    return ctx->claim.found.response.data
           ? variable_number(r, ctx->claim.found.age / 1000, value)
           : NGX_DECLINED;
}


static ngx_int_t
variable_replays(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_str_t *value)
{
    return ctx->claim.found.response.data
           ? variable_number(r, ctx->claim.found.replays, value)
           : NGX_DECLINED;
}


/*
 * Seconds until the token is free.  The window runs from the outcome on: before
 * that the owner sees the whole window, and others see nothing.
 */

static ngx_int_t
variable_expires(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_str_t *value)
{
    ngx_msec_t                ends;
    ngx_msec_int_t            left;
    ngx_idempotency_claim_t  *claim;

    claim = &ctx->claim;

    if ((claim->fence == 0 && claim->found.fence == 0)
        || ctx->settled.refused)
    {
        return NGX_DECLINED;
    }

    if (ctx->state == NGX_HTTP_IDEMPOTENCY_STATE_RELEASED || claim->leftover) {
        return variable_number(r, 0, value);
    }

    if (ngx_http_idempotency_owns(ctx)) {
        ends = ngx_http_idempotency_ends(ctx);

    } else if (ctx->state == NGX_HTTP_IDEMPOTENCY_STATE_SETTLED) {
        ends = ctx->settled.ends;

    } else if (claim->found.outcome == NGX_IDEMPOTENCY_PENDING
               || claim->op.result == NGX_IDEMPOTENCY_UNAVAILABLE)
    {
        return NGX_DECLINED;

    } else {
        ends = ctx->answered + claim->found.left;
    }

    /* rounded up: it is free then */

    left = ngx_max((ngx_msec_int_t) (ends - ngx_current_msec), 0);

    return variable_number(r, (left + 999) / 1000, value);
}


static ngx_int_t
variable_fence(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_str_t *value)
{
    uint64_t  fence;

    fence = ctx->claim.fence ? ctx->claim.fence : ctx->claim.found.fence;

    return fence ? variable_number(r, fence, value) : NGX_DECLINED;
}


/* this and the next, for an error_page: what the document would have said */

static ngx_int_t
variable_refusal(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_str_t *value)
{
    if (!ngx_http_idempotency_refused(ctx)) {
        return NGX_DECLINED;
    }

    *value = ngx_http_idempotency_statuses[ctx->status].name;

    return NGX_OK;
}


static ngx_int_t
variable_detail(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_str_t *value)
{
    if (!ngx_http_idempotency_refused(ctx)) {
        return NGX_DECLINED;
    }

    return (ngx_http_idempotency_refusal_detail(r, ctx, value) == NGX_OK)
           ? NGX_OK : NGX_ERROR;
}


static ngx_int_t
variable_hex(ngx_http_request_t *r, u_char *digest, ngx_str_t *value)
{
    value->len = 2 * NGX_IDEMPOTENCY_DIGEST_LEN;

    value->data = ngx_pnalloc(r->pool, value->len);
    if (value->data == NULL) {
        return NGX_ERROR;
    }

    (void) ngx_hex_dump(value->data, digest, NGX_IDEMPOTENCY_DIGEST_LEN);

    return NGX_OK;
}


static ngx_int_t
variable_number(ngx_http_request_t *r, uint64_t n, ngx_str_t *value)
{
    value->data = ngx_pnalloc(r->pool, NGX_INT64_LEN);
    if (value->data == NULL) {
        return NGX_ERROR;
    }

    value->len = ngx_sprintf(value->data, "%uL", n) - value->data;

    return NGX_OK;
}
