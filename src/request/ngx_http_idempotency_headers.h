
/*
 * Header lines, and a response with them: what all that send or look at some
 * have in common.
 */


#ifndef _NGX_HTTP_IDEMPOTENCY_HEADERS_H_INCLUDED_
#define _NGX_HTTP_IDEMPOTENCY_HEADERS_H_INCLUDED_


#include "ngx_http_idempotency.h"


/* all request header lines of a name, written as in $http_name; the first */

typedef struct {
    ngx_list_part_t  *part;
    ngx_uint_t        i;
} ngx_http_idempotency_header_iter_t;

void ngx_http_idempotency_header_iter(ngx_http_idempotency_header_iter_t *it,
    ngx_http_request_t *r);
ngx_table_elt_t *ngx_http_idempotency_header_next(
    ngx_http_idempotency_header_iter_t *it, ngx_str_t *name);
ngx_uint_t ngx_http_idempotency_header_is(ngx_table_elt_t *h,
    ngx_str_t *name);
ngx_table_elt_t *ngx_http_idempotency_header_first(ngx_http_request_t *r,
    ngx_str_t *name);

/* of a response, the first line of a name that is not deleted */

ngx_table_elt_t *ngx_http_idempotency_header_of(ngx_list_t *list, char *name);

ngx_table_elt_t *ngx_http_idempotency_header_push(ngx_http_request_t *r,
    ngx_list_t *list, ngx_str_t *key, ngx_str_t *value);

/* a response whose body is in one piece; with a file, it is there */

ngx_int_t ngx_http_idempotency_send(ngx_http_request_t *r, u_char *body,
    size_t len, ngx_uint_t temporary, ngx_file_t *file);


#endif /* _NGX_HTTP_IDEMPOTENCY_HEADERS_H_INCLUDED_ */
