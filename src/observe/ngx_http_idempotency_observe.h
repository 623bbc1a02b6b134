
/*
 * What the pages below idempotency_api share: text that is written piece by
 * piece, the figures of all stores, and answers.
 */


#ifndef _NGX_HTTP_IDEMPOTENCY_OBSERVE_H_INCLUDED_
#define _NGX_HTTP_IDEMPOTENCY_OBSERVE_H_INCLUDED_


#include "ngx_http_idempotency.h"


/* text in buffers of a bounded size each; without memory it fails for good */

typedef struct {
    ngx_pool_t                     *pool;
    ngx_chain_t                    *out;
    ngx_chain_t                   **next;
    ngx_buf_t                      *buf;
    off_t                           size;
    ngx_uint_t                      failed;
} ngx_http_idempotency_text_t;

/* what is added at once is shorter than this, but for what is escaped */

#define NGX_HTTP_IDEMPOTENCY_TEXT_LINE  1024

void ngx_http_idempotency_text_init(ngx_http_idempotency_text_t *text,
    ngx_pool_t *pool);
void ngx_http_idempotency_text_add(ngx_http_idempotency_text_t *text,
    const char *fmt, ...);
void ngx_http_idempotency_text_label(ngx_http_idempotency_text_t *text,
    ngx_str_t *value);


/* a store, and what it tells of itself */

typedef struct {
    ngx_idempotency_store_t        *store;
    ngx_idempotency_figures_t       figures;
    ngx_uint_t                      known;
} ngx_http_idempotency_zone_t;


/* api.c: answers, that are all text, and refusals */

ngx_int_t ngx_http_idempotency_api_send(ngx_http_request_t *r,
    ngx_http_idempotency_text_t *text, const char *type);
ngx_int_t ngx_http_idempotency_api_done(ngx_http_request_t *r);
ngx_int_t ngx_http_idempotency_api_header(ngx_http_request_t *r,
    const char *name, ngx_str_t *value);

typedef enum {
    NGX_HTTP_IDEMPOTENCY_API_NOT_FOUND = 0,
    NGX_HTTP_IDEMPOTENCY_API_NO_ZONE,
    NGX_HTTP_IDEMPOTENCY_API_NO_RECORD,
    NGX_HTTP_IDEMPOTENCY_API_METHOD,
    NGX_HTTP_IDEMPOTENCY_API_METHOD_WRITE,
    NGX_HTTP_IDEMPOTENCY_API_METHOD_PUT,
    NGX_HTTP_IDEMPOTENCY_API_NO_KEY,
    NGX_HTTP_IDEMPOTENCY_API_BAD_KEY,
    NGX_HTTP_IDEMPOTENCY_API_BAD_ARGUMENT,
    NGX_HTTP_IDEMPOTENCY_API_BAD_OUTCOME,
    NGX_HTTP_IDEMPOTENCY_API_BAD_STORE,
    NGX_HTTP_IDEMPOTENCY_API_NOT_REFUSED,
    NGX_HTTP_IDEMPOTENCY_API_NO_BACKING,
    NGX_HTTP_IDEMPOTENCY_API_NOT_IN_DOUBT,
    NGX_HTTP_IDEMPOTENCY_API_UNAVAILABLE,
    NGX_HTTP_IDEMPOTENCY_API_REMOTE,
    NGX_HTTP_IDEMPOTENCY_API_HOST,
    NGX_HTTP_IDEMPOTENCY_API_ORIGIN,
    /* it may be asked: no refusal */
    NGX_HTTP_IDEMPOTENCY_API_ALLOWED
} ngx_http_idempotency_api_refusal_e;

ngx_int_t ngx_http_idempotency_api_refuse(ngx_http_request_t *r,
    ngx_http_idempotency_api_refusal_e why);

/* of all stores */

ngx_int_t ngx_http_idempotency_metrics(ngx_http_request_t *r);
ngx_http_idempotency_zone_t *ngx_http_idempotency_zones_read(
    ngx_http_request_t *r, ngx_uint_t *n);

/* records.c: all, in pages; that of a key, or what is done to it; that of the
   caller's own key */

ngx_int_t ngx_http_idempotency_records(ngx_http_request_t *r,
    ngx_idempotency_store_t *store);

ngx_int_t ngx_http_idempotency_record(ngx_http_request_t *r,
    ngx_idempotency_store_t *store, u_char *token);
ngx_int_t ngx_http_idempotency_own_outcome(ngx_http_request_t *r);

/* the token that the request asks for; NGX_DECLINED: it names none, NGX_ABORT:
   what it names is no key */

ngx_int_t ngx_http_idempotency_api_token(ngx_http_request_t *r,
    ngx_uint_t header_only, u_char *token);


#endif /* _NGX_HTTP_IDEMPOTENCY_OBSERVE_H_INCLUDED_ */
