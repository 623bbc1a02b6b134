
/*
 * One connection to a Redis: it is opened (by name or address, over TCP, TLS or
 * a unix socket), does its handshake, is ready, is lost, and is opened again
 * after longer and longer pauses.
 *
 * The handshake is one write: user and database; is the server a master, does
 * it have the right stamps, would its settings forget, what is its clock.
 *
 * IN ORDER: answers come in the order of the commands; "due" is the queue of
 * their handlers.  If the connection is lost, each of them gets NULL.
 *
 * GENERATION: it rises whenever the connection is closed.  Code that calls a
 * handler compares it before it touches the connection again.
 */


#include "ngx_idempotency_redis_conn.h"

#include <time.h>

#if (NGX_SSL)
#include <openssl/x509v3.h>
#endif


/* the pause between two tries */

#define CONN_PAUSE_MIN  50
#define CONN_PAUSE_MAX  2000


static void conn_log_away(redis_conn_t *conn);
static void conn_again(redis_conn_t *conn);
static void conn_timer(ngx_event_t *ev);
static void conn_open(redis_conn_t *conn);
static void open_resolve(redis_conn_t *conn);
static void open_resolved(ngx_resolver_ctx_t *ctx);
static void open_connect(redis_conn_t *conn, struct sockaddr *sockaddr,
    socklen_t socklen);
static ngx_log_t *open_log(redis_conn_t *conn);
static void open_log_writer(ngx_log_t *log, ngx_uint_t level, u_char *buf,
    size_t len);
static void conn_opened(redis_conn_t *conn);
#if (NGX_SSL)
static void tls_start(redis_conn_t *conn);
static void tls_done(ngx_connection_t *c);
static ngx_str_t tls_name(redis_conn_t *conn);
#endif
static void handshake_start(redis_conn_t *conn);
static void conn_ready(redis_conn_t *conn,
    ngx_idempotency_redis_reply_t *reply);
static void handshake_answer(redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static void handshake_role(redis_conn_t *conn,
    ngx_idempotency_redis_reply_t *reply);
static void handshake_info(redis_conn_t *conn,
    ngx_idempotency_redis_reply_t *reply);
static void handshake_time(redis_conn_t *conn,
    ngx_idempotency_redis_reply_t *reply);
static void handshake_settings(redis_conn_t *conn, ngx_str_t *info);
static ngx_str_t handshake_field(ngx_str_t *info, char *name);
static uint64_t handshake_clock(void);
static void io_read_handler(ngx_event_t *rev);
static void conn_flush(ngx_event_t *ev);
static void io_write(redis_conn_t *conn);
static ngx_int_t io_replies(redis_conn_t *conn);
static void io_write_handler(ngx_event_t *wev);
static void io_answer(redis_conn_t *conn,
    ngx_idempotency_redis_reply_t *reply);
static void conn_drain(redis_conn_t *conn);


#define conn_failed(conn, ...)                                                \
    ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_CONNECT,      \
                                    __VA_ARGS__)


typedef struct {
    /* takes the reply, unless it is an error */
    void                           (*answer)(
                                       redis_conn_t *conn,
                                       ngx_idempotency_redis_reply_t *reply);
    /* needed: any error ends the connection.  warn: the warning that other
       errors are logged with, once, unless the server can't be used now */
    ngx_uint_t                       needed;
    ngx_uint_t                       warn;
    char                            *text;
} handshake_step_t;


static handshake_step_t  step_needed = { NULL, 1, 0, NULL };

/* without HELLO the connection has no name at the server */

static handshake_step_t  step_hello = { NULL, 0, 0, NULL };

static handshake_step_t  step_role = {
    handshake_role, 0, NGX_IDEMPOTENCY_REDIS_WARN_ROLE,
    "does not tell whether it is a master"
};

static handshake_step_t  step_info = {
    handshake_info, 0, NGX_IDEMPOTENCY_REDIS_WARN_INFO,
    "does not tell whether it would forget"
};

static handshake_step_t  step_time = { handshake_time, 1, 0, NULL };
static handshake_step_t  step_ping = { conn_ready, 1, 0, NULL };


