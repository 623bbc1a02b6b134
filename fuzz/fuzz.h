
/*
 * What the fuzz targets share.  Each holds properties, and not only that
 * nothing breaks: hold() ends the run where one does not.
 */


#ifndef _FUZZ_H_INCLUDED_
#define _FUZZ_H_INCLUDED_


#include "digest/ngx_idempotency_encode.h"
#include "store/ngx_idempotency_backing.h"


#define hold(property)                                                        \
    fuzz_hold((property) ? 1 : 0, #property, __FILE__, __LINE__)


typedef struct {
    ngx_int_t   rc;
    u_char      digest[NGX_IDEMPOTENCY_DIGEST_LEN];
} fuzz_digest_t;


int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

void fuzz_hold(int ok, char *property, char *file, int line);

/* a pool that is empty again at the next call */

ngx_pool_t *fuzz_pool(void);

/* bytes of their own, so that a read beyond them is seen; of the pool */

u_char *fuzz_copy(const void *data, size_t len);

/* a body but multipart */

fuzz_digest_t fuzz_body(const ngx_idempotency_kind_t *kind,
    ngx_idempotency_canon_t *c, const void *data, size_t len);

/* a number below this one, equal for equal seeds */

ngx_uint_t fuzz_below(uint64_t *seed, ngx_uint_t n);

/*
 * The field "a" of a body but multipart: it doesn't count in which pieces that
 * comes.  As no value is too long, only what is malformed is unreadable.
 */

ngx_int_t fuzz_field(const ngx_idempotency_kind_t *kind, const void *data,
    size_t len, uint64_t *random, ngx_str_t *value);

/* changes one part of a record, by 10 bytes: what, where, how; and what each
   record holds that is taken */

void fuzz_change(ngx_idempotency_item_t *item, const uint8_t *data);
void fuzz_sound(ngx_idempotency_item_t *item);

ngx_uint_t fuzz_equal(fuzz_digest_t *a, fuzz_digest_t *b);


#endif /* _FUZZ_H_INCLUDED_ */
