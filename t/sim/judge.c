
/*
 * What must be so, whatever happens: nobody executes what was executed, but
 * where docs/guarantees.md says that it may be (see excuse()); a replay is what
 * an execution was answered, byte by byte; no repeat moves a window; fences
 * rise; a quota is neither exceeded nor too small; what the log tells is true;
 * what was recorded is delivered when nginx ends in peace; who waits has an end
 * once trouble stops; and in the end nothing is left in any zone.
 */


#include "world.h"


#define GRANTS  16384


typedef struct {
    uint64_t                        instance;
    ngx_uint_t                      token;
    uint64_t                        fence;
    ngx_msec_t                      at;
    uint64_t                        wrote;
    ngx_uint_t                      lapsed;
    ngx_uint_t                      forgotten;
    /* as of an execution */
    ngx_msec_t                      refused;
} grant_t;


exec_t             execs[EXECS];
ngx_uint_t         nexecs;
ngx_msec_t         still;

static grant_t     grants[GRANTS];
static ngx_uint_t  ngrants;

/* by how much the server's clock was set forward, and back, all in all */

static ngx_msec_t  ahead, behind;

/* the store has forgotten anything at all */

static ngx_uint_t  forgot;

static u_char      body[200000];

static char        worker_gone[] = "its worker is gone";


void
judge_reset(void)
{
    nexecs = ngrants = 0;
    ahead = behind = still = 0;
    forgot = 0;
}


static ngx_uint_t closed(exec_t *e);


/* --- what the store has heard, and forgotten ------------------------------ */


/* what is later than that may be lost without it: of several writes within a
   millisecond a replica may have the first ones alone */

static uint64_t
wrote(void)
{
    return (set.store == SIM_REDIS) ? sim_redis_writes() : now;
}


void
judge_granted(uint64_t instance, ngx_uint_t token, uint64_t fence)
{
    grant_t  *g;

    if (ngrants == GRANTS) {
        fprintf(stderr, "too many grants\n");
        exit(2);
    }

    g = &grants[ngrants++];
    memset(g, 0, sizeof(grant_t));

    g->instance = instance;
    g->token = token;
    g->fence = fence;
    g->at = now;
    g->wrote = wrote();
}


static exec_t *
exec_of(uint64_t instance, ngx_uint_t token, uint64_t fence)
{
    exec_t  *e;

    for (e = execs; e < execs + nexecs; e++) {
        if (e->instance == instance && e->token == token && e->fence == fence) {
            return e;
        }
    }

    return NULL;
}


void
judge_told_doubt(uint64_t instance, ngx_uint_t token, uint64_t fence)
{
    exec_t  *e;

    e = exec_of(instance, token, fence);

    if (e && !e->shown) {
        e->shown = now;
        e->showed = wrote();
    }
}


void
judge_heard(uint64_t instance, ngx_uint_t token, uint64_t fence,
    ngx_uint_t outcome, ngx_uint_t stale)
{
    exec_t  *e;

    e = exec_of(instance, token, fence);

    if (e == NULL) {
        return;
    }

    if (stale) {
        e->outdone = 1;
        return;
    }

    /* its doubt may have ended while all stood still */

    if ((e->told || (e->shown && now + ahead < e->shown + set.window))
        && !outcome && !closed(e))
    {
        fault("a renewal of execution %u takes back what the store had",
              (unsigned) e->n);
    }

    /* what is told again was there before */

    e->wrote = e->told ? e->wrote : wrote();
    e->heard = now;
    e->shown = 0;
    e->granted = 1;
    e->told |= outcome;
}


/* a silent owner's claim may be taken over, by the server's clock */

void
judge_lapses(ngx_uint_t token)
{
    exec_t   *e;
    grant_t  *g;

    for (g = grants; g < grants + ngrants; g++) {
        g->lapsed |= (g->token == token
                      && now - g->at + 2 + ahead >= set.lease);
    }

    for (e = execs; e < execs + nexecs; e++) {
        if (e->token == token && !e->told && e->granted
            && now - e->heard + 2 + ahead >= set.lease)
        {
            if (e->heard >= e->doubted) {
                e->doubted = now;
            }

            e->lapsed = 1;

            if (!troubled && e->state == RUNS) {
                fault("the lease of execution %u ends, and nothing has gone "
                      "wrong", (unsigned) e->n);
            }
        }
    }
}


/* all of the nginx that had it is no more */

static ngx_uint_t
gone(exec_t *e)
{
    return !e->nginx->up || e->nginx->instance != e->instance;
}


