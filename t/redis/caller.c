
/*
 * A content handler that does what a request's arguments say with the Redis of
 * an idempotency_redis block, through the interface that a store uses:
 *
 *     redis_caller NAME;
 *
 *     script=TEXT key=K arg=A ... [n=N] [lane=L] [msec=M] [durable] [until]
 *         calls it, N times at once
 *     watch=K [n=N] [msec=M]
 *         answers when the watch was called N times, or after M msec
 *     state
 *         is it up, and what time is it there
 *
 * It is compiled by t/lib/Redis.pm, and finds the module in nginx.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>
#include <openssl/sha.h>

#include "ngx_http_idempotency_conf.h"


typedef struct {
    ngx_idempotency_redis_call_t     call;
    ngx_str_t                        args[16];
} caller_call_t;


typedef struct {
    ngx_http_request_t              *request;
    ngx_idempotency_redis_script_t   script;
    caller_call_t                   *calls;
    ngx_uint_t                       left;
    ngx_buf_t                       *out;
    /* of those that watch */
    ngx_queue_t                      queue;
    ngx_idempotency_redis_t         *redis;
    ngx_str_t                        key;
    ngx_event_t                      timer;
    ngx_msec_t                       ends;
    ngx_uint_t                       told;
} caller_t;


static char *caller_set(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
static ngx_idempotency_redis_t *caller_block(ngx_conf_t *cf,
    ngx_str_t *name);
static void *caller_create(ngx_conf_t *cf);
static ngx_int_t caller_init_process(ngx_cycle_t *cycle);
static void caller_exit_process(ngx_cycle_t *cycle);
static ngx_int_t caller_handler(ngx_http_request_t *r);
static ngx_int_t caller_call(ngx_http_request_t *r, caller_t *caller);
static void caller_args(ngx_http_request_t *r, caller_call_t *call);
static void caller_answered(ngx_idempotency_redis_call_t *call);
static u_char *caller_write(u_char *p, u_char *last,
    ngx_idempotency_redis_reply_t *reply);
static ngx_int_t caller_watch(ngx_http_request_t *r, caller_t *caller);
static void caller_told(void *data, ngx_str_t *key);
static void caller_timeout(ngx_event_t *ev);
static void caller_watched(caller_t *caller);
static void caller_finish(ngx_http_request_t *r, caller_t *caller);
static ngx_str_t caller_arg(ngx_http_request_t *r, char *name);


typedef struct {
    ngx_idempotency_redis_t         *redis;
} caller_conf_t;


/* all that locations name */

static ngx_idempotency_redis_t  *caller_redis[16];
static ngx_uint_t                caller_n;
static ngx_queue_t               caller_watching;


static ngx_command_t  caller_commands[] = {

    { ngx_string("redis_caller"),
      NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      caller_set,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

      ngx_null_command
};


static ngx_http_module_t  caller_ctx = {
    NULL, NULL, NULL, NULL, NULL, NULL, caller_create, NULL
};


ngx_module_t  ngx_http_redis_caller_module = {
    NGX_MODULE_V1,
    &caller_ctx,                       /* module context */
    caller_commands,                   /* module directives */
    NGX_HTTP_MODULE,                   /* module type */
    NULL,                              /* init master */
    NULL,                              /* init module */
    caller_init_process,               /* init process */
    NULL,                              /* init thread */
    NULL,                              /* exit thread */
    caller_exit_process,               /* exit process */
    NULL,                              /* exit master */
    NGX_MODULE_V1_PADDING
};


ngx_module_t  *ngx_modules[] = {
    &ngx_http_redis_caller_module,
    NULL
};


char  *ngx_module_names[] = {
    "ngx_http_redis_caller_module",
    NULL
};


static void *
caller_create(ngx_conf_t *cf)
{
    return ngx_pcalloc(cf->pool, sizeof(caller_conf_t));
}


static char *
caller_set(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    caller_conf_t  *ccf = conf;

    ngx_str_t                 *value;
    ngx_http_core_loc_conf_t  *clcf;

    static ngx_cycle_t  *cycle;

    value = cf->args->elts;

    ccf->redis = caller_block(cf, &value[1]);

    if (cycle != cf->cycle) {
        cycle = cf->cycle;
        caller_n = 0;
    }

    if (ccf->redis == NULL || caller_n == 16) {
        return NGX_CONF_ERROR;
    }

    caller_redis[caller_n++] = ccf->redis;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);
    clcf->handler = caller_handler;

    return NGX_CONF_OK;
}


/* the block of that name, which stands above */

static ngx_idempotency_redis_t *
caller_block(ngx_conf_t *cf, ngx_str_t *name)
{
    ngx_uint_t                        i;
    ngx_idempotency_redis_t         **all;
    ngx_idempotency_redis_conf_t     *conf;
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);
    all = imcf->redis.elts;

    for (i = 0; i < imcf->redis.nelts; i++) {
        conf = ngx_idempotency_redis_conf(all[i]);

        if (conf->name.len == name->len
            && ngx_strncmp(conf->name.data, name->data, name->len) == 0)
        {
            return all[i];
        }
    }

    return NULL;
}


