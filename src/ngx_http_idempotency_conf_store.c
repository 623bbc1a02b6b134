
/*
 * The directives of stores: idempotency, idempotency_zone, idempotency_redis
 * and idempotency_secret.  A zone may be used before it is defined, so zones
 * and blocks are checked at the end of the configuration.  The file of secret
 * keys is read once, by the master.
 */


#include "ngx_http_idempotency.h"
#include "store/file/ngx_idempotency_file.h"
#include "store/redis/ngx_idempotency_backing_redis.h"
#include "store/redis/ngx_idempotency_redis.h"
#include <openssl/crypto.h>


/* the parameters of idempotency_zone; a string without data was not given */

typedef struct {
    ngx_str_t                      zone;
    ngx_str_t                      evict;
    ngx_str_t                      state;
    ngx_str_t                      redis;
    ngx_str_t                      sync;
    ngx_str_t                      max_size;
} conf_zone_t;

typedef struct {
    ngx_str_t                      name;
    size_t                         offset;
} conf_zone_parameter_t;


/* the largest file of keys or of a password */

#define CONF_SECRET_SIZE  65536

#define CONF_PASSWORD_SIZE  4096


static ngx_int_t conf_zone_parameter(conf_zone_t *zone, ngx_str_t *value);
static ngx_idempotency_store_t *conf_store(ngx_conf_t *cf, ngx_str_t *name);
static ngx_idempotency_redis_t *conf_redis(ngx_conf_t *cf, ngx_str_t *name);
static ngx_int_t conf_zone_size(ngx_conf_t *cf, ngx_str_t *zone,
    size_t *size);
static ngx_int_t conf_zone_choice(ngx_conf_t *cf, const char *name,
    ngx_str_t *value, const char *zero, const char *one);
static ngx_int_t conf_zone_file(ngx_conf_t *cf, conf_zone_t *zone,
    ngx_idempotency_store_t *store, ngx_uint_t sync);
static char *conf_redis_line(ngx_conf_t *cf, ngx_command_t *dummy,
    void *data);
static char *conf_redis_server(ngx_conf_t *cf, ngx_command_t *cmd,
    void *data);
static char *conf_redis_password(ngx_conf_t *cf, ngx_command_t *cmd,
    void *data);
static ngx_int_t conf_redis_done(ngx_conf_t *cf,
    ngx_idempotency_redis_conf_t *conf);
static ngx_int_t conf_redis_check(ngx_conf_t *cf,
    ngx_idempotency_redis_conf_t *conf);
static ngx_int_t conf_redis_ssl(ngx_conf_t *cf,
    ngx_idempotency_redis_conf_t *conf);
static ngx_int_t conf_redis_resolve(ngx_conf_t *cf,
    ngx_idempotency_redis_conf_t *conf);
static ngx_int_t conf_secret_parse(ngx_conf_t *cf, ngx_str_t *name,
    ngx_str_t *text);
static ngx_int_t conf_file_read(ngx_conf_t *cf, ngx_str_t *name, off_t max,
    ngx_str_t *text);
static ngx_int_t conf_file_text(ngx_conf_t *cf, ngx_file_t *file, off_t max,
    ngx_str_t *text);
static void conf_file_wipe(ngx_str_t *text);


static conf_zone_parameter_t  conf_zone_parameters[] = {
    { ngx_string("zone="), offsetof(conf_zone_t, zone) },
    { ngx_string("evict="), offsetof(conf_zone_t, evict) },
    { ngx_string("state="), offsetof(conf_zone_t, state) },
    { ngx_string("redis="), offsetof(conf_zone_t, redis) },
    { ngx_string("sync="), offsetof(conf_zone_t, sync) },
    { ngx_string("max_size="), offsetof(conf_zone_t, max_size) },
    { ngx_null_string, 0 }
};


static ngx_conf_enum_t  conf_redis_modes[] = {
    { ngx_string("standalone"), NGX_IDEMPOTENCY_REDIS_STANDALONE },
    { ngx_string("sentinel"), NGX_IDEMPOTENCY_REDIS_SENTINEL },
    { ngx_string("cluster"), NGX_IDEMPOTENCY_REDIS_CLUSTER },
    { ngx_null_string, 0 }
};

