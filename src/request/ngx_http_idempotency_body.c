
/*
 * The key: the first non-empty value of idempotency_key, its format, and
 * whether the content stands for a missing key.
 *
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

/* called for each piece of the body; NGX_OK: go on with the next one */

typedef ngx_int_t (*body_piece_pt)(void *data, u_char *p, size_t len);


static ngx_int_t body_begin(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static void body_handler(ngx_http_request_t *r);
static ngx_int_t body_feed(void *data, u_char *p, size_t len);
static ngx_int_t body_feed_fields(void *data, u_char *p, size_t len);
static ngx_int_t body_digest_piece(void *data, u_char *p, size_t len);
static ngx_int_t body_canonical(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t body_end_fields(ngx_http_request_t *r,
    ngx_http_idempotency_body_t *body);
static void body_digest_init(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, const ngx_idempotency_kind_t *kind);
static ngx_int_t body_each(ngx_http_request_t *r, off_t limit,
    body_piece_pt handler, void *data);
static ngx_int_t body_copy(void *data, u_char *p, size_t len);
static off_t body_size(ngx_http_request_t *r);
static ngx_int_t field_create(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf, ngx_str_t *names,
    ngx_uint_t nnames, ngx_idempotency_fields_t **fields,
    ngx_str_t *boundary);
static ngx_uint_t field_coded(ngx_http_request_t *r);
static ngx_uint_t field_unread(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_array_t *names);
static ngx_uint_t field_printable(ngx_str_t *s);
static ngx_uint_t field_same(ngx_str_t *a, ngx_str_t *b);
static ngx_int_t field_value(ngx_http_request_t *r, ngx_str_t *name,
    ngx_str_t *value);
static ngx_int_t field_scan(ngx_http_request_t *r, ngx_str_t *name,
    ngx_str_t *value);
static ngx_uint_t key_unread(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_http_idempotency_key_t *source);
static ngx_uint_t key_of_field(ngx_http_request_t *r,
    ngx_http_idempotency_key_t *source, ngx_str_t *key);
static ngx_uint_t key_repeated(ngx_http_request_t *r,
    ngx_http_idempotency_key_t *source);
static ngx_uint_t key_of_browser(ngx_http_request_t *r,
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


/*
 * The methods that WebDAV handles in a location.  nginx may be built without
 * WebDAV.  The methods are the first member of its configuration; "off" is a
 * bit that stands for GET there.
 */

ngx_uint_t
ngx_http_idempotency_dav_methods(ngx_http_request_t *r)
{
    ngx_uint_t                        *methods;
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    if (imcf->dav == NULL) {
        return 0;
    }

    methods = ngx_http_get_module_loc_conf(r, (*imcf->dav));

    return *methods & ~NGX_HTTP_GET;
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

    coded = ngx_http_idempotency_header_next(r, "content_encoding", NULL)
            != NULL;

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

    (void) body_feed_fields(data, p, len);

    return NGX_OK;
}


/* NGX_DECLINED: all fields are found */

static ngx_int_t
body_feed_fields(void *data, u_char *p, size_t len)
{
    ngx_http_idempotency_body_t  *body = data;

    /* errors (malformed content, no memory) are seen at the body's end */

    if (body->stream) {
        (void) body->streamed->feed(body->stream, p, len);

    } else if (body->fields) {
        (void) ngx_idempotency_fields_feed(body->fields, p, len);
    }

    return (body->fields && body->fields->done) ? NGX_DECLINED : NGX_OK;
}


static ngx_int_t
body_digest_piece(void *data, u_char *p, size_t len)
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

        rc = body_each(r, -1, body_digest_piece, &ctx->body);
    }

    if (rc != NGX_OK || body_end_fields(r, &ctx->body) != NGX_OK) {
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

    rc = ngx_idempotency_canon_body(&body->running, body->kind,
                                    &ctx->conf->canon, text.data, text.len,
                                    r->pool);

    if (text.len && text.data != r->request_body->bufs->buf->pos) {

        /* a copy, and the upstream may take long */
        (void) ngx_pfree(r->pool, text.data);
    }

    return rc;
}


/* the body has ended: fields that were not found by now are missing */

static ngx_int_t
body_end_fields(ngx_http_request_t *r, ngx_http_idempotency_body_t *body)
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
    ngx_str_t                  type;
    ngx_table_elt_t           *h;
    ngx_idempotency_digest_t  *d;

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

    h = NULL;

    while ((h = ngx_http_idempotency_header_next(r, "content_encoding", h))
           != NULL)
    {
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
    ngx_table_elt_t  *h;

    h = NULL;

    while ((h = ngx_http_idempotency_header_next(r, "content_encoding", h))
           != NULL)
    {
        if (h->value.len && !ngx_idempotency_equal(&h->value, "identity")) {
            return 1;
        }
    }

    return 0;
}


/*
 * Whether one of these fields, or with NULL any, may be in the body and can't
 * be read: the reason is noted for the refusal.  Or a named one has control
 * characters: its variable is empty, so it can't be a key.  Not so with NULL,
 * as the text of a textarea has line ends.
 */

static ngx_uint_t
field_unread(ngx_http_request_t *r,
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
                && (names == NULL || field_printable(&value))))
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


/* NGX_DECLINED: there is no such field, or its value can't be put into a
   header, as it has a line end or another control character */

ngx_int_t
ngx_http_idempotency_field(ngx_http_request_t *r, ngx_str_t *name,
    ngx_str_t *value)
{
    ngx_int_t  rc;

    rc = field_value(r, name, value);

    return (rc == NGX_OK && !field_printable(value)) ? NGX_DECLINED : rc;
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
    ngx_int_t                         rc;
    ngx_str_t                         boundary;
    ngx_http_idempotency_body_t       body;
    ngx_http_idempotency_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);
    limit = conf->normalize_buffer;

    ngx_memzero(&body, sizeof(ngx_http_idempotency_body_t));

    if (field_create(r, conf, name, 1, &body.fields, &boundary) != NGX_OK) {
        return NGX_ERROR;
    }

    if (body.fields == NULL) {
        return NGX_DECLINED;
    }

    body.streamed = body.fields->kind;

    if (body.streamed && body.streamed->start) {
        body.stream = body.streamed->start(r->pool, NULL, &boundary,
                                           body.fields);
        if (body.stream == NULL) {
            return NGX_ERROR;
        }
    }

    rc = body_each(r, limit, body_feed_fields, &body);

    if (rc == NGX_ERROR || body.fields->no_memory) {
        return NGX_ERROR;
    }

    if (rc == NGX_DECLINED || body_size(r) < (off_t) limit) {
        ngx_idempotency_fields_end(body.fields);
    }

    return ngx_idempotency_fields_value(body.fields, 0, value);
}


