
/*
 * Real processes over one zone, all after the same few tokens: never does one
 * own what another still owns, whoever dies, wherever.
 */


#include "events.h"
#include "zone.h"


#define TOKENS     3
#define PROCESSES  4
#define ZONE       (32 * 1024 * 1024)


typedef struct {
    /* a millisecond passes with each operation */
    ngx_atomic_t           now;

    /* who executes a token, by its own account, and how often one was */
    ngx_atomic_t           owner[TOKENS];
    ngx_atomic_t           claims[TOKENS];
    /* the same, counted as only one at a time may */
    volatile ngx_uint_t    counter[TOKENS];

    ngx_atomic_t           replays;
    ngx_atomic_t           waits;
    ngx_atomic_t           left;
    ngx_atomic_t           limited;
    ngx_atomic_t           takeovers;
    ngx_atomic_t           torn;

    volatile ngx_uint_t    stop;
    volatile ngx_uint_t    running[PROCESSES];
    volatile ngx_uint_t    holding;
} shared_t;


typedef struct {
    ngx_uint_t             id;
    ngx_uint_t             ops;
    uint64_t               seed;
    /* nobody dies: whoever waits is woken in time */
    ngx_uint_t             sure;
    /* it dies in a change of the zone, the so-manieth */
    ngx_uint_t             dies;
} process_t;


static shared_t   *shared;
static process_t   processes[PROCESSES];


static ngx_msec_t
clock_msec(void)
{
    struct timespec  ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);

    return ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}


static ngx_msec_t
tick(void)
{
    ngx_current_msec = ngx_atomic_fetch_add(&shared->now, 1) + 1;

    return ngx_current_msec;
}


void
unit_setup(void)
{
    events_start();
    zone_open(&zone, ZONE, 0);
    zone.skew = 1000000;
    shared = unit_shared(sizeof(shared_t));
    unit_expect("idempotency zone \"unit\"");
    ngx_memzero(processes, sizeof(processes));
}


void
unit_teardown(void)
{
    op_t        op;
    ngx_uint_t  i;

    for (i = 0; i < TOKENS; i++) {
        op_init(&op, i, 0, tick());
        op_forget(&zone, &op);
    }

    ngx_idempotency_record_expire(&zone.shm,
                                  tick() + NGX_IDEMPOTENCY_SHM_LEFTOVER, ZONE);

    zone_check_empty(&zone);
    zone_close(&zone);
    unit_unshared(shared, sizeof(shared_t));
}


static ngx_uint_t
is_dead(ngx_atomic_uint_t pid)
{
    return kill((ngx_pid_t) pid, 0) == -1 && ngx_errno == NGX_ESRCH;
}


static size_t
size_of(uint64_t fence)
{
    return (fence % 8 == 0) ? 70000 + fence % 70000 : 1 + fence % 3000;
}


static void
changed(op_t *op)
{
    /* op->waiting has been cleared */
}


static void
own(process_t *p, ngx_uint_t token, op_t *op)
{
    ngx_uint_t         i, n, spin;
    ngx_atomic_uint_t  before;

    /* was there another? */

    do {
        before = shared->owner[token];
    } while (!ngx_atomic_cmp_set(&shared->owner[token], before, ngx_pid));

    if (before) {
        check(!p->sure && is_dead(before));
        ngx_atomic_fetch_add(&shared->takeovers, 1);
    }

    ngx_atomic_fetch_add(&shared->claims[token], 1);

    n = shared->counter[token];
    spin = unit_below(&p->seed, 300);

    for (i = 0; i < spin; i++) {
        ngx_cpu_pause();
    }

    shared->counter[token] = n + 1;

    check(ngx_atomic_cmp_set(&shared->owner[token], ngx_pid, 0));

    op->now = tick();

    if (unit_below(&p->seed, 3) == 0) {
        op->leave = unit_below(&p->seed, 2);
        op->status = 429;
        op_respond(op, size_of(op->fence), op->fence);
        n = op_release(&zone, op);

    } else {
        op->outcome = NGX_IDEMPOTENCY_DONE;
        op->status = 200;
        op_respond(op, size_of(op->fence), op->fence);
        n = op_complete(&zone, op);
    }

    check(n == NGX_IDEMPOTENCY_OK
          || (n == NGX_IDEMPOTENCY_UNAVAILABLE && zone.shm.sh->poisoned));
}


