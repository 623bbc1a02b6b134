
/*
 * The end of an owner's response.  A strict store has told its file, and its
 * answer is there, before the client has all of it: so what a client has seen
 * whole is not forgotten.  The rest is sent as it comes.
 *
 * What is held back is the last buffer with data and all behind it, or the
 * header, if that is all there is.  nginx takes the request for one that has
 * output left, by a bit of its connection, and goes on with it when the bit is
 * gone.
 */


#include "ngx_http_idempotency.h"


/*
 * After so many milliseconds the end is sent without the store's answer: the
 * request was executed, and its client should know.  That is well before nginx
 * would take the silence for a client that does not read.
 */

#define NGX_HTTP_IDEMPOTENCY_HOLD  5000


static ngx_uint_t postpone_unanswered(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static void postpone_begin(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_uint_t postpone_is_end(ngx_http_idempotency_postpone_t *postpone,
    ngx_chain_t *in);
static ngx_int_t postpone_split(ngx_http_request_t *r,
    ngx_http_idempotency_postpone_t *postpone, ngx_chain_t **in);
static ngx_int_t postpone_add(ngx_http_request_t *r,
    ngx_http_idempotency_postpone_t *postpone, ngx_chain_t *in);
static ngx_buf_t *postpone_buf(ngx_http_request_t *r,
    ngx_http_idempotency_postpone_t *postpone, ngx_buf_t *b);
static void postpone_timer_handler(ngx_event_t *ev);
static void postpone_release(ngx_http_idempotency_ctx_t *ctx);


/*
 * A response without a body ends with its header, so the header is postponed.
 * The sender goes on as if it had been sent.
 */

ngx_uint_t
ngx_http_idempotency_postpone_header(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_uint_t                    bodyless;
    ngx_http_idempotency_postpone_t  *postpone;

    postpone = &ctx->postpone;

    /* a filter may have put it in the place of another, which is none now */

    postpone->out = NULL;
    postpone->last = 0;

    bodyless = (r->header_only || r->method == NGX_HTTP_HEAD
                || r->headers_out.status == NGX_HTTP_NO_CONTENT
                || r->headers_out.status == NGX_HTTP_NOT_MODIFIED);

    if (bodyless) {
        postpone->left = 0;

    } else {
        postpone->left = r->expect_trailers
                         ? -1 : r->headers_out.content_length_n;
    }

    if (postpone->left || !postpone_unanswered(r, ctx)) {
        return 0;
    }

    postpone->header = 1;
    postpone->bodyless = bodyless;

    r->header_sent = 1;

    postpone_begin(r, ctx);

    return 1;
}


/* it is to be sent now */

ngx_uint_t
ngx_http_idempotency_postpone_header_over(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_http_idempotency_postpone_t  *postpone;

    postpone = &ctx->postpone;

    if (!postpone->header || postpone->waiting) {
        return 0;
    }

    postpone->header = 0;

    r->header_sent = 0;

    return 1;
}


/* NGX_OK: so much is to be sent; NGX_AGAIN: nothing is */

ngx_int_t
ngx_http_idempotency_postpone_body(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_chain_t **in)
{
    ngx_http_idempotency_postpone_t  *postpone;

    postpone = &ctx->postpone;

    if (postpone->last && r->filter_finalize) {

        /* behind the end: of a response that had to give way */

        ngx_http_idempotency_swallow(*in);

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

        /* nginx knows it by now: nobody would have sent this */

        ngx_http_idempotency_swallow(*in);

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

    postpone_begin(r, ctx);

    return *in ? NGX_OK : NGX_AGAIN;
}


/*
 * The sender of a response takes a postponed one for one that was sent.  Where
 * a filter has put it in the place of another response, nginx would make an
 * error of that and end the request: so it is told that more is to come.
 */

ngx_int_t
ngx_http_idempotency_postpone_told(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_int_t rc)
{
    if (!ctx->postpone.waiting || !r->filter_finalize || r->connection->error) {
        return rc;
    }

    return (rc == NGX_OK || rc == NGX_ERROR) ? NGX_AGAIN : rc;
}


/* the store is strict, has the outcome, and has not answered yet */

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
postpone_begin(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_msec_t                 timeout;
    ngx_http_core_loc_conf_t  *clcf;

    ngx_log_debug0(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "idempotency postpone");

    ctx->postpone.waiting = 1;

    r->connection->buffered |= NGX_HTTP_IDEMPOTENCY_BUFFERED;

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    timeout = clcf->send_timeout / 2;

    ctx->postpone.timer.handler = postpone_timer_handler;
    ctx->postpone.timer.data = ctx;
    ctx->postpone.timer.log = r->connection->log;

    ngx_add_timer(&ctx->postpone.timer,
                  ngx_min(timeout, NGX_HTTP_IDEMPOTENCY_HOLD));
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


/* what goes on is in links of our own: the others belong to the sender */

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
        ngx_http_idempotency_swallow(in);
    }

    return NGX_OK;
}


/*
 * An upstream at work waits for its memory, and for its end until that was
 * taken; and a buffer without data is free as soon as we return.  All else
 * stays as it is until it is sent.
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


/* the store has answered, and it was logged if that was no good news */

void
ngx_http_idempotency_postpone_end(ngx_http_idempotency_ctx_t *ctx)
{
    if (ctx->postpone.waiting) {
        postpone_release(ctx);
    }
}


/* of a request that ends */

void
ngx_http_idempotency_postpone_cancel(ngx_http_idempotency_ctx_t *ctx)
{
    if (ctx->postpone.timer.timer_set) {
        ngx_del_timer(&ctx->postpone.timer);
    }

    if (ctx->postpone.waiting) {
        ctx->postpone.waiting = 0;
        ctx->request->connection->buffered &= ~NGX_HTTP_IDEMPOTENCY_BUFFERED;
    }
}


static void
postpone_timer_handler(ngx_event_t *ev)
{
    ngx_connection_t            *c;
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ev->data;
    c = ctx->request->connection;

    ngx_http_set_log_request(c->log, ctx->request);

    ngx_log_error(NGX_LOG_ERR, c->log, 0,
                  "idempotency: zone \"%V\" does not answer, a response is "
                  "sent whose outcome is not known to be recorded, "
                  "token: %*xs",
                  &ctx->conf->store->name,
                  (size_t) NGX_IDEMPOTENCY_DIGEST_LEN, ctx->claim.op.token);

    postpone_release(ctx);
}


/*
 * Called from the event loop, as access_resume() is.  What was postponed goes
 * first, as the sender may have nothing more to send.
 */

static void
postpone_release(ngx_http_idempotency_ctx_t *ctx)
{
    ngx_int_t            rc;
    ngx_connection_t    *c;
    ngx_http_request_t  *r;

    r = ctx->request;
    c = r->connection;

    ngx_http_set_log_request(c->log, r);

    ctx->postpone.over = 1;

    ngx_http_idempotency_postpone_cancel(ctx);

    rc = ngx_http_output_filter(r, NULL);

    if (rc > NGX_OK) {

        /* a filter would not have the header */

        if (r->upstream && r->upstream->cleanup) {
            r->count++;
        }

        ngx_http_finalize_request(r, rc);

    } else {
        r->write_event_handler(r);
    }

    ngx_http_run_posted_requests(c);
}
