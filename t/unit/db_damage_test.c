
/*
 * The file that remembers, when the disk does not: full, read-only, gone,
 * replaced, damaged, or without an answer to what is to be on it.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <sys/syscall.h>
#include <sys/resource.h>
#include <sys/mount.h>
#include <sched.h>

#include "store/file/ngx_idempotency_db.h"
#include "unit.h"
#include "file.h"


#define DONE      NGX_IDEMPOTENCY_DONE
#define IN_DOUBT  NGX_IDEMPOTENCY_IN_DOUBT

#define MEGABYTE  (1024 * 1024)


/* the library asks these for what is on disk */

static ngx_uint_t  synced;
static ngx_uint_t  broken;


int
fdatasync(int fd)
{
    synced++;

    if (broken) {
        errno = EIO;
        return -1;
    }

    return syscall(SYS_fdatasync, fd);
}


int
fsync(int fd)
{
    return fdatasync(fd);
}


static ngx_int_t
sync_it(void)
{
    return ngx_idempotency_db_sync(file.path, file.error, sizeof(file.error));
}


static void
begin(ngx_idempotency_sync_e sync, off_t max_size)
{
    file_make(NULL);
    file_open(sync, max_size);
    check(file.db != NULL);
}


void
unit_setup(void)
{
    begin(NGX_IDEMPOTENCY_SYNC_BATCHED, 0);
}


void
unit_teardown(void)
{
    file_remove();
}


static ngx_idempotency_result_e
put(ngx_uint_t token, size_t size)
{
    ngx_idempotency_item_t  item;

    return file_do(file_outcome(&item, token, 1, DONE, size));
}


static ngx_int_t
commit(ngx_uint_t token)
{
    ngx_idempotency_item_t  item;

    return ngx_idempotency_db_commit(file.db,
                                     file_item(&item, NGX_IDEMPOTENCY_ITEM_PUT,
                                               token, 1),
                                     1, file.now);
}


static ngx_uint_t
told(char *text)
{
    if (strstr(ngx_idempotency_db_state(file.db)->error, text)) {
        return 1;
    }

    unit_note("told: %s", ngx_idempotency_db_state(file.db)->error);

    return 0;
}


bare_case("what is on disk in each mode, and what if it isn't")
{
    ngx_uint_t              i;
    ngx_idempotency_item_t  item;

    static ngx_idempotency_sync_e  syncs[] = {
        NGX_IDEMPOTENCY_SYNC_STRICT, NGX_IDEMPOTENCY_SYNC_BATCHED
    };

    for (i = 0; i < 2; i++) {
        begin(syncs[i], 0);

        /* a log that is begun anew is, in any mode */

        check_equal(put(1, 100), NGX_IDEMPOTENCY_OK);

        synced = 0;
        check_equal(put(2, 100), NGX_IDEMPOTENCY_OK);
        check_equal(synced > 0, i == 0);

        synced = 0;
        file_item(&item, NGX_IDEMPOTENCY_ITEM_ASK, 3, 1);
        check_equal(file_do(&item), NGX_IDEMPOTENCY_CLAIMED);
        check_equal(synced > 0, i == 0);

        synced = 0;
        check_equal(sync_it(), NGX_OK);
        check_equal(synced, 1);

        /* nobody knows what is there once it has failed */

        broken = 1;

        if (i == 0) {
            check_equal(commit(4), NGX_ERROR);
            check(ngx_idempotency_db_state(file.db)->failed);
            check(told("disk I/O error"));

            broken = 0;

            check_equal(commit(5), NGX_ERROR);
            check(told("started anew"));

        } else {
            check_equal(sync_it(), NGX_ERROR);
            check(strstr(file.error, "fdatasync() failed: ") != NULL);

            broken = 0;
        }

        file_close();
        file_open(syncs[i], 0);
        check_equal(file_has(2), 1);
        check_equal(commit(5), NGX_OK);

        file_remove();
    }
}


