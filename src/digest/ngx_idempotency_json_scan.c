
/*
 * JSON: strings, which must be UTF-8 and are decoded only if they have
 * escapes, and numbers, which are told by their decimal value.
 */


#include "ngx_idempotency_json.h"


/* more digits than these in an exponent are beyond our arithmetic */

#define NGX_IDEMPOTENCY_JSON_EXPONENT  18


static u_char *json_unescape(ngx_idempotency_json_t *j, u_char *p);
static u_char *json_escape(u_char *p, u_char *end, u_char **last);
static u_char *json_code_unit(u_char *p, u_char *end, uint32_t *unit);
static u_char *json_utf8(u_char *p, u_char *end);
static u_char *json_exponent(u_char *p, u_char *end);
static u_char *json_digits(u_char *p, u_char *end);
static int64_t json_power(u_char *p, u_char *end);
static u_char *json_put_power(u_char *dst, int64_t power);


/* the bytes that a plain string doesn't have */

static u_char  json_special[256] = {
    [0x00] = 1, [0x01] = 1, [0x02] = 1, [0x03] = 1, [0x04] = 1, [0x05] = 1,
    [0x06] = 1, [0x07] = 1, [0x08] = 1, [0x09] = 1, [0x0a] = 1, [0x0b] = 1,
    [0x0c] = 1, [0x0d] = 1, [0x0e] = 1, [0x0f] = 1, [0x10] = 1, [0x11] = 1,
    [0x12] = 1, [0x13] = 1, [0x14] = 1, [0x15] = 1, [0x16] = 1, [0x17] = 1,
    [0x18] = 1, [0x19] = 1, [0x1a] = 1, [0x1b] = 1, [0x1c] = 1, [0x1d] = 1,
    [0x1e] = 1, [0x1f] = 1, ['"'] = 1, ['\\'] = 1
};


/* up to what is no plain ASCII */

static ngx_inline u_char *
json_plain(u_char *p, u_char *end)
{
    uint64_t  w, x, y;

    while (end - p >= 8) {
        ngx_memcpy(&w, p, 8);

        x = w ^ (NGX_IDEMPOTENCY_EACH_BYTE * '"');
        y = w ^ (NGX_IDEMPOTENCY_EACH_BYTE * '\\');

        /* a byte that is zero here, below a space or not ASCII */

        w |= (w - NGX_IDEMPOTENCY_EACH_BYTE * ' ')
             | (x - NGX_IDEMPOTENCY_EACH_BYTE)
             | (y - NGX_IDEMPOTENCY_EACH_BYTE);
        w &= NGX_IDEMPOTENCY_HIGH_BITS;

        if (w) {
#if (NGX_HAVE_LITTLE_ENDIAN && __GNUC__)
            /* borrows go upwards only: the lowest one is none */
            return p + (__builtin_ctzll(w) >> 3);
#else
            break;
#endif
        }

        p += 8;
    }

    while (p < end && *p < 0x80 && !json_special[*p]) {
        p++;
    }

    return p;
}


/* up to what ends or interrupts a string */

static ngx_inline u_char *
json_run(ngx_idempotency_json_t *j, u_char *p)
{
    for ( ;; ) {
        p = json_plain(p, j->end);

        if (p == j->end) {
            return NULL;
        }

        if (*p < 0x80) {
            return p;
        }

        j->not_ascii = 1;
        p = json_utf8(p, j->end);

        if (p == NULL) {
            return NULL;
        }
    }
}


/* p: behind the quote */

u_char *
ngx_idempotency_json_string(ngx_idempotency_json_t *j, u_char *p,
    uint32_t *place, uint32_t *len)
{
    u_char  *start, *decoded;

    start = p;
    j->not_ascii = 0;
    p = json_run(j, p);

    if (p == NULL) {
        return NULL;
    }

    if (*p == '"') {
        *place = start - j->data;
        *len = p - start;

        return p + 1;
    }

    if (*p != '\\') {
        return NULL;
    }

    if (ngx_idempotency_json_scratch(j) != NGX_OK) {
        return NULL;
    }

    decoded = j->last;
    j->last = ngx_cpymem(decoded, start, p - start);

    p = json_unescape(j, p);

    *place = j->size + (decoded - j->scratch);
    *len = j->last - decoded;

    return p;
}


/* nothing decoded is longer than it was */

