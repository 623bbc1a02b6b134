
/*
 * What a zone owes to what stands behind it, and how that is told.  Records
 * that the backing has not heard of, or not of their last change, wait in a
 * list in shared memory.  A worker takes the first of them over, all in one
 * batch; whoever waits for that, in any worker, is woken then.  If that worker
 * dies, the next one begins with what it had taken.
 *
 * A record is never in two batches: what is told of a token is told in its
 * order.  What could not be told is the first to be told again; but where many
 * batches are on their way at once, it waits aside, as the others may well be
 * told.
 */


#include "ngx_idempotency_shm.h"


#define NGX_IDEMPOTENCY_TIER_RETRY      200

/* for so long what comes next is gathered, where nobody waits for it; where
   somebody does it is this part of what the last batch took, and no more */

#define NGX_IDEMPOTENCY_TIER_PAUSE      2
#define NGX_IDEMPOTENCY_TIER_PART       3
#define NGX_IDEMPOTENCY_TIER_LONGEST    5

/* a worker that took something over this long ago is asked whether it lives */

#define NGX_IDEMPOTENCY_TIER_SILENCE    100

/* the part of a zone that tells which tokens there may be */

#define NGX_IDEMPOTENCY_TIER_FILTER     4

/* what had no room for all is well again after this time */

#define NGX_IDEMPOTENCY_TIER_WELL       1000


static void tier_kick_handler(ngx_event_t *ev);
static ngx_uint_t tier_free(ngx_idempotency_tier_t *tier);
static ngx_uint_t tier_become(ngx_idempotency_tier_t *tier);
static ngx_idempotency_hander_t *tier_hander(ngx_idempotency_tier_t *tier);
static void tier_hand(ngx_idempotency_tier_t *tier);
static ngx_uint_t tier_pause(ngx_idempotency_tier_t *tier);
static ngx_uint_t tier_gather(ngx_idempotency_tier_t *tier);
static ngx_idempotency_record_t *tier_next(ngx_idempotency_shm_t *shm);
static void tier_item(ngx_idempotency_tier_t *tier,
    ngx_idempotency_record_t *rec, ngx_idempotency_item_t *item);
static void tier_read_large(ngx_idempotency_tier_t *tier);
static ngx_uint_t tier_heard(ngx_idempotency_tier_t *tier);
static void tier_measure(ngx_idempotency_counters_t *counters,
    ngx_idempotency_batch_t *batch);
static void tier_heard_one(ngx_idempotency_tier_t *tier, ngx_uint_t i,
    ngx_idempotency_workers_t *wake);
static void tier_list(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);
static void tier_append(ngx_idempotency_tier_sh_t *sh,
    ngx_idempotency_record_t *rec);
static void tier_untake(ngx_idempotency_shm_t *shm,
    ngx_idempotency_hander_t *hander);
static void tier_put_back(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);
static void tier_put_aside(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);
static int64_t tier_time(ngx_idempotency_batch_t *batch, ngx_msec_t time);
static void tier_outcome(ngx_idempotency_tier_t *tier, ngx_uint_t failed);
static ngx_uint_t tier_well(ngx_idempotency_tier_t *tier);
static void tier_sum(ngx_idempotency_batch_t *batch, ngx_uint_t *stale,
    ngx_uint_t *full, ngx_uint_t *damaged, ngx_uint_t *lost);
static void tier_say(ngx_idempotency_tier_t *tier, const char *why);
static void tier_seals(ngx_idempotency_tier_t *tier);
static void tier_retry_handler(ngx_event_t *ev);


/* who leaves shared memory while it is owed waits in the list, as a claim
   that is none any more */

void
ngx_idempotency_tier_owe(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec)
{
    if (shm->tier == NULL || (rec->owes & NGX_IDEMPOTENCY_OWES_NEVER)) {
        return;
    }

    if (rec->owes & NGX_IDEMPOTENCY_OWES_TAKEN) {
        rec->owes |= NGX_IDEMPOTENCY_OWES_MORE;
        return;
    }

    if ((rec->owes & NGX_IDEMPOTENCY_OWES_LISTED) == 0) {
        tier_list(shm, rec);
    }
}


