
/*
 * Records that leave this machine's memory: marked by a digest key of
 * idempotency_secret, their responses sealed with AES-256-GCM by another one;
 * and what is looked at when they come back.  Pure: may be called in threads.
 */


#ifndef _NGX_IDEMPOTENCY_SEAL_H_INCLUDED_
#define _NGX_IDEMPOTENCY_SEAL_H_INCLUDED_


#include "ngx_idempotency_backing.h"
#include "ngx_idempotency_secret.h"


/* behind a response: the seal, what its own key is made by, the key's name, and
   the form, of which this is the last byte; or its mark and the form; or that
   alone */

#define NGX_IDEMPOTENCY_SEAL_TAG_LEN   16
#define NGX_IDEMPOTENCY_SEAL_SALT_LEN  32

#define NGX_IDEMPOTENCY_SEAL_LEN                                             \
    (NGX_IDEMPOTENCY_SEAL_TAG_LEN + NGX_IDEMPOTENCY_SEAL_SALT_LEN            \
     + NGX_IDEMPOTENCY_SEAL_ID_LEN + 1)

#define NGX_IDEMPOTENCY_SEAL_PLAIN     0
#define NGX_IDEMPOTENCY_SEAL_SEALED    1
#define NGX_IDEMPOTENCY_SEAL_MARKED    2


/*
 * What is put has room for a seal behind its response.  To be called once for
 * items on their way to a backing, and once on their way back, where that is
 * off the event loop.  `times`: the backing keeps `recorded` and `ends` as they
 * are in an item, so that they are sealed along with the response.
 *
 * A response that can't be sealed does not leave memory, and one that can't be
 * opened is lost: its item's outcome is "not kept" instead of "done".  So it is
 * for a record that is done, but whose mark is wrong.  A record that is pending
 * or in doubt and has a wrong mark, or one that contradicts itself, makes the
 * token unavailable: it is neither an answer nor absent.
 */

void ngx_idempotency_seal(const ngx_idempotency_secret_t *secret,
    ngx_idempotency_item_t *items, ngx_uint_t n, ngx_uint_t times);
void ngx_idempotency_unseal(const ngx_idempotency_secret_t *secret,
    ngx_idempotency_item_t *items, ngx_uint_t n, ngx_uint_t times);


#endif /* _NGX_IDEMPOTENCY_SEAL_H_INCLUDED_ */
