
/*
 * A cluster: keys have slots, and slots have servers.  The map of them is asked
 * for at the start, and whenever a server says that it is out of date, or says
 * nothing.  Until there is one, and where it has a hole, calls wait at "home",
 * a server without a place.
 */


#include "ngx_idempotency_redis_conn.h"


#define CLUSTER_SLOTS  16384
/* whoever is never told that a slot has moved asks all the same, each time that
   so many looks have passed */
#define CLUSTER_FRESH  6


typedef struct {
    ngx_idempotency_redis_node_t    *home;
    ngx_idempotency_redis_node_t    *slots[CLUSTER_SLOTS];
    /* for the map, each time another one: the nodes of the configuration, then
       those of the map */
    ngx_idempotency_redis_conn_t    *conn;
    ngx_uint_t                       turn;
} cluster_t;


static ngx_int_t cluster_init(ngx_idempotency_redis_t *redis);
static ngx_idempotency_redis_node_t *cluster_route(
    ngx_idempotency_redis_t *redis, ngx_str_t *key);
static ngx_uint_t cluster_slot(ngx_str_t *key);
static ngx_idempotency_redis_node_t *cluster_find(
    ngx_idempotency_redis_t *redis, uint64_t master);
static ngx_int_t cluster_after(ngx_idempotency_redis_t *redis,
    uint64_t *master, uint64_t *all);
static uint64_t cluster_id(ngx_idempotency_redis_node_t *node);
static ngx_idempotency_redis_node_t *cluster_moved(
    ngx_idempotency_redis_t *redis, ngx_str_t *text, ngx_uint_t ask);
static void cluster_doubt(ngx_idempotency_redis_node_t *node,
    ngx_uint_t news);
static void cluster_tick(ngx_idempotency_redis_t *redis);
static void cluster_exit(ngx_idempotency_redis_t *redis);
static void cluster_next(ngx_idempotency_redis_t *redis);
static void cluster_ready(ngx_idempotency_redis_conn_t *conn);
static void cluster_said(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static void cluster_map(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_reply_t *reply);
static void cluster_range(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_reply_t *range);
static void cluster_address(ngx_idempotency_redis_node_t *node,
    ngx_idempotency_redis_reply_t *more);
static ngx_idempotency_redis_node_t *cluster_node(
    ngx_idempotency_redis_t *redis, ngx_str_t *host, ngx_uint_t port);
static void cluster_mapped(ngx_idempotency_redis_t *redis);
static void cluster_leave(ngx_idempotency_redis_node_t *node);
static void cluster_lost(ngx_idempotency_redis_conn_t *conn);
static ngx_uint_t cluster_idle(ngx_idempotency_redis_conn_t *conn);


ngx_idempotency_redis_topology_t  ngx_idempotency_redis_cluster = {
    cluster_init,
    cluster_route,
    cluster_find,
    cluster_after,
    cluster_moved,
    cluster_doubt,
    cluster_tick,
    cluster_exit
};


static ngx_idempotency_redis_kind_t  cluster_kind = {
    1,
    cluster_ready,
    cluster_lost,
    NULL,
    cluster_idle,
    NULL
};


static ngx_int_t
cluster_init(ngx_idempotency_redis_t *redis)
{
    ngx_uint_t                       i;
    cluster_t                       *cluster;
    ngx_idempotency_redis_node_t    *node;
    ngx_idempotency_redis_server_t  *server;

    cluster = ngx_calloc(sizeof(cluster_t), redis->log);
    if (cluster == NULL) {
        return NGX_ERROR;
    }

    redis->topology_data = cluster;

    cluster->home = ngx_idempotency_redis_node_create(redis, NULL);
    if (cluster->home == NULL) {
        return NGX_ERROR;
    }

    ngx_str_set(&cluster->home->name, "the cluster");

    server = redis->conf.servers.elts;

    for (i = 0; i < redis->conf.servers.nelts; i++) {
        node = ngx_idempotency_redis_node_create(redis, &server[i]);

        if (node == NULL) {
            return NGX_ERROR;
        }

        node->seed = 1;
    }

    cluster->conn = ngx_idempotency_redis_conn_create(cluster->home,
                                                      &cluster_kind);
    if (cluster->conn == NULL) {
        return NGX_ERROR;
    }

    cluster->turn = ngx_random() % redis->conf.servers.nelts;

    cluster_next(redis);
    ngx_idempotency_redis_conn_connect(cluster->conn);

    return ngx_idempotency_redis_node_connect(cluster->home);
}


static ngx_idempotency_redis_node_t *
cluster_route(ngx_idempotency_redis_t *redis, ngx_str_t *key)
{
    cluster_t                     *cluster;
    ngx_idempotency_redis_node_t  *node;

    cluster = redis->topology_data;
    node = cluster->slots[cluster_slot(key)];

    return node ? node : cluster->home;
}


/* CRC-16/XMODEM of what stands between the first braces, if anything does */

static ngx_uint_t
cluster_slot(ngx_str_t *key)
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

    return crc % CLUSTER_SLOTS;
}


