
/*
 * Which servers there are, and which of them a call goes to.
 *
 * A node is a server: its name, its addresses, and the connections to it.
 * "standalone" has one.  "sentinel" asks sentinels which one is the master, and
 * listens to one of them, as it tells when that changes.  "cluster" asks for
 * the map of slots at the start, and whenever a server says that the map is
 * out of date, or says nothing; until there is a map, and where it has a hole,
 * calls wait at "home", a node without an address.
 *
 * Discovery is the connection to a sentinel, or to any node of a cluster: one
 * that does not know is left, and another one is asked.
 */


#include "ngx_idempotency_redis_conn.h"


/* they are not asked more often, in msec */

#define DISCOVERY_PAUSE  200

/* whoever is never told that a slot has moved asks all the same, each time that
   so many looks have passed */
#define CLUSTER_FRESH  6


typedef struct {
    ngx_idempotency_redis_node_t    *master;
    /* in the order of the configuration, and whose turn it is */
    ngx_idempotency_redis_node_t   **nodes;
    ngx_uint_t                       n;
    ngx_uint_t                       turn;
} sentinel_t;


typedef struct {
    ngx_idempotency_redis_node_t    *home;
    ngx_idempotency_redis_node_t    *slots[NGX_IDEMPOTENCY_REDIS_SLOTS];
    /* who is asked for the map, each time another one: the nodes of the
       configuration, then those of the map */
    ngx_uint_t                       turn;
} cluster_t;


static ngx_idempotency_redis_node_t *node_create(ngx_idempotency_redis_t *redis,
    ngx_idempotency_redis_server_t *server);
static ngx_idempotency_redis_node_t *node_found(ngx_idempotency_redis_t *redis,
    ngx_str_t *host, in_port_t port);
static ngx_idempotency_redis_node_t *node_alloc(ngx_idempotency_redis_t *redis);
static ngx_int_t node_set_name(ngx_idempotency_redis_node_t *node,
    ngx_str_t *host, in_port_t port);
static ngx_int_t node_set_address(ngx_idempotency_redis_node_t *node,
    ngx_str_t *text);
static ngx_int_t node_connect(ngx_idempotency_redis_node_t *node);
static void node_destroy(ngx_idempotency_redis_node_t *node);
static void node_graves(ngx_event_t *ev);
static ngx_int_t standalone_init(ngx_idempotency_redis_t *redis);
static ngx_idempotency_redis_node_t *standalone_route(
    ngx_idempotency_redis_t *redis, ngx_str_t *key);
static ngx_int_t discovery_done(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_reply_t *reply, ngx_uint_t n, char *why,
    ngx_str_t *what);
static ngx_int_t sentinel_init(ngx_idempotency_redis_t *redis);
static ngx_idempotency_redis_node_t *sentinel_route(
    ngx_idempotency_redis_t *redis, ngx_str_t *key);
