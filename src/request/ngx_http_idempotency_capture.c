
/*
 * The owner's response, taken down above all of nginx's filters but a few:
 * what they would do to it they will do to a replay as well, and a client
 * that reads slowly, or has gone, doesn't hold it up.
 *
 * Output of subrequests that filters below us make (SSI, addition) is made
 * again when the response is replayed through them.  What others send (a
 * content handler's own) reaches the client past the capture: such a response
 * is not kept, rather than short.  Who made a subrequest is told by when it
 * appears among the main request's: while the request is in the filters below
 * us, or before.  A subrequest has no output before the call that made it
 * returns, so each is known in time.
 */


#include "ngx_http_idempotency.h"
#include "ngx_http_idempotency_response.h"
#include "ngx_http_idempotency.h"


#define NGX_HTTP_IDEMPOTENCY_CAPTURE_PIECE   4096

/* what files are read by that were opened for direct I/O */

#define NGX_HTTP_IDEMPOTENCY_CAPTURE_ALIGN   4096
#define NGX_HTTP_IDEMPOTENCY_CAPTURE_DIRECT                                  \
    (16 * NGX_HTTP_IDEMPOTENCY_CAPTURE_ALIGN)


typedef struct {
    ngx_http_request_t  *request;
    ngx_uint_t           below;
} subrequest_t;


