
/*
 * What was counted, as Prometheus takes it: one metric after the other, each of
 * all zones.  The table has for each its name, its type, what it means, how it
 * is written, and where its value is.
 */


#include "ngx_http_idempotency_observe.h"


typedef struct {
    const char  *name;
    const char  *type;
    const char  *help;
    /* what stands behind a zone: of those that have it; and of those that can
       be looked into */
    unsigned     store:1;
    unsigned     gauge:1;
    void       (*write)(ngx_http_idempotency_text_t *text, const char *name,
                    ngx_http_idempotency_zone_t *zone, void *value);
    /* of the value in ngx_http_idempotency_zone_t */
    size_t       offset;
} metric_t;

#define metric_figure(name)                                                  \
    offsetof(ngx_http_idempotency_zone_t, figures)                           \
    + offsetof(ngx_idempotency_figures_t, name)


static void metrics_one(ngx_http_idempotency_text_t *text, metric_t *metric,
    ngx_http_idempotency_zone_t *zones, ngx_uint_t n);
static void metrics_value(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone, uint64_t value);
static void metrics_label(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone, const char *label,
    const char *is, uint64_t value);
static void metrics_results(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone, void *value);
static void metrics_times(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone, void *value);
static void metrics_conflicts(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone, void *value);
static void metrics_counter(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone, void *value);
static void metrics_number(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone, void *value);
static void metrics_flag(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone, void *value);
static void metrics_records(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone, void *value);
static void metrics_bytes(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone, void *value);
static void metrics_growth(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone, void *value);
static void metrics_full(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone, void *value);
static void metrics_oldest(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone, void *value);
static void metrics_errors(ngx_http_idempotency_text_t *text,
    const char *name, ngx_http_idempotency_zone_t *zone, void *value);


static metric_t  metrics[] = {

    { "requests_total", "counter",
      "Protected requests, by what became of them.",
      0, 0, metrics_results, metric_figure(counters.results) },

    { "dry_run_requests_total", "counter",
      "Requests under idempotency_dry_run, by what would have become of them.",
      0, 0, metrics_results, metric_figure(counters.dry_run) },

    { "conflicts_total", "counter",
      "What differed in conflicts, of dry runs as well; several may at once.",
      0, 0, metrics_conflicts, metric_figure(counters.differs) },

    { "races_total", "counter",
      "Requests that came while the first with their token was executed.",
      0, 0, metrics_counter, metric_figure(counters.races) },

    { "unavailable_total", "counter",
      "Requests for which the store was full or out of reach.",
      0, 0, metrics_counter, metric_figure(counters.unavailable) },

    { "abandoned_total", "counter",
      "Requests given up when their clients left, as too many had.",
      0, 0, metrics_counter, metric_figure(counters.abandoned) },

    { "expired_total", "counter",
      "Records whose window ended.",
      0, 0, metrics_number, metric_figure(counters.expired) },

    { "in_doubt_total", "counter",
      "Outcomes that nobody knows.",
      0, 0, metrics_number, metric_figure(counters.in_doubt) },

    { "released_total", "counter",
      "Claims that were released, as nothing was executed.",
      0, 0, metrics_number, metric_figure(counters.released) },

    { "replayed_bytes_total", "counter",
      "Bytes of response bodies that were replayed.",
      0, 0, metrics_counter, metric_figure(counters.replayed_bytes) },

    { "wait_seconds", "histogram",
      "How long requests waited for the outcome of another.",
      0, 0, metrics_times, metric_figure(counters.wait) },

    { "zone_up", "gauge",
      "Whether the zone can be used; one that a process left torn can not.",
      0, 0, metrics_flag, offsetof(ngx_http_idempotency_zone_t, known) },

    { "records", "gauge",
      "Tokens in the zone, by outcome.",
      0, 1, metrics_records, metric_figure(records) },

    { "zone_bytes", "gauge",
      "Shared memory of the zone.",
      0, 1, metrics_bytes, metric_figure(used) },

    { "zone_growth_bytes_per_hour", "gauge",
      "How much more of the zone is used than an hour ago.",
      0, 1, metrics_growth, metric_figure(growth) },

    { "zone_full_seconds", "gauge",
      "When the zone is full, if it goes on growing so.",
      0, 1, metrics_full, metric_figure(full_in) },

    { "oldest_record_seconds", "gauge",
      "The age of the oldest record.",
      0, 1, metrics_oldest, metric_figure(oldest) },

    { "store_up", "gauge",
      "Whether what stands behind the zone answers.",
      1, 1, metrics_flag, metric_figure(up) },

    { "store_latency_seconds", "histogram",
      "How long what stands behind the zone took to answer.",
      1, 0, metrics_times, metric_figure(counters.latency) },

    { "store_errors_total", "counter",
      "What stands behind the zone did not answer, by the reason.",
      1, 0, metrics_errors, metric_figure(counters.errors) },

    { "undelivered", "gauge",
      "Changes that what stands behind the zone is to hear yet.",
      1, 1, metrics_number, metric_figure(undelivered) },

    { NULL, NULL, NULL, 0, 0, NULL, 0 }
};


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

        metric->write(text, (char *) name, &zones[i],
                      (u_char *) &zones[i] + metric->offset);
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
    ngx_http_idempotency_zone_t *zone, void *value)
{
    ngx_atomic_t  *results = value;

    ngx_uint_t  i;

    for (i = 1; i < NGX_HTTP_IDEMPOTENCY_STATUSES; i++) {
        metrics_label(text, name, zone, "result",
                      (char *) ngx_http_idempotency_statuses[i].name.data,
                      results[i]);
    }
}


