
/*
 * The buffer before the digest, and the order of names.
 */


#include "ngx_idempotency_encode.h"


#define NGX_IDEMPOTENCY_SORT_RUN    8
#define NGX_IDEMPOTENCY_SORT_MERGE  256    /* more are sorted by their bytes */


static void sort_names(ngx_idempotency_names_t *s,
    ngx_idempotency_name_t *names, ngx_idempotency_name_t *tmp, ngx_uint_t n,
    uint32_t depth);
static ngx_uint_t sort_alike(ngx_idempotency_names_t *s,
    ngx_idempotency_name_t *names, ngx_uint_t n, uint32_t depth);
static void sort_radix(ngx_idempotency_name_t *names,
    ngx_idempotency_name_t *tmp, ngx_uint_t n, uint32_t depth);
static void sort_short(ngx_idempotency_names_t *s,
    ngx_idempotency_name_t *names, ngx_idempotency_name_t *tmp, ngx_uint_t n,
    uint32_t depth);
static void sort_run(ngx_idempotency_names_t *s,
    ngx_idempotency_name_t *names, ngx_uint_t n, uint32_t depth);
static void sort_merge(ngx_idempotency_names_t *s,
    ngx_idempotency_name_t *to, ngx_idempotency_name_t *from, ngx_uint_t n,
    ngx_uint_t width, uint32_t depth);


static u_char  group_end[256] = {
    ['\0'] = 1, [' '] = 1, ['.'] = 1, ['['] = 1, ['_'] = 1
};


static ngx_inline u_char *
sort_name(ngx_idempotency_names_t *s, uint32_t index)
{
    uint32_t  place;

    place = *(uint32_t *) (s->items + index * s->stride);

    return (place < s->size) ? s->data + place
                             : s->scratch + (place - s->size);
}


/* of names that are alike up to this depth, where their prefixes begin */

static ngx_inline int
sort_cmp(ngx_idempotency_names_t *s, ngx_idempotency_name_t *a,
    ngx_idempotency_name_t *b, uint32_t depth)
{
    int  rc;

    if (a->prefix != b->prefix) {
        return (a->prefix < b->prefix) ? -1 : 1;
    }

    depth += 8;

    if (a->len > depth && b->len > depth) {
        rc = ngx_idempotency_name_cmp(sort_name(s, a->index) + depth,
                                      a->len - depth,
                                      sort_name(s, b->index) + depth,
                                      b->len - depth);

    } else {
        /* the one is the beginning of the other */
        rc = (a->len > b->len) - (a->len < b->len);
    }

    s->alike |= (rc == 0);

    return rc;
}


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


/*
 * What counts of a field's name for its place: what servers take for one name
 * is one group.  PHP drops leading spaces, ends a name at a zero, and has one
 * letter for a dot, a space and a bracket; and many build a list of all that
 * begin alike before a bracket or a dot.
 */

ngx_str_t
ngx_idempotency_group(ngx_str_t *name)
{
    u_char     *p, *end;
    ngx_str_t   group;

    p = name->data;
    end = p + name->len;

    while (p < end && *p == ' ') {
        p++;
    }

    group.data = p;

    while (p < end && !group_end[*p]) {
        p++;
    }

    group.len = p - group.data;

    return group;
}


/*
 * Stable, and as long as the names are altogether, whatever they have in
 * common: their memory is filled by strangers.  What is sorted already takes
 * one look at each.  There must be room for as many in tmp.  That two are
 * alike shows: any sort compares what ends up side by side.
 */

void
ngx_idempotency_names_sort(ngx_idempotency_names_t *s,
    ngx_idempotency_name_t *names, ngx_idempotency_name_t *tmp, ngx_uint_t n)
{
    ngx_uint_t  i;

    s->alike = 0;

    for (i = 1; i < n; i++) {
        if (sort_cmp(s, &names[i - 1], &names[i], 0) > 0) {
            sort_names(s, names, tmp, n, 0);
            return;
        }
    }
}


/*
 * By the next 8 bytes, and then each run of names that are alike in these.
 * The longest run is gone on with here, so that the calls nest no deeper than
 * the logarithm of n.
 */

static void
sort_names(ngx_idempotency_names_t *s, ngx_idempotency_name_t *names,
    ngx_idempotency_name_t *tmp, ngx_uint_t n, uint32_t depth)
{
    ngx_uint_t               i, run, nlongest;
    ngx_idempotency_name_t  *longest;

    for ( ;; ) {

        if (n <= NGX_IDEMPOTENCY_SORT_MERGE) {
            sort_short(s, names, tmp, n, depth);
            return;
        }

        sort_radix(names, tmp, n, depth);

        longest = NULL;
        nlongest = 0;

        for (i = 0; i < n; i += run) {
            run = sort_alike(s, &names[i], n - i, depth);

            if (run == 1) {
                continue;
            }

            if (run <= nlongest) {
                sort_names(s, &names[i], tmp, run, depth + 8);
                continue;
            }

            if (longest) {
                sort_names(s, longest, tmp, nlongest, depth + 8);
            }

            longest = &names[i];
            nlongest = run;
        }

        if (longest == NULL) {
            return;
        }

        names = longest;
        n = nlongest;
        depth += 8;
    }
}


