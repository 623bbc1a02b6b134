
/*
 * Digests of bodies by their meaning: limits, memory that runs out, and how
 * many steps and how much memory a body may take, whoever made it.  Steps are
 * counted by the compiler's coverage hook, once for each basic block, as time
 * tells more of the machine.  What is equal to what is tested by rules.
 */


#include <malloc.h>

#include "unit.h"
#include "digest/ngx_idempotency_encode.h"


#define MEGABYTE  1048576


static ngx_int_t   allowed = -1;       /* allocations, if not negative */
static ngx_uint_t  allocations;

static uint64_t    steps;
static size_t      memory, peak;

static ngx_str_t   boundary = ngx_string("b");


void __sanitizer_cov_trace_pc(void);

void *__real_malloc(size_t size);
int __real_posix_memalign(void **p, size_t alignment, size_t size);
void __real_free(void *p);
void *__wrap_malloc(size_t size);
int __wrap_posix_memalign(void **p, size_t alignment, size_t size);
void __wrap_free(void *p);

void *__real_ngx_palloc(ngx_pool_t *pool, size_t size);
void *__real_ngx_pnalloc(ngx_pool_t *pool, size_t size);
void *__real_ngx_pcalloc(ngx_pool_t *pool, size_t size);
void *__wrap_ngx_palloc(ngx_pool_t *pool, size_t size);
void *__wrap_ngx_pnalloc(ngx_pool_t *pool, size_t size);
void *__wrap_ngx_pcalloc(ngx_pool_t *pool, size_t size);


static ngx_uint_t
allow(void)
{
    allocations++;

    if (allowed > 0) {
        allowed--;
        return 1;
    }

    return allowed != 0;
}


void *
__wrap_ngx_palloc(ngx_pool_t *pool, size_t size)
{
    return allow() ? __real_ngx_palloc(pool, size) : NULL;
}


void *
__wrap_ngx_pnalloc(ngx_pool_t *pool, size_t size)
{
    return allow() ? __real_ngx_pnalloc(pool, size) : NULL;
}


void *
__wrap_ngx_pcalloc(ngx_pool_t *pool, size_t size)
{
    return allow() ? __real_ngx_pcalloc(pool, size) : NULL;
}


/* this file is compiled without it */

void
__sanitizer_cov_trace_pc(void)
{
    steps++;
}


static void
allocated(void *p)
{
    memory += malloc_usable_size(p);
    peak = ngx_max(peak, memory);
}


void *
__wrap_malloc(size_t size)
{
    void  *p;

    p = __real_malloc(size);
    allocated(p);

    return p;
}


int
__wrap_posix_memalign(void **p, size_t alignment, size_t size)
{
    int  rc;

    rc = __real_posix_memalign(p, alignment, size);
    allocated(*p);

    return rc;
}


void
__wrap_free(void *p)
{
    memory -= malloc_usable_size(p);
    __real_free(p);
}


/* multipart in pieces, as it comes from a network */

static ngx_int_t
digest(const ngx_idempotency_kind_t *kind, ngx_str_t *body, ngx_pool_t *pool,
    u_char *out)
{
    void                     *m;
    size_t                    n, offset;
    ngx_int_t                 rc;
    ngx_idempotency_canon_t   c;
    ngx_idempotency_digest_t  d;

    c.flags = NGX_IDEMPOTENCY_CANON_ALL;
    c.ignore = NULL;

    ngx_idempotency_digest_init(&d, NULL, 1, NGX_IDEMPOTENCY_DIGEST_BODY);

    if (kind->whole) {
        rc = ngx_idempotency_canon_body(&d, kind, &c, body->data, body->len,
                                        pool);
    } else {
        m = kind->start(pool, &c, &boundary, NULL);
        if (m == NULL) {
            return NGX_ERROR;
        }

        for (offset = 0; offset < body->len; offset += n) {
            n = ngx_min(body->len - offset, 4096);
            (void) kind->feed(m, body->data + offset, n);
        }

        rc = kind->finish(m, &d);
    }

    ngx_idempotency_digest_final(&d, out);

    return rc;
}


/* times over again, with a number where there is a percent sign */

