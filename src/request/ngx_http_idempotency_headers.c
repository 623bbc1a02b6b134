
/*
 * Header lines: those of a request by name, those of a response; and a
 * response of ours, sent with them.
 */


#include "ngx_http_idempotency_headers.h"


void
ngx_http_idempotency_header_iter(ngx_http_idempotency_header_iter_t *it,
    ngx_http_request_t *r)
{
    it->part = &r->headers_in.headers.part;
    it->i = 0;
}


ngx_table_elt_t *
ngx_http_idempotency_header_next(ngx_http_idempotency_header_iter_t *it,
    ngx_str_t *name)
{
    ngx_table_elt_t  *h;

    for ( /* void */ ; it->part; it->part = it->part->next, it->i = 0) {

        while (it->i < it->part->nelts) {
            h = (ngx_table_elt_t *) it->part->elts + it->i++;

            if (ngx_http_idempotency_header_is(h, name)) {
                return h;
            }
        }
    }

    return NULL;
}


ngx_uint_t
ngx_http_idempotency_header_is(ngx_table_elt_t *h, ngx_str_t *name)
{
    u_char  c;
    size_t  n;

    if (h->key.len != name->len) {
        return 0;
    }

    for (n = 0; n < name->len; n++) {
        c = h->lowcase_key[n];

        if ((c == '-' ? '_' : c) != name->data[n]) {
            return 0;
        }
    }

    return 1;
}


ngx_table_elt_t *
ngx_http_idempotency_header_first(ngx_http_request_t *r, ngx_str_t *name)
{
    ngx_http_idempotency_header_iter_t  it;

    ngx_http_idempotency_header_iter(&it, r);

    return ngx_http_idempotency_header_next(&it, name);
}


ngx_table_elt_t *
ngx_http_idempotency_header_of(ngx_list_t *list, char *name)
{
    size_t            len;
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    len = ngx_strlen(name);

    for (part = &list->part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {

            if (h[i].hash && h[i].key.len == len
                && ngx_strncasecmp(h[i].key.data, (u_char *) name, len) == 0)
            {
                return &h[i];
            }
        }
    }

    return NULL;
}


ngx_table_elt_t *
ngx_http_idempotency_header_push(ngx_http_request_t *r, ngx_list_t *list,
    ngx_str_t *key, ngx_str_t *value)
{
    ngx_table_elt_t  *h;

    h = ngx_list_push(list);
    if (h == NULL) {
        return NULL;
    }

    h->key = *key;
    h->value = *value;

    /* as add_header has it: not deleted, and nobody asks for the rest */

    h->hash = 1;
    h->lowcase_key = NULL;

#if (nginx_version >= 1023000)
    h->next = NULL;
#endif

    return h;
}


/* a response whose body is in one piece, from the top of all filters */

ngx_int_t
ngx_http_idempotency_send(ngx_http_request_t *r, u_char *body, size_t len,
    ngx_uint_t temporary, ngx_file_t *file)
{
    ngx_int_t     rc;
    ngx_buf_t    *b;
    ngx_chain_t   out;

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    if (len == 0) {
        return ngx_http_send_special(r, NGX_HTTP_LAST);
    }

    b = ngx_calloc_buf(r->pool);
    if (b == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (file) {
        b->file = file;
        b->file_last = len;
        b->in_file = 1;
        b->temp_file = 1;

    } else {
        b->start = body;
        b->pos = body;
        b->last = body + len;
        b->end = b->last;
        b->temporary = temporary ? 1 : 0;
        b->memory = !b->temporary;
    }

    b->last_buf = 1;
    b->last_in_chain = 1;

    out.buf = b;
    out.next = NULL;

    return ngx_http_output_filter(r, &out);
}
