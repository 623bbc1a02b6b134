
/*
 * The backing that is a Redis or a Valkey: its life in the master and in a
 * worker, its batches, what the figures show of it, and its stamps.
 * Connections and servers are in the client.
 *
 * A batch is one call of a script for each item.  It is answered when all calls
 * are: within the block's timeout, and the server does nothing of a call that
 * comes later.
 *
 * Stray claims: a claim whose connection was lost is sent again over
 * another connection.  The first call may still be executed until its deadline,
 * whatever the second one was answered.  Then nobody would own the claim, and
 * other machines would find it in doubt.  So it is released when the first call
 * can't come any more, unless the zone has the claim.
 *
 * Stamps: which store it is, and how far it has come.  A zone has a stamp there
 * (in a cluster one for each of 64 parts of its slots, which move with them),
 * and remembers in shared memory what it has seen of the stamp: its identity,
 * and the last beat that was acknowledged.
 *
 * Invariants, by name:
 *
 *   KNOWN    A zone that knows a stamp never makes one, whatever of it was
 *            acknowledged.
 *   SAME     Nothing is claimed, written or released unless the stamp is the
 *            known one: the scripts compare it.  In a cluster they can't reach
 *            it, so each connection asks, and one worker asks each second.
 *   ASKED    The server compares its stamp with the one that the question
 *            names.  If the zone has learnt another stamp since, the answer
 *            counts for nothing.
 *   BEHIND   A beat is behind if it is older than an acknowledged one, by the
 *            server's own clock.  None of our clocks is compared, so no beat is
 *            late.
 *   REFUSED  If the worker that asks each second finds a stamp wrong for two
 *            seconds, it is refused until an operator agrees, or until it is
 *            right again: a master that was replaced is asked no longer than
 *            that.
 */


#include "ngx_idempotency_backing_redis.h"
#include "store/ngx_idempotency_shm.h"
#include "ngx_idempotency_redis_item.h"

#include <openssl/rand.h>


/* how often the backing is asked about remote claims, as a message may be lost:
   at first, and at most */

#define REDIS_SOON    20
#define REDIS_SELDOM  1000

/* the largest response: the server does nothing else meanwhile */

#define REDIS_MAX_RESPONSE  (256 * 1024)

/* the speed that a connection has at least, we assume: bytes per millisecond */

#define REDIS_SPEED  10000

/* the batches that a worker has on the way, for each connection */

#define REDIS_BATCHES  4

/* a call whose connection was lost is sent so often at least */

#define BATCH_SENT  3

/* a release of a stray claim that failed is tried again after so long */

#define STRAY_AGAIN  1000

/* how often the stamps are asked for, and how long they have to be wrong, in
   msec; a late answer may take as long as two calls */

#define STAMP_INTERVAL  1000
#define STAMP_GRACE     2000

/* a code of stamp.lua that no operator can agree to */

#define STAMP_FOREIGN  'K'

#define STAMP_LEN   (2 * sizeof(uint64_t))
#define STAMP_HEAD  (2 + 2 * NGX_IDEMPOTENCY_STAMP_LEN + 1 + NGX_INT_T_LEN)


typedef struct redis_zone_s  redis_zone_t;


/* a batch on its way */

typedef struct {
    redis_zone_t                   *redis;
    ngx_idempotency_batch_t        *batch;
    ngx_idempotency_redis_item_t    items[NGX_IDEMPOTENCY_TIER_BATCH];
    ngx_msec_t                      deadline;
    ngx_uint_t                      left;
    ngx_uint_t                      counted;
} redis_batch_t;


/* A question for a stamp.  At most two are on the way: one for the stamp as the
   server has it, one for the stamp as replicas or the disk have it. */

typedef struct {
    ngx_idempotency_redis_call_t      call;
    ngx_idempotency_redis_question_t  question;
    ngx_idempotency_redis_stamp_t    *stamp;
    ngx_msec_t                        sent;
    ngx_uint_t                        busy;
} stamp_beat_t;


struct redis_zone_s {
    ngx_idempotency_tier_t          tier;

    ngx_pool_t                     *pool;
    /* NULL: no directive names the zone, only old workers use it */
    ngx_idempotency_redis_t        *block;
    ngx_idempotency_redis_conf_t   *conf;
    ngx_str_t                       prefix;
    ngx_str_t                       publish;

    redis_batch_t                  *batches;

    /* what each stamp begins with, and behind it the known identity; the
       least beat; the instance that asks; as the connections send them */
    ngx_str_t                       stamp_head;
    u_char                          stamp_known[STAMP_HEAD + 1 + STAMP_LEN];
    u_char                          stamp_least[NGX_INT64_LEN];
    u_char                          stamp_asker[STAMP_LEN];
    ngx_idempotency_redis_mark_t    mark;
    stamp_beat_t                   *beats;
    /* when the stamps were last asked for; the version of their state in shared
       memory that this worker has seen */
    ngx_msec_t                      beaten;
    ngx_atomic_uint_t               stamped;
    /* when the log last said that some have forgotten */
    ngx_msec_t                      forgot;

    /* room for the name of a channel */
    u_char                         *channel;

    ngx_uint_t                      foreign;
    ngx_uint_t                      warned;
};


/* a reply of the script */

typedef struct {
    ngx_uint_t                      code;
    uint64_t                        known;
    uint64_t                        least;
    uint64_t                        identity;
    uint64_t                        was;
    uint64_t                        beat;
} stamp_answer_t;


typedef struct {
    ngx_idempotency_redis_item_t    ri;
    ngx_idempotency_item_t          item;
    ngx_event_t                     timer;
    redis_zone_t                   *redis;
} stray_t;


static ngx_idempotency_tier_t *redis_unnamed(ngx_conf_t *cf,
    ngx_idempotency_tier_t *old);
static ngx_int_t redis_init(ngx_idempotency_tier_t *tier,
    ngx_idempotency_tier_t *old, ngx_log_t *log);
static ngx_int_t redis_init_process(ngx_idempotency_tier_t *tier,
    ngx_cycle_t *cycle);
static void redis_wait(ngx_idempotency_tier_t *tier, ngx_msec_t time,
    ngx_uint_t first);
