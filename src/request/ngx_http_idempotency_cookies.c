
/*
 * Cookies that tell who asks: all pairs of all lines, by name, so that their
 * order doesn't count, nor how a client cuts them into lines; and without
 * those that change by themselves.
 */


#include "ngx_http_idempotency_headers.h"
#include "ngx_http_idempotency_response.h"


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


static void cookies_iter(cookies_iter_t *it, ngx_http_request_t *r,
    ngx_http_idempotency_ignored_t *ignored);
static ngx_uint_t cookies_next(cookies_iter_t *it, ngx_keyval_t *cookie);
static void cookies_pair(ngx_keyval_t *cookie, u_char *p, u_char *last);
static ngx_int_t cookies_compare(ngx_str_t *one, ngx_str_t *two);
static ngx_uint_t cookies_ignored(ngx_http_idempotency_ignored_t *ignored,
    ngx_str_t *name);


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


/* how many there are that count; a kind stands before each of them */

ngx_uint_t
ngx_http_idempotency_cookies(ngx_http_request_t *r,
    ngx_http_idempotency_ignored_t *ignored, ngx_idempotency_digest_t *d)
{
    ngx_uint_t      i, n;
    ngx_keyval_t    cookie, cookies[NGX_HTTP_IDEMPOTENCY_COOKIES_SORTED];
    cookies_iter_t  it;

    n = 0;

    cookies_iter(&it, r, ignored);

    while (cookies_next(&it, &cookie)) {

        if (n < NGX_HTTP_IDEMPOTENCY_COOKIES_SORTED) {
            ngx_http_idempotency_insert_pair(cookies, n, &cookie);
        }

        n++;
    }

    if (n <= NGX_HTTP_IDEMPOTENCY_COOKIES_SORTED) {

        for (i = 0; i < n; i++) {
            ngx_http_idempotency_digest_pair(d, "C", &cookies[i]);
        }

        return n;
    }

    cookies_iter(&it, r, ignored);

    while (cookies_next(&it, &cookie)) {
        ngx_http_idempotency_digest_pair(d, "C", &cookie);
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

ngx_uint_t
ngx_http_idempotency_cookies_set_by(ngx_http_request_t *r,
    ngx_http_idempotency_ignored_t *ignored, ngx_str_t *lines)
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

void
ngx_http_idempotency_insert_pair(ngx_keyval_t *pairs, ngx_uint_t n,
    ngx_keyval_t *pair)
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


void
ngx_http_idempotency_digest_pair(ngx_idempotency_digest_t *d, char *kind,
    ngx_keyval_t *pair)
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


void
ngx_http_idempotency_digest_ignored(ngx_idempotency_digest_t *d,
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
