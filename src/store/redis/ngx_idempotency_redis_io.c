
/*
 * What is said over a connection to a Redis is others' business; here it is
 * bytes that go out, and answers that come back in the same order.
 */


#include "ngx_idempotency_redis_conn.h"


static ngx_int_t io_replies(ngx_idempotency_redis_conn_t *conn);
static ngx_idempotency_redis_due_t *io_due(
    ngx_idempotency_redis_conn_t *conn);


void
ngx_idempotency_redis_conn_read_handler(ngx_event_t *rev)
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
        ngx_idempotency_redis_conn_opened(conn);
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

        if (io_replies(conn) != NGX_OK) {
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
io_replies(ngx_idempotency_redis_conn_t *conn)
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

            due = io_due(conn);
            due->handler(conn, due->data, reply);
        }

        if (conn->generation != generation) {
            return NGX_ERROR;
        }
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


void
ngx_idempotency_redis_conn_write_handler(ngx_event_t *wev)
{
    ngx_uint_t                     generation;
    ngx_connection_t              *c;
    ngx_idempotency_redis_conn_t  *conn;

    c = wev->data;
    conn = c->data;

    if (conn->state == ngx_idempotency_redis_connecting) {
        ngx_idempotency_redis_conn_opened(conn);
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
io_due(ngx_idempotency_redis_conn_t *conn)
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


/* what is due will never be answered */

void
ngx_idempotency_redis_conn_drain(ngx_idempotency_redis_conn_t *conn)
{
    ngx_uint_t                     n;
    ngx_idempotency_redis_due_t   *due;

    for (n = conn->ndue; n; n--) {
        due = io_due(conn);
        due->handler(conn, due->data, NULL);
    }
}
