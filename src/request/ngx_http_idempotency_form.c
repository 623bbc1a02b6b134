
/*
 * Whether a browser sends a form by itself, as its user told it to: no script
 * is at work, which would send the same twice because it means it.
 */


#include "ngx_http_idempotency_headers.h"


static ngx_table_elt_t *form_mode(ngx_http_request_t *r);


/* browsers of today say so, of others it is known by what they want */

ngx_uint_t
ngx_http_idempotency_is_form(ngx_http_request_t *r)
{
    static ngx_str_t  with = ngx_string("x_requested_with");

    if (!ngx_http_idempotency_has_form(r)) {
        return 0;
    }

    if (form_mode(r)) {
        return ngx_http_idempotency_navigates(r);
    }

    return ngx_http_idempotency_header_first(r, &with) == NULL
           && ngx_http_idempotency_accepts_html(r);
}


/* its body is of a type that forms have */

ngx_uint_t
ngx_http_idempotency_has_form(ngx_http_request_t *r)
{
    u_char      *p, *last;
    ngx_str_t   *type;
    ngx_uint_t   i;

    static ngx_str_t  types[] = {
        ngx_string("application/x-www-form-urlencoded"),
        ngx_string("multipart/form-data"),
        ngx_string("text/plain")
    };

    if (r->headers_in.content_type == NULL) {
        return 0;
    }

    type = &r->headers_in.content_type->value;
    last = type->data + type->len;

    for (i = 0; i < sizeof(types) / sizeof(types[0]); i++) {

        if (type->len < types[i].len
            || ngx_strncasecmp(type->data, types[i].data, types[i].len) != 0)
        {
            continue;
        }

        p = type->data + types[i].len;

        while (p < last && (*p == ' ' || *p == '\t')) {
            p++;
        }

        if (p == last || *p == ';') {
            return 1;
        }
    }

    return 0;
}


/* it goes to a page, and says so itself */

ngx_uint_t
ngx_http_idempotency_navigates(ngx_http_request_t *r)
{
    ngx_table_elt_t  *h;

    h = form_mode(r);

    return h && h->value.len == 8
           && ngx_strncmp(h->value.data, "navigate", 8) == 0;
}


static ngx_table_elt_t *
form_mode(ngx_http_request_t *r)
{
    static ngx_str_t  mode = ngx_string("sec_fetch_mode");

    return ngx_http_idempotency_header_first(r, &mode);
}
