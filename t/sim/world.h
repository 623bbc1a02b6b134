
/*
 * The simulation's world.  One thread, no clock, no network and no disk but its
 * own: two nginx of two workers each, clients, an upstream that counts, and
 * behind the nginx nothing, a file or a Redis.  A seed makes a plan (who comes
 * when, what goes wrong when) and decides what happens next wherever that is
 * open.
 *
 * Its chapters:
 *
 *   main.c     seeds: which are tried, and the stories of those that fail
 *   world.c    time, messages, what happens next, a run
 *   nginx.c    workers and their nginx: start, reload, end, death
 *   clients.c  requests, the upstream's executions and their outcomes
 *   network.c  the way to a Redis and what it does; its scripts: redis.c, or
 *              server.c, in a real server
 *   storage.c  the file, and a disk that loses what was not synced
 *   trouble.c  the settings of a seed, its plan, and what goes wrong
 *   judge.c    what must be so
 *   worker.c   the other side of sim.h: the real rooms in a library
 */


#ifndef _WORLD_H_INCLUDED_
#define _WORLD_H_INCLUDED_


#include "sim.h"
#include "unit.h"
#include "file.h"

#include <setjmp.h>


#define NGINX     2
#define TOKENS    4
#define PLAN      400
#define REQUESTS  1000
#define EXECS     1000
#define MESSAGES  4096
#define STORY     (256 * 1024)

/* milliseconds: a request that waits asks again so often, and waits so long */

#define AGAIN     500
#define PATIENCE  3000


typedef struct proc_s   proc_t;
typedef struct nginx_s  nginx_t;
typedef struct req_s    req_t;
typedef struct exec_s   exec_t;


/* a worker process */

struct proc_s {
    sim_host_t                      host;
    sim_worker_t                   *w;
    void                           *library;
    nginx_t                        *nginx;
    ngx_uint_t                      slot;
    uint32_t                        epoch;
    /* rises with each process: a message to the one before finds nobody */
    ngx_uint_t                      serial;
    ngx_uint_t                      up;
    /* it was told to quit; it stands still; its code runs now */
    ngx_uint_t                      quits;
    ngx_uint_t                      stopped;
    ngx_uint_t                      busy;
    /* its next timer */
    ngx_msec_t                      next;
    /* it stands still for so long, once a claim of it is granted */
    ngx_msec_t                      halts;
    /* it dies between two critical sections, after so many */
    ngx_uint_t                      dies;
    jmp_buf                         death;
    /* the file's thread has it */
    ngx_idempotency_batch_t        *batch;
    /* its connections to a Redis: their numbers, and when what was sent last
       arrives, there and back; the channels that it has subscribed to */
    uint64_t                        numbers[SIM_LANES];
    ngx_msec_t                      arrival[SIM_LANES][2];
    ngx_uint_t                      subscribed[TOKENS];
};


struct nginx_s {
    char                            name;
    ngx_uint_t                      up;
    /* it was told to end in peace, or at once; trouble came since */
    ngx_uint_t                      ends;
    ngx_uint_t                      at_once;
    ngx_uint_t                      disturbed;
    /* when a worker last died; its batch may have been in the last one's way */
    ngx_msec_t                      died;
    ngx_uint_t                      blocked;
    u_char                         *zone;
    uint64_t                        instance;
    uint64_t                        fence;
    int64_t                         base;
    ngx_idempotency_mark_t          mark;
    /* since when it has had an answer of the store; an agreement was under way
       when that was emptied then */
    ngx_msec_t                      answered;
    ngx_msec_t                      agreeing;
    /* what its clock is ahead of the world's */
    ngx_msec_t                      offset;
    /* its workers are slots 0 and 1, or 2 and 3, a reload later */
    ngx_uint_t                      pair;
    ngx_uint_t                      generation;
    ngx_idempotency_db_t           *db;
    /* its way to a Redis is ill until then, or that of one worker: see way() */
    ngx_uint_t                      link;
    ngx_uint_t                      ill;
    ngx_msec_t                      healed;
    /* the log says that the store is unavailable */
    ngx_int_t                       says_down;
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
    ngx_uint_t                      n;
    act_e                           act;
    proc_t                         *proc;
    ngx_uint_t                      token;
    ngx_uint_t                      local;
    ngx_uint_t                      waits;
    /* decides what becomes of it */
    uint64_t                        chance;
    ngx_msec_t                      deadline;
    ngx_msec_t                      asked;
    exec_t                         *exec;
    /* one of the last questions, when all is well again */
    ngx_uint_t                      final;
    /* what its zone knew when it claimed alone */
    sim_peek_t                      peek;
    char                           *end;
};


