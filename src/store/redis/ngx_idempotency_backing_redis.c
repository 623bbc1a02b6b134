
/*
 * The backing that is a Redis or a Valkey: each item of a batch is a call of a
 * script, and the batch is answered when all of them are.  What is on its way
 * is bounded by time: it is answered before the block's timeout has gone by,
 * and the server does nothing that comes later.
 */


#include "store/ngx_idempotency_shm.h"
#include "ngx_idempotency_backing_redis.h"
#include "ngx_idempotency_redis_item.h"
#include "ngx_idempotency_redis_list.h"


/* what is pending elsewhere is asked for so often, if nobody says that it has
   changed: at first and at most */

#define NGX_IDEMPOTENCY_REDIS_SOON     20
#define NGX_IDEMPOTENCY_REDIS_SELDOM   1000

/* a response: reading and writing a large one keeps the server from all else */

#define NGX_IDEMPOTENCY_REDIS_MOST     (256 * 1024)

/* the batches that a worker has on the way, on each connection */

#define NGX_IDEMPOTENCY_REDIS_HANDS    4

/* a lost answer is asked for again so often */

#define NGX_IDEMPOTENCY_REDIS_RESENT   3

/* tokens whose change a worker wants to be told, and for how long each time */

#define NGX_IDEMPOTENCY_REDIS_WATCHES  4096
#define NGX_IDEMPOTENCY_REDIS_WATCHED  2500
#define NGX_IDEMPOTENCY_REDIS_BUCKETS  256


typedef struct redis_s  redis_t;

typedef struct {
    redis_t                        *redis;
    ngx_idempotency_batch_t        *batch;
    ngx_idempotency_redis_item_t   *items;
    ngx_msec_t                      deadline;
    ngx_uint_t                      left;
    ngx_uint_t                      waiting;
    ngx_uint_t                      counted;
} redis_hand_t;


/* what all who share the zone must have in common is looked at first */

typedef enum {
    redis_stamp_unknown = 0,
    redis_stamp_asked,
    redis_stamp_ours
} redis_stamp_e;


struct redis_s {
    ngx_idempotency_tier_t          tier;

    ngx_pool_t                     *pool;
    /* NULL: no directive names it, only old workers use it */
    ngx_idempotency_redis_t        *redis;
    ngx_str_t                       name;
    ngx_str_t                       prefix;
    ngx_str_t                       publish;

    redis_hand_t                   *hands;
    u_char                         *keys;

    redis_stamp_e                   stamp;
    ngx_uint_t                      stamp_lane;
    ngx_idempotency_redis_call_t    stamp_call;
    ngx_str_t                       stamp_key;
    /* format, digest key, version of fingerprints; so much of it is in front
       of the version */
    ngx_str_t                       stamp_value;
    size_t                          stamp_head;

    ngx_queue_t                     watches[NGX_IDEMPOTENCY_REDIS_BUCKETS];
    ngx_uint_t                      watched;
    ngx_event_t                     unwatch;

    ngx_uint_t                      exiting;
    ngx_uint_t                      foreign;
};


typedef struct {
    ngx_idempotency_redis_watch_t   watch;
    ngx_queue_t                     queue;
    redis_t                        *redis;
    ngx_msec_t                      wanted;
    u_char                          token[NGX_IDEMPOTENCY_DIGEST_LEN];
} redis_watch_t;


static ngx_int_t redis_init(ngx_idempotency_tier_t *tier,
    ngx_idempotency_tier_t *old, ngx_log_t *log);
static ngx_int_t redis_names(redis_t *redis);
static ngx_int_t redis_name(redis_t *redis, ngx_str_t *dst, char *tail);
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
static ngx_uint_t redis_hands(ngx_idempotency_tier_t *tier);
static ngx_uint_t redis_up(ngx_idempotency_tier_t *tier);

static ngx_int_t redis_hand(ngx_idempotency_tier_t *tier,
    ngx_idempotency_batch_t *batch);
static void redis_ask_stamp(redis_t *redis);
static void redis_stamp_handler(ngx_idempotency_redis_call_t *call);
static ngx_int_t redis_stamp_other(redis_t *redis,
    ngx_idempotency_redis_reply_t *reply, u_char *error, size_t len);
