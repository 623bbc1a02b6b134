
/*
 * JSON.  White space between tokens doesn't count, nor does an escape instead
 * of a letter, nor the order of an object's two halves if their names differ;
 * if they don't, in whatever letters, it goes by its bytes.
 */


#include "fuzz.h"


static size_t respell(u_char *dst, const uint8_t *data, size_t size);


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t                    len;
    u_char                   *text, *p;
    uint64_t                  random;
    ngx_int_t                 rc;
    ngx_str_t                *name, value, bad;
    ngx_uint_t                i;
    ngx_pool_t               *pool;
    ngx_array_t              *names;
    fuzz_digest_t             plain, first, other;
    ngx_idempotency_canon_t   c;

    static char              *ignored[] = { "a", "/b/c", "/0/1", "/", "/b/c/d",
                                            "/1" };
    static char              *twice[][2] = { { "y", "y" }, { "y", "Y" },
                                             { "aS", "A\\u017f" },
                                             { "\\u212a\\t", "k\\t" } };
    static const ngx_idempotency_kind_t  *json = &ngx_idempotency_json_kind;

    if (size == 0) {
        return 0;
    }

    pool = fuzz_pool();

    c.flags = json->flag;
    c.ignore = NULL;

    names = ngx_array_create(pool, 2, sizeof(ngx_str_t));

    for (i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++) {
        name = ngx_array_push(names);
        name->data = (u_char *) ignored[i];
        name->len = ngx_strlen(ignored[i]);
    }

    if (data[0] & 1) {
        hold(ngx_idempotency_canon_ignore(&c, names, &bad, pool) == NGX_OK);
    }

    random = data[0];
    data++;
    size--;

    text = ngx_palloc(pool, 8 * size + 64);
    plain = fuzz_body(json, &c, data, size);

    len = respell(text, data, size);
    other = fuzz_body(json, &c, text, len);
    hold(fuzz_equal(&plain, &other));

    /* as a member before and behind another one; not deeper than allowed */

    if (plain.rc == NGX_OK && c.ignore == NULL) {

        p = ngx_sprintf(text, "{\"x\":1,\"y\":");
        p = ngx_cpymem(p, data, size);
        *p++ = '}';
        first = fuzz_body(json, &c, text, p - text);

        p = ngx_sprintf(text, "{\"y\":");
        p = ngx_cpymem(p, data, size);
        p = ngx_sprintf(p, ",\"\\u0078\":10e-1}");
        other = fuzz_body(json, &c, text, p - text);

        hold(fuzz_equal(&first, &other));
    }

    for (i = 0; i < sizeof(twice) / sizeof(twice[0]); i++) {
        p = ngx_sprintf(text, "{\"%s\":", twice[i][0]);
        p = ngx_cpymem(p, data, size);
        p = ngx_sprintf(p, ",\"x\":1,\"%s\":2}", twice[i][1]);
        other = fuzz_body(json, &c, text, p - text);
        hold(other.rc == NGX_DECLINED);
    }

    /* what is well-formed can be read */

    rc = fuzz_field(json, data, size, &random, &value);
    hold(rc != NGX_IDEMPOTENCY_UNREADABLE || plain.rc != NGX_OK);

    /* and so can what is in front of anything */

    p = ngx_sprintf(text, "{\"a\":\"x\",\"b\":");
    p = ngx_cpymem(p, data, size);
    rc = fuzz_field(json, text, p - text, &random, &value);
    hold(rc == NGX_OK && value.len == 1 && value.data[0] == 'x');

    return 0;
}


/* white space around what separates, and letters of strings by number */

static size_t
respell(u_char *dst, const uint8_t *data, size_t size)
{
    size_t      i;
    u_char     *p;
    ngx_uint_t  string;

    p = dst;
    string = 0;

    *p++ = ' ';

    for (i = 0; i < size; i++) {

        if (!string) {

            if (ngx_strchr("{}[],:", data[i]) && data[i]) {
                *p++ = '\t';
                *p++ = data[i];
                *p++ = '\n';
                continue;
            }

            string = (data[i] == '"');
            *p++ = data[i];
            continue;
        }

        if (data[i] == '\\') {
            *p++ = data[i];

            if (++i == size) {
                break;
            }

            *p++ = data[i];

            if (data[i] == 'u') {

                /* its digits stay what they are */

                for ( /* void */ ;
                     i + 1 < size && ngx_strchr("0123456789abcdefABCDEF",
                                                data[i + 1])
                     && data[i + 1];
                     i++)
                {
                    *p++ = data[i + 1];
                }
            }

            continue;
        }

        string = (data[i] != '"');

        if ((data[i] | 0x20) >= 'g' && (data[i] | 0x20) <= 'z') {
            p = ngx_sprintf(p, "\\u00%02xi", (int) data[i]);
            continue;
        }

        *p++ = data[i];
    }

    *p++ = '\r';

    return p - dst;
}
