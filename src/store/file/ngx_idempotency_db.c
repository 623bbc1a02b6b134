
/*
 * The file that remembers tokens, open: its transactions, what an item does in
 * one, rows, and the maintenance that keeps the file small and on disk.  How a
 * start makes or checks a file is in start.c; threads are in file.c.
 *
 * ONE TABLE  A pending token is a row of `claims`, which stays small; an ended
 *            one, or one in doubt, is a row of `records`, in the order of
 *            arrival, until its time is over.  A token is in one of them.  A
 *            row that moves is inserted there before it is deleted here, so no
 *            error in between loses it.
 * SUMS       SQLite has no checksums: each row has one over its columns and one
 *            over its response.  A damaged row is neither absent nor an answer.
 * LOG        We copy the log (SQLite's WAL) into the file, not each commit, so
 *            requests wait for that only when the log has become long.
 */


#include "ngx_idempotency_db.h"
#include "ngx_idempotency_owners.h"


#if (NGX_IDEMPOTENCY_FILE)


#define DB_PAGE  4096


typedef enum {
    SQL_BEGIN = 0,
    SQL_COMMIT,
    SQL_ROLLBACK,
    SQL_META,
    SQL_SET_META,
    SQL_FIND,
    SQL_CLAIM,
    SQL_RECORD,
    SQL_CHANGE,
    SQL_DELETE_CLAIM,
    SQL_DELETE_RECORD,
    SQL_EXPIRE,
    SQL_CLAIMS,
    SQL_TOKENS,
    SQL_PAGES,
    SQL_FREE,
    SQL_ROOT,
    SQL_STATEMENTS
} db_sql_e;


/* the file, its log and the log's index, as they were when opened; the length
   of the longest name */

#define DB_FILES    3
#define DB_NAME     (NGX_IDEMPOTENCY_FILE_PATH + sizeof("-wal"))

/* results of a look-up without a row */

#define DB_ABSENT   -1
#define DB_DAMAGED  -2


typedef struct {
    dev_t                       dev;
    ino_t                       ino;
} db_inode_t;


struct ngx_idempotency_db_s {
    sqlite3                    *sqlite;
    sqlite3_stmt               *statements[SQL_STATEMENTS];

    ngx_idempotency_db_conf_t   conf;
    char                        path[DB_FILES][DB_NAME];
    db_inode_t                  inode[DB_FILES];

    /* meta at the start of the transaction; the rows changed until then */
    int64_t                     latest;
    uint64_t                    fence;
    ngx_atomic_uint_t           number;
    int                         changes;
    /* the page of meta in the file */
    int64_t                     root;

    /* in pages: the limit, max_size, and what is left in this transaction */
    int64_t                     most;
    int64_t                     left;

    /* the last claim that maintenance has looked at */
    u_char                      tidied[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_uint_t                  tidying;

    ngx_idempotency_db_state_t  state;
};


/* A row, as the item that wrote it.  The response belongs to SQLite until the
   statement that found it is reset. */

typedef struct {
    /* of a record; claims have none */
    sqlite3_int64               id;
    ngx_idempotency_item_t      item;
} db_record_t;


/* how many expired records each item of a commit deletes */

#define DB_EXPIRE        3

/* how far the file's latest time may lag behind, in milliseconds */

#define DB_META_LAG      1000

/* the looks at a page that may be written just now, and the pause between them
   in microseconds */

#define DB_FILED_LOOKS   5
#define DB_FILED_PAUSE   1000

/* the last process that closes the file removes the log and then its index: so
   many looks, with this pause in microseconds, for the moment in between */

#define DB_LOG_LOOKS     20
#define DB_LOG_PAUSE     5000

/* two clocks whose readings are this close show the same time */

#define DB_ITEM_APART  1000

/* the parameters of a statement that writes a row.  One that finds a row has
   the same columns, one less, with the id in the place of the token */

#define DB_TOKEN        1
#define DB_FINGERPRINT  2
#define DB_PARTS        3
#define DB_NUMBERS      4
#define DB_SUM          9
#define DB_OUTCOME      10
#define DB_RESPONSE     13
#define DB_ID           14

/* the numbers of a row, in the order of their columns: of a claim, and with
   those that only a record has */

#define DB_OF_CLAIM     5
#define DB_OF_RECORD    8

/* in pages: a response, and the most that a row takes besides */

#define DB_PAGES(size)  ((int64_t) ((size) / (DB_PAGE - 4)))
#define DB_ROW          4

/* the column `parts`: what the token is bound to, and the record's mark */

#define DB_PARTS_LEN  (offsetof(ngx_idempotency_item_t, mac)                  \
                       + NGX_IDEMPOTENCY_MAC_LEN                              \
                       - offsetof(ngx_idempotency_item_t, parts))


typedef u_char  db_token_t[NGX_IDEMPOTENCY_DIGEST_LEN];


static ngx_int_t db_prepare(ngx_idempotency_db_t *db);
static int db_committed(void *data, sqlite3 *sqlite, const char *name,
    int pages);
static int db_meta(ngx_idempotency_db_t *db, ngx_idempotency_mark_t *mark);
static ngx_uint_t db_check_filed(ngx_idempotency_db_t *db);
static ngx_uint_t db_filed_number(ngx_idempotency_db_t *db,
    ngx_atomic_uint_t *number);
static ngx_int_t db_moved(ngx_idempotency_db_t *db, ngx_uint_t i,
    const char *how);

static int db_run(ngx_idempotency_db_t *db, db_sql_e n);
static int db_number(ngx_idempotency_db_t *db, db_sql_e n, int64_t *value);
static ngx_int_t db_fail(ngx_idempotency_db_t *db, int rc);
static ngx_int_t db_check_files(ngx_idempotency_db_t *db, ngx_uint_t first);
static int db_begin(ngx_idempotency_db_t *db);
static int db_end(ngx_idempotency_db_t *db, uint64_t fence, int64_t now);
static int db_expire(ngx_idempotency_db_t *db, int64_t now,
    ngx_uint_t n, ngx_uint_t *done);
static int db_item(ngx_idempotency_db_t *db,
    ngx_idempotency_item_t *item, int64_t now);
static int db_tokens(ngx_idempotency_db_t *db, db_sql_e n, u_char *after,
    db_token_t *tokens, ngx_uint_t *count);
static int db_look(ngx_idempotency_db_t *db, u_char *token,
    int64_t now, db_record_t *rec);
static int db_write(ngx_idempotency_db_t *db, db_sql_e n, u_char *token,
    db_record_t *rec);
static int db_delete(ngx_idempotency_db_t *db, u_char *token,
    db_record_t *rec);
static ngx_uint_t db_room(ngx_idempotency_db_t *db, size_t size,
    int64_t reserve);

static int db_ask(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item,
    int64_t now);
static int db_take(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item,
    db_record_t *rec, int64_t now);
static int db_answer(ngx_idempotency_item_t *item,
    ngx_idempotency_item_t *found);
static int db_put(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item,
    int64_t now);
static ngx_uint_t db_may_put(ngx_idempotency_item_t *found,
    ngx_idempotency_item_t *item);
static int db_outcome(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item,
    db_record_t *old);
static int db_release(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item,
    int64_t now);
static int db_find(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item,
    int64_t now);
static int db_forget(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item,
    int64_t now);
static int db_in_doubt(ngx_idempotency_db_t *db, u_char *token, int64_t now,
    db_record_t *rec);
static int db_no_row(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item,
    int rc);
