
/*
 * Responses that leave this machine's memory.  Each is sealed by a key of its
 * own, which HKDF makes of the secret one and of 32 random bytes: as no key
 * seals twice, the nonce may be a constant, and however many responses there
 * are, two of them have one key with a probability that is nothing.
 *
 * What the response is an answer to is sealed along with it, so that who can
 * write to the store can't put it elsewhere: the same bytes with another token,
 * fingerprint, identity, outcome, status, window or claim don't open.
 */


#include "ngx_idempotency_seal.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>


/* bytes of what is sealed along: all of fixed length */

#define SEAL_HEAD  (1 + NGX_IDEMPOTENCY_SEAL_ID_LEN + 1                      \
                    + 2 * NGX_IDEMPOTENCY_DIGEST_LEN                         \
                    + sizeof(ngx_idempotency_parts_t))
#define SEAL_DATA  (SEAL_HEAD + 7 * 8)


static ngx_int_t seal_one(const ngx_idempotency_seal_key_t *key,
    ngx_idempotency_item_t *item, ngx_uint_t times);
static ngx_idempotency_seal_e seal_open(
    const ngx_idempotency_secret_t *secret, ngx_idempotency_item_t *item,
    ngx_uint_t times);
static const ngx_idempotency_seal_key_t *seal_key(
    const ngx_idempotency_secret_t *secret, u_char *id);
static EVP_CIPHER_CTX *seal_cipher(const ngx_idempotency_seal_key_t *key,
    u_char *salt, int encrypt);
static ngx_int_t seal_along(EVP_CIPHER_CTX *ctx, u_char *id,
    ngx_idempotency_item_t *item, ngx_uint_t times);
static u_char *seal_number(u_char *p, uint64_t n);
static void seal_none(ngx_idempotency_item_t *item);


void
ngx_idempotency_seal(const ngx_idempotency_secret_t *secret,
    ngx_idempotency_item_t *items, ngx_uint_t n, ngx_uint_t times)
{
    ngx_uint_t               i;
    ngx_idempotency_item_t  *item;

    for (i = 0; i < n; i++) {
        item = &items[i];

        if (item->what != NGX_IDEMPOTENCY_ITEM_PUT
            || item->response.len == 0)
        {
            continue;
        }

        if (secret->nseals == 0) {
            item->response.data[item->response.len++] =
                                                   NGX_IDEMPOTENCY_SEAL_PLAIN;

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
            || item->result != NGX_IDEMPOTENCY_BOUND
            || item->response.len == 0
            || item->brief)
        {
            continue;
        }

        item->seal = seal_open(secret, item, times);

        if (item->seal != NGX_IDEMPOTENCY_SEAL_OPEN) {
            seal_none(item);
        }
    }
}


static void
seal_none(ngx_idempotency_item_t *item)
{
    item->response.len = 0;

    if (item->outcome == NGX_IDEMPOTENCY_DONE) {
        item->outcome = NGX_IDEMPOTENCY_NOT_KEPT;
    }
}


/* in its place; what is left behind after a failure may be anything */

static ngx_int_t
seal_one(const ngx_idempotency_seal_key_t *key, ngx_idempotency_item_t *item,
    ngx_uint_t times)
{
    int              n;
    u_char          *data, *tag, *salt, *id;
    ngx_int_t        rc;
    EVP_CIPHER_CTX  *ctx;

    data = item->response.data;
    tag = data + item->response.len;
    salt = tag + NGX_IDEMPOTENCY_SEAL_TAG_LEN;
    id = salt + NGX_IDEMPOTENCY_SEAL_SALT_LEN;

    if (item->response.len > NGX_MAX_INT32_VALUE
        || RAND_bytes(salt, NGX_IDEMPOTENCY_SEAL_SALT_LEN) != 1)
    {
        return NGX_ERROR;
    }

    ngx_memcpy(id, key->id, NGX_IDEMPOTENCY_SEAL_ID_LEN);
    id[NGX_IDEMPOTENCY_SEAL_ID_LEN] = NGX_IDEMPOTENCY_SEAL_SEALED;

    ctx = seal_cipher(key, salt, 1);
    if (ctx == NULL) {
        return NGX_ERROR;
    }

    rc = NGX_ERROR;

    if (seal_along(ctx, id, item, times) == NGX_OK
        && EVP_EncryptUpdate(ctx, data, &n, data, (int) item->response.len)
           == 1
        && EVP_EncryptFinal_ex(ctx, tag, &n) == 1
        && EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_GET_TAG,
                               NGX_IDEMPOTENCY_SEAL_TAG_LEN, tag)
           == 1)
    {
        item->response.len += NGX_IDEMPOTENCY_SEAL_LEN;
        rc = NGX_OK;
    }

    EVP_CIPHER_CTX_free(ctx);

    return rc;
}


