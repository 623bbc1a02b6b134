
/*
 * What a zone hears from, and tells, the backing that remembers for it: items,
 * many of which make one transaction.  An item is its own in all it points
 * to, as a thread works on it.
 */


#ifndef _NGX_IDEMPOTENCY_BACKING_H_INCLUDED_
#define _NGX_IDEMPOTENCY_BACKING_H_INCLUDED_


#include "ngx_idempotency_store.h"


/* when what a client was told is on disk */

typedef enum {
    NGX_IDEMPOTENCY_SYNC_BATCHED = 0,   /* within a second */
    NGX_IDEMPOTENCY_SYNC_STRICT         /* before it is told */
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
    NGX_IDEMPOTENCY_ITEM_FORGET         /* by hand, whoever owns it; with a
                                           fence, only the record that has
                                           it; not what its own instance has
                                           claimed behind `floor` */
} ngx_idempotency_item_e;


/* what became of a record and its response: see ngx_idempotency_seal.h */

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

    /* whose claim it is: of an instance of the zone, that nothing else ever
       is, and there of the sequence, which rises with each claim; in, and out
       if it is bound */
    uint64_t                        instance;
    uint64_t                        sequence;
    /* ... and what others know it by, which rises with each claim of a token:
       the sequence, unless what grants claims to many machines tells another
       one with the grant: out */
    uint64_t                        fence;
    /* ASK: what this very instance claimed below it is nobody's any more: a
       sequence */
    uint64_t                        floor;
    /* for how long it is kept by an owner that gives no sign of life, where
       that is how he is told to live */
    int64_t                         lease;

    /* ASK: take over what is in doubt; RELEASE: it had been taken over here,
       and is freed */
    unsigned                        retry:1;
    /* ASK: not what is absent, as it may have been bound once */
    unsigned                        old:1;
    /* what is pending was in doubt before: PUT: in, ASK: out */
    unsigned                        taken:1;
    /* RELEASE: it was not, or is settled by hand */
    unsigned                        freed:1;
    /* PUT: it has said that it knows of the claim */
    unsigned                        known:1;
    /* out, PUT: it did not, and does now */
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
    /* ASK, of what is pending: out, when its owner's lease ends, if that is
       how it is told that nobody has it any more, or 0 */
    int64_t                         lapses;

    /* PUT: in; ASK, FIND: out */
    ngx_idempotency_outcome_e       outcome;
    ngx_uint_t                      status;
    ngx_uint_t                      replays;
    /* PUT: with room for its seal behind it; ASK, FIND: malloc()ed, whoever
       has the item free()s it */
    ngx_str_t                       response;
    ngx_idempotency_seal_e          seal;

    ngx_idempotency_result_e        result;
    /* UNAVAILABLE: there is no room for it */
    unsigned                        full:1;

    void                           *data;
} ngx_idempotency_item_t;


#endif /* _NGX_IDEMPOTENCY_BACKING_H_INCLUDED_ */
