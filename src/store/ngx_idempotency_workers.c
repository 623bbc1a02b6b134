
/*
 * The table of workers, and the eventfds by which they wake each other.  The
 * master makes the eventfds once, so that workers of all generations share
 * them.  A worker wakes itself by a posted event.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_channel.h>

#include "ngx_idempotency_workers.h"


/* SIGN: how often an owner gives a sign of life, POLL: how often a worker
   without an eventfd looks, in milliseconds; MAILBOX: of so many changed tokens
   a worker is told, of more that some have changed */

#define NGX_IDEMPOTENCY_WORKERS_SIGN       100
#define NGX_IDEMPOTENCY_WORKERS_MAILBOX    128
#define NGX_IDEMPOTENCY_WORKERS_POLL       100
#define NGX_IDEMPOTENCY_WORKERS_ZONE_SIZE  (256 * 1024)


/* what the system says of a process */

typedef enum {
    workers_running = 0,
    workers_stopped,
    workers_gone,
    workers_unknown
} workers_state_e;


typedef struct {
    ngx_pid_t                       pid;
    /* the start of the process, as the system counts, or 0 */
    uint64_t                        started;
    ngx_uint_t                      epoch;
    /* the last sign of life; when its absence was noticed */
    ngx_msec_t                      seen;
    ngx_msec_t                      suspected;
    /* tokens that changed; overflow: more did */
    ngx_uint_t                      overflow;
    ngx_uint_t                      n;
    uint64_t                        keys[NGX_IDEMPOTENCY_WORKERS_MAILBOX];
} worker_slot_t;


typedef struct {
    worker_slot_t                   slots[NGX_IDEMPOTENCY_WORKERS];
} workers_sh_t;


static ngx_int_t workers_init_zone(ngx_shm_zone_t *shm_zone, void *data);
static ngx_int_t workers_take_slot(ngx_cycle_t *cycle);
static ngx_uint_t workers_dead(ngx_pid_t pid);
static ngx_uint_t workers_look(ngx_pid_t pid, uint64_t started);
static ngx_int_t workers_stat(ngx_pid_t pid, u_char *state,
    uint64_t *started);
static void workers_sign_handler(ngx_event_t *ev);
static void workers_notify(ngx_uint_t i, uint64_t *key);
static void workers_wake_handler(ngx_event_t *ev);
static void workers_own_handler(ngx_event_t *ev);
static void workers_poll_handler(ngx_event_t *ev);
static void workers_read(void);


static ngx_slab_pool_t           *workers_shpool;
static workers_sh_t              *workers_sh;

static ngx_idempotency_worker_t   workers_self =
                                      { 0, 0, NGX_IDEMPOTENCY_NO_WORKER };
static ngx_idempotency_woken_pt   workers_woken;
static ngx_idempotency_quit_pt    workers_quit;
static ngx_event_t                workers_sign;
static ngx_event_t                workers_own;
static ngx_event_t                workers_poll;
static ngx_connection_t           workers_dumb;
static ngx_uint_t                 workers_owned;

static ngx_int_t                  workers_fd[NGX_IDEMPOTENCY_WORKERS];
static ngx_uint_t                 workers_fds;


ngx_int_t
ngx_idempotency_workers_add_zone(ngx_conf_t *cf)
{
    ngx_shm_zone_t  *shm_zone;

    static ngx_str_t  name = ngx_string("ngx_http_idempotency_workers");

    /* a tag of its own, so that no store can take this name */

    shm_zone = ngx_shared_memory_add(cf, &name,
                                     NGX_IDEMPOTENCY_WORKERS_ZONE_SIZE,
                                     &workers_sh);
    if (shm_zone == NULL) {
        return NGX_ERROR;
    }

    shm_zone->init = workers_init_zone;

    return NGX_OK;
}


