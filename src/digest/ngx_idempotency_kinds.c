
/*
 * What the kinds of bodies share: the kind of a media type; ignored names;
 * wanted fields; the buffer in front of the digest; the order of names.  Each
 * kind has a file of its own.
 */


#include "ngx_idempotency_encode.h"


#define NGX_IDEMPOTENCY_FIELD_FIRST  64    /* bytes of a value, at first */

#define NGX_IDEMPOTENCY_SORT_FEW     8     /* so many are sorted by insertion */


static ngx_int_t pointer_tokens(ngx_idempotency_path_t *path,
    ngx_str_t *pointer, ngx_pool_t *pool);
static int ngx_libc_cdecl path_cmp(const void *one, const void *two);
static ngx_int_t field_grow(ngx_idempotency_fields_t *f, size_t len);
static int name_cmp_rest(u_char *base, ngx_idempotency_name_t *a,
    ngx_idempotency_name_t *b);
static void sort_names(u_char *base, ngx_idempotency_name_t *names,
    ngx_idempotency_name_t *tmp, ngx_uint_t n);
static void sort_few(u_char *base, ngx_idempotency_name_t *names,
    ngx_uint_t n);


const ngx_idempotency_kind_t  *ngx_idempotency_kinds[] = {
    &ngx_idempotency_form_kind,
    &ngx_idempotency_json_kind,
    &ngx_idempotency_multipart_kind,
    &ngx_idempotency_text_kind,
    NULL
};


ngx_int_t
ngx_idempotency_kind(ngx_str_t *content_type, ngx_uint_t flags,
    ngx_str_t *boundary, const ngx_idempotency_kind_t **kind)
{
    u_char                         *p, *end;
    ngx_int_t                       rc;
    ngx_str_t                       type;
    const ngx_idempotency_kind_t  **k;

    *kind = NULL;

    end = content_type->data + content_type->len;
    p = ngx_strlchr(content_type->data, end, ';');

    if (p == NULL) {
        p = end;
    }

    type = ngx_idempotency_trim(content_type->data, p);

    for (k = ngx_idempotency_kinds; *k; k++) {

        if (!((*k)->flag & flags)) {
            continue;
        }

        rc = (*k)->matches(&type, p, end, boundary);

        if (rc == NGX_OK) {
            *kind = *k;
            return NGX_OK;
        }

        if (rc == NGX_ERROR) {
            return NGX_DECLINED;
        }
    }

    return NGX_OK;
}


ngx_int_t
ngx_idempotency_canon_body(ngx_idempotency_digest_t *d,
    const ngx_idempotency_kind_t *kind, ngx_idempotency_canon_t *c,
    u_char *data, size_t len, ngx_pool_t *pool)
{
    if (kind == NULL || kind->whole == NULL
        || len > NGX_IDEMPOTENCY_CANON_SIZE)
    {
        return NGX_DECLINED;
    }

    return kind->whole(d, c, data, len, pool);
}


/* The next parameter, from its semicolon on.  NGX_DONE: there is none,
   NGX_ERROR: it is malformed.  A quoted string keeps its backslashes. */

ngx_int_t
ngx_idempotency_parameter(u_char **pos, u_char *end, ngx_str_t *name,
    ngx_str_t *value)
{
    u_char  *p, *start;

    p = *pos;

    while (p < end && (*p == ';' || *p == ' ' || *p == '\t')) {
        p++;
    }

    if (p == end) {
        return NGX_DONE;
    }

    for (start = p; p < end && *p != '=' && *p != ';'; p++) { /* void */ }

    *name = ngx_idempotency_trim(start, p);
    ngx_str_null(value);

    if (p < end && *p == '=') {
        p++;

        while (p < end && (*p == ' ' || *p == '\t')) {
            p++;
        }

        start = p;

        if (p < end && *p == '"') {

            for (p++; p < end && *p != '"'; p++) {
                if (*p == '\\') {
                    p++;
                }
            }

            if (p >= end) {
                return NGX_ERROR;
            }

            value->data = start + 1;
            value->len = p - value->data;

            for (p++; p < end && (*p == ' ' || *p == '\t'); p++) { /* void */ }

            if (p < end && *p != ';') {
                return NGX_ERROR;
            }

        } else {
            while (p < end && *p != ';') {
                p++;
            }

            *value = ngx_idempotency_trim(start, p);
        }
    }

    *pos = p;

    return NGX_OK;
}


