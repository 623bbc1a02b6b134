
/*
 * The second tier of a zone: a backing, a file or a Redis, that remembers what
 * shared memory forgets.  Records whose last change the backing lacks, and
 * questions to it, wait in the zone's write-back queue.  Workers flush it in
 * batches: one worker at a time to a file, each worker to a Redis.  A request
 * that waits for an answer waits for its record to change.  The queue is in
 * writeback.c, the answers to claims are in remote.c.
 */


#ifndef _NGX_IDEMPOTENCY_TIER_H_INCLUDED_
#define _NGX_IDEMPOTENCY_TIER_H_INCLUDED_


#include <ngx_event.h>
#include "ngx_idempotency_backing.h"
#include "ngx_idempotency_workers.h"


/* the records of a batch, and bytes of their responses with seals, at most */

#define NGX_IDEMPOTENCY_TIER_BATCH  64
#define NGX_IDEMPOTENCY_TIER_COPY                                            \
    (65536 + NGX_IDEMPOTENCY_TIER_BATCH * NGX_IDEMPOTENCY_SEAL_LEN)


typedef struct ngx_idempotency_shm_s     ngx_idempotency_shm_t;
typedef struct ngx_idempotency_tier_s    ngx_idempotency_tier_t;
typedef struct ngx_idempotency_record_s  ngx_idempotency_record_t;


/* a batch that failed is flushed again after this time */

#define NGX_IDEMPOTENCY_TIER_RETRY  100


/* an operation on the backing that takes longer hangs, unless the backing has
   times of its own */

#define NGX_IDEMPOTENCY_TIER_HANGS  1000


/* the numbers of requests that ask the backing are below this */

#define NGX_IDEMPOTENCY_ASKERS  (1 << 30)


/* in shared memory: a batch on its way, and its worker; pid 0: free */

typedef struct ngx_idempotency_writer_s  ngx_idempotency_writer_t;

struct ngx_idempotency_writer_s {
    ngx_idempotency_writer_t       *next;
    ngx_idempotency_process_t       process;
    /* when the backing got the batch; the last batch that it answered */
    ngx_msec_t                      started;
    ngx_atomic_t                    answered;
    ngx_idempotency_record_t       *records;
    /* the batch's number; changes when another worker takes it over, too */
    ngx_atomic_t                    turn;
};


/* the stamp of a shared store, or of a part of it.  If it is wrong: since when,
   what was found there, and whether it is refused */

#define NGX_IDEMPOTENCY_TIER_STAMPS  64

typedef struct {
    uint64_t                        identity;
    /* the beat that was acknowledged; 0: none was, and it may be lost */
    uint64_t                        beat;
    ngx_msec_t                      since;
    ngx_uint_t                      found;
    ngx_uint_t                      refused;
} ngx_idempotency_tier_stamp_t;


/* the tier's part of the zone */

typedef struct {
    /* the instance of this zone's claims; claims below `floor` were made before
       the zone was torn */
    uint64_t                        instance;
    uint64_t                        floor;

    /* the write-back queue, the oldest record first, and the end of the list;
       its writers: one, or the largest number of batches that ever were on the
       way at a time */
    ngx_idempotency_record_t       *first;
    ngx_idempotency_record_t      **end;
    ngx_idempotency_writer_t        writer;
    /* records aside: the backing has no room for them, or a batch with them
       failed while others succeeded */
    ngx_idempotency_record_t       *aside;
    /* the number of records ever queued, and of those flushed */
    uint64_t                        queued;
    uint64_t                        flushed;
    /* a request has asked and waits, since the last batch was filled; the
       number of the last request that asked */
    ngx_uint_t                      asked;
    ngx_uint_t                      askers;

    /* the last batch failed; when one last did; when it was last probed */
    ngx_uint_t                      failing;
    ngx_msec_t                      failed;
    ngx_msec_t                      probed;
    /* when a worker last knew that a part of the backing would fail, or has no
       room for a record */
    ngx_msec_t                      unwell;
    /* it fails for want of room; the log says that there is none */
    ngx_uint_t                      was_full;
    ngx_uint_t                      said_full;
    /* the backing is unavailable until a restart */
    ngx_uint_t                      lost;
    /* the log says that it is unavailable.  Of a shared backing a part may fail
       again and again: that is one outage in the log */
    ngx_atomic_t                    said;

    /* when a worker last looked which leases to renew */
    ngx_msec_t                      renewed;

    /* the worker that watches the backing */
    ngx_idempotency_process_t       watcher;

    /* workers that can flush the queue: those that serve, and those that quit;
       the last configuration that names the zone */
    ngx_idempotency_workers_t       serving;
    ngx_idempotency_workers_t       leaving;
    ngx_uint_t                      generation;
    /* how many outcomes were in the queue when the log last said so, or 0 */
    ngx_atomic_t                    undelivered;

    /* the identity of the file, and its last commit seen; it is not what it
       was, so that memory alone must not guard, either; an operator agrees */
    ngx_idempotency_mark_t          mark;
    ngx_atomic_t                    other;
    ngx_atomic_t                    agreed;
    /* of a Redis; how often a stamp has changed */
    ngx_idempotency_tier_stamp_t    stamps[NGX_IDEMPOTENCY_TIER_STAMPS];
    ngx_atomic_t                    stamped;
    /* of a file: the difference between its time and the boot's clock; the
       log's length; since when a commit is not on disk, or 0; when another
       instance that uses the file was last seen, or 0 */
    int64_t                         base;
    ngx_atomic_t                    log;
    ngx_atomic_t                    unsynced;
    ngx_atomic_t                    others;
} ngx_idempotency_tier_sh_t;


