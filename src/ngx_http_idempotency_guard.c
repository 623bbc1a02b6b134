
/*
 * The browser script, served from memory.  It is an aid: what the server does
 * holds without it.
 */


#include "ngx_http_idempotency.h"
#include "request/ngx_http_idempotency_response.h"

#include "ngx_http_idempotency_guard_js.h"


static ngx_int_t guard_handler(ngx_http_request_t *r);


char *
ngx_http_idempotency_guard(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (clcf->handler == guard_handler) {
        return "is duplicate";
    }

    clcf->handler = guard_handler;

    return NGX_CONF_OK;
}


static ngx_int_t
guard_handler(ngx_http_request_t *r)
{
    ngx_int_t  rc;

    static ngx_str_t  etag = ngx_string("ETag");
    static ngx_str_t  cache = ngx_string("Cache-Control");
    static ngx_str_t  hour = ngx_string("public, max-age=3600");

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {
        return NGX_HTTP_NOT_ALLOWED;
    }

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    r->headers_out.etag = ngx_http_idempotency_header_push(r,
                                          &r->headers_out.headers, &etag,
                                          &ngx_http_idempotency_guard_etag);

    if (r->headers_out.etag == NULL
        || ngx_http_idempotency_header_push(r, &r->headers_out.headers,
                                            &cache, &hour)
           == NULL)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_str_set(&r->headers_out.content_type, "text/javascript");
    ngx_str_set(&r->headers_out.charset, "utf-8");
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;

    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_length_n = sizeof(ngx_http_idempotency_guard_js);

    return ngx_http_idempotency_send(r, ngx_http_idempotency_guard_js,
                                     sizeof(ngx_http_idempotency_guard_js), 0,
                                     NULL);
}