static void redis_stamp_version(redis_t *redis, ngx_uint_t version);
static void redis_send(redis_hand_t *hand);
static void redis_handler(ngx_idempotency_redis_call_t *call);
static ngx_int_t redis_resend(redis_hand_t *hand,
    ngx_idempotency_redis_item_t *ri);
static void redis_answered(redis_hand_t *hand,
    ngx_idempotency_redis_item_t *ri);
static void redis_vain(redis_hand_t *hand, ngx_idempotency_redis_item_t *ri,
    ngx_str_t *why);
static void redis_count(redis_hand_t *hand, ngx_uint_t error);
static void redis_foreign(redis_t *redis, ngx_idempotency_redis_item_t *ri);

static ngx_int_t redis_list(ngx_idempotency_tier_t *tier,
    ngx_idempotency_page_t *page);

static void redis_await(ngx_idempotency_tier_t *tier, u_char *token);
static redis_watch_t *redis_watch_of(redis_t *redis, u_char *token);
static void redis_watch_handler(ngx_idempotency_redis_watch_t *watch);
static void redis_unwatch_handler(ngx_event_t *ev);


static const ngx_idempotency_backing_t  redis_backing = {
    NGX_IDEMPOTENCY_REDIS_SOON,
    NGX_IDEMPOTENCY_REDIS_SELDOM,

    redis_kind,
    redis_now,
    redis_hand,
    NULL,
    redis_await,
    redis_list,
    NULL,
    NULL,
    NULL,
    NULL,
    redis_init,
    redis_again,
    redis_init_process,
    redis_finish,
    redis_exit_process,
    redis_hands,
    redis_up
};


ngx_int_t
ngx_idempotency_backing_redis_add(ngx_conf_t *cf,
    ngx_idempotency_store_t *store, ngx_idempotency_redis_t *block,
    ngx_str_t *name)
{
    redis_t                *redis;
    ngx_idempotency_shm_t  *shm;

    shm = store->data;

    redis = ngx_pcalloc(cf->pool, sizeof(redis_t));
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
    redis_t  *redis, *was;

    was = (redis_t *) old;

    redis = ngx_pcalloc(cf->pool, sizeof(redis_t));
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
    redis_t    *redis, *was;
    ngx_str_t  *name;

    redis = (redis_t *) tier;
    name = &tier->shm->store->name;

    if (redis_names(redis) != NGX_OK) {
        return NGX_ERROR;
    }

    if (old) {
        was = (redis_t *) old;

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
redis_names(redis_t *redis)
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

    p = ngx_pnalloc(redis->pool, 2 + 2 * NGX_IDEMPOTENCY_STAMP_LEN + 1
                                 + NGX_INT_T_LEN);
    if (p == NULL) {
        return NGX_ERROR;
    }

    redis->stamp_value.data = p;

    p = ngx_cpymem(p, "1 ", 2);
    p = ngx_hex_dump(p, (u_char *) redis->tier.shm->store->secret->stamp,
                     NGX_IDEMPOTENCY_STAMP_LEN);
    *p++ = ' ';

    redis->stamp_head = p - redis->stamp_value.data;

    /* until it is known what others write, nobody lacks the older one */

    redis_stamp_version(redis, NGX_IDEMPOTENCY_FINGERPRINT_VERSION);
    redis->tier.shm->store->version = NGX_IDEMPOTENCY_FINGERPRINT_OLDEST;

    if (redis_name(redis, &redis->prefix, "") != NGX_OK) {
        return NGX_ERROR;
    }

    return redis_name(redis, &redis->stamp_key, "stamp");
}


static ngx_int_t
redis_name(redis_t *redis, ngx_str_t *dst, char *tail)
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
    size_t                         size;
    redis_t                       *redis;
    ngx_uint_t                     i, n;
    ngx_idempotency_redis_item_t  *items;

    redis = (redis_t *) tier;

    for (i = 0; i < NGX_IDEMPOTENCY_REDIS_BUCKETS; i++) {
        ngx_queue_init(&redis->watches[i]);
    }

    redis->unwatch.handler = redis_unwatch_handler;
    redis->unwatch.data = redis;
    redis->unwatch.log = cycle->log;
    redis->unwatch.cancelable = 1;

    if (redis->redis == NULL) {
        return NGX_OK;
    }

    n = redis_hands(tier) * NGX_IDEMPOTENCY_TIER_BATCH;
    size = redis->prefix.len + NGX_IDEMPOTENCY_REDIS_TOKEN;

    redis->hands = ngx_pcalloc(cycle->pool,
                               redis_hands(tier) * sizeof(redis_hand_t));
    items = ngx_pcalloc(cycle->pool,
                        n * sizeof(ngx_idempotency_redis_item_t));
    redis->keys = ngx_pnalloc(cycle->pool, n * size);

    if (redis->hands == NULL || items == NULL || redis->keys == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < n; i++) {
        items[i].key = redis->keys + i * size;
        items[i].hand = &redis->hands[i / NGX_IDEMPOTENCY_TIER_BATCH];
        items[i].call.handler = redis_handler;
        items[i].call.data = &items[i];
    }

    for (i = 0; i < redis_hands(tier); i++) {
        redis->hands[i].redis = redis;
        redis->hands[i].items = &items[i * NGX_IDEMPOTENCY_TIER_BATCH];
    }

    if (ngx_idempotency_redis_init_process(redis->redis, cycle) != NGX_OK) {
        return NGX_ERROR;
    }

    redis_ask_stamp(redis);

    return NGX_OK;
}


