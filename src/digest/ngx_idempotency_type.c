
/*
 * The media type as a part of the digest: the letter case of the type and of
 * the parameters' names doesn't count, nor does white space around them, nor
 * the request's charset, which servers ignore; that of a part is what some of
 * them decode its value by.
 */


#include "ngx_idempotency_encode.h"


static void digest_parameter(ngx_idempotency_digest_t *d, ngx_str_t *param,
    char *used);
static ngx_str_t next_part(ngx_str_t *rest);


void
ngx_idempotency_digest_type(ngx_idempotency_digest_t *d,
    ngx_str_t *content_type, char *parameter)
{
    ngx_str_t  rest, part;

    rest = *content_type;

    part = next_part(&rest);
    ngx_idempotency_digest_lower(d, &part);

    while (rest.len) {
        part = next_part(&rest);

        if (part.len) {
            digest_parameter(d, &part, parameter);
        }
    }

    ngx_idempotency_digest_bytes(d, (u_char *) ".", 1);
}


static void
digest_parameter(ngx_idempotency_digest_t *d, ngx_str_t *param, char *used)
{
    u_char     *p, *end;
    ngx_str_t   name, value;

    end = param->data + param->len;

    p = ngx_strlchr(param->data, end, '=');
    if (p == NULL) {
        p = end;
    }

    name = ngx_idempotency_trim(param->data, p);
    value = ngx_idempotency_trim(p < end ? p + 1 : end, end);

    if (used && ngx_idempotency_equal(&name, used)) {
        return;
    }

    if (ngx_idempotency_equal(&name, "charset")
        && (used || ngx_idempotency_equal(&value, "utf-8")))
    {
        return;
    }

    ngx_idempotency_digest_bytes(d, (u_char *) ";", 1);
    ngx_idempotency_digest_lower(d, &name);
    ngx_idempotency_digest_field(d, &value);
}


void
ngx_idempotency_digest_lower(ngx_idempotency_digest_t *d, ngx_str_t *s)
{
    u_char     buf[64];
    ngx_str_t  lower;

    if (s->len > sizeof(buf)) {
        /* longer than any registered name: as it is */
        ngx_idempotency_digest_field(d, s);
        return;
    }

    ngx_strlow(buf, s->data, s->len);

    lower.len = s->len;
    lower.data = buf;

    ngx_idempotency_digest_field(d, &lower);
}


/* cuts at the next semicolon that stands outside of a quoted string */

static ngx_str_t
next_part(ngx_str_t *rest)
{
    u_char      *p, *start, *end;
    ngx_uint_t   quoted;

    quoted = 0;
    start = rest->data;
    end = start + rest->len;

    for (p = start; p < end; p++) {

        if (*p == '"') {
            quoted = !quoted;

        } else if (*p == '\\' && quoted && p + 1 < end) {
            p++;

        } else if (*p == ';' && !quoted) {
            break;
        }
    }

    rest->data = (p < end) ? p + 1 : end;
    rest->len = end - rest->data;

    return ngx_idempotency_trim(start, p);
}


/* without white space around */

ngx_str_t
ngx_idempotency_trim(u_char *start, u_char *end)
{
    ngx_str_t  s;

    while (start < end && (*start == ' ' || *start == '\t')) {
        start++;
    }

    while (start < end && (end[-1] == ' ' || end[-1] == '\t')) {
        end--;
    }

    s.data = start;
    s.len = end - start;

    return s;
}