static void db_unavailable(ngx_idempotency_db_t *db,
    ngx_idempotency_item_t *item, char *why);

static int db_read(sqlite3_stmt *st, u_char *token, db_record_t *rec);
static ngx_int_t db_blob(sqlite3_stmt *st, int column, void *to, size_t len);
static sqlite3_int64 db_sum(u_char *token, ngx_idempotency_item_t *item,
    int64_t *numbers);
static uint32_t db_hash(u_char *p, size_t len);

static int db_doubt_dead(ngx_idempotency_db_t *db, int64_t now, ngx_uint_t n,
    ngx_uint_t *done);
static int db_unread(sqlite3 *sqlite);


#define DB_COLUMNS                                                            \
    "fingerprint, parts, instance, fence, recorded, ends, span, sum, "

static const char  *db_statements[] = {

    [SQL_BEGIN] = "BEGIN IMMEDIATE",
    [SQL_COMMIT] = "COMMIT",
    [SQL_ROLLBACK] = "ROLLBACK",

    [SQL_META] = "SELECT latest, fence, number, identity FROM meta",
    [SQL_SET_META] = "UPDATE meta SET latest = ?1, fence = ?2, number = ?3",

    [SQL_FIND] =
    "SELECT 0, " DB_COLUMNS "0, 0, 0, NULL FROM claims WHERE token = ?1 "
    "UNION ALL "
    "SELECT id, " DB_COLUMNS "outcome, status, replays, response "
    "FROM records WHERE token = ?1 LIMIT 1",

    [SQL_CLAIM] =
    "INSERT OR REPLACE INTO claims (token, fingerprint, parts, instance, "
    "fence, recorded, ends, span, sum) "
    "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",

    [SQL_RECORD] =
    "INSERT INTO records (token, fingerprint, parts, instance, fence, "
    "recorded, ends, span, sum, outcome, status, replays, response) "
    "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",

    [SQL_CHANGE] =
    "UPDATE records SET fingerprint = ?2, parts = ?3, instance = ?4, "
    "fence = ?5, recorded = ?6, ends = ?7, span = ?8, sum = ?9, "
    "outcome = ?10, status = ?11, replays = ?12, response = ?13 "
    "WHERE id = ?14 AND token = ?1",

    [SQL_DELETE_CLAIM] = "DELETE FROM claims WHERE token = ?1",
    [SQL_DELETE_RECORD] = "DELETE FROM records WHERE id = ?1",

    [SQL_EXPIRE] =
    "DELETE FROM records WHERE id IN (SELECT id FROM records "
    "WHERE ends <= ?1 ORDER BY ends LIMIT ?2)",

    [SQL_CLAIMS] =
    "SELECT token FROM claims WHERE token > ?1 ORDER BY token LIMIT ?2",

    [SQL_TOKENS] =
    "SELECT token FROM claims WHERE token > ?1 UNION ALL "
    "SELECT token FROM records WHERE token > ?1 ORDER BY 1 LIMIT ?2",

    [SQL_PAGES] = "PRAGMA page_count",
    [SQL_FREE] = "PRAGMA freelist_count",
    [SQL_ROOT] = "SELECT rootpage FROM sqlite_master WHERE name = 'meta'"
};


ngx_idempotency_db_t *
ngx_idempotency_db_open(ngx_idempotency_db_conf_t *conf, char *error,
    size_t len)
{
    int                    rc;
    ngx_uint_t             i;
    ngx_idempotency_db_t  *db;

    static const char     *suffix[] = { "", "-wal", "-shm" };

    db = calloc(1, sizeof(ngx_idempotency_db_t));

    if (db == NULL) {
        (void) snprintf(error, len, "no memory");
        return NULL;
    }

    db->conf = *conf;
    db->conf.path = db->path[0];

    for (i = 0; i < DB_FILES; i++) {
        (void) snprintf(db->path[i], DB_NAME, "%s%s", conf->path, suffix[i]);
    }

    /*
     * If the log was removed, SQLite would begin another one, and commits that
     * only the old one has would be lost.  A process that has the file open has
     * an index of the log; the last process removes the log, then the index.
     */

    for (i = 0;
         access(db->path[1], F_OK) == -1 && access(db->path[2], F_OK) == 0;
         i++)
    {
        if (i == DB_LOG_LOOKS) {
            (void) snprintf(error, len, "-wal is not there any more");
            goto failed;
        }

        (void) usleep(DB_LOG_PAUSE);
    }

    rc = ngx_idempotency_db_connect(conf->path, &db->sqlite);

    if (rc != SQLITE_OK) {
        (void) ngx_idempotency_db_error(error, len, db->sqlite, rc);
        goto failed;
    }

    if (db_prepare(db) != NGX_OK) {
        (void) snprintf(error, len, "%s", db->state.error);
        goto failed;
    }

    return db;

failed:

    ngx_idempotency_db_close(db);

    return NULL;
}


static ngx_int_t
db_prepare(ngx_idempotency_db_t *db)
{
    int         rc;
    char        sql[80];
    ngx_uint_t  i;

    (void) snprintf(sql, sizeof(sql), "PRAGMA synchronous = %s",
                    db->conf.sync == NGX_IDEMPOTENCY_SYNC_STRICT
                    ? "FULL" : "NORMAL");

    rc = sqlite3_exec(db->sqlite, sql, NULL, NULL, NULL);

    if (rc == SQLITE_OK && db->conf.max_size) {
        db->most = db->conf.max_size / DB_PAGE;

        (void) snprintf(sql, sizeof(sql), "PRAGMA max_page_count = %lld",
                        (long long) db->most);

        rc = sqlite3_exec(db->sqlite, sql, NULL, NULL, NULL);
    }

    for (i = 0; rc == SQLITE_OK && i < SQL_STATEMENTS; i++) {
        rc = sqlite3_prepare_v3(db->sqlite, db_statements[i], -1,
                                SQLITE_PREPARE_PERSISTENT,
                                &db->statements[i], NULL);

        /* another program has such tables: its file is not written to */

        rc = (rc == SQLITE_ERROR) ? SQLITE_NOTADB : rc;
    }

    /* a copy of the file may be without a log */

    if (rc == SQLITE_OK) {
        rc = sqlite3_exec(db->sqlite, "PRAGMA journal_mode = WAL", NULL, NULL,
                          NULL);
    }

    if (rc != SQLITE_OK) {
        return db_fail(db, rc);
    }

    (void) sqlite3_wal_hook(db->sqlite, db_committed, db);

    /*
     * One read makes the log and its index, if they are missing.  Others may
     * commit meanwhile, so the read may be behind the mark: the first
     * transaction finds out if the file is another one.
     */

    rc = db_meta(db, NULL);

    if (rc == SQLITE_OK) {
        rc = db_number(db, SQL_ROOT, &db->root);
    }

    return (rc == SQLITE_OK) ? db_check_files(db, 1) : db_fail(db, rc);
}


void
ngx_idempotency_db_close(ngx_idempotency_db_t *db)
{
    int         persist;
    ngx_uint_t  i;

    for (i = 0; i < SQL_STATEMENTS; i++) {
        (void) sqlite3_finalize(db->statements[i]);
    }

    /* SQLite would remove the log by its name: by now perhaps another file's */

    if (db->sqlite && db_check_files(db, 0) != NGX_OK
        && access(db->path[1], F_OK) == 0)
    {
        persist = 1;
        (void) sqlite3_file_control(db->sqlite, "main",
                                    SQLITE_FCNTL_PERSIST_WAL, &persist);
    }

    (void) sqlite3_close(db->sqlite);

    free(db);
}