static ngx_str_t
repeated(char *before, char *text, char *behind, size_t size,
    ngx_uint_t downwards)
{
    char        *p;
    u_char      *dst;
    ngx_str_t    s;
    ngx_uint_t   n;

    s.data = ngx_alloc(size + 4096, unit_cycle.log);
    dst = ngx_cpymem(s.data, before, ngx_strlen(before));

    for (n = 0; (size_t) (dst - s.data) < size; n++) {
        for (p = text; *p; p++) {
            if (*p == '%') {
                dst = ngx_sprintf(dst, "%07ui",
                                  downwards ? 9999999 - n : n);
            } else {
                *dst++ = *p;
            }
        }
    }

    dst = ngx_cpymem(dst, behind, ngx_strlen(behind));
    s.len = dst - s.data;

    return s;
}


typedef struct {
    char                          *name;
    const ngx_idempotency_kind_t  *kind;
    char                          *before;
    char                          *text;
    char                          *behind;
    ngx_int_t                      rc;
} large_t;


#define FORM       (&ngx_idempotency_form_kind)
#define JSON       (&ngx_idempotency_json_kind)
#define MULTIPART  (&ngx_idempotency_multipart_kind)
#define TEXT       (&ngx_idempotency_text_kind)

#define PART       "--b\r\nContent-Disposition: form-data; name="

#define LONG       "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"


static large_t  larges[] = {
    { "fields", FORM, "", "a&", "", NGX_DECLINED },
    { "fields, downwards", FORM, "", "%=1&", "", NGX_DECLINED },
    { "as many fields as count", FORM, "", "aaaaaaaaaaaaaaaaaaaaaaa%=1&", "",
      NGX_OK },
    { "as many fields as count, escaped", FORM, "",
      "aaaaaaaaaaaaaaaaaaaaaa%+=&", "", NGX_OK },
    { "fields with brackets", FORM, "", "a[aaaaaaaaaaaaaaaaaaaaaaa%=1&", "",
      NGX_OK },
    { "long names alike", FORM, "", LONG "%&", "", NGX_OK },
    { "longer names alike", FORM, "", LONG LONG LONG LONG LONG LONG LONG "%&",
      "", NGX_OK },
    { "escapes", FORM, "a=", "+", "", NGX_OK },
    { "separators", FORM, "", "&", "", NGX_OK },
    { "equals signs", FORM, "", "=", "", NGX_OK },
    { "empty fields", FORM, "", "=&", "", NGX_OK },
    { "members", JSON, "{", "\"%\":1,", "\"\":1}", NGX_DECLINED },
    { "as many members as count", JSON, "{", "\"" LONG "%\":1,", "\"\":1}",
      NGX_OK },
    { "as many members as count, escaped", JSON, "{",
      "\"" LONG "\\n%\":1,", "\"\":1}", NGX_OK },
    { "members of one name", JSON, "{", "\"b\":1,", "\"a\":1}",
      NGX_DECLINED },
    { "elements", JSON, "[", "1,", "1]", NGX_DECLINED },
    { "as many elements as count", JSON, "[", "\"aaaaaa\\n%\",", "1]",
      NGX_OK },
    { "objects", JSON, "[", "{\"b\":1,\"a\":2},", "1]", NGX_DECLINED },
    { "as many objects as count", JSON, "[",
      "{\"aaaaaaaaaa%b\":\"\\n\",\"aaaaaaaaaa%a\":2},", "1]", NGX_OK },
    { "empty arrays", JSON, "[", "[],", "1]", NGX_DECLINED },
    { "escapes, in JSON", JSON, "\"", "\\u0041", "\"", NGX_OK },
    { "surrogates", JSON, "\"", "\\ud800", "\"", NGX_OK },
    { "pairs of surrogates", JSON, "\"", "\\ud800\\udc00", "\"", NGX_OK },
    { "beyond ASCII", JSON, "\"", "\xc3\xa4", "\"", NGX_OK },
    { "strings with an escape", JSON, "[", "\"\\n\",", "1]", NGX_DECLINED },
    { "digits", JSON, "1", "0", "", NGX_OK },
    { "digits behind a point", JSON, "0.", "0", "1", NGX_OK },
    { "digits of an exponent", JSON, "1e", "0", "1", NGX_OK },
    { "numbers", JSON, "[", "1e5,", "1.0]", NGX_DECLINED },
    { "white space", JSON, "", " ", "1", NGX_OK },
    { "depth", JSON, "", "[", "", NGX_DECLINED },
    { "depth of objects", JSON, "", "{\"b\":1,\"a\":", "", NGX_DECLINED },
    { "a string without an end", JSON, "\"", "a", "", NGX_DECLINED },
    { "spoilt at the end", JSON, "{", "\"" LONG "%\":1,", "}", NGX_DECLINED },
    { "line ends", MULTIPART, PART "a\r\n\r\n", "\r\n", "\r\n--b--", NGX_OK },
    { "carriage returns", MULTIPART, PART "a\r\n\r\n", "\r", "\r\n--b--",
      NGX_OK },
    { "delimiters begun", MULTIPART, PART "a\r\n\r\n", "\r\n-", "\r\n--b--",
      NGX_OK },
    { "parts", MULTIPART, "", PART "a\r\n\r\n\r\n", "--b--", NGX_DECLINED },
    { "as many parts as count", MULTIPART, "", PART "a%\r\n\r\n" LONG
      LONG LONG LONG "\r\n", "--b--", NGX_OK },
    { "parts with long names", MULTIPART, "", PART LONG LONG LONG LONG LONG
      LONG LONG LONG LONG LONG LONG LONG LONG LONG "%\r\n\r\n\r\n", "--b--",
      NGX_DECLINED },
    { "headers", MULTIPART, PART "a\r\n", "X: y\r\n", "\r\n\r\n--b--",
      NGX_DECLINED },
    { "white space of text", TEXT, "a", " \n", "b", NGX_OK },
    { "white space begun", TEXT, "a", "\xe2\x80", "b", NGX_OK },
};


