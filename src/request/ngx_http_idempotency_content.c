
/*
 * The content: what stands for the key where there is none and
 * idempotency_missing_key says so, and what idempotency_similar knows again.
 */


#include "ngx_http_idempotency_headers.h"


static void content_lines(ngx_http_request_t *r, ngx_idempotency_digest_t *d,
    ngx_str_t *name);


/* NEW: the content stands for it */

ngx_http_idempotency_status_e
ngx_http_idempotency_no_key(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf)
{
    switch (conf->missing_key) {

    case NGX_HTTP_IDEMPOTENCY_MISSING_KEY_PASS:
        return NGX_HTTP_IDEMPOTENCY_STATUS_NONE;

    case NGX_HTTP_IDEMPOTENCY_MISSING_KEY_CONTENT:
        return NGX_HTTP_IDEMPOTENCY_STATUS_NEW;

    case NGX_HTTP_IDEMPOTENCY_MISSING_KEY_FORM:
        return ngx_http_idempotency_is_form(r)
               ? NGX_HTTP_IDEMPOTENCY_STATUS_NEW
               : NGX_HTTP_IDEMPOTENCY_STATUS_NONE;

    default: /* NGX_HTTP_IDEMPOTENCY_MISSING_KEY_REJECT */
        return NGX_HTTP_IDEMPOTENCY_STATUS_MISSING;
    }
}


/*
 * There is no key that only one of them knows, so who asks belongs to the
 * token.  One who is known may change his network; those who are not may share
 * an address, or a credential, and are told apart by what else they show of
 * themselves.
 */

void
ngx_http_idempotency_content(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *scope, u_char kind,
    u_char *token)
{
    ngx_str_t                  value;
    ngx_idempotency_digest_t   d;

    static ngx_str_t  user_agent = ngx_string("user_agent");
    static ngx_str_t  accept_language = ngx_string("accept_language");

    ngx_idempotency_digest_init(&d, ctx->conf->digest_key,
                                ctx->claim.parts.version, kind);
    ngx_idempotency_digest_field(&d, scope);

    value.len = NGX_IDEMPOTENCY_DIGEST_LEN;
    value.data = ctx->claim.fingerprint;

    ngx_idempotency_digest_field(&d, &value);

    value.len = NGX_IDEMPOTENCY_IDENTITY_LEN;
    value.data = ctx->claim.parts.identity;

    ngx_idempotency_digest_field(&d, &value);

    if (!ctx->identified) {
        ngx_idempotency_digest_field(&d, &r->connection->addr_text);
        content_lines(r, &d, &user_agent);
        content_lines(r, &d, &accept_language);
    }

    ngx_idempotency_digest_final(&d, token);
}


static void
content_lines(ngx_http_request_t *r, ngx_idempotency_digest_t *d,
    ngx_str_t *name)
{
    ngx_table_elt_t                     *h;
    ngx_http_idempotency_header_iter_t   it;

    ngx_http_idempotency_header_iter(&it, r);

    while ((h = ngx_http_idempotency_header_next(&it, name)) != NULL) {
        ngx_idempotency_digest_bytes(d, (u_char *) "H", 1);
        ngx_idempotency_digest_field(d, &h->value);
    }

    ngx_idempotency_digest_bytes(d, (u_char *) ".", 1);
}
