
/*
 * Each protected request is counted once, by what became of it: when it owns
 * its token, or else before its header goes out, so that whoever has the answer
 * finds it counted.  Its end comes last, for those that were never answered.
 * What is counted is told as Prometheus takes it: one metric after the other,
 * each of all zones.
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


typedef struct {
    const char  *name;
    const char  *type;
    const char  *help;
    /* what stands behind a zone: of those that have it; and of those that can
       be looked into */
    unsigned     store:1;
    unsigned     gauge:1;
    void       (*write)(ngx_http_idempotency_text_t *text, const char *name,
                    ngx_http_idempotency_zone_t *zone);
} metric_t;


static void count_wait(ngx_http_idempotency_ctx_t *ctx,
    ngx_idempotency_counters_t *counters);
static void metrics_one(ngx_http_idempotency_text_t *text, metric_t *metric,
    ngx_http_idempotency_zone_t *zones, ngx_uint_t n);
static void metrics_value(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone, uint64_t value);
static void metrics_label(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone, const char *label,
    const char *is, uint64_t value);
static void metrics_results(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone,
    ngx_atomic_t *results);
static void metrics_times(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone,
    ngx_idempotency_times_t *times);
static void metrics_requests(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone);
static void metrics_dry_run(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone);
static void metrics_conflicts(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone);
static void metrics_races(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone);
static void metrics_unavailable(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone);
static void metrics_abandoned(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone);
static void metrics_expired(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone);
static void metrics_in_doubt(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone);
static void metrics_released(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone);
static void metrics_replayed(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone);
static void metrics_wait(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone);
static void metrics_records(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone);
static void metrics_bytes(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone);
static void metrics_growth(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone);
static void metrics_full(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone);
static void metrics_oldest(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone);
static void metrics_up(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone);
static void metrics_latency(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone);
static void metrics_errors(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone);
static void metrics_undelivered(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone);
static void metrics_available(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone);


static metric_t  metrics[] = {

    { "requests_total", "counter",
      "Protected requests, by what became of them.",
      0, 0, metrics_requests },

    { "dry_run_requests_total", "counter",
      "Requests under idempotency_dry_run, by what would have become of them.",
      0, 0, metrics_dry_run },

    { "conflicts_total", "counter",
      "What differed in conflicts, of dry runs as well; several may at once.",
      0, 0, metrics_conflicts },

    { "races_total", "counter",
      "Requests that came while the first with their token was executed.",
      0, 0, metrics_races },

    { "unavailable_total", "counter",
      "Requests for which the store was full or out of reach.",
      0, 0, metrics_unavailable },

    { "abandoned_total", "counter",
      "Requests given up when their clients left, as too many had.",
      0, 0, metrics_abandoned },

    { "expired_total", "counter",
      "Records whose window ended.",
      0, 0, metrics_expired },

    { "in_doubt_total", "counter",
      "Outcomes that nobody knows.",
      0, 0, metrics_in_doubt },

    { "released_total", "counter",
      "Claims that were released, as nothing was executed.",
      0, 0, metrics_released },

    { "replayed_bytes_total", "counter",
      "Bytes of response bodies that were replayed.",
      0, 0, metrics_replayed },

    { "wait_seconds", "histogram",
      "How long requests waited for the outcome of another.",
      0, 0, metrics_wait },

    { "zone_up", "gauge",
      "Whether the zone can be used; one that a process left torn can not.",
      0, 0, metrics_available },

    { "records", "gauge",
      "Tokens in the zone, by outcome.",
      0, 1, metrics_records },

    { "zone_bytes", "gauge",
      "Shared memory of the zone.",
      0, 1, metrics_bytes },

    { "zone_growth_bytes", "gauge",
      "How much more of the zone is used than an hour ago.",
      0, 1, metrics_growth },

    { "zone_full_seconds", "gauge",
      "When the zone is full, if it goes on growing so.",
      0, 1, metrics_full },

    { "oldest_record_seconds", "gauge",
      "The age of the oldest record.",
      0, 1, metrics_oldest },

    { "store_up", "gauge",
      "Whether what stands behind the zone answers.",
      1, 1, metrics_up },

    { "store_latency_seconds", "histogram",
      "How long what stands behind the zone took to answer.",
      1, 0, metrics_latency },

    { "store_errors_total", "counter",
      "What stands behind the zone did not answer, by the reason.",
      1, 0, metrics_errors },

    { "undelivered", "gauge",
      "Changes that what stands behind the zone is to hear yet.",
      1, 1, metrics_undelivered },

    { NULL, NULL, NULL, 0, 0, NULL }
};


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


