
/*
 * idempotency_api: what stands below its location, who may ask for what there,
 * and how it is answered; the zones as JSON, the page for people, and the text
 * that all answers are written with, piece by piece, into buffers of one size.
 */


#include "ngx_http_idempotency_observe.h"
#include "request/ngx_http_idempotency_response.h"
#include "request/ngx_http_idempotency_refuse.h"
#include "ngx_http_idempotency_page_html.h"


/* the longest body of one who agrees, with some space around it */

#define API_AGREE_BODY  64

/* what is asked for */

typedef enum {
    api_nothing = 0,
    api_page,
    api_metrics,
    api_zones,
    api_zone,
    api_records,
    api_outcome
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


#define NGX_HTTP_IDEMPOTENCY_TEXT_BUFFER  16384


static ngx_int_t api_parameter(ngx_str_t *value, char *name,
    ngx_uint_t *flag);
static ngx_int_t api_handler(ngx_http_request_t *r);
static ngx_http_idempotency_api_refusal_e api_may_ask(ngx_http_request_t *r);
static ngx_uint_t api_is_from_here(ngx_http_request_t *r);
static ngx_uint_t api_is_ours(ngx_http_request_t *r, ngx_array_t *names);
static ngx_uint_t api_is_own_page(ngx_http_request_t *r);
static ngx_uint_t api_header_is(ngx_table_elt_t *h, char *name);
static ngx_uint_t api_value_is(ngx_table_elt_t *h, char *value);
static ngx_uint_t api_is_loopback(struct sockaddr *sa);
static ngx_uint_t api_is_loopback_text(ngx_http_request_t *r, u_char *text,
    size_t len);
static ngx_str_t api_path(ngx_http_request_t *r);
static ngx_uint_t api_stands_for(ngx_str_t *name);
static void api_route(ngx_http_request_t *r, ngx_str_t *path,
    api_route_t *route);
static void api_route_zone(ngx_http_request_t *r, ngx_str_t *path,
    api_route_t *route);
static ngx_int_t api_methods(ngx_http_request_t *r, api_route_t *route);
static ngx_int_t api_send_page(ngx_http_request_t *r);
static ngx_int_t api_refuse_page(ngx_http_request_t *r,
    ngx_http_idempotency_api_refusal_e why);
static ngx_int_t api_redirect(ngx_http_request_t *r);
static ngx_int_t api_send_records(ngx_http_request_t *r,
    ngx_idempotency_store_t *store);
static ngx_int_t api_agree(ngx_http_request_t *r,
    ngx_idempotency_store_t *store);
static void api_agree_body(ngx_http_request_t *r);
static ngx_int_t api_key(ngx_http_request_t *r, ngx_uint_t header_only,
    ngx_str_t *key);
static ngx_int_t api_unescape(ngx_http_request_t *r, ngx_str_t *value);
static ngx_idempotency_store_t *api_store(ngx_http_request_t *r,
    ngx_str_t *name);
static ngx_int_t api_respond(ngx_http_request_t *r, const char *type,
    off_t size, ngx_chain_t *out);
static void zones_zone(ngx_http_idempotency_text_t *text,
    ngx_http_idempotency_zone_t *zone);
static void zones_names(ngx_http_idempotency_text_t *text, const char *name,
    ngx_atomic_t *results);
static void zones_store(ngx_http_idempotency_text_t *text,
    ngx_idempotency_figures_t *figures);
static void zones_times(ngx_http_idempotency_text_t *text, const char *name,
    ngx_idempotency_times_t *times);
static ngx_int_t text_room(ngx_http_idempotency_text_t *text, size_t size);
static void text_bytes(ngx_http_idempotency_text_t *text, u_char *p,
    size_t len);
static ngx_int_t zones_send(ngx_http_request_t *r,
    ngx_idempotency_store_t *store);
static void text_json(ngx_http_idempotency_text_t *text, ngx_str_t *value);


static api_name_t  api_names[] = {
    { ngx_string("metrics"), api_metrics },
    { ngx_string("zones"), api_zones },
    { ngx_string("outcome"), api_outcome },
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

    { NGX_HTTP_NOT_FOUND, ngx_string("no_record"),
      ngx_string("There is no such record"),
      ngx_string("The key is not bound, or not for who asks."),
      0 },

    { NGX_HTTP_NOT_ALLOWED, ngx_string("method"),
      ngx_string("This method is not possible here"),
      ngx_string("The Allow header tells which ones are."),
      0 },

    { NGX_HTTP_NOT_ALLOWED, ngx_string("method"),
      ngx_string("This method is not possible here"),
      ngx_string("The Allow header tells which ones are."),
      0 },

    { NGX_HTTP_NOT_ALLOWED, ngx_string("method"),
      ngx_string("This method is not possible here"),
      ngx_string("The Allow header tells which ones are."),
      0 },

    { NGX_HTTP_BAD_REQUEST, ngx_string("missing"),
      ngx_string("Idempotency key required"),
      ngx_string("It tells which record is meant."),
      0 },

    { NGX_HTTP_BAD_REQUEST, ngx_string("malformed"),
      ngx_string("Malformed idempotency key"),
      ngx_string("The idempotency key is malformed: it is too long, has "
                 "another format than required, or was sent more than once."),
      0 },

    { NGX_HTTP_BAD_REQUEST, ngx_string("bad_argument"),
      ngx_string("An argument is malformed"),
      ngx_string("See the documentation of idempotency_api for what may be "
                 "asked."),
      0 },

    { NGX_HTTP_BAD_REQUEST, ngx_string("bad_outcome"),
      ngx_string("This is no outcome"),
      ngx_string("What is in doubt is settled as done or released."),
      0 },

    { NGX_HTTP_BAD_REQUEST, ngx_string("bad_store"),
      ngx_string("This says nothing of the store"),
      ngx_string("What can be said is {\"store\":\"accept\"}."),
      0 },

    { NGX_HTTP_CONFLICT, ngx_string("not_refused"),
      ngx_string("The store is not refused"),
      ngx_string("It is the one that it was, or there is none: nothing has to "
                 "be agreed to."),
      0 },

    { NGX_HTTP_BAD_REQUEST, ngx_string("no_backing"),
      ngx_string("Nothing stands behind this zone"),
      ngx_string("All that it knows is in this machine's memory."),
      0 },

    { NGX_HTTP_CONFLICT, ngx_string("not_in_doubt"),
      ngx_string("The outcome is not in doubt"),
      ngx_string("Only what is in doubt can be settled. Somebody else may "
                 "have settled it, or taken it over."),
      0 },

    { NGX_HTTP_SERVICE_UNAVAILABLE, ngx_string("unavailable"),
      ngx_string("The store does not answer"),
      ngx_string("It is left inconsistent by a process that died, or out of "
                 "reach."),
      1 },

    { NGX_HTTP_FORBIDDEN, ngx_string("remote"),
      ngx_string("Only this machine may ask"),
      ngx_string("This request comes from another one, or through a proxy. "
                 "Where access rules stand before this location, "
                 "\"idempotency_api remote=on;\" says so."),
      0 },

    { NGX_HTTP_FORBIDDEN, ngx_string("host"),
      ngx_string("This host is none of the server's names"),
      ngx_string("The Host header must name this machine (localhost, a "
                 "loopback address) or be one of \"server_name\", exactly; "
                 "with \"idempotency_api remote=on;\" only of a request that "
                 "changes something."),
      0 },

    { NGX_HTTP_FORBIDDEN, ngx_string("origin"),
      ngx_string("A page of another origin asks"),
      ngx_string("What changes something is asked for by a page of this "
                 "origin, or by a program."),
      0 }
};


char *
ngx_http_idempotency_api(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idempotency_loc_conf_t  *ilcf = conf;

    ngx_str_t                         *value;
    ngx_uint_t                         i, write, remote;
    ngx_http_core_loc_conf_t          *clcf;
    ngx_http_idempotency_main_conf_t  *imcf;

    if (ilcf->api) {
        return "is duplicate";
    }

    value = cf->args->elts;

    write = NGX_CONF_UNSET_UINT;
    remote = NGX_CONF_UNSET_UINT;

    for (i = 1; i < cf->args->nelts; i++) {

        if (api_parameter(&value[i], "write=", &write) == NGX_OK
            || api_parameter(&value[i], "remote=", &remote) == NGX_OK)
        {
            continue;
        }

        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid parameter \"%V\"", &value[i]);
        return NGX_CONF_ERROR;
    }

    ilcf->api_write = (write == 1);
    ilcf->api_remote = (remote == 1);

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


/* on or off, once */

static ngx_int_t
api_parameter(ngx_str_t *value, char *name, ngx_uint_t *flag)
{
    u_char  *p;
    size_t   len;

    len = ngx_strlen(name);

    if (*flag != NGX_CONF_UNSET_UINT
        || ngx_strncmp(value->data, name, len) != 0)
    {
        return NGX_DECLINED;
    }

    p = value->data + len;

    if (ngx_strcmp(p, "on") == 0) {
        *flag = 1;

    } else if (ngx_strcmp(p, "off") == 0) {
        *flag = 0;

    } else {
        return NGX_DECLINED;
    }

    return NGX_OK;
}


/* the server's names are gone once the configuration is read */

ngx_int_t
ngx_http_idempotency_api_merge(ngx_conf_t *cf,
    ngx_http_idempotency_loc_conf_t *conf)
{
    ngx_str_t                 *name, *own;
    ngx_uint_t                 i;
    ngx_http_server_name_t    *names;
    ngx_http_core_srv_conf_t  *cscf;

    cscf = ngx_http_conf_get_module_srv_conf(cf, ngx_http_core_module);

    conf->api_names = ngx_array_create(cf->pool, 1 + cscf->server_names.nelts,
                                       sizeof(ngx_str_t));
    if (conf->api_names == NULL) {
        return NGX_ERROR;
    }

    names = cscf->server_names.elts;

    for (i = 0; i < cscf->server_names.nelts; i++) {
        name = &names[i].name;

        /* those that many hosts match, and "_", stand for any */

        if (name->len == 0
#if (NGX_PCRE)
            || names[i].regex
#endif
            || name->data[0] == '.' || name->data[0] == '*'
            || name->data[name->len - 1] == '*'
            || (name->len == 1 && name->data[0] == '_'))
        {
            continue;
        }

        own = ngx_array_push(conf->api_names);
        if (own == NULL) {
            return NGX_ERROR;
        }

        *own = *name;
    }

    return NGX_OK;
}


static ngx_int_t
api_handler(ngx_http_request_t *r)
{
    ngx_int_t                            rc;
    ngx_str_t                            path;
    api_route_t                          route;
    ngx_http_idempotency_loc_conf_t     *conf;
    ngx_http_idempotency_api_refusal_e   why;

    path = api_path(r);

    api_route(r, &path, &route);

    why = api_may_ask(r);

    if (why != NGX_HTTP_IDEMPOTENCY_API_ALLOWED) {
        rc = ngx_http_discard_request_body(r);

        if (rc != NGX_OK) {
            return rc;
        }

        return (route.what == api_page) ? api_refuse_page(r, why)
                                        : ngx_http_idempotency_api_refuse(r,
                                                                         why);
    }

    rc = api_methods(r, &route);

    if (rc != NGX_DECLINED) {
        return rc;
    }

    switch (route.what) {

    case api_page:
        return path.len ? api_send_page(r) : api_redirect(r);

    case api_metrics:
        return ngx_http_idempotency_metrics(r);

    case api_zones:
        return zones_send(r, NULL);

    case api_zone:
        return (r->method == NGX_HTTP_PUT)
               ? api_agree(r, route.store)
               : zones_send(r, route.store);

    case api_records:
        return api_send_records(r, route.store);

    default: /* api_outcome */

        conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

        return conf->store
               ? ngx_http_idempotency_own_outcome(r)
               : ngx_http_idempotency_api_refuse(r,
                                            NGX_HTTP_IDEMPOTENCY_API_NO_ZONE);
    }
}


/*
 * A module can't see whether access rules stand before this location.  So the
 * API answers this machine alone, unless "remote=on" says that there are rules.
 * A page of another site in a browser of this machine is refused in any case:
 * it has this machine's address, and by a trick of DNS its name.
 */

static ngx_http_idempotency_api_refusal_e
api_may_ask(ngx_http_request_t *r)
{
    ngx_uint_t                        changes;
    ngx_http_idempotency_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    changes = (r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD)) ? 0 : 1;

    if (!conf->api_remote && !api_is_from_here(r)) {
        return NGX_HTTP_IDEMPOTENCY_API_REMOTE;
    }

    if ((!conf->api_remote || changes) && !api_is_ours(r, conf->api_names)) {
        return NGX_HTTP_IDEMPOTENCY_API_HOST;
    }

    if (changes && !api_is_own_page(r)) {
        return NGX_HTTP_IDEMPOTENCY_API_ORIGIN;
    }

    return NGX_HTTP_IDEMPOTENCY_API_ALLOWED;
}


