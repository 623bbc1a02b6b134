
/*
 * multipart/form-data, read as it arrives.  Each part has a digest of its own,
 * and the body's digest is made of these.  They are sorted by the groups of
 * the parts' names; if some part's header is ambiguous, they stay in order.
 * No part's bytes are kept.
 *
 * The digest covers every byte: in front of the first delimiter and behind the
 * last one only line ends and white space are valid.  Fields are found where
 * servers behind us find them: for fields a malformed body is read as far as
 * its meaning is plain.
 *
 * Two bodies that some server reads differently must not have one digest.  So
 * a part's header (RFC 7578) is malformed here if it has folded lines, a line
 * end that is not CRLF, or an encoding of the bytes.  It is ambiguous if it
 * has a parameter twice or, but for filename, in the extended form; a name
 * with escapes or in single quotes, which PHP removes; or the name of a file
 * whose brackets don't match: PHP takes neither that file nor any behind it.
 */


#include "ngx_idempotency_encode.h"


#define NGX_IDEMPOTENCY_MULTIPART_FIRST  16    /* allocated at first */

/* the readable fields of a malformed body: all, all but this part's, none */

typedef enum {
    multipart_plain = 0,
    multipart_part,
    multipart_lost
} multipart_malformed_e;


typedef enum {
    multipart_start = 0,
    multipart_behind,
    multipart_padding,
    multipart_lf,
    multipart_dash,
    multipart_header,
    multipart_bytes,
    multipart_end
} multipart_state_e;


typedef struct {
    ngx_str_t                  name;
    ngx_str_t                  filename;        /* no data: absent */
    ngx_str_t                  extended;        /* filename* */
    ngx_str_t                  type;

    unsigned                   ambiguous:1;
    unsigned                   other:1;         /* others is in use */

    /* a digest of other parameters and header lines */
    ngx_idempotency_digest_t   others;
} part_t;


typedef struct {
    ngx_pool_t                *pool;
    ngx_idempotency_canon_t   *canon;

    ngx_int_t                  rc;
    ngx_uint_t                 state;

    /* a line end, two dashes and the boundary */
    u_char                     delimiter[4 + NGX_IDEMPOTENCY_BOUNDARY];
    size_t                     ndelimiter;
    size_t                     matched;
    size_t                     unseen;    /* matched in the header */

    u_char                     header[NGX_IDEMPOTENCY_MULTIPART_HEADER];
    size_t                     nheader;

    /* the current part */
    ngx_idempotency_digest_t   digest;
    ngx_idempotency_fold_t     fold;
    ngx_uint_t                 nparts;
    ngx_uint_t                 nlimits;   /* MAX_FILE_SIZE fields so far */

    unsigned                   preamble:1;
    unsigned                   hashing:1;
    unsigned                   folding:1;
    unsigned                   ambiguous:1;

    /* a digest of all parts in their order, with their headers as they are */
    ngx_idempotency_digest_t   ordered;

    /* of parts that are not ignored: digests, names, and the groups' bytes */
    ngx_array_t                digests;
    ngx_array_t                names;
    ngx_array_t                groups;

    /* the wanted fields, or NULL */
    ngx_idempotency_fields_t  *fields;
} multipart_t;


static ngx_int_t multipart_matches(ngx_str_t *type, u_char *pos, u_char *end,
    ngx_str_t *boundary);
static ngx_uint_t boundary_is_valid(ngx_str_t *boundary);
static void *multipart_create(ngx_pool_t *pool, ngx_idempotency_canon_t *c,
    ngx_str_t *boundary, ngx_idempotency_fields_t *f);
static ngx_int_t multipart_feed(void *stream, u_char *data, size_t len);
static ngx_int_t multipart_final(void *stream, ngx_idempotency_digest_t *d);
static ngx_int_t multipart_line(multipart_t *m, u_char c);
static u_char *multipart_headers(multipart_t *m, u_char *p, u_char *last);
static u_char *multipart_content(multipart_t *m, u_char *p, u_char *last);
static void multipart_decline(multipart_t *m, ngx_uint_t what);
static void part_begin(multipart_t *m);
static ngx_int_t part_digest(multipart_t *m, part_t *part);
static void part_field(ngx_idempotency_fields_t *f, part_t *part);
static void part_bytes(multipart_t *m, u_char *data, size_t len);
static void part_end(multipart_t *m);
static ngx_uint_t part_is_text(multipart_t *m, part_t *part);
static ngx_int_t part_header(part_t *part, u_char *data, size_t len);
static ngx_uint_t part_brackets(ngx_str_t *name);
static ngx_int_t part_line(part_t *part, u_char *start, u_char *end);
static ngx_int_t part_disposition(part_t *part, ngx_str_t *value);
static void part_other(part_t *part, u_char letter, ngx_str_t *name,
    ngx_str_t *value);


