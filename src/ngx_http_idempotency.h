
/*
 * What the files of the HTTP side share: a request's context, and the
 * functions by which one directory calls another.
 */


#ifndef _NGX_HTTP_IDEMPOTENCY_H_INCLUDED_
#define _NGX_HTTP_IDEMPOTENCY_H_INCLUDED_


#include "ngx_http_idempotency_conf.h"


/* how far a request has come; request/access.c has the table of steps */

typedef enum {
    /* no location has prepared the request, or it left that location
       undecided */
    NGX_HTTP_IDEMPOTENCY_STATE_UNSEEN = 0,
    /* the request has a key, or may have one in its body */
    NGX_HTTP_IDEMPOTENCY_STATE_KEYED,
    /* the body is being read, or was read just now */
    NGX_HTTP_IDEMPOTENCY_STATE_READING,
    /* the verdict needs no store: there is no key, a bad one, or a bypass */
    NGX_HTTP_IDEMPOTENCY_STATE_JUDGED,
    /* token and fingerprint are known */
    NGX_HTTP_IDEMPOTENCY_STATE_DIGESTED,
    /* the store was asked; or the request is replayed, refused or let
       through */
    NGX_HTTP_IDEMPOTENCY_STATE_DECIDED,
    /* the request owns its token; then its outcome was given to the store:
       recorded, or released, which makes the token fresh again */
    NGX_HTTP_IDEMPOTENCY_STATE_OWNER,
    NGX_HTTP_IDEMPOTENCY_STATE_SETTLED,
    NGX_HTTP_IDEMPOTENCY_STATE_RELEASED
} ngx_http_idempotency_state_e;


/* what the preaccess handler noted of a request */

typedef struct {
    ngx_uint_t                         err_status;
    /* how many redirects nginx would still make: as access control last let
       the request in; as a replay came to its response's location, or 0 */
    ngx_uint_t                         admitted;
    ngx_uint_t                         moved;
    /* other modules' contexts, as that replay left its own location */
    void                             **contexts;
    unsigned                           error_page:1;
    /* access control has not let the request in yet; or has refused it */
    unsigned                           outside:1;
    unsigned                           turned_away:1;
} ngx_http_idempotency_access_t;


/* the request's body */

typedef struct {
    /* the kind that digests the body by its meaning, NULL: by its bytes; the
       digest so far, and the final one */
    const ngx_idempotency_kind_t      *kind;
    ngx_idempotency_digest_t           running;
    u_char                             digest[NGX_IDEMPOTENCY_DIGEST_LEN];

    /* the fields to be found in the body; NULL: it can have none */
    ngx_idempotency_fields_t          *fields;
    /* the running reader and its kind, for kinds that are read as they
       arrive */
    void                              *stream;
    const ngx_idempotency_kind_t      *streamed;
    /* why a key could not be read from the body */
    ngx_http_idempotency_unreadable_e  unreadable;

    /* the body is being read; the digest is complete; the body is a form, and
       the key is one of its fields */
    unsigned                           reading:1;
    unsigned                           digested:1;
    unsigned                           form_key:1;
} ngx_http_idempotency_body_t;


/* the wait for the store's answer, or for another request's outcome */

typedef struct {
    ngx_event_t                        timer;
    /* the end of the wait for another request's outcome */
    ngx_msec_t                         deadline;
    /* how often in a row the store has not answered in time */
    ngx_uint_t                         overdue;
    /* the claim that waits for the store's answer, or for a change of its
       record */
    ngx_idempotency_claim_t           *claim;

    unsigned                           waited:1;
    /* the client has closed its sending side */
    unsigned                           half_closed:1;
} ngx_http_idempotency_wait_t;


/* the owner's response as captured so far */

