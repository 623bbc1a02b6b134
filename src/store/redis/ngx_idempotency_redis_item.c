
/*
 * Items as a Redis has them.  Times go there as spans from now on, and come
 * back as spans before its now: no clock but the server's counts.
 */


#include "ngx_idempotency_redis_item.h"

#include <ngx_sha1.h>

#include "ngx_idempotency_redis_lua.h"


/* what is pending stays for a day at least, whatever its lease: it would be
   fresh again without it */

#define NGX_IDEMPOTENCY_REDIS_KEEP  (24 * 3600 * (int64_t) 1000)

/* what a head has of an item, both ways, and where: see record.lua.  A number
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
#define HEAD_STATUS    60

static const head_field_t  head_fields[] = {
    head_bytes(3, 1, parts.version),
    head_number(4, 8, instance),
    head_number(HEAD_SEQUENCE, 8, sequence),
    head_number(20, 8, fence),
    head_number(36, 8, recorded),
    head_number(44, 8, ends),
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


static void head_write(u_char *head, ngx_idempotency_item_t *item);
static void head_put(u_char *p, size_t len, uint64_t n);
static uint64_t head_get(u_char *p, size_t len);
static void redis_argument(ngx_idempotency_redis_item_t *ri, u_char *data,
    size_t len);
static void redis_number(ngx_idempotency_redis_item_t *ri, u_char **p,
    int64_t n);


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
    int64_t                        age, left;
    u_char                        *p, flags[2];
    ngx_uint_t                     script;
    ngx_idempotency_item_t        *item;
    ngx_idempotency_redis_call_t  *call;

    item = ri->item;
    call = &ri->call;

    call->key.data = ri->key;
    call->key.len = ngx_idempotency_redis_item_key(ri->key, prefix,
                                                   item->token)
                    - ri->key;
    call->args = ri->args;
    call->nargs = 0;

    age = now - item->recorded;
    age = ngx_max(age, 0);

    left = item->ends - now;
    left = ngx_max(left, 1);

    p = ri->numbers;

    if (item->what != NGX_IDEMPOTENCY_ITEM_FIND) {
        head_write(ri->head, item);
        redis_argument(ri, ri->head, NGX_IDEMPOTENCY_REDIS_HEAD);
    }

    switch (item->what) {

    case NGX_IDEMPOTENCY_ITEM_ASK:
        script = NGX_IDEMPOTENCY_REDIS_CLAIM;

        head_put(ri->since, sizeof(ri->since), item->floor);
        redis_argument(ri, ri->since, sizeof(ri->since));

        redis_number(ri, &p, item->lease);
        redis_number(ri, &p, age);
        redis_number(ri, &p, left);
        redis_number(ri, &p, ngx_max(ngx_max(item->window, left),
                                     NGX_IDEMPOTENCY_REDIS_KEEP));

        flags[0] = item->retry ? 'r' : '-';
        flags[1] = item->old ? 'o' : '-';

        redis_argument(ri, p, 2);
        p = ngx_cpymem(p, flags, 2);

        redis_argument(ri, publish->data, publish->len);
        call->until = 1;
        call->durable = 1;
        break;

    case NGX_IDEMPOTENCY_ITEM_PUT:
        script = NGX_IDEMPOTENCY_REDIS_PUT;

        redis_argument(ri, item->response.data, item->response.len);
        redis_number(ri, &p, item->lease);
        redis_number(ri, &p, age);
        redis_number(ri, &p, left);

        if (item->outcome == NGX_IDEMPOTENCY_PENDING) {
            left = ngx_max(ngx_max(item->window, left),
                           NGX_IDEMPOTENCY_REDIS_KEEP);
        }

        redis_number(ri, &p, left);
        redis_argument(ri, (u_char *) (item->known ? "k" : "-"), 1);
        redis_argument(ri, publish->data, publish->len);
        call->until = 1;
        call->durable = (item->outcome != NGX_IDEMPOTENCY_PENDING);
        break;

    case NGX_IDEMPOTENCY_ITEM_RELEASE:
        script = NGX_IDEMPOTENCY_REDIS_RELEASE;

        redis_argument(ri, publish->data, publish->len);
        redis_argument(ri, (u_char *) (item->freed ? "f" : "-"), 1);
        call->until = 0;
        call->durable = 0;
        break;

    case NGX_IDEMPOTENCY_ITEM_FORGET:
        script = NGX_IDEMPOTENCY_REDIS_FORGET;

        redis_number(ri, &p, ngx_max(item->lease, 1000));
        redis_argument(ri, publish->data, publish->len);
        call->until = 1;
        call->durable = 0;
        break;

    default: /* NGX_IDEMPOTENCY_ITEM_FIND */
        script = NGX_IDEMPOTENCY_REDIS_FIND;

        call->until = 0;
        call->durable = 0;
    }

    call->script = &ngx_idempotency_redis_scripts[script];
    call->meant = (item->what != NGX_IDEMPOTENCY_ITEM_FORGET
                   && item->what != NGX_IDEMPOTENCY_ITEM_FIND);
}


