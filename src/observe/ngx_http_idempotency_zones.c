
/* What is known of the zones, as JSON. */


#include "ngx_http_idempotency_observe.h"


static void zones_zone(ngx_http_idempotency_text_t *text,
    ngx_http_idempotency_zone_t *zone);
static void zones_names(ngx_http_idempotency_text_t *text, const char *name,
    ngx_atomic_t *results);
static void zones_store(ngx_http_idempotency_text_t *text,
    ngx_idempotency_figures_t *figures);
static void zones_times(ngx_http_idempotency_text_t *text, const char *name,
    ngx_idempotency_times_t *times);


/* of all stores of this configuration; NULL: no memory */

ngx_http_idempotency_zone_t *
ngx_http_idempotency_zones_read(ngx_http_request_t *r, ngx_uint_t *n)
{
    ngx_uint_t                         i;
    ngx_idempotency_store_t          **stores;
    ngx_http_idempotency_zone_t       *zones;
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    stores = imcf->stores.elts;
    *n = imcf->stores.nelts;

    zones = ngx_palloc(r->pool, (*n + 1)
                                * sizeof(ngx_http_idempotency_zone_t));
    if (zones == NULL) {
        return NULL;
    }

    for (i = 0; i < *n; i++) {
        zones[i].store = stores[i];
        zones[i].known = (stores[i]->engine->figures(stores[i],
                                                     ngx_current_msec,
                                                     &zones[i].figures)
                          == NGX_OK);
    }

    return zones;
}


