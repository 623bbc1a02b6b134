
/* A stand-in for nginx's event loop, and for its configuration of a zone. */


#include "events.h"
#include <ngx_channel.h>
#include <poll.h>


ngx_rbtree_t                    ngx_event_timer_rbtree;
ngx_queue_t                     ngx_posted_events;
ngx_module_t                    ngx_core_module;
ngx_uint_t                      ngx_exiting;
ngx_queue_t                     ngx_posted_next_events = {
    &ngx_posted_next_events, &ngx_posted_next_events
};

static ngx_rbtree_node_t        events_sentinel;

static ngx_shm_zone_t           events_zone;
static ngx_connection_t         events_connection;
static ngx_event_t              events_event;
static ngx_event_handler_pt     events_handler;


void
ngx_time_update(void)
{
}


void
events_start(void)
{
    ngx_slab_pool_t  *pool;

    events_reset();

    if (events_zone.shm.addr) {
        unit_unshared(events_zone.shm.addr, events_zone.shm.size);
    }

    ngx_memzero(&events_zone, sizeof(ngx_shm_zone_t));

    check_equal(ngx_idempotency_workers_add_zone(NULL), NGX_OK);

    events_zone.shm.addr = unit_shared(events_zone.shm.size);

    pool = (ngx_slab_pool_t *) events_zone.shm.addr;
    pool->end = events_zone.shm.addr + events_zone.shm.size;
    pool->min_shift = 3;
    pool->addr = pool;

    check_equal(ngx_shmtx_create(&pool->mutex, &pool->lock, NULL), NGX_OK);

    ngx_slab_init(pool);

    check_equal(events_zone.init(&events_zone, NULL), NGX_OK);
    check_equal(ngx_idempotency_workers_init_module(&unit_cycle), NGX_OK);
}


void
events_reload(void)
{
    ngx_shm_zone_t  old;

    old = events_zone;
    events_zone.data = NULL;

    check_equal(events_zone.init(&events_zone, old.data), NGX_OK);
    check(events_zone.data == old.data);
    check_equal(ngx_idempotency_workers_init_module(&unit_cycle), NGX_OK);
}


ngx_uint_t
events_become_worker(ngx_idempotency_woken_pt handler)
{
    events_reset();

    check_equal(ngx_idempotency_workers_init_process(&unit_cycle, handler,
                                                     NULL),
                NGX_OK);

    return ngx_idempotency_worker_self().slot != NGX_IDEMPOTENCY_NO_WORKER;
}


void
events_reset(void)
{
    events_handler = NULL;

    /* those of a process that is gone */

    while (ngx_event_timer_rbtree.root != ngx_event_timer_rbtree.sentinel) {
        ngx_del_timer(ngx_rbtree_data(ngx_event_timer_rbtree.root, ngx_event_t,
                                      timer));
    }

    ngx_queue_init(&ngx_posted_next_events);

    ngx_rbtree_init(&ngx_event_timer_rbtree, &events_sentinel,
                    ngx_rbtree_insert_timer_value);
}


void
events_replace(uint64_t from, uint64_t to)
{
    uint64_t  *p, *last;

    last = (uint64_t *) (events_zone.shm.addr + events_zone.shm.size);

    for (p = (uint64_t *) events_zone.data; p < last; p++) {
        if (*p == from) {
            *p = to;
        }
    }
}


void
events_lock(void)
{
    ngx_shmtx_lock(&((ngx_slab_pool_t *) events_zone.shm.addr)->mutex);
}


void
events_give_back(void)
{
    ngx_shmtx_unlock(&((ngx_slab_pool_t *) events_zone.shm.addr)->mutex);
}


ngx_uint_t
events_awaited(void)
{
    ngx_shmtx_t  *mutex;

    mutex = &((ngx_slab_pool_t *) events_zone.shm.addr)->mutex;

    return (ngx_atomic_int_t) *mutex->wait > 0;
}


void
events_unlock(ngx_pid_t pid)
{
    ngx_slab_pool_t  *pool;

    pool = (ngx_slab_pool_t *) events_zone.shm.addr;

    ngx_shmtx_force_unlock(&pool->mutex, pid);

    events_lock();
    events_give_back();
}


ngx_uint_t
events_read(int msec)
{
    ngx_event_t    *ev;
    struct pollfd   pfd;

    if (events_handler && !ngx_queue_empty(&ngx_posted_next_events)) {
        ev = ngx_queue_data(ngx_queue_head(&ngx_posted_next_events),
                            ngx_event_t, queue);

        ngx_delete_posted_event(ev);
        ev->handler(ev);

        return 1;
    }

    pfd.fd = events_connection.fd;
    pfd.events = POLLIN;

    if (events_handler == NULL || poll(&pfd, 1, msec) != 1) {
        return 0;
    }

    events_event.data = &events_connection;
    events_event.log = unit_cycle.log;

    events_handler(&events_event);

    return 1;
}


ngx_event_t *
events_timer(void)
{
    ngx_rbtree_node_t  *node;

    if (ngx_event_timer_rbtree.root == &events_sentinel) {
        return NULL;
    }

    node = ngx_rbtree_min(ngx_event_timer_rbtree.root, &events_sentinel);

    return ngx_rbtree_data(node, ngx_event_t, timer);
}


/* as ngx_event_expire_timers() does */

void
events_run_timer(void)
{
    ngx_event_t  *ev;

    ev = events_timer();

    ngx_rbtree_delete(&ngx_event_timer_rbtree, &ev->timer);
    ev->timer_set = 0;
    ev->timedout = 1;

    ev->handler(ev);
}


ngx_shm_zone_t *
ngx_shared_memory_add(ngx_conf_t *cf, ngx_str_t *name, size_t size, void *tag)
{
    events_zone.shm.name = *name;
    events_zone.shm.size = size;

    return &events_zone;
}


ngx_int_t
ngx_add_channel_event(ngx_cycle_t *cycle, ngx_fd_t fd, ngx_int_t event,
    ngx_event_handler_pt handler)
{
    check_equal(event, NGX_READ_EVENT);

    events_connection.fd = fd;
    events_handler = handler;

    return NGX_OK;
}
