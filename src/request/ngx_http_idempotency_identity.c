
/*
 * Who asks: what idempotency_identity says, or else the request's own
 * credentials.  A stranger who comes with another's key is refused by it.
 */


#include "ngx_http_idempotency_headers.h"


/* more are taken in the order in which they come */

#define NGX_HTTP_IDEMPOTENCY_CREDENTIALS_SORTED  32


/* what a request shows of who asks */

typedef enum {
    /* of these many may have the same one */
    shown_shared = 0x01,
    shown_bearer = 0x02,
    shown_cookies = 0x04,
    shown_certificate = 0x08,
    /* by idempotency_identity */
    shown_named = 0x10
} identity_shown_e;


static ngx_int_t identity_default(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_idempotency_digest_t *d,
    ngx_uint_t *shown);
static void identity_authorization(ngx_http_request_t *r,
    ngx_idempotency_digest_t *d, ngx_uint_t *shown);
static void identity_headers(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf, ngx_idempotency_digest_t *d,
    ngx_uint_t *shown);
static ngx_uint_t identity_of_key(ngx_array_t *keys, ngx_table_elt_t *h);
static ngx_int_t identity_certificate(ngx_http_request_t *r,
    ngx_idempotency_digest_t *d, ngx_uint_t *shown);


static ngx_str_t  identity_name = ngx_string("authorization");


/* a kind stands before each value, so that none can pass for another's */

