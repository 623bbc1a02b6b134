
/*
 * The write-back queue of a zone: records whose last change the backing lacks,
 * and questions to it.  They wait in a list in shared memory, the oldest first.
 * A worker flushes it: it fills a batch with the first records, the backing
 * answers, and the answer changes records, wakes workers and is logged.  The
 * second half of this file: when a worker flushes, and how it begins and ends.
 * What an answer means to a claim is in remote.c.
 *
 * ONE BATCH  A record is never in two batches, so the changes of a token reach
 *            the backing in their order.
 * NOT LOST   The records of a worker that dies or stands still go back to the
 *            front of the queue, as do those of a batch that failed.  Over a
 *            shared backing, where other batches may well succeed, they wait
 *            aside.
 * LEASES     In a shared backing a claim lives by its lease.  Any worker renews
 *            it as long as the claim's owner lives, as the owner may be busy.
 */


#include "ngx_idempotency_shm.h"


/* after SILENCE another worker looks whether the worker of a batch has died;
   after STOPPED a batch of a worker that stands still is another worker's */

#define NGX_IDEMPOTENCY_TIER_SILENCE    100
#define NGX_IDEMPOTENCY_TIER_STOPPED    1000


/* the pause after a batch that no request waited for; with syncs it is this
   part of the time that the batch took, and LONGEST at most */

#define NGX_IDEMPOTENCY_TIER_PAUSE      2
#define NGX_IDEMPOTENCY_TIER_PART       3
#define NGX_IDEMPOTENCY_TIER_LONGEST    5


/* how long nothing may have failed before a backing counts as well again: after
   it had no room, and after a part of it failed */

#define NGX_IDEMPOTENCY_TIER_WELL       1000
#define NGX_IDEMPOTENCY_TIER_CALM       3000


/* how often a large response may fail, before it is given up */

#define NGX_IDEMPOTENCY_TIER_SLOW       3


/* WATCH, LOOK: how often the worker that watches a file, or a Redis, does so;
   IDLE: how often the others look whether that worker lives */

#define NGX_IDEMPOTENCY_TIER_WATCH      50
#define NGX_IDEMPOTENCY_TIER_LOOK       200
#define NGX_IDEMPOTENCY_TIER_IDLE       1000

/*
 * A worker that quits, in milliseconds.  STAY: how often it looks at the queue.
 * ALL: how long other workers take to notice that they quit, too.  COME: how
 * long the workers of a reload take to start.  QUIT: how long it stays at most,
 * without worker_shutdown_timeout.  TERM: how long it tries if it has to end at
 * once, for all zones together; LEAST: for each zone at least; TURN: how often
 * it looks then.
 */

#define NGX_IDEMPOTENCY_TIER_STAY       50
#define NGX_IDEMPOTENCY_TIER_ALL        1000
#define NGX_IDEMPOTENCY_TIER_COME       5000
#define NGX_IDEMPOTENCY_TIER_QUIT       30000
#define NGX_IDEMPOTENCY_TIER_TERM       500
#define NGX_IDEMPOTENCY_TIER_LEAST      100
#define NGX_IDEMPOTENCY_TIER_TURN       5

/* how often a worker looks which leases to renew */

#define NGX_IDEMPOTENCY_TIER_RENEW      200


/* while the lock is held once, at most so many claims of dead workers end */

#define NGX_IDEMPOTENCY_ORPHANS  64

typedef struct {
    u_char                     token[NGX_IDEMPOTENCY_DIGEST_LEN];
    /* 0: it was a question only, which is not logged */
    uint64_t                   fence;
} orphan_t;


/* the changes that the backing lacks */

typedef struct {
    ngx_uint_t                  outcomes;
    /* claims in the backing that have to be released */
    ngx_uint_t                  claims;
    /* the backing may have some records or not */
    ngx_uint_t                  unsure;
} queue_sum_t;


static void queue_prepend(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);
static void queue_remove_first(ngx_idempotency_tier_sh_t *sh);
static ngx_idempotency_record_t *queue_next(ngx_idempotency_shm_t *shm);
static ngx_idempotency_writer_t *writer_find(ngx_idempotency_tier_t *tier);
static void writer_inherit(ngx_idempotency_tier_t *tier);
static ngx_uint_t writer_deserted(ngx_idempotency_tier_t *tier,
    ngx_idempotency_writer_t *writer);
static void writer_drop(ngx_idempotency_shm_t *shm,
    ngx_idempotency_writer_t *writer);
static void queue_put_back(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);
static void queue_set_aside(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);
static void queue_sum(ngx_idempotency_tier_t *tier, queue_sum_t *sum);
static void queue_sum_records(ngx_idempotency_record_t *rec,
    ngx_uint_t shared, queue_sum_t *sum);
static ngx_idempotency_record_t *queue_gone(ngx_idempotency_record_t *rec,
    u_char *token, uint32_t sequence);
static void queue_retry_aside(ngx_idempotency_tier_t *tier);
static void flush_queue(ngx_idempotency_tier_t *tier);
static ngx_uint_t flush_pause(ngx_idempotency_tier_t *tier);
static ngx_uint_t flush_gather(ngx_idempotency_tier_t *tier);
static void flush_item(ngx_idempotency_tier_t *tier,
    ngx_idempotency_record_t *rec, ngx_idempotency_item_t *item);
static void flush_probe(ngx_idempotency_tier_t *tier);
static void flush_large(ngx_idempotency_tier_t *tier);
static ngx_uint_t flushed_batch(ngx_idempotency_tier_t *tier);
static void flushed_one(ngx_idempotency_tier_t *tier, ngx_uint_t i);
static void flushed_health(ngx_idempotency_tier_t *tier, ngx_uint_t failed);
static void flushed_items(ngx_idempotency_tier_t *tier);
static void tier_schedule(ngx_idempotency_tier_t *tier);
static void tier_schedule_handler(ngx_event_t *ev);
static void tier_retry_handler(ngx_event_t *ev);
static void tier_watch_handler(ngx_event_t *ev);
static ngx_uint_t tier_watches(ngx_idempotency_tier_t *tier);
static void tier_hung(ngx_idempotency_tier_t *tier);
static void tier_probe_failed(ngx_idempotency_tier_t *tier);
static void tier_maintain(ngx_idempotency_tier_t *tier);
static void tier_renew(ngx_idempotency_tier_t *tier);
static ngx_msec_t tier_thirds(ngx_idempotency_record_t *rec, ngx_msec_t now);
static ngx_int_t tier_member(ngx_idempotency_tier_t *tier, ngx_uint_t serves,
    ngx_uint_t leaves);
static void tier_event(ngx_idempotency_tier_t *tier, ngx_event_t *ev,
    ngx_event_handler_pt handler);
static void tier_stay_handler(ngx_event_t *ev);
static void tier_flush_last(ngx_idempotency_tier_t *tier);
static void tier_flush_now(ngx_idempotency_tier_t *tier);
static void tier_log_delivered(ngx_idempotency_tier_t *tier);


static void
queue_prepend(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec)
{
    ngx_idempotency_tier_sh_t  *sh;

    sh = &shm->sh->tier;

    rec->flush = NGX_IDEMPOTENCY_QUEUED;
    rec->next = sh->first;

    if (sh->first == NULL) {
        sh->end = &rec->next;
    }

    sh->first = rec;
}


static void
queue_remove_first(ngx_idempotency_tier_sh_t *sh)
{
    sh->first = sh->first->next;

    if (sh->first == NULL) {
        sh->end = &sh->first;
    }
}


/* the next record; a claim that was never sent needs no release */

