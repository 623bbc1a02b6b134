
/*
 * The buffer before the digest, and the order of names.
 */


#include "ngx_idempotency_encode.h"


#define SORT_RUN  8


static void sort_run(ngx_idempotency_name_t *names, ngx_uint_t n);
static void sort_merge(ngx_idempotency_name_t *to,
    ngx_idempotency_name_t *from, ngx_uint_t n, ngx_uint_t width);


void
ngx_idempotency_sink_init(ngx_idempotency_sink_t *s,
    ngx_idempotency_digest_t *d, u_char kind)
{
    s->digest = d;
    s->pos = s->buf;
    *s->pos++ = kind;
}


void
ngx_idempotency_sink_flush(ngx_idempotency_sink_t *s)
{
    ngx_idempotency_digest_bytes(s->digest, s->buf, s->pos - s->buf);
    s->pos = s->buf;
}


void
ngx_idempotency_sink_bytes(ngx_idempotency_sink_t *s, u_char *data,
    size_t len)
{
    if (len > (size_t) (s->buf + sizeof(s->buf) - s->pos)) {
        ngx_idempotency_sink_flush(s);

        if (len > sizeof(s->buf)) {
            ngx_idempotency_digest_bytes(s->digest, data, len);
            return;
        }
    }

    s->pos = ngx_cpymem(s->pos, data, len);
}


/* 7 bits a byte, the highest first */

u_char *
ngx_idempotency_length(u_char *p, size_t len)
{
    ngx_uint_t  shift;

    for (shift = 0; len >> shift > 0x7f; shift += 7) { /* void */ }

    while (shift) {
        *p++ = (u_char) (0x80 | (len >> shift));
        shift -= 7;
    }

    *p++ = (u_char) (len & 0x7f);

    return p;
}


int
ngx_idempotency_name_cmp(ngx_idempotency_name_t *a,
    ngx_idempotency_name_t *b)
{
    int     rc;
    size_t  min;

    if (a->prefix != b->prefix) {
        return (a->prefix < b->prefix) ? -1 : 1;
    }

    min = ngx_min(a->len, b->len);

    if (min > 8) {
        rc = ngx_memcmp(a->name + 8, b->name + 8, min - 8);

        if (rc != 0) {
            return rc;
        }
    }

    /* with 8 bytes or less the one is the beginning of the other */

    return (a->len > b->len) - (a->len < b->len);
}


/*
 * Stable, and n log n in the worst case.  What is sorted already takes one
 * look at each.  There must be room for as many in tmp.
 */

void
ngx_idempotency_names_sort(ngx_idempotency_name_t *names,
    ngx_idempotency_name_t *tmp, ngx_uint_t n)
{
    ngx_uint_t               i, width;
    ngx_idempotency_name_t  *from, *to;

    for (i = 1; i < n; i++) {
        if (ngx_idempotency_name_cmp(&names[i - 1], &names[i]) > 0) {
            break;
        }
    }

    if (i >= n) {
        return;
    }

    for (i = 0; i < n; i += SORT_RUN) {
        sort_run(&names[i], ngx_min(n - i, SORT_RUN));
    }

    from = names;
    to = tmp;

    for (width = SORT_RUN; width < n; width *= 2) {

        for (i = 0; i < n; i += 2 * width) {
            sort_merge(&to[i], &from[i], ngx_min(n - i, 2 * width), width);
        }

        to = from;
        from = (from == names) ? tmp : names;
    }

    if (from == tmp) {
        ngx_memcpy(names, tmp, n * sizeof(ngx_idempotency_name_t));
    }
}


static void
sort_run(ngx_idempotency_name_t *names, ngx_uint_t n)
{
    ngx_uint_t              i, k;
    ngx_idempotency_name_t  name;

    for (i = 1; i < n; i++) {

        name = names[i];

        for (k = i; k > 0; k--) {
            if (ngx_idempotency_name_cmp(&names[k - 1], &name) <= 0) {
                break;
            }

            names[k] = names[k - 1];
        }

        names[k] = name;
    }
}


/* two sorted runs, the first one of this width, the second one up to n */

static void
sort_merge(ngx_idempotency_name_t *to, ngx_idempotency_name_t *from,
    ngx_uint_t n, ngx_uint_t width)
{
    ngx_idempotency_name_t  *a, *b, *a_end, *b_end;

    a = from;
    a_end = from + ngx_min(width, n);
    b = a_end;
    b_end = from + n;

    while (a < a_end && b < b_end) {
        *to++ = (ngx_idempotency_name_cmp(a, b) <= 0) ? *a++ : *b++;
    }

    while (a < a_end) {
        *to++ = *a++;
    }

    while (b < b_end) {
        *to++ = *b++;
    }
}