/* whether the text has no control characters */

static ngx_uint_t
field_printable(ngx_str_t *s)
{
    size_t  i;

    for (i = 0; i < s->len; i++) {
        if (s->data[i] < 0x20 || s->data[i] == 0x7f) {
            return 0;
        }
    }

    return 1;
}


/* NEW: there is a valid key, or the content stands for it */

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

        if (source[i].header && key_of_browser(r, ctx->conf)) {
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

    ctx->body.form_key = form_type(r)
                         && key_of_field(r, &source[i - 1], key);

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
                   : field_printable(key))
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
        return field_unread(r, ctx, &source->fields);
    }

    return source->indirect && ctx->key.len == 0
           && field_unread(r, ctx, NULL);
}


/* whether the key is made of a field; a map's value may be made of any, or be
   the header's */

static ngx_uint_t
key_of_field(ngx_http_request_t *r, ngx_http_idempotency_key_t *source,
    ngx_str_t *key)
{
    ngx_str_t                         *name, value;
    ngx_uint_t                         i;
    ngx_array_t                       *names;
    ngx_table_elt_t                   *h;
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    names = source->indirect ? &imcf->fields : &source->fields;
    name = names->elts;

    h = ngx_http_idempotency_header_next(r, "idempotency_key", NULL);

    if (source->indirect && h && ngx_idempotency_same(&h->value, key)) {
        return 0;
    }

    for (i = 0; i < names->nelts; i++) {
        if (field_value(r, &name[i], &value) == NGX_OK && value.len) {
            return 1;
        }
    }

    return 0;
}


