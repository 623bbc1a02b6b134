
/*
 * Claims over a backing, the store behind a zone.
 *
 * What the zone does not know is asked for, once for all requests of a token:
 * the first of them makes a record in the state ASKING, and all wait until that
 * changes.  So whatever is claimed is in the backing before anything is sent.
 * The exception is claim->alone: the backing is out of reach, and this
 * machine's memory alone guards the token.
 *
 * The answer turns the record into a claim, into a copy, or, where it may be
 * another one soon, into a negative entry for the requests that waited for it.
 * A record that no request waits for any more is asked for all the same, as the
 * backing may grant it yet: a request that comes before the answer waits for
 * it.
 *
 * A remote claim is pending in the backing, by another zone.  All requests that
 * wait for it here, in any worker, share one record.  For that the backing is
 * asked again, ever more seldom, and at once when it has announced a change.
 * This only looks: the requests that waited claim.
 *
 * The API's find asks by a claim that takes nothing fresh and is bound to
 * nothing.  The answer stays in the zone, and is looked up there.  Lists are
 * read page by page, without the zone.
 */


#include "ngx_idempotency_shm.h"


/* a claim waits for answers of the backing for so long */

#define NGX_IDEMPOTENCY_ASK_TIMEOUT  5000

/* a negative entry serves also those that did not wait for it, for so long */

#define NGX_IDEMPOTENCY_ASK_NEGATIVE    25

/* for how long a copy is good although others may make the backing forget */

#define NGX_IDEMPOTENCY_ASK_COPY     60000


/* a request that waits comes by more often: after this none does */

#define NGX_IDEMPOTENCY_REMOTE_WANTED  2000

/* an answer to a remote claim's question is late after this */

#define NGX_IDEMPOTENCY_REMOTE_ANSWER  5000


/* a wake-up may be lost */

#define NGX_IDEMPOTENCY_FIND_RETRY  500


typedef struct {
    ngx_idempotency_claim_t         claim;
    ngx_idempotency_shm_t          *shm;
    /* the operation that waits for the answer; NULL: it was cancelled */
    ngx_idempotency_op_t           *op;
    ngx_event_t                     timer;
    ngx_queue_t                     queue;
} find_t;


/* this worker's: claims that ask, pages that are read, and the operations that
   wait for either */

static ngx_queue_t  find_asking = { &find_asking, &find_asking };
static ngx_queue_t  find_pages = { &find_pages, &find_pages };
static ngx_queue_t  find_waiting = { &find_waiting, &find_waiting };


static ngx_int_t ask_bound(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t **rec);
static ngx_uint_t ask_old_copy(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_msec_t now);
static ngx_uint_t ask_alone(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim);
static ngx_int_t ask_miss(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t **rec);
static ngx_int_t ask_asking(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t *rec,
    ngx_idempotency_workers_t *wake);
static ngx_uint_t ask_same(ngx_idempotency_record_t *rec,
    ngx_idempotency_claim_t *claim);
static ngx_int_t ask_take(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t *rec);
static ngx_int_t ask_granted(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t **rec,
    ngx_idempotency_workers_t *wake);
static void ask_leave(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_idempotency_workers_t *wake);
static ngx_int_t ask_negative(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t **rec);
static ngx_int_t ask_in_doubt(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t **rec);
static ngx_uint_t ask_late(ngx_idempotency_claim_t *claim);
static ngx_int_t ask_result(ngx_idempotency_claim_t *claim,
    ngx_idempotency_result_e result);
static void ask_remote(ngx_idempotency_tier_t *tier,
    ngx_idempotency_record_t *rec, ngx_idempotency_item_t *item,
    ngx_idempotency_workers_t *wake);
static void ask_claimed(ngx_idempotency_tier_t *tier,
    ngx_idempotency_record_t *rec, ngx_idempotency_item_t *item);
static ngx_uint_t ask_over(ngx_idempotency_tier_t *tier,
    ngx_idempotency_record_t *rec, ngx_msec_t now);
static void ask_copy(ngx_idempotency_tier_t *tier,
    ngx_idempotency_record_t *rec, ngx_idempotency_item_t *item);
static int64_t ask_now(ngx_idempotency_tier_t *tier);
static ngx_msec_t ask_describe(ngx_idempotency_record_t *rec,
    ngx_idempotency_item_t *item, int64_t now);
static ngx_int_t ask_append(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_str_t *response);
static ngx_msec_t remote_due(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_msec_t lapses);
static ngx_msec_t remote_delay(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);
static void remote_handler(ngx_event_t *ev);
static ngx_uint_t find_unknown(ngx_idempotency_shm_t *shm,
    ngx_idempotency_op_t *op);
static find_t *find_create(ngx_idempotency_shm_t *shm,
    ngx_idempotency_op_t *op);
static ngx_int_t find_ask(find_t *find);
static void find_handler(ngx_idempotency_op_t *claim);
static void find_timer_handler(ngx_event_t *ev);
static ngx_idempotency_result_e find_result(find_t *find);
static void find_wait(ngx_idempotency_shm_t *shm, ngx_idempotency_op_t *op,
    void (*found)(ngx_idempotency_op_t *op));
static void find_page(ngx_idempotency_list_t *list,
    ngx_idempotency_page_t *page);
static void find_listed(ngx_idempotency_op_t *op);
static void find_item(ngx_idempotency_listed_t *listed,
    ngx_idempotency_item_t *item, int64_t now);