static ngx_conf_enum_t  conf_redis_lost[] = {
    { ngx_string("refuse"), 0 },
    { ngx_string("accept"), 1 },
    { ngx_null_string, 0 }
};

static ngx_conf_num_bounds_t  conf_redis_connections = {
    ngx_conf_check_num_bounds, 1, 64
};

static ngx_conf_num_bounds_t  conf_redis_replicas = {
    ngx_conf_check_num_bounds, 0, 64
};

static ngx_conf_post_t  conf_redis_time = {
    ngx_http_idempotency_check_time
};

#define parameter(name, args, set, member, post)                             \
    { ngx_string(name), NGX_CONF_##args, set, 0,                             \
      offsetof(ngx_idempotency_redis_conf_t, member), post }

static ngx_command_t  conf_redis_parameters[] = {
    parameter("server", 1MORE, conf_redis_server, servers, NULL),
    parameter("mode", TAKE1, ngx_conf_set_enum_slot, mode, conf_redis_modes),
    parameter("master", TAKE1, ngx_conf_set_str_slot, master, NULL),
    parameter("user", TAKE1, ngx_conf_set_str_slot, user, NULL),
    parameter("password_file", TAKE1, conf_redis_password, password, NULL),
    parameter("database", TAKE1, ngx_conf_set_num_slot, database, NULL),
    parameter("prefix", TAKE1, ngx_conf_set_str_slot, prefix, NULL),
    parameter("connections", TAKE1, ngx_conf_set_num_slot, connections,
              &conf_redis_connections),
    parameter("connect_timeout", TAKE1, ngx_conf_set_msec_slot, connect_timeout,
              &conf_redis_time),
    parameter("timeout", TAKE1, ngx_conf_set_msec_slot, timeout,
              &conf_redis_time),
    parameter("replicas", TAKE1, ngx_conf_set_num_slot, replicas,
              &conf_redis_replicas),
    parameter("fsync", TAKE1, ngx_conf_set_flag_slot, fsync, NULL),
    parameter("lost", TAKE1, ngx_conf_set_enum_slot, lost, conf_redis_lost),
    parameter("ssl", TAKE1, ngx_conf_set_flag_slot, ssl, NULL),
    parameter("ssl_name", TAKE1, ngx_conf_set_str_slot, ssl_name, NULL),
    parameter("ssl_verify", TAKE1, ngx_conf_set_flag_slot, ssl_verify, NULL),
    parameter("ssl_trusted_certificate", TAKE1, ngx_conf_set_str_slot,
              ssl_trusted_certificate, NULL),
    parameter("ssl_certificate", TAKE1, ngx_conf_set_str_slot, ssl_certificate,
              NULL),
    parameter("ssl_certificate_key", TAKE1, ngx_conf_set_str_slot,
              ssl_certificate_key, NULL),
    ngx_null_command
};

#undef parameter


char *
ngx_http_idempotency_set(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_idempotency_loc_conf_t  *ilcf = conf;

    ngx_str_t  *value, name;

    if (ilcf->store != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_strcmp(value[1].data, "off") == 0) {
        ilcf->store = NULL;
        return NGX_CONF_OK;
    }

    if (ngx_strncmp(value[1].data, "zone=", 5) != 0 || value[1].len == 5) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid parameter \"%V\"", &value[1]);
        return NGX_CONF_ERROR;
    }

    name.len = value[1].len - 5;
    name.data = value[1].data + 5;

    /* the zone may be defined further down:
       ngx_http_idempotency_check_stores() notices if not */

    ilcf->store = conf_store(cf, &name);

    return ilcf->store ? NGX_CONF_OK : NGX_CONF_ERROR;
}


