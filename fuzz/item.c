
/*
 * A record as a Redis gives it, which somebody else may have written: an answer
 * of a script, of any type in any place.  What is taken is what was there, and
 * points to bytes of its own.  Then the same record in a page of records, which
 * has the lengths of responses and not their bytes.
 */


#include "fuzz.h"

#include "store/redis/ngx_idempotency_redis_item.c"


#define PREFIX  "p:"


static ngx_idempotency_redis_reply_t  elts[4];


/* the page's masters: there is one */

ngx_int_t
ngx_idempotency_redis_master(ngx_idempotency_redis_t *redis, uint64_t *master,
    uint64_t *all)
{
    *all = 1;

    return NGX_DONE;
}


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


/* the key and what the record is said to weigh are right, or one is what the
   fourth part says */

static void
page(void)
{
    u_char                         length[NGX_INT64_LEN];
    redis_list_t                   list;
    ngx_uint_t                     i;
    ngx_idempotency_redis_reply_t  reply, all[2 * 3 + 3];

    static ngx_idempotency_page_t  listed;

    ngx_memzero(&list, sizeof(redis_list_t));
    ngx_memzero(&listed, sizeof(ngx_idempotency_page_t));

    list.page = &listed;
    listed.now = 1000000;
    ngx_str_set(&list.args[1], PREFIX);

    all[0] = elts[0];
    all[1] = elts[1];
    all[2] = (elts[3].str.len & 1) ? elts[3] : elts[1];

    for (i = 3; i < 9; i += 3) {
        all[i].type = NGX_IDEMPOTENCY_REDIS_STRING;
        ngx_str_set(&all[i].str,
                    PREFIX "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA");
        all[i + 1] = elts[2];
        all[i + 2].type = NGX_IDEMPOTENCY_REDIS_STRING;
        all[i + 2].str.data = length;
        all[i + 2].str.len = ngx_sprintf(length, "%uz", elts[2].str.len)
                             - length;
    }

    if (elts[3].str.len) {
        all[3 + elts[3].str.data[0] % 6] = elts[3];
    }

    ngx_memzero(&reply, sizeof(ngx_idempotency_redis_reply_t));
    reply.type = NGX_IDEMPOTENCY_REDIS_ARRAY;
    reply.n = (elts[3].str.len % 7 == 6) ? 8 : 9;
    reply.elts = all;

    if (redis_list_answer(&list, &reply) != NGX_OK) {
        return;
    }

    hold(listed.n <= 2);

    for (i = 0; i < listed.n; i++) {
        hold(listed.items[i].length_only
             && listed.items[i].response.data == NULL
             && listed.items[i].outcome <= NGX_IDEMPOTENCY_IN_DOUBT);
    }
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

    if (reply.n > 2) {
        page();
    }

    return 0;
}
