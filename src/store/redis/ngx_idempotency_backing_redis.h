
/*
 * The backing that is a Redis or a Valkey, see ngx_idempotency_tier.h; and what
 * its files share, which is a worker's own but for the names.
 */


#ifndef _NGX_IDEMPOTENCY_BACKING_REDIS_H_INCLUDED_
#define _NGX_IDEMPOTENCY_BACKING_REDIS_H_INCLUDED_


#include "store/ngx_idempotency_shm.h"
#include "ngx_idempotency_redis.h"
#include "ngx_idempotency_redis_item.h"


#define NGX_IDEMPOTENCY_REDIS_BUCKETS  256


typedef struct ngx_idempotency_redis_zone_s  ngx_idempotency_redis_zone_t;


/* a batch on its way */

typedef struct {
    ngx_idempotency_redis_zone_t   *redis;
    ngx_idempotency_batch_t        *batch;
    ngx_idempotency_redis_item_t   *items;
    ngx_msec_t                      deadline;
    ngx_uint_t                      left;
    ngx_uint_t                      waiting;
    ngx_uint_t                      counted;
} ngx_idempotency_redis_hand_t;


/* what all who share the zone must have in common is looked at first */

typedef enum {
    ngx_idempotency_redis_stamp_unknown = 0,
    ngx_idempotency_redis_stamp_asked,
    ngx_idempotency_redis_stamp_ours
} ngx_idempotency_redis_stamp_e;


struct ngx_idempotency_redis_zone_s {
    ngx_idempotency_tier_t          tier;

    ngx_pool_t                     *pool;
    /* NULL: no directive names it, only old workers use it */
    ngx_idempotency_redis_t        *redis;
    ngx_str_t                       name;
    ngx_str_t                       prefix;
    ngx_str_t                       publish;

    ngx_idempotency_redis_hand_t   *hands;

    ngx_idempotency_redis_stamp_e   stamp;
    ngx_uint_t                      stamp_lane;
    ngx_idempotency_redis_call_t    stamp_call;
    ngx_str_t                       stamp_key;
    /* format, digest key, version of fingerprints; so much of it is in front
       of the version */
    ngx_str_t                       stamp_value;
    size_t                          stamp_head;
    /* ... and as each connection looks for it */
    ngx_idempotency_redis_mark_t    mark;

    ngx_queue_t                     watches[NGX_IDEMPOTENCY_REDIS_BUCKETS];
    ngx_uint_t                      watched;
    ngx_event_t                     unwatch;

    ngx_uint_t                      exiting;
    ngx_uint_t                      foreign;
    ngx_uint_t                      warned;
};


/* in the configuration.  `name` is what the block is called, for a zone that
   is already made */

ngx_int_t ngx_idempotency_backing_redis_add(ngx_conf_t *cf,
    ngx_idempotency_store_t *store, ngx_idempotency_redis_t *redis,
    ngx_str_t *name);

/* a zone of it may have responses of this size, which may be too large for it:
   said once */

void ngx_idempotency_backing_redis_warn(ngx_conf_t *cf,
    ngx_idempotency_store_t *store, size_t size);

/* the batches that a worker has on the way, at most */

ngx_uint_t ngx_idempotency_backing_redis_hands(ngx_idempotency_tier_t *tier);

/* a batch is sent once it is known that the stamp is ours */

void ngx_idempotency_backing_redis_send(ngx_idempotency_redis_hand_t *hand);

/* the stamp: what it is to be, and whether it is that there */

ngx_int_t ngx_idempotency_backing_redis_stamp(
    ngx_idempotency_redis_zone_t *redis);
void ngx_idempotency_backing_redis_ask_stamp(
    ngx_idempotency_redis_zone_t *redis);


#endif /* _NGX_IDEMPOTENCY_BACKING_REDIS_H_INCLUDED_ */