/*
 * What was written since then is lost.  Over replicas, and to a strict file,
 * that is only what nobody was told.  `refused`: the store is another one, and
 * refused by those who know that.  What an nginx that has gone had told nobody
 * knows any more, if its client does not.
 */

void
judge_forgets(uint64_t since, ngx_uint_t refused)
{
    proc_t      *p;
    exec_t      *e;
    grant_t     *g;
    ngx_uint_t   i;

    forgot = 1;

    for (i = 0; i < NGINX * SIM_SLOTS && refused; i++) {
        p = &nginxes[i / SIM_SLOTS].procs[i % SIM_SLOTS];

        if (p->up && p->w->shm->sh && p->w->shm->sh->tier.agreed) {
            p->nginx->agreeing = now;
        }
    }

    for (g = grants; g < grants + ngrants; g++) {
        if (g->wrote >= since) {
            g->refused = (refused && !g->refused) ? now : g->refused;
            g->forgotten |= !refused && !set.strict;
        }
    }

    for (e = execs; e < execs + nexecs; e++) {

        e->shown = (e->showed >= since) ? 0 : e->shown;

        if (e->wrote < since) {
            continue;
        }

        e->refused = (refused && !e->refused) ? now : e->refused;
        e->forgotten |= !refused && !set.strict;
        e->unknown |= (e->granting >= since);
        e->untold |= e->told;
        e->told = 0;

        /* renewals are not waited for, and lost with the rest */

        e->heard = e->claimed ? e->claimed : e->began;
        e->wrote = e->granting;

        if (refused || !set.strict) {
            e->sure = 0;
        }

        if (e->state != RELEASED && !e->sure && gone(e)) {
            e->died = 1;
        }
    }
}


void
judge_agreed(void)
{
    ngx_uint_t  i;

    for (i = 0; i < nexecs; i++) {
        execs[i].forgotten |= (execs[i].refused != 0);
    }

    for (i = 0; i < ngrants; i++) {
        grants[i].forgotten |= (grants[i].refused != 0);
    }
}


void
judge_clock(int64_t step)
{
    if (step > 0) {
        ahead += step;

    } else {
        behind += -step;
    }
}


/* --- deaths --------------------------------------------------------------- */


/* with all that it had under way */

void
judge_gone(proc_t *p)
{
    req_t       *q;
    exec_t      *e;

    for (q = reqs; q < reqs + nreqs; q++) {

        if (q->act == IDLE || q->proc != p) {
            continue;
        }

        e = q->exec;

        if (e && (e->state == RUNS || e->state == RECORDING)) {
            e->died = 1;
        }

        q->act = IDLE;
        q->end = worker_gone;
    }
}


/* what the store was not told nobody knows any more */

void
judge_nginx_gone(nginx_t *g)
{
    exec_t  *e;

    for (e = execs; e < execs + nexecs; e++) {
        if (e->instance == g->instance && !e->told && e->state != RELEASED) {
            e->died = 1;
        }
    }
}


/* its nginx ended at once, and nobody was granted the token before.  Behind the
   batch of a worker that has just died outcomes are waited for, and no doubt */

static ngx_uint_t
abandoned(exec_t *e)
{
    exec_t   *x;
    grant_t  *g;

    for (x = e + 1; x < execs + nexecs && x->token != e->token; x++) {
        /* void */
    }

    for (g = grants; g < grants + ngrants
         && (g->token != e->token || g->at < e->began); g++)
    {
        /* void */
    }

    return e->nginx->ends && e->nginx->at_once && !e->nginx->blocked
           && e->state == RUNS && !e->releasing && !closed(e)
           && x == execs + nexecs && g == grants + ngrants;
}


/* nothing keeps it from telling the store, nor, if it ends at once, that owners
   have gone; else the claim is enough of what is in doubt */

void
judge_delivered(nginx_t *g, char *when)
{
    exec_t  *e;

    for (e = execs; e < execs + nexecs; e++) {

        if (e->instance == g->instance && !e->told
            && (abandoned(e)
                || (e->state == RECORDED && now < e->until
                    && e->outcome != NGX_IDEMPOTENCY_IN_DOUBT))
            && !e->outdone && !e->forgotten && !e->refused
            && set.store != SIM_MEMORY)
        {
            fault("nginx %c %s, and the store lacks the outcome of execution "
                  "%u", g->name, when, (unsigned) e->n);
        }
    }
}


/* --- executions ----------------------------------------------------------- */


/* the window of what it has recorded is over, or it was nothing */

static ngx_uint_t
closed(exec_t *e)
{
    if (e->state == RELEASED) {
        return 1;
    }

    if (e->state == RECORDED && !e->died) {
        return now + ahead >= e->until;
    }

    /* it is in doubt, or bound, at least for a window from its claim on */

    return now + ahead >= e->began + set.window;
}


