
/*
 * Rows: how a record is found, read, written and deleted.  SQLite knows no
 * checksums, so each row has one over its columns and one over its response;
 * a row that is damaged is neither absent nor an answer.
 */


#include "ngx_idempotency_db_sql.h"

#if (NGX_IDEMPOTENCY_SQLITE && NGX_THREADS)


/* columns of what finds a row, in both tables; the token is the parameter of
   that name */

#define DB_TOKEN     1

#define DB_ID        0

/* parameters of what writes one, and one less the columns of what finds it */

#define DB_FINGERPRINT  2
#define DB_PARTS        3
#define DB_INSTANCE     4
#define DB_FENCE        5
#define DB_RECORDED     6
#define DB_ENDS         7
#define DB_WINDOW       8
#define DB_SUM          9
#define DB_OUTCOME      10
#define DB_STATUS       11
#define DB_REPLAYS      12
#define DB_RESPONSE     13
#define DB_WHICH        14

/* in pages: what a response takes, and what a row may take besides */

#define DB_PAGES(size)  ((int64_t) ((size) / (NGX_IDEMPOTENCY_DB_PAGE - 4)))
#define DB_ROW          4

/* the column `parts`: what it is bound to, and the record's mark */

#define DB_BOUND  (sizeof(ngx_idempotency_parts_t) + NGX_IDEMPOTENCY_MAC_LEN)


static int db_read(sqlite3_stmt *st, u_char *token,
    ngx_idempotency_db_record_t *rec);
static ngx_int_t db_bytes(sqlite3_stmt *st, int column, void *to, size_t len);
static int64_t db_span(ngx_idempotency_db_record_t *rec);
static sqlite3_int64 db_sum(u_char *token, ngx_idempotency_db_record_t *rec);
static uint32_t db_hash(u_char *p, size_t len);


/*
 * SQLITE_OK: there is one, and its response may be read until the statement is
 * reset or something is written.  What is over is deleted here, so that
 * nobody finds it again and its token is free.
 */

int
ngx_idempotency_db_look(ngx_idempotency_db_t *db, u_char *token, int64_t now,
    ngx_idempotency_db_record_t *rec)
{
    int            rc;
    sqlite3_stmt  *st;

    st = ngx_idempotency_db_statement(db, NGX_IDEMPOTENCY_DB_FIND);

    rc = sqlite3_bind_blob(st, DB_TOKEN, token, NGX_IDEMPOTENCY_DIGEST_LEN,
                           SQLITE_STATIC);
    if (rc != SQLITE_OK) {
        return rc;
    }

    rc = sqlite3_step(st);

    if (rc == SQLITE_DONE) {
        return NGX_IDEMPOTENCY_DB_ABSENT;
    }

    if (rc != SQLITE_ROW) {
        return rc;
    }

    rc = db_read(st, token, rec);

    if (rc != SQLITE_OK
        || rec->outcome == NGX_IDEMPOTENCY_PENDING
        || rec->ends > now)
    {
        return rc;
    }

    rc = ngx_idempotency_db_delete(db, token, rec);

    return (rc == SQLITE_OK) ? NGX_IDEMPOTENCY_DB_ABSENT : rc;
}


