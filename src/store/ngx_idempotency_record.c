
/*
 * Records in shared memory: found by token, claimed, bound to an outcome, left
 * to requests that waited, removed.  Their responses, chains of pages.  Quotas:
 * how many records there may be for one value.  Their memory: expired records
 * are freed, and where memory is short, records and responses that may leave
 * early are evicted.  All of it runs with the zone's lock held, in a bounded
 * number of steps; the lock is here, too.  Operations of requests are in ops.c.
 *
 * Only an event changes a record's state, as the table record_states says.
 * These invariants hold:
 *
 * ONE OWNER       At most one request at a time executes a token: the owner of
 *                 its one record, while that is PENDING.
 * CLAIMED BEFORE  With a backing a record is PENDING only if the backing has
 *                 granted its claim (GRANTED), or is out of reach and this
 *                 memory alone guards.  A claim takes over only a token in
 *                 doubt.
 * ONE QUESTION    A record keeps its claim's number, the sequence, from its
 *                 question to the answer, whether a request waits or not: no
 *                 second question for the token is asked meanwhile.
 * ONE ASKER       A GRANTED claim belongs to one request, whose number is in
 *                 the record.  If that request has ended, the next one takes
 *                 its place, or the claim is released.
 * NOT FORGOTTEN   A change that the backing lacks stays in the write-back queue
 *                 (see writeback.c), and so does a claim that the backing may
 *                 have although no request owns it: as GONE, if the token has
 *                 no record any more.
 * NOT COPIED      A state that may have changed in the backing since (REMOTE,
 *                 DOUBTED, NOTHING, FAILED) answers the requests that waited
 *                 for it, and no later ones.
 * KEPT            An outcome stays until its window ends; only an outcome that
 *                 the backing has as well may leave before.
 */


#include "ngx_idempotency_shm.h"


/* a token costs one slot of this size, as the documents say */

typedef char  record_fits_its_slot_t[
    (sizeof(ngx_idempotency_record_t) <= 256) ? 1 : -1];


/* the queues that a record is in, besides its token's tree */

typedef enum {
    record_nowhere = 0,
    record_pending,
    record_bound,
    record_negative,
    record_remote
} record_place_e;


static const record_place_e  record_places[NGX_IDEMPOTENCY_STATES] = {
    [NGX_IDEMPOTENCY_PENDING] = record_pending,
    [NGX_IDEMPOTENCY_DONE] = record_bound,
    [NGX_IDEMPOTENCY_NOT_KEPT] = record_bound,
    [NGX_IDEMPOTENCY_IN_DOUBT] = record_bound,
    [NGX_IDEMPOTENCY_ASKING] = record_pending,
    [NGX_IDEMPOTENCY_ABANDONED] = record_pending,
    [NGX_IDEMPOTENCY_GRANTED] = record_pending,
    [NGX_IDEMPOTENCY_REMOTE] = record_remote,
    [NGX_IDEMPOTENCY_DOUBTED] = record_negative,
    [NGX_IDEMPOTENCY_NOTHING] = record_negative,
    [NGX_IDEMPOTENCY_FAILED] = record_negative,
    [NGX_IDEMPOTENCY_GONE] = record_nowhere
};


/* events: the owner's outcomes */

#define record_owner_ends                                                    \
    [NGX_IDEMPOTENCY_ON_DONE] = to(DONE),                                    \
    [NGX_IDEMPOTENCY_ON_NOT_KEPT] = to(NOT_KEPT),                            \
    [NGX_IDEMPOTENCY_ON_DOUBT] = to(IN_DOUBT)

/* events: the backing's answers, without a granted claim */

#define record_found                                                         \
    [NGX_IDEMPOTENCY_ON_FOUND_PENDING] = to(REMOTE),                      \
    [NGX_IDEMPOTENCY_ON_FOUND_DONE] = to(DONE),                              \
    [NGX_IDEMPOTENCY_ON_FOUND_NOT_KEPT] = to(NOT_KEPT),                      \
    [NGX_IDEMPOTENCY_ON_FOUND_DOUBT] = to(DOUBTED),                          \
    [NGX_IDEMPOTENCY_ON_FOUND_NOTHING] = to(NOTHING)

/* events that may happen in any state */

#define record_goes                                                          \
    [NGX_IDEMPOTENCY_ON_REMOVE] = to(GONE),                                  \
    [NGX_IDEMPOTENCY_ON_FORGET] = to(GONE)

#define to(state)  NGX_IDEMPOTENCY_##state + 1


/* zero: the event can't happen in this state */

static const uint8_t
    record_states[NGX_IDEMPOTENCY_STATES][NGX_IDEMPOTENCY_EVENTS] =
{
    [NGX_IDEMPOTENCY_PENDING] = {
        record_owner_ends,
        [NGX_IDEMPOTENCY_ON_ORPHAN] = to(IN_DOUBT),
        record_goes
    },

    [NGX_IDEMPOTENCY_DONE] = {
        [NGX_IDEMPOTENCY_ON_EVICT] = to(NOT_KEPT),
        record_goes
    },

    [NGX_IDEMPOTENCY_NOT_KEPT] = {
        record_goes
    },

    [NGX_IDEMPOTENCY_IN_DOUBT] = {
        [NGX_IDEMPOTENCY_ON_CLAIM] = to(PENDING),
        [NGX_IDEMPOTENCY_ON_EVICT] = to(IN_DOUBT),
        record_goes
    },

    [NGX_IDEMPOTENCY_ASKING] = {
        record_found,
        [NGX_IDEMPOTENCY_ON_GRANT] = to(GRANTED),
        [NGX_IDEMPOTENCY_ON_FAIL] = to(FAILED),
        [NGX_IDEMPOTENCY_ON_ABANDON] = to(ABANDONED),
        [NGX_IDEMPOTENCY_ON_ORPHAN] = to(ABANDONED),
        [NGX_IDEMPOTENCY_ON_CLAIM] = to(PENDING),
        record_goes
    },

    [NGX_IDEMPOTENCY_ABANDONED] = {
        record_found,
        [NGX_IDEMPOTENCY_ON_GRANT] = to(GONE),
        [NGX_IDEMPOTENCY_ON_FAIL] = to(FAILED),
        [NGX_IDEMPOTENCY_ON_ASK] = to(ASKING),
        [NGX_IDEMPOTENCY_ON_CLAIM] = to(PENDING),
        record_goes
    },

    [NGX_IDEMPOTENCY_GRANTED] = {
        [NGX_IDEMPOTENCY_ON_TAKE] = to(PENDING),
        [NGX_IDEMPOTENCY_ON_ABANDON] = to(GONE),
        [NGX_IDEMPOTENCY_ON_ORPHAN] = to(GONE),
        record_goes
    },

    /* a grant: the question was sent twice, and its first copy came late */

    [NGX_IDEMPOTENCY_REMOTE] = {
        record_found,
        [NGX_IDEMPOTENCY_ON_GRANT] = to(GONE),
        [NGX_IDEMPOTENCY_ON_FAIL] = to(REMOTE),
        record_goes
    },

    [NGX_IDEMPOTENCY_DOUBTED] = {
        record_goes
    },

    [NGX_IDEMPOTENCY_NOTHING] = {
        record_goes
    },

    [NGX_IDEMPOTENCY_FAILED] = {
        record_goes
    },

    /* a new record begins here */

    [NGX_IDEMPOTENCY_GONE] = {
        [NGX_IDEMPOTENCY_ON_CLAIM] = to(PENDING),
        [NGX_IDEMPOTENCY_ON_ASK] = to(ASKING)
    }
};

