
/*
 * Bodies by their meaning: one encoding for all spellings of the same form,
 * JSON document, multipart form or text, fed into a digest.
 *
 * An encoding begins with the letter of its kind.  Bytes that are digested as
 * they are follow ngx_idempotency_canon_raw(), which puts another letter: so
 * they never give the digest of an encoding.
 *
 * Lengths are numbers of 7 bits a byte, the highest first, the top bit set in
 * all bytes but the last.  Names are sorted by their bytes, "A" to "Z" as "a"
 * to "z", a shorter one before its continuation.  Fields and parts are sorted
 * by the groups of their names (ngx_idempotency_group), and those of one group
 * keep the order of the body: of "a.b" and "a_b", which are one variable of
 * PHP, the last one counts, and "a[][x]" belongs to the last "a[]" that had no
 * x yet.
 *
 *   form       "F", then for each field: its name and its value, each behind
 *              its length; in the order of the body if some name begins with
 *              a "[" and has a "]"
 *   JSON       "J" and the value: "N" null, "T" true, "F" false, "#" length
 *              number, "\"" length string, "[" values "]", "{" members "}";
 *              a member is ":" length name value; a number is "0", or its
 *              sign, its digits without zeros at the ends and, unless it is
 *              zero, "e" with the power of ten of the last digit; a surrogate
 *              that stands alone is its 3 bytes, which UTF-8 has no use for
 *   multipart  "M", then a digest of each part, of kind "P": its name, "f"
 *              and filename if it has one, "x" and extended filename (that
 *              with an asterisk) likewise, as fields, "t" and media type
 *              likewise; if there is more, "o" and SHA-256 of "O" and "p" with
 *              name and value of other parameters, "h" with those of other
 *              header lines, names in small letters, each behind its length;
 *              of a file behind fields MAX_FILE_SIZE, which PHP takes for a
 *              limit, "m" and how many these were; "." and the bytes.  If the
 *              header of some part reads in two ways: "O" and SHA-256 of, for
 *              each part in its order, its header's bytes as a field and its
 *              digest
 *   text       "T" and the text, white space folded
 *   bytes      "R" and the bytes
 */


#ifndef _NGX_IDEMPOTENCY_KINDS_H_INCLUDED_
#define _NGX_IDEMPOTENCY_KINDS_H_INCLUDED_


#include "ngx_idempotency_digest.h"


/* kinds; as flags none of them is NGX_CONF_BITMASK_SET */

#define NGX_IDEMPOTENCY_CANON_FORM       0x02
#define NGX_IDEMPOTENCY_CANON_JSON       0x04
#define NGX_IDEMPOTENCY_CANON_MULTIPART  0x08
#define NGX_IDEMPOTENCY_CANON_TEXT       0x10

#define NGX_IDEMPOTENCY_CANON_ALL        0x1e
#define NGX_IDEMPOTENCY_CANON_FIELDS     0x0e    /* kinds with fields */


/* deeper or larger content is digested by its bytes */

#define NGX_IDEMPOTENCY_CANON_SIZE         0x3fffffff

#define NGX_IDEMPOTENCY_FORM_FIELDS        32768

#define NGX_IDEMPOTENCY_JSON_DEPTH         256
#define NGX_IDEMPOTENCY_JSON_NODES         65536    /* values in all */
#define NGX_IDEMPOTENCY_JSON_MEMBERS       16384    /* in one object */

#define NGX_IDEMPOTENCY_MULTIPART_PARTS    4096
#define NGX_IDEMPOTENCY_MULTIPART_HEADER   4096
#define NGX_IDEMPOTENCY_MULTIPART_NAMES    131072   /* bytes of all groups */


typedef struct {
    /* kinds to be digested by meaning; TEXT folds white space in forms, too */
    ngx_uint_t    flags;

    /* ignored names, from ngx_idempotency_canon_ignore(), or NULL */
    ngx_array_t  *ignore;
} ngx_idempotency_canon_t;


typedef struct ngx_idempotency_fields_s  ngx_idempotency_fields_t;


/*
 * A kind of body: each has a file of its own, and a line in the table.  A kind
 * with `start` is read as it arrives, in pieces of any size.  Another kind is
 * digested when the body is there as a whole.
 *
 * start: c is NULL if nothing is to be digested, f if there are no wanted
 * fields. feed is called on after errors, too. finish is always called, with
 * NULL if there is no digest.
 *
 * whole, feed and finish: NGX_DECLINED: the body is malformed, or beyond a
 * limit.  That is final, and nothing was put into the digest.  NGX_ERROR: no
 * memory. whole frees all that it takes from the pool.
 */

