
/*
 * Header lines by name, and a response as the store keeps it: header block,
 * trailers, body.  Header lines keep their order, and each line keeps its place
 * in headers_out, so a replay passes nginx's filters as the original did.
 */


#ifndef _NGX_HTTP_IDEMPOTENCY_RESPONSE_H_INCLUDED_
#define _NGX_HTTP_IDEMPOTENCY_RESPONSE_H_INCLUDED_


#include "ngx_http_idempotency.h"


/* The next request header line of a name behind `last`; NULL for the first one.
   The name is written as in $http_name. */

ngx_table_elt_t *ngx_http_idempotency_header_next(ngx_http_request_t *r,
    char *name, ngx_table_elt_t *last);

/* the first line of a name in a response's list that is not deleted */

ngx_table_elt_t *ngx_http_idempotency_header_of(ngx_list_t *list, char *name);

ngx_table_elt_t *ngx_http_idempotency_header_push(ngx_list_t *list,
    ngx_str_t *key, ngx_str_t *value);

static ngx_inline ngx_uint_t
ngx_http_idempotency_header_is(ngx_table_elt_t *h, char *name, size_t len)
{
    u_char  c;
    size_t  n;

    if (h->key.len != len) {
        return 0;
    }

    for (n = 0; n < len; n++) {
        c = h->lowcase_key[n];

        if ((c == '-' ? '_' : c) != (u_char) name[n]) {
            return 0;
        }
    }

    return 1;
}

/* How much the client wants a type, in thousandths, by the most specific range
   in its Accept that covers the type; and how specific that is: 3 is the type
   itself, 2 "type/" and a star, 1 two stars, 0 none. */

ngx_uint_t ngx_http_idempotency_accept(ngx_http_request_t *r, char *type,
    ngx_uint_t *best);

/* the location that made a response, and the variables that depend on how the
   request came there */

#define NGX_HTTP_IDEMPOTENCY_LOCATION_LEN  16

typedef struct {
    u_char                     id[NGX_HTTP_IDEMPOTENCY_LOCATION_LEN];
    ngx_str_t                  uri;
    ngx_str_t                  args;
    unsigned                   internal:1;
    unsigned                   get:1;
    /* its access control has let the request in */
    unsigned                   admitted:1;
} ngx_http_idempotency_location_t;


/* a decoded response: its strings point into the encoded bytes */

typedef struct {
    /* set if that location is another one than the claim's */
    ngx_http_idempotency_location_t  location;

    ngx_uint_t                 status;
    ngx_str_t                  status_line;
    ngx_str_t                  content_type;
    size_t                     content_type_len;
    ngx_str_t                  charset;
    ngx_str_t                  override_charset;
    off_t                      content_length;
    time_t                     last_modified;
    uint64_t                   suppressed;

    /* encoded lines, to be read by ngx_http_idempotency_response_line() */
    ngx_str_t                  headers;
    ngx_str_t                  trailers;

    ngx_str_t                  body;

    ngx_uint_t                 flags;
    ngx_uint_t                 has_location;
} ngx_http_idempotency_response_t;


/* NULL: the response can't be kept */

ngx_buf_t *ngx_http_idempotency_response_header(ngx_http_request_t *r,
    ngx_array_t *hide, ngx_http_idempotency_location_t *location);
ngx_buf_t *ngx_http_idempotency_response_trailers(ngx_http_request_t *r);

/* NGX_ERROR: we have not recorded such a response. head: the request is a
   HEAD */

ngx_int_t ngx_http_idempotency_response_decode(ngx_str_t *bytes,
    ngx_uint_t head, ngx_http_idempotency_response_t *response);

/* the next one of the lines; NGX_DONE: there is none */

ngx_int_t ngx_http_idempotency_response_line(ngx_str_t *rest, ngx_uint_t *place,
    ngx_str_t *name, ngx_str_t *value);

/* fills headers_out; after decoding it fails for want of memory only */

ngx_int_t ngx_http_idempotency_response_restore(ngx_http_request_t *r,
    ngx_http_idempotency_response_t *response, ngx_uint_t cookies);

ngx_int_t ngx_http_idempotency_location_of(ngx_http_request_t *r,
    ngx_http_idempotency_location_t *location);

#endif /* _NGX_HTTP_IDEMPOTENCY_RESPONSE_H_INCLUDED_ */