char *
ngx_http_idempotency_set_zone(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    size_t                    size;
    ngx_int_t                 evict, sync;
    ngx_str_t                *value;
    ngx_uint_t                i;
    conf_zone_t               zone;
    ngx_idempotency_redis_t  *redis;
    ngx_idempotency_store_t  *store;

    value = cf->args->elts;

    ngx_memzero(&zone, sizeof(conf_zone_t));

    for (i = 1; i < cf->args->nelts; i++) {
        if (conf_zone_parameter(&zone, &value[i]) != NGX_OK) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\"", &value[i]);
            return NGX_CONF_ERROR;
        }
    }

    if (zone.zone.data == NULL) {
        return "must have \"zone\" parameter";
    }

    if (zone.state.data == NULL && (zone.sync.data || zone.max_size.data)) {
        return "takes \"sync\" and \"max_size\" with a \"state\" parameter "
               "only";
    }

    if (zone.state.data && zone.redis.data) {
        return "takes either a \"state\" parameter or a \"redis\" parameter";
    }

    evict = conf_zone_choice(cf, "evict", &zone.evict, "off", "responses");
    sync = conf_zone_choice(cf, "sync", &zone.sync, "batched", "strict");

    if (evict == NGX_ERROR || sync == NGX_ERROR
        || conf_zone_size(cf, &zone.zone, &size) != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    store = conf_store(cf, &zone.zone);

    if (store == NULL
        || ngx_idempotency_shm_zone_add(cf, store, size, evict) != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    if (zone.state.data && conf_zone_file(cf, &zone, store, sync) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    if (zone.redis.data) {
        redis = conf_redis(cf, &zone.redis);

        if (redis == NULL
            || ngx_idempotency_backing_redis_add(cf, store, redis) != NGX_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


/* a parameter may be given once, and needs a value */

static ngx_int_t
conf_zone_parameter(conf_zone_t *zone, ngx_str_t *value)
{
    ngx_str_t              *field;
    conf_zone_parameter_t  *p;

    for (p = conf_zone_parameters; p->name.len; p++) {
        field = (ngx_str_t *) ((u_char *) zone + p->offset);

        if (value->len > p->name.len && field->data == NULL
            && ngx_strncmp(value->data, p->name.data, p->name.len) == 0)
        {
            field->len = value->len - p->name.len;
            field->data = value->data + p->name.len;

            return NGX_OK;
        }
    }

    return NGX_DECLINED;
}


/* Cuts the size off, which leaves the zone's name.  JSON and metrics, where
   the name stands, have no common way to write a control character. */

static ngx_int_t
conf_zone_size(ngx_conf_t *cf, ngx_str_t *zone, size_t *size)
{
    u_char     *p;
    size_t      i;
    ssize_t     n;
    ngx_str_t   s;

    p = ngx_strlchr(zone->data, zone->data + zone->len, ':');

    s.len = p ? (size_t) (p - zone->data) : 0;

    for (i = 0; i < s.len && zone->data[i] >= ' '; i++) { /* void */ }

    if (s.len == 0 || i < s.len || s.len > NGX_HTTP_IDEMPOTENCY_ZONE_NAME) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid zone \"zone=%V\"", zone);
        return NGX_ERROR;
    }

    s.data = p + 1;
    s.len = zone->len - s.len - 1;

    n = ngx_parse_size(&s);

    if (n == NGX_ERROR) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid zone size \"zone=%V\"", zone);
        return NGX_ERROR;
    }

    zone->len = p - zone->data;

    if (n < (ssize_t) (8 * ngx_pagesize)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "zone \"%V\" is too small", zone);
        return NGX_ERROR;
    }

    *size = n;

    return NGX_OK;
}


/* the index of one of two words; 0 if the parameter is not given */

static ngx_int_t
conf_zone_choice(ngx_conf_t *cf, const char *name, ngx_str_t *value,
    const char *zero, const char *one)
{
    if (value->data == NULL || ngx_strcmp(value->data, zero) == 0) {
        return 0;
    }

    if (ngx_strcmp(value->data, one) == 0) {
        return 1;
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid parameter \"%s=%V\"", name, value);

    return NGX_ERROR;
}


