
/*
 * A start of nginx with a store in a file: made, found or refused, each refusal
 * in one line, and with nothing changed by it.
 */


#include "unit.h"

#include <dirent.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "store/file/ngx_idempotency_db.h"
#include "store/file/ngx_idempotency_owners.h"
#include "store/file/ngx_idempotency_start.h"


#define NOBODY  65534
#define STARTS  4

#define number_of(start)                                                      \
    ((start)->instance & (((uint64_t) 1 << NGX_IDEMPOTENCY_OWNERS_STORE_SHIFT) \
                          - 1))


typedef struct {
    volatile ngx_uint_t  ready;
    volatile ngx_uint_t  go;
    volatile ngx_uint_t  started;
    uint64_t             instance[STARTS];
} shared_t;


/* what the database does in a case, and at which clocks */

enum {
    HONEST = 0,
    DIES_FIRST,
    DIES_LAST,
    HANGS,
    LEAVES,
    FORGES
};


static char        dir[32];
static char        path[64];
static uid_t       user;
static shared_t   *shared;

static ngx_uint_t  does;
static ngx_str_t  *forged;
static int64_t     forward;
static int64_t     wall;
static char       *boot;
static u_char      stamp[NGX_IDEMPOTENCY_STAMP_LEN];
static ngx_uint_t  no_locks;
static ssize_t     room = -1;
static off_t       unreadable;
static ngx_uint_t  handled;

/* starts of a case: one that lives, and another one */

static ngx_idempotency_start_t  s, t;


int __real_sqlite3_open_v2(const char *name, sqlite3 **sqlite, int flags,
    const char *vfs);
int __wrap_sqlite3_open_v2(const char *name, sqlite3 **sqlite, int flags,
    const char *vfs);
void __real_ngx_idempotency_owners_unlock(int fd, off_t byte);
void __wrap_ngx_idempotency_owners_unlock(int fd, off_t byte);
int __real_clock_gettime(clockid_t id, struct timespec *ts);
int __wrap_clock_gettime(clockid_t id, struct timespec *ts);
int __real_open64(const char *name, int flags, mode_t mode);
int __wrap_open64(const char *name, int flags, mode_t mode);
int __wrap_open(const char *name, int flags, mode_t mode);
int __real_fcntl64(int fd, int cmd, ...);
int __wrap_fcntl64(int fd, int cmd, void *arg);
int __wrap_fcntl(int fd, int cmd, void *arg);
int __real_poll(struct pollfd *fds, nfds_t n, int timeout);
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout);
ssize_t __real_recvmsg(int fd, struct msghdr *msg, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *msg, int flags);


/* for the library: pages that the disk can't read */

ssize_t
pread64(int fd, void *buf, size_t n, off64_t from)
{
    if (unreadable && from >= unreadable) {
        errno = EIO;
        return -1;
    }

    return syscall(SYS_pread64, fd, buf, n, from);
}


/* of the child alone, which opens the database */

int
__wrap_sqlite3_open_v2(const char *name, sqlite3 **sqlite, int flags,
    const char *vfs)
{
    if (does == DIES_FIRST) {
        abort();
    }

    if (does == HANGS) {
        pause();
    }

    if (does == LEAVES) {
        _exit(0);
    }

    if (does == FORGES) {
        ngx_str_set(forged, "forged");
    }

    return __real_sqlite3_open_v2(name, sqlite, flags, vfs);
}


/* the last step at the database */

void
__wrap_ngx_idempotency_owners_unlock(int fd, off_t byte)
{
    __real_ngx_idempotency_owners_unlock(fd, byte);

    if (does == DIES_LAST && byte == NGX_IDEMPOTENCY_OWNERS_COMMIT) {
        kill(getpid(), SIGKILL);
    }
}


int
__wrap_clock_gettime(clockid_t id, struct timespec *ts)
{
    int  rc;

    rc = __real_clock_gettime(id, ts);

    if (id == CLOCK_REALTIME) {
        ts->tv_sec = (wall ? wall / 1000 : ts->tv_sec) + forward / 1000;
    }

    return rc;
}


