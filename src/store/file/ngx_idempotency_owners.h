
/*
 * The files beside the file of a store.
 *
 * "<path>-owners" is empty: each nginx that has the store open holds a lock in
 * it.  The locks belong to open files (F_OFD_*): all processes that inherited
 * the open file hold the lock, and it is free at once when the last of them has
 * gone, however it died.  An instance is a zone of one master, with all its
 * workers, under a number that the store gives only once.
 *
 * "<path>-witness" has the identity of the file, and the number of a commit
 * that is on disk.  The number is never ahead of the disk, whatever dies.  A
 * file that is behind its witness was set back.
 */


#ifndef _NGX_IDEMPOTENCY_OWNERS_H_INCLUDED_
#define _NGX_IDEMPOTENCY_OWNERS_H_INCLUDED_


#include "store/ngx_idempotency_backing.h"


/* needs SQLite, threads, and F_OFD_ locks, which only Linux has */

#if (NGX_IDEMPOTENCY_SQLITE && NGX_THREADS && defined F_OFD_SETLK)
#define NGX_IDEMPOTENCY_FILE  1
#endif


/* the longest path of a store: SQLite's limit */

#define NGX_IDEMPOTENCY_FILE_PATH  500


/*
 * The upper bits of an instance's number identify the store that gave it, by
 * the millisecond in which it was made: a store may be removed and made anew
 * under living owners.
 */

#define NGX_IDEMPOTENCY_OWNERS_STORE_SHIFT  20


/* opens the file anew; create: makes it if it is missing. -1: see ngx_errno */

int ngx_idempotency_owners_open(const char *path, ngx_uint_t create);

/*
 * F_WRLCK: the instance lives as long as fd is open anywhere.  F_RDLCK: as long
 * as one of its workers, each of which holds the lock by an open file of its
 * own.  F_UNLCK: not by fd any more.  NGX_BUSY: another instance has the
 * number; NGX_ERROR: see ngx_errno.
 */

ngx_int_t ngx_idempotency_owners_hold(int fd, short type, uint64_t instance);

/* the next three are true when in doubt: a look that fails finds an owner */

/* whether this instance lives, or any other one but our own */

ngx_uint_t ngx_idempotency_owners_alive(int fd, uint64_t instance);
ngx_uint_t ngx_idempotency_owners_others(int fd, uint64_t own);

/* whether an instance lives whose number another store gave, but `was`, which
   our workers have had until now */

ngx_uint_t ngx_idempotency_owners_strangers(int fd, uint64_t own, uint64_t was);

/*
 * The locks of commits and of starts.  One thread at a time may use the open
 * file.  Waits for so many milliseconds; NGX_BUSY: in vain; NGX_ERROR: see
 * ngx_errno.
 */

#define NGX_IDEMPOTENCY_OWNERS_COMMIT  0
#define NGX_IDEMPOTENCY_OWNERS_START   2

ngx_int_t ngx_idempotency_owners_lock(int fd, off_t byte, ngx_msec_t time);
void ngx_idempotency_owners_unlock(int fd, off_t byte);

/*
 * Whether all processes that have this store open have found this -owners
 * beside it, and so the same log.  NGX_BUSY: one of them came by another way,
 * such as a mount of the file alone, and might execute the same tokens.  `file`
 * stays open as long as the process has the store open: closing it would drop
 * SQLite's locks.
 */

ngx_int_t ngx_idempotency_owners_only(int file, int fd);

/* the same for nginx -t, which locks nothing: whether anybody has the file open
   by another way; no process of ours may have it open */

ngx_uint_t ngx_idempotency_owners_another_way(const char *path);

/* NGX_DECLINED: there is no witness, or neither of its slots is whole;
   NGX_ERROR: it can't be read, see ngx_errno */

ngx_int_t ngx_idempotency_witness_read(const char *path,
    ngx_idempotency_mark_t *mark);

/*
 * The commit with this number is on disk.  A number that is lower than the
 * witness's, or another file's, changes nothing; anew: overwrites any witness.
 * Does not wait for the disk.  NGX_ERROR: see ngx_errno.
 */

ngx_int_t ngx_idempotency_witness_write(const char *path,
    ngx_idempotency_mark_t *mark, ngx_uint_t anew);


#endif /* _NGX_IDEMPOTENCY_OWNERS_H_INCLUDED_ */
