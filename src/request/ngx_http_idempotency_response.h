
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


/* one that is decoded: strings are where the bytes are */

typedef struct {
    /* if it was made elsewhere than where the claim was */
    ngx_http_idempotency_origin_t  origin;

    ngx_uint_t                 status;
    ngx_str_t                  status_line;
    ngx_str_t                  content_type;
    size_t                     content_type_len;
    ngx_str_t                  charset;
    ngx_str_t                  override_charset;
    off_t                      content_length;
    time_t                     last_modified;
    uint64_t                   suppressed;

    /* lines, encoded: see ngx_http_idempotency_response_line() */
    ngx_str_t                  headers;
    ngx_str_t                  trailers;

    ngx_str_t                  body;

    unsigned                   allow_ranges:1;
    unsigned                   single_range:1;
    unsigned                   disable_not_modified:1;
    unsigned                   expect_trailers:1;
    unsigned                   override:1;
    unsigned                   elsewhere:1;
} ngx_http_idempotency_response_t;


/* NULL: it can't be kept */

ngx_buf_t *ngx_http_idempotency_response_header(ngx_http_request_t *r,
    ngx_array_t *hide, ngx_http_idempotency_origin_t *origin);
ngx_buf_t *ngx_http_idempotency_response_trailers(ngx_http_request_t *r);

/* NGX_ERROR: no response that we have recorded is like that.  head: it is of a
   HEAD request */

ngx_int_t ngx_http_idempotency_response_decode(ngx_str_t *bytes,
    ngx_uint_t head, ngx_http_idempotency_response_t *response);

/* the next of what is left of the lines; NGX_DONE: there is none */

ngx_int_t ngx_http_idempotency_response_line(ngx_str_t *rest,
    ngx_uint_t *slot, ngx_str_t *name, ngx_str_t *value);

/* into headers_out; what was decoded fails for want of memory alone */

ngx_int_t ngx_http_idempotency_response_restore(ngx_http_request_t *r,
    ngx_http_idempotency_response_t *response, ngx_uint_t cookies);

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
ngx_uint_t ngx_http_idempotency_slot_is(ngx_uint_t slot, ngx_str_t *name);
ngx_uint_t ngx_http_idempotency_slots_known(uint64_t bits);
ngx_uint_t ngx_http_idempotency_slots_suppressed(ngx_http_headers_out_t *out);
ngx_int_t ngx_http_idempotency_slots_suppress(ngx_http_request_t *r,
    uint64_t bits);


#endif /* _NGX_HTTP_IDEMPOTENCY_RESPONSE_H_INCLUDED_ */
