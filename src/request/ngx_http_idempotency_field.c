
/*
 * $idempotency_field_NAME: a field of the request's body, once that is read.
 */


#include "ngx_http_idempotency.h"


static ngx_int_t field_value(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf, ngx_str_t *name, ngx_str_t *value);
static ngx_int_t field_multipart(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf, ngx_str_t *boundary,
    ngx_str_t *name, ngx_str_t *value);
static ngx_int_t field_feed(void *data, u_char *p, size_t len);


ngx_int_t
ngx_http_idempotency_field_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_str_t *name = (ngx_str_t *) data;

    ngx_int_t                         rc;
    ngx_str_t                         field, value;
    ngx_http_idempotency_loc_conf_t  *conf;

    r = r->main;
    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    if (r->request_body == NULL) {

        /* not read yet: ask again */

        v->not_found = 1;
        v->no_cacheable = 1;
        return NGX_OK;
    }

    field.len = name->len - (sizeof("idempotency_field_") - 1);
    field.data = name->data + sizeof("idempotency_field_") - 1;

    rc = field_value(r, conf, &field, &value);

    if (rc == NGX_ERROR) {
        return NGX_ERROR;
    }

    if (rc == NGX_DECLINED) {
        v->not_found = 1;
        return NGX_OK;
    }

    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;
    v->data = value.data;
    v->len = value.len;

    return NGX_OK;
}


static ngx_int_t
field_value(ngx_http_request_t *r, ngx_http_idempotency_loc_conf_t *conf,
    ngx_str_t *name, ngx_str_t *value)
{
    ngx_int_t   rc;
    ngx_str_t   body, boundary;
    ngx_uint_t  kind;

    if (r->headers_in.content_type == NULL) {
        return NGX_DECLINED;
    }

    kind = ngx_idempotency_canon_kind(&r->headers_in.content_type->value,
                                      NGX_IDEMPOTENCY_CANON_FORM
                                      |NGX_IDEMPOTENCY_CANON_JSON
                                      |NGX_IDEMPOTENCY_CANON_MULTIPART,
                                      &boundary);
    if (kind == 0) {
        return NGX_DECLINED;
    }

    if (kind == NGX_IDEMPOTENCY_CANON_MULTIPART) {
        return field_multipart(r, conf, &boundary, name, value);
    }

    rc = ngx_http_idempotency_whole_body(r, conf->normalize_buffer, &body);

    if (rc != NGX_OK) {
        return rc;
    }

    return ngx_idempotency_canon_field(kind, body.data, body.len, name, value,
                                       r->pool);
}


/* looked for in the first bytes, as fields stand before files */

static ngx_int_t
field_multipart(ngx_http_request_t *r, ngx_http_idempotency_loc_conf_t *conf,
    ngx_str_t *boundary, ngx_str_t *name, ngx_str_t *value)
{
    ngx_str_t                    *found;
    ngx_idempotency_multipart_t  *m;

    m = ngx_idempotency_multipart_create(r->pool, NULL, boundary);
    if (m == NULL) {
        return NGX_ERROR;
    }

    ngx_idempotency_multipart_find(m, name, conf->normalize_buffer);

    if (ngx_http_idempotency_each_piece(r, conf->normalize_buffer, field_feed,
                                        m)
        == NGX_ERROR)
    {
        return NGX_ERROR;
    }

    found = ngx_idempotency_multipart_value(m);

    if (found == NULL) {
        return NGX_DECLINED;
    }

    *value = *found;

    return NGX_OK;
}


/* NGX_DECLINED: it is found, or will not be */

static ngx_int_t
field_feed(void *data, u_char *p, size_t len)
{
    ngx_idempotency_multipart_t *m = data;

    if (ngx_idempotency_multipart_feed(m, p, len) != NGX_OK
        || ngx_idempotency_multipart_value(m))
    {
        return NGX_DECLINED;
    }

    return NGX_OK;
}
