
/*
 * The figures of all zones, as metrics for Prometheus and as JSON.  One table
 * has both names of each figure, its type and help, and the place of its
 * value.
 */


#include "ngx_http_idempotency_observe.h"


/* a store, and its figures */

typedef struct {
    ngx_idempotency_store_t        *store;
    /* escaped: JSON and labels have the same escapes */
    ngx_str_t                       name;
    ngx_idempotency_figures_t       figures;
    /* the zone's memory can be read */
    ngx_uint_t                      known;
    /* growth, full_in and oldest of the figures, or FIGURE_UNKNOWN */
    int64_t                         growth;
    int64_t                         full_in;
    int64_t                         oldest;
    /* the zone's size, used and free bytes */
    uint64_t                        bytes[3];
} zone_t;


#define FIGURE_UNKNOWN  INT64_MIN

typedef enum {
    figure_counter = 0,        /* ngx_atomic_t */
    figure_number,             /* uint64_t */
    figure_signed,             /* int64_t; it may be unknown */
    figure_seconds,            /* the same, in milliseconds */
    figure_flag,               /* ngx_uint_t */
    figure_times               /* ngx_idempotency_times_t */
} figure_type_e;

/* The names of an array's values, for a label: they are in an array of structs
   of this size.  Metrics have the values from `first` on. */

typedef struct {
    const char                     *label;
    ngx_uint_t                      first;
    ngx_uint_t                      last;
    const void                     *names;
    size_t                          size;
} figure_names_t;

typedef struct {
    /* the names in JSON and in metrics */
    const char                     *name;
    const char                     *metric;
    const char                     *type;
    const char                     *help;
    figure_type_e                   value;
    /* in zone_t */
    size_t                          offset;
    const figure_names_t           *names;
    /* a figure of the backing; a figure that only a readable zone has */
    unsigned                        backing:1;
    unsigned                        readable:1;
} figure_t;

#define figure_of(name)                                                      \
    offsetof(zone_t, figures) + offsetof(ngx_idempotency_figures_t, name)


static zone_t *zones_read(ngx_http_request_t *r, ngx_uint_t *n);
static ngx_int_t zone_read(ngx_http_request_t *r, zone_t *zone);
static void metrics_figure(ngx_http_idempotency_text_t *text,
    const figure_t *figure, zone_t *zone);
static void metrics_times(ngx_http_idempotency_text_t *text,
    const figure_t *figure, zone_t *zone);
static void json_zone(ngx_http_idempotency_text_t *text, zone_t *zone);
static void json_figures(ngx_http_idempotency_text_t *text, zone_t *zone,
    const char **name);
static void json_figure(ngx_http_idempotency_text_t *text,
    const figure_t *figure, zone_t *zone);
static void json_times(ngx_http_idempotency_text_t *text,
    ngx_idempotency_times_t *times);
static const char *figure_name(const figure_names_t *names, ngx_uint_t i);
static int64_t figure_value(const figure_t *figure, zone_t *zone,
    ngx_uint_t i);

static const char  *figure_bytes[] = { "size", "used", "free" };

static const figure_names_t  figure_results = {
    "result", 1, NGX_HTTP_IDEMPOTENCY_STATUSES,
    &ngx_http_idempotency_statuses[0].name.data,
    sizeof(ngx_http_idempotency_status_t)
};

static const figure_names_t  figure_differs = {
    "differs", 0, NGX_IDEMPOTENCY_STATS_DIFFERS,
    ngx_http_idempotency_differs_names, sizeof(char *)
};

static const figure_names_t  figure_outcomes = {
    "outcome", 0, NGX_IDEMPOTENCY_STATS_RECORDS,
    &ngx_http_idempotency_outcomes[0].name,
    sizeof(ngx_http_idempotency_outcome_t)
};

static const figure_names_t  figure_memory = {
    "state", 1, 3, figure_bytes, sizeof(char *)
};

