
/*
 * A request's way in: the phase handlers, and the table of states by which a
 * request passes them.  Replays are sent from here, too, from the top of all
 * filters as the original was.  The claim itself is in claim.c.
 *
 * The preaccess handler, in front of all access control, notes that a request
 * came by.  The access handler, behind all access control, prepares the
 * request: key, body, digest.  The precontent handler, at the first point
 * behind the access phase, decides it.  Under "satisfy any" the access phase
 * may skip our handler, or call it for a request that is about to be refused;
 * and another module's handler may have moved behind ours.  Then the precontent
 * handler prepares the request, too.
 *
 * LATE      Nothing is claimed before access control has let the request in.
 * NEVER OK  A handler returns NGX_DECLINED to let the request go on, and
 *           NGX_DONE where something else drives it: the reader of the body,
 *           which runs the phases again, the end of a wait (access_resume), or
 *           an answer of ours, which is finalized.  NGX_OK would skip the
 *           handlers behind ours in the phase, or, under "satisfy any", grant
 *           access.
 */


#include "ngx_http_idempotency_response.h"


/* a larger body is sent from a file, as a slow client holds it for long */

#define NGX_HTTP_IDEMPOTENCY_REPLAY_MEMORY  65536

/* A claim without an answer is made again after so many milliseconds.  The
   time doubles with each attempt, up to so many times. */

#define NGX_HTTP_IDEMPOTENCY_WAIT          500
#define NGX_HTTP_IDEMPOTENCY_WAIT_DOUBLED  4


/* For so many milliseconds the last body that was sent stays in its file, and
   all requests that waited for it are sent that one file. */

#define NGX_HTTP_IDEMPOTENCY_REPLAY_KEPT  1000

typedef struct {
    ngx_uint_t                   users;
    ngx_pool_t                  *pool;
    ngx_file_t                   file;

    ngx_idempotency_counters_t  *zone;
    uint64_t                     fence;
    size_t                       size;
    u_char                       token[NGX_IDEMPOTENCY_DIGEST_LEN];
} replay_body_t;

static replay_body_t    *replay_kept;
static ngx_event_t       replay_event;
static ngx_connection_t  replay_dumb;


/* where a request enters the table */

typedef enum {
    access_at_access = 0,    /* behind all access control */
    access_at_content,       /* where no access control can follow */
    access_at_answer         /* the store has answered, or a wait is over */
} access_event_e;

/*
 * NGX_OK: go on by the table, as the state may have changed; NGX_DECLINED:
 * leave the request to other handlers; NGX_DONE: something else drives it; or
 * an error
 */

typedef ngx_int_t (*access_step_pt)(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);


