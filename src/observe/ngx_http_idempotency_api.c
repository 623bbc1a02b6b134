
/*
 * idempotency_api: what stands below its location, who may ask for what there,
 * and how it is answered.
 */


#include "ngx_http_idempotency_observe.h"
#include "request/ngx_http_idempotency_headers.h"
#include "request/ngx_http_idempotency_refuse.h"


/* what is asked for */

typedef enum {
    api_nothing = 0,
    api_metrics,
    api_zones,
    api_zone
} api_what_e;


typedef struct {
    api_what_e                  what;
    /* of a zone */
    ngx_str_t                   name;
    ngx_idempotency_store_t    *store;
} api_route_t;


/* a location may stand for one of these alone, by its last name */

typedef struct {
    ngx_str_t                   name;
    api_what_e                  what;
} api_name_t;


typedef struct {
    ngx_uint_t                  status;
    ngx_str_t                   name;
    ngx_str_t                   title;
    ngx_str_t                   detail;
    ngx_uint_t                  retryable;
} api_refusal_t;


static ngx_int_t api_handler(ngx_http_request_t *r);
static ngx_str_t api_path(ngx_http_request_t *r);
static ngx_uint_t api_stands_for(ngx_str_t *name);
static void api_route(ngx_http_request_t *r, ngx_str_t *path,
    api_route_t *route);
static void api_route_zone(ngx_http_request_t *r, ngx_str_t *path,
    api_route_t *route);
static ngx_idempotency_store_t *api_store(ngx_http_request_t *r,
    ngx_str_t *name);
static ngx_int_t api_respond(ngx_http_request_t *r, const char *type,
    off_t size, ngx_chain_t *out);


static api_name_t  api_names[] = {
    { ngx_string("metrics"), api_metrics },
    { ngx_string("zones"), api_zones },
    { ngx_null_string, api_nothing }
};


/* in the order of ngx_http_idempotency_api_refusal_e */

static api_refusal_t  api_refusals[] = {

    { NGX_HTTP_NOT_FOUND, ngx_string("not_found"),
      ngx_string("There is nothing here"),
      ngx_string("See the documentation of idempotency_api for what is "
                 "there."),
      0 },

    { NGX_HTTP_NOT_FOUND, ngx_string("no_zone"),
      ngx_string("There is no such zone"),
      ngx_string("No idempotency_zone of this configuration has that name."),
      0 },

    { NGX_HTTP_NOT_ALLOWED, ngx_string("method"),
      ngx_string("This method is not possible here"),
      ngx_string("The Allow header tells which ones are."),
      0 }
};


char *
ngx_http_idempotency_api(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idempotency_loc_conf_t  *ilcf = conf;

    ngx_str_t                         *value;
    ngx_http_core_loc_conf_t          *clcf;
    ngx_http_idempotency_main_conf_t  *imcf;

    if (ilcf->api) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (cf->args->nelts == 2) {

        if (ngx_strcmp(value[1].data, "write=on") == 0) {
            ilcf->api_write = 1;

        } else if (ngx_strcmp(value[1].data, "write=off") != 0) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\"", &value[1]);
            return NGX_CONF_ERROR;
        }
    }

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    /* what is asked for is what follows its name */

    if (clcf->named || clcf->name.len == 0 || clcf->name.data[0] != '/'
#if (NGX_PCRE)
        || clcf->regex
#endif
        )
    {
        return "can stand only in a location that is given by a prefix of "
               "the URI, or by the whole of it";
    }

    ilcf->api = 1;
    clcf->handler = api_handler;

    imcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);
    imcf->api = 1;

    return NGX_CONF_OK;
}


static ngx_int_t
api_handler(ngx_http_request_t *r)
{
    ngx_int_t    rc;
    ngx_str_t    path;
    api_route_t  route;

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    path = api_path(r);

    api_route(r, &path, &route);

    if (route.what == api_nothing) {
        return ngx_http_idempotency_api_refuse(r,
                                          NGX_HTTP_IDEMPOTENCY_API_NOT_FOUND);
    }

    if (route.name.len && route.store == NULL) {
        return ngx_http_idempotency_api_refuse(r,
                                            NGX_HTTP_IDEMPOTENCY_API_NO_ZONE);
    }

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {
        return ngx_http_idempotency_api_refuse(r,
                                             NGX_HTTP_IDEMPOTENCY_API_METHOD);
    }

    if (route.what == api_metrics) {
        return ngx_http_idempotency_metrics(r);
    }

    return ngx_http_idempotency_zones(r, route.store);
}


/*
 * What follows the location's name, which may end with a slash or without; one
 * that is given for a single resource has that for its last name
 */

static ngx_str_t
api_path(ngx_http_request_t *r)
{
    size_t                     n;
    ngx_str_t                  name, path;
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    name = clcf->name;
    n = name.len;

    if (name.data[n - 1] == '/') {
        n--;

    } else {

        while (name.data[n - 1] != '/') {
            n--;
        }

        name.data += n;
        name.len -= n;

        n = api_stands_for(&name) ? n - 1 : clcf->name.len;
    }

    path.data = r->uri.data + n;
    path.len = r->uri.len - n;

    return path;
}


