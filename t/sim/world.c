
/*
 * The simulation's world: one thread, no clock, no network but its own.  Two
 * nginx of two workers each, clients, an upstream that counts executions, and
 * nothing, a file or a Redis behind.  A seed makes a plan (who comes when, what
 * goes wrong when), and decides what happens next wherever that is open.
 *
 * What is judged, with each thing that happens: nobody executes what was
 * executed, but where a table of docs/guarantees.md says so (see excuse());
 * a replay is what the first client got; no repeat moves a window; fences rise;
 * who waits has an end once trouble stops; and in the end nothing is left.
 */


#include "sim.h"
#include "unit.h"
#include "file.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <time.h>


#define NGINX     2
#define TOKENS    4
#define PLAN      400
#define REQUESTS  1000
#define EXECS     1000
#define MESSAGES  4096
#define STORY     (256 * 1024)

/* milliseconds: what is asked for is asked again, and who is told waits */

#define AGAIN     500
#define PATIENCE  5000


typedef struct proc_s   proc_t;
typedef struct nginx_s  nginx_t;
typedef struct req_s    req_t;
typedef struct exec_s   exec_t;

struct proc_s {
    sim_host_t                      host;
    sim_worker_t                   *w;
    void                           *library;
    nginx_t                        *nginx;
    ngx_uint_t                      slot;
    uint32_t                        epoch;
    ngx_uint_t                      up;
    ngx_uint_t                      quits;
    ngx_uint_t                      stopped;
    ngx_uint_t                      busy;
    ngx_uint_t                      serial;
    ngx_msec_t                      next;
    ngx_uint_t                      dies;
    jmp_buf                         death;
    ngx_idempotency_batch_t        *batch;
    uint64_t                        numbers[SIM_LANES];
    ngx_msec_t                      arrival[SIM_LANES][2];
    char                            keys[TOKENS][64];
};

struct nginx_s {
    char                            name;
    ngx_uint_t                      up;
    u_char                         *zone;
    uint64_t                        instance;
    uint64_t                        fence;
    int64_t                         base;
    ngx_msec_t                      offset;
    ngx_uint_t                      pair;
    ngx_uint_t                      generation;
    ngx_idempotency_db_t           *db;
    /* its way to a Redis */
    ngx_uint_t                      link;
    ngx_msec_t                      healed;
    proc_t                          procs[SIM_SLOTS];
};

typedef enum {
    IDLE = 0,
    WAITS,
    OWNS,
    TELLS
} act_e;

struct req_s {
    ngx_idempotency_claim_t         claim;
    ngx_idempotency_complete_t      complete;
    ngx_idempotency_release_t       release;
    ngx_uint_t                      n;
    act_e                           act;
    proc_t                         *proc;
    ngx_uint_t                      serial;
    ngx_uint_t                      token;
    ngx_uint_t                      local;
    ngx_uint_t                      waits;
    uint64_t                        chance;
    ngx_msec_t                      deadline;
    ngx_msec_t                      asked;
    exec_t                         *exec;
    ngx_uint_t                      final;
    /* what was known here when it was asked for alone */
    sim_peek_t                      peek;
    char                           *end;
};

typedef enum {
    RUNS = 0,
    RECORDING,
    RECORDED,
    RELEASED,
    STALE,
    LOST
} exec_e;

struct exec_s {
    ngx_uint_t                      n;
    ngx_uint_t                      token;
    nginx_t                        *nginx;
    uint64_t                        instance;
    uint64_t                        fence;
    exec_e                          state;
    ngx_idempotency_outcome_e       outcome;
    ngx_uint_t                      status;
    size_t                          size;
    ngx_msec_t                      began;
    ngx_msec_t                      ended;
    ngx_msec_t                      until;
    /* when the store heard of its claim last, and its outcome */
    ngx_msec_t                      heard;
    ngx_uint_t                      granted;
    ngx_uint_t                      told;
    ngx_uint_t                      alone;
    ngx_uint_t                      taken;
    ngx_uint_t                      releasing;
    /* the store has another one's instead */
    ngx_uint_t                      outdone;
    /* since when it is sure for good, as the client was told */
    ngx_msec_t                      sure;
    /* reasons for which it may be in doubt */
    ngx_uint_t                      died;
    ngx_uint_t                      stood;
    ngx_uint_t                      lapsed;
};

typedef enum {
    M_WAKE = 0,
    M_CONNECT,
    M_CALL,
    M_REPLY,
    M_CUT,
    M_PUBLISH,
    M_COMMIT,
    M_HANDED,
    M_EXECUTED,
    M_AGAIN,
    M_LEAVES,
    M_PATIENCE,
    M_SPAWN,
    M_RESTART,
    M_RESUME,
    M_PLAN,
    M_EXIT
} message_e;

typedef struct {
    message_e                       what;
    ngx_msec_t                      at;
    ngx_uint_t                      used;
    proc_t                         *proc;
    ngx_uint_t                      serial;
    nginx_t                        *nginx;
    req_t                          *req;
    ngx_uint_t                      n;
    uint64_t                        key;
    ngx_uint_t                      all;
    /* of a call, or its reply */
    ngx_uint_t                      lane;
    uint64_t                        number;
    uint64_t                        id;
    uint64_t                        time;
    ngx_str_t                       words[16];
    ngx_uint_t                      nkeys;
    ngx_uint_t                      nwords;
    ngx_str_t                       text;
    void                           *memory;
    ngx_idempotency_batch_t        *batch;
} message_t;

typedef enum {
    P_CLIENT = 0,
    P_KILL,
    P_DIE,
    P_STOP,
    P_CRASH,
    P_LINK,
    P_HANG,
    P_FAIL,
    P_FULL,
    P_CUT,
    P_LEAP,
    P_MEMORY,
    P_RELOAD,
    P_QUIT
} plan_e;

typedef struct {
    plan_e                          what;
    ngx_msec_t                      at;
    uint64_t                        chance;
    ngx_uint_t                      left_out;
} plan_t;

typedef struct {
    sim_store_e                     store;
    ngx_uint_t                      strict;
    ngx_uint_t                      local;
    ngx_uint_t                      evict;
    ngx_msec_t                      window;
    ngx_msec_t                      lease;
    ngx_msec_t                      timeout;
    ngx_uint_t                      nested;
} settings_t;


static char        *library, *directory;
static ngx_uint_t   telling, no_local;
static char         story[STORY];
static size_t       storied;

static settings_t   set;
static plan_t       plan[PLAN];
static ngx_uint_t   planned;

static uint64_t     chance;
static ngx_msec_t   now;
static ngx_uint_t   depth, serials, failed, settling, micros;
static char         fault_text[1024];
static nginx_t      nginxes[NGINX];
static req_t        reqs[REQUESTS];
static exec_t       execs[EXECS];
static message_t    messages[MESSAGES];
static ngx_uint_t   nreqs, nexecs, nmessages;
static ngx_msec_t   hung, failing, crammed, still;
static char         keys[TOKENS][64];

/* of all runs */

static uint64_t     n_events, n_execs, n_replays, n_doubts, n_refused, n_msec;
static uint64_t     n_troubles[P_QUIT + 1];


static char  *plan_names[] = {
    "client", "worker killed", "worker dies in the middle", "worker stopped",
    "nginx killed", "way to the Redis ill", "store hangs", "file fails",
    "file full", "connection cut", "all stand still", "memory short",
    "reload", "nginx stopped"
};


static ngx_uint_t step(ngx_msec_t limit);
static void request_ask(req_t *q);
static void proc_gone(proc_t *p);
static void proc_up(nginx_t *g, ngx_uint_t slot, ngx_uint_t fresh);
static void nginx_up(nginx_t *g);


#define below(n)  ((ngx_uint_t) (unit_random(&chance) % (n)))


/* --- what is told --------------------------------------------------------- */


static void __attribute__((format(printf, 1, 2)))
tell(char *fmt, ...)
{
    va_list  args;

    if (!telling || storied > STORY - 1000) {
        return;
    }

    storied += snprintf(story + storied, 100, "%8.3f  ", now / 1000.0 - 100);

    va_start(args, fmt);
    storied += vsnprintf(story + storied, 800, fmt, args);
    va_end(args);

    story[storied++] = '\n';
    story[storied] = '\0';
}