ngx_int_t
ngx_http_idempotency_metrics(ngx_http_request_t *r)
{
    metric_t                     *metric;
    ngx_uint_t                    n;
    ngx_http_idempotency_text_t   text;
    ngx_http_idempotency_zone_t  *zones;

    zones = ngx_http_idempotency_zones_read(r, &n);
    if (zones == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_http_idempotency_text_init(&text, r->pool);

    ngx_http_idempotency_text_add(&text,
                "# HELP nginx_idempotency_build_info The module's version.\n"
                "# TYPE nginx_idempotency_build_info gauge\n"
                "nginx_idempotency_build_info{version=\"%s\"} 1\n",
                NGX_HTTP_IDEMPOTENCY_VERSION);

    for (metric = metrics; metric->name; metric++) {
        metrics_one(&text, metric, zones, n);
    }

    return ngx_http_idempotency_api_send(r, &text,
                                         "text/plain; version=0.0.4");
}


static void
metrics_one(ngx_http_idempotency_text_t *text, metric_t *metric,
    ngx_http_idempotency_zone_t *zones, ngx_uint_t n)
{
    u_char      name[64];
    ngx_uint_t  i, head;

    ngx_sprintf(name, "nginx_idempotency_%s%Z", metric->name);

    head = 0;

    for (i = 0; i < n; i++) {

        if ((metric->store && zones[i].figures.kind == NULL)
            || (metric->gauge && !zones[i].known))
        {
            continue;
        }

        if (!head) {
            head = 1;
            ngx_http_idempotency_text_add(text, "# HELP %s %s\n"
                                                "# TYPE %s %s\n",
                                          name, metric->help,
                                          name, metric->type);
        }

        metric->write(text, (char *) name, &zones[i]);
    }
}


static void
metrics_value(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone, uint64_t value)
{
    ngx_http_idempotency_text_add(text, "%s{zone=\"", name);
    ngx_http_idempotency_text_label(text, &zone->store->name);
    ngx_http_idempotency_text_add(text, "\"} %uL\n", value);
}


static void
metrics_label(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone, const char *label, const char *is,
    uint64_t value)
{
    ngx_http_idempotency_text_add(text, "%s{zone=\"", name);
    ngx_http_idempotency_text_label(text, &zone->store->name);
    ngx_http_idempotency_text_add(text, "\",%s=\"%s\"} %uL\n", label, is,
                                  value);
}


static void
metrics_results(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone, ngx_atomic_t *results)
{
    ngx_uint_t  i;

    for (i = 1; i < NGX_HTTP_IDEMPOTENCY_RESULTS; i++) {
        metrics_label(text, name, zone, "result",
                      (char *) ngx_http_idempotency_result_names[i].data,
                      results[i]);
    }
}


static void
metrics_times(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone, ngx_idempotency_times_t *times)
{
    u_char      series[64], bound[NGX_INT64_LEN + sizeof(".000")];
    uint64_t    count;
    ngx_uint_t  i;
    ngx_msec_t  ms;

    count = 0;

    ngx_sprintf(series, "%s_bucket%Z", name);

    for (i = 0; i <= NGX_IDEMPOTENCY_STATS_BOUNDS; i++) {
        count += times->buckets[i];

        if (i < NGX_IDEMPOTENCY_STATS_BOUNDS) {
            ms = ngx_idempotency_stats_bounds[i];
            ngx_sprintf(bound, "%M.%03M%Z", ms / 1000, ms % 1000);

        } else {
            ngx_sprintf(bound, "+Inf%Z");
        }

        metrics_label(text, (char *) series, zone, "le", (char *) bound,
                      count);
    }

    ngx_http_idempotency_text_add(text, "%s_sum{zone=\"", name);
    ngx_http_idempotency_text_label(text, &zone->store->name);
    ngx_http_idempotency_text_add(text, "\"} %uA.%03uA\n", times->sum / 1000,
                                  times->sum % 1000);

    ngx_sprintf(series, "%s_count%Z", name);
    metrics_value(text, (char *) series, zone, count);
}


static void
metrics_requests(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone)
{
    metrics_results(text, name, zone, zone->figures.counters.results);
}


static void
metrics_dry_run(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone)
{
    metrics_results(text, name, zone, zone->figures.counters.dry_run);
}


static void
metrics_conflicts(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_IDEMPOTENCY_STATS_DIFFERS; i++) {
        metrics_label(text, name, zone, "differs",
                      ngx_http_idempotency_differs_names[i],
                      zone->figures.counters.differs[i]);
    }
}


