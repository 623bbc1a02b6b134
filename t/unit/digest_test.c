
/* Digests, against vectors that another implementation computed. */


#include "unit.h"
#include "digest/ngx_idempotency_digest.h"


typedef struct {
    size_t        len;
    char         *data;
} text_t;

typedef struct {
    text_t        key;
    ngx_uint_t    version;
    u_char        kind;
    ngx_uint_t    n;
    text_t        fields[5];
    text_t        rest;
    char         *digest;
} encoding_t;

typedef struct {
    text_t        text;
    char         *digest;
} type_t;


#include "digest_vectors.h"


#define count(array)  (sizeof(array) / sizeof((array)[0]))


static int
is(u_char *digest, char *hex)
{
    u_char  text[2 * NGX_IDEMPOTENCY_DIGEST_LEN + 1];

    *ngx_hex_dump(text, digest, NGX_IDEMPOTENCY_DIGEST_LEN) = '\0';

    return ngx_strcmp(text, hex) == 0;
}


/* exactly as many bytes as there are, so that a read beyond them is seen */

static ngx_str_t
copy(text_t *text)
{
    ngx_str_t  s;

    s.len = text->len;
    s.data = ngx_alloc(ngx_max(text->len, 1), unit_cycle.log);

    ngx_memcpy(s.data, text->data, text->len);

    return s;
}


