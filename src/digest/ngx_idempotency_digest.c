
/*
 * The encoding that is digested: a version, a kind, then fields, each behind
 * its length.  What is streamed without a length comes last.
 */


#include "ngx_idempotency_digest.h"


/*
 * The low-level calls of libcrypto: they need no allocation, so the running
 * state lives in the request's own memory, and a short digest costs a sixth
 * of what it costs through EVP.
 */

#ifndef OPENSSL_SUPPRESS_DEPRECATED
#define OPENSSL_SUPPRESS_DEPRECATED
#endif

#include <openssl/sha.h>


/*
 * nginx before 1.21.2 has read OpenSSL's headers by now without asking them not
 * to call SHA256_Init() and the like deprecated, as those of OpenSSL 3 do.
 */

#if (nginx_version < 1021002 && defined __GNUC__)
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#endif


/* what the header sets aside: it does not compile with other sizes */

typedef char  ngx_idempotency_digest_fits_t[
    (sizeof(SHA256_CTX) <= sizeof(ngx_idempotency_digest_t)
     && NGX_IDEMPOTENCY_DIGEST_LEN == SHA256_DIGEST_LENGTH) ? 1 : -1];


static ngx_inline SHA256_CTX *
digest_sha(ngx_idempotency_digest_t *d)
{
    return (SHA256_CTX *) d->sha;
}


void
ngx_idempotency_digest_init(ngx_idempotency_digest_t *d, u_char kind)
{
    u_char  head[2];

    head[0] = (kind == NGX_IDEMPOTENCY_DIGEST_TOKEN)
              ? NGX_IDEMPOTENCY_DIGEST_TOKEN_VERSION
              : NGX_IDEMPOTENCY_DIGEST_VERSION;
    head[1] = kind;

    (void) SHA256_Init(digest_sha(d));
    (void) SHA256_Update(digest_sha(d), head, sizeof(head));
}


void
ngx_idempotency_digest_bytes(ngx_idempotency_digest_t *d, u_char *data,
    size_t len)
{
    (void) SHA256_Update(digest_sha(d), data, len);
}


void
ngx_idempotency_digest_field(ngx_idempotency_digest_t *d, ngx_str_t *s)
{
    u_char      text[8 + 56];
    uint64_t    len;
    ngx_uint_t  i;

    len = s->len;

    for (i = 0; i < 8; i++) {
        text[i] = (u_char) (len >> (56 - 8 * i));
    }

    /* most are short: one call costs less than two */

    if (len && len <= sizeof(text) - 8) {
        ngx_memcpy(text + 8, s->data, s->len);
        (void) SHA256_Update(digest_sha(d), text, 8 + s->len);
        return;
    }

    (void) SHA256_Update(digest_sha(d), text, 8);
    (void) SHA256_Update(digest_sha(d), s->data, s->len);
}


void
ngx_idempotency_digest_final(ngx_idempotency_digest_t *d, u_char *out)
{
    (void) SHA256_Final(out, digest_sha(d));
}