static ngx_inline ngx_uint_t access_protects(ngx_http_request_t *r);
static ngx_uint_t access_upgrade(ngx_http_request_t *r);
static ngx_uint_t access_undecided(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_uint_t access_last(ngx_http_request_t *r);
static ngx_int_t access_run(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, access_event_e event);
static ngx_int_t access_look(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static void access_judge(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t access_read(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t access_bind(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t access_obey(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t access_claim(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t access_claim_again(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t access_ask(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_idempotency_claim_t *claim);
static void access_resume(ngx_idempotency_op_t *op);
static ngx_int_t access_answered(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t access_claimed(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t access_nested(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t access_similar(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t access_similar_answered(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t access_bound(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t access_stranger(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t access_carry(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t access_pass(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t access_replay(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_file_t *replay_to_file(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_response_t *response);
static replay_body_t *replay_body(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *bytes);
static void replay_keep(replay_body_t *body);
static void replay_kept_handler(ngx_event_t *ev);
static void replay_body_release(void *data);
static ngx_int_t replay_send(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_response_t *response, ngx_file_t *file);
static ngx_int_t replay_mark(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
#if (NGX_IDEMPOTENCY_FAULTS)
static void access_fault(ngx_http_request_t *r, ngx_idempotency_op_t *op);
#endif


/*
 * The step for a request in a state at an event.  A step sets the next state,
 * in most cases that of the next line.  A request that was prepared in the
 * access phase passes there, and is decided in the precontent phase.
 */

static access_step_pt  access_table[][3] = {

    /*                access,    content,    answer */

    /* UNSEEN   */  { access_look, access_look,  NULL },
    /* KEYED    */  { access_read, access_read,  NULL },
    /* READING  */  { access_bind, access_bind,  NULL },
    /* JUDGED   */  { access_pass, access_obey,  NULL },
    /* BOUND    */  { access_pass, access_claim, NULL },
    /* DECIDED  */  { access_pass, access_carry, access_answered },
    /* OWNER    */  { access_pass, access_carry,
                      access_similar_answered },
    /* SETTLED  */  { access_pass, access_carry, NULL },
    /* RELEASED */  { access_pass, access_carry, NULL }
};


ngx_int_t
ngx_http_idempotency_access_handler(ngx_http_request_t *r)
{
    ngx_http_idempotency_ctx_t  *ctx;

    if (!access_protects(r)) {
        return NGX_DECLINED;
    }

    ctx = ngx_http_idempotency_get_ctx(r);

    if (!access_undecided(r, ctx) || !access_last(r)) {
        return NGX_DECLINED;
    }

    return access_run(r, ctx, access_at_access);
}


/* a request that was decided comes by again in each location that it is sent
   to */

ngx_int_t
ngx_http_idempotency_precontent_handler(ngx_http_request_t *r)
{
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ngx_http_idempotency_get_ctx(r);

    if ((ctx && ctx->state >= NGX_HTTP_IDEMPOTENCY_STATE_DECIDED)
        || (access_protects(r) && access_undecided(r, ctx)))
    {
        return access_run(r, ctx, access_at_content);
    }

    return NGX_DECLINED;
}


/* whether the location protects the request */

static ngx_inline ngx_uint_t
access_protects(ngx_http_request_t *r)
{
    ngx_http_idempotency_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    return conf->store
           && !conf->api
           && r == r->main
           && !r->post_action
           && (r->method & conf->methods)
           && (r->headers_in.upgrade == NULL || !access_upgrade(r));
}


/*
 * A request with an upgraded connection has no response to keep, and begins
 * with a GET.  On any other request an offer to upgrade would only switch its
 * protection off.  Offers of h2c or TLS come with ordinary requests, and nginx
 * doesn't take them up.
 */

static ngx_uint_t
access_upgrade(ngx_http_request_t *r)
{
    ngx_str_t                           *value;
    ngx_table_elt_t                     *h;
    ngx_http_idempotency_header_iter_t   it;

    static ngx_str_t  connection = ngx_string("connection");

    if (r->method != NGX_HTTP_GET) {
        return 0;
    }

    value = &r->headers_in.upgrade->value;

    if (value->len >= 3
        && (ngx_strncasecmp(value->data, (u_char *) "h2c", 3) == 0
            || ngx_strncasecmp(value->data, (u_char *) "TLS", 3) == 0))
    {
        return 0;
    }

    ngx_http_idempotency_header_iter(&it, r);

    while ((h = ngx_http_idempotency_header_next(&it, &connection)) != NULL) {

        value = &h->value;

        if (ngx_strlcasestrn(value->data, value->data + value->len,
                             (u_char *) "upgrade", 7 - 1)
            != NULL)
        {
            return 1;
        }
    }

    return 0;
}


/* A request keeps the settings of the first location that decides it.  The
   error page of a request that was turned away claims nothing. */

static ngx_uint_t
access_undecided(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    if (r->err_status >= NGX_HTTP_SPECIAL_RESPONSE) {
        return 0;
    }

    return ctx == NULL
           || (ctx->state < NGX_HTTP_IDEMPOTENCY_STATE_DECIDED
               && !ctx->access.turned_away);
}


/*
 * Whether all access control is over when our handler runs.  The running
 * phases tell that, the configuration doesn't: Lua moves its handler to the
 * end of the access phase at its first request.
 */

static ngx_uint_t
access_last(ngx_http_request_t *r)
{
    ngx_http_phase_handler_t   *ph;
    ngx_http_core_loc_conf_t   *clcf;
    ngx_http_core_main_conf_t  *cmcf;

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);
    cmcf = ngx_http_get_module_main_conf(r, ngx_http_core_module);

    ph = cmcf->phase_engine.handlers;

    return clcf->satisfy == NGX_HTTP_SATISFY_ALL
           && ph[r->phase_handler + 1].checker != ngx_http_core_access_phase;
}


static ngx_int_t
access_run(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    access_event_e event)
{
    ngx_int_t                         rc;
    ngx_http_idempotency_loc_conf_t  *conf;

    if (ctx == NULL) {
        ctx = ngx_http_idempotency_create_ctx(r);
        if (ctx == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    if (ctx->conf != conf
        && ctx->state < NGX_HTTP_IDEMPOTENCY_STATE_DECIDED)
    {
        /*
         * The request is new, or came to another location before its decision:
         * that location's settings may name other fields of the body.
         */

        ctx->conf = conf;
        ctx->body.digested = 0;
        ctx->state = NGX_HTTP_IDEMPOTENCY_STATE_UNSEEN;
    }

    do {
        ngx_log_debug2(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                       "idempotency gate: state:%ui, event:%ui",
                       (ngx_uint_t) ctx->state, (ngx_uint_t) event);

        rc = access_table[ctx->state][event](r, ctx);
    } while (rc == NGX_OK);

    if (rc >= NGX_HTTP_SPECIAL_RESPONSE
        && ctx->state < NGX_HTTP_IDEMPOTENCY_STATE_DECIDED)
    {
        /* a request that comes back by an error_page begins anew */

        ctx->state = NGX_HTTP_IDEMPOTENCY_STATE_UNSEEN;
    }

    return rc;
}


static ngx_int_t
access_look(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    if (ngx_http_test_predicates(r, ctx->conf->bypass) == NGX_DECLINED) {
        ctx->verdict = NGX_HTTP_IDEMPOTENCY_STATUS_BYPASS;
        ctx->state = NGX_HTTP_IDEMPOTENCY_STATE_JUDGED;
        return NGX_OK;
    }

    ctx->verdict = NGX_HTTP_IDEMPOTENCY_STATUS_NEW;
    ctx->state = NGX_HTTP_IDEMPOTENCY_STATE_KEYED;

    ctx->claim.parts.version = NGX_IDEMPOTENCY_FINGERPRINT_VERSION;

    if (!ctx->conf->key_in_body) {
        access_judge(r, ctx);
    }

    return NGX_OK;
}


/* the key, or its absence, may decide the request without the store */

static void
access_judge(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ctx->verdict = ngx_http_idempotency_key(r, ctx);

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "idempotency key: \"%V\", verdict:%ui",
                   &ctx->key, (ngx_uint_t) ctx->verdict);

    if (ctx->verdict != NGX_HTTP_IDEMPOTENCY_STATUS_NEW) {
        ctx->state = NGX_HTTP_IDEMPOTENCY_STATE_JUDGED;
    }
}


static ngx_int_t
access_read(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ctx->state = NGX_HTTP_IDEMPOTENCY_STATE_READING;

    /* another location began to read the body, which never came: it was
       refused */

    return ctx->body.reading ? NGX_OK : ngx_http_idempotency_read_body(r, ctx);
}


static ngx_int_t
access_bind(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    if (ctx->body.reading) {

        /* the body was refused, and an error page is being made */

        ctx->verdict = NGX_HTTP_IDEMPOTENCY_STATUS_NONE;
        ctx->state = NGX_HTTP_IDEMPOTENCY_STATE_JUDGED;
        return NGX_OK;
    }

    ngx_http_idempotency_bind_early(r, ctx);

    if (ngx_http_idempotency_digest_body(r, ctx) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (ctx->conf->key_in_body) {
        access_judge(r, ctx);

        if (ctx->state == NGX_HTTP_IDEMPOTENCY_STATE_JUDGED) {
            return NGX_OK;
        }
    }

    if (ngx_http_idempotency_bind(r, ctx) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_log_debug4(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "idempotency bind: token:%*xs, fingerprint:%*xs",
                   (size_t) NGX_IDEMPOTENCY_DIGEST_LEN, ctx->claim.op.token,
                   (size_t) NGX_IDEMPOTENCY_DIGEST_LEN,
                   ctx->claim.fingerprint);

    ctx->state = NGX_HTTP_IDEMPOTENCY_STATE_BOUND;

    return NGX_OK;
}


/* a request that passes here may be protected in the next location */

static ngx_int_t
access_obey(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    switch (ctx->verdict) {

    case NGX_HTTP_IDEMPOTENCY_STATUS_NONE:
    case NGX_HTTP_IDEMPOTENCY_STATUS_BYPASS:
        ctx->status = ctx->verdict;
        return NGX_DECLINED;

    default:
        ctx->state = NGX_HTTP_IDEMPOTENCY_STATE_DECIDED;
        return ngx_http_idempotency_refuse(r, ctx, ctx->verdict);
    }
}


static ngx_int_t
access_claim(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ctx->state = NGX_HTTP_IDEMPOTENCY_STATE_DECIDED;

    ctx->wait.deadline = ngx_current_msec + ctx->conf->wait_timeout;

    ctx->claim.pool = r->pool;
    ctx->claim.lease = ctx->conf->lease;
    ctx->claim.reserve = ctx->conf->max_response;
    ctx->claim.retry = (ctx->conf->in_doubt
                        == NGX_HTTP_IDEMPOTENCY_IN_DOUBT_RETRY);

#if (NGX_IDEMPOTENCY_FAULTS)
    access_fault(r, &ctx->claim.op);
#endif

    if (ngx_http_idempotency_prepare(ctx) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return access_claim_again(r, ctx);
}


/* makes the claim again: the pending record changed, or the answer is
   overdue */

static ngx_int_t
access_claim_again(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ctx->claim.op.now = ngx_current_msec;

    if (ngx_http_idempotency_limits(r, ctx) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ctx->claim.wait = (ctx->conf->in_progress
                       == NGX_HTTP_IDEMPOTENCY_IN_PROGRESS_WAIT
                       && !ctx->conf->dry_run
                       && (ngx_msec_int_t)
                              (ctx->wait.deadline - ctx->claim.op.now)
                          > 0);

    return access_ask(r, ctx, &ctx->claim);
}


static ngx_int_t
access_ask(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_idempotency_claim_t *claim)
{
    ngx_int_t                 rc;
    ngx_uint_t                doubled;
    ngx_idempotency_store_t  *store;

    claim->op.handler = access_resume;
    claim->op.data = ctx;

    store = ctx->conf->store;

    rc = store->engine->claim(store, claim);

    if (rc == NGX_OK) {
        return access_table[ctx->state][access_at_answer](r, ctx);
    }

    if (rc != NGX_AGAIN) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    doubled = ngx_min(ctx->wait.overdue, NGX_HTTP_IDEMPOTENCY_WAIT_DOUBLED);

    return ngx_http_idempotency_wait(r, ctx, claim,
                                     NGX_HTTP_IDEMPOTENCY_WAIT << doubled);
}


/*
 * The store has answered, or the token's record has changed.  The event loop
 * calls this handler, so it does what nginx does around a request's events.
 * The next step may wait for the store once more.
 */

static void
access_resume(ngx_idempotency_op_t *op)
{
    ngx_int_t                    rc;
    ngx_connection_t            *c;
    ngx_http_request_t          *r;
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = op->data;
    r = ctx->request;
    c = r->connection;

    ngx_http_set_log_request(c->log, r);

    if (ctx->wait.timer.timer_set) {
        ngx_del_timer(&ctx->wait.timer);
    }

    r->read_event_handler = ngx_http_block_reading;
    r->write_event_handler = ngx_http_core_run_phases;

    rc = access_table[ctx->state][access_at_answer](r, ctx);

    if (rc == NGX_OK) {
        /* our handler runs again */
        ngx_http_core_run_phases(r);

    } else if (rc != NGX_DONE) {
        ngx_http_finalize_request(r, rc);
    }

    ngx_http_run_posted_requests(c);
}


static ngx_int_t
access_answered(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_http_idempotency_status_e  why;

    ngx_log_debug3(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "idempotency answer: result:%ui, outcome:%ui, waiting:%d",
                   (ngx_uint_t) ctx->claim.op.result,
                   (ngx_uint_t) ctx->claim.found.outcome,
                   ctx->claim.op.waiting);

    if (ctx->claim.op.result == NGX_IDEMPOTENCY_CHANGED) {
        return access_claim_again(r, ctx);
    }

    ctx->answered = ngx_current_msec;
    ctx->wait.overdue = 0;

    switch (ctx->claim.op.result) {

    case NGX_IDEMPOTENCY_CLAIMED:
        return access_claimed(r, ctx);

    case NGX_IDEMPOTENCY_BOUND:
    case NGX_IDEMPOTENCY_CONFLICT:

        if (ngx_http_idempotency_nested(r, ctx)) {
            return access_nested(r, ctx);
        }

        /* a request may find several pending claims, and counts once */

        if (ctx->claim.found.outcome == NGX_IDEMPOTENCY_PENDING
            && !ctx->raced)
        {
            ctx->raced = 1;
            ngx_idempotency_stats_add(ctx->conf->store->counters->races, 1);
        }

        if (ctx->claim.op.result == NGX_IDEMPOTENCY_BOUND) {
            return access_bound(r, ctx);
        }

        why = NGX_HTTP_IDEMPOTENCY_STATUS_CONFLICT;
        break;

    case NGX_IDEMPOTENCY_VERSION:

        /* the record's fingerprint was made by other settings: they can't be
           compared */

        ctx->claim.differs = NGX_IDEMPOTENCY_DIFFERS_SETTINGS;
        why = NGX_HTTP_IDEMPOTENCY_STATUS_CONFLICT;
        break;

    case NGX_IDEMPOTENCY_EXPIRED:
        why = NGX_HTTP_IDEMPOTENCY_STATUS_EXPIRED;
        break;

    case NGX_IDEMPOTENCY_LIMITED:
        why = NGX_HTTP_IDEMPOTENCY_STATUS_LIMITED;

        /* rounded up: by then there is room */

        ctx->retry_after = (ctx->claim.found.left + 999) / 1000;
        break;

    default: /* NGX_IDEMPOTENCY_UNAVAILABLE */

        if (!ctx->claim.alone) {
            ngx_idempotency_stats_add(ctx->conf->store->counters->unavailable,
                                      1);
        }

        if (ctx->conf->unavailable == NGX_HTTP_IDEMPOTENCY_UNAVAILABLE_LOCAL
            && !ctx->claim.alone)
        {
            ctx->claim.alone = 1;
            return access_claim_again(r, ctx);
        }

        /* a key that is too old is refused even without a store */

        why = (ctx->claim.old && ctx->conf->unavailable
                                 == NGX_HTTP_IDEMPOTENCY_UNAVAILABLE_PASS)
                  ? NGX_HTTP_IDEMPOTENCY_STATUS_EXPIRED
                  : NGX_HTTP_IDEMPOTENCY_STATUS_UNAVAILABLE;
        break;
    }

    return ngx_http_idempotency_refuse(r, ctx, why);
}


static ngx_int_t
access_claimed(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_idempotency_die(&ctx->claim.op, NGX_IDEMPOTENCY_FAULT_DIE_CLAIMED);

#if (NGX_IDEMPOTENCY_FAULTS)
    if (ctx->claim.op.fault == NGX_IDEMPOTENCY_FAULT_BUSY) {
        ngx_log_error_core(NGX_LOG_INFO, ngx_cycle->log, 0,
                           "busy for a while");
        ngx_msleep(4000);
    }
#endif

    if (ctx->claim.taken) {
        ngx_http_idempotency_log(r, ctx, NGX_HTTP_IDEMPOTENCY_STATUS_NEW,
                                 ctx->conf->log_level,
                                 ": took over a token in doubt");
    }

    ngx_http_idempotency_log(r, ctx, NGX_HTTP_IDEMPOTENCY_STATUS_NEW,
                             ngx_http_idempotency_trail_level(ctx->conf),
                             " claim");

    ctx->state = NGX_HTTP_IDEMPOTENCY_STATE_OWNER;
    ctx->status = NGX_HTTP_IDEMPOTENCY_STATUS_NEW;

    if (ctx->similar) {
        return access_similar(r, ctx);
    }

    ngx_http_idempotency_count(ctx);

    return NGX_OK;
}


/* the request is a part of the owner's operation, and owns nothing */

static ngx_int_t
access_nested(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_idempotency_store_t  *store;

    if (ctx->claim.op.waiting) {
        store = ctx->conf->store;
        store->engine->cancel(store, &ctx->claim.op);
    }

    ctx->status = NGX_HTTP_IDEMPOTENCY_STATUS_NESTED;

    /* logged once, as the configuration makes all such requests nested */

    if (!ctx->conf->nested) {
        ctx->conf->nested = 1;

        ngx_http_idempotency_log(r, ctx, ctx->status, ctx->conf->log_level,
                  ": this nginx is its own upstream, passed what it has sent "
                  "itself, from now on in silence");
    }

    ngx_http_idempotency_count(ctx);

    return NGX_OK;
}


/* the request owns its token; with idempotency_similar its content is claimed,
   too */

static ngx_int_t
access_similar(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    if (ngx_http_idempotency_similar(r, ctx) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

#if (NGX_IDEMPOTENCY_FAULTS)
    access_fault(r, &ctx->similar->claim.op);
#endif

    return access_ask(r, ctx, &ctx->similar->claim);
}


static ngx_int_t
access_similar_answered(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    return (ctx->similar->claim.op.result == NGX_IDEMPOTENCY_CHANGED)
           ? access_similar(r, ctx)
           : ngx_http_idempotency_similar_answer(r, ctx);
}


/* the token is bound: the request waits, is replayed or refused */

static ngx_int_t
access_bound(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_int_t                      rc;
    ngx_msec_int_t                 left;
    ngx_http_idempotency_status_e  why;

    if (ctx->claim.op.waiting) {
        ctx->wait.waited = 1;

        /* the answer may have come after the deadline */

        left = ctx->wait.deadline - ngx_current_msec;
        left = ngx_max(left, 0);

        return ngx_http_idempotency_wait(r, ctx, &ctx->claim,
                                    ngx_min(left, NGX_HTTP_IDEMPOTENCY_WAIT));
    }

    if (ctx->claim.found.response.data) {
        rc = access_replay(r, ctx);

        return (rc == NGX_DECLINED) ? access_stranger(r, ctx) : rc;
    }

    if (ngx_http_idempotency_stranger(r, ctx, NULL)) {
        return access_stranger(r, ctx);
    }

    switch (ctx->claim.found.outcome) {

    case NGX_IDEMPOTENCY_PENDING:
        why = NGX_HTTP_IDEMPOTENCY_STATUS_IN_PROGRESS;
        break;

    case NGX_IDEMPOTENCY_IN_DOUBT:
        why = NGX_HTTP_IDEMPOTENCY_STATUS_IN_DOUBT;
        break;

    default:
        why = NGX_HTTP_IDEMPOTENCY_STATUS_NOT_KEPT;
    }

    return ngx_http_idempotency_refuse(r, ctx, why);
}


static ngx_int_t
access_stranger(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ctx->claim.differs = NGX_IDEMPOTENCY_DIFFERS_IDENTITY;

    return ngx_http_idempotency_refuse(r, ctx,
                                       NGX_HTTP_IDEMPOTENCY_STATUS_CONFLICT);
}


/* An owner passes in each location that it is sent to until its response is
   whole, and so does a nested request. */

static ngx_int_t
access_carry(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    if (ngx_http_idempotency_carried(ctx) || ngx_http_idempotency_nests(ctx)) {
        ngx_http_idempotency_carry(r, ctx);
    }

    return NGX_DECLINED;
}


static ngx_int_t
access_pass(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    return NGX_DECLINED;
}


#if (NGX_IDEMPOTENCY_FAULTS)

static void
access_fault(ngx_http_request_t *r, ngx_idempotency_op_t *op)
{
    ngx_uint_t        i;
    ngx_table_elt_t  *h;

    static ngx_str_t   name = ngx_string("x_idempotency_fault");
    static const char *faults[] = { "", "die-claimed", "die-recording",
                                    "die-locked", "no-memory", "drop-wake",
                                    "busy", "no-pool", "unanswered", "slow",
                                    "unsettled" };

    h = ngx_http_idempotency_header_first(r, &name);

    for (i = 1; h && i < sizeof(faults) / sizeof(faults[0]); i++) {
        if (ngx_strcmp(h->value.data, faults[i]) == 0) {
            op->fault = (ngx_idempotency_fault_e) i;
        }
    }
}

#endif


/*
 * In front of all access control and limits.  A request that comes here again
 * by an error_page, and was not let in meanwhile, was turned away; and so was
 * a request whose body was too large to be read.  An error_page for a "return"
 * or for a file that try_files did not find, and other internal redirects,
 * belong to the application: they turn nothing away.
 */

ngx_int_t
ngx_http_idempotency_preaccess_handler(ngx_http_request_t *r)
{
    ngx_http_idempotency_ctx_t  *ctx;

    if (!access_protects(r)) {
        return NGX_DECLINED;
    }

    ctx = ngx_http_idempotency_get_ctx(r);

    if (ctx == NULL) {
        ctx = ngx_http_idempotency_create_ctx(r);
        if (ctx == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        /* with "error_page CODE =200" only the discarded body tells */

        ctx->access.turned_away = (r->internal
                                 && (r->discard_body
                                     || (r->expect_tested
                                         && r->request_body == NULL
                                         && (r->err_status == 0
                                             || r->err_status
                                                == NGX_HTTP_OK))));

    } else if (ctx->access.outside
               && (r->error_page != ctx->access.error_page
                   || r->err_status != ctx->access.err_status))
    {
        ctx->access.turned_away = 1;
    }

    ctx->access.outside = 1;
    ctx->access.error_page = r->error_page;
    ctx->access.err_status = r->err_status;

    return NGX_DECLINED;
}


/* behind all access control, in front of try_files: the request was let in */

ngx_int_t
ngx_http_idempotency_admitted_handler(ngx_http_request_t *r)
{
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ngx_http_idempotency_get_ctx(r);

    if (ctx && r == r->main) {
        ctx->access.outside = 0;
    }

    return NGX_DECLINED;
}


/*
 * NGX_DONE: the request is finalized; NGX_OK: this is a dry run; NGX_DECLINED:
 * the response belongs to another client.  A response is not sent if its
 * location has gone, as the settings of its filters have gone with it.
 */

static ngx_int_t
access_replay(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    void                             **loc_conf;
    ngx_file_t                        *file;
    ngx_idempotency_found_t           *found;
    ngx_http_idempotency_response_t    response;

    found = &ctx->claim.found;
    loc_conf = NULL;

    if (ngx_http_idempotency_response_decode(&found->response,
                                             r->method == NGX_HTTP_HEAD,
                                             &response)
        != NGX_OK
        || response.status != found->status)
    {
        ngx_log_error(NGX_LOG_ALERT, r->connection->log, 0,
                      "idempotency: a recorded response is none that this "
                      "module has written, and is not sent");

        return ngx_http_idempotency_refuse(r, ctx,
                                         NGX_HTTP_IDEMPOTENCY_STATUS_NOT_KEPT);
    }

    if (ngx_http_idempotency_stranger(r, ctx, &response.headers)) {
        return NGX_DECLINED;
    }

    if (response.has_location) {
        loc_conf = ngx_http_idempotency_location_find(r, &response.location);

        if (loc_conf == NULL) {
            ngx_http_idempotency_log(r, ctx,
                      NGX_HTTP_IDEMPOTENCY_STATUS_NOT_KEPT,
                      ctx->conf->log_level,
                      ": the location of a recorded response no longer "
                      "exists: \"%V\"", &response.location.uri);

            return ngx_http_idempotency_refuse(r, ctx,
                                         NGX_HTTP_IDEMPOTENCY_STATUS_NOT_KEPT);
        }
    }

    ctx->status = (ctx->wait.waited || ctx->claim.leftover)
                      ? NGX_HTTP_IDEMPOTENCY_STATUS_WAITED
                      : NGX_HTTP_IDEMPOTENCY_STATUS_REPLAYED;

    ngx_http_idempotency_log(r, ctx, ctx->status, ctx->conf->log_level,
                             ": replayed a response of status %ui",
                             found->status);

    if (ctx->conf->dry_run) {
        return NGX_OK;
    }

    file = (response.body.len > NGX_HTTP_IDEMPOTENCY_REPLAY_MEMORY)
           ? replay_to_file(r, ctx, &response) : NULL;

    if (loc_conf) {
        ngx_http_idempotency_location_enter(r, &response.location, loc_conf);
    }

    ngx_http_finalize_request(r, replay_send(r, ctx, &response, file));

    return NGX_DONE;
}


/*
 * Writes the body to a temporary file without a name.  The header block stays
 * in memory, and the body's memory is freed.  NULL: there is no file, and the
 * body is sent from memory.
 */

static ngx_file_t *
replay_to_file(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_response_t *response)
{
    size_t               len;
    u_char              *p, *whole;
    ngx_str_t           *bytes;
    ngx_file_t          *file;
    replay_body_t       *body;
    ngx_pool_cleanup_t  *cln;

    bytes = &ctx->claim.found.response;
    whole = bytes->data;
    len = response->body.data - whole;

    p = ngx_pnalloc(r->pool, len);
    file = ngx_palloc(r->pool, sizeof(ngx_file_t));
    cln = ngx_pool_cleanup_add(r->pool, 0);

    if (p == NULL || file == NULL || cln == NULL) {
        return NULL;
    }

    body = replay_body(r, ctx, &response->body);
    if (body == NULL) {
        return NULL;
    }

    body->users++;
    cln->handler = replay_body_release;
    cln->data = body;

    *file = body->file;
    file->log = r->connection->log;

    ngx_memcpy(p, whole, len);
    bytes->data = p;

    /* the decoded strings now point into the copy, which has the same bytes */

    (void) ngx_http_idempotency_response_decode(bytes,
                                                r->method == NGX_HTTP_HEAD,
                                                response);
    (void) ngx_pfree(r->pool, whole);

    return file;
}


/* the file of the last body, if this is the same body, or a new one */

static replay_body_t *
replay_body(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_str_t *bytes)
{
    ngx_pool_t                *pool;
    replay_body_t             *body;
    ngx_http_core_loc_conf_t  *clcf;

    body = replay_kept;

    if (body
        && body->zone == ctx->conf->store->counters
        && body->fence == ctx->claim.found.fence
        && body->size == bytes->len
        && ngx_memcmp(body->token, ctx->claim.op.token,
                      NGX_IDEMPOTENCY_DIGEST_LEN)
           == 0)
    {
        replay_keep(body);
        return body;
    }

    pool = ngx_create_pool(1024, ngx_cycle->log);
    if (pool == NULL) {
        return NULL;
    }

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);
    body = ngx_pcalloc(pool, sizeof(replay_body_t));

    if (body) {
        body->file.log = r->connection->log;
    }

    if (body == NULL
        || ngx_create_temp_file(&body->file, clcf->client_body_temp_path, pool,
                                0, 0, 0)
           != NGX_OK
        || ngx_write_file(&body->file, bytes->data, bytes->len, 0)
           == NGX_ERROR)
    {
        ngx_destroy_pool(pool);
        return NULL;
    }

    body->pool = pool;
    body->zone = ctx->conf->store->counters;
    body->fence = ctx->claim.found.fence;
    body->size = bytes->len;
    ngx_memcpy(body->token, ctx->claim.op.token, NGX_IDEMPOTENCY_DIGEST_LEN);

    replay_keep(body);

    return body;
}


/* A quick client may have the whole body before the next request in the crowd
   is answered: so the file is kept for a moment. */

static void
replay_keep(replay_body_t *body)
{
    body->users++;

    if (replay_kept) {
        replay_body_release(replay_kept);
    }

    replay_kept = body;

    /* nginx's debug log takes the data of a timer for a connection */

    replay_dumb.fd = (ngx_socket_t) -1;

    replay_event.handler = replay_kept_handler;
    replay_event.data = &replay_dumb;
    replay_event.log = ngx_cycle->log;
    replay_event.cancelable = 1;

    ngx_add_timer(&replay_event, NGX_HTTP_IDEMPOTENCY_REPLAY_KEPT);
}


static void
replay_kept_handler(ngx_event_t *ev)
{
    replay_body_release(replay_kept);
    replay_kept = NULL;
}


static void
replay_body_release(void *data)
{
    replay_body_t  *body = data;

    if (--body->users == 0) {
        ngx_destroy_pool(body->pool);
    }
}


static ngx_int_t
replay_send(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_response_t *response, ngx_file_t *file)
{
    ngx_uint_t  cookies;

    cookies = (ctx->conf->replay_cookies == NGX_HTTP_IDEMPOTENCY_COOKIES_ALWAYS
               || (ctx->conf->replay_cookies
                   == NGX_HTTP_IDEMPOTENCY_COOKIES_IDENTIFIED
                   && ctx->identified
                   && !ctx->claim.found.anonymous));

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "idempotency replay: size:%uz, cookies:%ui",
                   response->body.len, cookies);

    if (ngx_http_idempotency_response_restore(r, response, cookies) != NGX_OK
        || replay_mark(r, ctx) != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_idempotency_stats_add(ctx->conf->store->counters->replayed_bytes,
                              response->body.len);

    return ngx_http_idempotency_send(r, &response->body, file);
}


/* replaces header lines of that name in the original */

static ngx_int_t
replay_mark(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_str_t        *name;
    ngx_list_t       *headers;
    ngx_table_elt_t  *h;

    static ngx_str_t  value = ngx_string("true");

    name = &ctx->conf->replay_header;
    headers = &r->headers_out.headers;

    if (name->len == 0) {
        return NGX_OK;
    }

    while ((h = ngx_http_idempotency_header_of(headers, (char *) name->data))
           != NULL)
    {
        h->hash = 0;
    }

    h = ngx_http_idempotency_header_push(r, headers, name, &value);

    return (h == NULL) ? NGX_ERROR : NGX_OK;
}
