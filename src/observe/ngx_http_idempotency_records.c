
/*
 * Records, as idempotency_api tells them: all of a store, one by its key, and
 * that of a client's own key.
 *
 * Each of these is a query: steps, each of which the store may answer later.
 * The request may go meanwhile; what was begun is then done all the same, as
 * half of it may be worse.  All records are a line of JSON each, in pages: a
 * page is gathered some records at a time, and others have their turn in
 * between; it is sent once it is known where the next one begins.
 *
 * One record, named by its key: what it is, that it is forgotten, or how what
 * is in doubt came out.  The latter is a claim that takes it over and settles
 * it: so whoever else would do that, meanwhile or before, comes to nothing.
 *
 * A client that lost its answer asks for its own key instead of sending all of
 * it once more.  Whoever is not known, or is not who has bound the key, learns
 * nothing.
 */


#include "ngx_http_idempotency_observe.h"
#include "request/ngx_http_idempotency_refuse.h"
#include "store/ngx_idempotency_tier.h"
#include "request/ngx_http_idempotency_response.h"


/*
 * A query: what is asked of a store for a request, which may be answered
 * later.  It has memory of its own, as it goes on when the request is gone.
 */

typedef struct query_s  query_t;

/* NGX_AGAIN: there will be an answer, and another step; NGX_OK: it is over */

typedef ngx_int_t (*query_step_pt)(query_t *query);

struct query_s {
    ngx_pool_t                     *pool;
    /* NULL: it is gone */
    ngx_http_request_t             *request;
    ngx_http_cleanup_t             *cleanup;
    ngx_idempotency_store_t        *store;
    void                           *data;

    query_step_pt                   step;
    /* once it is over, if the request is there: what is sent */
    ngx_int_t                     (*respond)(query_t *query);

    /* what is waited for, and asked again if no answer comes; or, NULL, it
       goes on after others had their turn */
    ngx_idempotency_op_t           *op;
    ngx_event_t                     event;
    /* there will be another step */
    ngx_uint_t                      later;
};


/* between two steps, in milliseconds */

#define NGX_HTTP_IDEMPOTENCY_QUERY_PAUSE  1


/* of a page, by default and at most */

#define NGX_HTTP_IDEMPOTENCY_RECORDS_LIMIT  1000
#define NGX_HTTP_IDEMPOTENCY_RECORDS_MOST   10000

/* asked for at once, of this machine's memory, and of what stands behind; and
   how often, if little is found */

#define NGX_HTTP_IDEMPOTENCY_RECORDS_STEP   16
#define NGX_HTTP_IDEMPOTENCY_RECORDS_FAR    NGX_IDEMPOTENCY_TIER_BATCH
#define NGX_HTTP_IDEMPOTENCY_RECORDS_TRIES  16

typedef struct {
    ngx_idempotency_list_t          list;
    ngx_idempotency_listed_t        listed[NGX_HTTP_IDEMPOTENCY_RECORDS_FAR];
    /* it was asked */
    ngx_uint_t                      asked;
    ngx_uint_t                      limit;
    ngx_uint_t                      n;
    ngx_http_idempotency_text_t     text;
} records_t;


/* a claim that waits is made again */

#define NGX_HTTP_IDEMPOTENCY_RECORD_AGAIN  500

/* the longest body, a word with some space around it */

#define NGX_HTTP_IDEMPOTENCY_RECORD_BODY   64

typedef enum {
    record_finds = 0,
    record_forgets,
    record_claims,
    record_completes,
    record_releases
} record_stage_e;

typedef struct {
    record_stage_e                  stage;
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
} record_t;


typedef struct {
    ngx_idempotency_find_t          find;
    ngx_uint_t                      asked;
} outcome_t;


static void query_answered(ngx_idempotency_op_t *op);
static void query_event(ngx_event_t *ev);
static ngx_int_t query_step(query_t *query);
static void query_gone(void *data);
static ngx_int_t records_arguments(ngx_http_request_t *r, records_t *records);
static ngx_int_t records_tier(ngx_http_request_t *r,
    ngx_idempotency_store_t *store, ngx_idempotency_list_t *list);