const ngx_idempotency_db_state_t *
ngx_idempotency_db_state(ngx_idempotency_db_t *db)
{
    return &db->state;
}


/* instead of SQLite's own function, which checkpoints within commits */

static int
db_committed(void *data, sqlite3 *sqlite, const char *name, int pages)
{
    ngx_idempotency_db_t  *db = data;

    if (db->conf.log) {
        *db->conf.log = pages;
    }

    return SQLITE_OK;
}


ngx_int_t
ngx_idempotency_db_commit(ngx_idempotency_db_t *db,
    ngx_idempotency_item_t *items, ngx_uint_t n, int64_t now)
{
    int         rc;
    uint64_t    fence;
    ngx_uint_t  i, done;

    db->state.error[0] = '\0';
    db->state.full = 0;

    if (db_check_files(db, 0) != NGX_OK) {
        rc = (db->state.failed || db->state.other) ? NGX_ERROR : NGX_ABORT;
        goto failed;
    }

    rc = db_begin(db);

    if (rc == SQLITE_OK && db->conf.may && !db->conf.may(db->conf.data)) {
        (void) db_run(db, SQL_ROLLBACK);
        rc = NGX_DECLINED;
        goto failed;
    }

    if (rc == SQLITE_OK) {
        rc = db_expire(db, now, DB_EXPIRE * n, &done);
    }

    fence = 0;

    for (i = 0; rc == SQLITE_OK && i < n; i++) {
        rc = db_item(db, &items[i], now);
        fence = ngx_max(fence, items[i].fence);
    }

    if (rc == SQLITE_OK) {
        rc = db_end(db, fence, now);
    }

    if (rc == SQLITE_OK) {
        return NGX_OK;
    }

    rc = db_fail(db, rc);

failed:

    for (i = 0; i < n; i++) {
        items[i].result = NGX_IDEMPOTENCY_UNAVAILABLE;
    }

    return rc;
}


/* a transaction, but only of the file that is meant */

static int
db_begin(ngx_idempotency_db_t *db)
{
    int      rc;
    int64_t  pages, unused;

    unused = 0;

    rc = db_run(db, SQL_BEGIN);

    if (rc == SQLITE_OK) {
        rc = db_meta(db, db->conf.mark);
    }

    if (rc == SQLITE_OK && db->conf.mark && !db_check_filed(db)) {
        db->state.other = 1;
        rc = SQLITE_MISMATCH;
    }

    if (rc != SQLITE_OK || db->most == 0) {
        return rc;
    }

    rc = db_number(db, SQL_PAGES, &pages);

    if (rc == SQLITE_OK) {
        rc = db_number(db, SQL_FREE, &unused);
    }

    db->left = db->most - pages + unused;

    return rc;
}


/* the file's own figures; within a transaction they are not behind the mark */

static int
db_meta(ngx_idempotency_db_t *db, ngx_idempotency_mark_t *mark)
{
    int            rc;
    const void    *identity;
    sqlite3_stmt  *st;

    db->changes = sqlite3_total_changes(db->sqlite);

    st = db->statements[SQL_META];
    rc = sqlite3_step(st);

    if (rc != SQLITE_ROW) {
        (void) sqlite3_reset(st);
        return (rc == SQLITE_DONE) ? SQLITE_CORRUPT : rc;
    }

    db->latest = sqlite3_column_int64(st, 0);
    db->fence = sqlite3_column_int64(st, 1);
    db->number = sqlite3_column_int64(st, 2);
    identity = sqlite3_column_blob(st, 3);

    rc = SQLITE_OK;

    if (identity == NULL
        || sqlite3_column_bytes(st, 3) != NGX_IDEMPOTENCY_MARK_LEN)
    {
        rc = SQLITE_CORRUPT;

    } else if (mark
               && !ngx_idempotency_db_same(mark, identity, db->number,
                                           db->state.error,
                                           NGX_IDEMPOTENCY_DB_ERROR))
    {
        db->state.other = 1;
        rc = SQLITE_MISMATCH;
    }

    (void) sqlite3_reset(st);

    return rc;
}


/*
 * A backup that is copied over the file itself leaves the log in place, with
 * the numbers from before: the file's pages are of another time, and SQLite
 * does not notice.  But then the file's own number, as the last checkpoint left
 * it, is lower.  A checkpoint may write that page just now: if it can't be
 * read, it proves nothing.
 */

static ngx_uint_t
db_check_filed(ngx_idempotency_db_t *db)
{
    ngx_uint_t               i;
    struct stat              st;
    ngx_atomic_uint_t        number, seen;
    ngx_idempotency_mark_t  *mark;

    mark = db->conf.mark;
    number = 0;

    if (db->conf.file == -1 || db->root < 2
        || fstat(db->conf.file, &st) == -1
        || st.st_ino != db->inode[0].ino || st.st_dev != db->inode[0].dev)
    {
        return 1;
    }

    for (i = 0; i < DB_FILED_LOOKS; i++) {

        if (!db_filed_number(db, &number)) {
            return 1;
        }

        seen = mark->filed;

        if ((ngx_atomic_int_t) (number - seen) >= 0) {
            (void) ngx_atomic_cmp_set(&mark->filed, seen, number);
            return 1;
        }

        (void) usleep(DB_FILED_PAUSE);
    }

    (void) snprintf(db->state.error, sizeof(db->state.error),
                    "was overwritten by an older one: %ld commits are missing "
                    "in what is not in its log",
                    (long) (mark->filed - number));
    return 0;
}


/* The only row of its only page: the identity, and eight bytes of the number.
   False: the page is something else. */

static ngx_uint_t
db_filed_number(ngx_idempotency_db_t *db, ngx_atomic_uint_t *number)
{
    size_t       cell;
    u_char       page[DB_PAGE], *p;
    uint64_t     value;
    ngx_uint_t   i;

    if (pread(db->conf.file, page, DB_PAGE, (off_t) (db->root - 1) * DB_PAGE)
        != DB_PAGE
        || page[0] != 0x0d || page[3] != 0 || page[4] != 1)
    {
        return 0;
    }

    cell = page[8] << 8 | page[9];

    if (cell >= DB_PAGE) {
        return 0;
    }

    p = memmem(page + cell, DB_PAGE - cell, db->conf.mark->identity,
               NGX_IDEMPOTENCY_MARK_LEN);

    if (p == NULL || page + DB_PAGE - p < NGX_IDEMPOTENCY_MARK_LEN + 8) {
        return 0;
    }

    value = 0;

    for (i = 0; i < 8; i++) {
        value = value << 8 | p[NGX_IDEMPOTENCY_MARK_LEN + i];
    }

    *number = (ngx_atomic_uint_t) value;

    return (value == ngx_idempotency_db_number(value));
}


ngx_uint_t
ngx_idempotency_db_same(ngx_idempotency_mark_t *mark, const void *identity,
    ngx_atomic_uint_t number, char *error, size_t len)
{
    ngx_atomic_int_t  lacks;

    if (ngx_memcmp(mark->identity, identity, NGX_IDEMPOTENCY_MARK_LEN) != 0) {
        (void) snprintf(error, len, "is another file than was used last");
        return 0;
    }

    lacks = (ngx_atomic_int_t) (mark->number - number);

    if (lacks > 0) {
        (void) snprintf(error, len, "is older than it was: %ld of the last "
                        "commits are missing", (long) lacks);
        return 0;
    }

    return 1;
}