int
__wrap_open64(const char *name, int flags, mode_t mode)
{
    int  ends[2];

    if (boot && strcmp(name, "/proc/sys/kernel/random/boot_id") == 0) {
        check_equal(pipe(ends), 0);
        check_equal(write(ends[1], boot, strlen(boot)), strlen(boot));
        check_equal(write(ends[1], "\n", 1), 1);
        close(ends[1]);

        return ends[0];
    }

    return __real_open64(name, flags, mode);
}


int
__wrap_open(const char *name, int flags, mode_t mode)
{
    return __wrap_open64(name, flags, mode);
}


int
__wrap_fcntl64(int fd, int cmd, void *arg)
{
    if (no_locks && (cmd == F_OFD_SETLK || cmd == F_OFD_SETLKW)) {
        ngx_set_errno(ENOLCK);
        return -1;
    }

    return __real_fcntl64(fd, cmd, arg);
}


int
__wrap_fcntl(int fd, int cmd, void *arg)
{
    return __wrap_fcntl64(fd, cmd, arg);
}


int
__wrap_poll(struct pollfd *fds, nfds_t n, int timeout)
{
    check(timeout >= 1000);

    return __real_poll(fds, n, does == HANGS ? 100 : timeout);
}


ssize_t
__wrap_recvmsg(int fd, struct msghdr *msg, int flags)
{
    if (room != -1) {
        msg->msg_controllen = room;
    }

    return __real_recvmsg(fd, msg, flags);
}


void
unit_setup(void)
{
    char  name[] = "/tmp/start.XXXXXX";

    check(mkdtemp(name) != NULL);

    strcpy(dir, name);
    snprintf(path, sizeof(path), "%s/store", dir);

    user = (geteuid() == 0) ? NOBODY : geteuid();
    check_equal(chown(dir, user, -1), 0);

    shared = unit_shared(sizeof(shared_t));

    does = HONEST;
    forward = 0;
    wall = 0;
    boot = NULL;
    no_locks = 0;

    unit_expect("\" was made, as there was none: no token is known");
    ngx_test_config = 0;
}


void
unit_teardown(void)
{
    DIR            *d;
    char            name[512];
    struct dirent  *e;

    d = opendir(dir);

    while (check(d != NULL) && (e = readdir(d)) != NULL) {
        snprintf(name, sizeof(name), "%s/%s", dir, e->d_name);

        if (e->d_name[0] != '.' && unlink(name) == -1) {
            (void) rmdir(name);
        }
    }

    closedir(d);
    check_equal(rmdir(dir), 0);

    unit_unshared(shared, sizeof(shared_t));
    ngx_test_config = 0;
}


/* the name of a file beside the store's; good until the next but one */

static char *
beside(char *suffix)
{
    static char        name[2][128];
    static ngx_uint_t  n;

    n = !n;
    snprintf(name[n], sizeof(name[n]), "%s%s", path, suffix);

    return name[n];
}


/* nobody would know that there was one */

static void
remove_it(void)
{
    check_equal(unlink(path), 0);
    (void) unlink(beside("-witness"));
}


static void
put(char *name, char *text, size_t len)
{
    int  fd;

    fd = open(name, O_WRONLY|O_CREAT|O_TRUNC, 0600);

    if (!check(fd != -1)) {
        return;
    }

    check_equal(write(fd, text, len), len);
    check_equal(fchown(fd, user, -1), 0);
    close(fd);
}


/* some bytes of a file, over those that are there */

static void
put_at(char *name, off_t at, char *text, size_t len)
{
    int  fd;

    fd = open(name, O_WRONLY);

    check_equal(pwrite(fd, text, len, at), len);
    close(fd);
}


/* all that is in the directory: names, rights and bytes, in a number */

