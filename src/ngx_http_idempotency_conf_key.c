
/*
 * Strings with variables, and those of idempotency_key: what they are made of,
 * and so whether it takes the body to find the key.
 */


#include "ngx_http_idempotency.h"


static ngx_uint_t key_next_variable(ngx_str_t *text, ngx_str_t *name,
    size_t *constant);
static ngx_int_t key_variables(ngx_conf_t *cf,
    ngx_http_idempotency_key_t *key);
static ngx_uint_t key_begins(ngx_str_t *name, char *prefix);
static ngx_int_t key_name(ngx_conf_t *cf, ngx_array_t *names, u_char *start,
    u_char *last);


/*
 * A string of variables and constant text.  How long that text is tells in one
 * comparison whether all of the variables are empty, captures too.
 */

ngx_int_t
ngx_http_idempotency_compile(ngx_conf_t *cf, ngx_str_t *text,
    ngx_http_idempotency_value_t *value)
{
    ngx_str_t                          rest, name;
    ngx_http_compile_complex_value_t   ccv;

    ngx_memzero(&ccv, sizeof(ngx_http_compile_complex_value_t));

    ccv.cf = cf;
    ccv.value = text;
    ccv.complex_value = &value->script;

    if (ngx_http_compile_complex_value(&ccv) != NGX_OK) {
        return NGX_ERROR;
    }

    rest = *text;

    value->constant = 0;
    value->of_cookies = 1;

    while (key_next_variable(&rest, &name, &value->constant)) {
        value->of_cookies &= key_begins(&name, "cookie_");
    }

    return NGX_OK;
}


/* $name, ${name} and $1; what stands before it, or behind all, is constant */

static ngx_uint_t
key_next_variable(ngx_str_t *text, ngx_str_t *name, size_t *constant)
{
    u_char      *p, *last;
    ngx_uint_t   brace;

    last = text->data + text->len;

    p = ngx_strlchr(text->data, last, '$');

    if (p == NULL) {
        *constant += text->len;
        return 0;
    }

    *constant += p - text->data;

    p++;

    brace = (p < last && *p == '{');
    p += brace;

    name->data = p;

    if (p < last && *p >= '1' && *p <= '9') {
        p++;

    } else {
        while (p < last && (*p == '_' || (*p >= '0' && *p <= '9')
                            || ((*p | 0x20) >= 'a' && (*p | 0x20) <= 'z')))
        {
            p++;
        }
    }

    name->len = p - name->data;

    text->data = p + brace;
    text->len = last - text->data;

    return 1;
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
    ngx_http_idempotency_key_t  *key;

    key = ngx_array_push(keys);
    if (key == NULL) {
        return NGX_ERROR;
    }

    if (ngx_http_idempotency_compile(cf, value, &key->value) != NGX_OK
        || ngx_array_init(&key->headers, cf->pool, 1, sizeof(ngx_str_t))
           != NGX_OK
        || ngx_array_init(&key->fields, cf->pool, 1, sizeof(ngx_str_t))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    key->indirect = 0;
    key->header = (ngx_strcasecmp(value->data,
                                  (u_char *) "$http_idempotency_key") == 0
                   || ngx_strcasecmp(value->data,
                                     (u_char *) "${http_idempotency_key}")
                      == 0);

    if (value->len && key->value.script.lengths == NULL) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"idempotency_key\" "
                           "directive, it is the same key for all requests",
                           value);
        return NGX_ERROR;
    }

    return key_variables(cf, key);
}


/*
 * Remembers what $http_name, ${idempotency_field_name} etc. it is made of.
 * Variables of ours alone are empty until there is a key.
 */

static ngx_int_t
key_variables(ngx_conf_t *cf, ngx_http_idempotency_key_t *key)
{
    size_t       constant;
    ngx_int_t    rc;
    ngx_str_t    text, name;
    ngx_uint_t   never;

    text = key->value.script.value;

    never = 1;
    constant = 0;

    while (key_next_variable(&text, &name, &constant)) {

        if (ngx_http_idempotency_is_own(&name)) {
            continue;
        }

        rc = NGX_OK;
        never = 0;

        if (key_begins(&name, "idempotency_field_")) {
            rc = key_name(cf, &key->fields, name.data + 18,
                          name.data + name.len);

        } else if (key_begins(&name, "http_")) {
            rc = key_name(cf, &key->headers, name.data + 5,
                          name.data + name.len);

        } else if (!key_begins(&name, "arg_")
                   && !key_begins(&name, "cookie_"))
        {
            key->indirect = 1;
        }

        if (rc != NGX_OK) {
            return rc;
        }
    }

    if (never) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"idempotency_key\" "
                           "directive, it is never a key",
                           &key->value.script.value);
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* a variable of many */

static ngx_uint_t
key_begins(ngx_str_t *name, char *prefix)
{
    size_t  len;

    len = ngx_strlen(prefix);

    return name->len > len
           && ngx_strncasecmp(name->data, (u_char *) prefix, len) == 0;
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