/*
 * Stores the latest time, the highest fence and the number of commits.  A
 * transaction that has changed nothing writes nothing.
 */

static int
db_end(ngx_idempotency_db_t *db, uint64_t fence, int64_t now)
{
    int                      rc;
    sqlite3_stmt            *st;
    ngx_atomic_uint_t        seen;
    ngx_idempotency_mark_t  *mark;

    db->state.wrote = (sqlite3_total_changes(db->sqlite) != db->changes
                 || now >= db->latest + DB_META_LAG);

    if (!db->state.wrote) {
        return db_run(db, SQL_COMMIT);
    }

    st = db->statements[SQL_SET_META];

    (void) sqlite3_bind_int64(st, 1, ngx_max(db->latest, now));
    (void) sqlite3_bind_int64(st, 2, ngx_max(db->fence, fence));
    (void) sqlite3_bind_int64(st, 3,
                              ngx_idempotency_db_number(db->number + 1));

    rc = db_run(db, SQL_SET_META);

    if (rc == SQLITE_OK) {
        rc = db_run(db, SQL_COMMIT);
    }

    mark = db->conf.mark;

    while (rc == SQLITE_OK && mark) {
        seen = mark->number;

        if ((ngx_atomic_int_t) (db->number + 1 - seen) <= 0
            || ngx_atomic_cmp_set(&mark->number, seen, db->number + 1))
        {
            break;
        }
    }

    return rc;
}


/*
 * SQLite goes on with a file that was removed or replaced, and what it writes
 * is lost.  Another process that opens the new file has another log.
 */

static ngx_int_t
db_check_files(ngx_idempotency_db_t *db, ngx_uint_t first)
{
    ngx_uint_t       i;
    struct stat      st;

    if (db->state.failed) {
        (void) snprintf(db->state.error, sizeof(db->state.error),
                        "had failed, and is not used until nginx is started "
                        "anew");
        return NGX_ERROR;
    }

    for (i = 0; i < DB_FILES; i++) {

        if (stat(db->path[i], &st) == -1) {

            /* The log has no name any more, but is still open here, and there
               is no new one yet: copy it into the file while there is time. */

            if (i == 1 && !first && stat(db->path[2], &st) == 0
                && st.st_dev == db->inode[2].dev
                && st.st_ino == db->inode[2].ino)
            {
                (void) sqlite3_wal_checkpoint_v2(db->sqlite, NULL,
                                                 SQLITE_CHECKPOINT_PASSIVE,
                                                 NULL, NULL);
            }

            return db_moved(db, i, "is not there any more");
        }

        if (first) {
            db->inode[i].dev = st.st_dev;
            db->inode[i].ino = st.st_ino;
        }

        if (st.st_dev != db->inode[i].dev || st.st_ino != db->inode[i].ino) {
            return db_moved(db, i, "was replaced by another one");
        }

        if (st.st_size < DB_PAGE && i == 0) {
            db->state.other = 1;
            (void) snprintf(db->state.error, sizeof(db->state.error),
                            "was emptied");
            return NGX_ERROR;
        }

        if (st.st_size < DB_PAGE && i == 2) {
            db->state.failed = 1;
            return db_moved(db, i, "was truncated");
        }
    }

    return NGX_OK;
}


static ngx_int_t
db_moved(ngx_idempotency_db_t *db, ngx_uint_t i, const char *how)
{
    (void) snprintf(db->state.error, sizeof(db->state.error), "%s %s",
                    i ? db->path[i] + strlen(db->path[0]) : "it", how);

    db->state.moved = 1;

    return NGX_ERROR;
}


/* runs a statement that gives no rows, and resets it */

static int
db_run(ngx_idempotency_db_t *db, db_sql_e n)
{
    int  rc;

    rc = sqlite3_step(db->statements[n]);

    (void) sqlite3_reset(db->statements[n]);

    return (rc == SQLITE_DONE || rc == SQLITE_ROW) ? SQLITE_OK : rc;
}


/* one number of the first row, which must exist */

static int
db_number(ngx_idempotency_db_t *db, db_sql_e n, int64_t *value)
{
    int  rc;

    *value = 0;

    rc = sqlite3_step(db->statements[n]);

    if (rc == SQLITE_ROW) {
        *value = sqlite3_column_int64(db->statements[n], 0);
        rc = SQLITE_OK;
    }

    (void) sqlite3_reset(db->statements[n]);

    return rc;
}


/* called before the rollback, which may have an error of its own */

static ngx_int_t
db_fail(ngx_idempotency_db_t *db, int rc)
{
    if (!db->state.other) {
        (void) ngx_idempotency_db_error(db->state.error,
                                        NGX_IDEMPOTENCY_DB_ERROR, db->sqlite,
                                        rc);
    }

    db->state.full = ((rc & 0xff) == SQLITE_FULL);

    switch (rc) {

    case SQLITE_IOERR_FSYNC:
    case SQLITE_IOERR_DIR_FSYNC:
    case SQLITE_NOTADB:
        db->state.failed = 1;
        break;

    default:
        if ((rc & 0xff) != SQLITE_CORRUPT) {
            break;
        }

        if (db_unread(db->sqlite)) {

            /* a new connection has no memory of the error */

            db->state.moved = 1;
            break;
        }

        db->state.failed = 1;
    }

    if (!sqlite3_get_autocommit(db->sqlite)) {
        (void) sqlite3_reset(db->statements[SQL_FIND]);
        (void) db_run(db, SQL_ROLLBACK);
    }

    return NGX_ERROR;
}


/* sets the item's result, unless there is an error */

static int
db_item(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item, int64_t now)
{
    int  rc;

    static int  (*handlers[])(ngx_idempotency_db_t *db,
        ngx_idempotency_item_t *item, int64_t now) =
    {
        [NGX_IDEMPOTENCY_ITEM_ASK] = db_ask,
        [NGX_IDEMPOTENCY_ITEM_PUT] = db_put,
        [NGX_IDEMPOTENCY_ITEM_RELEASE] = db_release,
        [NGX_IDEMPOTENCY_ITEM_FIND] = db_find,
        [NGX_IDEMPOTENCY_ITEM_FORGET] = db_forget
    };

    rc = handlers[item->what](db, item, now);

    /* the response may not be read any more, and no statement may be open at
       the end of the transaction */

    (void) sqlite3_reset(db->statements[SQL_FIND]);

    /* these errors end a statement, but not the transaction */

    switch (rc & 0xff) {

    case SQLITE_TOOBIG:
        db_unavailable(db, item, "a record is too large");
        return SQLITE_OK;

    case SQLITE_CONSTRAINT:
        db_unavailable(db, item, "an index is damaged");
        return SQLITE_OK;
    }

    return rc;
}


