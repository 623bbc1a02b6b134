
/* The real table of workers, among real processes. */


#include "events.h"


#define MAILBOX  128
#define LEASE    500

/* for how long a silence must last once it was noticed */

#define SILENCE  300


/* what the processes of a case tell each other */

typedef struct {
    volatile ngx_uint_t        step;
    ngx_idempotency_worker_t   worker;
    ngx_uint_t                 has_slot;
    ngx_uint_t                 nkeys;
    ngx_uint_t                 all;
    uint64_t                   keys[1024];
} shared_t;


static shared_t  *shared;


void
unit_setup(void)
{
    events_start();
    shared = unit_shared(sizeof(shared_t) * NGX_IDEMPOTENCY_WORKERS * 2);
}


void
unit_teardown(void)
{
    unit_unshared(shared, sizeof(shared_t) * NGX_IDEMPOTENCY_WORKERS * 2);
}


static void
woken(uint64_t *key)
{
    if (key == NULL) {
        shared->all++;

    } else if (check(shared->nkeys < 1024)) {
        shared->keys[shared->nkeys++] = *key;
    }
}


/* until it is told to go on nobody can ask it */

static void
stop_it(ngx_pid_t pid)
{
    int  status;

    kill(pid, SIGSTOP);
    check_equal(waitpid(pid, &status, WUNTRACED), pid);
    check(WIFSTOPPED(status));
}


static ngx_uint_t
alive_at(ngx_idempotency_worker_t *worker, ngx_msec_t claimed, ngx_msec_t now)
{
    return ngx_idempotency_worker_alive(worker, claimed, LEASE, now);
}


/* a worker that stays until it is killed */

static void
stay(void *data)
{
    shared_t  *s;

    s = data;

    s->has_slot = events_become_worker(woken);
    s->worker = ngx_idempotency_worker_self();
    s->step = 1;

    for ( ;; ) {
        pause();
    }
}


unit_case("slots and epochs")
{
    ngx_pid_t                 pids[3];
    ngx_uint_t                i;
    ngx_idempotency_worker_t  first, me;

    for (i = 0; i < 3; i++) {
        pids[i] = unit_fork(stay, &shared[i]);
        unit_await(&shared[i].step, 1);
        check(shared[i].has_slot);
        check_equal(shared[i].worker.slot, i);
        check_equal(shared[i].worker.pid, pids[i]);
    }

    /* one that dies is dead at once, and its slot goes to the next */

    first = shared[1].worker;
    check(alive_at(&first, ngx_current_msec, ngx_current_msec));

    unit_kill(pids[1]);
    check(!alive_at(&first, ngx_current_msec, ngx_current_msec));

    check(events_become_worker(woken));
    me = ngx_idempotency_worker_self();
    check_equal(me.slot, 1);
    check_equal(me.pid, ngx_pid);
    check_equal(me.epoch, first.epoch + 1);

    check(!alive_at(&first, ngx_current_msec, ngx_current_msec));

    /* no lease counts for who can say so itself */

    check(alive_at(&me, 0, ngx_current_msec + 1000000));

    /* one that leaves gives its slot back */

    ngx_idempotency_workers_exit_process(&unit_cycle);
    check_equal(ngx_idempotency_worker_self().slot, NGX_IDEMPOTENCY_NO_WORKER);
    check(!alive_at(&me, ngx_current_msec, ngx_current_msec));

    ngx_idempotency_workers_exit_process(&unit_cycle);

    events_reload();

    /* another one with the very same pid, as after a restart */

    check(events_become_worker(woken));
    check(!alive_at(&me, ngx_current_msec, ngx_current_msec));
    ngx_idempotency_workers_exit_process(&unit_cycle);

    check(events_become_worker(woken));
    me = ngx_idempotency_worker_self();
    check_equal(me.slot, 1);
    check_equal(me.epoch, first.epoch + 3);

    ngx_idempotency_workers_exit_process(&unit_cycle);

    unit_kill(pids[0]);
    unit_kill(pids[2]);
}


