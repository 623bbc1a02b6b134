
/*
 * The backing that is a Redis: what may be left of a claim.  One whose
 * connection was lost is sent again, by another one; the first may be carried
 * out yet, until it is too late, whatever was answered to the second: then it
 * is nobody's, and others would find it in doubt.  So it is given back when
 * nothing of it can come any more, unless the zone has it.
 */


#include "ngx_idempotency_backing_redis.h"


/* what could not be given back is tried again after so long */

#define NGX_IDEMPOTENCY_REDIS_LEFT  1000


typedef struct {
    ngx_idempotency_redis_item_t    ri;
    ngx_idempotency_item_t          item;
    ngx_event_t                     timer;
    ngx_idempotency_redis_zone_t   *redis;
} left_t;


static void left_timer_handler(ngx_event_t *ev);
static ngx_uint_t left_owned(left_t *left);
static void left_handler(ngx_idempotency_redis_call_t *call);


/* the item is as it was asked; behind the deadline nothing of it comes */

void
ngx_idempotency_backing_redis_left(ngx_idempotency_redis_zone_t *redis,
    ngx_idempotency_item_t *item, ngx_msec_t deadline)
{
    left_t          *left;
    ngx_msec_int_t   wait;

    wait = (ngx_msec_int_t) (deadline - ngx_current_msec);

    if (wait <= 0) {
        return;
    }

    left = ngx_calloc(sizeof(left_t) + redis->prefix.len
                      + NGX_IDEMPOTENCY_REDIS_TOKEN, ngx_cycle->log);
    if (left == NULL) {
        return;
    }

    left->redis = redis;

    left->item = *item;
    left->item.what = NGX_IDEMPOTENCY_ITEM_RELEASE;

    left->ri.item = &left->item;
    left->ri.key = (u_char *) left + sizeof(left_t);
    left->ri.call.handler = left_handler;
    left->ri.call.data = left;
    left->ri.call.mark = &redis->mark;

    left->timer.handler = left_timer_handler;
    left->timer.data = left;
    left->timer.log = ngx_cycle->log;

    ngx_add_timer(&left->timer, wait + 1);
}


static void
left_timer_handler(ngx_event_t *ev)
{
    left_t  *left;

    left = ev->data;

    if (left_owned(left)) {
        ngx_free(left);
        return;
    }

    ngx_idempotency_redis_item_call(&left->ri, &left->redis->prefix,
                                    &left->redis->publish, 0);

    left->ri.call.deadline = ngx_current_msec
                   + ngx_idempotency_redis_timeout(left->redis->redis);

    ngx_idempotency_redis_call(left->redis->redis, 0, &left->ri.call);
}


/* ... or may have it, if the zone is torn; what it gives up later it gives back
   itself */

static ngx_uint_t
left_owned(left_t *left)
{
    ngx_uint_t                 owned;
    ngx_idempotency_shm_t     *shm;
    ngx_idempotency_record_t  *rec;

    shm = left->redis->tier.shm;

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        return 1;
    }

    rec = ngx_idempotency_record_current(shm, left->item.token,
                                         ngx_current_msec);

    owned = (rec && rec->fence == left->item.fence
             && !ngx_idempotency_record_brief(rec)
             && rec->state != NGX_IDEMPOTENCY_ELSEWHERE)
            || shm->sh->tier.since != left->item.since;

    ngx_idempotency_shm_unlock(shm);

    return owned;
}


/* who exits leaves it: its lease ends, too */

static void
left_handler(ngx_idempotency_redis_call_t *call)
{
    left_t  *left = call->data;

    if (call->reply || left->redis->exiting) {
        ngx_free(left);
        return;
    }

    left->timer.cancelable = 1;
    ngx_add_timer(&left->timer, NGX_IDEMPOTENCY_REDIS_LEFT);
}
