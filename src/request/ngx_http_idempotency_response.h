
/*
 * A response as the store keeps it: a header block, the trailers, the body.
 * Header lines keep their order, and each the place in headers_out that it
 * had, so that a replay passes nginx's filters as the original did.
 */


#ifndef _NGX_HTTP_IDEMPOTENCY_RESPONSE_H_INCLUDED_
#define _NGX_HTTP_IDEMPOTENCY_RESPONSE_H_INCLUDED_


#include "ngx_http_idempotency.h"


/* the location that made it, and what variables may tell of it there */

#define NGX_HTTP_IDEMPOTENCY_ORIGIN_LEN  16

typedef struct {
    u_char                     id[NGX_HTTP_IDEMPOTENCY_ORIGIN_LEN];
    ngx_str_t                  uri;
    ngx_str_t                  args;
    unsigned                   internal:1;
    unsigned                   get:1;
} ngx_http_idempotency_origin_t;


ngx_buf_t *ngx_http_idempotency_response_header(ngx_http_request_t *r,
    ngx_array_t *hide, ngx_http_idempotency_origin_t *origin);
ngx_buf_t *ngx_http_idempotency_response_trailers(ngx_http_request_t *r);

/* NGX_DECLINED: it was made where the claim was */

ngx_int_t ngx_http_idempotency_response_origin(ngx_str_t *bytes,
    ngx_http_idempotency_origin_t *origin);

/* restores headers_out; what is left of the bytes is the body */

ngx_int_t ngx_http_idempotency_response_restore(ngx_http_request_t *r,
    ngx_str_t *bytes, ngx_uint_t cookies);

/* request/origin.c */

ngx_int_t ngx_http_idempotency_origin_of(ngx_http_request_t *r,
    ngx_http_idempotency_origin_t *origin);
void **ngx_http_idempotency_origin_find(ngx_http_request_t *r,
    ngx_http_idempotency_origin_t *origin);
void ngx_http_idempotency_origin_enter(ngx_http_request_t *r,
    ngx_http_idempotency_origin_t *origin, void **loc_conf);

/* request/slot.c */

ngx_uint_t ngx_http_idempotency_slot(ngx_http_headers_out_t *out,
    ngx_table_elt_t *h);
ngx_int_t ngx_http_idempotency_slot_fill(ngx_http_request_t *r,
    ngx_uint_t slot, ngx_table_elt_t *h);
ngx_uint_t ngx_http_idempotency_slots_suppressed(ngx_http_headers_out_t *out);
ngx_int_t ngx_http_idempotency_slots_suppress(ngx_http_request_t *r,
    uint64_t bits);


#endif /* _NGX_HTTP_IDEMPOTENCY_RESPONSE_H_INCLUDED_ */
