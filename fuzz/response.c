
/*
 * A recorded response as somebody else may write it: each part is as it should
 * be, or lies about itself or another part.  What is taken contradicts itself
 * nowhere, points nowhere else, and can be recorded again as it is.
 */


#include "fuzz.h"

#include "request/ngx_http_idempotency_response.h"


/* the input says what is chosen; behind its end it says nothing special */

typedef struct {
    const uint8_t  *pos;
    const uint8_t  *last;
    u_char         *out;
} choice_t;


static ngx_uint_t
choose(choice_t *c, ngx_uint_t n)
{
    return (c->pos < c->last) ? *c->pos++ % n : 0;
}


static void
put_number(choice_t *c, uint64_t n)
{
    while (n >= 0x80) {
        *c->out++ = (u_char) (n | 0x80);
        n >>= 7;
    }

    *c->out++ = (u_char) n;
}


static uint64_t
odd_number(choice_t *c)
{
    static uint64_t  numbers[] = {
        0, 1, 2, 9, 10, 11, 12, 127, 128, 3000001, 0x7fffffff, 0x80000000,
        0xffffffff, 0x100000000, 253402300800, 253402300801,
        0x7fffffffffffffff, 0x8000000000000000, 0xffffffffffffffff
    };

    return numbers[choose(c, sizeof(numbers) / sizeof(numbers[0]))];
}


static void
put_string(choice_t *c, const char *text)
{
    size_t  len;

    static const char  *odd[] = {
        "", "\r\n", "a\nb", ":", " ", "\x7f", "gzip", "W/\"", "/", "bytes 0-1/2",
        "3000000", "-1", "99999999999999999999"
    };

    if (choose(c, 8) == 1) {
        text = odd[choose(c, sizeof(odd) / sizeof(odd[0]))];
    }

    len = ngx_strlen(text);

    put_number(c, (choose(c, 16) == 1) ? odd_number(c) : len);
    c->out = ngx_cpymem(c->out, text, len);

    if (choose(c, 16) == 1) {
        *c->out++ = (u_char) choose(c, 256);
    }
}


static void
put_lines(choice_t *c)
{
    ngx_uint_t  n, k;

    static const char  *names[] = {
        "Server", "Date", "Content-Length", "Content-Encoding", "Location",
        "Refresh", "Last-Modified", "Content-Range", "Accept-Ranges",
        "WWW-Authenticate", "Expires", "ETag", "Cache-Control", "Link",
        "Set-Cookie", "X-A", "Transfer-Encoding"
    };

    for (n = choose(c, 8); n; n--) {
        k = choose(c, sizeof(names) / sizeof(names[0]));

        *c->out++ = (choose(c, 8) == 1) ? (u_char) choose(c, 256)
                                        : (k < 14) ? (u_char) (k + 2) : 1;

        put_string(c, names[k]);
        put_string(c, (k == 2) ? "10" : "\"v\"");
    }

    *c->out++ = (choose(c, 16) == 1) ? (u_char) choose(c, 256) : 0;
}


static void
put_response(choice_t *c)
{
    size_t      len;
    ngx_uint_t  status;

    static ngx_uint_t  statuses[] = {
        200, 201, 204, 206, 301, 304, 416, 500, 599, 999, 0, 99, 101, 199, 1000
    };

    status = statuses[choose(c, sizeof(statuses) / sizeof(statuses[0]))];

    *c->out++ = (choose(c, 32) == 1) ? 2 : 1;
    *c->out = (u_char) choose(c, 128);

    if (*c->out++ & 0x20) {
        c->out = ngx_cpymem(c->out, "0123456789abcdef", 16);
        *c->out++ = (u_char) choose(c, 8);
        put_string(c, "/elsewhere");
        put_string(c, "a=b");
    }

    put_number(c, (choose(c, 16) == 1) ? odd_number(c) : status);
    put_string(c, choose(c, 2) ? "200 OK" : "");
    put_string(c, "text/html");
    put_number(c, (choose(c, 8) == 1) ? odd_number(c) : 9);
    put_string(c, "");
    put_string(c, choose(c, 4) == 1 ? "koi8-r" : "");
    put_number(c, (choose(c, 4) == 1) ? odd_number(c) : 11);
    put_number(c, (choose(c, 4) == 1) ? odd_number(c) : 0);
    put_number(c, (choose(c, 4) == 1) ? odd_number(c) : 0);
    put_lines(c);
    put_lines(c);

    len = (choose(c, 8) == 1) ? choose(c, 32) : 10;
    ngx_memset(c->out, 'b', len);
    c->out += len;
}


