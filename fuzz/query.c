
/*
 * A question to the API as a client writes it, its arguments: a page's size and
 * where it goes on, a key and a scope.  What is taken is within its limits, and
 * a cursor is the one that the API would write.
 */


#include "fuzz.h"

#include "observe/ngx_http_idempotency_api.c"


volatile ngx_msec_t  ngx_current_msec;


static ngx_int_t
no_figures(ngx_idempotency_store_t *store, ngx_msec_t now,
    ngx_idempotency_figures_t *figures)
{
    ngx_memzero(figures, sizeof(ngx_idempotency_figures_t));

    return NGX_OK;
}


static void
records(ngx_http_request_t *r)
{
    u_char                    text[128], *p;
    ngx_str_t                 value;
    records_t                 asked;
    ngx_idempotency_store_t   store;
    ngx_idempotency_engine_t  engine;

    ngx_memzero(&asked, sizeof(records_t));
    ngx_memzero(&store, sizeof(ngx_idempotency_store_t));
    ngx_memzero(&engine, sizeof(ngx_idempotency_engine_t));

    engine.figures = no_figures;
    store.engine = &engine;
    asked.query.store = &store;

    if (records_arguments(r, &asked) != api_allowed) {
        return;
    }

    hold(asked.limit > 0 && asked.limit <= RECORDS_MOST);

    if (ngx_http_arg(r, (u_char *) "cursor", 6, &value) != NGX_OK) {
        hold(asked.list.cursor == 0);
        return;
    }

    hold(asked.list.cursor != 0);

    p = ngx_sprintf(text, "%ui-", asked.list.cursor);
    p = ngx_hex_dump(p, asked.list.op.token, NGX_IDEMPOTENCY_DIGEST_LEN);

    /* but for zeros in front, and upper case */

    hold(value.len >= (size_t) (p - text));
    hold(ngx_strncasecmp(p - 2 * NGX_IDEMPOTENCY_DIGEST_LEN,
                         value.data + value.len
                         - 2 * NGX_IDEMPOTENCY_DIGEST_LEN,
                         2 * NGX_IDEMPOTENCY_DIGEST_LEN)
         == 0);
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ngx_str_t           key;
    ngx_http_request_t  r;

    ngx_memzero(&r, sizeof(ngx_http_request_t));

    r.pool = fuzz_pool();
    r.args.data = fuzz_copy(data, size);
    r.args.len = size;

    records(&r);

    if (api_key(&r, 0, &key) == api_allowed) {
        hold(key.len > 0 && key.len <= size);
    }

    return 0;
}