typedef enum {
    RUNS = 0,
    RECORDING,
    RECORDED,
    RELEASED,
    STALE
} exec_e;


/* what the upstream was given: what the judge goes by */

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
    /* the end of its window, once it is recorded */
    ngx_msec_t                      until;

    /* the store granted its claim, and when; when it heard of it last; it has
       the outcome; it has another execution's instead */
    ngx_uint_t                      granted;
    ngx_msec_t                      claimed;
    ngx_msec_t                      heard;
    ngx_uint_t                      told;
    ngx_uint_t                      untold;
    ngx_uint_t                      outdone;
    /* since when the store has it in doubt, as somebody was told */
    ngx_msec_t                      shown;
    /* what the store had written by then: by its grant, when it heard of it
       last, when it was in doubt */
    uint64_t                        granting;
    uint64_t                        wrote;
    uint64_t                        showed;
    /* executed by `local` */
    ngx_uint_t                      alone;
    ngx_uint_t                      releasing;
    /* since when its client knows that it was recorded for good, or 0 */
    ngx_msec_t                      sure;

    /* reasons for which it may be in doubt: its owner died, stood still, or
       was silent for a lease; nobody knows what the upstream did */
    ngx_uint_t                      died;
    ngx_uint_t                      stood;
    ngx_uint_t                      lapsed;
    /* ... and the store says so since then */
    ngx_msec_t                      doubted;
    /* the store has forgotten it, as guarantees.md says that it may; or has,
       since then, but is refused until an operator agrees */
    ngx_uint_t                      forgotten;
    ngx_msec_t                      refused;
    /* ... all of it, its claim, too */
    ngx_uint_t                      unknown;
};


typedef enum {
    M_WAKE = 0,
    M_CONNECT,
    M_CALL,
    M_REPLY,
    M_CUT,
    M_PUBLISH,
    M_FOLLOW,
    M_COMMIT,
    M_HANDED,
    M_SYNC,
    M_EXECUTED,
    M_AGAIN,
    M_LEAVES,
    M_SPAWN,
    M_RESTART,
    M_RESUME,
    M_COMES,
    M_BACK,
    M_FAILOVER,
    M_AGREED,
    M_QUIT,
    M_SHUTDOWN,
    M_PLAN
} message_e;


/* what is to happen, and to whom */

typedef struct {
    message_e                       what;
    ngx_msec_t                      at;
    ngx_uint_t                      used;
    proc_t                         *proc;
    ngx_uint_t                      serial;
    nginx_t                        *nginx;
    req_t                          *req;
    uint64_t                        n;
    ngx_uint_t                      all;
    /* a call to a Redis, or its reply, which replicas must have (`durable`) */
    ngx_uint_t                      lane;
    uint64_t                        number;
    uint64_t                        id;
    uint64_t                        time;
    ngx_uint_t                      durable;
    ngx_uint_t                      unacked;
    ngx_str_t                       words[16];
    ngx_uint_t                      nkeys;
    ngx_uint_t                      nwords;
    ngx_str_t                       text;
    void                           *memory;
    ngx_idempotency_batch_t        *batch;
} message_t;


typedef enum {
    P_CLIENT = 0,
    P_LEAP,

    P_KILL,
    P_DIE,
    P_STOP,
    P_CUT,
    P_MEMORY,
    P_OF_WORKER = P_MEMORY,

    P_CRASH,
    P_LINK,
    P_RELOAD,
    P_QUIT,
    P_TERM,
    P_OF_NGINX = P_TERM,

    P_HANG,
    P_FAIL,
    P_FULL,
    P_FAILOVER,
    P_LAG,
    P_EMPTIED,
    P_CLOCK,
    P_POWER,
    P_EXCHANGED,
    P_KINDS
} plan_e;


