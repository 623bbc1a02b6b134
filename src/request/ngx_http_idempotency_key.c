
/*
 * The key: the first non-empty value of idempotency_key, its format, and
 * whether the content stands for a missing key.
 */


#include "ngx_http_idempotency_response.h"


static ngx_uint_t key_unread(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_http_idempotency_key_t *source);
static ngx_uint_t key_repeated(ngx_http_request_t *r,
    ngx_http_idempotency_key_t *source);
static ngx_uint_t key_browsers(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf);
static ngx_int_t key_unquote(ngx_http_request_t *r, ngx_str_t *key);
static ngx_int_t key_lower(ngx_http_request_t *r, ngx_str_t *key);
static ngx_uint_t key_uuid(ngx_str_t *key);
static ngx_uint_t key_uuid7(ngx_str_t *key, uint64_t now, uint64_t *made);
static ngx_http_idempotency_status_e key_missing(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf);
static ngx_uint_t form_sent(ngx_http_request_t *r);
static ngx_uint_t form_type(ngx_http_request_t *r);
static ngx_uint_t form_navigates(ngx_http_request_t *r);
static ngx_table_elt_t *form_mode(ngx_http_request_t *r);


/* NEW: the key is good, or the content stands for it */

ngx_http_idempotency_status_e
ngx_http_idempotency_key(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_str_t                   *key;
    ngx_uint_t                   i;
    ngx_http_idempotency_key_t  *source;

    key = &ctx->key;
    source = ctx->conf->keys->elts;

    ctx->made = 0;
    ngx_str_null(key);

    for (i = 0; i < ctx->conf->keys->nelts && key->len == 0; i++) {

        if (source[i].header && key_browsers(r, ctx->conf)) {
            continue;
        }

        if (key_repeated(r, &source[i])
            || ngx_http_idempotency_value(r, &source[i].value, key) != NGX_OK
            || key_unread(r, ctx, &source[i]))
        {
            return NGX_HTTP_IDEMPOTENCY_STATUS_MALFORMED;
        }
    }

    if (key->len == 0) {
        return key_missing(r, ctx->conf);
    }

    /* a map's value may be made of the form's fields, too */

    ctx->body.form_key = ((source[i - 1].fields.nelts
                           || source[i - 1].indirect)
                          && ctx->body.fields
                          && form_type(r));

    return ngx_http_idempotency_key_parse(r, ctx->conf, key, &ctx->made);
}


/* The key in a value, unquoted and in lower case, and whether it is valid: NEW
   or MALFORMED. */

ngx_http_idempotency_status_e
ngx_http_idempotency_key_parse(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf, ngx_str_t *key, uint64_t *made)
{
    ngx_uint_t  quoted, good;

    quoted = (key->data[0] == '"');

    good = (quoted ? key_unquote(r, key) == NGX_OK
                   : ngx_http_idempotency_printable(key))
           && key->len > 0
           && key->len <= (size_t) conf->key_max_length;

    switch (conf->key_format) {

    case NGX_HTTP_IDEMPOTENCY_KEY_FORMAT_SF_STRING:
        good = good && quoted;
        break;

    case NGX_HTTP_IDEMPOTENCY_KEY_FORMAT_UUID:
        good = good && key_uuid(key) && key_lower(r, key) == NGX_OK;
        break;

    case NGX_HTTP_IDEMPOTENCY_KEY_FORMAT_UUID7:
        good = good
               && key_uuid7(key, ngx_http_idempotency_wall_clock(), made)
               && key_lower(r, key) == NGX_OK;
        break;
    }

    return good ? NGX_HTTP_IDEMPOTENCY_STATUS_NEW
                : NGX_HTTP_IDEMPOTENCY_STATUS_MALFORMED;
}


/*
 * If the field may be in the body and the body can't be read, the request
 * counts as malformed.  Without its key, or with the key of the next value, it
 * could be executed once more.
 */

static ngx_uint_t
key_unread(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_key_t *source)
{
    if (source->fields.nelts) {
        return ngx_http_idempotency_field_unread(r, ctx, &source->fields);
    }

    return source->indirect && ctx->key.len == 0
           && ngx_http_idempotency_field_unread(r, ctx, NULL);
}