static ngx_int_t
workers_init_zone(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_uint_t        i;
    workers_sh_t     *sh;
    ngx_slab_pool_t  *shpool;

    shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    if (data == NULL && !shm_zone->shm.exists) {

        sh = ngx_slab_calloc(shpool, sizeof(workers_sh_t));
        if (sh == NULL) {
            return NGX_ERROR;
        }

        /* epochs differ from those of earlier tables */

        for (i = 0; i < NGX_IDEMPOTENCY_WORKERS; i++) {
            sh->slots[i].epoch = (ngx_uint_t) ngx_time() + ngx_random() % 4096;
        }

        shpool->data = sh;
    }

    workers_shpool = shpool;
    workers_sh = shpool->data;

    /* tells the next configuration that the zone exists */

    shm_zone->data = workers_sh;

    return NGX_OK;
}


ngx_int_t
ngx_idempotency_workers_init_module(ngx_cycle_t *cycle)
{
#if (NGX_HAVE_SYS_EVENTFD_H)
    int         fd;
    ngx_uint_t  inherited;

    if (ngx_test_config) {
        return NGX_OK;
    }

    inherited = workers_fds;

    while (workers_fds < NGX_IDEMPOTENCY_WORKERS) {

        fd = eventfd(0, EFD_NONBLOCK|EFD_CLOEXEC);

        if (fd == -1) {
            ngx_log_error(NGX_LOG_WARN, cycle->log, ngx_errno,
                          "idempotency: eventfd() failed, requests that wait "
                          "in some workers are not woken but poll");

            /* nginx itself needs the last descriptors more */

            while (workers_fds > inherited) {
                (void) close(workers_fd[--workers_fds]);
            }

            break;
        }

        workers_fd[workers_fds++] = fd;
    }
#endif

    return NGX_OK;
}


ngx_int_t
ngx_idempotency_workers_init_process(ngx_cycle_t *cycle,
    ngx_idempotency_woken_pt woken, ngx_idempotency_quit_pt quit)
{
    workers_woken = woken;
    workers_quit = quit;

    workers_sign.handler = workers_sign_handler;
    workers_sign.log = cycle->log;
    workers_sign.data = &workers_sign;
    workers_sign.cancelable = 1;

    workers_own.handler = workers_own_handler;
    workers_own.log = cycle->log;

    workers_self.pid = ngx_pid;
    workers_self.epoch = (uint32_t) ngx_random();

    if (workers_take_slot(cycle) == NGX_DECLINED) {
        ngx_log_error(NGX_LOG_WARN, cycle->log, 0,
                      "idempotency: more than %d workers, requests that wait "
                      "in this one are not woken but poll",
                      NGX_IDEMPOTENCY_WORKERS);
    }

    if (workers_self.slot >= workers_fds) {
        workers_dumb.fd = (ngx_socket_t) -1;

        workers_poll.handler = workers_poll_handler;
        workers_poll.log = cycle->log;
        workers_poll.data = &workers_dumb;
        workers_poll.cancelable = 1;

        ngx_add_timer(&workers_poll, NGX_IDEMPOTENCY_WORKERS_POLL);
    }

    return NGX_OK;
}


/* NGX_DECLINED: no slot is free now */

