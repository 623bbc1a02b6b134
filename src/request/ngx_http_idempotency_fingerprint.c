
/*
 * What a request is bound to: its token (which operation), its fingerprint
 * (what exactly) and the identity (asked by whom).
 *
 * The identity is what idempotency_identity says, or else the request's own
 * credentials: header lines whose names say so, and cookies.  A stranger who
 * comes with another's key is refused by it.
 */


#include "ngx_http_idempotency_response.h"


/* more are taken in the order in which they come */

#define NGX_HTTP_IDEMPOTENCY_CREDENTIALS_SORTED  32

/* by what a request shows its client */

typedef enum {
    /* of these many may have the same one */
    shown_shared = 0x01,
    shown_bearer = 0x02,
    shown_cookies = 0x04,
    shown_certificate = 0x08,
    /* by idempotency_identity */
    shown_named = 0x10
} identity_shown_e;


/*
 * More pairs than any browser keeps for a site: beyond, they are taken in the
 * order in which they come, so that the work grows with the header's length
 */

#define NGX_HTTP_IDEMPOTENCY_COOKIES_SORTED  256

/* of more that a response sets none is known */

#define NGX_HTTP_IDEMPOTENCY_COOKIES_SET     64

typedef struct {
    /* with a "*" in it, or without */
    ngx_str_t                            name;
    /* bytes in front of the star; all of them if there is none */
    size_t                               prefix;
} cookies_pattern_t;

struct ngx_http_idempotency_ignored_s {
    /* of cookies_pattern_t */
    ngx_array_t                          patterns;
    /* a bit for each byte that a pattern's match may begin with */
    uint32_t                             first[256 / 32];
};

typedef struct {
    ngx_http_idempotency_header_iter_t   lines;
    ngx_http_idempotency_ignored_t      *ignored;

    /* what is left of the line */
    u_char                              *pos;
    u_char                              *last;
} cookies_iter_t;


#define NGX_HTTP_IDEMPOTENCY_CREDENTIAL_WORD   31
#define NGX_HTTP_IDEMPOTENCY_CREDENTIAL_SLOTS  256

typedef enum {
    credential_counts = 1,
    /* no name with this word is a credential */
    credential_never,
    /* these count in pairs only: ssl-client and client-id, but not
       request-id */
    credential_ssl,
    credential_client,
    credential_request,
    credential_id
} credential_kind_e;

typedef struct {
    ngx_str_t                            name;
    ngx_uint_t                           kind;
} credential_word_t;


