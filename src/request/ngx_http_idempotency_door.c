
/*
 * At the door: whether a request is one that a location protects, and who was
 * turned away by access control before.
 */


#include "ngx_http_idempotency_headers.h"


/*
 * In front of all access control and limits.  Who comes by a second time, by
 * an error_page, and was not let in meanwhile was turned away; and so is who
 * comes with a body that was too large to be read.  Other ways to come here,
 * by an error_page for a "return" or for what try_files did not find, or
 * without an error, are an application's.
 */

ngx_int_t
ngx_http_idempotency_preaccess_handler(ngx_http_request_t *r)
{
    ngx_http_idempotency_ctx_t  *ctx;

    if (!ngx_http_idempotency_protects(r)) {
        return NGX_DECLINED;
    }

    ctx = ngx_http_idempotency_get_ctx(r);

    if (ctx == NULL) {
        ctx = ngx_http_idempotency_create_ctx(r);
        if (ctx == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        /* "error_page CODE =200" alone leaves this to who discards a body */

        ctx->door.turned_away = (r->internal
                                 && (r->discard_body
                                     || (r->expect_tested
                                         && r->request_body == NULL
                                         && (r->err_status == 0
                                             || r->err_status
                                                == NGX_HTTP_OK))));

    } else if (ctx->door.outside
               && (r->error_page != ctx->door.error_page
                   || r->err_status != ctx->door.err_status))
    {
        ctx->door.turned_away = 1;
    }

    ctx->door.outside = 1;
    ctx->door.error_page = r->error_page;
    ctx->door.err_status = r->err_status;

    return NGX_DECLINED;
}


/* behind all access control, in front of try_files */

ngx_int_t
ngx_http_idempotency_admitted_handler(ngx_http_request_t *r)
{
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ngx_http_idempotency_get_ctx(r);

    if (ctx && r == r->main) {
        ctx->door.outside = 0;
    }

    return NGX_DECLINED;
}


/*
 * An upgraded connection has no response to keep, and begins with a GET: on
 * any other request the offer would only switch off what protects it.  One of
 * h2c or TLS, which clients make along with requests as ordinary as any, nginx
 * doesn't take up.
 */

ngx_uint_t
ngx_http_idempotency_upgrade(ngx_http_request_t *r)
{
    ngx_str_t                           *value;
    ngx_table_elt_t                     *h;
    ngx_http_idempotency_header_iter_t   it;

    static ngx_str_t  connection = ngx_string("connection");

    if (r->method != NGX_HTTP_GET) {
        return 0;
    }

    value = &r->headers_in.upgrade->value;

    if (value->len >= 3
        && (ngx_strncasecmp(value->data, (u_char *) "h2c", 3) == 0
            || ngx_strncasecmp(value->data, (u_char *) "TLS", 3) == 0))
    {
        return 0;
    }

    ngx_http_idempotency_header_iter(&it, r);

    while ((h = ngx_http_idempotency_header_next(&it, &connection)) != NULL) {

        value = &h->value;

        if (ngx_strlcasestrn(value->data, value->data + value->len,
                             (u_char *) "upgrade", 7 - 1)
            != NULL)
        {
            return 1;
        }
    }

    return 0;
}