static int
db_ask(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item, int64_t now)
{
    int                      rc;
    ngx_uint_t               own, given_up;
    db_record_t              rec;
    ngx_idempotency_item_t  *found;

    static u_char  nobody[NGX_IDEMPOTENCY_IDENTITY_LEN];

    rc = db_look(db, item->token, now, &rec);

    if (rc == DB_ABSENT && !item->old) {
        return db_take(db, item, NULL, now);
    }

    if (rc != SQLITE_OK) {
        return db_no_row(db, item, rc);
    }

    found = &rec.item;

    if (found->outcome == NGX_IDEMPOTENCY_PENDING) {
        own = (found->instance == item->instance);
        given_up = (own && found->fence >= item->floor && !found->taken);

        /*
         * The zone knows its own instance's claims best, and has none: this is
         * the same claim sent again, or the remains of a claim that it gave up,
         * which counts as absent.
         */

        if (given_up && item->old) {
            item->result = NGX_IDEMPOTENCY_ABSENT;
            return SQLITE_OK;
        }

        if (given_up || (own && found->fence == item->fence)) {
            return db_take(db, item, &rec, now);
        }

        if (!own && db->conf.alive(db->conf.data, found->instance)) {
            return db_answer(item, &rec.item);
        }

        rc = db_in_doubt(db, item->token, now, &rec);

        if (rc != SQLITE_OK) {
            return rc;
        }
    }

    /* with "retry" the same request takes it over, if its identity is the same,
       or the token was bound without one */

    if (found->outcome == NGX_IDEMPOTENCY_IN_DOUBT && item->retry
        && ngx_memcmp(found->fingerprint, item->fingerprint,
                      NGX_IDEMPOTENCY_DIGEST_LEN) == 0
        && (ngx_memcmp(found->parts.identity, item->parts.identity,
                       NGX_IDEMPOTENCY_IDENTITY_LEN) == 0
            || ngx_memcmp(found->parts.identity, nobody,
                          NGX_IDEMPOTENCY_IDENTITY_LEN) == 0))
    {
        if (found->fence >= item->fence) {
            item->fence = found->fence;
            item->result = NGX_IDEMPOTENCY_CHANGED;
            return SQLITE_OK;
        }

        return db_take(db, item, &rec, now);
    }

    return db_answer(item, &rec.item);
}


/* the item's claim is pending now; old: the row that it replaces */

static int
db_take(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item,
    db_record_t *old, int64_t now)
{
    int          rc;
    db_record_t  rec;

    if (old == NULL && !db_room(db, 0, db->most / 32)) {
        item->full = 1;
        db_unavailable(db, item, "max_size is reached");
        return SQLITE_OK;
    }

    rec.id = 0;
    rec.item = *item;
    rec.item.outcome = NGX_IDEMPOTENCY_PENDING;
    rec.item.status = 0;
    rec.item.replays = 0;
    rec.item.recorded = item->recorded ? item->recorded : now;
    ngx_str_null(&rec.item.response);

    /* a claim of this zone says itself if the token was in doubt before */

    if (old) {
        item->taken |= old->item.taken
                       || (item->what == NGX_IDEMPOTENCY_ITEM_ASK
                           && old->item.outcome == NGX_IDEMPOTENCY_IN_DOUBT);
    }

    rec.item.taken = item->taken;

    rc = db_write(db, SQL_CLAIM, item->token, &rec);

    if (rc == SQLITE_OK && old && old->id) {
        rc = db_delete(db, item->token, old);
    }

    item->result = (item->what == NGX_IDEMPOTENCY_ITEM_ASK)
                   ? NGX_IDEMPOTENCY_CLAIMED : NGX_IDEMPOTENCY_OK;

    return rc;
}


static int
db_answer(ngx_idempotency_item_t *item, ngx_idempotency_item_t *found)
{
    if (found->response.len && !item->length_only) {
        item->response.data = malloc(found->response.len);

        if (item->response.data == NULL) {
            return SQLITE_NOMEM;
        }

        ngx_memcpy(item->response.data, found->response.data,
                   found->response.len);
    }

    item->response.len = found->response.len;

    ngx_memcpy(item->fingerprint, found->fingerprint,
               NGX_IDEMPOTENCY_DIGEST_LEN);

    item->parts = found->parts;
    ngx_memcpy(item->mac, found->mac, NGX_IDEMPOTENCY_MAC_LEN);
    item->instance = found->instance;
    item->fence = found->fence;
    item->sequence = found->fence;
    item->recorded = found->recorded;
    item->ends = found->ends;
    item->window = found->window;
    item->outcome = found->outcome;
    item->status = found->status;
    item->replays = found->replays;

    item->result = NGX_IDEMPOTENCY_BOUND;

    return SQLITE_OK;
}


static int
db_put(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item, int64_t now)
{
    int           rc;
    db_record_t   rec, *old;

    rc = db_look(db, item->token, now, &rec);

    if (rc != SQLITE_OK && rc != DB_ABSENT) {
        return db_no_row(db, item, rc);
    }

    old = (rc == SQLITE_OK) ? &rec : NULL;

    if (old && !db_may_put(&old->item, item)) {
        item->result = NGX_IDEMPOTENCY_STALE;
        return SQLITE_OK;
    }

    if (item->outcome == NGX_IDEMPOTENCY_PENDING) {
        return db_take(db, item, old, now);
    }

    return db_outcome(db, item, old);
}


/*
 * Whether the record may replace the row.  Only an outcome replaces an outcome:
 * a claim that was made without asking, under "local", would make the token
 * fresh with its release.  So would a claim in place of a doubt that it does
 * not know of.
 */

static ngx_uint_t
db_may_put(ngx_idempotency_item_t *found, ngx_idempotency_item_t *item)
{
    if (found->instance != item->instance || item->fence < found->fence) {
        return 0;
    }

    switch (found->outcome) {

    case NGX_IDEMPOTENCY_PENDING:
        return 1;

    case NGX_IDEMPOTENCY_IN_DOUBT:
        return item->outcome != NGX_IDEMPOTENCY_PENDING
               || (item->fence > found->fence && item->taken);

    default:
        return item->outcome == NGX_IDEMPOTENCY_DONE
               || item->outcome == NGX_IDEMPOTENCY_NOT_KEPT;
    }
}


static int
db_outcome(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item,
    db_record_t *old)
{
    int          rc;
    db_record_t  rec;

    rec.id = 0;
    rec.item = *item;
    rec.item.taken = 0;

    item->result = NGX_IDEMPOTENCY_OK;

    if (rec.item.response.len
        && !db_room(db, rec.item.response.len, db->most / 16))
    {
        ngx_str_null(&rec.item.response);

        if (rec.item.outcome == NGX_IDEMPOTENCY_DONE) {
            rec.item.outcome = NGX_IDEMPOTENCY_NOT_KEPT;
        }

        item->result = NGX_IDEMPOTENCY_TRIMMED;
    }

    if (!db_room(db, rec.item.response.len, 0)) {
        item->full = 1;
        db_unavailable(db, item, "max_size is reached");
        return SQLITE_OK;
    }

    if (old && old->id) {
        rec.id = old->id;
        return db_write(db, SQL_CHANGE, item->token, &rec);
    }

    rc = db_write(db, SQL_RECORD, item->token, &rec);

    if (rc == SQLITE_OK && old) {
        rc = db_delete(db, item->token, old);
    }

    return rc;
}


static int
db_release(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item, int64_t now)
{
    int          rc;
    ngx_uint_t   pending;
    db_record_t  rec;

    rc = db_look(db, item->token, now, &rec);

    if (rc != SQLITE_OK) {
        return db_no_row(db, item, rc);
    }

    pending = (rec.item.outcome == NGX_IDEMPOTENCY_PENDING);

    if (rec.item.instance != item->instance
        || (rec.item.fence != item->fence
            && !(rec.item.fence < item->fence
                 && (pending || (item->retry && item->freed))))
        || (!pending && (rec.item.outcome != NGX_IDEMPOTENCY_IN_DOUBT
                         || (rec.item.taken && !item->freed))))
    {
        item->result = NGX_IDEMPOTENCY_ABSENT;
        return SQLITE_OK;
    }

    item->result = NGX_IDEMPOTENCY_OK;

    /* the token may have been executed before this claim */

    if (pending && rec.item.taken
        && !(item->freed && rec.item.fence == item->fence))
    {
        return db_in_doubt(db, item->token, now, &rec);
    }

    return db_delete(db, item->token, &rec);
}


