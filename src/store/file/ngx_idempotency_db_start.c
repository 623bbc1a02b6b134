
/*
 * The file that remembers, at a start: its tables, whether it is ours and
 * whole, and the number of a new instance.  In a process of its own: if that
 * dies, the file is damaged.
 */


#include "ngx_idempotency_db_sql.h"
#include "ngx_idempotency_owners.h"

#if (NGX_IDEMPOTENCY_SQLITE && NGX_THREADS)


/* milliseconds: for how long the file is looked at */

#define DB_LOOK   300

/* for how long another start is waited for */

#define DB_START  3000

#define DB_REMEDY       "restore it, or remove it to begin anew"

#define DB_TEXT(n)      DB_TEXT_OF(n)
#define DB_TEXT_OF(n)   #n


/* stops what runs too long, unless it has ended */

typedef struct {
    sqlite3          *sqlite;
    ngx_uint_t        ended;
    pthread_t         thread;
    pthread_cond_t    cond;
    pthread_mutex_t   mutex;
} db_alarm_t;


/* the row of the table `meta` */

typedef struct {
    uint64_t          instance;
    uint64_t          fence;
    int64_t           latest;
    int64_t           base;
    ngx_atomic_uint_t number;
    int               version;
    char              boot[80];
    u_char            identity[NGX_IDEMPOTENCY_MARK_LEN];
    u_char            stamp[NGX_IDEMPOTENCY_STAMP_LEN];
} db_meta_t;


static int db_make(sqlite3 *sqlite, ngx_idempotency_db_start_t *start);
static int db_whole(sqlite3 *sqlite, char *error, size_t len);
static int db_quick_check(sqlite3 *sqlite, const char *sql, char *error,
    size_t len);
static void *db_alarm(void *data);
static int db_ends(sqlite3 *sqlite, char *error, size_t len);
static int db_instance(sqlite3 *sqlite, ngx_idempotency_db_start_t *start,
    char *error, size_t len);
static int db_meta(sqlite3 *sqlite, db_meta_t *meta, char *error, size_t len);
static int db_may_have(sqlite3 *sqlite, ngx_idempotency_db_start_t *start,
    char *error, size_t len);
static int db_text(sqlite3 *sqlite, const char *sql, char *text, size_t len);
static int db_ours(sqlite3 *sqlite, char *error, size_t len);


/*
 * `claims`: what is pending, of which there is little at a time, all in a few
 * pages that are written again and again.  `records`: the rest, in the order
 * in which it came and, by and large, in which it ends, so that pages fill and
 * become free as a whole.  All numbers of 64 bits are stored as signed ones.
 */

static const char  db_schema[] =
    "CREATE TABLE meta ("
        "id INTEGER PRIMARY KEY CHECK (id = 1), "
        "instance INTEGER NOT NULL, "
        "fence INTEGER NOT NULL, "
        "latest INTEGER NOT NULL, "
        "identity BLOB NOT NULL, "
        "number INTEGER NOT NULL, "
        "boot TEXT NOT NULL, "
        "base INTEGER NOT NULL, "
        "stamp BLOB NOT NULL, "
        "version INTEGER NOT NULL);"

    "CREATE TABLE claims ("
        "token BLOB PRIMARY KEY NOT NULL, "
        "fingerprint BLOB NOT NULL, "
        "parts BLOB NOT NULL, "
        "instance INTEGER NOT NULL, "
        "fence INTEGER NOT NULL, "
        "recorded INTEGER NOT NULL, "
        "ends INTEGER NOT NULL, "
        "span INTEGER NOT NULL, "
        "sum INTEGER NOT NULL) WITHOUT ROWID;"

    "CREATE TABLE records ("
        "id INTEGER PRIMARY KEY, "
        "token BLOB NOT NULL, "
        "fingerprint BLOB NOT NULL, "
        "parts BLOB NOT NULL, "
        "instance INTEGER NOT NULL, "
        "fence INTEGER NOT NULL, "
        "recorded INTEGER NOT NULL, "
        "ends INTEGER NOT NULL, "
        "span INTEGER NOT NULL, "
        "sum INTEGER NOT NULL, "
        "outcome INTEGER NOT NULL, "
        "status INTEGER NOT NULL, "
        "replays INTEGER NOT NULL, "
        "response BLOB);"

    "CREATE UNIQUE INDEX records_token ON records (token);"
    "CREATE INDEX records_ends ON records (ends);";