static uint64_t
state(void)
{
    int             fd;
    DIR            *d;
    char            name[512], text[4096];
    ssize_t         n, i;
    uint64_t        sum, one;
    struct stat     st;
    struct dirent  *e;

    sum = 0;
    d = opendir(dir);

    while (check(d != NULL) && (e = readdir(d)) != NULL) {

        snprintf(name, sizeof(name), "%s/%s", dir, e->d_name);

        if (e->d_name[0] == '.' || lstat(name, &st) == -1) {
            continue;
        }

        one = st.st_mode * 31 + st.st_uid * 7 + st.st_nlink;

        for (i = 0; e->d_name[i]; i++) {
            one = one * 131 + e->d_name[i];
        }

        fd = S_ISREG(st.st_mode) ? open(name, O_RDONLY) : -1;

        while (fd != -1 && (n = read(fd, text, sizeof(text))) > 0) {
            for (i = 0; i < n; i++) {
                one = one * 131 + (u_char) text[i];
            }
        }

        if (fd != -1) {
            close(fd);
        }

        sum += one;
    }

    closedir(d);

    return sum;
}


static ngx_int_t
begin(ngx_idempotency_start_t *s)
{
    ngx_memzero(s, sizeof(ngx_idempotency_start_t));

    s->path.data = (u_char *) path;
    s->path.len = strlen(path);
    s->user = user;
    s->group = (user == NOBODY) ? NOBODY : getegid();
    s->username = (user == NOBODY) ? "nobody" : NULL;
    ngx_memcpy(s->stamp, stamp, NGX_IDEMPOTENCY_STAMP_LEN);
    s->must = 1;

    return ngx_idempotency_start(s, unit_pool, unit_cycle.log);
}


static uint64_t
begin_and_end(void)
{
    static ngx_idempotency_start_t  s;

    if (!check_equal(begin(&s), NGX_OK)) {
        return 0;
    }

    check(s.owners != -1);
    ngx_idempotency_start_leave(&s);
    check_equal(s.owners, -1);

    return s.instance;
}


static ngx_uint_t
refused(char *why)
{
    uint64_t  before;
    static ngx_idempotency_start_t  s;

    before = state();

    check_equal(begin(&s), NGX_ERROR);
    check_equal(s.owners, -1);

    return unit_logged(why) && check(state() == before);
}


static void
refused_by_both(char *why)
{
    if (!check(refused(why))) {
        unit_note("... by a start");
    }

    ngx_test_config = 1;

    if (!check(refused(why))) {
        unit_note("... by nginx -t");
    }

    ngx_test_config = 0;
}


/* ... and may have changed something */

static void
fails(char *why)
{
    check_equal(begin(&t), NGX_ERROR);
    check_equal(t.owners, -1);
    check(unit_logged(why));
}


static mode_t
mode_of(char *name)
{
    struct stat  st;

    return check_equal(lstat(name, &st), 0)
           && check_equal(st.st_uid, user)
           ? st.st_mode & 07777 : 0;
}


unit_case("made, and found again: numbers that are given once")
{
    int         fd;
    uint64_t    last;
    ngx_uint_t  i;

    /* it may have been lost: that is said */

    unit_expect(NULL);
    check_equal(begin(&s), NGX_OK);
    check(unit_logged("\" was made, as there was none: no token is known"));

    check_equal(mode_of(path), 0600);
    check_equal(mode_of(beside("-owners")), 0600);
    check_equal(access(beside(".new"), F_OK), -1);
    check_equal(access(beside("-wal"), F_OK), -1);

    check_equal(fcntl(s.owners, F_GETFD), FD_CLOEXEC);

    /* its time is today's */

    check_equal(number_of(&s), 1);
    check_equal((s.instance >> NGX_IDEMPOTENCY_OWNERS_STORE_SHIFT) / 1000000,
                time(NULL) / 1000);

    fd = ngx_idempotency_owners_open(path, 0);

    last = s.instance;
    check(ngx_idempotency_owners_alive(fd, last));

    for (i = 0; i < 20; i++) {
        check_equal(begin_and_end(), last + 1);
        last++;

        check(!ngx_idempotency_owners_alive(fd, last));
    }

    check(ngx_idempotency_owners_alive(fd, s.instance));
    check(!ngx_idempotency_owners_others(fd, s.instance));

    close(fd);
}