static int
db_find(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item, int64_t now)
{
    int          rc;
    db_record_t  rec;

    rc = db_look(db, item->token, now, &rec);

    return (rc == SQLITE_OK) ? db_answer(item, &rec.item)
                             : db_no_row(db, item, rc);
}


/* Deletes even a damaged row, whose fence is unknown.  A FORGET may be sent
   twice, so what was claimed since the first one stays: of our own instance the
   fence tells that, of another one the time. */

static int
db_forget(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item, int64_t now)
{
    int                      rc;
    ngx_uint_t               since;
    db_record_t              rec;
    ngx_idempotency_item_t  *found;

    rc = db_look(db, item->token, now, &rec);

    if (rc != SQLITE_OK && rc != DB_DAMAGED) {
        return db_no_row(db, item, rc);
    }

    if (rc == SQLITE_OK) {
        found = &rec.item;

        since = (found->instance == item->instance)
                ? item->floor && item->floor < found->fence
                : item->recorded
                  && item->recorded + DB_ITEM_APART < found->recorded;

        if (since || (item->fence && item->fence != found->fence)) {
            item->result = NGX_IDEMPOTENCY_ABSENT;
            return SQLITE_OK;
        }
    }

    item->result = NGX_IDEMPOTENCY_OK;

    return db_delete(db, item->token, &rec);
}


static int
db_in_doubt(ngx_idempotency_db_t *db, u_char *token, int64_t now,
    db_record_t *rec)
{
    int          rc;
    db_record_t  claim;

    claim = *rec;

    rec->item.outcome = NGX_IDEMPOTENCY_IN_DOUBT;
    rec->item.recorded = now;
    rec->item.ends = ngx_max(rec->item.ends, now + rec->item.window);
    ngx_str_null(&rec->item.response);

    rc = db_write(db, SQL_RECORD, token, rec);

    if (rc != SQLITE_OK) {
        return rc;
    }

    rec->id = sqlite3_last_insert_rowid(db->sqlite);

    return db_delete(db, token, &claim);
}


/* no row was found: a damaged one is neither there nor absent */

static int
db_no_row(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item, int rc)
{
    switch (rc) {

    case DB_DAMAGED:
        db_unavailable(db, item, "a record is damaged");
        return SQLITE_OK;

    case DB_ABSENT:
        item->result = NGX_IDEMPOTENCY_ABSENT;
        return SQLITE_OK;

    default:
        return rc;
    }
}


static void
db_unavailable(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item,
    char *why)
{
    item->result = NGX_IDEMPOTENCY_UNAVAILABLE;
    item->unsent = 1;

    (void) snprintf(db->state.error, sizeof(db->state.error), "%s", why);
}


/*
 * SQLITE_OK: there is a row; its response may be read until the statement is
 * reset or a row is written.  An expired row is deleted here: nobody may find
 * it again, and the token is free.
 */

static int
db_look(ngx_idempotency_db_t *db, u_char *token, int64_t now, db_record_t *rec)
{
    int            rc;
    sqlite3_stmt  *st;

    st = db->statements[SQL_FIND];

    rc = sqlite3_bind_blob(st, DB_TOKEN, token, NGX_IDEMPOTENCY_DIGEST_LEN,
                           SQLITE_STATIC);
    if (rc != SQLITE_OK) {
        return rc;
    }

    rc = sqlite3_step(st);

    if (rc == SQLITE_DONE) {
        return DB_ABSENT;
    }

    if (rc != SQLITE_ROW) {
        return rc;
    }

    rc = db_read(st, token, rec);

    if (rc != SQLITE_OK
        || rec->item.outcome == NGX_IDEMPOTENCY_PENDING
        || rec->item.ends > now)
    {
        return rc;
    }

    rc = db_delete(db, token, rec);

    return (rc == SQLITE_OK) ? DB_ABSENT : rc;
}


static int
db_read(sqlite3_stmt *st, u_char *token, db_record_t *rec)
{
    int64_t                  numbers[DB_OF_RECORD];
    ngx_uint_t               i;
    ngx_idempotency_item_t  *item;

    item = &rec->item;

    rec->id = sqlite3_column_int64(st, 0);

    if (db_blob(st, DB_FINGERPRINT - 1, item->fingerprint,
                NGX_IDEMPOTENCY_DIGEST_LEN)
        != NGX_OK
        || db_blob(st, DB_PARTS - 1, &item->parts, DB_PARTS_LEN) != NGX_OK)
    {
        return DB_DAMAGED;
    }

    for (i = 0; i < DB_OF_RECORD; i++) {
        numbers[i] = sqlite3_column_int64(st, (i < DB_OF_CLAIM)
                                              ? DB_NUMBERS - 1 + i
                                              : DB_OUTCOME - 1 + i
                                                - DB_OF_CLAIM);
    }

    item->instance = numbers[0];
    item->fence = numbers[1];
    item->recorded = numbers[2];
    item->ends = numbers[3];
    item->taken = (numbers[4] < 0);
    item->window = item->taken ? -1 - numbers[4] : numbers[4];
    item->outcome = numbers[5];
    item->status = numbers[6];
    item->replays = numbers[7];

    /* no nginx writes such numbers: sums would overflow, and a fence would be
       the file's highest for ever */

    if (item->fence >= NGX_IDEMPOTENCY_DB_MOST
        || (uint64_t) item->window >= NGX_IDEMPOTENCY_DB_MOST
        || (uint64_t) item->recorded >= NGX_IDEMPOTENCY_DB_MOST
        || (uint64_t) item->ends >= NGX_IDEMPOTENCY_DB_MOST)
    {
        return DB_DAMAGED;
    }

    item->response.data = (u_char *) sqlite3_column_blob(st, DB_RESPONSE - 1);
    item->response.len = item->response.data
                         ? sqlite3_column_bytes(st, DB_RESPONSE - 1) : 0;

    return (sqlite3_column_int64(st, DB_SUM - 1)
            == db_sum(token, item, numbers)) ? SQLITE_OK : DB_DAMAGED;
}


static ngx_int_t
db_blob(sqlite3_stmt *st, int column, void *to, size_t len)
{
    const void  *data;

    data = sqlite3_column_blob(st, column);

    if (data == NULL || (size_t) sqlite3_column_bytes(st, column) != len) {
        return NGX_ERROR;
    }

    ngx_memcpy(to, data, len);

    return NGX_OK;
}


