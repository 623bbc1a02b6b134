
/*
 * The file that remembers, when the power is cut: a machine lives from one cut
 * to the next one, each time with what its disk has then.  It starts as nginx
 * does, compares what the file knows with what was promised, and goes on.
 *
 * Each commit has a number; after a cut the file must be what it was behind
 * one of them, and not behind an earlier one than the last that was promised:
 * in a strict file what was answered, in a batched one what a sync came after,
 * in any what was there at a clean stop.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <dirent.h>

#include "store/file/ngx_idempotency_db.h"
#include "store/file/ngx_idempotency_start.h"
#include "unit.h"
#include "file.h"
#include "disk.h"


#define ASK       NGX_IDEMPOTENCY_ITEM_ASK
#define PUT       NGX_IDEMPOTENCY_ITEM_PUT
#define RELEASE   NGX_IDEMPOTENCY_ITEM_RELEASE
#define FORGET    NGX_IDEMPOTENCY_ITEM_FORGET

#define PENDING   NGX_IDEMPOTENCY_PENDING
#define DONE      NGX_IDEMPOTENCY_DONE
#define NOT_KEPT  NGX_IDEMPOTENCY_NOT_KEPT
#define IN_DOUBT  NGX_IDEMPOTENCY_IN_DOUBT
#define ABSENT    -1

#define SMALL     64
#define LARGE     36
#define TOKENS    (SMALL + LARGE)
#define BRIEF     1000
#define BATCH     12
#define STEPS     60
#define STATES    256

/* so that nothing ends that is not to */

#define AGES      (FILE_HOUR * 24 * 365)


/* of a token, since a commit */

typedef struct {
    ngx_uint_t    commit;
    ngx_int_t     outcome;
    uint64_t      instance;
    uint64_t      fence;
    size_t        size;
    /* it was in doubt before its claim, and is so again by the release */
    ngx_uint_t    taken;
} state_t;


typedef struct {
    ngx_uint_t    n;
    state_t       states[STATES];
} history_t;


/* what outlives a machine */

typedef struct {
    history_t     tokens[TOKENS];

    /* of commits: the last that was tried, that was answered, and that must be
       there whatever happens */
    ngx_uint_t    tried;
    ngx_uint_t    answered;
    ngx_uint_t    promised;
    /* what the zone knows of the file */
    ngx_idempotency_mark_t  mark;

    uint64_t      instance;
    uint64_t      fence;
    int64_t       now;

    ngx_uint_t    broken;
    ngx_uint_t    refused;
    ngx_uint_t    wrong;
    ngx_uint_t    lost;
    ngx_uint_t    twice;
    /* commits that were lost, none of which was promised */
    ngx_uint_t    forgotten;
    ngx_uint_t    stops;
} machine_t;


static machine_t               *machine;
static char                     dir[64];
static char                     live[96];
static char                     image[96];
static uint64_t                 seed;
static ngx_idempotency_sync_e   mode;
static char                    *careless;

static ngx_idempotency_start_t  start;
static ngx_idempotency_db_t    *tend;


int __real_sqlite3_exec(sqlite3 *db, const char *sql,
    int (*callback)(void *, int, char **, char **), void *data, char **error);
int __wrap_sqlite3_exec(sqlite3 *db, const char *sql,
    int (*callback)(void *, int, char **, char **), void *data, char **error);


/* what a file would be like that is synced less */

int
__wrap_sqlite3_exec(sqlite3 *db, const char *sql,
    int (*callback)(void *, int, char **, char **), void *data, char **error)
{
    if (careless && ngx_strncmp(sql, "PRAGMA synchronous", 18) == 0) {
        sql = careless;
    }

    return __real_sqlite3_exec(db, sql, callback, data, error);
}


static void
die(ngx_uint_t *counter, char *why)
{
    if (disk_is_cut()) {
        _exit(0);
    }

    if (unit_setting("UNIT_POWER_TELL", 0)) {
        unit_note("%s", why);
    }

    (*counter)++;
    machine->broken = 1;
    _exit(0);
}


static void
must(ngx_uint_t ok, char *why)
{
    if (!ok) {
        die(&machine->wrong, why);
    }
}


static state_t *
last_of(ngx_uint_t token)
{
    history_t  *h;

    h = &machine->tokens[token];

    return &h->states[h->n - 1];
}


/* it is so since the commit that is tried next, if that comes to be */

