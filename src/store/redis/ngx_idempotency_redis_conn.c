
/*
 * One connection to a Redis: made, lost and made again, over TCP, TLS or a
 * unix socket.  What is said over it is others' business; here it is bytes
 * that go out, and answers that come back in the same order.
 */


#include "ngx_idempotency_redis_conn.h"


/* between two tries */

#define CONN_PAUSE_MIN  50
#define CONN_PAUSE_MAX  2000


static void conn_start(ngx_idempotency_redis_conn_t *conn);
static void conn_resolve(ngx_idempotency_redis_conn_t *conn);
static void conn_resolved(ngx_resolver_ctx_t *ctx);
static void conn_open(ngx_idempotency_redis_conn_t *conn);
static ngx_log_t *conn_log(ngx_idempotency_redis_conn_t *conn);
static void conn_hear(ngx_log_t *log, ngx_uint_t level, u_char *buf,
    size_t len);
static void conn_opened(ngx_idempotency_redis_conn_t *conn);
static void conn_close(ngx_idempotency_redis_conn_t *conn, ngx_uint_t reset);
static void conn_again(ngx_idempotency_redis_conn_t *conn);
static void conn_tell(ngx_idempotency_redis_conn_t *conn);
static void conn_drain(ngx_idempotency_redis_conn_t *conn);
static void conn_timer(ngx_event_t *ev);
static void conn_read_handler(ngx_event_t *rev);
static void conn_write_handler(ngx_event_t *wev);
static ngx_int_t conn_replies(ngx_idempotency_redis_conn_t *conn);
static ngx_idempotency_redis_due_t *conn_due(
    ngx_idempotency_redis_conn_t *conn);


ngx_idempotency_redis_conn_t *
ngx_idempotency_redis_conn_create(ngx_idempotency_redis_node_t *node,
    ngx_idempotency_redis_kind_t *kind)
{
    ngx_idempotency_redis_conn_t  *conn;

    conn = ngx_calloc(sizeof(ngx_idempotency_redis_conn_t)
                      + node->redis->nmarks, ngx_cycle->log);
    if (conn == NULL) {
        return NULL;
    }

    conn->marks = (u_char *) (conn + 1);
    conn->redis = node->redis;
    conn->node = node;
    conn->kind = kind;
    conn->since = ngx_current_msec;

    ngx_str_set(&conn->why, "not connected yet");
    conn->error = NGX_IDEMPOTENCY_REDIS_CONNECT;

    conn->timer.data = conn;
    conn->timer.log = conn->redis->log;
    conn->timer.handler = conn_timer;
    conn->timer.cancelable = 1;

    ngx_queue_init(&conn->channels);
    ngx_queue_init(&conn->calls);
    ngx_queue_init(&conn->sent);
    ngx_queue_init(&conn->waiting);

    return conn;
}


void
ngx_idempotency_redis_conn_destroy(ngx_idempotency_redis_conn_t *conn)
{
    conn->error = NGX_IDEMPOTENCY_REDIS_CLOSED;
    ngx_str_set(&conn->why, "it is not asked any more");

    conn_close(conn, 1);
    conn_drain(conn);
}


void
ngx_idempotency_redis_conn_exit(ngx_idempotency_redis_conn_t *conn)
{
    if (conn) {
        conn_close(conn, 1);
    }
}


void
ngx_idempotency_redis_conn_free(ngx_idempotency_redis_conn_t *conn)
{
    if (conn == NULL) {
        return;
    }

    if (conn->due) {
        ngx_free(conn->due);
    }

    ngx_free(conn);
}


void
ngx_idempotency_redis_conn_connect(ngx_idempotency_redis_conn_t *conn)
{
    if (conn->state == ngx_idempotency_redis_closed
        && !conn->timer.timer_set)
    {
        /* nobody wanted one until now */

        conn->since = ngx_current_msec;
        conn_start(conn);
    }
}


/* nothing is wrong: it is needed no longer, or has to be another one */

void
ngx_idempotency_redis_conn_stop(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_error_e error, char *why)
{
    conn->error = error;
    conn->why.data = (u_char *) why;
    conn->why.len = ngx_strlen(why);

    if (conn->state == ngx_idempotency_redis_ready) {
        conn->since = ngx_current_msec;
    }

    conn_close(conn, 1);
    conn_drain(conn);

    conn->kind->lost(conn);
}