static ngx_idempotency_record_t *
queue_next(ngx_idempotency_shm_t *shm)
{
    ngx_idempotency_record_t   *rec;
    ngx_idempotency_tier_sh_t  *sh;

    sh = &shm->sh->tier;

    while ((rec = sh->first) != NULL) {

        if (rec->state != NGX_IDEMPOTENCY_GONE || rec->sent) {
            return rec;
        }

        queue_remove_first(sh);

        sh->flushed++;
        ngx_slab_free_locked(shm->shpool, rec);
    }

    return NULL;
}


/* a free writer, perhaps that of a worker that died or stands still; NULL: none
   is free, and there is no memory for one more */

static ngx_idempotency_writer_t *
writer_find(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_shm_t      *shm;
    ngx_idempotency_writer_t   *writer, *last;

    shm = tier->shm;
    last = NULL;

    for (writer = &shm->sh->tier.writer; writer; writer = writer->next) {

        if (writer->process.pid == 0) {
            return writer;
        }

        if (writer_deserted(tier, writer)) {
            writer_drop(shm, writer);
            return writer;
        }

        last = writer;
    }

    if (!ngx_idempotency_tier_shared(tier)) {
        return NULL;
    }

    writer = ngx_slab_calloc_locked(shm->shpool,
                                    sizeof(ngx_idempotency_writer_t));
    last->next = writer;

    return writer;
}


/* for an empty queue: the records of a worker that died may still be missing */

static void
writer_inherit(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_shm_t     *shm;
    ngx_idempotency_writer_t  *writer;

    shm = tier->shm;

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        return;
    }

    for (writer = &shm->sh->tier.writer; writer; writer = writer->next) {

        if (writer->records && writer_deserted(tier, writer)) {
            writer_drop(shm, writer);
        }
    }

    ngx_idempotency_shm_unlock(shm);
}


/*
 * When a stopped worker goes on, it may write its batch after later changes by
 * another worker.  So its records are taken over only if the backing checks in
 * its transaction that the batch is current, as a file does.
 */

static ngx_uint_t
writer_deserted(ngx_idempotency_tier_t *tier, ngx_idempotency_writer_t *writer)
{
    ngx_msec_int_t  age;

    age = (ngx_msec_int_t) (ngx_current_msec - writer->started);

    return (age > NGX_IDEMPOTENCY_TIER_SILENCE
            && ngx_idempotency_process_gone(&writer->process))
           || (age > NGX_IDEMPOTENCY_TIER_STOPPED
               && !ngx_idempotency_tier_shared(tier)
               && ngx_idempotency_process_stopped(&writer->process));
}


ngx_uint_t
ngx_idempotency_batch_current(ngx_idempotency_tier_t *tier,
    ngx_idempotency_batch_t *batch)
{
    return tier->shm->sh->tier.floor == batch->floor
           && batch->writer->turn == batch->turn;
}


void
ngx_idempotency_batch_answered(ngx_idempotency_batch_t *batch)
{
    batch->writer->answered = batch->turn;
}


/* the records of the writer's batch go back to the front of the queue; the
   backing may have them or not */

static void
writer_drop(ngx_idempotency_shm_t *shm, ngx_idempotency_writer_t *writer)
{
    ngx_uint_t                  n;
    ngx_idempotency_record_t   *rec, *taken[NGX_IDEMPOTENCY_TIER_BATCH];

    n = 0;

    for (rec = writer->records; rec; rec = rec->next) {
        taken[n++] = rec;
    }

    writer->turn++;
    writer->records = NULL;
    writer->process.pid = 0;

    while (n) {
        queue_put_back(shm, taken[--n]);
    }
}


static void
queue_put_back(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec)
{
    rec->sent = 1;
    rec->unsure = 1;

    queue_prepend(shm, rec);
}


static void
queue_set_aside(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec)
{
    ngx_idempotency_tier_sh_t  *sh;

    sh = &shm->sh->tier;

    rec->flush = NGX_IDEMPOTENCY_ASIDE;
    rec->next = sh->aside;
    sh->aside = rec;
}


/* counts the changes that the backing lacks: queued, aside and on their way */

static void
queue_sum(ngx_idempotency_tier_t *tier, queue_sum_t *sum)
{
    ngx_uint_t                  shared;
    ngx_idempotency_writer_t   *writer;
    ngx_idempotency_tier_sh_t  *sh;

    sh = &tier->shm->sh->tier;
    shared = ngx_idempotency_tier_shared(tier);

    ngx_memzero(sum, sizeof(queue_sum_t));

    if (ngx_idempotency_shm_lock(tier->shm) != NGX_OK) {
        sum->unsure = 1;
        return;
    }

    queue_sum_records(sh->aside, shared, sum);

    /* over a Redis their batch failed; over a file they lacked room */

    sum->unsure = (sh->aside && shared);

    queue_sum_records(sh->first, shared, sum);

    for (writer = &sh->writer; writer; writer = writer->next) {
        queue_sum_records(writer->records, shared, sum);
    }

    ngx_idempotency_shm_unlock(tier->shm);
}


/*
 * A doubt counts as an outcome if the backing does not know the claim, or not
 * the response.  Claims to be released are unsure over a file only: no new
 * questions are sent to it while it fails, so there are few.
 */

static void
queue_sum_records(ngx_idempotency_record_t *rec, ngx_uint_t shared,
    queue_sum_t *sum)
{
    for ( /* void */ ; rec; rec = rec->next) {

        sum->unsure |= rec->unsure;

        switch (rec->state) {

        case NGX_IDEMPOTENCY_DONE:
        case NGX_IDEMPOTENCY_NOT_KEPT:
            sum->outcomes++;
            break;

        case NGX_IDEMPOTENCY_IN_DOUBT:
            sum->outcomes += (rec->size || !rec->sent);
            break;

        case NGX_IDEMPOTENCY_GONE:
            sum->outcomes += rec->known;
            sum->claims += (rec->sent && !rec->known);
            sum->unsure |= (rec->sent && !shared);
            break;

        case NGX_IDEMPOTENCY_FAILED:
            sum->claims += rec->sent;
        }
    }
}


ngx_idempotency_record_t *
ngx_idempotency_writeback_gone(ngx_idempotency_shm_t *shm, u_char *token,
    uint32_t sequence)
{
    ngx_idempotency_record_t   *rec;
    ngx_idempotency_writer_t   *writer;
    ngx_idempotency_tier_sh_t  *sh;

    sh = &shm->sh->tier;

    if (sh->failing || !ngx_idempotency_tier_shared(shm->tier)) {
        return NULL;
    }

    rec = queue_gone(sh->first, token, sequence);

    for (writer = &sh->writer; writer && !rec; writer = writer->next) {
        rec = queue_gone(writer->records, token, sequence);
    }

    return rec;
}


/* the ended claim; one that was never sent needs no release */

static ngx_idempotency_record_t *
queue_gone(ngx_idempotency_record_t *rec, u_char *token, uint32_t sequence)
{
    for ( /* void */ ; rec; rec = rec->next) {

        if (rec->state == NGX_IDEMPOTENCY_GONE && rec->sent
            && rec->sequence == sequence
            && ngx_memcmp(rec->token, token, NGX_IDEMPOTENCY_DIGEST_LEN) == 0)
        {
            return rec;
        }
    }

    return NULL;
}


/* there may be room now, as other records have ended */

static void
queue_retry_aside(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_record_t   *rec, *next;
    ngx_idempotency_tier_sh_t  *sh;

    if (tier->shm->sh->tier.aside == NULL
        || ngx_idempotency_shm_lock(tier->shm) != NGX_OK)
    {
        return;
    }

    sh = &tier->shm->sh->tier;

    for (rec = sh->aside; rec; rec = next) {
        next = rec->next;
        ngx_idempotency_writeback_append(tier->shm, rec);
    }

    sh->aside = NULL;

    ngx_idempotency_shm_unlock(tier->shm);
}