typedef struct {
    /* the header block, the trailers, then the body */
    ngx_chain_t                       *pieces;
    ngx_chain_t                       *last_piece;
    ngx_uint_t                         status;
    /* bytes of the body: captured, and announced */
    off_t                              size;
    off_t                              expected;

    /* where the last content handler began: the upstream that was there, and
       how many attempts at upstreams */
    ngx_http_upstream_t               *upstream;
    ngx_uint_t                         attempts;
    /* what the handlers before it left: the status of a response that binds
       the token, or 0 */
    ngx_uint_t                         executed;

    /* the main request's subrequests so far, and whether a filter below us
       made each */
    ngx_array_t                       *subrequests;

    /* the header was captured; the upstream is at work; the last byte was
       captured */
    unsigned                           answered:1;
    unsigned                           live:1;
    unsigned                           whole:1;
    /* trailers may follow; gRPC trailers must follow */
    unsigned                           trailers:1;
    unsigned                           grpc:1;
    /* not kept: too large; or a part of it does not pass our filters */
    unsigned                           too_large:1;
    unsigned                           partial:1;
    /* the words of X-Accel-Idempotency */
    unsigned                           says_release:1;
    unsigned                           says_keep:1;
    /* a content handler has run; the last one came behind an error_page */
    unsigned                           handled:1;
    unsigned                           error_page:1;
    /* an earlier one may have executed the request and did not answer; or is no
       upstream, and handed the request on: the next one answers for both */
    unsigned                           doubt:1;
    unsigned                           delegated:1;
} ngx_http_idempotency_capture_t;


/* the client of an owner, which may leave */

typedef struct {
    /* handlers of the location, the upstream and the connection; our handlers
       call them */
    ngx_http_handler_pt                content_handler;
    ngx_http_event_handler_pt          write_event_handler;
    ngx_event_handler_pt               read_handler;

    /* ends the reading of a response that is not kept, after the client
       left */
    ngx_event_t                        timer;

    /* the request is in the list of clients that have left; the list was
       full */
    ngx_queue_t                        queue;
    unsigned                           left:1;
    unsigned                           abandoned:1;

    /* nothing is sent to the client any more */
    unsigned                           gone:1;
    /* a content handler other than nginx's for static files has run since the
       claim: an upstream may have been asked */
    unsigned                           handler_ran:1;
} ngx_http_idempotency_client_t;


/* idempotency_similar: a claim on the content, which may have come with
   another key before */

typedef struct {
    ngx_idempotency_claim_t            claim;
    /* the operation that records the content as seen, or NULL; the fence of
       that record, or 0 */
    ngx_idempotency_complete_t        *note;
    uint64_t                           fence;
} ngx_http_idempotency_similar_t;


typedef struct ngx_http_idempotency_report_s  ngx_http_idempotency_report_t;


/* an owner's outcome */

typedef struct {
    /* the operation that records the outcome, until the store has answered */
    ngx_http_idempotency_report_t     *report;
    /* when the record ends */
    ngx_msec_t                         ends;
    /* the store refused the outcome */
    unsigned                           refused:1;
} ngx_http_idempotency_settled_t;


/* the end of an owner's response, held back until a strict store has
   answered */

typedef struct {
    /* the buffers held back, and where the next ones are linked */
    ngx_chain_t                       *out;
    ngx_chain_t                      **next;
    /* bytes of the body still to come, or -1: unknown */
    off_t                              left;

    unsigned                           waiting:1;
    unsigned                           over:1;
    /* the last buffer was among those held back */
    unsigned                           last:1;
    /* the header is held back, too; the response has no body */
    unsigned                           header:1;
    unsigned                           bodyless:1;
} ngx_http_idempotency_postpone_t;


typedef struct {
    ngx_http_request_t                *request;
    /* the settings under which the request was prepared */
    ngx_http_idempotency_loc_conf_t   *conf;

    ngx_str_t                          key;
    /* when the key was made, in milliseconds since 1970, for keys that tell
       it */
    uint64_t                           made;

    ngx_idempotency_claim_t            claim;
    /* the identity is one client's, and not shared by many */
    ngx_uint_t                         identified;
    /* when the store answered the claim */
    ngx_msec_t                         answered_at;
    /* NULL without idempotency_similar */
    ngx_http_idempotency_similar_t    *similar;

    ngx_http_idempotency_state_e       state;
    /* what key and body decide; what became of the request */
    ngx_http_idempotency_status_e      verdict;
    ngx_http_idempotency_status_e      status;
    /* in seconds; 0: the refusal's usual Retry-After */
    time_t                             retry_after;

    ngx_http_idempotency_access_t      access;
    ngx_http_idempotency_body_t        body;
    ngx_http_idempotency_wait_t        wait;
    ngx_http_idempotency_capture_t     capture;
    ngx_http_idempotency_client_t      client;
    ngx_http_idempotency_settled_t     settled;
    ngx_http_idempotency_postpone_t    postpone;

    /* the metrics have counted the request; and its meeting with a pending
       claim */
    unsigned                           counted:1;
    unsigned                           raced:1;
} ngx_http_idempotency_ctx_t;


