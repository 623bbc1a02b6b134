
/*
 * The start, in the master.  A child process does it, as the workers' user, and
 * reports, with the open file by whose lock the instance lives: SQLite must not
 * be opened in a process that others are forked from, root must touch nothing
 * in a directory of another user, and a damaged file may kill its reader.
 */


#include "ngx_idempotency_db.h"
#include "ngx_idempotency_owners.h"
#include "ngx_idempotency_start.h"
#include "ngx_idempotency_witness.h"


#if (NGX_IDEMPOTENCY_FILE)

#include <poll.h>
#include <sys/prctl.h>
#include <sys/vfs.h>


/* no file takes so long; nginx goes on without one that hangs */

#define START_TIMEOUT  5000

/* one that is killed is waited for, so long */

#define START_REAP     100

/* it waits so long for another start, and for commits */

#define START_WAIT     4000

/* the name of a boot, with its end */

#define START_BOOT     37

/* by so much the file's time may be ahead of the clock, unsaid */

#define START_AHEAD    60000


/* what SQLite's file format says: the header, and where in it */

#define PLACE_HEADER       100
#define PLACE_MAGIC        "SQLite format 3"
#define PLACE_PAGE_SIZE    16
#define PLACE_CHANGES      24
#define PLACE_PAGES        28
#define PLACE_VERSION      60
#define PLACE_ID           68
#define PLACE_CHANGES_OF   92

/* and of the index of a log: numbers as the machine has them, of pages */

#define PLACE_INDEX        100
#define PLACE_INDEX_IS     3007000
#define PLACE_INDEX_LOGGED 16
#define PLACE_INDEX_FILED  96

#define PLACE_NAME         (NGX_IDEMPOTENCY_FILE_PATH + 16)

/* of what is said, with the zero: two paths, and some words */

#define PLACE_WHY      (2 * NGX_IDEMPOTENCY_FILE_PATH + 512)


typedef struct {
    long         type;
    const char  *name;
} place_network_t;


/* where the store is: may it be there, and may this process use it? */

typedef struct {
    const char                 *path;
    /* whether there is a file, and something in a log beside it */
    ngx_uint_t                  found;
    ngx_uint_t                  left;
    /* a mode that lets others in, its own or of a file beside it, or 0 */
    ngx_uint_t                  open;
    /* the directory's, if anybody may replace what is in it, or 0 */
    ngx_uint_t                  anybodys;
    /* why not, in words that follow the path; and the system's, or 0 */
    char                        why[PLACE_WHY];
    ngx_err_t                   err;
} start_place_t;


typedef struct {
    ngx_int_t                   rc;
    ngx_uint_t                  made;
    ngx_uint_t                  others;
    ngx_uint_t                  busy;
    ngx_err_t                   witness;
    start_place_t               place;
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
    start_place_t *place);
static ngx_int_t start_peek(start_report_t *report);
static ngx_int_t start_open(start_report_t *report, int *fds);
static ngx_int_t start_join(start_report_t *report, int *fds);
static ngx_int_t start_file(start_report_t *report, int *fds);
static ngx_int_t start_mark(start_report_t *report);
static ngx_int_t start_hold(start_report_t *report, const char *name,
    int *fds);
static ngx_int_t start_make(start_report_t *report, int *fds);
static ngx_int_t start_database(start_report_t *report, const char *name);
static void start_clocks(ngx_idempotency_db_start_t *db);
static ssize_t start_read(const char *name, char *text, size_t len);
static int64_t start_clock(clockid_t id);
static void start_send(int to, start_report_t *report, int *fds);

static ngx_int_t place_check(start_place_t *place);
static ngx_int_t place_directory(start_place_t *place);
static ngx_int_t place_parent(const char *path, char *dir);
static ngx_int_t place_network(start_place_t *place,
    const char *dir);
static ngx_int_t place_file(start_place_t *place);
static ngx_int_t place_rights(start_place_t *place, const char *name,
    struct stat *st);
