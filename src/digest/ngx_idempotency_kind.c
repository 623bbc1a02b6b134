
/*
 * The kinds of bodies that are digested by their meaning, or have fields, and
 * which one a media type tells.
 */


#include "ngx_idempotency_encode.h"
#include "ngx_idempotency_fields.h"


static ngx_int_t kind_match(ngx_str_t *content_type, ngx_uint_t flags,
    ngx_str_t *boundary, const ngx_idempotency_kind_t **kind);


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


/* NGX_DECLINED: it is of a kind, but can't be read */

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


ngx_uint_t
ngx_idempotency_begins(ngx_str_t *s, char *text)
{
    size_t  len;

    len = ngx_strlen(text);

    return s->len >= len
           && ngx_strncasecmp(s->data, (u_char *) text, len) == 0;
}


ngx_uint_t
ngx_idempotency_equal(ngx_str_t *s, char *text)
{
    return s->len == ngx_strlen(text) && ngx_idempotency_begins(s, text);
}
