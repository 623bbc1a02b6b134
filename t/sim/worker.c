
/*
 * A worker of the simulation: the real rooms, with what they need of nginx and
 * of other processes asked of the world.  A table of workers, and the way to a
 * Redis (connections with lanes, deadlines, what was lost on its way) are made
 * here; the batches, claims left over, stamps and scripts are the real ones.
 */


#include "sim.h"
#include "unit.h"
#include "zone.h"
#include "store/redis/ngx_idempotency_backing_redis.h"


/* milliseconds: to wait for a connection, until the next try, and until a stamp
   that was wrong is looked at again; and how often a call is sent again */

#define CLIENT_CONNECT  200
#define CLIENT_AGAIN    50
#define CLIENT_LOOK     1000
#define CLIENT_TRIES    3


typedef enum {
    LANE_DOWN = 0,
    LANE_CONNECTS,
    LANE_ASKS,
    LANE_READY
} lane_e;


typedef struct {
    lane_e                          state;
    uint64_t                        number;
    ngx_uint_t                      n;
    /* calls: those that were sent, and those that were not */
    ngx_queue_t                     sent;
    ngx_queue_t                     waiting;
    ngx_event_t                     timer;
    ngx_msec_t                      since;
    /* what stands there is asked for; it was not what it should be, and calls
       that name a mark are refused */
    uint64_t                        mark;
    ngx_uint_t                      refused;
    ngx_uint_t                      failed;
} lane_t;


/* one for each token of the world */

#define SIM_CHANNELS  4
#define SIM_WANTED    2500

typedef struct {
    ngx_str_t                       key;
    u_char                          name[128];
    ngx_idempotency_redis_changed_pt  handler;
    void                           *data;
    ngx_msec_t                      wanted;
} channel_t;


struct ngx_idempotency_redis_s {
    lane_t                          lanes[SIM_LANES];
    ngx_idempotency_redis_mark_t   *mark;
    channel_t                       channels[SIM_CHANNELS + 1];
    uint64_t                        time;
    ngx_msec_t                      at;
    uint64_t                        calls;
};


typedef struct chunk_s  chunk_t;

struct chunk_s {
    chunk_t                        *next;
    chunk_t                        *prev;
};


/* nginx's own */

volatile ngx_cycle_t         *ngx_cycle;
volatile ngx_msec_t           ngx_current_msec;
volatile ngx_time_t          *ngx_cached_time;
ngx_pid_t                     ngx_pid;
ngx_uint_t                    ngx_process;
ngx_int_t                     ngx_last_process;
ngx_process_t                 ngx_processes[NGX_MAX_PROCESSES];
ngx_int_t                     ngx_ncpu;
ngx_uint_t                    ngx_test_config;
ngx_uint_t                    ngx_exiting;
ngx_module_t                  ngx_core_module;
ngx_cycle_t                   unit_cycle;

static sim_host_t            *host;
static sim_conf_t             sim;
static ngx_log_t              sim_log;
static ngx_time_t             sim_time;
static ngx_core_conf_t        sim_core;
static void                  *sim_ctx[1] = { &sim_core };

static ngx_idempotency_tier_t tier;
static ngx_idempotency_redis_t  redis;
static ngx_idempotency_secret_t secret;
static ngx_str_t              name = ngx_string("z");

static ngx_idempotency_woken_pt  woken_handler;
static ngx_idempotency_quit_pt   quit_handler;
static chunk_t                chunks = { &chunks, &chunks };

void *__real_malloc(size_t size);
void __real_free(void *p);


/* --- memory: all of it goes with the worker ------------------------------- */


void *
__wrap_malloc(size_t size)
{
    chunk_t  *c;

    c = __real_malloc(sizeof(chunk_t) + size);
    c->next = chunks.next;
    c->prev = &chunks;
    c->next->prev = c;
    chunks.next = c;

    return c + 1;
}


void
__wrap_free(void *p)
{
    chunk_t  *c;

    if (p == NULL) {
        return;
    }

    c = (chunk_t *) p - 1;
    c->next->prev = c->prev;
    c->prev->next = c->next;

    __real_free(c);
}


int
__wrap_posix_memalign(void **p, size_t alignment, size_t size)
{
    *p = __wrap_malloc(size);

    return 0;
}


static void
sim_gone(void)
{
    while (chunks.next != &chunks) {
        __wrap_free(chunks.next + 1);
    }
}


static void *
sim_alloc(size_t size)
{
    return __wrap_malloc(size);
}


/* --- the system ----------------------------------------------------------- */


int
__wrap_gettimeofday(struct timeval *tv, void *tz)
{
    int64_t  wall;

    wall = host->wall(host->worker);

    tv->tv_sec = wall / 1000;
    tv->tv_usec = wall % 1000 * 1000;

    return 0;
}


/* what is random is the number of an instance */

