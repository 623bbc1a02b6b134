
/*
 * A stand-in for what stands behind a zone, see backing_double.h.
 */


#include "unit.h"
#include "backing_double.h"


ngx_idempotency_batch_t   *double_batches[DOUBLE_BATCHES];
ngx_uint_t                 double_handed;
ngx_idempotency_page_t    *double_page;
void                     (*double_answers)(ngx_idempotency_batch_t *batch);


void
double_backing_reset(void)
{
    ngx_memzero(double_batches, sizeof(double_batches));

    double_handed = 0;
    double_page = NULL;
    double_answers = NULL;
}


ngx_idempotency_batch_t *
double_batch(ngx_uint_t i)
{
    ngx_idempotency_batch_t  *batch;

    batch = double_batches[i];

    for ( /* void */ ; i < DOUBLE_BATCHES - 1; i++) {
        double_batches[i] = double_batches[i + 1];
    }

    double_batches[i] = NULL;

    return batch;
}


int64_t
double_now(ngx_idempotency_tier_t *tier)
{
    return (int64_t) 1700000000 * 1000 + ngx_current_msec;
}


static ngx_int_t
double_hand(ngx_idempotency_tier_t *tier, ngx_idempotency_batch_t *batch)
{
    ngx_uint_t  i;

    double_handed++;

    if (double_answers) {
        double_answers(batch);
        return NGX_OK;
    }

    for (i = 0; i < tier->nbatches && double_batches[i]; i++) { /* void */ }

    if (check(i < tier->nbatches)) {
        double_batches[i] = batch;
    }

    return NGX_AGAIN;
}


static ngx_int_t
double_list(ngx_idempotency_tier_t *tier, ngx_idempotency_page_t *page)
{
    double_page = page;

    return NGX_AGAIN;
}


static ngx_int_t
double_init(ngx_idempotency_tier_t *tier, ngx_idempotency_tier_t *old,
    ngx_log_t *log)
{
    tier->instance = 1;

    return NGX_OK;
}


static ngx_int_t
double_process(ngx_idempotency_tier_t *tier, ngx_cycle_t *cycle)
{
    return NGX_OK;
}


static void
double_nothing(ngx_idempotency_tier_t *tier)
{
}


static ngx_uint_t
double_hands(ngx_idempotency_tier_t *tier)
{
    return DOUBLE_BATCHES;
}


static ngx_uint_t
double_up(ngx_idempotency_tier_t *tier)
{
    return 1;
}


const ngx_idempotency_backing_t  double_backing = {
    .soon = 5,
    .seldom = 50,
    .kind = "script",
    .now = double_now,
    .flush = double_hand,
    .list = double_list,
    .maintain = double_nothing,
    .init = double_init,
    .init_process = double_process,
    .finish = double_nothing,
    .exit_process = double_nothing,
    .up = double_up
};


const ngx_idempotency_backing_t  double_shared = {
    .soon = 5,
    .seldom = 50,
    .kind = "script",
    .now = double_now,
    .flush = double_hand,
    .list = double_list,
    .maintain = double_nothing,
    .init = double_init,
    .init_process = double_process,
    .finish = double_nothing,
    .exit_process = double_nothing,
    .nbatches = double_hands,
    .up = double_up
};
