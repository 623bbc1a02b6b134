
/*
 * A response in shared memory: full pages, and a tail in whatever slot it
 * fits.  Single pages are what a slab pool gives fastest, and never fails to
 * give while it has any.  The offset tells where in its chunk a byte lies, so
 * chunks keep no length.
 */


#include "ngx_idempotency_shm.h"


#define ngx_idempotency_chunk_header                                         \
    offsetof(ngx_idempotency_chunk_t, data)
#define ngx_idempotency_chunk_capacity                                       \
    (ngx_pagesize - ngx_idempotency_chunk_header)


/* the pages that a response of this size may take at most */

ngx_uint_t
ngx_idempotency_chunks_pages(size_t size)
{
    return (size + ngx_idempotency_chunk_capacity - 1)
           / ngx_idempotency_chunk_capacity;
}


/*
 * Appends the next piece of a response, of size bytes in all, and moves the
 * cursor and the source on.  What is linked belongs to the record even if the
 * rest never follows.
 */

ngx_int_t
ngx_idempotency_chunks_append(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec, ngx_idempotency_cursor_t *cur,
    ngx_chain_t **in, u_char **pos, size_t size)
{
    size_t                    n, room, end;
    ngx_idempotency_chunk_t  *chunk;

    end = ngx_min(size, cur->offset + NGX_IDEMPOTENCY_SHM_PIECE);

    while (cur->offset < end) {

        n = cur->offset % ngx_idempotency_chunk_capacity;

        if (n == 0) {
            room = ngx_min(size - cur->offset, ngx_idempotency_chunk_capacity);

            chunk = ngx_slab_alloc_locked(shm->shpool,
                                          ngx_idempotency_chunk_header + room);
            if (chunk == NULL) {
                return NGX_ERROR;
            }

            chunk->next = NULL;

            if (cur->chunk) {
                cur->chunk->next = chunk;

            } else {
                rec->chunks = chunk;
            }

            cur->chunk = chunk;
        }

        while (*pos == (*in)->buf->last) {
            *in = (*in)->next;
            *pos = (*in)->buf->pos;
        }

        room = ngx_min(ngx_idempotency_chunk_capacity - n, end - cur->offset);
        room = ngx_min(room, (size_t) ((*in)->buf->last - *pos));

        ngx_memcpy(&cur->chunk->data[n], *pos, room);

        *pos += room;
        cur->offset += room;
    }

    return NGX_OK;
}


/* a cursor of zeroes with the first chunk starts at the beginning */

void
ngx_idempotency_chunks_read(ngx_idempotency_cursor_t *cur, u_char *dst,
    size_t n)
{
    size_t  at, len;

    while (n) {
        at = cur->offset % ngx_idempotency_chunk_capacity;

        if (at == 0 && cur->offset) {
            cur->chunk = cur->chunk->next;
        }

        len = ngx_min(n, ngx_idempotency_chunk_capacity - at);

        dst = ngx_cpymem(dst, &cur->chunk->data[at], len);

        cur->offset += len;
        n -= len;
    }
}


void
ngx_idempotency_chunks_free(ngx_idempotency_shm_t *shm,
    ngx_idempotency_record_t *rec)
{
    ngx_idempotency_chunk_t  *chunk, *next;

    for (chunk = rec->chunks; chunk; chunk = next) {
        next = chunk->next;
        ngx_slab_free_locked(shm->shpool, chunk);
    }

    rec->chunks = NULL;
    rec->size = 0;
}
