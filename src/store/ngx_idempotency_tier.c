
/*
 * The second tier of a zone in a worker: when it looks after what is owed (see
 * writeback.c), and how it begins and ends.
 *
 * Where many may share what stands behind, a claim lives by its lease, that is
 * renewed as long as its owner lives: by whatever worker comes first, as an
 * owner may be busy.
 */


#include "ngx_idempotency_shm.h"


/* the worker that has the backing tended looks after it so often, in
   milliseconds; the others look whether that one lives */

#define NGX_IDEMPOTENCY_TIER_WATCH      50
#define NGX_IDEMPOTENCY_TIER_LOOK       200
#define NGX_IDEMPOTENCY_TIER_IDLE       1000

/*
 * A worker that quits, in milliseconds.  STAY: it looks at the queue so often.
 * ALL: other workers have so long to notice that they quit, too.  COME: so have
 * the workers of a reload to start.  QUIT: it stays at most so long, without
 * worker_shutdown_timeout.  TERM: it tries so long if it is to end at once, and
 * looks each TURN whether that has succeeded.
 */

#define NGX_IDEMPOTENCY_TIER_STAY       50
#define NGX_IDEMPOTENCY_TIER_ALL        1000
#define NGX_IDEMPOTENCY_TIER_COME       5000
#define NGX_IDEMPOTENCY_TIER_QUIT       30000
#define NGX_IDEMPOTENCY_TIER_TERM       500
#define NGX_IDEMPOTENCY_TIER_TURN       5

/* so often it is looked which leases are to be renewed */

#define NGX_IDEMPOTENCY_TIER_RENEW      200


static void tier_kick_handler(ngx_event_t *ev);
static void tier_retry_handler(ngx_event_t *ev);
static void tier_watch_handler(ngx_event_t *ev);
static ngx_uint_t tier_watches(ngx_idempotency_tier_t *tier);
static ngx_uint_t tier_hangs(ngx_idempotency_tier_t *tier);
static void tier_hung(ngx_idempotency_tier_t *tier);
static void tier_probe(ngx_idempotency_tier_t *tier);
static void tier_tend(ngx_idempotency_tier_t *tier);
static void tier_renew(ngx_idempotency_tier_t *tier);
static ngx_msec_t tier_thirds(ngx_idempotency_record_t *rec, ngx_msec_t now);
static void tier_stay_handler(ngx_event_t *ev);
static ngx_msec_t tier_stays(void);
static void tier_left(ngx_idempotency_tier_t *tier, ngx_uint_t n);
static ngx_uint_t tier_outcomes(ngx_idempotency_tier_t *tier,
    ngx_uint_t *claims);
static void tier_flush_last(ngx_idempotency_tier_t *tier);
static ngx_uint_t tier_flush_now(ngx_idempotency_tier_t *tier);
static void tier_flushed(ngx_idempotency_tier_t *tier);


/* whoever owes something sees to it that somebody takes it over */

void
ngx_idempotency_tier_kick(ngx_idempotency_shm_t *shm)
{
    ngx_idempotency_tier_t  *tier;

    tier = shm->tier;

    if (tier == NULL || shm->sh->tier.first == NULL) {
        return;
    }

    if (tier->quits && !tier->stay.timer_set) {
        ngx_add_timer(&tier->stay, NGX_IDEMPOTENCY_TIER_STAY);
    }

    if (tier->busy == tier->hands) {
        return;
    }

    if (ngx_idempotency_tier_shared(tier)) {

        /* whatever is owed in this round goes along */

        ngx_post_event(&tier->kick, &ngx_posted_events);

    } else if (!tier->retry.timer_set) {
        ngx_idempotency_tier_hand(tier);

    } else if (tier->pauses && shm->sh->tier.asked && !tier->strict) {
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
        tier_tend(tier);

        if (tier->shm->sh->tier.refused) {
            ngx_add_timer(ev, NGX_IDEMPOTENCY_TIER_RETRY);
        }
    }

    ngx_idempotency_tier_hand(tier);
}


