
/*
 * The keys of idempotency_secret, out of the lines of its file.  What stands
 * there is never told, not even where it is no key.
 */


#include "ngx_idempotency_secret.h"
#include <openssl/crypto.h>


typedef struct {
    u_char  *pos;
    u_char  *last;
} secret_line_t;


static char *secret_line(ngx_idempotency_secret_t *secret, ngx_str_t *first,
    secret_line_t *line);
static ngx_uint_t secret_word(secret_line_t *line, ngx_str_t *word);
static char *secret_digest(ngx_idempotency_secret_t *secret,
    secret_line_t *line);
static char *secret_seals(ngx_idempotency_secret_t *secret,
    secret_line_t *line);
static char *secret_seal(ngx_idempotency_secret_t *secret, ngx_str_t *word);
static char *secret_key(ngx_str_t *word, ngx_str_t *key);
static ngx_int_t secret_hex(ngx_str_t *word, ngx_str_t *key);
static ngx_int_t secret_base64(ngx_str_t *word, ngx_str_t *key);
static void secret_derive(ngx_idempotency_seal_key_t *seal, ngx_str_t *key);
static void secret_expand(const ngx_idempotency_digest_key_t *key, char *info,
    u_char *out);
static ngx_uint_t secret_known(ngx_idempotency_secret_t *secret, u_char *id);
static void secret_stamp(ngx_idempotency_secret_t *secret);


char *
ngx_idempotency_secret_parse(ngx_idempotency_secret_t *secret, u_char *data,
    size_t len, ngx_uint_t *line)
{
    char           *why;
    u_char         *last, *end;
    ngx_str_t       first;
    secret_line_t   rest;

    ngx_memzero(secret, sizeof(ngx_idempotency_secret_t));

    why = NULL;
    last = data + len;
    *line = 0;

    for (rest.pos = data; why == NULL && rest.pos < last; rest.pos = end + 1) {

        end = ngx_strlchr(rest.pos, last, LF);

        if (end == NULL) {
            end = last;
        }

        rest.last = end;
        (*line)++;

        if (secret_word(&rest, &first)) {
            why = secret_line(secret, &first, &rest);
        }
    }

    OPENSSL_cleanse(data, len);

    if (why) {
        ngx_idempotency_secret_wipe(secret);
        return why;
    }

    if (secret->digest_key) {
        secret_stamp(secret);
    }

    return NULL;
}


static char *
secret_line(ngx_idempotency_secret_t *secret, ngx_str_t *first,
    secret_line_t *line)
{
    if (first->len == 6 && ngx_strncmp(first->data, "digest", 6) == 0) {
        return secret_digest(secret, line);
    }

    if (first->len == 4 && ngx_strncmp(first->data, "seal", 4) == 0) {
        return secret_seals(secret, line);
    }

    return "neither \"digest\" nor \"seal\"";
}


static ngx_uint_t
secret_word(secret_line_t *line, ngx_str_t *word)
{
    u_char  *p;

    for (p = line->pos; p < line->last; p++) {
        if (*p != ' ' && *p != '\t' && *p != CR) {
            break;
        }
    }

    word->data = p;

    if (p == line->last || *p == '#') {
        return 0;
    }

    for ( /* void */ ; p < line->last; p++) {
        if (*p == ' ' || *p == '\t' || *p == CR) {
            break;
        }
    }

    word->len = p - word->data;
    line->pos = p;

    return 1;
}