ngx_int_t
ngx_idempotency_json_scratch(ngx_idempotency_json_t *j)
{
    if (j->scratch) {
        return NGX_OK;
    }

    j->room = ngx_min(j->size, NGX_IDEMPOTENCY_JSON_FOLDED);

    j->scratch = ngx_palloc(j->pool, j->size + j->room);
    if (j->scratch == NULL) {
        j->no_memory = 1;
        return NGX_ERROR;
    }

    j->last = j->scratch;

    return NGX_OK;
}


/* p: the first backslash */

static u_char *
json_unescape(ngx_idempotency_json_t *j, u_char *p)
{
    u_char  *start;

    for ( ;; ) {
        p = json_escape(p, j->end, &j->last);

        if (p == NULL) {
            return NULL;
        }

        if (j->last[-1] >= 0x80) {
            j->not_ascii = 1;
        }

        start = p;
        p = json_run(j, p);

        if (p == NULL) {
            return NULL;
        }

        j->last = ngx_cpymem(j->last, start, p - start);

        if (*p == '"') {
            return p + 1;
        }

        if (*p != '\\') {
            return NULL;
        }
    }
}


static u_char *
json_escape(u_char *p, u_char *end, u_char **last)
{
    u_char    c, *next;
    uint32_t  unit, low, pair;

    if (end - p < 2) {
        return NULL;
    }

    if (p[1] != 'u') {
        c = ngx_idempotency_json_escape(p[1]);

        if (c == 0) {
            return NULL;
        }

        *(*last)++ = c;

        return p + 2;
    }

    p = json_code_unit(p, end, &unit);

    if (p == NULL) {
        return NULL;
    }

    /*
     * A surrogate alone is no character, but JSON.stringify() makes them of a
     * string that was cut: it stays what it is, and is no other
     */

    if (ngx_idempotency_json_high(unit)) {

        next = json_code_unit(p, end, &low);
        pair = next ? ngx_idempotency_json_pair(unit, low) : 0;

        if (pair) {
            unit = pair;
            p = next;
        }
    }

    *last = ngx_idempotency_json_utf8(*last, unit);

    return p;
}


static u_char *
json_code_unit(u_char *p, u_char *end, uint32_t *unit)
{
    uint32_t    n;
    ngx_int_t   digit;
    ngx_uint_t  i;

    if (end - p < 6 || p[0] != '\\' || p[1] != 'u') {
        return NULL;
    }

    n = 0;

    for (i = 2; i < 6; i++) {
        digit = ngx_idempotency_hex(p[i]);

        if (digit < 0) {
            return NULL;
        }

        n = n << 4 | (uint32_t) digit;
    }

    *unit = n;

    return p + 6;
}


/* a surrogate, too */

u_char *
ngx_idempotency_json_utf8(u_char *dst, uint32_t n)
{
    if (n < 0x80) {
        *dst++ = (u_char) n;
        return dst;
    }

    if (n < 0x800) {
        *dst++ = (u_char) (0xc0 | n >> 6);
        *dst++ = (u_char) (0x80 | (n & 0x3f));
        return dst;
    }

    if (n < 0x10000) {
        *dst++ = (u_char) (0xe0 | n >> 12);

    } else {
        *dst++ = (u_char) (0xf0 | n >> 18);
        *dst++ = (u_char) (0x80 | (n >> 12 & 0x3f));
    }

    *dst++ = (u_char) (0x80 | (n >> 6 & 0x3f));
    *dst++ = (u_char) (0x80 | (n & 0x3f));

    return dst;
}


/* characters beyond ASCII; RFC 3629, 4 */

static u_char *
json_utf8(u_char *p, u_char *end)
{
    u_char      c, low, high;
    ngx_uint_t  n;

    while (p < end && *p >= 0x80) {

        c = *p++;
        low = 0x80;
        high = 0xbf;

        if (c >= 0xc2 && c <= 0xdf) {
            n = 1;

        } else if (c >= 0xe0 && c <= 0xef) {
            n = 2;

            if (c == 0xe0) {
                low = 0xa0;

            } else if (c == 0xed) {
                high = 0x9f;
            }

        } else if (c >= 0xf0 && c <= 0xf4) {
            n = 3;

            if (c == 0xf0) {
                low = 0x90;

            } else if (c == 0xf4) {
                high = 0x8f;
            }

        } else {
            return NULL;
        }

        if ((size_t) (end - p) < n || *p < low || *p > high) {
            return NULL;
        }

        for (p++; --n; p++) {
            if ((*p & 0xc0) != 0x80) {
                return NULL;
            }
        }
    }

    return p;
}


