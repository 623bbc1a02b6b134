
/*
 * A request's claim from its beginning to its end: the context that holds it;
 * its limits (window, age of the key, quota); the wait for the store's answer
 * or for another request's outcome; the claim on the content
 * (idempotency_similar); and the outcome that follows from the facts at the end
 * of the request.  How a claim is kept is the store's.
 *
 * SETTLED   A granted claim is settled on every way out, and once.
 * OUTLIVES  The context outlives internal redirects, named locations and error
 *           pages, which clear the contexts of all modules.
 * ONE RULE  The table of outcomes is the whole rule: the first row that fits
 *           decides.  docs/guarantees.md shows the same table.
 */


#include "ngx_http_idempotency_response.h"


/* outcomes beside those of records: RELEASE makes the token fresh again; LEAVE
   does so, too, and requests that wait get the response */

#define NGX_HTTP_IDEMPOTENCY_RELEASE  NGX_DECLINED
#define NGX_HTTP_IDEMPOTENCY_LEAVE    NGX_DONE

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


typedef enum {
    /* X-Accel-Idempotency: release */
    fact_says_release = 0x01,
    /* the last peer gave no response header */
    fact_no_answer = 0x02,
    /* some peer was sent a byte, or may have been */
    fact_sent = 0x04,
    /* the response broke off */
    fact_broken = 0x08,
    /* by idempotency_keep its status binds no token */
    fact_unkept = 0x10,
    /* the response exceeds idempotency_max_response */
    fact_too_large = 0x20,
    /* idempotency_in_doubt retry */
    fact_retry = 0x40,
    /* a redirect or an error, made by nginx alone */
    fact_own = 0x80
} outcome_fact_e;

typedef struct {
    ngx_uint_t  all_of;
    ngx_uint_t  none_of;
    ngx_int_t   outcome;
} outcome_row_t;

static outcome_row_t  outcome_table[] = {

    { fact_says_release,         0,          NGX_HTTP_IDEMPOTENCY_RELEASE },
    { fact_no_answer,            fact_sent,  NGX_HTTP_IDEMPOTENCY_RELEASE },
    { fact_no_answer|fact_retry, 0,          NGX_HTTP_IDEMPOTENCY_RELEASE },
    { fact_no_answer,            0,          NGX_IDEMPOTENCY_IN_DOUBT },
    { fact_own,                  0,          NGX_HTTP_IDEMPOTENCY_LEAVE },
    { fact_unkept,               0,          NGX_HTTP_IDEMPOTENCY_LEAVE },
    { fact_broken,               0,          NGX_IDEMPOTENCY_NOT_KEPT },
    { fact_too_large,            0,          NGX_IDEMPOTENCY_NOT_KEPT },
    { 0,                         0,          NGX_IDEMPOTENCY_DONE }
};

/* a status is in the list always; with a Retry-After; or with a Retry-After
   that the application itself has sent */

typedef enum {
    outcome_by_status = 0,
    outcome_by_after,
    outcome_by_origin
} outcome_by_e;

/* the statuses that mean that the request was not carried out */

typedef struct {
    ngx_uint_t  status;
    ngx_uint_t  retry;
} outcome_status_t;

static outcome_status_t  outcome_not_executed[] = {

    { NGX_HTTP_UNAUTHORIZED,        outcome_by_status },
    { NGX_HTTP_FORBIDDEN,           outcome_by_status },
    { 407,                          outcome_by_status },
    { NGX_HTTP_CONFLICT,            outcome_by_after },
    { 419,                          outcome_by_status },
    { 421,                          outcome_by_status },
    { 425,                          outcome_by_status },
    { NGX_HTTP_TOO_MANY_REQUESTS,   outcome_by_status },
    { NGX_HTTP_SERVICE_UNAVAILABLE, outcome_by_origin },
    { 0, 0 }
};

/* permission denied, resource exhausted, unavailable, unauthenticated */

static ngx_str_t  outcome_grpc_not_executed[] = {
    ngx_string("7"),
    ngx_string("8"),
    ngx_string("14"),
    ngx_string("16"),
    ngx_null_string
};


