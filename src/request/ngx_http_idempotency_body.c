
/*
 * The request's body: read whole, as nginx reads it, and digested by its
 * meaning where that is configured, else by its bytes; and the body's fields
 * for $idempotency_field_NAME.
 *
 * Bytes, and the parts of a multipart form, are digested as they arrive.
 * Kinds that must be sorted first, and a body that another module has read
 * before us, are taken from nginx's buffers.  So is a malformed body, which is
 * digested by its bytes in the end.
 *
 * The names of fields are known from the configuration, and one pass finds all
 * of them.  In a body that is read for us they are found while it arrives,
 * wherever they stand; in another body they are found when the first one is
 * evaluated, and only in its beginning.
 */


#include "ngx_http_idempotency_response.h"


/* a field's value may be as long, however small the buffer is */

#define NGX_HTTP_IDEMPOTENCY_FIELD_VALUE_MAX  65536

#define NGX_HTTP_IDEMPOTENCY_FIELD_PREFIX_LEN                                \
    (sizeof("idempotency_field_") - 1)

/* called for each piece of the body; NGX_OK: go on with the next one */

typedef ngx_int_t (*body_piece_pt)(void *data, u_char *p, size_t len);

typedef struct {
    ngx_idempotency_fields_t  *fields;
    /* the reader, for kinds that are read as they arrive */
    void                      *stream;
    size_t                     fed;
} field_scan_t;


