
/*
 * A connection to one who is asked where others are: a sentinel, or some node
 * of a cluster.  Who does not know is left, and another is asked, with longer
 * and longer pauses; what is heard of the others meanwhile shortens them.
 */


#include "ngx_idempotency_redis_conn.h"


/* they are not asked more often, in msec */

#define SEEK_PAUSE  200


void
ngx_idempotency_redis_seek(ngx_idempotency_redis_conn_t *conn,
    ngx_uint_t news, char *why)
{
    ngx_msec_t  passed, pause;

    passed = ngx_current_msec - conn->begun;
    pause = (passed < SEEK_PAUSE) ? SEEK_PAUSE - passed : 1;

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

    ngx_idempotency_redis_conn_restart(conn, pause, why);
}


ngx_int_t
ngx_idempotency_redis_sought(ngx_idempotency_redis_conn_t *conn,
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
