
/*
 * What a client gets from us: a replay, sent from the top of all filters as the
 * original was; or a refusal: a problem document (RFC 9457) for programs, a
 * small page for people, as the Accept header prefers, or the error_page of the
 * status.
 *
 * The page says what happened and what to do.  Where something may have been
 * executed the page has no link back: a form that is opened anew and sent
 * again could execute the operation once more.
 *
 * LOCATION  If internal redirects led to another location than the claim's, a
 *           replay is sent with that location's settings: so the filters treat
 *           it as the original.  A location is known by its way down from the
 *           server: the kind and name of each step, and its number among equal
 *           ones.  So a reload that keeps the location keeps it known.  The
 *           server is that of the replay's request.
 */


#include "ngx_http_idempotency_response.h"


/* a larger body is sent from a file, as a slow client holds it for long */

#define NGX_HTTP_IDEMPOTENCY_REPLAY_MEMORY  65536

/* For so many milliseconds the last body that was sent stays in its file, and
   all requests that waited for it are sent that one file. */

#define NGX_HTTP_IDEMPOTENCY_REPLAY_KEPT  1000

typedef struct {
    ngx_uint_t                   users;
    ngx_pool_t                  *pool;
    ngx_file_t                   file;

    /* the record: the address of its zone's counters tells which zone it is */
    ngx_idempotency_counters_t  *zone;
    uint64_t                     fence;
    size_t                       size;
    u_char                       token[NGX_IDEMPOTENCY_DIGEST_LEN];
} replay_body_t;

static replay_body_t    *replay_kept;
static ngx_event_t       replay_event;
static ngx_connection_t  replay_dumb;


typedef struct {
    void                        **srv_conf;
    void                        **loc_conf;

    /* the index of the location around this one; 0: the http level */
    ngx_uint_t                    parent;
    /* how many locations of the same kind and name stand before this one */
    ngx_uint_t                    ordinal;
    /* how many blocks without a name this location contains */
    ngx_uint_t                    nameless;

    u_char                        id[NGX_HTTP_IDEMPOTENCY_LOCATION_LEN];
} location_entry_t;


typedef struct {
    /* for programs; the detail is a format for the original's status */
    ngx_str_t                      title;
    ngx_str_t                      detail;

    /* for people: what happened, and what to do; next_content replaces next
       where the content stands for the key, and then a link back to the form
       does no harm */
    ngx_str_t                      heading;
    ngx_str_t                      page;
    ngx_str_t                      next;
    ngx_str_t                      next_content;

    /* Retry-After in seconds, or 0: the same request again can't succeed; and
       a random addition up to the spread, so that a crowd doesn't come back at
       once */
    ngx_uint_t                     retry_after;
    ngx_uint_t                     spread;

    /* nothing was executed, so a link back to the form does no harm */
    ngx_uint_t                     back;
} refusal_t;


static void refuse_log(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_uint_t status, ngx_uint_t refuses);
static refusal_t *refuse_text(ngx_http_idempotency_ctx_t *ctx);
static ngx_int_t refuse_headers(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, refusal_t *refusal);
static ngx_uint_t refuse_error_page(ngx_http_request_t *r, ngx_uint_t status);
static ngx_int_t refuse_send(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, refusal_t *refusal, ngx_uint_t status);
static ngx_int_t page_back(ngx_http_request_t *r, ngx_str_t *back);
static ngx_uint_t page_is_path(u_char *p, u_char *last);
static ngx_int_t refuse_problem(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, refusal_t *refusal, ngx_uint_t status,
    ngx_str_t *body);
static ngx_int_t refuse_page(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, refusal_t *refusal, ngx_str_t *body);
static ngx_int_t answer_send(ngx_http_request_t *r, ngx_str_t *body,
    ngx_file_t *file);
static ngx_int_t replay_move(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_http_idempotency_location_t *location,
    void **loc_conf);
static ngx_file_t *replay_to_file(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_response_t *response);
static replay_body_t *replay_body(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *bytes);
static void replay_keep(replay_body_t *body);
static void replay_kept_handler(ngx_event_t *ev);
static void replay_body_release(void *data);
static ngx_int_t replay_send(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_response_t *response, ngx_file_t *file);
static u_char location_kind(ngx_http_core_loc_conf_t *clcf);
static ngx_uint_t location_ordinal(ngx_array_t *entries, ngx_uint_t parent,
    ngx_http_core_loc_conf_t *clcf);
static void location_id(location_entry_t *entry, location_entry_t *parent);
static ngx_http_core_loc_conf_t *location_core(location_entry_t *entry);
static void location_captures(ngx_http_request_t *r);
static void **location_find(ngx_http_request_t *r,
    ngx_http_idempotency_location_t *location);
static void location_enter(ngx_http_request_t *r,
    ngx_http_idempotency_location_t *location, void **loc_conf);


#define refuse_form_again  ngx_string(                                        \
    "Please open the page with the form again and send it from there. If "   \
    "that does not help, please tell us.")

