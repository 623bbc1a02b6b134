
/*
 * The key: the first non-empty value of idempotency_key, and whether it is
 * one.
 */


#include "ngx_http_idempotency.h"


static ngx_int_t key_variables(ngx_conf_t *cf,
    ngx_http_idempotency_key_t *key, ngx_str_t *value);
static ngx_int_t key_name(ngx_conf_t *cf, ngx_array_t *names, u_char *start,
    u_char *last);
static ngx_uint_t key_unread(ngx_http_request_t *r,
    ngx_http_idempotency_key_t *source, ngx_str_t *key);
static ngx_uint_t key_repeated(ngx_http_request_t *r,
    ngx_http_idempotency_key_t *source);
static ngx_int_t key_unquote(ngx_http_request_t *r, ngx_str_t *key);
static ngx_uint_t key_printable(ngx_str_t *key);
static ngx_uint_t key_uuid(ngx_str_t *key);
static ngx_uint_t key_uuid7(ngx_str_t *key, uint64_t now, uint64_t *made);
static ngx_uint_t key_can_be(ngx_str_t *value);


/* NEW for a good key, or MISSING, or MALFORMED */

ngx_http_idempotency_status_e
ngx_http_idempotency_key(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf, ngx_str_t *key, uint64_t *made)
{
    ngx_uint_t                   i, quoted;
    ngx_http_idempotency_key_t  *source;

    source = conf->keys->elts;

    *made = 0;
    ngx_str_null(key);

    for (i = 0; i < conf->keys->nelts && key->len == 0; i++) {

        if (key_repeated(r, &source[i])
            || ngx_http_complex_value(r, &source[i].value, key) != NGX_OK
            || key_unread(r, &source[i], key))
        {
            return NGX_HTTP_IDEMPOTENCY_STATUS_MALFORMED;
        }

        if (conf->missing_key == NGX_HTTP_IDEMPOTENCY_MISSING_KEY_FORM
            && ngx_http_idempotency_is_browsers(r, key))
        {
            ngx_str_null(key);
        }
    }

    if (key->len == 0) {
        return NGX_HTTP_IDEMPOTENCY_STATUS_MISSING;
    }

    quoted = (key->data[0] == '"');

    if (quoted ? key_unquote(r, key) != NGX_OK : !key_printable(key)) {
        return NGX_HTTP_IDEMPOTENCY_STATUS_MALFORMED;
    }

    if (key->len == 0 || key->len > (size_t) conf->key_max_length) {
        return NGX_HTTP_IDEMPOTENCY_STATUS_MALFORMED;
    }

    if (conf->key_format == NGX_HTTP_IDEMPOTENCY_KEY_FORMAT_SF_STRING
        && !quoted)
    {
        return NGX_HTTP_IDEMPOTENCY_STATUS_MALFORMED;
    }

    if (conf->key_format == NGX_HTTP_IDEMPOTENCY_KEY_FORMAT_UUID
        && !key_uuid(key))
    {
        return NGX_HTTP_IDEMPOTENCY_STATUS_MALFORMED;
    }

    if (conf->key_format == NGX_HTTP_IDEMPOTENCY_KEY_FORMAT_UUID7
        && !key_uuid7(key, ngx_http_idempotency_wall_clock(), made))
    {
        return NGX_HTTP_IDEMPOTENCY_STATUS_MALFORMED;
    }

    return NGX_HTTP_IDEMPOTENCY_STATUS_NEW;
}


/*
 * What may be in the body, which can't be read for it, is as good as
 * malformed: passed on as no key, or taken for another one, it would execute
 * once more
 */

static ngx_uint_t
key_unread(ngx_http_request_t *r, ngx_http_idempotency_key_t *source,
    ngx_str_t *key)
{
    ngx_http_idempotency_ctx_t  *ctx;

    if (source->fields.nelts == 0 && (!source->indirect || key->len)) {
        return 0;
    }

    ctx = ngx_http_idempotency_get_ctx(r);

    return ngx_http_idempotency_field_unread(r, ctx, source->fields.nelts
                                                     ? &source->fields
                                                     : NULL);
}


/*
 * Several lines of a header are several keys, of which a variable shows the
 * first one or all joined, as nginx's version has it
 */

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


/* an RFC 8941 string: the key is its content; parameters are ignored */

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


