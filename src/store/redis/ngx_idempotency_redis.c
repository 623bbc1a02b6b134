
/*
 * The client: a worker's view of an idempotency_redis block.  Which servers
 * there are, which one gets a call, and how they are.  Connections are in
 * conn.c, calls on a connection in pipeline.c.
 *
 * A node is a server: its name, its addresses, and the connections to it.
 * Calls go to "home": the only server of the block, or the master that the
 * sentinels name.  In a cluster they go to the node of the key's slot.  There
 * home has no address: calls wait at it until the map of slots is known, and if
 * the map has a hole.
 *
 * Discovery is the connection to a sentinel, or to any node of a cluster, that
 * is asked where the others are.  If one does not know, the next one is asked.
 * Sentinels also announce a new master.  A cluster is asked for its map at the
 * start, when a server says that the map is out of date, and when a server is
 * silent.
 *
 * A node that has no slots any more stays, and is used for the next server that
 * is found.
 *
 * A change of a key is published in a channel with the key's name.  Channels
 * have a connection of their own, as a connection that subscribes can do
 * nothing else; in a cluster, which publishes by slots, each node with a
 * channel has one.  A message may be lost with its connection: so the handler
 * is also called when the channel was subscribed, for the first time or again.
 */


#include "ngx_idempotency_redis_conn.h"

#include <poll.h>


/* how often silent connections are checked, in msec; every so many times
   servers are asked for their settings, or for the map of slots */

#define REDIS_TICK     5000
#define REDIS_INFO     2
#define REDIS_MAP      6

/* how often a server's health is checked at most, and how long the answer
   holds */

#define REDIS_LOOK     250
#define REDIS_WELL     5000

/* how many connections are served after the event loop has ended */

#define REDIS_POLL     256

/* how often servers are asked where the others are, at most, in msec */

#define REDIS_PAUSE    200

/* the most channels, and how long each one is kept after it was last wanted */

#define PUBSUB_CHANNELS  4096
#define PUBSUB_WANTED    2500


typedef struct {
    /* the name, in the tree */
    ngx_str_node_t                   name;
    ngx_idempotency_redis_changed_pt handler;
    void                            *data;
    ngx_msec_t                       wanted;

    redis_conn_t  *conn;
    /* the generation of the connection in which it was subscribed */
    ngx_uint_t                       subscribed;
} pubsub_channel_t;


