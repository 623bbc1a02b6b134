
/* A stand-in for src/store/ngx_idempotency_workers.c. */


#include "unit.h"
#include "workers_double.h"


double_worker_t    double_workers[NGX_IDEMPOTENCY_WORKERS];
double_wake_t      double_wakes[DOUBLE_WAKES];
ngx_uint_t         double_nwakes;
ngx_uint_t         double_woken_all;

/* for the timers of a zone with a backing, which none of these has */

static ngx_rbtree_node_t  double_timers;

ngx_rbtree_t       ngx_event_timer_rbtree = {
    &double_timers, &double_timers, ngx_rbtree_insert_timer_value
};

ngx_queue_t        ngx_posted_events;
ngx_module_t       ngx_core_module;
ngx_uint_t         ngx_exiting;

/* ... and for claims that go on in the next turn of the event loop */

ngx_queue_t        ngx_posted_next_events = {
    &ngx_posted_next_events, &ngx_posted_next_events
};

static ngx_uint_t  double_self;


void
ngx_time_update(void)
{
}


void
double_reset(void)
{
    ngx_uint_t  i;

    ngx_memzero(double_workers, sizeof(double_workers));

    for (i = 0; i < NGX_IDEMPOTENCY_WORKERS; i++) {
        double_workers[i].epoch = 1;
    }

    double_nwakes = 0;
    double_woken_all = 0;
    double_self = 0;
}


ngx_uint_t
double_become(ngx_uint_t slot)
{
    ngx_uint_t  was;

    was = double_self;
    double_self = slot;

    return was;
}


void
double_renew(ngx_uint_t slot)
{
    double_workers[slot].state = DOUBLE_ALIVE;
    double_workers[slot].epoch++;
    double_workers[slot].owned = 0;
}


int
double_woke(uint64_t key, ngx_int_t slot, ngx_int_t another)
{
    double_wake_t              *wake;
    ngx_idempotency_workers_t   set;

    ngx_memzero(&set, sizeof(ngx_idempotency_workers_t));

    if (slot >= 0) {
        set.bits[slot / 64] |= (uint64_t) 1 << (slot % 64);
    }

    if (another >= 0) {
        set.bits[another / 64] |= (uint64_t) 1 << (another % 64);
    }

    if (double_nwakes == 0) {
        return 0;
    }

    wake = &double_wakes[--double_nwakes];

    return wake->key == key
           && ngx_memcmp(&wake->set, &set, sizeof(set)) == 0;
}


/* none of these tests makes a zone as a directive does */

ngx_shm_zone_t *
ngx_shared_memory_add(ngx_conf_t *cf, ngx_str_t *name, size_t size, void *tag)
{
    check(!"a zone is added");
    return NULL;
}


ngx_int_t
ngx_idempotency_workers_add_zone(ngx_conf_t *cf)
{
    return NGX_ERROR;
}


ngx_int_t
ngx_idempotency_workers_init_module(ngx_cycle_t *cycle)
{
    return NGX_OK;
}


ngx_int_t
ngx_idempotency_workers_init_process(ngx_cycle_t *cycle,
    ngx_idempotency_woken_pt woken, ngx_idempotency_quit_pt quit)
{
    return NGX_OK;
}


void
ngx_idempotency_workers_member(ngx_idempotency_workers_t *set,
    ngx_uint_t member)
{
}


ngx_uint_t
ngx_idempotency_workers_others(ngx_idempotency_workers_t *set,
    ngx_uint_t lower)
{
    return 0;
}


void
ngx_idempotency_workers_exit_process(ngx_cycle_t *cycle)
{
    if (double_self != NGX_IDEMPOTENCY_NO_WORKER) {
        double_workers[double_self].state = DOUBLE_DEAD;
    }
}


ngx_idempotency_worker_t
ngx_idempotency_worker_self(void)
{
    ngx_idempotency_worker_t  self;

    ngx_memzero(&self, sizeof(ngx_idempotency_worker_t));

    self.slot = (uint8_t) double_self;

    if (double_self != NGX_IDEMPOTENCY_NO_WORKER) {
        self.epoch = double_workers[double_self].epoch;
    }

    return self;
}


ngx_uint_t
ngx_idempotency_worker_alive(ngx_idempotency_worker_t *worker,
    ngx_msec_t claimed, ngx_msec_t lease, ngx_msec_t now)
{
    double_worker_t  *w;

    if (worker->slot != NGX_IDEMPOTENCY_NO_WORKER) {

        w = &double_workers[worker->slot];

        if (w->epoch != worker->epoch || w->state == DOUBLE_DEAD) {
            return 0;
        }

        if (w->state == DOUBLE_ALIVE) {
            return 1;
        }
    }

    return now - claimed < lease;
}


void
ngx_idempotency_worker_owns(ngx_int_t more, ngx_msec_t now)
{
    if (double_self != NGX_IDEMPOTENCY_NO_WORKER) {
        double_workers[double_self].owned += more;
    }
}


void
ngx_idempotency_workers_wake(ngx_idempotency_workers_t *set, uint64_t key)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_IDEMPOTENCY_WORKERS / 64; i++) {

        if (set->bits[i] == 0) {
            continue;
        }

        if (double_nwakes == DOUBLE_WAKES) {
            check(!"room for one more wake");
            return;
        }

        double_wakes[double_nwakes].set = *set;
        double_wakes[double_nwakes++].key = key;
        return;
    }
}


/* each slot is a process, and who has none is one */

ngx_idempotency_process_t *
ngx_idempotency_process_self(void)
{
    static ngx_idempotency_process_t  self;

    self.pid = 1000 + double_self;
    self.started = (double_self == NGX_IDEMPOTENCY_NO_WORKER)
                   ? 1 : double_workers[double_self].epoch;

    return &self;
}


void
ngx_idempotency_workers_wake_all(void)
{
    double_woken_all++;
}


ngx_uint_t
ngx_idempotency_process_gone(ngx_idempotency_process_t *process)
{
    double_worker_t  *worker;

    if (process->pid == 1000 + NGX_IDEMPOTENCY_NO_WORKER) {
        return 0;
    }

    worker = &double_workers[process->pid - 1000];

    return worker->state == DOUBLE_DEAD || worker->epoch != process->started;
}


ngx_uint_t
ngx_idempotency_process_stopped(ngx_idempotency_process_t *process)
{
    return process->pid != 1000 + NGX_IDEMPOTENCY_NO_WORKER
           && double_workers[process->pid - 1000].state == DOUBLE_SILENT;
}
