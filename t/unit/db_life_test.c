
/*
 * The file that remembers, over time: quiet moments, starts, several at once,
 * deaths.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/file/ngx_idempotency_db.h"
#include "unit.h"
#include "file.h"


#define PENDING   NGX_IDEMPOTENCY_PENDING
#define DONE      NGX_IDEMPOTENCY_DONE
#define IN_DOUBT  NGX_IDEMPOTENCY_IN_DOUBT


/* another commits when this one has read the file's number, and not yet looked
   at what the zone has */

static ngx_idempotency_mark_t  *commits;


int __real_sqlite3_column_bytes(sqlite3_stmt *st, int column);
int __wrap_sqlite3_column_bytes(sqlite3_stmt *st, int column);


int
__wrap_sqlite3_column_bytes(sqlite3_stmt *st, int column)
{
    if (commits && column == 3) {
        commits->number++;
        commits = NULL;
    }

    return __real_sqlite3_column_bytes(st, column);
}


void
unit_teardown(void)
{
    file_remove();
}


void
unit_setup(void)
{
    file_make(NULL);
    file_open(NGX_IDEMPOTENCY_SYNC_BATCHED, 0);
    check(file.db != NULL);
}


static ngx_idempotency_result_e
claim(ngx_uint_t token, uint64_t instance)
{
    ngx_idempotency_item_t  item;

    file_item(&item, NGX_IDEMPOTENCY_ITEM_ASK, token, 10);
    item.instance = instance;

    return file_do(&item);
}


/* what there is: an outcome, or -1 */

static ngx_int_t
outcome(ngx_uint_t token)
{
    ngx_idempotency_item_t  item;

    (void) file_find(&item, token);
    file_done(&item);

    return (item.result == NGX_IDEMPOTENCY_BOUND) ? (ngx_int_t) item.outcome
                                                  : -1;
}


unit_case("quiet times")
{
    off_t                   most;
    ngx_uint_t              i, steps;
    ngx_idempotency_item_t  item;

    /* whose owner is gone is in doubt, however many live */

    for (i = 0; i < 30; i++) {
        check_equal(claim(i, i % 3 == 0 ? FILE_DEAD
                             : i % 3 == 1 ? FILE_LIVING
                             : file.start.instance),
                    NGX_IDEMPOTENCY_CLAIMED);
    }

    steps = 1;

    while (file_tidy(7) == NGX_AGAIN) {
        steps++;
    }

    check_equal(steps, 5);

    for (i = 0; i < 30; i++) {
        check_equal(outcome(i), i % 3 ? PENDING : IN_DOUBT);
    }

    /* the log goes into the file, and its space is used again */

    for (i = 0; i < 400; i++) {
        check_equal(file_do(file_outcome(&item, 100 + i, 1, DONE, 60000)),
                    NGX_IDEMPOTENCY_OK);
        check(file_tidy(10) != NGX_ERROR);
    }

    check(file_size("-wal") < 17 * 1024 * 1024);
    file_restart();
    most = file_size("");
    check(most > 400 * 60000 && most < 400 * 66000);

    /* without a quiet moment it has a limit as well */

    for (i = 0; i < 1300; i++) {
        check_equal(file_do(file_outcome(&item, 1000 + i, 1, DONE, 60000)),
                    NGX_IDEMPOTENCY_OK);

        if (file.log >= NGX_IDEMPOTENCY_DB_LONG) {
            check(file_size("-wal") > 62 * 1024 * 1024);
            file_restart();
            check(file_size("-wal") < 17 * 1024 * 1024);
            break;
        }
    }

    check(i < 1300);
}


/* with windows of a day, a file is never twice as large as what it has to have */