const ngx_idempotency_kind_t  ngx_idempotency_multipart_kind = {
    .name = ngx_string("multipart"),
    .flag = NGX_IDEMPOTENCY_CANON_MULTIPART,
    .parameter = "boundary",
    .escape = 1,
    .matches = multipart_matches,
    .start = multipart_create,
    .feed = multipart_feed,
    .finish = multipart_final
};


static ngx_int_t
multipart_matches(ngx_str_t *type, u_char *pos, u_char *end,
    ngx_str_t *boundary)
{
    ngx_int_t  rc;
    ngx_str_t  name, value;

    if (!ngx_idempotency_equal(type, "multipart/form-data")) {
        return NGX_DECLINED;
    }

    ngx_str_null(boundary);

    while ((rc = ngx_idempotency_parameter(&pos, end, &name, &value))
           == NGX_OK)
    {

        if (!ngx_idempotency_begins(&name, "boundary")) {
            continue;
        }

        /* RFC 2231 has "boundary*" and "boundary*0", too */

        if (boundary->data || name.len != sizeof("boundary") - 1) {
            return NGX_ERROR;
        }

        *boundary = value;
    }

    return (rc == NGX_DONE && boundary_is_valid(boundary)) ? NGX_OK
                                                           : NGX_ERROR;
}


/* RFC 2046, 5.1.1, but with more characters */

static ngx_uint_t
boundary_is_valid(ngx_str_t *boundary)
{
    size_t  i;
    u_char  c;

    if (boundary->len == 0 || boundary->len > NGX_IDEMPOTENCY_BOUNDARY
        || boundary->data[boundary->len - 1] == ' ')
    {
        return 0;
    }

    for (i = 0; i < boundary->len; i++) {
        c = boundary->data[i];

        if (c < ' ' || c > '~' || c == '"' || c == '\\') {
            return 0;
        }
    }

    return 1;
}


static void *
multipart_create(ngx_pool_t *pool, ngx_idempotency_canon_t *c,
    ngx_str_t *boundary, ngx_idempotency_fields_t *f)
{
    multipart_t  *m;

    m = ngx_pcalloc(pool, sizeof(multipart_t));
    if (m == NULL) {
        return NULL;
    }

    /*
     * set by ngx_pcalloc():
     *
     *     m->rc = NGX_OK;
     *     m->state = multipart_start;
     */

    m->pool = pool;
    m->canon = c;
    m->preamble = 1;
    m->fields = f;

    if (boundary->len == 0 || boundary->len > NGX_IDEMPOTENCY_BOUNDARY) {
        m->rc = NGX_DECLINED;

        if (f) {
            ngx_idempotency_fields_unreadable(f);
        }

        return m;
    }

    ngx_memcpy(m->delimiter, "\r\n--", 4);
    ngx_memcpy(m->delimiter + 4, boundary->data, boundary->len);
    m->ndelimiter = 4 + boundary->len;

    if (c == NULL) {
        return m;
    }

    ngx_idempotency_digest_begin(&m->ordered, NULL);

    if (ngx_array_init(&m->digests, pool, NGX_IDEMPOTENCY_MULTIPART_FIRST,
                       NGX_IDEMPOTENCY_DIGEST_LEN)
        != NGX_OK
        || ngx_array_init(&m->names, pool, NGX_IDEMPOTENCY_MULTIPART_FIRST,
                          sizeof(ngx_idempotency_name_t))
           != NGX_OK
        || ngx_array_init(&m->groups, pool,
                          16 * NGX_IDEMPOTENCY_MULTIPART_FIRST, 1)
           != NGX_OK)
    {
        return NULL;
    }

    return m;
}