static void redis_exit_process(ngx_idempotency_tier_t *tier);
static int64_t redis_now(ngx_idempotency_tier_t *tier);
static ngx_uint_t redis_nbatches(ngx_idempotency_tier_t *tier);
static ngx_uint_t redis_up(ngx_idempotency_tier_t *tier);
static ngx_int_t redis_well(ngx_idempotency_tier_t *tier);
static ngx_int_t redis_list(ngx_idempotency_tier_t *tier,
    ngx_idempotency_page_t *page);
static ngx_int_t batch_init(redis_zone_t *redis, ngx_pool_t *pool);
static ngx_int_t batch_flush(ngx_idempotency_tier_t *tier,
    ngx_idempotency_batch_t *batch);
static ngx_int_t batch_call(redis_batch_t *rb,
    ngx_idempotency_redis_item_t *ri);
static void batch_handler(ngx_idempotency_redis_call_t *call);
static void batch_answered(redis_batch_t *rb,
    ngx_idempotency_redis_item_t *ri);
static void batch_foreign(redis_zone_t *redis,
    ngx_idempotency_redis_item_t *ri);
static void stray_add(redis_zone_t *redis, ngx_idempotency_item_t *item,
    ngx_msec_t deadline);
static void stray_timer_handler(ngx_event_t *ev);
static void stray_handler(ngx_idempotency_redis_call_t *call);
static void redis_await(ngx_idempotency_tier_t *tier, u_char *token);
static void redis_changed(void *data, ngx_str_t *key);
static ngx_int_t stamp_init(redis_zone_t *redis);
static ngx_int_t stamp_init_process(redis_zone_t *redis, ngx_pool_t *pool);
static void stamp_maintain(ngx_idempotency_tier_t *tier);
static void stamp_beat_with(redis_zone_t *redis,
    ngx_idempotency_redis_call_t *call, ngx_uint_t n);
static ngx_int_t stamp_agree(ngx_idempotency_tier_t *tier);
static ngx_int_t stamp_keys(redis_zone_t *redis);
static void stamp_expect(redis_zone_t *redis);
static void stamp_ask(ngx_idempotency_redis_stamp_t *stamp,
    ngx_idempotency_redis_question_t *question);
static void stamp_beat(stamp_beat_t *beat, ngx_uint_t n, ngx_msec_t deadline);
static void stamp_beat_handler(ngx_idempotency_redis_call_t *call);
static ngx_int_t stamp_mark_handler(ngx_idempotency_redis_stamp_t *stamp,
    ngx_idempotency_redis_reply_t *reply);
static ngx_int_t stamp_judge(ngx_idempotency_redis_stamp_t *stamp,
    ngx_idempotency_redis_reply_t *reply, ngx_uint_t acked, ngx_msec_t *sent);
static void stamp_read(ngx_idempotency_redis_reply_t *reply,
    stamp_answer_t *answer);
static uint64_t stamp_hex(ngx_str_t *text);
static void stamp_right(redis_zone_t *redis, ngx_idempotency_tier_stamp_t *s,
    stamp_answer_t *answer, ngx_uint_t acked);
static ngx_uint_t stamp_wrong(redis_zone_t *redis,
    ngx_idempotency_tier_stamp_t *s, stamp_answer_t *answer, ngx_msec_t *sent);
static void stamp_changed(ngx_idempotency_tier_sh_t *sh);
static void stamp_why(ngx_idempotency_redis_stamp_t *stamp,
    stamp_answer_t *answer, ngx_str_t *reply);
static void stamp_log_right(redis_zone_t *redis, stamp_answer_t *answer,
    ngx_uint_t refused);
static void stamp_log_wrong(redis_zone_t *redis, ngx_uint_t accepts,
    ngx_uint_t code);


static const ngx_idempotency_backing_t  redis_backing = {
    .soon = REDIS_SOON,
    .seldom = REDIS_SELDOM,
    .kind = "redis",
    .now = redis_now,
    .flush = batch_flush,
    .await = redis_await,
    .list = redis_list,
    .maintain = stamp_maintain,
    .init = redis_init,
    .unnamed = redis_unnamed,
    .init_process = redis_init_process,
    .wait = redis_wait,
    .exit_process = redis_exit_process,
    .nbatches = redis_nbatches,
    .up = redis_up,
    .agree = stamp_agree,
    .well = redis_well
};


/* in the order of ngx_idempotency_redis_error_e */

static const ngx_idempotency_error_e  batch_errors[] = {
    NGX_IDEMPOTENCY_ERROR_OTHER,
    NGX_IDEMPOTENCY_ERROR_CONNECT,
    NGX_IDEMPOTENCY_ERROR_TIMEOUT,
    NGX_IDEMPOTENCY_ERROR_PROTOCOL,
    NGX_IDEMPOTENCY_ERROR_REFUSED,
    NGX_IDEMPOTENCY_ERROR_FULL,
    NGX_IDEMPOTENCY_ERROR_REFUSED,
    NGX_IDEMPOTENCY_ERROR_REFUSED,
    NGX_IDEMPOTENCY_ERROR_REFUSED,
    NGX_IDEMPOTENCY_ERROR_OTHER
};


ngx_int_t
ngx_idempotency_backing_redis_add(ngx_conf_t *cf,
    ngx_idempotency_store_t *store, ngx_idempotency_redis_t *block)
{
    u_char                 *p;
    ngx_str_t              *name;
    redis_zone_t           *redis;
    ngx_idempotency_shm_t  *shm;

    shm = store->data;
    name = &ngx_idempotency_redis_conf(block)->name;

    redis = ngx_pcalloc(cf->pool, sizeof(redis_zone_t));
    p = ngx_pnalloc(cf->pool, sizeof("redis \"\"") - 1 + name->len);

    if (redis == NULL || p == NULL) {
        return NGX_ERROR;
    }

    redis->tier.backing = &redis_backing;
    redis->tier.shm = shm;
    redis->tier.name.data = p;
    redis->tier.name.len = ngx_sprintf(p, "redis \"%V\"", name) - p;

    redis->pool = cf->pool;
    redis->block = block;
    redis->conf = ngx_idempotency_redis_conf(block);

    shm->tier = &redis->tier;
    store->max_response = REDIS_MAX_RESPONSE;

    return NGX_OK;
}


