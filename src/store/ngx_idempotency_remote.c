
/*
 * Claims of a zone with a backing.
 *
 * If the zone does not know a token, the backing is asked, once for all
 * requests of the token: the first request makes a record in the state ASKING,
 * and all wait until that changes.  So every claim is in the backing before
 * anything is sent.  The exception is claim->alone: the backing is out of
 * reach, and this machine's memory alone guards the token.
 *
 * The answer turns the record into a claim, into a copy, or, if the answer may
 * soon be another one, into a negative entry for the requests that waited.  If
 * all of these have ended, the question goes on, as the backing may yet grant
 * it: a request that comes before the answer waits for it.
 *
 * A remote claim is pending in the backing, made by another zone.  All requests
 * here that wait for it, in any worker, share one record.  For that record the
 * backing is asked again, ever more seldom, and at once when it announces a
 * change.  These questions only look: the waiting requests claim.
 */


#include "ngx_idempotency_shm.h"


/* how long a claim waits for answers of the backing */

#define NGX_IDEMPOTENCY_ASK_TIMEOUT  5000

/* how long a negative entry serves claims that did not wait for it */

#define NGX_IDEMPOTENCY_ASK_NEGATIVE    25

/* how long a copy is good although others may make the backing forget */

#define NGX_IDEMPOTENCY_ASK_COPY     60000


/* a request that waits touches its record more often than this */

#define NGX_IDEMPOTENCY_REMOTE_WANTED  2000

/* the answer about a remote claim is late after this */

#define NGX_IDEMPOTENCY_REMOTE_ANSWER  5000


static ngx_int_t ask_outcome(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t **rec);
static ngx_uint_t ask_old_copy(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_msec_t now);
static ngx_uint_t ask_alone(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim);
static ngx_uint_t ask_refused(ngx_idempotency_shm_t *shm);
static ngx_int_t ask_backing(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t **rec);
static ngx_int_t ask_asking(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t *rec);
static ngx_uint_t ask_same(ngx_idempotency_record_t *rec,
    ngx_idempotency_claim_t *claim);
static ngx_int_t ask_take(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t *rec);
static ngx_int_t ask_granted(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t **rec);
static void ask_abandon(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);
static ngx_int_t ask_negative(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t **rec);
static ngx_int_t ask_in_doubt(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t **rec);
static ngx_uint_t ask_recent(ngx_idempotency_record_t *rec,
    ngx_idempotency_op_t *op);
static ngx_uint_t ask_late(ngx_idempotency_op_t *op);
static ngx_int_t ask_result(ngx_idempotency_claim_t *claim,
    ngx_idempotency_result_e result);
static ngx_uint_t ask_lease_over(ngx_idempotency_tier_t *tier,
    ngx_idempotency_record_t *rec, ngx_msec_t now);
static void ask_copy(ngx_idempotency_tier_t *tier,
    ngx_idempotency_record_t *rec, ngx_idempotency_item_t *item);
static void ask_fail(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec,
    ngx_uint_t refused);
static void ask_describe(ngx_idempotency_tier_t *tier,
    ngx_idempotency_record_t *rec, ngx_idempotency_item_t *item);
static ngx_int_t ask_append(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_str_t *response);
static ngx_int_t remote_lookup(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t *rec);
static ngx_msec_t remote_delay(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);


/*
 * A claim and the record of its token, or NULL.  NGX_DECLINED: the zone answers
 * by itself, from the record in *rec; NGX_AGAIN: the claim has to wait for the
 * record; NGX_OK: it is answered.
 */

ngx_int_t
ngx_idempotency_ask_lookup(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t **rec)
{
    ngx_uint_t  state;

    state = *rec ? (*rec)->state : NGX_IDEMPOTENCY_GONE;

    if (state == NGX_IDEMPOTENCY_ASKING
        || state == NGX_IDEMPOTENCY_ABANDONED)
    {
        return ask_asking(shm, claim, *rec);
    }

    if (state == NGX_IDEMPOTENCY_GRANTED) {
        return ask_granted(shm, claim, rec);
    }

    /* this claim's question was answered, or belongs to another claim now */

    claim->op.asker = 0;

    switch (state) {

    case NGX_IDEMPOTENCY_GONE:
        return ask_backing(shm, claim, rec);

    case NGX_IDEMPOTENCY_PENDING:
        return NGX_DECLINED;

    case NGX_IDEMPOTENCY_REMOTE:

        /* the file fails: no worker can find out how the remote claim ended */

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

    default: /* NGX_IDEMPOTENCY_DONE, NGX_IDEMPOTENCY_NOT_KEPT */
        return ask_outcome(shm, claim, rec);
    }
}


