
/*
 * What a start and an open file share: connections, and how errors are told.
 * An error is SQLite's here.
 */


#ifndef _NGX_IDEMPOTENCY_DB_SQL_H_INCLUDED_
#define _NGX_IDEMPOTENCY_DB_SQL_H_INCLUDED_


#include "ngx_idempotency_db.h"
#include <sqlite3.h>


#define NGX_IDEMPOTENCY_DB_PAGE        4096

/* milliseconds: for how long a statement waits for another program */

#define NGX_IDEMPOTENCY_DB_BUSY        250


int ngx_idempotency_db_connect(const char *path, sqlite3 **sqlite);

void ngx_idempotency_db_tell(char *error, size_t len, sqlite3 *sqlite, int rc);

/* of what SQLite calls damage: the disk's error, or 0: it is damaged */

int ngx_idempotency_db_unread(sqlite3 *sqlite);

/* what differs between the file and the mark: 0, and error tells */

ngx_uint_t ngx_idempotency_db_same(ngx_idempotency_mark_t *mark,
    const void *identity, ngx_atomic_uint_t number, char *error, size_t len);

/* the stamps, and that it has our tables and nothing else; SQLITE_OK, or error
   tells */

int ngx_idempotency_db_stamped(sqlite3 *sqlite, char *error, size_t len);


#endif /* _NGX_IDEMPOTENCY_DB_SQL_H_INCLUDED_ */
