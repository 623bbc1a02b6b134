
/*
 * What the backing answered to a batch: what becomes of each record, who is
 * woken in which worker, and what the log is told.
 */


#include "ngx_idempotency_shm.h"


/* what had no room for all is well again after this time */

#define NGX_IDEMPOTENCY_TIER_WELL       1000


static void heard_measure(ngx_idempotency_counters_t *counters,
    ngx_idempotency_batch_t *batch);
static void heard_all(ngx_idempotency_tier_t *tier,
    ngx_idempotency_workers_t *wake);
static void heard_one(ngx_idempotency_tier_t *tier, ngx_uint_t i,
    ngx_idempotency_workers_t *wake);
static void heard_outcome(ngx_idempotency_tier_t *tier, ngx_uint_t failed);
static ngx_uint_t heard_well(ngx_idempotency_tier_t *tier);
static void heard_sum(ngx_idempotency_batch_t *batch, ngx_uint_t *stale,
    ngx_uint_t *full, ngx_uint_t *damaged, ngx_uint_t *lost);
static void heard_seals(ngx_idempotency_tier_t *tier);


ngx_uint_t
ngx_idempotency_tier_heard(ngx_idempotency_tier_t *tier)
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

    heard_measure(shm->store->counters, batch);

    rc = ngx_idempotency_shm_lock(shm);

    if (rc == NGX_OK) {

        if (!ngx_idempotency_owed_current(tier, batch)) {

            /* another worker tells the same */

            rc = NGX_DECLINED;

        } else {

            batch->hander->taken = NULL;

            heard_all(tier, wake);

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
        return rc == NGX_DECLINED;
    }

    heard_outcome(tier, failed);
    heard_seals(tier);

    return batch->rc == NGX_OK || ngx_idempotency_tier_shared(tier);
}


static void
heard_measure(ngx_idempotency_counters_t *counters,
    ngx_idempotency_batch_t *batch)
{
    if (batch->rc != NGX_OK) {
        ngx_idempotency_stats_add(counters->errors[batch->why], 1);
        return;
    }

    ngx_idempotency_stats_time(&counters->latency,
                               ngx_current_msec - batch->at);
}


/* backwards, as what was in vain goes back to the front */

static void
heard_all(ngx_idempotency_tier_t *tier, ngx_idempotency_workers_t *wake)
{
    ngx_uint_t  i;

    for (i = tier->batch->n; i; i--) {
        heard_one(tier, i - 1, &wake[i - 1]);
    }
}


static void
heard_one(ngx_idempotency_tier_t *tier, ngx_uint_t i,
    ngx_idempotency_workers_t *wake)
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
        item->again = 1;
    }

    tier->batch->vain += item->again;

    if (rec == NULL) {
        return;
    }

    changed = (rec->told == NGX_IDEMPOTENCY_OUTDATED);

    rec->told = NGX_IDEMPOTENCY_TOLD;
    rec->again = 0;
    rec->heard |= !item->unheard;
    rec->known |= (item->result == NGX_IDEMPOTENCY_CLAIMED
                   || (item->result == NGX_IDEMPOTENCY_OK
                       && item->what == NGX_IDEMPOTENCY_ITEM_PUT));

    /* a question that was in vain is answered; what is owed stays so, until
       its last change is told */

    if (rec->state == NGX_IDEMPOTENCY_ASKING
        || rec->state == NGX_IDEMPOTENCY_ABANDONED
        || rec->state == NGX_IDEMPOTENCY_ELSEWHERE)
    {
        sh->told++;

        if (ngx_idempotency_ask_answered(tier, rec, item, wake) && changed) {
            ngx_idempotency_owed_list(shm, rec);
        }

        return;
    }

    sh->told += (!item->again && !item->full && !changed);

    if (rec->state == NGX_IDEMPOTENCY_FAILED) {

        /* it is given back, and those who waited may read on */

        rec->heard = item->again;
    }

    /* the requests that hold back until this is told, be it in vain */

    if (rec->holding == NGX_IDEMPOTENCY_HOLD_ALL) {
        ngx_idempotency_workers_all(wake);

    } else if (rec->holding) {
        wake->bits[(rec->holding - 1) / 64] |=
                                    (uint64_t) 1 << ((rec->holding - 1) % 64);
    }

    rec->holding = 0;

    if (item->again && ngx_idempotency_tier_shared(tier)) {
        rec->again = 1;
        ngx_idempotency_owed_aside(shm, rec);

    } else if (item->again) {
        ngx_idempotency_owed_back(shm, rec);

    } else if (changed) {
        ngx_idempotency_owed_first(shm, rec);

    } else if (rec->state == NGX_IDEMPOTENCY_GONE) {
        ngx_slab_free_locked(shm->shpool, rec);

    } else if (item->full) {
        ngx_idempotency_owed_aside(shm, rec);
    }
}


/* said once, and once more when it is over */

static void
heard_outcome(ngx_idempotency_tier_t *tier, ngx_uint_t failed)
{
    ngx_uint_t                  stale, full, damaged, lost;
    ngx_idempotency_shm_t      *shm;
    ngx_idempotency_batch_t    *batch;
    ngx_idempotency_tier_sh_t  *sh;

    shm = tier->shm;
    sh = &shm->sh->tier;
    batch = tier->batch;

    if (failed) {
        ngx_idempotency_tier_say(tier, batch->error);
    }

    if (batch->rc != NGX_OK || batch->vain) {

        if (!tier->retry.timer_set) {
            ngx_add_timer(&tier->retry, NGX_IDEMPOTENCY_TIER_RETRY);
        }

    } else if (sh->failing && heard_well(tier)) {
        sh->failing = 0;
        ngx_idempotency_tier_say(tier, NULL);
    }

    if (batch->rc != NGX_OK) {
        return;
    }

    heard_sum(batch, &stale, &full, &damaged, &lost);

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
        ngx_idempotency_tier_say(tier, batch->error);

    } else if (!full && sh->full && sh->refused == NULL) {
        sh->full = 0;
        ngx_idempotency_tier_say(tier, NULL);
    }
}


/* what has no room for one may answer another: it is well once it has had room
   for some time; and all is told that was told in vain, so that it has no claim
   any more that nobody owns */

static ngx_uint_t
heard_well(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_tier_sh_t  *sh;

    sh = &tier->shm->sh->tier;

    if (ngx_idempotency_owed_again(tier->shm)) {
        return 0;
    }

    return !sh->partly
           || ngx_current_msec - sh->failed >= NGX_IDEMPOTENCY_TIER_WELL;
}


static void
heard_sum(ngx_idempotency_batch_t *batch, ngx_uint_t *stale, ngx_uint_t *full,
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


void
ngx_idempotency_tier_say(ngx_idempotency_tier_t *tier, const char *why)
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
heard_seals(ngx_idempotency_tier_t *tier)
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

    if (n[NGX_IDEMPOTENCY_SEAL_FORGED]) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                      "idempotency: zone \"%V\": a record in the %V is not as "
                      "it was written, somebody may have changed it; its "
                      "token is refused", zone, &tier->name);
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
