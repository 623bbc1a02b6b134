
/*
 * Problem documents (RFC 9457), those of refusals and those of the API.
 */


#ifndef _NGX_HTTP_IDEMPOTENCY_REFUSE_H_INCLUDED_
#define _NGX_HTTP_IDEMPOTENCY_REFUSE_H_INCLUDED_


#include "ngx_http_idempotency.h"


/* what a problem document says */

typedef struct {
    ngx_str_t                     *docs;
    ngx_str_t                     *name;
    ngx_str_t                     *title;
    ngx_str_t                      detail;
    ngx_uint_t                     status;
    ngx_uint_t                     retryable;
} ngx_http_idempotency_problem_t;


ngx_int_t ngx_http_idempotency_refusal_detail(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *detail);

ngx_int_t ngx_http_idempotency_problem_document(ngx_http_request_t *r,
    ngx_http_idempotency_problem_t *problem, ngx_str_t *body);

u_char *ngx_http_idempotency_problem_uri(u_char *p, ngx_str_t *uri);

#endif /* _NGX_HTTP_IDEMPOTENCY_REFUSE_H_INCLUDED_ */
