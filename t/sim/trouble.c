
/*
 * What a seed is made of: its settings, and a plan of who comes when and what
 * goes wrong when.
 */


#include "world.h"


ngx_msec_t  hung, failing, crammed;
ngx_uint_t  troubled;


char  *plan_names[P_KINDS] = {
    [P_CLIENT] = "clients",
    [P_KILL] = "worker killed",
    [P_DIE] = "worker dies between two critical sections",
    [P_STOP] = "worker stopped",
    [P_CRASH] = "nginx killed",
    [P_LINK] = "way to the Redis ill",
    [P_HANG] = "store hangs",
    [P_FAIL] = "file fails",
    [P_FULL] = "file full",
    [P_CUT] = "connection cut",
    [P_LEAP] = "all stand still",
    [P_MEMORY] = "memory short",
    [P_RELOAD] = "reload",
    [P_QUIT] = "nginx quits",
    [P_TERM] = "nginx terminates",
    [P_FAILOVER] = "Redis fails over",
    [P_LAG] = "replica lags",
    [P_EMPTIED] = "Redis emptied or exchanged",
    [P_CLOCK] = "clock of the Redis set",
    [P_POWER] = "power cut",
    [P_EXCHANGED] = "file exchanged"
};


static const plan_e  with_memory[] = {
    P_KILL, P_DIE, P_STOP, P_LEAP, P_MEMORY, P_RELOAD, P_QUIT, P_TERM
};

static const plan_e  with_file[] = {
    P_KILL, P_DIE, P_STOP, P_LEAP, P_MEMORY, P_RELOAD, P_QUIT, P_TERM,
    P_CRASH, P_HANG, P_FAIL, P_FULL, P_POWER, P_EXCHANGED
};

static const plan_e  with_redis[] = {
    P_KILL, P_DIE, P_STOP, P_LEAP, P_MEMORY, P_RELOAD, P_QUIT, P_TERM,
    P_CRASH, P_HANG, P_CUT, P_LINK, P_LINK, P_FAILOVER, P_LAG, P_EMPTIED,
    P_CLOCK
};

static const struct {
    const plan_e  *kinds;
    ngx_uint_t     n;
} with[] = {
    [SIM_MEMORY] = { with_memory, 8 },
    [SIM_FILE] = { with_file, 14 },
    [SIM_REDIS] = { with_redis, 17 }
};


void
settings(uint64_t seed)
{
    uint64_t  r;

    static ngx_msec_t  windows[] = { 900, 3000, 20000 };
    static ngx_msec_t  leases[] = { 1000, 1500, 3000 };

    r = unit_random(&seed);

    memset(&set, 0, sizeof(settings_t));
    set.store = (r % 8 == 0) ? SIM_MEMORY : (r % 8 < 4) ? SIM_FILE : SIM_REDIS;
    set.strict = (r >> 4) % 2;
    set.local = ((r >> 8) % 3 == 0);
    set.window = windows[(r >> 12) % 3];
    set.lease = leases[(r >> 16) % 3];
    set.timeout = 100 + (r >> 20) % 3 * 100;
    set.nested = ((r >> 24) % 3) ? 2 + (r >> 28) % 20 : 0;
    set.quota = ((r >> 36) % 4) ? 0 : 2 + (r >> 40) % 2;
}


/* most of it are clients, in crowds; and a few troubles of some kinds */

void
plan_make(uint64_t seed)
{
    uint64_t     r, kinds;
    ngx_uint_t   i;
    ngx_msec_t   at;

    r = unit_random(&seed);
    planned = 20 + r % 100;
    kinds = r >> 8;
    at = 100100;

    for (i = 0; i < planned; i++) {
        r = unit_random(&seed);

        at += (r % 3) ? (r >> 2) % 4 : (r >> 2) % 200;

        plan[i].at = at;
        plan[i].left_out = 0;
        plan[i].what = P_CLIENT;
        plan[i].chance = unit_random(&seed);

        r >>= 16;

        if (r % 6 == 0) {
            r = (r >> 4) % with[set.store].n;

            if (kinds >> r & 1) {
                plan[i].what = with[set.store].kinds[r];
            }
        }
    }
}


ngx_uint_t
plan_has(plan_e what)
{
    ngx_uint_t  i;

    for (i = 0; i < planned; i++) {
        if (plan[i].what == what) {
            return 1;
        }
    }

    return 0;
}


static void
plan_client(uint64_t r)
{
    proc_t   *p;
    nginx_t  *g;

    g = &nginxes[r % NGINX];
    p = proc_serving(g, (r >> 4) % 2);

    if (g->up && proc_runs(p) && !p->quits) {
        (void) request(p, (r >> 8) % TOKENS, r >> 12);
    }
}


static void
plan_worker(plan_e what, proc_t *p, uint64_t r)
{
    message_t  *m;

    switch (what) {

    case P_KILL:
        tell("nginx %c, worker %u is killed", p->nginx->name,
             (unsigned) p->slot);
        proc_kill(p);
        break;

    case P_DIE:
        p->dies = 1 + r % 30;
        break;

    case P_STOP:
        if (set.store != SIM_REDIS || (r >> 12) % 2) {
            proc_stop(p, r % 3000);

        } else {
            p->halts = set.lease + 500 + r % 1000;
        }

        break;

    case P_CUT:
        m = message(M_CUT, 0, p);
        m->lane = r % SIM_LANES;
        m->number = p->numbers[m->lane];
        break;

    case P_MEMORY:
        if (p->stopped) {
            break;
        }

        tell("nginx %c: memory is short", p->nginx->name);

        (void) proc_does(p, p->w->short_of_memory);
        break;

    default:
        break;
    }
}


