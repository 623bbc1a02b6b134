
/*
 * What became of a client's own key, for the client: one that lost its answer
 * asks instead of sending all of it once more.  Whoever is not known, or is
 * not who has bound the key, learns nothing.
 */


#include "ngx_http_idempotency_observe.h"


typedef struct {
    ngx_idempotency_find_t          find;
    ngx_uint_t                      asked;
} own_t;


static ngx_int_t own_step(ngx_http_idempotency_asking_t *asking);
static ngx_int_t own_respond(ngx_http_idempotency_asking_t *asking);
static ngx_int_t own_identity(ngx_http_request_t *r, u_char *identity);
static ngx_uint_t own_is(u_char *one, u_char *two);
static ngx_int_t own_send(ngx_http_request_t *r,
    ngx_idempotency_found_t *found);


ngx_int_t
ngx_http_idempotency_own(ngx_http_request_t *r)
{
    own_t                            *own;
    u_char                            token[NGX_IDEMPOTENCY_DIGEST_LEN],
                                      who[NGX_IDEMPOTENCY_IDENTITY_LEN];
    ngx_http_idempotency_asking_t    *asking;
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

    switch (own_identity(r, who)) {

    case NGX_OK:
        break;

    case NGX_DECLINED:
        return ngx_http_idempotency_api_refuse(r,
                                          NGX_HTTP_IDEMPOTENCY_API_NO_RECORD);

    default:
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    asking = ngx_http_idempotency_asking_create(r, conf->store,
                                                sizeof(own_t));
    if (asking == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    own = asking->data;

    asking->step = own_step;
    asking->respond = own_respond;

    ngx_memcpy(own->find.op.token, token, NGX_IDEMPOTENCY_DIGEST_LEN);

    return ngx_http_idempotency_asking_begin(asking);
}


static ngx_int_t
own_step(ngx_http_idempotency_asking_t *asking)
{
    own_t                    *own;
    ngx_idempotency_store_t  *store;

    own = asking->data;
    store = asking->store;

    if (own->asked) {
        return NGX_OK;
    }

    own->asked = 1;

    ngx_http_idempotency_asking_op(asking, &own->find.op);

    return ngx_http_idempotency_asking_asked(asking, &own->find.op,
                                   store->engine->find(store, &own->find), 0);
}


static ngx_int_t
own_respond(ngx_http_idempotency_asking_t *asking)
{
    own_t               *own;
    u_char               who[NGX_IDEMPOTENCY_IDENTITY_LEN];
    ngx_http_request_t  *r;

    r = asking->request;
    own = asking->data;

    switch (own->find.op.result) {

    case NGX_IDEMPOTENCY_BOUND:
        break;

    case NGX_IDEMPOTENCY_ABSENT:
        return own_send(r, NULL);

    default: /* NGX_IDEMPOTENCY_UNAVAILABLE */
        return ngx_http_idempotency_api_refuse(r,
                                        NGX_HTTP_IDEMPOTENCY_API_UNAVAILABLE);
    }

    if (own_identity(r, who) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (!own_is(who, own->find.parts.identity)) {
        return ngx_http_idempotency_api_refuse(r,
                                          NGX_HTTP_IDEMPOTENCY_API_NO_RECORD);
    }

    return own_send(r, &own->find.found);
}


/* as of a request that is protected; NGX_DECLINED: nobody that is known */

static ngx_int_t
own_identity(ngx_http_request_t *r, u_char *identity)
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
own_is(u_char *one, u_char *two)
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
own_send(ngx_http_request_t *r, ngx_idempotency_found_t *found)
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
