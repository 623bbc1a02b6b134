
/*
 * Who lives, by the locks of real processes, which end at any point; and
 * whoever claims without asking is alone, with everybody else knowing it.
 */


#include "unit.h"

#include <sys/wait.h>

#include "store/file/ngx_idempotency_owners.h"


#define INSTANCES  4
#define STORE      ((uint64_t) 1700000000 << NGX_IDEMPOTENCY_OWNERS_STORE_SHIFT)


/* what an instance does, by its own account */

enum {
    NOTHING = 0,
    WAITS,
    ASKS,
    ALONE
};


typedef struct {
    ngx_atomic_t           number;
    volatile ngx_uint_t    stop;

    volatile ngx_uint_t    step[INSTANCES];
    volatile ngx_uint_t    does[INSTANCES];

    ngx_atomic_t           alone;
    ngx_atomic_t           asked;
    ngx_atomic_t           waited;
    ngx_atomic_t           both;
} shared_t;


typedef struct {
    ngx_uint_t             id;
    uint64_t               seed;
    int                    fd;
    /* looks for "alone" before it shows itself: the mistake that a newcomer
       could make */
    ngx_uint_t             looks_first;
} process_t;


static char        dir[32];
static char        path[64];
static shared_t   *shared;
static uint64_t   *dawdles;
static process_t   processes[INSTANCES];


/* a process that dawdles lets others in between any two of its locks */

int __real_fcntl64(int fd, int cmd, ...);
int __wrap_fcntl64(int fd, int cmd, void *arg);
int __wrap_fcntl(int fd, int cmd, void *arg);


int
__wrap_fcntl64(int fd, int cmd, void *arg)
{
    int        rc;
    ngx_err_t  err;

    rc = __real_fcntl64(fd, cmd, arg);

    if (dawdles) {
        err = ngx_errno;
        usleep(unit_below(dawdles, 300));
        ngx_set_errno(err);
    }

    return rc;
}


int
__wrap_fcntl(int fd, int cmd, void *arg)
{
    return __wrap_fcntl64(fd, cmd, arg);
}


static void
start(void)
{
    char  name[] = "/tmp/owners.XXXXXX";

    check(mkdtemp(name) != NULL);

    strcpy(dir, name);
    snprintf(path, sizeof(path), "%s/store", dir);

    shared = unit_shared(sizeof(shared_t));
    shared->number = STORE;
    ngx_memzero(processes, sizeof(processes));
}


static void
stop(void)
{
    char  name[160];

    snprintf(name, sizeof(name), "%s-owners", path);
    (void) unlink(name);

    check_equal(rmdir(dir), 0);
    unit_unshared(shared, sizeof(shared_t));
}


static void
await(volatile ngx_uint_t *step, ngx_uint_t value)
{
    ngx_uint_t  i;

    for (i = 0; i < 60000; i++) {
        if (*step >= value) {
            return;
        }

        usleep(1000);
    }

    check(!"another process goes on");
}


static void
kill_and_reap(ngx_pid_t pid)
{
    int  status;

    kill(pid, SIGKILL);
    check_equal(waitpid(pid, &status, 0), pid);
}


static int
opened(void)
{
    int  fd;

    fd = ngx_idempotency_owners_open(path, 1);
    check(fd != -1);

    return fd;
}


static void
the_file(void)
{
    int          fd, again;
    char         name[160], other[160];
    struct stat  st;

    start();

    snprintf(name, sizeof(name), "%s-owners", path);
    snprintf(other, sizeof(other), "%s-others", path);

    check_equal(ngx_idempotency_owners_open(path, 0), -1);
    check_equal(ngx_errno, NGX_ENOENT);

    fd = opened();

    check_equal(stat(name, &st), 0);
    check_equal(st.st_mode & 07777, 0600);
    check_equal(st.st_size, 0);

    check_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);

    again = ngx_idempotency_owners_open(path, 0);
    check(again != -1);
    close(again);

    /* it is another one that has its name now, or none */

    check(ngx_idempotency_owners_kept(fd, path));
    check_equal(rename(name, other), 0);
    check(!ngx_idempotency_owners_kept(fd, path));

    again = opened();
    check(ngx_idempotency_owners_kept(again, path));
    check(!ngx_idempotency_owners_kept(fd, path));
    close(again);

    /* no way to anything else */

    check_equal(unlink(name), 0);
    check_equal(symlink(other, name), 0);
    check_equal(ngx_idempotency_owners_open(path, 1), -1);
    check_equal(ngx_errno, NGX_ELOOP);

    check_equal(unlink(name), 0);
    check_equal(mkfifo(name, 0600), 0);
    check_equal(ngx_idempotency_owners_open(path, 1), -1);
    check_equal(ngx_errno, NGX_EINVAL);

    check_equal(unlink(name), 0);
    check_equal(mkdir(name, 0700), 0);
    check_equal(ngx_idempotency_owners_open(path, 1), -1);
    check_equal(rmdir(name), 0);

    close(fd);
    check_equal(unlink(other), 0);

    stop();
}