/* responses stop first, then claims; outcomes of what is claimed are the last;
   all come back when something has ended */

bare_case("max_size: responses stop first")
{
    ngx_uint_t              i, k;
    ngx_idempotency_item_t  item;

    begin(NGX_IDEMPOTENCY_SYNC_BATCHED, 2 * MEGABYTE);

    for (i = 0; i < 2000; i++) {
        if (put(i, 5000) != NGX_IDEMPOTENCY_OK) {
            break;
        }
    }

    check(i > 150 && i < 400);
    check_equal(put(i, 5000), NGX_IDEMPOTENCY_TRIMMED);
    check_equal(file_find(&item, i), NGX_IDEMPOTENCY_BOUND);
    check_equal(item.outcome, NGX_IDEMPOTENCY_NOT_KEPT);
    check_equal(item.response.len, 0);

    check_equal(file_do(file_outcome(&item, 3000, 1, IN_DOUBT, 5000)),
                NGX_IDEMPOTENCY_TRIMMED);
    check_equal(file_find(&item, 3000), NGX_IDEMPOTENCY_BOUND);
    check_equal(item.outcome, IN_DOUBT);

    for (k = 4000; k < 10000; k++) {
        file_item(&item, NGX_IDEMPOTENCY_ITEM_ASK, k, 1);

        if (file_do(&item) != NGX_IDEMPOTENCY_CLAIMED) {
            break;
        }
    }

    check(k > 4100 && k < 9000);
    check_equal(item.result, NGX_IDEMPOTENCY_UNAVAILABLE);
    check(told("max_size"));
    check_equal(file_has(k), 0);

    while (k > 4000) {
        if (!check_equal(put(--k, 5000), NGX_IDEMPOTENCY_TRIMMED)) {
            break;
        }
    }

    check_equal(file_has(0), 1);

    while (file_tidy(100) == NGX_AGAIN) { }

    check(file_size("") <= 2 * MEGABYTE);

    /* a response may go, but is not replaced by one that does not fit */

    check_equal(file_do(file_outcome(&item, 0, 2, DONE, MEGABYTE)),
                NGX_IDEMPOTENCY_TRIMMED);

    file.now += FILE_HOUR;
    check_equal(put(1, 5000), NGX_IDEMPOTENCY_TRIMMED);

    for (i = 0; i < 40; i++) {
        (void) put(10000 + i, 0);
    }

    check_equal(put(20000, 5000), NGX_IDEMPOTENCY_OK);
    file_item(&item, NGX_IDEMPOTENCY_ITEM_ASK, 20001, 1);
    check_equal(file_do(&item), NGX_IDEMPOTENCY_CLAIMED);

    file_remove();
}


/* a file that may not grow is like a disk that is full */

unit_case("no space, and space again")
{
    ngx_uint_t              i, round;
    struct rlimit           limit, old;
    ngx_idempotency_item_t  item;

    check_equal(put(0, 5000), NGX_IDEMPOTENCY_OK);

    signal(SIGXFSZ, SIG_IGN);
    check_equal(getrlimit(RLIMIT_FSIZE, &old), 0);

    for (round = 0; round < 3; round++) {
        limit = old;
        limit.rlim_cur = MEGABYTE;
        check_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);

        for (i = 0; i < 1000; i++) {
            file_outcome(&item, 1000 * round + i, 1, DONE, 5000);

            if (ngx_idempotency_db_commit(file.db, &item, 1, file.now)
                != NGX_OK)
            {
                break;
            }

            file_done(&item);
        }

        /* the item is what it was, to be tried once more */

        check(i < 400);
        check_equal(item.result, NGX_IDEMPOTENCY_UNAVAILABLE);
        check_equal(item.response.len, 5000);
        check(!ngx_idempotency_db_state(file.db)->failed);
        check_equal(file_has(0), 1);

        check_equal(setrlimit(RLIMIT_FSIZE, &old), 0);

        check_equal(file_do(&item), NGX_IDEMPOTENCY_OK);
        check_equal(file_has(1000 * round + i), 1);
        check(i == 0 || file_has(1000 * round + i - 1) == 1);

        /* what is in the log goes into the file */

        for (i = 0; i < 1000; i++) {
            check_equal(put(100000 + i, 5000), NGX_IDEMPOTENCY_OK);
        }

        check(file_tidy(10) != NGX_ERROR);
    }

    signal(SIGXFSZ, SIG_DFL);
}


