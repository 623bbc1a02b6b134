
/*
 * multipart/form-data, as it arrives: each part has a digest of its own, and
 * that of the body is over those, sorted by the parts' names.  No part's
 * bytes are kept.
 *
 * No byte goes unseen: there may be nothing before the first delimiter and
 * behind the last one but line ends and white space.
 */


#include "ngx_idempotency_multipart.h"


#define MULTIPART_PARTS  16    /* at first */


typedef enum {
    multipart_start = 0,
    multipart_delimiter,
    multipart_behind,
    multipart_padding,
    multipart_lf,
    multipart_dash,
    multipart_header,
    multipart_bytes,
    multipart_end
} multipart_state_e;


static u_char *multipart_delimited(ngx_idempotency_multipart_t *m, u_char *p,
    u_char *last);
static ngx_int_t multipart_line(ngx_idempotency_multipart_t *m, u_char c);
static u_char *multipart_headers(ngx_idempotency_multipart_t *m, u_char *p,
    u_char *last);
static u_char *multipart_content(ngx_idempotency_multipart_t *m, u_char *p,
    u_char *last);
static ngx_int_t part_begin(ngx_idempotency_multipart_t *m);
static void part_bytes(ngx_idempotency_multipart_t *m, u_char *data,
    size_t len);
static void part_end(ngx_idempotency_multipart_t *m);
static ngx_uint_t part_is_text(ngx_idempotency_multipart_t *m,
    ngx_idempotency_part_t *part);


ngx_idempotency_multipart_t *
ngx_idempotency_multipart_create(ngx_pool_t *pool, ngx_idempotency_canon_t *c,
    ngx_str_t *boundary)
{
    ngx_idempotency_multipart_t  *m;

    m = ngx_palloc(pool, sizeof(ngx_idempotency_multipart_t));
    if (m == NULL) {
        return NULL;
    }

    m->pool = pool;
    m->canon = c;
    m->rc = NGX_OK;
    m->state = multipart_start;
    m->matched = 0;
    m->unseen = 0;
    m->nheader = 0;
    m->nparts = 0;
    m->hashing = 0;
    m->folding = 0;
    m->finding = 0;
    m->found = 0;
    m->name = NULL;
    ngx_str_null(&m->value);
    m->max = 0;

    if (boundary->len == 0 || boundary->len > NGX_IDEMPOTENCY_BOUNDARY) {
        m->rc = NGX_DECLINED;
        return m;
    }

    ngx_memcpy(m->delimiter, "\r\n--", 4);
    ngx_memcpy(m->delimiter + 4, boundary->data, boundary->len);
    m->ndelimiter = 4 + boundary->len;

    if (c && (ngx_array_init(&m->names, pool, MULTIPART_PARTS,
                             sizeof(ngx_idempotency_name_t))
              != NGX_OK
              || ngx_array_init(&m->digests, pool, MULTIPART_PARTS,
                                NGX_IDEMPOTENCY_DIGEST_LEN)
                 != NGX_OK))
    {
        return NULL;
    }

    return m;
}


void
ngx_idempotency_multipart_find(ngx_idempotency_multipart_t *m,
    ngx_str_t *name, size_t max)
{
    m->name = name;
    m->max = max;
}


ngx_str_t *
ngx_idempotency_multipart_value(ngx_idempotency_multipart_t *m)
{
    if (m->rc != NGX_OK || m->finding || m->value.data == NULL) {
        return NULL;
    }

    return &m->value;
}


ngx_int_t
ngx_idempotency_multipart_feed(ngx_idempotency_multipart_t *m, u_char *data,
    size_t len)
{
    u_char  *p, *last;

    p = data;
    last = data + len;

    while (p < last && m->rc == NGX_OK) {

        switch (m->state) {

        case multipart_start:
            /* the line end that belongs to a delimiter may be missing */

            m->matched = (*p == '-') ? 2 : 0;
            m->state = multipart_delimiter;

            /* fall through */

        case multipart_delimiter:
            p = multipart_delimited(m, p, last);
            break;

        case multipart_header:
            p = multipart_headers(m, p, last);
            break;

        case multipart_bytes:
            p = multipart_content(m, p, last);
            break;

        default:
            m->rc = multipart_line(m, *p++);
            break;
        }
    }

    return m->rc;
}