/* what is on its way has kept the worker until it was answered */

static void
redis_finish(ngx_idempotency_tier_t *tier)
{
    ((redis_t *) tier)->exiting = 1;
}


static void
redis_exit_process(ngx_idempotency_tier_t *tier)
{
    redis_t  *redis;

    redis = (redis_t *) tier;

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
    redis_t     *redis;
    uint64_t     time;
    ngx_time_t  *tp;

    redis = (redis_t *) tier;

    time = redis->redis ? ngx_idempotency_redis_time(redis->redis) : 0;

    if (time) {
        return time / 1000;
    }

    tp = ngx_timeofday();

    return (int64_t) tp->sec * 1000 + tp->msec;
}


static ngx_uint_t
redis_hands(ngx_idempotency_tier_t *tier)
{
    redis_t  *redis;

    redis = (redis_t *) tier;

    if (redis->redis == NULL) {
        return 0;
    }

    return ngx_idempotency_redis_connections(redis->redis)
           * NGX_IDEMPOTENCY_REDIS_HANDS;
}


static ngx_uint_t
redis_up(ngx_idempotency_tier_t *tier)
{
    redis_t  *redis;

    redis = (redis_t *) tier;

    return redis->redis && ngx_idempotency_redis_up(redis->redis);
}


static ngx_int_t
redis_hand(ngx_idempotency_tier_t *tier, ngx_idempotency_batch_t *batch)
{
    redis_t       *redis;
    redis_hand_t  *hand;

    redis = (redis_t *) tier;

    if (redis->exiting) {
        ngx_cpystrn((u_char *) batch->error,
                    (u_char *) "the worker process exits",
                    sizeof(batch->error));
        return NGX_ERROR;
    }

    hand = &redis->hands[batch - tier->batches];

    hand->batch = batch;
    hand->left = batch->n;
    hand->counted = 0;
    hand->deadline = ngx_current_msec
                     + ngx_idempotency_redis_timeout(redis->redis);

    batch->error[0] = '\0';

    if (redis->stamp == redis_stamp_ours) {
        redis_send(hand);
        return NGX_AGAIN;
    }

    hand->waiting = 1;

    if (redis->stamp == redis_stamp_unknown) {
        redis_ask_stamp(redis);
    }

    return NGX_AGAIN;
}


static void
redis_ask_stamp(redis_t *redis)
{
    ngx_idempotency_redis_call_t  *call;

    call = &redis->stamp_call;

    ngx_idempotency_redis_stamp_call(call, &redis->stamp_value);

    call->key = redis->stamp_key;
    call->deadline = ngx_current_msec
                     + ngx_idempotency_redis_timeout(redis->redis);
    call->handler = redis_stamp_handler;
    call->data = redis;

    redis->stamp = redis_stamp_asked;
    redis->stamp_lane = 0;

    ngx_idempotency_redis_call(redis->redis, 0, call);
}