static ngx_int_t
workers_take_slot(ngx_cycle_t *cycle)
{
    ngx_uint_t      i, n;
    worker_slot_t  *slot;

    ngx_shmtx_lock(&workers_shpool->mutex);

    for (i = 0; i < NGX_IDEMPOTENCY_WORKERS; i++) {
        slot = &workers_sh->slots[i];

        if (slot->pid == 0 || workers_dead(slot->pid)) {

            /* processes read without the lock: the new pid must come last */

            slot->epoch++;
            slot->started = ngx_idempotency_process_self()->started;
            slot->seen = ngx_current_msec;
            slot->suspected = slot->seen;
            slot->overflow = 0;
            slot->n = 0;

            ngx_memory_barrier();

            slot->pid = ngx_pid;

            workers_self.epoch = (uint32_t) slot->epoch;
            workers_self.slot = (uint8_t) i;
            break;
        }
    }

    ngx_shmtx_unlock(&workers_shpool->mutex);

    if (i == NGX_IDEMPOTENCY_WORKERS) {
        return NGX_DECLINED;
    }

    if (i >= workers_fds) {
        return NGX_OK;
    }

    if (ngx_add_channel_event(cycle, workers_fd[i], NGX_READ_EVENT,
                              workers_wake_handler)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    /* at a graceful end nginx calls the handlers of idle connections */

    for (n = 0; n < cycle->connection_n; n++) {
        if (cycle->connections[n].fd == workers_fd[i]) {
            cycle->connections[n].idle = 1;
        }
    }

    return NGX_OK;
}


void
ngx_idempotency_workers_exit_process(ngx_cycle_t *cycle)
{
    if (workers_self.slot == NGX_IDEMPOTENCY_NO_WORKER) {
        return;
    }

    ngx_shmtx_lock(&workers_shpool->mutex);

    workers_sh->slots[workers_self.slot].pid = 0;

    ngx_shmtx_unlock(&workers_shpool->mutex);

    if (workers_own.posted) {
        ngx_delete_posted_event(&workers_own);
    }

    /* from now on nothing belongs to this worker */

    workers_self.pid = 0;
    workers_self.slot = NGX_IDEMPOTENCY_NO_WORKER;
}


ngx_idempotency_worker_t
ngx_idempotency_worker_self(void)
{
    return workers_self;
}


void
ngx_idempotency_workers_member(ngx_idempotency_workers_t *set,
    ngx_uint_t member)
{
    uint64_t    bit;
    ngx_uint_t  slot;

    slot = workers_self.slot;

    if (slot == NGX_IDEMPOTENCY_NO_WORKER) {
        return;
    }

    bit = (uint64_t) 1 << (slot % 64);

    if (member) {
        set->bits[slot / 64] |= bit;

    } else {
        set->bits[slot / 64] &= ~bit;
    }
}


ngx_uint_t
ngx_idempotency_workers_others(ngx_idempotency_workers_t *set,
    ngx_uint_t lower)
{
    ngx_pid_t   pid;
    ngx_uint_t  i, n;

    n = lower ? workers_self.slot : NGX_IDEMPOTENCY_WORKERS;

    for (i = 0; i < ngx_min(n, NGX_IDEMPOTENCY_WORKERS); i++) {

        if (i == workers_self.slot
            || (set->bits[i / 64] & ((uint64_t) 1 << (i % 64))) == 0)
        {
            continue;
        }

        pid = workers_sh->slots[i].pid;

        if (pid && !workers_dead(pid)) {
            return 1;
        }
    }

    return 0;
}


/*
 * An owner whose process has ended is dead.  One without a sign of life may be
 * busy: if the system says so, it keeps its claims.  If it is stopped, or the
 * system knows nothing, it has its lease.  A silence counts only from when it
 * was noticed, as all processes may have been stopped together.
 */

ngx_uint_t
ngx_idempotency_worker_alive(ngx_idempotency_worker_t *worker,
    ngx_msec_t claimed, ngx_msec_t lease, ngx_msec_t now)
{
    ngx_msec_t      seen;
    worker_slot_t  *slot;

    if (worker->pid == workers_self.pid) {
        return worker->epoch == workers_self.epoch;
    }

    if (worker->slot == NGX_IDEMPOTENCY_NO_WORKER) {
        return !workers_dead(worker->pid);
    }

    slot = &workers_sh->slots[worker->slot];

    if (slot->pid != worker->pid
        || (uint32_t) slot->epoch != worker->epoch
        || workers_dead(worker->pid))
    {
        return 0;
    }

    /* the first sign comes a moment after the claim */

    seen = slot->seen;

    if ((ngx_msec_int_t) (claimed - seen) > 0) {
        seen = claimed;
    }

    if ((ngx_msec_int_t) (now - seen) < (ngx_msec_int_t) lease) {
        return 1;
    }

    switch (workers_look(worker->pid, slot->started)) {

    case workers_running:

        /* a running process is as good as a sign of life */

        slot->seen = now;
        return 1;

    case workers_gone:
        return 0;
    }

    if ((ngx_msec_int_t) (slot->suspected - seen) <= 0) {
        slot->suspected = now;
    }

    return (ngx_msec_int_t) (now - slot->suspected)
           < 3 * NGX_IDEMPOTENCY_WORKERS_SIGN;
}


/* looks at the process with that pid, which may be a later one */

static ngx_uint_t
workers_look(ngx_pid_t pid, uint64_t started)
{
    u_char    state;
    uint64_t  since;

    if (started == 0 || workers_stat(pid, &state, &since) != NGX_OK) {
        return workers_unknown;
    }

    if (since != started || ngx_strchr("ZXx", state)) {
        return workers_gone;
    }

    return ngx_strchr("Tt", state) ? workers_stopped : workers_running;
}


/*
 * Linux: "pid (name) state ...", and the 22nd field is the start.  The name may
 * contain spaces and parentheses.
 */

static ngx_int_t
workers_stat(ngx_pid_t pid, u_char *state, uint64_t *started)
{
    int          fd;
    u_char      *p, *last, path[sizeof("/proc//stat") + NGX_INT64_LEN],
                 buf[1024];
    ssize_t      n;
    ngx_uint_t   field;

    ngx_sprintf(path, "/proc/%P/stat%Z", pid);

    fd = open((char *) path, O_RDONLY|O_CLOEXEC);
    if (fd == -1) {
        return NGX_ERROR;
    }

    n = read(fd, buf, sizeof(buf));
    (void) close(fd);

    if (n <= 0) {
        return NGX_ERROR;
    }

    last = buf + n;

    for (p = last; p > buf && p[-1] != ')'; p--) { /* void */ }

    if (p == buf || last - p < 2) {
        return NGX_ERROR;
    }

    *state = p[1];

    for (field = 2; p < last && field < 22; p++) {
        if (*p == ' ') {
            field++;
        }
    }

    for (*started = 0; p < last && *p >= '0' && *p <= '9'; p++) {
        *started = *started * 10 + (*p - '0');
    }

    return (*started && p < last) ? NGX_OK : NGX_ERROR;
}


/* found out once in each process */

ngx_idempotency_process_t *
ngx_idempotency_process_self(void)
{
    u_char  state;

    static ngx_idempotency_process_t  self;

    if (self.pid != ngx_pid) {
        self.pid = ngx_pid;

        if (workers_stat(ngx_pid, &state, &self.started) != NGX_OK) {
            self.started = 0;
        }
    }

    return &self;
}


ngx_uint_t
ngx_idempotency_process_gone(ngx_idempotency_process_t *process)
{
    return workers_dead(process->pid)
           || workers_look(process->pid, process->started) == workers_gone;
}


ngx_uint_t
ngx_idempotency_process_stopped(ngx_idempotency_process_t *process)
{
    return workers_look(process->pid, process->started) == workers_stopped;
}


static ngx_uint_t
workers_dead(ngx_pid_t pid)
{
    return kill(pid, 0) == -1 && ngx_errno == NGX_ESRCH;
}


void
ngx_idempotency_worker_owns(ngx_int_t more, ngx_msec_t now)
{
    workers_owned += more;

    if (workers_self.slot == NGX_IDEMPOTENCY_NO_WORKER) {

        /* perhaps a slot is free by now: for the claims to come */

        if (workers_owned == 0) {
            (void) workers_take_slot((ngx_cycle_t *) ngx_cycle);
        }

        return;
    }

    workers_sh->slots[workers_self.slot].seen = now;

    if (workers_owned && !workers_sign.timer_set) {
        ngx_add_timer(&workers_sign, NGX_IDEMPOTENCY_WORKERS_SIGN);
    }
}


static void
workers_sign_handler(ngx_event_t *ev)
{
    if (workers_owned) {
        workers_sh->slots[workers_self.slot].seen = ngx_current_msec;
        ngx_add_timer(ev, NGX_IDEMPOTENCY_WORKERS_SIGN);
    }
}


void
ngx_idempotency_workers_wake(ngx_idempotency_workers_t *set, uint64_t key)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_IDEMPOTENCY_WORKERS; i++) {

        if (set->bits[i / 64] == 0) {
            i |= 63;
            continue;
        }

        if ((set->bits[i / 64] & ((uint64_t) 1 << (i % 64))) == 0) {
            continue;
        }

        workers_notify(i, &key);
    }
}


