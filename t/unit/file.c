
/*
 * A store in a file, for unit tests.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "unit.h"
#include "file.h"


file_t  file;


static ngx_uint_t
file_alive(void *data, uint64_t instance)
{
    return instance == FILE_LIVING || instance == file.start.instance;
}


static ngx_uint_t
file_may(void *data)
{
    return !file.denied;
}


static u_char
file_byte(ngx_uint_t token, size_t i)
{
    return (u_char) (token * 31 + i * 7 + i / 251);
}


void
file_make(char *dir)
{
    int  fd;

    if (dir == NULL) {
        dir = getenv("TMPDIR");
    }

    ngx_memzero(&file, sizeof(file_t));

    snprintf(file.dir, sizeof(file.dir), "%s/unit.XXXXXX", dir ? dir : "/tmp");

    if (mkdtemp(file.dir) == NULL) {
        unit_note("mkdtemp() \"%s\" failed", file.dir);
        exit(1);
    }

    snprintf(file.path, sizeof(file.path), "%s/db", file.dir);

    file.start.wall = (int64_t) 1700000000 * 1000;
    file.start.boottime = 5000;
    strcpy(file.start.boot, "one");
    file.start.owners = -1;

    fd = open(file.path, O_CREAT|O_EXCL|O_RDWR, 0600);
    check(fd != -1);
    close(fd);

    check_equal(file_start(0), NGX_OK);
    check_equal(file_size("-wal"), -1);

    file.now = file.start.base + file.start.boottime;
}


ngx_int_t
file_start(ngx_uint_t found)
{
    ngx_int_t  rc;

    file.start.found = found;
    file.error[0] = '\0';

    file.start.why[0] = '\0';

    rc = ngx_idempotency_start_database(file.path, &file.start);

    ngx_cpystrn((u_char *) file.error, (u_char *) file.start.why,
                sizeof(file.error));

    return rc;
}


void
file_open(ngx_idempotency_sync_e sync, off_t max_size)
{
    file.conf.path = file.path;
    file.conf.sync = sync;
    file.conf.max_size = max_size;

    if (file.conf.alive == NULL) {
        file.conf.alive = file_alive;
    }

    file.conf.may = file_may;

    file.conf.log = &file.log;
    file.conf.file = -1;

    file.error[0] = '\0';
    file.db = ngx_idempotency_db_open(&file.conf, file.error,
                                      sizeof(file.error));
    if (file.db == NULL && file.error[0] == '\0') {
        check(!"an error without words");
    }
}


/* as a worker does, which tells from the log's length what is to be done */

ngx_int_t
file_tidy(ngx_uint_t n)
{
    ngx_int_t  rc;

    rc = ngx_idempotency_db_tidy(file.db, file.now, n);

    if (file.log >= NGX_IDEMPOTENCY_DB_QUIET) {
        file_restart();
    }

    return rc;
}


void
file_restart(void)
{
    check_equal(ngx_idempotency_db_checkpoint(file.db, 0), NGX_OK);
    check_equal(ngx_idempotency_db_checkpoint(file.db, file.now), NGX_OK);
    check(file.log < 10);
}


void
file_close(void)
{
    if (file.db) {
        ngx_idempotency_db_close(file.db);
        file.db = NULL;
    }
}


void
file_remove(void)
{
    char         path[200];
    ngx_uint_t   i;

    static char  *suffix[] = { "", "-wal", "-shm", ".away" };

    file_close();

    for (i = 0; i < 4; i++) {
        snprintf(path, sizeof(path), "%s%s", file.path, suffix[i]);
        unlink(path);
    }

    check_equal(rmdir(file.dir), 0);
}


ngx_idempotency_item_t *
file_item(ngx_idempotency_item_t *item, ngx_idempotency_item_e what,
    ngx_uint_t token, uint64_t fence)
{
    ngx_uint_t  i;

    ngx_memzero(item, sizeof(ngx_idempotency_item_t));

    /* every byte there is, also as the first: tokens have no order */

    for (i = 0; i < NGX_IDEMPOTENCY_DIGEST_LEN; i++) {
        item->token[i] = (u_char) (token * 167 + i * 13 + (token >> 8) * i);
    }

    item->token[8] = (u_char) token;
    item->token[9] = (u_char) (token >> 8);
    item->token[10] = (u_char) (token >> 16);

    ngx_memset(item->fingerprint, 'f', NGX_IDEMPOTENCY_DIGEST_LEN);
    ngx_memset(&item->parts, 'p', sizeof(ngx_idempotency_parts_t));

    item->what = what;
    item->instance = file.start.instance;
    item->fence = fence;
    item->window = FILE_HOUR;
    item->recorded = file.now;

    return item;
}


ngx_idempotency_item_t *
file_outcome(ngx_idempotency_item_t *item, ngx_uint_t token, uint64_t fence,
    ngx_idempotency_outcome_e outcome, size_t size)
{
    size_t  i;

    file_item(item, NGX_IDEMPOTENCY_ITEM_PUT, token, fence);

    item->outcome = outcome;
    item->status = 201;
    item->replays = 3;
    item->ends = file.now + FILE_HOUR;

    if (size) {
        item->response.len = size;
        item->response.data = malloc(size);

        for (i = 0; i < size; i++) {
            item->response.data[i] = file_byte(token, i);
        }
    }

    return item;
}


ngx_idempotency_result_e
file_do(ngx_idempotency_item_t *item)
{
    ngx_int_t  rc;

    rc = ngx_idempotency_db_commit(file.db, item, 1, file.now);

    if (rc != NGX_OK) {
        unit_note("%s", ngx_idempotency_db_state(file.db)->error);
    }

    check_equal(rc, NGX_OK);

    if (item->what == NGX_IDEMPOTENCY_ITEM_PUT) {
        file_done(item);
    }

    return item->result;
}


ngx_idempotency_result_e
file_find(ngx_idempotency_item_t *item, ngx_uint_t token)
{
    size_t      i;
    ngx_uint_t  wrong;

    file_item(item, NGX_IDEMPOTENCY_ITEM_FIND, token, 0);

    if (ngx_idempotency_db_commit(file.db, item, 1, file.now) != NGX_OK) {
        return NGX_IDEMPOTENCY_UNAVAILABLE;
    }

    if (item->result != NGX_IDEMPOTENCY_BOUND) {
        return item->result;
    }

    wrong = 0;

    for (i = 0; i < item->response.len; i++) {
        wrong += (item->response.data[i] != file_byte(token, i));
    }

    for (i = 0; i < NGX_IDEMPOTENCY_DIGEST_LEN; i++) {
        wrong += (item->fingerprint[i] != 'f');
    }

    check_equal(wrong, 0);
    check_equal(item->window, FILE_HOUR);

    return item->result;
}


ngx_int_t
file_has(ngx_uint_t token)
{
    ngx_idempotency_item_t  item;

    (void) file_find(&item, token);
    file_done(&item);

    switch (item.result) {

    case NGX_IDEMPOTENCY_BOUND:
        return 1;

    case NGX_IDEMPOTENCY_ABSENT:
        return 0;

    default:
        return -1;
    }
}


void
file_done(ngx_idempotency_item_t *item)
{
    free(item->response.data);
    ngx_str_null(&item->response);
}


off_t
file_size(char *suffix)
{
    char         path[200];
    struct stat  st;

    snprintf(path, sizeof(path), "%s%s", file.path, suffix);

    return (stat(path, &st) == -1) ? -1 : st.st_size;
}
