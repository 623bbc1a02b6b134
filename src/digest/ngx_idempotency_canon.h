
/*
 * Bodies by their meaning: one encoding for all spellings of the same form,
 * JSON document, multipart form or text, fed into a digest.
 *
 * Before the encoding goes a letter that tells what it is.  Bytes that are
 * digested as they are stand behind ngx_idempotency_canon_raw(), and so never
 * give the digest of an encoding.
 *
 * Lengths are numbers of 7 bits a byte, the highest first, the top bit set in
 * all bytes but the last.  Names are sorted by their bytes, a shorter one
 * before its continuation, equal ones stay in the order of the body.  Fields
 * whose decoded names have a "[" come behind all others, in the order of the
 * body: "a[][x]" belongs to the last "a[]" that had no x yet.
 *
 *   form       "F", then for each field: its name and its value, each behind
 *              its length
 *   JSON       "J" and the value: "N" null, "T" true, "F" false, "#" length
 *              number, "\"" length string, "[" values "]", "{" members "}";
 *              a member is ":" length name value; a number is "0", or its
 *              sign, its digits without zeros at the ends and, unless it is
 *              zero, "e" with the power of ten of the last digit; a surrogate
 *              that stands alone is its 3 bytes, which UTF-8 has no use for
 *   multipart  "M", then a digest of each part, of kind "P": its name, "f"
 *              and filename if it has one, "x" and extended filename (that
 *              with an asterisk) likewise, as fields, "t" and media type
 *              likewise, "." and the bytes
 *   text       "T" and the text, white space folded
 *   bytes      "R" and the bytes
 */


#ifndef _NGX_IDEMPOTENCY_CANON_H_INCLUDED_
#define _NGX_IDEMPOTENCY_CANON_H_INCLUDED_


#include "ngx_idempotency_digest.h"


/* kinds, and flags for those wanted: none of them is NGX_CONF_BITMASK_SET */

#define NGX_IDEMPOTENCY_CANON_FORM       0x02
#define NGX_IDEMPOTENCY_CANON_JSON       0x04
#define NGX_IDEMPOTENCY_CANON_MULTIPART  0x08
#define NGX_IDEMPOTENCY_CANON_TEXT       0x10

#define NGX_IDEMPOTENCY_CANON_ALL        0x1e


/* deeper or larger than this is digested by its bytes */

#define NGX_IDEMPOTENCY_CANON_SIZE         0x3fffffff

#define NGX_IDEMPOTENCY_FORM_FIELDS        32768

#define NGX_IDEMPOTENCY_JSON_DEPTH         256
#define NGX_IDEMPOTENCY_JSON_NODES         65536    /* values, all told */
#define NGX_IDEMPOTENCY_JSON_MEMBERS       16384    /* of one object */

#define NGX_IDEMPOTENCY_MULTIPART_PARTS    4096
#define NGX_IDEMPOTENCY_MULTIPART_HEADER   4096


typedef struct {
    /* what is digested by meaning; TEXT folds the values of forms, too */
    ngx_uint_t    flags;

    /* what is left out, from ngx_idempotency_canon_ignore(), or NULL */
    ngx_array_t  *ignore;
} ngx_idempotency_canon_t;


typedef struct ngx_idempotency_multipart_s  ngx_idempotency_multipart_t;


/*
 * For the configuration: compiles names (ngx_str_t) and JSON pointers, which
 * begin with a slash.  NGX_DECLINED: *bad is no JSON pointer.
 */

ngx_int_t ngx_idempotency_canon_ignore(ngx_idempotency_canon_t *c,
    ngx_array_t *names, ngx_str_t *bad, ngx_pool_t *pool);

/*
 * The kind, if it is among the flags, or 0: by its bytes.  The boundary is
 * set for MULTIPART, lies in the content type and may be NULL without that
 * flag.
 */

ngx_uint_t ngx_idempotency_canon_kind(ngx_str_t *content_type,
    ngx_uint_t flags, ngx_str_t *boundary);

/*
 * The whole body of a kind but MULTIPART.  NGX_DECLINED: it is malformed,
 * and nothing was fed; NGX_ERROR: no memory.  The pool is for scratch, which
 * is freed.
 */

ngx_int_t ngx_idempotency_canon_body(ngx_idempotency_digest_t *d,
    ngx_uint_t kind, ngx_idempotency_canon_t *c, u_char *data, size_t len,
    ngx_pool_t *pool);

/* to be called before bytes that are digested as they are */

void ngx_idempotency_canon_raw(ngx_idempotency_digest_t *d);

/*
 * A multipart body, in pieces of any size.  As its boundary doesn't count,
 * the media type to be digested before is "multipart/form-data" alone.
 *
 * c: NULL if nothing is to be digested.  feed and final: NGX_DECLINED, which
 * is final: malformed, or beyond a limit; NGX_ERROR: no memory.
 */

ngx_idempotency_multipart_t *ngx_idempotency_multipart_create(
    ngx_pool_t *pool, ngx_idempotency_canon_t *c, ngx_str_t *boundary);

ngx_int_t ngx_idempotency_multipart_feed(ngx_idempotency_multipart_t *m,
    u_char *data, size_t len);
ngx_int_t ngx_idempotency_multipart_final(ngx_idempotency_multipart_t *m,
    ngx_idempotency_digest_t *d);


#endif /* _NGX_IDEMPOTENCY_CANON_H_INCLUDED_ */