static void sentinel_tick(ngx_idempotency_redis_t *redis);
static void sentinel_ready(ngx_idempotency_redis_conn_t *conn);
static void sentinel_said(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static void sentinel_listens(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static ngx_int_t sentinel_push(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_reply_t *reply);
static void sentinel_lost(ngx_idempotency_redis_conn_t *conn);
static void sentinel_master(ngx_idempotency_redis_t *redis, ngx_str_t *host,
    ngx_str_t *port);
static ngx_int_t cluster_init(ngx_idempotency_redis_t *redis);
static ngx_idempotency_redis_node_t *cluster_route(
    ngx_idempotency_redis_t *redis, ngx_str_t *key);
static ngx_idempotency_redis_node_t *cluster_find(
    ngx_idempotency_redis_t *redis, uint64_t master);
static ngx_int_t cluster_after(ngx_idempotency_redis_t *redis, uint64_t *master,
    uint64_t *all);
static uint64_t cluster_id(ngx_idempotency_redis_node_t *node);
static ngx_idempotency_redis_node_t *cluster_moved(
    ngx_idempotency_redis_t *redis, ngx_str_t *text, ngx_uint_t ask);
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
static void cluster_tick(ngx_idempotency_redis_t *redis);
static void cluster_lost(ngx_idempotency_redis_conn_t *conn);
static ngx_uint_t discovery_idle(ngx_idempotency_redis_conn_t *conn);


static ngx_idempotency_redis_topology_t  standalone_topology = {
    standalone_init,
    standalone_route,
    NULL,
    NULL,
    NULL,
    NULL
};


static ngx_idempotency_redis_topology_t  sentinel_topology = {
    sentinel_init,
    sentinel_route,
    NULL,
    NULL,
    NULL,
    sentinel_tick
};


static ngx_idempotency_redis_kind_t  sentinel_kind = {
    1,
    sentinel_ready,
    sentinel_lost,
    sentinel_push,
    discovery_idle,
    NULL
};


static ngx_idempotency_redis_topology_t  cluster_topology = {
    cluster_init,
    cluster_route,
    cluster_find,
    cluster_after,
    cluster_moved,
    cluster_tick
};


static ngx_idempotency_redis_kind_t  cluster_kind = {
    1,
    cluster_ready,
    cluster_lost,
    NULL,
    discovery_idle,
    NULL
};


/* in the order of ngx_idempotency_redis_mode_e */

ngx_idempotency_redis_topology_t  *ngx_idempotency_redis_topologies[] = {
    &standalone_topology,
    &sentinel_topology,
    &cluster_topology
};


static ngx_idempotency_redis_node_t *
node_create(ngx_idempotency_redis_t *redis,
    ngx_idempotency_redis_server_t *server)
{
    ngx_idempotency_redis_node_t  *node;

    node = node_alloc(redis);
    if (node == NULL || server == NULL) {
        return node;
    }

    node->name = server->url.url;
    node->addrs = server->url.addrs;
    node->naddrs = server->url.naddrs;

    if (server->url.family != AF_UNIX) {
        node->host = server->url.host;
        node->port = server->url.port;
    }

    return node;
}


static ngx_idempotency_redis_node_t *
node_found(ngx_idempotency_redis_t *redis, ngx_str_t *host, in_port_t port)
{
    ngx_idempotency_redis_node_t  *node;

    node = node_alloc(redis);

    if (node
        && node_set_name(node, host, port) != NGX_OK)
    {
        node_destroy(node);
        return NULL;
    }

    return node;
}


static ngx_idempotency_redis_node_t *
node_alloc(ngx_idempotency_redis_t *redis)
{
    ngx_uint_t                     n;
    ngx_idempotency_redis_node_t  *node;

    n = 2 * redis->conf.connections;

    node = ngx_calloc(sizeof(ngx_idempotency_redis_node_t)
                      + n * sizeof(ngx_idempotency_redis_conn_t *),
                      ngx_cycle->log);
    if (node == NULL) {
        return NULL;
    }

    node->redis = redis;
    node->conns = (ngx_idempotency_redis_conn_t **) (node + 1);

    ngx_str_set(&node->name, "the master");

    ngx_queue_insert_tail(&redis->nodes, &node->queue);

    return node;
}


/* it is at this place from now on */

static ngx_int_t
node_set_name(ngx_idempotency_redis_node_t *node, ngx_str_t *host,
    in_port_t port)
{
    u_char  *p;
    size_t   size;

    size = 2 * host->len + sizeof("[]:65535");

    p = ngx_alloc(size, ngx_cycle->log);
    if (p == NULL) {
        return NGX_ERROR;
    }

    if (node->told) {
        ngx_free(node->told);
    }

    node->told = p;

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

    return node_set_address(node, host);
}


/* if it is one: it takes a pool to tell */

static ngx_int_t
node_set_address(ngx_idempotency_redis_node_t *node, ngx_str_t *text)
{
    ngx_addr_t   addr;
    ngx_pool_t  *pool;

    pool = ngx_create_pool(512, ngx_cycle->log);
    if (pool == NULL) {
        return NGX_ERROR;
    }

    if (ngx_parse_addr(pool, &addr, text->data, text->len) == NGX_OK) {
        ngx_memcpy(&node->sockaddr, addr.sockaddr, addr.socklen);
        ngx_inet_set_port(&node->sockaddr.sockaddr, node->port);

        node->addr.sockaddr = &node->sockaddr.sockaddr;
        node->addr.socklen = addr.socklen;
        node->addrs = &node->addr;
        node->naddrs = 1;
    }

    ngx_destroy_pool(pool);

    return NGX_OK;
}


ngx_idempotency_redis_node_t *
ngx_idempotency_redis_node_next(ngx_idempotency_redis_t *redis,
    ngx_idempotency_redis_node_t *node)
{
    ngx_queue_t  *q;

    q = node ? ngx_queue_next(&node->queue) : ngx_queue_head(&redis->nodes);

    return (q == ngx_queue_sentinel(&redis->nodes))
           ? NULL : ngx_queue_data(q, ngx_idempotency_redis_node_t, queue);
}


ngx_idempotency_redis_conn_t *
ngx_idempotency_redis_node_conn(ngx_idempotency_redis_node_t *node,
    ngx_uint_t n, ngx_uint_t durable)
{
    ngx_uint_t                     i;
    ngx_idempotency_redis_conn_t  *conn;
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

    conn->n = i;
    conn->info = (i == 0 && ngx_worker == 0);
    conn->durable = durable;

    ngx_idempotency_redis_pipeline_init(conn);

    node->conns[i] = conn;

    return conn;
}


static ngx_int_t
node_connect(ngx_idempotency_redis_node_t *node)
{
    ngx_uint_t                     i, n, durable;
    ngx_idempotency_redis_t       *redis;
    ngx_idempotency_redis_conn_t  *conn;

    redis = node->redis;
    n = redis->conf.connections;

    for (durable = 0; durable < 2; durable++) {

        for (i = 0; i < n; i++) {
            conn = ngx_idempotency_redis_node_conn(node, i, durable);

            if (conn == NULL) {
                return NGX_ERROR;
            }

            if (redis->first == NULL) {
                redis->first = conn;
            }

            ngx_idempotency_redis_conn_connect(conn);
        }
    }

    return NGX_OK;
}


/* what waits for it goes to others; what was sent nobody will know */

static void
node_destroy(ngx_idempotency_redis_node_t *node)
{
    ngx_uint_t                     i, n;
    ngx_idempotency_redis_conn_t  *conn;

    ngx_queue_remove(&node->queue);

    n = 2 * node->redis->conf.connections;

    for (i = 0; i < n; i++) {
        conn = node->conns[i];

        if (conn) {
            ngx_idempotency_redis_conn_destroy(conn);
            ngx_idempotency_redis_pipeline_leave(conn);
        }
    }

    if (node->pubsub) {
        ngx_idempotency_redis_conn_destroy(node->pubsub);
        ngx_idempotency_redis_pubsub_leave(node->pubsub);
    }

    /* who comes back from a handler may still look at it */

    ngx_queue_insert_tail(&node->redis->graves, &node->queue);

    if (!node->redis->bury.timer_set) {
        node->redis->bury.handler = node_graves;
        ngx_add_timer(&node->redis->bury, 1);
    }
}


static void
node_graves(ngx_event_t *ev)
{
    ngx_uint_t                     i, n;
    ngx_queue_t                   *q;
    ngx_idempotency_redis_t       *redis;
    ngx_idempotency_redis_node_t  *node;

    redis = ev->data;
    n = 2 * redis->conf.connections;

    while (!ngx_queue_empty(&redis->graves)) {
        q = ngx_queue_head(&redis->graves);
        node = ngx_queue_data(q, ngx_idempotency_redis_node_t, queue);

        ngx_queue_remove(q);

        for (i = 0; i < n; i++) {
            ngx_idempotency_redis_conn_free(node->conns[i]);
        }

        ngx_idempotency_redis_conn_free(node->pubsub);

        if (node->told) {
            ngx_free(node->told);
        }

        ngx_free(node);
    }
}


static ngx_int_t
standalone_init(ngx_idempotency_redis_t *redis)
{
    ngx_idempotency_redis_node_t  *node;

    node = node_create(redis, redis->conf.servers.elts);
    if (node == NULL) {
        return NGX_ERROR;
    }

    node->known = 1;

    return node_connect(node);
}


static ngx_idempotency_redis_node_t *
standalone_route(ngx_idempotency_redis_t *redis, ngx_str_t *key)
{
    return ngx_idempotency_redis_node_next(redis, NULL);
}


void
ngx_idempotency_redis_doubt(ngx_idempotency_redis_t *redis, ngx_uint_t news)
{
    ngx_msec_t                     passed, pause;
    ngx_idempotency_redis_conn_t  *conn;

    conn = redis->discovery;

    if (conn == NULL) {
        return;
    }

    passed = ngx_current_msec - conn->begun;
    pause = (passed < DISCOVERY_PAUSE) ? DISCOVERY_PAUSE - passed : 1;

    if (conn->timer.timer_set
        && conn->state == ngx_idempotency_redis_closed)
    {
        if (news && (ngx_msec_int_t) (conn->timer.timer.key - ngx_current_msec)
                    > (ngx_msec_int_t) pause)
        {
            ngx_del_timer(&conn->timer);
            ngx_add_timer(&conn->timer, pause);
        }

        return;
    }

    /* it is on its way, or has been asked: it will say so soon, or be lost */

    if (conn->state != ngx_idempotency_redis_closed
        && (conn->state != ngx_idempotency_redis_ready || conn->expected))
    {
        return;
    }

    ngx_idempotency_redis_conn_restart(conn, pause, "another one is asked");
}


static ngx_uint_t
discovery_idle(ngx_idempotency_redis_conn_t *conn)
{
    return 1;
}


static ngx_int_t
discovery_done(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_reply_t *reply, ngx_uint_t n, char *why,
    ngx_str_t *what)
{
    ngx_idempotency_redis_conn_expected(conn);

    if (reply == NULL) {
        return NGX_DECLINED;
    }

    if (reply->type == NGX_IDEMPOTENCY_REDIS_ERROR) {
        ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_DENIED,
                                        "it says:", &reply->str);
        return NGX_DECLINED;
    }

    if (reply->type != NGX_IDEMPOTENCY_REDIS_ARRAY || reply->n < n) {
        ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_CONNECT,
                                        why, what);
        return NGX_DECLINED;
    }

    ngx_idempotency_redis_conn_back(conn);

    return NGX_OK;
}