static ngx_int_t
conf_zone_file(ngx_conf_t *cf, conf_zone_t *zone,
    ngx_idempotency_store_t *store, ngx_uint_t sync)
{
    ngx_str_t                          *path;
    ngx_uint_t                          i;
    ngx_idempotency_file_conf_t         conf;
    ngx_http_idempotency_store_t      **all;
    ngx_http_idempotency_main_conf_t   *imcf;

    ngx_memzero(&conf, sizeof(ngx_idempotency_file_conf_t));

    conf.path = zone->state;
    conf.sync = sync ? NGX_IDEMPOTENCY_SYNC_STRICT
                     : NGX_IDEMPOTENCY_SYNC_BATCHED;

    if (zone->max_size.data) {
        conf.max_size = ngx_parse_offset(&zone->max_size);

        /* the tables alone take 24k, and some room is for what is bound */

        if (conf.max_size < 64 * 1024) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"max_size=%V\", it must be "
                               "a size of 64k or more", &zone->max_size);
            return NGX_ERROR;
        }
    }

    if (ngx_conf_full_name(cf->cycle, &conf.path, 0) != NGX_OK) {
        return NGX_ERROR;
    }

    imcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);

    all = imcf->stores.elts;

    for (i = 0; i < imcf->stores.nelts; i++) {
        path = &all[i]->state;

        if (ngx_idempotency_same(path, &conf.path)) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "the state \"%V\" already belongs to another "
                               "zone", path);
            return NGX_ERROR;
        }
    }

    ((ngx_http_idempotency_store_t *) store)->state = conf.path;

    return ngx_idempotency_file_add(cf, store, &conf);
}


/* the store of a name; the directive that names it first creates it */

static ngx_idempotency_store_t *
conf_store(ngx_conf_t *cf, ngx_str_t *name)
{
    ngx_uint_t                         i;
    ngx_http_idempotency_store_t      *store, **stores;
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);

    stores = imcf->stores.elts;

    for (i = 0; i < imcf->stores.nelts; i++) {
        store = stores[i];

        if (ngx_idempotency_same(&store->store.name, name)) {
            return &store->store;
        }
    }

    stores = ngx_array_push(&imcf->stores);
    store = ngx_pcalloc(cf->pool, sizeof(ngx_http_idempotency_store_t));

    if (stores == NULL || store == NULL) {
        return NULL;
    }

    store->store.name = *name;
    store->store.secret = &imcf->secret;
    ngx_http_idempotency_set_line(cf, &store->line);

    *stores = store;

    return &store->store;
}


/* the Redis of a name; the directive that names it first creates it */

static ngx_idempotency_redis_t *
conf_redis(ngx_conf_t *cf, ngx_str_t *name)
{
    ngx_uint_t                          i;
    ngx_idempotency_redis_t            *redis, **all;
    ngx_idempotency_redis_conf_t       *conf;
    ngx_http_idempotency_main_conf_t   *imcf;

    imcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);

    all = imcf->redis.elts;

    for (i = 0; i < imcf->redis.nelts; i++) {
        conf = ngx_idempotency_redis_conf(all[i]);

        if (ngx_idempotency_same(&conf->name, name)) {
            return all[i];
        }
    }

    all = ngx_array_push(&imcf->redis);
    redis = ngx_idempotency_redis_create(cf);

    if (all == NULL || redis == NULL) {
        return NULL;
    }

    conf = ngx_idempotency_redis_conf(redis);

    if (ngx_array_init(&conf->servers, cf->pool, 1,
                       sizeof(ngx_idempotency_redis_server_t))
        != NGX_OK)
    {
        return NULL;
    }

    conf->name = *name;
    conf->file = cf->conf_file->file.name;
    conf->line = cf->conf_file->line;

    *all = redis;

    return redis;
}


