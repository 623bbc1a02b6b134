
/*
 * The file of the simulation, the real one over SQLite, and its disk: it fails,
 * is full, loses what was not synced when the power goes (t/unit/disk.c), and
 * somebody puts an older copy in the file's place.
 */


#include "world.h"
#include "disk.h"


static void file_copied(char *from, char *to);


ngx_uint_t         exchanged;

/* batched: it was synced last then, with all that it had */

static ngx_msec_t  synced;
static ngx_uint_t  powered;
static char        image[256];

static char       *parts[] = { "", "-wal", "-shm" };


/* --- its power ------------------------------------------------------------ */


static void
power_on(void)
{
    snprintf(image, sizeof(image), "%s/image.%d", directory, (int) getpid());
    (void) mkdir(image, 0700);
    disk_begin(file.dir, image, 0, unit_random(&chance));
}


/* only if it may fail, as the record of all writes costs time */

void
storage_reset(void)
{
    failing = crammed = 0;
    powered = 0;
    synced = now;

    file_make(directory);
    file_copied("", ".older");

    powered = plan_has(P_POWER);

    if (powered) {
        power_on();
    }

    if (!set.strict) {
        message(M_SYNC, 1000, NULL);
    }
}


void
storage_done(void)
{
    ngx_uint_t  i;
    char        path[300];

    if (powered) {
        disk_end();
        (void) rmdir(image);
    }

    for (i = 0; i < 4; i++) {
        snprintf(path, sizeof(path), i < 3 ? "%s.away%s" : "%s.older",
                 file.path, i < 3 ? parts[i] : "");
        (void) unlink(path);
    }

    file_remove();
}


void
file_synced(void)
{
    char  error[NGX_IDEMPOTENCY_DB_ERROR];

    if (now < hung || now < failing || exchanged) {
        message(M_SYNC, 100, NULL);
        return;
    }

    if (ngx_idempotency_db_sync(file.path, error, sizeof(error)) != NGX_OK) {
        fault("the file can't be synced: %s", error);
    }

    synced = now;
    message(M_SYNC, 1000, NULL);
}


/* of all that the disk was given it has what was synced, and any part of the
   rest */

void
power_cut(void)
{
    char        from[300], to[300];
    ngx_uint_t  i;

    if (!powered || exchanged) {
        return;
    }

    tell("the power fails");
    disk_cut();

    if (!set.strict) {
        judge_forgets(synced, 0);
    }

    for (i = 0; i < NGINX * SIM_SLOTS; i++) {
        nginxes[i / SIM_SLOTS].procs[i % SIM_SLOTS].batch = NULL;
    }

    for (i = 0; i < NGINX; i++) {
        if (nginxes[i].up) {
            nginx_kill(&nginxes[i]);
            message(M_RESTART, 500 + below(500), NULL)->nginx = &nginxes[i];
        }
    }

    for (i = 0; i < 3; i++) {
        snprintf(from, sizeof(from), "%s/db%s", image, parts[i]);
        snprintf(to, sizeof(to), "%s%s", file.path, parts[i]);
        (void) unlink(to);
        (void) rename(from, to);
    }

    synced = now;
    power_on();
}


/* --- the file ------------------------------------------------------------- */


/* The one thread of a start ends a check that takes too long, by the machine's
   clock.  The world has neither */

int __wrap_pthread_create(pthread_t *tid, const pthread_attr_t *attr,
    void *(*run)(void *data), void *data);
int __wrap_pthread_join(pthread_t tid, void **result);


int
__wrap_pthread_create(pthread_t *tid, const pthread_attr_t *attr,
    void *(*run)(void *data), void *data)
{
    *tid = 0;

    return 0;
}


int
__wrap_pthread_join(pthread_t tid, void **result)
{
    return 0;
}


static ngx_uint_t
file_lives(void *data, uint64_t instance)
{
    ngx_uint_t  i;

    for (i = 0; i < NGINX; i++) {
        if (nginxes[i].up && nginxes[i].instance == instance) {
            return 1;
        }
    }

    return 0;
}


static void
file_opened(nginx_t *g)
{
    file.conf.alive = file_lives;
    file.conf.data = g;
    file.conf.mark = &g->mark;
    file_open(set.strict ? NGX_IDEMPOTENCY_SYNC_STRICT
                         : NGX_IDEMPOTENCY_SYNC_BATCHED, 0);

    g->db = file.db;
    file.db = NULL;
}


/* false: an older copy stands there, with which nobody starts */

ngx_uint_t
file_up(nginx_t *g)
{
    if (exchanged) {
        return 0;
    }

    file.start.boottime = now;

    if (file_start(1) != NGX_OK) {
        fault("the file can't be started: %s", file.error);
        return 0;
    }

    g->base = file.start.base;
    g->instance = file.start.instance;
    g->fence = file.start.fence;
    g->mark = file.start.mark;

    file_opened(g);

    if (g->db == NULL) {
        fault("the file can't be opened: %s", file.error);
        return 0;
    }

    return 1;
}


