
/*
 * A start of nginx with a store in a file, in the master: the file is made or
 * checked, and the zone becomes an instance, under a number of its own.
 */


#ifndef _NGX_IDEMPOTENCY_START_H_INCLUDED_
#define _NGX_IDEMPOTENCY_START_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


typedef struct {
    /* terminated by a zero */
    ngx_str_t    path;

    /* the workers', to whom the file is to belong; where nginx doesn't run as
       root it is whoever that is */
    ngx_uid_t    user;
    ngx_gid_t    group;
    char        *username;

    /* that of the digest key by which tokens are made */
    const u_char  *stamp;

    /* out: the instance; the highest fence that the file knows; what the boot
       clock, in milliseconds, lacks to be the file's time */
    uint64_t     instance;
    uint64_t     fence;
    int64_t      base;

    /* out: of the fingerprints that it writes */
    ngx_uint_t   version;

    /* out: the open file by whose lock the instance lives; -1 under nginx -t */
    int          owners;
} ngx_idempotency_start_t;


/*
 * For a zone that is made.  What is wrong is logged, as [emerg], once.  With
 * the pool of the configuration the open file is closed: one that fails leaves
 * no owner behind.  nginx -t only looks.
 */

ngx_int_t ngx_idempotency_start(ngx_idempotency_start_t *start,
    ngx_pool_t *pool, ngx_log_t *log);

/* for a zone that is kept over a reload: the same instance, in another pool */

ngx_int_t ngx_idempotency_start_keep(ngx_idempotency_start_t *start,
    ngx_idempotency_start_t *old, ngx_pool_t *pool, ngx_log_t *log);

/* a process that helps and claims nothing must not keep the instance alive */

void ngx_idempotency_start_leave(ngx_idempotency_start_t *start);


#endif /* _NGX_IDEMPOTENCY_START_H_INCLUDED_ */
