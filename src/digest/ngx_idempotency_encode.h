
/*
 * For the files of digest/ alone: the buffer in front of a digest, the order
 * of names, folded white space, ignored names, wanted fields.
 */


#ifndef _NGX_IDEMPOTENCY_ENCODE_H_INCLUDED_
#define _NGX_IDEMPOTENCY_ENCODE_H_INCLUDED_


#include "ngx_idempotency_kinds.h"


/* collects short pieces: a digest is fast with long ones only */

typedef struct {
    u_char                    *pos;
    ngx_idempotency_digest_t  *digest;
    u_char                     buf[4096];
} ngx_idempotency_sink_t;


/* so many bytes at the place of a name can be read, even if it is shorter */

#define NGX_IDEMPOTENCY_NAME_PREFIX  4


/* A name to be sorted: its first 4 bytes in small letters, its place in an
   encoding, and the index of the field, part or member that it names. */

typedef struct {
    uint32_t                   prefix;
    uint32_t                   place;
    uint32_t                   len;
    uint32_t                   index;
} ngx_idempotency_name_t;


/* white space may begin in one piece of the body and end in another */

typedef struct {
    u_char                     held[3];
    unsigned                   nheld:2;
    unsigned                   space:1;
    unsigned                   started:1;
} ngx_idempotency_fold_t;

#define NGX_IDEMPOTENCY_FOLD_MORE  3

#define NGX_IDEMPOTENCY_BOUNDARY   70

/* masks for 8 bytes in one number */

#define NGX_IDEMPOTENCY_EACH_BYTE  0x0101010101010101ULL
#define NGX_IDEMPOTENCY_HIGH_BITS  0x8080808080808080ULL


/* the path of an ignored name: one token, or the tokens of a JSON pointer */

typedef struct {
    ngx_uint_t                 ntokens;
    ngx_str_t                 *tokens;
    ngx_uint_t                 pointer;
} ngx_idempotency_path_t;


void ngx_idempotency_sink_init(ngx_idempotency_sink_t *s,
    ngx_idempotency_digest_t *d);
void ngx_idempotency_sink_flush(ngx_idempotency_sink_t *s);
void ngx_idempotency_sink_bytes(ngx_idempotency_sink_t *s, u_char *data,
    size_t len);
u_char *ngx_idempotency_length(u_char *p, size_t len);
u_char *ngx_idempotency_put_length(u_char *p, u_char *data, size_t len);

ngx_uint_t ngx_idempotency_names_alike(u_char *base, ngx_idempotency_name_t *a,
    ngx_idempotency_name_t *b);
ngx_uint_t ngx_idempotency_names_sort(u_char *base,
    ngx_idempotency_name_t *names, ngx_idempotency_name_t *tmp, ngx_uint_t n);

ngx_str_t ngx_idempotency_group(ngx_str_t *name);

void ngx_idempotency_fold_init(ngx_idempotency_fold_t *f);
u_char *ngx_idempotency_fold(ngx_idempotency_fold_t *f, u_char *dst,
    u_char *src, size_t len);
u_char *ngx_idempotency_fold_end(ngx_idempotency_fold_t *f, u_char *dst);

void ngx_idempotency_fold_digest(ngx_idempotency_fold_t *f,
    ngx_idempotency_digest_t *d, u_char *data, size_t len);
void ngx_idempotency_fold_digest_end(ngx_idempotency_fold_t *f,
    ngx_idempotency_digest_t *d);

ngx_uint_t ngx_idempotency_ignored(ngx_idempotency_canon_t *c,
    u_char *name, size_t len);

ngx_int_t ngx_idempotency_parameter(u_char **pos, u_char *end,
    ngx_str_t *name, ngx_str_t *value);


static ngx_inline ngx_int_t
ngx_idempotency_hex(u_char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }

    c |= 0x20;

    return (c >= 'a' && c <= 'f') ? c - 'a' + 10 : NGX_ERROR;
}


/* "A" to "Z" become small letters */

static ngx_inline uint64_t
ngx_idempotency_lower(uint64_t bytes)
{
    uint64_t  ascii, capital;

    /* A byte is one of "A" to "Z" if the first sum sets its high bit and the
       second one doesn't. */

    ascii = bytes & ~NGX_IDEMPOTENCY_HIGH_BITS;
    capital = (ascii + NGX_IDEMPOTENCY_EACH_BYTE * (0x80 - 'A'))
              & ~(ascii + NGX_IDEMPOTENCY_EACH_BYTE * (0x7f - 'Z'))
              & ~bytes & NGX_IDEMPOTENCY_HIGH_BITS;

    return bytes | capital >> 2;
}


static ngx_inline void
ngx_idempotency_name_set(ngx_idempotency_name_t *name, u_char *base,
    uint32_t place, uint32_t len, uint32_t index)
{
    u_char    *p;
    uint32_t   prefix;

    p = base + place;

    prefix = (uint32_t) p[0] << 24 | (uint32_t) p[1] << 16
             | (uint32_t) p[2] << 8 | (uint32_t) p[3];

    if (len < NGX_IDEMPOTENCY_NAME_PREFIX) {
        prefix &= ~(0xffffffff >> (8 * len));
    }

    name->prefix = (uint32_t) ngx_idempotency_lower(prefix);
    name->place = place;
    name->len = len;
    name->index = index;
}


/* wanted fields */

void ngx_idempotency_field_name(ngx_idempotency_fields_t *f, u_char *data,
    size_t len);
ngx_int_t ngx_idempotency_field_begin(ngx_idempotency_fields_t *f);
void ngx_idempotency_field_put(ngx_idempotency_fields_t *f, u_char *data,
    size_t len);
ngx_int_t ngx_idempotency_field_decode(ngx_idempotency_fields_t *f);
void ngx_idempotency_field_end(ngx_idempotency_fields_t *f, ngx_uint_t state);


/* a byte of a field's name, as variables' names have it */

static ngx_inline u_char
ngx_idempotency_field_class(u_char c)
{
    if (c >= '0' && c <= '9') {
        return c;
    }

    c |= 0x20;

    return (c >= 'a' && c <= 'z') ? c : '_';
}


#endif /* _NGX_IDEMPOTENCY_ENCODE_H_INCLUDED_ */
