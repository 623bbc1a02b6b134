
/*
 * Each protected request is counted once, by what became of it: when it owns
 * its token, or else before its header goes out, so that whoever has the answer
 * finds it counted.  Its end comes last, for those that were never answered.
 */


#include "ngx_http_idempotency_observe.h"


ngx_str_t  ngx_http_idempotency_result_names[NGX_HTTP_IDEMPOTENCY_RESULTS] =
{
    ngx_null_string,
    ngx_string("conflict"),
    ngx_string("in_progress"),
    ngx_string("in_doubt"),
    ngx_string("not_kept"),
    ngx_string("similar"),
    ngx_string("expired"),
    ngx_string("missing"),
    ngx_string("malformed"),
    ngx_string("limited"),
    ngx_string("unavailable"),
    ngx_string("new"),
    ngx_string("nested"),
    ngx_string("replayed"),
    ngx_string("waited"),
    ngx_string("bypass")
};


const char  *ngx_http_idempotency_outcome_names[NGX_IDEMPOTENCY_STATS_RECORDS]
    = { "pending", "done", "not_kept", "in_doubt" };


const char  *ngx_http_idempotency_differs_names[NGX_IDEMPOTENCY_STATS_DIFFERS]
    = { "action", "identity", "body", "settings" };


static void count_wait(ngx_http_idempotency_ctx_t *ctx,
    ngx_idempotency_counters_t *counters);


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


/* the request has ended; it may have left while it waited */

void
ngx_http_idempotency_count_end(ngx_http_idempotency_ctx_t *ctx)
{
    ngx_http_idempotency_count(ctx);

    if (!ctx->counted && ctx->wait.waited) {
        count_wait(ctx, ctx->conf->store->counters);
    }
}


/* by its patience, which began with its claim */

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


/* a claim that meets a pending one; it may do so again and again */

void
ngx_http_idempotency_count_race(ngx_http_idempotency_ctx_t *ctx)
{
    if (ctx->raced) {
        return;
    }

    ctx->raced = 1;

    ngx_idempotency_stats_add(ctx->conf->store->counters->races, 1);
}
