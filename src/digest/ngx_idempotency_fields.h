
/*
 * Fields of a body by name, found wherever they stand and however the body is
 * cut, in one pass for all names.
 *
 * What is digested by its meaning must be understood to the last byte.  Here a
 * field that is there is found, whatever is wrong behind it; and where nobody
 * can tell whether it is there, that is said.
 */


#ifndef _NGX_IDEMPOTENCY_FIELDS_H_INCLUDED_
#define _NGX_IDEMPOTENCY_FIELDS_H_INCLUDED_


#include "ngx_idempotency_canon.h"


/* the field may be there, but it or the body can't be read */

#define NGX_IDEMPOTENCY_UNREADABLE  NGX_ABORT


/* the states of a field */

#define NGX_IDEMPOTENCY_FIELD_WANTED  0
#define NGX_IDEMPOTENCY_FIELD_FOUND   1
#define NGX_IDEMPOTENCY_FIELD_NONE    2    /* a file, null, an object, ... */
#define NGX_IDEMPOTENCY_FIELD_SPOILT  3


typedef struct {
    ngx_str_t                  value;
    size_t                     size;       /* allocated */
    ngx_uint_t                 state;
} ngx_idempotency_field_t;


struct ngx_idempotency_fields_s {
    ngx_pool_t                *pool;
    const ngx_idempotency_kind_t
                              *kind;

    ngx_str_t                 *names;
    ngx_uint_t                 nnames;
    ngx_idempotency_field_t   *fields;     /* as many */
    ngx_idempotency_field_t   *current;
    ngx_uint_t                 nwanted;
    size_t                     max;        /* for a value */

    /* the name that is being read, as far as it may be one that is wanted */
    u_char                    *name;
    size_t                     name_len;
    size_t                     longest;

    /* between two pieces */
    ngx_uint_t                 state;
    ngx_uint_t                 escape;
    uint32_t                   unit;
    uint32_t                   high;
    ngx_uint_t                 depth;

    unsigned                   named:1;
    unsigned                   done:1;
    unsigned                   unreadable:1;
    unsigned                   too_long:1; /* some value */
    unsigned                   no_memory:1;
};


/*
 * The kind of a body that has fields, and the boundary of MULTIPART; NULL: it
 * has none.  NGX_DECLINED: it has, but they can't be found.
 */

ngx_int_t ngx_idempotency_fields_kind(ngx_str_t *content_type,
    const ngx_idempotency_kind_t **kind, ngx_str_t *boundary);

/*
 * Names are of small letters, digits and underscores, which stand for any
 * other byte.  The first field of a name counts.  A value longer than max is
 * not read.
 *
 * A kind that is started is not fed here: its fields are found on its way
 * through, and its finish is their end.
 *
 * feed: NGX_DONE: there is nothing more to be found; NGX_ERROR: no memory.
 * value: NGX_DECLINED: there is none; NGX_IDEMPOTENCY_UNREADABLE.
 */

ngx_idempotency_fields_t *ngx_idempotency_fields_create(ngx_pool_t *pool,
    const ngx_idempotency_kind_t *kind, ngx_str_t *names, ngx_uint_t nnames,
    size_t max);
ngx_int_t ngx_idempotency_fields_feed(ngx_idempotency_fields_t *f,
    u_char *data, size_t len);
void ngx_idempotency_fields_end(ngx_idempotency_fields_t *f);
void ngx_idempotency_fields_unreadable(ngx_idempotency_fields_t *f);
ngx_int_t ngx_idempotency_fields_value(ngx_idempotency_fields_t *f,
    ngx_uint_t i, ngx_str_t *value);

/* for those who read the kinds */

void ngx_idempotency_form_fields(ngx_idempotency_fields_t *f, u_char *p,
    u_char *last);
void ngx_idempotency_form_fields_end(ngx_idempotency_fields_t *f);
void ngx_idempotency_json_fields(ngx_idempotency_fields_t *f, u_char *p,
    u_char *last);
void ngx_idempotency_json_fields_end(ngx_idempotency_fields_t *f);

void ngx_idempotency_field_begin(ngx_idempotency_fields_t *f);
void ngx_idempotency_field_put(ngx_idempotency_fields_t *f, u_char *data,
    size_t len);
void ngx_idempotency_field_end(ngx_idempotency_fields_t *f, ngx_uint_t state);


/* what a variable's name has instead of a byte */

static ngx_inline u_char
ngx_idempotency_field_class(u_char c)
{
    if (c >= '0' && c <= '9') {
        return c;
    }

    c |= 0x20;

    return (c >= 'a' && c <= 'z') ? c : '_';
}


static ngx_inline void
ngx_idempotency_field_name(ngx_idempotency_fields_t *f, u_char c)
{
    if (f->name_len < f->longest) {
        f->name[f->name_len++] = ngx_idempotency_field_class(c);
        return;
    }

    /* longer than all that are wanted */
    f->name_len = f->longest + 1;
}


#endif /* _NGX_IDEMPOTENCY_FIELDS_H_INCLUDED_ */