unit_case("a week")
{
    off_t                   live, size;
    ngx_uint_t              hour, i, n;
    ngx_idempotency_item_t  item;

    n = 0;

    for (hour = 0; hour < 7 * 24; hour++) {

        for (i = 0; i < 60; i++) {
            file_outcome(&item, n, 1, DONE, 500 + n % 4000);
            item.ends = file.now + 24 * FILE_HOUR;
            check_equal(file_do(&item), NGX_IDEMPOTENCY_OK);
            n++;

            file.now += FILE_HOUR / 60;

            if (i % 6 == 0) {
                check(file_tidy(256)
                      != NGX_ERROR);
            }
        }

        if (hour >= 24) {
            live = (off_t) 24 * 60 * (2500 + 200);
            size = file_size("") + file_size("-wal");

            if (!check(size < 2 * live + 2000 * 4096)) {
                unit_note("hour %lu: %ld bytes for %ld", hour, (long) size,
                          (long) live);
                break;
            }

            check(file_size("") < 2 * live);
        }
    }

    /* those of the last day are there, and no others */

    check_equal(file_has(n - 1), 1);
    check_equal(file_has(n - 23 * 60), 1);
    check_equal(file_has(n - 25 * 60), 0);
}


unit_case("instances, and the file's time")
{
    ngx_idempotency_mark_t  mark;
    ngx_idempotency_item_t  item;
    int64_t   now, base;
    uint64_t  instance;

    file_close();

    /* a number tells its file, and none is given twice */

    check_equal(file.start.instance >> 20, (int64_t) 1700000000 * 1000);
    instance = file.start.instance;
    base = file.start.base;
    now = file.now;

    check_equal(file_start(1), NGX_OK);
    check_equal(file.start.instance, instance + 1);

    /* within a boot the clock is not asked */

    file.start.wall += FILE_HOUR;
    file.start.boottime += 1000;
    check_equal(file_start(1), NGX_OK);
    check_equal(file.start.base, base);
    check_equal(file.start.latest, now + 1000);

    /* with another one it is, but the time does not go back */

    strcpy(file.start.boot, "two");
    file.start.boottime = 10;
    check_equal(file_start(1), NGX_OK);
    check_equal(file.start.base + 10, now + FILE_HOUR);

    strcpy(file.start.boot, "three");
    file.start.wall -= FILE_HOUR * 24;
    file.start.boottime = 20;
    check_equal(file_start(1), NGX_OK);
    check_equal(file.start.base + 20, now + FILE_HOUR);

    /* a boot without a name is another one each time */

    file.start.boot[0] = '\0';
    file.start.wall = now + FILE_HOUR * 3;
    check_equal(file_start(1), NGX_OK);
    check_equal(file.start.base + 20, now + FILE_HOUR * 3);
    file.start.wall = now + FILE_HOUR * 4;
    check_equal(file_start(1), NGX_OK);
    check_equal(file.start.base + 20, now + FILE_HOUR * 4);

    /* the time of what was written counts, too */

    file_open(NGX_IDEMPOTENCY_SYNC_BATCHED, 0);
    file.now = now + FILE_HOUR * 100;
    check_equal(file_has(1), 0);
    file_close();
    check_equal(file_start(1), NGX_OK);
    check_equal(file.start.latest, now + FILE_HOUR * 100);
    check_equal(file.start.base + 20, now + FILE_HOUR * 100);

    /* one that is not what the zone has seen: another, or an older one */

    mark = file.start.mark;
    file.conf.mark = &mark;
    file_open(NGX_IDEMPOTENCY_SYNC_BATCHED, 0);
    check(file.db != NULL);
    check_equal(claim(5000, file.start.instance), NGX_IDEMPOTENCY_CLAIMED);
    check_equal(mark.number, file.start.mark.number + 1);
    check_equal(claim(5000, file.start.instance), NGX_IDEMPOTENCY_CLAIMED);
    check_equal(mark.number, file.start.mark.number + 2);
    check_equal(file_has(5000), 1);
    check_equal(mark.number, file.start.mark.number + 2);

    mark.number += 7;
    file_item(&item, NGX_IDEMPOTENCY_ITEM_ASK, 5001, 1);
    check_equal(ngx_idempotency_db_commit(file.db, &item, 1, file.now),
                NGX_ERROR);
    check(strstr(ngx_idempotency_db_state(file.db)->error,
                 "is older than it was: 7 of the last commits") != NULL);
    check(ngx_idempotency_db_state(file.db)->other);
    file_close();

    mark = file.start.mark;
    mark.identity[3]++;
    file_open(NGX_IDEMPOTENCY_SYNC_BATCHED, 0);
    check_equal(ngx_idempotency_db_commit(file.db, &item, 1, file.now),
                NGX_ERROR);
    check(strstr(ngx_idempotency_db_state(file.db)->error, "is another file")
          != NULL);
}


