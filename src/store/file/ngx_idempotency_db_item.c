
/*
 * What an item does to the file.  What is pending is a row of `claims`, which
 * stays small; what has ended, or may have, is a row of `records`, in the
 * order in which it came, until its time is over.  A token is in one of them.
 *
 * SQLite knows no checksums: each row has one over its columns and one over
 * its response, and a row that is damaged is neither absent nor an answer.
 * Where a row moves to the other table, it is put there before it goes here,
 * so that no error between the two leaves none.
 */


#include "ngx_idempotency_db_sql.h"

#if (NGX_IDEMPOTENCY_SQLITE && NGX_THREADS)


/* what is one time to two clocks that are not read at the same moment */

#define DB_ITEM_APART  1000


static int db_ask(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item,
    int64_t now);
static ngx_uint_t db_may_take(ngx_idempotency_db_record_t *rec,
    ngx_idempotency_item_t *item);
static int db_take(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item,
    ngx_idempotency_db_record_t *rec, int64_t now);
static int db_bound(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item,
    ngx_idempotency_db_record_t *rec);
static int db_put(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item,
    int64_t now);
static ngx_uint_t db_may_put(ngx_idempotency_db_record_t *rec,
    ngx_idempotency_item_t *item);
static int db_outcome(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item,
    ngx_idempotency_db_record_t *old);
static int db_release(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item,
    int64_t now);
static int db_find(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item,
    int64_t now);
static int db_forget(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item,
    int64_t now);
static ngx_uint_t db_since(ngx_idempotency_item_t *item,
    ngx_idempotency_db_record_t *rec);

static int db_in_doubt(ngx_idempotency_db_t *db, u_char *token, int64_t now,
    ngx_idempotency_db_record_t *rec);

static int db_nothing(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item,
    int rc);
static void db_unavailable(ngx_idempotency_db_t *db,
    ngx_idempotency_item_t *item, char *why);


int
ngx_idempotency_db_item(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item,
    int64_t now)
{
    int  rc;

    switch (item->what) {

    case NGX_IDEMPOTENCY_ITEM_ASK:
        rc = db_ask(db, item, now);
        break;

    case NGX_IDEMPOTENCY_ITEM_PUT:
        rc = db_put(db, item, now);
        break;

    case NGX_IDEMPOTENCY_ITEM_RELEASE:
        rc = db_release(db, item, now);
        break;

    case NGX_IDEMPOTENCY_ITEM_FIND:
        rc = db_find(db, item, now);
        break;

    default: /* NGX_IDEMPOTENCY_ITEM_FORGET */
        rc = db_forget(db, item, now);
        break;
    }

    /* what was found may be read no longer, and must not be open at the end
       of the transaction */

    (void) sqlite3_reset(db->statements[NGX_IDEMPOTENCY_DB_FIND]);

    /* these end a statement, but not the transaction */

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
    int                          rc;
    ngx_uint_t                   own, same;
    ngx_idempotency_db_record_t  rec;

    rc = ngx_idempotency_db_look(db, item->token, now, &rec);

    if (rc == NGX_IDEMPOTENCY_DB_ABSENT && !item->old) {
        return db_take(db, item, NULL, now);
    }

    if (rc != SQLITE_OK) {
        return db_nothing(db, item, rc);
    }

    if (rec.outcome == NGX_IDEMPOTENCY_PENDING) {
        own = (rec.instance == item->instance);
        same = (own && rec.fence == item->fence);

        /*
         * The zone knows best what its own instance has claimed, and has
         * nothing: this is the same claim, sent once more, or what is left of
         * one that it gave up, which is none.
         */

        if (own && rec.fence >= item->since && item->old && !rec.taken) {
            item->result = NGX_IDEMPOTENCY_ABSENT;
            return SQLITE_OK;
        }

        if (same || (own && rec.fence >= item->since && !rec.taken)) {
            return db_take(db, item, &rec, now);
        }

        if (!own && db->conf.alive(db->conf.data, rec.instance)) {
            return db_bound(db, item, &rec);
        }

        rc = db_in_doubt(db, item->token, now, &rec);

        if (rc != SQLITE_OK) {
            return rc;
        }
    }

    if (rec.outcome == NGX_IDEMPOTENCY_IN_DOUBT && db_may_take(&rec, item)) {

        if (rec.fence >= item->fence) {
            item->fence = rec.fence;
            item->result = NGX_IDEMPOTENCY_CHANGED;
            return SQLITE_OK;
        }

        return db_take(db, item, &rec, now);
    }

    return db_bound(db, item, &rec);
}


