
/*
 * A look at what stands behind a zone.  One token is asked for as a claim
 * asks, but by one that takes nothing that is fresh, and that is bound to
 * nothing: it leaves what it met in the zone, to be looked at there.  Lists
 * are read page by page, without the zone.
 */


#include "ngx_idempotency_shm.h"


/* a wake-up may be lost */

#define NGX_IDEMPOTENCY_LOOK_AGAIN  500


typedef struct {
    ngx_idempotency_claim_t         claim;
    ngx_idempotency_shm_t          *shm;
    /* who wants to know; NULL: nobody any more */
    ngx_idempotency_op_t           *op;
    ngx_event_t                     timer;
    ngx_queue_t                     queue;
} look_t;


static ngx_uint_t look_unknown(ngx_idempotency_shm_t *shm,
    ngx_idempotency_op_t *op);
static look_t *look_create(ngx_idempotency_shm_t *shm,
    ngx_idempotency_op_t *op);
static ngx_int_t look_ask(look_t *look);
static void look_handler(ngx_idempotency_op_t *claim);
static void look_timer_handler(ngx_event_t *ev);
static ngx_idempotency_result_e look_result(look_t *look);
static void look_waits(ngx_idempotency_op_t *op, ngx_queue_t *queue);
static ngx_queue_t *look_queue(ngx_queue_t *queue);
static void look_page(ngx_idempotency_list_t *list,
    ngx_idempotency_page_t *page);
static void look_listed(ngx_idempotency_op_t *op);
static void look_item(ngx_idempotency_listed_t *listed,
    ngx_idempotency_item_t *item, int64_t now);


/* this worker's: what is asked for, pages that are read, and who waits for
   either */

static ngx_queue_t  look_looks;
static ngx_queue_t  look_pages;
static ngx_queue_t  look_waiting;


ngx_int_t
ngx_idempotency_look(ngx_idempotency_shm_t *shm, ngx_idempotency_op_t *op,
    void (*looked)(ngx_idempotency_op_t *op))
{
    look_t  *look;

    op->result = NGX_IDEMPOTENCY_OK;

    if (shm->tier == NULL || !look_unknown(shm, op)) {
        return NGX_OK;
    }

    look = look_create(shm, op);

    if (look == NULL) {
        op->result = NGX_IDEMPOTENCY_UNAVAILABLE;
        return NGX_OK;
    }

    if (look_ask(look) == NGX_AGAIN) {
        op->store = shm->store;
        op->again = looked;

        look_waits(op, &look_waiting);
        return NGX_AGAIN;
    }

    op->result = look_result(look);

    ngx_queue_remove(&look->queue);
    ngx_free(look);

    return NGX_OK;
}


/* outcomes don't change within their window, and what is pending here is known
   best here */

static ngx_uint_t
look_unknown(ngx_idempotency_shm_t *shm, ngx_idempotency_op_t *op)
{
    ngx_uint_t                 unknown;
    ngx_idempotency_record_t  *rec;

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        return 0;
    }

    rec = ngx_idempotency_record_current(shm, op->token, op->now);

    unknown = (rec == NULL
               || ngx_idempotency_record_unknown(rec)
               || rec->state == NGX_IDEMPOTENCY_ELSEWHERE
               || rec->state == NGX_IDEMPOTENCY_DOUBTED);

    ngx_idempotency_shm_unlock(shm);

    return unknown;
}


