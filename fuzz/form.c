
/*
 * Forms.  Empty fields don't count, nor does how a byte is written, nor the
 * order of fields whose names are of different groups.
 */


#include "fuzz.h"


static size_t respell(u_char *dst, const uint8_t *data, size_t size);
static size_t reorder(u_char *dst, const uint8_t *data, size_t size);
static size_t group_length(const uint8_t *data, size_t len);


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t                    len;
    u_char                   *text;
    uint64_t                  random;
    ngx_int_t                 rc;
    ngx_str_t                *name, value;
    ngx_pool_t               *pool;
    ngx_array_t              *names;
    fuzz_digest_t             plain, other;
    ngx_idempotency_canon_t   c;

    static const ngx_idempotency_kind_t  *form = &ngx_idempotency_form_kind;

    if (size == 0) {
        return 0;
    }

    pool = fuzz_pool();

    c.flags = form->flag | (data[0] & 1 ? NGX_IDEMPOTENCY_CANON_TEXT : 0);
    c.ignore = NULL;

    names = ngx_array_create(pool, 2, sizeof(ngx_str_t));
    name = ngx_array_push(names);
    ngx_str_set(name, "a");

    if (data[0] & 2) {
        hold(ngx_idempotency_canon_ignore(&c, names, &value, pool) == NGX_OK);
    }

    random = data[0];
    data++;
    size--;

    text = ngx_palloc(pool, 3 * size + 8);
    plain = fuzz_body(form, &c, data, size);

    text[0] = '&';
    ngx_memcpy(text + 1, data, size);
    ngx_memcpy(text + 1 + size, "&&=&", 4);
    other = fuzz_body(form, &c, text, size + 5);
    hold(fuzz_equal(&plain, &other));

    len = respell(text, data, size);
    other = fuzz_body(form, &c, text, len);
    hold(fuzz_equal(&plain, &other));

    len = reorder(text, data, size);

    if (len) {
        other = fuzz_body(form, &c, text, len);
        hold(fuzz_equal(&plain, &other));
    }

    /* what is well-formed can be read */

    rc = fuzz_field(form, data, size, &random, &value);
    hold(rc != NGX_IDEMPOTENCY_UNREADABLE || plain.rc != NGX_OK);

    return 0;
}


/* each byte by its number, but for what is so already or separates */

static size_t
respell(u_char *dst, const uint8_t *data, size_t size)
{
    size_t      i;
    u_char     *p;
    ngx_uint_t  value;

    p = dst;
    value = 0;

    for (i = 0; i < size; i++) {

        if (data[i] == '%') {

            /* with what it stands before, which is of the same field */

            *p++ = '%';

            for ( /* void */ ; i + 1 < size && p[-1] != '&'; i++) {
                if (data[i + 1] == '&' || data[i + 1] == '='
                    || data[i + 1] == '%' || p - dst >= (ssize_t) (3 * size))
                {
                    break;
                }

                *p++ = data[i + 1];
            }

            continue;
        }

        if (data[i] == '&' || (data[i] == '=' && !value)) {
            value = (data[i] == '=');
            *p++ = data[i];
            continue;
        }

        p = ngx_sprintf(p, "%%%02xi", data[i] == '+' ? ' ' : (int) data[i]);
    }

    return p - dst;
}


/*
 * Sorted by the length of the groups, stable; not for what is escaped, nor for
 * what stays in its order
 */

static size_t
reorder(u_char *dst, const uint8_t *data, size_t size)
{
    size_t          n, wanted;
    u_char         *p;
    const uint8_t  *start, *amp, *end;

    end = data + size;

    if (size == 0 || memchr(data, '%', size) || memchr(data, '+', size)) {
        return 0;
    }

    p = dst;

    for (wanted = 0; wanted <= 64; wanted++) {

        for (start = data; start < end; start = amp + 1) {
            amp = memchr(start, '&', end - start);

            if (amp == NULL) {
                amp = end;
            }

            if (start < amp && *start == '[' && memchr(start, ']', amp - start))
            {
                return 0;
            }

            n = group_length(start, amp - start);

            if (ngx_min(n, 64) == wanted) {
                p = ngx_cpymem(p, start, amp - start);
                *p++ = '&';
            }
        }
    }

    return p - dst;
}


static size_t
group_length(const uint8_t *data, size_t len)
{
    size_t  i, start;

    for (start = 0; start < len && data[start] == ' '; start++) { /* void */ }

    for (i = start; i < len && data[i] && data[i] != '='; i++) {
        if (strchr(" ._[", data[i])) {
            break;
        }
    }

    return i - start;
}