ngx_int_t
ngx_idempotency_db_start(const char *path, ngx_idempotency_db_start_t *start,
    char *error, size_t len)
{
    int       rc;
    sqlite3  *sqlite;

    rc = ngx_idempotency_db_connect(path, &sqlite);

    if (rc == SQLITE_OK) {
        (void) sqlite3_busy_timeout(sqlite, DB_START);

        rc = sqlite3_exec(sqlite, "PRAGMA synchronous = FULL", NULL, NULL,
                          NULL);
    }

    if (rc == SQLITE_OK && !start->found) {
        rc = db_make(sqlite, start);
    }

    if (rc != SQLITE_OK) {
        ngx_idempotency_db_tell(error, len, sqlite, rc);
        goto done;
    }

    rc = ngx_idempotency_db_stamped(sqlite, error, len);

    if (rc == SQLITE_OK) {
        rc = db_whole(sqlite, error, len);
    }

    if (rc == SQLITE_OK) {
        rc = db_may_have(sqlite, start, error, len);
    }

    if (rc != SQLITE_OK) {
        goto done;
    }

    if (start->owners != -1
        && ngx_idempotency_owners_commit_lock(start->owners, DB_START)
           != NGX_OK)
    {
        (void) snprintf(error, len, "can't be locked: %s", strerror(errno));
        rc = SQLITE_ERROR;
        goto done;
    }

    rc = db_instance(sqlite, start, error, len);

    if (start->owners != -1) {
        ngx_idempotency_owners_commit_unlock(start->owners);
    }

done:

    if (sqlite3_close(sqlite) != SQLITE_OK && rc == SQLITE_OK) {
        (void) snprintf(error, len, "can't be closed");
        return NGX_ERROR;
    }

    return (rc == SQLITE_OK) ? NGX_OK : NGX_ERROR;
}


static int
db_make(sqlite3 *sqlite, ngx_idempotency_db_start_t *start)
{
    int   rc;
    char  stamp[2 * NGX_IDEMPOTENCY_STAMP_LEN + 1], sql[256];

    rc = sqlite3_exec(sqlite,
                      "PRAGMA page_size = " DB_TEXT(NGX_IDEMPOTENCY_DB_PAGE) ";"
                      "PRAGMA auto_vacuum = INCREMENTAL;"
                      "PRAGMA journal_mode = WAL;"
                      "BEGIN IMMEDIATE", NULL, NULL, NULL);

    if (rc == SQLITE_OK) {
        rc = sqlite3_exec(sqlite, db_schema, NULL, NULL, NULL);
    }

    if (rc != SQLITE_OK) {
        return rc;
    }

    *ngx_hex_dump((u_char *) stamp, start->stamp, NGX_IDEMPOTENCY_STAMP_LEN)
        = '\0';

    (void) snprintf(sql, sizeof(sql),
                    "PRAGMA application_id = %d; PRAGMA user_version = %d;"
                    "INSERT INTO meta VALUES "
                    "(1, %lld, 0, 0, randomblob(%d), 0, '', 0, x'%s', %d);"
                    "COMMIT",
                    NGX_IDEMPOTENCY_DB_ID, NGX_IDEMPOTENCY_DB_VERSION,
                    (long long) (start->wall
                                 << NGX_IDEMPOTENCY_OWNERS_STORE_SHIFT),
                    NGX_IDEMPOTENCY_MARK_LEN, stamp,
                    NGX_IDEMPOTENCY_FINGERPRINT_VERSION);

    return sqlite3_exec(sqlite, sql, NULL, NULL, NULL);
}


/* a log is read with its index, which it has where anybody uses it */

ngx_int_t
ngx_idempotency_db_peek(const char *path, ngx_idempotency_db_start_t *start,
    char *error, size_t len)
{
    int           rc;
    char          uri[3 * NGX_IDEMPOTENCY_FILE_PATH + 64], *p;
    sqlite3      *sqlite;
    struct stat   st;

    (void) snprintf(uri, sizeof(uri), "%s-wal", path);

    if (stat(uri, &st) == -1) {
        st.st_size = 0;
    }

    p = uri + snprintf(uri, sizeof(uri), "file:");

    for ( /* void */ ; *path; path++) {
        p += snprintf(p, 4, strchr("%?#", *path) ? "%%%02X" : "%c", *path);
    }

    (void) snprintf(p, uri + sizeof(uri) - p, "?mode=ro%s",
                    st.st_size ? "" : "&immutable=1");

    rc = sqlite3_open_v2(uri, &sqlite,
                         SQLITE_OPEN_READONLY|SQLITE_OPEN_URI
                         |SQLITE_OPEN_NOMUTEX|SQLITE_OPEN_PRIVATECACHE, NULL);

    if (rc == SQLITE_OK) {
        (void) sqlite3_busy_timeout(sqlite, NGX_IDEMPOTENCY_DB_BUSY);

        rc = db_ours(sqlite, error, len);
    }

    if (rc == SQLITE_OK) {
        rc = db_may_have(sqlite, start, error, len);
    }

    (void) sqlite3_close(sqlite);

    return (rc == SQLITE_MISMATCH || rc == SQLITE_AUTH) ? NGX_ERROR : NGX_OK;
}


