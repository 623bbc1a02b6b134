
/*
 * Calls over a connection: they gather until the end of a turn of the event
 * loop, go out in one write, and are answered in that order.  Each is answered
 * by its deadline, whatever becomes of the connection.
 *
 * Durable calls have connections of their own: after a batch of them the server
 * is asked how many replicas, or whether its disk, has it, and it answers
 * nothing else until it knows.  Meanwhile the next batch gathers.
 *
 * Marks: the stamps that must be on a server before certain calls go there, and
 * the rights of their scripts.  They are asked for in the handshake, and from
 * time to time.
 */


#include "ngx_idempotency_redis_conn.h"


/* the most on the way: all of it may be lost with the connection */

#define PIPELINE_BYTES      (256 * 1024)
#define PIPELINE_CALLS      4096
/* the pauses before a server that says "later" is asked again, in msec */
#define PIPELINE_PAUSE_MIN  5
#define PIPELINE_PAUSE_MAX  250
#define PIPELINE_TRIES      16
/* how long replicas may be silent; and how often one claim is tried then, as
   not all servers report on their replicas */
#define PIPELINE_SILENCE    1000
#define PIPELINE_TRY        5000


/* the states of a mark, for each connection */

#define MARK_THERE    0
#define MARK_UNKNOWN  1
#define MARK_OTHER    2
/* ... so far, as not all answers are there */
#define MARK_ASKED    4


static void pipeline_flush(redis_conn_t *conn);
static void pipeline_refuse(redis_conn_t *conn);
static ngx_uint_t pipeline_refuses(redis_conn_t *conn,
    ngx_idempotency_redis_call_t *call);
static void pipeline_send(redis_conn_t *conn);
static void pipeline_write(redis_conn_t *conn,
    ngx_idempotency_redis_call_t *call);
