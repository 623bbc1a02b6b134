
/*
 * Who is told when something is published: subscriptions, on a connection of
 * their own, as in RESP2 it can be used for nothing else.  A cluster publishes
 * by slots, so there each node that has one has such a connection.
 *
 * A message may be lost with its connection.  So who watches is called when
 * the subscription is there, whether for the first time or again.
 */


#include "ngx_idempotency_redis_conn.h"


typedef struct {
    /* the name, in the tree */
    ngx_str_node_t                   name;
    ngx_idempotency_redis_t         *redis;
    /* of those of a connection */
    ngx_queue_t                      queue;
    ngx_idempotency_redis_conn_t    *conn;
    /* who watches */
    ngx_queue_t                      watches;
    /* it is being gone through, and stays until then */
    ngx_uint_t                       busy;
    ngx_uint_t                       subscribed;
} watch_channel_t;


static watch_channel_t *watch_channel(ngx_idempotency_redis_t *redis,
    ngx_str_t *name);
static watch_channel_t *watch_create(ngx_idempotency_redis_t *redis,
    ngx_str_t *name);
static void watch_place(watch_channel_t *channel);
static ngx_idempotency_redis_conn_t *watch_conn(
    ngx_idempotency_redis_node_t *node);
static void watch_say(ngx_idempotency_redis_conn_t *conn,
    watch_channel_t *channel, ngx_uint_t subscribe);