redis_conn_t *
ngx_idempotency_redis_conn_create(redis_node_t *node, redis_kind_t *kind)
{
    redis_conn_t  *conn;

    conn = ngx_calloc(sizeof(redis_conn_t)
                      + node->redis->nmarks, ngx_cycle->log);
    if (conn == NULL) {
        return NULL;
    }

    conn->marks = (u_char *) (conn + 1);
    conn->redis = node->redis;
    conn->node = node;
    conn->kind = kind;
    conn->since = ngx_current_msec;
    conn->generation = 1;

    ngx_str_set(&conn->why, "not connected yet");
    conn->error = NGX_IDEMPOTENCY_REDIS_CONNECT;

    ngx_idempotency_redis_event(&conn->timer, conn_timer, conn);
    ngx_idempotency_redis_event(&conn->flush, conn_flush, conn);
    ngx_idempotency_redis_event(&conn->pause, conn_flush, conn);
    ngx_idempotency_redis_event(&conn->expire, kind->expire, conn);

    /* a worker whose exit waits for a call has to wait for its deadline */

    conn->expire.cancelable = 0;

    ngx_queue_insert_tail(&conn->redis->conns, &conn->queue);
    ngx_queue_init(&conn->due);
    ngx_queue_init(&conn->calls);
    ngx_queue_init(&conn->sent);
    ngx_queue_init(&conn->waiting);

    return conn;
}


void
ngx_idempotency_redis_event(ngx_event_t *ev, ngx_event_handler_pt handler,
    void *data)
{
    ev->data = data;
    ev->handler = handler;
    ev->log = ngx_cycle->log;
    ev->cancelable = 1;
}


redis_conn_t *
ngx_idempotency_redis_conn_next(ngx_idempotency_redis_t *redis,
    redis_conn_t *conn)
{
    ngx_queue_t  *q;

    q = conn ? ngx_queue_next(&conn->queue) : ngx_queue_head(&redis->conns);

    return (q == ngx_queue_sentinel(&redis->conns))
           ? NULL : ngx_queue_data(q, redis_conn_t, queue);
}


void
ngx_idempotency_redis_conn_connect(redis_conn_t *conn)
{
    if (conn->state == redis_closed && !conn->timer.timer_set) {
        /* no connection was needed before */

        conn->since = ngx_current_msec;
        conn_open(conn);
    }
}


void
ngx_idempotency_redis_conn_stop(redis_conn_t *conn, char *why)
{
    conn->error = NGX_IDEMPOTENCY_REDIS_AWAY;
    conn->why.data = (u_char *) why;
    conn->why.len = ngx_strlen(why);

    ngx_idempotency_redis_conn_close(conn);
    conn_drain(conn);

    conn->kind->lost(conn);
}


void
ngx_idempotency_redis_conn_restart(redis_conn_t *conn, ngx_msec_t pause,
    char *why)
{
    ngx_idempotency_redis_conn_stop(conn, why);

    conn->backoff = 0;

    if (!conn->timer.timer_set && conn->state == redis_closed) {
        ngx_add_timer(&conn->timer, pause);
    }
}


void
ngx_idempotency_redis_conn_back(redis_conn_t *conn)
{
    if (conn->node->warned & NGX_IDEMPOTENCY_REDIS_WARN_AWAY) {
        conn->node->warned &= ~NGX_IDEMPOTENCY_REDIS_WARN_AWAY;

        ngx_log_error(NGX_LOG_NOTICE, conn->redis->log, 0,
                      "idempotency_redis \"%V\": %V is back",
                      &conn->redis->conf.name, &conn->node->name);
    }
}


void
ngx_idempotency_redis_conn_lose(redis_conn_t *conn,
    ngx_idempotency_redis_error_e error, const char *format, ...)
{
    u_char      *p, *last;
    va_list      args;
    ngx_uint_t   ready;

    ready = (conn->state == redis_ready);

    if (!ready && error == NGX_IDEMPOTENCY_REDIS_TIMEOUT) {
        error = NGX_IDEMPOTENCY_REDIS_CONNECT;
    }

    last = conn->text + sizeof(conn->text);

    va_start(args, format);
    p = ngx_vslprintf(conn->text, last, format, args);
    va_end(args);

    if (conn->ncaught) {
        p = ngx_slprintf(p, last, ": %*s", conn->ncaught, conn->caught);
        conn->ncaught = 0;
    }

    conn->error = error;
    conn->why.data = conn->text;
    conn->why.len = p - conn->text;

    ngx_idempotency_redis_conn_close(conn);

    /* a server may accept and close at once, each time: no quick retry */

    if (ready && conn->since - conn->begun >= CONN_PAUSE_MAX) {
        conn->backoff = 0;
    }

    if (error == NGX_IDEMPOTENCY_REDIS_DENIED
        || ngx_current_msec - conn->since >= conn->redis->conf.timeout)
    {
        conn->down = 1;
    }

    if (!ngx_exiting || !ngx_idempotency_redis_conn_idle(conn)) {
        conn_log_away(conn);
        conn_again(conn);
    }

    conn_drain(conn);

    conn->kind->lost(conn);

    if (conn->state == redis_closed && !conn->kind->seeks) {
        ngx_idempotency_redis_seek(conn->redis, ready);
    }
}


