
/*
 * idempotency_api: its resources, who may ask for them, and the answers; and
 * idempotency_guard, a script for browsers.  The script and the operator's
 * page are served from memory.
 *
 * A query for records is a sequence of operations of a store, each of which
 * the store may answer later.  A query has memory of its own, and runs to its
 * end even if its request ends before: half of a change may be worse than all
 * of it.
 *
 * A list of records has a line of JSON for each.  A page of the list is
 * gathered some records at a time, and the worker does other work in between.
 * The page is sent when the beginning of the next page is known.
 *
 * A single record, named by its key, is shown, forgotten, or settled if it is
 * in doubt.  To settle a record, the query claims it and then records its
 * outcome: so of two who settle it at the same time one fails.
 *
 * A client that lost its response may ask for the outcome of its own key.  It
 * learns nothing if it has no identity, or another one than the client that
 * bound the key.
 */


#include "ngx_http_idempotency_observe.h"
#include "request/ngx_http_idempotency_response.h"
#include "store/ngx_idempotency_tier.h"
#include "ngx_http_idempotency_page_html.h"
#include "ngx_http_idempotency_guard_js.h"

#include <openssl/crypto.h>


/* the longest sensible body: an outcome, or {"store":"accept"}, and white
   space */

#define API_BODY           64

#define TEXT_BUFFER        16384
#define TEXT_LINE          2048

/* records in a page: by default, and at most */

#define RECORDS_LIMIT      1000
#define RECORDS_MOST       10000

/* records asked for at once, of memory and of the backing; empty answers in a
   row before the worker does other work */

#define RECORDS_STEP       16
#define RECORDS_BEHIND     NGX_IDEMPOTENCY_TIER_BATCH
#define RECORDS_TRIES      16

/* in milliseconds: the pause for other work; the time until a claim that waits
   is made again */

#define QUERY_PAUSE        1
#define QUERY_AGAIN        500


/* the resources */

typedef enum {
    api_nothing = 0,
    api_page,
    /* the page, without the slash behind its name */
    api_redirect,
    api_metrics,
    api_zones,
    api_zone,
    api_records,
    api_outcome
} api_what_e;

typedef struct {
    api_what_e                      what;
    /* of a zone */
    ngx_str_t                       name;
    ngx_idempotency_store_t        *store;
} api_route_t;

/* a location with one of these last names has only this resource */

typedef struct {
    ngx_str_t                       name;
    api_what_e                      what;
} api_name_t;

typedef enum {
    /* no refusals: the request is allowed; there is no memory */
    api_allowed = 0,
    api_no_memory,
    api_not_found,
    api_no_zone,
    api_no_record,
    api_method,
    api_missing,
    api_malformed,
    api_bad_argument,
    api_bad_outcome,
    api_bad_store,
    api_not_refused,
    api_no_backing,
    api_not_in_doubt,
    api_unavailable,
    api_remote,
    api_host,
    api_origin
} api_refusal_e;

typedef struct {
    ngx_uint_t                      status;
    ngx_str_t                       name;
    ngx_str_t                       title;
    ngx_str_t                       detail;
} api_refusal_t;


typedef struct query_s  query_t;

struct query_s {
    ngx_pool_t                     *pool;
    /* NULL: the request has ended */
    ngx_http_request_t             *request;
    ngx_http_cleanup_t             *cleanup;
    ngx_idempotency_store_t        *store;

    /* starts the query's next operation, and returns the engine's result */
    ngx_int_t                     (*ask)(query_t *query);
    /* Reads the operation's result.  NGX_OK: there is a next operation;
       NGX_BUSY: there is one after other work; NGX_DONE: the query is over. */
    ngx_int_t                     (*answered)(query_t *query);
    /* sends the result, unless the request has ended */
    ngx_int_t                     (*respond)(query_t *query);

    ngx_idempotency_op_t           *op;
    ngx_event_t                     event;
};


typedef struct {
    query_t                         query;
    ngx_idempotency_list_t          list;
    ngx_idempotency_listed_t        listed[RECORDS_BEHIND];
    ngx_uint_t                      limit;
    ngx_uint_t                      n;
    ngx_uint_t                      tries;
    ngx_http_idempotency_text_t     text;
} records_t;


typedef enum {
    record_finds = 0,
    record_forgets,
    record_claims,
    record_settles
} record_stage_e;

typedef struct {
    query_t                         query;
    record_stage_e                  stage;
    u_char                          token[NGX_IDEMPOTENCY_DIGEST_LEN];

    /* PUT: a record in doubt becomes done, with this status, or released */
    ngx_uint_t                      settles;
    ngx_uint_t                      done;
    ngx_uint_t                      status;
    /* of the location */
    ngx_msec_t                      window;
    ngx_msec_t                      lease;

    /* a client asks for its own key, with this identity */
    ngx_uint_t                      own;
    u_char                          identity[NGX_IDEMPOTENCY_IDENTITY_LEN];

    /* why the query failed */
    api_refusal_e                   why;

    ngx_idempotency_find_t          find;
    ngx_idempotency_forget_t        forget;
    ngx_idempotency_claim_t         claim;
    ngx_idempotency_complete_t      complete;
} record_t;


static ngx_int_t api_parameter(ngx_str_t *value, char *name,
    ngx_uint_t *flag);
static ngx_int_t api_handler(ngx_http_request_t *r);
static void api_put(ngx_http_request_t *r);
static void api_route(ngx_http_request_t *r, api_route_t *route);
static ngx_str_t api_path(ngx_http_request_t *r);
static api_what_e api_stands_for(ngx_str_t *name);
static api_refusal_e api_may_ask(ngx_http_request_t *r);
static ngx_uint_t api_is_from_here(ngx_http_request_t *r);
static ngx_uint_t api_is_ours(ngx_http_request_t *r, ngx_array_t *names);
static ngx_uint_t api_is_own_page(ngx_http_request_t *r);
static ngx_uint_t api_is_loopback_text(ngx_http_request_t *r, u_char *text,
    size_t len);
static ngx_uint_t api_is_loopback(struct sockaddr *sa);
static api_refusal_e api_methods(ngx_http_request_t *r, api_route_t *route);
static ngx_int_t api_send_page(ngx_http_request_t *r);
static ngx_int_t api_send_redirect(ngx_http_request_t *r);
static ngx_int_t api_agree(ngx_http_request_t *r,
    ngx_idempotency_store_t *store);
static ngx_int_t guard_handler(ngx_http_request_t *r);

static ngx_int_t api_by_key(ngx_http_request_t *r,
    ngx_idempotency_store_t *store);
static api_refusal_e api_token(ngx_http_request_t *r, ngx_uint_t own,
    u_char *token);
static api_refusal_e api_key(ngx_http_request_t *r, ngx_uint_t own,
    ngx_str_t *key);
static ngx_int_t api_unescape(ngx_http_request_t *r, ngx_str_t *value);

static ngx_int_t records_list(ngx_http_request_t *r,
    ngx_idempotency_store_t *store);
