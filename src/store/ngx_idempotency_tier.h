
/*
 * The second tier of a zone: what stands behind shared memory and remembers.
 * The zone is the mailbox: what the backing is to hear or to answer are
 * records that wait in one list, and whoever waits for an answer waits for a
 * record to change.  Workers take them over to the backing: one at a time, or,
 * if that can be told many things at once, each of them.
 */


#ifndef _NGX_IDEMPOTENCY_TIER_H_INCLUDED_
#define _NGX_IDEMPOTENCY_TIER_H_INCLUDED_


#include <ngx_event.h>
#include "ngx_idempotency_backing.h"
#include "ngx_idempotency_seal.h"
#include "ngx_idempotency_workers.h"


/* what is taken over at once: so many, with so many bytes of responses, and of
   their seals */

#define NGX_IDEMPOTENCY_TIER_BATCH  64
#define NGX_IDEMPOTENCY_TIER_COPY                                            \
    (65536 + NGX_IDEMPOTENCY_TIER_BATCH * NGX_IDEMPOTENCY_SEAL_LEN)


typedef struct ngx_idempotency_shm_s     ngx_idempotency_shm_t;
typedef struct ngx_idempotency_tier_s    ngx_idempotency_tier_t;
typedef struct ngx_idempotency_record_s  ngx_idempotency_record_t;


/* what was told in vain is told again after this time */

#define NGX_IDEMPOTENCY_TIER_RETRY  100


/* an operation at the backing that takes longer hangs, if that does not tell
   itself */

#define NGX_IDEMPOTENCY_TIER_HANGS  1000


/* numbers of those who ask */

#define NGX_IDEMPOTENCY_ASKERS  (1 << 30)


/* in shared memory: a hand of a worker, and what it is telling; no pid: it is
   nobody's */

typedef struct ngx_idempotency_hander_s  ngx_idempotency_hander_t;

struct ngx_idempotency_hander_s {
    ngx_idempotency_hander_t       *next;
    ngx_idempotency_process_t       process;
    /* since when the backing has what was taken; it has answered */
    ngx_msec_t                      handed;
    ngx_atomic_t                    answered;
    ngx_idempotency_record_t       *taken;
    /* of a batch; it rises with each, and when what is taken is another
       worker's */
    ngx_atomic_t                    turn;
};


/* which store it is, where many share it: a stamp for each part of it.  What
   was found there instead, since when, or 0; and whether it is refused for
   that */

#define NGX_IDEMPOTENCY_TIER_STAMPS  64

typedef struct {
    uint64_t                        identity;
    /* acknowledged; 0: nothing was yet, and it may be lost */
    uint64_t                        beat;
    ngx_msec_t                      since;
    ngx_uint_t                      found;
    ngx_uint_t                      refused;
} ngx_idempotency_tier_stamp_t;


/* ... with the zone */

