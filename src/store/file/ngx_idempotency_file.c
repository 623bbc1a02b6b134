
/*
 * The backing that is a file on this machine.  Only threads touch the file.  A
 * worker has three of them: one flushes batches, one syncs the log, one does
 * maintenance and reads lists.  A thread may hang as long as its disk does; the
 * memory that it works on is its own.  SQLite itself is in db.c.
 *
 * NUMBER    A commit of the zone's instance has the zone's number at least.
 * UNSYNCED  batched: nothing is committed while the oldest commit that is not
 *           on disk is older than FILE_UNSYNCED.
 * AGREED    A file that is another one, or older, than the zone has seen, is
 *           not written to until an operator has agreed to it.
 */


#include "store/ngx_idempotency_shm.h"
#include "ngx_idempotency_file.h"
#include "ngx_idempotency_owners.h"


#if (NGX_IDEMPOTENCY_FILE)

#include "ngx_idempotency_db.h"
#include "ngx_idempotency_start.h"
#include "ngx_idempotency_thread.h"


/* the records of a step of maintenance */

#define FILE_TIDY      256

/* In milliseconds, as all that follow: how often it asks about claims of
   another instance, at first, and at most. */

#define FILE_SOON      5
#define FILE_SELDOM    50

/* how long an exiting worker waits for its threads: QUIT after a graceful
   shutdown, else TERM */

#define FILE_QUIT      5000
#define FILE_TERM      500

/* how long threads that commit wait for each other; then SQLite's own lock
   decides, as a stopped process keeps ours */

#define FILE_LOCK      700

/* the log is synced SYNC after a commit, by the worker that watches the file;
   after LATE by any worker that flushes; after UNSYNCED nothing is committed
   any more */

#define FILE_SYNC      600
#define FILE_LATE      1000
#define FILE_UNSYNCED  2000

/* the pauses between maintenance: after flushes, and else */

#define FILE_MAINTAIN  700
#define FILE_IDLE      10000

/* how often workers try a start of the file again that hangs, or was refused */

#define FILE_AGAIN     100
#define FILE_REFUSED   1000


/* a thread, and its connection to the file */

typedef struct {
    ngx_idempotency_thread_t   *thread;
    ngx_idempotency_db_t       *db;
    /* the lock of commits; the same file as `db`, see file_way(); or -1 */
    int                         lock;
    int                         file;
    /* the thread only closes its connection */
    ngx_uint_t                  leaves;
    /* the thread was the first one to find another file; `error` says what */
    ngx_uint_t                  found;
    ngx_int_t                   rc;
    char                        error[NGX_IDEMPOTENCY_DB_ERROR];
} file_conn_t;


typedef struct file_s  file_t;

/* the memory that threads work on; it stays when the worker's pools go */

typedef struct {
    /* used only within ngx_idempotency_thread_enter() */
    file_t                     *file;

    ngx_idempotency_tier_sh_t  *sh;
    ngx_idempotency_db_conf_t   db;
    ngx_idempotency_start_t     start;

    file_conn_t                 flush;
    file_conn_t                 sync;
    file_conn_t                 maintain;

    /* NULL: the thread closes its connection.  starts: then it does a start
       that was left to the workers, or of a file that an operator has agreed
       to */
    ngx_idempotency_batch_t    *batch;
    ngx_uint_t                  starts;
    ngx_idempotency_page_t     *page;
    /* the file's number at the last maintenance */
    ngx_atomic_uint_t           number;
    ngx_err_t                   witness;
} file_work_t;


struct file_s {
    ngx_idempotency_tier_t      tier;

    ngx_cycle_t                *cycle;
    ngx_pool_t                 *pool;
    ngx_idempotency_start_t     start;
    ngx_idempotency_db_conf_t   db;

    /* in this worker */
    file_work_t                *work;
    ngx_event_t                 late;
    ngx_uint_t                  unwitnessed;

    /* lists to be read */
    ngx_idempotency_page_t     *pages;

    /* the last maintenance, and the signs that a new one is needed */
    ngx_msec_t                  maintained;
    uint64_t                    flushed;
    ngx_uint_t                  more;
};


static ngx_int_t file_init(ngx_idempotency_tier_t *tier,
    ngx_idempotency_tier_t *old, ngx_log_t *log);
static ngx_int_t file_start(file_t *file, ngx_uint_t must, ngx_log_t *log);
static ngx_int_t file_begin(ngx_idempotency_shm_t *shm,
    ngx_idempotency_start_t *start, ngx_uint_t late);
static void file_create(file_t *file, ngx_conf_t *cf);
static ngx_idempotency_tier_t *file_unnamed(ngx_conf_t *cf,
    ngx_idempotency_tier_t *old);
static void file_disown(ngx_idempotency_tier_t *tier);
static ngx_int_t file_init_process(ngx_idempotency_tier_t *tier,
    ngx_cycle_t *cycle);
static void file_finish(ngx_idempotency_tier_t *tier);
static void file_exit_process(ngx_idempotency_tier_t *tier);
static void file_exit_conn(file_conn_t *conn, ngx_msec_t time);

static int64_t file_now(ngx_idempotency_tier_t *tier);
static int64_t file_time(ngx_idempotency_tier_sh_t *sh);
static ngx_msec_t file_msec(void);
static ngx_uint_t file_alive(void *data, uint64_t instance);
static ngx_uint_t file_may_commit(void *data);
static ngx_uint_t file_up(ngx_idempotency_tier_t *tier);
static ngx_int_t file_agree(ngx_idempotency_tier_t *tier);