static void
tier_list(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec)
{
    ngx_idempotency_tier_sh_t  *sh;

    sh = &shm->sh->tier;

    rec->owes |= NGX_IDEMPOTENCY_OWES_LISTED;
    tier_append(sh, rec);

    sh->listed++;
}


static void
tier_append(ngx_idempotency_tier_sh_t *sh, ngx_idempotency_record_t *rec)
{
    rec->next = NULL;

    if (sh->last) {
        sh->last->next = rec;

    } else {
        sh->first = rec;
    }

    sh->last = rec;
}


/* whoever owes something sees to it that somebody takes it over */

void
ngx_idempotency_tier_kick(ngx_idempotency_shm_t *shm)
{
    ngx_idempotency_tier_t  *tier;

    tier = shm->tier;

    if (tier == NULL || shm->sh->tier.first == NULL
        || tier->busy == tier->hands)
    {
        return;
    }

    if (ngx_idempotency_tier_shared(tier)) {

        /* whatever is owed in this round goes along */

        ngx_post_event(&tier->kick, &ngx_posted_events);

    } else if (!tier->retry.timer_set) {
        tier_hand(tier);

    } else if (tier->pauses && shm->sh->tier.asked) {
        tier->pauses = 0;
        ngx_del_timer(&tier->retry);

        tier_hand(tier);
    }
}


static void
tier_kick_handler(ngx_event_t *ev)
{
    tier_hand(ev->data);
}


/* the next one is at hand */

static ngx_uint_t
tier_free(ngx_idempotency_tier_t *tier)
{
    ngx_uint_t  i;

    for (i = 0; i < tier->hands; i++) {

        if (!tier->batches[i].busy) {
            tier->batch = &tier->batches[i];
            return 1;
        }
    }

    return 0;
}


static ngx_uint_t
tier_become(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_shm_t      *shm;
    ngx_idempotency_batch_t    *batch;
    ngx_idempotency_hander_t   *hander;
    ngx_idempotency_tier_sh_t  *sh;

    shm = tier->shm;
    batch = tier->batch;

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        return 0;
    }

    sh = &shm->sh->tier;
    hander = batch->hander;

    if (hander == NULL || batch->since != sh->since) {

        hander = tier_hander(tier);

        if (hander) {
            hander->process = *ngx_idempotency_process_self();
            hander->handed = ngx_current_msec;
        }

        batch->hander = hander;
        batch->since = sh->since;
    }

    ngx_idempotency_shm_unlock(shm);

    return hander != NULL;
}


/*
 * One that is nobody's, or of who has gone.  If he is merely silent, it stays
 * his: what he has taken may be written at any time, and what comes after must
 * not overtake it.  Without memory for one more the others have to do.
 */

static ngx_idempotency_hander_t *
tier_hander(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_shm_t      *shm;
    ngx_idempotency_hander_t   *hander, *last;

    shm = tier->shm;
    last = NULL;

    for (hander = &shm->sh->tier.hander; hander; hander = hander->next) {

        if (hander->process.pid == 0) {
            return hander;
        }

        if (ngx_current_msec - hander->handed > NGX_IDEMPOTENCY_TIER_SILENCE
            && ngx_idempotency_process_gone(&hander->process))
        {
            tier_untake(shm, hander);
            return hander;
        }

        last = hander;
    }

    if (!ngx_idempotency_tier_shared(tier)) {
        return NULL;
    }

    hander = ngx_slab_calloc_locked(shm->shpool,
                                    sizeof(ngx_idempotency_hander_t));
    last->next = hander;

    return hander;
}


/* who took something over may be no more, and nothing else may be owed */

void
ngx_idempotency_tier_inherit(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_shm_t     *shm;
    ngx_idempotency_hander_t  *hander;

    shm = tier->shm;

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        return;
    }

    for (hander = &shm->sh->tier.hander; hander; hander = hander->next) {

        if (hander->taken
            && ngx_current_msec - hander->handed
               > NGX_IDEMPOTENCY_TIER_SILENCE
            && ngx_idempotency_process_gone(&hander->process))
        {
            tier_untake(shm, hander);
        }
    }

    ngx_idempotency_shm_unlock(shm);
}


/* what was taken, and nobody knows how far, is the first to be told again */