static void
tier_watch_handler(ngx_event_t *ev)
{
    ngx_uint_t               watches;
    ngx_idempotency_tier_t  *tier;

    tier = ev->data;

    watches = tier_watches(tier);

    if (ngx_idempotency_tier_shared(tier)) {
        tier_tend(tier);
        tier_renew(tier);

    } else {
        tier_hung(tier);
    }

    if (watches && ngx_idempotency_tier_shared(tier)) {

        if (tier->backing->tend) {
            tier->backing->tend(tier);
        }

        tier_probe(tier);

    } else if (watches) {
        tier->backing->tend(tier);

        if (ngx_current_msec - tier->watched >= NGX_IDEMPOTENCY_TIER_IDLE) {
            tier->watched = ngx_current_msec;
            ngx_idempotency_tier_refused(tier);
        }

        ngx_idempotency_tier_inherit(tier);
        tier_probe(tier);
    }

    ngx_idempotency_tier_kick(tier->shm);

    /* where nobody shares it, it may hang on a lock */

    ngx_add_timer(ev, (watches && !ngx_idempotency_tier_shared(tier))
                      ? NGX_IDEMPOTENCY_TIER_WATCH
                      : NGX_IDEMPOTENCY_TIER_LOOK);
}


/* one worker of the zone does */

