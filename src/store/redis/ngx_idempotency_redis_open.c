
/*
 * A connection to a Redis, opened: where its name leads, over TCP, TLS or a
 * unix socket, until both sides may speak.
 */


#include "ngx_idempotency_redis_conn.h"


static void open_resolve(ngx_idempotency_redis_conn_t *conn);
static void open_resolved(ngx_resolver_ctx_t *ctx);
static void open_connect(ngx_idempotency_redis_conn_t *conn);
static ngx_log_t *open_log(ngx_idempotency_redis_conn_t *conn);
static void open_hear(ngx_log_t *log, ngx_uint_t level, u_char *buf,
    size_t len);


static char  open_no_resolver[] = "\"http\" has no \"resolver\" for";


void
ngx_idempotency_redis_conn_open(ngx_idempotency_redis_conn_t *conn)
{
    ngx_addr_t                    *addr;
    ngx_idempotency_redis_node_t  *node;

    node = conn->node;
    conn->attempts++;
    conn->begun = ngx_current_msec;

    ngx_add_timer(&conn->timer, conn->redis->conf.connect_timeout);

    if (node->naddrs) {
        addr = &node->addrs[conn->attempts % node->naddrs];

        ngx_memcpy(&conn->sockaddr, addr->sockaddr, addr->socklen);
        conn->socklen = addr->socklen;

        open_connect(conn);
        return;
    }

    if (node->host.len && conn->redis->conf.resolver) {
        open_resolve(conn);
        return;
    }

    ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_CONNECT,
                                    node->host.len ? open_no_resolver
                                                   : "nobody said where it is",
                                    node->host.len ? &node->host : NULL);
}


static void
open_resolve(ngx_idempotency_redis_conn_t *conn)
{
    ngx_resolver_ctx_t  *ctx;

    conn->state = ngx_idempotency_redis_naming;

    ctx = ngx_resolve_start(conn->redis->conf.resolver, NULL);

    if (ctx == NULL || ctx == NGX_NO_RESOLVER) {
        ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_CONNECT,
                                        open_no_resolver, &conn->node->host);
        return;
    }

    ctx->name = conn->node->host;
    ctx->handler = open_resolved;
    ctx->data = conn;
    ctx->timeout = conn->redis->conf.resolver_timeout;
    ctx->cancelable = 1;

    conn->resolving = ctx;

    if (ngx_resolve_name(ctx) != NGX_OK) {
        conn->resolving = NULL;
        ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_CONNECT,
                                        "could not resolve",
                                        &conn->node->host);
    }
}


static void
open_resolved(ngx_resolver_ctx_t *ctx)
{
    ngx_resolver_addr_t           *addr;
    ngx_idempotency_redis_conn_t  *conn;

    conn = ctx->data;

    if (ctx->state || ctx->naddrs == 0) {
        ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_CONNECT,
                                        "could not resolve",
                                        &conn->node->host);
        return;
    }

    addr = &ctx->addrs[conn->attempts % ctx->naddrs];

    ngx_memcpy(&conn->sockaddr, addr->sockaddr, addr->socklen);
    conn->socklen = addr->socklen;

    ngx_inet_set_port(&conn->sockaddr.sockaddr, conn->node->port);

    conn->resolving = NULL;
    ngx_resolve_name_done(ctx);

    open_connect(conn);
}


