
/*
 * The second tier of a zone in a worker: when it looks after what is owed (see
 * owed.c, hand.c and heard.c), and how it begins and ends.
 */


#include "ngx_idempotency_shm.h"


/* the part of a zone that tells which tokens there may be */

#define NGX_IDEMPOTENCY_TIER_FILTER     4


static void tier_kick_handler(ngx_event_t *ev);
static void tier_retry_handler(ngx_event_t *ev);


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
        ngx_idempotency_tier_hand(tier);

    } else if (tier->pauses && shm->sh->tier.asked) {
        tier->pauses = 0;
        ngx_del_timer(&tier->retry);

        ngx_idempotency_tier_hand(tier);
    }
}


static void
tier_kick_handler(ngx_event_t *ev)
{
    ngx_idempotency_tier_hand(ev->data);
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

    ngx_idempotency_tier_hand(tier);
}


/* what is owed by workers that have gone, or was told in vain, is owed to
   all */

void
ngx_idempotency_tier_tend(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_tier_inherit(tier);

    if (tier->backing->up(tier)
        && ngx_current_msec - tier->shm->sh->tier.failed
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

    ngx_idempotency_tier_say(tier, error);
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

        if (!tier->busy || ngx_idempotency_tier_heard(tier)) {
            ngx_idempotency_tier_hand(tier);
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