static ngx_int_t remote_lookup(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t *rec);
static void remote_found(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_msec_t lapses);
static void remote_answered(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_msec_t lapses,
    ngx_idempotency_workers_t *wake);


/*
 * A claim and the record of its token, or NULL.  NGX_DECLINED: the zone answers
 * by itself, by the record as it is then; NGX_AGAIN: the claim waits for the
 * backing; NGX_OK: it is answered.
 */

ngx_int_t
ngx_idempotency_ask_lookup(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t **rec,
    ngx_idempotency_workers_t *wake)
{
    if (*rec) {
        switch ((*rec)->state) {

        case NGX_IDEMPOTENCY_ASKING:
        case NGX_IDEMPOTENCY_ABANDONED:
            return ask_asking(shm, claim, *rec, wake);

        case NGX_IDEMPOTENCY_GRANTED:
            return ask_granted(shm, claim, rec, wake);
        }
    }

    /* its question was answered, or is another claim's by now */

    claim->asker = 0;

    return *rec ? ask_bound(shm, claim, rec) : ask_miss(shm, claim, rec);
}


static ngx_int_t
ask_bound(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim,
    ngx_idempotency_record_t **rec)
{
    switch ((*rec)->state) {

    case NGX_IDEMPOTENCY_PENDING:
        return NGX_DECLINED;

    case NGX_IDEMPOTENCY_REMOTE:

        /* nobody can tell what became of the remote claim */

        if (ngx_idempotency_tier_down(shm) && !claim->alone
            && !ngx_idempotency_tier_shared(shm->tier))
        {
            return ask_result(claim, NGX_IDEMPOTENCY_UNAVAILABLE);
        }

        return remote_lookup(shm, claim, *rec);

    case NGX_IDEMPOTENCY_NOTHING:
    case NGX_IDEMPOTENCY_FAILED:
        return ask_negative(shm, claim, rec);

    case NGX_IDEMPOTENCY_IN_DOUBT:
    case NGX_IDEMPOTENCY_DOUBTED:
        return ask_in_doubt(shm, claim, rec);
    }

    /* an outcome, which nothing changes within its window */

    if (ask_old_copy(shm, *rec, claim->op.now)) {
        ngx_idempotency_record_remove(shm, *rec);
        return ask_miss(shm, claim, rec);
    }

    /* `strict`: no client gets an outcome that the backing lacks */

    if (!shm->tier->strict || claim->alone
        || !ngx_idempotency_record_unflushed(shm, *rec)
        || ngx_idempotency_record_differs(*rec, claim)
        || ask_late(claim))
    {
        return NGX_DECLINED;
    }

    ngx_idempotency_shm_wait_flushed(*rec, &claim->op);

    return NGX_AGAIN;
}


/* another instance may have made what stands behind forget it since: over a
   file, if one was there after the copy was made */

static ngx_uint_t
ask_old_copy(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec,
    ngx_msec_t now)
{
    ngx_msec_t               since;
    ngx_idempotency_tier_t  *tier;

    tier = shm->tier;

    if (ngx_idempotency_record_stays(rec)) {
        return 0;
    }

    since = (rec->window == &shm->sh->copies) ? rec->as.copy.copied
                                              : rec->recorded;

    if (!ngx_idempotency_tier_shared(tier)
        && (ngx_msec_int_t) (shm->sh->tier.others - since) <= 0)
    {
        return 0;
    }

    return (ngx_msec_int_t) (now - since) >= NGX_IDEMPOTENCY_ASK_COPY
           && !shm->sh->tier.failing && tier->backing->up(tier);
}


/* this machine's memory alone guards the token, as the backing is out of reach;
   never where the backing answers, but is another one, or has forgotten */

static ngx_uint_t
ask_alone(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim)
{
    return claim->alone && !shm->sh->tier.other
           && (shm->sh->tier.failing || shm->sh->tier.aside
               || ngx_idempotency_tier_down(shm));
}


static ngx_int_t
ask_miss(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim,
    ngx_idempotency_record_t **rec)
{
    ngx_idempotency_result_e  result;

    *rec = NULL;

    if (ask_alone(shm, claim)) {
        return NGX_DECLINED;
    }

    if (ngx_idempotency_tier_down(shm) || ask_late(claim)) {
        return ask_result(claim, NGX_IDEMPOTENCY_UNAVAILABLE);
    }

    result = ngx_idempotency_record_ask(shm, claim, rec);

    if (result != NGX_IDEMPOTENCY_OK) {
        return ask_result(claim, result);
    }

    ngx_idempotency_shm_wait(*rec, claim);

    return NGX_AGAIN;
}


/* a question that no request waits for becomes this claim's, if it would ask
   the same */