/* an outcome does not change within its window */

static ngx_int_t
ask_outcome(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim,
    ngx_idempotency_record_t **rec)
{
    if (ask_old_copy(shm, *rec, claim->op.now)) {
        ngx_idempotency_record_remove(shm, *rec);
        return ask_backing(shm, claim, rec);
    }

    /* `strict`: no client gets an outcome that the backing lacks */

    if (!shm->tier->strict || claim->alone
        || !ngx_idempotency_record_unflushed(shm, *rec)
        || ngx_idempotency_record_differs(*rec, claim)
        || ask_late(&claim->op))
    {
        return NGX_DECLINED;
    }

    return NGX_AGAIN;
}


/* another instance may have made the backing forget the token since; over a
   file, only an instance that used it after the copy was made */

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


/* the backing is out of reach: this machine's memory alone guards the token */

static ngx_uint_t
ask_alone(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim)
{
    return claim->alone && !ask_refused(shm)
           && (shm->sh->tier.failing || shm->sh->tier.aside
               || ngx_idempotency_tier_down(shm));
}


/* it is another store or has forgotten, or it answers, and has no room */

static ngx_uint_t
ask_refused(ngx_idempotency_shm_t *shm)
{
    ngx_idempotency_tier_sh_t  *sh;

    sh = &shm->sh->tier;

    return sh->other
           || ((sh->failing ? sh->was_full : sh->said_full)
               && shm->tier->backing->up(shm->tier));
}


/* the zone has no record, or has just removed it */

static ngx_int_t
ask_backing(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim,
    ngx_idempotency_record_t **rec)
{
    ngx_idempotency_result_e  result;

    *rec = NULL;

    if (ask_alone(shm, claim)) {
        return NGX_DECLINED;
    }

    if (ngx_idempotency_tier_down(shm) || ask_late(&claim->op)) {
        return ask_result(claim, NGX_IDEMPOTENCY_UNAVAILABLE);
    }

    result = ngx_idempotency_record_ask(shm, claim, rec);

    if (result != NGX_IDEMPOTENCY_OK) {
        return ask_result(claim, result);
    }

    return NGX_AGAIN;
}


/* an abandoned question becomes this claim's, if it would ask the same */

