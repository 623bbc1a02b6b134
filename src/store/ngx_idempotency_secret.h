
/*
 * The keys of idempotency_secret: one by which digests are made, so that their
 * thief can't try what they are of, and those by which responses are sealed
 * that leave this machine's memory.
 */


#ifndef _NGX_IDEMPOTENCY_SECRET_H_INCLUDED_
#define _NGX_IDEMPOTENCY_SECRET_H_INCLUDED_


#include "digest/ngx_idempotency_digest.h"


/* of a key, in bytes; and how many there may be to seal by */

#define NGX_IDEMPOTENCY_SECRET_MIN    32
#define NGX_IDEMPOTENCY_SECRET_MAX    256
#define NGX_IDEMPOTENCY_SECRET_SEALS  16

#define NGX_IDEMPOTENCY_STAMP_LEN     16
#define NGX_IDEMPOTENCY_SEAL_ID_LEN   8


/* what a key for each response is made by; it names the key, and tells nothing
   of it */

typedef struct {
    u_char                        id[NGX_IDEMPOTENCY_SEAL_ID_LEN];
    ngx_idempotency_digest_key_t  key;
} ngx_idempotency_seal_key_t;


typedef struct {
    /* NULL, or what is next to it; and a name as those of the others */
    ngx_idempotency_digest_key_t  *digest_key;
    ngx_idempotency_digest_key_t   digest;
    u_char                         id[NGX_IDEMPOTENCY_SEAL_ID_LEN];
    /* tells one digest key from another; all zero: there is none.  A store is
       made with one, and refused by an nginx that has another */
    u_char                         stamp[NGX_IDEMPOTENCY_STAMP_LEN];
    /* made of the digest key, too: by this a store's records are marked */
    ngx_idempotency_digest_key_t   mac;

    /* the first one seals, all open */
    ngx_uint_t                     nseals;
    ngx_idempotency_seal_key_t     seals[NGX_IDEMPOTENCY_SECRET_SEALS];
} ngx_idempotency_secret_t;


/* the lines of a file, which are wiped.  NULL, or what is wrong with one of
   them, and which: in words that say nothing of what stands in it */

char *ngx_idempotency_secret_parse(ngx_idempotency_secret_t *secret,
    u_char *data, size_t len, ngx_uint_t *line);

/* one for a configuration that is to go on with what another one has */

void ngx_idempotency_secret_copy(ngx_idempotency_secret_t *secret,
    const ngx_idempotency_secret_t *from);

/* once it is needed no more */

void ngx_idempotency_secret_wipe(void *secret);

/* what a stamp is to that of before */

typedef enum {
    NGX_IDEMPOTENCY_STAMP_SAME = 0,
    NGX_IDEMPOTENCY_STAMP_ANOTHER,
    NGX_IDEMPOTENCY_STAMP_GONE,
    NGX_IDEMPOTENCY_STAMP_NEW
} ngx_idempotency_stamp_e;

ngx_idempotency_stamp_e ngx_idempotency_stamp_differs(const u_char *stamp,
    const u_char *old);


#endif /* _NGX_IDEMPOTENCY_SECRET_H_INCLUDED_ */