int
__wrap_RAND_bytes(unsigned char *buf, int num)
{
    memset(buf, 0, num);
    memcpy(buf, &sim.instance, ngx_min((size_t) num, sizeof(sim.instance)));

    return 1;
}


int
__wrap_usleep(useconds_t usec)
{
    host->slept(host->worker, usec / 1000);

    return 0;
}


void
ngx_time_update(void)
{
}


void
ngx_debug_point(void)
{
    host->fault(host->worker, "ngx_debug_point()");
}


void
ngx_log_error_core(ngx_uint_t level, ngx_log_t *log, ngx_err_t err,
    const char *fmt, ...)
{
    char      text[512];
    u_char   *p;
    va_list   args;

    va_start(args, fmt);
    p = ngx_vslprintf((u_char *) text, (u_char *) text + sizeof(text) - 1,
                      fmt, args);
    va_end(args);

    *p = '\0';

    host->log(host->worker, level, text);
}


void ngx_cdecl
ngx_conf_log_error(ngx_uint_t level, ngx_conf_t *cf, ngx_err_t err,
    const char *fmt, ...)
{
    host->fault(host->worker, (char *) fmt);
}


int
unit_check(int ok, char *text, char *file, int line)
{
    if (!ok) {
        host->fault(host->worker, text);
    }

    return ok;
}


int
unit_check_equal(int64_t got, int64_t wanted, char *text, char *file, int line)
{
    char  said[512];

    if (got != wanted) {
        snprintf(said, sizeof(said), "%s: %lld, not %lld", text,
                 (long long) got, (long long) wanted);
        host->fault(host->worker, said);
    }

    return got == wanted;
}


void *
unit_shared(size_t size)
{
    return NULL;
}


void
unit_unshared(void *p, size_t size)
{
}


/* --- the table of workers ------------------------------------------------- */


ngx_shm_zone_t *
ngx_shared_memory_add(ngx_conf_t *cf, ngx_str_t *name, size_t size, void *tag)
{
    return NULL;
}


ngx_int_t
ngx_idempotency_workers_add_zone(ngx_conf_t *cf)
{
    return NGX_OK;
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
    woken_handler = woken;
    quit_handler = quit;

    return NGX_OK;
}


/* in the table, and not as a process yet */

static u_char *
workers_ended(void)
{
    return sim.zone + SIM_ZONE + 1024;
}


void
ngx_idempotency_workers_exit_process(ngx_cycle_t *cycle)
{
    workers_ended()[sim.slot] = 1;
}


ngx_idempotency_worker_t
ngx_idempotency_worker_self(void)
{
    ngx_idempotency_worker_t  self;

    ngx_memzero(&self, sizeof(ngx_idempotency_worker_t));

    self.pid = ngx_pid;
    self.slot = (uint8_t) sim.slot;
    self.epoch = sim.epoch;

    return self;
}


ngx_uint_t
ngx_idempotency_worker_alive(ngx_idempotency_worker_t *worker,
    ngx_msec_t claimed, ngx_msec_t lease, ngx_msec_t now)
{
    if (workers_ended()[worker->slot]
        || !host->alive(host->worker, worker->slot, worker->epoch))
    {
        return 0;
    }

    return !host->stopped(host->worker, worker->slot, worker->epoch)
           || (ngx_msec_int_t) (now - claimed) < (ngx_msec_int_t) lease;
}


void
ngx_idempotency_worker_owns(ngx_int_t more, ngx_msec_t now)
{
}


void
ngx_idempotency_workers_member(ngx_idempotency_workers_t *set,
    ngx_uint_t member)
{
    if (member) {
        set->bits[0] |= (uint64_t) 1 << sim.slot;

    } else {
        set->bits[0] &= ~((uint64_t) 1 << sim.slot);
    }
}


ngx_uint_t
ngx_idempotency_workers_others(ngx_idempotency_workers_t *set,
    ngx_uint_t lower)
{
    ngx_uint_t  i;

    for (i = 0; i < (lower ? sim.slot : SIM_SLOTS); i++) {

        if (i != sim.slot && (set->bits[0] & (uint64_t) 1 << i)
            && !workers_ended()[i] && host->alive(host->worker, i, 0))
        {
            return 1;
        }
    }

    return 0;
}


void
ngx_idempotency_workers_wake(ngx_idempotency_workers_t *set, uint64_t key)
{
    ngx_uint_t  i;

    for (i = 0; i < SIM_SLOTS; i++) {
        if (set->bits[0] & (uint64_t) 1 << i) {
            host->wake(host->worker, i, &key);
        }
    }
}


void
ngx_idempotency_workers_wake_all(void)
{
    ngx_uint_t  i;

    for (i = 0; i < SIM_SLOTS; i++) {
        host->wake(host->worker, i, NULL);
    }
}


ngx_idempotency_process_t *
ngx_idempotency_process_self(void)
{
    static ngx_idempotency_process_t  self;

    self.pid = ngx_pid;
    self.started = sim.epoch;

    return &self;
}


