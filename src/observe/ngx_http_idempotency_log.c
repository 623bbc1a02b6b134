
/*
 * What the log and the variables tell of requests.
 *
 * A refusal or a replay is a line, which anybody can cause: so of each kind a
 * worker writes some and no more, and then how many there were besides.  The
 * trail, a line for each claim and one for its outcome, is one step less
 * urgent, and without gaps: by it one can show what became of a token that is
 * fresh again.  No line has the key.
 */


#include "ngx_http_idempotency.h"
#include "request/ngx_http_idempotency_refuse.h"


/* of a kind, in a worker: so many at once, and then so many a second */

#define NGX_HTTP_IDEMPOTENCY_LOG_BURST   1000
#define NGX_HTTP_IDEMPOTENCY_LOG_RATE    100

#define NGX_HTTP_IDEMPOTENCY_LOG_KINDS                                       \
    (NGX_HTTP_IDEMPOTENCY_STATUS_WAITED + 1)

/* what follows the zone: outcome, age and fence */

#define NGX_HTTP_IDEMPOTENCY_LOG_FOUND                                       \
    (sizeof(", outcome: in doubt, age: .000, fence: ")                       \
     + 3 * NGX_INT64_LEN)

typedef struct {
    ngx_msec_t   last;
    /* lines that are ahead of the rate, in thousandths */
    ngx_uint_t   ahead;
    ngx_uint_t   suppressed;
    ngx_uint_t   level;
} log_limit_t;


/* NGX_DECLINED: it has no value */

typedef ngx_int_t (*variable_value_pt)(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *value);

typedef struct {
    ngx_str_t          name;
    variable_value_pt  value;
} variable_t;


