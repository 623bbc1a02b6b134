
/*
 * application/x-www-form-urlencoded: fields are decoded, and sorted by the
 * groups of their names.  A percent sign without two hexadecimal digits is
 * malformed.
 *
 * Express takes "[a]" for "a": a body with such a name keeps the order of its
 * fields.
 *
 * Wanted fields are read in pieces of any size.  There a malformed percent
 * sign spoils its own field only.
 */


#include "ngx_idempotency_encode.h"


#define NGX_IDEMPOTENCY_FORM_INLINE  32    /* fields without allocation */

typedef enum {
    form_escape = 1,
    form_end               /* of the name or the field */
} form_class_e;


typedef enum {
    form_name = 0,
    form_value
} form_state_e;


typedef struct {
    u_char                  *pos;
    u_char                  *end;

    /* the encoding, in the order of the body */
    u_char                  *out;
    u_char                  *last;

    ngx_pool_t              *pool;
    ngx_uint_t               fold;
    ngx_uint_t               ordered;

    ngx_uint_t               nfields;
    ngx_uint_t               nalloc;
    ngx_idempotency_name_t  *names;      /* and half as many to sort them */
    uint32_t                *starts;     /* of the fields, and one more */
} form_t;


static ngx_int_t form_matches(ngx_str_t *type, u_char *pos, u_char *end,
    ngx_str_t *boundary);
static ngx_int_t form_whole(ngx_idempotency_digest_t *d,
    ngx_idempotency_canon_t *c, u_char *data, size_t len, ngx_pool_t *pool);
static ngx_int_t form_parse(form_t *f, ngx_idempotency_canon_t *c);
static ngx_int_t form_part(form_t *f, u_char end, ngx_str_t *s);
static ngx_int_t form_add(form_t *f, ngx_str_t *name);
static ngx_int_t form_grow(form_t *f);
static void form_write(form_t *f, ngx_idempotency_digest_t *d);
static u_char *form_unescape(u_char *p, u_char *last, u_char end,
    u_char **to);
static void form_fields(ngx_idempotency_fields_t *f, u_char *p, u_char *last);
static void form_next(ngx_idempotency_fields_t *f);
static ngx_int_t form_decode(ngx_str_t *s);


static u_char  form_class[256] = {
    ['%'] = form_escape, ['+'] = form_escape, ['&'] = form_end,
    ['='] = form_end
};


const ngx_idempotency_kind_t  ngx_idempotency_form_kind = {
    .name = ngx_string("form"),
    .flag = NGX_IDEMPOTENCY_CANON_FORM,
    .parameter = "charset",
    .escape = sizeof("%41") - 1,
    .matches = form_matches,
    .whole = form_whole,
    .field = form_fields,
    .field_end = form_next,
    .decode = form_decode
};


static ngx_int_t
form_matches(ngx_str_t *type, u_char *pos, u_char *end, ngx_str_t *boundary)
{
    return ngx_idempotency_equal(type, "application/x-www-form-urlencoded")
           ? NGX_OK : NGX_DECLINED;
}


static ngx_int_t
form_whole(ngx_idempotency_digest_t *d, ngx_idempotency_canon_t *c,
    u_char *data, size_t len, ngx_pool_t *pool)
{
    form_t                   f;
    uint32_t                 starts[NGX_IDEMPOTENCY_FORM_INLINE + 1];
    ngx_int_t                rc;
    ngx_idempotency_name_t   names[NGX_IDEMPOTENCY_FORM_INLINE * 3 / 2];

    /* A field without an equals sign gets longer by one byte, and a long name
       or value by the bytes of its length. */

    f.out = ngx_palloc(pool, len + ngx_min(len, NGX_IDEMPOTENCY_FORM_FIELDS)
                             + len / 64 + 16);
    if (f.out == NULL) {
        return NGX_ERROR;
    }

    f.pos = data;
    f.end = data + len;
    f.last = f.out;
    f.pool = pool;
    f.fold = c->flags & NGX_IDEMPOTENCY_CANON_TEXT;
    f.ordered = 0;
    f.nfields = 0;
    f.nalloc = NGX_IDEMPOTENCY_FORM_INLINE;
    f.names = names;
    f.starts = starts;

    rc = form_parse(&f, c);

    if (rc == NGX_OK) {
        form_write(&f, d);
    }

    ngx_pfree(pool, f.out);

    if (f.names != names) {
        ngx_pfree(pool, f.names);
    }

    return rc;
}