ngx_uint_t
ngx_idempotency_process_gone(ngx_idempotency_process_t *process)
{
    return !host->alive(host->worker, process->pid - 1000, process->started);
}


ngx_uint_t
ngx_idempotency_process_stopped(ngx_idempotency_process_t *process)
{
    return host->stopped(host->worker, process->pid - 1000, process->started);
}


/* --- the backing that is a file: the world has it ------------------------- */


static int64_t
file_now(ngx_idempotency_tier_t *tier)
{
    return tier->shm->sh->tier.base + ngx_current_msec;
}


static ngx_int_t
file_flush(ngx_idempotency_tier_t *tier, ngx_idempotency_batch_t *batch)
{
    if (ngx_exiting > 1) {
        (void) host->commit(host->worker, batch);
        return NGX_OK;
    }

    /* the thread has not committed it */

    batch->rc = NGX_AGAIN;
    host->flush(host->worker, batch);

    return NGX_AGAIN;
}


static void
file_nothing(ngx_idempotency_tier_t *tier)
{
}


static ngx_int_t
file_init(ngx_idempotency_tier_t *tier, ngx_idempotency_tier_t *old,
    ngx_log_t *log)
{
    tier->instance = sim.instance;
    tier->fence = sim.fence;
    tier->base = sim.base;

    return NGX_OK;
}


static ngx_int_t
file_init_process(ngx_idempotency_tier_t *tier, ngx_cycle_t *cycle)
{
    return NGX_OK;
}


/*
 * The thread's batch ends before the worker does.  A batch is committed once:
 * its answers stand where its questions stood.
 */

static void
file_finish(ngx_idempotency_tier_t *tier)
{
    ngx_exiting = 2;

    if (tier->busy == 0) {
        return;
    }

    tier->batch = tier->batches;

    if (tier->batch->rc == NGX_AGAIN) {
        (void) host->commit(host->worker, tier->batch);
    }
}


static ngx_uint_t
file_up(ngx_idempotency_tier_t *tier)
{
    return 1;
}


static const ngx_idempotency_backing_t  file_backing = {
    .soon = 5,
    .seldom = 50,
    .kind = "file",
    .now = file_now,
    .flush = file_flush,
    .maintain = file_nothing,
    .init = file_init,
    .init_process = file_init_process,
    .finish = file_finish,
    .exit_process = file_nothing,
    .up = file_up
};


/* --- the way to a Redis --------------------------------------------------- */


static void lane_timer_handler(ngx_event_t *ev);
static void lane_connect(lane_t *lane);


static uint64_t
client_time(void)
{
    return redis.time ? redis.time
                        + (uint64_t) (ngx_current_msec - redis.at) * 1000
                      : 0;
}


/* the server's clock, which may be set back, too */

static void
client_told(uint64_t time)
{
    redis.time = time;
    redis.at = ngx_current_msec;
}


/* when something is to be done, at the latest */

static void
lane_timer(lane_t *lane)
{
    ngx_queue_t                   *q, *queue;
    ngx_uint_t                     i;
    ngx_msec_int_t                 left, least;
    ngx_idempotency_redis_call_t  *call;

    least = 100000;

    for (i = 0; i < 2; i++) {
        queue = i ? &lane->sent : &lane->waiting;

        for (q = ngx_queue_head(queue);
             q != ngx_queue_sentinel(queue);
             q = ngx_queue_next(q))
        {
            call = ngx_queue_data(q, ngx_idempotency_redis_call_t, queue);
            left = (ngx_msec_int_t) (call->deadline - ngx_current_msec);
            least = ngx_min(least, left);
        }
    }

    if (lane->state != LANE_READY) {
        left = (ngx_msec_int_t) (lane->since
                                 + (lane->state == LANE_DOWN ? CLIENT_AGAIN
                                                             : CLIENT_CONNECT)
                                 - ngx_current_msec);
        least = ngx_min(least, left);

    }

    if (!ngx_queue_empty(&lane->waiting)
        && (lane->refused || (lane->failed && lane->state != LANE_READY)))
    {
        least = ngx_min(least, 1);
    }

    if (lane->refused && lane->state == LANE_READY) {
        left = (ngx_msec_int_t) (lane->since + CLIENT_LOOK - ngx_current_msec);
        least = ngx_min(least, left);
    }

    if (lane->timer.timer_set) {
        ngx_del_timer(&lane->timer);
    }

    ngx_add_timer(&lane->timer, ngx_max(least, 0));
}


static void
call_answer(ngx_idempotency_redis_call_t *call,
    ngx_idempotency_redis_error_e error, ngx_uint_t maybe)
{
    static ngx_str_t  why = ngx_string("simulated");

    ngx_queue_remove(&call->queue);

    call->error = error;
    call->maybe = maybe;
    call->slow = (error == NGX_IDEMPOTENCY_REDIS_TIMEOUT);
    call->why = why;

    if (error != NGX_IDEMPOTENCY_REDIS_OK
        && error != NGX_IDEMPOTENCY_REDIS_UNACKED)
    {
        call->reply = NULL;
    }

    call->handler(call);
}


