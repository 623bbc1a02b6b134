
/*
 * A refusal for programs: a problem document (RFC 9457).
 */


#include "ngx_http_idempotency_refuse.h"


ngx_int_t
ngx_http_idempotency_problem(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_refusal_text_t *refusal, ngx_uint_t status,
    ngx_str_t *body)
{
    ngx_http_idempotency_problem_t  problem;

    problem.docs = &ctx->conf->docs;
    problem.name = &ngx_http_idempotency_refusals[ctx->status].name;
    problem.title = &refusal->title;
    problem.status = status;
    problem.retryable = refusal->retryable;

    if (ngx_http_idempotency_refusal_detail(r, ctx, &problem.detail)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_idempotency_problem_document(r, &problem, body);
}


/* all but the address is our own text, and needs no escaping */

ngx_int_t
ngx_http_idempotency_problem_document(ngx_http_request_t *r,
    ngx_http_idempotency_problem_t *problem, ngx_str_t *body)
{
    u_char     *p;
    size_t      len;
    ngx_str_t  *uri;

    uri = &r->unparsed_uri;

    len = sizeof("{\"type\":\"urn:idempotency:\",\"title\":\"\",\"status\":,"
                 "\"detail\":\"\",\"instance\":\"\",\"retryable\":false}"
                 CRLF)
          + problem->name->len + problem->title->len + NGX_INT_T_LEN
          + problem->detail.len + problem->docs->len + 3 * uri->len;

    body->data = ngx_pnalloc(r->pool, len);
    if (body->data == NULL) {
        return NGX_ERROR;
    }

    p = ngx_sprintf(body->data, "{\"type\":\"");

    if (problem->docs->len) {
        p = ngx_sprintf(p, "%V#", problem->docs);

    } else {
        p = ngx_sprintf(p, "urn:idempotency:");
    }

    p = ngx_sprintf(p, "%V\",\"title\":\"%V\",\"status\":%ui,"
                       "\"detail\":\"%V\",\"instance\":\"",
                    problem->name, problem->title, problem->status,
                    &problem->detail);

    p = ngx_http_idempotency_problem_uri(p, uri);

    p = ngx_sprintf(p, "\",\"retryable\":%s}" CRLF,
                    problem->retryable ? "true" : "false");

    body->len = p - body->data;

    return NGX_OK;
}


/* what no URI may hold, so that the client's is one, and safe to show: three
   times as long at most */

u_char *
ngx_http_idempotency_problem_uri(u_char *p, ngx_str_t *uri)
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