/* token and fingerprint are known */

#define ngx_http_idempotency_has_token(ctx)                                  \
    ((ctx)->state >= NGX_HTTP_IDEMPOTENCY_STATE_DIGESTED                     \
     && (ctx)->verdict == NGX_HTTP_IDEMPOTENCY_STATUS_NEW)

/* the request has no key, and its content stands for one */

#define ngx_http_idempotency_by_content(ctx)                                 \
    ((ctx)->verdict == NGX_HTTP_IDEMPOTENCY_STATUS_NEW                       \
     && (ctx)->key.len == 0)

/* the context may be NULL in the next three macros */

#define ngx_http_idempotency_owns(ctx)                                       \
    ((ctx) && (ctx)->state == NGX_HTTP_IDEMPOTENCY_STATE_OWNER)

/* an owner sent this request to its own nginx: it is a part of that
   operation */

#define ngx_http_idempotency_nests(ctx)                                      \
    ((ctx) && (ctx)->status == NGX_HTTP_IDEMPOTENCY_STATUS_NESTED)

/* the owner's operation goes on until its response is whole */

#define ngx_http_idempotency_carried(ctx)                                    \
    ((ctx) && (ctx)->state >= NGX_HTTP_IDEMPOTENCY_STATE_OWNER               \
     && !(ctx)->capture.whole)


void ngx_http_idempotency_cleanup(void *data);

/* the main request's context; after a redirect has cleared the module
   contexts, the cleanup still has it */

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
    ngx_http_idempotency_loc_conf_t *prev,
    ngx_http_idempotency_loc_conf_t *conf);
char *ngx_http_idempotency_api(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idempotency_guard(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

/* observe/log.c.  A line has the text, the token, its zone and the token's
   record.  All kinds of lines but NEW are limited. */

void ngx_http_idempotency_log(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_http_idempotency_status_e kind,
    ngx_uint_t level, const char *fmt, ...);
void ngx_http_idempotency_log_suppressed(void);

/* claims and outcomes are logged one step below refusals and replays */

#define ngx_http_idempotency_trail_level(conf)                               \
    ngx_min((conf)->log_level + 1, NGX_LOG_INFO)

void ngx_http_idempotency_count(ngx_http_idempotency_ctx_t *ctx);
void ngx_http_idempotency_count_end(ngx_http_idempotency_ctx_t *ctx);

/* room for the names of all that differs in a conflict */

#define NGX_HTTP_IDEMPOTENCY_REASON_LEN                                      \
    (sizeof("action,identity,body,settings") - 1)

ngx_str_t ngx_http_idempotency_reason(ngx_http_idempotency_ctx_t *ctx,
    u_char *text);

/* outcomes of records: their names in figures and in log lines */

typedef struct {
    const char  *name;
    const char  *text;
} ngx_http_idempotency_outcome_t;

extern const ngx_http_idempotency_outcome_t
    ngx_http_idempotency_outcomes[NGX_IDEMPOTENCY_STATS_RECORDS];

/* names of the bits of claim.differs: the reasons of a conflict */

extern const char
    *ngx_http_idempotency_differs_names[NGX_IDEMPOTENCY_STATS_DIFFERS];

/* observe/variables.c */

ngx_int_t ngx_http_idempotency_add_variables(ngx_conf_t *cf);
ngx_uint_t ngx_http_idempotency_is_own_variable(ngx_str_t *name);


#endif /* _NGX_HTTP_IDEMPOTENCY_H_INCLUDED_ */