static void
flush_queue(ngx_idempotency_tier_t *tier)
{
    ngx_int_t  rc;

    for ( ;; ) {

        if (ngx_idempotency_tier_shared(tier)
            && tier->shm->sh->tier.first == NULL && !tier->probes)
        {
            return;
        }

        if (!flush_gather(tier)) {
            return;
        }

        tier->batch->busy = 1;
        tier->busy++;

        rc = tier->backing->flush(tier, tier->batch);

        if (rc == NGX_AGAIN) {
            continue;
        }

        if (rc != NGX_OK) {
            tier->batch->rc = NGX_ERROR;
        }

        if (!flushed_batch(tier)) {
            return;
        }
    }
}


void
ngx_idempotency_batch_flushed(ngx_idempotency_tier_t *tier,
    ngx_idempotency_batch_t *batch)
{
    tier->batch = batch;

    if (flushed_batch(tier) && !flush_pause(tier)) {
        flush_queue(tier);
    }
}


/*
 * A transaction costs more than an item in it.  So there is a short pause after
 * a batch that no request waited for; a question ends the pause.  If each
 * transaction is synced, every request waits, and the pause keeps requests
 * together that came together: else they would wait for each other's syncs in
 * turn.  The first item after a quiet time is not delayed.
 */

static ngx_uint_t
flush_pause(ngx_idempotency_tier_t *tier)
{
    ngx_uint_t                i;
    ngx_msec_t                pause;
    ngx_idempotency_batch_t  *batch;

    batch = tier->batch;

    if (ngx_idempotency_tier_shared(tier) || tier->retry.timer_set
        || tier->shm->sh->tier.failing)
    {
        return 0;
    }

    if (tier->strict) {
        pause = (batch->n > 1) ? (ngx_current_msec - batch->at)
                                 / NGX_IDEMPOTENCY_TIER_PART : 0;
        pause = ngx_min(pause, NGX_IDEMPOTENCY_TIER_LONGEST);

    } else {
        pause = NGX_IDEMPOTENCY_TIER_PAUSE;

        for (i = 0; i < batch->n; i++) {
            if (batch->items[i].what == NGX_IDEMPOTENCY_ITEM_ASK) {
                pause = 0;
            }
        }
    }

    if (pause == 0 || (!tier->strict && tier->shm->sh->tier.asked)) {
        return 0;
    }

    ngx_add_timer(&tier->retry, pause);

    return 1;
}


/* Fills a free batch.  False: no batch or writer is free, or the queue is
   empty, and the writer is given up. */

static ngx_uint_t
flush_gather(ngx_idempotency_tier_t *tier)
{
    ngx_uint_t                  i;
    ngx_idempotency_shm_t      *shm;
    ngx_idempotency_batch_t    *batch;
    ngx_idempotency_record_t   *rec, **taken;
    ngx_idempotency_tier_sh_t  *sh;

    for (i = 0; i < tier->nbatches && tier->batches[i].busy; i++) {
        /* void */
    }

    shm = tier->shm;

    if (i == tier->nbatches || ngx_idempotency_shm_lock(shm) != NGX_OK) {
        return 0;
    }

    sh = &shm->sh->tier;
    batch = &tier->batches[i];
    tier->batch = batch;

    if (batch->writer == NULL || !ngx_idempotency_batch_current(tier, batch)) {
        batch->writer = writer_find(tier);
        batch->floor = sh->floor;
    }

    if (batch->writer == NULL) {
        ngx_idempotency_shm_unlock(shm);
        return 0;
    }

    batch->n = 0;
    batch->size = 0;
    batch->large = NULL;
    batch->rc = NGX_OK;
    batch->why = NGX_IDEMPOTENCY_ERROR_OTHER;
    batch->lost = 0;
    batch->wrote = 1;
    batch->failed = 0;
    batch->at = ngx_current_msec;
    batch->now = tier->backing->now(tier);

    batch->writer->process = *ngx_idempotency_process_self();
    batch->writer->started = ngx_current_msec;
    batch->turn = ++batch->writer->turn;
    taken = &batch->writer->records;

    while (batch->n < NGX_IDEMPOTENCY_TIER_BATCH
           && (rec = queue_next(shm)) != NULL)
    {
        if (batch->n && batch->size + rec->size > NGX_IDEMPOTENCY_SHM_PIECE) {
            break;
        }

        queue_remove_first(sh);

        *taken = rec;
        taken = &rec->next;
        *taken = NULL;

        rec->flush = NGX_IDEMPOTENCY_FLUSHING;

        batch->records[batch->n] = rec;
        flush_item(tier, rec, &batch->items[batch->n]);
        batch->n++;
    }

    sh->asked = 0;

    if (batch->n == 0 && tier->probes) {
        flush_probe(tier);
    }

    if (batch->n == 0 && !ngx_idempotency_tier_shared(tier)) {
        batch->writer->process.pid = 0;
        batch->writer = NULL;
    }

    ngx_idempotency_shm_unlock(shm);

    if (batch->n == 1 && batch->size > NGX_IDEMPOTENCY_SHM_PIECE) {
        flush_large(tier);
    }

    return batch->n;
}


static void
flush_item(ngx_idempotency_tier_t *tier, ngx_idempotency_record_t *rec,
    ngx_idempotency_item_t *item)
{
    int64_t                    recorded;
    ngx_idempotency_batch_t   *batch;
    ngx_idempotency_cursor_t   cur;

    batch = tier->batch;

    /* by the backing's time */

    recorded = batch->now - (ngx_msec_int_t) (batch->at - rec->recorded);

    ngx_memzero(item, sizeof(ngx_idempotency_item_t));

    ngx_memcpy(item->token, rec->token, NGX_IDEMPOTENCY_DIGEST_LEN);
    ngx_memcpy(item->fingerprint, rec->fingerprint,
               NGX_IDEMPOTENCY_DIGEST_LEN);
    item->parts = rec->parts;
    item->instance = tier->shm->sh->tier.instance;
    item->floor = batch->floor;
    item->fence = rec->fence;
    item->sequence = ngx_idempotency_tier_shared(tier)
                     ? ngx_idempotency_record_sequence(tier->shm, rec)
                     : rec->fence;
    item->lease = rec->lease;
    item->known = rec->known;
    item->result = NGX_IDEMPOTENCY_UNAVAILABLE;

    if (rec->state == NGX_IDEMPOTENCY_GONE
        || rec->state == NGX_IDEMPOTENCY_FAILED)
    {
        item->what = NGX_IDEMPOTENCY_ITEM_RELEASE;
        item->retry = rec->taken;

        if (rec->state == NGX_IDEMPOTENCY_FAILED) {
            return;
        }

        item->freed = rec->as.gone.freed;

        if (rec->as.gone.forgotten) {
            item->what = NGX_IDEMPOTENCY_ITEM_FORGET;
            item->floor = item->sequence;
            item->fence = 0;
            item->recorded = recorded;
        }

        return;
    }

    item->window = rec->window->length;
    item->recorded = recorded;
    item->ends = batch->now + (ngx_msec_int_t) (rec->ends - batch->at);

    if (rec->state == NGX_IDEMPOTENCY_REMOTE) {
        item->what = NGX_IDEMPOTENCY_ITEM_ASK;
        item->old = 1;
        return;
    }

    if (rec->state == NGX_IDEMPOTENCY_ASKING
        || rec->state == NGX_IDEMPOTENCY_ABANDONED)
    {
        item->what = NGX_IDEMPOTENCY_ITEM_ASK;
        item->retry = rec->as.asking.retry;
        item->old = rec->as.asking.old;
        return;
    }

    item->what = NGX_IDEMPOTENCY_ITEM_PUT;
    item->taken = rec->taken;
    item->outcome = rec->state;
    item->status = rec->status;
    item->replays = rec->replays;

    if (rec->size == 0) {
        return;
    }

    if (rec->size <= NGX_IDEMPOTENCY_SHM_PIECE) {

        item->response.data = batch->copy + batch->size
                              + batch->n * NGX_IDEMPOTENCY_SEAL_LEN;
        item->response.len = rec->size;

        cur.chunk = rec->chunks;
        cur.offset = 0;

        ngx_idempotency_chunks_read(&cur, item->response.data, rec->size);
    }

    batch->size += rec->size;
}


