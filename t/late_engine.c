
/*
 * A test's engine, compiled only with -DNGX_IDEMPOTENCY_LATE: the one over
 * shared memory, that takes its time.  What is asked is carried out some time
 * after that, and answered some time later, in any order.  What settles a
 * claim is carried out at once, as it is wherever a zone stands in front, and
 * is answered later.  That answer may never come; nor may that to a claim,
 * which is to be made again then: whether it was carried out is for chance to
 * say.
 */


#include "store/ngx_idempotency_shm.h"


/* half of the time that an operation takes at most, in milliseconds */

#define NGX_IDEMPOTENCY_LATE_HALF   10

/* one of so many is not heard, or not answered */

#define NGX_IDEMPOTENCY_LATE_NEVER  32

/* and one that a test wants to be slow, in milliseconds */

#define NGX_IDEMPOTENCY_LATE_SLOW   1500


typedef enum {
    late_asked = 0,    /* it is on its way there */
    late_done,         /* the answer is on its way back */
    late_waits         /* the engine beneath has it, and will call */
} late_state_e;


/* an operation is one of these; each begins with the same head */

typedef union {
    ngx_idempotency_op_t         op;
    ngx_idempotency_claim_t      claim;
    ngx_idempotency_complete_t   complete;
    ngx_idempotency_find_t       find;
    ngx_idempotency_forget_t     forget;
    ngx_idempotency_list_t       list;
} late_any_t;

typedef struct late_s  late_t;

typedef struct {
    size_t                       size;
    ngx_int_t                  (*run)(late_t *late);
    /* it settles something; its answer may get lost */
    unsigned                     settles:1;
    unsigned                     lost:1;
} late_kind_t;


/* our own copy of an operation, as the caller's may go */

struct late_s {
    late_any_t                   as;
    const late_kind_t           *kind;
    ngx_idempotency_store_t     *store;
    late_state_e                 state;

    /* the caller's, or NULL if that was cancelled; it is in this queue */
    ngx_idempotency_op_t        *op;
    ngx_queue_t                  caller;

    /* all of this worker's */
    ngx_queue_t                  queue;
    /* a claim whose maker has heard nothing yet */
    ngx_uint_t                   unheard;

    ngx_event_t                  timer;
    ngx_pool_t                  *pool;
};


static ngx_int_t late_ask(ngx_idempotency_store_t *store,
    ngx_idempotency_op_t *op, const late_kind_t *kind);
static late_t *late_create(ngx_idempotency_store_t *store,
    ngx_idempotency_op_t *op, const late_kind_t *kind);
static ngx_chain_t *late_pieces(late_t *late, ngx_chain_t *in, size_t size);
static void late_take(late_t *late, ngx_idempotency_op_t *op);
static ngx_int_t late_again(late_t *late, ngx_idempotency_op_t *op);
static late_t *late_of(ngx_idempotency_op_t *op);
static void late_start(late_t *late, ngx_uint_t may_be_lost);
static ngx_idempotency_fault_e late_fault(late_t *late);
static void late_timer_handler(ngx_event_t *ev);
static void late_run(late_t *late);
static void late_called(ngx_idempotency_op_t *op);
static void late_answer(late_t *late);
static void late_tell(void);
static void late_give(late_t *late, ngx_idempotency_op_t *op);
static void late_give_response(ngx_idempotency_op_t *op,
    ngx_idempotency_found_t *found, ngx_pool_t *pool);
static void late_unlink(late_t *late);
static void late_drop(late_t *late);
static void late_free(late_t *late);

static void late_cancel(ngx_idempotency_store_t *store,
    ngx_idempotency_op_t *op);
static ngx_int_t late_figures(ngx_idempotency_store_t *store, ngx_msec_t now,
    ngx_idempotency_figures_t *figures);
static ngx_int_t late_keep(ngx_conf_t *cf);
static ngx_int_t late_init_module(ngx_cycle_t *cycle);
static ngx_int_t late_init_process(ngx_cycle_t *cycle);
static void late_exit_process(ngx_cycle_t *cycle);


/*
 * What is asked, and what that is beneath: of each operation whether it settles
 * something, and whether its answer may get lost.
 */

