
/*
 * The backing that is a Redis or a Valkey: its life in the master and in a
 * worker, its batches, and what the figures say of it.  Stamps are in
 * backing_redis_stamp.c, connections and servers in the client.
 *
 * A batch is one call of a script for each item.  It is answered when all calls
 * are: within the block's timeout, and the server does nothing of a call that
 * comes later.
 *
 * Left-over claims: a claim whose connection was lost is sent again over
 * another connection.  The first call may still be executed until its deadline,
 * whatever the second one was answered.  Then nobody would own the claim, and
 * other machines would find it in doubt.  So it is released when the first call
 * can't come any more, unless the zone has the claim.
 */


#include "ngx_idempotency_backing_redis.h"


/* how often the backing is asked about remote claims, as a message may be lost:
   at first, and at most */

#define NGX_IDEMPOTENCY_REDIS_SOON     20
#define NGX_IDEMPOTENCY_REDIS_SELDOM   1000

/* the largest response: the server does nothing else meanwhile */

#define NGX_IDEMPOTENCY_REDIS_MOST     (256 * 1024)

/* the speed that a connection has at least, we assume: bytes per millisecond */

#define NGX_IDEMPOTENCY_REDIS_SPEED    10000

/* the batches that a worker has on the way, for each connection */

#define NGX_IDEMPOTENCY_REDIS_BATCHES    4

/* a call whose connection was lost is sent so often at least */

#define NGX_IDEMPOTENCY_REDIS_SENT   3

/* a release of a left-over claim that failed is tried again after so long */

#define NGX_IDEMPOTENCY_REDIS_LEFT  1000


typedef struct {
    ngx_idempotency_redis_item_t    ri;
    ngx_idempotency_item_t          item;
    ngx_event_t                     timer;
    ngx_idempotency_redis_zone_t   *redis;
} left_t;


static ngx_idempotency_tier_t *redis_again(ngx_conf_t *cf,
    ngx_idempotency_tier_t *old);
static ngx_int_t redis_init(ngx_idempotency_tier_t *tier,
    ngx_idempotency_tier_t *old, ngx_log_t *log);
static ngx_int_t redis_names(ngx_idempotency_redis_zone_t *redis);
static ngx_int_t redis_instance(uint64_t *instance, ngx_log_t *log);
static ngx_int_t redis_init_process(ngx_idempotency_tier_t *tier,
    ngx_cycle_t *cycle);
static void redis_finish(ngx_idempotency_tier_t *tier);
static void redis_flush(ngx_idempotency_tier_t *tier, ngx_msec_t time,
    ngx_uint_t first);
static void redis_exit_process(ngx_idempotency_tier_t *tier);
static const char *redis_kind(ngx_idempotency_tier_t *tier, const char **sync);
static int64_t redis_now(ngx_idempotency_tier_t *tier);
static ngx_uint_t redis_nbatches(ngx_idempotency_tier_t *tier);
static ngx_uint_t redis_up(ngx_idempotency_tier_t *tier);
static ngx_int_t redis_well(ngx_idempotency_tier_t *tier);
static ngx_int_t redis_list(ngx_idempotency_tier_t *tier,
    ngx_idempotency_page_t *page);
static ngx_int_t batch_init(ngx_idempotency_redis_zone_t *redis,
    ngx_pool_t *pool);
static ngx_int_t batch_flush(ngx_idempotency_tier_t *tier,
    ngx_idempotency_batch_t *batch);
static ngx_int_t batch_call(ngx_idempotency_redis_batch_t *rb,
    ngx_idempotency_redis_item_t *ri);
static void batch_handler(ngx_idempotency_redis_call_t *call);
static void batch_answered(ngx_idempotency_redis_batch_t *rb,
    ngx_idempotency_redis_item_t *ri);
static void batch_failed(ngx_idempotency_redis_batch_t *rb,
    ngx_idempotency_redis_item_t *ri, ngx_str_t *why);
static void batch_count(ngx_idempotency_redis_batch_t *rb, ngx_uint_t error);
static void batch_foreign(ngx_idempotency_redis_zone_t *redis,
    ngx_idempotency_redis_item_t *ri);
static void left_add(ngx_idempotency_redis_zone_t *redis,
    ngx_idempotency_item_t *item, ngx_msec_t deadline);
static void left_timer_handler(ngx_event_t *ev);
static ngx_uint_t left_owned(left_t *left);
static void left_handler(ngx_idempotency_redis_call_t *call);
static void redis_await(ngx_idempotency_tier_t *tier, u_char *token);
static void redis_changed(void *data, ngx_str_t *key);


