
/* A zone, and a look inside. */


#include "zone.h"


typedef struct {
    ngx_uint_t              records;
    ngx_uint_t              bound;
    ngx_uint_t              pending;
    ngx_uint_t              kept;
    ngx_uint_t              counted;
    ngx_uint_t              outcomes[NGX_IDEMPOTENCY_STATS_RECORDS];
    ngx_uint_t              pages;
    ngx_uint_t              used[ZONE_SLOTS];
} zone_census_t;


typedef struct zone_page_s  zone_page_t;

struct zone_page_s {
    zone_page_t            *next;
};


#define ZONE_PASSES  100000


static ngx_uint_t zone_nothing(zone_t *z);


const zone_engine_t  zone_shm = {
    .name = "shm",
    .engine = &ngx_idempotency_shm_engine,
    .is = ZONE_AT_ONCE|ZONE_CALM|ZONE_IN_TURN|ZONE_STAYS|ZONE_FILLS|ZONE_ALONE,
    .pass = zone_nothing,
};

const zone_engine_t *zone_engine = &zone_shm;

zone_t               zone;

ngx_uint_t           zone_no_memory;
ngx_uint_t           zone_die_after;
ngx_uint_t           zone_freed;

static ngx_str_t     zone_name = ngx_string("unit");

static ngx_idempotency_secret_t  zone_secret;

static ngx_uint_t    zone_between_n;
static void        (*zone_between_run)(zone_t *z);
static zone_t       *zone_between_z;

static zone_page_t  *zone_occupied;


static void zone_create(zone_t *z);
static void zone_cycle(zone_t *z, ngx_cycle_t *cycle);
static ngx_uint_t zone_slot(zone_t *z, size_t size);
static ngx_uint_t zone_tree(ngx_idempotency_shm_sh_t *sh,
    ngx_rbtree_node_t *node);
static int zone_compare(ngx_rbtree_node_t *one, ngx_rbtree_node_t *two);
static ngx_uint_t zone_quotas(zone_t *z, ngx_rbtree_node_t *node,
    zone_census_t *c);
static void zone_count(zone_t *z, ngx_uint_t bucket, ngx_rbtree_node_t *node,
    zone_census_t *c);
static void zone_count_queued(zone_t *z, ngx_idempotency_record_t *rec,
    zone_census_t *c);
static void zone_count_record(zone_t *z, ngx_idempotency_record_t *rec,
    zone_census_t *c);
static void zone_drop_negative(zone_t *z);
static ngx_uint_t zone_in_queue(ngx_queue_t *queue, ngx_queue_t *q);
static void zone_live_or_die(void);


void __real_ngx_shmtx_unlock(ngx_shmtx_t *mtx);
void __wrap_ngx_shmtx_unlock(ngx_shmtx_t *mtx);
void *__real_ngx_slab_alloc_locked(ngx_slab_pool_t *pool, size_t size);
void *__wrap_ngx_slab_alloc_locked(ngx_slab_pool_t *pool, size_t size);
void __real_ngx_slab_free_locked(ngx_slab_pool_t *pool, void *p);
void __wrap_ngx_slab_free_locked(ngx_slab_pool_t *pool, void *p);
void *__real_ngx_pnalloc(ngx_pool_t *pool, size_t size);
void *__wrap_ngx_pnalloc(ngx_pool_t *pool, size_t size);


/* as ngx_init_zone_pool() does */

void
zone_open(zone_t *z, size_t size, ngx_uint_t evict)
{
    ngx_memzero(z, sizeof(zone_t));

    z->engine = zone_engine;

    z->zone.shm.size = size;
    z->zone.shm.name = zone_name;
    z->zone.shm.log = unit_cycle.log;
    z->zone.init = ngx_idempotency_shm_init;
    z->zone.tag = zone_open;
    z->zone.data = &z->shm;

    z->shm.store = &z->store;

    z->store.name = zone_name;
    z->store.secret = &zone_secret;
    z->store.engine = zone_engine->engine;
    z->store.data = &z->shm;

    z->shm.evict = evict;

    zone_create(z);
}