/* a real one, where the test may have it */

bare_case("a full disk")
{
    int                     fd;
    char                    dir[200], path[220];
    ngx_uint_t              i;
    static char             zeros[65536];
    ngx_idempotency_item_t  item;

    file_make(NULL);
    snprintf(dir, sizeof(dir), "%s", file.dir);
    file_remove();

    if (mkdir(dir, 0700) == -1 || unshare(CLONE_NEWNS) == -1
        || mount("none", "/", "none", MS_REC|MS_PRIVATE, NULL) == -1
        || mount("none", dir, "tmpfs", 0, "size=4m") == -1)
    {
        unit_note("left out: no file system may be mounted here");
        check_equal(rmdir(dir), 0);
        return;
    }

    file_make(dir);
    file_open(NGX_IDEMPOTENCY_SYNC_STRICT, 0);
    check_equal(put(0, 5000), NGX_IDEMPOTENCY_OK);

    snprintf(path, sizeof(path), "%s/filler", dir);
    fd = open(path, O_CREAT|O_RDWR, 0600);
    check(fd != -1);

    while (write(fd, zeros, sizeof(zeros)) > 0) { }

    close(fd);

    for (i = 1; i < 1000; i++) {
        file_outcome(&item, i, 1, DONE, 5000);

        if (ngx_idempotency_db_commit(file.db, &item, 1, file.now) != NGX_OK) {
            break;
        }

        file_done(&item);
    }

    check(i < 1000);
    check(told("full"));
    check(!ngx_idempotency_db_state(file.db)->failed);
    check_equal(file_has(0), 1);

    unlink(path);

    check_equal(file_do(&item), NGX_IDEMPOTENCY_OK);
    check_equal(file_has(i), 1);
    check_equal(file_has(i - 1), 1);

    file_remove();
    check_equal(umount2(dir, MNT_DETACH), 0);
    check_equal(rmdir(dir), 0);
}


unit_case("another program has it locked")
{
    sqlite3                 *other;
    ngx_idempotency_item_t   items[2];

    check_equal(put(1, 100), NGX_IDEMPOTENCY_OK);

    check_equal(sqlite3_open(file.path, &other), SQLITE_OK);
    check_equal(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL),
                SQLITE_OK);

    file_item(&items[0], NGX_IDEMPOTENCY_ITEM_FIND, 1, 0);
    file_item(&items[1], NGX_IDEMPOTENCY_ITEM_ASK, 2, 5);
    check_equal(ngx_idempotency_db_commit(file.db, items, 2, file.now),
                NGX_ERROR);
    check(told("locked"));
    check(!ngx_idempotency_db_state(file.db)->failed);
    check_equal(items[0].result, NGX_IDEMPOTENCY_UNAVAILABLE);
    check_equal(items[1].result, NGX_IDEMPOTENCY_UNAVAILABLE);
    check(items[0].response.data == NULL);
    check_equal(items[1].fence, 5);

    check_equal(sqlite3_exec(other, "COMMIT", NULL, NULL, NULL), SQLITE_OK);
    check_equal(ngx_idempotency_db_commit(file.db, items, 2, file.now),
                NGX_OK);
    check_equal(items[0].result, NGX_IDEMPOTENCY_BOUND);
    check_equal(items[1].result, NGX_IDEMPOTENCY_CLAIMED);
    file_done(&items[0]);

    /* who reads for long holds nobody up */

    check_equal(sqlite3_exec(other, "BEGIN; SELECT * FROM records", NULL, NULL,
                             NULL), SQLITE_OK);
    check_equal(put(3, 100), NGX_IDEMPOTENCY_OK);
    check(file_tidy(10) != NGX_ERROR);
    check_equal(sqlite3_close(other), SQLITE_OK);
}


