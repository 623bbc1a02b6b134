
/*
 * The request's body, read whole as nginx reads it, and digested as it
 * arrives.  What somebody else had read before us is digested from where
 * nginx keeps it.
 */


#include "ngx_http_idempotency.h"


static void body_handler(ngx_http_request_t *r);
static void body_digest_init(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t body_digest_kept(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);


/*
 * NGX_OK: the body was there already, or there is none; NGX_DONE: the phases
 * are run again, perhaps were already, when it has been read
 */

ngx_int_t
ngx_http_idempotency_read_body(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_int_t  rc;

    if (r->request_body == NULL
        && (r->headers_in.content_length_n > 0 || r->headers_in.chunked))
    {
        body_digest_init(r, ctx);
        ctx->digesting = 1;

        rc = ngx_http_read_client_request_body(r, body_handler);

        if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {
            return rc;
        }

        ngx_http_finalize_request(r, NGX_DONE);

        return NGX_DONE;
    }

    if (ctx->digesting) {

        /* run again by body_handler() */

        ctx->digesting = 0;

    } else {
        body_digest_init(r, ctx);

        if (body_digest_kept(r, ctx) != NGX_OK) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    ngx_idempotency_digest_final(&ctx->body, ctx->digest);
    ctx->hashed = 1;

    return NGX_OK;
}


static void
body_handler(ngx_http_request_t *r)
{
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

    if (ctx == NULL || !ctx->digesting) {
        return;
    }

    for (cl = in; cl; cl = cl->next) {
        ngx_idempotency_digest_bytes(&ctx->body, cl->buf->pos,
                                     cl->buf->last - cl->buf->pos);
    }
}


/* the same bytes in another type or coding are another body */

static void
body_digest_init(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_str_t                            type;
    ngx_table_elt_t                     *h;
    ngx_http_idempotency_header_iter_t   it;

    static ngx_str_t  coding = ngx_string("content_encoding");

    ngx_str_null(&type);

    if (r->headers_in.content_type) {
        type = r->headers_in.content_type->value;
    }

    ngx_idempotency_digest_init(&ctx->body, NGX_IDEMPOTENCY_DIGEST_BODY);
    ngx_idempotency_digest_type(&ctx->body, &type);

    ngx_http_idempotency_header_iter(&it, r);

    while ((h = ngx_http_idempotency_header_next(&it, &coding)) != NULL) {
        ngx_idempotency_digest_bytes(&ctx->body, (u_char *) "E", 1);
        ngx_idempotency_digest_field(&ctx->body, &h->value);
    }

    ngx_idempotency_digest_bytes(&ctx->body, (u_char *) ".", 1);
}


static ngx_int_t
body_digest_kept(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    off_t         offset;
    size_t        size;
    u_char        data[16384];
    ngx_buf_t    *b;
    ngx_chain_t  *cl;

    if (r->request_body == NULL) {
        return NGX_OK;
    }

    for (cl = r->request_body->bufs; cl; cl = cl->next) {
        b = cl->buf;

        if (ngx_buf_in_memory(b)) {
            ngx_idempotency_digest_bytes(&ctx->body, b->pos, b->last - b->pos);
            continue;
        }

        for (offset = b->file_pos; offset < b->file_last; offset += size) {
            size = (size_t) ngx_min(b->file_last - offset,
                                    (off_t) sizeof(data));

            if (ngx_read_file(b->file, data, size, offset) != (ssize_t) size) {
                return NGX_ERROR;
            }

            ngx_idempotency_digest_bytes(&ctx->body, data, size);
        }
    }

    return NGX_OK;
}
