
/*
 * The way to a Redis, and the Redis at its end: what is sent is held up or
 * lost, connections are cut, and a replica follows the master, whose place it
 * takes.
 * What the server answers, its scripts say: see redis.c.
 */


#include "world.h"


/* of an nginx' way to the Redis */

#define LINK_HOLDS   1
#define LINK_THERE   2
#define LINK_BACK    3


/* what its clock is ahead of the world's, in milliseconds */

int64_t            server_ahead;

/* which server it is: another one with each failover; and how many writes of it
   its replica has, and when that will have the next */

static uint64_t    server;
static uint64_t    replicated;
/* ... of those before */
static uint64_t    acked[PLAN];
static ngx_msec_t  lagging, follows;
static ngx_uint_t  micros;


void
network_reset(void)
{
    lagging = follows = 0;
    server_ahead = 0;
    server = 1;
    micros = 0;
    replicated = sim_redis_reset();
}


/* --- the way -------------------------------------------------------------- */


static ngx_uint_t
link_ill(proc_t *p)
{
    nginx_t  *g;

    g = p->nginx;

    return now < g->healed && (g->ill == SIM_SLOTS || g->ill == p->slot);
}


void
host_connect(void *worker, ngx_uint_t lane, uint64_t number)
{
    proc_t     *p = worker;
    message_t  *m;

    p->numbers[lane] = number;
    p->arrival[lane][0] = p->arrival[lane][1] = now;

    if (link_ill(p)) {
        return;
    }

    m = message(M_CONNECT, 1 + below(3), p);
    m->lane = lane;
    m->number = number;
    m->at = ngx_max(m->at, hung);
}


/* when it arrives; 0: never.  On a connection nothing overtakes */

static ngx_msec_t
way(proc_t *p, ngx_uint_t lane, ngx_uint_t back)
{
    nginx_t     *g;
    ngx_msec_t   at;

    g = p->nginx;
    at = now + below(3);

    if (!settling && below(20) == 0) {
        at += below(set.timeout);
    }

    if (link_ill(p)) {

        if (g->link == (back ? LINK_BACK : LINK_THERE)) {
            return 0;
        }

        if (g->link == LINK_HOLDS) {
            at = ngx_max(at, g->healed + below(20));
        }
    }

    at = ngx_max(at, p->arrival[lane][back]);
    p->arrival[lane][back] = at;

    return at;
}


void
host_send(void *worker, ngx_uint_t lane, uint64_t number, uint64_t n,
    ngx_uint_t durable, ngx_str_t *text, ngx_str_t *words, ngx_uint_t nkeys,
    ngx_uint_t nwords)
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
    m->n = server;
    m->lane = lane;
    m->number = number;
    m->id = n;
    m->durable = (durable && set.strict);
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


/* TOKENS: it is no token's */

static ngx_uint_t
token_of(u_char *key, size_t len)
{
    ngx_uint_t  i;

    for (i = 0; i < TOKENS; i++) {
        if (strlen(keys[i]) == len && memcmp(keys[i], key, len) == 0) {
            break;
        }
    }

    return i;
}


void
host_subscribe(void *worker, ngx_str_t *key)
{
    proc_t      *p = worker;
    ngx_uint_t   token;

    token = token_of(key->data, key->len);

    if (token < TOKENS) {
        p->subscribed[token] = 1;
    }
}


/* one in ten is lost */

static void
redis_publish(u_char *key, size_t len)
{
    ngx_uint_t   i, token;
    proc_t      *p;

    token = token_of(key, len);

    for (i = 0; i < NGINX * SIM_SLOTS; i++) {
        p = &nginxes[i / SIM_SLOTS].procs[i % SIM_SLOTS];

        if (token < TOKENS && p->up && p->subscribed[token]
            && !link_ill(p) && below(10))
        {
            message(M_PUBLISH, below(4), p)->n = token;
        }
    }
}


/* --- the server ----------------------------------------------------------- */


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


/* which script it is, of those that are about a token, by their arguments:
   'c'laim, 'p'ut, 'r'elease */

static char
call_of(message_t *m)
{
    if (m->words[m->nkeys].len != 144) {
        return 0;
    }

    return (m->nwords - m->nkeys < 8) ? 'r'
           : (m->words[m->nkeys + 6].len == 2) ? 'c' : 'p';
}


/* behind the moment that it names; releases name none */

static ngx_uint_t
late(message_t *m, char what)
{
    ngx_str_t  *after;

    after = &m->words[m->nkeys + 8];

    return what != 'r' && after->len
           && m->time > (uint64_t) ngx_atoof(after->data, after->len);
}


