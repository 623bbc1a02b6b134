
/*
 * RESP2, read and written, and the meaning of errors.
 *
 * The reader scans each value once, however the bytes are cut: as long as a
 * reply isn't whole, the reader notes where it is and how many values each
 * level lacks.  Only a whole reply, which is well-formed then, is made into
 * values; they point into the bytes that were read.
 */


#include "ngx_idempotency_redis_resp.h"


/* the memory that is kept for the next reply */

#define RESP_KEEP  65536
#define RESP_ROOM  4096


typedef struct {
    ngx_str_t                        word;
    ngx_idempotency_redis_verdict_t  verdict;
} word_t;


static ngx_int_t resp_scan(ngx_idempotency_resp_t *resp);
static ngx_int_t resp_value(u_char *p, u_char *last,
    ngx_idempotency_redis_reply_t *value, size_t *size);
static u_char *resp_build(u_char *p, u_char *last,
    ngx_idempotency_redis_reply_t *reply,
    ngx_idempotency_redis_reply_t **next);
static u_char *buf_room(ngx_idempotency_resp_buf_t *buf, size_t want);


#define word(text, error, what, maybe)                                       \
    { ngx_string(text),                                                      \
      { NGX_IDEMPOTENCY_REDIS_##error, NGX_IDEMPOTENCY_REDIS_##what, maybe } }

static word_t  words[] = {
    word("NOSCRIPT", FAULT, TEXT, 0),

    word("MOVED", AWAY, MOVED, 0),
    word("ASK", AWAY, ASK, 0),
    word("READONLY", AWAY, MASTER, 0),

    word("LOADING", AWAY, LATER, 0),
    word("MASTERDOWN", AWAY, LATER, 0),
    word("CLUSTERDOWN", AWAY, LATER, 0),
    word("TRYAGAIN", AWAY, LATER, 0),
    word("BUSY", AWAY, LATER, 0),

    word("OOM", FULL, GIVE, 0),
    word("MISCONF", FULL, GIVE, 0),
    word("NOREPLICAS", FULL, GIVE, 0),

    word("NOAUTH", DENIED, GIVE, 0),
    word("WRONGPASS", DENIED, GIVE, 0),
    word("DENIED", DENIED, GIVE, 0),
    word("NOPERM", DENIED, GIVE, 0),

    word("CROSSSLOT", FAULT, GIVE, 0),
    word("WRONGTYPE", FAULT, GIVE, 0),

    /* from a server that ceased to be master after the script was executed */
    word("UNBLOCKED", UNACKED, GIVE, 1),

    { ngx_null_string,
      { NGX_IDEMPOTENCY_REDIS_FAULT, NGX_IDEMPOTENCY_REDIS_GIVE, 1 } }
};


u_char *
ngx_idempotency_resp_room(ngx_idempotency_resp_t *resp, size_t *size)
{
    u_char  *p;
    size_t   used, want;

    /* a string's length is known before its bytes; it is trusted only as far as
       bytes came */

    used = resp->in.len - resp->in.pos;
    want = ngx_min(resp->scanned + resp->value, 2 * used + RESP_KEEP);
    want = ngx_max(want, used) - used + RESP_ROOM;

    p = buf_room(&resp->in, want);

    *size = resp->in.size - resp->in.len;

    return p;
}


/* room behind the bytes; more than it takes is given back */

static u_char *
buf_room(ngx_idempotency_resp_buf_t *buf, size_t want)
{
    u_char      *p;
    size_t       used, size;
    ngx_uint_t   fits;

    used = buf->len - buf->pos;
    fits = (buf->size <= RESP_KEEP || used + want > RESP_KEEP / 2);

    if (fits && buf->size - buf->len >= want) {
        return buf->buf + buf->len;
    }

    if (fits && buf->size - used >= want) {
        ngx_memmove(buf->buf, buf->buf + buf->pos, used);

    } else {
        size = ngx_max(used + want, 2 * used);
        size = ngx_max(size, RESP_ROOM);

        p = ngx_alloc(size, ngx_cycle->log);
        if (p == NULL) {
            buf->failed = 1;
            return NULL;
        }

        if (buf->buf) {
            ngx_memcpy(p, buf->buf + buf->pos, used);
            ngx_free(buf->buf);
        }

        buf->buf = p;
        buf->size = size;
    }

    buf->pos = 0;
    buf->len = used;

    return buf->buf + used;
}


void
ngx_idempotency_resp_skip(ngx_idempotency_resp_buf_t *buf, size_t n)
{
    buf->pos += n;

    if (buf->pos < buf->len) {
        return;
    }

    buf->pos = 0;
    buf->len = 0;

    if (buf->size > RESP_KEEP) {
        ngx_idempotency_resp_buf_free(buf);
    }
}


void
ngx_idempotency_resp_buf_free(ngx_idempotency_resp_buf_t *buf)
{
    if (buf->buf) {
        ngx_free(buf->buf);
    }

    ngx_memzero(buf, sizeof(ngx_idempotency_resp_buf_t));
}


ngx_int_t
ngx_idempotency_resp_next(ngx_idempotency_resp_t *resp,
    ngx_idempotency_redis_reply_t **reply)
{
    u_char                         *p;
    ngx_int_t                       rc;
    ngx_idempotency_redis_reply_t  *next;

    /* the last reply is not needed any more */

    if (resp->whole) {
        ngx_idempotency_resp_skip(&resp->in, resp->scanned);

        resp->whole = 0;
        resp->values = 0;
        resp->scanned = 0;
    }

    rc = resp_scan(resp);

    if (rc != NGX_OK) {
        return rc;
    }

    if (resp->nreplies < resp->values
        || resp->nreplies > resp->values + RESP_ROOM)
    {
        ngx_free(resp->replies);

        resp->nreplies = resp->values + 16;
        resp->replies = ngx_alloc(resp->nreplies
                                  * sizeof(ngx_idempotency_redis_reply_t),
                                  ngx_cycle->log);

        if (resp->replies == NULL) {
            resp->nreplies = 0;
            return NGX_ABORT;
        }
    }

    resp->whole = 1;

    next = resp->replies + 1;
    p = resp->in.buf + resp->in.pos;
    (void) resp_build(p, p + resp->scanned, resp->replies, &next);

    *reply = resp->replies;

    return NGX_OK;
}


ngx_idempotency_redis_reply_t *
ngx_idempotency_resp_copy(ngx_idempotency_resp_t *resp)
{
    u_char                         *p;
    size_t                          size;
    ngx_idempotency_redis_reply_t  *reply, *next;

    size = resp->values * sizeof(ngx_idempotency_redis_reply_t);

    reply = ngx_alloc(size + resp->scanned, ngx_cycle->log);
    if (reply == NULL) {
        return NULL;
    }

    p = (u_char *) reply + size;
    ngx_memcpy(p, resp->in.buf + resp->in.pos, resp->scanned);

    next = reply + 1;
    (void) resp_build(p, p + resp->scanned, reply, &next);

    return reply;
}


void
ngx_idempotency_resp_free(ngx_idempotency_resp_t *resp)
{
    ngx_idempotency_resp_buf_free(&resp->in);

    if (resp->replies) {
        ngx_free(resp->replies);
    }

    ngx_memzero(resp, sizeof(ngx_idempotency_resp_t));
}


/* goes on after the last whole value */

static ngx_int_t
resp_scan(ngx_idempotency_resp_t *resp)
{
    size_t                         size;
    ngx_int_t                      rc;
    ngx_idempotency_redis_reply_t  value;

    if (resp->in.buf == NULL) {
        return NGX_AGAIN;
    }

    for ( ;; ) {
        rc = resp_value(resp->in.buf + resp->in.pos + resp->scanned,
                        resp->in.buf + resp->in.len, &value, &size);

        resp->value = (rc == NGX_AGAIN) ? size : 0;

        if (resp->scanned + size > NGX_IDEMPOTENCY_RESP_SIZE) {
            return NGX_ERROR;
        }

        if (rc != NGX_OK) {
            return rc;
        }

        resp->scanned += size;

        if (++resp->values > NGX_IDEMPOTENCY_RESP_VALUES) {
            return NGX_ERROR;
        }

        if (value.n) {

            if (resp->depth == NGX_IDEMPOTENCY_RESP_DEPTH) {
                return NGX_ERROR;
            }

            resp->left[resp->depth++] = value.n;
            continue;
        }

        /* the last value of an array also completes the array */

        while (resp->depth && --resp->left[resp->depth - 1] == 0) {
            resp->depth--;
        }

        if (resp->depth == 0) {
            return NGX_OK;
        }
    }
}


/*
 * One value (an array without its elements) and its size.  NGX_AGAIN: it is not
 * whole; of a string whose length is there, the size is known.
 */

static ngx_int_t
resp_value(u_char *p, u_char *last, ngx_idempotency_redis_reply_t *value,
    size_t *size)
{
    u_char   *end;
    int64_t   n;

    *size = 0;
    ngx_memzero(value, sizeof(ngx_idempotency_redis_reply_t));

    if (p == last) {
        return NGX_AGAIN;
    }

    /* don't wait for more from a server that does not speak RESP2 */

    if (*p == '\0' || ngx_strchr("+-:$*", *p) == NULL) {
        return NGX_ERROR;
    }

    end = memchr(p, LF, last - p);

    if (end == NULL) {
        return (last - p > NGX_IDEMPOTENCY_RESP_LINE) ? NGX_ERROR : NGX_AGAIN;
    }

    if (end - p < 2 || end[-1] != CR || end - p > NGX_IDEMPOTENCY_RESP_LINE) {
        return NGX_ERROR;
    }

    value->str.data = p + 1;
    value->str.len = end - p - 2;
    *size = end + 1 - p;

    if (*p == '-') {
        value->type = NGX_IDEMPOTENCY_REDIS_ERROR;
    }

    if (*p == '-' || *p == '+') {
        return NGX_OK;
    }

    if (ngx_idempotency_resp_decimal(&value->str, &n) != NGX_OK) {
        return NGX_ERROR;
    }

    ngx_str_null(&value->str);

    if (*p == ':') {
        value->type = NGX_IDEMPOTENCY_REDIS_INTEGER;
        value->integer = n;
        return NGX_OK;
    }

    if (n < 0) {
        value->type = NGX_IDEMPOTENCY_REDIS_NIL;
        return (n == -1) ? NGX_OK : NGX_ERROR;
    }

    if (*p == '*') {
        value->type = NGX_IDEMPOTENCY_REDIS_ARRAY;
        value->n = n;
        return (n <= NGX_IDEMPOTENCY_RESP_VALUES) ? NGX_OK : NGX_ERROR;
    }

    if (n > NGX_IDEMPOTENCY_RESP_SIZE) {
        return NGX_ERROR;
    }

    value->str.data = end + 1;
    value->str.len = n;
    *size += n + 2;

    if (*size > (size_t) (last - p)) {
        return NGX_AGAIN;
    }

    return (end[n + 1] == CR && end[n + 2] == LF) ? NGX_OK : NGX_ERROR;
}


/* the bytes were scanned: well-formed, and not too deep */

static u_char *
resp_build(u_char *p, u_char *last, ngx_idempotency_redis_reply_t *reply,
    ngx_idempotency_redis_reply_t **next)
{
    size_t      size;
    ngx_uint_t  i;

    (void) resp_value(p, last, reply, &size);

    p += size;

    reply->elts = *next;
    *next += reply->n;

    for (i = 0; i < reply->n; i++) {
        p = resp_build(p, last, &reply->elts[i], next);
    }

    return p;
}


ngx_int_t
ngx_idempotency_resp_decimal(ngx_str_t *text, int64_t *number)
{
    u_char      *p, *last;
    uint64_t     n;
    ngx_uint_t   minus;

    p = text->data;
    last = p + text->len;
    minus = (p < last && *p == '-');

    if (p < last && (*p == '-' || *p == '+')) {
        p++;
    }

    if (p == last || last - p > 19) {
        return NGX_ERROR;
    }

    for (n = 0; p < last; p++) {

        if (*p < '0' || *p > '9') {
            return NGX_ERROR;
        }

        n = n * 10 + (*p - '0');
    }

    if (n > (uint64_t) INT64_MAX + minus) {
        return NGX_ERROR;
    }

    *number = (int64_t) (minus ? 0 - n : n);

    return NGX_OK;
}


void
ngx_idempotency_resp_command(ngx_idempotency_resp_buf_t *out, ngx_uint_t n)
{
    u_char  *p;

    p = buf_room(out, sizeof("*" CRLF) - 1 + NGX_INT_T_LEN);

    if (p && !out->failed) {
        out->len = ngx_sprintf(p, "*%ui" CRLF, n) - out->buf;
    }
}


void
ngx_idempotency_resp_word(ngx_idempotency_resp_buf_t *out, u_char *data,
    size_t len)
{
    u_char  *p;

    p = buf_room(out, sizeof("$" CRLF CRLF) - 1 + NGX_SIZE_T_LEN + len);

    if (p && !out->failed) {
        p = ngx_sprintf(p, "$%uz" CRLF, len);
        p = ngx_cpymem(p, data, len);
        *p++ = CR;
        *p++ = LF;

        out->len = p - out->buf;
    }
}


void
ngx_idempotency_resp_number(ngx_idempotency_resp_buf_t *out, uint64_t number)
{
    u_char  buf[NGX_INT64_LEN];

    ngx_idempotency_resp_word(out, buf,
                              ngx_sprintf(buf, "%uL", number) - buf);
}


void
ngx_idempotency_resp_say(ngx_idempotency_resp_buf_t *out, const char *format,
    va_list args)
{
    size_t       len;
    ngx_str_t   *str;
    ngx_uint_t   n;
    const char  *p;

    for (n = 1, p = format; *p; p++) {
        n += (*p == ' ');
    }

    ngx_idempotency_resp_command(out, n);

    for (p = format; n; n--, p += len + 1) {
        len = strcspn(p, " ");

        if (len == 2 && p[0] == '%' && p[1] == 'V') {
            str = va_arg(args, ngx_str_t *);
            ngx_idempotency_resp_str(out, str);

        } else if (len == 2 && p[0] == '%' && p[1] == 'i') {
            ngx_idempotency_resp_number(out, va_arg(args, ngx_int_t));

        } else {
            ngx_idempotency_resp_word(out, (u_char *) p, len);
        }
    }
}


ngx_idempotency_redis_verdict_t
ngx_idempotency_redis_verdict(ngx_str_t *text)
{
    word_t                           *word;
    ngx_idempotency_redis_verdict_t   verdict;

    for (word = words; word->word.len; word++) {
        if (text->len >= word->word.len
            && ngx_memcmp(text->data, word->word.data, word->word.len) == 0
            && (text->len == word->word.len
                || text->data[word->word.len] == ' '))
        {
            break;
        }
    }

    verdict = word->verdict;

    /* the script had not written yet, or can't be killed */

    if (ngx_idempotency_resp_in(text, "Script killed by user")) {
        verdict.maybe = 0;
        return verdict;
    }

    /*
     * A command inside the script was refused, perhaps not its first one: an
     * outcome is published after its write.  A server that is full, or no
     * master, refuses only writes, and so all of them.
     */

    if (verdict.error != NGX_IDEMPOTENCY_REDIS_FULL
        && verdict.what != NGX_IDEMPOTENCY_REDIS_MASTER
        && ngx_idempotency_resp_in(text, "script: "))
    {
        verdict.what = NGX_IDEMPOTENCY_REDIS_GIVE;
        verdict.maybe = 1;
    }

    return verdict;
}


ngx_uint_t
ngx_idempotency_resp_is(ngx_str_t *text, char *s)
{
    return text->len == ngx_strlen(s)
           && ngx_strncmp(text->data, s, text->len) == 0;
}


ngx_uint_t
ngx_idempotency_resp_in(ngx_str_t *text, char *s)
{
    size_t  n;

    n = ngx_strlen(s);

    return text->len >= n
           && ngx_strlcasestrn(text->data, text->data + text->len,
                               (u_char *) s, n - 1)
              != NULL;
}