static char *
secret_digest(ngx_idempotency_secret_t *secret, secret_line_t *line)
{
    char                        *why;
    u_char                       bytes[NGX_IDEMPOTENCY_SECRET_MAX + 3];
    u_char                       mac[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_str_t                    word, more, key;
    ngx_idempotency_seal_key_t   seal;

    if (secret->digest_key) {
        return "duplicate \"digest\"";
    }

    if (!secret_word(line, &word) || secret_word(line, &more)) {
        return "not exactly one key of \"digest\"";
    }

    key.data = bytes;
    why = secret_key(&word, &key);

    if (why == NULL) {
        secret_derive(&seal, &key);

        if (secret_known(secret, seal.id)) {
            why = "duplicate key";
        }

        ngx_memcpy(secret->id, seal.id, NGX_IDEMPOTENCY_SEAL_ID_LEN);

        ngx_idempotency_digest_key(&secret->digest, key.data, key.len);
        secret->digest_key = &secret->digest;

        secret_expand(&seal.key, "record", mac);
        ngx_idempotency_digest_key(&secret->mac, mac, sizeof(mac));

        OPENSSL_cleanse(mac, sizeof(mac));
        OPENSSL_cleanse(&seal, sizeof(ngx_idempotency_seal_key_t));
    }

    OPENSSL_cleanse(bytes, sizeof(bytes));

    return why;
}


static char *
secret_seals(ngx_idempotency_secret_t *secret, secret_line_t *line)
{
    char       *why;
    ngx_str_t   word;

    if (!secret_word(line, &word)) {
        return "no key of \"seal\"";
    }

    do {
        why = secret_seal(secret, &word);
    } while (why == NULL && secret_word(line, &word));

    return why;
}


static char *
secret_seal(ngx_idempotency_secret_t *secret, ngx_str_t *word)
{
    char                        *why;
    u_char                       bytes[NGX_IDEMPOTENCY_SECRET_MAX + 3];
    ngx_str_t                    key;
    ngx_idempotency_seal_key_t  *seal;

    if (secret->nseals == NGX_IDEMPOTENCY_SECRET_SEALS) {
        return "too many keys of \"seal\"";
    }

    seal = &secret->seals[secret->nseals];

    key.data = bytes;
    why = secret_key(word, &key);

    if (why == NULL) {
        secret_derive(seal, &key);

        if (secret_known(secret, seal->id)) {
            why = "duplicate key";
        }

        secret->nseals++;
    }

    OPENSSL_cleanse(bytes, sizeof(bytes));

    return why;
}


/* what is of hexadecimal digits alone is that: a digit that got lost must not
   make it another key in base64 */

static char *
secret_key(ngx_str_t *word, ngx_str_t *key)
{
    size_t  i;

    for (i = 0; i < word->len; i++) {
        if (ngx_hextoi(word->data + i, 1) == NGX_ERROR) {
            break;
        }
    }

    key->len = 0;

    if ((i == word->len ? secret_hex(word, key) : secret_base64(word, key))
        != NGX_OK)
    {
        return "a key that is neither hexadecimal nor base64";
    }

    if (key->len < NGX_IDEMPOTENCY_SECRET_MIN) {
        return "a key of less than 32 bytes";
    }

    if (key->len > NGX_IDEMPOTENCY_SECRET_MAX) {
        return "a key of more than 256 bytes";
    }

    return NULL;
}


/* the length is told even of what has no place */

static ngx_int_t
secret_hex(ngx_str_t *word, ngx_str_t *key)
{
    size_t  i;

    if (word->len % 2) {
        return NGX_ERROR;
    }

    key->len = word->len / 2;

    for (i = 0; i < key->len && i < NGX_IDEMPOTENCY_SECRET_MAX; i++) {
        key->data[i] = (u_char) ngx_hextoi(word->data + 2 * i, 2);
    }

    return NGX_OK;
}


/* with its padding or without; nginx reads up to that, whatever follows */

static ngx_int_t
secret_base64(ngx_str_t *word, ngx_str_t *key)
{
    size_t  len;

    if (word->len > ngx_base64_encoded_length(NGX_IDEMPOTENCY_SECRET_MAX)) {
        key->len = NGX_IDEMPOTENCY_SECRET_MAX + 1;
        return NGX_OK;
    }

    for (len = word->len; len && word->data[len - 1] == '='; len--) {
        /* void */
    }

    if (ngx_strlchr(word->data, word->data + len, '=')
        || (len < word->len && (word->len % 4 || word->len - len > 2)))
    {
        return NGX_ERROR;
    }

    return ngx_decode_base64(key, word);
}


/*
 * HKDF (RFC 5869) with SHA-256: the key of the first step makes a name, and for
 * each response a key of its own
 */

static void
secret_derive(ngx_idempotency_seal_key_t *seal, ngx_str_t *key)
{
    u_char                         out[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_idempotency_digest_t       d;
    ngx_idempotency_digest_key_t   salt;

    static u_char  label[] = "ngx_http_idempotency_module seal";

    ngx_idempotency_digest_key(&salt, label, sizeof(label) - 1);

    ngx_idempotency_digest_begin(&d, &salt);
    ngx_idempotency_digest_bytes(&d, key->data, key->len);
    ngx_idempotency_digest_final(&d, out);

    ngx_idempotency_digest_key(&seal->key, out, sizeof(out));

    secret_expand(&seal->key, "name", out);

    ngx_memcpy(seal->id, out, NGX_IDEMPOTENCY_SEAL_ID_LEN);

    OPENSSL_cleanse(out, sizeof(out));
    OPENSSL_cleanse(&d, sizeof(ngx_idempotency_digest_t));
}


static void
secret_expand(const ngx_idempotency_digest_key_t *key, char *info, u_char *out)
{
    ngx_idempotency_digest_t  d;

    ngx_idempotency_digest_begin(&d, key);
    ngx_idempotency_digest_bytes(&d, (u_char *) info, ngx_strlen(info));
    ngx_idempotency_digest_bytes(&d, (u_char *) "\1", 1);
    ngx_idempotency_digest_final(&d, out);

    OPENSSL_cleanse(&d, sizeof(ngx_idempotency_digest_t));
}


static ngx_uint_t
secret_known(ngx_idempotency_secret_t *secret, u_char *id)
{
    ngx_uint_t  i;

    if (secret->digest_key
        && ngx_memcmp(secret->id, id, NGX_IDEMPOTENCY_SEAL_ID_LEN) == 0)
    {
        return 1;
    }

    for (i = 0; i < secret->nseals; i++) {
        if (ngx_memcmp(secret->seals[i].id, id, NGX_IDEMPOTENCY_SEAL_ID_LEN)
            == 0)
        {
            return 1;
        }
    }

    return 0;
}


static void
secret_stamp(ngx_idempotency_secret_t *secret)
{
    u_char                     out[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_idempotency_digest_t   d;

    ngx_idempotency_digest_init(&d, secret->digest_key,
                                NGX_IDEMPOTENCY_DIGEST_OTHER_VERSION,
                                NGX_IDEMPOTENCY_DIGEST_STAMP);
    ngx_idempotency_digest_final(&d, out);

    ngx_memcpy(secret->stamp, out, NGX_IDEMPOTENCY_STAMP_LEN);
}


void
ngx_idempotency_secret_copy(ngx_idempotency_secret_t *secret,
    const ngx_idempotency_secret_t *from)
{
    *secret = *from;

    if (from->digest_key) {
        secret->digest_key = &secret->digest;
    }
}


void
ngx_idempotency_secret_wipe(void *secret)
{
    OPENSSL_cleanse(secret, sizeof(ngx_idempotency_secret_t));
}


ngx_idempotency_stamp_e
ngx_idempotency_stamp_differs(const u_char *stamp, const u_char *old)
{
    static u_char  none[NGX_IDEMPOTENCY_STAMP_LEN];

    if (ngx_memcmp(stamp, old, NGX_IDEMPOTENCY_STAMP_LEN) == 0) {
        return NGX_IDEMPOTENCY_STAMP_SAME;
    }

    if (ngx_memcmp(stamp, none, NGX_IDEMPOTENCY_STAMP_LEN) == 0) {
        return NGX_IDEMPOTENCY_STAMP_GONE;
    }

    return (ngx_memcmp(old, none, NGX_IDEMPOTENCY_STAMP_LEN) == 0)
           ? NGX_IDEMPOTENCY_STAMP_NEW : NGX_IDEMPOTENCY_STAMP_ANOTHER;
}