static ngx_int_t
ask_asking(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim,
    ngx_idempotency_record_t *rec, ngx_idempotency_workers_t *wake)
{
    ngx_uint_t  mine;

    mine = (rec->state == NGX_IDEMPOTENCY_ASKING
            && claim->asker == rec->as.asking.asker);

    if (ask_alone(shm, claim)) {
        ngx_idempotency_record_take_waiting(rec, wake);

        return ask_take(shm, claim, rec);
    }

    if (ask_late(claim) || ngx_idempotency_tier_down(shm)) {

        if (mine) {
            ask_leave(shm, rec, wake);
        }

        return ask_result(claim, NGX_IDEMPOTENCY_UNAVAILABLE);
    }

    if (rec->state == NGX_IDEMPOTENCY_ASKING && !mine
        && !ngx_idempotency_record_alive(rec, claim->op.now))
    {
        ngx_idempotency_record_change(shm, rec, NGX_IDEMPOTENCY_ON_ORPHAN,
                                      claim->op.now);
    }

    if (rec->state == NGX_IDEMPOTENCY_ABANDONED && ask_same(rec, claim)) {
        ngx_idempotency_record_change(shm, rec, NGX_IDEMPOTENCY_ON_ASK,
                                      claim->op.now);
        ngx_idempotency_record_asker(shm, rec, claim);
    }

    ngx_idempotency_shm_wait(rec, claim);

    return NGX_AGAIN;
}


/* the question would be the same, and so the answer */

static ngx_uint_t
ask_same(ngx_idempotency_record_t *rec, ngx_idempotency_claim_t *claim)
{
    return ngx_memcmp(rec->fingerprint, claim->fingerprint,
                      NGX_IDEMPOTENCY_DIGEST_LEN) == 0
           && ngx_memcmp(&rec->parts, &claim->parts,
                         sizeof(ngx_idempotency_parts_t)) == 0
           && rec->as.asking.retry == claim->retry
           && rec->as.asking.old == claim->old
           && rec->window->length == claim->window
           && rec->lease == claim->lease;
}


static ngx_int_t
ask_take(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim,
    ngx_idempotency_record_t *rec)
{
    ngx_idempotency_record_take(shm, rec, claim);

    claim->asker = 0;

    return ask_result(claim, NGX_IDEMPOTENCY_CLAIMED);
}


/* The claim is granted to the request that asked.  Nothing was sent yet: if
   that request's worker has died, the claim goes to another one that asks the
   same, or is given back.  It is given back, too, if its lease may be over. */

static ngx_int_t
ask_granted(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim,
    ngx_idempotency_record_t **rec, ngx_idempotency_workers_t *wake)
{
    ngx_uint_t  over;

    over = ask_over(shm->tier, *rec, claim->op.now);

    if (claim->asker == (*rec)->as.asking.asker && !over) {
        return ask_take(shm, claim, *rec);
    }

    claim->asker = 0;

    if (ngx_idempotency_record_alive(*rec, claim->op.now) && !over) {
        return NGX_DECLINED;
    }

    if (ask_same(*rec, claim) && !over) {
        return ask_take(shm, claim, *rec);
    }

    ngx_idempotency_record_take_waiting(*rec, wake);
    ngx_idempotency_record_change(shm, *rec, NGX_IDEMPOTENCY_ON_ORPHAN,
                                  claim->op.now);

    return ask_miss(shm, claim, rec);
}


/* the request that asked has ended; a question that the backing never saw goes
   with it */

static void
ask_leave(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec,
    ngx_idempotency_workers_t *wake)
{
    ngx_uint_t  unseen;

    unseen = (rec->flush == NGX_IDEMPOTENCY_QUEUED && !rec->sent
              && !rec->unsure);

    ngx_idempotency_record_take_waiting(rec, wake);
    ngx_idempotency_record_change(shm, rec,
                                  unseen ? NGX_IDEMPOTENCY_ON_REMOVE
                                         : NGX_IDEMPOTENCY_ON_LEAVE,
                                  ngx_current_msec);
}


static ngx_int_t
ask_negative(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim,
    ngx_idempotency_record_t **rec)
{
    ngx_uint_t                waited;
    ngx_idempotency_result_e  result;

    waited = (claim->waited == (*rec)->sequence);

    if (waited
        || (ngx_msec_int_t) (claim->op.now - (*rec)->as.copy.copied)
           < NGX_IDEMPOTENCY_ASK_NEGATIVE)
    {
        switch ((*rec)->state) {

        case NGX_IDEMPOTENCY_FAILED:
            if (claim->alone) {
                break;
            }

            return ask_result(claim, NGX_IDEMPOTENCY_UNAVAILABLE);

        default: /* NGX_IDEMPOTENCY_NOTHING */

            if (!waited) {
                break;
            }

            result = claim->old ? NGX_IDEMPOTENCY_EXPIRED
                                : ngx_idempotency_quota_check(shm, claim);

            if (result != NGX_IDEMPOTENCY_OK) {
                return ask_result(claim, result);
            }
        }
    }

    ngx_idempotency_record_remove(shm, *rec);

    return ask_miss(shm, claim, rec);
}


/*
 * Another machine may take over what is in doubt, so it is not copied for long:
 * the backing is asked.  A doubt that the backing does not know yet is known
 * best here; a claim that would take it over waits for the write, and asks
 * then.
 */

