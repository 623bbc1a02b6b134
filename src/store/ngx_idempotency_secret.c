
/*
 * The keys of idempotency_secret, from the lines of its file.  No message ever
 * shows what is in that file, not even if it is no key.
 *
 * MARK  With a digest key, an HMAC over all of a record that decides.  A Redis
 *       that finds an owner dead has no key, so a record in doubt may have its
 *       claim's mark.  "Done" and "not kept" have the same, as a response may
 *       have to go for want of room.
 * SEAL  A response is sealed with a key of its own, so the nonce may be a
 *       constant, along with what it answers, so that nobody can move it inside
 *       the store.
 *
 * What each covers is in docs/internals/store.md.
 */


#include "ngx_idempotency_backing.h"
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>


typedef struct {
    u_char  *pos;
    u_char  *last;
} secret_line_t;


/* the length of the data that the seal covers besides the response */

#define SEAL_HEAD  (1 + NGX_IDEMPOTENCY_SEAL_ID_LEN + 1                      \
                    + 2 * NGX_IDEMPOTENCY_DIGEST_LEN                         \
                    + sizeof(ngx_idempotency_parts_t))
#define SEAL_DATA  (SEAL_HEAD + 7 * 8)


/* the first byte that is marked: what the mark is for */

#define SEAL_CLAIM     'C'
#define SEAL_EXECUTED  'E'
#define SEAL_DOUBT     'U'
#define SEAL_RESPONSE  'R'

/* each number is smaller: sums don't overflow, and Lua has it exactly */

#define SEAL_NUMBER  ((int64_t) 1 << 53)

#define seal_is_small(n)  ((n) > -SEAL_NUMBER && (n) < SEAL_NUMBER)


static ngx_uint_t secret_word(secret_line_t *line, ngx_str_t *word);
static char *secret_add(ngx_idempotency_secret_t *secret, ngx_str_t *word,
    ngx_uint_t digest);
static void secret_digest(ngx_idempotency_secret_t *secret,
    ngx_idempotency_seal_key_t *seal, ngx_str_t *key);
static char *secret_key(ngx_str_t *word, ngx_str_t *key);
static ngx_int_t secret_base64(ngx_str_t *word, ngx_str_t *key);
static void secret_derive(ngx_idempotency_seal_key_t *seal, ngx_str_t *key);
static void secret_expand(const ngx_idempotency_digest_key_t *key, char *info,
    u_char *out);
static void seal_forged(ngx_idempotency_item_t *item);
static ngx_uint_t seal_is_sound(ngx_idempotency_item_t *item);
static ngx_uint_t seal_is_marked(const ngx_idempotency_secret_t *secret,
    ngx_idempotency_item_t *item, ngx_uint_t times);
static u_char seal_kind(ngx_idempotency_item_t *item);
static void seal_mark(const ngx_idempotency_secret_t *secret, u_char kind,
    ngx_idempotency_item_t *item, ngx_uint_t times, u_char *mac);
static void seal_mark_response(const ngx_idempotency_secret_t *secret,
    ngx_idempotency_item_t *item, size_t len, u_char *mac);
static ngx_int_t seal_one(const ngx_idempotency_seal_key_t *key,
    ngx_idempotency_item_t *item, ngx_uint_t times);
static ngx_idempotency_seal_e seal_open(
    const ngx_idempotency_secret_t *secret, ngx_idempotency_item_t *item,
    ngx_uint_t times);
static ngx_idempotency_seal_e seal_crypt(
    const ngx_idempotency_seal_key_t *key, ngx_idempotency_item_t *item,
    size_t len, ngx_uint_t times, int encrypt);
static const ngx_idempotency_seal_key_t *seal_key(
    const ngx_idempotency_secret_t *secret, u_char *id);
static u_char *seal_claim(u_char *p, ngx_idempotency_item_t *item);
static u_char *seal_number(u_char *p, uint64_t n);
static void seal_none(ngx_idempotency_item_t *item);


