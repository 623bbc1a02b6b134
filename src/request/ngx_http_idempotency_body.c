
/*
 * The request's body, read whole as nginx reads it, and digested: by its
 * meaning where that is wanted, else by its bytes.  On the way its fields are
 * looked for that some variable names.
 *
 * Bytes, and the parts of a multipart form, go in as they arrive.  What is
 * sorted first, and what somebody else had read before us, is taken from
 * where nginx keeps it; and so is what turned out to be malformed, which is
 * digested by its bytes after all.
 */


#include "ngx_http_idempotency_conf.h"
#include "ngx_http_idempotency_headers.h"


static void body_put(ngx_http_request_t *r);
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
static ngx_uint_t body_coded(ngx_http_request_t *r);
static ngx_int_t body_copy(void *data, u_char *p, size_t len);
static ngx_int_t body_read(ngx_buf_t *b, u_char *p, size_t n, off_t offset);
static off_t body_size(ngx_http_request_t *r);


static ngx_str_t  body_coding = ngx_string("content_encoding");


/*
 * NGX_OK: it was there already, or there is none; NGX_DONE: the phases are run
 * again, perhaps were already, when it has been read, but for error pages
 * while it is not
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
            && ngx_http_idempotency_each_piece(r, -1, body_feed, &ctx->body)
               != NGX_OK)
        {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        return NGX_OK;
    }

    ctx->body.reading = 1;

    if (r->method == NGX_HTTP_PUT) {
        body_put(r);
    }

    rc = ngx_http_read_client_request_body(r, body_handler);

    if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {
        return rc;
    }

    ngx_http_finalize_request(r, NGX_DONE);

    return NGX_DONE;
}


/*
 * ngx_http_dav_module moves the body's file to its place, so where it handles
 * PUT it wants what it would itself have asked for before reading.  It is
 * looked up by name, as nginx may be built without it; its configuration
 * begins with its methods.
 */

static void
body_put(ngx_http_request_t *r)
{
    ngx_uint_t                        *methods;
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    if (imcf->dav == NULL) {
        return;
    }

    methods = ngx_http_get_module_loc_conf(r, (*imcf->dav));

    if (*methods & NGX_HTTP_PUT) {
        r->request_body_in_file_only = 1;
        r->request_body_in_persistent_file = 1;
        r->request_body_in_clean_file = 1;
        r->request_body_file_group_access = 1;
        r->request_body_file_log_level = 0;
    }
}


/* how it will be digested, as far as its header tells */

static ngx_int_t
body_begin(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_str_t                         type, boundary;
    ngx_idempotency_canon_t          *canon;
    ngx_http_idempotency_body_t      *body;
    ngx_http_idempotency_loc_conf_t  *conf;

    conf = ctx->conf;
    body = &ctx->body;

    ngx_str_null(&type);

    if (r->headers_in.content_type) {
        type = r->headers_in.content_type->value;
    }

    body->kind = body_coded(r) ? NULL
                 : ngx_idempotency_canon_kind(&type, conf->canon.flags,
                                              &boundary);
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

    if (ngx_http_idempotency_look_for_fields(r, conf, &body->fields, &boundary)
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


/* called above all request body filters: the bytes are the client's own */

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

    /* what turns out to be malformed, or no memory, is heard of at the end */

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


/* when all of it is there */

ngx_int_t
ngx_http_idempotency_digest_body(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_int_t  rc;

    rc = ctx->body.kind ? body_canonical(r, ctx) : NGX_OK;

    if (rc == NGX_DECLINED) {

        /* by its bytes after all */

        body_digest_init(r, ctx, NULL);

        rc = ngx_http_idempotency_each_piece(r, -1, body_raw, &ctx->body);
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


/* what is to be found was found by now, or is not there */

static ngx_int_t
body_fields(ngx_http_request_t *r, ngx_http_idempotency_body_t *body)
{
    if (body->fields == NULL) {
        return NGX_OK;
    }

    if (body_size(r) == 0) {
        /* whatever its type says */
        body->fields = NULL;
        return NGX_OK;
    }

    if (body->stream == NULL) {
        ngx_idempotency_fields_end(body->fields);

    } else if (body->kind == NULL) {
        /* it has no digest; where it has one, that came to its end */
        (void) body->streamed->finish(body->stream, NULL);
    }

    return body->fields->no_memory ? NGX_ERROR : NGX_OK;
}


/* the same bytes in another type or coding are another body */

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

    ngx_http_idempotency_header_iter(&it, r);

    while ((h = ngx_http_idempotency_header_next(&it, &body_coding)) != NULL) {
        ngx_idempotency_digest_bytes(d, (u_char *) "E", 1);
        ngx_idempotency_digest_field(d, &h->value);
    }

    ngx_idempotency_digest_bytes(d, (u_char *) ".", 1);

    if (kind == NULL) {
        ngx_idempotency_canon_raw(d);
    }
}


/* what is compressed is digested by its bytes */

static ngx_uint_t
body_coded(ngx_http_request_t *r)
{
    return ngx_http_idempotency_header_first(r, &body_coding) != NULL;
}


/* calls back for each piece of the body, up to a limit, as nginx keeps it */

ngx_int_t
ngx_http_idempotency_each_piece(ngx_http_request_t *r, off_t limit,
    ngx_http_idempotency_piece_pt handler, void *data)
{
    off_t         offset, end;
    size_t        n;
    u_char        piece[16384];
    ngx_int_t     rc;
    ngx_buf_t    *b;
    ngx_chain_t  *cl;

    cl = r->request_body ? r->request_body->bufs : NULL;

    for ( /* void */ ; cl && limit != 0; cl = cl->next) {
        b = cl->buf;

        offset = 0;
        end = ngx_buf_size(b);

        if (limit != -1) {
            end = ngx_min(end, limit);
            limit -= end;
        }

        if (ngx_buf_in_memory(b)) {
            rc = handler(data, b->pos, (size_t) end);

            if (rc != NGX_OK) {
                return rc;
            }

            continue;
        }

        for ( /* void */ ; offset < end; offset += n) {
            n = (size_t) ngx_min(end - offset, (off_t) sizeof(piece));

            rc = body_read(b, piece, n, offset);

            if (rc != NGX_OK) {
                return rc;
            }

            rc = handler(data, piece, n);

            if (rc != NGX_OK) {
                return rc;
            }
        }
    }

    return NGX_OK;
}


/* NGX_DECLINED: nginx has closed the file, as the upstream has the body */

static ngx_int_t
body_read(ngx_buf_t *b, u_char *p, size_t n, off_t offset)
{
    if (b->file->fd == NGX_INVALID_FILE) {
        return NGX_DECLINED;
    }

    if (ngx_read_file(b->file, p, n, b->file_pos + offset) != (ssize_t) n) {
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* in one piece; NGX_DECLINED: it is larger than the limit, or gone */

ngx_int_t
ngx_http_idempotency_whole_body(ngx_http_request_t *r, size_t limit,
    ngx_str_t *body)
{
    off_t         size;
    u_char       *p;
    ngx_chain_t  *cl;

    ngx_str_null(body);

    if (r->request_body == NULL) {
        /* there is none, or somebody discarded it */
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

    return ngx_http_idempotency_each_piece(r, -1, body_copy, &p);
}


static ngx_int_t
body_copy(void *data, u_char *p, size_t len)
{
    u_char  **dst = data;

    *dst = ngx_cpymem(*dst, p, len);

    return NGX_OK;
}


/* as announced, or as read; a chunked one is of any size until then */

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