/* the queue is empty, and the backing failed: a claim and its release show
   whether it still does */

static void
flush_probe(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_item_t   *item;
    ngx_idempotency_batch_t  *batch;

    batch = tier->batch;

    for (batch->n = 0; batch->n < 2; batch->n++) {
        item = &batch->items[batch->n];

        ngx_memzero(item, sizeof(ngx_idempotency_item_t));

        item->instance = tier->shm->sh->tier.instance;
        item->floor = batch->floor;
        item->fence = tier->shm->sh->fence;
        item->sequence = tier->shm->sh->sequence;
        item->recorded = batch->now;
        item->ends = batch->now + NGX_IDEMPOTENCY_TIER_HANGS;
        item->window = NGX_IDEMPOTENCY_TIER_HANGS;
        item->result = NGX_IDEMPOTENCY_UNAVAILABLE;

        batch->records[batch->n] = NULL;
    }

    tier->probes = 0;
    batch->items[0].what = NGX_IDEMPOTENCY_ITEM_ASK;

    /* over a shared backing the release may overtake the claim: only ask */

    if (ngx_idempotency_tier_shared(tier)) {
        batch->items[0].old = 1;
        batch->n = 1;
        return;
    }

    batch->items[1].what = NGX_IDEMPOTENCY_ITEM_RELEASE;
    batch->items[1].freed = 1;
}


/* A large response is read piece by piece as long as the record does not
   change.  If it changes, this batch has only the claim, and the next one the
   change. */

static void
flush_large(ngx_idempotency_tier_t *tier)
{
    size_t                     n;
    ngx_uint_t                 changed;
    ngx_idempotency_shm_t     *shm;
    ngx_idempotency_item_t    *item;
    ngx_idempotency_batch_t   *batch;
    ngx_idempotency_cursor_t   cur;
    ngx_idempotency_record_t  *rec;

    shm = tier->shm;
    batch = tier->batch;
    item = batch->items;
    rec = batch->records[0];

    changed = 0;
    cur.chunk = NULL;
    cur.offset = 0;

    batch->large = malloc(batch->size + NGX_IDEMPOTENCY_SEAL_LEN);

    while (batch->large && cur.offset < batch->size) {

        if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
            break;
        }

        changed = (!ngx_idempotency_batch_current(tier, batch)
                   || rec->flush == NGX_IDEMPOTENCY_OUTDATED);

        if (changed) {
            ngx_idempotency_shm_unlock(shm);
            break;
        }

        if (cur.offset == 0) {
            cur.chunk = rec->chunks;
        }

        n = ngx_min(batch->size - cur.offset, NGX_IDEMPOTENCY_SHM_PIECE);

        ngx_idempotency_chunks_read(&cur, batch->large + cur.offset, n);

        ngx_idempotency_shm_unlock(shm);
    }

    if (batch->large && cur.offset == batch->size) {
        item->response.data = batch->large;
        item->response.len = batch->size;
        return;
    }

    /* the next batch has the change; without memory the response is not kept */

    item->outcome = changed ? NGX_IDEMPOTENCY_PENDING
                            : NGX_IDEMPOTENCY_NOT_KEPT;
}


static ngx_uint_t
flushed_batch(ngx_idempotency_tier_t *tier)
{
    ngx_int_t                   rc;
    ngx_uint_t                  i, failed;
    ngx_idempotency_shm_t      *shm;
    ngx_idempotency_batch_t    *batch;

    shm = tier->shm;
    batch = tier->batch;

    batch->busy = 0;
    tier->busy--;
    failed = 0;

    if (batch->rc != NGX_OK) {
        ngx_idempotency_stats_add(shm->store->counters->errors[batch->why], 1);

    } else {
        ngx_idempotency_stats_time(&shm->store->counters->latency,
                                   ngx_current_msec - batch->at);
    }

    rc = ngx_idempotency_shm_lock(shm);

    if (rc == NGX_OK) {

        if (!ngx_idempotency_batch_current(tier, batch)) {

            /* another worker has taken the records over */

            rc = NGX_DECLINED;

        } else {

            batch->writer->records = NULL;

            /* from the last on, as failed records go back to the front */

            for (i = batch->n; i; i--) {
                flushed_one(tier, i - 1);
            }

            if (batch->rc != NGX_OK || batch->failed) {

                failed = !shm->sh->tier.failing;

                shm->sh->tier.failing = 1;
                shm->sh->tier.failed = ngx_current_msec;
                shm->sh->tier.was_full = (batch->why
                                          == NGX_IDEMPOTENCY_ERROR_FULL);
            }

            shm->sh->tier.lost |= batch->lost;
        }

        ngx_idempotency_shm_unlock(shm);
    }

    for (i = 0; i < batch->n; i++) {
        if (batch->items[i].what == NGX_IDEMPOTENCY_ITEM_ASK) {
            free(batch->items[i].response.data);
        }
    }

    free(batch->large);
    batch->large = NULL;

    if (rc != NGX_OK) {
        return rc == NGX_DECLINED;
    }

    flushed_health(tier, failed);
    flushed_items(tier);

    return batch->rc == NGX_OK || ngx_idempotency_tier_shared(tier);
}


static void
flushed_one(ngx_idempotency_tier_t *tier, ngx_uint_t i)
{
    ngx_uint_t                  changed;
    ngx_idempotency_shm_t      *shm;
    ngx_idempotency_item_t     *item;
    ngx_idempotency_record_t   *rec;
    ngx_idempotency_tier_sh_t  *sh;

    shm = tier->shm;
    sh = &shm->sh->tier;
    rec = tier->batch->records[i];
    item = &tier->batch->items[i];

    if (tier->batch->rc != NGX_OK) {
        item->result = NGX_IDEMPOTENCY_UNAVAILABLE;
        item->full = 0;
        item->failed = 1;
    }

    tier->batch->failed += item->failed;

    if (rec == NULL) {
        return;
    }

    changed = (rec->flush == NGX_IDEMPOTENCY_OUTDATED);

    /* a renewal of what was released meanwhile: who has claimed it since takes
       nothing from it */

    if (rec->state == NGX_IDEMPOTENCY_GONE
        && item->outcome == NGX_IDEMPOTENCY_PENDING)
    {
        item->lost = 0;
    }

    rec->flush = NGX_IDEMPOTENCY_FLUSHED;
    rec->unsure = 0;
    rec->sent |= !item->unsent;
    rec->known |= (item->result == NGX_IDEMPOTENCY_CLAIMED
                   || (item->result == NGX_IDEMPOTENCY_OK
                       && item->what == NGX_IDEMPOTENCY_ITEM_PUT));

    /* a question is answered even if it failed; other records stay in the queue
       until their last change is flushed */

    if (rec->state == NGX_IDEMPOTENCY_ASKING
        || rec->state == NGX_IDEMPOTENCY_ABANDONED
        || rec->state == NGX_IDEMPOTENCY_REMOTE)
    {
        sh->flushed++;

        if (ngx_idempotency_ask_answered(tier, rec, item) && changed) {
            ngx_idempotency_writeback_add(shm, rec);
        }

        return;
    }

    sh->flushed += (!item->failed && !item->full && !changed);

    if (rec->state == NGX_IDEMPOTENCY_FAILED) {

        /* requests that waited may go on once the claim is released */

        rec->sent = item->failed;
    }

    /* requests that wait for the flush are woken, even if it failed */

    if (!ngx_idempotency_record_waiting(rec)) {
        ngx_idempotency_record_wake(shm, rec);
    }

    /* A response larger than a usual batch, which failed so often while the
       backing answered others, would fail for ever, and delay all changes that
       go the same way. */

    if (item->failed && item->slow && !changed
        && rec->size > NGX_IDEMPOTENCY_SHM_PIECE
        && ++rec->slow == NGX_IDEMPOTENCY_TIER_SLOW)
    {
        item->trimmed = 1;
        ngx_idempotency_record_evict(shm, rec);
    }

    if (item->failed && ngx_idempotency_tier_shared(tier)) {
        rec->unsure = 1;
        queue_set_aside(shm, rec);

    } else if (item->failed) {
        queue_put_back(shm, rec);

    } else if (changed) {

        /* The record keeps its place: if it has left the zone, the token's next
           claim may be queued already, and that question must not overtake this
           change. */

        queue_prepend(shm, rec);

    } else if (rec->state == NGX_IDEMPOTENCY_GONE) {
        ngx_slab_free_locked(shm->shpool, rec);

    } else if (item->full) {
        queue_set_aside(shm, rec);
    }
}