static ngx_int_t
caller_init_process(ngx_cycle_t *cycle)
{
    ngx_uint_t  i;

    ngx_queue_init(&caller_watching);

    for (i = 0; i < caller_n; i++) {
        if (ngx_idempotency_redis_init_process(caller_redis[i], cycle)
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static void
caller_exit_process(ngx_cycle_t *cycle)
{
    ngx_uint_t  i;

    for (i = 0; i < caller_n; i++) {
        ngx_idempotency_redis_exit_process(caller_redis[i]);
    }
}


static ngx_int_t
caller_handler(ngx_http_request_t *r)
{
    caller_t       *caller;
    ngx_str_t       key;
    caller_conf_t  *ccf;

    ccf = ngx_http_get_module_loc_conf(r, ngx_http_redis_caller_module);

    caller = ngx_pcalloc(r->pool, sizeof(caller_t));
    if (caller == NULL) {
        return NGX_ERROR;
    }

    caller->request = r;
    caller->out = ngx_create_temp_buf(r->pool, 1024 * 1024);

    if (caller->out == NULL) {
        return NGX_ERROR;
    }

    if (ngx_strnstr(r->args.data, "state", r->args.len)) {
        caller->out->last = ngx_sprintf(caller->out->last, "up %ui time %uL\n",
                                  ngx_idempotency_redis_up(ccf->redis),
                                  ngx_idempotency_redis_time(ccf->redis));
        r->main->count++;
        caller_finish(r, caller);
        return NGX_DONE;
    }

    key = caller_arg(r, "watch");

    return key.len ? caller_watch(r, caller) : caller_call(r, caller);
}


static ngx_int_t
caller_call(ngx_http_request_t *r, caller_t *caller)
{
    u_char                         sha1[20];
    ngx_int_t                      lane, msec, n;
    ngx_str_t                      value;
    ngx_uint_t                     i;
    caller_conf_t                 *ccf;
    ngx_idempotency_redis_call_t  *call;
    ngx_idempotency_redis_conf_t  *conf;

    ccf = ngx_http_get_module_loc_conf(r, ngx_http_redis_caller_module);

    caller->script.text = caller_arg(r, "script");

    SHA1(caller->script.text.data, caller->script.text.len, sha1);
    ngx_hex_dump(caller->script.sha1, sha1, sizeof(sha1));

    value = caller_arg(r, "n");
    n = value.len ? ngx_atoi(value.data, value.len) : 1;

    value = caller_arg(r, "lane");
    lane = value.len ? ngx_atoi(value.data, value.len) : 0;

    value = caller_arg(r, "msec");
    conf = ngx_idempotency_redis_conf(ccf->redis);
    msec = value.len ? ngx_atoi(value.data, value.len)
                     : (ngx_int_t) conf->timeout;

    caller->calls = ngx_pcalloc(r->pool, n * sizeof(caller_call_t));
    if (caller->calls == NULL) {
        return NGX_ERROR;
    }

    r->main->count++;
    caller->left = n;

    for (i = 0; i < (ngx_uint_t) n; i++) {
        call = &caller->calls[i].call;

        call->script = &caller->script;
        call->key = caller_arg(r, "key");
        call->deadline = ngx_current_msec + msec;
        call->handler = caller_answered;
        call->data = caller;
        call->durable = ngx_strnstr(r->args.data, "durable", r->args.len)
                        != NULL;
        call->until = ngx_strnstr(r->args.data, "until", r->args.len) != NULL;

        caller_args(r, &caller->calls[i]);

        ngx_idempotency_redis_call(ccf->redis, lane, call);
    }

    return NGX_DONE;
}


static void
caller_args(ngx_http_request_t *r, caller_call_t *call)
{
    u_char     *p, *last, *end, *dst, *src;
    ngx_str_t   value;

    call->call.args = call->args;

    last = r->args.data + r->args.len;

    for (p = r->args.data; p < last; p = end + 1) {
        end = ngx_strlchr(p, last, '&');
        end = end ? end : last;

        if (end - p < 4 || ngx_strncmp(p, "arg=", 4) != 0) {
            continue;
        }

        src = p + 4;
        value.data = ngx_pnalloc(r->pool, end - src + 1);
        dst = value.data;

        ngx_unescape_uri(&dst, &src, end - src, 0);

        value.len = dst - value.data;
        call->args[call->call.nargs++] = value;
    }
}


static void
caller_answered(ngx_idempotency_redis_call_t *call)
{
    u_char    *last;
    caller_t  *caller;

    caller = call->data;
    last = caller->out->end;

    caller->out->last = ngx_slprintf(caller->out->last, last,
                                     "error=%d maybe=%d why=\"%V\"",
                                     (int) call->error, (int) call->maybe,
                                     &call->why);

    if (call->reply) {
        caller->out->last = ngx_slprintf(caller->out->last, last, " reply=");
        caller->out->last = caller_write(caller->out->last, last,
                                         call->reply);
    }

    caller->out->last = ngx_slprintf(caller->out->last, last, "\n");

    if (--caller->left == 0) {
        caller_finish(caller->request, caller);
    }
}


static u_char *
caller_write(u_char *p, u_char *last, ngx_idempotency_redis_reply_t *reply)
{
    ngx_uint_t  i;

    switch (reply->type) {

    case NGX_IDEMPOTENCY_REDIS_INTEGER:
        return ngx_slprintf(p, last, ":%L", reply->integer);

    case NGX_IDEMPOTENCY_REDIS_NIL:
        return ngx_slprintf(p, last, "nil");

    case NGX_IDEMPOTENCY_REDIS_ERROR:
        return ngx_slprintf(p, last, "-%V", &reply->str);

    case NGX_IDEMPOTENCY_REDIS_STRING:
        return ngx_slprintf(p, last, "\"%V\"", &reply->str);

    default:
        p = ngx_slprintf(p, last, "[");

        for (i = 0; i < reply->n; i++) {
            p = ngx_slprintf(p, last, i ? " " : "");
            p = caller_write(p, last, &reply->elts[i]);
        }

        return ngx_slprintf(p, last, "]");
    }
}


static ngx_int_t
caller_watch(ngx_http_request_t *r, caller_t *caller)
{
    ngx_str_t       value;
    caller_conf_t  *ccf;

    ccf = ngx_http_get_module_loc_conf(r, ngx_http_redis_caller_module);

    value = caller_arg(r, "n");
    caller->left = value.len ? ngx_atoi(value.data, value.len) : 1;

    value = caller_arg(r, "msec");

    caller->timer.data = caller;
    caller->timer.log = r->connection->log;
    caller->timer.handler = caller_timeout;
    caller->ends = ngx_current_msec
                   + (value.len ? ngx_atoi(value.data, value.len) : 5000);

    caller->redis = ccf->redis;
    caller->key = caller_arg(r, "watch");

    ngx_queue_insert_tail(&caller_watching, &caller->queue);

    r->main->count++;
    caller_timeout(&caller->timer);

    return NGX_DONE;
}


static void
caller_told(void *data, ngx_str_t *key)
{
    caller_t     *caller;
    ngx_queue_t  *q, *next;

    for (q = ngx_queue_head(&caller_watching);
         q != ngx_queue_sentinel(&caller_watching);
         q = next)
    {
        next = ngx_queue_next(q);
        caller = ngx_queue_data(q, caller_t, queue);

        if (caller->redis != data || caller->key.len != key->len
            || ngx_strncmp(caller->key.data, key->data, key->len) != 0)
        {
            continue;
        }

        ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0, "told of %V: %ui",
                      key, ++caller->told);

        if (caller->told == caller->left) {
            caller_watched(caller);
        }
    }
}


/* it is wanted yet, or no more */

static void
caller_timeout(ngx_event_t *ev)
{
    caller_t        *caller;
    ngx_msec_int_t   left;

    caller = ev->data;
    left = (ngx_msec_int_t) (caller->ends - ngx_current_msec);

    if (left <= 0) {
        caller_watched(caller);
        return;
    }

    ngx_idempotency_redis_watch(caller->redis, &caller->key, caller_told,
                                caller->redis);

    ngx_add_timer(ev, ngx_min(left, 500));
}


static void
caller_watched(caller_t *caller)
{
    ngx_http_request_t  *r;

    r = caller->request;

    ngx_queue_remove(&caller->queue);

    if (caller->timer.timer_set) {
        ngx_del_timer(&caller->timer);
    }

    caller->out->last = ngx_sprintf(caller->out->last, "told %ui\n",
                                    caller->told);
    caller_finish(r, caller);
}


static void
caller_finish(ngx_http_request_t *r, caller_t *caller)
{
    ngx_int_t          rc;
    ngx_chain_t        out;
    ngx_connection_t  *c;

    c = r->connection;

    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_length_n = caller->out->last - caller->out->pos;

    caller->out->last_buf = 1;
    out.buf = caller->out;
    out.next = NULL;

    rc = ngx_http_send_header(r);

    if (rc == NGX_OK) {
        rc = ngx_http_output_filter(r, &out);
    }

    ngx_http_finalize_request(r, rc);
    ngx_http_run_posted_requests(c);
}


static ngx_str_t
caller_arg(ngx_http_request_t *r, char *name)
{
    u_char     *dst, *src;
    ngx_str_t   value, text;

    ngx_str_null(&text);

    if (ngx_http_arg(r, (u_char *) name, ngx_strlen(name), &value) != NGX_OK) {
        return text;
    }

    text.data = ngx_pnalloc(r->pool, value.len + 1);
    dst = text.data;
    src = value.data;

    ngx_unescape_uri(&dst, &src, value.len, 0);
    text.len = dst - text.data;

    return text;
}
