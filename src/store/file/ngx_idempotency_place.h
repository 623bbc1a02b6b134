
/*
 * The place of a store in a file: may it be there, and may this process use
 * it?  By names, rights and the first bytes: what stands further down is
 * SQLite's to judge.
 */


#ifndef _NGX_IDEMPOTENCY_PLACE_H_INCLUDED_
#define _NGX_IDEMPOTENCY_PLACE_H_INCLUDED_


#include "ngx_idempotency_owners.h"


/* of what is said, with the zero: two paths, and some words */

#define NGX_IDEMPOTENCY_PLACE_WHY  (2 * NGX_IDEMPOTENCY_FILE_PATH + 512)


typedef struct {
    const char   *path;
    /* out: whether there is a file, and something in a log beside it */
    ngx_uint_t    found;
    ngx_uint_t    left;
    /* out: a mode that lets others in, its own or of a file beside it, or 0 */
    ngx_uint_t    open;
    /* out: the directory's, if anybody may replace what is in it, or 0 */
    ngx_uint_t    anybodys;
    /* out: the directory was made or given to the user, or would be */
    ngx_uint_t    given;
    ngx_uint_t    promised;
    /* out: why not, in words that follow the path; and the system's, or 0 */
    char          why[NGX_IDEMPOTENCY_PLACE_WHY];
    ngx_err_t     err;
} ngx_idempotency_place_t;


/*
 * Before the user is the workers': a directory that is not there is made, and
 * one of root's that is empty becomes theirs.
 */

void ngx_idempotency_place_give(ngx_idempotency_place_t *place,
    ngx_uid_t user, ngx_uint_t only_look);

/* looks, and changes nothing */

ngx_int_t ngx_idempotency_place_check(ngx_idempotency_place_t *place);

/* lets nobody in but its owner */

ngx_int_t ngx_idempotency_place_close(ngx_idempotency_place_t *place);

/* an empty file for a new store, elsewhere; it has this name until it is one */

ngx_int_t ngx_idempotency_place_make(ngx_idempotency_place_t *place,
    const char *name);
ngx_int_t ngx_idempotency_place_take(ngx_idempotency_place_t *place,
    const char *name);
void ngx_idempotency_place_remove(const char *name);

/* ... of one that is gone, but not its owners, nor its witness */

void ngx_idempotency_place_remove_logs(const char *name);

/* says why not, and is NGX_ERROR */

ngx_int_t ngx_idempotency_place_refuse(ngx_idempotency_place_t *place,
    ngx_err_t err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));


#endif /* _NGX_IDEMPOTENCY_PLACE_H_INCLUDED_ */