ngx_int_t
ngx_http_idempotency_identity(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    u_char                     out[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_str_t                  value;
    ngx_uint_t                 shown;
    ngx_idempotency_digest_t   d;

    shown = 0;
    ngx_str_null(&value);

    if (ctx->conf->identity
        && ngx_http_idempotency_value(r, ctx->conf->identity, &value)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_idempotency_digest_init(&d, ctx->conf->digest_key,
                                NGX_IDEMPOTENCY_FINGERPRINT_VERSION,
                                NGX_IDEMPOTENCY_DIGEST_IDENTITY);

    if (value.len) {
        ngx_idempotency_digest_bytes(&d, (u_char *) "V", 1);
        ngx_idempotency_digest_field(&d, &value);
        shown = shown_named;

    } else if (identity_default(r, ctx, &d, &shown) != NGX_OK) {
        return NGX_ERROR;
    }

    ctx->identified = (shown & ~shown_shared) ? 1 : 0;

    if (!shown) {
        ngx_memzero(ctx->claim.parts.identity, NGX_IDEMPOTENCY_IDENTITY_LEN);
        return NGX_OK;
    }

    ngx_idempotency_digest_final(&d, out);
    ngx_memcpy(ctx->claim.parts.identity, out, NGX_IDEMPOTENCY_IDENTITY_LEN);

    return NGX_OK;
}


/* it has shown nothing: all of it is zero */

ngx_uint_t
ngx_http_idempotency_anonymous(ngx_http_idempotency_ctx_t *ctx)
{
    static u_char  nobody[NGX_IDEMPOTENCY_IDENTITY_LEN];

    return ngx_memcmp(ctx->claim.parts.identity, nobody,
                      NGX_IDEMPOTENCY_IDENTITY_LEN)
           == 0;
}


/*
 * Who asks for what was bound without any identity could have left his out as
 * well, and is told of a success.  All else may be about the credentials that
 * were missing ("please log in"): it is for those who have none, or no others
 * than the cookies that came with it.  What can't be compared is no such one.
 * `lines` are those of the recorded response, if it is at hand.
 */

ngx_uint_t
ngx_http_idempotency_stranger(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *lines)
{
    ngx_str_t                        value;
    ngx_uint_t                       shown;
    ngx_idempotency_digest_t         d;
    ngx_idempotency_found_t         *found;
    ngx_http_idempotency_ignored_t  *ignored;

    found = &ctx->claim.found;

    /* what was released is bound to nobody: those who waited are told of it */

    if (!found->anonymous || ctx->claim.leftover
        || found->status < NGX_HTTP_SPECIAL_RESPONSE
        || ngx_http_idempotency_anonymous(ctx))
    {
        return 0;
    }

    if (lines == NULL) {
        return 1;
    }

    ignored = ctx->conf->ignore_cookies;

    if (ctx->conf->identity) {

        if (ngx_http_idempotency_value(r, ctx->conf->identity, &value)
            != NGX_OK)
        {
            return 1;
        }

        if (value.len) {

            if (!ctx->conf->identity->of_cookies) {
                return 1;
            }

            ignored = NULL;
        }
    }

    shown = 0;

    ngx_idempotency_digest_init(&d, ctx->conf->digest_key,
                                NGX_IDEMPOTENCY_FINGERPRINT_VERSION,
                                NGX_IDEMPOTENCY_DIGEST_IDENTITY);

    return identity_default(r, ctx, &d, &shown) != NGX_OK
           || (shown & ~shown_cookies)
           || !ngx_http_idempotency_cookies_set_by(r, ignored, lines);
}


/*
 * A bearer's token is one user's, whatever cookies tick beside it.  A password
 * or another header is often one for many, and tells them apart only together
 * with their cookies.
 */

static ngx_int_t
identity_default(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_idempotency_digest_t *d, ngx_uint_t *shown)
{
    identity_authorization(r, d, shown);
    identity_headers(r, ctx->conf, d, shown);

    if ((*shown & shown_bearer) == 0
        && ngx_http_idempotency_cookies(r, ctx->conf->ignore_cookies,
                                        d))
    {
        *shown |= shown_cookies;
    }

    return identity_certificate(r, d, shown);
}


/* the scheme's case doesn't count */

static void
identity_authorization(ngx_http_request_t *r, ngx_idempotency_digest_t *d,
    ngx_uint_t *shown)
{
    u_char                               lower[32], *p, *last;
    ngx_str_t                            scheme, secret;
    ngx_uint_t                           basic;
    ngx_table_elt_t                     *h;
    ngx_http_idempotency_header_iter_t   it;

    if (r->headers_in.authorization == NULL) {
        return;
    }

    ngx_http_idempotency_header_iter(&it, r);

    while ((h = ngx_http_idempotency_header_next(&it, &identity_name))
           != NULL)
    {
        if (h->value.len == 0) {
            continue;
        }

        p = h->value.data;
        last = p + h->value.len;

        while (p < last && *p != ' ' && *p != '\t') {
            p++;
        }

        scheme.len = p - h->value.data;
        scheme.data = h->value.data;

        secret = ngx_idempotency_trim(p, last);

        basic = (scheme.len == 5
                 && ngx_strncasecmp(scheme.data, (u_char *) "basic", 5) == 0);

        if (secret.len == 0
            && (basic || (scheme.len == 6
                          && ngx_strncasecmp(scheme.data, (u_char *) "bearer",
                                             6) == 0)))
        {
            continue;
        }

        *shown |= basic ? shown_shared : shown_bearer;

        /* without credentials behind it, it is no scheme but a secret */

        if (secret.len && scheme.len <= sizeof(lower)) {
            ngx_strlow(lower, scheme.data, scheme.len);
            scheme.data = lower;
        }

        ngx_idempotency_digest_bytes(d, (u_char *) "A", 1);
        ngx_idempotency_digest_field(d, &scheme);
        ngx_idempotency_digest_field(d, &secret);
    }
}


/* in any order, but for those of one name */

static void
identity_headers(ngx_http_request_t *r, ngx_http_idempotency_loc_conf_t *conf,
    ngx_idempotency_digest_t *d, ngx_uint_t *shown)
{
    ngx_uint_t        i, n;
    ngx_keyval_t      pair, pairs[NGX_HTTP_IDEMPOTENCY_CREDENTIALS_SORTED];
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    n = 0;

    for (part = &r->headers_in.headers.part; part; part = part->next) {

        h = part->elts;

        for (i = 0; i < part->nelts; i++) {

            if (!ngx_http_idempotency_credential(h[i].lowcase_key,
                                                 h[i].key.len, h[i].hash)
                || h[i].value.len == 0
                || ngx_http_idempotency_header_is(&h[i], &identity_name)
                || identity_of_key(conf->keys, &h[i]))
            {
                continue;
            }

            pair.key.len = h[i].key.len;
            pair.key.data = h[i].lowcase_key;
            pair.value = h[i].value;

            if (n < NGX_HTTP_IDEMPOTENCY_CREDENTIALS_SORTED) {
                ngx_http_idempotency_insert_pair(pairs, n, &pair);
                n++;

            } else {
                ngx_http_idempotency_digest_pair(d, "K", &pair);
            }

            *shown |= shown_shared;
        }
    }

    for (i = 0; i < n; i++) {
        ngx_http_idempotency_digest_pair(d, "K", &pairs[i]);
    }
}


/* that is the operation's name, and another one's with each operation */

static ngx_uint_t
identity_of_key(ngx_array_t *keys, ngx_table_elt_t *h)
{
    ngx_str_t                   *name;
    ngx_uint_t                   i, n;
    ngx_http_idempotency_key_t  *key;

    key = keys->elts;

    for (i = 0; i < keys->nelts; i++) {
        name = key[i].headers.elts;

        for (n = 0; n < key[i].headers.nelts; n++) {
            if (ngx_http_idempotency_header_is(h, &name[n])) {
                return 1;
            }
        }
    }

    return 0;
}


/* by its variable: nginx may be built without SSL */

static ngx_int_t
identity_certificate(ngx_http_request_t *r, ngx_idempotency_digest_t *d,
    ngx_uint_t *shown)
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
    *shown |= shown_certificate;

    return NGX_OK;
}
