
/*
 * What the kinds of bodies share: the kind of a media type; names that are left
 * out; fields that are wanted; the buffer before the digest; the order of
 * names.
 */


#include "ngx_idempotency_encode.h"


#define NGX_IDEMPOTENCY_FIELD_FIRST  64    /* bytes of a value, at first */

#define NGX_IDEMPOTENCY_SORT_RUN     8
#define NGX_IDEMPOTENCY_SORT_MERGE   256   /* more are sorted by their bytes */


static ngx_int_t kind_match(ngx_str_t *content_type, ngx_uint_t flags,
    ngx_str_t *boundary, const ngx_idempotency_kind_t **kind);
static ngx_int_t pointer_tokens(ngx_idempotency_path_t *path,
    ngx_str_t *pointer, ngx_pool_t *pool);
static int ngx_libc_cdecl path_cmp(const void *one, const void *two);
static ngx_int_t field_grow(ngx_idempotency_fields_t *f, size_t len);
static void sort_names(ngx_idempotency_names_t *s,
    ngx_idempotency_name_t *names, ngx_idempotency_name_t *tmp, ngx_uint_t n,
    uint32_t depth);
static ngx_uint_t sort_alike(ngx_idempotency_names_t *s,
    ngx_idempotency_name_t *names, ngx_uint_t n, uint32_t depth);
static void sort_radix(ngx_idempotency_name_t *names,
    ngx_idempotency_name_t *tmp, ngx_uint_t n, uint32_t depth);
static void sort_short(ngx_idempotency_names_t *s,
    ngx_idempotency_name_t *names, ngx_idempotency_name_t *tmp, ngx_uint_t n,
    uint32_t depth);
static void sort_run(ngx_idempotency_names_t *s,
    ngx_idempotency_name_t *names, ngx_uint_t n, uint32_t depth);
static void sort_merge(ngx_idempotency_names_t *s,
    ngx_idempotency_name_t *to, ngx_idempotency_name_t *from, ngx_uint_t n,
    ngx_uint_t width, uint32_t depth);


const ngx_idempotency_kind_t  *ngx_idempotency_kinds[] = {
    &ngx_idempotency_form_kind,
    &ngx_idempotency_json_kind,
    &ngx_idempotency_multipart_kind,
    &ngx_idempotency_text_kind,
    NULL
};


const ngx_idempotency_kind_t *
ngx_idempotency_canon_kind(ngx_str_t *content_type, ngx_uint_t flags,
    ngx_str_t *boundary)
{
    const ngx_idempotency_kind_t  *kind;

    (void) kind_match(content_type, flags, boundary, &kind);

    return kind;
}


ngx_int_t
ngx_idempotency_fields_kind(ngx_str_t *content_type,
    const ngx_idempotency_kind_t **kind, ngx_str_t *boundary)
{
    ngx_uint_t                      flags;
    const ngx_idempotency_kind_t  **k;

    flags = 0;

    for (k = ngx_idempotency_kinds; *k; k++) {
        flags |= (*k)->fields ? (*k)->flag : 0;
    }

    ngx_str_null(boundary);

    return kind_match(content_type, flags, boundary, kind);
}


/* NGX_DECLINED: the type is of a kind, but doesn't tell how to read the body */

static ngx_int_t
kind_match(ngx_str_t *content_type, ngx_uint_t flags, ngx_str_t *boundary,
    const ngx_idempotency_kind_t **kind)
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


/*
 * The next parameter, from its semicolon on.  NGX_DONE: there is none,
 * NGX_ERROR: it is malformed.  A quoted string keeps its backslashes.
 */

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


/* paths are sorted: those that begin alike stand together */

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


/* RFC 6901: "~1" is a slash and "~0" a tilde in a token */

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
    int                            rc;
    size_t                         len;
    ngx_str_t                     *x, *y;
    ngx_uint_t                     i;
    const ngx_idempotency_path_t  *a, *b;

    a = one;
    b = two;

    for (i = 0; i < a->ntokens && i < b->ntokens; i++) {

        x = &a->tokens[i];
        y = &b->tokens[i];
        len = ngx_min(x->len, y->len);

        rc = ngx_memcmp(x->data, y->data, len);

        if (rc != 0) {
            return rc;
        }

        if (x->len != y->len) {
            return (x->len < y->len) ? -1 : 1;
        }
    }

    return (a->ntokens > b->ntokens) - (a->ntokens < b->ntokens);
}