/* what the file says of itself: SQLITE_OK, or error tells why not */

static int
db_meta(sqlite3 *sqlite, db_meta_t *meta, char *error, size_t len)
{
    int            rc;
    const char    *boot;
    const void    *identity, *stamp;
    sqlite3_stmt  *st;

    rc = sqlite3_prepare_v2(sqlite,
                            "SELECT instance, fence, latest, base, number, "
                            "version, boot, identity, stamp FROM meta", -1,
                            &st, NULL);

    if (rc == SQLITE_OK) {
        rc = sqlite3_step(st);
    }

    if (rc == SQLITE_ROW) {
        meta->instance = sqlite3_column_int64(st, 0);
        meta->fence = sqlite3_column_int64(st, 1);
        meta->latest = sqlite3_column_int64(st, 2);
        meta->base = sqlite3_column_int64(st, 3);
        meta->number = sqlite3_column_int64(st, 4);
        meta->version = sqlite3_column_int(st, 5);
        boot = (const char *) sqlite3_column_text(st, 6);
        identity = sqlite3_column_blob(st, 7);
        stamp = sqlite3_column_blob(st, 8);

        rc = SQLITE_CORRUPT;

        if (identity && stamp
            && sqlite3_column_bytes(st, 7) == NGX_IDEMPOTENCY_MARK_LEN
            && sqlite3_column_bytes(st, 8) == NGX_IDEMPOTENCY_STAMP_LEN)
        {
            (void) snprintf(meta->boot, sizeof(meta->boot), "%s",
                            boot ? boot : "");
            ngx_memcpy(meta->identity, identity, NGX_IDEMPOTENCY_MARK_LEN);
            ngx_memcpy(meta->stamp, stamp, NGX_IDEMPOTENCY_STAMP_LEN);
            rc = SQLITE_OK;
        }

    } else if (rc == SQLITE_DONE) {
        rc = SQLITE_CORRUPT;
    }

    if (rc != SQLITE_OK) {
        ngx_idempotency_db_tell(error, len, sqlite, rc);
    }

    (void) sqlite3_finalize(st);

    return rc;
}


/*
 * A token that is made by another key is another one, and would be fresh;
 * fingerprints of another version can't be compared; and it is the very file,
 * as far as it was written, that the witness of a start tells of.
 */

static int
db_may_have(sqlite3 *sqlite, ngx_idempotency_db_start_t *start, char *error,
    size_t len)
{
    int                       rc;
    db_meta_t                 meta;
    ngx_idempotency_stamp_e   differs;

    static const char  *why[] = {
        NULL,
        "was made with another digest key than that of \"idempotency_secret\"",
        "was made with a digest key, and no \"idempotency_secret\" has one",
        "was made without a digest key, and \"idempotency_secret\" has one"
    };

    rc = db_meta(sqlite, &meta, error, len);

    if (rc != SQLITE_OK) {
        return rc;
    }

    differs = ngx_idempotency_stamp_differs(start->stamp, meta.stamp);

    if (differs != NGX_IDEMPOTENCY_STAMP_SAME) {
        (void) snprintf(error, len, "%s; it would not know its tokens again: "
                        "restore what it was made with, or remove it to begin "
                        "anew", why[differs]);
        return SQLITE_MISMATCH;
    }

    if (meta.version != NGX_IDEMPOTENCY_FINGERPRINT_VERSION) {
        (void) snprintf(error, len,
                        "has fingerprints of version %d, this module knows %d; "
                        "load the module that wrote it", meta.version,
                        NGX_IDEMPOTENCY_FINGERPRINT_VERSION);
        return SQLITE_MISMATCH;
    }

    if (start->marked && !start->agreed
        && !ngx_idempotency_db_same(&start->mark, meta.identity, meta.number,
                                    error, len))
    {
        start->other = 1;
        rc = SQLITE_MISMATCH;
    }

    ngx_memcpy(start->mark.identity, meta.identity, NGX_IDEMPOTENCY_MARK_LEN);
    start->mark.number = meta.number;

    return rc;
}