unit_case("those of a set who live")
{
    ngx_pid_t                  pid;
    ngx_idempotency_workers_t  set;

    ngx_memzero(&set, sizeof(ngx_idempotency_workers_t));

    pid = unit_fork(stay, shared);
    unit_await(&shared->step, 1);
    check_equal(shared->worker.slot, 0);

    check(events_become_worker(woken));
    check_equal(ngx_idempotency_worker_self().slot, 1);

    ngx_idempotency_workers_member(&set, 1);
    check_equal(set.bits[0], 2);
    check(!ngx_idempotency_workers_others(&set, 0));

    /* a slot that nobody has is nobody, and one behind is not lower */

    set.bits[0] |= 4;
    check(!ngx_idempotency_workers_others(&set, 0));

    set.bits[0] |= 1;
    check(ngx_idempotency_workers_others(&set, 0));
    check(ngx_idempotency_workers_others(&set, 1));

    unit_kill(pid);
    check(!ngx_idempotency_workers_others(&set, 0));

    ngx_idempotency_workers_member(&set, 0);
    check_equal(set.bits[0], 5);

    ngx_idempotency_workers_exit_process(&unit_cycle);
}


/*
 * There, but silent: its lease runs from its last sign of life.  Then the
 * silence must go on: all may have been stopped, and who asks wakes first.
 */

unit_case("a stopped worker has its lease")
{
    ngx_msec_t                 now;
    ngx_pid_t                  pid;
    ngx_idempotency_worker_t  *worker;

    now = ngx_current_msec;

    pid = unit_fork(stay, shared);
    unit_await(&shared->step, 1);
    worker = &shared->worker;

    stop_it(pid);

    check(alive_at(worker, now - 1000, now + LEASE - 1));
    check(alive_at(worker, now - 1000, now + 100000));
    check(alive_at(worker, now - 1000, now + 100000 + SILENCE - 1));
    check(!alive_at(worker, now - 1000, now + 100000 + SILENCE));
    check(!alive_at(worker, now - 1000, now + 200000));

    /* what it claims later is a sign of life */

    now += 300000;

    check(alive_at(worker, now, now + LEASE - 1));
    check(alive_at(worker, now, now + LEASE));
    check(!alive_at(worker, now, now + LEASE + SILENCE));

    unit_kill(pid);
    check(!alive_at(worker, now, now));
}


/* busy, asleep, or in a system call that takes its time: it is there */

static void
spin(void *data)
{
    shared_t             *s;
    volatile ngx_uint_t   n;

    s = data;

    check(events_become_worker(woken));
    s->worker = ngx_idempotency_worker_self();
    s->step = 1;

    for (n = 0; s->step < 2; n++) { /* void */ }

    pause();
}


unit_case("a busy worker keeps its claims")
{
    ngx_pid_t                  pid;
    ngx_msec_t                 now;
    ngx_uint_t                 i;
    ngx_idempotency_worker_t  *worker;

    now = ngx_current_msec;

    pid = unit_fork(spin, shared);
    unit_await(&shared->step, 1);
    worker = &shared->worker;

    for (i = 1; i <= 2; i++) {
        now += 1000000;
        check(alive_at(worker, now, now + LEASE));
        check(alive_at(worker, now, now + LEASE + SILENCE));
        check(alive_at(worker, now, now + 1000 * LEASE));
        check(alive_at(worker, now, now + 2000 * LEASE));

        shared->step = 2;
    }

    /* once it is stopped, the lease runs from where it was last seen */

    now += 2000 * LEASE;
    check(alive_at(worker, now, now + LEASE));
    stop_it(pid);
    check(alive_at(worker, now, now + 2 * LEASE - 1));
    check(alive_at(worker, now, now + 2 * LEASE));
    check(alive_at(worker, now, now + 2 * LEASE + SILENCE - 1));
    check(!alive_at(worker, now, now + 2 * LEASE + SILENCE));

    /* and it may go on */

    kill(pid, SIGCONT);
    now += 3 * LEASE;

    for (i = 0; i < 60000 && !alive_at(worker, now, now + 100 * LEASE); i++) {
        usleep(1000);
        now += 100 * LEASE;
    }

    check(alive_at(worker, now, now + 200 * LEASE));

    /* a zombie is dead, as soon as anybody looks */

    kill(pid, SIGKILL);

    for (i = 0; i < 60000 && alive_at(worker, now, now + 300 * LEASE); i++) {
        usleep(1000);
        now += 300 * LEASE;
    }

    check(!alive_at(worker, now, now + 300 * LEASE));
    unit_kill(pid);
    check(!alive_at(worker, now, now));
}


