
/*
 * What a zone hears from, and tells, the backing that remembers for it: items,
 * many of which make one transaction.  An item is its own in all it points
 * to, as a thread works on it.
 */


#ifndef _NGX_IDEMPOTENCY_BACKING_H_INCLUDED_
#define _NGX_IDEMPOTENCY_BACKING_H_INCLUDED_


#include "ngx_idempotency_store.h"


/* when the outcome that a client has got is on disk */

typedef enum {
    NGX_IDEMPOTENCY_SYNC_BATCHED = 0,   /* within a second */
    NGX_IDEMPOTENCY_SYNC_STRICT         /* before the client gets it */
} ngx_idempotency_sync_e;


/*
 * Which file it is, by random bytes of when it was made, and how far it was
 * written, by a number that rises with each commit.
 */

#define NGX_IDEMPOTENCY_MARK_LEN  16

typedef struct {
    u_char                          identity[NGX_IDEMPOTENCY_MARK_LEN];
    ngx_atomic_t                    number;
    /* ... and what of that is in the file itself, without its log */
    ngx_atomic_t                    filed;
} ngx_idempotency_mark_t;


typedef enum {
    NGX_IDEMPOTENCY_ITEM_ASK = 0,       /* check, bind and claim in one step */
    NGX_IDEMPOTENCY_ITEM_PUT,           /* what the zone knows of a claim of
                                           its own */
    NGX_IDEMPOTENCY_ITEM_RELEASE,       /* a claim of its own is none any
                                           more; what it took over is in
                                           doubt again */
    NGX_IDEMPOTENCY_ITEM_FIND,          /* looks */
    NGX_IDEMPOTENCY_ITEM_FORGET         /* an operator's: of any owner; with a
                                           fence, only the record that has
                                           it; not what its own instance has
                                           claimed behind `floor` */
} ngx_idempotency_item_e;


/* what became of a record and its response: see below */

#define NGX_IDEMPOTENCY_MAC_LEN  16

typedef enum {
    NGX_IDEMPOTENCY_SEAL_OPEN = 0,
    NGX_IDEMPOTENCY_SEAL_GONE,          /* by no key that is there, or none */
    NGX_IDEMPOTENCY_SEAL_BROKEN,        /* it, or what goes with it, was
                                           changed */
    NGX_IDEMPOTENCY_SEAL_FORGED,        /* the record of a claim was, or it is
                                           none at all */
    NGX_IDEMPOTENCY_SEAL_FAILED         /* no memory, or no random bytes */
} ngx_idempotency_seal_e;


/* all times are the file's, in milliseconds */

typedef struct {
    ngx_idempotency_item_e          what;

    u_char                          token[NGX_IDEMPOTENCY_DIGEST_LEN];
    /* ASK, PUT: in; ASK, FIND: out, the record's, if it is bound */
    u_char                          fingerprint[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_idempotency_parts_t         parts;
    /* by the digest key, over the record: zero if there is none */
    u_char                          mac[NGX_IDEMPOTENCY_MAC_LEN];

    /* the claim's name, which no other claim ever has: the instance of the zone
       that made it, and the sequence, which rises there with each claim; in,
       and out if it is bound */
    uint64_t                        instance;
    uint64_t                        sequence;
    /* what upstreams know the claim by, which rises with each claim of a token:
       the sequence; or, of a backing that many machines share, the number that
       it has granted the claim with: out */
    uint64_t                        fence;
    /* ASK: claims of this very instance with a lower sequence have no owner any
       more, as the zone has forgotten them */
    uint64_t                        floor;
    /* for how long a silent owner keeps the claim, if the backing knows no
       other sign that it lives */
    int64_t                         lease;

    /* ASK: take over what is in doubt; RELEASE: it had been taken over here,
       and is freed */
    unsigned                        retry:1;
    /* ASK: not what is absent, as it may have been bound once */
    unsigned                        old:1;
    /* what is pending was in doubt before: PUT: in, ASK: out */
    unsigned                        taken:1;
    /* RELEASE: it had not been in doubt, or an operator has settled it: the
       token is fresh */
    unsigned                        freed:1;
    /* PUT: the backing has acknowledged the claim */
    unsigned                        known:1;
    /* out, PUT: but it had lost the claim, which was written anew */
    unsigned                        lost:1;
    /* out: it failed, and is to be flushed again; and it was certainly not
       sent */
    unsigned                        failed:1;
    unsigned                        unsent:1;
    /* ... it took too long, while the backing answered others; and so its
       response is not kept */
    unsigned                        slow:1;
    unsigned                        trimmed:1;
    /* FIND: of the response its length only */
    unsigned                        length_only:1;

    /* of the outcome, once it is there */
    int64_t                         window;
    /* PUT: in; ASK, FIND: out.  ASK, and PUT of what is pending: before when
       its outcome will not end.  FORGET: what another one has recorded
       since stays */
    int64_t                         recorded;
    int64_t                         ends;
    /* ASK, of what is pending: out, when its owner's lease ends; 0: the backing
       has another sign that the owner lives */
    int64_t                         lapses;

    /* PUT: in; ASK, FIND: out */
    ngx_idempotency_outcome_e       outcome;
    ngx_uint_t                      status;
    ngx_uint_t                      replays;
    /* PUT: with room for its seal behind it; ASK, FIND: malloc()ed, to be
       free()d along with the item */
    ngx_str_t                       response;
    ngx_idempotency_seal_e          seal;

    ngx_idempotency_result_e        result;
    /* UNAVAILABLE: there is no room for it */
    unsigned                        full:1;

    void                           *data;
} ngx_idempotency_item_t;


/*
 * Records that leave this machine's memory are marked by a digest key of
 * idempotency_secret, their responses sealed with AES-256-GCM by another one;
 * both are checked when they come back.  May be called in threads.
 */

/* behind a response: the seal, what its own key is made by, the key's name, and
   the form, of which this is the last byte; or its mark and the form; or that
   alone */

#define NGX_IDEMPOTENCY_SEAL_TAG_LEN   16
#define NGX_IDEMPOTENCY_SEAL_SALT_LEN  32

#define NGX_IDEMPOTENCY_SEAL_LEN                                             \
    (NGX_IDEMPOTENCY_SEAL_TAG_LEN + NGX_IDEMPOTENCY_SEAL_SALT_LEN            \
     + NGX_IDEMPOTENCY_SEAL_ID_LEN + 1)

#define NGX_IDEMPOTENCY_SEAL_PLAIN     0
#define NGX_IDEMPOTENCY_SEAL_SEALED    1
#define NGX_IDEMPOTENCY_SEAL_MARKED    2


/*
 * What is put has room for a seal behind its response.  To be called once for
 * items on their way to a backing, and once on their way back, where that is
 * off the event loop.  `times`: the backing keeps `recorded` and `ends` as they
 * are in an item, so that they are sealed along with the response.
 *
 * A response that can't be sealed does not leave memory, and one that can't be
 * opened is lost: its item's outcome is "not kept" instead of "done".  So it is
 * for a record that is done, but whose mark is wrong.  A record that is pending
 * or in doubt and has a wrong mark, or one that contradicts itself, makes the
 * token unavailable: it is neither an answer nor absent.
 */

void ngx_idempotency_seal(const ngx_idempotency_secret_t *secret,
    ngx_idempotency_item_t *items, ngx_uint_t n, ngx_uint_t times);
void ngx_idempotency_unseal(const ngx_idempotency_secret_t *secret,
    ngx_idempotency_item_t *items, ngx_uint_t n, ngx_uint_t times);


#endif /* _NGX_IDEMPOTENCY_BACKING_H_INCLUDED_ */