static void
inside(ngx_str_t *s, ngx_str_t *bytes)
{
    hold(s->len == 0
         || (s->data >= bytes->data && s->len <= bytes->len
             && s->data + s->len <= bytes->data + bytes->len));
}


static void
one_line(ngx_str_t *s, ngx_str_t *bytes)
{
    size_t  i;

    inside(s, bytes);

    for (i = 0; i < s->len; i++) {
        hold(s->data[i] != CR && s->data[i] != LF && s->data[i] != '\0');
    }
}


static void
all_lines(ngx_str_t *lines, ngx_str_t *bytes, ngx_uint_t slots)
{
    ngx_str_t   rest, name, value;
    ngx_uint_t  slot;

    inside(lines, bytes);
    rest = *lines;

    while (ngx_http_idempotency_response_line(&rest, &slot, &name, &value)
           == NGX_OK)
    {
        one_line(&name, bytes);
        one_line(&value, bytes);

        hold(name.len && slot >= 1 && slot <= slots);
    }

    hold(rest.len == 0);
}


static ngx_http_request_t *
request(ngx_pool_t *pool)
{
    ngx_http_request_t  *r;

    r = ngx_pcalloc(pool, sizeof(ngx_http_request_t));
    r->pool = pool;
    r->main = r;

    hold(ngx_list_init(&r->headers_out.headers, pool, 2,
                       sizeof(ngx_table_elt_t)) == NGX_OK);
    hold(ngx_list_init(&r->headers_out.trailers, pool, 2,
                       sizeof(ngx_table_elt_t)) == NGX_OK);

    return r;
}


static void
again(ngx_pool_t *pool, ngx_http_request_t *r, ngx_uint_t head,
    ngx_http_idempotency_response_t *was)
{
    ngx_str_t                        bytes;
    ngx_buf_t                       *header, *trailers;
    ngx_http_idempotency_response_t  is;

    header = ngx_http_idempotency_response_header(r, NULL,
                                         was->has_location ? &was->location : NULL);
    trailers = ngx_http_idempotency_response_trailers(r);

    hold(header && header->last <= header->end);
    hold(trailers && trailers->last <= trailers->end);

    bytes.len = header->last - header->pos + (trailers->last - trailers->pos)
                + was->body.len;
    bytes.data = ngx_pnalloc(pool, bytes.len);

    ngx_memcpy(ngx_cpymem(ngx_cpymem(bytes.data, header->pos,
                                     header->last - header->pos),
                          trailers->pos, trailers->last - trailers->pos),
               was->body.data, was->body.len);

    hold(ngx_http_idempotency_response_decode(&bytes, head, &is) == NGX_OK);

    hold(is.status == was->status
         && is.content_length == was->content_length
         && is.last_modified == was->last_modified
         && is.body.len == was->body.len
         && is.headers.len == was->headers.len
         && is.has_location == was->has_location);
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    u_char                           made[8192];
    choice_t                         c;
    ngx_str_t                        bytes;
    ngx_pool_t                      *pool;
    ngx_uint_t                       head;
    ngx_http_request_t              *r;
    ngx_http_idempotency_response_t  response;

    if (size == 0) {
        return 0;
    }

    pool = fuzz_pool();
    head = (data[0] & 2) ? 1 : 0;

    if (data[0] & 1) {
        bytes.len = size - 1;
        bytes.data = fuzz_copy(data + 1, size - 1);

    } else {
        c.pos = data + 1;
        c.last = data + size;
        c.out = made;

        put_response(&c);

        bytes.len = c.out - made;
        bytes.data = fuzz_copy(made, bytes.len);
    }

    if (ngx_http_idempotency_response_decode(&bytes, head, &response)
        != NGX_OK)
    {
        return 0;
    }

    one_line(&response.status_line, &bytes);
    one_line(&response.content_type, &bytes);
    one_line(&response.charset, &bytes);
    one_line(&response.override_charset, &bytes);
    inside(&response.body, &bytes);

    all_lines(&response.headers, &bytes, 15);
    all_lines(&response.trailers, &bytes, 1);

    hold(response.status >= 200 && response.status < 1000);
    hold(response.content_type_len <= response.content_type.len);
    hold(response.content_length == -1
         || response.content_length == (off_t) response.body.len
         || (response.body.len == 0
             && (head || response.status == 204 || response.status == 304)));
    hold(response.last_modified < 253402300800);

    r = request(pool);

    hold(ngx_http_idempotency_response_restore(r, &response, 1) == NGX_OK);

    again(pool, r, head, &response);

    return 0;
}