static void
zone_create(zone_t *z)
{
    size_t            size;
    ngx_uint_t        i;
    ngx_slab_pool_t  *pool;

    if (z->engine->open) {
        z->engine->open(z);
    }

    size = z->zone.shm.size;
    z->zone.shm.addr = unit_shared(size);

    pool = (ngx_slab_pool_t *) z->zone.shm.addr;

    pool->end = z->zone.shm.addr + size;
    pool->min_shift = 3;
    pool->addr = z->zone.shm.addr;

    if (ngx_shmtx_create(&pool->mutex, &pool->lock, NULL) != NGX_OK) {
        exit(1);
    }

    ngx_slab_init(pool);

    check_equal(ngx_idempotency_shm_init(&z->zone, NULL), NGX_OK);
    check(z->shm.shpool == pool);

    /* that it is nearly full is no news to those who fill it */

    z->shm.sh->stats.warned = 100;

    z->pfree = pool->pfree;

    for (i = 0; i < ngx_pagesize_shift - pool->min_shift; i++) {
        z->used[i] = pool->stats[i].used;
    }

    if (z->engine->begin) {
        check_equal(zone_init_process(z), NGX_OK);
    }
}


void
zone_close(zone_t *z)
{
    zone_settle(z);
    zone_check(z);

    if (z->engine->begin) {
        zone_exit_process(z);
    }

    if (z->engine->close) {
        z->engine->close(z, 0);
    }

    unit_unshared(z->zone.shm.addr, z->zone.shm.size);
}


void
zone_restart(zone_t *z)
{
    zone_exit_process(z);

    if (z->engine->close) {
        z->engine->close(z, 1);
    }

    unit_unshared(z->zone.shm.addr, z->zone.shm.size);

    zone_create(z);
}


/* what it is told it does at once */

static ngx_uint_t
zone_nothing(zone_t *z)
{
    return 0;
}


ngx_uint_t
zone_pass(zone_t *z)
{
    ngx_queue_t  *q;
    ngx_event_t  *ev;

    if (ngx_queue_empty(&ngx_posted_next_events)) {
        return z->engine->pass(z);
    }

    q = ngx_queue_head(&ngx_posted_next_events);
    ev = ngx_queue_data(q, ngx_event_t, queue);

    ngx_delete_posted_event(ev);
    ev->handler(ev);

    return 1;
}


void
zone_settle(zone_t *z)
{
    ngx_uint_t  n;

    for (n = 0; check(n < ZONE_PASSES) && zone_pass(z); n++) {
        /* void */
    }
}


void
zone_reload(zone_t *z, zone_t *old)
{
    ngx_idempotency_shm_t  last;

    last = old->shm;

    *z = *old;

    z->zone.data = &z->shm;
    z->store.data = &z->shm;
    z->shm.store = &z->store;
    z->shm.sh = NULL;
    z->shm.shpool = NULL;
    z->shm.generation = 0;

    if (z->engine->open) {
        z->engine->open(z);
    }

    check_equal(ngx_idempotency_shm_init(&z->zone, &last), NGX_OK);
    check(z->shm.sh == last.sh);
    check_equal(z->shm.generation, last.generation + 1);
}


ngx_int_t
zone_init_process(zone_t *z)
{
    ngx_int_t    rc;
    ngx_cycle_t  cycle;

    zone_cycle(z, &cycle);

    rc = z->store.engine->init_process(&cycle);

    if (z->engine->begin) {
        z->engine->begin(z);
    }

    return rc;
}


void
zone_exit_process(zone_t *z)
{
    ngx_cycle_t  cycle;

    zone_settle(z);
    zone_cycle(z, &cycle);

    z->store.engine->exit_process(&cycle);

    if (z->engine->end) {
        z->engine->end(z);
    }
}


static void
zone_cycle(zone_t *z, ngx_cycle_t *cycle)
{
    *cycle = unit_cycle;

    cycle->shared_memory.part.elts = &z->zone;
    cycle->shared_memory.part.nelts = 1;
    cycle->shared_memory.part.next = NULL;
}


/* the slab pool's own: 8, 16, ... half a page */

static ngx_uint_t
zone_slot(zone_t *z, size_t size)
{
    size_t      s;
    ngx_uint_t  slot;

    for (slot = 0, s = z->shm.shpool->min_size; s < size; s <<= 1) {
        slot++;
    }

    return slot;
}


