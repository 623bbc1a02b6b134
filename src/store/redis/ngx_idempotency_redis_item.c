
/*
 * Items as calls of scripts.  Times go there as spans from now on, and come
 * back as spans before the server's now: no clock but the server's counts.
 *
 * And the list of a zone's records, page by page, by SCAN: a record that exists
 * all the time is listed, perhaps twice while the server resizes its table of
 * keys.  The masters of a cluster are asked one by one.  A record that moves to
 * another master meanwhile may be missed, or listed twice; if the set of
 * masters changes, the list begins anew.
 */


#include "ngx_idempotency_redis_item.h"

#include <ngx_sha1.h>

#include "ngx_idempotency_redis_lua.h"


/* a pending record stays for a day at least, whatever its lease: without it the
   token would be fresh again */

#define ITEM_KEEP  (24 * 3600 * (int64_t) 1000)

/* the item's part of a head, both ways, and its place: see record.lua.  A field
   of 8 bytes is a uint64_t or an int64_t, one of 4 an ngx_uint_t */

typedef struct {
    size_t                          at;
    size_t                          len;
    size_t                          offset;
    ngx_uint_t                      number;
} head_field_t;

#define head_bytes(at, len, name)                                            \
    { at, len, offsetof(ngx_idempotency_item_t, name), 0 }
#define head_number(at, len, name)                                           \
    { at, len, offsetof(ngx_idempotency_item_t, name), 1 }

#define HEAD_STATE     2
#define HEAD_SEQUENCE  12
#define HEAD_LEASE     28
#define HEAD_ENDS      44
#define HEAD_STATUS    60

static const head_field_t  head_fields[] = {
    head_bytes(3, 1, parts.version),
    head_number(4, 8, instance),
    head_number(HEAD_SEQUENCE, 8, sequence),
    head_number(20, 8, fence),
    head_number(36, 8, recorded),
    head_number(HEAD_ENDS, 8, ends),
    head_number(52, 8, window),
    head_number(HEAD_STATUS, 4, status),
    head_number(64, 4, replays),
    head_bytes(68, NGX_IDEMPOTENCY_DIGEST_LEN, fingerprint),
    head_bytes(100, NGX_IDEMPOTENCY_IDENTITY_LEN, parts.identity),
    head_bytes(116, NGX_IDEMPOTENCY_HINT_LEN, parts.action),
    head_bytes(120, NGX_IDEMPOTENCY_HINT_LEN, parts.body),
    head_bytes(124, NGX_IDEMPOTENCY_SETTINGS_LEN, parts.settings),
    head_bytes(128, NGX_IDEMPOTENCY_MAC_LEN, mac)
};

#define HEAD_FIELDS  (sizeof(head_fields) / sizeof(head_field_t))


static const u_char  head_states[] = {
    [NGX_IDEMPOTENCY_PENDING] = 'P',
    [NGX_IDEMPOTENCY_DONE] = 'D',
    [NGX_IDEMPOTENCY_NOT_KEPT] = 'N',
    [NGX_IDEMPOTENCY_IN_DOUBT] = 'U'
};


/* the COUNT of SCAN for a page; some of the keys may be others'.  An answer has
   more keys while the server resizes, but seldom more than a page */

#define LIST_COUNT  16

/* elements of the answer: before the records, and for each record */

#define LIST_HEAD  3
#define LIST_EACH  3


/* in a page's token: the master, the set of masters, and how many records of an
   answer to skip, as they were in earlier pages */

typedef struct {
    uint64_t                        master;
    uint64_t                        all;
    uint64_t                        skip;
} redis_list_place_t;


typedef struct {
    ngx_idempotency_redis_call_t    call;
    ngx_idempotency_page_t         *page;
    ngx_idempotency_redis_t        *redis;
    redis_list_place_t              place;
    ngx_str_t                       args[3];
    u_char                          numbers[2][NGX_INT64_LEN];
} redis_list_t;


static void item_argument(ngx_idempotency_redis_item_t *ri, u_char *data,
    size_t len);
static void item_number(ngx_idempotency_redis_item_t *ri, int64_t n);
static void head_write(u_char *head, ngx_idempotency_item_t *item,
    ngx_uint_t pending);
static void head_put(u_char *p, size_t len, uint64_t n);
static uint64_t head_get(u_char *p, size_t len);
static ngx_int_t item_record(ngx_idempotency_item_t *item, ngx_str_t *record,
    int64_t there, int64_t now);
