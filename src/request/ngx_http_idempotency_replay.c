
/*
 * A recorded response, sent from the top of all filters as the original was.
 */


#include "ngx_http_idempotency_headers.h"
#include "ngx_http_idempotency_response.h"


static ngx_int_t replay_send(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_response_t *response);


/*
 * NGX_DONE: the request is finalized; NGX_OK: it is a dry run.  Without
 * the location that made it there is nobody who knows how to send it.
 */

ngx_int_t
ngx_http_idempotency_replay(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    void                             **loc_conf;
    ngx_idempotency_found_t           *found;
    ngx_http_idempotency_response_t    response;

    found = &ctx->claim.found;
    loc_conf = NULL;

    if (ngx_http_idempotency_response_decode(&found->response,
                                             r->method == NGX_HTTP_HEAD,
                                             &response)
        != NGX_OK
        || response.status != found->status)
    {
        ngx_log_error(NGX_LOG_ALERT, r->connection->log, 0,
                      "idempotency: a recorded response is none that this "
                      "module has written, and is not sent");

        return ngx_http_idempotency_refuse(r, ctx,
                                         NGX_HTTP_IDEMPOTENCY_STATUS_NOT_KEPT);
    }

    if (response.elsewhere) {
        loc_conf = ngx_http_idempotency_origin_find(r, &response.origin);

        if (loc_conf == NULL) {
            if (ngx_http_idempotency_log_admits(r->connection->log,
                                        ctx->conf->log_level,
                                        NGX_HTTP_IDEMPOTENCY_STATUS_NOT_KEPT))
            {
                ngx_log_error(ctx->conf->log_level, r->connection->log, 0,
                              "idempotency: the location of a recorded "
                              "response no longer exists: \"%V\"",
                              &response.origin.uri);
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
        ngx_http_idempotency_origin_enter(r, &response.origin, loc_conf);
    }

    ngx_http_finalize_request(r, replay_send(r, ctx, &response));

    return NGX_DONE;
}


static ngx_int_t
replay_send(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_response_t *response)
{
    ngx_uint_t  cookies;

    static ngx_str_t  name = ngx_string("Idempotent-Replayed");
    static ngx_str_t  value = ngx_string("true");

    cookies = (ctx->conf->replay_cookies == NGX_HTTP_IDEMPOTENCY_COOKIES_ALWAYS
               || (ctx->conf->replay_cookies
                   == NGX_HTTP_IDEMPOTENCY_COOKIES_IDENTIFIED
                   && ctx->identified
                   && !ctx->claim.found.anonymous));

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "idempotency replay: size:%uz, cookies:%ui",
                   response->body.len, cookies);

    if (ngx_http_idempotency_response_restore(r, response, cookies) != NGX_OK
        || ngx_http_idempotency_header_push(r, &r->headers_out.headers, &name,
                                            &value)
           == NULL)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_idempotency_stats_add(ctx->conf->store->counters->replayed_bytes,
                              response->body.len);

    return ngx_http_idempotency_send(r, response->body.data,
                                     response->body.len, 1);
}