void
ngx_idempotency_canon_raw(ngx_idempotency_digest_t *d)
{
    ngx_idempotency_digest_bytes(d, (u_char *) "R", 1);
}


/* the paths are sorted: those with a common beginning are neighbours */

ngx_int_t
ngx_idempotency_canon_ignore(ngx_idempotency_canon_t *c, ngx_array_t *names,
    ngx_str_t *bad, ngx_pool_t *pool)
{
    ngx_str_t               *name;
    ngx_int_t                rc;
    ngx_uint_t               i;
    ngx_idempotency_path_t  *path;

    name = names->elts;

    c->ignore = ngx_array_create(pool, ngx_max(names->nelts, 1),
                                 sizeof(ngx_idempotency_path_t));
    if (c->ignore == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < names->nelts; i++) {

        path = ngx_array_push(c->ignore);
        if (path == NULL) {
            return NGX_ERROR;
        }

        if (name[i].len && name[i].data[0] == '/') {
            path->pointer = 1;
            rc = pointer_tokens(path, &name[i], pool);

            if (rc != NGX_OK) {
                *bad = name[i];
                return rc;
            }

            continue;
        }

        path->pointer = 0;
        path->ntokens = 1;
        path->tokens = &name[i];
    }

    ngx_qsort(c->ignore->elts, c->ignore->nelts,
              sizeof(ngx_idempotency_path_t), path_cmp);

    return NGX_OK;
}


/* RFC 6901: in a token "~1" is a slash and "~0" a tilde */

static ngx_int_t
pointer_tokens(ngx_idempotency_path_t *path, ngx_str_t *pointer,
    ngx_pool_t *pool)
{
    u_char      c, *p, *dst, *end;
    ngx_str_t  *token;

    end = pointer->data + pointer->len;
    path->ntokens = 0;

    for (p = pointer->data; p < end; p++) {
        path->ntokens += (*p == '/');
    }

    path->tokens = ngx_pcalloc(pool, path->ntokens * sizeof(ngx_str_t));
    dst = ngx_pnalloc(pool, pointer->len);

    if (path->tokens == NULL || dst == NULL) {
        return NGX_ERROR;
    }

    token = path->tokens - 1;

    for (p = pointer->data; p < end; p++) {

        c = *p;

        if (c == '/') {
            token++;
            token->data = dst;
            continue;
        }

        if (c == '~') {
            p++;

            if (p == end || (*p != '0' && *p != '1')) {
                return NGX_DECLINED;
            }

            c = (*p == '0') ? '~' : '/';
        }

        *dst++ = c;
        token->len++;
    }

    return NGX_OK;
}


static int ngx_libc_cdecl
path_cmp(const void *one, const void *two)
{
    ngx_int_t                      rc;
    ngx_str_t                     *x, *y;
    ngx_uint_t                     i;
    const ngx_idempotency_path_t  *a, *b;

    a = one;
    b = two;

    for (i = 0; i < a->ntokens && i < b->ntokens; i++) {

        x = &a->tokens[i];
        y = &b->tokens[i];

        rc = ngx_memn2cmp(x->data, y->data, x->len, y->len);

        if (rc != 0) {
            return rc;
        }
    }

    return (a->ntokens > b->ntokens) - (a->ntokens < b->ntokens);
}


/* names ignore a form's fields, JSON pointers never do */

ngx_uint_t
ngx_idempotency_ignored(ngx_idempotency_canon_t *c, u_char *name, size_t len)
{
    ngx_uint_t               i;
    ngx_idempotency_path_t  *path;

    path = c->ignore->elts;

    for (i = 0; i < c->ignore->nelts; i++) {

        if (!path[i].pointer && path[i].tokens[0].len == len
            && ngx_memcmp(path[i].tokens[0].data, name, len) == 0)
        {
            return 1;
        }
    }

    return 0;
}