/* the lock is the configuration's, and that of all that have the zone */

unit_case("over reloads, and with the configuration's end")
{
    int          fd;
    ngx_uint_t   i;
    ngx_pool_t  *pools[2];
    static ngx_idempotency_start_t  s[2];

    pools[0] = unit_pool;
    check_equal(begin(&s[0]), NGX_OK);

    /* one of another process, as this one's would not be seen */

    fd = ngx_idempotency_owners_open(path, 0);

    for (i = 1; i < 10; i++) {

        pools[i % 2] = ngx_create_pool(1024, unit_cycle.log);
        s[i % 2] = s[!(i % 2)];
        s[i % 2].owners = -1;
        s[i % 2].instance = 0;

        check_equal(ngx_idempotency_start_keep(&s[i % 2], &s[!(i % 2)],
                                               pools[i % 2], unit_cycle.log),
                    NGX_OK);

        check_equal(s[i % 2].instance, s[!(i % 2)].instance);
        check_equal(s[i % 2].base, s[!(i % 2)].base);
        check_equal(fcntl(s[i % 2].owners, F_GETFD), FD_CLOEXEC);

        if (pools[!(i % 2)] != unit_pool) {
            ngx_destroy_pool(pools[!(i % 2)]);

        } else {
            ngx_idempotency_start_leave(&s[!(i % 2)]);
        }

        check(ngx_idempotency_owners_alive(fd, s[i % 2].instance));
    }

    /* a configuration that fails leaves no owner */

    ngx_destroy_pool(pools[1]);
    check(!ngx_idempotency_owners_alive(fd, s[1].instance));

    close(fd);
}


unit_case("open to others: no more, and that is said")
{
    (void) begin_and_end();
    check_equal(chmod(path, 0644), 0);
    check_equal(chmod(beside("-owners"), 0660), 0);

    ngx_test_config = 1;

    check_equal(begin(&s), NGX_OK);
    check_equal(mode_of(path), 0644);

    ngx_test_config = 0;

    (void) begin_and_end();
    check(unit_logged("was open to others; it has the mode 0600 now"));

    check_equal(mode_of(path), 0600);
    check_equal(mode_of(beside("-owners")), 0600);

    (void) begin_and_end();
}


unit_case("nginx -t makes nothing")
{
    uint64_t  before;

    ngx_test_config = 1;
    before = state();
    check_equal(begin(&t), NGX_OK);
    check_equal(t.owners, -1);
    check(state() == before);

    /* nor beside one that lives */

    ngx_test_config = 0;
    check_equal(begin(&s), NGX_OK);

    ngx_test_config = 1;
    before = state();
    check_equal(begin(&t), NGX_OK);
    check_equal(t.owners, -1);
    check(state() == before);

    ngx_test_config = 0;
    check_equal(begin_and_end(), s.instance + 1);
}


