
/* The encoding of a header block, there and back, and of anything else. */


#include "unit.h"
#include "request/ngx_http_idempotency_response.h"


typedef struct {
    char         *key;
    char         *value;
    /* the place in headers_out, or -1 */
    ngx_int_t     slot;
    /* it is not to come back */
    ngx_uint_t    dropped;
} line_t;


/* as headers_out has them: those that hold several lines come last */

static char  *slot_names[] = {
    "Server", "Date", "Content-Length", "Content-Encoding", "Location",
    "Refresh", "Last-Modified", "Content-Range", "Accept-Ranges",
    "WWW-Authenticate", "Expires", "ETag"
};

static const size_t  slots[] = {
    offsetof(ngx_http_headers_out_t, server),
    offsetof(ngx_http_headers_out_t, date),
    offsetof(ngx_http_headers_out_t, content_length),
    offsetof(ngx_http_headers_out_t, content_encoding),
    offsetof(ngx_http_headers_out_t, location),
    offsetof(ngx_http_headers_out_t, refresh),
    offsetof(ngx_http_headers_out_t, last_modified),
    offsetof(ngx_http_headers_out_t, content_range),
    offsetof(ngx_http_headers_out_t, accept_ranges),
    offsetof(ngx_http_headers_out_t, www_authenticate),
    offsetof(ngx_http_headers_out_t, expires),
    offsetof(ngx_http_headers_out_t, etag),
    offsetof(ngx_http_headers_out_t, cache_control),
    offsetof(ngx_http_headers_out_t, link)
};

/* the last second of the year 9999 */

#define MODIFIED_MAX   253402300799LL

#define SLOTS          (sizeof(slots) / sizeof(slots[0]))
#define CACHE_CONTROL  12
#define LINK           13


static const line_t  all_lines[] = {
    { "Server", "s", 0, 0 },
    { "Set-Cookie", "a=1", -1, 0 },
    { "Date", "today", 1, 0 },
    { "Content-Length", "12", 2, 0 },
    { "Content-Encoding", "br", 3, 0 },
    { "Location", "/x", 4, 0 },
    { "Refresh", "5", 5, 0 },
    { "Connection", "close", -1, 1 },
    { "Last-Modified", "then", 6, 0 },
    { "Cache-Control", "private", CACHE_CONTROL, 0 },
    { "Content-Range", "bytes 1-2/3", 7, 0 },
    { "Accept-Ranges", "bytes", 8, 0 },
    { "X-Secret", "hidden", -1, 1 },
    { "WWW-Authenticate", "Basic", 9, 0 },
    { "Link", "<a>", LINK, 0 },
    { "Expires", "never", 10, 0 },
    { "Set-Cookie", "b=2", -1, 0 },
    { "ETag", "\"e\"", 11, 0 },
    { "Cache-Control", "no-store", CACHE_CONTROL, 0 },
    { "x-SECRET", "hidden", -1, 1 },
    { "X-Secrets", "shown", -1, 0 },
    { "Link", "<b>", LINK, 0 },
    { "X-Empty", "", -1, 0 },
    { "Keep-Alive", "timeout=5", -1, 1 },
    { "proxy-authenticate", "x", -1, 1 },
    { "Proxy-Authorization", "x", -1, 1 },
    { "Proxy-Connection", "x", -1, 1 },
    { "TE", "x", -1, 1 },
    { "trailer", "x", -1, 1 },
    { "Transfer-Encoding", "x", -1, 1 },
    { "UPGRADE", "x", -1, 1 },
    { "Connections", "x", -1, 0 },
    { "Idempotent-Replayed", "true", -1, 0 },
    { NULL, NULL, -1, 0 }
};

static const line_t  no_lines[] = { { NULL, NULL, -1, 0 } };


static ngx_str_t  hidden[] = { ngx_string("X-Secret"), ngx_string("other") };

static ngx_array_t  hide = { hidden, 2, sizeof(ngx_str_t), 2, NULL };


static ngx_str_t
text(char *s)
{
    ngx_str_t  str;

    str.len = ngx_strlen(s);
    str.data = (u_char *) s;

    return str;
}


