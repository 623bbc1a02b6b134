
/*
 * The witness of a store in a file: "<path>-witness" has which file it is, and
 * a number of which it is sure that the commit is on disk.  It is never ahead
 * of the disk, whatever dies; a file that is behind it was set back.
 */


#ifndef _NGX_IDEMPOTENCY_WITNESS_H_INCLUDED_
#define _NGX_IDEMPOTENCY_WITNESS_H_INCLUDED_


#include "store/ngx_idempotency_backing.h"


#define NGX_IDEMPOTENCY_WITNESS  "-witness"


/* NGX_DECLINED: there is no witness, or neither of its slots is whole;
   NGX_ERROR: it can't be read, as ngx_errno says */

ngx_int_t ngx_idempotency_witness_read(const char *path,
    ngx_idempotency_mark_t *mark);

/*
 * The commit of this number is on disk.  A number that is lower than the one
 * that is there, or another file's, changes nothing; anew: whatever is there.
 * Waits for no disk.  NGX_ERROR: ngx_errno.
 */

ngx_int_t ngx_idempotency_witness_write(const char *path,
    ngx_idempotency_mark_t *mark, ngx_uint_t anew);


#endif /* _NGX_IDEMPOTENCY_WITNESS_H_INCLUDED_ */
