
/*
 * Digests by SHA-256, or by HMAC-SHA-256 where there is a key, over a
 * versioned and length-prefixed encoding that is equal on every machine.
 * Nothing here knows requests, reads a clock or allocates.
 */


#ifndef _NGX_IDEMPOTENCY_DIGEST_H_INCLUDED_
#define _NGX_IDEMPOTENCY_DIGEST_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


#define NGX_IDEMPOTENCY_DIGEST_LEN  32

/* The version of all encodings that requests are compared by, and of the
   built-in list of cookies.  It stays 1 until the first release. */

#define NGX_IDEMPOTENCY_FINGERPRINT_VERSION  1

/* versions of all other encodings, tokens above all: they never change */

#define NGX_IDEMPOTENCY_DIGEST_TOKEN_VERSION  0
#define NGX_IDEMPOTENCY_DIGEST_OTHER_VERSION  1


/* Kinds of digested content: two kinds never give the same digest.  Only a part
   of a multipart form has a location's letter: the two are never compared. */

#define NGX_IDEMPOTENCY_DIGEST_TOKEN        'T'
#define NGX_IDEMPOTENCY_DIGEST_FINGERPRINT  'F'
#define NGX_IDEMPOTENCY_DIGEST_BODY         'B'
#define NGX_IDEMPOTENCY_DIGEST_CONTENT      'C'
#define NGX_IDEMPOTENCY_DIGEST_SIMILAR      'S'
#define NGX_IDEMPOTENCY_DIGEST_QUOTA        'Q'
#define NGX_IDEMPOTENCY_DIGEST_IDENTITY     'I'
#define NGX_IDEMPOTENCY_DIGEST_SETTINGS     'E'
#define NGX_IDEMPOTENCY_DIGEST_LOCATION     'P'
#define NGX_IDEMPOTENCY_DIGEST_STAMP        'K'


/* room for libcrypto's running state, which only digest.c knows */

#define NGX_IDEMPOTENCY_DIGEST_SHA          14

/*
 * The HMAC states behind the inner and the outer key block: with these a
 * digest with a key costs one block more than one without.  They are as secret
 * as the key.
 */

typedef struct {
    uint64_t                             inner[NGX_IDEMPOTENCY_DIGEST_SHA];
    uint64_t                             outer[NGX_IDEMPOTENCY_DIGEST_SHA];
} ngx_idempotency_digest_key_t;

typedef struct {
    uint64_t                             sha[NGX_IDEMPOTENCY_DIGEST_SHA];
    const ngx_idempotency_digest_key_t  *key;
} ngx_idempotency_digest_t;


void ngx_idempotency_digest_key(ngx_idempotency_digest_key_t *key,
    u_char *data, size_t len);

/* init: SHA-256 or, with a key, HMAC-SHA-256, behind the header of a kind;
   begin: the same without the header */

void ngx_idempotency_digest_begin(ngx_idempotency_digest_t *d,
    const ngx_idempotency_digest_key_t *key);
void ngx_idempotency_digest_init(ngx_idempotency_digest_t *d,
    const ngx_idempotency_digest_key_t *key, ngx_uint_t version, u_char kind);
void ngx_idempotency_digest_bytes(ngx_idempotency_digest_t *d, u_char *data,
    size_t len);
void ngx_idempotency_digest_field(ngx_idempotency_digest_t *d, ngx_str_t *s);
void ngx_idempotency_digest_final(ngx_idempotency_digest_t *d, u_char *out);

/* parameter: the one that has told how to read the body, and doesn't count.
   NULL: the type is a part's, whose charset counts unless it is UTF-8. */

void ngx_idempotency_digest_type(ngx_idempotency_digest_t *d,
    ngx_str_t *content_type, char *parameter);

ngx_str_t ngx_idempotency_trim(u_char *start, u_char *end);

/* without regard to letter case */

static ngx_inline ngx_uint_t
ngx_idempotency_begins(ngx_str_t *s, char *text)
{
    size_t  len;

    len = ngx_strlen(text);

    return s->len >= len
           && ngx_strncasecmp(s->data, (u_char *) text, len) == 0;
}


static ngx_inline ngx_uint_t
ngx_idempotency_equal(ngx_str_t *s, char *text)
{
    return s->len == ngx_strlen(text) && ngx_idempotency_begins(s, text);
}


/* to the letter */

static ngx_inline ngx_uint_t
ngx_idempotency_same(ngx_str_t *a, ngx_str_t *b)
{
    return a->len == b->len && ngx_memcmp(a->data, b->data, a->len) == 0;
}


static ngx_inline ngx_uint_t
ngx_idempotency_is(ngx_str_t *s, char *text)
{
    return s->len == ngx_strlen(text)
           && ngx_memcmp(s->data, text, s->len) == 0;
}


#endif /* _NGX_IDEMPOTENCY_DIGEST_H_INCLUDED_ */