/* records on their way to the backing, perhaps in a thread */

typedef struct {
    ngx_idempotency_item_t          items[NGX_IDEMPOTENCY_TIER_BATCH];
    ngx_idempotency_record_t       *records[NGX_IDEMPOTENCY_TIER_BATCH];
    ngx_uint_t                      n;

    /* the responses, or a single larger one */
    u_char                          copy[NGX_IDEMPOTENCY_TIER_COPY];
    u_char                         *large;
    size_t                          size;

    /* its writer in shared memory, and the floor and the turn when it was
       filled; the backing has the batch */
    ngx_idempotency_writer_t       *writer;
    uint64_t                        floor;
    ngx_atomic_uint_t               turn;
    ngx_uint_t                      busy;
    /* the backing's time, and this worker's at the same moment */
    int64_t                         now;
    ngx_msec_t                      at;

    /* NGX_OK, or NGX_ERROR with the reason, and whether that is for good */
    ngx_int_t                       rc;
    ngx_idempotency_error_e         why;
    char                            error[256];
    ngx_uint_t                      lost;
    /* false: nothing was written, which needs no room on the disk */
    ngx_uint_t                      wrote;
    /* how many of its items failed */
    ngx_uint_t                      failed;
} ngx_idempotency_batch_t;


/* a part of all records of the backing.  It is the backing's until that calls
   ngx_idempotency_page_listed(); a thread may work on it */

typedef struct ngx_idempotency_page_s  ngx_idempotency_page_t;

struct ngx_idempotency_page_s {
    /* the backing's own */
    ngx_idempotency_page_t         *next;

    /* the backing's own: where to go on; zero at first, and again at the end */
    ngx_uint_t                      cursor;
    u_char                          token[NGX_IDEMPOTENCY_DIGEST_LEN];
    /* in: how many are wanted, up to the array's size; out: how many there are,
       as items found, with the length of the response, but without its bytes */
    ngx_uint_t                      n;
    ngx_idempotency_item_t          items[NGX_IDEMPOTENCY_TIER_BATCH];
    /* the backing's time when it read the records */
    int64_t                         now;
    /* NGX_OK, or NGX_ERROR */
    ngx_int_t                       rc;

    /* the operation that waits for the page, or NULL */
    void                           *data;
};


/* the functions of a kind of backing; answers come later, by
   ngx_idempotency_batch_flushed() */

typedef struct {
    /* the intervals at which it is asked again about remote claims: the first
       one, doubled each time, and the longest */
    ngx_msec_t                      soon;
    ngx_msec_t                      seldom;

    /* its kind, for the figures */
    const char                     *kind;
    int64_t                       (*now)(ngx_idempotency_tier_t *tier);
    /* NGX_AGAIN, or NGX_OK: batch->rc is set */
    ngx_int_t                     (*flush)(ngx_idempotency_tier_t *tier,
                                       ngx_idempotency_batch_t *batch);
    /* NULL, or: requests of this worker wait for a remote claim; called each
       second while they wait.  A backing that announces changes then calls
       ngx_idempotency_remote_changed() */
    void                          (*await)(ngx_idempotency_tier_t *tier,
                                       u_char *token);
    /* NGX_AGAIN, or NGX_ERROR */
    ngx_int_t                     (*list)(ngx_idempotency_tier_t *tier,
                                       ngx_idempotency_page_t *page);
    /* maintenance, now and then, in one worker */
    void                          (*maintain)(ngx_idempotency_tier_t *tier);

    /* in the master: a zone is made, or kept over a reload */
    ngx_int_t                     (*init)(ngx_idempotency_tier_t *tier,
                                       ngx_idempotency_tier_t *old,
                                       ngx_log_t *log);
    /* in the master: the new configuration does not name the zone any more */
    ngx_idempotency_tier_t       *(*unnamed)(ngx_conf_t *cf,
                                       ngx_idempotency_tier_t *old);
    /* may be NULL; closes what a process that is no worker has inherited, as
       it would keep the store in use */
    void                          (*disown)(ngx_idempotency_tier_t *tier);
    ngx_int_t                     (*init_process)(ngx_idempotency_tier_t *tier,
                                       ngx_cycle_t *cycle);
    /* NULL, or: the event loop has ended: answers come at once, or in wait() */
    void                          (*finish)(ngx_idempotency_tier_t *tier);
    /* of a shared one: waits so long for answers; `first`: the first call */
    void                          (*wait)(ngx_idempotency_tier_t *tier,
                                       ngx_msec_t time, ngx_uint_t first);
    void                          (*exit_process)(
                                       ngx_idempotency_tier_t *tier);

    /* NULL: takes one batch at a time.  Else the backing is shared: how many
       batches a worker may have on the way.  Many nginx use it and don't see
       each other, so each claim lives by its lease */
    ngx_uint_t                    (*nbatches)(ngx_idempotency_tier_t *tier);
    /* false, if it would not answer now */
    ngx_uint_t                    (*up)(ngx_idempotency_tier_t *tier);
    /* an operator agrees that the store is another one, or has forgotten;
       NGX_DECLINED: it is not, or can't be agreed to */
    ngx_int_t                     (*agree)(ngx_idempotency_tier_t *tier);
    /* NULL, or NGX_OK: each part takes fresh claims; NGX_ERROR: a part does
       not; NGX_DECLINED: this worker does not know.  Called again and again
       while the log says that a part fails */
    ngx_int_t                     (*well)(ngx_idempotency_tier_t *tier);
} ngx_idempotency_backing_t;


