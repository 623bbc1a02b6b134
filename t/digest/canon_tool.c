
/*
 * Digests what it is told to, for tests in other languages.
 *
 * Standard input: records of an operation (a letter), flags (a number in a
 * byte), and three byte strings behind their lengths in 4 bytes, the highest
 * first: names, one a line; an argument; data.  For each a line comes out.
 *
 *   d   digest of the data, of the kind in the flags' lowest bits; names are
 *       left out; multipart: the argument is the boundary, the data are fed
 *       whole, then in pieces of every size up to 100 or at random
 *   f   the field that the argument names, looked for in pieces of every size
 *       up to 40 and at random; multipart: boundary in names
 *   k   the kind of the content type that is the argument
 *   i   are the names fit to be left out?
 */


#include <sys/mman.h>

#include "unit.h"
#include "digest/ngx_idempotency_encode.h"


#define FLAG_FOLD  0x80
#define VALUE_MAX  200


static ngx_log_t    tool_log;
static ngx_pool_t  *pool;


/* ends where there is no memory behind it, so that a read beyond is the end */

static u_char *
at_the_end(ngx_uint_t slot, size_t len)
{
    size_t         size;
    static u_char  *end[4];

    size = 8 * 1024 * 1024;

    if (end[slot] == NULL) {
        end[slot] = mmap(NULL, size + ngx_pagesize, PROT_READ|PROT_WRITE,
                         MAP_PRIVATE|MAP_ANONYMOUS, -1, 0);

        if (end[slot] == MAP_FAILED
            || mprotect(end[slot] + size, ngx_pagesize, PROT_NONE) != 0)
        {
            exit(3);
        }

        end[slot] += size;
    }

    if (len > size) {
        exit(3);
    }

    return end[slot] - len;
}


static ngx_str_t
input(ngx_uint_t slot)
{
    size_t     i;
    u_char     len[4];
    ngx_str_t  s;

    if (fread(len, 4, 1, stdin) != 1) {
        exit(2);
    }

    for (s.len = 0, i = 0; i < 4; i++) {
        s.len = s.len << 8 | len[i];
    }

    s.data = at_the_end(slot, s.len);

    if (s.len && fread(s.data, s.len, 1, stdin) != 1) {
        exit(2);
    }

    return s;
}


static void
result(ngx_int_t rc, u_char *data, size_t len)
{
    size_t  i;

    if (rc == NGX_DECLINED) {
        printf("declined\n");
        return;
    }

    if (rc == NGX_IDEMPOTENCY_UNREADABLE) {
        printf("unreadable\n");
        return;
    }

    if (rc != NGX_OK) {
        printf("error\n");
        return;
    }

    putchar('=');

    for (i = 0; i < len; i++) {
        printf("%02x", data[i]);
    }

    putchar('\n');
}


static ngx_array_t *
lines(ngx_str_t *text)
{
    u_char       *p, *end, *lf;
    ngx_str_t    *line;
    ngx_array_t  *array;

    array = ngx_array_create(pool, 4, sizeof(ngx_str_t));

    for (p = text->data, end = p + text->len; p < end; p = lf + 1) {
        lf = ngx_strlchr(p, end, '\n');
        line = ngx_array_push(array);
        line->data = p;
        line->len = lf - p;
    }

    return array;
}


/* pieces of this size, or of any up to -size; each gone when it was fed */

static void
feed(void *m, ngx_idempotency_fields_t *f,
    ngx_str_t *data, ngx_int_t size)
{
    size_t           n, len;
    u_char          *p, *piece;
    static uint64_t  random;

    for (p = data->data, len = data->len; len; p += n, len -= n) {
        n = (size > 0) ? (size_t) size : 1 + unit_below(&random, -size);
        n = ngx_min(n, len);

        piece = at_the_end(3, n);
        ngx_memcpy(piece, p, n);

        if (m) {
            (void) ngx_idempotency_multipart_kind.feed(m, piece, n);

        } else {
            (void) ngx_idempotency_fields_feed(f, piece, n);
        }

        ngx_memset(piece, '?', n);
    }
}


static ngx_int_t
multipart(void *m, ngx_str_t *data, ngx_int_t size,
    ngx_idempotency_digest_t *d)
{
    feed(m, NULL, data, size);

    return ngx_idempotency_multipart_kind.finish(m, d);
}


