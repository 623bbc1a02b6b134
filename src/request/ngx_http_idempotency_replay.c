
/*
 * A recorded response, sent from the top of all filters as the original was.
 */


#include "ngx_http_idempotency_headers.h"
#include "ngx_http_idempotency_response.h"


/* a larger body is sent from a file, as who reads slowly holds it for long */

#define NGX_HTTP_IDEMPOTENCY_REPLAY_MEMORY  65536


static ngx_file_t *replay_to_file(ngx_http_request_t *r, ngx_str_t *bytes,
    ngx_http_idempotency_response_t *response);
static ngx_int_t replay_send(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_response_t *response, ngx_file_t *file);
static ngx_int_t replay_mark(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);


/*
 * NGX_DONE: the request is finalized; NGX_OK: it is a dry run; NGX_DECLINED:
 * it is not for this request, which shows who asks.  Without the location that
 * made it there is nobody who knows how to send it.
 */

ngx_int_t
ngx_http_idempotency_replay(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    void                             **loc_conf;
    ngx_file_t                        *file;
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

    if (ngx_http_idempotency_stranger(r, ctx, &response.headers)) {
        return NGX_DECLINED;
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

    file = (response.body.len > NGX_HTTP_IDEMPOTENCY_REPLAY_MEMORY)
           ? replay_to_file(r, &found->response, &response) : NULL;

    if (loc_conf) {
        ngx_http_idempotency_origin_enter(r, &response.origin, loc_conf);
    }

    ngx_http_finalize_request(r, replay_send(r, ctx, &response, file));

    return NGX_DONE;
}


/*
 * The body, in a temporary file that has no name any more; what stood before
 * it stays in memory, and the rest is given back.  NULL: there is no file, and
 * all of it is sent from memory.
 */

static ngx_file_t *
replay_to_file(ngx_http_request_t *r, ngx_str_t *bytes,
    ngx_http_idempotency_response_t *response)
{
    size_t                     len;
    u_char                    *p, *whole;
    ngx_file_t                *file;
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    whole = bytes->data;
    len = response->body.data - whole;

    p = ngx_pnalloc(r->pool, len);
    file = ngx_pcalloc(r->pool, sizeof(ngx_file_t));

    if (p == NULL || file == NULL) {
        return NULL;
    }

    file->log = r->connection->log;

    if (ngx_create_temp_file(file, clcf->client_body_temp_path, r->pool, 0, 0,
                             0)
        != NGX_OK
        || ngx_write_file(file, response->body.data, response->body.len, 0)
           == NGX_ERROR)
    {
        return NULL;
    }

    ngx_memcpy(p, whole, len);
    bytes->data = p;

    /* all that it told is where the bytes are, and these are the same */

    (void) ngx_http_idempotency_response_decode(bytes,
                                                r->method == NGX_HTTP_HEAD,
                                                response);
    (void) ngx_pfree(r->pool, whole);

    return file;
}


static ngx_int_t
replay_send(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_response_t *response, ngx_file_t *file)
{
    ngx_uint_t  cookies;

    cookies = (ctx->conf->replay_cookies == NGX_HTTP_IDEMPOTENCY_COOKIES_ALWAYS
               || (ctx->conf->replay_cookies
                   == NGX_HTTP_IDEMPOTENCY_COOKIES_IDENTIFIED
                   && ctx->identified
                   && !ctx->claim.found.anonymous));

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "idempotency replay: size:%uz, cookies:%ui",
                   response->body.len, cookies);

    if (ngx_http_idempotency_response_restore(r, response, cookies) != NGX_OK
        || replay_mark(r, ctx) != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_idempotency_stats_add(ctx->conf->store->counters->replayed_bytes,
                              response->body.len);

    return ngx_http_idempotency_send(r, response->body.data,
                                     response->body.len, 1, file);
}


/* instead of such a line that the original may have had */

static ngx_int_t
replay_mark(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_str_t        *name;
    ngx_list_t       *headers;
    ngx_table_elt_t  *h;

    static ngx_str_t  value = ngx_string("true");

    name = &ctx->conf->replay_header;
    headers = &r->headers_out.headers;

    if (name->len == 0) {
        return NGX_OK;
    }

    while ((h = ngx_http_idempotency_header_of(headers, (char *) name->data))
           != NULL)
    {
        h->hash = 0;
    }

    h = ngx_http_idempotency_header_push(r, headers, name, &value);

    return (h == NULL) ? NGX_ERROR : NGX_OK;
}
