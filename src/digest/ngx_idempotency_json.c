
/*
 * JSON: a document is read into nodes, iteratively, the members of each
 * object put into order when it ends, and then encoded.  Nothing is fed into
 * the digest before the document is known to be valid.
 *
 * Readers differ in which of two members counts whose names are the same or
 * the same but for letter case, so there are no two in a valid one, not even
 * where they are left out.  By order of names they are neighbours.
 */


#include "ngx_idempotency_fields.h"
#include "ngx_idempotency_json.h"


static ngx_int_t json_matches(ngx_str_t *type, u_char *pos, u_char *end,
    ngx_str_t *boundary);
static ngx_int_t json_whole(ngx_idempotency_digest_t *d,
    ngx_idempotency_canon_t *c, u_char *data, size_t len, ngx_pool_t *pool);
static u_char *json_read(ngx_idempotency_json_t *j, u_char *p);
static u_char *json_next(ngx_idempotency_json_t *j, u_char *p);
static ngx_int_t json_fold_name(ngx_idempotency_json_t *j);
static u_char *json_scalar(ngx_idempotency_json_t *j, u_char *p);
static u_char *json_literal(ngx_idempotency_json_t *j, u_char *p,
    char *literal, u_char type);
static ngx_int_t json_open(ngx_idempotency_json_t *j, u_char type);
static ngx_int_t json_close(ngx_idempotency_json_t *j);
static ngx_int_t json_sort(ngx_idempotency_json_t *j,
    ngx_idempotency_json_frame_t *f);
static ngx_idempotency_json_node_t *json_node(ngx_idempotency_json_t *j,
    u_char type);
static ngx_int_t json_grow(ngx_idempotency_json_t *j);
static void json_path(ngx_idempotency_json_t *j, u_char *name, size_t len,
    ngx_uint_t member);
static void json_write(ngx_idempotency_json_t *j, ngx_idempotency_sink_t *s);
static u_char json_write_node(ngx_idempotency_json_t *j,
    ngx_idempotency_sink_t *s, ngx_idempotency_json_node_t *n);


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

    ngx_idempotency_json_fields,            /* field */
    ngx_idempotency_json_fields_end         /* field_end */
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
    ngx_int_t               rc;
    ngx_idempotency_json_t  j;
    ngx_idempotency_sink_t  sink;

    rc = ngx_idempotency_json_parse(&j, c->ignore, data, len, pool);

    if (rc == NGX_OK) {
        ngx_idempotency_sink_init(&sink, d, 'J');
        json_write(&j, &sink);
        ngx_idempotency_sink_flush(&sink);
    }

    ngx_idempotency_json_free(&j);

    return rc;
}


/* to be followed by ngx_idempotency_json_free() in any case */

ngx_int_t
ngx_idempotency_json_parse(ngx_idempotency_json_t *j, ngx_array_t *paths,
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

    return (ngx_idempotency_json_space(p, j->end) == j->end) ? NGX_OK
                                                            : NGX_DECLINED;
}