static const figure_names_t  figure_errors = {
    "error", 0, NGX_IDEMPOTENCY_ERRORS, ngx_idempotency_error_names,
    sizeof(char *)
};


static const figure_t  figures[] = {

    { "requests", "requests_total", "counter",
      "Protected requests, by what became of them.",
      figure_counter, figure_of(counters.results), &figure_results, 0, 0 },

    { "dry_run", "dry_run_requests_total", "counter",
      "Requests under idempotency_dry_run, by what would have become of them.",
      figure_counter, figure_of(counters.dry_run), &figure_results, 0, 0 },

    { "conflicts", "conflicts_total", "counter",
      "What differed in conflicts, of dry runs as well; several may at once.",
      figure_counter, figure_of(counters.differs), &figure_differs, 0, 0 },

    { "races", "races_total", "counter",
      "Requests that came while the first with their token was executed.",
      figure_counter, figure_of(counters.races), NULL, 0, 0 },

    { "unavailable", "unavailable_total", "counter",
      "Requests for which the store was full or out of reach.",
      figure_counter, figure_of(counters.unavailable), NULL, 0, 0 },

    { "abandoned", "abandoned_total", "counter",
      "Requests given up when their clients left, as too many had.",
      figure_counter, figure_of(counters.abandoned), NULL, 0, 0 },

    { "expired", "expired_total", "counter",
      "Records whose window ended.",
      figure_number, figure_of(counters.expired), NULL, 0, 0 },

    { "in_doubt", "in_doubt_total", "counter",
      "Outcomes that nobody knows.",
      figure_number, figure_of(counters.in_doubt), NULL, 0, 0 },

    { "released", "released_total", "counter",
      "Claims that were released, as nothing was executed.",
      figure_number, figure_of(counters.released), NULL, 0, 0 },

    { "replayed_bytes", "replayed_bytes_total", "counter",
      "Bytes of response bodies that were replayed.",
      figure_counter, figure_of(counters.replayed_bytes), NULL, 0, 0 },

    { "wait", "wait_seconds", "histogram",
      "How long requests waited for the outcome of another.",
      figure_times, figure_of(counters.wait), NULL, 0, 0 },

    { "available", "zone_up", "gauge",
      "Whether the zone can be used; one that a process left torn can not.",
      figure_flag, offsetof(zone_t, known), NULL, 0, 0 },

    { "records", "records", "gauge",
      "Tokens in the zone, by outcome.",
      figure_number, figure_of(records), &figure_outcomes, 0, 1 },

    { "bytes", "zone_bytes", "gauge",
      "Shared memory of the zone.",
      figure_number, offsetof(zone_t, bytes), &figure_memory, 0, 1 },

    { "growth", "zone_growth_bytes_per_hour", "gauge",
      "How much more of the zone is used than an hour ago.",
      figure_signed, offsetof(zone_t, growth), NULL, 0, 1 },

    { "full_in", "zone_full_seconds", "gauge",
      "When the zone is full, if it goes on growing so.",
      figure_signed, offsetof(zone_t, full_in), NULL, 0, 1 },

    { "oldest", "oldest_record_seconds", "gauge",
      "The age of the oldest record.",
      figure_seconds, offsetof(zone_t, oldest), NULL, 0, 1 },

    { "up", "store_up", "gauge",
      "Whether what stands behind the zone answers.",
      figure_flag, figure_of(up), NULL, 1, 1 },

    { "latency", "store_latency_seconds", "histogram",
      "How long what stands behind the zone took to answer.",
      figure_times, figure_of(counters.latency), NULL, 1, 0 },

    { "errors", "store_errors_total", "counter",
      "What stands behind the zone did not answer, by the reason.",
      figure_counter, figure_of(counters.errors), &figure_errors, 1, 0 },

    { "undelivered", "undelivered", "gauge",
      "Changes that what stands behind the zone is to hear yet.",
      figure_number, figure_of(undelivered), NULL, 1, 1 },

    { NULL, NULL, NULL, NULL, 0, 0, NULL, 0, 0 }
};