struct ngx_idempotency_tier_s {
    const ngx_idempotency_backing_t  *backing;
    /* its name in the log */
    ngx_str_t                       name;
    ngx_idempotency_shm_t          *shm;
    /* an outcome is in the backing before any client gets it */
    ngx_uint_t                      strict;
    /* the zone's instance there; the zone's fences lie above `fence` */
    uint64_t                        instance;
    uint64_t                        fence;
    /* for a zone that is made: the mark, and the base of the backing's time */
    ngx_idempotency_mark_t          mark;
    int64_t                         base;
    ngx_uint_t                      other;

    /* this worker's batches (none, if it lacks the backing), the current one,
       and how many are on the way; timers and event for the next flush: after a
       failure or a pause, and within this turn of the event loop */
    ngx_idempotency_batch_t        *batches;
    ngx_idempotency_batch_t        *batch;
    ngx_uint_t                      nbatches;
    ngx_uint_t                      busy;
    ngx_event_t                     retry;
    ngx_event_t                     scheduled;
    /* if the queue is empty, the batch is a probe */
    ngx_uint_t                      probes;

    /* asks the backing again about remote claims */
    ngx_event_t                     poll;

    /* watches the backing, and renews leases */
    ngx_event_t                     watch;
    ngx_msec_t                      watched;

    /* the event loop has ended */
    ngx_uint_t                      finished;

    /* the log has said that some responses can't be opened */
    ngx_uint_t                      unopened;

    /* the worker quits: since when, or 0; while this timer is set, the worker
       stays; no other worker flushes the queue; the backing may still use
       memory that it was given, so it is not freed */
    ngx_msec_t                      quit;
    ngx_event_t                     stay;
    ngx_uint_t                      last;
    ngx_uint_t                      stuck;
};


/* without the lock, in threads, too.  False: another worker has taken over the
   batch's records, and this one must not change the backing any more.  Valid
   only where no other process can change the backing meanwhile, as in a
   transaction */

ngx_uint_t ngx_idempotency_batch_current(ngx_idempotency_tier_t *tier,
    ngx_idempotency_batch_t *batch);

/* the backing has answered; the worker may not know it yet */

void ngx_idempotency_batch_answered(ngx_idempotency_batch_t *batch);

/* flushes the queue soon, unless it is empty */

void ngx_idempotency_writeback_schedule(ngx_idempotency_shm_t *shm);

/* with the zone's lock held: the ended claim, if a shared backing has yet to
   learn that it ended; else NULL */

ngx_idempotency_record_t *ngx_idempotency_writeback_gone(
    ngx_idempotency_shm_t *shm, u_char *token, uint32_t sequence);

/* serve: this worker can flush the queue from now on. down: the backing would
   not answer now, so requests are refused at once */

void ngx_idempotency_tier_serve(ngx_idempotency_tier_t *tier,
    ngx_uint_t nbatches);
ngx_uint_t ngx_idempotency_tier_down(ngx_idempotency_shm_t *shm);

/* asks the backing something, to see whether it answers; a failure is logged */

void ngx_idempotency_tier_probe(ngx_idempotency_tier_t *tier);

/* logs why the backing is unavailable; NULL: it is available again */

void ngx_idempotency_tier_say(ngx_idempotency_tier_t *tier, const char *why);

/* the backing's answers, in the worker that asked */

void ngx_idempotency_batch_flushed(ngx_idempotency_tier_t *tier,
    ngx_idempotency_batch_t *batch);

void ngx_idempotency_page_listed(ngx_idempotency_page_t *page);

/* the backing announces that a token has changed; NULL: that some have */

void ngx_idempotency_remote_changed(ngx_idempotency_tier_t *tier,
    u_char *token);

/* a zone is made; with the lock held, or before any worker has it */

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

/* many nginx may share the backing: each claim there lives by its lease */

#define ngx_idempotency_tier_shared(tier)  ((tier)->backing->nbatches != NULL)


#endif /* _NGX_IDEMPOTENCY_TIER_H_INCLUDED_ */
