
/*
 * The keys of idempotency_secret: one to make digests with, so that whoever
 * steals digests can't try out what they are of; and those that seal responses
 * which leave this machine's memory.
 */


#ifndef _NGX_IDEMPOTENCY_SECRET_H_INCLUDED_
#define _NGX_IDEMPOTENCY_SECRET_H_INCLUDED_


#include "digest/ngx_idempotency_digest.h"


/* the length of a key, in bytes; the most keys to seal with */

#define NGX_IDEMPOTENCY_SECRET_MIN    32
#define NGX_IDEMPOTENCY_SECRET_MAX    256
#define NGX_IDEMPOTENCY_SECRET_SEALS  16

#define NGX_IDEMPOTENCY_STAMP_LEN     16
#define NGX_IDEMPOTENCY_SEAL_ID_LEN   8


/* makes a key for each response; `id` names it, and tells nothing */

typedef struct {
    u_char                        id[NGX_IDEMPOTENCY_SEAL_ID_LEN];
    ngx_idempotency_digest_key_t  key;
} ngx_idempotency_seal_key_t;


typedef struct {
    /* NULL, or &digest; and the name of the digest key */
    ngx_idempotency_digest_key_t  *digest_key;
    ngx_idempotency_digest_key_t   digest;
    u_char                         id[NGX_IDEMPOTENCY_SEAL_ID_LEN];
    /* tells digest keys apart; all zero: there is none.  A store is made with
       one key, and refused by an nginx with another */
    u_char                         stamp[NGX_IDEMPOTENCY_STAMP_LEN];
    /* marks a store's records; made of the digest key */
    ngx_idempotency_digest_key_t   mac;

    /* the first one seals, all open */
    ngx_uint_t                     nseals;
    ngx_idempotency_seal_key_t     seals[NGX_IDEMPOTENCY_SECRET_SEALS];
} ngx_idempotency_secret_t;


/* reads the lines of a file, and wipes them.  NULL, or what is wrong, and in
   which line, in words that say nothing about its contents */

char *ngx_idempotency_secret_parse(ngx_idempotency_secret_t *secret,
    u_char *data, size_t len, ngx_uint_t *line);

void ngx_idempotency_secret_wipe(void *secret);

/* how a stamp compares with an earlier one */

typedef enum {
    NGX_IDEMPOTENCY_STAMP_SAME = 0,
    NGX_IDEMPOTENCY_STAMP_ANOTHER,
    NGX_IDEMPOTENCY_STAMP_GONE,
    NGX_IDEMPOTENCY_STAMP_NEW
} ngx_idempotency_stamp_e;

ngx_idempotency_stamp_e ngx_idempotency_stamp_differs(const u_char *stamp,
    const u_char *old);


#endif /* _NGX_IDEMPOTENCY_SECRET_H_INCLUDED_ */
