
/*
 * The front door: the directives, their defaults, and where the module hooks
 * into nginx.  A request's way through it begins in request/gate.c.
 */


#include "ngx_http_idempotency.h"
#include "store/file/ngx_idempotency_file.h"


static ngx_int_t ngx_http_idempotency_init(ngx_conf_t *cf);
static ngx_int_t ngx_http_idempotency_init_module(ngx_cycle_t *cycle);
static ngx_int_t ngx_http_idempotency_init_process(ngx_cycle_t *cycle);
static void ngx_http_idempotency_exit_process(ngx_cycle_t *cycle);
static ngx_uint_t ngx_http_idempotency_is_worker(ngx_cycle_t *cycle);
static void *ngx_http_idempotency_create_main_conf(ngx_conf_t *cf);
static void *ngx_http_idempotency_create_loc_conf(ngx_conf_t *cf);
static char *ngx_http_idempotency_merge_loc_conf(ngx_conf_t *cf, void *parent,
    void *child);
static void ngx_http_idempotency_merge_response(
    ngx_http_idempotency_loc_conf_t *prev,
    ngx_http_idempotency_loc_conf_t *conf);
static void ngx_http_idempotency_merge_status(
    ngx_http_idempotency_loc_conf_t *prev,
    ngx_http_idempotency_loc_conf_t *conf);
static ngx_int_t ngx_http_idempotency_merge_keys(ngx_conf_t *cf,
    ngx_http_idempotency_loc_conf_t *prev,
    ngx_http_idempotency_loc_conf_t *conf);
static ngx_int_t ngx_http_idempotency_merge_identity(ngx_conf_t *cf,
    ngx_http_idempotency_loc_conf_t *prev,
    ngx_http_idempotency_loc_conf_t *conf);
static void ngx_http_idempotency_merge_canon(
    ngx_http_idempotency_loc_conf_t *prev,
    ngx_http_idempotency_loc_conf_t *conf);