typedef struct {
    /* of the claims that are made here; those below `since` were made before
       the zone was torn */
    uint64_t                        instance;
    uint64_t                        since;

    /* what is owed, the oldest first; and who tells it: a single one, or as
       many as there were ever at a time */
    ngx_idempotency_record_t       *first;
    ngx_idempotency_record_t       *last;
    ngx_idempotency_hander_t        hander;
    /* ... and what it has no room for, or was told in vain while others were
       not, which is owed, too */
    ngx_idempotency_record_t       *refused;
    /* how many were ever in the list, and how many of them were told */
    uint64_t                        listed;
    uint64_t                        told;
    /* since the last ones were taken somebody asks, and waits; and the number
       of the last one who did */
    ngx_uint_t                      asked;
    ngx_uint_t                      askers;

    /* whether that is in vain, and was for the last time */
    ngx_uint_t                      failing;
    ngx_msec_t                      failed;
    ngx_msec_t                      probed;
    /* when a worker knew last that a part of it would fail */
    ngx_msec_t                      unwell;
    /* ... for want of room */
    ngx_uint_t                      partly;
    ngx_uint_t                      full;
    /* it will be until a restart */
    ngx_uint_t                      lost;
    /* the log was told so: where many share it, a part of it may fail, each
       time that it is asked, and that is one outage */
    ngx_atomic_t                    said;

    /* when it was last looked which claims are to be renewed */
    ngx_msec_t                      renewed;

    /* the worker that has the backing tended */
    ngx_idempotency_process_t       watcher;

    /* workers that can flush the queue: those that serve, and those that were
       told to quit; the last configuration that names the zone */
    ngx_idempotency_workers_t       serving;
    ngx_idempotency_workers_t       leaving;
    ngx_uint_t                      generation;
    /* how many outcomes were in the queue when the last one was told so */
    ngx_atomic_t                    left;

    /* which one it is, and the last commit that was seen; it is not that one
       any more, and refused until an operator agrees; he has */
    ngx_idempotency_mark_t          mark;
    ngx_atomic_t                    other;
    ngx_atomic_t                    agreed;
    /* of a Redis; how often something has changed there */
    ngx_idempotency_tier_stamp_t    stamps[NGX_IDEMPOTENCY_TIER_STAMPS];
    ngx_atomic_t                    stamped;
    /* of a file: what the boot's clock lacks to be its time; the log's length;
       since when there is a commit that is not on disk, or 0; when another
       instance that has it was last seen, or 0 */
    int64_t                         base;
    ngx_atomic_t                    log;
    ngx_atomic_t                    unsynced;
    ngx_atomic_t                    others;
} ngx_idempotency_tier_sh_t;


/* what is taken over at once; a thread may work on it */

typedef struct {
    ngx_idempotency_item_t          items[NGX_IDEMPOTENCY_TIER_BATCH];
    ngx_idempotency_record_t       *records[NGX_IDEMPOTENCY_TIER_BATCH];
    ngx_uint_t                      n;

    /* their responses, or that of a single one that is larger */
    u_char                          copy[NGX_IDEMPOTENCY_TIER_COPY];
    u_char                         *large;
    size_t                          size;

    /* by whom, in the zone that they are in; and it has them */
    ngx_idempotency_hander_t       *hander;
    uint64_t                        since;
    ngx_atomic_uint_t               turn;
    ngx_uint_t                      busy;
    /* the backing's time, and this worker's at the same moment */
    int64_t                         now;
    ngx_msec_t                      at;

    /* how it went; NGX_ERROR: as these say, and for good? */
    ngx_int_t                       rc;
    ngx_idempotency_error_e         why;
    char                            error[256];
    ngx_uint_t                      lost;
    /* ... and how many are to be told again */
    ngx_uint_t                      vain;
} ngx_idempotency_batch_t;


/* some of all that the backing has; it is the backing's until that calls
   ngx_idempotency_look_listed(), and a thread may work on it */

typedef struct ngx_idempotency_page_s  ngx_idempotency_page_t;

struct ngx_idempotency_page_s {
    /* the backing's own */
    ngx_idempotency_page_t         *next;

    /* where to go on, likewise; zero at first, and at the end again */
    ngx_uint_t                      cursor;
    u_char                          token[NGX_IDEMPOTENCY_DIGEST_LEN];
    /* in: so many are wanted, which may be as many as there is room for; out:
       how many there are, as items that are found, with the response's length,
       but without its bytes */
    ngx_uint_t                      n;
    ngx_idempotency_item_t          items[NGX_IDEMPOTENCY_TIER_BATCH];
    /* the backing's time, by which they are told */
    int64_t                         now;
    /* NGX_OK, or NGX_ERROR */
    ngx_int_t                       rc;

    ngx_queue_t                     queue;
    void                           *data;
};


/* what stands behind: it answers later, by ngx_idempotency_tier_handed() */