/* Several lines of a header are several keys.  Depending on its version nginx
   gives a variable the first line, or all of them joined. */

static ngx_uint_t
key_repeated(ngx_http_request_t *r, ngx_http_idempotency_key_t *source)
{
    char             *name;
    ngx_str_t        *names;
    ngx_uint_t        i;
    ngx_table_elt_t  *h;

    names = source->headers.elts;

    for (i = 0; i < source->headers.nelts; i++) {
        name = (char *) names[i].data;
        h = ngx_http_idempotency_header_next(r, name, NULL);

        if (h && ngx_http_idempotency_header_next(r, name, h)) {
            return 1;
        }
    }

    return 0;
}


/*
 * Whether a browser has made the key, for a form that it sends by itself: a new
 * key each time, so that two clicks are two operations.  Such a key is ignored:
 * the content, or a field of the form, stands for it.
 */

static ngx_uint_t
key_of_browser(ngx_http_request_t *r, ngx_http_idempotency_loc_conf_t *conf)
{
    if ((conf->missing_key != NGX_HTTP_IDEMPOTENCY_MISSING_KEY_CONTENT
         && conf->missing_key != NGX_HTTP_IDEMPOTENCY_MISSING_KEY_FORM)
        || !form_navigates(r)
        || ngx_http_idempotency_header_next(r, "idempotency_key", NULL) == NULL)
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
    size_t    i;
    u_char    c;
    uint64_t  ms;

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
        return (form_type(r) && form_sent(r))
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
    ngx_uint_t  specific;

    if (ngx_http_idempotency_header_next(r, "sec_fetch_mode", NULL)) {
        return form_navigates(r);
    }

    /* a client that accepts anything, and not HTML by name, is a program */

    return ngx_http_idempotency_header_next(r, "x_requested_with", NULL) == NULL
           && ngx_http_idempotency_accept(r, "text/html", &specific)
           && specific == 3;
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

    h = ngx_http_idempotency_header_next(r, "sec_fetch_mode", NULL);

    return h && ngx_idempotency_is(&h->value, "navigate");
}


/* a value whose variables are all empty is empty, whatever its constant
   text */

ngx_int_t
ngx_http_idempotency_value(ngx_http_request_t *r,
    ngx_http_idempotency_value_t *value, ngx_str_t *text)
{
    if (ngx_http_idempotency_string(r, &value->script, text) != NGX_OK) {
        return NGX_ERROR;
    }

    if (value->script.lengths && text->len == value->constant) {
        text->len = 0;
    }

    return NGX_OK;
}


/* A map's regular expression replaces the request's captures.  The location may
   still need its own, as in proxy_pass with $1: they are put back. */

ngx_int_t
ngx_http_idempotency_string(ngx_http_request_t *r,
    ngx_http_complex_value_t *cv, ngx_str_t *text)
{
#if (NGX_PCRE)

    int         *captures;
    u_char      *data;
    ngx_int_t    rc;
    ngx_uint_t   n;

    if (r->captures && r->ncaptures && cv->lengths) {

        captures = ngx_palloc(r->pool, r->ncaptures * sizeof(int));
        if (captures == NULL) {
            return NGX_ERROR;
        }

        data = r->captures_data;
        n = r->ncaptures;
        ngx_memcpy(captures, r->captures, n * sizeof(int));

        rc = ngx_http_complex_value(r, cv, text);

        if (r->captures) {
            ngx_memcpy(r->captures, captures, n * sizeof(int));
            r->captures_data = data;
            r->ncaptures = n;
        }

        return rc;
    }

#endif

    return ngx_http_complex_value(r, cv, text);
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
