
/*
 * What is said on a new connection, in one go: who we are, which database; and
 * asked: is it the master, has it the marks that it should have, would its
 * settings forget, what time is it there.
 */


#include "ngx_idempotency_redis_conn.h"

#include <time.h>


static void greet_auth(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static void greet_hello(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static void greet_select(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static void greet_role(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static void greet_info(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static void greet_time(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static void greet_ping(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply);
static void greet_refused(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_reply_t *reply);
static void greet_settings(ngx_idempotency_redis_conn_t *conn,
    ngx_str_t *info);
static void greet_evicted(ngx_idempotency_redis_conn_t *conn,
    ngx_str_t *info);
static ngx_str_t greet_field(ngx_str_t *info, char *name);
static ngx_uint_t greet_in(ngx_str_t *text, char *s);
static uint64_t greet_clock(void);


void
ngx_idempotency_redis_greet(ngx_idempotency_redis_conn_t *conn)
{
    ngx_idempotency_resp_out_t    *out;
    ngx_idempotency_redis_conf_t  *conf;

    out = &conn->out;
    conf = &conn->redis->conf;

    if (conf->password.len) {
        ngx_idempotency_resp_command(out, conf->user.len ? 3 : 2);
        ngx_idempotency_resp_word(out, (u_char *) "AUTH", 4);

        if (conf->user.len) {
            ngx_idempotency_resp_str(out, &conf->user);
        }

        ngx_idempotency_resp_str(out, &conf->password);

        (void) ngx_idempotency_redis_conn_due(conn, greet_auth, NULL);
    }

    if (conn->kind->seeks) {
        ngx_idempotency_resp_say(out, "PING", NULL);
        (void) ngx_idempotency_redis_conn_due(conn, greet_ping, NULL);
        return;
    }

    ngx_idempotency_resp_say(out, "HELLO", "3", "SETNAME",
                             "nginx-idempotency", NULL);
    (void) ngx_idempotency_redis_conn_due(conn, greet_hello, NULL);

    if (conf->database) {
        ngx_idempotency_resp_command(out, 2);
        ngx_idempotency_resp_word(out, (u_char *) "SELECT", 6);
        ngx_idempotency_resp_number(out, conf->database);

        (void) ngx_idempotency_redis_conn_due(conn, greet_select, NULL);
    }

    ngx_idempotency_resp_say(out, "ROLE", NULL);
    (void) ngx_idempotency_redis_conn_due(conn, greet_role, NULL);

    if (conn->kind == &ngx_idempotency_redis_lane) {
        ngx_idempotency_redis_mark_ask(conn);
    }

    ngx_idempotency_redis_look(conn, conn->info);
}


/* the greeting ends with it; later on it tells that the other side is there */

void
ngx_idempotency_redis_look(ngx_idempotency_redis_conn_t *conn,
    ngx_uint_t info)
{
    if (info) {
        ngx_idempotency_resp_say(&conn->out, "INFO", NULL);
        (void) ngx_idempotency_redis_conn_expect(conn, greet_info, NULL);
    }

    ngx_idempotency_resp_say(&conn->out, "TIME", NULL);
    (void) ngx_idempotency_redis_conn_expect(conn, greet_time, NULL);
}


static void
greet_auth(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply)
{
    if (reply == NULL || reply->type != NGX_IDEMPOTENCY_REDIS_ERROR) {
        return;
    }

    /* sentinels have passwords of their own, or none */

    if (conn->kind->seeks
        || greet_in(&reply->str, "no password is set")
        || greet_in(&reply->str, "without any password configured"))
    {
        return;
    }

    greet_refused(conn, reply);
}


/* RESP3 is no need */

static void
greet_hello(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply)
{
    ngx_idempotency_redis_verdict_t  verdict;

    if (reply == NULL) {
        return;
    }

    if (reply->type != NGX_IDEMPOTENCY_REDIS_ERROR) {
        return;
    }

    verdict = ngx_idempotency_redis_verdict(&reply->str);

    if ((verdict.error == NGX_IDEMPOTENCY_REDIS_DENIED
         && !greet_in(&reply->str, "NOPERM"))
        || greet_in(&reply->str, "max number of clients"))
    {
        greet_refused(conn, reply);
    }
}


static void
greet_select(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply)
{
    if (reply && reply->type == NGX_IDEMPOTENCY_REDIS_ERROR) {
        greet_refused(conn, reply);
    }
}


static void
greet_role(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply)
{
    ngx_str_t                       *role;
    ngx_idempotency_redis_verdict_t  verdict;

    if (reply == NULL) {
        return;
    }

    if (reply->type == NGX_IDEMPOTENCY_REDIS_ARRAY && reply->n) {
        role = &reply->elts[0].str;

        if (role->len != 6 || ngx_strncmp(role->data, "master", 6) != 0) {
            ngx_idempotency_redis_conn_lose(conn, NGX_IDEMPOTENCY_REDIS_AWAY,
                                            "it is no master, but", role);
        }

        return;
    }

    verdict = ngx_idempotency_redis_verdict(&reply->str);

    if (verdict.error == NGX_IDEMPOTENCY_REDIS_AWAY
        || (verdict.error == NGX_IDEMPOTENCY_REDIS_DENIED
            && !greet_in(&reply->str, "NOPERM")))
    {
        greet_refused(conn, reply);
        return;
    }

    if (!conn->node->unranked) {
        conn->node->unranked = 1;

        ngx_log_error(NGX_LOG_WARN, conn->redis->log, 0,
                      "idempotency_redis \"%V\": %V does not tell whether it "
                      "is a master: %V", &conn->redis->conf.name,
                      &conn->node->name, &reply->str);
    }
}


static void
greet_info(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply)
{
    ngx_idempotency_redis_conn_expected(conn);

    if (reply == NULL) {
        return;
    }

    if (reply->type == NGX_IDEMPOTENCY_REDIS_STRING) {
        greet_settings(conn, &reply->str);
        greet_evicted(conn, &reply->str);
        return;
    }

    if (!conn->node->unchecked) {
        conn->node->unchecked = 1;

        ngx_log_error(NGX_LOG_WARN, conn->redis->log, 0,
                      "idempotency_redis \"%V\": %V does not tell whether it "
                      "would forget: %V", &conn->redis->conf.name,
                      &conn->node->name, &reply->str);
    }
}


static void
greet_time(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply)
{
    int64_t                         sec, usec;
    ngx_idempotency_redis_reply_t  *elts;

    ngx_idempotency_redis_conn_expected(conn);

    if (reply == NULL) {
        return;
    }

    elts = reply->elts;

    if (reply->type != NGX_IDEMPOTENCY_REDIS_ARRAY || reply->n != 2
        || ngx_idempotency_resp_decimal(elts[0].str.data, elts[0].str.len,
                                        &sec)
           != NGX_OK
        || ngx_idempotency_resp_decimal(elts[1].str.data, elts[1].str.len,
                                        &usec)
           != NGX_OK)
    {
        greet_refused(conn, reply);
        return;
    }

    ngx_idempotency_redis_node_told_time(conn->node,
                                         (uint64_t) sec * 1000000 + usec);

    if (conn->state == ngx_idempotency_redis_greeting) {
        ngx_idempotency_redis_conn_ready(conn);
    }
}


static void
greet_ping(ngx_idempotency_redis_conn_t *conn, void *data,
    ngx_idempotency_redis_reply_t *reply)
{
    if (reply == NULL) {
        return;
    }

    if (reply->type == NGX_IDEMPOTENCY_REDIS_ERROR) {
        greet_refused(conn, reply);
        return;
    }

    ngx_idempotency_redis_conn_ready(conn);
}


static void
greet_refused(ngx_idempotency_redis_conn_t *conn,
    ngx_idempotency_redis_reply_t *reply)
{
    ngx_idempotency_redis_verdict_t  verdict;

    verdict = ngx_idempotency_redis_verdict(&reply->str);

    if (verdict.error == NGX_IDEMPOTENCY_REDIS_FAULT) {
        verdict.error = NGX_IDEMPOTENCY_REDIS_CONNECT;
    }

    ngx_idempotency_redis_conn_lose(conn, verdict.error, "it says:",
                                    &reply->str);
}


/* would it forget?  said once for each time that it was started, and by one
   worker */

static void
greet_settings(ngx_idempotency_redis_conn_t *conn, ngx_str_t *info)
{
    ngx_str_t                      run_id, policy, aof, *name;
    ngx_idempotency_redis_node_t  *node;

    node = conn->node;
    name = &conn->redis->conf.name;

    run_id = greet_field(info, "run_id:");
    policy = greet_field(info, "maxmemory_policy:");
    aof = greet_field(info, "aof_enabled:");

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

    if (policy.len && !greet_in(&policy, "noeviction")) {
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
greet_evicted(ngx_idempotency_redis_conn_t *conn, ngx_str_t *info)
{
    int64_t                        n;
    ngx_str_t                      value;
    ngx_idempotency_redis_node_t  *node;

    node = conn->node;
    value = greet_field(info, "evicted_keys:");

    if (ngx_idempotency_resp_decimal(value.data, value.len, &n) != NGX_OK
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


/* a line begins with the name, and its colon */

static ngx_str_t
greet_field(ngx_str_t *info, char *name)
{
    u_char     *p, *last;
    size_t      len;
    ngx_str_t   value;

    len = ngx_strlen(name);
    last = info->data + info->len;

    ngx_str_null(&value);

    for (p = info->data; p < last; p++) {

        if ((size_t) (last - p) > len && ngx_memcmp(p, name, len) == 0) {
            value.data = p + len;

            for (p += len; p < last && *p != CR && *p != LF; p++) { /* void */ }

            value.len = p - value.data;
            break;
        }

        p = ngx_strlchr(p, last, LF);

        if (p == NULL) {
            break;
        }
    }

    return value;
}


static ngx_uint_t
greet_in(ngx_str_t *text, char *s)
{
    size_t  n;

    n = ngx_strlen(s);

    return text->len >= n
           && ngx_strlcasestrn(text->data, text->data + text->len,
                               (u_char *) s, n - 1)
              != NULL;
}


void
ngx_idempotency_redis_node_told_time(ngx_idempotency_redis_node_t *node,
    uint64_t time)
{
    node->clock = time;
    node->clock_at = greet_clock();
}


/*
 * It said so after it had read the question, and before we read the answer:
 * so it is later there than what it said and what has passed here since.  A
 * clock may run fast by a thousandth.
 */

uint64_t
ngx_idempotency_redis_node_time(ngx_idempotency_redis_node_t *node)
{
    uint64_t  passed;

    if (node->clock == 0) {
        return 0;
    }

    passed = greet_clock() - node->clock_at;

    return node->clock + passed - passed / 1000;
}


static uint64_t
greet_clock(void)
{
    struct timespec  ts;

    (void) clock_gettime(CLOCK_MONOTONIC, &ts);

    return (uint64_t) ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}
