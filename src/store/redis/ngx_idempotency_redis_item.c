
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

/* where what is in a head: see claim.lua */

#define redis_state        2
#define redis_form         3
#define redis_instance     4
#define redis_sequence    12
#define redis_fence       20
#define redis_lease       28
#define redis_recorded    36
#define redis_ends        44
#define redis_window      52
#define redis_status      60
#define redis_replays     64
#define redis_fingerprint 68
#define redis_identity   100
#define redis_action     116
#define redis_body       120
#define redis_settings   124
#define redis_mac        128


static void redis_head(ngx_idempotency_redis_item_t *ri, u_char state);
static u_char redis_item_state(ngx_idempotency_item_t *item);
static void redis_argument(ngx_idempotency_redis_item_t *ri, u_char *data,
    size_t len);
static void redis_number(ngx_idempotency_redis_item_t *ri, u_char **p,
    int64_t n);
static void redis_put64(u_char *p, uint64_t n);
static void redis_put32(u_char *p, uint32_t n);
static uint64_t redis_get64(u_char *p);
static uint32_t redis_get32(u_char *p);


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
        redis_head(ri, redis_item_state(item));
        redis_argument(ri, ri->head, NGX_IDEMPOTENCY_REDIS_HEAD);
    }

    switch (item->what) {

    case NGX_IDEMPOTENCY_ITEM_ASK:
        script = NGX_IDEMPOTENCY_REDIS_CLAIM;

        redis_put64(ri->since, item->floor);
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


static void
redis_head(ngx_idempotency_redis_item_t *ri, u_char state)
{
    u_char                  *head;
    uint64_t                 sequence;
    ngx_idempotency_item_t  *item;

    head = ri->head;
    item = ri->item;

    ngx_memzero(head, NGX_IDEMPOTENCY_REDIS_HEAD);

    head[0] = 'I';
    head[1] = '2';
    head[redis_state] = state;
    head[redis_form] = item->parts.version;

    /* by hand, what was claimed here behind it is not meant */

    sequence = (item->what == NGX_IDEMPOTENCY_ITEM_FORGET) ? item->floor
                                                           : item->sequence;

    redis_put64(head + redis_instance, item->instance);
    redis_put64(head + redis_sequence, sequence);
    redis_put64(head + redis_fence, item->fence);
    redis_put64(head + redis_window, item->window);
    redis_put32(head + redis_status,
                (item->outcome == NGX_IDEMPOTENCY_PENDING) ? item->taken
                                                           : item->status);
    redis_put32(head + redis_replays, item->replays);

    ngx_memcpy(head + redis_fingerprint, item->fingerprint,
               NGX_IDEMPOTENCY_DIGEST_LEN);
    ngx_memcpy(head + redis_identity, item->parts.identity,
               NGX_IDEMPOTENCY_IDENTITY_LEN);
    ngx_memcpy(head + redis_action, item->parts.action,
               NGX_IDEMPOTENCY_HINT_LEN);
    ngx_memcpy(head + redis_body, item->parts.body, NGX_IDEMPOTENCY_HINT_LEN);
    ngx_memcpy(head + redis_settings, item->parts.settings,
               NGX_IDEMPOTENCY_SETTINGS_LEN);
    ngx_memcpy(head + redis_mac, item->mac, NGX_IDEMPOTENCY_MAC_LEN);
}


static u_char
redis_item_state(ngx_idempotency_item_t *item)
{
    if (item->what != NGX_IDEMPOTENCY_ITEM_PUT) {
        return 'P';
    }

    switch (item->outcome) {

    case NGX_IDEMPOTENCY_DONE:
        return 'D';

    case NGX_IDEMPOTENCY_NOT_KEPT:
        return 'N';

    case NGX_IDEMPOTENCY_IN_DOUBT:
        return 'U';

    default:
        return 'P';
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
    size_t     len;
    u_char    *p, *head;
    int64_t    lease;

    if (record->len < NGX_IDEMPOTENCY_REDIS_HEAD) {
        return NGX_ERROR;
    }

    head = record->data;

    switch (head[redis_state]) {

    case 'P':
        item->outcome = NGX_IDEMPOTENCY_PENDING;
        break;

    case 'D':
        item->outcome = NGX_IDEMPOTENCY_DONE;
        break;

    case 'N':
        item->outcome = NGX_IDEMPOTENCY_NOT_KEPT;
        break;

    case 'U':
        item->outcome = NGX_IDEMPOTENCY_IN_DOUBT;
        break;

    default:
        return NGX_DECLINED;
    }

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

    ngx_memcpy(item->fingerprint, head + redis_fingerprint,
               NGX_IDEMPOTENCY_DIGEST_LEN);
    ngx_memcpy(item->parts.identity, head + redis_identity,
               NGX_IDEMPOTENCY_IDENTITY_LEN);
    ngx_memcpy(item->parts.action, head + redis_action,
               NGX_IDEMPOTENCY_HINT_LEN);
    ngx_memcpy(item->parts.body, head + redis_body, NGX_IDEMPOTENCY_HINT_LEN);
    ngx_memcpy(item->parts.settings, head + redis_settings,
               NGX_IDEMPOTENCY_SETTINGS_LEN);
    ngx_memcpy(item->mac, head + redis_mac, NGX_IDEMPOTENCY_MAC_LEN);

    item->parts.version = head[redis_form];
    item->instance = redis_get64(head + redis_instance);
    item->sequence = redis_get64(head + redis_sequence);
    item->fence = redis_get64(head + redis_fence);
    item->window = redis_get64(head + redis_window);
    item->status = (item->outcome == NGX_IDEMPOTENCY_PENDING)
                   ? 0 : redis_get32(head + redis_status);
    item->replays = redis_get32(head + redis_replays);

    now -= there;

    item->recorded = redis_get64(head + redis_recorded) + now;
    item->ends = redis_get64(head + redis_ends) + now;

    lease = redis_get64(head + redis_lease);
    item->lapses = (item->outcome == NGX_IDEMPOTENCY_PENDING) ? lease + now : 0;

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
redis_put64(u_char *p, uint64_t n)
{
    redis_put32(p, (uint32_t) (n >> 32));
    redis_put32(p + 4, (uint32_t) n);
}


static void
redis_put32(u_char *p, uint32_t n)
{
    p[0] = (u_char) (n >> 24);
    p[1] = (u_char) (n >> 16);
    p[2] = (u_char) (n >> 8);
    p[3] = (u_char) n;
}


static uint64_t
redis_get64(u_char *p)
{
    return (uint64_t) redis_get32(p) << 32 | redis_get32(p + 4);
}


static uint32_t
redis_get32(u_char *p)
{
    return (uint32_t) p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3];
}