static void
metrics_times(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone, void *value)
{
    ngx_idempotency_times_t  *times = value;

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
metrics_conflicts(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone, void *value)
{
    ngx_atomic_t  *values = value;

    ngx_uint_t  i;

    for (i = 0; i < NGX_IDEMPOTENCY_STATS_DIFFERS; i++) {
        metrics_label(text, name, zone, "differs",
                      ngx_http_idempotency_differs_names[i], values[i]);
    }
}


static void
metrics_counter(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone, void *value)
{
    metrics_value(text, name, zone, *(ngx_atomic_t *) value);
}


static void
metrics_number(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone, void *value)
{
    metrics_value(text, name, zone, *(uint64_t *) value);
}


static void
metrics_flag(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone, void *value)
{
    metrics_value(text, name, zone, *(ngx_uint_t *) value);
}


static void
metrics_records(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone, void *value)
{
    uint64_t  *values = value;

    ngx_uint_t  i;

    for (i = 0; i < NGX_IDEMPOTENCY_STATS_RECORDS; i++) {
        metrics_label(text, name, zone, "outcome",
                      ngx_http_idempotency_outcomes[i].name, values[i]);
    }
}


static void
metrics_bytes(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone, void *value)
{
    size_t  used;

    used = *(size_t *) value;

    metrics_label(text, name, zone, "state", "used", used);
    metrics_label(text, name, zone, "state", "free", zone->figures.size - used);
}


static void
metrics_growth(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone, void *value)
{
    if (zone->figures.known) {
        ngx_http_idempotency_text_add(text, "%s{zone=\"", name);
        ngx_http_idempotency_text_label(text, &zone->store->name);
        ngx_http_idempotency_text_add(text, "\"} %L\n", *(int64_t *) value);
    }
}


static void
metrics_full(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone, void *value)
{
    if (zone->figures.known && *(int64_t *) value >= 0) {
        metrics_value(text, name, zone, *(int64_t *) value);
    }
}


static void
metrics_oldest(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone, void *value)
{
    if (!zone->figures.empty) {
        metrics_value(text, name, zone, *(ngx_msec_t *) value / 1000);
    }
}


static void
metrics_errors(ngx_http_idempotency_text_t *text, const char *name,
    ngx_http_idempotency_zone_t *zone, void *value)
{
    ngx_atomic_t  *values = value;

    ngx_uint_t  i;

    for (i = 0; i < NGX_IDEMPOTENCY_ERRORS; i++) {
        metrics_label(text, name, zone, "error",
                      ngx_idempotency_error_names[i], values[i]);
    }
}