static void
tier_untake(ngx_idempotency_shm_t *shm, ngx_idempotency_hander_t *hander)
{
    ngx_uint_t                  n;
    ngx_idempotency_record_t   *rec, *taken[NGX_IDEMPOTENCY_TIER_BATCH];

    n = 0;

    for (rec = hander->taken; rec; rec = rec->next) {
        taken[n++] = rec;
    }

    hander->taken = NULL;
    hander->process.pid = 0;

    while (n) {
        tier_put_back(shm, taken[--n]);
    }
}


static void
tier_put_back(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec)
{
    ngx_idempotency_tier_sh_t  *sh;

    sh = &shm->sh->tier;

    rec->owes = NGX_IDEMPOTENCY_OWES_LISTED | NGX_IDEMPOTENCY_OWES_HEARD
                | NGX_IDEMPOTENCY_OWES_AGAIN
                | (rec->owes & NGX_IDEMPOTENCY_OWES_BRIEF);
    rec->next = sh->first;
    sh->first = rec;

    if (sh->last == NULL) {
        sh->last = rec;
    }
}


/* it is still listed to everybody else */

static void
tier_put_aside(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec)
{
    ngx_idempotency_tier_sh_t  *sh;

    sh = &shm->sh->tier;

    rec->owes |= NGX_IDEMPOTENCY_OWES_LISTED | NGX_IDEMPOTENCY_OWES_REFUSED;
    rec->next = sh->refused;
    sh->refused = rec;
}


static void
tier_hand(ngx_idempotency_tier_t *tier)
{
    ngx_int_t  rc;

    for ( ;; ) {

        if (ngx_idempotency_tier_shared(tier)
            && tier->shm->sh->tier.first == NULL)
        {
            return;
        }

        if (!tier_free(tier) || !tier_become(tier) || !tier_gather(tier)) {
            return;
        }

        tier->batch->busy = 1;
        tier->busy++;

        rc = tier->backing->hand(tier, tier->batch);

        if (rc == NGX_AGAIN) {
            continue;
        }

        if (rc != NGX_OK) {
            tier->batch->rc = NGX_ERROR;
        }

        if (!tier_heard(tier)) {
            return;
        }
    }
}


/* the backing has answered later */

void
ngx_idempotency_tier_handed(ngx_idempotency_tier_t *tier,
    ngx_idempotency_batch_t *batch)
{
    tier->batch = batch;

    if (tier_heard(tier) && !tier_pause(tier)) {
        tier_hand(tier);
    }
}


/*
 * A transaction costs more than an item in it.  So there is a short pause
 * behind each: a claim and its outcome become one item, and requests that came
 * together do not wait for each other in turn.  Who asks is not kept waiting,
 * and what comes when there was nothing for a while is told at once.
 */

static ngx_uint_t
tier_pause(ngx_idempotency_tier_t *tier)
{
    ngx_uint_t                i;
    ngx_msec_t                pause;
    ngx_idempotency_batch_t  *batch;

    batch = tier->batch;

    if (ngx_idempotency_tier_shared(tier) || tier->retry.timer_set) {
        return 0;
    }

    if (tier->strict) {
        pause = (batch->n > 1) ? (ngx_current_msec - batch->at)
                                 / NGX_IDEMPOTENCY_TIER_PART : 0;
        pause = ngx_min(pause, NGX_IDEMPOTENCY_TIER_LONGEST);

    } else {
        pause = tier->shm->sh->tier.trusted ? NGX_IDEMPOTENCY_TIER_PAUSE : 0;

        for (i = 0; i < batch->n; i++) {
            if (batch->items[i].what == NGX_IDEMPOTENCY_ITEM_ASK) {
                pause = 0;
            }
        }
    }

    if (pause == 0 || tier->shm->sh->tier.asked) {
        return 0;
    }

    tier->pauses = 1;
    ngx_add_timer(&tier->retry, pause);

    return 1;
}


/* none: there is nothing to be told, and this worker is not the one that does
   any more */

