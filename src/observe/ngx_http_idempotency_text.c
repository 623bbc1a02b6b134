
/* Text that is written piece by piece, into buffers of one size. */


#include "ngx_http_idempotency_observe.h"


#define NGX_HTTP_IDEMPOTENCY_TEXT_BUFFER  16384


static ngx_int_t text_room(ngx_http_idempotency_text_t *text, size_t size);
static void text_bytes(ngx_http_idempotency_text_t *text, u_char *p,
    size_t len);


void
ngx_http_idempotency_text_init(ngx_http_idempotency_text_t *text,
    ngx_pool_t *pool)
{
    ngx_memzero(text, sizeof(ngx_http_idempotency_text_t));

    text->pool = pool;
    text->next = &text->out;
}


void
ngx_http_idempotency_text_add(ngx_http_idempotency_text_t *text,
    const char *fmt, ...)
{
    u_char   *p;
    va_list   args;

    if (text_room(text, NGX_HTTP_IDEMPOTENCY_TEXT_LINE) != NGX_OK) {
        return;
    }

    p = text->buf->last;

    va_start(args, fmt);
    text->buf->last = ngx_vslprintf(p, text->buf->end, fmt, args);
    va_end(args);

    text->size += text->buf->last - p;
}


/* within a string of JSON */

void
ngx_http_idempotency_text_json(ngx_http_idempotency_text_t *text,
    ngx_str_t *value)
{
    u_char     *p;
    uintptr_t   more;

    more = ngx_escape_json(NULL, value->data, value->len);

    p = ngx_pnalloc(text->pool, value->len + more);

    if (p == NULL) {
        text->failed = 1;
        return;
    }

    (void) ngx_escape_json(p, value->data, value->len);

    text_bytes(text, p, value->len + more);
}


/* within a label's value, as Prometheus has it */

void
ngx_http_idempotency_text_label(ngx_http_idempotency_text_t *text,
    ngx_str_t *value)
{
    size_t  i;

    for (i = 0; i < value->len; i++) {

        switch (value->data[i]) {

        case '\n':
            text_bytes(text, (u_char *) "\\n", 2);
            break;

        case '\\':
        case '"':
            text_bytes(text, (u_char *) "\\", 1);
            /* fall through */

        default:
            text_bytes(text, &value->data[i], 1);
        }
    }
}


static void
text_bytes(ngx_http_idempotency_text_t *text, u_char *p, size_t len)
{
    size_t  n;

    while (len && text_room(text, 1) == NGX_OK) {

        n = ngx_min(len, (size_t) (text->buf->end - text->buf->last));

        text->buf->last = ngx_cpymem(text->buf->last, p, n);
        text->size += n;

        p += n;
        len -= n;
    }
}


static ngx_int_t
text_room(ngx_http_idempotency_text_t *text, size_t size)
{
    ngx_chain_t  *cl;

    if (text->failed) {
        return NGX_ERROR;
    }

    if (text->buf && (size_t) (text->buf->end - text->buf->last) >= size) {
        return NGX_OK;
    }

    cl = ngx_alloc_chain_link(text->pool);

    text->buf = cl ? ngx_create_temp_buf(text->pool,
                                         NGX_HTTP_IDEMPOTENCY_TEXT_BUFFER)
                   : NULL;

    if (text->buf == NULL) {
        text->failed = 1;
        return NGX_ERROR;
    }

    cl->buf = text->buf;
    cl->next = NULL;

    *text->next = cl;
    text->next = &cl->next;

    return NGX_OK;
}