/* the log says once that the backing fails, and once that it is well again */

static void
flushed_health(ngx_idempotency_tier_t *tier, ngx_uint_t failed)
{
    queue_sum_t                 sum;
    ngx_idempotency_batch_t    *batch;
    ngx_idempotency_tier_sh_t  *sh;

    sh = &tier->shm->sh->tier;
    batch = tier->batch;

    if (failed) {
        ngx_idempotency_tier_say(tier, batch->error);
    }

    if (batch->rc != NGX_OK || batch->failed) {

        if (!tier->retry.timer_set) {
            ngx_add_timer(&tier->retry, NGX_IDEMPOTENCY_TIER_RETRY);
        }

    } else if (sh->failing && !sh->lost && batch->wrote) {

        /* A backing without room for one record may take another.  It is well
           when it has had room for some time, and has all records that failed:
           then it holds no claim without an owner. */

        queue_sum(tier, &sum);

        if (!sum.unsure
            && (!sh->was_full || ngx_current_msec - sh->failed
                                 >= NGX_IDEMPOTENCY_TIER_WELL))
        {
            sh->was_full = 0;
            sh->failing = 0;
            ngx_idempotency_tier_say(tier, NULL);
        }
    }
}


void
ngx_idempotency_tier_say(ngx_idempotency_tier_t *tier, const char *why)
{
    ngx_int_t                   rc;
    ngx_str_t                  *zone;
    ngx_idempotency_tier_sh_t  *sh;

    zone = &tier->shm->store->name;
    sh = &tier->shm->sh->tier;

    if (ngx_idempotency_tier_shared(tier)) {

        /* it is available when nothing has failed for some time, and no worker
           knows of a part that would */

        rc = (why == NULL && tier->backing->well) ? tier->backing->well(tier)
                                                  : NGX_OK;
        if (rc == NGX_ERROR) {
            sh->unwell = ngx_current_msec;
        }

        if (why == NULL
            && (rc != NGX_OK
                || ngx_current_msec - sh->failed < NGX_IDEMPOTENCY_TIER_CALM
                || ngx_current_msec - sh->unwell < NGX_IDEMPOTENCY_TIER_CALM))
        {
            return;
        }

        if (!ngx_atomic_cmp_set(&sh->said, why == NULL, why != NULL)) {
            return;
        }
    }

    if (why) {
        ngx_log_error(NGX_LOG_CRIT, ngx_cycle->log, 0,
                      "idempotency: the %V of zone \"%V\" is unavailable: %s",
                      &tier->name, zone, why);

    } else {
        ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                      "idempotency: the %V of zone \"%V\" is available again",
                      &tier->name, zone);
    }
}


/* logs what is wrong with single records */

static void
flushed_items(ngx_idempotency_tier_t *tier)
{
    ngx_str_t                  *zone;
    ngx_uint_t                  i, stale, full, damaged, lost;
    ngx_uint_t                  seals[NGX_IDEMPOTENCY_SEAL_FAILED + 1];
    ngx_idempotency_item_t     *item;
    ngx_idempotency_batch_t    *batch;
    ngx_idempotency_tier_sh_t  *sh;

    sh = &tier->shm->sh->tier;
    zone = &tier->shm->store->name;
    batch = tier->batch;

    stale = 0;
    full = 0;
    damaged = 0;
    lost = 0;
    ngx_memzero(seals, sizeof(seals));

    for (i = 0; i < batch->n; i++) {
        item = &batch->items[i];

        stale += (item->result == NGX_IDEMPOTENCY_STALE);
        full += item->full;
        lost += item->lost;
        damaged += (item->result == NGX_IDEMPOTENCY_UNAVAILABLE
                    && !item->full && !item->failed);
        seals[item->seal]++;

        if (item->trimmed) {
            ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                          "idempotency: zone \"%V\": a response of %uz bytes "
                          "could not be sent to the %V in time, %d times, and "
                          "is not kept, token: %*xs",
                          zone, item->response.len, &tier->name,
                          NGX_IDEMPOTENCY_TIER_SLOW,
                          (size_t) NGX_IDEMPOTENCY_DIGEST_LEN, item->token);
        }
    }

    if (stale) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                      "idempotency: zone \"%V\": %ui claims of this nginx were "
                      "bound by another one as well", zone, stale);
    }

    if (lost && batch->rc == NGX_OK) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                      "idempotency: the %V of zone \"%V\" has lost %ui claims "
                      "of this nginx: others may have executed the same",
                      &tier->name, zone, lost);
    }

    if (damaged && batch->rc == NGX_OK && batch->error[0]) {
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "idempotency: the %V of zone \"%V\": %s",
                      &tier->name, zone, batch->error);
    }

    if (full) {
        ngx_idempotency_stats_add(
            tier->shm->store->counters->errors[NGX_IDEMPOTENCY_ERROR_FULL], 1);

        sh->unwell = ngx_current_msec;

        if (!sh->said_full) {
            sh->said_full = 1;
            ngx_idempotency_tier_say(tier, batch->error);
        }

    } else if (sh->said_full && sh->aside == NULL && batch->rc == NGX_OK
               && batch->wrote
               && ngx_current_msec - sh->unwell >= NGX_IDEMPOTENCY_TIER_WELL)
    {
        /* that it answers for what it knows shows no room */

        sh->said_full = 0;
        ngx_idempotency_tier_say(tier, NULL);
    }

    if (seals[NGX_IDEMPOTENCY_SEAL_BROKEN]) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                      "idempotency: zone \"%V\": the seal of a response was "
                      "broken in the %V, which somebody may have changed",
                      zone, &tier->name);
    }

    if (seals[NGX_IDEMPOTENCY_SEAL_FORGED]) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                      "idempotency: zone \"%V\": a record in the %V is not as "
                      "it was written, somebody may have changed it; its "
                      "token is refused", zone, &tier->name);
    }

    if (seals[NGX_IDEMPOTENCY_SEAL_FAILED]) {
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "idempotency: zone \"%V\": a response can't be sealed "
                      "or opened, and is not kept", zone);
    }

    if (seals[NGX_IDEMPOTENCY_SEAL_GONE] && !tier->unopened) {
        tier->unopened = 1;

        ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0,
                      "idempotency: zone \"%V\": responses in the %V can't be "
                      "opened by any key of \"idempotency_secret\", and are "
                      "not kept", zone, &tier->name);
    }
}


