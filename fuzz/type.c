
/*
 * Content types, JSON pointers and a part's header, whose letter case doesn't
 * count.
 */


#include "fuzz.h"


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t                    i;
    u_char                   *text;
    ngx_str_t                 type, upper, boundary, other, *name, bad;
    ngx_int_t                 rc;
    ngx_pool_t               *pool;
    ngx_array_t              *names;
    ngx_idempotency_canon_t   c;
    ngx_idempotency_digest_t  d;

    const ngx_idempotency_kind_t  *kind, *same;

    pool = fuzz_pool();

    type.len = size;
    type.data = fuzz_copy(data, size);

    upper.len = size;
    upper.data = fuzz_copy(data, size);

    for (i = 0; i < size; i++) {
        upper.data[i] = ngx_toupper(upper.data[i]);
    }

    ngx_str_null(&boundary);
    ngx_str_null(&other);

    (void) ngx_idempotency_kind(&type, NGX_IDEMPOTENCY_CANON_ALL, &boundary,
                                &kind);
    (void) ngx_idempotency_kind(&upper, NGX_IDEMPOTENCY_CANON_ALL, &other,
                                &same);
    hold(kind == same);

    (void) ngx_idempotency_kind(&type, 0, &other, &same);
    hold(same == NULL);

    if (kind == &ngx_idempotency_multipart_kind) {
        hold(boundary.len > 0 && boundary.len <= 70);
        hold(boundary.data >= type.data
             && boundary.data + boundary.len <= type.data + type.len);
    }

    ngx_idempotency_digest_init(&d, NULL, 1, NGX_IDEMPOTENCY_DIGEST_BODY);
    ngx_idempotency_digest_type(&d, &type, size % 2 ? NULL : "charset");

    names = ngx_array_create(pool, 2, sizeof(ngx_str_t));
    name = ngx_array_push(names);
    name->len = size / 2;
    name->data = fuzz_copy(data, size / 2);
    name = ngx_array_push(names);
    name->len = size - size / 2;
    name->data = fuzz_copy(data + size / 2, size - size / 2);

    rc = ngx_idempotency_canon_ignore(&c, names, &bad, pool);
    hold(rc == NGX_OK || rc == NGX_DECLINED);

    /* what a pointer would be left out of is digested all the same */

    if (rc == NGX_OK) {
        c.flags = NGX_IDEMPOTENCY_CANON_ALL;
        text = (u_char *) "{\"a\":{\"b\":[1,{\"c\":2}]},\"\":3}";
        (void) fuzz_body(&ngx_idempotency_json_kind, &c, text,
                         ngx_strlen(text));
    }

    return 0;
}