/* what is counted, of all runs; the seed that runs; a sum of all that happens,
   which is another one if anything else does */

typedef enum {
    N_SEEDS = 0,
    N_FAILED,
    N_SEED,
    N_TRACE,
    N_EVENTS,
    N_MSEC,
    N_EXECS,
    N_REPLAYS,
    N_DOUBTS,
    N_REFUSED,
    N_LIMITED,
    N_TROUBLES,
    N_COUNTS = N_TROUBLES + P_KINDS
} count_e;


typedef struct {
    plan_e                          what;
    ngx_msec_t                      at;
    uint64_t                        chance;
    ngx_uint_t                      left_out;
} plan_t;


typedef struct {
    sim_store_e                     store;
    /* a file: sync=strict; a Redis: replicas=1 */
    ngx_uint_t                      strict;
    ngx_uint_t                      local;
    ngx_uint_t                      quota;
    ngx_msec_t                      window;
    ngx_msec_t                      lease;
    ngx_msec_t                      timeout;
    /* between two critical sections of a worker something else happens, once
       in so many times */
    ngx_uint_t                      nested;
} settings_t;


/* a key of the Redis; ends: milliseconds, or 0 */

typedef struct {
    char                           *key;
    char                           *value;
    size_t                          len;
    int64_t                         ends;
} redis_key_t;


/* world.c */

extern settings_t  set;
extern plan_t      plan[PLAN];
extern ngx_uint_t  planned;
extern uint64_t    chance;
extern ngx_msec_t  now;
/* how many workers' code is running, one within the other */
extern ngx_uint_t  depth;
extern ngx_uint_t  failed;
/* nothing goes wrong any more */
extern ngx_uint_t  settling;
extern char       *directory;
extern char        keys[TOKENS][64];
/* what is told goes to the story; what was wrong */
extern ngx_uint_t  telling;
extern char        story[STORY];
extern char        fault_text[1024];
extern uint64_t   *counts;

#define below(n)       ((ngx_uint_t) (unit_random(&chance) % (n)))
#define token_name(n)  ((char) ('a' + (int) (n)))

void tell(char *fmt, ...) __attribute__((format(printf, 1, 2)));
void fault(char *fmt, ...) __attribute__((format(printf, 1, 2)));
message_t *message(message_e what, ngx_msec_t delay, proc_t *p);
ngx_uint_t step(ngx_msec_t limit);
void run_until(ngx_msec_t end);
/* false: it failed */
ngx_uint_t run(uint64_t seed);


/* nginx.c */

extern nginx_t  nginxes[NGINX];

/* a worker's code runs between the two; false: it died meanwhile */

#define enter(p)                                                              \
    ((p)->busy = 1, depth++, *(p)->w->msec = now + (p)->nginx->offset,        \
     setjmp((p)->death) == 0)

void leave(proc_t *p);
void died(proc_t *p);
/* a function of its library is called; false: it died meanwhile */
ngx_uint_t proc_does(proc_t *p, void (*what)(void));
/* what its zone has of a token */
sim_peek_t proc_has(proc_t *p, ngx_uint_t token);
ngx_uint_t proc_runs(proc_t *p);
proc_t *proc_serving(nginx_t *g, ngx_uint_t n);
void proc_up(nginx_t *g, ngx_uint_t slot, ngx_uint_t fresh);
void proc_kill(proc_t *p);
void proc_stop(proc_t *p, ngx_msec_t time);
/* ... if a claim was granted to a request of it, which has not heard of it */
void proc_halts(proc_t *p);
void proc_end(proc_t *p, ngx_uint_t killed);
/* it ends if it was told to, and nothing is left to do */
void proc_settle(proc_t *p);
void nginx_up(nginx_t *g);
void nginx_kill(nginx_t *g);
void nginx_reload(nginx_t *g);
void nginx_end(nginx_t *g, ngx_uint_t at_once);
/* it is down if it was told to end, and no worker is left */
void nginx_settle(nginx_t *g);


