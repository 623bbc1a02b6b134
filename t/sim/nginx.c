
/*
 * The nginx of the simulation and their workers: how they start, reload, end
 * in peace, stand still and die, and what a worker asks of its system.
 */


#include "world.h"

#include <dlfcn.h>


/* so long after its beginning a batch is its worker's, even a dead one's */

#define DESERTED  100


nginx_t            nginxes[NGINX];

static ngx_uint_t  serials;


static void proc_gone(proc_t *p);


/* --- what a worker asks --------------------------------------------------- */


void
leave(proc_t *p)
{
    p->busy = 0;
    depth--;
    p->next = p->w->next();
    p->next = (p->next == NGX_TIMER_INFINITE) ? p->next
              : now + p->next + (p->next && below(4) == 0 ? below(4) : 0);
}


/* it has died; one that was not told to quit has a successor */

static void
proc_respawn(proc_t *p, ngx_msec_t delay)
{
    message_t  *m;

    p->nginx->died = now;

    if (p->quits || p->nginx->ends) {
        return;
    }

    m = message(M_SPAWN, delay, NULL);
    m->nginx = p->nginx;
    m->n = p->slot;
}


void
died(proc_t *p)
{
    depth--;
    p->busy = 0;
    tell("nginx %c, worker %u dies in the middle of that", p->nginx->name,
         (unsigned) p->slot);
    proc_respawn(p, 1 + below(60));
    proc_gone(p);
}


ngx_uint_t
proc_does(proc_t *p, void (*what)(void))
{
    if (!enter(p)) {
        died(p);
        return 0;
    }

    what();
    leave(p);

    return 1;
}


sim_peek_t
proc_has(proc_t *p, ngx_uint_t token)
{
    u_char      digest[NGX_IDEMPOTENCY_DIGEST_LEN];
    sim_peek_t  peek;

    memset(digest, 'a' + (int) token, sizeof(digest));
    p->w->peek(digest, &peek);

    return peek;
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
        judge_log(p->nginx, level, text);
    }
}


static void
host_fault(void *worker, char *text)
{
    proc_t  *p = worker;

    /* a store's fences are made by others, too */

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

    if (other->up) {
        m = message(M_WAKE, below(3), other);
        m->all = (key == NULL);
        m->n = key ? *key : 0;
    }
}


static void
host_flush(void *worker, ngx_idempotency_batch_t *batch)
{
    proc_t  *p = worker;

    p->batch = batch;
    message(M_COMMIT, below(4), p);
}


/* a worker that ends waits for the world without an event loop */

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


static const sim_host_t  host = {
    .wall = host_wall,
    .log = host_log,
    .fault = host_fault,
    .between = host_between,
    .alive = host_alive,
    .stopped = host_stopped,
    .wake = host_wake,
    .flush = host_flush,
    .commit = host_commit,
    .connect = host_connect,
    .send = host_send,
    .subscribe = host_subscribe,
    .slept = host_slept
};


/* --- a worker ------------------------------------------------------------- */


ngx_uint_t
proc_runs(proc_t *p)
{
    return p->up && !p->stopped && !p->busy;
}


/* the n-th of those that take requests */

proc_t *
proc_serving(nginx_t *g, ngx_uint_t n)
{
    return &g->procs[g->pair + n];
}