/* one line for each outage */

static void
conn_log_away(redis_conn_t *conn)
{
    redis_node_t  *node;

    node = conn->node;

    /* at the start it takes a moment until others have told the address */

    if ((node->warned & NGX_IDEMPOTENCY_REDIS_WARN_AWAY)
        || (node->host.len == 0 && node->naddrs == 0 && !conn->down))
    {
        return;
    }

    node->warned |= NGX_IDEMPOTENCY_REDIS_WARN_AWAY;

    ngx_log_error(NGX_LOG_ERR, conn->redis->log, 0,
                  "idempotency_redis \"%V\": no connection to %V: %V",
                  &conn->redis->conf.name, &node->name, &conn->why);
}


void
ngx_idempotency_redis_warn(redis_conn_t *conn, ngx_uint_t what, char *text,
    ngx_str_t *says)
{
    if (conn->node->warned & what) {
        return;
    }

    conn->node->warned |= what;

    ngx_log_error(NGX_LOG_WARN, conn->redis->log, 0,
                  "idempotency_redis \"%V\": %V %s: %V",
                  &conn->redis->conf.name, &conn->node->name, text, says);
}


/* at once after a long life, else after longer and longer pauses; with a random
   part, so that not all workers of all machines come at once */

static void
conn_again(redis_conn_t *conn)
{
    ngx_msec_t  pause;

    pause = conn->backoff ? conn->backoff * 3 / 4
                            + ngx_random() % (conn->backoff / 2)
                          : 1;

    conn->backoff = conn->backoff
                    ? ngx_min(2 * conn->backoff, CONN_PAUSE_MAX)
                    : CONN_PAUSE_MIN;

    ngx_add_timer(&conn->timer, pause);
}


void
ngx_idempotency_redis_conn_close(redis_conn_t *conn)
{
    ngx_connection_t  *c;
    struct linger      linger;

    if (conn->state == redis_ready) {
        conn->since = ngx_current_msec;
    }

    conn->generation++;
    conn->state = redis_closed;
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
    ngx_idempotency_resp_buf_free(&conn->out);

    c = conn->c;
    conn->c = NULL;

    if (c) {

        /*
         * A reset drops what was not sent.  But the server may have got a call
         * already, and execute it: only the script can see that it is late.
         */

        linger.l_onoff = 1;
        linger.l_linger = 0;

        (void) setsockopt(c->fd, SOL_SOCKET, SO_LINGER, (const void *) &linger,
                          sizeof(struct linger));

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
    redis_conn_t  *conn;

    conn = ev->data;

    if (conn->state == redis_closed) {
        conn_open(conn);
        return;
    }

    ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_TIMEOUT,
                                    conn->state == redis_ready
                                    ? "no answer in time"
                                    : "connecting timed out");
}


void
ngx_idempotency_redis_conn_reap(redis_conn_t *conn)
{
    /* an exiting worker, too, has to hear which server is the master now */

    if (conn->c == NULL || conn->ndue) {
        return;
    }

    if (conn->retire) {
        ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_AWAY,
                                        "it is not the master");
        return;
    }

    if (ngx_exiting && ngx_idempotency_redis_conn_idle(conn)) {
        ngx_idempotency_redis_conn_close(conn);
        conn_drain(conn);
    }
}


ngx_uint_t
ngx_idempotency_redis_conn_idle(redis_conn_t *conn)
{
    return conn->nchannels == 0 && ngx_queue_empty(&conn->calls)
           && ngx_queue_empty(&conn->sent) && ngx_queue_empty(&conn->waiting);
}


static void
conn_open(redis_conn_t *conn)
{
    ngx_addr_t    *addr;
    redis_node_t  *node;

    node = conn->node;

    conn->state = redis_connecting;
    conn->attempts++;
    conn->begun = ngx_current_msec;

    ngx_add_timer(&conn->timer, conn->redis->conf.connect_timeout);

    if (node->naddrs) {
        addr = &node->addrs[conn->attempts % node->naddrs];
        open_connect(conn, addr->sockaddr, addr->socklen);

    } else if (node->host.len) {
        open_resolve(conn);

    } else {
        conn_failed(conn, "its address is not known yet");
    }
}


