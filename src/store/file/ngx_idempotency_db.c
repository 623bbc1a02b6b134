
/*
 * The file that remembers, open: its transactions, and what keeps it small
 * and on disk.  The log (SQLite's WAL) is brought into the file by us and not
 * by each commit, so that nobody's answer waits for it but when it has become
 * long.
 */


#include "ngx_idempotency_db_sql.h"
#include "ngx_idempotency_owners.h"

#if (NGX_IDEMPOTENCY_SQLITE && NGX_THREADS)


/* of expired records, for each item of a commit */

#define DB_EXPIRE        3

/* milliseconds: by how much the file's latest time may lag behind */

#define DB_META_LAG      1000

/* a column of it; the next one is the number */

#define DB_META_IDENTITY  4

/* so many times, after so many microseconds, a page is looked at that may be
   written now */

#define DB_FILED_LOOKS   5
#define DB_FILED_PAUSE   1000

/* whoever closes the file as the last one is given so many times, of so many
   microseconds, between a log and its index */

#define DB_LOG_LOOKS     20
#define DB_LOG_PAUSE     5000


static ngx_int_t db_prepare(ngx_idempotency_db_t *db);
static int db_committed(void *data, sqlite3 *sqlite, const char *name,
    int pages);
static int db_meta(ngx_idempotency_db_t *db, ngx_idempotency_mark_t *mark);
static ngx_uint_t db_filed(ngx_idempotency_db_t *db);
static ngx_uint_t db_filed_number(ngx_idempotency_db_t *db,
    ngx_atomic_uint_t *number);
static void db_undo(ngx_idempotency_item_t *items,
    ngx_idempotency_item_t *before, ngx_uint_t n);
static ngx_int_t db_moved(ngx_idempotency_db_t *db, ngx_uint_t i,
    const char *how);
static void db_rescue(ngx_idempotency_db_t *db);
static ngx_uint_t db_log_gone(ngx_idempotency_db_t *db);


#define DB_COLUMNS                                                            \
    "fingerprint, parts, instance, fence, recorded, ends, span, sum, "

static const char  *db_statements[] = {

    "BEGIN IMMEDIATE",
    "COMMIT",
    "ROLLBACK",

    "SELECT latest, fence, number, identity FROM meta",
    "UPDATE meta SET latest = ?1, fence = ?2, number = ?3",

    "SELECT 0, " DB_COLUMNS "0, 0, 0, NULL FROM claims WHERE token = ?1 "
    "UNION ALL "
    "SELECT id, " DB_COLUMNS "outcome, status, replays, response "
    "FROM records WHERE token = ?1 LIMIT 1",

    "INSERT OR REPLACE INTO claims (token, fingerprint, parts, instance, "
    "fence, recorded, ends, span, sum) "
    "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",

    "INSERT INTO records (token, fingerprint, parts, instance, fence, "
    "recorded, ends, span, sum, outcome, status, replays, response) "
    "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",

    "UPDATE records SET fingerprint = ?2, parts = ?3, instance = ?4, "
    "fence = ?5, recorded = ?6, ends = ?7, span = ?8, sum = ?9, "
    "outcome = ?10, status = ?11, replays = ?12, response = ?13 "
    "WHERE id = ?14 AND token = ?1",

    "DELETE FROM claims WHERE token = ?1",
    "DELETE FROM records WHERE id = ?1",

    "DELETE FROM records WHERE id IN (SELECT id FROM records "
    "WHERE ends <= ?1 ORDER BY ends LIMIT ?2)",

    "SELECT token, instance FROM claims WHERE token > ?1 "
    "ORDER BY token LIMIT ?2",

    "SELECT token FROM claims WHERE token > ?1 UNION ALL "
    "SELECT token FROM records WHERE token > ?1 ORDER BY 1 LIMIT ?2",

    "PRAGMA page_count",
    "PRAGMA freelist_count",

    "SELECT rootpage FROM sqlite_master WHERE name = 'meta'"
};


