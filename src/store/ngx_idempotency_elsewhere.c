
/*
 * What is pending elsewhere: claimed by another zone that the backing knows.
 * All who wait for it here, in any worker, share one record, and that asks
 * the backing again and again, ever more seldom, and at once when somebody
 * has told the backing of a change.  It only looks: whoever waited claims.
 */


#include "ngx_idempotency_shm.h"


/* who waits comes by more often; behind that nobody is taken to */

#define NGX_IDEMPOTENCY_ELSEWHERE_WANTED  2000

/* for how long an answer is waited for */

#define NGX_IDEMPOTENCY_ELSEWHERE_ANSWER  5000


static ngx_msec_t elsewhere_due(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_msec_t lapses);
static ngx_msec_t elsewhere_delay(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);
static void elsewhere_handler(ngx_event_t *ev);


/*
 * NGX_DECLINED: the claim is answered by what is known.  One that does not
 * wait for the outcome is to hear what is so now: NGX_AGAIN, it waits for the
 * answer to a question that is asked from here on.
 */

ngx_int_t
ngx_idempotency_elsewhere_meet(ngx_idempotency_shm_t *shm,
    ngx_idempotency_claim_t *claim, ngx_idempotency_record_t *rec)
{
    ngx_uint_t  heard, silent;
    ngx_msec_t  now;

    now = claim->op.now;

    rec->as.elsewhere.wanted = (uint32_t) now;

    ngx_queue_remove(&rec->queue);
    ngx_queue_insert_tail(&shm->sh->elsewhere, &rec->queue);

    if (claim->wait && ngx_idempotency_record_differs(rec, claim) == 0) {
        return NGX_DECLINED;
    }

    heard = (claim->waited == rec->fence
             && (int32_t) (rec->as.elsewhere.answers - claim->answer) >= 0);

    silent = shm->sh->tier.failing
             || (rec->told != NGX_IDEMPOTENCY_TOLD
                 && (ngx_msec_int_t) (now - rec->as.elsewhere.due)
                    >= NGX_IDEMPOTENCY_ELSEWHERE_ANSWER);

    if (heard) {
        return NGX_DECLINED;
    }

    if (rec->told == NGX_IDEMPOTENCY_TOLD) {
        rec->as.elsewhere.due = now;
    }

    if (silent) {

        /* it is asked all the same: the next one may hear it */

        if (rec->told == NGX_IDEMPOTENCY_TOLD) {
            ngx_idempotency_tier_owe(shm, rec);
        }

        return NGX_DECLINED;
    }

    rec->as.elsewhere.looked = 1;

    ngx_idempotency_shm_wait(rec, claim);
    ngx_idempotency_tier_owe(shm, rec);

    return NGX_AGAIN;
}


/* it was asked for, and is somebody else's; lapses: see the item */

void
ngx_idempotency_elsewhere_found(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_msec_t lapses)
{
    ngx_idempotency_record_found(shm, rec, NGX_IDEMPOTENCY_ON_FOUND_PENDING,
                                 ngx_current_msec);

    rec->as.elsewhere.answers = 1;
    rec->as.elsewhere.wanted = (uint32_t) ngx_current_msec;
    rec->as.elsewhere.due = elsewhere_due(shm, rec, lapses);
}


/* it is still, or nobody could tell: who waits waits on, who looks is told */

void
ngx_idempotency_elsewhere_answered(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_msec_t lapses,
    ngx_idempotency_workers_t *wake)
{
    rec->as.elsewhere.answers++;
    rec->as.elsewhere.due = elsewhere_due(shm, rec, lapses);

    if (rec->as.elsewhere.looked) {
        rec->as.elsewhere.looked = 0;

        ngx_idempotency_shm_take_waiting(rec, wake);
    }
}


static ngx_msec_t
elsewhere_due(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec,
    ngx_msec_t lapses)
{
    ngx_msec_t  due;

    due = ngx_current_msec + elsewhere_delay(shm, rec);

    if (lapses && (ngx_msec_int_t) (lapses - ngx_current_msec) > 0
        && (ngx_msec_int_t) (due - lapses) > 0)
    {
        due = lapses + 1;
    }

    return due;
}