ngx_int_t
ngx_http_idempotency_zones(ngx_http_request_t *r,
    ngx_idempotency_store_t *store)
{
    uint64_t                      now;
    ngx_uint_t                    i, n;
    ngx_http_idempotency_text_t   text;
    ngx_http_idempotency_zone_t  *zones;

    zones = ngx_http_idempotency_zones_read(r, &n);
    if (zones == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_http_idempotency_text_init(&text, r->pool);

    if (store) {

        for (i = 0; zones[i].store != store; i++) { /* void */ }

        zones_zone(&text, &zones[i]);

    } else {
        now = ngx_http_idempotency_wall_clock();

        ngx_http_idempotency_text_add(&text,
                       "{\"version\":\"%s\",\"time\":%uL.%03uL,\"zones\":[",
                       NGX_HTTP_IDEMPOTENCY_VERSION, now / 1000, now % 1000);

        for (i = 0; i < n; i++) {
            ngx_http_idempotency_text_add(&text, i ? ",\n" : "\n");
            zones_zone(&text, &zones[i]);
        }

        ngx_http_idempotency_text_add(&text, "]}");
    }

    ngx_http_idempotency_text_add(&text, "\n");

    return ngx_http_idempotency_api_send(r, &text, "application/json");
}


static void
zones_zone(ngx_http_idempotency_text_t *text,
    ngx_http_idempotency_zone_t *zone)
{
    ngx_uint_t                   i;
    ngx_idempotency_figures_t   *f;
    ngx_idempotency_counters_t  *c;

    f = &zone->figures;
    c = &f->counters;

    ngx_http_idempotency_text_add(text, "{\"name\":\"");
    ngx_http_idempotency_text_json(text, &zone->store->name);
    ngx_http_idempotency_text_add(text,
                  "\",\"available\":%s,"
                  "\"bytes\":{\"size\":%uz,\"used\":%uz,\"free\":%uz},"
                  "\"evict\":\"%s\",\"records\":{",
                  zone->known ? "true" : "false",
                  f->size, f->used, f->size - f->used,
                  f->evict ? "responses" : "off");

    for (i = 0; i < NGX_IDEMPOTENCY_STATS_RECORDS; i++) {
        ngx_http_idempotency_text_add(text, "%s\"%s\":%uL", i ? "," : "",
                                      ngx_http_idempotency_outcome_names[i],
                                      f->records[i]);
    }

    zones_names(text, "},\"requests\":{", c->results);
    zones_names(text, "},\"dry_run\":{", c->dry_run);

    ngx_http_idempotency_text_add(text, "},\"conflicts\":{");

    for (i = 0; i < NGX_IDEMPOTENCY_STATS_DIFFERS; i++) {
        ngx_http_idempotency_text_add(text, "%s\"%s\":%uA", i ? "," : "",
                                      ngx_http_idempotency_differs_names[i],
                                      c->differs[i]);
    }

    ngx_http_idempotency_text_add(text,
                  "},\"races\":%uA,\"unavailable\":%uA,\"abandoned\":%uA,"
                  "\"expired\":%uL,"
                  "\"in_doubt\":%uL,\"released\":%uL,\"replayed_bytes\":%uA",
                  c->races, c->unavailable, c->abandoned, c->expired,
                  c->in_doubt, c->released, c->replayed_bytes);

    zones_times(text, ",\"wait\":", &c->wait);

    if (f->empty || !zone->known) {
        ngx_http_idempotency_text_add(text, ",\"oldest\":null");

    } else {
        ngx_http_idempotency_text_add(text, ",\"oldest\":%M.%03M",
                                      f->oldest / 1000, f->oldest % 1000);
    }

    if (f->known) {
        ngx_http_idempotency_text_add(text, ",\"growth\":%L", f->growth);

    } else {
        ngx_http_idempotency_text_add(text, ",\"growth\":null");
    }

    if (f->known && f->full_in >= 0) {
        ngx_http_idempotency_text_add(text, ",\"full_in\":%L", f->full_in);

    } else {
        ngx_http_idempotency_text_add(text, ",\"full_in\":null");
    }

    zones_store(text, f);

    ngx_http_idempotency_text_add(text, "}");
}


static void
zones_names(ngx_http_idempotency_text_t *text, const char *name,
    ngx_atomic_t *results)
{
    ngx_uint_t  i;

    ngx_http_idempotency_text_add(text, name);

    for (i = 1; i < NGX_HTTP_IDEMPOTENCY_RESULTS; i++) {
        ngx_http_idempotency_text_add(text, "%s\"%V\":%uA", i > 1 ? "," : "",
                                      &ngx_http_idempotency_result_names[i],
                                      results[i]);
    }
}


static void
zones_store(ngx_http_idempotency_text_t *text,
    ngx_idempotency_figures_t *figures)
{
    ngx_uint_t  i;

    if (figures->kind == NULL) {
        ngx_http_idempotency_text_add(text, ",\"store\":null");
        return;
    }

    ngx_http_idempotency_text_add(text, ",\"store\":{\"kind\":\"%s\","
                                        "\"up\":%s,\"sync\":",
                                  figures->kind,
                                  figures->up ? "true" : "false");

    if (figures->sync) {
        ngx_http_idempotency_text_add(text, "\"%s\"", figures->sync);

    } else {
        ngx_http_idempotency_text_add(text, "null");
    }

    zones_times(text, ",\"latency\":", &figures->counters.latency);

    ngx_http_idempotency_text_add(text, ",\"errors\":{");

    for (i = 0; i < NGX_IDEMPOTENCY_ERRORS; i++) {
        ngx_http_idempotency_text_add(text, "%s\"%s\":%uA", i ? "," : "",
                                      ngx_idempotency_error_names[i],
                                      figures->counters.errors[i]);
    }

    ngx_http_idempotency_text_add(text, "},\"undelivered\":%uL}",
                                  figures->undelivered);
}


/* each bucket counts those below it, too; the last has no bound */

static void
zones_times(ngx_http_idempotency_text_t *text, const char *name,
    ngx_idempotency_times_t *times)
{
    uint64_t    count;
    ngx_uint_t  i;
    ngx_msec_t  bound;

    count = 0;

    for (i = 0; i <= NGX_IDEMPOTENCY_STATS_BOUNDS; i++) {
        count += times->buckets[i];
    }

    ngx_http_idempotency_text_add(text,
                     "%s{\"count\":%uL,\"sum\":%uA.%03uA,\"buckets\":[",
                     name, count, times->sum / 1000, times->sum % 1000);

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
