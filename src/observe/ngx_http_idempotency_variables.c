
/*
 * Variables: what is known of a request, for logs, headers and maps.
 */


#include "request/ngx_http_idempotency_refuse.h"


static ngx_int_t variable_status(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t variable_key(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t variable_hex(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t variable_reason(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t variable_number(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t variable_expires(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t variable_fence(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t variable_print(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uint64_t n);
static ngx_int_t variable_refusal(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);


#define VARIABLE_TOKEN    0
#define VARIABLE_DIGEST   1

#define VARIABLE_AGE      0
#define VARIABLE_REPLAYS  1

#define VARIABLE_REFUSAL  0
#define VARIABLE_DETAIL   1


static ngx_http_variable_t  variables[] = {

    { ngx_string("idempotency_status"), NULL, variable_status, 0,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_key"), NULL, variable_key, 0,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_token"), NULL, variable_hex, VARIABLE_TOKEN,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_digest"), NULL, variable_hex, VARIABLE_DIGEST,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_reason"), NULL, variable_reason, 0,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_age"), NULL, variable_number, VARIABLE_AGE,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_replays"), NULL, variable_number,
      VARIABLE_REPLAYS, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_expires"), NULL, variable_expires, 0,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_fence"), NULL, variable_fence, 0,
      NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_refusal"), NULL, variable_refusal,
      VARIABLE_REFUSAL, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_detail"), NULL, variable_refusal,
      VARIABLE_DETAIL, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_field_"), NULL,
      ngx_http_idempotency_field_variable, 0, NGX_HTTP_VAR_PREFIX, 0 },

      ngx_http_null_variable
};


/* in the order of ngx_http_idempotency_status_e; a dry run adds its suffix */

#define NGX_HTTP_IDEMPOTENCY_STATUS_SUFFIX_LEN  (sizeof("_DRY_RUN") - 1)

static ngx_str_t  status_names[] = {
    ngx_null_string,
    ngx_string("CONFLICT_DRY_RUN"),
    ngx_string("IN_PROGRESS_DRY_RUN"),
    ngx_string("IN_DOUBT_DRY_RUN"),
    ngx_string("NOT_KEPT_DRY_RUN"),
    ngx_string("SIMILAR_DRY_RUN"),
    ngx_string("EXPIRED_DRY_RUN"),
    ngx_string("MISSING_DRY_RUN"),
    ngx_string("MALFORMED_DRY_RUN"),
    ngx_string("LIMITED_DRY_RUN"),
    ngx_string("UNAVAILABLE_DRY_RUN"),
    ngx_string("NEW_DRY_RUN"),
    ngx_string("REPLAYED_DRY_RUN"),
    ngx_string("WAITED_DRY_RUN"),
    ngx_string("BYPASS_DRY_RUN")
};


ngx_int_t
ngx_http_idempotency_add_variables(ngx_conf_t *cf)
{
    ngx_http_variable_t  *var, *v;

    for (v = variables; v->name.len; v++) {
        var = ngx_http_add_variable(cf, &v->name, v->flags);
        if (var == NULL) {
            return NGX_ERROR;
        }

        var->get_handler = v->get_handler;
        var->data = v->data;
    }

    return NGX_OK;
}


/* one of ours that says what became of a request, so not a field of it */

ngx_uint_t
ngx_http_idempotency_is_own(ngx_str_t *name)
{
    ngx_http_variable_t  *v;

    for (v = variables; v->name.len; v++) {

        if (!(v->flags & NGX_HTTP_VAR_PREFIX)
            && v->name.len == name->len
            && ngx_strncasecmp(v->name.data, name->data, name->len) == 0)
        {
            return 1;
        }
    }

    return 0;
}


static ngx_int_t
variable_status(ngx_http_request_t *r, ngx_http_variable_value_t *v,
    uintptr_t data)
{
    ngx_str_t                   *name;
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ngx_http_idempotency_get_ctx(r);

    if (ctx == NULL || ctx->status == NGX_HTTP_IDEMPOTENCY_STATUS_NONE) {
        v->not_found = 1;
        return NGX_OK;
    }

    name = &status_names[ctx->status];

    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;
    v->data = name->data;
    v->len = name->len;

    if (!ctx->conf->dry_run) {
        v->len -= NGX_HTTP_IDEMPOTENCY_STATUS_SUFFIX_LEN;
    }

    return NGX_OK;
}


static ngx_int_t
variable_key(ngx_http_request_t *r, ngx_http_variable_value_t *v,
    uintptr_t data)
{
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ngx_http_idempotency_get_ctx(r);

    if (ctx == NULL || ctx->verdict != NGX_HTTP_IDEMPOTENCY_STATUS_NEW) {
        v->not_found = 1;
        return NGX_OK;
    }

    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;
    v->data = ctx->key.data;
    v->len = ctx->key.len;

    return NGX_OK;
}


static ngx_int_t
variable_hex(ngx_http_request_t *r, ngx_http_variable_value_t *v,
    uintptr_t data)
{
    u_char                      *digest;
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ngx_http_idempotency_get_ctx(r);

    if (ctx == NULL || !ngx_http_idempotency_bound(ctx)) {
        v->not_found = 1;
        return NGX_OK;
    }

    digest = (data == VARIABLE_TOKEN) ? ctx->op.token : ctx->body.digest;

    v->data = ngx_pnalloc(r->pool, 2 * NGX_IDEMPOTENCY_DIGEST_LEN);
    if (v->data == NULL) {
        return NGX_ERROR;
    }

    v->len = ngx_hex_dump(v->data, digest, NGX_IDEMPOTENCY_DIGEST_LEN)
             - v->data;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;

    return NGX_OK;
}


static ngx_int_t
variable_reason(ngx_http_request_t *r, ngx_http_variable_value_t *v,
    uintptr_t data)
{
    u_char                      *text;
    ngx_str_t                    reason;
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ngx_http_idempotency_get_ctx(r);

    if (ctx == NULL || ctx->status != NGX_HTTP_IDEMPOTENCY_STATUS_CONFLICT) {
        v->not_found = 1;
        return NGX_OK;
    }

    text = ngx_pnalloc(r->pool, NGX_HTTP_IDEMPOTENCY_REASON_LEN);
    if (text == NULL) {
        return NGX_ERROR;
    }

    reason = ngx_http_idempotency_reason(ctx, text);

    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;
    v->data = reason.data;
    v->len = reason.len;

    return NGX_OK;
}


/* of the record that a repeat met */

static ngx_int_t
variable_number(ngx_http_request_t *r, ngx_http_variable_value_t *v,
    uintptr_t data)
{
    ngx_uint_t                   n;
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ngx_http_idempotency_get_ctx(r);

    if (ctx == NULL || ctx->op.response.data == NULL) {
        v->not_found = 1;
        return NGX_OK;
    }

    if (data == VARIABLE_REPLAYS) {
        n = ctx->op.replays;

    } else {
        /* another worker's clock may have been read a moment later */
        n = ngx_max((ngx_msec_int_t) (ctx->op.now - ctx->op.recorded), 0)
            / 1000;
    }

    return variable_print(r, v, n);
}


/*
 * Until the token is free.  The owner's own window runs from the outcome on:
 * until there is one it is told whole.  When another's will be, nobody knows.
 */

static ngx_int_t
variable_expires(ngx_http_request_t *r, ngx_http_variable_value_t *v,
    uintptr_t data)
{
    ngx_msec_t                   now, ends;
    ngx_idempotency_op_t        *op;
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ngx_http_idempotency_get_ctx(r);

    if (ctx == NULL || ctx->op.fence == 0) {
        v->not_found = 1;
        return NGX_OK;
    }

    op = &ctx->op;
    now = ngx_current_msec;

    if (ctx->state == NGX_HTTP_IDEMPOTENCY_STATE_RELEASED || op->left) {
        return variable_print(r, v, 0);
    }

    if (ngx_http_idempotency_owns(ctx)) {
        ends = now + op->window;

        if ((ngx_msec_int_t) (op->now + op->least - ends) > 0) {
            ends = op->now + op->least;
        }

    } else if (op->outcome == NGX_IDEMPOTENCY_PENDING
               || op->result == NGX_IDEMPOTENCY_STALE
               || op->result == NGX_IDEMPOTENCY_UNAVAILABLE)
    {
        v->not_found = 1;
        return NGX_OK;

    } else {
        ends = op->ends;
    }

    /* rounded up: it is free then */

    return variable_print(r, v, (ngx_max((ngx_msec_int_t) (ends - now), 0)
                                 + 999) / 1000);
}


static ngx_int_t
variable_fence(ngx_http_request_t *r, ngx_http_variable_value_t *v,
    uintptr_t data)
{
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ngx_http_idempotency_get_ctx(r);

    if (ctx == NULL || ctx->op.fence == 0) {
        v->not_found = 1;
        return NGX_OK;
    }

    return variable_print(r, v, ctx->op.fence);
}


static ngx_int_t
variable_print(ngx_http_request_t *r, ngx_http_variable_value_t *v, uint64_t n)
{
    v->data = ngx_pnalloc(r->pool, NGX_INT64_LEN);
    if (v->data == NULL) {
        return NGX_ERROR;
    }

    v->len = ngx_sprintf(v->data, "%uL", n) - v->data;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;

    return NGX_OK;
}


/* for an error_page: what the document would have said */

static ngx_int_t
variable_refusal(ngx_http_request_t *r, ngx_http_variable_value_t *v,
    uintptr_t data)
{
    ngx_str_t                    value;
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ngx_http_idempotency_get_ctx(r);

    if (ctx == NULL || !ngx_http_idempotency_refused(ctx)) {
        v->not_found = 1;
        return NGX_OK;
    }

    if (data == VARIABLE_REFUSAL) {
        value = ngx_http_idempotency_refusals[ctx->status].name;

    } else if (ngx_http_idempotency_refusal_detail(r, ctx, &value) != NGX_OK) {
        return NGX_ERROR;
    }

    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;
    v->data = value.data;
    v->len = value.len;

    return NGX_OK;
}