static void __attribute__((format(printf, 1, 2)))
fault(char *fmt, ...)
{
    va_list  args;

    if (failed) {
        return;
    }

    failed = 1;

    va_start(args, fmt);
    vsnprintf(fault_text, sizeof(fault_text), fmt, args);
    va_end(args);

    tell("FAULT: %s", fault_text);
}


#define token_name(n)  ((char) ('a' + (int) (n)))


/* --- messages ------------------------------------------------------------- */


static message_t *
message(message_e what, ngx_msec_t delay, proc_t *p)
{
    ngx_uint_t   i;
    message_t   *m;

    for (i = 0; i < nmessages && messages[i].used; i++) { /* void */ }

    if (i == MESSAGES) {
        fprintf(stderr, "too many messages\n");
        exit(2);
    }

    nmessages = ngx_max(nmessages, i + 1);
    m = &messages[i];

    memset(m, 0, sizeof(message_t));
    m->what = what;
    m->used = 1;
    m->at = now + delay;
    m->proc = p;
    m->serial = p ? p->serial : 0;

    return m;
}


static void
message_free(message_t *m)
{
    free(m->memory);
    m->memory = NULL;
    m->used = 0;

    while (nmessages && !messages[nmessages - 1].used) {
        nmessages--;
    }
}


/* --- a worker ------------------------------------------------------------- */


/* false: it died meanwhile */

#define enter(p)                                                              \
    ((p)->busy = 1, depth++, *(p)->w->msec = now + (p)->nginx->offset,        \
     setjmp((p)->death) == 0)


static void
leave(proc_t *p)
{
    p->busy = 0;
    depth--;
    p->next = p->w->next();
    p->next = (p->next == NGX_TIMER_INFINITE) ? p->next
              : now + p->next + (p->next && below(4) == 0 ? below(4) : 0);
}


static void
died(proc_t *p)
{
    message_t  *m;

    depth--;
    p->busy = 0;
    tell("nginx %c, worker %u dies in the middle of that", p->nginx->name,
         (unsigned) p->slot);
    proc_gone(p);

    m = message(M_SPAWN, 1 + below(60), NULL);
    m->nginx = p->nginx;
    m->n = p->slot;
}


static int64_t
host_wall(void *worker)
{
    return SIM_EPOCH + now;
}


static void
host_log(void *worker, ngx_uint_t level, char *text)
{
    proc_t  *p = worker;

    if (level <= NGX_LOG_NOTICE) {
        tell("    nginx %c, worker %u logs: %s", p->nginx->name,
             (unsigned) p->slot, text);
    }
}


static void
host_fault(void *worker, char *text)
{
    proc_t  *p = worker;

    /* others make them, too */

    if (set.store != SIM_MEMORY && strstr(text, "rec->fence <= sh->fence")) {
        return;
    }

    fault("nginx %c, worker %u: not so: %s", p->nginx->name,
          (unsigned) p->slot, text);
}


static void
host_between(void *worker)
{
    proc_t  *p = worker;

    if (failed) {
        return;
    }

    if (p->dies && --p->dies == 0) {
        longjmp(p->death, 1);
    }

    if (depth < 3 && set.nested && below(set.nested) == 0) {
        (void) step(now);
    }
}


static ngx_uint_t
host_alive(void *worker, ngx_uint_t slot, uint32_t epoch)
{
    proc_t  *p = worker, *other;

    other = &p->nginx->procs[slot];

    return other->up && (epoch == 0 || other->epoch == epoch);
}


static ngx_uint_t
host_stopped(void *worker, ngx_uint_t slot, uint32_t epoch)
{
    proc_t  *p = worker;

    return host_alive(worker, slot, epoch) && p->nginx->procs[slot].stopped;
}


static void
host_wake(void *worker, ngx_uint_t slot, uint64_t *key)
{
    proc_t     *p = worker, *other;
    message_t  *m;

    other = &p->nginx->procs[slot];

    if (!other->up) {
        return;
    }

    m = message(M_WAKE, below(3), other);
    m->all = (key == NULL);
    m->key = key ? *key : 0;
}


static void
host_hand(void *worker, ngx_idempotency_batch_t *batch)
{
    proc_t  *p = worker;

    p->batch = batch;
    message(M_COMMIT, below(4), p);
}


static void
host_connect(void *worker, ngx_uint_t lane, uint64_t number)
{
    proc_t     *p = worker;
    message_t  *m;

    p->numbers[lane] = number;
    p->arrival[lane][0] = p->arrival[lane][1] = now;

    if (p->nginx->link && now < p->nginx->healed) {
        return;
    }

    m = message(M_CONNECT, 1 + below(3), p);
    m->lane = lane;
    m->number = number;
    m->at = ngx_max(m->at, hung);
}


/* one that is held arrives, or its connection is lost before */

static ngx_msec_t
way(proc_t *p, ngx_uint_t lane, ngx_uint_t back)
{
    nginx_t     *g;
    ngx_msec_t   at;

    g = p->nginx;
    at = now + below(3) + (!settling && below(20) == 0
                           ? below(set.timeout) : 0);

    if (now < g->healed) {

        switch (g->link) {
        case 1:
            at = ngx_max(at, g->healed + below(20));
            break;
        case 2:
            if (!back) {
                return 0;
            }
            break;
        default:
            if (back) {
                return 0;
            }
        }
    }

    at = ngx_max(at, p->arrival[lane][back]);
    p->arrival[lane][back] = at;

    return at;
}


static void
host_send(void *worker, ngx_uint_t lane, uint64_t number, uint64_t n,
    ngx_str_t *text, ngx_str_t *words, ngx_uint_t nkeys, ngx_uint_t nwords)
{
    u_char      *p;
    size_t       size;
    proc_t      *proc = worker;
    ngx_uint_t   i;
    ngx_msec_t   at;
    message_t   *m;

    at = way(proc, lane, 0);

    if (at == 0) {
        return;
    }

    m = message(M_CALL, 0, proc);
    m->at = ngx_max(at, hung);
    m->lane = lane;
    m->number = number;
    m->id = n;
    m->nkeys = nkeys;
    m->nwords = nwords;

    for (size = text->len, i = 0; i < nwords; i++) {
        size += words[i].len;
    }

    p = m->memory = malloc(size + 1);
    m->text.data = p;
    m->text.len = text->len;
    p = ngx_cpymem(p, text->data, text->len);

    for (i = 0; i < nwords; i++) {
        m->words[i].data = p;
        m->words[i].len = words[i].len;
        p = ngx_cpymem(p, words[i].data, words[i].len);
    }
}


static void
host_subscribe(void *worker, ngx_str_t *key, ngx_uint_t on)
{
    proc_t      *p = worker;
    ngx_uint_t   i;

    for (i = 0; i < TOKENS; i++) {
        if (strlen(keys[i]) == key->len
            && memcmp(keys[i], key->data, key->len) == 0)
        {
            p->keys[i][0] = (char) on;
        }
    }
}


static ngx_uint_t  host_commit(void *worker, ngx_idempotency_batch_t *batch);


/* one that ends waits for the world without an event loop */

static void
host_slept(void *worker, ngx_msec_t time)
{
    proc_t      *p = worker;
    ngx_msec_t   end;

    end = now + time;

    while (now < end && step(end)) { /* void */ }

    now = ngx_max(now, end);
    *p->w->msec = now + p->nginx->offset;
}