char *
ngx_http_idempotency_redis_block(ngx_conf_t *cf, ngx_command_t *cmd,
    void *dummy)
{
    char                          *rv;
    ngx_str_t                     *value;
    ngx_conf_t                     save;
    ngx_idempotency_redis_t       *redis;
    ngx_idempotency_redis_conf_t  *conf;

    value = cf->args->elts;

    redis = conf_redis(cf, &value[1]);
    if (redis == NULL) {
        return NGX_CONF_ERROR;
    }

    conf = ngx_idempotency_redis_conf(redis);

    if (conf->defined) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "duplicate idempotency_redis \"%V\"", &value[1]);
        return NGX_CONF_ERROR;
    }

    conf->defined = 1;

    conf->mode = NGX_CONF_UNSET_UINT;
    conf->database = NGX_CONF_UNSET;
    conf->connections = NGX_CONF_UNSET;
    conf->connect_timeout = NGX_CONF_UNSET_MSEC;
    conf->timeout = NGX_CONF_UNSET_MSEC;
    conf->replicas = NGX_CONF_UNSET;
    conf->fsync = NGX_CONF_UNSET;
    conf->lost = NGX_CONF_UNSET_UINT;
    conf->ssl = NGX_CONF_UNSET;
    conf->ssl_verify = NGX_CONF_UNSET;

    save = *cf;
    cf->handler = conf_redis_line;
    cf->handler_conf = (void *) conf;

    rv = ngx_conf_parse(cf, NULL);

    *cf = save;

    if (rv != NGX_CONF_OK) {
        return rv;
    }

    return conf_redis_done(cf, conf) == NGX_OK ? NGX_CONF_OK : NGX_CONF_ERROR;
}


/* handles a line of the block as nginx handles a directive */

static char *
conf_redis_line(ngx_conf_t *cf, ngx_command_t *dummy, void *data)
{
    char           *rv;
    ngx_str_t      *value;
    ngx_command_t  *cmd;

    value = cf->args->elts;

    if (ngx_strcmp(value[0].data, "include") == 0 && cf->args->nelts == 2) {
        return ngx_conf_include(cf, dummy, data);
    }

    for (cmd = conf_redis_parameters; cmd->name.len; cmd++) {
        if (ngx_idempotency_same(&value[0], &cmd->name)) {
            break;
        }
    }

    if (cmd->name.len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "unknown directive \"%V\"", &value[0]);
        return NGX_CONF_ERROR;
    }

    if (cf->args->nelts < 2
        || (cf->args->nelts > 2 && cmd->type != NGX_CONF_1MORE))
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid number of arguments in \"%V\" directive",
                           &value[0]);
        return NGX_CONF_ERROR;
    }

    rv = cmd->set(cf, cmd, data);

    if (rv == NGX_CONF_OK || rv == NGX_CONF_ERROR) {
        return rv;
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "\"%V\" directive %s",
                       &value[0], rv);

    return NGX_CONF_ERROR;
}


static char *
conf_redis_server(ngx_conf_t *cf, ngx_command_t *cmd, void *data)
{
    ngx_idempotency_redis_conf_t  *conf = data;

    ngx_str_t                       *value;
    ngx_url_t                        u;
    ngx_uint_t                       i;
    ngx_idempotency_redis_server_t  *server;

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        ngx_memzero(&u, sizeof(ngx_url_t));

        u.url = value[i];
        u.default_port = 6379;
        u.no_resolve = 1;

        if (ngx_parse_url(cf->pool, &u) != NGX_OK) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "%s in server \"%V\"",
                               u.err ? u.err : "no memory", &u.url);
            return NGX_CONF_ERROR;
        }

        server = ngx_array_push(&conf->servers);
        if (server == NULL) {
            return NGX_CONF_ERROR;
        }

        server->url = u;
        server->file = cf->conf_file->file.name;
        server->line = cf->conf_file->line;
    }

    return NGX_CONF_OK;
}


/* a password is the first line of its file; no message ever shows it */

