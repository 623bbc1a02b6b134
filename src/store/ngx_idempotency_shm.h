
/*
 * The layout of a zone in shared memory, and the functions that the files of
 * this engine share.  Records are in record.h, the backing is in tier.h.
 */


#ifndef _NGX_IDEMPOTENCY_SHM_H_INCLUDED_
#define _NGX_IDEMPOTENCY_SHM_H_INCLUDED_


#include "ngx_idempotency_record.h"
#include "ngx_idempotency_store.h"
#include "ngx_idempotency_tier.h"


/* while the lock is held once, at most so many bytes are copied, and so many
   records freed: by a timer, and to make room */

#define NGX_IDEMPOTENCY_SHM_PIECE    65536
#define NGX_IDEMPOTENCY_SHM_EXPIRE   128
#define NGX_IDEMPOTENCY_SHM_FREE     128

/* how long a response stays that was left to waiting requests */

#define NGX_IDEMPOTENCY_SHM_LEFTOVER     10000


typedef struct {
    /* the process that changes the zone now; not zero when the lock was just
       taken: that process died inside, and the zone is torn */
    ngx_pid_t                       inside;
    /* the highest generation of a worker.  A torn zone is refused until a
       worker of the generation `poisoned` makes it anew */
    ngx_uint_t                      generation;
    ngx_uint_t                      poisoned;

    /* of the last claim; the fence is never below the sequence */
    uint64_t                        fence;
    uint64_t                        sequence;

    /* roots of red-black trees, each of few tokens: a descent through one
       large tree would miss the processor's cache at every step */
    ngx_rbtree_node_t             **buckets;
    ngx_uint_t                      mask;
    ngx_rbtree_node_t               sentinel;

    /* the root of the tree of quotas */
    ngx_rbtree_node_t              *quotas;

    /* the first of the list; leftovers: responses for requests that waited */
    ngx_idempotency_window_t        window;
    ngx_idempotency_window_t        leftovers;
    /* copies of the backing's records; a copy ends when the original does */
    ngx_idempotency_window_t        copies;

    ngx_queue_t                     pending;
    /* remote claims, the longest unwanted one first */
    ngx_queue_t                     remote;
    /* the oldest response first */
    ngx_queue_t                     kept;

    /* when a timer last freed expired records */
    ngx_msec_t                      freed;

    ngx_idempotency_tier_sh_t       tier;

    /* the figures are written without the lock: not on its cache line */
    u_char                          apart[64];
    ngx_idempotency_stats_t         stats;
} ngx_idempotency_shm_sh_t;


/* a token that has changed, and the workers whose requests wait for it */

typedef struct {
    uint64_t                        key;
    ngx_idempotency_workers_t       workers;
} ngx_idempotency_woken_t;

#define NGX_IDEMPOTENCY_SHM_WOKEN  64


/* a zone as one process has it: the data of its store */

struct ngx_idempotency_shm_s {
    ngx_idempotency_store_t        *store;
    /* the backing, or NULL */
    ngx_idempotency_tier_t         *tier;

    ngx_idempotency_shm_sh_t       *sh;
    ngx_slab_pool_t                *shpool;

    /* the number of configurations with this zone since the start */
    ngx_uint_t                      generation;
    /* responses may go early, for want of memory */
    ngx_uint_t                      evict;
    /* no directive names the zone; old workers may use it */
    ngx_uint_t                      unnamed;

    /* noted under the lock, acted on after it: the percentage in use that the
       log is to warn of, or 0; the workers to wake, or all if `nwoken` is too
       large for the array */
    ngx_uint_t                      full;
    ngx_uint_t                      nwoken;
    ngx_idempotency_woken_t         woken[NGX_IDEMPOTENCY_SHM_WOKEN];
};


extern const ngx_idempotency_engine_t  ngx_idempotency_shm_engine;


/* a zone's life */

ngx_int_t ngx_idempotency_shm_init(ngx_shm_zone_t *shm_zone, void *data);
ngx_int_t ngx_idempotency_shm_keep(ngx_conf_t *cf);
ngx_int_t ngx_idempotency_shm_init_process(ngx_cycle_t *cycle);
void ngx_idempotency_shm_exit_process(ngx_cycle_t *cycle);

/* frees some expired records; returns after how long to call it again */

ngx_msec_t ngx_idempotency_shm_expire(ngx_idempotency_shm_t *shm,
    ngx_msec_t now);

/* NGX_ERROR: the zone is torn, and not locked.  The unlock wakes the requests
   that wait for what was changed */

ngx_int_t ngx_idempotency_shm_lock(ngx_idempotency_shm_t *shm);
void ngx_idempotency_shm_unlock(ngx_idempotency_shm_t *shm);

/* puts in doubt all claims whose owners died, or were silent for a lease */

void ngx_idempotency_shm_sweep(ngx_idempotency_shm_t *shm, ngx_msec_t now);

/* the figures of a zone */

ngx_int_t ngx_idempotency_shm_figures(ngx_idempotency_store_t *store,
    ngx_msec_t now, ngx_idempotency_figures_t *figures);


/* calls the requests of this worker that wait for the key; NULL: for any */

void ngx_idempotency_shm_woken(uint64_t *key);
void ngx_idempotency_shm_dequeue(ngx_idempotency_op_t *op);

/* claims that ask the backing; called with the lock held, but for cancel.
   ask_answered: true if the record may be asked for once more */

ngx_int_t ngx_idempotency_ask_lookup(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t **rec);
ngx_uint_t ngx_idempotency_ask_answered(ngx_idempotency_tier_t *tier,
    ngx_idempotency_record_t *rec, ngx_idempotency_item_t *item);
void ngx_idempotency_ask_cancel(ngx_idempotency_shm_t *shm,
    ngx_idempotency_op_t *op);

/* remote claims.  A request of this worker waits for one: `due` is when the
   backing is asked next.  The handler asks.  Both without the lock */

void ngx_idempotency_remote_wait(ngx_idempotency_shm_t *shm,
    u_char *token, ngx_msec_t due);
void ngx_idempotency_remote_poll_handler(ngx_event_t *ev);


#endif /* _NGX_IDEMPOTENCY_SHM_H_INCLUDED_ */