static void
await_change(process_t *p, op_t *op)
{
    ngx_msec_t  start;

    ngx_atomic_fetch_add(&shared->waits, 1);

    start = clock_msec();

    while (op->waiting && !shared->stop
           && clock_msec() - start < (p->sure ? 60000 : 50))
    {
        events_read(p->sure ? 60000 : 50);
    }

    if (p->sure) {
        check(!op->waiting);
    }

    op_cancel(&zone, op);
}


static void
hammer(void *data)
{
    op_t        op;
    process_t  *p;
    ngx_uint_t  i, token, result;

    p = data;

    events_reset();
    check_equal(zone_init_process(&zone), NGX_OK);
    check(ngx_idempotency_worker_self().slot != NGX_IDEMPOTENCY_NO_WORKER);

    zone_die_after = p->dies;
    shared->running[p->id] = 1;

    /* nobody comes too late to meet one that dies */

    for (i = 0; p->dies && i < PROCESSES - 1; i++) {
        while (!shared->running[i]) {
            usleep(200);
        }
    }

    for (i = 0; i < p->ops && !shared->stop; i++) {

        token = unit_below(&p->seed, TOKENS);

        op_init(&op, token, token, tick());
        op.window = 1 + unit_below(&p->seed, 40);
        op.lease = 1000000000;
        op.retry = 1;
        op.wait = unit_below(&p->seed, 2);
        op.handler = changed;

        /* not all three may be there at once, if they are counted */

        op.quota = unit_below(&p->seed, 2) ? 2 : 0;

        result = op_claim(&zone, &op);

        if (op.waiting) {
            await_change(p, &op);

            op.now = tick();
            op.wait = 0;
            result = op_claim(&zone, &op);
        }

        if (op.left) {
            check_equal(op.status, 429);
            ngx_atomic_fetch_add(&shared->left, 1);
        }

        switch (result) {

        case NGX_IDEMPOTENCY_CLAIMED:
            own(p, token, &op);
            break;

        case NGX_IDEMPOTENCY_BOUND:

            if (op.outcome == NGX_IDEMPOTENCY_PENDING) {
                break;
            }

            /* what another recorded, whole */

            check_equal(op.outcome, NGX_IDEMPOTENCY_DONE);
            op_responded(&op, size_of(op.fence), op.fence);
            ngx_atomic_fetch_add(&shared->replays, 1);
            break;

        case NGX_IDEMPOTENCY_LIMITED:
            ngx_atomic_fetch_add(&shared->limited, 1);
            break;

        case NGX_IDEMPOTENCY_UNAVAILABLE:
            ngx_atomic_fetch_add(&shared->torn, 1);
            check(!p->sure);
            check(zone.shm.sh->poisoned);
            shared->stop = 1;
            break;

        default:
            check_equal(op.result, NGX_IDEMPOTENCY_CLAIMED);
        }

        ngx_reset_pool(unit_pool);
    }

    zone_exit_process(&zone);
}


unit_case("many processes, few tokens: one owner at a time")
{
    ngx_pid_t   pids[PROCESSES];
    process_t  *p;
    ngx_uint_t  i;

    for (i = 0; i < PROCESSES; i++) {
        p = &processes[i];
        p->id = i;
        p->ops = unit_setting("UNIT_STEPS", 20000);
        p->seed = unit_setting("UNIT_SEED", 1) * 1000 + i;
        p->sure = 1;
        pids[i] = unit_fork(hammer, p);
    }

    for (i = 0; i < PROCESSES; i++) {
        unit_wait(pids[i]);
    }

    for (i = 0; i < TOKENS; i++) {
        check(shared->claims[i] > 0);
        check_equal(shared->claims[i], shared->counter[i]);
    }

    unit_note("%lu claims of one token, %lu replays, %lu waits, %lu left, "
              "%lu limited",
              (u_long) shared->claims[0], (u_long) shared->replays,
              (u_long) shared->waits, (u_long) shared->left,
              (u_long) shared->limited);

    check(shared->replays > 0);
    check_equal(shared->torn, 0);
    check_equal(shared->takeovers, 0);
}