static ngx_int_t records_cursor(ngx_http_request_t *r,
    ngx_idempotency_list_t *list);
static ngx_int_t records_step(query_t *query);
static void records_take(records_t *records);
static ngx_int_t records_respond(query_t *query);
static ngx_int_t records_link(ngx_http_request_t *r, records_t *records);
static void record_body(ngx_http_request_t *r);
static ngx_int_t record_outcome(ngx_http_request_t *r, record_t *one);
static ngx_int_t record_step(query_t *query);
static ngx_int_t record_ask(query_t *query, record_t *one);
static ngx_idempotency_op_t *record_op(record_t *one);
static ngx_uint_t record_answered(record_t *one);
static ngx_uint_t record_found(record_t *one);
static ngx_uint_t record_claimed(record_t *one);
static ngx_int_t record_respond(query_t *query);
static ngx_int_t outcome_step(query_t *query);
static ngx_int_t outcome_respond(query_t *query);
static ngx_int_t outcome_identity(ngx_http_request_t *r, u_char *identity);
static ngx_uint_t outcome_is(u_char *one, u_char *two);
static ngx_int_t outcome_send(ngx_http_request_t *r,
    ngx_idempotency_found_t *found);
static query_t *query_create(ngx_http_request_t *r,
    ngx_idempotency_store_t *store, size_t size);
static ngx_int_t query_begin(query_t *query);
static void query_run(query_t *query);
static void query_op(query_t *query, ngx_idempotency_op_t *op);
static ngx_int_t query_asked(query_t *query, ngx_idempotency_op_t *op,
    ngx_int_t rc, ngx_msec_t again);
static ngx_int_t query_yield(query_t *query);
static void query_end(query_t *query);
static void records_row(ngx_http_idempotency_text_t *text, u_char *token,
    u_char *fingerprint, ngx_idempotency_found_t *found);


static query_t *
query_create(ngx_http_request_t *r, ngx_idempotency_store_t *store, size_t size)
{
    ngx_pool_t                     *pool;
    ngx_http_cleanup_t             *cln;
    query_t  *query;

    cln = ngx_http_cleanup_add(r, 0);
    if (cln == NULL) {
        return NULL;
    }

    pool = ngx_create_pool(1024, ngx_cycle->log);
    if (pool == NULL) {
        return NULL;
    }

    query = ngx_pcalloc(pool, sizeof(query_t) + size);

    if (query == NULL) {
        ngx_destroy_pool(pool);
        return NULL;
    }

    query->pool = pool;
    query->request = r;
    query->cleanup = cln;
    query->store = store;
    query->data = query + 1;

    query->event.handler = query_event;
    query->event.data = query;
    query->event.log = ngx_cycle->log;

    cln->handler = query_gone;
    cln->data = query;

    return query;
}


/* from within a content handler: what that returns */

static ngx_int_t
query_begin(query_t *query)
{
    ngx_int_t            rc;
    ngx_http_request_t  *r;

    r = query->request;

    if (query_step(query) == NGX_AGAIN) {
        r->main->count++;
        return NGX_DONE;
    }

    rc = query->respond(query);
    query_end(query);

    return rc;
}


/* from elsewhere: the request is finalized, be it now or later */

static void
query_run(query_t *query)
{
    ngx_int_t            rc;
    ngx_http_request_t  *r;

    if (query_step(query) == NGX_AGAIN) {
        return;
    }

    r = query->request;
    rc = r ? query->respond(query) : NGX_OK;

    query_end(query);

    if (r) {
        ngx_http_finalize_request(r, rc);
    }
}


static ngx_int_t
query_step(query_t *query)
{
    ngx_int_t  rc;

    rc = query->step(query);

    query->later = (rc == NGX_AGAIN);

    return rc;
}


/* before it is asked */

static void
query_op(query_t *query, ngx_idempotency_op_t *op)
{
    op->now = ngx_current_msec;
    op->handler = query_answered;
    op->data = query;
    op->result = NGX_IDEMPOTENCY_UNAVAILABLE;
}


