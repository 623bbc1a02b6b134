
/*
 * The location that made a response, where internal redirects led to another
 * than that of the claim.  What was recorded there is sent with its settings:
 * the filters act on a replay as they did on the original.
 *
 * A location is known by its way down from the server: each step's kind and
 * name, and which of its equals it is.  So a reload that leaves it there
 * leaves it known.  The server is that of the request that asks.
 */


#include "ngx_http_idempotency.h"
#include "ngx_http_idempotency_response.h"


typedef struct {
    void                        **srv_conf;
    void                        **loc_conf;

    /* the one around it, 0 is the http level */
    ngx_uint_t                    parent;
    /* how many of its kind and name stand before it there */
    ngx_uint_t                    ordinal;
    /* how many blocks without a name are in it */
    ngx_uint_t                    nameless;

    u_char                        id[NGX_HTTP_IDEMPOTENCY_LOCATION_LEN];
} location_entry_t;


struct ngx_http_idempotency_location_map_s {
    /* of location_entry_t: an entry's index is in our settings there */
    ngx_array_t                   entries;
    /* the same, by server and id */
    location_entry_t              **sorted;
};


static u_char location_kind(ngx_http_core_loc_conf_t *clcf);
static ngx_uint_t location_before(ngx_array_t *entries, ngx_uint_t parent,
    ngx_http_core_loc_conf_t *clcf);
static void location_id(location_entry_t *entry, location_entry_t *parent);
static int ngx_libc_cdecl location_compare(const void *one, const void *two);
static ngx_http_core_loc_conf_t *location_core(location_entry_t *entry);
static void location_captures(ngx_http_request_t *r);


ngx_http_idempotency_location_map_t *
ngx_http_idempotency_location_map(ngx_conf_t *cf)
{
    ngx_http_idempotency_location_map_t  *map;

    map = ngx_pcalloc(cf->pool, sizeof(ngx_http_idempotency_location_map_t));
    if (map == NULL) {
        return NULL;
    }

    if (ngx_array_init(&map->entries, cf->pool, 16, sizeof(location_entry_t))
        != NGX_OK)
    {
        return NULL;
    }

    ngx_memzero(ngx_array_push(&map->entries), sizeof(location_entry_t));

    return map;
}


/* when a location's settings are merged: those around it were before */

ngx_int_t
ngx_http_idempotency_location_add(ngx_conf_t *cf,
    ngx_http_idempotency_location_map_t *map, ngx_uint_t parent,
    ngx_uint_t *index)
{
    location_entry_t            *entry;
    ngx_http_conf_ctx_t       *ctx;
    ngx_http_core_loc_conf_t  *clcf;

    *index = map->entries.nelts;

    entry = ngx_array_push(&map->entries);
    if (entry == NULL) {
        return NGX_ERROR;
    }

    ngx_memzero(entry, sizeof(location_entry_t));

    ctx = cf->ctx;

    entry->srv_conf = ctx->srv_conf;
    entry->loc_conf = ctx->loc_conf;
    entry->parent = parent;

    if (parent == 0) {
        return NGX_OK;
    }

    clcf = location_core(entry);

    entry->ordinal = location_before(&map->entries, parent, clcf);

    if (clcf->noname) {
        ((location_entry_t *) map->entries.elts)[parent].nameless++;
    }

    return NGX_OK;
}


static u_char
location_kind(ngx_http_core_loc_conf_t *clcf)
{
    if (clcf->noname) {
        return clcf->lmt_excpt ? 'l' : 'i';
    }

    if (clcf->named) {
        return '@';
    }

#if (NGX_PCRE)
    if (clcf->regex) {
        return '~';
    }
#endif

    return clcf->exact_match ? '=' : '/';
}


static ngx_uint_t
location_before(ngx_array_t *entries, ngx_uint_t parent,
    ngx_http_core_loc_conf_t *clcf)
{
    u_char                     kind;
    ngx_uint_t                 i;
    location_entry_t            *entry;
    ngx_http_core_loc_conf_t  *other;

    kind = location_kind(clcf);

    if (kind == '=' || kind == '/') {
        /* nginx refuses a second one */
        return 0;
    }

    entry = entries->elts;

    for (i = entries->nelts - 2; i > parent; i--) {

        if (entry[i].parent != parent) {
            continue;
        }

        other = location_core(&entry[i]);

        if (location_kind(other) == kind
            && other->name.len == clcf->name.len
            && ngx_strncmp(other->name.data, clcf->name.data, clcf->name.len)
               == 0)
        {
            return entry[i].ordinal + 1;
        }
    }

    return 0;
}


/* when all of them are there */

ngx_int_t
ngx_http_idempotency_location_init(ngx_conf_t *cf,
    ngx_http_idempotency_location_map_t *map)
{
    ngx_uint_t       i, n;
    location_entry_t  *entry;

    entry = map->entries.elts;
    n = map->entries.nelts;

    map->sorted = ngx_palloc(cf->pool, n * sizeof(location_entry_t *));
    if (map->sorted == NULL) {
        return NGX_ERROR;
    }

    for (i = 1; i < n; i++) {
        location_id(&entry[i], &entry[entry[i].parent]);
        map->sorted[i - 1] = &entry[i];
    }

    ngx_qsort(map->sorted, n - 1, sizeof(location_entry_t *),
              location_compare);

    return NGX_OK;
}