static void
proc_up(nginx_t *g, ngx_uint_t slot, ngx_uint_t fresh)
{
    char          path[256];
    proc_t       *p;
    sim_conf_t    conf;
    sim_worker_pt worker;

    p = &g->procs[slot];

    if (p->up) {
        return;
    }

    memset(p->keys, 0, sizeof(p->keys));
    p->nginx = g;
    p->slot = slot;
    p->epoch++;
    p->serial = ++serials;
    p->up = 1;
    p->quits = p->stopped = p->busy = p->dies = 0;
    p->batch = NULL;

    p->host.worker = p;
    p->host.wall = host_wall;
    p->host.log = host_log;
    p->host.fault = host_fault;
    p->host.between = host_between;
    p->host.alive = host_alive;
    p->host.stopped = host_stopped;
    p->host.wake = host_wake;
    p->host.flush = host_hand;
    p->host.commit = host_commit;
    p->host.connect = host_connect;
    p->host.send = host_send;
    p->host.subscribe = host_subscribe;
    p->host.slept = host_slept;

    snprintf(path, sizeof(path), "%s/%c%u.so", directory, g->name,
             (unsigned) slot);

    p->library = dlopen(path, RTLD_NOW|RTLD_LOCAL);

    if (p->library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }

    *(void **) &worker = dlsym(p->library, "sim_worker");
    p->w = worker(&p->host);

    memset(&conf, 0, sizeof(sim_conf_t));
    conf.store = set.store;
    conf.strict = set.strict;
    conf.evict = set.evict;
    conf.timeout = set.timeout;
    conf.slot = slot;
    conf.epoch = p->epoch;
    conf.pid = 1000 + slot;
    conf.zone = g->zone;
    conf.fresh = fresh;
    conf.instance = g->instance;
    conf.fence = g->fence;
    conf.base = g->base;
    conf.generation = g->generation;

    if (!enter(p)) {
        died(p);
        return;
    }

    if (p->w->start(&conf) != NGX_OK) {
        fault("a worker does not start");
    }

    leave(p);
}


static void
exec_doubt(exec_t *e)
{
    if (e->state == RUNS || e->state == RECORDING) {
        e->died = 1;
    }
}


/* with all that it had under way */

static void
proc_gone(proc_t *p)
{
    ngx_uint_t  i;

    for (i = 0; i < nreqs; i++) {

        if (reqs[i].act == IDLE || reqs[i].proc != p) {
            continue;
        }

        if (reqs[i].exec) {
            exec_doubt(reqs[i].exec);
        }

        reqs[i].act = IDLE;
        reqs[i].end = "its worker is gone";
    }

    p->up = 0;
    p->w->gone();
    dlclose(p->library);
}


static void
proc_killed(proc_t *p)
{
    /* perhaps its thread was done, and nobody has heard of it */

    if (p->batch && below(2)) {
        (void) host_commit(p, p->batch);
    }

    proc_gone(p);
}


/* --- nginx ---------------------------------------------------------------- */


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
nginx_up(nginx_t *g)
{
    ngx_uint_t  i;

    if (g->up) {
        return;
    }

    g->zone = unit_shared(SIM_ZONE + 4096);
    g->pair = 0;
    g->generation = 0;
    g->instance = unit_random(&chance);
    g->fence = (SIM_EPOCH + now) * 1000;
    g->up = 1;

    if (set.store == SIM_FILE) {
        file.start.boottime = now;

        if (file_start(1) != NGX_OK) {
            fault("the file can't be started: %s", file.error);
            return;
        }

        g->base = file.start.base;
        g->instance = file.start.instance;
        g->fence = file.start.fence;

        file.conf.alive = file_lives;
        file.conf.data = g;
        file_open(set.strict ? NGX_IDEMPOTENCY_SYNC_STRICT
                             : NGX_IDEMPOTENCY_SYNC_BATCHED, 0);

        if (file.db == NULL) {
            fault("the file can't be opened: %s", file.error);
            return;
        }

        g->db = file.db;
        file.db = NULL;

    } else if (set.store == SIM_REDIS) {
        g->offset = (ngx_msec_t) below(1000000);
    }

    for (i = 0; i < 2; i++) {
        proc_up(g, i, i == 0);
    }
}


static void
nginx_forgets(nginx_t *g)
{
    ngx_uint_t   i;
    exec_t      *e;

    for (i = 0; i < nexecs; i++) {
        e = &execs[i];

        if (e->instance == g->instance && !e->told && e->state != RELEASED) {
            e->died = 1;
        }
    }

    g->up = 0;

    if (g->db) {
        ngx_idempotency_db_close(g->db);
        g->db = NULL;
    }

    unit_unshared(g->zone, SIM_ZONE + 4096);
    g->zone = NULL;
}


static void
nginx_killed(nginx_t *g)
{
    ngx_uint_t  i;

    for (i = 0; i < SIM_SLOTS; i++) {
        if (g->procs[i].up) {
            proc_killed(&g->procs[i]);
        }
    }

    nginx_forgets(g);
}


/* --- the file ------------------------------------------------------------- */


static void
store_heard(ngx_uint_t token, uint64_t fence, ngx_uint_t outcome,
    ngx_uint_t stale)
{
    ngx_uint_t  i;

    for (i = 0; i < nexecs; i++) {
        if (execs[i].token == token && execs[i].fence == fence) {
            if (stale) {
                execs[i].outdone = 1;
                continue;
            }

            execs[i].heard = now;
            execs[i].granted = 1;
            execs[i].told |= outcome;
        }
    }
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
            store_heard(item->token[0] - 'a', item->fence,
                        item->outcome != NGX_IDEMPOTENCY_PENDING,
                        item->result == NGX_IDEMPOTENCY_STALE);
        }

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


static ngx_uint_t
host_commit(void *worker, ngx_idempotency_batch_t *batch)
{
    proc_t      *p = worker;
    int64_t      time;
    ngx_uint_t   i;

    p->batch = NULL;
    batch->rc = NGX_ERROR;
    strcpy(batch->error, "simulated");

    if (!p->w->current(batch) || (now < failing && below(3))) {
        tell("nginx %c, worker %u: the file does not take %u items",
             p->nginx->name, (unsigned) p->slot, (unsigned) batch->n);
        return 0;
    }

    time = p->nginx->base + now;
    batch->rc = NGX_OK;

    for (i = 0; i < batch->n && batch->rc == NGX_OK; i++) {
        if (now >= crammed) {
            batch->rc = ngx_idempotency_db_commit(p->nginx->db, batch->items,
                                                  batch->n, time);
            break;
        }

        if (!file_crammed(&batch->items[i])) {
            batch->rc = ngx_idempotency_db_commit(p->nginx->db,
                                                  &batch->items[i], 1, time);
        }
    }

    if (batch->rc != NGX_OK) {
        fault("the file fails by itself: %s",
              ngx_idempotency_db_state(p->nginx->db)->error);
    }

    file_items(p, batch);

    tell("nginx %c, worker %u: %u items are in the file", p->nginx->name,
         (unsigned) p->slot, (unsigned) batch->n);

    return 1;
}


/* --- the Redis ------------------------------------------------------------ */


static void
redis_publish(u_char *key, size_t len)
{
    ngx_uint_t   i, n, k;
    proc_t      *p;

    for (k = 0; k < TOKENS; k++) {

        if (strlen(keys[k]) != len || memcmp(keys[k], key, len) != 0) {
            continue;
        }

        for (i = 0; i < NGINX; i++) {
            for (n = 0; n < SIM_SLOTS; n++) {
                p = &nginxes[i].procs[n];

                if (p->up && p->keys[k][0] && now >= p->nginx->healed
                    && below(10))
                {
                    message(M_PUBLISH, below(4), p)->n = k;
                }
            }
        }
    }
}


static uint64_t
read64(u_char *p)
{
    uint64_t    n;
    ngx_uint_t  i;

    for (n = 0, i = 0; i < 8; i++) {
        n = n << 8 | p[i];
    }

    return n;
}


/* whose lease is over may be taken over */

static void
redis_lapses(ngx_uint_t token)
{
    ngx_uint_t   i;
    exec_t      *e;

    for (i = 0; i < nexecs; i++) {
        e = &execs[i];

        if (e->token == token && !e->told && e->granted
            && now - e->heard + 2 >= set.lease)
        {
            e->lapsed = 1;
        }
    }
}


typedef struct {
    ngx_uint_t                      token;
    uint64_t                        fence;
    ngx_msec_t                      at;
} grant_t;

static grant_t     grants[EXECS];
static ngx_uint_t  ngrants;


