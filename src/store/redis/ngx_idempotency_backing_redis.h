
/*
 * The backing that is a Redis or a Valkey, see ngx_idempotency_tier.h: what its
 * files share.  All of it is a worker's own but for the names.
 */


#ifndef _NGX_IDEMPOTENCY_BACKING_REDIS_H_INCLUDED_
#define _NGX_IDEMPOTENCY_BACKING_REDIS_H_INCLUDED_


#include "store/ngx_idempotency_shm.h"
#include "ngx_idempotency_redis.h"
#include "ngx_idempotency_redis_item.h"


typedef struct ngx_idempotency_redis_zone_s  ngx_idempotency_redis_zone_t;


/* a batch on its way */

typedef struct {
    ngx_idempotency_redis_zone_t   *redis;
    ngx_idempotency_batch_t        *batch;
    ngx_idempotency_redis_item_t   *items;
    ngx_msec_t                      deadline;
    ngx_uint_t                      left;
    ngx_uint_t                      counted;
} ngx_idempotency_redis_batch_t;


/* A question for a stamp.  At most two are on the way: one for the stamp as the
   server has it, one for the stamp as replicas or the disk have it. */

typedef struct ngx_idempotency_redis_beat_s  ngx_idempotency_redis_beat_t;


struct ngx_idempotency_redis_zone_s {
    ngx_idempotency_tier_t          tier;

    ngx_pool_t                     *pool;
    /* NULL: no directive names the zone, only old workers use it */
    ngx_idempotency_redis_t        *redis;
    ngx_idempotency_redis_conf_t   *conf;
    ngx_str_t                       name;
    ngx_str_t                       prefix;
    ngx_str_t                       publish;

    ngx_idempotency_redis_batch_t   *batches;

    /* what each stamp begins with, and the instance that asks, as the
       connections send them */
    ngx_str_t                       stamp_head;
    u_char                          stamp_asker[2 * sizeof(uint64_t)];
    ngx_idempotency_redis_mark_t    mark;
    ngx_idempotency_redis_beat_t   *beats;
    /* when the stamps were last asked for; the version of their state in shared
       memory that this worker has seen */
    ngx_msec_t                      beaten;
    ngx_atomic_uint_t               stamped;

    /* room for the name of a channel */
    u_char                         *channel;

    ngx_uint_t                      exiting;
    ngx_uint_t                      foreign;
    ngx_uint_t                      warned;
};


/* in the configuration; `name`: the block's, for a zone already made */

ngx_int_t ngx_idempotency_backing_redis_add(ngx_conf_t *cf,
    ngx_idempotency_store_t *store, ngx_idempotency_redis_t *redis,
    ngx_str_t *name);

/* warns once if the zone may have responses of this size, and they may be too
   large for a Redis */

void ngx_idempotency_backing_redis_warn(ngx_conf_t *cf,
    ngx_idempotency_store_t *store, size_t size);

/* Lists a zone's records in the server.  NGX_AGAIN: calls
   ngx_idempotency_page_listed() later; NGX_ERROR: it can't ask. prefix: of the
   zone's keys. */

ngx_int_t ngx_idempotency_redis_list(ngx_idempotency_redis_t *redis,
    ngx_idempotency_page_t *page, ngx_str_t *prefix, int64_t now);

/* the stamps of a zone: in the configuration, and in a worker */

ngx_int_t ngx_idempotency_redis_stamps_init(
    ngx_idempotency_redis_zone_t *redis);
ngx_int_t ngx_idempotency_redis_stamps_init_process(
    ngx_idempotency_redis_zone_t *redis, ngx_pool_t *pool);

/* NULL, or why nothing may be sent, as any worker has found out */

const char *ngx_idempotency_redis_stamps_look(
    ngx_idempotency_redis_zone_t *redis);

/* asks for the stamps each second, in one worker; or along with a durable call,
   which also acknowledges the stamp of its key's part */

void ngx_idempotency_redis_stamps_beat(ngx_idempotency_tier_t *tier);
void ngx_idempotency_redis_stamps_with(ngx_idempotency_redis_zone_t *redis,
    ngx_idempotency_redis_call_t *call, ngx_uint_t n);

ngx_int_t ngx_idempotency_redis_stamps_agree(ngx_idempotency_tier_t *tier);


#endif /* _NGX_IDEMPOTENCY_BACKING_REDIS_H_INCLUDED_ */