/* the scripts make the times of what they write */

static void
head_write(u_char *head, ngx_idempotency_item_t *item)
{
    u_char              *p;
    ngx_uint_t           i, pending;
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

    pending = (item->what != NGX_IDEMPOTENCY_ITEM_PUT
               || item->outcome == NGX_IDEMPOTENCY_PENDING);

    head[0] = 'I';
    head[1] = '2';
    head[HEAD_STATE] = pending ? 'P' : head_states[item->outcome];

    if (item->outcome == NGX_IDEMPOTENCY_PENDING) {
        head_put(head + HEAD_STATUS, 4, item->taken);
    }

    /* by hand, what was claimed here behind it is not meant */

    if (item->what == NGX_IDEMPOTENCY_ITEM_FORGET) {
        head_put(head + HEAD_SEQUENCE, 8, item->floor);
    }
}


/* the answer is what became of it, the server's time, and a record or its
   head, or a fence */

ngx_int_t
ngx_idempotency_redis_item_answer(ngx_idempotency_redis_item_t *ri,
    ngx_idempotency_redis_reply_t *reply, int64_t now)
{
    int64_t                  there, fence;
    ngx_str_t               *code, record;
    ngx_idempotency_item_t  *item;

    item = ri->item;

    if (reply->type != NGX_IDEMPOTENCY_REDIS_ARRAY || reply->n < 2
        || reply->elts[0].type != NGX_IDEMPOTENCY_REDIS_STRING
        || reply->elts[1].type != NGX_IDEMPOTENCY_REDIS_STRING)
    {
        return NGX_ERROR;
    }

    code = &reply->elts[0].str;
    there = ngx_atoof(reply->elts[1].str.data, reply->elts[1].str.len);

    if (code->len != 1 || there == NGX_ERROR) {
        return NGX_ERROR;
    }

    ngx_str_null(&record);

    if (reply->n > 2 && reply->elts[2].type == NGX_IDEMPOTENCY_REDIS_STRING) {
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
        return ngx_idempotency_redis_item_record(item, &record, there, now);

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

        /* it came too late to be wanted, or to another one, and did nothing */

        item->result = NGX_IDEMPOTENCY_UNAVAILABLE;
        item->failed = 1;
        return NGX_OK;

    case 'V':
        item->result = NGX_IDEMPOTENCY_UNAVAILABLE;
        return NGX_DECLINED;
    }

    return NGX_ERROR;
}


ngx_int_t
ngx_idempotency_redis_item_record(ngx_idempotency_item_t *item,
    ngx_str_t *record, int64_t there, int64_t now)
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

    item->recorded += now;
    item->ends += now;
    item->lapses = 0;

    if (item->outcome == NGX_IDEMPOTENCY_PENDING) {
        item->lapses = head_get(head + HEAD_LEASE, 8) + now;
        item->status = 0;
    }

    item->result = NGX_IDEMPOTENCY_BOUND;

    return NGX_OK;
}


static void
redis_argument(ngx_idempotency_redis_item_t *ri, u_char *data, size_t len)
{
    ngx_str_t  *arg;

    arg = &ri->args[ri->call.nargs++];

    arg->data = data;
    arg->len = len;
}


static void
redis_number(ngx_idempotency_redis_item_t *ri, u_char **p, int64_t n)
{
    u_char  *last;

    last = ngx_sprintf(*p, "%L", n);

    redis_argument(ri, *p, last - *p);

    *p = last;
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