static void
call_send(lane_t *lane, ngx_idempotency_redis_call_t *call)
{
    u_char       number[NGX_INT64_LEN];
    ngx_str_t    words[16];
    ngx_uint_t   i, n, nkeys;
    uint64_t     until;

    n = 0;
    words[n++] = call->key;

    if (call->compare) {
        words[n++] = call->mark->stamps[0].key;
    }

    nkeys = n;

    for (i = 0; i < call->nargs; i++) {
        words[n++] = call->args[i];
    }

    if (call->until) {
        until = client_time()
                + (uint64_t) ngx_max((ngx_msec_int_t) (call->deadline
                                                       - ngx_current_msec), 0)
                  * 1000;
        words[n].data = number;
        words[n++].len = ngx_sprintf(number, "%uL", until) - number;
    }

    if (call->compare) {
        words[n++] = call->mark->known[0];
        words[n++] = call->mark->known[1];
    }

    call->n = ++redis.calls;

    ngx_queue_remove(&call->queue);
    ngx_queue_insert_tail(&lane->sent, &call->queue);

    host->send(host->worker, lane - redis.lanes, lane->number, call->n,
               call->durable, &call->script->text, words, nkeys, n);
}


/* those that name no mark go to whatever stands there */

static void
lane_send(lane_t *lane)
{
    ngx_queue_t                   *q, *next;
    ngx_idempotency_redis_call_t  *call;

    for (q = ngx_queue_head(&lane->waiting);
         lane->state == LANE_READY && q != ngx_queue_sentinel(&lane->waiting);
         q = next)
    {
        next = ngx_queue_next(q);
        call = ngx_queue_data(q, ngx_idempotency_redis_call_t, queue);

        if (!lane->refused || call->mark == NULL) {
            call_send(lane, call);
        }
    }
}


/* the connection is none any more; who was answered may call again */

static void
lane_lost(lane_t *lane)
{
    ngx_queue_t                    lost;
    ngx_idempotency_redis_call_t  *call;

    lane->state = LANE_DOWN;
    lane->since = ngx_current_msec;
    lane->number = 0;

    ngx_queue_init(&lost);

    if (!ngx_queue_empty(&lane->sent)) {
        ngx_queue_add(&lost, &lane->sent);
        ngx_queue_init(&lane->sent);
    }

    while (!ngx_queue_empty(&lost)) {
        call = ngx_queue_data(ngx_queue_head(&lost),
                              ngx_idempotency_redis_call_t, queue);
        call_answer(call, NGX_IDEMPOTENCY_REDIS_CONNECT, 1);
    }
}


static void
lane_ask(lane_t *lane)
{
    ngx_str_t                        words[1
                                           + NGX_IDEMPOTENCY_REDIS_STAMP_ARGS];
    ngx_idempotency_redis_mark_t     *mark;
    ngx_idempotency_redis_question_t  question;

    mark = redis.mark;

    lane->state = LANE_ASKS;
    lane->since = ngx_current_msec;
    lane->mark = ++redis.calls;

    words[0] = mark->stamps[0].key;
    mark->ask(&mark->stamps[0], &question);
    ngx_memcpy(words + 1, question.args, sizeof(question.args));

    host->send(host->worker, lane - redis.lanes, lane->number, lane->mark,
               0, &mark->script->text, words, 1,
               1 + NGX_IDEMPOTENCY_REDIS_STAMP_ARGS);
}


static void
lane_connect(lane_t *lane)
{
    lane->state = LANE_CONNECTS;
    lane->since = ngx_current_msec;
    lane->number = ++redis.calls;

    host->connect(host->worker, lane - redis.lanes, lane->number);
}


/* what waits in vain; each may call again, at the tail */

static void
lane_refuse(lane_t *lane, ngx_idempotency_redis_error_e error)
{
    ngx_queue_t                    those;
    ngx_idempotency_redis_call_t  *call;

    ngx_queue_init(&those);

    if (!ngx_queue_empty(&lane->waiting)) {
        ngx_queue_add(&those, &lane->waiting);
        ngx_queue_init(&lane->waiting);
    }

    while (!ngx_queue_empty(&those)) {
        call = ngx_queue_data(ngx_queue_head(&those),
                              ngx_idempotency_redis_call_t, queue);

        if (call->mark || error != NGX_IDEMPOTENCY_REDIS_REFUSED) {
            call_answer(call, error, 0);

        } else {
            ngx_queue_remove(&call->queue);
            ngx_queue_insert_tail(&lane->waiting, &call->queue);
        }
    }
}


