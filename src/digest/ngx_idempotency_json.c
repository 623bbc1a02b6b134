
/*
 * JSON: its encoding for the digest, and its fields.
 *
 * A document is read once, and encoded meanwhile into memory.  The encoding is
 * a list of pieces: sorting an object's members relinks their pieces, and moves
 * no bytes.  Only the elements of an array at the top keep their places:
 * between them the encoding is digested.  If the rest of such a document turns
 * out to be invalid, the digest returns to its state before.
 *
 * NO TWO  Of two members whose names are the same, or differ in letter case
 *         only, some readers take the first and some the last.  So such a
 *         document is not valid here, even where they are ignored.  Sorting
 *         makes them neighbours.
 * FIELDS  Fields are the members of the object at the top.  They are found in
 *         pieces of the body, of any size.  Deeper values are skipped: only
 *         strings and brackets count there, so that an error there hides no
 *         field.  An error between the members makes the rest unreadable.
 */


#include "ngx_idempotency_encode.h"


/* so many bytes of folded names are compared */

#define NGX_IDEMPOTENCY_JSON_FOLDED    65536

/* a document within these limits is encoded on the stack */

#define NGX_IDEMPOTENCY_JSON_PIECES    128
#define NGX_IDEMPOTENCY_JSON_NAMES     64
#define NGX_IDEMPOTENCY_JSON_OUT       4096

/* An array at the top is digested in parts of this size, so that memory in the
   processor's caches is used again. */

#define NGX_IDEMPOTENCY_JSON_FLUSH     16384

/* a name with this bit in its index is compared, but not written */

#define NGX_IDEMPOTENCY_JSON_IGNORED   0x80000000

/* copies of 8 bytes may write so far behind the end of the encoding */

#define NGX_IDEMPOTENCY_JSON_SLACK     64

/* a document with an exponent of more digits is declined */

#define NGX_IDEMPOTENCY_JSON_EXPONENT  18


/* a piece of the encoding; it ends where the next one in the array begins */

typedef struct {
    uint32_t                 start;    /* place in the encoding */
    uint32_t                 next;     /* next one in the digest */
    uint32_t                 last;     /* piece of the member that begins
                                          here */
} json_piece_t;


/* an array or object that is still open */

typedef struct {
    u_char                   type;     /* its bracket; 0: the document */
    u_char                   ignored;
    u_char                   left_out; /* some member is ignored */
    uint32_t                 start;    /* place in the encoding */
    uint32_t                 npieces;  /* pieces before its members */
    uint32_t                 member;   /* first piece of its last member */
    uint32_t                 n;        /* names; of an array: elements, as
                                          far as paths need their numbers */
    uint32_t                 ignore;   /* the first path that leads here, */
    uint32_t                 nignore;  /* and how many do */
} json_frame_t;


typedef struct {
    ngx_idempotency_digest_t
                            *digest;

    u_char                  *data;
    u_char                  *end;

    /* the encoding; it has room for the longest one of this body */
    u_char                  *out;
    u_char                  *pos;

    json_piece_t            *pieces;
    uint32_t                 npieces;
    uint32_t                 pieces_size;

    /* the names of all open objects' members; a closed object drops its own */
    ngx_idempotency_name_t  *names;
    uint32_t                 nnames;
    uint32_t                 names_size;

    /* the last string that was read */
    uint32_t                 string;   /* place in the encoding */
    uint32_t                 len;
    ngx_uint_t               not_ascii;

    /* is the next value ignored, and which paths lead to it? */
    uint32_t                 ignore;
    uint32_t                 nignore;
    ngx_uint_t               ignored;

    ngx_array_t             *paths;
    ngx_pool_t              *pool;
    ngx_uint_t               no_memory;
    ngx_uint_t               nvalues;
    size_t                   room;     /* for folded names */

    json_frame_t            *frame;    /* innermost open one */
    json_frame_t             frames[1 + NGX_IDEMPOTENCY_JSON_DEPTH];
    json_piece_t             own_pieces[NGX_IDEMPOTENCY_JSON_PIECES];
    ngx_idempotency_name_t   own_names[NGX_IDEMPOTENCY_JSON_NAMES];
    u_char                   own_out[NGX_IDEMPOTENCY_JSON_OUT];
} json_t;