/*
 * Damage is reported.  A file may be too large to be read as a whole before
 * nginx serves: then it is read for a limited time, the small tables first.
 */

static int
db_whole(sqlite3 *sqlite, char *error, size_t len)
{
    int           rc;
    db_alarm_t    alarm;
    ngx_uint_t    i;

    static const char  *sql[] = {
        "PRAGMA quick_check('meta')",
        "PRAGMA quick_check('claims')",
        "PRAGMA quick_check"
    };

    ngx_memzero(&alarm, sizeof(db_alarm_t));

    alarm.sqlite = sqlite;

    (void) pthread_cond_init(&alarm.cond, NULL);
    (void) pthread_mutex_init(&alarm.mutex, NULL);

    if (pthread_create(&alarm.thread, NULL, db_alarm, &alarm) != 0) {
        (void) snprintf(error, len, "can't be checked: no thread");
        return SQLITE_ERROR;
    }

    rc = SQLITE_OK;

    for (i = 0; rc == SQLITE_OK && i < 3; i++) {
        rc = db_quick_check(sqlite, sql[i], error, len);
    }

    (void) pthread_mutex_lock(&alarm.mutex);
    alarm.ended = 1;
    (void) pthread_cond_signal(&alarm.cond);
    (void) pthread_mutex_unlock(&alarm.mutex);

    (void) pthread_join(alarm.thread, NULL);

    return (rc == SQLITE_OK || rc == SQLITE_INTERRUPT)
           ? db_ends(sqlite, error, len) : rc;
}


static void *
db_alarm(void *data)
{
    db_alarm_t *alarm = data;

    int              rc;
    struct timespec  at;

    (void) clock_gettime(CLOCK_REALTIME, &at);

    at.tv_nsec += DB_LOOK * 1000000L;
    at.tv_sec += at.tv_nsec / 1000000000L;
    at.tv_nsec %= 1000000000L;

    rc = 0;

    (void) pthread_mutex_lock(&alarm->mutex);

    while (!alarm->ended && rc == 0) {
        rc = pthread_cond_timedwait(&alarm->cond, &alarm->mutex, &at);
    }

    if (!alarm->ended) {
        sqlite3_interrupt(alarm->sqlite);
    }

    (void) pthread_mutex_unlock(&alarm->mutex);

    return NULL;
}


static int
db_quick_check(sqlite3 *sqlite, const char *sql, char *error, size_t len)
{
    int   rc;
    char  text[128];

    rc = db_text(sqlite, sql, text, sizeof(text));

    if (rc == SQLITE_INTERRUPT) {
        return rc;
    }

    if (rc != SQLITE_OK) {
        ngx_idempotency_db_tell(error, len, sqlite, rc);
        return rc;
    }

    if (ngx_strcmp(text, "ok") != 0) {
        (void) snprintf(error, len, "is damaged: %s; " DB_REMEDY, text);
        return SQLITE_CORRUPT;
    }

    return SQLITE_OK;
}


/* the first row and the last by each tree, however large the file is */

static int
db_ends(sqlite3 *sqlite, char *error, size_t len)
{
    int          rc;
    char         text[16];
    ngx_uint_t   i;

    static const char  *sql[] = {
        "SELECT max(sum) FROM (SELECT sum FROM records ORDER BY id LIMIT 9)",
        "SELECT max(sum) FROM "
            "(SELECT sum FROM records ORDER BY id DESC LIMIT 9)",
        "SELECT max(sum) FROM "
            "(SELECT sum FROM records ORDER BY token LIMIT 9)",
        "SELECT max(sum) FROM "
            "(SELECT sum FROM records ORDER BY token DESC LIMIT 9)",
        "SELECT max(sum) FROM "
            "(SELECT sum FROM records ORDER BY ends LIMIT 9)",
        "SELECT max(sum) FROM "
            "(SELECT sum FROM records ORDER BY ends DESC LIMIT 9)"
    };

    for (i = 0; i < sizeof(sql) / sizeof(sql[0]); i++) {
        rc = db_text(sqlite, sql[i], text, sizeof(text));

        if (rc != SQLITE_OK) {
            ngx_idempotency_db_tell(error, len, sqlite, rc);
            return rc;
        }
    }

    return SQLITE_OK;
}