static void pipeline_answer(redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static ngx_int_t pipeline_code(redis_conn_t *conn,
    ngx_idempotency_redis_call_t *call, ngx_idempotency_redis_reply_t *reply);
static void pipeline_error(redis_conn_t *conn,
    ngx_idempotency_redis_call_t *call, ngx_idempotency_redis_reply_t *reply);
static void pipeline_resend(redis_conn_t *conn,
    ngx_idempotency_redis_call_t *call);
static void pipeline_later(redis_conn_t *conn,
    ngx_idempotency_redis_call_t *call, ngx_str_t *why);
static void pipeline_pause(redis_conn_t *conn, ngx_str_t *why);
static void pipeline_moved(redis_conn_t *conn,
    ngx_idempotency_redis_call_t *call, ngx_idempotency_redis_reply_t *reply,
    ngx_uint_t ask);
static void pipeline_ask_acks(redis_conn_t *conn, ngx_msec_t left);
static void pipeline_acks(redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static void pipeline_acked(redis_conn_t *conn,
    ngx_idempotency_redis_error_e error, ngx_str_t *why);
static void pipeline_expire(ngx_event_t *ev);
static ngx_msec_t pipeline_left(ngx_queue_t *calls, ngx_msec_t left);
static void pipeline_arm(redis_conn_t *conn, ngx_msec_t deadline);
static void pipeline_disarm(redis_conn_t *conn);
static void pipeline_move(ngx_queue_t *to, ngx_queue_t *from);
static ngx_idempotency_redis_call_t *pipeline_first(ngx_queue_t *calls);
static void pipeline_give(redis_conn_t *conn,
    ngx_idempotency_redis_call_t *call, ngx_idempotency_redis_reply_t *reply,
    ngx_idempotency_redis_error_e error, ngx_str_t *why, ngx_uint_t maybe);
static void pipeline_ready(redis_conn_t *conn);
static void pipeline_lost(redis_conn_t *conn);
static void mark_suspect(redis_conn_t *conn,
    ngx_idempotency_redis_mark_t *mark);
static void mark_ask(redis_conn_t *conn, ngx_idempotency_redis_mark_t *mark);
static ngx_uint_t mark_ask_stamp(redis_conn_t *conn,
    ngx_idempotency_redis_stamp_t *stamp, ngx_uint_t text);
static void mark_stamp_answer(redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static void mark_try_answer(redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static ngx_int_t mark_error(redis_conn_t *conn,
    ngx_idempotency_redis_reply_t *reply);
static void mark_set(redis_conn_t *conn, ngx_idempotency_redis_mark_t *mark,
    ngx_int_t rc);
static ngx_int_t mark_rights(redis_conn_t *conn,
    ngx_idempotency_redis_mark_t *mark, ngx_idempotency_redis_reply_t *reply);


static ngx_str_t  pipeline_few = ngx_string("too few replicas have it in time");


redis_kind_t  ngx_idempotency_redis_pipeline = {
    0,
    pipeline_ready,
    pipeline_lost,
    NULL,
    pipeline_flush,
    pipeline_expire
};


void
ngx_idempotency_redis_pipeline_call(redis_conn_t *conn,
    ngx_idempotency_redis_call_t *call)
{
    ngx_queue_insert_tail(&conn->calls, &call->queue);

    pipeline_arm(conn, call->deadline);

    ngx_post_event(&conn->flush, &ngx_posted_events);
}


static void
pipeline_flush(redis_conn_t *conn)
{
    if (conn->state != redis_ready && !ngx_queue_empty(&conn->calls)) {
        ngx_idempotency_redis_conn_connect(conn);

        if (ngx_current_msec - conn->since >= conn->redis->conf.timeout) {
            conn->down = 1;
        }
    }

    pipeline_refuse(conn);

    if (conn->state == redis_ready && !conn->retire
        && !conn->pause.timer_set && !conn->asked)
    {
        pipeline_send(conn);
    }
}


/* answers the calls that will not be sent; a handler may make new ones */

static void
pipeline_refuse(redis_conn_t *conn)
{
    ngx_queue_t                   *q, *next, refused;
    ngx_idempotency_redis_call_t  *call;

    ngx_queue_init(&refused);

    for (q = ngx_queue_head(&conn->calls);
         q != ngx_queue_sentinel(&conn->calls);
         q = next)
    {
        next = ngx_queue_next(q);
        call = ngx_queue_data(q, ngx_idempotency_redis_call_t, queue);

        if (pipeline_refuses(conn, call)) {
            ngx_queue_remove(q);
            ngx_queue_insert_tail(&refused, q);
        }
    }

    while ((call = pipeline_first(&refused)) != NULL) {
        pipeline_give(conn, call, NULL, call->error, &call->why, 0);
    }
}


static ngx_uint_t
pipeline_refuses(redis_conn_t *conn, ngx_idempotency_redis_call_t *call)
{
    ngx_uint_t     ready;
    redis_node_t  *node;

    static ngx_str_t  unsent = ngx_string("it was not sent in time");

    node = conn->node;
    ready = (conn->state == redis_ready);

    if (call->fresh && conn->durable && node->missing
        && ngx_current_msec - node->missed >= PIPELINE_SILENCE
        && ngx_current_msec - node->tried < PIPELINE_TRY)
    {
        call->error = NGX_IDEMPOTENCY_REDIS_UNACKED;
        call->why = pipeline_few;
        return 1;
    }

    if (ready && !conn->pause.timer_set && call->mark
        && conn->marks[call->mark->n] == MARK_OTHER)
    {
        call->error = NGX_IDEMPOTENCY_REDIS_REFUSED;
        call->why = call->mark->why;
        return 1;
    }

    if (ready && !conn->paused) {
        call->error = NGX_IDEMPOTENCY_REDIS_TIMEOUT;
        call->why = unsent;

    } else {
        call->error = conn->error;
        call->why = conn->why;
    }

    return (ngx_msec_int_t) (call->deadline - ngx_current_msec) <= 0
           || (!ready && conn->down);
}


static void
pipeline_send(redis_conn_t *conn)
{
    ngx_uint_t                     n;
    ngx_msec_t                     left;
    ngx_idempotency_redis_call_t  *call;

    n = 0;
    left = NGX_MAX_INT_T_VALUE;

    while ((call = pipeline_first(&conn->calls)) != NULL && !conn->out.failed
           && conn->out.len - conn->out.pos <= PIPELINE_BYTES
           && conn->ndue <= PIPELINE_CALLS)
    {
        if (call->mark && conn->marks[call->mark->n] != MARK_THERE) {

            if (conn->marks[call->mark->n] == MARK_UNKNOWN) {
                mark_ask(conn, call->mark);
            }

            break;
        }

        n++;
        left = ngx_min(left, call->deadline - ngx_current_msec);

        pipeline_write(conn, call);
    }

    if (n && conn->durable) {
        pipeline_ask_acks(conn, left);
    }
}


static void
pipeline_write(redis_conn_t *conn, ngx_idempotency_redis_call_t *call)
{
    uint64_t                     until;
    ngx_uint_t                   i, keys, compare;
    ngx_idempotency_resp_buf_t  *out;

    out = &conn->out;
    compare = (call->compare && call->mark->nstamps == 1);
    keys = (call->key.len != 0) + compare;

    /* if ASKING fails, the call fails, too */

    if (call->asking) {
        ngx_idempotency_redis_conn_ask(conn, NULL, NULL, "ASKING");
    }

    ngx_idempotency_resp_command(out, 3 + keys + call->nargs + call->until
                                      + 2 * compare);

    if (call->eval) {
        ngx_idempotency_resp_word(out, (u_char *) "EVAL", 4);
        ngx_idempotency_resp_str(out, &call->script->text);

    } else {
        ngx_idempotency_resp_word(out, (u_char *) "EVALSHA", 7);
        ngx_idempotency_resp_word(out, call->script->sha1,
                                  sizeof(call->script->sha1));
    }

    ngx_idempotency_resp_number(out, keys);

    if (call->key.len) {
        ngx_idempotency_resp_str(out, &call->key);
    }

    if (compare) {
        ngx_idempotency_resp_str(out, &call->mark->stamps->key);
    }

    for (i = 0; i < call->nargs; i++) {
        ngx_idempotency_resp_str(out, &call->args[i]);
    }

    if (call->until) {
        until = ngx_idempotency_redis_node_time(conn->node)
                + (uint64_t) (call->deadline - ngx_current_msec) * 1000;

        ngx_idempotency_resp_number(out, until);
    }

    if (compare) {
        ngx_idempotency_resp_str(out, &call->mark->known[0]);
        ngx_idempotency_resp_str(out, &call->mark->known[1]);
    }

    /* without memory the connection is lost, and the call with it */

    if (ngx_idempotency_redis_conn_due(conn, pipeline_answer, call, 0)
        == NGX_OK)
    {
        ngx_queue_remove(&call->queue);
        ngx_queue_insert_tail(&conn->sent, &call->queue);
    }
}


static void
pipeline_answer(redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply)
{
    ngx_idempotency_redis_call_t  *call = data;

    static ngx_str_t  nomem = ngx_string("no memory for its answer");

    call->asking = 0;

    if (reply == NULL) {
        pipeline_give(conn, call, NULL, conn->error, &conn->why, 1);
        return;
    }

    if (reply->type == NGX_IDEMPOTENCY_REDIS_ERROR) {
        pipeline_error(conn, call, reply);
        return;
    }

    conn->paused = 0;

    if (pipeline_code(conn, call, reply) == NGX_AGAIN) {
        return;
    }

    if (!conn->durable) {
        pipeline_give(conn, call, reply, NGX_IDEMPOTENCY_REDIS_OK, NULL, 0);
        return;
    }

    call->reply = ngx_idempotency_resp_copy(&conn->in);

    if (call->reply == NULL) {
        pipeline_give(conn, call, NULL, NGX_IDEMPOTENCY_REDIS_CONNECT, &nomem,
                      1);
        return;
    }

    ngx_queue_remove(&call->queue);
    ngx_queue_insert_tail(&conn->waiting, &call->queue);
}


/* The reply of each script is a code and the server's time.  NGX_AGAIN: the
   script did nothing, and the call is sent again: it was not late by our clock,
   or the server has another stamp, for which it is asked first. */

static ngx_int_t
pipeline_code(redis_conn_t *conn, ngx_idempotency_redis_call_t *call,
    ngx_idempotency_redis_reply_t *reply)
{
    int64_t     msec;
    ngx_str_t  *code, *time;
    ngx_uint_t  other, late;

    if (reply->type != NGX_IDEMPOTENCY_REDIS_ARRAY || reply->n < 2) {
        return NGX_OK;
    }

    code = &reply->elts[0].str;
    time = &reply->elts[1].str;

    other = (call->compare && ngx_idempotency_resp_is(code, "I"));
    late = (call->until && ngx_idempotency_resp_is(code, "L"));

    if (other) {
        mark_suspect(conn, call->mark);
    }

    if (call->until
        && ngx_idempotency_resp_decimal(time, &msec) == NGX_OK
        && msec > 0)
    {
        ngx_idempotency_redis_node_set_time(conn->node,
                                             (uint64_t) msec * 1000);
    }

    if ((!other && !late)
        || (ngx_msec_int_t) (call->deadline - ngx_current_msec) <= 0
        || ++call->tries > PIPELINE_TRIES)
    {
        return NGX_OK;
    }

    pipeline_resend(conn, call);

    return NGX_AGAIN;
}


static void
pipeline_error(redis_conn_t *conn, ngx_idempotency_redis_call_t *call,
    ngx_idempotency_redis_reply_t *reply)
{
    ngx_idempotency_redis_verdict_t  verdict;

    verdict = ngx_idempotency_redis_verdict(&reply->str);

    switch (verdict.what) {

    case NGX_IDEMPOTENCY_REDIS_TEXT:

        if (call->eval) {
            break;
        }

        call->eval = 1;
        pipeline_resend(conn, call);
        return;

    case NGX_IDEMPOTENCY_REDIS_LATER:
        pipeline_later(conn, call, &reply->str);
        ngx_idempotency_redis_seek(conn->redis, 0);
        return;

    case NGX_IDEMPOTENCY_REDIS_MASTER:
        pipeline_later(conn, call, &reply->str);
        conn->retire = 1;
        return;

    case NGX_IDEMPOTENCY_REDIS_MOVED:
    case NGX_IDEMPOTENCY_REDIS_ASK:

        if (conn->redis->slots == NULL || ++call->tries > PIPELINE_TRIES) {
            break;
        }

        pipeline_moved(conn, call, reply,
                       verdict.what == NGX_IDEMPOTENCY_REDIS_ASK);
        return;

    default:
        break;
    }

    if (call->mark) {
        mark_suspect(conn, call->mark);
    }

    pipeline_give(conn, call, reply, verdict.error, &reply->str,
                  verdict.maybe);
}


static void
pipeline_resend(redis_conn_t *conn, ngx_idempotency_redis_call_t *call)
{
    ngx_queue_remove(&call->queue);
    ngx_idempotency_redis_pipeline_call(conn, call);
}


/* all calls of the connection wait a little, as this concerns the server */

static void
pipeline_later(redis_conn_t *conn, ngx_idempotency_redis_call_t *call,
    ngx_str_t *why)
{
    pipeline_pause(conn, why);
    pipeline_resend(conn, call);
}


static void
pipeline_pause(redis_conn_t *conn, ngx_str_t *why)
{
    u_char  *p;

    p = ngx_slprintf(conn->text, conn->text + sizeof(conn->text),
                     "it says: %V", why);

    conn->error = NGX_IDEMPOTENCY_REDIS_AWAY;
    conn->why.data = conn->text;
    conn->why.len = p - conn->text;

    if (!conn->pause.timer_set) {
        conn->paused = conn->paused
                       ? ngx_min(2 * conn->paused, PIPELINE_PAUSE_MAX)
                       : PIPELINE_PAUSE_MIN;

        ngx_add_timer(&conn->pause, conn->paused);
    }
}


static void
pipeline_moved(redis_conn_t *conn, ngx_idempotency_redis_call_t *call,
    ngx_idempotency_redis_reply_t *reply, ngx_uint_t ask)
{
    redis_conn_t  *to;
    redis_node_t  *node;

    node = ngx_idempotency_redis_moved(conn->redis, &reply->str, ask);
    to = node ? ngx_idempotency_redis_node_conn(node, call->n,
                                                call->durable)
              : NULL;

    if (to == NULL) {
        pipeline_later(conn, call, &reply->str);
        return;
    }

    call->asking = ask;

    pipeline_resend(to, call);
    pipeline_disarm(conn);
}


/* WAIT ends before the first deadline: then missing acknowledgements are
   answered as such, and the connection stays */

static void
pipeline_ask_acks(redis_conn_t *conn, ngx_msec_t left)
{
    ngx_msec_t                     msec;
    ngx_idempotency_redis_conf_t  *conf;

    conf = &conn->redis->conf;

    msec = ngx_max(left * 3 / 4, 1);

    conn->asked_at = ngx_current_msec;

    if (conf->replicas) {
        conn->asked++;
        ngx_idempotency_redis_conn_ask(conn, pipeline_acks, NULL, "WAIT %i %i",
                                       conf->replicas, msec);
    }

    if (conf->fsync) {
        conn->asked++;
        ngx_idempotency_redis_conn_ask(conn, pipeline_acks, conf,
                                       "WAITAOF 1 0 %i", msec);
    }
}


static void
pipeline_acks(redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply)
{
    int64_t    n, wanted;
    ngx_str_t  why;

    static ngx_str_t  disk = ngx_string("it was not on disk in time");

    if (reply == NULL) {
        conn->asked = 0;
        pipeline_acked(conn, conn->error, &conn->why);
        return;
    }

    conn->asked--;

    if (data && reply->type == NGX_IDEMPOTENCY_REDIS_ARRAY && reply->n) {
        reply = &reply->elts[0];
    }

    n = (reply->type == NGX_IDEMPOTENCY_REDIS_INTEGER) ? reply->integer : -1;
    wanted = data ? 1 : conn->redis->conf.replicas;

    if (data && reply->type == NGX_IDEMPOTENCY_REDIS_ERROR) {
        conn->node->unsynced = 1;
    }

    if (!data && n >= wanted) {
        ngx_idempotency_redis_acked(conn->node);

    } else if (!data && n >= 0) {
        ngx_idempotency_redis_unacked(conn->node, conn->asked_at);
    }

    if (n < wanted) {
        why = (reply->type == NGX_IDEMPOTENCY_REDIS_ERROR) ? reply->str
              : data ? disk : pipeline_few;

        pipeline_acked(conn, NGX_IDEMPOTENCY_REDIS_UNACKED, &why);

    } else if (!conn->asked) {
        pipeline_acked(conn, NGX_IDEMPOTENCY_REDIS_OK, NULL);
    }

    if (!conn->asked) {
        ngx_post_event(&conn->flush, &ngx_posted_events);
    }
}


static void
pipeline_acked(redis_conn_t *conn, ngx_idempotency_redis_error_e error,
    ngx_str_t *why)
{
    ngx_queue_t                     calls;
    ngx_idempotency_redis_call_t   *call;
    ngx_idempotency_redis_reply_t  *reply;

    pipeline_move(&calls, &conn->waiting);

    while ((call = pipeline_first(&calls)) != NULL) {
        reply = call->reply;

        pipeline_give(conn, call,
                      (error == NGX_IDEMPOTENCY_REDIS_OK
                       || error == NGX_IDEMPOTENCY_REDIS_UNACKED)
                      ? reply : NULL,
                      error, why, error != NGX_IDEMPOTENCY_REDIS_OK);

        ngx_free(reply);
    }
}


/* A deadline has passed: nobody knows whether a call that was sent was
   executed, and as answers come in order, the connection is of no use. */

static void
pipeline_expire(ngx_event_t *ev)
{
    ngx_msec_t                     left;
    redis_conn_t                  *conn;
    ngx_idempotency_redis_call_t  *call;

    conn = ev->data;

    left = pipeline_left(&conn->sent, NGX_MAX_INT_T_VALUE);
    left = pipeline_left(&conn->waiting, left);

    if (left == 0) {
        call = pipeline_first(&conn->sent);

        if (call) {
            call->slow = 1;
        }

        ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_TIMEOUT,
                                        "no answer in time");

        left = NGX_MAX_INT_T_VALUE;
    }

    pipeline_refuse(conn);

    left = pipeline_left(&conn->calls, left);

    if (left != NGX_MAX_INT_T_VALUE && !conn->expire.timer_set) {
        ngx_add_timer(&conn->expire, left);
    }

    ngx_idempotency_redis_conn_reap(conn);
}


/* how long until the first deadline, if that is less */

static ngx_msec_t
pipeline_left(ngx_queue_t *calls, ngx_msec_t left)
{
    ngx_queue_t                   *q;
    ngx_msec_int_t                 n;
    ngx_idempotency_redis_call_t  *call;

    for (q = ngx_queue_head(calls);
         q != ngx_queue_sentinel(calls);
         q = ngx_queue_next(q))
    {
        call = ngx_queue_data(q, ngx_idempotency_redis_call_t, queue);

        n = (ngx_msec_int_t) (call->deadline - ngx_current_msec);
        left = ngx_min(left, (ngx_msec_t) ngx_max(n, 0));
    }

    return left;
}


/* the timer is set exactly: nginx leaves it where it is for less than 300 ms */

static void
pipeline_arm(redis_conn_t *conn, ngx_msec_t deadline)
{
    ngx_msec_int_t  left;

    if (conn->expire.timer_set) {

        if ((ngx_msec_int_t) (deadline - conn->expire.timer.key) >= 0) {
            return;
        }

        ngx_del_timer(&conn->expire);
    }

    left = (ngx_msec_int_t) (deadline - ngx_current_msec);

    ngx_add_timer(&conn->expire, ngx_max(left, 1));
}


/* no call waits any more */

static void
pipeline_disarm(redis_conn_t *conn)
{
    if (conn->expire.timer_set && ngx_idempotency_redis_conn_idle(conn)) {
        ngx_del_timer(&conn->expire);
    }
}


static void
pipeline_move(ngx_queue_t *to, ngx_queue_t *from)
{
    ngx_queue_init(to);

    if (!ngx_queue_empty(from)) {
        ngx_queue_add(to, from);
        ngx_queue_init(from);
    }
}


static ngx_idempotency_redis_call_t *
pipeline_first(ngx_queue_t *calls)
{
    if (ngx_queue_empty(calls)) {
        return NULL;
    }

    return ngx_queue_data(ngx_queue_head(calls), ngx_idempotency_redis_call_t,
                          queue);
}


static void
pipeline_give(redis_conn_t *conn, ngx_idempotency_redis_call_t *call,
    ngx_idempotency_redis_reply_t *reply, ngx_idempotency_redis_error_e error,
    ngx_str_t *why, ngx_uint_t maybe)
{
    ngx_queue_remove(&call->queue);

    call->reply = reply;
    call->error = error;
    call->maybe = maybe;

    if (why) {
        call->why = *why;

    } else {
        ngx_str_null(&call->why);
    }

    call->handler(call);

    pipeline_disarm(conn);

    /* there is room for calls that wait: a worker that exits hears of no other
       event */

    pipeline_ready(conn);
}


static void
pipeline_ready(redis_conn_t *conn)
{
    if (!ngx_queue_empty(&conn->calls)) {
        ngx_post_event(&conn->flush, &ngx_posted_events);
    }
}


static void
pipeline_lost(redis_conn_t *conn)
{
    conn->asked = 0;

    pipeline_acked(conn, conn->error, &conn->why);
    pipeline_ready(conn);
}


void
ngx_idempotency_redis_pipeline_leave(redis_conn_t *conn)
{
    ngx_queue_t                    calls;
    ngx_idempotency_redis_call_t  *call;

    if (conn->pause.timer_set) {
        ngx_del_timer(&conn->pause);
    }

    /* some may come back to this connection */

    pipeline_move(&calls, &conn->calls);

    while ((call = pipeline_first(&calls)) != NULL) {
        ngx_queue_remove(&call->queue);
        ngx_idempotency_redis_call(conn->redis, call->n, call);
    }

    pipeline_disarm(conn);
}


void
ngx_idempotency_redis_mark(ngx_idempotency_redis_t *redis,
    ngx_idempotency_redis_mark_t *mark)
{
    mark->n = redis->nmarks++;
    mark->next = redis->marks;

    redis->marks = mark;
}


void
ngx_idempotency_redis_mark_ask(redis_conn_t *conn, ngx_uint_t anew)
{
    ngx_idempotency_redis_mark_t  *mark;

    for (mark = conn->redis->marks; mark; mark = mark->next) {

        if (anew) {
            conn->marks[mark->n] = MARK_UNKNOWN;
        }

        mark_ask(conn, mark);
    }
}


/* a call was refused: ask for the mark before the next one */

static void
mark_suspect(redis_conn_t *conn, ngx_idempotency_redis_mark_t *mark)
{
    if (conn->marks[mark->n] == MARK_THERE) {
        conn->marks[mark->n] = MARK_UNKNOWN;
    }
}


void
ngx_idempotency_redis_marked(ngx_idempotency_redis_t *redis,
    ngx_idempotency_redis_mark_t *mark)
{
    redis_conn_t  *conn;

    conn = NULL;

    while ((conn = ngx_idempotency_redis_conn_next(redis, conn)) != NULL) {
        if (conn->marks[mark->n] == MARK_OTHER) {
            conn->marks[mark->n] = MARK_UNKNOWN;
        }
    }
}


/* A stamp that was right is not asked for again, as calls may compare it; but
   scripts may lose their rights.  The scripts are sent as text, as the server
   may not know them yet. */

static void
mark_ask(redis_conn_t *conn, ngx_idempotency_redis_mark_t *mark)
{
    ngx_uint_t  i, n;

    n = 0;

    for (i = 0;
         i < mark->nstamps && conn->marks[mark->n] != MARK_THERE;
         i++)
    {
        n += mark_ask_stamp(conn, &mark->stamps[i], n == 0);
    }

    conn->marks[mark->n] = MARK_ASKED;

    /* without a key, so that each node of a cluster answers */

    ngx_idempotency_redis_conn_ask(conn, mark_try_answer, mark,
                                   conn->redis->slots
                                   ? "EVAL %V 0 %V SPUBLISH"
                                   : "EVAL %V 0 %V PUBLISH",
                                   &mark->rights->text, &mark->stamps->key);
}


/* a node of a cluster is asked for the stamps of its own slots only */

static ngx_uint_t
mark_ask_stamp(redis_conn_t *conn, ngx_idempotency_redis_stamp_t *stamp,
    ngx_uint_t text)
{
    ngx_str_t                         sha1, *args;
    ngx_idempotency_redis_t          *redis;
    ngx_idempotency_redis_script_t   *script;
    ngx_idempotency_redis_question_t  question;

    redis = conn->redis;
    script = stamp->mark->script;

    if (redis->slots
        && ngx_idempotency_redis_node_of(redis, &stamp->key) != conn->node)
    {
        return 0;
    }

    stamp->mark->ask(stamp, &question);

    args = question.args;
    sha1.data = script->sha1;
    sha1.len = sizeof(script->sha1);

    ngx_idempotency_redis_conn_ask(conn, mark_stamp_answer, stamp,
                                   text ? "EVAL %V 1 %V %V %V %V %V %V"
                                        : "EVALSHA %V 1 %V %V %V %V %V %V",
                                   text ? &script->text : &sha1, &stamp->key,
                                   &args[0], &args[1], &args[2], &args[3],
                                   &args[4]);

    return 1;
}


static void
mark_stamp_answer(redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply)
{
    ngx_idempotency_redis_stamp_t  *stamp = data;

    ngx_int_t  rc;

    rc = mark_error(conn, reply);

    if (rc == NGX_DONE) {
        rc = stamp->mark->handler(stamp, reply);
    }

    mark_set(conn, stamp->mark, rc);

    if (rc == NGX_ERROR) {

        /* a server that has forgotten may be no master any more */

        ngx_idempotency_redis_seek(conn->redis, 0);
    }
}


/* the worst of the answers counts */

static void
mark_set(redis_conn_t *conn, ngx_idempotency_redis_mark_t *mark, ngx_int_t rc)
{
    ngx_uint_t  is;

    is = (rc == NGX_ERROR) ? MARK_OTHER
         : (rc == NGX_AGAIN) ? MARK_UNKNOWN : MARK_THERE;

    is |= MARK_ASKED;

    conn->marks[mark->n] = ngx_max(conn->marks[mark->n], is);
}


/* the last answer about a mark */

static void
mark_try_answer(redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply)
{
    ngx_idempotency_redis_mark_t  *mark = data;

    ngx_int_t  rc;

    rc = mark_error(conn, reply);

    if (rc == NGX_DONE) {
        rc = mark_rights(conn, mark, reply);
    }

    mark_set(conn, mark, rc);
    conn->marks[mark->n] &= ~MARK_ASKED;

    if (conn->state == redis_ready) {
        conn->kind->ready(conn);
    }
}


/* NGX_DONE: the reply is to be judged; NGX_OK: the stamp has moved to another
   node of the cluster; NGX_AGAIN: the server is busy, or no master */

static ngx_int_t
mark_error(redis_conn_t *conn, ngx_idempotency_redis_reply_t *reply)
{
    ngx_idempotency_redis_verdict_t  verdict;

    if (reply == NULL) {
        return NGX_AGAIN;
    }

    if (reply->type != NGX_IDEMPOTENCY_REDIS_ERROR) {
        return NGX_DONE;
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
        pipeline_pause(conn, &reply->str);
        conn->retire = (verdict.what == NGX_IDEMPOTENCY_REDIS_MASTER);
        return NGX_AGAIN;
    }

    return NGX_DONE;
}


/* what try.lua has found out of the scripts' rights */

static ngx_int_t
mark_rights(redis_conn_t *conn, ngx_idempotency_redis_mark_t *mark,
    ngx_idempotency_redis_reply_t *reply)
{
    u_char      code;
    ngx_str_t  *what;

    code = 'N';
    what = &reply->str;

    if (reply->type == NGX_IDEMPOTENCY_REDIS_ARRAY && reply->n
        && reply->elts[0].str.len == 1)
    {
        code = reply->elts[0].str.data[0];
        what = &reply->elts[reply->n - 1].str;
    }

    if (code == 'W' && conn->info) {
        ngx_idempotency_redis_warn(conn, NGX_IDEMPOTENCY_REDIS_WARN_PUBLISH,
                                   "lets its user not publish, who waits for "
                                   "what is pending elsewhere is told late",
                                   what);
    }

    if (code != 'N') {
        return NGX_OK;
    }

    mark->why.data = mark->text;
    mark->why.len = ngx_snprintf(mark->text, sizeof(mark->text), "%V", what)
                    - mark->text;

    return NGX_ERROR;
}