static ngx_uint_t redis_list_changed(redis_list_t *list);
static void redis_list_next(redis_list_t *list, ngx_uint_t cursor,
    uint64_t skip);
static void redis_list_handler(ngx_idempotency_redis_call_t *call);
static ngx_int_t redis_list_answer(redis_list_t *list,
    ngx_idempotency_redis_reply_t *reply);
static void redis_list_item(redis_list_t *list,
    ngx_idempotency_redis_reply_t *elts, int64_t there);


#define redis_script(name)                                                   \
    { { sizeof(ngx_idempotency_redis_##name##_lua),                          \
        ngx_idempotency_redis_##name##_lua }, { 0 } }

/* in the order of ngx_idempotency_redis_script_e */

ngx_idempotency_redis_script_t
    ngx_idempotency_redis_scripts[NGX_IDEMPOTENCY_REDIS_SCRIPTS] =
{
    redis_script(claim),
    redis_script(put),
    redis_script(release),
    redis_script(find),
    redis_script(forget),
    redis_script(stamp),
    redis_script(list),
    redis_script(try)
};


void
ngx_idempotency_redis_items_init(void)
{
    u_char                           digest[20];
    ngx_sha1_t                       sha1;
    ngx_uint_t                       i;
    ngx_idempotency_redis_script_t  *script;

    for (i = 0; i < NGX_IDEMPOTENCY_REDIS_SCRIPTS; i++) {
        script = &ngx_idempotency_redis_scripts[i];

        ngx_sha1_init(&sha1);
        ngx_sha1_update(&sha1, script->text.data, script->text.len);
        ngx_sha1_final(digest, &sha1);

        (void) ngx_hex_dump(script->sha1, digest, sizeof(digest));
    }
}


u_char *
ngx_idempotency_redis_item_key(u_char *p, ngx_str_t *prefix, u_char *token)
{
    ngx_str_t  src, dst;

    src.data = token;
    src.len = NGX_IDEMPOTENCY_DIGEST_LEN;

    dst.data = ngx_cpymem(p, prefix->data, prefix->len);

    ngx_encode_base64url(&dst, &src);

    return dst.data + dst.len;
}


void
ngx_idempotency_redis_item_call(ngx_idempotency_redis_item_t *ri,
    ngx_str_t *prefix, ngx_str_t *publish, int64_t now)
{
    char                          *flags;
    int64_t                        age, left, keep;
    ngx_uint_t                     pending;
    ngx_idempotency_item_t        *item;
    ngx_idempotency_redis_call_t  *call;

    static char  *asks[] = { "--", "r-", "-o", "ro" };

    item = ri->item;
    call = &ri->call;

    call->script = &ngx_idempotency_redis_scripts[item->what];
    call->key.data = ri->key;
    call->key.len = ngx_idempotency_redis_item_key(ri->key, prefix,
                                                   item->token)
                    - ri->key;
    call->args = ri->args;
    call->nargs = 0;
    call->until = (item->what != NGX_IDEMPOTENCY_ITEM_RELEASE);
    call->compare = (item->what != NGX_IDEMPOTENCY_ITEM_FORGET);
    call->durable = 0;
    call->fresh = 0;

    if (item->what == NGX_IDEMPOTENCY_ITEM_FIND) {
        call->until = 0;
        call->compare = 0;
        return;
    }

    pending = (item->what != NGX_IDEMPOTENCY_ITEM_PUT
               || item->outcome == NGX_IDEMPOTENCY_PENDING);

    head_write(ri->head, item, pending);
    item_argument(ri, ri->head, NGX_IDEMPOTENCY_REDIS_HEAD);

    switch (item->what) {

    case NGX_IDEMPOTENCY_ITEM_RELEASE:
        item_argument(ri, publish->data, publish->len);
        flags = item->unanswered ? "l" : item->freed ? "f" : "-";
        item_argument(ri, (u_char *) flags, 1);
        return;

    case NGX_IDEMPOTENCY_ITEM_FORGET:
        item_number(ri, ngx_max(item->lease, 1000));
        item_argument(ri, publish->data, publish->len);
        return;

    case NGX_IDEMPOTENCY_ITEM_ASK:
        item_number(ri, item->floor);
        flags = asks[item->retry + 2 * item->old];
        call->durable = 1;
        call->fresh = 1;
        break;

    default: /* NGX_IDEMPOTENCY_ITEM_PUT */
        item_argument(ri, item->response.data, item->response.len);
        flags = item->known ? "k" : "-";
        call->durable = !pending;
    }

    age = now - item->recorded;
    age = ngx_max(age, 0);

    left = item->ends - now;
    left = ngx_max(left, 1);

    keep = left;

    if (pending) {
        keep = ngx_max(ngx_max(item->window, left), ITEM_KEEP);
    }

    item_number(ri, item->lease);
    item_number(ri, age);
    item_number(ri, left);
    item_number(ri, keep);
    item_argument(ri, (u_char *) flags, ngx_strlen(flags));
    item_argument(ri, publish->data, publish->len);
}


static void
item_argument(ngx_idempotency_redis_item_t *ri, u_char *data, size_t len)
{
    ngx_str_t  *arg;

    arg = &ri->args[ri->call.nargs++];

    arg->data = data;
    arg->len = len;
}


static void
item_number(ngx_idempotency_redis_item_t *ri, int64_t n)
{
    u_char  *p;

    p = ri->numbers[ri->call.nargs];

    item_argument(ri, p, ngx_sprintf(p, "%L", n) - p);
}


/* the scripts write the times */

static void
head_write(u_char *head, ngx_idempotency_item_t *item, ngx_uint_t pending)
{
    u_char              *p;
    ngx_uint_t           i;
    const head_field_t  *f;

    ngx_memzero(head, NGX_IDEMPOTENCY_REDIS_HEAD);

    for (i = 0; i < HEAD_FIELDS; i++) {
        f = &head_fields[i];
        p = (u_char *) item + f->offset;

        if (f->number) {
            head_put(head + f->at, f->len, (f->len == 8) ? *(uint64_t *) p
                                                         : *(ngx_uint_t *) p);
        } else {
            ngx_memcpy(head + f->at, p, f->len);
        }
    }

    head[0] = 'I';
    head[1] = '2';
    head[HEAD_STATE] = pending ? 'P' : head_states[item->outcome];

    if (item->outcome == NGX_IDEMPOTENCY_PENDING) {
        head_put(head + HEAD_STATUS, 4, item->taken);
    }

    /* FORGET: this zone's later claims are not meant */

    if (item->what == NGX_IDEMPOTENCY_ITEM_FORGET) {
        head_put(head + HEAD_SEQUENCE, 8, item->floor);
    }
}


ngx_uint_t
ngx_idempotency_redis_strings(ngx_idempotency_redis_reply_t *reply,
    ngx_uint_t least)
{
    ngx_uint_t  i;

    if (reply->type != NGX_IDEMPOTENCY_REDIS_ARRAY || reply->n < least) {
        return 0;
    }

    for (i = 0; i < reply->n; i++) {
        if (reply->elts[i].type != NGX_IDEMPOTENCY_REDIS_STRING) {
            return 0;
        }
    }

    return 1;
}


/* The reply: a code, the server's time; a record, its head, or a fence. */

ngx_int_t
ngx_idempotency_redis_item_answer(ngx_idempotency_redis_item_t *ri,
    ngx_idempotency_redis_reply_t *reply, int64_t now)
{
    int64_t                  there, fence;
    ngx_str_t               *code, record;
    ngx_idempotency_item_t  *item;

    item = ri->item;

    if (!ngx_idempotency_redis_strings(reply, 2)) {
        return NGX_ERROR;
    }

    code = &reply->elts[0].str;
    there = ngx_atoof(reply->elts[1].str.data, reply->elts[1].str.len);

    if (code->len != 1 || there == NGX_ERROR) {
        return NGX_ERROR;
    }

    ngx_str_null(&record);

    if (reply->n > 2) {
        record = reply->elts[2].str;
    }

    switch (code->data[0]) {

    case 'D':
        item->taken = 1;
        /* fall through */

    case 'C':
        fence = ngx_atoof(record.data, record.len);

        if (fence == NGX_ERROR) {
            return NGX_ERROR;
        }

        item->fence = fence;
        item->result = NGX_IDEMPOTENCY_CLAIMED;
        return NGX_OK;

    case 'B':
        return item_record(item, &record, there, now);

    case 'A':
        item->result = NGX_IDEMPOTENCY_ABSENT;
        return NGX_OK;

    case 'X':
        item->result = NGX_IDEMPOTENCY_CHANGED;
        return NGX_OK;

    case 'T':
        item->lost = 1;
        /* fall through */

    case 'O':
        item->result = NGX_IDEMPOTENCY_OK;
        return NGX_OK;

    case 'S':
        item->result = NGX_IDEMPOTENCY_STALE;
        return NGX_OK;

    case 'I':
    case 'L':

        /* the call came too late, or to another server: it did nothing */

        item->result = NGX_IDEMPOTENCY_UNAVAILABLE;
        item->failed = 1;
        return NGX_OK;

    case 'V':
        item->result = NGX_IDEMPOTENCY_UNAVAILABLE;
        return NGX_DECLINED;
    }

    return NGX_ERROR;
}


/* The response may be missing.  The record's times are the server's, as is
   `there`; the item's are by `now`. */

static ngx_int_t
item_record(ngx_idempotency_item_t *item, ngx_str_t *record, int64_t there,
    int64_t now)
{
    u_char              *p, *head;
    size_t               len;
    ngx_uint_t           i;
    const head_field_t  *f;

    if (record->len < NGX_IDEMPOTENCY_REDIS_HEAD) {
        return NGX_ERROR;
    }

    head = record->data;

    for (i = 0; head_states[i] != head[HEAD_STATE]; i++) {
        if (i + 1 == sizeof(head_states)) {
            return NGX_DECLINED;
        }
    }

    /* the scripts read no signs: this never ends there, and has ended here */

    if ((int64_t) head_get(head + HEAD_ENDS, 8) < 0) {
        return NGX_DECLINED;
    }

    item->outcome = i;

    len = record->len - NGX_IDEMPOTENCY_REDIS_HEAD;

    if (len) {
        p = malloc(len);
        if (p == NULL) {
            return NGX_ERROR;
        }

        ngx_memcpy(p, head + NGX_IDEMPOTENCY_REDIS_HEAD, len);

        item->response.data = p;
    }

    item->response.len = len;

    for (i = 0; i < HEAD_FIELDS; i++) {
        f = &head_fields[i];
        p = (u_char *) item + f->offset;

        if (!f->number) {
            ngx_memcpy(p, head + f->at, f->len);

        } else if (f->len == 8) {
            *(uint64_t *) p = head_get(head + f->at, 8);

        } else {
            *(ngx_uint_t *) p = head_get(head + f->at, 4);
        }
    }

    now -= there;

    item->recorded = (uint64_t) item->recorded + now;
    item->ends = (uint64_t) item->ends + now;
    item->lapses = 0;

    if (item->outcome == NGX_IDEMPOTENCY_PENDING) {
        item->lapses = head_get(head + HEAD_LEASE, 8) + (uint64_t) now;
        item->status = 0;
    }

    item->result = NGX_IDEMPOTENCY_BOUND;

    return NGX_OK;
}


static void
head_put(u_char *p, size_t len, uint64_t n)
{
    while (len) {
        p[--len] = (u_char) n;
        n >>= 8;
    }
}


static uint64_t
head_get(u_char *p, size_t len)
{
    uint64_t  n;

    for (n = 0; len; len--) {
        n = n << 8 | *p++;
    }

    return n;
}


/*
 * The page's cursor is the server's plus one, as that begins and ends with 0;
 * its token is the place.
 */

ngx_int_t
ngx_idempotency_redis_list(ngx_idempotency_redis_t *redis,
    ngx_idempotency_page_t *page, ngx_str_t *prefix, int64_t now)
{
    u_char                        *p;
    redis_list_t                  *list;
    redis_list_place_t            *place;
    ngx_idempotency_redis_call_t  *call;

    list = ngx_calloc(sizeof(redis_list_t), ngx_cycle->log);
    if (list == NULL) {
        return NGX_ERROR;
    }

    list->redis = redis;
    list->page = page;
    place = &list->place;

    if (page->cursor) {
        ngx_memcpy(place, page->token, sizeof(redis_list_place_t));
    }

    if (page->cursor == 0 || redis_list_changed(list)) {
        ngx_memzero(place, sizeof(redis_list_place_t));
        page->cursor = 1;

        if (ngx_idempotency_redis_master(redis, &place->master, &place->all)
            != NGX_OK)
        {
            ngx_free(list);
            return NGX_ERROR;
        }
    }

    p = list->numbers[0];
    list->args[0].data = p;
    list->args[0].len = ngx_sprintf(p, "%ui", page->cursor - 1) - p;

    list->args[1] = *prefix;

    p = list->numbers[1];
    list->args[2].data = p;
    list->args[2].len = ngx_sprintf(p, "%ui", ngx_min(page->n, LIST_COUNT)) - p;

    page->n = 0;
    page->now = now;

    call = &list->call;

    call->script = &ngx_idempotency_redis_scripts[NGX_IDEMPOTENCY_REDIS_LIST];
    call->master = place->master;
    call->args = list->args;
    call->nargs = 3;
    call->deadline = ngx_current_msec
                     + ngx_idempotency_redis_conf(redis)->timeout;
    call->handler = redis_list_handler;
    call->data = list;

    ngx_idempotency_redis_call(redis, 0, call);

    return NGX_AGAIN;
}


/* the set of masters has changed: the list begins anew */

static ngx_uint_t
redis_list_changed(redis_list_t *list)
{
    uint64_t  master, all;

    master = list->place.master;

    return ngx_idempotency_redis_master(list->redis, &master, &all)
           != NGX_ERROR
           && all != list->place.all;
}


/* where the next page goes on */

static void
redis_list_next(redis_list_t *list, ngx_uint_t cursor, uint64_t skip)
{
    ngx_idempotency_page_t  *page;

    page = list->page;

    list->place.skip = skip;

    page->cursor = cursor;
    ngx_memzero(page->token, NGX_IDEMPOTENCY_DIGEST_LEN);
    ngx_memcpy(page->token, &list->place, sizeof(redis_list_place_t));
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

        /* the server is no master any more */

        redis_list_next(list, 1, 0);

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
    uint64_t                        all;
    ngx_int_t                       rc;
    ngx_uint_t                      i, n;
    ngx_idempotency_page_t         *page;
    ngx_idempotency_redis_reply_t  *elts;

    page = list->page;
    n = reply->n - LIST_HEAD;

    if (!ngx_idempotency_redis_strings(reply, LIST_HEAD)
        || n % LIST_EACH != 0)
    {
        return NGX_ERROR;
    }

    elts = reply->elts;

    there = ngx_atoof(elts[1].str.data, elts[1].str.len);
    next = ngx_atoof(elts[2].str.data, elts[2].str.len);

    if (there == NGX_ERROR || next == NGX_ERROR) {
        return NGX_ERROR;
    }

    elts += LIST_HEAD;
    n /= LIST_EACH;

    /* all of an answer goes into one page if possible, as SCAN has no cursor
       for the middle of an answer */

    for (i = list->place.skip;
         i < n && page->n < NGX_IDEMPOTENCY_TIER_BATCH;
         i++)
    {
        redis_list_item(list, &elts[i * LIST_EACH], there);
    }

    if (i < n) {

        /* if keys come and go just now, some may be listed twice or missed */

        redis_list_next(list, page->cursor, i);
        return NGX_OK;
    }

    if (next) {
        redis_list_next(list, next + 1, 0);
        return NGX_OK;
    }

    /* this master has no more: the next one, or, if the set of masters has
       changed, all of them again */

    rc = ngx_idempotency_redis_master(list->redis, &list->place.master, &all);

    if (rc == NGX_ERROR) {
        return NGX_ERROR;
    }

    page->cursor = 0;

    if (rc == NGX_OK || all != list->place.all) {
        redis_list_next(list, 1, 0);
    }

    return NGX_OK;
}


/* a key, its head and its length; keys of others are skipped */

static void
redis_list_item(redis_list_t *list, ngx_idempotency_redis_reply_t *elts,
    int64_t there)
{
    size_t                   prefix;
    ngx_str_t                key, token;
    ngx_int_t                len;
    ngx_idempotency_page_t  *page;
    ngx_idempotency_item_t  *item;

    page = list->page;
    item = &page->items[page->n];

    ngx_memzero(item, sizeof(ngx_idempotency_item_t));

    key = elts[0].str;
    prefix = list->args[1].len;
    len = ngx_atoi(elts[2].str.data, elts[2].str.len);

    if (key.len != prefix + NGX_IDEMPOTENCY_REDIS_TOKEN
        || len < (ngx_int_t) elts[1].str.len
        || elts[1].str.len != NGX_IDEMPOTENCY_REDIS_HEAD)
    {
        return;
    }

    key.data += prefix;
    key.len = NGX_IDEMPOTENCY_REDIS_TOKEN;
    token.data = item->token;

    if (ngx_decode_base64url(&token, &key) != NGX_OK
        || item_record(item, &elts[1].str, there, page->now) != NGX_OK)
    {
        return;
    }

    item->response.len = len - elts[1].str.len;
    item->what = NGX_IDEMPOTENCY_ITEM_FIND;
    item->length_only = 1;

    page->n++;
}