void
ngx_idempotency_backing_redis_warn(ngx_conf_t *cf,
    ngx_idempotency_store_t *store, size_t size)
{
    ngx_msec_t     timeout;
    redis_zone_t  *redis;

    redis = (redis_zone_t *) ((ngx_idempotency_shm_t *) store->data)->tier;
    timeout = redis->conf->timeout;

    if (redis->warned || timeout == 0 || size / REDIS_SPEED <= timeout) {
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
redis_unnamed(ngx_conf_t *cf, ngx_idempotency_tier_t *old)
{
    redis_zone_t  *redis, *was;

    was = (redis_zone_t *) old;

    redis = ngx_pcalloc(cf->pool, sizeof(redis_zone_t));
    if (redis == NULL) {
        return NULL;
    }

    redis->tier.backing = &redis_backing;
    redis->tier.strict = old->strict;
    redis->pool = cf->pool;

    redis->tier.name.len = old->name.len;
    redis->tier.name.data = ngx_pstrdup(cf->pool, &old->name);

    redis->prefix.len = was->prefix.len;
    redis->prefix.data = ngx_pstrdup(cf->pool, &was->prefix);

    if (redis->tier.name.data == NULL || redis->prefix.data == NULL) {
        return NULL;
    }

    return &redis->tier;
}


static ngx_int_t
redis_init(ngx_idempotency_tier_t *tier, ngx_idempotency_tier_t *old,
    ngx_log_t *log)
{
    u_char        *p;
    ngx_str_t     *name, *prefix;
    redis_zone_t  *redis, *was;

    redis = (redis_zone_t *) tier;
    name = &tier->shm->store->name;

    if (redis->block) {
        prefix = &redis->conf->prefix;

        p = ngx_pnalloc(redis->pool, prefix->len + name->len + 1);
        if (p == NULL) {
            return NGX_ERROR;
        }

        redis->prefix.data = p;
        redis->prefix.len = ngx_sprintf(p, "%V%V:", prefix, name) - p;
    }

    if (old) {
        was = (redis_zone_t *) old;

        if (ngx_memn2cmp(tier->name.data, old->name.data, tier->name.len,
                         old->name.len)
            != 0
            || ngx_memn2cmp(redis->prefix.data, was->prefix.data,
                            redis->prefix.len, was->prefix.len)
               != 0)
        {
            ngx_log_error(NGX_LOG_EMERG, log, 0,
                          "idempotency_zone \"%V\" uses %V with the prefix "
                          "\"%V\" while previously it used %V with the "
                          "prefix \"%V\"; only a restart can change it",
                          name, &tier->name, &redis->prefix,
                          &old->name, &was->prefix);
            return NGX_ERROR;
        }

        tier->instance = old->instance;
        tier->fence = old->fence;

    } else {
        tier->fence = (uint64_t) ngx_time() * 1000000;

        /* no other zone in the world has this number */

        if (RAND_bytes((u_char *) &tier->instance, sizeof(uint64_t)) != 1) {
            ngx_log_error(NGX_LOG_EMERG, log, 0, "RAND_bytes() failed");
            return NGX_ERROR;
        }
    }

    if (redis->block) {
        if (redis->conf->mode == NGX_IDEMPOTENCY_REDIS_CLUSTER) {
            ngx_str_set(&redis->publish, "SPUBLISH");

        } else {
            ngx_str_set(&redis->publish, "PUBLISH");
        }

        ngx_idempotency_redis_items_init();

        if (stamp_init(redis) != NGX_OK) {
            return NGX_ERROR;
        }

        tier->strict = (redis->conf->replicas || redis->conf->fsync);
        tier->shm->store->strict = tier->strict;
    }

    return NGX_OK;
}


static ngx_int_t
redis_init_process(ngx_idempotency_tier_t *tier, ngx_cycle_t *cycle)
{
    redis_zone_t  *redis = (redis_zone_t *) tier;

    if (redis->block == NULL) {
        return NGX_OK;
    }

    if (batch_init(redis, cycle->pool) != NGX_OK
        || ngx_idempotency_redis_init_process(redis->block, cycle) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return stamp_init_process(redis, cycle->pool);
}


static void
redis_wait(ngx_idempotency_tier_t *tier, ngx_msec_t time, ngx_uint_t first)
{
    ngx_idempotency_redis_wait(((redis_zone_t *) tier)->block, time, first);
}


static void
redis_exit_process(ngx_idempotency_tier_t *tier)
{
    redis_zone_t  *redis = (redis_zone_t *) tier;

    if (redis->block) {
        ngx_idempotency_redis_exit_process(redis->block);
    }
}


/* the server's time, as far as it is known */

static int64_t
redis_now(ngx_idempotency_tier_t *tier)
{
    redis_zone_t  *redis = (redis_zone_t *) tier;

    int64_t      time;
    ngx_time_t  *tp;

    time = redis->block ? ngx_idempotency_redis_time(redis->block) : 0;

    if (time) {
        return time / 1000;
    }

    tp = ngx_timeofday();

    return (int64_t) tp->sec * 1000 + tp->msec;
}


static ngx_uint_t
redis_nbatches(ngx_idempotency_tier_t *tier)
{
    redis_zone_t  *redis = (redis_zone_t *) tier;

    return redis->block ? redis->conf->connections * REDIS_BATCHES : 0;
}


static ngx_uint_t
redis_up(ngx_idempotency_tier_t *tier)
{
    redis_zone_t  *redis = (redis_zone_t *) tier;

    return redis->block
           && tier->shm->sh->tier.other != NGX_IDEMPOTENCY_TIER_OTHER
           && ngx_idempotency_redis_up(redis->block);
}


/* an exiting worker has closed connections that it does not need */

static ngx_int_t
redis_well(ngx_idempotency_tier_t *tier)
{
    redis_zone_t  *redis = (redis_zone_t *) tier;

    if (redis->block == NULL || ngx_exiting) {
        return NGX_DECLINED;
    }

    return ngx_idempotency_redis_well(redis->block)
           && !tier->shm->sh->tier.other ? NGX_OK : NGX_ERROR;
}


static ngx_int_t
redis_list(ngx_idempotency_tier_t *tier, ngx_idempotency_page_t *page)
{
    redis_zone_t  *redis = (redis_zone_t *) tier;

    if (redis->block == NULL || redis->tier.finished) {
        return NGX_ERROR;
    }

    return ngx_idempotency_redis_list(redis->block, page, &redis->prefix,
                                      redis_now(tier));
}


static ngx_int_t
batch_init(redis_zone_t *redis, ngx_pool_t *pool)
{
    size_t                         size;
    u_char                        *key;
    ngx_uint_t                     i, n;
    redis_batch_t                 *rb;
    ngx_idempotency_redis_item_t  *ri;

    n = redis_nbatches(&redis->tier);
    size = redis->prefix.len + NGX_IDEMPOTENCY_REDIS_TOKEN;

    redis->batches = ngx_pcalloc(pool, n * sizeof(redis_batch_t));
    key = ngx_pnalloc(pool, (n * NGX_IDEMPOTENCY_TIER_BATCH + 1) * size);

    if (redis->batches == NULL || key == NULL) {
        return NGX_ERROR;
    }

    redis->channel = key;

    for (i = 0; i < n * NGX_IDEMPOTENCY_TIER_BATCH; i++) {
        key += size;

        rb = &redis->batches[i / NGX_IDEMPOTENCY_TIER_BATCH];
        rb->redis = redis;

        ri = &rb->items[i % NGX_IDEMPOTENCY_TIER_BATCH];
        ri->key = key;
        ri->rb = rb;
        ri->call.handler = batch_handler;
        ri->call.data = ri;
        ri->call.mark = &redis->mark;
    }

    return NGX_OK;
}


static ngx_int_t
batch_flush(ngx_idempotency_tier_t *tier, ngx_idempotency_batch_t *batch)
{
    ngx_uint_t                     i, other;
    redis_zone_t                  *redis;
    redis_batch_t                 *rb;
    ngx_idempotency_redis_item_t  *ri;

    redis = (redis_zone_t *) tier;

    other = tier->shm->sh->tier.other;

    /* in a cluster nothing is sent while a stamp is wrong */

    if (other == NGX_IDEMPOTENCY_TIER_OTHER
        || (other && redis->mark.nstamps > 1))
    {
        ngx_cpystrn((u_char *) batch->error,
                    (u_char *) "it is not the one that it was, or has "
                    "forgotten", sizeof(batch->error));
        return NGX_ERROR;
    }

    stamp_expect(redis);

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
        (void) batch_call(rb, ri);
    }

    return NGX_AGAIN;
}


/* The same item sent twice has effect once.  It goes over another connection:
   that one may work where this one fails. */

static ngx_int_t
batch_call(redis_batch_t *rb, ngx_idempotency_redis_item_t *ri)
{
    ngx_uint_t     n, connections;
    redis_zone_t  *redis;

    redis = rb->redis;
    connections = redis->conf->connections;

    if (ri->sent == ngx_max(connections, BATCH_SENT)
        || (ngx_msec_int_t) (rb->deadline - ngx_current_msec) <= 0)
    {
        return NGX_DECLINED;
    }

    n = (rb - redis->batches + ri->sent++) % connections;

    ri->call.deadline = rb->deadline;

    stamp_beat_with(redis, &ri->call, n);
    ngx_idempotency_redis_call(redis->block, n, &ri->call);

    return NGX_OK;
}


static void
batch_handler(ngx_idempotency_redis_call_t *call)
{
    redis_batch_t                 *rb;
    ngx_idempotency_counters_t    *counters;
    ngx_idempotency_redis_item_t  *ri;

    ri = call->data;
    rb = ri->rb;

    ri->maybe |= call->maybe;
    ri->lost |= (call->maybe && call->reply == NULL);
    ri->item->slow = call->slow;

    if (call->error != NGX_IDEMPOTENCY_REDIS_OK) {
        rb->batch->why = batch_errors[call->error];

        if (!rb->counted) {
            rb->counted = 1;
            counters = rb->redis->tier.shm->store->counters;

            ngx_idempotency_stats_add(counters->errors[rb->batch->why], 1);
        }
    }

    if (call->error == NGX_IDEMPOTENCY_REDIS_CONNECT
        && batch_call(rb, ri) == NGX_OK)
    {
        return;
    }

    if (ri->lost && ri->item->what == NGX_IDEMPOTENCY_ITEM_ASK) {
        stray_add(rb->redis, ri->item, rb->deadline);
    }

    batch_answered(rb, ri);

    if (--rb->left == 0) {
        ngx_idempotency_unseal(rb->redis->tier.shm->store->secret,
                               rb->batch->items, rb->batch->n, 0);

        ngx_idempotency_batch_flushed(&rb->redis->tier, rb->batch);
    }
}


static void
batch_answered(redis_batch_t *rb, ngx_idempotency_redis_item_t *ri)
{
    int64_t                        now;
    ngx_int_t                      rc;
    ngx_str_t                     *why;
    ngx_idempotency_item_t        *item;
    ngx_idempotency_redis_call_t  *call;

    static ngx_str_t  strange = ngx_string("an answer that is none");
    static ngx_str_t  late = ngx_string("it is slower than its timeout");

    call = &ri->call;
    item = ri->item;
    why = NULL;

    now = rb->batch->now
          + (ngx_msec_int_t) (ngx_current_msec - rb->batch->at);

    if (call->reply == NULL
        || (call->error != NGX_IDEMPOTENCY_REDIS_OK
            && call->error != NGX_IDEMPOTENCY_REDIS_UNACKED))
    {
        why = &call->why;

    } else {
        rc = ngx_idempotency_redis_item_answer(ri, call->reply, now);

        if (rc == NGX_DECLINED) {
            batch_foreign(rb->redis, ri);

        } else if (rc != NGX_OK) {
            ri->maybe = 1;
            why = &strange;

        } else if (item->failed) {
            why = &late;

        } else if (call->error == NGX_IDEMPOTENCY_REDIS_UNACKED
                   && (item->result == NGX_IDEMPOTENCY_CLAIMED
                       || (item->what == NGX_IDEMPOTENCY_ITEM_PUT
                           && item->outcome != NGX_IDEMPOTENCY_PENDING)))
        {
            ri->maybe = 1;
            why = &call->why;
        }
    }

    if (why) {
        item->result = NGX_IDEMPOTENCY_UNAVAILABLE;
        item->failed = 1;
        item->unsent = !ri->maybe;

        (void) ngx_snprintf((u_char *) rb->batch->error,
                            sizeof(rb->batch->error), "%V%Z", why);
    }
}


/* the value stays as it is: another version of the module may need it */

static void
batch_foreign(redis_zone_t *redis, ngx_idempotency_redis_item_t *ri)
{
    ri->item->unsent = 1;

    if (redis->foreign) {
        return;
    }

    redis->foreign = 1;

    ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                  "idempotency: zone \"%V\": the %V has a value that "
                  "is none of this version of the module, token: %*xs: it is "
                  "unavailable, and so are others like it, until this nginx "
                  "is upgraded, or the key \"%V\" is removed there",
                  &redis->tier.shm->store->name, &redis->tier.name,
                  (size_t) NGX_IDEMPOTENCY_DIGEST_LEN, ri->item->token,
                  &ri->call.key);
}


/* The item as sent.  After the deadline the server executes none of it. */

static void
stray_add(redis_zone_t *redis, ngx_idempotency_item_t *item,
    ngx_msec_t deadline)
{
    stray_t         *stray;
    ngx_msec_int_t   wait;

    wait = (ngx_msec_int_t) (deadline - ngx_current_msec);

    if (wait <= 0) {
        return;
    }

    stray = ngx_calloc(sizeof(stray_t) + redis->prefix.len
                       + NGX_IDEMPOTENCY_REDIS_TOKEN, ngx_cycle->log);
    if (stray == NULL) {
        return;
    }

    stray->redis = redis;

    stray->item = *item;
    stray->item.what = NGX_IDEMPOTENCY_ITEM_RELEASE;
    stray->item.unanswered = 1;

    stray->ri.item = &stray->item;
    stray->ri.key = (u_char *) stray + sizeof(stray_t);
    stray->ri.call.handler = stray_handler;
    stray->ri.call.data = stray;
    stray->ri.call.mark = &redis->mark;

    stray->timer.handler = stray_timer_handler;
    stray->timer.data = stray;
    stray->timer.log = ngx_cycle->log;

    ngx_add_timer(&stray->timer, wait + 1);
}


static void
stray_timer_handler(ngx_event_t *ev)
{
    stray_t                   *stray;
    ngx_uint_t                 owned;
    redis_zone_t              *redis;
    ngx_idempotency_shm_t     *shm;
    ngx_idempotency_record_t  *rec;

    stray = ev->data;
    redis = stray->redis;
    shm = redis->tier.shm;

    /* the zone has the claim, or may have it, as it is torn; it releases the
       claim itself when it gives it up */

    owned = 1;

    if (ngx_idempotency_shm_lock(shm) == NGX_OK) {
        rec = ngx_idempotency_record_current(shm, stray->item.token,
                                             ngx_current_msec);

        owned = (rec
                 && ngx_idempotency_record_sequence(shm, rec)
                    == stray->item.sequence
                 && !ngx_idempotency_record_negative(rec)
                 && rec->state != NGX_IDEMPOTENCY_REMOTE)
                || shm->sh->tier.floor != stray->item.floor;

        ngx_idempotency_shm_unlock(shm);
    }

    if (owned) {
        ngx_free(stray);
        return;
    }

    ngx_idempotency_redis_item_call(&stray->ri, &redis->prefix, &redis->publish,
                                    0);

    stray->ri.call.deadline = ngx_current_msec + redis->conf->timeout;

    ngx_idempotency_redis_call(redis->block, 0, &stray->ri.call);
}


/* a worker that exits gives up: the claim's lease ends */

static void
stray_handler(ngx_idempotency_redis_call_t *call)
{
    stray_t  *stray = call->data;

    if (call->reply || stray->redis->tier.finished) {
        ngx_free(stray);
        return;
    }

    stray->timer.cancelable = 1;
    ngx_add_timer(&stray->timer, STRAY_AGAIN);
}


/* the channel has the key's name */

static void
redis_await(ngx_idempotency_tier_t *tier, u_char *token)
{
    ngx_str_t      key;
    redis_zone_t  *redis;

    redis = (redis_zone_t *) tier;

    if (redis->tier.finished) {
        return;
    }

    key.data = redis->channel;
    key.len = ngx_idempotency_redis_item_key(key.data, &redis->prefix, token)
              - key.data;

    ngx_idempotency_redis_watch(redis->block, &key, redis_changed, redis);
}


/* the key has changed, or may have; each later change is reported, too */

static void
redis_changed(void *data, ngx_str_t *key)
{
    redis_zone_t  *redis = data;

    u_char     token[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_str_t  src, dst;

    src.data = key->data + redis->prefix.len;
    src.len = NGX_IDEMPOTENCY_REDIS_TOKEN;
    dst.data = token;

    if (ngx_decode_base64url(&dst, &src) == NGX_OK) {
        ngx_idempotency_remote_changed(&redis->tier, token);
    }
}


static ngx_int_t
stamp_init(redis_zone_t *redis)
{
    u_char                        *p;
    ngx_idempotency_redis_mark_t  *mark;

    mark = &redis->mark;

    p = ngx_cpymem(redis->stamp_known, "2 ", 2);
    p = ngx_hex_dump(p, (u_char *) redis->tier.shm->store->secret->stamp,
                     NGX_IDEMPOTENCY_STAMP_LEN);
    p = ngx_sprintf(p, " %ud", NGX_IDEMPOTENCY_FINGERPRINT_VERSION);

    redis->stamp_head.data = redis->stamp_known;
    redis->stamp_head.len = p - redis->stamp_known;

    (void) ngx_sprintf(redis->stamp_asker, "%016xL", redis->tier.instance);

    mark->rights = &ngx_idempotency_redis_scripts[NGX_IDEMPOTENCY_REDIS_TRY];
    mark->script = &ngx_idempotency_redis_scripts[NGX_IDEMPOTENCY_REDIS_STAMP];
    mark->ask = stamp_ask;
    mark->handler = stamp_mark_handler;
    mark->data = redis;

    mark->known[0].data = redis->stamp_known;
    mark->known[0].len = redis->stamp_head.len + 1 + STAMP_LEN;
    mark->known[1].data = redis->stamp_least;

    if (stamp_keys(redis) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_idempotency_redis_mark(redis->block, mark);

    return NGX_OK;
}


/* One key.  In a cluster one for each part of the slots, the same for all
   zones: {number} */

static ngx_int_t
stamp_keys(redis_zone_t *redis)
{
    u_char                         *p;
    size_t                          size;
    ngx_str_t                      *key;
    ngx_uint_t                      i, n, part;
    ngx_idempotency_redis_stamp_t  *stamps;

    n = (redis->conf->mode == NGX_IDEMPOTENCY_REDIS_CLUSTER)
            ? NGX_IDEMPOTENCY_TIER_STAMPS : 1;
    size = redis->prefix.len + sizeof("stamp{}") - 1 + NGX_INT_T_LEN;

    stamps = ngx_palloc(redis->pool,
                        n * sizeof(ngx_idempotency_redis_stamp_t));
    p = ngx_pnalloc(redis->pool, n * size);

    if (stamps == NULL || p == NULL) {
        return NGX_ERROR;
    }

    for (part = 0; part < n; part++) {
        stamps[part].mark = &redis->mark;

        key = &stamps[part].key;
        key->data = p + part * size;
        key->len = ngx_sprintf(key->data, "%Vstamp", &redis->prefix)
                   - key->data;

        for (i = 0; n > 1; i++) {

            if (i == NGX_IDEMPOTENCY_REDIS_SLOTS) {

                /* a prefix with braces: all keys are in one slot */

                n = 1;
                key->len = redis->prefix.len + sizeof("stamp") - 1;
                break;
            }

            key->len = ngx_sprintf(key->data, "%Vstamp{%ui}", &redis->prefix,
                                   i)
                       - key->data;

            if (ngx_idempotency_redis_slot(key) * n
                / NGX_IDEMPOTENCY_REDIS_SLOTS
                == part)
            {
                break;
            }
        }
    }

    redis->mark.stamps = stamps;
    redis->mark.nstamps = n;

    return NGX_OK;
}


static ngx_int_t
stamp_init_process(redis_zone_t *redis, ngx_pool_t *pool)
{
    ngx_uint_t     i, n;
    stamp_beat_t  *beat;

    n = redis->mark.nstamps;

    redis->beats = ngx_pcalloc(pool,
                               2 * n * sizeof(stamp_beat_t));
    if (redis->beats == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < 2 * n; i++) {
        beat = &redis->beats[i];

        beat->stamp = &redis->mark.stamps[i % n];
        beat->sent = ngx_current_msec - STAMP_INTERVAL;

        beat->call.script = redis->mark.script;
        beat->call.key = beat->stamp->key;
        beat->call.args = beat->question.args;
        beat->call.nargs = NGX_IDEMPOTENCY_REDIS_STAMP_ARGS;
        beat->call.durable = (i >= n);
        beat->call.handler = stamp_beat_handler;
        beat->call.data = beat;
    }

    redis->beaten = ngx_current_msec - STAMP_INTERVAL;

    stamp_expect(redis);

    return NGX_OK;
}


/* Takes over from shared memory the stamp that the scripts must find
   (record.lua).  If it has changed, a wrong stamp may be right now. */

static void
stamp_expect(redis_zone_t *redis)
{
    int64_t                        least;
    ngx_str_t                     *head, *text;
    ngx_uint_t                     changed;
    ngx_idempotency_shm_t         *shm;
    ngx_idempotency_tier_stamp_t  *s;

    shm = redis->tier.shm;
    s = shm->sh->tier.stamps;

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        return;
    }

    changed = (redis->stamped != shm->sh->tier.stamped);
    redis->stamped = shm->sh->tier.stamped;
    least = (int64_t) s->beat - STAMP_GRACE;

    head = &redis->stamp_head;
    (void) ngx_sprintf(head->data + head->len, " %016xL", s->identity);

    ngx_idempotency_shm_unlock(shm);

    text = &redis->mark.known[1];
    text->len = ngx_sprintf(text->data, "%L", ngx_max(least, 0)) - text->data;

    if (changed) {
        ngx_idempotency_redis_marked(redis->block, &redis->mark);
    }
}


static void
stamp_ask(ngx_idempotency_redis_stamp_t *stamp,
    ngx_idempotency_redis_question_t *question)
{
    u_char                        *p;
    uint64_t                       identity, beat;
    ngx_str_t                     *args;
    redis_zone_t                  *redis;
    ngx_idempotency_shm_t         *shm;
    ngx_idempotency_tier_stamp_t  *s;

    args = question->args;
    redis = stamp->mark->data;
    shm = redis->tier.shm;
    s = &shm->sh->tier.stamps[stamp - stamp->mark->stamps];

    identity = 0;
    beat = 0;

    if (ngx_idempotency_shm_lock(shm) == NGX_OK) {
        identity = s->identity;
        beat = s->beat;

        ngx_idempotency_shm_unlock(shm);
    }

    args[0] = redis->stamp_head;

    p = ngx_sprintf(question->known, "%016xL", identity);
    args[1].data = question->known;
    args[1].len = identity ? p - question->known : 0;

    p = ngx_sprintf(question->beat, "%uL", beat);
    args[2].data = question->beat;
    args[2].len = p - question->beat;

    args[3].data = redis->stamp_asker;
    args[3].len = sizeof(redis->stamp_asker);

    ngx_str_set(&args[4], "-");
}


static void
stamp_maintain(ngx_idempotency_tier_t *tier)
{
    ngx_uint_t     i;
    redis_zone_t  *redis;

    redis = (redis_zone_t *) tier;

    if (redis->block == NULL || redis->tier.finished || ngx_exiting
        || ngx_current_msec - redis->beaten < STAMP_INTERVAL
        || !ngx_idempotency_redis_up(redis->block))
    {
        return;
    }

    redis->beaten = ngx_current_msec;

    for (i = 0; i < redis->mark.nstamps; i++) {
        stamp_beat(&redis->beats[i], 0,
                   ngx_current_msec + 2 * redis->conf->timeout);
    }
}


/* before the call, on its connection: one acknowledgement covers both */

static void
stamp_beat_with(redis_zone_t *redis, ngx_idempotency_redis_call_t *call,
    ngx_uint_t n)
{
    stamp_beat_t  *beat;

    if (!call->durable || !redis->tier.strict) {
        return;
    }

    beat = &redis->beats[redis->mark.nstamps];

    if (redis->mark.nstamps > 1) {
        beat += ngx_idempotency_redis_slot(&call->key) * redis->mark.nstamps
                / NGX_IDEMPOTENCY_REDIS_SLOTS;
    }

    if (ngx_current_msec - beat->sent >= STAMP_INTERVAL) {
        stamp_beat(beat, n, call->deadline);
    }
}


static void
stamp_beat(stamp_beat_t *beat, ngx_uint_t n, ngx_msec_t deadline)
{
    redis_zone_t               *redis;
    ngx_idempotency_tier_sh_t  *sh;

    if (beat->busy) {
        return;
    }

    redis = beat->stamp->mark->data;
    sh = &redis->tier.shm->sh->tier;

    stamp_ask(beat->stamp, &beat->question);

    /* what is right may be wrong by the time that it is asked: nobody has
       agreed to that */

    if (beat->call.durable) {
        ngx_str_set(&beat->question.args[4], "w");

    } else if (sh->agreed
               && sh->stamps[beat->stamp - redis->mark.stamps].since)
    {
        ngx_str_set(&beat->question.args[4], "a");
    }

    beat->busy = 1;
    beat->sent = ngx_current_msec;
    beat->call.deadline = deadline;

    ngx_idempotency_redis_call(redis->block, n, &beat->call);
}


static void
stamp_beat_handler(ngx_idempotency_redis_call_t *call)
{
    stamp_beat_t  *beat = call->data;

    redis_zone_t  *redis;

    beat->busy = 0;
    redis = beat->stamp->mark->data;

    if (call->reply == NULL
        || (call->error != NGX_IDEMPOTENCY_REDIS_OK
            && call->error != NGX_IDEMPOTENCY_REDIS_UNACKED))
    {
        return;
    }

    (void) stamp_judge(beat->stamp, call->reply,
                       call->error == NGX_IDEMPOTENCY_REDIS_OK
                       && (call->durable || !redis->tier.strict),
                       &beat->sent);
}


static ngx_int_t
stamp_mark_handler(ngx_idempotency_redis_stamp_t *stamp,
    ngx_idempotency_redis_reply_t *reply)
{
    redis_zone_t  *redis = stamp->mark->data;

    return stamp_judge(stamp, reply, !redis->tier.strict, NULL);
}


/* NGX_OK: the stamp is the known one; NGX_AGAIN: another one is known since the
   question was sent */

static ngx_int_t
stamp_judge(ngx_idempotency_redis_stamp_t *stamp,
    ngx_idempotency_redis_reply_t *reply, ngx_uint_t acked, ngx_msec_t *sent)
{
    ngx_uint_t                     refused, tell;
    redis_zone_t                  *redis;
    stamp_answer_t                 answer;
    ngx_idempotency_shm_t         *shm;
    ngx_idempotency_tier_stamp_t  *s;

    redis = stamp->mark->data;
    shm = redis->tier.shm;
    s = &shm->sh->tier.stamps[stamp - stamp->mark->stamps];

    stamp_read(reply, &answer);

    if (answer.code == 0) {
        stamp_why(stamp, &answer, &reply->str);
        return NGX_ERROR;
    }

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        return NGX_AGAIN;
    }

    if (answer.known != s->identity
        && (answer.identity != s->identity || !answer.beat))
    {
        ngx_idempotency_shm_unlock(shm);
        return NGX_AGAIN;
    }

    if (answer.beat) {
        refused = (shm->sh->tier.other == NGX_IDEMPOTENCY_TIER_OTHER);
        stamp_right(redis, s, &answer, acked);
        refused &= (shm->sh->tier.other != NGX_IDEMPOTENCY_TIER_OTHER);
        ngx_idempotency_shm_unlock(shm);

        stamp_log_right(redis, &answer, refused);
        stamp_expect(redis);

        return NGX_OK;
    }

    stamp_why(stamp, &answer, &reply->str);
    tell = stamp_wrong(redis, s, &answer, sent);

    ngx_idempotency_shm_unlock(shm);

    if (tell) {

        /* if we go on with this stamp, ask at once */

        redis->beaten = ngx_current_msec - STAMP_INTERVAL;

        stamp_log_wrong(redis, tell == NGX_IDEMPOTENCY_TIER_DIFFERS,
                        answer.code);
    }

    return NGX_ERROR;
}


/* code 0: it is no answer of the script */

static void
stamp_read(ngx_idempotency_redis_reply_t *reply, stamp_answer_t *answer)
{
    ngx_idempotency_redis_reply_t  *elts;

    elts = reply->elts;
    answer->code = 0;

    if (!ngx_idempotency_redis_strings(reply, 7) || elts[0].str.len != 1) {
        return;
    }

    answer->code = elts[0].str.data[0];
    answer->known = stamp_hex(&elts[2].str);
    answer->least = ngx_atoof(elts[3].str.data, elts[3].str.len);
    answer->identity = stamp_hex(&elts[4].str);
    answer->was = ngx_atoof(elts[5].str.data, elts[5].str.len);
    answer->beat = ngx_atoof(elts[6].str.data, elts[6].str.len);
}


static uint64_t
stamp_hex(ngx_str_t *text)
{
    u_char      c;
    uint64_t    n;
    ngx_uint_t  i;

    for (i = 0, n = 0; i < text->len; i++) {
        c = text->data[i];
        n = n << 4 | (c <= '9' ? c - '0' : c - 'a' + 10);
    }

    return n;
}


static void
stamp_right(redis_zone_t *redis, ngx_idempotency_tier_stamp_t *s,
    stamp_answer_t *answer, ngx_uint_t acked)
{
    ngx_uint_t                  changed;
    ngx_idempotency_tier_sh_t  *sh;

    sh = &redis->tier.shm->sh->tier;
    changed = (s->since != 0);

    if (s->identity != answer->identity) {
        s->identity = answer->identity;
        s->beat = 0;
        changed = 1;
    }

    if (acked) {
        s->beat = ngx_max(s->beat, answer->beat);
    }

    s->since = 0;
    s->refused = 0;

    if (changed) {
        stamp_changed(sh);
    }
}


/* what is to be logged: the Redis is refused (OTHER), or used all the same, as
   the block says (DIFFERS); 0: nothing, or not yet */

static ngx_uint_t
stamp_wrong(redis_zone_t *redis, ngx_idempotency_tier_stamp_t *s,
    stamp_answer_t *answer, ngx_msec_t *sent)
{
    ngx_uint_t                  other;
    ngx_idempotency_tier_sh_t  *sh;

    sh = &redis->tier.shm->sh->tier;

    s->found = answer->code;

    if (s->since == 0) {
        s->since = ngx_max(ngx_current_msec, 1);
        stamp_changed(sh);
        return 0;
    }

    if (s->refused || sent == NULL
        || (ngx_msec_int_t) (*sent - s->since) < STAMP_GRACE)
    {
        return 0;
    }

    if (s->found != STAMP_FOREIGN && redis->conf->lost) {
        if (sh->agreed) {
            return 0;
        }

        sh->agreed = 1;

        return NGX_IDEMPOTENCY_TIER_DIFFERS;
    }

    other = sh->other;

    s->refused = 1;
    sh->failing = 1;
    stamp_changed(sh);

    return (sh->other == other) ? 0 : sh->other;
}


static void
stamp_changed(ngx_idempotency_tier_sh_t *sh)
{
    ngx_uint_t  i, other;

    other = 0;

    for (i = 0; i < NGX_IDEMPOTENCY_TIER_STAMPS; i++) {
        if (sh->stamps[i].refused) {
            other = NGX_IDEMPOTENCY_TIER_OTHER;

        } else if (sh->stamps[i].since && other == 0) {
            other = NGX_IDEMPOTENCY_TIER_DIFFERS;
        }
    }

    if (other == 0) {
        sh->agreed = 0;
    }

    sh->other = other;
    sh->stamped++;
}


static void
stamp_why(ngx_idempotency_redis_stamp_t *stamp, stamp_answer_t *answer,
    ngx_str_t *reply)
{
    u_char                        *p, *last;
    ngx_idempotency_redis_mark_t  *mark;

    mark = stamp->mark;

    p = mark->text;
    last = p + sizeof(mark->text);

    switch (answer->code) {

    case 0:
        p = ngx_slprintf(p, last, "its \"%V\" is not known: %V", &stamp->key,
                         reply);
        break;

    case 'N':
        p = ngx_slprintf(p, last, "it has no \"%V\": it is another one, or "
                         "was emptied", &stamp->key);
        break;

    case 'S':
        p = ngx_slprintf(p, last, "it is another one, as its \"%V\" tells",
                         &stamp->key);
        break;

    case 'P':
        p = ngx_slprintf(p, last, "it has forgotten: it is %uL s older than "
                         "what it had acknowledged, as its \"%V\" tells",
                         (answer->least - answer->was) / 1000, &stamp->key);
        break;

    default:
        p = ngx_slprintf(p, last, "its \"%V\" tells of another digest key than "
                         "that of \"idempotency_secret\", or of another "
                         "version of the module", &stamp->key);
    }

    mark->why.data = mark->text;
    mark->why.len = p - mark->text;
}


static void
stamp_log_right(redis_zone_t *redis, stamp_answer_t *answer,
    ngx_uint_t refused)
{
    ngx_str_t   *zone;
    ngx_uint_t   same, level;

    zone = &redis->tier.shm->store->name;

    /* a failover in a cluster concerns many stamps */

    if (answer->identity == answer->known && answer->was < answer->least
        && ngx_current_msec - redis->forgot >= STAMP_INTERVAL)
    {
        redis->forgot = ngx_current_msec;

        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                      "idempotency: the %V of zone \"%V\" has forgotten %uL ms "
                      "of what it had acknowledged: what was claimed then may "
                      "be executed again", &redis->tier.name, zone,
                      answer->least - answer->was);
    }

    if (refused) {
        same = (answer->identity == answer->known);

        level = same ? NGX_LOG_NOTICE : NGX_LOG_WARN;

        ngx_log_error(level, ngx_cycle->log, 0,
                      "idempotency: the %V of zone \"%V\" is %s",
                      &redis->tier.name, zone,
                      same ? "the one that it was"
                           : "used as it is, as somebody has agreed to that");
    }
}


