
/*
 * Whether a zone may trust itself: it is alone with what stands behind it, and
 * its filter has all that is there.  Then a miss that the filter denies is an
 * absence, and nobody is asked.  One worker of a zone looks after that.
 *
 * Where many may share what stands behind, nobody knows who is there, and none
 * is trusted.  There a claim lives by its lease, that is renewed as long as its
 * owner lives: by whatever worker comes first, as an owner may be busy.
 */


#include "ngx_idempotency_shm.h"


/* so often, in milliseconds; the others look whether it lives */

#define NGX_IDEMPOTENCY_TRUST_WATCH     50
#define NGX_IDEMPOTENCY_TRUST_IDLE      1000

/* so often it is looked which leases are to be renewed */

#define NGX_IDEMPOTENCY_TRUST_RENEW     200

/* the tokens that are told to the filter while the lock is held once */

#define NGX_IDEMPOTENCY_TRUST_STEP      512


/* a filter is filled once all is told that was owed when that began */

enum {
    trust_fill_none = 0,
    trust_fill_waits,
    trust_fill_reads
};


static void trust_watch_handler(ngx_event_t *ev);
static ngx_uint_t trust_watches(ngx_idempotency_tier_t *tier);
static void trust_watch(ngx_idempotency_tier_t *tier);
static void trust_renew(ngx_idempotency_tier_t *tier);
static ngx_msec_t trust_thirds(ngx_idempotency_record_t *rec, ngx_msec_t now);
static ngx_uint_t trust_end(ngx_idempotency_tier_t *tier);
static ngx_uint_t trust_told(ngx_idempotency_tier_sh_t *sh);
static void trust_fill(ngx_idempotency_tier_t *tier);
static void trust_filled(ngx_idempotency_tier_t *tier);


void
ngx_idempotency_trust_init_process(ngx_idempotency_tier_t *tier,
    ngx_cycle_t *cycle)
{
    tier->watch.handler = trust_watch_handler;
    tier->watch.data = tier;
    tier->watch.log = cycle->log;
    tier->watch.cancelable = 1;

    ngx_add_timer(&tier->watch, 1);
}


static void
trust_watch_handler(ngx_event_t *ev)
{
    ngx_uint_t               watches;
    ngx_idempotency_tier_t  *tier;

    tier = ev->data;

    watches = trust_watches(tier);

    if (ngx_idempotency_tier_shared(tier)) {
        ngx_idempotency_tier_tend(tier);
        trust_renew(tier);

    } else if (watches) {
        trust_watch(tier);
    }

    if (watches) {
        ngx_idempotency_tier_inherit(tier);
    }

    ngx_idempotency_tier_kick(tier->shm);

    ngx_add_timer(ev, watches ? NGX_IDEMPOTENCY_TRUST_WATCH
                              : NGX_IDEMPOTENCY_TRUST_IDLE);
}


/* one worker of the zone does */

static ngx_uint_t
trust_watches(ngx_idempotency_tier_t *tier)
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

    if (!mine
        && (watcher->pid == 0 || ngx_idempotency_process_gone(watcher)))
    {
        /* whatever it was about begins anew */

        *watcher = *self;
        tier->filling = 0;
        mine = 1;
    }

    ngx_idempotency_shm_unlock(tier->shm);

    return mine;
}


/*
 * A zone that is alone, and whose filter has all that the file has, need not
 * ask.  As soon as somebody else is there it does; and lets the other one in
 * when the file has all that was claimed until then.
 */

static void
trust_watch(ngx_idempotency_tier_t *tier)
{
    ngx_uint_t                  others;
    ngx_idempotency_shm_t      *shm;
    ngx_idempotency_tier_sh_t  *sh;

    shm = tier->shm;
    sh = &shm->sh->tier;

    tier->backing->tend(tier);

    others = tier->backing->others(tier);

    if (ngx_current_msec - tier->watched >= NGX_IDEMPOTENCY_TRUST_IDLE) {
        tier->watched = ngx_current_msec;
        ngx_idempotency_tier_refused(tier);
    }

    if (others) {
        tier->filling = 0;

        if (trust_end(tier)) {
            ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                          "idempotency: the %V of zone \"%V\" is shared with "
                          "another nginx: each claim asks it",
                          &tier->name, &shm->store->name);
        }

        ngx_idempotency_trust_give(tier);

        return;
    }

    if (tier->filling) {

        if (tier->filling == trust_fill_waits && trust_told(sh)) {
            tier->filling = trust_fill_reads;

            if (tier->backing->tokens(tier, NULL) != NGX_OK) {
                tier->filling = 0;
            }
        }

        return;
    }

    if (!sh->trusted) {

        /* in vain, it gives back what it took, and others may claim */

        if (trust_told(sh) && tier->backing->alone(tier) == NGX_OK) {
            trust_fill(tier);
        }

    } else if (ngx_idempotency_filter_crowded(&sh->filter)) {
        trust_fill(tier);
    }
}


/*
 * A lease is renewed whenever one third of it more has gone by since the claim
 * was made.  If its owner died, the claim is in doubt, and that is told.
 */

static void
trust_renew(ngx_idempotency_tier_t *tier)
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

    if ((ngx_msec_int_t) (now - sh->renewed) < NGX_IDEMPOTENCY_TRUST_RENEW
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

        if (rec->outcome != NGX_IDEMPOTENCY_PENDING
            || trust_thirds(rec, now) <= trust_thirds(rec, then))
        {
            continue;
        }

        if (ngx_idempotency_record_alive(rec, now)) {
            ngx_idempotency_tier_owe(shm, rec);

        } else {
            died = 1;
        }
    }

    ngx_idempotency_shm_unlock(shm);

    if (died) {
        ngx_idempotency_shm_sweep(shm, now);
    }
}


