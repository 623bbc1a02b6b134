
/*
 * The start, in the master.  SQLite is opened in no process that others are
 * forked from, nothing that is in a directory of the workers' user is touched
 * as root (who makes that directory if it has to), and what is damaged may end
 * whoever reads it: so a child does it, as that user, and tells what became of
 * it, with the open file by whose lock the instance lives.
 */


#include "ngx_idempotency_db.h"
#include "ngx_idempotency_place.h"
#include "ngx_idempotency_start.h"


#if (NGX_IDEMPOTENCY_FILE)

#include <poll.h>
#include <sys/prctl.h>


/* no file takes so long; one that hangs is to end sometime */

#define START_TIMEOUT  60000

/* by so much the file's time may be ahead of the clock, unsaid */

#define START_AHEAD    60000


typedef struct {
    ngx_int_t                   rc;
    ngx_uint_t                  made;
    ngx_uint_t                  others;
    ngx_idempotency_place_t     place;
    ngx_idempotency_db_start_t  db;
} start_report_t;


static void start_cleanup(void *data);
static ngx_int_t start_child(ngx_idempotency_start_t *start,
    start_report_t *report, ngx_log_t *log);
static ngx_int_t start_hear(ngx_idempotency_start_t *start,
    start_report_t *report, int from, ngx_pid_t pid, ngx_log_t *log);
static ssize_t start_receive(int from, start_report_t *report, int *fd);
static ngx_int_t start_end(ngx_idempotency_start_t *start, ngx_pid_t pid,
    ngx_uint_t late, ngx_log_t *log);
static void start_tell(ngx_idempotency_start_t *start, start_report_t *report,
    ngx_log_t *log);

static void start_run(ngx_idempotency_start_t *start, start_report_t *report,
    int to);
static ngx_int_t start_become(ngx_idempotency_start_t *start,
    ngx_idempotency_place_t *place);
static ngx_int_t start_peek(start_report_t *report);
static ngx_int_t start_open(start_report_t *report, int *fd);
static ngx_int_t start_file(start_report_t *report, int fd);
static ngx_int_t start_make(start_report_t *report);
static ngx_int_t start_database(start_report_t *report, const char *name);
static void start_clocks(ngx_idempotency_db_start_t *db);
static int64_t start_clock(clockid_t id);
static void start_send(int to, start_report_t *report, int fd);


ngx_int_t
ngx_idempotency_start(ngx_idempotency_start_t *start, ngx_pool_t *pool,
    ngx_log_t *log)
{
    start_report_t      *report;
    ngx_pool_cleanup_t  *cln;

    start->owners = -1;

    report = ngx_pcalloc(pool, sizeof(start_report_t));
    cln = ngx_pool_cleanup_add(pool, 0);

    if (report == NULL || cln == NULL) {
        return NGX_ERROR;
    }

    cln->handler = start_cleanup;
    cln->data = start;

    if (start_child(start, report, log) != NGX_OK) {
        return NGX_ERROR;
    }

    if (report->rc != NGX_OK) {
        ngx_log_error(NGX_LOG_EMERG, log, report->place.err,
                      "the state file \"%V\" %s", &start->path,
                      report->place.why);
        return NGX_ERROR;
    }

    start->instance = report->db.instance;
    start->fence = report->db.fence;
    start->base = report->db.base;
    start->version = report->db.version;

    start_tell(start, report, log);

    return NGX_OK;
}


ngx_int_t
ngx_idempotency_start_keep(ngx_idempotency_start_t *start,
    ngx_idempotency_start_t *old, ngx_pool_t *pool, ngx_log_t *log)
{
    ngx_pool_cleanup_t  *cln;

    cln = ngx_pool_cleanup_add(pool, 0);
    if (cln == NULL) {
        return NGX_ERROR;
    }

    start->instance = old->instance;
    start->fence = old->fence;
    start->base = old->base;
    start->version = old->version;

    /* the old configuration closes its own, and the locks are of both */

    start->owners = fcntl(old->owners, F_DUPFD_CLOEXEC, 0);

    if (start->owners == -1) {
        ngx_log_error(NGX_LOG_EMERG, log, ngx_errno,
                      "fcntl(F_DUPFD_CLOEXEC) failed");
        return NGX_ERROR;
    }

    cln->handler = start_cleanup;
    cln->data = start;

    return NGX_OK;
}


void
ngx_idempotency_start_leave(ngx_idempotency_start_t *start)
{
    if (start->owners != -1) {
        (void) close(start->owners);
        start->owners = -1;
    }
}