void
ngx_idempotency_workers_wake_all(void)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_IDEMPOTENCY_WORKERS; i++) {
        workers_notify(i, NULL);
    }
}


/* a token has changed; NULL: some have */

static void
workers_notify(ngx_uint_t i, uint64_t *key)
{
    uint64_t        one;
    worker_slot_t  *slot;

    slot = &workers_sh->slots[i];

    if (slot->pid == 0) {
        return;
    }

    ngx_shmtx_lock(&workers_shpool->mutex);

    if (key && slot->n < NGX_IDEMPOTENCY_WORKERS_MAILBOX) {
        slot->keys[slot->n++] = *key;

    } else {
        slot->overflow = 1;
    }

    ngx_shmtx_unlock(&workers_shpool->mutex);

    if (i == workers_self.slot) {

        /* in the next turn, as a woken handler may wake others again */

        ngx_post_event(&workers_own, &ngx_posted_next_events);
        return;
    }

    if (i >= workers_fds) {
        return;
    }

    one = 1;

    /* EAGAIN: the eventfd is full of notifications already */

    if (write(workers_fd[i], &one, sizeof(one)) == -1
        && ngx_errno != NGX_EAGAIN)
    {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, ngx_errno,
                      "idempotency: write() to an eventfd failed");
    }
}


