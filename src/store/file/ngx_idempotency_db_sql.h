
/*
 * What the files of the database share: its statements, a record as it is in
 * a row, and how errors are told.  An error is SQLite's here: SQLITE_OK, or
 * what becomes NGX_ERROR for the whole transaction.
 */


#ifndef _NGX_IDEMPOTENCY_DB_SQL_H_INCLUDED_
#define _NGX_IDEMPOTENCY_DB_SQL_H_INCLUDED_


#include "ngx_idempotency_db.h"
#include <sqlite3.h>


#define NGX_IDEMPOTENCY_DB_PAGE        4096

/* milliseconds: for how long a statement waits for another program */

#define NGX_IDEMPOTENCY_DB_BUSY        250


typedef enum {
    NGX_IDEMPOTENCY_DB_BEGIN = 0,
    NGX_IDEMPOTENCY_DB_COMMIT,
    NGX_IDEMPOTENCY_DB_ROLLBACK,
    NGX_IDEMPOTENCY_DB_META,
    NGX_IDEMPOTENCY_DB_SET_META,
    NGX_IDEMPOTENCY_DB_FIND,
    NGX_IDEMPOTENCY_DB_CLAIM,
    NGX_IDEMPOTENCY_DB_RECORD,
    NGX_IDEMPOTENCY_DB_CHANGE,
    NGX_IDEMPOTENCY_DB_DELETE_CLAIM,
    NGX_IDEMPOTENCY_DB_DELETE_RECORD,
    NGX_IDEMPOTENCY_DB_EXPIRE,
    NGX_IDEMPOTENCY_DB_CLAIMS,
    NGX_IDEMPOTENCY_DB_TOKENS,
    NGX_IDEMPOTENCY_DB_PAGES,
    NGX_IDEMPOTENCY_DB_FREE,
    NGX_IDEMPOTENCY_DB_ROOT,
    NGX_IDEMPOTENCY_DB_STATEMENTS
} ngx_idempotency_db_statement_e;


/* the file, its log and the log's index, as they were when it was opened */

#define NGX_IDEMPOTENCY_DB_FILES  3

typedef struct {
    dev_t                       dev;
    ino_t                       ino;
} ngx_idempotency_db_inode_t;


struct ngx_idempotency_db_s {
    sqlite3                    *sqlite;
    sqlite3_stmt               *statements[NGX_IDEMPOTENCY_DB_STATEMENTS];

    ngx_idempotency_db_conf_t   conf;
    char                       *path[NGX_IDEMPOTENCY_DB_FILES];
    ngx_idempotency_db_inode_t  inode[NGX_IDEMPOTENCY_DB_FILES];

    /* what meta had when the transaction began, and how many rows had been
       changed until then */
    int64_t                     latest;
    uint64_t                    fence;
    ngx_atomic_uint_t           number;
    int                         changes;
    /* the page of meta */
    int64_t                     root;

    /* with max_size, in pages: the most, and what is left of it within a
       transaction */
    int64_t                     most;
    int64_t                     left;

    /* how far tidying has come among what is pending */
    u_char                      tidied[NGX_IDEMPOTENCY_DIGEST_LEN];
    unsigned                    tidying:1;
    unsigned                    shrunk:1;

    unsigned                    failed:1;
    unsigned                    wrote:1;
    unsigned                    other:1;
    unsigned                    moved:1;
    char                        error[NGX_IDEMPOTENCY_DB_ERROR];
};


typedef struct {
    /* of a record; a claim has none */
    sqlite3_int64               id;

    u_char                      fingerprint[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_idempotency_parts_t     parts;
    u_char                      mac[NGX_IDEMPOTENCY_MAC_LEN];
    uint64_t                    instance;
    uint64_t                    fence;
    int64_t                     recorded;
    int64_t                     ends;
    int64_t                     window;
    ngx_idempotency_outcome_e   outcome;
    ngx_uint_t                  status;
    ngx_uint_t                  replays;
    /* of a claim: it was in doubt before */
    ngx_uint_t                  taken;

    /* SQLite's, until the statement that found it is reset */
    ngx_str_t                   response;
} ngx_idempotency_db_record_t;


/* of an open file: */

sqlite3_stmt *ngx_idempotency_db_statement(ngx_idempotency_db_t *db,
    ngx_idempotency_db_statement_e n);

/* runs a statement that gives no rows, and has it ready again */

int ngx_idempotency_db_run(ngx_idempotency_db_t *db,
    ngx_idempotency_db_statement_e n);

/* one number of the first row, which there must be */

int ngx_idempotency_db_number(ngx_idempotency_db_t *db,
    ngx_idempotency_db_statement_e n, int64_t *value);

/* tells, ends the transaction, and returns NGX_ERROR */

ngx_int_t ngx_idempotency_db_fail(ngx_idempotency_db_t *db, int rc);

/* whether the files are those yet that were opened first */

ngx_int_t ngx_idempotency_db_files(ngx_idempotency_db_t *db,
    ngx_uint_t first);

/* a transaction of the file that is meant, and no other; its end: if it has
   changed something, the file's number is one more */

int ngx_idempotency_db_begin(ngx_idempotency_db_t *db);
int ngx_idempotency_db_end(ngx_idempotency_db_t *db, uint64_t fence,
    int64_t now);

/* deletes up to n records that are over: how many */

int ngx_idempotency_db_expire(ngx_idempotency_db_t *db, int64_t now,
    ngx_uint_t n, ngx_uint_t *done);

/* what an item asks for; the result, but for that of an error, is in it */

int ngx_idempotency_db_item(ngx_idempotency_db_t *db,
    ngx_idempotency_item_t *item, int64_t now);

/* what is pending becomes in doubt, if its instance is dead */

int ngx_idempotency_db_doubt(ngx_idempotency_db_t *db, u_char *token,
    int64_t now);

/* of a row, found or not: */

#define NGX_IDEMPOTENCY_DB_ABSENT   -1
#define NGX_IDEMPOTENCY_DB_DAMAGED  -2

int ngx_idempotency_db_look(ngx_idempotency_db_t *db, u_char *token,
    int64_t now, ngx_idempotency_db_record_t *rec);
int ngx_idempotency_db_write(ngx_idempotency_db_t *db,
    ngx_idempotency_db_statement_e n, u_char *token,
    ngx_idempotency_db_record_t *rec);
int ngx_idempotency_db_delete(ngx_idempotency_db_t *db, u_char *token,
    ngx_idempotency_db_record_t *rec);

/* is there room for a row and a response of that size, and `reserve` pages
   behind it? */

ngx_uint_t ngx_idempotency_db_room(ngx_idempotency_db_t *db, size_t size,
    int64_t reserve);

/* of any connection: */

int ngx_idempotency_db_connect(const char *path, sqlite3 **sqlite);

void ngx_idempotency_db_tell(char *error, size_t len, sqlite3 *sqlite, int rc);

/* of what SQLite calls damage: the disk's error, or 0: it is damaged */

int ngx_idempotency_db_unread(sqlite3 *sqlite);

/* what differs between the file and the mark: 0, and error tells */

ngx_uint_t ngx_idempotency_db_same(ngx_idempotency_mark_t *mark,
    const void *identity, ngx_atomic_uint_t number, char *error, size_t len);

/* the stamps, and that it has our tables and nothing else; SQLITE_OK, or error
   tells */

int ngx_idempotency_db_stamped(sqlite3 *sqlite, char *error, size_t len);


#endif /* _NGX_IDEMPOTENCY_DB_SQL_H_INCLUDED_ */
