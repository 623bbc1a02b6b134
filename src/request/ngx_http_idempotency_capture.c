
/*
 * The filters: an owner's response on its way to the client, and the outcome
 * that follows from it and from the facts at the end of the request.
 *
 * The response is captured above all of nginx's filters but a few.  The filters
 * below us treat a replay as they treated the original, and a client that reads
 * slowly, or has gone, doesn't hold the capture up.
 *
 * This is a module of its own, as a module has one place for its phase handlers
 * and its filters.  It comes behind all modules with handlers, so it registers
 * those of our handlers that must run first in their phases.
 *
 * POSTPONED  Under a strict store a response ends after the store's answer,
 *            when the file has the outcome.  So a response that a client has
 *            seen whole is not forgotten.  The last buffer with data and all
 *            buffers behind it are held back, or the header, if there is no
 *            body.  A bit in the connection's "buffered" tells nginx that
 *            output is left.
 * ONE RULE   The table of outcomes is the whole rule: the first row that fits
 *            decides.  docs/guarantees.md shows the same table.
 * WHOLE      A response of which a part doesn't pass here is not kept, rather
 *            than cut short.  Subrequests that filters below us make (SSI,
 *            addition) are made again when a replay passes these filters, and
 *            don't count.  The output of others (a content handler's) counts.
 *            A subrequest was made below us if it appeared among the main
 *            request's while the filters below us ran.  It has no output before
 *            the call that makes it returns, so each is noted in time.
 */


#include "ngx_http_idempotency_response.h"


#define NGX_HTTP_IDEMPOTENCY_CAPTURE_PIECE   4096

/* in the connection's "buffered", above nginx's own bits */

#define NGX_HTTP_IDEMPOTENCY_BUFFERED  0x40


typedef struct {
    ngx_http_request_t  *request;
    ngx_uint_t           below;
} subrequest_t;


typedef enum {
    /* X-Accel-Idempotency: release */
    fact_says_release = 0x01,
    /* the last peer gave no response header */
    fact_no_answer = 0x02,
    /* some peer was sent a byte, or may have been */
    fact_sent = 0x04,
    /* the response broke off */
    fact_broken = 0x08,
    /* by idempotency_keep its status binds no token */
    fact_unkept = 0x10,
    /* the response exceeds idempotency_max_response */
    fact_too_large = 0x20,
    /* idempotency_in_doubt retry */
    fact_retry = 0x40,
    /* a redirect or an error, made by nginx alone */
    fact_own = 0x80
} outcome_fact_e;

typedef struct {
    ngx_uint_t  all_of;
    ngx_uint_t  none_of;
    ngx_int_t   outcome;
} outcome_row_t;

static outcome_row_t  outcome_table[] = {

    { fact_says_release,         0,          NGX_HTTP_IDEMPOTENCY_RELEASE },
    { fact_no_answer,            fact_sent,  NGX_HTTP_IDEMPOTENCY_RELEASE },
    { fact_no_answer|fact_retry, 0,          NGX_HTTP_IDEMPOTENCY_RELEASE },
    { fact_no_answer,            0,          NGX_IDEMPOTENCY_IN_DOUBT },
    { fact_own,                  0,          NGX_HTTP_IDEMPOTENCY_LEAVE },
    { fact_unkept,               0,          NGX_HTTP_IDEMPOTENCY_LEAVE },
    { fact_broken,               0,          NGX_IDEMPOTENCY_NOT_KEPT },
    { fact_too_large,            0,          NGX_IDEMPOTENCY_NOT_KEPT },
    { 0,                         0,          NGX_IDEMPOTENCY_DONE }
};

/* Statuses that mean that the request was not carried out: always, or with a
   Retry-After, or with a Retry-After that the application itself has sent. */

typedef enum {
    outcome_by_status = 0,
    outcome_by_after,
    outcome_by_origin
} outcome_by_e;

typedef struct {
    ngx_uint_t  status;
    ngx_uint_t  retry;
} outcome_status_t;

static outcome_status_t  outcome_not_executed[] = {

    { NGX_HTTP_UNAUTHORIZED,        outcome_by_status },
    { NGX_HTTP_FORBIDDEN,           outcome_by_status },
    { 407,                          outcome_by_status },
    { NGX_HTTP_CONFLICT,            outcome_by_after },
    { 419,                          outcome_by_status },
    { 421,                          outcome_by_status },
    { 425,                          outcome_by_status },
    { NGX_HTTP_TOO_MANY_REQUESTS,   outcome_by_status },
    { NGX_HTTP_SERVICE_UNAVAILABLE, outcome_by_origin },
    { 0, 0 }
};

/* permission denied, resource exhausted, unavailable, unauthenticated */

static ngx_str_t  outcome_grpc_not_executed[] = {
    ngx_string("7"),
    ngx_string("8"),
    ngx_string("14"),
    ngx_string("16"),
    ngx_null_string
};


static ngx_int_t ngx_http_idempotency_header_filter(ngx_http_request_t *r);
static ngx_int_t ngx_http_idempotency_body_filter(ngx_http_request_t *r,
    ngx_chain_t *in);
static ngx_int_t filter_main_body(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_chain_t *in);
static ngx_int_t filter_below(ngx_http_request_t *r, ngx_chain_t *in);
static void filter_swallow(ngx_chain_t *in);
static ngx_int_t ngx_http_idempotency_request_body_filter(
    ngx_http_request_t *r, ngx_chain_t *in);
