
/* The settings of an idempotency_redis block; the HTTP side reads them. */


#ifndef _NGX_IDEMPOTENCY_REDIS_CONF_H_INCLUDED_
#define _NGX_IDEMPOTENCY_REDIS_CONF_H_INCLUDED_


#include "ngx_idempotency_redis.h"


typedef enum {
    NGX_IDEMPOTENCY_REDIS_STANDALONE = 0,
    NGX_IDEMPOTENCY_REDIS_SENTINEL,
    NGX_IDEMPOTENCY_REDIS_CLUSTER
} ngx_idempotency_redis_mode_e;


/* a "server": with a resolver, a name has no addresses yet */

typedef struct {
    ngx_url_t                       url;
    ngx_str_t                       file;
    ngx_uint_t                      line;
} ngx_idempotency_redis_server_t;


typedef struct {
    ngx_str_t                       name;
    /* the block was read; where it, or who named it first, is */
    ngx_uint_t                      defined;
    ngx_str_t                       file;
    ngx_uint_t                      line;

    /* of ngx_idempotency_redis_server_t */
    ngx_array_t                     servers;
    ngx_uint_t                      mode;
    ngx_str_t                       master;

    ngx_str_t                       user;
    ngx_str_t                       password;
    ngx_int_t                       database;
    ngx_str_t                       prefix;

    /* for each worker */
    ngx_int_t                       connections;
    ngx_msec_t                      connect_timeout;
    ngx_msec_t                      timeout;

    ngx_int_t                       replicas;
    ngx_flag_t                      fsync;

    ngx_flag_t                      ssl;
    ngx_str_t                       ssl_name;
    ngx_flag_t                      ssl_verify;
    ngx_str_t                       ssl_trusted_certificate;
    ngx_str_t                       ssl_certificate;
    ngx_str_t                       ssl_certificate_key;
#if (NGX_SSL)
    ngx_ssl_t                       ssl_ctx;
#endif

    /* NULL: none that could resolve a name */
    ngx_resolver_t                 *resolver;
    ngx_msec_t                      resolver_timeout;
} ngx_idempotency_redis_conf_t;


ngx_idempotency_redis_t *ngx_idempotency_redis_create(ngx_conf_t *cf);
ngx_idempotency_redis_conf_t *ngx_idempotency_redis_conf(
    ngx_idempotency_redis_t *redis);


#endif /* _NGX_IDEMPOTENCY_REDIS_CONF_H_INCLUDED_ */
