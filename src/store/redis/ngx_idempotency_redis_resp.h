
/*
 * RESP2: commands to a Redis and its replies, as bytes.  Connections are
 * elsewhere.
 */


#ifndef _NGX_IDEMPOTENCY_REDIS_RESP_H_INCLUDED_
#define _NGX_IDEMPOTENCY_REDIS_RESP_H_INCLUDED_


#include "ngx_idempotency_redis.h"


#define NGX_IDEMPOTENCY_RESP_DEPTH    8
#define NGX_IDEMPOTENCY_RESP_LINE     65536
#define NGX_IDEMPOTENCY_RESP_VALUES   262144
#define NGX_IDEMPOTENCY_RESP_SIZE     (64 * 1024 * 1024)


/* bytes on their way in or out; begins as zeroes */

typedef struct {
    u_char                         *buf;
    size_t                          size;
    /* the bytes from pos to len have yet to be read or sent */
    size_t                          pos;
    size_t                          len;
    /* there was no memory: some bytes are missing */
    ngx_uint_t                      failed;
} ngx_idempotency_resp_buf_t;

/* so many bytes were read or sent */

void ngx_idempotency_resp_skip(ngx_idempotency_resp_buf_t *buf, size_t n);
void ngx_idempotency_resp_buf_free(ngx_idempotency_resp_buf_t *buf);


/*
 * A reader: bytes go in as they arrive, whole replies come out.  It begins as
 * zeroes; ngx_idempotency_resp_free() frees its memory.
 */

typedef struct {
    ngx_idempotency_resp_buf_t      in;

    /* how much of the current reply was scanned and is well-formed */
    size_t                          scanned;
    /* the size of the string behind that, if it is not whole */
    size_t                          value;

    /* how many values each level still lacks */
    ngx_uint_t                      depth;
    ngx_uint_t                      left[NGX_IDEMPOTENCY_RESP_DEPTH];

    /* the number of values in this reply, and whether it is whole */
    ngx_uint_t                      values;
    ngx_uint_t                      whole;

    ngx_idempotency_redis_reply_t  *replies;
    ngx_uint_t                      nreplies;
} ngx_idempotency_resp_t;


/* room for at least one byte, and its size; NULL: no memory.  Bytes that were
   put there count when "in.len" counts them. */

u_char *ngx_idempotency_resp_room(ngx_idempotency_resp_t *resp, size_t *size);

/*
 * NGX_OK: a reply, valid until the next call of one of these functions;
 * NGX_AGAIN: none is whole; NGX_ERROR: not RESP, or larger than any expected
 * reply; NGX_ABORT: no memory
 */

ngx_int_t ngx_idempotency_resp_next(ngx_idempotency_resp_t *resp,
    ngx_idempotency_redis_reply_t **reply);

/* copies the last reply and all that it points to; for ngx_free() */

ngx_idempotency_redis_reply_t *ngx_idempotency_resp_copy(
    ngx_idempotency_resp_t *resp);

void ngx_idempotency_resp_free(ngx_idempotency_resp_t *resp);


/* The writer.  It begins a command of so many words, which must follow. */

void ngx_idempotency_resp_command(ngx_idempotency_resp_buf_t *out,
    ngx_uint_t n);
void ngx_idempotency_resp_word(ngx_idempotency_resp_buf_t *out, u_char *data,
    size_t len);
void ngx_idempotency_resp_number(ngx_idempotency_resp_buf_t *out,
    uint64_t number);

/* A whole command: words with a blank between them.  "%V" is the string of the
   next argument, "%i" a number that is not negative. */

void ngx_idempotency_resp_say(ngx_idempotency_resp_buf_t *out,
    const char *format, va_list args);


#define ngx_idempotency_resp_str(out, str)                                    \
    ngx_idempotency_resp_word(out, (str)->data, (str)->len)


/* whether the text is this word, or contains these words, in any case */

ngx_uint_t ngx_idempotency_resp_is(ngx_str_t *text, char *s);
ngx_uint_t ngx_idempotency_resp_in(ngx_str_t *text, char *s);


/* a decimal number and nothing else */

ngx_int_t ngx_idempotency_resp_decimal(ngx_str_t *text, int64_t *number);


/* what an error means: its class, what to do, and whether the script may have
   been executed */

typedef enum {
    NGX_IDEMPOTENCY_REDIS_GIVE = 0,      /* give the error to the caller */
    NGX_IDEMPOTENCY_REDIS_TEXT,          /* send the script's text */
    NGX_IDEMPOTENCY_REDIS_LATER,
    NGX_IDEMPOTENCY_REDIS_MASTER,        /* this is no master */
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