static int
db_read(sqlite3_stmt *st, u_char *token, ngx_idempotency_db_record_t *rec)
{
    u_char       bound[DB_BOUND];
    int64_t      span;
    const void  *data;

    rec->id = sqlite3_column_int64(st, DB_ID);
    rec->instance = sqlite3_column_int64(st, DB_INSTANCE - 1);
    rec->fence = sqlite3_column_int64(st, DB_FENCE - 1);
    rec->recorded = sqlite3_column_int64(st, DB_RECORDED - 1);
    rec->ends = sqlite3_column_int64(st, DB_ENDS - 1);
    span = sqlite3_column_int64(st, DB_WINDOW - 1);
    rec->taken = (span < 0);
    rec->window = rec->taken ? -1 - span : span;
    rec->outcome = sqlite3_column_int(st, DB_OUTCOME - 1);
    rec->status = sqlite3_column_int(st, DB_STATUS - 1);
    rec->replays = sqlite3_column_int64(st, DB_REPLAYS - 1);

    if (db_bytes(st, DB_FINGERPRINT - 1, rec->fingerprint,
                 NGX_IDEMPOTENCY_DIGEST_LEN)
        != NGX_OK
        || db_bytes(st, DB_PARTS - 1, bound, DB_BOUND) != NGX_OK)
    {
        return NGX_IDEMPOTENCY_DB_DAMAGED;
    }

    ngx_memcpy(&rec->parts, bound, sizeof(ngx_idempotency_parts_t));
    ngx_memcpy(rec->mac, bound + sizeof(ngx_idempotency_parts_t),
               NGX_IDEMPOTENCY_MAC_LEN);

    data = sqlite3_column_blob(st, DB_RESPONSE - 1);

    rec->response.data = (u_char *) data;
    rec->response.len = data ? sqlite3_column_bytes(st, DB_RESPONSE - 1) : 0;

    if (sqlite3_column_int64(st, DB_SUM - 1) != db_sum(token, rec)) {
        return NGX_IDEMPOTENCY_DB_DAMAGED;
    }

    return SQLITE_OK;
}


static ngx_int_t
db_bytes(sqlite3_stmt *st, int column, void *to, size_t len)
{
    const void  *data;

    data = sqlite3_column_blob(st, column);

    if (data == NULL || (size_t) sqlite3_column_bytes(st, column) != len) {
        return NGX_ERROR;
    }

    ngx_memcpy(to, data, len);

    return NGX_OK;
}


int
ngx_idempotency_db_write(ngx_idempotency_db_t *db,
    ngx_idempotency_db_statement_e n, u_char *token,
    ngx_idempotency_db_record_t *rec)
{
    int            rc;
    u_char         bound[DB_BOUND], *p;
    sqlite3_stmt  *st;

    p = ngx_cpymem(bound, &rec->parts, sizeof(ngx_idempotency_parts_t));
    ngx_memcpy(p, rec->mac, NGX_IDEMPOTENCY_MAC_LEN);

    /* it may read what this changes */

    (void) sqlite3_reset(db->statements[NGX_IDEMPOTENCY_DB_FIND]);

    st = ngx_idempotency_db_statement(db, n);

    rc = sqlite3_bind_blob(st, DB_TOKEN, token, NGX_IDEMPOTENCY_DIGEST_LEN,
                           SQLITE_STATIC);
    rc |= sqlite3_bind_blob(st, DB_FINGERPRINT, rec->fingerprint,
                            NGX_IDEMPOTENCY_DIGEST_LEN, SQLITE_STATIC);
    rc |= sqlite3_bind_blob(st, DB_PARTS, bound, DB_BOUND, SQLITE_STATIC);
    rc |= sqlite3_bind_int64(st, DB_INSTANCE, rec->instance);
    rc |= sqlite3_bind_int64(st, DB_FENCE, rec->fence);
    rc |= sqlite3_bind_int64(st, DB_RECORDED, rec->recorded);
    rc |= sqlite3_bind_int64(st, DB_ENDS, rec->ends);
    rc |= sqlite3_bind_int64(st, DB_WINDOW, db_span(rec));
    rc |= sqlite3_bind_int64(st, DB_SUM, db_sum(token, rec));

    if (n != NGX_IDEMPOTENCY_DB_CLAIM) {
        rc |= sqlite3_bind_int(st, DB_OUTCOME, rec->outcome);
        rc |= sqlite3_bind_int(st, DB_STATUS, rec->status);
        rc |= sqlite3_bind_int64(st, DB_REPLAYS, rec->replays);

        if (rec->response.len) {
            rc |= sqlite3_bind_blob64(st, DB_RESPONSE, rec->response.data,
                                      rec->response.len, SQLITE_STATIC);
        } else {
            rc |= sqlite3_bind_null(st, DB_RESPONSE);
        }
    }

    if (n == NGX_IDEMPOTENCY_DB_CHANGE) {
        rc |= sqlite3_bind_int64(st, DB_WHICH, rec->id);
    }

    if (rc != SQLITE_OK) {
        return SQLITE_NOMEM;
    }

    db->left -= DB_PAGES(rec->response.len) + 1;

    return ngx_idempotency_db_run(db, n);
}


