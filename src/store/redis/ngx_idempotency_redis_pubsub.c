
/*
 * A change of a key is published in a channel with the key's name.  Channels
 * have a connection of their own, as a connection that subscribes can do
 * nothing else.  A cluster publishes by slots, so there each node with a
 * channel has such a connection.
 *
 * A message may be lost with its connection.  So the handler is also called
 * when the channel was subscribed, for the first time or again.
 */


#include "ngx_idempotency_redis_conn.h"


/* the most channels, and how long each one is kept after it was last wanted */

#define PUBSUB_CHANNELS  4096
#define PUBSUB_WANTED    2500


typedef struct {
    /* the name, in the tree */
    ngx_str_node_t                   name;
    ngx_idempotency_redis_changed_pt handler;
    void                            *data;
    ngx_msec_t                       wanted;

    ngx_queue_t                      queue;
    ngx_idempotency_redis_conn_t    *conn;
    ngx_uint_t                       subscribed;
} pubsub_channel_t;


static pubsub_channel_t *pubsub_channel(ngx_idempotency_redis_t *redis,
    ngx_str_t *name);
static void pubsub_place(ngx_idempotency_redis_t *redis,
    pubsub_channel_t *channel);
static ngx_idempotency_redis_conn_t *pubsub_conn(
    ngx_idempotency_redis_node_t *node);
static void pubsub_say(ngx_idempotency_redis_conn_t *conn,
    pubsub_channel_t *channel, ngx_uint_t subscribe);
static void pubsub_unwatch(ngx_event_t *ev);
static void pubsub_drop(ngx_idempotency_redis_t *redis,
    pubsub_channel_t *channel);
static ngx_int_t pubsub_push(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_reply_t *reply);
static void pubsub_answer(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static void pubsub_ready(ngx_idempotency_redis_conn_t *conn);
static void pubsub_lost(ngx_idempotency_redis_conn_t *conn);
static ngx_uint_t pubsub_idle(ngx_idempotency_redis_conn_t *conn);


static ngx_idempotency_redis_kind_t  pubsub_kind = {
    0,
    pubsub_ready,
    pubsub_lost,
    pubsub_push,
    pubsub_idle,
    NULL
};


void
ngx_idempotency_redis_pubsub_init(ngx_idempotency_redis_t *redis)
{
    ngx_rbtree_init(&redis->channels, &redis->channels_sentinel,
                    ngx_str_rbtree_insert_value);

    redis->unwatch.data = redis;
    redis->unwatch.log = redis->log;
    redis->unwatch.handler = pubsub_unwatch;
    redis->unwatch.cancelable = 1;
}


/* without memory the handler is not called, as if nothing was ever published */

void
ngx_idempotency_redis_watch(ngx_idempotency_redis_t *redis, ngx_str_t *key,
    ngx_idempotency_redis_changed_pt handler, void *data)
{
    pubsub_channel_t  *channel;

    channel = pubsub_channel(redis, key);

    if (channel) {
        channel->wanted = ngx_current_msec;
        return;
    }

    if (redis->nchannels == PUBSUB_CHANNELS) {
        return;
    }

    channel = ngx_calloc(sizeof(pubsub_channel_t) + key->len, ngx_cycle->log);
    if (channel == NULL) {
        return;
    }

    channel->handler = handler;
    channel->data = data;
    channel->wanted = ngx_current_msec;

    channel->name.str.data = (u_char *) (channel + 1);
    channel->name.str.len = key->len;
    ngx_memcpy(channel->name.str.data, key->data, key->len);

    channel->name.node.key = ngx_crc32_short(key->data, key->len);

    ngx_rbtree_insert(&redis->channels, &channel->name.node);
    redis->nchannels++;

    if (!redis->unwatch.timer_set) {
        ngx_add_timer(&redis->unwatch, PUBSUB_WANTED);
    }

    pubsub_place(redis, channel);
}


static pubsub_channel_t *
pubsub_channel(ngx_idempotency_redis_t *redis, ngx_str_t *name)
{
    return (pubsub_channel_t *) ngx_str_rbtree_lookup(&redis->channels, name,
                                        ngx_crc32_short(name->data,
                                                        name->len));
}


/* at the server of the key */

static void
pubsub_place(ngx_idempotency_redis_t *redis, pubsub_channel_t *channel)
{
    ngx_idempotency_redis_conn_t  *conn;

    conn = pubsub_conn(ngx_idempotency_redis_node_of(redis,
                                                     &channel->name.str));
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
        pubsub_say(conn, channel, 1);
        return;
    }

    ngx_idempotency_redis_conn_connect(conn);
}


static ngx_idempotency_redis_conn_t *
pubsub_conn(ngx_idempotency_redis_node_t *node)
{
    if (node->pubsub == NULL) {
        node->pubsub = ngx_idempotency_redis_conn_create(node, &pubsub_kind);
    }

    return node->pubsub;
}


static void
pubsub_say(ngx_idempotency_redis_conn_t *conn, pubsub_channel_t *channel,
    ngx_uint_t subscribe)
{
    const char  *command;

    if (conn->state != ngx_idempotency_redis_ready) {
        return;
    }

    command = subscribe ? "SSUBSCRIBE %V" : "SUNSUBSCRIBE %V";

    if (conn->redis->slots == NULL) {
        /* a channel of all servers: without the first "S" */
        command++;
    }

    ngx_idempotency_redis_conn_ask(conn, pubsub_answer,
                                   subscribe ? NULL : conn, command,
                                   &channel->name.str);
}


/* drops channels that were not wanted again in time */