/* Several lines of a header are several keys.  Depending on its version nginx
   gives a variable the first line, or all of them joined. */

static ngx_uint_t
key_repeated(ngx_http_request_t *r, ngx_http_idempotency_key_t *source)
{
    ngx_str_t                           *name;
    ngx_uint_t                           i;
    ngx_http_idempotency_header_iter_t   it;

    name = source->headers.elts;

    for (i = 0; i < source->headers.nelts; i++) {
        ngx_http_idempotency_header_iter(&it, r);

        if (ngx_http_idempotency_header_next(&it, &name[i])
            && ngx_http_idempotency_header_next(&it, &name[i]))
        {
            return 1;
        }
    }

    return 0;
}


/*
 * For a form that a browser sends by itself the browser may make the key: a
 * new one each time, so that two clicks are two operations.  Such a key is
 * ignored: the content, or a field of the form, stands for it.
 */

static ngx_uint_t
key_browsers(ngx_http_request_t *r, ngx_http_idempotency_loc_conf_t *conf)
{
    static ngx_str_t  name = ngx_string("idempotency_key");

    if ((conf->missing_key != NGX_HTTP_IDEMPOTENCY_MISSING_KEY_CONTENT
         && conf->missing_key != NGX_HTTP_IDEMPOTENCY_MISSING_KEY_FORM)
        || !form_navigates(r)
        || ngx_http_idempotency_header_first(r, &name) == NULL)
    {
        return 0;
    }

    ngx_log_error(NGX_LOG_INFO, r->connection->log, 0,
                  "idempotency: passed over the key of a navigation, "
                  "as the browser makes a new one each time");

    return 1;
}


/* an RFC 8941 string: its content is the key; parameters are ignored */

static ngx_int_t
key_unquote(ngx_http_request_t *r, ngx_str_t *key)
{
    u_char  *p, *last, *dst;

    p = key->data + 1;
    last = key->data + key->len;

    dst = ngx_pnalloc(r->pool, key->len);
    if (dst == NULL) {
        return NGX_ERROR;
    }

    key->data = dst;

    for ( ;; ) {

        if (p == last || *p < 0x20 || *p > 0x7e) {
            return NGX_ERROR;
        }

        if (*p == '"') {
            break;
        }

        if (*p == '\\') {
            p++;

            if (p == last || (*p != '"' && *p != '\\')) {
                return NGX_ERROR;
            }
        }

        *dst++ = *p++;
    }

    p++;
    key->len = dst - key->data;

    return (p == last || *p == ';') ? NGX_OK : NGX_ERROR;
}


/* RFC 9562: UUIDs are written in lower case, and read in either */

static ngx_int_t
key_lower(ngx_http_request_t *r, ngx_str_t *key)
{
    u_char  *lower;

    lower = ngx_pnalloc(r->pool, key->len);
    if (lower == NULL) {
        return NGX_ERROR;
    }

    ngx_strlow(lower, key->data, key->len);
    key->data = lower;

    return NGX_OK;
}


static ngx_uint_t
key_uuid(ngx_str_t *key)
{
    size_t  i;
    u_char  c;

    if (key->len != sizeof("xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx") - 1) {
        return 0;
    }

    for (i = 0; i < key->len; i++) {

        if (i == 8 || i == 13 || i == 18 || i == 23) {
            if (key->data[i] != '-') {
                return 0;
            }

            continue;
        }

        c = (u_char) (key->data[i] | 0x20);

        if ((c < '0' || c > '9') && (c < 'a' || c > 'f')) {
            return 0;
        }
    }

    return 1;
}


/*
 * RFC 9562: a UUID of version 7 begins with the time at which it was made.  A
 * client's clock may be wrong by a minute.  A key from farther in the future
 * would be new for too long.
 */

