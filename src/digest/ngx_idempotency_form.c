
/*
 * application/x-www-form-urlencoded: fields decoded and sorted by name.  A
 * percent sign without two hexadecimal digits is malformed.
 */


#include "ngx_idempotency_encode.h"


#define FORM_FIELDS   32    /* that need no memory */

#define FORM_ESCAPE   1
#define FORM_END      2     /* of the name or the field */


typedef struct {
    u_char                  *pos;
    u_char                  *end;

    /* for what is not as it is written; never longer than that */
    u_char                  *scratch;
    u_char                  *last;
    size_t                   size;

    ngx_pool_t              *pool;
    ngx_uint_t               fold;

    ngx_uint_t               nfields;
    ngx_uint_t               nalloc;
    ngx_idempotency_name_t  *names;      /* twice as many, to be sorted */
    ngx_str_t               *values;
} form_t;


static ngx_int_t form_parse(form_t *f, ngx_idempotency_canon_t *c);
static ngx_int_t form_grow(form_t *f);
static ngx_int_t form_part(form_t *f, ngx_uint_t name, ngx_str_t *s);
static ngx_int_t form_decode(form_t *f, u_char *start, u_char end,
    ngx_str_t *s);
static ngx_int_t form_fold(form_t *f, ngx_str_t *s);
static ngx_int_t form_scratch(form_t *f);
static ngx_int_t form_hex(u_char c);


static u_char  form_class[256] = {
    ['%'] = FORM_ESCAPE, ['+'] = FORM_ESCAPE, ['&'] = FORM_END,
    ['='] = FORM_END
};


ngx_int_t
ngx_idempotency_form(ngx_idempotency_digest_t *d, ngx_idempotency_canon_t *c,
    u_char *data, size_t len, ngx_pool_t *pool)
{
    form_t                   f;
    ngx_int_t                rc;
    ngx_str_t               *value, values[FORM_FIELDS];
    ngx_uint_t               i;
    ngx_idempotency_name_t   names[2 * FORM_FIELDS];
    ngx_idempotency_sink_t   sink;

    f.pos = data;
    f.end = data + len;
    f.scratch = NULL;
    f.size = len;
    f.pool = pool;
    f.fold = c->flags & NGX_IDEMPOTENCY_CANON_TEXT;
    f.nfields = 0;
    f.names = names;
    f.values = values;

    f.nalloc = FORM_FIELDS;

    rc = form_parse(&f, c);

    if (rc == NGX_OK) {
        ngx_idempotency_names_sort(f.names, &f.names[f.nalloc], f.nfields);

        ngx_idempotency_sink_init(&sink, d, 'F');

        for (i = 0; i < f.nfields; i++) {
            value = &f.values[f.names[i].index];

            ngx_idempotency_sink_field(&sink, 0, f.names[i].name,
                                       f.names[i].len);
            ngx_idempotency_sink_field(&sink, 0, value->data, value->len);
        }

        ngx_idempotency_sink_flush(&sink);
    }

    if (f.scratch) {
        ngx_pfree(pool, f.scratch);
    }

    if (f.names != names) {
        ngx_pfree(pool, f.names);
    }

    return rc;
}


/* here a percent sign that is malformed spoils nothing but its own field */

ngx_int_t
ngx_idempotency_form_field(u_char *data, size_t len, ngx_str_t *name,
    ngx_str_t *value, ngx_pool_t *pool)
{
    form_t     f;
    u_char    *start, *end;
    ngx_int_t  rc;
    ngx_str_t  s;

    f.scratch = NULL;
    f.size = len;
    f.pool = pool;
    f.fold = 0;

    rc = NGX_DECLINED;

    for (start = data, end = data + len; start < end; start = f.end) {

        if (*start == '&') {
            f.end = start + 1;
            continue;
        }

        f.pos = start;
        f.end = ngx_strlchr(start, end, '&');

        if (f.end == NULL) {
            f.end = end;
        }

        f.last = f.scratch;
        rc = form_part(&f, 1, &s);

        if (rc == NGX_ERROR) {
            break;
        }

        if (rc == NGX_OK && ngx_idempotency_field_is(name, s.data, s.len)) {
            rc = form_part(&f, 0, &s);
            break;
        }

        rc = NGX_DECLINED;
    }

    if (rc == NGX_OK) {
        value->len = s.len;
        value->data = ngx_pstrdup(pool, &s);

        if (value->data == NULL) {
            rc = NGX_ERROR;
        }
    }

    if (f.scratch) {
        ngx_pfree(pool, f.scratch);
    }

    return rc;
}


static ngx_int_t
form_parse(form_t *f, ngx_idempotency_canon_t *c)
{
    ngx_int_t   rc;
    ngx_str_t   name, value;
    ngx_uint_t  n;

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

        if (name.len + value.len == 0
            || (c->ignore
                && ngx_idempotency_ignored(c, name.data, name.len)))
        {
            continue;
        }

        n = f->nfields;

        if (n == f->nalloc && form_grow(f) != NGX_OK) {
            return NGX_ERROR;
        }

        ngx_idempotency_name_set(&f->names[n], name.data, name.len, n);
        f->values[n] = value;
        f->nfields++;
    }

    return NGX_OK;
}


/* more than a few fields: once, as many as there may be */

static ngx_int_t
form_grow(form_t *f)
{
    size_t                   size;
    u_char                  *p;
    ngx_uint_t               n;
    ngx_idempotency_name_t  *names;

    n = f->nfields + 1;

    for (p = f->pos; p < f->end; p++) {

        p = memchr(p, '&', f->end - p);
        if (p == NULL) {
            break;
        }

        n++;
    }

    size = 2 * sizeof(ngx_idempotency_name_t) + sizeof(ngx_str_t);

    names = ngx_palloc(f->pool, n * size);
    if (names == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(names, f->names,
               f->nfields * sizeof(ngx_idempotency_name_t));
    ngx_memcpy(&names[2 * n], f->values, f->nfields * sizeof(ngx_str_t));

    f->names = names;
    f->values = (ngx_str_t *) &names[2 * n];
    f->nalloc = n;

    return NGX_OK;
}


/* a name, up to behind its equals sign, or a value, up to its ampersand */

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

        if (form_class[*p] == FORM_END) {
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


/* from start on, where f->pos is the first escape; ends at this or "&" */

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

                high = form_hex(p[1]);
                low = form_hex(p[2]);

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

        /* as it is written: not ours */

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


static ngx_int_t
form_hex(u_char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }

    c |= 0x20;

    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }

    return NGX_ERROR;
}