void
zone_check(zone_t *z)
{
    ngx_uint_t                 i, per_page;
    ngx_queue_t               *q;
    zone_census_t              c;
    ngx_slab_pool_t           *pool;
    ngx_idempotency_record_t  *rec, *prev;
    ngx_idempotency_shm_sh_t  *sh;
    ngx_idempotency_window_t  *window;

    sh = z->shm.sh;
    pool = z->shm.shpool;

    ngx_memzero(&c, sizeof(zone_census_t));

    for (i = 0; i <= sh->mask; i++) {
        check(sh->buckets[i] == &sh->sentinel
              || ngx_rbt_is_black(sh->buckets[i]));

        zone_tree(sh, sh->buckets[i]);
        zone_count(z, i, sh->buckets[i], &c);
    }

    check_equal(zone_bound(z), c.bound);
    check_equal(zone_size(&sh->pending), c.pending);
    check_equal(zone_size(&sh->kept), c.kept);

    for (i = 0; i < NGX_IDEMPOTENCY_STATS_RECORDS; i++) {
        check_equal(sh->stats.records[i], c.outcomes[i]);
    }

    check_equal(zone_quotas(z, sh->quotas, &c), c.counted);

    zone_count_queued(z, sh->tier.first, &c);
    zone_count_queued(z, sh->tier.aside, &c);
    zone_count_queued(z, sh->tier.writer.records, &c);

    for (window = sh->copies.next; window; window = window->next) {
        c.used[zone_slot(z, sizeof(ngx_idempotency_window_t))]++;
    }

    /* the oldest response first; a copy is as old as what was copied */

    prev = NULL;

    for (q = ngx_queue_head(&sh->kept);
         q != ngx_queue_sentinel(&sh->kept);
         q = ngx_queue_next(q))
    {
        rec = ngx_queue_data(q, ngx_idempotency_record_t, queue);

        if (rec->window == &sh->copies
            || ngx_idempotency_record_negative(rec))
        {
            continue;
        }

        check(prev == NULL
              || (ngx_msec_int_t) (rec->recorded - prev->recorded)
                 >= -z->skew);
        prev = rec;
    }

    /* nothing is allocated but what was found */

    for (i = 0; i < ngx_pagesize_shift - pool->min_shift; i++) {
        check_equal(pool->stats[i].used, z->used[i] + c.used[i]);

        per_page = ngx_pagesize >> (pool->min_shift + i);

        if (pool->stats[i].total) {
            /* small slots lose some to their bitmap */
            c.pages += (pool->stats[i].total + per_page - 1) / per_page;
        }

        if (z->used[i]) {
            c.pages -= (z->used[i] + per_page - 1) / per_page;
        }
    }

    if (zone_occupied == NULL) {
        check_equal(pool->pfree, z->pfree - c.pages);
    }
}


/* the black height, or 0 where the order or the colours are wrong */

static ngx_uint_t
zone_tree(ngx_idempotency_shm_sh_t *sh, ngx_rbtree_node_t *node)
{
    ngx_uint_t  left, right;

    if (node == &sh->sentinel) {
        return check(ngx_rbt_is_black(node));
    }

    if (node->left != &sh->sentinel) {
        check(node->left->parent == node);
        check(ngx_rbt_is_black(node) || ngx_rbt_is_black(node->left));
        check(zone_compare(node->left, node) < 0);
    }

    if (node->right != &sh->sentinel) {
        check(node->right->parent == node);
        check(ngx_rbt_is_black(node) || ngx_rbt_is_black(node->right));
        check(zone_compare(node->right, node) > 0);
    }

    left = zone_tree(sh, node->left);
    right = zone_tree(sh, node->right);

    check(left && left == right);

    return left + (ngx_rbt_is_black(node) ? 1 : 0);
}


static int
zone_compare(ngx_rbtree_node_t *one, ngx_rbtree_node_t *two)
{
    if (one->key != two->key) {
        return (one->key < two->key) ? -1 : 1;
    }

    return ngx_memcmp(((ngx_idempotency_record_t *) one)->token,
                      ((ngx_idempotency_record_t *) two)->token,
                      NGX_IDEMPOTENCY_DIGEST_LEN);
}


/* the tokens that are counted, of all values */

static ngx_uint_t
zone_quotas(zone_t *z, ngx_rbtree_node_t *node, zone_census_t *c)
{
    ngx_queue_t               *q;
    ngx_idempotency_quota_t   *quota;
    ngx_idempotency_record_t  *rec;

    if (node == &z->shm.sh->sentinel) {
        return 0;
    }

    quota = (ngx_idempotency_quota_t *) node;

    c->used[zone_slot(z, sizeof(ngx_idempotency_quota_t))]++;

    check_equal(node->key, ngx_idempotency_tree_key(quota->value));
    check(quota->live > 0);
    check(quota->live >= zone_size(&quota->bound));

    for (q = ngx_queue_head(&quota->bound);
         q != ngx_queue_sentinel(&quota->bound);
         q = ngx_queue_next(q))
    {
        rec = ngx_queue_data(q, ngx_idempotency_record_t, as.bound.quota);
        check(rec->quota == quota);
        check(rec->state != NGX_IDEMPOTENCY_PENDING);
    }

    return quota->live + zone_quotas(z, node->left, c)
           + zone_quotas(z, node->right, c);
}