static void
start_cleanup(void *data)
{
    ngx_idempotency_start_leave(data);
}


/* nginx has a handler of SIGCHLD, which must not get this one's status */

static ngx_int_t
start_child(ngx_idempotency_start_t *start, start_report_t *report,
    ngx_log_t *log)
{
    int        ends[2];
    sigset_t   set, old;
    ngx_int_t  rc;
    ngx_pid_t  pid;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET|SOCK_CLOEXEC, 0, ends) == -1) {
        ngx_log_error(NGX_LOG_EMERG, log, ngx_errno, "socketpair() failed");
        return NGX_ERROR;
    }

    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);

    if (sigprocmask(SIG_BLOCK, &set, &old) == -1) {
        ngx_log_error(NGX_LOG_EMERG, log, ngx_errno, "sigprocmask() failed");
        (void) close(ends[0]);
        (void) close(ends[1]);
        return NGX_ERROR;
    }

    pid = fork();

    if (pid == 0) {
        (void) close(ends[0]);
        start_run(start, report, ends[1]);
        _exit(0);
    }

    (void) close(ends[1]);

    if (pid == -1) {
        ngx_log_error(NGX_LOG_EMERG, log, ngx_errno, "fork() failed");
        rc = NGX_ERROR;

    } else {
        rc = start_hear(start, report, ends[0], pid, log);
    }

    (void) close(ends[0]);
    (void) sigprocmask(SIG_SETMASK, &old, NULL);

    return rc;
}


static ngx_int_t
start_hear(ngx_idempotency_start_t *start, start_report_t *report, int from,
    ngx_pid_t pid, ngx_log_t *log)
{
    int            n;
    ngx_uint_t     heard;
    struct pollfd  fd;

    fd.fd = from;
    fd.events = POLLIN;

    do {
        n = poll(&fd, 1, START_TIMEOUT);
    } while (n == -1 && ngx_errno == NGX_EINTR);

    heard = (n == 1 && start_receive(from, report, &start->owners)
                       == sizeof(start_report_t));

    if (n == 0) {
        (void) kill(pid, SIGKILL);
    }

    if (start_end(start, pid, n == 0, log) != NGX_OK) {
        return NGX_ERROR;
    }

    if (!heard) {
        ngx_log_error(NGX_LOG_EMERG, log, 0,
                      "the state file \"%V\" can't be used: the process that "
                      "looks at it has told nothing", &start->path);
        return NGX_ERROR;
    }

    return NGX_OK;
}


static ssize_t
start_receive(int from, start_report_t *report, int *fd)
{
    ssize_t          n;
    struct iovec     iov;
    struct msghdr    msg;
    struct cmsghdr  *cmsg;

    union {
        struct cmsghdr  head;
        char            space[CMSG_SPACE(sizeof(int))];
    } control;

    ngx_memzero(&msg, sizeof(struct msghdr));

    iov.iov_base = report;
    iov.iov_len = sizeof(start_report_t);

    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    msg.msg_control = &control;
    msg.msg_controllen = sizeof(control);

    do {
        n = recvmsg(from, &msg, MSG_CMSG_CLOEXEC);
    } while (n == -1 && ngx_errno == NGX_EINTR);

    cmsg = (n > 0) ? CMSG_FIRSTHDR(&msg) : NULL;

    if (cmsg && cmsg->cmsg_level == SOL_SOCKET
        && cmsg->cmsg_type == SCM_RIGHTS
        && cmsg->cmsg_len == CMSG_LEN(sizeof(int)))
    {
        ngx_memcpy(fd, CMSG_DATA(cmsg), sizeof(int));
    }

    return n;
}