static ngx_buf_t *capture_head(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_uint_t capture_stream(ngx_http_request_t *r);
static ngx_uint_t capture_says(ngx_str_t *value, char *word);
static ngx_int_t capture_buf(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_buf_t *b);
static ngx_int_t capture_read(ngx_http_request_t *r, ngx_buf_t *b, u_char *to,
    size_t n, off_t offset);
static ngx_buf_t *capture_room(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t capture_add(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_buf_t *b);
static void capture_expect(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_uint_t capture_sliced(ngx_http_request_t *r);
static void capture_check_whole(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_uint_t last);
static void capture_check_size(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t subrequest_add(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_http_request_t *sr,
    ngx_uint_t below);
static subrequest_t *subrequest_find(ngx_http_idempotency_ctx_t *ctx,
    ngx_http_request_t *sr);
static ngx_uint_t subrequest_sends(ngx_http_request_t *sr);
static void subrequest_past_capture(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);


/*
 * It may be called again for one request, if a filter replaced the response:
 * the last one is what the client gets.
 */

void
ngx_http_idempotency_capture_header(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_buf_t                       *b;
    ngx_http_idempotency_capture_t  *capture;

    capture = &ctx->capture;

    if (!r->filter_finalize) {
        capture->says_release = 0;
        capture->says_keep = 0;
    }

    if (r->upstream && r->upstream->headers_in.headers.part.elts) {
        ngx_http_idempotency_hear(&r->upstream->headers_in.headers, ctx);
    }

    ngx_http_idempotency_hear(&r->headers_out.headers, ctx);

    capture->answered = 1;
    capture->live = (r->upstream && r->upstream->cleanup);
    capture_expect(r, ctx);
    capture->status = r->headers_out.status;
    capture->size = 0;
    capture->expected = r->headers_out.content_length_n;
    capture->pieces = NULL;
    capture->last_piece = NULL;

    if (capture_sliced(r) && !capture->partial) {
        capture->partial = 1;

        if (ngx_http_idempotency_log_admits(r->connection->log,
                                        ctx->conf->log_level,
                                        NGX_HTTP_IDEMPOTENCY_STATUS_NOT_KEPT))
        {
            ngx_log_error(ctx->conf->log_level, r->connection->log, 0,
                          "idempotency: a response in slices cannot be "
                          "recorded, it is not kept");
        }
    }

    capture->too_large = (capture->partial
                          || capture->expected
                             > (off_t) ctx->conf->max_response
                          || capture->status == NGX_HTTP_SWITCHING_PROTOCOLS
                          || capture_stream(r));

    if (!capture->too_large) {
        b = capture_head(r, ctx);

        if (b == NULL || capture_add(r, ctx, b) != NGX_OK) {
            capture->too_large = 1;

        } else {
            /* trailers and body follow in pieces of their own */
            b->end = b->last;
        }
    }

    if (r->header_only || r->method == NGX_HTTP_HEAD
        || r->headers_out.status == NGX_HTTP_NO_CONTENT
        || r->headers_out.status == NGX_HTTP_NOT_MODIFIED)
    {
        capture->expected = 0;
    }

    capture_check_whole(r, ctx, 0);
    capture_check_size(r, ctx);
}


/* with the location that made it, if that isn't the one of the claim */

static ngx_buf_t *
capture_head(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_http_idempotency_location_t     location, *made_at;
    ngx_http_idempotency_loc_conf_t  *conf;

    made_at = NULL;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    if (conf != ctx->conf) {
        made_at = &location;

        if (ngx_http_idempotency_location_of(r, &location) != NGX_OK) {
            return NULL;
        }
    }

    return ngx_http_idempotency_response_header(r, ctx->conf->hide_headers,
                                                made_at);
}


/* server-sent events go on for as long as anybody listens */

static ngx_uint_t
capture_stream(ngx_http_request_t *r)
{
    ngx_http_headers_out_t  *out;

    static ngx_str_t  stream = ngx_string("text/event-stream");

    out = &r->headers_out;

    return out->content_type_len == stream.len
           && ngx_strncasecmp(out->content_type.data, stream.data, stream.len)
              == 0;
}


/*
 * What an application says of the outcome itself, in the header of the
 * response or in that of an upstream's which nginx answered with another.
 * The lines are deleted: no client sees them.
 */

void
ngx_http_idempotency_hear(ngx_list_t *headers,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    static ngx_str_t  name = ngx_string("x-accel-idempotency");

    for (part = &headers->part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {

            if (h[i].hash == 0
                || h[i].key.len != name.len
                || ngx_strncasecmp(h[i].key.data, name.data, name.len) != 0)
            {
                continue;
            }

            h[i].hash = 0;

            if (ctx) {
                ctx->capture.says_release = capture_says(&h[i].value,
                                                         "release");
                ctx->capture.says_keep = capture_says(&h[i].value, "keep");
            }
        }
    }
}


/* the same behind the body, whether nginx passes such lines on or not */

void
ngx_http_idempotency_hear_trailers(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_chain_t *in)
{
    ngx_chain_t  *cl;

    if (!ngx_http_idempotency_owns(ctx) || !ctx->capture.answered) {
        ctx = NULL;
    }

    for (cl = in; cl; cl = cl->next) {

        if (!cl->buf->last_buf) {
            continue;
        }

        if (r->upstream && r->upstream->headers_in.trailers.part.elts) {
            ngx_http_idempotency_hear(&r->upstream->headers_in.trailers, ctx);
        }

        ngx_http_idempotency_hear(&r->headers_out.trailers, ctx);
    }
}


static ngx_uint_t
capture_says(ngx_str_t *value, char *word)
{
    return value->len == ngx_strlen(word)
           && ngx_strncasecmp(value->data, (u_char *) word, value->len) == 0;
}


void
ngx_http_idempotency_capture_body(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_chain_t *in)
{
    ngx_uint_t                       last, flush;
    ngx_chain_t                     *cl;
    ngx_http_idempotency_capture_t  *capture;

    capture = &ctx->capture;
    last = 0;
    flush = 0;

    for (cl = in; cl; cl = cl->next) {

        if (cl->buf->last_buf) {
            last = 1;
        }

        if (cl->buf->flush) {
            flush = 1;
        }

        if (ngx_buf_special(cl->buf)) {
            continue;
        }

        capture->size += ngx_buf_size(cl->buf);

        if (capture->size > (off_t) ctx->conf->max_response) {
            capture->too_large = 1;
        }

        if (!capture->too_large && capture_buf(r, ctx, cl->buf) != NGX_OK) {
            capture->too_large = 1;
        }
    }

    capture_check_whole(r, ctx, last);
    capture_check_size(r, ctx);

    /* its upstream is done with, and only flushes what came before the break:
       there is no need to wait for the client to take that */

    if (ngx_http_idempotency_owns(ctx)
        && flush && capture->live && r->upstream->cleanup == NULL)
    {
        ngx_http_idempotency_settle(r, ctx);
    }
}


static ngx_int_t
capture_buf(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_buf_t *b)
{
    off_t       pos, size;
    size_t      n;
    ngx_buf_t  *to;

    size = ngx_buf_size(b);

    for (pos = 0; pos < size; pos += n) {

        to = capture_room(r, ctx);
        if (to == NULL) {
            return NGX_ERROR;
        }

        n = (size_t) ngx_min(size - pos, (off_t) (to->end - to->last));

        if (ngx_buf_in_memory(b)) {
            ngx_memcpy(to->last, b->pos + pos, n);

        } else if (capture_read(r, b, to->last, n, b->file_pos + pos)
                   != NGX_OK)
        {
            return NGX_ERROR;
        }

        to->last += n;
    }

    return NGX_OK;
}


/* direct I/O takes whole blocks alone, and the memory for them aligned */

static ngx_int_t
capture_read(ngx_http_request_t *r, ngx_buf_t *b, u_char *to, size_t n,
    off_t offset)
{
    u_char   *p;
    size_t    skip, size;
    ssize_t   got;

    if (!b->file->directio) {
        return (ngx_read_file(b->file, to, n, offset) == (ssize_t) n)
               ? NGX_OK : NGX_ERROR;
    }

    p = ngx_pmemalign(r->pool, NGX_HTTP_IDEMPOTENCY_CAPTURE_DIRECT,
                      NGX_HTTP_IDEMPOTENCY_CAPTURE_ALIGN);
    if (p == NULL) {
        return NGX_ERROR;
    }

    while (n) {
        skip = (size_t) (offset % NGX_HTTP_IDEMPOTENCY_CAPTURE_ALIGN);
        size = ngx_align(skip + n, NGX_HTTP_IDEMPOTENCY_CAPTURE_ALIGN);
        size = ngx_min(size, NGX_HTTP_IDEMPOTENCY_CAPTURE_DIRECT);

        got = ngx_read_file(b->file, p, size, offset - skip);

        if (got == NGX_ERROR || (size_t) got <= skip) {
            break;
        }

        size = ngx_min((size_t) got - skip, n);

        to = ngx_cpymem(to, p + skip, size);
        offset += size;
        n -= size;
    }

    ngx_pfree(r->pool, p);

    return n ? NGX_ERROR : NGX_OK;
}


/* a buffer with room for the next bytes, of the size that is to come */

static ngx_buf_t *
capture_room(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    off_t                            size;
    ngx_buf_t                       *b;
    ngx_http_idempotency_capture_t  *capture;

    capture = &ctx->capture;
    b = capture->last_piece->buf;

    if (b->last < b->end) {
        return b;
    }

    size = (b->end - b->start) * 2;
    size = ngx_max(size, NGX_HTTP_IDEMPOTENCY_CAPTURE_PIECE);

    if (capture->expected > 0 && capture->pieces == capture->last_piece) {
        size = capture->expected;
    }

    b = ngx_create_temp_buf(r->pool, (size_t) size);

    if (b == NULL || capture_add(r, ctx, b) != NGX_OK) {
        return NULL;
    }

    return b;
}


static ngx_int_t
capture_add(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_buf_t *b)
{
    ngx_chain_t                     *cl;
    ngx_http_idempotency_capture_t  *capture;

    capture = &ctx->capture;

    cl = ngx_alloc_chain_link(r->pool);
    if (cl == NULL) {
        return NGX_ERROR;
    }

    cl->buf = b;
    cl->next = NULL;

    if (capture->last_piece) {
        capture->last_piece->next = cl;

    } else {
        capture->pieces = cl;
    }

    capture->last_piece = cl;

    return NGX_OK;
}


/*
 * With a known length the response is whole as soon as so much has passed: the
 * client may repeat its request before nginx sends the last buffer.  Without
 * one, or if there may be trailers, it is whole with the last buffer.
 */

static void
capture_check_whole(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_uint_t last)
{
    ngx_buf_t                       *b;
    ngx_chain_t                     *cl;
    ngx_http_idempotency_capture_t  *capture;

    capture = &ctx->capture;

    if (capture->expected != -1 && capture->size != capture->expected) {
        return;
    }

    if (!last && (capture->expected == -1 || capture->trailers)) {
        return;
    }

    if (capture->grpc
        && ngx_http_idempotency_header_of(&r->upstream->headers_in.headers,
                                          "grpc-status")
           == NULL
        && ngx_http_idempotency_header_of(&r->upstream->headers_in.trailers,
                                          "grpc-status")
           == NULL)
    {
        return;
    }

    if (!capture->too_large) {

        /* the trailers stand behind the header block */

        b = ngx_http_idempotency_response_trailers(r);
        cl = ngx_alloc_chain_link(r->pool);

        if (b == NULL || cl == NULL) {
            capture->too_large = 1;

        } else {
            cl->buf = b;
            cl->next = capture->pieces->next;
            capture->pieces->next = cl;
        }
    }

    capture->whole = 1;

    ngx_http_idempotency_settle(r, ctx);
}


/* nobody needs to wait for the end of what will not be kept */

static void
capture_check_size(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    if (ngx_http_idempotency_owns(ctx) && ctx->capture.too_large) {
        ngx_http_idempotency_settle(r, ctx);
        ngx_http_idempotency_not_kept(r, ctx);
    }
}


/*
 * The trailers of gRPC follow a body of any length, are announced by nobody,
 * and are a part without which a response is none
 */

static void
capture_expect(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_str_t                       *type;
    ngx_uint_t                       grpc;
    ngx_http_upstream_t             *u;
    ngx_http_idempotency_capture_t  *capture;

    static ngx_str_t  prefix = ngx_string("application/grpc");

    u = r->upstream;
    capture = &ctx->capture;
    type = &r->headers_out.content_type;

    grpc = (capture->live && u->schema.len >= 4
            && ngx_strncmp(u->schema.data, "grpc", 4) == 0);

    capture->trailers = (grpc || r->expect_trailers);

    capture->grpc = (grpc && type->len >= prefix.len
                     && ngx_strncasecmp(type->data, prefix.data, prefix.len)
                        == 0
                     && !r->header_only);
}


/*
 * The slice module makes one response of many, below us, and is the only one
 * to know that: what passes here is a part of it
 */

static ngx_uint_t
capture_sliced(ngx_http_request_t *r)
{
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    return imcf->slice && r->ctx[imcf->slice->ctx_index];
}


/* called before the filters below us have the main request, and behind */

void
ngx_http_idempotency_subrequests(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_uint_t below)
{
    ngx_http_request_t            *sr;
    ngx_http_postponed_request_t  *pr;

    /* one that was just woken is not among the postponed any more */

    sr = r->connection->data;

    if (sr != r && sr->parent == r
        && subrequest_add(r, ctx, sr, below) != NGX_OK)
    {
        return;
    }

    for (pr = r->postponed; pr; pr = pr->next) {

        if (pr->request
            && subrequest_add(r, ctx, pr->request, below) != NGX_OK)
        {
            return;
        }
    }
}


static ngx_int_t
subrequest_add(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_http_request_t *sr, ngx_uint_t below)
{
    subrequest_t                    *s;
    ngx_http_idempotency_capture_t  *capture;

    if (subrequest_find(ctx, sr)) {
        return NGX_OK;
    }

    if (!below && subrequest_sends(sr)) {
        subrequest_past_capture(r, ctx);
    }

    capture = &ctx->capture;

    if (capture->subrequests == NULL) {
        capture->subrequests = ngx_array_create(r->pool, 4,
                                                sizeof(subrequest_t));
    }

    s = capture->subrequests ? ngx_array_push(capture->subrequests) : NULL;

    if (s == NULL) {
        subrequest_past_capture(r, ctx);
        return NGX_ERROR;
    }

    s->request = sr;
    s->below = below;

    return NGX_OK;
}


static subrequest_t *
subrequest_find(ngx_http_idempotency_ctx_t *ctx, ngx_http_request_t *sr)
{
    ngx_uint_t     i;
    subrequest_t  *s;

    if (ctx->capture.subrequests == NULL) {
        return NULL;
    }

    s = ctx->capture.subrequests->elts;

    for (i = ctx->capture.subrequests->nelts; i > 0; i--) {
        if (s[i - 1].request == sr) {
            return &s[i - 1];
        }
    }

    return NULL;
}


/* output of a subrequest, on its way to the client */

void
ngx_http_idempotency_subrequest_output(ngx_http_request_t *sr,
    ngx_http_idempotency_ctx_t *ctx, ngx_chain_t *in)
{
    ngx_chain_t                   *cl;
    subrequest_t                  *s;
    ngx_http_request_t            *first;
    ngx_http_postponed_request_t  *pr;

    for (cl = in; cl; cl = cl->next) {
        if (ngx_buf_size(cl->buf) > 0) {
            break;
        }
    }

    if (cl == NULL || !subrequest_sends(sr)) {
        return;
    }

    /* Lua captures the output of its subrequests, which never becomes active */

    if (sr->connection->data != sr) {

        for (pr = sr->parent->postponed; pr; pr = pr->next) {
            if (pr->request == sr) {
                break;
            }
        }

        if (pr == NULL) {
            return;
        }
    }

    for (first = sr; first->parent != sr->main; first = first->parent) {
        /* void */
    }

    s = subrequest_find(ctx, first);

    if (s == NULL || !s->below) {
        subrequest_past_capture(sr->main, ctx);
    }
}


static ngx_uint_t
subrequest_sends(ngx_http_request_t *sr)
{
    return !sr->subrequest_in_memory && !sr->background && !sr->header_only;
}


static void
subrequest_past_capture(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    if (ctx->capture.partial) {
        return;
    }

    ctx->capture.partial = 1;
    ctx->capture.too_large = 1;

    if (ngx_http_idempotency_log_admits(r->connection->log,
                                        ctx->conf->log_level,
                                        NGX_HTTP_IDEMPOTENCY_STATUS_NOT_KEPT))
    {
        ngx_log_error(ctx->conf->log_level, r->connection->log, 0,
                      "idempotency: the output of a subrequest cannot be "
                      "recorded, this response is not kept");
    }
}
