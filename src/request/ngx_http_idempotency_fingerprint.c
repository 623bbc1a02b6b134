
/*
 * The three digests of a request: its token (which operation), its fingerprint
 * (what exactly) and its identity (asked by whom).
 *
 * The identity is the value of idempotency_identity, or else the request's own
 * credentials: cookies, and header lines whose names are those of credentials.
 * A stranger who has got another's key has another identity, and is refused.
 */


#include "ngx_http_idempotency_response.h"


/* the kinds of credentials in a request */

typedef enum {
    /* many clients may have the same one */
    shown_shared = 0x01,
    shown_bearer = 0x02,
    shown_cookies = 0x04,
    shown_certificate = 0x08,
    /* the value of idempotency_identity */
    shown_named = 0x10
} identity_shown_e;


/*
 * Names and values, sorted by name for the digest; the values of one name keep
 * their order.  There is room for more cookies than any browser keeps for a
 * site.  Pairs beyond that are digested unsorted, so the work grows with the
 * header's length only.
 */

#define NGX_HTTP_IDEMPOTENCY_PAIRS_SORTED  256

typedef struct {
    ngx_idempotency_digest_t            *digest;
    /* one byte, digested before each pair */
    char                                *kind;
    ngx_uint_t                           n;
    ngx_keyval_t                         sorted
                                            [NGX_HTTP_IDEMPOTENCY_PAIRS_SORTED];
} pairs_t;


/* of the cookies that a response sets, so many are compared */

#define NGX_HTTP_IDEMPOTENCY_COOKIES_SET     64

typedef struct {
    /* may contain one "*" */
    ngx_str_t                            name;
    /* bytes in front of the star, or of the whole name */
    size_t                               prefix;
} cookies_pattern_t;

struct ngx_http_idempotency_ignored_s {
    /* cookies_pattern_t */
    ngx_array_t                          patterns;
    /* a bit for each byte with which a matching name may begin */
    uint32_t                             first[256 / 32];
};

typedef struct {
    ngx_http_request_t                  *request;
    ngx_http_idempotency_ignored_t      *ignored;

    /* the current line, and the rest of it */
    ngx_table_elt_t                     *line;
    u_char                              *pos;
    u_char                              *last;
} cookies_iter_t;


/* what a word in a header's name says about the header */

typedef enum {
    credential_unknown = 0,
    /* the header is a credential */
    credential_counts,
    /* the header is a credential, wherever in a word this text stands */
    credential_stem,
    /* it is no credential: if this is its first word, or any of its words */
    credential_first,
    credential_never,
    /* these words count in pairs only: ssl-client and client-id are
       credentials, request-id is none */
    credential_ssl,
    credential_client,
    credential_request,
    credential_id,
    credential_kinds
} credential_kind_e;

typedef struct credential_word_s  credential_word_t;

struct credential_word_s {
    ngx_str_t                            name;
    credential_kind_e                    kind;
    credential_word_t                   *next;
};

#define NGX_HTTP_IDEMPOTENCY_CREDENTIAL_WORDS  128
#define NGX_HTTP_IDEMPOTENCY_CREDENTIAL_USUAL  256