#undef to


/* to make room, so many expired records are freed at once */

#define NGX_IDEMPOTENCY_EVICT_EXPIRED  3

/* the search for a record to evict ends after so many */

#define NGX_IDEMPOTENCY_EVICT_LOOK  64


/* while the lock is held once, so many records of a value are checked */

#define NGX_IDEMPOTENCY_QUOTA_LOOK  128

/* a record has 32 bits for a lease: up to 24 days */

#define record_lease(claim)                                                  \
    ngx_min((claim)->lease, (ngx_msec_t) NGX_MAX_INT32_VALUE)

/* later than any record's end, on the clocks of all workers */

#define quota_never(now)  ((now) + NGX_MAX_INT_T_VALUE / 2)


#define ngx_idempotency_chunk_header                                         \
    offsetof(ngx_idempotency_chunk_t, data)
#define ngx_idempotency_chunk_capacity                                       \
    (ngx_pagesize - ngx_idempotency_chunk_header)


/* the first members of records and of quotas: neither compiles otherwise */

typedef struct {
    ngx_rbtree_node_t  node;
    u_char             digest[NGX_IDEMPOTENCY_DIGEST_LEN];
} tree_node_t;

typedef char  ngx_idempotency_tree_fits_t[
    (offsetof(ngx_idempotency_record_t, token) == offsetof(tree_node_t, digest)
     && offsetof(ngx_idempotency_quota_t, value)
        == offsetof(tree_node_t, digest))
    ? 1 : -1];


static ngx_idempotency_result_e record_new(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t **new);
static void record_claim(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_idempotency_window_t *window,
    ngx_idempotency_claim_t *claim);
static void record_leftover_token(u_char *token, uint32_t sequence);
static ngx_idempotency_window_t *record_window(ngx_idempotency_shm_t *shm,
    ngx_msec_t length, ngx_msec_t span);
static void record_gone(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_uint_t was,
    ngx_idempotency_event_e event);
static ngx_uint_t record_counts(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);
static void record_tally(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_int_t n);
static void record_leave_place(ngx_idempotency_record_t *rec);
static void record_enter_place(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_msec_t now);
static ngx_uint_t evict_some(ngx_idempotency_shm_t *shm);
static ngx_uint_t evict_first(ngx_idempotency_shm_t *shm,
    ngx_queue_t *queue, size_t offset, ngx_uint_t local);
static ngx_idempotency_quota_t *quota_look(ngx_idempotency_shm_t *shm,
    ngx_idempotency_quota_t *quota, ngx_msec_t now);
static ngx_inline ngx_int_t tree_compare(ngx_rbtree_key_t key, u_char *digest,
    ngx_rbtree_node_t *node);
static void tree_make(ngx_rbtree_t *tree, ngx_idempotency_shm_t *shm,
    ngx_rbtree_node_t *root);
static void tree_insert_value(ngx_rbtree_node_t *temp,
    ngx_rbtree_node_t *node, ngx_rbtree_node_t *sentinel);
static void record_end(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);
static ngx_idempotency_result_e record_make_room(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_window_t **window);
static ngx_int_t quota_take(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_idempotency_claim_t *claim);
static void quota_bind(ngx_idempotency_record_t *rec);
static void quota_drop(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);
static void *tree_find(ngx_idempotency_shm_t *shm, ngx_rbtree_node_t *root,
    u_char *digest);
static void tree_insert(ngx_idempotency_shm_t *shm, ngx_rbtree_node_t **root,
    ngx_rbtree_node_t *node);
static void tree_delete(ngx_idempotency_shm_t *shm, ngx_rbtree_node_t **root,
    ngx_rbtree_node_t *node);


/*
 * The one place where a record's state changes, and with it its queues and the
 * zone's counts.  The change wakes the requests that wait for it, unless the
 * record is asked for now or becomes pending.  A GONE record belongs to no
 * token, and the caller must not use it any more.
 */

void
ngx_idempotency_record_change(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_idempotency_event_e event,
    ngx_msec_t now)
{
    ngx_uint_t      was, to;
    record_place_e  place;

    was = rec->state;
    to = record_states[was][event];

    if (to == 0) {
        ngx_debug_point();
        return;
    }

    to--;
    place = record_places[was];

    if (ngx_idempotency_record_waiting(rec)
        && event != NGX_IDEMPOTENCY_ON_ASK && event != NGX_IDEMPOTENCY_ON_TAKE)
    {
        ngx_idempotency_record_wake(shm, rec);
    }

    record_tally(shm, rec, -1);

    if (record_places[to] != place) {
        record_leave_place(rec);
    }

    rec->state = to;

    if (record_places[to] != place) {
        record_enter_place(shm, rec, now);
    }

    record_tally(shm, rec, 1);

    if (to == NGX_IDEMPOTENCY_GONE) {
        record_gone(shm, rec, was, event);
    }
}


/* If the backing may have the claim, it must learn that the claim has ended.
   If an operator forgets the token, the backing must forget it too, whoever
   claimed it there. */

static void
record_gone(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec,
    ngx_uint_t was, ngx_idempotency_event_e event)
{
    ngx_uint_t  forgotten, claimed;

    tree_delete(shm, ngx_idempotency_bucket(shm, rec->token), &rec->node);
    quota_drop(shm, rec);
    ngx_idempotency_chunks_free(shm, rec);

    forgotten = (event == NGX_IDEMPOTENCY_ON_FORGET && shm->tier
                 && !rec->local);

    claimed = (was == NGX_IDEMPOTENCY_FAILED
               || event == NGX_IDEMPOTENCY_ON_GRANT
               || record_places[was] == record_pending);

    if (!forgotten && !(claimed && rec->sent)
        && rec->flush == NGX_IDEMPOTENCY_FLUSHED)
    {
        ngx_slab_free_locked(shm->shpool, rec);
        return;
    }

    /* only the backing knows whether a granted claim was in doubt before */

    rec->as.gone.freed = (!claimed || was == NGX_IDEMPOTENCY_PENDING);
    rec->as.gone.forgotten = forgotten;
    rec->sent |= forgotten;

    ngx_idempotency_writeback_add(shm, rec);
}


static void
record_leave_place(ngx_idempotency_record_t *rec)
{
    switch (record_places[rec->state]) {

    case record_pending:
    case record_remote:
        ngx_queue_remove(&rec->queue);
        break;

    case record_bound:
    case record_negative:
        ngx_queue_remove(&rec->as.bound.expiry);

        if (rec->quota) {
            ngx_queue_remove(&rec->as.bound.quota);
        }

        if (rec->chunks) {
            ngx_queue_remove(&rec->queue);
        }

        break;

    default: /* record_nowhere */
        break;
    }
}


