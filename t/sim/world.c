
/*
 * The simulation's world: its time, and what happens next.  All that is to
 * happen is a message, to a worker or to nobody; one of those that are due, or
 * a turn of a worker's event loop, is chosen by chance, and time goes on when
 * nothing is due.
 */


#include "world.h"


settings_t           set;
plan_t               plan[PLAN];
ngx_uint_t           planned;
uint64_t             chance;
ngx_msec_t           now;
ngx_uint_t           depth, failed, settling;
char                *directory;
char                 keys[TOKENS][64];

ngx_uint_t           telling;
char                 story[STORY];
char                 fault_text[1024];

/* of all runs, and of this one: what has happened, in one number */

uint64_t            *counts;
static uint64_t      trace;

static message_t     messages[MESSAGES];
static ngx_uint_t    nmessages;
static size_t        storied;


/* --- what is told --------------------------------------------------------- */


void
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


void
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


/* --- messages ------------------------------------------------------------- */


message_t *
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


/* --- what happens --------------------------------------------------------- */


static void
proc_shut_down(proc_t *p)
{
    req_t  *q;

    tell("nginx %c, worker %u: worker_shutdown_timeout", p->nginx->name,
         (unsigned) p->slot);

    for (q = reqs; q < reqs + nreqs; q++) {

        if (q->proc != p) {
            continue;
        }

        if (q->act == OWNS) {
            owner_ends(q, 1);
        }

        request_leaves(q);
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
        p->w->woken(m->all ? NULL : &m->n);
        break;

    case M_CONNECT:
        p->w->connected(m->lane, m->number,
                        (uint64_t) (SIM_EPOCH + m->at + server_ahead) * 1000);
        break;

    case M_REPLY:
        if (!redis_never_acked(m)) {
            p->w->answered(m->lane, m->number, m->id, m->memory, m->time,
                           !redis_acked(m));
        }

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
            owner_ends(q, 0);
        }

        break;

    case M_AGAIN:
        if (q->act == WAITS && now - q->asked >= AGAIN) {
            request_ask(q);
        }

        break;

    case M_LEAVES:
        request_leaves(q);
        break;

    case M_QUIT:
        tell("nginx %c, worker %u quits", p->nginx->name, (unsigned) p->slot);
        p->quits = 1;
        p->w->quit();
        break;

    case M_SHUTDOWN:
        proc_shut_down(p);
        break;

    default:
        break;
    }
}


static void
happens_to(proc_t *p, message_t *m)
{
    message_t  *next;

    switch (m->what) {

    case M_RESUME:
        tell("nginx %c, worker %u goes on", p->nginx->name,
             (unsigned) p->slot);
        p->stopped = 0;
        return;

    case M_COMES:
        (void) request(p, m->n, unit_random(&chance));
        return;

    case M_COMMIT:
        next = message(M_HANDED, below(3), p);
        next->batch = p->batch;
        (void) host_commit(p, p->batch);
        return;

    case M_AGAIN:
        if (m->req->act == WAITS) {
            message(M_AGAIN, AGAIN, p)->req = m->req;
        }

        break;

    case M_QUIT:
        if (m->n != SIM_QUIT) {
            proc_end(p, m->n == SIM_KILL);
            return;
        }

        if (!p->quits && below(3) == 0) {
            message(M_SHUTDOWN, below(2000), p);
        }

        break;

    default:
        break;
    }

    if (!enter(p)) {
        died(p);

    } else {
        deliver(p, m);
        leave(p);

        if (m->what == M_REPLY) {
            p->nginx->answered = p->nginx->answered ? p->nginx->answered : now;
            proc_halts(p);
        }
    }

    proc_settle(p);
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

    case M_FOLLOW:
        redis_follow(m);
        break;

    case M_SYNC:
        file_synced();
        break;

    case M_BACK:
        file_exchanged(1);
        break;

    case M_FAILOVER:
        if (!settling) {
            redis_fails_over(below(500));
        }

        break;

    case M_AGREED:
        agree();
        break;

    case M_SPAWN:
        if (g->up && !g->ends && m->n - g->pair < 2 && !g->procs[m->n].up) {
            proc_up(g, m->n, 0);
        }

        break;

    case M_RESTART:
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
    case M_FOLLOW:
    case M_SYNC:
        return 1;

    case M_PLAN:
    case M_SPAWN:
    case M_RESTART:
    case M_BACK:
    case M_FAILOVER:
    case M_AGREED:
        return depth == 0;

    default:
        break;
    }

    /* to nobody */

    if (!p->up || p->serial != m->serial) {
        return 1;
    }

    switch (m->what) {

    case M_RESUME:
        return !p->busy;

    case M_COMMIT:
    case M_HANDED:
        return now >= hung && proc_runs(p);

    case M_REPLY:
        return proc_runs(p) && (now >= m->unacked || redis_acked(m)
                                || redis_never_acked(m));

    case M_QUIT:
        return depth == 0 && !p->busy && (m->n == SIM_KILL || !p->stopped);

    default:
        return proc_runs(p);
    }
}


