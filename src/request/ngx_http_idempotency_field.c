
/*
 * $idempotency_field_NAME: a field of the request's body, once that is read.
 *
 * The names are known from the configuration, and all are looked for at once:
 * of a body that is read for us while it arrives, wherever they stand; of
 * others when the first of them is asked for, in what they begin with.
 */


#include "ngx_http_idempotency_conf.h"
#include "ngx_http_idempotency_headers.h"


/* so long may a value be, however small the buffer is */

#define NGX_HTTP_IDEMPOTENCY_FIELD_VALUE_MAX  65536

#define NGX_HTTP_IDEMPOTENCY_FIELD_PREFIX_LEN                                \
    (sizeof("idempotency_field_") - 1)


typedef struct {
    ngx_idempotency_fields_t  *fields;
    /* if their kind is started */
    void                      *stream;
    size_t                     fed;
} field_scan_t;


static ngx_int_t field_create(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf, ngx_str_t *names,
    ngx_uint_t nnames, ngx_idempotency_fields_t **fields,
    ngx_str_t *boundary);
static ngx_uint_t field_coded(ngx_http_request_t *r);
static ngx_uint_t field_same(ngx_str_t *a, ngx_str_t *b);
static void field_set_variable(ngx_http_variable_value_t *v, ngx_int_t rc,
    ngx_str_t *value);
static ngx_int_t field_value(ngx_http_request_t *r, ngx_str_t *name,
    ngx_str_t *value);
static void field_set(ngx_http_request_t *r,
    ngx_http_idempotency_main_conf_t *imcf, ngx_idempotency_fields_t *fields);
static ngx_int_t field_scan(ngx_http_request_t *r, ngx_str_t *names,
    ngx_uint_t nnames, ngx_idempotency_fields_t **fields);
static ngx_int_t field_feed(void *data, u_char *p, size_t len);


/* for the configuration: all variables that it names are known by now */

ngx_int_t
ngx_http_idempotency_init_fields(ngx_conf_t *cf)
{
    ngx_str_t                         *name;
    ngx_uint_t                         i, *index;
    ngx_http_variable_t               *v;
    ngx_http_core_main_conf_t         *cmcf;
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);

    if (ngx_array_init(&imcf->fields, cf->pool, 4, sizeof(ngx_str_t)) != NGX_OK
        || ngx_array_init(&imcf->field_indices, cf->pool, 4,
                          sizeof(ngx_uint_t))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);
    v = cmcf->variables.elts;

    for (i = 0; i < cmcf->variables.nelts; i++) {

        if (v[i].name.len <= NGX_HTTP_IDEMPOTENCY_FIELD_PREFIX_LEN
            || ngx_strncmp(v[i].name.data, "idempotency_field_",
                           NGX_HTTP_IDEMPOTENCY_FIELD_PREFIX_LEN)
               != 0)
        {
            continue;
        }

        name = ngx_array_push(&imcf->fields);
        index = ngx_array_push(&imcf->field_indices);

        if (name == NULL || index == NULL) {
            return NGX_ERROR;
        }

        name->len = v[i].name.len - NGX_HTTP_IDEMPOTENCY_FIELD_PREFIX_LEN;
        name->data = v[i].name.data + NGX_HTTP_IDEMPOTENCY_FIELD_PREFIX_LEN;
        *index = i;
    }

    return NGX_OK;
}


ngx_uint_t
ngx_http_idempotency_has_fields(ngx_conf_t *cf)
{
    ngx_uint_t                  i;
    ngx_http_variable_t        *v;
    ngx_http_core_main_conf_t  *cmcf;

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);
    v = cmcf->variables.elts;

    for (i = 0; i < cmcf->variables.nelts; i++) {
        if (v[i].name.len > NGX_HTTP_IDEMPOTENCY_FIELD_PREFIX_LEN
            && ngx_strncmp(v[i].name.data, "idempotency_field_",
                           NGX_HTTP_IDEMPOTENCY_FIELD_PREFIX_LEN)
               == 0)
        {
            return 1;
        }
    }

    return 0;
}


/*
 * For a body that is to be read: *fields is NULL if it can have none.  They
 * are unreadable if it can, but nobody can say where.
 */

ngx_int_t
ngx_http_idempotency_look_for_fields(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf, ngx_idempotency_fields_t **fields,
    ngx_str_t *boundary)
{
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    return field_create(r, conf, imcf->fields.elts, imcf->fields.nelts, fields,
                        boundary);
}