static void
record_enter_place(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec,
    ngx_msec_t now)
{
    ngx_memzero(&rec->as, sizeof(rec->as));

    switch (record_places[rec->state]) {

    case record_pending:
        ngx_queue_insert_tail(&shm->sh->pending, &rec->queue);
        return;

    case record_remote:
        rec->window = &shm->sh->leftovers;
        ngx_queue_insert_tail(&shm->sh->remote, &rec->queue);
        return;

    case record_negative:
        rec->window = &shm->sh->leftovers;
        rec->as.copy.copied = now;
        break;

    case record_bound:
        if (rec->window == &shm->sh->copies) {
            rec->as.copy.copied = now;
        }

        break;

    default: /* record_nowhere */
        return;
    }

    ngx_queue_insert_tail(&rec->window->records, &rec->as.bound.expiry);
    quota_bind(rec);

    if (rec->chunks) {
        ngx_queue_insert_tail(&shm->sh->kept, &rec->queue);
    }
}


/* the record of the token; an expired one is freed here */

ngx_idempotency_record_t *
ngx_idempotency_record_current(ngx_idempotency_shm_t *shm, u_char *token,
    ngx_msec_t now)
{
    ngx_idempotency_record_t  *rec;

    rec = tree_find(shm, *ngx_idempotency_bucket(shm, token), token);

    if (rec
        && !ngx_idempotency_record_pends(rec)
        && ngx_idempotency_record_expired(rec, now))
    {
        record_end(shm, rec);
        return NULL;
    }

    return rec;
}


/* binds a fresh token, after all checks that could forbid it */

ngx_idempotency_result_e
ngx_idempotency_record_create(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim)
{
    ngx_idempotency_record_t  *rec;
    ngx_idempotency_result_e   result;

    if (claim->old) {
        return NGX_IDEMPOTENCY_EXPIRED;
    }

    result = ngx_idempotency_quota_check(shm, claim);

    if (result != NGX_IDEMPOTENCY_OK) {
        return result;
    }

    result = record_new(shm, claim, &rec);

    if (result != NGX_IDEMPOTENCY_OK) {
        return result;
    }

    ngx_idempotency_record_own(shm, rec, claim->op.now);

    claim->fence = rec->fence;

    return NGX_IDEMPOTENCY_CLAIMED;
}


/*
 * Asks the backing for the token: the record keeps it for this claim meanwhile.
 * The question says whether a fresh token may be claimed; for a bound one the
 * answer is the same in any case.
 */

ngx_idempotency_result_e
ngx_idempotency_record_ask(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t **rec)
{
    ngx_uint_t                old;
    ngx_idempotency_result_e  result;

    result = claim->old ? NGX_IDEMPOTENCY_EXPIRED
                        : ngx_idempotency_quota_check(shm, claim);

    if (result == NGX_IDEMPOTENCY_UNFINISHED) {
        return result;
    }

    old = (result != NGX_IDEMPOTENCY_OK);

    result = record_new(shm, claim, rec);

    if (result == NGX_IDEMPOTENCY_OK) {
        ngx_idempotency_record_change(shm, *rec, NGX_IDEMPOTENCY_ON_ASK,
                                      claim->op.now);

        /* the lease may begin now, even if another request adopts the
           question */

        (*rec)->recorded = claim->op.now;
        (*rec)->as.asking.retry = claim->retry;
        (*rec)->as.asking.old = old;
        shm->sh->tier.asked = 1;

        ngx_idempotency_record_asker(shm, *rec, claim);
        ngx_idempotency_writeback_add(shm, *rec);
    }

    return result;
}


/* the answer will be for this claim */

void
ngx_idempotency_record_asker(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_idempotency_claim_t *claim)
{
    if (++shm->sh->tier.askers == NGX_IDEMPOTENCY_ASKERS) {
        shm->sh->tier.askers = 1;
    }

    rec->as.asking.owner = ngx_idempotency_worker_self();
    rec->as.asking.asker = shm->sh->tier.askers;

    claim->op.asker = rec->as.asking.asker;
}


static ngx_idempotency_result_e
record_new(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim,
    ngx_idempotency_record_t **new)
{
    ngx_idempotency_record_t  *rec;
    ngx_idempotency_window_t  *window;
    ngx_idempotency_result_e   result;

    result = record_make_room(shm, claim, &window);

    if (result != NGX_IDEMPOTENCY_OK) {
        return result;
    }

    rec = ngx_slab_calloc_locked(shm->shpool,
                                 sizeof(ngx_idempotency_record_t));
    if (rec == NULL) {
        return NGX_IDEMPOTENCY_UNAVAILABLE;
    }

    if (quota_take(shm, rec, claim) != NGX_OK) {
        ngx_slab_free_locked(shm->shpool, rec);
        return NGX_IDEMPOTENCY_UNAVAILABLE;
    }

    ngx_memcpy(rec->token, claim->op.token, NGX_IDEMPOTENCY_DIGEST_LEN);
    ngx_memcpy(rec->fingerprint, claim->fingerprint,
               NGX_IDEMPOTENCY_DIGEST_LEN);

    tree_insert(shm, ngx_idempotency_bucket(shm, rec->token), &rec->node);

    rec->state = NGX_IDEMPOTENCY_GONE;
    rec->local = claim->local;

    record_claim(shm, rec, window, claim);

    *new = rec;

    return NGX_IDEMPOTENCY_OK;
}


/* claims a token in doubt again, under a new fence */

ngx_idempotency_result_e
ngx_idempotency_record_reclaim(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_idempotency_claim_t *claim)
{
    ngx_uint_t                 local;
    ngx_idempotency_window_t  *window;
    ngx_idempotency_result_e   result;

    /* a local record is not evicted */

    local = rec->local;
    rec->local = 1;

    result = record_make_room(shm, claim, &window);

    rec->local = local;

    if (result != NGX_IDEMPOTENCY_OK) {
        return result;
    }

    ngx_idempotency_record_own(shm, rec, claim->op.now);
    record_claim(shm, rec, window, claim);

    rec->taken = 1;
    claim->fence = rec->fence;

    return NGX_IDEMPOTENCY_CLAIMED;
}


/* this worker owns the record now; the response of a record in doubt goes */

void
ngx_idempotency_record_own(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_msec_t now)
{
    ngx_idempotency_record_change(shm, rec, NGX_IDEMPOTENCY_ON_CLAIM, now);
    ngx_idempotency_chunks_free(shm, rec);

    rec->recorded = now;
    rec->as.pending.owner = ngx_idempotency_worker_self();

    ngx_idempotency_writeback_add(shm, rec);
}


/* the request that asked takes its granted claim; or, with the backing out of
   reach, a question becomes a claim under the same number, guarded by this
   memory alone */

