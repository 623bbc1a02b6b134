
/*
 * How what is owed is handed to the backing: when, and what a batch says of
 * each record.
 */


#include "ngx_idempotency_shm.h"


/* for so long what comes next is gathered, where nobody waits for it; with
   syncs it is this part of what the last batch took, and no more */

#define NGX_IDEMPOTENCY_TIER_PAUSE      2
#define NGX_IDEMPOTENCY_TIER_PART       3
#define NGX_IDEMPOTENCY_TIER_LONGEST    5


static ngx_uint_t hand_pause(ngx_idempotency_tier_t *tier);
static ngx_uint_t hand_free(ngx_idempotency_tier_t *tier);
static ngx_uint_t hand_become(ngx_idempotency_tier_t *tier);
static ngx_uint_t hand_gather(ngx_idempotency_tier_t *tier);
static void hand_item(ngx_idempotency_tier_t *tier,
    ngx_idempotency_record_t *rec, ngx_idempotency_item_t *item);
static int64_t hand_time(ngx_idempotency_batch_t *batch, ngx_msec_t time);
static void hand_probe(ngx_idempotency_tier_t *tier);
static void hand_large(ngx_idempotency_tier_t *tier);


void
ngx_idempotency_tier_hand(ngx_idempotency_tier_t *tier)
{
    ngx_int_t  rc;

    for ( ;; ) {

        if (ngx_idempotency_tier_shared(tier)
            && tier->shm->sh->tier.first == NULL)
        {
            return;
        }

        if (!hand_free(tier) || !hand_become(tier) || !hand_gather(tier)) {
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

        if (!ngx_idempotency_tier_heard(tier)) {
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

    if (ngx_idempotency_tier_heard(tier) && !hand_pause(tier)) {
        ngx_idempotency_tier_hand(tier);
    }
}


/*
 * A transaction costs more than an item in it.  So there is a short pause
 * behind one that nobody waited for; a claim ends it.  Where each transaction
 * is synced all wait, and the pause lets requests that came together stay
 * together: else they would wait for each other's syncs in turn.  What comes
 * when there was nothing for a while is told at once.
 */

static ngx_uint_t
hand_pause(ngx_idempotency_tier_t *tier)
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

    tier->pauses = 1;
    ngx_add_timer(&tier->retry, pause);

    return 1;
}


/* the next one is at hand */

static ngx_uint_t
hand_free(ngx_idempotency_tier_t *tier)
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
hand_become(ngx_idempotency_tier_t *tier)
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

    if (hander == NULL || !ngx_idempotency_owed_current(tier, batch)) {

        hander = ngx_idempotency_owed_hander(tier);

        if (hander) {
            hander->process = *ngx_idempotency_process_self();
            hander->handed = ngx_current_msec;
            batch->turn = ++hander->turn;
        }

        batch->hander = hander;
        batch->since = sh->since;
    }

    ngx_idempotency_shm_unlock(shm);

    return hander != NULL;
}


/* none: there is nothing to be told, and this worker is not the one that does
   any more */

static ngx_uint_t
hand_gather(ngx_idempotency_tier_t *tier)
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

    if (!ngx_idempotency_owed_current(tier, batch)) {
        ngx_idempotency_shm_unlock(shm);
        return 0;
    }

    batch->turn = ++batch->hander->turn;
    batch->hander->handed = ngx_current_msec;
    taken = &batch->hander->taken;

    while (batch->n < NGX_IDEMPOTENCY_TIER_BATCH
           && (rec = ngx_idempotency_owed_next(shm)) != NULL)
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

        rec->told = NGX_IDEMPOTENCY_TELLING;

        batch->records[batch->n] = rec;
        hand_item(tier, rec, &batch->items[batch->n]);
        batch->n++;
    }

    sh->asked = 0;

    if (batch->n == 0 && tier->probes) {
        hand_probe(tier);
    }

    if (batch->n == 0 && !ngx_idempotency_tier_shared(tier)) {
        batch->hander->process.pid = 0;
        batch->hander = NULL;
    }

    ngx_idempotency_shm_unlock(shm);

    if (batch->n == 1 && batch->size > NGX_IDEMPOTENCY_SHM_PIECE) {
        hand_large(tier);
    }

    return batch->n;
}


static void
hand_item(ngx_idempotency_tier_t *tier, ngx_idempotency_record_t *rec,
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
            item->since = rec->fence;
            item->fence = 0;
            item->recorded = hand_time(batch, rec->recorded);
        }

        return;
    }

    item->window = rec->window->length;
    item->recorded = hand_time(batch, rec->recorded);
    item->ends = batch->now + (ngx_msec_int_t) (rec->ends - batch->at);

    if (rec->state == NGX_IDEMPOTENCY_ELSEWHERE) {
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


/* of the backing, by ours */

static int64_t
hand_time(ngx_idempotency_batch_t *batch, ngx_msec_t time)
{
    return batch->now - (ngx_msec_int_t) (batch->at - time);
}


/* nothing is owed to what failed: a claim and its release tell whether it does
   still */

static void
hand_probe(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_item_t   *item;
    ngx_idempotency_batch_t  *batch;

    batch = tier->batch;

    for (batch->n = 0; batch->n < 2; batch->n++) {
        item = &batch->items[batch->n];

        ngx_memzero(item, sizeof(ngx_idempotency_item_t));

        item->instance = tier->shm->sh->tier.instance;
        item->since = batch->since;
        item->fence = tier->shm->sh->fence;
        item->recorded = batch->now;
        item->ends = batch->now + NGX_IDEMPOTENCY_TIER_HANGS;
        item->window = NGX_IDEMPOTENCY_TIER_HANGS;
        item->result = NGX_IDEMPOTENCY_UNAVAILABLE;

        batch->records[batch->n] = NULL;
    }

    batch->items[0].what = NGX_IDEMPOTENCY_ITEM_ASK;
    batch->items[1].what = NGX_IDEMPOTENCY_ITEM_RELEASE;
    batch->items[1].freed = 1;
}


/*
 * A large response is read piece by piece, as long as the record is what it
 * was; if not, its claim alone is told, and the rest with its last change
 */

static void
hand_large(ngx_idempotency_tier_t *tier)
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

        changed = (!ngx_idempotency_owed_current(tier, batch)
                   || rec->told == NGX_IDEMPOTENCY_OUTDATED);

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
