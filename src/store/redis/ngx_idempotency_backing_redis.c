
/*
 * The backing that is a Redis or a Valkey: its life, in the master and in a
 * worker, and what it tells of itself.
 */


#include "ngx_idempotency_backing_redis.h"
#include "ngx_idempotency_redis_list.h"


/* what is pending elsewhere is asked for so often, if nobody says that it has
   changed: at first and at most */

#define NGX_IDEMPOTENCY_REDIS_SOON     20
#define NGX_IDEMPOTENCY_REDIS_SELDOM   1000

/* a response: reading and writing a large one keeps the server from all else */

#define NGX_IDEMPOTENCY_REDIS_MOST     (256 * 1024)

/* the batches that a worker has on the way, on each connection */

#define NGX_IDEMPOTENCY_REDIS_HANDS    4


static ngx_int_t redis_init(ngx_idempotency_tier_t *tier,
    ngx_idempotency_tier_t *old, ngx_log_t *log);
static ngx_int_t redis_names(ngx_idempotency_redis_zone_t *redis);
static ngx_int_t redis_name(ngx_idempotency_redis_zone_t *redis,
    ngx_str_t *dst, char *tail);
static ngx_int_t redis_instance(uint64_t *instance, ngx_log_t *log);
static ngx_idempotency_tier_t *redis_again(ngx_conf_t *cf,
    ngx_idempotency_tier_t *old);
static ngx_int_t redis_init_process(ngx_idempotency_tier_t *tier,
    ngx_cycle_t *cycle);
static void redis_finish(ngx_idempotency_tier_t *tier);
static void redis_exit_process(ngx_idempotency_tier_t *tier);

static const char *redis_kind(ngx_idempotency_tier_t *tier,
    const char **sync);
static int64_t redis_now(ngx_idempotency_tier_t *tier);
static ngx_uint_t redis_up(ngx_idempotency_tier_t *tier);

static ngx_int_t redis_list(ngx_idempotency_tier_t *tier,
    ngx_idempotency_page_t *page);


static const ngx_idempotency_backing_t  redis_backing = {
    NGX_IDEMPOTENCY_REDIS_SOON,
    NGX_IDEMPOTENCY_REDIS_SELDOM,

    redis_kind,
    redis_now,
    ngx_idempotency_backing_redis_hand,
    ngx_idempotency_backing_redis_await,
    redis_list,
    NULL,
    redis_init,
    redis_again,
    redis_init_process,
    redis_finish,
    redis_exit_process,
    ngx_idempotency_backing_redis_hands,
    redis_up,
    NULL
};


ngx_int_t
ngx_idempotency_backing_redis_add(ngx_conf_t *cf,
    ngx_idempotency_store_t *store, ngx_idempotency_redis_t *block,
    ngx_str_t *name)
{
    ngx_idempotency_shm_t         *shm;
    ngx_idempotency_redis_zone_t  *redis;

    shm = store->data;

    redis = ngx_pcalloc(cf->pool, sizeof(ngx_idempotency_redis_zone_t));
    if (redis == NULL) {
        return NGX_ERROR;
    }

    redis->tier.backing = &redis_backing;
    redis->tier.shm = shm;

    redis->pool = cf->pool;
    redis->redis = block;
    redis->name = *name;

    shm->tier = &redis->tier;
    store->most = NGX_IDEMPOTENCY_REDIS_MOST;

    return NGX_OK;
}


/* for a configuration that does not name the zone any more, and so perhaps has
   no such block: what old workers leave waits for one that does */

static ngx_idempotency_tier_t *
redis_again(ngx_conf_t *cf, ngx_idempotency_tier_t *old)
{
    ngx_idempotency_redis_zone_t  *redis, *was;

    was = (ngx_idempotency_redis_zone_t *) old;

    redis = ngx_pcalloc(cf->pool, sizeof(ngx_idempotency_redis_zone_t));
    if (redis == NULL) {
        return NULL;
    }

    redis->tier.backing = &redis_backing;
    redis->tier.strict = old->strict;
    redis->pool = cf->pool;

    redis->name.len = was->name.len;
    redis->name.data = ngx_pstrdup(cf->pool, &was->name);

    redis->prefix.len = was->prefix.len;
    redis->prefix.data = ngx_pstrdup(cf->pool, &was->prefix);

    if (redis->name.data == NULL || redis->prefix.data == NULL) {
        return NULL;
    }

    return &redis->tier;
}