ngx_idempotency_db_t *
ngx_idempotency_db_open(ngx_idempotency_db_conf_t *conf, char *error,
    size_t len)
{
    int                    rc;
    size_t                 size;
    ngx_uint_t             i;
    ngx_idempotency_db_t  *db;

    static const char     *suffix[] = { "", "-wal", "-shm" };

    db = calloc(1, sizeof(ngx_idempotency_db_t));

    if (db == NULL) {
        (void) snprintf(error, len, "no memory");
        return NULL;
    }

    db->conf = *conf;

    for (i = 0; i < NGX_IDEMPOTENCY_DB_FILES; i++) {
        size = strlen(conf->path) + sizeof("-wal");
        db->path[i] = malloc(size);

        if (db->path[i] == NULL) {
            (void) snprintf(error, len, "no memory");
            goto failed;
        }

        (void) snprintf(db->path[i], size, "%s%s", conf->path, suffix[i]);
    }

    db->conf.path = db->path[0];

    if (db_log_gone(db)) {
        (void) snprintf(error, len, "-wal is not there any more");
        goto failed;
    }

    rc = ngx_idempotency_db_connect(conf->path, &db->sqlite);

    if (rc != SQLITE_OK) {
        ngx_idempotency_db_tell(error, len, db->sqlite, rc);
        goto failed;
    }

    if (ngx_idempotency_db_stamped(db->sqlite, error, len) != SQLITE_OK) {
        goto failed;
    }

    if (db_prepare(db) != NGX_OK) {
        (void) snprintf(error, len, "%s", db->error);
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
        db->most = db->conf.max_size / NGX_IDEMPOTENCY_DB_PAGE;

        (void) snprintf(sql, sizeof(sql), "PRAGMA max_page_count = %lld",
                        (long long) db->most);

        rc = sqlite3_exec(db->sqlite, sql, NULL, NULL, NULL);
    }

    for (i = 0; rc == SQLITE_OK && i < NGX_IDEMPOTENCY_DB_STATEMENTS; i++) {
        rc = sqlite3_prepare_v3(db->sqlite, db_statements[i], -1,
                                SQLITE_PREPARE_PERSISTENT,
                                &db->statements[i], NULL);
    }

    if (rc != SQLITE_OK) {
        return ngx_idempotency_db_fail(db, rc);
    }

    (void) sqlite3_wal_hook(db->sqlite, db_committed, db);

    /*
     * One read makes its log and the log's index, if they are not there.
     * Others may commit meanwhile, so what it reads may be behind the mark:
     * another file is found out by the first transaction.
     */

    rc = db_meta(db, NULL);

    if (rc == SQLITE_OK) {
        rc = ngx_idempotency_db_number(db, NGX_IDEMPOTENCY_DB_ROOT, &db->root);
    }

    return (rc == SQLITE_OK) ? ngx_idempotency_db_files(db, 1)
                             : ngx_idempotency_db_fail(db, rc);
}


void
ngx_idempotency_db_close(ngx_idempotency_db_t *db)
{
    int         persist;
    ngx_uint_t  i;

    for (i = 0; i < NGX_IDEMPOTENCY_DB_STATEMENTS; i++) {
        (void) sqlite3_finalize(db->statements[i]);
    }

    /* SQLite would remove by its name a log that is another file's by now */

    if (db->sqlite && db->moved && access(db->path[1], F_OK) == 0) {
        persist = 1;
        (void) sqlite3_file_control(db->sqlite, "main",
                                    SQLITE_FCNTL_PERSIST_WAL, &persist);
    }

    (void) sqlite3_close(db->sqlite);

    for (i = 0; i < NGX_IDEMPOTENCY_DB_FILES; i++) {
        free(db->path[i]);
    }

    free(db);
}


const char *
ngx_idempotency_db_error(ngx_idempotency_db_t *db)
{
    return db->error;
}


ngx_uint_t
ngx_idempotency_db_failed(ngx_idempotency_db_t *db)
{
    return db->failed;
}


ngx_uint_t
ngx_idempotency_db_wrote(ngx_idempotency_db_t *db)
{
    return db->wrote;
}


ngx_uint_t
ngx_idempotency_db_other(ngx_idempotency_db_t *db)
{
    return db->other;
}


ngx_uint_t
ngx_idempotency_db_moved(ngx_idempotency_db_t *db)
{
    return db->moved;
}


