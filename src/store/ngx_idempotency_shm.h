
/*
 * Tokens in shared memory: the layout of a zone, and what the files of this
 * engine share.  Its records: see record.h.
 */


#ifndef _NGX_IDEMPOTENCY_SHM_H_INCLUDED_
#define _NGX_IDEMPOTENCY_SHM_H_INCLUDED_


#include "ngx_idempotency_record.h"
#include "ngx_idempotency_store.h"
#include "ngx_idempotency_tier.h"


/* what is copied, expired by a timer, or freed to make room, at most while the
   lock is held once */

#define NGX_IDEMPOTENCY_SHM_PIECE    65536
#define NGX_IDEMPOTENCY_SHM_EXPIRE   128
#define NGX_IDEMPOTENCY_SHM_FREE     128

/* a released request's response stays this long, for requests that waited */

#define NGX_IDEMPOTENCY_SHM_LEFTOVER     10000


typedef struct {
    /* the process that changes it now; not zero on entry: it is torn */
    ngx_pid_t                       inside;
    /* the highest generation of a worker; the one that is to make it anew */
    ngx_uint_t                      generation;
    ngx_uint_t                      poisoned;

    /* of the last claim; it is never below its sequence */
    uint64_t                        fence;
    uint64_t                        sequence;

    /* roots of red-black trees, each of few tokens: a descent through one
       large tree would miss the processor's cache at every step */
    ngx_rbtree_node_t             **buckets;
    ngx_uint_t                      mask;
    ngx_rbtree_node_t               sentinel;

    /* the root of another one */
    ngx_rbtree_node_t              *quotas;

    /* the first one; the next are those of leftovers, for requests that wait */
    ngx_idempotency_window_t        window;
    ngx_idempotency_window_t        leftovers;
    /* copies of what the backing has, which end when they do there */
    ngx_idempotency_window_t        copies;

    ngx_queue_t                     pending;
    /* remote claims; the one that was not wanted for the longest time first */
    ngx_queue_t                     remote;
    /* the oldest response first */
    ngx_queue_t                     kept;

    /* when a timer last freed what is over */
    ngx_msec_t                      freed;

    ngx_idempotency_tier_sh_t       tier;

    /* written without the lock, so on another line of the cache */
    u_char                          apart[64];
    ngx_idempotency_stats_t         stats;
} ngx_idempotency_shm_sh_t;


/* workers with requests that wait for a token's record, which has changed */

typedef struct {
    uint64_t                        key;
    ngx_idempotency_workers_t       workers;
} ngx_idempotency_woken_t;

#define NGX_IDEMPOTENCY_SHM_WOKEN  64


/* the data of a store, and of its zone */

struct ngx_idempotency_shm_s {
    ngx_idempotency_store_t        *store;
    /* the backing, or NULL */
    ngx_idempotency_tier_t         *tier;

    ngx_idempotency_shm_sh_t       *sh;
    ngx_slab_pool_t                *shpool;

    /* configurations that had this zone since the start */
    ngx_uint_t                      generation;
    /* responses may go early, for want of memory */
    ngx_uint_t                      evict;
    /* no directive names it; old workers may use it */
    ngx_uint_t                      unnamed;

    /* noted while the lock is held, for when it is given back: the percentage
       in use, of which the log is to be warned, or 0; and the workers that are
       to be woken: all, if there are more than that */
    ngx_uint_t                      full;
    ngx_uint_t                      nwoken;
    ngx_idempotency_woken_t         woken[NGX_IDEMPOTENCY_SHM_WOKEN];
};


extern const ngx_idempotency_engine_t  ngx_idempotency_shm_engine;


/* a zone's life */

ngx_int_t ngx_idempotency_shm_init(ngx_shm_zone_t *shm_zone, void *data);
ngx_int_t ngx_idempotency_records_init(ngx_idempotency_shm_sh_t *sh,
    ngx_slab_pool_t *shpool);
ngx_int_t ngx_idempotency_shm_keep(ngx_conf_t *cf);
ngx_int_t ngx_idempotency_shm_init_process(ngx_cycle_t *cycle);
void ngx_idempotency_shm_exit_process(ngx_cycle_t *cycle);

/* frees some expired records; returns after how long to call it again */

ngx_msec_t ngx_idempotency_shm_expire(ngx_idempotency_shm_t *shm,
    ngx_msec_t now);

/* NGX_ERROR, and nothing locked: the zone is torn.  Without the lock again, the
   requests that wait for what was changed are woken */

ngx_int_t ngx_idempotency_shm_lock(ngx_idempotency_shm_t *shm);
void ngx_idempotency_shm_unlock(ngx_idempotency_shm_t *shm);

/* all claims whose owner has died are in doubt then */

void ngx_idempotency_shm_sweep(ngx_idempotency_shm_t *shm, ngx_msec_t now);

/* the figures of a zone */

ngx_int_t ngx_idempotency_shm_figures(ngx_idempotency_store_t *store,
    ngx_msec_t now, ngx_idempotency_figures_t *figures);


/* requests of this worker that wait for the key are called, or, NULL, all */

void ngx_idempotency_shm_woken(uint64_t *key);
void ngx_idempotency_shm_dequeue(ngx_idempotency_op_t *op);

/* claims that ask the backing, with the lock held, but for cancel; answered:
   true if the record may be asked for once more */

ngx_int_t ngx_idempotency_ask_lookup(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t **rec);
ngx_uint_t ngx_idempotency_ask_answered(ngx_idempotency_tier_t *tier,
    ngx_idempotency_record_t *rec, ngx_idempotency_item_t *item);
void ngx_idempotency_ask_cancel(ngx_idempotency_shm_t *shm,
    ngx_idempotency_op_t *op);

/* remote claims, likewise; but wait, without the lock: `due` is when the
   backing is asked next */

ngx_uint_t ngx_idempotency_remote_unwanted(ngx_idempotency_record_t *rec,
    ngx_msec_t now, ngx_msec_t time);
void ngx_idempotency_remote_wait(ngx_idempotency_shm_t *shm,
    u_char *token, ngx_msec_t due);
void ngx_idempotency_remote_handler(ngx_event_t *ev);


#endif /* _NGX_IDEMPOTENCY_SHM_H_INCLUDED_ */
