
/*
 * What is said to a Redis, and what it answers, as bytes: RESP2.
 * Knows no connection.
 */


#ifndef _NGX_IDEMPOTENCY_REDIS_RESP_H_INCLUDED_
#define _NGX_IDEMPOTENCY_REDIS_RESP_H_INCLUDED_


#include "ngx_idempotency_redis.h"


#define NGX_IDEMPOTENCY_RESP_DEPTH    8
#define NGX_IDEMPOTENCY_RESP_LINE     65536
#define NGX_IDEMPOTENCY_RESP_VALUES   262144
#define NGX_IDEMPOTENCY_RESP_SIZE     (64 * 1024 * 1024)


/*
 * A reader: bytes go in as they come, replies come out when they are whole.
 * All of it is zero at first; what it allocates is given back by
 * ngx_idempotency_resp_free().
 */

typedef struct {
    /* what was read, and room for more */
    u_char                         *buf;
    size_t                          size;
    size_t                          len;

    /* where this reply begins, and how far it was looked at: so far it is
       well-formed */
    size_t                          start;
    size_t                          pos;
    /* the size of the string there, which is not whole */
    size_t                          value;

    /* values that are still to come at each level */
    ngx_uint_t                      depth;
    ngx_uint_t                      left[NGX_IDEMPOTENCY_RESP_DEPTH];

    /* of this reply */
    ngx_uint_t                      values;
    ngx_uint_t                      whole;

    ngx_idempotency_redis_reply_t  *replies;
    ngx_uint_t                      nreplies;
} ngx_idempotency_resp_t;


/* where to put at least one byte more, and how many fit; NULL: no memory */

u_char *ngx_idempotency_resp_room(ngx_idempotency_resp_t *resp, size_t *size);

/* so many were put there */

void ngx_idempotency_resp_read(ngx_idempotency_resp_t *resp, size_t n);

/*
 * NGX_OK: a reply, which stays until the next call of one of these functions;
 * NGX_AGAIN: none that is whole; NGX_ERROR: this is no RESP, or it is larger
 * than anything that was asked for; NGX_ABORT: no memory
 */

ngx_int_t ngx_idempotency_resp_next(ngx_idempotency_resp_t *resp,
    ngx_idempotency_redis_reply_t **reply);

/* of the reply that came last, with all that it points to; for ngx_free() */

ngx_idempotency_redis_reply_t *ngx_idempotency_resp_copy(
    ngx_idempotency_resp_t *resp);

void ngx_idempotency_resp_free(ngx_idempotency_resp_t *resp);


/* a writer: zero at first, too */

typedef struct {
    u_char                         *buf;
    size_t                          size;
    /* from here on it is still to be written */
    size_t                          pos;
    size_t                          len;
    /* there was no memory, and so something is missing */
    ngx_uint_t                      failed;
} ngx_idempotency_resp_out_t;


/* a command of so many words, each of which has to follow */

void ngx_idempotency_resp_command(ngx_idempotency_resp_out_t *out,
    ngx_uint_t n);
void ngx_idempotency_resp_word(ngx_idempotency_resp_out_t *out, u_char *data,
    size_t len);
void ngx_idempotency_resp_number(ngx_idempotency_resp_out_t *out,
    uint64_t number);

/* of words in C, with a NULL behind the last */

void ngx_idempotency_resp_say(ngx_idempotency_resp_out_t *out, ...);

void ngx_idempotency_resp_written(ngx_idempotency_resp_out_t *out, size_t n);
void ngx_idempotency_resp_out_free(ngx_idempotency_resp_out_t *out);


#define ngx_idempotency_resp_str(out, str)                                    \
    ngx_idempotency_resp_word(out, (str)->data, (str)->len)


/* it is, or has in it, whatever the case, these words */

ngx_uint_t ngx_idempotency_resp_is(ngx_str_t *text, char *s);
ngx_uint_t ngx_idempotency_resp_in(ngx_str_t *text, char *s);


/* a decimal, and nothing else */

ngx_int_t ngx_idempotency_resp_decimal(u_char *data, size_t len,
    int64_t *number);


/* what an error says: what class of error it is, what is to be done, and
   whether the script may have been executed */

typedef enum {
    NGX_IDEMPOTENCY_REDIS_GIVE = 0,      /* to the caller */
    NGX_IDEMPOTENCY_REDIS_TEXT,          /* send the script */
    NGX_IDEMPOTENCY_REDIS_LATER,
    NGX_IDEMPOTENCY_REDIS_MASTER,        /* this is none */
    NGX_IDEMPOTENCY_REDIS_MOVED,
    NGX_IDEMPOTENCY_REDIS_ASK
} ngx_idempotency_redis_do_e;

typedef struct {
    ngx_idempotency_redis_error_e   error;
    ngx_idempotency_redis_do_e      what;
    ngx_uint_t                      maybe;
} ngx_idempotency_redis_verdict_t;

ngx_idempotency_redis_verdict_t ngx_idempotency_redis_verdict(
    ngx_str_t *text);


#endif /* _NGX_IDEMPOTENCY_REDIS_RESP_H_INCLUDED_ */
