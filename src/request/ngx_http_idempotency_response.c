
/*
 * Header lines by name, a response of ours in one piece, and a response as the
 * store keeps it, encoded and decoded: the header block, the trailers, the
 * places of header lines in headers_out, and the location that made the
 * response.
 *
 * Numbers have a variable length, the low bits first; a string follows its
 * length; a list of lines ends with a zero.
 *
 * CHECKED   Other programs may write to a store, and nginx's filters trust
 *           headers_out: a length that is not the body's makes them send the
 *           memory behind the body.  So each part of a decoded response is
 *           checked, also against the others, before anything is restored.  A
 *           response that would not pass these checks is not encoded.
 * LOCATION  If internal redirects led to another location than the claim's, a
 *           replay is sent with that location's settings: so the filters treat
 *           it as the original.  A location is known by its way down from the
 *           server: the kind and name of each step, and its number among equal
 *           ones.  So a reload that keeps the location keeps it known.  The
 *           server is that of the replay's request.
 */


#include "ngx_http_idempotency_response.h"


#define NGX_HTTP_IDEMPOTENCY_RESPONSE_VERSION  1

/* a number of 64 bits has 10 bytes at most; a line has two lengths */

#define NGX_HTTP_IDEMPOTENCY_NUMBER_LEN    10
#define NGX_HTTP_IDEMPOTENCY_LINE_LEN                                        \
    (1 + 2 * NGX_HTTP_IDEMPOTENCY_NUMBER_LEN)
#define NGX_HTTP_IDEMPOTENCY_FIXED_LEN                                       \
    (2 + 9 * NGX_HTTP_IDEMPOTENCY_NUMBER_LEN)
#define NGX_HTTP_IDEMPOTENCY_PLACE_LEN                                   \
    (NGX_HTTP_IDEMPOTENCY_LOCATION_LEN + 1                                     \
     + 2 * NGX_HTTP_IDEMPOTENCY_NUMBER_LEN)

typedef enum {
    response_allow_ranges = 0x01,
    response_single_range = 0x02,
    response_disable_not_modified = 0x04,
    response_expect_trailers = 0x08,
    response_override_charset = 0x10,
    response_has_location = 0x20
} response_flag_e;

#define NGX_HTTP_IDEMPOTENCY_FLAGS  0x3f

/* the end of the year 9999: header lines have no later time; and as long
   before 1970 */

#define NGX_HTTP_IDEMPOTENCY_MODIFIED_MAX  253402300799ULL

/* how the request came to the other location */

typedef enum {
    response_location_internal = 0x01,
    response_location_get = 0x02
} response_location_flag_e;

#define NGX_HTTP_IDEMPOTENCY_LOCATION_FLAGS  0x03

typedef struct {
    void                        **srv_conf;
    void                        **loc_conf;

    /* the index of the location around this one; 0: the http level */
    ngx_uint_t                    parent;
    /* how many locations of the same kind and name stand before this one */
    ngx_uint_t                    ordinal;
    /* how many blocks without a name this location contains */
    ngx_uint_t                    nameless;

    u_char                        id[NGX_HTTP_IDEMPOTENCY_LOCATION_LEN];
} location_entry_t;


static size_t response_lines_len(ngx_list_t *list);
static u_char *response_lines(u_char *p, ngx_http_request_t *r,
    ngx_list_t *list, ngx_array_t *hide);
static ngx_uint_t response_hidden(ngx_str_t *name, ngx_array_t *hide);
static ngx_uint_t response_names(ngx_str_t *names, ngx_uint_t n,
    ngx_str_t *name);
static ngx_int_t response_get_location(ngx_str_t *rest,
    ngx_http_idempotency_location_t *location);
static ngx_int_t response_get_lines(ngx_str_t *rest, ngx_uint_t trailers,
    ngx_str_t *lines, off_t *length);
static ngx_uint_t response_line_is_good(ngx_str_t *name, ngx_str_t *value);
static ngx_uint_t response_text_is_good(ngx_str_t *s);
static ngx_uint_t response_status_is_good(ngx_uint_t status,
    ngx_str_t *line);
