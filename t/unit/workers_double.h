
/*
 * A stand-in for the table of workers: the test says which worker it is, and
 * how the others are, and sees what would have been woken.
 */


#ifndef _WORKERS_DOUBLE_H_INCLUDED_
#define _WORKERS_DOUBLE_H_INCLUDED_


#include "store/ngx_idempotency_workers.h"


typedef enum {
    DOUBLE_ALIVE = 0,
    DOUBLE_DEAD,
    /* it is there, but can't be asked since it claimed: its lease counts */
    DOUBLE_SILENT
} double_state_e;


typedef struct {
    double_state_e              state;
    uint32_t                    epoch;
    ngx_int_t                   owned;
} double_worker_t;


typedef struct {
    ngx_idempotency_workers_t   set;
    uint64_t                    key;
} double_wake_t;


#define DOUBLE_WAKES  256


extern double_worker_t  double_workers[NGX_IDEMPOTENCY_WORKERS];

/* wakes of somebody, in order */

extern double_wake_t    double_wakes[DOUBLE_WAKES];
extern ngx_uint_t       double_nwakes;

/* how often all were woken, whatever they wait for */

extern ngx_uint_t       double_woken_all;

void double_reset(void);

/* who it was before */

ngx_uint_t double_become(ngx_uint_t slot);

/* the slot's next holder */

void double_renew(ngx_uint_t slot);

/* the latest wake, taken away: this key, and exactly these slots? */

int double_woke(uint64_t key, ngx_int_t slot, ngx_int_t another);


#endif /* _WORKERS_DOUBLE_H_INCLUDED_ */