static ngx_int_t
field_create(ngx_http_request_t *r, ngx_http_idempotency_loc_conf_t *conf,
    ngx_str_t *names, ngx_uint_t nnames, ngx_idempotency_fields_t **fields,
    ngx_str_t *boundary)
{
    size_t                         max;
    ngx_int_t                      rc;
    const ngx_idempotency_kind_t  *kind;

    *fields = NULL;

    if (nnames == 0 || r->headers_in.content_type == NULL) {
        return NGX_OK;
    }

    rc = ngx_idempotency_fields_kind(&r->headers_in.content_type->value, &kind,
                                     boundary);

    if (rc == NGX_OK && kind == NULL) {
        return NGX_OK;
    }

    max = ngx_max(conf->normalize_buffer,
                  NGX_HTTP_IDEMPOTENCY_FIELD_VALUE_MAX);

    *fields = ngx_idempotency_fields_create(r->pool, kind, names, nnames, max);
    if (*fields == NULL) {
        return NGX_ERROR;
    }

    if (rc != NGX_OK || field_coded(r)) {
        ngx_idempotency_fields_unreadable(*fields);
    }

    return NGX_OK;
}


static ngx_uint_t
field_coded(ngx_http_request_t *r)
{
    ngx_table_elt_t                     *h;
    ngx_http_idempotency_header_iter_t   it;

    static ngx_str_t  coding = ngx_string("content_encoding");

    ngx_http_idempotency_header_iter(&it, r);

    while ((h = ngx_http_idempotency_header_next(&it, &coding)) != NULL) {
        if (h->value.len
            && (h->value.len != 8
                || ngx_strncasecmp(h->value.data, (u_char *) "identity", 8)
                   != 0))
        {
            return 1;
        }
    }

    return 0;
}


/*
 * names: of ngx_str_t, or NULL for all; why is noted for the refusal.  A value
 * with control characters, of which the variable says nothing, is no key; but
 * not of any field, as that of a text has line ends.
 */

ngx_uint_t
ngx_http_idempotency_field_unread(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_array_t *names)
{
    ngx_int_t                          rc;
    ngx_str_t                         *name, value;
    ngx_uint_t                         i, n;
    ngx_http_idempotency_main_conf_t  *imcf;

    if (ctx == NULL || ctx->body.fields == NULL) {
        return 0;
    }

    imcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);
    name = imcf->fields.elts;

    for (i = 0; i < imcf->fields.nelts; i++) {

        rc = ngx_idempotency_fields_value(ctx->body.fields, i, &value);

        if (rc == NGX_DECLINED
            || (rc == NGX_OK
                && (names == NULL || ngx_http_idempotency_printable(&value))))
        {
            continue;
        }

        for (n = 0; names && n < names->nelts; n++) {
            if (field_same((ngx_str_t *) names->elts + n, &name[i])) {
                break;
            }
        }

        if (names && n == names->nelts) {
            continue;
        }

        if (rc == NGX_OK) {
            return 1;
        }

        ctx->body.unreadable = ctx->body.fields->too_long
                               ? NGX_HTTP_IDEMPOTENCY_BODY_TOO_LARGE
                               : NGX_HTTP_IDEMPOTENCY_BODY_UNREADABLE;
        return 1;
    }

    return 0;
}


static ngx_uint_t
field_same(ngx_str_t *a, ngx_str_t *b)
{
    return a->len == b->len
           && ngx_strncasecmp(a->data, b->data, a->len) == 0;
}


ngx_int_t
ngx_http_idempotency_field_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_str_t *name = (ngx_str_t *) data;

    ngx_int_t  rc;
    ngx_str_t  field, value;

    r = r->main;

    if (r->request_body == NULL) {

        /* not read yet: ask again */

        v->not_found = 1;
        v->no_cacheable = 1;
        return NGX_OK;
    }

    field.len = name->len - NGX_HTTP_IDEMPOTENCY_FIELD_PREFIX_LEN;
    field.data = name->data + NGX_HTTP_IDEMPOTENCY_FIELD_PREFIX_LEN;

    rc = field_value(r, &field, &value);

    if (rc == NGX_ERROR) {
        return NGX_ERROR;
    }

    field_set_variable(v, rc, &value);

    return NGX_OK;
}


/* it may stand in a header: none of its bytes may end a line there */

