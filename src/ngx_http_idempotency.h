
/*
 * What the rooms of the HTTP side share: a location's settings, a request's
 * context, and the calls by which one room hands a request to the next.
 */


#ifndef _NGX_HTTP_IDEMPOTENCY_H_INCLUDED_
#define _NGX_HTTP_IDEMPOTENCY_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "digest/ngx_idempotency_kinds.h"
#include "store/ngx_idempotency_store.h"


/* what $idempotency_status says, and what is refused */

typedef enum {
    NGX_HTTP_IDEMPOTENCY_STATUS_NONE = 0,

    /* refusals: the first ones, as each has a status code of its own */
    NGX_HTTP_IDEMPOTENCY_STATUS_CONFLICT,
    NGX_HTTP_IDEMPOTENCY_STATUS_IN_PROGRESS,
    NGX_HTTP_IDEMPOTENCY_STATUS_IN_DOUBT,
    NGX_HTTP_IDEMPOTENCY_STATUS_NOT_KEPT,
    NGX_HTTP_IDEMPOTENCY_STATUS_SIMILAR,
    NGX_HTTP_IDEMPOTENCY_STATUS_EXPIRED,
    NGX_HTTP_IDEMPOTENCY_STATUS_MISSING,
    NGX_HTTP_IDEMPOTENCY_STATUS_MALFORMED,
    NGX_HTTP_IDEMPOTENCY_STATUS_LIMITED,
    NGX_HTTP_IDEMPOTENCY_STATUS_UNAVAILABLE,

    NGX_HTTP_IDEMPOTENCY_STATUS_NEW,
    NGX_HTTP_IDEMPOTENCY_STATUS_NESTED,
    NGX_HTTP_IDEMPOTENCY_STATUS_REPLAYED,
    NGX_HTTP_IDEMPOTENCY_STATUS_WAITED,
    NGX_HTTP_IDEMPOTENCY_STATUS_BYPASS
} ngx_http_idempotency_status_e;

#define NGX_HTTP_IDEMPOTENCY_REFUSALS                                        \
    (NGX_HTTP_IDEMPOTENCY_STATUS_UNAVAILABLE + 1)


/* why a key that may stand in the body could not be read from it */

typedef enum {
    NGX_HTTP_IDEMPOTENCY_BODY_READABLE = 0,
    NGX_HTTP_IDEMPOTENCY_BODY_TOO_LARGE,
    NGX_HTTP_IDEMPOTENCY_BODY_UNREADABLE
} ngx_http_idempotency_unreadable_e;


/* a refusal's name in idempotency_status, and its code by default */

typedef struct {
    ngx_str_t                      name;
    ngx_uint_t                     code;
} ngx_http_idempotency_refusal_t;


extern ngx_http_idempotency_refusal_t
    ngx_http_idempotency_refusals[NGX_HTTP_IDEMPOTENCY_REFUSALS];


#define NGX_HTTP_IDEMPOTENCY_MISSING_KEY_PASS      0
#define NGX_HTTP_IDEMPOTENCY_MISSING_KEY_REJECT    1
#define NGX_HTTP_IDEMPOTENCY_MISSING_KEY_CONTENT   2
#define NGX_HTTP_IDEMPOTENCY_MISSING_KEY_FORM      3

#define NGX_HTTP_IDEMPOTENCY_KEY_FORMAT_ANY        0
#define NGX_HTTP_IDEMPOTENCY_KEY_FORMAT_SF_STRING  1
#define NGX_HTTP_IDEMPOTENCY_KEY_FORMAT_UUID       2
#define NGX_HTTP_IDEMPOTENCY_KEY_FORMAT_UUID7      3

#define NGX_HTTP_IDEMPOTENCY_SIMILAR_OFF         0
#define NGX_HTTP_IDEMPOTENCY_SIMILAR_WARN        1
#define NGX_HTTP_IDEMPOTENCY_SIMILAR_REJECT      2

