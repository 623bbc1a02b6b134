
/*
 * What the rooms of the HTTP side share: a request's context, and the calls by
 * which one room hands a request to the next.
 */


#ifndef _NGX_HTTP_IDEMPOTENCY_H_INCLUDED_
#define _NGX_HTTP_IDEMPOTENCY_H_INCLUDED_


#include "ngx_http_idempotency_conf.h"


/* how far a request has come; the steps between stand in
   request/access.c */

typedef enum {
    /* no location has looked at it, or one that it left before its decision */
    NGX_HTTP_IDEMPOTENCY_STATE_UNSEEN = 0,
    /* it has a key, or may have one in its body */
    NGX_HTTP_IDEMPOTENCY_STATE_KEYED,
    /* its body is being read, or has just been */
    NGX_HTTP_IDEMPOTENCY_STATE_READING,
    /* there is a verdict without the store: no key, a bad one, a bypass */
    NGX_HTTP_IDEMPOTENCY_STATE_JUDGED,
    /* token and fingerprint are known */
    NGX_HTTP_IDEMPOTENCY_STATE_BOUND,
    /* the store is asked; or it is replayed, refused or let through */
    NGX_HTTP_IDEMPOTENCY_STATE_DECIDED,
    /* it owns its token; then its outcome was handed to the store: recorded,
       or released, so that the token is fresh again */
    NGX_HTTP_IDEMPOTENCY_STATE_OWNER,
    NGX_HTTP_IDEMPOTENCY_STATE_SETTLED,
    NGX_HTTP_IDEMPOTENCY_STATE_RELEASED
} ngx_http_idempotency_state_e;


/* where a request was when it came to the preaccess phase */

typedef struct {
    ngx_uint_t                         err_status;
    unsigned                           error_page:1;
    /* access control has not let it in yet; or has refused it */
    unsigned                           outside:1;
    unsigned                           turned_away:1;
} ngx_http_idempotency_access_t;


/* the request's body */

typedef struct {
    /* the kind of content by which it is digested, or NULL: by its bytes;
       the digest so far, and of all of it */
    const ngx_idempotency_kind_t      *kind;
    ngx_idempotency_digest_t           running;
    u_char                             digest[NGX_IDEMPOTENCY_DIGEST_LEN];

    /* the fields that are looked for in it; NULL: it has none */
    ngx_idempotency_fields_t          *fields;
    /* the reader that gets it as it arrives, if there is one, and its kind */
    void                              *stream;
    const ngx_idempotency_kind_t      *streamed;
    /* why a key could not be read from it */
    ngx_http_idempotency_unreadable_e  unreadable;

    /* it is being read; its digest is known; it is a form, and the key is
       one of its fields */
    unsigned                           reading:1;
    unsigned                           digested:1;
    unsigned                           form_key:1;
} ngx_http_idempotency_body_t;


/* while the store, or another's outcome, is waited for */

typedef struct {
    ngx_event_t                        timer;
    /* of another's outcome */
    ngx_msec_t                         deadline;
    /* how often in a row the store has not answered in time */
    ngx_uint_t                         overdue;
    /* the claim that the store has yet to answer, or whose change it
       announces */
    ngx_idempotency_claim_t           *claim;

    unsigned                           waited:1;
    /* the client has closed its sending side */
    unsigned                           half_closed:1;
} ngx_http_idempotency_wait_t;


/* the owner's response so far */

typedef struct {
    /* its header block, its trailers, then its body */
    ngx_chain_t                       *pieces;
    ngx_chain_t                       *last_piece;
    ngx_uint_t                         status;
    /* of the body */
    off_t                              size;
    off_t                              expected;

    /* the main request's subrequests that were seen */
    ngx_array_t                       *subrequests;

    /* its header was seen; it comes from an upstream at work; trailers may
       follow; those of gRPC must; its last byte was seen; it is too large to
       be kept; a part of it does not pass our filters; what
       X-Accel-Idempotency says */
    unsigned                           answered:1;
    unsigned                           live:1;
    unsigned                           trailers:1;
    unsigned                           grpc:1;
    unsigned                           whole:1;
    unsigned                           too_large:1;
    unsigned                           partial:1;
    unsigned                           says_release:1;
    unsigned                           says_keep:1;
} ngx_http_idempotency_capture_t;