static void log_suppressed(ngx_event_t *ev);
static u_char *log_found(ngx_http_idempotency_ctx_t *ctx, u_char *text);
static ngx_int_t variable_get(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t variable_status(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *value);
static ngx_int_t variable_key(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *value);
static ngx_int_t variable_token(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *value);
static ngx_int_t variable_digest(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *value);
static ngx_int_t variable_reason(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *value);
static ngx_int_t variable_age(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *value);
static ngx_int_t variable_replays(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *value);
static ngx_int_t variable_expires(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *value);
static ngx_int_t variable_fence(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *value);
static ngx_int_t variable_refusal(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *value);
static ngx_int_t variable_detail(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *value);
static ngx_int_t variable_hex(ngx_http_request_t *r, u_char *digest,
    ngx_str_t *value);
static ngx_int_t variable_number(ngx_http_request_t *r, uint64_t n,
    ngx_str_t *value);


static log_limit_t       log_limits[NGX_HTTP_IDEMPOTENCY_LOG_KINDS];
static ngx_event_t       log_event;
/* what the debug log of events wants to know of */
static ngx_connection_t  log_nobody;

static const char  *log_outcomes[] = {
    "pending", "done", "not kept", "in doubt"
};


static variable_t  variables[] = {
    { ngx_string("idempotency_status"), variable_status },
    { ngx_string("idempotency_key"), variable_key },
    { ngx_string("idempotency_token"), variable_token },
    { ngx_string("idempotency_digest"), variable_digest },
    { ngx_string("idempotency_reason"), variable_reason },
    { ngx_string("idempotency_age"), variable_age },
    { ngx_string("idempotency_replays"), variable_replays },
    { ngx_string("idempotency_expires"), variable_expires },
    { ngx_string("idempotency_fence"), variable_fence },
    { ngx_string("idempotency_refusal"), variable_refusal },
    { ngx_string("idempotency_detail"), variable_detail },
    /* any name that begins so */
    { ngx_string("idempotency_field_"), NULL },
    { ngx_null_string, NULL }
};

/* in the order of ngx_http_idempotency_status_e; a dry run adds its suffix */

#define NGX_HTTP_IDEMPOTENCY_STATUS_SUFFIX_LEN  (sizeof("_DRY_RUN") - 1)

static ngx_str_t  status_names[] = {
    ngx_null_string,
    ngx_string("CONFLICT_DRY_RUN"),
    ngx_string("IN_PROGRESS_DRY_RUN"),
    ngx_string("IN_DOUBT_DRY_RUN"),
    ngx_string("NOT_KEPT_DRY_RUN"),
    ngx_string("SIMILAR_DRY_RUN"),
    ngx_string("EXPIRED_DRY_RUN"),
    ngx_string("MISSING_DRY_RUN"),
    ngx_string("MALFORMED_DRY_RUN"),
    ngx_string("LIMITED_DRY_RUN"),
    ngx_string("UNAVAILABLE_DRY_RUN"),
    ngx_string("NEW_DRY_RUN"),
    ngx_string("NESTED_DRY_RUN"),
    ngx_string("REPLAYED_DRY_RUN"),
    ngx_string("WAITED_DRY_RUN"),
    ngx_string("BYPASS_DRY_RUN")
};


/* refuses: or lets it pass, as it can't tell */

void
ngx_http_idempotency_log_refusal(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_uint_t status, ngx_uint_t refuses)
{
    u_char                            text[NGX_HTTP_IDEMPOTENCY_REASON_LEN];
    u_char                            found[NGX_HTTP_IDEMPOTENCY_LOG_FOUND];
    ngx_str_t                         reason;
    ngx_uint_t                        level;
    ngx_http_idempotency_loc_conf_t  *conf;

    conf = ctx->conf;
    level = (ctx->status == NGX_HTTP_IDEMPOTENCY_STATUS_UNAVAILABLE)
            ? NGX_LOG_ERR : conf->log_level;

    if (!ngx_http_idempotency_log_admits(r->connection->log, level,
                                         ctx->status))
    {
        return;
    }

    reason = ngx_http_idempotency_reason(ctx, text);

    ngx_log_error(level, r->connection->log, 0,
                  "idempotency: %s with status %ui, %V%s%V%s%s, "
                  "token: %*xs, zone: \"%V\"%*s",
                  (refuses || conf->dry_run)
                      ? "refused" : "passed unprotected, not refused",
                  status, &ngx_http_idempotency_refusals[ctx->status].name,
                  reason.len ? ", reason: " : "", &reason,
                  conf->dry_run ? ", dry run" : "",
                  (ctx->status == NGX_HTTP_IDEMPOTENCY_STATUS_IN_PROGRESS
                   && conf->in_progress == NGX_HTTP_IDEMPOTENCY_IN_PROGRESS_WAIT
                   && !conf->dry_run)
                      ? ", waited in vain (is this nginx its own upstream?)"
                      : "",
                  ngx_http_idempotency_bound(ctx)
                      ? (size_t) NGX_IDEMPOTENCY_DIGEST_LEN : 0,
                  ctx->claim.op.token, &conf->store->name,
                  (size_t) (log_found(ctx, found) - found), found);
}


void
ngx_http_idempotency_log_replay(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    u_char                            found[NGX_HTTP_IDEMPOTENCY_LOG_FOUND];
    ngx_http_idempotency_loc_conf_t  *conf;

    conf = ctx->conf;

    if (!ngx_http_idempotency_log_admits(r->connection->log, conf->log_level,
                                         ctx->status))
    {
        return;
    }

    ngx_log_error(conf->log_level, r->connection->log, 0,
                  "idempotency: replayed a response of status %ui%s, "
                  "token: %*xs, zone: \"%V\"%*s",
                  ctx->claim.found.status, conf->dry_run ? ", dry run" : "",
                  (size_t) NGX_IDEMPOTENCY_DIGEST_LEN, ctx->claim.op.token,
                  &conf->store->name,
                  (size_t) (log_found(ctx, found) - found), found);
}


/* it was let through */

void
ngx_http_idempotency_log_similar(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_http_idempotency_loc_conf_t  *conf;

    conf = ctx->conf;

    if (!ngx_http_idempotency_log_admits(r->connection->log, conf->log_level,
                                         ctx->status))
    {
        return;
    }

    ngx_log_error(conf->log_level, r->connection->log, 0,
                  "idempotency: passed a new key with content just seen, "
                  "token: %*xs, zone: \"%V\"",
                  (size_t) NGX_IDEMPOTENCY_DIGEST_LEN, ctx->claim.op.token,
                  &conf->store->name);
}


/* once: it is how this nginx is set up */

void
ngx_http_idempotency_log_nested(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_http_idempotency_loc_conf_t  *conf;

    conf = ctx->conf;

    if (conf->nested) {
        return;
    }

    conf->nested = 1;

    ngx_log_error(conf->log_level, r->connection->log, 0,
                  "idempotency: this nginx is its own upstream, passed what "
                  "it has sent itself, from now on in silence, "
                  "token: %*xs, zone: \"%V\", fence: %uL",
                  (size_t) NGX_IDEMPOTENCY_DIGEST_LEN, ctx->claim.op.token,
                  &conf->store->name, ctx->claim.found.fence);
}


/* the level of the trail: one step below that of refusals and replays */

ngx_uint_t
ngx_http_idempotency_log_trail(ngx_http_idempotency_loc_conf_t *conf)
{
    return ngx_min(conf->log_level + 1, NGX_LOG_INFO);
}


void
ngx_http_idempotency_log_claim(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_http_idempotency_loc_conf_t  *conf;

    conf = ctx->conf;

    if (ctx->claim.taken) {
        ngx_log_error(conf->log_level, r->connection->log, 0,
                      "idempotency: took over a token in doubt, "
                      "token: %*xs, zone: \"%V\", fence: %uL",
                      (size_t) NGX_IDEMPOTENCY_DIGEST_LEN,
                      ctx->claim.op.token, &conf->store->name,
                      ctx->claim.fence);
    }

    ngx_log_error(ngx_http_idempotency_log_trail(conf), r->connection->log, 0,
                  "idempotency claim, token: %*xs, zone: \"%V\", fence: %uL%s",
                  (size_t) NGX_IDEMPOTENCY_DIGEST_LEN, ctx->claim.op.token,
                  &conf->store->name, ctx->claim.fence,
                  conf->dry_run ? ", dry run" : "");
}


/* outcome: one of the store's, or that it was released; doubt: what was in
   doubt before it was claimed is so again */

void
ngx_http_idempotency_log_outcome(ngx_log_t *log, ngx_uint_t level,
    ngx_idempotency_store_t *store, ngx_idempotency_op_t *op, uint64_t fence,
    ngx_int_t outcome, ngx_uint_t doubt, ngx_uint_t status)
{
    ngx_log_error(level, log, 0,
                  "idempotency outcome %s%s, status %ui, token: %*xs, "
                  "zone: \"%V\", fence: %uL",
                  (outcome < 0) ? "released" : log_outcomes[outcome],
                  doubt ? ", in doubt again" : "", status,
                  (size_t) NGX_IDEMPOTENCY_DIGEST_LEN, op->token,
                  &store->name, fence);
}


/* one more line of that kind; one that would not be written is no flood */

ngx_uint_t
ngx_http_idempotency_log_admits(ngx_log_t *log, ngx_uint_t level,
    ngx_http_idempotency_status_e kind)
{
    ngx_uint_t    due;
    log_limit_t  *limit;

    if (log->log_level < level) {
        return 0;
    }

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
        log_event.handler = log_suppressed;
        log_event.data = &log_nobody;
        log_event.log = ngx_cycle->log;
        log_event.cancelable = 1;

        ngx_add_timer(&log_event, 1000);
    }

    return 0;
}


