
/*
 * What of a body is left out where it is digested by its meaning.
 */


#include "ngx_idempotency_encode.h"


static ngx_int_t pointer_tokens(ngx_idempotency_path_t *path,
    ngx_str_t *pointer, ngx_pool_t *pool);
static int ngx_libc_cdecl path_cmp(const void *one, const void *two);


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