static ngx_int_t place_beside(start_place_t *place, off_t *log);
static ngx_int_t place_logged(start_place_t *place);
static ngx_int_t place_header(start_place_t *place, off_t log);
static ngx_int_t place_stamp(start_place_t *place, u_char *header);
static ngx_uint_t place_number(u_char *p);
static ngx_int_t place_close(start_place_t *place);
static ngx_int_t place_make(start_place_t *place, const char *name);
static ngx_int_t place_take(start_place_t *place, const char *name);
static void place_remove(const char *name);
static void place_remove_logs(const char *name);
static ngx_int_t place_refuse(start_place_t *place, ngx_err_t err,
    const char *fmt, ...) __attribute__((format(printf, 3, 4)));


/* whose server may be asked from several machines, while locks and memory that
   is shared are each machine's own */

static place_network_t  place_networks[] = {
    { 0x6969, "NFS" },
    { 0x517b, "SMB" },
    { (long) 0xff534d42, "CIFS" },
    { (long) 0xfe534d42, "SMB" },
    { 0x00c36400, "Ceph" },
    { 0x5346414f, "AFS" },
    { 0x6b414653, "AFS" },
    { 0x7461636f, "OCFS2" },
    { 0x01161970, "GFS2" },
    { 0x0bd00bd0, "Lustre" },
    { 0, NULL }
};


/* itself, and what may stand beside it; the first of these are logs */

#define PLACE_LOGS  3

static const char  *place_suffixes[] = {
    "",
    "-wal",
    "-journal",
    "-shm",
    "-owners",
    NULL
};


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
    start->mark = old->mark;
    start->other = old->other;
    start->late = old->late;

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
    u_char      *p, text[2 * PLACE_WHY];
    ngx_uint_t   level;

    level = start->must ? NGX_LOG_EMERG : NGX_LOG_ALERT;
    p = text;

    if (start->other) {
        p = ngx_slprintf(p, text + sizeof(text),
                         "; to agree to it as it is, PUT {\"store\":"
                         "\"accept\"} to /zones/%V of idempotency_api, or "
                         "remove %V-witness while no nginx runs",
                         &start->zone, &start->path);
    }

    /* logged as nginx logs faults of a configuration */

    if (start->must) {

        if (report->place.err) {
            p = ngx_slprintf(p, text + sizeof(text), " (%d: %s)",
                             report->place.err, strerror(report->place.err));
            report->place.err = 0;
        }

        p = ngx_slprintf(p, text + sizeof(text), "%V", &start->at);

    } else if (!start->other) {
        p = ngx_slprintf(p, text + sizeof(text),
                         "; zone \"%V\" is without it until %s", &start->zone,
                         start->late ? "it answers" : "a reload");
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
        start->late = 1;

        return place_refuse(&report->place, 0,
                   "can't be used: nothing was heard of it for %d s; does its "
                   "disk answer, or is a process stopped that uses it?",
                   START_TIMEOUT / 1000);

    } else {
        (void) place_refuse(&report->place, 0,
                   "can't be used: the process that looks at it has told "
                   "nothing");
    }

    start_end(report, pid);

    return NGX_OK;
}