static ngx_int_t file_flush(ngx_idempotency_tier_t *tier,
    ngx_idempotency_batch_t *batch);
static void file_flush_run(void *data);
static ngx_int_t file_commit(file_work_t *work, ngx_idempotency_batch_t *batch);
static void file_witness(file_work_t *work, ngx_idempotency_mark_t *mark);
static void file_flush_done(void *data);
static void file_start_again(file_t *file, ngx_uint_t agreed);
static void file_started(file_t *file);
static void file_log_found(file_t *file, file_conn_t *conn);
static void file_refused(file_t *file, const char *why);
static ngx_int_t file_open(file_work_t *work, file_conn_t *conn, char *error);
static ngx_int_t file_way(file_work_t *work, file_conn_t *conn);
static ngx_uint_t file_is(int fd, struct stat *file);
static void file_shut(file_work_t *work, file_conn_t *conn);
static void file_found_other(file_work_t *work, file_conn_t *conn,
    const char *why);
static void file_lock(file_conn_t *conn);
static void file_unlock(file_conn_t *conn);
static void file_leave(file_conn_t *conn);
static ngx_uint_t file_unsynced(ngx_idempotency_tier_sh_t *sh,
    ngx_msec_t time);
static void file_sync(file_t *file, ngx_msec_t time);
static void file_sync_run(void *data);
static void file_sync_done(void *data);
static ngx_int_t file_list(ngx_idempotency_tier_t *tier,
    ngx_idempotency_page_t *page);
static ngx_int_t file_list_next(file_t *file);
static void file_list_run(file_work_t *work, ngx_idempotency_page_t *page);
static void file_maintain(ngx_idempotency_tier_t *tier);
static void file_maintain_run(void *data);
static void file_tidy(file_work_t *work);
static void file_maintain_done(void *data);
static void file_late_handler(ngx_event_t *ev);


static const ngx_idempotency_backing_t  file_backing = {
    .soon = FILE_SOON,
    .seldom = FILE_SELDOM,
    .kind = "file",
    .now = file_now,
    .flush = file_flush,
    .list = file_list,
    .maintain = file_maintain,
    .init = file_init,
    .unnamed = file_unnamed,
    .disown = file_disown,
    .init_process = file_init_process,
    .finish = file_finish,
    .exit_process = file_exit_process,
    .up = file_up,
    .agree = file_agree
};


ngx_int_t
ngx_idempotency_file_add(ngx_conf_t *cf, ngx_idempotency_store_t *store,
    ngx_idempotency_file_conf_t *conf)
{
    file_t                 *file;
    ngx_idempotency_shm_t  *shm;

    shm = store->data;

    file = ngx_pcalloc(cf->pool, sizeof(file_t));
    if (file == NULL) {
        return NGX_ERROR;
    }

    file->start.path = conf->path;
    file->start.at = cf->conf_file->file.name;
    file->start.line = cf->conf_file->line;

    file->db.sync = conf->sync;
    file->db.max_size = conf->max_size;

    file_create(file, cf);

    file->tier.shm = shm;
    shm->tier = &file->tier;
    store->strict = file->tier.strict;

    return NGX_OK;
}


static void
file_create(file_t *file, ngx_conf_t *cf)
{
    file->tier.backing = &file_backing;
    file->tier.strict = (file->db.sync == NGX_IDEMPOTENCY_SYNC_STRICT);

    file->cycle = cf->cycle;
    file->pool = cf->pool;
    file->start.owners = -1;
    file->start.file = -1;

    file->db.path = (char *) file->start.path.data;
}


static ngx_idempotency_tier_t *
file_unnamed(ngx_conf_t *cf, ngx_idempotency_tier_t *old)
{
    file_t  *file, *was;

    was = (file_t *) old;

    file = ngx_pcalloc(cf->pool, sizeof(file_t));
    if (file == NULL) {
        return NULL;
    }

    /* with its final zero */

    file->start.path = was->start.path;
    file->start.path.len++;
    file->start.path.data = ngx_pstrdup(cf->pool, &file->start.path);
    file->start.path.len--;

    if (file->start.path.data == NULL) {
        return NULL;
    }

    file->db = was->db;
    file_create(file, cf);

    return &file->tier;
}


static ngx_int_t
file_init(ngx_idempotency_tier_t *tier, ngx_idempotency_tier_t *old,
    ngx_log_t *log)
{
    ngx_int_t   rc;
    file_t     *file, *was;

    file = (file_t *) tier;
    file->start.zone = tier->shm->store->name;

    tier->name.data = ngx_pnalloc(file->pool, sizeof("state file \"\"") - 1
                                              + file->start.path.len);
    if (tier->name.data == NULL) {
        return NGX_ERROR;
    }

    tier->name.len = ngx_sprintf(tier->name.data, "state file \"%V\"",
                                 &file->start.path)
                     - tier->name.data;

    if (old == NULL) {

        /* an unusable file keeps no nginx from starting; but a running nginx
           does not take a configuration with one */

        rc = file_start(file, ngx_test_config || !ngx_is_init_cycle(ngx_cycle),
                        log);

    } else {
        was = (file_t *) old;

        if (!ngx_idempotency_same(&file->start.path, &was->start.path)) {
            ngx_log_error(NGX_LOG_EMERG, log, 0,
                          "idempotency_zone \"%V\" uses the state \"%V\" "
                          "while previously it used \"%V\"; "
                          "only a restart can change it",
                          &tier->shm->store->name, &file->start.path,
                          &was->start.path);
            return NGX_ERROR;
        }

        if (was->start.owners != -1 || ngx_test_config
            || (was->start.late && old->shm->sh->tier.instance))
        {
            rc = ngx_idempotency_start_keep(&file->start, &was->start,
                                            file->pool, log);

        } else {
            rc = file_start(file, 0, log);

            /* the workers may have completed the start since */

            if (rc != NGX_ERROR
                && file_begin(old->shm, &file->start, 1) != NGX_OK)
            {
                ngx_idempotency_start_leave(&file->start);
                file->start.late = 1;
            }
        }
    }

    if (rc == NGX_ERROR) {
        return NGX_ERROR;
    }

    tier->instance = file->start.instance;
    tier->fence = file->start.fence;
    tier->mark = file->start.mark;
    tier->base = file->start.base;
    tier->other = file->start.other;

    return NGX_OK;
}