/* takes the place of SQLite's own, which checkpoints within each commit */

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
    int                      rc;
    uint64_t                 fence;
    ngx_uint_t               i, done;
    ngx_idempotency_item_t  *before;

    db->error[0] = '\0';

    before = malloc(ngx_max(n, 1) * sizeof(ngx_idempotency_item_t));

    if (before) {
        ngx_memcpy(before, items, n * sizeof(ngx_idempotency_item_t));
    }

    for (i = 0; i < n; i++) {
        items[i].result = NGX_IDEMPOTENCY_UNAVAILABLE;
    }

    if (before == NULL) {
        return ngx_idempotency_db_fail(db, SQLITE_NOMEM);
    }

    if (ngx_idempotency_db_files(db, 0) != NGX_OK) {
        free(before);
        return NGX_ERROR;
    }

    rc = ngx_idempotency_db_begin(db);

    if (rc == SQLITE_OK && db->conf.may && !db->conf.may(db->conf.data)) {
        (void) ngx_idempotency_db_run(db, NGX_IDEMPOTENCY_DB_ROLLBACK);
        free(before);
        return NGX_DECLINED;
    }

    if (rc == SQLITE_OK) {
        rc = ngx_idempotency_db_expire(db, now, DB_EXPIRE * n, &done);
    }

    fence = 0;

    for (i = 0; rc == SQLITE_OK && i < n; i++) {
        rc = ngx_idempotency_db_item(db, &items[i], now);
        fence = ngx_max(fence, items[i].fence);
    }

    if (rc == SQLITE_OK) {
        rc = ngx_idempotency_db_end(db, fence, now);
    }

    if (rc != SQLITE_OK) {
        (void) ngx_idempotency_db_fail(db, rc);
        db_undo(items, before, n);
        free(before);
        return NGX_ERROR;
    }

    free(before);

    return NGX_OK;
}


int
ngx_idempotency_db_begin(ngx_idempotency_db_t *db)
{
    int      rc;
    int64_t  pages, unused;

    pages = 0;
    unused = 0;

    rc = ngx_idempotency_db_run(db, NGX_IDEMPOTENCY_DB_BEGIN);

    if (rc == SQLITE_OK) {
        rc = db_meta(db, db->conf.mark);
    }

    if (rc == SQLITE_OK && db->conf.mark && !db_filed(db)) {
        db->other = 1;
        rc = SQLITE_MISMATCH;
    }

    if (rc != SQLITE_OK || db->most == 0) {
        return rc;
    }

    rc = ngx_idempotency_db_number(db, NGX_IDEMPOTENCY_DB_PAGES, &pages);

    if (rc == SQLITE_OK) {
        rc = ngx_idempotency_db_number(db, NGX_IDEMPOTENCY_DB_FREE, &unused);
    }

    if (rc == SQLITE_OK) {
        db->left = db->most - pages + unused;
    }

    return rc;
}


/* what the file says of itself, which within a transaction is not behind the
   mark */

static int
db_meta(ngx_idempotency_db_t *db, ngx_idempotency_mark_t *mark)
{
    int            rc;
    const void    *identity;
    sqlite3_stmt  *st;

    db->changes = sqlite3_total_changes(db->sqlite);

    st = ngx_idempotency_db_statement(db, NGX_IDEMPOTENCY_DB_META);
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
                                           db->error, sizeof(db->error)))
    {
        db->other = 1;
        rc = SQLITE_MISMATCH;
    }

    (void) sqlite3_reset(st);

    return rc;
}


/*
 * Who copies a backup over the file itself leaves its log, which has the
 * number of before: the pages are of another time, and SQLite does not notice.
 * So the file's own number, as the last checkpoint has left it, does not fall.
 * A checkpoint may write that page at this moment; what can't be read says
 * nothing.
 */

static ngx_uint_t
db_filed(ngx_idempotency_db_t *db)
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

    (void) snprintf(db->error, sizeof(db->error),
                    "was overwritten by an older one: %ld commits are missing "
                    "in what is not in its log",
                    (long) (mark->filed - number));
    return 0;
}


/* the only row of its only page: see SQLite's file format.  Zero: it isn't */