static ngx_int_t
ask_in_doubt(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim,
    ngx_idempotency_record_t **rec)
{
    ngx_uint_t  recent, queued;

    /* a claim that takes nothing over may be answered by a recent answer */

    recent = (!claim->retry || ngx_idempotency_record_differs(*rec, claim));
    queued = ((*rec)->flush != NGX_IDEMPOTENCY_FLUSHED);

    if ((*rec)->state == NGX_IDEMPOTENCY_DOUBTED) {

        if (recent
            && (claim->waited == (*rec)->sequence
                || (ngx_msec_int_t) (claim->op.now
                                     - (*rec)->as.copy.copied)
                   < NGX_IDEMPOTENCY_ASK_NEGATIVE))
        {
            return NGX_DECLINED;
        }

    } else if (ask_alone(shm, claim) || (*rec)->local
               || (recent && (queued || shm->sh->tier.failing)))
    {
        return NGX_DECLINED;

    } else if (queued) {

        if (!ngx_idempotency_record_unflushed(shm, *rec) || ask_late(claim)) {
            return ask_result(claim, NGX_IDEMPOTENCY_UNAVAILABLE);
        }

        ngx_idempotency_shm_wait_flushed(*rec, &claim->op);

        return NGX_AGAIN;
    }

    ngx_idempotency_record_remove(shm, *rec);

    return ask_miss(shm, claim, rec);
}


/* the claim has waited for answers for long enough, also for those of others */

static ngx_uint_t
ask_late(ngx_idempotency_claim_t *claim)
{
    if (claim->since == 0) {
        claim->since = claim->op.now;
    }

    return (ngx_msec_int_t) (claim->op.now - claim->since)
           >= NGX_IDEMPOTENCY_ASK_TIMEOUT;
}


static ngx_int_t
ask_result(ngx_idempotency_claim_t *claim, ngx_idempotency_result_e result)
{
    claim->since = 0;
    claim->op.result = result;

    return NGX_OK;
}


/* the request has gone */

void
ngx_idempotency_ask_cancel(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim)
{
    ngx_idempotency_record_t   *rec;
    ngx_idempotency_workers_t   wake;

    ngx_memzero(&wake, sizeof(ngx_idempotency_workers_t));

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        return;
    }

    rec = ngx_idempotency_record_current(shm, claim->op.token, claim->op.now);

    if (rec
        && (rec->state == NGX_IDEMPOTENCY_ASKING
            || rec->state == NGX_IDEMPOTENCY_GRANTED)
        && rec->as.asking.asker == claim->asker)
    {
        ask_leave(shm, rec, &wake);
    }

    ngx_idempotency_shm_unlock(shm);

    claim->asker = 0;

    ngx_idempotency_workers_wake(&wake,
                                 ngx_idempotency_tree_key(claim->op.token));
    ngx_idempotency_writeback_schedule(shm);
}


/* with the lock held; `wake` are woken without it */

ngx_uint_t
ngx_idempotency_ask_answered(ngx_idempotency_tier_t *tier,
    ngx_idempotency_record_t *rec, ngx_idempotency_item_t *item,
    ngx_idempotency_workers_t *wake)
{
    ngx_idempotency_shm_t  *shm;

    shm = tier->shm;

    if (rec->state == NGX_IDEMPOTENCY_REMOTE
        && (item->result == NGX_IDEMPOTENCY_UNAVAILABLE
            || (item->result == NGX_IDEMPOTENCY_BOUND
                && item->outcome == NGX_IDEMPOTENCY_PENDING)))
    {
        ask_remote(tier, rec, item, wake);
        return 1;
    }

    ngx_idempotency_record_take_waiting(rec, wake);

    switch (item->result) {

    case NGX_IDEMPOTENCY_CLAIMED:
        ask_claimed(tier, rec, item);
        break;

    case NGX_IDEMPOTENCY_BOUND:
        rec->sent = 0;
        ask_copy(tier, rec, item);
        break;

    case NGX_IDEMPOTENCY_ABSENT:
        rec->sent = 0;
        ngx_idempotency_record_found(shm, rec,
                                     NGX_IDEMPOTENCY_ON_FOUND_NOTHING,
                                     ngx_current_msec);
        break;

    case NGX_IDEMPOTENCY_CHANGED:

        /* it came late, or its fence would not rise: it is asked for anew */

        rec->sent = 0;
        shm->sh->fence = ngx_max(shm->sh->fence, item->fence + 1);
        ngx_idempotency_record_remove(shm, rec);
        break;

    default: /* NGX_IDEMPOTENCY_UNAVAILABLE: it may be claimed there */
        ngx_idempotency_record_found(shm, rec, NGX_IDEMPOTENCY_ON_FAIL,
                                     ngx_current_msec);

        if (rec->sent) {

            /* it may be claimed there, and others would wait for it */

            ngx_idempotency_writeback_add(shm, rec);
        }
    }

    return 0;
}


static void
ask_remote(ngx_idempotency_tier_t *tier, ngx_idempotency_record_t *rec,
    ngx_idempotency_item_t *item, ngx_idempotency_workers_t *wake)
{
    int64_t     now;
    ngx_msec_t  lapses;

    now = ask_now(tier);
    lapses = 0;

    if (item->result == NGX_IDEMPOTENCY_BOUND) {
        lapses = ask_describe(rec, item, now);
    }

    remote_answered(tier->shm, rec, lapses, wake);
}


static void
ask_claimed(ngx_idempotency_tier_t *tier, ngx_idempotency_record_t *rec,
    ngx_idempotency_item_t *item)
{
    if (ask_over(tier, rec, ngx_current_msec)) {
        ngx_idempotency_record_remove(tier->shm, rec);
        return;
    }

    rec->fence = item->fence;
    rec->taken = item->taken;
    rec->recorded = ngx_current_msec;

    ngx_idempotency_record_change(tier->shm, rec, NGX_IDEMPOTENCY_ON_GRANT,
                                  ngx_current_msec);
}