ngx_idempotency_fields_t *
ngx_idempotency_fields_create(ngx_pool_t *pool,
    const ngx_idempotency_kind_t *kind, ngx_str_t *names, ngx_uint_t nnames,
    size_t max)
{
    size_t                     longest, escape;
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

    longest = 1;

    for (i = 0; i < nnames; i++) {
        longest = ngx_max(longest, names[i].len);
    }

    escape = kind ? kind->escape : 1;

    f->limit = max * escape;
    f->name_size = longest * escape;

    f->name = ngx_pnalloc(pool, f->name_size);
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


/* the rest is unreadable; fields that were found stay found */

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


/* adds the next bytes of a field's name */

void
ngx_idempotency_field_name(ngx_idempotency_fields_t *f, u_char *data,
    size_t len)
{
    if (f->name_len + len > f->name_size) {
        f->name_len = f->name_size + 1;
        return;
    }

    ngx_memcpy(f->name + f->name_len, data, len);
    f->name_len += len;
}


/* The field's name is complete: if it is wanted, it becomes the current one.
   NGX_DECLINED: the name is malformed. */

ngx_int_t
ngx_idempotency_field_begin(ngx_idempotency_fields_t *f)
{
    ngx_str_t   name;
    ngx_uint_t  i;

    name.len = f->name_len;
    name.data = f->name;
    f->name_len = 0;

    if (name.len > f->name_size) {
        return NGX_OK;
    }

    if (f->kind->decode && f->kind->decode(&name) != NGX_OK) {
        return NGX_DECLINED;
    }

    for (i = 0; i < name.len; i++) {
        name.data[i] = ngx_idempotency_field_class(name.data[i]);
    }

    for (i = 0; i < f->nnames; i++) {

        if (f->names[i].len == name.len
            && f->fields[i].state == NGX_IDEMPOTENCY_FIELD_WANTED
            && ngx_memcmp(f->names[i].data, name.data, name.len) == 0)
        {
            f->current = &f->fields[i];
            f->current->value.data = (u_char *) "";
            f->nwanted--;

            break;
        }
    }

    return NGX_OK;
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

    if (len > f->limit - field->value.len) {
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
    size = ngx_min(size, ngx_max(f->limit, NGX_IDEMPOTENCY_FIELD_FIRST));

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


/* the current field's value is complete; NGX_DECLINED: it is malformed */

ngx_int_t
ngx_idempotency_field_decode(ngx_idempotency_fields_t *f)
{
    ngx_idempotency_field_t  *field;

    field = f->current;

    if (field->state == NGX_IDEMPOTENCY_FIELD_WANTED
        && f->kind->decode(&field->value) != NGX_OK)
    {
        return NGX_DECLINED;
    }

    ngx_idempotency_field_end(f, NGX_IDEMPOTENCY_FIELD_FOUND);

    return NGX_OK;
}


/* the current field has ended; a value that was too long is spoilt */

void
ngx_idempotency_field_end(ngx_idempotency_fields_t *f, ngx_uint_t state)
{
    if (f->current == NULL) {
        return;
    }

    if (f->current->value.len > f->max) {
        f->current->state = NGX_IDEMPOTENCY_FIELD_SPOILT;
        f->too_long = 1;
    }

    if (f->current->state == NGX_IDEMPOTENCY_FIELD_WANTED) {
        f->current->state = state;
    }

    f->current = NULL;

    if (f->nwanted == 0) {
        f->done = 1;
    }
}


/* names are compared by their bytes, but "A" to "Z" count as "a" to "z" */

static ngx_inline int
name_cmp(u_char *base, ngx_idempotency_name_t *a, ngx_idempotency_name_t *b)
{
    if (a->prefix != b->prefix) {
        return (a->prefix < b->prefix) ? -1 : 1;
    }

    return name_cmp_rest(base, a, b);
}


static u_char  group_end[256] = {
    ['\0'] = 1, [' '] = 1, ['.'] = 1, ['['] = 1, ['_'] = 1
};


void
ngx_idempotency_sink_init(ngx_idempotency_sink_t *s,
    ngx_idempotency_digest_t *d)
{
    s->digest = d;
    s->pos = s->buf;
}


void
ngx_idempotency_sink_flush(ngx_idempotency_sink_t *s)
{
    ngx_idempotency_digest_bytes(s->digest, s->buf, s->pos - s->buf);
    s->pos = s->buf;
}


void
ngx_idempotency_sink_bytes(ngx_idempotency_sink_t *s, u_char *data,
    size_t len)
{
    if (len > (size_t) (s->buf + sizeof(s->buf) - s->pos)) {
        ngx_idempotency_sink_flush(s);

        if (len > sizeof(s->buf)) {
            ngx_idempotency_digest_bytes(s->digest, data, len);
            return;
        }
    }

    s->pos = ngx_cpymem(s->pos, data, len);
}


/* 7 bits in a byte, the highest first */

u_char *
ngx_idempotency_length(u_char *p, size_t len)
{
    ngx_uint_t  shift;

    for (shift = 0; len >> shift > 0x7f; shift += 7) { /* void */ }

    while (shift) {
        *p++ = (u_char) (0x80 | (len >> shift));
        shift -= 7;
    }

    *p++ = (u_char) (len & 0x7f);

    return p;
}


/* Puts the length of data in front of it.  One byte at p is reserved for the
   length: a longer one moves the data. */

u_char *
ngx_idempotency_put_length(u_char *p, u_char *data, size_t len)
{
    u_char  *last, head[10];

    if (len < 0x80) {
        *p = (u_char) len;
        return data;
    }

    last = ngx_idempotency_length(head, len);

    ngx_memmove(p + (last - head), data, len);

    return ngx_cpymem(p, head, last - head);
}


/*
 * The part of a field's name that decides its place.  All names that some
 * server takes for one are one group.  PHP drops leading spaces, ends a name
 * at a zero, and makes one letter of a dot, a space and a bracket.  Many
 * servers build one list of the fields whose names are alike before a bracket
 * or a dot.
 */

ngx_str_t
ngx_idempotency_group(ngx_str_t *name)
{
    u_char     *p, *end;
    ngx_str_t   group;

    p = name->data;
    end = p + name->len;

    while (p < end && *p == ' ') {
        p++;
    }

    group.data = p;

    while (p < end && !group_end[*p]) {
        p++;
    }

    group.len = p - group.data;

    return group;
}


ngx_uint_t
ngx_idempotency_names_alike(u_char *base, ngx_idempotency_name_t *a,
    ngx_idempotency_name_t *b)
{
    return name_cmp(base, a, b) == 0;
}


static int
name_cmp_rest(u_char *base, ngx_idempotency_name_t *a,
    ngx_idempotency_name_t *b)
{
    u_char    *p, *q, c, d;
    uint32_t   i, min;
    uint64_t   x, y;

    p = base + a->place;
    q = base + b->place;
    min = ngx_min(a->len, b->len);

    for (i = 0; i < min; i++) {

        for ( /* void */ ; min - i >= 8; i += 8) {
            ngx_memcpy(&x, p + i, 8);
            ngx_memcpy(&y, q + i, 8);

            if (x != y
                && ngx_idempotency_lower(x) != ngx_idempotency_lower(y))
            {
                break;
            }
        }

        if (i == min) {
            break;
        }

        c = ngx_tolower(p[i]);
        d = ngx_tolower(q[i]);

        if (c != d) {
            return (c < d) ? -1 : 1;
        }
    }

    return (a->len > b->len) - (a->len < b->len);
}


/*
 * The sort is stable.  Its time grows with the bytes of all names, whatever
 * they have in common, as strangers choose them.  0: all names differ, and were
 * in order already. tmp has room for n / 2 names.
 */

ngx_uint_t
ngx_idempotency_names_sort(u_char *base, ngx_idempotency_name_t *names,
    ngx_idempotency_name_t *tmp, ngx_uint_t n)
{
    ngx_uint_t  i;

    for (i = 1; i < n; i++) {
        if (name_cmp(base, &names[i - 1], &names[i]) >= 0) {
            sort_names(base, names, tmp, n);
            return 1;
        }
    }

    return 0;
}


/* sorts both halves, and merges them */

static void
sort_names(u_char *base, ngx_idempotency_name_t *names,
    ngx_idempotency_name_t *tmp, ngx_uint_t n)
{
    ngx_uint_t               half;
    ngx_idempotency_name_t  *a, *b, *a_end, *b_end;

    if (n <= NGX_IDEMPOTENCY_SORT_FEW) {
        sort_few(base, names, n);
        return;
    }

    half = n / 2;

    sort_names(base, names, tmp, half);
    sort_names(base, &names[half], tmp, n - half);

    ngx_memcpy(tmp, names, half * sizeof(ngx_idempotency_name_t));

    a = tmp;
    a_end = &tmp[half];
    b = &names[half];
    b_end = &names[n];

    while (a < a_end) {
        if (b < b_end && name_cmp(base, a, b) > 0) {
            *names++ = *b++;

        } else {
            *names++ = *a++;
        }
    }
}


static void
sort_few(u_char *base, ngx_idempotency_name_t *names, ngx_uint_t n)
{
    ngx_uint_t              i, k;
    ngx_idempotency_name_t  name;

    for (i = 1; i < n; i++) {

        name = names[i];

        for (k = i; k > 0; k--) {
            if (name_cmp(base, &names[k - 1], &name) <= 0) {
                break;
            }

            names[k] = names[k - 1];
        }

        names[k] = name;
    }
}
