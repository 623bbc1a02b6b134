
/*
 * The second tier of a zone: a backing, a file or a Redis, that remembers what
 * shared memory forgets.  Records whose last change the backing lacks, and
 * questions to it, wait in the zone's write-back queue.  Workers flush it in
 * batches: one worker at a time to a file, each worker to a Redis.  A request
 * that waits for an answer waits for its record to change.
 */


#ifndef _NGX_IDEMPOTENCY_TIER_H_INCLUDED_
#define _NGX_IDEMPOTENCY_TIER_H_INCLUDED_


#include <ngx_event.h>
#include "ngx_idempotency_backing.h"
#include "ngx_idempotency_workers.h"


/* a batch has so many records at most, and room for so many bytes of responses
   with their seals */

#define NGX_IDEMPOTENCY_TIER_BATCH  64
#define NGX_IDEMPOTENCY_TIER_COPY                                            \
    (65536 + NGX_IDEMPOTENCY_TIER_BATCH * NGX_IDEMPOTENCY_SEAL_LEN)


typedef struct ngx_idempotency_shm_s     ngx_idempotency_shm_t;
typedef struct ngx_idempotency_tier_s    ngx_idempotency_tier_t;
typedef struct ngx_idempotency_record_s  ngx_idempotency_record_t;


/* a batch that failed is flushed again after this time */

#define NGX_IDEMPOTENCY_TIER_RETRY  100


/* an operation that takes longer hangs, unless the backing itself says so */

#define NGX_IDEMPOTENCY_TIER_HANGS  1000


/* requests that ask the backing are numbered below this */

#define NGX_IDEMPOTENCY_ASKERS  (1 << 30)


/* in shared memory: a batch that a worker flushes; pid 0: it is free */

typedef struct ngx_idempotency_writer_s  ngx_idempotency_writer_t;

struct ngx_idempotency_writer_s {
    ngx_idempotency_writer_t       *next;
    ngx_idempotency_process_t       process;
    /* when the backing got the batch; the batch that it has answered */
    ngx_msec_t                      started;
    ngx_atomic_t                    answered;
    ngx_idempotency_record_t       *records;
    /* the number of the batch; a new one also means that another worker has
       taken the records over */
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
    /* of the claims that are made here; those below `floor` were made before
       the zone was torn */
    uint64_t                        instance;
    uint64_t                        floor;

    /* the write-back queue, the oldest record first; its writers: one, or as
       many as there ever were at a time */
    ngx_idempotency_record_t       *first;
    ngx_idempotency_record_t       *last;
    ngx_idempotency_writer_t        writer;
    /* records aside: the backing has no room for them, or a batch with them
       failed while others did not */
    ngx_idempotency_record_t       *aside;
    /* how many records were ever queued, and how many of them flushed */
    uint64_t                        queued;
    uint64_t                        flushed;
    /* a request has asked, and waits, since the last batch was filled; the
       number of the last request that asked */
    ngx_uint_t                      asked;
    ngx_uint_t                      askers;

    /* the last batch failed; when one did last, and when it was last probed
       whether it would again */
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
    /* the log has it as unavailable: where many share it, a part of it may fail
       each time that it is asked, and that is one outage */
    ngx_atomic_t                    said;

    /* when it was last looked which claims are to be renewed */
    ngx_msec_t                      renewed;

    /* the worker that looks after the backing */
    ngx_idempotency_process_t       watcher;

    /* workers that can flush the queue: those that serve, and those that quit;
       the last configuration that names the zone */
    ngx_idempotency_workers_t       serving;
    ngx_idempotency_workers_t       leaving;
    ngx_uint_t                      generation;
    /* how many outcomes were in the queue when the log said so, or 0 */
    ngx_atomic_t                    undelivered;

    /* which file it is, and the last commit that was seen; it is another one
       now, and refused until an operator agrees; an operator has agreed */
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


/* records on their way to the backing; a thread may work on it */

typedef struct {
    ngx_idempotency_item_t          items[NGX_IDEMPOTENCY_TIER_BATCH];
    ngx_idempotency_record_t       *records[NGX_IDEMPOTENCY_TIER_BATCH];
    ngx_uint_t                      n;

    /* their responses, or that of a single one that is larger */
    u_char                          copy[NGX_IDEMPOTENCY_TIER_COPY];
    u_char                         *large;
    size_t                          size;

    /* its place in shared memory, and what that and the zone were when it was
       filled; the backing has it */
    ngx_idempotency_writer_t       *writer;
    uint64_t                        floor;
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
    /* false: nothing was written, which a disk without room answers, too */
    ngx_uint_t                      wrote;
    /* ... and how many of its items failed */
    ngx_uint_t                      failed;
} ngx_idempotency_batch_t;


/* some of all that the backing has; it is the backing's until that calls
   ngx_idempotency_page_listed(), and a thread may work on it */

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
    /* the backing's time, when it was read */
    int64_t                         now;
    /* NGX_OK, or NGX_ERROR */
    ngx_int_t                       rc;

    /* the operation that waits for it, or NULL */
    void                           *data;
};


/* a backing answers later, by ngx_idempotency_batch_flushed() */

