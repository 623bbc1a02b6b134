
/*
 * What must stand in a server before certain calls go there, and what their
 * scripts may do there: asked for in the greeting, and from time to time.
 */


#include "ngx_idempotency_redis_conn.h"


/* of a connection, for each mark */

#define MARK_UNKNOWN  0
#define MARK_ASKED    1
#define MARK_THERE    2
#define MARK_OTHER    3
/* ... the first of its two answers is there: it is one of these */
#define MARK_TRIED    4


static void mark_say(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_mark_t *mark);
static void mark_tried(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static void mark_said(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static ngx_uint_t mark_judge(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_mark_t *mark, ngx_idempotency_redis_reply_t *reply,
    ngx_int_t (*handler)(ngx_idempotency_redis_mark_t *mark,
    ngx_idempotency_redis_reply_t *reply));
static ngx_int_t mark_may(ngx_idempotency_redis_mark_t *mark,
    ngx_idempotency_redis_reply_t *reply);


void
ngx_idempotency_redis_mark(ngx_idempotency_redis_t *redis,
    ngx_idempotency_redis_mark_t *mark)
{
    mark->n = redis->nmarks++;
    mark->next = redis->marks;

    redis->marks = mark;
}


void
ngx_idempotency_redis_mark_ask(ngx_idempotency_redis_conn_t *conn)
{
    ngx_idempotency_redis_mark_t  *mark;

    for (mark = conn->redis->marks; mark; mark = mark->next) {
        mark_say(conn, mark);
    }
}


ngx_int_t
ngx_idempotency_redis_mark_look(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_mark_t *mark)
{
    switch (conn->marks[mark->n]) {

    case MARK_THERE:
        return NGX_OK;

    case MARK_OTHER:
        return NGX_DECLINED;

    case MARK_UNKNOWN:
        mark_say(conn, mark);

        /* fall through */

    default:
        return NGX_AGAIN;
    }
}


/* something was refused there: it is asked for before the next call */

void
ngx_idempotency_redis_mark_doubt(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_mark_t *mark)
{
    if (conn->marks[mark->n] == MARK_THERE) {
        conn->marks[mark->n] = MARK_UNKNOWN;
    }
}


void
ngx_idempotency_redis_marked(ngx_idempotency_redis_t *redis,
    ngx_idempotency_redis_mark_t *mark)
{
    ngx_uint_t                     i, n;
    ngx_queue_t                   *q;
    ngx_idempotency_redis_conn_t  *conn;
    ngx_idempotency_redis_node_t  *node;

    n = 2 * redis->conf.connections;

    for (q = ngx_queue_head(&redis->nodes);
         q != ngx_queue_sentinel(&redis->nodes);
         q = ngx_queue_next(q))
    {
        node = ngx_queue_data(q, ngx_idempotency_redis_node_t, queue);

        for (i = 0; i < n; i++) {
            conn = node->conns[i];

            if (conn && conn->marks[mark->n] == MARK_OTHER) {
                conn->marks[mark->n] = MARK_UNKNOWN;
            }
        }
    }
}


/* by its text: whoever is there need not know it, and it is short */

static void
mark_say(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_mark_t *mark)
{
    ngx_str_t                    publish;
    ngx_idempotency_resp_out_t  *out;

    out = &conn->out;

    if (ngx_idempotency_redis_sharded(conn->redis)) {
        ngx_str_set(&publish, "SPUBLISH");

    } else {
        ngx_str_set(&publish, "PUBLISH");
    }

    /* without a key, so that each node of a cluster answers */

    ngx_idempotency_resp_command(out, 5);
    ngx_idempotency_resp_word(out, (u_char *) "EVAL", 4);
    ngx_idempotency_resp_str(out, &mark->tries->text);
    ngx_idempotency_resp_word(out, (u_char *) "0", 1);
    ngx_idempotency_resp_str(out, &mark->key);
    ngx_idempotency_resp_str(out, &publish);

    (void) ngx_idempotency_redis_conn_expect(conn, mark_tried, mark);

    ngx_idempotency_resp_command(out, 5);
    ngx_idempotency_resp_word(out, (u_char *) "EVAL", 4);
    ngx_idempotency_resp_str(out, &mark->script->text);
    ngx_idempotency_resp_word(out, (u_char *) "1", 1);
    ngx_idempotency_resp_str(out, &mark->key);
    ngx_idempotency_resp_str(out, mark->value);

    conn->marks[mark->n] = MARK_ASKED;

    (void) ngx_idempotency_redis_conn_expect(conn, mark_said, mark);
}


static void
mark_tried(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply)
{
    ngx_idempotency_redis_mark_t  *mark = data;

    ngx_idempotency_redis_conn_expected(conn);

    conn->marks[mark->n] = MARK_TRIED
                           + mark_judge(conn, mark, reply, mark_may);

    if (reply && reply->type == NGX_IDEMPOTENCY_REDIS_ARRAY && reply->n == 2
        && reply->elts[0].str.len == 1 && reply->elts[0].str.data[0] == 'W'
        && conn->info && !conn->node->mute)
    {
        conn->node->mute = 1;

        ngx_log_error(NGX_LOG_WARN, conn->redis->log, 0,
                      "idempotency_redis \"%V\": the user may not publish at "
                      "%V (%V \"%V\"): who waits for what is pending "
                      "elsewhere is told late",
                      &conn->redis->conf.name, &conn->node->name,
                      &reply->elts[1].str, &mark->key);
    }
}


static void
mark_said(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply)
{
    ngx_idempotency_redis_mark_t  *mark = data;

    ngx_uint_t  tried;

    ngx_idempotency_redis_conn_expected(conn);

    tried = conn->marks[mark->n] - MARK_TRIED;

    conn->marks[mark->n] = (tried == MARK_THERE)
                           ? mark_judge(conn, mark, reply, mark->handler)
                           : tried;

    if (conn->state == ngx_idempotency_redis_ready) {
        conn->kind->ready(conn);
    }
}


static ngx_uint_t
mark_judge(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_mark_t *mark, ngx_idempotency_redis_reply_t *reply,
    ngx_int_t (*handler)(ngx_idempotency_redis_mark_t *mark,
    ngx_idempotency_redis_reply_t *reply))
{
    ngx_idempotency_redis_verdict_t  verdict;

    if (reply == NULL) {
        return MARK_UNKNOWN;
    }

    if (reply->type == NGX_IDEMPOTENCY_REDIS_ERROR) {
        verdict = ngx_idempotency_redis_verdict(&reply->str);

        if (verdict.what == NGX_IDEMPOTENCY_REDIS_MOVED
            || verdict.what == NGX_IDEMPOTENCY_REDIS_ASK)
        {
            return MARK_THERE;
        }

        if (verdict.error == NGX_IDEMPOTENCY_REDIS_AWAY) {
            ngx_idempotency_redis_pipeline_pause(conn, &reply->str);
            conn->retire = (verdict.what == NGX_IDEMPOTENCY_REDIS_MASTER);
            return MARK_UNKNOWN;
        }
    }

    return (handler(mark, reply) == NGX_OK) ? MARK_THERE : MARK_OTHER;
}


static ngx_int_t
mark_may(ngx_idempotency_redis_mark_t *mark,
    ngx_idempotency_redis_reply_t *reply)
{
    ngx_str_t  *what;

    what = &reply->str;

    if (reply->type == NGX_IDEMPOTENCY_REDIS_ARRAY && reply->n
        && reply->elts[0].str.len == 1)
    {
        if (reply->elts[0].str.data[0] != 'N') {
            mark->lacks = 0;
            return NGX_OK;
        }

        what = &reply->elts[reply->n - 1].str;
    }

    mark->lacks = 1;
    mark->why.data = mark->text;
    mark->why.len = ngx_snprintf(mark->text, sizeof(mark->text), "%V", what)
                    - mark->text;

    return NGX_ERROR;
}
