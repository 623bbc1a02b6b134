
/*
 * RESP2, read and written, and what the words of an error mean.
 *
 * The reader goes over each byte once, however the bytes are cut: as long as a
 * reply isn't whole, it notes where it is and how many values each level still
 * wants.  Only a whole reply, which is well-formed then, is made into values;
 * these point into what was read.
 */


#include "ngx_idempotency_redis_resp.h"


/* what is kept for the next reply */

#define RESP_KEEP  65536
#define RESP_ROOM  4096


typedef struct {
    ngx_str_t                        word;
    ngx_idempotency_redis_verdict_t  verdict;
} word_t;


static void resp_consume(ngx_idempotency_resp_t *resp);
static ngx_int_t resp_scan(ngx_idempotency_resp_t *resp);
static ngx_int_t resp_line(ngx_idempotency_resp_t *resp, ngx_str_t *line);
static ngx_int_t resp_value(ngx_idempotency_resp_t *resp, ngx_str_t *line);
static ngx_int_t resp_string(ngx_idempotency_resp_t *resp, ngx_str_t *line);
static ngx_int_t resp_array(ngx_idempotency_resp_t *resp, ngx_str_t *line);
static ngx_int_t resp_down(ngx_idempotency_resp_t *resp);
static u_char *resp_build(u_char *p, ngx_idempotency_redis_reply_t *reply,
    ngx_idempotency_redis_reply_t **next);
static u_char *resp_build_string(u_char *p,
    ngx_idempotency_redis_reply_t *reply);
static u_char *resp_build_array(u_char *p, ngx_idempotency_redis_reply_t *reply,
    ngx_idempotency_redis_reply_t **next);
static u_char *resp_build_line(u_char *p, ngx_str_t *line);
static u_char *resp_out_room(ngx_idempotency_resp_out_t *out, size_t size);


static word_t  words[] = {
    { ngx_string("NOSCRIPT"),
      { NGX_IDEMPOTENCY_REDIS_FAULT, NGX_IDEMPOTENCY_REDIS_TEXT, 0 } },

    { ngx_string("MOVED"),
      { NGX_IDEMPOTENCY_REDIS_AWAY, NGX_IDEMPOTENCY_REDIS_MOVED, 0 } },
    { ngx_string("ASK"),
      { NGX_IDEMPOTENCY_REDIS_AWAY, NGX_IDEMPOTENCY_REDIS_ASK, 0 } },
    { ngx_string("READONLY"),
      { NGX_IDEMPOTENCY_REDIS_AWAY, NGX_IDEMPOTENCY_REDIS_MASTER, 0 } },

    { ngx_string("LOADING"),
      { NGX_IDEMPOTENCY_REDIS_AWAY, NGX_IDEMPOTENCY_REDIS_LATER, 0 } },
    { ngx_string("MASTERDOWN"),
      { NGX_IDEMPOTENCY_REDIS_AWAY, NGX_IDEMPOTENCY_REDIS_LATER, 0 } },
    { ngx_string("CLUSTERDOWN"),
      { NGX_IDEMPOTENCY_REDIS_AWAY, NGX_IDEMPOTENCY_REDIS_LATER, 0 } },
    { ngx_string("TRYAGAIN"),
      { NGX_IDEMPOTENCY_REDIS_AWAY, NGX_IDEMPOTENCY_REDIS_LATER, 0 } },
    { ngx_string("BUSY"),
      { NGX_IDEMPOTENCY_REDIS_AWAY, NGX_IDEMPOTENCY_REDIS_LATER, 0 } },

    { ngx_string("OOM"),
      { NGX_IDEMPOTENCY_REDIS_FULL, NGX_IDEMPOTENCY_REDIS_GIVE, 0 } },
    { ngx_string("MISCONF"),
      { NGX_IDEMPOTENCY_REDIS_FULL, NGX_IDEMPOTENCY_REDIS_GIVE, 0 } },
    { ngx_string("NOREPLICAS"),
      { NGX_IDEMPOTENCY_REDIS_FULL, NGX_IDEMPOTENCY_REDIS_GIVE, 0 } },

    { ngx_string("NOAUTH"),
      { NGX_IDEMPOTENCY_REDIS_DENIED, NGX_IDEMPOTENCY_REDIS_GIVE, 0 } },
    { ngx_string("WRONGPASS"),
      { NGX_IDEMPOTENCY_REDIS_DENIED, NGX_IDEMPOTENCY_REDIS_GIVE, 0 } },
    { ngx_string("DENIED"),
      { NGX_IDEMPOTENCY_REDIS_DENIED, NGX_IDEMPOTENCY_REDIS_GIVE, 0 } },
    { ngx_string("NOPERM"),
      { NGX_IDEMPOTENCY_REDIS_DENIED, NGX_IDEMPOTENCY_REDIS_GIVE, 0 } },

    { ngx_string("CROSSSLOT"),
      { NGX_IDEMPOTENCY_REDIS_FAULT, NGX_IDEMPOTENCY_REDIS_GIVE, 0 } },
    { ngx_string("WRONGTYPE"),
      { NGX_IDEMPOTENCY_REDIS_FAULT, NGX_IDEMPOTENCY_REDIS_GIVE, 0 } },

    /* behind a script that was executed, by one that is no master any more */
    { ngx_string("UNBLOCKED"),
      { NGX_IDEMPOTENCY_REDIS_UNACKED, NGX_IDEMPOTENCY_REDIS_GIVE, 1 } },

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
        resp->line = 0;
        resp->start = 0;
    }

    /* a string's length is known before it comes, and only believed as far
       as it came */

    want = ngx_min(resp->pos + resp->body, 2 * resp->len + RESP_KEEP);
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
    (void) resp_build(resp->buf + resp->start, resp->replies, &next);

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
    (void) resp_build(p, reply, &next);

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