static int
db_write(ngx_idempotency_db_t *db, db_sql_e n, u_char *token, db_record_t *rec)
{
    int                      rc;
    int64_t                  numbers[DB_OF_RECORD];
    ngx_uint_t               i;
    sqlite3_stmt            *st;
    ngx_idempotency_item_t  *item;

    item = &rec->item;
    st = db->statements[n];

    /* the statement may still read the row that changes now */

    (void) sqlite3_reset(db->statements[SQL_FIND]);

    /* the window's sign says whether a claim was in doubt before: so files need
       no new column for that */

    numbers[0] = item->instance;
    numbers[1] = item->fence;
    numbers[2] = item->recorded;
    numbers[3] = item->ends;
    numbers[4] = item->taken ? -1 - item->window : item->window;
    numbers[5] = item->outcome;
    numbers[6] = item->status;
    numbers[7] = item->replays;

    rc = sqlite3_bind_blob(st, DB_TOKEN, token, NGX_IDEMPOTENCY_DIGEST_LEN,
                           SQLITE_STATIC);
    rc |= sqlite3_bind_blob(st, DB_FINGERPRINT, item->fingerprint,
                            NGX_IDEMPOTENCY_DIGEST_LEN, SQLITE_STATIC);
    rc |= sqlite3_bind_blob(st, DB_PARTS, &item->parts, DB_PARTS_LEN,
                            SQLITE_STATIC);
    rc |= sqlite3_bind_int64(st, DB_SUM, db_sum(token, item, numbers));

    for (i = 0; i < DB_OF_CLAIM; i++) {
        rc |= sqlite3_bind_int64(st, DB_NUMBERS + i, numbers[i]);
    }

    for ( /* void */ ; n != SQL_CLAIM && i < DB_OF_RECORD; i++) {
        rc |= sqlite3_bind_int64(st, DB_OUTCOME + i - DB_OF_CLAIM, numbers[i]);
    }

    /* an empty response is NULL */

    if (n != SQL_CLAIM) {
        rc |= sqlite3_bind_blob64(st, DB_RESPONSE,
                                  item->response.len ? item->response.data
                                                     : NULL,
                                  item->response.len, SQLITE_STATIC);
    }

    if (n == SQL_CHANGE) {
        rc |= sqlite3_bind_int64(st, DB_ID, rec->id);
    }

    if (rc != SQLITE_OK) {
        return SQLITE_NOMEM;
    }

    db->left -= DB_PAGES(item->response.len) + 1;

    return db_run(db, n);
}


static int
db_delete(ngx_idempotency_db_t *db, u_char *token, db_record_t *rec)
{
    int       rc;
    db_sql_e  n;

    n = rec->id ? SQL_DELETE_RECORD : SQL_DELETE_CLAIM;

    (void) sqlite3_reset(db->statements[SQL_FIND]);

    rc = rec->id ? sqlite3_bind_int64(db->statements[n], 1, rec->id)
                 : sqlite3_bind_blob(db->statements[n], 1, token,
                                     NGX_IDEMPOTENCY_DIGEST_LEN, SQLITE_STATIC);

    return (rc == SQLITE_OK) ? db_run(db, n) : rc;
}


/*
 * Whether there is room for a row and `size` bytes of a response, with
 * `reserve` pages left.  Responses stop first, then claims: outcomes of
 * existing claims stop last.
 */

static ngx_uint_t
db_room(ngx_idempotency_db_t *db, size_t size, int64_t reserve)
{
    if (size > (size_t) sqlite3_limit(db->sqlite, SQLITE_LIMIT_LENGTH, -1)
               - DB_PAGE)
    {
        return 0;
    }

    return db->most == 0
           || db->left >= DB_PAGES(size) + DB_ROW + reserve;
}


/* the upper half sums the columns, the lower one the response */

static sqlite3_int64
db_sum(u_char *token, ngx_idempotency_item_t *item, int64_t *numbers)
{
    u_char      buf[256], *p;
    uint64_t    n, sum;
    ngx_uint_t  i, k;

    p = ngx_cpymem(buf, token, NGX_IDEMPOTENCY_DIGEST_LEN);
    p = ngx_cpymem(p, item->fingerprint, NGX_IDEMPOTENCY_DIGEST_LEN);
    p = ngx_cpymem(p, &item->parts, DB_PARTS_LEN);

    for (i = 0; i <= DB_OF_RECORD; i++) {
        n = (i < DB_OF_RECORD) ? (uint64_t) numbers[i] : item->response.len;

        for (k = 0; k < 8; k++) {
            *p++ = (u_char) (n >> (8 * k));
        }
    }

    sum = (uint64_t) db_hash(buf, p - buf) << 32
          | db_hash(item->response.data, item->response.len);

    return (sqlite3_int64) sum;
}


/* Against damage, not against an adversary.  Each step can be undone, so a
   difference in one word always shows in the sum. */

static uint32_t
db_hash(u_char *p, size_t len)
{
    uint64_t    h, word;
    ngx_uint_t  k;

    h = len;

    while (len) {
        word = 0;

        if (len >= 8) {
            word = (uint64_t) p[0] | (uint64_t) p[1] << 8
                   | (uint64_t) p[2] << 16 | (uint64_t) p[3] << 24
                   | (uint64_t) p[4] << 32 | (uint64_t) p[5] << 40
                   | (uint64_t) p[6] << 48 | (uint64_t) p[7] << 56;
            p += 8;
            len -= 8;

        } else {
            for (k = 0; k < len; k++) {
                word |= (uint64_t) p[k] << (8 * k);
            }

            len = 0;
        }

        h = (h ^ word) * 0x9e3779b97f4a7c15ULL;
        h ^= h >> 32;
    }

    h *= 0xd6e8feb86659fd93ULL;

    return (uint32_t) (h >> 32);
}


/*
 * A descriptor of the log has no locks, other than those of the file and of the
 * log's index, so it may be closed.  The last process that closes the file
 * copies the log into it, syncs it, and removes the log.
 */

ngx_int_t
ngx_idempotency_db_sync(const char *path, char *error, size_t len)
{
    int        fd, rc;
    char       name[NGX_IDEMPOTENCY_FILE_PATH + sizeof("-wal")];

    (void) snprintf(name, sizeof(name), "%s-wal", path);

    fd = open(name, O_RDONLY|O_CLOEXEC|O_NOFOLLOW|O_NONBLOCK);

    if (fd == -1) {

        (void) snprintf(error, len, "-wal can't be opened: %s",
                        strerror(errno));

        if (errno != ENOENT) {
            return NGX_DECLINED;
        }

        (void) snprintf(name, sizeof(name), "%s-shm", path);

        return (access(name, F_OK) == 0 || access(path, F_OK) == -1)
               ? NGX_DECLINED : NGX_OK;
    }

    do {
        rc = fdatasync(fd);
    } while (rc == -1 && errno == EINTR);

    if (rc == -1) {
        (void) snprintf(error, len, "fdatasync() failed: %s", strerror(errno));
    }

    (void) close(fd);

    return (rc == 0) ? NGX_OK : NGX_ERROR;
}


ngx_int_t
ngx_idempotency_db_tokens(ngx_idempotency_db_t *db, u_char *after,
    u_char (*tokens)[NGX_IDEMPOTENCY_DIGEST_LEN], ngx_uint_t n)
{
    int  rc;

    db->state.error[0] = '\0';

    if (db_check_files(db, 0) != NGX_OK) {
        return NGX_ERROR;
    }

    rc = db_tokens(db, SQL_TOKENS, after, tokens, &n);

    return (rc == SQLITE_OK) ? (ngx_int_t) n : db_fail(db, rc);
}


/* as many tokens as there are, up to `count` */

static int
db_tokens(ngx_idempotency_db_t *db, db_sql_e n, u_char *after,
    db_token_t *tokens, ngx_uint_t *count)
{
    int            rc;
    ngx_uint_t     i;
    sqlite3_stmt  *st;

    st = db->statements[n];

    (void) sqlite3_bind_blob(st, 1, after ? (char *) after : "",
                             after ? NGX_IDEMPOTENCY_DIGEST_LEN : 0,
                             SQLITE_STATIC);
    (void) sqlite3_bind_int64(st, 2, *count);

    i = 0;

    while ((rc = sqlite3_step(st)) == SQLITE_ROW) {

        if (db_blob(st, 0, tokens[i++], NGX_IDEMPOTENCY_DIGEST_LEN) != NGX_OK) {
            rc = SQLITE_CORRUPT;
            break;
        }
    }

    (void) sqlite3_reset(st);

    *count = i;

    return (rc == SQLITE_DONE) ? SQLITE_OK : rc;
}


