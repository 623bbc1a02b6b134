
/*
 * Worker processes as owners of claims and as places where requests wait:
 * which ones live, and how one wakes another.  A worker of any generation holds
 * one slot of a table in shared memory, under an epoch that no other holder of
 * the slot shares.
 */


#ifndef _NGX_IDEMPOTENCY_WORKERS_H_INCLUDED_
#define _NGX_IDEMPOTENCY_WORKERS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


#define NGX_IDEMPOTENCY_WORKERS    128
#define NGX_IDEMPOTENCY_NO_WORKER  255


/* a worker with a slot; its epoch is new for each holder of the slot */

typedef struct {
    int32_t                         pid;
    uint32_t                        epoch;
    uint8_t                         slot;
} ngx_idempotency_worker_t;


/* any process; its start tells it from others with its pid */

typedef struct {
    ngx_pid_t                       pid;
    uint64_t                        started;
} ngx_idempotency_process_t;

#define ngx_idempotency_process_is(one, two)                                 \
    ((one)->pid == (two)->pid && (one)->started == (two)->started)


/* a set of workers: a bit for each slot */

typedef struct {
    uint64_t                        bits[NGX_IDEMPOTENCY_WORKERS / 64];
} ngx_idempotency_workers_t;


/* a token changed: its first bytes, NULL: some tokens did; and a graceful
   shutdown begins */

typedef void (*ngx_idempotency_woken_pt)(uint64_t *key);
typedef void (*ngx_idempotency_quit_pt)(void);


/* in the master */

ngx_int_t ngx_idempotency_workers_add_zone(ngx_conf_t *cf);
ngx_int_t ngx_idempotency_workers_init_module(ngx_cycle_t *cycle);

/* in a worker: takes a slot and gives it back */

ngx_int_t ngx_idempotency_workers_init_process(ngx_cycle_t *cycle,
    ngx_idempotency_woken_pt woken, ngx_idempotency_quit_pt quit);
void ngx_idempotency_workers_exit_process(ngx_cycle_t *cycle);

ngx_idempotency_worker_t ngx_idempotency_worker_self(void);

/* adds this worker to the set, or removes it; and whether another member lives,
   of all, or of those in lower slots */

void ngx_idempotency_workers_member(ngx_idempotency_workers_t *set,
    ngx_uint_t member);
ngx_uint_t ngx_idempotency_workers_others(ngx_idempotency_workers_t *set,
    ngx_uint_t lower);

ngx_idempotency_process_t *ngx_idempotency_process_self(void);

/* whether a process has ended (a stopped one has not), or is stopped */

ngx_uint_t ngx_idempotency_process_gone(ngx_idempotency_process_t *process);
ngx_uint_t ngx_idempotency_process_stopped(ngx_idempotency_process_t *process);

/* whether an owner still works on its claim */

ngx_uint_t ngx_idempotency_worker_alive(ngx_idempotency_worker_t *worker,
    ngx_msec_t claimed, ngx_msec_t lease, ngx_msec_t now);

/* while this worker owns claims, it gives signs of life */

void ngx_idempotency_worker_owns(ngx_int_t more, ngx_msec_t now);

void ngx_idempotency_workers_wake(ngx_idempotency_workers_t *set,
    uint64_t key);

/* wakes all waiting requests in all workers */

void ngx_idempotency_workers_wake_all(void);


#endif /* _NGX_IDEMPOTENCY_WORKERS_H_INCLUDED_ */
