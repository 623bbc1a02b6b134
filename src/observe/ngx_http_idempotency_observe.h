
/*
 * For the resources of idempotency_api: text that is written piece by piece,
 * and the figures of all stores as such text.
 */


#ifndef _NGX_HTTP_IDEMPOTENCY_OBSERVE_H_INCLUDED_
#define _NGX_HTTP_IDEMPOTENCY_OBSERVE_H_INCLUDED_


#include "ngx_http_idempotency.h"


/* text in buffers; after a failed allocation it stays failed */

typedef struct {
    ngx_pool_t                     *pool;
    ngx_chain_t                    *out;
    ngx_chain_t                   **next;
    ngx_buf_t                      *buf;
    off_t                           size;
    ngx_uint_t                      failed;
} ngx_http_idempotency_text_t;


/* api.c: adds at most 2048 bytes at once */

void ngx_http_idempotency_text_add(ngx_http_idempotency_text_t *text,
    const char *fmt, ...);

/* metrics.c: the figures of all stores for Prometheus; the same as JSON, of
   all stores or of one */

void ngx_http_idempotency_metrics(ngx_http_request_t *r,
    ngx_http_idempotency_text_t *text);
void ngx_http_idempotency_zones(ngx_http_request_t *r,
    ngx_http_idempotency_text_t *text, ngx_idempotency_store_t *store);


#endif /* _NGX_HTTP_IDEMPOTENCY_OBSERVE_H_INCLUDED_ */