static ngx_int_t
file_start(file_t *file, ngx_uint_t must, ngx_log_t *log)
{
    ngx_core_conf_t  *ccf;

    ccf = (ngx_core_conf_t *) ngx_get_conf(file->cycle->conf_ctx,
                                           ngx_core_module);

    file->start.must = must;
    file->start.user = ccf->user;
    file->start.group = ccf->group;
    file->start.username = ccf->username;
    ngx_memcpy(file->start.stamp, file->tier.shm->store->secret->stamp,
               NGX_IDEMPOTENCY_STAMP_LEN);

    return ngx_idempotency_start(&file->start, file->pool, log);
}


/* the zone takes over the results of a start; late: NGX_DECLINED, if another
   worker or a reload has done so before */

static ngx_int_t
file_begin(ngx_idempotency_shm_t *shm, ngx_idempotency_start_t *start,
    ngx_uint_t late)
{
    ngx_idempotency_tier_sh_t  *sh;

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        return NGX_DECLINED;
    }

    sh = &shm->sh->tier;

    if (late && sh->instance) {
        ngx_idempotency_shm_unlock(shm);
        return NGX_DECLINED;
    }

    sh->instance = start->instance;
    shm->sh->fence = ngx_max(shm->sh->fence, start->fence);
    sh->base = start->base;
    sh->mark = start->mark;
    sh->unsynced = 0;
    sh->other = start->other;

    ngx_idempotency_shm_unlock(shm);

    return NGX_OK;
}


static void
file_disown(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_start_leave(&((file_t *) tier)->start);
}


void
ngx_idempotency_file_exit_process(void)
{
    ngx_idempotency_thread_exit_process();
}


/* opens nothing that may fail or hang; without threads there is no file */

static ngx_int_t
file_init_process(ngx_idempotency_tier_t *tier, ngx_cycle_t *cycle)
{
    file_t       *file;
    file_work_t  *work;

    file = (file_t *) tier;

    work = calloc(1, sizeof(file_work_t));

    if (work == NULL
        || ngx_idempotency_thread_init_process(cycle) != NGX_OK)
    {
        free(work);
        return NGX_OK;
    }

    work->file = file;
    work->sh = &tier->shm->sh->tier;
    work->start = file->start;
    work->start.path.data = (u_char *) strdup(file->db.path);
    ngx_memcpy(work->start.stamp, tier->shm->store->secret->stamp,
               NGX_IDEMPOTENCY_STAMP_LEN);

    work->db = file->db;
    work->db.path = (char *) work->start.path.data;
    work->db.mark = &work->sh->mark;
    work->db.log = &work->sh->log;
    work->db.alive = file_alive;
    work->db.data = work;

    work->flush.lock = -1;
    work->flush.file = file->start.file;
    work->maintain.lock = -1;
    work->maintain.file = file->start.file;

    work->flush.thread = ngx_idempotency_thread_create(file_flush_run,
                                                       file_flush_done, work);
    work->sync.thread = ngx_idempotency_thread_create(file_sync_run,
                                                      file_sync_done, work);
    work->maintain.thread = ngx_idempotency_thread_create(file_maintain_run,
                                                      file_maintain_done, work);

    if (work->db.path && work->flush.thread && work->sync.thread
        && work->maintain.thread)
    {
        file->work = work;
    }

    file->late.handler = file_late_handler;
    file->late.data = file;
    file->late.log = cycle->log;
    file->late.cancelable = 1;

    if (file->work && file->start.owners == -1) {

        /* workers of a later configuration may have it */

        tier->nbatches = 0;

        if (file->start.late) {
            ngx_add_timer(&file->late, FILE_AGAIN);
        }
    }

    return NGX_OK;
}


/*
 * Waits for the threads' work: no answer comes later from now on.  A disk may
 * take long to answer, and other processes need the ports: without a master
 * they are open yet, and after TERM.
 */

static void
file_finish(ngx_idempotency_tier_t *tier)
{
    file_t  *file;

    file = (file_t *) tier;

    if (file->work == NULL) {
        return;
    }

    ngx_close_listening_sockets((ngx_cycle_t *) ngx_cycle);

    tier->stuck |= (ngx_idempotency_thread_wait(file->work->flush.thread,
                                                FILE_TERM) != NGX_OK);
}


/* the last process that closes the file copies the log into it */