int
ngx_idempotency_db_delete(ngx_idempotency_db_t *db, u_char *token,
    ngx_idempotency_db_record_t *rec)
{
    int            rc;
    sqlite3_stmt  *st;

    (void) sqlite3_reset(db->statements[NGX_IDEMPOTENCY_DB_FIND]);

    if (rec->id) {
        st = ngx_idempotency_db_statement(db, NGX_IDEMPOTENCY_DB_DELETE_RECORD);
        rc = sqlite3_bind_int64(st, 1, rec->id);

        return (rc == SQLITE_OK)
               ? ngx_idempotency_db_run(db, NGX_IDEMPOTENCY_DB_DELETE_RECORD)
               : rc;
    }

    st = ngx_idempotency_db_statement(db, NGX_IDEMPOTENCY_DB_DELETE_CLAIM);
    rc = sqlite3_bind_blob(st, 1, token, NGX_IDEMPOTENCY_DIGEST_LEN,
                           SQLITE_STATIC);

    return (rc == SQLITE_OK)
           ? ngx_idempotency_db_run(db, NGX_IDEMPOTENCY_DB_DELETE_CLAIM)
           : rc;
}


/*
 * Is there room for a row and `size` bytes of a response, and `reserve` pages
 * behind it?  Responses stop first, then claims: the outcomes of what has been
 * claimed are the last.
 */

ngx_uint_t
ngx_idempotency_db_room(ngx_idempotency_db_t *db, size_t size, int64_t reserve)
{
    if (size > (size_t) sqlite3_limit(db->sqlite, SQLITE_LIMIT_LENGTH, -1)
               - NGX_IDEMPOTENCY_DB_PAGE)
    {
        return 0;
    }

    return db->most == 0
           || db->left >= DB_PAGES(size) + DB_ROW + reserve;
}


/* the window, which tells of a claim, too, whether it was in doubt before: no
   file needs one more column for that */

static int64_t
db_span(ngx_idempotency_db_record_t *rec)
{
    return rec->taken ? -1 - rec->window : rec->window;
}


/* of the columns in the upper half, of the response in the lower */

static sqlite3_int64
db_sum(u_char *token, ngx_idempotency_db_record_t *rec)
{
    u_char      buf[256], *p;
    uint64_t    numbers[9], sum;
    ngx_uint_t  i, k;

    numbers[0] = rec->instance;
    numbers[1] = rec->fence;
    numbers[2] = rec->recorded;
    numbers[3] = rec->ends;
    numbers[4] = db_span(rec);
    numbers[5] = rec->outcome;
    numbers[6] = rec->status;
    numbers[7] = rec->replays;
    numbers[8] = rec->response.len;

    p = ngx_cpymem(buf, token, NGX_IDEMPOTENCY_DIGEST_LEN);
    p = ngx_cpymem(p, rec->fingerprint, NGX_IDEMPOTENCY_DIGEST_LEN);
    p = ngx_cpymem(p, &rec->parts, sizeof(ngx_idempotency_parts_t));
    p = ngx_cpymem(p, rec->mac, NGX_IDEMPOTENCY_MAC_LEN);

    for (i = 0; i < 9; i++) {
        for (k = 0; k < 8; k++) {
            *p++ = (u_char) (numbers[i] >> (8 * k));
        }
    }

    sum = (uint64_t) db_hash(buf, p - buf) << 32
          | db_hash(rec->response.data, rec->response.len);

    return (sqlite3_int64) sum;
}


/* against damage, not against an adversary; each step can be undone, so what
   differs in one word differs in the end */

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


#endif