/* for forms: a JSON pointer leaves out none of their fields */

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


/* nothing more can be read; fields that were found stay found */

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


/* a name is complete: the field it names becomes the current one, or none */

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


/* the current field has ended; a value that was too long stays spoilt */

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


static u_char  group_end[256] = {
    ['\0'] = 1, [' '] = 1, ['.'] = 1, ['['] = 1, ['_'] = 1
};


static ngx_inline u_char *
sort_name(ngx_idempotency_names_t *s, uint32_t index)
{
    uint32_t  place;

    place = *(uint32_t *) (s->items + index * s->stride);

    return (place < s->size) ? s->data + place
                             : s->scratch + (place - s->size);
}


/* for names that are alike up to this depth, where their prefixes begin */

static ngx_inline int
sort_cmp(ngx_idempotency_names_t *s, ngx_idempotency_name_t *a,
    ngx_idempotency_name_t *b, uint32_t depth)
{
    int  rc;

    if (a->prefix != b->prefix) {
        return (a->prefix < b->prefix) ? -1 : 1;
    }

    depth += 8;

    if (a->len > depth && b->len > depth) {
        rc = ngx_idempotency_name_cmp(sort_name(s, a->index) + depth,
                                      a->len - depth,
                                      sort_name(s, b->index) + depth,
                                      b->len - depth);

    } else {
        /* one name is the beginning of the other */
        rc = (a->len > b->len) - (a->len < b->len);
    }

    s->alike |= (rc == 0);

    return rc;
}


