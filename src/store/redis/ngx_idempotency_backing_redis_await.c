
/*
 * The backing that is a Redis: who is told of changes.  What is pending
 * elsewhere is watched for as long as somebody says that he waits for it.
 */


#include "ngx_idempotency_backing_redis.h"


/* tokens whose change a worker wants to be told, and for how long each time */

#define NGX_IDEMPOTENCY_REDIS_WATCHES  4096
#define NGX_IDEMPOTENCY_REDIS_WATCHED  2500


typedef struct {
    ngx_idempotency_redis_watch_t   watch;
    ngx_queue_t                     queue;
    ngx_idempotency_redis_zone_t   *redis;
    ngx_msec_t                      wanted;
    u_char                          token[NGX_IDEMPOTENCY_DIGEST_LEN];
} await_watch_t;


static await_watch_t *await_watch(ngx_idempotency_redis_zone_t *redis,
    u_char *token);
static void await_handler(ngx_idempotency_redis_watch_t *watch);
static void await_unwatch_handler(ngx_event_t *ev);


void
ngx_idempotency_backing_redis_await_init(
    ngx_idempotency_redis_zone_t *redis, ngx_log_t *log)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_IDEMPOTENCY_REDIS_BUCKETS; i++) {
        ngx_queue_init(&redis->watches[i]);
    }

    redis->unwatch.handler = await_unwatch_handler;
    redis->unwatch.data = redis;
    redis->unwatch.log = log;
    redis->unwatch.cancelable = 1;
}


/* the channel is the key's name */

void
ngx_idempotency_backing_redis_await(ngx_idempotency_tier_t *tier,
    u_char *token)
{
    await_watch_t                 *watch;
    ngx_idempotency_redis_zone_t  *redis;

    redis = (ngx_idempotency_redis_zone_t *) tier;

    if (redis->redis == NULL || redis->exiting) {
        return;
    }

    watch = await_watch(redis, token);

    if (watch == NULL) {

        if (redis->watched == NGX_IDEMPOTENCY_REDIS_WATCHES) {
            return;
        }

        watch = ngx_calloc(sizeof(await_watch_t) + redis->prefix.len
                           + NGX_IDEMPOTENCY_REDIS_TOKEN, ngx_cycle->log);
        if (watch == NULL) {
            return;
        }

        ngx_memcpy(watch->token, token, NGX_IDEMPOTENCY_DIGEST_LEN);

        watch->redis = redis;
        watch->watch.handler = await_handler;
        watch->watch.data = watch;
        watch->watch.key.data = (u_char *) watch + sizeof(await_watch_t);
        watch->watch.key.len =
            ngx_idempotency_redis_item_key(watch->watch.key.data,
                                           &redis->prefix, token)
            - watch->watch.key.data;

        ngx_queue_insert_head(
                 &redis->watches[token[0] % NGX_IDEMPOTENCY_REDIS_BUCKETS],
                 &watch->queue);
        redis->watched++;

        ngx_idempotency_redis_watch(redis->redis, &watch->watch);
    }

    watch->wanted = ngx_current_msec;

    if (!redis->unwatch.timer_set) {
        ngx_add_timer(&redis->unwatch, NGX_IDEMPOTENCY_REDIS_WATCHED);
    }
}


static await_watch_t *
await_watch(ngx_idempotency_redis_zone_t *redis, u_char *token)
{
    ngx_queue_t    *q, *bucket;
    await_watch_t  *watch;

    bucket = &redis->watches[token[0] % NGX_IDEMPOTENCY_REDIS_BUCKETS];

    for (q = ngx_queue_head(bucket);
         q != ngx_queue_sentinel(bucket);
         q = ngx_queue_next(q))
    {
        watch = ngx_queue_data(q, await_watch_t, queue);

        if (ngx_memcmp(watch->token, token, NGX_IDEMPOTENCY_DIGEST_LEN) == 0) {
            return watch;
        }
    }

    return NULL;
}


/* it has changed, or may have: from now on nothing passes by unheard */

static void
await_handler(ngx_idempotency_redis_watch_t *w)
{
    await_watch_t  *watch = w->data;

    ngx_idempotency_tier_changed(&watch->redis->tier, watch->token);
}


/* nobody has said again that he waits */

static void
await_unwatch_handler(ngx_event_t *ev)
{
    ngx_idempotency_redis_zone_t  *redis = ev->data;

    ngx_uint_t      i;
    ngx_queue_t    *q, *next;
    await_watch_t  *watch;

    for (i = 0; i < NGX_IDEMPOTENCY_REDIS_BUCKETS; i++) {

        for (q = ngx_queue_head(&redis->watches[i]);
             q != ngx_queue_sentinel(&redis->watches[i]);
             q = next)
        {
            next = ngx_queue_next(q);
            watch = ngx_queue_data(q, await_watch_t, queue);

            if (ngx_current_msec - watch->wanted
                < NGX_IDEMPOTENCY_REDIS_WATCHED)
            {
                continue;
            }

            ngx_idempotency_redis_unwatch(redis->redis, &watch->watch);

            ngx_queue_remove(q);
            ngx_free(watch);
            redis->watched--;
        }
    }

    if (redis->watched) {
        ngx_add_timer(ev, NGX_IDEMPOTENCY_REDIS_WATCHED);
    }
}
