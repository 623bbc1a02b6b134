
/*
 * The encoding of a response's header block and trailers.  Numbers are of
 * variable length, the low bits first; strings stand behind their length; a
 * list of lines ends with a zero.  Decoding trusts nothing that it reads.
 */


#include "ngx_http_idempotency_headers.h"
#include "ngx_http_idempotency_response.h"


#define NGX_HTTP_IDEMPOTENCY_RESPONSE_VERSION  1

/* a number of 64 bits takes 10 bytes at most; a line has two lengths */

#define NGX_HTTP_IDEMPOTENCY_NUMBER_LEN    10
#define NGX_HTTP_IDEMPOTENCY_LINE_LEN                                        \
    (1 + 2 * NGX_HTTP_IDEMPOTENCY_NUMBER_LEN)
#define NGX_HTTP_IDEMPOTENCY_FIXED_LEN                                       \
    (2 + 9 * NGX_HTTP_IDEMPOTENCY_NUMBER_LEN)
#define NGX_HTTP_IDEMPOTENCY_ELSEWHERE_LEN                                   \
    (NGX_HTTP_IDEMPOTENCY_ORIGIN_LEN + 1                                     \
     + 2 * NGX_HTTP_IDEMPOTENCY_NUMBER_LEN)


typedef enum {
    response_allow_ranges = 0x01,
    response_single_range = 0x02,
    response_disable_not_modified = 0x04,
    response_expect_trailers = 0x08,
    response_override_charset = 0x10,
    response_elsewhere = 0x20
} response_flag_e;


/* of another location's URI */

typedef enum {
    response_origin_internal = 0x01,
    response_origin_get = 0x02
} response_origin_flag_e;


typedef struct {
    u_char      *pos;
    u_char      *last;
} response_reader_t;


static size_t response_lines_len(ngx_list_t *list);
static u_char *response_lines(u_char *p, ngx_http_request_t *r,
    ngx_list_t *list, ngx_array_t *hide);
static ngx_uint_t response_hidden(ngx_str_t *name, ngx_array_t *hide);
static ngx_int_t response_get_origin(response_reader_t *rd,
    ngx_http_idempotency_origin_t *origin);
static ngx_int_t response_restore_lines(ngx_http_request_t *r,
    response_reader_t *rd, ngx_list_t *list, ngx_uint_t cookies);
static u_char *response_number(u_char *p, uint64_t n);
static u_char *response_string(u_char *p, ngx_str_t *s);
static ngx_int_t response_get_number(response_reader_t *rd, uint64_t *n);
static ngx_int_t response_get_string(response_reader_t *rd, ngx_str_t *s);


/*
 * Never kept: hop-by-hop lines, which speak of a connection that a replay does
 * not have, and the mark of a replay, which gets our own
 */

static ngx_str_t  response_left_out[] = {
    ngx_string("idempotent-replayed"),
    ngx_string("connection"),
    ngx_string("keep-alive"),
    ngx_string("proxy-authenticate"),
    ngx_string("proxy-authorization"),
    ngx_string("proxy-connection"),
    ngx_string("te"),
    ngx_string("trailer"),
    ngx_string("transfer-encoding"),
    ngx_string("upgrade"),
    ngx_null_string
};


ngx_buf_t *
ngx_http_idempotency_response_header(ngx_http_request_t *r, ngx_array_t *hide,
    ngx_http_idempotency_origin_t *origin)
{
    size_t                   len;
    u_char                  *p, flags;
    ngx_buf_t               *b;
    ngx_str_t                charset;
    ngx_http_headers_out_t  *out;

    static ngx_str_t  none = ngx_null_string;

    out = &r->headers_out;

    charset = out->override_charset ? *out->override_charset : none;

    len = NGX_HTTP_IDEMPOTENCY_FIXED_LEN
          + out->status_line.len + out->content_type.len + out->charset.len
          + charset.len + response_lines_len(&out->headers);

    if (origin) {
        len += NGX_HTTP_IDEMPOTENCY_ELSEWHERE_LEN
               + origin->uri.len + origin->args.len;
    }

    b = ngx_create_temp_buf(r->pool, len);
    if (b == NULL) {
        return NULL;
    }

    flags = (r->allow_ranges ? response_allow_ranges : 0)
            | (r->single_range ? response_single_range : 0)
            | (r->disable_not_modified ? response_disable_not_modified : 0)
            | (r->expect_trailers ? response_expect_trailers : 0)
            | (out->override_charset ? response_override_charset : 0)
            | (origin ? response_elsewhere : 0);

    p = b->pos;

    *p++ = NGX_HTTP_IDEMPOTENCY_RESPONSE_VERSION;
    *p++ = flags;

    if (origin) {
        p = ngx_cpymem(p, origin->id, NGX_HTTP_IDEMPOTENCY_ORIGIN_LEN);
        *p++ = (origin->internal ? response_origin_internal : 0)
               | (origin->get ? response_origin_get : 0);
        p = response_string(p, &origin->uri);
        p = response_string(p, &origin->args);
    }

    p = response_number(p, out->status);
    p = response_string(p, &out->status_line);
    p = response_string(p, &out->content_type);
    p = response_number(p, out->content_type_len);
    p = response_string(p, &out->charset);
    p = response_string(p, &charset);

    /* both are -1 where there is none */

    p = response_number(p, (uint64_t) (out->content_length_n + 1));
    p = response_number(p, (uint64_t) (out->last_modified_time + 1));

    p = response_number(p, ngx_http_idempotency_slots_suppressed(out));

    b->last = response_lines(p, r, &out->headers, hide);

    return b;
}


