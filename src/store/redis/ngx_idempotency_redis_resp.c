
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


static void resp_consume(ngx_idempotency_resp_t *resp);
static ngx_int_t resp_scan(ngx_idempotency_resp_t *resp);
static ngx_int_t resp_value(u_char *p, u_char *last,
    ngx_idempotency_redis_reply_t *value, size_t *size);
static u_char *resp_build(u_char *p, u_char *last,
    ngx_idempotency_redis_reply_t *reply,
    ngx_idempotency_redis_reply_t **next);
static u_char *resp_out_room(ngx_idempotency_resp_out_t *out, size_t size);


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
    u_char  *buf;
    size_t   want;

    resp_consume(resp);

    if (resp->start) {
        ngx_memmove(resp->buf, resp->buf + resp->start,
                    resp->len - resp->start);

        resp->pos -= resp->start;
        resp->len -= resp->start;
        resp->start = 0;
    }

    /* a string's length is known before its bytes; it is trusted only as far as
       bytes came */

    want = ngx_min(resp->pos + resp->value, 2 * resp->len + RESP_KEEP);
    want = ngx_max(want, resp->len) + RESP_ROOM;

    if (resp->size < want) {
        want = ngx_max(want, 2 * resp->size);

    } else if (resp->size > RESP_KEEP && want <= RESP_KEEP / 2) {
        want += RESP_ROOM;

    } else {
        want = 0;
    }

    if (want) {
        buf = ngx_alloc(want, ngx_cycle->log);
        if (buf == NULL) {
            return NULL;
        }

        if (resp->buf) {
            ngx_memcpy(buf, resp->buf, resp->len);
            ngx_free(resp->buf);
        }

        resp->buf = buf;
        resp->size = want;
    }

    *size = resp->size - resp->len;

    return resp->buf + resp->len;
}


void
ngx_idempotency_resp_read(ngx_idempotency_resp_t *resp, size_t n)
{
    resp->len += n;
}


ngx_int_t
ngx_idempotency_resp_next(ngx_idempotency_resp_t *resp,
    ngx_idempotency_redis_reply_t **reply)
{
    ngx_int_t                       rc;
    ngx_idempotency_redis_reply_t  *next;

    resp_consume(resp);

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
    (void) resp_build(resp->buf + resp->start, resp->buf + resp->pos,
                      resp->replies, &next);

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

    reply = ngx_alloc(size + resp->pos - resp->start, ngx_cycle->log);
    if (reply == NULL) {
        return NULL;
    }

    p = (u_char *) reply + size;
    ngx_memcpy(p, resp->buf + resp->start, resp->pos - resp->start);

    next = reply + 1;
    (void) resp_build(p, p + resp->pos - resp->start, reply, &next);

    return reply;
}


void
ngx_idempotency_resp_free(ngx_idempotency_resp_t *resp)
{
    if (resp->buf) {
        ngx_free(resp->buf);
    }

    if (resp->replies) {
        ngx_free(resp->replies);
    }

    ngx_memzero(resp, sizeof(ngx_idempotency_resp_t));
}


/* the last reply is not needed any more */

static void
resp_consume(ngx_idempotency_resp_t *resp)
{
    if (!resp->whole) {
        return;
    }

    resp->whole = 0;
    resp->values = 0;
    resp->start = resp->pos;
}


/* goes on after the last whole value */

static ngx_int_t
resp_scan(ngx_idempotency_resp_t *resp)
{
    size_t                         size;
    ngx_int_t                      rc;
    ngx_idempotency_redis_reply_t  value;

    if (resp->buf == NULL) {
        return NGX_AGAIN;
    }

    for ( ;; ) {
        rc = resp_value(resp->buf + resp->pos, resp->buf + resp->len, &value,
                        &size);

        resp->value = (rc == NGX_AGAIN) ? size : 0;

        if (resp->pos - resp->start + size > NGX_IDEMPOTENCY_RESP_SIZE) {
            return NGX_ERROR;
        }

        if (rc != NGX_OK) {
            return rc;
        }

        resp->pos += size;

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
ngx_idempotency_resp_command(ngx_idempotency_resp_out_t *out, ngx_uint_t n)
{
    u_char  *p;

    p = resp_out_room(out, sizeof("*" CRLF) - 1 + NGX_INT_T_LEN);

    if (p) {
        out->len = ngx_sprintf(p, "*%ui" CRLF, n) - out->buf;
    }
}


void
ngx_idempotency_resp_word(ngx_idempotency_resp_out_t *out, u_char *data,
    size_t len)
{
    u_char  *p;

    p = resp_out_room(out, sizeof("$" CRLF CRLF) - 1 + NGX_SIZE_T_LEN + len);

    if (p) {
        p = ngx_sprintf(p, "$%uz" CRLF, len);
        p = ngx_cpymem(p, data, len);
        *p++ = CR;
        *p++ = LF;

        out->len = p - out->buf;
    }
}


void
ngx_idempotency_resp_number(ngx_idempotency_resp_out_t *out, uint64_t number)
{
    u_char  buf[NGX_INT64_LEN];

    ngx_idempotency_resp_word(out, buf,
                              ngx_sprintf(buf, "%uL", number) - buf);
}


void
ngx_idempotency_resp_say(ngx_idempotency_resp_out_t *out, const char *format,
    ...)
{
    va_list  args;

    va_start(args, format);
    ngx_idempotency_resp_vsay(out, format, args);
    va_end(args);
}


void
ngx_idempotency_resp_vsay(ngx_idempotency_resp_out_t *out, const char *format,
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


static u_char *
resp_out_room(ngx_idempotency_resp_out_t *out, size_t size)
{
    u_char  *buf;
    size_t   want;

    if (out->failed) {
        return NULL;
    }

    if (out->size - out->len < size) {
        want = ngx_max(out->len + size, 2 * out->size);
        want = ngx_max(want, RESP_ROOM);

        buf = ngx_alloc(want, ngx_cycle->log);
        if (buf == NULL) {
            out->failed = 1;
            return NULL;
        }

        if (out->buf) {
            ngx_memcpy(buf, out->buf, out->len);
            ngx_free(out->buf);
        }

        out->buf = buf;
        out->size = want;
    }

    return out->buf + out->len;
}


void
ngx_idempotency_resp_written(ngx_idempotency_resp_out_t *out, size_t n)
{
    out->pos += n;

    if (out->pos < out->len) {
        return;
    }

    out->pos = 0;
    out->len = 0;

    if (out->size > RESP_KEEP) {
        ngx_idempotency_resp_out_free(out);
    }
}


void
ngx_idempotency_resp_out_free(ngx_idempotency_resp_out_t *out)
{
    if (out->buf) {
        ngx_free(out->buf);
    }

    ngx_memzero(out, sizeof(ngx_idempotency_resp_out_t));
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
