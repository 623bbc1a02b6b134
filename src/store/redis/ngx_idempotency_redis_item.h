
/*
 * Items as calls of scripts: the arguments of a call, and the meaning of its
 * reply.  A record is the head below and its response: see record.lua.
 */


#ifndef _NGX_IDEMPOTENCY_REDIS_ITEM_H_INCLUDED_
#define _NGX_IDEMPOTENCY_REDIS_ITEM_H_INCLUDED_


#include "store/ngx_idempotency_shm.h"
#include "ngx_idempotency_redis.h"


#define NGX_IDEMPOTENCY_REDIS_HEAD    144
#define NGX_IDEMPOTENCY_REDIS_ARGS    8

/* the length of a token in base64url */

#define NGX_IDEMPOTENCY_REDIS_TOKEN   43


/* one call, and all that it points to */

typedef struct {
    ngx_idempotency_redis_call_t    call;

    ngx_idempotency_item_t         *item;
    ngx_uint_t                      sent;
    /* some call for this item may have been executed */
    ngx_uint_t                      maybe;
    /* a connection with a call for this item was lost, once or more: that call
       may yet be executed */
    ngx_uint_t                      lost;
    /* its batch */
    void                           *rb;

    ngx_str_t                       args[NGX_IDEMPOTENCY_REDIS_ARGS];
    u_char                          head[NGX_IDEMPOTENCY_REDIS_HEAD];
    u_char                          numbers[NGX_IDEMPOTENCY_REDIS_ARGS]
                                           [NGX_INT64_LEN];
    u_char                         *key;
} ngx_idempotency_redis_item_t;


/* in the master: computes the scripts' digests */

void ngx_idempotency_redis_items_init(void);

/* fills in the call: script, key, arguments. now: the time base of the item;
   publish: the command to publish with */

void ngx_idempotency_redis_item_call(ngx_idempotency_redis_item_t *ri,
    ngx_str_t *prefix, ngx_str_t *publish, int64_t now);

/* puts the reply into the item; NGX_DECLINED: a record that no module of this
   version has written, NGX_ERROR: no valid reply */

ngx_int_t ngx_idempotency_redis_item_answer(ngx_idempotency_redis_item_t *ri,
    ngx_idempotency_redis_reply_t *reply, int64_t now);

/* true: an array of strings, so many at least */

ngx_uint_t ngx_idempotency_redis_strings(ngx_idempotency_redis_reply_t *reply,
    ngx_uint_t least);

/* each item has a script, and some scripts have no item */

typedef enum {
    NGX_IDEMPOTENCY_REDIS_STAMP = NGX_IDEMPOTENCY_ITEM_FORGET + 1,
    NGX_IDEMPOTENCY_REDIS_LIST,
    NGX_IDEMPOTENCY_REDIS_TRY,
    NGX_IDEMPOTENCY_REDIS_SCRIPTS
} ngx_idempotency_redis_script_e;

extern ngx_idempotency_redis_script_t
    ngx_idempotency_redis_scripts[NGX_IDEMPOTENCY_REDIS_SCRIPTS];

/* writes the name of a token's key */

u_char *ngx_idempotency_redis_item_key(u_char *p, ngx_str_t *prefix,
    u_char *token);

/* Lists a zone's records in the server.  NGX_AGAIN: calls
   ngx_idempotency_page_listed() later; NGX_ERROR: it can't ask. prefix: of the
   zone's keys. */

ngx_int_t ngx_idempotency_redis_list(ngx_idempotency_redis_t *redis,
    ngx_idempotency_page_t *page, ngx_str_t *prefix, int64_t now);


#endif /* _NGX_IDEMPOTENCY_REDIS_ITEM_H_INCLUDED_ */
