
/*
 * The backing that is a file on this machine.  Whatever touches the file does
 * so in a thread: one at a time takes over what the zone owes, another one
 * tends the file, and a third one reads lists.
 */


#include "store/ngx_idempotency_shm.h"
#include "ngx_idempotency_db.h"
#include "ngx_idempotency_file.h"
#include "ngx_idempotency_owners.h"
#include "ngx_idempotency_start.h"


#if (NGX_IDEMPOTENCY_FILE)

#include <ngx_thread_pool.h>
#include <time.h>


/* what is pending in another generation is asked for so often, at first and at
   most */

#define NGX_IDEMPOTENCY_FILE_SOON    5
#define NGX_IDEMPOTENCY_FILE_SELDOM  50

/* an exiting worker stays for so long for what is being written */

#define NGX_IDEMPOTENCY_FILE_STAY    30000

/* what was written is on disk within a second */

#define NGX_IDEMPOTENCY_FILE_TEND    700
#define NGX_IDEMPOTENCY_FILE_IDLE    10000

#define NGX_IDEMPOTENCY_FILE_TIDY    256


/* one thread's, and this worker's */

typedef struct {
    ngx_thread_task_t          *task;
    ngx_idempotency_db_t       *db;
    /* to commit one at a time */
    int                         lock;
    ngx_uint_t                  busy;
    ngx_event_t                 stay;
} file_hand_t;


typedef struct {
    ngx_idempotency_tier_t      tier;

    ngx_cycle_t                *cycle;
    ngx_pool_t                 *pool;
    ngx_idempotency_start_t     start;
    ngx_idempotency_db_conf_t   db;
    ngx_str_t                   threads;
    ngx_thread_pool_t          *thread_pool;

    file_hand_t                 hand;
    file_hand_t                 tend;
    file_hand_t                 list;
    ngx_uint_t                  exiting;

    /* the pages that are to be read, the first one by a thread */
    ngx_idempotency_page_t     *pages;

    /* tending, by a thread; when it was last done, and why again */
    ngx_int_t                   rc;
    ngx_msec_t                  tended;
    uint64_t                    told;
    ngx_uint_t                  more;
} file_t;


static ngx_int_t file_init(ngx_idempotency_tier_t *tier,
    ngx_idempotency_tier_t *old, ngx_log_t *log);
static ngx_idempotency_tier_t *file_again(ngx_conf_t *cf,
    ngx_idempotency_tier_t *old);
static ngx_int_t file_init_process(ngx_idempotency_tier_t *tier,
    ngx_cycle_t *cycle);
static ngx_int_t file_init_hand(file_t *file, file_hand_t *hand,
    ngx_cycle_t *cycle);
static void file_finish(ngx_idempotency_tier_t *tier);
static void file_exit_process(ngx_idempotency_tier_t *tier);
static void file_exit_hand(file_hand_t *hand);

static const char *file_kind(ngx_idempotency_tier_t *tier,
    const char **sync);
static int64_t file_now(ngx_idempotency_tier_t *tier);
static ngx_uint_t file_alive(void *data, uint64_t instance);

static ngx_int_t file_hand(ngx_idempotency_tier_t *tier,
    ngx_idempotency_batch_t *batch);
static void file_hand_thread(void *data, ngx_log_t *log);
static void file_hand_handler(ngx_event_t *ev);
static ngx_int_t file_list(ngx_idempotency_tier_t *tier,
    ngx_idempotency_page_t *page);
static void file_list_thread(void *data, ngx_log_t *log);
static ngx_int_t file_list_items(ngx_idempotency_page_t *page,
    ngx_idempotency_db_t *db);
static void file_list_handler(ngx_event_t *ev);
static void file_tend(ngx_idempotency_tier_t *tier);
static ngx_int_t file_post(file_t *file, file_hand_t *hand);
static void file_tend_thread(void *data, ngx_log_t *log);
static void file_tend_handler(ngx_event_t *ev);
static ngx_int_t file_open(file_t *file, file_hand_t *hand, char *error);
static void file_stay_handler(ngx_event_t *ev);


static const ngx_idempotency_backing_t  file_backing = {
    NGX_IDEMPOTENCY_FILE_SOON,
    NGX_IDEMPOTENCY_FILE_SELDOM,

    file_kind,
    file_now,
    file_hand,
    NULL,
    file_list,
    file_tend,
    file_init,
    file_again,
    file_init_process,
    file_finish,
    file_exit_process,
    NULL,
    NULL
};