static void
long_paths(void)
{
    char  name[NGX_IDEMPOTENCY_FILE_PATH + 2];

    start();

    ngx_memset(name, '/', sizeof(name));
    strcpy(name + sizeof(name) - 1 - strlen(path), path);

    check_equal(strlen(name), NGX_IDEMPOTENCY_FILE_PATH + 1);
    check_equal(ngx_idempotency_owners_open(name, 1), -1);
    check_equal(ngx_errno, NGX_ENAMETOOLONG);

    close(ngx_idempotency_owners_open(name + 1, 1));

    check_equal(ngx_idempotency_owners_kept(1, name + 1), 0);

    stop();
}


static void
numbers(void)
{
    int       a, b, c;
    uint64_t  other;

    start();

    a = opened();
    b = opened();
    c = opened();

    check(!ngx_idempotency_owners_alive(b, STORE + 1));

    check_equal(ngx_idempotency_owners_hold(a, STORE + 1), NGX_OK);

    /* its own is not seen, whatever is asked; that of another is */

    check(!ngx_idempotency_owners_alive(a, STORE + 1));
    check(ngx_idempotency_owners_alive(b, STORE + 1));
    check(!ngx_idempotency_owners_alive(b, STORE));
    check(!ngx_idempotency_owners_alive(b, STORE + 2));

    check_equal(ngx_idempotency_owners_hold(b, STORE + 1), NGX_BUSY);
    check_equal(ngx_idempotency_owners_hold(a, STORE + 1), NGX_OK);

    /* who is one's own need not have been locked by this open file */

    check(!ngx_idempotency_owners_others(a, STORE + 1));
    check(!ngx_idempotency_owners_others(b, STORE + 1));
    check(ngx_idempotency_owners_others(b, STORE));
    check(ngx_idempotency_owners_others(b, STORE + 2));
    check(ngx_idempotency_owners_others(b, 0));

    check_equal(ngx_idempotency_owners_hold(b, STORE + 2), NGX_OK);
    check(ngx_idempotency_owners_others(a, STORE + 1));
    check(ngx_idempotency_owners_others(b, STORE + 2));

    /* those of one store know each other */

    check(!ngx_idempotency_owners_strangers(c, STORE + 3));

    other = (uint64_t) 1 << NGX_IDEMPOTENCY_OWNERS_STORE_SHIFT;

    check(ngx_idempotency_owners_strangers(c, STORE + other));
    check(ngx_idempotency_owners_strangers(c, STORE - 1));
    check(ngx_idempotency_owners_strangers(c, 0));
    check(!ngx_idempotency_owners_strangers(c, STORE + other - 1));

    close(a);
    close(b);

    check(!ngx_idempotency_owners_alive(c, STORE + 1));
    check(!ngx_idempotency_owners_others(c, 0));

    close(c);

    /* no file, nobody to be seen: then there may be anybody */

    check(ngx_idempotency_owners_alive(c, STORE + 1));
    check(ngx_idempotency_owners_others(c, STORE));
    check(ngx_idempotency_owners_strangers(c, STORE));
    check(!ngx_idempotency_owners_may_claim(c));
    check_equal(ngx_idempotency_owners_hold(c, STORE), NGX_ERROR);
    check_equal(ngx_idempotency_owners_take_alone(c, STORE), NGX_BUSY);
    check_equal(ngx_idempotency_owners_commit_lock(c), NGX_ERROR);

    stop();
}


