
/*
 * Subscriptions, and what is published: on a connection of their own, as one
 * that is subscribed can be used for nothing else.  A cluster publishes by
 * slots, so there each node that has one has such a connection.
 *
 * A message may be lost with its connection.  So each subscriber is called when
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
    /* who is called */
    ngx_queue_t                      subscriptions;
    /* it is being gone through, and stays until then */
    ngx_uint_t                       busy;
    ngx_uint_t                       subscribed;
} pubsub_channel_t;


static pubsub_channel_t *pubsub_channel(ngx_idempotency_redis_t *redis,
    ngx_str_t *name);
static pubsub_channel_t *pubsub_create(ngx_idempotency_redis_t *redis,
    ngx_str_t *name);
static void pubsub_place(pubsub_channel_t *channel);
static ngx_idempotency_redis_conn_t *pubsub_conn(
    ngx_idempotency_redis_node_t *node);
static void pubsub_say(ngx_idempotency_redis_conn_t *conn,
    pubsub_channel_t *channel, ngx_uint_t subscribe);
static void pubsub_flush(ngx_event_t *ev);
static void pubsub_tell(pubsub_channel_t *channel);
static void pubsub_drop(pubsub_channel_t *channel);
static ngx_int_t pubsub_push(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_reply_t *reply);
static ngx_uint_t pubsub_is(ngx_str_t *word, char *s);
static void pubsub_said(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static void pubsub_pong(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static void pubsub_missing(ngx_idempotency_redis_conn_t *conn);
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


/* without memory there is none who tells, as if it were never said */

void
ngx_idempotency_redis_subscribe(ngx_idempotency_redis_t *redis,
    ngx_idempotency_redis_subscription_t *sub)
{
    pubsub_channel_t  *channel;

    sub->channel = NULL;

    channel = pubsub_channel(redis, &sub->key);

    if (channel == NULL) {
        channel = pubsub_create(redis, &sub->key);

        if (channel == NULL) {
            return;
        }

        ngx_queue_insert_tail(&channel->subscriptions, &sub->queue);
        sub->channel = channel;

        pubsub_place(channel);
        return;
    }

    ngx_queue_insert_tail(&channel->subscriptions, &sub->queue);
    sub->channel = channel;

    /* it may have been subscribed before: another confirmation tells */

    if (channel->conn) {
        pubsub_say(channel->conn, channel, 1);
    }
}


void
ngx_idempotency_redis_unsubscribe(ngx_idempotency_redis_t *redis,
    ngx_idempotency_redis_subscription_t *sub)
{
    pubsub_channel_t  *channel;

    channel = sub->channel;

    if (channel == NULL) {
        return;
    }

    sub->channel = NULL;
    ngx_queue_remove(&sub->queue);

    if (ngx_queue_empty(&channel->subscriptions) && !channel->busy) {
        pubsub_drop(channel);
    }
}


static pubsub_channel_t *
pubsub_channel(ngx_idempotency_redis_t *redis, ngx_str_t *name)
{
    return (pubsub_channel_t *) ngx_str_rbtree_lookup(&redis->channels, name,
                                        ngx_crc32_short(name->data,
                                                        name->len));
}


static pubsub_channel_t *
pubsub_create(ngx_idempotency_redis_t *redis, ngx_str_t *name)
{
    pubsub_channel_t  *channel;

    channel = ngx_calloc(sizeof(pubsub_channel_t) + name->len, ngx_cycle->log);
    if (channel == NULL) {
        return NULL;
    }

    channel->redis = redis;

    channel->name.str.data = (u_char *) (channel + 1);
    channel->name.str.len = name->len;
    ngx_memcpy(channel->name.str.data, name->data, name->len);

    channel->name.node.key = ngx_crc32_short(name->data, name->len);

    ngx_queue_init(&channel->subscriptions);
    ngx_rbtree_insert(&redis->channels, &channel->name.node);

    return channel;
}


/* at the server where it is published */

static void
pubsub_place(pubsub_channel_t *channel)
{
    ngx_idempotency_redis_t       *redis;
    ngx_idempotency_redis_conn_t  *conn;

    redis = channel->redis;

    conn = pubsub_conn(redis->topology->route(redis, &channel->name.str));
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

        if (node->pubsub == NULL) {
            return NULL;
        }

        node->pubsub->flush.data = node->pubsub;
        node->pubsub->flush.log = node->redis->log;
        node->pubsub->flush.handler = pubsub_flush;
    }

    return node->pubsub;
}


/* goes out with all others of this round */

static void
pubsub_say(ngx_idempotency_redis_conn_t *conn, pubsub_channel_t *channel,
    ngx_uint_t subscribe)
{
    ngx_uint_t                   sharded;
    ngx_idempotency_resp_out_t  *out;

    if (conn->state != ngx_idempotency_redis_ready) {
        return;
    }

    out = &conn->out;
    sharded = conn->redis->conf.mode == NGX_IDEMPOTENCY_REDIS_CLUSTER;

    ngx_idempotency_resp_command(out, 2);

    if (subscribe) {
        ngx_idempotency_resp_word(out, (u_char *) "SSUBSCRIBE" + !sharded,
                                  9 + sharded);
    } else {
        ngx_idempotency_resp_word(out, (u_char *) "SUNSUBSCRIBE" + !sharded,
                                  11 + sharded);
    }

    ngx_idempotency_resp_str(out, &channel->name.str);

    (void) ngx_idempotency_redis_conn_expect(conn, pubsub_said,
                                             subscribe ? NULL : conn);

    ngx_post_event(&conn->flush, &ngx_posted_events);
}


static void
pubsub_flush(ngx_event_t *ev)
{
    ngx_idempotency_redis_conn_t  *conn;

    conn = ev->data;

    if (conn->state == ngx_idempotency_redis_ready) {
        ngx_idempotency_redis_conn_write(conn);
    }
}


/* handlers may take subscriptions away, their own or others */

static void
pubsub_tell(pubsub_channel_t *channel)
{
    ngx_queue_t                           *q, subscriptions;
    ngx_idempotency_redis_subscription_t  *sub;

    if (ngx_queue_empty(&channel->subscriptions)) {
        return;
    }

    channel->busy++;

    ngx_queue_init(&subscriptions);
    ngx_queue_add(&subscriptions, &channel->subscriptions);
    ngx_queue_init(&channel->subscriptions);

    while (!ngx_queue_empty(&subscriptions)) {
        q = ngx_queue_head(&subscriptions);
        sub = ngx_queue_data(q, ngx_idempotency_redis_subscription_t, queue);

        ngx_queue_remove(q);
        ngx_queue_insert_tail(&channel->subscriptions, q);

        sub->handler(sub);
    }

    if (--channel->busy == 0 && ngx_queue_empty(&channel->subscriptions)) {
        pubsub_drop(channel);
    }
}


static void
pubsub_drop(pubsub_channel_t *channel)
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

    ngx_rbtree_delete(&channel->redis->channels, &channel->name.node);
    ngx_free(channel);
}


