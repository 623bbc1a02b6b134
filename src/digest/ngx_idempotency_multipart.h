
/*
 * A multipart body on its way through, and the part that it is in.
 */


#ifndef _NGX_IDEMPOTENCY_MULTIPART_H_INCLUDED_
#define _NGX_IDEMPOTENCY_MULTIPART_H_INCLUDED_


#include "ngx_idempotency_encode.h"
#include "ngx_idempotency_fields.h"


typedef struct {
    ngx_str_t                  name;
    ngx_str_t                  filename;        /* no data: absent */
    ngx_str_t                  extended;        /* filename* */
    ngx_str_t                  type;

    /* of other parameters and lines, if there are any */
    ngx_idempotency_digest_t   others;
    unsigned                   other:1;

    unsigned                   ambiguous:1;
} ngx_idempotency_part_t;


typedef struct {
    ngx_pool_t                *pool;
    ngx_idempotency_canon_t   *canon;

    ngx_int_t                  rc;
    ngx_uint_t                 state;

    /* a line end, two dashes and the boundary */
    u_char                     delimiter[4 + NGX_IDEMPOTENCY_BOUNDARY];
    size_t                     ndelimiter;
    size_t                     matched;
    size_t                     unseen;    /* of what matched: a header's end */

    u_char                     header[NGX_IDEMPOTENCY_MULTIPART_HEADER];
    size_t                     nheader;

    /* of this part */
    ngx_idempotency_digest_t   digest;
    ngx_idempotency_fold_t     fold;
    ngx_uint_t                 nparts;
    ngx_uint_t                 nlimits;   /* MAX_FILE_SIZE, so far */

    unsigned                   hashing:1;
    unsigned                   folding:1;
    unsigned                   ambiguous:1;

    /* of all parts in their order, with their headers as they are */
    ngx_idempotency_digest_t   ordered;

    /* of the parts that count: groups, and digests as they arrive */
    ngx_array_t                names;
    ngx_array_t                digests;
    size_t                     names_len;

    /* what is looked for */
    ngx_idempotency_fields_t  *fields;
} ngx_idempotency_multipart_t;


/* header lines up to and with the empty one; NGX_DECLINED: malformed */

ngx_int_t ngx_idempotency_part_header(ngx_idempotency_part_t *part,
    u_char *data, size_t len);


#endif /* _NGX_IDEMPOTENCY_MULTIPART_H_INCLUDED_ */