static ngx_uint_t
api_stands_for(ngx_str_t *name)
{
    ngx_uint_t  i;

    for (i = 0; api_names[i].name.len; i++) {
        if (api_names[i].name.len == name->len
            && ngx_strncmp(api_names[i].name.data, name->data, name->len) == 0)
        {
            return api_names[i].what;
        }
    }

    return api_nothing;
}


static void
api_route(ngx_http_request_t *r, ngx_str_t *path, api_route_t *route)
{
    ngx_str_t  rest;

    static ngx_str_t  zone = ngx_string("/zones/");

    ngx_memzero(route, sizeof(api_route_t));

    if (path->len < 2 || path->data[0] != '/') {
        return;
    }

    if (path->len > zone.len
        && ngx_strncmp(path->data, zone.data, zone.len) == 0)
    {
        rest.data = path->data + zone.len;
        rest.len = path->len - zone.len;

        api_route_zone(r, &rest, route);
        return;
    }

    rest.data = path->data + 1;
    rest.len = path->len - 1;

    route->what = api_stands_for(&rest);
}


static void
api_route_zone(ngx_http_request_t *r, ngx_str_t *path, api_route_t *route)
{
    route->what = api_zone;
    route->name = *path;
    route->store = api_store(r, &route->name);
}


static ngx_idempotency_store_t *
api_store(ngx_http_request_t *r, ngx_str_t *name)
{
    ngx_uint_t                         i;
    ngx_idempotency_store_t          **stores;
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    stores = imcf->stores.elts;

    for (i = 0; i < imcf->stores.nelts; i++) {
        if (stores[i]->name.len == name->len
            && ngx_strncmp(stores[i]->name.data, name->data, name->len) == 0)
        {
            return stores[i];
        }
    }

    return NULL;
}


/* nobody keeps what may be another thing a moment later */

ngx_int_t
ngx_http_idempotency_api_send(ngx_http_request_t *r,
    ngx_http_idempotency_text_t *text, const char *type)
{
    if (text->failed) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->headers_out.status = NGX_HTTP_OK;

    return api_respond(r, type, text->size, text->out);
}


static ngx_int_t
api_respond(ngx_http_request_t *r, const char *type, off_t size,
    ngx_chain_t *out)
{
    ngx_int_t     rc;
    ngx_str_t     value;
    ngx_chain_t  *cl;

    ngx_str_set(&value, "no-store");

    if (ngx_http_idempotency_api_header(r, "Cache-Control", &value)
        != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->headers_out.content_type.data = (u_char *) type;
    r->headers_out.content_type.len = ngx_strlen(type);
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;

    r->headers_out.content_length_n = size;

    if (size == 0) {
        r->header_only = 1;
    }

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    for (cl = out; cl->next; cl = cl->next) { /* void */ }

    cl->buf->last_buf = (r == r->main);
    cl->buf->last_in_chain = 1;

    return ngx_http_output_filter(r, out);
}


ngx_int_t
ngx_http_idempotency_api_header(ngx_http_request_t *r, const char *name,
    ngx_str_t *value)
{
    ngx_str_t  key;

    key.data = (u_char *) name;
    key.len = ngx_strlen(name);

    return ngx_http_idempotency_header_push(r, &r->headers_out.headers, &key,
                                            value)
           ? NGX_OK : NGX_ERROR;
}


/* in the format that clients know, whatever they accept: it is for programs */

ngx_int_t
ngx_http_idempotency_api_refuse(ngx_http_request_t *r,
    ngx_http_idempotency_api_refusal_e why)
{
    ngx_str_t                         body, allow;
    ngx_chain_t                       out;
    api_refusal_t                    *refusal;
    ngx_http_idempotency_problem_t    problem;
    ngx_http_idempotency_loc_conf_t  *conf;

    refusal = &api_refusals[why];
    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    problem.docs = &conf->docs;
    problem.name = &refusal->name;
    problem.title = &refusal->title;
    problem.detail = refusal->detail;
    problem.status = refusal->status;
    problem.retryable = refusal->retryable;

    out.buf = ngx_calloc_buf(r->pool);
    out.next = NULL;

    if (out.buf == NULL
        || ngx_http_idempotency_problem_document(r, &problem, &body) != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (refusal->status == NGX_HTTP_NOT_ALLOWED) {

        ngx_str_set(&allow, "GET, HEAD");

        if (ngx_http_idempotency_api_header(r, "Allow", &allow) != NGX_OK) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    out.buf->pos = body.data;
    out.buf->last = body.data + body.len;
    out.buf->memory = 1;

    /* an error_page that led here must not speak for us */

    r->err_status = 0;
    r->headers_out.status = refusal->status;

    return api_respond(r, "application/problem+json", body.len, &out);
}