static look_t *
look_create(ngx_idempotency_shm_t *shm, ngx_idempotency_op_t *op)
{
    look_t                    *look;
    ngx_idempotency_claim_t   *claim;
    ngx_idempotency_window_t  *window;

    look = ngx_calloc(sizeof(look_t), ngx_cycle->log);
    if (look == NULL) {
        return NULL;
    }

    look->shm = shm;
    look->op = op;

    look->timer.handler = look_timer_handler;
    look->timer.data = look;
    look->timer.log = ngx_cycle->log;

    claim = &look->claim;
    window = &shm->sh->window;

    ngx_memcpy(claim->op.token, op->token, NGX_IDEMPOTENCY_DIGEST_LEN);

    /* a window that there is, as it makes no difference which */

    claim->window = window->length;
    claim->span = window->span;
    claim->lease = NGX_IDEMPOTENCY_SHM_LEFT;
    claim->old = 1;

    claim->op.handler = look_handler;
    claim->op.data = look;

    ngx_queue_insert_tail(look_queue(&look_looks), &look->queue);

    return look;
}


static ngx_int_t
look_ask(look_t *look)
{
    ngx_int_t  rc;

    if (look->timer.timer_set) {
        ngx_del_timer(&look->timer);
    }

    look->claim.op.now = ngx_current_msec;

    rc = ngx_idempotency_shm_engine.claim(look->shm->store, &look->claim);

    if (rc == NGX_AGAIN) {
        ngx_add_timer(&look->timer, NGX_IDEMPOTENCY_LOOK_AGAIN);
    }

    return rc;
}


static void
look_handler(ngx_idempotency_op_t *claim)
{
    look_t                *look;
    ngx_idempotency_op_t  *op;

    look = claim->data;

    if (claim->result == NGX_IDEMPOTENCY_CHANGED
        && look_ask(look) == NGX_AGAIN)
    {
        return;
    }

    if (look->timer.timer_set) {
        ngx_del_timer(&look->timer);
    }

    op = look->op;

    if (op) {
        op->result = look_result(look);
    }

    ngx_queue_remove(&look->queue);
    ngx_free(look);

    if (op) {
        op->waiting = 0;
        ngx_queue_remove(&op->queue);

        op->now = ngx_current_msec;
        op->again(op);
    }
}


/* the claim is the engine's still: made again, it is the same one */

static void
look_timer_handler(ngx_event_t *ev)
{
    look_t  *look;

    look = ev->data;

    look->claim.op.result = NGX_IDEMPOTENCY_CHANGED;
    look_handler(&look->claim.op);
}


static ngx_idempotency_result_e
look_result(look_t *look)
{
    switch (look->claim.op.result) {

    case NGX_IDEMPOTENCY_EXPIRED:
        return NGX_IDEMPOTENCY_ABSENT;

    case NGX_IDEMPOTENCY_BOUND:
    case NGX_IDEMPOTENCY_CONFLICT:
    case NGX_IDEMPOTENCY_VERSION:
        return NGX_IDEMPOTENCY_OK;

    default:
        return NGX_IDEMPOTENCY_UNAVAILABLE;
    }
}


static void
look_waits(ngx_idempotency_op_t *op, ngx_queue_t *queue)
{
    op->waiting = 1;

    ngx_queue_insert_tail(look_queue(queue), &op->queue);
}


static ngx_queue_t *
look_queue(ngx_queue_t *queue)
{
    if (queue->next == NULL) {
        ngx_queue_init(queue);
    }

    return queue;
}


/* it waits no more; what is under way ends without it */

void
ngx_idempotency_look_cancel(ngx_idempotency_op_t *op)
{
    look_t                  *look;
    ngx_queue_t             *q, *queue;
    ngx_idempotency_page_t  *page;

    queue = look_queue(&look_looks);

    for (q = ngx_queue_head(queue);
         q != ngx_queue_sentinel(queue);
         q = ngx_queue_next(q))
    {
        look = ngx_queue_data(q, look_t, queue);

        if (look->op == op) {
            look->op = NULL;
            return;
        }
    }

    queue = look_queue(&look_pages);

    for (q = ngx_queue_head(queue);
         q != ngx_queue_sentinel(queue);
         q = ngx_queue_next(q))
    {
        page = ngx_queue_data(q, ngx_idempotency_page_t, queue);

        if (page->data == op) {
            page->data = NULL;
            return;
        }
    }
}


/* the cursor is the backing's, and one more */