/*
 * A request has queued a record, or changed one that is in a batch under way.
 * A worker that quits looks again whether it has to stay for it.
 */

void
ngx_idempotency_writeback_schedule(ngx_idempotency_shm_t *shm)
{
    queue_sum_t              sum;
    ngx_idempotency_tier_t  *tier;

    tier = shm->tier;

    if (tier == NULL) {
        return;
    }

    if (tier->quit && !tier->stay.timer_set) {
        queue_sum(tier, &sum);

        if (sum.outcomes + sum.claims) {
            ngx_add_timer(&tier->stay, NGX_IDEMPOTENCY_TIER_STAY);
        }
    }

    tier_schedule(tier);
}


static void
tier_schedule(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_shm_t  *shm;

    shm = tier->shm;

    if (shm->sh->tier.first == NULL || tier->busy == tier->nbatches) {
        return;
    }

    if (ngx_idempotency_tier_shared(tier)) {

        /* one batch for all that is queued in this turn of the event loop */

        ngx_post_event(&tier->scheduled, &ngx_posted_events);

    } else if (!tier->retry.timer_set) {
        flush_queue(tier);

    } else if (!tier->strict && shm->sh->tier.asked
               && !shm->sh->tier.failing)
    {
        /* a question ends a pause */

        ngx_del_timer(&tier->retry);

        flush_queue(tier);
    }
}


static void
tier_schedule_handler(ngx_event_t *ev)
{
    flush_queue(ev->data);
}


static void
tier_retry_handler(ngx_event_t *ev)
{
    ngx_idempotency_tier_t  *tier;

    tier = ev->data;

    if (ngx_idempotency_tier_shared(tier)) {
        tier_maintain(tier);

        if (tier->shm->sh->tier.aside) {
            ngx_add_timer(ev, NGX_IDEMPOTENCY_TIER_RETRY);
        }
    }

    flush_queue(tier);
}


static void
tier_watch_handler(ngx_event_t *ev)
{
    ngx_uint_t               watches;
    ngx_idempotency_tier_t  *tier;

    tier = ev->data;

    watches = tier_watches(tier);

    if (ngx_idempotency_tier_shared(tier)) {
        tier_maintain(tier);
        tier_renew(tier);

    } else {
        tier_hung(tier);

        /* a file that somebody has agreed to is every worker's, even if it has
           no requests */

        (void) tier->backing->up(tier);
    }

    if (watches) {
        tier->backing->maintain(tier);

        if (!ngx_idempotency_tier_shared(tier)) {

            if (ngx_current_msec - tier->watched >= NGX_IDEMPOTENCY_TIER_IDLE) {
                tier->watched = ngx_current_msec;
                queue_retry_aside(tier);

                /* another nginx waits for what a worker had that was killed */

                ngx_idempotency_shm_sweep(tier->shm, ngx_current_msec);
            }

            writer_inherit(tier);
        }

        tier_probe_failed(tier);
    }

    tier_schedule(tier);

    /* an operation on a file may hang, so look often */

    ngx_add_timer(ev, (watches && !ngx_idempotency_tier_shared(tier))
                      ? NGX_IDEMPOTENCY_TIER_WATCH
                      : NGX_IDEMPOTENCY_TIER_LOOK);
}


/* True if this worker is the one of the zone that watches the backing: a worker
   that has the backing, as soon as there is one, and none that quits, while
   others serve. */

static ngx_uint_t
tier_watches(ngx_idempotency_tier_t *tier)
{
    ngx_uint_t                  mine;
    ngx_idempotency_process_t  *self, *watcher;
    ngx_idempotency_tier_sh_t  *sh;

    if (ngx_idempotency_shm_lock(tier->shm) != NGX_OK) {
        return 0;
    }

    sh = &tier->shm->sh->tier;
    self = ngx_idempotency_process_self();
    watcher = &sh->watcher;

    mine = ngx_idempotency_process_is(watcher, self);

    if ((tier->quit && ngx_idempotency_workers_others(&sh->serving, 0))
        || (tier->nbatches == 0 && !ngx_idempotency_tier_shared(tier)
            && sh->instance))
    {
        if (mine) {
            watcher->pid = 0;
            mine = 0;
        }

    } else if (!mine
               && (watcher->pid == 0
                   || ngx_current_msec - tier->watched
                      >= NGX_IDEMPOTENCY_TIER_IDLE))
    {
        tier->watched = ngx_current_msec;

        if (watcher->pid == 0 || ngx_idempotency_process_gone(watcher)
            || ngx_idempotency_process_stopped(watcher))
        {
            *watcher = *self;
            mine = 1;
        }
    }

    ngx_idempotency_shm_unlock(tier->shm);

    return mine;
}


/* A backing that takes too long has failed: waiting requests are woken, and
   refused.  An answer that a busy worker has not read yet is no hang. */

static void
tier_hung(ngx_idempotency_tier_t *tier)
{
    ngx_uint_t                  hung;
    ngx_idempotency_writer_t   *writer;
    ngx_idempotency_tier_sh_t  *sh;

    sh = &tier->shm->sh->tier;
    writer = &sh->writer;

    if (sh->failing || writer->records == NULL
        || ngx_idempotency_shm_lock(tier->shm) != NGX_OK)
    {
        return;
    }

    hung = (!sh->failing && writer->records
            && writer->answered != writer->turn
            && (ngx_msec_int_t) (ngx_current_msec - writer->started)
               >= NGX_IDEMPOTENCY_TIER_HANGS);

    if (hung) {
        sh->failing = 1;
        sh->failed = ngx_current_msec;
    }

    ngx_idempotency_shm_unlock(tier->shm);

    if (hung) {
        ngx_idempotency_tier_say(tier, "an operation takes longer than a "
                                 "second");
        ngx_idempotency_workers_wake_all();
    }
}


/* probes a backing that failed, if it might answer, or an operator has just
   agreed to it */

static void
tier_probe_failed(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_tier_sh_t  *sh;

    sh = &tier->shm->sh->tier;

    if (!sh->failing || tier->busy == tier->nbatches
        || (ngx_idempotency_tier_shared(tier) && sh->first)
        || (!tier->backing->up(tier) && !sh->agreed)
        || ngx_current_msec - sh->probed < NGX_IDEMPOTENCY_TIER_RETRY)
    {
        return;
    }

    sh->probed = ngx_current_msec;

    ngx_idempotency_tier_probe(tier);
}


/* asks the backing even if the queue is empty */

void
ngx_idempotency_tier_probe(ngx_idempotency_tier_t *tier)
{
    tier->probes = 1;
    flush_queue(tier);
    tier->probes = 0;
}


/* a shared backing may fail in part: it says itself if all is down */

ngx_uint_t
ngx_idempotency_tier_down(ngx_idempotency_shm_t *shm)
{
    return !shm->tier->backing->up(shm->tier)
           || (!ngx_idempotency_tier_shared(shm->tier)
               && shm->sh->tier.failing);
}


/* queues the records of dead workers again, and those aside */

static void
tier_maintain(ngx_idempotency_tier_t *tier)
{
    writer_inherit(tier);

    if (tier->shm->sh->tier.said && !tier->shm->sh->tier.failing) {
        ngx_idempotency_tier_say(tier, NULL);
    }

    if (tier->backing->up(tier)
        && ngx_current_msec - tier->shm->sh->tier.failed
           >= NGX_IDEMPOTENCY_TIER_RETRY)
    {
        queue_retry_aside(tier);
    }
}


/*
 * A lease is renewed whenever another third of it has gone by since the claim.
 * If the owner has died instead, its claim is put in doubt, and that change is
 * queued.
 */

