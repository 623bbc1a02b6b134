
/*
 * Items: what a zone tells and asks its backing, and what the backing answers.
 * Many items make one transaction.  An item points to no memory but its own, as
 * a thread works on it.
 */


#ifndef _NGX_IDEMPOTENCY_BACKING_H_INCLUDED_
#define _NGX_IDEMPOTENCY_BACKING_H_INCLUDED_


#include "ngx_idempotency_store.h"


/* when an outcome is on disk */

typedef enum {
    NGX_IDEMPOTENCY_SYNC_BATCHED = 0,   /* within a second */
    NGX_IDEMPOTENCY_SYNC_STRICT         /* before the client gets it */
} ngx_idempotency_sync_e;


/*
 * Which file it is: random bytes of its making.  How far it was written: a
 * number that rises with each commit.
 */

#define NGX_IDEMPOTENCY_MARK_LEN  16

typedef struct {
    u_char                          identity[NGX_IDEMPOTENCY_MARK_LEN];
    ngx_atomic_t                    number;
    /* the part of that number that is in the file, not only in its log */
    ngx_atomic_t                    filed;
} ngx_idempotency_mark_t;


/* whether a backing is what it was */

typedef enum {
    NGX_IDEMPOTENCY_TIER_SAME = 0,
    /* refused, unless an operator can agree, and does */
    NGX_IDEMPOTENCY_TIER_OTHER,
    /* a file that is refused, and nobody can agree to it */
    NGX_IDEMPOTENCY_TIER_FOREIGN,
    /* a Redis that may soon be right again, or refused */
    NGX_IDEMPOTENCY_TIER_DIFFERS
} ngx_idempotency_tier_other_e;


typedef enum {
    NGX_IDEMPOTENCY_ITEM_ASK = 0,       /* check, bind and claim in one step */
    NGX_IDEMPOTENCY_ITEM_PUT,           /* writes the zone's own record */
    NGX_IDEMPOTENCY_ITEM_RELEASE,       /* ends the zone's own claim; a token
                                           that it took over is in doubt
                                           again */
    NGX_IDEMPOTENCY_ITEM_FIND,          /* looks, changes nothing */
    NGX_IDEMPOTENCY_ITEM_FORGET         /* an operator's, of any owner's record;
                                           with a fence, only the record that
                                           has it; no claim of the zone itself
                                           above `floor` */
} ngx_idempotency_item_e;


/* what was found out about a record and its response: see below */

#define NGX_IDEMPOTENCY_MAC_LEN  16

typedef enum {
    NGX_IDEMPOTENCY_SEAL_OPEN = 0,
    NGX_IDEMPOTENCY_SEAL_GONE,          /* sealed by an unknown key, or the
                                           response is missing */
    NGX_IDEMPOTENCY_SEAL_BROKEN,        /* the response, or what it is sealed
                                           with, was changed */
    NGX_IDEMPOTENCY_SEAL_FORGED,        /* the claim's part of the record was
                                           changed, or the record is none at
                                           all */
    NGX_IDEMPOTENCY_SEAL_FAILED         /* no memory, or no random bytes */
} ngx_idempotency_seal_e;


/* all times are the backing's, in milliseconds */

