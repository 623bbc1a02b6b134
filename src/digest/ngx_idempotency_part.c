
/*
 * The header of a part of multipart/form-data (RFC 7578): its name, its
 * filename and type, if it has them, and what else there is.
 *
 * What servers read differently is malformed or ambiguous here, as two bodies
 * must not be taken for one.  Malformed: folded lines, a line end that is not
 * CRLF, an encoding of the bytes.  Ambiguous: a parameter that comes twice or,
 * but for filename, in the extended form, a name with escapes or in single
 * quotes, which PHP takes off, and that of a file whose brackets don't match:
 * PHP takes neither that file nor any behind it.
 */


#include "ngx_idempotency_multipart.h"


static ngx_uint_t part_brackets(ngx_str_t *name);
static ngx_int_t part_line(ngx_idempotency_part_t *part, u_char *start,
    u_char *end);
static ngx_int_t part_disposition(ngx_idempotency_part_t *part,
    ngx_str_t *value);
static void part_other(ngx_idempotency_part_t *part, char *kind,
    ngx_str_t *name, ngx_str_t *value);


ngx_int_t
ngx_idempotency_part_header(ngx_idempotency_part_t *part, u_char *data,
    size_t len)
{
    u_char  *p, *end;

    ngx_memzero(part, sizeof(ngx_idempotency_part_t));

    end = data + len;

    for ( ;; ) {
        p = ngx_strlchr(data, end, '\n');

        if (p == NULL || p == data || p[-1] != '\r') {
            return NGX_DECLINED;
        }

        if (p - data == 1) {
            break;
        }

        if (part_line(part, data, p - 1) != NGX_OK) {
            return NGX_DECLINED;
        }

        data = p + 1;
    }

    if (part->filename.data && !part_brackets(&part->name)) {
        part->ambiguous = 1;
    }

    return part->name.data ? NGX_OK : NGX_DECLINED;
}


/* all are closed, and nothing is behind them but others */

static ngx_uint_t
part_brackets(ngx_str_t *name)
{
    size_t      i;
    ngx_uint_t  open, closed;

    open = 0;
    closed = 0;

    for (i = 0; i < name->len; i++) {

        if (name->data[i] == '[') {

            if (open) {
                return 0;
            }

            open = 1;

        } else if (closed || (name->data[i] == ']' && !open)) {
            return 0;
        }

        closed = (name->data[i] == ']');
        open = open && !closed;
    }

    return !open;
}


static ngx_int_t
part_line(ngx_idempotency_part_t *part, u_char *start, u_char *end)
{
    u_char     *p;
    ngx_str_t   name, value;

    for (p = start; p < end; p++) {
        if (*p == '\0' || *p == '\r') {
            return NGX_DECLINED;
        }
    }

    p = ngx_strlchr(start, end, ':');

    if (p == NULL || p == start || p[-1] == ' ' || p[-1] == '\t'
        || *start == ' ' || *start == '\t')
    {
        return NGX_DECLINED;
    }

    name.data = start;
    name.len = p - start;

    for (p++; p < end && (*p == ' ' || *p == '\t'); p++) { /* void */ }

    value.data = p;
    value.len = end - p;

    if (ngx_idempotency_equal(&name, "content-disposition")) {
        return part_disposition(part, &value);
    }

    if (ngx_idempotency_equal(&name, "content-type")) {

        if (part->type.data) {
            return NGX_DECLINED;
        }

        part->type = value;
        return NGX_OK;
    }

    if (ngx_idempotency_equal(&name, "content-transfer-encoding")
        && !ngx_idempotency_equal(&value, "binary")
        && !ngx_idempotency_equal(&value, "8bit")
        && !ngx_idempotency_equal(&value, "7bit"))
    {
        return NGX_DECLINED;
    }

    part_other(part, "h", &name, &value);

    return NGX_OK;
}


static ngx_int_t
part_disposition(ngx_idempotency_part_t *part, ngx_str_t *value)
{
    u_char     *p, *end;
    ngx_int_t   rc;
    ngx_str_t   name, text, *to;

    p = value->data;
    end = p + value->len;

    if (p == end || *p == ';') {
        return NGX_DECLINED;
    }

    rc = ngx_idempotency_parameter(&p, end, &name, &text);

    if (rc != NGX_OK || !ngx_idempotency_equal(&name, "form-data")
        || text.data || part->name.data)
    {
        return NGX_DECLINED;
    }

    while ((rc = ngx_idempotency_parameter(&p, end, &name, &text)) == NGX_OK) {

        if (ngx_idempotency_equal(&name, "name")) {
            to = &part->name;

        } else if (ngx_idempotency_equal(&name, "filename")) {
            to = &part->filename;

        } else if (ngx_idempotency_equal(&name, "filename*")) {
            to = &part->extended;

        } else {
            part->ambiguous |= ngx_idempotency_begins(&name, "name*");
            part_other(part, "p", &name, &text);
            continue;
        }

        if (text.data == NULL) {
            return NGX_DECLINED;
        }

        if (to->data) {
            part->ambiguous = 1;
            continue;
        }

        if (to == &part->name && text.len
            && (text.data[0] == '\'' || memchr(text.data, '\\', text.len)))
        {
            part->ambiguous = 1;
        }

        *to = text;
    }

    return (rc == NGX_DONE && part->name.data) ? NGX_OK : NGX_DECLINED;
}


static void
part_other(ngx_idempotency_part_t *part, char *kind, ngx_str_t *name,
    ngx_str_t *value)
{
    if (!part->other) {
        part->other = 1;
        ngx_idempotency_digest_init(&part->others, NULL,
                                    NGX_IDEMPOTENCY_DIGEST_OTHER_VERSION, 'O');
    }

    ngx_idempotency_digest_bytes(&part->others, (u_char *) kind, 1);
    ngx_idempotency_digest_lower(&part->others, name);
    ngx_idempotency_digest_field(&part->others, value);
}
