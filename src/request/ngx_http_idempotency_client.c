
/*
 * The client may leave; the operation goes on.  Its upstream is neither
 * closed nor told, its response is taken down to the end, and a retry finds
 * it recorded.
 */


#include "ngx_http_idempotency.h"


static void client_write_handler(ngx_http_request_t *r);
static ngx_int_t client_leave(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);


static ngx_str_t  client_upstreams[] = {
    ngx_string("ngx_http_proxy_module"),
    ngx_string("ngx_http_fastcgi_module"),
    ngx_string("ngx_http_uwsgi_module"),
    ngx_string("ngx_http_scgi_module"),
    ngx_string("ngx_http_grpc_module"),
    ngx_null_string
};


/*
 * In protected locations, as if each *_ignore_client_abort were on.  The
 * modules are looked up by name, as nginx may be built without some; the
 * configuration of each begins with that of the upstream.
 */

ngx_int_t
ngx_http_idempotency_keep_upstreams(ngx_conf_t *cf, ngx_array_t *locations)
{
    void                     ***location;
    ngx_str_t                  *name;
    ngx_uint_t                  i, n;
    ngx_module_t               *module;
    ngx_http_upstream_conf_t   *conf;

    location = locations->elts;

    for (i = 0; cf->cycle->modules[i]; i++) {
        module = cf->cycle->modules[i];

        for (name = client_upstreams; name->len; name++) {
            if (ngx_strcmp(module->name, name->data) == 0) {
                break;
            }
        }

        if (name->len == 0) {
            continue;
        }

        for (n = 0; n < locations->nelts; n++) {
            conf = location[n][module->ctx_index];

            conf->ignore_client_abort = 1;

            if (conf->next_upstream & NGX_HTTP_UPSTREAM_FT_NON_IDEMPOTENT) {
                ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                                   "\"non_idempotent\" of *_next_upstream "
                                   "executes a request at more than one "
                                   "upstream, \"idempotency\" cannot "
                                   "prevent that");
            }
        }
    }

    return NGX_OK;
}


/*
 * Whether a filter failed for want of a client, while an owner's response is
 * still being taken down.  Any other failure is one.
 */

ngx_uint_t
ngx_http_idempotency_client_gone(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_int_t rc)
{
    if (rc != NGX_ERROR || ctx == NULL || !ctx->owner
        || !r->connection->error)
    {
        return 0;
    }

    return client_leave(r, ctx) == NGX_OK;
}


/* as if it had been sent */

void
ngx_http_idempotency_swallow(ngx_chain_t *in)
{
    ngx_chain_t  *cl;

    for (cl = in; cl; cl = cl->next) {
        cl->buf->pos = cl->buf->last;
        cl->buf->file_pos = cl->buf->file_last;
    }
}


/*
 * A client that takes nothing for send_timeout would end the upstream's
 * response too.  The upstream sets its handler once its header is sent, so
 * ours is put before it with the first bytes of the body.
 */

void
ngx_http_idempotency_watch_client(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    if (r->upstream == NULL
        || r->upstream->cleanup == NULL
        || r->write_event_handler == client_write_handler)
    {
        return;
    }

    ctx->write_event_handler = r->write_event_handler;
    r->write_event_handler = client_write_handler;
}


static void
client_write_handler(ngx_http_request_t *r)
{
    ngx_event_t                 *wev;
    ngx_connection_t            *c;
    ngx_http_idempotency_ctx_t  *ctx;

    c = r->connection;
    wev = c->write;
    ctx = ngx_http_idempotency_get_ctx(r);

    if (wev->timedout && ctx->owner && !ctx->gone) {

        c->error = 1;
        c->timedout = 1;
        wev->timedout = 0;
        wev->ready = 1;

        if (client_leave(r, ctx) != NGX_OK) {
            ngx_http_finalize_request(r, NGX_ERROR);
            return;
        }
    }

    ctx->write_event_handler(r);
}


/*
 * From now on the upstream is read at its own pace.  What was handed on to
 * the client will never be taken, and may still be referred to below us: so
 * it is left there, and the upstream goes on with other memory.
 */

static ngx_int_t
client_leave(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    size_t                size;
    u_char               *p;
    ngx_http_upstream_t  *u;

    ngx_log_error(NGX_LOG_INFO, r->connection->log, 0,
                  "idempotency: the client %s, its request is carried "
                  "through",
                  r->connection->timedout ? "timed out" : "has gone");

    ctx->gone = 1;

    u = r->upstream;

    if (u == NULL || u->cleanup == NULL || !u->header_sent) {
        return NGX_OK;
    }

    if (u->buffering) {
        u->pipe->busy = NULL;
        u->pipe->allocated = 0;

        return NGX_OK;
    }

    size = u->buffer.end - u->buffer.start;

    p = ngx_palloc(r->pool, size);
    if (p == NULL) {
        return NGX_ERROR;
    }

    u->busy_bufs = NULL;

    u->buffer.start = p;
    u->buffer.pos = p;
    u->buffer.last = p;
    u->buffer.end = p + size;

    return NGX_OK;
}
