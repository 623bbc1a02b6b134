
/*
 * What the facts at the end of a request mean for its token.  The table below
 * is the whole rule, and docs/guarantees.md shows the same one: the first row
 * that fits decides.
 */


#include "ngx_http_idempotency_headers.h"


typedef enum {
    /* X-Accel-Idempotency: release */
    fact_says_release = 0x01,
    /* the last peer tried gave no response header */
    fact_no_answer = 0x02,
    /* some peer was sent a byte, or may have been */
    fact_sent = 0x04,
    /* the response has no end */
    fact_broken = 0x08,
    /* by idempotency_keep its status binds nothing */
    fact_unkept = 0x10,
    /* it exceeds idempotency_max_response */
    fact_too_large = 0x20,
    /* idempotency_in_doubt retry */
    fact_retry = 0x40,
    /* a redirect or an error, and only nginx itself had a part in it */
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


/* what it takes: the status, Retry-After with it, or that from the origin */

typedef enum {
    outcome_by_status = 0,
    outcome_by_after,
    outcome_by_origin
} outcome_by_e;

/* the statuses that say that the request was not carried out */

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


static ngx_uint_t outcome_upstream(ngx_http_request_t *r);
static ngx_uint_t outcome_own(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_uint_t outcome_keeps(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
static ngx_uint_t outcome_executed(ngx_list_t *headers, ngx_uint_t status);
static ngx_uint_t outcome_grpc_executed(ngx_list_t *headers);


ngx_int_t
ngx_http_idempotency_outcome(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_uint_t      facts;
    outcome_row_t  *row;

    facts = outcome_upstream(r);

    if (!ctx->capture.answered) {
        facts |= fact_no_answer;
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
 * What the attempts at upstreams tell.  An upstream that is still at work
 * has answered, or an old response is taken from its cache; one that is done
 * with has left an entry for each attempt, with all that was sent.  An entry
 * without a peer separates two upstreams of one request.  A response without
 * any attempt came from a cache.
 */

static ngx_uint_t
outcome_upstream(ngx_http_request_t *r)
{
    ngx_uint_t                  i, facts, sent;
    ngx_http_upstream_t        *u;
    ngx_http_upstream_state_t  *state;

    u = r->upstream;

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

    for (i = 0; i < r->upstream_states->nelts; i++) {

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
 * What error_page makes of an error, with whatever status, is one; where they
 * are recursive nothing but the redirect tells it.  A mirror's subrequest may
 * be yet to come.
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


/*
 * The upstream's status counts, whatever was sent in place of its response.
 * One that did not answer has left no status.
 */

static ngx_uint_t
outcome_keeps(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx)
{
    u_char               *keep;
    ngx_list_t           *headers;
    ngx_uint_t            status;
    ngx_http_upstream_t  *u;

    u = r->upstream;
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

    if (keep && status < NGX_HTTP_IDEMPOTENCY_STATUSES
        && keep[status] != NGX_HTTP_IDEMPOTENCY_KEEP_DEFAULT)
    {
        return keep[status] == NGX_HTTP_IDEMPOTENCY_KEEP_YES;
    }

    /* a form that was refused is corrected, and sent again */

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

    /* a cache in between says 503 as well when it waited in vain */

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
