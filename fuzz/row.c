
/*
 * A row of the file, which somebody else may have written, or a disk that lies:
 * a claim or a record with any numbers, some with a sum that is right, some with
 * columns of other types.  Whatever is asked of it, the file stays usable, what
 * is found is a record or unavailable, and the token can be forgotten.
 */


#include "fuzz.h"

#include "store/file/ngx_idempotency_db.c"
#include "t/unit/file.h"
#include "t/unit/unit.h"


#define TOKEN  1


static ngx_idempotency_secret_t  none;


/* the file's checks are ours */

int
unit_check(int ok, char *text, char *path, int line)
{
    fuzz_hold(ok, text, path, line);

    return 1;
}


int
unit_check_equal(int64_t got, int64_t wanted, char *text, char *path, int line)
{
    return unit_check(got == wanted, text, path, line);
}


void
unit_note(char *fmt, ...)
{
    /* void */
}


static void
column(ngx_uint_t record, const uint8_t *data)
{
    char           sql[80];
    sqlite3_stmt  *st;

    /* those that claims have, too, come first */

    static char  *names[] = {
        "fingerprint", "parts", "instance", "fence", "recorded", "ends", "span",
        "sum", "outcome", "status", "replays", "response"
    };

    snprintf(sql, sizeof(sql), "UPDATE OR IGNORE %s SET %s = ?1",
             record ? "records" : "claims", names[data[1] % (record ? 12 : 8)]);

    hold(sqlite3_prepare_v2(file.db->sqlite, sql, -1, &st, NULL) == SQLITE_OK);

    switch (data[2] & 3) {

    case 0:
        (void) sqlite3_bind_text(st, 1, (char *) data + 4, data[3] % 7,
                                 SQLITE_STATIC);
        break;

    case 1:
        (void) sqlite3_bind_zeroblob(st, 1, data[3]);
        break;

    case 2:
        (void) sqlite3_bind_double(st, 1, data[3] * 1e300 * data[4]);
        break;
    }

    (void) sqlite3_step(st);
    (void) sqlite3_finalize(st);
}


/* whether its sum was right in the end is not known */

static void
row(const uint8_t *data, size_t size)
{
    u_char       response[20];
    size_t       i;
    db_record_t  rec;

    ngx_memzero(&rec, sizeof(db_record_t));
    ngx_memset(response, 'r', sizeof(response));

    (void) file_item(&rec.item, NGX_IDEMPOTENCY_ITEM_PUT, TOKEN, 5);

    if (data[0] & 6) {
        rec.item.instance = (data[0] & 2) ? FILE_LIVING : FILE_DEAD;
    }

    rec.item.taken = (data[0] & 8) ? 1 : 0;
    rec.item.ends = file.now + FILE_HOUR;

    if (data[0] & 1) {
        rec.item.outcome = NGX_IDEMPOTENCY_DONE;
        rec.item.status = 201;
        rec.item.response.data = response;
        rec.item.response.len = sizeof(response);
    }

    for (i = 1; i + 10 <= size; i += 10) {
        if (data[i] < 0xf0) {
            fuzz_change(&rec.item, data + i);
        }
    }

    hold(sqlite3_exec(file.db->sqlite, "DELETE FROM claims; "
                      "DELETE FROM records; UPDATE meta SET fence = 9",
                      NULL, NULL, NULL)
         == SQLITE_OK);

    hold(db_write(file.db, (data[0] & 1) ? SQL_RECORD : SQL_CLAIM,
                  rec.item.token, &rec)
         == SQLITE_OK);

    for (i = 1; i + 10 <= size; i += 10) {
        if (data[i] >= 0xf0) {
            column(data[0] & 1, data + i);
        }
    }
}


static ngx_idempotency_result_e
ask(ngx_idempotency_item_e what, ngx_uint_t bits)
{
    ngx_idempotency_item_t    item;
    ngx_idempotency_result_e  result;

    (void) file_item(&item, what, TOKEN, 7);

    if (what == NGX_IDEMPOTENCY_ITEM_FORGET) {
        item.fence = 0;
        item.recorded = 0;
    }

    item.floor = (bits & 1) ? 6 : 0;
    item.retry = (bits & 2) ? 1 : 0;
    item.old = (bits & 4) ? 1 : 0;
    item.freed = (bits & 8) ? 1 : 0;

    result = file_do(&item);

    if (result == NGX_IDEMPOTENCY_BOUND) {
        ngx_idempotency_unseal(&none, &item, 1, 1);

        if (item.result == NGX_IDEMPOTENCY_BOUND) {
            fuzz_sound(&item);
        }
    }

    free(item.response.data);

    return result;
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    u_char  tokens[4][NGX_IDEMPOTENCY_DIGEST_LEN];

    static const ngx_uint_t   order[][2] = {
        { NGX_IDEMPOTENCY_ITEM_ASK, NGX_IDEMPOTENCY_ITEM_PUT },
        { NGX_IDEMPOTENCY_ITEM_PUT, NGX_IDEMPOTENCY_ITEM_RELEASE },
        { NGX_IDEMPOTENCY_ITEM_RELEASE, NGX_IDEMPOTENCY_ITEM_ASK },
        { NGX_IDEMPOTENCY_ITEM_ASK, NGX_IDEMPOTENCY_ITEM_RELEASE }
    };

    if (file.db == NULL) {
        file_make(NULL);
        file_open(NGX_IDEMPOTENCY_SYNC_BATCHED, 0);
        hold(file.db != NULL);
        (void) atexit(file_remove);
    }

    if (size < 2) {
        return 0;
    }

    row(data, size);

    (void) ask(NGX_IDEMPOTENCY_ITEM_FIND, 0);
    hold(ngx_idempotency_db_tokens(file.db, NULL, tokens, 4) != NGX_ERROR);

    if (data[0] & 0x10) {
        hold(file_tidy(4) != NGX_ERROR);
    }

    (void) ask(order[data[0] >> 6][0], data[1]);
    (void) ask(order[data[0] >> 6][1], data[1] >> 4);

    (void) ask(NGX_IDEMPOTENCY_ITEM_FORGET, 0);
    hold(ask(NGX_IDEMPOTENCY_ITEM_FIND, 0) == NGX_IDEMPOTENCY_ABSENT);

    return 0;
}