void
ngx_idempotency_redis_conn_restart(ngx_idempotency_redis_conn_t *conn,
    ngx_msec_t pause, char *why)
{
    ngx_idempotency_redis_conn_stop(conn, NGX_IDEMPOTENCY_REDIS_AWAY, why);

    conn->backoff = 0;

    if (!conn->timer.timer_set
        && conn->state == ngx_idempotency_redis_closed)
    {
        ngx_add_timer(&conn->timer, pause);
    }
}


static void
conn_start(ngx_idempotency_redis_conn_t *conn)
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

        conn_open(conn);
        return;
    }

    if (node->host.len && conn->redis->conf.resolver) {
        conn_resolve(conn);
        return;
    }

    ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_CONNECT,
                                    node->host.len ? "no resolver for"
                                                   : "nobody said where it is",
                                    node->host.len ? &node->host : NULL);
}


static void
conn_resolve(ngx_idempotency_redis_conn_t *conn)
{
    ngx_resolver_ctx_t  *ctx;

    conn->state = ngx_idempotency_redis_naming;

    ctx = ngx_resolve_start(conn->redis->conf.resolver, NULL);

    if (ctx == NULL || ctx == NGX_NO_RESOLVER) {
        ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_CONNECT,
                                        "no resolver for", &conn->node->host);
        return;
    }

    ctx->name = conn->node->host;
    ctx->handler = conn_resolved;
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
conn_resolved(ngx_resolver_ctx_t *ctx)
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

    conn_open(conn);
}


static void
conn_open(ngx_idempotency_redis_conn_t *conn)
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
    peer->log = conn_log(conn);

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
    c->read->handler = conn_read_handler;
    c->write->handler = conn_write_handler;

    /* nobody's exit waits for a connection that has nothing to do yet */

    c->idle = conn->kind->idle(conn);

    if (rc == NGX_OK) {
        conn_opened(conn);
    }
}


/* one line for an outage is enough, and nginx has some for each try */

static ngx_log_t *
conn_log(ngx_idempotency_redis_conn_t *conn)
{
    ngx_log_t  *log;

    log = conn->redis->log;
    conn->nheard = 0;

    if (log->log_level & NGX_LOG_DEBUG_ALL) {
        return log;
    }

    ngx_memzero(&conn->log, sizeof(ngx_log_t));

    conn->log.log_level = NGX_LOG_INFO;
    conn->log.writer = conn_hear;
    conn->log.wdata = conn;

    return &conn->log;
}


/* without time and process, which end with a colon, as does nothing in them
   that a blank follows */

static void
conn_hear(ngx_log_t *log, ngx_uint_t level, u_char *buf, size_t len)
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


static void
conn_opened(ngx_idempotency_redis_conn_t *conn)
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
    conn->c->read->handler = conn_read_handler;
    conn->c->write->handler = conn_write_handler;

    conn->state = ngx_idempotency_redis_greeting;

    ngx_idempotency_redis_greet(conn);
    ngx_idempotency_redis_conn_write(conn);
}


void
ngx_idempotency_redis_conn_ready(ngx_idempotency_redis_conn_t *conn)
{
    if (conn->timer.timer_set) {
        ngx_del_timer(&conn->timer);
    }

    conn->state = ngx_idempotency_redis_ready;
    conn->down = 0;

    /* who is asked where others are has yet to say so */

    if (!conn->kind->seeks) {
        conn->backoff = 0;
        ngx_idempotency_redis_conn_back(conn);
    }

    conn->kind->ready(conn);
}


void
ngx_idempotency_redis_conn_back(ngx_idempotency_redis_conn_t *conn)
{
    if (conn->node->failing) {
        conn->node->failing = 0;

        ngx_log_error(NGX_LOG_NOTICE, conn->redis->log, 0,
                      "idempotency_redis \"%V\": %V is back",
                      &conn->redis->conf.name, &conn->node->name);
    }
}


