
/*
 * The location that made a response, where internal redirects led to another
 * than that of the claim.  What was recorded there is sent with its settings:
 * the filters act on a replay as they did on the original.
 *
 * A location is known by its way down from the server: each step's kind and
 * name, and which of its equals it is.  So a reload that leaves it there
 * leaves it known.  The server is that of the request that asks.
 */


#include "ngx_http_idempotency_conf.h"
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

    u_char                        id[NGX_HTTP_IDEMPOTENCY_ORIGIN_LEN];
} origin_place_t;


struct ngx_http_idempotency_origins_s {
    /* of origin_place_t: a place's index is in our settings there */
    ngx_array_t                   places;
    /* the same, by server and id */
    origin_place_t              **sorted;
};


static u_char origin_kind(ngx_http_core_loc_conf_t *clcf);
static ngx_uint_t origin_before(ngx_array_t *places, ngx_uint_t parent,
    ngx_http_core_loc_conf_t *clcf);
static void origin_id(origin_place_t *place, origin_place_t *parent);
static int ngx_libc_cdecl origin_compare(const void *one, const void *two);
static ngx_http_core_loc_conf_t *origin_core(origin_place_t *place);
static void origin_captures(ngx_http_request_t *r);


ngx_http_idempotency_origins_t *
ngx_http_idempotency_origins(ngx_conf_t *cf)
{
    ngx_http_idempotency_origins_t  *origins;

    origins = ngx_pcalloc(cf->pool, sizeof(ngx_http_idempotency_origins_t));
    if (origins == NULL) {
        return NULL;
    }

    if (ngx_array_init(&origins->places, cf->pool, 16, sizeof(origin_place_t))
        != NGX_OK)
    {
        return NULL;
    }

    ngx_memzero(ngx_array_push(&origins->places), sizeof(origin_place_t));

    return origins;
}


/* when a location's settings are merged: those around it were before */

ngx_int_t
ngx_http_idempotency_origin_add(ngx_conf_t *cf,
    ngx_http_idempotency_origins_t *origins, ngx_uint_t parent,
    ngx_uint_t *index)
{
    origin_place_t            *place;
    ngx_http_conf_ctx_t       *ctx;
    ngx_http_core_loc_conf_t  *clcf;

    *index = origins->places.nelts;

    place = ngx_array_push(&origins->places);
    if (place == NULL) {
        return NGX_ERROR;
    }

    ngx_memzero(place, sizeof(origin_place_t));

    ctx = cf->ctx;

    place->srv_conf = ctx->srv_conf;
    place->loc_conf = ctx->loc_conf;
    place->parent = parent;

    if (parent == 0) {
        return NGX_OK;
    }

    clcf = origin_core(place);

    place->ordinal = origin_before(&origins->places, parent, clcf);

    if (clcf->noname) {
        ((origin_place_t *) origins->places.elts)[parent].nameless++;
    }

    return NGX_OK;
}


static u_char
origin_kind(ngx_http_core_loc_conf_t *clcf)
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
origin_before(ngx_array_t *places, ngx_uint_t parent,
    ngx_http_core_loc_conf_t *clcf)
{
    u_char                     kind;
    ngx_uint_t                 i;
    origin_place_t            *place;
    ngx_http_core_loc_conf_t  *other;

    kind = origin_kind(clcf);

    if (kind == '=' || kind == '/') {
        /* nginx refuses a second one */
        return 0;
    }

    place = places->elts;

    for (i = places->nelts - 2; i > parent; i--) {

        if (place[i].parent != parent) {
            continue;
        }

        other = origin_core(&place[i]);

        if (origin_kind(other) == kind
            && other->name.len == clcf->name.len
            && ngx_strncmp(other->name.data, clcf->name.data, clcf->name.len)
               == 0)
        {
            return place[i].ordinal + 1;
        }
    }

    return 0;
}


/* when all of them are there */

ngx_int_t
ngx_http_idempotency_origin_init(ngx_conf_t *cf,
    ngx_http_idempotency_origins_t *origins)
{
    ngx_uint_t       i, n;
    origin_place_t  *place;

    place = origins->places.elts;
    n = origins->places.nelts;

    origins->sorted = ngx_palloc(cf->pool, n * sizeof(origin_place_t *));
    if (origins->sorted == NULL) {
        return NGX_ERROR;
    }

    for (i = 1; i < n; i++) {
        origin_id(&place[i], &place[place[i].parent]);
        origins->sorted[i - 1] = &place[i];
    }

    ngx_qsort(origins->sorted, n - 1, sizeof(origin_place_t *),
              origin_compare);

    return NGX_OK;
}


/*
 * Blocks without a name are told apart by their order alone: if one comes or
 * goes, none of them is known any more
 */

