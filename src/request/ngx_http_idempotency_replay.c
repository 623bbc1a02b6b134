
/*
 * A recorded response, sent from the top of all filters as the original was.
 */


#include "ngx_http_idempotency_headers.h"
#include "ngx_http_idempotency_response.h"


static ngx_int_t replay_send(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);


/*
 * NGX_DONE: the request is finalized; NGX_OK: it is a dry run.  Without
 * the location that made it there is nobody who knows how to send it.
 */

ngx_int_t
ngx_http_idempotency_replay(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    void                           **loc_conf;
    ngx_idempotency_found_t         *found;
    ngx_http_idempotency_origin_t    origin;

    found = &ctx->claim.found;
    loc_conf = NULL;

    if (ngx_http_idempotency_response_origin(&found->response, &origin)
        == NGX_OK)
    {
        loc_conf = ngx_http_idempotency_origin_find(r, &origin);

        if (loc_conf == NULL) {
            if (ngx_http_idempotency_log_admits(r->connection->log,
                                        ctx->conf->log_level,
                                        NGX_HTTP_IDEMPOTENCY_STATUS_NOT_KEPT))
            {
                ngx_log_error(ctx->conf->log_level, r->connection->log, 0,
                              "idempotency: the location of a recorded "
                              "response no longer exists: \"%V\"",
                              &origin.uri);
            }

            return ngx_http_idempotency_refuse(r, ctx,
                                         NGX_HTTP_IDEMPOTENCY_STATUS_NOT_KEPT);
        }
    }

    ctx->status = (ctx->wait.waited || ctx->claim.leftover)
                      ? NGX_HTTP_IDEMPOTENCY_STATUS_WAITED
                      : NGX_HTTP_IDEMPOTENCY_STATUS_REPLAYED;

    ngx_http_idempotency_log_replay(r, ctx);

    if (ctx->conf->dry_run) {
        return NGX_OK;
    }

    if (loc_conf) {
        ngx_http_idempotency_origin_enter(r, &origin, loc_conf);
    }

    ngx_http_finalize_request(r, replay_send(r, ctx));

    return NGX_DONE;
}


static ngx_int_t
replay_send(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_str_t   body;
    ngx_uint_t  cookies;

    static ngx_str_t  name = ngx_string("Idempotent-Replayed");
    static ngx_str_t  value = ngx_string("true");

    cookies = (ctx->conf->replay_cookies == NGX_HTTP_IDEMPOTENCY_COOKIES_ALWAYS
               || (ctx->conf->replay_cookies
                   == NGX_HTTP_IDEMPOTENCY_COOKIES_IDENTIFIED
                   && ngx_http_idempotency_identified(ctx)
                   && !ctx->claim.found.anonymous));

    body = ctx->claim.found.response;

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "idempotency replay: size:%uz, cookies:%ui",
                   body.len, cookies);

    if (ngx_http_idempotency_response_restore(r, &body, cookies) != NGX_OK
        || ngx_http_idempotency_header_push(r, &r->headers_out.headers, &name,
                                            &value)
           == NULL)
    {
        ngx_log_error(NGX_LOG_ALERT, r->connection->log, 0,
                      "idempotency: a recorded response cannot be restored");

        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_idempotency_stats_add(ctx->conf->store->counters->replayed_bytes,
                              body.len);

    return ngx_http_idempotency_send(r, body.data, body.len, 1);
}