static ngx_int_t
ask_asking(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim,
    ngx_idempotency_record_t *rec)
{
    ngx_uint_t  mine;

    mine = (rec->state == NGX_IDEMPOTENCY_ASKING
            && claim->op.asker == rec->as.asking.asker);

    if (ask_alone(shm, claim)) {
        return ask_take(shm, claim, rec);
    }

    if (ask_late(&claim->op) || ngx_idempotency_tier_down(shm)) {

        if (mine) {
            ask_abandon(shm, rec);
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

    return NGX_AGAIN;
}


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

    claim->op.asker = 0;

    return ask_result(claim, NGX_IDEMPOTENCY_CLAIMED);
}


/* The claim is granted to the request that asked.  Nothing was sent yet: if
   that request's worker has died, another request that asks the same gets the
   claim, or the claim is released.  It is also released if its lease may be
   over. */

static ngx_int_t
ask_granted(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim,
    ngx_idempotency_record_t **rec)
{
    ngx_uint_t  mine, alive;

    mine = (claim->op.asker == (*rec)->as.asking.asker);
    claim->op.asker = 0;

    if (!ask_lease_over(shm->tier, *rec, claim->op.now)) {

        alive = ngx_idempotency_record_alive(*rec, claim->op.now);

        if (mine || (!alive && ask_same(*rec, claim))) {
            return ask_take(shm, claim, *rec);
        }

        if (alive) {
            return NGX_DECLINED;
        }
    }

    ngx_idempotency_record_change(shm, *rec, NGX_IDEMPOTENCY_ON_ORPHAN,
                                  claim->op.now);

    return ask_backing(shm, claim, rec);
}


/* the request that asked has ended; if the backing never saw the question, the
   record goes, too */

static void
ask_abandon(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec)
{
    ngx_uint_t  unseen;

    unseen = (rec->flush == NGX_IDEMPOTENCY_QUEUED && !rec->sent
              && !rec->unsure);

    ngx_idempotency_record_change(shm, rec,
                                  unseen ? NGX_IDEMPOTENCY_ON_REMOVE
                                         : NGX_IDEMPOTENCY_ON_ABANDON,
                                  ngx_current_msec);
}


/* The backing failed, or has no such token.  That answers claims that waited
   for this record, and, after a failure, claims of the next moment; others ask
   anew. */

static ngx_int_t
ask_negative(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim,
    ngx_idempotency_record_t **rec)
{
    ngx_idempotency_result_e  result;

    result = NGX_IDEMPOTENCY_OK;

    if ((*rec)->state == NGX_IDEMPOTENCY_FAILED) {

        if (ask_recent(*rec, &claim->op)
            && (!claim->alone || (*rec)->as.copy.refused
                || ask_refused(shm)))
        {
            result = NGX_IDEMPOTENCY_UNAVAILABLE;
        }

    } else if (claim->op.waited == (*rec)->sequence) {
        result = claim->old ? NGX_IDEMPOTENCY_EXPIRED
                            : ngx_idempotency_quota_check(shm, claim);
    }

    if (result != NGX_IDEMPOTENCY_OK) {
        return ask_result(claim, result);
    }

    ngx_idempotency_record_remove(shm, *rec);

    return ask_backing(shm, claim, rec);
}


/*
 * Another machine may take over a token in doubt, so a doubt of the backing is
 * not copied for long.  A doubt that the backing lacks yet is this zone's; a
 * claim that would take it over waits until it was written, and asks then.
 */

static ngx_int_t
ask_in_doubt(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim,
    ngx_idempotency_record_t **rec)
{
    ngx_uint_t  takes, queued;

    takes = (claim->retry && !ngx_idempotency_record_differs(*rec, claim));
    queued = ((*rec)->flush != NGX_IDEMPOTENCY_FLUSHED);

    if ((*rec)->state == NGX_IDEMPOTENCY_DOUBTED) {

        if (!takes && ask_recent(*rec, &claim->op)) {
            return NGX_DECLINED;
        }

    } else if (ask_alone(shm, claim) || (*rec)->local
               || (!takes && (queued || shm->sh->tier.failing)))
    {
        return NGX_DECLINED;

    } else if (queued) {

        if (!ngx_idempotency_record_unflushed(shm, *rec)
            || ask_late(&claim->op))
        {
            return ask_result(claim, NGX_IDEMPOTENCY_UNAVAILABLE);
        }

        return NGX_AGAIN;
    }

    ngx_idempotency_record_remove(shm, *rec);

    return ask_backing(shm, claim, rec);
}


/* the operation waited for this answer, or comes right after it */

static ngx_uint_t
ask_recent(ngx_idempotency_record_t *rec, ngx_idempotency_op_t *op)
{
    return op->waited == rec->sequence
           || (ngx_msec_int_t) (op->now - rec->as.copy.copied)
              < NGX_IDEMPOTENCY_ASK_NEGATIVE;
}


/* the operation has waited long enough, be it for several answers */

static ngx_uint_t
ask_late(ngx_idempotency_op_t *op)
{
    if (op->since == 0) {
        op->since = op->now;
    }

    return (ngx_msec_int_t) (op->now - op->since)
           >= NGX_IDEMPOTENCY_ASK_TIMEOUT;
}


static ngx_int_t
ask_result(ngx_idempotency_claim_t *claim, ngx_idempotency_result_e result)
{
    claim->op.since = 0;
    claim->op.result = result;

    return NGX_OK;
}


/* the request that asked has ended */

void
ngx_idempotency_ask_cancel(ngx_idempotency_shm_t *shm, ngx_idempotency_op_t *op)
{
    ngx_idempotency_record_t  *rec;

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        return;
    }

    rec = ngx_idempotency_record_current(shm, op->token, op->now);

    if (rec
        && (rec->state == NGX_IDEMPOTENCY_ASKING
            || rec->state == NGX_IDEMPOTENCY_GRANTED)
        && rec->as.asking.asker == op->asker)
    {
        ask_abandon(shm, rec);
    }

    ngx_idempotency_shm_unlock(shm);

    op->asker = 0;

    ngx_idempotency_writeback_schedule(shm);
}