static void redis_wait_events(redis_conn_t *conn, struct pollfd *fd);
static void redis_look_handler(ngx_event_t *ev);
static void redis_look(redis_node_t *node);
static void redis_looked_synced(redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static void redis_looked(redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static void redis_tick(ngx_event_t *ev);
static redis_node_t *node_next(ngx_idempotency_redis_t *redis,
    redis_node_t *node);
static redis_node_t *node_create(ngx_idempotency_redis_t *redis);
static redis_node_t *node_configured(ngx_idempotency_redis_t *redis,
    ngx_uint_t n);
static redis_node_t *node_found(ngx_idempotency_redis_t *redis,
    ngx_str_t *host, ngx_int_t port);
static ngx_uint_t node_is(redis_node_t *node, ngx_str_t *host,
    ngx_uint_t port);
static uint64_t node_id(redis_node_t *node);
static ngx_uint_t node_unused(redis_node_t *node);
static ngx_int_t node_move(redis_node_t *node, ngx_str_t *host,
    in_port_t port);
static ngx_int_t node_set_address(redis_node_t *node, ngx_str_t *text);
static ngx_int_t discovery_start(ngx_idempotency_redis_t *redis);
static void discovery_next(redis_conn_t *conn);
static void discovery_ready(redis_conn_t *conn);
static void discovery_answer(redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static ngx_int_t sentinel_push(redis_conn_t *conn,
    ngx_idempotency_redis_reply_t *reply);
static void sentinel_master(ngx_idempotency_redis_t *redis, ngx_str_t *host,
    ngx_str_t *port);
static void cluster_map(redis_conn_t *conn,
    ngx_idempotency_redis_reply_t *reply);
static void cluster_range(redis_conn_t *conn,
    ngx_idempotency_redis_reply_t *range);
static void cluster_address(redis_node_t *node,
    ngx_idempotency_redis_reply_t *more);
static void cluster_mapped(redis_conn_t *discovery);
static pubsub_channel_t *pubsub_channel(ngx_idempotency_redis_t *redis,
    ngx_str_t *name);
static void pubsub_place(ngx_idempotency_redis_t *redis,
    pubsub_channel_t *channel);
static void pubsub_leave(pubsub_channel_t *channel);
static void pubsub_send(redis_conn_t *conn, pubsub_channel_t *channel,
    ngx_uint_t subscribe);
static void pubsub_unwatch(ngx_event_t *ev);
static ngx_int_t pubsub_push(redis_conn_t *conn,
    ngx_idempotency_redis_reply_t *reply);
static void pubsub_answer(redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static void pubsub_ready(redis_conn_t *conn);
static void pubsub_lost(redis_conn_t *conn);


static redis_kind_t  discovery_kind = {
    1,
    discovery_ready,
    discovery_next,
    sentinel_push,
    NULL,
    NULL
};


static redis_kind_t  pubsub_kind = {
    0,
    pubsub_ready,
    pubsub_lost,
    pubsub_push,
    NULL,
    NULL
};


ngx_idempotency_redis_t *
ngx_idempotency_redis_create(ngx_conf_t *cf)
{
    return ngx_pcalloc(cf->pool, sizeof(ngx_idempotency_redis_t));
}


ngx_idempotency_redis_conf_t *
ngx_idempotency_redis_conf(ngx_idempotency_redis_t *redis)
{
    return &redis->conf;
}


ngx_int_t
ngx_idempotency_redis_init_process(ngx_idempotency_redis_t *redis,
    ngx_cycle_t *cycle)
{
    ngx_uint_t                     i, n;
    redis_conn_t                  *conn;
    ngx_idempotency_redis_conf_t  *conf;

    if (redis->started) {
        return NGX_OK;
    }

    redis->started = 1;
    redis->log = cycle->log;

    ngx_queue_init(&redis->nodes);
    ngx_queue_init(&redis->conns);

    ngx_rbtree_init(&redis->channels, &redis->channels_sentinel,
                    ngx_str_rbtree_insert_value);

    ngx_idempotency_redis_event(&redis->tick, redis_tick, redis);
    ngx_idempotency_redis_event(&redis->look, redis_look_handler, redis);
    ngx_idempotency_redis_event(&redis->unwatch, pubsub_unwatch, redis);

    ngx_add_timer(&redis->tick, REDIS_TICK);

    conf = &redis->conf;

    for (i = 0; i < conf->servers.nelts; i++) {
        redis->home = node_configured(redis, i);

        if (redis->home == NULL) {
            return NGX_ERROR;
        }
    }

    if (conf->mode != NGX_IDEMPOTENCY_REDIS_STANDALONE
        && discovery_start(redis) != NGX_OK)
    {
        return NGX_ERROR;
    }

    redis->home->known = (redis->slots == NULL);

    n = conf->connections;

    for (i = 0; i < 2 * n; i++) {
        conn = ngx_idempotency_redis_node_conn(redis->home, i % n, i / n);

        if (conn == NULL) {
            return NGX_ERROR;
        }

        ngx_idempotency_redis_conn_connect(conn);
    }

    return NGX_OK;
}


/* the process ends: calls no handler */

void
ngx_idempotency_redis_exit_process(ngx_idempotency_redis_t *redis)
{
    redis_conn_t  *conn;

    if (!redis->started) {
        return;
    }

    redis->started = 0;
    conn = NULL;

    while ((conn = ngx_idempotency_redis_conn_next(redis, conn)) != NULL) {
        ngx_idempotency_redis_conn_close(conn);
    }
}


/*
 * The event loop has ended: of the process's connections only these are served,
 * and no timer runs.
 */

void
ngx_idempotency_redis_wait(ngx_idempotency_redis_t *redis, ngx_msec_t time,
    ngx_uint_t first)
{
    ngx_uint_t      i, nfds;
    redis_conn_t   *conn, *conns[REDIS_POLL];
    struct pollfd   fds[REDIS_POLL];

    conn = NULL;

    while (first
           && (conn = ngx_idempotency_redis_conn_next(redis, conn)) != NULL)
    {
        if (conn->kind == &ngx_idempotency_redis_pipeline
            && conn->state == redis_closed)
        {
            /* it is tried once more before its calls are given up */

            if (conn->timer.timer_set) {
                ngx_del_timer(&conn->timer);
            }

            conn->down = 0;
            ngx_idempotency_redis_conn_connect(conn);
        }
    }

    ngx_event_process_posted((ngx_cycle_t *) ngx_cycle, &ngx_posted_events);

    nfds = 0;
    conn = NULL;

    while (nfds < REDIS_POLL
           && (conn = ngx_idempotency_redis_conn_next(redis, conn)) != NULL)
    {
        if (conn->kind != &ngx_idempotency_redis_pipeline || conn->c == NULL) {
            continue;
        }

        fds[nfds].fd = conn->c->fd;
        fds[nfds].events = conn->c->write->ready ? POLLIN : (POLLIN|POLLOUT);
        fds[nfds].revents = 0;
        conns[nfds++] = conn;
    }

    (void) poll(fds, nfds, ngx_min(time, 50));

    ngx_time_update();

    for (i = 0; i < nfds; i++) {
        redis_wait_events(conns[i], &fds[i]);
    }

    ngx_event_process_posted((ngx_cycle_t *) ngx_cycle, &ngx_posted_events);
}


/* the connection may have been lost meanwhile, also by what another one read */

static void
redis_wait_events(redis_conn_t *conn, struct pollfd *fd)
{
    ngx_event_t  *ev;

    if (conn->c && conn->c->fd == fd->fd
        && (fd->revents & (POLLIN|POLLERR|POLLHUP)))
    {
        ev = conn->c->read;
        ev->ready = 1;
        ev->available = -1;
        ev->handler(ev);
    }

    if (conn->c && conn->c->fd == fd->fd
        && (fd->revents & (POLLOUT|POLLERR|POLLHUP)))
    {
        ev = conn->c->write;
        ev->ready = 1;
        ev->handler(ev);
    }
}


void
ngx_idempotency_redis_call(ngx_idempotency_redis_t *redis, ngx_uint_t n,
    ngx_idempotency_redis_call_t *call)
{
    redis_conn_t  *conn;
    redis_node_t  *node;

    call->n = n;
    call->tries = 0;
    call->eval = 0;
    call->asking = 0;
    call->slow = 0;

    if (call->key.len) {
        node = ngx_idempotency_redis_node_of(redis, &call->key);

    } else {
        node = NULL;

        do {
            node = node_next(redis, node);
        } while (node && !(node->known && node_id(node) == call->master));
    }

    if (node == NULL) {
        node = redis->home;
    }

    conn = ngx_idempotency_redis_node_conn(node, n, call->durable);

    if (conn == NULL) {

        /* there is no memory; the first connection was made at the start */

        conn = redis->home->conns[0];
    }

    ngx_idempotency_redis_pipeline_call(conn, call);
}


redis_node_t *
ngx_idempotency_redis_node_of(ngx_idempotency_redis_t *redis, ngx_str_t *key)
{
    redis_node_t  *node;

    node = redis->slots ? redis->slots[ngx_idempotency_redis_slot(key)] : NULL;

    return node ? node : redis->home;
}


/* CRC-16/XMODEM of the part between the first braces, or of the whole key */

ngx_uint_t
ngx_idempotency_redis_slot(ngx_str_t *key)
{
    u_char      *p, *last, *begin, *end;
    ngx_uint_t   i, crc;

    p = key->data;
    last = key->data + key->len;

    begin = ngx_strlchr(p, last, '{');
    end = begin ? ngx_strlchr(begin + 1, last, '}') : NULL;

    if (end && end > begin + 1) {
        p = begin + 1;
        last = end;
    }

    for (crc = 0; p < last; p++) {
        crc ^= (ngx_uint_t) *p << 8;

        for (i = 0; i < 8; i++) {
            crc = (crc & 0x8000) ? (crc << 1) ^ 0x1021 : crc << 1;
        }

        crc &= 0xffff;
    }

    return crc % NGX_IDEMPOTENCY_REDIS_SLOTS;
}


ngx_int_t
ngx_idempotency_redis_master(ngx_idempotency_redis_t *redis, uint64_t *master,
    uint64_t *all)
{
    uint64_t       id, next;
    ngx_uint_t     i;
    redis_node_t  *node;

    if (*master == 0 && redis->slots) {
        /* the map may have changed: asks for it; the end of the list sees the
           change */
        ngx_idempotency_redis_seek(redis, 1);
    }

    for (i = 0; redis->slots && i < NGX_IDEMPOTENCY_REDIS_SLOTS; i++) {
        if (redis->slots[i] == NULL) {
            return NGX_ERROR;
        }
    }

    next = 0;
    *all = 0;
    node = NULL;

    while ((node = node_next(redis, node)) != NULL) {
        if (!node->known) {
            continue;
        }

        id = node_id(node);
        *all += id;

        if (id > *master && (next == 0 || id < next)) {
            next = id;
        }
    }

    if (next == 0) {
        return NGX_DONE;
    }

    *master = next;

    return NGX_OK;
}


uint64_t
ngx_idempotency_redis_time(ngx_idempotency_redis_t *redis)
{
    uint64_t       now;
    redis_node_t  *node;

    node = NULL;

    while ((node = node_next(redis, node)) != NULL) {
        now = ngx_idempotency_redis_node_time(node);

        if (now) {
            return now;
        }
    }

    return 0;
}


ngx_uint_t
ngx_idempotency_redis_up(ngx_idempotency_redis_t *redis)
{
    ngx_uint_t     known;
    redis_conn_t  *conn;

    known = 0;
    conn = NULL;

    while ((conn = ngx_idempotency_redis_conn_next(redis, conn)) != NULL) {

        if (!conn->node->known || conn->durable
            || conn->kind != &ngx_idempotency_redis_pipeline)
        {
            continue;
        }

        if (!conn->down) {
            return 1;
        }

        known = 1;
    }

    /* the masters are not known yet: where calls wait for them */

    return known ? 0 : !redis->home->conns[0]->down;
}


ngx_uint_t
ngx_idempotency_redis_well(ngx_idempotency_redis_t *redis)
{
    ngx_uint_t     well;
    redis_node_t  *node;

    well = 1;
    node = NULL;

    while ((node = node_next(redis, node)) != NULL) {
        if (!node->known) {
            continue;
        }

        redis_look(node);

        if (node->conns[0] == NULL || node->well == 0 || node->unsynced
            || node->conns[0]->state != redis_ready
            || ngx_current_msec - node->well >= REDIS_WELL)
        {
            well = 0;
        }
    }

    return well;
}


void
ngx_idempotency_redis_acked(redis_node_t *node)
{
    node->well = ngx_current_msec;
    node->missing = 0;
    node->offset = 0;
}


void
ngx_idempotency_redis_unacked(redis_node_t *node, ngx_msec_t sent)
{
    node->well = 0;
    node->tried = ngx_current_msec;

    if (node->missing) {
        return;
    }

    node->missing = 1;
    node->missed = sent;
    node->offset = 0;

    if (!node->redis->look.timer_set) {
        ngx_add_timer(&node->redis->look, REDIS_LOOK);
    }
}


static void
redis_look_handler(ngx_event_t *ev)
{
    redis_node_t             *node;
    ngx_idempotency_redis_t  *redis;

    redis = ev->data;
    node = NULL;

    while ((node = node_next(redis, node)) != NULL) {
        if (!node->missing) {
            continue;
        }

        redis_look(node);

        if (!ev->timer_set && !ngx_exiting) {
            ngx_add_timer(ev, REDIS_LOOK);
        }
    }
}


/* over the first connection, which does not wait for replicas */

static void
redis_look(redis_node_t *node)
{
    redis_conn_t  *conn;

    conn = node->conns[0];

    if (conn == NULL || conn->retire
        || conn->state != redis_ready
        || ngx_current_msec - node->looked < REDIS_LOOK)
    {
        return;
    }

    node->looked = ngx_current_msec;

    if (node->redis->conf.fsync) {
        ngx_idempotency_redis_conn_ask(conn, redis_looked_synced, node,
                                       "WAITAOF 1 0 1");
    }

    ngx_idempotency_redis_conn_ask(conn, redis_looked, node, "ROLE");
}


/* a server without it, or without an append-only file, refuses */

static void
redis_looked_synced(redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply)
{
    redis_node_t  *node = data;

    if (reply) {
        node->unsynced = (reply->type == NGX_IDEMPOTENCY_REDIS_ERROR);
    }
}


/*
 * The reply: "master", its offset, and each replica with the offset that it has
 * acknowledged.  A replica must have all that was written before the first
 * look.  A server that reports nothing of this is well if it answers.
 */

static void
redis_looked(redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply)
{
    redis_node_t  *node = data;

    int64_t                         offset;
    ngx_int_t                       n;
    ngx_uint_t                      i;
    ngx_idempotency_redis_reply_t  *replica;

    if (reply == NULL) {
        return;
    }

    if (reply->type != NGX_IDEMPOTENCY_REDIS_ARRAY || reply->n < 3) {
        ngx_idempotency_redis_acked(node);
        return;
    }

    if (reply->elts[2].type != NGX_IDEMPOTENCY_REDIS_ARRAY) {
        /* a replica */
        return;
    }

    if (node->offset == 0) {
        node->offset = reply->elts[1].integer;
    }

    n = 0;

    for (i = 0; i < reply->elts[2].n; i++) {
        replica = &reply->elts[2].elts[i];

        n += (replica->n == 3
              && ngx_idempotency_resp_decimal(&replica->elts[2].str, &offset)
                 == NGX_OK
              && offset >= node->offset);
    }

    if (n >= conn->redis->conf.replicas) {
        ngx_idempotency_redis_acked(node);
    }
}


/* A silent connection may be dead, an old clock may be wrong, and a slot
   may have moved silently. */

static void
redis_tick(ngx_event_t *ev)
{
    ngx_uint_t                info;
    redis_conn_t             *conn;
    ngx_idempotency_redis_t  *redis;

    redis = ev->data;

    info = (++redis->ticks % REDIS_INFO == 0);
    conn = NULL;

    while ((conn = ngx_idempotency_redis_conn_next(redis, conn)) != NULL) {

        if (redis->slots && node_unused(conn->node)) {
            ngx_idempotency_redis_conn_stop(conn, "it has no slots");
            continue;
        }

        /* after durable calls the question would have to wait */

        if (conn->state != redis_ready || conn->expected) {
            continue;
        }

        if (conn->kind == &ngx_idempotency_redis_pipeline) {
            ngx_idempotency_redis_mark_ask(conn, 0);
            ngx_idempotency_redis_conn_check(conn, info && conn->info);
            continue;
        }

        if (conn->kind == &pubsub_kind) {
            /* subscribes to what it has not yet subscribed to */
            pubsub_ready(conn);
        }

        ngx_idempotency_redis_conn_ask(conn, NULL, NULL, "PING");
    }

    if (redis->slots && redis->ticks % REDIS_MAP == 0) {
        ngx_idempotency_redis_seek(redis, 0);
    }

    if (!ngx_exiting) {
        ngx_add_timer(ev, REDIS_TICK);
    }
}


static redis_node_t *
node_create(ngx_idempotency_redis_t *redis)
{
    redis_node_t  *node;

    node = ngx_calloc(sizeof(redis_node_t)
                      + 2 * redis->conf.connections
                        * sizeof(redis_conn_t *),
                      ngx_cycle->log);
    if (node == NULL) {
        return NULL;
    }

    node->redis = redis;
    node->conns = (redis_conn_t **) (node + 1);

    ngx_queue_insert_tail(&redis->nodes, &node->queue);

    return node;
}


static redis_node_t *
node_configured(ngx_idempotency_redis_t *redis, ngx_uint_t n)
{
    ngx_url_t     *url;
    redis_node_t  *node;

    node = node_create(redis);
    if (node == NULL) {
        return NULL;
    }

    url = &((ngx_idempotency_redis_server_t *) redis->conf.servers.elts)[n].url;

    node->seed = 1;
    node->name = url->url;
    node->addrs = url->addrs;
    node->naddrs = url->naddrs;

    if (url->family != AF_UNIX) {
        node->host = url->host;
        node->port = url->port;
    }

    return node;
}


/* finds or makes a node of a cluster; NULL: no memory, or this is no server */

static redis_node_t *
node_found(ngx_idempotency_redis_t *redis, ngx_str_t *host, ngx_int_t port)
{
    redis_node_t  *node, *unused;

    if (host->len == 0 || port < 1 || port > 65535) {
        return NULL;
    }

    node = NULL;
    unused = NULL;

    while ((node = node_next(redis, node)) != NULL) {
        if (node_is(node, host, port)) {
            return node;
        }

        if (node_unused(node)) {
            unused = node;
        }
    }

    node = unused ? unused : node_create(redis);

    return (node && node_move(node, host, port) == NGX_OK) ? node : NULL;
}


static ngx_uint_t
node_is(redis_node_t *node, ngx_str_t *host, ngx_uint_t port)
{
    return node->port == port
           && ngx_memn2cmp(node->host.data, host->data, node->host.len,
                           host->len)
              == 0;
}


/* the same in each worker, and not 0 */

static uint64_t
node_id(redis_node_t *node)
{
    return (uint64_t) ngx_crc32_long(node->name.data, node->name.len) + 1;
}


/* the node has no slots any more, and no call waits there for an answer */

static ngx_uint_t
node_unused(redis_node_t *node)
{
    redis_conn_t             *conn;
    ngx_idempotency_redis_t  *redis;

    redis = node->redis;

    if (node->known || node->seed || node == redis->home
        || node == redis->discovery->node)
    {
        return 0;
    }

    conn = NULL;

    while ((conn = ngx_idempotency_redis_conn_next(redis, conn)) != NULL) {
        if (conn->node == node && !ngx_idempotency_redis_conn_idle(conn)) {
            return 0;
        }
    }

    return 1;
}


/* from now on the node is this server */

static ngx_int_t
node_move(redis_node_t *node, ngx_str_t *host, in_port_t port)
{
    u_char        *p;
    redis_conn_t  *conn;

    p = ngx_alloc(2 * host->len + sizeof("[]:65535"), ngx_cycle->log);
    if (p == NULL) {
        return NGX_ERROR;
    }

    if (node->named) {
        ngx_free(node->named);
    }

    node->named = p;

    node->host.data = p;
    node->host.len = host->len;
    node->port = port;

    p = ngx_cpymem(p, host->data, host->len);

    node->name.data = p;
    node->name.len = ngx_sprintf(p, ngx_strlchr(p - host->len, p, ':')
                                    ? "[%V]:%ui" : "%V:%ui",
                                 &node->host, (ngx_uint_t) port)
                     - p;

    node->addrs = NULL;
    node->naddrs = 0;

    node->clock = 0;
    node->well = 0;
    node->offset = 0;
    node->missing = 0;
    node->unsynced = 0;
    node->warned = 0;

    if (node_set_address(node, host) != NGX_OK) {
        return NGX_ERROR;
    }

    conn = NULL;

    while ((conn = ngx_idempotency_redis_conn_next(node->redis, conn)) != NULL)
    {
        if (conn->node == node) {
            ngx_idempotency_redis_conn_restart(conn, 1,
                                               "the master is another one");
        }
    }

    return NGX_OK;
}


/* if the text is an address; parsing one takes a pool */

static ngx_int_t
node_set_address(redis_node_t *node, ngx_str_t *text)
{
    ngx_addr_t   addr;
    ngx_pool_t  *pool;

    pool = ngx_create_pool(512, ngx_cycle->log);
    if (pool == NULL) {
        return NGX_ERROR;
    }

    if (ngx_parse_addr(pool, &addr, text->data, text->len) == NGX_OK) {
        ngx_memcpy(&node->sockaddr, addr.sockaddr, addr.socklen);

        node->addr.sockaddr = &node->sockaddr.sockaddr;
        node->addr.socklen = addr.socklen;
        node->addrs = &node->addr;
        node->naddrs = 1;
    }

    ngx_destroy_pool(pool);

    return NGX_OK;
}


/* the next node; NULL: the first one */

static redis_node_t *
node_next(ngx_idempotency_redis_t *redis, redis_node_t *node)
{
    ngx_queue_t  *q;

    q = node ? ngx_queue_next(&node->queue) : ngx_queue_head(&redis->nodes);

    return (q == ngx_queue_sentinel(&redis->nodes))
           ? NULL : ngx_queue_data(q, redis_node_t, queue);
}


redis_conn_t *
ngx_idempotency_redis_node_conn(redis_node_t *node, ngx_uint_t n,
    ngx_uint_t durable)
{
    ngx_uint_t                     i;
    redis_conn_t                  *conn;
    ngx_idempotency_redis_conf_t  *conf;

    conf = &node->redis->conf;

    durable = durable && (conf->replicas || conf->fsync);

    i = n % conf->connections + (durable ? conf->connections : 0);

    conn = node->conns[i];

    if (conn) {
        return conn;
    }

    conn = ngx_idempotency_redis_conn_create(node,
                                             &ngx_idempotency_redis_pipeline);
    if (conn == NULL) {
        return NULL;
    }

    conn->info = (i == 0 && ngx_worker == 0);
    conn->durable = durable;

    node->conns[i] = conn;

    return conn;
}


void
ngx_idempotency_redis_seek(ngx_idempotency_redis_t *redis, ngx_uint_t news)
{
    ngx_msec_t     passed, pause;
    redis_conn_t  *conn;

    conn = redis->discovery;

    if (conn == NULL) {
        return;
    }

    passed = ngx_current_msec - conn->begun;
    pause = (passed < REDIS_PAUSE) ? REDIS_PAUSE - passed : 1;

    if (conn->timer.timer_set && conn->state == redis_closed) {
        if (news && (ngx_msec_int_t) (conn->timer.timer.key - ngx_current_msec)
                    > (ngx_msec_int_t) pause)
        {
            ngx_del_timer(&conn->timer);
            ngx_add_timer(&conn->timer, pause);
        }

        return;
    }

    /* it is connecting, or was asked: it will answer soon, or be lost */

    if (conn->state != redis_closed
        && (conn->state != redis_ready || conn->expected))
    {
        return;
    }

    ngx_idempotency_redis_conn_restart(conn, pause, "another one is asked");
}


/* begins with any of the configuration's servers */

static ngx_int_t
discovery_start(ngx_idempotency_redis_t *redis)
{
    ngx_uint_t  i;

    redis->home = node_create(redis);
    if (redis->home == NULL) {
        return NGX_ERROR;
    }

    ngx_str_set(&redis->home->name, "the master");

    if (redis->conf.mode == NGX_IDEMPOTENCY_REDIS_CLUSTER) {
        ngx_str_set(&redis->home->name, "the cluster");

        redis->slots = ngx_calloc(NGX_IDEMPOTENCY_REDIS_SLOTS
                                  * sizeof(redis_node_t *),
                                  ngx_cycle->log);
        if (redis->slots == NULL) {
            return NGX_ERROR;
        }
    }

    redis->discovery = ngx_idempotency_redis_conn_create(redis->home,
                                                         &discovery_kind);
    if (redis->discovery == NULL) {
        return NGX_ERROR;
    }

    for (i = ngx_random() % redis->conf.servers.nelts + 1; i; i--) {
        discovery_next(redis->discovery);
    }

    ngx_idempotency_redis_conn_connect(redis->discovery);

    return NGX_OK;
}


/* the next node of the configuration or of the map */

static void
discovery_next(redis_conn_t *conn)
{
    redis_node_t             *node;
    ngx_idempotency_redis_t  *redis;

    redis = conn->redis;
    node = conn->node;

    do {
        node = node_next(redis, node);

        if (node == NULL) {
            node = node_next(redis, NULL);
        }

    } while (!node->seed && !(redis->slots && node->known));

    conn->node = node;
}


static void
discovery_ready(redis_conn_t *conn)
{
    if (conn->redis->slots) {
        ngx_idempotency_redis_conn_ask(conn, discovery_answer, NULL,
                                       "CLUSTER SLOTS");
        return;
    }

    ngx_idempotency_redis_conn_ask(conn, discovery_answer, NULL,
                                   "SENTINEL GET-MASTER-ADDR-BY-NAME %V",
                                   &conn->redis->conf.master);
    ngx_idempotency_redis_conn_ask(conn, NULL, NULL,
                                   "SUBSCRIBE +switch-master");
}


static void
discovery_answer(redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply)
{
    ngx_idempotency_redis_t  *redis;

    redis = conn->redis;

    if (reply == NULL) {
        return;
    }

    if (reply->type == NGX_IDEMPOTENCY_REDIS_ERROR) {
        ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_DENIED,
                                        "it says: %V", &reply->str);

    } else if (reply->type != NGX_IDEMPOTENCY_REDIS_ARRAY
               || reply->n < (redis->slots ? 1 : 2))
    {
        ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_CONNECT,
                                        redis->slots
                                        ? "it does not know the slots"
                                        : "it does not know the master \"%V\"",
                                        &redis->conf.master);
    } else if (redis->slots) {
        ngx_idempotency_redis_conn_back(conn);
        cluster_map(conn, reply);

    } else {
        ngx_idempotency_redis_conn_back(conn);
        sentinel_master(redis, &reply->elts[0].str, &reply->elts[1].str);
    }
}


/* "NAME OLD-HOST OLD-PORT NEW-HOST NEW-PORT" */

static ngx_int_t
sentinel_push(redis_conn_t *conn, ngx_idempotency_redis_reply_t *reply)
{
    u_char      *p, *last;
    ngx_str_t    words[5], *name;
    ngx_uint_t   n;

    if (reply->type != NGX_IDEMPOTENCY_REDIS_ARRAY || reply->n != 3
        || !ngx_idempotency_resp_is(&reply->elts[0].str, "message")
        || reply->elts[2].type != NGX_IDEMPOTENCY_REDIS_STRING)
    {
        return NGX_DECLINED;
    }

    p = reply->elts[2].str.data;
    last = p + reply->elts[2].str.len;

    for (n = 0; n < 5 && p <= last; n++) {
        words[n].data = p;

        while (p < last && *p != ' ') {
            p++;
        }

        words[n].len = p++ - words[n].data;
    }

    name = &conn->redis->conf.master;

    if (n == 5 && words[0].len == name->len
        && ngx_strncmp(words[0].data, name->data, name->len) == 0)
    {
        sentinel_master(conn->redis, &words[3], &words[4]);
    }

    return NGX_OK;
}


static void
sentinel_master(ngx_idempotency_redis_t *redis, ngx_str_t *host,
    ngx_str_t *port)
{
    ngx_int_t      n;
    redis_node_t  *node;

    node = redis->home;
    n = ngx_atoi(port->data, port->len);

    if (n < 1 || n > 65535 || host->len == 0 || node_is(node, host, n)
        || node_move(node, host, n) != NGX_OK)
    {
        return;
    }

    ngx_log_error(NGX_LOG_NOTICE, redis->log, 0,
                  "idempotency_redis \"%V\": the master \"%V\" is %V",
                  &redis->conf.name, &redis->conf.master, &node->name);
}


/* "MOVED 3999 127.0.0.1:6381"; without an address it is the server that we
   asked, and the map will tell */

redis_node_t *
ngx_idempotency_redis_moved(ngx_idempotency_redis_t *redis, ngx_str_t *text,
    ngx_uint_t ask)
{
    u_char        *p, *last, *colon;
    ngx_int_t      slot, port;
    ngx_str_t      host;
    redis_node_t  *node;

    if (!ask) {
        ngx_idempotency_redis_seek(redis, 1);
    }

    last = text->data + text->len;
    p = ngx_strlchr(text->data, last, ' ');
    host.data = p ? ngx_strlchr(++p, last, ' ') : NULL;

    if (host.data == NULL) {
        return NULL;
    }

    slot = ngx_atoi(p, host.data++ - p);

    for (colon = last - 1; colon > host.data && *colon != ':'; colon--) {
        /* void */
    }

    host.len = colon - host.data;
    port = ngx_atoi(colon + 1, last - colon - 1);

    if (slot < 0 || slot >= NGX_IDEMPOTENCY_REDIS_SLOTS) {
        return NULL;
    }

    node = node_found(redis, &host, port);

    if (node && !ask) {
        node->known = 1;
        redis->slots[slot] = node;
    }

    return node;
}


static void
cluster_map(redis_conn_t *conn, ngx_idempotency_redis_reply_t *reply)
{
    ngx_uint_t                i;
    ngx_idempotency_redis_t  *redis;

    redis = conn->redis;

    ngx_memzero(redis->slots, NGX_IDEMPOTENCY_REDIS_SLOTS
                              * sizeof(redis_node_t *));

    redis->maps++;

    for (i = 0; i < reply->n; i++) {
        cluster_range(conn, &reply->elts[i]);
    }

    ngx_idempotency_redis_conn_stop(conn, "it is asked no more");

    cluster_mapped(conn);
}


/* a range of slots: first, last, its master, and replicas */

static void
cluster_range(redis_conn_t *conn, ngx_idempotency_redis_reply_t *range)
{
    u_char                          text[NGX_SOCKADDR_STRLEN];
    int64_t                         i, first, last, port;
    ngx_str_t                       host;
    redis_node_t                   *node;
    ngx_idempotency_redis_reply_t  *master;

    if (range->type != NGX_IDEMPOTENCY_REDIS_ARRAY || range->n < 3) {
        return;
    }

    first = range->elts[0].integer;
    last = range->elts[1].integer;
    master = &range->elts[2];

    if (first < 0 || first > last || last >= NGX_IDEMPOTENCY_REDIS_SLOTS
        || master->type != NGX_IDEMPOTENCY_REDIS_ARRAY || master->n < 2)
    {
        return;
    }

    host = master->elts[0].str;
    port = master->elts[1].integer;

    if (master->elts[0].type != NGX_IDEMPOTENCY_REDIS_STRING
        && master->elts[0].type != NGX_IDEMPOTENCY_REDIS_NIL)
    {
        return;
    }

    /* no host: the server that we asked */

    if (host.len == 0) {
        host.data = text;
        host.len = ngx_sock_ntop(&conn->sockaddr.sockaddr, conn->peer.socklen,
                                 text, NGX_SOCKADDR_STRLEN, 0);
    }

    node = node_found(conn->redis, &host, port);

    if (node == NULL) {
        return;
    }

    if (node->named && master->n > 3) {
        cluster_address(node, &master->elts[3]);
    }

    node->known = 1;
    node->map = conn->redis->maps;

    for (i = first; i <= last; i++) {
        conn->redis->slots[i] = node;
    }
}


/* a server that announces a name reports its address, too */

static void
cluster_address(redis_node_t *node, ngx_idempotency_redis_reply_t *more)
{
    ngx_uint_t  i;

    if (more->type != NGX_IDEMPOTENCY_REDIS_ARRAY) {
        return;
    }

    for (i = 0; i + 1 < more->n; i += 2) {
        if (ngx_idempotency_resp_is(&more->elts[i].str, "ip")
            && more->elts[i + 1].type == NGX_IDEMPOTENCY_REDIS_STRING)
        {
            (void) node_set_address(node, &more->elts[i + 1].str);
            return;
        }
    }
}


/* after a new map: each server gets a connection, and calls that were not sent
   go where they belong now */

static void
cluster_mapped(redis_conn_t *discovery)
{
    redis_conn_t             *conn;
    redis_node_t             *node;
    ngx_idempotency_redis_t  *redis;

    redis = discovery->redis;

    node = NULL;

    while ((node = node_next(redis, node)) != NULL) {
        node->known = (node->map == redis->maps);

        conn = node->known ? ngx_idempotency_redis_node_conn(node, 0, 0) : NULL;

        if (conn) {
            ngx_idempotency_redis_conn_connect(conn);
        }
    }

    conn = NULL;

    while ((conn = ngx_idempotency_redis_conn_next(redis, conn)) != NULL) {

        if (conn->node->known || conn->state == redis_ready
            || conn->kind != &ngx_idempotency_redis_pipeline)
        {
            continue;
        }

        ngx_idempotency_redis_conn_stop(conn, "it has no slots");

        /* it is tried anew if it gets some again; home has no server */

        if (conn->node != redis->home) {
            conn->down = 0;
        }

        ngx_idempotency_redis_pipeline_leave(conn);
    }

    pubsub_ready(discovery);
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


/* subscribes at the server of the key */

static void
pubsub_place(ngx_idempotency_redis_t *redis, pubsub_channel_t *channel)
{
    redis_conn_t  *conn;
    redis_node_t  *node;

    node = ngx_idempotency_redis_node_of(redis, &channel->name.str);

    if (node->pubsub == NULL) {
        node->pubsub = ngx_idempotency_redis_conn_create(node, &pubsub_kind);
    }

    conn = node->pubsub;

    if (channel->conn != conn) {
        pubsub_leave(channel);
        channel->conn = conn;
        channel->subscribed = 0;

        if (conn) {
            conn->nchannels++;
        }
    }

    if (conn == NULL) {
        return;
    }

    if (channel->subscribed != conn->generation) {
        pubsub_send(conn, channel, 1);
    }

    ngx_idempotency_redis_conn_connect(conn);
}


static void
pubsub_leave(pubsub_channel_t *channel)
{
    redis_conn_t  *conn;

    conn = channel->conn;

    if (conn == NULL) {
        return;
    }

    pubsub_send(conn, channel, 0);
    conn->nchannels--;
}


static void
pubsub_send(redis_conn_t *conn, pubsub_channel_t *channel,
    ngx_uint_t subscribe)
{
    const char  *command;

    if (conn->state != redis_ready) {
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

        if (ngx_current_msec - channel->wanted < PUBSUB_WANTED) {
            continue;
        }

        pubsub_leave(channel);

        ngx_rbtree_delete(&redis->channels, node);
        redis->nchannels--;

        ngx_free(channel);
    }

    if (redis->nchannels) {
        ngx_add_timer(ev, PUBSUB_WANTED);
    }
}


/* NGX_DECLINED: this is an answer, perhaps to a subscription.  In a cluster the
   first words begin with an "s". */

static ngx_int_t
pubsub_push(redis_conn_t *conn, ngx_idempotency_redis_reply_t *reply)
{
    ngx_str_t         *word;
    redis_due_t       *due;
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

    if (ngx_idempotency_resp_in(word, "message")) {
        if (channel) {
            channel->handler(channel->data, &channel->name.str);
        }

        return NGX_OK;
    }

    if (ngx_idempotency_resp_in(word, "unsubscribe")) {

        /* when a slot moves, the server drops its subscriptions by itself */

        if (channel) {
            channel->subscribed = 0;
            ngx_idempotency_redis_seek(conn->redis, 1);
        }

        due = ngx_queue_data(ngx_queue_head(&conn->due), redis_due_t, queue);

        return (conn->ndue && due->data) ? NGX_DECLINED : NGX_OK;
    }

    return NGX_DECLINED;
}


static void
pubsub_answer(redis_conn_t *conn, void *data,
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
            channel->subscribed = conn->generation;
            channel->handler(channel->data, &channel->name.str);
        }

        return;
    }

    verdict = ngx_idempotency_redis_verdict(&reply->str);

    if (verdict.error == NGX_IDEMPOTENCY_REDIS_AWAY) {
        ngx_idempotency_redis_seek(conn->redis, 1);
        return;
    }

    ngx_idempotency_redis_warn(conn, NGX_IDEMPOTENCY_REDIS_WARN_SUBSCRIBE,
                               "lets nobody subscribe, who waits has to ask "
                               "again and again", &reply->str);
}


/* the connection, or the map of slots, is new: each channel goes to its
   server */

static void
pubsub_ready(redis_conn_t *conn)
{
    ngx_rbtree_t       *tree;
    ngx_rbtree_node_t  *node;

    tree = &conn->redis->channels;

    if (tree->root == tree->sentinel) {
        return;
    }

    for (node = ngx_rbtree_min(tree->root, tree->sentinel);
         node;
         node = ngx_rbtree_next(tree, node))
    {
        pubsub_place(conn->redis, (pubsub_channel_t *) node);
    }
}


static void
pubsub_lost(redis_conn_t *conn)
{
    if (ngx_idempotency_redis_conn_idle(conn) && conn->timer.timer_set) {
        ngx_del_timer(&conn->timer);
    }
}