/* A shared backing knows only the lease, which began after the question was
   sent.  If this process stood still since then, or since the answer, the lease
   may be over, and the claim another machine's. */

static ngx_uint_t
ask_over(ngx_idempotency_tier_t *tier, ngx_idempotency_record_t *rec,
    ngx_msec_t now)
{
    return ngx_idempotency_tier_shared(tier)
           && (ngx_msec_int_t) (now - rec->recorded)
              >= (ngx_msec_int_t) rec->lease;
}


static void
ask_copy(ngx_idempotency_tier_t *tier, ngx_idempotency_record_t *rec,
    ngx_idempotency_item_t *item)
{
    int64_t                   now;
    ngx_msec_t                lapses;
    ngx_idempotency_shm_t    *shm;
    ngx_idempotency_event_e   event;

    shm = tier->shm;
    now = ask_now(tier);

    if (item->outcome != NGX_IDEMPOTENCY_PENDING && item->ends <= now) {

        /* it has ended since */

        ngx_idempotency_record_remove(shm, rec);
        return;
    }

    lapses = ask_describe(rec, item, now);

    if (item->outcome == NGX_IDEMPOTENCY_PENDING) {
        remote_found(shm, rec, lapses);
        return;
    }

    if (rec->state == NGX_IDEMPOTENCY_REMOTE) {

        /* what nobody wants is freed for the room that a response takes */

        rec->as.remote.wanted = (uint32_t) ngx_current_msec;
    }

    event = NGX_IDEMPOTENCY_ON_FOUND_PENDING + item->outcome;

    if (ask_append(shm, rec, &item->response) != NGX_OK) {
        event = NGX_IDEMPOTENCY_ON_FAIL;
    }

    ngx_idempotency_record_found(shm, rec, event, ngx_current_msec);
}


/* the backing's time */

static int64_t
ask_now(ngx_idempotency_tier_t *tier)
{
    return tier->batch->now
           + (ngx_msec_int_t) (ngx_current_msec - tier->batch->at);
}


/* when the lease of what is pending ends is returned, or 0 */

static ngx_msec_t
ask_describe(ngx_idempotency_record_t *rec, ngx_idempotency_item_t *item,
    int64_t now)
{
    ngx_memcpy(rec->fingerprint, item->fingerprint,
               NGX_IDEMPOTENCY_DIGEST_LEN);

    rec->parts = item->parts;
    rec->fence = item->fence;
    rec->replays = item->replays;
    rec->recorded = ngx_current_msec - (ngx_msec_t) (now - item->recorded);
    rec->ends = ngx_current_msec + (ngx_msec_t) (item->ends - now);

    if (item->outcome == NGX_IDEMPOTENCY_PENDING) {
        return item->lapses
               ? ngx_current_msec + (ngx_msec_t) (item->lapses - now) : 0;
    }

    rec->status = item->status;

    return 0;
}


