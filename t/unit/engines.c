
/*
 * Cases run on each engine that can live in a unit test: shared memory; the one
 * that answers late; a file behind shared memory, with each mode, and with
 * another nginx that has it, too, while memory keeps nothing it need not.
 * UNIT_ENGINE=NAME: on that one alone.
 *
 * Each has what it needs: timers whose time comes while no clock moves, threads
 * that are functions, answers that get lost by a seed.
 */


#include "zone.h"
#include "workers_double.h"

#include "store/file/ngx_idempotency_owners.h"

#if (NGX_IDEMPOTENCY_FILE)

#include <dirent.h>

#include "store/file/ngx_idempotency_file.h"
#include "store/file/ngx_idempotency_start.h"
#include "store/file/ngx_idempotency_thread.h"

#endif


/* it is compiled for tests alone; chance is ours */

static long engines_random(void *late);

#define NGX_IDEMPOTENCY_LATE  1
extern const ngx_idempotency_engine_t  ngx_idempotency_late_engine;

#undef ngx_random
#define ngx_random()  engines_random(late)

#include "../late_engine.c"


/* cases by engines */

#define ENGINES_RUNS   512

/* who has the timers, and hears of threads */

#define ENGINES_WORKER  126


static const unit_case_t     *engines_cases[ENGINES_RUNS];
static const zone_engine_t   *engines_of[ENGINES_RUNS];
static ngx_uint_t             engines_n;

static ngx_rbtree_node_t      engines_timers;
static uint64_t               engines_seed;


static void engines_case(void);
static void engines_expire(ngx_event_t *ev);
static void late_unit_close(zone_t *z, ngx_uint_t again);
static ngx_uint_t late_unit_pass(zone_t *z);


static const zone_engine_t  engines_late = {
    .name = "late",
    .engine = &ngx_idempotency_late_engine,
    .is = ZONE_CALM|ZONE_STAYS|ZONE_FILLS|ZONE_ALONE,
    .close = late_unit_close,
    .pass = late_unit_pass,
};


/* --- late ----------------------------------------------------------------- */


/* the answer to a claim may get lost, as that is made again then; nobody asks
   again for any other, nor for the change that a claim waits for */

static long
engines_random(void *data)
{
    long     n;
    late_t  *late;

    late = data;

    n = (long) unit_below(&engines_seed, 1 << 20);

    if (late->kind != &late_kind_claim || late->op == NULL
        || ((op_t *) late->op->data)->asks == 0)
    {
        n |= 1;
    }

    return n;
}


/* whoever asked has heard, or has gone */

static void
late_unit_close(zone_t *z, ngx_uint_t again)
{
    check(ngx_queue_empty(&late_ops));
}


static ngx_uint_t
late_unit_pass(zone_t *z)
{
    ngx_event_t        *ev;
    ngx_rbtree_node_t  *node;

    if (ngx_event_timer_rbtree.root == &engines_timers) {
        return 0;
    }

    node = ngx_rbtree_min(ngx_event_timer_rbtree.root, &engines_timers);

    /* what goes on all the time is not waited for */

    for ( /* void */ ; node; node = ngx_rbtree_next(&ngx_event_timer_rbtree,
                                                     node))
    {
        ev = ngx_rbtree_data(node, ngx_event_t, timer);

        if (!ev->cancelable) {
            engines_expire(ev);
            return 1;
        }
    }

    return 0;
}


static void
engines_expire(ngx_event_t *ev)
{
    ngx_del_timer(ev);
    ev->handler(ev);
}


#if (NGX_IDEMPOTENCY_FILE)


/* --- a file --------------------------------------------------------------- */


#define FILE_TASKS  8
#define FILE_VIEWS  2


static void file_unit_open(zone_t *z);
static void file_unit_begin(zone_t *z);
static void file_unit_end(zone_t *z);
static void file_unit_close(zone_t *z, ngx_uint_t again);
static void file_unit_remove(void);
static ngx_uint_t file_unit_pass(zone_t *z);
static void file_unit_expire(ngx_event_t *ev);
static void file_unit_thread(void);
static ngx_idempotency_thread_t *file_unit_take(
    ngx_idempotency_thread_t *thread);
static void file_unit_forgets(zone_t *z);


int __real_clock_gettime(clockid_t id, struct timespec *ts);
int __wrap_clock_gettime(clockid_t id, struct timespec *ts);