static void
plan_nginx(plan_e what, nginx_t *g, uint64_t r)
{
    static char  *ill[] = {
        "", "its way to the Redis holds all up", "what it tells the Redis is "
        "lost", "what the Redis answers it is lost"
    };

    switch (what) {

    case P_CRASH:
        tell("nginx %c is killed", g->name);
        nginx_kill(g);
        message(M_RESTART, r % 2000, NULL)->nginx = g;
        break;

    case P_LINK:
        g->link = 1 + r % 3;
        g->healed = now + (r >> 4) % 2000;
        g->ill = ((r >> 16) % 2) ? SIM_SLOTS : (r >> 18) % SIM_SLOTS;

        if (g->ill == SIM_SLOTS) {
            tell("nginx %c: %s for %lu ms", g->name, ill[g->link],
                 (unsigned long) (g->healed - now));
        } else {
            tell("nginx %c, worker %u: %s for %lu ms", g->name,
                 (unsigned) g->ill, ill[g->link],
                 (unsigned long) (g->healed - now));
        }

        break;

    case P_RELOAD:
        nginx_reload(g);
        break;

    default:
        nginx_end(g, what == P_TERM);
    }
}


static void
plan_store(plan_e what, uint64_t r)
{
    unsigned long  time;

    time = r % 2000;

    switch (what) {

    case P_HANG:
        hung = now + r % 3000;
        tell("the store hangs for %lu ms", (unsigned long) (hung - now));
        break;

    case P_FAIL:
        failing = now + time;
        tell("the file fails for %lu ms", time);
        break;

    case P_FULL:
        crammed = now + time;
        tell("the file is full for %lu ms", time);
        break;

    case P_POWER:
        power_cut();
        break;

    case P_EXCHANGED:
        file_exchanged(0);
        message(M_BACK, time, NULL);
        break;

    case P_FAILOVER:
        redis_fails_over(time / 2);
        break;

    case P_LAG:
        tell("the replica of the Redis has nothing new for %lu ms", time);
        redis_lags(time);

        /* ... and its master may die meanwhile */

        if ((r >> 12) % 3 == 0) {
            message(M_FAILOVER, time / 2, NULL);
        }

        break;

    case P_EMPTIED:
        if (r % 4 == 0) {
            tell("the Redis %s", (r >> 8) % 2 ? "is another one"
                                              : "is emptied");
            redis_emptied((r >> 8) % 2);

            /* ... and an operator may agree to that, noticed or not */

            if ((r >> 12) % 2) {
                message(M_AGREED, (r >> 16) % 4000, NULL);
            }
        }

        break;

    default:
        tell("the clock of the Redis is set %s by %lu ms",
             (r >> 16) % 2 ? "back" : "forward", time);
        redis_clock((r >> 16) % 2 ? -(int64_t) time : (int64_t) time);
    }
}


void
plan_event(plan_t *e)
{
    proc_t      *p;
    nginx_t     *g;
    uint64_t     r;
    ngx_uint_t   i;

    if (e->left_out) {
        return;
    }

    r = e->chance;
    troubled |= (e->what != P_CLIENT);
    counts[N_TROUBLES + e->what]++;

    if (e->what == P_CLIENT) {
        plan_client(r);
        return;
    }

    for (i = 0; i < NGINX; i++) {
        nginxes[i].disturbed = 1;
    }

    g = &nginxes[r % NGINX];
    p = &g->procs[(r >> 1) % SIM_SLOTS];
    p = p->up ? p : proc_serving(g, (r >> 1) % 2);
    r >>= 4;

    if (e->what == P_LEAP) {
        now += r % 3000;
        still += r % 3000;
        tell("all stood still for %lu ms", (unsigned long) (r % 3000));

    } else if (e->what > P_OF_NGINX) {
        plan_store(e->what, r);

    } else if (e->what > P_OF_WORKER) {
        if (g->up && !g->ends) {
            plan_nginx(e->what, g, r);
        }

    } else if (p->up) {
        plan_worker(e->what, p, r);
    }
}


/* nothing goes wrong any more, and an operator agrees to the store as it is */

void
calm(void)
{
    proc_t      *p;
    ngx_uint_t   i, k;

    settling = 1;
    hung = failing = crammed = 0;
    redis_lags(0);
    file_exchanged(1);

    tell("nothing goes wrong any more");

    for (i = 0; i < NGINX; i++) {
        nginxes[i].healed = 0;
        nginxes[i].link = 0;

        for (k = 0; k < SIM_SLOTS; k++) {
            p = &nginxes[i].procs[k];
            p->stopped = 0;
            p->halts = p->dies = 0;
        }

        nginx_up(&nginxes[i]);
    }
}


void
agree(void)
{
    proc_t      *p;
    ngx_uint_t   i;

    tell("an operator agrees to the store as it is");

    for (i = 0; i < NGINX && set.store == SIM_REDIS; i++) {
        p = proc_serving(&nginxes[i], 0);

        if (proc_runs(p)) {
            (void) proc_does(p, p->w->agree);
        }
    }

    judge_agreed();
}
