
/*
 * A request that waits for another's outcome.  It holds nothing but its
 * memory: the store calls when the token has changed, a timer asks again in
 * case that call is lost, and a client that leaves ends it.
 */


#include "ngx_http_idempotency.h"


#define WAIT_FALLBACK  500


static void wait_timer_handler(ngx_event_t *ev);


/* NGX_DONE: it waits; ngx_http_idempotency_resume() goes on with it */

ngx_int_t
ngx_http_idempotency_wait(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_msec_t    left;
    ngx_event_t  *rev;

    left = ctx->deadline - ctx->op.now;

    ctx->waited = 1;

    ctx->timer.handler = wait_timer_handler;
    ctx->timer.data = ctx;
    ctx->timer.log = r->connection->log;

    ngx_add_timer(&ctx->timer, ngx_min(left, WAIT_FALLBACK));

    rev = r->connection->read;

    if (rev->ready) {
        ngx_post_event(rev, &ngx_posted_events);

    } else if (ngx_handle_read_event(rev, 0) != NGX_OK) {
        ngx_http_idempotency_wait_cancel(ctx);
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->read_event_handler = ngx_http_test_reading;
    r->write_event_handler = ngx_http_request_empty_handler;

    return NGX_DONE;
}


/* nothing calls back for it any more */

void
ngx_http_idempotency_wait_cancel(ngx_http_idempotency_ctx_t *ctx)
{
    ngx_idempotency_op_t     *op;
    ngx_idempotency_store_t  *store;

    if (ctx->timer.timer_set) {
        ngx_del_timer(&ctx->timer);
    }

    op = ctx->asking ? ctx->asking : &ctx->op;

    if (ctx->asking || op->waiting) {
        ctx->asking = NULL;

        store = ctx->conf->shm_zone->data;
        store->engine->cancel(store, op);
    }
}


static void
wait_timer_handler(ngx_event_t *ev)
{
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ev->data;

    ctx->op.result = NGX_IDEMPOTENCY_CHANGED;

    ngx_http_idempotency_resume(&ctx->op);
}