static void
redis_call(message_t *m)
{
    char                            code;
    proc_t                         *p;
    u_char                         *head;
    uint64_t                        time;
    message_t                      *r;
    ngx_msec_t                      at;
    ngx_uint_t                      token, what;
    ngx_idempotency_redis_reply_t  *reply;

    p = m->proc;

    /* what is left of a connection that is none any more */

    if ((!p->up || p->serial != m->serial || p->numbers[m->lane] != m->number)
        && below(2))
    {
        return;
    }

    for (token = 0; token < TOKENS; token++) {
        if (m->words[0].len == strlen(keys[token])
            && memcmp(m->words[0].data, keys[token], m->words[0].len) == 0)
        {
            break;
        }
    }

    what = 0;
    head = m->words[m->nkeys].data;

    if (token < TOKENS && m->words[m->nkeys].len == 144) {
        what = (m->nwords - m->nkeys < 8) ? 'r'
               : (m->words[m->nkeys + 6].len == 2) ? 'c' : 'p';
    }

    if (what == 'c') {
        redis_lapses(token);
    }

    time = (uint64_t) (SIM_EPOCH + now) * 1000 + ++micros % 1000;

    reply = sim_redis_call(&m->text, m->words, m->nkeys, m->nwords, time,
                           redis_publish);

    code = reply->n ? (char) reply->elts[0].str.data[0] : '?';

    if (what) {
        tell("the Redis: nginx %c, worker %u: %s of %c: %c", p->nginx->name,
             (unsigned) p->slot,
             what == 'c' ? "claim" : what == 'p' ? "outcome or renewal"
                                                 : "release",
             token_name(token), code);
    }

    if (what == 'c' && (code == 'C' || code == 'D') && ngrants < EXECS) {
        grants[ngrants].token = token;
        grants[ngrants].fence = ngx_atoof(reply->elts[2].str.data,
                                          reply->elts[2].str.len);
        grants[ngrants++].at = now;
    }

    /* what another one has bound as well is none of the store's, and may leave
       memory all the same */

    if (what == 'p' && (code == 'O' || code == 'T' || code == 'S')) {
        store_heard(token, read64(head + 20), head[2] != 'P', code == 'S');
    }

    at = (p->up && p->serial == m->serial) ? way(p, m->lane, 1) : 0;

    if (at == 0) {
        free(reply);
        return;
    }

    r = message(M_REPLY, 0, p);
    r->at = at;
    r->lane = m->lane;
    r->number = m->number;
    r->id = m->id;
    r->time = time;
    r->memory = reply;
}


/* --- what is so ----------------------------------------------------------- */


/* the window of what it has recorded is over, or it was nothing */

static ngx_uint_t
closed(exec_t *e)
{
    if (e->state == RELEASED) {
        return 1;
    }

    if (e->state == RECORDED && !e->died) {
        return now >= e->until;
    }

    /* it is in doubt, or bound, at least for a window from its claim on */

    return now >= e->began + set.window;
}


static ngx_uint_t
doubtful(exec_t *e)
{
    return e->died || e->stood || e->lapsed;
}


/* why it may be executed once more, or NULL */

static char *
excuse(exec_t *e, req_t *q, exec_t *again)
{
    ngx_uint_t  same;

    if (closed(e)) {
        return "its window is over";
    }

    if (e->releasing && e->state != STALE) {
        return "its owner died while it released";
    }

    if (q->claim.retry && doubtful(e)) {
        return "in doubt, and retried";
    }

    same = (e->instance == q->proc->nginx->instance && e->nginx->up);

    if (e->alone && e->outdone) {
        return "alone, and another one was bound there";
    }

    if (set.store == SIM_MEMORY && !same) {
        return "another memory";
    }

    if (again->alone) {

        /* what its zone knows it does not execute, nor what it executed alone
           itself before */

        if (!same) {
            return "alone, and what another one knows";
        }

        if (e->told && q->peek.fence != e->fence) {
            return "alone, and what only the store knows";
        }
    }

    if (e->alone && !e->told && !same) {
        return "what another one executed alone";
    }

    return NULL;
}


static exec_t *
exec_begin(req_t *q)
{
    char        *why;
    exec_t      *e, *x;
    ngx_uint_t   i;

    if (nexecs == EXECS) {
        fprintf(stderr, "too many executions\n");
        exit(2);
    }

    e = &execs[nexecs++];
    n_execs++;

    memset(e, 0, sizeof(exec_t));
    e->n = nexecs;
    e->token = q->token;
    e->nginx = q->proc->nginx;
    e->instance = e->nginx->instance;
    e->fence = q->claim.fence;
    e->began = now;
    e->heard = now;
    e->taken = q->claim.taken;
    e->alone = (q->claim.alone && set.store != SIM_MEMORY);

    if (set.store == SIM_FILE && !e->alone) {
        e->granted = 1;
    }

    for (i = 0; i < ngrants; i++) {
        if (grants[i].token == e->token && grants[i].fence == e->fence) {
            e->heard = grants[i].at;
            e->granted = 1;
            e->alone = 0;
        }
    }

    tell("request %u executes %c%s: execution %u", (unsigned) q->n,
         token_name(q->token), e->alone ? ", alone" : "", (unsigned) e->n);

    for (i = 0; i < nexecs - 1; i++) {
        x = &execs[i];

        if (x->token != e->token) {
            continue;
        }

        why = excuse(x, q, e);

        if (why == NULL) {
            fault("execution %u of %c although there was execution %u",
                  (unsigned) e->n, token_name(e->token), (unsigned) x->n);
        }

        if (!e->alone && x->fence >= e->fence
            && x->instance == e->instance)
        {
            fault("the fence of execution %u of %c does not rise",
                  (unsigned) e->n, token_name(e->token));
        }
    }

    return e;
}


static void
response_of(u_char *body, exec_t *e)
{
    size_t  i;

    for (i = 0; i < e->size; i++) {
        body[i] = (u_char) (e->n * 31 + i * 7 + i / 251);
    }
}


static u_char  body[200000];


/* A copy's ages are those of when they were sent: it ends that much later as the
   ways there and back took, or who was to read them stood still meanwhile. */

static ngx_msec_int_t
late(void)
{
    return (set.store == SIM_REDIS)
           ? 2 * (ngx_msec_int_t) set.timeout + 10 + (ngx_msec_int_t) still : 2;
}


static void
replayed(req_t *q)
{
    exec_t                   *e;
    ngx_uint_t                i;
    ngx_msec_int_t            left;
    ngx_idempotency_found_t  *found;

    found = &q->claim.found;
    n_replays++;
    e = NULL;

    for (i = 0; i < nexecs; i++) {
        e = &execs[i];

        if (e->token != q->token || e->status != found->status
            || e->size != found->response.len || e->state == RELEASED)
        {
            continue;
        }

        response_of(body, e);

        if (e->size == 0
            || (found->response.data
                && memcmp(body, found->response.data, e->size) == 0))
        {
            break;
        }
    }

    if (i == nexecs) {
        fault("request %u has a replay of %c that no execution answered",
              (unsigned) q->n, token_name(q->token));
        return;
    }

    tell("request %u has a replay of execution %u", (unsigned) q->n,
         (unsigned) e->n);

    if (e->state == RECORDED && !e->died
        && (ngx_msec_int_t) (now - e->until)
           > late())
    {
        fault("request %u has a replay of execution %u, whose window is over",
              (unsigned) q->n, (unsigned) e->n);
    }

    left = (ngx_msec_int_t) (e->until - now);

    if (e->state == RECORDED && !e->died
        && ((ngx_msec_int_t) found->left < left - 10
            || (ngx_msec_int_t) found->left
               > left + late()))
    {
        fault("the window of execution %u has moved: %ld ms are left, not %ld",
              (unsigned) e->n, (long) found->left, (long) left);
    }
}


/* a state that may be; who asks is told */

static void
bound(req_t *q)
{
    exec_t      *e;
    ngx_uint_t   i, open, sure;

    open = sure = 0;

    for (i = 0; i < nexecs; i++) {
        e = &execs[i];

        if (e->token == q->token && !closed(e)) {
            open++;
            sure += (e->sure && now - e->sure > 1000);
        }

        /* what was executed alone, too, each tells as it is there */

        open += (e->token == q->token && e->alone);
    }

    switch (q->claim.found.outcome) {

    case NGX_IDEMPOTENCY_DONE:
        q->end = "replay";
        replayed(q);
        return;

    case NGX_IDEMPOTENCY_NOT_KEPT:
        q->end = "refused, not kept";
        break;

    case NGX_IDEMPOTENCY_IN_DOUBT:
        q->end = "refused, in doubt";
        n_doubts++;

        if (sure && open == sure) {
            fault("%c is in doubt although its client was told for sure",
                  token_name(q->token));
        }
        break;

    default:
        q->end = "refused, in progress";
    }

    tell("request %u: %s", (unsigned) q->n, q->end);
}