ngx_int_t
ngx_idempotency_look_list(ngx_idempotency_shm_t *shm,
    ngx_idempotency_list_t *list)
{
    ngx_idempotency_op_t    *op;
    ngx_idempotency_page_t  *page;

    op = &list->op;
    page = NULL;

    if (shm->tier && shm->tier->backing->list) {
        page = ngx_calloc(sizeof(ngx_idempotency_page_t), ngx_cycle->log);
    }

    if (page) {
        page->data = op;
        page->n = ngx_min(list->n, NGX_IDEMPOTENCY_TIER_BATCH);
        page->cursor = list->cursor;

        if (list->cursor) {
            ngx_memcpy(page->token, op->token, NGX_IDEMPOTENCY_DIGEST_LEN);
        }

        ngx_queue_insert_tail(look_queue(&look_pages), &page->queue);

        if (shm->tier->backing->list(shm->tier, page) == NGX_AGAIN) {
            op->store = shm->store;
            op->again = look_listed;

            look_waits(op, &look_waiting);
            return NGX_AGAIN;
        }

        ngx_queue_remove(&page->queue);
        ngx_free(page);
    }

    list->n = 0;
    op->result = NGX_IDEMPOTENCY_UNAVAILABLE;

    return NGX_OK;
}


void
ngx_idempotency_look_listed(ngx_idempotency_page_t *page)
{
    ngx_idempotency_op_t    *op;
    ngx_idempotency_list_t  *list;

    op = page->data;

    if (op) {
        list = (ngx_idempotency_list_t *) op;

        op->waiting = 0;
        ngx_queue_remove(&op->queue);

        look_page(list, page);
    }

    ngx_queue_remove(&page->queue);
    ngx_free(page);

    if (op) {
        op->again(op);
    }
}


static void
look_listed(ngx_idempotency_op_t *op)
{
    op->handler(op);
}


static void
look_page(ngx_idempotency_list_t *list, ngx_idempotency_page_t *page)
{
    ngx_uint_t                i, n;
    ngx_idempotency_shm_t    *shm;
    ngx_idempotency_store_t  *store;

    n = 0;

    if (page->rc != NGX_OK) {
        list->n = 0;
        list->op.result = NGX_IDEMPOTENCY_UNAVAILABLE;
        return;
    }

    store = list->op.store;
    shm = store->data;

    ngx_idempotency_unseal(store->secret, page->items, page->n,
                           !ngx_idempotency_tier_shared(shm->tier));

    for (i = 0; i < page->n; i++) {

        /* some may have ended since, and what is damaged or forged tells
           nothing */

        if (page->items[i].result == NGX_IDEMPOTENCY_BOUND) {
            look_item(&list->listed[n++], &page->items[i], page->now);
        }
    }

    list->n = n;
    list->cursor = page->cursor;
    list->op.result = NGX_IDEMPOTENCY_OK;

    ngx_memcpy(list->op.token, page->token, NGX_IDEMPOTENCY_DIGEST_LEN);
}


static void
look_item(ngx_idempotency_listed_t *listed, ngx_idempotency_item_t *item,
    int64_t now)
{
    ngx_idempotency_found_t  *found;

    found = &listed->found;

    ngx_memcpy(listed->token, item->token, NGX_IDEMPOTENCY_DIGEST_LEN);
    ngx_memcpy(listed->fingerprint, item->fingerprint,
               NGX_IDEMPOTENCY_DIGEST_LEN);

    ngx_memzero(found, sizeof(ngx_idempotency_found_t));

    found->outcome = item->outcome;
    found->status = item->status;
    found->fence = item->fence;
    found->replays = item->replays;
    found->age = (item->recorded < now) ? now - item->recorded : 0;
    found->response.len = item->response.len;

    if (item->outcome == NGX_IDEMPOTENCY_PENDING) {
        found->instance = item->instance;

    } else if (item->ends > now) {
        found->left = item->ends - now;
    }
}