static void owner_report(ngx_http_idempotency_ctx_t *ctx, ngx_int_t outcome);
static void owner_wait(ngx_http_idempotency_report_t *report);
static void owner_silence_handler(ngx_event_t *ev);
static void owner_answered(ngx_idempotency_op_t *op);
static void owner_give_up(ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t limits_time(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static void limits_log_window(ngx_http_request_t *r, ngx_str_t *text);
static ngx_int_t limits_value(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_http_idempotency_value_t *of);
static void limits_address(ngx_connection_t *c, ngx_str_t *value);
static void wait_reading(ngx_http_request_t *r);
static ngx_uint_t wait_left(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static void wait_cancel(ngx_http_idempotency_ctx_t *ctx);
static void wait_timer_handler(ngx_event_t *ev);
static void similar_note(ngx_http_idempotency_ctx_t *ctx);
static void similar_forget(ngx_http_idempotency_ctx_t *ctx);
static void similar_answered(ngx_idempotency_op_t *op);
static ngx_int_t similar_refuse(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_http_idempotency_status_e why);
static ngx_int_t outcome_of(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static void outcome_attempt(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_uint_t outcome_upstream(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_uint_t outcome_own(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_uint_t outcome_keeps(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_uint_t outcome_executed(ngx_list_t *headers, ngx_uint_t status);
static ngx_uint_t outcome_grpc_executed(ngx_list_t *headers);


ngx_http_idempotency_ctx_t *
ngx_http_idempotency_create_ctx(ngx_http_request_t *r)
{
    ngx_http_cleanup_t          *cln;
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ngx_pcalloc(r->pool, sizeof(ngx_http_idempotency_ctx_t));
    if (ctx == NULL) {
        return NULL;
    }

    /* made before anything is claimed, so that no claim can be left behind */

    cln = ngx_http_cleanup_add(r, 0);
    if (cln == NULL) {
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


/* The report is allocated before anything is claimed, so that no claim can be
   left behind for want of memory. */

ngx_int_t
ngx_http_idempotency_prepare(ngx_http_idempotency_ctx_t *ctx)
{
    ngx_http_idempotency_report_t  *report;

    report = ngx_calloc(sizeof(ngx_http_idempotency_report_t),
                        ctx->request->connection->log);
    if (report == NULL) {
        return NGX_ERROR;
    }

    report->store = ctx->conf->store;
    report->ctx = ctx;

    ctx->settled.report = report;

    return NGX_OK;
}


/* gives the outcome to the store, once */

void
ngx_http_idempotency_settle(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_int_t  outcome;

    ngx_idempotency_die(&ctx->claim.op, NGX_IDEMPOTENCY_FAULT_DIE_RECORDING);

    outcome = outcome_of(r, ctx);

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


ngx_int_t
ngx_http_idempotency_limits(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_int_t  rc;

    if (limits_time(r, ctx) != NGX_OK) {
        return NGX_ERROR;
    }

    if (ctx->conf->quota == 0 || ctx->claim.quota) {
        return NGX_OK;
    }

    rc = limits_value(r, ctx, ctx->conf->quota_value);

    if (rc == NGX_OK) {
        ctx->claim.quota = ctx->conf->quota;
    }

    return (rc == NGX_ERROR) ? NGX_ERROR : NGX_OK;
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
        (void) limits_value(r, ctx, NULL);
    }
}


/* NGX_DECLINED: the value is empty, and nothing is counted */

static ngx_int_t
limits_value(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_value_t *of)
{
    u_char                     address[NGX_SOCKADDR_STRLEN];
    ngx_str_t                  value;
    ngx_idempotency_digest_t   d;

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

ngx_int_t
ngx_http_idempotency_wait(ngx_http_request_t *r,
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

    if (wait_left(r, ctx)) {
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
wait_left(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
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


/* the request ends: the store's answer is not needed any more */

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
 * Prepares a claim on the content.  The request owns its key by now, and the
 * content is bound to that key.  The note is allocated first, so that no claim
 * can be left behind for want of memory.
 */

ngx_int_t
ngx_http_idempotency_similar(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_idempotency_claim_t         *claim;
    ngx_http_idempotency_similar_t  *similar;

    similar = ctx->similar;

    if (similar->note == NULL) {
        similar->note = ngx_calloc(sizeof(ngx_idempotency_complete_t),
                                   r->connection->log);
        if (similar->note == NULL) {
            return NGX_ERROR;
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

    return NGX_OK;
}


/* NGX_OK: the owner goes on */

ngx_int_t
ngx_http_idempotency_similar_answer(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_http_idempotency_similar_t  *similar;

    similar = ctx->similar;

    switch (similar->claim.op.result) {

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


static ngx_int_t
outcome_of(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_uint_t      facts;
    outcome_row_t  *row;

    facts = outcome_upstream(r, ctx);

    if (!ctx->capture.answered) {

        /* nothing was sent to the client, whatever the upstream answered */

        outcome_attempt(r, ctx);
        facts = fact_no_answer;
    }

    if (!ctx->capture.whole) {
        facts |= fact_broken;
    }

    if (ctx->capture.too_large) {
        facts |= fact_too_large;
    }

    if (ctx->capture.says_release) {
        facts |= fact_says_release;
    }

    if (!ctx->capture.says_keep && !outcome_keeps(r, ctx)) {
        facts |= fact_unkept;
    }

    if (ctx->conf->in_doubt == NGX_HTTP_IDEMPOTENCY_IN_DOUBT_RETRY) {
        facts |= fact_retry;
    }

    if (outcome_own(r, ctx)) {
        facts |= fact_own;
    }

    /* what came before decides */

    if (ctx->capture.executed) {
        facts &= ~(fact_says_release|fact_no_answer|fact_unkept);

        if (!ctx->capture.answered) {
            ctx->capture.status = ctx->capture.executed;
        }

    } else if ((ctx->capture.doubt && (facts & (fact_no_answer|fact_unkept)))
               || (ctx->capture.delegated && (facts & fact_no_answer)))
    {
        facts |= fact_no_answer|fact_sent;
    }

    for (row = outcome_table; /* void */ ; row++) {

        if ((facts & row->all_of) == row->all_of
            && (facts & row->none_of) == 0)
        {
            break;
        }
    }

    ngx_log_debug3(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "idempotency outcome: %i, facts:%xi, status:%ui",
                   row->outcome, facts, ctx->capture.status);

    return row->outcome;
}


/*
 * Called before each content handler of an owner's main request.  The last one
 * has sent the request on to another location: by an error_page,
 * X-Accel-Redirect, or as Lua does.
 */

void
ngx_http_idempotency_sent_on(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    if (ctx->capture.handled) {

        if (r->upstream == ctx->capture.upstream
            && r->error_page == ctx->capture.error_page)
        {
            ctx->capture.delegated = 1;

        } else {
            outcome_attempt(r, ctx);
        }
    }

    ctx->capture.handled = 1;
    ctx->capture.error_page = r->error_page;
    ctx->capture.upstream = r->upstream;
    ctx->capture.attempts = r->upstream_states ? r->upstream_states->nelts : 0;
}


/* what the last content handler has left, if the client gets nothing of it */

static void
outcome_attempt(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_uint_t                       facts, status;
    ngx_http_upstream_t             *u;
    ngx_http_idempotency_capture_t  *capture;

    capture = &ctx->capture;

    u = ngx_http_idempotency_upstream(r, ctx);
    facts = outcome_upstream(r, ctx);

    /* there is no status without an upstream, or if it speaks HTTP/0.9 */

    status = u ? u->headers_in.status_n : 0;

    capture->says_release = 0;
    capture->says_keep = 0;

    if (u && u->headers_in.headers.part.elts) {
        ngx_http_idempotency_accel(&u->headers_in.headers, ctx);
    }

    if (capture->says_release) {
        return;
    }

    if ((facts & fact_no_answer) || status == 0) {
        capture->doubt |= (facts & fact_sent) ? 1 : 0;

    } else if (capture->says_keep || outcome_keeps(r, ctx)) {
        capture->executed = status;
    }
}


/* the last content handler's upstream, or NULL */

ngx_http_upstream_t *
ngx_http_idempotency_upstream(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    return (r->upstream == ctx->capture.upstream) ? NULL : r->upstream;
}


/*
 * Facts from the attempts at upstreams.  An upstream at work has answered, or
 * nginx serves a stale response from its cache.  A finished upstream has left
 * an entry for each attempt, with the number of bytes sent.  An entry without
 * a peer separates two upstreams of one request.  A response without any
 * attempt came from a cache.
 */

static ngx_uint_t
outcome_upstream(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_uint_t                  i, facts, sent;
    ngx_http_upstream_t        *u;
    ngx_http_upstream_state_t  *state;

    u = ngx_http_idempotency_upstream(r, ctx);

    if (u == NULL
        || (u->cleanup && u->state
            && u->state->header_time != (ngx_msec_t) -1))
    {
        return fact_sent;
    }

    facts = u->headers_in.status_n ? fact_sent : fact_no_answer;

    if (r->upstream_states == NULL) {
        return facts;
    }

    sent = 0;
    state = r->upstream_states->elts;

    for (i = ctx->capture.attempts; i < r->upstream_states->nelts; i++) {

        if (state[i].peer == NULL) {
            continue;
        }

        if (state[i].header_time != (ngx_msec_t) -1) {
            sent = fact_sent;
            facts = 0;

        } else {
            facts = fact_no_answer;

            if (state[i].bytes_sent > 0 || state[i].bytes_received > 0) {
                sent = fact_sent;
            }
        }
    }

    return facts | sent;
}


/*
 * An error page counts as an error, whatever its status.  Under
 * recursive_error_pages only the internal redirect tells.  If a subrequest has
 * yet to run, as a mirror's may, nginx is not alone.
 */

static ngx_uint_t
outcome_own(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ngx_http_core_loc_conf_t   *clcf;
    ngx_http_posted_request_t  *pr;

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    if (ctx->client.handled
        || (ctx->capture.status < NGX_HTTP_SPECIAL_RESPONSE
            && !r->error_page && r->err_status == 0
            && !(r->internal && clcf->recursive_error_pages)))
    {
        return 0;
    }

    for (pr = r->main->posted_requests; pr; pr = pr->next) {
        if (pr->request != r) {
            return 0;
        }
    }

    return 1;
}


/* The upstream's status counts, even if nginx sent another response in its
   place.  An upstream that did not answer has left no status. */

static ngx_uint_t
outcome_keeps(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    u_char               *keep;
    ngx_list_t           *headers;
    ngx_uint_t            status;
    ngx_http_upstream_t  *u;

    u = ngx_http_idempotency_upstream(r, ctx);
    keep = ctx->conf->keep;

    if (u && u->headers_in.status_n) {
        status = u->headers_in.status_n;
        headers = &u->headers_in.headers;

    } else {
        u = NULL;
        status = ctx->capture.status;
        headers = &r->headers_out.headers;
    }

    if (status == NGX_HTTP_SWITCHING_PROTOCOLS) {
        return 1;
    }

    if (keep && status < NGX_HTTP_IDEMPOTENCY_CODES
        && keep[status] != NGX_HTTP_IDEMPOTENCY_KEEP_DEFAULT)
    {
        return keep[status] == NGX_HTTP_IDEMPOTENCY_KEEP_YES;
    }

    /* a user corrects a refused form, and sends it again */

    if (status / 100 == 4
        && (ngx_http_idempotency_by_content(ctx) || ctx->body.form_key))
    {
        return 0;
    }

    return outcome_executed(headers, status)
           && (u == NULL
               || (outcome_grpc_executed(&u->headers_in.headers)
                   && outcome_grpc_executed(&u->headers_in.trailers)));
}


static ngx_uint_t
outcome_executed(ngx_list_t *headers, ngx_uint_t status)
{
    outcome_status_t  *row;

    for (row = outcome_not_executed; row->status; row++) {
        if (row->status == status) {
            break;
        }
    }

    if (row->status == 0) {
        return 1;
    }

    if (row->retry == outcome_by_status) {
        return 0;
    }

    if (ngx_http_idempotency_header_of(headers, "retry-after") == NULL) {
        return 1;
    }

    /* a cache in between that waited in vain for a response makes a 503,
       too */

    return row->retry == outcome_by_origin
           && (ngx_http_idempotency_header_of(headers, "via")
               || ngx_http_idempotency_header_of(headers, "x-varnish")
               || ngx_http_idempotency_header_of(headers, "age"));
}


static ngx_uint_t
outcome_grpc_executed(ngx_list_t *headers)
{
    ngx_str_t        *status;
    ngx_table_elt_t  *h;

    h = ngx_http_idempotency_header_of(headers, "grpc-status");

    if (h == NULL) {
        return 1;
    }

    for (status = outcome_grpc_not_executed; status->len; status++) {

        if (h->value.len == status->len
            && ngx_strncmp(h->value.data, status->data, status->len) == 0)
        {
            return 0;
        }
    }

    return 1;
}
