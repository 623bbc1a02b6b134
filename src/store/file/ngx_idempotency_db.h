
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
#include <sqlite3.h>


/* of pages: the log's length at which it begins anew in a quiet moment, and at
   which it does in any */

#define NGX_IDEMPOTENCY_DB_QUIET    2000
#define NGX_IDEMPOTENCY_DB_LONG     16000

/* the file's stamp: application_id ("idem"), and user_version */

#define NGX_IDEMPOTENCY_DB_ID       0x6964656d
#define NGX_IDEMPOTENCY_DB_VERSION  2

/* milliseconds: for how long a statement waits for another program */

#define NGX_IDEMPOTENCY_DB_BUSY     250

/* the number of a commit as the file has it: always of eight bytes */

#define ngx_idempotency_db_number(n)  ((uint64_t) (n) | (uint64_t) 1 << 48)

/* of errors, with the zero */

#define NGX_IDEMPOTENCY_DB_ERROR    256


typedef struct {
    const char                *path;
    ngx_idempotency_sync_e     sync;
    /* the file grows no larger; 0: as large as it likes */
    off_t                      max_size;
    /* NULL, or what the file must be, and have at least; rises with each
       commit, whatever thread or worker makes it */
    ngx_idempotency_mark_t    *mark;
    /* -1, or an open file of the same, by which it is looked at as it is
       without its log */
    int                        file;
    /* NULL, or the length of the log, in pages: out, with each commit */
    ngx_atomic_t              *log;

    /* does an instance live, which may be our own?  asked within the
       transaction */
    ngx_uint_t               (*alive)(void *data, uint64_t instance);
    /* NULL, or asked when the transaction has begun: may it go on? */
    ngx_uint_t               (*may)(void *data);
    void                      *data;
} ngx_idempotency_db_conf_t;


typedef struct ngx_idempotency_db_s  ngx_idempotency_db_t;


typedef struct {
    /* it will not get better, as the file is damaged, or what was written may
       not be on disk: all that have it open should stop until a restart */
    unsigned                   failed:1;
    /* the last commit has changed something */
    unsigned                   wrote:1;
    /* it is another file than conf->mark says, or an older one */
    unsigned                   other:1;
    /* another file is at its path: it is to be opened anew */
    unsigned                   moved:1;
    /* what went wrong, or "" */
    char                       error[NGX_IDEMPOTENCY_DB_ERROR];
} ngx_idempotency_db_state_t;


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

/* how the last operation ended */

const ngx_idempotency_db_state_t *ngx_idempotency_db_state(
    ngx_idempotency_db_t *db);

/* all that was committed, by whomever, is on disk then; by any thread.
   NGX_DECLINED: it is not known; NGX_ERROR: some of it may never be */

ngx_int_t ngx_idempotency_db_sync(const char *path, char *error, size_t len);

/*
 * The log (SQLite's WAL) begins anew.  A commit does not do that: the first one
 * of a log that begins waits for a sync, whatever the mode is.  At first, what
 * it has is brought into the file, while commits go on; and then, under the
 * lock of commits, the rest, and a first commit.
 */

ngx_int_t ngx_idempotency_db_checkpoint(ngx_idempotency_db_t *db);
ngx_int_t ngx_idempotency_db_restart(ngx_idempotency_db_t *db, int64_t now);

/*
 * Up to n tokens behind `after` (NULL: from the start), in their order: how
 * many, or NGX_ERROR.  Some may have ended.
 */

ngx_int_t ngx_idempotency_db_tokens(ngx_idempotency_db_t *db, u_char *after,
    u_char (*tokens)[NGX_IDEMPOTENCY_DIGEST_LEN], ngx_uint_t n);

/*
 * For quiet times, in steps of about n records: what ended goes, what is
 * pending of an instance that is dead becomes in doubt, and free pages go
 * back.  NGX_AGAIN: there is more to do, NGX_OK: there is not, NGX_ERROR.  To
 * be called under the lock of commits, as a commit is.
 */

ngx_int_t ngx_idempotency_db_tidy(ngx_idempotency_db_t *db, int64_t now,
    ngx_uint_t n);


/*
 * For a start: a connection as it is used here; what an error of SQLite's is;
 * and what differs between the file and the mark: 0, and error tells.
 */

int ngx_idempotency_db_connect(const char *path, sqlite3 **sqlite);
void ngx_idempotency_db_tell(char *error, size_t len, sqlite3 *sqlite, int rc);
ngx_uint_t ngx_idempotency_db_same(ngx_idempotency_mark_t *mark,
    const void *identity, ngx_atomic_uint_t number, char *error, size_t len);


#endif /* _NGX_IDEMPOTENCY_DB_H_INCLUDED_ */