static ngx_uint_t
tier_watches(ngx_idempotency_tier_t *tier)
{
    ngx_uint_t                  mine;
    ngx_idempotency_process_t  *self, *watcher;

    if (ngx_idempotency_shm_lock(tier->shm) != NGX_OK) {
        return 0;
    }

    self = ngx_idempotency_process_self();
    watcher = &tier->shm->sh->tier.watcher;

    mine = ngx_idempotency_process_is(watcher, self);

    if (!mine
        && (watcher->pid == 0
            || ngx_current_msec - tier->watched >= NGX_IDEMPOTENCY_TIER_IDLE))
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


/* what it was handed takes too long; a worker that is busy and has not heard
   its answer yet is no hang */

static ngx_uint_t
tier_hangs(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_hander_t  *hander;

    hander = &tier->shm->sh->tier.hander;

    return hander->taken && hander->answered != hander->turn
           && (ngx_msec_int_t) (ngx_current_msec - hander->handed)
              >= NGX_IDEMPOTENCY_TIER_HANGS;
}


/* a hang is a failure: whoever waits for an answer waits no longer */

static void
tier_hung(ngx_idempotency_tier_t *tier)
{
    ngx_uint_t                  hung;
    ngx_idempotency_tier_sh_t  *sh;

    sh = &tier->shm->sh->tier;

    if (sh->failing || !tier_hangs(tier)
        || ngx_idempotency_shm_lock(tier->shm) != NGX_OK)
    {
        return;
    }

    hung = (!sh->failing && tier_hangs(tier));

    if (hung) {
        sh->failing = 1;
        sh->failed = ngx_current_msec;
        sh->partly = 0;
    }

    ngx_idempotency_shm_unlock(tier->shm);

    if (hung) {
        ngx_idempotency_tier_say(tier, "an operation takes longer than a "
                                 "second");
        ngx_idempotency_workers_wake_all();
    }
}


/* what failed, and is owed nothing, is asked whether it does still: if it might
   answer, or an operator has just agreed to it */

static void
tier_probe(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_tier_sh_t  *sh;

    sh = &tier->shm->sh->tier;

    if (!sh->failing || tier->busy == tier->hands
        || (ngx_idempotency_tier_shared(tier) && sh->first)
        || (tier->backing->up && !tier->backing->up(tier) && !sh->agreed)
        || ngx_current_msec - sh->probed < NGX_IDEMPOTENCY_TIER_RETRY)
    {
        return;
    }

    sh->probed = ngx_current_msec;

    ngx_idempotency_tier_check(tier);
}


/* what stands behind is asked, though nothing is owed */

void
ngx_idempotency_tier_check(ngx_idempotency_tier_t *tier)
{
    tier->probes = 1;
    ngx_idempotency_tier_hand(tier);
    tier->probes = 0;
}


/* where what stands behind tells itself that it does not answer, that may be
   so of a part of it */

ngx_uint_t
ngx_idempotency_tier_down(ngx_idempotency_shm_t *shm)
{
    ngx_idempotency_tier_t  *tier;

    tier = shm->tier;

    if (tier->backing->up && !tier->backing->up(tier)) {
        return 1;
    }

    return !ngx_idempotency_tier_shared(tier) && shm->sh->tier.failing;
}


/* what is owed by workers that have gone, or was told in vain, is owed to
   all */

static void
tier_tend(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_tier_inherit(tier);

    if (tier->shm->sh->tier.said && !tier->shm->sh->tier.failing) {
        ngx_idempotency_tier_say(tier, NULL);
    }

    if (tier->backing->up(tier)
        && ngx_current_msec - tier->shm->sh->tier.failed
           >= NGX_IDEMPOTENCY_TIER_RETRY)
    {
        ngx_idempotency_tier_refused(tier);
    }
}


/*
 * A lease is renewed whenever one third of it more has gone by since the claim
 * was made.  If its owner died, the claim is in doubt, and that is told.
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
tier_thirds(ngx_idempotency_record_t *rec, ngx_msec_t now)
{
    ngx_msec_int_t  since;

    since = (ngx_msec_int_t) (now - rec->recorded);

    return ngx_max(since, 0) / ngx_max(rec->lease / 3, 1);
}


/*
 * Others have not heard of the doubt: the backing knows nothing of the claim,
 * or knows it as one of an instance that lives.  Where it lives by its lease
 * instead, that may have ended.
 */

ngx_uint_t
ngx_idempotency_tier_untouched(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec)
{
    if (shm->tier == NULL || rec->local || !rec->heard) {
        return 1;
    }

    return !ngx_idempotency_tier_shared(shm->tier) && !rec->again
           && (rec->told == NGX_IDEMPOTENCY_UNTOLD
               || rec->told == NGX_IDEMPOTENCY_REFUSED);
}


/*
 * The number of a claim rises beyond all that any zone has given before.  Those
 * that share a file have one clock, and a claim may go from one to the other
 * within a millisecond of it.  The time by which a file counts its windows is
 * no such clock: each nginx makes its own of it, a millisecond apart.
 */

uint64_t
ngx_idempotency_tier_fence(ngx_idempotency_shm_t *shm)
{
    uint64_t  now;

    if (shm->tier) {
        now = ngx_idempotency_tier_shared(shm->tier)
              ? (uint64_t) shm->tier->backing->now(shm->tier) * 1000
              : ngx_idempotency_tier_micros();

        shm->sh->fence = ngx_max(shm->sh->fence, now);
    }

    return ++shm->sh->fence;
}


/* of this machine's clock */

uint64_t
ngx_idempotency_tier_micros(void)
{
    struct timeval  tv;

    ngx_gettimeofday(&tv);

    return (uint64_t) tv.tv_sec * 1000000 + tv.tv_usec;
}


void
ngx_idempotency_tier_init(ngx_idempotency_shm_t *shm)
{
    ngx_idempotency_tier_t     *tier;
    ngx_idempotency_tier_sh_t  *sh;

    tier = shm->tier;
    sh = &shm->sh->tier;

    sh->instance = tier->instance;
    sh->since = shm->sh->fence;
    sh->mark = tier->mark;
    sh->base = tier->base;
    sh->other = tier->other;
    sh->failing = (tier->instance == 0);
    sh->generation = shm->generation;
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

    tier->watch.handler = tier_watch_handler;
    tier->watch.data = tier;
    tier->watch.log = cycle->log;
    tier->watch.cancelable = 1;

    ngx_add_timer(&tier->watch, 1);

    tier->stay.handler = tier_stay_handler;
    tier->stay.data = tier;
    tier->stay.log = cycle->log;

    ngx_idempotency_remote_init_process(tier, cycle);

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        return NGX_OK;
    }

    ngx_idempotency_workers_leave(&shm->sh->tier.leaving);

    if (tier->hands) {
        ngx_idempotency_workers_enter(&shm->sh->tier.serving);
        shm->sh->tier.left = 0;

    } else {
        ngx_idempotency_workers_leave(&shm->sh->tier.serving);
    }

    ngx_idempotency_shm_unlock(shm);

    return NGX_OK;
}


/* the worker finishes its requests; what the backing has not is for others to
   tell, if there are any */