ngx_int_t
ngx_idempotency_file_add(ngx_conf_t *cf, ngx_idempotency_store_t *store,
    ngx_idempotency_file_conf_t *conf)
{
    file_t                 *file;
    ngx_idempotency_shm_t  *shm;

    shm = store->data;

    file = ngx_pcalloc(cf->pool, sizeof(file_t));
    if (file == NULL) {
        return NGX_ERROR;
    }

    file->tier.backing = &file_backing;
    file->tier.shm = shm;
    file->tier.strict = (conf->sync == NGX_IDEMPOTENCY_SYNC_STRICT);

    file->cycle = cf->cycle;
    file->pool = cf->pool;
    file->start.path = conf->path;
    file->start.owners = -1;
    file->threads = conf->threads;

    file->db.path = (char *) conf->path.data;
    file->db.sync = conf->sync;
    file->db.max_size = conf->max_size;
    file->db.alive = file_alive;
    file->db.data = file;

    if (ngx_thread_pool_add(cf, conf->threads.len ? &file->threads : NULL)
        == NULL)
    {
        return NGX_ERROR;
    }

    shm->tier = &file->tier;
    store->strict = file->tier.strict;

    return NGX_OK;
}


/* for a configuration that does not name the zone any more */

static ngx_idempotency_tier_t *
file_again(ngx_conf_t *cf, ngx_idempotency_tier_t *old)
{
    file_t  *file, *was;

    was = (file_t *) old;

    file = ngx_pcalloc(cf->pool, sizeof(file_t));
    if (file == NULL) {
        return NULL;
    }

    file->tier.backing = &file_backing;
    file->tier.strict = old->strict;

    file->cycle = cf->cycle;
    file->pool = cf->pool;
    file->start.owners = -1;
    file->db = was->db;
    file->db.data = file;

    file->start.path.len = was->start.path.len;
    file->start.path.data = ngx_pnalloc(cf->pool, was->start.path.len + 1);

    if (file->start.path.data == NULL) {
        return NULL;
    }

    ngx_memcpy(file->start.path.data, was->start.path.data,
               was->start.path.len + 1);
    file->db.path = (char *) file->start.path.data;

    if (was->threads.len) {
        file->threads.len = was->threads.len;
        file->threads.data = ngx_pstrdup(cf->pool, &was->threads);

        if (file->threads.data == NULL) {
            return NULL;
        }
    }

    /* a pool that this configuration does not have can't be asked for */

    if (ngx_thread_pool_add(cf, NULL) == NULL) {
        return NULL;
    }

    ngx_str_null(&file->threads);

    return &file->tier;
}


static ngx_int_t
file_init(ngx_idempotency_tier_t *tier, ngx_idempotency_tier_t *old,
    ngx_log_t *log)
{
    ngx_int_t         rc;
    file_t           *file, *was;
    ngx_core_conf_t  *ccf;

    file = (file_t *) tier;

    if (old) {
        was = (file_t *) old;

        if (file->start.path.len != was->start.path.len
            || ngx_strcmp(file->start.path.data, was->start.path.data) != 0)
        {
            ngx_log_error(NGX_LOG_EMERG, log, 0,
                          "idempotency_zone \"%V\" uses the state \"%V\" "
                          "while previously it used \"%V\"; "
                          "only a restart can change it",
                          &tier->shm->store->name, &file->start.path,
                          &was->start.path);
            return NGX_ERROR;
        }

        rc = ngx_idempotency_start_keep(&file->start, &was->start, file->pool,
                                        log);

    } else {
        ccf = (ngx_core_conf_t *) ngx_get_conf(file->cycle->conf_ctx,
                                               ngx_core_module);

        file->start.user = ccf->user;
        file->start.group = ccf->group;
        file->start.username = ccf->username;
        file->start.stamp = tier->shm->store->secret->stamp;

        rc = ngx_idempotency_start(&file->start, file->pool, log);
    }

    if (rc != NGX_OK) {
        return rc;
    }

    tier->name.data = ngx_pnalloc(file->pool, sizeof("state file \"\"") - 1
                                              + file->start.path.len);
    if (tier->name.data == NULL) {
        return NGX_ERROR;
    }

    tier->name.len = ngx_sprintf(tier->name.data, "state file \"%V\"",
                                 &file->start.path)
                     - tier->name.data;

    tier->instance = file->start.instance;
    tier->fence = file->start.fence;
    file->db.instance = tier->instance;
    tier->shm->store->version = file->start.version;

    return NGX_OK;
}