static ngx_http_request_t *
request(void)
{
    ngx_http_request_t  *r;

    r = ngx_pcalloc(unit_pool, sizeof(ngx_http_request_t));
    r->pool = unit_pool;
    r->main = r;

    check_equal(ngx_list_init(&r->headers_out.headers, unit_pool, 3,
                              sizeof(ngx_table_elt_t)),
                NGX_OK);
    check_equal(ngx_list_init(&r->headers_out.trailers, unit_pool, 2,
                              sizeof(ngx_table_elt_t)),
                NGX_OK);

    return r;
}


/* as nginx's modules put a line into its place */

static void
put(ngx_http_request_t *r, ngx_uint_t slot, ngx_table_elt_t *h)
{
    void              *place;

    place = (u_char *) &r->headers_out + slots[slot];

#if (nginx_version >= 1023000)

    {
        ngx_table_elt_t  **ph;

        for (ph = place; *ph; ph = &(*ph)->next) { /* void */ }

        *ph = h;
    }

#else

    if (slot < CACHE_CONTROL) {
        *(ngx_table_elt_t **) place = h;
        return;
    }

    {
        ngx_array_t       *lines;
        ngx_table_elt_t  **ph;

        lines = place;

        if (lines->elts == NULL) {
            (void) ngx_array_init(lines, r->pool, 1,
                                  sizeof(ngx_table_elt_t *));
        }

        ph = ngx_array_push(lines);
        *ph = h;
    }

#endif
}


/* the n-th line in a place, or NULL */

static ngx_table_elt_t *
in_place(ngx_http_request_t *r, ngx_uint_t slot, ngx_uint_t n)
{
    void             *place;
    ngx_table_elt_t  *h;

    place = (u_char *) &r->headers_out + slots[slot];

#if (nginx_version >= 1023000)

    for (h = *(ngx_table_elt_t **) place; h && n; h = h->next) {
        n--;
    }

    return h;

#else

    if (slot < CACHE_CONTROL) {
        h = *(ngx_table_elt_t **) place;
        return n ? NULL : h;
    }

    {
        ngx_array_t  *lines;

        lines = place;
        return (n < lines->nelts) ? ((ngx_table_elt_t **) lines->elts)[n]
                                  : NULL;
    }

#endif
}


static void
add_lines(ngx_http_request_t *r, ngx_list_t *list, const line_t *lines)
{
    ngx_table_elt_t  *h;

    for ( /* void */ ; lines->key; lines++) {
        h = ngx_list_push(list);
        ngx_memzero(h, sizeof(ngx_table_elt_t));

        h->key = text(lines->key);
        h->value = text(lines->value);
        h->hash = 1;

        if (lines->slot >= 0) {
            put(r, lines->slot, h);
        }
    }

    /* a line that a module has taken back */

    h = ngx_list_push(list);
    ngx_memzero(h, sizeof(ngx_table_elt_t));
    h->key = text("X-Deleted");
    h->value = text("x");
}


static ngx_table_elt_t *
nth(ngx_list_t *list, ngx_uint_t n)
{
    ngx_list_part_t  *part;

    for (part = &list->part; part; part = part->next) {
        if (n < part->nelts) {
            return (ngx_table_elt_t *) part->elts + n;
        }

        n -= part->nelts;
    }

    return NULL;
}


static ngx_uint_t
same(ngx_str_t *s, char *wanted)
{
    return s->len == ngx_strlen(wanted)
           && ngx_memcmp(s->data, wanted, s->len) == 0;
}


static void
check_lines(ngx_http_request_t *r, ngx_list_t *list, const line_t *lines,
    ngx_uint_t cookies)
{
    ngx_int_t         slot;
    ngx_uint_t        n, used[SLOTS];
    ngx_table_elt_t  *h;

    n = 0;
    ngx_memzero(used, sizeof(used));

    for ( /* void */ ; lines->key; lines++) {

        if (lines->dropped
            || (!cookies && ngx_strcmp(lines->key, "Set-Cookie") == 0))
        {
            continue;
        }

        h = nth(list, n++);

        if (!check(h != NULL)) {
            return;
        }

        if (!check(same(&h->key, lines->key))
            || !check(same(&h->value, lines->value)))
        {
            unit_note("line \"%s\"", lines->key);
        }

        /* zero would be a deleted line */

        check(h->hash != 0);

        for (slot = 0; slot < (ngx_int_t) SLOTS; slot++) {
            if (slot == lines->slot) {
                check(in_place(r, slot, used[slot]++) == h);
            }
        }
    }

    check(nth(list, n) == NULL);

    for (slot = 0; slot < (ngx_int_t) SLOTS; slot++) {
        if (list == &r->headers_out.headers) {
            check(in_place(r, slot, used[slot]) == NULL);
        }
    }
}