typedef struct {
    /* what is pending elsewhere is asked for again: milliseconds at first,
       twice as many each time, and so many at most */
    ngx_msec_t                      soon;
    ngx_msec_t                      seldom;

    /* what it is, and when what a client was told is sure, if that differs:
       as the figures tell them */
    const char                   *(*kind)(ngx_idempotency_tier_t *tier,
                                       const char **sync);
    /* its time, in milliseconds */
    int64_t                       (*now)(ngx_idempotency_tier_t *tier);
    /* NGX_AGAIN, or NGX_OK: batch->rc is set */
    ngx_int_t                     (*hand)(ngx_idempotency_tier_t *tier,
                                       ngx_idempotency_batch_t *batch);
    /* NULL, or: requests of this worker wait for what is pending elsewhere,
       said again each second while they do; who is told that it has changed
       calls ngx_idempotency_tier_changed() */
    void                          (*await)(ngx_idempotency_tier_t *tier,
                                       u_char *token);
    /* NULL: it can't tell.  NGX_AGAIN, or NGX_ERROR */
    ngx_int_t                     (*list)(ngx_idempotency_tier_t *tier,
                                       ngx_idempotency_page_t *page);
    /* NULL, or: now and then, in one worker */
    void                          (*tend)(ngx_idempotency_tier_t *tier);

    /* in the master: of a zone that is made, or kept over a reload */
    ngx_int_t                     (*init)(ngx_idempotency_tier_t *tier,
                                       ngx_idempotency_tier_t *old,
                                       ngx_log_t *log);
    /* ... in a configuration that does not name it any more */
    ngx_idempotency_tier_t       *(*again)(ngx_conf_t *cf,
                                       ngx_idempotency_tier_t *old);
    ngx_int_t                     (*init_process)(ngx_idempotency_tier_t *tier,
                                       ngx_cycle_t *cycle);
    /* the event loop has ended: what is handed is answered at once, or in
       flush() */
    void                          (*finish)(ngx_idempotency_tier_t *tier);
    /* ... of what many share: waits for answers, for so long at most;
       `first`: nothing has been waited for yet */
    void                          (*flush)(ngx_idempotency_tier_t *tier,
                                       ngx_msec_t time, ngx_uint_t first);
    void                          (*exit_process)(
                                       ngx_idempotency_tier_t *tier);

    /* NULL: it is told one batch at a time.  Or how many of them a worker may
       have on the way: those who share it don't see each other, so that each
       claim lives by its lease */
    ngx_uint_t                    (*hands)(ngx_idempotency_tier_t *tier);
    /* ... whether it may answer; false: it would not, at once */
    ngx_uint_t                    (*up)(ngx_idempotency_tier_t *tier);
    /* an operator agrees to one that is another, or has forgotten;
       NGX_DECLINED: it isn't, or can't */
    ngx_int_t                     (*agree)(ngx_idempotency_tier_t *tier);
    /* NULL, or NGX_OK: each part of it takes fresh claims; NGX_ERROR: one does
       not; NGX_DECLINED: this worker can't tell.  Asked again and again while
       the log says that it doesn't */
    ngx_int_t                     (*well)(ngx_idempotency_tier_t *tier);
} ngx_idempotency_backing_t;


struct ngx_idempotency_tier_s {
    const ngx_idempotency_backing_t  *backing;
    /* what it is called in the log */
    ngx_str_t                       name;
    ngx_idempotency_shm_t          *shm;
    /* an outcome is there before anybody is told of it */
    ngx_uint_t                      strict;
    /* whose claims they are there; its fences lie above this one */
    uint64_t                        instance;
    uint64_t                        fence;
    /* ... as the zone has them, when it is made */
    ngx_idempotency_mark_t          mark;
    int64_t                         base;
    ngx_uint_t                      other;

