
/*
 * A filter that does nothing, in a dynamic module that asks nginx for no place
 * among the others: it has no ngx_module_order.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>


static ngx_int_t placeless_header_filter(ngx_http_request_t *r);
static ngx_int_t placeless_init(ngx_conf_t *cf);


static ngx_http_module_t  placeless_ctx = {
    NULL,                              /* preconfiguration */
    placeless_init,                    /* postconfiguration */

    NULL,                              /* create main configuration */
    NULL,                              /* init main configuration */

    NULL,                              /* create server configuration */
    NULL,                              /* merge server configuration */

    NULL,                              /* create location configuration */
    NULL                               /* merge location configuration */
};


ngx_module_t  ngx_http_placeless_module = {
    NGX_MODULE_V1,
    &placeless_ctx,                    /* module context */
    NULL,                              /* module directives */
    NGX_HTTP_MODULE,                   /* module type */
    NULL,                              /* init master */
    NULL,                              /* init module */
    NULL,                              /* init process */
    NULL,                              /* init thread */
    NULL,                              /* exit thread */
    NULL,                              /* exit process */
    NULL,                              /* exit master */
    NGX_MODULE_V1_PADDING
};


ngx_module_t  *ngx_modules[] = {
    &ngx_http_placeless_module,
    NULL
};


char  *ngx_module_names[] = {
    "ngx_http_placeless_module",
    NULL
};


static ngx_http_output_header_filter_pt  next_header_filter;


static ngx_int_t
placeless_header_filter(ngx_http_request_t *r)
{
    return next_header_filter(r);
}


static ngx_int_t
placeless_init(ngx_conf_t *cf)
{
    next_header_filter = ngx_http_top_header_filter;
    ngx_http_top_header_filter = placeless_header_filter;

    return NGX_OK;
}