static ngx_int_t
file_init_process(ngx_idempotency_tier_t *tier, ngx_cycle_t *cycle)
{
    file_t     *file;
    ngx_str_t   name;

    file = (file_t *) tier;

    ngx_str_set(&name, "default");

    if (file->threads.len) {
        name = file->threads;
    }

    file->thread_pool = ngx_thread_pool_get(cycle, &name);

    if (file->thread_pool == NULL
        || file_init_hand(file, &file->hand, cycle) != NGX_OK
        || file_init_hand(file, &file->tend, cycle) != NGX_OK
        || file_init_hand(file, &file->list, cycle) != NGX_OK)
    {
        return NGX_ERROR;
    }

    file->hand.task->handler = file_hand_thread;
    file->hand.task->event.handler = file_hand_handler;

    file->tend.task->handler = file_tend_thread;
    file->tend.task->event.handler = file_tend_handler;

    file->list.task->handler = file_list_thread;
    file->list.task->event.handler = file_list_handler;

    return NGX_OK;
}


static ngx_int_t
file_init_hand(file_t *file, file_hand_t *hand, ngx_cycle_t *cycle)
{
    hand->task = ngx_thread_task_alloc(cycle->pool, 0);
    if (hand->task == NULL) {
        return NGX_ERROR;
    }

    hand->task->ctx = file;
    hand->task->event.data = file;

    hand->stay.handler = file_stay_handler;
    hand->stay.data = file;
    hand->stay.log = cycle->log;

    hand->lock = ngx_idempotency_owners_open(file->db.path, 0);

    if (hand->lock == -1) {
        ngx_log_error(NGX_LOG_EMERG, cycle->log, ngx_errno,
                      ngx_open_file_n " \"%V-owners\" failed",
                      &file->start.path);
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* from now on there are no threads: what they were given is done */

static void
file_finish(ngx_idempotency_tier_t *tier)
{
    ((file_t *) tier)->exiting = 1;
}


static void
file_exit_process(ngx_idempotency_tier_t *tier)
{
    file_t  *file;

    file = (file_t *) tier;

    if (file->db.sync == NGX_IDEMPOTENCY_SYNC_BATCHED && file->hand.db) {
        (void) ngx_idempotency_db_sync(file->hand.db);
    }

    file_exit_hand(&file->hand);
    file_exit_hand(&file->tend);
    file_exit_hand(&file->list);
}


static void
file_exit_hand(file_hand_t *hand)
{
    if (hand->db) {
        ngx_idempotency_db_close(hand->db);
        hand->db = NULL;
    }

    if (hand->lock != -1) {
        (void) close(hand->lock);
        hand->lock = -1;
    }
}


static const char *
file_kind(ngx_idempotency_tier_t *tier, const char **sync)
{
    /* in the order of ngx_idempotency_sync_e */

    static const char  *names[] = { "batched", "strict" };

    *sync = names[((file_t *) tier)->db.sync];

    return "file";
}


/* it follows the clock of the boot, whatever is made of that on the wall */

static int64_t
file_now(ngx_idempotency_tier_t *tier)
{
    struct timespec  ts;

    (void) clock_gettime(CLOCK_BOOTTIME, &ts);

    return ((file_t *) tier)->start.base
           + (int64_t) ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}


static ngx_uint_t
file_alive(void *data, uint64_t instance)
{
    return ngx_idempotency_owners_alive(((file_t *) data)->start.owners,
                                        instance);
}


static ngx_int_t
file_hand(ngx_idempotency_tier_t *tier, ngx_idempotency_batch_t *batch)
{
    file_t  *file;

    file = (file_t *) tier;

    if (tier->shm->sh->tier.lost) {
        batch->rc = NGX_ERROR;
        ngx_cpystrn((u_char *) batch->error,
                    (u_char *) "only a restart can bring it back",
                    sizeof(batch->error));
        return NGX_OK;
    }

    if (file->exiting) {
        file_hand_thread(file, ngx_cycle->log);
        return NGX_OK;
    }

    return file_post(file, &file->hand);
}


static ngx_int_t
file_post(file_t *file, file_hand_t *hand)
{
    if (ngx_thread_task_post(file->thread_pool, hand->task) != NGX_OK) {
        return NGX_ERROR;
    }

    hand->busy = 1;
    ngx_add_timer(&hand->stay, NGX_IDEMPOTENCY_FILE_STAY);

    return NGX_AGAIN;
}


static void
file_hand_thread(void *data, ngx_log_t *log)
{
    file_t  *file = data;

    ngx_idempotency_batch_t         *batch;
    const ngx_idempotency_secret_t  *secret;

    batch = file->tier.batch;
    batch->rc = NGX_ERROR;

    if (file_open(file, &file->hand, batch->error) != NGX_OK) {
        return;
    }

    secret = file->tier.shm->store->secret;

    ngx_idempotency_seal(secret, batch->items, batch->n, 1);

    if (ngx_idempotency_owners_commit_lock(file->hand.lock) != NGX_OK) {
        ngx_cpystrn((u_char *) batch->error,
                    (u_char *) "it can't be locked", sizeof(batch->error));
        return;
    }

    /* it may have waited: a doubt begins now, not when it was asked for; and
       another worker may have told the same since */

    if (ngx_idempotency_owed_current(&file->tier, batch)) {
        batch->rc = ngx_idempotency_db_commit(file->hand.db, batch->items,
                                              batch->n,
                                              file_now(&file->tier));
    }

    ngx_idempotency_owners_commit_unlock(file->hand.lock);

    ngx_idempotency_unseal(secret, batch->items, batch->n, 1);

    ngx_cpystrn((u_char *) batch->error,
                (u_char *) ngx_idempotency_db_error(file->hand.db),
                sizeof(batch->error));

    batch->lost = ngx_idempotency_db_failed(file->hand.db);
}


static ngx_int_t
file_open(file_t *file, file_hand_t *hand, char *error)
{
    if (hand->db == NULL) {
        hand->db = ngx_idempotency_db_open(&file->db, error,
                                           NGX_IDEMPOTENCY_DB_ERROR);
    }

    return hand->db ? NGX_OK : NGX_ERROR;
}


static void
file_hand_handler(ngx_event_t *ev)
{
    file_t  *file = ev->data;

    file->hand.busy = 0;

    if (file->hand.stay.timer_set) {
        ngx_del_timer(&file->hand.stay);
    }

    ngx_idempotency_tier_handed(&file->tier, file->tier.batch);
}


/* one page after the other */

static ngx_int_t
file_list(ngx_idempotency_tier_t *tier, ngx_idempotency_page_t *page)
{
    file_t                   *file;
    ngx_idempotency_page_t  **last;

    file = (file_t *) tier;

    if (tier->shm->sh->tier.lost || file->exiting) {
        return NGX_ERROR;
    }

    for (last = &file->pages; *last; last = &(*last)->next) { /* void */ }

    page->next = NULL;
    *last = page;

    if (file->pages == page && file_post(file, &file->list) != NGX_AGAIN) {
        file->pages = NULL;
        return NGX_ERROR;
    }

    return NGX_AGAIN;
}


/* in the order of tokens; the cursor says only whether there was one */

static void
file_list_thread(void *data, ngx_log_t *log)
{
    file_t  *file = data;

    char                     error[NGX_IDEMPOTENCY_DB_ERROR];
    ngx_idempotency_page_t  *page;

    page = file->pages;

    page->rc = NGX_ERROR;
    page->now = file_now(&file->tier);

    if (file_open(file, &file->list, error) != NGX_OK
        || file_list_items(page, file->list.db) != NGX_OK)
    {
        return;
    }

    if (page->n == 0) {
        page->rc = NGX_OK;
        return;
    }

    if (ngx_idempotency_owners_commit_lock(file->list.lock) != NGX_OK) {
        return;
    }

    page->rc = ngx_idempotency_db_commit(file->list.db, page->items, page->n,
                                         page->now);

    ngx_idempotency_owners_commit_unlock(file->list.lock);
}


static ngx_int_t
file_list_items(ngx_idempotency_page_t *page, ngx_idempotency_db_t *db)
{
    u_char                   tokens[NGX_IDEMPOTENCY_TIER_BATCH]
                                   [NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_int_t                i, n;
    ngx_idempotency_item_t  *item;

    n = ngx_idempotency_db_tokens(db, page->cursor ? page->token : NULL,
                                  tokens, page->n);
    if (n == NGX_ERROR) {
        return NGX_ERROR;
    }

    for (i = 0; i < n; i++) {
        item = &page->items[i];

        ngx_memzero(item, sizeof(ngx_idempotency_item_t));
        ngx_memcpy(item->token, tokens[i], NGX_IDEMPOTENCY_DIGEST_LEN);

        item->what = NGX_IDEMPOTENCY_ITEM_FIND;
        item->brief = 1;
    }

    page->cursor = (n == (ngx_int_t) page->n);
    page->n = n;

    if (n) {
        ngx_memcpy(page->token, tokens[n - 1], NGX_IDEMPOTENCY_DIGEST_LEN);
    }

    return NGX_OK;
}


static void
file_list_handler(ngx_event_t *ev)
{
    file_t  *file = ev->data;

    ngx_idempotency_page_t  *page;

    file->list.busy = 0;

    if (file->list.stay.timer_set) {
        ngx_del_timer(&file->list.stay);
    }

    page = file->pages;
    file->pages = page->next;

    ngx_idempotency_look_listed(page);

    while (file->pages && !file->list.busy
           && file_post(file, &file->list) != NGX_AGAIN)
    {
        page = file->pages;
        file->pages = page->next;

        page->rc = NGX_ERROR;
        ngx_idempotency_look_listed(page);
    }
}


/* what was committed since is synced, what is over goes */

static void
file_tend(ngx_idempotency_tier_t *tier)
{
    file_t      *file;
    ngx_msec_t   due;

    file = (file_t *) tier;

    if (file->tend.busy || tier->shm->sh->tier.lost) {
        return;
    }

    if (!file->more) {

        /* what failed with one may be for another to save */

        due = (tier->shm->sh->tier.told != file->told
               || tier->shm->sh->tier.failing)
                  ? NGX_IDEMPOTENCY_FILE_TEND : NGX_IDEMPOTENCY_FILE_IDLE;

        if (ngx_current_msec - file->tended < due) {
            return;
        }
    }

    file->told = tier->shm->sh->tier.told;
    file->tended = ngx_current_msec;

    (void) file_post(file, &file->tend);
}


static void
file_tend_thread(void *data, ngx_log_t *log)
{
    file_t  *file = data;

    char     error[NGX_IDEMPOTENCY_DB_ERROR];
    int64_t  now;

    file->rc = NGX_ERROR;

    if (file_open(file, &file->tend, error) != NGX_OK) {
        return;
    }

    if (file->db.sync == NGX_IDEMPOTENCY_SYNC_BATCHED
        && ngx_idempotency_db_sync(file->tend.db) != NGX_OK)
    {
        return;
    }

    now = file_now(&file->tier);

    if (ngx_idempotency_owners_commit_lock(file->tend.lock) == NGX_OK) {

        file->rc = ngx_idempotency_db_tidy(file->tend.db, now,
                                           NGX_IDEMPOTENCY_FILE_TIDY);

        ngx_idempotency_owners_commit_unlock(file->tend.lock);
    }
}


static void
file_tend_handler(ngx_event_t *ev)
{
    file_t  *file = ev->data;

    file->tend.busy = 0;

    if (file->tend.stay.timer_set) {
        ngx_del_timer(&file->tend.stay);
    }

    file->more = (file->rc == NGX_AGAIN);

    if (file->rc == NGX_ERROR && file->tend.db
        && ngx_idempotency_db_failed(file->tend.db))
    {
        ngx_idempotency_tier_lost(&file->tier,
                                  ngx_idempotency_db_error(file->tend.db));
    }
}


/* it was long enough */

static void
file_stay_handler(ngx_event_t *ev)
{
    file_t  *file = ev->data;

    ngx_log_error(NGX_LOG_ERR, ev->log, 0,
                  "idempotency: a thread has been busy with a state for more "
                  "than %d seconds, \"%V\"",
                  NGX_IDEMPOTENCY_FILE_STAY / 1000, &file->start.path);
}


#else


ngx_int_t
ngx_idempotency_file_add(ngx_conf_t *cf, ngx_idempotency_store_t *store,
    ngx_idempotency_file_conf_t *conf)
{
    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "\"state\" is not supported by this build of the "
                       "module: it takes SQLite, an nginx with threads, "
                       "and Linux");
    return NGX_ERROR;
}

#endif
