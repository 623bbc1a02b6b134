
/*
 * Speed of the digests of bodies by their meaning, and what the worst bodies
 * of a megabyte take.  Run by bench/digest.
 */


#include <malloc.h>

#include "unit.h"
#include "digest/ngx_idempotency_encode.h"


#define TEXT  "Please+ring+twice%2C+and+leave+it+at+the+door.%0D%0AThe+"      \
              "bell+is+on+the+left%2C+thanks+a+lot%21"


typedef struct {
    char                          *name;
    const ngx_idempotency_kind_t  *kind;
    ngx_str_t                      data;
    char                          *target;
} body_t;


static ngx_pool_t  *pool;
static ngx_log_t    bench_log;
static ngx_uint_t   hashing;
static double       seconds = 0.3;

static ngx_str_t    boundary = ngx_string("----WebKitFormBoundary7MA4YWxkTrZ");


static size_t       memory, peak;


void *__real_malloc(size_t size);
int __real_posix_memalign(void **p, size_t alignment, size_t size);
void __real_free(void *p);
void *__wrap_malloc(size_t size);
int __wrap_posix_memalign(void **p, size_t alignment, size_t size);
void __wrap_free(void *p);
int __real_SHA256_Update(void *c, const void *data, size_t len);
int __wrap_SHA256_Update(void *c, const void *data, size_t len);


/* how long it takes without SHA-256 */

int
__wrap_SHA256_Update(void *c, const void *data, size_t len)
{
    return hashing ? __real_SHA256_Update(c, data, len) : 1;
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


/* the processor's, as others may be busy on the machine, too */

static double
now(void)
{
    struct timespec  ts;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);

    return ts.tv_sec + ts.tv_nsec / 1e9;
}


static u_char *
json_order(u_char *p, ngx_uint_t i, ngx_uint_t pretty)
{
    char  *nl, *sp;

    nl = pretty ? "\n    " : "";
    sp = pretty ? " " : "";

    return ngx_sprintf(p,
        "{%s\"id\":%s%ui,%s\"status\":%s\"confirmed\",%s\"customer\":%s"
        "{\"name\":%s\"J\xc3\xbcrgen Example %ui\",%s\"email\":%s"
        "\"user%ui@example.org\",%s\"vip\":%s%s,%s\"phone\":%snull},%s"
        "\"items\":%s[{\"sku\":%s\"A-%05ui\",%s\"qty\":%s%ui,%s\"price\":%s"
        "%ui.%ui5},%s{\"sku\":%s\"B-%05ui\",%s\"qty\":%s1,%s\"price\":%s"
        "12.50}],%s\"total\":%s%ui.00,%s\"currency\":%s\"EUR\",%s\"address\":%s"
        "{\"street\":%s\"Long Street %ui\",%s\"zip\":%s\"%05ui\",%s"
        "\"city\":%s\"Springfield\",%s\"country\":%s\"DE\"},%s\"created\":%s"
        "\"2024-05-17T09:21:44Z\",%s\"note\":%s\"Please ring twice, and "
        "leave it at the door\\nThanks\"}",
        nl, sp, 100000 + i, nl, sp, nl, sp, sp, i, nl, sp, i, nl, sp,
        i % 2 ? "true" : "false", nl, sp, nl, sp, sp, i * 7, nl, sp, i % 9 + 1,
        nl, sp, i % 90 + 1, i % 9, nl, sp, i * 3, nl, sp, nl, sp, nl, sp,
        i % 1000, nl, sp, nl, sp, sp, i % 200, nl, sp, i * 11, nl, sp, nl, sp,
        nl, sp, nl, sp);
}


static ngx_str_t
json_orders(size_t size, ngx_uint_t pretty)
{
    ngx_str_t   s;
    ngx_uint_t  i;

    s.data = malloc(size + 4096);
    s.data[0] = '[';
    s.len = 1;

    for (i = 0; s.len < size; i++) {
        s.len = json_order(s.data + s.len, i, pretty) - s.data;
        s.data[s.len++] = ',';
    }

    s.data[s.len - 1] = ']';

    return s;
}