static void
pubsub_unwatch(ngx_event_t *ev)
{
    ngx_rbtree_node_t        *node, *next;
    pubsub_channel_t         *channel;
    ngx_idempotency_redis_t  *redis;

    redis = ev->data;

    for (node = ngx_rbtree_min(redis->channels.root,
                               redis->channels.sentinel);
         node;
         node = next)
    {
        next = ngx_rbtree_next(&redis->channels, node);
        channel = (pubsub_channel_t *) node;

        if (ngx_current_msec - channel->wanted >= PUBSUB_WANTED) {
            pubsub_drop(redis, channel);
        }
    }

    if (redis->nchannels) {
        ngx_add_timer(ev, PUBSUB_WANTED);
    }
}


static void
pubsub_drop(ngx_idempotency_redis_t *redis, pubsub_channel_t *channel)
{
    ngx_idempotency_redis_conn_t  *conn;

    conn = channel->conn;

    if (conn) {
        pubsub_say(conn, channel, 0);
        ngx_queue_remove(&channel->queue);

        if (conn->c) {
            conn->c->idle = pubsub_idle(conn);
        }
    }

    ngx_rbtree_delete(&redis->channels, &channel->name.node);
    redis->nchannels--;

    ngx_free(channel);
}


/* NGX_DECLINED: this is an answer, perhaps to a subscription */

static ngx_int_t
pubsub_push(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_reply_t *reply)
{
    ngx_str_t         *word;
    pubsub_channel_t  *channel;

    if (reply->type != NGX_IDEMPOTENCY_REDIS_ARRAY || reply->n != 3
        || reply->elts[0].type != NGX_IDEMPOTENCY_REDIS_STRING
        || reply->elts[1].type != NGX_IDEMPOTENCY_REDIS_STRING)
    {
        return NGX_DECLINED;
    }

    word = &reply->elts[0].str;
    channel = pubsub_channel(conn->redis, &reply->elts[1].str);

    if (channel && channel->conn != conn) {
        channel = NULL;
    }

    if (ngx_idempotency_resp_is(word, "message")
        || ngx_idempotency_resp_is(word, "smessage"))
    {
        if (channel) {
            channel->handler(channel->data, &channel->name.str);
        }

        return NGX_OK;
    }

    if (ngx_idempotency_resp_is(word, "unsubscribe")
        || ngx_idempotency_resp_is(word, "sunsubscribe"))
    {
        /* when a slot moves, the server drops its subscriptions by itself */

        if (channel) {
            channel->subscribed = 0;
            ngx_idempotency_redis_doubt(conn->redis, 1);
        }

        return (conn->ndue && conn->due[conn->first].data) ? NGX_DECLINED
                                                           : NGX_OK;
    }

    return NGX_DECLINED;
}


static void
pubsub_answer(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply)
{
    pubsub_channel_t                 *channel;
    ngx_idempotency_redis_verdict_t   verdict;

    if (reply == NULL) {
        return;
    }

    if (reply->type == NGX_IDEMPOTENCY_REDIS_ARRAY && reply->n == 3) {
        channel = pubsub_channel(conn->redis, &reply->elts[1].str);

        if (data == NULL && channel && channel->conn == conn) {
            channel->subscribed = 1;
            channel->handler(channel->data, &channel->name.str);
        }

        return;
    }

    verdict = ngx_idempotency_redis_verdict(&reply->str);

    if (verdict.error == NGX_IDEMPOTENCY_REDIS_AWAY) {
        ngx_idempotency_redis_doubt(conn->redis, 1);
        return;
    }

    ngx_idempotency_redis_warn(conn, NGX_IDEMPOTENCY_REDIS_WARN_SUBSCRIBE,
                               "lets nobody subscribe, who waits has to ask "
                               "again and again", &reply->str);
}


/* the map of slots is new: each channel goes to its server */

void
ngx_idempotency_redis_pubsub_route(ngx_idempotency_redis_t *redis)
{
    ngx_rbtree_node_t             *node;
    pubsub_channel_t              *channel;
    ngx_idempotency_redis_conn_t  *conn;

    if (redis->nchannels == 0) {
        return;
    }

    for (node = ngx_rbtree_min(redis->channels.root,
                               redis->channels.sentinel);
         node;
         node = ngx_rbtree_next(&redis->channels, node))
    {
        channel = (pubsub_channel_t *) node;
        conn = channel->conn;

        if (conn
            && ngx_idempotency_redis_node_of(redis, &channel->name.str)
               == conn->node)
        {
            if (!channel->subscribed) {
                pubsub_say(conn, channel, 1);
            }

            continue;
        }

        if (conn) {
            pubsub_say(conn, channel, 0);
            ngx_queue_remove(&channel->queue);
        }

        pubsub_place(redis, channel);
    }
}


static void
pubsub_ready(ngx_idempotency_redis_conn_t *conn)
{
    ngx_queue_t       *q;
    pubsub_channel_t  *channel;

    for (q = ngx_queue_head(&conn->channels);
         q != ngx_queue_sentinel(&conn->channels);
         q = ngx_queue_next(q))
    {
        channel = ngx_queue_data(q, pubsub_channel_t, queue);

        if (!channel->subscribed) {
            pubsub_say(conn, channel, 1);
        }
    }
}


static void
pubsub_lost(ngx_idempotency_redis_conn_t *conn)
{
    ngx_queue_t       *q;
    pubsub_channel_t  *channel;

    for (q = ngx_queue_head(&conn->channels);
         q != ngx_queue_sentinel(&conn->channels);
         q = ngx_queue_next(q))
    {
        channel = ngx_queue_data(q, pubsub_channel_t, queue);
        channel->subscribed = 0;
    }

    if (pubsub_idle(conn) && conn->timer.timer_set) {
        ngx_del_timer(&conn->timer);
    }
}


static ngx_uint_t
pubsub_idle(ngx_idempotency_redis_conn_t *conn)
{
    return ngx_queue_empty(&conn->channels);
}
