
/*
 * The directives of a location: their table, their defaults, and the setters
 * that nginx lacks; and the module's hooks into nginx.  A request's way
 * through the module begins in request/access.c.
 */


#include "ngx_http_idempotency.h"
#include "store/file/ngx_idempotency_file.h"
#include "store/redis/ngx_idempotency_backing_redis.h"


/*
 * ngx_msec_t values are compared by half of their range.  A window runs from
 * the outcome, and is compared with the time of the claim, hence the day less.
 */

#define NGX_HTTP_IDEMPOTENCY_TIME_MAX                                        \
    (NGX_MAX_INT_T_VALUE - 24 * 3600 * 1000)

#define status(id, name, code)                                               \
    [NGX_HTTP_IDEMPOTENCY_STATUS_##id] = { ngx_string(name),                 \
                                           ngx_string(#id "_DRY_RUN"), code }

ngx_http_idempotency_status_t
    ngx_http_idempotency_statuses[NGX_HTTP_IDEMPOTENCY_STATUSES] = {
    status(CONFLICT, "conflict", NGX_HTTP_CONFLICT),
    status(IN_PROGRESS, "in_progress", NGX_HTTP_CONFLICT),
    status(IN_DOUBT, "in_doubt", NGX_HTTP_CONFLICT),
    status(NOT_KEPT, "not_kept", NGX_HTTP_CONFLICT),
    status(SIMILAR, "similar", NGX_HTTP_CONFLICT),
    status(EXPIRED, "expired", NGX_HTTP_CONFLICT),
    status(MISSING, "missing", NGX_HTTP_BAD_REQUEST),
    status(MALFORMED, "malformed", NGX_HTTP_BAD_REQUEST),
    status(LIMITED, "limited", NGX_HTTP_TOO_MANY_REQUESTS),
    status(UNAVAILABLE, "unavailable", NGX_HTTP_SERVICE_UNAVAILABLE),
    status(NEW, "new", 0),
    status(NESTED, "nested", 0),
    status(REPLAYED, "replayed", 0),
    status(WAITED, "waited", 0),
    status(BYPASS, "bypass", 0)
};

#undef status


static ngx_int_t ngx_http_idempotency_init(ngx_conf_t *cf);
static ngx_int_t ngx_http_idempotency_init_module(ngx_cycle_t *cycle);
static ngx_int_t ngx_http_idempotency_init_process(ngx_cycle_t *cycle);
static void ngx_http_idempotency_exit_process(ngx_cycle_t *cycle);
static void *ngx_http_idempotency_create_main_conf(ngx_conf_t *cf);
static char *ngx_http_idempotency_init_main_conf(ngx_conf_t *cf, void *conf);
static void *ngx_http_idempotency_create_loc_conf(ngx_conf_t *cf);
static char *ngx_http_idempotency_merge_loc_conf(ngx_conf_t *cf, void *parent,
    void *child);
static void ngx_http_idempotency_merge_response(
    ngx_http_idempotency_loc_conf_t *prev,
    ngx_http_idempotency_loc_conf_t *conf);
static void ngx_http_idempotency_merge_status(
    ngx_http_idempotency_loc_conf_t *prev,
    ngx_http_idempotency_loc_conf_t *conf);
static ngx_uint_t next_variable(ngx_str_t *text, ngx_str_t *name,
    size_t *constant);
static ngx_int_t key_variables(ngx_conf_t *cf,
    ngx_http_idempotency_key_t *key);
static ngx_uint_t variable_begins(ngx_str_t *name, char *prefix);
static ngx_int_t add_lower(ngx_conf_t *cf, ngx_array_t *names, u_char *start,
    u_char *last);
static ngx_int_t find_fields(ngx_conf_t *cf, ngx_array_t *names);
static ngx_module_t *find_module(ngx_conf_t *cf, char *name);
static char *set_bitmask(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
static char *set_keep(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
static char *add_names(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
static char *set_ignore_fields(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
static char *set_window(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
static char *merge_store(ngx_conf_t *cf, ngx_http_idempotency_loc_conf_t *conf,
    ngx_http_idempotency_main_conf_t *imcf);
static ngx_int_t merge_window(ngx_conf_t *cf,
    ngx_http_idempotency_loc_conf_t *prev,
    ngx_http_idempotency_loc_conf_t *conf);
static char *set_missing_key(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
static void warn_content(ngx_conf_t *cf, ngx_http_idempotency_loc_conf_t *conf);
static char *set_identity(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
static char *set_ignore_cookies(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
static char *set_quota(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
static char *set_status(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
static char *check_replay_header(ngx_conf_t *cf, void *post, void *data);
static char *check_docs(ngx_conf_t *cf, void *post, void *data);
static ngx_int_t ngx_http_idempotency_compile(ngx_conf_t *cf, ngx_str_t *text,
    ngx_http_idempotency_value_t *value);
static ngx_http_idempotency_value_t *compile_value(ngx_conf_t *cf,
    ngx_str_t *text);
static char *set_keys(ngx_conf_t *cf, ngx_command_t *cmd, void *conf);
static ngx_int_t add_key(ngx_conf_t *cf, ngx_array_t *keys, ngx_str_t *value);
static ngx_uint_t keys_in_body(ngx_conf_t *cf, ngx_array_t *keys);


/* the configuration that this worker was set up for */

static ngx_cycle_t  *ngx_http_idempotency_cycle;


static ngx_conf_bitmask_t  method_names[] = {
    { ngx_string("GET"), NGX_HTTP_GET },
    { ngx_string("HEAD"), NGX_HTTP_HEAD },
    { ngx_string("POST"), NGX_HTTP_POST },
    { ngx_string("PUT"), NGX_HTTP_PUT },
    { ngx_string("DELETE"), NGX_HTTP_DELETE },
    { ngx_string("MKCOL"), NGX_HTTP_MKCOL },
    { ngx_string("COPY"), NGX_HTTP_COPY },
    { ngx_string("MOVE"), NGX_HTTP_MOVE },
    { ngx_string("OPTIONS"), NGX_HTTP_OPTIONS },
    { ngx_string("PROPFIND"), NGX_HTTP_PROPFIND },
    { ngx_string("PROPPATCH"), NGX_HTTP_PROPPATCH },
    { ngx_string("LOCK"), NGX_HTTP_LOCK },
    { ngx_string("UNLOCK"), NGX_HTTP_UNLOCK },
    { ngx_string("PATCH"), NGX_HTTP_PATCH },
    { ngx_null_string, 0 }
};

static ngx_conf_bitmask_t  kind_names[] = {
    { ngx_string("off"), NGX_CONF_BITMASK_SET },
    { ngx_string("form"), NGX_IDEMPOTENCY_CANON_FORM },
    { ngx_string("json"), NGX_IDEMPOTENCY_CANON_JSON },
    { ngx_string("multipart"), NGX_IDEMPOTENCY_CANON_MULTIPART },
    { ngx_string("text"), NGX_IDEMPOTENCY_CANON_TEXT },
    { ngx_null_string, 0 }
};

static ngx_conf_enum_t  missing_key_names[] = {
    { ngx_string("pass"), NGX_HTTP_IDEMPOTENCY_MISSING_KEY_PASS },
    { ngx_string("reject"), NGX_HTTP_IDEMPOTENCY_MISSING_KEY_REJECT },
    { ngx_string("content"), NGX_HTTP_IDEMPOTENCY_MISSING_KEY_CONTENT },
    { ngx_string("form"), NGX_HTTP_IDEMPOTENCY_MISSING_KEY_FORM },
    { ngx_null_string, 0 }
};

static ngx_conf_enum_t  similar_names[] = {
    { ngx_string("off"), NGX_HTTP_IDEMPOTENCY_SIMILAR_OFF },
    { ngx_string("warn"), NGX_HTTP_IDEMPOTENCY_SIMILAR_WARN },
    { ngx_string("reject"), NGX_HTTP_IDEMPOTENCY_SIMILAR_REJECT },
    { ngx_null_string, 0 }
};

static ngx_conf_enum_t  key_format_names[] = {
    { ngx_string("any"), NGX_HTTP_IDEMPOTENCY_KEY_FORMAT_ANY },
    { ngx_string("sf-string"), NGX_HTTP_IDEMPOTENCY_KEY_FORMAT_SF_STRING },
    { ngx_string("uuid"), NGX_HTTP_IDEMPOTENCY_KEY_FORMAT_UUID },
    { ngx_string("uuid7"), NGX_HTTP_IDEMPOTENCY_KEY_FORMAT_UUID7 },
    { ngx_null_string, 0 }
};

static ngx_conf_enum_t  in_progress_names[] = {
    { ngx_string("wait"), NGX_HTTP_IDEMPOTENCY_IN_PROGRESS_WAIT },
    { ngx_string("reject"), NGX_HTTP_IDEMPOTENCY_IN_PROGRESS_REJECT },
    { ngx_string("accepted"), NGX_HTTP_IDEMPOTENCY_IN_PROGRESS_ACCEPTED },
    { ngx_null_string, 0 }
};

static ngx_conf_enum_t  in_doubt_names[] = {
    { ngx_string("reject"), NGX_HTTP_IDEMPOTENCY_IN_DOUBT_REJECT },
    { ngx_string("retry"), NGX_HTTP_IDEMPOTENCY_IN_DOUBT_RETRY },
    { ngx_null_string, 0 }
};

static ngx_conf_enum_t  unavailable_names[] = {
    { ngx_string("reject"), NGX_HTTP_IDEMPOTENCY_UNAVAILABLE_REJECT },
    { ngx_string("pass"), NGX_HTTP_IDEMPOTENCY_UNAVAILABLE_PASS },
    { ngx_string("local"), NGX_HTTP_IDEMPOTENCY_UNAVAILABLE_LOCAL },
    { ngx_null_string, 0 }
};

static ngx_conf_enum_t  replay_cookies_names[] = {
    { ngx_string("identified"), NGX_HTTP_IDEMPOTENCY_COOKIES_IDENTIFIED },
    { ngx_string("always"), NGX_HTTP_IDEMPOTENCY_COOKIES_ALWAYS },
    { ngx_string("never"), NGX_HTTP_IDEMPOTENCY_COOKIES_NEVER },
    { ngx_null_string, 0 }
};

static ngx_conf_enum_t  log_level_names[] = {
    { ngx_string("info"), NGX_LOG_INFO },
    { ngx_string("notice"), NGX_LOG_NOTICE },
    { ngx_string("warn"), NGX_LOG_WARN },
    { ngx_string("error"), NGX_LOG_ERR },
    { ngx_null_string, 0 }
};

static ngx_conf_num_bounds_t  key_bounds = { ngx_conf_check_num_bounds, 1, -1 };
static ngx_conf_post_t  time_post = { ngx_http_idempotency_check_time };
static ngx_conf_post_t  replay_header_post = { check_replay_header };
static ngx_conf_post_t  docs_post = { check_docs };

/* a directive of a location, which may stand in front of it, too */

#define directive(name, args, set, member, post)                             \
    { ngx_string(name),                                                      \
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_##args,\
      set, NGX_HTTP_LOC_CONF_OFFSET,                                         \
      offsetof(ngx_http_idempotency_loc_conf_t, member), post }

static ngx_command_t  ngx_http_idempotency_commands[] = {

    { ngx_string("idempotency_zone"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_1MORE,
      ngx_http_idempotency_set_zone, 0, 0, NULL },

    { ngx_string("idempotency_secret"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE1,
      ngx_http_idempotency_set_secret, 0, 0, NULL },

    { ngx_string("idempotency_redis"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_BLOCK|NGX_CONF_TAKE1,
      ngx_http_idempotency_redis_block, 0, 0, NULL },

    { ngx_string("idempotency_api"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS|NGX_CONF_TAKE12,
      ngx_http_idempotency_api, NGX_HTTP_LOC_CONF_OFFSET, 0, NULL },

    { ngx_string("idempotency_guard"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS,
      ngx_http_idempotency_guard, NGX_HTTP_LOC_CONF_OFFSET, 0, NULL },

    directive("idempotency", TAKE1, ngx_http_idempotency_set, store, NULL),
    directive("idempotency_methods", 1MORE, set_bitmask, methods,
              &method_names),
    directive("idempotency_key", 1MORE, set_keys, keys, NULL),
    directive("idempotency_missing_key", TAKE1, set_missing_key, missing_key,
              &missing_key_names),
    directive("idempotency_key_format", TAKE1, ngx_conf_set_enum_slot,
              key_format, &key_format_names),
    directive("idempotency_key_max_age", TAKE1, ngx_conf_set_msec_slot,
              key_max_age, &time_post),
    directive("idempotency_key_max_length", TAKE1, ngx_conf_set_num_slot,
              key_max_length, &key_bounds),
    directive("idempotency_scope", TAKE1, ngx_http_set_complex_value_slot,
              scope, NULL),
    directive("idempotency_identity", TAKE1, set_identity, identity, NULL),
    directive("idempotency_ignore_cookies", 1MORE, set_ignore_cookies,
              ignore_cookies, NULL),
    directive("idempotency_bind", 1MORE, ngx_http_set_predicate_slot, bind,
              NULL),
    directive("idempotency_bypass", 1MORE, ngx_http_set_predicate_slot, bypass,
              NULL),
    directive("idempotency_normalize", 1MORE, set_bitmask, canon.flags,
              &kind_names),
    directive("idempotency_normalize_buffer", TAKE1, ngx_conf_set_size_slot,
              normalize_buffer, NULL),
    directive("idempotency_ignore_fields", 1MORE, set_ignore_fields,
              ignore_fields, NULL),
    directive("idempotency_window", TAKE1, set_window, window, &time_post),
    directive("idempotency_content_window", TAKE1, ngx_conf_set_msec_slot,
              content_window, &time_post),
    directive("idempotency_similar", TAKE1, ngx_conf_set_enum_slot, similar,
              &similar_names),
    directive("idempotency_in_progress", TAKE1, ngx_conf_set_enum_slot,
              in_progress, &in_progress_names),
    directive("idempotency_wait_timeout", TAKE1, ngx_conf_set_msec_slot,
              wait_timeout, &time_post),
    directive("idempotency_lease", TAKE1, ngx_conf_set_msec_slot, lease,
              &time_post),
    directive("idempotency_in_doubt", TAKE1, ngx_conf_set_enum_slot, in_doubt,
              &in_doubt_names),
    directive("idempotency_unavailable", TAKE1, ngx_conf_set_enum_slot,
              unavailable, &unavailable_names),
    directive("idempotency_quota", TAKE12, set_quota, quota, NULL),
    directive("idempotency_keep", 1MORE, set_keep, keep, NULL),
    directive("idempotency_max_response", TAKE1, ngx_conf_set_size_slot,
              max_response_given, NULL),
    directive("idempotency_hide_header", 1MORE, add_names, hide_headers, NULL),
    directive("idempotency_replay_cookies", TAKE1, ngx_conf_set_enum_slot,
              replay_cookies, &replay_cookies_names),
    directive("idempotency_replay_header", TAKE1, ngx_conf_set_str_slot,
              replay_header, &replay_header_post),
    directive("idempotency_status", 1MORE, set_status, status, NULL),
    directive("idempotency_docs", TAKE1, ngx_conf_set_str_slot, docs,
              &docs_post),
    directive("idempotency_dry_run", FLAG, ngx_conf_set_flag_slot, dry_run,
              NULL),
    directive("idempotency_log_level", TAKE1, ngx_conf_set_enum_slot, log_level,
              &log_level_names),

    ngx_null_command
};

#undef directive

static ngx_http_module_t  ngx_http_idempotency_module_ctx = {
    ngx_http_idempotency_add_variables,    /* preconfiguration */
    ngx_http_idempotency_init,             /* postconfiguration */

    ngx_http_idempotency_create_main_conf, /* create main configuration */
    ngx_http_idempotency_init_main_conf,   /* init main configuration */

    NULL,                                  /* create server configuration */
    NULL,                                  /* merge server configuration */

    ngx_http_idempotency_create_loc_conf,  /* create location configuration */
    ngx_http_idempotency_merge_loc_conf    /* merge location configuration */
};

ngx_module_t  ngx_http_idempotency_module = {
    NGX_MODULE_V1,
    &ngx_http_idempotency_module_ctx,      /* module context */
    ngx_http_idempotency_commands,         /* module directives */
    NGX_HTTP_MODULE,                       /* module type */
    NULL,                                  /* init master */
    ngx_http_idempotency_init_module,      /* init module */
    ngx_http_idempotency_init_process,     /* init process */
    NULL,                                  /* init thread */
    NULL,                                  /* exit thread */
    ngx_http_idempotency_exit_process,     /* exit process */
    NULL,                                  /* exit master */
    NGX_MODULE_V1_PADDING
};


static ngx_int_t
ngx_http_idempotency_init(ngx_conf_t *cf)
{
    ngx_http_idempotency_main_conf_t  *imcf;

    if (ngx_http_idempotency_check_stores(cf) != NGX_OK
        || ngx_http_idempotency_add_handlers(cf, 0) != NGX_OK
        || ngx_idempotency_engine.keep(cf) != NGX_OK)
    {
        return NGX_ERROR;
    }

    imcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);

    if (imcf->api && imcf->stores.nelts) {
        imcf->in_use = 1;
    }

    if (!imcf->in_use) {
        return NGX_OK;
    }

    if (ngx_array_init(&imcf->fields, cf->pool, 4, sizeof(ngx_str_t)) != NGX_OK
        || find_fields(cf, &imcf->fields) == NGX_ERROR)
    {
        return NGX_ERROR;
    }

    imcf->dav = find_module(cf, "ngx_http_dav_module");
    imcf->slice = find_module(cf, "ngx_http_slice_filter_module");

    if (ngx_http_idempotency_init_peers(cf) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_http_idempotency_location_init(cf);

    return NGX_OK;
}


static ngx_int_t
ngx_http_idempotency_init_module(ngx_cycle_t *cycle)
{
    if (!ngx_http_idempotency_in_use(cycle)) {
        return NGX_OK;
    }

    if (!ngx_test_config) {
        ngx_log_error(NGX_LOG_NOTICE, cycle->log, 0,
                      "idempotency: version " NGX_HTTP_IDEMPOTENCY_VERSION);
    }

    return ngx_idempotency_engine.init_module(cycle);
}


/* The cache manager and loader need no set-up, nor do workers without a
   protected location. */

static ngx_int_t
ngx_http_idempotency_init_process(ngx_cycle_t *cycle)
{
    if (ngx_process == NGX_PROCESS_HELPER) {
        return ngx_idempotency_engine.init_process(cycle);
    }

    if ((ngx_process != NGX_PROCESS_WORKER
         && ngx_process != NGX_PROCESS_SINGLE)
        || !ngx_http_idempotency_in_use(cycle))
    {
        return NGX_OK;
    }

    ngx_http_idempotency_cycle = cycle;

    return ngx_idempotency_engine.init_process(cycle);
}


/* Under "master_process off" nginx passes the configuration of the last
   reload, for which no worker was set up. */

static void
ngx_http_idempotency_exit_process(ngx_cycle_t *cycle)
{
    if (ngx_http_idempotency_cycle) {
        ngx_idempotency_engine.exit_process(ngx_http_idempotency_cycle);
        ngx_idempotency_file_exit_process();
        ngx_http_idempotency_log_suppressed();
    }
}


static void *
ngx_http_idempotency_create_main_conf(ngx_conf_t *cf)
{
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_pcalloc(cf->pool, sizeof(ngx_http_idempotency_main_conf_t));
    if (imcf == NULL
        || ngx_array_init(&imcf->locations, cf->pool, 8, sizeof(void **))
           != NGX_OK
        || ngx_array_init(&imcf->stores, cf->pool, 4,
                          sizeof(ngx_http_idempotency_store_t *))
           != NGX_OK
        || ngx_array_init(&imcf->redis, cf->pool, 1,
                          sizeof(ngx_idempotency_redis_t *))
           != NGX_OK)
    {
        return NULL;
    }

    ngx_http_idempotency_credentials_init();

    return imcf;
}


/* defaults that take memory are made once, for all locations */

static char *
ngx_http_idempotency_init_main_conf(ngx_conf_t *cf, void *conf)
{
    ngx_http_idempotency_main_conf_t *imcf = conf;

    static ngx_str_t  key = ngx_string("$http_idempotency_key");

    imcf->keys = ngx_array_create(cf->pool, 1,
                                  sizeof(ngx_http_idempotency_key_t));
    imcf->ignore_cookies = NGX_CONF_UNSET_PTR;

    if (imcf->keys == NULL
        || ngx_http_idempotency_ignore_cookie(cf, &imcf->ignore_cookies, NULL)
           != NGX_OK
        || add_key(cf, imcf->keys, &key) != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static void *
ngx_http_idempotency_create_loc_conf(ngx_conf_t *cf)
{
    ngx_http_idempotency_loc_conf_t  *conf;

    conf = ngx_pcalloc(cf->pool, sizeof(ngx_http_idempotency_loc_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    conf->store = NGX_CONF_UNSET_PTR;
    conf->keys = NGX_CONF_UNSET_PTR;
    conf->missing_key = NGX_CONF_UNSET_UINT;
    conf->key_format = NGX_CONF_UNSET_UINT;
    conf->key_max_length = NGX_CONF_UNSET;
    conf->key_max_age = NGX_CONF_UNSET_MSEC;
    conf->ignore_cookies = NGX_CONF_UNSET_PTR;
    conf->bind = NGX_CONF_UNSET_PTR;
    conf->bypass = NGX_CONF_UNSET_PTR;
    conf->ignore_fields = NGX_CONF_UNSET_PTR;
    conf->normalize_buffer = NGX_CONF_UNSET_SIZE;
    conf->window = NGX_CONF_UNSET_MSEC;
    conf->content_window = NGX_CONF_UNSET_MSEC;
    conf->similar = NGX_CONF_UNSET_UINT;
    conf->in_progress = NGX_CONF_UNSET_UINT;
    conf->wait_timeout = NGX_CONF_UNSET_MSEC;
    conf->lease = NGX_CONF_UNSET_MSEC;
    conf->in_doubt = NGX_CONF_UNSET_UINT;
    conf->unavailable = NGX_CONF_UNSET_UINT;
    conf->quota = NGX_CONF_UNSET_UINT;
    conf->keep = NGX_CONF_UNSET_PTR;
    conf->max_response_given = NGX_CONF_UNSET_SIZE;
    conf->hide_headers = NGX_CONF_UNSET_PTR;
    conf->replay_cookies = NGX_CONF_UNSET_UINT;
    conf->dry_run = NGX_CONF_UNSET;
    conf->log_level = NGX_CONF_UNSET_UINT;

    return conf;
}


static char *
ngx_http_idempotency_merge_loc_conf(ngx_conf_t *cf, void *parent, void *child)
{
    ngx_http_idempotency_loc_conf_t  *prev = parent;
    ngx_http_idempotency_loc_conf_t  *conf = child;

    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);

    if (ngx_http_idempotency_location_add(cf, prev->location, &conf->location)
        != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    ngx_conf_merge_ptr_value(conf->store, prev->store, NULL);

    ngx_conf_merge_bitmask_value(conf->methods, prev->methods,
                                 (NGX_CONF_BITMASK_SET|NGX_HTTP_POST
                                  |NGX_HTTP_PATCH));

    ngx_conf_merge_ptr_value(conf->keys, prev->keys, imcf->keys);
    ngx_conf_merge_ptr_value(conf->bind, prev->bind, NULL);
    ngx_conf_merge_ptr_value(conf->ignore_cookies, prev->ignore_cookies,
                             imcf->ignore_cookies);

    if (conf->identity == NULL) {
        conf->identity = prev->identity;
    }

    ngx_conf_merge_bitmask_value(conf->canon.flags, prev->canon.flags,
                                 (NGX_CONF_BITMASK_SET
                                  |NGX_IDEMPOTENCY_CANON_FORM
                                  |NGX_IDEMPOTENCY_CANON_JSON
                                  |NGX_IDEMPOTENCY_CANON_MULTIPART));

    ngx_conf_merge_size_value(conf->normalize_buffer, prev->normalize_buffer,
                              1024 * 1024);

    if (conf->ignore_fields == NGX_CONF_UNSET_PTR) {
        conf->canon.ignore = prev->canon.ignore;
    }

    ngx_conf_merge_ptr_value(conf->ignore_fields, prev->ignore_fields, NULL);

    if (conf->missing_key == NGX_CONF_UNSET_UINT) {
        conf->missing_key_line = prev->missing_key_line;
    }

    ngx_conf_merge_uint_value(conf->missing_key, prev->missing_key,
                              NGX_HTTP_IDEMPOTENCY_MISSING_KEY_PASS);
    conf->key_in_body =
                 conf->missing_key == NGX_HTTP_IDEMPOTENCY_MISSING_KEY_CONTENT
                 || keys_in_body(cf, conf->keys);

    ngx_conf_merge_uint_value(conf->key_format, prev->key_format,
                              NGX_HTTP_IDEMPOTENCY_KEY_FORMAT_ANY);
    ngx_conf_merge_value(conf->key_max_length, prev->key_max_length, 256);

    if (conf->key_max_age == NGX_CONF_UNSET_MSEC) {
        conf->key_max_age = prev->key_max_age;
    }

    if (conf->scope == NULL) {
        conf->scope = prev->scope;
    }

    ngx_conf_merge_ptr_value(conf->bypass, prev->bypass, NULL);

    if (merge_window(cf, prev, conf) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    ngx_conf_merge_msec_value(conf->content_window, prev->content_window,
                              60000);
    ngx_conf_merge_uint_value(conf->similar, prev->similar,
                              NGX_HTTP_IDEMPOTENCY_SIMILAR_OFF);
    ngx_conf_merge_uint_value(conf->in_progress, prev->in_progress,
                              NGX_HTTP_IDEMPOTENCY_IN_PROGRESS_WAIT);
    ngx_conf_merge_msec_value(conf->wait_timeout, prev->wait_timeout, 10000);
    ngx_conf_merge_msec_value(conf->lease, prev->lease, 60000);
    ngx_conf_merge_uint_value(conf->in_doubt, prev->in_doubt,
                              NGX_HTTP_IDEMPOTENCY_IN_DOUBT_REJECT);
    ngx_conf_merge_uint_value(conf->unavailable, prev->unavailable,
                              NGX_HTTP_IDEMPOTENCY_UNAVAILABLE_REJECT);

    if (conf->quota == NGX_CONF_UNSET_UINT) {
        conf->quota_value = prev->quota_value;
    }

    ngx_conf_merge_uint_value(conf->quota, prev->quota, 0);

    ngx_http_idempotency_merge_response(prev, conf);
    ngx_http_idempotency_merge_status(prev, conf);

    ngx_conf_merge_str_value(conf->docs, prev->docs, "");

    ngx_conf_merge_value(conf->dry_run, prev->dry_run, 0);
    ngx_conf_merge_uint_value(conf->log_level, prev->log_level,
                              NGX_LOG_NOTICE);

    conf->digest_key = imcf->secret.digest_key;

    if (ngx_http_idempotency_api_merge(cf, prev, conf) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    return conf->store ? merge_store(cf, conf, imcf) : NGX_CONF_OK;
}


/* merges the settings of a protected location */

static char *
merge_store(ngx_conf_t *cf, ngx_http_idempotency_loc_conf_t *conf,
    ngx_http_idempotency_main_conf_t *imcf)
{
    void  ***location;

    ngx_http_idempotency_digest_settings(conf);
    warn_content(cf, conf);

    if (conf->store->max_response) {
        ngx_idempotency_backing_redis_warn(cf, conf->store,
                                           conf->max_response);
    }

    imcf->in_use = 1;

    location = ngx_array_push(&imcf->locations);
    if (location == NULL) {
        return NGX_CONF_ERROR;
    }

    *location = ((ngx_http_conf_ctx_t *) cf->ctx)->loc_conf;

    return NGX_CONF_OK;
}


/* merges the settings that decide which responses are recorded and replayed */

static void
ngx_http_idempotency_merge_response(ngx_http_idempotency_loc_conf_t *prev,
    ngx_http_idempotency_loc_conf_t *conf)
{
    ngx_conf_merge_ptr_value(conf->keep, prev->keep, NULL);
    ngx_conf_merge_size_value(conf->max_response_given,
                              prev->max_response_given, NGX_CONF_UNSET_SIZE);

    conf->max_response = conf->max_response_given;

    if (conf->max_response == NGX_CONF_UNSET_SIZE) {
        conf->max_response = (conf->store && conf->store->max_response)
                             ? conf->store->max_response : 1024 * 1024;
    }

    ngx_conf_merge_str_value(conf->replay_header, prev->replay_header,
                             "Idempotent-Replayed");
    ngx_conf_merge_ptr_value(conf->hide_headers, prev->hide_headers, NULL);
    ngx_conf_merge_uint_value(conf->replay_cookies, prev->replay_cookies,
                              NGX_HTTP_IDEMPOTENCY_COOKIES_IDENTIFIED);
}


static void
ngx_http_idempotency_merge_status(ngx_http_idempotency_loc_conf_t *prev,
    ngx_http_idempotency_loc_conf_t *conf)
{
    ngx_uint_t  i;

    for (i = 1; i < NGX_HTTP_IDEMPOTENCY_REFUSALS; i++) {

        if (conf->status[i] == 0) {
            conf->status[i] = prev->status[i];
        }

        if (conf->status[i] == 0) {
            conf->status[i] = ngx_http_idempotency_statuses[i].code;
        }
    }
}


/* Each NAME of $idempotency_field_NAME in the configuration so far; names may
   be NULL.  NGX_DECLINED: there is none. */

static ngx_int_t
find_fields(ngx_conf_t *cf, ngx_array_t *names)
{
    ngx_int_t                   rc;
    ngx_str_t                  *name;
    ngx_uint_t                  i;
    ngx_http_variable_t        *v;
    ngx_http_core_main_conf_t  *cmcf;

    rc = NGX_DECLINED;

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);
    v = cmcf->variables.elts;

    for (i = 0; i < cmcf->variables.nelts; i++) {
        name = &v[i].name;

        if (!variable_begins(name, NGX_HTTP_IDEMPOTENCY_FIELD)) {
            continue;
        }

        rc = NGX_OK;

        if (names
            && add_lower(cf, names, name->data + NGX_HTTP_IDEMPOTENCY_FIELD_LEN,
                         name->data + name->len)
               != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return rc;
}


static ngx_module_t *
find_module(ngx_conf_t *cf, char *name)
{
    ngx_uint_t  i;

    for (i = 0; cf->cycle->modules[i]; i++) {
        if (ngx_strcmp(cf->cycle->modules[i]->name, name) == 0) {
            return cf->cycle->modules[i];
        }
    }

    return NULL;
}


/* the directive may stand once on a level, and "off" only alone */

static char *
set_bitmask(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char  *p = conf;

    char        *rv;
    ngx_uint_t  *flags;

    flags = (ngx_uint_t *) (p + cmd->offset);

    if (*flags) {
        return "is duplicate";
    }

    rv = ngx_conf_set_bitmask_slot(cf, cmd, conf);

    if (rv == NGX_CONF_OK && (*flags & NGX_CONF_BITMASK_SET)
        && *flags != NGX_CONF_BITMASK_SET)
    {
        return "has both \"off\" and types";
    }

    return rv;
}


/*
 * The first value is "default" or "any"; without either the list begins empty,
 * or with the default if the first value begins with "!".  Then codes and
 * classes of codes such as "2xx" are added and, with "!", taken away, in their
 * order.
 */

static char *
set_keep(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idempotency_loc_conf_t  *ilcf = conf;

    ngx_int_t    code, last;
    ngx_str_t   *value, name;
    ngx_uint_t   i, begin, no;

    if (ilcf->keep != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    ilcf->keep = ngx_palloc(cf->pool, NGX_HTTP_IDEMPOTENCY_CODES);
    if (ilcf->keep == NULL) {
        return NGX_CONF_ERROR;
    }

    value = cf->args->elts;

    i = 2;

    if (ngx_strcmp(value[1].data, "default") == 0) {
        begin = NGX_HTTP_IDEMPOTENCY_KEEP_DEFAULT;

    } else if (ngx_strcmp(value[1].data, "any") == 0) {
        begin = NGX_HTTP_IDEMPOTENCY_KEEP_YES;

    } else {
        i = 1;
        begin = (value[1].len && value[1].data[0] == '!')
                    ? NGX_HTTP_IDEMPOTENCY_KEEP_DEFAULT
                    : NGX_HTTP_IDEMPOTENCY_KEEP_NO;
    }

    ngx_memset(ilcf->keep, begin, NGX_HTTP_IDEMPOTENCY_CODES);

    for ( /* void */ ; i < cf->args->nelts; i++) {

        name = value[i];
        no = (name.len && name.data[0] == '!');

        name.data += no;
        name.len -= no;

        if (name.len == 3 && ngx_strcmp(name.data + 1, "xx") == 0) {
            code = ngx_atoi(name.data, 1) * 100;
            last = code + 99;

        } else {
            code = ngx_atoi(name.data, name.len);
            last = code;
        }

        if (code < 200 || last > 599) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid status \"%V\"", &value[i]);
            return NGX_CONF_ERROR;
        }

        ngx_memset(ilcf->keep + code, no ? NGX_HTTP_IDEMPOTENCY_KEEP_NO
                                         : NGX_HTTP_IDEMPOTENCY_KEEP_YES,
                   last - code + 1);
    }

    return NGX_CONF_OK;
}


/* the directive may be given more than once, as lists in nginx may */

static char *
add_names(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char *p = conf;

    ngx_str_t     *value, *name;
    ngx_uint_t     i;
    ngx_array_t  **names;

    names = (ngx_array_t **) (p + cmd->offset);

    if (*names == NGX_CONF_UNSET_PTR) {
        *names = ngx_array_create(cf->pool, 4, sizeof(ngx_str_t));
        if (*names == NULL) {
            return NGX_CONF_ERROR;
        }
    }

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {
        name = ngx_array_push(*names);
        if (name == NULL) {
            return NGX_CONF_ERROR;
        }

        *name = value[i];
    }

    return NGX_CONF_OK;
}


static char *
set_ignore_fields(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idempotency_loc_conf_t  *ilcf = conf;

    ngx_int_t  rc;
    ngx_str_t  bad;

    if (add_names(cf, cmd, conf) != NGX_CONF_OK) {
        return NGX_CONF_ERROR;
    }

    rc = ngx_idempotency_canon_ignore(&ilcf->canon, ilcf->ignore_fields, &bad,
                                      cf->pool);

    if (rc == NGX_DECLINED) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid JSON pointer \"%V\" in "
                           "\"idempotency_ignore_fields\"", &bad);
    }

    return (rc == NGX_OK) ? NGX_CONF_OK : NGX_CONF_ERROR;
}


static char *
set_window(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idempotency_loc_conf_t  *ilcf = conf;

    ngx_str_t  *value;

    value = cf->args->elts;

    if (ilcf->window_value) {
        return "is duplicate";
    }

    if (ngx_http_script_variables_count(&value[1]) == 0) {
        return ngx_conf_set_msec_slot(cf, cmd, conf);
    }

    if (ilcf->window != NGX_CONF_UNSET_MSEC) {
        return "is duplicate";
    }

    ilcf->window_value = compile_value(cf, &value[1]);

    return ilcf->window_value ? NGX_CONF_OK : NGX_CONF_ERROR;
}


/*
 * Runs after the formats of keys are merged.  By default a uuid7 key is too
 * old after the window: a window that differs from request to request is no
 * such limit.
 */

static ngx_int_t
merge_window(ngx_conf_t *cf, ngx_http_idempotency_loc_conf_t *prev,
    ngx_http_idempotency_loc_conf_t *conf)
{
    ngx_http_idempotency_line_t  *line;

    if (conf->window == NGX_CONF_UNSET_MSEC && conf->window_value == NULL) {
        conf->window_value = prev->window_value;
        conf->window = prev->window;
    }

    if (conf->window == NGX_CONF_UNSET_MSEC) {
        conf->window = 24 * 3600 * 1000;
    }

    if (conf->store == NULL || conf->window_value == NULL
        || conf->key_format != NGX_HTTP_IDEMPOTENCY_KEY_FORMAT_UUID7
        || conf->key_max_age != NGX_CONF_UNSET_MSEC)
    {
        return NGX_OK;
    }

    line = &conf->window_value->line;

    ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                  "\"idempotency_window\" with variables needs an "
                  "\"idempotency_key_max_age\" where "
                  "\"idempotency_key_format\" is \"uuid7\" in %V:%ui",
                  &line->file, line->line);

    return NGX_ERROR;
}


static char *
set_missing_key(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idempotency_loc_conf_t  *ilcf = conf;

    ilcf->missing_key_line = ngx_pcalloc(cf->pool,
                                         sizeof(ngx_http_idempotency_line_t));
    if (ilcf->missing_key_line == NULL) {
        return NGX_CONF_ERROR;
    }

    ngx_http_idempotency_set_line(cf, ilcf->missing_key_line);

    return ngx_conf_set_enum_slot(cf, cmd, conf);
}


/* runs when all levels are merged: the two directives may stand on different
   levels */

static void
warn_content(ngx_conf_t *cf, ngx_http_idempotency_loc_conf_t *conf)
{
    ngx_http_idempotency_line_t  *line;

    line = conf->missing_key_line;

    if (conf->missing_key != NGX_HTTP_IDEMPOTENCY_MISSING_KEY_CONTENT
        || (conf->identity && conf->identity->script.value.len)
        || line->warned)
    {
        return;
    }

    line->warned = 1;

    ngx_log_error(NGX_LOG_WARN, cf->log, 0,
                  "idempotency_missing_key content without an "
                  "idempotency_identity, so who asks is a guess by the "
                  "request's credentials in %V:%ui", &line->file, line->line);
}


/* a constant gives all clients one identity, which brings a warning */

static char *
set_identity(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idempotency_loc_conf_t  *ilcf = conf;

    ngx_str_t  *value;

    if (ilcf->identity) {
        return "is duplicate";
    }

    value = cf->args->elts;

    ilcf->identity = compile_value(cf, &value[1]);
    if (ilcf->identity == NULL) {
        return NGX_CONF_ERROR;
    }

    if (value[1].len && ilcf->identity->script.lengths == NULL) {
        ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                           "\"idempotency_identity\" is the constant \"%V\": "
                           "whoever has a key gets its response", &value[1]);
    }

    return NGX_CONF_OK;
}


/* "off", or names that are added to the built-in ones */

static char *
set_ignore_cookies(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idempotency_loc_conf_t  *ilcf = conf;

    ngx_int_t    rc;
    ngx_str_t   *value;
    ngx_uint_t   i, off;

    value = cf->args->elts;

    off = 0;

    for (i = 1; i < cf->args->nelts; i++) {
        off |= (ngx_strcmp(value[i].data, "off") == 0);
    }

    if (off && cf->args->nelts == 2 && ilcf->ignore_cookies == NULL) {
        return "is duplicate";
    }

    if (ilcf->ignore_cookies == NULL
        || (off && (cf->args->nelts > 2
                    || ilcf->ignore_cookies != NGX_CONF_UNSET_PTR)))
    {
        return "has both \"off\" and names";
    }

    if (off) {
        ilcf->ignore_cookies = NULL;
        return NGX_CONF_OK;
    }

    for (i = 1; i < cf->args->nelts; i++) {

        rc = ngx_http_idempotency_ignore_cookie(cf, &ilcf->ignore_cookies,
                                                &value[i]);

        if (rc == NGX_DECLINED) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid cookie name \"%V\"", &value[i]);
        }

        if (rc != NGX_OK) {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


/* "off"; or a number, and the string by which tokens are counted */

static char *
set_quota(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idempotency_loc_conf_t  *ilcf = conf;

    ngx_int_t   n;
    ngx_str_t  *value;

    if (ilcf->quota != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (cf->args->nelts == 2 && ngx_strcmp(value[1].data, "off") == 0) {
        ilcf->quota = 0;
        return NGX_CONF_OK;
    }

    n = ngx_atoi(value[1].data, value[1].len);

    if (n <= 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid number \"%V\"", &value[1]);
        return NGX_CONF_ERROR;
    }

    ilcf->quota = n;

    if (cf->args->nelts == 2) {
        return NGX_CONF_OK;
    }

    ilcf->quota_value = compile_value(cf, &value[2]);

    return ilcf->quota_value ? NGX_CONF_OK : NGX_CONF_ERROR;
}


static char *
set_status(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idempotency_loc_conf_t  *ilcf = conf;

    ngx_int_t    code;
    ngx_str_t   *value, *name;
    ngx_uint_t   i, n;

    name = NULL;
    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        for (n = 1; n < NGX_HTTP_IDEMPOTENCY_REFUSALS; n++) {
            name = &ngx_http_idempotency_statuses[n].name;

            if (value[i].len > name->len
                && ngx_strncmp(value[i].data, name->data, name->len) == 0
                && value[i].data[name->len] == '=')
            {
                break;
            }
        }

        if (n == NGX_HTTP_IDEMPOTENCY_REFUSALS) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\"", &value[i]);
            return NGX_CONF_ERROR;
        }

        code = ngx_atoi(value[i].data + name->len + 1,
                        value[i].len - name->len - 1);

        switch (code) {

        /* nginx closes the connection at these codes, or sends another
           response: the client never gets them */

        case NGX_HTTP_REQUEST_TIME_OUT:
        case NGX_HTTP_CLOSE:
        case NGX_HTTP_REQUEST_HEADER_TOO_LARGE:
        case NGX_HTTPS_CERT_ERROR:
        case NGX_HTTPS_NO_CERT:
        case NGX_HTTP_TO_HTTPS:
        case NGX_HTTP_CLIENT_CLOSED_REQUEST:
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid status \"%V\", nginx has a meaning "
                               "of its own for it", &value[i]);
            return NGX_CONF_ERROR;
        }

        if (code < 400 || code > 599) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid status \"%V\", it must be "
                               "from 400 to 599", &value[i]);
            return NGX_CONF_ERROR;
        }

        if (ilcf->status[n]) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "duplicate status \"%V\"", &value[i]);
            return NGX_CONF_ERROR;
        }

        ilcf->status[n] = code;
    }

    return NGX_CONF_OK;
}


char *
ngx_http_idempotency_check_time(ngx_conf_t *cf, void *post, void *data)
{
    ngx_msec_t  *msp = data;

    if (*msp == 0) {
        return "must not be zero";
    }

    return (*msp > NGX_HTTP_IDEMPOTENCY_TIME_MAX) ? "is too long"
                                                  : NGX_CONF_OK;
}


/* "off", or a token as RFC 9110 defines it */

static char *
check_replay_header(ngx_conf_t *cf, void *post, void *data)
{
    ngx_str_t  *name = data;

    size_t  i;
    u_char  c;

    if (ngx_strcmp(name->data, "off") == 0) {
        name->len = 0;
        return NGX_CONF_OK;
    }

    for (i = 0; i < name->len; i++) {
        c = name->data[i];

        if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') {
            continue;
        }

        if ((c < '0' || c > '9') && ngx_strchr("!#$%&'*+-.^_`|~", c) == NULL) {
            break;
        }
    }

    if (name->len == 0 || i < name->len) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid header name \"%V\"", name);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


/* the URL is written into a header line and into JSON without escaping */

static char *
check_docs(ngx_conf_t *cf, void *post, void *data)
{
    ngx_str_t  *url = data;

    size_t  i;

    for (i = 0; i < url->len; i++) {
        if (url->data[i] <= ' ' || url->data[i] >= 0x7f
            || ngx_strchr("<>\"\\", url->data[i]))
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid URL \"%V\"", url);
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


/* A string of variables and constant text.  With the length of the constant
   text, one comparison tells whether all variables are empty, captures too. */

static ngx_int_t
ngx_http_idempotency_compile(ngx_conf_t *cf, ngx_str_t *text,
    ngx_http_idempotency_value_t *value)
{
    ngx_str_t                          rest, name;
    ngx_http_compile_complex_value_t   ccv;

    ngx_memzero(&ccv, sizeof(ngx_http_compile_complex_value_t));

    ccv.cf = cf;
    ccv.value = text;
    ccv.complex_value = &value->script;

    if (ngx_http_compile_complex_value(&ccv) != NGX_OK) {
        return NGX_ERROR;
    }

    rest = *text;

    value->constant = 0;
    value->of_cookies = 1;

    while (next_variable(&rest, &name, &value->constant)) {
        value->of_cookies &= variable_begins(&name, "cookie_");
    }

    return NGX_OK;
}


static ngx_http_idempotency_value_t *
compile_value(ngx_conf_t *cf, ngx_str_t *text)
{
    ngx_http_idempotency_value_t  *value;

    value = ngx_pcalloc(cf->pool, sizeof(ngx_http_idempotency_value_t));

    if (value == NULL
        || ngx_http_idempotency_compile(cf, text, value) != NGX_OK)
    {
        return NULL;
    }

    ngx_http_idempotency_set_line(cf, &value->line);

    return value;
}


/* finds the next $name, ${name} or $1; all other text is constant */

static ngx_uint_t
next_variable(ngx_str_t *text, ngx_str_t *name, size_t *constant)
{
    u_char      *p, *last;
    ngx_uint_t   brace;

    last = text->data + text->len;

    p = ngx_strlchr(text->data, last, '$');

    if (p == NULL) {
        *constant += text->len;
        return 0;
    }

    *constant += p - text->data;

    p++;

    brace = (p < last && *p == '{');
    p += brace;

    name->data = p;

    if (p < last && *p >= '1' && *p <= '9') {
        p++;

    } else {
        while (p < last && (*p == '_' || (*p >= '0' && *p <= '9')
                            || ((*p | 0x20) >= 'a' && (*p | 0x20) <= 'z')))
        {
            p++;
        }
    }

    name->len = p - name->data;

    text->data = p + brace;
    text->len = last - text->data;

    return 1;
}


static char *
set_keys(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idempotency_loc_conf_t  *ilcf = conf;

    ngx_str_t   *value;
    ngx_uint_t   i;

    if (ilcf->keys != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    ilcf->keys = ngx_array_create(cf->pool, cf->args->nelts - 1,
                                  sizeof(ngx_http_idempotency_key_t));
    if (ilcf->keys == NULL) {
        return NGX_CONF_ERROR;
    }

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {
        if (add_key(cf, ilcf->keys, &value[i]) != NGX_OK) {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


static ngx_int_t
add_key(ngx_conf_t *cf, ngx_array_t *keys, ngx_str_t *value)
{
    ngx_http_idempotency_key_t  *key;

    key = ngx_array_push(keys);
    if (key == NULL
        || ngx_http_idempotency_compile(cf, value, &key->value) != NGX_OK
        || ngx_array_init(&key->headers, cf->pool, 1, sizeof(ngx_str_t))
           != NGX_OK
        || ngx_array_init(&key->fields, cf->pool, 1, sizeof(ngx_str_t))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    key->indirect = 0;
    key->header = (ngx_strcasecmp(value->data,
                                  (u_char *) "$http_idempotency_key") == 0
                   || ngx_strcasecmp(value->data,
                                     (u_char *) "${http_idempotency_key}")
                      == 0);

    if (value->len && key->value.script.lengths == NULL) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"idempotency_key\" "
                           "directive, it is the same key for all requests",
                           value);
        return NGX_ERROR;
    }

    return key_variables(cf, key);
}


/* Notes which $http_name, ${idempotency_field_name} etc. the string has.  A
   string of our own variables alone is empty until there is a key. */

static ngx_int_t
key_variables(ngx_conf_t *cf, ngx_http_idempotency_key_t *key)
{
    size_t       constant;
    ngx_int_t    rc;
    ngx_str_t    text, name;
    ngx_uint_t   never;

    text = key->value.script.value;

    never = 1;
    constant = 0;

    while (next_variable(&text, &name, &constant)) {

        if (ngx_http_idempotency_is_own_variable(&name)) {
            continue;
        }

        rc = NGX_OK;
        never = 0;

        if (variable_begins(&name, NGX_HTTP_IDEMPOTENCY_FIELD)) {
            rc = add_lower(cf, &key->fields,
                           name.data + NGX_HTTP_IDEMPOTENCY_FIELD_LEN,
                           name.data + name.len);

        } else if (variable_begins(&name, "http_")) {
            rc = add_lower(cf, &key->headers, name.data + 5,
                           name.data + name.len);

        } else if (!variable_begins(&name, "arg_")
                   && !variable_begins(&name, "cookie_"))
        {
            key->indirect = 1;
        }

        if (rc != NGX_OK) {
            return rc;
        }
    }

    if (never) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"idempotency_key\" "
                           "directive, it is never a key",
                           &key->value.script.value);
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* whether a variable has this prefix and a name behind it, as $http_name */

static ngx_uint_t
variable_begins(ngx_str_t *name, char *prefix)
{
    size_t  len;

    len = ngx_strlen(prefix);

    return name->len > len
           && ngx_strncasecmp(name->data, (u_char *) prefix, len) == 0;
}


/* adds a name in lower case, which ends with a zero */

static ngx_int_t
add_lower(ngx_conf_t *cf, ngx_array_t *names, u_char *start, u_char *last)
{
    ngx_str_t  *name;

    name = ngx_array_push(names);
    if (name == NULL) {
        return NGX_ERROR;
    }

    name->len = last - start;
    name->data = ngx_pcalloc(cf->pool, name->len + 1);
    if (name->data == NULL) {
        return NGX_ERROR;
    }

    ngx_strlow(name->data, start, name->len);

    return NGX_OK;
}


/* whether some key may stand in the request's body */

static ngx_uint_t
keys_in_body(ngx_conf_t *cf, ngx_array_t *keys)
{
    ngx_uint_t                   i;
    ngx_http_idempotency_key_t  *key;

    key = keys->elts;

    for (i = 0; i < keys->nelts; i++) {
        if (key[i].fields.nelts
            || (key[i].indirect && find_fields(cf, NULL) == NGX_OK))
        {
            return 1;
        }
    }

    return 0;
}