static ngx_uint_t
db_filed_number(ngx_idempotency_db_t *db, ngx_atomic_uint_t *number)
{
    size_t      cell, value, size;
    u_char      page[NGX_IDEMPOTENCY_DB_PAGE + 256];
    ngx_uint_t  i, type;

    /* of integers, by their serial types */

    static size_t  sizes[] = { 0, 1, 2, 3, 4, 6, 8, 8, 0, 0 };

    /* no row ends beyond that, whatever the page says of it */

    ngx_memzero(page, sizeof(page));

    if (pread(db->conf.file, page, NGX_IDEMPOTENCY_DB_PAGE,
              (off_t) (db->root - 1) * NGX_IDEMPOTENCY_DB_PAGE)
        != NGX_IDEMPOTENCY_DB_PAGE
        || page[0] != 0x0d || page[3] != 0 || page[4] != 1)
    {
        return 0;
    }

    cell = page[8] << 8 | page[9];

    /* lengths of the row, and the row's id, of which there is one */

    while (cell < NGX_IDEMPOTENCY_DB_PAGE && (page[cell++] & 0x80)) {
        /* void */
    }

    cell++;

    if (cell > NGX_IDEMPOTENCY_DB_PAGE || page[cell] > 20) {
        return 0;
    }

    value = cell + page[cell];

    for (i = 0; ; i++) {
        type = page[++cell];

        if (i == DB_META_IDENTITY) {

            if (type != 12 + 2 * NGX_IDEMPOTENCY_MARK_LEN
                || ngx_memcmp(page + value, db->conf.mark->identity,
                              NGX_IDEMPOTENCY_MARK_LEN) != 0)
            {
                return 0;
            }

            value += NGX_IDEMPOTENCY_MARK_LEN;
            continue;
        }

        if (type > 9) {
            return 0;
        }

        size = sizes[type];

        if (i == DB_META_IDENTITY + 1) {
            break;
        }

        value += size;
    }

    *number = (type == 9);

    while (size--) {
        *number = *number << 8 | page[value++];
    }

    return 1;
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
 * The latest time, the highest fence and the number of commits that this file
 * has seen.  What has changed nothing writes nothing.
 */

int
ngx_idempotency_db_end(ngx_idempotency_db_t *db, uint64_t fence, int64_t now)
{
    int                      rc;
    sqlite3_stmt            *st;
    ngx_atomic_uint_t        seen;
    ngx_idempotency_mark_t  *mark;

    db->wrote = (sqlite3_total_changes(db->sqlite) != db->changes
                 || now >= db->latest + DB_META_LAG);

    if (!db->wrote) {
        return ngx_idempotency_db_run(db, NGX_IDEMPOTENCY_DB_COMMIT);
    }

    st = ngx_idempotency_db_statement(db, NGX_IDEMPOTENCY_DB_SET_META);

    (void) sqlite3_bind_int64(st, 1, ngx_max(db->latest, now));
    (void) sqlite3_bind_int64(st, 2, ngx_max(db->fence, fence));
    (void) sqlite3_bind_int64(st, 3, db->number + 1);

    rc = ngx_idempotency_db_run(db, NGX_IDEMPOTENCY_DB_SET_META);

    if (rc == SQLITE_OK) {
        rc = ngx_idempotency_db_run(db, NGX_IDEMPOTENCY_DB_COMMIT);
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


/* what was found is given back, and each item is what it was, so that it may
   be tried once more */

static void
db_undo(ngx_idempotency_item_t *items, ngx_idempotency_item_t *before,
    ngx_uint_t n)
{
    ngx_uint_t  i;

    for (i = 0; i < n; i++) {
        if (items[i].response.data != before[i].response.data) {
            free(items[i].response.data);
        }

        items[i] = before[i];
        items[i].result = NGX_IDEMPOTENCY_UNAVAILABLE;
    }
}


/*
 * SQLite goes on with a file that was removed or replaced, and nobody would
 * ever find what it writes.  It is another one's, too, who would make a log
 * of his own beside ours.
 */

ngx_int_t
ngx_idempotency_db_files(ngx_idempotency_db_t *db, ngx_uint_t first)
{
    ngx_uint_t       i;
    struct stat      st;

    if (db->failed) {
        (void) snprintf(db->error, sizeof(db->error),
                        "had failed, and is not used until nginx is started "
                        "anew");
        return NGX_ERROR;
    }

    for (i = 0; i < NGX_IDEMPOTENCY_DB_FILES; i++) {

        if (stat(db->path[i], &st) == -1) {

            if (i == 1 && !first) {
                db_rescue(db);
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

        if (st.st_size < NGX_IDEMPOTENCY_DB_PAGE && i != 1) {
            db->failed = 1;
            return db_moved(db, i, "was truncated");
        }
    }

    return NGX_OK;
}


static ngx_int_t
db_moved(ngx_idempotency_db_t *db, ngx_uint_t i, const char *how)
{
    (void) snprintf(db->error, sizeof(db->error), "%s %s",
                    i ? db->path[i] + strlen(db->path[0]) : "it", how);

    db->moved = 1;

    return NGX_ERROR;
}


/*
 * SQLite would begin another log beside one that somebody has removed, and
 * nobody would find what is in that one alone.  Whoever has the file open has
 * an index of the log; the last one removes the log, and then the index.
 */

static ngx_uint_t
db_log_gone(ngx_idempotency_db_t *db)
{
    ngx_uint_t   i;
    struct stat  st;

    for (i = 0; i < DB_LOG_LOOKS; i++) {

        if (stat(db->path[1], &st) == 0 || stat(db->path[2], &st) == -1) {
            return 0;
        }

        (void) usleep(DB_LOG_PAUSE);
    }

    return 1;
}


/* the log has no name any more, but we have it open yet, and nobody else has
   begun another one: what it has goes into the file while there is time */

static void
db_rescue(ngx_idempotency_db_t *db)
{
    struct stat  st;

    if (stat(db->path[2], &st) == 0
        && st.st_dev == db->inode[2].dev && st.st_ino == db->inode[2].ino)
    {
        (void) sqlite3_wal_checkpoint_v2(db->sqlite, NULL,
                                         SQLITE_CHECKPOINT_PASSIVE, NULL,
                                         NULL);
    }
}


sqlite3_stmt *
ngx_idempotency_db_statement(ngx_idempotency_db_t *db,
    ngx_idempotency_db_statement_e n)
{
    return db->statements[n];
}


int
ngx_idempotency_db_run(ngx_idempotency_db_t *db,
    ngx_idempotency_db_statement_e n)
{
    int  rc;

    rc = sqlite3_step(db->statements[n]);

    (void) sqlite3_reset(db->statements[n]);

    return (rc == SQLITE_DONE || rc == SQLITE_ROW) ? SQLITE_OK : rc;
}


int
ngx_idempotency_db_number(ngx_idempotency_db_t *db,
    ngx_idempotency_db_statement_e n, int64_t *value)
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


/* told before what undoes it has an error of its own */

ngx_int_t
ngx_idempotency_db_fail(ngx_idempotency_db_t *db, int rc)
{
    if (!db->other) {
        ngx_idempotency_db_tell(db->error, sizeof(db->error), db->sqlite, rc);
    }

    switch (rc) {

    case SQLITE_IOERR_FSYNC:
    case SQLITE_IOERR_DIR_FSYNC:
    case SQLITE_NOTADB:
        db->failed = 1;
        break;

    default:
        if ((rc & 0xff) != SQLITE_CORRUPT) {
            break;
        }

        if (ngx_idempotency_db_unread(db->sqlite)) {

            /* a new connection remembers no earlier error */

            db->moved = 1;
            break;
        }

        (void) snprintf(db->error, sizeof(db->error),
                        "is damaged: %s (%d); a start of nginx looks at it",
                        sqlite3_errstr(rc), rc);

        db->failed = 1;
    }

    if (!sqlite3_get_autocommit(db->sqlite)) {
        (void) sqlite3_reset(db->statements[NGX_IDEMPOTENCY_DB_FIND]);
        (void) ngx_idempotency_db_run(db, NGX_IDEMPOTENCY_DB_ROLLBACK);
    }

    return NGX_ERROR;
}


#endif
