
/*
 * A zone in shared memory as nginx makes one, the operations on it in short,
 * and a look inside that finds whatever is inconsistent.
 */


#ifndef _ZONE_H_INCLUDED_
#define _ZONE_H_INCLUDED_


#include "unit.h"
#include "store/ngx_idempotency_shm.h"


#define ZONE_SLOTS  16


typedef struct {
    ngx_shm_zone_t          zone;
    ngx_idempotency_shm_t   shm;

    /* by how much the clocks of those who use it may differ */
    ngx_msec_int_t          skew;

    /* of the empty zone */
    ngx_uint_t              pfree;
    ngx_uint_t              used[ZONE_SLOTS];
} zone_t;


void zone_open(zone_t *z, size_t size, ngx_uint_t evict);
void zone_close(zone_t *z);

/* the zone as processes of the next configuration see it; may be the same */

void zone_reload(zone_t *z, zone_t *old);
ngx_int_t zone_init_process(zone_t *z);
void zone_exit_process(zone_t *z);

/* trees, queues, chunks and the allocator agree with each other */

void zone_check(zone_t *z);

/* and nothing is left: all memory is back, and in one piece */

void zone_check_empty(zone_t *z);

/* takes all free pages but some, and gives them back */

void zone_occupy(zone_t *z, ngx_uint_t leave);
void zone_vacate(zone_t *z);

ngx_uint_t zone_size(ngx_queue_t *queue);
ngx_uint_t zone_bound(zone_t *z);

/* called once, after the n-th next unlock of a zone */

void zone_between(ngx_uint_t n, void (*run)(zone_t *z), zone_t *z);
ngx_uint_t zone_between_due(void);

/* ngx_pnalloc() fails */

extern ngx_uint_t  zone_no_memory;

/* the process dies where it takes or gives back shared memory so many times */

extern ngx_uint_t  zone_die_after;


/* operations: tokens and fingerprints are made of numbers */

void op_token(u_char *token, uint64_t n);
void op_init(ngx_idempotency_op_t *op, ngx_uint_t token, ngx_uint_t print,
    ngx_msec_t now);

ngx_uint_t op_claim(zone_t *z, ngx_idempotency_op_t *op);
ngx_uint_t op_complete(zone_t *z, ngx_idempotency_op_t *op);
ngx_uint_t op_release(zone_t *z, ngx_idempotency_op_t *op);
ngx_uint_t op_find(zone_t *z, ngx_idempotency_op_t *op);
ngx_uint_t op_forget(zone_t *z, ngx_idempotency_op_t *op);
void op_cancel(zone_t *z, ngx_idempotency_op_t *op);

/* a response of so many bytes, told by its seed, in pieces that vary with it */

void op_respond(ngx_idempotency_op_t *op, size_t size, uint64_t seed);
int op_responded(ngx_idempotency_op_t *op, size_t size, uint64_t seed);

/* all of it at one time: claims, completes and lets go of it */

ngx_uint_t op_bind(zone_t *z, ngx_uint_t token, ngx_uint_t print,
    ngx_msec_t now, ngx_msec_t window, size_t size);


#endif /* _ZONE_H_INCLUDED_ */