/* JSON has another order than metrics */

static const char  *json_space[] = { "available", "bytes", NULL };

static const char  *json_counts[] = {
    "records", "requests", "dry_run", "conflicts", "races", "unavailable",
    "abandoned", "expired", "in_doubt", "released", "replayed_bytes", "wait",
    "oldest", "growth", "full_in", NULL
};

static const char  *json_up[] = { "up", NULL };
static const char  *json_behind[] = {
    "latency", "errors", "undelivered", NULL
};


void
ngx_http_idempotency_metrics(ngx_http_request_t *r,
    ngx_http_idempotency_text_t *text)
{
    zone_t          *zones;
    ngx_uint_t       i, n, head;
    const figure_t  *figure;

    zones = zones_read(r, &n);
    if (zones == NULL) {
        text->failed = 1;
        return;
    }

    ngx_http_idempotency_text_add(text,
                "# HELP nginx_idempotency_build_info The module's version.\n"
                "# TYPE nginx_idempotency_build_info gauge\n"
                "nginx_idempotency_build_info{version=\"%s\"} 1\n",
                NGX_HTTP_IDEMPOTENCY_VERSION);

    for (figure = figures; figure->name; figure++) {
        head = 0;

        for (i = 0; i < n; i++) {

            if ((figure->backing && zones[i].figures.kind == NULL)
                || (figure->readable && !zones[i].known))
            {
                continue;
            }

            if (!head) {
                head = 1;
                ngx_http_idempotency_text_add(text,
                          "# HELP nginx_idempotency_%s %s\n"
                          "# TYPE nginx_idempotency_%s %s\n",
                          figure->metric, figure->help,
                          figure->metric, figure->type);
            }

            metrics_figure(text, figure, &zones[i]);
        }
    }
}


static void
metrics_figure(ngx_http_idempotency_text_t *text, const figure_t *figure,
    zone_t *zone)
{
    int64_t                value;
    ngx_uint_t             i;
    const figure_names_t  *names;

    if (figure->value == figure_times) {
        metrics_times(text, figure, zone);
        return;
    }

    names = figure->names;

    for (i = names ? names->first : 0; i < (names ? names->last : 1); i++) {

        value = figure_value(figure, zone, i);

        if (value == FIGURE_UNKNOWN) {
            return;
        }

        ngx_http_idempotency_text_add(text, "nginx_idempotency_%s{zone=\"%V\"",
                                      figure->metric, &zone->name);

        if (names) {
            ngx_http_idempotency_text_add(text, ",%s=\"%s\"", names->label,
                                          figure_name(names, i));
        }

        ngx_http_idempotency_text_add(text, "} %L\n",
                                      (figure->value == figure_seconds)
                                          ? value / 1000 : value);
    }
}


/* each bucket includes those below it; the last has no bound */

static void
metrics_times(ngx_http_idempotency_text_t *text, const figure_t *figure,
    zone_t *zone)
{
    uint64_t                  count;
    ngx_uint_t                i;
    ngx_msec_t                bound;
    ngx_idempotency_times_t  *times;

    times = (ngx_idempotency_times_t *) ((u_char *) zone + figure->offset);
    count = 0;

    for (i = 0; i < NGX_IDEMPOTENCY_STATS_BOUNDS; i++) {
        bound = ngx_idempotency_stats_bounds[i];
        count += times->buckets[i];

        ngx_http_idempotency_text_add(text,
                               "nginx_idempotency_%s_bucket{zone=\"%V\","
                               "le=\"%M.%03M\"} %uL\n",
                               figure->metric, &zone->name,
                               bound / 1000, bound % 1000, count);
    }

    count += times->buckets[i];

    ngx_http_idempotency_text_add(text,
                "nginx_idempotency_%s_bucket{zone=\"%V\",le=\"+Inf\"} %uL\n"
                "nginx_idempotency_%s_sum{zone=\"%V\"} %uA.%03uA\n"
                "nginx_idempotency_%s_count{zone=\"%V\"} %uL\n",
                figure->metric, &zone->name, count,
                figure->metric, &zone->name, times->sum / 1000,
                times->sum % 1000, figure->metric, &zone->name, count);
}


