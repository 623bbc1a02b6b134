
/*
 * The encoding of a response's header block and trailers.  Numbers are of
 * variable length, the low bits first; strings stand behind their length; a
 * list of lines ends with a zero.
 *
 * What is decoded may have been in a store that somebody else can write to, and
 * nginx's filters trust what they find in headers_out: a length that is not the
 * body's makes them send the memory behind it.  So all of it is checked, each
 * part against the others, before anything is restored; and what would not pass
 * is not encoded.
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

#define NGX_HTTP_IDEMPOTENCY_FLAGS  0x3f


/* the end of the year 9999: a later one has no place in a header line */

#define NGX_HTTP_IDEMPOTENCY_MODIFIED_MAX  253402300799ULL


/* of another location's URI */

typedef enum {
    response_origin_internal = 0x01,
    response_origin_get = 0x02
} response_origin_flag_e;

#define NGX_HTTP_IDEMPOTENCY_ORIGIN_FLAGS  0x03


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
static ngx_int_t response_get_lines(response_reader_t *rd,
    ngx_uint_t trailers, ngx_str_t *lines, off_t *length);
static ngx_int_t response_get_line(response_reader_t *rd, ngx_uint_t *slot,
    ngx_str_t *name, ngx_str_t *value);
static ngx_uint_t response_line_is_good(ngx_str_t *name, ngx_str_t *value);
static ngx_uint_t response_text_is_good(ngx_str_t *s);
static ngx_uint_t response_status_is_good(ngx_uint_t status,
    ngx_str_t *line);
static ngx_uint_t response_length_is_good(
    ngx_http_idempotency_response_t *response, ngx_uint_t head, off_t line);
static ngx_int_t response_restore_lines(ngx_http_request_t *r,
    ngx_str_t *lines, ngx_list_t *list, ngx_uint_t cookies);
static u_char *response_number(u_char *p, uint64_t n);
static u_char *response_string(u_char *p, ngx_str_t *s);
static ngx_int_t response_get_number(response_reader_t *rd, uint64_t *n);
static ngx_int_t response_get_string(response_reader_t *rd, ngx_str_t *s);


/*
 * Never kept: hop-by-hop lines, which speak of a connection that a replay does
 * not have
 */