ngx_int_t
ngx_idempotency_multipart_final(ngx_idempotency_multipart_t *m,
    ngx_idempotency_digest_t *d)
{
    u_char                  *digest;
    ngx_uint_t               i;
    ngx_idempotency_name_t  *name, *tmp;
    ngx_idempotency_sink_t   sink;

    if (m->rc == NGX_OK && m->state != multipart_end) {
        m->rc = NGX_DECLINED;
    }

    if (m->rc != NGX_OK || m->canon == NULL) {
        return m->rc;
    }

    name = m->names.elts;

    tmp = ngx_palloc(m->pool, m->names.nelts * sizeof(ngx_idempotency_name_t));
    if (tmp == NULL) {
        m->rc = NGX_ERROR;
        return NGX_ERROR;
    }

    ngx_idempotency_names_sort(name, tmp, m->names.nelts);

    ngx_pfree(m->pool, tmp);

    ngx_idempotency_sink_init(&sink, d, 'M');

    for (i = 0; i < m->names.nelts; i++) {
        digest = m->digests.elts;
        digest += name[i].index * NGX_IDEMPOTENCY_DIGEST_LEN;

        ngx_idempotency_sink_bytes(&sink, digest, NGX_IDEMPOTENCY_DIGEST_LEN);
    }

    ngx_idempotency_sink_flush(&sink);

    return NGX_OK;
}


/* the first delimiter */

static u_char *
multipart_delimited(ngx_idempotency_multipart_t *m, u_char *p, u_char *last)
{
    while (p < last && m->matched < m->ndelimiter) {

        if (*p++ != m->delimiter[m->matched++]) {
            m->rc = NGX_DECLINED;
            return p;
        }
    }

    if (m->matched == m->ndelimiter) {
        m->state = multipart_behind;
    }

    return p;
}


/* the rest of a delimiter's line, and what follows the last one */

static ngx_int_t
multipart_line(ngx_idempotency_multipart_t *m, u_char c)
{
    ngx_uint_t  space;

    space = (c == ' ' || c == '\t');

    switch (m->state) {

    case multipart_behind:

        if (c == '-') {
            m->state = multipart_dash;
            return NGX_OK;
        }

        /* fall through */

    case multipart_padding:

        if (c == '\r') {
            m->state = multipart_lf;
            return NGX_OK;
        }

        m->state = multipart_padding;
        return space ? NGX_OK : NGX_DECLINED;

    case multipart_lf:
        m->state = multipart_header;
        m->nheader = 0;
        return (c == '\n') ? NGX_OK : NGX_DECLINED;

    case multipart_dash:
        m->state = multipart_end;
        return (c == '-') ? NGX_OK : NGX_DECLINED;

    default: /* multipart_end */
        return (space || c == '\r' || c == '\n') ? NGX_OK : NGX_DECLINED;
    }
}


static u_char *
multipart_headers(ngx_idempotency_multipart_t *m, u_char *p, u_char *last)
{
    size_t   n;
    u_char  *lf;

    lf = memchr(p, '\n', last - p);
    n = (lf ? lf + 1 : last) - p;

    if (n > sizeof(m->header) - m->nheader) {
        m->rc = NGX_DECLINED;
        return p;
    }

    ngx_memcpy(m->header + m->nheader, p, n);
    m->nheader += n;
    n = m->nheader;

    if (lf && n >= 2 && m->header[n - 2] == '\r'
        && (n == 2 || m->header[n - 3] == '\n'))
    {
        m->rc = part_begin(m);
        m->state = multipart_bytes;

        /* the empty line may be taken for one in front of a delimiter */

        m->matched = 2;
        m->unseen = 2;
    }

    return lf ? lf + 1 : last;
}


/*
 * A carriage return stands nowhere in a delimiter but in front: what turns
 * out to be none can begin another one only at the byte that differs.
 *
 * A delimiter right behind the header ends an empty part for some servers
 * and is a part's content for others.
 */

static u_char *
multipart_content(ngx_idempotency_multipart_t *m, u_char *p, u_char *last)
{
    size_t   n;
    u_char  *cr;

    if (m->matched) {

        /* begun in an earlier piece */

        while (p < last && m->matched < m->ndelimiter
               && *p == m->delimiter[m->matched])
        {
            p++;
            m->matched++;
        }

        if (m->matched == m->ndelimiter) {

            if (m->unseen) {
                m->rc = NGX_DECLINED;

            } else {
                part_end(m);
            }

            return p;
        }

        if (p == last) {
            return p;
        }

        part_bytes(m, m->delimiter + m->unseen, m->matched - m->unseen);

        m->matched = 0;
        m->unseen = 0;
    }

    for (cr = p; /* void */ ; cr++) {

        cr = memchr(cr, '\r', last - cr);

        if (cr == NULL) {
            part_bytes(m, p, last - p);
            return last;
        }

        n = ngx_min((size_t) (last - cr), m->ndelimiter);

        if (n > 1 && cr[1] != '\n') {
            continue;
        }

        if (ngx_memcmp(cr, m->delimiter, n) == 0) {
            break;
        }
    }

    part_bytes(m, p, cr - p);

    if (n == m->ndelimiter) {
        part_end(m);

    } else {
        m->matched = n;
    }

    return cr + n;
}