static void
metrics_races(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone)
{
    metrics_value(text, name, zone, zone->figures.counters.races);
}


static void
metrics_unavailable(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone)
{
    metrics_value(text, name, zone, zone->figures.counters.unavailable);
}


static void
metrics_abandoned(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone)
{
    metrics_value(text, name, zone, zone->figures.counters.abandoned);
}


static void
metrics_expired(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone)
{
    metrics_value(text, name, zone, zone->figures.counters.expired);
}


static void
metrics_in_doubt(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone)
{
    metrics_value(text, name, zone, zone->figures.counters.in_doubt);
}


static void
metrics_released(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone)
{
    metrics_value(text, name, zone, zone->figures.counters.released);
}


static void
metrics_replayed(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone)
{
    metrics_value(text, name, zone, zone->figures.counters.replayed_bytes);
}


static void
metrics_wait(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone)
{
    metrics_times(text, name, zone, &zone->figures.counters.wait);
}


static void
metrics_available(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone)
{
    metrics_value(text, name, zone, zone->known);
}


static void
metrics_records(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_IDEMPOTENCY_STATS_RECORDS; i++) {
        metrics_label(text, name, zone, "outcome",
                      ngx_http_idempotency_outcome_names[i],
                      zone->figures.records[i]);
    }
}


static void
metrics_bytes(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone)
{
    ngx_idempotency_figures_t  *f;

    f = &zone->figures;

    metrics_label(text, name, zone, "state", "used", f->used);
    metrics_label(text, name, zone, "state", "free", f->size - f->used);
}


static void
metrics_growth(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone)
{
    if (zone->figures.known) {
        ngx_http_idempotency_text_add(text, "%s{zone=\"", name);
        ngx_http_idempotency_text_label(text, &zone->store->name);
        ngx_http_idempotency_text_add(text, "\"} %L\n",
                                      zone->figures.growth);
    }
}


static void
metrics_full(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone)
{
    if (zone->figures.known && zone->figures.full_in >= 0) {
        metrics_value(text, name, zone, zone->figures.full_in);
    }
}


static void
metrics_oldest(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone)
{
    if (!zone->figures.empty) {
        metrics_value(text, name, zone, zone->figures.oldest / 1000);
    }
}


static void
metrics_up(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone)
{
    metrics_value(text, name, zone, zone->figures.up);
}


static void
metrics_latency(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone)
{
    metrics_times(text, name, zone, &zone->figures.counters.latency);
}


static void
metrics_errors(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone)
{
    ngx_uint_t  i;

    for (i = 0; i < NGX_IDEMPOTENCY_ERRORS; i++) {
        metrics_label(text, name, zone, "error",
                      ngx_idempotency_error_names[i],
                      zone->figures.counters.errors[i]);
    }
}


static void
metrics_undelivered(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone)
{
    metrics_value(text, name, zone, zone->figures.undelivered);
}
