
/*
 * Digests: bytes in, SHA-256 out, over a versioned and length-prefixed
 * encoding that is equal on every machine.  Pure: knows no requests, reads no
 * clock, allocates nothing.
 */


#ifndef _NGX_IDEMPOTENCY_DIGEST_H_INCLUDED_
#define _NGX_IDEMPOTENCY_DIGEST_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


#define NGX_IDEMPOTENCY_DIGEST_LEN  32

/*
 * Raised whenever the encoding of anything changes.  A key's token is the same
 * for ever: it has a version of its own.
 */

#define NGX_IDEMPOTENCY_DIGEST_VERSION        2
#define NGX_IDEMPOTENCY_DIGEST_TOKEN_VERSION  1


/* what is digested; two kinds never give the same digest */

#define NGX_IDEMPOTENCY_DIGEST_TOKEN        'T'
#define NGX_IDEMPOTENCY_DIGEST_FINGERPRINT  'F'
#define NGX_IDEMPOTENCY_DIGEST_BODY         'B'
#define NGX_IDEMPOTENCY_DIGEST_CONTENT      'C'
#define NGX_IDEMPOTENCY_DIGEST_SIMILAR      'S'
#define NGX_IDEMPOTENCY_DIGEST_QUOTA        'Q'
#define NGX_IDEMPOTENCY_DIGEST_IDENTITY     'I'
#define NGX_IDEMPOTENCY_DIGEST_SETTINGS     'E'
#define NGX_IDEMPOTENCY_DIGEST_PLACE        'P'


/* room for libcrypto's running state, which digest.c alone knows */

typedef struct {
    uint64_t    sha[14];
} ngx_idempotency_digest_t;


void ngx_idempotency_digest_init(ngx_idempotency_digest_t *d, u_char kind);
void ngx_idempotency_digest_bytes(ngx_idempotency_digest_t *d, u_char *data,
    size_t len);
void ngx_idempotency_digest_field(ngx_idempotency_digest_t *d, ngx_str_t *s);
void ngx_idempotency_digest_final(ngx_idempotency_digest_t *d, u_char *out);

void ngx_idempotency_digest_type(ngx_idempotency_digest_t *d,
    ngx_str_t *content_type);

ngx_str_t ngx_idempotency_trim(u_char *start, u_char *end);


#endif /* _NGX_IDEMPOTENCY_DIGEST_H_INCLUDED_ */
