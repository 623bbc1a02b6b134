
/*
 * Refusals: a problem (RFC 9457) for programs, a small page for people, or
 * whatever error_page makes of the status.
 */


#include "ngx_http_idempotency_record.h"


typedef struct {
    ngx_str_t    title;
    ngx_str_t    detail;
    /* for people, in HTML */
    ngx_str_t    page;
    ngx_uint_t   retry_after;
} refusal_t;


static ngx_int_t refuse_headers(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf, refusal_t *refusal);
static ngx_uint_t refuse_error_page(ngx_http_request_t *r, ngx_uint_t status);
static ngx_int_t refuse_send(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, refusal_t *refusal, ngx_uint_t status);
static ngx_buf_t *refuse_problem(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, refusal_t *refusal, ngx_uint_t status);
static u_char *refuse_escape(u_char *p, ngx_str_t *uri);
static ngx_buf_t *refuse_page(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, refusal_t *refusal, ngx_uint_t status);


/* in the order of ngx_http_idempotency_status_e */

static refusal_t  refusals[NGX_HTTP_IDEMPOTENCY_REFUSALS] = {

    { ngx_null_string, ngx_null_string, ngx_null_string, 0 },

    { ngx_string("Idempotency key already used for another request"),
      ngx_string("This idempotency key was used for a request with another "
                 "method, address, content or sender. Use a new key for a "
                 "new request."),
      ngx_string("This form was already sent with other content. What you "
                 "sent first counts, and nothing was changed now. To send "
                 "something else, open the form anew."),
      0 },

    { ngx_string("A request with this idempotency key is being processed"),
      ngx_string("The first request with this idempotency key has not "
                 "finished yet. Repeat the same request later to get its "
                 "result."),
      ngx_string("What you sent is still being processed, so it was not "
                 "taken a second time. Wait a moment, go back and send it "
                 "again: you will see the result, and it still counts only "
                 "once."),
      1 },

    { ngx_string("The outcome of the first request is unknown"),
      ngx_string("The first request with this idempotency key may have been "
                 "executed, but its outcome is not known, so it is not "
                 "executed again. Find out what happened before using a new "
                 "key."),
      ngx_string("What you sent may already have been done, but the "
                 "confirmation was lost, so it was not done again. Please "
                 "check whether it arrived before you send it anew."),
      0 },

    { ngx_string("The request was executed but its response was not kept"),
      ngx_string("The first request with this idempotency key was executed "
                 "and answered with status %ui. That response was not kept, "
                 "and the request is not executed again."),
      ngx_string("What you sent was already done, so it was not done again. "
                 "The first answer can no longer be shown."),
      0 },

    { ngx_string("The same content was just sent with another key"),
      ngx_string("A request with the same content and another idempotency "
                 "key was received a moment ago. Repeat it later if it is "
                 "meant."),
      ngx_string("The same content was sent a moment ago, so it was not "
                 "taken a second time. If you mean to send it twice, try "
                 "again later."),
      0 },

    { ngx_string("Idempotency key required"),
      ngx_string("This operation must be sent with an idempotency key, so "
                 "that it can be repeated safely."),
      ngx_string("This form was sent without its safety token, so nothing "
                 "was done. Open the form anew and send it again."),
      0 },

    { ngx_string("Malformed idempotency key"),
      ngx_string("The idempotency key is not well-formed: too long, of "
                 "another format than required, or given more than once."),
      ngx_string("This form was sent with a damaged safety token, so nothing "
                 "was done. Open the form anew and send it again."),
      0 },

    { ngx_string("Duplicate requests cannot be recognised at the moment"),
      ngx_string("The store of idempotency keys is full or out of reach. "
                 "The request was not executed; repeat it later."),
      ngx_string("What you sent could not be taken at the moment, and "
                 "nothing was done. Please try again later."),
      1 }
};


/* NGX_DONE: the request is finalized; NGX_DECLINED: it goes on all the same */