static api_refusal_e records_arguments(ngx_http_request_t *r,
    records_t *records);
static ngx_int_t records_cursor(ngx_str_t *value,
    ngx_idempotency_list_t *list);
static ngx_int_t records_ask(query_t *query);
static ngx_int_t records_answered(query_t *query);
static ngx_int_t records_respond(query_t *query);
static ngx_int_t records_link(ngx_http_request_t *r, records_t *records);
static void records_row(ngx_http_idempotency_text_t *text, u_char *token,
    u_char *fingerprint, ngx_idempotency_found_t *found);
static uint64_t records_clock(void);

static ngx_int_t record_query(ngx_http_request_t *r,
    ngx_idempotency_store_t *store, u_char *token);
static api_refusal_e record_outcome(ngx_http_request_t *r, record_t *one);
static api_refusal_e record_identity(ngx_http_request_t *r,
    u_char *identity);
static ngx_int_t record_ask(query_t *query);
static void record_op(query_t *query, ngx_idempotency_op_t *op);
static ngx_int_t record_answered(query_t *query);
static ngx_int_t record_found(record_t *one);
static ngx_int_t record_refused(record_t *one, api_refusal_e why);
static ngx_int_t record_respond(query_t *query);
static void record_log(ngx_http_request_t *r, record_t *one);
static void record_own(ngx_http_idempotency_text_t *text, record_t *one);

static void *query_create(ngx_http_request_t *r,
    ngx_idempotency_store_t *store, size_t size);
static ngx_int_t query_begin(query_t *query);
static void query_op(query_t *query, ngx_idempotency_op_t *op);
static void query_answered(ngx_idempotency_op_t *op);
static void query_event(ngx_event_t *ev);
static void query_resume(query_t *query, ngx_uint_t answered);
static void query_run(query_t *query, ngx_uint_t answered);
static void query_gone(void *data);
static void query_end(query_t *query);

static ngx_int_t api_refuse(ngx_http_request_t *r, api_refusal_e why);
static ngx_int_t api_send(ngx_http_request_t *r,
    ngx_http_idempotency_text_t *text, ngx_uint_t status, const char *type);
static ngx_int_t api_send_done(ngx_http_request_t *r);
static ngx_table_elt_t *api_header(ngx_http_request_t *r, const char *name,
    ngx_str_t *value);
static void text_init(ngx_http_idempotency_text_t *text, ngx_pool_t *pool);
static void text_memory(ngx_http_idempotency_text_t *text, u_char *p,
    size_t len);
static void text_link(ngx_http_idempotency_text_t *text, ngx_buf_t *b);
static ngx_int_t text_send(ngx_http_request_t *r,
    ngx_http_idempotency_text_t *text, ngx_uint_t status, const char *type);


static api_name_t  api_names[] = {
    { ngx_string("metrics"), api_metrics },
    { ngx_string("zones"), api_zones },
    { ngx_string("outcome"), api_outcome },
    { ngx_null_string, api_nothing }
};

#define refusal(what, code, is, why)                                         \
    [api_##what] = { code, ngx_string(#what), ngx_string(is), ngx_string(why) }

static api_refusal_t  api_refusals[] = {

    refusal(not_found, NGX_HTTP_NOT_FOUND, "There is nothing here",
            "See the documentation of idempotency_api for what is there."),

    refusal(no_zone, NGX_HTTP_NOT_FOUND, "There is no such zone",
            "No idempotency_zone of this configuration has that name."),

    refusal(no_record, NGX_HTTP_NOT_FOUND, "There is no such record",
            "The key is not bound, or not for who asks."),

    refusal(method, NGX_HTTP_NOT_ALLOWED, "This method is not possible here",
            "The Allow header tells which ones are."),

    refusal(missing, NGX_HTTP_BAD_REQUEST, "Idempotency key required",
            "It tells which record is meant."),

    refusal(malformed, NGX_HTTP_BAD_REQUEST, "Malformed idempotency key",
            "The idempotency key is malformed: it is too long, has another "
            "format than required, or was sent more than once."),

    refusal(bad_argument, NGX_HTTP_BAD_REQUEST, "An argument is malformed",
            "See the documentation of idempotency_api for what may be asked."),

    refusal(bad_outcome, NGX_HTTP_BAD_REQUEST, "This is no outcome",
            "What is in doubt is settled as done or released."),

    refusal(bad_store, NGX_HTTP_BAD_REQUEST, "This says nothing of the store",
            "What can be said is {\"store\":\"accept\"}."),

    refusal(not_refused, NGX_HTTP_CONFLICT, "There is nothing to agree to",
            "The store is the one that it was, or there is none, or it cannot "
            "be used as it is: then the error log says why."),

    refusal(no_backing, NGX_HTTP_BAD_REQUEST, "Nothing stands behind this zone",
            "All that it knows is in this machine's memory."),

    refusal(not_in_doubt, NGX_HTTP_CONFLICT, "The outcome is not in doubt",
            "Only what is in doubt can be settled. Somebody else may have "
            "settled it, or taken it over."),

    refusal(unavailable, NGX_HTTP_SERVICE_UNAVAILABLE,
            "The store does not answer",
            "It is out of reach, or an operator must see to it: the error log "
            "says why."),

    refusal(remote, NGX_HTTP_FORBIDDEN, "Only this machine may ask",
            "This request comes from another one, or through a proxy. Where "
            "access rules stand before this location, "
            "\"idempotency_api remote=on;\" says so."),

    refusal(host, NGX_HTTP_FORBIDDEN, "This host is none of the server's names",
            "The Host header must name this machine (localhost, a loopback "
            "address) or be one of \"server_name\", exactly; with "
            "\"idempotency_api remote=on;\" only of a request that changes "
            "something."),

    refusal(origin, NGX_HTTP_FORBIDDEN, "A page of another origin asks",
            "What changes something is asked for by a page of this origin, or "
            "by a program.")
};

#undef refusal


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

        if (api_parameter(&value[i], "write=", &write) != NGX_OK
            && api_parameter(&value[i], "remote=", &remote) != NGX_OK)
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\"", &value[i]);
            return NGX_CONF_ERROR;
        }
    }

    ilcf->api_write = (write == 1);
    ilcf->api_remote = (remote == 1);

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    /* the URI behind the location's name tells the resource: a prefix is
       needed */

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


/* a parameter is "on" or "off", and is given once */

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

    *flag = (ngx_strcmp(p, "on") == 0);

    return (*flag || ngx_strcmp(p, "off") == 0) ? NGX_OK : NGX_DECLINED;
}


/* copies the server's names, as nginx frees them after the configuration; "if"
   and "limit_except" are locations of their own, and answer as the one around
   them */

