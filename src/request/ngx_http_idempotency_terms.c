
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


/*
 * A window that a request tells is one of these, in seconds, rounded up: a zone
 * has a queue for each length, and a client is not to make them
 */

static ngx_uint_t  terms_steps[64] = {
    1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50,
    60, 90, 120, 180, 240, 300, 360, 480, 600, 720, 900, 1200, 1500, 1800,
    2400, 3000,
    3600, 5400, 7200, 10800, 14400, 18000, 21600, 28800, 36000, 43200, 57600,
    64800, 72000,
    1 * 86400, 2 * 86400, 3 * 86400, 4 * 86400, 5 * 86400, 6 * 86400,
    7 * 86400, 10 * 86400, 14 * 86400, 21 * 86400, 28 * 86400, 30 * 86400,
    45 * 86400, 60 * 86400, 90 * 86400, 120 * 86400, 180 * 86400, 270 * 86400,
    365 * 86400, 400 * 86400
};

/* so many values that are none are logged in a worker, each of them once */

#define NGX_HTTP_IDEMPOTENCY_TERMS_LOGGED  64


static ngx_int_t terms_time(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static void terms_log_window(ngx_http_request_t *r, ngx_str_t *text);
static ngx_int_t terms_quota(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t terms_value(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_http_idempotency_value_t *of);
static void terms_address(ngx_connection_t *c, ngx_str_t *value);


ngx_int_t
ngx_http_idempotency_terms(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    if (terms_time(r, ctx) != NGX_OK) {
        return NGX_ERROR;
    }

    return terms_quota(r, ctx);
}


/*
 * A key that tells when it was made is bound at least until it is too old: so
 * one that is not bound, and not too old, was never executed.
 */

static ngx_int_t
terms_time(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    uint64_t                  now, until;
    ngx_msec_t                age;
    ngx_idempotency_claim_t  *claim;

    claim = &ctx->claim;

    if (ngx_http_idempotency_by_content(ctx)) {
        claim->window = ctx->conf->content_window;
        return NGX_OK;
    }

    if (claim->window == 0
        && ngx_http_idempotency_window(r, ctx->conf, &claim->window) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (ctx->conf->key_format != NGX_HTTP_IDEMPOTENCY_KEY_FORMAT_UUID7) {
        return NGX_OK;
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

    return NGX_OK;
}


/* what is none is the default, as is an empty value */

ngx_int_t
ngx_http_idempotency_window(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf, ngx_msec_t *window)
{
    ngx_int_t   ms;
    ngx_str_t   text;
    ngx_uint_t  i;

    *window = conf->window;

    if (conf->window_value == NULL) {
        return NGX_OK;
    }

    if (ngx_http_idempotency_value(r, &conf->window_value->value, &text)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (text.len == 0) {
        return NGX_OK;
    }

    ms = ngx_parse_time(&text, 0);

    for (i = 0; ms > 0 && i < 64; i++) {

        if ((uint64_t) terms_steps[i] * 1000 >= (uint64_t) ms) {
            *window = (ngx_msec_t) terms_steps[i] * 1000;
            return NGX_OK;
        }
    }

    terms_log_window(r, &text);

    return NGX_OK;
}


static void
terms_log_window(ngx_http_request_t *r, ngx_str_t *text)
{
    uint32_t    hash;
    ngx_uint_t  i;

    static uint32_t    logged[NGX_HTTP_IDEMPOTENCY_TERMS_LOGGED];
    static ngx_uint_t  n;

    hash = ngx_crc32_long(text->data, text->len);

    for (i = 0; i < n; i++) {
        if (logged[i] == hash) {
            return;
        }
    }

    if (n == NGX_HTTP_IDEMPOTENCY_TERMS_LOGGED) {
        return;
    }

    logged[n++] = hash;

    ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                  "idempotency: invalid window \"%*s\", the default is used",
                  ngx_min(text->len, 64), text->data);
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
