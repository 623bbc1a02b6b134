
/*
 * Who lives, by the locks of real processes, which end at any point.
 */


#include "unit.h"

#include <sys/wait.h>

#include "store/file/ngx_idempotency_owners.h"


#define INSTANCES  4
#define commit_lock(fd, time)                                                 \
    ngx_idempotency_owners_lock(fd, NGX_IDEMPOTENCY_OWNERS_COMMIT, time)

#define STORE      ((uint64_t) 1700000000 << NGX_IDEMPOTENCY_OWNERS_STORE_SHIFT)


typedef struct {
    ngx_atomic_t           number;
    volatile ngx_uint_t    stop;

    volatile ngx_uint_t    step[INSTANCES];
    volatile ngx_uint_t    does[INSTANCES];
} shared_t;


typedef struct {
    ngx_uint_t             id;
} process_t;


static char        dir[32];
static char        path[64];
static shared_t   *shared;
static process_t   processes[INSTANCES];


void
unit_setup(void)
{
    char  name[] = "/tmp/owners.XXXXXX";

    check(mkdtemp(name) != NULL);

    strcpy(dir, name);
    snprintf(path, sizeof(path), "%s/store", dir);

    shared = unit_shared(sizeof(shared_t));
    shared->number = STORE;
    ngx_memzero(processes, sizeof(processes));
}


void
unit_teardown(void)
{
    char  name[160];

    snprintf(name, sizeof(name), "%s-owners", path);
    (void) unlink(name);

    check_equal(rmdir(dir), 0);
    unit_unshared(shared, sizeof(shared_t));
}


static int
opened(void)
{
    int  fd;

    fd = ngx_idempotency_owners_open(path, 1);
    check(fd != -1);

    return fd;
}


unit_case("a file of its own, and nothing else in its place")
{
    int          fd, again;
    char         name[160], other[160];
    struct stat  st;

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

    check_equal(rename(name, other), 0);

    /* no way to anything else */

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
}


unit_case("one way to a file")
{
    int   a, b, ours, again, theirs;
    char  name[160], other[160];

    snprintf(name, sizeof(name), "%s-owners", path);
    snprintf(other, sizeof(other), "%s-others", path);

    a = opened();
    check_equal(rename(name, other), 0);
    b = opened();

    ours = open(path, O_RDWR|O_CREAT, 0600);
    again = open(path, O_RDWR);
    theirs = open(path, O_RDWR);

    check_equal(ngx_idempotency_owners_only(ours, a), NGX_OK);
    check_equal(ngx_idempotency_owners_only(theirs, b), NGX_BUSY);

    /* who was refused is in nobody's way, though it has the file open */

    check_equal(ngx_idempotency_owners_only(ours, a), NGX_OK);
    check_equal(ngx_idempotency_owners_only(again, a), NGX_OK);

    close(ours);
    close(again);
    check_equal(ngx_idempotency_owners_only(theirs, b), NGX_OK);

    close(theirs);
    close(a);
    close(b);
    check_equal(unlink(path), 0);
    check_equal(unlink(other), 0);
}


