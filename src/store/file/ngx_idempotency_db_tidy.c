
/*
 * What keeps the file small and on disk, and reads it as a whole: for quiet
 * times, or in a thread of its own.
 */


#include "ngx_idempotency_db_sql.h"
#include "ngx_idempotency_owners.h"

#if (NGX_IDEMPOTENCY_SQLITE && NGX_THREADS)


/* pages that are free: what stays for those to come */

#define DB_SPARE         256


typedef struct {
    u_char    token[NGX_IDEMPOTENCY_DIGEST_LEN];
} db_token_t;


static int db_doubt(ngx_idempotency_db_t *db, int64_t now, ngx_uint_t n,
    ngx_uint_t *done);
static ngx_int_t db_checkpoint(ngx_idempotency_db_t *db, int mode);
static int db_vacuum(ngx_idempotency_db_t *db, ngx_uint_t n,
    ngx_uint_t *more);


/*
 * A descriptor of the log carries no lock, as those of the file and of the
 * log's index do, and may be closed.  Who closes the file as the last one
 * brings all into it, syncs it, and removes the log.
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
    int            rc;
    ngx_uint_t     i;
    sqlite3_stmt  *st;

    db->error[0] = '\0';

    if (ngx_idempotency_db_files(db, 0) != NGX_OK) {
        return NGX_ERROR;
    }

    st = ngx_idempotency_db_statement(db, NGX_IDEMPOTENCY_DB_TOKENS);

    (void) sqlite3_bind_blob(st, 1, after ? (char *) after : "",
                             after ? NGX_IDEMPOTENCY_DIGEST_LEN : 0,
                             SQLITE_STATIC);
    (void) sqlite3_bind_int64(st, 2, n);

    i = 0;

    while ((rc = sqlite3_step(st)) == SQLITE_ROW) {

        if (sqlite3_column_bytes(st, 0) != NGX_IDEMPOTENCY_DIGEST_LEN) {
            rc = SQLITE_CORRUPT;
            break;
        }

        ngx_memcpy(tokens[i++], sqlite3_column_blob(st, 0),
                   NGX_IDEMPOTENCY_DIGEST_LEN);
    }

    (void) sqlite3_reset(st);

    return (rc == SQLITE_DONE) ? (ngx_int_t) i
                               : ngx_idempotency_db_fail(db, rc);
}


ngx_int_t
ngx_idempotency_db_tidy(ngx_idempotency_db_t *db, int64_t now, ngx_uint_t n)
{
    int         rc;
    ngx_uint_t  expired, doubted, vacuum;

    db->error[0] = '\0';

    if (ngx_idempotency_db_files(db, 0) != NGX_OK) {
        return NGX_ERROR;
    }

    expired = 0;
    doubted = 0;
    vacuum = 0;

    rc = ngx_idempotency_db_begin(db);

    if (rc == SQLITE_OK) {
        rc = ngx_idempotency_db_expire(db, now, n, &expired);
    }

    if (rc == SQLITE_OK) {
        rc = db_doubt(db, now, n, &doubted);
    }

    if (rc == SQLITE_OK) {
        rc = ngx_idempotency_db_end(db, 0, 0);
    }

    if (rc == SQLITE_OK) {
        rc = db_vacuum(db, n, &vacuum);
    }

    if (rc != SQLITE_OK) {
        return ngx_idempotency_db_fail(db, rc);
    }

    /* a file is as large as the log says once that is in it */

    if (db->shrunk && !vacuum && db->conf.log) {
        *db->conf.log = ngx_max(*db->conf.log, NGX_IDEMPOTENCY_DB_QUIET);
    }

    db->shrunk = vacuum;

    return (expired == n || doubted == n || vacuum) ? NGX_AGAIN : NGX_OK;
}


int
ngx_idempotency_db_expire(ngx_idempotency_db_t *db, int64_t now, ngx_uint_t n,
    ngx_uint_t *done)
{
    int            rc;
    sqlite3_stmt  *st;

    st = ngx_idempotency_db_statement(db, NGX_IDEMPOTENCY_DB_EXPIRE);

    (void) sqlite3_bind_int64(st, 1, now);
    (void) sqlite3_bind_int64(st, 2, n);

    rc = ngx_idempotency_db_run(db, NGX_IDEMPOTENCY_DB_EXPIRE);

    *done = (rc == SQLITE_OK) ? sqlite3_changes(db->sqlite) : 0;

    return rc;
}


/* looks at up to n claims behind those of the last time: how many */