void
ngx_http_idempotency_zones(ngx_http_request_t *r,
    ngx_http_idempotency_text_t *text, ngx_idempotency_store_t *store)
{
    zone_t      *zones;
    uint64_t     now;
    ngx_uint_t   i, n;

    zones = zones_read(r, &n);
    if (zones == NULL) {
        text->failed = 1;
        return;
    }

    if (store) {

        for (i = 0; zones[i].store != store; i++) { /* void */ }

        json_zone(text, &zones[i]);
        ngx_http_idempotency_text_add(text, "\n");

        return;
    }

    now = ngx_http_idempotency_wall_clock();

    ngx_http_idempotency_text_add(text,
                       "{\"version\":\"%s\",\"time\":%uL.%03uL,\"zones\":[",
                       NGX_HTTP_IDEMPOTENCY_VERSION, now / 1000, now % 1000);

    for (i = 0; i < n; i++) {
        ngx_http_idempotency_text_add(text, i ? ",\n" : "\n");
        json_zone(text, &zones[i]);
    }

    ngx_http_idempotency_text_add(text, "]}\n");
}


static void
json_zone(ngx_http_idempotency_text_t *text, zone_t *zone)
{
    ngx_idempotency_figures_t  *f;

    f = &zone->figures;

    ngx_http_idempotency_text_add(text, "{\"name\":\"%V\"", &zone->name);
    json_figures(text, zone, json_space);

    ngx_http_idempotency_text_add(text, ",\"evict\":\"%s\"",
                                  f->evict ? "responses" : "off");
    json_figures(text, zone, json_counts);

    if (f->kind == NULL) {
        ngx_http_idempotency_text_add(text, ",\"store\":null}");
        return;
    }

    ngx_http_idempotency_text_add(text, ",\"store\":{\"kind\":\"%s\"",
                                  f->kind);
    json_figures(text, zone, json_up);

    ngx_http_idempotency_text_add(text, f->sync ? ",\"sync\":\"%s\""
                                                : ",\"sync\":null", f->sync);
    json_figures(text, zone, json_behind);

    ngx_http_idempotency_text_add(text, "}}");
}


static void
json_figures(ngx_http_idempotency_text_t *text, zone_t *zone,
    const char **name)
{
    const figure_t  *figure;

    for ( /* void */ ; *name; name++) {

        for (figure = figures; ngx_strcmp(figure->name, *name) != 0; figure++) {
            /* void */
        }

        json_figure(text, figure, zone);
    }
}


static void
json_figure(ngx_http_idempotency_text_t *text, const figure_t *figure,
    zone_t *zone)
{
    int64_t                value;
    ngx_uint_t             i;
    const char            *name, *before;
    const figure_names_t  *names;

    names = figure->names;

    ngx_http_idempotency_text_add(text, ",\"%s\":", figure->name);

    if (figure->value == figure_times) {
        json_times(text, (ngx_idempotency_times_t *) ((u_char *) zone
                                                      + figure->offset));

    } else if (names == NULL) {
        value = figure_value(figure, zone, 0);

        if (value == FIGURE_UNKNOWN) {
            ngx_http_idempotency_text_add(text, "null");

        } else if (figure->value == figure_flag) {
            ngx_http_idempotency_text_add(text, value ? "true" : "false");

        } else if (figure->value == figure_seconds) {
            ngx_http_idempotency_text_add(text, "%L.%03L", value / 1000,
                                          value % 1000);

        } else {
            ngx_http_idempotency_text_add(text, "%L", value);
        }

    } else {
        before = "{";

        for (i = 0; i < names->last; i++) {
            name = figure_name(names, i);

            if (name) {
                ngx_http_idempotency_text_add(text, "%s\"%s\":%L", before,
                                          name, figure_value(figure, zone, i));
                before = ",";
            }
        }

        ngx_http_idempotency_text_add(text, "}");
    }
}