typedef enum {
    find_start = 0,
    find_mark,
    find_mark_end,
    find_member,
    find_colon,
    find_behind,
    find_end,

    find_root,             /* number or literal */
    find_value,
    find_scalar,
    find_name,
    find_string,
    find_nested
} find_state_e;


static ngx_int_t json_matches(ngx_str_t *type, u_char *pos, u_char *end,
    ngx_str_t *boundary);
static ngx_int_t json_whole(ngx_idempotency_digest_t *d,
    ngx_idempotency_canon_t *c, u_char *data, size_t len, ngx_pool_t *pool);
static u_char *json_read(json_t *j, u_char *p);
static ngx_int_t json_open(json_t *j, u_char type);
static ngx_int_t json_close(json_t *j);
static u_char *json_member(json_t *j, u_char *p);
static ngx_int_t json_fold_name(json_t *j, uint32_t i);
static void json_element(json_t *j);
static void json_path(json_t *j, u_char *name, size_t len, ngx_uint_t member);
static ngx_int_t json_sort(json_t *j, json_frame_t *f);
static void json_drop(json_t *j, uint32_t start, uint32_t npieces);
static void json_flush(json_t *j);
static void json_write(json_t *j);
static ngx_int_t json_grow_pieces(json_t *j);
static ngx_int_t json_grow_names(json_t *j, uint32_t n);
static void *json_enlarge(json_t *j, void *from, size_t len, size_t size);
static u_char *json_literal(json_t *j, u_char *p);
static u_char *json_string(json_t *j, u_char *p, u_char letter, u_char *dst);
static u_char *json_escape(u_char *p, u_char *end, u_char **last);
static u_char *json_code_unit(u_char *p, u_char *end, uint32_t *unit);
static u_char *json_put_utf8(u_char *dst, uint32_t n);
static u_char *json_utf8(u_char *p, u_char *end, u_char **to);
static u_char *json_number(json_t *j, u_char *p);
static u_char *json_exponent(u_char *p, u_char *end, int64_t *power);
static u_char *json_digits(u_char *p, u_char *end, u_char *first,
    u_char **to);
static u_char *json_put_power(u_char *dst, int64_t power);
static void json_fields(ngx_idempotency_fields_t *f, u_char *p, u_char *last);
static void json_fields_end(ngx_idempotency_fields_t *f);
static ngx_int_t json_decode(ngx_str_t *s);
static void find_token(ngx_idempotency_fields_t *f, u_char c);
static void find_value_begin(ngx_idempotency_fields_t *f, u_char c);
static ngx_uint_t find_is_scalar(u_char c);
static void find_scalar_end(ngx_idempotency_fields_t *f);
static u_char *find_text(ngx_idempotency_fields_t *f, u_char *p, u_char *last);
static void find_text_end(ngx_idempotency_fields_t *f);
static u_char *find_skip(ngx_idempotency_fields_t *f, u_char *p, u_char *last);


/* the meaning of a letter behind a backslash; 0: not allowed */

static const u_char  json_escaped[256] = {
    ['"'] = '"', ['\\'] = '\\', ['/'] = '/', ['b'] = '\b', ['f'] = '\f',
    ['n'] = '\n', ['r'] = '\r', ['t'] = '\t'
};


/* the two bytes that a state expects, and the states behind them */

static const struct {
    u_char                   c[2];
    u_char                   next[2];
} find_tokens[] = {
    [find_start]    = { { '{', 0xef }, { find_member, find_mark } },
    [find_mark]     = { { 0xbb, 0xbb }, { find_mark_end, find_mark_end } },
    [find_mark_end] = { { 0xbf, 0xbf }, { find_start, find_start } },
    [find_member]   = { { '"', '}' }, { find_name, find_end } },
    [find_colon]    = { { ':', ':' }, { find_value, find_value } },
    [find_behind]   = { { ',', '}' }, { find_member, find_end } }
};


/* The index of a new piece; 0: no memory.  The document's first piece has
   index 0, too, and is made while there surely is room. */

static ngx_inline uint32_t
json_piece(json_t *j)
{
    json_piece_t  *piece;

    if (j->npieces == j->pieces_size && json_grow_pieces(j) != NGX_OK) {
        return 0;
    }

    piece = &j->pieces[j->npieces];
    piece->start = j->pos - j->out;
    piece->next = j->npieces + 1;

    return j->npieces++;
}


/* NGX_DECLINED: the object has too many members */