ngx_buf_t *
ngx_http_idempotency_response_trailers(ngx_http_request_t *r)
{
    ngx_buf_t  *b;

    b = ngx_create_temp_buf(r->pool,
                            response_lines_len(&r->headers_out.trailers));
    if (b == NULL) {
        return NULL;
    }

    b->last = response_lines(b->pos, r, &r->headers_out.trailers, NULL);

    return b;
}


static size_t
response_lines_len(ngx_list_t *list)
{
    size_t            len;
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    len = 1;

    for (part = &list->part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {
            len += NGX_HTTP_IDEMPOTENCY_LINE_LEN
                   + h[i].key.len + h[i].value.len;
        }
    }

    return len;
}


static u_char *
response_lines(u_char *p, ngx_http_request_t *r, ngx_list_t *list,
    ngx_array_t *hide)
{
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    for (part = &list->part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {

            if (h[i].hash == 0 || response_hidden(&h[i].key, hide)) {
                continue;
            }

            *p++ = (u_char) ngx_http_idempotency_slot(&r->headers_out, &h[i]);
            p = response_string(p, &h[i].key);
            p = response_string(p, &h[i].value);
        }
    }

    *p++ = 0;

    return p;
}


static ngx_uint_t
response_hidden(ngx_str_t *name, ngx_array_t *hide)
{
    ngx_str_t   *s;
    ngx_uint_t   i;

    for (s = response_left_out; s->len; s++) {
        if (s->len == name->len
            && ngx_strncasecmp(s->data, name->data, s->len) == 0)
        {
            return 1;
        }
    }

    if (hide == NULL) {
        return 0;
    }

    s = hide->elts;

    for (i = 0; i < hide->nelts; i++) {
        if (s[i].len == name->len
            && ngx_strncasecmp(s[i].data, name->data, s[i].len) == 0)
        {
            return 1;
        }
    }

    return 0;
}


ngx_int_t
ngx_http_idempotency_response_origin(ngx_str_t *bytes,
    ngx_http_idempotency_origin_t *origin)
{
    response_reader_t  rd;

    if (bytes->len < 2
        || bytes->data[0] != NGX_HTTP_IDEMPOTENCY_RESPONSE_VERSION
        || (bytes->data[1] & response_elsewhere) == 0)
    {
        return NGX_DECLINED;
    }

    rd.pos = bytes->data + 2;
    rd.last = bytes->data + bytes->len;

    return response_get_origin(&rd, origin);
}


