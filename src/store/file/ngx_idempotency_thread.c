
/*
 * Threads of a worker. nginx's own thread pool is not for functions that may
 * hang: a worker that ends waits until each of its threads has come back.
 */


#include "ngx_idempotency_owners.h"
#include "ngx_idempotency_thread.h"


#if (NGX_IDEMPOTENCY_FILE)

#include <ngx_channel.h>
#include <ngx_event.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sys/eventfd.h>


static void *thread_cycle(void *data);
static void thread_handler(ngx_event_t *ev);


/* of this process; one mutex for all threads, never held for long */

static ngx_idempotency_thread_t  *threads;
static ngx_uint_t                 threads_gone;
static int                        threads_fd = -1;
static pthread_mutex_t            threads_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t             threads_cond = PTHREAD_COND_INITIALIZER;


ngx_int_t
ngx_idempotency_thread_init_process(ngx_cycle_t *cycle)
{
    Dl_info  info;

    if (threads_fd != -1) {
        return NGX_OK;
    }

    /* A worker unloads its modules before it ends, and a thread may yet return
       into this one, or into SQLite: so they stay in memory. */

    if (dladdr(&threads_fd, &info) && info.dli_fname) {
        (void) dlopen(info.dli_fname, RTLD_NOW|RTLD_NOLOAD|RTLD_NODELETE);
    }

    threads_fd = eventfd(0, EFD_NONBLOCK|EFD_CLOEXEC);

    if (threads_fd == -1) {
        ngx_log_error(NGX_LOG_ALERT, cycle->log, ngx_errno,
                      "eventfd() failed");
        return NGX_ERROR;
    }

    if (ngx_add_channel_event(cycle, threads_fd, NGX_READ_EVENT,
                              thread_handler)
        != NGX_OK)
    {
        (void) close(threads_fd);
        threads_fd = -1;
        return NGX_ERROR;
    }

    return NGX_OK;
}


ngx_idempotency_thread_t *
ngx_idempotency_thread_create(void (*run)(void *data), void (*done)(void *data),
    void *data)
{
    ngx_idempotency_thread_t  *thread;

    thread = calloc(1, sizeof(ngx_idempotency_thread_t));

    if (thread == NULL) {
        return NULL;
    }

    thread->run = run;
    thread->done = done;
    thread->data = data;

    (void) pthread_cond_init(&thread->cond, NULL);

    (void) pthread_mutex_lock(&threads_mutex);
    thread->next = threads;
    threads = thread;
    (void) pthread_mutex_unlock(&threads_mutex);

    return thread;
}


ngx_int_t
ngx_idempotency_thread_post(ngx_idempotency_thread_t *thread)
{
    int             err;
    sigset_t        set, old;
    pthread_t       tid;
    pthread_attr_t  attr;

    if (threads_fd == -1) {
        ngx_set_errno(NGX_ENOENT);
        return NGX_ERROR;
    }

    if (!thread->started) {

        /* signals go to nginx's main thread, but for those of faults */

        sigfillset(&set);
        sigdelset(&set, SIGILL);
        sigdelset(&set, SIGFPE);
        sigdelset(&set, SIGSEGV);
        sigdelset(&set, SIGBUS);

        (void) pthread_sigmask(SIG_BLOCK, &set, &old);

        (void) pthread_attr_init(&attr);
        (void) pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);

        err = pthread_create(&tid, &attr, thread_cycle, thread);

        (void) pthread_attr_destroy(&attr);
        (void) pthread_sigmask(SIG_SETMASK, &old, NULL);

        if (err) {
            ngx_set_errno(err);
            return NGX_ERROR;
        }

        thread->started = 1;
    }

    thread->busy = 1;

    (void) pthread_mutex_lock(&threads_mutex);
    thread->posted = 1;
    (void) pthread_cond_signal(&thread->cond);
    (void) pthread_mutex_unlock(&threads_mutex);

    return NGX_OK;
}


static void *
thread_cycle(void *data)
{
    ngx_idempotency_thread_t *thread = data;

    uint64_t  one;

    one = 1;

    for ( ;; ) {
        (void) pthread_mutex_lock(&threads_mutex);

        while (!thread->posted) {
            (void) pthread_cond_wait(&thread->cond, &threads_mutex);
        }

        thread->posted = 0;
        (void) pthread_mutex_unlock(&threads_mutex);

        thread->run(thread->data);

        ngx_idempotency_thread_enter();

        thread->finished = 1;
        (void) pthread_cond_broadcast(&threads_cond);

        ngx_idempotency_thread_leave();

        /* an eventfd is a counter, and never full */

        if (write(threads_fd, &one, sizeof(uint64_t)) == -1) {
            continue;
        }
    }

    return NULL;
}


static void
thread_handler(ngx_event_t *ev)
{
    uint64_t                   n;
    ngx_uint_t                 finished;
    ngx_idempotency_thread_t  *thread;

    if (read(threads_fd, &n, sizeof(uint64_t)) == -1) {
        return;
    }

    for (thread = threads; thread; thread = thread->next) {

        (void) pthread_mutex_lock(&threads_mutex);
        finished = thread->finished;
        thread->finished = 0;
        (void) pthread_mutex_unlock(&threads_mutex);

        if (finished) {
            thread->busy = 0;
            thread->done(thread->data);
        }
    }
}


ngx_int_t
ngx_idempotency_thread_wait(ngx_idempotency_thread_t *thread, ngx_msec_t time)
{
    int              rc;
    struct timespec  at;

    (void) clock_gettime(CLOCK_REALTIME, &at);

    at.tv_sec += time / 1000;
    at.tv_nsec += (time % 1000) * 1000000;
    at.tv_sec += at.tv_nsec / 1000000000;
    at.tv_nsec %= 1000000000;

    rc = 0;

    (void) pthread_mutex_lock(&threads_mutex);

    while (thread->busy && !thread->finished && rc == 0) {
        rc = pthread_cond_timedwait(&threads_cond, &threads_mutex, &at);
    }

    if (thread->finished) {
        thread->finished = 0;
        thread->busy = 0;
    }

    (void) pthread_mutex_unlock(&threads_mutex);

    return thread->busy ? NGX_AGAIN : NGX_OK;
}


void
ngx_idempotency_thread_enter(void)
{
    (void) pthread_mutex_lock(&threads_mutex);

    while (threads_gone) {
        (void) pthread_cond_wait(&threads_cond, &threads_mutex);
    }
}


void
ngx_idempotency_thread_leave(void)
{
    (void) pthread_mutex_unlock(&threads_mutex);
}


void
ngx_idempotency_thread_exit_process(void)
{
    (void) pthread_mutex_lock(&threads_mutex);
    threads_gone = 1;
    (void) pthread_mutex_unlock(&threads_mutex);
}


#endif