static void
tier_renew(ngx_idempotency_tier_t *tier)
{
    ngx_msec_t                  now, then;
    ngx_uint_t                  died;
    ngx_queue_t                *q;
    ngx_idempotency_shm_t      *shm;
    ngx_idempotency_record_t   *rec;
    ngx_idempotency_tier_sh_t  *sh;

    shm = tier->shm;
    sh = &shm->sh->tier;
    now = ngx_current_msec;
    died = 0;

    if ((ngx_msec_int_t) (now - sh->renewed) < NGX_IDEMPOTENCY_TIER_RENEW
        || ngx_idempotency_shm_lock(shm) != NGX_OK)
    {
        return;
    }

    then = sh->renewed;
    sh->renewed = now;

    for (q = ngx_queue_head(&shm->sh->pending);
         q != ngx_queue_sentinel(&shm->sh->pending);
         q = ngx_queue_next(q))
    {
        rec = ngx_queue_data(q, ngx_idempotency_record_t, queue);

        if (rec->state != NGX_IDEMPOTENCY_PENDING
            || tier_thirds(rec, now) <= tier_thirds(rec, then))
        {
            continue;
        }

        if (ngx_idempotency_record_alive(rec, now)) {
            ngx_idempotency_writeback_add(shm, rec);

        } else {
            died = 1;
        }
    }

    ngx_idempotency_shm_unlock(shm);

    if (died) {
        ngx_idempotency_shm_sweep(shm, now);
    }
}


/* how many thirds have gone by; the clocks of workers may differ by a moment */

static ngx_msec_t
tier_thirds(ngx_idempotency_record_t *rec, ngx_msec_t now)
{
    ngx_msec_int_t  since;

    since = (ngx_msec_int_t) (now - rec->recorded);

    return ngx_max(since, 0) / ngx_max(rec->lease / 3, 1);
}


void
ngx_idempotency_shm_sweep(ngx_idempotency_shm_t *shm, ngx_msec_t now)
{
    ngx_uint_t                 i, n;
    ngx_queue_t               *q, *next;
    orphan_t                   orphans[NGX_IDEMPOTENCY_ORPHANS];
    ngx_idempotency_record_t  *rec;

    do {
        if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
            return;
        }

        n = 0;

        for (q = ngx_queue_head(&shm->sh->pending);
             q != ngx_queue_sentinel(&shm->sh->pending)
             && n < NGX_IDEMPOTENCY_ORPHANS;
             q = next)
        {
            next = ngx_queue_next(q);
            rec = ngx_queue_data(q, ngx_idempotency_record_t, queue);

            if (rec->state == NGX_IDEMPOTENCY_ABANDONED
                || ngx_idempotency_record_alive(rec, now))
            {
                continue;
            }

            ngx_memcpy(orphans[n].token, rec->token,
                       NGX_IDEMPOTENCY_DIGEST_LEN);
            orphans[n++].fence = (rec->state == NGX_IDEMPOTENCY_PENDING)
                                 ? rec->fence : 0;

            ngx_idempotency_record_orphan(shm, rec, now);
        }

        ngx_idempotency_shm_unlock(shm);

        for (i = 0; i < n; i++) {
            if (orphans[i].fence) {
                ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                              "idempotency: the owner of a claim has gone, it "
                              "is in doubt, token: %*xs, zone: \"%V\", "
                              "fence: %uL",
                              (size_t) NGX_IDEMPOTENCY_DIGEST_LEN,
                              orphans[i].token, &shm->store->name,
                              orphans[i].fence);
            }
        }

    } while (n == NGX_IDEMPOTENCY_ORPHANS);

    ngx_idempotency_writeback_schedule(shm);
}


void
ngx_idempotency_tier_init(ngx_idempotency_shm_t *shm)
{
    ngx_idempotency_tier_t     *tier;
    ngx_idempotency_tier_sh_t  *sh;

    tier = shm->tier;
    sh = &shm->sh->tier;

    sh->end = &sh->first;
    sh->instance = tier->instance;
    sh->floor = shm->sh->fence;
    sh->mark = tier->mark;
    sh->base = tier->base;
    sh->other = tier->other;
    sh->failing = (tier->instance == 0);
    sh->generation = shm->generation;
}


/* a thread found out, apart from a batch, that the backing is lost */

void
ngx_idempotency_tier_lost(ngx_idempotency_tier_t *tier, const char *error)
{
    ngx_idempotency_tier_sh_t  *sh;

    sh = &tier->shm->sh->tier;

    if (sh->lost) {
        return;
    }

    sh->lost = 1;
    sh->failing = 1;

    ngx_idempotency_tier_say(tier, error);
}


ngx_int_t
ngx_idempotency_tier_init_process(ngx_idempotency_shm_t *shm,
    ngx_cycle_t *cycle)
{
    ngx_idempotency_tier_t  *tier;

    tier = shm->tier;

    if (tier == NULL) {
        return NGX_OK;
    }

    tier->nbatches = 1;

    if (tier->backing->init_process(tier, cycle) != NGX_OK) {
        return NGX_ERROR;
    }

    if (ngx_idempotency_tier_shared(tier)) {
        tier->nbatches = tier->backing->nbatches(tier);
    }

    tier->busy = 0;

    tier->batches = ngx_calloc(ngx_max(tier->nbatches, 1)
                               * sizeof(ngx_idempotency_batch_t), cycle->log);
    if (tier->batches == NULL) {
        return NGX_ERROR;
    }

    tier->batch = tier->batches;

    tier_event(tier, &tier->scheduled, tier_schedule_handler);
    tier_event(tier, &tier->retry, tier_retry_handler);
    tier_event(tier, &tier->watch, tier_watch_handler);
    tier_event(tier, &tier->poll, ngx_idempotency_remote_poll_handler);
    tier_event(tier, &tier->stay, tier_stay_handler);

    /* a worker does not exit while a timer is set that can't be cancelled */

    tier->stay.cancelable = 0;

    ngx_add_timer(&tier->watch, 1);

    if (tier->nbatches) {
        ngx_idempotency_tier_serve(tier, tier->nbatches);

    } else {
        (void) tier_member(tier, 0, 0);
    }

    return NGX_OK;
}


static void
tier_event(ngx_idempotency_tier_t *tier, ngx_event_t *ev,
    ngx_event_handler_pt handler)
{
    ev->handler = handler;
    ev->data = tier;
    ev->log = ngx_cycle->log;
    ev->cancelable = 1;
}


void
ngx_idempotency_tier_serve(ngx_idempotency_tier_t *tier, ngx_uint_t nbatches)
{
    tier->nbatches = nbatches;

    if (tier_member(tier, 1, 0) == NGX_OK) {
        tier->shm->sh->tier.undelivered = 0;
    }
}


