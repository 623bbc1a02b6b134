
/*
 * A start with a store in a file: where the file may be, whether it is ours and
 * whole, and the number of a new instance.
 *
 * CHILD     The master opens nothing.  A child process does, as the workers'
 *           user, and passes on the open files whose locks keep the instance
 *           alive.  SQLite must not be open in a process that forks, root must
 *           touch nothing in another user's directory, and a damaged file may
 *           kill its reader.
 * REFUSED   A start that is refused has changed nothing.
 * AGAIN     A refusal that may pass by itself is tried again by the workers.
 */


#include "ngx_idempotency_db.h"
#include "ngx_idempotency_start.h"


#if (NGX_IDEMPOTENCY_FILE)

#include <poll.h>
#include <sys/prctl.h>
#include <sys/vfs.h>


/* in milliseconds: the longest start, after which nginx goes on without the
   file; the wait for a child that was killed; the waits for another start and
   for commits; the time to look whether the file is whole */

#define START_TIMEOUT  5000
#define START_REAP     100
#define START_WAIT     4000
#define START_BUSY     3000
#define START_CHECK    300

/* the size of a boot's name with its end */

#define START_BOOT     37

#define START_REMEDY   "restore it, or remove it to begin anew"

/* in place of a system error: the file itself is wrong, and `local` must not
   guard beside it */

#define START_OTHER    (-NGX_IDEMPOTENCY_TIER_OTHER)
#define START_FOREIGN  (-NGX_IDEMPOTENCY_TIER_FOREIGN)

#define START_NAME     (NGX_IDEMPOTENCY_FILE_PATH + 16)

/* The size of a child's results.  They contain no addresses: the child reads a
   file that others may have written, and the master may be root. */

#define START_FOUND    (ssize_t)                                              \
                       (sizeof(ngx_idempotency_start_t)                       \
                        - offsetof(ngx_idempotency_start_t, wall))


/* the header of SQLite's file format */

#define HEADER_SIZE    100
#define HEADER_MAGIC   "SQLite format 3"
#define HEADER_VERSION 60

/* the header of the log's index; numbers in the machine's order */

#define INDEX_WORDS    25
#define INDEX_VERSION  3007000
#define INDEX_LOGGED   4
#define INDEX_FILED    24


/* interrupts a check that takes too long */

typedef struct {
    sqlite3           *sqlite;
    volatile int       ended;
} start_alarm_t;


/* the row of the table `meta` */

typedef struct {
    uint64_t           instance;
    uint64_t           fence;
    int64_t            latest;
    int64_t            base;
    ngx_atomic_uint_t  number;
    int                fingerprints;
    int                version;
    char               boot[80];
    u_char             identity[NGX_IDEMPOTENCY_MARK_LEN];
    u_char             stamp[NGX_IDEMPOTENCY_STAMP_LEN];
} start_meta_t;


static ngx_int_t start_cleanup(ngx_idempotency_start_t *start,
    ngx_pool_t *pool);
static void start_close(int *fd);
static ngx_int_t start_refused(ngx_idempotency_start_t *start, ngx_log_t *log);

static ngx_int_t start_child(ngx_idempotency_start_t *start, ngx_log_t *log);
static void start_hear(ngx_idempotency_start_t *start, int from, ngx_pid_t pid);
static ssize_t start_pass(int fd, ngx_idempotency_start_t *start,
    ngx_uint_t send);
static ngx_int_t start_run(ngx_idempotency_start_t *start);

static ngx_int_t start_check(ngx_idempotency_start_t *start);
static ngx_int_t start_directory(ngx_idempotency_start_t *start);
static ngx_int_t start_files(ngx_idempotency_start_t *start);
static ngx_int_t start_rights(ngx_idempotency_start_t *start, const char *name,
    struct stat *st);