#define engines_file                                                          \
    .engine = &ngx_idempotency_shm_engine,                                    \
    .is = ZONE_IN_TURN|ZONE_OUTLIVES,                                         \
    .open = file_unit_open,                                                   \
    .begin = file_unit_begin,                                                 \
    .end = file_unit_end,                                                     \
    .close = file_unit_close,                                                 \
    .pass = file_unit_pass

static const zone_engine_t  engines_strict = {
    .name = "file, strict", engines_file
};

static const zone_engine_t  engines_batched = {
    .name = "file, batched", engines_file
};

static const zone_engine_t  engines_shared = {
    .name = "file, shared", engines_file, .answered = file_unit_forgets
};


sig_atomic_t                    ngx_terminate;

static ngx_cycle_t              file_cycle;
static ngx_core_conf_t          file_core;
static void                    *file_confs[] = { &file_core };

static char                     file_dir[128];
static char                     file_path[160];
static ngx_pool_t              *file_pool;

/* the other nginx that has it */

static ngx_idempotency_start_t  file_other;

/* those of a zone that is there, with workers of this configuration or the
   next */

static ngx_idempotency_tier_t  *file_tiers[FILE_VIEWS];

/* what threads were given, the oldest first */

static ngx_idempotency_thread_t  *file_tasks[FILE_TASKS];
static ngx_uint_t               file_ntasks;


/* as a directive does; a file that is there goes on */

static void
file_unit_open(zone_t *z)
{
    char                         *tmp;
    ngx_conf_t                    cf;
    ngx_conf_file_t               conf_file;
    ngx_idempotency_secret_t     *secret;
    ngx_idempotency_file_conf_t   conf;

    if (file_dir[0] == '\0') {
        tmp = getenv("TMPDIR");

        snprintf(file_dir, sizeof(file_dir), "%s/unit.XXXXXX",
                 tmp ? tmp : "/tmp");
        check(mkdtemp(file_dir) != NULL);
        snprintf(file_path, sizeof(file_path), "%s/db", file_dir);
    }

    /* an operator is to know */

    unit_expect("was made");

    if (file_pool == NULL) {
        file_pool = ngx_create_pool(4096, unit_cycle.log);
        check(file_pool != NULL);
    }

    unit_usual("\" was made, as there was none: no token is known");

    file_core.user = geteuid();
    file_core.group = getegid();
    file_core.username = "root";

    file_cycle = unit_cycle;
    file_cycle.conf_ctx = (void ****) file_confs;

    ngx_memzero(&cf, sizeof(ngx_conf_t));
    cf.pool = file_pool;
    cf.cycle = &file_cycle;
    cf.conf_file = &conf_file;

    ngx_memzero(&conf_file, sizeof(ngx_conf_file_t));
    ngx_memzero(&conf, sizeof(ngx_idempotency_file_conf_t));
    conf.path.data = (u_char *) file_path;
    conf.path.len = strlen(file_path);

    conf.sync = (z->engine == &engines_strict) ? NGX_IDEMPOTENCY_SYNC_STRICT
                                               : NGX_IDEMPOTENCY_SYNC_BATCHED;

    check_equal(ngx_idempotency_file_add(&cf, &z->store, &conf), NGX_OK);

    if (z->engine == &engines_shared && file_other.path.len == 0) {
        secret = (ngx_idempotency_secret_t *) z->store.secret;

        file_other.path = conf.path;
        file_other.user = file_core.user;
        file_other.group = file_core.group;
        file_other.username = file_core.username;
        ngx_memcpy(file_other.stamp, secret->stamp, NGX_IDEMPOTENCY_STAMP_LEN);

        check_equal(ngx_idempotency_start(&file_other, file_pool,
                                          unit_cycle.log),
                    NGX_OK);
    }
}


static void
file_unit_begin(zone_t *z)
{
    ngx_uint_t  i;

    for (i = 0; i < FILE_VIEWS; i++) {
        if (file_tiers[i] == NULL) {
            file_tiers[i] = z->shm.tier;
            break;
        }
    }

    check(i < FILE_VIEWS);

    file_unit_expire(&z->shm.tier->watch);
    zone_settle(z);
}