/* a turn of its event loop */

static void
proc_turn(proc_t *p)
{
    (void) proc_does(p, p->w->run);
    proc_settle(p);
}


/* what is next, of all that may be; false: nothing until then */

ngx_uint_t
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

        if (!m->used) {
            continue;
        }

        if (!may_happen(m)) {

            /* it is not waited for any longer than that */

            if (m->unacked > now) {
                next = ngx_min(next, m->unacked);
            }

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

        if (depth == 0) {
            nginx_settle(&nginxes[i]);
        }

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

    counts[N_EVENTS]++;
    n = below(ndue + nruns);
    trace = (trace ^ chance ^ now) * 0x9e3779b97f4a7c15;

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


void
run_until(ngx_msec_t end)
{
    while (!failed && step(end)) { /* void */ }

    now = ngx_max(now, end);
}


/* --- a run ---------------------------------------------------------------- */


static void
world_begins(uint64_t seed)
{
    ngx_str_t   src, dst;
    u_char      digest[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_uint_t  i;

    chance = trace = seed;
    now = 100000;
    depth = failed = settling = 0;
    hung = failing = crammed = troubled = exchanged = 0;
    nreqs = 0;
    storied = 0;
    fault_text[0] = '\0';
    memset(nginxes, 0, sizeof(nginxes));
    judge_reset();

    for (i = 0; i < TOKENS; i++) {
        memset(digest, 'a' + (int) i, sizeof(digest));
        src.data = digest;
        src.len = sizeof(digest);
        strcpy(keys[i], "p:z:");
        dst.data = (u_char *) keys[i] + 4;
        ngx_encode_base64url(&dst, &src);
        keys[i][4 + dst.len] = '\0';
    }

    tell("%s%s, a window of %lu ms, a lease of %lu ms%s",
         set.store == SIM_FILE ? "a file"
         : set.store == SIM_REDIS ? "a Redis" : "memory alone",
         set.strict ? ", strict" : "", (unsigned long) set.window,
         (unsigned long) set.lease, set.local ? ", local" : "");

    if (set.store == SIM_FILE) {
        storage_reset();

    } else {
        network_reset();
    }

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
            nginx_kill(&nginxes[i]);
        }
    }

    while (nmessages) {
        message_free(&messages[nmessages - 1]);
    }

    counts[N_MSEC] += now - 100000;
    counts[N_TRACE] += trace;

    if (set.store == SIM_FILE) {
        storage_done();
    }
}


/* one that quits waits for its store for up to thirty seconds */

static ngx_uint_t
serves(nginx_t *g)
{
    return g->up && !g->ends;
}


ngx_uint_t
run(uint64_t seed)
{
    ngx_uint_t  i;
    ngx_msec_t  end;

    world_begins(seed);

    end = planned ? plan[planned - 1].at : now;

    while (!failed && now < end) {
        run_until(now + 500);
        zones_checked(0);
    }

    run_until(end + 10);

    if (!failed) {
        calm();
    }

    for (i = 0; i < 40 && !failed; i++) {

        if (i == 12) {
            all_ended("though nothing went wrong for twelve seconds");
        }

        if (i >= 12 && serves(&nginxes[0]) && serves(&nginxes[1])) {
            break;
        }

        run_until(now + 1000);
        agree();
    }

    if (!failed) {
        for (i = 0; i < NGINX; i++) {
            judge_delivered(&nginxes[i], "had twelve seconds of peace");
        }

        zones_checked(0);
    }

    if (!failed) {
        asked_again();
    }

    if (!failed) {
        run_until(now + set.window + 20000);
        zones_checked(1);
    }

    world_ends();

    return !failed;
}
