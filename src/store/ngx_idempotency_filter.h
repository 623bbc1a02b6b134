
/*
 * Which tokens there may be: a Bloom filter in shared memory.  What it denies
 * is not there.  It can't forget, so it is filled anew from time to time: into
 * a second one, while the first is in use, and both hear of what is new.
 */


#ifndef _NGX_IDEMPOTENCY_FILTER_H_INCLUDED_
#define _NGX_IDEMPOTENCY_FILTER_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


typedef struct {
    /* blocks of a cache line each, by two */
    uint64_t                       *blocks[2];
    ngx_uint_t                      mask;
    ngx_uint_t                      used;
    ngx_uint_t                      filling;
    /* since the last one was begun, and how many there may be until another
       one is worth it */
    ngx_uint_t                      added;
    ngx_uint_t                      room;
} ngx_idempotency_filter_t;


/* with the zone's lock held, all but clear() */

ngx_int_t ngx_idempotency_filter_init(ngx_idempotency_filter_t *filter,
    ngx_slab_pool_t *shpool, size_t size);
ngx_uint_t ngx_idempotency_filter_has(ngx_idempotency_filter_t *filter,
    u_char *token);
void ngx_idempotency_filter_add(ngx_idempotency_filter_t *filter,
    u_char *token);
void ngx_idempotency_filter_read(ngx_idempotency_filter_t *filter,
    u_char *token);
ngx_uint_t ngx_idempotency_filter_crowded(ngx_idempotency_filter_t *filter);

/* the one that is not in use is cleared, by whoever is to fill it, then
   filled, then used */

void ngx_idempotency_filter_clear(ngx_idempotency_filter_t *filter);
void ngx_idempotency_filter_fill(ngx_idempotency_filter_t *filter);
void ngx_idempotency_filter_use(ngx_idempotency_filter_t *filter);


#endif /* _NGX_IDEMPOTENCY_FILTER_H_INCLUDED_ */