static void
file_exit_process(ngx_idempotency_tier_t *tier)
{
    file_t       *file;
    ngx_msec_t    time;
    file_work_t  *work;

    file = (file_t *) tier;
    work = file->work;

    if (work == NULL) {
        return;
    }

    time = ngx_terminate ? FILE_TERM : FILE_QUIT;

    if (file->db.sync == NGX_IDEMPOTENCY_SYNC_BATCHED
        && !work->sync.thread->busy && !tier->stuck
        && ngx_idempotency_thread_post(work->sync.thread) == NGX_OK)
    {
        (void) ngx_idempotency_thread_wait(work->sync.thread, time);
    }

    file_exit_conn(&work->maintain, time);
    file_exit_conn(&work->flush, time);

    /* a thread that hangs needs this memory until the process ends */

    file->work = NULL;
}


static void
file_exit_conn(file_conn_t *conn, ngx_msec_t time)
{
    if (ngx_idempotency_thread_wait(conn->thread, time) != NGX_OK
        || conn->lock == -1)
    {
        return;
    }

    conn->leaves = 1;

    if (ngx_idempotency_thread_post(conn->thread) == NGX_OK) {
        (void) ngx_idempotency_thread_wait(conn->thread, time);
    }
}


static int64_t
file_now(ngx_idempotency_tier_t *tier)
{
    return file_time(&tier->shm->sh->tier);
}


/* follows the boot's clock, whatever happens to the wall clock */

static int64_t
file_time(ngx_idempotency_tier_sh_t *sh)
{
    return sh->base + ngx_idempotency_start_clock(CLOCK_BOOTTIME);
}


/* the same in all workers and threads, nearly ngx_current_msec; never zero */

static ngx_msec_t
file_msec(void)
{
    return (ngx_msec_t) ngx_idempotency_start_clock(CLOCK_MONOTONIC) | 1;
}


/* our own instance lives; its lock is ours, so it can't be tested */

static ngx_uint_t
file_alive(void *data, uint64_t instance)
{
    file_work_t  *work;

    work = data;

    return instance == work->sh->instance
           || ngx_idempotency_owners_alive(work->start.owners, instance);
}


/* false: another worker has taken over the batch */

static ngx_uint_t
file_may_commit(void *data)
{
    file_work_t  *work = data;

    ngx_uint_t  may;

    ngx_idempotency_thread_enter();
    may = ngx_idempotency_batch_current(&work->file->tier, work->batch);
    ngx_idempotency_thread_leave();

    return may;
}


/* This worker holds the instance before anything is claimed for it.  Another
   worker may have made a new one, when somebody agreed to the file. */

static ngx_uint_t
file_up(ngx_idempotency_tier_t *tier)
{
    file_t                     *file;
    ngx_idempotency_tier_sh_t  *sh;

    file = (file_t *) tier;
    sh = &tier->shm->sh->tier;

    if (file->work == NULL || sh->instance == 0 || sh->other || sh->lost
        || file->start.owners == -1
        || file_unsynced(sh, FILE_UNSYNCED))
    {
        return 0;
    }

    if (file->start.instance != sh->instance) {

        if (ngx_idempotency_owners_hold(file->start.owners, F_RDLCK,
                                        sh->instance)
            != NGX_OK)
        {
            return 0;
        }

        (void) ngx_idempotency_owners_hold(file->start.owners, F_UNLCK,
                                           file->start.instance);

        file->start.instance = sh->instance;
    }

    return 1;
}


static ngx_int_t
file_agree(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_tier_sh_t  *sh;

    sh = &tier->shm->sh->tier;

    if (sh->other != NGX_IDEMPOTENCY_TIER_OTHER) {
        return NGX_DECLINED;
    }

    sh->agreed = 1;

    return NGX_OK;
}


static ngx_int_t
file_flush(ngx_idempotency_tier_t *tier, ngx_idempotency_batch_t *batch)
{
    file_t       *file;
    file_work_t  *work;

    file = (file_t *) tier;
    work = file->work;

    if (work && !work->flush.thread->busy) {
        file_sync(file, FILE_LATE);

        work->batch = batch;

        if (ngx_idempotency_thread_post(work->flush.thread) == NGX_OK) {

            tier->stuck = tier->finished
                          && ngx_idempotency_thread_wait(work->flush.thread,
                                                         FILE_TERM) != NGX_OK;

            return (tier->finished && !tier->stuck) ? NGX_OK : NGX_AGAIN;
        }
    }

    batch->rc = NGX_ERROR;
    (void) snprintf(batch->error, sizeof(batch->error),
                    "this worker has no thread for it");

    return NGX_OK;
}


static void
file_flush_run(void *data)
{
    file_work_t  *work = data;

    ngx_idempotency_batch_t  *batch;

    if (work->flush.leaves) {
        file_leave(&work->flush);
        return;
    }

    batch = work->batch;

    if (batch == NULL) {

        file_leave(&work->flush);

        /* now no thread of this worker has the file open */

        if (work->starts) {
            work->flush.rc = ngx_idempotency_start_late(&work->start);
        }

        return;
    }

    batch->error[0] = '\0';

    ngx_idempotency_thread_enter();
    ngx_idempotency_seal(work->file->tier.shm->store->secret, batch->items,
                         batch->n, 1);
    ngx_idempotency_thread_leave();

    batch->rc = file_commit(work, batch);

    ngx_idempotency_batch_answered(batch);

    if (batch->rc != NGX_OK) {
        return;
    }

    ngx_idempotency_thread_enter();
    ngx_idempotency_unseal(work->file->tier.shm->store->secret, batch->items,
                           batch->n, 1);
    ngx_idempotency_thread_leave();
}


