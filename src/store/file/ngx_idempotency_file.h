
/* A store with a file on this machine as its backing: the functions for the
   configuration and for processes. */


#ifndef _NGX_IDEMPOTENCY_FILE_H_INCLUDED_
#define _NGX_IDEMPOTENCY_FILE_H_INCLUDED_


#include "store/ngx_idempotency_backing.h"


typedef struct {
    /* terminated by a zero */
    ngx_str_t                       path;
    ngx_idempotency_sync_e          sync;
    off_t                           max_size;
} ngx_idempotency_file_conf_t;


/* adds the file to a store; logs its errors */

ngx_int_t ngx_idempotency_file_add(ngx_conf_t *cf,
    ngx_idempotency_store_t *store, ngx_idempotency_file_conf_t *conf);

/* a worker is about to end: threads that hang are not waited for */

void ngx_idempotency_file_exit_process(void);


#endif /* _NGX_IDEMPOTENCY_FILE_H_INCLUDED_ */
