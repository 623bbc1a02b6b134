
/*
 * application/x-www-form-urlencoded: fields decoded and sorted by the groups
 * of their names.  A percent sign without two hexadecimal digits is malformed.
 *
 * Express takes "[a]" for "a": a body with such a name keeps the order of its
 * fields.
 *
 * Fields that are wanted come in pieces of any size.  There a malformed percent
 * sign spoils its own field only.
 */


#include "ngx_idempotency_encode.h"


#define NGX_IDEMPOTENCY_FORM_INLINE  32    /* that need no memory */

typedef enum {
    form_escape = 1,
    form_end               /* of the name or the field */
} form_class_e;


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


typedef struct {
    uint32_t                 group;      /* a place; it comes first, as names
                                            are sorted by it */
    uint32_t                 name;
    uint32_t                 name_len;
    uint32_t                 value;
    uint32_t                 len;
} form_field_t;


typedef struct {
    u_char                  *data;
    u_char                  *pos;
    u_char                  *end;

    /* decoded names and values; none is longer than it was written */
    u_char                  *scratch;
    u_char                  *last;
    size_t                   size;

    ngx_pool_t              *pool;
    ngx_uint_t               fold;
    ngx_uint_t               ordered;

    ngx_uint_t               nfields;
    ngx_uint_t               nalloc;
    form_field_t            *fields;
    ngx_idempotency_name_t  *names;      /* twice as many */
} form_t;


static ngx_int_t form_matches(ngx_str_t *type, u_char *pos, u_char *end,
    ngx_str_t *boundary);
static ngx_int_t form_whole(ngx_idempotency_digest_t *d,
    ngx_idempotency_canon_t *c, u_char *data, size_t len, ngx_pool_t *pool);
static ngx_int_t form_parse(form_t *f, ngx_idempotency_canon_t *c);
static ngx_int_t form_add(form_t *f, ngx_str_t *name, ngx_str_t *value);
static ngx_int_t form_grow(form_t *f);
static void form_write(form_t *f, ngx_idempotency_digest_t *d);
static ngx_int_t form_part(form_t *f, ngx_uint_t name, ngx_str_t *s);
static ngx_int_t form_decode(form_t *f, u_char *start, u_char end,
    ngx_str_t *s);
static ngx_int_t form_fold(form_t *f, ngx_str_t *s);
static ngx_int_t form_scratch(form_t *f);
static void form_fields(ngx_idempotency_fields_t *f, u_char *p, u_char *last);
static u_char *form_plain(ngx_idempotency_fields_t *f, u_char *p, u_char *last);
static ngx_uint_t form_unescape(ngx_idempotency_fields_t *f, u_char c);
static void form_put(ngx_idempotency_fields_t *f, u_char c);
static void form_spoil(ngx_idempotency_fields_t *f);
static void form_next(ngx_idempotency_fields_t *f);
static void form_fields_end(ngx_idempotency_fields_t *f);


static u_char  form_class[256] = {
    ['%'] = form_escape, ['+'] = form_escape, ['&'] = form_end,
    ['='] = form_end
};


static ngx_inline u_char *
form_at(form_t *f, uint32_t place)
{
    return (place < f->size) ? f->data + place
                             : f->scratch + (place - f->size);
}


/* an empty string at the end of the scratch memory has no place there */

static ngx_inline uint32_t
form_place(form_t *f, ngx_str_t *s)
{
    size_t  place;

    place = (uintptr_t) s->data - (uintptr_t) f->data;

    if (place < f->size) {
        return (uint32_t) place;
    }

    return s->len ? f->size + (s->data - f->scratch) : 0;
}