static void
open_resolve(redis_conn_t *conn)
{
    ngx_resolver_ctx_t            *ctx;
    ngx_idempotency_redis_conf_t  *conf;

    conf = &conn->redis->conf;

    ctx = conf->resolver ? ngx_resolve_start(conf->resolver, NULL) : NULL;

    if (ctx == NULL || ctx == NGX_NO_RESOLVER) {
        conn_failed(conn, "\"http\" has no \"resolver\" for \"%V\"",
                    &conn->node->host);
        return;
    }

    ctx->name = conn->node->host;
    ctx->handler = open_resolved;
    ctx->data = conn;
    ctx->timeout = conf->resolver_timeout;
    ctx->cancelable = 1;

    conn->resolving = ctx;

    if (ngx_resolve_name(ctx) != NGX_OK) {
        conn->resolving = NULL;
        conn_failed(conn, "could not resolve \"%V\"", &conn->node->host);
    }
}


static void
open_resolved(ngx_resolver_ctx_t *ctx)
{
    redis_conn_t         *conn;
    ngx_resolver_addr_t  *addr;

    conn = ctx->data;

    if (ctx->state || ctx->naddrs == 0) {
        conn_failed(conn, "could not resolve \"%V\"", &conn->node->host);
        return;
    }

    conn->resolving = NULL;

    addr = &ctx->addrs[conn->attempts % ctx->naddrs];
    open_connect(conn, addr->sockaddr, addr->socklen);

    ngx_resolve_name_done(ctx);
}


static void
open_connect(redis_conn_t *conn, struct sockaddr *sockaddr, socklen_t socklen)
{
    ngx_int_t               rc;
    ngx_connection_t       *c;
    ngx_peer_connection_t  *peer;

    ngx_memcpy(&conn->sockaddr, sockaddr, socklen);
    ngx_inet_set_port(&conn->sockaddr.sockaddr, conn->node->port);

    peer = &conn->peer;
    ngx_memzero(peer, sizeof(ngx_peer_connection_t));

    peer->sockaddr = &conn->sockaddr.sockaddr;
    peer->socklen = socklen;
    peer->name = &conn->node->name;
    peer->get = ngx_event_get_peer;
    peer->so_keepalive = 1;
    peer->log_error = NGX_ERROR_INFO;
    peer->log = open_log(conn);

    rc = ngx_event_connect_peer(peer);

    c = peer->connection;
    conn->c = c;

    if (rc != NGX_OK && rc != NGX_AGAIN) {
        conn_failed(conn, "not connected");
        return;
    }

    conn->pool = ngx_create_pool(512, conn->redis->log);
    if (conn->pool == NULL) {
        conn_failed(conn, "no memory");
        return;
    }

    c->data = conn;
    c->pool = conn->pool;
    c->log = peer->log;
    c->read->log = c->log;
    c->write->log = c->log;
    c->read->handler = io_read_handler;
    c->write->handler = io_write_handler;

    c->idle = 1;

    if (rc == NGX_OK) {
        conn_opened(conn);
    }
}


/* One line for an outage is enough, but nginx logs several for each try: they
   are caught, to be part of our line. */

static ngx_log_t *
open_log(redis_conn_t *conn)
{
    ngx_log_t  *log;

    log = conn->redis->log;
    conn->ncaught = 0;

    if (log->log_level & NGX_LOG_DEBUG_ALL) {
        return log;
    }

    ngx_memzero(&conn->log, sizeof(ngx_log_t));

    conn->log.log_level = NGX_LOG_INFO;
    conn->log.writer = open_log_writer;
    conn->log.wdata = conn;

    return &conn->log;
}


/* skips time and process: they end at the first colon with a blank after it */

static void
open_log_writer(ngx_log_t *log, ngx_uint_t level, u_char *buf, size_t len)
{
    u_char        *p, *last;
    redis_conn_t  *conn;

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

    conn->ncaught = ngx_min((size_t) (last - p), sizeof(conn->caught));
    ngx_memcpy(conn->caught, p, conn->ncaught);
}


static void
conn_opened(redis_conn_t *conn)
{
    int        err;
    u_char    *last, text[NGX_MAX_ERROR_STR];
    socklen_t  len;

    err = 0;
    len = sizeof(int);

    if (getsockopt(conn->c->fd, SOL_SOCKET, SO_ERROR, (void *) &err, &len)
        == -1)
    {
        err = ngx_socket_errno;
    }

    if (err) {
        last = ngx_strerror(err, text, sizeof(text));
        conn_failed(conn, "connect() failed: %*s", (size_t) (last - text),
                    text);
        return;
    }

    if (conn->sockaddr.sockaddr.sa_family != AF_UNIX
        && ngx_tcp_nodelay(conn->c) != NGX_OK)
    {
        conn_failed(conn, "setsockopt() failed");
        return;
    }

#if (NGX_SSL)
    if (conn->redis->conf.ssl) {
        tls_start(conn);
        return;
    }
#endif

    handshake_start(conn);
}