/* it ends when its disk lets it; nothing waits for that */

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
        report->rc = place_refuse(&report->place, 0,
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

    static ngx_str_t  now = ngx_string("; it has 0600 now");
    static ngx_str_t  none = ngx_null_string;

    if (report->place.open) {
        (void) snprintf(mode, sizeof(mode), "%04o",
                        (unsigned) report->place.open);

        ngx_log_error(NGX_LOG_WARN, log, 0,
                      "the state file \"%V\" %s open to others, with the mode "
                      "%s%V", &start->path, ngx_test_config ? "is" : "was",
                      mode, ngx_test_config ? &start->at : &now);
    }

    if (report->place.anybodys) {
        (void) snprintf(mode, sizeof(mode), "%04o",
                        (unsigned) report->place.anybodys);

        ngx_log_error(NGX_LOG_WARN, log, 0,
                      "the state file \"%V\" may be replaced by anybody, as "
                      "its directory has the mode %s%V", &start->path, mode,
                      ngx_test_config ? &start->at : &none);
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

    if (start_become(start, &report->place) == NGX_OK
        && place_check(&report->place) == NGX_OK)
    {
        ngx_memcpy(report->db.stamp, start->stamp, NGX_IDEMPOTENCY_STAMP_LEN);

        report->rc = ngx_test_config ? start_peek(report)
                                     : start_open(report, fds);
    }

    start_send(to, report, fds);
}


/* as nginx does it for its workers */

static ngx_int_t
start_become(ngx_idempotency_start_t *start, start_place_t *place)
{
    if (geteuid() == 0) {

        if (setgid(start->group) == -1
            || initgroups(start->username, start->group) == -1
            || setuid(start->user) == -1)
        {
            return place_refuse(place, ngx_errno,
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
        return place_refuse(&report->place, 0, "%s", error);
    }

    return NGX_OK;
}


static ngx_int_t
start_open(start_report_t *report, int *fds)
{
    ngx_int_t                 rc;
    start_place_t  *place;

    place = &report->place;

    fds[0] = ngx_idempotency_owners_open(place->path, 1);

    if (fds[0] == -1) {
        return place_refuse(place, ngx_errno,
                   "can't be used: %s-owners can't be opened", place->path);
    }

    switch (ngx_idempotency_owners_start_lock(fds[0], START_WAIT)) {

    case NGX_OK:
        break;

    case NGX_BUSY:
        report->busy = 1;
        return place_refuse(place, 0,
                   "is being started by another nginx, which does not answer");

    default:
        return place_refuse(place, ngx_errno,
                   "is on a file system without locks; name a path on a disk "
                   "of this machine");
    }

    rc = place_check(place);

    if (rc == NGX_OK && place->open) {
        rc = place_close(place);
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
    start_place_t     *place;
    ngx_idempotency_db_start_t  *db;

    db = &report->db;
    place = &report->place;
    db->owners = fds[0];

    if (ngx_idempotency_owners_alone(fds[0])) {
        return place_refuse(place, 0,
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
        return place_refuse(place, 0,
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
    start_place_t     *place;
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

    return place_refuse(place, 0,
               "is gone, and has left %s-%s", place->path,
               place->left ? "wal" : "witness");
}


/* open before SQLite opens it, and closed by no process that has it open */

static ngx_int_t
start_hold(start_report_t *report, const char *name, int *fds)
{
    fds[1] = open(name, O_RDWR|O_CLOEXEC|O_NOFOLLOW|O_NONBLOCK);

    if (fds[1] == -1) {
        return place_refuse(&report->place, ngx_errno,
                                            "can't be opened");
    }

    if (ngx_idempotency_owners_only(fds[1], fds[0]) != NGX_OK) {
        return place_refuse(&report->place, 0,
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
    start_place_t  *place;

    place = &report->place;
    report->made = 1;

    (void) snprintf(name, sizeof(name), "%s.new", place->path);

    if (place_make(place, name) == NGX_OK
        && start_hold(report, name, fds) == NGX_OK
        && place_take(place, name) == NGX_OK)
    {
        return NGX_OK;
    }

    place_remove(name);

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

        return place_refuse(&report->place, 0, "%s", error);
    }

    return NGX_OK;
}


/*
 * The file is the store from now on, under a new identity: processes that used
 * it as it was notice that.  Remains of a file that is gone are removed.
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
        place_remove_logs(report->place.path);
    }

    rc = ngx_idempotency_owners_start_lock(fds[0], START_WAIT);

    if (rc == NGX_OK) {
        rc = start_file(report, fds);
        ngx_idempotency_owners_start_unlock(fds[0]);

    } else {
        (void) place_refuse(&report->place, 0,
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

    /* its file stays open: a close would take SQLite's locks away */

    free(report);

    return rc;
}


ngx_int_t
ngx_idempotency_start_late(ngx_idempotency_start_t *start, uint64_t instance,
    char *error, size_t len)
{
    int              fds[2];
    ngx_int_t        rc;
    start_report_t  *report;

    report = calloc(1, sizeof(start_report_t));

    if (report == NULL) {
        return NGX_AGAIN;
    }

    fds[0] = -1;
    fds[1] = -1;

    report->place.path = (char *) start->path.data;
    ngx_memcpy(report->db.stamp, start->stamp, NGX_IDEMPOTENCY_STAMP_LEN);

    rc = place_check(&report->place);

    if (rc == NGX_OK) {
        rc = instance ? start_join(report, fds) : start_open(report, fds);
    }

    if (rc == NGX_OK) {
        instance = instance ? instance : report->db.instance;

        if (ngx_idempotency_owners_share(fds[0], instance) != NGX_OK) {
            rc = place_refuse(&report->place, ngx_errno, "can't be locked");
        }
    }

    start->other = report->db.other;

    if (rc == NGX_OK || start->other) {
        start->owners = fds[0];
        start->file = fds[1];
        start->instance = instance;
        start->fence = report->db.fence;
        start->base = report->db.base;
        start->mark = report->db.mark;

    } else {
        start_close(&fds[0]);
        start_close(&fds[1]);
    }

    if (rc != NGX_OK) {
        (void) snprintf(error, len, "%s", report->place.why);
        rc = report->busy ? NGX_AGAIN : NGX_ERROR;
    }

    free(report);

    return rc;
}


/* another worker has done the rest */

static ngx_int_t
start_join(start_report_t *report, int *fds)
{
    fds[0] = ngx_idempotency_owners_open(report->place.path, 0);
    fds[1] = open(report->place.path,
                  O_RDWR|O_CLOEXEC|O_NOFOLLOW|O_NONBLOCK);

    if (fds[0] == -1 || fds[1] == -1
        || ngx_idempotency_owners_only(fds[1], fds[0]) != NGX_OK)
    {
        return place_refuse(&report->place, ngx_errno, "can't be used");
    }

    return NGX_OK;
}


static void
start_clocks(ngx_idempotency_db_start_t *db)
{
    char   *p, offsets[128];

    db->wall = start_clock(CLOCK_REALTIME);
    db->boottime = start_clock(CLOCK_BOOTTIME);

    if (start_read("/proc/sys/kernel/random/boot_id", db->boot, START_BOOT)
        < START_BOOT - 1)
    {
        db->boot[0] = '\0';
        return;
    }

    db->boot[START_BOOT - 1] = '\0';

    /* a container may have a clock of its own, by a namespace whose name the
       next one gets */

    if (start_read("/proc/self/timens_offsets", offsets, sizeof(offsets)) > 0
        && (p = strstr(offsets, "boottime")) != NULL)
    {
        (void) snprintf(db->boot + START_BOOT - 1,
                        sizeof(db->boot) - START_BOOT + 1, " %lld",
                        strtoll(p + sizeof("boottime") - 1, NULL, 10));
    }
}


/* a small file, as text: how much there was, or -1 */

static ssize_t
start_read(const char *name, char *text, size_t len)
{
    int      fd;
    ssize_t  n;

    fd = open(name, O_RDONLY|O_CLOEXEC);

    if (fd == -1) {
        return -1;
    }

    n = read(fd, text, len - 1);

    (void) close(fd);

    text[ngx_max(n, 0)] = '\0';

    return n;
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


/*
 * Where a store can't be, by names, rights and the first bytes: what stands
 * further down is SQLite's to judge.  It looks, and changes nothing.
 */

static ngx_int_t
place_check(start_place_t *place)
{
    off_t  log;

    place->found = 0;
    place->left = 0;
    place->open = 0;

    if (place_directory(place) != NGX_OK) {
        return NGX_ERROR;
    }

    if (place_file(place) != NGX_OK
        || place_beside(place, &log) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return place->found ? place_header(place, log) : NGX_OK;
}


/* SQLite makes files beside its own, and removes them */

static ngx_int_t
place_directory(start_place_t *place)
{
    char         dir[NGX_IDEMPOTENCY_FILE_PATH + 1];
    struct stat  st;

    if (ngx_strlen(place->path) > NGX_IDEMPOTENCY_FILE_PATH) {
        return place_refuse(place, 0,
                   "has too long a name: %d bytes are possible",
                   NGX_IDEMPOTENCY_FILE_PATH);
    }

    if (place_parent(place->path, dir) != NGX_OK) {
        return place_refuse(place, 0,
                                            "is no path of a file");
    }

    if (stat(dir, &st) == -1) {

        if (ngx_errno == NGX_ENOENT) {
            return place_refuse(place, 0,
                       "can't be there: make its directory, for the user that "
                       "the workers run as: install -d -m 0700 -o USER %s",
                       dir);
        }

        return place_refuse(place, ngx_errno,
                   "can't be reached by the user that the workers run as, "
                   "which is %d", (int) geteuid());
    }

    if (!S_ISDIR(st.st_mode)) {
        return place_refuse(place, 0,
                   "can't be there: %s is no directory", dir);
    }

    if ((st.st_mode & S_IWOTH) && !(st.st_mode & S_ISVTX)) {
        place->anybodys = st.st_mode & 07777;
    }

    if (access(dir, W_OK|X_OK) == -1) {
        return place_refuse(place, ngx_errno,
                   "can't be used: the user that the workers run as, which is "
                   "%d, must be able to write to its directory: chown %d %s",
                   (int) geteuid(), (int) geteuid(), dir);
    }

    return place_network(place, dir);
}


static ngx_int_t
place_parent(const char *path, char *dir)
{
    char  *slash;

    strcpy(dir, path);

    slash = strrchr(dir, '/');
    if (slash == NULL || slash[1] == '\0') {
        return NGX_ERROR;
    }

    slash[slash == dir] = '\0';

    return NGX_OK;
}


static ngx_int_t
place_network(start_place_t *place, const char *dir)
{
    struct statfs     fs;
    place_network_t  *network;

    if (statfs(dir, &fs) == -1) {
        return place_refuse(place, ngx_errno,
                                            "can't be used: statfs() failed");
    }

    for (network = place_networks; network->name; network++) {

        if ((uint32_t) fs.f_type == (uint32_t) network->type) {
            return place_refuse(place, 0,
                       "is on a network file system (%s); name a path on a "
                       "disk of this machine", network->name);
        }
    }

    return NGX_OK;
}


static ngx_int_t
place_file(start_place_t *place)
{
    struct stat  st;

    if (lstat(place->path, &st) == -1) {

        if (ngx_errno == NGX_ENOENT) {
            return NGX_OK;
        }

        return place_refuse(place, ngx_errno,
                                            "can't be looked at");
    }

    place->found = 1;

    if (S_ISDIR(st.st_mode)) {
        return place_refuse(place, 0,
                                       "is a directory; name a file in it");
    }

    /* its other files and its locks have their names from its own */

    if (S_ISLNK(st.st_mode)) {
        return place_refuse(place, 0,
                   "is a symbolic link; name the file itself");
    }

    if (place_rights(place, place->path, &st) != NGX_OK) {
        return NGX_ERROR;
    }

    if (st.st_size == 0) {
        return place_refuse(place, 0,
                   "is empty, what it knew is lost; restore it, or remove it "
                   "to begin anew");
    }

    return NGX_OK;
}


static ngx_int_t
place_rights(start_place_t *place, const char *name,
    struct stat *st)
{
    if (!S_ISREG(st->st_mode)) {
        return place_refuse(place, 0,
                   "can't be used: %s is no regular file; remove that", name);
    }

    if (st->st_nlink > 1) {
        return place_refuse(place, 0,
                   "can't be used: %s has %d names, and may have one; copy "
                   "it, and remove the others", name, (int) st->st_nlink);
    }

    if (st->st_uid != geteuid()) {
        return place_refuse(place, 0,
                   "can't be used: %s belongs to user %d, and the workers run "
                   "as %d; chown %d %s", name, (int) st->st_uid,
                   (int) geteuid(), (int) geteuid(), name);
    }

    if ((st->st_mode & 0600) != 0600) {
        return place_refuse(place, 0,
                   "can't be used: %s has the mode %04o; chmod 0600 %s",
                   name, (int) (st->st_mode & 07777), name);
    }

    if ((st->st_mode & 077) && place->open == 0) {
        place->open = st->st_mode & 07777;
    }

    return NGX_OK;
}


/*
 * What stands beside it, as it was left; a log may hold all that was written
 * of late, and would be taken for one of a new file's.
 */

static ngx_int_t
place_beside(start_place_t *place, off_t *log)
{
    char           name[PLACE_NAME];
    ngx_uint_t     i;
    struct stat    st;

    *log = 0;

    for (i = 1; place_suffixes[i]; i++) {

        (void) snprintf(name, PLACE_NAME, "%s%s", place->path,
                        place_suffixes[i]);

        if (lstat(name, &st) == -1) {
            continue;
        }

        if (place_rights(place, name, &st) != NGX_OK) {
            return NGX_ERROR;
        }

        if (i >= PLACE_LOGS) {
            continue;
        }

        *log += st.st_size;

        place->left |= (st.st_size != 0);
    }

    return place->found ? place_logged(place) : NGX_OK;
}


/*
 * Who closes the file orderly leaves no index.  One that was left, without its
 * log, knows whether that had anything that is not in the file.
 */

static ngx_int_t
place_logged(start_place_t *place)
{
    int           fd;
    char          name[PLACE_NAME];
    u_char        index[PLACE_INDEX];
    ssize_t       n;
    uint32_t      is, logged, filed;
    struct stat   st;

    (void) snprintf(name, PLACE_NAME, "%s-wal", place->path);

    if (lstat(name, &st) == 0) {
        return NGX_OK;
    }

    (void) snprintf(name, PLACE_NAME, "%s-shm", place->path);

    fd = open(name, O_RDONLY|O_CLOEXEC|O_NOFOLLOW|O_NONBLOCK);

    if (fd == -1) {
        return NGX_OK;
    }

    n = pread(fd, index, PLACE_INDEX, 0);

    (void) close(fd);

    if (n != PLACE_INDEX) {
        return NGX_OK;
    }

    ngx_memcpy(&is, index, sizeof(uint32_t));
    ngx_memcpy(&logged, index + PLACE_INDEX_LOGGED, sizeof(uint32_t));
    ngx_memcpy(&filed, index + PLACE_INDEX_FILED, sizeof(uint32_t));

    if (is != PLACE_INDEX_IS || logged <= filed) {
        return NGX_OK;
    }

    return place_refuse(place, 0,
               "is without %s-wal, which had what was written last; restore "
               "that, or remove %s* to begin anew", place->path, place->path);
}


/* before SQLite has it in its hands, as that repairs what it takes for its
   own; and all that nginx -t looks at */

static ngx_int_t
place_header(start_place_t *place, off_t log)
{
    int           fd;
    off_t         size;
    u_char        header[PLACE_HEADER];
    ssize_t       n;
    ngx_err_t     err;
    struct stat   st;

    fd = open(place->path, O_RDONLY|O_CLOEXEC|O_NOFOLLOW|O_NONBLOCK);

    if (fd == -1) {
        return place_refuse(place, ngx_errno,
                                            "can't be opened");
    }

    ngx_memzero(header, PLACE_HEADER);

    n = pread(fd, header, PLACE_HEADER, 0);
    err = (n == -1 || fstat(fd, &st) == -1) ? ngx_errno : 0;

    (void) close(fd);

    if (err) {
        return place_refuse(place, err, "can't be read");
    }

    if (place_stamp(place, header) != NGX_OK) {
        return NGX_ERROR;
    }

    /* a writer from before there were so many pages did not count them */

    if (log || ngx_memcmp(header + PLACE_CHANGES, header + PLACE_CHANGES_OF, 4)
               != 0)
    {
        return NGX_OK;
    }

    size = (header[PLACE_PAGE_SIZE] << 8) + header[PLACE_PAGE_SIZE + 1];
    size = (size == 1) ? 65536 : size;
    size *= place_number(header + PLACE_PAGES);

    if (st.st_size < size) {
        return place_refuse(place, 0,
                   "is damaged, %lld of its %lld bytes are there; restore it, "
                   "or remove it to begin anew", (long long) st.st_size,
                   (long long) size);
    }

    return NGX_OK;
}


static ngx_int_t
place_stamp(start_place_t *place, u_char *header)
{
    ngx_uint_t     version;
    static u_char  zeros[PLACE_HEADER];

    if (ngx_memcmp(header, zeros, PLACE_HEADER) == 0) {
        return place_refuse(place, 0,
                   "is damaged, it begins with zeros; restore it, or remove "
                   "it to begin anew");
    }

    if (ngx_memcmp(header, PLACE_MAGIC, sizeof(PLACE_MAGIC)) != 0
        || place_number(header + PLACE_ID) != NGX_IDEMPOTENCY_DB_ID)
    {
        return place_refuse(place, 0,
                   "is a file of another program, or damaged; name another "
                   "path");
    }

    version = place_number(header + PLACE_VERSION);

    if (version != NGX_IDEMPOTENCY_DB_VERSION) {
        return place_refuse(place, 0,
                   "is of version %d, and this module knows version %d; "
                   "load the module that wrote it, or name another path",
                   (int) version, NGX_IDEMPOTENCY_DB_VERSION);
    }

    return NGX_OK;
}


static ngx_uint_t
place_number(u_char *p)
{
    return ((ngx_uint_t) p[0] << 24) + (p[1] << 16) + (p[2] << 8) + p[3];
}


static ngx_int_t
place_close(start_place_t *place)
{
    int          fd;
    char         name[PLACE_NAME];
    ngx_err_t    err;
    ngx_uint_t   i;
    struct stat  st;

    for (i = 0; place_suffixes[i]; i++) {

        (void) snprintf(name, PLACE_NAME, "%s%s", place->path,
                        place_suffixes[i]);

        fd = open(name, O_RDONLY|O_CLOEXEC|O_NOFOLLOW|O_NONBLOCK);

        if (fd == -1) {
            continue;
        }

        err = 0;

        if (fstat(fd, &st) == -1
            || ((st.st_mode & 077) && fchmod(fd, 0600) == -1))
        {
            err = ngx_errno;
        }

        (void) close(fd);

        if (err) {
            return place_refuse(place, err,
                       "can't be used: chmod 0600 %s failed", name);
        }
    }

    return NGX_OK;
}


static ngx_int_t
place_make(start_place_t *place, const char *name)
{
    int  fd;

    /* the remains of a start that was killed */

    place_remove(name);

    fd = open(name, O_RDWR|O_CREAT|O_EXCL|O_CLOEXEC|O_NOFOLLOW, 0600);

    if (fd == -1) {
        return place_refuse(place, ngx_errno,
                                            "can't be made");
    }

    (void) close(fd);

    return NGX_OK;
}


/* a file that is there is whole: it comes when it is one, name and all */

static ngx_int_t
place_take(start_place_t *place, const char *name)
{
    int   fd, rc;
    char  dir[NGX_IDEMPOTENCY_FILE_PATH + 1];

    if (rename(name, place->path) == -1) {
        return place_refuse(place, ngx_errno,
                                            "can't be made");
    }

    (void) place_parent(place->path, dir);

    fd = open(dir, O_RDONLY|O_DIRECTORY|O_CLOEXEC);

    rc = (fd == -1) ? -1 : fsync(fd);

    if (rc == -1) {
        (void) place_refuse(place, ngx_errno,
                                            "can't be made: fsync() failed");
    }

    if (fd != -1) {
        (void) close(fd);
    }

    return rc == 0 ? NGX_OK : NGX_ERROR;
}


static void
place_remove(const char *name)
{
    (void) unlink(name);

    place_remove_logs(name);
}


static void
place_remove_logs(const char *name)
{
    char        other[PLACE_NAME];
    ngx_uint_t  i;

    for (i = 1; i <= PLACE_LOGS; i++) {
        (void) snprintf(other, PLACE_NAME, "%s%s", name, place_suffixes[i]);
        (void) unlink(other);
    }
}


static ngx_int_t
place_refuse(start_place_t *place, ngx_err_t err,
    const char *fmt, ...)
{
    va_list  args;

    va_start(args, fmt);
    (void) vsnprintf(place->why, sizeof(place->why), fmt, args);
    va_end(args);

    place->err = err;

    return NGX_ERROR;
}


#endif