static void
field_set_variable(ngx_http_variable_value_t *v, ngx_int_t rc,
    ngx_str_t *value)
{
    if (rc == NGX_OK && !ngx_http_idempotency_printable(value)) {
        rc = NGX_DECLINED;
    }

    ngx_http_idempotency_set_variable(v, rc, value);
}


/* rc: that of looking for the value */

void
ngx_http_idempotency_set_variable(ngx_http_variable_value_t *v, ngx_int_t rc,
    ngx_str_t *value)
{
    if (rc != NGX_OK) {
        v->not_found = 1;
        return;
    }

    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;
    v->data = value->data;
    v->len = value->len;
}


static ngx_int_t
field_value(ngx_http_request_t *r, ngx_str_t *name, ngx_str_t *value)
{
    ngx_int_t                          rc;
    ngx_str_t                         *names;
    ngx_uint_t                         i;
    ngx_idempotency_fields_t          *fields;
    ngx_http_idempotency_ctx_t        *ctx;
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);
    names = imcf->fields.elts;

    for (i = 0; i < imcf->fields.nelts; i++) {
        if (field_same(name, &names[i])) {
            break;
        }
    }

    if (i == imcf->fields.nelts) {

        /* no configuration names it: a script's, or that of an SSI command */

        rc = field_scan(r, name, 1, &fields);

        return (rc == NGX_OK) ? ngx_idempotency_fields_value(fields, 0, value)
                              : rc;
    }

    ctx = ngx_http_idempotency_get_ctx(r);

    if (ctx && ctx->body.digested) {
        fields = ctx->body.fields;

        return fields ? ngx_idempotency_fields_value(fields, i, value)
                      : NGX_DECLINED;
    }

    rc = field_scan(r, names, imcf->fields.nelts, &fields);

    if (rc != NGX_OK) {
        return rc;
    }

    field_set(r, imcf, fields);

    return ngx_idempotency_fields_value(fields, i, value);
}


/* the others, so that the body is not read for each anew */

static void
field_set(ngx_http_request_t *r, ngx_http_idempotency_main_conf_t *imcf,
    ngx_idempotency_fields_t *fields)
{
    ngx_int_t                   rc;
    ngx_str_t                   value;
    ngx_uint_t                  i, *index;
    ngx_http_variable_value_t  *v;

    index = imcf->field_indices.elts;

    for (i = 0; i < imcf->fields.nelts; i++) {
        v = &r->variables[index[i]];

        if (!v->valid && !v->not_found) {
            rc = ngx_idempotency_fields_value(fields, i, &value);
            field_set_variable(v, rc, &value);
        }
    }
}


/*
 * NGX_DECLINED: there is nothing.  A body that isn't read for us may be of any
 * size and in a file, and nothing depends on its fields: its beginning is all
 * that is looked at.
 */

static ngx_int_t
field_scan(ngx_http_request_t *r, ngx_str_t *names, ngx_uint_t nnames,
    ngx_idempotency_fields_t **fields)
{
    size_t                            limit;
    ngx_str_t                         boundary;
    field_scan_t                      scan;
    const ngx_idempotency_kind_t     *kind;
    ngx_http_idempotency_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);
    limit = conf->normalize_buffer;

    if (field_create(r, conf, names, nnames, fields, &boundary) != NGX_OK) {
        return NGX_ERROR;
    }

    if (*fields == NULL) {
        return NGX_DECLINED;
    }

    scan.fields = *fields;
    scan.stream = NULL;
    scan.fed = 0;

    kind = (*fields)->kind;

    if (kind && kind->start) {
        scan.stream = kind->start(r->pool, NULL, &boundary, scan.fields);
        if (scan.stream == NULL) {
            return NGX_ERROR;
        }
    }

    if (ngx_http_idempotency_each_piece(r, limit, field_feed, &scan)
        == NGX_ERROR)
    {
        return NGX_ERROR;
    }

    if (scan.fed < limit) {
        ngx_idempotency_fields_end(scan.fields);
    }

    return NGX_OK;
}


static ngx_int_t
field_feed(void *data, u_char *p, size_t len)
{
    field_scan_t *scan = data;

    scan->fed += len;

    if (scan->stream) {
        (void) scan->fields->kind->feed(scan->stream, p, len);

    } else {
        (void) ngx_idempotency_fields_feed(scan->fields, p, len);
    }

    if (scan->fields->no_memory) {
        return NGX_ERROR;
    }

    return scan->fields->done ? NGX_DECLINED : NGX_OK;
}