void
ngx_idempotency_json_free(ngx_idempotency_json_t *j)
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
json_read(ngx_idempotency_json_t *j, u_char *p)
{
    u_char  c;

    for ( ;; ) {

        /* a value */

        p = ngx_idempotency_json_space(p, j->end);

        if (p == j->end) {
            return NULL;
        }

        c = *p;

        if (c == '{' || c == '[') {

            if (json_open(j, c) != NGX_OK) {
                return NULL;
            }

            p = ngx_idempotency_json_space(p + 1, j->end);

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

            p = ngx_idempotency_json_space(p, j->end);

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
json_next(ngx_idempotency_json_t *j, u_char *p)
{
    u_char                        *last, index[NGX_INT32_LEN];
    ngx_uint_t                     folds;
    ngx_idempotency_json_frame_t  *f;

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

    p = ngx_idempotency_json_space(p, j->end);

    if (p == j->end || *p != '"') {
        return NULL;
    }

    p = ngx_idempotency_json_string(j, p + 1, &j->name, &j->name_len);

    if (p == NULL) {
        return NULL;
    }

    folds = j->not_ascii;

    p = ngx_idempotency_json_space(p, j->end);

    if (p == j->end || *p != ':') {
        return NULL;
    }

    j->ignored = 0;
    j->nignore = 0;

    if (f->nignore) {
        json_path(j, ngx_idempotency_json_at(j, j->name), j->name_len, 1);
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
json_fold_name(ngx_idempotency_json_t *j)
{
    u_char      *p, *end, *dst;
    uint32_t     name, name_len;
    ngx_uint_t   ignored;

    if (ngx_idempotency_json_scratch(j) != NGX_OK) {
        return NGX_ERROR;
    }

    if (j->room < j->name_len) {
        return NGX_DECLINED;
    }

    p = ngx_idempotency_json_at(j, j->name);
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
json_scalar(ngx_idempotency_json_t *j, u_char *p)
{
    ngx_idempotency_json_node_t  *n;

    switch (*p) {

    case '"':
        n = json_node(j, NGX_IDEMPOTENCY_JSON_STRING);
        if (n == NULL) {
            return NULL;
        }

        return ngx_idempotency_json_string(j, p + 1, &n->value, &n->len);

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

    return ngx_idempotency_json_number(j, p, n);
}


static u_char *
json_literal(ngx_idempotency_json_t *j, u_char *p, char *literal, u_char type)
{
    size_t                        len;
    ngx_idempotency_json_node_t  *n;

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
json_open(ngx_idempotency_json_t *j, u_char type)
{
    ngx_idempotency_json_node_t   *n;
    ngx_idempotency_json_frame_t  *f;

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
json_close(ngx_idempotency_json_t *j)
{
    ngx_idempotency_json_frame_t  *f;

    f = &j->frames[--j->depth];

    if (f->nchildren > NGX_IDEMPOTENCY_JSON_MEMBERS
        && j->nodes[f->node].type == NGX_IDEMPOTENCY_JSON_OBJECT)
    {
        return NGX_DECLINED;
    }

    return f->unsorted ? json_sort(j, f) : NGX_OK;
}


static ngx_int_t
json_sort(ngx_idempotency_json_t *j, ngx_idempotency_json_frame_t *f)
{
    uint32_t                      i, n;
    ngx_idempotency_name_t       *names;
    ngx_idempotency_names_t       s;
    ngx_idempotency_json_node_t  *nodes;

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
                                 ngx_idempotency_json_at(j, nodes[i].name),
                                 nodes[i].name_len, i);
        i = nodes[i].next;
    }

    s.data = j->data;
    s.scratch = j->scratch;
    s.size = j->size;
    s.stride = sizeof(ngx_idempotency_json_node_t);
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

static ngx_idempotency_json_node_t *
json_node(ngx_idempotency_json_t *j, u_char type)
{
    uint32_t                      i;
    ngx_idempotency_json_node_t  *n, *prev, *parent;
    ngx_idempotency_json_frame_t *f;

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
                                  ngx_idempotency_json_at(j, prev->name),
                                  prev->name_len,
                                  ngx_idempotency_json_at(j, n->name),
                                  n->name_len)
                      >= 0;
    }

    return n;
}


/* NGX_DECLINED: more values than a request may keep a worker busy with */

static ngx_int_t
json_grow(ngx_idempotency_json_t *j)
{
    uint32_t                      n;
    ngx_idempotency_json_node_t  *nodes;

    if (j->nalloc == NGX_IDEMPOTENCY_JSON_NODES) {
        return NGX_DECLINED;
    }

    n = ngx_max(j->nalloc * 2, j->size / 8);
    n = ngx_min(n, NGX_IDEMPOTENCY_JSON_NODES);

    nodes = ngx_palloc(j->pool, n * sizeof(ngx_idempotency_json_node_t));
    if (nodes == NULL) {
        j->no_memory = 1;
        return NGX_ERROR;
    }

    ngx_memcpy(nodes, j->nodes,
               j->nnodes * sizeof(ngx_idempotency_json_node_t));

    if (j->nodes != j->values) {
        ngx_pfree(j->pool, j->nodes);
    }

    j->nodes = nodes;
    j->nalloc = n;

    return NGX_OK;
}


/* of the paths that lead here, those that lead on to this name */

static void
json_path(ngx_idempotency_json_t *j, u_char *name, size_t len,
    ngx_uint_t member)
{
    uint32_t                       i, last;
    ngx_str_t                     *token;
    ngx_idempotency_path_t        *path;
    ngx_idempotency_json_frame_t  *f;

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
json_write(ngx_idempotency_json_t *j, ngx_idempotency_sink_t *s)
{
    u_char                        close;
    uint32_t                      parents[NGX_IDEMPOTENCY_JSON_DEPTH];
    ngx_uint_t                    depth;
    ngx_idempotency_json_node_t  *n;

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
                                       ngx_idempotency_json_at(j, n->name),
                                       n->name_len);
        }
    }
}


/* a container's closing bracket is returned */

static u_char
json_write_node(ngx_idempotency_json_t *j, ngx_idempotency_sink_t *s,
    ngx_idempotency_json_node_t *n)
{
    u_char  *value;

    switch (n->type) {

    case NGX_IDEMPOTENCY_JSON_STRING:
    case NGX_IDEMPOTENCY_JSON_NUMBER:
        value = ngx_idempotency_json_at(j, n->value);
        ngx_idempotency_sink_field(s, n->type, value, n->len);
        return 0;

    case NGX_IDEMPOTENCY_JSON_DECIMAL:
        value = ngx_idempotency_json_at(j, n->value);
        ngx_idempotency_json_decimal(s, value, n->len);
        return 0;

    default:
        /* a container, true, false or null */
        ngx_idempotency_sink_byte(s, n->type);

        return (n->type == NGX_IDEMPOTENCY_JSON_ARRAY
                || n->type == NGX_IDEMPOTENCY_JSON_OBJECT) ? n->type + 2 : 0;
    }
}