ngx_int_t
ngx_http_idempotency_refuse(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_http_idempotency_status_e why)
{
    refusal_t                        *refusal;
    ngx_uint_t                        status, level, refuses;
    ngx_http_idempotency_loc_conf_t  *conf;

    ctx->status = why;

    conf = ctx->conf;
    refusal = &refusals[why];

    status = conf->status[why];
    level = conf->log_level;

    if (why == NGX_HTTP_IDEMPOTENCY_IN_PROGRESS
        && conf->in_progress == NGX_HTTP_IDEMPOTENCY_ACCEPTED)
    {
        status = NGX_HTTP_ACCEPTED;
    }

    if (why == NGX_HTTP_IDEMPOTENCY_UNAVAILABLE) {
        level = NGX_LOG_ERR;
    }

    refuses = ngx_http_idempotency_refuses(ctx, why);

    ngx_log_error(level, r->connection->log, 0,
                  "idempotency: %s with status %ui, %V%s, "
                  "token: %*xs, zone: \"%V\"",
                  (refuses || conf->dry_run)
                      ? "refused" : "passed unprotected, not refused",
                  status, &ngx_http_idempotency_refusals[why].name,
                  conf->dry_run ? ", dry run" : "",
                  ctx->bound ? (size_t) NGX_IDEMPOTENCY_DIGEST_LEN : 0,
                  ctx->op.token, &conf->shm_zone->shm.name);

    if (!refuses) {
        return NGX_DECLINED;
    }

    if (refuse_headers(r, conf, refusal) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (refuse_error_page(r, status)) {
        return status;
    }

    ngx_http_finalize_request(r, refuse_send(r, ctx, refusal, status));

    return NGX_DONE;
}


/* or lets it pass all the same */

ngx_uint_t
ngx_http_idempotency_refuses(ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_status_e why)
{
    if (ctx->conf->dry_run) {
        return 0;
    }

    return why != NGX_HTTP_IDEMPOTENCY_UNAVAILABLE
           || ctx->conf->unavailable
              != NGX_HTTP_IDEMPOTENCY_UNAVAILABLE_PASS;
}


/* they stay with an error_page, too */

static ngx_int_t
refuse_headers(ngx_http_request_t *r, ngx_http_idempotency_loc_conf_t *conf,
    refusal_t *refusal)
{
    ngx_str_t         value;
    ngx_table_elt_t  *h;

    static ngx_str_t  link = ngx_string("Link");
    static ngx_str_t  retry_after = ngx_string("Retry-After");
    static ngx_str_t  seconds = ngx_string("1");

    if (refusal->retry_after) {
        h = ngx_http_idempotency_push_header(r, &r->headers_out.headers,
                                             &retry_after, &seconds);
        if (h == NULL) {
            return NGX_ERROR;
        }
    }

    if (conf->docs.len == 0) {
        return NGX_OK;
    }

    value.len = conf->docs.len + sizeof("<>; rel=\"describedby\"") - 1;
    value.data = ngx_pnalloc(r->pool, value.len);
    if (value.data == NULL) {
        return NGX_ERROR;
    }

    ngx_sprintf(value.data, "<%V>; rel=\"describedby\"", &conf->docs);

    h = ngx_http_idempotency_push_header(r, &r->headers_out.headers, &link,
                                         &value);

    return (h == NULL) ? NGX_ERROR : NGX_OK;
}


/* whether ngx_http_special_response_handler() would find an error_page */

static ngx_uint_t
refuse_error_page(ngx_http_request_t *r, ngx_uint_t status)
{
    ngx_uint_t                 i;
    ngx_http_err_page_t       *page;
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    if (r->error_page || clcf->error_pages == NULL || r->uri_changes == 0) {
        return 0;
    }

    page = clcf->error_pages->elts;

    for (i = 0; i < clcf->error_pages->nelts; i++) {
        if (page[i].status == (ngx_int_t) status) {
            return 1;
        }
    }

    return 0;
}


static ngx_int_t
refuse_send(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    refusal_t *refusal, ngx_uint_t status)
{
    ngx_int_t     rc;
    ngx_buf_t    *b;
    ngx_uint_t    html;
    ngx_chain_t   out;

    r->expect_tested = 1;

    if (ngx_http_discard_request_body(r) != NGX_OK) {
        r->keepalive = 0;
    }

    html = ngx_http_idempotency_prefers_html(r);

    b = html ? refuse_page(r, ctx, refusal, status)
             : refuse_problem(r, ctx, refusal, status);

    if (b == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (html) {
        ngx_str_set(&r->headers_out.content_type, "text/html");
        ngx_str_set(&r->headers_out.charset, "utf-8");

    } else {
        ngx_str_set(&r->headers_out.content_type, "application/problem+json");
    }

    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;

    r->headers_out.status = status;
    r->headers_out.content_length_n = b->last - b->pos;

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    b->last_buf = 1;
    b->last_in_chain = 1;

    out.buf = b;
    out.next = NULL;

    return ngx_http_output_filter(r, &out);
}


static ngx_buf_t *
refuse_problem(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    refusal_t *refusal, ngx_uint_t status)
{
    u_char     *p;
    size_t      len;
    ngx_buf_t  *b;
    ngx_str_t  *docs, *uri, *name;

    name = &ngx_http_idempotency_refusals[ctx->status].name;
    docs = &ctx->conf->docs;
    uri = &r->unparsed_uri;

    len = sizeof("{\"type\":\"urn:idempotency:\",\"title\":\"\",\"status\":,"
                 "\"detail\":\"\",\"instance\":\"\"}" CRLF)
          + name->len + refusal->title.len + refusal->detail.len
          + 2 * NGX_INT_T_LEN
          + docs->len + 3 * uri->len;

    b = ngx_create_temp_buf(r->pool, len);
    if (b == NULL) {
        return NULL;
    }

    p = ngx_sprintf(b->last, "{\"type\":\"");

    if (docs->len) {
        p = ngx_sprintf(p, "%V#", docs);

    } else {
        p = ngx_sprintf(p, "urn:idempotency:");
    }

    p = ngx_sprintf(p, "%V\",\"title\":\"%V\",\"status\":%ui,\"detail\":\"",
                    name, &refusal->title, status);
    p = ngx_sprintf(p, (char *) refusal->detail.data, ctx->op.status);
    p = ngx_sprintf(p, "\",\"instance\":\"");
    p = refuse_escape(p, uri);

    b->last = ngx_sprintf(p, "\"}" CRLF);

    return b;
}


/* what no URI may hold, so that the client's is one, and safe to show */

static u_char *
refuse_escape(u_char *p, ngx_str_t *uri)
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


static ngx_buf_t *
refuse_page(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    refusal_t *refusal, ngx_uint_t status)
{
    size_t      len;
    ngx_buf_t  *b;

    static u_char  format[] =
        "<!DOCTYPE html>" CRLF
        "<html lang=\"en\">" CRLF
        "<head>" CRLF
        "<meta charset=\"utf-8\">" CRLF
        "<meta name=\"viewport\" content=\"width=device-width\">" CRLF
        "<title>%V</title>" CRLF
        "</head>" CRLF
        "<body>" CRLF
        "<h1>%V</h1>" CRLF
        "<p>%V</p>" CRLF
        "</body>" CRLF
        "</html>" CRLF;

    len = sizeof(format) + 2 * refusal->title.len + refusal->page.len;

    b = ngx_create_temp_buf(r->pool, len);
    if (b == NULL) {
        return NULL;
    }

    b->last = ngx_sprintf(b->last, (char *) format, &refusal->title,
                          &refusal->title, &refusal->page);

    return b;
}
