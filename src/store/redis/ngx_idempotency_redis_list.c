
/*
 * What a Redis has of a zone, page by page, by its SCAN: what is there all the
 * time is told, and may be told twice while the server makes room for more
 * keys, or for fewer.  Of a cluster one master after the other is asked.  What
 * moves to another meanwhile may be missed, or told twice; where the masters
 * are not those any more that they were, all is told from the beginning.
 */


#include "ngx_idempotency_backing_redis.h"


/* keys that are looked at for a page, at most; some of them may be others'.  An
   answer has more while the server makes room, but seldom more than a page */

#define NGX_IDEMPOTENCY_REDIS_LIST_COUNT  16

/* of the answer: what comes before the records, and what each of them is */

#define NGX_IDEMPOTENCY_REDIS_LIST_HEAD   3
#define NGX_IDEMPOTENCY_REDIS_LIST_EACH   3


typedef struct {
    ngx_idempotency_redis_call_t    call;
    ngx_idempotency_page_t         *page;
    ngx_idempotency_redis_t        *redis;
    /* whose scan it is, of which masters, where it is, and how many of its
       answer were told before */
    uint64_t                        master;
    uint64_t                        all;
    ngx_uint_t                      cursor;
    uint64_t                        told;
    size_t                          prefix;
    int64_t                         now;
    ngx_str_t                       args[3];
    u_char                          text[2 * NGX_INT64_LEN];
    /* for as long as each byte of the prefix is escaped */
    u_char                          pattern[1];
} redis_list_t;


static ngx_int_t redis_list_begin(redis_list_t *list);
static ngx_int_t redis_list_end(redis_list_t *list);
static ngx_uint_t redis_list_changed(redis_list_t *list);
static void redis_list_token(redis_list_t *list, uint64_t master,
    uint64_t told);
static void redis_list_pattern(ngx_str_t *pattern, ngx_str_t *prefix);
static void redis_list_handler(ngx_idempotency_redis_call_t *call);
static ngx_int_t redis_list_answer(redis_list_t *list,
    ngx_idempotency_redis_reply_t *reply);
static void redis_list_item(redis_list_t *list,
    ngx_idempotency_redis_reply_t *elts, int64_t there);


/*
 * The page's cursor is the server's and one more, as that begins and ends with
 * 0; its token tells whose it is, and how many of an answer had no room in the
 * page before.
 */

ngx_int_t
ngx_idempotency_redis_list(ngx_idempotency_redis_t *redis,
    ngx_idempotency_page_t *page, ngx_str_t *prefix, int64_t now)
{
    u_char                        *p;
    redis_list_t                  *list;
    ngx_idempotency_redis_call_t  *call;

    list = ngx_calloc(sizeof(redis_list_t) + 2 * prefix->len, ngx_cycle->log);
    if (list == NULL) {
        return NGX_ERROR;
    }

    list->redis = redis;
    list->page = page;
    list->prefix = prefix->len;
    list->now = now;

    if (redis_list_begin(list) != NGX_OK) {
        ngx_free(list);
        return NGX_ERROR;
    }

    list->args[0].data = list->text;
    p = ngx_sprintf(list->text, "%ui", list->cursor);
    list->args[0].len = p - list->text;

    list->args[1].data = list->pattern;
    redis_list_pattern(&list->args[1], prefix);

    list->args[2].data = p;
    list->args[2].len = ngx_sprintf(p, "%ui",
                                    ngx_min(page->n,
                                         NGX_IDEMPOTENCY_REDIS_LIST_COUNT))
                        - p;

    call = &list->call;

    call->script = &ngx_idempotency_redis_scripts[NGX_IDEMPOTENCY_REDIS_LIST];
    call->master = list->master;
    call->args = list->args;
    call->nargs = 3;
    call->deadline = ngx_current_msec
                     + ngx_idempotency_redis_conf(redis)->timeout;
    call->handler = redis_list_handler;
    call->data = list;

    ngx_idempotency_redis_call(redis, 0, call);

    return NGX_AGAIN;
}


static ngx_int_t
redis_list_begin(redis_list_t *list)
{
    uint64_t                 master, all;
    ngx_idempotency_page_t  *page;

    page = list->page;
    master = 0;

    if (page->cursor) {
        ngx_memcpy(&list->told, page->token, 8);
        ngx_memcpy(&list->master, page->token + 8, 8);
        ngx_memcpy(&list->all, page->token + 16, 8);

        list->cursor = page->cursor - 1;
        master = list->master - 1;
    }

    if (ngx_idempotency_redis_master(list->redis, &master, &all) == NGX_OK
        && master == list->master && all == list->all)
    {
        return NGX_OK;
    }

    /* at first, or they are not the same any more */

    list->master = 0;
    list->cursor = 0;
    list->told = 0;

    return ngx_idempotency_redis_master(list->redis, &list->master,
                                        &list->all);
}


/* of this master: the next one, if there is one */

static ngx_int_t
redis_list_end(redis_list_t *list)
{
    uint64_t   master, all;
    ngx_int_t  rc;

    master = list->master;

    rc = ngx_idempotency_redis_master(list->redis, &master, &all);

    if (rc == NGX_ERROR) {
        return NGX_ERROR;
    }

    if (rc == NGX_OK || all != list->all) {
        list->page->cursor = 1;
        redis_list_token(list, master, 0);

    } else {
        list->page->cursor = 0;
    }

    return NGX_OK;
}


