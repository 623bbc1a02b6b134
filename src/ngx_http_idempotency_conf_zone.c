
/* idempotency_zone: a store, and what stands behind it. */


#include "ngx_http_idempotency.h"
#include "store/file/ngx_idempotency_file.h"
#include "store/redis/ngx_idempotency_backing_redis.h"


typedef struct {
    ngx_str_t                      name;
    size_t                         size;
    ngx_uint_t                     evict;
    ngx_idempotency_file_conf_t    file;
    ngx_str_t                      redis;
    /* what takes a file, if it was given without one */
    ngx_str_t                     *needs_file;
} conf_zone_t;


/* NGX_DECLINED: it is none of its values; NGX_ERROR is logged */

typedef struct {
    ngx_str_t                      name;
    ngx_int_t                    (*set)(ngx_conf_t *cf, conf_zone_t *zone,
                                       ngx_str_t *value);
    /* it takes a file */
    ngx_uint_t                     of_file;
} conf_zone_parameter_t;


static ngx_int_t conf_zone_parameter(ngx_conf_t *cf, conf_zone_t *zone,
    ngx_uint_t *given, ngx_str_t *value);
static ngx_int_t conf_zone_zone(ngx_conf_t *cf, conf_zone_t *zone,
    ngx_str_t *value);
static ngx_int_t conf_zone_evict(ngx_conf_t *cf, conf_zone_t *zone,
    ngx_str_t *value);
static ngx_int_t conf_zone_state(ngx_conf_t *cf, conf_zone_t *zone,
    ngx_str_t *value);
static ngx_int_t conf_zone_redis(ngx_conf_t *cf, conf_zone_t *zone,
    ngx_str_t *value);
static ngx_int_t conf_zone_sync(ngx_conf_t *cf, conf_zone_t *zone,
    ngx_str_t *value);
static ngx_int_t conf_zone_max_size(ngx_conf_t *cf, conf_zone_t *zone,
    ngx_str_t *value);


static conf_zone_parameter_t  conf_zone_parameters[] = {
    { ngx_string("zone="), conf_zone_zone, 0 },
    { ngx_string("evict="), conf_zone_evict, 0 },
    { ngx_string("state="), conf_zone_state, 0 },
    { ngx_string("redis="), conf_zone_redis, 0 },
    { ngx_string("sync="), conf_zone_sync, 1 },
    { ngx_string("max_size="), conf_zone_max_size, 1 },
    { ngx_null_string, NULL, 0 }
};


char *
ngx_http_idempotency_set_zone(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_str_t                *value;
    ngx_uint_t                i, given;
    conf_zone_t               zone;
    ngx_idempotency_redis_t  *redis;
    ngx_idempotency_store_t  *store;

    value = cf->args->elts;
    given = 0;

    ngx_memzero(&zone, sizeof(conf_zone_t));

    for (i = 1; i < cf->args->nelts; i++) {

        switch (conf_zone_parameter(cf, &zone, &given, &value[i])) {

        case NGX_OK:
            continue;

        case NGX_DECLINED:
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\"", &value[i]);
        }

        return NGX_CONF_ERROR;
    }

    if (zone.name.len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" must have \"zone\" parameter", &cmd->name);
        return NGX_CONF_ERROR;
    }

    if (zone.needs_file && zone.file.path.len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" takes a \"state\" parameter",
                           zone.needs_file);
        return NGX_CONF_ERROR;
    }

    if (zone.redis.len && zone.file.path.len) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" takes either a \"state\" parameter or a "
                           "\"redis\" parameter", &cmd->name);
        return NGX_CONF_ERROR;
    }

    store = ngx_http_idempotency_store(cf, &zone.name);

    if (store == NULL
        || ngx_idempotency_shm_zone_add(cf, store, zone.size, zone.evict)
           != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    if (zone.file.path.len
        && ngx_idempotency_file_add(cf, store, &zone.file) != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    if (zone.redis.len) {
        redis = ngx_http_idempotency_redis(cf, &zone.redis);

        if (redis == NULL
            || ngx_idempotency_backing_redis_add(cf, store, redis, &zone.redis)
               != NGX_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


/* each at most once */

static ngx_int_t
conf_zone_parameter(ngx_conf_t *cf, conf_zone_t *zone, ngx_uint_t *given,
    ngx_str_t *value)
{
    ngx_str_t               s;
    ngx_uint_t              i;
    conf_zone_parameter_t  *p;

    for (i = 0; conf_zone_parameters[i].set; i++) {
        p = &conf_zone_parameters[i];

        if (ngx_strncmp(value->data, p->name.data, p->name.len) != 0
            || (*given & (1 << i)))
        {
            continue;
        }

        *given |= 1 << i;

        if (p->of_file) {
            zone->needs_file = value;
        }

        s.len = value->len - p->name.len;
        s.data = value->data + p->name.len;

        return p->set(cf, zone, &s);
    }

    return NGX_DECLINED;
}


static ngx_int_t
conf_zone_zone(ngx_conf_t *cf, conf_zone_t *zone, ngx_str_t *value)
{
    u_char     *p;
    ssize_t     size;
    ngx_str_t   s;

    p = (u_char *) ngx_strchr(value->data, ':');

    if (p == NULL || p == value->data) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid zone \"zone=%V\"", value);
        return NGX_ERROR;
    }

    zone->name.data = value->data;
    zone->name.len = p - value->data;

    s.data = p + 1;
    s.len = value->data + value->len - s.data;

    size = ngx_parse_size(&s);

    if (size == NGX_ERROR) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid zone size \"zone=%V\"", value);
        return NGX_ERROR;
    }

    if (size < (ssize_t) (8 * ngx_pagesize)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "zone \"%V\" is too small", &zone->name);
        return NGX_ERROR;
    }

    zone->size = size;

    return NGX_OK;
}


