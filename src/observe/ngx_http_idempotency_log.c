
/*
 * Log lines and counters of requests.
 *
 * Any client can cause refusals and replays.  So each worker limits the lines
 * of a kind, and then logs how many lines it has suppressed.  The trail has a
 * line for each claim and one for its outcome.  It is logged one level below,
 * and never suppressed: it shows what became of a token that is fresh again.
 * No line has a key.
 *
 * Each protected request is counted once: an owner when its claim is granted,
 * any other request before its header is sent, so that a client that has the
 * answer finds it counted; a request that was never answered, at its end.
 */


#include "ngx_http_idempotency.h"


/* in each worker and for each kind: lines at once, and lines in a second */

#define NGX_HTTP_IDEMPOTENCY_LOG_BURST   1000
#define NGX_HTTP_IDEMPOTENCY_LOG_RATE    100

#define NGX_HTTP_IDEMPOTENCY_LOG_KINDS                                       \
    (NGX_HTTP_IDEMPOTENCY_STATUS_WAITED + 1)

/* the longest text of a line; the longest outcome, age and fence behind it */

#define LOG_TEXT  512

#define LOG_FOUND                                                            \
    (sizeof(", outcome: in doubt, age: .000, fence: ")                       \
     + 3 * NGX_INT64_LEN)

/* each status has a counter: else this does not compile */

typedef char  log_statuses_fit_t[
    (NGX_HTTP_IDEMPOTENCY_STATUSES <= NGX_IDEMPOTENCY_STATS_RESULTS) ? 1 : -1];

typedef struct {
    ngx_msec_t   last;
    /* lines ahead of the rate, in thousandths */
    ngx_uint_t   ahead;
    ngx_uint_t   suppressed;
    ngx_uint_t   level;
} log_limit_t;


const ngx_http_idempotency_outcome_t
    ngx_http_idempotency_outcomes[NGX_IDEMPOTENCY_STATS_RECORDS] =
{
    { "pending",  "pending" },
    { "done",     "done" },
    { "not_kept", "not kept" },
    { "in_doubt", "in doubt" }
};

const char  *ngx_http_idempotency_differs_names[NGX_IDEMPOTENCY_STATS_DIFFERS]
    = { "action", "identity", "body", "settings" };


static ngx_uint_t log_admits(ngx_uint_t level,
    ngx_http_idempotency_status_e kind);
static void log_timer_handler(ngx_event_t *ev);
static u_char *log_found(ngx_http_idempotency_ctx_t *ctx, u_char *text);
static void count_wait(ngx_http_idempotency_ctx_t *ctx,
    ngx_idempotency_counters_t *counters);


static log_limit_t       log_limits[NGX_HTTP_IDEMPOTENCY_LOG_KINDS];
static ngx_event_t       log_event;
/* nginx's debug log takes the data of a timer for a connection */
static ngx_connection_t  log_nobody;


void
ngx_http_idempotency_log(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_http_idempotency_status_e kind,
    ngx_uint_t level, const char *fmt, ...)
{
    u_char      *last, *p;
    u_char       text[LOG_TEXT], found[LOG_FOUND];
    va_list      args;
    ngx_log_t   *log;

    log = r->connection->log;

    if (log->log_level < level
        || (kind != NGX_HTTP_IDEMPOTENCY_STATUS_NEW
            && !log_admits(level, kind)))
    {
        return;
    }

    va_start(args, fmt);
    last = ngx_vslprintf(text, text + LOG_TEXT, fmt, args);
    va_end(args);

    p = log_found(ctx, found);

    ngx_log_error(level, log, 0,
                  "idempotency%*s%s, token: %*xs, zone: \"%V\"%*s",
                  (size_t) (last - text), text,
                  ctx->conf->dry_run ? ", dry run" : "",
                  ngx_http_idempotency_has_token(ctx)
                      ? (size_t) NGX_IDEMPOTENCY_DIGEST_LEN : 0,
                  ctx->claim.op.token, &ctx->conf->store->name,
                  (size_t) (p - found), found);
}


/* whether one more line of that kind may be logged */

static ngx_uint_t
log_admits(ngx_uint_t level, ngx_http_idempotency_status_e kind)
{
    ngx_uint_t    due;
    log_limit_t  *limit;

    limit = &log_limits[kind];

    due = (ngx_uint_t) (ngx_current_msec - limit->last)
          * NGX_HTTP_IDEMPOTENCY_LOG_RATE;

    limit->last = ngx_current_msec;
    limit->ahead -= ngx_min(due, limit->ahead);

    if (limit->ahead < NGX_HTTP_IDEMPOTENCY_LOG_BURST * 1000) {
        limit->ahead += 1000;
        return 1;
    }

    limit->level = level;
    limit->suppressed++;

    if (!log_event.timer_set) {
        log_event.handler = log_timer_handler;
        log_event.data = &log_nobody;
        log_event.log = ngx_cycle->log;
        log_event.cancelable = 1;

        ngx_add_timer(&log_event, 1000);
    }

    return 0;
}


