
/*
 * A record as a Redis gives it, which somebody else may have written: an answer
 * of a script, of any type in any place.  What is taken is what was there, and
 * points to bytes of its own.
 */


#include "fuzz.h"

#include "store/redis/ngx_idempotency_redis_item.h"


static ngx_idempotency_redis_reply_t  elts[4];


/* up to four parts: what it is, how long, and its bytes */

static ngx_uint_t
parts(const uint8_t *data, size_t size)
{
    size_t      len;
    ngx_uint_t  n;

    static ngx_idempotency_redis_type_e  types[] = {
        NGX_IDEMPOTENCY_REDIS_STRING, NGX_IDEMPOTENCY_REDIS_STRING,
        NGX_IDEMPOTENCY_REDIS_STRING, NGX_IDEMPOTENCY_REDIS_INTEGER,
        NGX_IDEMPOTENCY_REDIS_ERROR, NGX_IDEMPOTENCY_REDIS_NIL
    };

    ngx_memzero(elts, sizeof(elts));

    for (n = 0; n < 4 && size >= 2; n++) {
        len = ngx_min(data[1], size - 2);

        elts[n].type = types[data[0] % 6];
        elts[n].str.data = fuzz_copy(data + 2, len);
        elts[n].str.len = len;

        data += 2 + len;
        size -= 2 + len;
    }

    return n;
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ngx_int_t                       rc;
    ngx_str_t                      *record;
    ngx_idempotency_item_t          item;
    ngx_idempotency_redis_item_t    ri;
    ngx_idempotency_redis_reply_t   reply;

    (void) fuzz_pool();

    ngx_memzero(&item, sizeof(ngx_idempotency_item_t));
    ngx_memzero(&ri, sizeof(ngx_idempotency_redis_item_t));
    ngx_memzero(&reply, sizeof(ngx_idempotency_redis_reply_t));

    ri.item = &item;
    reply.type = NGX_IDEMPOTENCY_REDIS_ARRAY;
    reply.n = parts(data, size);
    reply.elts = elts;

    rc = ngx_idempotency_redis_item_answer(&ri, &reply, 1000000);

    hold(rc == NGX_OK || rc == NGX_ERROR || rc == NGX_DECLINED);

    if (rc == NGX_OK && item.result == NGX_IDEMPOTENCY_BOUND) {
        record = &elts[2].str;

        hold(item.outcome <= NGX_IDEMPOTENCY_IN_DOUBT);
        hold(item.response.len == record->len - NGX_IDEMPOTENCY_REDIS_HEAD);
        hold(item.response.len == 0
             || (item.response.data != record->data
                 && ngx_memcmp(item.response.data,
                               record->data + NGX_IDEMPOTENCY_REDIS_HEAD,
                               item.response.len)
                    == 0));
    }

    free(item.response.data);

    return 0;
}
