
/*
 * A claim and what stands behind the zone.  What the zone does not know is
 * asked for, once for all who want the token: the first of them makes a record
 * that says so, all wait for that to change.  So whatever is claimed is in the
 * backing before anything is sent, but where that is out of reach and this
 * machine's memory alone is to guard (claim->alone).
 *
 * The answer turns the record into a claim, into a copy, or, where the answer
 * may be another one soon, into a brief record for those who have waited for
 * it.  A record that nobody waits for any more is asked for all the same, as
 * the backing may grant it yet: who comes before its answer waits for that.
 */


#include "ngx_idempotency_shm.h"


/* for how long an answer is waited for */

#define NGX_IDEMPOTENCY_ASK_TIMEOUT  5000

/* for how long a brief one serves others than those who waited for it */

#define NGX_IDEMPOTENCY_ASK_BRIEF    25

/* for how long a copy is good although others may make the backing forget */

#define NGX_IDEMPOTENCY_ASK_COPY     60000


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
static ngx_int_t ask_brief(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t **rec);
static ngx_int_t ask_in_doubt(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t **rec);
static ngx_uint_t ask_late(ngx_idempotency_claim_t *claim);
static ngx_int_t ask_result(ngx_idempotency_claim_t *claim,
    ngx_idempotency_result_e result);
static void ask_elsewhere(ngx_idempotency_tier_t *tier,
    ngx_idempotency_record_t *rec, ngx_idempotency_item_t *item,
    ngx_idempotency_workers_t *wake);
static void ask_claimed(ngx_idempotency_tier_t *tier,
    ngx_idempotency_record_t *rec, ngx_idempotency_item_t *item);
static void ask_copy(ngx_idempotency_tier_t *tier,
    ngx_idempotency_record_t *rec, ngx_idempotency_item_t *item);
static int64_t ask_now(ngx_idempotency_tier_t *tier);
static ngx_msec_t ask_describe(ngx_idempotency_record_t *rec,
    ngx_idempotency_item_t *item, int64_t now);
static ngx_int_t ask_append(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_str_t *response);


/*
 * A claim meets a record, or none.  NGX_DECLINED: the zone answers by itself,
 * with the record as it is left here; NGX_AGAIN: the claim waits for the
 * backing; NGX_OK: it is answered.
 */

ngx_int_t
ngx_idempotency_ask_meet(ngx_idempotency_shm_t *shm,
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

    /* what it asked for was answered, or is another's */

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

    case NGX_IDEMPOTENCY_ELSEWHERE:
        return ngx_idempotency_elsewhere_meet(shm, claim, *rec);

    case NGX_IDEMPOTENCY_NOTHING:
    case NGX_IDEMPOTENCY_FAILED:
        return ask_brief(shm, claim, rec);

    case NGX_IDEMPOTENCY_IN_DOUBT:
    case NGX_IDEMPOTENCY_DOUBTED:
        return ask_in_doubt(shm, claim, rec);
    }

    /* an outcome, which nothing changes within its window */

    if (ask_old_copy(shm, *rec, claim->op.now)) {
        ngx_idempotency_record_remove(shm, *rec);
        return ask_miss(shm, claim, rec);
    }

    /* with `strict`, what somebody was told is not forgotten: whoever it is */

    if (!shm->tier->strict || claim->alone
        || !ngx_idempotency_shm_untold(shm, *rec)
        || ngx_idempotency_record_differs(*rec, claim)
        || ask_late(claim))
    {
        return NGX_DECLINED;
    }

    ngx_idempotency_shm_wait_told(*rec, &claim->op);

    return NGX_AGAIN;
}


/* somebody else may have made the backing forget it since */

static ngx_uint_t
ask_old_copy(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec,
    ngx_msec_t now)
{
    ngx_msec_t               since;
    ngx_idempotency_tier_t  *tier;

    tier = shm->tier;

    if (!ngx_idempotency_tier_shared(tier)
        || ngx_idempotency_record_stays(rec))
    {
        return 0;
    }

    since = (rec->window == &shm->sh->copies) ? rec->as.brief.copied
                                              : rec->recorded;

    return (ngx_msec_int_t) (now - since) >= NGX_IDEMPOTENCY_ASK_COPY
           && !shm->sh->tier.failing && tier->backing->up(tier);
}


