
/*
 * Fields of application/x-www-form-urlencoded, in pieces of any size.  A
 * percent sign that is malformed spoils nothing but its own field.
 */


#include "ngx_idempotency_encode.h"
#include "ngx_idempotency_fields.h"


/* escape: behind a percent sign, behind its first digit */

typedef enum {
    form_percent = 1,
    form_digit
} form_escape_e;


typedef enum {
    form_name = 0,
    form_spoilt_name,
    form_value,
    form_unwanted
} form_state_e;


static u_char *form_plain(ngx_idempotency_fields_t *f, u_char *p,
    u_char *last);
static ngx_uint_t form_unescape(ngx_idempotency_fields_t *f, u_char c);
static void form_put(ngx_idempotency_fields_t *f, u_char c);
static void form_spoil(ngx_idempotency_fields_t *f);
static void form_next(ngx_idempotency_fields_t *f);


void
ngx_idempotency_form_fields(ngx_idempotency_fields_t *f, u_char *p,
    u_char *last)
{
    while (p < last && !f->done) {

        if (f->state == form_unwanted) {

            p = memchr(p, '&', last - p);

            if (p == NULL) {
                return;
            }
        }

        if (f->escape) {
            p += form_unescape(f, *p);
            continue;
        }

        switch (*p) {

        case '&':
            p++;
            form_next(f);
            continue;

        case '%':
            p++;
            f->escape = form_percent;
            continue;

        case '+':
            p++;
            form_put(f, ' ');
            continue;

        case '=':
            if (f->state == form_name || f->state == form_spoilt_name) {
                p++;

                if (f->state == form_name) {
                    ngx_idempotency_field_begin(f);
                }

                f->state = f->current ? form_value : form_unwanted;
                f->name_len = 0;
                f->named = 0;
                continue;
            }
        }

        p = form_plain(f, p, last);
    }
}


/* up to what may end or interrupt it; one byte at least */

static u_char *
form_plain(ngx_idempotency_fields_t *f, u_char *p, u_char *last)
{
    u_char  *start;

    if (f->state != form_value) {

        f->named = 1;

        do {
            ngx_idempotency_field_name(f, *p++);
        } while (p < last && *p != '&' && *p != '=' && *p != '%'
                 && *p != '+');

        return p;
    }

    start = p++;

    while (p < last && *p != '&' && *p != '%' && *p != '+') {
        p++;
    }

    ngx_idempotency_field_put(f, start, p - start);

    return p;
}


/* one byte of an escape; 0: it is none and is to be looked at anew */

static ngx_uint_t
form_unescape(ngx_idempotency_fields_t *f, u_char c)
{
    ngx_int_t  digit;

    digit = ngx_idempotency_hex(c);

    if (digit < 0) {
        f->escape = 0;
        form_spoil(f);
        return 0;
    }

    if (f->escape == form_percent) {
        f->escape = form_digit;
        f->unit = digit;

    } else {
        f->escape = 0;
        form_put(f, (u_char) (f->unit << 4 | digit));
    }

    return 1;
}


static void
form_put(ngx_idempotency_fields_t *f, u_char c)
{
    if (f->state == form_value) {
        ngx_idempotency_field_put(f, &c, 1);
        return;
    }

    f->named = 1;
    ngx_idempotency_field_name(f, c);
}


static void
form_spoil(ngx_idempotency_fields_t *f)
{
    if (f->state == form_value) {
        ngx_idempotency_field_end(f, NGX_IDEMPOTENCY_FIELD_SPOILT);
        f->state = form_unwanted;

    } else {
        f->state = form_spoilt_name;
    }
}


static void
form_next(ngx_idempotency_fields_t *f)
{
    if (f->state == form_name && f->named) {
        ngx_idempotency_field_begin(f);
    }

    ngx_idempotency_field_end(f, NGX_IDEMPOTENCY_FIELD_FOUND);

    f->state = form_name;
    f->name_len = 0;
    f->named = 0;
}


void
ngx_idempotency_form_fields_end(ngx_idempotency_fields_t *f)
{
    if (f->escape) {
        f->escape = 0;
        form_spoil(f);
    }

    form_next(f);
}