static ngx_int_t
redis_init(ngx_idempotency_tier_t *tier, ngx_idempotency_tier_t *old,
    ngx_log_t *log)
{
    ngx_str_t                     *name;
    ngx_idempotency_redis_zone_t  *redis, *was;

    redis = (ngx_idempotency_redis_zone_t *) tier;
    name = &tier->shm->store->name;

    if (redis_names(redis) != NGX_OK) {
        return NGX_ERROR;
    }

    if (old) {
        was = (ngx_idempotency_redis_zone_t *) old;

        if (redis->name.len != was->name.len
            || ngx_strncmp(redis->name.data, was->name.data, was->name.len)
               != 0
            || redis->prefix.len != was->prefix.len
            || ngx_strncmp(redis->prefix.data, was->prefix.data,
                           was->prefix.len)
               != 0)
        {
            ngx_log_error(NGX_LOG_EMERG, log, 0,
                          "idempotency_zone \"%V\" uses %V with the prefix "
                          "\"%V\" while previously it used %V with the "
                          "prefix \"%V\"; only a restart can change it",
                          name, &redis->tier.name, &redis->prefix,
                          &old->name, &was->prefix);
            return NGX_ERROR;
        }

        tier->instance = old->instance;
        tier->fence = old->fence;

    } else {
        tier->fence = (uint64_t) ngx_time() * 1000000;

        if (redis_instance(&tier->instance, log) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    if (redis->redis) {
        ngx_idempotency_redis_items_init();

        tier->strict = (ngx_idempotency_redis_durable(redis->redis) != 0);
        tier->shm->store->strict = tier->strict;
    }

    return NGX_OK;
}


static ngx_int_t
redis_names(ngx_idempotency_redis_zone_t *redis)
{
    u_char  *p;

    p = ngx_pnalloc(redis->pool, sizeof("redis \"\"") - 1 + redis->name.len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    redis->tier.name.data = p;
    redis->tier.name.len = ngx_sprintf(p, "redis \"%V\"", &redis->name) - p;

    if (redis->redis == NULL) {
        return NGX_OK;
    }

    if (ngx_idempotency_redis_sharded(redis->redis)) {
        ngx_str_set(&redis->publish, "SPUBLISH");

    } else {
        ngx_str_set(&redis->publish, "PUBLISH");
    }

    if (redis_name(redis, &redis->prefix, "") != NGX_OK
        || redis_name(redis, &redis->stamp_key, "stamp") != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_idempotency_backing_redis_stamp(redis);
}


static ngx_int_t
redis_name(ngx_idempotency_redis_zone_t *redis, ngx_str_t *dst,
    char *tail)
{
    u_char     *p;
    ngx_str_t  *prefix, *zone;

    prefix = ngx_idempotency_redis_prefix(redis->redis);
    zone = &redis->tier.shm->store->name;

    p = ngx_pnalloc(redis->pool, prefix->len + zone->len + 1
                                 + ngx_strlen(tail));
    if (p == NULL) {
        return NGX_ERROR;
    }

    dst->data = p;
    dst->len = ngx_sprintf(p, "%V%V:%s", prefix, zone, tail) - p;

    return NGX_OK;
}


/* nothing else in the world has it */

static ngx_int_t
redis_instance(uint64_t *instance, ngx_log_t *log)
{
    int      fd;
    ssize_t  n;

    fd = open("/dev/urandom", O_RDONLY|O_CLOEXEC);

    if (fd == -1) {
        ngx_log_error(NGX_LOG_EMERG, log, ngx_errno,
                      ngx_open_file_n " \"/dev/urandom\" failed");
        return NGX_ERROR;
    }

    n = read(fd, instance, sizeof(uint64_t));

    (void) close(fd);

    if (n != sizeof(uint64_t)) {
        ngx_log_error(NGX_LOG_EMERG, log, ngx_errno,
                      ngx_read_file_n " \"/dev/urandom\" failed");
        return NGX_ERROR;
    }

    return NGX_OK;
}


static ngx_int_t
redis_init_process(ngx_idempotency_tier_t *tier, ngx_cycle_t *cycle)
{
    ngx_idempotency_redis_zone_t  *redis;

    redis = (ngx_idempotency_redis_zone_t *) tier;

    ngx_idempotency_backing_redis_await_init(redis, cycle->log);

    if (redis->redis == NULL) {
        return NGX_OK;
    }

    if (ngx_idempotency_backing_redis_batches(redis, cycle->pool) != NGX_OK
        || ngx_idempotency_redis_init_process(redis->redis, cycle) != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_idempotency_backing_redis_ask_stamp(redis);

    return NGX_OK;
}


/* what is on its way has kept the worker until it was answered */

static void
redis_finish(ngx_idempotency_tier_t *tier)
{
    ((ngx_idempotency_redis_zone_t *) tier)->exiting = 1;
}


static void
redis_exit_process(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_redis_zone_t  *redis;

    redis = (ngx_idempotency_redis_zone_t *) tier;

    if (redis->redis) {
        ngx_idempotency_redis_exit_process(redis->redis);
    }
}


static const char *
redis_kind(ngx_idempotency_tier_t *tier, const char **sync)
{
    *sync = tier->strict ? "strict" : NULL;

    return "redis";
}


/* the server's, as far as it is known; a fence is made of it */

static int64_t
redis_now(ngx_idempotency_tier_t *tier)
{
    uint64_t                       time;
    ngx_time_t                    *tp;
    ngx_idempotency_redis_zone_t  *redis;

    redis = (ngx_idempotency_redis_zone_t *) tier;

    time = redis->redis ? ngx_idempotency_redis_time(redis->redis) : 0;

    if (time) {
        return time / 1000;
    }

    tp = ngx_timeofday();

    return (int64_t) tp->sec * 1000 + tp->msec;
}


ngx_uint_t
ngx_idempotency_backing_redis_hands(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_redis_zone_t  *redis;

    redis = (ngx_idempotency_redis_zone_t *) tier;

    if (redis->redis == NULL) {
        return 0;
    }

    return ngx_idempotency_redis_connections(redis->redis)
           * NGX_IDEMPOTENCY_REDIS_HANDS;
}


static ngx_uint_t
redis_up(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_redis_zone_t  *redis;

    redis = (ngx_idempotency_redis_zone_t *) tier;

    return redis->redis && ngx_idempotency_redis_up(redis->redis);
}


static ngx_int_t
redis_list(ngx_idempotency_tier_t *tier, ngx_idempotency_page_t *page)
{
    ngx_idempotency_redis_zone_t  *redis;

    redis = (ngx_idempotency_redis_zone_t *) tier;

    if (redis->redis == NULL || redis->exiting) {
        return NGX_ERROR;
    }

    return ngx_idempotency_redis_list(redis->redis, page, &redis->prefix,
                                      redis_now(tier));
}
