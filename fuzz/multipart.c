
/*
 * Multipart.  It doesn't count in which pieces a body arrives, nor how it
 * ends; a field is found whether or not there is a digest.
 */


#include "fuzz.h"


static fuzz_digest_t feed(ngx_idempotency_canon_t *c, const uint8_t *data,
    size_t size, uint64_t *random, ngx_int_t *field, ngx_str_t *found);

static ngx_uint_t two_names(const uint8_t *data, size_t size);
static ngx_uint_t stands_in(ngx_str_t *value, const uint8_t *data,
    size_t size);


static ngx_str_t  boundary = ngx_string("b");
static ngx_str_t  name = ngx_string("a");


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    u_char                   *text, *p;
    uint64_t                  random;
    ngx_int_t                 rc, field, other;
    ngx_str_t                *ignored, bad, found, again;
    ngx_pool_t               *pool;
    ngx_array_t              *names;
    fuzz_digest_t             whole, pieces;
    ngx_idempotency_canon_t   c;

    if (size < 2) {
        return 0;
    }

    pool = fuzz_pool();

    c.flags = NGX_IDEMPOTENCY_CANON_MULTIPART
              | (data[0] & 1 ? NGX_IDEMPOTENCY_CANON_TEXT : 0);
    c.ignore = NULL;

    names = ngx_array_create(pool, 1, sizeof(ngx_str_t));
    ignored = ngx_array_push(names);
    ngx_str_set(ignored, "c");

    if (data[0] & 2) {
        hold(ngx_idempotency_canon_ignore(&c, names, &bad, pool) == NGX_OK);
    }

    random = data[1];
    data += 2;
    size -= 2;

    whole = feed(&c, data, size, NULL, &field, &found);
    pieces = feed(&c, data, size, &random, &other, &again);
    hold(fuzz_equal(&whole, &pieces));
    hold(found.len == again.len && field == other);
    hold(found.len == 0
         || ngx_memcmp(found.data, again.data, found.len) == 0);

    hold(found.data == NULL || stands_in(&found, data, size));

    rc = whole.rc;
    pieces = feed(NULL, data, size, &random, &other, &again);
    hold(pieces.rc == rc && found.len == again.len && field == other);

    text = ngx_palloc(pool, size + 100);

    if (rc == NGX_OK) {

        /* what is well-formed can be read, unless it reads in two ways */

        hold(field != NGX_IDEMPOTENCY_UNREADABLE || two_names(data, size));

        ngx_memcpy(text, data, size);
        ngx_memcpy(text + size, "\r\n", 2);

        pieces = feed(&c, text, size + 2, &random, &other, &again);
        hold(fuzz_equal(&whole, &pieces) && field == other);
    }

    /* and so can what is in front of anything */

    p = ngx_sprintf(text, "--b\r\nContent-Disposition: form-data; name=a\r\n"
                    "\r\nx\r\n--b");
    p = ngx_cpymem(p, data, size);

    (void) feed(&c, text, p - text, &random, &other, &again);
    hold(other == NGX_OK && again.len == 1 && again.data[0] == 'x');

    return 0;
}


/* or one that has a quote, an escape or an asterisk */

static ngx_uint_t
two_names(const uint8_t *data, size_t size)
{
    size_t      i;
    ngx_uint_t  n;

    n = 0;

    for (i = 0; i + 4 <= size; i++) {
        n += (strncasecmp((char *) data + i, "name", 4) == 0);
    }

    return n > 1 || memchr(data, '\'', size) || memchr(data, '\\', size)
           || memchr(data, '*', size);
}


/* between a header and a delimiter, byte by byte */

static ngx_uint_t
stands_in(ngx_str_t *value, const uint8_t *data, size_t size)
{
    u_char      *text, *last;
    ngx_uint_t   stands;

    text = malloc(value->len + 9);

    last = ngx_cpymem(text, "\r\n\r\n", 4);
    last = ngx_cpymem(last, value->data, value->len);
    last = ngx_cpymem(last, "\r\n--b", 5);

    stands = (memmem(data, size, text, last - text) != NULL);
    free(text);

    return stands;
}


static fuzz_digest_t
feed(ngx_idempotency_canon_t *c, const uint8_t *data, size_t size,
    uint64_t *random, ngx_int_t *field, ngx_str_t *found)
{
    void                      *m;
    size_t                     n;
    u_char                    *piece;
    ngx_str_t                  value;
    ngx_pool_t                *pieces;
    fuzz_digest_t              out;
    ngx_idempotency_digest_t   d;
    ngx_idempotency_fields_t  *f;

    static ngx_log_t              log;

    static const ngx_idempotency_kind_t  *multipart
                                            = &ngx_idempotency_multipart_kind;

    pieces = ngx_create_pool(1024, &log);
    f = ngx_idempotency_fields_create(pieces, multipart, &name, 1, size + 1);
    m = multipart->start(pieces, c, &boundary, f);

    for ( /* void */ ; size; size -= n, data += n) {
        n = random ? 1 + fuzz_below(random, 20) : size;
        n = ngx_min(n, size);

        /* gone as soon as it was fed */

        piece = ngx_alloc(n, &log);
        ngx_memcpy(piece, data, n);
        (void) multipart->feed(m, piece, n);
        ngx_free(piece);
    }

    ngx_idempotency_digest_init(&d, NULL, 1, NGX_IDEMPOTENCY_DIGEST_BODY);

    out.rc = multipart->finish(m, &d);
    hold(out.rc == NGX_OK || out.rc == NGX_DECLINED);

    ngx_idempotency_digest_final(&d, out.digest);

    ngx_str_null(found);
    *field = ngx_idempotency_fields_value(f, 0, &value);

    if (*field == NGX_OK) {
        found->len = value.len;
        found->data = fuzz_copy(value.data, value.len);
    }

    ngx_destroy_pool(pieces);

    return out;
}