static void
workers_wake_handler(ngx_event_t *ev)
{
    uint64_t           count;
    ngx_connection_t  *c;

    c = ev->data;

    if (c->close) {
        c->close = 0;
        c->idle = 0;

        workers_quit();
    }

    if (read(c->fd, &count, sizeof(count)) == -1
        && ngx_errno != NGX_EAGAIN)
    {
        ngx_log_error(NGX_LOG_ALERT, ev->log, ngx_errno,
                      "idempotency: read() of an eventfd failed");
    }

    workers_read();
}


static void
workers_own_handler(ngx_event_t *ev)
{
    if (workers_self.slot != NGX_IDEMPOTENCY_NO_WORKER) {
        workers_read();
    }
}


/* a worker without an eventfd polls: any token may have changed */

static void
workers_poll_handler(ngx_event_t *ev)
{
    if (ngx_exiting) {
        workers_quit();
    }

    if (workers_self.slot == NGX_IDEMPOTENCY_NO_WORKER) {
        workers_woken(NULL);

    } else {
        workers_read();
    }

    ngx_add_timer(ev, NGX_IDEMPOTENCY_WORKERS_POLL);
}


static void
workers_read(void)
{
    uint64_t        keys[NGX_IDEMPOTENCY_WORKERS_MAILBOX];
    ngx_uint_t      i, n, overflow;
    worker_slot_t  *slot;

    slot = &workers_sh->slots[workers_self.slot];

    ngx_shmtx_lock(&workers_shpool->mutex);

    n = slot->n;
    overflow = slot->overflow;
    ngx_memcpy(keys, slot->keys, n * sizeof(uint64_t));

    slot->n = 0;
    slot->overflow = 0;

    ngx_shmtx_unlock(&workers_shpool->mutex);

    if (overflow) {
        workers_woken(NULL);
        return;
    }

    for (i = 0; i < n; i++) {
        workers_woken(&keys[i]);
    }
}