static ngx_int_t
form_parse(form_t *f, ngx_idempotency_canon_t *c)
{
    u_char      *start;
    ngx_str_t    name, value;
    ngx_uint_t   nfields;

    nfields = 0;

    while (f->pos < f->end) {

        if (*f->pos == '&') {
            f->pos++;
            continue;
        }

        start = f->last;

        if (form_part(f, '=', &name) != NGX_OK) {
            return NGX_DECLINED;
        }

        if (f->pos < f->end && *f->pos == '=') {
            f->pos++;
        }

        if (form_part(f, '&', &value) != NGX_OK) {
            return NGX_DECLINED;
        }

        if (name.len + value.len == 0) {
            f->last = start;
            continue;
        }

        if (nfields++ == NGX_IDEMPOTENCY_FORM_FIELDS) {
            /* so many fields would keep a worker busy for too long */
            return NGX_DECLINED;
        }

        if (c->ignore && ngx_idempotency_ignored(c, name.data, name.len)) {
            f->last = start;
            continue;
        }

        f->starts[f->nfields] = start - f->out;

        if (form_add(f, &name) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/* encodes a name or a value; NGX_DECLINED: it is malformed */

static ngx_int_t
form_part(form_t *f, u_char end, ngx_str_t *s)
{
    u_char                  *p, *last;
    ngx_idempotency_fold_t   fold;

    s->data = f->last + 1;
    last = s->data;

    p = form_unescape(f->pos, f->end, end, &last);

    if (p == NULL) {
        return NGX_DECLINED;
    }

    if (end == '&' && last > s->data && f->fold) {
        ngx_idempotency_fold_init(&fold);

        last = ngx_idempotency_fold(&fold, s->data, s->data, last - s->data);
        last = ngx_idempotency_fold_end(&fold, last);
    }

    s->len = last - s->data;
    s->data = ngx_idempotency_put_length(f->last, s->data, s->len);

    f->last = s->data + s->len;
    f->pos = p;

    return NGX_OK;
}


/* adds the field that begins at the last start */

static ngx_int_t
form_add(form_t *f, ngx_str_t *name)
{
    ngx_str_t   group;
    ngx_uint_t  n;

    if (name->len && name->data[0] == '['
        && memchr(name->data, ']', name->len))
    {
        f->ordered = 1;
    }

    n = f->nfields++;
    group = ngx_idempotency_group(name);
    ngx_idempotency_name_set(&f->names[n], f->out, group.data - f->out,
                             group.len, n);

    return (f->nfields < f->nalloc) ? NGX_OK : form_grow(f);
}


/* called once: makes room for as many fields as the body can have */

static ngx_int_t
form_grow(form_t *f)
{
    u_char                  *p;
    uint32_t                *starts;
    ngx_uint_t               n;
    ngx_idempotency_name_t  *names;

    n = f->nfields + 1;

    for (p = f->pos; p < f->end && n <= NGX_IDEMPOTENCY_FORM_FIELDS; p++) {

        p = memchr(p, '&', f->end - p);
        if (p == NULL) {
            break;
        }

        n++;
    }

    names = ngx_palloc(f->pool,
                       (n + n / 2) * sizeof(ngx_idempotency_name_t)
                       + (n + 1) * sizeof(uint32_t));
    if (names == NULL) {
        return NGX_ERROR;
    }

    starts = (uint32_t *) &names[n + n / 2];

    ngx_memcpy(names, f->names, f->nfields * sizeof(ngx_idempotency_name_t));
    ngx_memcpy(starts, f->starts, f->nfields * sizeof(uint32_t));

    f->names = names;
    f->starts = starts;
    f->nalloc = n;

    return NGX_OK;
}


static void
form_write(form_t *f, ngx_idempotency_digest_t *d)
{
    uint32_t                *start;
    ngx_uint_t               i;
    ngx_idempotency_sink_t   sink;

    f->starts[f->nfields] = f->last - f->out;

    if (!f->ordered) {
        ngx_idempotency_names_sort(f->out, f->names, &f->names[f->nalloc],
                                   f->nfields);
    }

    ngx_idempotency_digest_bytes(d, (u_char *) "F", 1);
    ngx_idempotency_sink_init(&sink, d);

    for (i = 0; i < f->nfields; i++) {
        start = &f->starts[f->names[i].index];
        ngx_idempotency_sink_bytes(&sink, f->out + start[0],
                                   start[1] - start[0]);
    }

    ngx_idempotency_sink_flush(&sink);
}


/* decodes up to `last`, or to an ampersand; NULL: malformed */

static u_char *
form_unescape(u_char *p, u_char *last, u_char end, u_char **to)
{
    u_char     c, *dst;
    ngx_int_t  high, low;

    dst = *to;

    for ( /* void */ ; p < last; p++) {

        c = *p;

        if (form_class[c]) {

            if (c == end || c == '&') {
                break;
            }

            if (c == '+') {
                c = ' ';

            } else if (c == '%') {

                if (last - p < 3) {
                    return NULL;
                }

                high = ngx_idempotency_hex(p[1]);
                low = ngx_idempotency_hex(p[2]);

                if (high < 0 || low < 0) {
                    return NULL;
                }

                c = (u_char) (high << 4 | low);
                p += 2;
            }
        }

        *dst++ = c;
    }

    *to = dst;

    return p;
}


static void
form_fields(ngx_idempotency_fields_t *f, u_char *p, u_char *last)
{
    u_char  *start;

    while (p < last && !f->done) {

        start = p;

        if (f->state == form_value) {
            p = memchr(p, '&', last - p);

            if (p == NULL) {
                p = last;
            }

            if (f->current) {
                ngx_idempotency_field_put(f, start, p - start);
            }

        } else {
            while (p < last && form_class[*p] != form_end) {
                p++;
            }

            ngx_idempotency_field_name(f, start, p - start);
        }

        if (p == last) {
            return;
        }

        if (*p++ == '&') {
            form_next(f);
            continue;
        }

        /* a field with a malformed name is not wanted */

        (void) ngx_idempotency_field_begin(f);
        f->state = form_value;
    }
}


/* the field has ended, and the next one begins */

static void
form_next(ngx_idempotency_fields_t *f)
{
    if (f->name_len) {
        (void) ngx_idempotency_field_begin(f);
    }

    if (f->current && ngx_idempotency_field_decode(f) != NGX_OK) {
        ngx_idempotency_field_end(f, NGX_IDEMPOTENCY_FIELD_SPOILT);
    }

    f->state = form_name;
}


static ngx_int_t
form_decode(ngx_str_t *s)
{
    u_char  *last;

    last = s->data;

    /* neither a name nor a value has an ampersand */

    if (form_unescape(s->data, s->data + s->len, '&', &last) == NULL) {
        return NGX_DECLINED;
    }

    s->len = last - s->data;

    return NGX_OK;
}