static ngx_int_t
start_end(ngx_idempotency_start_t *start, ngx_pid_t pid, ngx_uint_t late,
    ngx_log_t *log)
{
    int        status;
    ngx_pid_t  n;

    do {
        n = waitpid(pid, &status, 0);
    } while (n == -1 && ngx_errno == NGX_EINTR);

    if (n == -1) {
        ngx_log_error(NGX_LOG_EMERG, log, ngx_errno, "waitpid() failed");
        return NGX_ERROR;
    }

    if (late) {
        ngx_log_error(NGX_LOG_EMERG, log, 0,
                      "the state file \"%V\" can't be used: nothing was heard "
                      "of it for %d s; does its disk answer, or is a process "
                      "stopped that uses it?",
                      &start->path, START_TIMEOUT / 1000);
        return NGX_ERROR;
    }

    if (WIFSIGNALED(status)) {
        ngx_log_error(NGX_LOG_EMERG, log, 0,
                      "the state file \"%V\" can't be used: the process that "
                      "looked at it died on signal %d; restore it, or remove "
                      "it to begin anew", &start->path, WTERMSIG(status));
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* what an operator should know of a start that goes on */

static void
start_tell(ngx_idempotency_start_t *start, start_report_t *report,
    ngx_log_t *log)
{
    int64_t                      ahead;
    char                         mode[8];
    ngx_idempotency_db_start_t  *db;

    if (report->place.open) {
        (void) snprintf(mode, sizeof(mode), "%04o",
                        (unsigned) report->place.open);

        ngx_log_error(NGX_LOG_WARN, log, 0,
                      "the state file \"%V\" %s open to others, with the mode "
                      "%s%s", &start->path, ngx_test_config ? "is" : "was",
                      mode, ngx_test_config ? "" : "; it has 0600 now");
    }

    if (report->place.anybodys) {
        (void) snprintf(mode, sizeof(mode), "%04o",
                        (unsigned) report->place.anybodys);

        ngx_log_error(NGX_LOG_WARN, log, 0,
                      "the state file \"%V\" may be replaced by anybody, as "
                      "its directory has the mode %s", &start->path, mode);
    }

    if (ngx_test_config) {
        return;
    }

    if (report->place.given) {
        ngx_log_error(NGX_LOG_NOTICE, log, 0,
                      "the directory of the state file \"%V\" is the workers' "
                      "now", &start->path);
    }

    if (report->made) {

        /* a disk that is not mounted looks just so */

        ngx_log_error(NGX_LOG_WARN, log, 0,
                      "the state file \"%V\" was made, as there was none: "
                      "no token is known", &start->path);
        return;
    }

    ngx_log_error(NGX_LOG_NOTICE, log, 0,
                  "the state file \"%V\" was found%s", &start->path,
                  report->others ? ", another nginx uses it" : "");

    db = &report->db;
    ahead = db->base + db->boottime - db->wall;

    if (ahead > START_AHEAD) {
        ngx_log_error(NGX_LOG_WARN, log, 0,
                      "the clock is %L s behind the time of the state file "
                      "\"%V\", which counts", ahead / 1000, &start->path);
    }
}


/* the child */

static void
start_run(ngx_idempotency_start_t *start, start_report_t *report, int to)
{
    int  fd;

    fd = -1;

    report->rc = NGX_ERROR;
    report->place.path = (char *) start->path.data;

    ngx_idempotency_place_give(&report->place, start->user, ngx_test_config);

    if (start_become(start, &report->place) == NGX_OK
        && ngx_idempotency_place_check(&report->place) == NGX_OK)
    {
        ngx_memcpy(report->db.stamp, start->stamp, NGX_IDEMPOTENCY_STAMP_LEN);

        report->rc = ngx_test_config ? start_peek(report)
                                     : start_open(report, &fd);
    }

    start_send(to, report, fd);
}


/* as nginx does it for its workers */

static ngx_int_t
start_become(ngx_idempotency_start_t *start, ngx_idempotency_place_t *place)
{
    if (geteuid() == 0) {

        if (setgid(start->group) == -1
            || initgroups(start->username, start->group) == -1
            || setuid(start->user) == -1)
        {
            return ngx_idempotency_place_refuse(place, ngx_errno,
                       "can't be used: to become user %d, group %d failed",
                       (int) start->user, (int) start->group);
        }
    }

    /* nobody would hear it any more; another user does not die with root */

    (void) prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);

    (void) umask(077);

    return NGX_OK;
}


/* nginx -t: whatever may be wrong with it, another's key is */

static ngx_int_t
start_peek(start_report_t *report)
{
    char  error[NGX_IDEMPOTENCY_DB_ERROR];

    if (report->place.found
        && ngx_idempotency_db_peek(report->place.path, &report->db, error,
                                   sizeof(error))
           != NGX_OK)
    {
        return ngx_idempotency_place_refuse(&report->place, 0, "%s", error);
    }

    return NGX_OK;
}


static ngx_int_t
start_open(start_report_t *report, int *fd)
{
    ngx_int_t                 rc;
    ngx_idempotency_place_t  *place;

    place = &report->place;

    *fd = ngx_idempotency_owners_open(place->path, 1);

    if (*fd == -1) {
        return ngx_idempotency_place_refuse(place, ngx_errno,
                   "can't be used: %s-owners can't be opened", place->path);
    }

    if (ngx_idempotency_owners_start_lock(*fd) != NGX_OK) {
        return ngx_idempotency_place_refuse(place, ngx_errno,
                   "is on a file system without locks; name a path on a disk "
                   "of this machine");
    }

    rc = start_file(report, *fd);

    ngx_idempotency_owners_start_unlock(*fd);

    return rc;
}


/* one start at a time gets here: what is there now is there to stay */

static ngx_int_t
start_file(start_report_t *report, int fd)
{
    uint64_t                  instance;
    ngx_int_t                 rc;
    ngx_uint_t                open;
    ngx_idempotency_place_t  *place;

    place = &report->place;
    report->db.owners = fd;

    if (ngx_idempotency_place_check(place) != NGX_OK) {
        return NGX_ERROR;
    }

    open = place->open;

    if (open && ngx_idempotency_place_close(place) != NGX_OK) {
        return NGX_ERROR;
    }

    rc = place->found ? start_database(report, place->path)
                      : start_make(report);

    if (rc != NGX_OK) {
        return NGX_ERROR;
    }

    instance = report->db.instance;

    /* it would not know what they claim, nor they what it claims */

    if (ngx_idempotency_owners_strangers(fd, instance)
        || ngx_idempotency_owners_hold(fd, instance) != NGX_OK)
    {
        return ngx_idempotency_place_refuse(place, 0,
                   "was replaced while an nginx uses the one that was there; "
                   "end that first");
    }

    report->others = ngx_idempotency_owners_others(fd, instance);

    return NGX_OK;
}


static ngx_int_t
start_make(start_report_t *report)
{
    char                      name[NGX_IDEMPOTENCY_FILE_PATH + 8];
    ngx_idempotency_place_t  *place;

    place = &report->place;
    report->made = 1;

    (void) snprintf(name, sizeof(name), "%s.new", place->path);

    if (ngx_idempotency_place_make(place, name) == NGX_OK
        && start_database(report, name) == NGX_OK
        && ngx_idempotency_place_take(place, name) == NGX_OK)
    {
        return NGX_OK;
    }

    ngx_idempotency_place_remove(name);

    return NGX_ERROR;
}


static ngx_int_t
start_database(start_report_t *report, const char *name)
{
    char                        *p, error[NGX_IDEMPOTENCY_DB_ERROR];
    ngx_idempotency_db_start_t  *db;

    db = &report->db;
    db->found = report->place.found;

    start_clocks(db);

    if (ngx_idempotency_db_start(name, db, error, sizeof(error)) != NGX_OK) {

        /* SQLite may have more to say than a line */

        for (p = error; *p; p++) {
            if (*p == LF) {
                *p = ' ';
            }
        }

        return ngx_idempotency_place_refuse(&report->place, 0, "%s", error);
    }

    return NGX_OK;
}


static void
start_clocks(ngx_idempotency_db_start_t *db)
{
    int      fd;
    ssize_t  n;

    db->wall = start_clock(CLOCK_REALTIME);
    db->boottime = start_clock(CLOCK_BOOTTIME);

    fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY|O_CLOEXEC);

    if (fd == -1) {
        return;
    }

    n = read(fd, db->boot, sizeof(db->boot) - 1);

    /* the end of its line, too */

    db->boot[n > 0 ? n - 1 : 0] = '\0';

    (void) close(fd);
}


static int64_t
start_clock(clockid_t id)
{
    struct timespec  ts;

    (void) clock_gettime(id, &ts);

    return (int64_t) ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}


static void
start_send(int to, start_report_t *report, int fd)
{
    struct iovec     iov;
    struct msghdr    msg;
    struct cmsghdr  *cmsg;

    union {
        struct cmsghdr  head;
        char            space[CMSG_SPACE(sizeof(int))];
    } control;

    ngx_memzero(&msg, sizeof(struct msghdr));
    ngx_memzero(&control, sizeof(control));

    iov.iov_base = report;
    iov.iov_len = sizeof(start_report_t);

    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;

    if (report->rc == NGX_OK && fd != -1) {
        msg.msg_control = &control;
        msg.msg_controllen = sizeof(control);

        cmsg = CMSG_FIRSTHDR(&msg);

        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(sizeof(int));

        ngx_memcpy(CMSG_DATA(cmsg), &fd, sizeof(int));
    }

    while (sendmsg(to, &msg, MSG_NOSIGNAL) == -1) {
        if (ngx_errno != NGX_EINTR) {
            return;
        }
    }
}


#endif