static ngx_idempotency_redis_node_t *
cluster_find(ngx_idempotency_redis_t *redis, uint64_t master)
{
    cluster_t                     *cluster;
    ngx_queue_t                   *q;
    ngx_idempotency_redis_node_t  *node;

    for (q = ngx_queue_head(&redis->nodes);
         q != ngx_queue_sentinel(&redis->nodes);
         q = ngx_queue_next(q))
    {
        node = ngx_queue_data(q, ngx_idempotency_redis_node_t, queue);

        if (node->known && cluster_id(node) == master) {
            return node;
        }
    }

    cluster = redis->topology_data;

    return cluster->home;
}


/* those with slots, in the order of what they are found by: whatever slots */

static ngx_int_t
cluster_after(ngx_idempotency_redis_t *redis, uint64_t *master, uint64_t *all)
{
    uint64_t                       id, next;
    cluster_t                     *cluster;
    ngx_uint_t                     i;
    ngx_queue_t                   *q;
    ngx_idempotency_redis_node_t  *node;

    cluster = redis->topology_data;

    if (*master == 0) {
        /* it may have changed, and the end sees that */
        cluster_doubt(cluster->home, 1);
    }

    for (i = 0; i < CLUSTER_SLOTS; i++) {
        if (cluster->slots[i] == NULL) {
            return NGX_ERROR;
        }
    }

    next = 0;
    *all = 0;

    for (q = ngx_queue_head(&redis->nodes);
         q != ngx_queue_sentinel(&redis->nodes);
         q = ngx_queue_next(q))
    {
        node = ngx_queue_data(q, ngx_idempotency_redis_node_t, queue);

        if (!node->known) {
            continue;
        }

        for (i = 0; i < CLUSTER_SLOTS && cluster->slots[i] != node; i++) {
            /* void */
        }

        if (i == CLUSTER_SLOTS) {
            continue;
        }

        id = cluster_id(node);
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


/* the same in each worker, and not 0: FNV-1a of its name */

static uint64_t
cluster_id(ngx_idempotency_redis_node_t *node)
{
    size_t    i;
    uint64_t  id;

    id = 0xcbf29ce484222325;

    for (i = 0; i < node->name.len; i++) {
        id = (id ^ node->name.data[i]) * 0x100000001b3;
    }

    return id | 1;
}


/* "MOVED 3999 127.0.0.1:6381"; without an address, it is that of whom we asked:
   the map will tell */

static ngx_idempotency_redis_node_t *
cluster_moved(ngx_idempotency_redis_t *redis, ngx_str_t *text, ngx_uint_t ask)
{
    u_char                        *p, *last, *colon;
    ngx_int_t                      slot, port;
    ngx_str_t                      host;
    cluster_t                     *cluster;
    ngx_idempotency_redis_node_t  *node;

    cluster = redis->topology_data;

    if (!ask) {
        cluster_doubt(cluster->home, 1);
    }

    last = text->data + text->len;
    p = ngx_strlchr(text->data, last, ' ');

    if (p == NULL) {
        return NULL;
    }

    host.data = ngx_strlchr(++p, last, ' ');

    if (host.data == NULL) {
        return NULL;
    }

    slot = ngx_atoi(p, host.data++ - p);

    for (colon = last - 1; colon > host.data && *colon != ':'; colon--) {
        /* void */
    }

    host.len = colon - host.data;
    port = ngx_atoi(colon + 1, last - colon - 1);

    if (slot < 0 || slot >= CLUSTER_SLOTS || port < 1 || port > 65535
        || host.len == 0)
    {
        return NULL;
    }

    node = cluster_node(redis, &host, port);

    if (node && !ask) {
        node->known = 1;
        cluster->slots[slot] = node;
    }

    return node;
}


static void
cluster_doubt(ngx_idempotency_redis_node_t *node, ngx_uint_t news)
{
    cluster_t  *cluster;

    cluster = node->redis->topology_data;

    if (cluster->conn) {
        ngx_idempotency_redis_seek(cluster->conn, news,
                                   "it is asked for the map");
    }
}


static void
cluster_exit(ngx_idempotency_redis_t *redis)
{
    cluster_t  *cluster;

    cluster = redis->topology_data;

    if (cluster) {
        ngx_idempotency_redis_conn_exit(cluster->conn);
    }
}


/* of all that may know it */

static void
cluster_next(ngx_idempotency_redis_t *redis)
{
    cluster_t                     *cluster;
    ngx_uint_t                     n, turn;
    ngx_queue_t                   *q;
    ngx_idempotency_redis_node_t  *node;

    cluster = redis->topology_data;
    turn = ++cluster->turn;

    do {
        n = 0;

        for (q = ngx_queue_head(&redis->nodes);
             q != ngx_queue_sentinel(&redis->nodes);
             q = ngx_queue_next(q))
        {
            node = ngx_queue_data(q, ngx_idempotency_redis_node_t, queue);

            if ((node->seed || node->known) && n++ == turn) {
                cluster->turn = turn;
                cluster->conn->node = node;
                return;
            }
        }

        turn %= n;

    } while (n);
}


static void
cluster_ready(ngx_idempotency_redis_conn_t *conn)
{
    ngx_idempotency_resp_say(&conn->out, "CLUSTER", "SLOTS", NULL);
    (void) ngx_idempotency_redis_conn_expect(conn, cluster_said, NULL);

    ngx_idempotency_redis_conn_write(conn);
}


static void
cluster_said(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply)
{
    if (ngx_idempotency_redis_sought(conn, reply, 1,
                                     "it does not know the slots", NULL)
        != NGX_OK)
    {
        return;
    }

    cluster_map(conn, reply);

    ngx_idempotency_redis_conn_stop(conn, NGX_IDEMPOTENCY_REDIS_CLOSED,
                                    "it is asked no more");

    cluster_mapped(conn->redis);
}


static void
cluster_map(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_reply_t *reply)
{
    ngx_uint_t                     i;
    ngx_queue_t                   *q;
    cluster_t                     *cluster;
    ngx_idempotency_redis_t       *redis;
    ngx_idempotency_redis_node_t  *node;

    redis = conn->redis;
    cluster = redis->topology_data;

    ngx_memzero(cluster->slots, sizeof(cluster->slots));

    for (q = ngx_queue_head(&redis->nodes);
         q != ngx_queue_sentinel(&redis->nodes);
         q = ngx_queue_next(q))
    {
        node = ngx_queue_data(q, ngx_idempotency_redis_node_t, queue);
        node->known = 0;
    }

    for (i = 0; i < reply->n; i++) {
        cluster_range(conn, &reply->elts[i]);
    }
}


/* first, last, its master, and others */

static void
cluster_range(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_reply_t *range)
{
    int64_t                         i, first, last, port;
    u_char                          text[NGX_SOCKADDR_STRLEN];
    ngx_str_t                       host;
    cluster_t                      *cluster;
    ngx_idempotency_redis_node_t   *node;
    ngx_idempotency_redis_reply_t  *master;

    if (range->type != NGX_IDEMPOTENCY_REDIS_ARRAY || range->n < 3) {
        return;
    }

    first = range->elts[0].integer;
    last = range->elts[1].integer;
    master = &range->elts[2];

    if (first < 0 || first > last || last >= CLUSTER_SLOTS
        || master->type != NGX_IDEMPOTENCY_REDIS_ARRAY || master->n < 2)
    {
        return;
    }

    host = master->elts[0].str;
    port = master->elts[1].integer;

    if (port < 1 || port > 65535) {
        return;
    }

    /* where it was asked */

    if (host.len == 0) {
        host.data = text;
        host.len = ngx_sock_ntop(&conn->sockaddr.sockaddr, conn->socklen,
                                 text, NGX_SOCKADDR_STRLEN, 0);
    }

    node = cluster_node(conn->redis, &host, port);

    if (node == NULL) {
        return;
    }

    if (node->told && master->n > 3) {
        cluster_address(node, &master->elts[3]);
    }

    node->known = 1;
    cluster = conn->redis->topology_data;

    for (i = first; i <= last; i++) {
        cluster->slots[i] = node;
    }
}


/* who announces a name, tells its address beside it */

static void
cluster_address(ngx_idempotency_redis_node_t *node,
    ngx_idempotency_redis_reply_t *more)
{
    ngx_uint_t   i;
    ngx_str_t   *name;

    if (more->type != NGX_IDEMPOTENCY_REDIS_ARRAY) {
        return;
    }

    for (i = 0; i + 1 < more->n; i += 2) {
        name = &more->elts[i].str;

        if (name->len == 2 && ngx_strncmp(name->data, "ip", 2) == 0) {
            (void) ngx_idempotency_redis_node_address(node,
                                                      &more->elts[i + 1].str);
            return;
        }
    }
}


static ngx_idempotency_redis_node_t *
cluster_node(ngx_idempotency_redis_t *redis, ngx_str_t *host, ngx_uint_t port)
{
    ngx_queue_t                   *q;
    ngx_idempotency_redis_node_t  *node;

    for (q = ngx_queue_head(&redis->nodes);
         q != ngx_queue_sentinel(&redis->nodes);
         q = ngx_queue_next(q))
    {
        node = ngx_queue_data(q, ngx_idempotency_redis_node_t, queue);

        if (node->port == port && node->host.len == host->len
            && ngx_strncmp(node->host.data, host->data, host->len) == 0)
        {
            return node;
        }
    }

    return ngx_idempotency_redis_node_told(redis, host, port);
}


/* what waited where nothing is goes on; each server is greeted */

static void
cluster_mapped(ngx_idempotency_redis_t *redis)
{
    ngx_queue_t                   *q;
    ngx_idempotency_redis_conn_t  *conn;
    ngx_idempotency_redis_node_t  *node;

    for (q = ngx_queue_head(&redis->nodes);
         q != ngx_queue_sentinel(&redis->nodes);
         q = ngx_queue_next(q))
    {
        node = ngx_queue_data(q, ngx_idempotency_redis_node_t, queue);

        if (!node->known) {
            cluster_leave(node);
            continue;
        }

        conn = ngx_idempotency_redis_node_lane(node, 0, 0);

        if (conn) {
            ngx_idempotency_redis_conn_connect(conn);
        }
    }

    ngx_idempotency_redis_watch_route(redis);
}


/* those that are on their way may still be answered */

static void
cluster_leave(ngx_idempotency_redis_node_t *node)
{
    ngx_uint_t                     i, n;
    ngx_idempotency_redis_conn_t  *conn;

    n = 2 * node->redis->conf.connections;

    for (i = 0; i < n; i++) {
        conn = node->conns[i];

        if (conn && conn->state != ngx_idempotency_redis_ready) {
            ngx_idempotency_redis_conn_stop(conn,
                                            NGX_IDEMPOTENCY_REDIS_AWAY,
                                            "it has no slots");
            ngx_idempotency_redis_lane_leave(conn);
        }
    }
}


/* what has no slots any more goes when nothing is due there */

static void
cluster_tick(ngx_idempotency_redis_t *redis)
{
    ngx_uint_t                     i, n;
    ngx_queue_t                   *q, *next;
    cluster_t                     *cluster;
    ngx_idempotency_redis_node_t  *node;

    cluster = redis->topology_data;
    n = 2 * redis->conf.connections;

    if (redis->ticks % CLUSTER_FRESH == 0) {
        cluster_doubt(cluster->home, 0);
    }

    for (q = ngx_queue_head(&redis->nodes);
         q != ngx_queue_sentinel(&redis->nodes);
         q = next)
    {
        next = ngx_queue_next(q);
        node = ngx_queue_data(q, ngx_idempotency_redis_node_t, queue);

        if (node->known || node->seed || node == cluster->home
            || node == cluster->conn->node)
        {
            continue;
        }

        for (i = 0; i < n; i++) {
            if (node->conns[i]
                && !node->conns[i]->kind->idle(node->conns[i]))
            {
                break;
            }
        }

        if (i == n) {
            ngx_idempotency_redis_node_destroy(node);
        }
    }
}


static void
cluster_lost(ngx_idempotency_redis_conn_t *conn)
{
    cluster_next(conn->redis);
}


static ngx_uint_t
cluster_idle(ngx_idempotency_redis_conn_t *conn)
{
    return 1;
}
