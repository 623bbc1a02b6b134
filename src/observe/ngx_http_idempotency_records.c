
/*
 * The records of a store, a line of JSON each, in pages.  A page is gathered
 * some records at a time, and others have their turn in between; it is sent
 * once it is known where the next one begins.
 */


#include "ngx_http_idempotency_observe.h"
#include "request/ngx_http_idempotency_refuse.h"
#include "store/ngx_idempotency_tier.h"


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


static ngx_int_t records_arguments(ngx_http_request_t *r, records_t *records);
static ngx_int_t records_tier(ngx_http_request_t *r,
    ngx_idempotency_store_t *store, ngx_idempotency_list_t *list);
static ngx_int_t records_cursor(ngx_http_request_t *r,
    ngx_idempotency_list_t *list);
static ngx_int_t records_step(ngx_http_idempotency_asking_t *asking);
static void records_take(records_t *records);
static ngx_int_t records_respond(ngx_http_idempotency_asking_t *asking);
static ngx_int_t records_link(ngx_http_request_t *r, records_t *records);


ngx_int_t
ngx_http_idempotency_records(ngx_http_request_t *r,
    ngx_idempotency_store_t *store)
{
    records_t                      *records;
    ngx_http_idempotency_asking_t  *asking;

    asking = ngx_http_idempotency_asking_create(r, store, sizeof(records_t));
    if (asking == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    records = asking->data;

    asking->step = records_step;
    asking->respond = records_respond;

    ngx_http_idempotency_text_init(&records->text, r->pool);

    if (records_arguments(r, records) != NGX_OK) {
        ngx_http_idempotency_asking_end(asking);
        return ngx_http_idempotency_api_refuse(r,
                                       NGX_HTTP_IDEMPOTENCY_API_BAD_ARGUMENT);
    }

    switch (records_tier(r, store, &records->list)) {

    case NGX_OK:
        return ngx_http_idempotency_asking_begin(asking);

    case NGX_DECLINED:
        ngx_http_idempotency_asking_end(asking);
        return ngx_http_idempotency_api_refuse(r,
                                         NGX_HTTP_IDEMPOTENCY_API_NO_BACKING);

    default:
        ngx_http_idempotency_asking_end(asking);
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
records_step(ngx_http_idempotency_asking_t *asking)
{
    ngx_int_t                 rc;
    ngx_uint_t                tries;
    records_t                *records;
    ngx_idempotency_list_t   *list;
    ngx_idempotency_store_t  *store;

    records = asking->data;
    store = asking->store;
    list = &records->list;

    for (tries = 0; asking->request; tries++) {

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
                return ngx_http_idempotency_asking_yield(asking);
            }
        }

        list->listed = records->listed;
        list->n = ngx_min(records->limit - records->n,
                          (list->behind ? NGX_HTTP_IDEMPOTENCY_RECORDS_FAR
                                        : NGX_HTTP_IDEMPOTENCY_RECORDS_STEP));

        records->asked = 1;

        ngx_http_idempotency_asking_op(asking, &list->op);

        rc = ngx_http_idempotency_asking_asked(asking, &list->op,
                                        store->engine->list(store, list), 0);

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

        ngx_http_idempotency_records_row(&records->text, listed->token,
                                         listed->fingerprint, &listed->found);
    }

    records->n += records->list.n;
}


/* moments as everybody's clock has them; what nobody knows is null */

void
ngx_http_idempotency_records_row(ngx_http_idempotency_text_t *text,
    u_char *token, u_char *fingerprint, ngx_idempotency_found_t *found)
{
    uint64_t  now, at;

    now = ngx_http_idempotency_wall_clock();
    at = now - found->age;

    ngx_http_idempotency_text_add(text,
                  "{\"token\":\"%*xs\",\"fingerprint\":\"%*xs\","
                  "\"outcome\":\"%s\",",
                  (size_t) NGX_IDEMPOTENCY_DIGEST_LEN, token,
                  (size_t) NGX_IDEMPOTENCY_DIGEST_LEN, fingerprint,
                  ngx_http_idempotency_outcome_names[found->outcome]);

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
records_respond(ngx_http_idempotency_asking_t *asking)
{
    records_t           *records;
    ngx_http_request_t  *r;

    r = asking->request;
    records = asking->data;

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