/* how many of them have gone by; workers' clocks may differ by a moment */

static ngx_msec_t
trust_thirds(ngx_idempotency_record_t *rec, ngx_msec_t now)
{
    ngx_msec_int_t  since;

    since = (ngx_msec_int_t) (now - rec->recorded);

    return ngx_max(since, 0) / ngx_max(rec->lease / 3, 1);
}


static ngx_uint_t
trust_end(ngx_idempotency_tier_t *tier)
{
    ngx_uint_t                  trusted;
    ngx_idempotency_tier_sh_t  *sh;

    if (!tier->shm->sh->tier.trusted) {
        return 0;
    }

    if (ngx_idempotency_shm_lock(tier->shm) != NGX_OK) {
        return 0;
    }

    sh = &tier->shm->sh->tier;

    trusted = sh->trusted;
    sh->trusted = 0;
    ngx_idempotency_owed_until(sh);

    ngx_idempotency_shm_unlock(tier->shm);

    return trusted;
}


/* all that was owed then, and what there was no room for */

static ngx_uint_t
trust_told(ngx_idempotency_tier_sh_t *sh)
{
    return sh->until == NULL && sh->refused == NULL;
}


/* others may claim once all is told that was claimed without a question */

void
ngx_idempotency_trust_give(ngx_idempotency_tier_t *tier)
{
    ngx_uint_t                  give;
    ngx_idempotency_tier_sh_t  *sh;

    if (ngx_idempotency_shm_lock(tier->shm) != NGX_OK) {
        return;
    }

    sh = &tier->shm->sh->tier;
    give = (!sh->trusted && trust_told(sh));

    ngx_idempotency_shm_unlock(tier->shm);

    if (give) {
        tier->backing->give(tier);
    }
}


/* what others have not heard of, or nobody else was there to take over; a
   worker's clock may be late, but not ahead */

ngx_uint_t
ngx_idempotency_trust_untouched(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec)
{
    ngx_idempotency_tier_sh_t  *sh;

    if (shm->tier == NULL || (rec->owes & NGX_IDEMPOTENCY_OWES_NEVER)
        || (rec->owes & NGX_IDEMPOTENCY_OWES_HEARD) == 0)
    {
        return 1;
    }

    sh = &shm->sh->tier;

    return sh->trusted
           && (ngx_msec_int_t) (rec->recorded - sh->alone) >= 0;
}


/* a master may stay behind its last worker, and would be alone for ever */

ngx_uint_t
ngx_idempotency_trust_exit_process(ngx_idempotency_tier_t *tier)
{
    if (ngx_idempotency_workers_others()) {
        return 0;
    }

    (void) trust_end(tier);

    return 1;
}


/* from now on both filters hear of what is new; what was claimed before, and
   is not told yet, will not be among what is read */

static void
trust_fill(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_shm_t      *shm;
    ngx_idempotency_tier_sh_t  *sh;

    shm = tier->shm;

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        return;
    }

    sh = &shm->sh->tier;
    sh->filter.filling = 0;

    ngx_idempotency_shm_unlock(shm);

    ngx_idempotency_filter_clear(&sh->filter);

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        return;
    }

    ngx_idempotency_filter_fill(&sh->filter);
    ngx_idempotency_owed_until(sh);

    ngx_idempotency_shm_unlock(shm);

    tier->filling = trust_fill_waits;
}


/* the tokens that were asked for; none: these were all of them */

void
ngx_idempotency_tier_told(ngx_idempotency_tier_t *tier,
    u_char (*tokens)[NGX_IDEMPOTENCY_DIGEST_LEN], ngx_int_t n)
{
    ngx_int_t               i, last;
    ngx_idempotency_shm_t  *shm;

    shm = tier->shm;

    if (tier->filling != trust_fill_reads) {
        return;
    }

    if (n == 0) {
        trust_filled(tier);
        return;
    }

    for (i = 0; i < n; i = last) {

        last = ngx_min(n, i + NGX_IDEMPOTENCY_TRUST_STEP);

        if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
            break;
        }

        while (i < last) {
            ngx_idempotency_filter_read(&shm->sh->tier.filter, tokens[i++]);
        }

        ngx_idempotency_shm_unlock(shm);
    }

    if (n == NGX_ERROR || i != n
        || tier->backing->tokens(tier, tokens[n - 1]) != NGX_OK)
    {
        tier->filling = 0;
    }
}


static void
trust_filled(ngx_idempotency_tier_t *tier)
{
    ngx_uint_t                  trusted;
    ngx_idempotency_tier_sh_t  *sh;

    tier->filling = 0;

    /* is it alone yet? */

    if (!tier->shm->sh->tier.trusted && tier->backing->alone(tier) != NGX_OK) {
        return;
    }

    ngx_time_update();

    if (ngx_idempotency_shm_lock(tier->shm) != NGX_OK) {
        return;
    }

    sh = &tier->shm->sh->tier;

    ngx_idempotency_filter_use(&sh->filter);

    trusted = sh->trusted;
    sh->trusted = 1;

    if (!trusted) {
        sh->alone = ngx_current_msec;
    }

    ngx_idempotency_shm_unlock(tier->shm);

    if (!trusted) {
        ngx_log_error(NGX_LOG_INFO, ngx_cycle->log, 0,
                      "idempotency: the %V of zone \"%V\" is loaded",
                      &tier->name, &tier->shm->store->name);
    }
}