static ngx_uint_t
db_may_take(ngx_idempotency_db_record_t *rec, ngx_idempotency_item_t *item)
{
    static u_char  nobody[NGX_IDEMPOTENCY_IDENTITY_LEN];

    return item->retry
           && ngx_memcmp(rec->fingerprint, item->fingerprint,
                         NGX_IDEMPOTENCY_DIGEST_LEN) == 0
           && (ngx_memcmp(rec->parts.identity, item->parts.identity,
                          NGX_IDEMPOTENCY_IDENTITY_LEN) == 0
               || ngx_memcmp(rec->parts.identity, nobody,
                             NGX_IDEMPOTENCY_IDENTITY_LEN) == 0);
}


/* the item's claim is pending from now on; old: what it takes the place of */

static int
db_take(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item,
    ngx_idempotency_db_record_t *old, int64_t now)
{
    int                          rc;
    ngx_idempotency_db_record_t  rec;

    if (old == NULL && !ngx_idempotency_db_room(db, 0, db->most / 32)) {
        item->full = 1;
        db_unavailable(db, item, "max_size is reached");
        return SQLITE_OK;
    }

    ngx_memzero(&rec, sizeof(ngx_idempotency_db_record_t));

    ngx_memcpy(rec.fingerprint, item->fingerprint, NGX_IDEMPOTENCY_DIGEST_LEN);
    rec.parts = item->parts;
    ngx_memcpy(rec.mac, item->mac, NGX_IDEMPOTENCY_MAC_LEN);
    rec.instance = item->instance;
    rec.fence = item->fence;
    rec.recorded = item->recorded ? item->recorded : now;
    rec.ends = item->ends;
    rec.window = item->window;
    rec.taken = item->taken;

    if (old) {

        /* a claim that is known yet tells itself whether it is one of those */

        rec.taken |= (item->what == NGX_IDEMPOTENCY_ITEM_ASK)
                     ? (old->taken
                        || old->outcome == NGX_IDEMPOTENCY_IN_DOUBT)
                     : old->taken;
    }

    item->taken = rec.taken;

    rc = ngx_idempotency_db_write(db, NGX_IDEMPOTENCY_DB_CLAIM, item->token,
                                  &rec);

    if (rc == SQLITE_OK && old && old->id) {
        rc = ngx_idempotency_db_delete(db, item->token, old);
    }

    item->result = (item->what == NGX_IDEMPOTENCY_ITEM_ASK)
                   ? NGX_IDEMPOTENCY_CLAIMED : NGX_IDEMPOTENCY_OK;

    return rc;
}


static int
db_bound(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item,
    ngx_idempotency_db_record_t *rec)
{
    if (rec->response.len && !item->brief) {
        item->response.data = malloc(rec->response.len);

        if (item->response.data == NULL) {
            return SQLITE_NOMEM;
        }

        ngx_memcpy(item->response.data, rec->response.data, rec->response.len);
    }

    item->response.len = rec->response.len;

    ngx_memcpy(item->fingerprint, rec->fingerprint,
               NGX_IDEMPOTENCY_DIGEST_LEN);

    item->parts = rec->parts;
    ngx_memcpy(item->mac, rec->mac, NGX_IDEMPOTENCY_MAC_LEN);
    item->instance = rec->instance;
    item->fence = rec->fence;
    item->sequence = rec->fence;
    item->recorded = rec->recorded;
    item->ends = rec->ends;
    item->window = rec->window;
    item->outcome = rec->outcome;
    item->status = rec->status;
    item->replays = rec->replays;

    item->result = NGX_IDEMPOTENCY_BOUND;

    return SQLITE_OK;
}


