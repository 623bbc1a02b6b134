
/*
 * Output of subrequests.  Those that filters below us make (SSI, addition)
 * are made again when the response is replayed through them.  What others
 * send (a content handler's own) reaches the client past the capture: such a
 * response is not kept, rather than short.
 *
 * Who made one is told by when it appears among the main request's: while it
 * is in the filters below us, or before.  A subrequest has no output before
 * the call that made it returns, so each is known in time.
 */


#include "ngx_http_idempotency.h"


typedef struct {
    ngx_http_request_t  *request;
    ngx_uint_t           below;
} subrequest_t;


static ngx_int_t subrequest_add(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_http_request_t *sr,
    ngx_uint_t below);
static subrequest_t *subrequest_find(ngx_http_idempotency_ctx_t *ctx,
    ngx_http_request_t *sr);
static ngx_uint_t subrequest_sends(ngx_http_request_t *sr);
static void subrequest_past_capture(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);


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

    /* Lua takes the output of its own to itself: they have no turn */

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