static void
log_suppressed(ngx_event_t *ev)
{
    ngx_http_idempotency_log_rest();
}


/* how many there were besides; at the worker's end, too */

void
ngx_http_idempotency_log_rest(void)
{
    ngx_str_t    *name;
    ngx_uint_t    i;
    log_limit_t  *limit;

    static ngx_str_t  replay = ngx_string("replay");

    for (i = 0; i < NGX_HTTP_IDEMPOTENCY_LOG_KINDS; i++) {

        limit = &log_limits[i];

        if (limit->suppressed) {
            name = (i < NGX_HTTP_IDEMPOTENCY_REFUSALS)
                   ? &ngx_http_idempotency_refusals[i].name : &replay;

            ngx_log_error(limit->level, ngx_cycle->log, 0,
                          "idempotency: %ui more lines were suppressed, %V",
                          limit->suppressed, name);

            limit->suppressed = 0;
        }
    }
}


/* what the token was found to be bound to, if the store said so */

static u_char *
log_found(ngx_http_idempotency_ctx_t *ctx, u_char *text)
{
    u_char                   *p;
    ngx_idempotency_found_t  *found;

    if (!ngx_http_idempotency_bound(ctx)
        || (ctx->claim.op.result != NGX_IDEMPOTENCY_BOUND
            && ctx->claim.op.result != NGX_IDEMPOTENCY_CONFLICT))
    {
        return text;
    }

    found = &ctx->claim.found;

    if (ctx->claim.leftover) {
        return ngx_sprintf(text, ", outcome: released, fence: %uL",
                           found->fence);
    }

    p = ngx_sprintf(text, ", outcome: %s", log_outcomes[found->outcome]);

    if (found->outcome != NGX_IDEMPOTENCY_PENDING) {
        p = ngx_sprintf(p, ", age: %M.%03M", found->age / 1000,
                        found->age % 1000);
    }

    return ngx_sprintf(p, ", fence: %uL", found->fence);
}