#define NGX_HTTP_IDEMPOTENCY_IN_PROGRESS_WAIT      0
#define NGX_HTTP_IDEMPOTENCY_IN_PROGRESS_REJECT    1
#define NGX_HTTP_IDEMPOTENCY_IN_PROGRESS_ACCEPTED  2

#define NGX_HTTP_IDEMPOTENCY_IN_DOUBT_REJECT     0
#define NGX_HTTP_IDEMPOTENCY_IN_DOUBT_RETRY      1

#define NGX_HTTP_IDEMPOTENCY_UNAVAILABLE_REJECT  0
#define NGX_HTTP_IDEMPOTENCY_UNAVAILABLE_PASS    1
#define NGX_HTTP_IDEMPOTENCY_UNAVAILABLE_LOCAL   2

#define NGX_HTTP_IDEMPOTENCY_COOKIES_IDENTIFIED  0
#define NGX_HTTP_IDEMPOTENCY_COOKIES_ALWAYS      1
#define NGX_HTTP_IDEMPOTENCY_COOKIES_NEVER       2

/* whether a status binds a token: it does not, it does, or by what it says */

#define NGX_HTTP_IDEMPOTENCY_KEEP_NO           0
#define NGX_HTTP_IDEMPOTENCY_KEEP_YES          1
#define NGX_HTTP_IDEMPOTENCY_KEEP_DEFAULT      2

#define NGX_HTTP_IDEMPOTENCY_STATUSES          1000


typedef struct ngx_http_idempotency_ignored_s  ngx_http_idempotency_ignored_t;


/* where a directive stands, if it is to be warned of; then it was */

typedef struct {
    ngx_str_t                      file;
    ngx_uint_t                     line;
    ngx_uint_t                     warned;
} ngx_http_idempotency_line_t;


/* a string with variables, or without */

typedef struct {
    ngx_http_complex_value_t       script;
    /* so long is all but its variables: a value of that length has none */
    size_t                         constant;
    /* all of its variables are cookies */
    ngx_uint_t                     of_cookies;
} ngx_http_idempotency_value_t;


/* idempotency_window with variables, and where it stands */

typedef struct {
    ngx_http_idempotency_value_t   value;
    ngx_http_idempotency_line_t    line;
} ngx_http_idempotency_window_t;


typedef struct {
    ngx_http_idempotency_value_t   value;
    /* of ngx_str_t: names of the request headers that it is made of */
    ngx_array_t                    headers;
    /* of ngx_str_t: names of fields of the body that are in it */
    ngx_array_t                    fields;
    /* variables that may be made of such fields, as a map's */
    ngx_uint_t                     indirect;
    /* it is $http_idempotency_key, which a browser may have made */
    ngx_uint_t                     header;
} ngx_http_idempotency_key_t;