static ngx_conf_bitmask_t  ngx_http_idempotency_methods[] = {
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


static ngx_conf_enum_t  ngx_http_idempotency_missing_key[] = {
    { ngx_string("pass"), NGX_HTTP_IDEMPOTENCY_MISSING_KEY_PASS },
    { ngx_string("reject"), NGX_HTTP_IDEMPOTENCY_MISSING_KEY_REJECT },
    { ngx_string("content"), NGX_HTTP_IDEMPOTENCY_MISSING_KEY_CONTENT },
    { ngx_string("form"), NGX_HTTP_IDEMPOTENCY_MISSING_KEY_FORM },
    { ngx_null_string, 0 }
};


static ngx_conf_enum_t  ngx_http_idempotency_similar_policies[] = {
    { ngx_string("off"), NGX_HTTP_IDEMPOTENCY_SIMILAR_OFF },
    { ngx_string("warn"), NGX_HTTP_IDEMPOTENCY_SIMILAR_WARN },
    { ngx_string("reject"), NGX_HTTP_IDEMPOTENCY_SIMILAR_REJECT },
    { ngx_null_string, 0 }
};


static ngx_conf_enum_t  ngx_http_idempotency_key_format[] = {
    { ngx_string("any"), NGX_HTTP_IDEMPOTENCY_KEY_FORMAT_ANY },
    { ngx_string("sf-string"), NGX_HTTP_IDEMPOTENCY_KEY_FORMAT_SF_STRING },
    { ngx_string("uuid"), NGX_HTTP_IDEMPOTENCY_KEY_FORMAT_UUID },
    { ngx_string("uuid7"), NGX_HTTP_IDEMPOTENCY_KEY_FORMAT_UUID7 },
    { ngx_null_string, 0 }
};


static ngx_conf_enum_t  ngx_http_idempotency_in_progress[] = {
    { ngx_string("wait"), NGX_HTTP_IDEMPOTENCY_IN_PROGRESS_WAIT },
    { ngx_string("reject"), NGX_HTTP_IDEMPOTENCY_IN_PROGRESS_REJECT },
    { ngx_string("accepted"), NGX_HTTP_IDEMPOTENCY_IN_PROGRESS_ACCEPTED },
    { ngx_null_string, 0 }
};


static ngx_conf_enum_t  ngx_http_idempotency_in_doubt[] = {
    { ngx_string("reject"), NGX_HTTP_IDEMPOTENCY_IN_DOUBT_REJECT },
    { ngx_string("retry"), NGX_HTTP_IDEMPOTENCY_IN_DOUBT_RETRY },
    { ngx_null_string, 0 }
};


static ngx_conf_enum_t  ngx_http_idempotency_unavailable[] = {
    { ngx_string("reject"), NGX_HTTP_IDEMPOTENCY_UNAVAILABLE_REJECT },
    { ngx_string("pass"), NGX_HTTP_IDEMPOTENCY_UNAVAILABLE_PASS },
    { ngx_string("local"), NGX_HTTP_IDEMPOTENCY_UNAVAILABLE_LOCAL },
    { ngx_null_string, 0 }
};


static ngx_conf_enum_t  ngx_http_idempotency_replay_cookies[] = {
    { ngx_string("identified"), NGX_HTTP_IDEMPOTENCY_COOKIES_IDENTIFIED },
    { ngx_string("always"), NGX_HTTP_IDEMPOTENCY_COOKIES_ALWAYS },
    { ngx_string("never"), NGX_HTTP_IDEMPOTENCY_COOKIES_NEVER },
    { ngx_null_string, 0 }
};


static ngx_conf_enum_t  ngx_http_idempotency_log_levels[] = {
    { ngx_string("info"), NGX_LOG_INFO },
    { ngx_string("notice"), NGX_LOG_NOTICE },
    { ngx_string("warn"), NGX_LOG_WARN },
    { ngx_string("error"), NGX_LOG_ERR },
    { ngx_null_string, 0 }
};


static ngx_conf_num_bounds_t  ngx_http_idempotency_key_bounds = {
    ngx_conf_check_num_bounds, 1, -1
};


static ngx_conf_post_t  ngx_http_idempotency_time_post = {
    ngx_http_idempotency_check_time
};


static ngx_conf_post_t  ngx_http_idempotency_replay_header_post = {
    ngx_http_idempotency_check_replay_header
};


static ngx_conf_post_t  ngx_http_idempotency_docs_post = {
    ngx_http_idempotency_check_docs
};


#define NGX_HTTP_IDEMPOTENCY_CONF                                            \
    NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF


static ngx_command_t  ngx_http_idempotency_commands[] = {

    { ngx_string("idempotency_zone"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_1MORE,
      ngx_http_idempotency_set_zone,
      0,
      0,
      NULL },

    { ngx_string("idempotency_secret"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE1,
      ngx_http_idempotency_set_secret,
      0,
      0,
      NULL },

    { ngx_string("idempotency_redis"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_BLOCK|NGX_CONF_TAKE1,
      ngx_http_idempotency_redis_block,
      0,
      0,
      NULL },

    { ngx_string("idempotency"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_TAKE1,
      ngx_http_idempotency_set,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idempotency_methods"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_1MORE,
      ngx_http_idempotency_set_methods,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_idempotency_loc_conf_t, methods),
      &ngx_http_idempotency_methods },

    { ngx_string("idempotency_key"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_1MORE,
      ngx_http_idempotency_set_keys,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idempotency_missing_key"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_TAKE1,
      ngx_http_idempotency_set_missing_key,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_idempotency_loc_conf_t, missing_key),
      &ngx_http_idempotency_missing_key },

    { ngx_string("idempotency_key_format"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_enum_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_idempotency_loc_conf_t, key_format),
      &ngx_http_idempotency_key_format },

    { ngx_string("idempotency_key_max_age"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_msec_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_idempotency_loc_conf_t, key_max_age),
      &ngx_http_idempotency_time_post },

    { ngx_string("idempotency_key_max_length"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_num_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_idempotency_loc_conf_t, key_max_length),
      &ngx_http_idempotency_key_bounds },

    { ngx_string("idempotency_scope"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_TAKE1,
      ngx_http_set_complex_value_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_idempotency_loc_conf_t, scope),
      NULL },

    { ngx_string("idempotency_identity"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_TAKE1,
      ngx_http_idempotency_set_identity,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idempotency_ignore_cookies"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_1MORE,
      ngx_http_idempotency_set_ignore_cookies,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idempotency_bind"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_1MORE,
      ngx_http_set_predicate_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_idempotency_loc_conf_t, bind),
      NULL },

    { ngx_string("idempotency_bypass"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_1MORE,
      ngx_http_set_predicate_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_idempotency_loc_conf_t, bypass),
      NULL },

    { ngx_string("idempotency_normalize"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_1MORE,
      ngx_http_idempotency_set_normalize,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_idempotency_loc_conf_t, canon.flags),
      NULL },

    { ngx_string("idempotency_normalize_buffer"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_size_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_idempotency_loc_conf_t, normalize_buffer),
      NULL },

    { ngx_string("idempotency_ignore_fields"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_1MORE,
      ngx_http_idempotency_set_ignore_fields,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_idempotency_loc_conf_t, ignore_fields),
      NULL },

    { ngx_string("idempotency_content_window"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_msec_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_idempotency_loc_conf_t, content_window),
      &ngx_http_idempotency_time_post },

    { ngx_string("idempotency_similar"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_enum_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_idempotency_loc_conf_t, similar),
      &ngx_http_idempotency_similar_policies },

    { ngx_string("idempotency_window"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_TAKE1,
      ngx_http_idempotency_set_window,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_idempotency_loc_conf_t, window),
      &ngx_http_idempotency_time_post },

    { ngx_string("idempotency_in_progress"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_enum_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_idempotency_loc_conf_t, in_progress),
      &ngx_http_idempotency_in_progress },

    { ngx_string("idempotency_wait_timeout"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_msec_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_idempotency_loc_conf_t, wait_timeout),
      &ngx_http_idempotency_time_post },

    { ngx_string("idempotency_lease"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_msec_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_idempotency_loc_conf_t, lease),
      &ngx_http_idempotency_time_post },

    { ngx_string("idempotency_in_doubt"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_enum_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_idempotency_loc_conf_t, in_doubt),
      &ngx_http_idempotency_in_doubt },

    { ngx_string("idempotency_unavailable"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_enum_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_idempotency_loc_conf_t, unavailable),
      &ngx_http_idempotency_unavailable },

    { ngx_string("idempotency_quota"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_TAKE12,
      ngx_http_idempotency_set_quota,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idempotency_keep"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_1MORE,
      ngx_http_idempotency_set_keep,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idempotency_max_response"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_size_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_idempotency_loc_conf_t, max_response_given),
      NULL },

    { ngx_string("idempotency_hide_header"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_1MORE,
      ngx_http_idempotency_add_names,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_idempotency_loc_conf_t, hide_headers),
      NULL },

    { ngx_string("idempotency_replay_cookies"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_enum_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_idempotency_loc_conf_t, replay_cookies),
      &ngx_http_idempotency_replay_cookies },

    { ngx_string("idempotency_status"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_1MORE,
      ngx_http_idempotency_set_status,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idempotency_replay_header"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_str_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_idempotency_loc_conf_t, replay_header),
      &ngx_http_idempotency_replay_header_post },

    { ngx_string("idempotency_docs"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_str_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_idempotency_loc_conf_t, docs),
      &ngx_http_idempotency_docs_post },

    { ngx_string("idempotency_dry_run"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_idempotency_loc_conf_t, dry_run),
      NULL },

    { ngx_string("idempotency_api"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS|NGX_CONF_TAKE12,
      ngx_http_idempotency_api,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idempotency_guard"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS,
      ngx_http_idempotency_guard,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idempotency_log_level"),
      NGX_HTTP_IDEMPOTENCY_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_enum_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_idempotency_loc_conf_t, log_level),
      &ngx_http_idempotency_log_levels },

      ngx_null_command
};


static ngx_http_module_t  ngx_http_idempotency_module_ctx = {
    ngx_http_idempotency_add_variables,    /* preconfiguration */
    ngx_http_idempotency_init,             /* postconfiguration */

    ngx_http_idempotency_create_main_conf, /* create main configuration */
    NULL,                                  /* init main configuration */

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
    ngx_http_handler_pt               *h;
    ngx_http_core_main_conf_t         *cmcf;
    ngx_http_idempotency_main_conf_t  *imcf;

    if (ngx_http_idempotency_check_zones(cf) != NGX_OK
        || ngx_http_idempotency_check_redis(cf) != NGX_OK)
    {
        return NGX_ERROR;
    }

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    h = ngx_array_push(&cmcf->phases[NGX_HTTP_ACCESS_PHASE].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = ngx_http_idempotency_access_handler;

    h = ngx_array_push(&cmcf->phases[NGX_HTTP_PRECONTENT_PHASE].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = ngx_http_idempotency_precontent_handler;

    if (ngx_idempotency_engine.keep(cf) != NGX_OK) {
        return NGX_ERROR;
    }

    imcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);

    if (imcf->api && imcf->stores.nelts) {
        imcf->in_use = 1;
    }

    if (!imcf->in_use) {
        return NGX_OK;
    }

    if (ngx_http_idempotency_init_fields(cf) != NGX_OK) {
        return NGX_ERROR;
    }

    imcf->dav = ngx_http_idempotency_find_module(cf, "ngx_http_dav_module");
    imcf->slice = ngx_http_idempotency_find_module(cf,
                                              "ngx_http_slice_filter_module");

    ngx_http_idempotency_warn_upstreams(cf, &imcf->locations);

    if (ngx_http_idempotency_init_peers(cf) != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_http_idempotency_location_init(cf, imcf->location_map);
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


static ngx_int_t
ngx_http_idempotency_init_process(ngx_cycle_t *cycle)
{
    if (ngx_process == NGX_PROCESS_HELPER) {
        ngx_idempotency_file_leave();
    }

    if (!ngx_http_idempotency_is_worker(cycle)) {
        return NGX_OK;
    }

    return ngx_idempotency_engine.init_process(cycle);
}


static void
ngx_http_idempotency_exit_process(ngx_cycle_t *cycle)
{
    if (ngx_http_idempotency_is_worker(cycle)) {
        ngx_idempotency_engine.exit_process(cycle);
        ngx_idempotency_file_exit_process();
        ngx_http_idempotency_log_rest();
    }
}


/* not the cache manager, nor the loader, nor a worker without need of us */

static ngx_uint_t
ngx_http_idempotency_is_worker(ngx_cycle_t *cycle)
{
    return (ngx_process == NGX_PROCESS_WORKER
            || ngx_process == NGX_PROCESS_SINGLE)
           && ngx_http_idempotency_in_use(cycle);
}


ngx_uint_t
ngx_http_idempotency_in_use(ngx_cycle_t *cycle)
{
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_cycle_get_module_main_conf(cycle,
                                               ngx_http_idempotency_module);

    return imcf && imcf->in_use;
}


static void *
ngx_http_idempotency_create_main_conf(ngx_conf_t *cf)
{
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_pcalloc(cf->pool, sizeof(ngx_http_idempotency_main_conf_t));
    if (imcf == NULL) {
        return NULL;
    }

    if (ngx_array_init(&imcf->locations, cf->pool, 8, sizeof(void **))
        != NGX_OK
        || ngx_array_init(&imcf->stores, cf->pool, 4,
                          sizeof(ngx_idempotency_store_t *))
           != NGX_OK
        || ngx_array_init(&imcf->uses, cf->pool, 8,
                          sizeof(ngx_http_idempotency_use_t))
           != NGX_OK
        || ngx_array_init(&imcf->states, cf->pool, 1, sizeof(ngx_str_t))
           != NGX_OK
        || ngx_array_init(&imcf->redis, cf->pool, 1,
                          sizeof(ngx_idempotency_redis_t *))
           != NGX_OK)
    {
        return NULL;
    }

    ngx_http_idempotency_credentials_init();

    imcf->location_map = ngx_http_idempotency_location_map(cf);

    return imcf->location_map ? imcf : NULL;
}


static void *
ngx_http_idempotency_create_loc_conf(ngx_conf_t *cf)
{
    ngx_http_idempotency_loc_conf_t  *conf;

    conf = ngx_pcalloc(cf->pool, sizeof(ngx_http_idempotency_loc_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    /*
     * set by ngx_pcalloc():
     *
     *     conf->methods = 0;
     *     conf->missing_key_line = NULL;
     *     conf->scope = NULL;
     *     conf->identity = NULL;
     *     conf->window_value = NULL;
     *     conf->quota_value = NULL;
     *     conf->canon = { 0, NULL };
     *     conf->status = { 0 };
     *     conf->replay_header = { 0, NULL };
     *     conf->docs = { 0, NULL };
     *     conf->api = 0;
     *     conf->api_write = 0;
     *     conf->api_remote = 0;
     *     conf->api_names = NULL;
     */

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

    void                            ***location;
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);

    if (ngx_http_idempotency_location_add(cf, imcf->location_map, prev->place,
                                        &conf->place)
        != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    ngx_conf_merge_ptr_value(conf->store, prev->store, NULL);

    ngx_conf_merge_bitmask_value(conf->methods, prev->methods,
                                 (NGX_CONF_BITMASK_SET|NGX_HTTP_POST
                                  |NGX_HTTP_PATCH));

    if (ngx_http_idempotency_merge_keys(cf, prev, conf) != NGX_OK
        || ngx_http_idempotency_merge_identity(cf, prev, conf) != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    ngx_http_idempotency_merge_canon(prev, conf);

    if (conf->missing_key == NGX_CONF_UNSET_UINT) {
        conf->missing_key_line = prev->missing_key_line;
    }

    ngx_conf_merge_uint_value(conf->missing_key, prev->missing_key,
                              NGX_HTTP_IDEMPOTENCY_MISSING_KEY_PASS);
    conf->key_in_body =
                 conf->missing_key == NGX_HTTP_IDEMPOTENCY_MISSING_KEY_CONTENT
                 || ngx_http_idempotency_keys_in_body(cf, conf->keys);

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

    if (ngx_http_idempotency_merge_window(cf, prev, conf) != NGX_OK) {
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

    if (conf->api && ngx_http_idempotency_api_merge(cf, conf) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    if (conf->store == NULL) {
        return NGX_CONF_OK;
    }

    ngx_http_idempotency_bind_settings(conf);
    ngx_http_idempotency_warn_content(cf, conf);

    imcf->in_use = 1;

    location = ngx_array_push(&imcf->locations);
    if (location == NULL) {
        return NGX_CONF_ERROR;
    }

    *location = ((ngx_http_conf_ctx_t *) cf->ctx)->loc_conf;

    return NGX_CONF_OK;
}


/* which responses are recorded, and what of them is replayed */

static void
ngx_http_idempotency_merge_response(ngx_http_idempotency_loc_conf_t *prev,
    ngx_http_idempotency_loc_conf_t *conf)
{
    ngx_conf_merge_ptr_value(conf->keep, prev->keep, NULL);
    ngx_conf_merge_size_value(conf->max_response_given,
                              prev->max_response_given, NGX_CONF_UNSET_SIZE);

    conf->max_response = conf->max_response_given;

    if (conf->max_response == NGX_CONF_UNSET_SIZE) {
        conf->max_response = (conf->store && conf->store->most)
                             ? conf->store->most : 1024 * 1024;
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
            conf->status[i] = ngx_http_idempotency_refusals[i].code;
        }
    }
}


static ngx_int_t
ngx_http_idempotency_merge_keys(ngx_conf_t *cf,
    ngx_http_idempotency_loc_conf_t *prev,
    ngx_http_idempotency_loc_conf_t *conf)
{
    static ngx_str_t  value = ngx_string("$http_idempotency_key");

    if (conf->keys != NGX_CONF_UNSET_PTR) {
        return NGX_OK;
    }

    if (prev->keys == NGX_CONF_UNSET_PTR) {

        /* only the http level has none to inherit: all levels share it */

        prev->keys = ngx_array_create(cf->pool, 1,
                                      sizeof(ngx_http_idempotency_key_t));

        if (prev->keys == NULL
            || ngx_http_idempotency_add_key(cf, prev->keys, &value) != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    conf->keys = prev->keys;

    return NGX_OK;
}


static ngx_int_t
ngx_http_idempotency_merge_identity(ngx_conf_t *cf,
    ngx_http_idempotency_loc_conf_t *prev,
    ngx_http_idempotency_loc_conf_t *conf)
{
    if (conf->identity == NULL) {
        conf->identity = prev->identity;
    }

    ngx_conf_merge_ptr_value(conf->bind, prev->bind, NULL);

    if (conf->ignore_cookies != NGX_CONF_UNSET_PTR) {
        return NGX_OK;
    }

    if (prev->ignore_cookies == NGX_CONF_UNSET_PTR) {

        /* only the http level has none to inherit: all levels share it */

        prev->ignore_cookies = ngx_http_idempotency_ignored_create(cf);
        if (prev->ignore_cookies == NULL) {
            return NGX_ERROR;
        }
    }

    conf->ignore_cookies = prev->ignore_cookies;

    return NGX_OK;
}


static void
ngx_http_idempotency_merge_canon(ngx_http_idempotency_loc_conf_t *prev,
    ngx_http_idempotency_loc_conf_t *conf)
{
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
}
