
/*
 * A stand-in for what stands behind a zone: it has what it was handed, and the
 * test answers that when it likes.
 */


#ifndef _BACKING_DOUBLE_H_INCLUDED_
#define _BACKING_DOUBLE_H_INCLUDED_


#include "store/ngx_idempotency_shm.h"


#define DOUBLE_BATCHES  2


/* one batch at a time; and one that many nginx share, of which only leases tell
   who lives, which takes all of them at once */

extern const ngx_idempotency_backing_t   double_backing;
extern const ngx_idempotency_backing_t   double_shared;

/* what was handed over and is not answered, the oldest first; how many ever
   were; the page that was asked for last; how often it was given back */

extern ngx_idempotency_batch_t          *double_batches[DOUBLE_BATCHES];
extern ngx_uint_t                        double_handed;
extern ngx_idempotency_page_t           *double_page;

/* not NULL: whatever is handed over is answered by this, at once */

extern void                            (*double_answers)(
                                             ngx_idempotency_batch_t *batch);


void double_backing_reset(void);

/* one of them, that will be answered now; NULL: there is none */

ngx_idempotency_batch_t *double_batch(ngx_uint_t i);

int64_t double_now(ngx_idempotency_tier_t *tier);


#endif /* _BACKING_DOUBLE_H_INCLUDED_ */