/* in the words of proc(5) */

static uint64_t
started(ngx_pid_t pid)
{
    char                 path[64], line[1024], *p;
    FILE                *f;
    unsigned long long   since;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int) pid);
    since = 0;
    f = fopen(path, "r");

    if (check(f != NULL) && check(fgets(line, sizeof(line), f) != NULL)) {
        p = strrchr(line, ')');
        check_equal(sscanf(p + 1, " %*c %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                                  "%*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
                           &since), 1);
        fclose(f);
    }

    return since;
}


/* the pid of one that died may be another's by now: when it began tells */

unit_case("a pid that another process has")
{
    uint64_t                   since;
    ngx_pid_t                  pid;
    ngx_msec_t                 now;
    ngx_idempotency_worker_t  *worker;

    now = ngx_current_msec;

    pid = unit_fork(stay, shared);
    unit_await(&shared->step, 1);
    worker = &shared->worker;

    check(alive_at(worker, now, now + 100 * LEASE));

    since = started(pid);
    events_replace(since, since - 1);
    check(!alive_at(worker, now, now + 200 * LEASE));

    events_replace(since - 1, since);
    check(alive_at(worker, now, now + 200 * LEASE));

    /* where the system told nothing: as if it were stopped */

    events_replace(since, 0);
    now += 200 * LEASE;
    check(alive_at(worker, now, now + LEASE));
    check(alive_at(worker, now, now + LEASE + SILENCE - 1));
    check(!alive_at(worker, now, now + LEASE + SILENCE));

    unit_kill(pid);
}


static void
take_a_slot_twice(void *data)
{
    shared_t  *s;

    s = data;

    check(events_become_worker(woken));
    s->worker = ngx_idempotency_worker_self();
    ngx_idempotency_workers_exit_process(&unit_cycle);

    check(events_become_worker(woken));
    s[1].worker = ngx_idempotency_worker_self();
    s->step = 1;

    pause();
}


unit_case("an epoch tells one holder of a slot from the next")
{
    ngx_pid_t   pid;
    ngx_msec_t  now;

    now = ngx_current_msec;

    pid = unit_fork(take_a_slot_twice, shared);
    unit_await(&shared->step, 1);

    check_equal(shared[0].worker.pid, shared[1].worker.pid);
    check_equal(shared[0].worker.slot, shared[1].worker.slot);
    check(!alive_at(&shared[0].worker, now, now));
    check(alive_at(&shared[1].worker, now, now));

    unit_kill(pid);
}


/* one that this user may not signal is there all the same */

static void
ask_as_another(void *data)
{
    shared_t  *s;

    s = data;

    check_equal(setuid(65534), 0);
    check_equal(kill(s->worker.pid, 0), -1);
    check_equal(ngx_errno, EPERM);

    check(alive_at(&s->worker, ngx_current_msec, ngx_current_msec));
    check(alive_at(&s->worker, ngx_current_msec,
                   ngx_current_msec + 100 * LEASE));
}


unit_case("a worker of another user")
{
    ngx_pid_t  pid;

    pid = unit_fork(stay, shared);
    unit_await(&shared->step, 1);

    if (check(shared->has_slot) && getuid() == 0) {
        unit_wait(unit_fork(ask_as_another, shared));

    } else {
        unit_note("not as root: nobody is another user");
    }

    unit_kill(pid);
}


/*
 * A claim is seen by others before its owner gives its first sign of life,
 * which may be long ago for one that had nothing to do.
 */