static ngx_str_t
json_one(void)
{
    ngx_str_t  s;

    s.data = malloc(4096);
    s.len = json_order(s.data, 77, 0) - s.data;

    return s;
}


static ngx_str_t
form(size_t size, char *comment)
{
    u_char      *p;
    ngx_str_t    s;
    ngx_uint_t   i;

    static char  *names[] = { "name", "email", "street", "city", "comment",
                              "items%5B%5D", "qty", "agree", "csrf_token" };
    char         *values[] = { "J%C3%BCrgen+Example", "user%40example.org",
                               "Long+Street+12", "Springfield",
                               comment, "A-00412", "3", "on",
                               "b5f9c1d2e3a4958677665544332211ff" };

    s.data = malloc(size + 4096);
    p = s.data;

    for (i = 0; p == s.data || (size_t) (p - s.data) < size; i++) {
        p = ngx_sprintf(p, "%s%s=%s", i ? "&" : "", names[i % 9],
                        values[i % 9]);
    }

    s.len = p - s.data;

    return s;
}


/* fields, and a file whose every 97th byte begins what might be an end */

static ngx_str_t
multipart(size_t size)
{
    u_char      *p;
    size_t       i;
    ngx_str_t    s;
    ngx_uint_t   n;

    s.data = malloc(size + 8192);
    p = s.data;

    for (n = 0; n < 2; n++) {
        p = ngx_sprintf(p, "--%V\r\nContent-Disposition: form-data; "
                        "name=\"field%ui\"\r\n\r\nvalue %ui\r\n", &boundary,
                        2 - n, n);
    }

    p = ngx_sprintf(p, "--%V\r\nContent-Disposition: form-data; name=\"file\";"
                    " filename=\"a.bin\"\r\nContent-Type: application/pdf"
                    "\r\n\r\n", &boundary);

    for (i = 0; i < size; i++) {
        *p++ = (i % 97 == 0) ? '\r' : (u_char) (i * 31 >> 3);
    }

    p = ngx_sprintf(p, "\r\n--%V--\r\n", &boundary);
    s.len = p - s.data;

    return s;
}