static state_t *
becomes(ngx_uint_t token, ngx_int_t outcome, uint64_t fence, size_t size)
{
    state_t    *state;
    history_t  *h;

    h = &machine->tokens[token];
    must(h->n < STATES, "too many states");

    state = &h->states[h->n];

    state->commit = machine->tried + 1;
    state->outcome = outcome;
    state->instance = file.start.instance;
    state->fence = fence;
    state->size = size;
    state->taken = 0;

    h->n++;

    return state;
}


/* whose owner is gone is in doubt as soon as anybody looks */

static ngx_uint_t
equal(state_t *state, state_t *found)
{
    if (state->outcome != found->outcome
        && !(state->outcome == PENDING && found->outcome == IN_DOUBT
             && state->instance != file.start.instance))
    {
        return 0;
    }

    return state->outcome == ABSENT
           || (state->instance == found->instance
               && state->fence == found->fence
               && state->size == found->size);
}


static void
look(state_t *found)
{
    ngx_uint_t              i, k;
    ngx_idempotency_item_t  item;

    for (i = 0; i < TOKENS; i++) {
        if (file_find(&item, i) == NGX_IDEMPOTENCY_UNAVAILABLE) {
            die(&machine->refused,
                (char *) ngx_idempotency_db_state(file.db)->error);
        }

        found[i].outcome = (item.result == NGX_IDEMPOTENCY_BOUND)
                           ? (ngx_int_t) item.outcome : ABSENT;
        found[i].instance = item.instance;
        found[i].fence = item.fence;
        found[i].size = item.response.len;

        for (k = 0; k < item.response.len; k++) {
            must(item.response.data[k]
                 == (u_char) (i * 31 + k * 7 + k / 251), "another response");
        }

        must(item.result == NGX_IDEMPOTENCY_ABSENT
             || item.fingerprint[0] == 'f', "another fingerprint");

        file_done(&item);
    }
}


/* the last commit behind which all was as it is found; -1: none */

static ngx_int_t
commit_of(state_t *found)
{
    ngx_int_t   commit;
    history_t  *h;
    ngx_uint_t  i, k;

    for (commit = machine->tried; commit >= 0; commit--) {

        for (i = 0; i < TOKENS; i++) {
            h = &machine->tokens[i];

            for (k = h->n; h->states[k - 1].commit > (ngx_uint_t) commit; k--) {
                /* void */
            }

            if (!equal(&h->states[k - 1], &found[i])) {
                break;
            }
        }

        if (i == TOKENS) {
            return commit;
        }
    }

    return -1;
}


/* what is found is on disk: from now on it is what was promised */

static void
compare(void)
{
    ngx_int_t   commit;
    history_t  *h;
    state_t     found[TOKENS];
    ngx_uint_t  i, k;

    look(found);

    commit = commit_of(found);

    if (commit == -1) {
        die(&machine->wrong, "what no commit has left");
    }

    if ((ngx_uint_t) commit < machine->promised) {
        die(&machine->lost, "less than was promised");
    }

    machine->forgotten += (ngx_uint_t) commit < machine->answered
                          ? machine->answered - commit : 0;

    for (i = 0; i < TOKENS; i++) {
        h = &machine->tokens[i];

        for (k = h->n; h->states[k - 1].commit > (ngx_uint_t) commit; k--) {
            /* void */
        }

        h->states[0] = h->states[k - 1];
        h->states[0].commit = 0;
        h->n = 1;
    }

    machine->tried = 0;
    machine->answered = 0;
    machine->promised = 0;
}


/* nobody gets what somebody has, or has had when the power went */

static void
ask(void)
{
    state_t                 *state;
    ngx_uint_t               i;
    ngx_idempotency_item_t   item;

    for (i = 0; i < TOKENS; i++) {
        state = last_of(i);

        if (state->outcome == ABSENT || unit_below(&seed, 3)) {
            continue;
        }

        file_item(&item, ASK, i, ++machine->fence);
        must(ngx_idempotency_db_commit(file.db, &item, 1, file.now) == NGX_OK,
             (char *) ngx_idempotency_db_state(file.db)->error);

        if (item.result == NGX_IDEMPOTENCY_CLAIMED) {
            die(&machine->twice, "claimed twice");
        }

        must(item.result == NGX_IDEMPOTENCY_BOUND, "neither bound nor free");
        must((ngx_int_t) item.outcome == (state->outcome == PENDING
                                          ? (ngx_int_t) IN_DOUBT
                                          : state->outcome),
             "another outcome");
        must(item.response.len == state->size, "a response of another size");

        file_done(&item);
    }
}


static void
open_both(void)
{
    file_open(mode, 0);

    if (file.db == NULL) {
        die(&machine->refused, file.error);
    }

    tend = ngx_idempotency_db_open(&file.conf, file.error,
                                   sizeof(file.error));

    if (tend == NULL) {
        die(&machine->refused, file.error);
    }
}