char *
ngx_idempotency_secret_parse(ngx_idempotency_secret_t *secret, u_char *data,
    size_t len, ngx_uint_t *line)
{
    char           *why;
    u_char         *last, *end;
    ngx_str_t       word, more;
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

        if (!secret_word(&rest, &word)) {
            continue;
        }

        if (ngx_idempotency_is(&word, "digest")) {
            why = (!secret_word(&rest, &word) || secret_word(&rest, &more))
                  ? "not exactly one key of \"digest\""
                  : secret_add(secret, &word, 1);

        } else if (ngx_idempotency_is(&word, "seal")) {

            why = secret_word(&rest, &word) ? secret_add(secret, &word, 0)
                                            : "no key of \"seal\"";

            while (why == NULL && secret_word(&rest, &word)) {
                why = secret_add(secret, &word, 0);
            }

        } else {
            why = "neither \"digest\" nor \"seal\"";
        }
    }

    OPENSSL_cleanse(data, len);

    if (why) {
        ngx_idempotency_secret_wipe(secret);
        return why;
    }

    return NULL;
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
secret_add(ngx_idempotency_secret_t *secret, ngx_str_t *word,
    ngx_uint_t digest)
{
    char                        *why;
    u_char                       bytes[NGX_IDEMPOTENCY_SECRET_MAX + 3];
    ngx_str_t                    key;
    ngx_idempotency_seal_key_t   seal;

    if (digest && secret->digest_key) {
        return "duplicate \"digest\"";
    }

    if (!digest && secret->nseals == NGX_IDEMPOTENCY_SECRET_SEALS) {
        return "too many keys of \"seal\"";
    }

    key.data = bytes;
    why = secret_key(word, &key);

    if (why == NULL) {
        secret_derive(&seal, &key);

        if (seal_key(secret, seal.id)
            || (secret->digest_key
                && ngx_memcmp(secret->id, seal.id, NGX_IDEMPOTENCY_SEAL_ID_LEN)
                   == 0))
        {
            why = "duplicate key";

        } else if (digest) {
            secret_digest(secret, &seal, &key);

        } else {
            secret->seals[secret->nseals++] = seal;
        }

        OPENSSL_cleanse(&seal, sizeof(ngx_idempotency_seal_key_t));
    }

    OPENSSL_cleanse(bytes, sizeof(bytes));

    return why;
}