static char *
conf_redis_password(ngx_conf_t *cf, ngx_command_t *cmd, void *data)
{
    ngx_idempotency_redis_conf_t  *conf = data;

    u_char     *p;
    size_t      len;
    ngx_str_t  *value, text;

    if (conf->password.data) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (conf_file_read(cf, &value[1], CONF_PASSWORD_SIZE, &text) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    for (len = 0; len < text.len; len++) {
        if (text.data[len] == LF || text.data[len] == CR) {
            break;
        }
    }

    p = len ? ngx_pnalloc(cf->pool, len) : NULL;

    if (p) {
        ngx_memcpy(p, text.data, len);

        conf->password.data = p;
        conf->password.len = len;
    }

    conf_file_wipe(&text);

    if (len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "no password in the first line of \"%V\"",
                           &value[1]);
    }

    return p ? NGX_CONF_OK : NGX_CONF_ERROR;
}


static ngx_int_t
conf_redis_done(ngx_conf_t *cf, ngx_idempotency_redis_conf_t *conf)
{
    ngx_conf_init_uint_value(conf->mode, NGX_IDEMPOTENCY_REDIS_STANDALONE);
    ngx_conf_init_value(conf->database, 0);
    ngx_conf_init_value(conf->connections, 2);
    ngx_conf_init_msec_value(conf->connect_timeout, 1000);
    ngx_conf_init_msec_value(conf->timeout, 1000);
    ngx_conf_init_value(conf->replicas, 0);
    ngx_conf_init_value(conf->fsync, 0);
    ngx_conf_init_uint_value(conf->lost, 0);
    ngx_conf_init_value(conf->ssl, 0);

    if (conf->prefix.data == NULL) {
        ngx_str_set(&conf->prefix, "idem:");
    }

    if (conf_redis_check(cf, conf) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_conf_init_value(conf->ssl_verify, 1);

    return conf->ssl ? conf_redis_ssl(cf, conf) : NGX_OK;
}


static ngx_int_t
conf_redis_check(ngx_conf_t *cf, ngx_idempotency_redis_conf_t *conf)
{
    char  *err;

    err = NULL;

    if (conf->servers.nelts == 0) {
        err = "must have \"server\"";

    } else if (conf->mode == NGX_IDEMPOTENCY_REDIS_STANDALONE
               && conf->servers.nelts > 1)
    {
        err = "takes one \"server\" with \"mode standalone\"";

    } else if (conf->mode == NGX_IDEMPOTENCY_REDIS_SENTINEL
               && conf->master.len == 0)
    {
        err = "must have \"master\" with \"mode sentinel\"";

    } else if (conf->mode != NGX_IDEMPOTENCY_REDIS_SENTINEL
               && conf->master.data)
    {
        err = "takes \"master\" with \"mode sentinel\" only";

    } else if (conf->mode == NGX_IDEMPOTENCY_REDIS_CLUSTER && conf->database) {
        err = "takes no \"database\" with \"mode cluster\"";

    } else if (conf->user.data && conf->password.len == 0) {
        err = "must have \"password_file\" with \"user\"";

    } else if (conf->ssl_certificate.len
               && conf->ssl_certificate_key.len == 0)
    {
        err = "must have \"ssl_certificate_key\" with \"ssl_certificate\"";

    } else if (!conf->ssl
               && (conf->ssl_name.data || conf->ssl_verify != NGX_CONF_UNSET
                   || conf->ssl_trusted_certificate.data
                   || conf->ssl_certificate.data
                   || conf->ssl_certificate_key.data))
    {
        err = "takes \"ssl_...\" with \"ssl on\" only";
    }

    if (err == NULL) {
        return NGX_OK;
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "idempotency_redis \"%V\" %s",
                       &conf->name, err);

    return NGX_ERROR;
}


#if (NGX_SSL)

static ngx_int_t
conf_redis_ssl(ngx_conf_t *cf, ngx_idempotency_redis_conf_t *conf)
{
    ngx_ssl_t           *ssl;
    ngx_pool_cleanup_t  *cln;

    ssl = &conf->ssl_ctx;
    ssl->log = cf->log;

    if (ngx_ssl_create(ssl, NGX_SSL_TLSv1_2|NGX_SSL_TLSv1_3, NULL)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    cln = ngx_pool_cleanup_add(cf->pool, 0);
    if (cln == NULL) {
        ngx_ssl_cleanup_ctx(ssl);
        return NGX_ERROR;
    }

    cln->handler = ngx_ssl_cleanup_ctx;
    cln->data = ssl;

    if (conf->ssl_certificate.len
        && ngx_ssl_certificate(cf, ssl, &conf->ssl_certificate,
                               &conf->ssl_certificate_key, NULL)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (!conf->ssl_verify) {
        return NGX_OK;
    }

    if (conf->ssl_trusted_certificate.len) {
        return ngx_ssl_trusted_certificate(cf, ssl,
                                           &conf->ssl_trusted_certificate, 9);
    }

    /* use the certificate authorities that the system trusts */

    if (SSL_CTX_set_default_verify_paths(ssl->ctx) == 0) {
        ngx_ssl_error(NGX_LOG_EMERG, cf->log, 0,
                      "SSL_CTX_set_default_verify_paths() failed");
        return NGX_ERROR;
    }

    SSL_CTX_set_verify_depth(ssl->ctx, 9);

    return NGX_OK;
}

#else

static ngx_int_t
conf_redis_ssl(ngx_conf_t *cf, ngx_idempotency_redis_conf_t *conf)
{
    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "idempotency_redis \"%V\" takes \"ssl\" only where "
                       "nginx was built with it", &conf->name);
    return NGX_ERROR;
}

#endif


/* At the end of the configuration: each zone and block that is named must be
   defined, and host names must be resolvable. */

ngx_int_t
ngx_http_idempotency_check_stores(ngx_conf_t *cf)
{
    ngx_uint_t                          i;
    ngx_resolver_t                     *resolver;
    ngx_idempotency_redis_t           **all;
    ngx_http_core_loc_conf_t           *clcf;
    ngx_http_idempotency_store_t      **stores;
    ngx_idempotency_redis_conf_t       *conf;
    ngx_http_idempotency_main_conf_t   *imcf;

    imcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);
    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    stores = imcf->stores.elts;

    for (i = 0; i < imcf->stores.nelts; i++) {

        if (stores[i]->store.engine == NULL) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "\"idempotency\" zone \"%V\" is unknown in %V:%ui",
                          &stores[i]->store.name, &stores[i]->line.file,
                          stores[i]->line.line);

            return NGX_ERROR;
        }
    }

    resolver = clcf->resolver;