static ngx_uint_t response_time_is_good(uint64_t time);
static ngx_uint_t response_length_is_good(
    ngx_http_idempotency_response_t *response, ngx_uint_t head, off_t line);
static ngx_int_t response_restore_lines(ngx_http_request_t *r,
    ngx_str_t *lines, ngx_list_t *list, ngx_uint_t cookies);
static u_char *response_number(u_char *p, uint64_t n);
static u_char *response_string(u_char *p, ngx_str_t *s);
static ngx_int_t response_get_number(ngx_str_t *rest, uint64_t *n);
static ngx_int_t response_get_string(ngx_str_t *rest, ngx_str_t *s);
static u_char location_kind(ngx_http_core_loc_conf_t *clcf);
static ngx_uint_t location_ordinal(ngx_array_t *entries, ngx_uint_t parent,
    ngx_http_core_loc_conf_t *clcf);
static void location_id(location_entry_t *entry, location_entry_t *parent);
static ngx_http_core_loc_conf_t *location_core(location_entry_t *entry);
static void location_captures(ngx_http_request_t *r);
static ngx_int_t place_fill(ngx_http_request_t *r, ngx_uint_t place,
    ngx_table_elt_t *h);
static ngx_uint_t place_of(ngx_http_headers_out_t *out, ngx_table_elt_t *h);
static ngx_uint_t places_suppressed(ngx_http_headers_out_t *out);
static ngx_int_t places_suppress(ngx_http_request_t *r, uint64_t bits);


/* Hop-by-hop lines are never kept: they are about a connection that a replay
   does not have. */

static ngx_str_t  response_left_out[] = {
    ngx_string("connection"),
    ngx_string("keep-alive"),
    ngx_string("proxy-authenticate"),
    ngx_string("proxy-authorization"),
    ngx_string("proxy-connection"),
    ngx_string("te"),
    ngx_string("trailer"),
    ngx_string("transfer-encoding"),
    ngx_string("upgrade")
};

typedef struct {
    char    *name;
    size_t   offset;
} place_t;

#define place(name, member)                                                   \
    { name, offsetof(ngx_http_headers_out_t, member) }

/* Places in headers_out.  A line's place is encoded as 2 plus the index here,
   or as 1 if the line has none. */

static place_t  places[] = {
    place("Server", server),
    place("Date", date),
    place("Content-Length", content_length),
    place("Content-Encoding", content_encoding),
    place("Location", location),
    place("Refresh", refresh),
    place("Last-Modified", last_modified),
    place("Content-Range", content_range),
    place("Accept-Ranges", accept_ranges),
    place("WWW-Authenticate", www_authenticate),
    place("Expires", expires),
    place("ETag", etag),

    /* before 1.23.0 these places are arrays, and stand last */
    place("Cache-Control", cache_control),
    place("Link", link)
};

#define NGX_HTTP_IDEMPOTENCY_PLACES         (sizeof(places) / sizeof(places[0]))
#define NGX_HTTP_IDEMPOTENCY_PLACES_SINGLE  (NGX_HTTP_IDEMPOTENCY_PLACES - 2)


ngx_table_elt_t *
ngx_http_idempotency_header_next(ngx_http_request_t *r, char *name,
    ngx_table_elt_t *last)
{
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    for (part = &r->headers_in.headers.part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {

            if (last) {
                last = (last == &h[i]) ? NULL : last;

            } else if (ngx_http_idempotency_header_is(&h[i], name)) {
                return &h[i];
            }
        }
    }

    return NULL;
}


ngx_table_elt_t *
ngx_http_idempotency_header_of(ngx_list_t *list, char *name)
{
    size_t            len;
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    len = ngx_strlen(name);

    for (part = &list->part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {

            if (h[i].hash && h[i].key.len == len
                && ngx_strncasecmp(h[i].key.data, (u_char *) name, len) == 0)
            {
                return &h[i];
            }
        }
    }

    return NULL;
}