static ngx_inline ngx_int_t
json_name(json_t *j, uint32_t place, uint32_t len, uint32_t index)
{
    if (j->frame->n++ == NGX_IDEMPOTENCY_JSON_MEMBERS) {
        return NGX_DECLINED;
    }

    if (j->nnames == j->names_size && json_grow_names(j, 0) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_idempotency_name_set(&j->names[j->nnames++], j->out, place, len,
                             index);

    return NGX_OK;
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


/* Copies plain ASCII up to the first other byte.  May write 7 bytes more. */

static ngx_inline u_char *
json_plain(u_char *p, u_char *end, u_char **to)
{
    u_char    *dst;
    uint64_t   w, x, y;

    dst = *to;

    while (end - p >= 8) {
        ngx_memcpy(&w, p, 8);
        ngx_memcpy(dst, &w, 8);

        x = w ^ (NGX_IDEMPOTENCY_EACH_BYTE * '"');
        y = w ^ (NGX_IDEMPOTENCY_EACH_BYTE * '\\');

        /* marks a quote, a backslash, a control character, a byte beyond
           ASCII */

        w |= (w - NGX_IDEMPOTENCY_EACH_BYTE * ' ')
             | (x - NGX_IDEMPOTENCY_EACH_BYTE)
             | (y - NGX_IDEMPOTENCY_EACH_BYTE);
        w &= NGX_IDEMPOTENCY_HIGH_BITS;

        if (w) {
#if (NGX_HAVE_LITTLE_ENDIAN && __GNUC__)
            /* borrows go upwards only, so the lowest mark is right */
            *to = dst + (__builtin_ctzll(w) >> 3);
            return p + (__builtin_ctzll(w) >> 3);
#else
            break;
#endif
        }

        p += 8;
        dst += 8;
    }

    while (p < end && *p >= ' ' && *p < 0x80 && *p != '"' && *p != '\\') {
        *dst++ = *p++;
    }

    *to = dst;

    return p;
}


/* p: behind the quote; most strings are short and plain ASCII */

static ngx_inline u_char *
json_text(json_t *j, u_char *p, u_char letter)
{
    u_char  *start, *dst;

    start = j->pos + 2;
    dst = start;

    p = json_plain(p, j->end, &dst);

    if (p == j->end || *p != '"' || dst - start >= 0x80) {
        return json_string(j, p, letter, dst);
    }

    j->pos[0] = letter;
    j->pos[1] = (u_char) (dst - start);
    j->pos = dst;

    j->string = start - j->out;
    j->len = dst - start;
    j->not_ascii = 0;

    return p + 1;
}


const ngx_idempotency_kind_t  ngx_idempotency_json_kind = {
    .name = ngx_string("json"),
    .flag = NGX_IDEMPOTENCY_CANON_JSON,
    .parameter = "charset",
    .escape = sizeof("\\u0041") - 1,
    .matches = json_matches,
    .whole = json_whole,
    .field = json_fields,
    .field_end = json_fields_end,
    .decode = json_decode
};


/* application/json, and types whose subtype ends with "+json" */

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
    json_t                     j;
    size_t                     size;
    u_char                    *p;
    ngx_int_t                  rc;
    ngx_idempotency_digest_t   before;

    /*
     * The encoding grows most where one value of three bytes becomes five, as
     * in 10 and 1.5; a long token gets longer only by the bytes of its length.
     * A folded name is beside the original.
     */

    size = len + ngx_min(len, 8 * NGX_IDEMPOTENCY_JSON_NODES
                              + NGX_IDEMPOTENCY_JSON_FOLDED + len / 1024)
           + NGX_IDEMPOTENCY_JSON_SLACK;

    j.digest = d;
    j.out = j.own_out;

    if (size > sizeof(j.own_out)) {
        j.out = ngx_palloc(pool, size);
        if (j.out == NULL) {
            return NGX_ERROR;
        }
    }

    j.data = data;
    j.end = data + len;
    j.pos = j.out;
    j.pieces = j.own_pieces;
    j.npieces = 0;
    j.pieces_size = NGX_IDEMPOTENCY_JSON_PIECES;
    j.names = j.own_names;
    j.nnames = 0;
    j.names_size = NGX_IDEMPOTENCY_JSON_NAMES;
    j.ignore = 0;
    j.nignore = c->ignore ? c->ignore->nelts : 0;
    j.ignored = 0;
    j.paths = c->ignore;
    j.pool = pool;
    j.no_memory = 0;
    j.nvalues = 0;
    j.frame = j.frames;
    j.frame->type = 0;
    j.room = ngx_min(len, NGX_IDEMPOTENCY_JSON_FOLDED);

    (void) json_piece(&j);

    before = *d;
    ngx_idempotency_digest_bytes(d, (u_char *) "J", 1);

    p = json_read(&j, data);

    if (p && json_space(p, j.end) == j.end) {
        json_write(&j);
        rc = NGX_OK;

    } else {
        *d = before;
        rc = j.no_memory ? NGX_ERROR : NGX_DECLINED;
    }

    /* ngx_pfree() ignores those that are on the stack */

    ngx_pfree(pool, j.out);
    ngx_pfree(pool, j.pieces);
    ngx_pfree(pool, j.names);

    return rc;
}


static u_char *
json_read(json_t *j, u_char *p)
{
    u_char      c;
    uint32_t    start, npieces;
    ngx_uint_t  more;

    for ( ;; ) {

        p = json_space(p, j->end);

        if (p == j->end || j->nvalues++ == NGX_IDEMPOTENCY_JSON_NODES) {
            return NULL;
        }

        more = 0;
        c = *p;

        if (c == '{' || c == '[') {

            if (json_open(j, c) != NGX_OK) {
                return NULL;
            }

            p = json_space(p + 1, j->end);

            /* the codes of closing brackets are the opening ones' plus two */

            more = (p < j->end && *p != c + 2);

        } else {
            start = j->pos - j->out;
            npieces = j->npieces;

            if (c == '"') {
                p = json_text(j, p + 1, '"');

            } else {
                p = (c > '9') ? json_literal(j, p) : json_number(j, p);
            }

            if (p == NULL) {
                return NULL;
            }

            if (j->ignored) {
                json_drop(j, start, npieces);
            }
        }

        /* closes arrays and objects behind the value, up to a comma */

        while (!more) {

            if (j->frame->type == 0) {
                return p;
            }

            p = json_space(p, j->end);

            if (p == j->end) {
                return NULL;
            }

            c = *p++;

            if (c == ',') {
                more = 1;

                if (j->pos - j->out >= NGX_IDEMPOTENCY_JSON_FLUSH) {
                    json_flush(j);
                }

            } else if (c != j->frame->type + 2 || json_close(j) != NGX_OK) {
                return NULL;
            }
        }

        j->ignored = 0;
        j->nignore = 0;

        if (j->frame->type == '{') {
            p = json_member(j, p);

            if (p == NULL) {
                return NULL;
            }

        } else if (j->frame->nignore) {
            json_element(j);
        }
    }
}


static ngx_int_t
json_open(json_t *j, u_char type)
{
    json_frame_t  *f;

    if (j->frame == &j->frames[NGX_IDEMPOTENCY_JSON_DEPTH]) {
        return NGX_DECLINED;
    }

    f = ++j->frame;

    f->type = type;
    f->ignored = j->ignored;
    f->left_out = 0;
    f->start = j->pos - j->out;
    f->npieces = j->npieces;
    f->member = 0;
    f->n = 0;
    f->ignore = j->ignore;
    f->nignore = j->nignore;

    *j->pos++ = type;

    return NGX_OK;
}


static ngx_int_t
json_close(json_t *j)
{
    ngx_int_t      rc;
    json_frame_t  *f;

    f = j->frame--;

    if (f->type == '{' && f->n) {
        rc = json_sort(j, f);

        if (rc != NGX_OK) {
            return rc;
        }
    }

    *j->pos++ = f->type + 2;

    if (f->ignored) {
        json_drop(j, f->start, f->npieces);
    }

    return NGX_OK;
}


/* reads a name and its colon: a member begins */

static u_char *
json_member(json_t *j, u_char *p)
{
    uint32_t       i;
    json_frame_t  *f;

    p = json_space(p, j->end);

    if (p == j->end || *p != '"') {
        return NULL;
    }

    i = json_piece(j);

    if (i == 0) {
        return NULL;
    }

    p = json_text(j, p + 1, ':');

    if (p == NULL) {
        return NULL;
    }

    p = json_space(p, j->end);

    if (p == j->end || *p != ':') {
        return NULL;
    }

    f = j->frame;

    /* the previous member ends here; in front of the first one it is piece
       0 */

    j->pieces[f->member].last = i - 1;
    f->member = i;

    if (f->nignore) {
        json_path(j, j->out + j->string, j->len, 1);

        if (j->ignored) {
            f->left_out = 1;
            i |= NGX_IDEMPOTENCY_JSON_IGNORED;
        }
    }

    if (json_name(j, j->string, j->len, i) != NGX_OK
        || (j->not_ascii && json_fold_name(j, f->member) != NGX_OK))
    {
        return NULL;
    }

    return p + 1;
}


/*
 * Two letters beyond ASCII fold to "s" and "k": U+017F and U+212A.  A name
 * that has them is in the list of names twice, the second time folded.  The
 * folded name has a piece of its own, which is not digested: the member's next
 * piece is the one behind.
 */

static ngx_int_t
json_fold_name(json_t *j, uint32_t i)
{
    u_char    *p, *end, *dst;
    size_t     len;
    uint32_t   fold, rest, place;

    if (j->room < j->len) {
        return NGX_DECLINED;
    }

    dst = j->pos;
    end = dst;

    for (p = end - j->len; p < end; /* void */ ) {

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

    len = dst - end;

    if (len == j->len) {
        return NGX_OK;
    }

    if (j->nvalues++ == NGX_IDEMPOTENCY_JSON_NODES) {
        return NGX_DECLINED;
    }

    place = j->pos - j->out;
    fold = json_piece(j);

    j->pos = dst;
    rest = fold ? json_piece(j) : 0;

    if (rest == 0) {
        return NGX_ERROR;
    }

    j->pieces[i].next = rest;
    j->room -= len;

    return json_name(j, place, len, NGX_IDEMPOTENCY_JSON_IGNORED);
}


/* a path may name an array's element by its number */

static void
json_element(json_t *j)
{
    u_char  *last, index[NGX_INT32_LEN];

    last = ngx_sprintf(index, "%uD", j->frame->n++);

    json_path(j, index, last - index, 0);
}


/* keeps those of the frame's paths whose next token is this name */

static void
json_path(json_t *j, u_char *name, size_t len, ngx_uint_t member)
{
    uint32_t                 i, last, depth;
    ngx_str_t               *token;
    json_frame_t            *f;
    ngx_idempotency_path_t  *path;

    f = j->frame;
    depth = f - j->frames;
    path = j->paths->elts;
    last = f->ignore + f->nignore;

    for (i = f->ignore; i < last; i++) {

        token = &path[i].tokens[depth - 1];

        if (token->len != len || ngx_memcmp(token->data, name, len) != 0
            || (!member && !path[i].pointer))
        {
            continue;
        }

        if (path[i].ntokens == depth) {
            j->ignored = 1;
            j->nignore = 0;
            return;
        }

        if (j->nignore++ == 0) {
            j->ignore = i;
        }
    }
}


/* sorts the members of an object; NGX_DECLINED: two have the same name */

static ngx_int_t
json_sort(json_t *j, json_frame_t *f)
{
    uint32_t                 i, prev;
    ngx_uint_t               k;
    json_piece_t            *pieces;
    ngx_idempotency_name_t  *names;

    if (j->nnames + f->n / 2 > j->names_size
        && json_grow_names(j, j->nnames + f->n / 2) != NGX_OK)
    {
        return NGX_ERROR;
    }

    j->nnames -= f->n;
    names = &j->names[j->nnames];

    if (ngx_idempotency_names_sort(j->out, names, &names[f->n], f->n) == 0
        && !f->left_out)
    {
        return NGX_OK;
    }

    pieces = j->pieces;
    pieces[f->member].last = j->npieces - 1;
    prev = f->npieces - 1;

    for (k = 0; k < f->n; k++) {

        if (k && ngx_idempotency_names_alike(j->out, &names[k - 1],
                                             &names[k]))
        {
            return NGX_DECLINED;
        }

        i = names[k].index;

        if (!(i & NGX_IDEMPOTENCY_JSON_IGNORED)) {
            pieces[prev].next = i;
            prev = pieces[i].last;
        }
    }

    pieces[prev].next = j->npieces;

    return json_piece(j) ? NGX_OK : NGX_ERROR;
}


/* an ignored value is read as others are, and its encoding is removed again */

static void
json_drop(json_t *j, uint32_t start, uint32_t npieces)
{
    j->pos = j->out + start;
    j->npieces = npieces;
    j->pieces[npieces - 1].next = npieces;
}


/* at a comma in an array at the top: all pieces so far keep their places */

static void
json_flush(json_t *j)
{
    if (j->frame == &j->frames[1] && j->frame->type == '[') {

        json_write(j);

        j->pos = j->out;
        j->npieces = 0;
        (void) json_piece(j);
    }
}


/* digests the pieces in their order, neighbours as one run of bytes */

static void
json_write(json_t *j)
{
    size_t                   len;
    u_char                  *start;
    uint32_t                 i, k, n;
    json_piece_t            *pieces;
    ngx_idempotency_sink_t   sink;

    pieces = j->pieces;
    n = j->npieces;

    ngx_idempotency_sink_init(&sink, j->digest);

    for (i = 0; i < n; i = pieces[k - 1].next) {

        start = j->out + pieces[i].start;

        for (k = i + 1; k < n && pieces[k - 1].next == k; k++) { /* void */ }

        len = (k < n) ? j->out + pieces[k].start - start : j->pos - start;

        ngx_idempotency_sink_bytes(&sink, start, len);
    }

    ngx_idempotency_sink_flush(&sink);
}


/* makes room for the whole document, if its rest is like its beginning */

static ngx_int_t
json_grow_pieces(json_t *j)
{
    size_t         n;
    json_piece_t  *pieces;

    n = (size_t) j->pieces_size * (j->end - j->data) / (j->pos - j->out);
    n = ngx_min(n, NGX_IDEMPOTENCY_JSON_NODES);
    n = ngx_max(n, (size_t) 2 * j->pieces_size);

    pieces = json_enlarge(j, j->pieces, j->npieces * sizeof(json_piece_t),
                          n * sizeof(json_piece_t));
    if (pieces == NULL) {
        return NGX_ERROR;
    }

    j->pieces = pieces;
    j->pieces_size = n;

    return NGX_OK;
}


/* makes room for at least n names */

static ngx_int_t
json_grow_names(json_t *j, uint32_t n)
{
    ngx_idempotency_name_t  *names;

    n = ngx_max(n, 2 * j->names_size);

    names = json_enlarge(j, j->names,
                         j->nnames * sizeof(ngx_idempotency_name_t),
                         n * sizeof(ngx_idempotency_name_t));
    if (names == NULL) {
        return NGX_ERROR;
    }

    j->names = names;
    j->names_size = n;

    return NGX_OK;
}


static void *
json_enlarge(json_t *j, void *from, size_t len, size_t size)
{
    void  *to;

    to = ngx_palloc(j->pool, size);

    if (to == NULL) {
        j->no_memory = 1;
        return NULL;
    }

    ngx_memcpy(to, from, len);
    ngx_pfree(j->pool, from);

    return to;
}


static u_char *
json_literal(json_t *j, u_char *p)
{
    ngx_str_t   *s;
    ngx_uint_t   i;

    static ngx_str_t  literals[] = { ngx_string("true"), ngx_string("false"),
                                     ngx_string("null") };

    for (i = 0; i < 3; i++) {
        s = &literals[i];

        if ((size_t) (j->end - p) >= s->len
            && ngx_memcmp(p, s->data, s->len) == 0)
        {
            *j->pos++ = ngx_toupper(*p);
            return p + s->len;
        }
    }

    return NULL;
}


/* Goes on with a string that is long, or has escapes or bytes beyond ASCII.
   Its length is known at the end: one byte is reserved for it. */

static u_char *
json_string(json_t *j, u_char *p, u_char letter, u_char *dst)
{
    u_char  *start;

    start = j->pos + 2;
    j->not_ascii = 0;

    while (p < j->end && *p != '"') {

        if (*p == '\\') {
            p = json_escape(p, j->end, &dst);

            if (p == NULL) {
                return NULL;
            }

            j->not_ascii |= (dst[-1] >= 0x80);

        } else {
            j->not_ascii = 1;
            p = json_utf8(p, j->end, &dst);

            if (p == NULL) {
                return NULL;
            }
        }

        p = json_plain(p, j->end, &dst);
    }

    if (p == j->end) {
        return NULL;
    }

    j->len = dst - start;
    j->pos[0] = letter;

    start = ngx_idempotency_put_length(j->pos + 1, start, j->len);

    j->string = start - j->out;
    j->pos = start + j->len;

    return p + 1;
}


static u_char *
json_escape(u_char *p, u_char *end, u_char **last)
{
    u_char    c, *next;
    uint32_t  unit, low;

    if (end - p < 2) {
        return NULL;
    }

    if (p[1] != 'u') {
        c = json_escaped[p[1]];

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
     * A single surrogate is no character, but JSON.stringify() makes them of a
     * string that was cut.  It is encoded as it is, and equals no character.
     */

    if (unit >= 0xd800 && unit < 0xdc00) {

        next = json_code_unit(p, end, &low);

        if (next && low >= 0xdc00 && low < 0xe000) {
            unit = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
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


/* encodes a character in UTF-8; n may be a surrogate */

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


/* copies characters beyond ASCII; NULL: invalid by RFC 3629, 4 */

static u_char *
json_utf8(u_char *p, u_char *end, u_char **to)
{
    u_char      c, low, high, *start;
    ngx_uint_t  n;

    start = p;

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

    *to = ngx_cpymem(*to, start, p - start);

    return (p > start) ? p : NULL;
}


/* A number is its digits without zeros at both ends, and the power of ten of
   the last digit.  No digit is moved or lost, whatever the power. */

static u_char *
json_number(json_t *j, u_char *p)
{
    u_char   *start, *end, *digits, *number, *dst;
    int64_t   power, exponent;

    end = j->end;
    number = j->pos + 2;
    dst = number;

    if (*p == '-') {
        *dst++ = *p++;
    }

    digits = dst;
    start = p;

    p = json_digits(p, end, digits, &dst);

    if (p == start || (*start == '0' && p - start > 1)) {
        return NULL;
    }

    power = 0;

    if (p < end && *p == '.') {
        start = ++p;
        p = json_digits(p, end, digits, &dst);

        if (p == start) {
            return NULL;
        }

        power = start - p;
    }

    if (p < end && (*p | 0x20) == 'e') {
        p = json_exponent(p + 1, end, &exponent);

        if (p == NULL) {
            return NULL;
        }

        power += exponent;
    }

    for ( /* void */ ; dst > digits && dst[-1] == '0'; dst--) {
        power++;
    }

    if (dst == digits) {
        j->pos = ngx_cpymem(j->pos, "#\0010", 3);
        return p;
    }

    if (power) {
        dst = json_put_power(dst, power);
    }

    *j->pos = '#';
    j->pos = ngx_idempotency_put_length(j->pos + 1, number, dst - number)
             + (dst - number);

    return p;
}


/* copies digits, without leading zeros */

static u_char *
json_digits(u_char *p, u_char *end, u_char *first, u_char **to)
{
    u_char  *dst;

    dst = *to;

    for ( /* void */ ; p < end && *p >= '0' && *p <= '9'; p++) {
        if (*p != '0' || dst > first) {
            *dst++ = *p;
        }
    }

    *to = dst;

    return p;
}


static u_char *
json_exponent(u_char *p, u_char *end, int64_t *power)
{
    u_char      c;
    int64_t     n;
    ngx_uint_t  i;

    c = (p < end) ? *p : '\0';

    if (c == '+' || c == '-') {
        p++;
    }

    if (p == end || *p < '0' || *p > '9') {
        return NULL;
    }

    while (p < end && *p == '0') {
        p++;
    }

    n = 0;

    for (i = 0; p < end && *p >= '0' && *p <= '9'; i++) {

        if (i == NGX_IDEMPOTENCY_JSON_EXPONENT) {
            return NULL;
        }

        n = n * 10 + (*p++ - '0');
    }

    *power = (c == '-') ? -n : n;

    return p;
}


static u_char *
json_put_power(u_char *dst, int64_t power)
{
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

        case find_nested:
            p = find_skip(f, p, last);
            break;

        case find_scalar:

            if (find_is_scalar(*p)) {
                ngx_idempotency_field_put(f, p++, 1);
                break;
            }

            if (*p == ',' || *p == '}' || *p == ']'
                || json_space(p, p + 1) != p)
            {
                find_scalar_end(f);
                break;
            }

            ngx_idempotency_fields_unreadable(f);
            break;

        default:
            p = json_space(p, last);

            if (p < last) {
                find_token(f, *p++);
            }
        }
    }
}


/* the body has ended; an empty body has no members */

static void
json_fields_end(ngx_idempotency_fields_t *f)
{
    if (f->state == find_scalar) {
        find_scalar_end(f);
    }

    if (f->state != find_start && f->state != find_root
        && f->state != find_end)
    {
        ngx_idempotency_fields_unreadable(f);
    }
}


static void
find_token(ngx_idempotency_fields_t *f, u_char c)
{
    ngx_uint_t  i;

    if (f->state == find_value) {
        find_value_begin(f, c);
        return;
    }

    if (f->state < find_end) {
        i = (c != find_tokens[f->state].c[0]);

        if (c == find_tokens[f->state].c[i]) {
            f->state = find_tokens[f->state].next[i];
            return;
        }
    }

    if (f->state == find_root && find_is_scalar(c)) {
        return;
    }

    /* values other than objects have no members */

    if (f->state == find_start) {

        if (c == '[' || c == '"') {
            f->done = 1;
            return;
        }

        if (c == '-' || c == 't' || c == 'f' || c == 'n'
            || (c >= '0' && c <= '9'))
        {
            f->state = find_root;
            return;
        }
    }

    ngx_idempotency_fields_unreadable(f);
}


static ngx_int_t
json_decode(ngx_str_t *s)
{
    u_char  *p, *end, *dst;

    p = s->data;
    end = p + s->len;
    dst = p;

    while (p < end) {

        if (*p != '\\') {
            *dst++ = *p++;
            continue;
        }

        p = json_escape(p, end, &dst);

        if (p == NULL) {
            return NGX_DECLINED;
        }
    }

    s->len = dst - s->data;

    return NGX_OK;
}


static void
find_value_begin(ngx_idempotency_fields_t *f, u_char c)
{
    f->depth = 0;

    if (c == '"') {
        f->state = find_string;
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


/* a byte of a number or a literal; of NaN, too, which some writers write */

static ngx_uint_t
find_is_scalar(u_char c)
{
    return c == '-' || c == '+' || c == '.'
           || ngx_idempotency_field_class(c) != '_';
}


static void
find_scalar_end(ngx_idempotency_fields_t *f)
{
    size_t      i;
    ngx_str_t  *value;
    ngx_uint_t  state;

    f->state = find_behind;

    if (f->current == NULL) {
        return;
    }

    value = &f->current->value;

    if (ngx_idempotency_is(value, "null")) {
        state = NGX_IDEMPOTENCY_FIELD_NONE;

    } else if (ngx_idempotency_is(value, "true")
               || ngx_idempotency_is(value, "false"))
    {
        state = NGX_IDEMPOTENCY_FIELD_FOUND;

    } else {
        for (i = 0; i < value->len; i++) {
            if (!ngx_strchr("0123456789-+.eE", value->data[i])) {
                break;
            }
        }

        state = (i == value->len) ? NGX_IDEMPOTENCY_FIELD_FOUND
                                  : NGX_IDEMPOTENCY_FIELD_SPOILT;
    }

    ngx_idempotency_field_end(f, state);
}


/* reads on in a string: a name, a value, or one in a skipped value */

static u_char *
find_text(ngx_idempotency_fields_t *f, u_char *p, u_char *last)
{
    u_char  *start;

    start = p;

    for ( /* void */ ; p < last; p++) {

        if (f->escape) {
            f->escape = 0;
            continue;
        }

        if (*p == '"') {
            break;
        }

        f->escape = (*p == '\\');
    }

    if (f->state == find_name) {
        ngx_idempotency_field_name(f, start, p - start);

    } else {
        ngx_idempotency_field_put(f, start, p - start);
    }

    if (p == last) {
        return p;
    }

    find_text_end(f);

    return p + 1;
}


static void
find_text_end(ngx_idempotency_fields_t *f)
{
    if (f->depth) {
        f->state = find_nested;
        return;
    }

    if (f->state == find_name) {
        f->state = find_colon;

        if (ngx_idempotency_field_begin(f) == NGX_OK) {
            return;
        }

    } else {
        f->state = find_behind;

        if (f->current == NULL || ngx_idempotency_field_decode(f) == NGX_OK) {
            return;
        }
    }

    ngx_idempotency_fields_unreadable(f);
}


/* reads on in a skipped array or object, up to a string or its end */

static u_char *
find_skip(ngx_idempotency_fields_t *f, u_char *p, u_char *last)
{
    while (p < last) {

        switch (*p++) {

        case '"':
            f->state = find_string;
            return p;

        case '{':
        case '[':
            f->depth++;
            break;

        case '}':
        case ']':
            if (--f->depth == 0) {
                f->state = find_behind;
                return p;
            }
        }
    }

    return p;
}