/* where it was made, or NULL; and whether a HEAD asked for it */

static ngx_http_idempotency_location_t  *made_at;
static ngx_uint_t                      head;


/* what is left of the bytes is the body */

static ngx_int_t
restore(ngx_http_request_t *r, ngx_str_t *bytes, ngx_uint_t cookies)
{
    ngx_int_t                        rc;
    ngx_http_idempotency_response_t  response;

    rc = ngx_http_idempotency_response_decode(bytes, head, &response);

    if (rc == NGX_OK) {
        *bytes = response.body;
        rc = ngx_http_idempotency_response_restore(r, &response, cookies);
        check_equal(rc, NGX_OK);
    }

    return rc;
}


/* in a buffer of its own size, so that a read beyond it is seen */

static ngx_str_t
response_of(ngx_http_request_t *r, char *body)
{
    u_char      *p;
    ngx_buf_t   *header, *trailers;
    ngx_str_t    response;

    header = ngx_http_idempotency_response_header(r, &hide, made_at);
    trailers = ngx_http_idempotency_response_trailers(r);

    check(header && header->last <= header->end);
    check(trailers && trailers->last <= trailers->end);

    response.len = (header->last - header->pos)
                 + (trailers->last - trailers->pos) + ngx_strlen(body);

    response.data = ngx_alloc(ngx_max(response.len, 1), unit_cycle.log);

    p = ngx_cpymem(response.data, header->pos, header->last - header->pos);
    p = ngx_cpymem(p, trailers->pos, trailers->last - trailers->pos);
    ngx_memcpy(p, body, ngx_strlen(body));

    return response;
}


static ngx_http_request_t *
full_request(void)
{
    ngx_http_request_t      *r;
    ngx_http_headers_out_t  *out;

    static ngx_str_t     charset = ngx_string("utf-8");

    static const line_t  trailers[] = {
        { "X-Sum", "42", -1, 0 },
        { "Connection", "close", -1, 1 },
        { "Set-Cookie", "late=1", -1, 0 },
        { NULL, NULL, -1, 0 }
    };

    r = request();
    out = &r->headers_out;

    out->status = 201;
    out->status_line = text("201 Made It");
    out->content_type = text("text/html; charset=koi8-r");
    out->content_type_len = 9;
    out->charset = text("koi8-r");
    out->override_charset = &charset;
    out->content_length_n = 12;
    out->last_modified_time = 1234567890;

    r->allow_ranges = 1;
    r->expect_trailers = 1;

    add_lines(r, &out->headers, all_lines);
    add_lines(r, &out->trailers, trailers);

    return r;
}


unit_case("all slots, flags and lines come back; what is hidden does not")
{
    ngx_uint_t               cookies;
    ngx_str_t                response, body;
    ngx_http_request_t      *r, *r2;
    ngx_http_headers_out_t  *out;

    static const line_t  trailers[] = {
        { "X-Sum", "42", -1, 0 },
        { "Set-Cookie", "late=1", -1, 0 },
        { NULL, NULL, -1, 0 }
    };

    for (cookies = 0; cookies < 2; cookies++) {

        r = full_request();
        response = response_of(r, "hello, world");

        body = response;
        r2 = request();
        check_equal(restore(r2, &body, cookies), NGX_OK);

        check(same(&body, "hello, world"));
        check(body.data + body.len == response.data + response.len);

        out = &r2->headers_out;

        check_equal(out->status, 201);
        check(same(&out->status_line, "201 Made It"));
        check(same(&out->content_type, "text/html; charset=koi8-r"));
        check_equal(out->content_type_len, 9);
        check(same(&out->charset, "koi8-r"));
        check(out->override_charset && same(out->override_charset, "utf-8"));
        check_equal(out->content_length_n, 12);
        check_equal(out->last_modified_time, 1234567890);

        check_equal(r2->allow_ranges, 1);
        check_equal(r2->single_range, 0);
        check_equal(r2->disable_not_modified, 0);
        check_equal(r2->expect_trailers, 1);

        check_lines(r2, &out->headers, all_lines, cookies);
        check_lines(r2, &out->trailers, trailers, cookies);

        ngx_free(response.data);
    }
}