static void watch_flush(ngx_event_t *ev);
static void watch_tell(watch_channel_t *channel);
static void watch_drop(watch_channel_t *channel);
static ngx_int_t watch_push(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_reply_t *reply);
static ngx_uint_t watch_is(ngx_str_t *word, char *s);
static void watch_said(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static void watch_pong(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static void watch_missing(ngx_idempotency_redis_conn_t *conn);
static void watch_ready(ngx_idempotency_redis_conn_t *conn);
static void watch_lost(ngx_idempotency_redis_conn_t *conn);
static ngx_uint_t watch_idle(ngx_idempotency_redis_conn_t *conn);


static ngx_idempotency_redis_kind_t  watch_kind = {
    0,
    watch_ready,
    watch_lost,
    watch_push,
    watch_idle,
    NULL
};


ngx_int_t
ngx_idempotency_redis_watch_init(ngx_idempotency_redis_t *redis)
{
    ngx_rbtree_init(&redis->channels, &redis->channels_sentinel,
                    ngx_str_rbtree_insert_value);

    return NGX_OK;
}


/* without memory there is none who tells, as if it were never said */

void
ngx_idempotency_redis_watch(ngx_idempotency_redis_t *redis,
    ngx_idempotency_redis_watch_t *watch)
{
    watch_channel_t  *channel;

    watch->channel = NULL;

    channel = watch_channel(redis, &watch->key);

    if (channel == NULL) {
        channel = watch_create(redis, &watch->key);

        if (channel == NULL) {
            return;
        }

        ngx_queue_insert_tail(&channel->watches, &watch->queue);
        watch->channel = channel;

        watch_place(channel);
        return;
    }

    ngx_queue_insert_tail(&channel->watches, &watch->queue);
    watch->channel = channel;

    /* it may have been subscribed before: another confirmation tells */

    if (channel->conn) {
        watch_say(channel->conn, channel, 1);
    }
}


void
ngx_idempotency_redis_unwatch(ngx_idempotency_redis_t *redis,
    ngx_idempotency_redis_watch_t *watch)
{
    watch_channel_t  *channel;

    channel = watch->channel;

    if (channel == NULL) {
        return;
    }

    watch->channel = NULL;
    ngx_queue_remove(&watch->queue);

    if (ngx_queue_empty(&channel->watches) && !channel->busy) {
        watch_drop(channel);
    }
}


static watch_channel_t *
watch_channel(ngx_idempotency_redis_t *redis, ngx_str_t *name)
{
    return (watch_channel_t *) ngx_str_rbtree_lookup(&redis->channels, name,
                                        ngx_crc32_short(name->data,
                                                        name->len));
}


static watch_channel_t *
watch_create(ngx_idempotency_redis_t *redis, ngx_str_t *name)
{
    watch_channel_t  *channel;

    channel = ngx_calloc(sizeof(watch_channel_t) + name->len, ngx_cycle->log);
    if (channel == NULL) {
        return NULL;
    }

    channel->redis = redis;

    channel->name.str.data = (u_char *) (channel + 1);
    channel->name.str.len = name->len;
    ngx_memcpy(channel->name.str.data, name->data, name->len);

    channel->name.node.key = ngx_crc32_short(name->data, name->len);

    ngx_queue_init(&channel->watches);
    ngx_rbtree_insert(&redis->channels, &channel->name.node);

    return channel;
}


/* at the server where it is published */

static void
watch_place(watch_channel_t *channel)
{
    ngx_idempotency_redis_t       *redis;
    ngx_idempotency_redis_conn_t  *conn;

    redis = channel->redis;

    conn = watch_conn(redis->topology->route(redis, &channel->name.str));
    channel->conn = conn;

    if (conn == NULL) {
        return;
    }

    channel->subscribed = 0;
    ngx_queue_insert_tail(&conn->channels, &channel->queue);

    if (conn->c) {
        conn->c->idle = 0;
    }

    if (conn->state == ngx_idempotency_redis_ready) {
        watch_say(conn, channel, 1);
        return;
    }

    ngx_idempotency_redis_conn_connect(conn);
}


static ngx_idempotency_redis_conn_t *
watch_conn(ngx_idempotency_redis_node_t *node)
{
    if (node->watch == NULL) {
        node->watch = ngx_idempotency_redis_conn_create(node, &watch_kind);

        if (node->watch == NULL) {
            return NULL;
        }

        node->watch->flush.data = node->watch;
        node->watch->flush.log = node->redis->log;
        node->watch->flush.handler = watch_flush;
    }

    return node->watch;
}


/* goes out with all others of this round */

static void
watch_say(ngx_idempotency_redis_conn_t *conn, watch_channel_t *channel,
    ngx_uint_t subscribe)
{
    ngx_uint_t                   sharded;
    ngx_idempotency_resp_out_t  *out;

    if (conn->state != ngx_idempotency_redis_ready) {
        return;
    }

    out = &conn->out;
    sharded = ngx_idempotency_redis_sharded(conn->redis);

    ngx_idempotency_resp_command(out, 2);

    if (subscribe) {
        ngx_idempotency_resp_word(out, (u_char *) "SSUBSCRIBE" + !sharded,
                                  9 + sharded);
    } else {
        ngx_idempotency_resp_word(out, (u_char *) "SUNSUBSCRIBE" + !sharded,
                                  11 + sharded);
    }

    ngx_idempotency_resp_str(out, &channel->name.str);

    (void) ngx_idempotency_redis_conn_expect(conn, watch_said,
                                             subscribe ? NULL : conn);

    ngx_post_event(&conn->flush, &ngx_posted_events);
}


static void
watch_flush(ngx_event_t *ev)
{
    ngx_idempotency_redis_conn_t  *conn;

    conn = ev->data;

    if (conn->state == ngx_idempotency_redis_ready) {
        ngx_idempotency_redis_conn_write(conn);
    }
}


/* handlers may take watches away, their own or others */

static void
watch_tell(watch_channel_t *channel)
{
    ngx_queue_t                    *q, watches;
    ngx_idempotency_redis_watch_t  *watch;

    if (ngx_queue_empty(&channel->watches)) {
        return;
    }

    channel->busy++;

    ngx_queue_init(&watches);
    ngx_queue_add(&watches, &channel->watches);
    ngx_queue_init(&channel->watches);

    while (!ngx_queue_empty(&watches)) {
        q = ngx_queue_head(&watches);
        watch = ngx_queue_data(q, ngx_idempotency_redis_watch_t, queue);

        ngx_queue_remove(q);
        ngx_queue_insert_tail(&channel->watches, q);

        watch->handler(watch);
    }

    if (--channel->busy == 0 && ngx_queue_empty(&channel->watches)) {
        watch_drop(channel);
    }
}


static void
watch_drop(watch_channel_t *channel)
{
    ngx_idempotency_redis_conn_t  *conn;

    conn = channel->conn;

    if (conn) {
        watch_say(conn, channel, 0);
        ngx_queue_remove(&channel->queue);

        if (conn->c) {
            conn->c->idle = watch_idle(conn);
        }
    }

    ngx_rbtree_delete(&channel->redis->channels, &channel->name.node);
    ngx_free(channel);
}


/*
 * NGX_DECLINED: this is an answer.  In RESP2 what was published is an array
 * like others; that something was subscribed is an answer in either.
 */

static ngx_int_t
watch_push(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_reply_t *reply)
{
    ngx_str_t        *word;
    watch_channel_t  *channel;

    if (reply->type != NGX_IDEMPOTENCY_REDIS_ARRAY || reply->n != 3
        || reply->elts[0].type != NGX_IDEMPOTENCY_REDIS_STRING
        || reply->elts[1].type != NGX_IDEMPOTENCY_REDIS_STRING)
    {
        return reply->push ? NGX_OK : NGX_DECLINED;
    }

    word = &reply->elts[0].str;
    channel = watch_channel(conn->redis, &reply->elts[1].str);

    if (channel && channel->conn != conn) {
        channel = NULL;
    }

    if (watch_is(word, "message") || watch_is(word, "smessage")) {

        if (channel) {
            watch_tell(channel);
        }

        return NGX_OK;
    }

    if (watch_is(word, "unsubscribe") || watch_is(word, "sunsubscribe")) {

        /* a slot that moves drops its subscriptions, unasked */

        if (channel) {
            channel->subscribed = 0;
            conn->redis->topology->doubt(conn->node, 1);
        }

        return (conn->ndue && conn->due[conn->first].data) ? NGX_DECLINED
                                                           : NGX_OK;
    }

    return (watch_is(word, "subscribe") || watch_is(word, "ssubscribe")
            || !reply->push)
           ? NGX_DECLINED : NGX_OK;
}


static ngx_uint_t
watch_is(ngx_str_t *word, char *s)
{
    return word->len == ngx_strlen(s)
           && ngx_strncmp(word->data, s, word->len) == 0;
}


static void
watch_said(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply)
{
    watch_channel_t                  *channel;
    ngx_idempotency_redis_verdict_t   verdict;

    ngx_idempotency_redis_conn_expected(conn);

    if (reply == NULL) {
        return;
    }

    if (reply->type == NGX_IDEMPOTENCY_REDIS_ARRAY && reply->n == 3) {
        channel = watch_channel(conn->redis, &reply->elts[1].str);

        if (data == NULL && channel && channel->conn == conn) {
            channel->subscribed = 1;
            watch_tell(channel);
        }

        return;
    }

    verdict = ngx_idempotency_redis_verdict(&reply->str);

    if (verdict.error == NGX_IDEMPOTENCY_REDIS_AWAY) {
        conn->redis->topology->doubt(conn->node, 1);
        return;
    }

    if (!conn->node->deaf) {
        conn->node->deaf = 1;

        ngx_log_error(NGX_LOG_WARN, conn->redis->log, 0,
                      "idempotency_redis \"%V\": %V lets nobody subscribe, "
                      "who waits has to ask again and again: %V",
                      &conn->redis->conf.name, &conn->node->name,
                      &reply->str);
    }
}


/* is it there, and has it heard of all channels? */

void
ngx_idempotency_redis_watch_tick(ngx_idempotency_redis_conn_t *conn)
{
    if (conn->state != ngx_idempotency_redis_ready || conn->expected) {
        return;
    }

    watch_missing(conn);

    ngx_idempotency_resp_say(&conn->out, "PING", NULL);
    (void) ngx_idempotency_redis_conn_expect(conn, watch_pong, NULL);

    ngx_post_event(&conn->flush, &ngx_posted_events);
}


static void
watch_pong(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply)
{
    ngx_idempotency_redis_conn_expected(conn);
}


static void
watch_missing(ngx_idempotency_redis_conn_t *conn)
{
    ngx_queue_t      *q;
    watch_channel_t  *channel;

    for (q = ngx_queue_head(&conn->channels);
         q != ngx_queue_sentinel(&conn->channels);
         q = ngx_queue_next(q))
    {
        channel = ngx_queue_data(q, watch_channel_t, queue);

        if (!channel->subscribed) {
            watch_say(conn, channel, 1);
        }
    }
}


/* the servers were found anew: each channel to its own */

void
ngx_idempotency_redis_watch_route(ngx_idempotency_redis_t *redis)
{
    ngx_rbtree_node_t             *node;
    watch_channel_t               *channel;
    ngx_idempotency_redis_conn_t  *conn;

    if (redis->channels.root == redis->channels.sentinel) {
        return;
    }

    for (node = ngx_rbtree_min(redis->channels.root,
                               redis->channels.sentinel);
         node;
         node = ngx_rbtree_next(&redis->channels, node))
    {
        channel = (watch_channel_t *) node;
        conn = channel->conn;

        if (conn
            && redis->topology->route(redis, &channel->name.str) == conn->node)
        {
            if (!channel->subscribed) {
                watch_say(conn, channel, 1);
            }

            continue;
        }

        if (conn) {
            watch_say(conn, channel, 0);
            ngx_queue_remove(&channel->queue);
        }

        watch_place(channel);
    }
}


void
ngx_idempotency_redis_watch_leave(ngx_idempotency_redis_conn_t *conn)
{
    ngx_queue_t      *q;
    watch_channel_t  *channel;

    if (conn->flush.posted) {
        ngx_delete_posted_event(&conn->flush);
    }

    while (!ngx_queue_empty(&conn->channels)) {
        q = ngx_queue_head(&conn->channels);
        channel = ngx_queue_data(q, watch_channel_t, queue);

        ngx_queue_remove(q);
        watch_place(channel);
    }
}


static void
watch_ready(ngx_idempotency_redis_conn_t *conn)
{
    watch_missing(conn);
}


static void
watch_lost(ngx_idempotency_redis_conn_t *conn)
{
    ngx_queue_t      *q;
    watch_channel_t  *channel;

    for (q = ngx_queue_head(&conn->channels);
         q != ngx_queue_sentinel(&conn->channels);
         q = ngx_queue_next(q))
    {
        channel = ngx_queue_data(q, watch_channel_t, queue);
        channel->subscribed = 0;
    }

    if (watch_idle(conn) && conn->timer.timer_set) {
        ngx_del_timer(&conn->timer);
    }
}


static ngx_uint_t
watch_idle(ngx_idempotency_redis_conn_t *conn)
{
    return ngx_queue_empty(&conn->channels);
}