typedef struct {
    /* it is asked about remote claims again: after so many milliseconds at
       first, twice as many each time, and so many at most */
    ngx_msec_t                      soon;
    ngx_msec_t                      seldom;

    /* its kind, and its mode of syncs if it has any, as the figures have
       them */
    const char                   *(*kind)(ngx_idempotency_tier_t *tier,
                                       const char **sync);
    /* its time, in milliseconds */
    int64_t                       (*now)(ngx_idempotency_tier_t *tier);
    /* NGX_AGAIN, or NGX_OK: batch->rc is set */
    ngx_int_t                     (*flush)(ngx_idempotency_tier_t *tier,
                                       ngx_idempotency_batch_t *batch);
    /* NULL, or: requests of this worker wait for a remote claim; called each
       second while they do.  If the backing announces changes, it calls
       ngx_idempotency_remote_changed() */
    void                          (*await)(ngx_idempotency_tier_t *tier,
                                       u_char *token);
    /* NULL: it can't tell.  NGX_AGAIN, or NGX_ERROR */
    ngx_int_t                     (*list)(ngx_idempotency_tier_t *tier,
                                       ngx_idempotency_page_t *page);
    /* NULL, or: now and then, in one worker */
    void                          (*maintain)(ngx_idempotency_tier_t *tier);

    /* in the master: of a zone that is made, or kept over a reload */
    ngx_int_t                     (*init)(ngx_idempotency_tier_t *tier,
                                       ngx_idempotency_tier_t *old,
                                       ngx_log_t *log);
    /* ... in a configuration that does not name it any more */
    ngx_idempotency_tier_t       *(*unnamed)(ngx_conf_t *cf,
                                       ngx_idempotency_tier_t *old);
    ngx_int_t                     (*init_process)(ngx_idempotency_tier_t *tier,
                                       ngx_cycle_t *cycle);
    /* the event loop has ended: a batch is answered at once, or in wait() */
    void                          (*finish)(ngx_idempotency_tier_t *tier);
    /* ... where many share it: waits for answers, for so long at most;
       `first`: it has not waited yet */
    void                          (*wait)(ngx_idempotency_tier_t *tier,
                                       ngx_msec_t time, ngx_uint_t first);
    void                          (*exit_process)(
                                       ngx_idempotency_tier_t *tier);

    /* NULL: it takes one batch at a time.  Or how many batches a worker may
       have on the way: many nginx share it and don't see each other, so each
       claim lives by its lease */
    ngx_uint_t                    (*nbatches)(ngx_idempotency_tier_t *tier);
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
    /* an outcome is there before any client gets it */
    ngx_uint_t                      strict;
    /* whose claims they are there; its fences lie above this one */
    uint64_t                        instance;
    uint64_t                        fence;
    /* ... as the zone has them, when it is made */
    ngx_idempotency_mark_t          mark;
    int64_t                         base;
    ngx_uint_t                      other;

    /* this worker's: its batches, of which it has none where it lacks the
       backing, the current one, and how many are on the way; the next flush,
       after a failure or a pause, and within this turn of the event loop */
    ngx_idempotency_batch_t        *batches;
    ngx_idempotency_batch_t        *batch;
    ngx_uint_t                      nbatches;
    ngx_uint_t                      busy;
    ngx_event_t                     retry;
    ngx_event_t                     scheduled;
    /* the batch being filled is a probe if the queue is empty */
    ngx_uint_t                      probes;

    /* ... asks the backing about remote claims again */
    ngx_event_t                     poll;

    /* ... looks after the backing, and after leases */
    ngx_event_t                     watch;
    ngx_msec_t                      watched;

    /* it was said that some responses can't be opened */
    ngx_uint_t                      unopened;

    /* the worker quits: since when, or 0; it stays as long as this timer is
       set; no other worker flushes the queue; what the backing was given may be
       at work yet, and its memory stays */
    ngx_msec_t                      quit;
    ngx_event_t                     stay;
    ngx_uint_t                      last;
    ngx_uint_t                      stuck;
};


/* with the zone's lock held: the backing lacks the record's last change */

void ngx_idempotency_writeback_add(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);

/* without it, and by a thread as well: the batch is its worker's yet.  False:
   another worker has its records, so it must not change the backing any more.
   To be asked where no other process can change the backing, as in a
   transaction */

ngx_uint_t ngx_idempotency_batch_current(ngx_idempotency_tier_t *tier,
    ngx_idempotency_batch_t *batch);

/* ... the backing has answered; the worker may not know it yet */

void ngx_idempotency_batch_answered(ngx_idempotency_batch_t *batch);

/* ... flushes the queue soon, if it is not empty */

void ngx_idempotency_writeback_schedule(ngx_idempotency_shm_t *shm);

/* with the zone's lock held: a token's claim that is none any more, if the
   backing is about to hear so; NULL: it has, or can't */

ngx_idempotency_record_t *ngx_idempotency_writeback_gone(
    ngx_idempotency_shm_t *shm, u_char *token, uint32_t sequence);

/* the backing would not answer, so a request is refused at once */

void ngx_idempotency_tier_serve(ngx_idempotency_tier_t *tier,
    ngx_uint_t nbatches);
ngx_uint_t ngx_idempotency_tier_down(ngx_idempotency_shm_t *shm);

/* asks the backing something, to see whether it answers; the log hears it if
   it does not */

void ngx_idempotency_tier_probe(ngx_idempotency_tier_t *tier);

/* why it is unavailable, or NULL: it is available again */

void ngx_idempotency_tier_say(ngx_idempotency_tier_t *tier, const char *why);

/* the backing's answers, in the worker that asked */

void ngx_idempotency_batch_flushed(ngx_idempotency_tier_t *tier,
    ngx_idempotency_batch_t *batch);

void ngx_idempotency_page_listed(ngx_idempotency_page_t *page);

/* the backing says that a token has changed, or, NULL, that some have */

void ngx_idempotency_remote_changed(ngx_idempotency_tier_t *tier,
    u_char *token);

/* of a zone that is made, with the lock held, or before any worker has it */

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

#define ngx_idempotency_tier_shared(tier)  ((tier)->backing->nbatches != NULL)


#endif /* _NGX_IDEMPOTENCY_TIER_H_INCLUDED_ */