    /* this worker's: what it takes over, of which one is at hand; how many are
       on the way; and when it tries again */
    ngx_idempotency_batch_t        *batches;
    ngx_idempotency_batch_t        *batch;
    ngx_uint_t                      hands;
    ngx_uint_t                      busy;
    ngx_event_t                     retry;
    ngx_event_t                     kick;
    /* it will not be tried again, but goes on, when that timer ends; it is
       tried whether it answers again */
    ngx_uint_t                      pauses;
    ngx_uint_t                      probes;

    /* ... when it asks again for what is pending elsewhere */
    ngx_event_t                     again;

    /* ... looks after the backing, and after leases */
    ngx_event_t                     watch;
    ngx_msec_t                      watched;

    /* it was said that some responses can't be opened */
    ngx_uint_t                      unopened;

    /* on the way out: since when; as long as the timer is set the worker
       stays; no other one flushes the queue; and what the backing was given may
       be at work yet, and stays */
    ngx_msec_t                      quit;
    ngx_uint_t                      quits;
    ngx_event_t                     stay;
    ngx_uint_t                      last;
    ngx_uint_t                      stuck;
};


/* with the zone's lock held: the record says what the backing has not */

void ngx_idempotency_tier_owe(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);

/* without, and by a thread as well: the batch is its worker's yet.  False:
   another one tells the same, so it must not change the backing any more.  To
   be asked where nobody else can change that, as within a transaction */

ngx_uint_t ngx_idempotency_owed_current(ngx_idempotency_tier_t *tier,
    ngx_idempotency_batch_t *batch);

/* ... the backing has answered, though the worker has not heard it */

void ngx_idempotency_owed_answered(ngx_idempotency_batch_t *batch);

/* ... something may be owed */

void ngx_idempotency_tier_kick(ngx_idempotency_shm_t *shm);

/* with the zone's lock held: a token's claim that is none any more, if the
   backing is about to hear so; NULL: it has, or can't */

ngx_idempotency_record_t *ngx_idempotency_tier_gone(ngx_idempotency_shm_t *shm,
    u_char *token, uint32_t sequence);

/* what it is asked would not be answered: whoever comes is told at once */

ngx_uint_t ngx_idempotency_tier_down(ngx_idempotency_shm_t *shm);

/* it is asked whether it answers, and the log hears it if it does not */

void ngx_idempotency_tier_check(ngx_idempotency_tier_t *tier);

/* why it is unavailable, or NULL: it is available again */

void ngx_idempotency_tier_say(ngx_idempotency_tier_t *tier, const char *why);

/* the backing's answers, in the worker that asked */

void ngx_idempotency_tier_handed(ngx_idempotency_tier_t *tier,
    ngx_idempotency_batch_t *batch);

void ngx_idempotency_look_listed(ngx_idempotency_page_t *page);

/* it was told that a token has changed, or some have: NULL */

void ngx_idempotency_tier_changed(ngx_idempotency_tier_t *tier,
    u_char *token);

/* of a zone that is made, the lock held or nobody there yet */

void ngx_idempotency_tier_init(ngx_idempotency_shm_t *shm);
void ngx_idempotency_tier_lost(ngx_idempotency_tier_t *tier,
    const char *error);

ngx_int_t ngx_idempotency_tier_init_process(ngx_idempotency_shm_t *shm,
    ngx_cycle_t *cycle);
void ngx_idempotency_tier_quit(ngx_idempotency_shm_t *shm);
void ngx_idempotency_tier_leave(ngx_idempotency_shm_t *shm);
void ngx_idempotency_tier_finish(ngx_idempotency_shm_t *shm);
void ngx_idempotency_tier_flush(ngx_idempotency_shm_t *shm);
void ngx_idempotency_tier_exit_process(ngx_idempotency_shm_t *shm);

/* many may share what stands behind, each of whose claims live by its lease */

#define ngx_idempotency_tier_shared(tier)  ((tier)->backing->hands != NULL)


#endif /* _NGX_IDEMPOTENCY_TIER_H_INCLUDED_ */