#if (NGX_SSL)


static void
tls_start(redis_conn_t *conn)
{
    char               name[NGX_MAXHOSTNAMELEN];
    ngx_int_t          rc;
    ngx_str_t          host;
    ngx_connection_t  *c;
    X509_VERIFY_PARAM *param;

    c = conn->c;
    host = tls_name(conn);

    if (host.len == 0 && conn->redis->conf.ssl_verify) {
        ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_DENIED,
                                        "\"ssl_name\" is not set, and a unix "
                                        "socket has no name");
        return;
    }

    if (host.len >= sizeof(name)
        || ngx_ssl_create_connection(&conn->redis->conf.ssl_ctx, c,
                                     NGX_SSL_BUFFER|NGX_SSL_CLIENT)
           != NGX_OK)
    {
        goto failed;
    }

    /* bytes that wait are elsewhere in memory when more follow them */

    (void) SSL_set_mode(c->ssl->connection,
                        SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);

    /* addresses are checked without SNI, which knows names only */

    if (host.len) {
        (void) ngx_cpystrn((u_char *) name, host.data, host.len + 1);

        param = SSL_get0_param(c->ssl->connection);

        if (X509_VERIFY_PARAM_set1_ip_asc(param, name) == 0
            && (X509_VERIFY_PARAM_set1_host(param, name, 0) == 0
                || SSL_set_tlsext_host_name(c->ssl->connection, name) == 0))
        {
            goto failed;
        }
    }

    rc = ngx_ssl_handshake(c);

    if (rc == NGX_AGAIN) {
        c->ssl->handler = tls_done;
        return;
    }

    tls_done(c);
    return;

failed:

    conn_failed(conn, "no TLS connection");
}


/* the name that the server's certificate must have; a unix socket has none */

static ngx_str_t
tls_name(redis_conn_t *conn)
{
    ngx_str_t  name;

    name = conn->redis->conf.ssl_name.len ? conn->redis->conf.ssl_name
                                          : conn->node->host;

    if (name.len && name.data[0] == '[' && name.data[name.len - 1] == ']') {
        name.data++;
        name.len -= 2;
    }

    return name;
}


static void
tls_done(ngx_connection_t *c)
{
    long           rc;
    ngx_str_t      name;
    redis_conn_t  *conn;

    conn = c->data;

    if (!c->ssl->handshaked) {
        conn_failed(conn, "TLS handshake failed");
        return;
    }

    rc = conn->redis->conf.ssl_verify
         ? SSL_get_verify_result(c->ssl->connection) : X509_V_OK;

    if (rc == X509_V_OK) {
        handshake_start(conn);

    } else if (rc == X509_V_ERR_HOSTNAME_MISMATCH
               || rc == X509_V_ERR_IP_ADDRESS_MISMATCH)
    {
        name = tls_name(conn);

        ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_DENIED,
                                        "its certificate is not one of \"%V\"",
                                        &name);
    } else {
        ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_DENIED,
                                        "its certificate was not accepted: %s",
                                        X509_verify_cert_error_string(rc));
    }
}


#endif


static void
handshake_start(redis_conn_t *conn)
{
    handshake_step_t              *step;
    ngx_idempotency_redis_conf_t  *conf;

    static ngx_str_t  everyone = ngx_string("default");

    conf = &conn->redis->conf;

    conn->c->read->handler = io_read_handler;
    conn->c->write->handler = io_write_handler;
    conn->state = redis_handshake;

    /* sentinels have passwords of their own, or none: errors don't count */

    step = conn->kind->seeks ? NULL : &step_needed;

    if (conf->password.len) {
        ngx_idempotency_redis_conn_ask(conn, handshake_answer, step,
                                       "AUTH %V %V",
                                       conf->user.len ? &conf->user : &everyone,
                                       &conf->password);
    }

    if (conn->kind->seeks) {
        ngx_idempotency_redis_conn_ask(conn, handshake_answer, &step_ping,
                                       "PING");
        return;
    }

    ngx_idempotency_redis_conn_ask(conn, handshake_answer, &step_hello,
                                   "HELLO 2 SETNAME nginx-idempotency");

    if (conf->database) {
        ngx_idempotency_redis_conn_ask(conn, handshake_answer, &step_needed,
                                       "SELECT %i", conf->database);
    }

    ngx_idempotency_redis_conn_ask(conn, handshake_answer, &step_role, "ROLE");

    if (conn->kind == &ngx_idempotency_redis_pipeline) {
        ngx_idempotency_redis_mark_ask(conn, 1);
    }

    ngx_idempotency_redis_conn_check(conn, conn->info);
}