static ngx_uint_t
tier_gather(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_shm_t      *shm;
    ngx_idempotency_batch_t    *batch;
    ngx_idempotency_record_t   *rec, **taken;
    ngx_idempotency_tier_sh_t  *sh;

    shm = tier->shm;
    batch = tier->batch;

    batch->n = 0;
    batch->size = 0;
    batch->large = NULL;
    batch->rc = NGX_OK;
    batch->why = NGX_IDEMPOTENCY_ERROR_OTHER;
    batch->lost = 0;
    batch->vain = 0;
    batch->at = ngx_current_msec;
    batch->now = tier->backing->now(tier);

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        return 0;
    }

    sh = &shm->sh->tier;

    if (batch->since != sh->since) {
        ngx_idempotency_shm_unlock(shm);
        return 0;
    }

    batch->hander->handed = ngx_current_msec;
    taken = &batch->hander->taken;

    while (batch->n < NGX_IDEMPOTENCY_TIER_BATCH
           && (rec = tier_next(shm)) != NULL)
    {
        if (batch->n && batch->size + rec->size > NGX_IDEMPOTENCY_SHM_PIECE) {
            break;
        }

        sh->first = rec->next;

        if (sh->first == NULL) {
            sh->last = NULL;
        }

        *taken = rec;
        taken = &rec->next;
        *taken = NULL;

        rec->owes &= ~NGX_IDEMPOTENCY_OWES_LISTED;
        rec->owes |= NGX_IDEMPOTENCY_OWES_TAKEN;

        batch->records[batch->n] = rec;
        tier_item(tier, rec, &batch->items[batch->n]);
        batch->n++;
    }

    sh->asked = 0;

    if (batch->n == 0 && !ngx_idempotency_tier_shared(tier)) {
        batch->hander->process.pid = 0;
        batch->hander = NULL;
    }

    ngx_idempotency_shm_unlock(shm);

    if (batch->n == 1 && batch->size > NGX_IDEMPOTENCY_SHM_PIECE) {
        tier_read_large(tier);
    }

    return batch->n;
}


/* a claim that the backing never heard of needs no release there */

static ngx_idempotency_record_t *
tier_next(ngx_idempotency_shm_t *shm)
{
    ngx_idempotency_record_t   *rec;
    ngx_idempotency_tier_sh_t  *sh;

    sh = &shm->sh->tier;

    while ((rec = sh->first) != NULL) {

        if (rec->outcome != NGX_IDEMPOTENCY_GONE
            || (rec->owes & NGX_IDEMPOTENCY_OWES_HEARD))
        {
            return rec;
        }

        sh->first = rec->next;

        if (sh->first == NULL) {
            sh->last = NULL;
        }

        sh->told++;
        ngx_slab_free_locked(shm->shpool, rec);
    }

    return NULL;
}


static void
tier_item(ngx_idempotency_tier_t *tier, ngx_idempotency_record_t *rec,
    ngx_idempotency_item_t *item)
{
    ngx_idempotency_batch_t   *batch;
    ngx_idempotency_cursor_t   cur;

    batch = tier->batch;

    ngx_memzero(item, sizeof(ngx_idempotency_item_t));

    ngx_memcpy(item->token, rec->token, NGX_IDEMPOTENCY_DIGEST_LEN);
    ngx_memcpy(item->fingerprint, rec->fingerprint,
               NGX_IDEMPOTENCY_DIGEST_LEN);
    item->parts = rec->parts;
    item->instance = tier->shm->sh->tier.instance;
    item->since = batch->since;
    item->fence = rec->fence;
    item->lease = rec->lease;
    item->known = rec->known;
    item->result = NGX_IDEMPOTENCY_UNAVAILABLE;

    if (rec->outcome == NGX_IDEMPOTENCY_GONE
        || rec->outcome == NGX_IDEMPOTENCY_FAILED)
    {
        item->what = NGX_IDEMPOTENCY_ITEM_RELEASE;

        if (rec->outcome == NGX_IDEMPOTENCY_GONE
            && rec->status == NGX_IDEMPOTENCY_FORGOTTEN)
        {
            item->what = NGX_IDEMPOTENCY_ITEM_FORGET;
            item->since = rec->fence;
            item->fence = 0;
            item->recorded = tier_time(batch, rec->recorded);
        }

        return;
    }

    item->window = rec->window->length;
    item->recorded = tier_time(batch, rec->recorded);
    item->ends = batch->now + (ngx_msec_int_t) (rec->ends - batch->at);

    if (rec->outcome == NGX_IDEMPOTENCY_ELSEWHERE) {
        item->what = NGX_IDEMPOTENCY_ITEM_ASK;
        item->old = 1;
        return;
    }

    if (rec->outcome == NGX_IDEMPOTENCY_ASKING) {
        item->what = NGX_IDEMPOTENCY_ITEM_ASK;
        item->retry = ((rec->status & NGX_IDEMPOTENCY_ASK_RETRY) != 0);
        item->old = ((rec->status & NGX_IDEMPOTENCY_ASK_OLD) != 0);
        return;
    }

    item->what = NGX_IDEMPOTENCY_ITEM_PUT;
    item->outcome = rec->outcome;
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


/* of the backing, by ours */

static int64_t
tier_time(ngx_idempotency_batch_t *batch, ngx_msec_t time)
{
    return batch->now - (ngx_msec_int_t) (batch->at - time);
}


/*
 * A large response is read piece by piece, as long as the record is what it
 * was; if not, its claim alone is told, and the rest with its last change
 */

static void
tier_read_large(ngx_idempotency_tier_t *tier)
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

        changed = (shm->sh->tier.since != batch->since
                   || (rec->owes & NGX_IDEMPOTENCY_OWES_MORE));

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

    /* what it has become is told next; without memory it is not kept */

    item->outcome = changed ? NGX_IDEMPOTENCY_PENDING
                            : NGX_IDEMPOTENCY_NOT_KEPT;
}