static ngx_int_t
multipart_feed(void *stream, u_char *data, size_t len)
{
    multipart_t  *m = stream;

    u_char  *p, *last;

    p = data;
    last = data + len;

    while (p < last
           && (m->rc == NGX_OK
               || (m->rc == NGX_DECLINED && m->fields && !m->fields->done)))
    {

        switch (m->state) {

        case multipart_start:
            /* here the line end in front of a delimiter may be missing */

            m->matched = (*p == '-') ? 2 : 0;
            m->state = multipart_bytes;

            /* fall through */

        case multipart_bytes:
            p = multipart_content(m, p, last);
            break;

        case multipart_header:
            p = multipart_headers(m, p, last);
            break;

        default:
            if (multipart_line(m, *p++) == NGX_OK) {
                break;
            }

            if (m->state != multipart_end) {
                multipart_decline(m, multipart_lost);
                break;
            }

            /* behind the last delimiter there are no parts */

            multipart_decline(m, multipart_plain);

            if (m->fields) {
                m->fields->done = 1;
            }
        }
    }

    return m->rc;
}


static void
multipart_decline(multipart_t *m, ngx_uint_t what)
{
    if (m->rc == NGX_OK) {
        m->rc = NGX_DECLINED;
    }

    m->hashing = 0;

    if (m->fields == NULL) {
        return;
    }

    switch (what) {

    case multipart_part:
        /* this part may be a field that no other part is */

        ngx_idempotency_field_end(m->fields, NGX_IDEMPOTENCY_FIELD_SPOILT);
        m->fields->unreadable = 1;
        break;

    case multipart_lost:
        ngx_idempotency_fields_unreadable(m->fields);
        break;
    }
}


static ngx_int_t
multipart_final(void *stream, ngx_idempotency_digest_t *d)
{
    multipart_t  *m = stream;

    u_char                  *digest, ordered[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_uint_t               i, n;
    ngx_idempotency_name_t  *names, *tmp;

    if (m->state != multipart_end) {
        multipart_decline(m, multipart_lost);
    }

    if (m->fields) {
        m->fields->done = 1;
    }

    if (m->rc != NGX_OK || m->canon == NULL) {
        return m->rc;
    }

    if (m->ambiguous) {
        ngx_idempotency_digest_final(&m->ordered, ordered);
        ngx_idempotency_digest_bytes(d, (u_char *) "O", 1);
        ngx_idempotency_digest_bytes(d, ordered, sizeof(ordered));
        return NGX_OK;
    }

    digest = m->digests.elts;
    names = m->names.elts;
    n = m->names.nelts;

    tmp = ngx_palloc(m->pool, n / 2 * sizeof(ngx_idempotency_name_t) + 1);
    if (tmp == NULL) {
        m->rc = NGX_ERROR;
        return NGX_ERROR;
    }

    ngx_idempotency_names_sort(m->groups.elts, names, tmp, n);

    ngx_pfree(m->pool, tmp);

    ngx_idempotency_digest_bytes(d, (u_char *) "M", 1);

    for (i = 0; i < n; i++) {
        ngx_idempotency_digest_bytes(d,
                         digest + names[i].index * NGX_IDEMPOTENCY_DIGEST_LEN,
                         NGX_IDEMPOTENCY_DIGEST_LEN);
    }

    return NGX_OK;
}


/* reads the rest of a delimiter's line, and all behind the last delimiter */

static ngx_int_t
multipart_line(multipart_t *m, u_char c)
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

        if (c != '-') {
            return NGX_DECLINED;
        }

        m->state = multipart_end;
        return NGX_OK;

    default: /* multipart_end */
        return (space || c == '\r' || c == '\n') ? NGX_OK : NGX_DECLINED;
    }
}


static u_char *
multipart_headers(multipart_t *m, u_char *p, u_char *last)
{
    size_t   n;
    u_char  *lf;

    lf = memchr(p, '\n', last - p);
    n = (lf ? lf + 1 : last) - p;

    if (n > sizeof(m->header) - m->nheader) {

        multipart_decline(m, multipart_part);

        m->state = multipart_bytes;
        m->matched = 0;

        return p;
    }

    ngx_memcpy(m->header + m->nheader, p, n);
    m->nheader += n;
    n = m->nheader;

    if (lf && n >= 2 && m->header[n - 2] == '\r'
        && (n == 2 || m->header[n - 3] == '\n'))
    {
        part_begin(m);
        m->state = multipart_bytes;

        /* the line end of the empty line may belong to a delimiter, too */

        m->matched = 2;
        m->unseen = 2;
    }

    return lf ? lf + 1 : last;
}


