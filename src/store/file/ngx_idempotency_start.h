
/*
 * A start of nginx with a store in a file: the file is made or checked, and the
 * zone becomes an instance, under a number of its own.
 */


#ifndef _NGX_IDEMPOTENCY_START_H_INCLUDED_
#define _NGX_IDEMPOTENCY_START_H_INCLUDED_


#include "ngx_idempotency_owners.h"


/* of a refusal, with the zero: two paths, and some words */

#define NGX_IDEMPOTENCY_START_WHY  (2 * NGX_IDEMPOTENCY_FILE_PATH + 512)


typedef struct ngx_idempotency_start_s  ngx_idempotency_start_t;

struct ngx_idempotency_start_s {
    /* terminated by a zero */
    ngx_str_t                path;
    /* the zone's name, by which an operator agrees to another file */
    ngx_str_t                zone;
    /* " in FILE:LINE", for what is logged of a configuration */
    ngx_str_t                at;
    /* it is an error if it can't be used; or nginx goes on without it */
    ngx_uint_t               must;

    /* the workers', to whom the file is to belong; where nginx doesn't run as
       root it is whoever that is */
    ngx_uid_t                user;
    ngx_gid_t                group;
    char                    *username;

    /* that of the digest key by which tokens are made */
    u_char                   stamp[NGX_IDEMPOTENCY_STAMP_LEN];
    /* an operator has agreed to the file as it is */
    ngx_uint_t               agreed;

    /* the clocks, in milliseconds, and the boot's name, "": not known */
    int64_t                  wall;
    int64_t                  boottime;
    char                     boot[80];

    /* what is there: a file, and something in a log beside it; the mode of one
       that others may read, or 0; a witness, and the error of reading or
       writing one */
    ngx_uint_t               found;
    ngx_uint_t               left;
    ngx_uint_t               open;
    ngx_uint_t               marked;
    ngx_err_t                witness;

    /* the file was made; another nginx uses it */
    ngx_uint_t               made;
    ngx_uint_t               others;

    /* the instance; the highest fence that the file knows; what the boot clock
       lacks to be the file's time; the latest time that the file knows; which
       file it is */
    uint64_t                 instance;
    uint64_t                 fence;
    int64_t                  base;
    int64_t                  latest;
    ngx_idempotency_mark_t   mark;

    /* the open files by whose locks the instance lives, and its way to the file
       is the only one; -1 under nginx -t */
    int                      owners;
    int                      file;

    /* NGX_ERROR: why not, in words that follow the path, and the system's error
       or 0 */
    ngx_int_t                rc;
    ngx_err_t                err;
    char                     why[NGX_IDEMPOTENCY_START_WHY];
    /* ... it is another file than it was, or an older one, and not used until
       an operator agrees */
    ngx_uint_t               other;
    /* ... workers begin with the file when it can be used */
    ngx_uint_t               late;

    ngx_idempotency_start_t  *next;
};


/*
 * In the master, for a zone that is made.  What is wrong is logged once, as
 * [emerg] and NGX_ERROR, or [alert] and NGX_DECLINED.  With the pool of the
 * configuration the open files are closed: one that fails leaves no owner
 * behind.  nginx -t only looks.
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

/*
 * In a thread of a worker, while no other thread of that worker has the file
 * open: with `agreed`, as an operator has agreed to the file as it is; or, as
 * nginx was started without the file.  Each worker holds the instance by an
 * open file of its own then: the first one makes it (0), the others have it.
 */

ngx_int_t ngx_idempotency_start_late(ngx_idempotency_start_t *start,
    uint64_t instance);

/* what an operator should know of a start that went well */

void ngx_idempotency_start_log(ngx_idempotency_start_t *start, ngx_log_t *log);

/*
 * What a start does with the database: one that is found is checked, for 0.3
 * seconds at most, or else an empty file becomes one; and it gives a number.
 */

ngx_int_t ngx_idempotency_start_database(const char *path,
    ngx_idempotency_start_t *start);


#endif /* _NGX_IDEMPOTENCY_START_H_INCLUDED_ */