/* the client of an owner, which may leave */

typedef struct {
    /* the handlers of the location, the upstream and the connection, which
       ours call */
    ngx_http_handler_pt                content_handler;
    ngx_http_event_handler_pt          write_event_handler;
    ngx_event_handler_pt               read_handler;

    /* limits the reading of a response that is not kept, once the client has
       left */
    ngx_event_t                        timer;

    /* it is in the list of requests whose clients have left; it had no place
       there */
    ngx_queue_t                        queue;
    unsigned                           left:1;
    unsigned                           abandoned:1;

    /* the client has left: nothing is sent to it any more */
    unsigned                           gone:1;
    /* a content handler has run since the claim, other than those of nginx
       for static files: an upstream may have been asked */
    unsigned                           handled:1;
} ngx_http_idempotency_client_t;


/* a claim on the content, which may have come with another key before */

typedef struct {
    ngx_idempotency_claim_t            claim;
    /* the operation that records it as seen, or NULL; the fence of that
       record, or 0 */
    ngx_idempotency_complete_t        *note;
    uint64_t                           fence;
} ngx_http_idempotency_similar_t;


typedef struct ngx_http_idempotency_report_s  ngx_http_idempotency_report_t;


/* the outcome of an owner */

typedef struct {
    /* the operation that records it, until the store has answered */
    ngx_http_idempotency_report_t     *report;
    /* when the record ends */
    ngx_msec_t                         ends;
    /* the store has refused it */
    unsigned                           refused:1;
} ngx_http_idempotency_settled_t;


/* the end of an owner's response, while a strict store has not answered */

typedef struct {
    /* what is held back, and where more of it goes */
    ngx_chain_t                       *out;
    ngx_chain_t                      **next;
    /* bytes of the body that are still to come, or -1: not known */
    off_t                              left;

    unsigned                           waiting:1;
    unsigned                           over:1;
    /* the last buffer is held back, or was */
    unsigned                           last:1;
    /* the header is held back, too; and nothing may follow it */
    unsigned                           header:1;
    unsigned                           bodyless:1;
} ngx_http_idempotency_postpone_t;


typedef struct {
    ngx_http_request_t                *request;
    /* the settings under which the request was prepared */
    ngx_http_idempotency_loc_conf_t   *conf;

    ngx_str_t                          key;
    /* when the key was made, in milliseconds since 1970, if that is a part
       of it */
    uint64_t                           made;

    ngx_idempotency_claim_t            claim;
    /* the identity is one client's, and not shared by many */
    ngx_uint_t                         identified;
    /* when the store answered */
    ngx_msec_t                         answered;
    /* with idempotency_similar */
    ngx_http_idempotency_similar_t    *similar;

    ngx_http_idempotency_state_e       state;
    /* what the key decides; what became of the request */
    ngx_http_idempotency_status_e      verdict;
    ngx_http_idempotency_status_e      status;
    /* in seconds; 0: the usual Retry-After of the refusal */
    time_t                             retry_after;

    ngx_http_idempotency_access_t      access;
    ngx_http_idempotency_body_t        body;
    ngx_http_idempotency_wait_t        wait;
    ngx_http_idempotency_capture_t     capture;
    ngx_http_idempotency_client_t      client;
    ngx_http_idempotency_settled_t     settled;
    ngx_http_idempotency_postpone_t    postpone;

    /* the metrics have counted it; and that it met a pending claim */
    unsigned                           counted:1;
    unsigned                           raced:1;
} ngx_http_idempotency_ctx_t;


/* token and fingerprint are known */

#define ngx_http_idempotency_bound(ctx)                                      \
    ((ctx)->state >= NGX_HTTP_IDEMPOTENCY_STATE_BOUND                        \
     && (ctx)->verdict == NGX_HTTP_IDEMPOTENCY_STATUS_NEW)