static void
secret_digest(ngx_idempotency_secret_t *secret,
    ngx_idempotency_seal_key_t *seal, ngx_str_t *key)
{
    u_char                    mac[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_idempotency_digest_t  d;

    ngx_memcpy(secret->id, seal->id, NGX_IDEMPOTENCY_SEAL_ID_LEN);

    ngx_idempotency_digest_key(&secret->digest, key->data, key->len);
    secret->digest_key = &secret->digest;

    secret_expand(&seal->key, "record", mac);
    ngx_idempotency_digest_key(&secret->mac, mac, sizeof(mac));

    ngx_idempotency_digest_init(&d, secret->digest_key,
                                NGX_IDEMPOTENCY_DIGEST_OTHER_VERSION,
                                NGX_IDEMPOTENCY_DIGEST_STAMP);
    ngx_idempotency_digest_final(&d, mac);
    ngx_memcpy(secret->stamp, mac, NGX_IDEMPOTENCY_STAMP_LEN);

    OPENSSL_cleanse(mac, sizeof(mac));
}


/* a word of hexadecimal digits only is hexadecimal: if a digit got lost, it
   must not become another key, in base64.  key->len is the key's true length,
   even if it is too long */

static char *
secret_key(ngx_str_t *word, ngx_str_t *key)
{
    size_t     i;
    ngx_int_t  rc;

    for (i = 0; i < word->len; i++) {
        if (ngx_hextoi(word->data + i, 1) == NGX_ERROR) {
            break;
        }
    }

    if (i < word->len) {
        rc = secret_base64(word, key);

    } else {
        rc = (word->len % 2) ? NGX_ERROR : NGX_OK;
        key->len = word->len / 2;

        for (i = 0; i < ngx_min(key->len, NGX_IDEMPOTENCY_SECRET_MAX); i++) {
            key->data[i] = (u_char) ngx_hextoi(word->data + 2 * i, 2);
        }
    }

    if (rc != NGX_OK) {
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


/* base64 with padding or without; nginx's decoder stops at padding, whatever
   follows */

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
 * HKDF (RFC 5869) with SHA-256.  The key of its first step makes the key's
 * name, and each response's key.
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


void
ngx_idempotency_seal(const ngx_idempotency_secret_t *secret,
    ngx_idempotency_item_t *items, ngx_uint_t n, ngx_uint_t times)
{
    u_char                  *p;
    ngx_uint_t               i;
    ngx_idempotency_item_t  *item;

    for (i = 0; i < n; i++) {
        item = &items[i];

        if (secret->digest_key
            && (item->what == NGX_IDEMPOTENCY_ITEM_ASK
                || item->what == NGX_IDEMPOTENCY_ITEM_PUT))
        {
            seal_mark(secret, seal_kind(item), item, times, item->mac);
        }

        if (item->what != NGX_IDEMPOTENCY_ITEM_PUT
            || item->response.len == 0)
        {
            continue;
        }

        p = item->response.data + item->response.len;

        if (secret->nseals == 0 && secret->digest_key) {
            seal_mark_response(secret, item, item->response.len, p);

            p[NGX_IDEMPOTENCY_MAC_LEN] = NGX_IDEMPOTENCY_SEAL_MARKED;
            item->response.len += NGX_IDEMPOTENCY_MAC_LEN + 1;

        } else if (secret->nseals == 0) {
            *p = NGX_IDEMPOTENCY_SEAL_PLAIN;
            item->response.len++;

        } else if (seal_one(&secret->seals[0], item, times) != NGX_OK) {
            item->seal = NGX_IDEMPOTENCY_SEAL_FAILED;
            seal_none(item);
        }
    }
}


void
ngx_idempotency_unseal(const ngx_idempotency_secret_t *secret,
    ngx_idempotency_item_t *items, ngx_uint_t n, ngx_uint_t times)
{
    ngx_uint_t               i;
    ngx_idempotency_item_t  *item;

    for (i = 0; i < n; i++) {
        item = &items[i];

        if ((item->what != NGX_IDEMPOTENCY_ITEM_ASK
             && item->what != NGX_IDEMPOTENCY_ITEM_FIND)
            || item->result != NGX_IDEMPOTENCY_BOUND)
        {
            continue;
        }

        if (!seal_is_sound(item)) {
            seal_forged(item);
            continue;
        }

        if (secret->digest_key && !seal_is_marked(secret, item, times)) {

            if (item->outcome == NGX_IDEMPOTENCY_PENDING
                || item->outcome == NGX_IDEMPOTENCY_IN_DOUBT)
            {
                seal_forged(item);
                continue;
            }

            /* executed, but neither status nor response can be trusted */

            item->seal = NGX_IDEMPOTENCY_SEAL_BROKEN;
            item->status = 0;
            seal_none(item);
            continue;
        }

        if (item->response.len == 0 || item->length_only) {
            continue;
        }

        item->seal = seal_open(secret, item, times);

        if (item->seal != NGX_IDEMPOTENCY_SEAL_OPEN) {
            seal_none(item);
        }
    }
}


/* an unavailable token: no request waits for it, and none takes it over */

static void
seal_forged(ngx_idempotency_item_t *item)
{
    item->seal = NGX_IDEMPOTENCY_SEAL_FORGED;
    item->result = NGX_IDEMPOTENCY_UNAVAILABLE;
}


/* whether it can be a record at all */

static ngx_uint_t
seal_is_sound(ngx_idempotency_item_t *item)
{
    if (item->fence >= SEAL_NUMBER || item->sequence >= SEAL_NUMBER
        || !seal_is_small(item->window)
        || !seal_is_small(item->recorded)
        || !seal_is_small(item->ends)
        || !seal_is_small(item->lapses)
        || item->window < 0
        || item->status > NGX_MAX_INT32_VALUE)
    {
        return 0;
    }

    switch (item->outcome) {

    case NGX_IDEMPOTENCY_PENDING:
    case NGX_IDEMPOTENCY_NOT_KEPT:
        return item->response.len == 0;

    case NGX_IDEMPOTENCY_DONE:
    case NGX_IDEMPOTENCY_IN_DOUBT:
        return 1;
    }

    return 0;
}


static ngx_uint_t
seal_is_marked(const ngx_idempotency_secret_t *secret,
    ngx_idempotency_item_t *item, ngx_uint_t times)
{
    u_char  kind, mac[NGX_IDEMPOTENCY_MAC_LEN];

    kind = seal_kind(item);

    seal_mark(secret, kind, item, times, mac);

    if (CRYPTO_memcmp(mac, item->mac, NGX_IDEMPOTENCY_MAC_LEN) == 0) {
        return 1;
    }

    /* the backing found the owner dead: the record has its claim's mark */

    if (kind != SEAL_DOUBT || item->status || item->response.len) {
        return 0;
    }

    seal_mark(secret, SEAL_CLAIM, item, times, mac);

    return CRYPTO_memcmp(mac, item->mac, NGX_IDEMPOTENCY_MAC_LEN) == 0;
}


static u_char
seal_kind(ngx_idempotency_item_t *item)
{
    if (item->what == NGX_IDEMPOTENCY_ITEM_ASK
        && item->result != NGX_IDEMPOTENCY_BOUND)
    {
        return SEAL_CLAIM;
    }

    switch (item->outcome) {

    case NGX_IDEMPOTENCY_DONE:
    case NGX_IDEMPOTENCY_NOT_KEPT:
        return SEAL_EXECUTED;

    case NGX_IDEMPOTENCY_IN_DOUBT:
        return SEAL_DOUBT;

    default:
        return SEAL_CLAIM;
    }
}


static void
seal_mark(const ngx_idempotency_secret_t *secret, u_char kind,
    ngx_idempotency_item_t *item, ngx_uint_t times, u_char *mac)
{
    u_char                     data[SEAL_DATA], *p;
    u_char                     out[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_idempotency_digest_t   d;

    p = data;

    *p++ = kind;
    *p++ = (u_char) (times ? 1 : 0);

    p = seal_claim(p, item);
    p = seal_number(p, item->window);

    if (kind != SEAL_CLAIM) {
        p = seal_number(p, item->status);
        p = seal_number(p, times ? item->recorded : 0);
        p = seal_number(p, times ? item->ends : 0);
    }

    ngx_idempotency_digest_begin(&d, &secret->mac);
    ngx_idempotency_digest_bytes(&d, data, p - data);
    ngx_idempotency_digest_final(&d, out);

    ngx_memcpy(mac, out, NGX_IDEMPOTENCY_MAC_LEN);
}


static void
seal_mark_response(const ngx_idempotency_secret_t *secret,
    ngx_idempotency_item_t *item, size_t len, u_char *mac)
{
    u_char                     kind, out[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_idempotency_digest_t   d;

    kind = SEAL_RESPONSE;

    ngx_idempotency_digest_begin(&d, &secret->mac);
    ngx_idempotency_digest_bytes(&d, &kind, 1);
    ngx_idempotency_digest_bytes(&d, item->mac, NGX_IDEMPOTENCY_MAC_LEN);
    ngx_idempotency_digest_bytes(&d, item->response.data, len);
    ngx_idempotency_digest_final(&d, out);

    ngx_memcpy(mac, out, NGX_IDEMPOTENCY_MAC_LEN);
}


static void
seal_none(ngx_idempotency_item_t *item)
{
    item->response.len = 0;

    if (item->outcome == NGX_IDEMPOTENCY_DONE) {
        item->outcome = NGX_IDEMPOTENCY_NOT_KEPT;
    }
}


/* seals in place */

static ngx_int_t
seal_one(const ngx_idempotency_seal_key_t *key, ngx_idempotency_item_t *item,
    ngx_uint_t times)
{
    size_t   len;
    u_char  *salt, *id;

    len = item->response.len;
    salt = item->response.data + len + NGX_IDEMPOTENCY_SEAL_TAG_LEN;
    id = salt + NGX_IDEMPOTENCY_SEAL_SALT_LEN;

    if (len > NGX_MAX_INT32_VALUE
        || RAND_bytes(salt, NGX_IDEMPOTENCY_SEAL_SALT_LEN) != 1)
    {
        return NGX_ERROR;
    }

    ngx_memcpy(id, key->id, NGX_IDEMPOTENCY_SEAL_ID_LEN);
    id[NGX_IDEMPOTENCY_SEAL_ID_LEN] = NGX_IDEMPOTENCY_SEAL_SEALED;

    if (seal_crypt(key, item, len, times, 1) != NGX_IDEMPOTENCY_SEAL_OPEN) {
        return NGX_ERROR;
    }

    item->response.len += NGX_IDEMPOTENCY_SEAL_LEN;

    return NGX_OK;
}


/* a plain response may be anybody's if there is a key to seal with */

static ngx_idempotency_seal_e
seal_open(const ngx_idempotency_secret_t *secret,
    ngx_idempotency_item_t *item, ngx_uint_t times)
{
    size_t                             len;
    u_char                            *data;
    u_char                             mac[NGX_IDEMPOTENCY_MAC_LEN];
    ngx_idempotency_seal_e             rc;
    const ngx_idempotency_seal_key_t  *key;

    data = item->response.data;
    len = item->response.len - 1;

    if (data[len] == NGX_IDEMPOTENCY_SEAL_PLAIN && len) {

        if (secret->nseals) {
            return NGX_IDEMPOTENCY_SEAL_GONE;
        }

        if (secret->digest_key) {
            return NGX_IDEMPOTENCY_SEAL_BROKEN;
        }

        item->response.len = len;
        return NGX_IDEMPOTENCY_SEAL_OPEN;
    }

    if (data[len] == NGX_IDEMPOTENCY_SEAL_MARKED
        && len > NGX_IDEMPOTENCY_MAC_LEN)
    {
        if (secret->nseals || secret->digest_key == NULL) {
            return NGX_IDEMPOTENCY_SEAL_GONE;
        }

        len -= NGX_IDEMPOTENCY_MAC_LEN;
        seal_mark_response(secret, item, len, mac);

        if (CRYPTO_memcmp(mac, data + len, NGX_IDEMPOTENCY_MAC_LEN) != 0) {
            return NGX_IDEMPOTENCY_SEAL_BROKEN;
        }

        item->response.len = len;
        return NGX_IDEMPOTENCY_SEAL_OPEN;
    }

    if (data[len] != NGX_IDEMPOTENCY_SEAL_SEALED
        || len + 1 <= NGX_IDEMPOTENCY_SEAL_LEN || len > NGX_MAX_INT32_VALUE)
    {
        return NGX_IDEMPOTENCY_SEAL_BROKEN;
    }

    len = item->response.len - NGX_IDEMPOTENCY_SEAL_LEN;

    key = seal_key(secret, data + len + NGX_IDEMPOTENCY_SEAL_TAG_LEN
                           + NGX_IDEMPOTENCY_SEAL_SALT_LEN);
    if (key == NULL) {
        return NGX_IDEMPOTENCY_SEAL_GONE;
    }

    rc = seal_crypt(key, item, len, times, 0);

    if (rc == NGX_IDEMPOTENCY_SEAL_OPEN) {
        item->response.len = len;
    }

    return rc;
}


/*
 * Encrypts or decrypts so much of the response, with the seal behind it.  After
 * a failure the response is undefined.  The seal does not cover the counter of
 * replays.
 */

static ngx_idempotency_seal_e
seal_crypt(const ngx_idempotency_seal_key_t *key, ngx_idempotency_item_t *item,
    size_t len, ngx_uint_t times, int encrypt)
{
    int                        n, rc;
    u_char                     along[SEAL_DATA], *p, *data, *tag, *salt;
    u_char                     own[NGX_IDEMPOTENCY_DIGEST_LEN];
    EVP_CIPHER_CTX            *ctx;
    ngx_idempotency_digest_t   d;

    static const u_char        nonce[12];

    data = item->response.data;
    tag = data + len;
    salt = tag + NGX_IDEMPOTENCY_SEAL_TAG_LEN;

    p = along;

    *p++ = NGX_IDEMPOTENCY_SEAL_SEALED;
    p = ngx_cpymem(p, key->id, NGX_IDEMPOTENCY_SEAL_ID_LEN);
    *p++ = (u_char) (times ? 1 : 0);

    p = seal_claim(p, item);
    p = seal_number(p, item->outcome);
    p = seal_number(p, item->status);
    p = seal_number(p, item->window);
    p = seal_number(p, times ? item->recorded : 0);
    p = seal_number(p, times ? item->ends : 0);

    ctx = EVP_CIPHER_CTX_new();
    if (ctx == NULL) {
        return NGX_IDEMPOTENCY_SEAL_FAILED;
    }

    /* the second step of HKDF */

    ngx_idempotency_digest_begin(&d, &key->key);
    ngx_idempotency_digest_bytes(&d, (u_char *) "seal", 4);
    ngx_idempotency_digest_bytes(&d, salt, NGX_IDEMPOTENCY_SEAL_SALT_LEN);
    ngx_idempotency_digest_bytes(&d, (u_char *) "\1", 1);
    ngx_idempotency_digest_final(&d, own);

    rc = EVP_CipherInit_ex(ctx, EVP_aes_256_gcm(), NULL, own, nonce, encrypt);

    OPENSSL_cleanse(own, sizeof(own));
    OPENSSL_cleanse(&d, sizeof(ngx_idempotency_digest_t));

    if (rc != 1) {
        EVP_CIPHER_CTX_free(ctx);
        return NGX_IDEMPOTENCY_SEAL_FAILED;
    }

    rc = EVP_CipherUpdate(ctx, NULL, &n, along, (int) (p - along)) == 1
         && EVP_CipherUpdate(ctx, data, &n, data, (int) len) == 1
         && (encrypt
             || EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_SET_TAG,
                                    NGX_IDEMPOTENCY_SEAL_TAG_LEN, tag)
                == 1)
         && EVP_CipherFinal_ex(ctx, tag, &n) == 1
         && (!encrypt
             || EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_GET_TAG,
                                    NGX_IDEMPOTENCY_SEAL_TAG_LEN, tag)
                == 1);

    EVP_CIPHER_CTX_free(ctx);

    return rc ? NGX_IDEMPOTENCY_SEAL_OPEN : NGX_IDEMPOTENCY_SEAL_BROKEN;
}


static const ngx_idempotency_seal_key_t *
seal_key(const ngx_idempotency_secret_t *secret, u_char *id)
{
    ngx_uint_t  i;

    for (i = 0; i < secret->nseals; i++) {
        if (ngx_memcmp(secret->seals[i].id, id, NGX_IDEMPOTENCY_SEAL_ID_LEN)
            == 0)
        {
            return &secret->seals[i];
        }
    }

    return NULL;
}


static u_char *
seal_claim(u_char *p, ngx_idempotency_item_t *item)
{
    p = ngx_cpymem(p, item->token, NGX_IDEMPOTENCY_DIGEST_LEN);
    p = ngx_cpymem(p, item->fingerprint, NGX_IDEMPOTENCY_DIGEST_LEN);
    p = ngx_cpymem(p, &item->parts, sizeof(ngx_idempotency_parts_t));

    p = seal_number(p, item->instance);
    p = seal_number(p, item->sequence);

    return p;
}


static u_char *
seal_number(u_char *p, uint64_t n)
{
    ngx_int_t  shift;

    for (shift = 56; shift >= 0; shift -= 8) {
        *p++ = (u_char) (n >> shift);
    }

    return p;
}