static void
being_alone(void)
{
    int  a, b;

    start();

    a = opened();
    b = opened();

    check_equal(ngx_idempotency_owners_hold(a, STORE + 1), NGX_OK);
    check(ngx_idempotency_owners_may_claim(a));

    check_equal(ngx_idempotency_owners_take_alone(a, STORE + 1), NGX_OK);
    check_equal(ngx_idempotency_owners_take_alone(a, STORE + 1), NGX_OK);

    check(ngx_idempotency_owners_may_claim(a));

    /* a newcomer */

    check_equal(ngx_idempotency_owners_hold(b, STORE + 2), NGX_OK);
    check(!ngx_idempotency_owners_may_claim(b));
    check_equal(ngx_idempotency_owners_take_alone(b, STORE + 2), NGX_BUSY);

    check(ngx_idempotency_owners_others(a, STORE + 1));
    check(!ngx_idempotency_owners_may_claim(b));

    ngx_idempotency_owners_give_alone(a);
    check(ngx_idempotency_owners_may_claim(b));

    /* now both ask; a failed attempt leaves nothing behind */

    check_equal(ngx_idempotency_owners_take_alone(a, STORE + 1), NGX_BUSY);
    check_equal(ngx_idempotency_owners_take_alone(b, STORE + 2), NGX_BUSY);
    check(ngx_idempotency_owners_may_claim(a));
    check(ngx_idempotency_owners_may_claim(b));

    close(a);
    check_equal(ngx_idempotency_owners_take_alone(b, STORE + 2), NGX_OK);

    close(b);

    stop();
}


/* it has what its parent held */

static void
inherits(void *data)
{
    process_t  *p;

    p = data;

    shared->step[p->id] = 1;

    for ( ;; ) {
        pause();
    }
}


static void
holds(void *data)
{
    int        fd;
    ngx_pid_t  pid;

    fd = opened();
    check_equal(ngx_idempotency_owners_hold(fd, STORE + 1), NGX_OK);
    check_equal(ngx_idempotency_owners_take_alone(fd, STORE + 1), NGX_OK);

    /* a worker, which is an orphan when this has gone */

    pid = fork();

    if (pid == 0) {
        inherits(&processes[1]);
    }

    shared->number = pid;
    inherits(&processes[0]);
}