/* the reply that was given out is needed no longer */

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


static ngx_int_t
resp_scan(ngx_idempotency_resp_t *resp)
{
    u_char     *p;
    ngx_int_t   rc;
    ngx_str_t   line;

    if (resp->buf == NULL) {
        return NGX_AGAIN;
    }

    for ( ;; ) {

        if (resp->body) {

            if (resp->len - resp->pos < resp->body) {
                return NGX_AGAIN;
            }

            p = resp->buf + resp->pos + resp->body;

            if (p[-2] != CR || p[-1] != LF) {
                return NGX_ERROR;
            }

            resp->pos += resp->body;
            resp->body = 0;
            rc = resp_down(resp);

        } else {

            rc = resp_line(resp, &line);

            if (rc == NGX_OK) {
                rc = resp_value(resp, &line);
            }
        }

        if (resp->pos - resp->start + resp->body > NGX_IDEMPOTENCY_RESP_SIZE) {
            return NGX_ERROR;
        }

        if (rc != NGX_DECLINED) {
            return rc;
        }
    }
}


/* with its type, without its end */

static ngx_int_t
resp_line(ngx_idempotency_resp_t *resp, ngx_str_t *line)
{
    u_char  *p, *last, *begin;

    begin = resp->buf + resp->pos;
    last = resp->buf + resp->len;
    p = ngx_max(resp->buf + resp->line, begin);

    p = (last > p) ? memchr(p, LF, last - p) : NULL;

    /* who speaks something else is not waited for */

    if (last > begin
        && (*begin == '\0' || ngx_strchr("+-:$*", *begin) == NULL))
    {
        return NGX_ERROR;
    }

    if (p == NULL) {
        resp->line = resp->len;

        return (last - begin > NGX_IDEMPOTENCY_RESP_LINE) ? NGX_ERROR
                                                          : NGX_AGAIN;
    }

    if (p - begin < 2 || p[-1] != CR
        || p - begin > NGX_IDEMPOTENCY_RESP_LINE)
    {
        return NGX_ERROR;
    }

    line->data = begin;
    line->len = p - 1 - begin;

    resp->pos = p + 1 - resp->buf;

    return NGX_OK;
}


/* NGX_OK: with it the reply is whole; NGX_DECLINED: there is more of it */