unit_case("an idle worker lives when it claims")
{
    ngx_msec_t                 now;
    ngx_pid_t                  pid;
    ngx_idempotency_worker_t  *worker;

    pid = unit_fork(stay, shared);
    unit_await(&shared->step, 1);
    worker = &shared->worker;
    stop_it(pid);

    now = ngx_current_msec + 3600 * 1000;

    check(alive_at(worker, now, now));
    check(alive_at(worker, now, now + LEASE - 1));

    /* another clock may be behind */

    check(alive_at(worker, now, now - 10));

    check(alive_at(worker, now, now + LEASE));
    check(!alive_at(worker, now, now + LEASE + SILENCE));

    unit_kill(pid);
}


static void
own_until_told(void *data)
{
    shared_t    *s;
    ngx_msec_t   start;

    s = data;

    check(events_become_worker(woken));
    s->worker = ngx_idempotency_worker_self();
    start = ngx_current_msec;

    check(events_timer() == NULL);

    ngx_idempotency_worker_owns(1, start);
    ngx_idempotency_worker_owns(1, start);

    /* one timer for all claims, cancelable: it must not keep a worker */

    if (check(events_timer() != NULL)) {
        check(events_timer()->cancelable);
        check((ngx_msec_int_t) (events_timer()->timer.key - start) > 0);
        check((ngx_msec_int_t) (events_timer()->timer.key - start) < 500);
    }

    s->step = 1;
    unit_await(&s->step, 2);

    /* a sign */

    ngx_current_msec = start + 1000;
    events_run_timer();
    s->step = 3;
    unit_await(&s->step, 4);

    /* as long as it owns one */

    ngx_idempotency_worker_owns(-1, start + 1000);
    ngx_current_msec = start + 2000;
    events_run_timer();
    check(events_timer() != NULL);
    s->step = 5;
    unit_await(&s->step, 6);

    ngx_idempotency_worker_owns(-1, start + 3000);
    ngx_current_msec = start + 3000;
    events_run_timer();
    check(events_timer() == NULL);

    ngx_idempotency_worker_owns(1, start + 3000);
    check(events_timer() != NULL);
    ngx_idempotency_worker_owns(-1, start + 3000);

    ngx_idempotency_workers_exit_process(&unit_cycle);
}


unit_case("signs of life")
{
    ngx_pid_t                  pid;
    ngx_msec_t                 start_time;
    ngx_idempotency_worker_t  *worker;

    start_time = ngx_current_msec;

    pid = unit_fork(own_until_told, shared);
    worker = &shared->worker;

    unit_await(&shared->step, 1);
    stop_it(pid);
    check(alive_at(worker, start_time, start_time + LEASE - 1));
    check(alive_at(worker, start_time, start_time + LEASE));
    check(!alive_at(worker, start_time, start_time + LEASE + SILENCE));
    kill(pid, SIGCONT);

    shared->step = 2;
    unit_await(&shared->step, 3);
    stop_it(pid);
    check(alive_at(worker, start_time, start_time + 1000 + LEASE - 1));
    check(alive_at(worker, start_time, start_time + 1000 + LEASE));
    check(!alive_at(worker, start_time, start_time + 1000 + LEASE + SILENCE));
    kill(pid, SIGCONT);

    shared->step = 4;
    unit_await(&shared->step, 5);
    check(alive_at(worker, start_time, start_time + 2000 + LEASE - 1));

    shared->step = 6;
    unit_wait(pid);
    check(!alive_at(worker, start_time, start_time));
}


static void
set_of(ngx_idempotency_workers_t *set, ngx_int_t one, ngx_int_t two)
{
    ngx_memzero(set, sizeof(ngx_idempotency_workers_t));

    if (one >= 0) {
        set->bits[one / 64] |= (uint64_t) 1 << (one % 64);
    }

    if (two >= 0) {
        set->bits[two / 64] |= (uint64_t) 1 << (two % 64);
    }
}