static void
to_the_last(void)
{
    int        fd;
    ngx_pid_t  master, worker;
    ngx_uint_t i;

    start();

    processes[1].id = 1;
    fd = opened();

#if (NGX_HAVE_PR_SET_DUMPABLE)
    /* the orphan is ours then, and can be waited for */
    check_equal(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
#endif

    for (i = 0; i < 200; i++) {

        shared->step[0] = 0;
        shared->step[1] = 0;

        master = unit_fork(holds, NULL);
        await(&shared->step[0], 1);
        await(&shared->step[1], 1);
        worker = shared->number;

        check(ngx_idempotency_owners_alive(fd, STORE + 1));
        check(!ngx_idempotency_owners_may_claim(fd));

        if (i % 2) {
            kill_and_reap(master);

        } else {
            kill(worker, SIGKILL);
        }

        check(ngx_idempotency_owners_alive(fd, STORE + 1));
        check(!ngx_idempotency_owners_may_claim(fd));

        if (i % 2 == 0) {
            kill_and_reap(master);
        }

        /* and free at once */

        kill_and_reap(worker);

        check(!ngx_idempotency_owners_alive(fd, STORE + 1));
        check(!ngx_idempotency_owners_others(fd, STORE));

        if (!check(ngx_idempotency_owners_may_claim(fd))) {
            break;
        }
    }

    close(fd);

    stop();
}


/* as a binary upgrade does: another program in the same process */

static void
becomes_another(void *data)
{
    int   fd;
    int  *ends = data;

    fd = opened();
    check_equal(ngx_idempotency_owners_hold(fd, STORE + 1), NGX_OK);

    shared->step[0] = 1;

    dup2(ends[0], 0);
    dup2(ends[1], 1);

    execl("/bin/sh", "sh", "-c", "echo; read x", NULL);
}


static void
over_exec(void)
{
    int        fd, to[2], from[2], ends[2];
    char       c;
    ngx_pid_t  pid;

    start();

    fd = opened();

    check_equal(pipe(to), 0);
    check_equal(pipe(from), 0);

    ends[0] = to[0];
    ends[1] = from[1];

    pid = unit_fork(becomes_another, ends);

    check_equal(read(from[0], &c, 1), 1);
    check_equal(shared->step[0], 1);
    check_equal(kill(pid, 0), 0);
    check(!ngx_idempotency_owners_alive(fd, STORE + 1));

    kill_and_reap(pid);

    close(to[0]);
    close(to[1]);
    close(from[0]);
    close(from[1]);
    close(fd);

    stop();
}


static void
commits(void *data)
{
    process_t  *p = data;

    int         fd;

    fd = ngx_idempotency_owners_open(path, 0);

    while (!shared->stop) {
        if (!check_equal(ngx_idempotency_owners_commit_lock(fd), NGX_OK)) {
            return;
        }

        /* nobody else is here: what is read is what was written */

        shared->step[p->id]++;
        shared->does[0]++;

        ngx_idempotency_owners_commit_unlock(fd);
    }
}


/* they queue, and who dies with the lock leaves it to the next */

static void
one_commits(void)
{
    int         fd, status;
    ngx_pid_t   pids[INSTANCES], stopped;
    ngx_uint_t  i, n, sum;

    start();

    fd = opened();

    for (i = 0; i < INSTANCES; i++) {
        processes[i].id = i;
        pids[i] = unit_fork(commits, &processes[i]);
    }

    for (i = 0; i < INSTANCES; i++) {
        await(&shared->step[i], 200);
    }

    /* stopped while it has the lock, which is so at some time */

    for ( ;; ) {
        stopped = pids[0];

        kill(stopped, SIGSTOP);
        check_equal(waitpid(stopped, &status, WUNTRACED), stopped);

        n = shared->does[0];
        usleep(2000);

        if (n == shared->does[0]) {
            usleep(50000);

            if (n == shared->does[0]) {
                break;
            }
        }

        kill(stopped, SIGCONT);
        usleep(100);
    }

    kill_and_reap(stopped);

    n = shared->step[1];
    await(&shared->step[1], n + 10);

    shared->stop = 1;

    for (i = 1; i < INSTANCES; i++) {
        unit_wait(pids[i]);
    }

    /* the one that was killed may have been between the two */

    sum = 0;

    for (i = 0; i < INSTANCES; i++) {
        sum += shared->step[i];
    }

    check(sum == shared->does[0] || sum == shared->does[0] + 1);

    check_equal(ngx_idempotency_owners_commit_lock(fd), NGX_OK);
    close(fd);

    stop();
}


/*
 * One that claims alone and another that claims by asking, both at a time: the
 * first knows nothing of the second, which executes what he has claimed.
 */

static void
together(void)
{
    ngx_uint_t  i, alone, asking;

    alone = 0;
    asking = 0;

    for (i = 0; i < INSTANCES; i++) {
        alone += (shared->does[i] == ALONE);
        asking += (shared->does[i] == ASKS);
    }

    if (alone > 1 || (alone && asking)) {
        ngx_atomic_fetch_add(&shared->both, 1);
    }
}


static void
does(process_t *p, ngx_uint_t what)
{
    ngx_uint_t  i, n;

    shared->does[p->id] = what;
    ngx_memory_barrier();

    n = unit_below(&p->seed, 4);

    for (i = 0; i <= n; i++) {
        together();
        usleep(unit_below(&p->seed, 200));
    }

    together();

    ngx_memory_barrier();
    shared->does[p->id] = NOTHING;
}


/* may this one claim now?  If not, it waits for him who is alone */

static ngx_uint_t
comes_in(process_t *p, uint64_t number)
{
    ngx_uint_t  may;

    if (p->looks_first) {
        may = ngx_idempotency_owners_may_claim(p->fd);
        check_equal(ngx_idempotency_owners_hold(p->fd, number), NGX_OK);

        return may;
    }

    check_equal(ngx_idempotency_owners_hold(p->fd, number), NGX_OK);

    return ngx_idempotency_owners_may_claim(p->fd);
}


static void
lives(process_t *p)
{
    uint64_t    number;
    ngx_uint_t  n;

    number = ngx_atomic_fetch_add(&shared->number, 1) + 1;

    p->fd = opened();

    if (!comes_in(p, number)) {
        ngx_atomic_fetch_add(&shared->waited, 1);
        shared->does[p->id] = WAITS;

        while (!ngx_idempotency_owners_may_claim(p->fd)) {
            usleep(unit_below(&p->seed, 100));
        }
    }

    for (n = unit_below(&p->seed, 4); n; n--) {

        if (ngx_idempotency_owners_take_alone(p->fd, number) == NGX_OK) {
            ngx_atomic_fetch_add(&shared->alone, 1);

            do {
                does(p, ALONE);
            } while (!ngx_idempotency_owners_others(p->fd, number)
                     && unit_below(&p->seed, 50));

            ngx_idempotency_owners_give_alone(p->fd);

        } else {
            ngx_atomic_fetch_add(&shared->asked, 1);
            does(p, ASKS);
        }
    }

    close(p->fd);
}


static void
lives_again(void *data)
{
    process_t  *p = data;

    dawdles = &p->seed;

    while (!shared->stop) {
        lives(p);
        usleep(unit_below(&p->seed, 10000));
    }
}


/*
 * Instances come, claim, and go, each under a number of its own; some are
 * stopped for a while, some killed.  Of the dead nobody thinks that they claim.
 */

static void
instances(ngx_uint_t deaths, ngx_uint_t looks_first)
{
    int         status;
    uint64_t    seed;
    ngx_pid_t   pids[INSTANCES];
    ngx_uint_t  i, n;

    seed = unit_setting("UNIT_SEED", getpid());
    unit_note("UNIT_SEED=%llu", (unsigned long long) seed);

    for (i = 0; i < INSTANCES; i++) {
        processes[i].id = i;
        processes[i].looks_first = looks_first;
        processes[i].seed = unit_random(&seed);
        pids[i] = unit_fork(lives_again, &processes[i]);
    }

    for (n = 0; n < deaths && !shared->both; n++) {

        usleep(unit_below(&seed, 3000));

        i = unit_below(&seed, INSTANCES);

        kill(pids[i], SIGSTOP);
        check_equal(waitpid(pids[i], &status, WUNTRACED), pids[i]);
        check(WIFSTOPPED(status));

        if (unit_below(&seed, 3) == 0) {
            usleep(unit_below(&seed, 3000));
            kill(pids[i], SIGCONT);
            continue;
        }

        shared->does[i] = NOTHING;
        kill_and_reap(pids[i]);

        processes[i].seed = unit_random(&seed);
        pids[i] = unit_fork(lives_again, &processes[i]);
    }

    shared->stop = 1;

    for (i = 0; i < INSTANCES; i++) {
        unit_wait(pids[i]);
    }

    unit_note("%u deaths: %u times alone, %u asked, %u waited", (unsigned) n,
              (unsigned) shared->alone, (unsigned) shared->asked,
              (unsigned) shared->waited);
}


static void
one_sees_the_other(void)
{
    int  fd;

    start();

    instances(unit_setting("UNIT_DEATHS", 1000), 0);

    check_equal(shared->both, 0);
    check(shared->alone > 0);
    check(shared->asked > 0);
    check(shared->waited > 0);

    /* nobody is left */

    fd = opened();
    check(!ngx_idempotency_owners_others(fd, 0));
    check(ngx_idempotency_owners_may_claim(fd));
    close(fd);

    stop();
}


/* the case above would notice */

static void
who_looks_first_is_caught(void)
{
    start();

    instances(100000, 1);

    check(shared->both > 0);

    stop();
}


static unit_case_t  cases[] = {
    { "a file of its own, and nothing else in its place", the_file },
    { "long paths", long_paths },
    { "numbers: one's own, others', of another store", numbers },
    { "alone, until another comes", being_alone },
    { "an instance lives until its last process has gone", to_the_last },
    { "a binary upgrade does not take it along", over_exec },
    { "one commits, others queue, whoever dies", one_commits },
    { "alone and asking at a time: never", one_sees_the_other },
    { "... as a newcomer that looks first would", who_looks_first_is_caught },
    unit_cases_end
};


int
main(void)
{
    return unit_run(cases);
}