static void
lane_timer_handler(ngx_event_t *ev)
{
    lane_t                        *lane;
    ngx_uint_t                     late;
    ngx_queue_t                   *q, *next, those;
    ngx_idempotency_redis_call_t  *call;

    lane = ev->data;
    late = 0;

    ngx_queue_init(&those);

    for (q = ngx_queue_head(&lane->waiting);
         q != ngx_queue_sentinel(&lane->waiting);
         q = next)
    {
        next = ngx_queue_next(q);
        call = ngx_queue_data(q, ngx_idempotency_redis_call_t, queue);

        if ((ngx_msec_int_t) (call->deadline - ngx_current_msec) <= 0) {
            ngx_queue_remove(q);
            ngx_queue_insert_tail(&those, q);
        }
    }

    while (!ngx_queue_empty(&those)) {
        call = ngx_queue_data(ngx_queue_head(&those),
                              ngx_idempotency_redis_call_t, queue);
        call_answer(call, NGX_IDEMPOTENCY_REDIS_CONNECT, 0);
    }

    for (q = ngx_queue_head(&lane->sent);
         q != ngx_queue_sentinel(&lane->sent);
         q = ngx_queue_next(q))
    {
        call = ngx_queue_data(q, ngx_idempotency_redis_call_t, queue);

        if ((ngx_msec_int_t) (call->deadline - ngx_current_msec) <= 0) {
            late = 1;
            call_answer(call, NGX_IDEMPOTENCY_REDIS_TIMEOUT, 1);
            break;
        }
    }

    if (late) {
        lane->failed = 1;
        lane_lost(lane);
    }

    if ((lane->state == LANE_CONNECTS || lane->state == LANE_ASKS)
        && ngx_current_msec - lane->since >= CLIENT_CONNECT)
    {
        lane->failed = 1;
        lane_lost(lane);
    }

    if (lane->refused) {
        lane_refuse(lane, NGX_IDEMPOTENCY_REDIS_REFUSED);

    } else if (lane->failed && lane->state != LANE_READY) {
        lane_refuse(lane, NGX_IDEMPOTENCY_REDIS_CONNECT);
    }

    if (lane->state == LANE_DOWN
        && ngx_current_msec - lane->since >= CLIENT_AGAIN)
    {
        lane_connect(lane);
    }

    if (lane->refused && lane->state == LANE_READY
        && ngx_current_msec - lane->since >= CLIENT_LOOK)
    {
        lane_ask(lane);
    }

    lane_timer(lane);
}


static void
sim_connected(ngx_uint_t n, uint64_t number, uint64_t time)
{
    lane_t  *lane = &redis.lanes[n];

    if (lane->state != LANE_CONNECTS || lane->number != number) {
        return;
    }

    client_told(time);
    lane_ask(lane);
    lane_timer(lane);
}


/* the stamp that was asked for */

static void
lane_marked(lane_t *lane, ngx_idempotency_redis_reply_t *reply)
{
    ngx_int_t  rc;

    if (lane->state != LANE_ASKS) {
        return;
    }

    rc = redis.mark->handler(&redis.mark->stamps[0], reply);

    if (rc == NGX_AGAIN) {
        lane_ask(lane);
        return;
    }

    lane->state = LANE_READY;
    lane->since = ngx_current_msec;
    lane->failed = 0;
    lane->refused = (rc != NGX_OK);
    lane_send(lane);
}


static void
sim_answered(ngx_uint_t n, uint64_t number, uint64_t id,
    ngx_idempotency_redis_reply_t *reply, uint64_t time, ngx_uint_t unacked)
{
    u_char                         code;
    lane_t                        *lane = &redis.lanes[n];
    ngx_queue_t                   *q;
    ngx_idempotency_redis_call_t  *call;

    if (lane->number != number) {
        return;
    }

    client_told(time);

    if (id == lane->mark) {
        lane_marked(lane, reply);
        lane_timer(lane);
        return;
    }

    for (q = ngx_queue_head(&lane->sent);
         q != ngx_queue_sentinel(&lane->sent);
         q = ngx_queue_next(q))
    {
        call = ngx_queue_data(q, ngx_idempotency_redis_call_t, queue);

        if (call->n != id) {
            continue;
        }

        code = (reply->n && reply->elts[0].str.len)
               ? reply->elts[0].str.data[0] : 0;

        /* another stamp stands there: it is asked for; or the server's clock
           was set forward, which is known now */

        if (((call->compare && code == 'I') || (call->until && code == 'L'))
            && (ngx_msec_int_t) (call->deadline - ngx_current_msec) > 0
            && ++call->tries <= CLIENT_TRIES)
        {
            ngx_queue_remove(q);
            ngx_queue_insert_head(&lane->waiting, q);

            if (lane->state == LANE_READY && code == 'I') {
                lane_ask(lane);
            }

            lane_send(lane);
            break;
        }

        call->reply = reply;
        call_answer(call, unacked ? NGX_IDEMPOTENCY_REDIS_UNACKED
                                  : NGX_IDEMPOTENCY_REDIS_OK, unacked);
        break;
    }

    lane_timer(lane);
}