static ngx_int_t scope_value(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf, ngx_str_t *scope);
static ngx_int_t digest_fingerprint(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static void digest_content(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *scope, u_char kind,
    u_char *token);
static void digest_lines(ngx_http_request_t *r, ngx_idempotency_digest_t *d,
    char *name);
static void digest_key_headers(ngx_array_t *keys, ngx_idempotency_digest_t *d);
static void digest_number(ngx_idempotency_digest_t *d, size_t n);
static ngx_int_t identity_default(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_idempotency_digest_t *d,
    ngx_uint_t *shown);
static void identity_headers(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf, ngx_idempotency_digest_t *d,
    ngx_uint_t *shown);
static ngx_uint_t identity_authorization(ngx_str_t *line,
    ngx_idempotency_digest_t *d);
static ngx_uint_t identity_of_key(ngx_array_t *keys, ngx_table_elt_t *h);
static ngx_int_t identity_certificate(ngx_http_request_t *r,
    ngx_idempotency_digest_t *d, ngx_uint_t *shown);
static void pairs_init(pairs_t *pairs, ngx_idempotency_digest_t *d,
    char *kind);
static void pairs_add(pairs_t *pairs, ngx_keyval_t *pair);
static void pairs_digest(pairs_t *pairs);
static void pair_digest(pairs_t *pairs, ngx_keyval_t *pair);
static ngx_int_t pair_compare(ngx_str_t *one, ngx_str_t *two);
static void cookies_iter(cookies_iter_t *it, ngx_http_request_t *r,
    ngx_http_idempotency_ignored_t *ignored);
static ngx_uint_t cookies_next(cookies_iter_t *it, ngx_keyval_t *cookie);
static void cookies_pair(ngx_keyval_t *cookie, u_char *p, u_char *last);
static ngx_uint_t cookies_set_by(ngx_http_request_t *r,
    ngx_http_idempotency_ignored_t *ignored, ngx_str_t *lines);
static ngx_uint_t cookies_ignored(ngx_http_idempotency_ignored_t *ignored,
    ngx_str_t *name);
static ngx_int_t cookies_ignore(ngx_http_idempotency_ignored_t *ignored,
    ngx_str_t *name);
static credential_kind_e credential_find(u_char *p, size_t len,
    ngx_uint_t stem);
static ngx_uint_t list_next(char **list, ngx_str_t *name);


/*
 * Cookies that change by themselves: analytics, load balancers, bot checks,
 * CSRF.  Stable ones, such as _ga, tell visitors apart, and are not in the
 * list.
 */

static char  cookies_builtin[] =
    "_ga_* _gat* _clsk _hjSession* _uetsid _uetvid _dd_s __hssc __hstc "
    "_pk_ses* sbjs_* mp_*_mixpanel AMP_* OptanonConsent "
    "AWSALB* __cf_bm bm_sz bm_sv ak_bmsc _abck datadome incap_ses_* "
    "XSRF-TOKEN";


/* most headers that are no credentials have one of these names */

static char  credential_usual_names[] =
    "accept accept-encoding accept-language cache-control connection "
    "content-length content-type cookie dnt host idempotency-key origin "
    "pragma priority referer sec-ch-ua sec-ch-ua-mobile sec-ch-ua-platform "
    "sec-fetch-dest sec-fetch-mode sec-fetch-site sec-fetch-user te "
    "traceparent tracestate transfer-encoding upgrade-insecure-requests "
    "user-agent via x-forwarded-for x-forwarded-host x-forwarded-port "
    "x-forwarded-proto x-real-ip x-request-id x-requested-with";

static char  *credential_names[credential_kinds] = {

    [credential_counts] =
        "auth authorization cert company context dn email identity key oidc "
        "org partner project shop store sub subject sudo team uid user "
        "workspace",

    [credential_stem] =
        "account apikey appkey assertion behalf clientcert consumer "
        "credential customer impersonate jwt merchant organization orgid "
        "passw principal secret session tenant token userid userinfo "
        "username",

    [credential_first] = "accept content if proxy sec",

    [credential_never] =
        "activity agent ajax attempt captcha csrf csrftoken datadog date "
        "digest expires forgery form hash hmac idempotency ip language "
        "locale location nonce otp push 2fa recaptcha "
        "requestverificationtoken retry sentry sign signature span start "
        "time timestamp timezone trace ts turnstile xsrf xsrftoken",

    [credential_ssl] = "ssl",
    [credential_client] = "client",
    [credential_request] = "request",
    [credential_id] = "id"
};

/* The words, by the low five bits of their first character.  For stems, by the
   same bits, a bit for each second character. */

static credential_word_t
    credential_words[NGX_HTTP_IDEMPOTENCY_CREDENTIAL_WORDS];
static credential_word_t  *credential_by_first[32];
static uint32_t            credential_seconds[32];

/* The usual names, by their hash.  Of two names with one place the second has
   no place: it is compared word by word. */

static ngx_str_t  credential_usual[NGX_HTTP_IDEMPOTENCY_CREDENTIAL_USUAL];


ngx_int_t
ngx_http_idempotency_digest_request(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_str_t  scope;

    ctx->similar = NULL;

    if (ngx_http_idempotency_identity(r, ctx) == NGX_ERROR
        || digest_fingerprint(r, ctx) != NGX_OK
        || scope_value(r, ctx->conf, &scope) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (ngx_http_idempotency_by_content(ctx)) {
        digest_content(r, ctx, &scope, NGX_IDEMPOTENCY_DIGEST_CONTENT,
                       ctx->claim.op.token);
        return NGX_OK;
    }

    if (ngx_http_idempotency_token(r, ctx->conf, &scope, &ctx->key,
                                   ctx->claim.op.token)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (ctx->conf->similar == NGX_HTTP_IDEMPOTENCY_SIMILAR_OFF) {
        return NGX_OK;
    }

    ctx->similar = ngx_pcalloc(r->pool,
                               sizeof(ngx_http_idempotency_similar_t));
    if (ctx->similar == NULL) {
        return NGX_ERROR;
    }

    digest_content(r, ctx, &scope, NGX_IDEMPOTENCY_DIGEST_SIMILAR,
                   ctx->similar->claim.op.token);

    return NGX_OK;
}


ngx_int_t
ngx_http_idempotency_token(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf, ngx_str_t *scope, ngx_str_t *key,
    u_char *token)
{
    ngx_str_t                 own;
    ngx_idempotency_digest_t  d;

    if (scope == NULL) {

        if (scope_value(r, conf, &own) != NGX_OK) {
            return NGX_ERROR;
        }

        scope = &own;
    }

    ngx_idempotency_digest_init(&d, conf->digest_key,
                                NGX_IDEMPOTENCY_DIGEST_TOKEN_VERSION,
                                NGX_IDEMPOTENCY_DIGEST_TOKEN);
    ngx_idempotency_digest_field(&d, scope);
    ngx_idempotency_digest_field(&d, key);
    ngx_idempotency_digest_final(&d, token);

    return NGX_OK;
}


/*
 * The fingerprint covers the action and the body.  The action is what the
 * client sent: rewrites don't change it.  The action's own short digest only
 * explains conflicts.
 */

static ngx_int_t
digest_fingerprint(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    u_char                     action[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_str_t                  value;
    ngx_uint_t                 i, n;
    ngx_idempotency_parts_t   *parts;
    ngx_http_complex_value_t  *cv;
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

    n = ctx->conf->bind ? ctx->conf->bind->nelts : 0;
    cv = n ? ctx->conf->bind->elts : NULL;

    for (i = 0; i < n; i++) {

        if (ngx_http_idempotency_string(r, &cv[i], &value) != NGX_OK) {
            return NGX_ERROR;
        }

        ngx_idempotency_digest_field(&d, &value);
    }

    head = d;
    ngx_idempotency_digest_final(&head, action);

    value.len = NGX_IDEMPOTENCY_DIGEST_LEN;
    value.data = ctx->body.digest;

    ngx_idempotency_digest_field(&d, &value);
    ngx_idempotency_digest_final(&d, ctx->claim.fingerprint);

    parts = &ctx->claim.parts;

    ngx_memcpy(parts->action, action, NGX_IDEMPOTENCY_HINT_LEN);
    ngx_memcpy(parts->body, ctx->body.digest, NGX_IDEMPOTENCY_HINT_LEN);
    ngx_memcpy(parts->settings, ctx->conf->settings,
               NGX_IDEMPOTENCY_SETTINGS_LEN);

    return NGX_OK;
}


/*
 * A token made of the content must tell clients apart, which no key does.  So
 * the identity is a part of it.  A client with an identity may change its
 * network.  Clients without one may share an address or a credential:
 * User-Agent and Accept-Language tell them apart.
 */

static void
digest_content(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_str_t *scope, u_char kind, u_char *token)
{
    ngx_str_t                 value;
    ngx_idempotency_digest_t  d;

    ngx_idempotency_digest_init(&d, ctx->conf->digest_key,
                                NGX_IDEMPOTENCY_FINGERPRINT_VERSION, kind);
    ngx_idempotency_digest_field(&d, scope);

    value.len = NGX_IDEMPOTENCY_DIGEST_LEN;
    value.data = ctx->claim.fingerprint;

    ngx_idempotency_digest_field(&d, &value);

    value.len = NGX_IDEMPOTENCY_IDENTITY_LEN;
    value.data = ctx->claim.parts.identity;

    ngx_idempotency_digest_field(&d, &value);

    if (!ctx->identified) {
        ngx_idempotency_digest_field(&d, &r->connection->addr_text);
        digest_lines(r, &d, "user_agent");
        digest_lines(r, &d, "accept_language");
    }

    ngx_idempotency_digest_final(&d, token);
}


static void
digest_lines(ngx_http_request_t *r, ngx_idempotency_digest_t *d, char *name)
{
    ngx_table_elt_t  *h;

    h = NULL;

    while ((h = ngx_http_idempotency_header_next(r, name, h)) != NULL) {
        ngx_idempotency_digest_bytes(d, (u_char *) "H", 1);
        ngx_idempotency_digest_field(d, &h->value);
    }

    ngx_idempotency_digest_bytes(d, (u_char *) ".", 1);
}


/* by default $server_name, which needs no evaluation */

static ngx_int_t
scope_value(ngx_http_request_t *r, ngx_http_idempotency_loc_conf_t *conf,
    ngx_str_t *scope)
{
    ngx_http_core_srv_conf_t  *cscf;

    if (conf->scope) {
        return ngx_http_idempotency_string(r, conf->scope, scope);
    }

    cscf = ngx_http_get_module_srv_conf(r, ngx_http_core_module);
    *scope = cscf->server_name;

    return NGX_OK;
}


/* A digest of the settings that fingerprints and identities depend on.  It is
   equal on all machines with the same settings. */

void
ngx_http_idempotency_digest_settings(ngx_http_idempotency_loc_conf_t *conf)
{
    u_char                     out[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_str_t                 *name;
    ngx_uint_t                 i, n;
    cookies_pattern_t         *pattern;
    ngx_http_complex_value_t  *cv;
    ngx_idempotency_digest_t   d;

    ngx_idempotency_digest_init(&d, NULL, NGX_IDEMPOTENCY_DIGEST_OTHER_VERSION,
                                NGX_IDEMPOTENCY_DIGEST_SETTINGS);

    digest_number(&d, conf->canon.flags & NGX_IDEMPOTENCY_CANON_ALL);
    digest_number(&d, conf->normalize_buffer);

    n = conf->ignore_fields ? conf->ignore_fields->nelts : 0;
    name = n ? conf->ignore_fields->elts : NULL;

    digest_number(&d, n);

    for (i = 0; i < n; i++) {
        ngx_idempotency_digest_field(&d, &name[i]);
    }

    n = conf->bind ? conf->bind->nelts : 0;
    cv = n ? conf->bind->elts : NULL;

    digest_number(&d, n);

    for (i = 0; i < n; i++) {
        ngx_idempotency_digest_field(&d, &cv[i].value);
    }

    /* where idempotency_identity is empty, the default follows, and cookies
       count */

    digest_number(&d, conf->identity ? 1 : 0);

    if (conf->identity) {
        ngx_idempotency_digest_field(&d, &conf->identity->script.value);
    }

    if (conf->ignore_cookies) {
        pattern = conf->ignore_cookies->patterns.elts;

        for (i = 0; i < conf->ignore_cookies->patterns.nelts; i++) {
            ngx_idempotency_digest_field(&d, &pattern[i].name);
        }
    }

    digest_key_headers(conf->keys, &d);

    ngx_idempotency_digest_final(&d, out);

    ngx_memcpy(conf->settings, out, NGX_IDEMPOTENCY_SETTINGS_LEN);
}


/* those that would be credentials if they were no part of a key */

static void
digest_key_headers(ngx_array_t *keys, ngx_idempotency_digest_t *d)
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
digest_number(ngx_idempotency_digest_t *d, size_t n)
{
    u_char     text[NGX_SIZE_T_LEN];
    ngx_str_t  value;

    value.data = text;
    value.len = ngx_sprintf(text, "%uz", n) - text;

    ngx_idempotency_digest_field(d, &value);
}


/* The kind precedes each value, so values of two kinds never give one
   identity. */

ngx_int_t
ngx_http_idempotency_identity(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    u_char                    out[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_str_t                 value;
    ngx_uint_t                shown;
    ngx_idempotency_digest_t  d;

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

        /* a constant is the same for all */

        shown = ctx->conf->identity->script.lengths ? shown_named : 0;

    } else if (identity_default(r, ctx, &d, &shown) != NGX_OK) {
        return NGX_ERROR;
    }

    ctx->identified = shown & ~shown_shared;

    if (!shown && !value.len) {
        ngx_memzero(ctx->claim.parts.identity, NGX_IDEMPOTENCY_IDENTITY_LEN);
        return NGX_DECLINED;
    }

    ngx_idempotency_digest_final(&d, out);
    ngx_memcpy(ctx->claim.parts.identity, out, NGX_IDEMPOTENCY_IDENTITY_LEN);

    return shown ? NGX_OK : NGX_DECLINED;
}


/*
 * Whether the response belongs to another client: the token was bound without
 * an identity, and this request has one.  A success is replayed: the client
 * could have left its credentials out.  Any other response may be about missing
 * credentials ("please log in").  It is replayed only if the credentials are
 * cookies that this very response has set.  Cookies that can't be compared
 * count as others.  `lines` are those of the recorded response, or NULL.
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

    static u_char  nobody[NGX_IDEMPOTENCY_IDENTITY_LEN];

    found = &ctx->claim.found;

    /* a released token has no identity; its response is for requests that
       waited */

    if (!found->anonymous || ctx->claim.leftover
        || found->status < NGX_HTTP_SPECIAL_RESPONSE
        || ngx_memcmp(ctx->claim.parts.identity, nobody,
                      NGX_IDEMPOTENCY_IDENTITY_LEN)
           == 0)
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
           || !cookies_set_by(r, ignored, lines);
}


/*
 * A bearer token is one user's, and cookies beside it don't count.  Many users
 * may share a password or another header: only together with cookies these
 * tell users apart.
 */

static ngx_int_t
identity_default(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_idempotency_digest_t *d, ngx_uint_t *shown)
{
    pairs_t         pairs;
    ngx_keyval_t    cookie;
    cookies_iter_t  it;

    identity_headers(r, ctx->conf, d, shown);

    pairs_init(&pairs, d, "C");

    if ((*shown & shown_cookies) && !(*shown & shown_bearer)) {
        cookies_iter(&it, r, ctx->conf->ignore_cookies);

        while (cookies_next(&it, &cookie)) {
            pairs_add(&pairs, &cookie);
        }

        pairs_digest(&pairs);
    }

    if (pairs.n == 0) {
        *shown &= ~shown_cookies;
    }

    return identity_certificate(r, d, shown);
}


/* the order of the lines doesn't count, but for Authorization */

static void
identity_headers(ngx_http_request_t *r, ngx_http_idempotency_loc_conf_t *conf,
    ngx_idempotency_digest_t *d, ngx_uint_t *shown)
{
    pairs_t           pairs;
    ngx_uint_t        i;
    ngx_keyval_t      pair;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    pairs_init(&pairs, d, "K");

    for (part = &r->headers_in.headers.part; part; part = part->next) {

        h = part->elts;

        for (i = 0; i < part->nelts; i++) {

            if (ngx_idempotency_equal(&h[i].key, "cookie")) {
                *shown |= shown_cookies;
                continue;
            }

            if (!ngx_http_idempotency_credential(h[i].lowcase_key,
                                                 h[i].key.len, h[i].hash)
                || h[i].value.len == 0)
            {
                continue;
            }

            if (ngx_idempotency_equal(&h[i].key, "authorization")) {
                *shown |= identity_authorization(&h[i].value, d);
                continue;
            }

            if (identity_of_key(conf->keys, &h[i])) {
                continue;
            }

            pair.key.len = h[i].key.len;
            pair.key.data = h[i].lowcase_key;
            pair.value = h[i].value;

            pairs_add(&pairs, &pair);

            *shown |= shown_shared;
        }
    }

    pairs_digest(&pairs);
}


/* the letter case of the scheme doesn't count; 0: there are no credentials */

static ngx_uint_t
identity_authorization(ngx_str_t *line, ngx_idempotency_digest_t *d)
{
    u_char      lower[32], *p, *last;
    ngx_str_t   scheme, secret;
    ngx_uint_t  basic;

    p = line->data;
    last = p + line->len;

    while (p < last && *p != ' ' && *p != '\t') {
        p++;
    }

    scheme.len = p - line->data;
    scheme.data = line->data;

    secret = ngx_idempotency_trim(p, last);

    basic = ngx_idempotency_equal(&scheme, "basic");

    if (secret.len == 0
        && (basic || ngx_idempotency_equal(&scheme, "bearer")))
    {
        return 0;
    }

    /* a single word is no scheme but a secret, whose letter case counts */

    if (secret.len && scheme.len <= sizeof(lower)) {
        ngx_strlow(lower, scheme.data, scheme.len);
        scheme.data = lower;
    }

    ngx_idempotency_digest_bytes(d, (u_char *) "A", 1);
    ngx_idempotency_digest_field(d, &scheme);
    ngx_idempotency_digest_field(d, &secret);

    return basic ? shown_shared : shown_bearer;
}


/* a header in the key is no credential, as each operation has another one */

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
            if (ngx_http_idempotency_header_is(h, (char *) name[n].data,
                                               name[n].len))
            {
                return 1;
            }
        }
    }

    return 0;
}


/* by nginx's variable, as nginx may be built without SSL */

static ngx_int_t
identity_certificate(ngx_http_request_t *r, ngx_idempotency_digest_t *d,
    ngx_uint_t *shown)
{
    ngx_str_t                   value;
    ngx_http_variable_value_t  *vv;

    static ngx_str_t  name = ngx_string("ssl_client_fingerprint");

    if (!r->main->http_connection->ssl) {
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


static void
pairs_init(pairs_t *pairs, ngx_idempotency_digest_t *d, char *kind)
{
    pairs->digest = d;
    pairs->kind = kind;
    pairs->n = 0;
}


static void
pairs_add(pairs_t *pairs, ngx_keyval_t *pair)
{
    ngx_uint_t  low, high, i;

    if (pairs->n == NGX_HTTP_IDEMPOTENCY_PAIRS_SORTED) {
        pair_digest(pairs, pair);
        return;
    }

    low = 0;
    high = pairs->n++;

    while (low < high) {
        i = (low + high) / 2;

        if (pair_compare(&pair->key, &pairs->sorted[i].key) < 0) {
            high = i;

        } else {
            low = i + 1;
        }
    }

    ngx_memmove(&pairs->sorted[low + 1], &pairs->sorted[low],
                (pairs->n - 1 - low) * sizeof(ngx_keyval_t));

    pairs->sorted[low] = *pair;
}


static void
pairs_digest(pairs_t *pairs)
{
    ngx_uint_t  i;

    for (i = 0; i < pairs->n; i++) {
        pair_digest(pairs, &pairs->sorted[i]);
    }
}


static void
pair_digest(pairs_t *pairs, ngx_keyval_t *pair)
{
    ngx_idempotency_digest_bytes(pairs->digest, (u_char *) pairs->kind, 1);
    ngx_idempotency_digest_field(pairs->digest, &pair->key);
    ngx_idempotency_digest_field(pairs->digest, &pair->value);
}


static ngx_int_t
pair_compare(ngx_str_t *one, ngx_str_t *two)
{
    ngx_int_t  rc;

    rc = ngx_memcmp(one->data, two->data, ngx_min(one->len, two->len));

    if (rc == 0) {
        rc = (one->len > two->len) - (one->len < two->len);
    }

    return rc;
}


static void
cookies_iter(cookies_iter_t *it, ngx_http_request_t *r,
    ngx_http_idempotency_ignored_t *ignored)
{
    it->request = r;
    it->ignored = ignored;
    it->line = NULL;
    it->pos = NULL;
    it->last = NULL;
}


/* the next cookie; white space around names and values, and empty pairs, are
   skipped */

static ngx_uint_t
cookies_next(cookies_iter_t *it, ngx_keyval_t *cookie)
{
    u_char  *p, *end;

    for ( ;; ) {

        if (it->pos == it->last) {
            it->line = ngx_http_idempotency_header_next(it->request, "cookie",
                                                        it->line);
            if (it->line == NULL) {
                return 0;
            }

            it->pos = it->line->value.data;
            it->last = it->pos + it->line->value.len;
            continue;
        }

        p = it->pos;

        /* memchr() is faster than ngx_strlchr(), and values may be long */

        end = memchr(p, ';', it->last - p);

        if (end) {
            it->pos = end + 1;

        } else {
            end = it->last;
            it->pos = end;
        }

        cookies_pair(cookie, p, end);

        if (cookie->value.data == NULL && cookie->key.len == 0) {
            continue;
        }

        if (it->ignored == NULL
            || !cookies_ignored(it->ignored, &cookie->key))
        {
            return 1;
        }
    }
}


/* without "=" there is no value, which differs from an empty one */

static void
cookies_pair(ngx_keyval_t *cookie, u_char *p, u_char *last)
{
    u_char  *equals;

    equals = memchr(p, '=', last - p);

    cookie->key = ngx_idempotency_trim(p, equals ? equals : last);

    if (equals) {
        cookie->value = ngx_idempotency_trim(equals + 1, last);

    } else {
        ngx_str_null(&cookie->value);
    }
}


/* whether the response has set all cookies of the request, name and value */

static ngx_uint_t
cookies_set_by(ngx_http_request_t *r, ngx_http_idempotency_ignored_t *ignored,
    ngx_str_t *lines)
{
    u_char          *end;
    ngx_str_t        rest, name, value;
    ngx_uint_t       place, i, n;
    ngx_keyval_t     cookie, set[NGX_HTTP_IDEMPOTENCY_COOKIES_SET];
    cookies_iter_t   it;

    n = 0;
    rest = *lines;

    while (n < NGX_HTTP_IDEMPOTENCY_COOKIES_SET
           && ngx_http_idempotency_response_line(&rest, &place, &name, &value)
              == NGX_OK)
    {
        if (ngx_idempotency_equal(&name, "set-cookie")) {
            end = ngx_strlchr(value.data, value.data + value.len, ';');

            cookies_pair(&set[n++], value.data,
                         end ? end : value.data + value.len);
        }
    }

    cookies_iter(&it, r, ignored);

    while (cookies_next(&it, &cookie)) {

        for (i = 0; i < n; i++) {
            if (pair_compare(&cookie.key, &set[i].key) == 0
                && pair_compare(&cookie.value, &set[i].value) == 0)
            {
                break;
            }
        }

        if (i == n) {
            return 0;
        }
    }

    return 1;
}


static ngx_uint_t
cookies_ignored(ngx_http_idempotency_ignored_t *ignored, ngx_str_t *name)
{
    size_t              prefix, suffix;
    u_char              c;
    ngx_str_t          *like;
    ngx_uint_t          i;
    cookies_pattern_t  *pattern;

    c = name->len ? name->data[0] : '\0';

    if ((ignored->first[c / 32] & ((uint32_t) 1 << (c % 32))) == 0) {
        return 0;
    }

    pattern = ignored->patterns.elts;

    for (i = 0; i < ignored->patterns.nelts; i++) {

        like = &pattern[i].name;
        prefix = pattern[i].prefix;
        suffix = (prefix < like->len) ? like->len - prefix - 1 : 0;

        if ((prefix < like->len ? name->len >= prefix + suffix
                                : name->len == prefix)
            && ngx_memcmp(name->data, like->data, prefix) == 0
            && ngx_memcmp(name->data + name->len - suffix,
                          like->data + like->len - suffix, suffix)
               == 0)
        {
            return 1;
        }
    }

    return 0;
}


ngx_int_t
ngx_http_idempotency_ignore_cookie(ngx_conf_t *cf,
    ngx_http_idempotency_ignored_t **ignored, ngx_str_t *name)
{
    char       *list;
    ngx_str_t   builtin;

    if (*ignored == NGX_CONF_UNSET_PTR) {

        *ignored = ngx_pcalloc(cf->pool,
                               sizeof(ngx_http_idempotency_ignored_t));

        if (*ignored == NULL
            || ngx_array_init(&(*ignored)->patterns, cf->pool, 32,
                              sizeof(cookies_pattern_t))
               != NGX_OK)
        {
            return NGX_ERROR;
        }

        list = cookies_builtin;

        while (list_next(&list, &builtin)) {
            if (cookies_ignore(*ignored, &builtin) != NGX_OK) {
                return NGX_ERROR;
            }
        }
    }

    return name ? cookies_ignore(*ignored, name) : NGX_OK;
}


static ngx_int_t
cookies_ignore(ngx_http_idempotency_ignored_t *ignored, ngx_str_t *name)
{
    u_char             *p, *star;
    size_t              i;
    cookies_pattern_t  *pattern;

    if (name->len == 0) {
        return NGX_DECLINED;
    }

    star = NULL;

    for (p = name->data; p < name->data + name->len; p++) {

        if (*p <= ' ' || *p == 0x7f || *p == '=' || *p == ';'
            || (*p == '*' && star))
        {
            return NGX_DECLINED;
        }

        if (*p == '*') {
            star = p;
        }
    }

    pattern = ngx_array_push(&ignored->patterns);
    if (pattern == NULL) {
        return NGX_ERROR;
    }

    pattern->name = *name;
    pattern->prefix = star ? (size_t) (star - name->data) : name->len;

    if (pattern->prefix) {
        ignored->first[name->data[0] / 32] |= (uint32_t) 1
                                              << (name->data[0] % 32);
        return NGX_OK;
    }

    for (i = 0; i < 256 / 32; i++) {
        ignored->first[i] = 0xffffffff;
    }

    return NGX_OK;
}


void
ngx_http_idempotency_credentials_init(void)
{
    char               *list;
    ngx_str_t           name;
    ngx_uint_t          kind, n, c;
    credential_word_t  *word;

    list = credential_usual_names;

    while (list_next(&list, &name)) {
        n = ngx_hash_key(name.data, name.len)
            % NGX_HTTP_IDEMPOTENCY_CREDENTIAL_USUAL;

        if (credential_usual[n].len == 0) {
            credential_usual[n] = name;
        }
    }

    ngx_memzero(credential_by_first, sizeof(credential_by_first));
    word = credential_words;

    for (kind = 0; kind < credential_kinds; kind++) {

        list = credential_names[kind];

        while (list && list_next(&list, &name)) {
            c = name.data[0] & 0x1f;

            if (kind == credential_stem) {
                credential_seconds[c] |= (uint32_t) 1 << (name.data[1] & 0x1f);
            }

            word->name = name;
            word->kind = kind;
            word->next = credential_by_first[c];
            credential_by_first[c] = word++;
        }
    }
}


/* whether a header of this name, in lower case, is a credential */

ngx_uint_t
ngx_http_idempotency_credential(u_char *name, size_t len, ngx_uint_t hash)
{
    u_char             *p, *last, *word, c, before;
    ngx_str_t          *usual;
    ngx_uint_t          counts;
    credential_kind_e   kind, previous;

    usual = &credential_usual[hash % NGX_HTTP_IDEMPOTENCY_CREDENTIAL_USUAL];

    if (usual->len == len && ngx_memcmp(usual->data, name, len) == 0) {
        return 0;
    }

    last = name + len;
    word = name;

    counts = 0;
    previous = credential_unknown;
    before = 0;

    for (p = name; /* void */ ; p++) {

        if (p < last && *p != '-' && *p != '_') {
            c = *p & 0x1f;

            if ((credential_seconds[before] >> c) & 1) {
                counts |= (credential_find(p - 1, last - p + 1, 1)
                           == credential_stem);
            }

            before = c;
            continue;
        }

        kind = credential_find(word, p - word, 0);

        if (kind == credential_never
            || (kind == credential_first && word == name)
            || (kind == credential_id && previous == credential_request))
        {
            return 0;
        }

        counts |= (kind == credential_counts
                   || (kind == credential_id && previous == credential_client)
                   || (kind == credential_client
                       && previous == credential_ssl));

        if (p == last) {
            return counts;
        }

        word = p + 1;
        previous = kind;
        before = 0;
    }
}


/* the word; or the stem with which the rest of the name begins */

static credential_kind_e
credential_find(u_char *p, size_t len, ngx_uint_t stem)
{
    credential_word_t  *word;

    word = len ? credential_by_first[p[0] & 0x1f] : NULL;

    for ( /* void */ ; word; word = word->next) {

        if ((word->kind == credential_stem) == stem
            && (stem ? word->name.len <= len : word->name.len == len)
            && ngx_memcmp(word->name.data, p, word->name.len) == 0)
        {
            return word->kind;
        }
    }

    return credential_unknown;
}


/* the next name of a list that is separated by spaces */

static ngx_uint_t
list_next(char **list, ngx_str_t *name)
{
    char  *p;

    p = *list + strspn(*list, " ");

    name->data = (u_char *) p;
    name->len = strcspn(p, " ");

    *list = p + name->len;

    return name->len != 0;
}