/* NGX_AGAIN: the next step is taken with the answer; or, of a claim, without:
   made again it is the same one */

static ngx_int_t
query_asked(query_t *query, ngx_idempotency_op_t *op, ngx_int_t rc,
    ngx_msec_t again)
{
    if (rc == NGX_AGAIN) {
        query->op = op;

        if (again) {
            ngx_add_timer(&query->event, again);
        }

        return NGX_AGAIN;
    }

    if (rc != NGX_OK) {
        op->result = NGX_IDEMPOTENCY_UNAVAILABLE;
    }

    return NGX_OK;
}


static void
query_answered(ngx_idempotency_op_t *op)
{
    ngx_connection_t               *c;
    ngx_http_request_t             *r;
    query_t  *query;

    query = op->data;
    query->op = NULL;

    if (query->event.timer_set) {
        ngx_del_timer(&query->event);
    }

    r = query->request;

    if (r == NULL) {
        query_run(query);
        return;
    }

    c = r->connection;

    ngx_http_set_log_request(c->log, r);
    query_run(query);
    ngx_http_run_posted_requests(c);
}


/* NGX_AGAIN: others have their turn, most of the time, then the next step is
   taken */

static ngx_int_t
query_yield(query_t *query)
{
    ngx_add_timer(&query->event, NGX_HTTP_IDEMPOTENCY_QUERY_PAUSE);

    return NGX_AGAIN;
}


static void
query_event(ngx_event_t *ev)
{
    ngx_connection_t               *c;
    ngx_idempotency_op_t           *op;
    query_t  *query;

    query = ev->data;
    op = query->op;

    if (op) {
        op->result = NGX_IDEMPOTENCY_CHANGED;
        op->handler(op);
        return;
    }

    c = query->request ? query->request->connection : NULL;

    query_run(query);

    if (c) {
        ngx_http_run_posted_requests(c);
    }
}


static void
query_gone(void *data)
{
    query_t  *query = data;

    if (query == NULL) {
        return;
    }

    query->request = NULL;

    if (!query->later) {
        query_end(query);
    }
}


static void
query_end(query_t *query)
{
    if (query->event.timer_set) {
        ngx_del_timer(&query->event);
    }

    if (query->request) {
        query->cleanup->data = NULL;
    }

    ngx_destroy_pool(query->pool);
}


