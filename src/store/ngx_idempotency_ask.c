
/*
 * A claim and what stands behind the zone.  What the zone does not know is
 * asked for, once for all who want the token: the first of them makes a record
 * that says so, all wait for that to change.  So whatever is claimed is in the
 * backing before anything is sent, but where that is out of reach and this
 * machine's memory alone is to guard (claim->alone).
 * The answer turns it into a claim, into a copy, or, where the answer may be
 * another one soon, into a brief record for those who have waited for it.
 */


#include "ngx_idempotency_shm.h"


/* for how long an answer is waited for */

#define NGX_IDEMPOTENCY_ASK_TIMEOUT  5000

/* for how long a brief one serves others than those who waited for it */

#define NGX_IDEMPOTENCY_ASK_BRIEF    25

/* for how long a copy is good although others may make the backing forget */

#define NGX_IDEMPOTENCY_ASK_COPY     60000


static ngx_uint_t ask_old_copy(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_msec_t now);
static ngx_uint_t ask_down(ngx_idempotency_tier_t *tier);
static ngx_uint_t ask_alone(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim);
static ngx_int_t ask_miss(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t **rec);
static ngx_int_t ask_asking(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t **rec,
    ngx_idempotency_workers_t *wake);
static ngx_int_t ask_claimed(ngx_idempotency_claim_t *claim,
    ngx_idempotency_record_t *rec);
static ngx_int_t ask_outcome(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t *rec);
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
static void ask_granted(ngx_idempotency_tier_t *tier,
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
    /* what it has asked for, and finds no more, was given up by others: what
       there is now is theirs */

    if (*rec == NULL || claim->waited != (*rec)->fence) {
        claim->asked = 0;
    }

    if (*rec == NULL) {
        return ask_miss(shm, claim, rec);
    }

    switch ((*rec)->outcome) {

    case NGX_IDEMPOTENCY_ASKING:
        return ask_asking(shm, claim, rec, wake);

    case NGX_IDEMPOTENCY_PENDING:
        return ask_claimed(claim, *rec);

    case NGX_IDEMPOTENCY_ELSEWHERE:
        claim->asked = 0;
        return ngx_idempotency_elsewhere_meet(shm, claim, *rec);

    case NGX_IDEMPOTENCY_NOTHING:
    case NGX_IDEMPOTENCY_FAILED:
        claim->asked = 0;
        return ask_brief(shm, claim, rec);

    case NGX_IDEMPOTENCY_IN_DOUBT:
        claim->asked = 0;
        return ask_in_doubt(shm, claim, rec);

    default: /* an outcome, which nothing changes within its window */

        if (ask_old_copy(shm, *rec, claim->op.now)) {
            ngx_idempotency_record_remove(shm, *rec);
            return ask_miss(shm, claim, rec);
        }

        return ask_outcome(shm, claim, *rec);
    }
}


/* with `strict`, what somebody was told is not forgotten: whoever it is */

static ngx_int_t
ask_outcome(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim,
    ngx_idempotency_record_t *rec)
{
    if (!shm->tier->strict || claim->alone
        || !ngx_idempotency_shm_untold(shm, rec)
        || ngx_idempotency_record_differs(rec, claim)
        || ask_late(claim))
    {
        return NGX_DECLINED;
    }

    ngx_idempotency_shm_wait_told(rec, &claim->op);

    return NGX_AGAIN;
}


/* ... but that somebody else may have made the backing forget it since */

static ngx_uint_t
ask_old_copy(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec,
    ngx_msec_t now)
{
    ngx_msec_t               since;
    ngx_idempotency_tier_t  *tier;

    tier = shm->tier;

    if (!ngx_idempotency_tier_shared(tier)
        || (rec->owes & NGX_IDEMPOTENCY_OWES_KEEPS))
    {
        return 0;
    }

    since = (rec->window == &shm->sh->copies) ? rec->as.brief.copied
                                              : rec->recorded;

    return (ngx_msec_int_t) (now - since) >= NGX_IDEMPOTENCY_ASK_COPY
           && !shm->sh->tier.failing && tier->backing->up(tier);
}