void
proc_up(nginx_t *g, ngx_uint_t slot, ngx_uint_t fresh)
{
    char           path[256];
    proc_t        *p;
    sim_conf_t     conf;
    sim_worker_pt  worker;

    p = &g->procs[slot];

    if (p->up) {
        return;
    }

    memset(p->subscribed, 0, sizeof(p->subscribed));
    p->nginx = g;
    p->slot = slot;
    p->epoch++;
    p->serial = ++serials;
    p->up = 1;
    p->quits = p->stopped = p->busy = p->halts = p->dies = 0;
    p->batch = NULL;
    p->host = host;
    p->host.worker = p;

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


/* with all that it had under way */

static void
proc_gone(proc_t *p)
{
    judge_gone(p);

    p->up = 0;
    p->w->gone();
    dlclose(p->library);
}


void
proc_kill(proc_t *p)
{
    /* perhaps its thread was done, and nobody has heard of it */

    if (p->batch && below(2)) {
        (void) host_commit(p, p->batch);
    }

    proc_respawn(p, 1 + below(60));
    proc_gone(p);
}


void
proc_stop(proc_t *p, ngx_msec_t time)
{
    ngx_uint_t  i;

    tell("nginx %c, worker %u is stopped", p->nginx->name,
         (unsigned) p->slot);

    p->stopped = 1;
    still += time;
    message(M_RESUME, time, p);

    for (i = 0; i < nreqs; i++) {
        if (reqs[i].proc == p && reqs[i].act == OWNS) {
            reqs[i].exec->stood = 1;
        }
    }
}


void
proc_halts(proc_t *p)
{
    proc_t      *other;
    ngx_uint_t   i;

    for (i = 0; i < nreqs && p->halts; i++) {

        if (reqs[i].proc == p && reqs[i].act == WAITS
            && proc_has(p, reqs[i].token).state == NGX_IDEMPOTENCY_GRANTED)
        {
            proc_stop(p, p->halts);
            p->halts = 0;

            /* when its lease is over, somebody asks the other nginx */

            other = proc_serving(&nginxes[p->nginx == nginxes], 0);
            message(M_COMES, set.lease + below(500), other)->n = reqs[i].token;
        }
    }
}


static ngx_uint_t
proc_idle(proc_t *p)
{
    ngx_uint_t  i;

    for (i = 0; i < nreqs; i++) {
        if (reqs[i].proc == p && reqs[i].act != IDLE) {
            return 0;
        }
    }

    return !p->w->stays();
}


static void
proc_exit(proc_t *p)
{
    ngx_uint_t  i;

    tell("nginx %c, worker %u ends", p->nginx->name, (unsigned) p->slot);

    /* what it owns yet is in doubt by that */

    for (i = 0; i < nreqs; i++) {
        if (reqs[i].proc == p && reqs[i].act == OWNS) {
            reqs[i].exec->died = 1;
        }
    }

    if (proc_does(p, p->w->exit)) {
        p->nginx->blocked = (now - p->nginx->died <= DESERTED);
        proc_gone(p);
    }
}


/* all of its nginx is told to terminate, and killed if it does not */

void
proc_end(proc_t *p, ngx_uint_t killed)
{
    p->quits = 1;

    if (killed) {
        proc_kill(p);

    } else {
        proc_exit(p);
    }
}


void
proc_settle(proc_t *p)
{
    if (depth == 0 && p->up && p->quits && !p->busy && proc_idle(p)) {
        proc_exit(p);
    }
}


/* --- nginx ---------------------------------------------------------------- */


void
nginx_up(nginx_t *g)
{
    ngx_uint_t  i;

    if (g->up) {
        return;
    }

    g->pair = 0;
    g->generation = 0;
    g->instance = unit_random(&chance);
    g->fence = (SIM_EPOCH + now) * 1000;
    g->ends = g->says_down = 0;
    g->answered = 0;

    if (set.store == SIM_FILE) {

        if (!file_up(g)) {
            message(M_RESTART, 100, NULL)->nginx = g;
            return;
        }

    } else if (set.store == SIM_REDIS) {
        g->offset = (ngx_msec_t) below(1000000);
    }

    tell("nginx %c is started", g->name);

    g->zone = unit_shared(SIM_ZONE + 4096);
    g->up = 1;

    for (i = 0; i < 2 && !failed; i++) {
        proc_up(g, i, i == 0);
    }
}


static void
nginx_forgets(nginx_t *g)
{
    judge_nginx_gone(g);

    g->up = 0;
    g->ends = 0;

    if (g->db) {
        ngx_idempotency_db_close(g->db);
        g->db = NULL;
    }

    unit_unshared(g->zone, SIM_ZONE + 4096);
    g->zone = NULL;
}


void
nginx_kill(nginx_t *g)
{
    ngx_uint_t  i;

    g->ends = 1;

    for (i = 0; i < SIM_SLOTS; i++) {
        if (g->procs[i].up) {
            proc_kill(&g->procs[i]);
        }
    }

    nginx_forgets(g);
}


/* all of its workers have ended in peace, or died meanwhile */

void
nginx_settle(nginx_t *g)
{
    ngx_uint_t  i;

    for (i = 0; i < SIM_SLOTS; i++) {
        if (g->procs[i].up) {
            return;
        }
    }

    if (!g->up || !g->ends) {
        return;
    }

    tell("nginx %c has ended", g->name);

    if (!g->disturbed) {
        judge_delivered(g, "ended in peace");
    }

    nginx_forgets(g);
    message(M_RESTART, 1 + below(500), NULL)->nginx = g;
}


/* the workers of before finish what they have */

static void
nginx_quits(nginx_t *g, ngx_uint_t pair, ngx_uint_t how)
{
    proc_t      *p;
    ngx_uint_t   i;

    for (i = 0; i < 2; i++) {
        p = &g->procs[pair + i];

        if (p->up) {
            message(M_QUIT, below(30), p)->n = how;
        }

        if (p->up && how == SIM_TERM) {
            message(M_QUIT, 1000, p)->n = SIM_KILL;
        }
    }
}


void
nginx_reload(nginx_t *g)
{
    ngx_uint_t  i, old;

    old = g->pair;
    g->pair ^= 2;

    /* there is room for two generations of workers */

    for (i = 0; i < 2; i++) {
        if (proc_serving(g, i)->up) {
            g->pair = old;
            return;
        }
    }

    tell("nginx %c reloads", g->name);
    g->generation++;

    for (i = 0; i < 2; i++) {
        proc_up(g, g->pair + i, 0);
    }

    nginx_quits(g, old, SIM_QUIT);
}


/* something keeps it from telling the store all that it has: one that quits has
   time until the store is well again */

static ngx_uint_t
nginx_ill(nginx_t *g, ngx_uint_t at_once)
{
    ngx_uint_t  i, up;

    for (i = 0, up = 0; i < SIM_SLOTS; i++) {
        if (g->procs[i].up && (g->procs[i].stopped || g->procs[i].dies)) {
            return 1;
        }

        up |= g->procs[i].up;
    }

    /* the last one was killed before it had a successor; nobody may agree to
       another Redis meanwhile; who waits for one at its end hears nothing here */

    return !up || (g->says_down && plan_has(P_EMPTIED))
           || (at_once && (set.store == SIM_REDIS || now < hung
                           || now < failing || now < crammed || exchanged
                           || g->says_down));
}


void
nginx_end(nginx_t *g, ngx_uint_t at_once)
{
    ngx_uint_t  i;

    tell("nginx %c is told to %s", g->name,
         at_once ? "terminate" : "quit");

    g->ends = 1;
    g->at_once = at_once;
    g->disturbed = nginx_ill(g, at_once);

    for (i = 0; i < SIM_SLOTS; i += 2) {
        nginx_quits(g, i, at_once ? SIM_TERM : SIM_QUIT);
    }
}
