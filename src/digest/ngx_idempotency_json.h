
/*
 * A JSON document as it is read: nodes that point to where their names and
 * values stand.
 */


#ifndef _NGX_IDEMPOTENCY_JSON_H_INCLUDED_
#define _NGX_IDEMPOTENCY_JSON_H_INCLUDED_


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
} ngx_idempotency_json_node_t;


/* a container that is open */

typedef struct {
    uint32_t                     node;
    uint32_t                     last;     /* child */
    uint32_t                     nchildren;
    uint32_t                     nelements;
    uint32_t                     ignore;   /* from this path on ... */
    uint32_t                     nignore;  /* ... so many begin as it does */
    ngx_uint_t                   unsorted;
} ngx_idempotency_json_frame_t;


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

    ngx_idempotency_json_node_t *nodes;
    uint32_t                     nnodes;
    uint32_t                     nalloc;
    ngx_idempotency_json_node_t  values[NGX_IDEMPOTENCY_JSON_VALUES];

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
    ngx_idempotency_json_frame_t frames[NGX_IDEMPOTENCY_JSON_DEPTH];
} ngx_idempotency_json_t;


ngx_int_t ngx_idempotency_json_parse(ngx_idempotency_json_t *j,
    ngx_array_t *paths, u_char *data, size_t len, ngx_pool_t *pool);
void ngx_idempotency_json_free(ngx_idempotency_json_t *j);

ngx_int_t ngx_idempotency_json_scratch(ngx_idempotency_json_t *j);

/* these return the place behind, or NULL */

u_char *ngx_idempotency_json_string(ngx_idempotency_json_t *j, u_char *p,
    uint32_t *place, uint32_t *len);
u_char *ngx_idempotency_json_number(ngx_idempotency_json_t *j, u_char *p,
    ngx_idempotency_json_node_t *node);

u_char *ngx_idempotency_json_utf8(u_char *dst, uint32_t n);

/* the encoding of a number that is not spelled so already */

void ngx_idempotency_json_decimal(ngx_idempotency_sink_t *s, u_char *data,
    size_t len);


static ngx_inline u_char *
ngx_idempotency_json_at(ngx_idempotency_json_t *j, uint32_t place)
{
    return (place < j->size) ? j->data + place
                             : j->scratch + (place - j->size);
}


/* what a letter behind a backslash stands for, or 0; but for that of a unit */

static ngx_inline u_char
ngx_idempotency_json_escape(u_char c)
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
ngx_idempotency_json_high(uint32_t unit)
{
    return unit >= 0xd800 && unit < 0xdc00;
}


/* a character of two surrogates, or 0: the second one is none */

static ngx_inline uint32_t
ngx_idempotency_json_pair(uint32_t high, uint32_t low)
{
    if (low < 0xdc00 || low >= 0xe000) {
        return 0;
    }

    return 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
}


static ngx_inline u_char *
ngx_idempotency_json_space(u_char *p, u_char *end)
{
    while (p < end && *p <= ' '
           && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t'))
    {
        p++;
    }

    return p;
}


#endif /* _NGX_IDEMPOTENCY_JSON_H_INCLUDED_ */