unit_case("numbers: one's own, others', of another store")
{
    int       a, b, c;
    uint64_t  other;

    a = opened();
    b = opened();
    c = opened();

    check(!ngx_idempotency_owners_alive(b, STORE + 1));

    check_equal(ngx_idempotency_owners_hold(a, F_WRLCK, STORE + 1), NGX_OK);

    /* its own is not seen, whatever is asked; that of another is */

    check(!ngx_idempotency_owners_alive(a, STORE + 1));
    check(ngx_idempotency_owners_alive(b, STORE + 1));
    check(!ngx_idempotency_owners_alive(b, STORE));
    check(!ngx_idempotency_owners_alive(b, STORE + 2));

    check_equal(ngx_idempotency_owners_hold(b, F_WRLCK, STORE + 1), NGX_BUSY);
    check_equal(ngx_idempotency_owners_hold(a, F_WRLCK, STORE + 1), NGX_OK);

    /* who is one's own need not have been locked by this open file */

    check(!ngx_idempotency_owners_others(a, STORE + 1));
    check(!ngx_idempotency_owners_others(b, STORE + 1));
    check(ngx_idempotency_owners_others(b, STORE));
    check(ngx_idempotency_owners_others(b, STORE + 2));
    check(ngx_idempotency_owners_others(b, 0));

    check_equal(ngx_idempotency_owners_hold(b, F_WRLCK, STORE + 2), NGX_OK);
    check(ngx_idempotency_owners_others(a, STORE + 1));
    check(ngx_idempotency_owners_others(b, STORE + 2));

    /* those of one store know each other */

    check(!ngx_idempotency_owners_strangers(c, STORE + 3, 0));

    other = (uint64_t) 1 << NGX_IDEMPOTENCY_OWNERS_STORE_SHIFT;

    check(ngx_idempotency_owners_strangers(c, STORE + other, 0));
    check(ngx_idempotency_owners_strangers(c, STORE - 1, 0));
    check(ngx_idempotency_owners_strangers(c, 0, 0));
    check(!ngx_idempotency_owners_strangers(c, STORE + other - 1, 0));

    /* ... but who was ours is none, until others come */

    check(ngx_idempotency_owners_strangers(c, STORE + other, STORE + 1));

    ngx_idempotency_owners_hold(b, F_UNLCK, STORE + 2);

    check(!ngx_idempotency_owners_strangers(c, STORE + other, STORE + 1));
    check(!ngx_idempotency_owners_strangers(c, STORE - 1, STORE + 1));
    check(ngx_idempotency_owners_strangers(c, STORE + other, STORE + 2));

    close(a);
    close(b);

    check(!ngx_idempotency_owners_alive(c, STORE + 1));
    check(!ngx_idempotency_owners_others(c, 0));

    close(c);

    /* no file, nobody to be seen: then there may be anybody */

    check(ngx_idempotency_owners_alive(c, STORE + 1));
    check(ngx_idempotency_owners_others(c, STORE));
    check(ngx_idempotency_owners_strangers(c, STORE, 0));
    check_equal(ngx_idempotency_owners_hold(c, F_WRLCK, STORE), NGX_ERROR);
    check_equal(commit_lock(c, 0), NGX_ERROR);
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
    check_equal(ngx_idempotency_owners_hold(fd, F_WRLCK, STORE + 1), NGX_OK);

    /* a worker, which is an orphan when this has gone */

    pid = fork();

    if (pid == 0) {
        inherits(&processes[1]);
    }

    shared->number = pid;
    inherits(&processes[0]);
}


unit_case("an instance lives until its last process has gone")
{
    int        fd;
    ngx_pid_t  master, worker;
    ngx_uint_t i;

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
        unit_await(&shared->step[0], 1);
        unit_await(&shared->step[1], 1);
        worker = shared->number;

        check(ngx_idempotency_owners_alive(fd, STORE + 1));
    
        if (i % 2) {
            unit_kill(master);

        } else {
            kill(worker, SIGKILL);
        }

        check(ngx_idempotency_owners_alive(fd, STORE + 1));
    
        if (i % 2 == 0) {
            unit_kill(master);
        }

        /* and free at once */

        unit_kill(worker);

        check(!ngx_idempotency_owners_alive(fd, STORE + 1));
        check(!ngx_idempotency_owners_others(fd, STORE));
    }

    close(fd);
}


/* as a binary upgrade does: another program in the same process */

static void
becomes_another(void *data)
{
    int   fd;
    int  *ends = data;

    fd = opened();
    check_equal(ngx_idempotency_owners_hold(fd, F_WRLCK, STORE + 1), NGX_OK);

    shared->step[0] = 1;

    dup2(ends[0], 0);
    dup2(ends[1], 1);

    execl("/bin/sh", "sh", "-c", "echo; read x", NULL);
}


unit_case("a binary upgrade does not take it along")
{
    int        fd, to[2], from[2], ends[2];
    char       c;
    ngx_pid_t  pid;

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

    unit_kill(pid);

    close(to[0]);
    close(to[1]);
    close(from[0]);
    close(from[1]);
    close(fd);
}


static void
commits(void *data)
{
    process_t  *p = data;

    int         fd;

    fd = ngx_idempotency_owners_open(path, 0);

    while (!shared->stop) {
        if (!check_equal(commit_lock(fd, 1000), NGX_OK)) {
            return;
        }

        /* nobody else is here: what is read is what was written */

        shared->step[p->id]++;
        shared->does[0]++;

        ngx_idempotency_owners_unlock(fd, NGX_IDEMPOTENCY_OWNERS_COMMIT);
    }
}


/* they queue, and who dies with the lock leaves it to the next */

unit_case("one commits, others queue, whoever dies")
{
    int         fd, status;
    ngx_pid_t   pids[INSTANCES], stopped;
    ngx_uint_t  i, n, sum;

    fd = opened();

    for (i = 0; i < INSTANCES; i++) {
        processes[i].id = i;
        pids[i] = unit_fork(commits, &processes[i]);
    }

    for (i = 0; i < INSTANCES; i++) {
        unit_await(&shared->step[i], 200);
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

    unit_kill(stopped);

    n = shared->step[1];
    unit_await(&shared->step[1], n + 10);

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

    check_equal(commit_lock(fd, 1000), NGX_OK);
    close(fd);
}