static ngx_int_t
file_commit(file_work_t *work, ngx_idempotency_batch_t *batch)
{
    ngx_int_t                          rc;
    const char                        *why;
    ngx_uint_t                         again;
    file_conn_t                       *conn;
    ngx_idempotency_tier_sh_t         *sh;
    const ngx_idempotency_db_state_t  *state;

    sh = work->sh;
    conn = &work->flush;

    why = sh->lost ? "only a restart can bring it back"
          : sh->other ? "it is not the one that it was"
          : file_unsynced(sh, FILE_UNSYNCED)
            ? "what was written is not on disk for 2 s" : NULL;

    if (why) {
        (void) snprintf(batch->error, sizeof(batch->error), "%s", why);
        return NGX_ERROR;
    }

    /* a file that was moved away and came back is opened again, once */

    for (again = (conn->db != NULL); /* void */ ; again = 0) {

        if (file_open(work, conn, batch->error) != NGX_OK) {
            return NGX_ERROR;
        }

        file_lock(conn);

        /* time may have passed while it waited: a doubt begins now */

        rc = ngx_idempotency_db_commit(conn->db, batch->items, batch->n,
                                       file_time(sh));

        if (rc == NGX_OK && work->db.sync == NGX_IDEMPOTENCY_SYNC_STRICT) {
            file_witness(work, &sh->mark);
        }

        file_unlock(conn);

        state = ngx_idempotency_db_state(conn->db);

        /* before any request gets its answer */

        if (rc == NGX_OK && work->db.sync == NGX_IDEMPOTENCY_SYNC_BATCHED
            && state->wrote)
        {
            (void) ngx_atomic_cmp_set(&sh->unsynced, 0, file_msec());
        }

        ngx_cpystrn((u_char *) batch->error, (u_char *) state->error,
                    sizeof(batch->error));

        batch->lost = state->failed;
        batch->wrote = state->wrote;

        if (rc == NGX_ERROR && state->full) {
            batch->why = NGX_IDEMPOTENCY_ERROR_FULL;
        }

        file_shut(work, conn);

        if (rc != NGX_ABORT || !again) {
            return (rc == NGX_OK) ? NGX_OK : NGX_ERROR;
        }
    }
}


/* a store that could never be opened has no identity, and needs no witness */

static void
file_witness(file_work_t *work, ngx_idempotency_mark_t *mark)
{
    static u_char  none[NGX_IDEMPOTENCY_MARK_LEN];

    if (ngx_memcmp(mark->identity, none, NGX_IDEMPOTENCY_MARK_LEN) == 0) {
        return;
    }

    if (ngx_idempotency_witness_write(work->db.path, mark, 0) != NGX_OK) {
        work->witness = ngx_errno;
    }
}


static void
file_flush_done(void *data)
{
    file_work_t  *work = data;

    file_t  *file;

    file = work->file;

    file_log_found(file, &work->flush);

    if (work->batch) {
        ngx_idempotency_batch_flushed(&file->tier, work->batch);

    } else if (work->starts) {
        work->starts = 0;
        file_started(file);

    } else if (!file->tier.finished) {
        ngx_idempotency_tier_probe(&file->tier);
    }
}


/* logs what a thread has found out */

static void
file_log_found(file_t *file, file_conn_t *conn)
{
    if (conn->found) {
        conn->found = 0;
        file_refused(file, conn->error);
    }

    if (file->work->witness && !file->unwitnessed) {
        file->unwitnessed = 1;

        ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, file->work->witness,
                      "idempotency: the witness of the %V of zone \"%V\" can't "
                      "be written", &file->tier.name,
                      &file->tier.shm->store->name);
    }
}


static void
file_refused(file_t *file, const char *why)
{
    ngx_idempotency_shm_t  *shm;

    shm = file->tier.shm;
    shm->sh->tier.failing = 1;

    ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                  "idempotency: the %V of zone \"%V\" is refused, it %s; to "
                  "agree to it as it is, PUT {\"store\":\"accept\"} to "
                  "/zones/%V of idempotency_api", &file->tier.name,
                  &shm->store->name, why, &shm->store->name);
}


/* The locks in -owners, found beside this path, are those of the processes that
   use this file. */

static ngx_int_t
file_open(file_work_t *work, file_conn_t *conn, char *error)
{
    ngx_int_t                  rc;
    struct stat                st;
    ngx_idempotency_db_conf_t  conf;

    if (conn->lock == -1) {
        conn->lock = ngx_idempotency_owners_open(work->db.path, 0);

        if (conn->lock == -1) {
            (void) snprintf(error, NGX_IDEMPOTENCY_DB_ERROR,
                            "-owners can't be opened: %s", strerror(errno));
            return NGX_ERROR;
        }

        if (fstat(work->start.owners, &st) == -1 || !file_is(conn->lock, &st)) {
            (void) snprintf(error, NGX_IDEMPOTENCY_DB_ERROR,
                            "-owners was replaced by another one");
            (void) close(conn->lock);
            conn->lock = -1;
            return NGX_ERROR;
        }
    }

    if (conn->db) {
        return NGX_OK;
    }

    rc = file_way(work, conn);

    if (rc == NGX_DECLINED) {
        (void) snprintf(error, NGX_IDEMPOTENCY_DB_ERROR, "it is another one");
        file_found_other(work, conn,
                         "is empty, or not a file of this module");
        return NGX_ERROR;
    }

    if (rc != NGX_OK) {
        (void) snprintf(error, NGX_IDEMPOTENCY_DB_ERROR, "%s",
                        (rc == NGX_BUSY) ? "another nginx has another way to it"
                                         : strerror(errno));
        return NGX_ERROR;
    }

    conf = work->db;
    conf.file = conn->file;
    conf.may = (conn == &work->flush) ? file_may_commit : NULL;

    conn->db = ngx_idempotency_db_open(&conf, error, NGX_IDEMPOTENCY_DB_ERROR);

    return conn->db ? NGX_OK : NGX_ERROR;
}