void
ngx_idempotency_tier_quit(ngx_idempotency_shm_t *shm)
{
    ngx_idempotency_tier_t  *tier;

    tier = shm->tier;

    if (tier->batches == NULL || tier->hands == 0 || tier->quits
        || ngx_idempotency_shm_lock(shm) != NGX_OK)
    {
        return;
    }

    ngx_idempotency_workers_leave(&shm->sh->tier.serving);
    ngx_idempotency_workers_enter(&shm->sh->tier.leaving);

    ngx_idempotency_shm_unlock(shm);

    tier->quits = 1;
    tier->quit = ngx_current_msec;

    tier_stay_handler(&tier->stay);
}


/*
 * One of those that were told to quit stays, if none serves.  While its own
 * configuration is the latest, others that serve have not heard of the end yet;
 * else those of a later one may not be there yet.
 */

static void
tier_stay_handler(ngx_event_t *ev)
{
    ngx_msec_t                  age;
    ngx_uint_t                  n, claims, serve, said, stay, latest;
    ngx_idempotency_tier_t     *tier;
    ngx_idempotency_tier_sh_t  *sh;

    tier = ev->data;
    sh = &tier->shm->sh->tier;

    n = tier_outcomes(tier, &claims);

    if (n + claims == 0) {
        return;
    }

    age = ngx_current_msec - tier->quit;
    latest = (sh->generation == tier->shm->generation);
    serve = ngx_idempotency_workers_others(&sh->serving, 0);

    if (serve && (!latest || age >= NGX_IDEMPOTENCY_TIER_ALL)) {
        return;
    }

    said = sh->failing || sh->refused || ngx_idempotency_tier_down(tier->shm)
           || age >= NGX_IDEMPOTENCY_TIER_ALL;

    if (n && !serve && said && (latest || age >= NGX_IDEMPOTENCY_TIER_COME)) {
        tier_left(tier, n);
    }

    stay = (age < tier_stays() && !sh->other && !sh->lost
            && !ngx_idempotency_workers_others(&sh->leaving, 1));

    if (!stay) {
        return;
    }

    ngx_add_timer(ev, NGX_IDEMPOTENCY_TIER_STAY);

    ngx_idempotency_tier_inherit(tier);

    if (ngx_current_msec - sh->failed >= NGX_IDEMPOTENCY_TIER_RETRY) {
        ngx_idempotency_tier_refused(tier);
    }

    ngx_idempotency_tier_kick(tier->shm);
}


static ngx_msec_t
tier_stays(void)
{
    ngx_core_conf_t  *ccf;

    ccf = (ngx_core_conf_t *) ngx_get_conf(ngx_cycle->conf_ctx,
                                           ngx_core_module);

    return ccf->shutdown_timeout ? ccf->shutdown_timeout
                                 : NGX_IDEMPOTENCY_TIER_QUIT;
}


/* said once */

static void
tier_left(ngx_idempotency_tier_t *tier, ngx_uint_t n)
{
    if (!ngx_atomic_cmp_set(&tier->shm->sh->tier.left, 0, n)) {
        return;
    }

    ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                  "idempotency: zone \"%V\": %ui outcomes are not in the %V "
                  "yet: a worker process stays for up to %M ms to deliver them",
                  &tier->shm->store->name, n, &tier->name, tier_stays());
}


static ngx_uint_t
tier_outcomes(ngx_idempotency_tier_t *tier, ngx_uint_t *claims)
{
    ngx_uint_t  n;

    *claims = 0;

    if (ngx_idempotency_shm_lock(tier->shm) != NGX_OK) {
        return 0;
    }

    n = ngx_idempotency_tier_outcomes(tier->shm, claims);

    ngx_idempotency_shm_unlock(tier->shm);

    return n;
}


/* while it has its slot; what it has on its way is for who is left, if somebody
   is */

void
ngx_idempotency_tier_leave(ngx_idempotency_shm_t *shm)
{
    ngx_idempotency_tier_t     *tier;
    ngx_idempotency_tier_sh_t  *sh;

    tier = shm->tier;
    sh = &shm->sh->tier;

    if (tier->batches == NULL || tier->hands == 0
        || ngx_idempotency_shm_lock(shm) != NGX_OK)
    {
        return;
    }

    ngx_idempotency_workers_leave(&sh->serving);
    ngx_idempotency_workers_leave(&sh->leaving);

    tier->last = !ngx_idempotency_workers_others(&sh->serving, 0)
                 && !ngx_idempotency_workers_others(&sh->leaving, 0);

    if (!tier->last && ngx_idempotency_tier_shared(tier)) {
        ngx_idempotency_tier_give_up(shm);
    }

    ngx_idempotency_shm_unlock(shm);
}