/* the last one brings the log into the file, and that to the disk */

static void
close_both(void)
{
    ngx_idempotency_db_close(tend);
    file_close();

    machine->promised = machine->answered;
    machine->stops++;
}


static void
power_on(void)
{
    struct timespec  ts;

    static char  path[128];

    snprintf(path, sizeof(path), "%s/db", live);

    start.path.data = (u_char *) path;
    start.path.len = strlen(path);
    start.user = geteuid();
    start.group = getegid();
    start.username = "root";
    start.must = 1;

    unit_expect("the state file");

    if (ngx_idempotency_start(&start, unit_pool, unit_cycle.log) != NGX_OK) {
        die(&machine->refused, "a start is refused");
    }

    /* an instance is nobody else's, ever */

    must(start.instance > machine->instance, "an instance a second time");
    machine->instance = start.instance;

    ngx_memzero(&file, sizeof(file_t));
    strcpy(file.path, path);

    file.start.instance = start.instance;
    machine->mark = start.mark;
    file.conf.mark = &machine->mark;
    clock_gettime(CLOCK_BOOTTIME, &ts);

    file.now = start.base + (int64_t) ts.tv_sec * 1000;
    file.now = ngx_max(file.now, machine->now);
    machine->fence = ngx_max(machine->fence, start.fence);

    open_both();
}


/* one item, about what its token is, and what it will be */

static ngx_idempotency_result_e
some_item(ngx_idempotency_item_t *item, ngx_uint_t token)
{
    size_t      size;
    uint64_t    fence;
    state_t    *state;
    ngx_uint_t  own, what;

    state = last_of(token);
    fence = ++machine->fence;
    size = unit_below(&seed, 3) ? unit_below(&seed, 3000)
                                : unit_below(&seed, 20000);
    own = (state->instance == file.start.instance);
    what = unit_below(&seed, 8);

    switch (state->outcome) {

    case ABSENT:
        if (what < 6) {
            file_item(item, ASK, token, fence);
            (void) becomes(token, PENDING, fence, 0);
            return NGX_IDEMPOTENCY_CLAIMED;
        }

        file_outcome(item, token, fence, DONE, size);
        (void) becomes(token, DONE, fence, size);
        return NGX_IDEMPOTENCY_OK;

    case DONE:
    case NOT_KEPT:
        if (what < 3) {
            file_item(item, FORGET, token, 0);
            (void) becomes(token, ABSENT, 0, 0);
            return NGX_IDEMPOTENCY_OK;
        }

        file_item(item, ASK, token, fence);
        return NGX_IDEMPOTENCY_BOUND;
    }

    /* pending, or in doubt */

    if (!own) {
        file_item(item, ASK, token, fence);
        item->retry = 1;
        becomes(token, PENDING, fence, 0)->taken = 1;
        return NGX_IDEMPOTENCY_CLAIMED;
    }

    switch (what) {

    case 0:
        file_item(item, RELEASE, token, state->fence);

        if (state->taken && state->outcome == IN_DOUBT) {
            return NGX_IDEMPOTENCY_ABSENT;
        }

        if (state->taken) {
            becomes(token, IN_DOUBT, state->fence, 0)->taken = 1;

        } else {
            (void) becomes(token, ABSENT, 0, 0);
        }

        return NGX_IDEMPOTENCY_OK;

    case 1:
        file_outcome(item, token, state->fence, NOT_KEPT, 0);
        (void) becomes(token, NOT_KEPT, state->fence, 0);
        return NGX_IDEMPOTENCY_OK;

    case 2:
        file_outcome(item, token, state->fence, IN_DOUBT, size);
        (void) becomes(token, IN_DOUBT, state->fence, size);
        return NGX_IDEMPOTENCY_OK;

    default:
        file_outcome(item, token, state->fence, DONE, size);
        (void) becomes(token, DONE, state->fence, size);
        return NGX_IDEMPOTENCY_OK;
    }
}


static void
commit(ngx_idempotency_item_t *items, ngx_idempotency_result_e *results,
    ngx_uint_t n)
{
    ngx_uint_t  i;

    for (i = 0; i < n; i++) {
        items[i].ends = items[i].ends == file.now ? file.now
                                                  : file.now + AGES;
    }

    machine->tried++;

    if (ngx_idempotency_db_commit(file.db, items, n, file.now) != NGX_OK) {
        die(&machine->refused,
            (char *) ngx_idempotency_db_state(file.db)->error);
    }

    machine->answered = machine->tried;

    if (mode == NGX_IDEMPOTENCY_SYNC_STRICT) {
        machine->promised = machine->answered;
        must(ngx_idempotency_witness_write(file.path, &machine->mark, 0)
             == NGX_OK, "no witness");
    }

    for (i = 0; i < n; i++) {
        must(items[i].result == results[i], "another answer");
        file_done(&items[i]);
    }
}