/* none: what there is to be told waits for a better time */

static ngx_uint_t
tier_heard(ngx_idempotency_tier_t *tier)
{
    ngx_int_t                   rc;
    ngx_uint_t                  i, failed;
    ngx_idempotency_shm_t      *shm;
    ngx_idempotency_batch_t    *batch;
    ngx_idempotency_workers_t   wake[NGX_IDEMPOTENCY_TIER_BATCH];

    shm = tier->shm;
    batch = tier->batch;

    batch->busy = 0;
    tier->busy--;
    failed = 0;

    ngx_memzero(wake, sizeof(wake));

    tier_measure(shm->store->counters, batch);

    rc = ngx_idempotency_shm_lock(shm);

    if (rc == NGX_OK) {

        if (shm->sh->tier.since == batch->since) {

            batch->hander->taken = NULL;

            /* backwards, as what was in vain goes back to the front */

            for (i = batch->n; i; i--) {
                tier_heard_one(tier, i - 1, &wake[i - 1]);
            }

            /* whoever is woken is to know */

            if (batch->rc != NGX_OK || batch->vain) {

                failed = !shm->sh->tier.failing;

                shm->sh->tier.failing = 1;
                shm->sh->tier.failed = ngx_current_msec;
                shm->sh->tier.partly = (batch->why
                                        == NGX_IDEMPOTENCY_ERROR_FULL);
            }

            shm->sh->tier.lost |= batch->lost;
        }

        ngx_idempotency_shm_unlock(shm);
    }

    for (i = 0; i < batch->n; i++) {

        ngx_idempotency_workers_wake(&wake[i],
                            ngx_idempotency_tree_key(batch->items[i].token));

        if (batch->items[i].what == NGX_IDEMPOTENCY_ITEM_ASK) {
            free(batch->items[i].response.data);
        }
    }

    free(batch->large);
    batch->large = NULL;

    if (rc != NGX_OK) {
        return 0;
    }

    tier_outcome(tier, failed);
    tier_seals(tier);

    return batch->rc == NGX_OK || ngx_idempotency_tier_shared(tier);
}


static void
tier_measure(ngx_idempotency_counters_t *counters,
    ngx_idempotency_batch_t *batch)
{
    if (batch->rc != NGX_OK) {
        ngx_idempotency_stats_add(counters->errors[batch->why], 1);
        return;
    }

    ngx_idempotency_stats_time(&counters->latency,
                               ngx_current_msec - batch->at);
}