static ngx_int_t body_begin(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static void body_handler(ngx_http_request_t *r);
static ngx_int_t body_feed(void *data, u_char *p, size_t len);
static ngx_int_t body_raw(void *data, u_char *p, size_t len);
static ngx_int_t body_canonical(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t body_fields(ngx_http_request_t *r,
    ngx_http_idempotency_body_t *body);
static void body_digest_init(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, const ngx_idempotency_kind_t *kind);
static ngx_int_t body_each(ngx_http_request_t *r, off_t limit,
    body_piece_pt handler, void *data);
static ngx_int_t body_copy(void *data, u_char *p, size_t len);
static off_t body_size(ngx_http_request_t *r);
static ngx_uint_t field_prefixed(ngx_str_t *variable);
static ngx_int_t field_create(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf, ngx_str_t *names,
    ngx_uint_t nnames, ngx_idempotency_fields_t **fields,
    ngx_str_t *boundary);
static ngx_uint_t field_coded(ngx_http_request_t *r);
static ngx_uint_t field_same(ngx_str_t *a, ngx_str_t *b);
static ngx_int_t field_value(ngx_http_request_t *r, ngx_str_t *name,
    ngx_str_t *value);
static ngx_int_t field_scan(ngx_http_request_t *r, ngx_str_t *name,
    ngx_str_t *value);
static ngx_int_t field_feed(void *data, u_char *p, size_t len);


static ngx_str_t  body_coding = ngx_string("content_encoding");


/*
 * NGX_OK: there is no body, or nginx has read it already.  NGX_DONE: the body
 * is being read; its end runs the phases again, or has run them already, but
 * not for an error page that is made meanwhile.
 */

ngx_int_t
ngx_http_idempotency_read_body(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_int_t  rc;

    if (body_begin(r, ctx) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (r->request_body
        || (r->headers_in.content_length_n <= 0 && !r->headers_in.chunked))
    {
        if ((ctx->body.kind == NULL || ctx->body.stream || ctx->body.fields)
            && body_each(r, -1, body_feed, &ctx->body) != NGX_OK)
        {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        return NGX_OK;
    }

    ctx->body.reading = 1;

    if (r->method == NGX_HTTP_PUT
        && (ngx_http_idempotency_dav_methods(r) & NGX_HTTP_PUT))
    {
        /* WebDAV moves the body's file to its place: it needs the flags that
           it would itself have set before reading */

        r->request_body_in_file_only = 1;
        r->request_body_in_persistent_file = 1;
        r->request_body_in_clean_file = 1;
        r->request_body_file_group_access = 1;
        r->request_body_file_log_level = 0;
    }

    rc = ngx_http_read_client_request_body(r, body_handler);

    if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {
        return rc;
    }

    ngx_http_finalize_request(r, NGX_DONE);

    return NGX_DONE;
}


/* chooses by the request's header how the body is digested */

static ngx_int_t
body_begin(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_str_t                          type, boundary;
    ngx_uint_t                         coded;
    ngx_idempotency_canon_t           *canon;
    ngx_http_idempotency_body_t       *body;
    ngx_http_idempotency_loc_conf_t   *conf;
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    conf = ctx->conf;
    body = &ctx->body;

    ngx_str_null(&type);

    if (r->headers_in.content_type) {
        type = r->headers_in.content_type->value;
    }

    /* a compressed body is digested by its bytes */

    coded = ngx_http_idempotency_header_first(r, &body_coding) != NULL;

    (void) ngx_idempotency_kind(&type, coded ? 0 : conf->canon.flags,
                                &boundary, &body->kind);

    if (body->kind && body->kind->whole
        && body_size(r) > (off_t) conf->normalize_buffer)
    {
        body->kind = NULL;
    }

    if (body->kind == NULL) {
        body_digest_init(r, ctx, NULL);
    }

    body->digested = 0;
    body->stream = NULL;
    body->unreadable = NGX_HTTP_IDEMPOTENCY_BODY_READABLE;

    if (field_create(r, conf, imcf->fields.elts, imcf->fields.nelts,
                     &body->fields, &boundary)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    body->streamed = body->kind;

    if (body->kind == NULL && body->fields && !body->fields->done) {
        body->streamed = body->fields->kind;
    }

    if (body->streamed == NULL || body->streamed->start == NULL) {
        return NGX_OK;
    }

    canon = body->kind ? &conf->canon : NULL;

    body->stream = body->streamed->start(r->pool, canon, &boundary,
                                         body->fields);

    return body->stream ? NGX_OK : NGX_ERROR;
}


static void
body_handler(ngx_http_request_t *r)
{
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ngx_http_idempotency_get_ctx(r);
    ctx->body.reading = 0;

    r->write_event_handler = ngx_http_core_run_phases;
    ngx_http_core_run_phases(r);
}


/* called above all request body filters: these are the client's own bytes */

void
ngx_http_idempotency_digest_arriving(ngx_http_request_t *r, ngx_chain_t *in)
{
    ngx_chain_t                 *cl;
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_idempotency_module);

    if (ctx == NULL || !ctx->body.reading) {
        return;
    }

    for (cl = in; cl; cl = cl->next) {
        (void) body_feed(&ctx->body, cl->buf->pos,
                         cl->buf->last - cl->buf->pos);
    }
}


static ngx_int_t
body_feed(void *data, u_char *p, size_t len)
{
    ngx_http_idempotency_body_t  *body = data;

    if (body->kind == NULL) {
        ngx_idempotency_digest_bytes(&body->running, p, len);
    }

    /* errors (malformed content, no memory) are seen at the body's end */

    if (body->stream) {
        (void) body->streamed->feed(body->stream, p, len);

    } else if (body->fields) {
        (void) ngx_idempotency_fields_feed(body->fields, p, len);
    }

    return NGX_OK;
}


static ngx_int_t
body_raw(void *data, u_char *p, size_t len)
{
    ngx_http_idempotency_body_t  *body = data;

    ngx_idempotency_digest_bytes(&body->running, p, len);

    return NGX_OK;
}


/* completes the digest when the whole body is there */

ngx_int_t
ngx_http_idempotency_digest_body(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_int_t  rc;

    rc = ctx->body.kind ? body_canonical(r, ctx) : NGX_OK;

    if (rc == NGX_DECLINED) {

        /* the body is digested by its bytes after all */

        body_digest_init(r, ctx, NULL);

        rc = body_each(r, -1, body_raw, &ctx->body);
    }

    if (rc != NGX_OK || body_fields(r, &ctx->body) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_idempotency_digest_final(&ctx->body.running, ctx->body.digest);
    ctx->body.digested = 1;

    return NGX_OK;
}


static ngx_int_t
body_canonical(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_int_t                     rc;
    ngx_str_t                     text;
    ngx_http_idempotency_body_t  *body;

    body = &ctx->body;

    if (body->stream) {
        body_digest_init(r, ctx, body->kind);

        return body->kind->finish(body->stream, &body->running);
    }

    rc = ngx_http_idempotency_whole_body(r, ctx->conf->normalize_buffer,
                                         &text);
    if (rc != NGX_OK) {
        return rc;
    }

    body_digest_init(r, ctx, body->kind);

    return ngx_idempotency_canon_body(&body->running, body->kind,
                                      &ctx->conf->canon, text.data, text.len,
                                      r->pool);
}


/* the body has ended: fields that were not found by now are missing */

static ngx_int_t
body_fields(ngx_http_request_t *r, ngx_http_idempotency_body_t *body)
{
    if (body->fields == NULL) {
        return NGX_OK;
    }

    if (body_size(r) == 0) {
        /* an empty body has no fields, whatever its type */
        body->fields = NULL;
        return NGX_OK;
    }

    if (body->stream == NULL) {
        ngx_idempotency_fields_end(body->fields);

    } else if (body->kind == NULL) {
        /* a digest by this kind would have called finish() already */
        (void) body->streamed->finish(body->stream, NULL);
    }

    return body->fields->no_memory ? NGX_ERROR : NGX_OK;
}


/* the type and the coding count: they give the same bytes another meaning */

static void
body_digest_init(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    const ngx_idempotency_kind_t *kind)
{
    ngx_str_t                            type;
    ngx_table_elt_t                     *h;
    ngx_idempotency_digest_t            *d;
    ngx_http_idempotency_header_iter_t   it;

    d = &ctx->body.running;

    ngx_str_null(&type);

    if (r->headers_in.content_type) {
        type = r->headers_in.content_type->value;
    }

    ngx_idempotency_digest_init(d, ctx->conf->digest_key,
                                NGX_IDEMPOTENCY_FINGERPRINT_VERSION,
                                NGX_IDEMPOTENCY_DIGEST_BODY);
    ngx_idempotency_digest_type(d, &type, kind ? kind->parameter : "charset");

    if (kind) {
        /* a body that is digested by its meaning has no coding */
        ngx_idempotency_digest_bytes(d, (u_char *) ".", 1);
        return;
    }

    ngx_http_idempotency_header_iter(&it, r);

    while ((h = ngx_http_idempotency_header_next(&it, &body_coding)) != NULL) {
        ngx_idempotency_digest_bytes(d, (u_char *) "E", 1);
        ngx_idempotency_digest_field(d, &h->value);
    }

    ngx_idempotency_digest_bytes(d, (u_char *) ".", 1);
    ngx_idempotency_canon_raw(d);
}


/*
 * Calls back for each piece of the body in nginx's buffers, up to a limit.
 * NGX_DECLINED: nginx has closed the body's file, as the upstream has the
 * body.
 */

static ngx_int_t
body_each(ngx_http_request_t *r, off_t limit, body_piece_pt handler,
    void *data)
{
    off_t         offset, end;
    size_t        n;
    u_char        piece[16384], *p;
    ngx_int_t     rc;
    ngx_buf_t    *b;
    ngx_chain_t  *cl;

    cl = r->request_body ? r->request_body->bufs : NULL;

    for ( /* void */ ; cl && limit != 0; cl = cl->next) {
        b = cl->buf;
        end = ngx_buf_size(b);

        if (limit != -1) {
            end = ngx_min(end, limit);
            limit -= end;
        }

        for (offset = 0; offset < end; offset += n) {

            if (ngx_buf_in_memory(b)) {
                p = b->pos;
                n = (size_t) end;

            } else {
                p = piece;
                n = (size_t) ngx_min(end - offset, (off_t) sizeof(piece));

                if (b->file->fd == NGX_INVALID_FILE) {
                    return NGX_DECLINED;
                }

                if (ngx_read_file(b->file, p, n, b->file_pos + offset)
                    != (ssize_t) n)
                {
                    return NGX_ERROR;
                }
            }

            rc = handler(data, p, n);

            if (rc != NGX_OK) {
                return rc;
            }
        }
    }

    return NGX_OK;
}


/* the body in one piece; NGX_DECLINED: it is larger than the limit, or gone */

ngx_int_t
ngx_http_idempotency_whole_body(ngx_http_request_t *r, size_t limit,
    ngx_str_t *body)
{
    off_t         size;
    u_char       *p;
    ngx_chain_t  *cl;

    ngx_str_null(body);

    if (r->request_body == NULL) {
        /* there is no body, or another module discarded it */
        return NGX_OK;
    }

    size = body_size(r);

    if (size > (off_t) limit) {
        return NGX_DECLINED;
    }

    if (size == 0) {
        return NGX_OK;
    }

    cl = r->request_body->bufs;

    body->len = (size_t) size;

    if (cl->next == NULL && ngx_buf_in_memory(cl->buf)) {
        body->data = cl->buf->pos;
        return NGX_OK;
    }

    body->data = ngx_palloc(r->pool, body->len);
    if (body->data == NULL) {
        return NGX_ERROR;
    }

    p = body->data;

    return body_each(r, -1, body_copy, &p);
}


static ngx_int_t
body_copy(void *data, u_char *p, size_t len)
{
    u_char  **dst = data;

    *dst = ngx_cpymem(*dst, p, len);

    return NGX_OK;
}


/* the announced length, or the length read; a chunked body may get any size
   until it is read */

static off_t
body_size(ngx_http_request_t *r)
{
    off_t         size;
    ngx_chain_t  *cl;

    if (r->request_body == NULL) {
        return ngx_max(r->headers_in.content_length_n, 0);
    }

    size = 0;

    for (cl = r->request_body->bufs; cl; cl = cl->next) {
        size += ngx_buf_size(cl->buf);
    }

    return size;
}


/* for the configuration, when all variables are known: collects the names of
   all $idempotency_field_NAME */

ngx_int_t
ngx_http_idempotency_init_fields(ngx_conf_t *cf)
{
    ngx_str_t                         *name;
    ngx_uint_t                         i;
    ngx_http_variable_t               *v;
    ngx_http_core_main_conf_t         *cmcf;
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);

    if (ngx_array_init(&imcf->fields, cf->pool, 4, sizeof(ngx_str_t))
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);
    v = cmcf->variables.elts;

    for (i = 0; i < cmcf->variables.nelts; i++) {

        if (!field_prefixed(&v[i].name)) {
            continue;
        }

        name = ngx_array_push(&imcf->fields);
        if (name == NULL) {
            return NGX_ERROR;
        }

        name->len = v[i].name.len - NGX_HTTP_IDEMPOTENCY_FIELD_PREFIX_LEN;
        name->data = v[i].name.data + NGX_HTTP_IDEMPOTENCY_FIELD_PREFIX_LEN;
    }

    return NGX_OK;
}


/* whether the configuration names fields so far */

ngx_uint_t
ngx_http_idempotency_has_fields(ngx_conf_t *cf)
{
    ngx_uint_t                  i;
    ngx_http_variable_t        *v;
    ngx_http_core_main_conf_t  *cmcf;

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);
    v = cmcf->variables.elts;

    for (i = 0; i < cmcf->variables.nelts; i++) {
        if (field_prefixed(&v[i].name)) {
            return 1;
        }
    }

    return 0;
}


static ngx_uint_t
field_prefixed(ngx_str_t *variable)
{
    return variable->len > NGX_HTTP_IDEMPOTENCY_FIELD_PREFIX_LEN
           && ngx_strncmp(variable->data, "idempotency_field_",
                          NGX_HTTP_IDEMPOTENCY_FIELD_PREFIX_LEN)
              == 0;
}


/*
 * For a body that is to be read. *fields is NULL if its type has no fields.
 * In a compressed body, and in one without a valid boundary, all fields are
 * unreadable.
 */

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

    rc = ngx_idempotency_kind(&r->headers_in.content_type->value,
                              NGX_IDEMPOTENCY_CANON_FIELDS, boundary, &kind);

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

    ngx_http_idempotency_header_iter(&it, r);

    while ((h = ngx_http_idempotency_header_next(&it, &body_coding)) != NULL) {
        if (h->value.len && !ngx_idempotency_equal(&h->value, "identity")) {
            return 1;
        }
    }

    return 0;
}


/*
 * names: of ngx_str_t, NULL for all.  The reason is noted for the refusal.  A
 * value with control characters, for which the variable is empty, can't be a
 * key.  With NULL such values are no error, as the text of a textarea has line
 * ends.
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

        /* the body is not read yet: the variable is evaluated again later */

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

    /* the value may be put into a header, so it must not contain a line end */

    if (rc == NGX_OK && !ngx_http_idempotency_printable(&value)) {
        rc = NGX_DECLINED;
    }

    ngx_http_idempotency_set_variable(v, rc, &value);

    return NGX_OK;
}


/* rc: the result of the search for the value */

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
    ngx_str_t                         *names;
    ngx_uint_t                         i;
    ngx_http_idempotency_ctx_t        *ctx;
    ngx_http_idempotency_main_conf_t  *imcf;

    ctx = ngx_http_idempotency_get_ctx(r);

    if (ctx == NULL || !ctx->body.digested) {
        return field_scan(r, name, value);
    }

    imcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);
    names = imcf->fields.elts;

    for (i = 0; i < imcf->fields.nelts; i++) {

        if (field_same(name, &names[i])) {
            return ctx->body.fields
                   ? ngx_idempotency_fields_value(ctx->body.fields, i, value)
                   : NGX_DECLINED;
        }
    }

    /* the name is not in the configuration: it is a script's or an SSI
       command's */

    return field_scan(r, name, value);
}