static ngx_int_t
tier_member(ngx_idempotency_tier_t *tier, ngx_uint_t serves, ngx_uint_t leaves)
{
    if (ngx_idempotency_shm_lock(tier->shm) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_idempotency_workers_member(&tier->shm->sh->tier.serving, serves);
    ngx_idempotency_workers_member(&tier->shm->sh->tier.leaving, leaves);

    ngx_idempotency_shm_unlock(tier->shm);

    return NGX_OK;
}


/* from now on the worker only finishes its requests; others flush the queue, if
   there are any */

void
ngx_idempotency_tier_quit(ngx_idempotency_shm_t *shm)
{
    ngx_idempotency_tier_t  *tier;

    tier = shm->tier;

    if (tier == NULL || tier->nbatches == 0 || tier->quit
        || tier_member(tier, 0, 1) != NGX_OK)
    {
        return;
    }

    tier->quit = ngx_current_msec;

    tier_stay_handler(&tier->stay);
}


/*
 * If no worker serves any more, one of those that quit stays.  Workers that
 * seem to serve may yet get the signal, if this configuration is the latest; if
 * there is a later one, its workers may have yet to start.
 */

static void
tier_stay_handler(ngx_event_t *ev)
{
    ngx_msec_t                  age, stays;
    ngx_uint_t                  serve, said, latest;
    queue_sum_t                 sum;
    ngx_core_conf_t            *ccf;
    ngx_idempotency_tier_t     *tier;
    ngx_idempotency_tier_sh_t  *sh;

    tier = ev->data;
    sh = &tier->shm->sh->tier;

    queue_sum(tier, &sum);

    if (sum.outcomes + sum.claims == 0) {
        return;
    }

    ccf = (ngx_core_conf_t *) ngx_get_conf(ngx_cycle->conf_ctx,
                                           ngx_core_module);

    stays = ccf->shutdown_timeout ? ccf->shutdown_timeout
                                  : NGX_IDEMPOTENCY_TIER_QUIT;

    if (sh->lost || sh->other == NGX_IDEMPOTENCY_TIER_OTHER
        || sh->other == NGX_IDEMPOTENCY_TIER_FOREIGN)
    {
        stays = 0;
    }

    age = ngx_current_msec - tier->quit;
    latest = (sh->generation == tier->shm->generation);
    serve = ngx_idempotency_workers_others(&sh->serving, 0);

    if (serve && (!latest || age >= NGX_IDEMPOTENCY_TIER_ALL)) {
        return;
    }

    said = sh->failing || sh->aside || ngx_idempotency_tier_down(tier->shm)
           || age >= NGX_IDEMPOTENCY_TIER_ALL;

    if (sum.outcomes && !serve && said
        && (latest || age >= NGX_IDEMPOTENCY_TIER_COME)
        && ngx_atomic_cmp_set(&sh->undelivered, 0, sum.outcomes))
    {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                      "idempotency: zone \"%V\": %ui outcomes are not in the "
                      "%V yet: a worker process stays for up to %M ms to "
                      "deliver them",
                      &tier->shm->store->name, sum.outcomes, &tier->name,
                      stays);
    }

    if (age >= stays || ngx_idempotency_workers_others(&sh->leaving, 1)) {
        return;
    }

    ngx_add_timer(ev, NGX_IDEMPOTENCY_TIER_STAY);

    writer_inherit(tier);

    if (ngx_current_msec - sh->failed >= NGX_IDEMPOTENCY_TIER_RETRY) {
        queue_retry_aside(tier);
    }

    tier_schedule(tier);
}


/* The worker still has its slot here.  Others take over the records of its
   batches, if there are any workers left. */

void
ngx_idempotency_tier_leave(ngx_idempotency_shm_t *shm)
{
    ngx_idempotency_tier_t     *tier;
    ngx_idempotency_writer_t   *writer;
    ngx_idempotency_process_t  *self;
    ngx_idempotency_tier_sh_t  *sh;

    tier = shm->tier;
    sh = &shm->sh->tier;

    if (tier == NULL || tier->nbatches == 0
        || ngx_idempotency_shm_lock(shm) != NGX_OK)
    {
        return;
    }

    ngx_idempotency_workers_member(&sh->serving, 0);
    ngx_idempotency_workers_member(&sh->leaving, 0);

    tier->last = !ngx_idempotency_workers_others(&sh->serving, 0)
                 && !ngx_idempotency_workers_others(&sh->leaving, 0);

    self = ngx_idempotency_process_self();

    for (writer = &sh->writer;
         writer && !tier->last && ngx_idempotency_tier_shared(tier);
         writer = writer->next)
    {
        if (ngx_idempotency_process_is(&writer->process, self)) {
            writer_drop(shm, writer);
        }
    }

    ngx_idempotency_shm_unlock(shm);
}


/* from here on answers come only if they are waited for */

void
ngx_idempotency_tier_finish(ngx_idempotency_shm_t *shm)
{
    ngx_idempotency_tier_t  *tier;

    tier = shm->tier;

    if (tier && tier->batches) {
        tier->finished = 1;

        if (tier->backing->finish) {
            tier->backing->finish(tier);
        }
    }
}


/* the last worker of a zone tries to flush each outcome once */

void
ngx_idempotency_tier_flush(ngx_idempotency_shm_t *shm)
{
    ngx_idempotency_tier_t  *tier;

    tier = shm->tier;

    if (tier == NULL || tier->batches == NULL) {
        return;
    }

    queue_retry_aside(tier);

    if (tier->last) {
        tier_flush_last(tier);
        tier_log_delivered(tier);

    } else if (!ngx_idempotency_tier_shared(tier)) {
        tier_flush_now(tier);
    }
}


/* a zone whose backing fails may have used up the time of all zones */

static void
tier_flush_last(ngx_idempotency_tier_t *tier)
{
    ngx_msec_t          least;
    ngx_uint_t          first;
    queue_sum_t         sum;
    ngx_msec_int_t      left;

    static ngx_msec_t   end;

    least = ngx_current_msec + NGX_IDEMPOTENCY_TIER_LEAST;

    if (end == 0) {
        end = ngx_current_msec + NGX_IDEMPOTENCY_TIER_TERM;

    } else if ((ngx_msec_int_t) (end - least) < 0) {
        end = least;
    }

    for (first = 1; /* void */ ; first = 0) {

        /* workers may just have ended */

        writer_inherit(tier);

        if (ngx_idempotency_tier_shared(tier)) {
            flush_queue(tier);

        } else {
            tier_flush_now(tier);
        }

        left = (ngx_msec_int_t) (end - ngx_current_msec);

        queue_sum(tier, &sum);

        if (left <= 0 || tier->stuck || sum.outcomes + sum.claims == 0) {
            return;
        }

        if (ngx_idempotency_tier_shared(tier)) {
            tier->backing->wait(tier, left, first);

        } else {
            ngx_msleep(NGX_IDEMPOTENCY_TIER_TURN);
            ngx_time_update();
        }
    }
}


static void
tier_flush_now(ngx_idempotency_tier_t *tier)
{
    if (!tier->stuck && (!tier->busy || flushed_batch(tier))) {
        flush_queue(tier);
    }
}


void
ngx_idempotency_tier_exit_process(ngx_idempotency_shm_t *shm)
{
    ngx_idempotency_tier_t  *tier;

    tier = shm->tier;

    if (tier == NULL || tier->batches == NULL) {
        return;
    }

    tier->backing->exit_process(tier);

    if (!tier->stuck) {
        ngx_free(tier->batches);
    }

    tier->batches = NULL;
}


/* logs how many outcomes were flushed, and how many are lost */

static void
tier_log_delivered(ngx_idempotency_tier_t *tier)
{
    ngx_str_t    *zone;
    ngx_uint_t    left;
    queue_sum_t   sum;

    zone = &tier->shm->store->name;
    left = tier->shm->sh->tier.undelivered;

    queue_sum(tier, &sum);

    if (left > sum.outcomes) {
        ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                      "idempotency: zone \"%V\": %ui outcomes were delivered "
                      "to the %V", zone, left - sum.outcomes, &tier->name);
    }

    if (sum.outcomes) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                      "idempotency: zone \"%V\": %ui outcomes were not "
                      "delivered to the %V: they are lost, and repeats of "
                      "these requests may be executed again",
                      zone, sum.outcomes, &tier->name);
    }
}


ngx_int_t
ngx_idempotency_store_agree(ngx_idempotency_store_t *store)
{
    ngx_idempotency_shm_t  *shm;

    shm = store->data;

    return shm->tier ? shm->tier->backing->agree(shm->tier) : NGX_DECLINED;
}