/* a name that isn't there and one that the body begins with, on the way */

static ngx_int_t
digest_and_fields(const ngx_idempotency_kind_t *kind, ngx_str_t *body,
    ngx_pool_t *pool, u_char *out)
{
    ngx_int_t                  rc;
    ngx_str_t                  value;
    ngx_idempotency_fields_t  *f;

    static ngx_str_t  names[] = { ngx_string("aaaaaaab"), ngx_string("a"),
                                  ngx_string("none") };

    rc = digest(kind, body, pool, out);

    f = ngx_idempotency_fields_create(pool, kind, names, 3, MEGABYTE);

    check(ngx_idempotency_fields_feed(f, body->data, body->len) != NGX_ERROR);
    ngx_idempotency_fields_end(f);
    check(ngx_idempotency_fields_value(f, 2, &value) != NGX_OK);

    return rc;
}


static uint64_t
steps_of(large_t *large, size_t size, ngx_uint_t downwards)
{
    size_t       before;
    u_char       out[NGX_IDEMPOTENCY_DIGEST_LEN];
    uint64_t     start;
    ngx_int_t    rc;
    ngx_str_t    body;
    ngx_pool_t  *pool;

    body = repeated(large->before, large->text, large->behind, size,
                    downwards);

    pool = ngx_create_pool(4096, unit_cycle.log);

    start = steps;
    before = memory;
    peak = memory;

    rc = digest_and_fields(large->kind, &body, pool, out);

    if (size == MEGABYTE && !check_equal(rc, large->rc)) {
        unit_note("%s", large->name);
    }

    start = steps - start;
    before = peak - before;

    if (!check(before < 3 * size + 65536)) {
        unit_note("%s: %.2f times as much memory", large->name,
                  (double) before / size);
    }

    ngx_destroy_pool(pool);
    ngx_free(body.data);

    return start;
}


/*
 * A body and what its digest takes are 4 times the body at most, and as many
 * steps for each byte as take no longer than 10 ms for a megabyte.  Of four
 * megabytes no byte takes more.
 */

unit_case("steps and memory are bounded")
{
    uint64_t    one, four;
    ngx_uint_t  i, downwards;

    for (i = 0; i < sizeof(larges) / sizeof(larges[0]); i++) {
        for (downwards = 0; downwards < 2; downwards++) {

            one = steps_of(&larges[i], MEGABYTE, downwards);
            four = steps_of(&larges[i], 4 * MEGABYTE, downwards);

            if (!check(one < 40 * MEGABYTE && four < 5 * one + 16384)) {
                unit_note("%s: %.1f steps a byte, of four times as many %.1f",
                          larges[i].name, (double) one / MEGABYTE,
                          (double) four / (4 * MEGABYTE));
            }
        }
    }

    /* they are counted at all */

    check(steps > MEGABYTE);
}


