
/*
 * Fields that are wanted: whether a name is one of theirs, and their values.
 */


#include "ngx_idempotency_fields.h"


#define NGX_IDEMPOTENCY_FIELD_FIRST  64    /* at first */


static ngx_int_t field_grow(ngx_idempotency_fields_t *f, size_t len);


ngx_idempotency_fields_t *
ngx_idempotency_fields_create(ngx_pool_t *pool,
    const ngx_idempotency_kind_t *kind, ngx_str_t *names, ngx_uint_t nnames,
    size_t max)
{
    ngx_uint_t                 i;
    ngx_idempotency_fields_t  *f;

    f = ngx_pcalloc(pool, sizeof(ngx_idempotency_fields_t)
                          + nnames * sizeof(ngx_idempotency_field_t));
    if (f == NULL) {
        return NULL;
    }

    f->pool = pool;
    f->kind = kind;
    f->names = names;
    f->nnames = nnames;
    f->fields = (ngx_idempotency_field_t *) (f + 1);
    f->nwanted = nnames;
    f->max = max;
    f->done = (nnames == 0);

    for (i = 0; i < nnames; i++) {
        f->longest = ngx_max(f->longest, names[i].len);
    }

    f->name = ngx_pnalloc(pool, ngx_max(f->longest, 1));
    if (f->name == NULL) {
        return NULL;
    }

    return f;
}


ngx_int_t
ngx_idempotency_fields_feed(ngx_idempotency_fields_t *f, u_char *data,
    size_t len)
{
    if (!f->done && len && f->kind->field) {
        f->kind->field(f, data, data + len);
    }

    return f->no_memory ? NGX_ERROR : f->done ? NGX_DONE : NGX_OK;
}


void
ngx_idempotency_fields_end(ngx_idempotency_fields_t *f)
{
    if (f->done) {
        return;
    }

    if (f->kind->field_end) {
        f->kind->field_end(f);
    }

    f->done = 1;
}


/* from here on: what was found is found */

void
ngx_idempotency_fields_unreadable(ngx_idempotency_fields_t *f)
{
    if (!f->done) {
        ngx_idempotency_field_end(f, NGX_IDEMPOTENCY_FIELD_SPOILT);

        f->unreadable = 1;
        f->done = 1;
    }
}


ngx_int_t
ngx_idempotency_fields_value(ngx_idempotency_fields_t *f, ngx_uint_t i,
    ngx_str_t *value)
{
    switch (f->fields[i].state) {

    case NGX_IDEMPOTENCY_FIELD_FOUND:
        *value = f->fields[i].value;
        return NGX_OK;

    case NGX_IDEMPOTENCY_FIELD_SPOILT:
        return NGX_IDEMPOTENCY_UNREADABLE;

    case NGX_IDEMPOTENCY_FIELD_WANTED:
        return f->unreadable ? NGX_IDEMPOTENCY_UNREADABLE : NGX_DECLINED;
    }

    return NGX_DECLINED;
}


/* a name is there: is it wanted? */

void
ngx_idempotency_field_begin(ngx_idempotency_fields_t *f)
{
    size_t      len;
    ngx_uint_t  i;

    len = f->name_len;
    f->name_len = 0;

    for (i = 0; i < f->nnames; i++) {

        if (f->names[i].len == len
            && f->fields[i].state == NGX_IDEMPOTENCY_FIELD_WANTED
            && ngx_memcmp(f->names[i].data, f->name, len) == 0)
        {
            f->current = &f->fields[i];
            f->current->value.data = (u_char *) "";
            f->nwanted--;

            return;
        }
    }
}


void
ngx_idempotency_field_put(ngx_idempotency_fields_t *f, u_char *data,
    size_t len)
{
    ngx_idempotency_field_t  *field;

    field = f->current;

    if (field == NULL || field->state != NGX_IDEMPOTENCY_FIELD_WANTED) {
        return;
    }

    if (len > f->max - field->value.len) {
        field->state = NGX_IDEMPOTENCY_FIELD_SPOILT;
        f->too_long = 1;
        return;
    }

    if (len > field->size - field->value.len && field_grow(f, len) != NGX_OK) {
        field->state = NGX_IDEMPOTENCY_FIELD_SPOILT;
        f->no_memory = 1;
        f->done = 1;
        return;
    }

    ngx_memcpy(field->value.data + field->value.len, data, len);
    field->value.len += len;
}


static ngx_int_t
field_grow(ngx_idempotency_fields_t *f, size_t len)
{
    size_t                    size;
    u_char                   *p;
    ngx_idempotency_field_t  *field;

    field = f->current;

    size = ngx_max(field->value.len + len, 2 * field->size);
    size = ngx_max(size, NGX_IDEMPOTENCY_FIELD_FIRST);
    size = ngx_min(size, ngx_max(f->max, NGX_IDEMPOTENCY_FIELD_FIRST));

    p = ngx_pnalloc(f->pool, size);
    if (p == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(p, field->value.data, field->value.len);

    if (field->size) {
        (void) ngx_pfree(f->pool, field->value.data);
    }

    field->value.data = p;
    field->size = size;

    return NGX_OK;
}


/* it has ended, or is what it is already: too long */

void
ngx_idempotency_field_end(ngx_idempotency_fields_t *f, ngx_uint_t state)
{
    if (f->current == NULL) {
        return;
    }

    if (f->current->state == NGX_IDEMPOTENCY_FIELD_WANTED) {
        f->current->state = state;
    }

    f->current = NULL;

    if (f->nwanted == 0) {
        f->done = 1;
    }
}