/* it would not answer */

static ngx_uint_t
ask_down(ngx_idempotency_tier_t *tier)
{
    return tier->backing->up && !tier->backing->up(tier);
}


/* this machine's memory is to guard the token, and nothing else can */

static ngx_uint_t
ask_alone(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim)
{
    return claim->alone
           && (shm->sh->tier.failing || shm->sh->tier.refused
               || ask_down(shm->tier));
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

    if (ask_down(shm->tier) || ask_late(claim)) {
        return ask_result(claim, NGX_IDEMPOTENCY_UNAVAILABLE);
    }

    result = ngx_idempotency_record_ask(shm, claim, rec);

    if (result != NGX_IDEMPOTENCY_OK) {
        return ask_result(claim, result);
    }

    claim->asked = 1;
    ngx_idempotency_shm_wait(*rec, claim);

    return NGX_AGAIN;
}


static ngx_int_t
ask_asking(ngx_idempotency_shm_t *shm, ngx_idempotency_claim_t *claim,
    ngx_idempotency_record_t **rec, ngx_idempotency_workers_t *wake)
{
    ngx_uint_t  late;

    late = ((ngx_msec_int_t) (claim->op.now - (*rec)->recorded)
            >= NGX_IDEMPOTENCY_ASK_TIMEOUT);

    if (late || !ngx_idempotency_record_alive(*rec, claim->op.now)) {

        /* nothing was sent; if it is granted yet, that is given back */

        ngx_idempotency_shm_take_waiting(*rec, wake);
        ngx_idempotency_record_remove(shm, *rec);

        claim->asked = 0;
        *rec = NULL;

        return late ? ask_result(claim, NGX_IDEMPOTENCY_UNAVAILABLE)
                    : ask_miss(shm, claim, rec);
    }

    if (!claim->asked && ask_late(claim)) {
        *rec = NULL;
        return ask_result(claim, NGX_IDEMPOTENCY_UNAVAILABLE);
    }

    ngx_idempotency_shm_wait(*rec, claim);

    return NGX_AGAIN;
}


/* whoever asked for it finds it granted */