typedef struct {
    ngx_idempotency_item_e          what;

    u_char                          token[NGX_IDEMPOTENCY_DIGEST_LEN];
    /* ASK, PUT: in; ASK, FIND: out: the record's, if the token is bound */
    u_char                          fingerprint[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_idempotency_parts_t         parts;
    /* the record's mark, made with the digest key; zero without one */
    u_char                          mac[NGX_IDEMPOTENCY_MAC_LEN];

    /* the name of the claim, which no other claim ever has: the instance of the
       zone that made it, and the sequence, which rises there with each claim;
       in, and out if the token is bound */
    uint64_t                        instance;
    uint64_t                        sequence;
    /* upstreams know the claim by this number, which rises with each claim of a
       token: the sequence, or, over a backing that many machines share, the
       number by which the backing granted the claim: out */
    uint64_t                        fence;
    /* ASK: the zone has forgotten its own claims with a lower sequence: they
       have no owner any more */
    uint64_t                        floor;
    /* how long a silent owner keeps the claim, if the backing has no other sign
       of its life */
    int64_t                         lease;

    /* ASK: take over a token in doubt; RELEASE: this claim had taken it over,
       and it is fresh now */
    unsigned                        retry:1;
    /* ASK: don't claim an absent token: it may have been bound before */
    unsigned                        old:1;
    /* the pending token was in doubt before; PUT: in, ASK: out */
    unsigned                        taken:1;
    /* RELEASE: the token was not in doubt before, or an operator has settled
       it: it is fresh */
    unsigned                        freed:1;
    /* RELEASE: of a claim whose answer was lost, and that no request has */
    unsigned                        unanswered:1;
    /* PUT: the backing has acknowledged the claim */
    unsigned                        known:1;
    /* out, PUT: the backing had lost the claim, which was written anew */
    unsigned                        lost:1;
    /* out: the item failed, and has to be flushed again; certainly not sent */
    unsigned                        failed:1;
    unsigned                        unsent:1;
    /* it failed as it took too long while the backing answered others; for that
       its response is not kept */
    unsigned                        slow:1;
    unsigned                        trimmed:1;
    /* FIND: of the response only its length */
    unsigned                        length_only:1;

    /* the window of the outcome */
    int64_t                         window;
    /* PUT: in; ASK, FIND: out.  ASK, and PUT of a pending record: the outcome
       will not end before.  FORGET: what another instance has recorded since
       stays */
    int64_t                         recorded;
    int64_t                         ends;
    /* ASK of a pending token: out, when its owner's lease ends; 0: the backing
       has another sign that the owner lives */
    int64_t                         lapses;

    /* PUT: in; ASK, FIND: out */
    ngx_idempotency_outcome_e       outcome;
    ngx_uint_t                      status;
    ngx_uint_t                      replays;
    /* PUT: with room for its seal behind it; ASK, FIND: from malloc(), to be
       freed with the item */
    ngx_str_t                       response;
    ngx_idempotency_seal_e          seal;

    ngx_idempotency_result_e        result;
    /* UNAVAILABLE: the backing has no room for the item */
    unsigned                        full:1;

    void                           *data;
} ngx_idempotency_item_t;


/*
 * Records that leave this machine's memory are marked with a digest key of
 * idempotency_secret, and their responses sealed with AES-256-GCM by another
 * key.  Both are checked when a record comes back.  These functions may run in
 * threads.
 */

/* what follows a response.  Sealed: the tag, the salt of the response's key,
   the name of the secret key, and a byte, the form.  Marked: the mark and the
   form.  Plain: the form */

#define NGX_IDEMPOTENCY_SEAL_TAG_LEN   16
#define NGX_IDEMPOTENCY_SEAL_SALT_LEN  32

#define NGX_IDEMPOTENCY_SEAL_LEN                                             \
    (NGX_IDEMPOTENCY_SEAL_TAG_LEN + NGX_IDEMPOTENCY_SEAL_SALT_LEN            \
     + NGX_IDEMPOTENCY_SEAL_ID_LEN + 1)

#define NGX_IDEMPOTENCY_SEAL_PLAIN     0
#define NGX_IDEMPOTENCY_SEAL_SEALED    1
#define NGX_IDEMPOTENCY_SEAL_MARKED    2


/*
 * An item to be put has room for a seal behind its response.  The first
 * function is called once for items on their way to a backing, the second one
 * once on their way back, off the event loop where the backing is.  `times`:
 * the backing keeps `recorded` and `ends` as they are in the item, so they are
 * covered by mark and seal.
 *
 * A response that can't be sealed does not leave memory.  One that can't be
 * opened is lost: the outcome of its item becomes "not kept".  The same goes
 * for a done record with a wrong mark.  A record that is pending or in doubt
 * and has a wrong mark, or that contradicts itself, makes the token
 * unavailable: it counts neither as an answer nor as absent.
 */

void ngx_idempotency_seal(const ngx_idempotency_secret_t *secret,
    ngx_idempotency_item_t *items, ngx_uint_t n, ngx_uint_t times);
void ngx_idempotency_unseal(const ngx_idempotency_secret_t *secret,
    ngx_idempotency_item_t *items, ngx_uint_t n, ngx_uint_t times);


#endif /* _NGX_IDEMPOTENCY_BACKING_H_INCLUDED_ */