/* how many of them are alike and go on; they get their next 8 bytes */

static ngx_uint_t
sort_alike(ngx_idempotency_names_t *s, ngx_idempotency_name_t *names,
    ngx_uint_t n, uint32_t depth)
{
    ngx_uint_t  i, run;

    if (names->len - depth <= 8) {
        s->alike |= (n > 1 && names[1].prefix == names->prefix
                     && names[1].len == names->len);
        return 1;
    }

    for (run = 1; run < n; run++) {
        if (names[run].prefix != names->prefix) {
            break;
        }
    }

    if (run == 1) {
        return 1;
    }

    depth += 8;

    for (i = 0; i < run; i++) {
        names[i].prefix =
            ngx_idempotency_prefix(sort_name(s, names[i].index) + depth,
                                   names[i].len - depth);
    }

    return run;
}


/*
 * By the prefix from its last byte on; before that by how much of it there
 * is, as a name may end in zeros.
 */

static void
sort_radix(ngx_idempotency_name_t *names, ngx_idempotency_name_t *tmp,
    ngx_uint_t n, uint32_t depth)
{
    uint32_t                 rest, sum, count, counts[9][256];
    uint64_t                 prefix;
    ngx_uint_t               i, k, key;
    ngx_idempotency_name_t  *from, *to, *swap;

    ngx_memzero(counts, sizeof(counts));

    for (i = 0; i < n; i++) {
        rest = names[i].len - depth;
        prefix = names[i].prefix;

        counts[0][ngx_min(rest, 9)]++;

        for (k = 1; k < 9; k++) {
            counts[k][prefix & 0xff]++;
            prefix >>= 8;
        }
    }

    from = names;
    to = tmp;

    for (k = 0; k < 9; k++) {

        for (sum = 0, key = 0; key < 256; key++) {
            count = counts[k][key];

            if (count == n) {
                break;
            }

            counts[k][key] = sum;
            sum += count;
        }

        if (key < 256) {
            /* all alike */
            continue;
        }

        for (i = 0; i < n; i++) {
            rest = from[i].len - depth;
            key = (k == 0) ? ngx_min(rest, 9)
                           : (from[i].prefix >> (8 * (k - 1))) & 0xff;

            to[counts[k][key]++] = from[i];
        }

        swap = from;
        from = to;
        to = swap;
    }

    if (from == tmp) {
        ngx_memcpy(names, tmp, n * sizeof(ngx_idempotency_name_t));
    }
}


static void
sort_short(ngx_idempotency_names_t *s, ngx_idempotency_name_t *names,
    ngx_idempotency_name_t *tmp, ngx_uint_t n, uint32_t depth)
{
    ngx_uint_t               i, width;
    ngx_idempotency_name_t  *from, *to;

    for (i = 0; i < n; i += NGX_IDEMPOTENCY_SORT_RUN) {
        sort_run(s, &names[i], ngx_min(n - i, NGX_IDEMPOTENCY_SORT_RUN), depth);
    }

    from = names;
    to = tmp;

    for (width = NGX_IDEMPOTENCY_SORT_RUN; width < n; width *= 2) {

        for (i = 0; i < n; i += 2 * width) {
            sort_merge(s, &to[i], &from[i], ngx_min(n - i, 2 * width), width,
                       depth);
        }

        to = from;
        from = (from == names) ? tmp : names;
    }

    if (from == tmp) {
        ngx_memcpy(names, tmp, n * sizeof(ngx_idempotency_name_t));
    }
}


static void
sort_run(ngx_idempotency_names_t *s, ngx_idempotency_name_t *names,
    ngx_uint_t n, uint32_t depth)
{
    ngx_uint_t              i, k;
    ngx_idempotency_name_t  name;

    for (i = 1; i < n; i++) {

        name = names[i];

        for (k = i; k > 0; k--) {
            if (sort_cmp(s, &names[k - 1], &name, depth) <= 0) {
                break;
            }

            names[k] = names[k - 1];
        }

        names[k] = name;
    }
}


/* two sorted runs, the first one of this width, the second one up to n */

static void
sort_merge(ngx_idempotency_names_t *s, ngx_idempotency_name_t *to,
    ngx_idempotency_name_t *from, ngx_uint_t n, ngx_uint_t width,
    uint32_t depth)
{
    ngx_idempotency_name_t  *a, *b, *a_end, *b_end;

    a = from;
    a_end = from + ngx_min(width, n);
    b = a_end;
    b_end = from + n;

    while (a < a_end && b < b_end) {
        *to++ = (sort_cmp(s, a, b, depth) <= 0) ? *a++ : *b++;
    }

    while (a < a_end) {
        *to++ = *a++;
    }

    while (b < b_end) {
        *to++ = *b++;
    }
}
