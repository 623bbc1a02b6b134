
/*
 * What must stand in a server before certain calls go there, and what their
 * scripts may do there: asked for in the greeting, and from time to time.
 */


#include "ngx_idempotency_redis_conn.h"


/* of a connection, for each mark */

#define MARK_UNKNOWN        0
#define MARK_THERE          1
#define MARK_OTHER          2
/* some of its answers are there: all of them are well, or these are not */
#define MARK_ASKED          3
#define MARK_ASKED_UNKNOWN  4
#define MARK_ASKED_OTHER    5


static void mark_say(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_mark_t *mark);
static ngx_uint_t mark_say_stamp(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_stamp_t *stamp, ngx_uint_t text);
static void mark_said(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static void mark_tried(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static ngx_int_t mark_error(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_reply_t *reply);
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
ngx_idempotency_redis_mark_ask(ngx_idempotency_redis_conn_t *conn,
    ngx_uint_t anew)
{
    ngx_idempotency_redis_mark_t  *mark;

    for (mark = conn->redis->marks; mark; mark = mark->next) {

        if (anew) {
            conn->marks[mark->n] = MARK_UNKNOWN;
        }

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
    ngx_idempotency_redis_conn_t  *conn;
    ngx_idempotency_redis_node_t  *node;

    n = 2 * redis->conf.connections;
    node = NULL;

    while ((node = ngx_idempotency_redis_node_next(redis, node)) != NULL) {
        for (i = 0; i < n; i++) {
            conn = node->conns[i];

            if (conn && conn->marks[mark->n] == MARK_OTHER) {
                conn->marks[mark->n] = MARK_UNKNOWN;
            }
        }
    }
}


/* what stands there is not asked for again, as calls may compare it; scripts
   may lose their rights.  By their texts, as the server need not know them */

static void
mark_say(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_mark_t *mark)
{
    ngx_str_t                    publish;
    ngx_uint_t                   i, n;
    ngx_idempotency_resp_out_t  *out;

    n = 0;
    out = &conn->out;

    for (i = 0;
         i < mark->nstamps && conn->marks[mark->n] != MARK_THERE;
         i++)
    {
        n += mark_say_stamp(conn, &mark->stamps[i], n == 0);
    }

    conn->marks[mark->n] = MARK_ASKED;

    if (conn->redis->conf.mode == NGX_IDEMPOTENCY_REDIS_CLUSTER) {
        ngx_str_set(&publish, "SPUBLISH");

    } else {
        ngx_str_set(&publish, "PUBLISH");
    }

    /* without a key, so that each node of a cluster answers */

    ngx_idempotency_resp_command(out, 5);
    ngx_idempotency_resp_word(out, (u_char *) "EVAL", 4);
    ngx_idempotency_resp_str(out, &mark->tries->text);
    ngx_idempotency_resp_word(out, (u_char *) "0", 1);
    ngx_idempotency_resp_str(out, &mark->stamps->key);
    ngx_idempotency_resp_str(out, &publish);

    ngx_idempotency_redis_conn_expect(conn, mark_tried, mark);
}


/* a node of a cluster is not asked for what it has not */

static ngx_uint_t
mark_say_stamp(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_stamp_t *stamp, ngx_uint_t text)
{
    ngx_str_t                        args[NGX_IDEMPOTENCY_REDIS_STAMP_ARGS];
    ngx_uint_t                       i;
    ngx_idempotency_redis_t         *redis;
    ngx_idempotency_resp_out_t      *out;
    ngx_idempotency_redis_script_t  *script;

    out = &conn->out;
    redis = conn->redis;
    script = stamp->mark->script;

    if (redis->conf.mode == NGX_IDEMPOTENCY_REDIS_CLUSTER
        && ngx_idempotency_redis_node_of(redis, &stamp->key) != conn->node)
    {
        return 0;
    }

    stamp->mark->says(stamp, args);

    ngx_idempotency_resp_command(out, 4 + NGX_IDEMPOTENCY_REDIS_STAMP_ARGS);

    if (text) {
        ngx_idempotency_resp_word(out, (u_char *) "EVAL", 4);
        ngx_idempotency_resp_str(out, &script->text);

    } else {
        ngx_idempotency_resp_word(out, (u_char *) "EVALSHA", 7);
        ngx_idempotency_resp_word(out, script->sha1, sizeof(script->sha1));
    }

    ngx_idempotency_resp_word(out, (u_char *) "1", 1);
    ngx_idempotency_resp_str(out, &stamp->key);

    for (i = 0; i < NGX_IDEMPOTENCY_REDIS_STAMP_ARGS; i++) {
        ngx_idempotency_resp_str(out, &args[i]);
    }

    ngx_idempotency_redis_conn_expect(conn, mark_said, stamp);

    return 1;
}


static void
mark_said(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply)
{
    ngx_idempotency_redis_stamp_t  *stamp = data;

    u_char     *is;
    ngx_int_t   rc;

    is = &conn->marks[stamp->mark->n];

    rc = mark_error(conn, reply);

    if (rc == NGX_ERROR) {
        rc = stamp->mark->handler(stamp, reply);
    }

    if (rc == NGX_ERROR) {
        *is = MARK_ASKED_OTHER;

        /* what has forgotten may be no master any more */

        ngx_idempotency_redis_doubt(conn->redis, 0);

    } else if (rc == NGX_AGAIN && *is == MARK_ASKED) {
        *is = MARK_ASKED_UNKNOWN;
    }
}


/* the last one of its answers */

static void
mark_tried(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply)
{
    ngx_idempotency_redis_mark_t  *mark = data;

    u_char     *is;
    ngx_int_t   rc;

    is = &conn->marks[mark->n];

    rc = mark_error(conn, reply);

    if (rc == NGX_ERROR) {
        rc = mark_may(mark, reply);
    }

    *is = (rc == NGX_ERROR || *is == MARK_ASKED_OTHER) ? MARK_OTHER
          : (rc == NGX_AGAIN || *is == MARK_ASKED_UNKNOWN) ? MARK_UNKNOWN
          : MARK_THERE;

    if (reply && reply->type == NGX_IDEMPOTENCY_REDIS_ARRAY && reply->n == 2
        && reply->elts[0].str.len == 1 && reply->elts[0].str.data[0] == 'W'
        && conn->info)
    {
        ngx_idempotency_redis_warn(conn, NGX_IDEMPOTENCY_REDIS_WARN_PUBLISH,
                                   "lets its user not publish, who waits for "
                                   "what is pending elsewhere is told late",
                                   &reply->elts[1].str);
    }

    if (conn->state == ngx_idempotency_redis_ready) {
        conn->kind->ready(conn);
    }
}


/* NGX_ERROR: what it says is to be judged.  What has moved in a cluster is not
   asked for here; NGX_AGAIN: the server is busy, or no master */

static ngx_int_t
mark_error(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_reply_t *reply)
{
    ngx_idempotency_redis_verdict_t  verdict;

    if (reply == NULL) {
        return NGX_AGAIN;
    }

    if (reply->type != NGX_IDEMPOTENCY_REDIS_ERROR) {
        return NGX_ERROR;
    }

    verdict = ngx_idempotency_redis_verdict(&reply->str);

    if (verdict.what == NGX_IDEMPOTENCY_REDIS_MOVED
        || verdict.what == NGX_IDEMPOTENCY_REDIS_ASK)
    {
        return NGX_OK;
    }

    if (verdict.what == NGX_IDEMPOTENCY_REDIS_TEXT) {
        return NGX_AGAIN;
    }

    if (verdict.error == NGX_IDEMPOTENCY_REDIS_AWAY) {
        ngx_idempotency_redis_pipeline_pause(conn, &reply->str);
        conn->retire = (verdict.what == NGX_IDEMPOTENCY_REDIS_MASTER);
        return NGX_AGAIN;
    }

    return NGX_ERROR;
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