typedef struct {
    ngx_idempotency_store_t       *store;

    ngx_uint_t                     methods;
    ngx_array_t                   *keys;
    /* some key is a field of the body, or the content is the key */
    ngx_uint_t                     key_in_body;
    ngx_uint_t                     missing_key;
    ngx_http_idempotency_line_t   *missing_key_line;
    ngx_uint_t                     key_format;
    ngx_int_t                      key_max_length;
    /* of keys that tell when they were made; not set: the window */
    ngx_msec_t                     key_max_age;
    ngx_http_complex_value_t      *scope;
    ngx_http_idempotency_value_t  *identity;
    ngx_http_idempotency_ignored_t  *ignore_cookies;
    /* of ngx_http_complex_value_t */
    ngx_array_t                   *bind;
    /* of idempotency_secret, or NULL */
    ngx_idempotency_digest_key_t  *digest_key;
    /* of what fingerprints are made by */
    u_char                         settings[NGX_IDEMPOTENCY_SETTINGS_LEN];
    ngx_array_t                   *bypass;

    ngx_idempotency_canon_t        canon;
    ngx_array_t                   *ignore_fields;
    size_t                         normalize_buffer;

    /* if the other one, which may be NULL, doesn't tell it */
    ngx_msec_t                     window;
    ngx_http_idempotency_window_t  *window_value;
    ngx_msec_t                     content_window;
    ngx_uint_t                     similar;
    ngx_uint_t                     in_progress;
    ngx_msec_t                     wait_timeout;
    ngx_msec_t                     lease;
    ngx_uint_t                     in_doubt;
    ngx_uint_t                     unavailable;
    /* so many tokens for a value, by default the client's address; or 0 */
    ngx_uint_t                     quota;
    ngx_http_idempotency_value_t  *quota_value;
    /* of each status one of the above; NULL: the default of all of them */
    u_char                        *keep;
    /* as given, or the store's */
    size_t                         max_response_given;
    size_t                         max_response;
    /* the line that marks a replay; empty: none does */
    ngx_str_t                      replay_header;
    ngx_array_t                   *hide_headers;
    ngx_uint_t                     replay_cookies;

    ngx_uint_t                     status[NGX_HTTP_IDEMPOTENCY_REFUSALS];
    ngx_str_t                      docs;

    ngx_flag_t                     dry_run;
    ngx_uint_t                     log_level;
    /* in this worker: that it is its own upstream was logged */
    ngx_uint_t                     nested;

    /* it is idempotency_api, and changes what is asked for */
    ngx_uint_t                     api;
    ngx_uint_t                     api_write;
    /* ... or answers others than this machine; and the names of its server,
       without wildcards */
    ngx_uint_t                     api_remote;
    ngx_array_t                   *api_names;

    /* its number among all locations */
    ngx_uint_t                     place;
} ngx_http_idempotency_loc_conf_t;


typedef struct ngx_http_idempotency_origins_s  ngx_http_idempotency_origins_t;


/* how far a request has come; the steps between stand in request/gate.c */

typedef enum {
    /* by no location, or by another one before its decision */
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
    /* it owns its token; then the store was told of it, by which the token
       may be fresh again */
    NGX_HTTP_IDEMPOTENCY_STATE_OWNER,
    NGX_HTTP_IDEMPOTENCY_STATE_SETTLED,
    NGX_HTTP_IDEMPOTENCY_STATE_RELEASED
} ngx_http_idempotency_state_e;


/* in front of access control, be it by an error_page or not */

typedef struct {
    ngx_uint_t                         err_status;
    unsigned                           error_page:1;
    /* it was not let in yet; it was turned away */
    unsigned                           outside:1;
    unsigned                           turned_away:1;
} ngx_http_idempotency_door_t;


/* the request's body */

typedef struct {
    /* by which of its meanings it is digested, or NULL; so far; whole */
    const ngx_idempotency_kind_t      *kind;
    ngx_idempotency_digest_t           running;
    u_char                             digest[NGX_IDEMPOTENCY_DIGEST_LEN];

    /* what is looked for in it; NULL: it has no fields */
    ngx_idempotency_fields_t          *fields;
    /* what it is fed to as it arrives, if its kind can be, and that kind */
    void                              *stream;
    const ngx_idempotency_kind_t      *streamed;
    /* why a key could not be read from it */
    ngx_http_idempotency_unreadable_e  unreadable;

    /* it was asked for, and is not there yet; its digest is known; it is a
       form's, and the key is a field of it */
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
    /* what the store will answer later, or tell the change of, or did */
    ngx_idempotency_claim_t           *claim;

    unsigned                           waited:1;
    /* its client has no more to say */
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

    /* its header was seen, from an upstream at work; trailers may follow,
       those of gRPC must; its last byte was seen; it is larger than may be
       kept; a part of it comes past us; what the upstream says itself */
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
    /* those of the location, the upstream and the connection, behind ours */
    ngx_http_handler_pt                content_handler;
    ngx_http_event_handler_pt          write_event_handler;
    ngx_event_handler_pt               read_handler;

    /* while what is not kept is read on without it */
    ngx_event_t                        timer;

    /* among those whose clients have left; or it was one too many of them */
    ngx_queue_t                        queue;
    unsigned                           left:1;
    unsigned                           abandoned:1;

    /* nothing is sent to it any more */
    unsigned                           gone:1;
    /* since the claim a content handler was run, and not only what nginx does
       where a location has none: an upstream may have been asked */
    unsigned                           handled:1;
} ngx_http_idempotency_client_t;