static void
log_timer_handler(ngx_event_t *ev)
{
    ngx_http_idempotency_log_suppressed();
}


/* logs how many lines were suppressed: each second, and when the worker
   ends */

void
ngx_http_idempotency_log_suppressed(void)
{
    ngx_str_t    *name;
    ngx_uint_t    i;
    log_limit_t  *limit;

    static ngx_str_t  replay = ngx_string("replay");

    for (i = 0; i < NGX_HTTP_IDEMPOTENCY_LOG_KINDS; i++) {

        limit = &log_limits[i];

        if (limit->suppressed) {
            name = (i < NGX_HTTP_IDEMPOTENCY_REFUSALS)
                   ? &ngx_http_idempotency_statuses[i].name : &replay;

            ngx_log_error(limit->level, ngx_cycle->log, 0,
                          "idempotency: %ui more lines were suppressed, %V",
                          limit->suppressed, name);

            limit->suppressed = 0;
        }
    }
}


/* the token's record as the store answered; an owner's own fence */

static u_char *
log_found(ngx_http_idempotency_ctx_t *ctx, u_char *text)
{
    u_char                   *p;
    ngx_idempotency_found_t  *found;

    if (!ngx_http_idempotency_has_token(ctx)) {
        return text;
    }

    found = &ctx->claim.found;

    switch (ctx->claim.op.result) {

    case NGX_IDEMPOTENCY_CLAIMED:
        return ngx_sprintf(text, ", fence: %uL", ctx->claim.fence);

    case NGX_IDEMPOTENCY_BOUND:
    case NGX_IDEMPOTENCY_CONFLICT:
        break;

    default:
        return text;
    }

    p = ngx_sprintf(text, ", outcome: %s",
                    ctx->claim.leftover
                        ? "released"
                        : ngx_http_idempotency_outcomes[found->outcome].text);

    if (!ctx->claim.leftover && found->outcome != NGX_IDEMPOTENCY_PENDING) {
        p = ngx_sprintf(p, ", age: %M.%03M", found->age / 1000,
                        found->age % 1000);
    }

    return ngx_sprintf(p, ", fence: %uL", found->fence);
}


void
ngx_http_idempotency_count(ngx_http_idempotency_ctx_t *ctx)
{
    ngx_uint_t                   i;
    ngx_atomic_t                *results;
    ngx_idempotency_counters_t  *counters;

    if (ctx->counted || ctx->status == NGX_HTTP_IDEMPOTENCY_STATUS_NONE) {
        return;
    }

    ctx->counted = 1;

    counters = ctx->conf->store->counters;
    results = ctx->conf->dry_run ? counters->dry_run : counters->results;

    ngx_idempotency_stats_add(results[ctx->status], 1);

    if (ctx->status == NGX_HTTP_IDEMPOTENCY_STATUS_CONFLICT) {

        for (i = 0; i < NGX_IDEMPOTENCY_STATS_DIFFERS; i++) {
            if (ctx->claim.differs & ((ngx_uint_t) 1 << i)) {
                ngx_idempotency_stats_add(counters->differs[i], 1);
            }
        }
    }

    count_wait(ctx, counters);
}


/* the request ends, perhaps as its client left while it waited */

void
ngx_http_idempotency_count_end(ngx_http_idempotency_ctx_t *ctx)
{
    if (ctx->status == NGX_HTTP_IDEMPOTENCY_STATUS_NONE && ctx->wait.waited
        && ctx->claim.found.outcome == NGX_IDEMPOTENCY_PENDING)
    {
        ctx->status = NGX_HTTP_IDEMPOTENCY_STATUS_IN_PROGRESS;
    }

    ngx_http_idempotency_count(ctx);
}


/* the wait began wait_timeout before its deadline */

static void
count_wait(ngx_http_idempotency_ctx_t *ctx,
    ngx_idempotency_counters_t *counters)
{
    ngx_msec_int_t  ms;

    if (!ctx->wait.waited) {
        return;
    }

    ms = ngx_current_msec - (ctx->wait.deadline - ctx->conf->wait_timeout);

    ngx_idempotency_stats_time(&counters->wait, ngx_max(ms, 0));
}


/* what differs in a conflict; empty for any other status */

ngx_str_t
ngx_http_idempotency_reason(ngx_http_idempotency_ctx_t *ctx, u_char *text)
{
    u_char     *p;
    ngx_str_t   reason;
    ngx_uint_t  i;

    p = text;

    if (ctx->status == NGX_HTTP_IDEMPOTENCY_STATUS_CONFLICT) {

        for (i = 0; i < NGX_IDEMPOTENCY_STATS_DIFFERS; i++) {
            if (ctx->claim.differs & ((ngx_uint_t) 1 << i)) {
                p = ngx_sprintf(p, "%s%s", p == text ? "" : ",",
                                ngx_http_idempotency_differs_names[i]);
            }
        }
    }

    reason.data = text;
    reason.len = p - text;

    return reason;
}