/* the handshake's last command; later it checks that the server is there */

void
ngx_idempotency_redis_conn_check(redis_conn_t *conn, ngx_uint_t info)
{
    if (info) {
        ngx_idempotency_redis_conn_ask(conn, handshake_answer, &step_info,
                                       "INFO");
    }

    ngx_idempotency_redis_conn_ask(conn, handshake_answer, &step_time, "TIME");
}


static void
handshake_answer(redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply)
{
    handshake_step_t  *step = data;

    ngx_idempotency_redis_error_e  error;

    if (reply == NULL || step == NULL) {
        return;
    }

    if (reply->type != NGX_IDEMPOTENCY_REDIS_ERROR) {

        if (step->answer) {
            step->answer(conn, reply);
        }

        return;
    }

    error = ngx_idempotency_redis_verdict(&reply->str).error;

    if (step->needed || error == NGX_IDEMPOTENCY_REDIS_AWAY
        || (error == NGX_IDEMPOTENCY_REDIS_DENIED
            && !ngx_idempotency_resp_in(&reply->str, "NOPERM"))
        || ngx_idempotency_resp_in(&reply->str, "max number of clients"))
    {
        ngx_idempotency_redis_conn_lose(conn,
                                        error == NGX_IDEMPOTENCY_REDIS_FAULT
                                        ? NGX_IDEMPOTENCY_REDIS_CONNECT
                                        : error,
                                        "it says: %V", &reply->str);

    } else if (step->text) {
        ngx_idempotency_redis_warn(conn, step->warn, step->text, &reply->str);
    }
}


static void
handshake_role(redis_conn_t *conn, ngx_idempotency_redis_reply_t *reply)
{
    if (reply->n && !ngx_idempotency_resp_is(&reply->elts[0].str, "master")) {
        ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_AWAY,
                                        "it is no master, but \"%V\"",
                                        &reply->elts[0].str);
    }
}


static void
handshake_time(redis_conn_t *conn, ngx_idempotency_redis_reply_t *reply)
{
    int64_t  sec, usec;

    if (reply->n != 2
        || ngx_idempotency_resp_decimal(&reply->elts[0].str, &sec) != NGX_OK
        || ngx_idempotency_resp_decimal(&reply->elts[1].str, &usec) != NGX_OK)
    {
        conn_failed(conn, "it does not tell the time");
        return;
    }

    ngx_idempotency_redis_node_set_time(conn->node,
                                         (uint64_t) sec * 1000000 + usec);

    if (conn->state == redis_handshake) {
        conn_ready(conn, reply);
    }
}


static void
conn_ready(redis_conn_t *conn, ngx_idempotency_redis_reply_t *reply)
{
    ngx_del_timer(&conn->timer);

    conn->state = redis_ready;
    conn->down = 0;

    /* a discovery connection counts only when its question is answered */

    if (!conn->kind->seeks) {
        conn->backoff = 0;
        ngx_idempotency_redis_conn_back(conn);
    }

    conn->kind->ready(conn);
}


/* whether the server's settings would make it forget: logged once for each
   start of the server, by one worker */

static void
handshake_settings(redis_conn_t *conn, ngx_str_t *info)
{
    ngx_str_t      run_id, policy, aof, *name;
    redis_node_t  *node;

    node = conn->node;
    name = &conn->redis->conf.name;

    run_id = handshake_field(info, "\nrun_id:");
    policy = handshake_field(info, "\nmaxmemory_policy:");
    aof = handshake_field(info, "\naof_enabled:");

    if (run_id.len != sizeof(node->run_id)
        || ngx_memcmp(node->run_id, run_id.data, run_id.len) == 0)
    {
        return;
    }

    if (node->run_id[0]) {
        ngx_log_error(NGX_LOG_WARN, conn->redis->log, 0,
                      "idempotency_redis \"%V\": %V was started anew, or is "
                      "another server: what it had not stored, or was not "
                      "replicated to it, it has forgotten",
                      name, &node->name);
    }

    ngx_memcpy(node->run_id, run_id.data, run_id.len);
    node->evicted = 0;

    if (policy.len && !ngx_idempotency_resp_in(&policy, "noeviction")) {
        ngx_log_error(NGX_LOG_WARN, conn->redis->log, 0,
                      "idempotency_redis \"%V\": %V forgets when its memory is "
                      "full (maxmemory-policy %V), and what it forgot is "
                      "executed again; set it to noeviction",
                      name, &node->name, &policy);
    }

    if (aof.len == 1 && aof.data[0] == '0') {
        ngx_log_error(NGX_LOG_WARN, conn->redis->log, 0,
                      "idempotency_redis \"%V\": %V forgets what is newer than "
                      "its last snapshot, if there is any, when it restarts "
                      "(appendonly no), and what it forgot is executed again",
                      name, &node->name);
    }
}