/* Before SQLite opens the file, the process has it open with the lock that says
   by which way: what it inherited may be another file by now.  That stays open,
   too, as closing it would drop SQLite's locks. */

static ngx_int_t
file_way(file_work_t *work, file_conn_t *conn)
{
    u_char       id[4];
    ssize_t      n;
    struct stat  st;

    if (stat(work->db.path, &st) == -1) {
        return NGX_ERROR;
    }

    if (!file_is(conn->file, &st)) {
        conn->file = open(work->db.path,
                          O_RDWR|O_CLOEXEC|O_NOFOLLOW|O_NONBLOCK);
    }

    n = pread(conn->file, id, sizeof(id), NGX_IDEMPOTENCY_DB_ID_AT);

    if (n == -1) {
        return NGX_ERROR;
    }

    /* in an empty one SQLite would begin another store */

    if (n != sizeof(id) || ngx_memcmp(id, "idem", sizeof(id)) != 0) {
        return NGX_DECLINED;
    }

    return ngx_idempotency_owners_only(conn->file, conn->lock);
}


static ngx_uint_t
file_is(int fd, struct stat *file)
{
    struct stat  st;

    return fstat(fd, &st) == 0
           && st.st_dev == file->st_dev && st.st_ino == file->st_ino;
}


/* if the file at the path may be another one, it is opened again */

static void
file_shut(file_work_t *work, file_conn_t *conn)
{
    const ngx_idempotency_db_state_t  *state;

    state = ngx_idempotency_db_state(conn->db);

    if (state->other) {
        file_found_other(work, conn, state->error);
    }

    if (state->other || state->moved) {
        ngx_idempotency_db_close(conn->db);
        conn->db = NULL;
    }
}


static void
file_found_other(file_work_t *work, file_conn_t *conn, const char *why)
{
    if (ngx_atomic_cmp_set(&work->sh->other, 0, NGX_IDEMPOTENCY_TIER_OTHER)) {
        (void) snprintf(conn->error, sizeof(conn->error), "%s", why);
        conn->found = 1;
    }
}


/* without success SQLite's own lock decides */

static void
file_lock(file_conn_t *conn)
{
    (void) ngx_idempotency_owners_lock(conn->lock,
                                       NGX_IDEMPOTENCY_OWNERS_COMMIT,
                                       FILE_LOCK);
}


static void
file_unlock(file_conn_t *conn)
{
    ngx_idempotency_owners_unlock(conn->lock, NGX_IDEMPOTENCY_OWNERS_COMMIT);
}


/* Two workers that close the file at the same moment would each see the other
   one, and leave the log, which the last one has to remove: so under the lock,
   which ends with its descriptor. */

static void
file_leave(file_conn_t *conn)
{
    if (conn->db) {
        file_lock(conn);
        ngx_idempotency_db_close(conn->db);
        conn->db = NULL;
    }

    if (conn->lock != -1) {
        (void) close(conn->lock);
        conn->lock = -1;
    }
}


static ngx_uint_t
file_unsynced(ngx_idempotency_tier_sh_t *sh, ngx_msec_t time)
{
    ngx_atomic_uint_t  since;

    since = sh->unsynced;

    return since && (ngx_msec_int_t) (file_msec() - since)
                    > (ngx_msec_int_t) time;
}


static void
file_sync(file_t *file, ngx_msec_t time)
{
    ngx_idempotency_thread_t  *thread;

    thread = file->work->sync.thread;

    if (!thread->busy && file_unsynced(&file->tier.shm->sh->tier, time)) {
        (void) ngx_idempotency_thread_post(thread);
    }
}


/*
 * Commits made while the log is synced may be on disk afterwards or not.  So
 * the witness gets the number from before the sync, and the oldest commit that
 * is not on disk counts from that moment.
 */

static void
file_sync_run(void *data)
{
    file_work_t  *work = data;

    file_conn_t                *conn;
    ngx_atomic_uint_t           since, before;
    ngx_idempotency_mark_t      mark;
    ngx_idempotency_tier_sh_t  *sh;

    sh = work->sh;
    conn = &work->sync;

    mark = sh->mark;
    before = sh->unsynced;
    since = file_msec();

    conn->rc = ngx_idempotency_db_sync(work->db.path, conn->error,
                                       sizeof(conn->error));

    if (conn->rc != NGX_OK) {
        return;
    }

    if (before && ngx_atomic_cmp_set(&sh->unsynced, before, since)
        && sh->mark.number == mark.number
        && ngx_atomic_cmp_set(&sh->unsynced, since, 0)
        && sh->mark.number != mark.number)
    {
        (void) ngx_atomic_cmp_set(&sh->unsynced, 0, since);
    }

    file_witness(work, &mark);
}


static void
file_sync_done(void *data)
{
    file_work_t  *work = data;

    if (work->sync.rc == NGX_ERROR) {
        ngx_idempotency_tier_lost(&work->file->tier, work->sync.error);
    }

    file_log_found(work->file, &work->sync);
}


/* pages are read one by one */