/* by all that is known: the socket, what realip and the PROXY protocol say, and
   what a proxy adds */

static ngx_uint_t
api_is_from_here(ngx_http_request_t *r)
{
    ngx_str_t                  *name;
    ngx_uint_t                  i, key;
    ngx_list_part_t            *part;
    ngx_table_elt_t            *h;
    ngx_http_variable_value_t  *vv;

    static ngx_str_t  addresses[] = {
        ngx_string("realip_remote_addr"),
        ngx_string("proxy_protocol_addr"),
        ngx_null_string
    };

    if (!api_is_loopback(r->connection->sockaddr)) {
        return 0;
    }

    for (name = addresses; name->len; name++) {
        key = ngx_hash_key(name->data, name->len);

        vv = ngx_http_get_variable(r, name, key);

        if (vv == NULL) {
            return 0;
        }

        if (!vv->not_found && vv->len
            && !api_is_loopback_text(r, vv->data, vv->len))
        {
            return 0;
        }
    }

    for (part = &r->headers_in.headers.part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {

            if (api_header_is(&h[i], "via")
                || api_header_is(&h[i], "forwarded")
                || api_header_is(&h[i], "x-real-ip")
                || (h[i].key.len > 12
                    && ngx_strncmp(h[i].lowcase_key, "x-forwarded-", 12)
                       == 0))
            {
                return 0;
            }
        }
    }

    return 1;
}