static void
zone_count(zone_t *z, ngx_uint_t bucket, ngx_rbtree_node_t *node,
    zone_census_t *c)
{
    ngx_idempotency_shm_sh_t  *sh;

    sh = z->shm.sh;

    if (node == &sh->sentinel) {
        return;
    }

    check_equal(node->key & sh->mask, bucket);

    zone_count(z, bucket, node->left, c);
    zone_count_record(z, (ngx_idempotency_record_t *) node, c);
    zone_count(z, bucket, node->right, c);
}


/* what has left, and is to be told yet */

static void
zone_count_queued(zone_t *z, ngx_idempotency_record_t *rec, zone_census_t *c)
{
    for ( /* void */ ; rec; rec = rec->next) {

        if (rec->state == NGX_IDEMPOTENCY_GONE) {
            c->used[zone_slot(z, sizeof(ngx_idempotency_record_t))]++;
        }
    }
}


static void
zone_count_record(zone_t *z, ngx_idempotency_record_t *rec, zone_census_t *c)
{
    size_t                     size, left, capacity;
    ngx_uint_t                 pending, remote, negative;
    ngx_idempotency_chunk_t   *chunk;
    ngx_idempotency_shm_sh_t  *sh;

    sh = z->shm.sh;

    c->records++;
    c->used[zone_slot(z, sizeof(ngx_idempotency_record_t))]++;

    check_equal(rec->node.key, ngx_idempotency_tree_key(rec->token));
    check(rec->fence <= sh->fence);

    pending = ngx_idempotency_record_pends(rec);
    remote = (rec->state == NGX_IDEMPOTENCY_REMOTE);
    negative = ngx_idempotency_record_negative(rec);

    check_equal(zone_in_queue(&sh->pending, &rec->queue), pending);
    check_equal(zone_in_queue(&sh->kept, &rec->queue),
                !pending && rec->chunks != NULL);

    if (rec->state < NGX_IDEMPOTENCY_STATS_RECORDS
        && (pending || rec->window != &sh->leftovers))
    {
        c->outcomes[rec->state]++;
    }

    c->pending += pending;
    c->counted += (rec->quota != NULL);
    c->kept += (!pending && rec->chunks != NULL);

    /* what is pending elsewhere is in a queue of its own */

    if (remote) {
        check(zone_in_queue(&sh->remote, &rec->queue));

    } else if (!pending) {
        c->bound++;

        check(zone_in_queue(&rec->window->records, &rec->as.bound.expiry));
    }

    if (!pending && !remote && !negative && rec->window != &sh->copies) {
        check((ngx_msec_int_t) (rec->ends - rec->recorded
                                - rec->window->length) >= 0);
        check((ngx_msec_int_t) (rec->ends - rec->recorded
                                - rec->window->span) <= 0 || z->skew);
    }

    /* a response under way has no size yet; chunks tell by their pages */

    capacity = ngx_pagesize - offsetof(ngx_idempotency_chunk_t, data);
    left = rec->size;

    for (chunk = rec->chunks; chunk; chunk = chunk->next) {

        if (pending) {
            c->pages++;
            continue;
        }

        if (!check(left > 0)) {
            return;
        }

        size = ngx_min(left, capacity);
        left -= size;
        size += ngx_pagesize - capacity;

        if (size > ngx_pagesize / 2) {
            c->pages++;

        } else {
            c->used[zone_slot(z, size)]++;
        }
    }

    check_equal(left, 0);
}


static ngx_uint_t
zone_in_queue(ngx_queue_t *queue, ngx_queue_t *q)
{
    ngx_queue_t  *p;

    for (p = ngx_queue_head(queue);
         p != ngx_queue_sentinel(queue);
         p = ngx_queue_next(p))
    {
        if (!check(p->next->prev == p && p->prev->next == p)) {
            return 0;
        }

        if (p == q) {
            return 1;
        }
    }

    return 0;
}


ngx_uint_t
zone_records(zone_t *z, ngx_idempotency_outcome_e outcome)
{
    ngx_idempotency_figures_t  figures;

    check_equal(z->store.engine->figures(&z->store, ngx_current_msec, &figures),
                NGX_OK);

    return figures.records[outcome];
}