static ngx_uint_t
doubtful(exec_t *e)
{
    return e->died || e->stood || e->lapsed
           || (e->state == RECORDING && e->outcome == NGX_IDEMPOTENCY_IN_DOUBT);
}


/* the one that was emptied then: who does refuses another one; the first answer
   was the stamp.  Who was told to agree, and is about to, agrees to what stands
   there when its question comes */

static ngx_uint_t
knows_the_store(nginx_t *g, ngx_msec_t emptied)
{
    return g->answered && g->answered <= emptied && g->agreeing != emptied;
}


/* why it may be executed once more, or NULL */

static char *
excuse(exec_t *e, req_t *q, exec_t *again)
{
    nginx_t     *g;
    ngx_uint_t   same;

    g = q->proc->nginx;

    if (closed(e)) {
        return "its window is over";
    }

    if (e->releasing && e->state != STALE) {
        return "its owner died while it released";
    }

    /* what its client was told for good stays */

    if (q->claim.retry && doubtful(e) && !(e->sure && now - e->sure > 1000)) {
        return "in doubt, and retried";
    }

    /* its lease was over the moment that the server's clock was set */

    if (q->token % 2 && again->lapsed) {
        return "its claim had lapsed, which nobody can know";
    }

    same = (e->instance == g->instance && e->nginx->up);

    if (!same && e->doubted > e->heard && !e->told
        && now + ahead >= e->doubted + set.window)
    {
        return "its owner was silent for as long as its doubt lasted";
    }

    if (e->alone && e->outdone) {
        return "alone, and another one was bound there";
    }

    if (set.store == SIM_MEMORY && !same) {
        return "another memory";
    }

    /* ... or the claim that was granted before the other one */

    if (e->forgotten || again->forgotten) {
        return "the store has forgotten it";
    }

    if ((e->refused && !knows_the_store(g, e->refused))
        || (again->refused && !knows_the_store(e->nginx, again->refused)))
    {
        return "the store is another one, and nothing else is known";
    }

    if (again->alone) {

        /* what its zone knows it does not execute, nor what it executed alone
           itself before */

        if (!same) {
            return "alone, and what another one knows";
        }

        if ((e->told || e->untold) && q->peek.fence != e->fence) {
            return "alone, and what only the store knows";
        }
    }

    if (e->alone && !e->told && !same) {
        return "what another one executed alone";
    }

    return NULL;
}


/* so many tokens are bound in its zone, at least */

static void
quota_kept(req_t *q, exec_t *e)
{
    exec_t      *x;
    ngx_uint_t   bound[TOKENS], i, n;

    if (q->claim.quota == 0 || set.store != SIM_MEMORY) {
        return;
    }

    memset(bound, 0, sizeof(bound));

    for (x = execs; x < execs + nexecs; x++) {
        bound[x->token] |= (x->instance == e->instance && !closed(x)
                            && !x->releasing);
    }

    for (n = 0, i = 0; i < TOKENS; i++) {
        n += bound[i];
    }

    if (n > q->claim.quota) {
        fault("execution %u exceeds a quota of %u: %u tokens are bound",
              (unsigned) e->n, (unsigned) q->claim.quota, (unsigned) n);
    }
}


/* The server knows no fence any more of what ended with its window, nor of a
   doubt that was released, with that: then its clock alone makes the next one.
   Any other release it knows for a minute. */

static ngx_uint_t
fence_lost(exec_t *x, exec_t *e)
{
    if (x->forgotten || x->refused || x->unknown || !x->granted) {
        return 1;
    }

    for (x = execs; x < e; x++) {
        if (x->token == e->token && x->state != RELEASED && closed(x)) {
            return 1;
        }
    }

    return 0;
}