static void
start_hammers(ngx_pid_t *pids, uint64_t *seed, ngx_uint_t dies)
{
    process_t   *p;
    ngx_uint_t   i;

    shared->stop = 0;
    shared->torn = 0;
    ngx_memzero((void *) shared->running, sizeof(shared->running));

    for (i = 0; i < PROCESSES - 1; i++) {
        p = &processes[i];
        p->id = i;
        p->ops = (ngx_uint_t) -1;
        p->seed = unit_random(seed);
        p->sure = 0;
        p->dies = (i == 0) ? dies : 0;
        pids[i] = unit_fork(hammer, p);
    }

    for (i = 0; i < PROCESSES - 1; i++) {
        while (!shared->running[i]) {
            usleep(200);
        }
    }
}


/* owns a token, and never says what became of it */

static void
hold(void *data)
{
    op_t  op;

    events_reset();
    check_equal(zone_init_process(&zone), NGX_OK);

    do {
        op_init(&op, 0, 0, tick());
        op.lease = 1000000000;
        op.retry = 1;
        op_claim(&zone, &op);
        ngx_reset_pool(unit_pool);
    } while (op.result != NGX_IDEMPOTENCY_CLAIMED);

    while (!ngx_atomic_cmp_set(&shared->owner[0], 0, ngx_pid)) {
        check(is_dead(shared->owner[0]));
        shared->owner[0] = 0;
    }

    shared->holding = 1;

    for ( ;; ) {
        pause();
    }
}


/*
 * Its locks are given back as by nginx's master.  Then the lock is taken and
 * given back, as by a successor: one that died just when it was woken has not
 * woken the next in the line.
 */

static void
bury(ngx_pid_t pid)
{
    int           status;
    ngx_shmtx_t  *mutex;

    check_equal(waitpid(pid, &status, 0), pid);
    check(WIFSIGNALED(status));

    mutex = &zone.shm.shpool->mutex;

    ngx_shmtx_force_unlock(mutex, pid);
    events_unlock(pid);

    ngx_shmtx_lock(mutex);
    ngx_shmtx_unlock(mutex);

#if (NGX_HAVE_POSIX_SEM)
    /* as a worker that comes does: see one_sleeps_uncounted() */

    (void) sem_post(&mutex->sem);
#endif
}


unit_case("an owner dies: the others take over")
{
    uint64_t    seed;
    ngx_pid_t   pids[PROCESSES], holder;
    ngx_uint_t  i, round;

    seed = unit_setting("UNIT_SEED", 1);

    for (round = 0; round < 10; round++) {

        shared->holding = 0;
        start_hammers(pids, &seed, 0);

        holder = unit_fork(hold, NULL);

        while (!shared->holding) {
            usleep(500);
        }

        usleep(2000);
        check_equal(shared->owner[0], holder);

        kill(holder, SIGKILL);
        bury(holder);

        /* the others notice it by themselves, and take over */

        for (i = 0; shared->owner[0] == (ngx_atomic_uint_t) holder; i++) {
            if (!check(i < 60000)) {
                break;
            }

            usleep(1000);
        }

        shared->stop = 1;

        for (i = 0; i < PROCESSES - 1; i++) {
            unit_wait(pids[i]);
        }

        zone_check(&zone);
    }

    check_equal(shared->torn, 0);
    check(shared->takeovers >= 10);
}


/* what one that died left; true: the zone was torn, and is made anew */