unit_case("read-only; what others put into it")
{
    check_equal(put(1, 100), NGX_IDEMPOTENCY_OK);

    file_close();

    if (geteuid() != 0) {
        check_equal(chmod(file.path, 0400), 0);
        file_open(NGX_IDEMPOTENCY_SYNC_BATCHED, 0);

        if (file.db) {
            check_equal(commit(3), NGX_ERROR);
            check(told("readonly"));
            file_close();
        }

        check_equal(chmod(file.path, 0600), 0);
        file_open(NGX_IDEMPOTENCY_SYNC_BATCHED, 0);
        check_equal(commit(3), NGX_OK);
    }
}


/* nothing that somebody put into the file is run, and no file is shared with
   another program */

unit_case("what others put into the file")
{
    sqlite3     *other;
    ngx_uint_t   i;

    static char  *puts[][2] = {
        { "CREATE TRIGGER no BEFORE INSERT ON records "
          "BEGIN SELECT raise(ABORT, 'no'); END", "DROP TRIGGER no" },
        { "CREATE VIEW no AS SELECT * FROM records", "DROP VIEW no" },
        { "CREATE TABLE no (a)", "DROP TABLE no" },
        { "CREATE INDEX a ON claims (ends)", "DROP INDEX a" },
        { "DROP INDEX records_ends",
          "CREATE INDEX records_ends ON records (ends)" },
        { "ALTER TABLE meta ADD COLUMN a CHECK (random())", NULL }
    };

    check_equal(put(1, 100), NGX_IDEMPOTENCY_OK);

    for (i = 0; i < sizeof(puts) / sizeof(puts[0]); i++) {
        file_close();
        check_equal(sqlite3_open(file.path, &other), SQLITE_OK);
        check_equal(sqlite3_exec(other, puts[i][0], NULL, NULL, NULL),
                    SQLITE_OK);

        check_equal(file_start(1), NGX_ERROR);

        if (!check(strstr(file.error, "not the tables of this module")
                   != NULL))
        {
            unit_note("%s", puts[i][0]);
        }

        check_equal(sqlite3_exec(other, puts[i][1], NULL, NULL, NULL),
                    SQLITE_OK);
        check_equal(sqlite3_close(other), SQLITE_OK);

        if (puts[i][1] == NULL) {
            break;
        }

        file_open(NGX_IDEMPOTENCY_SYNC_BATCHED, 0);
        check_equal(file_has(1), 1);
    }
}


bare_case("gone, replaced, and back")
{
    char                   path[200], away[200];
    ngx_uint_t             i;

    static char  *suffix[] = { "", "-wal", "-shm" };

    for (i = 0; i < 3; i++) {
        begin(NGX_IDEMPOTENCY_SYNC_BATCHED, 0);
        check_equal(put(1, 100), NGX_IDEMPOTENCY_OK);

        snprintf(path, sizeof(path), "%s%s", file.path, suffix[i]);
        snprintf(away, sizeof(away), "%s.away", file.path);

        check_equal(rename(path, away), 0);

        check_equal(commit(2), NGX_ABORT);
        check(told("not there any more"));
        check_equal(sync_it(), i == 1 ? NGX_DECLINED : NGX_OK);
        check_equal(file_tidy(5), NGX_ERROR);
        check_equal(ngx_idempotency_db_tokens(file.db, NULL, NULL, 0),
                    NGX_ERROR);
        check_equal(file_has(1), -1);

        /* another one in its place */

        close(open(path, O_CREAT|O_RDWR, 0600));
        check_equal(commit(2), NGX_ABORT);
        check(told("replaced"));

        /* that very one */

        check_equal(rename(away, path), 0);
        check_equal(file_has(1), 1);
        check_equal(file_has(2), 0);
        check_equal(commit(2), NGX_OK);

        file_remove();
    }

    begin(NGX_IDEMPOTENCY_SYNC_BATCHED, 0);
    file_close();
    unlink(file.path);
    file_open(NGX_IDEMPOTENCY_SYNC_BATCHED, 0);
    check(file.db == NULL);
    check_equal(file_size(""), -1);
    check_equal(file_start(1), NGX_ERROR);
    check_equal(file_size(""), -1);
    file_remove();
}