void
ngx_idempotency_record_take(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_idempotency_claim_t *claim)
{
    ngx_idempotency_window_t  *window;

    if (rec->state == NGX_IDEMPOTENCY_GRANTED) {
        ngx_idempotency_record_change(shm, rec, NGX_IDEMPOTENCY_ON_TAKE,
                                      claim->op.now);

        rec->as.pending.owner = ngx_idempotency_worker_self();

    } else {
        window = record_window(shm, claim->window, claim->span);

        if (window) {
            rec->window = window;
        }

        ngx_memcpy(rec->fingerprint, claim->fingerprint,
                   NGX_IDEMPOTENCY_DIGEST_LEN);

        rec->parts = claim->parts;
        rec->ends = claim->op.now + claim->least;
        rec->lease = record_lease(claim);

        ngx_idempotency_record_own(shm, rec, claim->op.now);
    }

    claim->fence = rec->fence;
    claim->taken = rec->taken;
}


/* a claim, or a question, gets a fence and a sequence above all before */

static void
record_claim(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec,
    ngx_idempotency_window_t *window, ngx_idempotency_claim_t *claim)
{
    uint64_t  fence;

    /*
     * The number of a claim rises beyond all that any zone has given before.
     * Zones that share a file share this clock, and a claim may go from one to
     * another within a millisecond.  The time by which a file counts windows
     * would not do: each nginx computes it for itself, and they differ by a
     * millisecond.
     */

    if (shm->tier) {
        fence = ngx_idempotency_tier_shared(shm->tier)
                ? (uint64_t) shm->tier->backing->now(shm->tier) * 1000
                : ngx_idempotency_record_micros();

        shm->sh->fence = ngx_max(shm->sh->fence, fence);
    }

    rec->fence = ++shm->sh->fence;

    /* an operation that waits for no claim notes 0 */

    do {
        rec->sequence = (uint32_t) ++shm->sh->sequence;
    } while (rec->sequence == 0);

    /* a record in doubt gets the parts of the claim that takes it over */

    rec->parts = claim->parts;
    rec->recorded = claim->op.now;
    rec->ends = claim->op.now + claim->least;
    rec->window = window;
    rec->lease = record_lease(claim);
    rec->status = 0;
    rec->replays = 0;
    rec->known = 0;
    rec->taken = 0;
}


uint64_t
ngx_idempotency_record_micros(void)
{
    struct timeval  tv;

    ngx_gettimeofday(&tv);

    return (uint64_t) tv.tv_sec * 1000000 + tv.tv_usec;
}


/* all 64 bits of the sequence: no claim in memory is 2^32 claims old */

uint64_t
ngx_idempotency_record_sequence(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec)
{
    uint64_t  last;

    last = shm->sh->sequence;

    return last - (uint32_t) ((uint32_t) last - rec->sequence);
}


/* there are as many windows as lengths that configurations ever named */

static ngx_idempotency_window_t *
record_window(ngx_idempotency_shm_t *shm, ngx_msec_t length, ngx_msec_t span)
{
    ngx_idempotency_window_t  *window;

    span = ngx_max(span, length);
    window = &shm->sh->window;

    if (window->length == NGX_IDEMPOTENCY_NO_WINDOW) {
        window->length = length;
        window->span = span;
    }

    for ( ;; ) {

        if (window->length == length && window->span == span
            && window != &shm->sh->leftovers)
        {
            return window;
        }

        if (window->next == NULL) {
            break;
        }

        window = window->next;
    }

    window->next = ngx_slab_calloc_locked(shm->shpool,
                                          sizeof(ngx_idempotency_window_t));
    if (window->next == NULL) {
        return NULL;
    }

    window = window->next;
    window->length = length;
    window->span = span;
    ngx_queue_init(&window->records);

    return window;
}


/* binds the token to the outcome; its window begins */

void
ngx_idempotency_record_publish(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_idempotency_outcome_e outcome,
    ngx_uint_t status, ngx_msec_t now)
{
    ngx_msec_t               ends;
    ngx_idempotency_event_e  event;

    event = (outcome == NGX_IDEMPOTENCY_DONE) ? NGX_IDEMPOTENCY_ON_DONE
            : (outcome == NGX_IDEMPOTENCY_NOT_KEPT)
                ? NGX_IDEMPOTENCY_ON_NOT_KEPT : NGX_IDEMPOTENCY_ON_DOUBT;

    shm->sh->stats.counters.in_doubt += (outcome == NGX_IDEMPOTENCY_IN_DOUBT);

    rec->status = status;
    rec->recorded = now;

    ends = now + rec->window->length;

    if ((ngx_msec_int_t) (ends - rec->ends) > 0) {
        rec->ends = ends;
    }

    ngx_idempotency_record_change(shm, rec, event, now);
    ngx_idempotency_writeback_add(shm, rec);
}


/* makes the record a copy of the backing's; or a negative entry, if the
   backing's may change */

void
ngx_idempotency_record_found(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_idempotency_event_e event,
    ngx_msec_t now)
{
    quota_drop(shm, rec);

    rec->window = &shm->sh->copies;

    ngx_idempotency_record_change(shm, rec, event, now);
}


/*
 * The claim is released.  Its response stays for a moment in a record of its
 * own, under another token, which only requests that waited for this claim can
 * name; without memory it does not.
 */

void
ngx_idempotency_record_leave(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_uint_t status, ngx_msec_t now)
{
    ngx_idempotency_record_t  *left, claim;

    claim = *rec;
    rec->chunks = NULL;
    rec->size = 0;

    ngx_idempotency_record_release(shm, rec, now);

    /* what was released may have been all the memory that there is */

    left = ngx_slab_calloc_locked(shm->shpool,
                                  sizeof(ngx_idempotency_record_t));

    if (left == NULL) {
        ngx_idempotency_chunks_free(shm, &claim);
        return;
    }

    ngx_memcpy(left->fingerprint, claim.fingerprint,
               NGX_IDEMPOTENCY_DIGEST_LEN);
    left->parts = claim.parts;
    left->fence = claim.fence;
    left->sequence = claim.sequence;
    left->chunks = claim.chunks;
    left->size = claim.size;
    left->state = NGX_IDEMPOTENCY_GONE;
    left->local = 1;
    left->window = &shm->sh->leftovers;
    left->ends = now;

    ngx_memcpy(left->token, claim.token, NGX_IDEMPOTENCY_DIGEST_LEN);
    record_leftover_token(left->token, left->sequence);
    tree_insert(shm, ngx_idempotency_bucket(shm, left->token), &left->node);

    ngx_idempotency_record_change(shm, left, NGX_IDEMPOTENCY_ON_CLAIM, now);
    ngx_idempotency_record_publish(shm, left, NGX_IDEMPOTENCY_DONE, status,
                                   now);
}


ngx_idempotency_record_t *
ngx_idempotency_record_leftover(ngx_idempotency_shm_t *shm,
    ngx_idempotency_op_t *op, uint32_t sequence)
{
    u_char  token[NGX_IDEMPOTENCY_DIGEST_LEN];

    ngx_memcpy(token, op->token, NGX_IDEMPOTENCY_DIGEST_LEN);
    record_leftover_token(token, sequence);

    return ngx_idempotency_record_current(shm, token, op->now);
}


