
/* The engines that there are, and what is done for all stores of each. */


#include "ngx_idempotency_store.h"


#if (NGX_IDEMPOTENCY_LATE)
extern const ngx_idempotency_engine_t  ngx_idempotency_late_engine;
#else
extern const ngx_idempotency_engine_t  ngx_idempotency_shm_engine;
#endif


static const ngx_idempotency_engine_t  *store_engines[] = {
#if (NGX_IDEMPOTENCY_LATE)
    &ngx_idempotency_late_engine,
#else
    &ngx_idempotency_shm_engine,
#endif
    NULL
};


ngx_int_t
ngx_idempotency_stores_keep(ngx_conf_t *cf)
{
    ngx_uint_t  i;

    for (i = 0; store_engines[i]; i++) {
        if (store_engines[i]->keep(cf) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


ngx_int_t
ngx_idempotency_stores_init_module(ngx_cycle_t *cycle)
{
    ngx_uint_t  i;

    for (i = 0; store_engines[i]; i++) {
        if (store_engines[i]->init_module(cycle) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


ngx_int_t
ngx_idempotency_stores_init_process(ngx_cycle_t *cycle)
{
    ngx_uint_t  i;

    for (i = 0; store_engines[i]; i++) {
        if (store_engines[i]->init_process(cycle) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


void
ngx_idempotency_stores_exit_process(ngx_cycle_t *cycle)
{
    ngx_uint_t  i;

    for (i = 0; store_engines[i]; i++) {
        store_engines[i]->exit_process(cycle);
    }
}
