
/*
 * A key as a client writes it, in each format: what is taken is not too long, and
 * what is taken of it in ASCII is taken again, quoted, as the same key.
 */


#include "fuzz.h"

#include "ngx_http_idempotency.h"
#include "request/ngx_http_idempotency_request.h"


volatile ngx_time_t  *ngx_cached_time;


static ngx_http_idempotency_status_e
read_key(ngx_pool_t *pool, ngx_uint_t format, u_char *data, size_t len,
    ngx_str_t *key)
{
    uint64_t                         made;
    ngx_http_request_t               r;
    ngx_http_idempotency_loc_conf_t  conf;

    ngx_memzero(&r, sizeof(ngx_http_request_t));
    ngx_memzero(&conf, sizeof(ngx_http_idempotency_loc_conf_t));

    r.pool = pool;
    conf.key_max_length = 255;
    conf.key_format = format;

    key->data = data;
    key->len = len;

    return ngx_http_idempotency_key_parse(&r, &conf, key, &made);
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t       i, len;
    u_char      *p, quoted[600];
    ngx_str_t    key, again;
    ngx_pool_t  *pool;
    ngx_uint_t   format;
    ngx_time_t   time;

    if (size < 2) {
        return 0;
    }

    pool = fuzz_pool();
    format = data[0] % 4;
    time.sec = 1700000000;
    time.msec = 0;
    ngx_cached_time = &time;

    if (read_key(pool, format, fuzz_copy(data + 1, size - 1), size - 1, &key)
        != NGX_HTTP_IDEMPOTENCY_STATUS_NEW)
    {
        return 0;
    }

    hold(key.len > 0 && key.len <= 255);

    p = quoted;
    *p++ = '"';

    for (i = 0; i < key.len; i++) {
        if (key.data[i] < 0x20 || key.data[i] > 0x7e) {
            return 0;
        }

        if (key.data[i] == '"' || key.data[i] == '\\') {
            *p++ = '\\';
        }

        *p++ = key.data[i];
    }

    *p++ = '"';
    len = p - quoted;

    hold(read_key(pool, format, fuzz_copy(quoted, len), len, &again)
         == NGX_HTTP_IDEMPOTENCY_STATUS_NEW);
    hold(again.len == key.len
         && ngx_memcmp(again.data, key.data, key.len) == 0);

    return 0;
}