static void
sim_cut(ngx_uint_t n, uint64_t number)
{
    lane_t  *lane = &redis.lanes[n];

    if (lane->number == number && lane->state != LANE_DOWN) {
        lane_lost(lane);
        lane_timer(lane);
    }
}


static channel_t *
channel(ngx_str_t *key)
{
    ngx_uint_t  i;

    for (i = 0; i < SIM_CHANNELS && redis.channels[i].key.len; i++) {
        if (redis.channels[i].key.len == key->len
            && ngx_memcmp(redis.channels[i].name, key->data, key->len) == 0)
        {
            break;
        }
    }

    return &redis.channels[i];
}


static void
sim_published(ngx_str_t *key)
{
    channel_t  *c;

    c = channel(key);

    if (c->key.len && ngx_current_msec - c->wanted < SIM_WANTED) {
        c->handler(c->data, &c->key);
    }
}


ngx_idempotency_redis_conf_t *
ngx_idempotency_redis_conf(ngx_idempotency_redis_t *r)
{
    static ngx_idempotency_redis_conf_t  conf;

    conf.name = name;
    ngx_str_set(&conf.prefix, "p:");
    conf.timeout = sim.timeout;
    conf.connections = SIM_LANES;
    conf.replicas = sim.strict;

    return &conf;
}


ngx_uint_t
ngx_idempotency_redis_slot(ngx_str_t *key)
{
    return 0;
}


void
ngx_idempotency_redis_mark(ngx_idempotency_redis_t *r,
    ngx_idempotency_redis_mark_t *mark)
{
    r->mark = mark;
}


void
ngx_idempotency_redis_marked(ngx_idempotency_redis_t *r,
    ngx_idempotency_redis_mark_t *mark)
{
    lane_t  *lane;

    for (lane = r->lanes; lane < r->lanes + SIM_LANES; lane++) {
        if (lane->refused && lane->state == LANE_READY) {
            lane_ask(lane);
            lane_timer(lane);
        }
    }
}


ngx_int_t
ngx_idempotency_redis_init_process(ngx_idempotency_redis_t *r,
    ngx_cycle_t *cycle)
{
    lane_t      *lane;
    ngx_uint_t   i;

    for (i = 0; i < SIM_LANES; i++) {
        lane = &r->lanes[i];

        ngx_queue_init(&lane->sent);
        ngx_queue_init(&lane->waiting);
        lane->timer.handler = lane_timer_handler;
        lane->timer.data = lane;
        lane->timer.log = &sim_log;
        lane->timer.cancelable = 1;

        lane_connect(lane);
        lane_timer(lane);
    }

    return NGX_OK;
}


void
ngx_idempotency_redis_exit_process(ngx_idempotency_redis_t *r)
{
}


void
ngx_idempotency_redis_wait(ngx_idempotency_redis_t *r, ngx_msec_t time,
    ngx_uint_t first)
{
    host->slept(host->worker, ngx_min(time, 20));
}


void
ngx_idempotency_redis_call(ngx_idempotency_redis_t *r, ngx_uint_t n,
    ngx_idempotency_redis_call_t *call)
{
    lane_t  *lane = &r->lanes[n];

    call->reply = NULL;
    call->maybe = 0;
    call->tries = 0;

    ngx_queue_insert_tail(&lane->waiting, &call->queue);

    lane_send(lane);
    lane_timer(lane);
}


void
ngx_idempotency_redis_watch(ngx_idempotency_redis_t *r, ngx_str_t *key,
    ngx_idempotency_redis_changed_pt handler, void *data)
{
    channel_t  *c;

    c = channel(key);

    if (c->key.len == 0) {
        c->key.data = c->name;
        c->key.len = key->len;
        ngx_memcpy(c->name, key->data, key->len);
        c->handler = handler;
        c->data = data;

        host->subscribe(host->worker, &c->key);
    }

    c->wanted = ngx_current_msec;
}


uint64_t
ngx_idempotency_redis_time(ngx_idempotency_redis_t *r)
{
    return client_time();
}


ngx_uint_t
ngx_idempotency_redis_up(ngx_idempotency_redis_t *r)
{
    ngx_uint_t  i;

    for (i = 0; i < SIM_LANES; i++) {
        if (!r->lanes[i].failed || r->lanes[i].state == LANE_READY) {
            return 1;
        }
    }

    return 0;
}


ngx_uint_t
ngx_idempotency_redis_well(ngx_idempotency_redis_t *r)
{
    return ngx_idempotency_redis_up(r);
}


ngx_int_t
ngx_idempotency_redis_master(ngx_idempotency_redis_t *r, uint64_t *master,
    uint64_t *all)
{
    return NGX_ERROR;
}


/* --- the worker ----------------------------------------------------------- */


