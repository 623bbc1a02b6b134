
/*
 * Threads of a worker, for functions that may block: each thread runs one
 * function at a time, then the event loop calls `done`.  A worker does not wait
 * for threads when it ends: a thread that hangs in the kernel ends with the
 * process.
 */


#ifndef _NGX_IDEMPOTENCY_THREAD_H_INCLUDED_
#define _NGX_IDEMPOTENCY_THREAD_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


typedef struct ngx_idempotency_thread_s  ngx_idempotency_thread_t;

struct ngx_idempotency_thread_s {
    /* called in the thread, then in the event loop */
    void                          (*run)(void *data);
    void                          (*done)(void *data);
    void                           *data;

    /* for the event loop: the thread has work, and is not done yet */
    ngx_uint_t                      busy;

    /* the threads' own */
    ngx_idempotency_thread_t       *next;
    pthread_cond_t                  cond;
    unsigned                        started:1;
    unsigned                        posted:1;
    unsigned                        finished:1;
};


/* in a worker; NGX_ERROR: no thread can be made, which is logged */

ngx_int_t ngx_idempotency_thread_init_process(ngx_cycle_t *cycle);

/* never freed; NULL: no memory */

ngx_idempotency_thread_t *ngx_idempotency_thread_create(
    void (*run)(void *data), void (*done)(void *data), void *data);

/* the thread must not be busy; NGX_ERROR: see ngx_errno */

ngx_int_t ngx_idempotency_thread_post(ngx_idempotency_thread_t *thread);

/* for a worker on its way out: waits so many milliseconds, and `done` is not
   called.  NGX_AGAIN: the thread is still busy */

ngx_int_t ngx_idempotency_thread_wait(ngx_idempotency_thread_t *thread,
    ngx_msec_t time);

/*
 * A thread calls enter before it touches the worker's memory, and leave after
 * it: meanwhile the worker frees nothing.  When a worker is about to end, enter
 * does not return.
 */

void ngx_idempotency_thread_enter(void);
void ngx_idempotency_thread_leave(void);

/* from now on no thread touches the worker's memory */

void ngx_idempotency_thread_exit_process(void);


#endif /* _NGX_IDEMPOTENCY_THREAD_H_INCLUDED_ */
