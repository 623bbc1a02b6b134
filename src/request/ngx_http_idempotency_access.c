
/*
 * A request's way from the first phase handler to its outcome: the phase
 * handlers, and the table of states by which a request passes them; its claim
 * with its limits (window, age of the key, quota); the wait for the store's
 * answer or for another request's outcome; the claim on the content
 * (idempotency_similar); and the report of the outcome, which capture.c finds.
 * How a claim is kept is the store's.
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
 * SETTLED   A granted claim is settled on every way out, and once.
 * OUTLIVES  The context outlives internal redirects, named locations and error
 *           pages, which clear the contexts of all modules.
 */


#include "ngx_http_idempotency_response.h"


/* A claim without an answer is made again after so many milliseconds.  The
   time doubles with each attempt, up to so many times. */

#define NGX_HTTP_IDEMPOTENCY_WAIT          500
#define NGX_HTTP_IDEMPOTENCY_WAIT_DOUBLED  4


/*
 * After so many milliseconds without the store's answer a log line says so,
 * and a postponed end of the response is sent: the request was executed, and
 * its client should know.
 */

#define NGX_HTTP_IDEMPOTENCY_OWNER_SILENCE  5000

/* the operation that reports an outcome to the store; it has memory of its
   own, as the store may answer after the end of the request */

struct ngx_http_idempotency_report_s {
    /* must be the first member */
    ngx_idempotency_complete_t       complete;

    ngx_idempotency_store_t         *store;
    /* NULL: the request has ended */
    ngx_http_idempotency_ctx_t      *ctx;
    ngx_event_t                      timer;

    /* for the log */
    ngx_uint_t                       level;
};


/*
 * A record ends by the boot clock, a key is too old by the wall clock.  The
 * clocks are read one after the other, and the boot clock is coarse.  So a key
 * counts as too old this many milliseconds before its record can have ended.
 */

#define NGX_HTTP_IDEMPOTENCY_LIMITS_CLOCKS  100

/*
 * A window from a variable is rounded up to one of these, in seconds.  A zone
 * has a queue for each length of window, and clients must not create queues at
 * will.
 */

static ngx_uint_t  limits_steps[64] = {
    1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50,
    60, 90, 120, 180, 240, 300, 360, 480, 600, 720, 900, 1200, 1500, 1800,
    2400, 3000,
    3600, 5400, 7200, 10800, 14400, 18000, 21600, 28800, 36000, 43200, 57600,
    64800, 72000,
    1 * 86400, 2 * 86400, 3 * 86400, 4 * 86400, 5 * 86400, 6 * 86400,
    7 * 86400, 10 * 86400, 14 * 86400, 21 * 86400, 28 * 86400, 30 * 86400,
    45 * 86400, 60 * 86400, 90 * 86400, 120 * 86400, 180 * 86400, 270 * 86400,
    365 * 86400, 400 * 86400
};

/* each worker logs so many invalid values, each of them once */

#define NGX_HTTP_IDEMPOTENCY_LIMITS_LOGGED  64


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

typedef struct {
    ngx_http_phases      phase;
    ngx_http_handler_pt  handler;
} access_phase_t;