unit_case("the mailbox, full and overflown")
{
    ngx_uint_t                 i, n;
    ngx_idempotency_workers_t  self, nobody, other;

    static const ngx_uint_t    counts[] = { 1, 2, MAILBOX - 1, MAILBOX,
                                            MAILBOX + 1, 3 * MAILBOX, 1 };

    check(events_become_worker(woken));

    set_of(&self, ngx_idempotency_worker_self().slot, -1);
    set_of(&nobody, -1, -1);
    set_of(&other, 5, 127);

    ngx_idempotency_workers_wake(&nobody, 1);
    ngx_idempotency_workers_wake(&other, 2);
    check(!events_read(0));

    for (n = 0; n < sizeof(counts) / sizeof(counts[0]); n++) {

        shared->nkeys = 0;
        shared->all = 0;

        for (i = 0; i < counts[n]; i++) {
            ngx_idempotency_workers_wake(&self, 1000 + i);
        }

        /* all of them with one event, in their order, or as "who knows" */

        check(events_read(0));
        check(!events_read(0));

        if (counts[n] > MAILBOX) {
            check_equal(shared->all, 1);
            check_equal(shared->nkeys, 0);
            continue;
        }

        check_equal(shared->all, 0);
        check_equal(shared->nkeys, counts[n]);

        for (i = 0; i < counts[n]; i++) {
            check_equal(shared->keys[i], 1000 + i);
        }
    }

    /* what was meant for the slot's last holder doesn't reach the next */

    ngx_idempotency_workers_wake(&self, 7);
    ngx_idempotency_workers_exit_process(&unit_cycle);

    shared->nkeys = 0;
    check(events_become_worker(woken));
    events_read(0);
    check_equal(shared->nkeys, 0);

    ngx_idempotency_workers_exit_process(&unit_cycle);
}


/* a handler that wakes its own worker is not called from within itself */

static ngx_uint_t  nested;

static void
wake_again(uint64_t *key)
{
    ngx_idempotency_workers_t  self;

    nested++;
    check_equal(nested, 1);

    if (key && *key < 3) {
        set_of(&self, ngx_idempotency_worker_self().slot, -1);
        ngx_idempotency_workers_wake(&self, *key + 1);
    }

    shared->nkeys++;
    nested--;
}


unit_case("waking oneself")
{
    ngx_uint_t                 i;
    ngx_idempotency_workers_t  self;

    check(events_become_worker(wake_again));
    set_of(&self, ngx_idempotency_worker_self().slot, -1);

    ngx_idempotency_workers_wake(&self, 1);

    for (i = 1; i <= 3; i++) {
        check(events_read(0));
        check_equal(shared->nkeys, i);
    }

    check(!events_read(0));

    ngx_idempotency_workers_exit_process(&unit_cycle);
}


static void
wait_for_keys(void *data)
{
    ngx_event_t  *poll;

    shared = data;

    shared->has_slot = events_become_worker(woken);
    shared->worker = ngx_idempotency_worker_self();
    shared->step = 1;

    if (!shared->has_slot) {
        check(unit_logged("more than 128 workers"));

        /* it may own as well; as it owns nothing, it looks for a slot */

        poll = events_timer();
        check(poll && poll->cancelable);

        ngx_idempotency_worker_owns(1, ngx_current_msec);
        check(events_timer() == poll);
        ngx_idempotency_worker_owns(-1, ngx_current_msec);

        /* nobody calls it: it looks for itself, again and again */

        events_run_timer();
        check_equal(shared->all, 1);
        check(events_timer() == poll);
        check_equal(ngx_idempotency_worker_self().slot,
                    NGX_IDEMPOTENCY_NO_WORKER);
    }

    while (shared->has_slot && shared->nkeys < 2 && shared->all == 0) {
        if (!check(events_read(60000))) {
            break;
        }
    }

    shared->step = 2;
    unit_await(&shared->step, 3);
}


/* as many workers as there are slots, and one more; all reach each other */