static void
call_heard(message_t *m, char what, ngx_uint_t token,
    ngx_idempotency_redis_reply_t *reply)
{
    char         code;
    u_char      *head;
    ngx_str_t   *fence;

    head = m->words[m->nkeys].data;
    code = reply->n ? (char) reply->elts[0].str.data[0] : '?';

    tell("the Redis: nginx %c, worker %u: %s of %c: %c", m->proc->nginx->name,
         (unsigned) m->proc->slot,
         what == 'c' ? "claim" : what == 'p' ? "outcome or renewal" : "release",
         token_name(token), code);

    if (strchr("CDOT", code) && late(m, what)) {
        fault("nginx %c, worker %u: a call that comes late is executed",
              m->proc->nginx->name, (unsigned) m->proc->slot);
    }

    if (what == 'c' && (code == 'C' || code == 'D')) {
        fence = &reply->elts[2].str;
        judge_granted(m->proc->nginx->instance, token,
                      ngx_atoof(fence->data, fence->len));
    }

    if (what == 'c' && code == 'B') {
        head = reply->elts[2].str.data;

        if (head[2] == 'U') {
            judge_told_doubt(read64(head + 4), token, read64(head + 20));
        }

        return;
    }

    /* what another nginx has bound as well may leave memory all the same */

    if (what == 'p' && (code == 'O' || code == 'T' || code == 'S')) {
        judge_heard(read64(head + 4), token, read64(head + 20), head[2] != 'P',
                    code == 'S');
    }
}


/* what it has written its replica will have */

static void
redis_replicates(uint64_t n)
{
    message_t  *m;

    follows = ngx_max(follows, now + below(4));
    follows = ngx_max(follows, lagging);

    m = message(M_FOLLOW, 0, NULL);
    m->at = follows;
    m->number = server;
    m->n = n;
}


void
redis_call(message_t *m)
{
    char                            what;
    proc_t                         *p;
    uint64_t                        writes;
    message_t                      *r;
    ngx_msec_t                      at;
    ngx_uint_t                      token;
    ngx_idempotency_redis_reply_t  *reply;

    p = m->proc;

    /* what was sent over a connection that is gone may arrive, but not at
       another server */

    if (m->n != server
        || ((!p->up || p->serial != m->serial
             || p->numbers[m->lane] != m->number)
            && below(2)))
    {
        return;
    }

    token = token_of(m->words[0].data, m->words[0].len);
    what = (token < TOKENS) ? call_of(m) : 0;

    if (what == 'c') {
        judge_lapses(token);
    }

    m->time = (uint64_t) (SIM_EPOCH + now + server_ahead) * 1000
              + ++micros % 1000;
    writes = sim_redis_writes();

    reply = sim_redis_call(&m->text, m->words, m->nkeys, m->nwords, m->time,
                           redis_publish);

    if (what) {
        call_heard(m, what, token, reply);
    }

    if (sim_redis_writes() != writes) {
        writes = sim_redis_writes();
        redis_replicates(writes);
    }

    at = (p->up && p->serial == m->serial) ? way(p, m->lane, 1) : 0;

    if (at == 0) {
        free(reply);
        return;
    }

    r = message(M_REPLY, 0, p);
    r->at = at;
    r->n = server;
    r->lane = m->lane;
    r->number = m->number;
    r->id = m->id;
    r->time = m->time;
    r->memory = reply;

    if (m->durable) {
        r->durable = writes;
        r->unacked = now + set.timeout * 3 / 4;
    }
}


ngx_uint_t
redis_acked(message_t *m)
{
    return m->durable <= (m->n == server ? replicated : acked[m->n % PLAN]);
}


ngx_uint_t
redis_never_acked(message_t *m)
{
    return m->n != server && m->durable > acked[m->n % PLAN];
}


/* the replica has it */

void
redis_follow(message_t *m)
{
    if (m->number == server && m->n > replicated) {
        replicated = m->n;
        sim_redis_follow(m->n);
    }
}


void
redis_lags(ngx_msec_t time)
{
    lagging = now + time;
}


static void
connections_cut(void)
{
    proc_t      *p;
    message_t   *m;
    ngx_uint_t   i, lane;

    for (i = 0; i < NGINX * SIM_SLOTS; i++) {
        p = &nginxes[i / SIM_SLOTS].procs[i % SIM_SLOTS];

        for (lane = 0; p->up && lane < SIM_LANES; lane++) {
            m = message(M_CUT, below(20), p);
            m->lane = lane;
            m->number = p->numbers[lane];
        }
    }
}


/* the master is gone, and its replica serves in its place */

void
redis_fails_over(ngx_msec_t away)
{
    uint64_t  since;

    tell("the Redis fails over, and is away for %lu ms", (unsigned long) away);

    since = sim_redis_fail_over();
    acked[server++ % PLAN] = replicated;
    replicated = sim_redis_writes();
    follows = lagging = 0;
    hung = ngx_max(hung, now + away);
    connections_cut();

    if (since) {
        tell("the last %lu of what was written are lost",
             (unsigned long) (replicated + 1 - since));
        judge_forgets(since, 0);
    }
}


/* another one stands there, or somebody has emptied it */

void
redis_emptied(ngx_uint_t wholly)
{
    sim_redis_flush();
    judge_forgets(0, 1);

    if (wholly) {
        acked[server++ % PLAN] = replicated;
        connections_cut();
    }
}


/* what was on its way is as late, or as early */

void
redis_clock(int64_t step)
{
    server_ahead += step;
    judge_clock(step);
}