static ngx_int_t bind_fingerprint(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t bind_values(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_idempotency_digest_t *d);
static void bind_key_headers(ngx_array_t *keys, ngx_idempotency_digest_t *d);
static ngx_int_t bind_similar(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *scope);
static void bind_number(ngx_idempotency_digest_t *d, size_t n);
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
static void cookies_iter(cookies_iter_t *it, ngx_http_request_t *r,
    ngx_http_idempotency_ignored_t *ignored);
static ngx_uint_t cookies_next(cookies_iter_t *it, ngx_keyval_t *cookie);
static void cookies_pair(ngx_keyval_t *cookie, u_char *p, u_char *last);
static ngx_int_t cookies_compare(ngx_str_t *one, ngx_str_t *two);
static ngx_uint_t cookies_ignored(ngx_http_idempotency_ignored_t *ignored,
    ngx_str_t *name);
static ngx_uint_t credential_name(u_char *name, size_t len);
static ngx_uint_t credential_prefix(u_char *name, size_t len);
static ngx_uint_t credential_stem(u_char *p, u_char *last);
static ngx_uint_t credential_word(u_char *word, size_t len);
static ngx_uint_t cookies_digest(ngx_http_request_t *r,
    ngx_http_idempotency_ignored_t *ignored, ngx_idempotency_digest_t *d);
static ngx_uint_t cookies_set_by(ngx_http_request_t *r,
    ngx_http_idempotency_ignored_t *ignored, ngx_str_t *lines);
static void insert_pair(ngx_keyval_t *pairs, ngx_uint_t n, ngx_keyval_t *pair);
static void digest_pair(ngx_idempotency_digest_t *d, char *kind,
    ngx_keyval_t *pair);
static void digest_ignored(ngx_idempotency_digest_t *d,
    ngx_http_idempotency_ignored_t *ignored);


static ngx_str_t  identity_name = ngx_string("authorization");


/* they change by themselves; stable ones, such as _ga, tell visitors apart */

static ngx_str_t  cookies_builtin[] = {

    /* analytics, which tick */
    ngx_string("_ga_*"),
    ngx_string("_gat*"),
    ngx_string("_clsk"),
    ngx_string("_hjSession*"),
    ngx_string("_uetsid"),
    ngx_string("_uetvid"),
    ngx_string("_dd_s"),
    ngx_string("__hssc"),
    ngx_string("__hstc"),
    ngx_string("_pk_ses*"),
    ngx_string("sbjs_*"),
    ngx_string("mp_*_mixpanel"),
    ngx_string("AMP_*"),
    ngx_string("OptanonConsent"),

    /* load balancers and bot checks */
    ngx_string("AWSALB*"),
    ngx_string("__cf_bm"),
    ngx_string("bm_sz"),
    ngx_string("bm_sv"),
    ngx_string("ak_bmsc"),
    ngx_string("_abck"),
    ngx_string("datadome"),
    ngx_string("incap_ses_*"),

    /* CSRF */
    ngx_string("XSRF-TOKEN"),

    ngx_null_string
};


static ngx_str_t  credential_usual[] = {
    ngx_string("accept"),
    ngx_string("accept-encoding"),
    ngx_string("accept-language"),
    ngx_string("cache-control"),
    ngx_string("connection"),
    ngx_string("content-length"),
    ngx_string("content-type"),
    ngx_string("cookie"),
    ngx_string("dnt"),
    ngx_string("host"),
    ngx_string("idempotency-key"),
    ngx_string("origin"),
    ngx_string("pragma"),
    ngx_string("priority"),
    ngx_string("referer"),
    ngx_string("sec-ch-ua"),
    ngx_string("sec-ch-ua-mobile"),
    ngx_string("sec-ch-ua-platform"),
    ngx_string("sec-fetch-dest"),
    ngx_string("sec-fetch-mode"),
    ngx_string("sec-fetch-site"),
    ngx_string("sec-fetch-user"),
    ngx_string("te"),
    ngx_string("traceparent"),
    ngx_string("tracestate"),
    ngx_string("transfer-encoding"),
    ngx_string("upgrade-insecure-requests"),
    ngx_string("user-agent"),
    ngx_string("via"),
    ngx_string("x-forwarded-for"),
    ngx_string("x-forwarded-host"),
    ngx_string("x-forwarded-port"),
    ngx_string("x-forwarded-proto"),
    ngx_string("x-real-ip"),
    ngx_string("x-request-id"),
    ngx_string("x-requested-with"),
    ngx_null_string
};

static ngx_str_t  credential_prefixes[] = {
    ngx_string("accept"),
    ngx_string("content"),
    ngx_string("if"),
    ngx_string("proxy"),
    ngx_string("sec"),
    ngx_null_string
};

/* both by the low five bits of their first characters: "2" is as "r" */

static ngx_str_t  credential_stems[] = {
    ngx_string("account"),
    ngx_string("apikey"),
    ngx_string("appkey"),
    ngx_string("assertion"),
    ngx_string("behalf"),
    ngx_string("clientcert"),
    ngx_string("consumer"),
    ngx_string("credential"),
    ngx_string("customer"),
    ngx_string("impersonate"),
    ngx_string("jwt"),
    ngx_string("merchant"),
    ngx_string("organization"),
    ngx_string("orgid"),
    ngx_string("passw"),
    ngx_string("principal"),
    ngx_string("secret"),
    ngx_string("session"),
    ngx_string("tenant"),
    ngx_string("token"),
    ngx_string("userid"),
    ngx_string("userinfo"),
    ngx_string("username"),
    ngx_null_string
};

static credential_word_t  credential_words[] = {
    { ngx_string("activity"), credential_never },
    { ngx_string("agent"), credential_never },
    { ngx_string("ajax"), credential_never },
    { ngx_string("attempt"), credential_never },
    { ngx_string("auth"), credential_counts },
    { ngx_string("authorization"), credential_counts },
    { ngx_string("captcha"), credential_never },
    { ngx_string("cert"), credential_counts },
    { ngx_string("client"), credential_client },
    { ngx_string("company"), credential_counts },
    { ngx_string("context"), credential_counts },
    { ngx_string("csrf"), credential_never },
    { ngx_string("csrftoken"), credential_never },
    { ngx_string("datadog"), credential_never },
    { ngx_string("date"), credential_never },
    { ngx_string("digest"), credential_never },
    { ngx_string("dn"), credential_counts },
    { ngx_string("email"), credential_counts },
    { ngx_string("expires"), credential_never },
    { ngx_string("forgery"), credential_never },
    { ngx_string("form"), credential_never },
    { ngx_string("hash"), credential_never },
    { ngx_string("hmac"), credential_never },
    { ngx_string("id"), credential_id },
    { ngx_string("idempotency"), credential_never },
    { ngx_string("identity"), credential_counts },
    { ngx_string("ip"), credential_never },
    { ngx_string("key"), credential_counts },
    { ngx_string("language"), credential_never },
    { ngx_string("locale"), credential_never },
    { ngx_string("location"), credential_never },
    { ngx_string("nonce"), credential_never },
    { ngx_string("oidc"), credential_counts },
    { ngx_string("org"), credential_counts },
    { ngx_string("otp"), credential_never },
    { ngx_string("partner"), credential_counts },
    { ngx_string("project"), credential_counts },
    { ngx_string("push"), credential_never },
    { ngx_string("2fa"), credential_never },
    { ngx_string("recaptcha"), credential_never },
    { ngx_string("request"), credential_request },
    { ngx_string("requestverificationtoken"), credential_never },
    { ngx_string("retry"), credential_never },
    { ngx_string("sentry"), credential_never },
    { ngx_string("shop"), credential_counts },
    { ngx_string("sign"), credential_never },
    { ngx_string("signature"), credential_never },
    { ngx_string("span"), credential_never },
    { ngx_string("ssl"), credential_ssl },
    { ngx_string("start"), credential_never },
    { ngx_string("store"), credential_counts },
    { ngx_string("sub"), credential_counts },
    { ngx_string("subject"), credential_counts },
    { ngx_string("sudo"), credential_counts },
    { ngx_string("team"), credential_counts },
    { ngx_string("time"), credential_never },
    { ngx_string("timestamp"), credential_never },
    { ngx_string("timezone"), credential_never },
    { ngx_string("trace"), credential_never },
    { ngx_string("ts"), credential_never },
    { ngx_string("turnstile"), credential_never },
    { ngx_string("uid"), credential_counts },
    { ngx_string("user"), credential_counts },
    { ngx_string("workspace"), credential_counts },
    { ngx_string("xsrf"), credential_never },
    { ngx_string("xsrftoken"), credential_never },
    { ngx_null_string, 0 }
};

/*
 * By a first character, its low five bits: the second ones of stems and the
 * lengths of words, a bit each, and where both begin; which prefixes have
 */

static uint32_t             credential_seconds[32];
static uint32_t             credential_lengths[32];
static ngx_str_t           *credential_first_stem[32];
static credential_word_t   *credential_first_word[32];
static uint32_t             credential_prefixed;

/* the usual ones, by their hash; of two in one slot one goes the long way */

static ngx_str_t
    *credential_slots[NGX_HTTP_IDEMPOTENCY_CREDENTIAL_SLOTS];


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

    return bind_similar(r, ctx, &scope);
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
bind_similar(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_str_t *scope)
{
    ctx->similar = ngx_pcalloc(r->pool,
                               sizeof(ngx_http_idempotency_similar_t));
    if (ctx->similar == NULL) {
        return NGX_ERROR;
    }

    ngx_http_idempotency_content(r, ctx, scope,
                                 NGX_IDEMPOTENCY_DIGEST_SIMILAR,
                                 ctx->similar->claim.op.token);
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

    digest_ignored(&d, conf->ignore_cookies);
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

    /* a released token is bound to nobody: requests that waited get its
       response */

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
           || !cookies_set_by(r, ignored, lines);
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
        && cookies_digest(r, ctx->conf->ignore_cookies,
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
                insert_pair(pairs, n, &pair);
                n++;

            } else {
                digest_pair(d, "K", &pair);
            }

            *shown |= shown_shared;
        }
    }

    for (i = 0; i < n; i++) {
        digest_pair(d, "K", &pairs[i]);
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


/* how many there are that count; a kind stands before each of them */

static ngx_uint_t
cookies_digest(ngx_http_request_t *r, ngx_http_idempotency_ignored_t *ignored,
    ngx_idempotency_digest_t *d)
{
    ngx_uint_t      i, n;
    ngx_keyval_t    cookie, cookies[NGX_HTTP_IDEMPOTENCY_COOKIES_SORTED];
    cookies_iter_t  it;

    n = 0;

    cookies_iter(&it, r, ignored);

    while (cookies_next(&it, &cookie)) {

        if (n < NGX_HTTP_IDEMPOTENCY_COOKIES_SORTED) {
            insert_pair(cookies, n, &cookie);
        }

        n++;
    }

    if (n <= NGX_HTTP_IDEMPOTENCY_COOKIES_SORTED) {

        for (i = 0; i < n; i++) {
            digest_pair(d, "C", &cookies[i]);
        }

        return n;
    }

    cookies_iter(&it, r, ignored);

    while (cookies_next(&it, &cookie)) {
        digest_pair(d, "C", &cookie);
    }

    return n;
}


static void
cookies_iter(cookies_iter_t *it, ngx_http_request_t *r,
    ngx_http_idempotency_ignored_t *ignored)
{
    ngx_http_idempotency_header_iter(&it->lines, r);

    it->ignored = ignored;
    it->pos = NULL;
    it->last = NULL;
}


/* white space around names and values doesn't count, nor do empty pairs */

static ngx_uint_t
cookies_next(cookies_iter_t *it, ngx_keyval_t *cookie)
{
    u_char           *p, *end;
    ngx_table_elt_t  *h;

    static ngx_str_t  name = ngx_string("cookie");

    for ( ;; ) {

        if (it->pos == it->last) {
            h = ngx_http_idempotency_header_next(&it->lines, &name);

            if (h == NULL) {
                return 0;
            }

            it->pos = h->value.data;
            it->last = h->value.data + h->value.len;
            continue;
        }

        p = it->pos;

        /* not ngx_strlchr(), which goes byte by byte: values may be long */

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


/* without "=" there is no value, not even an empty one */

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


/* whether all of the request's were set by that response, name and value */

static ngx_uint_t
cookies_set_by(ngx_http_request_t *r, ngx_http_idempotency_ignored_t *ignored,
    ngx_str_t *lines)
{
    u_char          *end;
    ngx_str_t        rest, name, value;
    ngx_uint_t       slot, i, n;
    ngx_keyval_t     cookie, set[NGX_HTTP_IDEMPOTENCY_COOKIES_SET];
    cookies_iter_t   it;

    n = 0;
    rest = *lines;

    while (n < NGX_HTTP_IDEMPOTENCY_COOKIES_SET
           && ngx_http_idempotency_response_line(&rest, &slot, &name, &value)
              == NGX_OK)
    {
        if (name.len == 10
            && ngx_strncasecmp(name.data, (u_char *) "set-cookie", 10) == 0)
        {
            end = ngx_strlchr(value.data, value.data + value.len, ';');

            cookies_pair(&set[n++], value.data,
                         end ? end : value.data + value.len);
        }
    }

    cookies_iter(&it, r, ignored);

    while (cookies_next(&it, &cookie)) {

        for (i = 0; i < n; i++) {
            if (cookies_compare(&cookie.key, &set[i].key) == 0
                && cookies_compare(&cookie.value, &set[i].value) == 0)
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


/* by their names; those of one name stay in their order */

static void
insert_pair(ngx_keyval_t *pairs, ngx_uint_t n, ngx_keyval_t *pair)
{
    ngx_uint_t  low, high, i;

    low = 0;
    high = n;

    while (low < high) {
        i = (low + high) / 2;

        if (cookies_compare(&pair->key, &pairs[i].key) < 0) {
            high = i;

        } else {
            low = i + 1;
        }
    }

    ngx_memmove(&pairs[low + 1], &pairs[low],
                (n - low) * sizeof(ngx_keyval_t));

    pairs[low] = *pair;
}


static ngx_int_t
cookies_compare(ngx_str_t *one, ngx_str_t *two)
{
    ngx_int_t  rc;

    rc = ngx_memcmp(one->data, two->data, ngx_min(one->len, two->len));

    if (rc == 0) {
        rc = (one->len > two->len) - (one->len < two->len);
    }

    return rc;
}


static void
digest_pair(ngx_idempotency_digest_t *d, char *kind, ngx_keyval_t *pair)
{
    ngx_idempotency_digest_bytes(d, (u_char *) kind, 1);
    ngx_idempotency_digest_field(d, &pair->key);
    ngx_idempotency_digest_field(d, &pair->value);
}


static ngx_uint_t
cookies_ignored(ngx_http_idempotency_ignored_t *ignored, ngx_str_t *name)
{
    size_t              suffix;
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

        if (name->len < pattern[i].prefix
            || (pattern[i].prefix && c != like->data[0])
            || ngx_memcmp(name->data, like->data, pattern[i].prefix) != 0)
        {
            continue;
        }

        if (pattern[i].prefix == like->len) {

            if (name->len == like->len) {
                return 1;
            }

            continue;
        }

        suffix = like->len - pattern[i].prefix - 1;

        if (name->len - pattern[i].prefix >= suffix
            && ngx_memcmp(name->data + name->len - suffix,
                          like->data + like->len - suffix, suffix)
               == 0)
        {
            return 1;
        }
    }

    return 0;
}


/* the list that is there if nobody says otherwise */

ngx_http_idempotency_ignored_t *
ngx_http_idempotency_ignored_create(ngx_conf_t *cf)
{
    ngx_str_t                       *cookie;
    ngx_http_idempotency_ignored_t  *ignored;

    ignored = ngx_pcalloc(cf->pool, sizeof(ngx_http_idempotency_ignored_t));
    if (ignored == NULL) {
        return NULL;
    }

    if (ngx_array_init(&ignored->patterns, cf->pool,
                       sizeof(cookies_builtin) / sizeof(ngx_str_t),
                       sizeof(cookies_pattern_t))
        != NGX_OK)
    {
        return NULL;
    }

    for (cookie = cookies_builtin; cookie->len; cookie++) {
        if (ngx_http_idempotency_ignore_cookie(ignored, cookie) != NGX_OK) {
            return NULL;
        }
    }

    return ignored;
}


/* NGX_DECLINED: no cookie has such a name, or it has more than one star */

ngx_int_t
ngx_http_idempotency_ignore_cookie(ngx_http_idempotency_ignored_t *ignored,
    ngx_str_t *name)
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


static void
digest_ignored(ngx_idempotency_digest_t *d,
    ngx_http_idempotency_ignored_t *ignored)
{
    ngx_uint_t          i;
    cookies_pattern_t  *pattern;

    if (ignored == NULL) {
        return;
    }

    pattern = ignored->patterns.elts;

    for (i = 0; i < ignored->patterns.nelts; i++) {
        ngx_idempotency_digest_field(d, &pattern[i].name);
    }
}


void
ngx_http_idempotency_credentials_init(void)
{
    u_char              c;
    ngx_str_t          *stem, *prefix, *name;
    ngx_uint_t          slot;
    credential_word_t  *word;

    for (prefix = credential_prefixes; prefix->len; prefix++) {
        credential_prefixed |= (uint32_t) 1 << (prefix->data[0] & 0x1f);
    }

    for (stem = credential_stems; stem->len; stem++) {
        c = stem->data[0] & 0x1f;

        if (credential_seconds[c] == 0) {
            credential_first_stem[c] = stem;
        }

        credential_seconds[c] |= (uint32_t) 1 << (stem->data[1] & 0x1f);
    }

    for (word = credential_words; word->name.len; word++) {
        c = word->name.data[0] & 0x1f;

        if (credential_lengths[c] == 0) {
            credential_first_word[c] = word;
        }

        credential_lengths[c] |= (uint32_t) 1 << word->name.len;
    }

    for (name = credential_usual; name->len; name++) {
        slot = ngx_hash_key(name->data, name->len)
               % NGX_HTTP_IDEMPOTENCY_CREDENTIAL_SLOTS;

        credential_slots[slot] = name;
    }
}


/* the name is in lower case, its hash is nginx's */

ngx_uint_t
ngx_http_idempotency_credential(u_char *name, size_t len, ngx_uint_t hash)
{
    ngx_str_t  *usual;

    usual = credential_slots[hash % NGX_HTTP_IDEMPOTENCY_CREDENTIAL_SLOTS];

    if (usual && usual->len == len
        && ngx_memcmp(usual->data, name, len) == 0)
    {
        return 0;
    }

    return credential_name(name, len);
}


static ngx_uint_t
credential_name(u_char *name, size_t len)
{
    u_char      *p, *last, *word, c, before;
    ngx_uint_t   counts, kind, previous;

    if (((credential_prefixed >> (name[0] & 0x1f)) & 1)
        && credential_prefix(name, len))
    {
        return 0;
    }

    last = name + len;
    word = name;

    counts = 0;
    previous = 0;
    before = 0;

    for (p = name; /* void */ ; p++) {

        if (p < last && *p != '-' && *p != '_') {
            c = *p & 0x1f;

            if ((credential_seconds[before] >> c) & 1) {
                counts |= credential_stem(p - 1, last);
            }

            before = c;
            continue;
        }

        kind = credential_word(word, p - word);

        if (kind == credential_never
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


static ngx_uint_t
credential_prefix(u_char *name, size_t len)
{
    ngx_str_t  *prefix;

    for (prefix = credential_prefixes; prefix->len; prefix++) {

        if (name[0] == prefix->data[0]
            && len > prefix->len
            && (name[prefix->len] == '-' || name[prefix->len] == '_')
            && ngx_memcmp(name, prefix->data, prefix->len) == 0)
        {
            return 1;
        }
    }

    return 0;
}


static ngx_uint_t
credential_stem(u_char *p, u_char *last)
{
    ngx_str_t  *stem;

    for (stem = credential_first_stem[p[0] & 0x1f];
         stem->len && ((stem->data[0] ^ p[0]) & 0x1f) == 0;
         stem++)
    {
        if (stem->data[1] == p[1]
            && stem->len <= (size_t) (last - p)
            && ngx_memcmp(stem->data, p, stem->len) == 0)
        {
            return 1;
        }
    }

    return 0;
}


/* its kind, or 0 */

static ngx_uint_t
credential_word(u_char *word, size_t len)
{
    u_char              c;
    credential_word_t  *like;

    if (len == 0 || len > NGX_HTTP_IDEMPOTENCY_CREDENTIAL_WORD) {
        return 0;
    }

    c = word[0] & 0x1f;

    if (((credential_lengths[c] >> len) & 1) == 0) {
        return 0;
    }

    for (like = credential_first_word[c];
         like->name.len && (like->name.data[0] & 0x1f) == c;
         like++)
    {
        if (like->name.len == len
            && ngx_memcmp(like->name.data, word, len) == 0)
        {
            return like->kind;
        }
    }

    return 0;
}
