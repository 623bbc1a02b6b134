
/*
 * Text: each run of Unicode white space becomes one space, and none at the
 * ends.  Bytes that are not UTF-8 are not white space.
 */


#include "ngx_idempotency_encode.h"


typedef enum {
    fold_space = 1,        /* white space */
    fold_lead              /* the first byte of longer white space */
} fold_class_e;


static ngx_int_t text_matches(ngx_str_t *type, u_char *pos, u_char *end,
    ngx_str_t *boundary);
static ngx_int_t text_whole(ngx_idempotency_digest_t *d,
    ngx_idempotency_canon_t *c, u_char *data, size_t len, ngx_pool_t *pool);
static ngx_uint_t text_encoding(u_char *pos, u_char *end);
static ngx_uint_t fold_seen(u_char *p, size_t len);
static u_char *fold_out(ngx_idempotency_fold_t *f, u_char *dst, u_char c);


static u_char  fold_class[256] = {
    [0x09] = fold_space, [0x0a] = fold_space, [0x0b] = fold_space,
    [0x0c] = fold_space, [0x0d] = fold_space, [0x20] = fold_space,
    [0xc2] = fold_lead, [0xe1] = fold_lead, [0xe2] = fold_lead,
    [0xe3] = fold_lead
};


/* white space of three bytes; U+0085 and U+00A0 have two */

static const struct {
    u_char  bytes[3];
    u_char  last;
} fold_spaces[] = {
    { { 0xe2, 0x80, 0x80 }, 0x8a },     /* U+2000 to U+200A */
    { { 0xe2, 0x80, 0xa8 }, 0xa9 },     /* U+2028, U+2029 */
    { { 0xe2, 0x80, 0xaf }, 0xaf },     /* U+202F */
    { { 0xe2, 0x81, 0x9f }, 0x9f },     /* U+205F */
    { { 0xe3, 0x80, 0x80 }, 0x80 },     /* U+3000 */
    { { 0xe1, 0x9a, 0x80 }, 0x80 }      /* U+1680 */
};


void
ngx_idempotency_fold_init(ngx_idempotency_fold_t *f)
{
    f->nheld = 0;
    f->space = 0;
    f->started = 0;
}


/* Writes at most len + NGX_IDEMPOTENCY_FOLD_MORE bytes to dst.  If nothing is
   held from a previous piece, dst may be src. */

u_char *
ngx_idempotency_fold(ngx_idempotency_fold_t *f, u_char *dst, u_char *src,
    size_t len)
{
    u_char      c, *end;
    ngx_uint_t  i, n;

    end = src + len;

    while (src < end) {

        c = *src++;

        if (f->nheld == 0 && fold_class[c] != fold_lead) {

            if (fold_class[c] == fold_space) {
                f->space = 1;

            } else {
                dst = fold_out(f, dst, c);
            }

            continue;
        }

        f->held[f->nheld++] = c;

        switch (fold_seen(f->held, f->nheld)) {

        case 2:
            /* white space */
            f->nheld = 0;
            f->space = 1;
            break;

        case 1:
            /* white space may begin with these */
            break;

        default:
            /* the held bytes are no white space; this byte is read again */

            n = f->nheld - 1;
            f->nheld = 0;
            src--;

            for (i = 0; i < n; i++) {
                dst = fold_out(f, dst, f->held[i]);
            }
        }
    }

    return dst;
}


u_char *
ngx_idempotency_fold_end(ngx_idempotency_fold_t *f, u_char *dst)
{
    ngx_uint_t  i, n;

    n = f->nheld;
    f->nheld = 0;

    for (i = 0; i < n; i++) {
        dst = fold_out(f, dst, f->held[i]);
    }

    return dst;
}


void
ngx_idempotency_fold_digest(ngx_idempotency_fold_t *f,
    ngx_idempotency_digest_t *d, u_char *data, size_t len)
{
    size_t  n;
    u_char  buf[4096], *last;

    while (len) {
        n = ngx_min(len, sizeof(buf) - NGX_IDEMPOTENCY_FOLD_MORE);

        last = ngx_idempotency_fold(f, buf, data, n);
        ngx_idempotency_digest_bytes(d, buf, last - buf);

        data += n;
        len -= n;
    }
}


void
ngx_idempotency_fold_digest_end(ngx_idempotency_fold_t *f,
    ngx_idempotency_digest_t *d)
{
    u_char  rest[NGX_IDEMPOTENCY_FOLD_MORE];

    ngx_idempotency_digest_bytes(d, rest,
                                 ngx_idempotency_fold_end(f, rest) - rest);
}


const ngx_idempotency_kind_t  ngx_idempotency_text_kind = {
    .name = ngx_string("text"),
    .flag = NGX_IDEMPOTENCY_CANON_TEXT,
    .parameter = "charset",
    .matches = text_matches,
    .whole = text_whole
};


static ngx_int_t
text_matches(ngx_str_t *type, u_char *pos, u_char *end, ngx_str_t *boundary)
{
    if (!ngx_idempotency_equal(type, "text/plain")) {
        return NGX_DECLINED;
    }

    return text_encoding(pos, end) ? NGX_OK : NGX_ERROR;
}


/* White space is that of ASCII and UTF-8.  In other encodings of several bytes
   a character the same bytes mean something else. */

static ngx_uint_t
text_encoding(u_char *pos, u_char *end)
{
    ngx_int_t  rc;
    ngx_str_t  name, value;

    while ((rc = ngx_idempotency_parameter(&pos, end, &name, &value))
           == NGX_OK)
    {

        if (ngx_idempotency_equal(&name, "charset")
            && (ngx_idempotency_begins(&value, "utf")
                || ngx_idempotency_begins(&value, "ucs")
                || ngx_idempotency_begins(&value, "iso-10646"))
            && !ngx_idempotency_equal(&value, "utf-8")
            && !ngx_idempotency_equal(&value, "utf8"))
        {
            return 0;
        }
    }

    return rc == NGX_DONE;
}


static ngx_int_t
text_whole(ngx_idempotency_digest_t *d, ngx_idempotency_canon_t *c,
    u_char *data, size_t len, ngx_pool_t *pool)
{
    ngx_idempotency_fold_t  f;

    ngx_idempotency_digest_bytes(d, (u_char *) "T", 1);

    ngx_idempotency_fold_init(&f);
    ngx_idempotency_fold_digest(&f, d, data, len);
    ngx_idempotency_fold_digest_end(&f, d);

    return NGX_OK;
}


/* 2: these bytes are white space; 1: they may begin with white space */

static ngx_uint_t
fold_seen(u_char *p, size_t len)
{
    ngx_uint_t  i;

    if (p[0] == 0xc2) {
        return (len == 1) ? 1 : (p[1] == 0x85 || p[1] == 0xa0) ? 2 : 0;
    }

    for (i = 0; i < sizeof(fold_spaces) / sizeof(fold_spaces[0]); i++) {

        if (p[0] != fold_spaces[i].bytes[0]
            || (len > 1 && p[1] != fold_spaces[i].bytes[1]))
        {
            continue;
        }

        if (len < 3) {
            return 1;
        }

        if (p[2] >= fold_spaces[i].bytes[2] && p[2] <= fold_spaces[i].last) {
            return 2;
        }
    }

    return 0;
}


static u_char *
fold_out(ngx_idempotency_fold_t *f, u_char *dst, u_char c)
{
    if (f->space) {
        f->space = 0;

        if (f->started) {
            *dst++ = ' ';
        }
    }

    f->started = 1;
    *dst++ = c;

    return dst;
}