static ngx_int_t
sentinel_init(ngx_idempotency_redis_t *redis)
{
    ngx_uint_t                       i, n;
    sentinel_t                      *sentinel;
    ngx_idempotency_redis_server_t  *server;

    n = redis->conf.servers.nelts;
    server = redis->conf.servers.elts;

    sentinel = ngx_calloc(sizeof(sentinel_t)
                          + n * sizeof(ngx_idempotency_redis_node_t *),
                          redis->log);
    if (sentinel == NULL) {
        return NGX_ERROR;
    }

    redis->topology_data = sentinel;

    sentinel->nodes = (ngx_idempotency_redis_node_t **) (sentinel + 1);
    sentinel->n = n;
    sentinel->turn = ngx_random() % n;

    for (i = 0; i < n; i++) {
        sentinel->nodes[i] = node_create(redis, &server[i]);
        if (sentinel->nodes[i] == NULL) {
            return NGX_ERROR;
        }
    }

    sentinel->master = node_create(redis, NULL);

    if (sentinel->master == NULL) {
        return NGX_ERROR;
    }

    sentinel->master->known = 1;

    redis->discovery = ngx_idempotency_redis_conn_create(
                                            sentinel->nodes[sentinel->turn],
                                            &sentinel_kind);
    if (redis->discovery == NULL) {
        return NGX_ERROR;
    }

    ngx_idempotency_redis_conn_connect(redis->discovery);

    return node_connect(sentinel->master);
}