void
ngx_idempotency_sink_init(ngx_idempotency_sink_t *s,
    ngx_idempotency_digest_t *d, u_char kind)
{
    s->digest = d;
    s->pos = s->buf;
    *s->pos++ = kind;
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


/* 7 bits a byte, the highest first */

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


/*
 * The part of a field's name that decides its place.  Names that some server
 * takes for one name are one group.  PHP drops leading spaces, ends a name at a
 * zero, and makes one letter of a dot, a space and a bracket.  Many servers
 * build one list of the fields whose names are alike before a bracket or a dot.
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


/*
 * The order is stable.  The time grows with the bytes of all names, whatever
 * they have in common, as strangers choose them.  Names that are sorted already
 * are compared once each, and then 0 is returned.  tmp has room for n names.
 * s->alike tells whether two names are the same: any sort compares neighbours.
 */

ngx_uint_t
ngx_idempotency_names_sort(ngx_idempotency_names_t *s,
    ngx_idempotency_name_t *names, ngx_idempotency_name_t *tmp, ngx_uint_t n)
{
    ngx_uint_t  i;

    s->alike = 0;

    for (i = 1; i < n; i++) {
        if (sort_cmp(s, &names[i - 1], &names[i], 0) > 0) {
            sort_names(s, names, tmp, n, 0);
            return 1;
        }
    }

    return 0;
}


/*
 * Sorts by the next 8 bytes, and then each run of names that are alike in
 * these.  The longest run is sorted in this loop: so the calls nest no deeper
 * than the logarithm of n.
 */

static void
sort_names(ngx_idempotency_names_t *s, ngx_idempotency_name_t *names,
    ngx_idempotency_name_t *tmp, ngx_uint_t n, uint32_t depth)
{
    ngx_uint_t               i, run, nlongest;
    ngx_idempotency_name_t  *longest;

    for ( ;; ) {

        if (n <= NGX_IDEMPOTENCY_SORT_MERGE) {
            sort_short(s, names, tmp, n, depth);
            return;
        }

        sort_radix(names, tmp, n, depth);

        longest = NULL;
        nlongest = 0;

        for (i = 0; i < n; i += run) {
            run = sort_alike(s, &names[i], n - i, depth);

            if (run == 1) {
                continue;
            }

            if (run <= nlongest) {
                sort_names(s, &names[i], tmp, run, depth + 8);
                continue;
            }

            if (longest) {
                sort_names(s, longest, tmp, nlongest, depth + 8);
            }

            longest = &names[i];
            nlongest = run;
        }

        if (longest == NULL) {
            return;
        }

        names = longest;
        n = nlongest;
        depth += 8;
    }
}


/* the length of the run of names that are alike and longer than that; these get
   their next 8 bytes */

static ngx_uint_t
sort_alike(ngx_idempotency_names_t *s, ngx_idempotency_name_t *names,
    ngx_uint_t n, uint32_t depth)
{
    ngx_uint_t  i, run;

    if (names->len - depth <= 8) {
        s->alike |= (n > 1 && names[1].prefix == names->prefix
                     && names[1].len == names->len);
        return 1;
    }

    for (run = 1; run < n; run++) {
        if (names[run].prefix != names->prefix) {
            break;
        }
    }

    if (run == 1) {
        return 1;
    }

    depth += 8;

    for (i = 0; i < run; i++) {
        names[i].prefix =
            ngx_idempotency_prefix(sort_name(s, names[i].index) + depth,
                                   names[i].len - depth);
    }

    return run;
}


/*
 * Sorts by the length of the prefix, as a name may end in zeros, and then by
 * the prefix's bytes, the last one first.
 */

static void
sort_radix(ngx_idempotency_name_t *names, ngx_idempotency_name_t *tmp,
    ngx_uint_t n, uint32_t depth)
{
    uint32_t                 rest, sum, count, counts[9][256];
    uint64_t                 prefix;
    ngx_uint_t               i, k, key;
    ngx_idempotency_name_t  *from, *to, *swap;

    ngx_memzero(counts, sizeof(counts));

    for (i = 0; i < n; i++) {
        rest = names[i].len - depth;
        prefix = names[i].prefix;

        counts[0][ngx_min(rest, 9)]++;

        for (k = 1; k < 9; k++) {
            counts[k][prefix & 0xff]++;
            prefix >>= 8;
        }
    }

    from = names;
    to = tmp;

    for (k = 0; k < 9; k++) {

        for (sum = 0, key = 0; key < 256; key++) {
            count = counts[k][key];

            if (count == n) {
                break;
            }

            counts[k][key] = sum;
            sum += count;
        }

        if (key < 256) {
            /* this byte is the same in all names */
            continue;
        }

        for (i = 0; i < n; i++) {
            rest = from[i].len - depth;
            key = (k == 0) ? ngx_min(rest, 9)
                           : (from[i].prefix >> (8 * (k - 1))) & 0xff;

            to[counts[k][key]++] = from[i];
        }

        swap = from;
        from = to;
        to = swap;
    }

    if (from == tmp) {
        ngx_memcpy(names, tmp, n * sizeof(ngx_idempotency_name_t));
    }
}


static void
sort_short(ngx_idempotency_names_t *s, ngx_idempotency_name_t *names,
    ngx_idempotency_name_t *tmp, ngx_uint_t n, uint32_t depth)
{
    ngx_uint_t               i, width;
    ngx_idempotency_name_t  *from, *to;

    for (i = 0; i < n; i += NGX_IDEMPOTENCY_SORT_RUN) {
        sort_run(s, &names[i], ngx_min(n - i, NGX_IDEMPOTENCY_SORT_RUN), depth);
    }

    from = names;
    to = tmp;

    for (width = NGX_IDEMPOTENCY_SORT_RUN; width < n; width *= 2) {

        for (i = 0; i < n; i += 2 * width) {
            sort_merge(s, &to[i], &from[i], ngx_min(n - i, 2 * width), width,
                       depth);
        }

        to = from;
        from = (from == names) ? tmp : names;
    }

    if (from == tmp) {
        ngx_memcpy(names, tmp, n * sizeof(ngx_idempotency_name_t));
    }
}


static void
sort_run(ngx_idempotency_names_t *s, ngx_idempotency_name_t *names,
    ngx_uint_t n, uint32_t depth)
{
    ngx_uint_t              i, k;
    ngx_idempotency_name_t  name;

    for (i = 1; i < n; i++) {

        name = names[i];

        for (k = i; k > 0; k--) {
            if (sort_cmp(s, &names[k - 1], &name, depth) <= 0) {
                break;
            }

            names[k] = names[k - 1];
        }

        names[k] = name;
    }
}


/* merges two sorted runs: one of this width, and the rest of n */

static void
sort_merge(ngx_idempotency_names_t *s, ngx_idempotency_name_t *to,
    ngx_idempotency_name_t *from, ngx_uint_t n, ngx_uint_t width,
    uint32_t depth)
{
    ngx_idempotency_name_t  *a, *b, *a_end, *b_end;

    a = from;
    a_end = from + ngx_min(width, n);
    b = a_end;
    b_end = from + n;

    while (a < a_end && b < b_end) {
        *to++ = (sort_cmp(s, a, b, depth) <= 0) ? *a++ : *b++;
    }

    while (a < a_end) {
        *to++ = *a++;
    }

    while (b < b_end) {
        *to++ = *b++;
    }
}