ngx_int_t
ngx_http_idempotency_records(ngx_http_request_t *r,
    ngx_idempotency_store_t *store)
{
    records_t                      *records;
    query_t  *query;

    query = query_create(r, store, sizeof(records_t));
    if (query == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    records = query->data;

    query->step = records_step;
    query->respond = records_respond;

    ngx_http_idempotency_text_init(&records->text, r->pool);

    if (records_arguments(r, records) != NGX_OK) {
        query_end(query);
        return ngx_http_idempotency_api_refuse(r,
                                       NGX_HTTP_IDEMPOTENCY_API_BAD_ARGUMENT);
    }

    switch (records_tier(r, store, &records->list)) {

    case NGX_OK:
        return query_begin(query);

    case NGX_DECLINED:
        query_end(query);
        return ngx_http_idempotency_api_refuse(r,
                                         NGX_HTTP_IDEMPOTENCY_API_NO_BACKING);

    default:
        query_end(query);
        return ngx_http_idempotency_api_refuse(r,
                                       NGX_HTTP_IDEMPOTENCY_API_BAD_ARGUMENT);
    }
}


/* this machine's memory, or what stands behind; NGX_DECLINED: nothing does */

static ngx_int_t
records_tier(ngx_http_request_t *r, ngx_idempotency_store_t *store,
    ngx_idempotency_list_t *list)
{
    ngx_str_t                  value;
    ngx_idempotency_figures_t  figures;

    if (ngx_http_arg(r, (u_char *) "tier", 4, &value) != NGX_OK
        || (value.len == 6 && ngx_strncmp(value.data, "memory", 6) == 0))
    {
        return NGX_OK;
    }

    if (value.len != 7 || ngx_strncmp(value.data, "backing", 7) != 0) {
        return NGX_ERROR;
    }

    list->behind = 1;

    (void) store->engine->figures(store, ngx_current_msec, &figures);

    return figures.kind ? NGX_OK : NGX_DECLINED;
}


static ngx_int_t
records_arguments(ngx_http_request_t *r, records_t *records)
{
    ngx_int_t  n;
    ngx_str_t  value;

    records->limit = NGX_HTTP_IDEMPOTENCY_RECORDS_LIMIT;

    if (ngx_http_arg(r, (u_char *) "limit", 5, &value) == NGX_OK) {

        n = ngx_atoi(value.data, value.len);

        if (n == NGX_ERROR || n == 0) {
            return NGX_ERROR;
        }

        records->limit = ngx_min(n, NGX_HTTP_IDEMPOTENCY_RECORDS_MOST);
    }

    return records_cursor(r, &records->list);
}


/* as it stands in a link: the number, and the token in hexadecimal digits */

static ngx_int_t
records_cursor(ngx_http_request_t *r, ngx_idempotency_list_t *list)
{
    u_char     *p;
    size_t      i;
    ngx_int_t   n;
    ngx_str_t   value;

    if (ngx_http_arg(r, (u_char *) "cursor", 6, &value) != NGX_OK) {
        return NGX_OK;
    }

    p = ngx_strlchr(value.data, value.data + value.len, '-');

    if (p == NULL
        || value.data + value.len - p != 1 + 2 * NGX_IDEMPOTENCY_DIGEST_LEN)
    {
        return NGX_ERROR;
    }

    n = ngx_atoi(value.data, p - value.data);

    if (n == NGX_ERROR || n == 0) {
        return NGX_ERROR;
    }

    list->cursor = n;
    p++;

    for (i = 0; i < NGX_IDEMPOTENCY_DIGEST_LEN; i++) {

        n = ngx_hextoi(p + 2 * i, 2);

        if (n == NGX_ERROR) {
            return NGX_ERROR;
        }

        list->op.token[i] = (u_char) n;
    }

    return NGX_OK;
}


static ngx_int_t
records_step(query_t *query)
{
    ngx_int_t                 rc;
    ngx_uint_t                tries;
    records_t                *records;
    ngx_idempotency_list_t   *list;
    ngx_idempotency_store_t  *store;

    records = query->data;
    store = query->store;
    list = &records->list;

    for (tries = 0; query->request; tries++) {

        if (records->asked) {
            records->asked = 0;

            if (list->op.result != NGX_IDEMPOTENCY_OK) {
                return NGX_OK;
            }

            records_take(records);

            if (list->cursor == 0 || records->n >= records->limit) {
                return NGX_OK;
            }

            if (list->n || tries >= NGX_HTTP_IDEMPOTENCY_RECORDS_TRIES) {
                return query_yield(query);
            }
        }

        list->listed = records->listed;
        list->n = ngx_min(records->limit - records->n,
                          (list->behind ? NGX_HTTP_IDEMPOTENCY_RECORDS_FAR
                                        : NGX_HTTP_IDEMPOTENCY_RECORDS_STEP));

        records->asked = 1;

        query_op(query, &list->op);

        rc = query_asked(query, &list->op, store->engine->list(store, list), 0);

        if (rc == NGX_AGAIN) {
            return NGX_AGAIN;
        }
    }

    return NGX_OK;
}


static void
records_take(records_t *records)
{
    ngx_uint_t                 i;
    ngx_idempotency_listed_t  *listed;

    for (i = 0; i < records->list.n; i++) {
        listed = &records->listed[i];

        records_row(&records->text, listed->token, listed->fingerprint,
                    &listed->found);
    }

    records->n += records->list.n;
}


/* moments as everybody's clock has them; what nobody knows is null */

static void
records_row(ngx_http_idempotency_text_t *text, u_char *token,
    u_char *fingerprint, ngx_idempotency_found_t *found)
{
    uint64_t  now, at;

    now = ngx_http_idempotency_wall_clock();
    at = now - found->age;

    ngx_http_idempotency_text_add(text,
                  "{\"token\":\"%*xs\",\"fingerprint\":\"%*xs\","
                  "\"outcome\":\"%s\",",
                  (size_t) NGX_IDEMPOTENCY_DIGEST_LEN, token,
                  (size_t) NGX_IDEMPOTENCY_DIGEST_LEN, fingerprint,
                  ngx_http_idempotency_outcomes[found->outcome].name);

    if (found->status) {
        ngx_http_idempotency_text_add(text, "\"status\":%ui,",
                                      found->status);

    } else {
        ngx_http_idempotency_text_add(text, "\"status\":null,");
    }

    ngx_http_idempotency_text_add(text, "\"recorded\":%uL.%03uL,",
                                  at / 1000, at % 1000);

    if (found->outcome == NGX_IDEMPOTENCY_PENDING) {
        ngx_http_idempotency_text_add(text, "\"expires\":null,");

    } else {
        at = now + found->left;
        ngx_http_idempotency_text_add(text, "\"expires\":%uL.%03uL,",
                                      at / 1000, at % 1000);
    }

    ngx_http_idempotency_text_add(text,
                  "\"replays\":%ui,\"fence\":%uL,\"size\":%uz,",
                  found->replays, found->fence, found->response.len);

    if (found->owner) {
        ngx_http_idempotency_text_add(text, "\"owner\":%P}\n", found->owner);

    } else if (found->instance) {
        ngx_http_idempotency_text_add(text, "\"owner\":\"%016xL\"}\n",
                                      found->instance);

    } else {
        ngx_http_idempotency_text_add(text, "\"owner\":null}\n");
    }
}


static ngx_int_t
records_respond(query_t *query)
{
    records_t           *records;
    ngx_http_request_t  *r;

    r = query->request;
    records = query->data;

    if (records->list.op.result != NGX_IDEMPOTENCY_OK) {
        return ngx_http_idempotency_api_refuse(r,
                                        NGX_HTTP_IDEMPOTENCY_API_UNAVAILABLE);
    }

    if (records->list.cursor && records_link(r, records) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_idempotency_api_send(r, &records->text,
                                         "application/x-ndjson");
}


/* the next page is where the client has found this one */

static ngx_int_t
records_link(ngx_http_request_t *r, records_t *records)
{
    u_char     *p;
    ngx_str_t   uri, link;

    uri = r->unparsed_uri;

    p = ngx_strlchr(uri.data, uri.data + uri.len, '?');

    if (p) {
        uri.len = p - uri.data;
    }

    link.data = ngx_pnalloc(r->pool,
                            3 * uri.len + 2 * NGX_INT_T_LEN
                            + 2 * NGX_IDEMPOTENCY_DIGEST_LEN
                            + sizeof("<?limit=&cursor=-&tier=backing>; "
                                     "rel=\"next\""));
    if (link.data == NULL) {
        return NGX_ERROR;
    }

    p = link.data;

    *p++ = '<';
    p = ngx_http_idempotency_problem_uri(p, &uri);
    p = ngx_sprintf(p, "?limit=%ui&cursor=%ui-%*xs%s>; rel=\"next\"",
                    records->limit, records->list.cursor,
                    (size_t) NGX_IDEMPOTENCY_DIGEST_LEN,
                    records->list.op.token,
                    records->list.behind ? "&tier=backing" : "");

    link.len = p - link.data;

    return ngx_http_idempotency_api_header(r, "Link", &link);
}


ngx_int_t
ngx_http_idempotency_record(ngx_http_request_t *r,
    ngx_idempotency_store_t *store, u_char *token)
{
    record_t                            *one;
    ngx_int_t                         rc;
    query_t    *query;
    ngx_http_idempotency_loc_conf_t  *conf;

    query = query_create(r, store, sizeof(record_t));
    if (query == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    one = query->data;

    if (ngx_http_idempotency_window(r, conf, &one->window) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    query->step = record_step;
    query->respond = record_respond;

    ngx_memcpy(one->token, token, NGX_IDEMPOTENCY_DIGEST_LEN);

    one->why = -1;
    one->lease = conf->lease;
    one->stage = (r->method == NGX_HTTP_DELETE) ? record_forgets : record_finds;

    if (r->method != NGX_HTTP_PUT) {
        return query_begin(query);
    }

    one->settles = 1;

    ngx_http_set_ctx(r, query, ngx_http_idempotency_filter_module);

    r->request_body_in_single_buf = 1;

    rc = ngx_http_read_client_request_body(r, record_body);

    return (rc >= NGX_HTTP_SPECIAL_RESPONSE) ? rc : NGX_DONE;
}


static void
record_body(ngx_http_request_t *r)
{
    record_t                          *one;
    ngx_int_t                       rc;
    query_t  *query;

    query = ngx_http_get_module_ctx(r, ngx_http_idempotency_filter_module);
    one = query->data;

    rc = record_outcome(r, one);

    if (rc == NGX_OK) {
        query_run(query);
        return;
    }

    query_end(query);

    if (rc == NGX_DECLINED) {
        rc = ngx_http_idempotency_api_refuse(r,
                                        NGX_HTTP_IDEMPOTENCY_API_BAD_OUTCOME);
    }

    ngx_http_finalize_request(r, rc);
}


/* "done" or "released", as an argument or as the body; NGX_DECLINED: neither */

static ngx_int_t
record_outcome(ngx_http_request_t *r, record_t *one)
{
    ngx_int_t  n;
    ngx_str_t  word, value;

    if (ngx_http_arg(r, (u_char *) "outcome", 7, &word) != NGX_OK) {

        n = ngx_http_idempotency_whole_body(r, NGX_HTTP_IDEMPOTENCY_RECORD_BODY,
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
record_step(query_t *query)
{
    record_t      *one;
    ngx_int_t   rc;

    one = query->data;

    for ( ;; ) {

        if (one->asked) {
            one->asked = 0;

            if (record_answered(one)) {
                return NGX_OK;
            }
        }

        one->asked = 1;

        ngx_memcpy(record_op(one)->token, one->token,
                   NGX_IDEMPOTENCY_DIGEST_LEN);
        query_op(query, record_op(one));

        rc = query_asked(query, record_op(one),
                                        record_ask(query, one),
                                        one->stage == record_claims
                                            ? NGX_HTTP_IDEMPOTENCY_RECORD_AGAIN
                                            : 0);
        if (rc == NGX_AGAIN) {
            return NGX_AGAIN;
        }
    }
}


static ngx_int_t
record_ask(query_t *query, record_t *one)
{
    ngx_idempotency_store_t         *store;
    const ngx_idempotency_engine_t  *engine;

    store = query->store;
    engine = store->engine;

    switch (one->stage) {

    case record_finds:
        return engine->find(store, &one->find);

    case record_forgets:
        return engine->forget(store, &one->forget);

    case record_claims:
        one->claim.pool = query->pool;
        return engine->claim(store, &one->claim);

    case record_completes:
        return engine->complete(store, &one->complete);

    default: /* record_releases */
        return engine->release(store, &one->release);
    }
}


static ngx_idempotency_op_t *
record_op(record_t *one)
{
    switch (one->stage) {

    case record_finds:
        return &one->find.op;

    case record_forgets:
        return &one->forget.op;

    case record_claims:
        return &one->claim.op;

    case record_completes:
        return &one->complete.op;

    default: /* record_releases */
        return &one->release.op;
    }
}


/* true: it is over, and one->why says why it came to nothing */

static ngx_uint_t
record_answered(record_t *one)
{
    switch (record_op(one)->result) {

    case NGX_IDEMPOTENCY_OK:
    case NGX_IDEMPOTENCY_TRIMMED:
        return 1;

    case NGX_IDEMPOTENCY_BOUND:
        if (one->stage == record_finds) {
            return record_found(one);
        }

        one->why = NGX_HTTP_IDEMPOTENCY_API_NOT_IN_DOUBT;
        return 1;

    case NGX_IDEMPOTENCY_CLAIMED:
        return record_claimed(one);

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
record_found(record_t *one)
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

    one->stage = record_claims;

    return 0;
}


static ngx_uint_t
record_claimed(record_t *one)
{
    if (one->done) {
        one->complete.fence = one->claim.fence;
        one->complete.outcome = NGX_IDEMPOTENCY_NOT_KEPT;
        one->complete.status = one->status;

        one->stage = record_completes;

    } else {
        one->release.fence = one->claim.fence;
        one->release.settled = 1;

        one->stage = record_releases;
    }

    return 0;
}


static ngx_int_t
record_respond(query_t *query)
{
    record_t                        *one;
    u_char                       *last;
    uint64_t                      number;
    u_char                        fence[sizeof(", fence: ") + NGX_INT64_LEN];
    ngx_http_request_t           *r;
    ngx_http_idempotency_text_t   text;

    one = query->data;
    r = query->request;

    if (one->why != -1) {
        return ngx_http_idempotency_api_refuse(r, one->why);
    }

    if (one->stage != record_finds) {

        /* settled: this request has made the claim itself */

        number = (one->stage == record_forgets) ? one->forget.was
                                             : one->claim.fence;

        last = number ? ngx_sprintf(fence, ", fence: %uL", number) : fence;

        ngx_log_error(NGX_LOG_NOTICE, r->connection->log, 0,
                      "idempotency: a token was %s by hand, token: %*xs, "
                      "zone: \"%V\"%*s",
                      (one->stage == record_forgets) ? "forgotten"
                      : (one->stage == record_completes) ? "settled as done"
                      : "released",
                      (size_t) NGX_IDEMPOTENCY_DIGEST_LEN, one->token,
                      &query->store->name, (size_t) (last - fence), fence);

        return ngx_http_idempotency_api_done(r);
    }

    ngx_http_idempotency_text_init(&text, r->pool);

    records_row(&text, one->token, one->find.fingerprint, &one->find.found);

    return ngx_http_idempotency_api_send(r, &text, "application/json");
}


ngx_int_t
ngx_http_idempotency_own_outcome(ngx_http_request_t *r)
{
    outcome_t                            *own;
    u_char                            token[NGX_IDEMPOTENCY_DIGEST_LEN],
                                      who[NGX_IDEMPOTENCY_IDENTITY_LEN];
    query_t    *query;
    ngx_http_idempotency_loc_conf_t  *conf;

    conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    switch (ngx_http_idempotency_api_token(r, 1, token)) {

    case NGX_OK:
        break;

    case NGX_DECLINED:
        return ngx_http_idempotency_api_refuse(r,
                                             NGX_HTTP_IDEMPOTENCY_API_NO_KEY);

    case NGX_ABORT:
        return ngx_http_idempotency_api_refuse(r,
                                            NGX_HTTP_IDEMPOTENCY_API_BAD_KEY);

    default:
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    switch (outcome_identity(r, who)) {

    case NGX_OK:
        break;

    case NGX_DECLINED:
        return ngx_http_idempotency_api_refuse(r,
                                          NGX_HTTP_IDEMPOTENCY_API_NO_RECORD);

    default:
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    query = query_create(r, conf->store, sizeof(outcome_t));
    if (query == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    own = query->data;

    query->step = outcome_step;
    query->respond = outcome_respond;

    ngx_memcpy(own->find.op.token, token, NGX_IDEMPOTENCY_DIGEST_LEN);

    return query_begin(query);
}


static ngx_int_t
outcome_step(query_t *query)
{
    outcome_t                    *own;
    ngx_idempotency_store_t  *store;

    own = query->data;
    store = query->store;

    if (own->asked) {
        return NGX_OK;
    }

    own->asked = 1;

    query_op(query, &own->find.op);

    return query_asked(query, &own->find.op,
                       store->engine->find(store, &own->find), 0);
}


static ngx_int_t
outcome_respond(query_t *query)
{
    outcome_t               *own;
    u_char               who[NGX_IDEMPOTENCY_IDENTITY_LEN];
    ngx_http_request_t  *r;

    r = query->request;
    own = query->data;

    switch (own->find.op.result) {

    case NGX_IDEMPOTENCY_BOUND:
        break;

    case NGX_IDEMPOTENCY_ABSENT:
        return outcome_send(r, NULL);

    default: /* NGX_IDEMPOTENCY_UNAVAILABLE */
        return ngx_http_idempotency_api_refuse(r,
                                        NGX_HTTP_IDEMPOTENCY_API_UNAVAILABLE);
    }

    if (outcome_identity(r, who) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (!outcome_is(who, own->find.parts.identity)) {
        return ngx_http_idempotency_api_refuse(r,
                                          NGX_HTTP_IDEMPOTENCY_API_NO_RECORD);
    }

    return outcome_send(r, &own->find.found);
}


/* as of a request that is protected; NGX_DECLINED: nobody that is known */

static ngx_int_t
outcome_identity(ngx_http_request_t *r, u_char *identity)
{
    ngx_http_idempotency_ctx_t  *ctx;

    ctx = ngx_pcalloc(r->pool, sizeof(ngx_http_idempotency_ctx_t));
    if (ctx == NULL) {
        return NGX_ERROR;
    }

    ctx->request = r;
    ctx->conf = ngx_http_get_module_loc_conf(r, ngx_http_idempotency_module);

    if (ngx_http_idempotency_identity(r, ctx) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_memcpy(identity, ctx->claim.parts.identity,
               NGX_IDEMPOTENCY_IDENTITY_LEN);

    return ngx_http_idempotency_anonymous(ctx) ? NGX_DECLINED : NGX_OK;
}


/* how long it takes tells nothing */

static ngx_uint_t
outcome_is(u_char *one, u_char *two)
{
    u_char  differs;
    size_t  i;

    differs = 0;

    for (i = 0; i < NGX_IDEMPOTENCY_IDENTITY_LEN; i++) {
        differs |= one[i] ^ two[i];
    }

    return differs == 0;
}


/* whether its response can be had once more is another question than whether
   it was executed */

static ngx_int_t
outcome_send(ngx_http_request_t *r, ngx_idempotency_found_t *found)
{
    ngx_http_idempotency_text_t  text;

    ngx_http_idempotency_text_init(&text, r->pool);

    if (found == NULL) {
        ngx_http_idempotency_text_add(&text, "{\"outcome\":\"unknown\"}\n");

        return ngx_http_idempotency_api_send(r, &text, "application/json");
    }

    switch (found->outcome) {

    case NGX_IDEMPOTENCY_PENDING:
        ngx_http_idempotency_text_add(&text, "{\"outcome\":\"pending\"");
        break;

    case NGX_IDEMPOTENCY_IN_DOUBT:
        ngx_http_idempotency_text_add(&text, "{\"outcome\":\"in_doubt\"");
        break;

    default:
        ngx_http_idempotency_text_add(&text,
                                      "{\"outcome\":\"done\",\"kept\":%s",
                                      found->outcome == NGX_IDEMPOTENCY_DONE
                                          ? "true" : "false");
    }

    if (found->status) {
        ngx_http_idempotency_text_add(&text, ",\"status\":%ui",
                                      found->status);

    } else {
        ngx_http_idempotency_text_add(&text, ",\"status\":null");
    }

    /* in seconds, rounded up: it is fresh then */

    if (found->outcome == NGX_IDEMPOTENCY_PENDING) {
        ngx_http_idempotency_text_add(&text, ",\"expires\":null}\n");

    } else {
        ngx_http_idempotency_text_add(&text, ",\"expires\":%M}\n",
                                      (found->left + 999) / 1000);
    }

    return ngx_http_idempotency_api_send(r, &text, "application/json");
}