/* with each number of allocations: all or nothing, and the same in the end */

unit_case("memory runs out")
{
    u_char       out[NGX_IDEMPOTENCY_DIGEST_LEN],
                 wanted[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_int_t    rc, n;
    ngx_str_t    body;
    ngx_uint_t   i, errors;
    ngx_pool_t  *pool;

    static large_t  bodies[] = {
        { "form", FORM, "", "%=%+b&", "a=%41", NGX_OK },
        { "JSON", JSON, "{", "\"%\":[{\"b\\n\":1,\"a\":2.0}],", "\"\":1}",
          NGX_OK },
        { "multipart", MULTIPART, "", PART "%\r\n\r\nx\r\n", "--b--", NGX_OK },
    };

    for (i = 0; i < 3; i++) {
        body = repeated(bodies[i].before, bodies[i].text, bodies[i].behind,
                        10000, 1);

        pool = ngx_create_pool(4096, unit_cycle.log);
        check(digest(bodies[i].kind, &body, pool, wanted) == NGX_OK);
        ngx_destroy_pool(pool);

        errors = 0;

        for (n = 0, rc = NGX_ERROR; rc == NGX_ERROR; n++) {
            pool = ngx_create_pool(4096, unit_cycle.log);

            allowed = n;
            rc = digest(bodies[i].kind, &body, pool, out);
            allowed = -1;

            errors += (rc == NGX_ERROR);

            ngx_destroy_pool(pool);
        }

        check(rc == NGX_OK);
        check(errors > 1);
        check(ngx_memcmp(out, wanted, sizeof(out)) == 0);

        ngx_free(body.data);
    }
}


unit_case("memory runs out for a field")
{
    void                      *m;
    ngx_int_t                  rc, n;
    ngx_str_t                  value, body;
    ngx_uint_t                 i;
    ngx_pool_t                *pool;
    ngx_idempotency_fields_t  *f;

    static ngx_str_t  name = ngx_string("a");
    static struct {
        const ngx_idempotency_kind_t  *kind;
        char                          *text;
    }  bodies[] = {
        { FORM, "b=+&a=%41" LONG LONG "&c=" },
        { JSON, "{\"c\":\"\\n\",\"a\":\"\\u0041" LONG LONG "\"}" },
        { MULTIPART, PART "a\r\n\r\nA" LONG LONG "\r\n--b--" },
    };

    for (i = 0; i < 3; i++) {
        body.data = (u_char *) bodies[i].text;
        body.len = ngx_strlen(body.data);

        for (n = 0, rc = NGX_ERROR; rc == NGX_ERROR; n++) {
            pool = ngx_create_pool(4096, unit_cycle.log);
            m = NULL;

            allowed = n;
            f = ngx_idempotency_fields_create(pool, bodies[i].kind, &name, 1,
                                              1000);

            if (f && bodies[i].kind == MULTIPART) {
                m = MULTIPART->start(pool, NULL, &boundary, f);

                if (m) {
                    (void) MULTIPART->feed(m, body.data, body.len);
                    rc = f->no_memory ? NGX_ERROR : NGX_OK;
                }

            } else if (f) {
                rc = ngx_idempotency_fields_feed(f, body.data, body.len);
                ngx_idempotency_fields_end(f);
            }

            allowed = -1;

            if (rc != NGX_ERROR) {
                check(ngx_idempotency_fields_value(f, 0, &value) == NGX_OK);
                check(value.len == 1 + ngx_strlen(LONG LONG)
                      && *value.data == 'A');
            }

            ngx_destroy_pool(pool);
        }

        check(rc != NGX_ERROR);
        check(n > 2);
    }
}


/* what was needed on the way is gone when there is a digest, or none */

unit_case("scratch is freed")
{
    size_t                     before;
    ngx_int_t                  rc;
    ngx_str_t                  body;
    ngx_uint_t                 i, n;
    ngx_pool_t                *pool;
    ngx_idempotency_canon_t    c;
    ngx_idempotency_digest_t   d;

    static large_t  bodies[] = {
        { "form", FORM, "", "%=%+b&", "a=%41", NGX_OK },
        { "form, spoilt", FORM, "", "%=%+b&", "a=%4", NGX_DECLINED },
        { "JSON", JSON, "{", "\"%\\n\":[{\"b\\n\":1,\"a\":2.0}],",
          "\"\":1}", NGX_OK },
        { "JSON, spoilt", JSON, "{", "\"%\\n\":[{\"b\\n\":1,\"a\":2.0}],",
          "}", NGX_DECLINED },
        { "objects", JSON, "[", NULL, "0]", NGX_OK },
    };

    c.flags = NGX_IDEMPOTENCY_CANON_ALL;
    c.ignore = NULL;

    for (i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {

        if (bodies[i].text) {
            body = repeated(bodies[i].before, bodies[i].text,
                            bodies[i].behind, 100000, 1);

        } else {

            /* the next object has more members than there was room for */

            body.data = ngx_alloc(1000000, unit_cycle.log);
            body.len = 1;
            body.data[0] = '[';

            for (n = 30; n < 2000; n = 5 * n) {
                rc = n;
                body.data[body.len++] = '{';

                while (rc--) {
                    body.len = ngx_sprintf(body.data + body.len, "\"%07i\":1,",
                                           rc)
                               - body.data;
                }

                body.data[body.len - 1] = '}';
                body.data[body.len++] = ',';
            }

            body.data[body.len++] = '0';
            body.data[body.len++] = ']';
        }

        pool = ngx_create_pool(4096, unit_cycle.log);
        before = memory;

        ngx_idempotency_digest_init(&d, NULL, 1, NGX_IDEMPOTENCY_DIGEST_BODY);
        rc = ngx_idempotency_canon_body(&d, bodies[i].kind, &c, body.data,
                                        body.len, pool);

        if (!check_equal(rc, bodies[i].rc) || !check(memory == before)) {
            unit_note("%s: %zu bytes are left", bodies[i].name,
                      memory - before);
        }

        ngx_destroy_pool(pool);
        ngx_free(body.data);
    }
}


/* a value that comes in many pieces takes no more than twice its size */

unit_case("a long value grows")
{
    size_t                     i;
    u_char                     c;
    ngx_int_t                  rc;
    ngx_str_t                  value;
    ngx_pool_t                *pool;
    ngx_idempotency_fields_t  *f;

    static ngx_str_t  name = ngx_string("a");

    pool = ngx_create_pool(4096, unit_cycle.log);
    f = ngx_idempotency_fields_create(pool, FORM, &name, 1, 100000);

    rc = ngx_idempotency_fields_feed(f, (u_char *) "a=", 2);
    allocations = 0;
    peak = memory;
    i = memory;

    for (c = 0; rc == NGX_OK && c < 250; c++) {
        rc = ngx_idempotency_fields_feed(f, (u_char *) LONG LONG LONG LONG
                                         LONG LONG LONG, 399);
    }

    check(rc == NGX_OK);
    check(peak - i < 200000);
    check(allocations < 15);

    rc = ngx_idempotency_fields_feed(f, (u_char *) "&", 1);
    check(rc == NGX_DONE);

    check(ngx_idempotency_fields_value(f, 0, &value) == NGX_OK);
    check_equal(value.len, 250 * 399);

    for (i = 0; i < value.len; i++) {
        if (value.data[i] != 'a') {
            break;
        }
    }

    check_equal(i, value.len);

    ngx_destroy_pool(pool);
}


/* what is common takes no memory for each element */

unit_case("memory is for the body as a whole")
{
    u_char       out[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_str_t    body;
    ngx_uint_t   i;
    ngx_pool_t  *pool;

    static large_t  bodies[] = {
        { "form", FORM, "", "a%=1&", "", NGX_OK },
        { "JSON", JSON, "[", "{\"id\":1%,\"b\":[1.50,\"\\t\"],\"a\":{}},",
          "{}]", NGX_OK },
        { "text", TEXT, "", "a%  b", "", NGX_OK },
    };

    for (i = 0; i < 3; i++) {
        body = repeated(bodies[i].before, bodies[i].text, bodies[i].behind,
                        100000, 0);
        pool = ngx_create_pool(4096, unit_cycle.log);

        allocations = 0;
        check(digest(bodies[i].kind, &body, pool, out) == NGX_OK);
        check(allocations < 8);

        ngx_destroy_pool(pool);
        ngx_free(body.data);
    }

    /* a usual form takes one, for what has escapes */

    body = repeated("", "name%=value+%&", "", 300, 1);
    pool = ngx_create_pool(4096, unit_cycle.log);

    allocations = 0;
    check(digest(FORM, &body, pool, out) == NGX_OK);
    check_equal(allocations, 1);

    ngx_destroy_pool(pool);
    ngx_free(body.data);

    /* a usual document none, though its members are to be sorted */

    body = repeated("{", "\"%\":{\"b\":1,\"a\":\"x\"},", "\"0\":[]}", 500, 1);
    pool = ngx_create_pool(4096, unit_cycle.log);

    allocations = 0;
    check(digest(JSON, &body, pool, out) == NGX_OK);
    check_equal(allocations, 0);

    ngx_destroy_pool(pool);
    ngx_free(body.data);
}


/* against the simplest sort there is */

unit_case("sorting is stable")
{
    u_char                   letters[1204];
    uint64_t                 seed;
    uint32_t                 place;
    ngx_uint_t               i, k, n, round, longest;
    ngx_idempotency_name_t   names[900], tmp[450];
    struct { u_char *data; size_t len; ngx_uint_t index; }  simple[900], name;

    seed = unit_setting("UNIT_SEED", 1);

    for (round = 0; round < 400; round++) {

        /* many are alike for long, and end in zeros */

        longest = unit_below(&seed, 5) ? round % 20 + 1 : 100;

        for (i = 0; i < sizeof(letters); i++) {
            letters[i] = (u_char) (unit_below(&seed, round % 30 + 2) == 1);
        }

        n = unit_below(&seed, round % 4 ? 40 : 900);

        for (i = 0; i < n; i++) {
            place = unit_below(&seed, 1100);
            name.data = letters + place;
            name.len = unit_below(&seed, longest);
            name.index = i;

            ngx_idempotency_name_set(&names[i], letters, place, name.len, i);

            for (k = i; k > 0; k--) {
                if (ngx_memn2cmp(simple[k - 1].data, name.data,
                                 simple[k - 1].len, name.len)
                    <= 0)
                {
                    break;
                }

                simple[k] = simple[k - 1];
            }

            simple[k] = name;
        }

        ngx_idempotency_names_sort(letters, names, tmp, n);

        for (i = 0; i < n; i++) {
            if (!check_equal(names[i].index, simple[i].index)) {
                return;
            }
        }
    }

    check(round == 400);
}


unit_case("nothing too large")
{
    u_char                     c;
    ngx_idempotency_canon_t    canon;
    ngx_idempotency_digest_t   d;

    c = '1';
    canon.flags = NGX_IDEMPOTENCY_CANON_ALL;
    canon.ignore = NULL;

    ngx_idempotency_digest_init(&d, NULL, 1, NGX_IDEMPOTENCY_DIGEST_BODY);

    check_equal(ngx_idempotency_canon_body(&d, JSON, &canon, &c,
                                           NGX_IDEMPOTENCY_CANON_SIZE + 1,
                                           unit_pool),
                NGX_DECLINED);
    check_equal(ngx_idempotency_canon_body(&d, NULL, &canon, &c, 1, unit_pool),
                NGX_DECLINED);
}


unit_case("bytes are no encoding")
{
    u_char                     raw[NGX_IDEMPOTENCY_DIGEST_LEN],
                               out[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_str_t                  body;
    ngx_idempotency_digest_t   d;

    ngx_str_set(&body, "1");
    check(digest(JSON, &body, unit_pool, out) == NGX_OK);

    ngx_idempotency_digest_init(&d, NULL, 1, NGX_IDEMPOTENCY_DIGEST_BODY);
    ngx_idempotency_digest_bytes(&d, (u_char *) "J#\0011", 4);
    ngx_idempotency_digest_final(&d, raw);
    check(ngx_memcmp(raw, out, sizeof(raw)) == 0);

    ngx_idempotency_digest_init(&d, NULL, 1, NGX_IDEMPOTENCY_DIGEST_BODY);
    ngx_idempotency_canon_raw(&d);
    ngx_idempotency_digest_bytes(&d, (u_char *) "J#\0011", 4);
    ngx_idempotency_digest_final(&d, raw);
    check(ngx_memcmp(raw, out, sizeof(raw)) != 0);
}