static void
sim_between(zone_t *z)
{
    zone_between(1, sim_between, &zone);
    host->between(host->worker);
}


static void
sim_zone(void)
{
    ngx_uint_t        i;
    ngx_slab_pool_t  *pool;

    zone.engine = &zone_shm;
    zone.zone.shm.size = SIM_ZONE;
    zone.zone.shm.addr = sim.zone;
    zone.zone.shm.name = name;
    zone.zone.shm.log = &sim_log;
    zone.zone.shm.exists = !sim.fresh;
    zone.zone.init = ngx_idempotency_shm_init;
    zone.zone.data = &zone.shm;
    zone.zone.tag = (void *) &ngx_idempotency_shm_engine;

    zone.store.name = name;
    zone.store.secret = &secret;
    zone.store.engine = &ngx_idempotency_shm_engine;
    zone.store.data = &zone.shm;
    zone.store.strict = (sim.store == SIM_FILE && sim.strict);
    zone.shm.store = &zone.store;
    zone.shm.generation = sim.generation;

    pool = (ngx_slab_pool_t *) sim.zone;

    if (sim.fresh) {
        pool->end = sim.zone + SIM_ZONE;
        pool->min_shift = 3;
        pool->addr = sim.zone;
        (void) ngx_shmtx_create(&pool->mutex, &pool->lock, NULL);
        ngx_slab_init(pool);
    }

    if (ngx_idempotency_shm_init(&zone.zone, NULL) != NGX_OK) {
        host->fault(host->worker, "a zone can't be made");
        return;
    }

    /* of an empty one: it is kept where the next worker finds it */

    if (sim.fresh) {
        zone.shm.sh->stats.warned = 100;
        zone.pfree = pool->pfree;

        for (i = 0; i < ngx_pagesize_shift - pool->min_shift; i++) {
            zone.used[i] = pool->stats[i].used;
        }

        ngx_memcpy(sim.zone + SIM_ZONE, &zone.pfree, sizeof(zone.pfree));
        ngx_memcpy(sim.zone + SIM_ZONE + 64, zone.used, sizeof(zone.used));

    } else {
        ngx_memcpy(&zone.pfree, sim.zone + SIM_ZONE, sizeof(zone.pfree));
        ngx_memcpy(zone.used, sim.zone + SIM_ZONE + 64, sizeof(zone.used));

        if (zone.shm.tier) {
            (void) zone.shm.tier->backing->init(zone.shm.tier, NULL, &sim_log);

            /* as the master does, of a configuration that is read anew */

            zone.shm.sh->tier.generation = ngx_max(sim.generation,
                                              zone.shm.sh->tier.generation);
        }
    }
}


static sim_worker_t  worker;


static ngx_int_t
sim_start(sim_conf_t *conf)
{
    ngx_int_t    rc;
    ngx_uint_t   i;
    ngx_conf_t   cf;

    sim = *conf;

    sim_log.log_level = NGX_LOG_NOTICE;
    sim_time.sec = host->wall(host->worker) / 1000;
    ngx_cached_time = &sim_time;

    workers_ended()[sim.slot] = 0;

    unit_cycle.log = &sim_log;
    unit_cycle.conf_ctx = (void ****) sim_ctx;
    ngx_cycle = &unit_cycle;

    ngx_pid = sim.pid;
    ngx_ncpu = 1;
    ngx_pagesize = 4096;
    ngx_cacheline_size = 64;

    for (i = ngx_pagesize; i >>= 1; ngx_pagesize_shift++) { /* void */ }

    ngx_slab_sizes_init();
    ngx_event_timer_init(&sim_log);
    ngx_queue_init(&ngx_posted_accept_events);
    ngx_queue_init(&ngx_posted_next_events);
    ngx_queue_init(&ngx_posted_events);

    unit_cycle.pool = ngx_create_pool(4096, &sim_log);
    worker.pool = unit_cycle.pool;

    ngx_memzero(&cf, sizeof(ngx_conf_t));
    cf.pool = unit_cycle.pool;
    cf.log = &sim_log;

    switch (sim.store) {

    case SIM_REDIS:
        zone.shm.store = &zone.store;
        zone.store.data = &zone.shm;
        (void) ngx_idempotency_backing_redis_add(&cf, &zone.store, &redis);
        break;

    case SIM_FILE:
        tier.backing = &file_backing;
        tier.name = name;
        tier.shm = &zone.shm;
        tier.strict = sim.strict;
        zone.shm.tier = &tier;
        break;

    default:
        break;
    }

    sim_zone();

    unit_cycle.shared_memory.part.elts = &zone.zone;
    unit_cycle.shared_memory.part.nelts = 1;

    zone_between(1, sim_between, &zone);

    rc = ngx_idempotency_shm_init_process(&unit_cycle);

    return rc;
}