/* the content, as it may have been seen with another key */

typedef struct {
    ngx_idempotency_claim_t            claim;
    /* how it is noted as seen with this one, or NULL; then by which fence */
    ngx_idempotency_complete_t        *note;
    uint64_t                           fence;
    unsigned                           seen:1;
} ngx_http_idempotency_similar_t;


typedef struct ngx_http_idempotency_report_s  ngx_http_idempotency_report_t;


/* what becomes of an owner's claim */

typedef struct {
    /* how the store is told, until it has answered */
    ngx_http_idempotency_report_t     *report;
    /* when it ends */
    ngx_msec_t                         ends;
    /* the store would not have it */
    unsigned                           refused:1;
} ngx_http_idempotency_settled_t;


/* the end of an owner's response, while a strict store has not answered */

typedef struct {
    ngx_event_t                        timer;
    /* what is held back, and where more of it goes */
    ngx_chain_t                       *out;
    ngx_chain_t                      **next;
    /* so much of the body is still to come, or -1 if nobody knows */
    off_t                              left;

    unsigned                           waiting:1;
    unsigned                           over:1;
    /* the last buffer is held back, or was */
    unsigned                           last:1;
    /* the header is held back, too; and nothing may follow it */
    unsigned                           header:1;
    unsigned                           bodyless:1;
} ngx_http_idempotency_hold_t;