static const ngx_idempotency_backing_t  redis_backing = {
    NGX_IDEMPOTENCY_REDIS_SOON,
    NGX_IDEMPOTENCY_REDIS_SELDOM,

    redis_kind,
    redis_now,
    batch_flush,
    redis_await,
    redis_list,
    ngx_idempotency_redis_stamps_beat,
    redis_init,
    redis_again,
    NULL,
    redis_init_process,
    redis_finish,
    redis_flush,
    redis_exit_process,
    redis_nbatches,
    redis_up,
    ngx_idempotency_redis_stamps_agree,
    redis_well
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
    redis->conf = ngx_idempotency_redis_conf(block);
    redis->name = *name;

    shm->tier = &redis->tier;
    store->most = NGX_IDEMPOTENCY_REDIS_MOST;

    return NGX_OK;
}


void
ngx_idempotency_backing_redis_warn(ngx_conf_t *cf,
    ngx_idempotency_store_t *store, size_t size)
{
    ngx_msec_t                     timeout;
    ngx_idempotency_redis_zone_t  *redis;

    redis = (ngx_idempotency_redis_zone_t *)
                         ((ngx_idempotency_shm_t *) store->data)->tier;

    timeout = redis->conf->timeout;

    if (redis->warned || size / NGX_IDEMPOTENCY_REDIS_SPEED <= timeout) {
        return;
    }

    redis->warned = 1;

    ngx_log_error(NGX_LOG_WARN, cf->log, 0,
                  "idempotency: zone \"%V\": a response of "
                  "\"idempotency_max_response\", %uz bytes, takes longer at 10 "
                  "MB/s than the \"timeout\" of \"idempotency_redis\", %M ms, "
                  "and is not kept then", &store->name, size, timeout);
}


/* A zone that the configuration does not name any more, perhaps without its
   block: write-backs of old workers wait for a configuration that names it. */

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

        if (ngx_memn2cmp(redis->name.data, was->name.data, redis->name.len,
                         was->name.len)
            != 0
            || ngx_memn2cmp(redis->prefix.data, was->prefix.data,
                            redis->prefix.len, was->prefix.len)
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

        if (ngx_idempotency_redis_stamps_init(redis) != NGX_OK) {
            return NGX_ERROR;
        }

        tier->strict = (redis->conf->replicas || redis->conf->fsync);
        tier->shm->store->strict = tier->strict;
    }

    return NGX_OK;
}