static void capture_header(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t capture_head(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static void capture_partial(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, char *what);
static ngx_uint_t capture_bodyless(ngx_http_request_t *r);
static ngx_http_upstream_t *capture_upstream(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static void capture_accel(ngx_list_t *headers,
    ngx_http_idempotency_ctx_t *ctx);
static void capture_accel_trailers(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_chain_t *in);
static void capture_body(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_chain_t *in);
static ngx_int_t capture_buf(ngx_http_request_t *r,
    ngx_http_idempotency_capture_t *capture, ngx_buf_t *b);
static ngx_int_t capture_read(ngx_buf_t *b, u_char *to, size_t n,
    off_t offset);
static ngx_buf_t *capture_room(ngx_http_request_t *r,
    ngx_http_idempotency_capture_t *capture);
static ngx_int_t capture_add(ngx_http_request_t *r,
    ngx_http_idempotency_capture_t *capture, ngx_buf_t *b);
static void capture_settle(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_uint_t last);
static ngx_uint_t capture_ends(ngx_http_request_t *r,
    ngx_http_idempotency_capture_t *capture, ngx_uint_t last);
static void subrequests_note(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_uint_t below);
static void subrequest_add(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_http_request_t *sr,
    ngx_uint_t below);
static subrequest_t *subrequest_find(ngx_http_idempotency_ctx_t *ctx,
    ngx_http_request_t *sr);
static void subrequest_output(ngx_http_request_t *sr,
    ngx_http_idempotency_ctx_t *ctx, ngx_chain_t *in);
static ngx_uint_t subrequest_sends(ngx_http_request_t *sr);
static ngx_uint_t postpone_header(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t postpone_body(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_chain_t **in);
static ngx_int_t postpone_result(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_int_t rc);
static ngx_uint_t postpone_unanswered(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static void postpone_begin(ngx_http_request_t *r,
    ngx_http_idempotency_postpone_t *postpone);
static ngx_uint_t postpone_is_end(ngx_http_idempotency_postpone_t *postpone,
    ngx_chain_t *in);
static ngx_int_t postpone_split(ngx_http_request_t *r,
    ngx_http_idempotency_postpone_t *postpone, ngx_chain_t **in);
static ngx_int_t postpone_add(ngx_http_request_t *r,
    ngx_http_idempotency_postpone_t *postpone, ngx_chain_t *in);
static ngx_buf_t *postpone_buf(ngx_http_request_t *r,
    ngx_http_idempotency_postpone_t *postpone, ngx_buf_t *b);
static ngx_int_t ngx_http_idempotency_filter_init(ngx_conf_t *cf);
static ngx_int_t ngx_http_idempotency_filter_init_module(ngx_cycle_t *cycle);
static void outcome_attempt(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_uint_t outcome_upstream(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_uint_t outcome_own(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_uint_t outcome_keeps(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_uint_t outcome_executed(ngx_list_t *headers, ngx_uint_t status);
static ngx_uint_t outcome_grpc_executed(ngx_list_t *headers);


static ngx_http_module_t  ngx_http_idempotency_filter_module_ctx = {
    NULL,                                  /* preconfiguration */
    ngx_http_idempotency_filter_init,      /* postconfiguration */

    NULL,                                  /* create main configuration */
    NULL,                                  /* init main configuration */

    NULL,                                  /* create server configuration */
    NULL,                                  /* merge server configuration */

    NULL,                                  /* create location configuration */
    NULL                                   /* merge location configuration */
};


ngx_module_t  ngx_http_idempotency_filter_module = {
    NGX_MODULE_V1,
    &ngx_http_idempotency_filter_module_ctx, /* module context */
    NULL,                                  /* module directives */
    NGX_HTTP_MODULE,                       /* module type */
    NULL,                                  /* init master */
    ngx_http_idempotency_filter_init_module, /* init module */
    NULL,                                  /* init process */
    NULL,                                  /* init thread */
    NULL,                                  /* exit thread */
    NULL,                                  /* exit process */
    NULL,                                  /* exit master */
    NGX_MODULE_V1_PADDING
};


static ngx_http_output_header_filter_pt  ngx_http_next_header_filter;
static ngx_http_output_body_filter_pt    ngx_http_next_body_filter;
static ngx_http_request_body_filter_pt   ngx_http_next_request_body_filter;


static ngx_int_t
ngx_http_idempotency_header_filter(ngx_http_request_t *r)
{
    ngx_int_t                         rc;
    ngx_http_idempotency_ctx_t       *ctx;
    ngx_http_idempotency_loc_conf_t  *conf;

    if (r != r->main
        || (r->headers_out.status < NGX_HTTP_OK
            && r->headers_out.status != NGX_HTTP_SWITCHING_PROTOCOLS))
    {
        return ngx_http_next_header_filter(r);
    }

    ctx = ngx_http_idempotency_get_ctx(r);

    if (ctx == NULL) {
        conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

        if (conf->store) {
            capture_accel(&r->headers_out.headers, NULL);
        }

        return ngx_http_next_header_filter(r);
    }

    ngx_http_idempotency_count(ctx);

    if (ngx_http_idempotency_owns(ctx)) {
        capture_header(r, ctx);

    } else if (!ngx_http_idempotency_nests(ctx)) {

        /* a nested response keeps X-Accel-Idempotency for the outer request */

        capture_accel(&r->headers_out.headers, NULL);
    }

    if (ctx->client.gone) {
        r->connection->error = 1;
    }

    if (postpone_header(r, ctx)) {
        return postpone_result(r, ctx, NGX_OK);
    }

    rc = ngx_http_next_header_filter(r);

    if (ngx_http_idempotency_client_gone(r, ctx, rc)) {
        r->header_sent = 1;
        return NGX_OK;
    }

    return postpone_result(r, ctx, rc);
}


static ngx_int_t
ngx_http_idempotency_body_filter(ngx_http_request_t *r, ngx_chain_t *in)
{
    ngx_http_idempotency_ctx_t       *ctx;
    ngx_http_idempotency_loc_conf_t  *conf;

    ctx = ngx_http_idempotency_get_ctx(r);

    if (ctx == NULL) {
        conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

        if (r == r->main && conf->store) {
            capture_accel_trailers(r, NULL, in);
        }

        return ngx_http_next_body_filter(r, in);
    }

    if (ctx->client.gone) {
        /* upstream.c has hidden the error until now */
        r->connection->error = 1;
    }

    if (r == r->main) {
        return filter_main_body(r, ctx, in);
    }

    if (ngx_http_idempotency_owns(ctx)) {
        subrequest_output(r, ctx, in);
    }

    return filter_below(r, in);
}


static ngx_int_t
filter_main_body(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_chain_t *in)
{
    ngx_int_t  rc;

    if (!ngx_http_idempotency_nests(ctx)) {
        capture_accel_trailers(r, ctx, in);
    }

    if (ngx_http_idempotency_owns(ctx)) {
        subrequests_note(r, ctx, 0);
    }

    if (ngx_http_idempotency_carried(ctx)
        && ctx->capture.answered && !r->post_action)
    {
        ngx_http_idempotency_watch_client(r, ctx);

        if (ngx_http_idempotency_owns(ctx)) {
            capture_body(r, ctx, in);
        }
    }

    if (ctx->client.gone) {
        filter_swallow(in);
        return NGX_OK;
    }

    if (ctx->postpone.header && !ctx->postpone.waiting) {

        /* the header was postponed, and is sent now */

        ctx->postpone.header = 0;
        r->header_sent = 0;

        rc = ngx_http_next_header_filter(r);

        if (rc == NGX_ERROR || rc > NGX_OK) {
            return rc;
        }
    }

    rc = postpone_body(r, ctx, &in);

    if (rc != NGX_OK) {
        return rc;
    }

    rc = filter_below(r, in);

    if (ngx_http_idempotency_owns(ctx)) {
        subrequests_note(r, ctx, 1);
    }

    if (ngx_http_idempotency_client_gone(r, ctx, rc)) {
        filter_swallow(in);
        return NGX_OK;
    }

    return postpone_result(r, ctx, rc);
}


/* hides from the filters below us that we hold output back */

static ngx_int_t
filter_below(ngx_http_request_t *r, ngx_chain_t *in)
{
    ngx_int_t   rc;
    ngx_uint_t  postponed;

    postponed = r->connection->buffered & NGX_HTTP_IDEMPOTENCY_BUFFERED;
    r->connection->buffered &= ~NGX_HTTP_IDEMPOTENCY_BUFFERED;

    rc = ngx_http_next_body_filter(r, in);

    r->connection->buffered |= postponed;

    return rc;
}


/* marks buffers as sent */

static void
filter_swallow(ngx_chain_t *in)
{
    ngx_chain_t  *cl;

    for (cl = in; cl; cl = cl->next) {
        cl->buf->pos = cl->buf->last;
        cl->buf->file_pos = cl->buf->file_last;
    }
}


static ngx_int_t
ngx_http_idempotency_request_body_filter(ngx_http_request_t *r,
    ngx_chain_t *in)
{
    ngx_http_idempotency_digest_arriving(r, in);

    return ngx_http_next_request_body_filter(r, in);
}


/* A filter that replaces the response calls this again.  The client gets the
   last response. */

static void
capture_header(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_str_t                          type;
    ngx_uint_t                         grpc;
    ngx_http_upstream_t               *u;
    ngx_http_idempotency_capture_t    *capture;
    ngx_http_idempotency_main_conf_t  *imcf;

    capture = &ctx->capture;

    if (!r->filter_finalize) {
        capture->says_release = 0;
        capture->says_keep = 0;
    }

    u = capture_upstream(r, ctx);

    if (u && u->headers_in.headers.part.elts) {
        capture_accel(&u->headers_in.headers, ctx);
    }

    capture_accel(&r->headers_out.headers, ctx);

    capture->answered = 1;
    capture->live = (r->upstream && r->upstream->cleanup);

    /* gRPC sends trailers behind a body of any length and does not announce
       them; a response without them is broken off */

    grpc = (capture->live
            && ngx_idempotency_begins(&r->upstream->schema, "grpc"));

    capture->trailers = (grpc || r->expect_trailers);
    capture->grpc = (grpc && !r->header_only
                     && ngx_idempotency_begins(&r->headers_out.content_type,
                                               "application/grpc"));

    capture->status = r->headers_out.status;
    capture->size = 0;
    capture->expected = capture_bodyless(r) ? 0
                                            : r->headers_out.content_length_n;
    capture->pieces = NULL;
    capture->last_piece = NULL;

    /* the slice module, below us, makes one response of several: only a part
       passes here */

    imcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    if (imcf->slice && r->ctx[imcf->slice->ctx_index]) {
        capture_partial(r, ctx, "a response in slices");
    }

    /* server-sent events go on for as long as a client listens */

    type.data = r->headers_out.content_type.data;
    type.len = r->headers_out.content_type_len;

    capture->too_large = (capture->partial
                          || capture->expected
                             > (off_t) ctx->conf->max_response
                          || capture->status == NGX_HTTP_SWITCHING_PROTOCOLS
                          || ngx_idempotency_equal(&type,
                                                     "text/event-stream"));

    if (!capture->too_large && capture_head(r, ctx) != NGX_OK) {
        capture->too_large = 1;
    }

    capture_settle(r, ctx, 0);
}


/* The header block, and the location that made the response, if it is another
   one than that of the claim. */

static ngx_int_t
capture_head(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_buf_t                        *b;
    ngx_uint_t                        moved;
    ngx_http_idempotency_location_t   location;
    ngx_http_idempotency_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);
    moved = (conf != ctx->conf);

    if (moved && ngx_http_idempotency_location_of(r, &location) != NGX_OK) {
        return NGX_ERROR;
    }

    b = ngx_http_idempotency_response_header(r, ctx->conf->hide_headers,
                                             moved ? &location : NULL);

    if (b == NULL || capture_add(r, &ctx->capture, b) != NGX_OK) {
        return NGX_ERROR;
    }

    /* trailers and body follow in pieces of their own */

    b->end = b->last;

    return NGX_OK;
}


/* the response is not kept, as a part of it doesn't pass here */

static void
capture_partial(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    char *what)
{
    if (ctx->capture.partial) {
        return;
    }

    ctx->capture.partial = 1;
    ctx->capture.too_large = 1;

    ngx_http_idempotency_log(r, ctx, NGX_HTTP_IDEMPOTENCY_STATUS_NOT_KEPT,
                             ctx->conf->log_level,
                             ": %s cannot be recorded, this response is not "
                             "kept", what);
}


static ngx_uint_t
capture_bodyless(ngx_http_request_t *r)
{
    return r->header_only
           || r->method == NGX_HTTP_HEAD
           || r->headers_out.status == NGX_HTTP_NO_CONTENT
           || r->headers_out.status == NGX_HTTP_NOT_MODIFIED;
}


/*
 * X-Accel-Idempotency: the application's word on the outcome, in the header of
 * the response, or in that of an upstream whose response nginx replaced.  The
 * lines are deleted before any client sees them.
 */

static void
capture_accel(ngx_list_t *headers, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    for (part = &headers->part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {

            if (h[i].hash == 0
                || !ngx_idempotency_equal(&h[i].key, "x-accel-idempotency"))
            {
                continue;
            }

            h[i].hash = 0;

            if (ctx) {
                ctx->capture.says_release =
                             ngx_idempotency_equal(&h[i].value, "release");
                ctx->capture.says_keep =
                             ngx_idempotency_equal(&h[i].value, "keep");
            }
        }
    }
}


/* X-Accel-Idempotency in trailers, whether nginx passes trailers on or not */

static void
capture_accel_trailers(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_chain_t *in)
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
            capture_accel(&r->upstream->headers_in.trailers, ctx);
        }

        capture_accel(&r->headers_out.trailers, ctx);
    }
}


static void
capture_body(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_chain_t *in)
{
    ngx_uint_t                       last, flush;
    ngx_chain_t                     *cl;
    ngx_http_idempotency_capture_t  *capture;

    capture = &ctx->capture;
    last = 0;
    flush = 0;

    for (cl = in; cl; cl = cl->next) {

        last |= cl->buf->last_buf;
        flush |= cl->buf->flush;

        if (ngx_buf_special(cl->buf)) {
            continue;
        }

        capture->size += ngx_buf_size(cl->buf);

        if (capture->size > (off_t) ctx->conf->max_response) {
            capture->too_large = 1;
        }

        if (!capture->too_large
            && capture_buf(r, capture, cl->buf) != NGX_OK)
        {
            capture->too_large = 1;
        }
    }

    capture_settle(r, ctx, last);

    /* the upstream has broken off, and the rest is only flushed: the outcome
       need not wait until the client has taken it */

    if (ngx_http_idempotency_owns(ctx)
        && flush && capture->live && r->upstream->cleanup == NULL)
    {
        ngx_http_idempotency_settle(r, ctx);
    }
}


static ngx_int_t
capture_buf(ngx_http_request_t *r, ngx_http_idempotency_capture_t *capture,
    ngx_buf_t *b)
{
    off_t       pos, size;
    size_t      n;
    ngx_buf_t  *to;

    size = ngx_buf_size(b);

    for (pos = 0; pos < size; pos += n) {

        to = capture_room(r, capture);
        if (to == NULL) {
            return NGX_ERROR;
        }

        n = (size_t) ngx_min(size - pos, (off_t) (to->end - to->last));

        if (ngx_buf_in_memory(b)) {
            ngx_memcpy(to->last, b->pos + pos, n);

        } else if (capture_read(b, to->last, n, b->file_pos + pos)
                   != NGX_OK)
        {
            return NGX_ERROR;
        }

        to->last += n;
    }

    return NGX_OK;
}


/* direct I/O would need whole blocks and aligned memory */

static ngx_int_t
capture_read(ngx_buf_t *b, u_char *to, size_t n, off_t offset)
{
    ssize_t  size;

#if (NGX_HAVE_ALIGNED_DIRECTIO)

    if (b->file->directio) {
        (void) ngx_directio_off(b->file->fd);
    }

#endif

    size = ngx_read_file(b->file, to, n, offset);

#if (NGX_HAVE_ALIGNED_DIRECTIO)

    if (b->file->directio) {
        (void) ngx_directio_on(b->file->fd);
    }

#endif

    return (size == (ssize_t) n) ? NGX_OK : NGX_ERROR;
}


/* a buffer with room for the next bytes, of the expected size */

static ngx_buf_t *
capture_room(ngx_http_request_t *r, ngx_http_idempotency_capture_t *capture)
{
    off_t       size;
    ngx_buf_t  *b;

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

    if (b == NULL || capture_add(r, capture, b) != NGX_OK) {
        return NULL;
    }

    return b;
}


static ngx_int_t
capture_add(ngx_http_request_t *r, ngx_http_idempotency_capture_t *capture,
    ngx_buf_t *b)
{
    ngx_chain_t  *cl;

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


/* settles the outcome as soon as it is certain */

static void
capture_settle(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_uint_t last)
{
    ngx_buf_t                       *b;
    ngx_chain_t                     *cl;
    ngx_http_idempotency_capture_t  *capture;

    capture = &ctx->capture;

    if (capture_ends(r, capture, last)) {

        /* "0" keeps none; what trailers say counts all the same */

        if (ctx->conf->max_response == 0) {
            capture->too_large = 1;
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
        return;
    }

    /* the outcome of a response that is not kept is recorded at once */

    if (capture->too_large) {
        ngx_http_idempotency_settle(r, ctx);
        ngx_http_idempotency_not_kept(r, ctx);
    }
}


/*
 * A response of known length is whole as soon as its last byte has passed: the
 * client may repeat its request before nginx sends the last buffer.  A
 * response of unknown length, or with trailers, is whole with the last buffer.
 */

static ngx_uint_t
capture_ends(ngx_http_request_t *r, ngx_http_idempotency_capture_t *capture,
    ngx_uint_t last)
{
    ngx_http_upstream_t             *u;
    ngx_http_upstream_headers_in_t  *in;

    if (capture->expected != -1 && capture->size != capture->expected) {
        return 0;
    }

    if (!last && (capture->expected == -1 || capture->trailers)) {
        return 0;
    }

    u = r->upstream;

    /* nginx takes a FastCGI response whose connection is closed for whole.
       The record that ends it sets upstream_done, or the length to 0. */

    if (capture->live && capture->expected == -1
        && ngx_idempotency_begins(&u->schema, "fastcgi")
        && (u->buffering ? u->pipe->upstream_eof && !u->pipe->upstream_done
                         : u->length == -1))
    {
        return 0;
    }

    if (!capture->grpc) {
        return 1;
    }

    in = &u->headers_in;

    return ngx_http_idempotency_header_of(&in->headers, "grpc-status")
           || ngx_http_idempotency_header_of(&in->trailers, "grpc-status");
}


/* DONE, NOT_KEPT or IN_DOUBT, or RELEASE or LEAVE */

ngx_int_t
ngx_http_idempotency_outcome(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_uint_t      facts;
    outcome_row_t  *row;

    facts = outcome_upstream(r, ctx);

    if (!ctx->capture.answered) {

        /* nothing was sent to the client, whatever the upstream answered */

        outcome_attempt(r, ctx);
        facts = fact_no_answer;
    }

    if (!ctx->capture.whole) {
        facts |= fact_broken;
    }

    if (ctx->capture.too_large) {
        facts |= fact_too_large;
    }

    if (ctx->capture.says_release) {
        facts |= fact_says_release;
    }

    if (!ctx->capture.says_keep && !outcome_keeps(r, ctx)) {
        facts |= fact_unkept;
    }

    if (ctx->conf->in_doubt == NGX_HTTP_IDEMPOTENCY_IN_DOUBT_RETRY) {
        facts |= fact_retry;
    }

    if (outcome_own(r, ctx)) {
        facts |= fact_own;
    }

    /* what came before decides */

    if (ctx->capture.executed) {
        facts &= ~(fact_says_release|fact_no_answer|fact_unkept);

        if (!ctx->capture.answered) {
            ctx->capture.status = ctx->capture.executed;
        }

    } else if ((ctx->capture.doubt
                && (facts & (fact_says_release|fact_no_answer|fact_unkept)))
               || (ctx->capture.delegated && (facts & fact_no_answer)))
    {
        facts &= ~fact_says_release;
        facts |= fact_no_answer|fact_sent;
    }

    for (row = outcome_table; /* void */ ; row++) {

        if ((facts & row->all_of) == row->all_of
            && (facts & row->none_of) == 0)
        {
            break;
        }
    }

    ngx_log_debug3(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "idempotency outcome: %i, facts:%xi, status:%ui",
                   row->outcome, facts, ctx->capture.status);

    return row->outcome;
}


/*
 * Called before each content handler of an owner's main request.  The last one
 * has sent the request on to another location: by an error_page,
 * X-Accel-Redirect, or as Lua does.
 */

void
ngx_http_idempotency_sent_on(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    if (ctx->capture.handled) {

        if (r->upstream == ctx->capture.upstream
            && r->error_page == ctx->capture.error_page)
        {
            ctx->capture.delegated = 1;

        } else {
            outcome_attempt(r, ctx);
        }
    }

    ctx->capture.handled = 1;
    ctx->capture.error_page = r->error_page;
    ctx->capture.upstream = r->upstream;
    ctx->capture.attempts = r->upstream_states ? r->upstream_states->nelts : 0;
}


/* what the last content handler has left, if the client gets nothing of it */

static void
outcome_attempt(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_uint_t                       facts, status;
    ngx_http_upstream_t             *u;
    ngx_http_idempotency_capture_t  *capture;

    capture = &ctx->capture;

    u = capture_upstream(r, ctx);
    facts = outcome_upstream(r, ctx);

    /* there is no status without an upstream, or if it speaks HTTP/0.9 */

    status = u ? u->headers_in.status_n : 0;

    capture->says_release = 0;
    capture->says_keep = 0;

    if (u && u->headers_in.headers.part.elts) {
        capture_accel(&u->headers_in.headers, ctx);
    }

    if (capture->says_release) {
        return;
    }

    if ((facts & fact_no_answer) || status == 0) {
        capture->doubt |= (facts & fact_sent) ? 1 : 0;

    } else if (capture->says_keep || outcome_keeps(r, ctx)) {
        capture->executed = status;
    }
}


/* the last content handler's upstream, or NULL */

static ngx_http_upstream_t *
capture_upstream(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    return (r->upstream == ctx->capture.upstream) ? NULL : r->upstream;
}


/*
 * Facts from the attempts at upstreams.  An upstream at work has answered, or
 * nginx serves a stale response from its cache.  A finished upstream has left
 * an entry for each attempt, with the number of bytes sent.  An entry without
 * a peer separates two upstreams of one request.  A response without any
 * attempt came from a cache.
 */

static ngx_uint_t
outcome_upstream(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_uint_t                  i, facts, sent;
    ngx_http_upstream_t        *u;
    ngx_http_upstream_state_t  *state;

    u = capture_upstream(r, ctx);

    if (u == NULL
        || (u->cleanup && u->state
            && u->state->header_time != (ngx_msec_t) -1))
    {
        return fact_sent;
    }

    facts = u->headers_in.status_n ? fact_sent : fact_no_answer;

    if (r->upstream_states == NULL) {
        return facts;
    }

    sent = 0;
    state = r->upstream_states->elts;

    for (i = ctx->capture.attempts; i < r->upstream_states->nelts; i++) {

        if (state[i].peer == NULL) {
            continue;
        }

        if (state[i].header_time != (ngx_msec_t) -1) {
            sent = fact_sent;
            facts = 0;

        } else {
            facts = fact_no_answer;

            if (state[i].bytes_sent > 0 || state[i].bytes_received > 0) {
                sent = fact_sent;
            }
        }
    }

    return facts | sent;
}


/*
 * An error page counts as an error, whatever its status.  So does a file that
 * nginx's filters have made a 304, 412 or 416 of.  Under recursive_error_pages
 * only the internal redirect tells.  If a subrequest has yet to run, as a
 * mirror's may, nginx is not alone.
 */

static ngx_uint_t
outcome_own(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_http_core_loc_conf_t   *clcf;
    ngx_http_posted_request_t  *pr;

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    if (ctx->client.handler_ran
        || (ctx->capture.status < NGX_HTTP_SPECIAL_RESPONSE
            && r->headers_out.status < NGX_HTTP_SPECIAL_RESPONSE
            && !r->error_page && r->err_status == 0
            && !(r->internal && clcf->recursive_error_pages)))
    {
        return 0;
    }

    for (pr = r->main->posted_requests; pr; pr = pr->next) {
        if (pr->request != r) {
            return 0;
        }
    }

    return 1;
}


/* The upstream's status counts, even if nginx sent another response in its
   place.  An upstream that did not answer has left no status. */

static ngx_uint_t
outcome_keeps(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    u_char               *keep;
    ngx_list_t           *headers;
    ngx_uint_t            status;
    ngx_http_upstream_t  *u;

    u = capture_upstream(r, ctx);
    keep = ctx->conf->keep;

    if (u && u->headers_in.status_n) {
        status = u->headers_in.status_n;
        headers = &u->headers_in.headers;

    } else {
        u = NULL;
        status = ctx->capture.status;
        headers = &r->headers_out.headers;
    }

    if (status == NGX_HTTP_SWITCHING_PROTOCOLS) {
        return 1;
    }

    if (keep && status < NGX_HTTP_IDEMPOTENCY_CODES
        && keep[status] != NGX_HTTP_IDEMPOTENCY_KEEP_DEFAULT)
    {
        return keep[status] == NGX_HTTP_IDEMPOTENCY_KEEP_YES;
    }

    /* a user corrects a refused form, and sends it again */

    if (status / 100 == 4
        && (ngx_http_idempotency_by_content(ctx) || ctx->body.form_key))
    {
        return 0;
    }

    return outcome_executed(headers, status)
           && (u == NULL
               || (outcome_grpc_executed(&u->headers_in.headers)
                   && outcome_grpc_executed(&u->headers_in.trailers)));
}


static ngx_uint_t
outcome_executed(ngx_list_t *headers, ngx_uint_t status)
{
    outcome_status_t  *row;

    for (row = outcome_not_executed; row->status; row++) {
        if (row->status == status) {
            break;
        }
    }

    if (row->status == 0) {
        return 1;
    }

    if (row->retry == outcome_by_status) {
        return 0;
    }

    if (ngx_http_idempotency_header_of(headers, "retry-after") == NULL) {
        return 1;
    }

    /* a cache in between that waited in vain for a response makes a 503,
       too */

    return row->retry == outcome_by_origin
           && (ngx_http_idempotency_header_of(headers, "via")
               || ngx_http_idempotency_header_of(headers, "x-varnish")
               || ngx_http_idempotency_header_of(headers, "age"));
}


static ngx_uint_t
outcome_grpc_executed(ngx_list_t *headers)
{
    ngx_str_t        *status;
    ngx_table_elt_t  *h;

    h = ngx_http_idempotency_header_of(headers, "grpc-status");

    if (h == NULL) {
        return 1;
    }

    for (status = outcome_grpc_not_executed; status->len; status++) {

        if (ngx_idempotency_same(&h->value, status)) {
            return 0;
        }
    }

    return 1;
}


/*
 * Called before and after the filters below us get the main request's output.
 * A subrequest that could not be noted, for want of memory, counts as one that
 * the capture doesn't see.
 */

static void
subrequests_note(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_uint_t below)
{
    ngx_http_request_t            *sr;
    ngx_http_postponed_request_t  *pr;

    /* an active subrequest is not among the postponed ones */

    sr = r->connection->data;

    if (sr != r && sr->parent == r) {
        subrequest_add(r, ctx, sr, below);
    }

    for (pr = r->postponed; pr; pr = pr->next) {
        if (pr->request) {
            subrequest_add(r, ctx, pr->request, below);
        }
    }
}


static void
subrequest_add(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_http_request_t *sr, ngx_uint_t below)
{
    subrequest_t                    *s;
    ngx_http_idempotency_capture_t  *capture;

    if (subrequest_find(ctx, sr)) {
        return;
    }

    capture = &ctx->capture;

    if (capture->subrequests == NULL) {
        capture->subrequests = ngx_array_create(r->pool, 4,
                                                sizeof(subrequest_t));
    }

    s = capture->subrequests ? ngx_array_push(capture->subrequests) : NULL;

    if (s) {
        s->request = sr;
        s->below = below;
    }

    if (s == NULL || (!below && subrequest_sends(sr))) {
        capture_partial(r, ctx, "the output of a subrequest");
    }
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


/* output of a subrequest on its way to the client */

static void
subrequest_output(ngx_http_request_t *sr,
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

    /* Lua captures the output of its subrequests, which never become active */

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
        capture_partial(sr->main, ctx, "the output of a subrequest");
    }
}


static ngx_uint_t
subrequest_sends(ngx_http_request_t *sr)
{
    return !sr->subrequest_in_memory && !sr->background && !sr->header_only;
}


/* A response without a body ends with its header, so the header is postponed.
   The sender goes on as if the header had been sent. */

static ngx_uint_t
postpone_header(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_http_idempotency_postpone_t  *postpone;

    postpone = &ctx->postpone;

    /* a filter may have replaced the response */

    postpone->out = NULL;
    postpone->last = 0;

    if (capture_bodyless(r)) {
        postpone->left = 0;

    } else {
        postpone->left = r->expect_trailers
                         ? -1 : r->headers_out.content_length_n;
    }

    if (postpone->left || !postpone_unanswered(r, ctx)) {
        return 0;
    }

    postpone->header = 1;
    postpone->bodyless = capture_bodyless(r);

    r->header_sent = 1;

    postpone_begin(r, postpone);

    return 1;
}


/* NGX_OK: *in is to be sent now; NGX_AGAIN: nothing is */

static ngx_int_t
postpone_body(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_chain_t **in)
{
    ngx_http_idempotency_postpone_t  *postpone;

    postpone = &ctx->postpone;

    if (postpone->last && r->filter_finalize) {

        /* these buffers end the response that a filter has replaced */

        filter_swallow(*in);
        *in = NULL;
    }

    if (postpone->waiting) {

        if (*in == NULL) {
            return postpone->header ? NGX_AGAIN : NGX_OK;
        }

        return (postpone_add(r, postpone, *in) == NGX_OK)
               ? NGX_AGAIN : NGX_ERROR;
    }

    if (postpone->bodyless && r->header_only) {

        /* nginx knows by now that the response has no body */

        filter_swallow(*in);
        *in = NULL;
        postpone->out = NULL;

        return NGX_OK;
    }

    if (postpone->out) {
        *postpone->next = *in;
        *in = postpone->out;
        postpone->out = NULL;

        return NGX_OK;
    }

    if (!postpone_is_end(postpone, *in) || !postpone_unanswered(r, ctx)) {
        return NGX_OK;
    }

    if (postpone_split(r, postpone, in) != NGX_OK) {
        return NGX_ERROR;
    }

    postpone_begin(r, postpone);

    return *in ? NGX_OK : NGX_AGAIN;
}


/*
 * For its sender a postponed response counts as sent.  If a filter has put
 * that response in the place of another one, nginx would take success for an
 * error and end the request: so the result is that more is to come.
 */

static ngx_int_t
postpone_result(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_int_t rc)
{
    if (!ctx->postpone.waiting || !r->filter_finalize || r->connection->error) {
        return rc;
    }

    return (rc == NGX_OK || rc == NGX_ERROR) ? NGX_AGAIN : rc;
}


/* whether the store is strict, was given the outcome, and has not answered */

static ngx_uint_t
postpone_unanswered(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    return ctx->state == NGX_HTTP_IDEMPOTENCY_STATE_SETTLED
           && ctx->settled.report
           && ctx->conf->store->strict
           && !ctx->conf->dry_run
           && !ctx->postpone.over && !ctx->client.gone && !r->post_action;
}


static void
postpone_begin(ngx_http_request_t *r,
    ngx_http_idempotency_postpone_t *postpone)
{
    ngx_log_debug0(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "idempotency postpone");

    postpone->waiting = 1;

    r->connection->buffered |= NGX_HTTP_IDEMPOTENCY_BUFFERED;
}


static ngx_uint_t
postpone_is_end(ngx_http_idempotency_postpone_t *postpone, ngx_chain_t *in)
{
    off_t         size;
    ngx_uint_t    last;
    ngx_chain_t  *cl;

    last = 0;
    size = 0;

    for (cl = in; cl; cl = cl->next) {
        last |= cl->buf->last_buf;
        size += ngx_buf_size(cl->buf);
    }

    if (postpone->left > 0) {
        postpone->left = ngx_max(postpone->left - size, 0);
        last |= (postpone->left == 0);
    }

    return last;
}


/* the part that is sent needs links of our own: the others are the sender's */

static ngx_int_t
postpone_split(ngx_http_request_t *r, ngx_http_idempotency_postpone_t *postpone,
    ngx_chain_t **in)
{
    ngx_chain_t  *cl, *end, *ln, *out, **next;

    end = NULL;

    for (cl = *in; cl; cl = cl->next) {
        if (!ngx_buf_special(cl->buf) || (end == NULL && cl->buf->last_buf)) {
            end = cl;
        }
    }

    out = NULL;
    next = &out;

    for (cl = *in; cl != end; cl = cl->next) {
        ln = ngx_alloc_chain_link(r->pool);
        if (ln == NULL) {
            return NGX_ERROR;
        }

        ln->buf = cl->buf;
        ln->next = NULL;
        *next = ln;
        next = &ln->next;
    }

    *in = out;

    postpone->next = &postpone->out;

    return postpone_add(r, postpone, end);
}


static ngx_int_t
postpone_add(ngx_http_request_t *r, ngx_http_idempotency_postpone_t *postpone,
    ngx_chain_t *in)
{
    ngx_chain_t  *cl, *ln;

    if (postpone->out == NULL) {
        postpone->next = &postpone->out;
    }

    for (cl = in; cl; cl = cl->next) {

        if (postpone->bodyless && !cl->buf->last_buf) {
            continue;
        }

        ln = ngx_alloc_chain_link(r->pool);
        if (ln == NULL) {
            return NGX_ERROR;
        }

        ln->buf = postpone_buf(r, postpone, cl->buf);
        if (ln->buf == NULL) {
            return NGX_ERROR;
        }

        ln->next = NULL;
        *postpone->next = ln;
        postpone->next = &ln->next;

        postpone->last |= cl->buf->last_buf;
    }

    if (postpone->bodyless) {
        filter_swallow(in);
    }

    return NGX_OK;
}


/*
 * Output of an upstream at work is copied: the upstream waits for its memory
 * to be free, and can't end before.  A buffer without data is copied, too: its
 * sender may use it again as soon as we return.  All other buffers stay as
 * they are until they are sent.
 */

static ngx_buf_t *
postpone_buf(ngx_http_request_t *r, ngx_http_idempotency_postpone_t *postpone,
    ngx_buf_t *b)
{
    size_t      size;
    ngx_buf_t  *to;

    if (ngx_buf_special(b) || postpone->bodyless) {
        size = 0;
        to = ngx_calloc_buf(r->pool);

    } else if (ngx_buf_in_memory(b) && r->upstream && r->upstream->cleanup) {
        size = b->last - b->pos;
        to = ngx_create_temp_buf(r->pool, size);

    } else {
        return b;
    }

    if (to == NULL) {
        return NULL;
    }

    to->flush = b->flush;
    to->sync = b->sync;
    to->last_buf = b->last_buf;
    to->last_in_chain = b->last_in_chain;

    if (size) {
        to->last = ngx_cpymem(to->last, b->pos, size);

        b->pos = b->last;
        b->file_pos = b->file_last;
    }

    return to;
}


/*
 * The store has answered, or took too long.  The event loop calls this, as it
 * calls access_resume().  The postponed output is sent first, as the sender
 * may have nothing more to send.
 */

void
ngx_http_idempotency_postpone_end(ngx_http_idempotency_ctx_t *ctx)
{
    ngx_int_t            rc;
    ngx_connection_t    *c;
    ngx_http_request_t  *r;

    ctx->postpone.over = 1;

    if (!ctx->postpone.waiting) {
        return;
    }

    r = ctx->request;
    c = r->connection;

    ngx_http_set_log_request(c->log, r);

    ngx_http_idempotency_postpone_cancel(ctx);

    rc = ngx_http_output_filter(r, NULL);

    if (rc > NGX_OK) {

        /* a filter refused the header */

        if (r->upstream && r->upstream->cleanup) {
            r->count++;
        }

        ngx_http_finalize_request(r, rc);

    } else {
        r->write_event_handler(r);
    }

    ngx_http_run_posted_requests(c);
}


void
ngx_http_idempotency_postpone_cancel(ngx_http_idempotency_ctx_t *ctx)
{
    if (ctx->postpone.waiting) {
        ctx->postpone.waiting = 0;
        ctx->request->connection->buffered &= ~NGX_HTTP_IDEMPOTENCY_BUFFERED;
    }
}


static ngx_int_t
ngx_http_idempotency_filter_init(ngx_conf_t *cf)
{
    if (ngx_http_idempotency_add_handlers(cf, 1) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_http_next_header_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = ngx_http_idempotency_header_filter;

    ngx_http_next_body_filter = ngx_http_top_body_filter;
    ngx_http_top_body_filter = ngx_http_idempotency_body_filter;

    ngx_http_next_request_body_filter = ngx_http_top_request_body_filter;
    ngx_http_top_request_body_filter =
                                  ngx_http_idempotency_request_body_filter;

    return NGX_OK;
}


/* All modules have registered their handlers and filters by now.  Checks that
   our filters are where they must be. */

static ngx_int_t
ngx_http_idempotency_filter_init_module(ngx_cycle_t *cycle)
{
    if (!ngx_http_idempotency_in_use(cycle)) {
        return NGX_OK;
    }

    if (ngx_http_top_header_filter != ngx_http_idempotency_header_filter
        || ngx_http_top_body_filter != ngx_http_idempotency_body_filter)
    {
        ngx_log_error(NGX_LOG_WARN, cycle->log, 0,
                      "idempotency: a filter of another module, probably "
                      "\"%s\", is loaded after this one: what it adds to a "
                      "response is recorded, and added again to a replay; "
                      "load ngx_http_idempotency_module after it",
                      cycle->modules[cycle->modules_n - 1]->name);
    }

    return NGX_OK;
}