ngx_table_elt_t *
ngx_http_idempotency_header_push(ngx_http_request_t *r, ngx_list_t *list,
    ngx_str_t *key, ngx_str_t *value)
{
    ngx_table_elt_t  *h;

    h = ngx_list_push(list);
    if (h == NULL) {
        return NULL;
    }

    h->key = *key;
    h->value = *value;

    /* as add_header sets it: the line is not deleted, and nginx needs no
       more */

    h->hash = 1;
    h->lowcase_key = NULL;

#if (nginx_version >= 1023000)
    h->next = NULL;
#endif

    return h;
}


/* sends a response with a body in one piece, from the top of all filters */

ngx_int_t
ngx_http_idempotency_send(ngx_http_request_t *r, ngx_str_t *body,
    ngx_file_t *file)
{
    ngx_int_t     rc;
    ngx_buf_t    *b;
    ngx_chain_t   out;

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    if (body->len == 0) {
        return ngx_http_send_special(r, NGX_HTTP_LAST);
    }

    b = ngx_calloc_buf(r->pool);
    if (b == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (file) {
        b->file = file;
        b->file_last = body->len;
        b->in_file = 1;
        b->temp_file = 1;

    } else {
        b->start = body->data;
        b->pos = body->data;
        b->last = body->data + body->len;
        b->end = b->last;
        b->temporary = 1;
    }

    b->last_buf = 1;
    b->last_in_chain = 1;

    out.buf = b;
    out.next = NULL;

    return ngx_http_output_filter(r, &out);
}


ngx_buf_t *
ngx_http_idempotency_response_header(ngx_http_request_t *r, ngx_array_t *hide,
    ngx_http_idempotency_location_t *location)
{
    size_t                   len;
    time_t                   modified;
    u_char                  *p, flags;
    ngx_buf_t               *b;
    ngx_str_t                charset, type;
    ngx_http_headers_out_t  *out;

    static ngx_str_t  none = ngx_null_string;
    static ngx_str_t  type_name = ngx_string("Content-Type");
    static ngx_str_t  modified_name = ngx_string("Last-Modified");

    out = &r->headers_out;

    /* nginx writes these two lines itself */

    type = response_hidden(&type_name, hide) ? none : out->content_type;
    modified = response_hidden(&modified_name, hide)
                   ? -1 : out->last_modified_time;

    charset = out->override_charset ? *out->override_charset : none;

    if (!response_status_is_good(out->status, &out->status_line)
        || !response_time_is_good((uint64_t) modified)
        || !response_text_is_good(&type)
        || !response_text_is_good(&out->charset)
        || !response_text_is_good(&charset))
    {
        return NULL;
    }

    len = NGX_HTTP_IDEMPOTENCY_FIXED_LEN
          + out->status_line.len + type.len + out->charset.len
          + charset.len + response_lines_len(&out->headers);

    if (location) {
        len += NGX_HTTP_IDEMPOTENCY_PLACE_LEN
               + location->uri.len + location->args.len;
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
            | (location ? response_has_location : 0);

    p = b->pos;

    *p++ = NGX_HTTP_IDEMPOTENCY_RESPONSE_VERSION;
    *p++ = flags;

    if (location) {
        p = ngx_cpymem(p, location->id, NGX_HTTP_IDEMPOTENCY_LOCATION_LEN);
        *p++ = (location->internal ? response_location_internal : 0)
               | (location->get ? response_location_get : 0);
        p = response_string(p, &location->uri);
        p = response_string(p, &location->args);
    }

    p = response_number(p, out->status);
    p = response_string(p, &out->status_line);
    p = response_string(p, &type);
    p = response_number(p, ngx_min(out->content_type_len, type.len));
    p = response_string(p, &out->charset);
    p = response_string(p, &charset);

    /* -1 means that there is none */

    p = response_number(p, (uint64_t) (out->content_length_n + 1));
    p = response_number(p, (uint64_t) (modified + 1));

    p = response_number(p, places_suppressed(out));

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


/* NULL: one of the lines could not be sent twice */

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

            *p++ = (u_char) place_of(&r->headers_out, &h[i]);
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
    return response_names(response_left_out,
                          sizeof(response_left_out) / sizeof(ngx_str_t), name)
           || (hide && response_names(hide->elts, hide->nelts, name));
}


static ngx_uint_t
response_names(ngx_str_t *names, ngx_uint_t n, ngx_str_t *name)
{
    ngx_uint_t  i;

    for (i = 0; i < n; i++) {
        if (names[i].len == name->len
            && ngx_strncasecmp(names[i].data, name->data, name->len) == 0)
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
    off_t      line;
    uint64_t   status, type_len, length, modified;
    ngx_str_t  rest;

    ngx_memzero(response, sizeof(ngx_http_idempotency_response_t));

    if (bytes->len < 2
        || bytes->data[0] != NGX_HTTP_IDEMPOTENCY_RESPONSE_VERSION
        || bytes->data[1] & ~NGX_HTTP_IDEMPOTENCY_FLAGS)
    {
        return NGX_ERROR;
    }

    rest.data = bytes->data + 2;
    rest.len = bytes->len - 2;

    line = -1;

    response->flags = bytes->data[1];
    response->has_location = (response->flags & response_has_location) ? 1 : 0;

    if (response->has_location
        && response_get_location(&rest, &response->location) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (response_get_number(&rest, &status) != NGX_OK
        || response_get_string(&rest, &response->status_line) != NGX_OK
        || response_get_string(&rest, &response->content_type) != NGX_OK
        || response_get_number(&rest, &type_len) != NGX_OK
        || response_get_string(&rest, &response->charset) != NGX_OK
        || response_get_string(&rest, &response->override_charset) != NGX_OK
        || response_get_number(&rest, &length) != NGX_OK
        || response_get_number(&rest, &modified) != NGX_OK
        || response_get_number(&rest, &response->suppressed) != NGX_OK
        || response_get_lines(&rest, 0, &response->headers, &line) != NGX_OK
        || response_get_lines(&rest, 1, &response->trailers, &line) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (status >= NGX_HTTP_IDEMPOTENCY_CODES
        || !response_status_is_good((ngx_uint_t) status,
                                    &response->status_line)
        || !response_text_is_good(&response->content_type)
        || type_len > response->content_type.len
        || !response_text_is_good(&response->charset)
        || !response_text_is_good(&response->override_charset)
        || (response->override_charset.len
            && !(response->flags & response_override_charset))
        || length > (uint64_t) NGX_MAX_OFF_T_VALUE
        || !response_time_is_good(modified - 1)
        || response->suppressed >> NGX_HTTP_IDEMPOTENCY_PLACES_SINGLE)
    {
        return NGX_ERROR;
    }

    response->status = (ngx_uint_t) status;
    response->content_type_len = (size_t) type_len;
    response->content_length = (off_t) length - 1;
    response->last_modified = (time_t) modified - 1;
    response->body = rest;

    return response_length_is_good(response, head, line) ? NGX_OK : NGX_ERROR;
}


static ngx_int_t
response_get_location(ngx_str_t *rest,
    ngx_http_idempotency_location_t *location)
{
    u_char  flags;

    if (rest->len < NGX_HTTP_IDEMPOTENCY_LOCATION_LEN + 1) {
        return NGX_ERROR;
    }

    ngx_memcpy(location->id, rest->data, NGX_HTTP_IDEMPOTENCY_LOCATION_LEN);
    flags = rest->data[NGX_HTTP_IDEMPOTENCY_LOCATION_LEN];

    rest->data += NGX_HTTP_IDEMPOTENCY_LOCATION_LEN + 1;
    rest->len -= NGX_HTTP_IDEMPOTENCY_LOCATION_LEN + 1;

    location->internal = (flags & response_location_internal) ? 1 : 0;
    location->get = (flags & response_location_get) ? 1 : 0;

    if ((flags & ~NGX_HTTP_IDEMPOTENCY_LOCATION_FLAGS)
        || response_get_string(rest, &location->uri) != NGX_OK
        || response_get_string(rest, &location->args) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* checks Content-Length lines on the way; there may be several */

static ngx_int_t
response_get_lines(ngx_str_t *rest, ngx_uint_t trailers, ngx_str_t *lines,
    off_t *length)
{
    off_t       n;
    ngx_int_t   rc;
    ngx_str_t   name, value;
    ngx_uint_t  place;

    lines->data = rest->data;

    for ( ;; ) {
        rc = ngx_http_idempotency_response_line(rest, &place, &name, &value);

        if (rc == NGX_DONE) {
            lines->len = rest->data - lines->data;
            return NGX_OK;
        }

        if (rc != NGX_OK
            || !response_line_is_good(&name, &value)
            || response_hidden(&name, NULL)
            || (place > 1
                && (trailers || place >= NGX_HTTP_IDEMPOTENCY_PLACES + 2
                    || !ngx_idempotency_equal(&name, places[place - 2].name))))
        {
            return NGX_ERROR;
        }

        if (trailers || !ngx_idempotency_equal(&name, "content-length")) {
            continue;
        }

        n = ngx_atoof(value.data, value.len);

        if (n == NGX_ERROR || (*length != -1 && n != *length)) {
            return NGX_ERROR;
        }

        *length = n;
    }
}


ngx_int_t
ngx_http_idempotency_response_line(ngx_str_t *rest, ngx_uint_t *place,
    ngx_str_t *name, ngx_str_t *value)
{
    if (rest->len == 0) {
        return NGX_ERROR;
    }

    *place = *rest->data++;
    rest->len--;

    if (*place == 0) {
        return NGX_DONE;
    }

    if (response_get_string(rest, name) != NGX_OK
        || response_get_string(rest, value) != NGX_OK)
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


/* clients read the status line, all others the number: they must agree */

static ngx_uint_t
response_status_is_good(ngx_uint_t status, ngx_str_t *line)
{
    if (status < 200 || status >= NGX_HTTP_IDEMPOTENCY_CODES) {
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


/* a time before 1970 is negative */

static ngx_uint_t
response_time_is_good(uint64_t time)
{
    return time + NGX_HTTP_IDEMPOTENCY_MODIFIED_MAX
           <= 2 * NGX_HTTP_IDEMPOTENCY_MODIFIED_MAX;
}


/* line: the Content-Length of the header block, or -1 */

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
    ngx_uint_t               flags;
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

    if (response->flags & response_override_charset) {

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
        || places_suppress(r, response->suppressed)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    flags = response->flags;

    r->allow_ranges = (flags & response_allow_ranges) ? 1 : 0;
    r->single_range = (flags & response_single_range) ? 1 : 0;
    r->disable_not_modified = (flags & response_disable_not_modified) ? 1 : 0;
    r->expect_trailers = (flags & response_expect_trailers) ? 1 : 0;

    return NGX_OK;
}


static ngx_int_t
response_restore_lines(ngx_http_request_t *r, ngx_str_t *lines,
    ngx_list_t *list, ngx_uint_t cookies)
{
    ngx_str_t         rest, name, value;
    ngx_uint_t        place;
    ngx_table_elt_t  *h;

    rest = *lines;

    while (ngx_http_idempotency_response_line(&rest, &place, &name, &value)
           == NGX_OK)
    {
        if (!cookies && ngx_idempotency_equal(&name, "set-cookie")) {
            continue;
        }

        h = ngx_http_idempotency_header_push(r, list, &name, &value);

        if (h == NULL
            || (place > 1 && place_fill(r, place - 2, h) != NGX_OK))
        {
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
response_get_number(ngx_str_t *rest, uint64_t *n)
{
    u_char  c;
    size_t  i;

    /* most numbers have one byte */

    if (rest->len && rest->data[0] < 0x80) {
        *n = *rest->data++;
        rest->len--;
        return NGX_OK;
    }

    *n = 0;

    for (i = 0; i < rest->len && i < NGX_HTTP_IDEMPOTENCY_NUMBER_LEN; i++) {
        c = rest->data[i];
        *n |= (uint64_t) (c & 0x7f) << (7 * i);

        /* more than 64 bits, or an encoding that is longer than needed */

        if ((i == NGX_HTTP_IDEMPOTENCY_NUMBER_LEN - 1 && c > 1)
            || (i && c == 0))
        {
            return NGX_ERROR;
        }

        if (c < 0x80) {
            rest->data += i + 1;
            rest->len -= i + 1;
            return NGX_OK;
        }
    }

    return NGX_ERROR;
}


static ngx_int_t
response_get_string(ngx_str_t *rest, ngx_str_t *s)
{
    uint64_t  len;

    if (response_get_number(rest, &len) != NGX_OK || len > rest->len) {
        return NGX_ERROR;
    }

    s->len = (size_t) len;
    s->data = rest->data;

    rest->data += s->len;
    rest->len -= s->len;

    return NGX_OK;
}


#if (nginx_version >= 1023000)

/* each place is the head of a list of lines */

static ngx_uint_t
place_of(ngx_http_headers_out_t *out, ngx_table_elt_t *h)
{
    ngx_uint_t        i;
    ngx_table_elt_t  *place;

    for (i = 0; i < NGX_HTTP_IDEMPOTENCY_PLACES; i++) {
        place = *(ngx_table_elt_t **) ((u_char *) out + places[i].offset);

        for ( /* void */ ; place; place = place->next) {
            if (place == h) {
                return i + 2;
            }
        }
    }

    return 1;
}


static ngx_int_t
place_fill(ngx_http_request_t *r, ngx_uint_t place, ngx_table_elt_t *h)
{
    ngx_table_elt_t  **ph;

    ph = (ngx_table_elt_t **) ((u_char *) &r->headers_out
                               + places[place].offset);

    while (*ph) {
        ph = &(*ph)->next;
    }

    *ph = h;

    return NGX_OK;
}

#else

static ngx_uint_t
place_of(ngx_http_headers_out_t *out, ngx_table_elt_t *h)
{
    ngx_uint_t         i, n;
    ngx_array_t       *lines;
    ngx_table_elt_t  **ph;

    for (i = 0; i < NGX_HTTP_IDEMPOTENCY_PLACES_SINGLE; i++) {
        if (*(ngx_table_elt_t **) ((u_char *) out + places[i].offset) == h) {
            return i + 2;
        }
    }

    for ( /* void */ ; i < NGX_HTTP_IDEMPOTENCY_PLACES; i++) {
        lines = (ngx_array_t *) ((u_char *) out + places[i].offset);
        ph = lines->elts;

        for (n = 0; n < lines->nelts; n++) {
            if (ph[n] == h) {
                return i + 2;
            }
        }
    }

    return 1;
}


static ngx_int_t
place_fill(ngx_http_request_t *r, ngx_uint_t place, ngx_table_elt_t *h)
{
    u_char            *p;
    ngx_array_t       *lines;
    ngx_table_elt_t  **ph;

    p = (u_char *) &r->headers_out + places[place].offset;

    if (place < NGX_HTTP_IDEMPOTENCY_PLACES_SINGLE) {
        *(ngx_table_elt_t **) p = h;
        return NGX_OK;
    }

    lines = (ngx_array_t *) p;

    if (lines->elts == NULL
        && ngx_array_init(lines, r->pool, 1, sizeof(ngx_table_elt_t *))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    ph = ngx_array_push(lines);
    if (ph == NULL) {
        return NGX_ERROR;
    }

    *ph = h;

    return NGX_OK;
}

#endif


/* a bit for each place whose line is not sent */

static ngx_uint_t
places_suppressed(ngx_http_headers_out_t *out)
{
    ngx_uint_t        i, bits;
    ngx_table_elt_t  *h;

    bits = 0;

    for (i = 0; i < NGX_HTTP_IDEMPOTENCY_PLACES_SINGLE; i++) {
        h = *(ngx_table_elt_t **) ((u_char *) out + places[i].offset);

#if (nginx_version >= 1023000)

        while (h && h->hash == 0 && h->next) {
            h = h->next;
        }

#endif

        if (h && h->hash == 0) {
            bits |= (ngx_uint_t) 1 << i;
        }
    }

    return bits;
}


/* puts a deleted line, which no list of lines has, into each of these
   places */

static ngx_int_t
places_suppress(ngx_http_request_t *r, uint64_t bits)
{
    ngx_uint_t        i;
    ngx_table_elt_t  *h, **ph;

    for (i = 0; i < NGX_HTTP_IDEMPOTENCY_PLACES_SINGLE; i++) {

        if ((bits & ((uint64_t) 1 << i)) == 0) {
            continue;
        }

        ph = (ngx_table_elt_t **) ((u_char *) &r->headers_out
                                   + places[i].offset);

        if (*ph) {
            continue;
        }

        h = ngx_pcalloc(r->pool, sizeof(ngx_table_elt_t));
        if (h == NULL) {
            return NGX_ERROR;
        }

        h->key.data = (u_char *) "";
        h->value.data = (u_char *) "";
        h->lowcase_key = (u_char *) "";

        *ph = h;
    }

    return NGX_OK;
}


/*
 * Called when a location's settings are merged; the locations around it were
 * added before.  The first entry stands for the http level, and has index 0.
 */

ngx_int_t
ngx_http_idempotency_location_add(ngx_conf_t *cf, ngx_uint_t parent,
    ngx_uint_t *index)
{
    ngx_array_t                       *entries;
    location_entry_t                  *entry;
    ngx_http_conf_ctx_t               *ctx;
    ngx_http_core_loc_conf_t          *clcf;
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);
    entries = &imcf->location_entries;

    if (entries->elts == NULL) {

        if (ngx_array_init(entries, cf->pool, 16, sizeof(location_entry_t))
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        ngx_memzero(ngx_array_push(entries), sizeof(location_entry_t));
    }

    *index = entries->nelts;

    entry = ngx_array_push(entries);
    if (entry == NULL) {
        return NGX_ERROR;
    }

    ngx_memzero(entry, sizeof(location_entry_t));

    ctx = cf->ctx;

    entry->srv_conf = ctx->srv_conf;
    entry->loc_conf = ctx->loc_conf;
    entry->parent = parent;

    if (parent == 0) {
        return NGX_OK;
    }

    clcf = location_core(entry);

    entry->ordinal = location_ordinal(entries, parent, clcf);

    if (clcf->noname) {
        ((location_entry_t *) entries->elts)[parent].nameless++;
    }

    return NGX_OK;
}


static u_char
location_kind(ngx_http_core_loc_conf_t *clcf)
{
    if (clcf->noname) {
        return clcf->lmt_excpt ? 'l' : 'i';
    }

    if (clcf->named) {
        return '@';
    }

#if (NGX_PCRE)
    if (clcf->regex) {
        return '~';
    }
#endif

    return clcf->exact_match ? '=' : '/';
}


static ngx_uint_t
location_ordinal(ngx_array_t *entries, ngx_uint_t parent,
    ngx_http_core_loc_conf_t *clcf)
{
    u_char                     kind;
    ngx_uint_t                 i;
    location_entry_t          *entry;
    ngx_http_core_loc_conf_t  *other;

    kind = location_kind(clcf);

    if (kind == '=' || kind == '/') {
        /* nginx refuses two of them */
        return 0;
    }

    entry = entries->elts;

    for (i = entries->nelts - 2; i > parent; i--) {

        if (entry[i].parent != parent) {
            continue;
        }

        other = location_core(&entry[i]);

        if (location_kind(other) == kind
            && other->name.len == clcf->name.len
            && ngx_strncmp(other->name.data, clcf->name.data, clcf->name.len)
               == 0)
        {
            return entry[i].ordinal + 1;
        }
    }

    return 0;
}


/* called when all locations are known */

void
ngx_http_idempotency_location_init(ngx_conf_t *cf)
{
    ngx_uint_t                         i;
    location_entry_t                  *entry;
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);
    entry = imcf->location_entries.elts;

    for (i = 1; i < imcf->location_entries.nelts; i++) {
        if (entry[i].parent) {
            location_id(&entry[i], &entry[entry[i].parent]);
        }
    }
}


/* Only their order tells blocks without a name apart.  If one comes or goes,
   all of them get other ids. */

static void
location_id(location_entry_t *entry, location_entry_t *parent)
{
    u_char                     id[NGX_IDEMPOTENCY_DIGEST_LEN];
    u_char                     step[2 + 2 * NGX_INT_T_LEN];
    ngx_str_t                  s;
    ngx_idempotency_digest_t   d;
    ngx_http_core_loc_conf_t  *clcf;

    clcf = location_core(entry);

    ngx_idempotency_digest_init(&d, NULL, NGX_IDEMPOTENCY_DIGEST_OTHER_VERSION,
                                NGX_IDEMPOTENCY_DIGEST_PLACE);

    s.data = parent->id;
    s.len = NGX_HTTP_IDEMPOTENCY_LOCATION_LEN;
    ngx_idempotency_digest_field(&d, &s);

    s.data = step;
    s.len = ngx_sprintf(step, "%c%ui/%ui", location_kind(clcf), entry->ordinal,
                        clcf->noname ? parent->nameless : 0)
            - step;
    ngx_idempotency_digest_field(&d, &s);
    ngx_idempotency_digest_field(&d, &clcf->name);

    ngx_idempotency_digest_final(&d, id);
    ngx_memcpy(entry->id, id, NGX_HTTP_IDEMPOTENCY_LOCATION_LEN);
}


static ngx_http_core_loc_conf_t *
location_core(location_entry_t *entry)
{
    return entry->loc_conf[ngx_http_core_module.ctx_index];
}


/* the location of the request; NGX_DECLINED: it could not be found again */

ngx_int_t
ngx_http_idempotency_location_of(ngx_http_request_t *r,
    ngx_http_idempotency_location_t *location)
{
    location_entry_t                  *entry;
    ngx_http_idempotency_loc_conf_t   *conf;
    ngx_http_idempotency_main_conf_t  *imcf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);
    imcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    if (conf->location == 0) {
        return NGX_DECLINED;
    }

    entry = (location_entry_t *) imcf->location_entries.elts + conf->location;

    ngx_memcpy(location->id, entry->id, NGX_HTTP_IDEMPOTENCY_LOCATION_LEN);

    location->internal = r->internal;
    location->get = (r->method == NGX_HTTP_GET);
    location->uri = r->uri;
    location->args = r->args;

    return NGX_OK;
}


/* the location's configuration; NULL: the location has gone */

void **
ngx_http_idempotency_location_find(ngx_http_request_t *r,
    ngx_http_idempotency_location_t *location)
{
    ngx_uint_t                         i;
    location_entry_t                  *entry;
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);
    entry = imcf->location_entries.elts;

    for (i = 1; i < imcf->location_entries.nelts; i++) {

        if (entry[i].srv_conf == r->srv_conf
            && ngx_memcmp(entry[i].id, location->id,
                          NGX_HTTP_IDEMPOTENCY_LOCATION_LEN)
               == 0)
        {
            return entry[i].loc_conf;
        }
    }

    return NULL;
}


/* moves the request there, as an internal redirect would */

void
ngx_http_idempotency_location_enter(ngx_http_request_t *r,
    ngx_http_idempotency_location_t *location, void **loc_conf)
{
    r->uri = location->uri;
    r->args = location->args;
    ngx_http_set_exten(r);

    r->internal = location->internal;
    r->valid_unparsed_uri = 0;

    if (location->get && r->method != NGX_HTTP_GET) {
        r->method = NGX_HTTP_GET;
        r->method_name = ngx_http_core_get_method;
    }

    r->loc_conf = loc_conf;
    ngx_http_update_location_config(r);

    /* a block in it was chosen by the original method, and is set again */
    r->loc_conf = loc_conf;

    location_captures(r);
}


/* sets the captures of the location's pattern, which an add_header may use */

static void
location_captures(ngx_http_request_t *r)
{
#if (NGX_PCRE)

    location_entry_t                  *entries, *entry;
    ngx_http_idempotency_loc_conf_t   *conf;
    ngx_http_idempotency_main_conf_t  *imcf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);
    imcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    entries = imcf->location_entries.elts;
    entry = &entries[conf->location];

    while (location_core(entry)->noname) {
        entry = &entries[entry->parent];
    }

    if (location_core(entry)->regex) {
        (void) ngx_http_regex_exec(r, location_core(entry)->regex, &r->uri);
    }

#endif
}
