
/*
 * What is asked of a store on behalf of a request of idempotency_api: step by
 * step, each of which may be answered later.  The request may go meanwhile;
 * what was begun is then done all the same, as half of it may be worse.
 */


#include "ngx_http_idempotency_observe.h"


/* between two steps, in milliseconds */

#define NGX_HTTP_IDEMPOTENCY_ASKING_PAUSE  1



static void asking_answered(ngx_idempotency_op_t *op);
static void asking_event(ngx_event_t *ev);
static ngx_int_t asking_step(ngx_http_idempotency_asking_t *asking);
static void asking_gone(void *data);


ngx_http_idempotency_asking_t *
ngx_http_idempotency_asking_create(ngx_http_request_t *r,
    ngx_idempotency_store_t *store, size_t size)
{
    ngx_pool_t                     *pool;
    ngx_http_cleanup_t             *cln;
    ngx_http_idempotency_asking_t  *asking;

    cln = ngx_http_cleanup_add(r, 0);
    if (cln == NULL) {
        return NULL;
    }

    pool = ngx_create_pool(1024, ngx_cycle->log);
    if (pool == NULL) {
        return NULL;
    }

    asking = ngx_pcalloc(pool, sizeof(ngx_http_idempotency_asking_t) + size);

    if (asking == NULL) {
        ngx_destroy_pool(pool);
        return NULL;
    }

    asking->pool = pool;
    asking->request = r;
    asking->cleanup = cln;
    asking->store = store;
    asking->data = asking + 1;

    asking->event.handler = asking_event;
    asking->event.data = asking;
    asking->event.log = ngx_cycle->log;

    cln->handler = asking_gone;
    cln->data = asking;

    return asking;
}


/* from within a content handler: what that returns */

ngx_int_t
ngx_http_idempotency_asking_begin(ngx_http_idempotency_asking_t *asking)
{
    ngx_int_t            rc;
    ngx_http_request_t  *r;

    r = asking->request;

    if (asking_step(asking) == NGX_AGAIN) {
        r->main->count++;
        return NGX_DONE;
    }

    rc = asking->respond(asking);
    ngx_http_idempotency_asking_end(asking);

    return rc;
}


/* from elsewhere: the request is finalized, be it now or later */

void
ngx_http_idempotency_asking_run(ngx_http_idempotency_asking_t *asking)
{
    ngx_int_t            rc;
    ngx_http_request_t  *r;

    if (asking_step(asking) == NGX_AGAIN) {
        return;
    }

    r = asking->request;
    rc = r ? asking->respond(asking) : NGX_OK;

    ngx_http_idempotency_asking_end(asking);

    if (r) {
        ngx_http_finalize_request(r, rc);
    }
}


static ngx_int_t
asking_step(ngx_http_idempotency_asking_t *asking)
{
    ngx_int_t  rc;

    rc = asking->step(asking);

    asking->later = (rc == NGX_AGAIN);

    return rc;
}


/* before it is asked */

void
ngx_http_idempotency_asking_op(ngx_http_idempotency_asking_t *asking,
    ngx_idempotency_op_t *op)
{
    op->now = ngx_current_msec;
    op->handler = asking_answered;
    op->data = asking;
    op->result = NGX_IDEMPOTENCY_UNAVAILABLE;
}


/* NGX_AGAIN: the next step is taken with the answer; or, of a claim, without:
   made again it is the same one */

ngx_int_t
ngx_http_idempotency_asking_asked(ngx_http_idempotency_asking_t *asking,
    ngx_idempotency_op_t *op, ngx_int_t rc, ngx_msec_t again)
{
    if (rc == NGX_AGAIN) {
        asking->op = op;

        if (again) {
            ngx_add_timer(&asking->event, again);
        }

        return NGX_AGAIN;
    }

    if (rc != NGX_OK) {
        op->result = NGX_IDEMPOTENCY_UNAVAILABLE;
    }

    return NGX_OK;
}


static void
asking_answered(ngx_idempotency_op_t *op)
{
    ngx_connection_t               *c;
    ngx_http_request_t             *r;
    ngx_http_idempotency_asking_t  *asking;

    asking = op->data;
    asking->op = NULL;

    if (asking->event.timer_set) {
        ngx_del_timer(&asking->event);
    }

    r = asking->request;

    if (r == NULL) {
        ngx_http_idempotency_asking_run(asking);
        return;
    }

    c = r->connection;

    ngx_http_set_log_request(c->log, r);
    ngx_http_idempotency_asking_run(asking);
    ngx_http_run_posted_requests(c);
}


/* NGX_AGAIN: others have their turn, most of the time, then the next step is
   taken */

ngx_int_t
ngx_http_idempotency_asking_yield(ngx_http_idempotency_asking_t *asking)
{
    ngx_add_timer(&asking->event, NGX_HTTP_IDEMPOTENCY_ASKING_PAUSE);

    return NGX_AGAIN;
}


static void
asking_event(ngx_event_t *ev)
{
    ngx_connection_t               *c;
    ngx_idempotency_op_t           *op;
    ngx_http_idempotency_asking_t  *asking;

    asking = ev->data;
    op = asking->op;

    if (op) {
        op->result = NGX_IDEMPOTENCY_CHANGED;
        op->handler(op);
        return;
    }

    c = asking->request ? asking->request->connection : NULL;

    ngx_http_idempotency_asking_run(asking);

    if (c) {
        ngx_http_run_posted_requests(c);
    }
}


static void
asking_gone(void *data)
{
    ngx_http_idempotency_asking_t  *asking = data;

    if (asking == NULL) {
        return;
    }

    asking->request = NULL;

    if (!asking->later) {
        ngx_http_idempotency_asking_end(asking);
    }
}


void
ngx_http_idempotency_asking_end(ngx_http_idempotency_asking_t *asking)
{
    if (asking->event.timer_set) {
        ngx_del_timer(&asking->event);
    }

    if (asking->request) {
        asking->cleanup->data = NULL;
    }

    ngx_destroy_pool(asking->pool);
}