/* what has no zero to drop, and is no fraction or power, is as it is */

u_char *
ngx_idempotency_json_number(ngx_idempotency_json_t *j, u_char *p,
    ngx_idempotency_json_node_t *node)
{
    u_char  *start, *end, *digits;

    start = p;
    end = j->end;

    if (*p == '-') {
        p++;
    }

    digits = p;
    p = json_digits(p, end);

    if (p == digits || (*digits == '0' && p - digits > 1)) {
        return NULL;
    }

    if (p[-1] == '0') {
        node->type = NGX_IDEMPOTENCY_JSON_DECIMAL;
    }

    if (p < end && *p == '.') {
        node->type = NGX_IDEMPOTENCY_JSON_DECIMAL;

        digits = p + 1;
        p = json_digits(digits, end);

        if (p == digits) {
            return NULL;
        }
    }

    if (p < end && (*p == 'e' || *p == 'E')) {
        node->type = NGX_IDEMPOTENCY_JSON_DECIMAL;

        p = json_exponent(p + 1, end);

        if (p == NULL) {
            return NULL;
        }
    }

    node->value = start - j->data;
    node->len = p - start;

    return p;
}


static u_char *
json_exponent(u_char *p, u_char *end)
{
    u_char  *start, *digits;

    if (p < end && (*p == '+' || *p == '-')) {
        p++;
    }

    start = p;

    while (p < end && *p == '0') {
        p++;
    }

    digits = p;
    p = json_digits(p, end);

    if (p == start || p - digits > NGX_IDEMPOTENCY_JSON_EXPONENT) {
        return NULL;
    }

    return p;
}


static u_char *
json_digits(u_char *p, u_char *end)
{
    while (p < end && *p >= '0' && *p <= '9') {
        p++;
    }

    return p;
}


/*
 * The digits without zeros in front and behind, and the power of ten of the
 * last one.  No digit is moved or lost, whatever the power.
 */

void
ngx_idempotency_json_decimal(ngx_idempotency_sink_t *s, u_char *data,
    size_t len)
{
    size_t   nwhole, nfraction;
    u_char  *p, *end, *whole, *fraction, *last;
    u_char   sign, head[1 + 10 + 1], tail[1 + NGX_INT64_LEN];
    int64_t  power;

    p = data;
    end = data + len;

    sign = (*p == '-');
    p += sign;

    whole = p;
    p = json_digits(p, end);
    nwhole = p - whole;

    fraction = p;

    if (p < end && *p == '.') {
        fraction = p + 1;
        p = json_digits(fraction, end);
    }

    nfraction = p - fraction;
    power = (p < end) ? json_power(p + 1, end) : 0;
    power -= nfraction;

    if (*whole == '0') {
        nwhole = 0;

        while (nfraction && *fraction == '0') {
            fraction++;
            nfraction--;
        }
    }

    while (nfraction && fraction[nfraction - 1] == '0') {
        nfraction--;
        power++;
    }

    if (nfraction == 0) {

        while (nwhole && whole[nwhole - 1] == '0') {
            nwhole--;
            power++;
        }

        if (nwhole == 0) {
            ngx_idempotency_sink_field(s, '#', (u_char *) "0", 1);
            return;
        }
    }

    last = json_put_power(tail, power);

    head[0] = '#';
    p = ngx_idempotency_length(head + 1,
                               sign + nwhole + nfraction + (last - tail));

    if (sign) {
        *p++ = '-';
    }

    ngx_idempotency_sink_bytes(s, head, p - head);
    ngx_idempotency_sink_bytes(s, whole, nwhole);
    ngx_idempotency_sink_bytes(s, fraction, nfraction);
    ngx_idempotency_sink_bytes(s, tail, last - tail);
}


/* an exponent that json_exponent() let pass */

static int64_t
json_power(u_char *p, u_char *end)
{
    u_char   sign;
    int64_t  n;

    sign = *p;
    n = 0;

    if (sign == '+' || sign == '-') {
        p++;
    }

    while (p < end) {
        n = n * 10 + (*p++ - '0');
    }

    return (sign == '-') ? -n : n;
}


static u_char *
json_put_power(u_char *dst, int64_t power)
{
    if (power == 0) {
        return dst;
    }

    *dst++ = 'e';

    if (power < 0) {
        *dst++ = '-';
        power = -power;
    }

    if (power < 10) {
        *dst++ = (u_char) ('0' + power);
        return dst;
    }

    return ngx_sprintf(dst, "%L", power);
}