static void
redis_stamp_handler(ngx_idempotency_redis_call_t *call)
{
    redis_t  *redis = call->data;

    ngx_int_t                 rc;
    ngx_uint_t                i, n;
    redis_hand_t             *hand;
    ngx_idempotency_batch_t  *batch;

    u_char  error[sizeof(batch->error)];

    /* another connection may be there */

    if ((call->error == NGX_IDEMPOTENCY_REDIS_CLOSED
         || call->error == NGX_IDEMPOTENCY_REDIS_CONNECT)
        && ++redis->stamp_lane
           < ngx_idempotency_redis_connections(redis->redis)
        && (ngx_msec_int_t) (call->deadline - ngx_current_msec) > 0)
    {
        ngx_idempotency_redis_call(redis->redis, redis->stamp_lane, call);
        return;
    }

    rc = NGX_ERROR;
    (void) ngx_snprintf(error, sizeof(error), "%V%Z", &call->why);

    if (call->reply && (call->error == NGX_IDEMPOTENCY_REDIS_OK
                        || call->error == NGX_IDEMPOTENCY_REDIS_UNACKED))
    {
        rc = ngx_idempotency_redis_stamp_answer(call->reply);

        if (rc == NGX_DECLINED
            && redis_stamp_other(redis, call->reply, error, sizeof(error))
               == NGX_OK)
        {
            redis_ask_stamp(redis);
            return;
        }

        if (rc == NGX_OK) {
            redis->tier.shm->store->version =
                ngx_atoi(redis->stamp_value.data + redis->stamp_head,
                         redis->stamp_value.len - redis->stamp_head);
        }
    }

    redis->stamp = (rc == NGX_OK) ? redis_stamp_ours : redis_stamp_unknown;

    n = redis_hands(&redis->tier);

    /* those that are told that it was in vain may come back */

    for (i = 0; i < n; i++) {
        redis->hands[i].waiting *= 2;
    }

    for (i = 0; i < n; i++) {
        hand = &redis->hands[i];

        if (hand->waiting != 2) {
            continue;
        }

        hand->waiting = 0;

        if (rc == NGX_OK) {
            redis_send(hand);
            continue;
        }

        batch = hand->batch;
        batch->rc = NGX_ERROR;
        ngx_cpystrn((u_char *) batch->error, error, sizeof(batch->error));

        ngx_idempotency_tier_handed(&redis->tier, batch);
    }
}


/* NGX_OK: what others write is known here, and is what this one writes, too */

static ngx_int_t
redis_stamp_other(redis_t *redis, ngx_idempotency_redis_reply_t *reply,
    u_char *error, size_t len)
{
    ngx_int_t   version;
    ngx_str_t  *is;

    is = (reply->n > 2) ? &reply->elts[2].str : NULL;

    if (is == NULL || is->len <= redis->stamp_head
        || ngx_memcmp(is->data, redis->stamp_value.data, redis->stamp_head)
           != 0)
    {
        (void) ngx_snprintf(error, len,
                            "its \"%V\" tells of another digest key than "
                            "that of \"idempotency_secret\", or of "
                            "another version of the module%Z",
                            &redis->stamp_key);
        return NGX_ERROR;
    }

    version = ngx_atoi(is->data + redis->stamp_head,
                       is->len - redis->stamp_head);

    if (version < NGX_IDEMPOTENCY_FINGERPRINT_OLDEST
        || version > NGX_IDEMPOTENCY_FINGERPRINT_VERSION)
    {
        (void) ngx_snprintf(error, len,
                            "its \"%V\" tells of fingerprints of version %i, "
                            "and this module knows %d to %d%Z",
                            &redis->stamp_key, version,
                            NGX_IDEMPOTENCY_FINGERPRINT_OLDEST,
                            NGX_IDEMPOTENCY_FINGERPRINT_VERSION);
        return NGX_ERROR;
    }

    redis_stamp_version(redis, version);

    return NGX_OK;
}


static void
redis_stamp_version(redis_t *redis, ngx_uint_t version)
{
    u_char  *p;

    p = ngx_sprintf(redis->stamp_value.data + redis->stamp_head, "%ui",
                    version);

    redis->stamp_value.len = p - redis->stamp_value.data;
}


