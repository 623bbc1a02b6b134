
/*
 * What is told to those that are refused: for programs and for people.
 */


#ifndef _NGX_HTTP_IDEMPOTENCY_REFUSE_H_INCLUDED_
#define _NGX_HTTP_IDEMPOTENCY_REFUSE_H_INCLUDED_


#include "ngx_http_idempotency.h"


typedef struct {
    /* for programs; the detail is a format for the original's status */
    ngx_str_t                      title;
    ngx_str_t                      detail;

    /* for people: what happened, and what to do; the latter may differ where
       the content stands for the key */
    ngx_str_t                      heading;
    ngx_str_t                      page;
    ngx_str_t                      next;
    ngx_str_t                      next_content;

    /* in seconds, or 0; and so many more at random, so that a crowd doesn't
       come back at once */
    ngx_uint_t                     retry_after;
    ngx_uint_t                     spread;

    /* the same request again can help */
    unsigned                       retryable:1;
    /* nothing was executed, so that a way back to the form does no harm */
    unsigned                       back:1;
    /* ... where the content stands for the key, and the page takes it */
    unsigned                       returns:1;
} ngx_http_idempotency_refusal_text_t;


/* what a problem document says */

typedef struct {
    ngx_str_t                     *docs;
    ngx_str_t                     *name;
    ngx_str_t                     *title;
    ngx_str_t                      detail;
    ngx_uint_t                     status;
    ngx_uint_t                     retryable;
} ngx_http_idempotency_problem_t;


/* request/refuse.c */

ngx_int_t ngx_http_idempotency_refusal_detail(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *detail);

/* request/problem.c */

ngx_int_t ngx_http_idempotency_problem(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_refusal_text_t *refusal, ngx_uint_t status,
    ngx_str_t *body);

ngx_int_t ngx_http_idempotency_problem_document(ngx_http_request_t *r,
    ngx_http_idempotency_problem_t *problem, ngx_str_t *body);

u_char *ngx_http_idempotency_problem_uri(u_char *p, ngx_str_t *uri);

/* request/page.c */

ngx_int_t ngx_http_idempotency_page(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_refusal_text_t *refusal, ngx_str_t *body);


#endif /* _NGX_HTTP_IDEMPOTENCY_REFUSE_H_INCLUDED_ */