#define late_operation(name, settles, lost)                                   \
    static ngx_int_t                                                          \
    late_run_##name(late_t *late)                                             \
    {                                                                         \
        return ngx_idempotency_shm_engine.name(late->store, &late->as.name);  \
    }                                                                         \
                                                                              \
    static const late_kind_t  late_kind_##name = {                            \
        sizeof(ngx_idempotency_##name##_t), late_run_##name, settles, lost    \
    };                                                                        \
                                                                              \
    static ngx_int_t                                                          \
    late_##name(ngx_idempotency_store_t *store,                               \
        ngx_idempotency_##name##_t *asked)                                    \
    {                                                                         \
        return late_ask(store, &asked->op, &late_kind_##name);                \
    }

late_operation(claim, 0, 1)
late_operation(complete, 1, 1)
late_operation(find, 0, 0)
late_operation(forget, 1, 0)
late_operation(list, 0, 0)


const ngx_idempotency_engine_t  ngx_idempotency_late_engine = {
    late_claim,
    late_complete,
    late_find,
    late_forget,
    late_list,
    late_cancel,
    late_figures,
    late_keep,
    late_init_module,
    late_init_process,
    late_exit_process
};


static ngx_queue_t  late_ops = { &late_ops, &late_ops };


static ngx_int_t
late_ask(ngx_idempotency_store_t *store, ngx_idempotency_op_t *op,
    const late_kind_t *kind)
{
    late_t  *late;

    /* a claim that is under way is made again */

    if (op->waiting) {
        return late_again(late_of(op), op);
    }

    late = late_create(store, op, kind);

    if (late == NULL) {
        op->result = NGX_IDEMPOTENCY_UNAVAILABLE;
        return NGX_OK;
    }

    op->waiting = 1;

    if (kind->settles) {
        late_run(late);

    } else {
        late_start(late, kind->lost);
    }

    late_tell();

    return NGX_AGAIN;
}


static late_t *
late_create(ngx_idempotency_store_t *store, ngx_idempotency_op_t *op,
    const late_kind_t *kind)
{
    late_t      *late;
    ngx_pool_t  *pool;

    pool = ngx_create_pool(4096, ngx_cycle->log);
    if (pool == NULL) {
        return NULL;
    }

    late = ngx_pcalloc(pool, sizeof(late_t));
    if (late == NULL) {
        goto failed;
    }

    late->pool = pool;
    late->kind = kind;
    late->store = store;

    ngx_memcpy(&late->as, op, kind->size);

    late->as.op.handler = late_called;
    late->as.op.data = late;
    late->as.op.waiting = 0;

    if (kind == &late_kind_claim) {
        late->as.claim.pool = pool;

    } else if (kind == &late_kind_find && late->as.find.pool) {
        late->as.find.pool = pool;

    } else if (kind == &late_kind_complete && late->as.complete.size) {
        late->as.complete.pieces = late_pieces(late, late->as.complete.pieces,
                                               late->as.complete.size);
        if (late->as.complete.pieces == NULL) {
            goto failed;
        }
    }

    late->timer.handler = late_timer_handler;
    late->timer.data = late;
    late->timer.log = ngx_cycle->log;

    ngx_queue_insert_tail(&late_ops, &late->queue);

    late->unheard = (kind == &late_kind_claim && late->as.op.waited == 0);

    late->op = op;
    ngx_queue_init(&late->caller);
    ngx_queue_insert_head(&late->caller, &op->queue);

    return late;

failed:

    ngx_destroy_pool(pool);

    return NULL;
}


/* the caller's may go as soon as it has asked */

static ngx_chain_t *
late_pieces(late_t *late, ngx_chain_t *in, size_t size)
{
    ngx_buf_t    *b;
    ngx_chain_t  *cl;

    b = ngx_create_temp_buf(late->pool, size);
    cl = ngx_alloc_chain_link(late->pool);

    if (b == NULL || cl == NULL) {
        return NULL;
    }

    for ( /* void */ ; in; in = in->next) {
        b->last = ngx_cpymem(b->last, in->buf->pos,
                             in->buf->last - in->buf->pos);
    }

    cl->buf = b;
    cl->next = NULL;

    return cl;
}


/*
 * A claim is made again while it is ours: what it says may have changed, who
 * it is has not
 */

static void
late_take(late_t *late, ngx_idempotency_op_t *op)
{
    ngx_idempotency_claim_t  *claim;

    claim = &late->as.claim;

    ngx_memcpy((u_char *) claim + sizeof(ngx_idempotency_op_t),
               (u_char *) op + sizeof(ngx_idempotency_op_t),
               sizeof(ngx_idempotency_claim_t) - sizeof(ngx_idempotency_op_t));

    claim->op.now = op->now;
    claim->pool = late->pool;
}


static ngx_int_t
late_again(late_t *late, ngx_idempotency_op_t *op)
{
    if (late->timer.timer_set) {
        return NGX_AGAIN;
    }

    if (late->state == late_done
        && late->as.op.result == NGX_IDEMPOTENCY_CLAIMED)
    {
        /* the same claim sent twice is one claim */

        late_start(late, 0);
        return NGX_AGAIN;
    }

    late->state = late_asked;
    late_take(late, op);
    late_start(late, 1);

    return NGX_AGAIN;
}


static late_t *
late_of(ngx_idempotency_op_t *op)
{
    ngx_queue_t  *q;

    q = ngx_queue_next(&op->queue);

    return ngx_queue_data(q, late_t, caller);
}


static void
late_start(late_t *late, ngx_uint_t may_be_lost)
{
    ngx_msec_t  delay;

    delay = ngx_random() % (NGX_IDEMPOTENCY_LATE_HALF + 1);

    switch (late_fault(late)) {

    case NGX_IDEMPOTENCY_FAULT_UNANSWERED:
    case NGX_IDEMPOTENCY_FAULT_UNSETTLED:
        return;

    case NGX_IDEMPOTENCY_FAULT_SLOW:
        delay = NGX_IDEMPOTENCY_LATE_SLOW;
        break;

    default:
        if (may_be_lost && ngx_random() % NGX_IDEMPOTENCY_LATE_NEVER == 0) {
            return;
        }
    }

    ngx_add_timer(&late->timer, delay);
}


/* what a test wants to happen now, which is logged for it */

static ngx_idempotency_fault_e
late_fault(late_t *late)
{
#if (NGX_IDEMPOTENCY_FAULTS)

    ngx_uint_t               claims;
    ngx_idempotency_fault_e  fault;

    fault = late->as.op.fault;
    claims = (late->kind == &late_kind_claim);

    if ((fault == NGX_IDEMPOTENCY_FAULT_SLOW
         && claims && late->state == late_asked)
        || (fault == NGX_IDEMPOTENCY_FAULT_UNANSWERED
            && claims && late->state == late_done)
        || (fault == NGX_IDEMPOTENCY_FAULT_UNSETTLED
            && late->kind->settles))
    {
        late->as.op.fault = NGX_IDEMPOTENCY_FAULT_NONE;

        ngx_log_error(NGX_LOG_INFO, ngx_cycle->log, 0,
                      "idempotency late: one is %s",
                      (fault == NGX_IDEMPOTENCY_FAULT_SLOW) ? "slow"
                                                            : "unanswered");
        return fault;
    }

#endif

    return NGX_IDEMPOTENCY_FAULT_NONE;
}


static void
late_timer_handler(ngx_event_t *ev)
{
    late_t  *late;

    late = ev->data;

    if (late->state == late_asked) {
        late_run(late);

    } else {
        late_answer(late);
    }
}


static void
late_run(late_t *late)
{
    ngx_int_t  rc;

    rc = late->kind->run(late);

    if (rc == NGX_AGAIN) {
        late->state = late_waits;

        if (late->op == NULL) {
            late_drop(late);
        }

        return;
    }

    if (rc == NGX_ERROR) {
        late->as.op.result = NGX_IDEMPOTENCY_UNAVAILABLE;
    }

    late->state = late_done;

    if (late->op == NULL) {
        late_drop(late);
        return;
    }

    late_start(late, late->kind->lost);
}


/* the engine beneath has something to say, be it that an answer which is on
   its way is another one by now */

static void
late_called(ngx_idempotency_op_t *op)
{
    late_t  *late;

    late = op->data;

    if (late->state == late_asked) {
        return;
    }

    late->state = late_done;

    if (!late->timer.timer_set) {
        late_start(late, late->kind->lost);
    }
}


static void
late_answer(late_t *late)
{
    ngx_idempotency_op_t  *op;

    op = late->op;

    if (op == NULL) {
        late_drop(late);
        return;
    }

    late_give(late, op);

    if (late->as.op.waiting) {

        /* bound, and the change is yet to come */

        late->unheard = 0;
        late->state = late_waits;

    } else {
        late_unlink(late);
        late_free(late);
    }

    late_tell();

    op->handler(op);
}


/* tests want to know when all that asked have been heard */

static void
late_tell(void)
{
    late_t            *late;
    ngx_uint_t         unheard;
    ngx_queue_t       *q;

    static ngx_uint_t  told;

    unheard = 0;

    for (q = ngx_queue_head(&late_ops);
         q != ngx_queue_sentinel(&late_ops) && !unheard;
         q = ngx_queue_next(q))
    {
        late = ngx_queue_data(q, late_t, queue);
        unheard = late->unheard;
    }

    if (unheard != told) {
        told = unheard;
        ngx_log_error(NGX_LOG_INFO, ngx_cycle->log, 0,
                      "idempotency late: %s",
                      unheard ? "some are unheard" : "all are heard");
    }
}


/* what stands behind its head, but for what that pointed to */

static void
late_give(late_t *late, ngx_idempotency_op_t *op)
{
    size_t       head;
    late_any_t  *to, old;

    head = sizeof(ngx_idempotency_op_t);
    to = (late_any_t *) op;

    ngx_memcpy(&old, op, late->kind->size);

    op->result = late->as.op.result;
    op->waited = late->as.op.waited;
    op->asker = late->as.op.asker;
    op->answer = late->as.op.answer;
    op->since = late->as.op.since;

    ngx_memcpy(op->token, late->as.op.token, NGX_IDEMPOTENCY_DIGEST_LEN);
    ngx_memcpy((u_char *) op + head, (u_char *) &late->as + head,
               late->kind->size - head);

    if (late->kind == &late_kind_claim) {
        to->claim.pool = old.claim.pool;
        late_give_response(op, &to->claim.found, to->claim.pool);

    } else if (late->kind == &late_kind_find) {
        to->find.pool = old.find.pool;
        late_give_response(op, &to->find.found, to->find.pool);

    } else if (late->kind == &late_kind_complete) {
        to->complete.pieces = old.complete.pieces;
    }
}


static void
late_give_response(ngx_idempotency_op_t *op, ngx_idempotency_found_t *found,
    ngx_pool_t *pool)
{
    u_char  *p;

    if (op->result != NGX_IDEMPOTENCY_BOUND || found->response.data == NULL) {
        found->response.data = NULL;
        return;
    }

    p = ngx_pnalloc(pool, found->response.len);

    if (p == NULL) {
        op->result = NGX_IDEMPOTENCY_UNAVAILABLE;

    } else {
        ngx_memcpy(p, found->response.data, found->response.len);
    }

    found->response.data = p;
}


static void
late_unlink(late_t *late)
{
    ngx_queue_remove(&late->op->queue);

    late->op->waiting = 0;
    late->op = NULL;
}


/*
 * Nobody wants the answer.  What has not been carried out yet is, unless it is
 * about memory that may be gone: a claim that is granted then is released.
 */

static void
late_cancel(ngx_idempotency_store_t *store, ngx_idempotency_op_t *op)
{
    late_t  *late;

    if (!op->waiting) {
        return;
    }

    late = late_of(op);
    late_unlink(late);
    late->unheard = 0;

    if (late->kind == &late_kind_claim) {
        late->as.claim.wait = 0;
    }

    if (!late->timer.timer_set
        || late->state == late_waits
        || late->kind == &late_kind_list)
    {
        late_drop(late);
    }

    late_tell();
}


static void
late_drop(late_t *late)
{
    ngx_idempotency_op_t        *op;
    ngx_idempotency_complete_t   release;

    op = &late->as.op;

    ngx_idempotency_shm_engine.cancel(late->store, op);

    if (late->kind == &late_kind_claim
        && late->state == late_done
        && op->result == NGX_IDEMPOTENCY_CLAIMED)
    {
        ngx_memzero(&release, sizeof(ngx_idempotency_complete_t));

        ngx_memcpy(release.op.token, op->token, NGX_IDEMPOTENCY_DIGEST_LEN);
        release.op.now = op->now;
        release.fence = late->as.claim.fence;
        release.release = 1;

        (void) ngx_idempotency_shm_engine.complete(late->store, &release);
    }

    late_free(late);
}


static void
late_free(late_t *late)
{
    if (late->timer.timer_set) {
        ngx_del_timer(&late->timer);
    }

    ngx_queue_remove(&late->queue);
    ngx_destroy_pool(late->pool);
}


static ngx_int_t
late_figures(ngx_idempotency_store_t *store, ngx_msec_t now,
    ngx_idempotency_figures_t *figures)
{
    return ngx_idempotency_shm_engine.figures(store, now, figures);
}


static ngx_int_t
late_keep(ngx_conf_t *cf)
{
    return ngx_idempotency_shm_engine.keep(cf);
}


static ngx_int_t
late_init_module(ngx_cycle_t *cycle)
{
    return ngx_idempotency_shm_engine.init_module(cycle);
}


static ngx_int_t
late_init_process(ngx_cycle_t *cycle)
{
    return ngx_idempotency_shm_engine.init_process(cycle);
}


/* what was handed over is carried out, and nobody is told */

static void
late_exit_process(ngx_cycle_t *cycle)
{
    late_t       *late;
    ngx_queue_t  *q;

    while (!ngx_queue_empty(&late_ops)) {

        q = ngx_queue_head(&late_ops);
        late = ngx_queue_data(q, late_t, queue);

        if (late->state == late_asked
            && late->kind != &late_kind_claim
            && late->kind != &late_kind_list)
        {
            (void) late->kind->run(late);
        }

        late_drop(late);
    }

    ngx_idempotency_shm_engine.exit_process(cycle);
}
