
/*
 * For the files of digest/ alone: the buffer before the digest, the order of
 * names, folded white space, names that are left out, fields that are wanted.
 */


#ifndef _NGX_IDEMPOTENCY_ENCODE_H_INCLUDED_
#define _NGX_IDEMPOTENCY_ENCODE_H_INCLUDED_


#include "ngx_idempotency_kinds.h"


/* collects short pieces, as a digest is fast in long ones only */

typedef struct {
    u_char                    *pos;
    ngx_idempotency_digest_t  *digest;
    u_char                     buf[4096];
} ngx_idempotency_sink_t;


/*
 * A name to be sorted: its next 8 bytes, with small letters, and the index of
 * the item that it names.  The item knows the place of all its bytes: so the
 * names of a large object take little memory.
 */

typedef struct {
    uint64_t                   prefix;
    uint32_t                   len;
    uint32_t                   index;
} ngx_idempotency_name_t;


/*
 * Where the names' bytes are: an index counts items of stride bytes.  The first
 * 4 bytes of an item are a place in data or, from size on, in scratch.
 */

typedef struct {
    u_char                    *data;
    u_char                    *scratch;
    uint32_t                   size;
    size_t                     stride;
    u_char                    *items;
    ngx_uint_t                 alike;     /* two are the same name */
} ngx_idempotency_names_t;


/* white space that began in one piece may end in another */

typedef struct {
    u_char                     held[2];
    unsigned                   nheld:2;
    unsigned                   space:1;
    unsigned                   started:1;
} ngx_idempotency_fold_t;

#define NGX_IDEMPOTENCY_FOLD_MORE  3

#define NGX_IDEMPOTENCY_BOUNDARY   70

/* masks for 8 bytes in one number */

#define NGX_IDEMPOTENCY_EACH_BYTE  0x0101010101010101ULL
#define NGX_IDEMPOTENCY_HIGH_BITS  0x8080808080808080ULL


/* the path of a name that is left out: one token, or those of a JSON pointer */

typedef struct {
    ngx_uint_t                 ntokens;
    ngx_str_t                 *tokens;
    ngx_uint_t                 pointer;
} ngx_idempotency_path_t;


void ngx_idempotency_sink_init(ngx_idempotency_sink_t *s,
    ngx_idempotency_digest_t *d, u_char kind);
void ngx_idempotency_sink_flush(ngx_idempotency_sink_t *s);
void ngx_idempotency_sink_bytes(ngx_idempotency_sink_t *s, u_char *data,
    size_t len);
u_char *ngx_idempotency_length(u_char *p, size_t len);

ngx_uint_t ngx_idempotency_names_sort(ngx_idempotency_names_t *s,
    ngx_idempotency_name_t *names, ngx_idempotency_name_t *tmp, ngx_uint_t n);

ngx_str_t ngx_idempotency_group(ngx_str_t *name);

void ngx_idempotency_fold_init(ngx_idempotency_fold_t *f);
u_char *ngx_idempotency_fold(ngx_idempotency_fold_t *f, u_char *dst,
    u_char *src, size_t len);
u_char *ngx_idempotency_fold_end(ngx_idempotency_fold_t *f, u_char *dst);

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


static ngx_inline void
ngx_idempotency_sink_byte(ngx_idempotency_sink_t *s, u_char c)
{
    if (s->pos == s->buf + sizeof(s->buf)) {
        ngx_idempotency_sink_flush(s);
    }

    *s->pos++ = c;
}


/* a letter, if any, a length and as many bytes */

static ngx_inline void
ngx_idempotency_sink_field(ngx_idempotency_sink_t *s, u_char letter,
    u_char *data, size_t len)
{
    u_char  *p, head[1 + 10];

    if (len < 0x80
        && (size_t) (s->buf + sizeof(s->buf) - s->pos) >= len + 2)
    {
        p = s->pos;

        if (letter) {
            *p++ = letter;
        }

        *p++ = (u_char) len;
        s->pos = ngx_cpymem(p, data, len);

        return;
    }

    head[0] = letter;
    p = ngx_idempotency_length(head + 1, len);

    if (letter) {
        ngx_idempotency_sink_bytes(s, head, p - head);

    } else {
        ngx_idempotency_sink_bytes(s, head + 1, p - (head + 1));
    }

    ngx_idempotency_sink_bytes(s, data, len);
}


