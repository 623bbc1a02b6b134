
/*
 * Digests of bodies by their meaning: limits, memory that runs out, and time
 * that must grow as a body does.  What is equal to what is tested by rules.
 */


#include "unit.h"
#include "digest/ngx_idempotency_encode.h"


#define MEGABYTE  1000000


static ngx_int_t   allowed = -1;       /* allocations, if not negative */
static ngx_uint_t  allocations;

static ngx_str_t   boundary = ngx_string("b");


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


/* multipart in pieces, as it comes from a network */

static ngx_int_t
digest(ngx_uint_t kind, ngx_str_t *body, ngx_pool_t *pool, u_char *out)
{
    size_t                        n, offset;
    ngx_int_t                     rc;
    ngx_idempotency_canon_t       c;
    ngx_idempotency_digest_t      d;
    ngx_idempotency_multipart_t  *m;

    c.flags = NGX_IDEMPOTENCY_CANON_ALL;
    c.ignore = NULL;

    ngx_idempotency_digest_init(&d, NGX_IDEMPOTENCY_DIGEST_BODY);

    if (kind != NGX_IDEMPOTENCY_CANON_MULTIPART) {
        rc = ngx_idempotency_canon_body(&d, kind, &c, body->data, body->len,
                                        pool);
    } else {
        m = ngx_idempotency_multipart_create(pool, &c, &boundary);
        if (m == NULL) {
            return NGX_ERROR;
        }

        for (offset = 0; offset < body->len; offset += n) {
            n = ngx_min(body->len - offset, 4096);
            (void) ngx_idempotency_multipart_feed(m, body->data + offset, n);
        }

        rc = ngx_idempotency_multipart_final(m, &d);
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
    char        *name;
    ngx_uint_t   kind;
    char        *before;
    char        *text;
    char        *behind;
    ngx_int_t    rc;
} large_t;


#define FORM       NGX_IDEMPOTENCY_CANON_FORM
#define JSON       NGX_IDEMPOTENCY_CANON_JSON
#define MULTIPART  NGX_IDEMPOTENCY_CANON_MULTIPART
#define TEXT       NGX_IDEMPOTENCY_CANON_TEXT

#define PART       "--b\r\nContent-Disposition: form-data; name="

#define LONG       "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"


static large_t  larges[] = {
    { "fields", FORM, "", "a&", "", NGX_OK },
    { "fields, downwards", FORM, "", "%=1&", "", NGX_OK },
    { "long names alike", FORM, "", LONG "%&", "", NGX_OK },
    { "escapes", FORM, "a=", "+", "", NGX_OK },
    { "separators", FORM, "", "&", "", NGX_OK },
    { "equals signs", FORM, "", "=", "", NGX_OK },
    { "members", JSON, "{", "\"%\":1,", "\"\":1}", NGX_OK },
    { "members of one name", JSON, "{", "\"b\":1,", "\"a\":1}", NGX_OK },
    { "long names alike, in JSON", JSON, "{", "\"" LONG "%\":1,", "\"\":1}",
      NGX_OK },
    { "elements", JSON, "[", "1,", "1]", NGX_OK },
    { "objects", JSON, "[", "{\"b\":1,\"a\":2},", "1]", NGX_OK },
    { "empty arrays", JSON, "[", "[],", "1]", NGX_OK },
    { "escapes, in JSON", JSON, "\"", "\\u0041", "\"", NGX_OK },
    { "strings with an escape", JSON, "[", "\"\\n\",", "1]", NGX_OK },
    { "digits", JSON, "1", "0", "", NGX_OK },
    { "digits behind a point", JSON, "0.", "0", "1", NGX_OK },
    { "digits of an exponent", JSON, "1e", "0", "1", NGX_OK },
    { "numbers", JSON, "[", "1e5,", "1.0]", NGX_OK },
    { "white space", JSON, "", " ", "1", NGX_OK },
    { "depth", JSON, "", "[", "", NGX_DECLINED },
    { "depth of objects", JSON, "", "{\"b\":1,\"a\":", "", NGX_DECLINED },
    { "a string without an end", JSON, "\"", "a", "", NGX_DECLINED },
    { "spoilt at the end", JSON, "{", "\"%\":1,", "}", NGX_DECLINED },
    { "line ends", MULTIPART, PART "a\r\n\r\n", "\r\n", "\r\n--b--", NGX_OK },
    { "carriage returns", MULTIPART, PART "a\r\n\r\n", "\r", "\r\n--b--",
      NGX_OK },
    { "delimiters begun", MULTIPART, PART "a\r\n\r\n", "\r\n-", "\r\n--b--",
      NGX_OK },
    { "parts", MULTIPART, "", PART "a\r\n\r\n\r\n", "--b--", NGX_DECLINED },
    { "headers", MULTIPART, PART "a\r\n", "X: y\r\n", "\r\n\r\n--b--",
      NGX_DECLINED },
    { "white space of text", TEXT, "a", " \n", "b", NGX_OK },
    { "white space begun", TEXT, "a", "\xe2\x80", "b", NGX_OK },
};


static double
seconds(large_t *large, size_t size, ngx_uint_t downwards)
{
    double           start, spent, best;
    u_char           out[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_str_t        body;
    ngx_uint_t       i;
    ngx_pool_t      *pool;
    struct timespec  ts;

    body = repeated(large->before, large->text, large->behind, size,
                    downwards);
    best = 1e9;

    for (i = 0; i < 3; i++) {
        pool = ngx_create_pool(4096, unit_cycle.log);

        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
        start = ts.tv_sec + ts.tv_nsec / 1e9;

        check(digest(large->kind, &body, pool, out) == large->rc);

        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
        spent = ts.tv_sec + ts.tv_nsec / 1e9 - start;
        best = ngx_min(best, spent);

        ngx_destroy_pool(pool);
    }

    ngx_free(body.data);

    return best;
}


/*
 * Four megabytes against one: four times as long and a little more.  What is
 * quadratic takes 16 times as long.
 */

static void
time_grows_with_the_size(void)
{
    double      one, four;
    ngx_uint_t  i, downwards;

    for (i = 0; i < sizeof(larges) / sizeof(larges[0]); i++) {
        for (downwards = 0; downwards < 2; downwards++) {

            one = seconds(&larges[i], MEGABYTE, downwards);
            four = seconds(&larges[i], 4 * MEGABYTE, downwards);

            if (!check(four < 10 * one + 0.05)) {
                unit_note("%s: %.4f s, four times as many: %.4f s",
                          larges[i].name, one, four);
            }
        }
    }
}


/* with each number of allocations: all or nothing, and the same in the end */

static void
memory_runs_out(void)
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


static void
memory_runs_out_for_a_field(void)
{
    ngx_int_t    rc, n;
    ngx_str_t    value, body;
    ngx_uint_t   i;
    ngx_pool_t  *pool;

    static ngx_str_t  name = ngx_string("a");
    static struct { ngx_uint_t kind; char *text; }  bodies[] = {
        { FORM, "b=+&a=%41" },
        { JSON, "{\"c\":\"\\n\",\"a\":\"\\u0041\"}" },
    };

    for (i = 0; i < 2; i++) {
        body.data = (u_char *) bodies[i].text;
        body.len = ngx_strlen(body.data);

        for (n = 0, rc = NGX_ERROR; rc == NGX_ERROR; n++) {
            pool = ngx_create_pool(4096, unit_cycle.log);

            allowed = n;
            rc = ngx_idempotency_canon_field(bodies[i].kind, body.data,
                                             body.len, &name, &value, pool);
            allowed = -1;

            check(rc == NGX_ERROR || (value.len == 1 && *value.data == 'A'));

            ngx_destroy_pool(pool);
        }

        check(rc == NGX_OK);
        check(n > 2);
    }
}


/* what is common takes no memory for each element */

static void
memory_is_for_the_body_as_a_whole(void)
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

static void
sorting_is_stable(void)
{
    u_char                   letters[600];
    uint64_t                 seed;
    ngx_uint_t               i, k, n, round;
    ngx_idempotency_name_t   names[200], tmp[200], simple[200], name;

    seed = unit_setting("UNIT_SEED", 1);

    for (round = 0; round < 2000; round++) {

        for (i = 0; i < sizeof(letters); i++) {
            letters[i] = (u_char) unit_below(&seed, 2);
        }

        n = unit_below(&seed, 200);

        for (i = 0; i < n; i++) {
            ngx_idempotency_name_set(&names[i],
                                     &letters[unit_below(&seed, 500)],
                                     unit_below(&seed, round % 20 + 1), i);

            name = names[i];

            for (k = i; k > 0; k--) {
                if (ngx_memn2cmp(simple[k - 1].name, name.name,
                                 simple[k - 1].len, name.len)
                    <= 0)
                {
                    break;
                }

                simple[k] = simple[k - 1];
            }

            simple[k] = name;
        }

        ngx_idempotency_names_sort(names, tmp, n);

        for (i = 0; i < n; i++) {
            if (!check_equal(names[i].index, simple[i].index)) {
                return;
            }
        }
    }

    check(round == 2000);
}


static void
nothing_too_large(void)
{
    u_char                     c;
    ngx_str_t                  name, value;
    ngx_idempotency_canon_t    canon;
    ngx_idempotency_digest_t   d;

    c = '1';
    canon.flags = NGX_IDEMPOTENCY_CANON_ALL;
    canon.ignore = NULL;
    ngx_str_set(&name, "a");

    ngx_idempotency_digest_init(&d, NGX_IDEMPOTENCY_DIGEST_BODY);

    check_equal(ngx_idempotency_canon_body(&d, JSON, &canon, &c,
                                           NGX_IDEMPOTENCY_CANON_SIZE + 1,
                                           unit_pool),
                NGX_DECLINED);
    check_equal(ngx_idempotency_canon_field(JSON, &c,
                                            NGX_IDEMPOTENCY_CANON_SIZE + 1,
                                            &name, &value, unit_pool),
                NGX_DECLINED);
    check_equal(ngx_idempotency_canon_body(&d, 0, &canon, &c, 1, unit_pool),
                NGX_DECLINED);
    check_equal(ngx_idempotency_canon_field(TEXT, &c, 1, &name, &value,
                                            unit_pool),
                NGX_DECLINED);
}


/* bytes that happen to be what an encoding is digested as */

static void
bytes_are_no_encoding(void)
{
    u_char                     raw[NGX_IDEMPOTENCY_DIGEST_LEN],
                               out[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_str_t                  body;
    ngx_idempotency_digest_t   d;

    ngx_str_set(&body, "1");
    check(digest(JSON, &body, unit_pool, out) == NGX_OK);

    ngx_idempotency_digest_init(&d, NGX_IDEMPOTENCY_DIGEST_BODY);
    ngx_idempotency_digest_bytes(&d, (u_char *) "J#\0011", 4);
    ngx_idempotency_digest_final(&d, raw);
    check(ngx_memcmp(raw, out, sizeof(raw)) == 0);

    ngx_idempotency_digest_init(&d, NGX_IDEMPOTENCY_DIGEST_BODY);
    ngx_idempotency_canon_raw(&d);
    ngx_idempotency_digest_bytes(&d, (u_char *) "J#\0011", 4);
    ngx_idempotency_digest_final(&d, raw);
    check(ngx_memcmp(raw, out, sizeof(raw)) != 0);
}


int
main(void)
{
    static unit_case_t  cases[] = {
        { "time grows with the size", time_grows_with_the_size },
        { "memory runs out", memory_runs_out },
        { "memory runs out for a field", memory_runs_out_for_a_field },
        { "memory is for the body as a whole",
          memory_is_for_the_body_as_a_whole },
        { "sorting is stable", sorting_is_stable },
        { "nothing too large", nothing_too_large },
        { "bytes are no encoding", bytes_are_no_encoding },
        unit_cases_end
    };

    return unit_run(cases);
}
