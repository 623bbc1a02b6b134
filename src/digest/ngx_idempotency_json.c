
/*
 * JSON, read in two ways: whole for the digest, in pieces for its fields.
 *
 * For the digest a document is read as a whole into nodes, iteratively, the
 * members of each object put into order when it ends, and then encoded; nothing
 * is fed into the digest before it is known to be valid.
 * Strings must be UTF-8 and are decoded only if they have escapes; numbers are
 * told by their decimal value.
 *
 * Readers differ in which of two members counts whose names are the same or
 * the same but for letter case, so there are no two in a valid one, not even
 * where they are left out.  By order of names they are neighbours.
 *
 * Fields are members at the top, found in pieces of any size.  Of what is
 * deeper only strings and brackets are looked at, so that what is wrong there
 * hides nothing; what is wrong between the members does.
 */


#include "ngx_idempotency_encode.h"


/* types are the letters of the encoding, but for numbers to be rewritten */

#define NGX_IDEMPOTENCY_JSON_NULL     'N'
#define NGX_IDEMPOTENCY_JSON_TRUE     'T'
#define NGX_IDEMPOTENCY_JSON_FALSE    'F'
#define NGX_IDEMPOTENCY_JSON_STRING   '"'
#define NGX_IDEMPOTENCY_JSON_NUMBER   '#'
#define NGX_IDEMPOTENCY_JSON_DECIMAL  '.'
#define NGX_IDEMPOTENCY_JSON_ARRAY    '['
#define NGX_IDEMPOTENCY_JSON_OBJECT   '{'

#define NGX_IDEMPOTENCY_JSON_NONE     0xffffff

/* names that are told apart by letters which some readers take for others */

#define NGX_IDEMPOTENCY_JSON_FOLDED   65536

/* a small document needs no memory: so many values, so many members */

#define NGX_IDEMPOTENCY_JSON_VALUES   96
#define NGX_IDEMPOTENCY_JSON_NAMES    32


typedef struct {
    uint32_t                     name;     /* a place; it comes first, as
                                              names are sorted by it */
    uint32_t                     name_len;
    uint32_t                     value;    /* a place, or the first child */
    uint32_t                     len;
    uint32_t                     next:24;  /* the next sibling */
    uint32_t                     ignored:1;
    uint32_t                     type:7;
} json_node_t;


/* a container that is open */

typedef struct {
    uint32_t                     node;
    uint32_t                     last;     /* child */
    uint32_t                     nchildren;
    uint32_t                     nelements;
    uint32_t                     ignore;   /* from this path on ... */
    uint32_t                     nignore;  /* ... so many begin as it does */
    ngx_uint_t                   unsorted;
} json_frame_t;


typedef struct {
    u_char                      *data;
    u_char                      *end;
    uint32_t                     size;

    /*
     * strings that are not as they are written; a place beyond the document
     * is in here
     */
    u_char                      *scratch;
    u_char                      *last;
    size_t                       room;      /* for names that are folded */
    ngx_uint_t                   not_ascii; /* the last string */

    json_node_t                 *nodes;
    uint32_t                     nnodes;
    uint32_t                     nalloc;
    json_node_t                  values[NGX_IDEMPOTENCY_JSON_VALUES];

    /* of the value to come */
    uint32_t                     name;
    uint32_t                     name_len;
    uint32_t                     ignore;
    uint32_t                     nignore;
    ngx_uint_t                   ignored;

    /* of an object to be sorted, and as many again */
    ngx_idempotency_name_t      *names;
    uint32_t                     nnames;
    ngx_idempotency_name_t       members[2 * NGX_IDEMPOTENCY_JSON_NAMES];

    ngx_array_t                 *paths;
    ngx_pool_t                  *pool;
    ngx_uint_t                   no_memory;

    ngx_uint_t                   depth;
    json_frame_t                 frames[NGX_IDEMPOTENCY_JSON_DEPTH];
} json_t;


/* more digits than these in an exponent are beyond our arithmetic */

#define NGX_IDEMPOTENCY_JSON_EXPONENT  18


/* escape: behind a backslash, behind "\u", and from there on its digits */

typedef enum {
    find_backslash = 1,
    find_digits = 2,
    find_digits_end = 6
} find_escape_e;


typedef enum {
    find_start = 0,
    find_root,             /* a number or a literal */
    find_mark,
    find_mark_end,
    find_member,
    find_name,
    find_long_name,
    find_colon,
    find_value,
    find_string,
    find_scalar,
    find_nested,
    find_skipped,          /* a string */
    find_behind,
    find_end
} find_state_e;


static ngx_int_t json_matches(ngx_str_t *type, u_char *pos, u_char *end,
    ngx_str_t *boundary);
static ngx_int_t json_whole(ngx_idempotency_digest_t *d,
    ngx_idempotency_canon_t *c, u_char *data, size_t len, ngx_pool_t *pool);
static u_char *json_read(json_t *j, u_char *p);
static u_char *json_next(json_t *j, u_char *p);
static ngx_int_t json_fold_name(json_t *j);
static u_char *json_scalar(json_t *j, u_char *p);
static u_char *json_literal(json_t *j, u_char *p, char *literal, u_char type);
static ngx_int_t json_open(json_t *j, u_char type);
static ngx_int_t json_close(json_t *j);
static ngx_int_t json_sort(json_t *j, json_frame_t *f);
static json_node_t *json_node(json_t *j, u_char type);
static ngx_int_t json_grow(json_t *j);
static void json_path(json_t *j, u_char *name, size_t len, ngx_uint_t member);
static void json_write(json_t *j, ngx_idempotency_sink_t *s);
static u_char json_write_node(json_t *j, ngx_idempotency_sink_t *s,
    json_node_t *n);
static ngx_int_t json_parse(json_t *j, ngx_array_t *paths, u_char *data,
    size_t len, ngx_pool_t *pool);