exec_t *
judge_execution(req_t *q)
{
    exec_t   *e, *x;
    grant_t  *g;

    if (nexecs == EXECS) {
        fprintf(stderr, "too many executions\n");
        exit(2);
    }

    e = &execs[nexecs++];
    counts[N_EXECS]++;

    memset(e, 0, sizeof(exec_t));
    e->n = nexecs;
    e->token = q->token;
    e->nginx = q->proc->nginx;
    e->instance = e->nginx->instance;
    e->fence = q->claim.fence;
    e->began = now;
    e->heard = now;
    e->granting = e->wrote = wrote();
    e->alone = (q->claim.alone && set.store != SIM_MEMORY);

    for (g = grants; g < grants + ngrants; g++) {
        if (g->token == e->token && g->fence == e->fence
            && g->instance == e->instance)
        {
            e->claimed = e->heard = g->at;
            e->granting = e->wrote = g->wrote;
            e->granted = 1;
            e->alone = 0;
            e->lapsed = (g->lapsed && ahead);
            e->forgotten = g->forgotten;
            e->refused = g->refused;
        }
    }

    tell("request %u executes %c%s: execution %u", (unsigned) q->n,
         token_name(q->token), e->alone ? ", alone" : "", (unsigned) e->n);

    if (!e->granted && !e->alone && set.store != SIM_MEMORY) {
        fault("execution %u of %c, which the store has not granted",
              (unsigned) e->n, token_name(e->token));
    }

    for (x = execs; x < e; x++) {

        if (x->token != e->token) {
            continue;
        }

        if (excuse(x, q, e) == NULL) {
            fault("execution %u of %c although there was execution %u",
                  (unsigned) e->n, token_name(e->token), (unsigned) x->n);
        }

        if (!e->alone && x->fence >= e->fence && x->instance == e->instance
            && !(behind && fence_lost(x, e)))
        {
            fault("the fence of execution %u of %c does not rise",
                  (unsigned) e->n, token_name(e->token));
        }
    }

    quota_kept(q, e);

    return e;
}


