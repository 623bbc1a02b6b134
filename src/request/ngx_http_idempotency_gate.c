
/*
 * The way in.  A request comes by here twice: in the access phase, behind all
 * access control, it is prepared (key, body, digest); at the first point
 * behind that phase it is decided.  Under "satisfy any" the access phase may
 * skip us, or call us for a request that it is about to refuse, and another
 * module's handler may have moved behind ours: then both is done at the
 * second point.
 *
 *     prepare: key --> body --> digest          (ngx_http_idempotency_bind)
 *     decide:  claim --> pass as owner, wait, replay, or refuse
 *
 * A handler returns NGX_DECLINED to let the request go on, and NGX_DONE where
 * something else drives it from then on: the reader of the body, which runs
 * the phases again, the end of waiting (ngx_http_idempotency_resume), or an
 * answer of ours, which is finalized.  It never
 * returns NGX_OK, which would skip what stands behind us in the phase, or,
 * under "satisfy any", grant access.
 */


#include "ngx_http_idempotency_headers.h"


static ngx_uint_t gate_applies(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf);
static ngx_uint_t gate_protects(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf);
static ngx_uint_t gate_last(ngx_http_request_t *r);
static ngx_uint_t gate_upgrade(ngx_http_request_t *r);
static ngx_int_t gate_prepare(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf, ngx_http_idempotency_ctx_t **pctx);
static ngx_int_t gate_judge(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t gate_decide(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
#if (NGX_IDEMPOTENCY_FAULTS)
static void gate_fault(ngx_http_request_t *r, ngx_idempotency_op_t *op);
#endif
static ngx_int_t gate_ask(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t gate_answer(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_idempotency_op_t *op);


/*
 * In front of all access control and limits.  Who comes by a second time, by
 * an error_page, and was not let in meanwhile was turned away; and so is who
 * comes with a body that was too large to be read.  Other ways to come here,
 * by an error_page for a "return" or for what try_files did not find, or
 * without an error, are an application's.
 */

ngx_int_t
ngx_http_idempotency_preaccess_handler(ngx_http_request_t *r)
{
    ngx_http_idempotency_ctx_t       *ctx;
    ngx_http_idempotency_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    if (!gate_protects(r, conf)) {
        return NGX_DECLINED;
    }

    ctx = ngx_http_idempotency_get_ctx(r);

    if (ctx == NULL) {
        ctx = ngx_http_idempotency_create_ctx(r);
        if (ctx == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        /* "error_page CODE =200" alone leaves this to who discards a body */

        ctx->door.turned_away = (r->internal
                            && (r->discard_body
                                || (r->expect_tested
                                    && r->request_body == NULL
                                    && (r->err_status == 0
                                        || r->err_status == NGX_HTTP_OK))));

    } else if (ctx->door.outside
               && (r->error_page != ctx->door.error_page
                   || r->err_status != ctx->door.err_status))
    {
        ctx->door.turned_away = 1;
    }

    ctx->door.outside = 1;
    ctx->door.error_page = r->error_page;
    ctx->door.err_status = r->err_status;

    return NGX_DECLINED;
}


/* behind all access control, in front of try_files */

ngx_int_t
ngx_http_idempotency_admitted_handler(ngx_http_request_t *r)
{
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ngx_http_idempotency_get_ctx(r);

    if (ctx && r == r->main) {
        ctx->door.outside = 0;
    }

    return NGX_DECLINED;
}


ngx_int_t
ngx_http_idempotency_access_handler(ngx_http_request_t *r)
{
    ngx_int_t                         rc;
    ngx_http_idempotency_ctx_t       *ctx;
    ngx_http_idempotency_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    if (!gate_applies(r, conf) || !gate_last(r)) {
        return NGX_DECLINED;
    }

    rc = gate_prepare(r, conf, &ctx);

    return (rc == NGX_OK) ? NGX_DECLINED : rc;
}


ngx_int_t
ngx_http_idempotency_precontent_handler(ngx_http_request_t *r)
{
    ngx_int_t                         rc;
    ngx_http_idempotency_ctx_t       *ctx;
    ngx_http_idempotency_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    if (gate_applies(r, conf)) {
        rc = gate_prepare(r, conf, &ctx);

        if (rc == NGX_OK) {
            rc = gate_decide(r, ctx);
        }

        if (rc != NGX_DECLINED) {
            return rc;
        }
    }

    ctx = ngx_http_idempotency_get_ctx(r);

    if (ctx && ctx->carried) {
        ngx_http_idempotency_carry(r, ctx);
    }

    return NGX_DECLINED;
}


/*
 * The settings of the first location that decides a request are its own.  A
 * request that was turned away claims nothing where its error page is made.
 */

static ngx_uint_t
gate_applies(ngx_http_request_t *r, ngx_http_idempotency_loc_conf_t *conf)
{
    ngx_http_idempotency_ctx_t  *ctx;

    if (!gate_protects(r, conf)
        || r->err_status >= NGX_HTTP_SPECIAL_RESPONSE)
    {
        return 0;
    }

    ctx = ngx_http_idempotency_get_ctx(r);

    return ctx == NULL || (!ctx->decided && !ctx->door.turned_away);
}


static ngx_uint_t
gate_protects(ngx_http_request_t *r, ngx_http_idempotency_loc_conf_t *conf)
{
    return conf->shm_zone
           && r == r->main
           && !r->post_action
           && (r->method & conf->methods)
           && !gate_upgrade(r);
}


/*
 * Whether all access control is over when our handler runs.  The phases that
 * run now are asked, not the configuration: Lua moves its handler to the end
 * of the access phase at its first request.
 */

static ngx_uint_t
gate_last(ngx_http_request_t *r)
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


/*
 * An upgraded connection has no response to keep.  An upgrade to h2c or TLS,
 * which clients offer along with requests as ordinary as any, is not one:
 * nginx doesn't take it up.
 */

static ngx_uint_t
gate_upgrade(ngx_http_request_t *r)
{
    ngx_str_t                           *value;
    ngx_table_elt_t                     *h;
    ngx_http_idempotency_header_iter_t   it;

    static ngx_str_t  connection = ngx_string("connection");

    if (r->headers_in.upgrade == NULL) {
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


static ngx_int_t
gate_prepare(ngx_http_request_t *r, ngx_http_idempotency_loc_conf_t *conf,
    ngx_http_idempotency_ctx_t **pctx)
{
    ngx_int_t                    rc;
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ngx_http_idempotency_get_ctx(r);

    if (ctx == NULL) {
        ctx = ngx_http_idempotency_create_ctx(r);
        if (ctx == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    *pctx = ctx;

    if (ctx->conf != conf) {

        /* first sight, or sent on to another location before the decision */

        ctx->conf = conf;
        ctx->verdict = NGX_HTTP_IDEMPOTENCY_STATUS_NEW;
        ctx->judged = 0;
        ctx->body.digested = 0;
        ctx->bound = 0;

        if (ngx_http_test_predicates(r, conf->bypass) == NGX_DECLINED) {
            ctx->verdict = NGX_HTTP_IDEMPOTENCY_STATUS_BYPASS;
        }
    }

    if (ctx->bound || ctx->verdict != NGX_HTTP_IDEMPOTENCY_STATUS_NEW) {
        return NGX_OK;
    }

    if (!conf->key_in_body && gate_judge(r, ctx) != NGX_OK) {
        return NGX_OK;
    }

    if (!ctx->body.digested) {
        rc = ngx_http_idempotency_read_body(r, ctx);

        if (rc == NGX_DECLINED) {
            /* its body was refused: this is about an error page */
            ctx->verdict = NGX_HTTP_IDEMPOTENCY_STATUS_NONE;
            return NGX_OK;
        }

        if (rc != NGX_OK) {
            return rc;
        }
    }

    if (gate_judge(r, ctx) != NGX_OK) {
        return NGX_OK;
    }

    if (ngx_http_idempotency_bind(r, ctx) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ctx->bound = 1;

    return NGX_OK;
}


/* NGX_DECLINED: the key, or its absence, decides already */

static ngx_int_t
gate_judge(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    if (ctx->judged) {
        return NGX_OK;
    }

    ctx->judged = 1;
    ctx->content = 0;

    ctx->verdict = ngx_http_idempotency_key(r, ctx->conf, &ctx->key,
                                            &ctx->made);

    if (ctx->verdict == NGX_HTTP_IDEMPOTENCY_STATUS_MISSING) {

        switch (ctx->conf->missing_key) {

        case NGX_HTTP_IDEMPOTENCY_MISSING_KEY_PASS:
            ctx->verdict = NGX_HTTP_IDEMPOTENCY_STATUS_NONE;
            break;

        case NGX_HTTP_IDEMPOTENCY_MISSING_KEY_CONTENT:
            ctx->verdict = NGX_HTTP_IDEMPOTENCY_STATUS_NEW;
            ctx->content = 1;
            break;

        case NGX_HTTP_IDEMPOTENCY_MISSING_KEY_FORM:
            ctx->content = ngx_http_idempotency_is_form(r);
            ctx->verdict = ctx->content ? NGX_HTTP_IDEMPOTENCY_STATUS_NEW
                                        : NGX_HTTP_IDEMPOTENCY_STATUS_NONE;
            break;
        }
    }

    return (ctx->verdict == NGX_HTTP_IDEMPOTENCY_STATUS_NEW) ? NGX_OK
                                                             : NGX_DECLINED;
}


static ngx_int_t
gate_decide(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    switch (ctx->verdict) {

    case NGX_HTTP_IDEMPOTENCY_STATUS_NEW:
        break;

    case NGX_HTTP_IDEMPOTENCY_STATUS_NONE:
    case NGX_HTTP_IDEMPOTENCY_STATUS_BYPASS:
        ctx->status = ctx->verdict;
        return NGX_DECLINED;

    default:
        ctx->decided = 1;
        return ngx_http_idempotency_refuse(r, ctx, ctx->verdict);
    }

    ctx->decided = 1;
    ctx->wait.deadline = ngx_current_msec + ctx->conf->wait_timeout;

    ctx->op.pool = r->pool;
    ctx->op.lease = ctx->conf->lease;
    ctx->op.reserve = ctx->conf->max_response;
    ctx->op.retry = (ctx->conf->in_doubt
                     == NGX_HTTP_IDEMPOTENCY_IN_DOUBT_RETRY);

#if (NGX_IDEMPOTENCY_FAULTS)
    gate_fault(r, &ctx->op);
#endif

    return gate_ask(r, ctx);
}


#if (NGX_IDEMPOTENCY_FAULTS)

static void
gate_fault(ngx_http_request_t *r, ngx_idempotency_op_t *op)
{
    ngx_uint_t        i;
    ngx_table_elt_t  *h;

    static ngx_str_t   name = ngx_string("x_idempotency_fault");
    static const char *faults[] = { "", "die-claimed", "die-recording",
                                    "die-locked", "no-memory", "drop-wake",
                                    "busy" };

    h = ngx_http_idempotency_header_first(r, &name);

    for (i = 1; h && i < sizeof(faults) / sizeof(faults[0]); i++) {
        if (ngx_strcmp(h->value.data, faults[i]) == 0) {
            op->fault = (ngx_idempotency_fault_e) i;
        }
    }
}

#endif


static ngx_int_t
gate_ask(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    ctx->op.now = ngx_current_msec;

    if (ngx_http_idempotency_terms(r, ctx) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ctx->op.wait = (ctx->conf->in_progress
                    == NGX_HTTP_IDEMPOTENCY_IN_PROGRESS_WAIT
                    && !ctx->conf->dry_run
                    && (ngx_msec_int_t) (ctx->wait.deadline - ctx->op.now) > 0);

    return ngx_http_idempotency_claim(r, ctx, &ctx->op);
}


ngx_int_t
ngx_http_idempotency_claim(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_idempotency_op_t *op)
{
    ngx_int_t                 rc;
    ngx_idempotency_store_t  *store;

    op->handler = ngx_http_idempotency_resume;
    op->data = ctx;

    store = ctx->conf->shm_zone->data;

    rc = store->engine->claim(store, op);

    if (rc == NGX_OK) {
        return gate_answer(r, ctx, op);
    }

    if (rc == NGX_AGAIN) {
        ctx->wait.asking = op;

        r->read_event_handler = ngx_http_idempotency_wait_reading;
        r->write_event_handler = ngx_http_request_empty_handler;

        return NGX_DONE;
    }

    return NGX_HTTP_INTERNAL_SERVER_ERROR;
}


/*
 * The store answers later, or what was waited for has changed.  This runs as
 * an event of its own, so it does what nginx does around a request's events.
 */

void
ngx_http_idempotency_resume(ngx_idempotency_op_t *op)
{
    ngx_int_t                    rc;
    ngx_connection_t            *c;
    ngx_http_request_t          *r;
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = op->data;
    ctx->wait.asking = NULL;

    r = ctx->request;
    c = r->connection;

    ngx_http_set_log_request(c->log, r);

    ngx_http_idempotency_wait_cancel(ctx);

    r->read_event_handler = ngx_http_block_reading;
    r->write_event_handler = ngx_http_core_run_phases;

    rc = (op->result == NGX_IDEMPOTENCY_CHANGED) ? gate_ask(r, ctx)
                                                 : gate_answer(r, ctx, op);

    if (rc == NGX_DECLINED) {
        /* our handler, which is run again, is through with it */
        ngx_http_core_run_phases(r);

    } else if (rc != NGX_DONE) {
        ngx_http_finalize_request(r, rc);
    }

    ngx_http_run_posted_requests(c);
}


static ngx_int_t
gate_answer(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_idempotency_op_t *op)
{
    ngx_http_idempotency_status_e  why;

    if (op == ctx->similar) {
        return ngx_http_idempotency_similar_answer(r, ctx);
    }

    switch (ctx->op.result) {

    case NGX_IDEMPOTENCY_CLAIMED:
        ngx_idempotency_die(&ctx->op, NGX_IDEMPOTENCY_FAULT_DIE_CLAIMED);
        ngx_idempotency_busy(&ctx->op);

        ctx->owner = 1;
        ctx->carried = 1;
        ctx->status = NGX_HTTP_IDEMPOTENCY_STATUS_NEW;

        return ctx->similar ? ngx_http_idempotency_similar(r, ctx)
                            : NGX_DECLINED;

    case NGX_IDEMPOTENCY_CONFLICT:
        why = NGX_HTTP_IDEMPOTENCY_STATUS_CONFLICT;
        break;

    case NGX_IDEMPOTENCY_BOUND:

        if (ctx->op.waiting) {
            return ngx_http_idempotency_wait(r, ctx);
        }

        if (ctx->op.response.data) {
            return ngx_http_idempotency_replay(r, ctx);
        }

        switch (ctx->op.outcome) {

        case NGX_IDEMPOTENCY_PENDING:
            why = NGX_HTTP_IDEMPOTENCY_STATUS_IN_PROGRESS;
            break;

        case NGX_IDEMPOTENCY_IN_DOUBT:
            why = NGX_HTTP_IDEMPOTENCY_STATUS_IN_DOUBT;
            break;

        default:
            why = NGX_HTTP_IDEMPOTENCY_STATUS_NOT_KEPT;
            break;
        }

        break;

    case NGX_IDEMPOTENCY_EXPIRED:
        why = NGX_HTTP_IDEMPOTENCY_STATUS_EXPIRED;
        break;

    case NGX_IDEMPOTENCY_LIMITED:
        why = NGX_HTTP_IDEMPOTENCY_STATUS_LIMITED;

        /* rounded up: there is room then */

        ctx->retry_after = (ctx->op.ends - ctx->op.now + 999) / 1000;
        break;

    default: /* NGX_IDEMPOTENCY_UNAVAILABLE */

        /* not even where the store can't tell is an old key let in */

        why = (ctx->op.old && ctx->conf->unavailable
                              == NGX_HTTP_IDEMPOTENCY_UNAVAILABLE_PASS)
                  ? NGX_HTTP_IDEMPOTENCY_STATUS_EXPIRED
                  : NGX_HTTP_IDEMPOTENCY_STATUS_UNAVAILABLE;
        break;
    }

    return ngx_http_idempotency_refuse(r, ctx, why);
}