/* others are masters now: the next page begins anew */

static ngx_uint_t
redis_list_changed(redis_list_t *list)
{
    uint64_t  master, all;

    master = list->master;

    return ngx_idempotency_redis_master(list->redis, &master, &all)
           != NGX_ERROR
           && all != list->all;
}


static void
redis_list_token(redis_list_t *list, uint64_t master, uint64_t told)
{
    u_char  *token;

    token = list->page->token;

    ngx_memzero(token, NGX_IDEMPOTENCY_DIGEST_LEN);

    ngx_memcpy(token, &told, 8);
    ngx_memcpy(token + 8, &master, 8);
    ngx_memcpy(token + 16, &list->all, 8);
}


/* a prefix may have anything in it */

static void
redis_list_pattern(ngx_str_t *pattern, ngx_str_t *prefix)
{
    u_char  *p;
    size_t   i;

    p = pattern->data;

    for (i = 0; i < prefix->len; i++) {

        if (prefix->data[i] && ngx_strchr("*?[]^\\", prefix->data[i])) {
            *p++ = '\\';
        }

        *p++ = prefix->data[i];
    }

    *p++ = '*';

    pattern->len = p - pattern->data;
}


static void
redis_list_handler(ngx_idempotency_redis_call_t *call)
{
    redis_list_t            *list;
    ngx_idempotency_page_t  *page;

    list = call->data;
    page = list->page;

    page->rc = NGX_ERROR;

    if (call->error == NGX_IDEMPOTENCY_REDIS_OK && call->reply) {
        page->rc = redis_list_answer(list, call->reply);

    } else if (redis_list_changed(list)) {

        /* it is no master any more */

        page->n = 0;
        page->now = list->now;
        page->cursor = 1;
        redis_list_token(list, list->master, 0);

        page->rc = NGX_OK;

    } else {
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "idempotency: a Redis did not list its records: %V",
                      &call->why);
    }

    ngx_free(list);

    ngx_idempotency_page_listed(page);
}


static ngx_int_t
redis_list_answer(redis_list_t *list, ngx_idempotency_redis_reply_t *reply)
{
    int64_t                         there, next;
    ngx_uint_t                      i, n;
    ngx_idempotency_page_t         *page;
    ngx_idempotency_redis_reply_t  *elts;

    page = list->page;
    elts = reply->elts;

    if (reply->type != NGX_IDEMPOTENCY_REDIS_ARRAY
        || reply->n < NGX_IDEMPOTENCY_REDIS_LIST_HEAD
        || (reply->n - NGX_IDEMPOTENCY_REDIS_LIST_HEAD)
           % NGX_IDEMPOTENCY_REDIS_LIST_EACH
           != 0)
    {
        return NGX_ERROR;
    }

    for (i = 0; i < reply->n; i++) {
        if (elts[i].type != NGX_IDEMPOTENCY_REDIS_STRING) {
            return NGX_ERROR;
        }
    }

    there = ngx_atoof(elts[1].str.data, elts[1].str.len);
    next = ngx_atoof(elts[2].str.data, elts[2].str.len);

    if (there == NGX_ERROR || next == NGX_ERROR) {
        return NGX_ERROR;
    }

    n = (reply->n - NGX_IDEMPOTENCY_REDIS_LIST_HEAD)
        / NGX_IDEMPOTENCY_REDIS_LIST_EACH;

    page->n = 0;
    page->now = list->now;

    /* an answer is told whole: where it goes on within nobody can say */

    for (i = list->told; i < n && page->n < NGX_IDEMPOTENCY_TIER_BATCH; i++) {
        redis_list_item(list, &elts[NGX_IDEMPOTENCY_REDIS_LIST_HEAD
                                    + i * NGX_IDEMPOTENCY_REDIS_LIST_EACH],
                        there);
    }

    if (i < n) {

        /* unless there are too many, of which some may be told twice or not
           at all if others come and go just then */

        page->cursor = list->cursor + 1;
        redis_list_token(list, list->master, i);
        return NGX_OK;
    }

    if (next) {
        page->cursor = next + 1;
        redis_list_token(list, list->master, 0);
        return NGX_OK;
    }

    return redis_list_end(list);
}


/* its key, its head, and its length; keys of others are passed over */

static void
redis_list_item(redis_list_t *list, ngx_idempotency_redis_reply_t *elts,
    int64_t there)
{
    ngx_str_t                key, token;
    ngx_int_t                len;
    ngx_idempotency_item_t  *item;

    item = &list->page->items[list->page->n];

    ngx_memzero(item, sizeof(ngx_idempotency_item_t));

    key = elts[0].str;
    len = ngx_atoi(elts[2].str.data, elts[2].str.len);

    if (key.len != list->prefix + NGX_IDEMPOTENCY_REDIS_TOKEN
        || len < (ngx_int_t) elts[1].str.len)
    {
        return;
    }

    key.data += list->prefix;
    key.len = NGX_IDEMPOTENCY_REDIS_TOKEN;
    token.data = item->token;

    if (ngx_decode_base64url(&token, &key) != NGX_OK
        || ngx_idempotency_redis_item_record(item, &elts[1].str, there,
                                             list->now)
           != NGX_OK)
    {
        return;
    }

    item->response.len = len - elts[1].str.len;
    item->what = NGX_IDEMPOTENCY_ITEM_FIND;
    item->length_only = 1;

    list->page->n++;
}