ngx_int_t
ngx_http_idempotency_add_variables(ngx_conf_t *cf)
{
    variable_t           *v;
    ngx_http_variable_t  *var;

    for (v = variables; v->name.len; v++) {
        var = ngx_http_add_variable(cf, &v->name,
                                    v->value ? NGX_HTTP_VAR_NOCACHEABLE
                                             : NGX_HTTP_VAR_PREFIX);
        if (var == NULL) {
            return NGX_ERROR;
        }

        if (v->value) {
            var->get_handler = variable_get;
            var->data = (uintptr_t) v;

        } else {
            var->get_handler = ngx_http_idempotency_field_variable;
        }
    }

    return NGX_OK;
}


/* one of ours that says what became of a request, so not a field of it */

ngx_uint_t
ngx_http_idempotency_is_own(ngx_str_t *name)
{
    variable_t  *v;

    for (v = variables; v->name.len; v++) {
        if (v->value
            && v->name.len == name->len
            && ngx_strncasecmp(v->name.data, name->data, name->len) == 0)
        {
            return 1;
        }
    }

    return 0;
}


static ngx_int_t
variable_get(ngx_http_request_t *r, ngx_http_variable_value_t *v,
    uintptr_t data)
{
    variable_t *variable = (variable_t *) data;

    ngx_int_t                    rc;
    ngx_str_t                    value;
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ngx_http_idempotency_get_ctx(r);

    rc = ctx ? variable->value(r, ctx, &value) : NGX_DECLINED;

    if (rc == NGX_ERROR) {
        return NGX_ERROR;
    }

    ngx_http_idempotency_set_variable(v, rc, &value);

    return NGX_OK;
}


static ngx_int_t
variable_status(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_str_t *value)
{
    if (ctx->status == NGX_HTTP_IDEMPOTENCY_STATUS_NONE) {
        return NGX_DECLINED;
    }

    *value = status_names[ctx->status];

    if (!ctx->conf->dry_run) {
        value->len -= NGX_HTTP_IDEMPOTENCY_STATUS_SUFFIX_LEN;
    }

    return NGX_OK;
}


static ngx_int_t
variable_key(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_str_t *value)
{
    if (ctx->verdict != NGX_HTTP_IDEMPOTENCY_STATUS_NEW) {
        return NGX_DECLINED;
    }

    *value = ctx->key;

    return NGX_OK;
}


static ngx_int_t
variable_token(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_str_t *value)
{
    return ngx_http_idempotency_bound(ctx)
           ? variable_hex(r, ctx->claim.op.token, value) : NGX_DECLINED;
}


static ngx_int_t
variable_digest(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_str_t *value)
{
    return ngx_http_idempotency_bound(ctx)
           ? variable_hex(r, ctx->body.digest, value) : NGX_DECLINED;
}