static refusal_t  refusals[NGX_HTTP_IDEMPOTENCY_REFUSALS] = {

    [NGX_HTTP_IDEMPOTENCY_STATUS_CONFLICT] = {
        .title = ngx_string("Idempotency key already used for another request"),
        .detail = ngx_string(
            "This idempotency key was used for a request with another "
            "method, address, content or sender. Use a new key for a new "
            "request."),
        .heading = ngx_string("You have already sent something else"),
        .page = ngx_string(
            "What you sent first counts. What you sent now is different, so "
            "it was not accepted, and nothing was changed."),
        .next = ngx_string(
            "If you meant the same thing, you do not need to send it again. "
            "To send something else, open the page with the form again and "
            "send it from there.")
    },

    [NGX_HTTP_IDEMPOTENCY_STATUS_IN_PROGRESS] = {
        .title = ngx_string(
            "A request with this idempotency key is being processed"),
        .detail = ngx_string(
            "The first request with this idempotency key has not finished "
            "yet. Repeat the same request later to get its result."),
        .heading = ngx_string("Still being processed"),
        .page = ngx_string(
            "What you sent has arrived and is still being processed. It was "
            "not accepted a second time."),
        .next = ngx_string(
            "To see the result, wait a moment and reload this page. If your "
            "browser asks whether to send it again, say yes: it counts only "
            "once. Please do not fill in the form again."),
        .next_content = ngx_string(
            "To see the result, wait a moment and reload this page, or go "
            "back and send the same form again. Either way it counts only "
            "once."),
        .retry_after = 1
    },

    [NGX_HTTP_IDEMPOTENCY_STATUS_IN_DOUBT] = {
        .title = ngx_string("The outcome of the first request is unknown"),
        .detail = ngx_string(
            "The first request with this idempotency key may have been "
            "executed, but its outcome is not known, so it is not executed "
            "again. Find out what happened before you use a new key."),
        .heading = ngx_string("We are not sure whether this was done"),
        .page = ngx_string(
            "What you sent has arrived, but the answer to it was lost. To be "
            "safe, it was not done a second time."),
        .next = ngx_string(
            "Please check whether it was done, for example in your account "
            "or your mail, or ask us, before you send it again.")
    },

    [NGX_HTTP_IDEMPOTENCY_STATUS_NOT_KEPT] = {
        .title = ngx_string(
            "The request was executed but its response was not kept"),
        .detail = ngx_string(
            "The first request with this idempotency key was executed and "
            "answered with status %ui. That response was not kept, and the "
            "request is not executed again."),
        .heading = ngx_string("This has already been processed"),
        .page = ngx_string(
            "What you sent has already been processed, so it was not "
            "processed a second time. The page you got then can't be shown "
            "again."),
        .next = ngx_string(
            "You do not need to send it again. Look for the result where you "
            "usually find it, for example in your account or your mail.")
    },

    [NGX_HTTP_IDEMPOTENCY_STATUS_SIMILAR] = {
        .title = ngx_string("The same content was just sent with another key"),
        .detail = ngx_string(
            "A request with the same content and another idempotency key was "
            "received a moment ago. If both are intended, repeat this one "
            "later."),
        .heading = ngx_string("The same was sent a moment ago"),
        .page = ngx_string(
            "What you sent a moment ago was accepted. What you sent now has "
            "the same content, so it was not accepted a second time."),
        .next = ngx_string(
            "You do not need to do anything. If you do want to send it "
            "twice, wait a minute and send it again.")
    },

    [NGX_HTTP_IDEMPOTENCY_STATUS_EXPIRED] = {
        .title = ngx_string("Idempotency key too old"),
        .detail = ngx_string(
            "This idempotency key is too old: whether the request was "
            "executed before is no longer known, so it is not executed now. "
            "Find out what happened before you use a new key."),
        .heading = ngx_string("This is too old"),
        .page = ngx_string(
            "You opened this form so long ago that we no longer know whether "
            "it was already sent. To be safe, nothing was done now."),
        .next = ngx_string(
            "Please check whether it was done, for example in your account "
            "or your mail. If it was not, open the page with the form again "
            "and send it from there.")
    },

    [NGX_HTTP_IDEMPOTENCY_STATUS_MISSING] = {
        .title = ngx_string("Idempotency key required"),
        .detail = ngx_string(
            "This operation must be sent with an idempotency key, so that it "
            "can be repeated safely."),
        .heading = ngx_string("This could not be accepted"),
        .page = ngx_string(
            "Nothing was done. A part of the form was missing that prevents "
            "it from being processed twice."),
        .next = refuse_form_again,
        .back = 1
    },

    [NGX_HTTP_IDEMPOTENCY_STATUS_MALFORMED] = {
        .title = ngx_string("Malformed idempotency key"),
        .detail = ngx_string(
            "The idempotency key is malformed: it is too long, has another "
            "format than required, or was sent more than once."),
        .heading = ngx_string("This could not be accepted"),
        .page = ngx_string(
            "Nothing was done. A part of the form was damaged that prevents "
            "it from being processed twice."),
        .next = refuse_form_again,
        .back = 1
    },

    [NGX_HTTP_IDEMPOTENCY_STATUS_LIMITED] = {
        .title = ngx_string("Too many operations"),
        .detail = ngx_string(
            "This client has reached its limit of recorded operations. The "
            "request was not executed; repeat it later."),
        .heading = ngx_string("Sent too often"),
        .page = ngx_string(
            "Your network has sent too much lately, so this was not accepted, "
            "and nothing was done."),
        .next = ngx_string(
            "Please wait a while, go back and send it again."),
        .retry_after = 5, .spread = 10, .back = 1
    },

    [NGX_HTTP_IDEMPOTENCY_STATUS_UNAVAILABLE] = {
        .title = ngx_string(
            "Duplicate requests cannot be recognised at the moment"),
        .detail = ngx_string(
            "The store of idempotency keys is full or out of reach. The "
            "request was not executed; repeat it later."),
        .heading = ngx_string("Not possible at the moment"),
        .page = ngx_string(
            "What you sent could not be accepted just now, and nothing was "
            "done."),
        .next = ngx_string("Please wait a minute, go back and send it again."),
        .retry_after = 5, .spread = 10, .back = 1
    }
};

