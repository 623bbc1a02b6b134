
/*
 * Refusals: a problem (RFC 9457) for programs, a small page for people, or
 * whatever error_page makes of the status.
 */


#include "ngx_http_idempotency_record.h"


typedef struct {
    /* for programs */
    ngx_str_t    title;
    ngx_str_t    detail;

    /* for people: what happened, and what to do; the latter may differ where
       the content stands for the key */
    ngx_str_t    heading;
    ngx_str_t    page;
    ngx_str_t    next;
    ngx_str_t    next_content;

    /* in seconds, or 0; so many more at random, so that a crowd doesn't come
       back at once; and whether the page returns by itself */
    ngx_uint_t   retry_after;
    ngx_uint_t   spread;
    ngx_uint_t   refresh;
} refusal_t;


static ngx_int_t refuse_headers(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, refusal_t *refusal);
static ngx_uint_t refuse_error_page(ngx_http_request_t *r, ngx_uint_t status);
static ngx_int_t refuse_send(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, refusal_t *refusal, ngx_uint_t status);
static ngx_buf_t *refuse_problem(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, refusal_t *refusal, ngx_uint_t status);
static u_char *refuse_escape(u_char *p, ngx_str_t *uri);
static ngx_int_t refuse_referer(ngx_http_request_t *r, ngx_str_t *back);
static ngx_buf_t *refuse_page(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, refusal_t *refusal, ngx_uint_t status);


/* in the order of ngx_http_idempotency_status_e */