static int
db_doubt(ngx_idempotency_db_t *db, int64_t now, ngx_uint_t n,
    ngx_uint_t *done)
{
    int            rc;
    uint64_t       instance, dead, living;
    db_token_t    *tokens;
    ngx_uint_t     i, k;
    sqlite3_stmt  *st;

    tokens = malloc(n * sizeof(db_token_t));

    if (tokens == NULL) {
        return SQLITE_NOMEM;
    }

    st = ngx_idempotency_db_statement(db, NGX_IDEMPOTENCY_DB_CLAIMS);

    (void) sqlite3_bind_blob(st, 1, db->tidied,
                             db->tidying ? NGX_IDEMPOTENCY_DIGEST_LEN : 0,
                             SQLITE_STATIC);
    (void) sqlite3_bind_int64(st, 2, n);

    i = 0;
    k = 0;
    dead = 0;
    living = 0;

    while ((rc = sqlite3_step(st)) == SQLITE_ROW) {

        if (sqlite3_column_bytes(st, 0) != NGX_IDEMPOTENCY_DIGEST_LEN) {
            rc = SQLITE_CORRUPT;
            break;
        }

        ngx_memcpy(tokens[k].token, sqlite3_column_blob(st, 0),
                   NGX_IDEMPOTENCY_DIGEST_LEN);

        instance = sqlite3_column_int64(st, 1);
        i++;

        if (instance != living && instance != dead) {

            if (db->conf.alive(db->conf.data, instance)) {
                living = instance;
            } else {
                dead = instance;
            }
        }

        if (i == n) {
            ngx_memcpy(db->tidied, tokens[k].token,
                       NGX_IDEMPOTENCY_DIGEST_LEN);
        }

        if (instance == dead) {
            k++;
        }
    }

    (void) sqlite3_reset(st);

    if (rc == SQLITE_DONE) {
        rc = SQLITE_OK;
    }

    db->tidying = (i == n);
    *done = i;

    for (i = 0; rc == SQLITE_OK && i < k; i++) {
        rc = ngx_idempotency_db_doubt(db, tokens[i].token, now);
    }

    free(tokens);

    return rc;
}


/* a file that was larger once, and is a quarter free, becomes smaller */

static int
db_vacuum(ngx_idempotency_db_t *db, ngx_uint_t n, ngx_uint_t *more)
{
    int      rc;
    char     sql[64];
    int64_t  pages, unused;

    pages = 0;
    unused = 0;

    rc = ngx_idempotency_db_number(db, NGX_IDEMPOTENCY_DB_PAGES, &pages);

    if (rc == SQLITE_OK) {
        rc = ngx_idempotency_db_number(db, NGX_IDEMPOTENCY_DB_FREE, &unused);
    }

    if (rc != SQLITE_OK || unused < pages / 4 + DB_SPARE) {
        return rc;
    }

    *more = 1;

    (void) snprintf(sql, sizeof(sql), "PRAGMA incremental_vacuum(%llu)",
                    (unsigned long long) n);

    return sqlite3_exec(db->sqlite, sql, NULL, NULL, NULL);
}


/*
 * Waits for nobody, neither who reads nor who writes.  Space that there isn't
 * for it now there may be for the next one; what was committed is in the log.
 */

ngx_int_t
ngx_idempotency_db_checkpoint(ngx_idempotency_db_t *db)
{
    return db_checkpoint(db, SQLITE_CHECKPOINT_PASSIVE);
}


ngx_int_t
ngx_idempotency_db_restart(ngx_idempotency_db_t *db, int64_t now)
{
    int  rc;

    if (db_checkpoint(db, SQLITE_CHECKPOINT_RESTART) != NGX_OK) {
        return NGX_ERROR;
    }

    rc = ngx_idempotency_db_begin(db);

    /* one commit that changes nothing but the file's number */

    db->changes--;

    if (rc == SQLITE_OK) {
        rc = ngx_idempotency_db_end(db, 0, now);
    }

    return (rc == SQLITE_OK) ? NGX_OK : ngx_idempotency_db_fail(db, rc);
}


static ngx_int_t
db_checkpoint(ngx_idempotency_db_t *db, int mode)
{
    int  rc;

    db->error[0] = '\0';

    if (ngx_idempotency_db_files(db, 0) != NGX_OK) {
        return NGX_ERROR;
    }

    rc = sqlite3_wal_checkpoint_v2(db->sqlite, NULL, mode, NULL, NULL);

    switch (rc & 0xff) {

    case SQLITE_OK:
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_FULL:
        return NGX_OK;

    default:
        return ngx_idempotency_db_fail(db, rc);
    }
}


#endif