static ngx_int_t
ask_claimed(ngx_idempotency_claim_t *claim, ngx_idempotency_record_t *rec)
{
    if (!claim->asked || claim->waited != rec->fence) {
        return NGX_DECLINED;
    }

    claim->asked = 0;
    claim->fence = rec->fence;
    claim->taken = rec->taken;

    return ask_result(claim, NGX_IDEMPOTENCY_CLAIMED);
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
        switch ((*rec)->outcome) {

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
    ngx_uint_t  tells, brief, owes;

    /* who is only told of it may be told what was so a moment ago */

    tells = (!claim->retry || ngx_idempotency_record_differs(*rec, claim));
    brief = ((*rec)->owes & NGX_IDEMPOTENCY_OWES_BRIEF);
    owes = ((*rec)->owes & NGX_IDEMPOTENCY_OWES);

    if (brief && tells
        && (claim->waited == (*rec)->fence
            || (ngx_msec_int_t) (claim->op.now - (*rec)->as.brief.copied)
               < NGX_IDEMPOTENCY_ASK_BRIEF))
    {
        return NGX_DECLINED;
    }

    if (!brief
        && (ask_alone(shm, claim)
            || ((*rec)->owes & NGX_IDEMPOTENCY_OWES_NEVER)
            || (tells && (owes || shm->sh->tier.failing))))
    {
        return NGX_DECLINED;
    }

    if (!brief && owes) {

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


/* the request has gone: what it asked for is nobody's */

void
ngx_idempotency_ask_cancel(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim)
{
    ngx_idempotency_record_t   *rec;
    ngx_idempotency_workers_t   wake;

    claim->asked = 0;
    ngx_memzero(&wake, sizeof(ngx_idempotency_workers_t));

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        return;
    }

    rec = ngx_idempotency_record_current(shm, claim->op.token, claim->op.now);

    if (rec && rec->fence == claim->waited
        && (rec->outcome == NGX_IDEMPOTENCY_ASKING
            || rec->outcome == NGX_IDEMPOTENCY_PENDING))
    {
        ngx_idempotency_shm_take_waiting(rec, &wake);
        ngx_idempotency_record_release(shm, rec, claim->op.now);
    }

    ngx_idempotency_shm_unlock(shm);

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

    if (rec->outcome == NGX_IDEMPOTENCY_ELSEWHERE
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
        ask_granted(tier, rec, item);
        break;

    case NGX_IDEMPOTENCY_BOUND:
        ask_copy(tier, rec, item);
        break;

    case NGX_IDEMPOTENCY_ABSENT:
        rec->owes = 0;
        ngx_idempotency_record_brief(shm, rec, NGX_IDEMPOTENCY_NOTHING,
                                     ngx_current_msec);
        break;

    case NGX_IDEMPOTENCY_CHANGED:

        /* its fence would not rise: it is asked for with a higher one */

        rec->owes = 0;
        shm->sh->fence = ngx_max(shm->sh->fence, item->fence + 1);
        ngx_idempotency_record_remove(shm, rec);
        break;

    default: /* NGX_IDEMPOTENCY_UNAVAILABLE: it may be claimed there */
        ngx_idempotency_record_brief(shm, rec, NGX_IDEMPOTENCY_FAILED,
                                     ngx_current_msec);

        if (ngx_idempotency_tier_shared(tier)
            && (rec->owes & NGX_IDEMPOTENCY_OWES_HEARD))
        {
            /* others would wait for it until its lease is over */

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
ask_granted(ngx_idempotency_tier_t *tier, ngx_idempotency_record_t *rec,
    ngx_idempotency_item_t *item)
{
    ngx_uint_t  over;

    /* where the lease is all that others know, it began behind the question,
       and may be over if this process stood still: others may have it */

    over = (ngx_idempotency_tier_shared(tier)
            && (ngx_msec_int_t) (ngx_current_msec - rec->recorded)
               >= (ngx_msec_int_t) rec->lease);

    if (over || !ngx_idempotency_record_alive(rec, ngx_current_msec)) {
        ngx_idempotency_record_remove(tier->shm, rec);
        return;
    }

    rec->taken = item->taken;

    ngx_idempotency_record_grant(tier->shm, rec, ngx_current_msec);
}


static void
ask_copy(ngx_idempotency_tier_t *tier, ngx_idempotency_record_t *rec,
    ngx_idempotency_item_t *item)
{
    int64_t                 now;
    ngx_msec_t              lapses;
    ngx_idempotency_shm_t  *shm;

    shm = tier->shm;
    now = ask_now(tier);

    rec->owes = 0;

    if (item->outcome != NGX_IDEMPOTENCY_PENDING && item->ends <= now) {

        /* it has ended since */

        ngx_idempotency_record_remove(shm, rec);
        return;
    }

    lapses = ask_describe(rec, item, now);

    if (item->outcome == NGX_IDEMPOTENCY_PENDING) {
        ngx_idempotency_elsewhere_found(shm, rec, lapses);

    } else if (ask_append(shm, rec, &item->response) != NGX_OK) {
        ngx_idempotency_record_brief(shm, rec, NGX_IDEMPOTENCY_FAILED,
                                     ngx_current_msec);

    } else if (item->outcome == NGX_IDEMPOTENCY_IN_DOUBT) {
        ngx_idempotency_record_brief(shm, rec, NGX_IDEMPOTENCY_IN_DOUBT,
                                     ngx_current_msec);

    } else {
        rec->fence = item->fence;
        ngx_idempotency_record_copy(shm, rec, item->outcome,
                                    ngx_current_msec);
    }
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