static void json_free(json_t *j);
static ngx_int_t json_scratch(json_t *j);
static u_char *json_string(json_t *j, u_char *p, uint32_t *place,
    uint32_t *len);
static u_char *json_number(json_t *j, u_char *p, json_node_t *node);
static u_char *json_put_utf8(u_char *dst, uint32_t n);
static void json_decimal(ngx_idempotency_sink_t *s, u_char *data, size_t len);
static void json_fields(ngx_idempotency_fields_t *f, u_char *p, u_char *last);
static void json_fields_end(ngx_idempotency_fields_t *f);
static u_char *json_unescape(json_t *j, u_char *p);
static u_char *json_escape(u_char *p, u_char *end, u_char **last);
static u_char *json_code_unit(u_char *p, u_char *end, uint32_t *unit);
static u_char *json_utf8(u_char *p, u_char *end);
static u_char *json_exponent(u_char *p, u_char *end);
static u_char *json_digits(u_char *p, u_char *end);
static int64_t json_power(u_char *p, u_char *end);
static u_char *json_put_power(u_char *dst, int64_t power);
static ngx_uint_t find_is_scalar(u_char c);
static void find_token(ngx_idempotency_fields_t *f, u_char c);
static void find_begin(ngx_idempotency_fields_t *f, u_char c);
static void find_value_begin(ngx_idempotency_fields_t *f, u_char c);
static void find_scalar_end(ngx_idempotency_fields_t *f);
static u_char *find_text(ngx_idempotency_fields_t *f, u_char *p, u_char *last);
static void find_escape(ngx_idempotency_fields_t *f, u_char c);
static void find_unit(ngx_idempotency_fields_t *f, uint32_t unit);
static void find_put_unit(ngx_idempotency_fields_t *f, uint32_t unit);
static void find_put(ngx_idempotency_fields_t *f, u_char *p, size_t len);
static u_char *find_skip_string(ngx_idempotency_fields_t *f, u_char *p,
    u_char *last);
static u_char *find_skip(ngx_idempotency_fields_t *f, u_char *p, u_char *last);


static ngx_inline u_char *
json_at(json_t *j, uint32_t place)
{
    return (place < j->size) ? j->data + place
                             : j->scratch + (place - j->size);
}


/* what a letter behind a backslash stands for, or 0; but for that of a unit */

static ngx_inline u_char
json_escaped(u_char c)
{
    switch (c) {

    case '"':
    case '\\':
    case '/':
        return c;

    case 'b':
        return '\b';

    case 'f':
        return '\f';

    case 'n':
        return '\n';

    case 'r':
        return '\r';

    case 't':
        return '\t';
    }

    return 0;
}


static ngx_inline ngx_uint_t
json_high(uint32_t unit)
{
    return unit >= 0xd800 && unit < 0xdc00;
}


/* a character of two surrogates, or 0: the second one is none */

static ngx_inline uint32_t
json_pair(uint32_t high, uint32_t low)
{
    if (low < 0xdc00 || low >= 0xe000) {
        return 0;
    }

    return 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
}