ngx_uint_t
ngx_idempotency_ask_answered(ngx_idempotency_tier_t *tier,
    ngx_idempotency_record_t *rec, ngx_idempotency_item_t *item)
{
    ngx_uint_t              bound;
    ngx_idempotency_shm_t  *shm;

    shm = tier->shm;
    bound = (item->result == NGX_IDEMPOTENCY_BOUND);

    if (rec->state == NGX_IDEMPOTENCY_REMOTE
        && (item->result == NGX_IDEMPOTENCY_UNAVAILABLE
            || (bound && item->outcome == NGX_IDEMPOTENCY_PENDING)))
    {
        /* requests that wait for the outcome go on waiting; for those that wait
           for an answer this is one */

        rec->as.remote.answers++;
        rec->as.remote.due = ngx_current_msec + remote_delay(shm, rec);

        if (bound) {
            ask_describe(tier, rec, item);
        }

        if (rec->as.remote.polled) {
            rec->as.remote.polled = 0;
            ngx_idempotency_record_wake(shm, rec);
        }

        return 1;
    }

    switch (item->result) {

    case NGX_IDEMPOTENCY_CLAIMED:
        if (ask_lease_over(tier, rec, ngx_current_msec)) {
            ngx_idempotency_record_remove(shm, rec);
            break;
        }

        /* its lease counts from the question on: the backing answered since */

        rec->fence = item->fence;
        rec->taken = item->taken;

        ngx_idempotency_record_change(shm, rec, NGX_IDEMPOTENCY_ON_GRANT,
                                      ngx_current_msec);
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

        /* the answer came late, or the fence would not rise: ask anew */

        rec->sent = 0;
        shm->sh->fence = ngx_max(shm->sh->fence, item->fence + 1);
        ngx_idempotency_record_remove(shm, rec);
        break;

    default: /* NGX_IDEMPOTENCY_UNAVAILABLE */
        ask_fail(shm, rec, !item->failed);

        if (rec->sent) {

            /* the backing may have the claim, and others wait: release it */

            ngx_idempotency_writeback_add(shm, rec);
        }
    }

    return 0;
}


/* A shared backing knows only the lease, which began after the question was
   sent.  If this process stood still since then, or since the answer, the lease
   may be over, and the claim another machine's.  In its last third it may end
   before it is renewed. */

static ngx_uint_t
ask_lease_over(ngx_idempotency_tier_t *tier, ngx_idempotency_record_t *rec,
    ngx_msec_t now)
{
    return ngx_idempotency_tier_shared(tier)
           && (ngx_msec_int_t) (now - rec->recorded)
              >= (ngx_msec_int_t) (rec->lease - rec->lease / 3);
}


static void
ask_copy(ngx_idempotency_tier_t *tier, ngx_idempotency_record_t *rec,
    ngx_idempotency_item_t *item)
{
    ngx_idempotency_shm_t    *shm;
    ngx_idempotency_event_e   event;

    shm = tier->shm;

    if (item->outcome == NGX_IDEMPOTENCY_PENDING) {
        ngx_idempotency_record_found(shm, rec,
                                     NGX_IDEMPOTENCY_ON_FOUND_PENDING,
                                     ngx_current_msec);

        rec->as.remote.answers = 1;
        rec->as.remote.wanted = (uint32_t) ngx_current_msec;
        rec->as.remote.due = ngx_current_msec + remote_delay(shm, rec);

        ask_describe(tier, rec, item);
        return;
    }

    ask_describe(tier, rec, item);

    if ((ngx_msec_int_t) (rec->ends - ngx_current_msec) <= 0) {

        ngx_idempotency_record_remove(shm, rec);
        return;
    }

    if (rec->state == NGX_IDEMPOTENCY_REMOTE) {

        /* else this record might be freed to make room for its response */

        rec->as.remote.wanted = (uint32_t) ngx_current_msec;
    }

    event = NGX_IDEMPOTENCY_ON_FOUND_PENDING + item->outcome;

    if (ask_append(shm, rec, &item->response) != NGX_OK) {
        ask_fail(shm, rec, 1);
        return;
    }

    ngx_idempotency_record_found(shm, rec, event, ngx_current_msec);
}


