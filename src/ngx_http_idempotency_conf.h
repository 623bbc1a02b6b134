
/*
 * The directives' own setters, which ngx_http_idempotency_module.c names in
 * its table.
 */


#ifndef _NGX_HTTP_IDEMPOTENCY_CONF_H_INCLUDED_
#define _NGX_HTTP_IDEMPOTENCY_CONF_H_INCLUDED_


#include "ngx_http_idempotency.h"


char *ngx_http_idempotency_set_zone(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idempotency_set(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idempotency_set_methods(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idempotency_set_normalize(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idempotency_set_keep(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idempotency_add_names(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idempotency_set_status(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idempotency_check_time(ngx_conf_t *cf, void *post, void *data);
char *ngx_http_idempotency_check_docs(ngx_conf_t *cf, void *post, void *data);


#endif /* _NGX_HTTP_IDEMPOTENCY_CONF_H_INCLUDED_ */