/* --- requests ------------------------------------------------------------- */


static void
request_result(req_t *q)
{
    if (q->claim.op.waiting) {
        q->act = WAITS;
        return;
    }

    q->act = IDLE;

    switch (q->claim.op.result) {

    case NGX_IDEMPOTENCY_CHANGED:
        request_ask(q);
        return;

    case NGX_IDEMPOTENCY_CLAIMED:
        q->act = OWNS;
        q->end = "executes";
        q->exec = exec_begin(q);
        message(M_EXECUTED, (q->chance >> 8) % 8 ? (q->chance >> 11) % 60
                                            : (q->chance >> 11) % 1500,
                q->proc)->req = q;
        return;

    case NGX_IDEMPOTENCY_BOUND:
        bound(q);
        return;

    case NGX_IDEMPOTENCY_UNAVAILABLE:
        if (q->local && !q->claim.alone) {
            q->claim.alone = 1;
            request_ask(q);
            return;
        }

        q->end = "refused, unavailable";
        n_refused++;
        tell("request %u: %s", (unsigned) q->n, q->end);
        return;

    default:
        fault("request %u has result %u", (unsigned) q->n,
              (unsigned) q->claim.op.result);
    }
}


static void
request_handler(ngx_idempotency_op_t *op)
{
    req_t  *q = op->data;

    /* of an operation that was cancelled none comes */

    if (q->act != WAITS) {
        fault("request %u has an answer that it did not wait for",
              (unsigned) q->n);
        return;
    }

    request_result(q);
}


/* within its worker */

static void
request_ask(req_t *q)
{
    ngx_int_t   rc;
    proc_t     *p;

    p = q->proc;

    q->claim.op.now = now + p->nginx->offset;
    q->claim.wait = (q->waits && now < q->deadline);
    q->asked = now;
    q->act = WAITS;

    if (q->claim.alone) {
        p->w->peek(q->claim.op.token, &q->peek);
    }

    rc = p->w->engine->claim(p->w->store, &q->claim);

    if (rc == NGX_OK) {
        request_result(q);

    } else if (rc != NGX_AGAIN) {
        fault("request %u: no memory", (unsigned) q->n);
    }
}


static req_t *
request(proc_t *p, ngx_uint_t token, uint64_t r)
{
    req_t  *q;

    if (nreqs == REQUESTS) {
        fprintf(stderr, "too many requests\n");
        exit(2);
    }

    q = &reqs[nreqs++];
    memset(q, 0, sizeof(req_t));

    q->n = nreqs;
    q->proc = p;
    q->serial = p->serial;
    q->token = token;
    q->chance = r;
    q->waits = (r % 4 != 0);
    q->local = set.local;
    q->deadline = now + 3000;

    memset(q->claim.op.token, 'a' + (int) token, NGX_IDEMPOTENCY_DIGEST_LEN);
    memset(q->claim.fingerprint, 'f', NGX_IDEMPOTENCY_DIGEST_LEN);
    memset(q->claim.parts.identity, 'i', NGX_IDEMPOTENCY_IDENTITY_LEN);

    q->claim.op.handler = request_handler;
    q->claim.op.data = q;
    q->claim.window = set.window;
    q->claim.lease = set.lease;
    q->claim.pool = p->w->pool;
    q->claim.retry = token % 2;

    tell("request %u for %c%s comes to nginx %c, worker %u", (unsigned) q->n,
         token_name(token), q->claim.retry ? " (retry)" : "", p->nginx->name,
         (unsigned) p->slot);

    message(M_AGAIN, AGAIN, p)->req = q;

    if (!settling && (r >> 4) % 12 == 0) {
        message(M_LEAVES, (r >> 8) % 100, p)->req = q;
    }

    if (!enter(p)) {
        died(p);
        return q;
    }

    request_ask(q);
    leave(p);

    return q;
}


static void
owner_told(ngx_idempotency_op_t *op)
{
    req_t       *q = op->data;
    sim_peek_t   peek;

    if (q->act != TELLS) {
        return;
    }

    q->act = IDLE;
    q->proc->w->peek(op->token, &peek);

    if (peek.fence == q->exec->fence && peek.told == NGX_IDEMPOTENCY_FLUSHED
        && peek.state == NGX_IDEMPOTENCY_DONE && !q->exec->alone)
    {
        q->exec->sure = now;
    }

    tell("the client of request %u has its end", (unsigned) q->n);
}


static void
owner_result(req_t *q, ngx_idempotency_result_e result, ngx_uint_t releases)
{
    exec_t  *e;

    e = q->exec;

    switch (result) {

    case NGX_IDEMPOTENCY_OK:
    case NGX_IDEMPOTENCY_TRIMMED:
        e->state = releases ? RELEASED : RECORDED;
        e->died = 0;
        break;

    case NGX_IDEMPOTENCY_STALE:
        e->state = STALE;

        if (!doubtful(e) && !e->alone) {
            fault("the outcome of execution %u is stale without a reason",
                  (unsigned) e->n);
        }

        e->died = 1;
        break;

    default:
        fault("an outcome has result %u", (unsigned) result);
    }

    tell("execution %u ends: %s", (unsigned) e->n,
         result == NGX_IDEMPOTENCY_STALE ? "stale"
         : releases ? "released" : "recorded");
}


/* within its worker: what its upstream says */

static void
owner_ends(req_t *q)
{
    ngx_int_t     rc;
    exec_t       *e;
    ngx_buf_t     b;
    ngx_uint_t    n;
    ngx_chain_t   cl;
    proc_t       *p;

    p = q->proc;
    e = q->exec;
    n = (q->chance >> 32) % 20;

    e->ended = now;
    e->until = now + set.window;

    if (n < 4 && !q->final) {
        q->release.op = q->claim.op;
        q->release.op.now = now + p->nginx->offset;
        q->release.fence = q->claim.fence;
        q->act = IDLE;
        e->releasing = 1;

        (void) p->w->engine->release(p->w->store, &q->release);
        owner_result(q, q->release.op.result, 1);
        return;
    }

    e->state = RECORDING;
    e->outcome = (n == 4) ? NGX_IDEMPOTENCY_NOT_KEPT : NGX_IDEMPOTENCY_DONE;
    e->status = 200 + e->n % 300;
    e->size = (n == 4) ? 0 : 1 + (q->chance >> 40) % (n == 5 ? 100000
                                                   : n < 9 ? 9000 : 90);
    response_of(body, e);

    memset(&b, 0, sizeof(ngx_buf_t));
    b.pos = body;
    b.last = body + e->size;
    cl.buf = &b;
    cl.next = NULL;

    q->complete.op = q->claim.op;
    q->complete.op.now = now + p->nginx->offset;
    q->complete.op.handler = owner_told;
    q->complete.op.resume = NULL;
    q->complete.fence = q->claim.fence;
    q->complete.outcome = e->outcome;
    q->complete.status = e->status;
    q->complete.size = e->size;
    q->complete.pieces = e->size ? &cl : NULL;

    /* nothing of it may be overwritten by others who act meanwhile */

    q->act = TELLS;
    rc = p->w->engine->complete(p->w->store, &q->complete);
    q->act = (rc == NGX_AGAIN) ? TELLS : IDLE;

    owner_result(q, q->complete.op.result, 0);
}


/* --- what happens --------------------------------------------------------- */


static ngx_uint_t
proc_runs(proc_t *p)
{
    return p->up && !p->stopped && !p->busy;
}


static void
plan_client(uint64_t r)
{
    proc_t   *p;
    nginx_t  *g;

    g = &nginxes[r % NGINX];
    p = &g->procs[g->pair + (r >> 4) % 2];

    if (g->up && proc_runs(p) && !p->quits) {
        (void) request(p, (r >> 8) % TOKENS, r >> 12);
    }
}


