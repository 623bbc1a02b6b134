
/*
 * A refusal for people: a small page that says what happened and what to do.
 *
 * Where something may have been executed it leads nowhere: the page with the
 * form, opened anew and sent again, could execute it once more.
 */


#include "ngx_http_idempotency_refuse.h"


static ngx_int_t page_back(ngx_http_request_t *r, ngx_str_t *back);
static ngx_uint_t page_is_path(u_char *p, u_char *last);


/*
 * Its style is the same on all pages, so that a Content-Security-Policy can
 * allow it by its hash, see docs/refusals.md.  What matters on a phone
 * and in the dark needs no style.
 */

static u_char  page_head[] =
    "<!DOCTYPE html>" CRLF
    "<html lang=\"en\">" CRLF
    "<head>" CRLF
    "<meta charset=\"utf-8\">" CRLF
    "<meta name=\"viewport\" content=\"width=device-width, "
        "initial-scale=1\">" CRLF
    "<meta name=\"color-scheme\" content=\"light dark\">" CRLF
    "<title>%V</title>" CRLF
    "<style>"
    "body{max-width:32em;margin:3em auto;padding:0 1em;"
        "font:1.1em/1.5 sans-serif}"
    "h1{font-size:1.4em;line-height:1.25}"
    "</style>" CRLF;

static u_char  page_refresh[] =
    "<meta http-equiv=\"refresh\" content=\"10; url=%V\">" CRLF;

static u_char  page_body[] =
    "</head>" CRLF
    "<body>" CRLF
    "<h1>%V</h1>" CRLF
    "<p>%V</p>" CRLF
    "<p>%V</p>" CRLF;

static u_char  page_soon[] =
    "<p>In ten seconds this page goes back by itself.</p>" CRLF;

static u_char  page_link[] =
    "<p><a href=\"%V\">Back to the page you came from</a></p>" CRLF;

static u_char  page_home[] =
    "<p><a href=\"/\">To the start page</a></p>" CRLF;

static u_char  page_tail[] =
    "</body>" CRLF
    "</html>" CRLF;


ngx_int_t
ngx_http_idempotency_page(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_refusal_text_t *refusal, ngx_str_t *body)
{
    u_char      *p;
    size_t       len;
    ngx_str_t    back, *next;
    ngx_uint_t   content, returns;

    content = ngx_http_idempotency_by_content(ctx);

    next = (content && refusal->next_content.len)
               ? &refusal->next_content : &refusal->next;

    /* with a key of its own, a form that is opened anew has a new one */

    returns = (refusal->returns && content);

    ngx_str_null(&back);

    if ((returns || refusal->back) && page_back(r, &back) != NGX_OK) {
        return NGX_ERROR;
    }

    len = sizeof(page_head) + sizeof(page_refresh) + sizeof(page_body)
          + sizeof(page_soon) + sizeof(page_link) + sizeof(page_home)
          + sizeof(page_tail)
          + 2 * refusal->heading.len + refusal->page.len + next->len
          + 2 * back.len;

    body->data = ngx_pnalloc(r->pool, len);
    if (body->data == NULL) {
        return NGX_ERROR;
    }

    p = ngx_sprintf(body->data, (char *) page_head, &refusal->heading);

    if (returns && back.len) {
        p = ngx_sprintf(p, (char *) page_refresh, &back);
    }

    p = ngx_sprintf(p, (char *) page_body, &refusal->heading, &refusal->page,
                    next);

    if (returns && back.len) {
        p = ngx_cpymem(p, page_soon, sizeof(page_soon) - 1);
    }

    if (back.len) {
        p = ngx_sprintf(p, (char *) page_link, &back);

    } else if (refusal->back) {
        p = ngx_cpymem(p, page_home, sizeof(page_home) - 1);
    }

    p = ngx_cpymem(p, page_tail, sizeof(page_tail) - 1);

    body->len = p - body->data;

    return NGX_OK;
}


/*
 * The page the form was on, for a link, and to return to: a GET of what the
 * user has just seen.  Only a page of the same host, and fit for HTML.
 */

static ngx_int_t
page_back(ngx_http_request_t *r, ngx_str_t *back)
{
    u_char     *p, *last;
    ngx_str_t   host, *referer;

    if (r->headers_in.referer == NULL) {
        return NGX_OK;
    }

    referer = &r->headers_in.referer->value;

    /* HTTP/3 knows it by its pseudo-header only, and then without a port */

    host = r->headers_in.host ? r->headers_in.host->value
                              : r->headers_in.server;

    p = referer->data;
    last = p + referer->len;

    if (referer->len > 8
        && ngx_strncasecmp(p, (u_char *) "https://", 8) == 0)
    {
        p += 8;

    } else if (referer->len > 7
               && ngx_strncasecmp(p, (u_char *) "http://", 7) == 0)
    {
        p += 7;

    } else {
        return NGX_OK;
    }

    if (host.len == 0
        || (size_t) (last - p) <= host.len
        || ngx_strncasecmp(p, host.data, host.len) != 0)
    {
        return NGX_OK;
    }

    /* its path alone: the host and the scheme are those of this page */

    p += host.len;

    if (!page_is_path(p, last)) {
        return NGX_OK;
    }

    back->len = last - p + ngx_escape_html(NULL, p, last - p);

    back->data = ngx_pnalloc(r->pool, back->len);
    if (back->data == NULL) {
        return NGX_ERROR;
    }

    (void) ngx_escape_html(back->data, p, last - p);

    return NGX_OK;
}


/*
 * A path, as browsers write it, and its arguments.  What begins with two
 * slashes would be another host, and browsers take a backslash for a slash;
 * something behind us may decode what is encoded, and redirect there.
 */

static ngx_uint_t
page_is_path(u_char *p, u_char *last)
{
    u_char      c, prev;
    ngx_int_t   code;
    ngx_uint_t  args;

    args = 0;
    prev = '\0';

    if (p == last || *p != '/') {
        return 0;
    }

    for ( /* void */ ; p < last; p++) {
        c = *p;

        if (c <= ' ' || c >= 0x7f || c == '\\' || c == '#') {
            return 0;
        }

        if (args) {
            continue;
        }

        if (c == '?') {
            args = 1;
            continue;
        }

        if (c == '%') {
            code = (last - p > 2) ? ngx_hextoi(p + 1, 2) : NGX_ERROR;

            if (code <= ' ' || code == 0x7f || ngx_strchr("%./\\", code)) {
                return 0;
            }
        }

        if (prev == '/' && (c == '/' || c == '.')) {
            return 0;
        }

        prev = c;
    }

    return 1;
}