static void
one(body_t *body)
{
    void                     *m;
    size_t                    n, len;
    u_char                   *p, out[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_int_t                 rc;
    ngx_idempotency_canon_t   c;
    ngx_idempotency_digest_t  d;

    c.flags = NGX_IDEMPOTENCY_CANON_ALL & ~NGX_IDEMPOTENCY_CANON_TEXT;
    c.ignore = NULL;

    ngx_idempotency_digest_init(&d, NULL, 1, NGX_IDEMPOTENCY_DIGEST_BODY);

    if (body->kind == NULL) {
        ngx_idempotency_canon_raw(&d);
        ngx_idempotency_digest_bytes(&d, body->data.data, body->data.len);
        rc = NGX_OK;

    } else if (body->kind->start) {
        m = body->kind->start(pool, &c, &boundary, NULL);

        p = body->data.data;

        for (len = body->data.len; len; len -= n, p += n) {
            n = ngx_min(len, 16384);
            (void) body->kind->feed(m, p, n);
        }

        rc = body->kind->finish(m, &d);

    } else {
        rc = ngx_idempotency_canon_body(&d, body->kind, &c, body->data.data,
                                        body->data.len, pool);
    }

    if (rc != NGX_OK) {
        fprintf(stderr, "%s: malformed\n", body->name);
        exit(1);
    }

    ngx_idempotency_digest_final(&d, out);
    ngx_reset_pool(pool);
}


/* the best of some rounds, as everything else on the machine only adds */

static double
each(body_t *body, ngx_uint_t hash)
{
    double      start, best, spent, all;
    ngx_uint_t  i, n;

    hashing = hash;
    best = 1e9;
    n = 1 + 100000 / (body->data.len + 1000);

    for (all = 0; all < seconds; all += spent) {
        start = now();

        for (i = 0; i < n; i++) {
            one(body);
        }

        spent = now() - start;
        best = ngx_min(best, spent / n);
    }

    return best;
}


/*
 * Bodies that somebody makes to keep a worker busy: times over again, with a
 * number where there is a percent sign.  A tilde is the boundary.
 */

#define FORM       (&ngx_idempotency_form_kind)
#define JSON       (&ngx_idempotency_json_kind)
#define MULTIPART  (&ngx_idempotency_multipart_kind)
#define FOLDED     (&ngx_idempotency_text_kind)

#define PART       "--~\r\nContent-Disposition: form-data; name="

#define LONG       "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define CAPS       "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"


static struct {
    char                          *name;
    const ngx_idempotency_kind_t  *kind;
    char                          *before;
    char                          *text;
    char                          *behind;
} worst[] = {
    { "form: 524,288 fields", FORM, "", "a&", "" },
    { "form: 524,288 wanted and empty ones", FORM, "", "=&", "" },
    { "form: 524,288 fields to be left out", FORM, "", "z&", "" },
    { "form: separators", FORM, "", "&", "" },
    { "form: one escape after the other", FORM, "b=", "+", "" },
    { "form: a percent sign in each name", FORM, "", "%%41&", "" },
    { "form: 31,775 fields", FORM, "", "aaaaaaaaaaaaaaaaaaaaaaa%=1&", "" },
    { "form: 31,775 fields, escaped", FORM, "", "aaaaaaaaaaaaaaaaaaaa%+=+&",
      "" },
    { "form: 16,644 names alike", FORM, "", LONG "%", "" },
    { "form: 16,000 names alike, with an end", FORM, "", LONG "%&", "" },
    { "form: names that end one after the other", FORM, "",
      LONG LONG LONG "&" LONG LONG "%&" LONG LONG LONG LONG "%&" LONG "&", "" },
    { "form: 2,200 names alike", FORM, "", LONG LONG LONG LONG LONG LONG LONG
      LONG "%&", "" },
    { "form: a value of 1 MB that is wanted", FORM, "tok=", "x", "" },
    { "form: spaces in a value that is wanted", FORM, "tok=", "+", "" },
    { "form: escapes in a value that is wanted", FORM, "tok=", "%%41", "" },
    { "JSON: [0,0,...]", JSON, "[", "0,", "0]" },
    { "JSON: 65,000 strings", JSON, "[", "\"aaaaaa\\n%\",", "0]" },
    { "JSON: 63,000 numbers", JSON, "[", "-%.0000e-1,", "0]" },
    { "JSON: 16,131 members, alike", JSON, "{", "\"" LONG "%\":1,",
      "\"\":1}" },
    { "JSON: 15,300 members, alike but for letter case", JSON, "{",
      "\"" LONG "a%\":1,\"" CAPS "B%\":1,", "\"\":1}" },
    { "JSON: 15,900 members, alike, escaped", JSON, "{",
      "\"" LONG "\\n%\":1,", "\"\":1}" },
    { "JSON: members to be left out", JSON, "{", "\"u\":12345678,",
      "\"\":1}" },
    { "JSON: 100,000 members", JSON, "{", "\"%\":1,", "\"\":1}" },
    { "JSON: 61,000 members in 2-member objects", JSON, "[",
      "{\"aaaaaaaa%b\":1,\"aaaaaaaa%a\":2},", "0]" },
    { "JSON: members of one name", JSON, "{", "\"b\":1,", "\"a\":1}" },
    { "JSON: escapes", JSON, "\"", "\\u0041", "\"" },
    { "JSON: surrogates", JSON, "\"", "\\ud800", "\"" },
    { "JSON: escapes in a name that is looked at", JSON, "{\"", "\\n",
      "\":1}" },
    { "JSON: escapes in names that are looked at", JSON, "{",
      "\"\\n\":1,", "\"\":1}" },
    { "JSON: escapes in a value that is wanted", JSON, "{\"tok\":\"", "\\n",
      "\"}" },
    { "JSON: surrogates in a value that is wanted", JSON, "{\"tok\":\"",
      "\\ud800", "\"}" },
    { "JSON: characters beyond ASCII", JSON, "\"", "\xc3\xa4.", "\"" },
    { "JSON: white space", JSON, "", " ", "0" },
    { "JSON: wrong at the end", JSON, "[", "\"aaaaaa\\n%\",", "0" },
    { "text: white space begun", FOLDED, "a", "\xe2\x80", "b" },
    { "text: white space", FOLDED, "a", "\xe2\x80\x83.", "b" },
    { "multipart: 4,096 parts", MULTIPART, "", PART
      "a%\r\nContent-Type: " LONG LONG LONG "\r\n\r\n\r\n", "--~--" },
    { "multipart: 16,000 parts", MULTIPART, "", PART "a\r\n\r\n\r\n",
      "--~--" },
    { "multipart: long names", MULTIPART, "", PART LONG LONG LONG LONG LONG
      LONG LONG LONG LONG LONG LONG LONG LONG LONG LONG LONG LONG LONG LONG
      "%\r\n\r\n\r\n", "--~--" },
    { "multipart: line ends", MULTIPART, PART "a\r\n\r\n", "\r\n",
      "\r\n--~--" },
    { "multipart: delimiters begun", MULTIPART, PART "a\r\n\r\n", "\r\n-",
      "\r\n--~--" },
    { "multipart: parameters", MULTIPART, "", PART "a;;;;;;;;;;;;;;;;;;;;;;;;"
      ";=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;="
      ";=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;=;="
      "\r\n\r\n\r\n", "--~--" },
    { "multipart: parameters that count", MULTIPART, "", PART "a;b=c;b=c;b=c;b=c"
      ";b=c;b=c;b=c;b=c;b=c;b=c;b=c;b=c;b=c;b=c;b=c;b=c;b=c;b=c;b=c;b=c;b=c"
      ";b=c;b=c;b=c;b=c;b=c;b=c;b=c;b=c;b=c;b=c;b=c;b=c;b=c;b=c;b=c;b=c;b=c"
      "\r\n\r\n\r\n", "--~--" },
};


static u_char *
written(u_char *dst, char *text, ngx_uint_t n)
{
    for ( /* void */ ; *text; text++) {

        if (text[0] == '%' && text[1] == '%') {
            *dst++ = *text++;

        } else if (*text == '%') {
            dst = ngx_sprintf(dst, "%07ui", 9999999 - n);

        } else if (*text == '~') {
            dst = ngx_sprintf(dst, "%V", &boundary);

        } else {
            *dst++ = *text;
        }
    }

    return dst;
}


static ngx_str_t
made(ngx_uint_t n)
{
    u_char      *p;
    ngx_str_t    s;
    ngx_uint_t   i;

    s.data = malloc(2000000);
    p = written(s.data, worst[n].before, 0);

    for (i = 0; p - s.data < 1048000; i++) {
        p = written(p, worst[n].text, i);
    }

    p = written(p, worst[n].behind, 0);
    s.len = p - s.data;

    return s;
}


/*
 * All that a request does: pieces, three names to be found and eight to be left
 * out, and bytes where it must be
 */

static ngx_int_t
all_told(const ngx_idempotency_kind_t *kind, ngx_str_t *body)
{
    void                      *m;
    size_t                     n, len;
    u_char                    *p, *copy, out[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_int_t                  rc;
    ngx_str_t                  bad;
    ngx_array_t                array;
    ngx_idempotency_canon_t    c;
    ngx_idempotency_digest_t   d;
    ngx_idempotency_fields_t  *f;

    static ngx_str_t  names[] = { ngx_string("tok"), ngx_string("a"),
                                  ngx_string("submission_token") };
    static ngx_str_t  ignored[] = { ngx_string("b"), ngx_string("csrf_token"),
                                    ngx_string("ts"), ngx_string("/b/ts"),
                                    ngx_string("/items/0/b/c/d"),
                                    ngx_string("t"), ngx_string("u"),
                                    ngx_string("z") };

    c.flags = NGX_IDEMPOTENCY_CANON_ALL;

    if (kind != FOLDED) {
        c.flags &= ~NGX_IDEMPOTENCY_CANON_TEXT;
    }

    array.elts = ignored;
    array.nelts = 8;

    (void) ngx_idempotency_canon_ignore(&c, &array, &bad, pool);

    ngx_idempotency_digest_init(&d, NULL, 1, NGX_IDEMPOTENCY_DIGEST_BODY);

    f = ngx_idempotency_fields_create(pool, kind, names, 3, 1048576);
    m = NULL;

    if (kind->start) {
        m = kind->start(pool, &c, &boundary, f);
    }

    p = body->data;

    for (len = body->len; len; len -= n, p += n) {
        n = ngx_min(len, 16384);

        if (m) {
            (void) kind->feed(m, p, n);

        } else {
            (void) ngx_idempotency_fields_feed(f, p, n);
        }
    }

    if (m) {
        rc = kind->finish(m, &d);

    } else {
        ngx_idempotency_fields_end(f);

        copy = ngx_palloc(pool, body->len);
        ngx_memcpy(copy, body->data, body->len);

        rc = ngx_idempotency_canon_body(&d, kind, &c, copy, body->len, pool);
    }

    if (rc != NGX_OK) {
        ngx_idempotency_digest_init(&d, NULL, 1, NGX_IDEMPOTENCY_DIGEST_BODY);
        ngx_idempotency_canon_raw(&d);
        ngx_idempotency_digest_bytes(&d, body->data, body->len);
    }

    ngx_idempotency_digest_final(&d, out);

    return rc;
}


static void
worst_of_all(void)
{
    double      start, spent, best;
    size_t      before;
    ngx_int_t   rc;
    ngx_str_t   body;
    ngx_uint_t  i, round;

    hashing = 1;

    printf("\n| 1 MB of | digested by | time | memory |\n|---|---|--:|--:|\n");

    for (i = 0; i < sizeof(worst) / sizeof(worst[0]); i++) {

        body = made(i);
        best = 1e9;

        for (round = 0; round < 10; round++) {
            ngx_destroy_pool(pool);

            before = memory;
            peak = memory;
            start = now();

            pool = ngx_create_pool(4096, &bench_log);
            rc = all_told(worst[i].kind, &body);

            spent = now() - start;
            best = ngx_min(best, spent);
        }

        printf("| %s | %s | %.1f ms | %.1f × |\n", worst[i].name,
               rc == NGX_OK ? "meaning" : "bytes", best * 1e3,
               (double) (peak - before) / body.len);

        free(body.data);
    }
}


int
main(int argc, char **argv)
{
    double      whole, bare;
    ngx_uint_t  i;

    body_t      bodies[] = {
        { "JSON, 1 object", JSON, json_one(),
          "≤ 1.5 µs per 500 bytes" },
        { "JSON", JSON, json_orders(1000000, 0), "≥ 400 MB/s" },
        { "JSON, indented", JSON,
          json_orders(1000000, 1), "≥ 400 MB/s" },
        { "form", FORM, form(470, TEXT),
          "≤ 1.5 µs per 500 bytes" },
        { "form", FORM,
          form(1000000, TEXT TEXT TEXT TEXT TEXT), "≥ 400 MB/s" },
        { "form, many fields", FORM,
          form(600000, ""), "" },
        { "multipart", MULTIPART, multipart(100), "" },
        { "multipart", MULTIPART, multipart(4000000),
          "hash speed" },
        { "bytes", NULL, form(470, TEXT), "" },
        { "bytes", NULL, json_orders(4000000, 0), "hash speed" },
    };

    if (argc > 1) {
        seconds = atof(argv[1]);
    }

    ngx_pagesize = getpagesize();
    pool = ngx_create_pool(4096, &bench_log);

    printf("| body | bytes | all told | without SHA-256 | target |\n"
           "|---|--:|--:|--:|---|\n");

    for (i = 0; i < sizeof(bodies) / sizeof(body_t); i++) {

        whole = each(&bodies[i], 1);
        bare = each(&bodies[i], 0);

        printf("| %s | %zu | %.2f µs, %.0f MB/s | ", bodies[i].name,
               bodies[i].data.len, whole * 1e6,
               bodies[i].data.len / whole / 1e6);

        if (bodies[i].kind) {
            printf("%.2f µs, %.0f MB/s", bare * 1e6,
                   bodies[i].data.len / bare / 1e6);
        }

        printf(" | %s |\n", bodies[i].target);
    }

    worst_of_all();

    return 0;
}