static void
file_unit_end(zone_t *z)
{
    ngx_uint_t               i;
    ngx_idempotency_tier_t  *tier;

    tier = z->shm.tier;

    for (i = 0; i < FILE_VIEWS; i++) {
        if (file_tiers[i] == tier) {
            file_tiers[i] = NULL;
        }
    }

    if (tier->retry.timer_set) {
        ngx_del_timer(&tier->retry);
    }

    if (tier->poll.timer_set) {
        ngx_del_timer(&tier->poll);
    }

    ngx_del_timer(&tier->watch);
}


static void
file_unit_close(zone_t *z, ngx_uint_t again)
{
    file_ntasks = 0;

    ngx_destroy_pool(file_pool);
    file_pool = NULL;

    ngx_memzero(&file_other, sizeof(ngx_idempotency_start_t));

    if (!again) {
        file_unit_remove();
    }
}


static void
file_unit_remove(void)
{
    DIR            *d;
    char            name[512];
    struct dirent  *e;

    d = opendir(file_dir);

    while (check(d != NULL) && (e = readdir(d)) != NULL) {
        snprintf(name, sizeof(name), "%s/%s", file_dir, e->d_name);

        if (e->d_name[0] != '.') {
            check_equal(unlink(name), 0);
        }
    }

    closedir(d);
    check_equal(rmdir(file_dir), 0);

    file_dir[0] = '\0';
}


static ngx_uint_t
file_unit_pass(zone_t *z)
{
    ngx_uint_t               i;
    ngx_idempotency_tier_t  *tier;

    if (file_ntasks) {
        file_unit_thread();
        return 1;
    }

    for (i = 0; i < FILE_VIEWS; i++) {
        tier = file_tiers[i];

        if (tier && tier->retry.timer_set) {
            file_unit_expire(&tier->retry);
            return 1;
        }
    }

    for (i = 0; i < FILE_VIEWS; i++) {
        tier = file_tiers[i];

        if (tier && tier->shm->sh->tier.first) {
            file_unit_expire(&tier->watch);
            return 1;
        }
    }

    return 0;
}


static void
file_unit_expire(ngx_event_t *ev)
{
    ngx_uint_t  was;

    was = double_become(ENGINES_WORKER);
    engines_expire(ev);
    (void) double_become(was);
}


/* whom an answer concerns is told at once; whom an operation wakes, a test
   tells */

static void
file_unit_thread(void)
{
    uint64_t                   key;
    ngx_uint_t                 n, was, nwakes;
    ngx_idempotency_thread_t  *thread;

    thread = file_unit_take(file_tasks[0]);

    nwakes = double_nwakes;
    was = double_become(ENGINES_WORKER);

    thread->run(thread->data);
    thread->busy = 0;
    thread->done(thread->data);

    /* the log is synced beside, however the test's time goes */

    for (n = 0; n < FILE_VIEWS; n++) {
        if (file_tiers[n]) {
            file_tiers[n]->shm->sh->tier.unsynced = 0;
        }
    }

    (void) double_become(was);

    for (n = double_nwakes - nwakes; n; n--) {
        key = double_wakes[nwakes].key;
        double_nwakes--;
        ngx_memmove(&double_wakes[nwakes], &double_wakes[nwakes + 1],
                    (double_nwakes - nwakes) * sizeof(double_wake_t));

        ngx_idempotency_shm_woken(&key);
    }
}


static ngx_idempotency_thread_t *
file_unit_take(ngx_idempotency_thread_t *thread)
{
    ngx_uint_t  i;

    for (i = 0; i < file_ntasks && file_tasks[i] != thread; i++) { /* void */ }

    file_ntasks--;
    ngx_memmove(file_tasks + i, file_tasks + i + 1,
                (file_ntasks - i) * sizeof(ngx_idempotency_thread_t *));

    return thread;
}


/* all that may leave memory does, but for what releases have left */

static void
file_unit_forgets(zone_t *z)
{
    ngx_queue_t               *q, *next, *records, left;
    ngx_idempotency_record_t  *rec;

    zone_settle(z);

    if (!check_equal(ngx_idempotency_shm_lock(&z->shm), NGX_OK)) {
        return;
    }

    ngx_queue_init(&left);
    records = &z->shm.sh->leftovers.records;

    for (q = ngx_queue_head(records); q != records; q = next) {
        next = ngx_queue_next(q);
        rec = ngx_queue_data(q, ngx_idempotency_record_t, as.bound.expiry);

        if (rec->local) {
            ngx_queue_remove(q);
            ngx_queue_insert_tail(&left, q);
        }
    }

    while (ngx_idempotency_record_free_some(&z->shm, ngx_current_msec)) {
        /* void */
    }

    while (!ngx_queue_empty(&left)) {
        q = ngx_queue_head(&left);
        ngx_queue_remove(q);
        ngx_queue_insert_tail(records, q);
    }

    ngx_idempotency_shm_unlock(&z->shm);

    zone_settle(z);
}