/* a token is a digest: no other token is so close to this one */

static void
record_leftover_token(u_char *token, uint32_t sequence)
{
    uint64_t  key;

    key = ngx_idempotency_tree_key(token) ^ sequence;

    ngx_memcpy(token, &key, sizeof(key));
}


/* its owner has not executed the token, but an earlier one may have */

void
ngx_idempotency_record_release(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_msec_t now)
{
    if (!rec->taken) {
        ngx_idempotency_record_remove(shm, rec);
        return;
    }

    ngx_idempotency_chunks_free(shm, rec);

    ngx_idempotency_record_publish(shm, rec, NGX_IDEMPOTENCY_IN_DOUBT, 0, now);

    /* an old doubt is not counted again */

    shm->sh->stats.counters.in_doubt--;
}


void
ngx_idempotency_record_remove(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec)
{
    ngx_idempotency_record_change(shm, rec, NGX_IDEMPOTENCY_ON_REMOVE, 0);
}


/* the record's time is over */

static void
record_end(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec)
{
    shm->sh->stats.counters.expired += record_counts(shm, rec);

    ngx_idempotency_record_remove(shm, rec);
}


static void
record_tally(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec,
    ngx_int_t n)
{
    if (record_counts(shm, rec)) {
        shm->sh->stats.records[rec->state] += n;
    }
}


/* only records that bind a token count: no questions, no negative entries, no
   leftovers */

static ngx_uint_t
record_counts(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec)
{
    return rec->state == NGX_IDEMPOTENCY_PENDING
           || (rec->state < NGX_IDEMPOTENCY_STATS_RECORDS
               && rec->window != &shm->sh->leftovers);
}


/*
 * What differs between the request and the one that the token is bound to, or
 * 0. A record without an identity is open to any: a client could as well have
 * left out its own.  Other settings alone are no difference.
 */

ngx_uint_t
ngx_idempotency_record_differs(ngx_idempotency_record_t *rec,
    ngx_idempotency_claim_t *claim)
{
    ngx_uint_t                differs;
    ngx_idempotency_parts_t  *was, *is;

    differs = 0;

    was = &rec->parts;
    is = &claim->parts;

    if (ngx_memcmp(rec->fingerprint, claim->fingerprint,
                   NGX_IDEMPOTENCY_DIGEST_LEN)
        != 0)
    {
        if (ngx_memcmp(was->action, is->action, NGX_IDEMPOTENCY_HINT_LEN)
            != 0)
        {
            differs |= NGX_IDEMPOTENCY_DIFFERS_ACTION;
        }

        /* different bodies may have the same hint */

        if (differs == 0
            || ngx_memcmp(was->body, is->body, NGX_IDEMPOTENCY_HINT_LEN) != 0)
        {
            differs |= NGX_IDEMPOTENCY_DIFFERS_BODY;
        }
    }

    if (!ngx_idempotency_record_anonymous(rec)
        && ngx_memcmp(was->identity, is->identity,
                      NGX_IDEMPOTENCY_IDENTITY_LEN)
           != 0)
    {
        differs |= NGX_IDEMPOTENCY_DIFFERS_IDENTITY;
    }

    if (differs
        && ngx_memcmp(was->settings, is->settings,
                      NGX_IDEMPOTENCY_SETTINGS_LEN)
           != 0)
    {
        differs |= NGX_IDEMPOTENCY_DIFFERS_SETTINGS;
    }

    return differs;
}


ngx_uint_t
ngx_idempotency_record_anonymous(ngx_idempotency_record_t *rec)
{
    static u_char  nobody[NGX_IDEMPOTENCY_IDENTITY_LEN];

    return ngx_memcmp(rec->parts.identity, nobody,
                      NGX_IDEMPOTENCY_IDENTITY_LEN)
           == 0;
}


ngx_uint_t
ngx_idempotency_record_alive(ngx_idempotency_record_t *rec, ngx_msec_t now)
{
    return ngx_idempotency_worker_alive(&rec->as.pending.owner, rec->recorded,
                                        rec->lease, now);
}


/* frees up to n expired records */

ngx_uint_t
ngx_idempotency_record_expire(ngx_idempotency_shm_t *shm, ngx_msec_t now,
    ngx_uint_t n)
{
    ngx_uint_t                 i;
    ngx_idempotency_record_t  *rec;
    ngx_idempotency_window_t  *window;

    i = 0;

    for (window = &shm->sh->window; window; window = window->next) {

        while (i < n && !ngx_queue_empty(&window->records)) {

            rec = ngx_queue_data(ngx_queue_head(&window->records),
                                 ngx_idempotency_record_t, as.bound.expiry);

            if (!ngx_idempotency_record_expired(rec, now)) {
                break;
            }

            record_end(shm, rec);
            i++;
        }
    }

    while (i < n && !ngx_queue_empty(&shm->sh->remote)) {

        rec = ngx_queue_data(ngx_queue_head(&shm->sh->remote),
                             ngx_idempotency_record_t, queue);

        if (!ngx_idempotency_record_expired(rec, now)) {
            break;
        }

        ngx_idempotency_record_remove(shm, rec);
        i++;
    }

    return i;
}


ngx_uint_t
ngx_idempotency_record_expired(ngx_idempotency_record_t *rec, ngx_msec_t now)
{
    if (rec->state == NGX_IDEMPOTENCY_REMOTE) {
        return ngx_idempotency_remote_unwanted(rec, now,
                                                  NGX_IDEMPOTENCY_SHM_LEFTOVER);
    }

    if (ngx_idempotency_record_negative(rec)
        && (ngx_msec_int_t) (now - rec->as.copy.copied)
           >= NGX_IDEMPOTENCY_SHM_LEFTOVER)
    {
        return 1;
    }

    /* these negative entries have no end of their own */

    if (rec->state == NGX_IDEMPOTENCY_NOTHING
        || rec->state == NGX_IDEMPOTENCY_FAILED)
    {
        return 0;
    }

    return (ngx_msec_int_t) (now - rec->ends) >= 0;
}


/*
 * A zone is full if it could not take one more response of the size asked for;
 * but a single response may claim at most an eighth of the zone.  So no claim
 * is granted whose response could not be kept, unless the responses under way
 * together exceed the free space.  UNFINISHED: some room was made, and more is
 * needed.
 */

static ngx_idempotency_result_e
record_make_room(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim,
    ngx_idempotency_window_t **window)
{
    ngx_uint_t        n, pages, limit;
    ngx_slab_pool_t  *shpool;

    shpool = shm->shpool;

    limit = (shpool->end - shpool->start) / ngx_pagesize / 8;

    /* and one page each for the record, the header block and the quota */

    pages = ngx_idempotency_chunks_pages(claim->reserve) + 2
            + (claim->quota != 0);
    pages = ngx_min(pages, ngx_max(limit, 1));

    for (n = 0; shpool->pfree < pages; n++) {

        if (n == NGX_IDEMPOTENCY_SHM_FREE) {
            return NGX_IDEMPOTENCY_UNFINISHED;
        }

        if (!ngx_idempotency_record_free_some(shm, claim->op.now)) {
            return NGX_IDEMPOTENCY_UNAVAILABLE;
        }
    }

    *window = record_window(shm, claim->window, claim->span);

    return *window ? NGX_IDEMPOTENCY_OK : NGX_IDEMPOTENCY_UNAVAILABLE;
}


