
/*
 * The simulation: what stands between the world and a worker in it.  The world
 * is one program (world.c): its time, its chance, clients, an upstream, a
 * Redis, a file.  A worker is a library (worker.c), the real rooms in it, that
 * is loaded under a file name of its own, so that its statics are its own.
 */


#ifndef _SIM_H_INCLUDED_
#define _SIM_H_INCLUDED_


#include "store/ngx_idempotency_shm.h"
#include "store/redis/ngx_idempotency_redis.h"


#define SIM_SLOTS   4
#define SIM_LANES   2
#define SIM_ZONE    (512 * 1024)

/* how a worker is told to end */

#define SIM_QUIT  0
#define SIM_TERM  1
#define SIM_KILL  2

/* the wall clock at the world's first millisecond */

#define SIM_EPOCH   ((int64_t) 1700000000 * 1000)


typedef enum {
    SIM_MEMORY = 0,
    SIM_FILE,
    SIM_REDIS
} sim_store_e;


/* a worker as the world sees it; `worker` is what the world knows it by */

typedef struct {
    sim_store_e                     store;
    ngx_uint_t                      strict;
    ngx_msec_t                      timeout;

    ngx_uint_t                      slot;
    uint32_t                        epoch;
    ngx_pid_t                       pid;
    /* of its nginx */
    u_char                         *zone;
    ngx_uint_t                      fresh;
    uint64_t                        instance;
    uint64_t                        fence;
    int64_t                         base;
    ngx_uint_t                      generation;
} sim_conf_t;


/* what a worker's zone has of a token */

typedef struct {
    ngx_uint_t                      state;
    ngx_uint_t                      told;
    uint64_t                        fence;
} sim_peek_t;


/* what a worker asks of the world */

typedef struct {
    void                           *worker;

    int64_t                       (*wall)(void *worker);
    void                          (*log)(void *worker, ngx_uint_t level,
                                       char *text);
    /* it is not so: what the checks of a zone say */
    void                          (*fault)(void *worker, char *text);
    /* its lock was given back: others may act, or it dies here */
    void                          (*between)(void *worker);

    ngx_uint_t                    (*alive)(void *worker, ngx_uint_t slot,
                                       uint32_t epoch);
    ngx_uint_t                    (*stopped)(void *worker, ngx_uint_t slot,
                                       uint32_t epoch);
    void                          (*wake)(void *worker, ngx_uint_t slot,
                                       uint64_t *key);

    /* the file's thread has it */
    void                          (*flush)(void *worker,
                                       ngx_idempotency_batch_t *batch);
    ngx_uint_t                    (*commit)(void *worker,
                                       ngx_idempotency_batch_t *batch);

    /* over a lane's connection, of which this is the number; n is the
       answer's */
    void                          (*connect)(void *worker, ngx_uint_t lane,
                                       uint64_t number);
    void                          (*send)(void *worker, ngx_uint_t lane,
                                       uint64_t number, uint64_t n,
                                       ngx_uint_t durable, ngx_str_t *text,
                                       ngx_str_t *words, ngx_uint_t nkeys,
                                       ngx_uint_t nwords);
    void                          (*subscribe)(void *worker, ngx_str_t *key);
    void                          (*slept)(void *worker, ngx_msec_t time);
} sim_host_t;


typedef struct {
    const ngx_idempotency_engine_t *engine;
    ngx_idempotency_store_t        *store;
    ngx_idempotency_shm_t          *shm;
    volatile ngx_msec_t            *msec;
    ngx_pool_t                     *pool;

    ngx_int_t                     (*start)(sim_conf_t *conf);
    /* timers and what was posted; how long until the next */
    void                          (*run)(void);
    ngx_msec_t                    (*next)(void);
    void                          (*woken)(uint64_t *key);

    void                          (*handed)(ngx_idempotency_batch_t *batch);
    ngx_uint_t                    (*current)(ngx_idempotency_batch_t *batch);
    void                         *(*alloc)(size_t size);

    /* of a Redis; time: the server's, in microseconds, when it answered */
    void                          (*connected)(ngx_uint_t lane,
                                       uint64_t number, uint64_t time);
    void                          (*answered)(ngx_uint_t lane,
                                       uint64_t number, uint64_t n,
                                       ngx_idempotency_redis_reply_t *reply,
                                       uint64_t time, ngx_uint_t unacked);
    void                          (*cut)(ngx_uint_t lane, uint64_t number);
    void                          (*published)(ngx_str_t *key);

    void                          (*quit)(void);
    ngx_uint_t                    (*stays)(void);
    void                          (*exit)(void);
    /* an operator agrees to the store as it is */
    void                          (*agree)(void);
    /* it is gone, with all that it had */
    void                          (*gone)(void);

    void                          (*peek)(u_char *token, sim_peek_t *peek);
    void                          (*short_of_memory)(void);
    void                          (*examine)(ngx_uint_t empty);
} sim_worker_t;


typedef sim_worker_t *(*sim_worker_pt)(sim_host_t *host);


/* a Redis, empty at first.  The reply is malloc()ed in one piece */

uint64_t sim_redis_reset(void);
void sim_redis_flush(void);
ngx_idempotency_redis_reply_t *sim_redis_call(ngx_str_t *text,
    ngx_str_t *words, ngx_uint_t nkeys, ngx_uint_t nwords, uint64_t micros,
    void (*publish)(u_char *key, size_t len));

/* its writes, by number: so many there are; the replica has so many; and it
   takes the master's place: the first one that is lost, or 0 */

uint64_t sim_redis_writes(void);
void sim_redis_follow(uint64_t n);
uint64_t sim_redis_fail_over(void);


#endif /* _SIM_H_INCLUDED_ */