/* one transaction, as two may start at once */

static int
db_instance(sqlite3 *sqlite, ngx_idempotency_db_start_t *start, char *error,
    size_t len)
{
    int            rc;
    db_meta_t      meta;
    sqlite3_stmt  *st;

    rc = sqlite3_exec(sqlite, "BEGIN IMMEDIATE", NULL, NULL, NULL);

    if (rc != SQLITE_OK) {
        ngx_idempotency_db_tell(error, len, sqlite, rc);
        return rc;
    }

    rc = db_meta(sqlite, &meta, error, len);

    if (rc != SQLITE_OK) {
        return rc;
    }

    start->instance = meta.instance + 1;
    start->fence = meta.fence;
    start->latest = meta.latest;
    start->base = meta.base;
    start->mark.number = meta.number + 1;

    /* processes that go on with a file that was set back must notice */

    if (start->agreed) {
        sqlite3_randomness(NGX_IDEMPOTENCY_MARK_LEN, start->mark.identity);
    }

    /* within a boot, setting the clock changes nothing; the file's time never
       goes back */

    if (meta.boot[0] == '\0' || ngx_strcmp(meta.boot, start->boot) != 0) {
        start->base = start->wall - start->boottime;
    }

    start->base = ngx_max(start->base, start->latest - start->boottime);
    start->latest = ngx_max(start->latest, start->base + start->boottime);

    rc = sqlite3_prepare_v2(sqlite,
                            "UPDATE meta SET instance = ?1, latest = ?2, "
                            "boot = ?3, base = ?4, number = ?5, identity = ?6",
                            -1, &st, NULL);

    if (rc == SQLITE_OK) {
        rc = sqlite3_bind_int64(st, 1, start->instance);
        rc |= sqlite3_bind_int64(st, 2, start->latest);
        rc |= sqlite3_bind_text(st, 3, start->boot, -1, SQLITE_STATIC);
        rc |= sqlite3_bind_int64(st, 4, start->base);
        rc |= sqlite3_bind_int64(st, 5, start->mark.number);
        rc |= sqlite3_bind_blob(st, 6, start->mark.identity,
                                NGX_IDEMPOTENCY_MARK_LEN, SQLITE_STATIC);
    }

    if (rc == SQLITE_OK) {
        rc = sqlite3_step(st);
    }

    (void) sqlite3_finalize(st);

    if (rc == SQLITE_DONE) {
        rc = sqlite3_exec(sqlite, "COMMIT", NULL, NULL, NULL);
    }

    if (rc != SQLITE_OK) {
        ngx_idempotency_db_tell(error, len, sqlite, rc);
    }

    return rc;
}


static int
db_text(sqlite3 *sqlite, const char *sql, char *text, size_t len)
{
    int            rc;
    const char    *value;
    sqlite3_stmt  *st;

    rc = sqlite3_prepare_v2(sqlite, sql, -1, &st, NULL);

    if (rc != SQLITE_OK) {
        return rc;
    }

    rc = sqlite3_step(st);

    if (rc == SQLITE_ROW) {
        value = (const char *) sqlite3_column_text(st, 0);
        (void) snprintf(text, len, "%s", value ? value : "");
        rc = SQLITE_OK;
    }

    (void) sqlite3_finalize(st);

    return rc;
}


/* nothing in a file that is not ours is to run, and nothing is mapped, or
   what truncates the file would kill the worker */

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


