
/* What a single Redis has of a zone, page by page. */


#ifndef _NGX_IDEMPOTENCY_REDIS_LIST_H_INCLUDED_
#define _NGX_IDEMPOTENCY_REDIS_LIST_H_INCLUDED_


#include "store/ngx_idempotency_tier.h"
#include "ngx_idempotency_redis.h"


/* NGX_AGAIN: ngx_idempotency_remote_listed() is called; NGX_ERROR: it can't be
   asked.  prefix: of the zone's keys */

ngx_int_t ngx_idempotency_redis_list(ngx_idempotency_redis_t *redis,
    ngx_idempotency_page_t *page, ngx_str_t *prefix, int64_t now);


#endif /* _NGX_IDEMPOTENCY_REDIS_LIST_H_INCLUDED_ */
