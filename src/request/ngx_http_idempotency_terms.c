
/*
 * The terms of a claim: for how long its token will be bound, whether its key
 * is too old to be fresh, and how many tokens there may be with it.
 */


#include "ngx_http_idempotency.h"


/*
 * A record ends by one clock, and a key is too old by another.  They are read
 * one behind the other, and the first is coarse: so a key is too old a moment
 * before its record can have ended.
 */

#define NGX_HTTP_IDEMPOTENCY_TERMS_CLOCKS  100


static void terms_time(ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t terms_quota(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t terms_value(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_http_idempotency_value_t *of);
static void terms_address(ngx_connection_t *c, ngx_str_t *value);


ngx_int_t
ngx_http_idempotency_terms(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    terms_time(ctx);

    return terms_quota(r, ctx);
}


/*
 * A key that tells when it was made is bound at least until it is too old: so
 * one that is not bound, and not too old, was never executed.
 */

static void
terms_time(ngx_http_idempotency_ctx_t *ctx)
{
    uint64_t                  now, until;
    ngx_msec_t                age;
    ngx_idempotency_claim_t  *claim;

    claim = &ctx->claim;

    if (ngx_http_idempotency_by_content(ctx)) {
        claim->window = ctx->conf->content_window;
        return;
    }

    claim->window = ctx->conf->window;

    if (ctx->conf->key_format != NGX_HTTP_IDEMPOTENCY_KEY_FORMAT_UUID7)
    {
        return;
    }

    age = ctx->conf->key_max_age;

    if (age == NGX_CONF_UNSET_MSEC) {
        age = ctx->conf->window;
    }

    now = ngx_http_idempotency_wall_clock();
    until = ctx->made + age;

    claim->old = (until <= now + NGX_HTTP_IDEMPOTENCY_TERMS_CLOCKS);
    claim->least = (until <= now) ? 0 : (ngx_msec_t) (until - now);
    claim->span = age + NGX_HTTP_IDEMPOTENCY_KEY_AHEAD;
}


/* when the owner's token ends, if its outcome is known now */

ngx_msec_t
ngx_http_idempotency_ends(ngx_http_idempotency_ctx_t *ctx)
{
    ngx_msec_t  ends, least;

    ends = ngx_current_msec + ctx->claim.window;
    least = ctx->claim.op.now + ctx->claim.least;

    return ((ngx_msec_int_t) (least - ends) > 0) ? least : ends;
}


/* in milliseconds since 1970; all else goes by a clock that nobody sets */

uint64_t
ngx_http_idempotency_wall_clock(void)
{
    ngx_time_t  *tp;

    tp = ngx_timeofday();

    return (uint64_t) tp->sec * 1000 + tp->msec;
}


static ngx_int_t
terms_quota(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_int_t  rc;

    if (ctx->conf->quota == 0 || ctx->claim.quota) {
        return NGX_OK;
    }

    rc = terms_value(r, ctx, ctx->conf->quota_value);

    if (rc == NGX_OK) {
        ctx->claim.quota = ctx->conf->quota;
    }

    return (rc == NGX_ERROR) ? NGX_ERROR : NGX_OK;
}


/* the same value where there is no quota, or none for this one: the address */

void
ngx_http_idempotency_terms_whose(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    if (ctx->claim.quota == 0) {
        (void) terms_value(r, ctx, NULL);
    }
}


/* NGX_DECLINED: it is empty, and so nothing is counted for it */

static ngx_int_t
terms_value(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_value_t *of)
{
    u_char                     address[NGX_SOCKADDR_STRLEN];
    ngx_str_t                  value;
    ngx_idempotency_digest_t   d;

    if (of) {

        if (ngx_http_idempotency_value(r, of, &value) != NGX_OK) {
            return NGX_ERROR;
        }

        if (value.len == 0) {
            return NGX_DECLINED;
        }

    } else {
        value.data = address;
        terms_address(r->connection, &value);
    }

    ngx_idempotency_digest_init(&d, ctx->conf->digest_key,
                                NGX_IDEMPOTENCY_DIGEST_OTHER_VERSION,
                                NGX_IDEMPOTENCY_DIGEST_QUOTA);
    ngx_idempotency_digest_field(&d, &value);
    ngx_idempotency_digest_final(&d, ctx->claim.value);

    return NGX_OK;
}


/* whoever has one IPv6 address has all of its network */

static void
terms_address(ngx_connection_t *c, ngx_str_t *value)
{
#if (NGX_HAVE_INET6)
    u_char               *p;
    struct sockaddr_in6  *sin6;

    if (c->sockaddr->sa_family == AF_INET6) {

        sin6 = (struct sockaddr_in6 *) c->sockaddr;
        p = sin6->sin6_addr.s6_addr;

        if (IN6_IS_ADDR_V4MAPPED(&sin6->sin6_addr)) {
            value->len = ngx_sprintf(value->data, "%ud.%ud.%ud.%ud", p[12],
                                     p[13], p[14], p[15])
                         - value->data;

        } else {
            value->len = 8;
            ngx_memcpy(value->data, p, value->len);
        }

        return;
    }
#endif

    *value = c->addr_text;
}
