
/*
 * Whether a client prefers a page to a problem, or wants one at all: what its
 * Accept header says (RFC 9110, 12.5.1).
 */


#include "ngx_http_idempotency_headers.h"


static ngx_uint_t accept_quality(ngx_http_request_t *r, char *type,
    size_t type_len, char *subtype, ngx_uint_t *best);
static ngx_uint_t accept_range(ngx_str_t *range, char *type, size_t type_len,
    char *subtype);
static ngx_uint_t accept_weight(u_char *p, u_char *last);


/* only a client that really prefers it: others are programs */

ngx_uint_t
ngx_http_idempotency_prefers_html(ngx_http_request_t *r)
{
    ngx_uint_t  html, json, problem, best;

    html = accept_quality(r, "text", 4, "html", &best);
    json = accept_quality(r, "application", 11, "json", &best);
    problem = accept_quality(r, "application", 11, "problem+json", &best);

    return html > json && html > problem;
}


/* by its name: what takes anything is a program */

ngx_uint_t
ngx_http_idempotency_accepts_html(ngx_http_request_t *r)
{
    ngx_uint_t  best;

    return accept_quality(r, "text", 4, "html", &best) && best == 3;
}


/*
 * In thousandths, by the most specific range that covers the type: how
 * specific that is, accept_range() tells
 */

static ngx_uint_t
accept_quality(ngx_http_request_t *r, char *type, size_t type_len,
    char *subtype, ngx_uint_t *best)
{
    u_char                              *p, *end, *last, *semicolon;
    ngx_str_t                            range;
    ngx_uint_t                           specific, quality;
    ngx_table_elt_t                     *h;
    ngx_http_idempotency_header_iter_t   it;

    static ngx_str_t  accept = ngx_string("accept");

    *best = 0;
    quality = 0;

    ngx_http_idempotency_header_iter(&it, r);

    while ((h = ngx_http_idempotency_header_next(&it, &accept)) != NULL) {

        last = h->value.data + h->value.len;

        for (p = h->value.data; p < last; p = end + 1) {

            end = ngx_strlchr(p, last, ',');
            if (end == NULL) {
                end = last;
            }

            semicolon = ngx_strlchr(p, end, ';');

            range.data = p;
            range.len = (semicolon ? semicolon : end) - p;

            specific = accept_range(&range, type, type_len, subtype);

            if (specific > *best) {
                *best = specific;
                quality = semicolon ? accept_weight(semicolon, end) : 1000;
            }
        }
    }

    return quality;
}


/* 3: the type itself, 2: "type/" and a star, 1: two stars, 0: another one */

static ngx_uint_t
accept_range(ngx_str_t *range, char *type, size_t type_len, char *subtype)
{
    u_char  *p, *last;
    size_t   len;

    p = range->data;
    last = p + range->len;

    while (p < last && (*p == ' ' || *p == '\t')) {
        p++;
    }

    while (p < last && (last[-1] == ' ' || last[-1] == '\t')) {
        last--;
    }

    len = last - p;

    if (len == 3 && ngx_strncmp(p, "*/*", 3) == 0) {
        return 1;
    }

    if (len < type_len + 2
        || ngx_strncasecmp(p, (u_char *) type, type_len) != 0
        || p[type_len] != '/')
    {
        return 0;
    }

    p += type_len + 1;
    len -= type_len + 1;

    if (len == 1 && *p == '*') {
        return 2;
    }

    return (len == ngx_strlen(subtype)
            && ngx_strncasecmp(p, (u_char *) subtype, len) == 0) ? 3 : 0;
}


/* of the parameters from a semicolon on: ";q=0.8" is 800 */

static ngx_uint_t
accept_weight(u_char *p, u_char *last)
{
    ngx_uint_t  weight, scale;

    while (p) {
        p++;

        while (p < last && (*p == ' ' || *p == '\t')) {
            p++;
        }

        if (last - p >= 3 && (*p | 0x20) == 'q' && p[1] == '=') {
            break;
        }

        p = ngx_strlchr(p, last, ';');
    }

    if (p == NULL) {
        return 1000;
    }

    p += 2;
    weight = (*p == '1') ? 1000 : 0;

    if (weight || ++p == last || *p != '.') {
        return weight;
    }

    for (p++, scale = 100;
         p < last && scale && *p >= '0' && *p <= '9';
         p++, scale /= 10)
    {
        weight += (*p - '0') * scale;
    }

    return weight;
}