static ngx_int_t access_preaccess_handler(ngx_http_request_t *r);
static ngx_int_t access_admitted_handler(ngx_http_request_t *r);
static ngx_int_t access_phase_handler(ngx_http_request_t *r);
static ngx_int_t access_precontent_handler(ngx_http_request_t *r);
static ngx_inline ngx_uint_t access_protects(ngx_http_request_t *r);
static ngx_uint_t access_upgrade(ngx_http_request_t *r);
static ngx_uint_t access_undecided(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_uint_t access_last(ngx_http_request_t *r);
static ngx_http_idempotency_ctx_t *access_create_ctx(ngx_http_request_t *r);
static ngx_int_t access_run(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, access_event_e event);
static ngx_int_t access_look(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_uint_t access_bypassed(ngx_http_request_t *r,
    ngx_array_t *strings);
static void access_judge(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t access_read(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t access_digest(ngx_http_request_t *r,
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
static ngx_int_t access_bound(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t access_stranger(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t access_carry(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t access_pass(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
#if (NGX_IDEMPOTENCY_FAULTS)
static void access_fault(ngx_http_request_t *r, ngx_idempotency_op_t *op);
#endif
static void owner_report(ngx_http_idempotency_ctx_t *ctx, ngx_int_t outcome);
static void owner_wait(ngx_http_idempotency_report_t *report);
static void owner_silence_handler(ngx_event_t *ev);
static void owner_answered(ngx_idempotency_op_t *op);
static void owner_give_up(ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t limits_time(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static void limits_log_window(ngx_http_request_t *r, ngx_str_t *text);
static ngx_int_t limits_quota_value(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_http_idempotency_value_t *of);
static void limits_address(ngx_connection_t *c, ngx_str_t *value);
static ngx_int_t wait_begin(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_idempotency_claim_t *claim,
    ngx_msec_t delay);
static void wait_reading(ngx_http_request_t *r);
static ngx_uint_t wait_client_left(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static void wait_cancel(ngx_http_idempotency_ctx_t *ctx);
static void wait_timer_handler(ngx_event_t *ev);
static ngx_int_t similar_claim(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t similar_claimed(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static void similar_note(ngx_http_idempotency_ctx_t *ctx);
static void similar_forget(ngx_http_idempotency_ctx_t *ctx);
static void similar_answered(ngx_idempotency_op_t *op);
static ngx_int_t similar_refuse(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_http_idempotency_status_e why);


/*
 * The step for a request in a state at an event.  A step sets the next state,
 * in most cases that of the next line.  A request that was prepared in the
 * access phase passes there, and is decided in the precontent phase.
 */

static access_step_pt  access_table[][3] = {

    /*                access,    content,    answer */

    /* UNSEEN   */  { access_look, access_look,  NULL },
    /* KEYED    */  { access_read, access_read,  NULL },
    /* READING  */  { access_digest, access_digest, NULL },
    /* JUDGED   */  { access_pass, access_obey,  NULL },
    /* DIGESTED */  { access_pass, access_claim, NULL },
    /* DECIDED  */  { access_pass, access_carry, access_answered },
    /* OWNER    */  { access_pass, access_carry, similar_claimed },
    /* SETTLED  */  { access_pass, access_carry, NULL },
    /* RELEASED */  { access_pass, access_carry, NULL }
};


static access_phase_t  access_phases[][2] = {

    /* behind the handlers of other modules, and in front of them */

    { { NGX_HTTP_ACCESS_PHASE, access_phase_handler },
      { NGX_HTTP_PRECONTENT_PHASE, access_precontent_handler } },

    { { NGX_HTTP_PREACCESS_PHASE, access_preaccess_handler },
      { NGX_HTTP_PRECONTENT_PHASE, access_admitted_handler } }
};


/* The last handler of a phase runs first.  first: in front of limits, and of
   try_files. */

ngx_int_t
ngx_http_idempotency_add_handlers(ngx_conf_t *cf, ngx_uint_t first)
{
    ngx_uint_t                  i;
    ngx_http_handler_pt        *h;
    ngx_http_core_main_conf_t  *cmcf;

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    for (i = 0; i < 2; i++) {

        h = ngx_array_push(&cmcf->phases[access_phases[first][i].phase]
                                .handlers);
        if (h == NULL) {
            return NGX_ERROR;
        }

        *h = access_phases[first][i].handler;
    }

    return NGX_OK;
}


static ngx_int_t
access_phase_handler(ngx_http_request_t *r)
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

static ngx_int_t
access_precontent_handler(ngx_http_request_t *r)
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
    ngx_str_t        *value;
    ngx_table_elt_t  *h;

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

    h = NULL;

    while ((h = ngx_http_idempotency_header_next(r, "connection", h)) != NULL) {

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
        ctx = access_create_ctx(r);
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
    if (ctx->conf->bypass && access_bypassed(r, ctx->conf->bypass)) {
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


/* as proxy_cache_bypass has it */

static ngx_uint_t
access_bypassed(ngx_http_request_t *r, ngx_array_t *strings)
{
    ngx_str_t                  text;
    ngx_uint_t                 i;
    ngx_http_complex_value_t  *cv;

    for (i = 0; i < strings->nelts; i++) {

        cv = (ngx_http_complex_value_t *) strings->elts + i;

        if (ngx_http_idempotency_string(r, cv, &text) == NGX_OK
            && text.len
            && (text.len > 1 || text.data[0] != '0'))
        {
            return 1;
        }
    }

    return 0;
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
access_digest(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    if (ctx->body.reading) {

        /* the body was refused, and an error page is being made */

        ctx->verdict = NGX_HTTP_IDEMPOTENCY_STATUS_NONE;
        ctx->state = NGX_HTTP_IDEMPOTENCY_STATE_JUDGED;
        return NGX_OK;
    }

    if (ngx_http_idempotency_digest_body(r, ctx) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (ctx->conf->key_in_body) {
        access_judge(r, ctx);

        if (ctx->state == NGX_HTTP_IDEMPOTENCY_STATE_JUDGED) {
            return NGX_OK;
        }
    }

    if (ngx_http_idempotency_digest_request(r, ctx) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_log_debug4(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "idempotency bind: token:%*xs, fingerprint:%*xs",
                   (size_t) NGX_IDEMPOTENCY_DIGEST_LEN, ctx->claim.op.token,
                   (size_t) NGX_IDEMPOTENCY_DIGEST_LEN,
                   ctx->claim.fingerprint);

    ctx->state = NGX_HTTP_IDEMPOTENCY_STATE_DIGESTED;

    return NGX_OK;
}


/* a request that passes here may be protected in the next location */

static ngx_int_t
access_obey(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    if (ctx->verdict == NGX_HTTP_IDEMPOTENCY_STATUS_NONE
        || ctx->verdict == NGX_HTTP_IDEMPOTENCY_STATUS_BYPASS)
    {
        ctx->status = ctx->verdict;
        return NGX_DECLINED;
    }

    ctx->state = NGX_HTTP_IDEMPOTENCY_STATE_DECIDED;

    return ngx_http_idempotency_refuse(r, ctx, ctx->verdict);
}


static ngx_int_t
access_claim(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_http_idempotency_report_t  *report;

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

    /* made before anything is claimed, so that no claim can be left behind for
       want of memory */

    report = ngx_calloc(sizeof(ngx_http_idempotency_report_t),
                        r->connection->log);
    if (report == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    report->store = ctx->conf->store;
    report->ctx = ctx;

    ctx->settled.report = report;

    return access_claim_again(r, ctx);
}


/* makes the claim again: the pending record changed, or the answer is
   overdue */

static ngx_int_t
access_claim_again(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_int_t  rc;

    ctx->claim.op.now = ngx_current_msec;

    if (limits_time(r, ctx) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (ctx->conf->quota && ctx->claim.quota == 0) {

        rc = limits_quota_value(r, ctx, ctx->conf->quota_value);

        if (rc == NGX_ERROR) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        ctx->claim.quota = (rc == NGX_OK) ? ctx->conf->quota : 0;
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

    return wait_begin(r, ctx, claim, NGX_HTTP_IDEMPOTENCY_WAIT << doubled);
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

    ctx->answered_at = ngx_current_msec;
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
        return similar_claim(r, ctx);
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

        return wait_begin(r, ctx, &ctx->claim,
                           ngx_min(left, NGX_HTTP_IDEMPOTENCY_WAIT));
    }

    if (ctx->claim.found.response.data) {
        rc = ngx_http_idempotency_replay(r, ctx);

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

    static const char *faults[] = { "", "die-claimed", "die-recording",
                                    "die-locked", "no-memory", "drop-wake",
                                    "busy", "no-pool", "unanswered", "slow",
                                    "unsettled" };

    h = ngx_http_idempotency_header_next(r, "x_idempotency_fault", NULL);

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

static ngx_int_t
access_preaccess_handler(ngx_http_request_t *r)
{
    ngx_http_idempotency_ctx_t  *ctx;

    if (!access_protects(r)) {
        return NGX_DECLINED;
    }

    ctx = ngx_http_idempotency_get_ctx(r);

    if (ctx == NULL) {
        ctx = access_create_ctx(r);
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


/* Behind all access control, in front of try_files: the request was let in, or
   a replay at its response's location. */

static ngx_int_t
access_admitted_handler(ngx_http_request_t *r)
{
    ngx_http_idempotency_ctx_t     *ctx;
    ngx_http_idempotency_access_t  *access;

    ctx = ngx_http_idempotency_get_ctx(r);

    if (ctx == NULL || r != r->main || r->post_action) {
        return NGX_DECLINED;
    }

    access = &ctx->access;
    access->outside = 0;
    access->admitted = r->uri_changes;

    if (access->moved == 0) {
        return NGX_DECLINED;
    }

    if (access->moved == r->uri_changes) {
        return ngx_http_idempotency_replay(r, ctx);
    }

    /* a replay was refused and is at its error_page; or it was sent on, and
       must not execute what is done */

    if (access->turned_away
        || access->error_page != r->error_page
        || access->err_status != r->err_status)
    {
        return NGX_DECLINED;
    }

    /* the refusal may have an error_page, too */
    access->moved = 0;

    return ngx_http_idempotency_refuse(r, ctx,
                                       NGX_HTTP_IDEMPOTENCY_STATUS_NOT_KEPT);
}


static ngx_http_idempotency_ctx_t *
access_create_ctx(ngx_http_request_t *r)
{
    ngx_http_cleanup_t          *cln;
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ngx_pcalloc(r->pool, sizeof(ngx_http_idempotency_ctx_t));

    /* made before anything is claimed, so that no claim can be left behind */

    cln = ngx_http_cleanup_add(r, 0);

    if (ctx == NULL || cln == NULL) {
        return NULL;
    }

    cln->handler = ngx_http_idempotency_cleanup;
    cln->data = ctx;

    ctx->request = r;

    ngx_http_set_ctx(r, ctx, ngx_http_idempotency_module);

    return ctx;
}


/* The last way out.  It runs before the log phase, and after the cleanup of
   the upstream: by then nginx knows what was sent. */

void
ngx_http_idempotency_cleanup(void *data)
{
    ngx_http_idempotency_ctx_t  *ctx = data;

    ngx_uint_t                      asks;
    ngx_http_request_t             *r;
    ngx_http_idempotency_report_t  *report;

    r = ctx->request;

    asks = (ctx->wait.claim && ctx->wait.claim->op.waiting);

    wait_cancel(ctx);
    ngx_http_idempotency_postpone_cancel(ctx);

    ngx_http_idempotency_client_end(ctx);

    if (ngx_http_idempotency_owns(ctx)) {

        if (asks) {
            /* the claim on the content is unanswered, so nothing was
               executed */

            owner_give_up(ctx);

        } else {
            ngx_http_idempotency_settle(r, ctx);
        }
    }

    if (ctx->similar && ctx->similar->note) {
        ngx_free(ctx->similar->note);
    }

    report = ctx->settled.report;

    if (report && report->complete.op.handler) {

        /* the store has not answered: the report stays until it does */

        report->ctx = NULL;
        report->timer.cancelable = 1;

    } else if (report) {
        ngx_free(report);
    }

    ngx_http_idempotency_count_end(ctx);

    /* variables in the log need the context */

    ngx_http_set_ctx(r, ctx, ngx_http_idempotency_module);
}


/* gives the outcome to the store, once */

void
ngx_http_idempotency_settle(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_int_t  outcome;

    ngx_idempotency_die(&ctx->claim.op, NGX_IDEMPOTENCY_FAULT_DIE_RECORDING);

    outcome = ngx_http_idempotency_outcome(r, ctx);

    if (outcome == NGX_HTTP_IDEMPOTENCY_RELEASE
        || outcome == NGX_HTTP_IDEMPOTENCY_LEAVE)
    {
        ctx->state = NGX_HTTP_IDEMPOTENCY_STATE_RELEASED;

        similar_forget(ctx);

    } else {
        ctx->state = NGX_HTTP_IDEMPOTENCY_STATE_SETTLED;
        ctx->settled.ends = ngx_http_idempotency_ends(ctx);
    }

    owner_report(ctx, outcome);
}


/* nothing was executed: the claim is released */

static void
owner_give_up(ngx_http_idempotency_ctx_t *ctx)
{
    ctx->state = NGX_HTTP_IDEMPOTENCY_STATE_DECIDED;

    owner_report(ctx, NGX_HTTP_IDEMPOTENCY_RELEASE);
}


/*
 * Reports the outcome, with the captured response if it can be kept.  The
 * store has copied the response when it returns.  The client may take long to
 * read, so the captured memory is freed here.
 */

static void
owner_report(ngx_http_idempotency_ctx_t *ctx, ngx_int_t outcome)
{
    size_t                          size;
    ngx_int_t                       rc;
    ngx_chain_t                    *cl, *pieces;
    ngx_idempotency_op_t           *op;
    ngx_idempotency_store_t        *store;
    ngx_idempotency_complete_t     *complete;
    ngx_http_idempotency_report_t  *report;

    size = 0;
    pieces = NULL;

    if (outcome != NGX_IDEMPOTENCY_NOT_KEPT
        && outcome != NGX_HTTP_IDEMPOTENCY_RELEASE
        && ctx->capture.whole && !ctx->capture.too_large)
    {
        pieces = ctx->capture.pieces;

        for (cl = pieces; cl; cl = cl->next) {
            size += cl->buf->last - cl->buf->pos;
        }
    }

    report = ctx->settled.report;
    store = report->store;

    report->level = ngx_http_idempotency_trail_level(ctx->conf);

    op = &report->complete.op;

    ngx_memcpy(op->token, ctx->claim.op.token, NGX_IDEMPOTENCY_DIGEST_LEN);

    op->now = ngx_current_msec;
    op->handler = owner_answered;
    op->data = report;

#if (NGX_IDEMPOTENCY_FAULTS)
    op->fault = ctx->claim.op.fault;
#endif

    complete = &report->complete;

    complete->fence = ctx->claim.fence;
    complete->release = (outcome < 0);
    complete->outcome = ngx_max(outcome, 0);
    complete->status = ctx->capture.status;
    complete->pieces = pieces;
    complete->size = size;

    rc = store->engine->complete(store, complete);

    if (rc == NGX_AGAIN) {
        owner_wait(report);

    } else {

        if (rc == NGX_ERROR) {
            op->result = NGX_IDEMPOTENCY_UNAVAILABLE;
        }

        owner_answered(op);
    }

    for (cl = ctx->capture.pieces; cl; cl = cl->next) {
        (void) ngx_pfree(ctx->request->pool, cl->buf->start);
    }

    ctx->capture.pieces = NULL;
    ctx->capture.last_piece = NULL;
}


static void
owner_wait(ngx_http_idempotency_report_t *report)
{
    ngx_msec_t                 delay;
    ngx_http_core_loc_conf_t  *clcf;

    delay = NGX_HTTP_IDEMPOTENCY_OWNER_SILENCE;

    if (report->store->strict) {

        /* before nginx takes the silence for a client that doesn't read */

        clcf = ngx_http_get_module_loc_conf(report->ctx->request,
                                            ngx_http_core_module);
        delay = ngx_min(delay, clcf->send_timeout / 2);
    }

    report->timer.handler = owner_silence_handler;
    report->timer.data = report;
    report->timer.log = ngx_cycle->log;
    report->timer.cancelable = !report->store->strict;

    ngx_add_timer(&report->timer, delay);
}


/* The store may answer later: then a failure is logged. */

static void
owner_silence_handler(ngx_event_t *ev)
{
    ngx_http_idempotency_ctx_t     *ctx;
    ngx_http_idempotency_report_t  *report;

    report = ev->data;
    ctx = report->ctx;

    ngx_log_error(NGX_LOG_ERR, ctx ? ctx->request->connection->log
                                   : ngx_cycle->log, 0,
                  "idempotency: zone \"%V\" does not answer, it is not known "
                  "whether the outcome of an owner is recorded, token: %*xs",
                  &report->store->name,
                  (size_t) NGX_IDEMPOTENCY_DIGEST_LEN,
                  report->complete.op.token);

    if (ctx) {
        ngx_http_idempotency_postpone_end(ctx);
    }
}


/* the request may have ended by now */

static void
owner_answered(ngx_idempotency_op_t *op)
{
    ngx_log_t                      *log;
    ngx_http_idempotency_ctx_t     *ctx;
    ngx_idempotency_complete_t     *complete;
    ngx_http_idempotency_report_t  *report;

    report = op->data;
    ctx = report->ctx;
    complete = &report->complete;

    if (report->timer.timer_set) {
        ngx_del_timer(&report->timer);
    }

    log = ctx ? ctx->request->connection->log : ngx_cycle->log;

    switch (op->result) {

    case NGX_IDEMPOTENCY_STALE:
        ngx_log_error(NGX_LOG_WARN, log, 0,
                      "idempotency: the claim was taken over, "
                      "the outcome of its late owner is not recorded, "
                      "token: %*xs, zone: \"%V\", fence: %uL",
                      (size_t) NGX_IDEMPOTENCY_DIGEST_LEN, op->token,
                      &report->store->name, complete->fence);
        break;

    case NGX_IDEMPOTENCY_TRIMMED:
        ngx_log_error(NGX_LOG_ERR, log, 0,
                      "idempotency: zone \"%V\" is full, a response of %uz "
                      "bytes is not kept, token: %*xs",
                      &report->store->name, complete->size,
                      (size_t) NGX_IDEMPOTENCY_DIGEST_LEN, op->token);
        break;

    case NGX_IDEMPOTENCY_UNAVAILABLE:
        ngx_log_error(NGX_LOG_CRIT, log, 0,
                      "idempotency: zone \"%V\" is unavailable, the outcome "
                      "of an owner is not recorded, token: %*xs",
                      &report->store->name,
                      (size_t) NGX_IDEMPOTENCY_DIGEST_LEN, op->token);
        break;

    default:
        break;
    }

    if (op->result == NGX_IDEMPOTENCY_OK
        || op->result == NGX_IDEMPOTENCY_TRIMMED)
    {
        ngx_log_error(report->level, log, 0,
                      "idempotency outcome %s%s, status %ui, token: %*xs, "
                      "zone: \"%V\", fence: %uL",
                      complete->release ? "released"
                          : ngx_http_idempotency_outcomes[complete->outcome]
                                .text,
                      complete->doubt ? ", in doubt again" : "",
                      complete->status, (size_t) NGX_IDEMPOTENCY_DIGEST_LEN,
                      op->token, &report->store->name, complete->fence);
    }

    if (ctx) {
        ctx->settled.report = NULL;

        if (op->result == NGX_IDEMPOTENCY_STALE
            || op->result == NGX_IDEMPOTENCY_UNAVAILABLE)
        {
            ctx->settled.refused = 1;

        } else if (ctx->state == NGX_HTTP_IDEMPOTENCY_STATE_SETTLED) {
            ctx->settled.ends = ngx_current_msec + complete->left;
        }
    }

    ngx_free(report);

    if (ctx) {
        ngx_http_idempotency_postpone_end(ctx);
    }
}


/* A key that tells when it was made is bound until it is too old, at least.
   So a key that is neither bound nor too old was never executed. */

static ngx_int_t
limits_time(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    uint64_t                  now, until;
    ngx_msec_t                age;
    ngx_idempotency_claim_t  *claim;

    claim = &ctx->claim;

    if (ngx_http_idempotency_by_content(ctx)) {
        claim->window = ctx->conf->content_window;
        return NGX_OK;
    }

    if (claim->window == 0
        && ngx_http_idempotency_window(r, ctx->conf, &claim->window) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (ctx->conf->key_format != NGX_HTTP_IDEMPOTENCY_KEY_FORMAT_UUID7) {
        return NGX_OK;
    }

    age = ctx->conf->key_max_age;

    if (age == NGX_CONF_UNSET_MSEC) {
        age = ctx->conf->window;
    }

    now = ngx_http_idempotency_wall_clock();
    until = ctx->made + age;

    claim->old = (until <= now + NGX_HTTP_IDEMPOTENCY_LIMITS_CLOCKS);
    claim->least = (until <= now) ? 0 : (ngx_msec_t) (until - now);
    claim->span = age + NGX_HTTP_IDEMPOTENCY_KEY_AHEAD;

    return NGX_OK;
}


/* an invalid or empty value means the default window */

ngx_int_t
ngx_http_idempotency_window(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf, ngx_msec_t *window)
{
    ngx_int_t   ms;
    ngx_str_t   text;
    ngx_uint_t  i;

    *window = conf->window;

    if (conf->window_value == NULL) {
        return NGX_OK;
    }

    if (ngx_http_idempotency_value(r, conf->window_value, &text)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (text.len == 0) {
        return NGX_OK;
    }

    ms = ngx_parse_time(&text, 0);

    for (i = 0; ms > 0 && i < 64; i++) {

        if ((uint64_t) limits_steps[i] * 1000 >= (uint64_t) ms) {
            *window = (ngx_msec_t) limits_steps[i] * 1000;
            return NGX_OK;
        }
    }

    limits_log_window(r, &text);

    return NGX_OK;
}


static void
limits_log_window(ngx_http_request_t *r, ngx_str_t *text)
{
    uint32_t    hash;
    ngx_uint_t  i;

    static uint32_t    logged[NGX_HTTP_IDEMPOTENCY_LIMITS_LOGGED];
    static ngx_uint_t  n;

    hash = ngx_crc32_long(text->data, text->len);

    for (i = 0; i < n; i++) {
        if (logged[i] == hash) {
            return;
        }
    }

    if (n == NGX_HTTP_IDEMPOTENCY_LIMITS_LOGGED) {
        return;
    }

    logged[n++] = hash;

    ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                  "idempotency: invalid window \"%*s\", the default is used",
                  ngx_min(text->len, 64), text->data);
}


/* when the record of the owner ends, if its outcome is recorded now */

ngx_msec_t
ngx_http_idempotency_ends(ngx_http_idempotency_ctx_t *ctx)
{
    ngx_msec_t  ends, least;

    ends = ngx_current_msec + ctx->claim.window;
    least = ctx->claim.op.now + ctx->claim.least;

    return ((ngx_msec_int_t) (least - ends) > 0) ? least : ends;
}


/* for the limit of clients that have left: the quota's value; without a quota,
   of the client's address */

void
ngx_http_idempotency_quota_value(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    if (ctx->claim.quota == 0) {
        (void) limits_quota_value(r, ctx, NULL);
    }
}


/* NGX_DECLINED: the value is empty, and nothing is counted */

static ngx_int_t
limits_quota_value(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_value_t *of)
{
    u_char                    address[NGX_SOCKADDR_STRLEN];
    ngx_str_t                 value;
    ngx_idempotency_digest_t  d;

    if (of) {

        if (ngx_http_idempotency_value(r, of, &value) != NGX_OK) {
            return NGX_ERROR;
        }

        if (value.len == 0) {
            return NGX_DECLINED;
        }

    } else {
        value.data = address;
        limits_address(r->connection, &value);
    }

    ngx_idempotency_digest_init(&d, ctx->conf->digest_key,
                                NGX_IDEMPOTENCY_DIGEST_OTHER_VERSION,
                                NGX_IDEMPOTENCY_DIGEST_QUOTA);
    ngx_idempotency_digest_field(&d, &value);
    ngx_idempotency_digest_final(&d, ctx->claim.value);

    return NGX_OK;
}


/* an IPv6 client may use any address of its /64 network: it counts as one */

static void
limits_address(ngx_connection_t *c, ngx_str_t *value)
{
#if (NGX_HAVE_INET6)
    u_char               *p;
    struct sockaddr_in6  *sin6;

    if (c->sockaddr->sa_family == AF_INET6) {

        sin6 = (struct sockaddr_in6 *) c->sockaddr;
        p = sin6->sin6_addr.s6_addr;

        if (IN6_IS_ADDR_V4MAPPED(&sin6->sin6_addr)) {
            value->len = ngx_sprintf(value->data, "%ud.%ud.%ud.%ud", p[12],
                                     p[13], p[14], p[15])
                         - value->data;

        } else {
            value->len = 8;
            ngx_memcpy(value->data, p, value->len);
        }

        return;
    }
#endif

    *value = c->addr_text;
}


/* NGX_DONE: the request waits; the handler of its claim resumes it */

static ngx_int_t
wait_begin(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_idempotency_claim_t *claim,
    ngx_msec_t delay)
{
    ngx_event_t  *rev;

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "idempotency wait: %M, waited:%d", delay, ctx->wait.waited);

    ctx->wait.claim = claim;

    ctx->wait.timer.handler = wait_timer_handler;
    ctx->wait.timer.data = ctx;
    ctx->wait.timer.log = r->connection->log;

    ngx_add_timer(&ctx->wait.timer, delay);

    rev = r->connection->read;

    if (rev->ready) {
        ngx_post_event(rev, &ngx_posted_events);

    } else if (ngx_handle_read_event(rev, 0) != NGX_OK) {
        wait_cancel(ctx);
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->read_event_handler = wait_reading;
    r->write_event_handler = ngx_http_request_empty_handler;

    return NGX_DONE;
}


/*
 * Like ngx_http_test_reading(), but the client may only have closed its
 * sending side.  Over TLS bytes announce that end, and nothing can be seen
 * behind them.
 */

static void
wait_reading(ngx_http_request_t *r)
{
    ngx_event_t                 *rev;
    ngx_http_idempotency_ctx_t  *ctx;

    if (r->http_version >= NGX_HTTP_VERSION_20 || r->http_connection->ssl) {
        ngx_http_test_reading(r);
        return;
    }

    rev = r->connection->read;
    ctx = ngx_http_idempotency_get_ctx(r);

    if (wait_client_left(r, ctx)) {
        rev->eof = 1;
        r->connection->error = 1;

        ngx_log_error(NGX_LOG_INFO, r->connection->log, 0,
                      "idempotency: a waiting client disconnected");

        ngx_http_finalize_request(r, NGX_HTTP_CLIENT_CLOSED_REQUEST);
        return;
    }

    if ((ngx_event_flags & NGX_USE_LEVEL_EVENT) && rev->active
        && ngx_del_event(rev, NGX_READ_EVENT, 0) != NGX_OK)
    {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
    }
}


/*
 * A client that has closed its sending side may still read.  To notice a
 * client that is gone, something must be sent: a "100 Continue", which may be
 * sent before a response at any time.
 */

static ngx_uint_t
wait_client_left(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    int                n, err;
    char               buf[1];
    socklen_t          len;
    ngx_connection_t  *c;

    static u_char  probe[] = "HTTP/1.1 100 Continue" CRLF CRLF;

    c = r->connection;

    n = recv(c->fd, buf, 1, MSG_PEEK);

    if (n == -1) {
        return ngx_socket_errno != NGX_EAGAIN;
    }

    if (n > 0) {
        return 0;
    }

    if (ctx->wait.half_closed) {
        err = 0;
        len = sizeof(int);

        return getsockopt(c->fd, SOL_SOCKET, SO_ERROR, (void *) &err, &len)
               == -1 || err;
    }

    ctx->wait.half_closed = 1;

    return r->http_version == NGX_HTTP_VERSION_11
           && c->send(c, probe, sizeof(probe) - 1) == NGX_ERROR;
}


static void
wait_cancel(ngx_http_idempotency_ctx_t *ctx)
{
    ngx_idempotency_claim_t  *claim;
    ngx_idempotency_store_t  *store;

    if (ctx->wait.timer.timer_set) {
        ngx_del_timer(&ctx->wait.timer);
    }

    claim = ctx->wait.claim;

    if (claim && claim->op.waiting) {
        store = ctx->conf->store;
        store->engine->cancel(store, &claim->op);
    }
}


/* the engine still has the claim: the same claim again is safe */

static void
wait_timer_handler(ngx_event_t *ev)
{
    ngx_idempotency_claim_t     *claim;
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ev->data;
    claim = ctx->wait.claim;

    ctx->wait.overdue++;

    claim->op.result = NGX_IDEMPOTENCY_CHANGED;
    claim->op.handler(&claim->op);
}


/*
 * Claims the content, too.  The request owns its key by now, and the content
 * is bound to that key.  The note is allocated first, so that no claim can be
 * left behind for want of memory.
 */

static ngx_int_t
similar_claim(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_idempotency_claim_t         *claim;
    ngx_http_idempotency_similar_t  *similar;

    similar = ctx->similar;

    if (similar->note == NULL) {
        similar->note = ngx_calloc(sizeof(ngx_idempotency_complete_t),
                                   r->connection->log);
        if (similar->note == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    claim = &similar->claim;

    ngx_memcpy(claim->fingerprint, ctx->claim.op.token,
               NGX_IDEMPOTENCY_DIGEST_LEN);

    claim->op.now = ngx_current_msec;
    claim->window = ctx->conf->content_window;
    claim->lease = ctx->conf->lease;
    claim->pool = r->pool;
    claim->local = 1;

#if (NGX_IDEMPOTENCY_FAULTS)
    access_fault(r, &claim->op);
#endif

    return access_ask(r, ctx, claim);
}


/* NGX_OK: the owner goes on */

static ngx_int_t
similar_claimed(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_http_idempotency_similar_t  *similar;

    similar = ctx->similar;

    switch (similar->claim.op.result) {

    case NGX_IDEMPOTENCY_CHANGED:
        return similar_claim(r, ctx);

    case NGX_IDEMPOTENCY_CLAIMED:
        similar->fence = similar->claim.fence;

        similar_note(ctx);

        return NGX_OK;

    case NGX_IDEMPOTENCY_BOUND:

        /* the content was seen with this very key, which was released since
           then */

        similar->fence = similar->claim.found.fence;

        return NGX_OK;

    case NGX_IDEMPOTENCY_CONFLICT:

        if (ctx->conf->similar == NGX_HTTP_IDEMPOTENCY_SIMILAR_REJECT) {
            return similar_refuse(r, ctx, NGX_HTTP_IDEMPOTENCY_STATUS_SIMILAR);
        }

        ctx->status = NGX_HTTP_IDEMPOTENCY_STATUS_SIMILAR;

        ngx_http_idempotency_log(r, ctx, ctx->status, ctx->conf->log_level,
                                 ": passed a new key with content just seen");

        return NGX_OK;

    default: /* NGX_IDEMPOTENCY_UNAVAILABLE */
        ngx_idempotency_stats_add(ctx->conf->store->counters->unavailable, 1);

        return similar_refuse(r, ctx, NGX_HTTP_IDEMPOTENCY_STATUS_UNAVAILABLE);
    }
}


/* records the content as seen */

static void
similar_note(ngx_http_idempotency_ctx_t *ctx)
{
    ngx_idempotency_store_t     *store;
    ngx_idempotency_complete_t  *note;

    store = ctx->conf->store;
    note = ctx->similar->note;

    ctx->similar->note = NULL;

    ngx_memcpy(note->op.token, ctx->similar->claim.op.token,
               NGX_IDEMPOTENCY_DIGEST_LEN);

    note->op.now = ngx_current_msec;
    note->op.handler = similar_answered;
    note->fence = ctx->similar->fence;
    note->outcome = NGX_IDEMPOTENCY_NOT_KEPT;

    if (store->engine->complete(store, note) != NGX_AGAIN) {
        similar_answered(&note->op);
    }
}


/* Without the note idempotency_similar misses the content's repeat.  Nothing
   else depends on the note. */

static void
similar_answered(ngx_idempotency_op_t *op)
{
    ngx_free(op);
}


/* nothing was executed under the key: a refusal makes it fresh again */

static ngx_int_t
similar_refuse(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_status_e why)
{
    if (ngx_http_idempotency_refuses(ctx, why)) {
        owner_give_up(ctx);
    }

    return ngx_http_idempotency_refuse(r, ctx, why);
}


/* the content was not executed: it may come with another key */

static void
similar_forget(ngx_http_idempotency_ctx_t *ctx)
{
    ngx_idempotency_store_t   *store;
    ngx_idempotency_forget_t  *forget;

    if (ctx->similar == NULL || ctx->similar->fence == 0) {
        return;
    }

    forget = ngx_calloc(sizeof(ngx_idempotency_forget_t), ngx_cycle->log);
    if (forget == NULL) {
        return;
    }

    store = ctx->conf->store;

    ngx_memcpy(forget->op.token, ctx->similar->claim.op.token,
               NGX_IDEMPOTENCY_DIGEST_LEN);

    forget->op.now = ngx_current_msec;
    forget->op.handler = similar_answered;
    forget->fence = ctx->similar->fence;

    if (store->engine->forget(store, forget) != NGX_AGAIN) {
        similar_answered(&forget->op);
    }
}