static ngx_int_t
ask_append(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec,
    ngx_str_t *response)
{
    u_char                    *pos;
    ngx_buf_t                  b;
    ngx_chain_t                cl, *in;
    ngx_idempotency_cursor_t   cur;

    ngx_memzero(&b, sizeof(ngx_buf_t));
    ngx_memzero(&cur, sizeof(ngx_idempotency_cursor_t));

    b.pos = response->data;
    b.last = response->data + response->len;

    cl.buf = &b;
    cl.next = NULL;

    in = &cl;
    pos = b.pos;

    while (cur.offset < response->len) {

        if (ngx_idempotency_chunks_append(shm, rec, &cur, &in, &pos,
                                          response->len, ngx_current_msec)
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    rec->size = response->len;

    return NGX_OK;
}


/*
 * NGX_DECLINED: the claim is answered by the record.  A claim that does not
 * wait for the outcome needs what is so now: NGX_AGAIN, it waits for the answer
 * to a question that is sent from here on.
 */

static ngx_int_t
remote_lookup(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t *rec)
{
    ngx_uint_t  heard, silent;
    ngx_msec_t  now;

    now = claim->op.now;

    rec->as.remote.wanted = (uint32_t) now;

    ngx_queue_remove(&rec->queue);
    ngx_queue_insert_tail(&shm->sh->remote, &rec->queue);

    if (claim->wait && ngx_idempotency_record_differs(rec, claim) == 0) {
        return NGX_DECLINED;
    }

    heard = (claim->waited == rec->sequence
             && (int32_t) (rec->as.remote.answers - claim->answer) >= 0);

    silent = shm->sh->tier.failing
             || (rec->flush != NGX_IDEMPOTENCY_FLUSHED
                 && (ngx_msec_int_t) (now - rec->as.remote.due)
                    >= NGX_IDEMPOTENCY_REMOTE_ANSWER);

    if (heard) {
        return NGX_DECLINED;
    }

    if (rec->flush == NGX_IDEMPOTENCY_FLUSHED) {
        rec->as.remote.due = now;
    }

    if (silent) {

        /* the backing is asked all the same, for the next claim */

        if (rec->flush == NGX_IDEMPOTENCY_FLUSHED) {
            ngx_idempotency_writeback_add(shm, rec);
        }

        return NGX_DECLINED;
    }

    rec->as.remote.polled = 1;

    ngx_idempotency_shm_wait(rec, claim);
    ngx_idempotency_writeback_add(shm, rec);

    return NGX_AGAIN;
}


/* the answer: the token is claimed by another zone, whose lease ends at
   `lapses`, or 0 */

static void
remote_found(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_msec_t lapses)
{
    ngx_idempotency_record_found(shm, rec, NGX_IDEMPOTENCY_ON_FOUND_PENDING,
                                 ngx_current_msec);

    rec->as.remote.answers = 1;
    rec->as.remote.wanted = (uint32_t) ngx_current_msec;
    rec->as.remote.due = remote_due(shm, rec, lapses);
}


/* a remote claim is still pending, or there was no answer: those who wait for
   the outcome go on, those who wait for an answer have it */

static void
remote_answered(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_msec_t lapses,
    ngx_idempotency_workers_t *wake)
{
    rec->as.remote.answers++;
    rec->as.remote.due = remote_due(shm, rec, lapses);

    if (rec->as.remote.polled) {
        rec->as.remote.polled = 0;

        ngx_idempotency_record_take_waiting(rec, wake);
    }
}


static ngx_msec_t
remote_due(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec,
    ngx_msec_t lapses)
{
    ngx_msec_t  due;

    due = ngx_current_msec + remote_delay(shm, rec);

    if (lapses && (ngx_msec_int_t) (lapses - ngx_current_msec) > 0
        && (ngx_msec_int_t) (due - lapses) > 0)
    {
        due = lapses + 1;
    }

    return due;
}


static ngx_msec_t
remote_delay(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec)
{
    uint32_t                          n;
    ngx_msec_t                        delay;
    const ngx_idempotency_backing_t  *backing;

    backing = shm->tier->backing;
    delay = backing->soon;

    for (n = rec->as.remote.answers; n > 1 && delay < backing->seldom; n--) {
        delay *= 2;
    }

    return ngx_min(delay, backing->seldom);
}


/* the number of the first answer to a question that is sent from now on */

uint32_t
ngx_idempotency_remote_next(ngx_idempotency_record_t *rec)
{
    uint32_t  next;

    next = (rec->flush == NGX_IDEMPOTENCY_FLUSHING
            || rec->flush == NGX_IDEMPOTENCY_OUTDATED) ? 2 : 1;

    if (rec->state == NGX_IDEMPOTENCY_REMOTE) {
        next += rec->as.remote.answers;
    }

    return next;
}


/* no request has wanted it for so long; workers' clocks may differ */

ngx_uint_t
ngx_idempotency_remote_unwanted(ngx_idempotency_record_t *rec,
    ngx_msec_t now, ngx_msec_t time)
{
    return (int32_t) ((uint32_t) now - rec->as.remote.wanted)
           >= (int32_t) time;
}


/* a request of this worker waits for a remote claim; called without the lock,
   and again while it waits */

void
ngx_idempotency_remote_wait(ngx_idempotency_shm_t *shm, u_char *token,
    ngx_msec_t due)
{
    ngx_msec_int_t           left;
    ngx_idempotency_tier_t  *tier;

    tier = shm->tier;

    if (tier->backing->await) {
        tier->backing->await(tier, token);
    }

    left = (ngx_msec_int_t) (due - ngx_current_msec);
    left = ngx_max(left, 1);

    if (!tier->poll.timer_set
        || (ngx_msec_int_t) (tier->poll.timer.key - ngx_current_msec) > left)
    {
        ngx_add_timer(&tier->poll, left);
    }
}


static void
remote_handler(ngx_event_t *ev)
{
    ngx_msec_t                 due;
    ngx_queue_t               *q;
    ngx_msec_int_t             left, next;
    ngx_idempotency_shm_t     *shm;
    ngx_idempotency_tier_t    *tier;
    ngx_idempotency_record_t  *rec;

    tier = ev->data;
    shm = tier->shm;
    next = 0;

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        return;
    }

    for (q = ngx_queue_last(&shm->sh->remote);
         q != ngx_queue_sentinel(&shm->sh->remote);
         q = ngx_queue_prev(q))
    {
        rec = ngx_queue_data(q, ngx_idempotency_record_t, queue);

        if (ngx_idempotency_remote_unwanted(rec, ngx_current_msec,
                                            NGX_IDEMPOTENCY_REMOTE_WANTED))
        {
            break;
        }

        due = rec->as.remote.due;

        if ((ngx_msec_int_t) (due - ngx_current_msec) <= 0) {

            /* one question at a time */

            if (rec->flush == NGX_IDEMPOTENCY_FLUSHED) {
                ngx_idempotency_writeback_add(shm, rec);
            }

            due = ngx_current_msec + remote_delay(shm, rec);
        }

        left = (ngx_msec_int_t) (due - ngx_current_msec);
        next = next ? ngx_min(next, left) : left;
    }

    ngx_idempotency_shm_unlock(shm);

    if (next) {
        ngx_add_timer(ev, next);
    }

    ngx_idempotency_writeback_schedule(shm);
}


/* the backing has announced a change of the token; NULL: of some token */

void
ngx_idempotency_remote_changed(ngx_idempotency_tier_t *tier, u_char *token)
{
    ngx_queue_t               *q;
    ngx_idempotency_shm_t     *shm;
    ngx_idempotency_record_t  *rec;

    shm = tier->shm;

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        return;
    }

    if (token) {
        rec = ngx_idempotency_record_current(shm, token, ngx_current_msec);

        if (rec && rec->state == NGX_IDEMPOTENCY_REMOTE) {
            ngx_idempotency_writeback_add(shm, rec);
        }

    } else {
        for (q = ngx_queue_head(&shm->sh->remote);
             q != ngx_queue_sentinel(&shm->sh->remote);
             q = ngx_queue_next(q))
        {
            rec = ngx_queue_data(q, ngx_idempotency_record_t, queue);
            ngx_idempotency_writeback_add(shm, rec);
        }
    }

    ngx_idempotency_shm_unlock(shm);

    ngx_idempotency_writeback_schedule(shm);
}


