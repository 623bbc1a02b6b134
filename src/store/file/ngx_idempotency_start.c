
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
#include "ngx_idempotency_witness.h"


#if (NGX_IDEMPOTENCY_FILE)

#include <poll.h>
#include <sys/prctl.h>


/* no file takes so long; nginx goes on without one that hangs */

#define START_TIMEOUT  5000

/* one that is killed is waited for, so long */

#define START_REAP     100

/* for so long another start is waited for, and those who commit */

#define START_WAIT     4000

/* the name of a boot, with the end of its line */

#define START_BOOT     37

/* by so much the file's time may be ahead of the clock, unsaid */

#define START_AHEAD    60000


typedef struct {
    ngx_int_t                   rc;
    ngx_uint_t                  made;
    ngx_uint_t                  others;
    ngx_err_t                   witness;
    ngx_idempotency_place_t     place;
    ngx_idempotency_db_start_t  db;
} start_report_t;


static void start_cleanup(void *data);
static void start_forget(ngx_idempotency_start_t *start);
static ngx_int_t start_child(ngx_idempotency_start_t *start,
    start_report_t *report, ngx_log_t *log);
static ngx_int_t start_hear(ngx_idempotency_start_t *start,
    start_report_t *report, int from, ngx_pid_t pid);
static void start_reap(ngx_pid_t pid);
static ssize_t start_receive(int from, start_report_t *report, int *fds);
static void start_end(start_report_t *report, ngx_pid_t pid);
static void start_close(int *fd);
static ngx_int_t start_refused(ngx_idempotency_start_t *start,
    start_report_t *report, ngx_log_t *log);
static void start_tell(ngx_idempotency_start_t *start, start_report_t *report,
    ngx_log_t *log);

static void start_run(ngx_idempotency_start_t *start, start_report_t *report,
    int to);
static ngx_int_t start_become(ngx_idempotency_start_t *start,
    ngx_idempotency_place_t *place);
static ngx_int_t start_peek(start_report_t *report);
static ngx_int_t start_open(start_report_t *report, int *fds);
static ngx_int_t start_file(start_report_t *report, int *fds);
static ngx_int_t start_mark(start_report_t *report);
static ngx_int_t start_hold(start_report_t *report, const char *name,
    int *fds);
static ngx_int_t start_make(start_report_t *report, int *fds);
static ngx_int_t start_database(start_report_t *report, const char *name);
static void start_clocks(ngx_idempotency_db_start_t *db);
static int64_t start_clock(clockid_t id);
static void start_send(int to, start_report_t *report, int *fds);


/* all that this process has, of all configurations */

static ngx_idempotency_start_t  *starts;