/* two processes that want the same: each token is one's */

#define RACE  400

static ngx_uint_t
all_alive(void *data, uint64_t instance)
{
    return 1;
}


static void
race(void *data)
{
    ngx_int_t               rc;
    ngx_uint_t              i, k, *claimed;
    ngx_idempotency_item_t  items[4];

    claimed = data;

    file.conf.alive = all_alive;
    file_open(NGX_IDEMPOTENCY_SYNC_BATCHED, 0);

    for (i = 0; i < RACE; i += 4) {

        for (k = 0; k < 4; k++) {
            file_item(&items[k], NGX_IDEMPOTENCY_ITEM_ASK, i + k, 10);
            items[k].instance = ngx_pid;
        }

        do {
            rc = ngx_idempotency_db_commit(file.db, items, 4, file.now);
        } while (rc == NGX_ERROR && !ngx_idempotency_db_state(file.db)->failed);

        check_equal(rc, NGX_OK);

        for (k = 0; k < 4; k++) {
            if (items[k].result == NGX_IDEMPOTENCY_CLAIMED) {
                ngx_atomic_fetch_add(&claimed[i + k], 1);
            }
        }
    }

    file_close();
}


unit_case("two processes, one file")
{
    ngx_uint_t   i, wrong, *claimed;
    ngx_pid_t    pid[2];

    claimed = unit_shared(RACE * sizeof(ngx_uint_t));

    file_close();

    pid[0] = unit_fork(race, claimed);
    pid[1] = unit_fork(race, claimed);
    unit_wait(pid[0]);
    unit_wait(pid[1]);

    for (i = 0, wrong = 0; i < RACE; i++) {
        wrong += (claimed[i] != 1);
    }

    check_equal(wrong, 0);

    unit_unshared(claimed, RACE * sizeof(ngx_uint_t));
}


/* what was told to be committed is there, however the process died */

static void
claims_until_killed(void *data)
{
    ngx_atomic_t           *done;
    ngx_uint_t              i;
    ngx_idempotency_item_t  item;

    done = data;
    file_open(NGX_IDEMPOTENCY_SYNC_BATCHED, 0);

    for (i = 0; i < 100000; i++) {
        file_do(file_outcome(&item, i, 1, DONE, 500));

        if (i % 50 == 49) {
            file_tidy(10);
        }

        *done = i + 1;
    }
}


unit_case("killed at any time")
{
    int            status;
    ngx_pid_t      pid;
    ngx_uint_t     i, lost, round, from;
    ngx_atomic_t  *done;

    file_close();

    done = unit_shared(sizeof(ngx_atomic_t));

    for (round = 0; round < 10; round++) {
        *done = 0;
        pid = unit_fork(claims_until_killed, (void *) done);
        from = 20 + round * 57;

        while (*done < from) {
            usleep(100);
        }

        kill(pid, SIGKILL);
        check_equal(waitpid(pid, &status, 0), pid);

        check_equal(file_start(1), NGX_OK);
        file_open(NGX_IDEMPOTENCY_SYNC_BATCHED, 0);

        for (i = 0, lost = 0; i < *done; i++) {
            lost += (file_has(i) != 1);
        }

        check_equal(lost, 0);
        file_close();
    }

    unit_unshared((void *) done, sizeof(ngx_atomic_t));
}


/* who opens it reads it without a lock, so what he reads may be old by then */

unit_case("opened beside a commit")
{
    ngx_idempotency_mark_t  mark;

    file_close();

    mark = file.start.mark;
    file.conf.mark = &mark;
    commits = &mark;

    file_open(NGX_IDEMPOTENCY_SYNC_BATCHED, 0);

    check(commits == NULL);
    check(file.db && !ngx_idempotency_db_state(file.db)->other);
    mark.number--;
    check_equal(claim(1, file.start.instance), NGX_IDEMPOTENCY_CLAIMED);

    file.conf.mark = NULL;
}
