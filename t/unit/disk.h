
/*
 * A disk that forgets, for unit tests: what SQLite writes into the files of a
 * directory is recorded until it is synced, and when the power is cut an image
 * is made of what the disk may have then: all that was synced, and of the rest
 * each block or not.  Syncs reach the record alone, and no disk.
 */


#ifndef _DISK_H_INCLUDED_
#define _DISK_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


/* once, before anything else; what it keeps is shared with children */

void disk_init(void);

/*
 * From now on, in this process and its children, of which one at a time
 * writes: all there is in the directory is on disk.  Where as many writes and
 * syncs have been made as `events` says (0: never), the image is made, and the
 * process exits.
 */

void disk_begin(char *dir, char *image, ngx_uint_t events, uint64_t seed);

/* nothing is recorded any more */

void disk_end(void);

/* the power is cut now; has it been? */

void disk_cut(void);
ngx_uint_t disk_is_cut(void);

/* what is synced is not on disk at all */

void disk_lies(ngx_uint_t lies);


#endif /* _DISK_H_INCLUDED_ */