static ngx_int_t
response_get_origin(response_reader_t *rd,
    ngx_http_idempotency_origin_t *origin)
{
    u_char  flags;

    if (rd->last - rd->pos < NGX_HTTP_IDEMPOTENCY_ORIGIN_LEN + 1) {
        return NGX_ERROR;
    }

    ngx_memcpy(origin->id, rd->pos, NGX_HTTP_IDEMPOTENCY_ORIGIN_LEN);
    rd->pos += NGX_HTTP_IDEMPOTENCY_ORIGIN_LEN;

    flags = *rd->pos++;

    origin->internal = (flags & response_origin_internal) ? 1 : 0;
    origin->get = (flags & response_origin_get) ? 1 : 0;

    if (response_get_string(rd, &origin->uri) != NGX_OK
        || response_get_string(rd, &origin->args) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return NGX_OK;
}


ngx_int_t
ngx_http_idempotency_response_restore(ngx_http_request_t *r, ngx_str_t *bytes,
    ngx_uint_t cookies)
{
    u_char                          flags;
    uint64_t                        status, type_len, length, modified;
    uint64_t                        suppressed;
    ngx_str_t                       charset;
    response_reader_t               rd;
    ngx_http_headers_out_t         *out;
    ngx_http_idempotency_origin_t   origin;

    rd.pos = bytes->data;
    rd.last = bytes->data + bytes->len;

    if (bytes->len < 2 || *rd.pos++ != NGX_HTTP_IDEMPOTENCY_RESPONSE_VERSION) {
        return NGX_ERROR;
    }

    flags = *rd.pos++;
    out = &r->headers_out;

    if ((flags & response_elsewhere)
        && response_get_origin(&rd, &origin) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (response_get_number(&rd, &status) != NGX_OK
        || response_get_string(&rd, &out->status_line) != NGX_OK
        || response_get_string(&rd, &out->content_type) != NGX_OK
        || response_get_number(&rd, &type_len) != NGX_OK
        || response_get_string(&rd, &out->charset) != NGX_OK
        || response_get_string(&rd, &charset) != NGX_OK
        || response_get_number(&rd, &length) != NGX_OK
        || response_get_number(&rd, &modified) != NGX_OK
        || response_get_number(&rd, &suppressed) != NGX_OK
        || response_restore_lines(r, &rd, &out->headers, cookies) != NGX_OK
        || response_restore_lines(r, &rd, &out->trailers, cookies) != NGX_OK
        || status < 200 || status >= NGX_HTTP_IDEMPOTENCY_STATUSES
        || type_len > out->content_type.len
        || ngx_http_idempotency_slots_suppress(r, suppressed) != NGX_OK)
    {
        return NGX_ERROR;
    }

    out->status = (ngx_uint_t) status;
    out->content_type_len = (size_t) type_len;
    out->content_type_lowcase = NULL;
    out->content_type_hash = 0;
    out->content_length_n = (off_t) (length - 1);
    out->last_modified_time = (time_t) (modified - 1);

    if (flags & response_override_charset) {

        out->override_charset = ngx_palloc(r->pool, sizeof(ngx_str_t));
        if (out->override_charset == NULL) {
            return NGX_ERROR;
        }

        *out->override_charset = charset;
    }

    r->allow_ranges = (flags & response_allow_ranges) ? 1 : 0;
    r->single_range = (flags & response_single_range) ? 1 : 0;
    r->disable_not_modified = (flags & response_disable_not_modified) ? 1 : 0;
    r->expect_trailers = (flags & response_expect_trailers) ? 1 : 0;

    bytes->len = rd.last - rd.pos;
    bytes->data = rd.pos;

    return NGX_OK;
}


static ngx_int_t
response_restore_lines(ngx_http_request_t *r, response_reader_t *rd,
    ngx_list_t *list, ngx_uint_t cookies)
{
    ngx_str_t         key, value;
    ngx_uint_t        slot;
    ngx_table_elt_t  *h;

    for ( ;; ) {

        if (rd->pos == rd->last) {
            return NGX_ERROR;
        }

        slot = *rd->pos++;

        if (slot == 0) {
            return NGX_OK;
        }

        if (response_get_string(rd, &key) != NGX_OK
            || response_get_string(rd, &value) != NGX_OK)
        {
            return NGX_ERROR;
        }

        if (!cookies
            && key.len == 10
            && ngx_strncasecmp(key.data, (u_char *) "set-cookie", 10) == 0)
        {
            continue;
        }

        h = ngx_http_idempotency_header_push(r, list, &key, &value);
        if (h == NULL) {
            return NGX_ERROR;
        }

        if (ngx_http_idempotency_slot_fill(r, slot, h) != NGX_OK) {
            return NGX_ERROR;
        }
    }
}


static u_char *
response_number(u_char *p, uint64_t n)
{
    while (n >= 0x80) {
        *p++ = (u_char) (n | 0x80);
        n >>= 7;
    }

    *p++ = (u_char) n;

    return p;
}


static u_char *
response_string(u_char *p, ngx_str_t *s)
{
    p = response_number(p, s->len);

    return ngx_cpymem(p, s->data, s->len);
}


static ngx_int_t
response_get_number(response_reader_t *rd, uint64_t *n)
{
    u_char      c;
    ngx_uint_t  shift;

    *n = 0;

    for (shift = 0; rd->pos < rd->last && shift < 64; shift += 7) {
        c = *rd->pos++;
        *n |= (uint64_t) (c & 0x7f) << shift;

        if (c < 0x80) {
            return NGX_OK;
        }
    }

    return NGX_ERROR;
}


static ngx_int_t
response_get_string(response_reader_t *rd, ngx_str_t *s)
{
    uint64_t  len;

    if (response_get_number(rd, &len) != NGX_OK
        || len > (uint64_t) (rd->last - rd->pos))
    {
        return NGX_ERROR;
    }

    s->len = (size_t) len;
    s->data = rd->pos;

    rd->pos += len;

    return NGX_OK;
}