static ngx_uint_t
key_uuid7(ngx_str_t *key, uint64_t now, uint64_t *made)
{
    size_t      i;
    u_char      c;
    uint64_t    ms;

    if (!key_uuid(key) || key->data[14] != '7'
        || ngx_strchr("89abAB", key->data[19]) == NULL)
    {
        return 0;
    }

    ms = 0;

    for (i = 0; i < 13; i++) {
        c = key->data[i];

        if (c != '-') {
            ms = ms * 16 + (c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
        }
    }

    *made = ms;

    return ms <= now + NGX_HTTP_IDEMPOTENCY_KEY_AHEAD;
}


/* NEW: the content stands for the missing key */

static ngx_http_idempotency_status_e
key_missing(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf)
{
    switch (conf->missing_key) {

    case NGX_HTTP_IDEMPOTENCY_MISSING_KEY_PASS:
        return NGX_HTTP_IDEMPOTENCY_STATUS_NONE;

    case NGX_HTTP_IDEMPOTENCY_MISSING_KEY_CONTENT:
        return NGX_HTTP_IDEMPOTENCY_STATUS_NEW;

    case NGX_HTTP_IDEMPOTENCY_MISSING_KEY_FORM:
        return form_sent(r)
               ? NGX_HTTP_IDEMPOTENCY_STATUS_NEW
               : NGX_HTTP_IDEMPOTENCY_STATUS_NONE;

    default: /* NGX_HTTP_IDEMPOTENCY_MISSING_KEY_REJECT */
        return NGX_HTTP_IDEMPOTENCY_STATUS_MISSING;
    }
}


/*
 * Whether a browser sends this form for its user.  Scripts are excluded: a
 * script may send the same content twice on purpose.  Browsers of today send
 * Sec-Fetch-Mode; older ones are known by the text/html in their Accept.
 */

static ngx_uint_t
form_sent(ngx_http_request_t *r)
{
    static ngx_str_t  with = ngx_string("x_requested_with");

    if (!form_type(r)) {
        return 0;
    }

    if (form_mode(r)) {
        return form_navigates(r);
    }

    return ngx_http_idempotency_header_first(r, &with) == NULL
           && ngx_http_idempotency_accepts_html(r);
}


/* whether the request's content type is a form's */

static ngx_uint_t
form_type(ngx_http_request_t *r)
{
    u_char     *last, *semicolon;
    ngx_str_t   type;

    if (r->headers_in.content_type == NULL) {
        return 0;
    }

    type = r->headers_in.content_type->value;
    last = type.data + type.len;
    semicolon = ngx_strlchr(type.data, last, ';');

    type = ngx_idempotency_trim(type.data, semicolon ? semicolon : last);

    return ngx_idempotency_equal(&type, "application/x-www-form-urlencoded")
           || ngx_idempotency_equal(&type, "multipart/form-data")
           || ngx_idempotency_equal(&type, "text/plain");
}


/* whether the browser loads the response as a page */

static ngx_uint_t
form_navigates(ngx_http_request_t *r)
{
    ngx_table_elt_t  *h;

    h = form_mode(r);

    return h && h->value.len == 8
           && ngx_strncmp(h->value.data, "navigate", 8) == 0;
}


static ngx_table_elt_t *
form_mode(ngx_http_request_t *r)
{
    static ngx_str_t  mode = ngx_string("sec_fetch_mode");

    return ngx_http_idempotency_header_first(r, &mode);
}


/* a value whose variables are all empty is empty, whatever its constant
   text */

ngx_int_t
ngx_http_idempotency_value(ngx_http_request_t *r,
    ngx_http_idempotency_value_t *value, ngx_str_t *text)
{
    if (ngx_http_complex_value(r, &value->script, text) != NGX_OK) {
        return NGX_ERROR;
    }

    if (value->script.lengths && text->len == value->constant) {
        text->len = 0;
    }

    return NGX_OK;
}


/* In milliseconds since 1970.  Only the time in a key is compared with this
   clock, all other times with the monotonic clock. */

uint64_t
ngx_http_idempotency_wall_clock(void)
{
    ngx_time_t  *tp;

    tp = ngx_timeofday();

    return (uint64_t) tp->sec * 1000 + tp->msec;
}
