
/*
 * A refusal for programs: a problem document (RFC 9457).
 */


#include "ngx_http_idempotency_refuse.h"


static u_char *problem_escape(u_char *p, ngx_str_t *uri);


ngx_int_t
ngx_http_idempotency_problem(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_refusal_text_t *refusal, ngx_uint_t status,
    ngx_str_t *body)
{
    u_char     *p;
    size_t      len;
    ngx_str_t   detail, *docs, *uri, *name;

    name = &ngx_http_idempotency_refusals[ctx->status].name;
    docs = &ctx->conf->docs;
    uri = &r->unparsed_uri;

    if (ngx_http_idempotency_refusal_detail(r, ctx, &detail) != NGX_OK) {
        return NGX_ERROR;
    }

    len = sizeof("{\"type\":\"urn:idempotency:\",\"title\":\"\",\"status\":,"
                 "\"detail\":\"\",\"instance\":\"\",\"retryable\":false}"
                 CRLF)
          + name->len + refusal->title.len + NGX_INT_T_LEN + detail.len
          + docs->len + 3 * uri->len;

    body->data = ngx_pnalloc(r->pool, len);
    if (body->data == NULL) {
        return NGX_ERROR;
    }

    p = ngx_sprintf(body->data, "{\"type\":\"");

    if (docs->len) {
        p = ngx_sprintf(p, "%V#", docs);

    } else {
        p = ngx_sprintf(p, "urn:idempotency:");
    }

    p = ngx_sprintf(p, "%V\",\"title\":\"%V\",\"status\":%ui,"
                       "\"detail\":\"%V\",\"instance\":\"",
                    name, &refusal->title, status, &detail);

    p = problem_escape(p, uri);

    p = ngx_sprintf(p, "\",\"retryable\":%s}" CRLF,
                    refusal->retryable ? "true" : "false");

    body->len = p - body->data;

    return NGX_OK;
}


/* what no URI may hold, so that the client's is one, and safe to show */

static u_char *
problem_escape(u_char *p, ngx_str_t *uri)
{
    size_t  i;
    u_char  c;

    for (i = 0; i < uri->len; i++) {
        c = uri->data[i];

        if (c <= ' ' || c >= 0x7f || ngx_strchr("\"<>\\^`{|}", c)) {
            p = ngx_sprintf(p, "%%%02Xd", c);

        } else {
            *p++ = c;
        }
    }

    return p;
}
