
/*
 * What a request is bound to: its token (which operation) and its fingerprint
 * (what exactly, asked by whom).
 */


#include "ngx_http_idempotency.h"


static ngx_int_t bind_scope(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *scope);
static ngx_int_t bind_fingerprint(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t bind_identity(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_idempotency_digest_t *d);
static void bind_authorization(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_idempotency_digest_t *d);
static void bind_cookies(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_idempotency_digest_t *d);
static ngx_int_t bind_certificate(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_idempotency_digest_t *d);


ngx_int_t
ngx_http_idempotency_bind(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_str_t                  scope, fingerprint;
    ngx_idempotency_digest_t   d;

    ctx->similar = NULL;

    if (bind_fingerprint(r, ctx) != NGX_OK
        || bind_scope(r, ctx, &scope) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (!ctx->content) {
        ngx_idempotency_digest_init(&d, NGX_IDEMPOTENCY_DIGEST_TOKEN);
        ngx_idempotency_digest_field(&d, &scope);
        ngx_idempotency_digest_field(&d, &ctx->key);
        ngx_idempotency_digest_final(&d, ctx->op.token);
    }

    if (!ctx->content
        && ctx->conf->similar == NGX_HTTP_IDEMPOTENCY_SIMILAR_OFF)
    {
        return NGX_OK;
    }

    /* action, identity and body are in the fingerprint already */

    fingerprint.len = NGX_IDEMPOTENCY_DIGEST_LEN;
    fingerprint.data = ctx->op.fingerprint;

    ngx_idempotency_digest_init(&d, ctx->content
                                    ? NGX_IDEMPOTENCY_DIGEST_CONTENT
                                    : NGX_IDEMPOTENCY_DIGEST_SIMILAR);
    ngx_idempotency_digest_field(&d, &scope);
    ngx_idempotency_digest_field(&d, &r->connection->addr_text);
    ngx_idempotency_digest_field(&d, &fingerprint);

    /*
     * There is no key that only one of them knows: users who share credentials
     * are told apart by their cookies
     */

    if (ctx->conf->identity == NULL && r->headers_in.authorization) {
        bind_cookies(r, ctx, &d);
    }

    if (ctx->content) {
        ngx_idempotency_digest_final(&d, ctx->op.token);
        return NGX_OK;
    }

    ctx->similar = ngx_pcalloc(r->pool, sizeof(ngx_idempotency_op_t));
    if (ctx->similar == NULL) {
        return NGX_ERROR;
    }

    ngx_idempotency_digest_final(&d, ctx->similar->token);

    return NGX_OK;
}


/* by default $server_name, which needs no evaluation */

static ngx_int_t
bind_scope(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_str_t *scope)
{
    ngx_http_core_srv_conf_t  *cscf;

    if (ctx->conf->scope) {
        return ngx_http_complex_value(r, ctx->conf->scope, scope);
    }

    cscf = ngx_http_get_module_srv_conf(r, ngx_http_core_module);
    *scope = cscf->server_name;

    return NGX_OK;
}


/* the action is what the client asked for: a rewrite changes nothing */

static ngx_int_t
bind_fingerprint(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_str_t                  digest;
    ngx_http_core_srv_conf_t  *cscf;
    ngx_idempotency_digest_t   d;

    cscf = ngx_http_get_module_srv_conf(r, ngx_http_core_module);

    ngx_idempotency_digest_init(&d, NGX_IDEMPOTENCY_DIGEST_FINGERPRINT);

    ngx_idempotency_digest_field(&d, &r->method_name);
    ngx_idempotency_digest_field(&d, r->headers_in.server.len
                                         ? &r->headers_in.server
                                         : &cscf->server_name);
    ngx_idempotency_digest_field(&d, &r->unparsed_uri);

    if (bind_identity(r, ctx, &d) != NGX_OK) {
        return NGX_ERROR;
    }

    digest.len = NGX_IDEMPOTENCY_DIGEST_LEN;
    digest.data = ctx->digest;

    ngx_idempotency_digest_field(&d, &digest);
    ngx_idempotency_digest_final(&d, ctx->op.fingerprint);

    return NGX_OK;
}


static ngx_int_t
bind_identity(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_idempotency_digest_t *d)
{
    ngx_str_t  identity;

    ctx->identified = 0;

    if (ctx->conf->identity == NULL) {
        bind_authorization(r, ctx, d);

        if (!ctx->identified) {
            bind_cookies(r, ctx, d);
        }

        return bind_certificate(r, ctx, d);
    }

    if (ngx_http_complex_value(r, ctx->conf->identity, &identity) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_idempotency_digest_field(d, &identity);
    ctx->identified = (identity.len != 0);

    return NGX_OK;
}


/* a kind stands before each value, so that none can pass for another's */

static void
bind_authorization(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_idempotency_digest_t *d)
{
    ngx_table_elt_t  *h;

    h = r->headers_in.authorization;

    if (h && h->value.len) {
        ngx_idempotency_digest_bytes(d, (u_char *) "A", 1);
        ngx_idempotency_digest_field(d, &h->value);
        ctx->identified = 1;
    }
}


static void
bind_cookies(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_idempotency_digest_t *d)
{
    ngx_table_elt_t                     *h;
    ngx_http_idempotency_header_iter_t   it;

    static ngx_str_t  cookie = ngx_string("cookie");

    ngx_http_idempotency_header_iter(&it, r);

    while ((h = ngx_http_idempotency_header_next(&it, &cookie)) != NULL) {
        ngx_idempotency_digest_bytes(d, (u_char *) "C", 1);
        ngx_idempotency_digest_field(d, &h->value);

        if (h->value.len) {
            ctx->identified = 1;
        }
    }
}


/* by its variable: nginx may be built without SSL */

static ngx_int_t
bind_certificate(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_idempotency_digest_t *d)
{
    ngx_str_t                   value;
    ngx_http_variable_value_t  *vv;

    static ngx_str_t  name = ngx_string("ssl_client_fingerprint");

    if (!r->http_connection->ssl) {
        return NGX_OK;
    }

    vv = ngx_http_get_variable(r, &name, ngx_hash_key(name.data, name.len));
    if (vv == NULL) {
        return NGX_ERROR;
    }

    if (vv->not_found || vv->len == 0) {
        return NGX_OK;
    }

    value.len = vv->len;
    value.data = vv->data;

    ngx_idempotency_digest_bytes(d, (u_char *) "S", 1);
    ngx_idempotency_digest_field(d, &value);
    ctx->identified = 1;

    return NGX_OK;
}