static void
tier_heard_one(ngx_idempotency_tier_t *tier, ngx_uint_t i,
    ngx_idempotency_workers_t *wake)
{
    ngx_uint_t                  more, slot;
    ngx_idempotency_shm_t      *shm;
    ngx_idempotency_item_t     *item;
    ngx_idempotency_record_t   *rec;
    ngx_idempotency_tier_sh_t  *sh;

    shm = tier->shm;
    sh = &shm->sh->tier;
    rec = tier->batch->records[i];
    item = &tier->batch->items[i];

    more = (rec->owes & NGX_IDEMPOTENCY_OWES_MORE);
    rec->owes = item->unheard ? rec->owes & NGX_IDEMPOTENCY_OWES_HEARD
                              : NGX_IDEMPOTENCY_OWES_HEARD;

    if (tier->batch->rc != NGX_OK) {
        item->result = NGX_IDEMPOTENCY_UNAVAILABLE;
        item->full = 0;
        item->again = 1;
    }

    rec->known |= (item->result == NGX_IDEMPOTENCY_CLAIMED
                   || (item->result == NGX_IDEMPOTENCY_OK
                       && item->what == NGX_IDEMPOTENCY_ITEM_PUT));

    tier->batch->vain += item->again;

    /* a question that was in vain is answered; what is owed stays so */

    sh->told += (!item->again
                 || rec->outcome == NGX_IDEMPOTENCY_ASKING
                 || rec->outcome == NGX_IDEMPOTENCY_ELSEWHERE);

    if (rec->outcome == NGX_IDEMPOTENCY_ASKING
        || rec->outcome == NGX_IDEMPOTENCY_ELSEWHERE)
    {
        if (ngx_idempotency_ask_answered(tier, rec, item, wake) && more) {
            tier_list(shm, rec);
        }

        return;
    }

    if (rec->outcome == NGX_IDEMPOTENCY_FAILED) {

        /* it is given back, and those who waited may read on */

        rec->owes = NGX_IDEMPOTENCY_OWES_BRIEF
                    | (item->again ? NGX_IDEMPOTENCY_OWES_HEARD : 0);
    }

    /* the request that holds back until this is told, be it in vain */

    slot = ngx_idempotency_record_teller(rec);

    if (slot == NGX_IDEMPOTENCY_TELL_ALL) {
        ngx_idempotency_workers_all(wake);

    } else if (slot) {
        slot--;
        wake->bits[slot / 64] |= (uint64_t) 1 << (slot % 64);
    }

    ngx_idempotency_record_teller(rec) = 0;

    if (item->result == NGX_IDEMPOTENCY_STALE) {

        /* somebody else has it, and the zone did not know */

        sh->trusted = 0;
        sh->until = sh->listed;

        if (tier->strict && !rec->granted && !more
            && rec->outcome == NGX_IDEMPOTENCY_PENDING)
        {
            /* it is asked for anew */

            ngx_idempotency_shm_take_waiting(rec, wake);
            ngx_idempotency_record_remove(shm, rec);
            return;
        }
    }

    if (item->again) {

        if (ngx_idempotency_tier_shared(tier)) {
            rec->owes |= NGX_IDEMPOTENCY_OWES_AGAIN;
            tier_put_aside(shm, rec);

        } else {
            tier_put_back(shm, rec);
        }

    } else if (more) {
        tier_list(shm, rec);

    } else if (rec->outcome == NGX_IDEMPOTENCY_GONE) {
        ngx_slab_free_locked(shm->shpool, rec);

    } else if (item->full) {
        sh->told--;
        tier_put_aside(shm, rec);
    }
}


/* what has ended since may have made room */

void
ngx_idempotency_tier_refused(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_record_t   *rec, *next;
    ngx_idempotency_tier_sh_t  *sh;

    if (tier->shm->sh->tier.refused == NULL
        || ngx_idempotency_shm_lock(tier->shm) != NGX_OK)
    {
        return;
    }

    sh = &tier->shm->sh->tier;

    for (rec = sh->refused; rec; rec = next) {
        next = rec->next;

        rec->owes &= ~NGX_IDEMPOTENCY_OWES_REFUSED;
        tier_append(sh, rec);
    }

    sh->refused = NULL;

    ngx_idempotency_shm_unlock(tier->shm);
}


/* said once, and once more when it is over */

