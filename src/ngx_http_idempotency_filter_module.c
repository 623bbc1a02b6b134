
/*
 * Our places in nginx's filter chains, above the copy filter and so above
 * nearly all others; and the first ones of two phases, which this module
 * takes as it comes behind all that have handlers.  It is a module of its
 * own, as one module has one place for both its phase handlers and its
 * filters.  What is done there stands in request/.
 */


#include "ngx_http_idempotency.h"


static ngx_int_t ngx_http_idempotency_header_filter(ngx_http_request_t *r);
static ngx_int_t ngx_http_idempotency_body_filter(ngx_http_request_t *r,
    ngx_chain_t *in);
static ngx_int_t ngx_http_idempotency_request_body_filter(
    ngx_http_request_t *r, ngx_chain_t *in);
static ngx_int_t ngx_http_idempotency_filter_init(ngx_conf_t *cf);
static ngx_int_t ngx_http_idempotency_init_module(ngx_cycle_t *cycle);


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
    ngx_http_idempotency_init_module,      /* init module */
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

    ctx = NULL;

    if (r == r->main
        && (r->headers_out.status >= NGX_HTTP_OK
            || r->headers_out.status == NGX_HTTP_SWITCHING_PROTOCOLS))
    {
        ctx = ngx_http_idempotency_get_ctx(r);
        conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

        if (ctx) {
            ngx_http_idempotency_count(ctx);
        }

        if (ngx_http_idempotency_owns(ctx)) {
            ngx_http_idempotency_capture_header(r, ctx);

        } else if ((ctx || conf->store) && !ngx_http_idempotency_nests(ctx)) {

            /* of an operation's part the owner hears it */

            ngx_http_idempotency_hear(&r->headers_out.headers, NULL);
        }
    }

    if (ctx && ctx->client.gone) {
        r->connection->error = 1;
    }

    if (ctx && ngx_http_idempotency_postpone_header(r, ctx)) {
        return ngx_http_idempotency_postpone_told(r, ctx, NGX_OK);
    }

    rc = ngx_http_next_header_filter(r);

    if (ngx_http_idempotency_client_gone(r, ctx, rc)) {
        r->header_sent = 1;
        return NGX_OK;
    }

    return ctx ? ngx_http_idempotency_postpone_told(r, ctx, rc) : rc;
}


static ngx_int_t
ngx_http_idempotency_body_filter(ngx_http_request_t *r, ngx_chain_t *in)
{
    ngx_int_t                         rc;
    ngx_uint_t                        held;
    ngx_http_idempotency_ctx_t       *ctx;
    ngx_http_idempotency_loc_conf_t  *conf;

    ctx = ngx_http_idempotency_get_ctx(r);

    if (ctx && ctx->client.gone) {
        /* it was hidden while subrequests ended */
        r->connection->error = 1;
    }

    if (r != r->main) {

        if (ngx_http_idempotency_owns(ctx)) {
            ngx_http_idempotency_subrequest_output(r, ctx, in);
        }

        ctx = NULL;

    } else {
        conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

        if ((ctx || conf->store) && !ngx_http_idempotency_nests(ctx)) {
            ngx_http_idempotency_hear_trailers(r, ctx, in);
        }

        if (ngx_http_idempotency_owns(ctx)) {
            ngx_http_idempotency_subrequests(r, ctx, 0);
        }

        if (ngx_http_idempotency_carried(ctx)
            && ctx->capture.answered && !r->post_action)
        {
            ngx_http_idempotency_watch_client(r, ctx);
        }

        if (ngx_http_idempotency_owns(ctx)
            && ctx->capture.answered && !r->post_action)
        {
            ngx_http_idempotency_capture_body(r, ctx, in);
        }

        if (ctx && ctx->client.gone) {
            ngx_http_idempotency_swallow(in);
            return NGX_OK;
        }

        if (ctx && ngx_http_idempotency_postpone_header_over(r, ctx)) {
            rc = ngx_http_next_header_filter(r);

            if (rc == NGX_ERROR || rc > NGX_OK) {
                return rc;
            }
        }

        if (ctx) {
            rc = ngx_http_idempotency_postpone_body(r, ctx, &in);

            if (rc != NGX_OK) {
                return rc;
            }
        }
    }

    /* that something is held up here is nothing to be sent below */

    held = r->connection->buffered & NGX_HTTP_IDEMPOTENCY_BUFFERED;
    r->connection->buffered &= ~NGX_HTTP_IDEMPOTENCY_BUFFERED;

    rc = ngx_http_next_body_filter(r, in);

    r->connection->buffered |= held;

    if (ngx_http_idempotency_owns(ctx)) {
        ngx_http_idempotency_subrequests(r, ctx, 1);
    }

    if (ngx_http_idempotency_client_gone(r, ctx, rc)) {
        ngx_http_idempotency_swallow(in);
        return NGX_OK;
    }

    return ctx ? ngx_http_idempotency_postpone_told(r, ctx, rc) : rc;
}


static ngx_int_t
ngx_http_idempotency_request_body_filter(ngx_http_request_t *r,
    ngx_chain_t *in)
{
    ngx_http_idempotency_digest_arriving(r, in);

    return ngx_http_next_request_body_filter(r, in);
}


static ngx_int_t
ngx_http_idempotency_filter_init(ngx_conf_t *cf)
{
    ngx_http_handler_pt        *h;
    ngx_http_core_main_conf_t  *cmcf;

    /* what is taken last runs first: in front of limits, and of try_files */

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    h = ngx_array_push(&cmcf->phases[NGX_HTTP_PREACCESS_PHASE].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = ngx_http_idempotency_preaccess_handler;

    h = ngx_array_push(&cmcf->phases[NGX_HTTP_PRECONTENT_PHASE].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = ngx_http_idempotency_admitted_handler;

    ngx_http_next_header_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = ngx_http_idempotency_header_filter;

    ngx_http_next_body_filter = ngx_http_top_body_filter;
    ngx_http_top_body_filter = ngx_http_idempotency_body_filter;

    ngx_http_next_request_body_filter = ngx_http_top_request_body_filter;
    ngx_http_top_request_body_filter =
                                  ngx_http_idempotency_request_body_filter;

    return NGX_OK;
}


/* all modules have taken their places by now: is ours where it must be? */

static ngx_int_t
ngx_http_idempotency_init_module(ngx_cycle_t *cycle)
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
