
/*
 * Members at the top of a JSON document, in pieces of any size.  Of what is
 * deeper only strings and brackets are looked at, so that what is wrong there
 * hides nothing; what is wrong between the members does.
 */


#include "ngx_idempotency_encode.h"
#include "ngx_idempotency_fields.h"
#include "ngx_idempotency_json.h"


/* escape: behind a backslash, behind "\u", and from there on its digits */

typedef enum {
    json_backslash = 1,
    json_digits = 2,
    json_digits_end = 6
} json_escape_e;


typedef enum {
    json_start = 0,
    json_root,             /* a number or a literal */
    json_mark,
    json_mark_end,
    json_member,
    json_name,
    json_long_name,
    json_colon,
    json_value,
    json_string,
    json_scalar,
    json_nested,
    json_skipped,          /* a string */
    json_behind,
    json_end
} json_state_e;


static ngx_uint_t json_is_scalar(u_char c);
static void json_token(ngx_idempotency_fields_t *f, u_char c);
static void json_begin(ngx_idempotency_fields_t *f, u_char c);
static void json_value_begin(ngx_idempotency_fields_t *f, u_char c);
static void json_scalar_end(ngx_idempotency_fields_t *f);
static u_char *json_text(ngx_idempotency_fields_t *f, u_char *p,
    u_char *last);
static void json_escape(ngx_idempotency_fields_t *f, u_char c);
static void json_unit(ngx_idempotency_fields_t *f, uint32_t unit);
static void json_put_unit(ngx_idempotency_fields_t *f, uint32_t unit);
static void json_put(ngx_idempotency_fields_t *f, u_char *p, size_t len);
static u_char *json_skip_string(ngx_idempotency_fields_t *f, u_char *p,
    u_char *last);
static u_char *json_skip(ngx_idempotency_fields_t *f, u_char *p,
    u_char *last);


void
ngx_idempotency_json_fields(ngx_idempotency_fields_t *f, u_char *p,
    u_char *last)
{
    while (p < last && !f->done) {

        switch (f->state) {

        case json_name:
        case json_string:
            p = json_text(f, p, last);
            break;

        case json_long_name:
        case json_skipped:
            p = json_skip_string(f, p, last);
            break;

        case json_nested:
            p = json_skip(f, p, last);
            break;

        case json_scalar:

            if (*p == ',' || *p == '}' || *p == ']' || *p == ' '
                || *p == '\n' || *p == '\r' || *p == '\t')
            {
                json_scalar_end(f);
                break;
            }

            if (!json_is_scalar(*p)) {
                ngx_idempotency_fields_unreadable(f);
                break;
            }

            ngx_idempotency_field_put(f, p++, 1);
            break;

        default:
            p = ngx_idempotency_json_space(p, last);

            if (p < last) {
                json_token(f, *p++);
            }
        }
    }
}


/* of a number, a literal, or what some writers have for one, as NaN */

static ngx_uint_t
json_is_scalar(u_char c)
{
    return c == '-' || c == '+' || c == '.'
           || ngx_idempotency_field_class(c) != '_';
}


static void
json_token(ngx_idempotency_fields_t *f, u_char c)
{
    switch (f->state) {

    case json_start:
        json_begin(f, c);
        return;

    case json_root:

        if (json_is_scalar(c)) {
            return;
        }

        break;

    case json_mark:

        if (c == 0xbb) {
            f->state = json_mark_end;
            return;
        }

        break;

    case json_mark_end:

        if (c == 0xbf) {
            f->state = json_start;
            return;
        }

        break;

    case json_member:

        if (c == '"') {
            f->state = json_name;
            return;
        }

        if (c == '}') {
            f->state = json_end;
            return;
        }

        break;

    case json_colon:

        if (c == ':') {
            f->state = json_value;
            return;
        }

        break;

    case json_value:
        json_value_begin(f, c);
        return;

    case json_behind:

        if (c == ',') {
            f->state = json_member;
            return;
        }

        if (c == '}') {
            f->state = json_end;
            return;
        }

        break;
    }

    ngx_idempotency_fields_unreadable(f);
}


/* no object has no members */

static void
json_begin(ngx_idempotency_fields_t *f, u_char c)
{
    switch (c) {

    case '{':
        f->state = json_member;
        return;

    case 0xef:
        f->state = json_mark;
        return;

    case '[':
    case '"':
        f->done = 1;
        return;

    case '-':
    case 't':
    case 'f':
    case 'n':
        f->state = json_root;
        return;
    }

    if (c >= '0' && c <= '9') {
        f->state = json_root;
        return;
    }

    ngx_idempotency_fields_unreadable(f);
}


static void
json_value_begin(ngx_idempotency_fields_t *f, u_char c)
{
    f->depth = 0;

    if (c == '"') {
        f->state = f->current ? json_string : json_skipped;
        return;
    }

    if (c == '{' || c == '[') {
        ngx_idempotency_field_end(f, NGX_IDEMPOTENCY_FIELD_NONE);

        f->depth = 1;
        f->state = json_nested;
        return;
    }

    if (json_is_scalar(c)) {
        f->state = json_scalar;
        ngx_idempotency_field_put(f, &c, 1);
        return;
    }

    ngx_idempotency_fields_unreadable(f);
}