/* NGX_DECLINED: this is an answer, as is that something was subscribed */

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

    if (pubsub_is(word, "message") || pubsub_is(word, "smessage")) {

        if (channel) {
            pubsub_tell(channel);
        }

        return NGX_OK;
    }

    if (pubsub_is(word, "unsubscribe") || pubsub_is(word, "sunsubscribe")) {

        /* a slot that moves drops its subscriptions, unasked */

        if (channel) {
            channel->subscribed = 0;
            ngx_idempotency_redis_doubt(conn->redis, 1);
        }

        return (conn->ndue && conn->due[conn->first].data) ? NGX_DECLINED
                                                           : NGX_OK;
    }

    return NGX_DECLINED;
}


static ngx_uint_t
pubsub_is(ngx_str_t *word, char *s)
{
    return word->len == ngx_strlen(s)
           && ngx_strncmp(word->data, s, word->len) == 0;
}


static void
pubsub_said(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply)
{
    pubsub_channel_t                 *channel;
    ngx_idempotency_redis_verdict_t   verdict;

    ngx_idempotency_redis_conn_expected(conn);

    if (reply == NULL) {
        return;
    }

    if (reply->type == NGX_IDEMPOTENCY_REDIS_ARRAY && reply->n == 3) {
        channel = pubsub_channel(conn->redis, &reply->elts[1].str);

        if (data == NULL && channel && channel->conn == conn) {
            channel->subscribed = 1;
            pubsub_tell(channel);
        }

        return;
    }

    verdict = ngx_idempotency_redis_verdict(&reply->str);

    if (verdict.error == NGX_IDEMPOTENCY_REDIS_AWAY) {
        ngx_idempotency_redis_doubt(conn->redis, 1);
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
ngx_idempotency_redis_pubsub_tick(ngx_idempotency_redis_conn_t *conn)
{
    if (conn->state != ngx_idempotency_redis_ready || conn->expected) {
        return;
    }

    pubsub_missing(conn);

    ngx_idempotency_resp_say(&conn->out, "PING", NULL);
    (void) ngx_idempotency_redis_conn_expect(conn, pubsub_pong, NULL);

    ngx_post_event(&conn->flush, &ngx_posted_events);
}


static void
pubsub_pong(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply)
{
    ngx_idempotency_redis_conn_expected(conn);
}


static void
pubsub_missing(ngx_idempotency_redis_conn_t *conn)
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


/* the servers were found anew: each channel to its own */

void
ngx_idempotency_redis_pubsub_route(ngx_idempotency_redis_t *redis)
{
    ngx_rbtree_node_t             *node;
    pubsub_channel_t              *channel;
    ngx_idempotency_redis_conn_t  *conn;

    if (redis->channels.root == redis->channels.sentinel) {
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
            && redis->topology->route(redis, &channel->name.str) == conn->node)
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

        pubsub_place(channel);
    }
}


void
ngx_idempotency_redis_pubsub_leave(ngx_idempotency_redis_conn_t *conn)
{
    ngx_queue_t       *q;
    pubsub_channel_t  *channel;

    if (conn->flush.posted) {
        ngx_delete_posted_event(&conn->flush);
    }

    while (!ngx_queue_empty(&conn->channels)) {
        q = ngx_queue_head(&conn->channels);
        channel = ngx_queue_data(q, pubsub_channel_t, queue);

        ngx_queue_remove(q);
        pubsub_place(channel);
    }
}


static void
pubsub_ready(ngx_idempotency_redis_conn_t *conn)
{
    pubsub_missing(conn);
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