unit_case("where it can't be, or not by this user")
{
    char  was[64], other[64];

    strcpy(was, path);
    snprintf(other, sizeof(other), "%s/other", dir);

    snprintf(path, sizeof(path), "%s/none/store", dir);
    refused_by_both("must be able to write to its directory (2: ");

    put(other, "", 0);
    snprintf(path, sizeof(path), "%s/other/store", dir);
    refused_by_both("must be able to write to its directory (13: ");
    check_equal(unlink(other), 0);

    snprintf(path, sizeof(path), "%s/", dir);
    refused_by_both("/ is no regular file");

    strcpy(path, was);

    if (geteuid() == 0) {
        put(other, "", 0);
        check_equal(chown(dir, 0, -1), 0);
        check_equal(chmod(dir, 0755), 0);
        refused_by_both("\" can't be used: the user that the workers run as, "
                        "which is 65534, must be able to write to its "
                        "directory (13: ");
        check_equal(chmod(dir, 0700), 0);
        refused_by_both("must be able to write to its directory");

        check_equal(unlink(other), 0);
        check_equal(mkdir(other, 0700), 0);
        check_equal(chown(other, 1, -1), 0);
        snprintf(path, sizeof(path), "%s/other/store", dir);
        refused_by_both("which is 65534, must be able to write to its");
        check_equal(rmdir(other), 0);
        strcpy(path, was);

        check_equal(chown(dir, user, -1), 0);
    }

    check_equal(mkdir(path, 0700), 0);
    refused_by_both("store is no regular file");
    check_equal(rmdir(path), 0);

    check_equal(mkfifo(path, 0600), 0);
    check_equal(chown(path, user, -1), 0);
    refused_by_both("\" can't be used: /tmp/");
    check_equal(unlink(path), 0);

    (void) begin_and_end();

    check_equal(rename(path, other), 0);
    check_equal(symlink(other, path), 0);
    refused_by_both("store is no regular file");
    check_equal(unlink(path), 0);

    check_equal(link(other, path), 0);
    refused_by_both("has 2 names");
    check_equal(unlink(other), 0);

    check_equal(chmod(path, 0400), 0);
    refused_by_both("has the mode 0400");
    check_equal(chmod(path, 0600), 0);

    if (geteuid() == 0) {
        check_equal(chown(path, 0, -1), 0);
        refused_by_both("belongs to user 0, and the workers run as 65534");
        check_equal(chown(path, user, -1), 0);
    }

    (void) begin_and_end();
}


/* by another key its tokens would not be found */

bare_case("another digest key than it was made with")
{
    ngx_uint_t  i, k;

    static char  *why[3][3] = {
        { NULL,
          "store\" was made without a digest key, and",
          "store\" was made without a digest key, and" },
        { "store\" was made with a digest key, and no",
          NULL,
          "store\" was made with another digest key than" },
        { "store\" was made with a digest key, and no",
          "store\" was made with another digest key than",
          NULL }
    };

    for (i = 0; i < 3; i++) {
        unit_setup();

        stamp[15] = (u_char) i;
        (void) begin_and_end();

        for (k = 0; k < 3; k++) {
            stamp[15] = (u_char) k;

            if (k != i) {
                refused_by_both(why[i][k]);
            }
        }

        stamp[15] = (u_char) i;
        (void) begin_and_end();

        unit_teardown();
    }

    stamp[15] = 0;
}


/* what is beside it counts as much as itself */

unit_case("what stands beside it")
{
    char         *suffix;
    ngx_uint_t    i;
    static char  *suffixes[] = { "-wal", "-shm", "-journal", "-owners" };

    (void) begin_and_end();
    check_equal(unlink(beside("-owners")), 0);

    for (i = 0; i < 4; i++) {
        suffix = suffixes[i];

        check_equal(symlink("/dev/null", beside(suffix)), 0);
        refused_by_both(" is no regular file");
        check_equal(unlink(beside(suffix)), 0);

        if (geteuid() == 0) {
            put(beside(suffix), "", 0);
            check_equal(chown(beside(suffix), 1, -1), 0);
            refused_by_both(" belongs to user 1, and the workers run as");
            check_equal(unlink(beside(suffix)), 0);
        }
    }

    /* the log is all that is left of it */

    remove_it();
    put(beside("-owners"), "", 0);
    put(beside("-wal"), "something", 9);
    refused_by_both("store\" is gone, and has left /tmp/");

    /* an empty one is what a clean end may leave */

    put(beside("-wal"), "", 0);
    (void) begin_and_end();
}