/* the clocks but the wall's are the test's */

int
__wrap_clock_gettime(clockid_t id, struct timespec *ts)
{
    int64_t  msec;

    if (id != CLOCK_BOOTTIME && id != CLOCK_MONOTONIC) {
        return __real_clock_gettime(id, ts);
    }

    msec = (int64_t) ngx_current_msec;

    ts->tv_sec = msec / 1000 - (msec % 1000 < 0);
    ts->tv_nsec = (msec - ts->tv_sec * 1000) * 1000000;

    return 0;
}


void
ngx_close_listening_sockets(ngx_cycle_t *cycle)
{
}


/* a worker's threads */

ngx_int_t
ngx_idempotency_thread_init_process(ngx_cycle_t *cycle)
{
    return NGX_OK;
}


ngx_idempotency_thread_t *
ngx_idempotency_thread_create(void (*run)(void *data), void (*done)(void *data),
    void *data)
{
    ngx_idempotency_thread_t  *thread;

    thread = ngx_pcalloc(file_pool, sizeof(ngx_idempotency_thread_t));

    thread->run = run;
    thread->done = done;
    thread->data = data;

    return thread;
}


ngx_int_t
ngx_idempotency_thread_post(ngx_idempotency_thread_t *thread)
{
    if (!check(file_ntasks < FILE_TASKS) || !check(!thread->busy)) {
        return NGX_ERROR;
    }

    thread->busy = 1;
    file_tasks[file_ntasks++] = thread;

    return NGX_OK;
}


ngx_int_t
ngx_idempotency_thread_wait(ngx_idempotency_thread_t *thread, ngx_msec_t time)
{
    if (thread->busy) {
        thread->busy = 0;
        file_unit_take(thread)->run(thread->data);
    }

    return NGX_OK;
}


void
ngx_idempotency_thread_enter(void)
{
}


void
ngx_idempotency_thread_leave(void)
{
}


void
ngx_idempotency_thread_exit_process(void)
{
}


#endif


/* --- cases ---------------------------------------------------------------- */


static const zone_engine_t  *engines[] = {
    &zone_shm,
    &engines_late,
#if (NGX_IDEMPOTENCY_FILE)
    &engines_strict,
    &engines_batched,
    &engines_shared,
#endif
    NULL
};


int
main(void)
{
    char                 *only, *name;
    size_t                len;
    ngx_uint_t            i, n, runs, takes;
    static unit_case_t    all[ENGINES_RUNS + 1];

    only = getenv("UNIT_ENGINE");
    runs = 0;

    for (i = 0; engines[i]; i++) {

        if (only && strcmp(only, engines[i]->name) != 0) {
            continue;
        }

        for (n = 0; unit_cases[n].name && runs < ENGINES_RUNS; n++) {
            takes = unit_cases[n].takes & ~UNIT_BARE;

            if ((engines[i]->is & takes) != takes) {
                continue;
            }

            len = strlen(engines[i]->name) + strlen(unit_cases[n].name) + 3;
            name = malloc(len);
            snprintf(name, len, "%s: %s", engines[i]->name, unit_cases[n].name);

            all[runs].name = name;
            all[runs].run = engines_case;
            all[runs].takes = UNIT_BARE;

            engines_cases[runs] = &unit_cases[n];
            engines_of[runs++] = engines[i];
        }
    }

    return unit_run_these(all);
}


/* the next one */

static void
engines_case(void)
{
    zone_engine = engines_of[engines_n];
    engines_seed = unit_setting("UNIT_SEED", 0) * ENGINES_RUNS + engines_n;
    ngx_current_msec = 0;

    /* those of a process that is gone */

    while (ngx_event_timer_rbtree.root != ngx_event_timer_rbtree.sentinel) {
        ngx_del_timer(ngx_rbtree_data(ngx_event_timer_rbtree.root, ngx_event_t,
                                      timer));
    }

    ngx_rbtree_init(&ngx_event_timer_rbtree, &engines_timers,
                    ngx_rbtree_insert_timer_value);

    unit_run_case(engines_cases[engines_n++]);
}