/* the ends of what there is: nothing, and the largest numbers */

unit_case("nothing, and the largest numbers")
{
    ngx_str_t                response, body;
    ngx_uint_t               i;
    ngx_http_request_t      *r, *r2;
    ngx_http_headers_out_t  *out;

    static const off_t  lengths[] = { -1, 0, 1, 126, 127, 128, 16382, 16383,
                                      NGX_MAX_OFF_T_VALUE - 1 };

    /* of a HEAD: there is no body that it has to be the length of */

    head = 1;

    for (i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {

        r = request();
        r->headers_out.status = (i & 1) ? 200 : 999;
        r->headers_out.content_length_n = lengths[i];
        r->headers_out.last_modified_time = ngx_min((time_t) lengths[i],
                                                    MODIFIED_MAX);
        r->single_range = 1;
        r->disable_not_modified = 1;

        response = response_of(r, "");

        body = response;
        r2 = request();

        /* what is restored replaces what there was */

        r2->headers_out.content_type_hash = 1;
        r2->headers_out.content_type_lowcase = response.data;
        r2->allow_ranges = 1;

        check_equal(restore(r2, &body, 1), NGX_OK);
        check_equal(body.len, 0);

        out = &r2->headers_out;

        check_equal(out->status, r->headers_out.status);
        check_equal(out->status_line.len, 0);
        check_equal(out->content_type.len, 0);
        check_equal(out->charset.len, 0);
        check(out->override_charset == NULL);
        check_equal(out->content_length_n, lengths[i]);
        check_equal(out->last_modified_time,
                    r->headers_out.last_modified_time);
        check_equal(out->content_type_hash, 0);
        check(out->content_type_lowcase == NULL);

        check_equal(r2->allow_ranges, 0);
        check_equal(r2->single_range, 1);
        check_equal(r2->disable_not_modified, 1);
        check_equal(r2->expect_trailers, 0);

        check_lines(r2, &out->headers, no_lines, 1);
        check_lines(r2, &out->trailers, no_lines, 1);

        ngx_free(response.data);
    }

    head = 0;
}


unit_case("long names and values")
{
    u_char              *p;
    size_t               len;
    ngx_str_t            response, body;
    ngx_http_request_t  *r, *r2;
    ngx_table_elt_t     *h;

    for (len = 1; len <= 300000; len = len * 5 / 4 + 1) {

        r = request();
        r->headers_out.status = 200;
        r->headers_out.content_length_n = -1;
        r->headers_out.last_modified_time = -1;

        p = ngx_palloc(unit_pool, len);
        ngx_memset(p, 'a' + len % 26, len);

        h = ngx_list_push(&r->headers_out.headers);
        ngx_memzero(h, sizeof(ngx_table_elt_t));
        h->hash = 1;
        h->key.len = len;
        h->key.data = p;
        h->value.len = len;
        h->value.data = p;

        response = response_of(r, "b");
        body = response;

        r2 = request();
        check_equal(restore(r2, &body, 1), NGX_OK);
        check(same(&body, "b"));

        h = nth(&r2->headers_out.headers, 0);
        check(h && h->key.len == len && h->value.len == len
              && ngx_memcmp(h->key.data, p, len) == 0
              && ngx_memcmp(h->value.data, p, len) == 0);

        ngx_free(response.data);
        ngx_reset_pool(unit_pool);
    }
}


/* within the bytes that it was made of, whatever they are */

static void
check_inside(ngx_str_t *s, ngx_str_t *response)
{
    check(s->len == 0
          || (s->data >= response->data
              && s->len <= response->len
              && s->data + s->len <= response->data + response->len));
}


static ngx_int_t
restore_anything(ngx_str_t *response)
{
    ngx_int_t            rc;
    ngx_str_t            body;
    ngx_uint_t           i;
    ngx_table_elt_t     *h;
    ngx_http_request_t  *r;

    ngx_reset_pool(unit_pool);

    r = request();
    body = *response;

    rc = restore(r, &body, 1);

    if (rc != NGX_OK) {
        check_equal(rc, NGX_ERROR);
        return rc;
    }

    check_inside(&body, response);
    check_inside(&r->headers_out.status_line, response);
    check_inside(&r->headers_out.content_type, response);
    check_inside(&r->headers_out.charset, response);

    if (r->headers_out.override_charset) {
        check_inside(r->headers_out.override_charset, response);
    }

    check(r->headers_out.content_type_len <= r->headers_out.content_type.len);
    check(r->headers_out.status >= 200 && r->headers_out.status < 1000);
    check(r->headers_out.content_length_n == -1
          || r->headers_out.content_length_n == (off_t) body.len
          || body.len == 0);

    for (i = 0; (h = nth(&r->headers_out.headers, i)) != NULL; i++) {
        check_inside(&h->key, response);
        check_inside(&h->value, response);
    }

    return rc;
}


unit_case("whatever is cut off is an error")
{
    size_t      len;
    ngx_str_t   response, part;

    response = response_of(full_request(), "hello, world");

    for (len = 0; len <= response.len; len++) {

        part.len = len;
        part.data = ngx_alloc(ngx_max(len, 1), unit_cycle.log);
        ngx_memcpy(part.data, response.data, len);

        check_equal(restore_anything(&part),
                    len < response.len ? NGX_ERROR : NGX_OK);

        ngx_free(part.data);
    }

    ngx_free(response.data);
}


static void
bytes(char *what, ngx_int_t rc, const char *data, size_t len)
{
    ngx_str_t  response;

    response.len = len;
    response.data = ngx_alloc(ngx_max(len, 1), unit_cycle.log);
    ngx_memcpy(response.data, data, len);

    if (!check_equal(restore_anything(&response), rc)) {
        unit_note("%s", what);
    }

    ngx_free(response.data);
}


/*
 * version, flags, status 200, line, type, its length, charset, charset that
 * overrides, length, modified, slots not sent, ends of lines and trailers
 */

#define FULL64  "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
#define HALF64  "\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"
#define MAX63   "\xff\xff\xff\xff\xff\xff\xff\xff\x7f"

#define HEAD    "\x01\0\xc8\x01"
#define STRINGS "\0\0\0\0\0"
#define NUMBERS "\0\0\0"
#define ENDS    "\0\0"

#define good(what, data)  bytes(what, NGX_OK, data, sizeof(data) - 1)
#define bad(what, data)   bytes(what, NGX_ERROR, data, sizeof(data) - 1)


unit_case("malformed ones, and those whose parts contradict each other")
{
    good("a minimal one", HEAD STRINGS NUMBERS ENDS);

    bad("another version", "\x02\0\xc8\x01" STRINGS NUMBERS ENDS);
    bad("status 199", "\x01\0\xc7\x01" STRINGS NUMBERS ENDS);
    good("status 999", "\x01\0\xe7\x07" STRINGS NUMBERS ENDS);
    bad("status 1000", "\x01\0\xe8\x07" STRINGS NUMBERS ENDS);
    bad("a huge status", "\x01\0" FULL64 STRINGS NUMBERS ENDS);

    bad("a huge string", HEAD FULL64 STRINGS NUMBERS ENDS);
    bad("as much as there is", HEAD "\x08\0\0\0\0" NUMBERS ENDS);
    bad("one more than there is", HEAD "\x09\0\0\0\0" NUMBERS ENDS);
    bad("a type longer than itself", HEAD "\0\0\x01\0\0" NUMBERS ENDS);
    good("a type of its length", HEAD "\0\x01" "a" "\x01\0\0" NUMBERS ENDS);

    bad("a number without an end",
        "\x01\0" "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
        STRINGS NUMBERS ENDS);
    bad("an unfinished number", "\x01\0\xc8");
    bad("a number in more bytes than it takes",
        "\x01\0\xc8\x81\0" STRINGS NUMBERS ENDS);

    bad("an unknown flag", "\x01\x40\xc8\x01" STRINGS NUMBERS ENDS);
    good("a line of its status", HEAD "\x06" "200 OK" "\0\0\0\0" NUMBERS ENDS);
    bad("a line of another status",
        HEAD "\x06" "404 OK" "\0\0\0\0" NUMBERS ENDS);
    bad("a line of more digits", HEAD "\x04" "2000" "\0\0\0\0" NUMBERS ENDS);
    bad("a line of two", HEAD "\x05" "200\n1" "\0\0\0\0" NUMBERS ENDS);
    bad("a type of two lines", HEAD "\0\x03" "a\rb" "\x01\0\0" NUMBERS ENDS);
    bad("a charset with a zero", HEAD "\0\0\0\x03" "a\0b" "\0" NUMBERS ENDS);
    good("a charset that overrides",
        "\x01\x10\xc8\x01" "\0\0\0\0\x01" "a" NUMBERS ENDS);
    bad("one that does not", HEAD "\0\0\0\0\x01" "a" NUMBERS ENDS);

    bad("an unknown slot",
        HEAD STRINGS NUMBERS "\x10\x04" "Link" "\x01" "b" ENDS);
    good("the last slot",
        HEAD STRINGS NUMBERS "\x0f\x04" "link" "\x01" "b" ENDS);
    bad("a line that stands in another one's slot",
        HEAD STRINGS NUMBERS "\x0f\x04" "Date" "\x01" "b" ENDS);
    bad("a trailer in a slot",
        HEAD STRINGS NUMBERS "\0" "\x0f\x04" "Link" "\x01" "b" "\0");
    good("a trailer",
        HEAD STRINGS NUMBERS "\0" "\x01\x04" "Link" "\x01" "b" "\0");
    bad("a line without a value", HEAD STRINGS NUMBERS "\x01\x01" "a");
    bad("no trailers", HEAD STRINGS NUMBERS "\0");

    good("a line", HEAD STRINGS NUMBERS "\x01\x01" "a" "\x01" "b" ENDS);
    bad("a nameless line", HEAD STRINGS NUMBERS "\x01\0\x01" "b" ENDS);
    bad("a name with a colon",
        HEAD STRINGS NUMBERS "\x01\x02" "a:" "\x01" "b" ENDS);
    bad("a name with a space",
        HEAD STRINGS NUMBERS "\x01\x02" "a " "\x01" "b" ENDS);
    bad("a name of two lines",
        HEAD STRINGS NUMBERS "\x01\x03" "a\nb" "\x01" "b" ENDS);
    bad("a value of two lines",
        HEAD STRINGS NUMBERS "\x01\x01" "a" "\x04" "b\r\nc" ENDS);
    bad("a value with a zero",
        HEAD STRINGS NUMBERS "\x01\x01" "a" "\x02" "b\0" ENDS);
    good("a value with a tab",
        HEAD STRINGS NUMBERS "\x01\x01" "a" "\x03" "b\tc" ENDS);
    bad("what speaks of the connection",
        HEAD STRINGS NUMBERS "\x01\x11" "Transfer-encoding" "\x01" "b" ENDS);

    /* ten bytes of a body: their length, another one, an unknown one */

    good("its length", HEAD STRINGS "\x0b\0\0" ENDS "0123456789");
    bad("a length of less", HEAD STRINGS "\x0a\0\0" ENDS "0123456789");
    bad("a length of more",
        HEAD STRINGS "\xc1\x8d\xb7\x01\0\0" ENDS "0123456789");
    good("no length", HEAD STRINGS "\0\0\0" ENDS "0123456789");
    good("a line of the length",
        HEAD STRINGS "\0\0\0" "\x04\x0e" "Content-Length" "\x02" "10" ENDS
        "0123456789");
    bad("a line of another length",
        HEAD STRINGS "\0\0\0" "\x04\x0e" "Content-Length" "\x02" "11" ENDS
        "0123456789");
    bad("the same, in no slot",
        HEAD STRINGS "\0\0\0" "\x01\x0e" "content-length" "\x02" "11" ENDS
        "0123456789");
    bad("a length that is none",
        HEAD STRINGS "\0\0\0" "\x04\x0e" "Content-Length" "\x02" "1x" ENDS
        "0123456789");
    bad("two lengths",
        HEAD STRINGS "\0\0\0" "\x04\x0e" "Content-Length" "\x02" "10"
        "\x01\x0e" "Content-Length" "\x02" "11" ENDS "0123456789");
    bad("a 204 with a body",
        "\x01\0\xcc\x01" STRINGS NUMBERS ENDS "0123456789");
    good("a 304 with a length", "\x01\0\xb0\x02" STRINGS "\x0b\0\0" ENDS);

    bad("a huge length", HEAD STRINGS FULL64 "\0\0" ENDS);
    good("two seconds before 1970", HEAD STRINGS "\0" FULL64 "\0" ENDS);
    bad("a length of 2^63", HEAD STRINGS HALF64 "\0\0" ENDS);
    bad("a time of 2^63", HEAD STRINGS "\0" HALF64 "\0" ENDS);
    good("the end of the year 9999",
        HEAD STRINGS "\0\x80\x83\xd1\xff\xaf\x07\0" ENDS);
    bad("the year 10000", HEAD STRINGS "\0\x81\x83\xd1\xff\xaf\x07\0" ENDS);
    good("slots that are known", HEAD STRINGS "\0\0\xff\x1f" ENDS);
    bad("slots that nobody knows", HEAD STRINGS "\0\0\x80\x20" ENDS);
    bad("a length of 2^63-1", HEAD STRINGS MAX63 "\0\0" ENDS);
}


unit_case("what is not recorded at all")
{
    ngx_uint_t           i;
    ngx_table_elt_t     *h;
    ngx_http_request_t  *r;

    static struct {
        ngx_uint_t  status;
        ngx_str_t   line;
        ngx_str_t   name;
        ngx_str_t   value;
        ngx_uint_t  taken;
    } tried[] = {
        { 200, ngx_string("200 OK"), ngx_string("A"), ngx_string("b"), 1 },
        { 1000, ngx_null_string, ngx_string("A"), ngx_string("b"), 0 },
        { 101, ngx_null_string, ngx_string("A"), ngx_string("b"), 0 },
        { 200, ngx_string("201 OK"), ngx_string("A"), ngx_string("b"), 0 },
        { 200, ngx_null_string, ngx_null_string, ngx_string("b"), 0 },
        { 200, ngx_null_string, ngx_string("A"), ngx_string("b\nC: d"), 0 }
    };

    for (i = 0; i < sizeof(tried) / sizeof(tried[0]); i++) {
        r = request();
        r->headers_out.status = tried[i].status;
        r->headers_out.status_line = tried[i].line;

        h = ngx_list_push(&r->headers_out.headers);
        ngx_memzero(h, sizeof(ngx_table_elt_t));
        h->key = tried[i].name;
        h->value = tried[i].value;
        h->hash = 1;

        check_equal(ngx_http_idempotency_response_header(r, NULL, NULL)
                    != NULL,
                    tried[i].taken);
    }
}


/* a slot that is there, with a line that isn't sent, stays so */

unit_case("slots whose line is not sent")
{
    ngx_str_t            response;
    ngx_uint_t           slot, other;
    ngx_table_elt_t     *h;
    ngx_http_request_t  *r, *to;

    for (slot = 0; slot < CACHE_CONTROL; slot++) {
        r = request();
        r->headers_out.status = 200;

        h = ngx_list_push(&r->headers_out.headers);
        ngx_memzero(h, sizeof(ngx_table_elt_t));
        put(r, slot, h);

        response = response_of(r, "");

        to = request();
        check_equal(restore(to, &response, 1), NGX_OK);
        check(nth(&to->headers_out.headers, 0) == NULL);

        for (other = 0; other < SLOTS; other++) {
            h = in_place(to, other, 0);
            check((other == slot) == (h != NULL));
            check(h == NULL || h->hash == 0);
        }

        /* one line that is sent is enough */

        h = ngx_list_push(&r->headers_out.headers);
        ngx_memzero(h, sizeof(ngx_table_elt_t));
        h->key = text(slot_names[slot]);
        h->value = text("0");
        h->hash = 1;
        put(r, slot, h);

        response = response_of(r, "");

        to = request();
        check_equal(restore(to, &response, 1), NGX_OK);

        h = in_place(to, slot, 0);
        check(h && h->hash && h == nth(&to->headers_out.headers, 0));
        check(in_place(to, slot, 1) == NULL);
    }
}


unit_case("the location that made it")
{
    ngx_str_t                         response, rest;
    ngx_uint_t                        i;
    ngx_http_request_t               *to;
    ngx_http_idempotency_location_t     location;
    ngx_http_idempotency_response_t   got;

    response = response_of(full_request(), "hello, world");
    check_equal(ngx_http_idempotency_response_decode(&response, 0, &got),
                NGX_OK);
    check_equal(got.has_location, 0);

    for (i = 0; i < 16; i++) {
        ngx_memset(location.id, 'a' + i, NGX_HTTP_IDEMPOTENCY_LOCATION_LEN);
        location.uri = text((i & 1) ? "/a/long/way" : "");
        location.args = text((i & 2) ? "a=b&c" : "");
        location.internal = i & 1;
        location.get = (i >> 2) & 1;
        location.admitted = (i >> 3) & 1;

        made_at = &location;
        response = response_of(full_request(), "hello, world");
        made_at = NULL;

        check_equal(ngx_http_idempotency_response_decode(&response, 0, &got),
                    NGX_OK);

        check_equal(got.has_location, 1);
        check(ngx_memcmp(got.location.id, location.id,
                         NGX_HTTP_IDEMPOTENCY_LOCATION_LEN)
              == 0);
        check(same(&got.location.uri, (char *) location.uri.data));
        check(same(&got.location.args, (char *) location.args.data));
        check(got.location.internal == location.internal
              && got.location.get == location.get
              && got.location.admitted == location.admitted);

        to = request();
        rest = response;
        check_equal(restore(to, &rest, 1), NGX_OK);
        check(same(&rest, "hello, world"));
        check_lines(to, &to->headers_out.headers, all_lines, 1);

        /* an unknown flag of it */

        response.data[2 + NGX_HTTP_IDEMPOTENCY_LOCATION_LEN] |= 8;
        check_equal(restore_anything(&response), NGX_ERROR);

        ngx_free(response.data);
    }
}


unit_case("random bytes")
{
    size_t      len, i;
    uint64_t    seed;
    ngx_str_t   response, good;
    ngx_uint_t  step, steps, restored;

    seed = unit_setting("UNIT_SEED", 1);
    steps = unit_setting("UNIT_STEPS", 100000);
    restored = 0;

    good = response_of(full_request(), "hello, world");

    for (step = 0; step < steps; step++) {

        if (step % 2) {
            /* small numbers more often: they lead further in */

            len = unit_below(&seed, 200);
            response.data = ngx_alloc(ngx_max(len, 1), unit_cycle.log);

            for (i = 0; i < len; i++) {
                response.data[i] = (u_char) unit_below(&seed,
                                              unit_below(&seed, 2) ? 4 : 256);
            }

            if (len > 3) {
                response.data[0] = 1;
                response.data[2] = 0xc8;
                response.data[3] = 1;
            }

        } else {
            len = good.len - unit_below(&seed, 2) * unit_below(&seed, 8);
            response.data = ngx_alloc(len, unit_cycle.log);
            ngx_memcpy(response.data, good.data, len);

            for (i = unit_below(&seed, 4) + 1; i; i--) {
                response.data[unit_below(&seed, len)]
                                             = (u_char) unit_random(&seed);
            }
        }

        response.len = len;

        restored += (restore_anything(&response) == NGX_OK);

        ngx_free(response.data);
    }

    unit_note("%u of %u were restored", (unsigned) restored,
              (unsigned) steps);

    check(restored > 0 && restored < steps);

    ngx_free(good.data);
}