static ngx_int_t
redis_names(ngx_idempotency_redis_zone_t *redis)
{
    u_char     *p;
    ngx_str_t  *zone, *prefix;

    p = ngx_pnalloc(redis->pool, sizeof("redis \"\"") - 1 + redis->name.len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    redis->tier.name.data = p;
    redis->tier.name.len = ngx_sprintf(p, "redis \"%V\"", &redis->name) - p;

    if (redis->redis == NULL) {
        return NGX_OK;
    }

    if (redis->conf->mode == NGX_IDEMPOTENCY_REDIS_CLUSTER) {
        ngx_str_set(&redis->publish, "SPUBLISH");

    } else {
        ngx_str_set(&redis->publish, "PUBLISH");
    }

    prefix = &redis->conf->prefix;
    zone = &redis->tier.shm->store->name;

    p = ngx_pnalloc(redis->pool, prefix->len + zone->len + 1);
    if (p == NULL) {
        return NGX_ERROR;
    }

    redis->prefix.data = p;
    redis->prefix.len = ngx_sprintf(p, "%V%V:", prefix, zone) - p;

    return NGX_OK;
}


/* no other zone in the world has this number */

static ngx_int_t
redis_instance(uint64_t *instance, ngx_log_t *log)
{
    int      fd;
    ssize_t  n;

    fd = open("/dev/urandom", O_RDONLY|O_CLOEXEC);
    n = (fd == -1) ? -1 : read(fd, instance, sizeof(uint64_t));

    if (n != sizeof(uint64_t)) {
        ngx_log_error(NGX_LOG_EMERG, log, ngx_errno,
                      ngx_read_file_n " \"/dev/urandom\" failed");
    }

    if (fd != -1) {
        (void) close(fd);
    }

    return (n == sizeof(uint64_t)) ? NGX_OK : NGX_ERROR;
}


static ngx_int_t
redis_init_process(ngx_idempotency_tier_t *tier, ngx_cycle_t *cycle)
{
    ngx_idempotency_redis_zone_t  *redis;

    redis = (ngx_idempotency_redis_zone_t *) tier;

    if (redis->redis == NULL) {
        return NGX_OK;
    }

    redis->channel = ngx_pnalloc(cycle->pool, redis->prefix.len
                                              + NGX_IDEMPOTENCY_REDIS_TOKEN);

    if (redis->channel == NULL || batch_init(redis, cycle->pool) != NGX_OK
        || ngx_idempotency_redis_stamps_init_process(redis, cycle->pool)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_idempotency_redis_init_process(redis->redis, cycle);
}


/* calls on their way have kept the worker until they were answered */

static void
redis_finish(ngx_idempotency_tier_t *tier)
{
    ((ngx_idempotency_redis_zone_t *) tier)->exiting = 1;
}


static void
redis_flush(ngx_idempotency_tier_t *tier, ngx_msec_t time, ngx_uint_t first)
{
    ngx_idempotency_redis_zone_t  *redis;

    redis = (ngx_idempotency_redis_zone_t *) tier;

    ngx_idempotency_redis_wait(redis->redis, time, first);
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


/* the server's time, as far as it is known */

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


/* the batches that a worker has on the way, at most */

static ngx_uint_t
redis_nbatches(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_redis_zone_t  *redis;

    redis = (ngx_idempotency_redis_zone_t *) tier;

    if (redis->redis == NULL) {
        return 0;
    }

    return redis->conf->connections * NGX_IDEMPOTENCY_REDIS_BATCHES;
}


static ngx_uint_t
redis_up(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_redis_zone_t  *redis;

    redis = (ngx_idempotency_redis_zone_t *) tier;

    return redis->redis && tier->shm->sh->tier.other != 1
           && ngx_idempotency_redis_up(redis->redis);
}


/* an exiting worker has closed connections that it does not need */

static ngx_int_t
redis_well(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_redis_zone_t  *redis;

    redis = (ngx_idempotency_redis_zone_t *) tier;

    if (redis->redis == NULL || ngx_exiting) {
        return NGX_DECLINED;
    }

    return ngx_idempotency_redis_well(redis->redis)
           && !tier->shm->sh->tier.other ? NGX_OK : NGX_ERROR;
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


static ngx_int_t
batch_init(ngx_idempotency_redis_zone_t *redis, ngx_pool_t *pool)
{
    size_t                         size;
    u_char                        *keys;
    ngx_uint_t                     i, n, nbatches;
    ngx_idempotency_redis_item_t  *items;

    nbatches = redis_nbatches(&redis->tier);

    n = nbatches * NGX_IDEMPOTENCY_TIER_BATCH;
    size = redis->prefix.len + NGX_IDEMPOTENCY_REDIS_TOKEN;

    redis->batches = ngx_pcalloc(pool, nbatches
                                     * sizeof(ngx_idempotency_redis_batch_t));
    items = ngx_pcalloc(pool, n * sizeof(ngx_idempotency_redis_item_t));
    keys = ngx_pnalloc(pool, n * size);

    if (redis->batches == NULL || items == NULL || keys == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < n; i++) {
        items[i].key = keys + i * size;
        items[i].rb = &redis->batches[i / NGX_IDEMPOTENCY_TIER_BATCH];
        items[i].call.handler = batch_handler;
        items[i].call.data = &items[i];
        items[i].call.mark = &redis->mark;
    }

    for (i = 0; i < nbatches; i++) {
        redis->batches[i].redis = redis;
        redis->batches[i].items = &items[i * NGX_IDEMPOTENCY_TIER_BATCH];
    }

    return NGX_OK;
}


static ngx_int_t
batch_flush(ngx_idempotency_tier_t *tier, ngx_idempotency_batch_t *batch)
{
    ngx_uint_t                      i;
    const char                     *why;
    ngx_idempotency_redis_zone_t   *redis;
    ngx_idempotency_redis_item_t   *ri;
    ngx_idempotency_redis_batch_t  *rb;

    redis = (ngx_idempotency_redis_zone_t *) tier;

    why = ngx_idempotency_redis_stamps_look(redis);

    if (why) {
        ngx_cpystrn((u_char *) batch->error, (u_char *) why,
                    sizeof(batch->error));
        return NGX_ERROR;
    }

    rb = &redis->batches[batch - tier->batches];

    rb->batch = batch;
    rb->left = batch->n;
    rb->counted = 0;
    rb->deadline = ngx_current_msec + redis->conf->timeout;

    batch->error[0] = '\0';

    /* a record's times are written by the script */

    ngx_idempotency_seal(tier->shm->store->secret, batch->items, batch->n, 0);

    for (i = 0; i < batch->n; i++) {
        ri = &rb->items[i];

        ri->item = &batch->items[i];
        ri->sent = 0;
        ri->maybe = 0;
        ri->lost = 0;

        ngx_idempotency_redis_item_call(ri, &redis->prefix, &redis->publish,
                                        batch->now);

        ri->call.fresh = (ri->item->what == NGX_IDEMPOTENCY_ITEM_ASK);

        (void) batch_call(rb, ri);
    }

    return NGX_AGAIN;
}


/* The same item sent twice has effect once.  It goes over another connection:
   that one may work where this one fails. */

static ngx_int_t
batch_call(ngx_idempotency_redis_batch_t *rb, ngx_idempotency_redis_item_t *ri)
{
    ngx_uint_t                     n, connections;
    ngx_idempotency_redis_zone_t  *redis;

    redis = rb->redis;
    connections = redis->conf->connections;

    if (ri->sent == ngx_max(connections, NGX_IDEMPOTENCY_REDIS_SENT)
        || (ngx_msec_int_t) (rb->deadline - ngx_current_msec) <= 0)
    {
        return NGX_DECLINED;
    }

    n = (rb - redis->batches + ri->sent++) % connections;

    ri->call.deadline = rb->deadline;

    ngx_idempotency_redis_stamps_with(redis, &ri->call, n);
    ngx_idempotency_redis_call(redis->redis, n, &ri->call);

    return NGX_OK;
}


static void
batch_handler(ngx_idempotency_redis_call_t *call)
{
    ngx_idempotency_redis_batch_t  *rb;
    ngx_idempotency_redis_item_t  *ri;

    ri = call->data;
    rb = ri->rb;

    ri->maybe |= call->maybe;
    ri->lost |= (call->maybe && call->reply == NULL);
    ri->item->slow = call->slow;

    if (call->error != NGX_IDEMPOTENCY_REDIS_OK) {
        batch_count(rb, call->error);
    }

    if ((call->error == NGX_IDEMPOTENCY_REDIS_CLOSED
         || call->error == NGX_IDEMPOTENCY_REDIS_CONNECT)
        && batch_call(rb, ri) == NGX_OK)
    {
        return;
    }

    if (ri->lost && ri->item->what == NGX_IDEMPOTENCY_ITEM_ASK) {
        left_add(rb->redis, ri->item, rb->deadline);
    }

    batch_answered(rb, ri);

    if (--rb->left == 0) {
        ngx_idempotency_unseal(rb->redis->tier.shm->store->secret,
                               rb->batch->items, rb->batch->n, 0);

        ngx_idempotency_batch_flushed(&rb->redis->tier, rb->batch);
    }
}


static void
batch_answered(ngx_idempotency_redis_batch_t *rb,
    ngx_idempotency_redis_item_t *ri)
{
    int64_t                        now;
    ngx_str_t                     *why;
    ngx_idempotency_item_t        *item;
    ngx_idempotency_redis_call_t  *call;

    static ngx_str_t  strange = ngx_string("an answer that is none");
    static ngx_str_t  late = ngx_string("it is slower than its timeout");

    call = &ri->call;
    item = ri->item;
    why = &call->why;

    now = rb->batch->now
          + (ngx_msec_int_t) (ngx_current_msec - rb->batch->at);

    if (call->reply == NULL
        || (call->error != NGX_IDEMPOTENCY_REDIS_OK
            && call->error != NGX_IDEMPOTENCY_REDIS_UNACKED))
    {
        batch_failed(rb, ri, why);
        return;
    }

    switch (ngx_idempotency_redis_item_answer(ri, call->reply, now)) {

    case NGX_OK:
        break;

    case NGX_DECLINED:
        batch_foreign(rb->redis, ri);
        return;

    default:
        ri->maybe = 1;
        batch_failed(rb, ri, &strange);
        return;
    }

    if (item->failed) {
        batch_failed(rb, ri, &late);
        return;
    }

    if (call->error == NGX_IDEMPOTENCY_REDIS_UNACKED
        && (item->result == NGX_IDEMPOTENCY_CLAIMED
            || (item->what == NGX_IDEMPOTENCY_ITEM_PUT
                && item->outcome != NGX_IDEMPOTENCY_PENDING
                && item->result == NGX_IDEMPOTENCY_OK)))
    {
        ri->maybe = 1;
        batch_failed(rb, ri, why);
    }
}


static void
batch_failed(ngx_idempotency_redis_batch_t *rb,
    ngx_idempotency_redis_item_t *ri, ngx_str_t *why)
{
    ngx_idempotency_item_t  *item;

    item = ri->item;

    item->result = NGX_IDEMPOTENCY_UNAVAILABLE;
    item->failed = 1;
    item->unsent = !ri->maybe;

    (void) ngx_snprintf((u_char *) rb->batch->error,
                        sizeof(rb->batch->error), "%V%Z", why);
}


/* counts an error once for each batch */

static void
batch_count(ngx_idempotency_redis_batch_t *rb, ngx_uint_t error)
{
    ngx_idempotency_store_t  *store;

    /* in the order of ngx_idempotency_redis_error_e */

    static const ngx_idempotency_error_e  errors[] = {
        NGX_IDEMPOTENCY_ERROR_OTHER,
        NGX_IDEMPOTENCY_ERROR_CONNECT,
        NGX_IDEMPOTENCY_ERROR_TIMEOUT,
        NGX_IDEMPOTENCY_ERROR_CONNECT,
        NGX_IDEMPOTENCY_ERROR_PROTOCOL,
        NGX_IDEMPOTENCY_ERROR_REFUSED,
        NGX_IDEMPOTENCY_ERROR_FULL,
        NGX_IDEMPOTENCY_ERROR_REFUSED,
        NGX_IDEMPOTENCY_ERROR_REFUSED,
        NGX_IDEMPOTENCY_ERROR_REFUSED,
        NGX_IDEMPOTENCY_ERROR_OTHER
    };

    rb->batch->why = errors[error];

    if (rb->counted) {
        return;
    }

    rb->counted = 1;
    store = rb->redis->tier.shm->store;

    ngx_idempotency_stats_add(store->counters->errors[errors[error]], 1);
}


/* the value stays as it is: another version of the module may need it */

static void
batch_foreign(ngx_idempotency_redis_zone_t *redis,
    ngx_idempotency_redis_item_t *ri)
{
    ri->item->unsent = 1;

    if (redis->foreign) {
        return;
    }

    redis->foreign = 1;

    ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                  "idempotency: zone \"%V\": the redis \"%V\" has a value that "
                  "is none of this version of the module, token: %*xs: it is "
                  "unavailable, and so are others like it, until this nginx "
                  "is upgraded, or the key \"%V\" is removed there",
                  &redis->tier.shm->store->name, &redis->name,
                  (size_t) NGX_IDEMPOTENCY_DIGEST_LEN, ri->item->token,
                  &ri->call.key);
}


/* The item as sent.  After the deadline the server executes none of it. */

static void
left_add(ngx_idempotency_redis_zone_t *redis, ngx_idempotency_item_t *item,
    ngx_msec_t deadline)
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
    left->item.unheard = 1;

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

    left->ri.call.deadline = ngx_current_msec + left->redis->conf->timeout;

    ngx_idempotency_redis_call(left->redis->redis, 0, &left->ri.call);
}


/* the zone has the claim, or may have it, as it is torn; it releases the claim
   itself when it gives it up */

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

    owned = (rec
             && ngx_idempotency_record_sequence(shm, rec)
                == left->item.sequence
             && !ngx_idempotency_record_negative(rec)
             && rec->state != NGX_IDEMPOTENCY_REMOTE)
            || shm->sh->tier.floor != left->item.floor;

    ngx_idempotency_shm_unlock(shm);

    return owned;
}


/* a worker that exits gives up: the claim's lease ends */

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


/* the channel has the key's name */

static void
redis_await(ngx_idempotency_tier_t *tier, u_char *token)
{
    ngx_str_t                      key;
    ngx_idempotency_redis_zone_t  *redis;

    redis = (ngx_idempotency_redis_zone_t *) tier;

    if (redis->redis == NULL || redis->exiting) {
        return;
    }

    key.data = redis->channel;
    key.len = ngx_idempotency_redis_item_key(key.data, &redis->prefix, token)
              - key.data;

    ngx_idempotency_redis_watch(redis->redis, &key, redis_changed, redis);
}


/* the key has changed, or may have; each later change is reported, too */

static void
redis_changed(void *data, ngx_str_t *key)
{
    ngx_idempotency_redis_zone_t  *redis = data;

    u_char     token[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_str_t  src, dst;

    src.data = key->data + redis->prefix.len;
    src.len = NGX_IDEMPOTENCY_REDIS_TOKEN;
    dst.data = token;

    if (ngx_decode_base64url(&dst, &src) == NGX_OK) {
        ngx_idempotency_remote_changed(&redis->tier, token);
    }
}
