
/*
 * Threads of a worker, for what may block: each runs one function at a time,
 * and then the event loop calls `done`.  A worker does not wait for them at its
 * end: what hangs in the kernel ends with the process.
 */


#ifndef _NGX_IDEMPOTENCY_THREAD_H_INCLUDED_
#define _NGX_IDEMPOTENCY_THREAD_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


typedef struct ngx_idempotency_thread_s  ngx_idempotency_thread_t;

struct ngx_idempotency_thread_s {
    /* in the thread, and then in the event loop */
    void                          (*run)(void *data);
    void                          (*done)(void *data);
    void                           *data;

    /* of the event loop: it was given something, and is not done with that */
    ngx_uint_t                      busy;

    /* the threads' own */
    ngx_idempotency_thread_t       *next;
    pthread_cond_t                  cond;
    unsigned                        started:1;
    unsigned                        posted:1;
    unsigned                        finished:1;
};


/* in a worker; NGX_ERROR: there can be none, which is logged */

ngx_int_t ngx_idempotency_thread_init_process(ngx_cycle_t *cycle);

/* it is never freed; NULL: no memory */

ngx_idempotency_thread_t *ngx_idempotency_thread_create(
    void (*run)(void *data), void (*done)(void *data), void *data);

/* NGX_ERROR: ngx_errno; it is not busy */

ngx_int_t ngx_idempotency_thread_post(ngx_idempotency_thread_t *thread);

/* on the way out: waits for it, so many milliseconds, instead of its being told
   that it is done.  NGX_AGAIN: it is busy yet */

ngx_int_t ngx_idempotency_thread_wait(ngx_idempotency_thread_t *thread,
    ngx_msec_t time);

/*
 * A thread enters before it touches what is the worker's, and leaves behind it:
 * meanwhile the worker frees nothing.  A worker that is about to end lets no
 * thread in any more: the call does not return then.
 */

void ngx_idempotency_thread_enter(void);
void ngx_idempotency_thread_leave(void);

/* from now on no thread touches what is the worker's */

void ngx_idempotency_thread_exit_process(void);


#endif /* _NGX_IDEMPOTENCY_THREAD_H_INCLUDED_ */
