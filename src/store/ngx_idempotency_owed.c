
/*
 * What a zone owes to what stands behind it.  Records that the backing has not
 * heard of, or not of their last change, wait in a list in shared memory, the
 * oldest first.  A worker takes the first of them over, all in one batch; if
 * it dies, what it had taken is the first to be told again.
 *
 * A record is never in two batches: what is told of a token is told in its
 * order.  What could not be told is the first to be told again; but where many
 * batches are on their way at once, it waits aside, as the others may well be
 * told.
 */


#include "ngx_idempotency_shm.h"


/* a worker that took something over this long ago is asked whether it lives;
   if it stands still, what it has taken is another's after this time */

#define NGX_IDEMPOTENCY_TIER_SILENCE    100
#define NGX_IDEMPOTENCY_TIER_STOPPED    1000


static void owed_append(ngx_idempotency_tier_sh_t *sh,
    ngx_idempotency_record_t *rec);
static void owed_prepend(ngx_idempotency_tier_sh_t *sh,
    ngx_idempotency_record_t *rec);
static ngx_uint_t owed_deserted(ngx_idempotency_tier_t *tier,
    ngx_idempotency_hander_t *hander);
static void owed_untake(ngx_idempotency_shm_t *shm,
    ngx_idempotency_hander_t *hander);
static ngx_uint_t owed_any_again(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec);


/* who leaves shared memory while it is owed waits in the list, as a claim
   that is none any more */

void
ngx_idempotency_tier_owe(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec)
{
    if (shm->tier == NULL || rec->local) {
        return;
    }

    switch (rec->told) {

    case NGX_IDEMPOTENCY_TOLD:
        ngx_idempotency_owed_list(shm, rec);
        break;

    case NGX_IDEMPOTENCY_TELLING:
        rec->told = NGX_IDEMPOTENCY_OUTDATED;
        break;
    }
}


void
ngx_idempotency_owed_list(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec)
{
    ngx_idempotency_tier_sh_t  *sh;

    sh = &shm->sh->tier;

    rec->told = NGX_IDEMPOTENCY_UNTOLD;
    owed_append(sh, rec);

    sh->listed++;
}


/* it has changed while it was told, and keeps its place: whoever has the token
   since, if it has left the zone, may be asking already, and must not be told
   what it was before */

void
ngx_idempotency_owed_first(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec)
{
    rec->told = NGX_IDEMPOTENCY_UNTOLD;
    owed_prepend(&shm->sh->tier, rec);
}


static void
owed_append(ngx_idempotency_tier_sh_t *sh, ngx_idempotency_record_t *rec)
{
    rec->next = NULL;

    if (sh->last) {
        sh->last->next = rec;

    } else {
        sh->first = rec;
    }

    sh->last = rec;
}


static void
owed_prepend(ngx_idempotency_tier_sh_t *sh, ngx_idempotency_record_t *rec)
{
    rec->next = sh->first;
    sh->first = rec;

    if (sh->last == NULL) {
        sh->last = rec;
    }
}


/* a claim that the backing never heard of needs no release there */

ngx_idempotency_record_t *
ngx_idempotency_owed_next(ngx_idempotency_shm_t *shm)
{
    ngx_idempotency_record_t   *rec;
    ngx_idempotency_tier_sh_t  *sh;

    sh = &shm->sh->tier;

    while ((rec = sh->first) != NULL) {

        if (rec->state != NGX_IDEMPOTENCY_GONE || rec->heard) {
            return rec;
        }

        sh->first = rec->next;

        if (sh->first == NULL) {
            sh->last = NULL;
        }

        sh->told++;
        ngx_slab_free_locked(shm->shpool, rec);
    }

    return NULL;
}


/*
 * One that is nobody's, or of who has gone or stands still.  Without memory for
 * one more the others have to do.
 */

ngx_idempotency_hander_t *
ngx_idempotency_owed_hander(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_shm_t      *shm;
    ngx_idempotency_hander_t   *hander, *last;

    shm = tier->shm;
    last = NULL;

    for (hander = &shm->sh->tier.hander; hander; hander = hander->next) {

        if (hander->process.pid == 0) {
            return hander;
        }

        if (owed_deserted(tier, hander)) {
            owed_untake(shm, hander);
            return hander;
        }

        last = hander;
    }

    if (!ngx_idempotency_tier_shared(tier)) {
        return NULL;
    }

    hander = ngx_slab_calloc_locked(shm->shpool,
                                    sizeof(ngx_idempotency_hander_t));
    last->next = hander;

    return hander;
}


/* who took something over may be no more, and nothing else may be owed */