const ngx_idempotency_kind_t  ngx_idempotency_form_kind = {
    ngx_string("form"),
    NGX_IDEMPOTENCY_CANON_FORM,
    "charset",                              /* parameter */
    1,                                      /* has fields */

    form_matches,
    form_whole,                             /* whole */

    NULL,                                   /* start */
    NULL,                                   /* feed */
    NULL,                                   /* finish */

    form_fields,            /* field */
    form_fields_end         /* field_end */
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
    ngx_int_t                rc;
    form_field_t             fields[NGX_IDEMPOTENCY_FORM_INLINE];
    ngx_idempotency_name_t   names[2 * NGX_IDEMPOTENCY_FORM_INLINE];

    f.data = data;
    f.pos = data;
    f.end = data + len;
    f.scratch = NULL;
    f.size = len;
    f.pool = pool;
    f.fold = c->flags & NGX_IDEMPOTENCY_CANON_TEXT;
    f.ordered = 0;
    f.nfields = 0;
    f.nalloc = NGX_IDEMPOTENCY_FORM_INLINE;
    f.fields = fields;
    f.names = names;

    rc = form_parse(&f, c);

    if (rc == NGX_OK) {
        form_write(&f, d);
    }

    if (f.scratch) {
        ngx_pfree(pool, f.scratch);
    }

    if (f.names != names) {
        ngx_pfree(pool, f.names);
    }

    return rc;
}