unit_case("encodings match an independent implementation")
{
    u_char                         out[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_str_t                      s;
    ngx_uint_t                     i, n;
    ngx_idempotency_digest_t       d;
    ngx_idempotency_digest_key_t   key;

    for (i = 0; i < count(encodings); i++) {

        s = copy(&encodings[i].key);
        ngx_idempotency_digest_key(&key, s.data, s.len);
        ngx_free(s.data);

        ngx_idempotency_digest_init(&d, s.len ? &key : NULL,
                                    encodings[i].version, encodings[i].kind);

        for (n = 0; n < encodings[i].n; n++) {
            s = copy(&encodings[i].fields[n]);
            ngx_idempotency_digest_field(&d, &s);
            ngx_free(s.data);
        }

        s = copy(&encodings[i].rest);
        ngx_idempotency_digest_bytes(&d, s.data, s.len);
        ngx_free(s.data);

        ngx_idempotency_digest_final(&d, out);

        if (!check(is(out, encodings[i].digest))) {
            unit_note("encoding %u", (unsigned) i);
        }
    }
}


unit_case("a digest does not depend on pieces")
{
    size_t                     i;
    u_char                     data[300], one[NGX_IDEMPOTENCY_DIGEST_LEN],
                               out[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_idempotency_digest_t   d;

    for (i = 0; i < sizeof(data); i++) {
        data[i] = (u_char) i;
    }

    ngx_idempotency_digest_init(&d, NULL, 1, NGX_IDEMPOTENCY_DIGEST_BODY);
    ngx_idempotency_digest_bytes(&d, data, sizeof(data));
    ngx_idempotency_digest_final(&d, one);

    for (i = 0; i <= sizeof(data); i++) {
        ngx_idempotency_digest_init(&d, NULL, 1, NGX_IDEMPOTENCY_DIGEST_BODY);
        ngx_idempotency_digest_bytes(&d, data, i);
        ngx_idempotency_digest_bytes(&d, data + i, sizeof(data) - i);
        ngx_idempotency_digest_final(&d, out);

        check(ngx_memcmp(out, one, sizeof(out)) == 0);
    }
}


/* every way to cut a text into two fields gives a digest of its own */

unit_case("fields and kinds are unambiguous")
{
    u_char                     out[12][NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_str_t                  a, b;
    ngx_uint_t                 i, n;
    ngx_idempotency_digest_t   d;

    static ngx_str_t           text = ngx_string("aaaaaaaaaa");
    static u_char              kinds[] = { NGX_IDEMPOTENCY_DIGEST_TOKEN,
                                           NGX_IDEMPOTENCY_DIGEST_FINGERPRINT,
                                           NGX_IDEMPOTENCY_DIGEST_BODY };

    for (i = 0; i <= text.len; i++) {
        a.len = i;
        a.data = text.data;
        b.len = text.len - i;
        b.data = text.data + i;

        ngx_idempotency_digest_init(&d, NULL, 0, NGX_IDEMPOTENCY_DIGEST_TOKEN);
        ngx_idempotency_digest_field(&d, &a);
        ngx_idempotency_digest_field(&d, &b);
        ngx_idempotency_digest_final(&d, out[i]);
    }

    ngx_idempotency_digest_init(&d, NULL, 0, NGX_IDEMPOTENCY_DIGEST_TOKEN);
    ngx_idempotency_digest_field(&d, &text);
    ngx_idempotency_digest_final(&d, out[i]);

    for (i = 0; i < 12; i++) {
        for (n = 0; n < i; n++) {
            check(ngx_memcmp(out[i], out[n], sizeof(out[i])) != 0);
        }
    }

    for (i = 0; i < 3; i++) {
        ngx_idempotency_digest_init(&d, NULL, 1, kinds[i]);
        ngx_idempotency_digest_field(&d, &text);
        ngx_idempotency_digest_final(&d, out[i]);

        for (n = 0; n < i; n++) {
            check(ngx_memcmp(out[i], out[n], sizeof(out[i])) != 0);
        }
    }
}


unit_case("media types: case, charset, parameters, quoting")
{
    u_char                     out[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_str_t                  s;
    ngx_uint_t                 i;
    ngx_idempotency_digest_t   d;

    for (i = 0; i < count(types); i++) {

        s = copy(&types[i].text);

        ngx_idempotency_digest_init(&d, NULL, 1, NGX_IDEMPOTENCY_DIGEST_BODY);
        ngx_idempotency_digest_type(&d, &s, "charset");
        ngx_idempotency_digest_final(&d, out);

        ngx_free(s.data);

        if (!check(is(out, types[i].digest))) {
            unit_note("media type \"%s\"", types[i].text.data);
        }
    }
}


/* a body never passes for a part of the media type before it */

unit_case("a media type ends where the body begins")
{
    size_t                     n;
    u_char                     whole[NGX_IDEMPOTENCY_DIGEST_LEN],
                               cut[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_str_t                  s;
    ngx_idempotency_digest_t   d;

    static u_char              text[] = "a/b; c=d; e=f";

    s.data = text;
    s.len = sizeof(text) - 1;

    ngx_idempotency_digest_init(&d, NULL, 1, NGX_IDEMPOTENCY_DIGEST_BODY);
    ngx_idempotency_digest_type(&d, &s, "charset");
    ngx_idempotency_digest_final(&d, whole);

    for (n = 0; n < sizeof(text) - 1; n++) {
        s.len = n;

        ngx_idempotency_digest_init(&d, NULL, 1, NGX_IDEMPOTENCY_DIGEST_BODY);
        ngx_idempotency_digest_type(&d, &s, "charset");
        ngx_idempotency_digest_bytes(&d, text + n, sizeof(text) - 1 - n);
        ngx_idempotency_digest_final(&d, cut);

        check(ngx_memcmp(whole, cut, sizeof(whole)) != 0);
    }

    /* the same with an absent type, whose string has no data at all */

    ngx_str_null(&s);

    ngx_idempotency_digest_init(&d, NULL, 1, NGX_IDEMPOTENCY_DIGEST_BODY);
    ngx_idempotency_digest_type(&d, &s, "charset");
    ngx_idempotency_digest_final(&d, cut);

    check(is(cut, types[0].digest));
}


/* and any other counts */

unit_case("a parameter may not count")
{
    u_char                     out[3][NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_str_t                  s;
    ngx_uint_t                 i, n;
    ngx_idempotency_digest_t   d;

    static struct {
        char        *parameter;
        char        *text[3];
        ngx_uint_t   same;      /* as the first one: the second */
    }  rows[] = {
        { "boundary", { "a/b; boundary=x", "A/b;Boundary=\"y\";charset=z",
                        "a/b; boundary=x; c=d" }, 1 },
        { "charset", { "a/b", "a/b; Charset=x", "a/b; boundary=x" }, 1 },
        { NULL, { "a/b", "a/b; charset=UTF-8", "a/b; charset=utf-16" }, 1 },
        { NULL, { "a/b; boundary=x", "a/b; boundary=y", "a/b" }, 0 },
    };

    for (i = 0; i < count(rows); i++) {
        for (n = 0; n < 3; n++) {
            s.data = (u_char *) rows[i].text[n];
            s.len = ngx_strlen(s.data);

            ngx_idempotency_digest_init(&d, NULL, 1,
                                        NGX_IDEMPOTENCY_DIGEST_BODY);
            ngx_idempotency_digest_type(&d, &s, rows[i].parameter);
            ngx_idempotency_digest_final(&d, out[n]);
        }

        check_equal(ngx_memcmp(out[0], out[1], sizeof(out[0])) == 0,
                    rows[i].same);
        check(ngx_memcmp(out[0], out[2], sizeof(out[0])) != 0);
    }
}
