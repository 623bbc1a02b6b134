
/*
 * Who asks: what idempotency_identity says, or else the request's own
 * credentials.  A stranger who comes with another's key is refused by it.
 */


#include "ngx_http_idempotency_headers.h"


static ngx_int_t identity_default(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_idempotency_digest_t *d,
    ngx_uint_t *known);
static ngx_uint_t identity_authorization(ngx_http_request_t *r,
    ngx_idempotency_digest_t *d, ngx_uint_t *known);
static void identity_keys(ngx_http_request_t *r, ngx_idempotency_digest_t *d,
    ngx_uint_t *known);
static uint32_t identity_lengths(ngx_http_request_t *r);
static ngx_int_t identity_certificate(ngx_http_request_t *r,
    ngx_idempotency_digest_t *d, ngx_uint_t *known);


/* as in $http_name */

static ngx_str_t  identity_names[] = {
    ngx_string("x_api_key"),
    ngx_string("api_key"),
    ngx_string("x_auth_token"),
    ngx_string("x_access_token"),
    ngx_string("private_token"),
    ngx_string("x_goog_api_key"),
    ngx_string("ocp_apim_subscription_key"),
    ngx_string("x_shopify_access_token"),
    ngx_null_string
};


/* a kind stands before each value, so that none can pass for another's */

ngx_int_t
ngx_http_idempotency_identity(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    u_char                     out[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_str_t                  value;
    ngx_uint_t                 known;
    ngx_idempotency_digest_t   d;

    known = 0;

    ngx_idempotency_digest_init(&d, ctx->conf->digest_key,
                                ctx->claim.parts.version,
                                NGX_IDEMPOTENCY_DIGEST_IDENTITY);

    if (ctx->conf->identity == NULL) {

        if (identity_default(r, ctx, &d, &known) != NGX_OK) {
            return NGX_ERROR;
        }

    } else {

        if (ngx_http_complex_value(r, ctx->conf->identity, &value) != NGX_OK) {
            return NGX_ERROR;
        }

        ngx_idempotency_digest_bytes(&d, (u_char *) "V", 1);
        ngx_idempotency_digest_field(&d, &value);

        known = (value.len != 0);
    }

    if (!known) {
        ngx_memzero(ctx->claim.parts.identity, NGX_IDEMPOTENCY_IDENTITY_LEN);
        return NGX_OK;
    }

    ngx_idempotency_digest_final(&d, out);
    ngx_memcpy(ctx->claim.parts.identity, out, NGX_IDEMPOTENCY_IDENTITY_LEN);

    return NGX_OK;
}


/* of whom nothing is known all of it is zero */

ngx_uint_t
ngx_http_idempotency_identified(ngx_http_idempotency_ctx_t *ctx)
{
    static u_char  nobody[NGX_IDEMPOTENCY_IDENTITY_LEN];

    return ngx_memcmp(ctx->claim.parts.identity, nobody,
                      NGX_IDEMPOTENCY_IDENTITY_LEN)
           != 0;
}


/*
 * A token that is one user's stands alone.  A password or an API key is often
 * one for many, and tells them apart only together with their cookies.
 */

static ngx_int_t
identity_default(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_idempotency_digest_t *d, ngx_uint_t *known)
{
    if (!identity_authorization(r, d, known)) {

        identity_keys(r, d, known);

        if (ngx_http_idempotency_cookies(r, ctx->conf->ignore_cookies,
                                         ctx->claim.parts.version, d))
        {
            *known = 1;
        }
    }

    return identity_certificate(r, d, known);
}


/* whether it stands alone; the scheme's case doesn't count */

static ngx_uint_t
identity_authorization(ngx_http_request_t *r, ngx_idempotency_digest_t *d,
    ngx_uint_t *known)
{
    u_char                               lower[32], *p, *last;
    ngx_str_t                            scheme, secret;
    ngx_uint_t                           alone;
    ngx_table_elt_t                     *h;
    ngx_http_idempotency_header_iter_t   it;

    static ngx_str_t  name = ngx_string("authorization");

    if (r->headers_in.authorization == NULL) {
        return 0;
    }

    alone = 0;

    ngx_http_idempotency_header_iter(&it, r);

    while ((h = ngx_http_idempotency_header_next(&it, &name)) != NULL) {

        if (h->value.len == 0) {
            continue;
        }

        *known = 1;

        p = h->value.data;
        last = p + h->value.len;

        while (p < last && *p != ' ' && *p != '\t') {
            p++;
        }

        scheme.len = p - h->value.data;
        scheme.data = h->value.data;

        secret = ngx_idempotency_trim(p, last);

        if (scheme.len != 5
            || ngx_strncasecmp(scheme.data, (u_char *) "basic", 5) != 0)
        {
            alone = 1;
        }

        /* without credentials behind it, it is no scheme but a secret */

        if (secret.len && scheme.len <= sizeof(lower)) {
            ngx_strlow(lower, scheme.data, scheme.len);
            scheme.data = lower;
        }

        ngx_idempotency_digest_bytes(d, (u_char *) "A", 1);
        ngx_idempotency_digest_field(d, &scheme);
        ngx_idempotency_digest_field(d, &secret);
    }

    return alone;
}


/* most requests have none: they are passed over by their lengths */

static void
identity_keys(ngx_http_request_t *r, ngx_idempotency_digest_t *d,
    ngx_uint_t *known)
{
    uint32_t                             lengths;
    ngx_str_t                           *name;
    ngx_table_elt_t                     *h;
    ngx_http_idempotency_header_iter_t   it;

    lengths = identity_lengths(r);

    for (name = identity_names; name->len; name++) {

        if ((lengths & ((uint32_t) 1 << (name->len % 32))) == 0) {
            continue;
        }

        ngx_http_idempotency_header_iter(&it, r);

        while ((h = ngx_http_idempotency_header_next(&it, name)) != NULL) {

            if (h->value.len == 0) {
                continue;
            }

            ngx_idempotency_digest_bytes(d, (u_char *) "K", 1);
            ngx_idempotency_digest_field(d, name);
            ngx_idempotency_digest_field(d, &h->value);

            *known = 1;
        }
    }
}


/* a bit for each length that the name of a header has, modulo 32 */

static uint32_t
identity_lengths(ngx_http_request_t *r)
{
    uint32_t          lengths;
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    lengths = 0;

    for (part = &r->headers_in.headers.part; part; part = part->next) {

        h = part->elts;

        for (i = 0; i < part->nelts; i++) {
            lengths |= (uint32_t) 1 << (h[i].key.len % 32);
        }
    }

    return lengths;
}


/* by its variable: nginx may be built without SSL */

static ngx_int_t
identity_certificate(ngx_http_request_t *r, ngx_idempotency_digest_t *d,
    ngx_uint_t *known)
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
    *known = 1;

    return NGX_OK;
}
