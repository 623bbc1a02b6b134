
/*
 * The header of a part of multipart/form-data (RFC 7578): its name, and its
 * filename and type, if it has them.
 *
 * What servers read differently is malformed here, as two bodies must not be
 * taken for one: folded lines, parameters that come twice, a line end that is
 * not CRLF, an encoding of the bytes.
 */


#include "ngx_idempotency_multipart.h"


static ngx_int_t part_line(ngx_idempotency_part_t *part, u_char *start,
    u_char *end);
static ngx_int_t part_disposition(ngx_idempotency_part_t *part,
    ngx_str_t *value);
static ngx_uint_t part_is(ngx_str_t *s, char *name);


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
            return part->name.data ? NGX_OK : NGX_DECLINED;
        }

        if (part_line(part, data, p - 1) != NGX_OK) {
            return NGX_DECLINED;
        }

        data = p + 1;
    }
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

    if (part_is(&name, "content-disposition")) {
        return part_disposition(part, &value);
    }

    if (part_is(&name, "content-type")) {

        if (part->type.data) {
            return NGX_DECLINED;
        }

        part->type = value;
        return NGX_OK;
    }

    if (part_is(&name, "content-transfer-encoding")
        && !part_is(&value, "binary") && !part_is(&value, "8bit")
        && !part_is(&value, "7bit"))
    {
        return NGX_DECLINED;
    }

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

    if (rc != NGX_OK || !part_is(&name, "form-data") || text.data
        || part->name.data)
    {
        return NGX_DECLINED;
    }

    while ((rc = ngx_idempotency_parameter(&p, end, &name, &text)) == NGX_OK) {

        if (part_is(&name, "name")) {
            to = &part->name;

        } else if (part_is(&name, "filename")) {
            to = &part->filename;

        } else if (part_is(&name, "filename*")) {
            to = &part->extended;

        } else {
            continue;
        }

        if (to->data || text.data == NULL) {
            return NGX_DECLINED;
        }

        *to = text;
    }

    return (rc == NGX_DONE && part->name.data) ? NGX_OK : NGX_DECLINED;
}


static ngx_uint_t
part_is(ngx_str_t *s, char *name)
{
    return s->len == ngx_strlen(name)
           && ngx_strncasecmp(s->data, (u_char *) name, s->len) == 0;
}