static void
redis_send(redis_hand_t *hand)
{
    redis_t                       *redis;
    ngx_uint_t                     i;
    ngx_idempotency_batch_t       *batch;
    ngx_idempotency_redis_item_t  *ri;

    batch = hand->batch;
    redis = hand->redis;

    /* the script makes a record's times */

    ngx_idempotency_seal(redis->tier.shm->store->secret, batch->items,
                         batch->n, 0);

    for (i = 0; i < batch->n; i++) {
        ri = &hand->items[i];

        ri->item = &batch->items[i];
        ri->resent = 0;
        ri->heard = 0;

        ngx_idempotency_redis_item_call(ri, &redis->prefix, &redis->publish,
                                        batch->now);

        (void) redis_resend(hand, ri);
    }
}


/* the same claim sent twice is one claim, and so is whatever else; by another
   connection, as one may be there while one is not yet */

static ngx_int_t
redis_resend(redis_hand_t *hand, ngx_idempotency_redis_item_t *ri)
{
    redis_t     *redis;
    ngx_uint_t   lane;

    if (ri->resent == NGX_IDEMPOTENCY_REDIS_RESENT
        || (ngx_msec_int_t) (hand->deadline - ngx_current_msec) <= 0)
    {
        return NGX_DECLINED;
    }

    redis = hand->redis;
    lane = (hand - redis->hands + ri->resent)
           % ngx_idempotency_redis_connections(redis->redis);

    ri->resent++;
    ri->call.deadline = hand->deadline;

    ngx_idempotency_redis_call(redis->redis, lane, &ri->call);

    return NGX_OK;
}


static void
redis_handler(ngx_idempotency_redis_call_t *call)
{
    redis_hand_t                  *hand;
    ngx_idempotency_redis_item_t  *ri;

    ri = call->data;
    hand = ri->hand;

    ri->heard |= call->maybe;

    if (call->error != NGX_IDEMPOTENCY_REDIS_OK) {
        redis_count(hand, call->error);
    }

    if ((call->error == NGX_IDEMPOTENCY_REDIS_CLOSED
         || call->error == NGX_IDEMPOTENCY_REDIS_CONNECT)
        && redis_resend(hand, ri) == NGX_OK)
    {
        return;
    }

    redis_answered(hand, ri);

    if (--hand->left == 0) {
        ngx_idempotency_unseal(hand->redis->tier.shm->store->secret,
                               hand->batch->items, hand->batch->n, 0);

        ngx_idempotency_tier_handed(&hand->redis->tier, hand->batch);
    }
}


static void
redis_answered(redis_hand_t *hand, ngx_idempotency_redis_item_t *ri)
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

    now = hand->batch->now
          + (ngx_msec_int_t) (ngx_current_msec - hand->batch->at);

    if (call->reply == NULL
        || (call->error != NGX_IDEMPOTENCY_REDIS_OK
            && call->error != NGX_IDEMPOTENCY_REDIS_UNACKED))
    {
        /* whoever is there when it is back may be another one; what is asked
           for already will be answered by whoever that is */

        if (hand->redis->stamp == redis_stamp_ours) {
            hand->redis->stamp = redis_stamp_unknown;
        }

        redis_vain(hand, ri, why);
        return;
    }

    switch (ngx_idempotency_redis_item_answer(ri, call->reply, now)) {

    case NGX_OK:
        break;

    case NGX_DECLINED:
        redis_foreign(hand->redis, ri);
        return;

    default:
        ri->heard = 1;
        redis_vain(hand, ri, &strange);
        return;
    }

    if (item->again) {
        redis_vain(hand, ri, &late);
        return;
    }

    if (call->error == NGX_IDEMPOTENCY_REDIS_UNACKED
        && (item->result == NGX_IDEMPOTENCY_CLAIMED
            || (item->what == NGX_IDEMPOTENCY_ITEM_PUT
                && item->outcome != NGX_IDEMPOTENCY_PENDING
                && item->result == NGX_IDEMPOTENCY_OK)))
    {
        ri->heard = 1;
        redis_vain(hand, ri, why);
    }
}