ngx_int_t
ngx_http_idempotency_api_merge(ngx_conf_t *cf,
    ngx_http_idempotency_loc_conf_t *prev,
    ngx_http_idempotency_loc_conf_t *conf)
{
    ngx_str_t                 *name, *own;
    ngx_uint_t                 i;
    ngx_http_server_name_t    *names;
    ngx_http_core_loc_conf_t  *clcf;
    ngx_http_core_srv_conf_t  *cscf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (prev->api && clcf->noname && clcf->handler == NULL) {
        clcf->handler = api_handler;

        conf->api = 1;
        conf->api_write = prev->api_write;
        conf->api_remote = prev->api_remote;
    }

    if (!conf->api) {
        return NGX_OK;
    }

    cscf = ngx_http_conf_get_module_srv_conf(cf, ngx_http_core_module);

    conf->api_names = ngx_array_create(cf->pool, 1 + cscf->server_names.nelts,
                                       sizeof(ngx_str_t));
    if (conf->api_names == NULL) {
        return NGX_ERROR;
    }

    own = ngx_array_push(conf->api_names);
    ngx_str_set(own, "localhost");

    names = cscf->server_names.elts;

    for (i = 0; i < cscf->server_names.nelts; i++) {
        name = &names[i].name;

        /* wildcards, patterns and "_" may stand for any host */

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
        *own = *name;
    }

    return NGX_OK;
}


char *
ngx_http_idempotency_guard(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (clcf->handler == guard_handler) {
        return "is duplicate";
    }

    clcf->handler = guard_handler;

    return NGX_CONF_OK;
}


static ngx_int_t
api_handler(ngx_http_request_t *r)
{
    ngx_int_t                         rc;
    api_route_t                       route;
    api_refusal_e                     why;
    ngx_http_idempotency_text_t       text;
    ngx_http_idempotency_loc_conf_t  *conf;

    api_route(r, &route);

    why = api_may_ask(r);

    if (why == api_allowed) {
        why = api_methods(r, &route);

        /* the body of a PUT has its argument */

        if (why == api_allowed && r->method == NGX_HTTP_PUT) {
            r->request_body_in_single_buf = 1;

            rc = ngx_http_read_client_request_body(r, api_put);

            return (rc >= NGX_HTTP_SPECIAL_RESPONSE) ? rc : NGX_DONE;
        }
    }

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    text_init(&text, r->pool);

    if (why != api_allowed) {

        if (api_refusals[why].status != NGX_HTTP_FORBIDDEN
            || (route.what != api_page && route.what != api_redirect))
        {
            return api_refuse(r, why);
        }

        /* the page is for people: its refusal is plain text */

        ngx_http_idempotency_text_add(&text, "%V.\n%V\n",
                                      &api_refusals[why].title,
                                      &api_refusals[why].detail);

        r->err_status = 0;

        return api_send(r, &text, api_refusals[why].status, "text/plain");
    }

    switch (route.what) {

    case api_page:
        return api_send_page(r);

    case api_redirect:
        return api_send_redirect(r);

    case api_metrics:
        ngx_http_idempotency_metrics(r, &text);
        return api_send(r, &text, NGX_HTTP_OK, "text/plain; version=0.0.4");

    case api_zones:
    case api_zone:
        ngx_http_idempotency_zones(r, &text, route.store);
        return api_send(r, &text, NGX_HTTP_OK, "application/json");

    case api_records:
        return api_by_key(r, route.store);

    default: /* api_outcome */

        conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

        return conf->store ? api_by_key(r, NULL) : api_refuse(r, api_no_zone);
    }
}


static void
api_put(ngx_http_request_t *r)
{
    ngx_int_t    rc;
    api_route_t  route;

    api_route(r, &route);

    rc = (route.what == api_zone) ? api_agree(r, route.store)
                                  : api_by_key(r, route.store);

    ngx_http_finalize_request(r, rc);
}


static void
api_route(ngx_http_request_t *r, api_route_t *route)
{
    ngx_str_t                          path;
    ngx_uint_t                         i;
    ngx_idempotency_store_t           *store;
    ngx_http_idempotency_store_t     **stores;
    ngx_http_idempotency_main_conf_t  *imcf;

    static ngx_str_t  zones = ngx_string("/zones/");
    static ngx_str_t  records = ngx_string("/records");

    ngx_memzero(route, sizeof(api_route_t));

    path = api_path(r);

    if (path.len == 0) {
        route->what = api_redirect;
        return;
    }

    if (path.data[0] != '/') {
        return;
    }

    if (path.len <= zones.len
        || ngx_strncmp(path.data, zones.data, zones.len) != 0)
    {
        path.data++;
        path.len--;

        route->what = path.len ? api_stands_for(&path) : api_page;
        return;
    }

    route->what = api_zone;
    route->name.data = path.data + zones.len;
    route->name.len = path.len - zones.len;

    if (route->name.len > records.len
        && ngx_strncmp(path.data + path.len - records.len, records.data,
                       records.len)
           == 0)
    {
        route->what = api_records;
        route->name.len -= records.len;
    }

    imcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    stores = imcf->stores.elts;

    for (i = 0; i < imcf->stores.nelts; i++) {
        store = &stores[i]->store;

        if (ngx_idempotency_same(&store->name, &route->name)) {
            route->store = store;
        }
    }
}


/*
 * The URI behind the location's name, with or without a slash at the end.  If
 * the name ends with a single resource, that resource is a part of the path.
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


static api_what_e
api_stands_for(ngx_str_t *name)
{
    api_name_t  *one;

    for (one = api_names; one->name.len; one++) {
        if (ngx_idempotency_same(&one->name, name)) {
            break;
        }
    }

    return one->what;
}


/*
 * A module can't see whether a location has access rules.  So the API answers
 * this machine alone, unless "remote=on" says that there are rules.  A page of
 * another site in this machine's browser is refused, too: it has this
 * machine's address, and by DNS rebinding its name.
 */

static api_refusal_e
api_may_ask(ngx_http_request_t *r)
{
    ngx_uint_t                        changes;
    ngx_http_idempotency_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    changes = (r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD)) ? 0 : 1;

    if (!conf->api_remote && !api_is_from_here(r)) {
        return api_remote;
    }

    if ((!conf->api_remote || changes) && !api_is_ours(r, conf->api_names)) {
        return api_host;
    }

    return (changes && !api_is_own_page(r)) ? api_origin : api_allowed;
}


/* whether the request comes from this machine by all signs: the socket,
   realip, the PROXY protocol, and the header lines of proxies */

static ngx_uint_t
api_is_from_here(ngx_http_request_t *r)
{
    size_t                      len;
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

    /* a name that ends with "-" is a prefix */

    static ngx_str_t  added[] = {
        ngx_string("via"),
        ngx_string("forwarded"),
        ngx_string("x-real-ip"),
        ngx_string("x-forwarded-"),
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

            for (name = added; name->len; name++) {
                len = name->len;

                if ((h[i].key.len == len
                     || (h[i].key.len > len && name->data[len - 1] == '-'))
                    && ngx_strncmp(h[i].lowcase_key, name->data, len) == 0)
                {
                    return 0;
                }
            }
        }
    }

    return 1;
}


/* whether Host is a name of this server: a name that was rebound to this
   machine is none */

