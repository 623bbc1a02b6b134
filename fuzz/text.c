
/*
 * Text: folded as a simple and slow way does it, once as twice, whole as in
 * pieces; no white space is left at the ends or in a row.
 */


#include "fuzz.h"


static size_t fold(u_char *dst, const uint8_t *data, size_t size,
    size_t piece);
static size_t simple_fold(u_char *dst, const uint8_t *data, size_t size);


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t                    i, len;
    u_char                   *once, *again;
    ngx_pool_t               *pool;
    fuzz_digest_t             plain, other;
    ngx_idempotency_canon_t   c;
    ngx_idempotency_fold_t    f;

    pool = fuzz_pool();

    once = ngx_palloc(pool, size + 1);
    again = ngx_palloc(pool, size + 1);

    len = fold(once, data, size, size);
    hold(len <= size);
    hold(len == 0 || (once[0] != ' ' && once[len - 1] != ' '));

    hold(simple_fold(again, data, size) == len
         && ngx_memcmp(once, again, len) == 0);

    for (i = 1; i < len; i++) {
        hold(once[i] != ' ' || once[i - 1] != ' ');
        hold(once[i] == ' ' || once[i] < '\t' || once[i] > '\r');
    }

    for (i = 1; i < 6; i++) {
        hold(fold(again, data, size, i) == len
             && ngx_memcmp(once, again, len) == 0);
    }

    /* in place */

    ngx_memcpy(again, data, size);
    ngx_idempotency_fold_init(&f);
    i = ngx_idempotency_fold_end(&f, ngx_idempotency_fold(&f, again, again,
                                                          size))
        - again;
    hold(i == len && ngx_memcmp(once, again, len) == 0);

    hold(fold(again, once, len, len) <= len);

    c.flags = NGX_IDEMPOTENCY_CANON_TEXT;
    c.ignore = NULL;

    plain = fuzz_body(&ngx_idempotency_text_kind, &c, data, size);

    again = ngx_palloc(pool, size + 2);
    again[0] = '\n';
    ngx_memcpy(again + 1, data, size);
    other = fuzz_body(&ngx_idempotency_text_kind, &c, again, size + 1);
    hold(fuzz_equal(&plain, &other));

    return 0;
}


static size_t
fold(u_char *dst, const uint8_t *data, size_t size, size_t piece)
{
    size_t                  n;
    u_char                 *out, *last;
    ngx_idempotency_fold_t  f;

    out = dst;
    ngx_idempotency_fold_init(&f);

    for ( /* void */ ; size; size -= n, data += n) {
        n = ngx_min(piece, size);
        last = ngx_idempotency_fold(&f, out, fuzz_copy(data, n), n);
        hold(last <= out + n + NGX_IDEMPOTENCY_FOLD_MORE);
        out = last;
    }

    return ngx_idempotency_fold_end(&f, out) - dst;
}


static size_t
simple_fold(u_char *dst, const uint8_t *data, size_t size)
{
    size_t      i, n;
    u_char     *p;
    ngx_uint_t  k, space;

    static char  *white[] = {
        "\t", "\n", "\v", "\f", "\r", " ", "\xc2\x85", "\xc2\xa0",
        "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81", "\xe2\x80\x82",
        "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86",
        "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89", "\xe2\x80\x8a",
        "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f",
        "\xe3\x80\x80", NULL
    };

    p = dst;
    space = 0;

    for (i = 0; i < size; i += n) {

        n = 1;

        for (k = 0; white[k]; k++) {
            if (size - i >= ngx_strlen(white[k])
                && ngx_memcmp(data + i, white[k], ngx_strlen(white[k])) == 0)
            {
                n = ngx_strlen(white[k]);
                break;
            }
        }

        if (white[k]) {
            space = 1;
            continue;
        }

        if (space && p != dst) {
            *p++ = ' ';
        }

        space = 0;
        *p++ = data[i];
    }

    return p - dst;
}
