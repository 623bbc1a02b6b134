
/*
 * A start of nginx with a store in a file, in the master: the file is made or
 * checked, and the zone becomes an instance, under a number of its own.
 */


#ifndef _NGX_IDEMPOTENCY_START_H_INCLUDED_
#define _NGX_IDEMPOTENCY_START_H_INCLUDED_


#include "store/ngx_idempotency_backing.h"


typedef struct ngx_idempotency_start_s  ngx_idempotency_start_t;

struct ngx_idempotency_start_s {
    /* terminated by a zero */
    ngx_str_t    path;
    /* what it is called by those who may agree to another one */
    ngx_str_t    zone;
    /* " in FILE:LINE", for what is told of a configuration */
    ngx_str_t    at;
    /* it is an error if it can't be; or nginx goes on without it */
    ngx_uint_t   must;

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

    /* out: which file it is; it is another one than it was, or an older one,
       and not used until an operator agrees */
    ngx_idempotency_mark_t  mark;
    ngx_uint_t   other;

    /* out: nothing was heard of the file, and workers begin with it when its
       disk answers */
    ngx_uint_t   late;

    /* out: the open files by whose locks the instance lives, and its way to
       the file is the only one; -1 under nginx -t */
    int          owners;
    int          file;

    ngx_idempotency_start_t  *next;
};


/*
 * For a zone that is made.  What is wrong is logged once, as [emerg] and
 * NGX_ERROR, or [alert] and NGX_DECLINED.  With the pool of the configuration
 * the open files are closed: one that fails leaves no owner behind.  nginx -t
 * only looks.
 */

ngx_int_t ngx_idempotency_start(ngx_idempotency_start_t *start,
    ngx_pool_t *pool, ngx_log_t *log);

/* for a zone that is kept over a reload: the same instance, in another pool */

ngx_int_t ngx_idempotency_start_keep(ngx_idempotency_start_t *start,
    ngx_idempotency_start_t *old, ngx_pool_t *pool, ngx_log_t *log);

/* a process that helps and claims nothing must not keep instances alive: one,
   or all */

void ngx_idempotency_start_leave(ngx_idempotency_start_t *start);
void ngx_idempotency_start_leave_all(void);

/* An operator has agreed to the file as it is: a thread of a worker begins it
   anew, as a start does, while no other thread of that worker has it open.  If
   that fails, `error` says why. */

ngx_int_t ngx_idempotency_start_agreed(ngx_idempotency_start_t *start,
    char *error, size_t len);

/*
 * The file did not answer when nginx was started: a thread of a worker does
 * what that start did not, while no other thread of that worker has the file
 * open.  Each worker holds the instance by an open file of its own: the first
 * one makes it (0), the others have it.  NGX_AGAIN: another start is under way;
 * NGX_ERROR: `error` says why not.
 */

ngx_int_t ngx_idempotency_start_late(ngx_idempotency_start_t *start,
    uint64_t instance, char *error, size_t len);


#endif /* _NGX_IDEMPOTENCY_START_H_INCLUDED_ */