unit_case("a full table, all woken")
{
    ngx_pid_t                  pids[NGX_IDEMPOTENCY_WORKERS + 1];
    ngx_uint_t                 i, n;
    ngx_idempotency_workers_t  set;

    n = NGX_IDEMPOTENCY_WORKERS;

    for (i = 0; i <= n; i++) {
        pids[i] = unit_fork(wait_for_keys, &shared[i]);
        unit_await(&shared[i].step, 1);
        check_equal(shared[i].has_slot, i < n);
        check_equal(shared[i].worker.slot,
                    i < n ? i : NGX_IDEMPOTENCY_NO_WORKER);
    }

    /* each of them by a set of its own, then all by one */

    for (i = 0; i < n; i++) {
        set_of(&set, i, -1);
        ngx_idempotency_workers_wake(&set, 5000 + i);
    }

    ngx_memset(&set, 0xff, sizeof(set));
    ngx_idempotency_workers_wake(&set, 9000);

    for (i = 0; i < n; i++) {
        unit_await(&shared[i].step, 2);
        check_equal(shared[i].all, 0);
        check_equal(shared[i].nkeys, 2);
        check_equal(shared[i].keys[0], 5000 + i);
        check_equal(shared[i].keys[1], 9000);
    }

    /* one without a slot is alive as long as it is there */

    check(alive_at(&shared[n].worker, 0, ngx_current_msec + 1000000));

    for (i = 0; i <= n; i++) {
        shared[i].step = 3;
        unit_wait(pids[i]);
    }

    check(!alive_at(&shared[n].worker, ngx_current_msec, ngx_current_msec));
}


static void
look_for_a_slot(void *data)
{
    ngx_idempotency_workers_t  set;

    shared = data;

    check(!events_become_worker(woken));
    check(unit_logged("more than 128 workers"));

    shared->step = 1;
    unit_await(&shared->step, 2);

    /* not while something is owned by who has none */

    ngx_idempotency_worker_owns(1, ngx_current_msec);
    ngx_idempotency_worker_owns(1, ngx_current_msec);
    ngx_idempotency_worker_owns(-1, ngx_current_msec);
    check_equal(ngx_idempotency_worker_self().slot,
                NGX_IDEMPOTENCY_NO_WORKER);

    ngx_idempotency_worker_owns(-1, ngx_current_msec);
    check_equal(ngx_idempotency_worker_self().slot, 77);

    set_of(&set, 77, -1);
    ngx_idempotency_workers_wake(&set, 5);
    check(events_read(60000));
    check_equal(shared->nkeys, 1);
}


unit_case("a slot that becomes free is taken")
{
    ngx_pid_t   pids[NGX_IDEMPOTENCY_WORKERS + 1];
    ngx_uint_t  i, n;

    n = NGX_IDEMPOTENCY_WORKERS;

    for (i = 0; i <= n; i++) {
        pids[i] = unit_fork(i < n ? stay : look_for_a_slot, &shared[i]);
        unit_await(&shared[i].step, 1);
    }

    unit_kill(pids[77]);

    shared[n].step = 2;
    unit_wait(pids[n]);

    for (i = 0; i < n; i++) {
        if (i != 77) {
            unit_kill(pids[i]);
        }
    }
}


/* whatever reads or writes the table waits for its lock */

static void
touch_the_table(void *data)
{
    ngx_idempotency_workers_t  set;

    shared = data;

    unit_await(&shared->step, 1);
    check(events_become_worker(woken));
    shared->step = 2;

    unit_await(&shared->step, 3);
    set_of(&set, 0, 127);
    ngx_idempotency_workers_wake(&set, 1);
    shared->step = 4;

    unit_await(&shared->step, 5);
    check(events_read(60000));
    shared->step = 6;

    unit_await(&shared->step, 7);
    ngx_idempotency_workers_exit_process(&unit_cycle);
    shared->step = 8;
}


unit_case("the table is touched under its lock only")
{
    ngx_pid_t   pid;
    ngx_uint_t  i;

    pid = unit_fork(touch_the_table, shared);

    for (i = 1; i <= 7; i += 2) {
        events_lock();
        shared->step = i;

        while (!events_awaited() && shared->step == i) {
            ngx_sched_yield();
        }

        check_equal(shared->step, i);
        events_give_back();

        unit_await(&shared->step, i + 1);
    }

    check_equal(shared->nkeys, 1);

    unit_wait(pid);
}