static void
some_items(void)
{
    ngx_uint_t                i, n, token;
    ngx_idempotency_item_t    items[BATCH + 1];
    ngx_idempotency_result_e  results[BATCH + 1];

    n = 1 + unit_below(&seed, unit_below(&seed, 2) ? 2 : BATCH);
    token = unit_below(&seed, SMALL);

    for (i = 0; i < n; i++) {
        token = (token + 1 + unit_below(&seed, SMALL / BATCH - 1)) % SMALL;
        results[i] = some_item(&items[i], token);
    }

    /* one that has ended when it is written, and goes with one of the next */

    file_outcome(&items[n], BRIEF + unit_below(&seed, BRIEF),
                 ++machine->fence, DONE, unit_below(&seed, 5000));
    items[n].ends = file.now;
    results[n++] = NGX_IDEMPOTENCY_OK;

    commit(items, results, n);
}


/* comes and goes, so that the file becomes larger, and smaller again */

static void
large_items(void)
{
    ngx_uint_t                i, k, gone;
    ngx_idempotency_item_t    items[BATCH];
    ngx_idempotency_result_e  results[BATCH];

    gone = (last_of(SMALL)->outcome == ABSENT);

    for (i = SMALL; i < TOKENS; i += BATCH) {

        for (k = 0; k < BATCH; k++) {
            if ((last_of(i + k)->outcome == ABSENT) != gone) {
                break;
            }

            results[k] = NGX_IDEMPOTENCY_OK;

            if (gone) {
                file_outcome(&items[k], i + k, ++machine->fence, DONE, 60000);
                (void) becomes(i + k, DONE, machine->fence, 60000);

            } else {
                file_item(&items[k], FORGET, i + k, 0);
                (void) becomes(i + k, ABSENT, 0, 0);
            }
        }

        commit(items, results, k);
    }
}


/* what is done each second, where it is */

static void
sync_batch(void)
{
    char                    error[NGX_IDEMPOTENCY_DB_ERROR];
    ngx_idempotency_mark_t  mark;

    if (mode != NGX_IDEMPOTENCY_SYNC_BATCHED) {
        return;
    }

    mark = machine->mark;

    if (ngx_idempotency_db_sync(file.path, error, sizeof(error)) != NGX_OK) {
        die(&machine->refused, error);
    }

    must(ngx_idempotency_witness_write(file.path, &mark, 0) == NGX_OK,
         "no witness");
    machine->promised = machine->answered;
}


static void
tidy(ngx_uint_t whole)
{
    ngx_int_t  rc;

    do {
        rc = ngx_idempotency_db_tidy(tend, file.now,
                                     1 + unit_below(&seed, 300));

        if (rc == NGX_ERROR) {
            die(&machine->refused,
                (char *) ngx_idempotency_db_state(tend)->error);
        }

    } while (whole && rc == NGX_AGAIN);
}


static void
step(void)
{
    ngx_uint_t             what;
    ngx_idempotency_db_t  *db;

    what = unit_below(&seed, 100);

    if (what < 65) {
        some_items();

    } else if (what < 75) {
        sync_batch();

    } else if (what < 85) {
        tidy(unit_below(&seed, 2));

    } else if (what < 94) {
        db = unit_below(&seed, 2) ? tend : file.db;
        must(ngx_idempotency_db_checkpoint(db, 0) == NGX_OK, "no checkpoint");
        must(unit_below(&seed, 2)
             || ngx_idempotency_db_checkpoint(db, file.now) == NGX_OK,
             "the log does not begin anew");

    } else if (what < 97) {
        large_items();

    } else {
        close_both();
        open_both();
    }

    file.now += 1 + unit_below(&seed, 1500);
    machine->now = file.now;
}


static void
life(void *data)
{
    ngx_uint_t  i, events;

    static ngx_uint_t  most[] = { 60, 400, 1500, 1500 };

    events = 1 + unit_below(&seed, most[unit_below(&seed, 4)]);

    disk_begin(live, image, events, unit_random(&seed));

    power_on();
    compare();
    ask();

    for (i = 0; i < STEPS; i++) {
        step();
    }

    close_both();
    disk_cut();
}


