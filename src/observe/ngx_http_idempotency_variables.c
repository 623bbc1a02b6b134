
/*
 * The module's variables, for logs, headers and maps.
 */


#include "ngx_http_idempotency.h"


typedef enum {
    variable_status = 0,
    variable_key,
    variable_token,
    variable_digest,
    variable_reason,
    variable_refusal,
    variable_detail,
    /* numbers from here on */
    variable_age,
    variable_replays,
    variable_expires,
    variable_fence,
    /* any name with this prefix: a field of the request's body */
    variable_field
} variable_e;

typedef struct {
    ngx_str_t          name;
    variable_e         what;
} variable_t;


static ngx_int_t variable_get(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t variable_field_get(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static void variable_set(ngx_http_variable_value_t *v, ngx_int_t rc,
    ngx_str_t *value);
static ngx_int_t variable_text(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, variable_e what, ngx_str_t *value);
static ngx_uint_t variable_refused(ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t variable_hex(ngx_http_request_t *r, u_char *digest,
    ngx_str_t *value);
static int64_t variable_number(ngx_http_idempotency_ctx_t *ctx,
    variable_e what);
static int64_t variable_left(ngx_http_idempotency_ctx_t *ctx);


static variable_t  variables[] = {
    { ngx_string("idempotency_status"), variable_status },
    { ngx_string("idempotency_key"), variable_key },
    { ngx_string("idempotency_token"), variable_token },
    { ngx_string("idempotency_digest"), variable_digest },
    { ngx_string("idempotency_reason"), variable_reason },
    { ngx_string("idempotency_refusal"), variable_refusal },
    { ngx_string("idempotency_detail"), variable_detail },
    { ngx_string("idempotency_age"), variable_age },
    { ngx_string("idempotency_replays"), variable_replays },
    { ngx_string("idempotency_expires"), variable_expires },
    { ngx_string("idempotency_fence"), variable_fence },
    { ngx_string("idempotency_field_"), variable_field },
    { ngx_null_string, 0 }
};


ngx_int_t
ngx_http_idempotency_add_variables(ngx_conf_t *cf)
{
    variable_t           *v;
    ngx_http_variable_t  *var;

    for (v = variables; v->name.len; v++) {
        var = ngx_http_add_variable(cf, &v->name,
                                    (v->what == variable_field)
                                        ? NGX_HTTP_VAR_PREFIX
                                        : NGX_HTTP_VAR_NOCACHEABLE);
        if (var == NULL) {
            return NGX_ERROR;
        }

        if (v->what == variable_field) {
            var->get_handler = variable_field_get;

        } else {
            var->get_handler = variable_get;
            var->data = v->what;
        }
    }

    return NGX_OK;
}


/* whether the name is in this table, which has no fields of the body */

ngx_uint_t
ngx_http_idempotency_is_own_variable(ngx_str_t *name)
{
    variable_t  *v;

    for (v = variables; v->name.len; v++) {
        if (v->what != variable_field
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
    int64_t                      n;
    ngx_int_t                    rc;
    ngx_str_t                    value;
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ngx_http_idempotency_get_ctx(r);

    if (ctx == NULL) {
        rc = NGX_DECLINED;

    } else if (data < variable_age) {
        rc = variable_text(r, ctx, data, &value);

    } else {
        n = variable_number(ctx, data);
        rc = (n == -1) ? NGX_DECLINED : NGX_OK;

        if (n != -1) {
            value.data = ngx_pnalloc(r->pool, NGX_INT64_LEN);
            if (value.data == NULL) {
                return NGX_ERROR;
            }

            value.len = ngx_sprintf(value.data, "%uL", n) - value.data;
        }
    }

    if (rc == NGX_ERROR) {
        return NGX_ERROR;
    }

    variable_set(v, rc, &value);

    return NGX_OK;
}


static ngx_int_t
variable_field_get(ngx_http_request_t *r, ngx_http_variable_value_t *v,
    uintptr_t data)
{
    ngx_str_t *name = (ngx_str_t *) data;

    ngx_int_t  rc;
    ngx_str_t  field, value;

    r = r->main;

    if (r->request_body == NULL) {

        /* the body is not read yet: the variable is evaluated again later */

        v->not_found = 1;
        v->no_cacheable = 1;
        return NGX_OK;
    }

    field.len = name->len - NGX_HTTP_IDEMPOTENCY_FIELD_LEN;
    field.data = name->data + NGX_HTTP_IDEMPOTENCY_FIELD_LEN;

    rc = ngx_http_idempotency_field(r, &field, &value);

    if (rc == NGX_ERROR) {
        return NGX_ERROR;
    }

    variable_set(v, rc, &value);

    return NGX_OK;
}


/* rc: the result of the search for the value */

static void
variable_set(ngx_http_variable_value_t *v, ngx_int_t rc, ngx_str_t *value)
{
    if (rc != NGX_OK) {
        v->not_found = 1;
        return;
    }

    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;
    v->data = value->data;
    v->len = value->len;
}


/* NGX_DECLINED: the variable has no value */

static ngx_int_t
variable_text(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    variable_e what, ngx_str_t *value)
{
    u_char  *text;

    switch (what) {

    case variable_status:
        if (ctx->status == NGX_HTTP_IDEMPOTENCY_STATUS_NONE) {
            return NGX_DECLINED;
        }

        *value = ngx_http_idempotency_statuses[ctx->status].label;

        if (!ctx->conf->dry_run) {
            value->len -= NGX_HTTP_IDEMPOTENCY_LABEL_SUFFIX;
        }

        return NGX_OK;

    case variable_key:
        *value = ctx->key;

        return (ctx->verdict == NGX_HTTP_IDEMPOTENCY_STATUS_NEW)
               ? NGX_OK : NGX_DECLINED;

    case variable_token:
        return ngx_http_idempotency_has_token(ctx)
               ? variable_hex(r, ctx->claim.op.token, value) : NGX_DECLINED;

    case variable_digest:
        return ngx_http_idempotency_has_token(ctx)
               ? variable_hex(r, ctx->body.digest, value) : NGX_DECLINED;

    case variable_reason:
        if (ctx->status != NGX_HTTP_IDEMPOTENCY_STATUS_CONFLICT) {
            return NGX_DECLINED;
        }

        text = ngx_pnalloc(r->pool, NGX_HTTP_IDEMPOTENCY_REASON_LEN);
        if (text == NULL) {
            return NGX_ERROR;
        }

        *value = ngx_http_idempotency_reason(ctx, text);

        return NGX_OK;

    /* for an error_page: what the problem document would have said */

    case variable_refusal:
        *value = ngx_http_idempotency_statuses[ctx->status].name;

        return variable_refused(ctx) ? NGX_OK : NGX_DECLINED;

    default: /* variable_detail */
        return variable_refused(ctx)
               ? ngx_http_idempotency_refusal_detail(r, ctx, value)
               : NGX_DECLINED;
    }
}


static ngx_uint_t
variable_refused(ngx_http_idempotency_ctx_t *ctx)
{
    return ctx->state == NGX_HTTP_IDEMPOTENCY_STATE_DECIDED
           && ctx->status != NGX_HTTP_IDEMPOTENCY_STATUS_NONE
           && ctx->status < NGX_HTTP_IDEMPOTENCY_REFUSALS
           && ngx_http_idempotency_refuses(ctx, ctx->status);
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


/* -1: no value */

static int64_t
variable_number(ngx_http_idempotency_ctx_t *ctx, variable_e what)
{
    ngx_idempotency_claim_t  *claim;

    claim = &ctx->claim;

    switch (what) {

    case variable_age:
        return ((claim->op.result == NGX_IDEMPOTENCY_BOUND
                 || claim->op.result == NGX_IDEMPOTENCY_CONFLICT)
                && claim->found.outcome != NGX_IDEMPOTENCY_PENDING)
               ? (int64_t) (claim->found.age / 1000) : -1;

    case variable_replays:
        return claim->found.response.data
               ? (int64_t) claim->found.replays : -1;

    case variable_expires:
        return variable_left(ctx);

    default: /* variable_fence */

        if (claim->fence) {
            return claim->fence;
        }

        return claim->found.fence ? (int64_t) claim->found.fence : -1;
    }
}


/*
 * Seconds until the token is free.  The window begins with the outcome: before
 * it the owner has the whole window, and other requests have no value.
 */

static int64_t
variable_left(ngx_http_idempotency_ctx_t *ctx)
{
    ngx_msec_t                ends;
    ngx_msec_int_t            left;
    ngx_idempotency_claim_t  *claim;

    claim = &ctx->claim;

    if ((claim->fence == 0 && claim->found.fence == 0)
        || ctx->settled.refused)
    {
        return -1;
    }

    if (ctx->state == NGX_HTTP_IDEMPOTENCY_STATE_RELEASED || claim->leftover) {
        return 0;
    }

    if (ngx_http_idempotency_owns(ctx)) {
        ends = ngx_http_idempotency_ends(ctx);

    } else if (ctx->state == NGX_HTTP_IDEMPOTENCY_STATE_SETTLED) {
        ends = ctx->settled.ends;

    } else if (claim->found.outcome == NGX_IDEMPOTENCY_PENDING
               || claim->op.result == NGX_IDEMPOTENCY_UNAVAILABLE)
    {
        return -1;

    } else {
        ends = ctx->answered_at + claim->found.left;
    }

    /* rounded up: by then the token is free */

    left = ngx_max((ngx_msec_int_t) (ends - ngx_current_msec), 0);

    return (left + 999) / 1000;
}