void
ngx_idempotency_redis_conn_lose(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_error_e error, char *why, ngx_str_t *what)
{
    u_char      *p, *last;
    ngx_uint_t   ready;

    ready = (conn->state == ngx_idempotency_redis_ready);

    if (!ready && (error == NGX_IDEMPOTENCY_REDIS_CLOSED
                   || error == NGX_IDEMPOTENCY_REDIS_TIMEOUT))
    {
        error = NGX_IDEMPOTENCY_REDIS_CONNECT;
    }

    last = conn->text + sizeof(conn->text);

    p = ngx_slprintf(conn->text, last, "%s", why);

    if (what) {
        p = ngx_slprintf(p, last, p[-1] == ':' ? " %V" : " \"%V\"", what);

    } else if (conn->nheard) {
        p = ngx_slprintf(p, last, ": %*s", conn->nheard, conn->heard);
    }

    conn->nheard = 0;

    conn->error = error;
    conn->why.data = conn->text;
    conn->why.len = p - conn->text;

    conn_close(conn, error != NGX_IDEMPOTENCY_REDIS_AWAY);

    if (ready) {
        conn->since = ngx_current_msec;

        /* ... may say so, and go at once, each time */

        if (conn->since - conn->begun >= CONN_PAUSE_MAX) {
            conn->backoff = 0;
        }
    }

    if (error == NGX_IDEMPOTENCY_REDIS_DENIED
        || ngx_current_msec - conn->since >= conn->redis->conf.timeout)
    {
        conn->down = 1;
    }

    conn_tell(conn);
    conn_again(conn);
    conn_drain(conn);

    conn->kind->lost(conn);

    if (conn->state == ngx_idempotency_redis_closed && !conn->kind->seeks) {
        conn->redis->topology->doubt(conn->node, ready);
    }
}


/* one line for each outage */

static void
conn_tell(ngx_idempotency_redis_conn_t *conn)
{
    ngx_idempotency_redis_node_t  *node;

    node = conn->node;

    if (node->failing || (ngx_exiting && conn->kind->idle(conn))) {
        return;
    }

    /* at the start it takes a moment until others have said where it is */

    if (node->host.len == 0 && node->naddrs == 0 && !conn->down) {
        return;
    }

    node->failing = 1;

    ngx_log_error(NGX_LOG_ERR, conn->redis->log, 0,
                  "idempotency_redis \"%V\": no connection to %V: %V",
                  &conn->redis->conf.name, &node->name, &conn->why);
}


/* at once if it was a good one, with longer and longer pauses if it was not;
   not all workers of all machines at the same time */

static void
conn_again(ngx_idempotency_redis_conn_t *conn)
{
    ngx_msec_t  pause;

    if (ngx_exiting && conn->kind->idle(conn)) {
        return;
    }

    pause = conn->backoff ? conn->backoff * 3 / 4
                            + ngx_random() % (conn->backoff / 2)
                          : 1;

    conn->backoff = conn->backoff
                    ? ngx_min(2 * conn->backoff, CONN_PAUSE_MAX)
                    : CONN_PAUSE_MIN;

    ngx_add_timer(&conn->timer, pause);
}


/* what is due will never be answered */

static void
conn_drain(ngx_idempotency_redis_conn_t *conn)
{
    ngx_uint_t                     n;
    ngx_idempotency_redis_due_t   *due;

    for (n = conn->ndue; n; n--) {
        due = conn_due(conn);
        due->handler(conn, due->data, NULL);
    }
}


static void
conn_close(ngx_idempotency_redis_conn_t *conn, ngx_uint_t reset)
{
    ngx_connection_t  *c;
    struct linger      linger;

    conn->generation++;
    conn->state = ngx_idempotency_redis_closed;
    conn->retire = 0;
    conn->expected = 0;

    if (conn->timer.timer_set) {
        ngx_del_timer(&conn->timer);
    }

    if (conn->resolving) {
        ngx_resolve_name_done(conn->resolving);
        conn->resolving = NULL;
    }

    ngx_idempotency_resp_free(&conn->in);
    ngx_idempotency_resp_out_free(&conn->out);

    c = conn->c;
    conn->c = NULL;

    if (c) {

        if (reset) {
            /*
             * What is given up is of no use there any more; but it may have it
             * already, and execute it: only the script can see that it is late.
             */

            linger.l_onoff = 1;
            linger.l_linger = 0;

            (void) setsockopt(c->fd, SOL_SOCKET, SO_LINGER,
                              (const void *) &linger, sizeof(struct linger));
        }

#if (NGX_SSL)
        if (c->ssl) {
            c->ssl->no_wait_shutdown = 1;
            c->ssl->no_send_shutdown = 1;
            (void) ngx_ssl_shutdown(c);
        }
#endif

        ngx_close_connection(c);
    }

    if (conn->pool) {
        ngx_destroy_pool(conn->pool);
        conn->pool = NULL;
    }
}


