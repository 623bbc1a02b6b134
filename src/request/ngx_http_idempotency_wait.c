
/*
 * A request that waits for the store's answer, or for another's outcome.  It
 * holds nothing but its memory: the store calls when there is an answer, or
 * the token has changed, a timer asks again in case that call is lost, and a
 * client that leaves ends it.
 */


#include "ngx_http_idempotency.h"


#define NGX_HTTP_IDEMPOTENCY_WAIT_FALLBACK  500

/* a store that is slow gets twice as long each time, up to so many times */

#define NGX_HTTP_IDEMPOTENCY_WAIT_DOUBLED   4


static ngx_int_t wait_start(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_idempotency_claim_t *claim,
    ngx_msec_t delay);
static void wait_reading(ngx_http_request_t *r);
static ngx_uint_t wait_left(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static void wait_timer_handler(ngx_event_t *ev);


/* NGX_DONE: it waits; the handler of its claim goes on with it */

ngx_int_t
ngx_http_idempotency_ask(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_idempotency_claim_t *claim)
{
    ngx_uint_t  doubled;

    doubled = ngx_min(ctx->wait.overdue, NGX_HTTP_IDEMPOTENCY_WAIT_DOUBLED);

    return wait_start(r, ctx, claim,
                      NGX_HTTP_IDEMPOTENCY_WAIT_FALLBACK << doubled);
}


/* the same, for what it was told by the answer */

ngx_int_t
ngx_http_idempotency_wait(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_msec_int_t  left;

    ctx->wait.waited = 1;

    /* the answer may have come behind it */

    left = ctx->wait.deadline - ngx_current_msec;
    left = ngx_max(left, 0);

    return wait_start(r, ctx, &ctx->claim,
                      ngx_min(left, NGX_HTTP_IDEMPOTENCY_WAIT_FALLBACK));
}


static ngx_int_t
wait_start(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_idempotency_claim_t *claim, ngx_msec_t delay)
{
    ngx_event_t  *rev;

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "idempotency wait: %M, waited:%d", delay, ctx->wait.waited);

    ctx->wait.claim = claim;

    ctx->wait.timer.handler = wait_timer_handler;
    ctx->wait.timer.data = ctx;
    ctx->wait.timer.log = r->connection->log;

    ngx_add_timer(&ctx->wait.timer, delay);

    rev = r->connection->read;

    if (rev->ready) {
        ngx_post_event(rev, &ngx_posted_events);

    } else if (ngx_handle_read_event(rev, 0) != NGX_OK) {
        ngx_http_idempotency_wait_cancel(ctx);
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->read_event_handler = wait_reading;
    r->write_event_handler = ngx_http_request_empty_handler;

    return NGX_DONE;
}


/*
 * As ngx_http_test_reading(), but for a client that only has no more to say.
 * Over TLS the end is announced by bytes, behind which nothing is seen.
 */

static void
wait_reading(ngx_http_request_t *r)
{
    ngx_event_t                 *rev;
    ngx_http_idempotency_ctx_t  *ctx;

    if (r->http_version >= NGX_HTTP_VERSION_20 || r->http_connection->ssl) {
        ngx_http_test_reading(r);
        return;
    }

    rev = r->connection->read;
    ctx = ngx_http_idempotency_get_ctx(r);

    if (wait_left(r, ctx)) {
        rev->eof = 1;
        r->connection->error = 1;

        ngx_log_error(NGX_LOG_INFO, r->connection->log, 0,
                      "idempotency: a waiting client disconnected");

        ngx_http_finalize_request(r, NGX_HTTP_CLIENT_CLOSED_REQUEST);
        return;
    }

    if ((ngx_event_flags & NGX_USE_LEVEL_EVENT) && rev->active
        && ngx_del_event(rev, NGX_READ_EVENT, 0) != NGX_OK)
    {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
    }
}


/*
 * Who has closed its side may read on, as an owner's client or one that gets
 * a replay may.  One that has gone says so if it is sent something: what may
 * be sent before a response, at any time.
 */

static ngx_uint_t
wait_left(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    int                n, err;
    char               buf[1];
    socklen_t          len;
    ngx_connection_t  *c;

    static u_char  probe[] = "HTTP/1.1 100 Continue" CRLF CRLF;

    c = r->connection;

    n = recv(c->fd, buf, 1, MSG_PEEK);

    if (n == -1) {
        return ngx_socket_errno != NGX_EAGAIN;
    }

    if (n > 0) {
        return 0;
    }

    if (ctx->wait.half_closed) {
        err = 0;
        len = sizeof(int);

        return getsockopt(c->fd, SOL_SOCKET, SO_ERROR, (void *) &err, &len)
               == -1 || err;
    }

    ctx->wait.half_closed = 1;

    return r->http_version == NGX_HTTP_VERSION_11
           && c->send(c, probe, sizeof(probe) - 1) == NGX_ERROR;
}


/* the store has called, or is asked again */

void
ngx_http_idempotency_wait_end(ngx_http_idempotency_ctx_t *ctx)
{
    if (ctx->wait.timer.timer_set) {
        ngx_del_timer(&ctx->wait.timer);
    }
}


/* nobody wants to know any more */

void
ngx_http_idempotency_wait_cancel(ngx_http_idempotency_ctx_t *ctx)
{
    ngx_idempotency_claim_t  *claim;
    ngx_idempotency_store_t  *store;

    ngx_http_idempotency_wait_end(ctx);

    claim = ctx->wait.claim;

    if (claim && claim->op.waiting) {
        store = ctx->conf->store;
        store->engine->cancel(store, &claim->op);
    }
}


/* the claim is the engine's still: made again, it is the same one */

static void
wait_timer_handler(ngx_event_t *ev)
{
    ngx_idempotency_claim_t     *claim;
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ev->data;
    claim = ctx->wait.claim;

    ctx->wait.overdue++;

    claim->op.result = NGX_IDEMPOTENCY_CHANGED;
    claim->op.handler(&claim->op);
}
