
/*
 * The life of a zone: made empty at start, kept over reloads, and refused to
 * all after a process died in the middle of a change.  A timer frees expired
 * records.  And the figures of a zone.
 */


#include "ngx_idempotency_shm.h"


/* the timer that frees expired records comes again after so many milliseconds:
   while there are more, while there were some, and else */

#define NGX_IDEMPOTENCY_EXPIRE_MORE  1
#define NGX_IDEMPOTENCY_EXPIRE_SOME  20
#define NGX_IDEMPOTENCY_EXPIRE_IDLE  1000


/* one timer for all zones of this worker */

static ngx_event_t       shm_expire_event;
static ngx_connection_t  shm_expire_dumb;


/* before the figures are taken, expired records are freed, so many while the
   lock is held once, and so many times; those left then still count */

#define NGX_IDEMPOTENCY_FIGURES_FREE   64
#define NGX_IDEMPOTENCY_FIGURES_TIMES  16


static ngx_int_t shm_zone_create(ngx_idempotency_shm_t *shm, uint64_t fence);
static ngx_int_t shm_zone_init_records(ngx_idempotency_shm_sh_t *sh,
    ngx_slab_pool_t *shpool);
static ngx_uint_t shm_zone_differs(ngx_idempotency_shm_t *shm,
    ngx_idempotency_shm_t *old, ngx_log_t *log);
static ngx_shm_zone_t *shm_zone_named(volatile ngx_cycle_t *cycle,
    ngx_str_t *name);
static ngx_int_t shm_zone_keep(ngx_conf_t *cf, ngx_shm_zone_t *zone);
static ngx_uint_t shm_zone_used(ngx_idempotency_shm_t *shm);
static void shm_zone_recreate(ngx_idempotency_shm_t *shm, ngx_log_t *log);
static void shm_zone_quit(void);
static void shm_expire_handler(ngx_event_t *ev);
static ngx_shm_zone_t *shm_zone_next(volatile ngx_cycle_t *cycle,
    ngx_shm_zone_t *zone);
static void figures_locked(ngx_idempotency_shm_t *shm, ngx_msec_t now,
    ngx_idempotency_figures_t *figures);
static void figures_record(ngx_idempotency_record_t *rec, ngx_msec_t now,
    ngx_idempotency_figures_t *figures);


ngx_int_t
ngx_idempotency_shm_zone_add(ngx_conf_t *cf, ngx_idempotency_store_t *store,
    size_t size, ngx_uint_t evict)
{
    ngx_shm_zone_t         *shm_zone;
    ngx_idempotency_shm_t  *shm;

    if (store->engine) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "zone \"%V\" is already defined", &store->name);
        return NGX_ERROR;
    }

    shm_zone = ngx_shared_memory_add(cf, &store->name, size,
                                     (void *) &ngx_idempotency_shm_engine);
    if (shm_zone == NULL) {
        return NGX_ERROR;
    }

    shm = ngx_pcalloc(cf->pool, sizeof(ngx_idempotency_shm_t));
    if (shm == NULL) {
        return NGX_ERROR;
    }

    /* a zone names workers: their table lives as long */

    if (ngx_idempotency_workers_add_zone(cf) != NGX_OK) {
        return NGX_ERROR;
    }

    shm->store = store;
    shm->evict = evict;

    shm_zone->init = ngx_idempotency_shm_init;
    shm_zone->data = shm;

    store->engine = &ngx_idempotency_engine;
    store->data = shm;

    return NGX_OK;
}


