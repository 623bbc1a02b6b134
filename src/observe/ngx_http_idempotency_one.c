
/*
 * One record, named by its key: what it is, that it is forgotten, or how what
 * is in doubt came out.  The latter is a claim that takes it over and settles
 * it: so whoever else would do that, meanwhile or before, comes to nothing.
 */


#include "ngx_http_idempotency_observe.h"
#include "request/ngx_http_idempotency_response.h"


/* a claim that waits is made again */

#define NGX_HTTP_IDEMPOTENCY_ONE_AGAIN  500

/* the longest body, a word with some space around it */

#define NGX_HTTP_IDEMPOTENCY_ONE_BODY   64


typedef enum {
    one_finds = 0,
    one_forgets,
    one_claims,
    one_completes,
    one_releases
} one_stage_e;


typedef struct {
    one_stage_e                     stage;
    ngx_uint_t                      asked;
    u_char                          token[NGX_IDEMPOTENCY_DIGEST_LEN];

    /* PUT: it is done, and not released; with this status */
    ngx_uint_t                      settles;
    ngx_uint_t                      done;
    ngx_uint_t                      status;
    /* the location's */
    ngx_msec_t                      window;
    ngx_msec_t                      lease;

    /* what came of it, if it isn't what was asked for */
    ngx_int_t                       why;

    ngx_idempotency_find_t          find;
    ngx_idempotency_forget_t        forget;
    ngx_idempotency_claim_t         claim;
    ngx_idempotency_complete_t      complete;
    ngx_idempotency_release_t       release;
} one_t;


static void one_body(ngx_http_request_t *r);
static ngx_int_t one_outcome(ngx_http_request_t *r, one_t *one);
static ngx_int_t one_step(ngx_http_idempotency_asking_t *asking);
static ngx_int_t one_ask(ngx_http_idempotency_asking_t *asking, one_t *one);
static ngx_idempotency_op_t *one_op(one_t *one);
static ngx_uint_t one_answered(one_t *one);
static ngx_uint_t one_found(one_t *one);
static ngx_uint_t one_claimed(one_t *one);
static ngx_int_t one_respond(ngx_http_idempotency_asking_t *asking);


