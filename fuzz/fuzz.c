
/* What the fuzz targets share. */


#include "fuzz.h"


static ngx_log_t    fuzz_log;
static ngx_pool_t  *pool;


void
fuzz_hold(int ok, char *property, char *file, int line)
{
    if (!ok) {
        fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, property);
        abort();
    }
}


ngx_pool_t *
fuzz_pool(void)
{
    ngx_pagesize = 4096;

    if (pool) {
        ngx_destroy_pool(pool);
    }

    pool = ngx_create_pool(1024, &fuzz_log);

    return pool;
}


u_char *
fuzz_copy(const void *data, size_t len)
{
    u_char  *copy;

    copy = ngx_palloc(pool, ngx_max(len, 1));

    if (len) {
        ngx_memcpy(copy, data, len);
    }

    return copy;
}


fuzz_digest_t
fuzz_body(const ngx_idempotency_kind_t *kind, ngx_idempotency_canon_t *c,
    const void *data, size_t len)
{
    fuzz_digest_t             out;
    ngx_idempotency_digest_t  d, before;

    ngx_memzero(&d, sizeof(d));
    ngx_idempotency_digest_init(&d, NULL, 1, NGX_IDEMPOTENCY_DIGEST_BODY);
    before = d;

    out.rc = ngx_idempotency_canon_body(&d, kind, c, fuzz_copy(data, len), len,
                                        pool);

    hold(out.rc == NGX_OK || out.rc == NGX_DECLINED);
    hold(out.rc == NGX_OK || ngx_memcmp(&d, &before, sizeof(d)) == 0);

    ngx_idempotency_digest_final(&d, out.digest);

    return out;
}


static ngx_int_t
find(const ngx_idempotency_kind_t *kind, const u_char *data, size_t len,
    uint64_t *random, ngx_str_t *value)
{
    size_t                     n;
    u_char                    *piece;
    ngx_idempotency_fields_t  *f;

    static ngx_str_t  names[] = { ngx_string("none"), ngx_string("a") };

    f = ngx_idempotency_fields_create(pool, kind, names, 2, len);

    for ( /* void */ ; len; len -= n, data += n) {
        n = random ? 1 + fuzz_below(random, 20) : len;
        n = ngx_min(n, len);

        piece = ngx_alloc(n, &fuzz_log);
        ngx_memcpy(piece, data, n);
        hold(ngx_idempotency_fields_feed(f, piece, n) != NGX_ERROR);
        ngx_free(piece);
    }

    ngx_idempotency_fields_end(f);

    return ngx_idempotency_fields_value(f, 1, value);
}


ngx_int_t
fuzz_field(const ngx_idempotency_kind_t *kind, const void *data,
    size_t len, uint64_t *random, ngx_str_t *value)
{
    ngx_int_t  rc;
    ngx_str_t  again;

    ngx_str_null(value);
    ngx_str_null(&again);

    rc = find(kind, data, len, NULL, value);

    hold(find(kind, data, len, random, &again) == rc);
    hold(value->len == again.len && value->len <= len);
    hold(value->len == 0
         || ngx_memcmp(value->data, again.data, value->len) == 0);

    return rc;
}


ngx_uint_t
fuzz_equal(fuzz_digest_t *a, fuzz_digest_t *b)
{
    return a->rc == b->rc
           && ngx_memcmp(a->digest, b->digest, sizeof(a->digest)) == 0;
}


ngx_uint_t
fuzz_below(uint64_t *seed, ngx_uint_t n)
{
    *seed = *seed * 6364136223846793005 + 1442695040888963407;

    return (ngx_uint_t) (*seed >> 33) % n;
}


static uint64_t
number(const uint8_t *data)
{
    uint64_t  n;

    ngx_memcpy(&n, data, sizeof(uint64_t));

    return n;
}


void
fuzz_change(ngx_idempotency_item_t *item, const uint8_t *data)
{
    u_char    *place;
    uint64_t   n;

    n = number(data + 2);

    switch (data[0] % 15) {

    case 0: item->token[data[1] % 32] ^= data[2]; break;
    case 1: item->fingerprint[data[1] % 32] ^= data[2]; break;
    case 2: ((u_char *) &item->parts)[data[1] % 28] ^= data[2]; break;
    case 3: item->mac[data[1] % 16] ^= data[2]; break;
    case 4: item->instance ^= n; break;
    case 5: item->sequence ^= n; break;
    case 6: item->window ^= n; break;
    case 7: item->recorded ^= n; break;
    case 8: item->ends ^= n; break;
    case 9: item->outcome = data[2]; break;
    case 10: item->status ^= n; break;
    case 11: item->lapses ^= n; break;
    case 12: item->replays = n; break;
    case 14: item->fence ^= n; break;

    case 13:

        if (item->response.len == 0) {
            break;
        }

        if (data[1] & 1) {
            item->response.len -= n % (item->response.len + 1);
            break;
        }

        place = item->response.data + data[2] % item->response.len;
        *place ^= data[3];
        break;
    }
}


void
fuzz_sound(ngx_idempotency_item_t *item)
{
    hold(item->outcome <= NGX_IDEMPOTENCY_IN_DOUBT);
    hold(item->fence < (uint64_t) 1 << 53
         && item->sequence < (uint64_t) 1 << 53
         && item->window >= 0 && item->window < (int64_t) 1 << 53
         && item->recorded < (int64_t) 1 << 53
         && item->ends < (int64_t) 1 << 53);
}


/* nginx's own, of which its memory and strings need a little */

volatile ngx_cycle_t  *ngx_cycle;
ngx_pid_t              ngx_pid;


void
ngx_log_error_core(ngx_uint_t level, ngx_log_t *log, ngx_err_t err,
    const char *fmt, ...)
{
    hold(level > NGX_LOG_WARN);
}