int
ngx_idempotency_db_stamped(sqlite3 *sqlite, char *error, size_t len)
{
    int   rc;
    char  id[16], version[16], mode[16];

    rc = db_text(sqlite, "PRAGMA application_id", id, sizeof(id));

    if (rc == SQLITE_OK) {
        rc = db_text(sqlite, "PRAGMA user_version", version, sizeof(version));
    }

    if (rc == SQLITE_NOTADB || (rc == SQLITE_OK
                                && atoi(id) != NGX_IDEMPOTENCY_DB_ID))
    {
        (void) snprintf(error, len, "is not a file of this module");
        return SQLITE_NOTADB;
    }

    if (rc == SQLITE_OK && atoi(version) != NGX_IDEMPOTENCY_DB_VERSION) {
        (void) snprintf(error, len, "is of version %s, this module knows %d",
                        version, NGX_IDEMPOTENCY_DB_VERSION);
        return SQLITE_ERROR;
    }

    if (rc == SQLITE_OK && (rc = db_ours(sqlite, error, len)) != SQLITE_OK) {
        return rc;
    }

    /* a copy that was made of it may have another one */

    if (rc == SQLITE_OK) {
        rc = db_text(sqlite, "PRAGMA journal_mode = WAL", mode, sizeof(mode));
    }

    if (rc == SQLITE_OK && ngx_strcmp(mode, "wal") != 0) {
        (void) snprintf(error, len, "can't have a log (WAL) where it is");
        return SQLITE_ERROR;
    }

    if (rc != SQLITE_OK) {
        ngx_idempotency_db_tell(error, len, sqlite, rc);
    }

    return rc;
}


/*
 * A view, a trigger, a default or a check runs what somebody else has written,
 * and tables of another program are a reason to remove or to exchange a file
 * that is not theirs alone: so it has what we make, to the letter.
 */

static int
db_ours(sqlite3 *sqlite, char *error, size_t len)
{
    int            rc, row;
    sqlite3       *ours;
    const char    *is, *be, *type, *name;
    sqlite3_stmt  *found, *meant;

    static const char  sql[] = "SELECT sql, type, name FROM sqlite_master "
                               "ORDER BY name";

    found = NULL;
    meant = NULL;

    rc = sqlite3_open(":memory:", &ours);

    if (rc == SQLITE_OK) {
        rc = sqlite3_exec(ours, db_schema, NULL, NULL, NULL);
    }

    if (rc == SQLITE_OK) {
        rc = sqlite3_prepare_v2(ours, sql, -1, &meant, NULL);
    }

    if (rc == SQLITE_OK) {
        rc = sqlite3_prepare_v2(sqlite, sql, -1, &found, NULL);
    }

    if (rc != SQLITE_OK) {
        ngx_idempotency_db_tell(error, len, sqlite, rc);
        goto done;
    }

    do {
        row = sqlite3_step(meant);
        rc = sqlite3_step(found);

        if (rc != SQLITE_ROW && rc != SQLITE_DONE) {
            ngx_idempotency_db_tell(error, len, sqlite, rc);
            goto done;
        }

        be = (row == SQLITE_ROW)
             ? (const char *) sqlite3_column_text(meant, 0) : NULL;
        is = (rc == SQLITE_ROW)
             ? (const char *) sqlite3_column_text(found, 0) : NULL;

        if (rc != row || (rc == SQLITE_ROW
                          && (is == NULL || be == NULL
                              || ngx_strcmp(is, be) != 0)))
        {
            type = (const char *) sqlite3_column_text(found, 1);
            name = (const char *) sqlite3_column_text(found, 2);

            (void) snprintf(error, len,
                            "has not the tables of this module alone (%.20s "
                            "\"%.60s\"); remove what is not its own, or name "
                            "another path",
                            type ? type : "no", name ? name : "more");

            rc = SQLITE_AUTH;
            goto done;
        }

    } while (rc == SQLITE_ROW);

    rc = SQLITE_OK;

done:

    (void) sqlite3_finalize(found);
    (void) sqlite3_finalize(meant);
    (void) sqlite3_close(ours);

    return rc;
}


void
ngx_idempotency_db_tell(char *error, size_t len, sqlite3 *sqlite, int rc)
{
    int  err;

    err = 0;

    switch (rc & 0xff) {

    case SQLITE_CORRUPT:
        err = ngx_idempotency_db_unread(sqlite);

        if (err) {
            (void) snprintf(error, len, "can't be read: %s", strerror(err));
            return;
        }

        (void) snprintf(error, len, "is damaged: %s (%d); " DB_REMEDY,
                        sqlite3_errstr(rc), rc);
        return;

    case SQLITE_NOTADB:
        (void) snprintf(error, len, "is not a file of this module");
        return;

    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
        err = sqlite ? sqlite3_system_errno(sqlite) : 0;
        break;
    }

    (void) snprintf(error, len, "%s (%d)%s%s", sqlite3_errstr(rc), rc,
                    err ? ": " : "", err ? strerror(err) : "");
}


/*
 * SQLite calls it damage, too, where the disk can't read.  What is told is the
 * last error of this connection's file or log, or 0.
 */

int
ngx_idempotency_db_unread(sqlite3 *sqlite)
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