/* refused: others may have an answer, but there is none for this token */

static void
ask_fail(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec,
    ngx_uint_t refused)
{
    ngx_idempotency_record_found(shm, rec, NGX_IDEMPOTENCY_ON_FAIL,
                                 ngx_current_msec);

    if (rec->state == NGX_IDEMPOTENCY_FAILED) {
        rec->as.copy.refused = refused;
    }
}


/* fills the record; a pending one is asked about when its lease has ended */

static void
ask_describe(ngx_idempotency_tier_t *tier, ngx_idempotency_record_t *rec,
    ngx_idempotency_item_t *item)
{
    int64_t     now;
    ngx_msec_t  lapses;

    /* the backing's time now */

    now = tier->batch->now
          + (ngx_msec_int_t) (ngx_current_msec - tier->batch->at);

    ngx_memcpy(rec->fingerprint, item->fingerprint,
               NGX_IDEMPOTENCY_DIGEST_LEN);

    rec->parts = item->parts;
    rec->fence = item->fence;
    rec->replays = item->replays;
    rec->recorded = ngx_current_msec - (ngx_msec_t) (now - item->recorded);
    rec->ends = ngx_current_msec + (ngx_msec_t) (item->ends - now);

    if (item->outcome != NGX_IDEMPOTENCY_PENDING) {
        rec->status = item->status;
        return;
    }

    lapses = ngx_current_msec + (ngx_msec_t) (item->lapses - now);

    if (item->lapses > now
        && (ngx_msec_int_t) (rec->as.remote.due - lapses) > 0)
    {
        rec->as.remote.due = lapses + 1;
    }
}


static ngx_int_t
ask_append(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec,
    ngx_str_t *response)
{
    ngx_int_t                  rc;
    ngx_buf_t                  b;
    ngx_chain_t                cl;
    ngx_idempotency_source_t   src;

    ngx_memzero(&b, sizeof(ngx_buf_t));
    ngx_memzero(&src, sizeof(ngx_idempotency_source_t));

    b.pos = response->data;
    b.last = response->data + response->len;

    cl.buf = &b;
    cl.next = NULL;

    src.pieces = &cl;
    src.size = response->len;

    do {
        rc = ngx_idempotency_chunks_append(shm, rec, &src, ngx_current_msec);
    } while (rc == NGX_AGAIN);

    return rc;
}


/*
 * NGX_DECLINED: the record answers the claim.  A claim that does not wait for
 * the outcome needs the current state: NGX_AGAIN, it waits for the answer to a
 * question that is sent from here on.
 */

static ngx_int_t
remote_lookup(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t *rec)
{
    ngx_msec_t  now;
    ngx_uint_t  silent;

    now = claim->op.now;

    rec->as.remote.wanted = (uint32_t) now;

    ngx_queue_remove(&rec->queue);
    ngx_queue_insert_tail(&shm->sh->remote, &rec->queue);

    if (claim->wait && ngx_idempotency_record_differs(rec, claim) == 0) {
        return NGX_DECLINED;
    }

    if (claim->op.waited == rec->sequence
        && (int32_t) (rec->as.remote.answers - claim->op.answer) >= 0)
    {
        return NGX_DECLINED;
    }

    silent = shm->sh->tier.failing
             || (rec->flush != NGX_IDEMPOTENCY_FLUSHED
                 && (ngx_msec_int_t) (now - rec->as.remote.due)
                    >= NGX_IDEMPOTENCY_REMOTE_ANSWER);

    /* ask even a silent backing, for the next claim */

    if (rec->flush == NGX_IDEMPOTENCY_FLUSHED) {
        rec->as.remote.due = now;
        ngx_idempotency_writeback_add(shm, rec);

    } else if (!silent) {
        ngx_idempotency_writeback_add(shm, rec);
    }

    if (silent) {
        return NGX_DECLINED;
    }

    rec->as.remote.polled = 1;

    return NGX_AGAIN;
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


/* called again while the request waits */

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


void
ngx_idempotency_remote_poll_handler(ngx_event_t *ev)
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