static void
handshake_info(redis_conn_t *conn, ngx_idempotency_redis_reply_t *reply)
{
    int64_t        n;
    ngx_str_t      value;
    redis_node_t  *node;

    handshake_settings(conn, &reply->str);

    node = conn->node;
    value = handshake_field(&reply->str, "\nevicted_keys:");

    if (ngx_idempotency_resp_decimal(&value, &n) != NGX_OK
        || (uint64_t) n <= node->evicted)
    {
        return;
    }

    ngx_log_error(NGX_LOG_ERR, conn->redis->log, 0,
                  "idempotency_redis \"%V\": %V has evicted %L keys, %L of "
                  "them lately: tokens among them are executed again",
                  &conn->redis->conf.name, &node->name, n,
                  n - (int64_t) node->evicted);

    node->evicted = n;
}


/* the rest of the line that begins with the name */

static ngx_str_t
handshake_field(ngx_str_t *info, char *name)
{
    u_char     *p, *last;
    ngx_str_t   value;

    ngx_str_null(&value);

    p = ngx_strnstr(info->data, name, info->len);

    if (p) {
        value.data = p + ngx_strlen(name);

        last = ngx_strlchr(value.data, info->data + info->len, CR);
        value.len = last ? (size_t) (last - value.data) : 0;
    }

    return value;
}


void
ngx_idempotency_redis_node_set_time(redis_node_t *node, uint64_t time)
{
    node->clock = time;
    node->clock_at = handshake_clock();
}


/*
 * The server told its time after it had read the question, and before we read
 * the answer: its time now is at least what it told plus the time since then.
 * Its clock may be slower by a thousandth.
 */

uint64_t
ngx_idempotency_redis_node_time(redis_node_t *node)
{
    uint64_t  passed;

    if (node->clock == 0) {
        return 0;
    }

    passed = handshake_clock() - node->clock_at;

    return node->clock + passed - passed / 1000;
}


static uint64_t
handshake_clock(void)
{
    struct timespec  ts;

    (void) clock_gettime(CLOCK_MONOTONIC, &ts);

    return (uint64_t) ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}


static void
io_read_handler(ngx_event_t *rev)
{
    u_char            *p;
    size_t             size;
    ssize_t            n;
    redis_conn_t      *conn;
    ngx_connection_t  *c;

    c = rev->data;
    conn = c->data;

    if (c->close) {

        /* an exiting worker does not wait for a connection without calls */

        if (c->error || ngx_idempotency_redis_conn_idle(conn)) {
            conn_failed(conn, "the worker process exits");
            return;
        }

        c->close = 0;

        if (!rev->ready) {
            return;
        }
    }

    if (conn->state == redis_connecting) {
        conn_opened(conn);
        return;
    }

    do {
        p = ngx_idempotency_resp_room(&conn->in, &size);

        if (p == NULL) {
            conn_failed(conn, "no memory");
            return;
        }

        n = c->recv(c, p, size);

        if (n == 0 || n == NGX_ERROR) {
            conn_failed(conn, n ? "it is lost" : "it closed the connection");
            return;
        }

        if (n > 0) {
            conn->in.in.len += n;

            if (io_replies(conn) != NGX_OK) {
                return;
            }
        }

    } while (n != NGX_AGAIN);

    if (ngx_handle_read_event(rev, 0) != NGX_OK) {
        conn_failed(conn, "no read event");
        return;
    }

    ngx_idempotency_redis_conn_reap(conn);
}


/* NGX_ERROR: the connection was closed; it may be open again */

