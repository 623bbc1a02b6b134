
/*
 * Functions of one file of request/ that other files call.
 */


#ifndef _NGX_HTTP_IDEMPOTENCY_REQUEST_H_INCLUDED_
#define _NGX_HTTP_IDEMPOTENCY_REQUEST_H_INCLUDED_


/* access.c */

ngx_int_t ngx_http_idempotency_add_handlers(ngx_conf_t *cf, ngx_uint_t first);

void ngx_http_idempotency_settle(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
ngx_int_t ngx_http_idempotency_window(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf, ngx_msec_t *window);
ngx_msec_t ngx_http_idempotency_ends(ngx_http_idempotency_ctx_t *ctx);
void ngx_http_idempotency_quota_value(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);

/* body.c */

/* a client's clock may be ahead by so many milliseconds */

#define NGX_HTTP_IDEMPOTENCY_KEY_AHEAD  60000

ngx_http_idempotency_status_e ngx_http_idempotency_key(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
ngx_http_idempotency_status_e ngx_http_idempotency_key_parse(
    ngx_http_request_t *r, ngx_http_idempotency_loc_conf_t *conf,
    ngx_str_t *key, uint64_t *made);
ngx_int_t ngx_http_idempotency_value(ngx_http_request_t *r,
    ngx_http_idempotency_value_t *value, ngx_str_t *text);
ngx_int_t ngx_http_idempotency_string(ngx_http_request_t *r,
    ngx_http_complex_value_t *cv, ngx_str_t *text);
uint64_t ngx_http_idempotency_wall_clock(void);

ngx_uint_t ngx_http_idempotency_dav_methods(ngx_http_request_t *r);

ngx_int_t ngx_http_idempotency_read_body(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
ngx_int_t ngx_http_idempotency_digest_body(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
void ngx_http_idempotency_digest_arriving(ngx_http_request_t *r,
    ngx_chain_t *in);
ngx_int_t ngx_http_idempotency_whole_body(ngx_http_request_t *r, size_t limit,
    ngx_str_t *body);

#define NGX_HTTP_IDEMPOTENCY_FIELD  "idempotency_field_"
#define NGX_HTTP_IDEMPOTENCY_FIELD_LEN                                       \
    (sizeof(NGX_HTTP_IDEMPOTENCY_FIELD) - 1)

ngx_int_t ngx_http_idempotency_field(ngx_http_request_t *r, ngx_str_t *name,
    ngx_str_t *value);

/* fingerprint.c */

ngx_int_t ngx_http_idempotency_digest_request(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
void ngx_http_idempotency_digest_settings(
    ngx_http_idempotency_loc_conf_t *conf);

/* scope: NULL for that of the location */

ngx_int_t ngx_http_idempotency_token(ngx_http_request_t *r,
    ngx_http_idempotency_loc_conf_t *conf, ngx_str_t *scope, ngx_str_t *key,
    u_char *token);

/* NGX_DECLINED: the request has no identity */

ngx_int_t ngx_http_idempotency_identity(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
ngx_uint_t ngx_http_idempotency_stranger(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *lines);

void ngx_http_idempotency_credentials_init(void);
ngx_uint_t ngx_http_idempotency_credential(u_char *name, size_t len,
    ngx_uint_t hash);

/* Adds a name, unless it is NULL, to the list, which begins with the built-in
   names.  NGX_DECLINED: no cookie has such a name, or it has several stars. */

ngx_int_t ngx_http_idempotency_ignore_cookie(ngx_conf_t *cf,
    ngx_http_idempotency_ignored_t **ignored, ngx_str_t *name);

/* capture.c */

/* outcomes beside those of records: RELEASE makes the token fresh again; LEAVE
   does so, too, and requests that wait get the response */

#define NGX_HTTP_IDEMPOTENCY_RELEASE  NGX_DECLINED
#define NGX_HTTP_IDEMPOTENCY_LEAVE    NGX_DONE

ngx_int_t ngx_http_idempotency_outcome(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
void ngx_http_idempotency_sent_on(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
void ngx_http_idempotency_postpone_end(ngx_http_idempotency_ctx_t *ctx);
void ngx_http_idempotency_postpone_cancel(ngx_http_idempotency_ctx_t *ctx);

/* upstream.c */

void ngx_http_idempotency_carry(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
void ngx_http_idempotency_not_kept(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
ngx_uint_t ngx_http_idempotency_client_gone(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_int_t rc);
void ngx_http_idempotency_watch_client(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);
void ngx_http_idempotency_client_end(ngx_http_idempotency_ctx_t *ctx);

ngx_int_t ngx_http_idempotency_init_peers(ngx_conf_t *cf);
ngx_uint_t ngx_http_idempotency_nested(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);

/* answer.c */

ngx_int_t ngx_http_idempotency_location_add(ngx_conf_t *cf, ngx_uint_t parent,
    ngx_uint_t *index);
void ngx_http_idempotency_location_init(ngx_conf_t *cf);

/* NGX_DONE: the request is finalized; NGX_OK: this is a dry run; NGX_DECLINED:
   the response belongs to another client */

ngx_int_t ngx_http_idempotency_replay(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx);

ngx_int_t ngx_http_idempotency_refuse(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_http_idempotency_status_e why);
ngx_uint_t ngx_http_idempotency_refuses(ngx_http_idempotency_ctx_t *ctx,
    ngx_http_idempotency_status_e why);

/* the parts of a problem document */

typedef struct {
    ngx_str_t                     *docs;
    ngx_str_t                     *name;
    ngx_str_t                     *title;
    ngx_str_t                      detail;
    ngx_uint_t                     status;
    ngx_uint_t                     retryable;
} ngx_http_idempotency_problem_t;

ngx_int_t ngx_http_idempotency_refusal_detail(ngx_http_request_t *r,
    ngx_http_idempotency_ctx_t *ctx, ngx_str_t *detail);

ngx_int_t ngx_http_idempotency_problem_document(ngx_http_request_t *r,
    ngx_http_idempotency_problem_t *problem, ngx_str_t *body);

u_char *ngx_http_idempotency_problem_uri(u_char *p, ngx_str_t *uri);


#endif /* _NGX_HTTP_IDEMPOTENCY_REQUEST_H_INCLUDED_ */