static ngx_int_t
variable_reason(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_str_t *value)
{
    u_char  *text;

    if (ctx->status != NGX_HTTP_IDEMPOTENCY_STATUS_CONFLICT) {
        return NGX_DECLINED;
    }

    text = ngx_pnalloc(r->pool, NGX_HTTP_IDEMPOTENCY_REASON_LEN);
    if (text == NULL) {
        return NGX_ERROR;
    }

    *value = ngx_http_idempotency_reason(ctx, text);

    return NGX_OK;
}


/* this and the next: of the record that a repeat met */

static ngx_int_t
variable_age(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_str_t *value)
{
    return ctx->claim.found.response.data
           ? variable_number(r, ctx->claim.found.age / 1000, value)
           : NGX_DECLINED;
}


static ngx_int_t
variable_replays(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_str_t *value)
{
    return ctx->claim.found.response.data
           ? variable_number(r, ctx->claim.found.replays, value)
           : NGX_DECLINED;
}


/*
 * Until the token is free.  The owner's own window runs from the outcome on:
 * until there is one it is told whole.  When another's will be, nobody knows.
 */

static ngx_int_t
variable_expires(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_str_t *value)
{
    ngx_msec_t                ends;
    ngx_msec_int_t            left;
    ngx_idempotency_claim_t  *claim;

    claim = &ctx->claim;

    if ((claim->fence == 0 && claim->found.fence == 0)
        || ctx->settled.refused)
    {
        return NGX_DECLINED;
    }

    if (ctx->state == NGX_HTTP_IDEMPOTENCY_STATE_RELEASED || claim->leftover) {
        return variable_number(r, 0, value);
    }

    if (ngx_http_idempotency_owns(ctx)) {
        ends = ngx_http_idempotency_ends(ctx);

    } else if (ctx->state == NGX_HTTP_IDEMPOTENCY_STATE_SETTLED) {
        ends = ctx->settled.ends;

    } else if (claim->found.outcome == NGX_IDEMPOTENCY_PENDING
               || claim->op.result == NGX_IDEMPOTENCY_UNAVAILABLE)
    {
        return NGX_DECLINED;

    } else {
        ends = ctx->answered + claim->found.left;
    }

    /* rounded up: it is free then */

    left = ngx_max((ngx_msec_int_t) (ends - ngx_current_msec), 0);

    return variable_number(r, (left + 999) / 1000, value);
}


static ngx_int_t
variable_fence(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_str_t *value)
{
    uint64_t  fence;

    fence = ctx->claim.fence ? ctx->claim.fence : ctx->claim.found.fence;

    return fence ? variable_number(r, fence, value) : NGX_DECLINED;
}


/* this and the next, for an error_page: what the document would have said */

static ngx_int_t
variable_refusal(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_str_t *value)
{
    if (!ngx_http_idempotency_refused(ctx)) {
        return NGX_DECLINED;
    }

    *value = ngx_http_idempotency_refusals[ctx->status].name;

    return NGX_OK;
}


static ngx_int_t
variable_detail(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_str_t *value)
{
    if (!ngx_http_idempotency_refused(ctx)) {
        return NGX_DECLINED;
    }

    return (ngx_http_idempotency_refusal_detail(r, ctx, value) == NGX_OK)
           ? NGX_OK : NGX_ERROR;
}


static ngx_int_t
variable_hex(ngx_http_request_t *r, u_char *digest, ngx_str_t *value)
{
    value->len = 2 * NGX_IDEMPOTENCY_DIGEST_LEN;

    value->data = ngx_pnalloc(r->pool, value->len);
    if (value->data == NULL) {
        return NGX_ERROR;
    }

    (void) ngx_hex_dump(value->data, digest, NGX_IDEMPOTENCY_DIGEST_LEN);

    return NGX_OK;
}


static ngx_int_t
variable_number(ngx_http_request_t *r, uint64_t n, ngx_str_t *value)
{
    value->data = ngx_pnalloc(r->pool, NGX_INT64_LEN);
    if (value->data == NULL) {
        return NGX_ERROR;
    }

    value->len = ngx_sprintf(value->data, "%uL", n) - value->data;

    return NGX_OK;
}
