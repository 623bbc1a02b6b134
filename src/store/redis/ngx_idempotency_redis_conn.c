
/*
 * One connection to a Redis: made, lost and made again.  How it is opened, and
 * how bytes go out and answers come back, is told in files of their own.
 */


#include "ngx_idempotency_redis_conn.h"


/* between two tries */

#define CONN_PAUSE_MIN  50
#define CONN_PAUSE_MAX  2000


static void conn_close(ngx_idempotency_redis_conn_t *conn, ngx_uint_t reset);
static void conn_again(ngx_idempotency_redis_conn_t *conn);
static void conn_tell(ngx_idempotency_redis_conn_t *conn);
static void conn_timer(ngx_event_t *ev);


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
    ngx_idempotency_redis_conn_drain(conn);
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
        ngx_idempotency_redis_conn_open(conn);
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
    ngx_idempotency_redis_conn_drain(conn);

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
    ngx_idempotency_redis_conn_drain(conn);

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
        ngx_idempotency_redis_conn_open(conn);
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
        ngx_idempotency_redis_conn_drain(conn);
    }
}
