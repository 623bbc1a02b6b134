
/*
 * What src/store/ngx_idempotency_workers.c needs of nginx's event loop: one
 * connection that is read from, and timers, both run by hand.
 */


#ifndef _EVENTS_H_INCLUDED_
#define _EVENTS_H_INCLUDED_


#include "unit.h"
#include <ngx_event.h>

#include "store/ngx_idempotency_workers.h"


/* makes the table of workers, as the master does */

void events_start(void);

/* as a reload does */

void events_reload(void);

/* this process becomes a worker; false: it has no slot of its own */

ngx_uint_t events_become_worker(ngx_idempotency_woken_pt handler);

/* a new process: no events yet */

void events_reset(void);

/* gives back what one that died held locked, and wakes the next */

void events_unlock(ngx_pid_t pid);

/* each word of the table that is one is the other from then on */

void events_replace(uint64_t from, uint64_t to);

/* the table's lock, and whether another waits for it */

void events_lock(void);
void events_give_back(void);
ngx_uint_t events_awaited(void);

/* waits for something to read, so long at most; true: it was handled */

ngx_uint_t events_read(int msec);

/* the timer that is next; NULL: none */

ngx_event_t *events_timer(void);
void events_run_timer(void);


#endif /* _EVENTS_H_INCLUDED_ */