void
ngx_idempotency_remote_init_process(ngx_idempotency_tier_t *tier,
    ngx_cycle_t *cycle)
{
    tier->poll.handler = remote_handler;
    tier->poll.data = tier;
    tier->poll.log = cycle->log;
    tier->poll.cancelable = 1;
}


ngx_int_t
ngx_idempotency_remote_find(ngx_idempotency_shm_t *shm,
    ngx_idempotency_op_t *op, void (*found)(ngx_idempotency_op_t *op))
{
    find_t  *find;

    op->result = NGX_IDEMPOTENCY_OK;

    if (shm->tier == NULL || !find_unknown(shm, op)) {
        return NGX_OK;
    }

    find = find_create(shm, op);

    if (find == NULL) {
        op->result = NGX_IDEMPOTENCY_UNAVAILABLE;
        return NGX_OK;
    }

    if (find_ask(find) == NGX_AGAIN) {
        find_wait(shm, op, found);
        return NGX_AGAIN;
    }

    op->result = find_result(find);

    ngx_queue_remove(&find->queue);
    ngx_free(find);

    return NGX_OK;
}


/* outcomes don't change within their window, and a claim of this zone is known
   best here */

static ngx_uint_t
find_unknown(ngx_idempotency_shm_t *shm, ngx_idempotency_op_t *op)
{
    ngx_uint_t                 unknown;
    ngx_idempotency_record_t  *rec;

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        return 0;
    }

    rec = ngx_idempotency_record_current(shm, op->token, op->now);

    unknown = (rec == NULL
               || ngx_idempotency_record_unknown(rec)
               || rec->state == NGX_IDEMPOTENCY_REMOTE
               || rec->state == NGX_IDEMPOTENCY_DOUBTED);

    ngx_idempotency_shm_unlock(shm);

    return unknown;
}


static find_t *
find_create(ngx_idempotency_shm_t *shm, ngx_idempotency_op_t *op)
{
    find_t                    *find;
    ngx_idempotency_claim_t   *claim;
    ngx_idempotency_window_t  *window;

    find = ngx_calloc(sizeof(find_t), ngx_cycle->log);
    if (find == NULL) {
        return NULL;
    }

    find->shm = shm;
    find->op = op;

    find->timer.handler = find_timer_handler;
    find->timer.data = find;
    find->timer.log = ngx_cycle->log;

    claim = &find->claim;
    window = &shm->sh->window;

    ngx_memcpy(claim->op.token, op->token, NGX_IDEMPOTENCY_DIGEST_LEN);

    /* any window that exists: it makes no difference which */

    claim->window = window->length;
    claim->span = window->span;
    claim->lease = NGX_IDEMPOTENCY_SHM_LEFTOVER;
    claim->old = 1;

    claim->op.handler = find_handler;
    claim->op.data = find;

    ngx_queue_insert_tail(&find_asking, &find->queue);

    return find;
}


static ngx_int_t
find_ask(find_t *find)
{
    ngx_int_t  rc;

    if (find->timer.timer_set) {
        ngx_del_timer(&find->timer);
    }

    find->claim.op.now = ngx_current_msec;

    rc = ngx_idempotency_shm_engine.claim(find->shm->store, &find->claim);

    if (rc == NGX_AGAIN) {
        ngx_add_timer(&find->timer, NGX_IDEMPOTENCY_FIND_RETRY);
    }

    return rc;
}


static void
find_handler(ngx_idempotency_op_t *claim)
{
    find_t                *find;
    ngx_idempotency_op_t  *op;

    find = claim->data;

    if (claim->result == NGX_IDEMPOTENCY_CHANGED
        && find_ask(find) == NGX_AGAIN)
    {
        return;
    }

    if (find->timer.timer_set) {
        ngx_del_timer(&find->timer);
    }

    op = find->op;

    if (op) {
        op->result = find_result(find);
    }

    ngx_queue_remove(&find->queue);
    ngx_free(find);

    if (op) {
        op->waiting = 0;
        ngx_queue_remove(&op->queue);

        op->now = ngx_current_msec;
        op->resume(op);
    }
}


/* the claim is the engine's still: made again, it is the same one */

static void
find_timer_handler(ngx_event_t *ev)
{
    find_t  *find;

    find = ev->data;

    find->claim.op.result = NGX_IDEMPOTENCY_CHANGED;
    find_handler(&find->claim.op);
}


static ngx_idempotency_result_e
find_result(find_t *find)
{
    switch (find->claim.op.result) {

    case NGX_IDEMPOTENCY_EXPIRED:
        return NGX_IDEMPOTENCY_ABSENT;

    case NGX_IDEMPOTENCY_BOUND:
    case NGX_IDEMPOTENCY_CONFLICT:
    case NGX_IDEMPOTENCY_VERSION:
        return NGX_IDEMPOTENCY_OK;

    default:
        return NGX_IDEMPOTENCY_UNAVAILABLE;
    }
}