static ngx_int_t
resp_value(ngx_idempotency_resp_t *resp, ngx_str_t *line)
{
    int64_t  number;

    if (++resp->values > NGX_IDEMPOTENCY_RESP_VALUES) {
        return NGX_ERROR;
    }

    switch (line->data[0]) {

    case '$':
        return resp_string(resp, line);

    case '*':
        return resp_array(resp, line);

    case ':':
        if (ngx_idempotency_resp_decimal(line->data + 1, line->len - 1,
                                         &number)
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        return resp_down(resp);

    default:
        return resp_down(resp);
    }
}


static ngx_int_t
resp_string(ngx_idempotency_resp_t *resp, ngx_str_t *line)
{
    int64_t  n;

    if (ngx_idempotency_resp_decimal(line->data + 1, line->len - 1, &n)
        != NGX_OK
        || n > NGX_IDEMPOTENCY_RESP_SIZE)
    {
        return NGX_ERROR;
    }

    if (n < 0) {
        return (n == -1) ? resp_down(resp) : NGX_ERROR;
    }

    resp->body = n + 2;

    return NGX_DECLINED;
}


static ngx_int_t
resp_array(ngx_idempotency_resp_t *resp, ngx_str_t *line)
{
    int64_t  n;

    if (ngx_idempotency_resp_decimal(line->data + 1, line->len - 1, &n)
        != NGX_OK
        || n > NGX_IDEMPOTENCY_RESP_VALUES)
    {
        return NGX_ERROR;
    }

    if (n < 0) {
        return (n == -1) ? resp_down(resp) : NGX_ERROR;
    }

    if (n == 0) {
        return resp_down(resp);
    }

    if (resp->depth == NGX_IDEMPOTENCY_RESP_DEPTH) {
        return NGX_ERROR;
    }

    resp->left[resp->depth++] = n;

    return NGX_DECLINED;
}


/* a value has ended, and with it those in which it was the last one */

static ngx_int_t
resp_down(ngx_idempotency_resp_t *resp)
{
    while (resp->depth) {

        if (--resp->left[resp->depth - 1]) {
            return NGX_DECLINED;
        }

        resp->depth--;
    }

    return NGX_OK;
}


/* as above, but nothing is wrong any more; as deep as was allowed there */

static u_char *
resp_build(u_char *p, ngx_idempotency_redis_reply_t *reply,
    ngx_idempotency_redis_reply_t **next)
{
    ngx_str_t  line;

    ngx_memzero(reply, sizeof(ngx_idempotency_redis_reply_t));

    switch (*p) {

    case '$':
        return resp_build_string(p, reply);

    case '*':
        return resp_build_array(p, reply, next);
    }

    p = resp_build_line(p, &line);

    switch (line.data[0]) {

    case ':':
        reply->type = NGX_IDEMPOTENCY_REDIS_INTEGER;
        (void) ngx_idempotency_resp_decimal(line.data + 1, line.len - 1,
                                            &reply->integer);
        break;

    case '-':
        reply->type = NGX_IDEMPOTENCY_REDIS_ERROR;

        /* fall through */

    default:
        reply->str.data = line.data + 1;
        reply->str.len = line.len - 1;
    }

    return p;
}


static u_char *
resp_build_string(u_char *p, ngx_idempotency_redis_reply_t *reply)
{
    int64_t    n;
    ngx_str_t  line;

    p = resp_build_line(p, &line);

    (void) ngx_idempotency_resp_decimal(line.data + 1, line.len - 1, &n);

    if (n < 0) {
        reply->type = NGX_IDEMPOTENCY_REDIS_NIL;
        return p;
    }

    reply->str.data = p;
    reply->str.len = n;

    return p + n + 2;
}


static u_char *
resp_build_array(u_char *p, ngx_idempotency_redis_reply_t *reply,
    ngx_idempotency_redis_reply_t **next)
{
    int64_t    n, i;
    ngx_str_t  line;

    p = resp_build_line(p, &line);

    (void) ngx_idempotency_resp_decimal(line.data + 1, line.len - 1, &n);

    if (n < 0) {
        reply->type = NGX_IDEMPOTENCY_REDIS_NIL;
        return p;
    }

    reply->type = NGX_IDEMPOTENCY_REDIS_ARRAY;
    reply->n = n;
    reply->elts = *next;

    *next += n;

    for (i = 0; i < n; i++) {
        p = resp_build(p, &reply->elts[i], next);
    }

    return p;
}


static u_char *
resp_build_line(u_char *p, ngx_str_t *line)
{
    line->data = p;

    while (*p != LF) {
        p++;
    }

    line->len = p - 1 - line->data;

    return p + 1;
}


ngx_int_t
ngx_idempotency_resp_decimal(u_char *data, size_t len, int64_t *number)
{
    u_char      *last;
    uint64_t     n;
    ngx_uint_t   minus;

    last = data + len;
    minus = (len && *data == '-');

    if (len && (*data == '-' || *data == '+')) {
        data++;
    }

    if (data == last || last - data > 19) {
        return NGX_ERROR;
    }

    for (n = 0; data < last; data++) {

        if (*data < '0' || *data > '9') {
            return NGX_ERROR;
        }

        n = n * 10 + (*data - '0');
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
ngx_idempotency_resp_say(ngx_idempotency_resp_out_t *out, ...)
{
    char        *word;
    va_list      args;
    ngx_uint_t   n;

    va_start(args, out);

    for (n = 0; va_arg(args, char *); n++) { /* void */ }

    va_end(args);

    ngx_idempotency_resp_command(out, n);

    va_start(args, out);

    while ((word = va_arg(args, char *)) != NULL) {
        ngx_idempotency_resp_word(out, (u_char *) word, ngx_strlen(word));
    }

    va_end(args);
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

    /* it was not let do its first write, or it can't be killed any more */

    if (ngx_idempotency_resp_in(text, "Script killed by user")) {
        verdict.maybe = 0;
        return verdict;
    }

    /*
     * A command inside of the script was refused, which need not be its first
     * one: an outcome is published behind its write.  Who is full, or no
     * master, refuses writes alone, and so all of them.
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