static void
conn_timer(ngx_event_t *ev)
{
    ngx_idempotency_redis_conn_t  *conn;

    conn = ev->data;

    switch (conn->state) {

    case ngx_idempotency_redis_closed:
        conn_start(conn);
        break;

    case ngx_idempotency_redis_ready:
        ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_TIMEOUT,
                                        "no answer in time", NULL);
        break;

    default:
        ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_CONNECT,
                                        "connecting timed out", NULL);
    }
}


static void
conn_read_handler(ngx_event_t *rev)
{
    u_char                        *p;
    size_t                         size;
    ssize_t                        n;
    ngx_connection_t              *c;
    ngx_idempotency_redis_conn_t  *conn;

    c = rev->data;
    conn = c->data;

    if (c->close) {
        ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_CLOSED,
                                        "the worker process exits", NULL);
        return;
    }

    if (conn->state == ngx_idempotency_redis_connecting) {
        conn_opened(conn);
        return;
    }

    for ( ;; ) {
        p = ngx_idempotency_resp_room(&conn->in, &size);

        if (p == NULL) {
            ngx_idempotency_redis_conn_lose(conn,
                                            NGX_IDEMPOTENCY_REDIS_CLOSED,
                                            "no memory", NULL);
            return;
        }

        n = c->recv(c, p, size);

        if (n == NGX_AGAIN) {
            break;
        }

        if (n == 0 || n == NGX_ERROR) {
            ngx_idempotency_redis_conn_lose(conn,
                                            NGX_IDEMPOTENCY_REDIS_CLOSED,
                                            n ? "it is lost"
                                              : "it closed the connection",
                                            NULL);
            return;
        }

        ngx_idempotency_resp_read(&conn->in, n);

        if (conn_replies(conn) != NGX_OK) {
            return;
        }
    }

    if (ngx_handle_read_event(rev, 0) != NGX_OK) {
        ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_CLOSED,
                                        "no read event", NULL);
        return;
    }

    ngx_idempotency_redis_conn_settle(conn);
}


/* NGX_ERROR: this is not the connection any more that it was */

static ngx_int_t
conn_replies(ngx_idempotency_redis_conn_t *conn)
{
    ngx_int_t                       rc;
    ngx_uint_t                      generation;
    ngx_idempotency_redis_due_t    *due;
    ngx_idempotency_redis_reply_t  *reply;

    generation = conn->generation;

    for ( ;; ) {
        rc = ngx_idempotency_resp_next(&conn->in, &reply);

        if (rc == NGX_AGAIN) {
            return NGX_OK;
        }

        if (rc != NGX_OK) {
            ngx_idempotency_redis_conn_lose(conn,
                                            NGX_IDEMPOTENCY_REDIS_PROTOCOL,
                                            rc == NGX_ABORT
                                            ? "no memory for its answer"
                                            : "its answer is not RESP", NULL);
            return NGX_ERROR;
        }

        rc = conn->kind->push ? conn->kind->push(conn, reply)
                              : (reply->push ? NGX_OK : NGX_DECLINED);

        if (rc == NGX_DECLINED) {

            if (conn->ndue == 0) {
                ngx_idempotency_redis_conn_lose(conn,
                                              NGX_IDEMPOTENCY_REDIS_PROTOCOL,
                                              "an answer without a question",
                                              &reply->str);
                return NGX_ERROR;
            }

            due = conn_due(conn);
            due->handler(conn, due->data, reply);
        }

        if (conn->generation != generation) {
            return NGX_ERROR;
        }
    }
}


