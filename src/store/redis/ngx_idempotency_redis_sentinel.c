
/*
 * Sentinels say who the master is: one of them is asked, and listened to, as
 * it tells when that changes.  Who is in doubt, as the master says that it is
 * none, or says nothing, asks the next one.
 */


#include "ngx_idempotency_redis_conn.h"


typedef struct {
    ngx_idempotency_redis_node_t    *master;
    ngx_idempotency_redis_conn_t    *conn;
    /* in the order of the configuration, and whose turn it is */
    ngx_idempotency_redis_node_t   **nodes;
    ngx_uint_t                       n;
    ngx_uint_t                       turn;
} sentinel_t;


static ngx_int_t sentinel_init(ngx_idempotency_redis_t *redis);
static ngx_idempotency_redis_node_t *sentinel_route(
    ngx_idempotency_redis_t *redis, ngx_str_t *key);
static void sentinel_doubt(ngx_idempotency_redis_node_t *node,
    ngx_uint_t news);
static void sentinel_tick(ngx_idempotency_redis_t *redis);
static void sentinel_pong(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static void sentinel_exit(ngx_idempotency_redis_t *redis);
static void sentinel_next(sentinel_t *sentinel);
static void sentinel_ready(ngx_idempotency_redis_conn_t *conn);
static void sentinel_said(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static void sentinel_listens(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static ngx_int_t sentinel_push(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_reply_t *reply);
static void sentinel_lost(ngx_idempotency_redis_conn_t *conn);
static ngx_uint_t sentinel_idle(ngx_idempotency_redis_conn_t *conn);
static void sentinel_master(ngx_idempotency_redis_t *redis, ngx_str_t *host,
    ngx_str_t *port);


ngx_idempotency_redis_topology_t  ngx_idempotency_redis_sentinel = {
    sentinel_init,
    sentinel_route,
    NULL,
    NULL,
    NULL,
    sentinel_doubt,
    sentinel_tick,
    sentinel_exit
};


static ngx_idempotency_redis_kind_t  sentinel_kind = {
    1,
    sentinel_ready,
    sentinel_lost,
    sentinel_push,
    sentinel_idle,
    NULL
};


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
        sentinel->nodes[i] = ngx_idempotency_redis_node_create(redis,
                                                               &server[i]);
        if (sentinel->nodes[i] == NULL) {
            return NGX_ERROR;
        }
    }

    sentinel->master = ngx_idempotency_redis_node_create(redis, NULL);

    if (sentinel->master == NULL) {
        return NGX_ERROR;
    }

    sentinel->master->known = 1;

    sentinel->conn = ngx_idempotency_redis_conn_create(
                                            sentinel->nodes[sentinel->turn],
                                            &sentinel_kind);
    if (sentinel->conn == NULL) {
        return NGX_ERROR;
    }

    ngx_idempotency_redis_conn_connect(sentinel->conn);

    return ngx_idempotency_redis_node_connect(sentinel->master);
}


static ngx_idempotency_redis_node_t *
sentinel_route(ngx_idempotency_redis_t *redis, ngx_str_t *key)
{
    sentinel_t  *sentinel;

    sentinel = redis->topology_data;

    return sentinel->master;
}


static void
sentinel_doubt(ngx_idempotency_redis_node_t *node, ngx_uint_t news)
{
    sentinel_t  *sentinel;

    sentinel = node->redis->topology_data;

    if (sentinel->conn) {
        ngx_idempotency_redis_seek(sentinel->conn, news,
                                   "another one is asked");
    }
}


/* it may be gone without a word */

static void
sentinel_tick(ngx_idempotency_redis_t *redis)
{
    sentinel_t                    *sentinel;
    ngx_idempotency_redis_conn_t  *conn;

    sentinel = redis->topology_data;
    conn = sentinel->conn;

    if (conn->state == ngx_idempotency_redis_ready && !conn->expected) {
        ngx_idempotency_resp_say(&conn->out, "PING", NULL);
        (void) ngx_idempotency_redis_conn_expect(conn, sentinel_pong, NULL);
        ngx_idempotency_redis_conn_write(conn);
    }
}


static void
sentinel_pong(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply)
{
    ngx_idempotency_redis_conn_expected(conn);
}


static void
sentinel_exit(ngx_idempotency_redis_t *redis)
{
    sentinel_t  *sentinel;

    sentinel = redis->topology_data;

    if (sentinel) {
        ngx_idempotency_redis_conn_exit(sentinel->conn);
    }
}


static void
sentinel_next(sentinel_t *sentinel)
{
    sentinel->turn = (sentinel->turn + 1) % sentinel->n;
    sentinel->conn->node = sentinel->nodes[sentinel->turn];
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
    if (ngx_idempotency_redis_sought(conn, reply, 2,
                                     "it does not know the master",
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
    sentinel_next(conn->redis->topology_data);
}


/* nobody's exit waits for it; who needs it then has it made anew */

static ngx_uint_t
sentinel_idle(ngx_idempotency_redis_conn_t *conn)
{
    return 1;
}


static void
sentinel_master(ngx_idempotency_redis_t *redis, ngx_str_t *host,
    ngx_str_t *port)
{
    ngx_int_t                      n;
    ngx_uint_t                     i, lanes;
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

    if (ngx_idempotency_redis_node_name(node, host, n) != NGX_OK) {
        return;
    }

    ngx_log_error(NGX_LOG_NOTICE, redis->log, 0,
                  "idempotency_redis \"%V\": the master \"%V\" is %V",
                  &redis->conf.name, &redis->conf.master, &node->name);

    node->failing = 0;

    lanes = 2 * redis->conf.connections;

    for (i = 0; i < lanes; i++) {
        if (node->conns[i]) {
            ngx_idempotency_redis_conn_restart(node->conns[i], 1,
                                               "the master is another one");
        }
    }

    if (node->watch) {
        ngx_idempotency_redis_conn_restart(node->watch, 1,
                                           "the master is another one");
    }
}
