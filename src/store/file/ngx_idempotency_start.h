
/*
 * A start of nginx with a store in a file: the file is made or checked, and the
 * zone becomes an instance, with a number of its own.
 */


#ifndef _NGX_IDEMPOTENCY_START_H_INCLUDED_
#define _NGX_IDEMPOTENCY_START_H_INCLUDED_


#include "ngx_idempotency_owners.h"


/* the size of a refusal with its final zero: two paths, and some words */

#define NGX_IDEMPOTENCY_START_WHY  (2 * NGX_IDEMPOTENCY_FILE_PATH + 512)


typedef struct {
    /* terminated by a zero */
    ngx_str_t                path;
    /* the zone's name: with it an operator agrees to another file */
    ngx_str_t                zone;
    /* where the configuration names it, for the log */
    ngx_str_t                at;
    ngx_uint_t               line;
    /* an unusable file is an error; else nginx goes on without the file */
    ngx_uint_t               must;

    /* the user who is to own the file: the workers', or nginx's own */
    ngx_uid_t                user;
    ngx_gid_t                group;
    char                    *username;

    /* of the digest key that makes tokens */
    u_char                   stamp[NGX_IDEMPOTENCY_STAMP_LEN];
    /* an operator has agreed to the file as it is; the zone's identity and
       instance until then (0: it has none) */
    ngx_uint_t               agreed;
    u_char                   known[NGX_IDEMPOTENCY_MARK_LEN];
    ngx_uint_t               joins;
    uint64_t                 was;

    /* the clocks, in milliseconds, and the boot's name; "": not known */
    int64_t                  wall;
    int64_t                  boottime;
    char                     boot[80];

    /* out: a file was found, and a log with contents; others may read one of
       the files; a witness, and the error of reading or writing it */
    ngx_uint_t               found;
    ngx_uint_t               left;
    ngx_uint_t               open;
    ngx_uint_t               marked;
    ngx_err_t                witness;

    /* out: the file was made */
    ngx_uint_t               made;

    /* out: the instance; the highest fence in the file; the difference between
       the boot's clock and the file's time; the latest time in the file; the
       file's identity */
    uint64_t                 instance;
    uint64_t                 fence;
    int64_t                  base;
    int64_t                  latest;
    ngx_idempotency_mark_t   mark;

    /* out: the open files whose locks say that the instance lives, and that no
       one uses the file by another way; -1 under nginx -t */
    int                      owners;
    int                      file;

    /* NGX_ERROR: the reason, in words that follow the path */
    ngx_int_t                rc;
    char                     why[NGX_IDEMPOTENCY_START_WHY];
    /* ... it is not what it was: NGX_IDEMPOTENCY_TIER_OTHER, or _FOREIGN */
    ngx_uint_t               other;
    /* ... as the file can't be used yet: workers begin to use it later */
    ngx_uint_t               late;
} ngx_idempotency_start_t;


/*
 * In the master, for a zone that is made.  An error is logged once, as [emerg]
 * with NGX_ERROR, or as [alert] with NGX_DECLINED.  The open files are closed
 * with the configuration's pool: a failed configuration leaves no owner behind.
 * nginx -t only looks.
 */

ngx_int_t ngx_idempotency_start(ngx_idempotency_start_t *start,
    ngx_pool_t *pool, ngx_log_t *log);

/* for a zone that is kept over a reload: the same instance, in another pool */

ngx_int_t ngx_idempotency_start_keep(ngx_idempotency_start_t *start,
    ngx_idempotency_start_t *old, ngx_pool_t *pool, ngx_log_t *log);

/* a helper process must not keep this instance alive, or any */

void ngx_idempotency_start_leave(void *start);

/*
 * In a thread of a worker, while no other thread of that worker has the file
 * open: an operator has agreed to the file as it is (`agreed`), or nginx was
 * started without the file.  From then on each worker holds the instance by an
 * open file of its own.  The first worker makes the instance, the others get
 * its number.  NGX_BUSY: a reload has made it, for its own workers.
 */

ngx_int_t ngx_idempotency_start_late(ngx_idempotency_start_t *start);

/* logs what an operator should know of a start that went well */

void ngx_idempotency_start_log(ngx_idempotency_start_t *start, ngx_log_t *log);

/*
 * The part of a start that needs the database: checks a file that was found,
 * for 0.3 seconds at most, or makes an empty file a database; and gives the
 * instance its number.
 */

ngx_int_t ngx_idempotency_start_database(const char *path,
    ngx_idempotency_start_t *start);

/* in milliseconds */

int64_t ngx_idempotency_start_clock(clockid_t id);


#endif /* _NGX_IDEMPOTENCY_START_H_INCLUDED_ */