/* a name that was made to lead here is another one */

static ngx_uint_t
api_is_ours(ngx_http_request_t *r, ngx_array_t *names)
{
    ngx_str_t   *host, *name;
    ngx_uint_t   i;

    host = &r->headers_in.server;

    if (host->len == 9 && ngx_strncmp(host->data, "localhost", 9) == 0) {
        return 1;
    }

    name = names->elts;

    for (i = 0; i < names->nelts; i++) {
        if (name[i].len == host->len
            && ngx_strncmp(name[i].data, host->data, host->len) == 0)
        {
            return 1;
        }
    }

    return host->len && api_is_loopback_text(r, host->data, host->len);
}


/* a browser says whose page asks; a program says nothing */

static ngx_uint_t
api_is_own_page(ngx_http_request_t *r)
{
    u_char           *p, *last;
    ngx_str_t        *host;
    ngx_uint_t        i, told;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h, *origin;

    told = 0;
    origin = NULL;

    for (part = &r->headers_in.headers.part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {

            if (api_header_is(&h[i], "sec-fetch-site")) {
                told = 1;

                if (!api_value_is(&h[i], "same-origin")
                    && !api_value_is(&h[i], "none"))
                {
                    return 0;
                }

            } else if (api_header_is(&h[i], "origin")) {

                if (origin) {
                    return 0;
                }

                origin = &h[i];
            }
        }
    }

    if (told || origin == NULL) {
        return 1;
    }

    /* of HTTP/3 the name alone is known */

    host = r->headers_in.host ? &r->headers_in.host->value
                              : &r->headers_in.server;

    last = origin->value.data + origin->value.len;
    p = ngx_strlcasestrn(origin->value.data, last, (u_char *) "://", 2);

    return p && (size_t) (last - p - 3) == host->len
           && ngx_strncasecmp(p + 3, host->data, host->len) == 0;
}