static ngx_uint_t start_log_is_lost(const char *path);
static ngx_int_t start_header(ngx_idempotency_start_t *start);
static ssize_t start_read(const char *name, void *buf, size_t len);
static ngx_uint_t start_number(u_char *p);
static void start_parent(const char *path, char *dir);
static ngx_int_t start_refuse(ngx_idempotency_start_t *start, ngx_err_t err,
    const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static ngx_int_t start_open(ngx_idempotency_start_t *start);
static ngx_int_t start_instance(ngx_idempotency_start_t *start);
static ngx_int_t start_witness(ngx_idempotency_start_t *start);
static ngx_int_t start_make(ngx_idempotency_start_t *start);
static ngx_int_t start_hold(ngx_idempotency_start_t *start, const char *name);
static void start_remove_logs(const char *name);
static ngx_int_t start_refuse_way(ngx_idempotency_start_t *start);
static void start_clocks(ngx_idempotency_start_t *start);

static ngx_int_t start_test(ngx_idempotency_start_t *start);
static int start_make_tables(sqlite3 *sqlite, ngx_idempotency_start_t *start);
static int start_tables(sqlite3 *sqlite, ngx_idempotency_start_t *start);
static int start_matches(sqlite3 *sqlite, ngx_idempotency_start_t *start);
static int start_whole(sqlite3 *sqlite, ngx_idempotency_start_t *start);
static void *start_alarm(void *data);
static int start_give_number(sqlite3 *sqlite, ngx_idempotency_start_t *start);
static int start_meta(sqlite3 *sqlite, start_meta_t *meta);
static int start_text(sqlite3 *sqlite, const char *sql, char *text,
    size_t len);
static int start_error(ngx_idempotency_start_t *start, sqlite3 *sqlite, int rc);


/* File systems whose server several machines may use, while locks and shared
   memory are each machine's own: NFS, SMB (three), Ceph, AFS (two), OCFS2,
   GFS2, Lustre */

static const uint32_t  start_networks[] = {
    0x6969, 0x517b, 0xff534d42, 0xfe534d42, 0x00c36400, 0x5346414f, 0x6b414653,
    0x7461636f, 0x01161970, 0x0bd00bd0
};


/* the file, and what may be beside it: two logs and another file of SQLite's,
   and the locks */

#define START_LOGS    2
#define START_SQLITE  3
#define START_FILES   5

static const char  *start_suffixes[] = {
    "", "-wal", "-journal", "-shm", "-owners"
};


/*
 * `claims`: pending tokens, few at a time, in a few pages that are written
 * again and again.  `records`: all others, in the order of arrival, which is
 * roughly that of their ends, so that pages fill and become free as a whole.
 * Numbers of 64 bits are stored as signed ones.
 */

static const char  start_schema[] =
    "CREATE TABLE meta ("
        "id INTEGER PRIMARY KEY CHECK (id = 1), "
        "instance INTEGER NOT NULL, "
        "fence INTEGER NOT NULL, "
        "latest INTEGER NOT NULL, "
        "identity BLOB NOT NULL, "
        "number INTEGER NOT NULL, "
        "boot TEXT NOT NULL, "
        "base INTEGER NOT NULL, "
        "stamp BLOB NOT NULL, "
        "version INTEGER NOT NULL);"

    "CREATE TABLE claims ("
        "token BLOB PRIMARY KEY NOT NULL, "
        "fingerprint BLOB NOT NULL, "
        "parts BLOB NOT NULL, "
        "instance INTEGER NOT NULL, "
        "fence INTEGER NOT NULL, "
        "recorded INTEGER NOT NULL, "
        "ends INTEGER NOT NULL, "
        "span INTEGER NOT NULL, "
        "sum INTEGER NOT NULL) WITHOUT ROWID;"

    "CREATE TABLE records ("
        "id INTEGER PRIMARY KEY, "
        "token BLOB NOT NULL, "
        "fingerprint BLOB NOT NULL, "
        "parts BLOB NOT NULL, "
        "instance INTEGER NOT NULL, "
        "fence INTEGER NOT NULL, "
        "recorded INTEGER NOT NULL, "
        "ends INTEGER NOT NULL, "
        "span INTEGER NOT NULL, "
        "sum INTEGER NOT NULL, "
        "outcome INTEGER NOT NULL, "
        "status INTEGER NOT NULL, "
        "replays INTEGER NOT NULL, "
        "response BLOB);"

    "CREATE UNIQUE INDEX records_token ON records (token);"
    "CREATE INDEX records_ends ON records (ends);";


ngx_int_t
ngx_idempotency_start(ngx_idempotency_start_t *start, ngx_pool_t *pool,
    ngx_log_t *log)
{
    start->owners = -1;
    start->file = -1;

    if (start_cleanup(start, pool) != NGX_OK
        || start_child(start, log) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (start->rc != NGX_OK) {
        return start_refused(start, log);
    }

    ngx_idempotency_start_log(start, log);

    return NGX_OK;
}


ngx_int_t
ngx_idempotency_start_keep(ngx_idempotency_start_t *start,
    ngx_idempotency_start_t *old, ngx_pool_t *pool, ngx_log_t *log)
{
    start->instance = old->instance;
    start->fence = old->fence;
    start->base = old->base;
    start->mark = old->mark;
    start->other = old->other;
    start->late = old->late;

    /* the old configuration closes its descriptors; the locks are of both */

    start->owners = fcntl(old->owners, F_DUPFD_CLOEXEC, 0);
    start->file = fcntl(old->file, F_DUPFD_CLOEXEC, 0);

    if (start_cleanup(start, pool) != NGX_OK) {
        return NGX_ERROR;
    }

    if ((old->owners != -1 && start->owners == -1)
        || (old->file != -1 && start->file == -1))
    {
        ngx_log_error(NGX_LOG_EMERG, log, ngx_errno,
                      "fcntl(F_DUPFD_CLOEXEC) failed");
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* a process that may have the file open keeps that descriptor to its end */

void
ngx_idempotency_start_leave(void *data)
{
    ngx_idempotency_start_t *start = data;

    start_close(&start->owners);

    if (ngx_process == NGX_PROCESS_MASTER || ngx_process == NGX_PROCESS_HELPER)
    {
        start_close(&start->file);
    }
}


static ngx_int_t
start_cleanup(ngx_idempotency_start_t *start, ngx_pool_t *pool)
{
    ngx_pool_cleanup_t  *cln;

    cln = ngx_pool_cleanup_add(pool, 0);
    if (cln == NULL) {
        return NGX_ERROR;
    }

    cln->handler = ngx_idempotency_start_leave;
    cln->data = start;

    return NGX_OK;
}


static void
start_close(int *fd)
{
    if (*fd != -1) {
        (void) close(*fd);
        *fd = -1;
    }
}


static ngx_int_t
start_refused(ngx_idempotency_start_t *start, ngx_log_t *log)
{
    u_char      *p, *end, text[NGX_IDEMPOTENCY_START_WHY];
    ngx_uint_t   level;

    level = start->must ? NGX_LOG_EMERG : NGX_LOG_ALERT;

    p = text;
    end = text + sizeof(text);

    if (start->other == NGX_IDEMPOTENCY_TIER_OTHER) {
        start->late = 0;

        p = ngx_slprintf(p, end, "; to agree to it as it is, PUT {\"store\":"
                         "\"accept\"} to /zones/%V of idempotency_api, or "
                         "remove %V-witness while no nginx runs",
                         &start->zone, &start->path);

    } else if (!start->must) {
        p = ngx_slprintf(p, end, "; zone \"%V\" is without it until %s",
                         &start->zone,
                         start->late ? "it can be used" : "a reload");
    }

    if (start->must) {
        p = ngx_slprintf(p, end, " in %V:%ui", &start->at, start->line);
    }

    ngx_log_error(level, log, 0, "the state file \"%V\" %s%*s", &start->path,
                  start->why, (size_t) (p - text), text);

    if (!start->must) {
        return NGX_DECLINED;
    }

    start_close(&start->owners);
    start_close(&start->file);

    return NGX_ERROR;
}


void
ngx_idempotency_start_log(ngx_idempotency_start_t *start, ngx_log_t *log)
{
    if (ngx_test_config) {
        return;
    }

    if (start->open) {
        ngx_log_error(NGX_LOG_WARN, log, 0,
                      "the state file \"%V\" was open to others; it has the "
                      "mode 0600 now", &start->path);
    }

    if (start->witness) {
        ngx_log_error(NGX_LOG_WARN, log, start->witness,
                      "the witness of the state file \"%V\" can't be read or "
                      "written: nobody would know that the file was set back",
                      &start->path);
    }

    if (!start->made) {
        ngx_log_error(NGX_LOG_NOTICE, log, 0,
                      "the state file \"%V\" was found", &start->path);
        return;
    }

    /* a disk that is not mounted would look like this */

    ngx_log_error(NGX_LOG_WARN, log, 0,
                  "the state file \"%V\" was made, as there was none: no "
                  "token is known", &start->path);
}


/* --- the child ------------------------------------------------------------ */


/* nginx's handler of SIGCHLD must not get this child's status */

static ngx_int_t
start_child(ngx_idempotency_start_t *start, ngx_log_t *log)
{
    int        ends[2];
    sigset_t   set, old;
    ngx_pid_t  pid;

    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);

    if (socketpair(AF_UNIX, SOCK_SEQPACKET|SOCK_CLOEXEC, 0, ends) == -1) {
        ngx_log_error(NGX_LOG_EMERG, log, ngx_errno, "socketpair() failed");
        return NGX_ERROR;
    }

    (void) sigprocmask(SIG_BLOCK, &set, &old);

    pid = fork();

    if (pid == 0) {
        (void) close(ends[0]);

        start->rc = start_run(start);
        (void) start_pass(ends[1], start, 1);
        _exit(0);
    }

    (void) close(ends[1]);

    if (pid == -1) {
        ngx_log_error(NGX_LOG_EMERG, log, ngx_errno, "fork() failed");

    } else {
        start_hear(start, ends[0], pid);
    }

    (void) close(ends[0]);
    (void) sigprocmask(SIG_SETMASK, &old, NULL);

    return (pid == -1) ? NGX_ERROR : NGX_OK;
}


/* a killed child ends when its disk lets it; nobody waits for that */

static void
start_hear(ngx_idempotency_start_t *start, int from, ngx_pid_t pid)
{
    int            n, status;
    ngx_uint_t     i, hangs;
    struct pollfd  fd;

    fd.fd = from;
    fd.events = POLLIN;

    do {
        n = poll(&fd, 1, START_TIMEOUT);
    } while (n == -1 && ngx_errno == NGX_EINTR);

    hangs = (n == 0);

    if (hangs) {
        (void) kill(pid, SIGKILL);

        start->rc = start_refuse(start, 0,
                        "can't be used: nothing was heard of it for %d s; does "
                        "its disk answer, or is a process stopped that uses "
                        "it?", START_TIMEOUT / 1000);

    } else if (start_pass(from, start, 0) != START_FOUND) {
        start->rc = start_refuse(start, 0,
                        "can't be used: the process that looks at it has told "
                        "nothing");
    }

    start->why[sizeof(start->why) - 1] = '\0';
    start->late = (start->rc != NGX_OK);

    for (i = 0; i < START_REAP; i++) {

        if (waitpid(pid, &status, hangs ? WNOHANG : 0) != pid) {
            ngx_msleep(1);
            continue;
        }

        if (!hangs && WIFSIGNALED(status)) {
            start->late = 0;

            /* a damaged file does that, but for SIGKILL */

            start->rc = start_refuse(start, WTERMSIG(status) == SIGKILL
                                            ? 0 : START_FOREIGN,
                            "can't be used: the process that looked at it died "
                            "on signal %d; " START_REMEDY, WTERMSIG(status));
        }

        break;
    }
}


/* passes all results, and the open files, from the child to the master */

static ssize_t
start_pass(int fd, ngx_idempotency_start_t *start, ngx_uint_t send)
{
    int              fds[2];
    ssize_t          n;
    ngx_uint_t       i;
    struct iovec     iov;
    struct msghdr    msg;
    struct cmsghdr  *cmsg;

    union {
        struct cmsghdr  head;
        char            space[CMSG_SPACE(sizeof(fds))];
    } control;

    ngx_memzero(&msg, sizeof(struct msghdr));
    ngx_memzero(&control, sizeof(control));

    iov.iov_base = &start->wall;
    iov.iov_len = START_FOUND;

    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    msg.msg_control = &control;
    msg.msg_controllen = sizeof(control);

    cmsg = CMSG_FIRSTHDR(&msg);

    if (send) {
        i = 0;

        if (start->rc == NGX_OK || start->other == NGX_IDEMPOTENCY_TIER_OTHER) {
            fds[i] = start->owners;
            i += (fds[i] != -1);
            fds[i] = start->file;
            i += (fds[i] != -1);
        }

        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(i * sizeof(int));
        ngx_memcpy(CMSG_DATA(cmsg), fds, i * sizeof(int));

        msg.msg_controllen = i ? CMSG_SPACE(i * sizeof(int)) : 0;

        return sendmsg(fd, &msg, MSG_NOSIGNAL);
    }

    do {
        n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
    } while (n == -1 && ngx_errno == NGX_EINTR);

    fds[0] = -1;
    fds[1] = -1;

    cmsg = (n > 0) ? CMSG_FIRSTHDR(&msg) : NULL;

    if (cmsg && cmsg->cmsg_type == SCM_RIGHTS) {
        ngx_memcpy(fds, CMSG_DATA(cmsg),
                   ngx_min(cmsg->cmsg_len - CMSG_LEN(0), sizeof(fds)));
    }

    start->owners = fds[0];
    start->file = fds[1];

    /* without descriptors for all of them there would be no locks */

    if (n > 0 && (msg.msg_flags & MSG_CTRUNC)) {
        start_close(&start->owners);
        start_close(&start->file);
        return -1;
    }

    return n;
}


/* becomes the workers' user, as nginx does */

static ngx_int_t
start_run(ngx_idempotency_start_t *start)
{
    if (geteuid() == 0
        && (setgid(start->group) == -1
            || initgroups(start->username, start->group) == -1
            || setuid(start->user) == -1))
    {
        return start_refuse(start, ngx_errno,
                            "can't be used: to become user %d, group %d failed",
                            (int) start->user, (int) start->group);
    }

    /* without its master the child is useless; and as another user's process it
       would outlive a stop of root's processes */

    (void) prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);

    (void) umask(077);

    return (start_check(start) != NGX_OK) ? NGX_ERROR
           : ngx_test_config ? start_test(start) : start_open(start);
}


/* --- where the file is ---------------------------------------------------- */


/*
 * Refuses by names, rights and the first bytes: SQLite judges the rest, but it
 * repairs files that it takes for its own.  Changes nothing.
 */

static ngx_int_t
start_check(ngx_idempotency_start_t *start)
{
    start->found = 0;
    start->left = 0;
    start->open = 0;
    start->made = 0;
    start->other = NGX_IDEMPOTENCY_TIER_SAME;

    return (start_directory(start) == NGX_OK && start_files(start) == NGX_OK)
           ? start_header(start) : NGX_ERROR;
}


/* SQLite makes and removes files beside its own */

static ngx_int_t
start_directory(ngx_idempotency_start_t *start)
{
    char           dir[NGX_IDEMPOTENCY_FILE_PATH + 1];
    ngx_uint_t     i;
    struct statfs  fs;

    if (start->path.len > NGX_IDEMPOTENCY_FILE_PATH) {
        return start_refuse(start, 0,
                            "has too long a name: %d bytes are possible",
                            NGX_IDEMPOTENCY_FILE_PATH);
    }

    start_parent((char *) start->path.data, dir);

    if (access(dir, W_OK|X_OK) == -1 || statfs(dir, &fs) == -1) {
        return start_refuse(start, ngx_errno,
                            "can't be used: the user that the workers run as, "
                            "which is %d, must be able to write to its "
                            "directory", (int) geteuid());
    }

    for (i = 0; i < sizeof(start_networks) / sizeof(uint32_t); i++) {

        if ((uint32_t) fs.f_type == start_networks[i]) {
            return start_refuse(start, 0,
                                "is on a network file system; name a path on a "
                                "disk of this machine");
        }
    }

    return NGX_OK;
}


/* A log may hold all recent commits, and would be taken for a new file's.  A
   link is refused, as the names of logs and locks derive from the file's. */

static ngx_int_t
start_files(ngx_idempotency_start_t *start)
{
    char         name[START_NAME];
    ngx_uint_t   i;
    struct stat  st;

    for (i = 0; i < START_FILES; i++) {

        (void) snprintf(name, START_NAME, "%s%s", (char *) start->path.data,
                        start_suffixes[i]);

        if (lstat(name, &st) == -1) {

            if (ngx_errno == NGX_ENOENT) {
                continue;
            }

            return start_refuse(start, ngx_errno, "can't be looked at");
        }

        if (start_rights(start, name, &st) != NGX_OK) {
            return NGX_ERROR;
        }

        if (i == 0) {
            start->found = (st.st_size != 0);

        } else if (i <= START_LOGS) {
            start->left |= (st.st_size != 0);
        }
    }

    return NGX_OK;
}


static ngx_int_t
start_rights(ngx_idempotency_start_t *start, const char *name,
    struct stat *st)
{
    int  user;

    user = geteuid();

    if (!S_ISREG(st->st_mode)) {
        return start_refuse(start, START_FOREIGN,
                            "can't be used: %s is no regular file", name);
    }

    if (st->st_nlink > 1) {
        return start_refuse(start, START_FOREIGN,
                            "can't be used: %s has %d names", name,
                            (int) st->st_nlink);
    }

    if ((int) st->st_uid != user) {
        return start_refuse(start, 0,
                            "can't be used: %s belongs to user %d, and the "
                            "workers run as %d", name, (int) st->st_uid, user);
    }

    /* nginx -t opens it only to read */

    if ((st->st_mode & 0600) != 0600) {
        return start_refuse(start, 0, "can't be used: %s has the mode %04o",
                            name, (int) (st->st_mode & 07777));
    }

    start->open |= (st->st_mode & 077) != 0;

    return NGX_OK;
}


/*
 * A process that closes the file properly removes the log's index.  An index
 * without its log tells whether the log had commits that the file lacks.
 */

static ngx_uint_t
start_log_is_lost(const char *path)
{
    char         name[START_NAME];
    uint32_t     index[INDEX_WORDS];
    struct stat  st;

    (void) snprintf(name, START_NAME, "%s-wal", path);

    if (lstat(name, &st) == 0) {
        return 0;
    }

    (void) snprintf(name, START_NAME, "%s-shm", path);

    return start_read(name, index, sizeof(index)) == sizeof(index)
           && index[0] == INDEX_VERSION
           && index[INDEX_LOGGED] > index[INDEX_FILED];
}


static ngx_int_t
start_header(ngx_idempotency_start_t *start)
{
    int      version;
    u_char   header[HEADER_SIZE];

    /* a worker that agrees may have the file open: closing a descriptor would
       drop SQLite's locks */

    if (!start->found || start->agreed) {
        return NGX_OK;
    }

    ngx_memzero(header, HEADER_SIZE);

    if (start_read((char *) start->path.data, header, HEADER_SIZE) == -1) {
        return start_refuse(start, ngx_errno, "can't be read");
    }

    if (ngx_memcmp(header, HEADER_MAGIC, sizeof(HEADER_MAGIC)) != 0
        || start_number(header + NGX_IDEMPOTENCY_DB_ID_AT)
           != NGX_IDEMPOTENCY_DB_ID)
    {
        return start_refuse(start, START_FOREIGN,
                            "is a file of another program, or damaged; name "
                            "another path, or restore it");
    }

    version = start_number(header + HEADER_VERSION);

    if (version != NGX_IDEMPOTENCY_DB_VERSION) {
        return start_refuse(start, START_FOREIGN,
                            "is of version %d, and this module knows version "
                            "%d; load the module that wrote it, or name "
                            "another path", version,
                            NGX_IDEMPOTENCY_DB_VERSION);
    }

    return NGX_OK;
}


/* reads the first bytes of a file */

static ssize_t
start_read(const char *name, void *buf, size_t len)
{
    int      fd;
    ssize_t  n;

    fd = open(name, O_RDONLY|O_CLOEXEC|O_NOFOLLOW|O_NONBLOCK);

    if (fd == -1) {
        return -1;
    }

    n = read(fd, buf, len);

    (void) close(fd);

    return n;
}


static ngx_uint_t
start_number(u_char *p)
{
    return ((ngx_uint_t) p[0] << 24) + (p[1] << 16) + (p[2] << 8) + p[3];
}


static void
start_parent(const char *path, char *dir)
{
    char  *slash;

    strcpy(dir, path);

    slash = strrchr(dir, '/');
    slash[slash == dir] = '\0';
}


/* SQLite's message may be longer than a line; a refused start is no instance */

static ngx_int_t
start_refuse(ngx_idempotency_start_t *start, ngx_err_t err,
    const char *fmt, ...)
{
    int       n;
    char     *p;
    va_list   args;

    va_start(args, fmt);
    n = vsnprintf(start->why, sizeof(start->why), fmt, args);
    va_end(args);

    start->other = (err < 0) ? -err : NGX_IDEMPOTENCY_TIER_SAME;

    /* in nginx's own form */

    if (err > 0 && n < (int) sizeof(start->why)) {
        (void) snprintf(start->why + n, sizeof(start->why) - n, " (%d: %s)",
                        err, strerror(err));
    }

    for (p = start->why; *p; p++) {
        if (*p == LF) {
            *p = ' ';
        }
    }

    start->instance = 0;

    return NGX_ERROR;
}


/* --- the instance --------------------------------------------------------- */


/*
 * Agreed: the file is the store from now on, under a new identity, which tells
 * processes that still used it as it was.  The file that was opened here stays
 * open, as closing it would drop SQLite's locks.
 */

ngx_int_t
ngx_idempotency_start_late(ngx_idempotency_start_t *start)
{
    ngx_int_t  rc;

    rc = start_check(start);

    if (rc == NGX_OK && start->was && !start->agreed) {
        start->owners = ngx_idempotency_owners_open((char *) start->path.data,
                                                    0);
        start->instance = start->was;

    } else if (rc == NGX_OK) {
        rc = start_open(start);
    }

    /* other workers hold the instance by open files of their own */

    if (rc == NGX_OK) {
        rc = ngx_idempotency_owners_hold(start->owners, F_RDLCK,
                                         start->instance);
        if (rc != NGX_OK) {
            (void) start_refuse(start, ngx_errno, "can't be locked");
        }
    }

    if (rc != NGX_OK && start->other != NGX_IDEMPOTENCY_TIER_OTHER
        && !start->agreed)
    {
        start_close(&start->owners);
        start_close(&start->file);
    }

    return rc;
}


static ngx_int_t
start_open(ngx_idempotency_start_t *start)
{
    char       *path;
    ngx_int_t   rc;

    path = (char *) start->path.data;

    if (start->owners == -1) {
        start->owners = ngx_idempotency_owners_open(path, 1);
    }

    if (start->owners == -1) {
        return start_refuse(start, ngx_errno,
                            "can't be used: %s-owners can't be opened", path);
    }

    rc = ngx_idempotency_owners_lock(start->owners,
                                     NGX_IDEMPOTENCY_OWNERS_START, START_WAIT);

    if (rc == NGX_BUSY) {
        return start_refuse(start, 0,
                            "is being started by another nginx, which does not "
                            "answer");
    }

    if (rc != NGX_OK) {
        return start_refuse(start, ngx_errno,
                            "is on a file system without locks; name a path on "
                            "a disk of this machine");
    }

    /* only one start at a time gets here: nothing appears or goes meanwhile */

    rc = start_check(start);

    if (rc == NGX_OK) {
        rc = start_instance(start);
    }

    ngx_idempotency_owners_unlock(start->owners, NGX_IDEMPOTENCY_OWNERS_START);

    return rc;
}


static ngx_int_t
start_instance(ngx_idempotency_start_t *start)
{
    char        name[START_NAME];
    ngx_uint_t  i;

    if (start_witness(start) != NGX_OK) {
        return NGX_ERROR;
    }

    for (i = 0; start->open && i < START_FILES; i++) {
        (void) snprintf(name, START_NAME, "%s%s", (char *) start->path.data,
                        start_suffixes[i]);
        (void) chmod(name, 0600);
    }

    if ((start->found ? start_hold(start, (char *) start->path.data)
                      : start_make(start))
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    /* the two would have different files, and execute each other's claims; a
       number that our workers have had until now is ours */

    if (ngx_idempotency_owners_strangers(start->owners, start->instance,
                                         start->was)
        || (start->instance != start->was
            && ngx_idempotency_owners_hold(start->owners, F_WRLCK,
                                           start->instance)
               != NGX_OK))
    {
        return start_refuse(start, START_FOREIGN,
                            "was replaced while an nginx uses the one that was "
                            "there; end that first");
    }

    if (ngx_idempotency_witness_write((char *) start->path.data, &start->mark,
                                      start->agreed || !start->marked)
        != NGX_OK)
    {
        start->witness = ngx_errno;
    }

    return NGX_OK;
}


/* the witness is read before the file: others may advance both meanwhile;
   who removes it agrees to a file without its log, and to an empty one */

static ngx_int_t
start_witness(ngx_idempotency_start_t *start)
{
    char       *path;
    ngx_int_t   rc;

    path = (char *) start->path.data;

    rc = ngx_idempotency_witness_read(path, &start->mark);

    start->marked = (rc == NGX_OK);
    start->witness = (rc == NGX_ERROR) ? ngx_errno : 0;

    if (start->agreed
        || (start->found ? !(start->marked && start_log_is_lost(path))
                         : !(start->marked || start->left || start->witness)))
    {
        return NGX_OK;
    }

    if (start->found) {
        return start_refuse(start, START_OTHER, "is without %s-wal, which had "
                            "what was written last", path);
    }

    return start_refuse(start, START_OTHER, "is %s, and has left %s-%s",
                        access(path, F_OK) == 0 ? "empty" : "gone", path,
                        start->left ? "wal" : "witness");
}


/* the file appears under its name only when it is whole */

static ngx_int_t
start_make(ngx_idempotency_start_t *start)
{
    int    fd;
    char  *path, dir[NGX_IDEMPOTENCY_FILE_PATH + 1], name[START_NAME];

    path = (char *) start->path.data;
    start->made = 1;

    (void) snprintf(name, START_NAME, "%s.new", path);

    /* the remains of a removed file, and of a start that was killed */

    if (start->agreed) {
        start_remove_logs(path);
    }

    start_remove_logs(name);
    (void) unlink(name);

    fd = open(name, O_RDWR|O_CREAT|O_EXCL|O_CLOEXEC|O_NOFOLLOW, 0600);

    if (fd == -1) {
        return start_refuse(start, ngx_errno, "can't be made");
    }

    (void) close(fd);

    if (start_hold(start, name) != NGX_OK) {
        goto failed;
    }

    start_parent(path, dir);

    fd = open(dir, O_RDONLY|O_DIRECTORY|O_CLOEXEC);

    if (fd == -1 || rename(name, path) == -1 || fsync(fd) == -1) {
        (void) start_refuse(start, ngx_errno, "can't be made");
        start_close(&fd);
        goto failed;
    }

    (void) close(fd);

    return NGX_OK;

failed:

    start_remove_logs(name);
    (void) unlink(name);

    return NGX_ERROR;
}


static void
start_remove_logs(const char *name)
{
    char        other[START_NAME];
    ngx_uint_t  i;

    for (i = 1; i <= START_SQLITE; i++) {
        (void) snprintf(other, START_NAME, "%s%s", name, start_suffixes[i]);
        (void) unlink(other);
    }
}


/* opened before SQLite opens the file, and not closed while it has it open */

static ngx_int_t
start_hold(ngx_idempotency_start_t *start, const char *name)
{
    start->file = open(name, O_RDWR|O_CLOEXEC|O_NOFOLLOW|O_NONBLOCK);

    if (start->file == -1) {
        return start_refuse(start, ngx_errno, "can't be opened");
    }

    if (ngx_idempotency_owners_only(start->file, start->owners) != NGX_OK) {

        /* this may have locked its way, and would keep the others out */

        if (!start->agreed) {
            start_close(&start->file);
        }

        return start_refuse_way(start);
    }

    start_clocks(start);

    return ngx_idempotency_start_database(name, start);
}


static ngx_int_t
start_refuse_way(ngx_idempotency_start_t *start)
{
    return start_refuse(start, START_OTHER,
                        "is used by an nginx that has another way to it, with "
                        "another log and other locks: a mount of the file "
                        "alone, or of one of its names; mount its directory");
}


static void
start_clocks(ngx_idempotency_start_t *start)
{
    char     *p, offsets[128];
    ssize_t   n;

    start->wall = ngx_idempotency_start_clock(CLOCK_REALTIME);
    start->boottime = ngx_idempotency_start_clock(CLOCK_BOOTTIME);

    if (start_read("/proc/sys/kernel/random/boot_id", start->boot, START_BOOT)
        < START_BOOT - 1)
    {
        start->boot[0] = '\0';
        return;
    }

    start->boot[START_BOOT - 1] = '\0';

    /* a container may have a clock of its own, in a namespace whose name may be
       used again */

    n = start_read("/proc/self/timens_offsets", offsets, sizeof(offsets) - 1);
    offsets[ngx_max(n, 0)] = '\0';

    p = strstr(offsets, "boottime");

    if (p) {
        (void) snprintf(start->boot + START_BOOT - 1,
                        sizeof(start->boot) - START_BOOT + 1, " %lld",
                        strtoll(p + sizeof("boottime") - 1, NULL, 10));
    }
}


int64_t
ngx_idempotency_start_clock(clockid_t id)
{
    struct timespec  ts;

    (void) clock_gettime(id, &ts);

    return (int64_t) ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}


/* --- the database --------------------------------------------------------- */


ngx_int_t
ngx_idempotency_start_database(const char *path, ngx_idempotency_start_t *start)
{
    int          rc;
    sqlite3     *sqlite;
    ngx_uint_t   i;

    static int  (*checks[])(sqlite3 *sqlite, ngx_idempotency_start_t *start) = {
        start_tables,
        start_whole,
        start_matches
    };

    rc = ngx_idempotency_db_connect(path, &sqlite);

    if (rc == SQLITE_OK) {
        (void) sqlite3_busy_timeout(sqlite, START_BUSY);

        rc = sqlite3_exec(sqlite, "PRAGMA synchronous = FULL", NULL, NULL,
                          NULL);
    }

    if (rc != SQLITE_OK) {
        (void) start_error(start, sqlite, rc);

    } else if (!start->found) {
        rc = start_make_tables(sqlite, start);
    }

    for (i = 0; rc == SQLITE_OK && i < sizeof(checks) / sizeof(checks[0]); i++)
    {
        rc = checks[i](sqlite, start);
    }

    if (rc == SQLITE_OK && start->owners != -1
        && ngx_idempotency_owners_lock(start->owners,
                                       NGX_IDEMPOTENCY_OWNERS_COMMIT,
                                       START_BUSY)
           != NGX_OK)
    {
        (void) start_refuse(start, ngx_errno, "can't be locked");
        rc = SQLITE_ERROR;
    }

    if (rc == SQLITE_OK) {
        rc = start_give_number(sqlite, start);

        if (start->owners != -1) {
            ngx_idempotency_owners_unlock(start->owners,
                                          NGX_IDEMPOTENCY_OWNERS_COMMIT);
        }
    }

    if (sqlite3_close(sqlite) != SQLITE_OK && rc == SQLITE_OK) {
        return start_refuse(start, 0, "can't be closed");
    }

    return (rc == SQLITE_OK) ? NGX_OK : NGX_ERROR;
}


/*
 * nginx -t: refuses a file of another key, a damaged one, or another one than
 * before.  A log is read with its index, which exists while anybody uses the
 * file.
 */

static ngx_int_t
start_test(ngx_idempotency_start_t *start)
{
    int           rc;
    char          uri[3 * NGX_IDEMPOTENCY_FILE_PATH + 64], *p;
    u_char       *path;
    sqlite3      *sqlite;

    if (start_witness(start) != NGX_OK) {
        return NGX_ERROR;
    }

    if (!start->found) {
        return NGX_OK;
    }

    if (ngx_idempotency_owners_another_way((char *) start->path.data)) {
        return start_refuse_way(start);
    }

    p = uri + snprintf(uri, sizeof(uri), "file:");

    for (path = start->path.data; *path; path++) {
        p += snprintf(p, 4, strchr("%?#", *path) ? "%%%02X" : "%c", *path);
    }

    (void) snprintf(p, uri + sizeof(uri) - p, "?mode=ro%s",
                    start->left ? "" : "&immutable=1");

    rc = sqlite3_open_v2(uri, &sqlite,
                         SQLITE_OPEN_READONLY|SQLITE_OPEN_URI
                         |SQLITE_OPEN_NOMUTEX|SQLITE_OPEN_PRIVATECACHE, NULL);

    if (rc == SQLITE_OK) {
        (void) sqlite3_busy_timeout(sqlite, NGX_IDEMPOTENCY_DB_BUSY);

        rc = start_tables(sqlite, start);
    }

    if (rc == SQLITE_OK) {
        rc = start_matches(sqlite, start);
    }

    (void) sqlite3_close(sqlite);

    return start->other ? NGX_ERROR : NGX_OK;
}


static int
start_make_tables(sqlite3 *sqlite, ngx_idempotency_start_t *start)
{
    int   rc;
    char  stamp[2 * NGX_IDEMPOTENCY_STAMP_LEN + 1], sql[256];

    *ngx_hex_dump((u_char *) stamp, start->stamp, NGX_IDEMPOTENCY_STAMP_LEN)
        = '\0';

    (void) snprintf(sql, sizeof(sql),
                    "PRAGMA application_id = %d; PRAGMA user_version = %d;"
                    "INSERT INTO meta VALUES "
                    "(1, %lld, 0, 0, randomblob(%d), 0, '', 0, x'%s', %d);"
                    "COMMIT",
                    NGX_IDEMPOTENCY_DB_ID, NGX_IDEMPOTENCY_DB_VERSION,
                    (long long) (start->wall
                                 << NGX_IDEMPOTENCY_OWNERS_STORE_SHIFT),
                    NGX_IDEMPOTENCY_MARK_LEN, stamp,
                    NGX_IDEMPOTENCY_FINGERPRINT_VERSION);

    rc = sqlite3_exec(sqlite, "PRAGMA page_size = 4096;"
                              "PRAGMA journal_mode = WAL;"
                              "BEGIN IMMEDIATE", NULL, NULL, NULL);

    if (rc == SQLITE_OK) {
        rc = sqlite3_exec(sqlite, start_schema, NULL, NULL, NULL);
    }

    if (rc == SQLITE_OK) {
        rc = sqlite3_exec(sqlite, sql, NULL, NULL, NULL);
    }

    return (rc == SQLITE_OK) ? rc : start_error(start, sqlite, rc);
}


/*
 * A view, trigger, default or check would run another program's code, and a
 * file shared with another program may be removed or replaced by it: so the
 * file must have the tables above, to the letter.
 */

static int
start_tables(sqlite3 *sqlite, ngx_idempotency_start_t *start)
{
    int       rc;
    char      meant[4096], found[4096];
    sqlite3  *ours;

    static const char  sql[] =
        "SELECT group_concat(coalesce(sql, name)) "
        "FROM (SELECT sql, name FROM sqlite_master ORDER BY name)";

    rc = sqlite3_open(":memory:", &ours);

    if (rc == SQLITE_OK) {
        rc = sqlite3_exec(ours, start_schema, NULL, NULL, NULL);
    }

    if (rc == SQLITE_OK) {
        rc = start_text(ours, sql, meant, sizeof(meant));
    }

    (void) sqlite3_close(ours);

    if (rc == SQLITE_OK) {
        rc = start_text(sqlite, sql, found, sizeof(found));
    }

    if (rc != SQLITE_OK) {
        return start_error(start, sqlite, rc);
    }

    if (ngx_strcmp(meant, found) != 0) {
        (void) start_refuse(start, START_FOREIGN,
                            "has not the tables of this module alone; remove "
                            "what is not its own, or name another path");
        return SQLITE_AUTH;
    }

    return SQLITE_OK;
}


/*
 * A token made with another key would be a fresh one; fingerprints of another
 * version can't be compared; and the file must be the one, as far written, that
 * the witness tells of.
 */

static int
start_matches(sqlite3 *sqlite, ngx_idempotency_start_t *start)
{
    int                       rc;
    ngx_uint_t                same;
    start_meta_t              meta;
    ngx_idempotency_stamp_e   differs;

    static const char  *why[] = {
        NULL,
        "was made with another digest key than that of \"idempotency_secret\"",
        "was made with a digest key, and no \"idempotency_secret\" has one",
        "was made without a digest key, and \"idempotency_secret\" has one"
    };

    rc = start_meta(sqlite, &meta);

    if (rc != SQLITE_OK) {
        return start_error(start, sqlite, rc);
    }

    differs = ngx_idempotency_stamp_differs(start->stamp, meta.stamp);

    if (differs != NGX_IDEMPOTENCY_STAMP_SAME) {
        (void) start_refuse(start, START_FOREIGN,
                            "%s; it would not know its tokens again: restore "
                            "what it was made with, or remove it to begin anew",
                            why[differs]);
        return SQLITE_MISMATCH;
    }

    if (meta.version != NGX_IDEMPOTENCY_DB_VERSION
        || meta.fingerprints != NGX_IDEMPOTENCY_FINGERPRINT_VERSION)
    {
        (void) start_refuse(start, START_FOREIGN,
                            "is of version %d, with fingerprints of version "
                            "%d, and this module knows %d and %d; load the "
                            "module that wrote it", meta.version,
                            meta.fingerprints, NGX_IDEMPOTENCY_DB_VERSION,
                            NGX_IDEMPOTENCY_FINGERPRINT_VERSION);
        return SQLITE_MISMATCH;
    }

    same = start->marked
           && ngx_idempotency_db_same(&start->mark, meta.identity, meta.number,
                                      start->why, sizeof(start->why));

    if (start->marked && !same && !start->agreed) {
        start->other = NGX_IDEMPOTENCY_TIER_OTHER;
        rc = SQLITE_MISMATCH;
    }

    /* somebody has agreed to it in another nginx, which goes on with it */

    start->joins = same && ngx_memcmp(start->known, meta.identity,
                                      NGX_IDEMPOTENCY_MARK_LEN)
                           != 0;

    ngx_memcpy(start->mark.identity, meta.identity, NGX_IDEMPOTENCY_MARK_LEN);
    start->mark.number = meta.number;

    return rc;
}


/* Whether the file is damaged.  It may be too large to be read as a whole
   before nginx serves: it is read for a limited time. */

static int
start_whole(sqlite3 *sqlite, ngx_idempotency_start_t *start)
{
    int             rc;
    char            text[128];
    pthread_t       tid;
    start_alarm_t   alarm;

    alarm.sqlite = sqlite;
    alarm.ended = 0;

    if (pthread_create(&tid, NULL, start_alarm, &alarm) != 0) {
        (void) start_refuse(start, 0, "can't be checked: no thread");
        return SQLITE_ERROR;
    }

    rc = start_text(sqlite, "PRAGMA quick_check", text, sizeof(text));

    alarm.ended = 1;
    (void) pthread_join(tid, NULL);

    /* a page that the disk can't read is no damage */

    if (rc == SQLITE_OK && ngx_strcmp(text, "ok") != 0) {
        rc = start_error(start, sqlite, SQLITE_CORRUPT);

        if (start->other) {
            (void) start_refuse(start, START_FOREIGN,
                                "is damaged: %s; " START_REMEDY, text);
        }

        return rc;
    }

    return (rc == SQLITE_OK || rc == SQLITE_INTERRUPT)
           ? SQLITE_OK : start_error(start, sqlite, rc);
}


static void *
start_alarm(void *data)
{
    start_alarm_t *alarm = data;

    ngx_uint_t  i;

    for (i = 0; i < START_CHECK && !alarm->ended; i++) {
        ngx_msleep(1);
    }

    if (!alarm->ended) {
        sqlite3_interrupt(alarm->sqlite);
    }

    return NULL;
}


/* One transaction, as two starts may come at once.  A copy of the file may be
   without a log (WAL). */

static int
start_give_number(sqlite3 *sqlite, ngx_idempotency_start_t *start)
{
    int            rc;
    start_meta_t   meta;
    sqlite3_stmt  *st;

    st = NULL;

    rc = sqlite3_exec(sqlite, "PRAGMA journal_mode = WAL; BEGIN IMMEDIATE",
                      NULL, NULL, NULL);

    if (rc == SQLITE_OK) {
        rc = start_meta(sqlite, &meta);
    }

    if (rc == SQLITE_OK) {
        rc = sqlite3_prepare_v2(sqlite,
                                "UPDATE meta SET instance = ?1, latest = ?2, "
                                "boot = ?3, base = ?4, number = ?5, "
                                "identity = ?6", -1, &st, NULL);
    }

    if (rc != SQLITE_OK) {
        return start_error(start, sqlite, rc);
    }

    start->instance = meta.instance + 1;
    start->fence = meta.fence;
    start->latest = meta.latest;
    start->base = meta.base;
    start->mark.number = (ngx_atomic_uint_t)
                             ngx_idempotency_db_number(meta.number + 1);

    /* a new identity, so that processes notice a file that was set back */

    if (start->agreed && !start->joins) {
        sqlite3_randomness(NGX_IDEMPOTENCY_MARK_LEN, start->mark.identity);
    }

    /* the wall clock counts only after a boot; time never goes back */

    if (meta.boot[0] == '\0' || ngx_strcmp(meta.boot, start->boot) != 0) {
        start->base = start->wall - start->boottime;
    }

    start->base = ngx_max(start->base, start->latest - start->boottime);
    start->latest = ngx_max(start->latest, start->base + start->boottime);

    (void) sqlite3_bind_int64(st, 1, start->instance);
    (void) sqlite3_bind_int64(st, 2, start->latest);
    (void) sqlite3_bind_text(st, 3, start->boot, -1, SQLITE_STATIC);
    (void) sqlite3_bind_int64(st, 4, start->base);
    (void) sqlite3_bind_int64(st, 5,
                              ngx_idempotency_db_number(meta.number + 1));
    (void) sqlite3_bind_blob(st, 6, start->mark.identity,
                             NGX_IDEMPOTENCY_MARK_LEN, SQLITE_STATIC);

    rc = sqlite3_step(st);

    (void) sqlite3_finalize(st);

    if (rc == SQLITE_DONE) {
        rc = sqlite3_exec(sqlite, "COMMIT", NULL, NULL, NULL);
    }

    return (rc == SQLITE_OK) ? rc : start_error(start, sqlite, rc);
}


static int
start_meta(sqlite3 *sqlite, start_meta_t *meta)
{
    int            rc;
    const char    *boot;
    const void    *identity, *stamp;
    sqlite3_stmt  *st;

    rc = sqlite3_prepare_v2(sqlite,
                            "SELECT instance, fence, latest, base, number, "
                            "version, user_version, boot, identity, stamp "
                            "FROM meta, pragma_user_version", -1, &st, NULL);

    if (rc == SQLITE_OK) {
        rc = sqlite3_step(st);
    }

    if (rc == SQLITE_ROW) {
        meta->instance = sqlite3_column_int64(st, 0);
        meta->fence = sqlite3_column_int64(st, 1);
        meta->latest = sqlite3_column_int64(st, 2);
        meta->base = sqlite3_column_int64(st, 3);
        meta->number = sqlite3_column_int64(st, 4);
        meta->fingerprints = sqlite3_column_int(st, 5);
        meta->version = sqlite3_column_int(st, 6);
        boot = (const char *) sqlite3_column_text(st, 7);
        identity = sqlite3_column_blob(st, 8);
        stamp = sqlite3_column_blob(st, 9);

        rc = SQLITE_CORRUPT;

        if (boot && identity && stamp
            && meta->fence < NGX_IDEMPOTENCY_DB_MOST
            && sqlite3_column_bytes(st, 8) == NGX_IDEMPOTENCY_MARK_LEN
            && sqlite3_column_bytes(st, 9) == NGX_IDEMPOTENCY_STAMP_LEN)
        {
            (void) snprintf(meta->boot, sizeof(meta->boot), "%s", boot);
            ngx_memcpy(meta->identity, identity, NGX_IDEMPOTENCY_MARK_LEN);
            ngx_memcpy(meta->stamp, stamp, NGX_IDEMPOTENCY_STAMP_LEN);
            rc = SQLITE_OK;
        }

    } else if (rc == SQLITE_DONE) {
        rc = SQLITE_CORRUPT;
    }

    (void) sqlite3_finalize(st);

    return rc;
}


/* the first column of the first row */

static int
start_text(sqlite3 *sqlite, const char *sql, char *text, size_t len)
{
    int            rc;
    const char    *value;
    sqlite3_stmt  *st;

    rc = sqlite3_prepare_v2(sqlite, sql, -1, &st, NULL);

    if (rc == SQLITE_OK) {
        rc = sqlite3_step(st);
    }

    if (rc == SQLITE_ROW) {
        value = (const char *) sqlite3_column_text(st, 0);
        (void) snprintf(text, len, "%s", value ? value : "");
        rc = SQLITE_OK;
    }

    (void) sqlite3_finalize(st);

    return rc;
}


static int
start_error(ngx_idempotency_start_t *start, sqlite3 *sqlite, int rc)
{
    char        error[NGX_IDEMPOTENCY_DB_ERROR];
    ngx_uint_t  wrong;

    wrong = ngx_idempotency_db_error(error, sizeof(error), sqlite, rc);

    (void) start_refuse(start, wrong ? START_FOREIGN : 0, "%s", error);

    return rc;
}


#endif