static void
find_wait(ngx_idempotency_shm_t *shm, ngx_idempotency_op_t *op,
    void (*found)(ngx_idempotency_op_t *op))
{
    op->store = shm->store;
    op->resume = found;
    op->waiting = 1;

    ngx_queue_insert_tail(&find_waiting, &op->queue);
}


/* the operation waits no more; its claim, or page, ends without it */

void
ngx_idempotency_remote_cancel(ngx_idempotency_op_t *op)
{
    find_t                  *find;
    ngx_queue_t             *q;
    ngx_idempotency_page_t  *page;

    for (q = ngx_queue_head(&find_asking);
         q != ngx_queue_sentinel(&find_asking);
         q = ngx_queue_next(q))
    {
        find = ngx_queue_data(q, find_t, queue);

        if (find->op == op) {
            find->op = NULL;
            return;
        }
    }

    for (q = ngx_queue_head(&find_pages);
         q != ngx_queue_sentinel(&find_pages);
         q = ngx_queue_next(q))
    {
        page = ngx_queue_data(q, ngx_idempotency_page_t, queue);

        if (page->data == op) {
            page->data = NULL;
            return;
        }
    }
}


/* the cursor is the backing's, and one more */

ngx_int_t
ngx_idempotency_remote_list(ngx_idempotency_shm_t *shm,
    ngx_idempotency_list_t *list)
{
    ngx_idempotency_op_t    *op;
    ngx_idempotency_page_t  *page;

    op = &list->op;
    page = NULL;

    if (shm->tier && shm->tier->backing->list) {
        page = ngx_calloc(sizeof(ngx_idempotency_page_t), ngx_cycle->log);
    }

    if (page) {
        page->data = op;
        page->n = ngx_min(list->n, NGX_IDEMPOTENCY_TIER_BATCH);
        page->cursor = list->cursor;

        if (list->cursor) {
            ngx_memcpy(page->token, op->token, NGX_IDEMPOTENCY_DIGEST_LEN);
        }

        ngx_queue_insert_tail(&find_pages, &page->queue);

        if (shm->tier->backing->list(shm->tier, page) == NGX_AGAIN) {
            find_wait(shm, op, find_listed);
            return NGX_AGAIN;
        }

        ngx_queue_remove(&page->queue);
        ngx_free(page);
    }

    list->n = 0;
    op->result = NGX_IDEMPOTENCY_UNAVAILABLE;

    return NGX_OK;
}


void
ngx_idempotency_remote_listed(ngx_idempotency_page_t *page)
{
    ngx_idempotency_op_t    *op;
    ngx_idempotency_list_t  *list;

    op = page->data;

    if (op) {
        list = (ngx_idempotency_list_t *) op;

        op->waiting = 0;
        ngx_queue_remove(&op->queue);

        find_page(list, page);
    }

    ngx_queue_remove(&page->queue);
    ngx_free(page);

    if (op) {
        op->resume(op);
    }
}


static void
find_listed(ngx_idempotency_op_t *op)
{
    op->handler(op);
}


static void
find_page(ngx_idempotency_list_t *list, ngx_idempotency_page_t *page)
{
    ngx_uint_t                i, n;
    ngx_idempotency_shm_t    *shm;
    ngx_idempotency_store_t  *store;

    n = 0;

    if (page->rc != NGX_OK) {
        list->n = 0;
        list->op.result = NGX_IDEMPOTENCY_UNAVAILABLE;
        return;
    }

    store = list->op.store;
    shm = store->data;

    ngx_idempotency_unseal(store->secret, page->items, page->n,
                           !ngx_idempotency_tier_shared(shm->tier));

    for (i = 0; i < page->n; i++) {

        /* some may have ended since, and what is damaged or forged tells
           nothing */

        if (page->items[i].result == NGX_IDEMPOTENCY_BOUND) {
            find_item(&list->listed[n++], &page->items[i], page->now);
        }
    }

    list->n = n;
    list->cursor = page->cursor;
    list->op.result = NGX_IDEMPOTENCY_OK;

    ngx_memcpy(list->op.token, page->token, NGX_IDEMPOTENCY_DIGEST_LEN);
}


static void
find_item(ngx_idempotency_listed_t *listed, ngx_idempotency_item_t *item,
    int64_t now)
{
    ngx_idempotency_found_t  *found;

    found = &listed->found;

    ngx_memcpy(listed->token, item->token, NGX_IDEMPOTENCY_DIGEST_LEN);
    ngx_memcpy(listed->fingerprint, item->fingerprint,
               NGX_IDEMPOTENCY_DIGEST_LEN);

    ngx_memzero(found, sizeof(ngx_idempotency_found_t));

    found->outcome = item->outcome;
    found->status = item->status;
    found->fence = item->fence;
    found->replays = item->replays;
    found->age = (item->recorded < now) ? now - item->recorded : 0;
    found->response.len = item->response.len;

    if (item->outcome == NGX_IDEMPOTENCY_PENDING) {
        found->instance = item->instance;

    } else if (item->ends > now) {
        found->left = item->ends - now;
    }
}