void
judge_ended(req_t *q, ngx_idempotency_result_e result, ngx_uint_t releases)
{
    exec_t  *e;

    e = q->exec;

    switch (result) {

    case NGX_IDEMPOTENCY_OK:
    case NGX_IDEMPOTENCY_TRIMMED:
        e->state = releases ? RELEASED : RECORDED;
        e->died = (!releases && e->outcome == NGX_IDEMPOTENCY_IN_DOUBT);
        break;

    case NGX_IDEMPOTENCY_STALE:
        e->state = STALE;

        if (!doubtful(e) && !e->alone && !e->forgotten && !e->refused) {
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
         : releases ? "released"
         : e->outcome == NGX_IDEMPOTENCY_IN_DOUBT ? "in doubt" : "recorded");
}


/* --- answers -------------------------------------------------------------- */


/* A copy's ages are those of when they were sent: it ends that much later as
   the ways there and back took, or its reader stood still meanwhile */

static ngx_msec_int_t
late(void)
{
    return (set.store == SIM_REDIS)
           ? 2 * (ngx_msec_int_t) set.timeout + 10
             + (ngx_msec_int_t) (still + behind)
           : 2;
}


static void
replayed(req_t *q)
{
    exec_t                   *e;
    ngx_msec_int_t            left;
    ngx_idempotency_found_t  *found;

    found = &q->claim.found;
    counts[N_REPLAYS]++;

    for (e = execs; e < execs + nexecs; e++) {

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

    if (e == execs + nexecs) {
        fault("request %u has a replay of %c that no execution answered",
              (unsigned) q->n, token_name(q->token));
        return;
    }

    tell("request %u has a replay of execution %u", (unsigned) q->n,
         (unsigned) e->n);

    if (e->state != RECORDED || e->died) {
        return;
    }

    left = (ngx_msec_int_t) (e->until - now);

    /* what is told again behind its window is bound for a millisecond more */

    if (left < 0 && e->heard > e->until) {
        left = (ngx_msec_int_t) (e->heard + 1 - now);
    }

    if (-left > late()) {
        fault("request %u has a replay of execution %u, whose window is over",
              (unsigned) q->n, (unsigned) e->n);
    }

    if ((ngx_msec_int_t) found->left < left - 10 - (ngx_msec_int_t) ahead
        || (ngx_msec_int_t) found->left > left + late())
    {
        fault("the window of execution %u has moved: %ld ms are left, not %ld",
              (unsigned) e->n, (long) found->left, (long) left);
    }
}


/* what its client was told for good is not in doubt, if it is all there is; who
   died when it had claimed alone left a doubt */

static void
in_doubt(req_t *q)
{
    req_t       *r;
    exec_t      *e;
    ngx_uint_t   open, sure;

    open = sure = 0;

    for (e = execs; e < execs + nexecs; e++) {

        if (e->token != q->token) {
            continue;
        }

        open += !closed(e) + e->alone;
        sure += (!closed(e) && e->sure && now - e->sure > 1000);
    }

    for (r = reqs; r < reqs + nreqs; r++) {
        open += (r->token == q->token && r->claim.alone
                 && r->end == worker_gone);
    }

    if (sure && open == sure) {
        fault("%c is in doubt although its client was told for sure",
              token_name(q->token));
    }
}


void
judge_bound(req_t *q)
{
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
        counts[N_DOUBTS]++;
        in_doubt(q);
        break;

    default:
        q->end = "refused, in progress";
    }

    tell("request %u: %s", (unsigned) q->n, q->end);
}


/* its zone knows as many tokens as that, at least */

void
judge_limited(req_t *q)
{
    ngx_uint_t  i, n;

    for (n = 0, i = 0; i < TOKENS; i++) {
        n += (proc_has(q->proc, i).state != NGX_IDEMPOTENCY_STATES);
    }

    if (n < q->claim.quota && !set.nested) {
        fault("request %u is over a quota of %u, but only %u tokens are there",
              (unsigned) q->n, (unsigned) q->claim.quota, (unsigned) n);
    }
}


/* --- the log -------------------------------------------------------------- */


static void
owner_gone(nginx_t *g, char *text)
{
    char        *token, *fence;
    exec_t      *e;

    token = strstr(text, "token: ");
    fence = strstr(text, "fence: ");

    if (token == NULL || fence == NULL) {
        fault("nginx %c says that an owner has gone, and not which", g->name);
        return;
    }

    /* in hex, 61 is an a; who dies in this very moment is not dead yet */

    e = exec_of(g->instance, token[8] - '1', strtoull(fence + 7, NULL, 10));

    if (e && e->state == RECORDED && !doubtful(e)) {
        fault("the log says that the owner of execution %u has gone",
              (unsigned) e->n);
    }
}


/* it has forgotten, or somebody took over what was silent, and that is over; or
   a window ended while its outcome was told again, and held up */

static void
claims_lost(nginx_t *g)
{
    exec_t  *e;

    for (e = execs; e < execs + nexecs; e++) {
        if (doubtful(e)
            || (e->state == RECORDED && e->until < now + 10
                && now < e->until + set.timeout))
        {
            return;
        }
    }

    if (!forgot && !ahead) {
        fault("nginx %c says that the store has lost claims", g->name);
    }
}


static void
store_said(nginx_t *g, char *text)
{
    g->says_down += (strstr(text, " is unavailable: ") != NULL);
    g->says_down -= (strstr(text, " is available again") != NULL);

    /* a file may be full, and fail as well */

    if (g->says_down < 0 || g->says_down > 1 + (set.store == SIM_FILE)) {
        fault("nginx %c says again what it has said: %s", g->name, text);
    }
}


void
judge_log(nginx_t *g, ngx_uint_t level, char *text)
{
    if (strstr(text, "the owner of a claim has gone")) {
        owner_gone(g, text);
    }

    /* two workers may say so of a file in another order than it was, and one
       that dies says nothing */

    if (set.store == SIM_REDIS || (!set.nested && !plan_has(P_DIE))) {
        store_said(g, text);
    }

    if (strstr(text, "others may have executed the same")) {
        claims_lost(g);
    }
}


/* --- the end -------------------------------------------------------------- */


void
all_ended(char *when)
{
    req_t  *q;

    static char  *acts[] = { "", "waits", "executes", "waits for its outcome" };

    for (q = reqs; q < reqs + nreqs; q++) {

        if (q->act != IDLE) {
            fault("request %u for %c at nginx %c has no end: it %s %s",
                  (unsigned) q->n, token_name(q->token),
                  q->proc->nginx->name, acts[q->act], when);
        }
    }
}


/* each token has its answer, everywhere */

void
asked_again(void)
{
    req_t       *q;
    proc_t      *p;
    ngx_uint_t   i, token;

    for (i = 0; i < NGINX; i++) {
        if (!nginxes[i].up) {
            fault("nginx %c does not end", nginxes[i].name);
            return;
        }

        /* one that was full has room again once something was written */

        if (nginxes[i].says_down && !plan_has(P_FULL) && !plan_has(P_DIE)) {
            fault("nginx %c says that the store is unavailable, which it is "
                  "not", nginxes[i].name);
        }
    }

    for (i = 0; i < TOKENS * NGINX * 2 && !failed; i++) {
        token = i / (NGINX * 2);
        p = proc_serving(&nginxes[i / 2 % NGINX], i % 2);

        q = request(p, token, 1);
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
                  token_name(token), p->nginx->name, q->end);
        }
    }
}


/* trees, queues, chunks, quotas and the allocator agree; or nothing is left */

void
zones_checked(ngx_uint_t empty)
{
    proc_t      *p;
    ngx_uint_t   i;

    for (i = 0; i < NGINX && !failed; i++) {
        p = proc_serving(&nginxes[i], 0);

        if (nginxes[i].up && proc_runs(p)) {
            *p->w->msec = now + p->nginx->offset;
            p->w->examine(empty);
        }
    }
}