unit_case("cut off, another's, of another version")
{
    char         zeros[8192];
    struct stat  st;

    ngx_memzero(zeros, sizeof(zeros));

    put(path, "x", 1);
    refused_by_both("\" is a file of another program, or damaged");

    put(path, zeros, sizeof(zeros));
    refused_by_both("\" is a file of another program, or damaged");

    /* another program's database; its log is not touched either */

    check_equal(unlink(path), 0);
    (void) begin_and_end();
    put(beside("-wal"), "whatever", 8);
    put_at(path, 68, "abcd", 4);
    refused_by_both("\" is a file of another program, or damaged");

    put_at(path, 68, "idem", 4);
    put_at(path, 60, "\0\0\0\11", 4);
    refused_by_both("\" is of version 9, and this module knows version 2");

    put_at(path, 60, "\0\0\0\0", 4);
    refused_by_both("\" is of version 0, and this module knows version 2");

    put_at(path, 60, "\0\0\0\2", 4);
    check_equal(unlink(beside("-wal")), 0);
    (void) begin_and_end();

    /* cut off, at a page or within it */

    check_equal(stat(path, &st), 0);

    check_equal(truncate(path, st.st_size - 4096), 0);
    refused_by_both("\" is damaged: ");

    check_equal(truncate(path, 4096), 0);
    refused_by_both("\" is damaged: ");

    check_equal(truncate(path, 100), 0);
    refused_by_both("\" is damaged: ");

    check_equal(truncate(path, 50), 0);
    refused_by_both("\" is a file of another program, or damaged");
}


unit_case("damaged further down")
{
    char         zeros[4096];
    off_t        at;
    struct stat  st;

    (void) begin_and_end();

    ngx_memzero(zeros, sizeof(zeros));
    check_equal(stat(path, &st), 0);

    for (at = 4096; at < st.st_size; at += 4096) {

        put_at(path, at, zeros, 4096);

        fails("store\" is damaged");
        check_equal(access(beside(".new"), F_OK), -1);

        remove_it();
        (void) unlink(beside("-wal"));
        (void) unlink(beside("-shm"));
        (void) begin_and_end();
    }

    check(at > 4096);
}


unit_case("a file system without locks")
{
    no_locks = 1;
    fails("store\" is on a file system without locks");
    check_equal(access(path, F_OK), -1);

    no_locks = 0;
    (void) begin_and_end();
}


unit_case("a long name")
{
    char  name[NGX_IDEMPOTENCY_FILE_PATH + 2];

    ngx_memset(name, '/', sizeof(name));
    strcpy(name + sizeof(name) - 1 - strlen(path), path);

    ngx_memzero(&s, sizeof(ngx_idempotency_start_t));
    s.user = user;
    s.group = user;
    s.username = "nobody";
    s.must = 1;

    s.path.data = (u_char *) name;
    s.path.len = strlen(name);

    check_equal(ngx_idempotency_start(&s, unit_pool, unit_cycle.log),
                NGX_ERROR);
    check(unit_logged("the state file \"/////"));

    s.path.data++;
    s.path.len--;

    check_equal(ngx_idempotency_start(&s, unit_pool, unit_cycle.log), NGX_OK);
    check(unit_logged("the state file \"/////"));
    check_equal(mode_of(path), 0600);
}


/* a number that is an owner's whose file this is not */

unit_case("replaced under a living owner")
{
    int  fd;

    wall = (int64_t) 1750000000 * 1000;

    check_equal(begin(&s), NGX_OK);
    remove_it();

    /* in the same moment: its numbers begin again */

    fails("\" was replaced while an nginx uses the one that was there");

    remove_it();

    wall = 0;
    fails("\" was replaced while an nginx uses");

    /* nor does it get in by trying again */

    fails("\" was replaced while an nginx uses");

    /* who was refused left nobody behind */

    fd = ngx_idempotency_owners_open(path, 0);
    check(!ngx_idempotency_owners_others(fd, s.instance));
    check(!ngx_idempotency_owners_others(s.owners, s.instance));
    close(fd);

    ngx_idempotency_start_leave(&s);
    (void) begin_and_end();
}


/* by its witness a start knows that it was set back, exchanged, or is gone */

