
/*
 * What a record is to those who ask: whether it is theirs, and what they are
 * told of it.  All of it runs with the zone's lock held.
 */


#include "ngx_idempotency_shm.h"


static ngx_uint_t found_anonymous(ngx_idempotency_record_t *rec);


/*
 * What keeps the request from being the one that the token is bound to, or 0.
 * Whoever asks for what was bound without an identity could have left his out
 * as well, so he is told.  Settings alone are no difference.
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

        /* two bodies may have one hint */

        if (differs == 0
            || ngx_memcmp(was->body, is->body, NGX_IDEMPOTENCY_HINT_LEN) != 0)
        {
            differs |= NGX_IDEMPOTENCY_DIFFERS_BODY;
        }
    }

    if (!found_anonymous(rec)
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


static ngx_uint_t
found_anonymous(ngx_idempotency_record_t *rec)
{
    static u_char  nobody[NGX_IDEMPOTENCY_IDENTITY_LEN];

    return ngx_memcmp(rec->parts.identity, nobody,
                      NGX_IDEMPOTENCY_IDENTITY_LEN)
           == 0;
}


/* the clocks of two workers may differ by a moment */

void
ngx_idempotency_record_describe(ngx_idempotency_record_t *rec, ngx_msec_t now,
    ngx_idempotency_found_t *found)
{
    ngx_msec_int_t  age;

    age = (ngx_msec_int_t) (now - rec->recorded);

    switch (rec->state) {

    case NGX_IDEMPOTENCY_ELSEWHERE:
    case NGX_IDEMPOTENCY_GRANTED:
        found->outcome = NGX_IDEMPOTENCY_PENDING;
        break;

    case NGX_IDEMPOTENCY_DOUBTED:
        found->outcome = NGX_IDEMPOTENCY_IN_DOUBT;
        break;

    default:
        found->outcome = rec->state;
    }

    found->status = rec->status;
    found->fence = rec->fence;
    found->age = ngx_max(age, 0);
    found->left = ngx_idempotency_record_lasts(rec, now);
    found->replays = rec->replays;
    found->anonymous = found_anonymous(rec);
    found->owner = (rec->state == NGX_IDEMPOTENCY_PENDING)
                       ? rec->as.pending.owner.pid : 0;
    found->instance = 0;
    found->response.len = rec->size;
    found->response.data = NULL;
}


/* for how long yet, unless it is pending */

ngx_msec_t
ngx_idempotency_record_lasts(ngx_idempotency_record_t *rec, ngx_msec_t now)
{
    ngx_msec_int_t  left;

    if (ngx_idempotency_record_pends(rec)
        || rec->state == NGX_IDEMPOTENCY_ELSEWHERE)
    {
        return 0;
    }

    left = (ngx_msec_int_t) (rec->ends - now);

    return ngx_max(left, 0);
}