ngx_uint_t
zone_size(ngx_queue_t *queue)
{
    ngx_uint_t    n;
    ngx_queue_t  *q;

    n = 0;

    for (q = ngx_queue_head(queue);
         q != ngx_queue_sentinel(queue);
         q = ngx_queue_next(q))
    {
        n++;
    }

    return n;
}


/* all that will expire */

ngx_uint_t
zone_bound(zone_t *z)
{
    ngx_uint_t                 n;
    ngx_idempotency_window_t  *window;

    n = 0;

    for (window = &z->shm.sh->window; window; window = window->next) {
        n += zone_size(&window->records);
    }

    return n;
}


/* it would go by itself, some seconds later */

static void
zone_drop_negative(zone_t *z)
{
    ngx_queue_t               *q, *next;
    ngx_idempotency_record_t  *rec;

    for (q = ngx_queue_head(&z->shm.sh->leftovers.records);
         q != ngx_queue_sentinel(&z->shm.sh->leftovers.records);
         q = next)
    {
        next = ngx_queue_next(q);
        rec = ngx_queue_data(q, ngx_idempotency_record_t, as.copy.expiry);

        if (ngx_idempotency_record_negative(rec)) {
            ngx_idempotency_record_remove(&z->shm, rec);
        }
    }

    zone_settle(z);
}


void
zone_check_empty(zone_t *z)
{
    void                      *p;
    ngx_uint_t                 i;
    ngx_slab_pool_t           *pool;
    ngx_idempotency_shm_sh_t  *sh;
    ngx_idempotency_window_t  *window;

    sh = z->shm.sh;
    pool = z->shm.shpool;

    zone_settle(z);
    zone_drop_negative(z);
    zone_check(z);

    for (i = 0; i <= sh->mask; i++) {
        check(sh->buckets[i] == &sh->sentinel);
    }

    check_equal(zone_bound(z), 0);
    check(ngx_queue_empty(&sh->pending));
    check(ngx_queue_empty(&sh->kept));
    check(sh->quotas == &sh->sentinel);
    check_equal(sh->inside, 0);

    /* windows stay for as long as the zone does */

    while (sh->copies.next) {
        window = sh->copies.next;
        sh->copies.next = window->next;
        ngx_slab_free_locked(pool, window);
    }

    check_equal(pool->pfree, z->pfree);

    p = ngx_slab_alloc_locked(pool, pool->pfree << ngx_pagesize_shift);
    check(p != NULL);
    check_equal(pool->pfree, 0);

    ngx_slab_free_locked(pool, p);
    check_equal(pool->pfree, z->pfree);
}


void
zone_occupy(zone_t *z, ngx_uint_t leave)
{
    zone_page_t  *page;

    while (z->shm.shpool->pfree > leave) {
        page = ngx_slab_alloc_locked(z->shm.shpool, ngx_pagesize);
        page->next = zone_occupied;
        zone_occupied = page;
    }
}


void
zone_vacate(zone_t *z)
{
    zone_page_t  *page;

    while (zone_occupied) {
        page = zone_occupied;
        zone_occupied = page->next;
        ngx_slab_free_locked(z->shm.shpool, page);
    }
}


void
zone_between(ngx_uint_t n, void (*run)(zone_t *z), zone_t *z)
{
    zone_between_n = n;
    zone_between_run = run;
    zone_between_z = z;
}


/* the unlocks that it still waits for */

ngx_uint_t
zone_between_due(void)
{
    return zone_between_n;
}


void
__wrap_ngx_shmtx_unlock(ngx_shmtx_t *mtx)
{
    __real_ngx_shmtx_unlock(mtx);

    if (zone_between_n && --zone_between_n == 0) {
        zone_between_run(zone_between_z);
    }
}


static void
zone_live_or_die(void)
{
    if (zone_die_after && --zone_die_after == 0) {
        kill(getpid(), SIGKILL);
    }
}


void *
__wrap_ngx_slab_alloc_locked(ngx_slab_pool_t *pool, size_t size)
{
    zone_live_or_die();

    return __real_ngx_slab_alloc_locked(pool, size);
}


void
__wrap_ngx_slab_free_locked(ngx_slab_pool_t *pool, void *p)
{
    zone_live_or_die();
    zone_freed++;

    __real_ngx_slab_free_locked(pool, p);
}


void *
__wrap_ngx_pnalloc(ngx_pool_t *pool, size_t size)
{
    return zone_no_memory ? NULL : __real_ngx_pnalloc(pool, size);
}