static ngx_uint_t
api_is_ours(ngx_http_request_t *r, ngx_array_t *names)
{
    ngx_str_t   *host, *name;
    ngx_uint_t   i;

    host = &r->headers_in.server;
    name = names->elts;

    for (i = 0; i < names->nelts; i++) {
        if (ngx_idempotency_same(&name[i], host)) {
            return 1;
        }
    }

    return host->len && api_is_loopback_text(r, host->data, host->len);
}


/* browsers send Sec-Fetch-Site or Origin with a page's request, programs send
   neither */

static ngx_uint_t
api_is_own_page(ngx_http_request_t *r)
{
    u_char           *p, *last;
    ngx_str_t        *host;
    ngx_uint_t        told;
    ngx_table_elt_t  *h, *origin;

    h = NULL;
    told = 0;

    while ((h = ngx_http_idempotency_header_next(r, "sec_fetch_site", h))
           != NULL)
    {
        told = 1;

        if (!ngx_idempotency_is(&h->value, "same-origin")
            && !ngx_idempotency_is(&h->value, "none"))
        {
            return 0;
        }
    }

    origin = ngx_http_idempotency_header_next(r, "origin", NULL);

    if (origin && ngx_http_idempotency_header_next(r, "origin", origin)) {
        return 0;
    }

    if (told || origin == NULL) {
        return 1;
    }

    /* an HTTP/3 request may have no Host line: then the name has no port */

    host = r->headers_in.host ? &r->headers_in.host->value
                              : &r->headers_in.server;

    last = origin->value.data + origin->value.len;
    p = ngx_strlcasestrn(origin->value.data, last, (u_char *) "://", 2);

    return p && (size_t) (last - p - 3) == host->len
           && ngx_strncasecmp(p + 3, host->data, host->len) == 0;
}


/* an address of this machine, IPv6 with or without brackets, or a unix
   socket */

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


/* whether the resource exists and takes this method */

static api_refusal_e
api_methods(ngx_http_request_t *r, api_route_t *route)
{
    ngx_str_t                         allow;
    ngx_uint_t                        methods;
    ngx_http_idempotency_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    if (route->what == api_nothing) {
        return api_not_found;
    }

    if (route->name.len && route->store == NULL) {
        return api_no_zone;
    }

    methods = NGX_HTTP_GET|NGX_HTTP_HEAD;
    ngx_str_set(&allow, "GET, HEAD");

    if (conf->api_write && route->what == api_zone) {
        methods |= NGX_HTTP_PUT;
        ngx_str_set(&allow, "GET, HEAD, PUT");

    } else if (conf->api_write && route->what == api_records) {
        methods |= NGX_HTTP_PUT|NGX_HTTP_DELETE;
        ngx_str_set(&allow, "GET, HEAD, PUT, DELETE");
    }

    if (r->method & methods) {
        return api_allowed;
    }

    return api_header(r, "Allow", &allow) ? api_method : api_no_memory;
}


/* the policy in the header is the one in the page */

static ngx_int_t
api_send_page(ngx_http_request_t *r)
{
    ngx_http_idempotency_text_t  text;

    text_init(&text, r->pool);
    text_memory(&text, ngx_http_idempotency_page_html,
                sizeof(ngx_http_idempotency_page_html));

    if (api_header(r, "Content-Security-Policy",
                   &ngx_http_idempotency_page_policy)
        == NULL)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_str_set(&r->headers_out.charset, "utf-8");

    return api_send(r, &text, NGX_HTTP_OK, "text/html");
}


/* the page needs the slash, as it fetches its figures by relative URLs */

static ngx_int_t
api_send_redirect(ngx_http_request_t *r)
{
    u_char     *p;
    ngx_str_t   uri;

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

    r->headers_out.location = api_header(r, "Location", &uri);

    return r->headers_out.location ? NGX_HTTP_MOVED_PERMANENTLY
                                   : NGX_HTTP_INTERNAL_SERVER_ERROR;
}


/* Agrees to a store that is another one than before, or has forgotten records:
   what the store doesn't know is executed again. */

static ngx_int_t
api_agree(ngx_http_request_t *r, ngx_idempotency_store_t *store)
{
    size_t     i, n;
    ngx_int_t  rc;
    ngx_str_t  body;

    static u_char  agrees[] = "{\"store\":\"accept\"}";

    rc = ngx_http_idempotency_whole_body(r, API_BODY, &body);

    if (rc == NGX_ERROR) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    /* white space is ignored, as no word has any */

    n = 0;

    for (i = 0; rc == NGX_OK && i < body.len; i++) {

        if (body.data[i] > ' ') {

            if (n == sizeof(agrees) - 1 || body.data[i] != agrees[n++]) {
                rc = NGX_DECLINED;
            }
        }
    }

    if (rc != NGX_OK || n != sizeof(agrees) - 1) {
        return api_refuse(r, api_bad_store);
    }

    if (ngx_idempotency_store_agree(store) != NGX_OK) {
        return api_refuse(r, api_not_refused);
    }

    ngx_log_error(NGX_LOG_NOTICE, r->connection->log, 0,
                  "idempotency: the store of zone \"%V\" was agreed to "
                  "by hand", &store->name);

    return api_send_done(r);
}


static ngx_int_t
guard_handler(ngx_http_request_t *r)
{
    ngx_int_t                    rc;
    ngx_http_idempotency_text_t  text;

    static ngx_str_t  hour = ngx_string("public, max-age=3600");

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {
        return NGX_HTTP_NOT_ALLOWED;
    }

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    text_init(&text, r->pool);
    text_memory(&text, ngx_http_idempotency_guard_js,
                sizeof(ngx_http_idempotency_guard_js));

    r->headers_out.etag = api_header(r, "ETag",
                                     &ngx_http_idempotency_guard_etag);

    if (r->headers_out.etag == NULL
        || api_header(r, "Cache-Control", &hour) == NULL)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_str_set(&r->headers_out.charset, "utf-8");

    return text_send(r, &text, NGX_HTTP_OK, "text/javascript");
}


/* The record of a key, or a list of the store's records.  Without a store: the
   record of the client's own key in the location's store. */

static ngx_int_t
api_by_key(ngx_http_request_t *r, ngx_idempotency_store_t *store)
{
    u_char         token[NGX_IDEMPOTENCY_DIGEST_LEN];
    api_refusal_e  why;

    why = api_token(r, store == NULL, token);

    if (why == api_allowed) {
        return record_query(r, store, token);
    }

    if (why == api_missing && store
        && (r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD)))
    {
        return records_list(r, store);
    }

    /* a PUT or DELETE without a key would change all records */

    return api_refuse(r, why);
}