void
ngx_idempotency_tier_inherit(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_shm_t     *shm;
    ngx_idempotency_hander_t  *hander;

    shm = tier->shm;

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        return;
    }

    for (hander = &shm->sh->tier.hander; hander; hander = hander->next) {

        if (hander->taken && owed_deserted(tier, hander)) {
            owed_untake(shm, hander);
        }
    }

    ngx_idempotency_shm_unlock(shm);
}


/*
 * What a stopped worker has taken may be written when it goes on, behind what
 * another one tells since: so only a backing that asks whether it is the
 * worker's yet, and can change nothing behind that, lets others take it over.
 */

static ngx_uint_t
owed_deserted(ngx_idempotency_tier_t *tier, ngx_idempotency_hander_t *hander)
{
    ngx_msec_int_t  age;

    age = (ngx_msec_int_t) (ngx_current_msec - hander->handed);

    return (age > NGX_IDEMPOTENCY_TIER_SILENCE
            && ngx_idempotency_process_gone(&hander->process))
           || (age > NGX_IDEMPOTENCY_TIER_STOPPED
               && !ngx_idempotency_tier_shared(tier)
               && ngx_idempotency_process_stopped(&hander->process));
}


ngx_uint_t
ngx_idempotency_owed_current(ngx_idempotency_tier_t *tier,
    ngx_idempotency_batch_t *batch)
{
    return tier->shm->sh->tier.since == batch->since
           && batch->hander->turn == batch->turn;
}


void
ngx_idempotency_owed_answered(ngx_idempotency_batch_t *batch)
{
    batch->hander->answered = batch->turn;
}


/* what was taken, and nobody knows how far, is the first to be told again */

static void
owed_untake(ngx_idempotency_shm_t *shm, ngx_idempotency_hander_t *hander)
{
    ngx_uint_t                  n;
    ngx_idempotency_record_t   *rec, *taken[NGX_IDEMPOTENCY_TIER_BATCH];

    n = 0;

    for (rec = hander->taken; rec; rec = rec->next) {
        taken[n++] = rec;
    }

    hander->turn++;
    hander->taken = NULL;
    hander->process.pid = 0;

    while (n) {
        ngx_idempotency_owed_back(shm, taken[--n]);
    }
}


void
ngx_idempotency_owed_back(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec)
{
    rec->told = NGX_IDEMPOTENCY_UNTOLD;
    rec->heard = 1;
    rec->again = 1;

    owed_prepend(&shm->sh->tier, rec);
}


void
ngx_idempotency_owed_aside(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec)
{
    ngx_idempotency_tier_sh_t  *sh;

    sh = &shm->sh->tier;

    rec->told = NGX_IDEMPOTENCY_REFUSED;
    rec->next = sh->refused;
    sh->refused = rec;
}


/* what was told in vain, or is to be given back: does it wait, or is on its
   way?  What waits beside the list was told in vain where many batches are on
   their way at once; else there is no room for it. */

ngx_uint_t
ngx_idempotency_owed_again(ngx_idempotency_shm_t *shm)
{
    ngx_uint_t                  again;
    ngx_idempotency_hander_t   *hander;
    ngx_idempotency_tier_sh_t  *sh;

    if (ngx_idempotency_shm_lock(shm) != NGX_OK) {
        return 1;
    }

    sh = &shm->sh->tier;
    again = (sh->refused && ngx_idempotency_tier_shared(shm->tier))
            || owed_any_again(shm, sh->first);

    for (hander = &sh->hander; hander && !again; hander = hander->next) {
        again = owed_any_again(shm, hander->taken);
    }

    ngx_idempotency_shm_unlock(shm);

    return again;
}


/* where nobody is asked while it fails there are only so many of the latter */

static ngx_uint_t
owed_any_again(ngx_idempotency_shm_t *shm, ngx_idempotency_record_t *rec)
{
    for ( /* void */ ; rec; rec = rec->next) {

        if (rec->again
            || (rec->state == NGX_IDEMPOTENCY_GONE && rec->heard
                && !ngx_idempotency_tier_shared(shm->tier)))
        {
            return 1;
        }
    }

    return 0;
}


/* what has ended since may have made room */

void
ngx_idempotency_tier_refused(ngx_idempotency_tier_t *tier)
{
    ngx_idempotency_record_t   *rec, *next;
    ngx_idempotency_tier_sh_t  *sh;

    if (tier->shm->sh->tier.refused == NULL
        || ngx_idempotency_shm_lock(tier->shm) != NGX_OK)
    {
        return;
    }

    sh = &tier->shm->sh->tier;

    for (rec = sh->refused; rec; rec = next) {
        next = rec->next;

        rec->told = NGX_IDEMPOTENCY_UNTOLD;
        owed_append(sh, rec);
    }

    sh->refused = NULL;

    ngx_idempotency_shm_unlock(tier->shm);
}