static ngx_uint_t
api_header_is(ngx_table_elt_t *h, char *name)
{
    return h->key.len == ngx_strlen(name)
           && ngx_strncmp(h->lowcase_key, name, h->key.len) == 0;
}


static ngx_uint_t
api_value_is(ngx_table_elt_t *h, char *value)
{
    return h->value.len == ngx_strlen(value)
           && ngx_strncmp(h->value.data, value, h->value.len) == 0;
}


/* an address, of IPv6 in brackets or without, or that of a socket in the file
   system */

static ngx_uint_t
api_is_loopback_text(ngx_http_request_t *r, u_char *text, size_t len)
{
    ngx_addr_t  addr;

    if (len >= 5 && ngx_strncmp(text, "unix:", 5) == 0) {
        return 1;
    }

    if (len > 2 && text[0] == '[' && text[len - 1] == ']') {
        text++;
        len -= 2;
    }

    return ngx_parse_addr(r->pool, &addr, text, len) == NGX_OK
           && api_is_loopback(addr.sockaddr);
}


static ngx_uint_t
api_is_loopback(struct sockaddr *sa)
{
    u_char  *p;

    switch (sa->sa_family) {

    case AF_INET:
        p = (u_char *) &((struct sockaddr_in *) sa)->sin_addr;
        return p[0] == 127;

#if (NGX_HAVE_INET6)

    case AF_INET6:
        p = ((struct sockaddr_in6 *) sa)->sin6_addr.s6_addr;

        return IN6_IS_ADDR_LOOPBACK(&((struct sockaddr_in6 *) sa)->sin6_addr)
               || (IN6_IS_ADDR_V4MAPPED(
                                    &((struct sockaddr_in6 *) sa)->sin6_addr)
                   && p[12] == 127);

#endif

#if (NGX_HAVE_UNIX_DOMAIN)

    case AF_UNIX:
        return 1;

#endif
    }

    return 0;
}