static ngx_idempotency_redis_node_t *
sentinel_route(ngx_idempotency_redis_t *redis, ngx_str_t *key)
{
    sentinel_t  *sentinel;

    sentinel = redis->topology_data;

    return sentinel->master;
}


/* it may be gone without a word */

static void
sentinel_tick(ngx_idempotency_redis_t *redis)
{
    ngx_idempotency_redis_conn_t  *conn;

    conn = redis->discovery;

    if (conn->state == ngx_idempotency_redis_ready && !conn->expected) {
        ngx_idempotency_resp_say(&conn->out, "PING", NULL);
        (void) ngx_idempotency_redis_conn_expect(conn, sentinel_listens, NULL);
        ngx_idempotency_redis_conn_write(conn);
    }
}


static void
sentinel_ready(ngx_idempotency_redis_conn_t *conn)
{
    ngx_idempotency_resp_out_t  *out;

    out = &conn->out;

    ngx_idempotency_resp_command(out, 3);
    ngx_idempotency_resp_word(out, (u_char *) "SENTINEL", 8);
    ngx_idempotency_resp_word(out, (u_char *) "GET-MASTER-ADDR-BY-NAME", 23);
    ngx_idempotency_resp_str(out, &conn->redis->conf.master);

    (void) ngx_idempotency_redis_conn_expect(conn, sentinel_said, NULL);

    ngx_idempotency_resp_say(out, "SUBSCRIBE", "+switch-master", NULL);

    (void) ngx_idempotency_redis_conn_expect(conn, sentinel_listens, NULL);

    ngx_idempotency_redis_conn_write(conn);
}


