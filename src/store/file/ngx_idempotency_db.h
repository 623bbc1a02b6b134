
/*
 * The file that remembers tokens: an SQLite database.  Everything here may
 * block, so it is called in threads, or in a process of its own, and never in
 * an event loop; it takes memory with malloc(), logs nothing, and tells what
 * went wrong in words that follow the file's path.
 *
 * A database is one thread's at a time, and does not go through a fork().
 */


#ifndef _NGX_IDEMPOTENCY_DB_H_INCLUDED_
#define _NGX_IDEMPOTENCY_DB_H_INCLUDED_


#include "store/ngx_idempotency_backing.h"


/* the file's stamp: application_id ("idem"), and user_version */

#define NGX_IDEMPOTENCY_DB_ID       0x6964656d
#define NGX_IDEMPOTENCY_DB_VERSION  2

/* of errors, with the zero */

#define NGX_IDEMPOTENCY_DB_ERROR    256


typedef struct {
    const char                *path;
    ngx_idempotency_sync_e     sync;
    /* the file grows no larger; 0: as large as it likes */
    off_t                      max_size;
    /* the file must have given this number; 0: isn't asked */
    uint64_t                   instance;

    /* does an instance live that isn't an item's own?  asked within the
       transaction */
    ngx_uint_t               (*alive)(void *data, uint64_t instance);
    /* NULL, or asked when the transaction has begun: may it go on? */
    ngx_uint_t               (*may)(void *data);
    void                      *data;
} ngx_idempotency_db_conf_t;


typedef struct ngx_idempotency_db_s  ngx_idempotency_db_t;


/* NULL: error, of NGX_IDEMPOTENCY_DB_ERROR bytes, tells why.  Makes no file */

ngx_idempotency_db_t *ngx_idempotency_db_open(ngx_idempotency_db_conf_t *conf,
    char *error, size_t len);
void ngx_idempotency_db_close(ngx_idempotency_db_t *db);

/*
 * One transaction.  NGX_OK: each item has its result, of which UNAVAILABLE
 * tells of one that could neither be read nor written (its record is damaged,
 * or there is no room for it), while the others were.  NGX_ERROR: nothing was
 * written, all are UNAVAILABLE.  NGX_DECLINED: so too, as conf->may denied it.
 */

ngx_int_t ngx_idempotency_db_commit(ngx_idempotency_db_t *db,
    ngx_idempotency_item_t *items, ngx_uint_t n, int64_t now);

/* why not, "" if all is well; of NGX_OK, what is wrong with some item */

const char *ngx_idempotency_db_error(ngx_idempotency_db_t *db);

/* it will not get better, as the file is damaged or gone, or what was written
   may not be on disk: all that have it open should stop until a restart */

ngx_uint_t ngx_idempotency_db_failed(ngx_idempotency_db_t *db);

/* all that was committed, by whomever, is on disk then; NGX_OK or NGX_ERROR */

ngx_int_t ngx_idempotency_db_sync(ngx_idempotency_db_t *db);

/*
 * Up to n tokens behind `after` (NULL: from the start), in their order: how
 * many, or NGX_ERROR.  Some may have ended.
 */

ngx_int_t ngx_idempotency_db_tokens(ngx_idempotency_db_t *db, u_char *after,
    u_char (*tokens)[NGX_IDEMPOTENCY_DIGEST_LEN], ngx_uint_t n);

/*
 * For quiet times, in steps of about n records: what ended goes, what is
 * pending of an instance that is dead becomes in doubt, the log is brought
 * into the file and free pages go back.  NGX_AGAIN: there is more to do,
 * NGX_OK: there is not, NGX_ERROR.  To be called under the lock of those who
 * commit, as a commit is.
 */

ngx_int_t ngx_idempotency_db_tidy(ngx_idempotency_db_t *db, int64_t now,
    ngx_uint_t n);


/* of a start, in a process of its own */

typedef struct {
    /* in: the clocks, in milliseconds, and the boot's name, "": not known */
    int64_t                    wall;
    int64_t                    boottime;
    char                       boot[40];
    /* in: it must be a store; else an empty file is there to become one */
    ngx_uint_t                 found;
    /* in: that of the digest key by which the file's tokens are made */
    u_char                     stamp[NGX_IDEMPOTENCY_STAMP_LEN];
    /* in: whose lock of those who commit is taken for what is written */
    int                        owners;

    /* out: of the fingerprints that are written: the newest that all know who
       have the file, which rises when nobody else has */
    ngx_uint_t                 version;

    /* out: a number that this file never gave, and no fence is higher */
    uint64_t                   instance;
    uint64_t                   fence;
    /* out: what the file's time is ahead of CLOCK_BOOTTIME, and the latest
       time that it knows of */
    int64_t                    base;
    int64_t                    latest;
} ngx_idempotency_db_start_t;

/* looks whether the file is whole, for 0.3 seconds at most; NGX_ERROR: error
   tells what is wrong with it */

ngx_int_t ngx_idempotency_db_start(const char *path,
    ngx_idempotency_db_start_t *start, char *error, size_t len);

/* NGX_ERROR: it can't be this one's, by its key or its version.  Touches
   nothing, takes no lock, and leaves all else to a start */

ngx_int_t ngx_idempotency_db_peek(const char *path,
    ngx_idempotency_db_start_t *start, char *error, size_t len);


#endif /* _NGX_IDEMPOTENCY_DB_H_INCLUDED_ */