static ngx_inline u_char *
json_space(u_char *p, u_char *end)
{
    while (p < end && *p <= ' '
           && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t'))
    {
        p++;
    }

    return p;
}


/* the bytes that a plain string doesn't have */

static u_char  json_special[256] = {
    [0x00] = 1, [0x01] = 1, [0x02] = 1, [0x03] = 1, [0x04] = 1, [0x05] = 1,
    [0x06] = 1, [0x07] = 1, [0x08] = 1, [0x09] = 1, [0x0a] = 1, [0x0b] = 1,
    [0x0c] = 1, [0x0d] = 1, [0x0e] = 1, [0x0f] = 1, [0x10] = 1, [0x11] = 1,
    [0x12] = 1, [0x13] = 1, [0x14] = 1, [0x15] = 1, [0x16] = 1, [0x17] = 1,
    [0x18] = 1, [0x19] = 1, [0x1a] = 1, [0x1b] = 1, [0x1c] = 1, [0x1d] = 1,
    [0x1e] = 1, [0x1f] = 1, ['"'] = 1, ['\\'] = 1
};


/* up to what is no plain ASCII */

static ngx_inline u_char *
json_plain(u_char *p, u_char *end)
{
    uint64_t  w, x, y;

    while (end - p >= 8) {
        ngx_memcpy(&w, p, 8);

        x = w ^ (NGX_IDEMPOTENCY_EACH_BYTE * '"');
        y = w ^ (NGX_IDEMPOTENCY_EACH_BYTE * '\\');

        /* a byte that is zero here, below a space or not ASCII */

        w |= (w - NGX_IDEMPOTENCY_EACH_BYTE * ' ')
             | (x - NGX_IDEMPOTENCY_EACH_BYTE)
             | (y - NGX_IDEMPOTENCY_EACH_BYTE);
        w &= NGX_IDEMPOTENCY_HIGH_BITS;

        if (w) {
#if (NGX_HAVE_LITTLE_ENDIAN && __GNUC__)
            /* borrows go upwards only: the lowest one is none */
            return p + (__builtin_ctzll(w) >> 3);
#else
            break;
#endif
        }

        p += 8;
    }

    while (p < end && *p < 0x80 && !json_special[*p]) {
        p++;
    }

    return p;
}


/* up to what ends or interrupts a string */

static ngx_inline u_char *
json_run(json_t *j, u_char *p)
{
    for ( ;; ) {
        p = json_plain(p, j->end);

        if (p == j->end) {
            return NULL;
        }

        if (*p < 0x80) {
            return p;
        }

        j->not_ascii = 1;
        p = json_utf8(p, j->end);

        if (p == NULL) {
            return NULL;
        }
    }
}


const ngx_idempotency_kind_t  ngx_idempotency_json_kind = {
    ngx_string("json"),
    NGX_IDEMPOTENCY_CANON_JSON,
    "charset",                              /* parameter */
    1,                                      /* has fields */

    json_matches,
    json_whole,                             /* whole */

    NULL,                                   /* start */
    NULL,                                   /* feed */
    NULL,                                   /* finish */

    json_fields,            /* field */
    json_fields_end         /* field_end */
};


/* or a structured syntax suffix, on any type that has a subtype */

static ngx_int_t
json_matches(ngx_str_t *type, u_char *pos, u_char *end, ngx_str_t *boundary)
{
    ngx_str_t  suffix;

    if (ngx_idempotency_equal(type, "application/json")) {
        return NGX_OK;
    }

    suffix.data = ngx_strlchr(type->data, type->data + type->len, '/');

    if (suffix.data == NULL || type->data + type->len - suffix.data <= 5) {
        return NGX_DECLINED;
    }

    suffix.data = type->data + type->len - 5;
    suffix.len = 5;

    return ngx_idempotency_equal(&suffix, "+json") ? NGX_OK : NGX_DECLINED;
}


static ngx_int_t
json_whole(ngx_idempotency_digest_t *d, ngx_idempotency_canon_t *c,
    u_char *data, size_t len, ngx_pool_t *pool)
{
    json_t                  j;
    ngx_int_t               rc;
    ngx_idempotency_sink_t  sink;

    rc = json_parse(&j, c->ignore, data, len, pool);

    if (rc == NGX_OK) {
        ngx_idempotency_sink_init(&sink, d, 'J');
        json_write(&j, &sink);
        ngx_idempotency_sink_flush(&sink);
    }

    json_free(&j);

    return rc;
}


/* to be followed by json_free() in any case */

static ngx_int_t
json_parse(json_t *j, ngx_array_t *paths,
    u_char *data, size_t len, ngx_pool_t *pool)
{
    u_char  *p;

    j->data = data;
    j->end = data + len;
    j->size = (uint32_t) len;
    j->scratch = NULL;
    j->names = j->members;
    j->nnames = NGX_IDEMPOTENCY_JSON_NAMES;
    j->nodes = j->values;
    j->nnodes = 0;
    j->nalloc = NGX_IDEMPOTENCY_JSON_VALUES;
    j->name_len = 0;
    j->name = 0;
    j->ignore = 0;
    j->nignore = paths ? paths->nelts : 0;
    j->ignored = 0;
    j->paths = paths;
    j->pool = pool;
    j->no_memory = 0;
    j->depth = 0;

    p = json_read(j, data);

    if (p == NULL) {
        return j->no_memory ? NGX_ERROR : NGX_DECLINED;
    }

    return (json_space(p, j->end) == j->end) ? NGX_OK
                                                            : NGX_DECLINED;
}


static void
json_free(json_t *j)
{
    if (j->nodes != j->values) {
        ngx_pfree(j->pool, j->nodes);
    }

    if (j->scratch) {
        ngx_pfree(j->pool, j->scratch);
    }

    if (j->names != j->members) {
        ngx_pfree(j->pool, j->names);
    }
}


static u_char *
json_read(json_t *j, u_char *p)
{
    u_char  c;

    for ( ;; ) {

        /* a value */

        p = json_space(p, j->end);

        if (p == j->end) {
            return NULL;
        }

        c = *p;

        if (c == '{' || c == '[') {

            if (json_open(j, c) != NGX_OK) {
                return NULL;
            }

            p = json_space(p + 1, j->end);

            if (p == j->end) {
                return NULL;
            }

            /* the closing brackets are two above the opening ones */

            if (*p != c + 2) {
                p = json_next(j, p);

                if (p == NULL) {
                    return NULL;
                }

                continue;
            }

        } else {
            p = json_scalar(j, p);

            if (p == NULL) {
                return NULL;
            }
        }

        /* what ends with it, and whether there is another one */

        for ( ;; ) {

            if (j->depth == 0) {
                return p;
            }

            p = json_space(p, j->end);

            if (p == j->end) {
                return NULL;
            }

            c = *p++;

            if (c == ',') {
                break;
            }

            if (c != j->nodes[j->frames[j->depth - 1].node].type + 2
                || json_close(j) != NGX_OK)
            {
                return NULL;
            }
        }

        p = json_next(j, p);

        if (p == NULL) {
            return NULL;
        }
    }
}


/* what stands before the next value of an object or an array */

static u_char *
json_next(json_t *j, u_char *p)
{
    u_char        *last, index[NGX_INT32_LEN];
    ngx_uint_t     folds;
    json_frame_t  *f;

    f = &j->frames[j->depth - 1];

    if (j->nodes[f->node].type == NGX_IDEMPOTENCY_JSON_ARRAY) {

        j->ignored = 0;
        j->nignore = 0;

        if (f->nignore) {
            last = ngx_sprintf(index, "%uD", f->nelements++);
            json_path(j, index, last - index, 0);
        }

        return p;
    }

    p = json_space(p, j->end);

    if (p == j->end || *p != '"') {
        return NULL;
    }

    p = json_string(j, p + 1, &j->name, &j->name_len);

    if (p == NULL) {
        return NULL;
    }

    folds = j->not_ascii;

    p = json_space(p, j->end);

    if (p == j->end || *p != ':') {
        return NULL;
    }

    j->ignored = 0;
    j->nignore = 0;

    if (f->nignore) {
        json_path(j, json_at(j, j->name), j->name_len, 1);
    }

    if (folds && json_fold_name(j) != NGX_OK) {
        return NULL;
    }

    return p + 1;
}


/*
 * Two letters beyond ASCII are "s" and "k" where letter case doesn't count:
 * U+017F and U+212A.  A name that has them stands twice among the members, and
 * nothing is written of the second, which has the others instead.
 */

static ngx_int_t
json_fold_name(json_t *j)
{
    u_char      *p, *end, *dst;
    uint32_t     name, name_len;
    ngx_uint_t   ignored;

    if (json_scratch(j) != NGX_OK) {
        return NGX_ERROR;
    }

    if (j->room < j->name_len) {
        return NGX_DECLINED;
    }

    p = json_at(j, j->name);
    end = p + j->name_len;
    dst = j->last;

    while (p < end) {

        if (end - p > 1 && p[0] == 0xc5 && p[1] == 0xbf) {
            *dst++ = 's';
            p += 2;

        } else if (end - p > 2 && p[0] == 0xe2 && p[1] == 0x84
                   && p[2] == 0xaa)
        {
            *dst++ = 'k';
            p += 3;

        } else {
            *dst++ = *p++;
        }
    }

    if ((size_t) (dst - j->last) == j->name_len) {
        return NGX_OK;
    }

    name = j->name;
    name_len = j->name_len;
    ignored = j->ignored;

    j->name = j->size + (j->last - j->scratch);
    j->name_len = dst - j->last;
    j->room -= j->name_len;
    j->last = dst;
    j->ignored = 1;

    if (json_node(j, NGX_IDEMPOTENCY_JSON_NULL) == NULL) {
        return NGX_ERROR;
    }

    j->name = name;
    j->name_len = name_len;
    j->ignored = ignored;

    return NGX_OK;
}


static u_char *
json_scalar(json_t *j, u_char *p)
{
    json_node_t  *n;

    switch (*p) {

    case '"':
        n = json_node(j, NGX_IDEMPOTENCY_JSON_STRING);
        if (n == NULL) {
            return NULL;
        }

        return json_string(j, p + 1, &n->value, &n->len);

    case 't':
        return json_literal(j, p, "true", NGX_IDEMPOTENCY_JSON_TRUE);

    case 'f':
        return json_literal(j, p, "false", NGX_IDEMPOTENCY_JSON_FALSE);

    case 'n':
        return json_literal(j, p, "null", NGX_IDEMPOTENCY_JSON_NULL);
    }

    n = json_node(j, NGX_IDEMPOTENCY_JSON_NUMBER);
    if (n == NULL) {
        return NULL;
    }

    return json_number(j, p, n);
}


static u_char *
json_literal(json_t *j, u_char *p, char *literal, u_char type)
{
    size_t        len;
    json_node_t  *n;

    len = ngx_strlen(literal);

    if ((size_t) (j->end - p) < len || ngx_memcmp(p, literal, len) != 0) {
        return NULL;
    }

    n = json_node(j, type);
    if (n == NULL) {
        return NULL;
    }

    n->value = p - j->data;
    n->len = len;

    return p + len;
}


static ngx_int_t
json_open(json_t *j, u_char type)
{
    json_node_t   *n;
    json_frame_t  *f;

    if (j->depth == NGX_IDEMPOTENCY_JSON_DEPTH) {
        return NGX_DECLINED;
    }

    n = json_node(j, type);
    if (n == NULL) {
        return NGX_ERROR;
    }

    n->value = NGX_IDEMPOTENCY_JSON_NONE;

    f = &j->frames[j->depth++];

    f->node = n - j->nodes;
    f->last = NGX_IDEMPOTENCY_JSON_NONE;
    f->nchildren = 0;
    f->nelements = 0;
    f->ignore = j->ignore;
    f->nignore = j->nignore;
    f->unsorted = 0;

    return NGX_OK;
}


static ngx_int_t
json_close(json_t *j)
{
    json_frame_t  *f;

    f = &j->frames[--j->depth];

    if (f->nchildren > NGX_IDEMPOTENCY_JSON_MEMBERS
        && j->nodes[f->node].type == NGX_IDEMPOTENCY_JSON_OBJECT)
    {
        return NGX_DECLINED;
    }

    return f->unsorted ? json_sort(j, f) : NGX_OK;
}


static ngx_int_t
json_sort(json_t *j, json_frame_t *f)
{
    uint32_t                  i, n;
    json_node_t              *nodes;
    ngx_idempotency_name_t   *names;
    ngx_idempotency_names_t   s;

    if (f->nchildren > j->nnames) {

        if (j->names != j->members) {
            ngx_pfree(j->pool, j->names);
        }

        j->nnames = ngx_min(2 * f->nchildren, NGX_IDEMPOTENCY_JSON_MEMBERS);
        j->names = ngx_palloc(j->pool, (size_t) 2 * j->nnames
                                       * sizeof(ngx_idempotency_name_t));
        if (j->names == NULL) {
            j->names = j->members;
            j->no_memory = 1;
            return NGX_ERROR;
        }
    }

    names = j->names;
    nodes = j->nodes;
    i = nodes[f->node].value;

    for (n = 0; n < f->nchildren; n++) {
        ngx_idempotency_name_set(&names[n],
                                 json_at(j, nodes[i].name),
                                 nodes[i].name_len, i);
        i = nodes[i].next;
    }

    s.data = j->data;
    s.scratch = j->scratch;
    s.size = j->size;
    s.stride = sizeof(json_node_t);
    s.items = (u_char *) nodes;

    ngx_idempotency_names_sort(&s, names, &names[n], n);

    if (s.alike) {
        return NGX_DECLINED;
    }

    i = NGX_IDEMPOTENCY_JSON_NONE;

    while (n--) {
        if (!nodes[names[n].index].ignored) {
            nodes[names[n].index].next = i;
            i = names[n].index;
        }
    }

    nodes[f->node].value = i;

    return NGX_OK;
}


/*
 * Linked to what it stands in.  What is left out is not, but for members: their
 * names are compared with the others, before json_sort() drops them.
 */

static json_node_t *
json_node(json_t *j, u_char type)
{
    uint32_t       i;
    json_node_t   *n, *prev, *parent;
    json_frame_t  *f;

    if (j->nnodes == j->nalloc && json_grow(j) != NGX_OK) {
        return NULL;
    }

    i = j->nnodes++;

    n = &j->nodes[i];
    n->name = j->name;
    n->name_len = j->name_len;
    n->next = NGX_IDEMPOTENCY_JSON_NONE;
    n->ignored = j->ignored;
    n->type = type;

    if (j->depth == 0) {
        return n;
    }

    f = &j->frames[j->depth - 1];
    parent = &j->nodes[f->node];

    if (j->ignored) {

        if (parent->type == NGX_IDEMPOTENCY_JSON_ARRAY) {
            return n;
        }

        f->unsorted = 1;
    }

    f->nchildren++;

    if (f->last == NGX_IDEMPOTENCY_JSON_NONE) {
        f->last = i;
        parent->value = i;
        return n;
    }

    prev = &j->nodes[f->last];
    prev->next = i;
    f->last = i;

    if (!f->unsorted && parent->type == NGX_IDEMPOTENCY_JSON_OBJECT) {
        f->unsorted = ngx_idempotency_name_cmp(
                                  json_at(j, prev->name),
                                  prev->name_len,
                                  json_at(j, n->name),
                                  n->name_len)
                      >= 0;
    }

    return n;
}


/* NGX_DECLINED: more values than a request may keep a worker busy with */

static ngx_int_t
json_grow(json_t *j)
{
    uint32_t      n;
    json_node_t  *nodes;

    if (j->nalloc == NGX_IDEMPOTENCY_JSON_NODES) {
        return NGX_DECLINED;
    }

    n = ngx_max(j->nalloc * 2, j->size / 8);
    n = ngx_min(n, NGX_IDEMPOTENCY_JSON_NODES);

    nodes = ngx_palloc(j->pool, n * sizeof(json_node_t));
    if (nodes == NULL) {
        j->no_memory = 1;
        return NGX_ERROR;
    }

    ngx_memcpy(nodes, j->nodes,
               j->nnodes * sizeof(json_node_t));

    if (j->nodes != j->values) {
        ngx_pfree(j->pool, j->nodes);
    }

    j->nodes = nodes;
    j->nalloc = n;

    return NGX_OK;
}


/* of the paths that lead here, those that lead on to this name */

static void
json_path(json_t *j, u_char *name, size_t len, ngx_uint_t member)
{
    uint32_t                 i, last;
    ngx_str_t               *token;
    json_frame_t            *f;
    ngx_idempotency_path_t  *path;

    f = &j->frames[j->depth - 1];
    path = j->paths->elts;
    last = f->ignore + f->nignore;

    for (i = f->ignore; i < last; i++) {

        token = &path[i].tokens[j->depth - 1];

        if (token->len != len || ngx_memcmp(token->data, name, len) != 0
            || (!member && !path[i].pointer))
        {
            continue;
        }

        if (path[i].ntokens == j->depth) {
            j->ignored = 1;
            j->nignore = 0;
            return;
        }

        if (j->nignore++ == 0) {
            j->ignore = i;
        }
    }
}


static void
json_write(json_t *j, ngx_idempotency_sink_t *s)
{
    u_char        close;
    uint32_t      parents[NGX_IDEMPOTENCY_JSON_DEPTH];
    ngx_uint_t    depth;
    json_node_t  *n;

    depth = 0;
    n = &j->nodes[0];

    for ( ;; ) {

        close = json_write_node(j, s, n);

        if (close) {

            if (n->value != NGX_IDEMPOTENCY_JSON_NONE) {
                parents[depth++] = n - j->nodes;
                n = &j->nodes[n->value];
                goto named;
            }

            ngx_idempotency_sink_byte(s, close);
        }

        while (depth && n->next == NGX_IDEMPOTENCY_JSON_NONE) {
            n = &j->nodes[parents[--depth]];
            ngx_idempotency_sink_byte(s, n->type + 2);
        }

        if (depth == 0) {
            return;
        }

        n = &j->nodes[n->next];

    named:

        if (j->nodes[parents[depth - 1]].type == NGX_IDEMPOTENCY_JSON_OBJECT) {
            ngx_idempotency_sink_field(s, ':',
                                       json_at(j, n->name),
                                       n->name_len);
        }
    }
}


/* a container's closing bracket is returned */

static u_char
json_write_node(json_t *j, ngx_idempotency_sink_t *s, json_node_t *n)
{
    u_char  *value;

    switch (n->type) {

    case NGX_IDEMPOTENCY_JSON_STRING:
    case NGX_IDEMPOTENCY_JSON_NUMBER:
        value = json_at(j, n->value);
        ngx_idempotency_sink_field(s, n->type, value, n->len);
        return 0;

    case NGX_IDEMPOTENCY_JSON_DECIMAL:
        value = json_at(j, n->value);
        json_decimal(s, value, n->len);
        return 0;

    default:
        /* a container, true, false or null */
        ngx_idempotency_sink_byte(s, n->type);

        return (n->type == NGX_IDEMPOTENCY_JSON_ARRAY
                || n->type == NGX_IDEMPOTENCY_JSON_OBJECT) ? n->type + 2 : 0;
    }
}


/* p: behind the quote */

static u_char *
json_string(json_t *j, u_char *p, uint32_t *place, uint32_t *len)
{
    u_char  *start, *decoded;

    start = p;
    j->not_ascii = 0;
    p = json_run(j, p);

    if (p == NULL) {
        return NULL;
    }

    if (*p == '"') {
        *place = start - j->data;
        *len = p - start;

        return p + 1;
    }

    if (*p != '\\') {
        return NULL;
    }

    if (json_scratch(j) != NGX_OK) {
        return NULL;
    }

    decoded = j->last;
    j->last = ngx_cpymem(decoded, start, p - start);

    p = json_unescape(j, p);

    *place = j->size + (decoded - j->scratch);
    *len = j->last - decoded;

    return p;
}


/* nothing decoded is longer than it was */

static ngx_int_t
json_scratch(json_t *j)
{
    if (j->scratch) {
        return NGX_OK;
    }

    j->room = ngx_min(j->size, NGX_IDEMPOTENCY_JSON_FOLDED);

    j->scratch = ngx_palloc(j->pool, j->size + j->room);
    if (j->scratch == NULL) {
        j->no_memory = 1;
        return NGX_ERROR;
    }

    j->last = j->scratch;

    return NGX_OK;
}


/* p: the first backslash */

static u_char *
json_unescape(json_t *j, u_char *p)
{
    u_char  *start;

    for ( ;; ) {
        p = json_escape(p, j->end, &j->last);

        if (p == NULL) {
            return NULL;
        }

        if (j->last[-1] >= 0x80) {
            j->not_ascii = 1;
        }

        start = p;
        p = json_run(j, p);

        if (p == NULL) {
            return NULL;
        }

        j->last = ngx_cpymem(j->last, start, p - start);

        if (*p == '"') {
            return p + 1;
        }

        if (*p != '\\') {
            return NULL;
        }
    }
}


static u_char *
json_escape(u_char *p, u_char *end, u_char **last)
{
    u_char    c, *next;
    uint32_t  unit, low, pair;

    if (end - p < 2) {
        return NULL;
    }

    if (p[1] != 'u') {
        c = json_escaped(p[1]);

        if (c == 0) {
            return NULL;
        }

        *(*last)++ = c;

        return p + 2;
    }

    p = json_code_unit(p, end, &unit);

    if (p == NULL) {
        return NULL;
    }

    /*
     * A surrogate alone is no character, but JSON.stringify() makes them of a
     * string that was cut: it stays what it is, and is no other
     */

    if (json_high(unit)) {

        next = json_code_unit(p, end, &low);
        pair = next ? json_pair(unit, low) : 0;

        if (pair) {
            unit = pair;
            p = next;
        }
    }

    *last = json_put_utf8(*last, unit);

    return p;
}


static u_char *
json_code_unit(u_char *p, u_char *end, uint32_t *unit)
{
    uint32_t    n;
    ngx_int_t   digit;
    ngx_uint_t  i;

    if (end - p < 6 || p[0] != '\\' || p[1] != 'u') {
        return NULL;
    }

    n = 0;

    for (i = 2; i < 6; i++) {
        digit = ngx_idempotency_hex(p[i]);

        if (digit < 0) {
            return NULL;
        }

        n = n << 4 | (uint32_t) digit;
    }

    *unit = n;

    return p + 6;
}


/* a surrogate, too */

static u_char *
json_put_utf8(u_char *dst, uint32_t n)
{
    if (n < 0x80) {
        *dst++ = (u_char) n;
        return dst;
    }

    if (n < 0x800) {
        *dst++ = (u_char) (0xc0 | n >> 6);
        *dst++ = (u_char) (0x80 | (n & 0x3f));
        return dst;
    }

    if (n < 0x10000) {
        *dst++ = (u_char) (0xe0 | n >> 12);

    } else {
        *dst++ = (u_char) (0xf0 | n >> 18);
        *dst++ = (u_char) (0x80 | (n >> 12 & 0x3f));
    }

    *dst++ = (u_char) (0x80 | (n >> 6 & 0x3f));
    *dst++ = (u_char) (0x80 | (n & 0x3f));

    return dst;
}


/* characters beyond ASCII; RFC 3629, 4 */

static u_char *
json_utf8(u_char *p, u_char *end)
{
    u_char      c, low, high;
    ngx_uint_t  n;

    while (p < end && *p >= 0x80) {

        c = *p++;
        low = 0x80;
        high = 0xbf;

        if (c >= 0xc2 && c <= 0xdf) {
            n = 1;

        } else if (c >= 0xe0 && c <= 0xef) {
            n = 2;

            if (c == 0xe0) {
                low = 0xa0;

            } else if (c == 0xed) {
                high = 0x9f;
            }

        } else if (c >= 0xf0 && c <= 0xf4) {
            n = 3;

            if (c == 0xf0) {
                low = 0x90;

            } else if (c == 0xf4) {
                high = 0x8f;
            }

        } else {
            return NULL;
        }

        if ((size_t) (end - p) < n || *p < low || *p > high) {
            return NULL;
        }

        for (p++; --n; p++) {
            if ((*p & 0xc0) != 0x80) {
                return NULL;
            }
        }
    }

    return p;
}


/* what has no zero to drop, and is no fraction or power, is as it is */

static u_char *
json_number(json_t *j, u_char *p, json_node_t *node)
{
    u_char  *start, *end, *digits;

    start = p;
    end = j->end;

    if (*p == '-') {
        p++;
    }

    digits = p;
    p = json_digits(p, end);

    if (p == digits || (*digits == '0' && p - digits > 1)) {
        return NULL;
    }

    if (p[-1] == '0') {
        node->type = NGX_IDEMPOTENCY_JSON_DECIMAL;
    }

    if (p < end && *p == '.') {
        node->type = NGX_IDEMPOTENCY_JSON_DECIMAL;

        digits = p + 1;
        p = json_digits(digits, end);

        if (p == digits) {
            return NULL;
        }
    }

    if (p < end && (*p == 'e' || *p == 'E')) {
        node->type = NGX_IDEMPOTENCY_JSON_DECIMAL;

        p = json_exponent(p + 1, end);

        if (p == NULL) {
            return NULL;
        }
    }

    node->value = start - j->data;
    node->len = p - start;

    return p;
}


static u_char *
json_exponent(u_char *p, u_char *end)
{
    u_char  *start, *digits;

    if (p < end && (*p == '+' || *p == '-')) {
        p++;
    }

    start = p;

    while (p < end && *p == '0') {
        p++;
    }

    digits = p;
    p = json_digits(p, end);

    if (p == start || p - digits > NGX_IDEMPOTENCY_JSON_EXPONENT) {
        return NULL;
    }

    return p;
}


static u_char *
json_digits(u_char *p, u_char *end)
{
    while (p < end && *p >= '0' && *p <= '9') {
        p++;
    }

    return p;
}


/*
 * The digits without zeros in front and behind, and the power of ten of the
 * last one.  No digit is moved or lost, whatever the power.
 */

static void
json_decimal(ngx_idempotency_sink_t *s, u_char *data, size_t len)
{
    size_t   nwhole, nfraction;
    u_char  *p, *end, *whole, *fraction, *last;
    u_char   sign, head[1 + 10 + 1], tail[1 + NGX_INT64_LEN];
    int64_t  power;

    p = data;
    end = data + len;

    sign = (*p == '-');
    p += sign;

    whole = p;
    p = json_digits(p, end);
    nwhole = p - whole;

    fraction = p;

    if (p < end && *p == '.') {
        fraction = p + 1;
        p = json_digits(fraction, end);
    }

    nfraction = p - fraction;
    power = (p < end) ? json_power(p + 1, end) : 0;
    power -= nfraction;

    if (*whole == '0') {
        nwhole = 0;

        while (nfraction && *fraction == '0') {
            fraction++;
            nfraction--;
        }
    }

    while (nfraction && fraction[nfraction - 1] == '0') {
        nfraction--;
        power++;
    }

    if (nfraction == 0) {

        while (nwhole && whole[nwhole - 1] == '0') {
            nwhole--;
            power++;
        }

        if (nwhole == 0) {
            ngx_idempotency_sink_field(s, '#', (u_char *) "0", 1);
            return;
        }
    }

    last = json_put_power(tail, power);

    head[0] = '#';
    p = ngx_idempotency_length(head + 1,
                               sign + nwhole + nfraction + (last - tail));

    if (sign) {
        *p++ = '-';
    }

    ngx_idempotency_sink_bytes(s, head, p - head);
    ngx_idempotency_sink_bytes(s, whole, nwhole);
    ngx_idempotency_sink_bytes(s, fraction, nfraction);
    ngx_idempotency_sink_bytes(s, tail, last - tail);
}


/* an exponent that json_exponent() let pass */

static int64_t
json_power(u_char *p, u_char *end)
{
    u_char   sign;
    int64_t  n;

    sign = *p;
    n = 0;

    if (sign == '+' || sign == '-') {
        p++;
    }

    while (p < end) {
        n = n * 10 + (*p++ - '0');
    }

    return (sign == '-') ? -n : n;
}


static u_char *
json_put_power(u_char *dst, int64_t power)
{
    if (power == 0) {
        return dst;
    }

    *dst++ = 'e';

    if (power < 0) {
        *dst++ = '-';
        power = -power;
    }

    if (power < 10) {
        *dst++ = (u_char) ('0' + power);
        return dst;
    }

    return ngx_sprintf(dst, "%L", power);
}


static void
json_fields(ngx_idempotency_fields_t *f, u_char *p, u_char *last)
{
    while (p < last && !f->done) {

        switch (f->state) {

        case find_name:
        case find_string:
            p = find_text(f, p, last);
            break;

        case find_long_name:
        case find_skipped:
            p = find_skip_string(f, p, last);
            break;

        case find_nested:
            p = find_skip(f, p, last);
            break;

        case find_scalar:

            if (*p == ',' || *p == '}' || *p == ']' || *p == ' '
                || *p == '\n' || *p == '\r' || *p == '\t')
            {
                find_scalar_end(f);
                break;
            }

            if (!find_is_scalar(*p)) {
                ngx_idempotency_fields_unreadable(f);
                break;
            }

            ngx_idempotency_field_put(f, p++, 1);
            break;

        default:
            p = json_space(p, last);

            if (p < last) {
                find_token(f, *p++);
            }
        }
    }
}


/* of a number, a literal, or what some writers have for one, as NaN */

static ngx_uint_t
find_is_scalar(u_char c)
{
    return c == '-' || c == '+' || c == '.'
           || ngx_idempotency_field_class(c) != '_';
}


static void
find_token(ngx_idempotency_fields_t *f, u_char c)
{
    switch (f->state) {

    case find_start:
        find_begin(f, c);
        return;

    case find_root:

        if (find_is_scalar(c)) {
            return;
        }

        break;

    case find_mark:

        if (c == 0xbb) {
            f->state = find_mark_end;
            return;
        }

        break;

    case find_mark_end:

        if (c == 0xbf) {
            f->state = find_start;
            return;
        }

        break;

    case find_member:

        if (c == '"') {
            f->state = find_name;
            return;
        }

        if (c == '}') {
            f->state = find_end;
            return;
        }

        break;

    case find_colon:

        if (c == ':') {
            f->state = find_value;
            return;
        }

        break;

    case find_value:
        find_value_begin(f, c);
        return;

    case find_behind:

        if (c == ',') {
            f->state = find_member;
            return;
        }

        if (c == '}') {
            f->state = find_end;
            return;
        }

        break;
    }

    ngx_idempotency_fields_unreadable(f);
}


/* no object has no members */

static void
find_begin(ngx_idempotency_fields_t *f, u_char c)
{
    switch (c) {

    case '{':
        f->state = find_member;
        return;

    case 0xef:
        f->state = find_mark;
        return;

    case '[':
    case '"':
        f->done = 1;
        return;

    case '-':
    case 't':
    case 'f':
    case 'n':
        f->state = find_root;
        return;
    }

    if (c >= '0' && c <= '9') {
        f->state = find_root;
        return;
    }

    ngx_idempotency_fields_unreadable(f);
}


static void
find_value_begin(ngx_idempotency_fields_t *f, u_char c)
{
    f->depth = 0;

    if (c == '"') {
        f->state = f->current ? find_string : find_skipped;
        return;
    }

    if (c == '{' || c == '[') {
        ngx_idempotency_field_end(f, NGX_IDEMPOTENCY_FIELD_NONE);

        f->depth = 1;
        f->state = find_nested;
        return;
    }

    if (find_is_scalar(c)) {
        f->state = find_scalar;
        ngx_idempotency_field_put(f, &c, 1);
        return;
    }

    ngx_idempotency_fields_unreadable(f);
}


static void
find_scalar_end(ngx_idempotency_fields_t *f)
{
    u_char      c;
    size_t      i;
    ngx_str_t  *value;
    ngx_uint_t  state;

    f->state = find_behind;

    if (f->current == NULL) {
        return;
    }

    value = &f->current->value;
    state = NGX_IDEMPOTENCY_FIELD_FOUND;

    if (value->len == 4 && ngx_memcmp(value->data, "null", 4) == 0) {
        state = NGX_IDEMPOTENCY_FIELD_NONE;

    } else if ((value->len != 4 || ngx_memcmp(value->data, "true", 4) != 0)
               && (value->len != 5
                   || ngx_memcmp(value->data, "false", 5) != 0))
    {
        for (i = 0; i < value->len; i++) {
            c = value->data[i];

            if ((c < '0' || c > '9') && c != '-' && c != '+' && c != '.'
                && c != 'e' && c != 'E')
            {
                state = NGX_IDEMPOTENCY_FIELD_SPOILT;
            }
        }
    }

    ngx_idempotency_field_end(f, state);
}


/* a name, or a value that is wanted */

static u_char *
find_text(ngx_idempotency_fields_t *f, u_char *p, u_char *last)
{
    u_char  *start;

    if (f->escape) {
        find_escape(f, *p);
        return p + 1;
    }

    if (f->state == find_name && f->name_len > f->longest) {

        /* it is none of those that are wanted */

        f->state = find_long_name;
        f->name_len = 0;
        f->high = 0;

        return p;
    }

    if (*p == '\\') {
        f->escape = find_backslash;
        return p + 1;
    }

    if (f->high) {
        find_put_unit(f, f->high);
        f->high = 0;
    }

    if (*p != '"') {
        start = p++;

        while (p < last && *p != '"' && *p != '\\') {
            p++;
        }

        find_put(f, start, p - start);

        return p;
    }

    if (f->state == find_name) {
        ngx_idempotency_field_begin(f);
        f->state = find_colon;

    } else {
        ngx_idempotency_field_end(f, NGX_IDEMPOTENCY_FIELD_FOUND);
        f->state = find_behind;
    }

    return p + 1;
}


static void
find_escape(ngx_idempotency_fields_t *f, u_char c)
{
    ngx_int_t  digit;

    if (f->escape > find_backslash) {

        digit = ngx_idempotency_hex(c);

        if (digit < 0) {
            ngx_idempotency_fields_unreadable(f);
            return;
        }

        f->unit = f->unit << 4 | (uint32_t) digit;

        if (++f->escape == find_digits_end) {
            f->escape = 0;
            find_unit(f, f->unit);
        }

        return;
    }

    if (c == 'u') {
        f->escape = find_digits;
        f->unit = 0;
        return;
    }

    c = json_escaped(c);

    if (c == 0) {
        ngx_idempotency_fields_unreadable(f);
        return;
    }

    f->escape = 0;

    if (f->high) {
        find_put_unit(f, f->high);
        f->high = 0;
    }

    find_put(f, &c, 1);
}


/* a surrogate that stands alone stays what it is */

static void
find_unit(ngx_idempotency_fields_t *f, uint32_t unit)
{
    uint32_t  high, pair;

    high = f->high;
    f->high = 0;

    if (high) {
        pair = json_pair(high, unit);

        if (pair) {
            find_put_unit(f, pair);
            return;
        }

        find_put_unit(f, high);
    }

    if (json_high(unit)) {
        f->high = unit;
        return;
    }

    find_put_unit(f, unit);
}


static void
find_put_unit(ngx_idempotency_fields_t *f, uint32_t unit)
{
    u_char  utf8[4];

    find_put(f, utf8, json_put_utf8(utf8, unit) - utf8);
}


static void
find_put(ngx_idempotency_fields_t *f, u_char *p, size_t len)
{
    if (f->state == find_string) {
        ngx_idempotency_field_put(f, p, len);
        return;
    }

    while (len--) {
        ngx_idempotency_field_name(f, *p++);
    }
}


static u_char *
find_skip_string(ngx_idempotency_fields_t *f, u_char *p, u_char *last)
{
    if (f->escape) {
        f->escape = 0;
        p++;
    }

    for ( /* void */ ; p < last; p++) {

        if (*p == '"') {
            f->state = (f->state == find_long_name) ? find_colon
                       : f->depth ? find_nested : find_behind;
            return p + 1;
        }

        if (*p == '\\' && ++p == last) {
            f->escape = find_backslash;
        }
    }

    return last;
}


/* to the end of what is nested */

static u_char *
find_skip(ngx_idempotency_fields_t *f, u_char *p, u_char *last)
{
    for ( /* void */ ; p < last; p++) {

        switch (*p) {

        case '"':
            f->state = find_skipped;
            return p + 1;

        case '{':
        case '[':
            f->depth++;
            break;

        case '}':
        case ']':
            if (--f->depth == 0) {
                f->state = find_behind;
                return p + 1;
            }
        }
    }

    return p;
}


/* nothing at all has no members, either */

static void
json_fields_end(ngx_idempotency_fields_t *f)
{
    if (f->state == find_scalar) {
        find_scalar_end(f);
    }

    if (f->state > find_root && f->state != find_end) {
        ngx_idempotency_fields_unreadable(f);
    }
}
