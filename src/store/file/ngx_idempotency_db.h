
/*
 * The file that remembers tokens: an SQLite database.  All functions may block,
 * so they are called in threads, or in a process of their own, never in an
 * event loop.  They take memory with malloc(), and log nothing: errors are
 * words that follow the file's path.
 *
 * One thread at a time uses a database, and a database does not survive a
 * fork().
 */


#ifndef _NGX_IDEMPOTENCY_DB_H_INCLUDED_
#define _NGX_IDEMPOTENCY_DB_H_INCLUDED_


#include "store/ngx_idempotency_backing.h"
#include <sqlite3.h>


/* the length of the log, in pages, at which it begins anew: in a quiet moment,
   and in any */

#define NGX_IDEMPOTENCY_DB_QUIET    2000
#define NGX_IDEMPOTENCY_DB_LONG     16000

/* the file's application_id ("idem"), its place, and the user_version */

#define NGX_IDEMPOTENCY_DB_ID       0x6964656d
#define NGX_IDEMPOTENCY_DB_ID_AT    68
#define NGX_IDEMPOTENCY_DB_VERSION  2

/* how long a statement waits for another program, in milliseconds */

#define NGX_IDEMPOTENCY_DB_BUSY     250

/* all numbers of a row are from 0 to below this, but an instance's */

#define NGX_IDEMPOTENCY_DB_MOST     ((uint64_t) 1 << 53)

/* a commit's number in the file always has eight bytes */

#define ngx_idempotency_db_number(n)  ((uint64_t) (n) | (uint64_t) 1 << 48)

/* the size of an error with its final zero */

#define NGX_IDEMPOTENCY_DB_ERROR    256


typedef struct {
    const char                *path;
    ngx_idempotency_sync_e     sync;
    /* the file grows no larger; 0: no limit */
    off_t                      max_size;
    /* NULL, or the identity that the file must have, and its least number; the
       number rises with each commit, by whatever thread or worker */
    ngx_idempotency_mark_t    *mark;
    /* -1, or the same file, open to read it without its log */
    int                        file;
    /* out, with each commit: the length of the log in pages; or NULL */
    ngx_atomic_t              *log;

    /* whether an instance lives, perhaps ours; asked in the transaction */
    ngx_uint_t               (*alive)(void *data, uint64_t instance);
    /* NULL, or asked when the transaction has begun: whether it may go on */
    ngx_uint_t               (*may)(void *data);
    void                      *data;
} ngx_idempotency_db_conf_t;


typedef struct ngx_idempotency_db_s  ngx_idempotency_db_t;


typedef struct {
    /* it will not get better: the file is damaged, or changes may be missing on
       disk.  All who have the file open should stop until a restart */
    unsigned                   failed:1;
    /* the last commit has changed something */
    unsigned                   wrote:1;
    /* the file is not the one of conf->mark, or is older */
    unsigned                   other:1;
    /* there was no room on the disk */
    unsigned                   full:1;
    /* another file is at this path: it has to be opened */
    unsigned                   moved:1;
    /* what went wrong, or "" */
    char                       error[NGX_IDEMPOTENCY_DB_ERROR];
} ngx_idempotency_db_state_t;


/* NULL: error says why.  It creates no file */

ngx_idempotency_db_t *ngx_idempotency_db_open(ngx_idempotency_db_conf_t *conf,
    char *error, size_t len);
void ngx_idempotency_db_close(ngx_idempotency_db_t *db);

/*
 * One transaction.  NGX_OK: each item has its result; UNAVAILABLE is one that
 * could be neither read nor written (its record is damaged, or there is no
 * room), while the others were.  NGX_ERROR: nothing was written, all items are
 * UNAVAILABLE, and not to be used again.  NGX_DECLINED: the same, as conf->may
 * refused.  NGX_ABORT: another file is at this path, or none, and the items are
 * as they were.
 */

ngx_int_t ngx_idempotency_db_commit(ngx_idempotency_db_t *db,
    ngx_idempotency_item_t *items, ngx_uint_t n, int64_t now);

/* how the last operation ended */

const ngx_idempotency_db_state_t *ngx_idempotency_db_state(
    ngx_idempotency_db_t *db);

/* brings all commits, whoever made them, to the disk; in any thread.
   NGX_DECLINED: it is not known whether they are there; NGX_ERROR: some may
   never be */

ngx_int_t ngx_idempotency_db_sync(const char *path, char *error, size_t len);

/*
 * Copies SQLite's log (WAL) into the file, while commits go on.  With the time,
 * and under the lock of commits: also begins the log anew, with a first commit.
 * An ordinary commit does not do that, as the first one of a new log waits for
 * a sync in every mode.
 */

ngx_int_t ngx_idempotency_db_checkpoint(ngx_idempotency_db_t *db, int64_t now);

/*
 * Up to n tokens after `after` (NULL: from the start), in their order.  Returns
 * how many, or NGX_ERROR.  Some may have ended.
 */

ngx_int_t ngx_idempotency_db_tokens(ngx_idempotency_db_t *db, u_char *after,
    u_char (*tokens)[NGX_IDEMPOTENCY_DIGEST_LEN], ngx_uint_t n);

/*
 * Maintenance for quiet times, in steps of about n records: ended records go,
 * and pending ones of dead instances become in doubt.  NGX_AGAIN: there is more
 * to do, NGX_OK: there is not, or NGX_ERROR.  Called under the lock of commits.
 */

ngx_int_t ngx_idempotency_db_tidy(ngx_idempotency_db_t *db, int64_t now,
    ngx_uint_t n);


/*
 * For a start: connects as the functions above do; describes an error of
 * SQLite's, and returns whether the file itself is wrong; describes how the
 * file differs from the mark, or returns 0.
 */

int ngx_idempotency_db_connect(const char *path, sqlite3 **sqlite);
ngx_uint_t ngx_idempotency_db_error(char *error, size_t len, sqlite3 *sqlite,
    int rc);
ngx_uint_t ngx_idempotency_db_same(ngx_idempotency_mark_t *mark,
    const void *identity, ngx_atomic_uint_t number, char *error, size_t len);


#endif /* _NGX_IDEMPOTENCY_DB_H_INCLUDED_ */
