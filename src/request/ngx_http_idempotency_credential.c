
/*
 * Which request headers are credentials, told by their names alone.  A stem
 * counts anywhere in a name, a word only as a whole; words end at "-" and "_".
 * What changes by itself on an honest retry is none, whatever else its name
 * says.  One pass over a name: what stems and words begin with is looked up in
 * a table that is made once.  The names that nearly all requests have are known
 * by their hash, which nginx has made already.
 */


#include "ngx_http_idempotency_headers.h"


#define NGX_HTTP_IDEMPOTENCY_CREDENTIAL_WORD   31
#define NGX_HTTP_IDEMPOTENCY_CREDENTIAL_SLOTS  256


typedef enum {
    credential_counts = 1,
    /* no name with this word is a credential */
    credential_never,
    /* only one behind the other: ssl-client and client-id, but request-id */
    credential_ssl,
    credential_client,
    credential_request,
    credential_id
} credential_kind_e;


typedef struct {
    ngx_str_t                            name;
    ngx_uint_t                           kind;
} credential_word_t;


static ngx_uint_t credential_name(u_char *name, size_t len);
static ngx_uint_t credential_prefix(u_char *name, size_t len);
static ngx_uint_t credential_stem(u_char *p, u_char *last);
static ngx_uint_t credential_word(u_char *word, size_t len);


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