static void
empty(char *name)
{
    DIR            *d;
    char            path[512];
    struct dirent  *e;

    d = opendir(name);

    while (d && (e = readdir(d)) != NULL) {
        snprintf(path, sizeof(path), "%s/%s", name, e->d_name);

        if (e->d_name[0] != '.') {
            check_equal(unlink(path), 0);
        }
    }

    closedir(d);
}


/* a machine that was never switched on */

static void
new_machine(void)
{
    ngx_uint_t  i;

    empty(live);

    for (i = 0; i < TOKENS; i++) {
        machine->tokens[i].n = 1;
        machine->tokens[i].states[0].commit = 0;
        machine->tokens[i].states[0].outcome = ABSENT;
    }

    machine->tried = 0;
    machine->answered = 0;
    machine->promised = 0;
    machine->instance = 0;
    machine->fence = 0;
    machine->now = 0;
    machine->broken = 0;
}


static void
lives(ngx_idempotency_sync_e sync, ngx_uint_t n)
{
    char        name[96];
    ngx_uint_t  i;

    mode = sync;

    strcpy(dir, "/tmp/power.XXXXXX");
    check(mkdtemp(dir) != NULL);
    snprintf(live, sizeof(live), "%s/a", dir);
    snprintf(image, sizeof(image), "%s/b", dir);
    check_equal(mkdir(live, 0700), 0);
    check_equal(mkdir(image, 0700), 0);

    machine = unit_shared(sizeof(machine_t));
    seed = unit_setting("UNIT_SEED", 1);

    new_machine();

    for (i = 0; i < n; i++) {

        seed += 1000003;

        if (!unit_wait(unit_fork(life, NULL))) {
            unit_note("life %u of the seed %llu", (unsigned) i,
                      (unsigned long long) unit_setting("UNIT_SEED", 1));
            machine->broken = 1;
        }

        if (machine->broken) {
            empty(image);
            new_machine();
            continue;
        }

        check(disk_is_cut());

        empty(live);
        strcpy(name, live);
        strcpy(live, image);
        strcpy(image, name);
    }

    unit_note("%u images: %u refused, %u wrong, %u lost, %u claimed twice; "
              "%u commits that were not promised were forgotten, %u stops",
              (unsigned) n, (unsigned) machine->refused,
              (unsigned) machine->wrong, (unsigned) machine->lost,
              (unsigned) machine->twice, (unsigned) machine->forgotten,
              (unsigned) machine->stops);

    empty(live);
    empty(image);
    check_equal(rmdir(live), 0);
    check_equal(rmdir(image), 0);
    check_equal(rmdir(dir), 0);
}


static void
done(void)
{
    unit_unshared(machine, sizeof(machine_t));
}


/* each mode: nothing that was promised is lost, and nothing else is there */

static void
holds(ngx_idempotency_sync_e sync)
{
    lives(sync, unit_setting("UNIT_IMAGES", 60));

    check_equal(machine->refused, 0);
    check_equal(machine->wrong, 0);
    check_equal(machine->lost, 0);
    check_equal(machine->twice, 0);

    /* in all but one there is something to forget */

    check_equal(machine->forgotten > 0, sync != NGX_IDEMPOTENCY_SYNC_STRICT);

    done();
}


unit_case("strict: what was answered is there")
{
    holds(NGX_IDEMPOTENCY_SYNC_STRICT);
}


unit_case("batched: what was there at the last sync is there")
{
    holds(NGX_IDEMPOTENCY_SYNC_BATCHED);
}


/* what this test is worth: a disk that lies is found out in any mode */

unit_case("a disk that lies is found out")
{
    ngx_uint_t  i;

    static ngx_idempotency_sync_e  syncs[] = {
        NGX_IDEMPOTENCY_SYNC_STRICT, NGX_IDEMPOTENCY_SYNC_BATCHED
    };

    disk_lies(1);

    for (i = 0; i < 2; i++) {
        lives(syncs[i], 30);
        check(machine->refused + machine->wrong + machine->lost > 0);
        done();
    }

    disk_lies(0);
}


/* ... and so is a strict file that is synced as others are, and one that never
   is */

unit_case("... and a file that is synced too seldom")
{
    careless = "PRAGMA synchronous = NORMAL";

    lives(NGX_IDEMPOTENCY_SYNC_STRICT, 30);
    check(machine->lost + machine->refused > 0);
    check_equal(machine->wrong, 0);
    done();

    careless = "PRAGMA synchronous = OFF";

    lives(NGX_IDEMPOTENCY_SYNC_BATCHED, 40);
    check(machine->refused + machine->wrong > 0);
    done();

    careless = NULL;
}


int
main(void)
{
    disk_init();

    return unit_run();
}
