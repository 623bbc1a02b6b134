
/*
 * The configuration: a location's settings, the facts about all locations, and
 * the directives' setters, which ngx_http_idempotency_module.c lists in its
 * table.
 */


#ifndef _NGX_HTTP_IDEMPOTENCY_CONF_H_INCLUDED_
#define _NGX_HTTP_IDEMPOTENCY_CONF_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

#include "digest/ngx_idempotency_kinds.h"
#include "store/ngx_idempotency_store.h"
#include "store/ngx_idempotency_secret.h"
#include "store/redis/ngx_idempotency_redis.h"


/* the release; t/packaging.t compares it with the packages */

#define NGX_HTTP_IDEMPOTENCY_VERSION  "1.0.0-rc1"


/* values of $idempotency_status, and refusals */

typedef enum {
    NGX_HTTP_IDEMPOTENCY_STATUS_NONE = 0,

    /* refusals come first: an array has a status code for each */
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

#define NGX_HTTP_IDEMPOTENCY_STATUSES                                        \
    (NGX_HTTP_IDEMPOTENCY_STATUS_BYPASS + 1)


/* why a key could not be read from the body */

typedef enum {
    NGX_HTTP_IDEMPOTENCY_BODY_READABLE = 0,
    NGX_HTTP_IDEMPOTENCY_BODY_TOO_LARGE,
    NGX_HTTP_IDEMPOTENCY_BODY_UNREADABLE
} ngx_http_idempotency_unreadable_e;


/*
 * A status: its name in metrics (and in idempotency_status, if it is a
 * refusal), its name in $idempotency_status with the suffix of a dry run, and
 * the default status code of a refusal.
 */

typedef struct {
    ngx_str_t                      name;
    ngx_str_t                      label;
    ngx_uint_t                     code;
} ngx_http_idempotency_status_t;

#define NGX_HTTP_IDEMPOTENCY_LABEL_SUFFIX  (sizeof("_DRY_RUN") - 1)

extern ngx_http_idempotency_status_t
    ngx_http_idempotency_statuses[NGX_HTTP_IDEMPOTENCY_STATUSES];


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

/* A response's status binds no token, binds the token, or binds it by the
   default's conditions. */

#define NGX_HTTP_IDEMPOTENCY_KEEP_NO           0
#define NGX_HTTP_IDEMPOTENCY_KEEP_YES          1
#define NGX_HTTP_IDEMPOTENCY_KEEP_DEFAULT      2

#define NGX_HTTP_IDEMPOTENCY_CODES             1000


typedef struct ngx_http_idempotency_ignored_s  ngx_http_idempotency_ignored_t;


/* where a directive stands, and whether its warning was logged */

typedef struct {
    ngx_str_t                      file;
    ngx_uint_t                     line;
    ngx_uint_t                     warned;
} ngx_http_idempotency_line_t;


/* a string with variables, or without */

typedef struct {
    ngx_http_complex_value_t       script;
    /* the length of the constant text; a value of just that length is empty */
    size_t                         constant;
    /* all of its variables are cookies */
    ngx_uint_t                     of_cookies;
    ngx_http_idempotency_line_t    line;
} ngx_http_idempotency_value_t;


typedef struct {
    ngx_http_idempotency_value_t   value;
    /* ngx_str_t: names of the request headers in the key */
    ngx_array_t                    headers;
    /* ngx_str_t: names of the body's fields in the key */
    ngx_array_t                    fields;
    /* the key has variables that may be made of such fields, as a map's */
    ngx_uint_t                     indirect;
    /* the key is $http_idempotency_key, which a browser may have made */
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
    /* a uuid7 key of this age is too old; unset: the window */
    ngx_msec_t                     key_max_age;
    ngx_http_complex_value_t      *scope;
    ngx_http_idempotency_value_t  *identity;
    ngx_http_idempotency_ignored_t  *ignore_cookies;
    /* ngx_http_complex_value_t */
    ngx_array_t                   *bind;
    /* the key of idempotency_secret, or NULL */
    ngx_idempotency_digest_key_t  *digest_key;
    /* a digest of all settings that fingerprints depend on */
    u_char                         settings[NGX_IDEMPOTENCY_SETTINGS_LEN];
    ngx_array_t                   *bypass;

    ngx_idempotency_canon_t        canon;
    ngx_array_t                   *ignore_fields;
    size_t                         normalize_buffer;

    /* the window, where window_value is not set or has no time */
    ngx_msec_t                     window;
    ngx_http_idempotency_value_t  *window_value;
    ngx_msec_t                     content_window;
    ngx_uint_t                     similar;
    ngx_uint_t                     in_progress;
    ngx_msec_t                     wait_timeout;
    ngx_msec_t                     lease;
    ngx_uint_t                     in_doubt;
    ngx_uint_t                     unavailable;
    /* the most tokens for one value, by default the client's address; or 0 */
    ngx_uint_t                     quota;
    ngx_http_idempotency_value_t  *quota_value;
    /* one of KEEP_... for each status code; NULL: all are KEEP_DEFAULT */
    u_char                        *keep;
    /* the directive's value; the value in use, which may be the store's */
    size_t                         max_response_given;
    size_t                         max_response;
    /* the header line that marks a replay; empty: none */
    ngx_str_t                      replay_header;
    ngx_array_t                   *hide_headers;
    ngx_uint_t                     replay_cookies;

    ngx_uint_t                     status[NGX_HTTP_IDEMPOTENCY_REFUSALS];
    ngx_str_t                      docs;

    ngx_flag_t                     dry_run;
    ngx_uint_t                     log_level;
    /* this worker has logged that nginx is its own upstream here */
    ngx_uint_t                     nested;

    /* the location is an idempotency_api, and may change records */
    ngx_uint_t                     api;
    ngx_uint_t                     api_write;
    /* the API answers other machines, too; the server's names without
       wildcards */
    ngx_uint_t                     api_remote;
    ngx_array_t                   *api_names;

    /* the location's index in location_entries */
    ngx_uint_t                     location;
} ngx_http_idempotency_loc_conf_t;


/* a zone's name is part of each line of its metrics */

#define NGX_HTTP_IDEMPOTENCY_ZONE_NAME  255

/* a store, the directive that names it first, and its SQLite file */

typedef struct {
    ngx_idempotency_store_t        store;
    ngx_http_idempotency_line_t    line;
    ngx_str_t                      state;
} ngx_http_idempotency_store_t;


typedef struct {
    /* some location is protected, or is an API with zones to show */
    ngx_uint_t                     in_use;
    /* some location is an idempotency_api */
    ngx_uint_t                     api;
    /* void **: the loc_conf of each protected location */
    ngx_array_t                    locations;
    /* all upstreams, with the balancer's own init function */
    ngx_array_t                    upstreams;
    /* ngx_http_idempotency_store_t *: all stores that directives name */
    ngx_array_t                    stores;
    /* the keys of idempotency_secret, for all stores */
    ngx_idempotency_secret_t       secret;
    /* ngx_idempotency_redis_t *: all blocks that directives name */
    ngx_array_t                    redis;
    /* all locations, by their index */
    ngx_array_t                    location_entries;
    /* ngx_str_t: each NAME of $idempotency_field_NAME */
    ngx_array_t                    fields;
    /* defaults of idempotency_key and idempotency_ignore_cookies */
    ngx_array_t                   *keys;
    ngx_http_idempotency_ignored_t  *ignore_cookies;
    /* nginx modules, or NULL where nginx was built without them */
    ngx_module_t                  *dav;
    ngx_module_t                  *slice;
} ngx_http_idempotency_main_conf_t;


extern ngx_module_t  ngx_http_idempotency_module;
extern ngx_module_t  ngx_http_idempotency_filter_module;


static ngx_inline ngx_uint_t
ngx_http_idempotency_in_use(ngx_cycle_t *cycle)
{
    ngx_http_idempotency_main_conf_t  *imcf;

    imcf = ngx_http_cycle_get_module_main_conf(cycle,
                                               ngx_http_idempotency_module);

    return imcf && imcf->in_use;
}


/* notes where the directive stands that is being read */

static ngx_inline void
ngx_http_idempotency_set_line(ngx_conf_t *cf,
    ngx_http_idempotency_line_t *line)
{
    line->file = cf->conf_file->file.name;
    line->line = cf->conf_file->line;
}


/* conf_store.c */

char *ngx_http_idempotency_set(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idempotency_set_zone(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idempotency_set_secret(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_idempotency_redis_block(ngx_conf_t *cf, ngx_command_t *cmd,
    void *dummy);
ngx_int_t ngx_http_idempotency_check_stores(ngx_conf_t *cf);

/* module.c */

char *ngx_http_idempotency_check_time(ngx_conf_t *cf, void *post, void *data);


#endif /* _NGX_HTTP_IDEMPOTENCY_CONF_H_INCLUDED_ */