static void
json_times(ngx_http_idempotency_text_t *text, ngx_idempotency_times_t *times)
{
    uint64_t    count;
    ngx_uint_t  i;
    ngx_msec_t  bound;

    count = 0;

    for (i = 0; i <= NGX_IDEMPOTENCY_STATS_BOUNDS; i++) {
        count += times->buckets[i];
    }

    ngx_http_idempotency_text_add(text,
                     "{\"count\":%uL,\"sum\":%uA.%03uA,\"buckets\":[",
                     count, times->sum / 1000, times->sum % 1000);

    count = 0;

    for (i = 0; i < NGX_IDEMPOTENCY_STATS_BOUNDS; i++) {
        bound = ngx_idempotency_stats_bounds[i];
        count += times->buckets[i];

        ngx_http_idempotency_text_add(text,
                                   "%s{\"le\":%M.%03M,\"count\":%uL}",
                                   i ? "," : "", bound / 1000, bound % 1000,
                                   count);
    }

    ngx_http_idempotency_text_add(text, "]}");
}


/* the figures of all stores; NULL: no memory */

static zone_t *
zones_read(ngx_http_request_t *r, ngx_uint_t *n)
{
    zone_t                            *zones;
    ngx_uint_t                         i;
    ngx_http_idempotency_store_t     **stores;
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    stores = imcf->stores.elts;
    *n = imcf->stores.nelts;

    zones = ngx_palloc(r->pool, (*n + 1) * sizeof(zone_t));
    if (zones == NULL) {
        return NULL;
    }

    for (i = 0; i < *n; i++) {
        zones[i].store = &stores[i]->store;

        if (zone_read(r, &zones[i]) != NGX_OK) {
            return NULL;
        }
    }

    return zones;
}


static ngx_int_t
zone_read(ngx_http_request_t *r, zone_t *zone)
{
    ngx_str_t                  *name;
    ngx_idempotency_store_t    *store;
    ngx_idempotency_figures_t  *f;

    store = zone->store;
    name = &store->name;
    f = &zone->figures;

    zone->name.len = name->len + ngx_escape_json(NULL, name->data, name->len);

    zone->name.data = ngx_pnalloc(r->pool, zone->name.len);
    if (zone->name.data == NULL) {
        return NGX_ERROR;
    }

    ngx_escape_json(zone->name.data, name->data, name->len);

    zone->known = (store->engine->figures(store, ngx_current_msec, f)
                   == NGX_OK);

    zone->growth = f->known ? f->growth : FIGURE_UNKNOWN;
    zone->full_in = (f->known && f->full_in >= 0) ? f->full_in
                                                  : FIGURE_UNKNOWN;
    zone->oldest = (f->empty || !zone->known) ? FIGURE_UNKNOWN
                                              : (int64_t) f->oldest;

    zone->bytes[0] = f->size;
    zone->bytes[1] = f->used;
    zone->bytes[2] = f->size - f->used;

    return NGX_OK;
}


static const char *
figure_name(const figure_names_t *names, ngx_uint_t i)
{
    return *(const char **) ((u_char *) names->names + i * names->size);
}


static int64_t
figure_value(const figure_t *figure, zone_t *zone, ngx_uint_t i)
{
    u_char  *p;

    p = (u_char *) zone + figure->offset;

    switch (figure->value) {

    case figure_counter:
        return ((ngx_atomic_t *) p)[i];

    case figure_flag:
        return ((ngx_uint_t *) p)[i];

    default:
        return ((int64_t *) p)[i];
    }
}
