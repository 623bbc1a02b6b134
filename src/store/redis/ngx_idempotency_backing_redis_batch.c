
/*
 * The backing that is a Redis: batches.  Each item is a call of a script, and
 * the batch is answered when all of them are.  What is on its way is bounded
 * by time: it is answered before the block's timeout has gone by, and the
 * server does nothing that comes later.
 */


#include "ngx_idempotency_backing_redis.h"


/* what is lost is sent so often at least */

#define NGX_IDEMPOTENCY_REDIS_SENT   3


static void batch_handler(ngx_idempotency_redis_call_t *call);
static ngx_int_t batch_call(ngx_idempotency_redis_hand_t *hand,
    ngx_idempotency_redis_item_t *ri);
static void batch_answered(ngx_idempotency_redis_hand_t *hand,
    ngx_idempotency_redis_item_t *ri);
static void batch_vain(ngx_idempotency_redis_hand_t *hand,
    ngx_idempotency_redis_item_t *ri, ngx_str_t *why);
static void batch_count(ngx_idempotency_redis_hand_t *hand, ngx_uint_t error);
static void batch_foreign(ngx_idempotency_redis_zone_t *redis,
    ngx_idempotency_redis_item_t *ri);


ngx_int_t
ngx_idempotency_backing_redis_batches(ngx_idempotency_redis_zone_t *redis,
    ngx_pool_t *pool)
{
    size_t                         size;
    u_char                        *keys;
    ngx_uint_t                     i, n, hands;
    ngx_idempotency_redis_item_t  *items;

    hands = ngx_idempotency_backing_redis_hands(&redis->tier);

    n = hands * NGX_IDEMPOTENCY_TIER_BATCH;
    size = redis->prefix.len + NGX_IDEMPOTENCY_REDIS_TOKEN;

    redis->hands = ngx_pcalloc(pool,
                               hands * sizeof(ngx_idempotency_redis_hand_t));
    items = ngx_pcalloc(pool, n * sizeof(ngx_idempotency_redis_item_t));
    keys = ngx_pnalloc(pool, n * size);

    if (redis->hands == NULL || items == NULL || keys == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < n; i++) {
        items[i].key = keys + i * size;
        items[i].hand = &redis->hands[i / NGX_IDEMPOTENCY_TIER_BATCH];
        items[i].call.handler = batch_handler;
        items[i].call.data = &items[i];
        items[i].call.mark = &redis->mark;
    }

    for (i = 0; i < hands; i++) {
        redis->hands[i].redis = redis;
        redis->hands[i].items = &items[i * NGX_IDEMPOTENCY_TIER_BATCH];
    }

    return NGX_OK;
}


ngx_int_t
ngx_idempotency_backing_redis_hand(ngx_idempotency_tier_t *tier,
    ngx_idempotency_batch_t *batch)
{
    ngx_idempotency_redis_zone_t  *redis;
    ngx_idempotency_redis_hand_t  *hand;

    redis = (ngx_idempotency_redis_zone_t *) tier;

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

    if (redis->stamp == ngx_idempotency_redis_stamp_ours) {
        ngx_idempotency_backing_redis_send(hand);
        return NGX_AGAIN;
    }

    hand->waiting = 1;

    if (redis->stamp == ngx_idempotency_redis_stamp_unknown) {
        ngx_idempotency_backing_redis_ask_stamp(redis);
    }

    return NGX_AGAIN;
}


void
ngx_idempotency_backing_redis_send(ngx_idempotency_redis_hand_t *hand)
{
    ngx_uint_t                     i;
    ngx_idempotency_batch_t       *batch;
    ngx_idempotency_redis_zone_t  *redis;
    ngx_idempotency_redis_item_t  *ri;

    batch = hand->batch;
    redis = hand->redis;

    /* the script makes a record's times */

    ngx_idempotency_seal(redis->tier.shm->store->secret, batch->items,
                         batch->n, 0);

    for (i = 0; i < batch->n; i++) {
        ri = &hand->items[i];

        ri->item = &batch->items[i];
        ri->sent = 0;
        ri->heard = 0;
        ri->lost = 0;

        ngx_idempotency_redis_item_call(ri, &redis->prefix, &redis->publish,
                                        batch->now);

        (void) batch_call(hand, ri);
    }
}