static void
file_items(proc_t *p, ngx_idempotency_batch_t *batch)
{
    void                    *data;
    ngx_uint_t               i;
    ngx_idempotency_item_t  *item;

    for (i = 0; i < batch->n; i++) {
        item = &batch->items[i];

        if (item->what == NGX_IDEMPOTENCY_ITEM_PUT && !item->full
            && (item->result == NGX_IDEMPOTENCY_OK
                || item->result == NGX_IDEMPOTENCY_STALE))
        {
            judge_heard(item->instance, item->token[0] - 'a', item->fence,
                        item->outcome != NGX_IDEMPOTENCY_PENDING,
                        item->result == NGX_IDEMPOTENCY_STALE);
        }

        if (item->what == NGX_IDEMPOTENCY_ITEM_ASK
            && item->result == NGX_IDEMPOTENCY_CLAIMED)
        {
            judge_granted(p->nginx->instance, item->token[0] - 'a',
                          item->fence);
        }

        /* the worker free()s it */

        if (item->what == NGX_IDEMPOTENCY_ITEM_ASK && item->response.data) {
            data = p->w->alloc(item->response.len);
            memcpy(data, item->response.data, item->response.len);
            free(item->response.data);
            item->response.data = data;
        }
    }
}


/* as one that has no room for a claim more */

static ngx_uint_t
file_crammed(ngx_idempotency_item_t *item)
{
    item->full = (now < crammed
                  && (item->what == NGX_IDEMPOTENCY_ITEM_ASK
                      || (item->what == NGX_IDEMPOTENCY_ITEM_PUT
                          && item->outcome == NGX_IDEMPOTENCY_PENDING)));

    if (item->full) {
        item->result = NGX_IDEMPOTENCY_UNAVAILABLE;
    }

    return item->full;
}


static ngx_int_t
file_commit(nginx_t *g, ngx_idempotency_batch_t *batch)
{
    int64_t     time;
    ngx_int_t   rc;
    ngx_uint_t  i;

    time = g->base + now;

    if (now >= crammed) {
        return ngx_idempotency_db_commit(g->db, batch->items, batch->n, time);
    }

    /* it is looked at, even if nothing is written */

    rc = ngx_idempotency_db_commit(g->db, batch->items, 0, time);

    for (i = 0; i < batch->n && rc == NGX_OK; i++) {
        if (!file_crammed(&batch->items[i])) {
            rc = ngx_idempotency_db_commit(g->db, &batch->items[i], 1, time);
        }
    }

    return rc;
}


/* another one is at its path, or it came back: it is opened anew */

static void
file_failed(nginx_t *g)
{
    const ngx_idempotency_db_state_t  *state;

    state = ngx_idempotency_db_state(g->db);

    if (!state->moved && !state->other) {
        fault("the file fails by itself: %s", state->error);
        return;
    }

    tell("nginx %c: the file %s", g->name, state->error);
    ngx_idempotency_db_close(g->db);
    g->db = NULL;
}


ngx_uint_t
host_commit(void *worker, ngx_idempotency_batch_t *batch)
{
    proc_t      *p = worker;
    nginx_t     *g;

    g = p->nginx;
    p->batch = NULL;
    batch->rc = NGX_ERROR;
    strcpy(batch->error, "simulated");

    if (p->w->current(batch) && (now >= failing || below(3) == 0)) {

        if (g->db == NULL) {
            file_opened(g);
        }

        if (g->db) {
            batch->rc = file_commit(g, batch);

            if (batch->rc != NGX_OK) {
                file_failed(g);
            }

        } else if (!exchanged) {
            fault("the file can't be opened: %s", file.error);
        }
    }

    if (batch->rc != NGX_OK) {
        tell("nginx %c, worker %u: the file does not take %u items", g->name,
             (unsigned) p->slot, (unsigned) batch->n);
        return 0;
    }

    file_items(p, batch);

    tell("nginx %c, worker %u: %u items are in the file", g->name,
         (unsigned) p->slot, (unsigned) batch->n);

    return 1;
}


/* --- an older copy -------------------------------------------------------- */


static void
file_moves(char *from, char *to)
{
    char        a[300], b[300];
    ngx_uint_t  i;

    for (i = 0; i < 3; i++) {
        snprintf(a, sizeof(a), "%s%s%s", file.path, from, parts[i]);
        snprintf(b, sizeof(b), "%s%s%s", file.path, to, parts[i]);
        (void) unlink(b);
        (void) rename(a, b);
    }
}


/* the file as it was when the world began */

static void
file_copied(char *from, char *to)
{
    int      in, out;
    char     a[300], b[300];
    u_char   buf[65536];
    ssize_t  n;

    snprintf(a, sizeof(a), "%s%s", file.path, from);
    snprintf(b, sizeof(b), "%s%s", file.path, to);

    in = open(a, O_RDONLY);
    out = open(b, O_WRONLY|O_CREAT|O_TRUNC, 0600);

    while ((n = read(in, buf, sizeof(buf))) > 0) {
        if (write(out, buf, n) != n) {
            exit(2);
        }
    }

    close(in);
    close(out);
}


void
file_exchanged(ngx_uint_t back)
{
    if (back && exchanged) {
        tell("the file is back");
        file_moves(".away", "");
        exchanged = 0;

    } else if (!back && !exchanged && !powered) {
        tell("an older copy is put in the place of the file");
        file_moves("", ".away");
        file_copied(".older", "");
        exchanged = 1;
    }
}
