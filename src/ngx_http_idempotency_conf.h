
/*
 * What is known of the configuration as a whole, and the directives' own
 * setters, which ngx_http_idempotency_module.c names in its table.
 */


#ifndef _NGX_HTTP_IDEMPOTENCY_CONF_H_INCLUDED_
#define _NGX_HTTP_IDEMPOTENCY_CONF_H_INCLUDED_


#include "ngx_http_idempotency.h"
#include "store/ngx_idempotency_secret.h"
#include "store/redis/ngx_idempotency_redis.h"


/* an idempotency directive, and where it stands */

typedef struct {
    ngx_idempotency_store_t       *store;
    ngx_str_t                      file;
    ngx_uint_t                     line;
} ngx_http_idempotency_use_t;


typedef struct {
    /* some location is protected, or tells of what is there */
    ngx_uint_t                     in_use;
    /* there is an idempotency_api */
    ngx_uint_t                     api;
    /* of void **: the configurations of all modules in each of them */
    ngx_array_t                    locations;
    /* of all upstreams: what their balancers begin with */
    ngx_array_t                    upstreams;
    /* of ngx_idempotency_store_t *: all that directives name */
    ngx_array_t                    stores;
    /* of ngx_http_idempotency_use_t */
    ngx_array_t                    uses;
    /* of ngx_str_t: the files behind them */
    ngx_array_t                    states;
    /* all of them have this one */
    ngx_idempotency_secret_t       secret;
    /* of ngx_idempotency_redis_t *: all that directives name */
    ngx_array_t                    redis;
    /* all locations there are */
    ngx_http_idempotency_origins_t
                                  *origins;
    /* of ngx_str_t: each NAME of $idempotency_field_NAME; of ngx_uint_t: the
       variables' indices, in the same order */
    ngx_array_t                    fields;
    ngx_array_t                    field_indices;
    /* nginx may be built without them */
    ngx_module_t                  *dav;
    ngx_module_t                  *slice;
} ngx_http_idempotency_main_conf_t;


char *ngx_http_idempotency_set_zone(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idempotency_set_secret(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
ngx_idempotency_store_t *ngx_http_idempotency_store(ngx_conf_t *cf,
    ngx_str_t *name);
char *ngx_http_idempotency_set(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
ngx_int_t ngx_http_idempotency_check_zones(ngx_conf_t *cf);
ngx_module_t *ngx_http_idempotency_find_module(ngx_conf_t *cf, char *name);
char *ngx_http_idempotency_set_methods(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idempotency_set_window(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
ngx_int_t ngx_http_idempotency_merge_window(ngx_conf_t *cf,
    ngx_http_idempotency_loc_conf_t *prev,
    ngx_http_idempotency_loc_conf_t *conf);
char *ngx_http_idempotency_set_missing_key(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
void ngx_http_idempotency_warn_content(ngx_conf_t *cf,
    ngx_http_idempotency_loc_conf_t *conf);
char *ngx_http_idempotency_set_identity(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idempotency_set_ignore_cookies(ngx_conf_t *cf,
    ngx_command_t *cmd, void *conf);
char *ngx_http_idempotency_set_quota(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idempotency_set_normalize(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idempotency_set_keep(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idempotency_add_names(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idempotency_set_ignore_fields(ngx_conf_t *cf,
    ngx_command_t *cmd, void *conf);
char *ngx_http_idempotency_set_status(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idempotency_check_time(ngx_conf_t *cf, void *post, void *data);
char *ngx_http_idempotency_check_replay_header(ngx_conf_t *cf, void *post,
    void *data);
char *ngx_http_idempotency_check_docs(ngx_conf_t *cf, void *post, void *data);

/* of idempotency_redis */

ngx_idempotency_redis_t *ngx_http_idempotency_redis(ngx_conf_t *cf,
    ngx_str_t *name);
char *ngx_http_idempotency_redis_block(ngx_conf_t *cf, ngx_command_t *cmd,
    void *dummy);
ngx_int_t ngx_http_idempotency_check_redis(ngx_conf_t *cf);

/* of idempotency_key, and of other strings with variables */

ngx_int_t ngx_http_idempotency_compile(ngx_conf_t *cf, ngx_str_t *text,
    ngx_http_idempotency_value_t *value);
char *ngx_http_idempotency_set_keys(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
ngx_int_t ngx_http_idempotency_add_key(ngx_conf_t *cf, ngx_array_t *keys,
    ngx_str_t *value);
ngx_uint_t ngx_http_idempotency_keys_in_body(ngx_conf_t *cf,
    ngx_array_t *keys);


#endif /* _NGX_HTTP_IDEMPOTENCY_CONF_H_INCLUDED_ */