/* frees what has expired, else evicts the oldest response, if it may; at last
   what a release has left: no quota counts that, so it keeps nobody out */

ngx_uint_t
ngx_idempotency_record_free_some(ngx_idempotency_shm_t *shm, ngx_msec_t now)
{
    return ngx_idempotency_record_expire(shm, now,
                                         NGX_IDEMPOTENCY_EVICT_EXPIRED)
           || evict_some(shm)
           || evict_first(shm, &shm->sh->leftovers.records,
                          offsetof(ngx_idempotency_record_t, as.bound.expiry),
                          1);
}


/*
 * An evicted response leaves its token bound.  A record that the backing has
 * may leave as a whole: first the oldest negative entry, so that what is beyond
 * its quota drives out nothing that counts; then the oldest with a response;
 * then the oldest of each window.
 */

static ngx_uint_t
evict_some(ngx_idempotency_shm_t *shm)
{
    ngx_idempotency_window_t  *window;

    if (shm->tier == NULL) {

        if (!shm->evict || ngx_queue_empty(&shm->sh->kept)) {
            return 0;
        }

        ngx_idempotency_record_evict(shm,
                                     ngx_queue_data(
                                         ngx_queue_head(&shm->sh->kept),
                                         ngx_idempotency_record_t, queue));
        return 1;
    }

    if (evict_first(shm, &shm->sh->leftovers.records,
                    offsetof(ngx_idempotency_record_t, as.bound.expiry), 0)
        || evict_first(shm, &shm->sh->kept,
                       offsetof(ngx_idempotency_record_t, queue), 0))
    {
        return 1;
    }

    for (window = &shm->sh->window; window; window = window->next) {

        if (evict_first(shm, &window->records,
                        offsetof(ngx_idempotency_record_t, as.bound.expiry),
                        0))
        {
            return 1;
        }
    }

    return 0;
}


/* the oldest record that the backing has leaves, if a short search finds one;
   local: or one that the backing never gets */

static ngx_uint_t
evict_first(ngx_idempotency_shm_t *shm, ngx_queue_t *queue, size_t offset,
    ngx_uint_t local)
{
    ngx_uint_t                 n;
    ngx_queue_t               *q;
    ngx_idempotency_record_t  *rec;

    q = ngx_queue_head(queue);

    for (n = 0; n < NGX_IDEMPOTENCY_EVICT_LOOK; n++) {

        if (q == ngx_queue_sentinel(queue)) {
            break;
        }

        rec = (ngx_idempotency_record_t *) ((u_char *) q - offset);

        if (!ngx_idempotency_record_stays(rec) || (local && rec->local)) {
            ngx_idempotency_record_remove(shm, rec);
            return 1;
        }

        q = ngx_queue_next(q);
    }

    return 0;
}


/* the record has a response */

void
ngx_idempotency_record_evict(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec)
{
    ngx_queue_remove(&rec->queue);
    ngx_idempotency_chunks_free(shm, rec);

    ngx_idempotency_record_change(shm, rec, NGX_IDEMPOTENCY_ON_EVICT, 0);
}


/*
 * Whether one more token of this value may be bound.  Expired records don't
 * count: they are freed one by one, until one more fits or none is left.
 * UNFINISHED: there is more to check.
 */

ngx_idempotency_result_e
ngx_idempotency_quota_check(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim)
{
    ngx_uint_t                n;
    ngx_msec_t                now;
    ngx_idempotency_quota_t  *quota;

    now = claim->op.now;
    quota = claim->quota ? tree_find(shm, shm->sh->quotas, claim->value) : NULL;

    for (n = 0; quota && quota->live >= claim->quota; n++) {

        if (ngx_queue_empty(&quota->bound)) {

            /* all are pending: one that ended now would stay for its window */

            claim->found.left = ngx_max(claim->window, claim->least);
            return NGX_IDEMPOTENCY_LIMITED;
        }

        if ((ngx_msec_int_t) (now - quota->ends) < 0) {
            claim->found.left = quota->ends - now;
            return NGX_IDEMPOTENCY_LIMITED;
        }

        if (n == NGX_IDEMPOTENCY_QUOTA_LOOK) {
            return NGX_IDEMPOTENCY_UNFINISHED;
        }

        quota = quota_look(shm, quota, now);
    }

    return NGX_IDEMPOTENCY_OK;
}


/*
 * Takes the value's next record: frees it if it has expired, else moves it
 * behind those that this round has checked.  Records end in any order, as some
 * keys have times of their own, and windows two lengths; so the round ends with
 * the earliest end of all.  NULL: the last record took the quota along.
 */

static ngx_idempotency_quota_t *
quota_look(ngx_idempotency_shm_t *shm, ngx_idempotency_quota_t *quota,
    ngx_msec_t now)
{
    ngx_uint_t                 last;
    ngx_idempotency_record_t  *rec;

    rec = ngx_queue_data(ngx_queue_head(&quota->bound),
                         ngx_idempotency_record_t, as.bound.quota);

    if (rec->round == quota->round) {
        quota->ends = quota->next;
        quota->next = quota_never(now);
        quota->round = !quota->round;

        return quota;
    }

    if (ngx_idempotency_record_expired(rec, now)) {
        last = (quota->live == 1);
        record_end(shm, rec);

        return last ? NULL : quota;
    }

    ngx_queue_remove(&rec->as.bound.quota);
    quota_bind(rec);

    return quota;
}


/* a record that is about to be bound counts from now on */

static ngx_int_t
quota_take(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_idempotency_claim_t *claim)
{
    ngx_idempotency_quota_t  *quota;

    if (claim->quota == 0) {
        return NGX_OK;
    }

    quota = tree_find(shm, shm->sh->quotas, claim->value);

    if (quota == NULL) {
        quota = ngx_slab_calloc_locked(shm->shpool,
                                       sizeof(ngx_idempotency_quota_t));
        if (quota == NULL) {
            return NGX_ERROR;
        }

        ngx_memcpy(quota->value, claim->value, NGX_IDEMPOTENCY_DIGEST_LEN);
        ngx_queue_init(&quota->bound);
        quota->ends = quota_never(claim->op.now);
        quota->next = quota->ends;

        tree_insert(shm, &shm->sh->quotas, &quota->node);
    }

    quota->live++;
    rec->quota = quota;

    return NGX_OK;
}


/* The record has an end; all behind it were checked in this round. */