static refusal_t  refusals[NGX_HTTP_IDEMPOTENCY_REFUSALS] = {

    { ngx_null_string, ngx_null_string,
      ngx_null_string, ngx_null_string, ngx_null_string, ngx_null_string,
      0, 0, 0 },

    { ngx_string("Idempotency key already used for another request"),
      ngx_string("This idempotency key was used for a request with another "
                 "method, address, content or sender. Use a new key for a "
                 "new request."),
      ngx_string("This was sent before, with other content"),
      ngx_string("What you sent the first time counts. What you sent now was "
                 "not taken, and nothing was changed by it."),
      ngx_string("To send something else, open the page with the form anew "
                 "and send it from there."),
      ngx_null_string,
      0, 0, 0 },

    { ngx_string("A request with this idempotency key is being processed"),
      ngx_string("The first request with this idempotency key has not "
                 "finished yet. Repeat the same request later to get its "
                 "result."),
      ngx_string("Still being processed"),
      ngx_string("What you sent has arrived and is still being processed. It "
                 "was not taken a second time."),
      ngx_string("To see the result, wait a moment and reload this page: if "
                 "your browser asks whether to send it again, that is safe, "
                 "it counts only once. Please do not fill in the form "
                 "anew."),
      ngx_string("To see the result, wait a moment and reload this page, or "
                 "go back and send the same again: either way it counts only "
                 "once."),
      1, 0, 1 },

    { ngx_string("The outcome of the first request is unknown"),
      ngx_string("The first request with this idempotency key may have been "
                 "executed, but its outcome is not known, so it is not "
                 "executed again. Find out what happened before using a new "
                 "key."),
      ngx_string("It is not certain whether this was done"),
      ngx_string("What you sent arrived, but the confirmation was lost on "
                 "the way. To be safe, it was not done a second time."),
      ngx_string("Please check whether it was done, for instance in your "
                 "account or your mail, or ask us, before you send it "
                 "anew."),
      ngx_null_string,
      0, 0, 0 },

    { ngx_string("The request was executed but its response was not kept"),
      ngx_string("The first request with this idempotency key was executed "
                 "and answered with status %ui. That response was not kept, "
                 "and the request is not executed again."),
      ngx_string("This was already processed"),
      ngx_string("What you sent was already processed, so it was not "
                 "processed a second time. The page that you got then can't "
                 "be shown again."),
      ngx_string("There is no need to send it again."),
      ngx_null_string,
      0, 0, 0 },

    { ngx_string("The same content was just sent with another key"),
      ngx_string("A request with the same content and another idempotency "
                 "key was received a moment ago. Repeat it later if it is "
                 "meant."),
      ngx_string("The same was sent a moment ago"),
      ngx_string("What you sent a moment ago counts. What you sent now has "
                 "the same content, so it was not taken a second time."),
      ngx_string("If you do want to send it twice, wait a minute and send it "
                 "again."),
      ngx_null_string,
      0, 0, 0 },

    { ngx_string("Idempotency key too old"),
      ngx_string("This idempotency key is so old that it cannot be told any "
                 "more whether the request was executed before, so it is not "
                 "executed now. Find out what happened before using a new "
                 "key."),
      ngx_string("This is too old to be taken"),
      ngx_string("What you sent was begun so long ago that it can't be told "
                 "any more whether it was done before. To be safe, nothing "
                 "was done now."),
      ngx_string("Please check whether it was done, for instance in your "
                 "account or your mail, and if not, open the page with the "
                 "form anew and send it from there."),
      ngx_null_string,
      0, 0, 0 },

    { ngx_string("Idempotency key required"),
      ngx_string("This operation must be sent with an idempotency key, so "
                 "that it can be repeated safely."),
      ngx_string("This could not be taken"),
      ngx_string("What you sent came without the mark that keeps it from "
                 "being done twice, so nothing was done."),
      ngx_string("Please open the page with the form anew and send it from "
                 "there."),
      ngx_null_string,
      0, 0, 0 },

    { ngx_string("Malformed idempotency key"),
      ngx_string("The idempotency key is not well-formed: too long, of "
                 "another format than required, or given more than once."),
      ngx_string("This could not be taken"),
      ngx_string("The mark that keeps what you sent from being done twice "
                 "was damaged, so nothing was done."),
      ngx_string("Please open the page with the form anew and send it from "
                 "there."),
      ngx_null_string,
      0, 0, 0 },

    { ngx_string("Too many operations"),
      ngx_string("As many operations as one client may have on record are on "
                 "record. The request was not executed; repeat it later."),
      ngx_string("Too many at a time"),
      ngx_string("A lot was sent from your network lately, so this could not "
                 "be taken, and nothing was done."),
      ngx_string("Please wait a few minutes, go back and send it again."),
      ngx_null_string,
      5, 10, 0 },

    { ngx_string("Duplicate requests cannot be recognised at the moment"),
      ngx_string("The store of idempotency keys is full or out of reach. "
                 "The request was not executed; repeat it later."),
      ngx_string("Not possible at the moment"),
      ngx_string("What you sent could not be taken just now, and nothing was "
                 "done."),
      ngx_string("Please wait a minute, go back and send it again."),
      ngx_null_string,
      5, 10, 0 }
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

    if (refuse_headers(r, ctx, refusal) != NGX_OK) {
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
refuse_headers(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    refusal_t *refusal)
{
    time_t            wait;
    ngx_str_t         value, *docs;
    ngx_table_elt_t  *h;

    static ngx_str_t  link = ngx_string("Link");
    static ngx_str_t  retry_after = ngx_string("Retry-After");

    wait = ctx->retry_after;

    if (wait == 0 && refusal->retry_after) {
        wait = refusal->retry_after + ngx_random() % (refusal->spread + 1);
    }

    if (wait) {

        value.data = ngx_pnalloc(r->pool, NGX_TIME_T_LEN);
        if (value.data == NULL) {
            return NGX_ERROR;
        }

        value.len = ngx_sprintf(value.data, "%T", wait) - value.data;

        h = ngx_http_idempotency_push_header(r, &r->headers_out.headers,
                                             &retry_after, &value);
        if (h == NULL) {
            return NGX_ERROR;
        }
    }

    docs = &ctx->conf->docs;

    if (docs->len == 0) {
        return NGX_OK;
    }

    value.len = docs->len + sizeof("<>; rel=\"describedby\"") - 1;
    value.data = ngx_pnalloc(r->pool, value.len);
    if (value.data == NULL) {
        return NGX_ERROR;
    }

    ngx_sprintf(value.data, "<%V>; rel=\"describedby\"", docs);

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
    ngx_buf_t   *b;
    ngx_uint_t   html;

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

    return ngx_http_idempotency_send(r, b->pos, b->last - b->pos, 1);
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
    u_char     *p;
    ngx_buf_t  *b;
    ngx_str_t   back, *next;
    ngx_uint_t  returns;

    static u_char  head[] =
        "<!DOCTYPE html>" CRLF
        "<html lang=\"en\">" CRLF
        "<head>" CRLF
        "<meta charset=\"utf-8\">" CRLF
        "<meta name=\"viewport\" content=\"width=device-width, "
            "initial-scale=1\">" CRLF
        "<title>%V</title>" CRLF
        "<style>" CRLF
        "body { max-width: 32em; margin: 3em auto; padding: 0 1em; "
            "font: 1.1em/1.5 sans-serif }" CRLF
        "h1 { font-size: 1.4em }" CRLF
        "</style>" CRLF;

    static u_char  refresh[] =
        "<meta http-equiv=\"refresh\" content=\"10; url=%V\">" CRLF;

    static u_char  body[] =
        "</head>" CRLF
        "<body>" CRLF
        "<h1>%V</h1>" CRLF
        "<p>%V</p>" CRLF
        "<p>%V</p>" CRLF;

    static u_char  soon[] =
        "<p>In ten seconds this page goes back by itself.</p>" CRLF;

    static u_char  link[] =
        "<p><a href=\"%V\">Back to the page you came from</a></p>" CRLF;

    static u_char  home[] =
        "<p><a href=\"/\">To the start page</a></p>" CRLF;

    static u_char  tail[] =
        "</body>" CRLF
        "</html>" CRLF;

    if (refuse_referer(r, &back) != NGX_OK) {
        return NULL;
    }

    next = (ctx->content && refusal->next_content.len)
               ? &refusal->next_content : &refusal->next;

    len = sizeof(head) + sizeof(refresh) + sizeof(body) + sizeof(link)
          + sizeof(soon) + sizeof(home) + sizeof(tail)
          + 2 * refusal->heading.len + refusal->page.len
          + next->len + 2 * back.len;

    b = ngx_create_temp_buf(r->pool, len);
    if (b == NULL) {
        return NULL;
    }

    p = ngx_sprintf(b->last, (char *) head, &refusal->heading);

    /* with a key of its own, a form that is opened anew has a new one */

    returns = (refusal->refresh && ctx->content && back.len);

    if (returns) {
        p = ngx_sprintf(p, (char *) refresh, &back);
    }

    p = ngx_sprintf(p, (char *) body, &refusal->heading, &refusal->page, next);

    if (returns) {
        p = ngx_cpymem(p, soon, sizeof(soon) - 1);
    }

    p = back.len ? ngx_sprintf(p, (char *) link, &back)
                 : ngx_cpymem(p, home, sizeof(home) - 1);

    b->last = ngx_cpymem(p, tail, sizeof(tail) - 1);

    return b;
}


/*
 * The page the form was on, for a link, and to return to: a GET of what the
 * user has just seen.  Only a page of the same host, and fit for HTML.
 */

static ngx_int_t
refuse_referer(ngx_http_request_t *r, ngx_str_t *back)
{
    u_char     *p, *last;
    ngx_str_t   host, *referer;

    ngx_str_null(back);

    if (r->headers_in.referer == NULL || r->headers_in.host == NULL) {
        return NGX_OK;
    }

    referer = &r->headers_in.referer->value;
    host = r->headers_in.host->value;

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
        || ngx_strncasecmp(p, host.data, host.len) != 0
        || p[host.len] != '/')
    {
        return NGX_OK;
    }

    /* its path alone: the host and the scheme are those of this page */

    p += host.len;

    back->len = last - p + ngx_escape_html(NULL, p, last - p);

    back->data = ngx_pnalloc(r->pool, back->len);
    if (back->data == NULL) {
        return NGX_ERROR;
    }

    (void) ngx_escape_html(back->data, p, last - p);

    return NGX_OK;
}
