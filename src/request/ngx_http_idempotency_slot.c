
/*
 * The slots of headers_out: pointers to the lines that nginx and its filters
 * look at, or add themselves where there is none.  Names alone don't tell them:
 * a line of such a name may stand there without a slot, and a slot may point to
 * a line that is not sent, so that nginx adds none.
 */


#include "ngx_http_idempotency_response.h"


static ngx_int_t slot_fill(ngx_http_request_t *r, ngx_uint_t slot,
    ngx_table_elt_t *h);
static ngx_uint_t slot_suppressed(ngx_table_elt_t *h);


typedef struct {
    ngx_str_t  name;
    size_t     offset;
} slot_t;


#define slot(name, member)                                                   \
    { ngx_string(name), offsetof(ngx_http_headers_out_t, member) }

/* a slot is 2 plus an index here; 1 is a line that occupies none */

static slot_t  slots[] = {
    slot("Server", server),
    slot("Date", date),
    slot("Content-Length", content_length),
    slot("Content-Encoding", content_encoding),
    slot("Location", location),
    slot("Refresh", refresh),
    slot("Last-Modified", last_modified),
    slot("Content-Range", content_range),
    slot("Accept-Ranges", accept_ranges),
    slot("WWW-Authenticate", www_authenticate),
    slot("Expires", expires),
    slot("ETag", etag),

    /* before 1.23.0 these are arrays, and stand last */
    slot("Cache-Control", cache_control),
    slot("Link", link)
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
        slot = *(ngx_table_elt_t **) ((u_char *) out + slots[i].offset);

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
                               + slots[slot].offset);

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
        if (*(ngx_table_elt_t **) ((u_char *) out + slots[i].offset) == h) {
            return i + 2;
        }
    }

    for ( /* void */ ; i < NGX_HTTP_IDEMPOTENCY_SLOTS; i++) {
        lines = (ngx_array_t *) ((u_char *) out + slots[i].offset);
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

    place = (u_char *) &r->headers_out + slots[slot].offset;

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
    return (slot > 1) ? slot_fill(r, slot - 2, h) : NGX_OK;
}


/* is it one, and may a line of that name stand there? */

ngx_uint_t
ngx_http_idempotency_slot_is(ngx_uint_t slot, ngx_str_t *name)
{
    ngx_str_t  *is;

    if (slot < 2) {
        return slot;
    }

    if (slot >= NGX_HTTP_IDEMPOTENCY_SLOTS + 2) {
        return 0;
    }

    is = &slots[slot - 2].name;

    return name->len == is->len
           && ngx_strncasecmp(name->data, is->data, is->len) == 0;
}


ngx_uint_t
ngx_http_idempotency_slots_known(uint64_t bits)
{
    return bits >> NGX_HTTP_IDEMPOTENCY_SLOTS_SINGLE == 0;
}


/* a bit for each slot whose line is not sent */

ngx_uint_t
ngx_http_idempotency_slots_suppressed(ngx_http_headers_out_t *out)
{
    ngx_uint_t        i, bits;
    ngx_table_elt_t  *h;

    bits = 0;

    for (i = 0; i < NGX_HTTP_IDEMPOTENCY_SLOTS_SINGLE; i++) {
        h = *(ngx_table_elt_t **) ((u_char *) out + slots[i].offset);

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

        ph = (ngx_table_elt_t **) ((u_char *) &r->headers_out
                                   + slots[i].offset);

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