typedef struct {
    ngx_http_request_t                *request;
    /* that of the location whose settings the request was prepared under */
    ngx_http_idempotency_loc_conf_t   *conf;

    ngx_str_t                          key;
    /* if the key tells: when it was made, in milliseconds since 1970 */
    uint64_t                           made;

    ngx_idempotency_claim_t            claim;
    /* it tells who asks, and not only one of many who share a credential */
    ngx_uint_t                         identified;
    /* when it was answered */
    ngx_msec_t                         answered;
    /* with idempotency_similar */
    ngx_http_idempotency_similar_t    *similar;

    ngx_http_idempotency_state_e       state;
    /* what the key says; what became of the request */
    ngx_http_idempotency_status_e      verdict;
    ngx_http_idempotency_status_e      status;
    /* in seconds, if the refusal's usual Retry-After is not the one */
    time_t                             retry_after;

    ngx_http_idempotency_door_t        door;
    ngx_http_idempotency_body_t        body;
    ngx_http_idempotency_wait_t        wait;
    ngx_http_idempotency_capture_t     capture;
    ngx_http_idempotency_client_t      client;
    ngx_http_idempotency_settled_t     settled;
    ngx_http_idempotency_hold_t        hold;

    /* in the metrics; and as one that met a pending claim */
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

/* it is a part of the operation of an owner, to which this nginx is upstream */

#define ngx_http_idempotency_nests(ctx)                                      \
    ((ctx) && (ctx)->status == NGX_HTTP_IDEMPOTENCY_STATUS_NESTED)

/* an owner's operation goes on until its response is whole */

#define ngx_http_idempotency_carried(ctx)                                    \
    ((ctx) && (ctx)->state >= NGX_HTTP_IDEMPOTENCY_STATE_OWNER               \
     && !(ctx)->capture.whole)


extern ngx_module_t  ngx_http_idempotency_module;
extern ngx_module_t  ngx_http_idempotency_filter_module;


ngx_uint_t ngx_http_idempotency_in_use(ngx_cycle_t *cycle);

/* request/door.c */

ngx_int_t ngx_http_idempotency_preaccess_handler(ngx_http_request_t *r);
ngx_int_t ngx_http_idempotency_admitted_handler(ngx_http_request_t *r);
ngx_uint_t ngx_http_idempotency_upgrade(ngx_http_request_t *r);

/* whether a request is one of those that its location protects */

static ngx_inline ngx_uint_t
ngx_http_idempotency_protects(ngx_http_request_t *r)
{
    ngx_http_idempotency_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    return conf->store
           && !conf->api
           && r == r->main
           && !r->post_action
           && (r->method & conf->methods)
           && (r->headers_in.upgrade == NULL
               || !ngx_http_idempotency_upgrade(r));
}

/* request/gate.c */

ngx_int_t ngx_http_idempotency_access_handler(ngx_http_request_t *r);
ngx_int_t ngx_http_idempotency_precontent_handler(ngx_http_request_t *r);

/* request/origin.c */

ngx_http_idempotency_origins_t *ngx_http_idempotency_origins(ngx_conf_t *cf);
ngx_int_t ngx_http_idempotency_origin_add(ngx_conf_t *cf,
    ngx_http_idempotency_origins_t *origins, ngx_uint_t parent,
    ngx_uint_t *index);
ngx_int_t ngx_http_idempotency_origin_init(ngx_conf_t *cf,
    ngx_http_idempotency_origins_t *origins);

/* request/key.c */

/* so far ahead of ours the clock may be that a key tells, in milliseconds */

#define NGX_HTTP_IDEMPOTENCY_KEY_AHEAD  60000

ngx_http_idempotency_status_e ngx_http_idempotency_key(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf, ngx_str_t *key, uint64_t *made);

ngx_http_idempotency_status_e ngx_http_idempotency_key_parse(
    ngx_http_request_t *r, ngx_http_idempotency_loc_conf_t *conf,
    ngx_str_t *key, uint64_t *made);
void ngx_http_idempotency_content(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *scope, u_char kind,
    u_char *token);

/* request/body.c */

ngx_int_t ngx_http_idempotency_read_body(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
ngx_int_t ngx_http_idempotency_digest_body(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
void ngx_http_idempotency_digest_arriving(ngx_http_request_t *r,
    ngx_chain_t *in);

typedef ngx_int_t (*ngx_http_idempotency_piece_pt)(void *data, u_char *p,
    size_t len);

ngx_int_t ngx_http_idempotency_each_piece(ngx_http_request_t *r, off_t limit,
    ngx_http_idempotency_piece_pt handler, void *data);
ngx_int_t ngx_http_idempotency_whole_body(ngx_http_request_t *r, size_t limit,
    ngx_str_t *body);

/* request/field.c */

ngx_int_t ngx_http_idempotency_init_fields(ngx_conf_t *cf);
ngx_uint_t ngx_http_idempotency_has_fields(ngx_conf_t *cf);
ngx_int_t ngx_http_idempotency_look_for_fields(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf, ngx_idempotency_fields_t **fields,
    ngx_str_t *boundary);
ngx_uint_t ngx_http_idempotency_field_unread(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_array_t *names);

ngx_int_t ngx_http_idempotency_field_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
ngx_uint_t ngx_http_idempotency_printable(ngx_str_t *s);
void ngx_http_idempotency_set_variable(ngx_http_variable_value_t *v,
    ngx_int_t rc, ngx_str_t *value);

/* request/bind.c */

ngx_int_t ngx_http_idempotency_bind(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
ngx_int_t ngx_http_idempotency_value(ngx_http_request_t *r,
    ngx_http_idempotency_value_t *value, ngx_str_t *text);
ngx_int_t ngx_http_idempotency_scope(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf, ngx_str_t *scope);
void ngx_http_idempotency_token(ngx_http_idempotency_loc_conf_t *conf,
    ngx_str_t *scope, ngx_str_t *key, u_char *token);
void ngx_http_idempotency_bind_settings(ngx_http_idempotency_loc_conf_t *conf);

#define NGX_HTTP_IDEMPOTENCY_REASON_LEN                                      \
    (sizeof("action,identity,body,settings") - 1)

ngx_str_t ngx_http_idempotency_reason(ngx_http_idempotency_ctx_t *ctx,
    u_char *text);

/* request/identity.c */

ngx_int_t ngx_http_idempotency_identity(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
ngx_uint_t ngx_http_idempotency_anonymous(ngx_http_idempotency_ctx_t *ctx);
ngx_uint_t ngx_http_idempotency_stranger(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *lines);

/* request/credential.c */

void ngx_http_idempotency_credentials_init(void);
ngx_uint_t ngx_http_idempotency_credential(u_char *name, size_t len,
    ngx_uint_t hash);

/* request/cookies.c */

ngx_uint_t ngx_http_idempotency_cookies(ngx_http_request_t *r,
    ngx_http_idempotency_ignored_t *ignored, ngx_idempotency_digest_t *d);
ngx_uint_t ngx_http_idempotency_cookies_set_by(ngx_http_request_t *r,
    ngx_http_idempotency_ignored_t *ignored, ngx_str_t *lines);
void ngx_http_idempotency_insert_pair(ngx_keyval_t *pairs, ngx_uint_t n,
    ngx_keyval_t *pair);
void ngx_http_idempotency_digest_pair(ngx_idempotency_digest_t *d, char *kind,
    ngx_keyval_t *pair);
ngx_http_idempotency_ignored_t *ngx_http_idempotency_ignored_create(
    ngx_conf_t *cf);
ngx_int_t ngx_http_idempotency_ignore_cookie(
    ngx_http_idempotency_ignored_t *ignored, ngx_str_t *name);
void ngx_http_idempotency_digest_ignored(ngx_idempotency_digest_t *d,
    ngx_http_idempotency_ignored_t *ignored);

/* request/terms.c */

ngx_int_t ngx_http_idempotency_terms(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
void ngx_http_idempotency_terms_whose(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
ngx_int_t ngx_http_idempotency_window(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf, ngx_msec_t *window);
ngx_msec_t ngx_http_idempotency_ends(ngx_http_idempotency_ctx_t *ctx);
uint64_t ngx_http_idempotency_wall_clock(void);

/* request/similar.c */

ngx_int_t ngx_http_idempotency_similar_bind(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *scope);
ngx_int_t ngx_http_idempotency_similar(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
ngx_int_t ngx_http_idempotency_similar_answer(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
void ngx_http_idempotency_unlike(ngx_http_idempotency_ctx_t *ctx);

/* request/wait.c */

ngx_int_t ngx_http_idempotency_ask(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_idempotency_claim_t *claim);
ngx_int_t ngx_http_idempotency_wait(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
void ngx_http_idempotency_wait_end(ngx_http_idempotency_ctx_t *ctx);
void ngx_http_idempotency_wait_cancel(ngx_http_idempotency_ctx_t *ctx);

/* request/owner.c */

ngx_http_idempotency_ctx_t *ngx_http_idempotency_get_ctx(
    ngx_http_request_t *r);
ngx_http_idempotency_ctx_t *ngx_http_idempotency_create_ctx(
    ngx_http_request_t *r);
ngx_int_t ngx_http_idempotency_prepare(ngx_http_idempotency_ctx_t *ctx);
void ngx_http_idempotency_settle(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
void ngx_http_idempotency_give_up(ngx_http_idempotency_ctx_t *ctx);

/* request/hold.c */

/* in the connection's, behind the bits that nginx has there */

#define NGX_HTTP_IDEMPOTENCY_BUFFERED  0x40

ngx_uint_t ngx_http_idempotency_hold_header(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
ngx_uint_t ngx_http_idempotency_hold_header_over(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
ngx_int_t ngx_http_idempotency_hold_body(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_chain_t **in);
ngx_int_t ngx_http_idempotency_hold_told(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_int_t rc);
void ngx_http_idempotency_hold_end(ngx_http_idempotency_ctx_t *ctx);
void ngx_http_idempotency_hold_cancel(ngx_http_idempotency_ctx_t *ctx);

/* request/outcome.c */

/* the token is fresh again; and those who wait get the response */

#define NGX_HTTP_IDEMPOTENCY_RELEASE  NGX_DECLINED
#define NGX_HTTP_IDEMPOTENCY_LEAVE    NGX_DONE

ngx_int_t ngx_http_idempotency_outcome(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);

/* request/capture.c */

void ngx_http_idempotency_hear(ngx_list_t *headers,
    ngx_http_idempotency_ctx_t *ctx);
void ngx_http_idempotency_hear_trailers(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_chain_t *in);
void ngx_http_idempotency_capture_header(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
void ngx_http_idempotency_capture_body(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_chain_t *in);

/* request/subrequest.c */

void ngx_http_idempotency_subrequests(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_uint_t below);
void ngx_http_idempotency_subrequest_output(ngx_http_request_t *sr,
    ngx_http_idempotency_ctx_t *ctx, ngx_chain_t *in);

/* request/client.c */

void ngx_http_idempotency_warn_upstreams(ngx_conf_t *cf,
    ngx_array_t *locations);
void ngx_http_idempotency_carry(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
void ngx_http_idempotency_not_kept(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
ngx_uint_t ngx_http_idempotency_client_gone(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_int_t rc);
void ngx_http_idempotency_swallow(ngx_chain_t *in);
void ngx_http_idempotency_watch_client(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
void ngx_http_idempotency_client_end(ngx_http_idempotency_ctx_t *ctx);

/* request/peer.c */

ngx_int_t ngx_http_idempotency_init_peers(ngx_conf_t *cf);
ngx_int_t ngx_http_idempotency_send_once(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
ngx_uint_t ngx_http_idempotency_nested(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);

/* request/replay.c */

ngx_int_t ngx_http_idempotency_replay(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);

/* request/refuse.c */

ngx_int_t ngx_http_idempotency_refuse(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_http_idempotency_status_e why);
ngx_uint_t ngx_http_idempotency_refuses(ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_status_e why);
ngx_uint_t ngx_http_idempotency_refused(ngx_http_idempotency_ctx_t *ctx);

/* request/accept.c */

ngx_uint_t ngx_http_idempotency_prefers_html(ngx_http_request_t *r);
ngx_uint_t ngx_http_idempotency_accepts_html(ngx_http_request_t *r);


/* guard/guard.c */

char *ngx_http_idempotency_guard(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

/* observe/count.c */

void ngx_http_idempotency_count(ngx_http_idempotency_ctx_t *ctx);
void ngx_http_idempotency_count_end(ngx_http_idempotency_ctx_t *ctx);
void ngx_http_idempotency_count_race(ngx_http_idempotency_ctx_t *ctx);

/* observe/api.c */

ngx_int_t ngx_http_idempotency_api_merge(ngx_conf_t *cf,
    ngx_http_idempotency_loc_conf_t *conf);
char *ngx_http_idempotency_api(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

/* observe/log.c */

void ngx_http_idempotency_log_refusal(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_uint_t status, ngx_uint_t refuses);
void ngx_http_idempotency_log_replay(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
void ngx_http_idempotency_log_similar(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
void ngx_http_idempotency_log_nested(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
void ngx_http_idempotency_log_claim(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
void ngx_http_idempotency_log_outcome(ngx_log_t *log, ngx_uint_t level,
    ngx_idempotency_store_t *store, ngx_idempotency_op_t *op, uint64_t fence,
    ngx_int_t outcome, ngx_uint_t doubt, ngx_uint_t status);
ngx_uint_t ngx_http_idempotency_log_trail(
    ngx_http_idempotency_loc_conf_t *conf);
ngx_uint_t ngx_http_idempotency_log_admits(ngx_log_t *log, ngx_uint_t level,
    ngx_http_idempotency_status_e kind);
void ngx_http_idempotency_log_rest(void);

/* observe/variables.c */

ngx_int_t ngx_http_idempotency_add_variables(ngx_conf_t *cf);
ngx_uint_t ngx_http_idempotency_is_own(ngx_str_t *name);


#endif /* _NGX_HTTP_IDEMPOTENCY_H_INCLUDED_ */