/* nothing answers by itself from now on */

void
ngx_idempotency_tier_finish(ngx_idempotency_shm_t *shm)
{
    if (shm->tier->batches) {
        shm->tier->backing->finish(shm->tier);
    }
}


/* the last one of a zone leaves nothing untold, if it can help it: each outcome
   is tried once */

void
ngx_idempotency_tier_flush(ngx_idempotency_shm_t *shm)
{
    ngx_idempotency_tier_t  *tier;

    tier = shm->tier;

    if (tier->batches == NULL) {
        return;
    }

    ngx_idempotency_tier_refused(tier);

    if (tier->last) {
        tier_flush_last(tier);
        tier_flushed(tier);

    } else if (!ngx_idempotency_tier_shared(tier)) {
        (void) tier_flush_now(tier);
    }
}


/* all zones of the process have so long together */

static void
tier_flush_last(ngx_idempotency_tier_t *tier)
{
    ngx_uint_t          claims, first;
    ngx_msec_int_t      left;

    static ngx_msec_t   end;

    if (end == 0) {
        end = ngx_current_msec + NGX_IDEMPOTENCY_TIER_TERM;
    }

    for (first = 1; /* void */ ; first = 0) {

        /* what others had taken who have just gone */

        ngx_idempotency_tier_inherit(tier);

        if (ngx_idempotency_tier_shared(tier)) {
            ngx_idempotency_tier_hand(tier);

        } else if (!tier_flush_now(tier)) {
            return;
        }

        left = (ngx_msec_int_t) (end - ngx_current_msec);

        if (left <= 0 || tier_outcomes(tier, &claims) + claims == 0) {
            return;
        }

        if (ngx_idempotency_tier_shared(tier)) {
            tier->backing->flush(tier, left, first);

        } else {
            ngx_msleep(NGX_IDEMPOTENCY_TIER_TURN);
            ngx_time_update();
        }
    }
}


/* false: it fails */

static ngx_uint_t
tier_flush_now(ngx_idempotency_tier_t *tier)
{
    if (tier->stuck || (tier->busy && !ngx_idempotency_tier_heard(tier))) {
        return 0;
    }

    ngx_idempotency_tier_hand(tier);

    return !tier->stuck && !tier->shm->sh->tier.failing
           && tier->shm->sh->tier.refused == NULL;
}


void
ngx_idempotency_tier_exit_process(ngx_idempotency_shm_t *shm)
{
    ngx_idempotency_tier_t  *tier;

    tier = shm->tier;

    if (tier->batches == NULL) {
        return;
    }

    tier->backing->exit_process(tier);

    if (!tier->stuck) {
        ngx_free(tier->batches);
    }

    tier->batches = NULL;
}


/* as the log was told that there are some, or has not heard of it */

static void
tier_flushed(ngx_idempotency_tier_t *tier)
{
    ngx_str_t   *zone;
    ngx_uint_t   n, left, claims;

    zone = &tier->shm->store->name;
    left = tier->shm->sh->tier.left;
    n = tier_outcomes(tier, &claims);

    if (left > n) {
        ngx_log_error(NGX_LOG_NOTICE, ngx_cycle->log, 0,
                      "idempotency: zone \"%V\": %ui outcomes were delivered "
                      "to the %V", zone, left - n, &tier->name);
    }

    if (n) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                      "idempotency: zone \"%V\": %ui outcomes were not "
                      "delivered to the %V: they are lost, and repeats of "
                      "these requests may be executed again",
                      zone, n, &tier->name);
    }
}


/* who asks next begins with it */

ngx_int_t
ngx_idempotency_store_agree(ngx_idempotency_store_t *store)
{
    ngx_idempotency_shm_t  *shm;

    shm = store->data;

    return (shm->tier && shm->tier->backing->agree)
           ? shm->tier->backing->agree(shm->tier) : NGX_DECLINED;
}