ngx_int_t
ngx_idempotency_shm_init(ngx_shm_zone_t *shm_zone, void *data)
{
    ngx_idempotency_shm_t  *old = data;

    ngx_shm_zone_t         *running;
    ngx_idempotency_shm_t  *shm;

    shm = shm_zone->data;

    if (old) {

        if (shm_zone_differs(shm, old, shm_zone->shm.log)
            || (shm->tier
                && shm->tier->backing->init(shm->tier, old->tier,
                                            shm_zone->shm.log)
                   != NGX_OK))
        {
            return NGX_ERROR;
        }

        shm->sh = old->sh;
        shm->shpool = old->shpool;
        shm->generation = old->generation + 1;
        shm->store->counters = &shm->sh->stats.counters;

        if (!shm->unnamed) {
            shm->sh->tier.generation = shm->generation;
        }

        return NGX_OK;
    }

    /*
     * A zone that changes its size on reload would start empty while old
     * workers still execute: the same token could then be executed in both.
     * ngx_cycle is the running one until the new one is complete.
     */

    running = shm_zone_named(ngx_cycle, &shm_zone->shm.name);

    if (running && shm_zone_used(running->data)) {
        ngx_log_error(NGX_LOG_EMERG, shm_zone->shm.log, 0,
                      "idempotency_zone \"%V\" uses the size %uz "
                      "while previously it used the size %uz; "
                      "only a restart can change it", &shm_zone->shm.name,
                      shm_zone->shm.size, running->shm.size);
        return NGX_ERROR;
    }

    shm->shpool = (ngx_slab_pool_t *) shm_zone->shm.addr;

    if (shm_zone->shm.exists) {
        shm->sh = shm->shpool->data;
        shm->store->counters = &shm->sh->stats.counters;

        return NGX_OK;
    }

    if (shm->tier
        && shm->tier->backing->init(shm->tier, NULL, shm_zone->shm.log)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    /* the memory forgets at a restart, but fences still rise */

    return shm_zone_create(shm, shm->tier ? shm->tier->fence
                                          : ngx_idempotency_record_micros());
}


/*
 * What a reload can't change: with another key no request would find the token
 * that it is bound to; and a zone in use keeps its backing.
 */

static ngx_uint_t
shm_zone_differs(ngx_idempotency_shm_t *shm, ngx_idempotency_shm_t *old,
    ngx_log_t *log)
{
    const char               *what;
    ngx_idempotency_stamp_e   differs;

    static char  *has[] = { NULL, "another", "no", "a" };
    static char  *had[] = { NULL, "one", "one", "none" };

    what = "digest key";
    differs = ngx_idempotency_stamp_differs(shm->store->secret->stamp,
                                            old->store->secret->stamp);

    if (differs == NGX_IDEMPOTENCY_STAMP_SAME && !shm->tier != !old->tier) {
        what = "state";
        differs = shm->tier ? NGX_IDEMPOTENCY_STAMP_NEW
                            : NGX_IDEMPOTENCY_STAMP_GONE;

    } else if (differs == NGX_IDEMPOTENCY_STAMP_SAME && shm->tier
               && shm->tier->backing != old->tier->backing)
    {
        what = "kind of state";
        differs = NGX_IDEMPOTENCY_STAMP_ANOTHER;
    }

    if (differs != NGX_IDEMPOTENCY_STAMP_SAME) {
        ngx_log_error(NGX_LOG_EMERG, log, 0,
                      "idempotency_zone \"%V\" has %s %s while previously it "
                      "had %s; only a restart can change it",
                      &shm->store->name, has[differs], what, had[differs]);
        return 1;
    }

    if (shm->evict != old->evict && shm_zone_used(old)) {
        ngx_log_error(NGX_LOG_EMERG, log, 0,
                      "idempotency_zone \"%V\" uses evict=%s "
                      "while previously it used evict=%s", &shm->store->name,
                      shm->evict ? "responses" : "off",
                      old->evict ? "responses" : "off");
        return 1;
    }

    return 0;
}


static ngx_int_t
shm_zone_create(ngx_idempotency_shm_t *shm, uint64_t fence)
{
    size_t                     len;
    ngx_slab_pool_t           *shpool;
    ngx_idempotency_shm_sh_t  *sh;

    shpool = shm->shpool;

    sh = ngx_slab_calloc_locked(shpool, sizeof(ngx_idempotency_shm_sh_t));
    if (sh == NULL) {
        return NGX_ERROR;
    }

    /* a process that dies in here leaves a torn zone, too */

    sh->inside = ngx_pid;

    sh->fence = fence;
    sh->sequence = fence;
    sh->generation = shm->generation;
    sh->stats.pages = shpool->pfree + 1;

    if (shm_zone_init_records(sh, shpool) != NGX_OK) {
        return NGX_ERROR;
    }

    shm->sh = sh;
    shm->store->counters = &sh->stats.counters;

    if (shm->tier) {
        ngx_idempotency_tier_init(shm);
    }

    len = sizeof(" in idempotency zone \"\"") + shm->store->name.len;

    shpool->log_ctx = ngx_slab_alloc_locked(shpool, len);
    if (shpool->log_ctx == NULL) {
        return NGX_ERROR;
    }

    ngx_sprintf(shpool->log_ctx, " in idempotency zone \"%V\"%Z",
                &shm->store->name);

    /* the operation that finds the zone full logs that */

    shpool->log_nomem = 0;
    shpool->data = sh;

    ngx_memory_barrier();
    sh->inside = 0;

    return NGX_OK;
}


static ngx_int_t
shm_zone_init_records(ngx_idempotency_shm_sh_t *sh,
    ngx_slab_pool_t *shpool)
{
    ngx_uint_t  i, n;

    /* four buckets for each page: at most four records each when full */

    n = 8;

    while (n < (ngx_uint_t) (shpool->end - shpool->start)
               / (ngx_pagesize / 4))
    {
        n *= 2;
    }

    sh->buckets = ngx_slab_alloc_locked(shpool,
                                        n * sizeof(ngx_rbtree_node_t *));
    if (sh->buckets == NULL) {
        return NGX_ERROR;
    }

    sh->mask = n - 1;

    ngx_rbtree_sentinel_init(&sh->sentinel);

    for (i = 0; i < n; i++) {
        sh->buckets[i] = &sh->sentinel;
    }

    sh->quotas = &sh->sentinel;

    sh->window.length = NGX_IDEMPOTENCY_NO_WINDOW;
    ngx_queue_init(&sh->window.records);

    sh->leftovers.length = NGX_IDEMPOTENCY_SHM_LEFTOVER;
    sh->leftovers.span = NGX_IDEMPOTENCY_SHM_LEFTOVER;
    ngx_queue_init(&sh->leftovers.records);

    /* no claim has a window of this length */

    sh->copies.length = NGX_IDEMPOTENCY_NO_WINDOW - 1;
    ngx_queue_init(&sh->copies.records);

    sh->window.next = &sh->leftovers;
    sh->leftovers.next = &sh->copies;

    ngx_queue_init(&sh->pending);
    ngx_queue_init(&sh->remote);
    ngx_queue_init(&sh->kept);

    return NGX_OK;
}


/*
 * Keeps a zone that the new configuration does not name: old workers may
 * execute claims in it, and the next reload may name it again.
 */

ngx_int_t
ngx_idempotency_shm_keep(ngx_conf_t *cf)
{
    ngx_shm_zone_t  *zone;

    zone = NULL;

    while ((zone = shm_zone_next(ngx_cycle, zone)) != NULL) {

        if (shm_zone_used(zone->data)
            && shm_zone_named(cf->cycle, &zone->shm.name) == NULL
            && shm_zone_keep(cf, zone) != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
shm_zone_keep(ngx_conf_t *cf, ngx_shm_zone_t *zone)
{
    ngx_idempotency_shm_t     *shm, *old;
    ngx_pool_cleanup_t        *cln;
    ngx_idempotency_store_t   *store;
    ngx_idempotency_secret_t  *secret;

    old = zone->data;

    store = ngx_palloc(cf->pool, sizeof(ngx_idempotency_store_t));
    cln = ngx_pool_cleanup_add(cf->pool, sizeof(ngx_idempotency_secret_t));

    if (store == NULL || cln == NULL) {
        return NGX_ERROR;
    }

    *store = *old->store;
    store->engine = NULL;

    /* the name and the keys are the old configuration's, which goes */

    secret = cln->data;
    *secret = *old->store->secret;

    if (secret->digest_key) {
        secret->digest_key = &secret->digest;
    }

    cln->handler = ngx_idempotency_secret_wipe;

    store->secret = secret;
    store->name.data = ngx_pstrdup(cf->pool, &old->store->name);

    if (store->name.data == NULL
        || ngx_idempotency_shm_zone_add(cf, store, zone->shm.size, old->evict)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    shm = store->data;
    shm->unnamed = 1;

    if (old->tier) {

        shm->tier = old->tier->backing->unnamed(cf, old->tier);
        if (shm->tier == NULL) {
            return NGX_ERROR;
        }

        shm->tier->shm = shm;
    }

    return NGX_OK;
}


static ngx_shm_zone_t *
shm_zone_named(volatile ngx_cycle_t *cycle, ngx_str_t *name)
{
    ngx_shm_zone_t  *zone;

    zone = NULL;

    while ((zone = shm_zone_next(cycle, zone)) != NULL) {

        if (ngx_idempotency_same(&zone->shm.name, name)) {
            return zone;
        }
    }

    return NULL;
}


/*
 * Workers of the running configuration use the zones that it names.  Old
 * workers, which are on their way out, may use others.
 */

static ngx_uint_t
shm_zone_used(ngx_idempotency_shm_t *shm)
{
    ngx_int_t  i;

    if (!shm->unnamed || ngx_process == NGX_PROCESS_SINGLE) {
        return 1;
    }

    for (i = 0; i < ngx_last_process; i++) {
        if (ngx_processes[i].pid != -1 && ngx_processes[i].exiting
            && !ngx_processes[i].exited)
        {
            return 1;
        }
    }

    return 0;
}


/* a new worker may be the successor of one that died; a helper process, such as
   the cache manager, has no part in the zones */

ngx_int_t
ngx_idempotency_shm_init_process(ngx_cycle_t *cycle)
{
    ngx_shm_zone_t         *zone;
    ngx_idempotency_shm_t  *shm;

    zone = NULL;

    if (ngx_process == NGX_PROCESS_HELPER) {

        while ((zone = shm_zone_next(cycle, zone)) != NULL) {
            shm = zone->data;

            if (shm->tier && shm->tier->backing->disown) {
                shm->tier->backing->disown(shm->tier);
            }
        }

        return NGX_OK;
    }

    if (ngx_idempotency_workers_init_process(cycle, ngx_idempotency_shm_woken,
                                             shm_zone_quit)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    while ((zone = shm_zone_next(cycle, zone)) != NULL) {
        shm = zone->data;

        shm_zone_recreate(shm, cycle->log);

        if (ngx_idempotency_tier_init_process(shm, cycle) != NGX_OK) {
            return NGX_ERROR;
        }

        ngx_idempotency_shm_sweep(shm, ngx_current_msec);
    }

    shm_expire_dumb.fd = (ngx_socket_t) -1;

    shm_expire_event.handler = shm_expire_handler;
    shm_expire_event.data = &shm_expire_dumb;
    shm_expire_event.log = cycle->log;
    shm_expire_event.cancelable = 1;

    ngx_add_timer(&shm_expire_event, NGX_IDEMPOTENCY_EXPIRE_IDLE);

    return NGX_OK;
}


/* a graceful shutdown: requests are finished, and queues flushed */

static void
shm_zone_quit(void)
{
    ngx_shm_zone_t  *zone;

    zone = NULL;

    while ((zone = shm_zone_next(ngx_cycle, zone)) != NULL) {
        ngx_idempotency_tier_quit(zone->data);
    }
}


/* puts this worker's claims in doubt, and wakes waiting requests */

void
ngx_idempotency_shm_exit_process(ngx_cycle_t *cycle)
{
    ngx_shm_zone_t         *zone;
    ngx_idempotency_shm_t  *shm;

    zone = NULL;

    while ((zone = shm_zone_next(cycle, zone)) != NULL) {
        ngx_idempotency_tier_leave(zone->data);
    }

    ngx_idempotency_workers_exit_process(cycle);

    if (shm_expire_event.timer_set) {
        ngx_del_timer(&shm_expire_event);
    }

    while ((zone = shm_zone_next(cycle, zone)) != NULL) {
        shm = zone->data;

        ngx_idempotency_tier_finish(shm);
        ngx_idempotency_shm_sweep(shm, ngx_current_msec);
        ngx_idempotency_tier_flush(shm);
    }

    while ((zone = shm_zone_next(cycle, zone)) != NULL) {
        ngx_idempotency_tier_exit_process(zone->data);
    }
}


static void
shm_expire_handler(ngx_event_t *ev)
{
    ngx_msec_t       next, soonest;
    ngx_shm_zone_t  *zone;

    zone = NULL;
    soonest = NGX_IDEMPOTENCY_EXPIRE_IDLE;

    while ((zone = shm_zone_next(ngx_cycle, zone)) != NULL) {
        next = ngx_idempotency_shm_expire(zone->data, ngx_current_msec);
        soonest = ngx_min(soonest, next);
    }

    ngx_add_timer(ev, soonest);
}


/*
 * Frees expired records, in any worker, at most once in a millisecond: all
 * workers together must not keep claims from the lock.  Returns when to call it
 * again.
 */

ngx_msec_t
ngx_idempotency_shm_expire(ngx_idempotency_shm_t *shm, ngx_msec_t now)
{
    ngx_uint_t  n;

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        return NGX_IDEMPOTENCY_EXPIRE_IDLE;
    }

    n = 0;

    if (now != shm->sh->freed) {
        shm->sh->freed = now;
        n = ngx_idempotency_record_expire(shm, now, NGX_IDEMPOTENCY_SHM_EXPIRE);
    }

    ngx_idempotency_shm_unlock(shm);

    ngx_idempotency_writeback_schedule(shm);

    return n == NGX_IDEMPOTENCY_SHM_EXPIRE ? NGX_IDEMPOTENCY_EXPIRE_MORE
           : n ? NGX_IDEMPOTENCY_EXPIRE_SOME : NGX_IDEMPOTENCY_EXPIRE_IDLE;
}


/* makes a torn zone anew, if the worker's configuration is later than that */

static void
shm_zone_recreate(ngx_idempotency_shm_t *shm, ngx_log_t *log)
{
    uint64_t                       fence;
    ngx_uint_t                     anew, warned, since;
    ngx_idempotency_shm_sh_t      *sh;
    ngx_idempotency_counters_t     counters;
    ngx_idempotency_tier_stamp_t   stamps[NGX_IDEMPOTENCY_TIER_STAMPS];

    sh = shm->sh;
    anew = 0;

    ngx_shmtx_lock(&shm->shpool->mutex);

    /* if no process has noticed yet that it is torn, the next lock does */

    since = sh->inside ? sh->generation + 1 : sh->poisoned;

    if (since && shm->generation >= since) {

        /*
         * The first allocation of an empty pool is always at the same place: so
         * processes of all generations still find the zone there.  Their claims
         * are gone from it, and their fences lie below the new ones.
         */

        anew = 1;
        fence = sh->fence + 1;
        counters = sh->stats.counters;
        warned = sh->stats.warned;
        ngx_memcpy(stamps, sh->tier.stamps, sizeof(stamps));

        ngx_slab_init(shm->shpool);

        if (shm_zone_create(shm, fence) != NGX_OK
            || shm->sh != sh)
        {
            anew = 2;
            sh->inside = 0;
            sh->poisoned = shm->generation + 1;

        } else {
            sh->stats.counters = counters;
            sh->stats.warned = warned;
            ngx_memcpy(sh->tier.stamps, stamps, sizeof(stamps));
        }
    }

    if (shm->generation > sh->generation) {
        sh->generation = shm->generation;
    }

    ngx_shmtx_unlock(&shm->shpool->mutex);

#if (NGX_HAVE_POSIX_SEM)

    /*
     * A process that is killed while it waits for the mutex may take along the
     * wake-up of another one, which would sleep on.  One wake-up too many costs
     * only a look at the lock.
     */

    if (shm->shpool->mutex.semaphore) {
        (void) sem_post(&shm->shpool->mutex.sem);
    }

#endif

    if (anew) {
        ngx_log_error(NGX_LOG_ALERT, log, 0,
                      "idempotency zone \"%V\" %s", &shm->store->name,
                      (anew == 1 && shm->tier)
                                ? "was recreated: its store has its tokens, "
                                  "what was pending is in doubt"
                      : anew == 1 ? "was recreated: its tokens are lost"
                                : "cannot be recreated, restart nginx");
    }
}


/* the zone of a cycle that follows this one; NULL: the first one */

static ngx_shm_zone_t *
shm_zone_next(volatile ngx_cycle_t *cycle, ngx_shm_zone_t *zone)
{
    ngx_uint_t        i;
    ngx_shm_zone_t   *zones;
    ngx_list_part_t  *part;

    part = (ngx_list_part_t *) &cycle->shared_memory.part;

    for ( /* void */ ; part; part = part->next) {
        zones = part->elts;

        for (i = 0; i < part->nelts; i++) {

            if (zone == NULL && zones[i].init == ngx_idempotency_shm_init) {
                return &zones[i];
            }

            if (zone == &zones[i]) {
                zone = NULL;
            }
        }
    }

    return NULL;
}


ngx_int_t
ngx_idempotency_shm_figures(ngx_idempotency_store_t *store, ngx_msec_t now,
    ngx_idempotency_figures_t *figures)
{
    ngx_uint_t              i, freed;
    ngx_idempotency_shm_t  *shm;

    shm = store->data;

    ngx_memzero(figures, sizeof(ngx_idempotency_figures_t));

    figures->evict = shm->evict;
    figures->size = shm->shpool->end - (u_char *) shm->shpool;

    if (shm->tier) {
        figures->kind = shm->tier->backing->kind;
        figures->sync = shm->tier->strict ? "strict"
                        : ngx_idempotency_tier_shared(shm->tier) ? NULL
                        : "batched";
    }

    for (i = 0; i < NGX_IDEMPOTENCY_FIGURES_TIMES; i++) {

        if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
            figures->counters = shm->sh->stats.counters;
            return NGX_DECLINED;
        }

        freed = ngx_idempotency_record_expire(shm, now,
                                              NGX_IDEMPOTENCY_FIGURES_FREE);

        figures_locked(shm, now, figures);

        ngx_idempotency_shm_unlock(shm);

        if (freed < NGX_IDEMPOTENCY_FIGURES_FREE) {
            break;
        }
    }

    ngx_idempotency_writeback_schedule(shm);

    return NGX_OK;
}


static void
figures_locked(ngx_idempotency_shm_t *shm, ngx_msec_t now,
    ngx_idempotency_figures_t *figures)
{
    ngx_uint_t                 pfree;
    ngx_idempotency_stats_t   *stats;
    ngx_idempotency_window_t  *window;

    stats = &shm->sh->stats;
    pfree = shm->shpool->pfree;

    shm->full = ngx_idempotency_stats_space(stats, pfree, now);

    figures->counters = stats->counters;
    ngx_memcpy(figures->records, stats->records, sizeof(stats->records));
    figures->used = figures->size - pfree * ngx_pagesize;

    ngx_idempotency_stats_trend(stats, pfree, now, figures);

    /* in all windows but the copies' the oldest record is the first */

    figures->empty = 1;

    for (window = &shm->sh->window; window; window = window->next) {

        if (window != &shm->sh->leftovers
            && !ngx_queue_empty(&window->records))
        {
            figures_record(ngx_queue_data(ngx_queue_head(&window->records),
                                          ngx_idempotency_record_t,
                                          as.bound.expiry),
                           now, figures);
        }
    }

    if (!ngx_queue_empty(&shm->sh->pending)) {
        figures_record(ngx_queue_data(ngx_queue_head(&shm->sh->pending),
                                      ngx_idempotency_record_t, queue),
                       now, figures);
    }

    if (shm->tier) {
        figures->up = !shm->sh->tier.failing && !shm->sh->tier.said
                      && !shm->sh->tier.said_full;
        figures->undelivered = shm->sh->tier.queued - shm->sh->tier.flushed;
    }
}


static void
figures_record(ngx_idempotency_record_t *rec, ngx_msec_t now,
    ngx_idempotency_figures_t *figures)
{
    ngx_msec_int_t  age;

    age = (ngx_msec_int_t) (now - rec->recorded);
    age = ngx_max(age, 0);

    figures->empty = 0;
    figures->oldest = ngx_max(figures->oldest, (ngx_msec_t) age);
}