static void
digest(const ngx_idempotency_kind_t *kind, ngx_idempotency_canon_t *c,
    ngx_str_t *boundary, ngx_str_t *data)
{
    u_char                        whole[NGX_IDEMPOTENCY_DIGEST_LEN],
                                  out[NGX_IDEMPOTENCY_DIGEST_LEN];
    void                     *m;
    ngx_int_t                 rc, first, size;
    ngx_idempotency_digest_t  d, before;

    ngx_memzero(&d, sizeof(d));
    ngx_idempotency_digest_init(&d, NULL, 1, NGX_IDEMPOTENCY_DIGEST_BODY);
    before = d;

    if (kind == NULL || kind->start == NULL) {
        rc = ngx_idempotency_canon_body(&d, kind, c, data->data, data->len,
                                        pool);

        if (rc != NGX_OK && ngx_memcmp(&d, &before, sizeof(d)) != 0) {
            printf("declined, but fed\n");
            return;
        }

        ngx_idempotency_digest_final(&d, out);
        result(rc, out, sizeof(out));
        return;
    }

    m = kind->start(pool, c, boundary, NULL);
    first = multipart(m, data, ngx_max(data->len, 1), &d);
    ngx_idempotency_digest_final(&d, whole);

    for (size = -20; size <= ngx_min(100, (ngx_int_t) data->len); size++) {

        if (size == 0) {
            continue;
        }

        d = before;
        m = kind->start(pool, c, boundary, NULL);
        rc = multipart(m, data, size, &d);
        ngx_idempotency_digest_final(&d, out);

        if (rc != first || ngx_memcmp(out, whole, sizeof(out)) != 0) {
            printf("pieces of %d differ\n", (int) size);
            return;
        }
    }

    result(first, whole, sizeof(whole));
}


/* with a digest of the same multipart body on the way, and without */

static ngx_int_t
find(const ngx_idempotency_kind_t *kind, ngx_str_t *boundary, ngx_str_t *name,
    ngx_str_t *data, ngx_int_t size, ngx_str_t *value)
{
    void                      *m;
    ngx_idempotency_canon_t    c;
    ngx_idempotency_digest_t   d;
    ngx_idempotency_fields_t  *f;

    c.flags = kind->flag;
    c.ignore = NULL;

    f = ngx_idempotency_fields_create(pool, kind, name, 1, VALUE_MAX);

    if (kind->start == NULL) {
        feed(NULL, f, data, size);
        ngx_idempotency_fields_end(f);

    } else {
        m = kind->start(pool, size & 1 ? &c : NULL, boundary, f);
        ngx_idempotency_digest_init(&d, NULL, 1, 'B');
        (void) multipart(m, data, size, &d);
    }

    return ngx_idempotency_fields_value(f, 0, value);
}


static void
field(const ngx_idempotency_kind_t *kind, ngx_str_t *boundary, ngx_str_t *name,
    ngx_str_t *data)
{
    ngx_int_t  rc, first, size;
    ngx_str_t  value, whole;

    ngx_str_null(&whole);
    first = find(kind, boundary, name, data, ngx_max(data->len, 1), &whole);

    for (size = -20; size <= ngx_min(40, (ngx_int_t) data->len); size++) {

        if (size == 0) {
            continue;
        }

        ngx_str_null(&value);
        rc = find(kind, boundary, name, data, size, &value);

        if (rc != first || value.len != whole.len
            || (value.len
                && ngx_memcmp(value.data, whole.data, value.len) != 0))
        {
            printf("pieces of %d differ\n", (int) size);
            return;
        }
    }

    result(first, whole.data, whole.len);
}


static void
kind_of(ngx_str_t *type, ngx_uint_t flags)
{
    ngx_str_t                      boundary;
    const ngx_idempotency_kind_t  *kind;

    ngx_str_null(&boundary);
    (void) ngx_idempotency_kind(type, flags, &boundary, &kind);

    printf("=%d%s%.*s\n", kind ? (int) kind->flag : 0,
           boundary.len && kind ? " " : "",
           kind ? (int) boundary.len : 0, boundary.data);
}


int
main(void)
{
    int                       op, flags;
    ngx_str_t                 names, arg, data, bad;
    ngx_int_t                 rc;
    ngx_uint_t                wanted;
    ngx_idempotency_canon_t   c;

    const ngx_idempotency_kind_t  *kind, **k;

    ngx_pagesize = getpagesize();
    setvbuf(stdout, NULL, _IOLBF, 0);

    while ((op = getchar()) != EOF) {

        pool = ngx_create_pool(4096, &tool_log);

        flags = getchar();
        names = input(0);
        arg = input(1);
        data = input(2);

        wanted = flags & NGX_IDEMPOTENCY_CANON_ALL;
        kind = NULL;

        for (k = ngx_idempotency_kinds; *k; k++) {
            kind = ((*k)->flag == wanted) ? *k : kind;
        }

        c.flags = wanted
                  | (flags & FLAG_FOLD ? NGX_IDEMPOTENCY_CANON_TEXT : 0);
        c.ignore = NULL;

        switch (op) {

        case 'd':
        case 'i':
            rc = names.len ? ngx_idempotency_canon_ignore(&c, lines(&names),
                                                          &bad, pool)
                           : NGX_OK;
            if (op == 'i') {
                result(rc, NULL, 0);

            } else {
                digest(kind, &c, &arg, &data);
            }

            break;

        case 'f':
            field(kind, &names, &arg, &data);
            break;

        case 'k':
            kind_of(&arg, wanted);
            break;
        }

        ngx_destroy_pool(pool);
    }

    return 0;
}