ngx_int_t
ngx_idempotency_db_tidy(ngx_idempotency_db_t *db, int64_t now, ngx_uint_t n)
{
    int         rc;
    ngx_uint_t  expired, doubted;

    db->state.error[0] = '\0';

    if (db_check_files(db, 0) != NGX_OK) {
        return NGX_ERROR;
    }

    expired = 0;
    doubted = 0;

    rc = db_begin(db);

    if (rc == SQLITE_OK) {
        rc = db_expire(db, now, n, &expired);
    }

    if (rc == SQLITE_OK) {
        rc = db_doubt_dead(db, now, n, &doubted);
    }

    if (rc == SQLITE_OK) {
        rc = db_end(db, 0, 0);
    }

    if (rc != SQLITE_OK) {
        return db_fail(db, rc);
    }

    return (expired == n || doubted == n) ? NGX_AGAIN : NGX_OK;
}


static int
db_expire(ngx_idempotency_db_t *db, int64_t now, ngx_uint_t n,
    ngx_uint_t *done)
{
    int            rc;
    sqlite3_stmt  *st;

    st = db->statements[SQL_EXPIRE];

    (void) sqlite3_bind_int64(st, 1, now);
    (void) sqlite3_bind_int64(st, 2, n);

    rc = db_run(db, SQL_EXPIRE);

    *done = (rc == SQLITE_OK) ? sqlite3_changes(db->sqlite) : 0;

    return rc;
}


/* looks at up to n further claims, and returns how many: those of dead
   instances become in doubt */

static int
db_doubt_dead(ngx_idempotency_db_t *db, int64_t now, ngx_uint_t n,
    ngx_uint_t *done)
{
    int          rc;
    db_token_t  *tokens;
    ngx_uint_t   i;
    db_record_t  rec;

    tokens = malloc(n * sizeof(db_token_t));

    if (tokens == NULL) {
        return SQLITE_NOMEM;
    }

    *done = n;

    rc = db_tokens(db, SQL_CLAIMS, db->tidying ? db->tidied : NULL, tokens,
                   done);

    db->tidying = (*done == n);

    for (i = 0; rc == SQLITE_OK && i < *done; i++) {
        rc = db_look(db, tokens[i], now, &rec);

        if (rc == SQLITE_OK && rec.item.outcome == NGX_IDEMPOTENCY_PENDING
            && !db->conf.alive(db->conf.data, rec.item.instance))
        {
            rc = db_in_doubt(db, tokens[i], now, &rec);
        }

        (void) sqlite3_reset(db->statements[SQL_FIND]);

        /* a claim whose token has a record, too, stays as it is */

        if (rc == DB_ABSENT || rc == DB_DAMAGED
            || (rc & 0xff) == SQLITE_CONSTRAINT)
        {
            rc = SQLITE_OK;
        }
    }

    if (rc == SQLITE_OK && db->tidying) {
        ngx_memcpy(db->tidied, tokens[n - 1], NGX_IDEMPOTENCY_DIGEST_LEN);
    }

    free(tokens);

    return rc;
}


/* Without the time it waits for no reader or writer.  If the disk has no room
   now, the next checkpoint may find some; the commits are in the log. */

ngx_int_t
ngx_idempotency_db_checkpoint(ngx_idempotency_db_t *db, int64_t now)
{
    int  rc;

    db->state.error[0] = '\0';

    if (db_check_files(db, 0) != NGX_OK) {
        return NGX_ERROR;
    }

    rc = sqlite3_wal_checkpoint_v2(db->sqlite, NULL,
                                   now ? SQLITE_CHECKPOINT_RESTART
                                       : SQLITE_CHECKPOINT_PASSIVE,
                                   NULL, NULL);

    switch (rc & 0xff) {

    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_FULL:
        rc = SQLITE_OK;
    }

    if (rc == SQLITE_OK && now) {
        rc = db_begin(db);

        /* a commit that changes nothing but the file's number */

        db->changes--;

        if (rc == SQLITE_OK) {
            rc = db_end(db, 0, now);
        }
    }

    return (rc == SQLITE_OK) ? NGX_OK : db_fail(db, rc);
}


/* nothing of a foreign file may run; and nothing is mapped, as a truncated file
   would kill the worker */

int
ngx_idempotency_db_connect(const char *path, sqlite3 **sqlite)
{
    int  rc;

    rc = sqlite3_open_v2(path, sqlite,
                         SQLITE_OPEN_READWRITE|SQLITE_OPEN_NOMUTEX
                         |SQLITE_OPEN_PRIVATECACHE, NULL);

    if (rc != SQLITE_OK) {
        return rc;
    }

    (void) sqlite3_extended_result_codes(*sqlite, 1);
    (void) sqlite3_busy_timeout(*sqlite, NGX_IDEMPOTENCY_DB_BUSY);

    (void) sqlite3_db_config(*sqlite, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    (void) sqlite3_db_config(*sqlite, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
    (void) sqlite3_db_config(*sqlite, SQLITE_DBCONFIG_ENABLE_VIEW, 0, NULL);
    (void) sqlite3_db_config(*sqlite, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);

    return sqlite3_exec(*sqlite,
                        "PRAGMA mmap_size = 0;"
                        "PRAGMA temp_store = MEMORY;"
                        "PRAGMA cell_size_check = ON;"
                        "PRAGMA secure_delete = OFF;"
                        "PRAGMA cache_size = -4096;"
                        "PRAGMA wal_autocheckpoint = 0;"
                        "PRAGMA journal_size_limit = 16777216",
                        NULL, NULL, NULL);
}


ngx_uint_t
ngx_idempotency_db_error(char *error, size_t len, sqlite3 *sqlite, int rc)
{
    int  err;

    err = 0;

    switch (rc & 0xff) {

    case SQLITE_CORRUPT:
        err = db_unread(sqlite);

        if (err) {
            (void) snprintf(error, len, "can't be read: %s", strerror(err));
            return 0;
        }

        (void) snprintf(error, len, "is damaged: %s (%d); restore it, or "
                        "remove it to begin anew", sqlite3_errstr(rc), rc);
        return 1;

    case SQLITE_NOTADB:
        (void) snprintf(error, len, "is not a file of this module");
        return 1;

    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
        err = sqlite ? sqlite3_system_errno(sqlite) : 0;
        break;
    }

    (void) snprintf(error, len, "%s (%d)%s%s", sqlite3_errstr(rc), rc,
                    err ? ": " : "", err ? strerror(err) : "");

    return 0;
}


/*
 * SQLite also says "damage" if the disk can't be read: returns the last system
 * error of the connection's file or log, or 0
 */

static int
db_unread(sqlite3 *sqlite)
{
    int            err;
    sqlite3_file  *log;

    err = 0;
    log = NULL;

    if (sqlite == NULL) {
        return 0;
    }

    (void) sqlite3_file_control(sqlite, "main", SQLITE_FCNTL_LAST_ERRNO, &err);

    if (err == 0
        && sqlite3_file_control(sqlite, "main", SQLITE_FCNTL_JOURNAL_POINTER,
                                &log)
           == SQLITE_OK
        && log && log->pMethods)
    {
        (void) log->pMethods->xFileControl(log, SQLITE_FCNTL_LAST_ERRNO, &err);
    }

    return (err == EIO || err == ENXIO || err == ERANGE) ? err : 0;
}


#endif