static void
sentinel_said(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply)
{
    if (discovery_done(conn, reply, 2, "it does not know the master",
                       &conn->redis->conf.master)
        != NGX_OK)
    {
        return;
    }

    sentinel_master(conn->redis, &reply->elts[0].str, &reply->elts[1].str);
}


static void
sentinel_listens(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply)
{
    ngx_idempotency_redis_conn_expected(conn);
}


/* "NAME OLD-HOST OLD-PORT NEW-HOST NEW-PORT" */

static ngx_int_t
sentinel_push(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_reply_t *reply)
{
    u_char      *p, *last;
    ngx_str_t    words[5], *name;
    ngx_uint_t   n;

    if (reply->type != NGX_IDEMPOTENCY_REDIS_ARRAY || reply->n != 3
        || reply->elts[0].str.len != 7
        || ngx_strncmp(reply->elts[0].str.data, "message", 7) != 0)
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
sentinel_lost(ngx_idempotency_redis_conn_t *conn)
{
    sentinel_t  *sentinel;

    sentinel = conn->redis->topology_data;

    sentinel->turn = (sentinel->turn + 1) % sentinel->n;
    conn->node = sentinel->nodes[sentinel->turn];
}


/* nobody's exit waits for it; who needs it then has it made anew */

static void
sentinel_master(ngx_idempotency_redis_t *redis, ngx_str_t *host,
    ngx_str_t *port)
{
    ngx_int_t                      i, n;
    sentinel_t                    *sentinel;
    ngx_idempotency_redis_node_t  *node;

    sentinel = redis->topology_data;
    node = sentinel->master;

    n = ngx_atoi(port->data, port->len);

    if (n < 1 || n > 65535 || host->len == 0
        || (node->port == n && node->host.len == host->len
            && ngx_strncmp(node->host.data, host->data, host->len) == 0))
    {
        return;
    }

    if (node_set_name(node, host, n) != NGX_OK) {
        return;
    }

    ngx_log_error(NGX_LOG_NOTICE, redis->log, 0,
                  "idempotency_redis \"%V\": the master \"%V\" is %V",
                  &redis->conf.name, &redis->conf.master, &node->name);

    node->failing = 0;
    node->missing = 0;
    node->offset = 0;
    node->well = 0;

    n = 2 * redis->conf.connections;

    for (i = 0; i < n; i++) {
        if (node->conns[i]) {
            ngx_idempotency_redis_conn_restart(node->conns[i], 1,
                                               "the master is another one");
        }
    }

    if (node->pubsub) {
        ngx_idempotency_redis_conn_restart(node->pubsub, 1,
                                           "the master is another one");
    }
}


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

    cluster->home = node_create(redis, NULL);
    if (cluster->home == NULL) {
        return NGX_ERROR;
    }

    ngx_str_set(&cluster->home->name, "the cluster");

    server = redis->conf.servers.elts;

    for (i = 0; i < redis->conf.servers.nelts; i++) {
        node = node_create(redis, &server[i]);

        if (node == NULL) {
            return NGX_ERROR;
        }

        node->seed = 1;
    }

    redis->discovery = ngx_idempotency_redis_conn_create(cluster->home,
                                                         &cluster_kind);
    if (redis->discovery == NULL) {
        return NGX_ERROR;
    }

    cluster->turn = ngx_random() % redis->conf.servers.nelts;

    cluster_next(redis);
    ngx_idempotency_redis_conn_connect(redis->discovery);

    return node_connect(cluster->home);
}


static ngx_idempotency_redis_node_t *
cluster_route(ngx_idempotency_redis_t *redis, ngx_str_t *key)
{
    cluster_t                     *cluster;
    ngx_idempotency_redis_node_t  *node;

    cluster = redis->topology_data;
    node = cluster->slots[ngx_idempotency_redis_slot(key)];

    return node ? node : cluster->home;
}


/* CRC-16/XMODEM of what stands between the first braces, if anything does */

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