/* NGX_DECLINED: what is asked for is there, and may be asked for so */

static ngx_int_t
api_methods(ngx_http_request_t *r, api_route_t *route)
{
    ngx_int_t                            rc;
    ngx_uint_t                           writes;
    ngx_http_idempotency_loc_conf_t     *conf;
    ngx_http_idempotency_api_refusal_e   why;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    writes = (conf->api_write && (route->what == api_records
                                  || route->what == api_zone));

    if (writes && route->store && r->method == NGX_HTTP_PUT) {
        /* its body says something */
        return NGX_DECLINED;
    }

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    if (route->what == api_nothing) {
        why = NGX_HTTP_IDEMPOTENCY_API_NOT_FOUND;

    } else if (route->name.len && route->store == NULL) {
        why = NGX_HTTP_IDEMPOTENCY_API_NO_ZONE;

    } else if ((r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))
               || (writes && route->what == api_records
                   && r->method == NGX_HTTP_DELETE))
    {
        return NGX_DECLINED;

    } else if (writes && route->what == api_zone) {
        why = NGX_HTTP_IDEMPOTENCY_API_METHOD_PUT;

    } else {
        why = writes ? NGX_HTTP_IDEMPOTENCY_API_METHOD_WRITE
                     : NGX_HTTP_IDEMPOTENCY_API_METHOD;
    }

    return ngx_http_idempotency_api_refuse(r, why);
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

    if (path->len < 2) {
        route->what = (path->len == 0 || path->data[0] == '/') ? api_page
                                                               : api_nothing;
        return;
    }

    if (path->data[0] != '/') {
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
    static ngx_str_t  records = ngx_string("/records");

    route->what = api_zone;
    route->name = *path;

    if (path->len > records.len
        && ngx_strncmp(path->data + path->len - records.len, records.data,
                       records.len)
           == 0)
    {
        route->what = api_records;
        route->name.len -= records.len;
    }

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


/* what its style and its script may do stands in the page, too */

static ngx_int_t
api_send_page(ngx_http_request_t *r)
{
    ngx_buf_t    *b;
    ngx_chain_t   out;

    b = ngx_calloc_buf(r->pool);

    if (b == NULL
        || ngx_http_idempotency_api_header(r, "Content-Security-Policy",
                                           &ngx_http_idempotency_page_policy)
           != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    b->pos = ngx_http_idempotency_page_html;
    b->last = b->pos + sizeof(ngx_http_idempotency_page_html);
    b->memory = 1;

    out.buf = b;
    out.next = NULL;

    ngx_str_set(&r->headers_out.charset, "utf-8");
    r->headers_out.status = NGX_HTTP_OK;

    return api_respond(r, "text/html", sizeof(ngx_http_idempotency_page_html),
                       &out);
}


/* for people, too: a browser shows it */

static ngx_int_t
api_refuse_page(ngx_http_request_t *r, ngx_http_idempotency_api_refusal_e why)
{
    ngx_http_idempotency_text_t  text;

    ngx_http_idempotency_text_init(&text, r->pool);
    ngx_http_idempotency_text_add(&text, "%V.\n%V\n",
                                  &api_refusals[why].title,
                                  &api_refusals[why].detail);

    if (text.failed) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->err_status = 0;
    r->headers_out.status = api_refusals[why].status;

    return api_respond(r, "text/plain", text.size, text.out);
}


/* the page asks for what stands beside it */

static ngx_int_t
api_redirect(ngx_http_request_t *r)
{
    u_char           *p;
    ngx_str_t         uri;
    ngx_table_elt_t  *location;

    uri.len = r->uri.len + 2 * ngx_escape_uri(NULL, r->uri.data, r->uri.len,
                                              NGX_ESCAPE_URI)
              + 1;

    uri.data = ngx_pnalloc(r->pool, uri.len);
    if (uri.data == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    p = (u_char *) ngx_escape_uri(uri.data, r->uri.data, r->uri.len,
                                  NGX_ESCAPE_URI);
    *p = '/';

    ngx_http_clear_location(r);

    location = ngx_list_push(&r->headers_out.headers);
    if (location == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_memzero(location, sizeof(ngx_table_elt_t));

    location->hash = 1;
    ngx_str_set(&location->key, "Location");
    location->value = uri;

    r->headers_out.location = location;

    return NGX_HTTP_MOVED_PERMANENTLY;
}


static ngx_int_t
api_send_records(ngx_http_request_t *r, ngx_idempotency_store_t *store)
{
    u_char  token[NGX_IDEMPOTENCY_DIGEST_LEN];

    switch (ngx_http_idempotency_api_token(r, 0, token)) {

    case NGX_OK:
        return ngx_http_idempotency_record(r, store, token);

    case NGX_DECLINED:
        break;

    case NGX_ABORT:
        return ngx_http_idempotency_api_refuse(r,
                                            NGX_HTTP_IDEMPOTENCY_API_BAD_KEY);

    default:
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD)) {
        return ngx_http_idempotency_records(r, store);
    }

    /* not all of them at once */

    if (ngx_http_discard_request_body(r) != NGX_OK) {
        r->keepalive = 0;
    }

    return ngx_http_idempotency_api_refuse(r, NGX_HTTP_IDEMPOTENCY_API_NO_KEY);
}


ngx_int_t
ngx_http_idempotency_api_token(ngx_http_request_t *r, ngx_uint_t header_only,
    u_char *token)
{
    uint64_t                          made;
    ngx_int_t                         rc;
    ngx_str_t                         key, scope, value;
    ngx_http_idempotency_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    rc = api_key(r, header_only, &key);

    if (rc != NGX_OK) {
        return rc;
    }

    if (ngx_http_idempotency_key_parse(r, conf, &key, &made)
        != NGX_HTTP_IDEMPOTENCY_STATUS_NEW)
    {
        return NGX_ABORT;
    }

    if (!header_only
        && ngx_http_arg(r, (u_char *) "scope", 5, &value) == NGX_OK)
    {
        scope = value;

        if (api_unescape(r, &scope) != NGX_OK) {
            return NGX_ERROR;
        }

    } else if (ngx_http_idempotency_scope(r, conf, &scope) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_http_idempotency_token(conf, &scope, &key, token);

    return NGX_OK;
}


/* a store that is another one than it was, or has forgotten, is taken as it
   is: what it does not know is executed again */

static ngx_int_t
api_agree(ngx_http_request_t *r, ngx_idempotency_store_t *store)
{
    ngx_int_t  rc;

    ngx_http_set_ctx(r, store, ngx_http_idempotency_filter_module);

    r->request_body_in_single_buf = 1;

    rc = ngx_http_read_client_request_body(r, api_agree_body);

    return (rc >= NGX_HTTP_SPECIAL_RESPONSE) ? rc : NGX_DONE;
}


static void
api_agree_body(ngx_http_request_t *r)
{
    size_t                    i, n;
    ngx_int_t                 rc;
    ngx_str_t                 body;
    ngx_idempotency_store_t  *store;

    static u_char  agrees[] = "{\"store\":\"accept\"}";

    store = ngx_http_get_module_ctx(r, ngx_http_idempotency_filter_module);

    rc = ngx_http_idempotency_whole_body(r, API_AGREE_BODY, &body);

    if (rc == NGX_ERROR) {
        ngx_http_finalize_request(r, NGX_HTTP_INTERNAL_SERVER_ERROR);
        return;
    }

    /* with white space or without: there is none within its words */

    n = 0;

    for (i = 0; rc == NGX_OK && i < body.len; i++) {

        if (body.data[i] > ' ') {

            if (n == sizeof(agrees) - 1 || body.data[i] != agrees[n++]) {
                rc = NGX_DECLINED;
            }
        }
    }

    if (rc != NGX_OK || n != sizeof(agrees) - 1) {
        rc = ngx_http_idempotency_api_refuse(r,
                                         NGX_HTTP_IDEMPOTENCY_API_BAD_STORE);

    } else if (ngx_idempotency_store_agree(store) != NGX_OK) {
        rc = ngx_http_idempotency_api_refuse(r,
                                      NGX_HTTP_IDEMPOTENCY_API_NOT_REFUSED);

    } else {
        ngx_log_error(NGX_LOG_NOTICE, r->connection->log, 0,
                      "idempotency: the store of zone \"%V\" was agreed to "
                      "by hand", &store->name);

        rc = ngx_http_idempotency_api_done(r);
    }

    ngx_http_finalize_request(r, rc);
}


static ngx_int_t
api_key(ngx_http_request_t *r, ngx_uint_t header_only, ngx_str_t *key)
{
    ngx_table_elt_t                     *h;
    ngx_http_idempotency_header_iter_t   it;

    static ngx_str_t  name = ngx_string("idempotency_key");

    ngx_http_idempotency_header_iter(&it, r);

    h = ngx_http_idempotency_header_next(&it, &name);

    if (h) {
        *key = h->value;

        return (key->len
                && ngx_http_idempotency_header_next(&it, &name) == NULL)
               ? NGX_OK : NGX_ABORT;
    }

    if (header_only
        || ngx_http_arg(r, (u_char *) "key", 3, key) != NGX_OK)
    {
        return NGX_DECLINED;
    }

    if (api_unescape(r, key) != NGX_OK) {
        return NGX_ERROR;
    }

    return key->len ? NGX_OK : NGX_ABORT;
}


/* a plus is one: it may well stand in a key */

static ngx_int_t
api_unescape(ngx_http_request_t *r, ngx_str_t *value)
{
    u_char  *src, *dst;

    src = value->data;

    dst = ngx_pnalloc(r->pool, value->len + 1);
    if (dst == NULL) {
        return NGX_ERROR;
    }

    value->data = dst;

    ngx_unescape_uri(&dst, &src, value->len, 0);

    value->len = dst - value->data;
    *dst = '\0';

    return NGX_OK;
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


/* done: a response without a body */

ngx_int_t
ngx_http_idempotency_api_done(ngx_http_request_t *r)
{
    ngx_str_t  value;

    ngx_str_set(&value, "no-store");

    if (ngx_http_idempotency_api_header(r, "Cache-Control", &value)
        != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->headers_out.status = NGX_HTTP_NO_CONTENT;
    r->header_only = 1;

    return ngx_http_send_header(r);
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

        ngx_str_set(&allow, "GET, HEAD, PUT, DELETE");

        if (why == NGX_HTTP_IDEMPOTENCY_API_METHOD_PUT) {
            allow.len = sizeof("GET, HEAD, PUT") - 1;

        } else if (why != NGX_HTTP_IDEMPOTENCY_API_METHOD_WRITE) {
            allow.len = sizeof("GET, HEAD") - 1;
        }

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


static ngx_int_t
zones_send(ngx_http_request_t *r, ngx_idempotency_store_t *store)
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
    text_json(text, &zone->store->name);
    ngx_http_idempotency_text_add(text,
                  "\",\"available\":%s,"
                  "\"bytes\":{\"size\":%uz,\"used\":%uz,\"free\":%uz},"
                  "\"evict\":\"%s\",\"records\":{",
                  zone->known ? "true" : "false",
                  f->size, f->used, f->size - f->used,
                  f->evict ? "responses" : "off");

    for (i = 0; i < NGX_IDEMPOTENCY_STATS_RECORDS; i++) {
        ngx_http_idempotency_text_add(text, "%s\"%s\":%uL", i ? "," : "",
                                      ngx_http_idempotency_outcomes[i].name,
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

    for (i = 1; i < NGX_HTTP_IDEMPOTENCY_STATUSES; i++) {
        ngx_http_idempotency_text_add(text, "%s\"%V\":%uA", i > 1 ? "," : "",
                                      &ngx_http_idempotency_statuses[i].name,
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


void
ngx_http_idempotency_text_init(ngx_http_idempotency_text_t *text,
    ngx_pool_t *pool)
{
    ngx_memzero(text, sizeof(ngx_http_idempotency_text_t));

    text->pool = pool;
    text->next = &text->out;
}


void
ngx_http_idempotency_text_add(ngx_http_idempotency_text_t *text,
    const char *fmt, ...)
{
    u_char   *p;
    va_list   args;

    if (text_room(text, NGX_HTTP_IDEMPOTENCY_TEXT_LINE) != NGX_OK) {
        return;
    }

    p = text->buf->last;

    va_start(args, fmt);
    text->buf->last = ngx_vslprintf(p, text->buf->end, fmt, args);
    va_end(args);

    text->size += text->buf->last - p;
}


/* within a string of JSON */

static void
text_json(ngx_http_idempotency_text_t *text, ngx_str_t *value)
{
    u_char     *p;
    uintptr_t   more;

    more = ngx_escape_json(NULL, value->data, value->len);

    p = ngx_pnalloc(text->pool, value->len + more);

    if (p == NULL) {
        text->failed = 1;
        return;
    }

    (void) ngx_escape_json(p, value->data, value->len);

    text_bytes(text, p, value->len + more);
}


/* within a label's value, as Prometheus has it */

void
ngx_http_idempotency_text_label(ngx_http_idempotency_text_t *text,
    ngx_str_t *value)
{
    size_t  i;

    for (i = 0; i < value->len; i++) {

        switch (value->data[i]) {

        case '\n':
            text_bytes(text, (u_char *) "\\n", 2);
            break;

        case '\\':
        case '"':
            text_bytes(text, (u_char *) "\\", 1);
            /* fall through */

        default:
            text_bytes(text, &value->data[i], 1);
        }
    }
}


static void
text_bytes(ngx_http_idempotency_text_t *text, u_char *p, size_t len)
{
    size_t  n;

    while (len && text_room(text, 1) == NGX_OK) {

        n = ngx_min(len, (size_t) (text->buf->end - text->buf->last));

        text->buf->last = ngx_cpymem(text->buf->last, p, n);
        text->size += n;

        p += n;
        len -= n;
    }
}


static ngx_int_t
text_room(ngx_http_idempotency_text_t *text, size_t size)
{
    ngx_chain_t  *cl;

    if (text->failed) {
        return NGX_ERROR;
    }

    if (text->buf && (size_t) (text->buf->end - text->buf->last) >= size) {
        return NGX_OK;
    }

    cl = ngx_alloc_chain_link(text->pool);

    text->buf = cl ? ngx_create_temp_buf(text->pool,
                                         NGX_HTTP_IDEMPOTENCY_TEXT_BUFFER)
                   : NULL;

    if (text->buf == NULL) {
        text->failed = 1;
        return NGX_ERROR;
    }

    cl->buf = text->buf;
    cl->next = NULL;

    *text->next = cl;
    text->next = &cl->next;

    return NGX_OK;
}