ngx_int_t
ngx_idempotency_start(ngx_idempotency_start_t *start, ngx_pool_t *pool,
    ngx_log_t *log)
{
    start_report_t      *report;
    ngx_pool_cleanup_t  *cln;

    start->owners = -1;
    start->file = -1;

    report = ngx_pcalloc(pool, sizeof(start_report_t));
    cln = ngx_pool_cleanup_add(pool, 0);

    if (report == NULL || cln == NULL) {
        return NGX_ERROR;
    }

    cln->handler = start_cleanup;
    cln->data = start;

    start_forget(start);

    start->next = starts;
    starts = start;

    if (start_child(start, report, log) != NGX_OK) {
        return NGX_ERROR;
    }

    start->other = report->db.other;

    if (report->rc != NGX_OK) {
        return start_refused(start, report, log);
    }

    start->instance = report->db.instance;
    start->fence = report->db.fence;
    start->base = report->db.base;
    start->version = report->db.version;
    start->mark = report->db.mark;

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
    start->mark = old->mark;
    start->other = old->other;

    start->owners = -1;
    start->file = -1;

    cln->handler = start_cleanup;
    cln->data = start;

    start_forget(start);

    start->next = starts;
    starts = start;

    /* the old configuration closes its own, and the locks are of both */

    if (old->owners != -1) {
        start->owners = fcntl(old->owners, F_DUPFD_CLOEXEC, 0);
    }

    if (old->file != -1) {
        start->file = fcntl(old->file, F_DUPFD_CLOEXEC, 0);
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


/* a process that may have the file open keeps this one, too, to its end */

void
ngx_idempotency_start_leave(ngx_idempotency_start_t *start)
{
    start_close(&start->owners);

    if (ngx_process == NGX_PROCESS_MASTER || ngx_process == NGX_PROCESS_HELPER)
    {
        start_close(&start->file);
    }
}


void
ngx_idempotency_start_leave_all(void)
{
    ngx_idempotency_start_t  *start;

    for (start = starts; start; start = start->next) {
        ngx_idempotency_start_leave(start);
    }
}


static void
start_cleanup(void *data)
{
    ngx_idempotency_start_leave(data);
    start_forget(data);
}


static void
start_forget(ngx_idempotency_start_t *start)
{
    ngx_idempotency_start_t  **p;

    for (p = &starts; *p; p = &(*p)->next) {
        if (*p == start) {
            *p = start->next;
            break;
        }
    }
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
start_refused(ngx_idempotency_start_t *start, start_report_t *report,
    ngx_log_t *log)
{
    u_char      *p, text[NGX_IDEMPOTENCY_PLACE_WHY];
    ngx_uint_t   level;

    level = start->must ? NGX_LOG_EMERG : NGX_LOG_ALERT;
    p = text;

    if (start->other) {
        p = ngx_slprintf(p, text + sizeof(text),
                         "; to agree to it as it is, PUT {\"store\":"
                         "\"accept\"} to /zones/%V of idempotency_api, or "
                         "remove %V-witness while no nginx runs",
                         &start->zone, &start->path);

    } else if (!start->must) {
        p = ngx_slprintf(p, text + sizeof(text),
                         "; zone \"%V\" is without it until a reload",
                         &start->zone);
    }

    ngx_log_error(level, log, report->place.err,
                  "the state file \"%V\" %s%*s", &start->path,
                  report->place.why, (size_t) (p - text), text);

    if (!start->must) {
        return NGX_DECLINED;
    }

    start_close(&start->owners);
    start_close(&start->file);

    return NGX_ERROR;
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

    report->rc = NGX_ERROR;

    if (pid == -1) {
        ngx_log_error(NGX_LOG_EMERG, log, ngx_errno, "fork() failed");
        rc = NGX_ERROR;

    } else {
        rc = NGX_OK;
        (void) start_hear(start, report, ends[0], pid);
    }

    (void) close(ends[0]);
    (void) sigprocmask(SIG_SETMASK, &old, NULL);

    return rc;
}


static ngx_int_t
start_hear(ngx_idempotency_start_t *start, start_report_t *report, int from,
    ngx_pid_t pid)
{
    int            n, fds[2];
    struct pollfd  fd;

    fd.fd = from;
    fd.events = POLLIN;

    do {
        n = poll(&fd, 1, START_TIMEOUT);
    } while (n == -1 && ngx_errno == NGX_EINTR);

    fds[0] = -1;
    fds[1] = -1;

    if (n == 1 && start_receive(from, report, fds)
                  == sizeof(start_report_t))
    {
        start->owners = fds[0];
        start->file = fds[1];

    } else if (n == 0) {
        (void) kill(pid, SIGKILL);
        start_reap(pid);

        return ngx_idempotency_place_refuse(&report->place, 0,
                   "can't be used: nothing was heard of it for %d s; does its "
                   "disk answer, or is a process stopped that uses it?",
                   START_TIMEOUT / 1000);

    } else {
        (void) ngx_idempotency_place_refuse(&report->place, 0,
                   "can't be used: the process that looks at it has told "
                   "nothing");
    }

    start_end(report, pid);

    return NGX_OK;
}


/* it ends when its disk lets it, and nobody waits for that */

static void
start_reap(ngx_pid_t pid)
{
    ngx_uint_t  i;

    for (i = 0; i < START_REAP && waitpid(pid, NULL, WNOHANG) == 0; i++) {
        ngx_msleep(1);
    }
}


static ssize_t
start_receive(int from, start_report_t *report, int *fds)
{
    ssize_t          n;
    struct iovec     iov;
    struct msghdr    msg;
    struct cmsghdr  *cmsg;

    union {
        struct cmsghdr  head;
        char            space[CMSG_SPACE(2 * sizeof(int))];
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
        && cmsg->cmsg_len <= CMSG_LEN(2 * sizeof(int)))
    {
        ngx_memcpy(fds, CMSG_DATA(cmsg), cmsg->cmsg_len - CMSG_LEN(0));
    }

    return n;
}


static void
start_end(start_report_t *report, ngx_pid_t pid)
{
    int        status;
    ngx_pid_t  n;

    do {
        n = waitpid(pid, &status, 0);
    } while (n == -1 && ngx_errno == NGX_EINTR);

    if (n == pid && WIFSIGNALED(status)) {
        report->rc = ngx_idempotency_place_refuse(&report->place, 0,
                         "can't be used: the process that looked at it died "
                         "on signal %d; restore it, or remove it to begin "
                         "anew", WTERMSIG(status));
    }
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

    if (report->witness) {
        ngx_log_error(NGX_LOG_WARN, log, report->witness,
                      "the witness of the state file \"%V\" can't be read or "
                      "written: nobody would know that the file was set back",
                      &start->path);
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
    int  fds[2];

    fds[0] = -1;
    fds[1] = -1;

    report->rc = NGX_ERROR;
    report->place.path = (char *) start->path.data;

    ngx_idempotency_place_give(&report->place, start->user, ngx_test_config);

    if (start_become(start, &report->place) == NGX_OK
        && ngx_idempotency_place_check(&report->place) == NGX_OK)
    {
        ngx_memcpy(report->db.stamp, start->stamp, NGX_IDEMPOTENCY_STAMP_LEN);

        report->rc = ngx_test_config ? start_peek(report)
                                     : start_open(report, fds);
    }

    start_send(to, report, fds);
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


/* nginx -t: whatever may be wrong with it, another's key is, or what is not the
   file that it was */

static ngx_int_t
start_peek(start_report_t *report)
{
    char  error[NGX_IDEMPOTENCY_DB_ERROR];

    if (start_mark(report) != NGX_OK) {
        return NGX_ERROR;
    }

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
start_open(start_report_t *report, int *fds)
{
    ngx_int_t                 rc;
    ngx_idempotency_place_t  *place;

    place = &report->place;

    fds[0] = ngx_idempotency_owners_open(place->path, 1);

    if (fds[0] == -1) {
        return ngx_idempotency_place_refuse(place, ngx_errno,
                   "can't be used: %s-owners can't be opened", place->path);
    }

    switch (ngx_idempotency_owners_start_lock(fds[0], START_WAIT)) {

    case NGX_OK:
        break;

    case NGX_BUSY:
        return ngx_idempotency_place_refuse(place, 0,
                   "is being started by another nginx, which does not answer");

    default:
        return ngx_idempotency_place_refuse(place, ngx_errno,
                   "is on a file system without locks; name a path on a disk "
                   "of this machine");
    }

    rc = ngx_idempotency_place_check(place);

    if (rc == NGX_OK && place->open) {
        rc = ngx_idempotency_place_close(place);
    }

    if (rc == NGX_OK) {
        rc = start_file(report, fds);
    }

    ngx_idempotency_owners_start_unlock(fds[0]);

    return rc;
}


/* one start at a time gets here: what is there now is there to stay */

static ngx_int_t
start_file(start_report_t *report, int *fds)
{
    uint64_t                     instance;
    ngx_int_t                    rc;
    ngx_idempotency_place_t     *place;
    ngx_idempotency_db_start_t  *db;

    db = &report->db;
    place = &report->place;
    db->owners = fds[0];

    if (ngx_idempotency_owners_alone(fds[0])) {
        return ngx_idempotency_place_refuse(place, 0,
                   "is used by an nginx with an older module, which claims "
                   "without asking; end that first");
    }

    if (start_mark(report) != NGX_OK) {
        return NGX_ERROR;
    }

    rc = place->found ? start_hold(report, place->path, fds)
                      : start_make(report, fds);

    if (rc != NGX_OK) {
        return NGX_ERROR;
    }

    instance = db->instance;

    /* it would not know what they claim, nor they what it claims */

    if (ngx_idempotency_owners_strangers(fds[0], instance)
        || ngx_idempotency_owners_hold(fds[0], instance) != NGX_OK)
    {
        return ngx_idempotency_place_refuse(place, 0,
                   "was replaced while an nginx uses the one that was there; "
                   "end that first");
    }

    report->others = ngx_idempotency_owners_others(fds[0], instance);

    if (ngx_idempotency_witness_write(place->path, &db->mark,
                                      db->agreed || !db->marked)
        != NGX_OK)
    {
        report->witness = ngx_errno;
    }

    return NGX_OK;
}


/* the witness is read before the file, as whoever uses it goes on with both */

static ngx_int_t
start_mark(start_report_t *report)
{
    ngx_idempotency_place_t     *place;
    ngx_idempotency_db_start_t  *db;

    db = &report->db;
    place = &report->place;

    switch (ngx_idempotency_witness_read(place->path, &db->mark)) {

    case NGX_OK:
        db->marked = 1;
        break;

    case NGX_ERROR:
        report->witness = ngx_errno;
        break;
    }

    if (place->found || db->agreed || !(db->marked || place->left)) {
        return NGX_OK;
    }

    db->other = 1;

    return ngx_idempotency_place_refuse(place, 0,
               "is gone, and has left %s-%s", place->path,
               place->left ? "wal" : "witness");
}


/* open before SQLite opens it, and closed by no process that has it open */

static ngx_int_t
start_hold(start_report_t *report, const char *name, int *fds)
{
    fds[1] = open(name, O_RDWR|O_CLOEXEC|O_NOFOLLOW|O_NONBLOCK);

    if (fds[1] == -1) {
        return ngx_idempotency_place_refuse(&report->place, ngx_errno,
                                            "can't be opened");
    }

    if (ngx_idempotency_owners_only(fds[1], fds[0]) != NGX_OK) {
        return ngx_idempotency_place_refuse(&report->place, 0,
                   "is used by an nginx that has another way to it, with "
                   "another log and other locks: a mount of the file alone, "
                   "or of one of its names; mount its directory");
    }

    return start_database(report, name);
}


static ngx_int_t
start_make(start_report_t *report, int *fds)
{
    char                      name[NGX_IDEMPOTENCY_FILE_PATH + 8];
    ngx_idempotency_place_t  *place;

    place = &report->place;
    report->made = 1;

    (void) snprintf(name, sizeof(name), "%s.new", place->path);

    if (ngx_idempotency_place_make(place, name) == NGX_OK
        && start_hold(report, name, fds) == NGX_OK
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


/*
 * What is there is the store from now on, by a new identity: whoever goes on
 * with it as it was sees that.  What was left of one that is gone goes.
 */

ngx_int_t
ngx_idempotency_start_agreed(ngx_idempotency_start_t *start, char *error,
    size_t len)
{
    int              fds[2];
    ngx_int_t        rc;
    start_report_t  *report;

    report = calloc(1, sizeof(start_report_t));

    if (report == NULL) {
        return NGX_ERROR;
    }

    fds[0] = start->owners;
    fds[1] = -1;

    report->place.path = (char *) start->path.data;
    report->place.found = (access(report->place.path, F_OK) == 0);
    report->db.agreed = 1;

    ngx_memcpy(report->db.stamp, start->stamp, NGX_IDEMPOTENCY_STAMP_LEN);

    if (!report->place.found) {
        ngx_idempotency_place_remove_logs(report->place.path);
    }

    rc = ngx_idempotency_owners_start_lock(fds[0], START_WAIT);

    if (rc == NGX_OK) {
        rc = start_file(report, fds);
        ngx_idempotency_owners_start_unlock(fds[0]);

    } else {
        (void) ngx_idempotency_place_refuse(&report->place, 0,
                                            "is being started");
    }

    if (rc == NGX_OK) {
        start->instance = report->db.instance;
        start->fence = report->db.fence;
        start->base = report->db.base;
        start->mark = report->db.mark;

    } else {
        (void) snprintf(error, len, "%s", report->place.why);
    }

    /* its file stays open: who closes it takes SQLite's locks away */

    free(report);

    return rc;
}


static void
start_clocks(ngx_idempotency_db_start_t *db)
{
    int      fd;
    ssize_t  n, end;

    db->wall = start_clock(CLOCK_REALTIME);
    db->boottime = start_clock(CLOCK_BOOTTIME);

    fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY|O_CLOEXEC);

    if (fd == -1) {
        return;
    }

    n = read(fd, db->boot, START_BOOT);

    (void) close(fd);

    /* the end of its line, too; and containers may have a clock of their own */

    n = (n > 0) ? n - 1 : 0;
    end = n ? readlink("/proc/self/ns/time", db->boot + n,
                       sizeof(db->boot) - 1 - n) : 0;

    db->boot[n + (end > 0 ? end : 0)] = '\0';
}


static int64_t
start_clock(clockid_t id)
{
    struct timespec  ts;

    (void) clock_gettime(id, &ts);

    return (int64_t) ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}


static void
start_send(int to, start_report_t *report, int *fds)
{
    size_t           n;
    struct iovec     iov;
    struct msghdr    msg;
    struct cmsghdr  *cmsg;

    union {
        struct cmsghdr  head;
        char            space[CMSG_SPACE(2 * sizeof(int))];
    } control;

    ngx_memzero(&msg, sizeof(struct msghdr));
    ngx_memzero(&control, sizeof(control));

    iov.iov_base = report;
    iov.iov_len = sizeof(start_report_t);

    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;

    if (fds[0] != -1 && (report->rc == NGX_OK || report->db.other)) {
        n = (fds[1] == -1) ? 1 : 2;

        msg.msg_control = &control;
        msg.msg_controllen = CMSG_SPACE(n * sizeof(int));

        cmsg = CMSG_FIRSTHDR(&msg);

        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(n * sizeof(int));

        ngx_memcpy(CMSG_DATA(cmsg), fds, n * sizeof(int));
    }

    while (sendmsg(to, &msg, MSG_NOSIGNAL) == -1) {
        if (ngx_errno != NGX_EINTR) {
            return;
        }
    }
}


#endif
