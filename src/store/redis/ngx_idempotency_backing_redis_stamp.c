
/*
 * The backing that is a Redis: the stamp, which tells what all who share a
 * zone have in common.  Nothing else is sent before it is known to be ours, as
 * whoever is there, or is back, may be another server.
 */


#include "ngx_idempotency_backing_redis.h"


static void stamp_handler(ngx_idempotency_redis_call_t *call);
static ngx_int_t stamp_seen(ngx_idempotency_redis_mark_t *mark,
    ngx_idempotency_redis_reply_t *reply);
static ngx_int_t stamp_other(ngx_idempotency_redis_zone_t *redis,
    ngx_idempotency_redis_reply_t *reply);
static void stamp_why(ngx_idempotency_redis_zone_t *redis, u_char *last);
static void stamp_version(ngx_idempotency_redis_zone_t *redis,
    ngx_uint_t version);


ngx_int_t
ngx_idempotency_backing_redis_stamp(ngx_idempotency_redis_zone_t *redis)
{
    u_char  *p;

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

    stamp_version(redis, NGX_IDEMPOTENCY_FINGERPRINT_VERSION);
    redis->tier.shm->store->version = NGX_IDEMPOTENCY_FINGERPRINT_OLDEST;

    ngx_idempotency_redis_stamp_call(&redis->stamp_call, &redis->stamp_value);

    redis->mark.tries = ngx_idempotency_redis_item_try_script();
    redis->mark.script = redis->stamp_call.script;
    redis->mark.key = redis->stamp_key;
    redis->mark.value = &redis->stamp_value;
    redis->mark.handler = stamp_seen;
    redis->mark.data = redis;

    ngx_idempotency_redis_mark(redis->redis, &redis->mark);

    return NGX_OK;
}


void
ngx_idempotency_backing_redis_ask_stamp(ngx_idempotency_redis_zone_t *redis)
{
    ngx_idempotency_redis_call_t  *call;

    call = &redis->stamp_call;

    call->key = redis->stamp_key;
    call->deadline = ngx_current_msec
                     + ngx_idempotency_redis_timeout(redis->redis);
    call->handler = stamp_handler;
    call->data = redis;

    redis->stamp = ngx_idempotency_redis_stamp_asked;
    redis->stamp_lane = 0;

    ngx_idempotency_redis_call(redis->redis, 0, call);
}


static void
stamp_handler(ngx_idempotency_redis_call_t *call)
{
    ngx_idempotency_redis_zone_t  *redis = call->data;

    ngx_int_t                      rc;
    ngx_uint_t                     i, n;
    ngx_idempotency_batch_t       *batch;
    ngx_idempotency_redis_hand_t  *hand;

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

    if (call->reply && (call->error == NGX_IDEMPOTENCY_REDIS_OK
                        || call->error == NGX_IDEMPOTENCY_REDIS_UNACKED))
    {
        rc = stamp_seen(&redis->mark, call->reply);

    } else if (redis->mark.lacks && call->reply) {
        rc = NGX_ERROR;

    } else {
        rc = NGX_ERROR;
        stamp_why(redis, ngx_snprintf(redis->mark.text,
                                      sizeof(redis->mark.text), "%V",
                                      &call->why));
    }

    if (rc == NGX_OK) {
        ngx_idempotency_redis_marked(redis->redis, &redis->mark);
    }

    redis->stamp = (rc == NGX_OK) ? ngx_idempotency_redis_stamp_ours
                                  : ngx_idempotency_redis_stamp_unknown;

    n = ngx_idempotency_backing_redis_hands(&redis->tier);

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
            ngx_idempotency_backing_redis_send(hand);
            continue;
        }

        batch = hand->batch;
        batch->rc = NGX_ERROR;
        (void) ngx_snprintf((u_char *) batch->error, sizeof(batch->error),
                            "%V%Z", &redis->mark.why);

        ngx_idempotency_tier_handed(&redis->tier, batch);
    }
}


/* on a new connection, or by a call */

static ngx_int_t
stamp_seen(ngx_idempotency_redis_mark_t *mark,
    ngx_idempotency_redis_reply_t *reply)
{
    ngx_idempotency_redis_zone_t  *redis;

    redis = mark->data;

    switch (ngx_idempotency_redis_stamp_answer(reply)) {

    case NGX_OK:
        break;

    case NGX_DECLINED:

        if (stamp_other(redis, reply) != NGX_OK) {
            return NGX_ERROR;
        }

        break;

    default:
        stamp_why(redis, ngx_snprintf(redis->mark.text,
                                      sizeof(redis->mark.text),
                                      "its \"%V\" is not known: %V",
                                      &redis->stamp_key, &reply->str));
        return NGX_ERROR;
    }

    redis->tier.shm->store->version =
                ngx_atoi(redis->stamp_value.data + redis->stamp_head,
                         redis->stamp_value.len - redis->stamp_head);

    return NGX_OK;
}


/* NGX_OK: what others write is known here, and is what this one writes, too */

static ngx_int_t
stamp_other(ngx_idempotency_redis_zone_t *redis,
    ngx_idempotency_redis_reply_t *reply)
{
    u_char     *p;
    ngx_int_t   version;
    ngx_str_t  *is;

    p = redis->mark.text;
    is = (reply->n > 2) ? &reply->elts[2].str : NULL;

    if (is == NULL || is->len <= redis->stamp_head
        || ngx_memcmp(is->data, redis->stamp_value.data, redis->stamp_head)
           != 0)
    {
        stamp_why(redis, ngx_snprintf(p, sizeof(redis->mark.text),
                            "its \"%V\" tells of another digest key than "
                            "that of \"idempotency_secret\", or of "
                            "another version of the module",
                            &redis->stamp_key));
        return NGX_ERROR;
    }

    version = ngx_atoi(is->data + redis->stamp_head,
                       is->len - redis->stamp_head);

    if (version < NGX_IDEMPOTENCY_FINGERPRINT_OLDEST
        || version > NGX_IDEMPOTENCY_FINGERPRINT_VERSION)
    {
        stamp_why(redis, ngx_snprintf(p, sizeof(redis->mark.text),
                            "its \"%V\" tells of fingerprints of version %i, "
                            "and this module knows %d to %d",
                            &redis->stamp_key, version,
                            NGX_IDEMPOTENCY_FINGERPRINT_OLDEST,
                            NGX_IDEMPOTENCY_FINGERPRINT_VERSION));
        return NGX_ERROR;
    }

    stamp_version(redis, version);

    return NGX_OK;
}


static void
stamp_why(ngx_idempotency_redis_zone_t *redis, u_char *last)
{
    redis->mark.why.data = redis->mark.text;
    redis->mark.why.len = last - redis->mark.text;
}


static void
stamp_version(ngx_idempotency_redis_zone_t *redis, ngx_uint_t version)
{
    u_char  *p;

    p = ngx_sprintf(redis->stamp_value.data + redis->stamp_head, "%ui",
                    version);

    redis->stamp_value.len = p - redis->stamp_value.data;
}