ngx_int_t
ngx_http_idempotency_one(ngx_http_request_t *r,
    ngx_idempotency_store_t *store, u_char *token)
{
    one_t                            *one;
    ngx_int_t                         rc;
    ngx_http_idempotency_asking_t    *asking;
    ngx_http_idempotency_loc_conf_t  *conf;

    asking = ngx_http_idempotency_asking_create(r, store, sizeof(one_t));
    if (asking == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    one = asking->data;

    if (ngx_http_idempotency_window(r, conf, &one->window) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    asking->step = one_step;
    asking->respond = one_respond;

    ngx_memcpy(one->token, token, NGX_IDEMPOTENCY_DIGEST_LEN);

    one->why = -1;
    one->lease = conf->lease;
    one->stage = (r->method == NGX_HTTP_DELETE) ? one_forgets : one_finds;

    if (r->method != NGX_HTTP_PUT) {
        return ngx_http_idempotency_asking_begin(asking);
    }

    one->settles = 1;

    ngx_http_set_ctx(r, asking, ngx_http_idempotency_filter_module);

    r->request_body_in_single_buf = 1;

    rc = ngx_http_read_client_request_body(r, one_body);

    return (rc >= NGX_HTTP_SPECIAL_RESPONSE) ? rc : NGX_DONE;
}


static void
one_body(ngx_http_request_t *r)
{
    one_t                          *one;
    ngx_int_t                       rc;
    ngx_http_idempotency_asking_t  *asking;

    asking = ngx_http_get_module_ctx(r, ngx_http_idempotency_filter_module);
    one = asking->data;

    rc = one_outcome(r, one);

    if (rc == NGX_OK) {
        ngx_http_idempotency_asking_run(asking);
        return;
    }

    ngx_http_idempotency_asking_end(asking);

    if (rc == NGX_DECLINED) {
        rc = ngx_http_idempotency_api_refuse(r,
                                        NGX_HTTP_IDEMPOTENCY_API_BAD_OUTCOME);
    }

    ngx_http_finalize_request(r, rc);
}


/* "done" or "released", as an argument or as the body; NGX_DECLINED: neither */

static ngx_int_t
one_outcome(ngx_http_request_t *r, one_t *one)
{
    ngx_int_t  n;
    ngx_str_t  word, value;

    if (ngx_http_arg(r, (u_char *) "outcome", 7, &word) != NGX_OK) {

        n = ngx_http_idempotency_whole_body(r, NGX_HTTP_IDEMPOTENCY_ONE_BODY,
                                            &word);
        if (n == NGX_ERROR) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        if (n != NGX_OK) {
            return NGX_DECLINED;
        }
    }

    while (word.len && word.data[word.len - 1] <= ' ') {
        word.len--;
    }

    while (word.len && word.data[0] <= ' ') {
        word.data++;
        word.len--;
    }

    one->status = NGX_HTTP_OK;

    if (ngx_http_arg(r, (u_char *) "status", 6, &value) == NGX_OK) {

        n = ngx_atoi(value.data, value.len);

        if (n < 200 || n > 599) {
            return NGX_DECLINED;
        }

        one->status = n;
    }

    one->done = (word.len == 4 && ngx_strncmp(word.data, "done", 4) == 0);

    if (one->done
        || (word.len == 8 && ngx_strncmp(word.data, "released", 8) == 0))
    {
        return NGX_OK;
    }

    return NGX_DECLINED;
}


static ngx_int_t
one_step(ngx_http_idempotency_asking_t *asking)
{
    one_t      *one;
    ngx_int_t   rc;

    one = asking->data;

    for ( ;; ) {

        if (one->asked) {
            one->asked = 0;

            if (one_answered(one)) {
                return NGX_OK;
            }
        }

        one->asked = 1;

        ngx_memcpy(one_op(one)->token, one->token,
                   NGX_IDEMPOTENCY_DIGEST_LEN);
        ngx_http_idempotency_asking_op(asking, one_op(one));

        rc = ngx_http_idempotency_asking_asked(asking, one_op(one),
                                        one_ask(asking, one),
                                        one->stage == one_claims
                                            ? NGX_HTTP_IDEMPOTENCY_ONE_AGAIN
                                            : 0);
        if (rc == NGX_AGAIN) {
            return NGX_AGAIN;
        }
    }
}


static ngx_int_t
one_ask(ngx_http_idempotency_asking_t *asking, one_t *one)
{
    ngx_idempotency_store_t         *store;
    const ngx_idempotency_engine_t  *engine;

    store = asking->store;
    engine = store->engine;

    switch (one->stage) {

    case one_finds:
        return engine->find(store, &one->find);

    case one_forgets:
        return engine->forget(store, &one->forget);

    case one_claims:
        one->claim.pool = asking->pool;
        return engine->claim(store, &one->claim);

    case one_completes:
        return engine->complete(store, &one->complete);

    default: /* one_releases */
        return engine->release(store, &one->release);
    }
}


static ngx_idempotency_op_t *
one_op(one_t *one)
{
    switch (one->stage) {

    case one_finds:
        return &one->find.op;

    case one_forgets:
        return &one->forget.op;

    case one_claims:
        return &one->claim.op;

    case one_completes:
        return &one->complete.op;

    default: /* one_releases */
        return &one->release.op;
    }
}


/* true: it is over, and one->why says why it came to nothing */

static ngx_uint_t
one_answered(one_t *one)
{
    switch (one_op(one)->result) {

    case NGX_IDEMPOTENCY_OK:
    case NGX_IDEMPOTENCY_TRIMMED:
        return 1;

    case NGX_IDEMPOTENCY_BOUND:
        if (one->stage == one_finds) {
            return one_found(one);
        }

        one->why = NGX_HTTP_IDEMPOTENCY_API_NOT_IN_DOUBT;
        return 1;

    case NGX_IDEMPOTENCY_CLAIMED:
        return one_claimed(one);

    case NGX_IDEMPOTENCY_CHANGED:
        return 0;

    case NGX_IDEMPOTENCY_CONFLICT:
    case NGX_IDEMPOTENCY_VERSION:
    case NGX_IDEMPOTENCY_EXPIRED:
    case NGX_IDEMPOTENCY_STALE:
        one->why = NGX_HTTP_IDEMPOTENCY_API_NOT_IN_DOUBT;
        return 1;

    case NGX_IDEMPOTENCY_ABSENT:
        one->why = NGX_HTTP_IDEMPOTENCY_API_NO_RECORD;
        return 1;

    default: /* NGX_IDEMPOTENCY_UNAVAILABLE */
        one->why = NGX_HTTP_IDEMPOTENCY_API_UNAVAILABLE;
        return 1;
    }
}


/* what is to be settled is claimed as what it was; not if it has ended since,
   and never for less than what was left of its time */

static ngx_uint_t
one_found(one_t *one)
{
    ngx_idempotency_find_t   *find;
    ngx_idempotency_claim_t  *claim;

    find = &one->find;
    claim = &one->claim;

    if (!one->settles) {
        return 1;
    }

    if (find->found.outcome != NGX_IDEMPOTENCY_IN_DOUBT) {
        one->why = NGX_HTTP_IDEMPOTENCY_API_NOT_IN_DOUBT;
        return 1;
    }

    ngx_memcpy(claim->fingerprint, find->fingerprint,
               NGX_IDEMPOTENCY_DIGEST_LEN);
    claim->parts = find->parts;
    claim->window = one->window;
    claim->least = find->found.left;
    claim->lease = one->lease;
    claim->retry = 1;
    claim->old = 1;

    one->stage = one_claims;

    return 0;
}


static ngx_uint_t
one_claimed(one_t *one)
{
    if (one->done) {
        one->complete.fence = one->claim.fence;
        one->complete.outcome = NGX_IDEMPOTENCY_NOT_KEPT;
        one->complete.status = one->status;

        one->stage = one_completes;

    } else {
        one->release.fence = one->claim.fence;
        one->release.settled = 1;

        one->stage = one_releases;
    }

    return 0;
}


static ngx_int_t
one_respond(ngx_http_idempotency_asking_t *asking)
{
    one_t                        *one;
    u_char                       *last;
    uint64_t                      number;
    u_char                        fence[sizeof(", fence: ") + NGX_INT64_LEN];
    ngx_http_request_t           *r;
    ngx_http_idempotency_text_t   text;

    one = asking->data;
    r = asking->request;

    if (one->why != -1) {
        return ngx_http_idempotency_api_refuse(r, one->why);
    }

    if (one->stage != one_finds) {

        /* settled: by a claim of its own */

        number = (one->stage == one_forgets) ? one->forget.was
                                             : one->claim.fence;

        last = number ? ngx_sprintf(fence, ", fence: %uL", number) : fence;

        ngx_log_error(NGX_LOG_NOTICE, r->connection->log, 0,
                      "idempotency: a token was %s by hand, token: %*xs, "
                      "zone: \"%V\"%*s",
                      (one->stage == one_forgets) ? "forgotten"
                      : (one->stage == one_completes) ? "settled as done"
                      : "released",
                      (size_t) NGX_IDEMPOTENCY_DIGEST_LEN, one->token,
                      &asking->store->name, (size_t) (last - fence), fence);

        return ngx_http_idempotency_api_done(r);
    }

    ngx_http_idempotency_text_init(&text, r->pool);

    ngx_http_idempotency_records_row(&text, one->token, one->find.fingerprint,
                                     &one->find.found);

    return ngx_http_idempotency_api_send(r, &text, "application/json");
}