static ngx_int_t
part_begin(ngx_idempotency_multipart_t *m)
{
    u_char                   *name;
    ngx_idempotency_name_t   *key;
    ngx_idempotency_part_t    part;

    if (m->nparts++ == NGX_IDEMPOTENCY_MULTIPART_PARTS
        || ngx_idempotency_part_header(&part, m->header, m->nheader) != NGX_OK)
    {
        return NGX_DECLINED;
    }

    if (m->name && !m->found
        && ngx_idempotency_field_is(m->name, part.name.data, part.name.len))
    {
        m->found = 1;

        if (part.filename.data == NULL && part.extended.data == NULL) {
            m->value.len = 0;
            m->value.data = ngx_pnalloc(m->pool, ngx_max(m->max, 1));

            if (m->value.data == NULL) {
                return NGX_ERROR;
            }

            m->finding = 1;
        }
    }

    if (m->canon == NULL
        || (m->canon->ignore
            && ngx_idempotency_ignored(m->canon, part.name.data,
                                       part.name.len)))
    {
        return NGX_OK;
    }

    key = ngx_array_push(&m->names);
    name = ngx_pnalloc(m->pool, ngx_max(part.name.len, 1));

    if (key == NULL || name == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(name, part.name.data, part.name.len);
    ngx_idempotency_name_set(key, name, part.name.len, m->names.nelts - 1);

    ngx_idempotency_digest_init(&m->digest, 'P');
    ngx_idempotency_digest_field(&m->digest, &part.name);

    if (part.filename.data) {
        ngx_idempotency_digest_bytes(&m->digest, (u_char *) "f", 1);
        ngx_idempotency_digest_field(&m->digest, &part.filename);
    }

    if (part.extended.data) {
        ngx_idempotency_digest_bytes(&m->digest, (u_char *) "x", 1);
        ngx_idempotency_digest_field(&m->digest, &part.extended);
    }

    if (part.type.data) {
        ngx_idempotency_digest_bytes(&m->digest, (u_char *) "t", 1);
        ngx_idempotency_digest_type(&m->digest, &part.type);
    }

    ngx_idempotency_digest_bytes(&m->digest, (u_char *) ".", 1);

    m->hashing = 1;

    if (part_is_text(m, &part)) {
        m->folding = 1;
        ngx_idempotency_fold_init(&m->fold);
    }

    return NGX_OK;
}


/* values of fields are folded as those of a form are; files never are */

static ngx_uint_t
part_is_text(ngx_idempotency_multipart_t *m, ngx_idempotency_part_t *part)
{
    ngx_uint_t  flags;

    flags = m->canon->flags & NGX_IDEMPOTENCY_CANON_TEXT;

    if (flags == 0 || part->filename.data || part->extended.data) {
        return 0;
    }

    return part->type.data == NULL
           || ngx_idempotency_canon_kind(&part->type, flags, NULL) != 0;
}


static void
part_bytes(ngx_idempotency_multipart_t *m, u_char *data, size_t len)
{
    size_t  n;
    u_char  buf[4096], *last;

    if (m->finding) {

        if (len > m->max - m->value.len) {
            m->value.data = NULL;
            m->finding = 0;

        } else {
            ngx_memcpy(m->value.data + m->value.len, data, len);
            m->value.len += len;
        }
    }

    if (!m->hashing) {
        return;
    }

    if (!m->folding) {
        ngx_idempotency_digest_bytes(&m->digest, data, len);
        return;
    }

    while (len) {
        n = ngx_min(len, sizeof(buf) - NGX_IDEMPOTENCY_FOLD_MORE);

        last = ngx_idempotency_fold(&m->fold, buf, data, n);
        ngx_idempotency_digest_bytes(&m->digest, buf, last - buf);

        data += n;
        len -= n;
    }
}


static void
part_end(ngx_idempotency_multipart_t *m)
{
    u_char  *digest, rest[NGX_IDEMPOTENCY_FOLD_MORE], *last;

    m->state = multipart_behind;
    m->finding = 0;

    if (!m->hashing) {
        return;
    }

    m->hashing = 0;

    if (m->folding) {
        m->folding = 0;

        last = ngx_idempotency_fold_end(&m->fold, rest);
        ngx_idempotency_digest_bytes(&m->digest, rest, last - rest);
    }

    digest = ngx_array_push(&m->digests);

    if (digest == NULL) {
        m->rc = NGX_ERROR;
        return;
    }

    ngx_idempotency_digest_final(&m->digest, digest);
}
