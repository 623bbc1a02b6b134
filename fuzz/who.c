
/*
 * Who asks, by headers and cookies as a client writes them: the case of names,
 * white space around cookies, and in how many lines they come does not count;
 * nor does it in which order headers of different names do.
 */


#include "fuzz.h"

#include "request/ngx_http_idempotency_fingerprint.c"


#define LINES  24

typedef struct {
    ngx_table_elt_t             lines[2 * LINES];
    ngx_uint_t                  n;
} headers_t;


/* a line: its name is an index or text, its value follows a colon */

static ngx_uint_t
line_of(ngx_table_elt_t *h, const uint8_t *data, size_t len)
{
    size_t          i;
    const uint8_t  *colon;

    static char  *names[] = {
        "Cookie", "Cookie", "Authorization", "X-Api-Key", "X-User-Id", "Token"
    };

    colon = memchr(data, ':', len);

    if (colon == NULL) {
        return 0;
    }

    ngx_memzero(h, sizeof(ngx_table_elt_t));

    if (colon == data + 1) {
        h->key.data = (u_char *) names[data[0] % 6];
        h->key.len = ngx_strlen(h->key.data);

    } else {
        h->key.len = colon - data;
        h->key.data = fuzz_copy(data, h->key.len);
    }

    h->value.len = data + len - colon - 1;
    h->value.data = fuzz_copy(colon + 1, h->value.len);

    h->lowcase_key = fuzz_copy(h->key.data, h->key.len);
    h->hash = 0;

    for (i = 0; i < h->key.len; i++) {
        h->lowcase_key[i] = ngx_tolower(h->lowcase_key[i]);
        h->hash = ngx_hash(h->hash, h->lowcase_key[i]);
    }

    return h->key.len != 0;
}


static void
digest(headers_t *headers, u_char *result)
{
    ngx_uint_t                       shown;
    ngx_array_t                      keys;
    ngx_http_request_t               r;
    ngx_http_connection_t            hc;
    ngx_idempotency_digest_t         d;
    ngx_http_idempotency_ctx_t       ctx;
    ngx_http_idempotency_loc_conf_t  conf;

    ngx_memzero(&r, sizeof(ngx_http_request_t));
    ngx_memzero(&hc, sizeof(ngx_http_connection_t));
    ngx_memzero(&ctx, sizeof(ngx_http_idempotency_ctx_t));
    ngx_memzero(&conf, sizeof(ngx_http_idempotency_loc_conf_t));
    ngx_memzero(&keys, sizeof(ngx_array_t));

    r.http_connection = &hc;
    r.main = &r;
    r.headers_in.headers.part.elts = headers->lines;
    r.headers_in.headers.part.nelts = headers->n;
    conf.keys = &keys;
    ctx.conf = &conf;
    shown = 0;

    ngx_idempotency_digest_begin(&d, NULL);
    hold(identity_default(&r, &ctx, &d, &shown) == NGX_OK);
    ngx_idempotency_digest_bytes(&d, (u_char *) &shown, sizeof(shown));
    ngx_idempotency_digest_final(&d, result);
}


/* the same said otherwise */

static void
otherwise(headers_t *to, headers_t *from)
{
    u_char           *p, *last;
    ngx_uint_t        i;
    ngx_table_elt_t  *h;

    to->n = 0;

    for (i = 0; i < from->n; i++) {
        h = &to->lines[to->n++];
        *h = from->lines[i];
        h->key.data = h->lowcase_key;

        if (h->key.len != 6 || ngx_memcmp(h->lowcase_key, "cookie", 6) != 0
            || h->value.len == 0 || to->n == 2 * LINES - 1)
        {
            continue;
        }

        /* the first pair is a line of its own */

        last = h->value.data + h->value.len;
        p = memchr(h->value.data, ';', h->value.len);

        if (p && to->n + from->n - i < 2 * LINES) {
            to->lines[to->n] = *h;
            h->value.len = p - h->value.data;
            h = &to->lines[to->n++];
            h->value.data = p + 1;
            h->value.len = last - p - 1;
        }
    }
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    u_char           one[NGX_IDEMPOTENCY_DIGEST_LEN];
    u_char           two[NGX_IDEMPOTENCY_DIGEST_LEN];
    const uint8_t   *end, *last;

    static headers_t   headers, others;
    static ngx_uint_t  ready;

    if (!ready) {
        ngx_http_idempotency_credentials_init();
        ready = 1;
    }

    (void) fuzz_pool();

    headers.n = 0;
    last = data + size;

    while (data < last && headers.n < LINES) {
        end = memchr(data, '\n', last - data);
        end = end ? end : last;
        headers.n += line_of(&headers.lines[headers.n], data, end - data);
        data = end + 1;
    }

    digest(&headers, one);
    otherwise(&others, &headers);
    digest(&others, two);

    hold(ngx_memcmp(one, two, sizeof(one)) == 0);

    return 0;
}