unit_case("truncated")
{
    off_t       size;
    ngx_uint_t  i, k;

    for (i = 0; i < 100; i++) {
        check_equal(put(i, 5000), NGX_IDEMPOTENCY_OK);
    }

    file_close();
    size = file_size("");

    /* while it is open */

    file_open(NGX_IDEMPOTENCY_SYNC_BATCHED, 0);
    check_equal(truncate(file.path, 0), 0);
    check_equal(commit(1000), NGX_ERROR);
    check(told("emptied"));
    check(ngx_idempotency_db_state(file.db)->other);
    file_close();

    /* and at a start, to nothing or less */

    for (i = 0; i < 10; i++) {
        file_close();
        unlink(file.path);
        close(open(file.path, O_CREAT|O_RDWR, 0600));

        if (i == 0) {
            check_equal(file_start(1), NGX_ERROR);
            check(strstr(file.error, "not the tables of this module") != NULL);
            check_equal(file_size(""), 0);
        }

        check_equal(file_start(0), NGX_OK);
        file_open(NGX_IDEMPOTENCY_SYNC_BATCHED, 0);

        for (k = 0; file_size("") < size; k++) {
            check_equal(put(k, 60000), NGX_IDEMPOTENCY_OK);
            check(ngx_idempotency_db_checkpoint(file.db, 0) == NGX_OK);
        }

        file_close();

        check_equal(truncate(file.path, i ? file_size("") * i / 10 : 100), 0);
        check_equal(file_start(1), NGX_ERROR);
        check(strstr(file.error, "is damaged") != NULL
              || strstr(file.error, "not a file of this module") != NULL);
        file_open(NGX_IDEMPOTENCY_SYNC_BATCHED, 0);
        check(file.db == NULL);
    }
}


unit_case("another's file, another version")
{
    int       fd;
    sqlite3  *other;

    file_close();

    check_equal(sqlite3_open(file.path, &other), SQLITE_OK);
    check_equal(sqlite3_exec(other, "PRAGMA user_version = 9", NULL, NULL,
                             NULL), SQLITE_OK);
    check_equal(sqlite3_close(other), SQLITE_OK);

    check_equal(file_start(1), NGX_ERROR);
    check(strstr(file.error, "is of version 9, with") != NULL);

    /* some text */

    fd = open(file.path, O_TRUNC|O_RDWR);
    check(fd != -1);
    check_equal(ftruncate(fd, 100000), 0);
    check_equal(pwrite(fd, "hello", 5, 0), 5);
    close(fd);

    check_equal(file_start(1), NGX_ERROR);

    if (!check(strstr(file.error, "not a file of this module") != NULL)) {
        unit_note("%s", file.error);
    }

    check_equal(file_size(""), 100000);
}


/*
 * Each page in its turn, zeroed and filled at random: a start or an open that
 * is refused, an error, or the right answers; and what was there is absent
 * only if there was an error before.
 */

#define RECORDS  150

static ngx_uint_t
damaged(ngx_uint_t *answers)
{
    ngx_int_t   has;
    ngx_uint_t  i, silent;

    silent = 0;

    if (file_start(1) != NGX_OK) {
        return 0;
    }

    file_open(NGX_IDEMPOTENCY_SYNC_BATCHED, 0);

    if (file.db == NULL) {
        return 0;
    }

    for (i = 0; i < RECORDS; i++) {
        has = file_has(i);

        if (ngx_idempotency_db_state(file.db)->failed) {
            break;
        }

        *answers += (has == 1);
        silent += (has == 0);
    }

    file_close();

    return silent;
}