static void
quota_bind(ngx_idempotency_record_t *rec)
{
    ngx_idempotency_quota_t  *quota;

    quota = rec->quota;

    if (quota == NULL) {
        return;
    }

    ngx_queue_insert_tail(&quota->bound, &rec->as.bound.quota);
    rec->round = quota->round;

    if ((ngx_msec_int_t) (rec->ends - quota->next) < 0) {
        quota->next = rec->ends;
    }

    if ((ngx_msec_int_t) (rec->ends - quota->ends) < 0) {
        quota->ends = rec->ends;
    }
}


/* the record leaves its quota; it is pending, or already out of the queue */

static void
quota_drop(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec)
{
    ngx_idempotency_quota_t  *quota;

    quota = rec->quota;

    if (quota == NULL) {
        return;
    }

    rec->quota = NULL;

    if (--quota->live) {
        return;
    }

    tree_delete(shm, &shm->sh->quotas, &quota->node);

    ngx_slab_free_locked(shm->shpool, quota);
}


/* the most pages that a response of this size may take */

ngx_uint_t
ngx_idempotency_chunks_pages(size_t size)
{
    return (size + ngx_idempotency_chunk_capacity - 1)
           / ngx_idempotency_chunk_capacity;
}


/*
 * Appends the next piece of a response.  Linked chunks belong to the record
 * even if the rest never follows.  NGX_AGAIN: there is more; NGX_ERROR: memory
 * is short even after freeing and evicting, and the record has lost all chunks.
 */

ngx_int_t
ngx_idempotency_chunks_append(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_idempotency_source_t *src,
    ngx_msec_t now)
{
    size_t                     n, room, end;
    ngx_uint_t                 freed;
    ngx_idempotency_chunk_t   *chunk;
    ngx_idempotency_cursor_t  *cur;

    if (src->size > NGX_MAX_UINT32_VALUE) {
        return NGX_ERROR;
    }

    freed = 0;
    cur = &src->cur;

    if (rec->chunks == NULL) {

        /* the first piece; or a doubt meanwhile has dropped the chunks */

        ngx_memzero(cur, sizeof(ngx_idempotency_cursor_t));
        src->in = src->pieces;
        src->pos = src->in ? src->in->buf->pos : NULL;
    }

    end = ngx_min(src->size, cur->offset + NGX_IDEMPOTENCY_SHM_PIECE);

    while (cur->offset < end) {

        n = cur->offset % ngx_idempotency_chunk_capacity;

        if (n == 0) {
            room = ngx_min(src->size - cur->offset,
                           ngx_idempotency_chunk_capacity);

            for ( ;; ) {
                chunk = ngx_slab_alloc_locked(shm->shpool,
                                           ngx_idempotency_chunk_header + room);
                if (chunk) {
                    break;
                }

                if (freed++ == NGX_IDEMPOTENCY_SHM_FREE
                    || !ngx_idempotency_record_free_some(shm, now))
                {
                    ngx_idempotency_chunks_free(shm, rec);
                    return NGX_ERROR;
                }
            }

            chunk->next = NULL;

            if (cur->chunk) {
                cur->chunk->next = chunk;

            } else {
                rec->chunks = chunk;
            }

            cur->chunk = chunk;
        }

        while (src->pos == src->in->buf->last) {
            src->in = src->in->next;
            src->pos = src->in->buf->pos;
        }

        room = ngx_min(ngx_idempotency_chunk_capacity - n, end - cur->offset);
        room = ngx_min(room, (size_t) (src->in->buf->last - src->pos));

        ngx_memcpy(&cur->chunk->data[n], src->pos, room);

        src->pos += room;
        cur->offset += room;
    }

    if (cur->offset < src->size) {
        return NGX_AGAIN;
    }

    rec->size = src->size;

    return NGX_OK;
}


/* a cursor of zeroes with the first chunk starts at the beginning */

void
ngx_idempotency_chunks_read(ngx_idempotency_cursor_t *cur, u_char *dst,
    size_t n)
{
    size_t  at, len;

    while (n) {
        at = cur->offset % ngx_idempotency_chunk_capacity;

        if (at == 0 && cur->offset) {
            cur->chunk = cur->chunk->next;
        }

        len = ngx_min(n, ngx_idempotency_chunk_capacity - at);

        dst = ngx_cpymem(dst, &cur->chunk->data[at], len);

        cur->offset += len;
        n -= len;
    }
}


void
ngx_idempotency_chunks_free(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec)
{
    ngx_idempotency_chunk_t  *chunk, *next;

    for (chunk = rec->chunks; chunk; chunk = next) {
        next = chunk->next;
        ngx_slab_free_locked(shm->shpool, chunk);
    }

    rec->chunks = NULL;
    rec->size = 0;
}


static void *
tree_find(ngx_idempotency_shm_t *shm, ngx_rbtree_node_t *root, u_char *digest)
{
    ngx_int_t           rc;
    ngx_rbtree_key_t    key;
    ngx_rbtree_node_t  *node;

    key = (ngx_rbtree_key_t) ngx_idempotency_tree_key(digest);

    for (node = root; node != &shm->sh->sentinel; /* void */ ) {

        rc = tree_compare(key, digest, node);

        if (rc == 0) {
            return node;
        }

        node = (rc < 0) ? node->left : node->right;
    }

    return NULL;
}


/* compares the digest, whose first bytes are the key, with a node's */

static ngx_inline ngx_int_t
tree_compare(ngx_rbtree_key_t key, u_char *digest, ngx_rbtree_node_t *node)
{
    if (key != node->key) {
        return (key < node->key) ? -1 : 1;
    }

    return ngx_memcmp(digest, ((tree_node_t *) node)->digest,
                      NGX_IDEMPOTENCY_DIGEST_LEN);
}


static void
tree_insert(ngx_idempotency_shm_t *shm,
    ngx_rbtree_node_t **root, ngx_rbtree_node_t *node)
{
    u_char        *digest;
    ngx_rbtree_t   tree;

    digest = ((tree_node_t *) node)->digest;
    node->key = (ngx_rbtree_key_t) ngx_idempotency_tree_key(digest);

    tree_make(&tree, shm, *root);
    ngx_rbtree_insert(&tree, node);
    *root = tree.root;
}


static void
tree_delete(ngx_idempotency_shm_t *shm,
    ngx_rbtree_node_t **root, ngx_rbtree_node_t *node)
{
    ngx_rbtree_t  tree;

    tree_make(&tree, shm, *root);
    ngx_rbtree_delete(&tree, node);
    *root = tree.root;
}


/* set anew each time: our functions' addresses differ between processes */

static void
tree_make(ngx_rbtree_t *tree, ngx_idempotency_shm_t *shm,
    ngx_rbtree_node_t *root)
{
    tree->root = root;
    tree->sentinel = &shm->sh->sentinel;
    tree->insert = tree_insert_value;
}


static void
tree_insert_value(ngx_rbtree_node_t *temp, ngx_rbtree_node_t *node,
    ngx_rbtree_node_t *sentinel)
{
    ngx_rbtree_node_t  **p;

    for ( ;; ) {
        p = (tree_compare(node->key, ((tree_node_t *) node)->digest, temp) < 0)
            ? &temp->left : &temp->right;

        if (*p == sentinel) {
            break;
        }

        temp = *p;
    }

    *p = node;
    node->parent = temp;
    node->left = sentinel;
    node->right = sentinel;
    ngx_rbt_red(node);
}


