
/*
 * What a request is bound to: its token (which operation) and its fingerprint
 * (what exactly), beside the identity (asked by whom).
 */


#include "ngx_http_idempotency.h"


static ngx_int_t bind_fingerprint(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t bind_values(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_idempotency_digest_t *d);
static void bind_key_headers(ngx_array_t *keys, ngx_idempotency_digest_t *d);
static void bind_number(ngx_idempotency_digest_t *d, size_t n);


ngx_int_t
ngx_http_idempotency_bind(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_str_t  scope;

    ctx->similar = NULL;

    if (ngx_http_idempotency_identity(r, ctx) != NGX_OK
        || bind_fingerprint(r, ctx) != NGX_OK
        || ngx_http_idempotency_scope(r, ctx->conf, &scope) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (ngx_http_idempotency_by_content(ctx)) {
        ngx_http_idempotency_content(r, ctx, &scope,
                                     NGX_IDEMPOTENCY_DIGEST_CONTENT,
                                     ctx->claim.op.token);
        return NGX_OK;
    }

    ngx_http_idempotency_token(ctx->conf, &scope, &ctx->key,
                               ctx->claim.op.token);

    if (ctx->conf->similar == NGX_HTTP_IDEMPOTENCY_SIMILAR_OFF) {
        return NGX_OK;
    }

    return ngx_http_idempotency_similar_bind(r, ctx, &scope);
}


void
ngx_http_idempotency_token(ngx_http_idempotency_loc_conf_t *conf,
    ngx_str_t *scope, ngx_str_t *key, u_char *token)
{
    ngx_idempotency_digest_t  d;

    ngx_idempotency_digest_init(&d, conf->digest_key,
                                NGX_IDEMPOTENCY_DIGEST_TOKEN_VERSION,
                                NGX_IDEMPOTENCY_DIGEST_TOKEN);
    ngx_idempotency_digest_field(&d, scope);
    ngx_idempotency_digest_field(&d, key);
    ngx_idempotency_digest_final(&d, token);
}


/*
 * Action and body.  The action is what the client asked for: a rewrite changes
 * nothing.  Its own digest is short, and only explains.
 */

static ngx_int_t
bind_fingerprint(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    u_char                     action[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_str_t                  digest;
    ngx_idempotency_parts_t   *parts;
    ngx_http_core_srv_conf_t  *cscf;
    ngx_idempotency_digest_t   d, head;

    cscf = ngx_http_get_module_srv_conf(r, ngx_http_core_module);

    ngx_idempotency_digest_init(&d, ctx->conf->digest_key,
                                NGX_IDEMPOTENCY_FINGERPRINT_VERSION,
                                NGX_IDEMPOTENCY_DIGEST_FINGERPRINT);

    ngx_idempotency_digest_field(&d, &r->method_name);
    ngx_idempotency_digest_field(&d, r->headers_in.server.len
                                         ? &r->headers_in.server
                                         : &cscf->server_name);
    ngx_idempotency_digest_field(&d, &r->unparsed_uri);

    if (ctx->conf->bind && bind_values(r, ctx, &d) != NGX_OK) {
        return NGX_ERROR;
    }

    head = d;
    ngx_idempotency_digest_final(&head, action);

    digest.len = NGX_IDEMPOTENCY_DIGEST_LEN;
    digest.data = ctx->body.digest;

    ngx_idempotency_digest_field(&d, &digest);
    ngx_idempotency_digest_final(&d, ctx->claim.fingerprint);

    parts = &ctx->claim.parts;

    ngx_memcpy(parts->action, action, NGX_IDEMPOTENCY_HINT_LEN);
    ngx_memcpy(parts->body, ctx->body.digest, NGX_IDEMPOTENCY_HINT_LEN);
    ngx_memcpy(parts->settings, ctx->conf->settings,
               NGX_IDEMPOTENCY_SETTINGS_LEN);

    return NGX_OK;
}


static ngx_int_t
bind_values(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_idempotency_digest_t *d)
{
    ngx_str_t                  value;
    ngx_uint_t                 i;
    ngx_http_complex_value_t  *cv;

    cv = ctx->conf->bind->elts;

    for (i = 0; i < ctx->conf->bind->nelts; i++) {

        if (ngx_http_complex_value(r, &cv[i], &value) != NGX_OK) {
            return NGX_ERROR;
        }

        ngx_idempotency_digest_field(d, &value);
    }

    return NGX_OK;
}


/* without its variables it is empty, whatever stands around them */

ngx_int_t
ngx_http_idempotency_value(ngx_http_request_t *r,
    ngx_http_idempotency_value_t *value, ngx_str_t *text)
{
    if (ngx_http_complex_value(r, &value->script, text) != NGX_OK) {
        return NGX_ERROR;
    }

    if (value->script.lengths && text->len == value->constant) {
        text->len = 0;
    }

    return NGX_OK;
}


/* by default $server_name, which needs no evaluation */

ngx_int_t
ngx_http_idempotency_scope(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf, ngx_str_t *scope)
{
    ngx_http_core_srv_conf_t  *cscf;

    if (conf->scope) {
        return ngx_http_complex_value(r, conf->scope, scope);
    }

    cscf = ngx_http_get_module_srv_conf(r, ngx_http_core_module);
    *scope = cscf->server_name;

    return NGX_OK;
}


/* why a conflict is one; empty of all else */

ngx_str_t
ngx_http_idempotency_reason(ngx_http_idempotency_ctx_t *ctx, u_char *text)
{
    u_char     *p;
    ngx_str_t   reason;
    ngx_uint_t  i;

    /* in the order of NGX_IDEMPOTENCY_DIFFERS_... */

    static char  *parts[] = { "action", "identity", "body", "settings" };

    p = text;

    if (ctx->status == NGX_HTTP_IDEMPOTENCY_STATUS_CONFLICT) {

        for (i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
            if (ctx->claim.differs & ((ngx_uint_t) 1 << i)) {
                p = ngx_sprintf(p, "%s%s", p == text ? "" : ",", parts[i]);
            }
        }
    }

    reason.data = text;
    reason.len = p - text;

    return reason;
}


/*
 * What fingerprints and identities are made by, as the configuration has it:
 * equal on every machine that has it so.
 */

void
ngx_http_idempotency_bind_settings(ngx_http_idempotency_loc_conf_t *conf)
{
    u_char                     out[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_str_t                 *name;
    ngx_uint_t                 i, n;
    ngx_http_complex_value_t  *cv;
    ngx_idempotency_digest_t   d;

    ngx_idempotency_digest_init(&d, NULL, NGX_IDEMPOTENCY_DIGEST_OTHER_VERSION,
                                NGX_IDEMPOTENCY_DIGEST_SETTINGS);

    bind_number(&d, conf->canon.flags & NGX_IDEMPOTENCY_CANON_ALL);
    bind_number(&d, conf->normalize_buffer);

    n = conf->ignore_fields ? conf->ignore_fields->nelts : 0;
    name = n ? conf->ignore_fields->elts : NULL;

    bind_number(&d, n);

    for (i = 0; i < n; i++) {
        ngx_idempotency_digest_field(&d, &name[i]);
    }

    n = conf->bind ? conf->bind->nelts : 0;
    cv = n ? conf->bind->elts : NULL;

    bind_number(&d, n);

    for (i = 0; i < n; i++) {
        ngx_idempotency_digest_field(&d, &cv[i].value);
    }

    /* where it is empty, the default follows, and cookies count */

    bind_number(&d, conf->identity ? 1 : 0);

    if (conf->identity) {
        ngx_idempotency_digest_field(&d, &conf->identity->script.value);
    }

    ngx_http_idempotency_digest_ignored(&d, conf->ignore_cookies);
    bind_key_headers(conf->keys, &d);

    ngx_idempotency_digest_final(&d, out);

    ngx_memcpy(conf->settings, out, NGX_IDEMPOTENCY_SETTINGS_LEN);
}


/* those that would be credentials if they were no part of a key */

static void
bind_key_headers(ngx_array_t *keys, ngx_idempotency_digest_t *d)
{
    ngx_str_t                   *name;
    ngx_uint_t                   i, n;
    ngx_http_idempotency_key_t  *key;

    key = keys->elts;

    for (i = 0; i < keys->nelts; i++) {
        name = key[i].headers.elts;

        for (n = 0; n < key[i].headers.nelts; n++) {
            if (ngx_http_idempotency_credential(name[n].data, name[n].len,
                                                ngx_hash_key(name[n].data,
                                                             name[n].len)))
            {
                ngx_idempotency_digest_field(d, &name[n]);
            }
        }
    }
}


static void
bind_number(ngx_idempotency_digest_t *d, size_t n)
{
    u_char     text[NGX_SIZE_T_LEN];
    ngx_str_t  value;

    value.data = text;
    value.len = ngx_sprintf(text, "%uz", n) - text;

    ngx_idempotency_digest_field(d, &value);
}