/*
 * NGX_DECLINED: there is no such field.  This body isn't read for us: it may
 * be large and in a file, and no key depends on its fields.  So only its
 * beginning is read.
 */

static ngx_int_t
field_scan(ngx_http_request_t *r, ngx_str_t *name, ngx_str_t *value)
{
    size_t                            limit;
    ngx_str_t                         boundary;
    field_scan_t                      scan;
    const ngx_idempotency_kind_t     *kind;
    ngx_http_idempotency_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);
    limit = conf->normalize_buffer;

    scan.stream = NULL;
    scan.fed = 0;

    if (field_create(r, conf, name, 1, &scan.fields, &boundary) != NGX_OK) {
        return NGX_ERROR;
    }

    if (scan.fields == NULL) {
        return NGX_DECLINED;
    }

    kind = scan.fields->kind;

    if (kind && kind->start) {
        scan.stream = kind->start(r->pool, NULL, &boundary, scan.fields);
        if (scan.stream == NULL) {
            return NGX_ERROR;
        }
    }

    if (body_each(r, limit, field_feed, &scan) == NGX_ERROR) {
        return NGX_ERROR;
    }

    if (scan.fed < limit) {
        ngx_idempotency_fields_end(scan.fields);
    }

    return ngx_idempotency_fields_value(scan.fields, 0, value);
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


/* whether the text has no control characters */

ngx_uint_t
ngx_http_idempotency_printable(ngx_str_t *s)
{
    size_t  i;

    for (i = 0; i < s->len; i++) {
        if (s->data[i] < 0x20 || s->data[i] == 0x7f) {
            return 0;
        }
    }

    return 1;
}
