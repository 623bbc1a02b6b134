
/*
 * What a Redis says: any bytes, in any pieces.  The pieces don't count; what
 * is well-formed and written again is the same again; nothing points out of
 * what was read.
 */


#include "fuzz.h"

#include "store/redis/ngx_idempotency_redis_resp.h"


static ngx_cycle_t  cycle;
static ngx_log_t    log;


static ngx_uint_t
sum(ngx_idempotency_redis_reply_t *reply, ngx_uint_t depth)
{
    size_t      i;
    ngx_uint_t  n;

    hold(depth <= NGX_IDEMPOTENCY_RESP_DEPTH);

    n = 31 * reply->type + reply->integer;

    for (i = 0; i < reply->str.len; i++) {
        n = n * 31 + reply->str.data[i];
    }

    for (i = 0; i < reply->n; i++) {
        n = n * 31 + sum(&reply->elts[i], depth + 1);
    }

    return n;
}


/* of all replies, and how it ended */

static ngx_uint_t
read_all(const uint8_t *data, size_t size, uint64_t *seed)
{
    u_char                         *p;
    size_t                          room, piece, n;
    ngx_int_t                       rc;
    ngx_uint_t                      all;
    ngx_idempotency_resp_t          resp;
    ngx_idempotency_redis_reply_t  *reply, *copy;

    ngx_memzero(&resp, sizeof(resp));
    all = 0;

    for ( ;; ) {
        while ((rc = ngx_idempotency_resp_next(&resp, &reply)) == NGX_OK) {
            copy = ngx_idempotency_resp_copy(&resp);
            hold(sum(copy, 0) == sum(reply, 0));
            ngx_free(copy);

            all = all * 31 + sum(reply, 0);
        }

        hold(rc == NGX_AGAIN || rc == NGX_ERROR);

        if (rc == NGX_ERROR || size == 0) {
            break;
        }

        p = ngx_idempotency_resp_room(&resp, &room);
        hold(p && room);

        n = ngx_min(size, room);

        if (seed) {
            piece = 1 + fuzz_below(seed, 7);
            n = ngx_min(n, piece);
        }

        ngx_memcpy(p, data, n);
        resp.in.len += n;

        data += n;
        size -= n;
    }

    hold(resp.in.size < 1024 * 1024);
    ngx_idempotency_resp_free(&resp);

    return all * 2 + (rc == NGX_ERROR);
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t  seed;

    cycle.log = &log;
    ngx_cycle = &cycle;

    seed = size;

    hold(read_all(data, size, NULL) == read_all(data, size, &seed));

    return 0;
}