static ngx_uint_t
key_printable(ngx_str_t *key)
{
    size_t  i;

    for (i = 0; i < key->len; i++) {
        if (key->data[i] < 0x20 || key->data[i] == 0x7f) {
            return 0;
        }
    }

    return 1;
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
 * RFC 9562, version 7: it begins with the time at which it was made.  A clock
 * may be wrong by a minute; what comes from farther in the future would be
 * taken for new for too long.
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


void
ngx_http_idempotency_header_iter(ngx_http_idempotency_header_iter_t *it,
    ngx_http_request_t *r)
{
    it->part = &r->headers_in.headers.part;
    it->i = 0;
}


ngx_table_elt_t *
ngx_http_idempotency_header_next(ngx_http_idempotency_header_iter_t *it,
    ngx_str_t *name)
{
    u_char            c;
    size_t            n;
    ngx_table_elt_t  *h;

    for ( /* void */ ; it->part; it->part = it->part->next, it->i = 0) {

        h = it->part->elts;

        while (it->i < it->part->nelts) {
            h = (ngx_table_elt_t *) it->part->elts + it->i++;

            if (h->key.len != name->len) {
                continue;
            }

            for (n = 0; n < name->len; n++) {
                c = h->lowcase_key[n];

                if ((c == '-' ? '_' : c) != name->data[n]) {
                    break;
                }
            }

            if (n == name->len) {
                return h;
            }
        }
    }

    return NULL;
}


char *
ngx_http_idempotency_set_keys(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idempotency_loc_conf_t  *ilcf = conf;

    ngx_str_t   *value;
    ngx_uint_t   i;

    if (ilcf->keys != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    ilcf->keys = ngx_array_create(cf->pool, cf->args->nelts - 1,
                                  sizeof(ngx_http_idempotency_key_t));
    if (ilcf->keys == NULL) {
        return NGX_CONF_ERROR;
    }

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {
        if (ngx_http_idempotency_add_key(cf, ilcf->keys, &value[i])
            != NGX_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


ngx_int_t
ngx_http_idempotency_add_key(ngx_conf_t *cf, ngx_array_t *keys,
    ngx_str_t *value)
{
    ngx_http_idempotency_key_t        *key;
    ngx_http_compile_complex_value_t   ccv;

    if (!key_can_be(value)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"idempotency_key\" "
                           "directive, it is never a key", value);
        return NGX_ERROR;
    }

    key = ngx_array_push(keys);
    if (key == NULL) {
        return NGX_ERROR;
    }

    ngx_memzero(&ccv, sizeof(ngx_http_compile_complex_value_t));

    ccv.cf = cf;
    ccv.value = value;
    ccv.complex_value = &key->value;

    if (ngx_http_compile_complex_value(&ccv) != NGX_OK) {
        return NGX_ERROR;
    }

    if (ngx_array_init(&key->headers, cf->pool, 1, sizeof(ngx_str_t))
        != NGX_OK
        || ngx_array_init(&key->fields, cf->pool, 1, sizeof(ngx_str_t))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    key->indirect = 0;

    return key_variables(cf, key, value);
}


/* remembers what $http_name, ${idempotency_field_name} etc. are made of */

static ngx_int_t
key_variables(ngx_conf_t *cf, ngx_http_idempotency_key_t *key,
    ngx_str_t *value)
{
    u_char     *p, *start, *last;
    ngx_int_t   rc;

    p = value->data;
    last = value->data + value->len;

    while ((p = ngx_strlchr(p, last, '$')) != NULL) {

        p += (p + 1 < last && p[1] == '{') ? 2 : 1;
        start = p;

        while (p < last && (*p == '_' || (*p >= '0' && *p <= '9')
                            || ((*p | 0x20) >= 'a' && (*p | 0x20) <= 'z')))
        {
            p++;
        }

        rc = NGX_OK;

        if (p - start > 18
            && ngx_strncasecmp(start, (u_char *) "idempotency_field_", 18)
               == 0)
        {
            rc = key_name(cf, &key->fields, start + 18, p);

        } else if (p - start > 5
                   && ngx_strncasecmp(start, (u_char *) "http_", 5) == 0)
        {
            rc = key_name(cf, &key->headers, start + 5, p);

        } else if (ngx_strncasecmp(start, (u_char *) "arg_", 4) != 0
                   && ngx_strncasecmp(start, (u_char *) "cookie_", 7) != 0)
        {
            key->indirect = 1;
        }

        if (rc != NGX_OK) {
            return rc;
        }
    }

    return NGX_OK;
}


/*
 * What is empty never is; nor is what is made of nothing but variables of ours,
 * which are empty until there is a key
 */

static ngx_uint_t
key_can_be(ngx_str_t *value)
{
    u_char     *p, *last, brace;
    ngx_str_t   name;

    p = value->data;
    last = p + value->len;

    while (p < last) {

        if (*p++ != '$') {
            return 1;
        }

        brace = (p < last && *p == '{');
        p += brace;

        name.data = p;

        while (p < last && (*p == '_' || (*p >= '0' && *p <= '9')
                            || ((*p | 0x20) >= 'a' && (*p | 0x20) <= 'z')))
        {
            p++;
        }

        name.len = p - name.data;

        if (!ngx_http_idempotency_is_own(&name)) {
            return 1;
        }

        p += brace;
    }

    return 0;
}


static ngx_int_t
key_name(ngx_conf_t *cf, ngx_array_t *names, u_char *start, u_char *last)
{
    ngx_str_t  *name;

    name = ngx_array_push(names);
    if (name == NULL) {
        return NGX_ERROR;
    }

    name->len = last - start;
    name->data = ngx_pnalloc(cf->pool, name->len);
    if (name->data == NULL) {
        return NGX_ERROR;
    }

    ngx_strlow(name->data, start, name->len);

    return NGX_OK;
}


/* then it takes the body to find the key */

ngx_uint_t
ngx_http_idempotency_keys_in_body(ngx_conf_t *cf, ngx_array_t *keys)
{
    ngx_uint_t                   i;
    ngx_http_idempotency_key_t  *key;

    key = keys->elts;

    for (i = 0; i < keys->nelts; i++) {
        if (key[i].fields.nelts
            || (key[i].indirect && ngx_http_idempotency_has_fields(cf)))
        {
            return 1;
        }
    }

    return 0;
}