/* clients.c */

extern req_t       reqs[REQUESTS];
extern ngx_uint_t  nreqs;

req_t *request(proc_t *p, ngx_uint_t token, uint64_t r);
void request_ask(req_t *q);
void request_leaves(req_t *q);
void owner_ends(req_t *q, ngx_uint_t given_up);
void response_of(u_char *body, exec_t *e);


/* network.c, redis.c */

extern int64_t  server_ahead;

void network_reset(void);
void host_connect(void *worker, ngx_uint_t lane, uint64_t number);
void host_send(void *worker, ngx_uint_t lane, uint64_t number, uint64_t n,
    ngx_uint_t durable, ngx_str_t *text, ngx_str_t *words, ngx_uint_t nkeys,
    ngx_uint_t nwords);
void host_subscribe(void *worker, ngx_str_t *key);
void redis_call(message_t *m);
void redis_follow(message_t *m);
/* may the reply of a durable call be given? */
ngx_uint_t redis_acked(message_t *m);
/* its server is gone, and with it what replicas did not have */
ngx_uint_t redis_never_acked(message_t *m);
void redis_lags(ngx_msec_t time);
void redis_fails_over(ngx_msec_t away);
void redis_emptied(ngx_uint_t wholly);
void redis_clock(int64_t step);


/* server.c: a real server, if one was opened */

void server_open(char *path, char *clock);
ngx_uint_t server_there(void);
/* it has those keys, and no other */
void server_restore(redis_key_t *keys, ngx_uint_t n);
ngx_idempotency_redis_reply_t *server_call(ngx_str_t *text, ngx_str_t *words,
    ngx_uint_t nkeys, ngx_uint_t nwords, uint64_t micros,
    void (*publish)(u_char *key, size_t len), void (*wrote)(redis_key_t *k));


/* storage.c */

/* an older copy stands there */
extern ngx_uint_t  exchanged;

void storage_reset(void);
void storage_done(void);
ngx_uint_t host_commit(void *worker, ngx_idempotency_batch_t *batch);
ngx_uint_t file_up(nginx_t *g);
void file_synced(void);
void power_cut(void);
void file_exchanged(ngx_uint_t back);


/* trouble.c */

extern char       *plan_names[P_KINDS];
/* until when the store answers nothing; the file fails, or is full */
extern ngx_msec_t  hung, failing, crammed;
/* anything has gone wrong */
extern ngx_uint_t  troubled;

void settings(uint64_t seed);
void plan_make(uint64_t seed);
ngx_uint_t plan_has(plan_e what);
void plan_event(plan_t *e);
void calm(void);
void agree(void);


/* judge.c */

extern exec_t      execs[EXECS];
extern ngx_uint_t  nexecs;
/* for how long some stood still, all in all */
extern ngx_msec_t  still;

void judge_reset(void);
exec_t *judge_execution(req_t *q);
void judge_ended(req_t *q, ngx_idempotency_result_e result,
    ngx_uint_t releases);
void judge_bound(req_t *q);
void judge_limited(req_t *q);
void judge_log(nginx_t *g, ngx_uint_t level, char *text);
/* the store has granted a claim; has said that one is in doubt; has heard of an
   execution; was asked for a token, and may take over what is silent; has
   forgotten what it heard since: a time, or a Redis' write */
void judge_granted(uint64_t instance, ngx_uint_t token, uint64_t fence);
void judge_told_doubt(uint64_t instance, ngx_uint_t token, uint64_t fence);
void judge_heard(uint64_t instance, ngx_uint_t token, uint64_t fence,
    ngx_uint_t outcome, ngx_uint_t stale);
void judge_lapses(ngx_uint_t token);
void judge_forgets(uint64_t since, ngx_uint_t refused);
void judge_agreed(void);
void judge_clock(int64_t step);
/* a worker, or all of an nginx, is no more */
void judge_gone(proc_t *p);
void judge_nginx_gone(nginx_t *g);
void judge_delivered(nginx_t *g, char *when);
void all_ended(char *when);
void asked_again(void);
void zones_checked(ngx_uint_t empty);


#endif /* _WORLD_H_INCLUDED_ */