static void
origin_id(origin_place_t *place, origin_place_t *parent)
{
    u_char                     id[NGX_IDEMPOTENCY_DIGEST_LEN];
    u_char                     step[2 + 2 * NGX_INT_T_LEN];
    ngx_str_t                  s;
    ngx_idempotency_digest_t   d;
    ngx_http_core_loc_conf_t  *clcf;

    if (place->parent) {
        clcf = origin_core(place);

        ngx_idempotency_digest_init(&d, NULL,
                                    NGX_IDEMPOTENCY_DIGEST_OTHER_VERSION,
                                    NGX_IDEMPOTENCY_DIGEST_PLACE);

        s.data = parent->id;
        s.len = NGX_HTTP_IDEMPOTENCY_ORIGIN_LEN;
        ngx_idempotency_digest_field(&d, &s);

        s.data = step;
        s.len = ngx_sprintf(step, "%c%ui/%ui", origin_kind(clcf),
                            place->ordinal,
                            clcf->noname ? parent->nameless : 0)
                - step;
        ngx_idempotency_digest_field(&d, &s);
        ngx_idempotency_digest_field(&d, &clcf->name);

        ngx_idempotency_digest_final(&d, id);
        ngx_memcpy(place->id, id, NGX_HTTP_IDEMPOTENCY_ORIGIN_LEN);
    }
}


static int ngx_libc_cdecl
origin_compare(const void *one, const void *two)
{
    origin_place_t  *a, *b;

    a = *(origin_place_t **) one;
    b = *(origin_place_t **) two;

    if (a->srv_conf != b->srv_conf) {
        return (a->srv_conf < b->srv_conf) ? -1 : 1;
    }

    return ngx_memcmp(a->id, b->id, NGX_HTTP_IDEMPOTENCY_ORIGIN_LEN);
}


static ngx_http_core_loc_conf_t *
origin_core(origin_place_t *place)
{
    return place->loc_conf[ngx_http_core_module.ctx_index];
}


/* where a request is now; NGX_DECLINED: that can't be found again */

ngx_int_t
ngx_http_idempotency_origin_of(ngx_http_request_t *r,
    ngx_http_idempotency_origin_t *origin)
{
    origin_place_t                    *place;
    ngx_http_idempotency_loc_conf_t   *conf;
    ngx_http_idempotency_main_conf_t  *imcf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);
    imcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    if (conf->place == 0) {
        return NGX_DECLINED;
    }

    place = (origin_place_t *) imcf->origins->places.elts + conf->place;

    ngx_memcpy(origin->id, place->id, NGX_HTTP_IDEMPOTENCY_ORIGIN_LEN);

    origin->internal = r->internal;
    origin->get = (r->method == NGX_HTTP_GET);
    origin->uri = r->uri;
    origin->args = r->args;

    return NGX_OK;
}


/* the configuration of that location now; NULL: it has gone */

void **
ngx_http_idempotency_origin_find(ngx_http_request_t *r,
    ngx_http_idempotency_origin_t *origin)
{
    ngx_uint_t                         low, high, mid;
    origin_place_t                     key, *keyp, **sorted;
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    key.srv_conf = r->srv_conf;
    ngx_memcpy(key.id, origin->id, NGX_HTTP_IDEMPOTENCY_ORIGIN_LEN);

    keyp = &key;
    sorted = imcf->origins->sorted;

    low = 0;
    high = imcf->origins->places.nelts - 1;

    while (low < high) {
        mid = low + (high - low) / 2;

        if (origin_compare(&sorted[mid], &keyp) < 0) {
            low = mid + 1;

        } else {
            high = mid;
        }
    }

    if (low == imcf->origins->places.nelts - 1
        || origin_compare(&sorted[low], &keyp) != 0)
    {
        return NULL;
    }

    return sorted[low]->loc_conf;
}


/* as an internal redirect would have led there */

void
ngx_http_idempotency_origin_enter(ngx_http_request_t *r,
    ngx_http_idempotency_origin_t *origin, void **loc_conf)
{
    r->uri = origin->uri;
    r->args = origin->args;
    ngx_http_set_exten(r);

    r->internal = origin->internal;
    r->valid_unparsed_uri = 0;

    if (origin->get && r->method != NGX_HTTP_GET) {
        r->method = NGX_HTTP_GET;
        r->method_name = ngx_http_core_get_method;
    }

    r->loc_conf = loc_conf;
    ngx_http_update_location_config(r);

    /* by its method this was chosen already */
    r->loc_conf = loc_conf;

    origin_captures(r);
}


/* what an add_header may have of the location's pattern */

static void
origin_captures(ngx_http_request_t *r)
{
#if (NGX_PCRE)

    origin_place_t                    *places, *place;
    ngx_http_idempotency_loc_conf_t   *conf;
    ngx_http_idempotency_main_conf_t  *imcf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);
    imcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    places = imcf->origins->places.elts;
    place = &places[conf->place];

    while (origin_core(place)->noname) {
        place = &places[place->parent];
    }

    if (origin_core(place)->regex) {
        (void) ngx_http_regex_exec(r, origin_core(place)->regex, &r->uri);
    }

#endif
}