static void
sim_run(void)
{
    sim_time.sec = host->wall(host->worker) / 1000;

    /* as an event loop does */

    ngx_event_move_posted_next(&unit_cycle);
    ngx_event_expire_timers();
    ngx_event_process_posted(&unit_cycle, &ngx_posted_events);
}


static ngx_msec_t
sim_next(void)
{
    if (!ngx_queue_empty(&ngx_posted_events)
        || !ngx_queue_empty(&ngx_posted_next_events))
    {
        return 0;
    }

    return ngx_event_find_timer();
}


static void
sim_woken(uint64_t *key)
{
    woken_handler(key);
}


static void
sim_handed(ngx_idempotency_batch_t *batch)
{
    ngx_idempotency_batch_flushed(&tier, batch);
}


static ngx_uint_t
sim_current(ngx_idempotency_batch_t *batch)
{
    return ngx_idempotency_batch_current(&tier, batch);
}


static void
sim_quit(void)
{
    ngx_exiting = 1;
    quit_handler();
}


/* as nginx asks before a worker ends */

static ngx_uint_t
sim_stays(void)
{
    return ngx_event_no_timers_left() != NGX_OK;
}


static void
sim_exit(void)
{
    ngx_idempotency_shm_exit_process(&unit_cycle);
}


static void
sim_agree(void)
{
    (void) ngx_idempotency_store_agree(&zone.store);
}


static void
sim_peek(u_char *token, sim_peek_t *peek)
{
    ngx_idempotency_record_t  *rec;

    rec = ngx_idempotency_record_current(&zone.shm, token, ngx_current_msec);

    peek->state = rec ? rec->state : NGX_IDEMPOTENCY_STATES;
    peek->told = rec ? rec->flush : 0;
    peek->fence = rec ? rec->fence : 0;
}


/* all that may leave the zone does */

static void
sim_short_of_memory(void)
{
    if (ngx_idempotency_shm_lock(&zone.shm) != NGX_OK) {
        return;
    }

    while (ngx_idempotency_record_free_some(&zone.shm, ngx_current_msec)) {
        /* void */
    }

    ngx_idempotency_shm_unlock(&zone.shm);
}


static void
sim_empty(void)
{
    ngx_uint_t                 i;
    ngx_idempotency_shm_sh_t  *sh;

    sh = zone.shm.sh;

    for (i = 0; i <= sh->mask; i++) {
        check(sh->buckets[i] == &sh->sentinel);
    }

    check_equal(zone_bound(&zone), 0);
    check(ngx_queue_empty(&sh->pending));
    check(ngx_queue_empty(&sh->remote));
    check(ngx_queue_empty(&sh->kept));
    check(sh->quotas == &sh->sentinel);
    check(sh->tier.first == NULL);
    check(sh->tier.aside == NULL);
}


/* those who tell what is owed have their places for as long as the zone */

static void
sim_examine(ngx_uint_t empty)
{
    size_t                     size;
    ngx_uint_t                 slot, n, used[ZONE_SLOTS], pfree;
    ngx_idempotency_record_t  *rec;
    ngx_idempotency_writer_t  *writer;

    zone_between(0, NULL, NULL);

    memcpy(used, zone.used, sizeof(used));
    pfree = zone.pfree;
    zone.skew = 50;

    for (writer = zone.shm.sh->tier.writer.next; writer; writer = writer->next)
    {
        slot = 0;

        for (size = 8; size < sizeof(ngx_idempotency_writer_t); size <<= 1) {
            slot++;
        }

        zone.used[slot]++;

        for (rec = writer->records; rec; rec = rec->next) {
            zone.used[5] += (rec->state == NGX_IDEMPOTENCY_GONE);
        }
    }

    /* in pages, those that were there have been taken off */

    for (slot = 0; slot < 9; slot++) {
        n = ngx_pagesize >> (3 + slot);
        zone.pfree -= (zone.used[slot] + n - 1) / n - (used[slot] + n - 1) / n;
    }

    zone_check(&zone);

    if (empty) {
        sim_empty();
    }

    memcpy(zone.used, used, sizeof(used));
    zone.pfree = pfree;

    zone_between(1, sim_between, &zone);
}


static sim_worker_t  worker = {
    .engine = &ngx_idempotency_shm_engine,
    .store = &zone.store,
    .shm = &zone.shm,
    .msec = &ngx_current_msec,
    .start = sim_start,
    .run = sim_run,
    .next = sim_next,
    .woken = sim_woken,
    .handed = sim_handed,
    .current = sim_current,
    .alloc = sim_alloc,
    .connected = sim_connected,
    .answered = sim_answered,
    .cut = sim_cut,
    .published = sim_published,
    .quit = sim_quit,
    .stays = sim_stays,
    .exit = sim_exit,
    .agree = sim_agree,
    .gone = sim_gone,
    .peek = sim_peek,
    .short_of_memory = sim_short_of_memory,
    .examine = sim_examine
};


sim_worker_t *
sim_worker(sim_host_t *h)
{
    host = h;

    return &worker;
}