unit_case("each page damaged")
{
    int          fd;
    off_t        size, page;
    char        *copy, junk[4096];
    uint64_t     state;
    ngx_uint_t   i, kind, answers, silent, rounds;

    for (i = 0; i < RECORDS; i++) {
        check_equal(put(i, (i % 10 == 0) ? 20000 : i * 10),
                    NGX_IDEMPOTENCY_OK);
    }

    file_close();

    size = file_size("");
    copy = malloc(size);
    fd = open(file.path, O_RDWR);
    check_equal(pread(fd, copy, size, 0), size);

    state = unit_setting("UNIT_SEED", 1);
    answers = 0;
    silent = 0;
    rounds = 0;

    for (kind = 0; kind < 3; kind++) {
        for (page = 0; page < size; page += 4096) {

            /* all of it at random, all of it zero, or some bytes in it */

            ngx_memzero(junk, 4096);

            if (kind == 0) {
                for (i = 0; i < 4096; i++) {
                    junk[i] = (char) unit_random(&state);
                }
            }

            if (kind == 2) {
                ngx_memcpy(junk, copy + page, 4096);
                ngx_memset(junk + 512 + unit_below(&state, 3000), 0xa5, 64);
            }

            check_equal(pwrite(fd, junk, 4096, page), 4096);

            silent += damaged(&answers);
            rounds++;

            check_equal(ftruncate(fd, size), 0);
            check_equal(pwrite(fd, copy, size, 0), size);
        }
    }

    unit_note("%u pages, %u right answers, %u silent", (unsigned) rounds,
              (unsigned) answers, (unsigned) silent);
    check_equal(silent, 0);

    /* undamaged, all is there */

    answers = 0;
    check_equal(damaged(&answers), 0);
    check_equal(answers, RECORDS);

    close(fd);
    free(copy);
}


/* one bit of a response or of a column: that one is not told, all others are */

bare_case("one record damaged")
{
    sqlite3                 *other;
    ngx_idempotency_item_t   items[2];

    static char  *sql[] = {
        "UPDATE records SET response = zeroblob(100) WHERE id = 1",
        "UPDATE records SET response = NULL WHERE id = 1",
        "UPDATE records SET status = 200 WHERE id = 1",
        "UPDATE records SET ends = ends + 1 WHERE id = 1",
        "UPDATE records SET fence = 7 WHERE id = 1",
        "UPDATE records SET outcome = 2 WHERE id = 1",
        "UPDATE records SET parts = x'00' WHERE id = 1"
    };

    ngx_uint_t  i;

    for (i = 0; i < sizeof(sql) / sizeof(sql[0]); i++) {
        begin(NGX_IDEMPOTENCY_SYNC_BATCHED, 0);
        check_equal(put(1, 100), NGX_IDEMPOTENCY_OK);
        check_equal(put(2, 100), NGX_IDEMPOTENCY_OK);

        check_equal(sqlite3_open(file.path, &other), SQLITE_OK);
        check_equal(sqlite3_exec(other, sql[i], NULL, NULL, NULL), SQLITE_OK);
        check_equal(sqlite3_close(other), SQLITE_OK);

        file_item(&items[0], NGX_IDEMPOTENCY_ITEM_ASK, 1, 5);
        file_item(&items[1], NGX_IDEMPOTENCY_ITEM_ASK, 2, 5);
        check_equal(ngx_idempotency_db_commit(file.db, items, 2, file.now),
                    NGX_OK);
        check_equal(items[0].result, NGX_IDEMPOTENCY_UNAVAILABLE);
        check_equal(items[1].result, NGX_IDEMPOTENCY_BOUND);
        check(told("a record is damaged"));
        check(!ngx_idempotency_db_state(file.db)->failed);
        file_done(&items[1]);

        check_equal(put(1, 10), NGX_IDEMPOTENCY_UNAVAILABLE);

        /* by hand it goes */

        file_item(&items[0], NGX_IDEMPOTENCY_ITEM_FORGET, 1, 0);
        check_equal(file_do(&items[0]), NGX_IDEMPOTENCY_OK);
        check_equal(file_has(1), 0);
        check_equal(put(1, 10), NGX_IDEMPOTENCY_OK);

        file_remove();
    }
}