static void
open_connect(ngx_idempotency_redis_conn_t *conn)
{
    ngx_int_t               rc;
    ngx_connection_t       *c;
    ngx_peer_connection_t  *peer;

    conn->state = ngx_idempotency_redis_connecting;

    peer = &conn->peer;
    ngx_memzero(peer, sizeof(ngx_peer_connection_t));

    peer->sockaddr = &conn->sockaddr.sockaddr;
    peer->socklen = conn->socklen;
    peer->name = &conn->node->name;
    peer->get = ngx_event_get_peer;
    peer->so_keepalive = 1;
    peer->log_error = NGX_ERROR_INFO;
    peer->log = open_log(conn);

    rc = ngx_event_connect_peer(peer);

    if (rc != NGX_OK && rc != NGX_AGAIN) {
        conn->c = peer->connection;
        ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_CONNECT,
                                        "not connected", NULL);
        return;
    }

    c = peer->connection;
    conn->c = c;

    conn->pool = ngx_create_pool(512, conn->redis->log);
    if (conn->pool == NULL) {
        ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_CONNECT,
                                        "no memory", NULL);
        return;
    }

    c->data = conn;
    c->pool = conn->pool;
    c->log = peer->log;
    c->read->log = c->log;
    c->write->log = c->log;
    c->read->handler = ngx_idempotency_redis_conn_read_handler;
    c->write->handler = ngx_idempotency_redis_conn_write_handler;

    /* nobody's exit waits for a connection that has nothing to do yet */

    c->idle = conn->kind->idle(conn);

    if (rc == NGX_OK) {
        ngx_idempotency_redis_conn_opened(conn);
    }
}


/* one line for an outage is enough, and nginx has some for each try */

static ngx_log_t *
open_log(ngx_idempotency_redis_conn_t *conn)
{
    ngx_log_t  *log;

    log = conn->redis->log;
    conn->nheard = 0;

    if (log->log_level & NGX_LOG_DEBUG_ALL) {
        return log;
    }

    ngx_memzero(&conn->log, sizeof(ngx_log_t));

    conn->log.log_level = NGX_LOG_INFO;
    conn->log.writer = open_hear;
    conn->log.wdata = conn;

    return &conn->log;
}


/* without time and process, which end with a colon, as does nothing in them
   that a blank follows */

static void
open_hear(ngx_log_t *log, ngx_uint_t level, u_char *buf, size_t len)
{
    u_char                        *p, *last;
    ngx_idempotency_redis_conn_t  *conn;

    conn = log->wdata;
    last = buf + len;

    while (last > buf && (last[-1] == LF || last[-1] == CR)) {
        last--;
    }

    for (p = buf; p + 1 < last; p++) {
        if (p[0] == ':' && p[1] == ' ') {
            p += 2;
            break;
        }
    }

    if (level <= NGX_LOG_ALERT) {
        ngx_log_error(NGX_LOG_ALERT, conn->redis->log, 0, "%*s",
                      (size_t) (last - p), p);
    }

    conn->nheard = ngx_min((size_t) (last - p), sizeof(conn->heard));
    ngx_memcpy(conn->heard, p, conn->nheard);
}


void
ngx_idempotency_redis_conn_opened(ngx_idempotency_redis_conn_t *conn)
{
    int        err;
    u_char     text[NGX_MAX_ERROR_STR];
    ngx_str_t  what;
    socklen_t  len;

    err = 0;
    len = sizeof(int);

    if (getsockopt(conn->c->fd, SOL_SOCKET, SO_ERROR, (void *) &err, &len)
        == -1)
    {
        err = ngx_socket_errno;
    }

    if (err) {
        what.data = text;
        what.len = ngx_strerror(err, text, sizeof(text)) - text;

        ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_CONNECT,
                                        "connect() failed:", &what);
        return;
    }

    if (conn->sockaddr.sockaddr.sa_family != AF_UNIX
        && ngx_tcp_nodelay(conn->c) != NGX_OK)
    {
        ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_CONNECT,
                                        "setsockopt() failed", NULL);
        return;
    }

    if (conn->redis->conf.ssl) {
        ngx_idempotency_redis_tls(conn);
        return;
    }

    ngx_idempotency_redis_conn_greet(conn);
}


void
ngx_idempotency_redis_conn_greet(ngx_idempotency_redis_conn_t *conn)
{
    conn->c->read->handler = ngx_idempotency_redis_conn_read_handler;
    conn->c->write->handler = ngx_idempotency_redis_conn_write_handler;

    conn->state = ngx_idempotency_redis_greeting;

    ngx_idempotency_redis_greet(conn);
    ngx_idempotency_redis_conn_write(conn);
}
