
/*
 * The encoding that is digested: a version, a kind, then fields, each behind
 * its length.  What is streamed without a length comes last.
 */


#include "ngx_idempotency_digest.h"


void
ngx_idempotency_digest_init(ngx_idempotency_digest_t *d, u_char kind)
{
    u_char  head[2];

    head[0] = NGX_IDEMPOTENCY_DIGEST_VERSION;
    head[1] = kind;

    (void) SHA256_Init(&d->sha);
    (void) SHA256_Update(&d->sha, head, sizeof(head));
}


void
ngx_idempotency_digest_bytes(ngx_idempotency_digest_t *d, u_char *data,
    size_t len)
{
    (void) SHA256_Update(&d->sha, data, len);
}


void
ngx_idempotency_digest_field(ngx_idempotency_digest_t *d, ngx_str_t *s)
{
    u_char      head[8];
    uint64_t    len;
    ngx_uint_t  i;

    len = s->len;

    for (i = 0; i < sizeof(head); i++) {
        head[i] = (u_char) (len >> (56 - 8 * i));
    }

    (void) SHA256_Update(&d->sha, head, sizeof(head));
    (void) SHA256_Update(&d->sha, s->data, s->len);
}


void
ngx_idempotency_digest_final(ngx_idempotency_digest_t *d, u_char *out)
{
    (void) SHA256_Final(out, &d->sha);
}