static void
json_scalar_end(ngx_idempotency_fields_t *f)
{
    u_char      c;
    size_t      i;
    ngx_str_t  *value;
    ngx_uint_t  state;

    f->state = json_behind;

    if (f->current == NULL) {
        return;
    }

    value = &f->current->value;
    state = NGX_IDEMPOTENCY_FIELD_FOUND;

    if (value->len == 4 && ngx_memcmp(value->data, "null", 4) == 0) {
        state = NGX_IDEMPOTENCY_FIELD_NONE;

    } else if ((value->len != 4 || ngx_memcmp(value->data, "true", 4) != 0)
               && (value->len != 5
                   || ngx_memcmp(value->data, "false", 5) != 0))
    {
        for (i = 0; i < value->len; i++) {
            c = value->data[i];

            if ((c < '0' || c > '9') && c != '-' && c != '+' && c != '.'
                && c != 'e' && c != 'E')
            {
                state = NGX_IDEMPOTENCY_FIELD_SPOILT;
            }
        }
    }

    ngx_idempotency_field_end(f, state);
}


/* a name, or a value that is wanted */

static u_char *
json_text(ngx_idempotency_fields_t *f, u_char *p, u_char *last)
{
    u_char  *start;

    if (f->escape) {
        json_escape(f, *p);
        return p + 1;
    }

    if (f->state == json_name && f->name_len > f->longest) {

        /* it is none of those that are wanted */

        f->state = json_long_name;
        f->name_len = 0;
        f->high = 0;

        return p;
    }

    if (*p == '\\') {
        f->escape = json_backslash;
        return p + 1;
    }

    if (f->high) {
        json_put_unit(f, f->high);
        f->high = 0;
    }

    if (*p != '"') {
        start = p++;

        while (p < last && *p != '"' && *p != '\\') {
            p++;
        }

        json_put(f, start, p - start);

        return p;
    }

    if (f->state == json_name) {
        ngx_idempotency_field_begin(f);
        f->state = json_colon;

    } else {
        ngx_idempotency_field_end(f, NGX_IDEMPOTENCY_FIELD_FOUND);
        f->state = json_behind;
    }

    return p + 1;
}


static void
json_escape(ngx_idempotency_fields_t *f, u_char c)
{
    ngx_int_t  digit;

    if (f->escape > json_backslash) {

        digit = ngx_idempotency_hex(c);

        if (digit < 0) {
            ngx_idempotency_fields_unreadable(f);
            return;
        }

        f->unit = f->unit << 4 | (uint32_t) digit;

        if (++f->escape == json_digits_end) {
            f->escape = 0;
            json_unit(f, f->unit);
        }

        return;
    }

    if (c == 'u') {
        f->escape = json_digits;
        f->unit = 0;
        return;
    }

    c = ngx_idempotency_json_escape(c);

    if (c == 0) {
        ngx_idempotency_fields_unreadable(f);
        return;
    }

    f->escape = 0;

    if (f->high) {
        json_put_unit(f, f->high);
        f->high = 0;
    }

    json_put(f, &c, 1);
}


/* a surrogate that stands alone stays what it is */

static void
json_unit(ngx_idempotency_fields_t *f, uint32_t unit)
{
    uint32_t  high, pair;

    high = f->high;
    f->high = 0;

    if (high) {
        pair = ngx_idempotency_json_pair(high, unit);

        if (pair) {
            json_put_unit(f, pair);
            return;
        }

        json_put_unit(f, high);
    }

    if (ngx_idempotency_json_high(unit)) {
        f->high = unit;
        return;
    }

    json_put_unit(f, unit);
}


static void
json_put_unit(ngx_idempotency_fields_t *f, uint32_t unit)
{
    u_char  utf8[4];

    json_put(f, utf8, ngx_idempotency_json_utf8(utf8, unit) - utf8);
}


static void
json_put(ngx_idempotency_fields_t *f, u_char *p, size_t len)
{
    if (f->state == json_string) {
        ngx_idempotency_field_put(f, p, len);
        return;
    }

    while (len--) {
        ngx_idempotency_field_name(f, *p++);
    }
}


static u_char *
json_skip_string(ngx_idempotency_fields_t *f, u_char *p, u_char *last)
{
    if (f->escape) {
        f->escape = 0;
        p++;
    }

    for ( /* void */ ; p < last; p++) {

        if (*p == '"') {
            f->state = (f->state == json_long_name) ? json_colon
                       : f->depth ? json_nested : json_behind;
            return p + 1;
        }

        if (*p == '\\' && ++p == last) {
            f->escape = json_backslash;
        }
    }

    return last;
}


/* to the end of what is nested */

static u_char *
json_skip(ngx_idempotency_fields_t *f, u_char *p, u_char *last)
{
    for ( /* void */ ; p < last; p++) {

        switch (*p) {

        case '"':
            f->state = json_skipped;
            return p + 1;

        case '{':
        case '[':
            f->depth++;
            break;

        case '}':
        case ']':
            if (--f->depth == 0) {
                f->state = json_behind;
                return p + 1;
            }
        }
    }

    return p;
}


/* nothing at all has no members, either */

void
ngx_idempotency_json_fields_end(ngx_idempotency_fields_t *f)
{
    if (f->state == json_scalar) {
        json_scalar_end(f);
    }

    if (f->state > json_root && f->state != json_end) {
        ngx_idempotency_fields_unreadable(f);
    }
}