#if (angie_version >= 1012000)
    if (resolver && resolver->connections == NULL) {
#else
    if (resolver && resolver->connections.nelts == 0) {
#endif
        resolver = NULL;
    }

    all = imcf->redis.elts;

    for (i = 0; i < imcf->redis.nelts; i++) {
        conf = ngx_idempotency_redis_conf(all[i]);

        if (!conf->defined) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "idempotency_redis \"%V\" is unknown in %V:%ui",
                          &conf->name, &conf->file, conf->line);
            return NGX_ERROR;
        }

        conf->resolver = resolver;
        conf->resolver_timeout = (clcf->resolver_timeout
                                  == NGX_CONF_UNSET_MSEC)
                                 ? 30000 : clcf->resolver_timeout;

        if (conf_redis_resolve(cf, conf) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/* Without a resolver, host names are resolved now, as nginx resolves those of
   upstreams. */

static ngx_int_t
conf_redis_resolve(ngx_conf_t *cf, ngx_idempotency_redis_conf_t *conf)
{
    ngx_url_t                       *u;
    ngx_uint_t                       i;
    ngx_addr_t                       addr;
    ngx_idempotency_redis_server_t  *server;

    server = conf->servers.elts;

    for (i = 0; i < conf->servers.nelts; i++) {
        u = &server[i].url;

        if (u->naddrs) {
            continue;
        }

        if (conf->resolver
            && ngx_parse_addr(cf->pool, &addr, u->host.data, u->host.len)
               != NGX_OK)
        {
            continue;
        }

        if (ngx_inet_resolve_host(cf->pool, u) != NGX_OK) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0, "%s in server \"%V\" "
                          "in %V:%ui", u->err ? u->err : "no memory",
                          &u->url, &server[i].file, server[i].line);
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


char *
ngx_http_idempotency_set_secret(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_int_t                          rc;
    ngx_str_t                         *value, text;
    ngx_pool_cleanup_t                *cln;
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);

    if (imcf->secret.digest_key || imcf->secret.nseals) {
        return "is duplicate";
    }

    value = cf->args->elts;

    cln = ngx_pool_cleanup_add(cf->pool, 0);

    if (cln == NULL
        || conf_file_read(cf, &value[1], CONF_SECRET_SIZE, &text) != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    cln->handler = ngx_idempotency_secret_wipe;
    cln->data = &imcf->secret;

    rc = conf_secret_parse(cf, &value[1], &text);

    conf_file_wipe(&text);

    return (rc == NGX_OK) ? NGX_CONF_OK : NGX_CONF_ERROR;
}


static ngx_int_t
conf_secret_parse(ngx_conf_t *cf, ngx_str_t *name, ngx_str_t *text)
{
    char                              *why;
    ngx_uint_t                         line;
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);

    why = ngx_idempotency_secret_parse(&imcf->secret, text->data, text->len,
                                       &line);
    if (why) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0, "%s in %V:%ui", why, name,
                      line);
        return NGX_ERROR;
    }

    if (imcf->secret.digest_key == NULL && imcf->secret.nseals == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "no keys in \"%V\"", name);
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* reads a file and makes its name a full one; the caller wipes the text */