typedef struct {
    /* its name in idempotency_normalize, and its flag there */
    ngx_str_t     name;
    ngx_uint_t    flag;

    /* the parameter of the media type that doesn't count */
    char         *parameter;

    /* the longest escape of one byte */
    size_t        escape;

    /*
     * Whether the media type is of this kind; its parameters are at pos.
     * NGX_DECLINED: no; NGX_ERROR: yes, but the body can't be read, as the
     * boundary is missing or malformed.
     */
    ngx_int_t   (*matches)(ngx_str_t *type, u_char *pos, u_char *end,
                           ngx_str_t *boundary);

    ngx_int_t   (*whole)(ngx_idempotency_digest_t *d,
                         ngx_idempotency_canon_t *c, u_char *data,
                         size_t len, ngx_pool_t *pool);

    void       *(*start)(ngx_pool_t *pool, ngx_idempotency_canon_t *c,
                         ngx_str_t *boundary, ngx_idempotency_fields_t *f);
    ngx_int_t   (*feed)(void *stream, u_char *data, size_t len);
    ngx_int_t   (*finish)(void *stream, ngx_idempotency_digest_t *d);

    /* without start: reads the fields in a piece, and at the body's end */
    void        (*field)(ngx_idempotency_fields_t *f, u_char *p,
                         u_char *last);
    void        (*field_end)(ngx_idempotency_fields_t *f);

    /* Removes the escapes from a name or a value in place.  NGX_DECLINED: an
       escape is malformed.  NULL: the kind has no escapes. */
    ngx_int_t   (*decode)(ngx_str_t *s);
} ngx_idempotency_kind_t;


extern const ngx_idempotency_kind_t  *ngx_idempotency_kinds[];

extern const ngx_idempotency_kind_t   ngx_idempotency_form_kind;
extern const ngx_idempotency_kind_t   ngx_idempotency_json_kind;
extern const ngx_idempotency_kind_t   ngx_idempotency_multipart_kind;
extern const ngx_idempotency_kind_t   ngx_idempotency_text_kind;


/* For the configuration: compiles names (ngx_str_t) and JSON pointers, which
   begin with a slash.  NGX_DECLINED: *bad is no JSON pointer. */

ngx_int_t ngx_idempotency_canon_ignore(ngx_idempotency_canon_t *c,
    ngx_array_t *names, ngx_str_t *bad, ngx_pool_t *pool);

/*
 * The kind of a body, if it is among the flags, or NULL.  The boundary is set
 * for MULTIPART and points into the content type; it may be NULL without that
 * flag.  NGX_DECLINED: the body is of such a kind, but can't be read.
 */

ngx_int_t ngx_idempotency_kind(ngx_str_t *content_type, ngx_uint_t flags,
    ngx_str_t *boundary, const ngx_idempotency_kind_t **kind);

/* digests the body of a kind without start; if it is NULL: NGX_DECLINED */

ngx_int_t ngx_idempotency_canon_body(ngx_idempotency_digest_t *d,
    const ngx_idempotency_kind_t *kind, ngx_idempotency_canon_t *c,
    u_char *data, size_t len, ngx_pool_t *pool);

/* called before bytes that are digested as they are */

void ngx_idempotency_canon_raw(ngx_idempotency_digest_t *d);


/*
 * Fields of a body by name, found in one pass for all names, however the body
 * is cut into pieces.
 *
 * A digest by meaning needs a body that is valid to the last byte.  Fields
 * don't: a field is found whatever is wrong behind it.  If an error hides
 * whether a field is there, the field is unreadable.
 */

/* the field may be there, but it or the body is malformed */

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
    size_t                     max;        /* of a value */

    size_t                     limit;      /* of one with escapes */

    /* the name that is being read, with escapes; longer names are not
       wanted */
    u_char                    *name;
    size_t                     name_len;
    size_t                     name_size;

    /* the reader's state between two pieces */
    ngx_uint_t                 state;
    ngx_uint_t                 escape;     /* behind a backslash */
    ngx_uint_t                 depth;

    unsigned                   done:1;
    unsigned                   unreadable:1;
    unsigned                   too_long:1; /* of some value */
    unsigned                   no_memory:1;
};


/*
 * Names have small letters, digits and underscores, which stand for any other
 * byte.  Of fields with one name the first counts.  A value longer than max is
 * not read.
 *
 * A kind with start is not fed here: its own feed finds the fields, and its
 * finish ends them.
 *
 * feed: NGX_DONE: nothing more can be found; NGX_ERROR: no memory. value:
 * NGX_DECLINED: there is no such field; NGX_IDEMPOTENCY_UNREADABLE.
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


#endif /* _NGX_IDEMPOTENCY_KINDS_H_INCLUDED_ */