/* with a key to seal by, what is plain may be anybody's */

static ngx_idempotency_seal_e
seal_open(const ngx_idempotency_secret_t *secret,
    ngx_idempotency_item_t *item, ngx_uint_t times)
{
    int                                n;
    size_t                             len;
    u_char                            *data, *tag, *salt, *id;
    EVP_CIPHER_CTX                    *ctx;
    ngx_idempotency_seal_e             rc;
    const ngx_idempotency_seal_key_t  *key;

    data = item->response.data;
    len = item->response.len - 1;

    if (data[len] == NGX_IDEMPOTENCY_SEAL_PLAIN && len) {

        if (secret->nseals) {
            return NGX_IDEMPOTENCY_SEAL_GONE;
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

    tag = data + len;
    salt = tag + NGX_IDEMPOTENCY_SEAL_TAG_LEN;
    id = salt + NGX_IDEMPOTENCY_SEAL_SALT_LEN;

    key = seal_key(secret, id);
    if (key == NULL) {
        return NGX_IDEMPOTENCY_SEAL_GONE;
    }

    ctx = seal_cipher(key, salt, 0);
    if (ctx == NULL) {
        return NGX_IDEMPOTENCY_SEAL_FAILED;
    }

    rc = NGX_IDEMPOTENCY_SEAL_BROKEN;

    if (seal_along(ctx, id, item, times) == NGX_OK
        && EVP_DecryptUpdate(ctx, data, &n, data, (int) len) == 1
        && EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_SET_TAG,
                               NGX_IDEMPOTENCY_SEAL_TAG_LEN, tag)
           == 1
        && EVP_DecryptFinal_ex(ctx, tag, &n) == 1)
    {
        item->response.len = len;
        rc = NGX_IDEMPOTENCY_SEAL_OPEN;
    }

    EVP_CIPHER_CTX_free(ctx);

    return rc;
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


static EVP_CIPHER_CTX *
seal_cipher(const ngx_idempotency_seal_key_t *key, u_char *salt, int encrypt)
{
    int                        rc;
    u_char                     own[NGX_IDEMPOTENCY_DIGEST_LEN];
    EVP_CIPHER_CTX            *ctx;
    ngx_idempotency_digest_t   d;

    static const u_char        nonce[12];

    ctx = EVP_CIPHER_CTX_new();
    if (ctx == NULL) {
        return NULL;
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
        return NULL;
    }

    return ctx;
}


/* the counter of replays is none of it: it may be anything */

static ngx_int_t
seal_along(EVP_CIPHER_CTX *ctx, u_char *id, ngx_idempotency_item_t *item,
    ngx_uint_t times)
{
    int      n;
    u_char   data[SEAL_DATA], *p;

    p = data;

    *p++ = NGX_IDEMPOTENCY_SEAL_SEALED;
    p = ngx_cpymem(p, id, NGX_IDEMPOTENCY_SEAL_ID_LEN);
    *p++ = (u_char) (times ? 1 : 0);

    p = ngx_cpymem(p, item->token, NGX_IDEMPOTENCY_DIGEST_LEN);
    p = ngx_cpymem(p, item->fingerprint, NGX_IDEMPOTENCY_DIGEST_LEN);
    p = ngx_cpymem(p, &item->parts, sizeof(ngx_idempotency_parts_t));

    p = seal_number(p, item->instance);
    p = seal_number(p, item->fence);
    p = seal_number(p, item->outcome);
    p = seal_number(p, item->status);
    p = seal_number(p, item->window);
    p = seal_number(p, times ? item->recorded : 0);
    p = seal_number(p, times ? item->ends : 0);

    return (EVP_CipherUpdate(ctx, NULL, &n, data, (int) (p - data)) == 1)
           ? NGX_OK : NGX_ERROR;
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