unit_case("set back, or gone")
{
    char        command[256];
    ngx_uint_t  i;

    (void) begin_and_end();

    snprintf(command, sizeof(command), "cp -p %s %s.kept", path, path);
    check_equal(system(command), 0);

    for (i = 0; i < 3; i++) {
        (void) begin_and_end();
    }

    snprintf(command, sizeof(command), "cp -p %s.kept %s", path, path);
    check_equal(system(command), 0);
    refused_by_both("is older than it was: 3 of the last commits are missing");

    /* who removes the witness agrees */

    check_equal(unlink(beside("-witness")), 0);
    (void) begin_and_end();

    check_equal(unlink(path), 0);
    refused_by_both("is gone, and has left /tmp/");

    put(path, "", 0);
    refused_by_both("store\" is empty, and has left /tmp/");

    /* a witness that can't be read was not removed */

    check_equal(chmod(beside("-witness"), 0), 0);
    refused_by_both("store\" is empty, and has left /tmp/");

    check_equal(unlink(beside("-witness")), 0);
    (void) begin_and_end();
}


unit_case("its time, over boots and clocks")
{
    int64_t  base;

    boot = "11111111-1111-1111-1111-111111111111";
    check_equal(begin(&s), NGX_OK);
    base = s.base;
    ngx_idempotency_start_leave(&s);

    /* the clock was set, back or forth, and nothing is later or earlier */

    forward = 24 * 3600 * 1000;
    check_equal(begin(&s), NGX_OK);
    check_equal(s.base, base);
    ngx_idempotency_start_leave(&s);

    /* another boot: its clock counts, if it is not behind the file's time */

    boot = "22222222-2222-2222-2222-222222222222";
    check_equal(begin(&s), NGX_OK);
    check(s.base > base + forward - 60000 && s.base < base + forward + 60000);
    base = s.base;
    ngx_idempotency_start_leave(&s);

    boot = "33333333-3333-3333-3333-333333333333";
    forward = 0;
    check_equal(begin(&s), NGX_OK);
    check(s.base > base - 60000);
    ngx_idempotency_start_leave(&s);
}


/* the master has no descriptors left for one of the child's, or for both */

unit_case("what the child has open does not get through")
{
    for (room = 0; room <= (ssize_t) CMSG_LEN(sizeof(int));
         room += CMSG_LEN(sizeof(int)))
    {
        fails("has told nothing");
        check_equal(t.file, -1);
    }

    room = -1;
    check_equal(begin(&s), NGX_OK);
    ngx_idempotency_start_leave(&s);
}


/* it may be well again: that is no damage, and memory may guard meanwhile */

unit_case("pages that the disk can't read")
{
    (void) begin_and_end();

    for (unreadable = 4096; unreadable <= 4 * 4096; unreadable += 4096) {
        fails("\" can't be read: Input/output error");
        check(t.other != NGX_IDEMPOTENCY_TIER_FOREIGN);
    }

    unreadable = 0;
    (void) begin_and_end();
}


unit_case("the child dies, hangs, or tells nothing")
{
    does = DIES_FIRST;
    fails("\" can't be used: the process that looked at it died "
          "on signal 6; restore it");
    check_equal(t.other, NGX_IDEMPOTENCY_TIER_FOREIGN);

    does = LEAVES;
    fails("\" can't be used: the process that looks at it has "
          "told nothing");

    does = HANGS;
    fails("\" can't be used: nothing was heard of it for 5 s");

    /* whoever has the child in his power by a file has no address of the
       master's */

    does = FORGES;
    forged = &s.zone;
    check_equal(begin(&s), NGX_OK);
    check_equal(s.zone.len, 0);
    ngx_idempotency_start_leave(&s);
    remove_it();

    /* whole, and without its name yet */

    does = DIES_LAST;
    fails("died on signal 9");
    check_equal(access(path, F_OK), -1);
    check_equal(access(beside(".new"), F_OK), 0);

    does = HONEST;
    check_equal(begin(&s), NGX_OK);
    check_equal(number_of(&s), 1);
    check_equal(access(beside(".new"), F_OK), -1);
    ngx_idempotency_start_leave(&s);

    /* a number that was taken by one who died is not given again */

    does = DIES_LAST;
    fails("died on signal 9");

    does = HONEST;
    check_equal(begin(&s), NGX_OK);
    check_equal(number_of(&s), 3);
    ngx_idempotency_start_leave(&s);
}


