
/*
 * The values of idempotency_key: what they are made of, and so whether it
 * takes the body to find the key.
 */


#include "ngx_http_idempotency_conf.h"


static ngx_int_t key_variables(ngx_conf_t *cf,
    ngx_http_idempotency_key_t *key, ngx_str_t *value);
static ngx_int_t key_name(ngx_conf_t *cf, ngx_array_t *names, u_char *start,
    u_char *last);
static ngx_uint_t key_can_be(ngx_str_t *value);


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