static ngx_int_t
conf_file_read(ngx_conf_t *cf, ngx_str_t *name, off_t max, ngx_str_t *text)
{
    ngx_int_t   rc;
    ngx_file_t  file;

    if (ngx_conf_full_name(cf->cycle, name, 1) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_memzero(&file, sizeof(ngx_file_t));

    file.name = *name;
    file.log = cf->log;

    /* without NONBLOCK a pipe without a writer would block the start */

    file.fd = ngx_open_file(name->data, NGX_FILE_RDONLY|NGX_FILE_NONBLOCK,
                            NGX_FILE_OPEN, 0);

    if (file.fd == NGX_INVALID_FILE) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           ngx_open_file_n " \"%V\" failed", name);
        return NGX_ERROR;
    }

    rc = conf_file_text(cf, &file, max, text);

    (void) ngx_close_file(file.fd);

    return rc;
}


static ngx_int_t
conf_file_text(ngx_conf_t *cf, ngx_file_t *file, off_t max, ngx_str_t *text)
{
    char     mode[8];
    ssize_t  n;

    if (ngx_fd_info(file->fd, &file->info) == NGX_FILE_ERROR) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           ngx_fd_info_n " \"%V\" failed", &file->name);
        return NGX_ERROR;
    }

    if (!ngx_is_file(&file->info)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" is not a regular file", &file->name);
        return NGX_ERROR;
    }

    if (ngx_file_size(&file->info) > max) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" is too large, it may have %O bytes",
                           &file->name, max);
        return NGX_ERROR;
    }

    if (ngx_file_access(&file->info) & (S_IRWXO|S_IWGRP)) {
        (void) snprintf(mode, sizeof(mode), "%04o",
                        (unsigned) (file->info.st_mode & 07777));

        ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                           "\"%V\" is open to others, with the mode %s",
                           &file->name, mode);
    }

    text->len = ngx_file_size(&file->info);

    text->data = ngx_alloc(text->len + 1, cf->log);
    if (text->data == NULL) {
        return NGX_ERROR;
    }

    n = ngx_read_file(file, text->data, text->len, 0);

    if (n == NGX_ERROR) {
        ngx_free(text->data);
        return NGX_ERROR;
    }

    text->len = n;

    return NGX_OK;
}


static void
conf_file_wipe(ngx_str_t *text)
{
    OPENSSL_cleanse(text->data, text->len);
    ngx_free(text->data);
}
