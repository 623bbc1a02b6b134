
/*
 * Which tokens there may be.  All bits of a token are in one cache line, so
 * that a look costs one miss of the processor's cache: at ten bits for each
 * token about one absent token in 80 is taken for one that may be there.
 */


#include "ngx_idempotency_filter.h"


#define NGX_IDEMPOTENCY_FILTER_WORDS   8
#define NGX_IDEMPOTENCY_FILTER_BLOCK                                         \
    (NGX_IDEMPOTENCY_FILTER_WORDS * sizeof(uint64_t))

/* of 512 bits */

#define NGX_IDEMPOTENCY_FILTER_HASHES  6
#define NGX_IDEMPOTENCY_FILTER_SHIFT   9

/* so many bits for each token, or it is time to begin anew */

#define NGX_IDEMPOTENCY_FILTER_ROOM    8


static void filter_set(ngx_idempotency_filter_t *filter, ngx_uint_t which,
    u_char *token);
static uint64_t *filter_block(ngx_idempotency_filter_t *filter,
    ngx_uint_t which, u_char *token);
static uint64_t filter_bits(u_char *token);
static size_t filter_size(ngx_idempotency_filter_t *filter);


/* both are as large as may be, by powers of two */

ngx_int_t
ngx_idempotency_filter_init(ngx_idempotency_filter_t *filter,
    ngx_slab_pool_t *shpool, size_t size)
{
    ngx_uint_t  n;

    n = 1;

    while (4 * n * NGX_IDEMPOTENCY_FILTER_BLOCK <= size) {
        n *= 2;
    }

    filter->mask = n - 1;

    for (n = 0; n < 2; n++) {
        filter->blocks[n] = ngx_slab_calloc_locked(shpool,
                                                   filter_size(filter));
        if (filter->blocks[n] == NULL) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


ngx_uint_t
ngx_idempotency_filter_has(ngx_idempotency_filter_t *filter, u_char *token)
{
    uint64_t    bits, *block;
    ngx_uint_t  i;

    bits = filter_bits(token);
    block = filter_block(filter, filter->used, token);

    for (i = 0; i < NGX_IDEMPOTENCY_FILTER_HASHES; i++) {

        if ((block[(bits >> 6) & 7] & ((uint64_t) 1 << (bits & 63))) == 0) {
            return 0;
        }

        bits >>= NGX_IDEMPOTENCY_FILTER_SHIFT;
    }

    return 1;
}


/* what is new goes into the one that is being filled, too */

void
ngx_idempotency_filter_add(ngx_idempotency_filter_t *filter, u_char *token)
{
    filter_set(filter, filter->used, token);

    if (filter->filling) {
        filter_set(filter, !filter->used, token);
    }

    filter->added++;
}


/* what was there before goes into that alone */

void
ngx_idempotency_filter_read(ngx_idempotency_filter_t *filter, u_char *token)
{
    filter_set(filter, !filter->used, token);
    filter->added++;
}


static void
filter_set(ngx_idempotency_filter_t *filter, ngx_uint_t which, u_char *token)
{
    uint64_t    bits, *block;
    ngx_uint_t  i;

    bits = filter_bits(token);
    block = filter_block(filter, which, token);

    for (i = 0; i < NGX_IDEMPOTENCY_FILTER_HASHES; i++) {
        block[(bits >> 6) & 7] |= (uint64_t) 1 << (bits & 63);
        bits >>= NGX_IDEMPOTENCY_FILTER_SHIFT;
    }
}


ngx_uint_t
ngx_idempotency_filter_crowded(ngx_idempotency_filter_t *filter)
{
    return filter->added > filter->room;
}


void
ngx_idempotency_filter_clear(ngx_idempotency_filter_t *filter)
{
    ngx_memzero(filter->blocks[!filter->used], filter_size(filter));
}


void
ngx_idempotency_filter_fill(ngx_idempotency_filter_t *filter)
{
    filter->filling = 1;
    filter->added = 0;
}


void
ngx_idempotency_filter_use(ngx_idempotency_filter_t *filter)
{
    filter->used = !filter->used;
    filter->filling = 0;

    /* if there are too many as it is, it is no use until half of them went */

    filter->room = ngx_max(filter_size(filter) * 8
                           / NGX_IDEMPOTENCY_FILTER_ROOM,
                           2 * filter->added);
}


/* a token is a digest: any of its bytes are as good, but for the first eight,
   by which it is found in a tree */

static uint64_t *
filter_block(ngx_idempotency_filter_t *filter, ngx_uint_t which,
    u_char *token)
{
    uint64_t  n;

    ngx_memcpy(&n, token + 8, sizeof(n));

    return filter->blocks[which]
           + (n & filter->mask) * NGX_IDEMPOTENCY_FILTER_WORDS;
}


static uint64_t
filter_bits(u_char *token)
{
    uint64_t  n;

    ngx_memcpy(&n, token + 16, sizeof(n));

    return n;
}


static size_t
filter_size(ngx_idempotency_filter_t *filter)
{
    return (filter->mask + 1) * NGX_IDEMPOTENCY_FILTER_BLOCK;
}