/* a token is a digest: any of its bytes make as good a key */

uint64_t
ngx_idempotency_tree_key(u_char *token)
{
    uint64_t  key;

    ngx_memcpy(&key, token, sizeof(key));

    return key;
}


/*
 * nginx unlocks a lock of a dead process, but can't repair what the process
 * left half changed.  Such a zone is torn, and refused until a reload, which is
 * an operator's decision: the new workers make it anew, and its records are
 * forgotten.
 */

ngx_int_t
ngx_idempotency_shm_lock(ngx_idempotency_shm_t *shm)
{
    ngx_pid_t                  pid;
    ngx_idempotency_shm_sh_t  *sh;

    sh = shm->sh;

    ngx_shmtx_lock(&shm->shpool->mutex);

    if (sh->inside == 0 && !sh->poisoned) {
        sh->inside = ngx_pid;
        ngx_memory_barrier();

        return NGX_OK;
    }

    pid = sh->inside;
    sh->inside = 0;

    if (pid) {
        sh->poisoned = sh->generation + 1;
    }

    ngx_shmtx_unlock(&shm->shpool->mutex);

    if (pid) {
        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                      "idempotency zone \"%V\" was left inconsistent by "
                      "process %P, which died: requests are refused until "
                      "a reload recreates the zone",
                      &shm->store->name, pid);
    }

    return NGX_ERROR;
}


void
ngx_idempotency_shm_unlock(ngx_idempotency_shm_t *shm)
{
    ngx_uint_t  i, n;

    ngx_memory_barrier();
    shm->sh->inside = 0;

    ngx_shmtx_unlock(&shm->shpool->mutex);

    /* a zone with a backing may be full: of copies, which may be evicted */

    if (shm->full && shm->tier == NULL) {
        ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, 0,
                      "idempotency zone \"%V\" is full to %ui percent, %uz "
                      "bytes are free", &shm->store->name, shm->full,
                      (size_t) shm->shpool->pfree * ngx_pagesize);
    }

    shm->full = 0;

    n = shm->nwoken;
    shm->nwoken = 0;

    if (n > NGX_IDEMPOTENCY_SHM_WOKEN) {
        ngx_idempotency_workers_wake_all();
        return;
    }

    for (i = 0; i < n; i++) {
        ngx_idempotency_workers_wake(&shm->woken[i].workers,
                                     shm->woken[i].key);
    }
}


/* A dead owner may have executed: its token is in doubt.  A request that only
   asked has sent nothing. */

void
ngx_idempotency_record_orphan(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_msec_t now)
{
    if (rec->state != NGX_IDEMPOTENCY_PENDING) {
        ngx_idempotency_record_change(shm, rec, NGX_IDEMPOTENCY_ON_ORPHAN,
                                      now);
        return;
    }

    ngx_idempotency_chunks_free(shm, rec);

    ngx_idempotency_record_publish(shm, rec, NGX_IDEMPOTENCY_IN_DOUBT, 0, now);
}


/* a queued record that leaves the zone stays in the queue, in the state GONE */

void
ngx_idempotency_writeback_add(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec)
{
    if (shm->tier == NULL || rec->local) {
        return;
    }

    switch (rec->flush) {

    case NGX_IDEMPOTENCY_FLUSHED:
        ngx_idempotency_writeback_append(shm, rec);
        shm->sh->tier.queued++;
        break;

    case NGX_IDEMPOTENCY_FLUSHING:
        rec->flush = NGX_IDEMPOTENCY_OUTDATED;
        break;
    }
}


void
ngx_idempotency_writeback_append(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec)
{
    ngx_idempotency_tier_sh_t  *sh;

    sh = &shm->sh->tier;

    rec->flush = NGX_IDEMPOTENCY_QUEUED;
    rec->next = NULL;

    *sh->end = rec;
    sh->end = &rec->next;
}


ngx_idempotency_workers_t *
ngx_idempotency_record_waiting(ngx_idempotency_record_t *rec)
{
    return ngx_idempotency_record_pends(rec) ? &rec->as.pending.waiting
           : (rec->state == NGX_IDEMPOTENCY_REMOTE) ? &rec->as.remote.waiting
           : NULL;
}


/* requests wait for the pending or remote record */

ngx_uint_t
ngx_idempotency_record_awaited(ngx_idempotency_record_t *rec)
{
    static const ngx_idempotency_workers_t  none;

    return ngx_memcmp(&rec->as.pending.waiting, &none, sizeof(none)) != 0;
}


/* wakes the workers whose requests wait for the record: those noted in it.  For
   a flush the record has room for one worker; if it was more than one, wakes
   all. */

void
ngx_idempotency_record_wake(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec)
{
    ngx_idempotency_woken_t    *woken;
    ngx_idempotency_workers_t  *waiting;

    waiting = ngx_idempotency_record_waiting(rec);

    if (waiting ? !ngx_idempotency_record_awaited(rec) : !rec->holding) {
        return;
    }

    if (shm->nwoken == NGX_IDEMPOTENCY_SHM_WOKEN) {
        shm->nwoken++;
    }

    if (shm->nwoken < NGX_IDEMPOTENCY_SHM_WOKEN) {
        woken = &shm->woken[shm->nwoken++];
        woken->key = ngx_idempotency_tree_key(rec->token);
        ngx_memzero(&woken->workers, sizeof(ngx_idempotency_workers_t));

        if (waiting) {
            woken->workers = *waiting;

        } else if (rec->holding == NGX_IDEMPOTENCY_HOLD_ALL) {
            ngx_memset(&woken->workers, 0xff,
                       sizeof(ngx_idempotency_workers_t));

        } else {
            woken->workers.bits[(rec->holding - 1) / 64] =
                                    (uint64_t) 1 << ((rec->holding - 1) % 64);
        }
    }

    if (waiting) {
        ngx_memzero(waiting, sizeof(ngx_idempotency_workers_t));

    } else {
        rec->holding = 0;
    }
}


ngx_uint_t
ngx_idempotency_record_unflushed(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec)
{
    return rec->flush != NGX_IDEMPOTENCY_FLUSHED
           && rec->flush != NGX_IDEMPOTENCY_ASIDE
           && !shm->sh->tier.failing;
}


ngx_rbtree_node_t *
ngx_idempotency_tree_next(ngx_idempotency_shm_t *shm, ngx_rbtree_node_t *root,
    u_char *digest)
{
    ngx_rbtree_key_t    key;
    ngx_rbtree_node_t  *node, *next;

    next = NULL;
    key = digest ? (ngx_rbtree_key_t) ngx_idempotency_tree_key(digest) : 0;

    for (node = root; node != &shm->sh->sentinel; /* void */ ) {

        if (digest == NULL || tree_compare(key, digest, node) < 0) {
            next = node;
            node = node->left;

        } else {
            node = node->right;
        }
    }

    return next;
}