static ngx_int_t
form_parse(form_t *f, ngx_idempotency_canon_t *c)
{
    ngx_int_t   rc;
    ngx_str_t   name, value;
    ngx_uint_t  nfields;

    nfields = 0;

    while (f->pos < f->end) {

        if (*f->pos == '&') {
            f->pos++;
            continue;
        }

        rc = form_part(f, 1, &name);

        if (rc == NGX_OK) {
            rc = form_part(f, 0, &value);
        }

        if (rc != NGX_OK) {
            return rc;
        }

        if (name.len + value.len == 0) {
            continue;
        }

        if (nfields++ == NGX_IDEMPOTENCY_FORM_FIELDS) {
            /* so many fields would keep a worker busy for too long */
            return NGX_DECLINED;
        }

        if (c->ignore && ngx_idempotency_ignored(c, name.data, name.len)) {
            continue;
        }

        if (form_add(f, &name, &value) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


static ngx_int_t
form_add(form_t *f, ngx_str_t *name, ngx_str_t *value)
{
    ngx_str_t      group;
    ngx_uint_t     n;
    form_field_t  *field;

    if (f->nfields == f->nalloc && form_grow(f) != NGX_OK) {
        return NGX_ERROR;
    }

    if (name->len && name->data[0] == '['
        && memchr(name->data, ']', name->len))
    {
        f->ordered = 1;
    }

    n = f->nfields++;
    group = ngx_idempotency_group(name);
    ngx_idempotency_name_set(&f->names[n], group.data, group.len, n);

    field = &f->fields[n];
    field->name = form_place(f, name);
    field->group = field->name + (group.data - name->data);
    field->name_len = name->len;
    field->value = form_place(f, value);
    field->len = value->len;

    return NGX_OK;
}


/* the only time: for as many fields as the body can have */

static ngx_int_t
form_grow(form_t *f)
{
    size_t                   size;
    u_char                  *p;
    ngx_uint_t               n;
    form_field_t            *fields;
    ngx_idempotency_name_t  *names;

    n = f->nfields + 1;

    for (p = f->pos; p < f->end && n < NGX_IDEMPOTENCY_FORM_FIELDS; p++) {

        p = memchr(p, '&', f->end - p);
        if (p == NULL) {
            break;
        }

        n++;
    }

    size = 2 * sizeof(ngx_idempotency_name_t) + sizeof(form_field_t);

    names = ngx_palloc(f->pool, n * size);
    if (names == NULL) {
        return NGX_ERROR;
    }

    fields = (form_field_t *) &names[2 * n];

    ngx_memcpy(names, f->names, f->nfields * sizeof(ngx_idempotency_name_t));
    ngx_memcpy(fields, f->fields, f->nfields * sizeof(form_field_t));

    f->names = names;
    f->fields = fields;
    f->nalloc = n;

    return NGX_OK;
}


static void
form_write(form_t *f, ngx_idempotency_digest_t *d)
{
    ngx_uint_t                i;
    form_field_t             *field;
    ngx_idempotency_sink_t    sink;
    ngx_idempotency_names_t   s;

    s.data = f->data;
    s.scratch = f->scratch;
    s.size = f->size;
    s.stride = sizeof(form_field_t);
    s.items = (u_char *) f->fields;

    if (!f->ordered) {
        ngx_idempotency_names_sort(&s, f->names, &f->names[f->nalloc],
                                   f->nfields);
    }

    ngx_idempotency_sink_init(&sink, d, 'F');

    for (i = 0; i < f->nfields; i++) {

        field = &f->fields[f->names[i].index];

        ngx_idempotency_sink_field(&sink, 0, form_at(f, field->name),
                                   field->name_len);
        ngx_idempotency_sink_field(&sink, 0, form_at(f, field->value),
                                   field->len);
    }

    ngx_idempotency_sink_flush(&sink);
}


/* reads a name and its equals sign, or a value up to its ampersand */

static ngx_int_t
form_part(form_t *f, ngx_uint_t name, ngx_str_t *s)
{
    u_char     *p, *start;
    ngx_int_t   rc;

    start = f->pos;

    for (p = start; p < f->end; p++) {

        if (form_class[*p] == 0 || (*p == '=' && !name)) {
            continue;
        }

        if (form_class[*p] == form_end) {
            break;
        }

        f->pos = p;

        rc = form_decode(f, start, name ? '=' : '&', s);

        if (rc != NGX_OK) {
            return rc;
        }

        p = f->pos;
        goto decoded;
    }

    s->data = start;
    s->len = p - start;

decoded:

    if (name) {
        f->pos = (p < f->end && *p == '=') ? p + 1 : p;
        return NGX_OK;
    }

    f->pos = p;

    return f->fold ? form_fold(f, s) : NGX_OK;
}


/* decodes from start on, up to this end or "&"; f->pos is the first escape */

static ngx_int_t
form_decode(form_t *f, u_char *start, u_char end, ngx_str_t *s)
{
    u_char     c, *p, *dst;
    ngx_int_t  high, low;

    if (form_scratch(f) != NGX_OK) {
        return NGX_ERROR;
    }

    p = f->pos;
    s->data = f->last;
    dst = ngx_cpymem(s->data, start, p - start);

    for ( /* void */ ; p < f->end; p++) {

        c = *p;

        if (form_class[c]) {

            if (c == end || c == '&') {
                break;
            }

            if (c == '+') {
                c = ' ';

            } else if (c == '%') {

                if (f->end - p < 3) {
                    return NGX_DECLINED;
                }

                high = ngx_idempotency_hex(p[1]);
                low = ngx_idempotency_hex(p[2]);

                if (high < 0 || low < 0) {
                    return NGX_DECLINED;
                }

                c = (u_char) (high << 4 | low);
                p += 2;
            }
        }

        *dst++ = c;
    }

    f->pos = p;
    f->last = dst;
    s->len = dst - s->data;

    return NGX_OK;
}


static ngx_int_t
form_fold(form_t *f, ngx_str_t *s)
{
    u_char                  *dst, *last;
    ngx_idempotency_fold_t   fold;

    dst = s->data;

    if (f->scratch == NULL || dst < f->scratch || dst >= f->last) {

        /* the string is the document's own, which must not change */

        if (form_scratch(f) != NGX_OK) {
            return NGX_ERROR;
        }

        dst = f->last;
        f->last += s->len;
    }

    ngx_idempotency_fold_init(&fold);

    last = ngx_idempotency_fold(&fold, dst, s->data, s->len);
    last = ngx_idempotency_fold_end(&fold, last);

    s->data = dst;
    s->len = last - dst;

    return NGX_OK;
}


static ngx_int_t
form_scratch(form_t *f)
{
    if (f->scratch == NULL) {
        f->scratch = ngx_palloc(f->pool, f->size);
        if (f->scratch == NULL) {
            return NGX_ERROR;
        }

        f->last = f->scratch;
    }

    return NGX_OK;
}


static void
form_fields(ngx_idempotency_fields_t *f, u_char *p, u_char *last)
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


/* takes one byte at least, up to one that may end or interrupt the field */

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


/* takes a byte of an escape; 0: it is none, and the caller reads it again */

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


static void
form_fields_end(ngx_idempotency_fields_t *f)
{
    if (f->escape) {
        f->escape = 0;
        form_spoil(f);
    }

    form_next(f);
}