static int
db_put(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item, int64_t now)
{
    int                           rc;
    ngx_idempotency_db_record_t   rec, *old;

    rc = ngx_idempotency_db_look(db, item->token, now, &rec);

    if (rc != SQLITE_OK && rc != NGX_IDEMPOTENCY_DB_ABSENT) {
        return db_nothing(db, item, rc);
    }

    old = (rc == SQLITE_OK) ? &rec : NULL;

    if (old && !db_may_put(old, item)) {
        item->result = NGX_IDEMPOTENCY_STALE;
        return SQLITE_OK;
    }

    if (item->outcome == NGX_IDEMPOTENCY_PENDING) {
        return db_take(db, item, old, now);
    }

    return db_outcome(db, item, old);
}


/* whether what the zone knows is not older than what is there */

static ngx_uint_t
db_may_put(ngx_idempotency_db_record_t *rec, ngx_idempotency_item_t *item)
{
    if (rec->instance != item->instance || item->fence < rec->fence) {
        return 0;
    }

    return item->fence > rec->fence
           || rec->outcome == NGX_IDEMPOTENCY_PENDING
           || item->outcome != NGX_IDEMPOTENCY_PENDING;
}


static int
db_outcome(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item,
    ngx_idempotency_db_record_t *old)
{
    int                          rc;
    ngx_idempotency_db_record_t  rec;

    ngx_memcpy(rec.fingerprint, item->fingerprint, NGX_IDEMPOTENCY_DIGEST_LEN);
    rec.parts = item->parts;
    ngx_memcpy(rec.mac, item->mac, NGX_IDEMPOTENCY_MAC_LEN);
    rec.instance = item->instance;
    rec.fence = item->fence;
    rec.recorded = item->recorded;
    rec.ends = item->ends;
    rec.window = item->window;
    rec.outcome = item->outcome;
    rec.status = item->status;
    rec.replays = item->replays;
    rec.taken = 0;
    rec.response = item->response;

    item->result = NGX_IDEMPOTENCY_OK;

    if (rec.response.len
        && !ngx_idempotency_db_room(db, rec.response.len, db->most / 16))
    {
        ngx_str_null(&rec.response);

        if (rec.outcome == NGX_IDEMPOTENCY_DONE) {
            rec.outcome = NGX_IDEMPOTENCY_NOT_KEPT;
        }

        item->result = NGX_IDEMPOTENCY_TRIMMED;
    }

    if (!ngx_idempotency_db_room(db, rec.response.len, 0)) {
        item->full = 1;
        db_unavailable(db, item, "max_size is reached");
        return SQLITE_OK;
    }

    if (old && old->id) {
        rec.id = old->id;
        return ngx_idempotency_db_write(db, NGX_IDEMPOTENCY_DB_CHANGE,
                                        item->token, &rec);
    }

    rc = ngx_idempotency_db_write(db, NGX_IDEMPOTENCY_DB_RECORD, item->token,
                                  &rec);

    if (rc == SQLITE_OK && old) {
        rc = ngx_idempotency_db_delete(db, item->token, old);
    }

    return rc;
}


static int
db_release(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item, int64_t now)
{
    int                          rc;
    ngx_uint_t                   pending;
    ngx_idempotency_db_record_t  rec;

    rc = ngx_idempotency_db_look(db, item->token, now, &rec);

    if (rc != SQLITE_OK) {
        return db_nothing(db, item, rc);
    }

    pending = (rec.outcome == NGX_IDEMPOTENCY_PENDING);

    if (rec.instance != item->instance
        || (rec.fence != item->fence
            && !(rec.fence < item->fence
                 && (pending || (item->retry && item->freed))))
        || (!pending && rec.outcome != NGX_IDEMPOTENCY_IN_DOUBT))
    {
        item->result = NGX_IDEMPOTENCY_ABSENT;
        return SQLITE_OK;
    }

    item->result = NGX_IDEMPOTENCY_OK;

    /* it may have been executed before it was claimed */

    if (rec.taken && !(item->freed && rec.fence == item->fence)) {
        return db_in_doubt(db, item->token, now, &rec);
    }

    return ngx_idempotency_db_delete(db, item->token, &rec);
}