/*
 * A delimiter has a carriage return only at its beginning.  So after a failed
 * match the next one can't begin before the byte that differs.
 *
 * For some servers a delimiter right behind the header ends an empty part, for
 * others it is the part's content.
 */

static u_char *
multipart_content(multipart_t *m, u_char *p, u_char *last)
{
    size_t   n;
    u_char  *cr;

    if (m->matched) {

        /* the delimiter began in an earlier piece */

        while (p < last && m->matched < m->ndelimiter
               && *p == m->delimiter[m->matched])
        {
            p++;
            m->matched++;
        }

        if (m->matched == m->ndelimiter) {

            if (m->unseen) {
                multipart_decline(m, multipart_part);
                m->unseen = 0;
            }

            part_end(m);

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


static void
part_begin(multipart_t *m)
{
    part_t  part;

    if (part_header(&part, m->header, m->nheader) != NGX_OK) {
        multipart_decline(m, multipart_part);
        return;
    }

    if (part.ambiguous) {

        /* servers may read another name: the part is neither ignored nor a
           field */

        m->ambiguous = 1;

        if (m->fields) {
            m->fields->unreadable = 1;
        }

    } else if (m->fields) {
        part_field(m->fields, &part);
    }

    if (m->nparts++ == NGX_IDEMPOTENCY_MULTIPART_PARTS
        || m->groups.nelts > NGX_IDEMPOTENCY_MULTIPART_NAMES)
    {
        multipart_decline(m, multipart_plain);
        return;
    }

    if (m->rc != NGX_OK || m->canon == NULL
        || (m->canon->ignore && !part.ambiguous
            && ngx_idempotency_ignored(m->canon, part.name.data,
                                       part.name.len)))
    {
        return;
    }

    if (part_digest(m, &part) != NGX_OK) {
        m->rc = NGX_ERROR;
    }
}


static void
part_field(ngx_idempotency_fields_t *f, part_t *part)
{
    ngx_idempotency_field_name(f, part->name.data, part->name.len);
    (void) ngx_idempotency_field_begin(f);

    if (part->filename.data || part->extended.data) {
        ngx_idempotency_field_end(f, NGX_IDEMPOTENCY_FIELD_NONE);
    }
}


static ngx_int_t
part_digest(multipart_t *m, part_t *part)
{
    void                    *old;
    u_char                  *p, *last, text[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_str_t                group, header;
    ngx_idempotency_name_t  *name;

    group = ngx_idempotency_group(&part->name);

    old = m->groups.elts;

    name = ngx_array_push(&m->names);
    p = ngx_array_push_n(&m->groups,
                         group.len + NGX_IDEMPOTENCY_NAME_PREFIX);

    if (name == NULL || p == NULL || ngx_array_push(&m->digests) == NULL) {
        return NGX_ERROR;
    }

    if (m->groups.elts != old) {
        /* the old array may be large */
        (void) ngx_pfree(m->pool, old);
    }

    ngx_memcpy(p, group.data, group.len);

    ngx_idempotency_name_set(name, m->groups.elts,
                             p - (u_char *) m->groups.elts, group.len,
                             m->names.nelts - 1);

    header.data = m->header;
    header.len = m->nheader;
    ngx_idempotency_digest_field(&m->ordered, &header);

    ngx_idempotency_digest_init(&m->digest, NULL,
                                NGX_IDEMPOTENCY_DIGEST_OTHER_VERSION, 'P');
    ngx_idempotency_digest_field(&m->digest, &part->name);

    if (part->filename.data) {
        ngx_idempotency_digest_bytes(&m->digest, (u_char *) "f", 1);
        ngx_idempotency_digest_field(&m->digest, &part->filename);
    }

    if (part->extended.data) {
        ngx_idempotency_digest_bytes(&m->digest, (u_char *) "x", 1);
        ngx_idempotency_digest_field(&m->digest, &part->extended);
    }

    if (part->type.data) {
        ngx_idempotency_digest_bytes(&m->digest, (u_char *) "t", 1);
        ngx_idempotency_digest_type(&m->digest, &part->type, NULL);
    }

    if (part->other) {
        ngx_idempotency_digest_bytes(&m->digest, (u_char *) "o", 1);
        ngx_idempotency_digest_final(&part->others, text);
        ngx_idempotency_digest_bytes(&m->digest, text, sizeof(text));
    }

    if (part->filename.data == NULL) {
        m->nlimits += ngx_idempotency_equal(&part->name, "MAX_FILE_SIZE");

    } else if (m->nlimits) {
        text[0] = 'm';
        last = ngx_idempotency_length(text + 1, m->nlimits);
        ngx_idempotency_digest_bytes(&m->digest, text, last - text);
    }

    ngx_idempotency_digest_bytes(&m->digest, (u_char *) ".", 1);

    m->hashing = 1;

    if (part_is_text(m, part)) {
        m->folding = 1;
        ngx_idempotency_fold_init(&m->fold);
    }

    return NGX_OK;
}


/* white space is folded in fields, as in a form, and never in files */

static ngx_uint_t
part_is_text(multipart_t *m, part_t *part)
{
    ngx_uint_t                     flags;
    const ngx_idempotency_kind_t  *kind;

    flags = m->canon->flags & NGX_IDEMPOTENCY_CANON_TEXT;

    if (flags == 0 || part->filename.data || part->extended.data) {
        return 0;
    }

    if (part->type.data == NULL) {
        return 1;
    }

    (void) ngx_idempotency_kind(&part->type, flags, NULL, &kind);

    return kind != NULL;
}


/* bytes in front of the first delimiter belong to no part */

static void
part_bytes(multipart_t *m, u_char *data, size_t len)
{
    if (m->preamble && len) {
        multipart_decline(m, multipart_plain);
    }

    if (m->fields) {
        ngx_idempotency_field_put(m->fields, data, len);
    }

    if (!m->hashing) {
        return;
    }

    if (m->folding) {
        ngx_idempotency_fold_digest(&m->fold, &m->digest, data, len);

    } else {
        ngx_idempotency_digest_bytes(&m->digest, data, len);
    }
}


static void
part_end(multipart_t *m)
{
    u_char  *digest;

    m->state = multipart_behind;
    m->preamble = 0;

    if (m->fields) {
        ngx_idempotency_field_end(m->fields, NGX_IDEMPOTENCY_FIELD_FOUND);
    }

    if (!m->hashing) {
        return;
    }

    m->hashing = 0;

    if (m->folding) {
        m->folding = 0;

        ngx_idempotency_fold_digest_end(&m->fold, &m->digest);
    }

    digest = m->digests.elts;
    digest += (m->digests.nelts - 1) * NGX_IDEMPOTENCY_DIGEST_LEN;

    ngx_idempotency_digest_final(&m->digest, digest);
    ngx_idempotency_digest_bytes(&m->ordered, digest,
                                 NGX_IDEMPOTENCY_DIGEST_LEN);
}


/* reads header lines and the empty one behind; NGX_DECLINED: malformed */

static ngx_int_t
part_header(part_t *part, u_char *data, size_t len)
{
    u_char  *p, *end;

    ngx_memzero(part, offsetof(part_t, others));

    end = data + len;

    for ( ;; ) {
        p = ngx_strlchr(data, end, '\n');

        if (p == NULL || p == data || p[-1] != '\r') {
            return NGX_DECLINED;
        }

        if (p - data == 1) {
            break;
        }

        if (part_line(part, data, p - 1) != NGX_OK) {
            return NGX_DECLINED;
        }

        data = p + 1;
    }

    if (part->filename.data && !part_brackets(&part->name)) {
        part->ambiguous = 1;
    }

    return part->name.data ? NGX_OK : NGX_DECLINED;
}


/* whether all brackets are closed, with nothing but brackets behind the first
   pair */

static ngx_uint_t
part_brackets(ngx_str_t *name)
{
    size_t      i;
    ngx_uint_t  open, closed;

    open = 0;
    closed = 0;

    for (i = 0; i < name->len; i++) {

        if (name->data[i] == '[') {

            if (open) {
                return 0;
            }

            open = 1;

        } else if (closed || (name->data[i] == ']' && !open)) {
            return 0;
        }

        closed = (name->data[i] == ']');
        open = open && !closed;
    }

    return !open;
}


static ngx_int_t
part_line(part_t *part, u_char *start, u_char *end)
{
    u_char     *p;
    ngx_str_t   name, value;

    for (p = start; p < end; p++) {
        if (*p == '\0' || *p == '\r') {
            return NGX_DECLINED;
        }
    }

    p = ngx_strlchr(start, end, ':');

    if (p == NULL || p == start || p[-1] == ' ' || p[-1] == '\t'
        || *start == ' ' || *start == '\t')
    {
        return NGX_DECLINED;
    }

    name.data = start;
    name.len = p - start;

    for (p++; p < end && (*p == ' ' || *p == '\t'); p++) { /* void */ }

    value.data = p;
    value.len = end - p;

    if (ngx_idempotency_equal(&name, "content-disposition")) {
        return part_disposition(part, &value);
    }

    if (ngx_idempotency_equal(&name, "content-type")) {

        if (part->type.data) {
            return NGX_DECLINED;
        }

        part->type = value;
        return NGX_OK;
    }

    if (ngx_idempotency_equal(&name, "content-transfer-encoding")
        && !ngx_idempotency_equal(&value, "binary")
        && !ngx_idempotency_equal(&value, "8bit")
        && !ngx_idempotency_equal(&value, "7bit"))
    {
        return NGX_DECLINED;
    }

    part_other(part, 'h', &name, &value);

    return NGX_OK;
}


static ngx_int_t
part_disposition(part_t *part, ngx_str_t *value)
{
    u_char     *p, *end;
    ngx_int_t   rc;
    ngx_str_t   name, text, *to;

    p = value->data;
    end = p + value->len;

    if (p == end || *p == ';') {
        return NGX_DECLINED;
    }

    rc = ngx_idempotency_parameter(&p, end, &name, &text);

    if (rc != NGX_OK || !ngx_idempotency_equal(&name, "form-data")
        || text.data || part->name.data)
    {
        return NGX_DECLINED;
    }

    while ((rc = ngx_idempotency_parameter(&p, end, &name, &text)) == NGX_OK) {

        if (ngx_idempotency_equal(&name, "name")) {
            to = &part->name;

        } else if (ngx_idempotency_begins(&name, "name*")) {
            to = &part->name;
            part->ambiguous = 1;

        } else if (ngx_idempotency_equal(&name, "filename")) {
            to = &part->filename;

        } else if (ngx_idempotency_equal(&name, "filename*")) {
            to = &part->extended;

        } else if (name.len + text.len) {
            part_other(part, 'p', &name, &text);
            continue;

        } else {
            continue;
        }

        if (text.data == NULL) {
            return NGX_DECLINED;
        }

        if (to->data) {
            part->ambiguous = 1;
            continue;
        }

        if (to == &part->name && text.len
            && (text.data[0] == '\'' || memchr(text.data, '\\', text.len)))
        {
            part->ambiguous = 1;
        }

        *to = text;
    }

    return (rc == NGX_DONE && part->name.data) ? NGX_OK : NGX_DECLINED;
}


/* names that are longer than any registered one keep their letter case */

static void
part_other(part_t *part, u_char letter, ngx_str_t *name, ngx_str_t *value)
{
    u_char  *p, head[1 + 10], lower[64];

    if (!part->other) {
        part->other = 1;
        ngx_idempotency_digest_begin(&part->others, NULL);
        ngx_idempotency_digest_bytes(&part->others, (u_char *) "O", 1);
    }

    p = name->data;

    if (name->len <= sizeof(lower)) {
        ngx_strlow(lower, p, name->len);
        p = lower;
    }

    head[0] = letter;

    ngx_idempotency_digest_bytes(&part->others, head,
                                 ngx_idempotency_length(head + 1, name->len)
                                 - head);
    ngx_idempotency_digest_bytes(&part->others, p, name->len);

    ngx_idempotency_digest_bytes(&part->others, head,
                                 ngx_idempotency_length(head, value->len)
                                 - head);

    /* without an equals sign the value has no data pointer */

    ngx_idempotency_digest_bytes(&part->others, value->len ? value->data : p,
                                 value->len);
}