static ngx_int_t
conf_zone_evict(ngx_conf_t *cf, conf_zone_t *zone, ngx_str_t *value)
{
    if (ngx_strcmp(value->data, "off") == 0) {
        return NGX_OK;
    }

    if (ngx_strcmp(value->data, "responses") == 0) {
        zone->evict = 1;
        return NGX_OK;
    }

    return NGX_DECLINED;
}


static ngx_int_t
conf_zone_state(ngx_conf_t *cf, conf_zone_t *zone, ngx_str_t *value)
{
    ngx_uint_t                         i;
    ngx_str_t                         *path;
    ngx_http_idempotency_main_conf_t  *imcf;

    if (value->len == 0) {
        return NGX_DECLINED;
    }

    zone->file.path = *value;

    if (ngx_conf_full_name(cf->cycle, &zone->file.path, 0) != NGX_OK) {
        return NGX_ERROR;
    }

    imcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);

    path = imcf->states.elts;

    for (i = 0; i < imcf->states.nelts; i++) {

        if (path[i].len == zone->file.path.len
            && ngx_strncmp(path[i].data, zone->file.path.data, path[i].len)
               == 0)
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "the state \"%V\" already belongs to another "
                               "zone", &path[i]);
            return NGX_ERROR;
        }
    }

    path = ngx_array_push(&imcf->states);
    if (path == NULL) {
        return NGX_ERROR;
    }

    *path = zone->file.path;

    return NGX_OK;
}


static ngx_int_t
conf_zone_redis(ngx_conf_t *cf, conf_zone_t *zone, ngx_str_t *value)
{
    zone->redis = *value;

    return value->len ? NGX_OK : NGX_DECLINED;
}


static ngx_int_t
conf_zone_sync(ngx_conf_t *cf, conf_zone_t *zone, ngx_str_t *value)
{
    if (ngx_strcmp(value->data, "batched") == 0) {
        zone->file.sync = NGX_IDEMPOTENCY_SYNC_BATCHED;
        return NGX_OK;
    }

    if (ngx_strcmp(value->data, "strict") == 0) {
        zone->file.sync = NGX_IDEMPOTENCY_SYNC_STRICT;
        return NGX_OK;
    }

    return NGX_DECLINED;
}


static ngx_int_t
conf_zone_max_size(ngx_conf_t *cf, conf_zone_t *zone, ngx_str_t *value)
{
    off_t  size;

    size = ngx_parse_offset(value);

    if (size == NGX_ERROR || size == 0) {
        return NGX_DECLINED;
    }

    zone->file.max_size = size;

    return NGX_OK;
}