static ngx_msec_t
elsewhere_delay(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec)
{
    uint32_t                          n;
    ngx_msec_t                        delay;
    const ngx_idempotency_backing_t  *backing;

    backing = shm->tier->backing;
    delay = backing->soon;

    for (n = rec->as.elsewhere.answers; n > 1 && delay < backing->seldom; n--) {
        delay *= 2;
    }

    return ngx_min(delay, backing->seldom);
}


/* the first answer from now on that tells what is so now */

uint32_t
ngx_idempotency_elsewhere_next(ngx_idempotency_record_t *rec)
{
    uint32_t  next;

    next = (rec->told == NGX_IDEMPOTENCY_TELLING
            || rec->told == NGX_IDEMPOTENCY_OUTDATED) ? 2 : 1;

    if (rec->state == NGX_IDEMPOTENCY_ELSEWHERE) {
        next += rec->as.elsewhere.answers;
    }

    return next;
}


/* for so long; workers' clocks may differ by a moment */

ngx_uint_t
ngx_idempotency_elsewhere_unwanted(ngx_idempotency_record_t *rec,
    ngx_msec_t now, ngx_msec_t time)
{
    return (int32_t) ((uint32_t) now - rec->as.elsewhere.wanted)
           >= (int32_t) time;
}


/* a request of this worker does, without the lock; it comes by again */

void
ngx_idempotency_elsewhere_wait(ngx_idempotency_shm_t *shm, u_char *token,
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

    if (!tier->again.timer_set
        || (ngx_msec_int_t) (tier->again.timer.key - ngx_current_msec) > left)
    {
        ngx_add_timer(&tier->again, left);
    }
}


static void
elsewhere_handler(ngx_event_t *ev)
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

    for (q = ngx_queue_last(&shm->sh->elsewhere);
         q != ngx_queue_sentinel(&shm->sh->elsewhere);
         q = ngx_queue_prev(q))
    {
        rec = ngx_queue_data(q, ngx_idempotency_record_t, queue);

        if (ngx_idempotency_elsewhere_unwanted(rec, ngx_current_msec,
                                            NGX_IDEMPOTENCY_ELSEWHERE_WANTED))
        {
            break;
        }

        due = rec->as.elsewhere.due;

        if ((ngx_msec_int_t) (due - ngx_current_msec) <= 0) {

            /* if it is being asked already, that is enough */

            if (rec->told == NGX_IDEMPOTENCY_TOLD) {
                ngx_idempotency_tier_owe(shm, rec);
            }

            due = ngx_current_msec + elsewhere_delay(shm, rec);
        }

        left = (ngx_msec_int_t) (due - ngx_current_msec);
        next = next ? ngx_min(next, left) : left;
    }

    ngx_idempotency_shm_unlock(shm);

    if (next) {
        ngx_add_timer(ev, next);
    }

    ngx_idempotency_tier_kick(shm);
}


/* the backing was told that the token, or NULL: some token, has changed */

void
ngx_idempotency_tier_changed(ngx_idempotency_tier_t *tier, u_char *token)
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

        if (rec && rec->state == NGX_IDEMPOTENCY_ELSEWHERE) {
            ngx_idempotency_tier_owe(shm, rec);
        }

    } else {
        for (q = ngx_queue_head(&shm->sh->elsewhere);
             q != ngx_queue_sentinel(&shm->sh->elsewhere);
             q = ngx_queue_next(q))
        {
            rec = ngx_queue_data(q, ngx_idempotency_record_t, queue);
            ngx_idempotency_tier_owe(shm, rec);
        }
    }

    ngx_idempotency_shm_unlock(shm);

    ngx_idempotency_tier_kick(shm);
}


void
ngx_idempotency_elsewhere_init_process(ngx_idempotency_tier_t *tier,
    ngx_cycle_t *cycle)
{
    tier->again.handler = elsewhere_handler;
    tier->again.data = tier;
    tier->again.log = cycle->log;
    tier->again.cancelable = 1;
}