static void
proc_stops(proc_t *p)
{
    ngx_uint_t  i;

    p->stopped = 1;

    for (i = 0; i < nreqs; i++) {
        if (reqs[i].proc == p && reqs[i].act == OWNS) {
            reqs[i].exec->stood = 1;
        }
    }
}


static void
proc_short(proc_t *p)
{
    if (!enter(p)) {
        died(p);
        return;
    }

    p->w->short_of_memory();
    leave(p);
}


static void
plan_worker(plan_e what, nginx_t *g, proc_t *p, uint64_t r)
{
    message_t  *m;

    if (!p->up || p->busy) {
        return;
    }

    switch (what) {

    case P_KILL:
        tell("nginx %c, worker %u is killed", g->name, (unsigned) p->slot);
        proc_killed(p);
        m = message(M_SPAWN, 1 + r % 60, NULL);
        m->nginx = g;
        m->n = p->slot;
        break;

    case P_DIE:
        p->dies = 1 + r % 30;
        break;

    case P_STOP:
        tell("nginx %c, worker %u is stopped", g->name, (unsigned) p->slot);
        proc_stops(p);
        message(M_RESUME, r % 3000, p);
        still += r % 3000;
        break;

    case P_CUT:
        m = message(M_CUT, 0, p);
        m->lane = r % SIM_LANES;
        m->number = p->numbers[m->lane];
        break;

    case P_MEMORY:
        if (proc_runs(p)) {
            tell("nginx %c: memory is short", g->name);
            proc_short(p);
        }

        break;

    default:
        break;
    }
}


static void
plan_nginx(plan_e what, nginx_t *g, uint64_t r)
{
    ngx_uint_t  i;

    for (i = 0; i < SIM_SLOTS; i++) {
        if (g->procs[i].busy) {
            return;
        }
    }

    switch (what) {

    case P_CRASH:
        if (g->up) {
            tell("nginx %c is killed", g->name);
            nginx_killed(g);
            message(M_RESTART, r % 2000, NULL)->nginx = g;
        }

        break;

    case P_LINK:
        g->link = 1 + r % 3;
        g->healed = now + (r >> 4) % 2000;
        tell("nginx %c: %s for %lu ms", g->name,
             g->link == 1 ? "its way to the Redis holds all up"
             : g->link == 2 ? "what it tells the Redis is lost"
                            : "what the Redis answers it is lost",
             (unsigned long) (g->healed - now));
        break;

    default:
        break;
    }
}


static void
plan_event(plan_t *e)
{
    nginx_t   *g;
    uint64_t   r;

    if (e->left_out) {
        return;
    }

    r = e->chance;
    g = &nginxes[r % NGINX];
    r >>= 1;

    n_troubles[e->what]++;

    switch (e->what) {

    case P_CLIENT:
        plan_client(e->chance);
        break;

    case P_CRASH:
    case P_LINK:
        plan_nginx(e->what, g, r);
        break;

    case P_HANG:
        hung = now + r % 3000;
        tell("the store hangs for %lu ms", (unsigned long) (hung - now));
        break;

    case P_FAIL:
        failing = now + r % 2000;
        tell("the file fails for %lu ms", (unsigned long) (failing - now));
        break;

    case P_FULL:
        crammed = now + r % 2000;
        tell("the file is full for %lu ms", (unsigned long) (crammed - now));
        break;

    case P_LEAP:
        now += r % 3000;
        still += r % 3000;
        tell("all stood still for %lu ms", (unsigned long) (r % 3000));
        break;

    default:
        plan_worker(e->what, g, &g->procs[g->pair + r % 2], r >> 1);
    }
}


/* to a worker, within it */

static void
deliver(proc_t *p, message_t *m)
{
    req_t      *q;
    ngx_str_t   key;

    q = m->req;

    switch (m->what) {

    case M_WAKE:
        p->w->woken(m->all ? NULL : &m->key);
        break;

    case M_CONNECT:
        p->w->connected(m->lane, m->number,
                        (uint64_t) (SIM_EPOCH + m->at) * 1000);
        break;

    case M_REPLY:
        p->w->answered(m->lane, m->number, m->id, m->memory, m->time);
        break;

    case M_CUT:
        p->w->cut(m->lane, m->number);
        break;

    case M_PUBLISH:
        key.data = (u_char *) keys[m->n];
        key.len = strlen(keys[m->n]);
        p->w->published(&key);
        break;

    case M_HANDED:
        p->w->handed(m->batch);
        break;

    case M_EXECUTED:
        if (q->act == OWNS) {
            owner_ends(q);
        }
        break;

    case M_AGAIN:
        if (q->act == WAITS && now - q->asked >= AGAIN) {
            request_ask(q);
        }
        break;

    case M_LEAVES:
        if (q->act == WAITS) {
            tell("the client of request %u leaves", (unsigned) q->n);
            p->w->engine->cancel(p->w->store, &q->claim.op);
            q->act = IDLE;
            q->end = "its client has left";
        }
        break;

    default:
        break;
    }
}


static void
happens_to(proc_t *p, message_t *m)
{
    message_t  *next;

    if (m->what == M_RESUME) {
        tell("nginx %c, worker %u goes on", p->nginx->name,
             (unsigned) p->slot);
        p->stopped = 0;
        return;
    }

    if (m->what == M_COMMIT) {
        void  *batch = p->batch;

        (void) host_commit(p, batch);
        next = message(M_HANDED, below(3), p);
        next->batch = batch;
        return;
    }

    if (m->what == M_AGAIN && m->req->act == WAITS) {
        message(M_AGAIN, AGAIN, p)->req = m->req;
    }

    if (!enter(p)) {
        died(p);
        return;
    }

    deliver(p, m);
    leave(p);
}


static void
happens(message_t *m)
{
    nginx_t  *g;

    g = m->nginx;

    switch (m->what) {

    case M_PLAN:
        plan_event(&plan[m->n]);
        break;

    case M_CALL:
        redis_call(m);
        break;

    case M_SPAWN:
        if (g->up && !g->procs[m->n].up) {
            proc_up(g, m->n, 0);
        }

        break;

    case M_RESTART:
        tell("nginx %c is started", g->name);
        nginx_up(g);
        break;

    default:
        if (m->proc->up && m->proc->serial == m->serial) {
            happens_to(m->proc, m);
        }
    }
}


/* nothing keeps it from happening now */

static ngx_uint_t
may_happen(message_t *m)
{
    proc_t  *p;

    p = m->proc;

    switch (m->what) {

    case M_CALL:
        return 1;

    case M_PLAN:
    case M_SPAWN:
    case M_RESTART:
        return depth == 0;

    case M_RESUME:
        return !p->busy;

    case M_COMMIT:
    case M_HANDED:
        if (p->up && p->serial == m->serial && now < hung) {
            return 0;
        }

        break;

    default:
        break;
    }

    return !p->up || p->serial != m->serial || proc_runs(p);
}


/* a turn of its event loop */

static void
proc_turn(proc_t *p)
{
    if (!enter(p)) {
        died(p);
        return;
    }

    p->w->run();
    leave(p);
}


/* what is next, of all that may be; false: nothing until then */

static ngx_uint_t
step(ngx_msec_t limit)
{
    proc_t      *p, *runs[NGINX * SIM_SLOTS];
    message_t   *m, *due[MESSAGES], copy;
    ngx_uint_t   i, k, nruns, ndue, n;
    ngx_msec_t   next;

again:

    nruns = ndue = 0;
    next = (ngx_msec_t) -1;

    for (i = 0; i < nmessages; i++) {
        m = &messages[i];

        if (!m->used || !may_happen(m)) {
            continue;
        }

        if ((ngx_msec_int_t) (m->at - now) <= 0) {
            due[ndue++] = m;

        } else {
            next = ngx_min(next, m->at);
        }
    }

    if (now < hung) {
        next = ngx_min(next, hung);
    }

    for (i = 0; i < NGINX; i++) {
        for (k = 0; k < SIM_SLOTS; k++) {
            p = &nginxes[i].procs[k];

            if (!proc_runs(p) || p->next == NGX_TIMER_INFINITE) {
                continue;
            }

            if ((ngx_msec_int_t) (p->next - now) <= 0) {
                runs[nruns++] = p;

            } else {
                next = ngx_min(next, p->next);
            }
        }
    }

    if (ndue + nruns == 0) {

        if (next > limit || failed) {
            return 0;
        }

        now = next;
        goto again;
    }

    n_events++;
    n = below(ndue + nruns);

    if (n < ndue) {
        copy = *due[n];
        due[n]->memory = NULL;
        message_free(due[n]);
        happens(&copy);
        free(copy.memory);
        return 1;
    }

    proc_turn(runs[n - ndue]);

    return 1;
}