/* this machine's memory is to guard the token, and nothing else can; not where
   what stands behind is there, and another one, or has forgotten */

static ngx_uint_t
ask_alone(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim)
{
    return claim->alone && !shm->sh->tier.other
           && (shm->sh->tier.failing || shm->sh->tier.refused
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


/* who meets a question that nobody waits for asks it himself, if it is his */

static ngx_int_t
ask_asking(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim,
    ngx_idempotency_record_t *rec, ngx_idempotency_workers_t *wake)
{
    ngx_uint_t  mine;

    mine = (rec->state == NGX_IDEMPOTENCY_ASKING
            && claim->asker == rec->as.asking.asker);

    if (ask_alone(shm, claim)) {
        ngx_idempotency_shm_take_waiting(rec, wake);

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


/* it is for who asked; nothing was sent yet, so if he has died it is for
   another one who asks the same, or is given back */

static ngx_int_t
ask_granted(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim,
    ngx_idempotency_record_t **rec, ngx_idempotency_workers_t *wake)
{
    if (claim->asker == (*rec)->as.asking.asker) {
        return ask_take(shm, claim, *rec);
    }

    claim->asker = 0;

    if (ngx_idempotency_record_alive(*rec, claim->op.now)) {
        return NGX_DECLINED;
    }

    if (ask_same(*rec, claim)) {
        return ask_take(shm, claim, *rec);
    }

    ngx_idempotency_shm_take_waiting(*rec, wake);
    ngx_idempotency_record_change(shm, *rec, NGX_IDEMPOTENCY_ON_ORPHAN,
                                  claim->op.now);

    return ask_miss(shm, claim, rec);
}


/* who asked has gone; what the backing never saw is no question */

static void
ask_leave(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec,
    ngx_idempotency_workers_t *wake)
{
    ngx_uint_t  unseen;

    unseen = (rec->told == NGX_IDEMPOTENCY_UNTOLD && !rec->heard
              && !rec->again);

    ngx_idempotency_shm_take_waiting(rec, wake);
    ngx_idempotency_record_change(shm, rec,
                                  unseen ? NGX_IDEMPOTENCY_ON_REMOVE
                                         : NGX_IDEMPOTENCY_ON_LEAVE,
                                  ngx_current_msec);
}


static ngx_int_t
ask_brief(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim,
    ngx_idempotency_record_t **rec)
{
    ngx_uint_t                waited;
    ngx_idempotency_result_e  result;

    waited = (claim->waited == (*rec)->fence);

    if (waited
        || (ngx_msec_int_t) (claim->op.now - (*rec)->as.brief.copied)
           < NGX_IDEMPOTENCY_ASK_BRIEF)
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
 * Others may take it over, so it is not copied for long, and the backing is
 * asked what is so.  What that has not been told yet, the zone knows best; who
 * would take it over waits until it is told, and asks then.
 */

static ngx_int_t
ask_in_doubt(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim,
    ngx_idempotency_record_t **rec)
{
    ngx_uint_t  tells, owes;

    /* who is only told of it may be told what was so a moment ago */

    tells = (!claim->retry || ngx_idempotency_record_differs(*rec, claim));
    owes = ((*rec)->told != NGX_IDEMPOTENCY_TOLD);

    if ((*rec)->state == NGX_IDEMPOTENCY_DOUBTED) {

        if (tells
            && (claim->waited == (*rec)->fence
                || (ngx_msec_int_t) (claim->op.now
                                     - (*rec)->as.brief.copied)
                   < NGX_IDEMPOTENCY_ASK_BRIEF))
        {
            return NGX_DECLINED;
        }

    } else if (ask_alone(shm, claim) || (*rec)->local
               || (tells && (owes || shm->sh->tier.failing)))
    {
        return NGX_DECLINED;

    } else if (owes) {

        if (!ngx_idempotency_shm_untold(shm, *rec) || ask_late(claim)) {
            return ask_result(claim, NGX_IDEMPOTENCY_UNAVAILABLE);
        }

        ngx_idempotency_shm_wait_told(*rec, &claim->op);

        return NGX_AGAIN;
    }

    ngx_idempotency_record_remove(shm, *rec);

    return ask_miss(shm, claim, rec);
}


/* it has waited for answers for long enough, be it for those of others */

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
    ngx_idempotency_tier_kick(shm);
}


/* the lock is held, and who waits is woken once it is not */

ngx_uint_t
ngx_idempotency_ask_answered(ngx_idempotency_tier_t *tier,
    ngx_idempotency_record_t *rec, ngx_idempotency_item_t *item,
    ngx_idempotency_workers_t *wake)
{
    ngx_idempotency_shm_t  *shm;

    shm = tier->shm;

    if (rec->state == NGX_IDEMPOTENCY_ELSEWHERE
        && (item->result == NGX_IDEMPOTENCY_UNAVAILABLE
            || (item->result == NGX_IDEMPOTENCY_BOUND
                && item->outcome == NGX_IDEMPOTENCY_PENDING)))
    {
        ask_elsewhere(tier, rec, item, wake);
        return 1;
    }

    ngx_idempotency_shm_take_waiting(rec, wake);

    switch (item->result) {

    case NGX_IDEMPOTENCY_CLAIMED:
        ask_claimed(tier, rec, item);
        break;

    case NGX_IDEMPOTENCY_BOUND:
        rec->heard = 0;
        ask_copy(tier, rec, item);
        break;

    case NGX_IDEMPOTENCY_ABSENT:
        rec->heard = 0;
        ngx_idempotency_record_found(shm, rec,
                                     NGX_IDEMPOTENCY_ON_FOUND_NOTHING,
                                     ngx_current_msec);
        break;

    case NGX_IDEMPOTENCY_CHANGED:

        /* its fence would not rise: it is asked for with a higher one */

        rec->heard = 0;
        shm->sh->fence = ngx_max(shm->sh->fence, item->fence + 1);
        ngx_idempotency_record_remove(shm, rec);
        break;

    default: /* NGX_IDEMPOTENCY_UNAVAILABLE: it may be claimed there */
        ngx_idempotency_record_found(shm, rec, NGX_IDEMPOTENCY_ON_FAIL,
                                     ngx_current_msec);

        if (rec->heard) {

            /* others would wait for it */

            ngx_idempotency_tier_owe(shm, rec);
        }
    }

    return 0;
}


static void
ask_elsewhere(ngx_idempotency_tier_t *tier, ngx_idempotency_record_t *rec,
    ngx_idempotency_item_t *item, ngx_idempotency_workers_t *wake)
{
    int64_t     now;
    ngx_msec_t  lapses;

    now = ask_now(tier);
    lapses = 0;

    if (item->result == NGX_IDEMPOTENCY_BOUND) {
        lapses = ask_describe(rec, item, now);
    }

    ngx_idempotency_elsewhere_answered(tier->shm, rec, lapses, wake);
}


static void
ask_claimed(ngx_idempotency_tier_t *tier, ngx_idempotency_record_t *rec,
    ngx_idempotency_item_t *item)
{
    ngx_uint_t  over;

    /* where the lease is all that others know, it began behind the question,
       and may be over if this process stood still: others may have it */

    over = (ngx_idempotency_tier_shared(tier)
            && (ngx_msec_int_t) (ngx_current_msec - rec->recorded)
               >= (ngx_msec_int_t) rec->lease);

    if (over) {
        ngx_idempotency_record_remove(tier->shm, rec);
        return;
    }

    rec->taken = item->taken;
    rec->recorded = ngx_current_msec;

    ngx_idempotency_record_change(tier->shm, rec, NGX_IDEMPOTENCY_ON_GRANT,
                                  ngx_current_msec);
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
        ngx_idempotency_elsewhere_found(shm, rec, lapses);
        return;
    }

    event = NGX_IDEMPOTENCY_ON_FOUND_PENDING + item->outcome;

    if (ask_append(shm, rec, &item->response) != NGX_OK) {
        event = NGX_IDEMPOTENCY_ON_FAIL;

    } else if (item->outcome != NGX_IDEMPOTENCY_IN_DOUBT) {
        rec->fence = item->fence;
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
                                          response->len)
            != NGX_OK
            && !ngx_idempotency_record_free_some(shm, ngx_current_msec))
        {
            ngx_idempotency_chunks_free(shm, rec);
            return NGX_ERROR;
        }
    }

    rec->size = response->len;

    return NGX_OK;
}
