
/*
 * Which body is digested by its meaning, and what of it is left out.
 */


#include "ngx_idempotency_encode.h"
#include "ngx_idempotency_fields.h"


static ngx_int_t pointer_tokens(ngx_idempotency_path_t *path,
    ngx_str_t *pointer, ngx_pool_t *pool);
static int ngx_libc_cdecl path_cmp(const void *one, const void *two);
static ngx_uint_t text_encoding(u_char *start, u_char *end);
static ngx_uint_t boundary_is_valid(ngx_str_t *boundary);
static ngx_uint_t canon_begins(ngx_str_t *s, char *text);
static ngx_uint_t canon_equal(ngx_str_t *s, char *text);


ngx_int_t
ngx_idempotency_canon_body(ngx_idempotency_digest_t *d, ngx_uint_t kind,
    ngx_idempotency_canon_t *c, u_char *data, size_t len, ngx_pool_t *pool)
{
    if (len > NGX_IDEMPOTENCY_CANON_SIZE) {
        return NGX_DECLINED;
    }

    switch (kind) {

    case NGX_IDEMPOTENCY_CANON_FORM:
        return ngx_idempotency_form(d, c, data, len, pool);

    case NGX_IDEMPOTENCY_CANON_JSON:
        return ngx_idempotency_json(d, c, data, len, pool);

    case NGX_IDEMPOTENCY_CANON_TEXT:
        ngx_idempotency_text(d, data, len);
        return NGX_OK;
    }

    return NGX_DECLINED;
}


void
ngx_idempotency_canon_raw(ngx_idempotency_digest_t *d)
{
    ngx_idempotency_digest_bytes(d, (u_char *) "R", 1);
}


/* sorted, so that those that begin alike stand together */

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


/* a pointer is for JSON only, a name for forms, too */

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


ngx_uint_t
ngx_idempotency_canon_kind(ngx_str_t *content_type, ngx_uint_t flags,
    ngx_str_t *boundary)
{
    u_char      *p, *end;
    ngx_int_t    rc;
    ngx_str_t    type, suffix, name, value;
    ngx_uint_t   kind;

    end = content_type->data + content_type->len;
    p = ngx_strlchr(content_type->data, end, ';');

    if (p == NULL) {
        p = end;
    }

    type = ngx_idempotency_trim(content_type->data, p);

    if (canon_equal(&type, "application/x-www-form-urlencoded")) {
        return flags & NGX_IDEMPOTENCY_CANON_FORM;
    }

    if (canon_equal(&type, "application/json")) {
        return flags & NGX_IDEMPOTENCY_CANON_JSON;
    }

    if (canon_equal(&type, "text/plain")) {
        kind = flags & NGX_IDEMPOTENCY_CANON_TEXT;
        return text_encoding(p, end) ? kind : 0;
    }

    if (!canon_equal(&type, "multipart/form-data")) {

        /* a structured syntax suffix, on any type that has a subtype */

        suffix.data = ngx_strlchr(type.data, type.data + type.len, '/');

        if (suffix.data && type.data + type.len - suffix.data > 5) {
            suffix.data = type.data + type.len - 5;
            suffix.len = 5;

            if (!canon_equal(&suffix, "+json")) {
                return 0;
            }

            return flags & NGX_IDEMPOTENCY_CANON_JSON;
        }

        return 0;
    }

    if (!(flags & NGX_IDEMPOTENCY_CANON_MULTIPART)) {
        return 0;
    }

    ngx_str_null(boundary);

    while ((rc = ngx_idempotency_parameter(&p, end, &name, &value))
           == NGX_OK)
    {

        if (!canon_equal(&name, "boundary")) {
            continue;
        }

        if (boundary->data) {
            return 0;
        }

        *boundary = value;
    }

    if (rc == NGX_ERROR || !boundary_is_valid(boundary)) {
        return 0;
    }

    return NGX_IDEMPOTENCY_CANON_MULTIPART;
}


ngx_int_t
ngx_idempotency_fields_kind(ngx_str_t *content_type, ngx_uint_t *kind,
    ngx_str_t *boundary)
{
    u_char     *p, *end;
    ngx_str_t   type;

    ngx_str_null(boundary);

    *kind = ngx_idempotency_canon_kind(content_type,
                                       NGX_IDEMPOTENCY_CANON_FORM
                                       |NGX_IDEMPOTENCY_CANON_JSON
                                       |NGX_IDEMPOTENCY_CANON_MULTIPART,
                                       boundary);
    if (*kind) {
        return NGX_OK;
    }

    end = content_type->data + content_type->len;
    p = ngx_strlchr(content_type->data, end, ';');

    type = ngx_idempotency_trim(content_type->data, p ? p : end);

    return canon_equal(&type, "multipart/form-data") ? NGX_DECLINED : NGX_OK;
}


/*
 * White space is looked for as ASCII and UTF-8 have it.  In the encodings of
 * more bytes a character the same bytes are something else.
 */

static ngx_uint_t
text_encoding(u_char *pos, u_char *end)
{
    ngx_int_t  rc;
    ngx_str_t  name, value;

    while ((rc = ngx_idempotency_parameter(&pos, end, &name, &value))
           == NGX_OK)
    {

        if (canon_equal(&name, "charset")
            && (canon_begins(&value, "utf") || canon_begins(&value, "ucs")
                || canon_begins(&value, "iso-10646"))
            && !canon_equal(&value, "utf-8") && !canon_equal(&value, "utf8"))
        {
            return 0;
        }
    }

    return rc == NGX_DONE;
}


/* RFC 2046, 5.1.1, but for its choice of characters */

static ngx_uint_t
boundary_is_valid(ngx_str_t *boundary)
{
    size_t  i;
    u_char  c;

    if (boundary->len == 0 || boundary->len > NGX_IDEMPOTENCY_BOUNDARY
        || boundary->data[boundary->len - 1] == ' ')
    {
        return 0;
    }

    for (i = 0; i < boundary->len; i++) {
        c = boundary->data[i];

        if (c < ' ' || c > '~' || c == '"' || c == '\\') {
            return 0;
        }
    }

    return 1;
}


/*
 * The next parameter, from its semicolon on.  NGX_DONE: there is none,
 * NGX_ERROR: it is malformed.  A backslash in a quoted string is left as
 * it is.
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


/* in these two capital and small letters are the same */

static ngx_uint_t
canon_begins(ngx_str_t *s, char *text)
{
    size_t  len;

    len = ngx_strlen(text);

    return s->len >= len
           && ngx_strncasecmp(s->data, (u_char *) text, len) == 0;
}


static ngx_uint_t
canon_equal(ngx_str_t *s, char *text)
{
    return s->len == ngx_strlen(text) && canon_begins(s, text);
}
