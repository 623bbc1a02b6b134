
/*
 * A store in a file, for unit tests: made and opened in a directory of its
 * own, with the items that are asked of it one by one.
 */


#ifndef _FILE_H_INCLUDED_
#define _FILE_H_INCLUDED_


#include "store/file/ngx_idempotency_db.h"
#include "store/file/ngx_idempotency_start.h"


#define FILE_HOUR  ((int64_t) 3600 * 1000)

/* an instance that lives, as does the file's own, and one that doesn't */

#define FILE_LIVING  77
#define FILE_DEAD    66


typedef struct {
    char                         dir[128];
    char                         path[160];
    char                         error[NGX_IDEMPOTENCY_DB_ERROR];

    ngx_idempotency_start_t      start;
    ngx_idempotency_db_conf_t    conf;
    ngx_idempotency_db_t        *db;

    /* the file's time */
    int64_t                      now;
    ngx_uint_t                   denied;
    /* of the log, in pages */
    ngx_atomic_t                 log;
} file_t;

extern file_t  file;


/* in a directory, or NULL: where temporary files go */

void file_make(char *dir);
void file_open(ngx_idempotency_sync_e sync, off_t max_size);
void file_close(void);
void file_remove(void);

ngx_int_t file_start(ngx_uint_t found);

/* tidies, and has the log begin anew if it is long; and that alone */

ngx_int_t file_tidy(ngx_uint_t n);
void file_restart(void);

/* an item about the token of that number, of the file's own instance, with a
   fingerprint and an identity; what is done ends in an hour */

ngx_idempotency_item_t *file_item(ngx_idempotency_item_t *item,
    ngx_idempotency_item_e what, ngx_uint_t token, uint64_t fence);
ngx_idempotency_item_t *file_outcome(ngx_idempotency_item_t *item,
    ngx_uint_t token, uint64_t fence, ngx_idempotency_outcome_e outcome,
    size_t size);

/* commits it alone */

ngx_idempotency_result_e file_do(ngx_idempotency_item_t *item);

/* a find; what it gave is checked to be what file_outcome() was told */

ngx_idempotency_result_e file_find(ngx_idempotency_item_t *item,
    ngx_uint_t token);

/* -1: neither BOUND nor ABSENT */

ngx_int_t file_has(ngx_uint_t token);

void file_done(ngx_idempotency_item_t *item);

off_t file_size(char *suffix);


#endif /* _FILE_H_INCLUDED_ */