static ngx_uint_t
clean_up(void)
{
    uint64_t  fence;

    if (zone.shm.sh->inside == 0 && !zone.shm.sh->poisoned) {
        zone_check(&zone);
        return 0;
    }

    fence = zone.shm.sh->fence;

    /* its successor refuses it too */

    events_reset();
    check_equal(zone_init_process(&zone), NGX_OK);
    ngx_idempotency_workers_exit_process(&unit_cycle);
    check(zone.shm.sh->poisoned);

    zone_reload(&zone, &zone);

    events_reset();
    check_equal(zone_init_process(&zone), NGX_OK);
    ngx_idempotency_workers_exit_process(&unit_cycle);

    check_equal(zone.shm.sh->poisoned, 0);
    check(zone.shm.sh->fence > fence);
    zone_check_empty(&zone);

    ngx_memzero((void *) shared->owner, sizeof(shared->owner));

    return 1;
}


/* between operations, with a claim or without, and maybe inside of one */

unit_case("a process dies at any time")
{
    uint64_t    seed;
    ngx_pid_t   pids[PROCESSES];
    ngx_uint_t  i, round, torn, rounds;

    seed = unit_setting("UNIT_SEED", 1);
    rounds = unit_setting("UNIT_DEATHS", 60);
    torn = 0;

    for (round = 0; round < rounds; round++) {

        start_hammers(pids, &seed, 0);

        usleep(unit_below(&seed, 3000));
        kill(pids[0], SIGKILL);
        bury(pids[0]);
        usleep(1000);

        shared->stop = 1;

        for (i = 1; i < PROCESSES - 1; i++) {
            unit_wait(pids[i]);
        }

        torn += clean_up();
    }

    unit_note("died %u times, %u of them inside of the lock",
              (unsigned) rounds, (unsigned) torn);
}


/* half way through a change: all others notice it, and stop by themselves */

unit_case("a process dies inside of a change")
{
    uint64_t    seed;
    ngx_pid_t   pids[PROCESSES];
    ngx_uint_t  i, round, rounds;

    seed = unit_setting("UNIT_SEED", 1);
    rounds = unit_setting("UNIT_DEATHS", 20);

    for (round = 0; round < rounds; round++) {

        start_hammers(pids, &seed, 1 + unit_below(&seed, 300));

        bury(pids[0]);

        for (i = 1; i < PROCESSES - 1; i++) {
            unit_wait(pids[i]);
        }

        check(shared->torn > 0);
        check_equal(clean_up(), 1);
    }
}


#if (NGX_HAVE_POSIX_SEM)

static void
passes(void *data)
{
    ngx_shmtx_lock(&zone.shm.shpool->mutex);
    ngx_shmtx_unlock(&zone.shm.shpool->mutex);
}


static ngx_uint_t
sleeps(ngx_pid_t pid)
{
    char   path[64], state;
    FILE  *f;

    (void) sprintf(path, "/proc/%d/stat", (int) pid);

    f = fopen(path, "r");
    if (f == NULL) {
        return 0;
    }

    if (fscanf(f, "%*d %*s %c", &state) != 1) {
        state = '?';
    }

    (void) fclose(f);

    return state == 'S';
}


/* the count of one that sleeps went to another one, who was killed */

unit_case("one that sleeps in nobody's count is woken")
{
    ngx_pid_t     pid;
    ngx_shmtx_t  *mutex;

    mutex = &zone.shm.shpool->mutex;

    if (mutex->semaphore) {
        ngx_shmtx_lock(mutex);
        pid = unit_fork(passes, NULL);

        while (*mutex->wait != 1 || !sleeps(pid)) {
            usleep(500);
        }

        *mutex->wait = 0;
        ngx_shmtx_unlock(mutex);

        /* a worker that comes wakes it */

        events_reset();
        check_equal(zone_init_process(&zone), NGX_OK);
        ngx_idempotency_workers_exit_process(&unit_cycle);

        unit_wait(pid);
    }
}

#endif