static void
stamp_log_wrong(redis_zone_t *redis, ngx_uint_t accepts, ngx_uint_t code)
{
    ngx_str_t  *zone;

    zone = &redis->tier.shm->store->name;

    if (accepts) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                      "idempotency: the %V of zone \"%V\" is gone on with: %V; "
                      "what it does not know is executed again",
                      &redis->tier.name, zone, &redis->mark.why);
        return;
    }

    if (code == STAMP_FOREIGN) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                      "idempotency: the %V of zone \"%V\" is refused, %V",
                      &redis->tier.name, zone, &redis->mark.why);
        return;
    }

    ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                  "idempotency: the %V of zone \"%V\" is refused, %V; "
                  "to agree to it as it is, PUT {\"store\":\"accept\"} "
                  "to /zones/%V of idempotency_api",
                  &redis->tier.name, zone, &redis->mark.why, zone);
}


/* this worker asks at once, and the others follow */

static ngx_int_t
stamp_agree(ngx_idempotency_tier_t *tier)
{
    ngx_uint_t                  i, n;
    redis_zone_t               *redis;
    ngx_idempotency_tier_sh_t  *sh;

    redis = (redis_zone_t *) tier;

    if (redis->block == NULL || ngx_idempotency_shm_lock(tier->shm) != NGX_OK) {
        return NGX_DECLINED;
    }

    sh = &tier->shm->sh->tier;
    n = 0;

    for (i = 0; i < redis->mark.nstamps; i++) {
        n += (sh->stamps[i].since && sh->stamps[i].found != STAMP_FOREIGN);
    }

    sh->agreed = (n != 0);

    ngx_idempotency_shm_unlock(tier->shm);

    if (n == 0) {
        return NGX_DECLINED;
    }

    redis->beaten = ngx_current_msec - STAMP_INTERVAL;
    stamp_maintain(tier);

    return NGX_OK;
}