static ngx_str_t  response_left_out[] = {
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

    if (!response_status_is_good(out->status, &out->status_line)
        || !response_text_is_good(&out->content_type)
        || !response_text_is_good(&out->charset)
        || !response_text_is_good(&charset))
    {
        return NULL;
    }

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

    return b->last ? b : NULL;
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

    return b->last ? b : NULL;
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


/* NULL: one of them could not be sent twice */

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

            if (!response_line_is_good(&h[i].key, &h[i].value)) {
                return NULL;
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
ngx_http_idempotency_response_decode(ngx_str_t *bytes, ngx_uint_t head,
    ngx_http_idempotency_response_t *response)
{
    off_t              line;
    u_char             flags;
    uint64_t           status, type_len, length, modified;
    response_reader_t  rd;

    ngx_memzero(response, sizeof(ngx_http_idempotency_response_t));

    rd.pos = bytes->data;
    rd.last = bytes->data + bytes->len;

    if (bytes->len < 2 || *rd.pos++ != NGX_HTTP_IDEMPOTENCY_RESPONSE_VERSION) {
        return NGX_ERROR;
    }

    flags = *rd.pos++;
    line = -1;

    if (flags & ~NGX_HTTP_IDEMPOTENCY_FLAGS) {
        return NGX_ERROR;
    }

    response->allow_ranges = (flags & response_allow_ranges) ? 1 : 0;
    response->single_range = (flags & response_single_range) ? 1 : 0;
    response->disable_not_modified =
                              (flags & response_disable_not_modified) ? 1 : 0;
    response->expect_trailers = (flags & response_expect_trailers) ? 1 : 0;
    response->override = (flags & response_override_charset) ? 1 : 0;
    response->elsewhere = (flags & response_elsewhere) ? 1 : 0;

    if (response->elsewhere
        && response_get_origin(&rd, &response->origin) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (response_get_number(&rd, &status) != NGX_OK
        || response_get_string(&rd, &response->status_line) != NGX_OK
        || response_get_string(&rd, &response->content_type) != NGX_OK
        || response_get_number(&rd, &type_len) != NGX_OK
        || response_get_string(&rd, &response->charset) != NGX_OK
        || response_get_string(&rd, &response->override_charset) != NGX_OK
        || response_get_number(&rd, &length) != NGX_OK
        || response_get_number(&rd, &modified) != NGX_OK
        || response_get_number(&rd, &response->suppressed) != NGX_OK
        || response_get_lines(&rd, 0, &response->headers, &line) != NGX_OK
        || response_get_lines(&rd, 1, &response->trailers, &line) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (status >= NGX_HTTP_IDEMPOTENCY_STATUSES
        || !response_status_is_good((ngx_uint_t) status,
                                    &response->status_line)
        || !response_text_is_good(&response->content_type)
        || type_len > response->content_type.len
        || !response_text_is_good(&response->charset)
        || !response_text_is_good(&response->override_charset)
        || (response->override_charset.len && !response->override)
        || length > (uint64_t) NGX_MAX_OFF_T_VALUE
        || modified > NGX_HTTP_IDEMPOTENCY_MODIFIED_MAX + 1
        || !ngx_http_idempotency_slots_known(response->suppressed))
    {
        return NGX_ERROR;
    }

    response->status = (ngx_uint_t) status;
    response->content_type_len = (size_t) type_len;
    response->content_length = (off_t) length - 1;
    response->last_modified = (time_t) modified - 1;

    response->body.data = rd.pos;
    response->body.len = rd.last - rd.pos;

    return response_length_is_good(response, head, line) ? NGX_OK : NGX_ERROR;
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

    if ((flags & ~NGX_HTTP_IDEMPOTENCY_ORIGIN_FLAGS)
        || response_get_string(rd, &origin->uri) != NGX_OK
        || response_get_string(rd, &origin->args) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* a line that tells the length, of which there may be several, is found on the
   way */

static ngx_int_t
response_get_lines(response_reader_t *rd, ngx_uint_t trailers,
    ngx_str_t *lines, off_t *length)
{
    off_t       n;
    ngx_int_t   rc;
    ngx_str_t   name, value;
    ngx_uint_t  slot;

    lines->data = rd->pos;

    for ( ;; ) {
        rc = response_get_line(rd, &slot, &name, &value);

        if (rc == NGX_DONE) {
            lines->len = rd->pos - lines->data;
            return NGX_OK;
        }

        if (rc != NGX_OK
            || !response_line_is_good(&name, &value)
            || response_hidden(&name, NULL)
            || !ngx_http_idempotency_slot_is(slot, &name)
            || (trailers && slot != 1))
        {
            return NGX_ERROR;
        }

        if (trailers
            || name.len != 14
            || ngx_strncasecmp(name.data, (u_char *) "content-length", 14)
               != 0)
        {
            continue;
        }

        n = ngx_atoof(value.data, value.len);

        if (n == NGX_ERROR || (*length != -1 && n != *length)) {
            return NGX_ERROR;
        }

        *length = n;
    }
}


/* NGX_DONE: there is no other */

static ngx_int_t
response_get_line(response_reader_t *rd, ngx_uint_t *slot, ngx_str_t *name,
    ngx_str_t *value)
{
    if (rd->pos == rd->last) {
        return NGX_ERROR;
    }

    *slot = *rd->pos++;

    if (*slot == 0) {
        return NGX_DONE;
    }

    if (response_get_string(rd, name) != NGX_OK
        || response_get_string(rd, value) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return NGX_OK;
}


static ngx_uint_t
response_line_is_good(ngx_str_t *name, ngx_str_t *value)
{
    u_char  c;
    size_t  i;

    for (i = 0; i < name->len; i++) {
        c = name->data[i];

        if (c <= ' ' || c == 0x7f || c == ':') {
            return 0;
        }
    }

    return name->len && response_text_is_good(value);
}


static ngx_uint_t
response_text_is_good(ngx_str_t *s)
{
    size_t  i;

    for (i = 0; i < s->len; i++) {
        if (s->data[i] == CR || s->data[i] == LF || s->data[i] == '\0') {
            return 0;
        }
    }

    return 1;
}


/* the line is what a client reads, the number what all else goes by */

static ngx_uint_t
response_status_is_good(ngx_uint_t status, ngx_str_t *line)
{
    if (status < 200 || status >= NGX_HTTP_IDEMPOTENCY_STATUSES) {
        return 0;
    }

    if (line->len == 0) {
        return 1;
    }

    return line->len >= 3
           && ngx_atoi(line->data, 3) == (ngx_int_t) status
           && (line->len == 3 || line->data[3] == ' ')
           && response_text_is_good(line);
}


/* `line`: what a line of the header block says, or -1 */

static ngx_uint_t
response_length_is_good(ngx_http_idempotency_response_t *response,
    ngx_uint_t head, off_t line)
{
    off_t  size;

    size = (off_t) response->body.len;

    if (head
        || response->status == NGX_HTTP_NO_CONTENT
        || response->status == NGX_HTTP_NOT_MODIFIED)
    {
        return size == 0;
    }

    return (response->content_length == -1 || response->content_length == size)
           && (line == -1 || line == size);
}


ngx_int_t
ngx_http_idempotency_response_restore(ngx_http_request_t *r,
    ngx_http_idempotency_response_t *response, ngx_uint_t cookies)
{
    ngx_http_headers_out_t  *out;

    out = &r->headers_out;

    out->status = response->status;
    out->status_line = response->status_line;
    out->content_type = response->content_type;
    out->content_type_len = response->content_type_len;
    out->content_type_lowcase = NULL;
    out->content_type_hash = 0;
    out->charset = response->charset;
    out->content_length_n = response->content_length;
    out->last_modified_time = response->last_modified;

    if (response->override) {

        out->override_charset = ngx_palloc(r->pool, sizeof(ngx_str_t));
        if (out->override_charset == NULL) {
            return NGX_ERROR;
        }

        *out->override_charset = response->override_charset;
    }

    if (response_restore_lines(r, &response->headers, &out->headers, cookies)
        != NGX_OK
        || response_restore_lines(r, &response->trailers, &out->trailers,
                                  cookies)
           != NGX_OK
        || ngx_http_idempotency_slots_suppress(r, response->suppressed)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    r->allow_ranges = response->allow_ranges;
    r->single_range = response->single_range;
    r->disable_not_modified = response->disable_not_modified;
    r->expect_trailers = response->expect_trailers;

    return NGX_OK;
}


ngx_int_t
ngx_http_idempotency_response_line(ngx_str_t *rest, ngx_uint_t *slot,
    ngx_str_t *name, ngx_str_t *value)
{
    ngx_int_t          rc;
    response_reader_t  rd;

    rd.pos = rest->data;
    rd.last = rest->data + rest->len;

    rc = response_get_line(&rd, slot, name, value);

    rest->data = rd.pos;
    rest->len = rd.last - rd.pos;

    return rc;
}


static ngx_int_t
response_restore_lines(ngx_http_request_t *r, ngx_str_t *lines,
    ngx_list_t *list, ngx_uint_t cookies)
{
    ngx_str_t         rest, name, value;
    ngx_uint_t        slot;
    ngx_table_elt_t  *h;

    rest = *lines;

    while (ngx_http_idempotency_response_line(&rest, &slot, &name, &value)
           == NGX_OK)
    {

        if (!cookies
            && name.len == 10
            && ngx_strncasecmp(name.data, (u_char *) "set-cookie", 10) == 0)
        {
            continue;
        }

        h = ngx_http_idempotency_header_push(r, list, &name, &value);
        if (h == NULL) {
            return NGX_ERROR;
        }

        if (ngx_http_idempotency_slot_fill(r, slot, h) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
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

        /* more bits than there are, or fewer than were written */

        if ((shift == 63 && c > 1) || (shift && c == 0)) {
            return NGX_ERROR;
        }

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
