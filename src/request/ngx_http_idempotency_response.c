
/*
 * Header lines by name, and a response as the store keeps it, encoded and
 * decoded: the header block, the trailers, the places of header lines in
 * headers_out, and the location that made the response.
 *
 * Numbers have a variable length, the low bits first; a string follows its
 * length; a list of lines ends with a zero.
 *
 * CHECKED   Other programs may write to a store, and nginx's filters trust
 *           headers_out: a length that is not the body's makes them send the
 *           memory behind the body.  So each part of a decoded response is
 *           checked, also against the others, before anything is restored.  A
 *           response that would not pass these checks is not encoded.
 */


#include "ngx_http_idempotency_response.h"


#define NGX_HTTP_IDEMPOTENCY_RESPONSE_VERSION  1

/* a number of 64 bits has 10 bytes at most; a line has two lengths */

#define NGX_HTTP_IDEMPOTENCY_NUMBER_LEN    10
#define NGX_HTTP_IDEMPOTENCY_LINE_LEN                                        \
    (1 + 2 * NGX_HTTP_IDEMPOTENCY_NUMBER_LEN)
#define NGX_HTTP_IDEMPOTENCY_FIXED_LEN                                       \
    (2 + 9 * NGX_HTTP_IDEMPOTENCY_NUMBER_LEN)
#define NGX_HTTP_IDEMPOTENCY_LOCATION_FIXED_LEN                              \
    (NGX_HTTP_IDEMPOTENCY_LOCATION_LEN + 1                                   \
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
    response_location_get = 0x02,
    response_location_admitted = 0x04
} response_location_flag_e;

#define NGX_HTTP_IDEMPOTENCY_LOCATION_FLAGS  0x07


static ngx_uint_t accept_range(ngx_str_t *range, char *type);
static ngx_uint_t accept_weight(u_char *p, u_char *last);
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
    size_t            len;
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    len = ngx_strlen(name);

    for (part = &r->headers_in.headers.part; part; part = part->next) {
        h = part->elts;
        i = 0;

        if (last) {

            if (last < h || last >= h + part->nelts) {
                continue;
            }

            i = last - h + 1;
            last = NULL;
        }

        for ( /* void */ ; i < part->nelts; i++) {

            if (ngx_http_idempotency_header_is(&h[i], name, len)) {
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


ngx_uint_t
ngx_http_idempotency_accept(ngx_http_request_t *r, char *type, ngx_uint_t *best)
{
    u_char           *p, *end, *last, *semicolon;
    ngx_str_t         range;
    ngx_uint_t        specific, quality;
    ngx_table_elt_t  *h;

    h = NULL;
    *best = 0;
    quality = 0;

    while ((h = ngx_http_idempotency_header_next(r, "accept", h)) != NULL) {

        last = h->value.data + h->value.len;

        for (p = h->value.data; p < last; p = end + 1) {

            end = ngx_strlchr(p, last, ',');
            if (end == NULL) {
                end = last;
            }

            semicolon = ngx_strlchr(p, end, ';');

            range = ngx_idempotency_trim(p, semicolon ? semicolon : end);

            specific = accept_range(&range, type);

            if (specific > *best) {
                *best = specific;
                quality = semicolon ? accept_weight(semicolon, end) : 1000;
            }
        }
    }

    return quality;
}


/* how specific the range is. 3: the type itself, 2: "type/" and a star, 1: two
   stars, 0: another type */

static ngx_uint_t
accept_range(ngx_str_t *range, char *type)
{
    size_t  len;

    if (ngx_idempotency_equal(range, type)) {
        return 3;
    }

    len = ngx_strchr(type, '/') - type + 1;

    if (range->len == len + 1 && range->data[len] == '*'
        && ngx_strncasecmp(range->data, (u_char *) type, len) == 0)
    {
        return 2;
    }

    return ngx_idempotency_equal(range, "*/*");
}


/* p: at the semicolon of the parameters; ";q=0.8" is 800 */

static ngx_uint_t
accept_weight(u_char *p, u_char *last)
{
    ngx_uint_t  weight, scale;

    while (p) {
        p++;

        while (p < last && (*p == ' ' || *p == '\t')) {
            p++;
        }

        if (last - p >= 3 && (*p | 0x20) == 'q' && p[1] == '=') {
            break;
        }

        p = ngx_strlchr(p, last, ';');
    }

    if (p == NULL) {
        return 1000;
    }

    p += 2;
    weight = (*p == '1') ? 1000 : 0;

    if (weight || ++p == last || *p != '.') {
        return weight;
    }

    for (p++, scale = 100;
         p < last && scale && *p >= '0' && *p <= '9';
         p++, scale /= 10)
    {
        weight += (*p - '0') * scale;
    }

    return weight;
}


ngx_table_elt_t *
ngx_http_idempotency_header_push(ngx_list_t *list, ngx_str_t *key,
    ngx_str_t *value)
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
        len += NGX_HTTP_IDEMPOTENCY_LOCATION_FIXED_LEN
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
               | (location->get ? response_location_get : 0)
               | (location->admitted ? response_location_admitted : 0);
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


/* NULL: a line would not pass the checks of a decoded response */

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
    location->admitted = (flags & response_location_admitted) ? 1 : 0;

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

        h = ngx_http_idempotency_header_push(list, &name, &value);

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


/* A deleted line in such a place, and in no list, keeps nginx from writing a
   line of its own. */

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