static ngx_inline uint32_t
ngx_idempotency_be32(u_char *p)
{
    return (uint32_t) p[0] << 24 | (uint32_t) p[1] << 16
           | (uint32_t) p[2] << 8 | (uint32_t) p[3];
}


/*
 * The first 8 bytes as a number, with small letters.  It decides most
 * comparisons.  A byte is one of "A" to "Z" if the first sum sets its high bit
 * and the second one doesn't.
 */

static ngx_inline uint64_t
ngx_idempotency_prefix(u_char *p, uint32_t len)
{
    uint64_t  prefix, ascii, capital;

    if (len >= 8) {
        prefix = (uint64_t) ngx_idempotency_be32(p) << 32
                 | ngx_idempotency_be32(p + 4);

    } else if (len >= 4) {
        /* the two halves may overlap, and are the same there */
        prefix = (uint64_t) ngx_idempotency_be32(p) << 32
                 | (uint64_t) ngx_idempotency_be32(p + len - 4)
                   << (8 * (8 - len));

    } else if (len) {
        prefix = (uint64_t) p[0] << 56
                 | (uint64_t) p[len / 2] << (56 - 8 * (len / 2))
                 | (uint64_t) p[len - 1] << (56 - 8 * (len - 1));

    } else {
        return 0;
    }

    ascii = prefix & ~NGX_IDEMPOTENCY_HIGH_BITS;
    capital = (ascii + NGX_IDEMPOTENCY_EACH_BYTE * (0x80 - 'A'))
              & ~(ascii + NGX_IDEMPOTENCY_EACH_BYTE * (0x7f - 'Z'))
              & ~prefix & NGX_IDEMPOTENCY_HIGH_BITS;

    return prefix | capital >> 2;
}


/* the order of names: by their bytes, but "A" to "Z" are "a" to "z" */

static ngx_inline int
ngx_idempotency_name_cmp(u_char *a, uint32_t alen, u_char *b, uint32_t blen)
{
    uint32_t  i, min;
    uint64_t  x, y;

    min = ngx_min(alen, blen);

    /* the first letter mostly decides */

    if (min) {
        x = ngx_tolower(*a);
        y = ngx_tolower(*b);

        if (x != y) {
            return (x < y) ? -1 : 1;
        }
    }

    for (i = 0; i < min; i += 8) {
        x = ngx_idempotency_prefix(a + i, alen - i);
        y = ngx_idempotency_prefix(b + i, blen - i);

        if (x != y) {
            return (x < y) ? -1 : 1;
        }
    }

    return (alen > blen) - (alen < blen);
}


static ngx_inline void
ngx_idempotency_name_set(ngx_idempotency_name_t *name, u_char *data,
    uint32_t len, uint32_t index)
{
    name->prefix = ngx_idempotency_prefix(data, len);
    name->len = len;
    name->index = index;
}


/* fields that are looked for */

void ngx_idempotency_field_begin(ngx_idempotency_fields_t *f);
void ngx_idempotency_field_put(ngx_idempotency_fields_t *f, u_char *data,
    size_t len);
void ngx_idempotency_field_end(ngx_idempotency_fields_t *f, ngx_uint_t state);


/* the letter of a variable's name that stands for this byte of a field's */

static ngx_inline u_char
ngx_idempotency_field_class(u_char c)
{
    if (c >= '0' && c <= '9') {
        return c;
    }

    c |= 0x20;

    return (c >= 'a' && c <= 'z') ? c : '_';
}


static ngx_inline void
ngx_idempotency_field_name(ngx_idempotency_fields_t *f, u_char c)
{
    if (f->name_len < f->longest) {
        f->name[f->name_len++] = ngx_idempotency_field_class(c);
        return;
    }

    /* no wanted name is as long */
    f->name_len = f->longest + 1;
}


#endif /* _NGX_IDEMPOTENCY_ENCODE_H_INCLUDED_ */
