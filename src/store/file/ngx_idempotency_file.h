
/* A store with a file on this machine behind it, for those who configure it. */


#ifndef _NGX_IDEMPOTENCY_FILE_H_INCLUDED_
#define _NGX_IDEMPOTENCY_FILE_H_INCLUDED_


#include "store/ngx_idempotency_backing.h"


typedef struct {
    /* terminated by a zero */
    ngx_str_t                       path;
    ngx_idempotency_sync_e          sync;
    off_t                           max_size;
    /* the name of a thread pool, or that of nginx's own */
    ngx_str_t                       threads;
} ngx_idempotency_file_conf_t;


/* for a store that was added; what is wrong is logged */

ngx_int_t ngx_idempotency_file_add(ngx_conf_t *cf,
    ngx_idempotency_store_t *store, ngx_idempotency_file_conf_t *conf);


#endif /* _NGX_IDEMPOTENCY_FILE_H_INCLUDED_ */
