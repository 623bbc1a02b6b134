
/*
 * What stands beside the file of a store.
 *
 * "<path>-owners": each nginx that has the store open holds a lock in it.  The
 * locks are those of open files (F_OFD_*): held by all processes that inherited
 * one, free at once when the last has gone, however it died.  It is empty.  An
 * instance is a zone of one master, with all its workers, under a number that
 * the store gives once.
 *
 * "<path>-witness": which file it is, and the number of a commit that is on
 * disk.  It is never ahead of the disk, whatever dies; a file that is behind it
 * was set back.
 */


#ifndef _NGX_IDEMPOTENCY_OWNERS_H_INCLUDED_
#define _NGX_IDEMPOTENCY_OWNERS_H_INCLUDED_


#include "store/ngx_idempotency_backing.h"


/* the files need SQLite, threads, and these locks, which only Linux has */

#if (NGX_IDEMPOTENCY_SQLITE && NGX_THREADS && defined F_OFD_SETLK)
#define NGX_IDEMPOTENCY_FILE  1
#endif


/* a path of the store may be so long, as SQLite has it */

#define NGX_IDEMPOTENCY_FILE_PATH  500


/*
 * The upper bits of an instance's number tell the store that gave it, by the
 * millisecond in which it was made: one may be removed and made anew under
 * living owners.
 */

#define NGX_IDEMPOTENCY_OWNERS_STORE_SHIFT  20


/* an open file of its own; create: made if it isn't there.  -1: ngx_errno */

int ngx_idempotency_owners_open(const char *path, ngx_uint_t create);

/* whether it is still the one at its place, not removed or replaced */

ngx_uint_t ngx_idempotency_owners_kept(int fd, const char *path);

/* the instance lives, as long as fd is open anywhere; NGX_BUSY: another has
   its number; NGX_ERROR: ngx_errno */

ngx_int_t ngx_idempotency_owners_hold(int fd, uint64_t instance);

/* the instance lives as long as one of its workers: each worker holds it by an
   open file of its own */

ngx_int_t ngx_idempotency_owners_share(int fd, uint64_t instance);

/* each is true when in doubt: a look that fails finds an owner */

/* does that one live, or, whatever fd, any but one's own? */

ngx_uint_t ngx_idempotency_owners_alive(int fd, uint64_t instance);
ngx_uint_t ngx_idempotency_owners_others(int fd, uint64_t own);

/* does one live whose number is another store's? */

ngx_uint_t ngx_idempotency_owners_strangers(int fd, uint64_t own);

/*
 * One commit at a time, and one start: by an open file of which one thread
 * makes use at a time.  Waits for so many milliseconds; NGX_BUSY: in vain;
 * NGX_ERROR: ngx_errno.
 */

#define NGX_IDEMPOTENCY_OWNERS_COMMIT  0
#define NGX_IDEMPOTENCY_OWNERS_START   2

ngx_int_t ngx_idempotency_owners_lock(int fd, off_t byte, ngx_msec_t time);
void ngx_idempotency_owners_unlock(int fd, off_t byte);

/*
 * Whether all processes that have this store open have found this -owners
 * beside it, and so the same log.  NGX_BUSY: one came by another way, such as a
 * mount of the file alone, and would execute the same tokens.  `file` is not
 * closed as long as the process has the store open: SQLite would lose its
 * locks.
 */

ngx_int_t ngx_idempotency_owners_only(int file, int fd);

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


#endif /* _NGX_IDEMPOTENCY_OWNERS_H_INCLUDED_ */