static void
change(char *sql)
{
    sqlite3  *other;

    check_equal(sqlite3_open(file.path, &other), SQLITE_OK);
    check_equal(sqlite3_exec(other, sql, NULL, NULL, NULL), SQLITE_OK);
    check_equal(sqlite3_close(other), SQLITE_OK);
}


static ngx_uint_t
highest(void)
{
    file_close();
    check_equal(file_start(1), NGX_OK);
    file_open(NGX_IDEMPOTENCY_SYNC_BATCHED, 0);

    return file.start.fence;
}


/* numbers that no nginx writes, with a sum that is right: a record of no use,
   and nothing that lasts */

bare_case("numbers that are none")
{
    ngx_uint_t              i, k;
    ngx_idempotency_item_t  item;

    for (i = 0; i < 5; i++) {
        for (k = 0; k < 2; k++) {
            begin(NGX_IDEMPOTENCY_SYNC_BATCHED, 0);

            if (k) {
                file_item(&item, NGX_IDEMPOTENCY_ITEM_ASK, 1, 1);
                item.instance = FILE_DEAD;

            } else {
                file_outcome(&item, 1, 1, DONE, 100);
            }

            switch (i) {

            case 0: item.fence = (uint64_t) 1 << 53; break;
            case 1: item.fence = -5; break;
            case 2: item.window = INT64_MAX - 1; break;
            case 3: item.recorded = -INT64_MAX; break;
            case 4: item.ends = INT64_MAX; break;
            }

            (void) file_do(&item);
            change("UPDATE meta SET fence = 9");

            file_item(&item, NGX_IDEMPOTENCY_ITEM_ASK, 1, 5);
            item.retry = 1;
            check_equal(file_do(&item), NGX_IDEMPOTENCY_UNAVAILABLE);
            check(told("a record is damaged"));
            check_equal(file_tidy(100), NGX_OK);
            check_equal(put(2, 10), NGX_IDEMPOTENCY_OK);
            check_equal(highest(), 9);

            file_remove();
        }
    }

    /* ... and a file whose own number is none is not started with */

    for (i = 0; i < 2; i++) {
        begin(NGX_IDEMPOTENCY_SYNC_BATCHED, 0);
        file_close();
        change(i ? "UPDATE meta SET fence = -1"
                 : "UPDATE meta SET fence = 9007199254740992");
        check_equal(file_start(1), NGX_ERROR);
        check(strstr(file.error, "is damaged") != NULL);
        file_remove();
    }
}


/* ... does not keep others from being tidied */

unit_case("a token that is a claim and a record")
{
    ngx_idempotency_item_t  item;

    check_equal(put(1, 100), NGX_IDEMPOTENCY_OK);
    check_equal(put(2, 100), NGX_IDEMPOTENCY_OK);

    file_item(&item, NGX_IDEMPOTENCY_ITEM_ASK, 3, 1);
    item.instance = FILE_DEAD;
    check_equal(file_do(&item), NGX_IDEMPOTENCY_CLAIMED);

    change("INSERT INTO records SELECT 99, token, fingerprint, parts, instance,"
           " fence, recorded, 1 << 50, span, sum, 3, 0, 0, NULL FROM claims");

    file.now += 2 * FILE_HOUR;
    check_equal(file_tidy(100), NGX_OK);
    file.now -= 2 * FILE_HOUR;

    check_equal(file_has(1), 0);
    check_equal(file_has(2), 0);
    check_equal(file_has(3), 1);
}