/* a key that could not be read: the body is to blame, not the key */

static refusal_t  refuse_unreadable[] = {

    [NGX_HTTP_IDEMPOTENCY_BODY_TOO_LARGE] = {
        .title = ngx_string("Malformed idempotency key"),
        .detail = ngx_string(
            "The content is too large to look for the idempotency key in it. "
            "Send less, or send the key in a header."),
        .heading = ngx_string("This is too large"),
        .page = ngx_string(
            "Nothing was done: what you sent is larger than allowed here."),
        .next = ngx_string(
            "Please go back, make it smaller, for example with a shorter "
            "text, and send it again."),
        .back = 1
    },

    [NGX_HTTP_IDEMPOTENCY_BODY_UNREADABLE] = {
        .title = ngx_string("Malformed idempotency key"),
        .detail = ngx_string(
            "The idempotency key may be in the content, which cannot be "
            "read: it is encoded or malformed. Send it unencoded and "
            "well-formed, or send the key in a header."),
        .heading = ngx_string("This could not be accepted"),
        .page = ngx_string(
            "Nothing was done: what you sent could not be read."),
        .next = refuse_form_again,
        .back = 1
    }
};

/* idempotency_key_format sf-string: most often the quotes are missing */

static refusal_t  refuse_unquoted = {
    .title = ngx_string("Malformed idempotency key"),
    .detail = ngx_string(
        "The idempotency key is malformed: it must be quoted, as a string of "
        "RFC 8941 is, or it is empty, too long, or was sent more than once."),
    .heading = ngx_string("This could not be accepted"),
    .page = ngx_string(
        "Nothing was done. A part of the form was damaged that prevents it "
        "from being processed twice."),
    .next = refuse_form_again,
    .back = 1
};


/*
 * The style is the same on all pages, so that a Content-Security-Policy can
 * allow it by its hash, see docs/refusals.md.  Phones and dark mode work
 * without the style.
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


/* NGX_DONE: the request is finalized; NGX_OK: it passes all the same */