static void
run_until(ngx_msec_t end)
{
    while (!failed && step(end)) { /* void */ }

    now = ngx_max(now, end);
}


/* --- a run ---------------------------------------------------------------- */


static void
settings(uint64_t seed)
{
    uint64_t  r;

    static ngx_msec_t  windows[] = { 900, 3000, 20000 };
    static ngx_msec_t  leases[] = { 1000, 1500, 3000 };

    r = unit_random(&seed);

    memset(&set, 0, sizeof(settings_t));
    set.store = (r % 8 == 0) ? SIM_MEMORY : (r % 8 < 4) ? SIM_FILE : SIM_REDIS;
    set.strict = (r >> 4) % 2;
    set.local = (!no_local && (r >> 8) % 3 == 0);
    set.window = windows[(r >> 12) % 3];
    set.lease = leases[(r >> 16) % 3];
    set.timeout = 100 + (r >> 20) % 3 * 100;
    set.nested = ((r >> 24) % 3) ? 2 + (r >> 28) % 20 : 0;
}


/* most of it are clients, in crowds; and a few troubles of some kinds */

static void
plan_make(uint64_t seed)
{
    uint64_t     r;
    ngx_uint_t   i, n, kinds;
    ngx_msec_t   at;

    static plan_e  which[3][16] = {
        { P_KILL, P_DIE, P_STOP, P_LEAP, P_MEMORY },
        { P_KILL, P_DIE, P_STOP, P_CRASH, P_HANG, P_FAIL, P_FULL, P_LEAP,
          P_MEMORY },
        { P_KILL, P_DIE, P_STOP, P_CRASH, P_LINK, P_LINK, P_HANG, P_CUT,
          P_LEAP, P_MEMORY },
    };
    static ngx_uint_t  nwhich[3] = { 5, 9, 10 };

    r = unit_random(&seed);
    n = 20 + r % 100;
    kinds = (r >> 8) % 1024;
    at = 100100;

    for (i = 0; i < n; i++) {
        r = unit_random(&seed);

        at += (r % 3) ? (r >> 2) % 4 : (r >> 2) % 200;

        plan[i].at = at;
        plan[i].left_out = 0;
        plan[i].what = P_CLIENT;
        plan[i].chance = unit_random(&seed);

        r >>= 16;

        if (r % 6 == 0) {
            r = (r >> 4) % nwhich[set.store];

            if (kinds & 1 << r) {
                plan[i].what = which[set.store][r];
            }
        }
    }

    planned = n;
}