static api_refusal_e
api_token(ngx_http_request_t *r, ngx_uint_t own, u_char *token)
{
    uint64_t                          made;
    ngx_str_t                         key, arg, *scope;
    api_refusal_e                     why;
    ngx_http_idempotency_loc_conf_t  *conf;

    scope = NULL;
    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    why = api_key(r, own, &key);

    if (why != api_allowed) {
        return why;
    }

    if (ngx_http_idempotency_key_parse(r, conf, &key, &made)
        != NGX_HTTP_IDEMPOTENCY_STATUS_NEW)
    {
        return api_malformed;
    }

    if (!own && ngx_http_arg(r, (u_char *) "scope", 5, &arg) == NGX_OK) {

        if (api_unescape(r, &arg) != NGX_OK) {
            return api_no_memory;
        }

        scope = &arg;
    }

    return (ngx_http_idempotency_token(r, conf, scope, &key, token) == NGX_OK)
           ? api_allowed : api_no_memory;
}


/* a client's own key is in the header only, as access logs have arguments */

static api_refusal_e
api_key(ngx_http_request_t *r, ngx_uint_t own, ngx_str_t *key)
{
    ngx_table_elt_t  *h;

    static char  name[] = "idempotency_key";

    h = ngx_http_idempotency_header_next(r, name, NULL);

    if (h) {
        *key = h->value;

        if (ngx_http_idempotency_header_next(r, name, h)) {
            return api_malformed;
        }

    } else if (own || ngx_http_arg(r, (u_char *) "key", 3, key) != NGX_OK) {
        return api_missing;

    } else if (api_unescape(r, key) != NGX_OK) {
        return api_no_memory;
    }

    return key->len ? api_allowed : api_malformed;
}


/* "+" is not decoded, as a key may contain it */

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