/*
 * Blocks without a name are told apart by their order alone: if one comes or
 * goes, none of them is known any more
 */

static void
location_id(location_entry_t *entry, location_entry_t *parent)
{
    u_char                     id[NGX_IDEMPOTENCY_DIGEST_LEN];
    u_char                     step[2 + 2 * NGX_INT_T_LEN];
    ngx_str_t                  s;
    ngx_idempotency_digest_t   d;
    ngx_http_core_loc_conf_t  *clcf;

    if (entry->parent) {
        clcf = location_core(entry);

        ngx_idempotency_digest_init(&d, NULL,
                                    NGX_IDEMPOTENCY_DIGEST_OTHER_VERSION,
                                    NGX_IDEMPOTENCY_DIGEST_PLACE);

        s.data = parent->id;
        s.len = NGX_HTTP_IDEMPOTENCY_LOCATION_LEN;
        ngx_idempotency_digest_field(&d, &s);

        s.data = step;
        s.len = ngx_sprintf(step, "%c%ui/%ui", location_kind(clcf),
                            entry->ordinal,
                            clcf->noname ? parent->nameless : 0)
                - step;
        ngx_idempotency_digest_field(&d, &s);
        ngx_idempotency_digest_field(&d, &clcf->name);

        ngx_idempotency_digest_final(&d, id);
        ngx_memcpy(entry->id, id, NGX_HTTP_IDEMPOTENCY_LOCATION_LEN);
    }
}


static int ngx_libc_cdecl
location_compare(const void *one, const void *two)
{
    location_entry_t  *a, *b;

    a = *(location_entry_t **) one;
    b = *(location_entry_t **) two;

    if (a->srv_conf != b->srv_conf) {
        return (a->srv_conf < b->srv_conf) ? -1 : 1;
    }

    return ngx_memcmp(a->id, b->id, NGX_HTTP_IDEMPOTENCY_LOCATION_LEN);
}


static ngx_http_core_loc_conf_t *
location_core(location_entry_t *entry)
{
    return entry->loc_conf[ngx_http_core_module.ctx_index];
}


/* where a request is now; NGX_DECLINED: that can't be found again */

ngx_int_t
ngx_http_idempotency_location_of(ngx_http_request_t *r,
    ngx_http_idempotency_location_t *location)
{
    location_entry_t                    *entry;
    ngx_http_idempotency_loc_conf_t   *conf;
    ngx_http_idempotency_main_conf_t  *imcf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);
    imcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    if (conf->place == 0) {
        return NGX_DECLINED;
    }

    entry = (location_entry_t *) imcf->location_map->entries.elts + conf->place;

    ngx_memcpy(location->id, entry->id, NGX_HTTP_IDEMPOTENCY_LOCATION_LEN);

    location->internal = r->internal;
    location->get = (r->method == NGX_HTTP_GET);
    location->uri = r->uri;
    location->args = r->args;

    return NGX_OK;
}


/* the configuration of that location now; NULL: it has gone */

void **
ngx_http_idempotency_location_find(ngx_http_request_t *r,
    ngx_http_idempotency_location_t *location)
{
    ngx_uint_t                         low, high, mid;
    location_entry_t                     key, *keyp, **sorted;
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    key.srv_conf = r->srv_conf;
    ngx_memcpy(key.id, location->id, NGX_HTTP_IDEMPOTENCY_LOCATION_LEN);

    keyp = &key;
    sorted = imcf->location_map->sorted;

    low = 0;
    high = imcf->location_map->entries.nelts - 1;

    while (low < high) {
        mid = low + (high - low) / 2;

        if (location_compare(&sorted[mid], &keyp) < 0) {
            low = mid + 1;

        } else {
            high = mid;
        }
    }

    if (low == imcf->location_map->entries.nelts - 1
        || location_compare(&sorted[low], &keyp) != 0)
    {
        return NULL;
    }

    return sorted[low]->loc_conf;
}


/* as an internal redirect would have led there */

void
ngx_http_idempotency_location_enter(ngx_http_request_t *r,
    ngx_http_idempotency_location_t *location, void **loc_conf)
{
    r->uri = location->uri;
    r->args = location->args;
    ngx_http_set_exten(r);

    r->internal = location->internal;
    r->valid_unparsed_uri = 0;

    if (location->get && r->method != NGX_HTTP_GET) {
        r->method = NGX_HTTP_GET;
        r->method_name = ngx_http_core_get_method;
    }

    r->loc_conf = loc_conf;
    ngx_http_update_location_config(r);

    /* by its method this was chosen already */
    r->loc_conf = loc_conf;

    location_captures(r);
}


/* what an add_header may have of the location's pattern */

static void
location_captures(ngx_http_request_t *r)
{
#if (NGX_PCRE)

    location_entry_t                    *entries, *entry;
    ngx_http_idempotency_loc_conf_t   *conf;
    ngx_http_idempotency_main_conf_t  *imcf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);
    imcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    entries = imcf->location_map->entries.elts;
    entry = &entries[conf->place];

    while (location_core(entry)->noname) {
        entry = &entries[entry->parent];
    }

    if (location_core(entry)->regex) {
        (void) ngx_http_regex_exec(r, location_core(entry)->regex, &r->uri);
    }

#endif
}
