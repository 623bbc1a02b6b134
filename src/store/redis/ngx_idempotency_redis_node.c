
/* A server: its name and its addresses, and the connections to it. */


#include "ngx_idempotency_redis_conn.h"


static ngx_idempotency_redis_node_t *node_create(
    ngx_idempotency_redis_t *redis);
static void node_graves(ngx_event_t *ev);


ngx_idempotency_redis_node_t *
ngx_idempotency_redis_node_create(ngx_idempotency_redis_t *redis,
    ngx_idempotency_redis_server_t *server)
{
    ngx_idempotency_redis_node_t  *node;

    node = node_create(redis);
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


ngx_idempotency_redis_node_t *
ngx_idempotency_redis_node_told(ngx_idempotency_redis_t *redis,
    ngx_str_t *host, in_port_t port)
{
    ngx_idempotency_redis_node_t  *node;

    node = node_create(redis);

    if (node
        && ngx_idempotency_redis_node_name(node, host, port) != NGX_OK)
    {
        ngx_idempotency_redis_node_destroy(node);
        return NULL;
    }

    return node;
}


static ngx_idempotency_redis_node_t *
node_create(ngx_idempotency_redis_t *redis)
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

ngx_int_t
ngx_idempotency_redis_node_name(ngx_idempotency_redis_node_t *node,
    ngx_str_t *host, in_port_t port)
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

    return ngx_idempotency_redis_node_address(node, host);
}


/* if it is one: it takes a pool to tell */

ngx_int_t
ngx_idempotency_redis_node_address(ngx_idempotency_redis_node_t *node,
    ngx_str_t *text)
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


ngx_idempotency_redis_conn_t *
ngx_idempotency_redis_node_lane(ngx_idempotency_redis_node_t *node,
    ngx_uint_t lane, ngx_uint_t durable)
{
    ngx_uint_t                      i;
    ngx_idempotency_redis_conn_t   *conn;
    ngx_idempotency_redis_conf_t   *conf;

    conf = &node->redis->conf;

    durable = durable && (conf->replicas || conf->fsync);

    i = lane % conf->connections + (durable ? conf->connections : 0);

    conn = node->conns[i];

    if (conn) {
        return conn;
    }

    conn = ngx_idempotency_redis_conn_create(node,
                                             &ngx_idempotency_redis_lane);
    if (conn == NULL) {
        return NULL;
    }

    conn->lane = i;
    conn->info = (i == 0 && ngx_worker == 0);
    conn->durable = durable;

    ngx_idempotency_redis_lane_init(conn);

    node->conns[i] = conn;

    return conn;
}


ngx_int_t
ngx_idempotency_redis_node_connect(ngx_idempotency_redis_node_t *node)
{
    ngx_uint_t                     i, n, durable;
    ngx_idempotency_redis_t       *redis;
    ngx_idempotency_redis_conn_t  *conn;

    redis = node->redis;
    n = redis->conf.connections;

    for (durable = 0; durable < 2; durable++) {

        for (i = 0; i < n; i++) {
            conn = ngx_idempotency_redis_node_lane(node, i, durable);

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

void
ngx_idempotency_redis_node_destroy(ngx_idempotency_redis_node_t *node)
{
    ngx_uint_t                     i, n;
    ngx_idempotency_redis_conn_t  *conn;

    ngx_queue_remove(&node->queue);

    n = 2 * node->redis->conf.connections;

    for (i = 0; i < n; i++) {
        conn = node->conns[i];

        if (conn) {
            ngx_idempotency_redis_conn_destroy(conn);
            ngx_idempotency_redis_lane_leave(conn);
        }
    }

    if (node->watch) {
        ngx_idempotency_redis_conn_destroy(node->watch);
        ngx_idempotency_redis_watch_leave(node->watch);
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

        ngx_idempotency_redis_conn_free(node->watch);

        if (node->told) {
            ngx_free(node->told);
        }

        ngx_free(node);
    }
}