static void
on_sigchld(int signo)
{
    int  status;

    while (waitpid(-1, &status, WNOHANG) > 0) {
        handled++;
    }
}


/* nginx waits for all its children in a handler, which would take ours */

unit_case("beside nginx's handler of SIGCHLD")
{
    sigset_t          set;
    ngx_uint_t        i;
    ngx_pid_t         pid;
    struct sigaction  sa, old;

    ngx_memzero(&sa, sizeof(struct sigaction));
    sa.sa_handler = on_sigchld;
    sigemptyset(&sa.sa_mask);
    check_equal(sigaction(SIGCHLD, &sa, &old), 0);

    handled = 0;

    for (i = 0; i < 20; i++) {
        check_equal(begin(&s), NGX_OK);
        ngx_idempotency_start_leave(&s);
    }

    check_equal(handled, 0);

    check_equal(sigprocmask(SIG_BLOCK, NULL, &set), 0);
    check(!sigismember(&set, SIGCHLD));

    /* that of another is handled yet */

    pid = fork();

    if (pid == 0) {
        _exit(0);
    }

    for (i = 0; handled == 0 && i < 60000; i++) {
        usleep(1000);
    }

    check_equal(handled, 1);

    /* blocked it stays blocked, as in nginx's master */

    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL);

    check_equal(begin(&s), NGX_OK);
    ngx_idempotency_start_leave(&s);

    sigprocmask(SIG_BLOCK, NULL, &set);
    check(sigismember(&set, SIGCHLD));

    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_UNBLOCK, &set, NULL);

    check_equal(handled, 1);
    check_equal(sigaction(SIGCHLD, &old, NULL), 0);
}


static void
starts(void *data)
{
    ngx_uint_t  n;
    static ngx_idempotency_start_t  s;

    n = *(ngx_uint_t *) data;

    (void) __sync_fetch_and_add(&shared->ready, 1);

    while (!shared->go) {
        usleep(100);
    }

    check_equal(begin(&s), NGX_OK);
    shared->instance[n] = s.instance;

    (void) __sync_fetch_and_add(&shared->started, 1);

    while (shared->started < STARTS) {
        usleep(1000);
    }
}


/* nobody finds half of what another makes, and all get numbers of their own */

unit_case("many at once")
{
    uint64_t    first;
    ngx_pid_t   pids[STARTS];
    ngx_uint_t  i, n, round, numbers[STARTS];

    for (round = 0; round < 10; round++) {

        ngx_memzero(shared, sizeof(shared_t));

        for (i = 0; i < STARTS; i++) {
            numbers[i] = i;
            pids[i] = unit_fork(starts, &numbers[i]);
        }

        while (shared->ready < STARTS) {
            usleep(1000);
        }

        shared->go = 1;

        for (i = 0; i < STARTS; i++) {
            unit_wait(pids[i]);
        }

        first = shared->instance[0];

        for (i = 1; i < STARTS; i++) {
            first = ngx_min(first, shared->instance[i]);
        }

        for (n = 0; n < STARTS; n++) {
            for (i = 0; i < STARTS && shared->instance[i] != first + n; i++) {
                /* void */
            }

            check(i < STARTS);
        }

        remove_it();
        check_equal(unlink(beside("-owners")), 0);
        (void) unlink(beside("-wal"));
        (void) unlink(beside("-shm"));
    }
}


static void
as_another(void *data)
{
    check_equal(setgid(12345), 0);
    check_equal(setuid(12345), 0);

    unit_setup();

    check_equal(user, 12345);
    (void) begin_and_end();
    check_equal(mode_of(path), 0600);

    unit_teardown();
}


/* an ordinary user's workers are his own, whatever `user` says */

bare_case("as an ordinary user")
{
    if (geteuid() == 0) {
        unit_wait(unit_fork(as_another, NULL));

    } else {

        /* nobody else can become one, and all cases were his */

        check(geteuid() != 0);
    }
}
