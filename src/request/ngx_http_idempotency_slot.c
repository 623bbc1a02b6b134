
/*
 * The slots of headers_out: pointers to the lines that nginx and its filters
 * look at, or add themselves where there is none.  Going by names would be
 * wrong: a line of such a name may stand there without a slot, and a slot may
 * point to a line that is not sent, so that nginx adds none.
 */


#include "ngx_http_idempotency_response.h"


static ngx_int_t slot_fill(ngx_http_request_t *r, ngx_uint_t slot,
    ngx_table_elt_t *h);
static ngx_uint_t slot_suppressed(ngx_table_elt_t *h);


/* a slot is 2 plus an index here; 1 is a line that occupies none */

static const size_t  slots[] = {
    offsetof(ngx_http_headers_out_t, server),
    offsetof(ngx_http_headers_out_t, date),
    offsetof(ngx_http_headers_out_t, content_length),
    offsetof(ngx_http_headers_out_t, content_encoding),
    offsetof(ngx_http_headers_out_t, location),
    offsetof(ngx_http_headers_out_t, refresh),
    offsetof(ngx_http_headers_out_t, last_modified),
    offsetof(ngx_http_headers_out_t, content_range),
    offsetof(ngx_http_headers_out_t, accept_ranges),
    offsetof(ngx_http_headers_out_t, www_authenticate),
    offsetof(ngx_http_headers_out_t, expires),
    offsetof(ngx_http_headers_out_t, etag),

    /* before 1.23.0 these are arrays, and stand last */
    offsetof(ngx_http_headers_out_t, cache_control),
    offsetof(ngx_http_headers_out_t, link)
};

#define NGX_HTTP_IDEMPOTENCY_SLOTS         (sizeof(slots) / sizeof(slots[0]))
#define NGX_HTTP_IDEMPOTENCY_SLOTS_SINGLE  (NGX_HTTP_IDEMPOTENCY_SLOTS - 2)


#if (nginx_version >= 1023000)

/* every slot is the head of a list of lines */

ngx_uint_t
ngx_http_idempotency_slot(ngx_http_headers_out_t *out, ngx_table_elt_t *h)
{
    ngx_uint_t        i;
    ngx_table_elt_t  *slot;

    for (i = 0; i < NGX_HTTP_IDEMPOTENCY_SLOTS; i++) {
        slot = *(ngx_table_elt_t **) ((u_char *) out + slots[i]);

        for ( /* void */ ; slot; slot = slot->next) {
            if (slot == h) {
                return i + 2;
            }
        }
    }

    return 1;
}


static ngx_int_t
slot_fill(ngx_http_request_t *r, ngx_uint_t slot, ngx_table_elt_t *h)
{
    ngx_table_elt_t  **ph;

    ph = (ngx_table_elt_t **) ((u_char *) &r->headers_out
                               + slots[slot]);

    while (*ph) {
        ph = &(*ph)->next;
    }

    *ph = h;

    return NGX_OK;
}

#else

ngx_uint_t
ngx_http_idempotency_slot(ngx_http_headers_out_t *out, ngx_table_elt_t *h)
{
    ngx_uint_t         i, n;
    ngx_array_t       *lines;
    ngx_table_elt_t  **ph;

    for (i = 0; i < NGX_HTTP_IDEMPOTENCY_SLOTS_SINGLE; i++) {
        if (*(ngx_table_elt_t **) ((u_char *) out + slots[i]) == h) {
            return i + 2;
        }
    }

    for ( /* void */ ; i < NGX_HTTP_IDEMPOTENCY_SLOTS; i++) {
        lines = (ngx_array_t *) ((u_char *) out + slots[i]);
        ph = lines->elts;

        for (n = 0; n < lines->nelts; n++) {
            if (ph[n] == h) {
                return i + 2;
            }
        }
    }

    return 1;
}


static ngx_int_t
slot_fill(ngx_http_request_t *r, ngx_uint_t slot, ngx_table_elt_t *h)
{
    u_char            *place;
    ngx_array_t       *lines;
    ngx_table_elt_t  **ph;

    place = (u_char *) &r->headers_out + slots[slot];

    if (slot < NGX_HTTP_IDEMPOTENCY_SLOTS_SINGLE) {
        *(ngx_table_elt_t **) place = h;
        return NGX_OK;
    }

    lines = (ngx_array_t *) place;

    if (lines->elts == NULL
        && ngx_array_init(lines, r->pool, 1, sizeof(ngx_table_elt_t *))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    ph = ngx_array_push(lines);
    if (ph == NULL) {
        return NGX_ERROR;
    }

    *ph = h;

    return NGX_OK;
}

#endif


ngx_int_t
ngx_http_idempotency_slot_fill(ngx_http_request_t *r, ngx_uint_t slot,
    ngx_table_elt_t *h)
{
    if (slot >= NGX_HTTP_IDEMPOTENCY_SLOTS + 2) {
        return NGX_ERROR;
    }

    return (slot > 1) ? slot_fill(r, slot - 2, h) : NGX_OK;
}


/* a bit for each slot whose line is not sent */

ngx_uint_t
ngx_http_idempotency_slots_suppressed(ngx_http_headers_out_t *out)
{
    ngx_uint_t        i, bits;
    ngx_table_elt_t  *h;

    bits = 0;

    for (i = 0; i < NGX_HTTP_IDEMPOTENCY_SLOTS_SINGLE; i++) {
        h = *(ngx_table_elt_t **) ((u_char *) out + slots[i]);

        if (h && slot_suppressed(h)) {
            bits |= (ngx_uint_t) 1 << i;
        }
    }

    return bits;
}


static ngx_uint_t
slot_suppressed(ngx_table_elt_t *h)
{
#if (nginx_version >= 1023000)

    for ( /* void */ ; h; h = h->next) {
        if (h->hash) {
            return 0;
        }
    }

    return 1;

#else

    return h->hash == 0;

#endif
}


/* what fills these slots stands in no list of lines */

ngx_int_t
ngx_http_idempotency_slots_suppress(ngx_http_request_t *r, uint64_t bits)
{
    ngx_uint_t        i;
    ngx_table_elt_t  *h, **ph;

    for (i = 0; i < NGX_HTTP_IDEMPOTENCY_SLOTS_SINGLE; i++) {

        if ((bits & ((uint64_t) 1 << i)) == 0) {
            continue;
        }

        ph = (ngx_table_elt_t **) ((u_char *) &r->headers_out + slots[i]);

        if (*ph) {
            continue;
        }

        h = ngx_pcalloc(r->pool, sizeof(ngx_table_elt_t));
        if (h == NULL) {
            return NGX_ERROR;
        }

        h->key.data = (u_char *) "";
        h->value.data = (u_char *) "";
        h->lowcase_key = (u_char *) "";

        *ph = h;
    }

    return NGX_OK;
}
