
/*
 * What the facts at the end of a request mean for its token.  The table below
 * is the whole rule, and the README shows the same one: the first row that
 * fits decides.
 */


#include "ngx_http_idempotency.h"


#define SAYS_RELEASE  0x001  /* X-Accel-Idempotency: release */
#define NO_ANSWER     0x002  /* the last peer tried gave no response header */
#define SENT          0x004  /* some peer was sent a byte, or may have been */
#define BROKEN        0x008  /* the response has no end */
#define UNLISTED      0x010  /* idempotency_store does not name its status */
#define TOO_LARGE     0x020  /* it exceeds idempotency_max_response */
#define RETRY         0x040  /* idempotency_in_doubt retry */


typedef struct {
    ngx_uint_t  all_of;
    ngx_uint_t  none_of;
    ngx_int_t   outcome;
} outcome_row_t;


static outcome_row_t  outcome_table[] = {

    { SAYS_RELEASE,    0,     NGX_HTTP_IDEMPOTENCY_RELEASE },
    { NO_ANSWER,       SENT,  NGX_HTTP_IDEMPOTENCY_RELEASE },
    { NO_ANSWER|RETRY, 0,     NGX_HTTP_IDEMPOTENCY_RELEASE },
    { NO_ANSWER,       0,     NGX_IDEMPOTENCY_IN_DOUBT },
    { UNLISTED,        0,     NGX_HTTP_IDEMPOTENCY_RELEASE },
    { BROKEN,          0,     NGX_IDEMPOTENCY_NOT_KEPT },
    { TOO_LARGE,       0,     NGX_IDEMPOTENCY_NOT_KEPT },
    { 0,               0,     NGX_IDEMPOTENCY_DONE }
};


static ngx_uint_t outcome_upstream(ngx_http_request_t *r);
static ngx_uint_t outcome_listed(ngx_http_idempotency_ctx_t *ctx);


ngx_int_t
ngx_http_idempotency_outcome(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    ngx_uint_t      facts;
    outcome_row_t  *row;

    facts = outcome_upstream(r);

    if (!ctx->answered) {
        facts |= NO_ANSWER;
    }

    if (!ctx->whole) {
        facts |= BROKEN;
    }

    if (ctx->too_large) {
        facts |= TOO_LARGE;
    }

    if (ctx->says_release) {
        facts |= SAYS_RELEASE;
    }

    if (!ctx->says_keep && !outcome_listed(ctx)) {
        facts |= UNLISTED;
    }

    if (ctx->conf->in_doubt == NGX_HTTP_IDEMPOTENCY_RETRY) {
        facts |= RETRY;
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
                   row->outcome, facts, ctx->answer_status);

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
        return SENT;
    }

    facts = u->headers_in.status_n ? SENT : NO_ANSWER;

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
            sent = SENT;
            facts = 0;

        } else {
            facts = NO_ANSWER;

            if (state[i].bytes_sent > 0 || state[i].bytes_received > 0) {
                sent = SENT;
            }
        }
    }

    return facts | sent;
}


static ngx_uint_t
outcome_listed(ngx_http_idempotency_ctx_t *ctx)
{
    u_char      *store;
    ngx_uint_t   status;

    store = ctx->conf->store;
    status = ctx->answer_status;

    return store == NULL
           || (status < NGX_HTTP_IDEMPOTENCY_STATUSES
               && (store[status / 8] & (1 << (status % 8))));
}