/* there is no key, and the content stands for it */

#define ngx_http_idempotency_by_content(ctx)                                 \
    ((ctx)->verdict == NGX_HTTP_IDEMPOTENCY_STATUS_NEW                       \
     && (ctx)->key.len == 0)

/* the context may be NULL here */

#define ngx_http_idempotency_owns(ctx)                                       \
    ((ctx) && (ctx)->state == NGX_HTTP_IDEMPOTENCY_STATE_OWNER)

/* an owner sent it to this nginx: it is a part of its operation */

#define ngx_http_idempotency_nests(ctx)                                      \
    ((ctx) && (ctx)->status == NGX_HTTP_IDEMPOTENCY_STATUS_NESTED)

/* an owner's operation goes on until its response is whole */

#define ngx_http_idempotency_carried(ctx)                                    \
    ((ctx) && (ctx)->state >= NGX_HTTP_IDEMPOTENCY_STATE_OWNER               \
     && !(ctx)->capture.whole)


void ngx_http_idempotency_cleanup(void *data);

/* the context of the main request, which its cleanup keeps */

static ngx_inline ngx_http_idempotency_ctx_t *
ngx_http_idempotency_get_ctx(ngx_http_request_t *r)
{
    ngx_http_cleanup_t          *cln;
    ngx_http_idempotency_ctx_t  *ctx;

    r = r->main;

    ctx = ngx_http_get_module_ctx(r, ngx_http_idempotency_module);

    if (ctx == NULL && (r->internal || r->filter_finalize)) {

        for (cln = r->cleanup; cln; cln = cln->next) {

            if (cln->handler == ngx_http_idempotency_cleanup) {
                ctx = cln->data;
                ngx_http_set_ctx(r, ctx, ngx_http_idempotency_module);
                break;
            }
        }
    }

    return ctx;
}


#include "request/ngx_http_idempotency_request.h"


/* observe/api.c */

ngx_int_t ngx_http_idempotency_api_merge(ngx_conf_t *cf,
    ngx_http_idempotency_loc_conf_t *conf);
char *ngx_http_idempotency_api(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idempotency_guard(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

/* observe/log.c: a line has the text, the token, its zone and what it was found
   to be bound to; but for NEW the lines of a kind are limited */

void ngx_http_idempotency_log(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_http_idempotency_status_e kind,
    ngx_uint_t level, const char *fmt, ...);
void ngx_http_idempotency_log_rest(void);

/* claims and outcomes are one step less urgent than refusals and replays */

#define ngx_http_idempotency_trail_level(conf)                               \
    ngx_min((conf)->log_level + 1, NGX_LOG_INFO)

void ngx_http_idempotency_count(ngx_http_idempotency_ctx_t *ctx);
void ngx_http_idempotency_count_end(ngx_http_idempotency_ctx_t *ctx);

/* why a conflict is one; empty of all else */

#define NGX_HTTP_IDEMPOTENCY_REASON_LEN                                      \
    (sizeof("action,identity,body,settings") - 1)

ngx_str_t ngx_http_idempotency_reason(ngx_http_idempotency_ctx_t *ctx,
    u_char *text);

/* outcomes of records, as figures name them and as the log writes them */

typedef struct {
    const char  *name;
    const char  *text;
} ngx_http_idempotency_outcome_t;

extern const ngx_http_idempotency_outcome_t
    ngx_http_idempotency_outcomes[NGX_IDEMPOTENCY_STATS_RECORDS];

/* names of the bits of claim.differs: why a conflict is one */

extern const char
    *ngx_http_idempotency_differs_names[NGX_IDEMPOTENCY_STATS_DIFFERS];

/* observe/variables.c */

ngx_int_t ngx_http_idempotency_add_variables(ngx_conf_t *cf);
ngx_uint_t ngx_http_idempotency_is_own(ngx_str_t *name);


#endif /* _NGX_HTTP_IDEMPOTENCY_H_INCLUDED_ */