static ngx_int_t
file_list(ngx_idempotency_tier_t *tier, ngx_idempotency_page_t *page)
{
    file_t                   *file;
    ngx_idempotency_page_t  **last;

    file = (file_t *) tier;

    if (!file_up(tier) || tier->finished
        || (file->work->maintain.thread->busy
            && ngx_current_msec - file->maintained > FILE_LATE))
    {
        return NGX_ERROR;
    }

    for (last = &file->pages; *last; last = &(*last)->next) { /* void */ }

    /* also if the file is refused before the page's turn comes */

    page->rc = NGX_ERROR;
    page->next = NULL;
    *last = page;

    if (!file->work->maintain.thread->busy && file_list_next(file) != NGX_OK) {
        file->pages = NULL;
        return NGX_ERROR;
    }

    return NGX_AGAIN;
}


static ngx_int_t
file_list_next(file_t *file)
{
    file->work->page = file->pages;
    file->maintained = ngx_current_msec;

    return ngx_idempotency_thread_post(file->work->maintain.thread);
}


/* in the order of tokens; the cursor says if there was a page before */

static void
file_list_run(file_work_t *work, ngx_idempotency_page_t *page)
{
    u_char                   tokens[NGX_IDEMPOTENCY_TIER_BATCH]
                                   [NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_int_t                i, n;
    file_conn_t             *conn;
    ngx_idempotency_item_t  *item;

    conn = &work->maintain;

    page->now = file_time(work->sh);

    if (file_open(work, conn, conn->error) != NGX_OK) {
        return;
    }

    n = ngx_idempotency_db_tokens(conn->db, page->cursor ? page->token : NULL,
                                  tokens, page->n);
    if (n == NGX_ERROR) {
        return;
    }

    for (i = 0; i < n; i++) {
        item = &page->items[i];

        ngx_memzero(item, sizeof(ngx_idempotency_item_t));
        ngx_memcpy(item->token, tokens[i], NGX_IDEMPOTENCY_DIGEST_LEN);

        item->what = NGX_IDEMPOTENCY_ITEM_FIND;
        item->length_only = 1;
    }

    page->cursor = (n == (ngx_int_t) page->n);
    page->n = n;

    if (n == 0) {
        page->rc = NGX_OK;
        return;
    }

    ngx_memcpy(page->token, tokens[n - 1], NGX_IDEMPOTENCY_DIGEST_LEN);

    file_lock(conn);

    page->rc = ngx_idempotency_db_commit(conn->db, page->items, page->n,
                                         page->now);

    file_unlock(conn);
}


/* syncs recent commits, and deletes expired records */

static void
file_maintain(ngx_idempotency_tier_t *tier)
{
    file_t                     *file;
    ngx_msec_t                  due;
    ngx_idempotency_tier_sh_t  *sh;

    file = (file_t *) tier;
    sh = &tier->shm->sh->tier;

    if (file->work == NULL || sh->lost || file->start.owners == -1) {
        return;
    }

    file_sync(file, FILE_SYNC);

    /* no request has to find out */

    if (!sh->failing && file_unsynced(sh, FILE_UNSYNCED)) {
        sh->failing = 1;
        ngx_idempotency_tier_say(tier, "what was written is not on disk for "
                                       "2 s");
    }

    if (sh->agreed && sh->other && !file->work->flush.thread->busy) {
        sh->agreed = 0;
        file_start_again(file, 1);
    }

    if (file->work->maintain.thread->busy) {
        return;
    }

    if (!file->more) {

        /* after failures, too: another connection may succeed */

        due = (sh->flushed != file->flushed || sh->failing) ? FILE_MAINTAIN
                                                            : FILE_IDLE;

        if (ngx_current_msec - file->maintained < due) {
            return;
        }
    }

    file->flushed = sh->flushed;
    file->maintained = ngx_current_msec;
    file->work->page = NULL;

    (void) ngx_idempotency_thread_post(file->work->maintain.thread);
}


static void
file_maintain_run(void *data)
{
    file_work_t  *work = data;

    file_conn_t  *conn;

    conn = &work->maintain;
    conn->rc = NGX_OK;

    if (conn->leaves || work->sh->other) {
        file_leave(conn);
        return;
    }

    if (work->page) {
        file_list_run(work, work->page);

    } else {
        conn->rc = NGX_ERROR;

        if (file_open(work, conn, conn->error) == NGX_OK) {
            file_tidy(work);
        }
    }

    if (conn->db) {
        file_shut(work, conn);
    }
}


static void
file_tidy(file_work_t *work)
{
    ngx_int_t                   rc;
    ngx_uint_t                  quiet;
    file_conn_t                *conn;
    ngx_idempotency_tier_sh_t  *sh;

    sh = work->sh;
    conn = &work->maintain;
    quiet = (sh->mark.number == work->number);

    if (ngx_idempotency_owners_others(work->start.owners, sh->instance)) {
        sh->others = file_msec();
    }

    file_lock(conn);

    conn->rc = ngx_idempotency_db_tidy(conn->db, file_time(sh), FILE_TIDY);

    file_unlock(conn);

    if (conn->rc != NGX_ERROR
        && (sh->log >= NGX_IDEMPOTENCY_DB_LONG
            || (quiet && sh->log >= NGX_IDEMPOTENCY_DB_QUIET)))
    {
        rc = ngx_idempotency_db_checkpoint(conn->db, 0);

        if (rc == NGX_OK) {

            /* others that commit wait for the end of this only */

            file_lock(conn);
            rc = ngx_idempotency_db_checkpoint(conn->db, file_time(sh));
            file_unlock(conn);
        }

        conn->rc = (rc == NGX_OK) ? conn->rc : NGX_ERROR;
    }

    if (conn->rc == NGX_ERROR) {
        (void) snprintf(conn->error, sizeof(conn->error), "%s",
                        ngx_idempotency_db_state(conn->db)->error);
    }

    work->number = sh->mark.number;
}


static void
file_maintain_done(void *data)
{
    file_work_t  *work = data;

    file_t                  *file;
    ngx_idempotency_page_t  *page;

    file = work->file;
    page = work->page;
    work->page = NULL;

    file_log_found(file, &work->maintain);

    /* this thread has no file any more, and perhaps no request would notice */

    if (work->maintain.rc == NGX_ERROR && work->maintain.db == NULL
        && !work->flush.thread->busy && !file->tier.finished)
    {
        work->batch = NULL;
        (void) ngx_idempotency_thread_post(work->flush.thread);
    }

    if (page) {
        file->pages = page->next;
        ngx_idempotency_page_listed(page);

    } else {
        file->more = (work->maintain.rc == NGX_AGAIN);

        if (work->maintain.rc == NGX_ERROR && work->maintain.db
            && ngx_idempotency_db_state(work->maintain.db)->failed)
        {
            ngx_idempotency_tier_lost(&file->tier, work->maintain.error);
        }
    }

    if (file->pages && !work->maintain.thread->busy) {
        (void) file_list_next(file);
    }
}


/*
 * Each worker holds the instance's lock before anything is claimed for the
 * instance.  So the worker that watches the file does the start, and each other
 * one shares the lock.
 */

static void
file_late_handler(ngx_event_t *ev)
{
    file_t  *file = ev->data;

    file_work_t                *work;
    ngx_idempotency_tier_sh_t  *sh;

    work = file->work;
    sh = &file->tier.shm->sh->tier;

    if (work == NULL || file->tier.finished || file->start.owners != -1) {
        return;
    }

    ngx_add_timer(ev, FILE_AGAIN);

    if (!work->flush.thread->busy
        && (sh->instance
            || ngx_idempotency_process_is(&sh->watcher,
                                          ngx_idempotency_process_self())))
    {
        work->start.owners = -1;
        file_start_again(file, 0);
    }
}


static void
file_start_again(file_t *file, ngx_uint_t agreed)
{
    file_work_t  *work;

    work = file->work;

    work->batch = NULL;
    work->start.agreed = agreed;
    work->start.was = file->tier.shm->sh->tier.instance;
    ngx_memcpy(work->start.known, file->tier.shm->sh->tier.mark.identity,
               NGX_IDEMPOTENCY_MARK_LEN);

    /* before the thread runs, which reads it */

    work->starts = 1;

    if (ngx_idempotency_thread_post(work->flush.thread) != NGX_OK) {
        work->starts = 0;
    }
}


/* agreed: other workers follow */

static void
file_started(file_t *file)
{
    ngx_int_t                 rc;
    file_work_t              *work;
    ngx_idempotency_shm_t    *shm;
    ngx_idempotency_start_t  *start;

    work = file->work;
    rc = work->flush.rc;
    start = &work->start;
    shm = file->tier.shm;

    if (start->agreed && rc != NGX_OK) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                      "idempotency: the %V of zone \"%V\" can't be agreed to: "
                      "it %s", &file->tier.name, &shm->store->name,
                      start->why);
        return;
    }

    if (start->agreed) {
        (void) file_begin(shm, start, 0);

        ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0,
                      "idempotency: the %V of zone \"%V\" is used as it is, as "
                      "somebody has agreed to that", &file->tier.name,
                      &shm->store->name);
        return;
    }

    if (rc != NGX_OK && start->other != NGX_IDEMPOTENCY_TIER_OTHER) {

        ngx_add_timer(&file->late, FILE_REFUSED);

        /* a reload may have begun with the file, or refused it, meanwhile */

        if (start->was == 0 && ngx_idempotency_shm_lock(shm) == NGX_OK) {

            if (shm->sh->tier.instance == 0
                && shm->sh->tier.other != NGX_IDEMPOTENCY_TIER_OTHER)
            {
                shm->sh->tier.other = start->other;
            }

            ngx_idempotency_shm_unlock(shm);
        }

        /* the start has logged its first reason */

        if (rc != NGX_BUSY && ngx_strcmp(start->why, file->start.why) != 0) {
            ngx_memcpy(file->start.why, start->why, sizeof(start->why));

            ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                          "idempotency: the %V %s; zone \"%V\" is without it "
                          "until it can be used", &file->tier.name, start->why,
                          &shm->store->name);
        }

        return;
    }

    if (start->was == 0 && file_begin(shm, start, 1) != NGX_OK) {
        ngx_idempotency_start_leave(start);
        (void) close(start->file);
        start->file = -1;
        return;
    }

    ngx_del_timer(&file->late);

    file->start.owners = start->owners;
    file->start.instance = start->instance;

    ngx_idempotency_tier_serve(&file->tier, 1);

    if (start->other == NGX_IDEMPOTENCY_TIER_OTHER) {
        file_refused(file, start->why);

    } else if (start->was == 0) {
        ngx_idempotency_start_log(start, ngx_cycle->log);
    }
}


#else


ngx_int_t
ngx_idempotency_file_add(ngx_conf_t *cf, ngx_idempotency_store_t *store,
    ngx_idempotency_file_conf_t *conf)
{
    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "\"state\" is not supported by this build of the "
                       "module: it takes SQLite, an nginx with threads, "
                       "and Linux");
    return NGX_ERROR;
}


void
ngx_idempotency_file_exit_process(void)
{
}

#endif