ngx_int_t
ngx_http_idempotency_refuse(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_http_idempotency_status_e why)
{
    refusal_t                        *refusal;
    ngx_uint_t                        status, refuses;
    ngx_http_idempotency_loc_conf_t  *conf;

    ctx->status = why;

    conf = ctx->conf;
    refusal = refuse_text(ctx);

    status = conf->status[why];

    if (why == NGX_HTTP_IDEMPOTENCY_STATUS_IN_PROGRESS
        && conf->in_progress == NGX_HTTP_IDEMPOTENCY_IN_PROGRESS_ACCEPTED)
    {
        status = NGX_HTTP_ACCEPTED;
    }

    refuses = ngx_http_idempotency_refuses(ctx, why);
    refuse_log(r, ctx, status, refuses);

    if (!refuses) {
        return NGX_OK;
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


/* refuses: 0 if the request passes unprotected */

static void
refuse_log(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_uint_t status, ngx_uint_t refuses)
{
    u_char                            text[NGX_HTTP_IDEMPOTENCY_REASON_LEN];
    ngx_str_t                         reason;
    ngx_http_idempotency_loc_conf_t  *conf;

    conf = ctx->conf;
    reason = ngx_http_idempotency_reason(ctx, text);

    ngx_http_idempotency_log(r, ctx, ctx->status,
              (ctx->status == NGX_HTTP_IDEMPOTENCY_STATUS_UNAVAILABLE)
                  ? NGX_LOG_ERR : conf->log_level,
              ": %s with status %ui, %V%s%V%s",
              (refuses || conf->dry_run)
                  ? "refused" : "passed unprotected, not refused",
              status, &ngx_http_idempotency_statuses[ctx->status].name,
              reason.len ? ", reason: " : "", &reason,
              (ctx->status == NGX_HTTP_IDEMPOTENCY_STATUS_IN_PROGRESS
               && conf->in_progress == NGX_HTTP_IDEMPOTENCY_IN_PROGRESS_WAIT
               && !conf->dry_run)
                  ? ", waited in vain (is this nginx its own upstream?)" : "");
}


/* 0: the request passes all the same */

ngx_uint_t
ngx_http_idempotency_refuses(ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_status_e why)
{
    if (ctx->conf->dry_run) {
        return 0;
    }

    return why != NGX_HTTP_IDEMPOTENCY_STATUS_UNAVAILABLE
           || ctx->conf->unavailable
              != NGX_HTTP_IDEMPOTENCY_UNAVAILABLE_PASS;
}


static refusal_t *
refuse_text(ngx_http_idempotency_ctx_t *ctx)
{
    if (ctx->status == NGX_HTTP_IDEMPOTENCY_STATUS_MALFORMED
        && ctx->body.unreadable)
    {
        return &refuse_unreadable[ctx->body.unreadable];
    }

    if (ctx->status == NGX_HTTP_IDEMPOTENCY_STATUS_MALFORMED
        && ctx->conf->key_format == NGX_HTTP_IDEMPOTENCY_KEY_FORMAT_SF_STRING)
    {
        return &refuse_unquoted;
    }

    return &refusals[ctx->status];
}


/* for the document and for $idempotency_detail; needs no escaping in JSON */

ngx_int_t
ngx_http_idempotency_refusal_detail(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *detail)
{
    u_char     *p, text[NGX_HTTP_IDEMPOTENCY_REASON_LEN];
    ngx_str_t   reason, *format;

    format = &refuse_text(ctx)->detail;

    detail->data = ngx_pnalloc(r->pool, format->len + NGX_INT_T_LEN
                                        + sizeof(" What differs: .")
                                        + NGX_HTTP_IDEMPOTENCY_REASON_LEN);
    if (detail->data == NULL) {
        return NGX_ERROR;
    }

    p = ngx_sprintf(detail->data, (char *) format->data,
                    ctx->claim.found.status);

    reason = ngx_http_idempotency_reason(ctx, text);

    /* a stranger learns nothing about another client's request */

    if (reason.len
        && (ctx->claim.differs & NGX_IDEMPOTENCY_DIFFERS_IDENTITY) == 0)
    {
        p = ngx_sprintf(p, " What differs: %V.", &reason);
    }

    detail->len = p - detail->data;

    return NGX_OK;
}


/* these header lines are sent with an error_page, too */

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

        h = ngx_http_idempotency_header_push(&r->headers_out.headers,
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

    h = ngx_http_idempotency_header_push(&r->headers_out.headers, &link,
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
    ngx_int_t   rc;
    ngx_str_t   body;
    ngx_uint_t  html, json, problem, best;

    r->expect_tested = 1;

    /* the status of an error_page that led here must not replace ours */

    r->err_status = 0;

    if (ngx_http_discard_request_body(r) != NGX_OK) {
        r->keepalive = 0;
    }

    /* a client that prefers HTML to JSON has a user, others are programs */

    html = ngx_http_idempotency_accept(r, "text/html", &best);
    json = ngx_http_idempotency_accept(r, "application/json", &best);
    problem = ngx_http_idempotency_accept(r, "application/problem+json", &best);

    if (html > json && html > problem) {
        rc = refuse_page(r, ctx, refusal, &body);

        ngx_str_set(&r->headers_out.content_type, "text/html");
        ngx_str_set(&r->headers_out.charset, "utf-8");

    } else {
        rc = refuse_problem(r, ctx, refusal, status, &body);

        ngx_str_set(&r->headers_out.content_type, "application/problem+json");
    }

    if (rc != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;

    r->headers_out.status = status;
    r->headers_out.content_length_n = body.len;

    return answer_send(r, &body, NULL);
}


static ngx_int_t
refuse_problem(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    refusal_t *refusal, ngx_uint_t status, ngx_str_t *body)
{
    ngx_http_idempotency_problem_t  problem;

    problem.docs = &ctx->conf->docs;
    problem.name = &ngx_http_idempotency_statuses[ctx->status].name;
    problem.title = &refusal->title;
    problem.status = status;
    problem.retryable = (refusal->retry_after > 0);

    if (ngx_http_idempotency_refusal_detail(r, ctx, &problem.detail)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_idempotency_problem_document(r, &problem, body);
}


/* only the URI is the client's; all other text needs no escaping */

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


/* Escapes the bytes that no URI may have, so that the result is safe to show.
   It is three times as long at most. */

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


static ngx_int_t
refuse_page(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    refusal_t *refusal, ngx_str_t *body)
{
    u_char      *p;
    size_t       len;
    ngx_str_t    back, *next;
    ngx_uint_t   returns;

    /* with keys of their own, a form that is opened anew has a new key */

    returns = (refusal->next_content.len
               && ngx_http_idempotency_by_content(ctx));

    next = returns ? &refusal->next_content : &refusal->next;

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


/* The page with the form, for a link back: a GET of a page that the user has
   just seen.  Only a page of the same host, whose URL is safe in HTML. */

static ngx_int_t
page_back(ngx_http_request_t *r, ngx_str_t *back)
{
    u_char     *p, *last;
    ngx_str_t   host, *referer;

    if (r->headers_in.referer == NULL) {
        return NGX_OK;
    }

    referer = &r->headers_in.referer->value;

    /* HTTP/3 has the host in a pseudo-header only, and then without a port */

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

    /* only the path: host and scheme are those of this page */

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
 * A path and arguments as browsers write them.  Two slashes at the beginning
 * would lead to another host, and browsers take a backslash for a slash.  A
 * server behind us may decode an encoded byte, and redirect there.
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


/* A response is not sent if its location has gone, as the settings of its
   filters have gone with it. */

ngx_int_t
ngx_http_idempotency_replay(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx)
{
    void                             **loc_conf;
    ngx_file_t                        *file;
    ngx_uint_t                         i;
    ngx_idempotency_found_t           *found;
    ngx_http_idempotency_response_t    response;

    found = &ctx->claim.found;
    loc_conf = NULL;

    if (ngx_http_idempotency_response_decode(&found->response,
                                             r->method == NGX_HTTP_HEAD,
                                             &response)
        != NGX_OK
        || response.status != found->status)
    {
        ngx_log_error(NGX_LOG_ALERT, r->connection->log, 0,
                      "idempotency: a recorded response is none that this "
                      "module has written, and is not sent");

        return ngx_http_idempotency_refuse(r, ctx,
                                         NGX_HTTP_IDEMPOTENCY_STATUS_NOT_KEPT);
    }

    if (ctx->access.moved == 0) {

        if (ngx_http_idempotency_stranger(r, ctx, &response.headers)) {
            return NGX_DECLINED;
        }

        if (response.has_location) {
            loc_conf = location_find(r, &response.location);

            if (loc_conf == NULL) {
                ngx_http_idempotency_log(r, ctx,
                          NGX_HTTP_IDEMPOTENCY_STATUS_NOT_KEPT,
                          ctx->conf->log_level,
                          ": the location of a recorded response no longer "
                          "exists: \"%V\"", &response.location.uri);

                return ngx_http_idempotency_refuse(r, ctx,
                                         NGX_HTTP_IDEMPOTENCY_STATUS_NOT_KEPT);
            }

            if (response.location.admitted && !ctx->conf->dry_run) {
                return replay_move(r, ctx, &response.location, loc_conf);
            }
        }

    } else {

        /* filters and logs of modules that nothing called there need them */

        for (i = 0; i < ngx_http_max_module; i++) {
            if (r->ctx[i] == NULL) {
                r->ctx[i] = ctx->access.contexts[i];
            }
        }
    }

    ctx->status = (ctx->wait.waited || ctx->claim.leftover)
                      ? NGX_HTTP_IDEMPOTENCY_STATUS_WAITED
                      : NGX_HTTP_IDEMPOTENCY_STATUS_REPLAYED;

    ngx_http_idempotency_log(r, ctx, ctx->status, ctx->conf->log_level,
                             ": replayed a response of status %ui",
                             found->status);

    if (ctx->conf->dry_run) {
        return NGX_OK;
    }

    file = (response.body.len > NGX_HTTP_IDEMPOTENCY_REPLAY_MEMORY)
           ? replay_to_file(r, ctx, &response) : NULL;

    if (loc_conf) {
        location_enter(r, &response.location, loc_conf);
    }

    ngx_http_finalize_request(r, replay_send(r, ctx, &response, file));

    return NGX_DONE;
}


/*
 * Access control of the response's location has let the original in, and has
 * to let this request in as well: the access phase begins anew there, and
 * behind it access.c calls us again.  If it refuses, there is no replay.  It
 * does not begin sooner: a handler of the preaccess phase may need what its
 * module made in the rewrite phase, and nothing is rewritten again.
 */

static ngx_int_t
replay_move(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_location_t *location, void **loc_conf)
{
    void                      **contexts;
    ngx_http_phase_handler_t   *ph;
    ngx_http_core_main_conf_t  *cmcf;

    /* the recorded response is freed before the end of the request */

    location->uri.data = ngx_pstrdup(r->pool, &location->uri);
    location->args.data = ngx_pstrdup(r->pool, &location->args);
    contexts = ngx_pcalloc(r->pool, sizeof(void *) * ngx_http_max_module);

    if (location->uri.data == NULL || location->args.data == NULL
        || contexts == NULL)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    location_enter(r, location, loc_conf);

    /* access control begins without contexts, as behind an internal redirect:
       auth_request keeps its answer there */

    ctx->access.contexts = r->ctx;
    r->ctx = contexts;
    ngx_http_set_ctx(r, ctx, ngx_http_idempotency_module);

    cmcf = ngx_http_get_module_main_conf(r, ngx_http_core_module);
    ph = cmcf->phase_engine.handlers;

    r->phase_handler = 0;

    while (ph[r->phase_handler].checker != ngx_http_core_access_phase) {
        r->phase_handler++;
    }

    ctx->access.outside = 1;
    ctx->access.moved = r->uri_changes;
    ctx->access.error_page = r->error_page;
    ctx->access.err_status = r->err_status;

    ngx_http_core_run_phases(r);

    return NGX_DONE;
}


/*
 * Writes the body to a temporary file without a name.  The header block stays
 * in memory, and the body's memory is freed.  NULL: there is no file, and the
 * body is sent from memory.
 */

static ngx_file_t *
replay_to_file(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_response_t *response)
{
    size_t               len;
    u_char              *p, *whole;
    ngx_str_t           *bytes;
    ngx_file_t          *file;
    replay_body_t       *body;
    ngx_pool_cleanup_t  *cln;

    bytes = &ctx->claim.found.response;
    whole = bytes->data;
    len = response->body.data - whole;

    p = ngx_pnalloc(r->pool, len);
    file = ngx_palloc(r->pool, sizeof(ngx_file_t));
    cln = ngx_pool_cleanup_add(r->pool, 0);

    if (p == NULL || file == NULL || cln == NULL) {
        return NULL;
    }

    body = replay_body(r, ctx, &response->body);
    if (body == NULL) {
        return NULL;
    }

    body->users++;
    cln->handler = replay_body_release;
    cln->data = body;

    *file = body->file;
    file->log = r->connection->log;

    ngx_memcpy(p, whole, len);
    bytes->data = p;

    /* the decoded strings now point into the copy, which has the same bytes */

    (void) ngx_http_idempotency_response_decode(bytes,
                                                r->method == NGX_HTTP_HEAD,
                                                response);
    (void) ngx_pfree(r->pool, whole);

    return file;
}


/* the file of the last body, if this is the same body, or a new one */

static replay_body_t *
replay_body(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_str_t *bytes)
{
    ngx_pool_t                *pool;
    replay_body_t             *body;
    ngx_http_core_loc_conf_t  *clcf;

    body = replay_kept;

    if (body
        && body->zone == ctx->conf->store->counters
        && body->fence == ctx->claim.found.fence
        && body->size == bytes->len
        && ngx_memcmp(body->token, ctx->claim.op.token,
                      NGX_IDEMPOTENCY_DIGEST_LEN)
           == 0)
    {
        replay_keep(body);
        return body;
    }

    pool = ngx_create_pool(1024, ngx_cycle->log);
    if (pool == NULL) {
        return NULL;
    }

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);
    body = ngx_pcalloc(pool, sizeof(replay_body_t));

    if (body) {
        body->file.log = r->connection->log;
    }

    if (body == NULL
        || ngx_create_temp_file(&body->file, clcf->client_body_temp_path, pool,
                                0, 0, 0)
           != NGX_OK
        || ngx_write_file(&body->file, bytes->data, bytes->len, 0)
           == NGX_ERROR)
    {
        ngx_destroy_pool(pool);
        return NULL;
    }

    body->pool = pool;
    body->zone = ctx->conf->store->counters;
    body->fence = ctx->claim.found.fence;
    body->size = bytes->len;
    ngx_memcpy(body->token, ctx->claim.op.token, NGX_IDEMPOTENCY_DIGEST_LEN);

    replay_keep(body);

    return body;
}


/* A quick client may have the whole body before the next request in the crowd
   is answered: so the file is kept for a moment. */

static void
replay_keep(replay_body_t *body)
{
    body->users++;

    if (replay_kept) {
        replay_body_release(replay_kept);
    }

    replay_kept = body;

    /* nginx's debug log takes the data of a timer for a connection */

    replay_dumb.fd = (ngx_socket_t) -1;

    replay_event.handler = replay_kept_handler;
    replay_event.data = &replay_dumb;
    replay_event.log = ngx_cycle->log;
    replay_event.cancelable = 1;

    ngx_add_timer(&replay_event, NGX_HTTP_IDEMPOTENCY_REPLAY_KEPT);
}


static void
replay_kept_handler(ngx_event_t *ev)
{
    replay_body_release(replay_kept);
    replay_kept = NULL;
}


static void
replay_body_release(void *data)
{
    replay_body_t  *body = data;

    if (--body->users == 0) {
        ngx_destroy_pool(body->pool);
    }
}


static ngx_int_t
replay_send(ngx_http_request_t *r, ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_response_t *response, ngx_file_t *file)
{
    ngx_str_t        *mark;
    ngx_list_t       *headers;
    ngx_uint_t        cookies;
    ngx_table_elt_t  *h;

    static ngx_str_t  value = ngx_string("true");

    cookies = (ctx->conf->replay_cookies == NGX_HTTP_IDEMPOTENCY_COOKIES_ALWAYS
               || (ctx->conf->replay_cookies
                   == NGX_HTTP_IDEMPOTENCY_COOKIES_IDENTIFIED
                   && ctx->identified
                   && !ctx->claim.found.anonymous));

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, r->connection->log, 0,
                   "idempotency replay: size:%uz, cookies:%ui",
                   response->body.len, cookies);

    if (ngx_http_idempotency_response_restore(r, response, cookies)
        != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    mark = &ctx->conf->replay_header;

    if (mark->len) {
        headers = &r->headers_out.headers;

        /* the mark replaces lines of its name in the original */

        while ((h = ngx_http_idempotency_header_of(headers,
                                                   (char *) mark->data))
               != NULL)
        {
            h->hash = 0;
        }

        if (ngx_http_idempotency_header_push(headers, mark, &value) == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }
    }

    ngx_idempotency_stats_add(ctx->conf->store->counters->replayed_bytes,
                              response->body.len);

    return answer_send(r, &response->body, file);
}


/* sends a response with a body in one piece, from the top of all filters */

static ngx_int_t
answer_send(ngx_http_request_t *r, ngx_str_t *body,
    ngx_file_t *file)
{
    ngx_int_t     rc;
    ngx_buf_t    *b;
    ngx_chain_t   out;

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    if (body->len == 0) {
        return ngx_http_send_special(r, NGX_HTTP_LAST);
    }

    b = ngx_calloc_buf(r->pool);
    if (b == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (file) {
        b->file = file;
        b->file_last = body->len;
        b->in_file = 1;
        b->temp_file = 1;

    } else {
        b->start = body->data;
        b->pos = body->data;
        b->last = body->data + body->len;
        b->end = b->last;
        b->temporary = 1;
    }

    b->last_buf = 1;
    b->last_in_chain = 1;

    out.buf = b;
    out.next = NULL;

    return ngx_http_output_filter(r, &out);
}


/*
 * Called when a location's settings are merged; the locations around it were
 * added before.  The first entry stands for the http level, and has index 0.
 */

ngx_int_t
ngx_http_idempotency_location_add(ngx_conf_t *cf, ngx_uint_t parent,
    ngx_uint_t *index)
{
    ngx_array_t                       *entries;
    location_entry_t                  *entry;
    ngx_http_conf_ctx_t               *ctx;
    ngx_http_core_loc_conf_t          *clcf;
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);
    entries = &imcf->location_entries;

    if (entries->elts == NULL) {

        if (ngx_array_init(entries, cf->pool, 16, sizeof(location_entry_t))
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        ngx_memzero(ngx_array_push(entries), sizeof(location_entry_t));
    }

    *index = entries->nelts;

    entry = ngx_array_push(entries);
    if (entry == NULL) {
        return NGX_ERROR;
    }

    ngx_memzero(entry, sizeof(location_entry_t));

    ctx = cf->ctx;

    entry->srv_conf = ctx->srv_conf;
    entry->loc_conf = ctx->loc_conf;
    entry->parent = parent;

    if (parent == 0) {
        return NGX_OK;
    }

    clcf = location_core(entry);

    entry->ordinal = location_ordinal(entries, parent, clcf);

    if (clcf->noname) {
        ((location_entry_t *) entries->elts)[parent].nameless++;
    }

    return NGX_OK;
}


static u_char
location_kind(ngx_http_core_loc_conf_t *clcf)
{
    if (clcf->noname) {
        return clcf->lmt_excpt ? 'l' : 'i';
    }

    if (clcf->named) {
        return '@';
    }

#if (NGX_PCRE)
    if (clcf->regex) {
        return '~';
    }
#endif

    return clcf->exact_match ? '=' : '/';
}


static ngx_uint_t
location_ordinal(ngx_array_t *entries, ngx_uint_t parent,
    ngx_http_core_loc_conf_t *clcf)
{
    u_char                     kind;
    ngx_uint_t                 i;
    location_entry_t          *entry;
    ngx_http_core_loc_conf_t  *other;

    kind = location_kind(clcf);

    if (kind == '=' || kind == '/') {
        /* nginx refuses two of them */
        return 0;
    }

    entry = entries->elts;

    for (i = entries->nelts - 2; i > parent; i--) {

        if (entry[i].parent != parent) {
            continue;
        }

        other = location_core(&entry[i]);

        if (location_kind(other) == kind
            && ngx_idempotency_same(&other->name, &clcf->name))
        {
            return entry[i].ordinal + 1;
        }
    }

    return 0;
}


/* called when all locations are known */

void
ngx_http_idempotency_location_init(ngx_conf_t *cf)
{
    ngx_uint_t                         i;
    location_entry_t                  *entry;
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_idempotency_module);
    entry = imcf->location_entries.elts;

    for (i = 1; i < imcf->location_entries.nelts; i++) {
        if (entry[i].parent) {
            location_id(&entry[i], &entry[entry[i].parent]);
        }
    }
}


/* Only their order tells blocks without a name apart.  If one comes or goes,
   all of them get other ids. */

static void
location_id(location_entry_t *entry, location_entry_t *parent)
{
    u_char                     id[NGX_IDEMPOTENCY_DIGEST_LEN];
    u_char                     step[2 + 2 * NGX_INT_T_LEN];
    ngx_str_t                  s;
    ngx_idempotency_digest_t   d;
    ngx_http_core_loc_conf_t  *clcf;

    clcf = location_core(entry);

    ngx_idempotency_digest_init(&d, NULL, NGX_IDEMPOTENCY_DIGEST_OTHER_VERSION,
                                NGX_IDEMPOTENCY_DIGEST_LOCATION);

    s.data = parent->id;
    s.len = NGX_HTTP_IDEMPOTENCY_LOCATION_LEN;
    ngx_idempotency_digest_field(&d, &s);

    s.data = step;
    s.len = ngx_sprintf(step, "%c%ui/%ui", location_kind(clcf), entry->ordinal,
                        clcf->noname ? parent->nameless : 0)
            - step;
    ngx_idempotency_digest_field(&d, &s);
    ngx_idempotency_digest_field(&d, &clcf->name);

    ngx_idempotency_digest_final(&d, id);
    ngx_memcpy(entry->id, id, NGX_HTTP_IDEMPOTENCY_LOCATION_LEN);
}


static ngx_http_core_loc_conf_t *
location_core(location_entry_t *entry)
{
    return entry->loc_conf[ngx_http_core_module.ctx_index];
}


/* the location of the request; NGX_DECLINED: it could not be found again */

ngx_int_t
ngx_http_idempotency_location_of(ngx_http_request_t *r,
    ngx_http_idempotency_location_t *location)
{
    location_entry_t                  *entry;
    ngx_http_idempotency_loc_conf_t   *conf;
    ngx_http_idempotency_main_conf_t  *imcf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);
    imcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    if (conf->location == 0) {
        return NGX_DECLINED;
    }

    entry = (location_entry_t *) imcf->location_entries.elts + conf->location;

    ngx_memcpy(location->id, entry->id, NGX_HTTP_IDEMPOTENCY_LOCATION_LEN);

    location->internal = r->internal;
    location->get = (r->method == NGX_HTTP_GET);
    location->admitted = (ngx_http_idempotency_get_ctx(r)->access.admitted
                          == r->uri_changes);
    location->uri = r->uri;
    location->args = r->args;

    return NGX_OK;
}


/* the location's configuration; NULL: the location has gone */

static void **
location_find(ngx_http_request_t *r,
    ngx_http_idempotency_location_t *location)
{
    ngx_uint_t                         i;
    location_entry_t                  *entry;
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);
    entry = imcf->location_entries.elts;

    for (i = 1; i < imcf->location_entries.nelts; i++) {

        if (entry[i].srv_conf == r->srv_conf
            && ngx_memcmp(entry[i].id, location->id,
                          NGX_HTTP_IDEMPOTENCY_LOCATION_LEN)
               == 0)
        {
            return entry[i].loc_conf;
        }
    }

    return NULL;
}


/* moves the request there, as an internal redirect would */

static void
location_enter(ngx_http_request_t *r,
    ngx_http_idempotency_location_t *location, void **loc_conf)
{
    r->uri = location->uri;
    r->args = location->args;
    ngx_http_set_exten(r);

    r->internal = location->internal;
    r->valid_unparsed_uri = 0;

    if (location->get && r->method != NGX_HTTP_GET) {
        r->method = NGX_HTTP_GET;
        r->method_name = ngx_http_core_get_method;
    }

    r->loc_conf = loc_conf;
    ngx_http_update_location_config(r);

    /* a block in it was chosen by the original method, and is set again */
    r->loc_conf = loc_conf;

    location_captures(r);
}


/* sets the captures of the location's pattern, which an add_header may use */

static void
location_captures(ngx_http_request_t *r)
{
#if (NGX_PCRE)

    location_entry_t                  *entries, *entry;
    ngx_http_idempotency_loc_conf_t   *conf;
    ngx_http_idempotency_main_conf_t  *imcf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);
    imcf = ngx_http_get_module_main_conf(r, ngx_http_idempotency_module);

    entries = imcf->location_entries.elts;
    entry = &entries[conf->location];

    while (location_core(entry)->noname) {
        entry = &entries[entry->parent];
    }

    if (location_core(entry)->regex) {
        (void) ngx_http_regex_exec(r, location_core(entry)->regex, &r->uri);
    }

#endif
}