void
ngx_idempotency_redis_conn_settle(ngx_idempotency_redis_conn_t *conn)
{
    if (conn->c == NULL) {
        return;
    }

    if (conn->retire && conn->ndue == 0) {
        ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_AWAY,
                                        "it is not the master", NULL);
        return;
    }

    conn->c->idle = conn->kind->idle(conn);

    if (conn->c->idle && ngx_exiting) {
        conn_close(conn, 1);
        conn_drain(conn);
    }
}


void
ngx_idempotency_redis_conn_write(ngx_idempotency_redis_conn_t *conn)
{
    ssize_t                      n;
    ngx_connection_t            *c;
    ngx_idempotency_resp_out_t  *out;

    c = conn->c;
    out = &conn->out;

    if (out->failed) {
        ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_CLOSED,
                                        "no memory", NULL);
        return;
    }

    while (out->pos < out->len) {
        n = c->send(c, out->buf + out->pos, out->len - out->pos);

        if (n == NGX_AGAIN || n == 0) {
            break;
        }

        if (n == NGX_ERROR) {
            ngx_idempotency_redis_conn_lose(conn,
                                            NGX_IDEMPOTENCY_REDIS_CLOSED,
                                            "it is lost", NULL);
            return;
        }

        ngx_idempotency_resp_written(out, n);
    }

    if (ngx_handle_write_event(c->write, 0) != NGX_OK) {
        ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_CLOSED,
                                        "no write event", NULL);
        return;
    }

    c->idle = conn->kind->idle(conn);
}


static void
conn_write_handler(ngx_event_t *wev)
{
    ngx_uint_t                     generation;
    ngx_connection_t              *c;
    ngx_idempotency_redis_conn_t  *conn;

    c = wev->data;
    conn = c->data;

    if (conn->state == ngx_idempotency_redis_connecting) {
        conn_opened(conn);
        return;
    }

    generation = conn->generation;

    ngx_idempotency_redis_conn_write(conn);

    if (generation == conn->generation && conn->out.pos == conn->out.len
        && conn->state == ngx_idempotency_redis_ready
        && conn->kind->room)
    {
        conn->kind->room(conn);
    }
}


ngx_int_t
ngx_idempotency_redis_conn_due(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_answer_pt handler, void *data)
{
    ngx_uint_t                    i, size;
    ngx_idempotency_redis_due_t  *due;

    if (conn->ndue == conn->size) {
        size = conn->size ? 2 * conn->size : 32;

        due = ngx_alloc(size * sizeof(ngx_idempotency_redis_due_t),
                        ngx_cycle->log);
        if (due == NULL) {
            conn->out.failed = 1;
            return NGX_ERROR;
        }

        for (i = 0; i < conn->ndue; i++) {
            due[i] = conn->due[(conn->first + i) % conn->size];
        }

        if (conn->due) {
            ngx_free(conn->due);
        }

        conn->due = due;
        conn->size = size;
        conn->first = 0;
    }

    due = &conn->due[(conn->first + conn->ndue++) % conn->size];

    due->handler = handler;
    due->data = data;

    return NGX_OK;
}


/* the oldest, which is due no more */

static ngx_idempotency_redis_due_t *
conn_due(ngx_idempotency_redis_conn_t *conn)
{
    ngx_idempotency_redis_due_t  *due;

    due = &conn->due[conn->first];

    conn->first = (conn->first + 1) % conn->size;
    conn->ndue--;

    return due;
}


ngx_int_t
ngx_idempotency_redis_conn_expect(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_answer_pt handler, void *data)
{
    if (ngx_idempotency_redis_conn_due(conn, handler, data) != NGX_OK) {
        return NGX_ERROR;
    }

    if (conn->expected++ == 0 && !conn->timer.timer_set) {
        ngx_add_timer(&conn->timer, conn->redis->conf.timeout);
    }

    return NGX_OK;
}


void
ngx_idempotency_redis_conn_expected(ngx_idempotency_redis_conn_t *conn)
{
    if (conn->expected && --conn->expected == 0
        && conn->state == ngx_idempotency_redis_ready)
    {
        ngx_del_timer(&conn->timer);
    }
}