static ngx_int_t
records_list(ngx_http_request_t *r, ngx_idempotency_store_t *store)
{
    records_t      *records;
    api_refusal_e   why;

    records = query_create(r, store, sizeof(records_t));
    if (records == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    records->query.ask = records_ask;
    records->query.answered = records_answered;
    records->query.respond = records_respond;

    text_init(&records->text, r->pool);

    why = records_arguments(r, records);

    if (why != api_allowed) {
        query_end(&records->query);
        return api_refuse(r, why);
    }

    return query_begin(&records->query);
}


static api_refusal_e
records_arguments(ngx_http_request_t *r, records_t *records)
{
    ngx_int_t                  n;
    ngx_str_t                  value;
    ngx_idempotency_store_t   *store;
    ngx_idempotency_figures_t  figures;

    records->limit = RECORDS_LIMIT;

    if (ngx_http_arg(r, (u_char *) "limit", 5, &value) == NGX_OK) {

        n = ngx_atoi(value.data, value.len);

        if (n == NGX_ERROR || n == 0) {
            return api_bad_argument;
        }

        records->limit = ngx_min(n, RECORDS_MOST);
    }

    if (ngx_http_arg(r, (u_char *) "cursor", 6, &value) == NGX_OK
        && records_cursor(&value, &records->list) != NGX_OK)
    {
        return api_bad_argument;
    }

    /* records in this machine's memory, or in the backing */

    if (ngx_http_arg(r, (u_char *) "tier", 4, &value) != NGX_OK
        || ngx_idempotency_is(&value, "memory"))
    {
        return api_allowed;
    }

    if (!ngx_idempotency_is(&value, "backing")) {
        return api_bad_argument;
    }

    records->list.behind = 1;

    store = records->query.store;

    (void) store->engine->figures(store, ngx_current_msec, &figures);

    return figures.kind ? api_allowed : api_no_backing;
}


/* the cursor of a link: a number, and a token in hexadecimal digits */

static ngx_int_t
records_cursor(ngx_str_t *value, ngx_idempotency_list_t *list)
{
    u_char     *p;
    size_t      i;
    ngx_int_t   n;

    p = ngx_strlchr(value->data, value->data + value->len, '-');

    if (p == NULL
        || value->data + value->len - p != 1 + 2 * NGX_IDEMPOTENCY_DIGEST_LEN)
    {
        return NGX_ERROR;
    }

    n = ngx_atoi(value->data, p - value->data);

    if (n == NGX_ERROR || n == 0) {
        return NGX_ERROR;
    }

    list->cursor = n;
    p++;

    for (i = 0; i < NGX_IDEMPOTENCY_DIGEST_LEN; i++) {

        n = ngx_hextoi(p + 2 * i, 2);

        if (n == NGX_ERROR) {
            return NGX_ERROR;
        }

        list->op.token[i] = (u_char) n;
    }

    return NGX_OK;
}


static ngx_int_t
records_ask(query_t *query)
{
    records_t *records = (records_t *) query;

    ngx_idempotency_list_t  *list;

    list = &records->list;

    list->listed = records->listed;
    list->n = list->behind ? RECORDS_BEHIND : RECORDS_STEP;
    list->n = ngx_min(list->n, records->limit - records->n);

    query_op(query, &list->op);

    return query->store->engine->list(query->store, list);
}


static ngx_int_t
records_answered(query_t *query)
{
    records_t *records = (records_t *) query;

    ngx_uint_t                 i;
    ngx_idempotency_list_t    *list;
    ngx_idempotency_listed_t  *listed;

    list = &records->list;

    /* the text was the request's, and has gone with it */

    if (query->request == NULL || list->op.result != NGX_IDEMPOTENCY_OK) {
        return NGX_DONE;
    }

    for (i = 0; i < list->n; i++) {
        listed = &records->listed[i];

        records_row(&records->text, listed->token, listed->fingerprint,
                    &listed->found);
    }

    records->n += list->n;

    if (list->cursor == 0 || records->n >= records->limit) {
        return NGX_DONE;
    }

    if (list->n || ++records->tries > RECORDS_TRIES) {
        records->tries = 0;
        return NGX_BUSY;
    }

    return NGX_OK;
}


static ngx_int_t
records_respond(query_t *query)
{
    records_t *records = (records_t *) query;

    ngx_http_request_t  *r;

    r = query->request;

    if (records->list.op.result != NGX_IDEMPOTENCY_OK) {
        return api_refuse(r, api_unavailable);
    }

    if (records->list.cursor && records_link(r, records) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return api_send(r, &records->text, NGX_HTTP_OK, "application/x-ndjson");
}


/* the link to the next page: this URI with another cursor */

static ngx_int_t
records_link(ngx_http_request_t *r, records_t *records)
{
    u_char     *p;
    ngx_str_t   uri, link;

    uri = r->unparsed_uri;

    p = ngx_strlchr(uri.data, uri.data + uri.len, '?');

    if (p) {
        uri.len = p - uri.data;
    }

    link.data = ngx_pnalloc(r->pool,
                            3 * uri.len + 2 * NGX_INT_T_LEN
                            + 2 * NGX_IDEMPOTENCY_DIGEST_LEN
                            + sizeof("<?limit=&cursor=-&tier=backing>; "
                                     "rel=\"next\""));
    if (link.data == NULL) {
        return NGX_ERROR;
    }

    p = link.data;

    *p++ = '<';
    p = ngx_http_idempotency_problem_uri(p, &uri);
    p = ngx_sprintf(p, "?limit=%ui&cursor=%ui-%*xs%s>; rel=\"next\"",
                    records->limit, records->list.cursor,
                    (size_t) NGX_IDEMPOTENCY_DIGEST_LEN,
                    records->list.op.token,
                    records->list.behind ? "&tier=backing" : "");

    link.len = p - link.data;

    return api_header(r, "Link", &link) ? NGX_OK : NGX_ERROR;
}


/* times are of the wall clock; an unknown value is null */

static void
records_row(ngx_http_idempotency_text_t *text, u_char *token,
    u_char *fingerprint, ngx_idempotency_found_t *found)
{
    uint64_t     now, at, ends;
    const char  *fmt;

    now = records_clock();
    at = now - found->age;
    ends = now + found->left;

    ngx_http_idempotency_text_add(text,
                  "{\"token\":\"%*xs\",\"fingerprint\":\"%*xs\","
                  "\"outcome\":\"%s\",\"status\":",
                  (size_t) NGX_IDEMPOTENCY_DIGEST_LEN, token,
                  (size_t) NGX_IDEMPOTENCY_DIGEST_LEN, fingerprint,
                  ngx_http_idempotency_outcomes[found->outcome].name);

    fmt = found->status ? "%ui" : "null";
    ngx_http_idempotency_text_add(text, fmt, found->status);

    ngx_http_idempotency_text_add(text, ",\"recorded\":%uL.%03uL,\"expires\":",
                                  at / 1000, at % 1000);

    fmt = (found->outcome == NGX_IDEMPOTENCY_PENDING) ? "null" : "%uL.%03uL";
    ngx_http_idempotency_text_add(text, fmt, ends / 1000, ends % 1000);

    ngx_http_idempotency_text_add(text,
                  ",\"replays\":%ui,\"fence\":%uL,\"size\":%uz,\"owner\":",
                  found->replays, found->fence, found->response.len);

    if (found->owner) {
        ngx_http_idempotency_text_add(text, "%P}\n", found->owner);

    } else {
        fmt = found->instance ? "\"%016xL\"}\n" : "null}\n";
        ngx_http_idempotency_text_add(text, fmt, found->instance);
    }
}


/*
 * The wall clock at ngx_current_msec, from which ages are counted.  The
 * milliseconds of the two clocks begin at other moments: only if the difference
 * is rounded as a whole has a record the same times whenever it is looked at.
 */

static uint64_t
records_clock(void)
{
    int64_t          ahead;
    uint64_t         now;
    struct timespec  wall, steady;

    (void) clock_gettime(CLOCK_REALTIME, &wall);
    (void) clock_gettime(CLOCK_MONOTONIC, &steady);

    ahead = (int64_t) (wall.tv_sec - steady.tv_sec) * 1000000
            + (wall.tv_nsec - steady.tv_nsec) / 1000;

    now = (uint64_t) steady.tv_sec * 1000 + steady.tv_nsec / 1000000;

    return now - (ngx_msec_t) ((ngx_msec_t) now - ngx_current_msec)
           + (ahead + 500) / 1000;
}


/* without a store: the client's own key in the location's store */

static ngx_int_t
record_query(ngx_http_request_t *r, ngx_idempotency_store_t *store,
    u_char *token)
{
    record_t                         *one;
    api_refusal_e                     why;
    ngx_http_idempotency_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    one = query_create(r, store ? store : conf->store, sizeof(record_t));
    if (one == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    one->query.ask = record_ask;
    one->query.answered = record_answered;
    one->query.respond = record_respond;

    ngx_memcpy(one->token, token, NGX_IDEMPOTENCY_DIGEST_LEN);

    why = api_allowed;

    if (store == NULL) {
        one->own = 1;
        why = record_identity(r, one->identity);

    } else if (r->method == NGX_HTTP_PUT) {
        one->settles = 1;
        one->lease = conf->lease;
        why = record_outcome(r, one);

        if (ngx_http_idempotency_window(r, conf, &one->window) != NGX_OK) {
            why = api_no_memory;
        }

    } else if (r->method == NGX_HTTP_DELETE) {
        one->stage = record_forgets;
    }

    if (why != api_allowed) {
        query_end(&one->query);
        return api_refuse(r, why);
    }

    return query_begin(&one->query);
}


/* the outcome is "done" or "released", in an argument or in the body */

static api_refusal_e
record_outcome(ngx_http_request_t *r, record_t *one)
{
    ngx_int_t  n;
    ngx_str_t  word, value;

    if (ngx_http_arg(r, (u_char *) "outcome", 7, &word) != NGX_OK) {

        n = ngx_http_idempotency_whole_body(r, API_BODY, &word);

        if (n != NGX_OK) {
            return (n == NGX_ERROR) ? api_no_memory : api_bad_outcome;
        }
    }

    while (word.len && word.data[word.len - 1] <= ' ') {
        word.len--;
    }

    while (word.len && word.data[0] <= ' ') {
        word.data++;
        word.len--;
    }

    one->status = NGX_HTTP_OK;

    if (ngx_http_arg(r, (u_char *) "status", 6, &value) == NGX_OK) {

        n = ngx_atoi(value.data, value.len);

        if (n < 200 || n > 599) {
            return api_bad_argument;
        }

        one->status = n;
    }

    one->done = ngx_idempotency_is(&word, "done");

    return (one->done || ngx_idempotency_is(&word, "released"))
           ? api_allowed : api_bad_outcome;
}


/* the identity that a protected request of this client would have */

static api_refusal_e
record_identity(ngx_http_request_t *r, u_char *identity)
{
    ngx_int_t                    rc;
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ngx_pcalloc(r->pool, sizeof(ngx_http_idempotency_ctx_t));
    if (ctx == NULL) {
        return api_no_memory;
    }

    ctx->request = r;
    ctx->conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    rc = ngx_http_idempotency_identity(r, ctx);

    if (rc == NGX_ERROR) {
        return api_no_memory;
    }

    ngx_memcpy(identity, ctx->claim.parts.identity,
               NGX_IDEMPOTENCY_IDENTITY_LEN);

    return (rc == NGX_DECLINED) ? api_no_record : api_allowed;
}


static ngx_int_t
record_ask(query_t *query)
{
    record_t *one = (record_t *) query;

    ngx_int_t                        rc;
    ngx_idempotency_store_t         *store;
    const ngx_idempotency_engine_t  *engine;

    store = query->store;
    engine = store->engine;

    switch (one->stage) {

    case record_finds:
        record_op(query, &one->find.op);
        return engine->find(store, &one->find);

    case record_forgets:
        record_op(query, &one->forget.op);
        return engine->forget(store, &one->forget);

    case record_claims:
        record_op(query, &one->claim.op);
        one->claim.pool = query->pool;

        rc = engine->claim(store, &one->claim);

        if (rc == NGX_AGAIN) {
            /* the same claim again is safe */
            ngx_add_timer(&query->event, QUERY_AGAIN);
        }

        return rc;

    default: /* record_settles */
        record_op(query, &one->complete.op);
        return engine->complete(store, &one->complete);
    }
}


static void
record_op(query_t *query, ngx_idempotency_op_t *op)
{
    record_t *one = (record_t *) query;

    ngx_memcpy(op->token, one->token, NGX_IDEMPOTENCY_DIGEST_LEN);
    query_op(query, op);
}


static ngx_int_t
record_answered(query_t *query)
{
    record_t *one = (record_t *) query;

    switch (query->op->result) {

    case NGX_IDEMPOTENCY_OK:
    case NGX_IDEMPOTENCY_TRIMMED:
        return NGX_DONE;

    case NGX_IDEMPOTENCY_CHANGED:
        return NGX_OK;

    case NGX_IDEMPOTENCY_BOUND:
        return (one->stage == record_finds)
               ? record_found(one) : record_refused(one, api_not_in_doubt);

    case NGX_IDEMPOTENCY_CLAIMED:

        one->stage = record_settles;

        one->complete.fence = one->claim.fence;
        one->complete.outcome = NGX_IDEMPOTENCY_NOT_KEPT;
        one->complete.status = one->status;
        one->complete.release = !one->done;
        one->complete.settled = !one->done;

        return NGX_OK;

    case NGX_IDEMPOTENCY_ABSENT:
        return record_refused(one, api_no_record);

    case NGX_IDEMPOTENCY_CONFLICT:
    case NGX_IDEMPOTENCY_VERSION:
    case NGX_IDEMPOTENCY_EXPIRED:
    case NGX_IDEMPOTENCY_STALE:
        return record_refused(one, api_not_in_doubt);

    default: /* NGX_IDEMPOTENCY_UNAVAILABLE */
        return record_refused(one, api_unavailable);
    }
}


/*
 * The record to settle is claimed as it was found.  The claim fails if the
 * record has ended since, and the record keeps at least the rest of its time.
 */

static ngx_int_t
record_found(record_t *one)
{
    ngx_idempotency_find_t   *find;
    ngx_idempotency_claim_t  *claim;

    find = &one->find;
    claim = &one->claim;

    /* in constant time: a client can't find out an identity bit by bit */

    if (one->own
        && CRYPTO_memcmp(one->identity, find->parts.identity,
                         NGX_IDEMPOTENCY_IDENTITY_LEN)
           != 0)
    {
        return record_refused(one, api_no_record);
    }

    if (!one->settles) {
        return NGX_DONE;
    }

    if (find->found.outcome != NGX_IDEMPOTENCY_IN_DOUBT) {
        return record_refused(one, api_not_in_doubt);
    }

    ngx_memcpy(claim->fingerprint, find->fingerprint,
               NGX_IDEMPOTENCY_DIGEST_LEN);
    claim->parts = find->parts;
    claim->window = one->window;
    claim->least = find->found.left;
    claim->lease = one->lease;
    claim->retry = 1;
    claim->old = 1;

    one->stage = record_claims;

    return NGX_OK;
}


static ngx_int_t
record_refused(record_t *one, api_refusal_e why)
{
    one->why = why;

    return NGX_DONE;
}


static ngx_int_t
record_respond(query_t *query)
{
    record_t *one = (record_t *) query;

    ngx_http_request_t           *r;
    ngx_http_idempotency_text_t   text;

    r = query->request;

    if (one->own && query->op->result != NGX_IDEMPOTENCY_UNAVAILABLE
        && (one->why == api_allowed
            || query->op->result == NGX_IDEMPOTENCY_ABSENT))
    {
        text_init(&text, r->pool);
        record_own(&text, one);
        return api_send(r, &text, NGX_HTTP_OK, "application/json");
    }

    if (one->why != api_allowed) {
        return api_refuse(r, one->why);
    }

    if (one->stage != record_finds) {
        record_log(r, one);
        return api_send_done(r);
    }

    text_init(&text, r->pool);
    records_row(&text, one->token, one->find.fingerprint, &one->find.found);

    return api_send(r, &text, NGX_HTTP_OK, "application/json");
}


/* the fence of the forgotten record, or of this query's own claim */

static void
record_log(ngx_http_request_t *r, record_t *one)
{
    u_char    *last, fence[sizeof(", fence: ") + NGX_INT64_LEN];
    uint64_t   number;

    number = (one->stage == record_forgets) ? one->forget.was
                                            : one->claim.fence;

    last = number ? ngx_sprintf(fence, ", fence: %uL", number) : fence;

    ngx_log_error(NGX_LOG_NOTICE, r->connection->log, 0,
                  "idempotency: a token was %s by hand, token: %*xs, "
                  "zone: \"%V\"%*s",
                  (one->stage == record_forgets) ? "forgotten"
                  : one->done ? "settled as done"
                  : "released",
                  (size_t) NGX_IDEMPOTENCY_DIGEST_LEN, one->token,
                  &one->query.store->name, (size_t) (last - fence), fence);
}


/* "outcome" says whether the operation was executed, "kept" whether its
   response can be replayed */

static void
record_own(ngx_http_idempotency_text_t *text, record_t *one)
{
    const char               *fmt;
    ngx_idempotency_found_t  *found;

    static const char  *outcomes[] = {
        [NGX_IDEMPOTENCY_PENDING] = "pending\"",
        [NGX_IDEMPOTENCY_DONE] = "done\",\"kept\":true",
        [NGX_IDEMPOTENCY_NOT_KEPT] = "done\",\"kept\":false",
        [NGX_IDEMPOTENCY_IN_DOUBT] = "in_doubt\""
    };

    found = &one->find.found;

    if (one->why == api_no_record) {
        ngx_http_idempotency_text_add(text, "{\"outcome\":\"unknown\"}\n");
        return;
    }

    ngx_http_idempotency_text_add(text, "{\"outcome\":\"%s,\"status\":",
                                  outcomes[found->outcome]);

    fmt = found->status ? "%ui" : "null";
    ngx_http_idempotency_text_add(text, fmt, found->status);

    /* in seconds, rounded up: by then the token is fresh */

    fmt = (found->outcome == NGX_IDEMPOTENCY_PENDING)
          ? ",\"expires\":null}\n" : ",\"expires\":%M}\n";
    ngx_http_idempotency_text_add(text, fmt, (found->left + 999) / 1000);
}


static void *
query_create(ngx_http_request_t *r, ngx_idempotency_store_t *store, size_t size)
{
    query_t             *query;
    ngx_pool_t          *pool;
    ngx_http_cleanup_t  *cln;

    cln = ngx_http_cleanup_add(r, 0);
    if (cln == NULL) {
        return NULL;
    }

    pool = ngx_create_pool(1024, ngx_cycle->log);
    if (pool == NULL) {
        return NULL;
    }

    query = ngx_pcalloc(pool, size);

    if (query == NULL) {
        ngx_destroy_pool(pool);
        return NULL;
    }

    query->pool = pool;
    query->request = r;
    query->cleanup = cln;
    query->store = store;

    query->event.handler = query_event;
    query->event.data = query;
    query->event.log = ngx_cycle->log;

    cln->handler = query_gone;
    cln->data = query;

    return query;
}


/* called by a content handler, which returns the result */

static ngx_int_t
query_begin(query_t *query)
{
    query->request->main->count++;

    query_run(query, 0);

    return NGX_DONE;
}


/* prepares the query's next operation */

static void
query_op(query_t *query, ngx_idempotency_op_t *op)
{
    op->now = ngx_current_msec;
    op->handler = query_answered;
    op->data = query;
    op->result = NGX_IDEMPOTENCY_UNAVAILABLE;

    query->op = op;
}


static void
query_answered(ngx_idempotency_op_t *op)
{
    query_t *query = op->data;

    if (query->event.timer_set) {
        ngx_del_timer(&query->event);
    }

    query_resume(query, 1);
}


/* the pause is over: starts the next operation, or the same claim again */

static void
query_event(ngx_event_t *ev)
{
    query_resume(ev->data, 0);
}


static void
query_resume(query_t *query, ngx_uint_t answered)
{
    ngx_connection_t  *c;

    if (query->request == NULL) {
        query_run(query, answered);
        return;
    }

    c = query->request->connection;

    ngx_http_set_log_request(c->log, query->request);

    query_run(query, answered);

    ngx_http_run_posted_requests(c);
}


/* Runs until the query waits for an answer, or is over and finalizes its
   request. */

static void
query_run(query_t *query, ngx_uint_t answered)
{
    ngx_int_t            rc;
    ngx_http_request_t  *r;

    for ( ;; ) {

        if (!answered) {
            rc = query->ask(query);

            if (rc == NGX_AGAIN) {
                return;
            }

            if (rc != NGX_OK) {
                query->op->result = NGX_IDEMPOTENCY_UNAVAILABLE;
            }
        }

        answered = 0;

        rc = query->answered(query);

        if (rc == NGX_BUSY) {
            ngx_add_timer(&query->event, QUERY_PAUSE);
            return;
        }

        if (rc == NGX_DONE) {
            break;
        }
    }

    r = query->request;
    rc = r ? query->respond(query) : NGX_OK;

    query_end(query);

    if (r) {
        ngx_http_finalize_request(r, rc);
    }
}


static void
query_gone(void *data)
{
    query_t  *query = data;

    if (query) {
        query->request = NULL;
    }
}


static void
query_end(query_t *query)
{
    if (query->request) {
        query->cleanup->data = NULL;
    }

    ngx_destroy_pool(query->pool);
}


/* a problem document, whatever the client accepts, as clients are programs */

static ngx_int_t
api_refuse(ngx_http_request_t *r, api_refusal_e why)
{
    ngx_str_t                         body, *detail;
    api_refusal_t                    *refusal;
    ngx_http_idempotency_text_t       text;
    ngx_http_idempotency_problem_t    problem;
    ngx_http_idempotency_loc_conf_t  *conf;

    refusal = &api_refusals[why];
    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    problem.docs = &conf->docs;
    problem.name = &refusal->name;
    problem.title = &refusal->title;
    problem.status = refusal->status;
    problem.retryable = (why == api_unavailable);

    /* escaped: a quote takes two bytes */

    detail = &problem.detail;
    detail->data = ngx_pnalloc(r->pool, 2 * refusal->detail.len);

    if (why == api_no_memory || detail->data == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    detail->len = (u_char *) ngx_escape_json(detail->data,
                                             refusal->detail.data,
                                             refusal->detail.len)
                  - detail->data;

    if (ngx_http_idempotency_problem_document(r, &problem, &body) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    text_init(&text, r->pool);
    text_memory(&text, body.data, body.len);

    /* the status of an error_page that led here must not replace this one */

    r->err_status = 0;

    return api_send(r, &text, refusal->status, "application/problem+json");
}


/* sends 204 */

static ngx_int_t
api_send_done(ngx_http_request_t *r)
{
    ngx_http_idempotency_text_t  text;

    text_init(&text, r->pool);

    return api_send(r, &text, NGX_HTTP_NO_CONTENT, NULL);
}


/* no cache may keep an answer that changes all the time */

static ngx_int_t
api_send(ngx_http_request_t *r, ngx_http_idempotency_text_t *text,
    ngx_uint_t status, const char *type)
{
    static ngx_str_t  no_store = ngx_string("no-store");

    if (api_header(r, "Cache-Control", &no_store) == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return text_send(r, text, status, type);
}


static ngx_table_elt_t *
api_header(ngx_http_request_t *r, const char *name, ngx_str_t *value)
{
    ngx_str_t  key;

    key.data = (u_char *) name;
    key.len = ngx_strlen(name);

    return ngx_http_idempotency_header_push(&r->headers_out.headers, &key,
                                            value);
}


static void
text_init(ngx_http_idempotency_text_t *text, ngx_pool_t *pool)
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

    if (text->buf == NULL || text->buf->end - text->buf->last < TEXT_LINE) {
        text->buf = ngx_create_temp_buf(text->pool, TEXT_BUFFER);
        text_link(text, text->buf);
    }

    if (text->failed) {
        return;
    }

    p = text->buf->last;

    va_start(args, fmt);
    text->buf->last = ngx_vslprintf(p, text->buf->end, fmt, args);
    va_end(args);

    text->size += text->buf->last - p;
}


/* sends bytes that stay in place until the request ends */

static void
text_memory(ngx_http_idempotency_text_t *text, u_char *p, size_t len)
{
    ngx_buf_t  *b;

    b = ngx_calloc_buf(text->pool);

    if (b) {
        b->pos = p;
        b->last = p + len;
        b->memory = 1;
    }

    text->size += len;

    text_link(text, b);
}


static void
text_link(ngx_http_idempotency_text_t *text, ngx_buf_t *b)
{
    ngx_chain_t  *cl;

    cl = ngx_alloc_chain_link(text->pool);

    if (cl == NULL || b == NULL) {
        text->failed = 1;
        return;
    }

    cl->buf = b;
    cl->next = NULL;

    *text->next = cl;
    text->next = &cl->next;
}


static ngx_int_t
text_send(ngx_http_request_t *r, ngx_http_idempotency_text_t *text,
    ngx_uint_t status, const char *type)
{
    ngx_int_t     rc;
    ngx_chain_t  *cl;

    if (text->failed) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->headers_out.status = status;

    if (type) {
        r->headers_out.content_type.data = (u_char *) type;
        r->headers_out.content_type.len = ngx_strlen(type);
        r->headers_out.content_type_len = r->headers_out.content_type.len;
        r->headers_out.content_type_lowcase = NULL;

        r->headers_out.content_length_n = text->size;
    }

    if (text->size == 0) {
        r->header_only = 1;
    }

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    for (cl = text->out; cl->next; cl = cl->next) { /* void */ }

    cl->buf->last_buf = (r == r->main);
    cl->buf->last_in_chain = 1;

    return ngx_http_output_filter(r, text->out);
}