static ngx_idempotency_redis_node_t *
cluster_find(ngx_idempotency_redis_t *redis, uint64_t master)
{
    cluster_t                     *cluster;
    ngx_idempotency_redis_node_t  *node;

    node = NULL;

    while ((node = ngx_idempotency_redis_node_next(redis, node)) != NULL) {
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
    ngx_idempotency_redis_node_t  *node;

    cluster = redis->topology_data;

    if (*master == 0) {
        /* it may have changed, and the end sees that */
        ngx_idempotency_redis_doubt(redis, 1);
    }

    for (i = 0; i < NGX_IDEMPOTENCY_REDIS_SLOTS; i++) {
        if (cluster->slots[i] == NULL) {
            return NGX_ERROR;
        }
    }

    next = 0;
    *all = 0;
    node = NULL;

    while ((node = ngx_idempotency_redis_node_next(redis, node)) != NULL) {
        if (!node->known) {
            continue;
        }

        for (i = 0; i < NGX_IDEMPOTENCY_REDIS_SLOTS; i++) {
            if (cluster->slots[i] == node) {
                break;
            }
        }

        if (i == NGX_IDEMPOTENCY_REDIS_SLOTS) {
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
        ngx_idempotency_redis_doubt(redis, 1);
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

    if (slot < 0 || slot >= NGX_IDEMPOTENCY_REDIS_SLOTS
        || port < 1 || port > 65535 || host.len == 0)
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


/* of all that may know it */

static void
cluster_next(ngx_idempotency_redis_t *redis)
{
    cluster_t                     *cluster;
    ngx_uint_t                     n, turn;
    ngx_idempotency_redis_node_t  *node;

    cluster = redis->topology_data;
    turn = ++cluster->turn;

    do {
        n = 0;
        node = NULL;

        while ((node = ngx_idempotency_redis_node_next(redis, node)) != NULL) {
            if ((node->seed || node->known) && n++ == turn) {
                cluster->turn = turn;
                redis->discovery->node = node;
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
    if (discovery_done(conn, reply, 1, "it does not know the slots", NULL)
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
    cluster_t                     *cluster;
    ngx_idempotency_redis_t       *redis;
    ngx_idempotency_redis_node_t  *node;

    redis = conn->redis;
    cluster = redis->topology_data;

    ngx_memzero(cluster->slots, sizeof(cluster->slots));

    node = NULL;

    while ((node = ngx_idempotency_redis_node_next(redis, node)) != NULL) {
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

    if (first < 0 || first > last || last >= NGX_IDEMPOTENCY_REDIS_SLOTS
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
            (void) node_set_address(node, &more->elts[i + 1].str);
            return;
        }
    }
}


static ngx_idempotency_redis_node_t *
cluster_node(ngx_idempotency_redis_t *redis, ngx_str_t *host, ngx_uint_t port)
{
    ngx_idempotency_redis_node_t  *node;

    node = NULL;

    while ((node = ngx_idempotency_redis_node_next(redis, node)) != NULL) {
        if (node->port == port && node->host.len == host->len
            && ngx_strncmp(node->host.data, host->data, host->len) == 0)
        {
            return node;
        }
    }

    return node_found(redis, host, port);
}


/* what waited where nothing is goes on; each server is greeted */

static void
cluster_mapped(ngx_idempotency_redis_t *redis)
{
    ngx_idempotency_redis_conn_t  *conn;
    ngx_idempotency_redis_node_t  *node;

    node = NULL;

    while ((node = ngx_idempotency_redis_node_next(redis, node)) != NULL) {
        if (!node->known) {
            cluster_leave(node);
            continue;
        }

        conn = ngx_idempotency_redis_node_conn(node, 0, 0);

        if (conn) {
            ngx_idempotency_redis_conn_connect(conn);
        }
    }

    ngx_idempotency_redis_pubsub_route(redis);
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
            ngx_idempotency_redis_pipeline_leave(conn);
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
        ngx_idempotency_redis_doubt(redis, 0);
    }

    for (q = ngx_queue_head(&redis->nodes);
         q != ngx_queue_sentinel(&redis->nodes);
         q = next)
    {
        next = ngx_queue_next(q);
        node = ngx_queue_data(q, ngx_idempotency_redis_node_t, queue);

        if (node->known || node->seed || node == cluster->home
            || node == redis->discovery->node)
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
            node_destroy(node);
        }
    }
}


static void
cluster_lost(ngx_idempotency_redis_conn_t *conn)
{
    cluster_next(conn->redis);
}


