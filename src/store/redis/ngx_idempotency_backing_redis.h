
/* The backing that is a Redis or a Valkey, see ngx_idempotency_tier.h. */


#ifndef _NGX_IDEMPOTENCY_BACKING_REDIS_H_INCLUDED_
#define _NGX_IDEMPOTENCY_BACKING_REDIS_H_INCLUDED_


#include "store/ngx_idempotency_store.h"
#include "ngx_idempotency_redis.h"


/* `name` is what the block is called, for a zone that is already made */

ngx_int_t ngx_idempotency_backing_redis_add(ngx_conf_t *cf,
    ngx_idempotency_store_t *store, ngx_idempotency_redis_t *redis,
    ngx_str_t *name);


#endif /* _NGX_IDEMPOTENCY_BACKING_REDIS_H_INCLUDED_ */
