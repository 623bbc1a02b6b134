
/*
 * The backing that is a Redis or a Valkey, see ngx_idempotency_tier.h, as the
 * configuration knows it.
 */


#ifndef _NGX_IDEMPOTENCY_BACKING_REDIS_H_INCLUDED_
#define _NGX_IDEMPOTENCY_BACKING_REDIS_H_INCLUDED_


#include "store/ngx_idempotency_store.h"
#include "ngx_idempotency_redis.h"


/* in the configuration, for a zone already made */

ngx_int_t ngx_idempotency_backing_redis_add(ngx_conf_t *cf,
    ngx_idempotency_store_t *store, ngx_idempotency_redis_t *redis);

/* warns once if the zone may have responses of this size, and they may be too
   large for a Redis */

void ngx_idempotency_backing_redis_warn(ngx_conf_t *cf,
    ngx_idempotency_store_t *store, size_t size);


#endif /* _NGX_IDEMPOTENCY_BACKING_REDIS_H_INCLUDED_ */