static void
tier_outcome(ngx_idempotency_tier_t *tier, ngx_uint_t failed)
{
    ngx_uint_t                  stale, full, damaged, lost;
    ngx_idempotency_shm_t      *shm;
    ngx_idempotency_batch_t    *batch;
    ngx_idempotency_tier_sh_t  *sh;

    shm = tier->shm;
    sh = &shm->sh->tier;
    batch = tier->batch;

    if (failed) {
        tier_say(tier, batch->error);
    }

    if (batch->rc != NGX_OK || batch->vain) {

        if (!tier->retry.timer_set) {
            ngx_add_timer(&tier->retry, NGX_IDEMPOTENCY_TIER_RETRY);
        }

    } else if (sh->failing && tier_well(tier)) {
        sh->failing = 0;
        tier_say(tier, NULL);
    }

    if (batch->rc != NGX_OK) {
        return;
    }

    tier_sum(batch, &stale, &full, &damaged, &lost);

    if (stale) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                      "idempotency: zone \"%V\": %ui claims of this nginx were "
                      "bound by another one as well", &shm->store->name, stale);
    }

    if (lost) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                      "idempotency: the %V of zone \"%V\" has lost %ui claims "
                      "of this nginx: others may have executed the same",
                      &tier->name, &shm->store->name, lost);
    }

    if (damaged && batch->error[0]) {
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "idempotency: the %V of zone \"%V\": %s",
                      &tier->name, &shm->store->name, batch->error);
    }

    if (full && !sh->full) {
        sh->full = 1;
        tier_say(tier, batch->error);

    } else if (!full && sh->full && sh->refused == NULL) {
        sh->full = 0;
        tier_say(tier, NULL);
    }
}


/* what has no room for one may answer another: it is well once it has had room
   for some time; and all is told that was told in vain */

static ngx_uint_t
tier_well(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_tier_sh_t  *sh;

    sh = &tier->shm->sh->tier;

    if (ngx_idempotency_tier_shared(tier) && sh->refused) {
        return 0;
    }

    return !sh->partly
           || ngx_current_msec - sh->failed >= NGX_IDEMPOTENCY_TIER_WELL;
}


static void
tier_sum(ngx_idempotency_batch_t *batch, ngx_uint_t *stale, ngx_uint_t *full,
    ngx_uint_t *damaged, ngx_uint_t *lost)
{
    ngx_uint_t               i;
    ngx_idempotency_item_t  *item;

    *stale = 0;
    *full = 0;
    *damaged = 0;
    *lost = 0;

    for (i = 0; i < batch->n; i++) {
        item = &batch->items[i];

        *stale += (item->result == NGX_IDEMPOTENCY_STALE);
        *full += item->full;
        *lost += item->lost;
        *damaged += (item->result == NGX_IDEMPOTENCY_UNAVAILABLE
                     && !item->full && !item->again);
    }
}


/* why: it is available again, if NULL */

static void
tier_say(ngx_idempotency_tier_t *tier, const char *why)
{
    ngx_str_t  *zone;

    zone = &tier->shm->store->name;

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


static void
tier_seals(ngx_idempotency_tier_t *tier)
{
    ngx_str_t   *zone;
    ngx_uint_t   i, n[NGX_IDEMPOTENCY_SEAL_FAILED + 1];

    ngx_memzero(n, sizeof(n));

    for (i = 0; i < tier->batch->n; i++) {
        n[tier->batch->items[i].seal]++;
    }

    zone = &tier->shm->store->name;

    if (n[NGX_IDEMPOTENCY_SEAL_BROKEN]) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                      "idempotency: zone \"%V\": the seal of a response was "
                      "broken in the %V, which somebody may have changed",
                      zone, &tier->name);
    }

    if (n[NGX_IDEMPOTENCY_SEAL_FAILED]) {
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "idempotency: zone \"%V\": a response can't be sealed "
                      "or opened, and is not kept", zone);
    }

    if (n[NGX_IDEMPOTENCY_SEAL_GONE] && !tier->unopened) {
        tier->unopened = 1;

        ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0,
                      "idempotency: zone \"%V\": responses in the %V can't be "
                      "opened by any key of \"idempotency_secret\", and are "
                      "not kept", zone, &tier->name);
    }
}


static void
tier_retry_handler(ngx_event_t *ev)
{
    ngx_idempotency_tier_t  *tier;

    tier = ev->data;
    tier->pauses = 0;

    if (ngx_idempotency_tier_shared(tier)) {
        ngx_idempotency_tier_tend(tier);

        if (tier->shm->sh->tier.refused) {
            ngx_add_timer(ev, NGX_IDEMPOTENCY_TIER_RETRY);
        }
    }

    tier_hand(tier);
}