static int
db_find(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item, int64_t now)
{
    int                          rc;
    ngx_idempotency_db_record_t  rec;

    rc = ngx_idempotency_db_look(db, item->token, now, &rec);

    return (rc == SQLITE_OK) ? db_bound(db, item, &rec)
                             : db_nothing(db, item, rc);
}


/* what is damaged goes, too: nobody knows its fence */

static int
db_forget(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item, int64_t now)
{
    int                          rc;
    ngx_idempotency_db_record_t  rec;

    rc = ngx_idempotency_db_look(db, item->token, now, &rec);

    if (rc == NGX_IDEMPOTENCY_DB_ABSENT
        || (rc == SQLITE_OK && item->fence && item->fence != rec.fence)
        || (rc == SQLITE_OK && db_since(item, &rec)))
    {
        item->result = NGX_IDEMPOTENCY_ABSENT;
        return SQLITE_OK;
    }

    if (rc == SQLITE_OK || rc == NGX_IDEMPOTENCY_DB_DAMAGED) {
        item->result = NGX_IDEMPOTENCY_OK;
        return ngx_idempotency_db_delete(db, item->token, &rec);
    }

    return rc;
}


/* a forget may be told twice, and the token has been taken since: by our own
   instance, as the fence tells, or by another one */

static ngx_uint_t
db_since(ngx_idempotency_item_t *item, ngx_idempotency_db_record_t *rec)
{
    if (rec->instance == item->instance) {
        return item->since && item->since < rec->fence;
    }

    return item->recorded && item->recorded + DB_ITEM_APART < rec->recorded;
}


int
ngx_idempotency_db_doubt(ngx_idempotency_db_t *db, u_char *token, int64_t now)
{
    int                          rc;
    ngx_idempotency_db_record_t  rec;

    rc = ngx_idempotency_db_look(db, token, now, &rec);

    if (rc == SQLITE_OK && rec.outcome == NGX_IDEMPOTENCY_PENDING) {
        rc = db_in_doubt(db, token, now, &rec);
    }

    (void) sqlite3_reset(db->statements[NGX_IDEMPOTENCY_DB_FIND]);

    return (rc == NGX_IDEMPOTENCY_DB_ABSENT
            || rc == NGX_IDEMPOTENCY_DB_DAMAGED) ? SQLITE_OK : rc;
}


static int
db_in_doubt(ngx_idempotency_db_t *db, u_char *token, int64_t now,
    ngx_idempotency_db_record_t *rec)
{
    int                          rc;
    ngx_idempotency_db_record_t  claim;

    claim = *rec;

    rec->outcome = NGX_IDEMPOTENCY_IN_DOUBT;
    rec->taken = 0;
    rec->recorded = now;
    rec->ends = ngx_max(rec->ends, now + rec->window);
    ngx_str_null(&rec->response);

    rc = ngx_idempotency_db_write(db, NGX_IDEMPOTENCY_DB_RECORD, token, rec);

    if (rc != SQLITE_OK) {
        return rc;
    }

    rec->id = sqlite3_last_insert_rowid(db->sqlite);

    return ngx_idempotency_db_delete(db, token, &claim);
}


/* a look has found none: what is damaged is neither there nor absent */

static int
db_nothing(ngx_idempotency_db_t *db, ngx_idempotency_item_t *item, int rc)
{
    switch (rc) {

    case NGX_IDEMPOTENCY_DB_DAMAGED:
        db_unavailable(db, item, "a record is damaged");
        return SQLITE_OK;

    case NGX_IDEMPOTENCY_DB_ABSENT:
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
    item->unheard = 1;

    (void) snprintf(db->error, sizeof(db->error), "%s", why);
}


#endif