static void
redis_vain(redis_hand_t *hand, ngx_idempotency_redis_item_t *ri,
    ngx_str_t *why)
{
    ngx_idempotency_item_t  *item;

    item = ri->item;

    item->result = NGX_IDEMPOTENCY_UNAVAILABLE;
    item->again = 1;
    item->unheard = !ri->heard;

    (void) ngx_snprintf((u_char *) hand->batch->error,
                        sizeof(hand->batch->error), "%V%Z", why);
}


/* once for each batch */

static void
redis_count(redis_hand_t *hand, ngx_uint_t error)
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

    hand->batch->why = errors[error];

    if (hand->counted) {
        return;
    }

    hand->counted = 1;
    store = hand->redis->tier.shm->store;

    ngx_idempotency_stats_add(store->counters->errors[errors[error]], 1);
}


/* it stays as it is: who has written it knows what it is */

static void
redis_foreign(redis_t *redis, ngx_idempotency_redis_item_t *ri)
{
    ri->item->unheard = 1;

    if (redis->foreign) {
        return;
    }

    redis->foreign = 1;

    ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                  "idempotency: zone \"%V\": the redis \"%V\" has a value that "
                  "is none of this version of the module: such tokens are "
                  "unavailable, the first of them is \"%V\"",
                  &redis->tier.shm->store->name, &redis->name, &ri->call.key);
}


static ngx_int_t
redis_list(ngx_idempotency_tier_t *tier, ngx_idempotency_page_t *page)
{
    redis_t  *redis;

    redis = (redis_t *) tier;

    if (redis->redis == NULL || redis->exiting) {
        return NGX_ERROR;
    }

    return ngx_idempotency_redis_list(redis->redis, page, &redis->prefix,
                                      &redis->stamp_key, redis_now(tier));
}


/* the channel is the key's name */

static void
redis_await(ngx_idempotency_tier_t *tier, u_char *token)
{
    redis_t        *redis;
    redis_watch_t  *watch;

    redis = (redis_t *) tier;

    if (redis->redis == NULL || redis->exiting) {
        return;
    }

    watch = redis_watch_of(redis, token);

    if (watch == NULL) {

        if (redis->watched == NGX_IDEMPOTENCY_REDIS_WATCHES) {
            return;
        }

        watch = ngx_calloc(sizeof(redis_watch_t) + redis->prefix.len
                           + NGX_IDEMPOTENCY_REDIS_TOKEN, ngx_cycle->log);
        if (watch == NULL) {
            return;
        }

        ngx_memcpy(watch->token, token, NGX_IDEMPOTENCY_DIGEST_LEN);

        watch->redis = redis;
        watch->watch.handler = redis_watch_handler;
        watch->watch.data = watch;
        watch->watch.key.data = (u_char *) watch + sizeof(redis_watch_t);
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


static redis_watch_t *
redis_watch_of(redis_t *redis, u_char *token)
{
    ngx_queue_t    *q, *bucket;
    redis_watch_t  *watch;

    bucket = &redis->watches[token[0] % NGX_IDEMPOTENCY_REDIS_BUCKETS];

    for (q = ngx_queue_head(bucket);
         q != ngx_queue_sentinel(bucket);
         q = ngx_queue_next(q))
    {
        watch = ngx_queue_data(q, redis_watch_t, queue);

        if (ngx_memcmp(watch->token, token, NGX_IDEMPOTENCY_DIGEST_LEN) == 0) {
            return watch;
        }
    }

    return NULL;
}


/* it has changed, or may have: from now on nothing passes by unheard */

static void
redis_watch_handler(ngx_idempotency_redis_watch_t *w)
{
    redis_watch_t  *watch = w->data;

    ngx_idempotency_tier_changed(&watch->redis->tier, watch->token);
}


/* nobody has said again that he waits */

static void
redis_unwatch_handler(ngx_event_t *ev)
{
    redis_t  *redis = ev->data;

    ngx_uint_t      i;
    ngx_queue_t    *q, *next;
    redis_watch_t  *watch;

    for (i = 0; i < NGX_IDEMPOTENCY_REDIS_BUCKETS; i++) {

        for (q = ngx_queue_head(&redis->watches[i]);
             q != ngx_queue_sentinel(&redis->watches[i]);
             q = next)
        {
            next = ngx_queue_next(q);
            watch = ngx_queue_data(q, redis_watch_t, queue);

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