/* the same claim sent twice is one claim, and so is whatever else; by another
   connection, as one may be there while one is not yet */

static ngx_int_t
batch_call(ngx_idempotency_redis_hand_t *hand,
    ngx_idempotency_redis_item_t *ri)
{
    ngx_uint_t                     lanes;
    ngx_idempotency_redis_zone_t  *redis;

    redis = hand->redis;
    lanes = ngx_idempotency_redis_connections(redis->redis);

    if (ri->sent == ngx_max(lanes, NGX_IDEMPOTENCY_REDIS_SENT)
        || (ngx_msec_int_t) (hand->deadline - ngx_current_msec) <= 0)
    {
        return NGX_DECLINED;
    }

    ri->call.deadline = hand->deadline;

    ngx_idempotency_redis_call(redis->redis,
                               (hand - redis->hands + ri->sent++) % lanes,
                               &ri->call);

    return NGX_OK;
}


static void
batch_handler(ngx_idempotency_redis_call_t *call)
{
    ngx_idempotency_redis_hand_t  *hand;
    ngx_idempotency_redis_item_t  *ri;

    ri = call->data;
    hand = ri->hand;

    ri->heard |= call->maybe;
    ri->lost |= (call->maybe && call->reply == NULL);

    if (call->error != NGX_IDEMPOTENCY_REDIS_OK) {
        batch_count(hand, call->error);
    }

    if ((call->error == NGX_IDEMPOTENCY_REDIS_CLOSED
         || call->error == NGX_IDEMPOTENCY_REDIS_CONNECT)
        && batch_call(hand, ri) == NGX_OK)
    {
        return;
    }

    if (ri->lost && ri->item->what == NGX_IDEMPOTENCY_ITEM_ASK) {
        ngx_idempotency_backing_redis_left(hand->redis, ri->item,
                                           hand->deadline);
    }

    batch_answered(hand, ri);

    if (--hand->left == 0) {
        ngx_idempotency_unseal(hand->redis->tier.shm->store->secret,
                               hand->batch->items, hand->batch->n, 0);

        ngx_idempotency_tier_handed(&hand->redis->tier, hand->batch);
    }
}


static void
batch_answered(ngx_idempotency_redis_hand_t *hand,
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

    now = hand->batch->now
          + (ngx_msec_int_t) (ngx_current_msec - hand->batch->at);

    if (call->reply == NULL
        || (call->error != NGX_IDEMPOTENCY_REDIS_OK
            && call->error != NGX_IDEMPOTENCY_REDIS_UNACKED))
    {
        /* whoever is there when it is back may be another one; what is asked
           for already will be answered by whoever that is */

        if (hand->redis->stamp == ngx_idempotency_redis_stamp_ours) {
            hand->redis->stamp = ngx_idempotency_redis_stamp_unknown;
        }

        batch_vain(hand, ri, why);
        return;
    }

    switch (ngx_idempotency_redis_item_answer(ri, call->reply, now)) {

    case NGX_OK:
        break;

    case NGX_DECLINED:
        batch_foreign(hand->redis, ri);
        return;

    default:
        ri->heard = 1;
        batch_vain(hand, ri, &strange);
        return;
    }

    if (item->again) {
        batch_vain(hand, ri, &late);
        return;
    }

    if (call->error == NGX_IDEMPOTENCY_REDIS_UNACKED
        && (item->result == NGX_IDEMPOTENCY_CLAIMED
            || (item->what == NGX_IDEMPOTENCY_ITEM_PUT
                && item->outcome != NGX_IDEMPOTENCY_PENDING
                && item->result == NGX_IDEMPOTENCY_OK)))
    {
        ri->heard = 1;
        batch_vain(hand, ri, why);
    }
}


static void
batch_vain(ngx_idempotency_redis_hand_t *hand,
    ngx_idempotency_redis_item_t *ri, ngx_str_t *why)
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
batch_count(ngx_idempotency_redis_hand_t *hand, ngx_uint_t error)
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
batch_foreign(ngx_idempotency_redis_zone_t *redis,
    ngx_idempotency_redis_item_t *ri)
{
    ri->item->unheard = 1;

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