/* what is owed by workers that have gone, or was told in vain, is owed to
   all */

void
ngx_idempotency_tier_tend(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_shm_t      *shm;
    ngx_idempotency_hander_t   *hander;

    shm = tier->shm;

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        return;
    }

    for (hander = &shm->sh->tier.hander; hander; hander = hander->next) {

        if (hander->process.pid && hander->taken
            && ngx_current_msec - hander->handed > NGX_IDEMPOTENCY_TIER_SILENCE
            && ngx_idempotency_process_gone(&hander->process))
        {
            tier_untake(shm, hander);
        }
    }

    ngx_idempotency_shm_unlock(shm);

    if (tier->backing->up(tier)
        && ngx_current_msec - shm->sh->tier.failed
           >= NGX_IDEMPOTENCY_TIER_RETRY)
    {
        ngx_idempotency_tier_refused(tier);
    }
}


/* the number of a claim rises beyond all that any zone has given before */

uint64_t
ngx_idempotency_tier_fence(ngx_idempotency_shm_t *shm)
{
    uint64_t  now;

    if (shm->tier) {
        now = (uint64_t) shm->tier->backing->now(shm->tier) * 1000;
        shm->sh->fence = ngx_max(shm->sh->fence, now);
    }

    return ++shm->sh->fence;
}


ngx_int_t
ngx_idempotency_tier_init(ngx_idempotency_shm_t *shm)
{
    ngx_slab_pool_t            *shpool;
    ngx_idempotency_tier_sh_t  *sh;

    sh = &shm->sh->tier;
    shpool = shm->shpool;

    sh->instance = shm->tier->instance;
    sh->since = shm->sh->fence;

    return ngx_idempotency_filter_init(&sh->filter, shpool,
                                       (shpool->end - shpool->start)
                                       / NGX_IDEMPOTENCY_TIER_FILTER);
}


/* what was found out beside */

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

    tier_say(tier, error);
}


ngx_int_t
ngx_idempotency_tier_init_process(ngx_idempotency_shm_t *shm,
    ngx_cycle_t *cycle)
{
    ngx_idempotency_tier_t  *tier;

    tier = shm->tier;

    if (tier->backing->init_process(tier, cycle) != NGX_OK) {
        return NGX_ERROR;
    }

    tier->hands = ngx_idempotency_tier_shared(tier)
                      ? tier->backing->hands(tier) : 1;
    tier->busy = 0;
    tier->pauses = 0;

    tier->batches = ngx_calloc(ngx_max(tier->hands, 1)
                               * sizeof(ngx_idempotency_batch_t), cycle->log);
    if (tier->batches == NULL) {
        return NGX_ERROR;
    }

    tier->batch = tier->batches;

    tier->kick.handler = tier_kick_handler;
    tier->kick.data = tier;
    tier->kick.log = cycle->log;

    tier->retry.handler = tier_retry_handler;
    tier->retry.data = tier;
    tier->retry.log = cycle->log;
    tier->retry.cancelable = 1;

    ngx_idempotency_elsewhere_init_process(tier, cycle);
    ngx_idempotency_trust_init_process(tier, cycle);

    return NGX_OK;
}


/* nothing answers later from now on */

void
ngx_idempotency_tier_finish(ngx_idempotency_shm_t *shm)
{
    if (shm->tier->batches) {
        shm->tier->backing->finish(shm->tier);
    }
}


/* the last one of a zone leaves nothing untold, if it can help it */

void
ngx_idempotency_tier_exit_process(ngx_idempotency_shm_t *shm)
{
    ngx_uint_t               last;
    ngx_idempotency_tier_t  *tier;

    tier = shm->tier;

    if (tier->batches == NULL) {
        return;
    }

    if (!ngx_idempotency_tier_shared(tier)) {

        last = ngx_idempotency_trust_exit_process(tier);

        if (!tier->busy || tier_heard(tier)) {
            tier_hand(tier);
        }

        /* another worker may be about to trust the zone */

        if (last) {
            ngx_idempotency_trust_give(tier);
        }
    }

    tier->backing->exit_process(tier);

    ngx_free(tier->batches);
    tier->batches = NULL;
}