static void
world_begins(uint64_t seed)
{
    ngx_str_t   src, dst;
    u_char      digest[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_uint_t  i;

    chance = seed;
    now = 100000;
    depth = failed = settling = micros = 0;
    nreqs = nexecs = nmessages = ngrants = 0;
    hung = failing = crammed = still = 0;
    storied = 0;
    fault_text[0] = '\0';
    memset(nginxes, 0, sizeof(nginxes));
    memset(messages, 0, sizeof(messages));

    for (i = 0; i < TOKENS; i++) {
        memset(digest, 'a' + (int) i, sizeof(digest));
        src.data = digest;
        src.len = sizeof(digest);
        strcpy(keys[i], "p:z:");
        dst.data = (u_char *) keys[i] + 4;
        ngx_encode_base64url(&dst, &src);
        keys[i][4 + dst.len] = '\0';
    }

    if (set.store == SIM_FILE) {
        file_make(directory);

    } else {
        sim_redis_reset();
    }

    tell("%s%s, a window of %lu ms, a lease of %lu ms%s",
         set.store == SIM_FILE ? "a file"
         : set.store == SIM_REDIS ? "a Redis" : "memory alone",
         set.strict ? ", strict" : "", (unsigned long) set.window,
         (unsigned long) set.lease, set.local ? ", local" : "");

    for (i = 0; i < NGINX; i++) {
        nginxes[i].name = (char) ('A' + (int) i);
        nginx_up(&nginxes[i]);
    }

    for (i = 0; i < planned; i++) {
        message(M_PLAN, plan[i].at - now, NULL)->n = i;
    }
}


static void
world_ends(void)
{
    ngx_uint_t  i;

    for (i = 0; i < NGINX; i++) {
        if (nginxes[i].up) {
            nginx_killed(&nginxes[i]);
        }
    }

    for (i = 0; i < MESSAGES; i++) {
        if (messages[i].used) {
            free(messages[i].memory);
        }
    }

    n_msec += now - 100000;

    if (set.store == SIM_FILE) {
        file_remove();
    }
}


/* nothing goes wrong any more */

static void
calm(void)
{
    proc_t      *p;
    ngx_uint_t   i, k;

    settling = 1;
    hung = failing = crammed = 0;

    tell("nothing goes wrong any more");

    for (i = 0; i < NGINX; i++) {
        nginxes[i].healed = 0;
        nginxes[i].link = 0;
        nginx_up(&nginxes[i]);

        for (k = 0; k < SIM_SLOTS; k++) {
            p = &nginxes[i].procs[k];
            p->stopped = 0;
            p->dies = 0;
        }
    }
}


static void
all_ended(char *when)
{
    ngx_uint_t  i;

    for (i = 0; i < nreqs; i++) {

        if (reqs[i].act != IDLE) {
            fault("request %u for %c at nginx %c has no end: it %s %s",
                  (unsigned) reqs[i].n, token_name(reqs[i].token),
                  reqs[i].proc->nginx->name,
                  reqs[i].act == WAITS ? "waits" : reqs[i].act == OWNS
                  ? "executes" : "waits for its outcome", when);
        }
    }
}


/* each token has its answer, everywhere */

static void
asked_again(void)
{
    req_t       *q;
    ngx_uint_t   i, token;

    for (token = 0; token < TOKENS && !failed; token++) {
        for (i = 0; i < NGINX * 2 && !failed; i++) {

            q = request(&nginxes[i / 2].procs[nginxes[i / 2].pair + i % 2],
                        token, 1);
            q->final = 1;
            q->local = 0;

            run_until(now + 1500);

            if (q->act != IDLE) {
                run_until(now + 10000);
            }

            all_ended("at the end");

            if (!failed && q->exec == NULL
                && (q->claim.op.result != NGX_IDEMPOTENCY_BOUND
                    || q->claim.found.outcome == NGX_IDEMPOTENCY_PENDING))
            {
                fault("%c has no answer at the end at nginx %c: %s",
                      token_name(token), nginxes[i / 2].name, q->end);
            }
        }
    }
}


static void
nothing_left(void)
{
    proc_t      *p;
    ngx_uint_t   i;

    run_until(now + set.window + 15000);

    for (i = 0; i < NGINX && !failed; i++) {
        p = &nginxes[i].procs[nginxes[i].pair];

        if (proc_runs(p)) {
            *p->w->msec = now + p->nginx->offset;
            p->w->examine(1);
        }
    }
}


static void
zones_checked(void)
{
    proc_t      *p;
    ngx_uint_t   i;

    for (i = 0; i < NGINX && !failed; i++) {
        p = &nginxes[i].procs[nginxes[i].pair];

        if (proc_runs(p)) {
            *p->w->msec = now + p->nginx->offset;
            p->w->examine(0);
        }
    }
}


/* false: it failed */

static ngx_uint_t
run(uint64_t seed)
{
    ngx_msec_t  end;

    world_begins(seed);

    end = planned ? plan[planned - 1].at : now;

    while (!failed && now < end) {
        run_until(now + 500);
        zones_checked();
    }

    run_until(end + 10);

    if (!failed) {
        calm();
        run_until(now + 12000);
        all_ended("though nothing went wrong for twelve seconds");
        zones_checked();
    }

    if (!failed) {
        asked_again();
    }

    if (!failed) {
        nothing_left();
    }

    world_ends();

    return !failed;
}


/* --- seeds ---------------------------------------------------------------- */


/* what is wrong, without which request it is */

static uint64_t
fault_kind(void)
{
    char      *p;
    uint64_t   kind;

    for (p = fault_text, kind = 0; *p; p++) {
        if ((*p < '0' || *p > '9')
            && (p[1] != ' ' || p == fault_text || p[-1] != ' '))
        {
            kind = kind * 31 + *p;
        }
    }

    return kind;
}


/* with less in its plan it fails, too: by this seed of chance, or by another */

static ngx_uint_t
fails(uint64_t *seed, uint64_t kind)
{
    uint64_t    other;
    ngx_uint_t  i;

    for (i = 0; i < 12; i++) {
        other = *seed + i;

        if (!run(other) && fault_kind() == kind) {
            *seed = other;
            return 1;
        }
    }

    return 0;
}


static void
minimise(uint64_t *seed, ngx_uint_t seconds)
{
    time_t      end;
    uint64_t    kind;
    ngx_uint_t  i, k, n, less;

    kind = fault_kind();
    end = time(NULL) + seconds;

    for (n = planned / 2; n; n = less ? n : n / 2) {
        less = 0;

        for (i = 0; i < planned; i += n) {

            for (k = i, less = 0; k < planned && k < i + n; k++) {
                less += !plan[k].left_out;
                plan[k].left_out |= 2;
            }

            if (less && time(NULL) < end && fails(seed, kind)) {
                for (k = i; k < planned && k < i + n; k++) {
                    plan[k].left_out = 1;
                }

                continue;
            }

            for (k = i; k < planned && k < i + n; k++) {
                plan[k].left_out &= ~2;
            }
        }

        less = 0;

        if (n == 1) {
            break;
        }
    }
}


static void
tell_story(uint64_t seed, ngx_uint_t seconds)
{
    uint64_t    found;
    ngx_uint_t  i, n;

    printf("# seed %llu fails: %s\n", (unsigned long long) seed, fault_text);

    found = seed;

    if (seconds) {
        minimise(&found, seconds);
    }

    for (i = 0, n = 0; i < planned; i++) {
        n += !plan[i].left_out;
    }

    telling = 1;
    (void) run(found);
    telling = 0;

    printf("# with %u of %u events of its plan:\n\n%s\n", (unsigned) n,
           (unsigned) planned, story);
    fflush(stdout);
}


static ngx_uint_t
try(uint64_t seed, ngx_uint_t seconds)
{
    settings(seed);
    plan_make(seed);

    if (run(seed)) {
        return 1;
    }

    tell_story(seed, seconds);

    return 0;
}


static void
world_init(char *worker)
{
    char        path[256], command[1024];
    ngx_uint_t  i, k;

    static ngx_log_t   log;
    static ngx_time_t  time;
    static char        dir[128];

    snprintf(dir, sizeof(dir), "%s/sim.XXXXXX",
             getenv("TMPDIR") ? getenv("TMPDIR")
             : access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    directory = mkdtemp(dir);

    if (directory == NULL) {
        perror(dir);
        exit(2);
    }

    for (i = 0; i < NGINX; i++) {
        for (k = 0; k < SIM_SLOTS; k++) {
            snprintf(path, sizeof(path), "%s/%c%u.so", directory,
                     (char) ('A' + (int) i), (unsigned) k);
            snprintf(command, sizeof(command), "cp '%s' '%s'", worker, path);

            if (system(command) != 0) {
                exit(2);
            }
        }
    }

    unit_cycle.log = &log;
    ngx_pid = getpid();
    ngx_ncpu = 1;
    ngx_pagesize = 4096;
    ngx_cacheline_size = 64;
    ngx_cached_time = &time;
    ngx_slab_sizes_init();
    unit_expect("");
}


static void
world_done(void)
{
    char        path[256];
    ngx_uint_t  i, k;

    for (i = 0; i < NGINX; i++) {
        for (k = 0; k < SIM_SLOTS; k++) {
            snprintf(path, sizeof(path), "%s/%c%u.so", directory,
                     (char) ('A' + (int) i), (unsigned) k);
            unlink(path);
        }
    }

    rmdir(directory);
}


/* a file's lines: a seed, and whatever else */

static ngx_uint_t
try_list(char *path, ngx_uint_t less, ngx_uint_t *bad)
{
    FILE        *f;
    char         line[512], *end;
    uint64_t     seed;
    ngx_uint_t   n;

    f = fopen(path, "r");

    if (f == NULL) {
        perror(path);
        exit(2);
    }

    for (n = 0; fgets(line, sizeof(line), f); /* void */ ) {
        seed = strtoull(line, &end, 10);

        if (end != line) {
            *bad += !try(seed, less);
            n++;
        }
    }

    fclose(f);

    return n;
}


static void
figures(ngx_uint_t seeds, ngx_uint_t bad, time_t took)
{
    ngx_uint_t  i;

    printf("# %lu seeds in %ld s, %lu failed: %llu events, %.1f simulated "
           "hours, %llu executions, %llu replays, %llu in doubt, %llu "
           "unavailable\n", (unsigned long) seeds, (long) took,
           (unsigned long) bad, (unsigned long long) n_events,
           n_msec / 3600e3, (unsigned long long) n_execs,
           (unsigned long long) n_replays, (unsigned long long) n_doubts,
           (unsigned long long) n_refused);

    for (i = 1; i < sizeof(plan_names) / sizeof(plan_names[0]); i++) {
        if (n_troubles[i]) {
            printf("#   %s: %llu\n", plan_names[i],
                   (unsigned long long) n_troubles[i]);
        }
    }

    printf("# sim tests: %lu passed, %lu failed\n",
           (unsigned long) (seeds - bad), (unsigned long) bad);
}


int
main(int argc, char **argv)
{
    int          i;
    uint64_t     seed, given;
    time_t       began;
    ngx_uint_t   seconds, seeds, bad, most, less, count;

    char  *list;

    seconds = 10;
    seeds = bad = given = 0;
    count = (ngx_uint_t) -1;
    list = NULL;
    most = 1;
    less = 20;
    seed = (uint64_t) time(NULL) * 1000003 + getpid();
    library = "worker.so";

    for (i = 1; i + 1 < argc; i += 2) {

        if (strcmp(argv[i], "--worker") == 0) {
            library = argv[i + 1];

        } else if (strcmp(argv[i], "--seconds") == 0) {
            seconds = atoi(argv[i + 1]);

        } else if (strcmp(argv[i], "--hours") == 0) {
            seconds = atof(argv[i + 1]) * 3600;

        } else if (strcmp(argv[i], "--from") == 0) {
            seed = strtoull(argv[i + 1], NULL, 0);

        } else if (strcmp(argv[i], "--seed") == 0) {
            given = strtoull(argv[i + 1], NULL, 0);

        } else if (strcmp(argv[i], "--count") == 0) {
            count = atoi(argv[i + 1]);

        } else if (strcmp(argv[i], "--local") == 0) {
            no_local = (atoi(argv[i + 1]) == 0);

        } else if (strcmp(argv[i], "--list") == 0) {
            list = argv[i + 1];

        } else if (strcmp(argv[i], "--most") == 0) {
            most = atoi(argv[i + 1]);

        } else if (strcmp(argv[i], "--minimise") == 0) {
            less = atoi(argv[i + 1]);

        } else {
            fprintf(stderr, "what is %s?\n", argv[i]);
            return 2;
        }
    }

    setvbuf(stdout, NULL, _IOLBF, 0);
    world_init(library);
    began = time(NULL);

    if (given) {
        bad = !try(given, less);
        world_done();
        return bad != 0;
    }

    if (list) {
        seeds = try_list(list, less, &bad);
        count += (count == (ngx_uint_t) -1) ? 0 : seeds;
    }

    printf("# seeds from %llu on\n", (unsigned long long) seed);

    while (seeds < count && bad < most
           && time(NULL) - began < (time_t) seconds)
    {
        bad += !try(seed++, less);
        seeds++;
    }

    figures(seeds, bad, time(NULL) - began);
    world_done();

    return bad != 0;
}