static ngx_int_t
io_replies(redis_conn_t *conn)
{
    ngx_int_t                       rc;
    ngx_uint_t                      generation;
    ngx_idempotency_redis_reply_t  *reply;

    generation = conn->generation;

    while (conn->generation == generation) {
        rc = ngx_idempotency_resp_next(&conn->in, &reply);

        if (rc == NGX_AGAIN) {
            return NGX_OK;
        }

        if (rc != NGX_OK) {
            ngx_idempotency_redis_conn_lose(conn,
                                            NGX_IDEMPOTENCY_REDIS_PROTOCOL,
                                            rc == NGX_ABORT
                                            ? "no memory for its answer"
                                            : "its answer is not RESP");

        } else if (conn->kind->push
                   && conn->kind->push(conn, reply) == NGX_OK)
        {
            continue;

        } else if (conn->ndue) {
            io_answer(conn, reply);

        } else {
            ngx_idempotency_redis_conn_lose(conn,
                                            NGX_IDEMPOTENCY_REDIS_PROTOCOL,
                                            "an answer without a question "
                                            "\"%V\"", &reply->str);
        }
    }

    return NGX_ERROR;
}


static void
io_write_handler(ngx_event_t *wev)
{
    redis_conn_t      *conn;
    ngx_connection_t  *c;

    c = wev->data;
    conn = c->data;

    if (conn->state == redis_connecting) {
        conn_opened(conn);
        return;
    }

    conn_flush(&conn->flush);
}


static void
conn_flush(ngx_event_t *ev)
{
    redis_conn_t  *conn;

    conn = ev->data;

    if (conn->kind->flush) {
        conn->kind->flush(conn);
    }

    if (conn->state == redis_handshake || conn->state == redis_ready) {
        io_write(conn);
    }
}


static void
io_write(redis_conn_t *conn)
{
    ssize_t                      n;
    ngx_connection_t            *c;
    ngx_idempotency_resp_buf_t  *out;

    c = conn->c;
    out = &conn->out;

    if (out->failed) {
        conn_failed(conn, "no memory");
        return;
    }

    while (out->pos < out->len) {
        n = c->send(c, out->buf + out->pos, out->len - out->pos);

        if (n == NGX_AGAIN || n == 0) {
            break;
        }

        if (n == NGX_ERROR) {
            conn_failed(conn, "it is lost");
            return;
        }

        ngx_idempotency_resp_skip(out, n);
    }

    if (ngx_handle_write_event(c->write, 0) != NGX_OK) {
        conn_failed(conn, "no write event");
        return;
    }
}


ngx_int_t
ngx_idempotency_redis_conn_due(redis_conn_t *conn, redis_answer_pt handler,
    void *data, ngx_uint_t expected)
{
    redis_due_t  *due;

    due = ngx_alloc(sizeof(redis_due_t), ngx_cycle->log);
    if (due == NULL) {
        conn->out.failed = 1;
        return NGX_ERROR;
    }

    due->handler = handler;
    due->data = data;
    due->expected = expected;

    ngx_queue_insert_tail(&conn->due, &due->queue);
    conn->ndue++;

    if (expected && conn->expected++ == 0 && !conn->timer.timer_set) {
        ngx_add_timer(&conn->timer, conn->redis->conf.timeout);
    }

    return NGX_OK;
}


void
ngx_idempotency_redis_conn_ask(redis_conn_t *conn, redis_answer_pt handler,
    void *data, const char *format, ...)
{
    va_list  args;

    va_start(args, format);
    ngx_idempotency_resp_say(&conn->out, format, args);
    va_end(args);

    /* without memory the connection is lost then */

    ngx_post_event(&conn->flush, &ngx_posted_events);

    (void) ngx_idempotency_redis_conn_due(conn, handler, data, 1);
}


/* calls the oldest handler; NULL: the connection is lost */

static void
io_answer(redis_conn_t *conn, ngx_idempotency_redis_reply_t *reply)
{
    ngx_queue_t  *q;
    redis_due_t  *due;

    q = ngx_queue_head(&conn->due);
    ngx_queue_remove(q);
    conn->ndue--;

    due = ngx_queue_data(q, redis_due_t, queue);

    if (due->expected && conn->expected) {
        conn->expected--;

        if (conn->state == redis_ready) {
            ngx_del_timer(&conn->timer);

            /* it answers: there is time anew for what else was asked */

            if (conn->expected) {
                ngx_add_timer(&conn->timer, conn->redis->conf.timeout);
            }
        }
    }

    if (due->handler) {
        due->handler(conn, due->data, reply);
    }

    ngx_free(due);
}


/* all due answers are lost */

static void
conn_drain(redis_conn_t *conn)
{
    ngx_uint_t  n;

    for (n = conn->ndue; n; n--) {
        io_answer(conn, NULL);
    }
}
