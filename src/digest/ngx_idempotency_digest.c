
/*
 * The encoding that is digested: a version, a kind, then fields, each behind
 * its length.  Bytes without a length come last.
 */


#include "ngx_idempotency_digest.h"


/*
 * The low-level functions of libcrypto need no allocation: the running state
 * is in the caller's memory, and a short digest costs a sixth of what it costs
 * through EVP.
 */

#ifndef OPENSSL_SUPPRESS_DEPRECATED
#define OPENSSL_SUPPRESS_DEPRECATED
#endif

#include <openssl/crypto.h>
#include <openssl/sha.h>


/* Before 1.21.2 nginx includes the headers of OpenSSL 3 without the macro that
   keeps them from calling SHA256_Init() and the like deprecated. */

#if (nginx_version < 1021002 && defined __GNUC__)
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#endif


/* the opaque state in the header must have room for libcrypto's */

typedef char  ngx_idempotency_digest_fits_t[
    (sizeof(SHA256_CTX) <= NGX_IDEMPOTENCY_DIGEST_SHA * sizeof(uint64_t)
     && NGX_IDEMPOTENCY_DIGEST_LEN == SHA256_DIGEST_LENGTH) ? 1 : -1];


static void digest_lower(ngx_idempotency_digest_t *d, ngx_str_t *s);
static void digest_parameter(ngx_idempotency_digest_t *d, ngx_str_t *param,
    char *used);
static ngx_str_t next_part(ngx_str_t *rest);


static ngx_inline SHA256_CTX *
digest_sha(ngx_idempotency_digest_t *d)
{
    return (SHA256_CTX *) d->sha;
}


/* RFC 2104 */

void
ngx_idempotency_digest_key(ngx_idempotency_digest_key_t *key, u_char *data,
    size_t len)
{
    u_char       pad[SHA256_CBLOCK];
    ngx_uint_t   i;
    SHA256_CTX  *inner, *outer;

    inner = (SHA256_CTX *) key->inner;
    outer = (SHA256_CTX *) key->outer;

    ngx_memzero(key, sizeof(ngx_idempotency_digest_key_t));
    ngx_memzero(pad, sizeof(pad));

    if (len > sizeof(pad)) {
        (void) SHA256_Init(inner);
        (void) SHA256_Update(inner, data, len);
        (void) SHA256_Final(pad, inner);

    } else {
        ngx_memcpy(pad, data, len);
    }

    for (i = 0; i < sizeof(pad); i++) {
        pad[i] ^= 0x36;
    }

    (void) SHA256_Init(inner);
    (void) SHA256_Update(inner, pad, sizeof(pad));

    for (i = 0; i < sizeof(pad); i++) {
        pad[i] ^= 0x36 ^ 0x5c;
    }

    (void) SHA256_Init(outer);
    (void) SHA256_Update(outer, pad, sizeof(pad));

    OPENSSL_cleanse(pad, sizeof(pad));
}


void
ngx_idempotency_digest_begin(ngx_idempotency_digest_t *d,
    const ngx_idempotency_digest_key_t *key)
{
    d->key = key;

    if (key) {
        ngx_memcpy(d->sha, key->inner, sizeof(d->sha));

    } else {
        (void) SHA256_Init(digest_sha(d));
    }
}


/* the version is encoded plus one: that of tokens, 0, as 1 */

void
ngx_idempotency_digest_init(ngx_idempotency_digest_t *d,
    const ngx_idempotency_digest_key_t *key, ngx_uint_t version, u_char kind)
{
    u_char  head[2];

    head[0] = (u_char) (version + 1);
    head[1] = kind;

    ngx_idempotency_digest_begin(d, key);

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
    u_char    text[8 + 56];
    uint64_t  len;

    len = s->len;

    /* a compiler makes one store of these lines, but not of a loop */

    text[0] = (u_char) (len >> 56);
    text[1] = (u_char) (len >> 48);
    text[2] = (u_char) (len >> 40);
    text[3] = (u_char) (len >> 32);
    text[4] = (u_char) (len >> 24);
    text[5] = (u_char) (len >> 16);
    text[6] = (u_char) (len >> 8);
    text[7] = (u_char) len;

    /* most fields are short: one call costs less than two */

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

    if (d->key) {
        ngx_memcpy(d->sha, d->key->outer, sizeof(d->sha));

        (void) SHA256_Update(digest_sha(d), out, SHA256_DIGEST_LENGTH);
        (void) SHA256_Final(out, digest_sha(d));
    }
}


/*
 * The media type as a part of the digest.  Letter case of the type and of
 * parameters' names doesn't count, nor does white space around them.  The
 * request's charset doesn't count, as servers ignore it.  A part's charset
 * counts, as some servers decode the part's value by it.
 */

void
ngx_idempotency_digest_type(ngx_idempotency_digest_t *d,
    ngx_str_t *content_type, char *parameter)
{
    ngx_str_t  rest, part;

    rest = *content_type;

    part = next_part(&rest);
    digest_lower(d, &part);

    while (rest.len) {
        part = next_part(&rest);

        if (part.len) {
            digest_parameter(d, &part, parameter);
        }
    }

    ngx_idempotency_digest_bytes(d, (u_char *) ".", 1);
}


static void
digest_parameter(ngx_idempotency_digest_t *d, ngx_str_t *param, char *used)
{
    u_char     *p, *end;
    ngx_str_t   name, value;

    end = param->data + param->len;

    p = ngx_strlchr(param->data, end, '=');
    if (p == NULL) {
        p = end;
    }

    name = ngx_idempotency_trim(param->data, p);
    value = ngx_idempotency_trim(p < end ? p + 1 : end, end);

    if (used && ngx_idempotency_equal(&name, used)) {
        return;
    }

    if (ngx_idempotency_equal(&name, "charset")
        && (used || ngx_idempotency_equal(&value, "utf-8")))
    {
        return;
    }

    ngx_idempotency_digest_bytes(d, (u_char *) ";", 1);
    digest_lower(d, &name);
    ngx_idempotency_digest_field(d, &value);
}


static void
digest_lower(ngx_idempotency_digest_t *d, ngx_str_t *s)
{
    u_char     buf[64];
    ngx_str_t  lower;

    if (s->len > sizeof(buf)) {
        /* no registered name is so long: it is digested as it is written */
        ngx_idempotency_digest_field(d, s);
        return;
    }

    ngx_strlow(buf, s->data, s->len);

    lower.len = s->len;
    lower.data = buf;

    ngx_idempotency_digest_field(d, &lower);
}


/* a parameter ends at the next semicolon outside of a quoted string */

static ngx_str_t
next_part(ngx_str_t *rest)
{
    u_char      *p, *start, *end;
    ngx_uint_t   quoted;

    quoted = 0;
    start = rest->data;
    end = start + rest->len;

    for (p = start; p < end; p++) {

        if (*p == '"') {
            quoted = !quoted;

        } else if (*p == '\\' && quoted && p + 1 < end) {
            p++;

        } else if (*p == ';' && !quoted) {
            break;
        }
    }

    rest->data = (p < end) ? p + 1 : end;
    rest->len = end - rest->data;

    return ngx_idempotency_trim(start, p);
}


/* the text without white space around it */

ngx_str_t
ngx_idempotency_trim(u_char *start, u_char *end)
{
    ngx_str_t  s;

    while (start < end && (*start == ' ' || *start == '\t')) {
        start++;
    }

    while (start < end && (end[-1] == ' ' || end[-1] == '\t')) {
        end--;
    }

    s.data = start;
    s.len = end - start;

    return s;
}
