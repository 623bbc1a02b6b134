
/*
 * Responses that are sealed: by the form that the documents tell, taken apart
 * here with OpenSSL's own HKDF; what was changed does not open.
 */


#include "unit.h"
#include "store/ngx_idempotency_backing.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <openssl/rand.h>


#define PENDING   NGX_IDEMPOTENCY_PENDING
#define DONE      NGX_IDEMPOTENCY_DONE
#define NOT_KEPT  NGX_IDEMPOTENCY_NOT_KEPT
#define IN_DOUBT  NGX_IDEMPOTENCY_IN_DOUBT
#define OPEN      NGX_IDEMPOTENCY_SEAL_OPEN
#define BROKEN    NGX_IDEMPOTENCY_SEAL_BROKEN
#define FORGED    NGX_IDEMPOTENCY_SEAL_FORGED

#define A  "a key to seal by, and of 32 bytes"
#define B  "another one, which is longer by some"

#define ALONG  (1 + 8 + 1 + 32 + 32 + 28 + 7 * 8)


static ngx_idempotency_secret_t  none, first, second, both, keyed, sealing;
static ngx_uint_t                no_random;


int __real_RAND_bytes(unsigned char *buf, int num);
int __wrap_RAND_bytes(unsigned char *buf, int num);


int
__wrap_RAND_bytes(unsigned char *buf, int num)
{
    return no_random ? 0 : __real_RAND_bytes(buf, num);
}


static void
parse(ngx_idempotency_secret_t *secret, char *one, char *two)
{
    u_char       text[512], *p;
    ngx_uint_t   line;

    p = ngx_sprintf(text, "seal ");
    p = ngx_hex_dump(p, (u_char *) one, strlen(one));

    if (two) {
        *p++ = ' ';
        p = ngx_hex_dump(p, (u_char *) two, strlen(two));
    }

    check(ngx_idempotency_secret_parse(secret, text, p - text, &line) == NULL);
}


static void
parse_digest(ngx_idempotency_secret_t *secret, char *key, char *seal)
{
    u_char       text[512], *p;
    ngx_uint_t   line;

    p = ngx_sprintf(text, "digest ");
    p = ngx_hex_dump(p, (u_char *) key, strlen(key));

    if (seal) {
        p = ngx_sprintf(p, "\nseal ");
        p = ngx_hex_dump(p, (u_char *) seal, strlen(seal));
    }

    check(ngx_idempotency_secret_parse(secret, text, p - text, &line) == NULL);
}


void
unit_setup(void)
{
    parse_digest(&keyed, A, NULL);
    parse_digest(&sealing, A, B);
    ngx_memzero(&none, sizeof(none));
    parse(&first, A, NULL);
    parse(&second, B, NULL);
    parse(&both, B, A);
}


/* all that is told along with a response, each byte of it another one */

static void
item(ngx_idempotency_item_t *it, size_t len)
{
    size_t  i;

    ngx_memzero(it, sizeof(ngx_idempotency_item_t));

    it->what = NGX_IDEMPOTENCY_ITEM_PUT;

    for (i = 0; i < NGX_IDEMPOTENCY_DIGEST_LEN; i++) {
        it->token[i] = (u_char) (i + 1);
        it->fingerprint[i] = (u_char) (i + 101);
    }

    for (i = 0; i < sizeof(ngx_idempotency_parts_t); i++) {
        ((u_char *) &it->parts)[i] = (u_char) (i + 201);
    }

    it->instance = 0x1122334455667788;
    it->sequence = 0x0019aabbccddeeff;
    it->outcome = DONE;
    it->status = 201;
    it->window = 86400000;
    it->recorded = 1700000000123;
    it->ends = 1700086400123;
    it->replays = 3;

    it->response.data = malloc(len + NGX_IDEMPOTENCY_SEAL_LEN);
    it->response.len = len;

    for (i = 0; i < len; i++) {
        it->response.data[i] = (u_char) (i * 7 + len);
    }
}


static ngx_uint_t
is_whole(ngx_idempotency_item_t *it, size_t len)
{
    size_t  i;

    if (it->response.len != len) {
        return 0;
    }

    for (i = 0; i < len; i++) {
        if (it->response.data[i] != (u_char) (i * 7 + len)) {
            return 0;
        }
    }

    return 1;
}


/* as a store gives it back */

static ngx_idempotency_seal_e
open_with(ngx_idempotency_secret_t *secret, ngx_idempotency_item_t *it,
    ngx_uint_t times)
{
    it->what = NGX_IDEMPOTENCY_ITEM_ASK;
    it->result = NGX_IDEMPOTENCY_BOUND;

    ngx_idempotency_unseal(secret, it, 1, times);

    return it->seal;
}


unit_case("there and back, of any length, sealed and plain")
{
    size_t                  len;
    ngx_uint_t              i;
    ngx_idempotency_item_t  it;

    static size_t  lens[] = { 1, 2, 15, 16, 17, 1000, 65536, 3 * 1024 * 1024 };

    for (i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        len = lens[i];

        item(&it, len);
        ngx_idempotency_seal(&none, &it, 1, 1);
        check_equal(it.response.len, len + 1);
        check_equal(open_with(&none, &it, 1), OPEN);
        check(is_whole(&it, len));
        free(it.response.data);

        item(&it, len);
        ngx_idempotency_seal(&first, &it, 1, 1);
        check_equal(it.seal, OPEN);
        check_equal(it.response.len, len + NGX_IDEMPOTENCY_SEAL_LEN);
        check_equal(it.outcome, DONE);

        /* with the key among others, and whatever the counter says */

        it.replays += 10;
        check_equal(open_with(&both, &it, 1), OPEN);
        check_equal(it.outcome, DONE);
        check(is_whole(&it, len));
        free(it.response.data);
    }
}


/* only what is put is sealed, only what was found is opened */

unit_case("nothing but responses that are put, or found")
{
    ngx_uint_t              i;
    ngx_idempotency_item_t  it;

    for (i = NGX_IDEMPOTENCY_ITEM_ASK; i <= NGX_IDEMPOTENCY_ITEM_FORGET; i++) {
        item(&it, 20);
        it.what = i;
        it.response.len = (i == NGX_IDEMPOTENCY_ITEM_PUT) ? 0 : 20;

        ngx_idempotency_seal(&first, &it, 1, 1);
        check_equal(it.response.len, i == NGX_IDEMPOTENCY_ITEM_PUT ? 0 : 20);
        check_equal(it.outcome, DONE);

        it.response.len = (i == NGX_IDEMPOTENCY_ITEM_ASK) ? 0 : 20;
        it.outcome = (i == NGX_IDEMPOTENCY_ITEM_ASK) ? NOT_KEPT : DONE;
        it.result = (i == NGX_IDEMPOTENCY_ITEM_FIND)
                    ? NGX_IDEMPOTENCY_ABSENT : NGX_IDEMPOTENCY_BOUND;

        ngx_idempotency_unseal(&first, &it, 1, 1);
        check_equal(it.outcome,
                    (i == NGX_IDEMPOTENCY_ITEM_ASK) ? NOT_KEPT : DONE);
        check_equal(it.seal, OPEN);

        free(it.response.data);
    }

    /* its length alone */

    item(&it, 20);
    free(it.response.data);
    it.response.data = NULL;
    it.what = NGX_IDEMPOTENCY_ITEM_FIND;
    it.result = NGX_IDEMPOTENCY_BOUND;
    it.length_only = 1;
    ngx_idempotency_unseal(&first, &it, 1, 1);
    check_equal(it.response.len, 20);
    check_equal(it.outcome, DONE);

    item(&it, 20);
    ngx_idempotency_seal(&first, &it, 1, 1);
    it.what = NGX_IDEMPOTENCY_ITEM_FIND;
    it.result = NGX_IDEMPOTENCY_BOUND;
    ngx_idempotency_unseal(&first, &it, 1, 1);
    check(is_whole(&it, 20));
    free(it.response.data);
}


static u_char *
number(u_char *p, uint64_t n)
{
    int  i;

    for (i = 7; i >= 0; i--) {
        *p++ = (u_char) (n >> (8 * i));
    }

    return p;
}


static int
hkdf(char *secret, int mode, char *info, u_char *salt, size_t salt_len,
    u_char *out, size_t len)
{
    int            rc;
    EVP_PKEY_CTX  *ctx;

    static char    label[] = "ngx_http_idempotency_module seal";

    ctx = EVP_PKEY_CTX_new_id(EVP_PKEY_HKDF, NULL);

    rc = EVP_PKEY_derive_init(ctx) == 1
         && EVP_PKEY_CTX_set_hkdf_md(ctx, EVP_sha256()) == 1
         && EVP_PKEY_CTX_hkdf_mode(ctx, mode) == 1
         && EVP_PKEY_CTX_set1_hkdf_salt(ctx, (u_char *) label,
                                        (int) strlen(label)) == 1
         && EVP_PKEY_CTX_set1_hkdf_key(ctx, (u_char *) secret,
                                       (int) strlen(secret)) == 1
         && EVP_PKEY_CTX_add1_hkdf_info(ctx, (u_char *) info,
                                        (int) strlen(info)) == 1
         && (salt_len == 0
             || EVP_PKEY_CTX_add1_hkdf_info(ctx, salt, (int) salt_len) == 1)
         && EVP_PKEY_derive(ctx, out, &len) == 1;

    EVP_PKEY_CTX_free(ctx);

    return rc;
}


/* by the description in docs/guarantees.md alone */

unit_case("opened by another program")
{
    int                     n;
    u_char                  key[32], id[32], nonce[12], along[ALONG], *p,
                            *data, plain[100];
    ngx_uint_t              times;
    EVP_CIPHER_CTX         *ctx;
    ngx_idempotency_item_t  it;

    for (times = 0; times < 2; times++) {

        item(&it, 100);
        ngx_idempotency_seal(&both, &it, 1, times);

        check_equal(it.response.len, 100 + 16 + 32 + 8 + 1);
        data = it.response.data;
        check_equal(data[156], 1);

        check(hkdf(B, EVP_PKEY_HKDEF_MODE_EXTRACT_AND_EXPAND, "name", NULL, 0,
                   id, 32));
        check(ngx_memcmp(id, data + 148, 8) == 0);

        check(hkdf(B, EVP_PKEY_HKDEF_MODE_EXTRACT_AND_EXPAND, "seal",
                   data + 116, 32, key, 32));

        p = along;
        *p++ = 1;
        p = ngx_cpymem(p, id, 8);
        *p++ = (u_char) times;
        p = ngx_cpymem(p, it.token, 32);
        p = ngx_cpymem(p, it.fingerprint, 32);
        p = ngx_cpymem(p, it.parts.identity, 16);
        p = ngx_cpymem(p, it.parts.action, 4);
        p = ngx_cpymem(p, it.parts.body, 4);
        p = ngx_cpymem(p, it.parts.settings, 3);
        *p++ = it.parts.version;
        p = number(p, it.instance);
        p = number(p, it.sequence);
        p = number(p, 1);
        p = number(p, 201);
        p = number(p, 86400000);
        p = number(p, times ? it.recorded : 0);
        p = number(p, times ? it.ends : 0);
        check_equal(p - along, ALONG);

        ngx_memzero(nonce, sizeof(nonce));
        ctx = EVP_CIPHER_CTX_new();

        check_equal(EVP_DecryptInit_ex(ctx, EVP_aes_256_gcm(), NULL, key,
                                       nonce), 1);
        check_equal(EVP_DecryptUpdate(ctx, NULL, &n, along, ALONG), 1);
        check_equal(EVP_DecryptUpdate(ctx, plain, &n, data, 100), 1);
        check_equal(EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_SET_TAG, 16,
                                        data + 100), 1);
        check_equal(EVP_DecryptFinal_ex(ctx, plain, &n), 1);

        EVP_CIPHER_CTX_free(ctx);
        free(it.response.data);

        item(&it, 100);
        check(ngx_memcmp(plain, it.response.data, 100) == 0);
        free(it.response.data);
    }
}


unit_case("no two are sealed by one key")
{
    ngx_uint_t              i, k;
    ngx_idempotency_item_t  it[50];

    for (i = 0; i < 50; i++) {
        item(&it[i], 40);
    }

    ngx_idempotency_seal(&first, it, 50, 1);

    for (i = 0; i < 50; i++) {
        for (k = 0; k < i; k++) {
            check(ngx_memcmp(it[i].response.data, it[k].response.data, 40)
                  != 0);
            check(ngx_memcmp(it[i].response.data + 56,
                             it[k].response.data + 56, 32) != 0);
        }
    }

    for (i = 0; i < 50; i++) {
        free(it[i].response.data);
    }
}


static void
try_changed(ngx_idempotency_item_t *sealed, u_char *place, ngx_uint_t bit,
    ngx_idempotency_item_t *it, ngx_idempotency_seal_e wanted)
{
    u_char  kept[20 + NGX_IDEMPOTENCY_SEAL_LEN];

    ngx_memcpy(kept, sealed->response.data, sealed->response.len);

    place[bit / 8] ^= (u_char) (1 << (bit % 8));
    *it = *sealed;

    /* too large a number is none */

    if (open_with(&first, it, 1) == FORGED) {
        check_equal(it->result, NGX_IDEMPOTENCY_UNAVAILABLE);

    } else if (!check_equal(it->seal, wanted)
        || !check_equal(it->response.len, 0)
        || !check_equal(it->outcome, NOT_KEPT)
        || !check_equal(it->status, sealed->status))
    {
        unit_note("bit %u", (unsigned) bit);
    }

    ngx_memcpy(sealed->response.data, kept, sizeof(kept));
}


unit_case("a change of any bit of a response, and of its length")
{
    ngx_uint_t              bit;
    ngx_idempotency_item_t  it, sealed;
    ngx_idempotency_seal_e  wanted;

    item(&sealed, 20);
    ngx_idempotency_seal(&first, &sealed, 1, 1);

    for (bit = 0; bit < 8 * (20 + NGX_IDEMPOTENCY_SEAL_LEN); bit++) {

        wanted = BROKEN;

        if (bit >= 8 * (20 + 48) && bit < 8 * (20 + 56)) {
            wanted = NGX_IDEMPOTENCY_SEAL_GONE;     /* the key's name */
        }

        if (bit == 8 * (20 + 56)) {
            wanted = NGX_IDEMPOTENCY_SEAL_GONE;     /* plain */
        }

        try_changed(&sealed, sealed.response.data, bit, &it, wanted);
    }

    /* shorter by any number of bytes, and longer */

    for (bit = 1; bit < 20 + NGX_IDEMPOTENCY_SEAL_LEN; bit++) {
        it = sealed;
        it.response.len -= bit;
        it.response.data = malloc(it.response.len);
        ngx_memcpy(it.response.data, sealed.response.data + bit,
                   it.response.len);

        check_equal(open_with(&first, &it, 1), BROKEN);
        check_equal(it.response.len, 0);
        free(it.response.data);
    }

    check_equal(open_with(&first, &sealed, 1), OPEN);
    check(is_whole(&sealed, 20));
    free(sealed.response.data);
}


unit_case("a change of any bit of what goes with it")
{
    u_char                  *place;
    ngx_uint_t               i, bit;
    ngx_idempotency_item_t   it, sealed, kept;

    struct {
        void                *place;
        size_t               len;
    } all[] = {
        { &sealed.token, 32 },
        { &sealed.fingerprint, 32 },
        { &sealed.parts, sizeof(ngx_idempotency_parts_t) },
        { &sealed.instance, 8 },
        { &sealed.sequence, 8 },
        { &sealed.status, 8 },
        { &sealed.window, 8 },
        { &sealed.recorded, 8 },
        { &sealed.ends, 8 }
    };

    item(&sealed, 20);
    ngx_idempotency_seal(&first, &sealed, 1, 1);
    kept = sealed;

    for (i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        place = all[i].place;

        for (bit = 0; bit < 8 * all[i].len; bit++) {
            try_changed(&sealed, place, bit, &it, BROKEN);
            sealed = kept;
        }
    }

    /* in doubt instead of done, and whether times count */

    sealed.outcome = IN_DOUBT;
    check_equal(open_with(&first, &sealed, 1), BROKEN);
    check_equal(sealed.outcome, IN_DOUBT);
    check_equal(sealed.response.len, 0);

    free(sealed.response.data);

    item(&sealed, 20);
    ngx_idempotency_seal(&first, &sealed, 1, 1);
    check_equal(open_with(&first, &sealed, 0), BROKEN);
    free(sealed.response.data);

    /* where they don't, they may be others */

    item(&sealed, 20);
    ngx_idempotency_seal(&first, &sealed, 1, 0);
    sealed.recorded++;
    sealed.ends--;
    check_equal(open_with(&first, &sealed, 0), OPEN);
    check(is_whole(&sealed, 20));
    free(sealed.response.data);
}


unit_case("keys that come and go, and none")
{
    ngx_uint_t              i;
    ngx_idempotency_item_t  it;

    static struct {
        ngx_idempotency_secret_t  *by;
        ngx_idempotency_secret_t  *with;
        ngx_idempotency_seal_e     seal;
    } tried[] = {
        { &first, &second, NGX_IDEMPOTENCY_SEAL_GONE },
        { &first, &none, NGX_IDEMPOTENCY_SEAL_GONE },
        { &none, &first, NGX_IDEMPOTENCY_SEAL_GONE },
        { &both, &first, NGX_IDEMPOTENCY_SEAL_GONE },
        { &both, &second, OPEN },
        { &first, &both, OPEN },
        { &second, &both, OPEN }
    };

    for (i = 0; i < sizeof(tried) / sizeof(tried[0]); i++) {
        item(&it, 20);

        ngx_idempotency_seal(tried[i].by, &it, 1, 1);
        check_equal(open_with(tried[i].with, &it, 1), tried[i].seal);

        check(is_whole(&it, tried[i].seal == OPEN ? 20 : 0));
        check_equal(it.outcome, tried[i].seal == OPEN ? DONE : NOT_KEPT);
        check_equal(it.status, 201);

        free(it.response.data);
    }

    /* another key of the same name is not it */

    ngx_memcpy(second.seals[0].id, first.seals[0].id,
               NGX_IDEMPOTENCY_SEAL_ID_LEN);

    item(&it, 20);
    ngx_idempotency_seal(&first, &it, 1, 1);
    check_equal(open_with(&second, &it, 1), BROKEN);
    free(it.response.data);
}


/* what can't be sealed does not leave */

unit_case("no random bytes")
{
    ngx_idempotency_item_t  it;

    no_random = 1;

    item(&it, 20);
    ngx_idempotency_seal(&first, &it, 1, 1);
    check_equal(it.seal, NGX_IDEMPOTENCY_SEAL_FAILED);
    check_equal(it.response.len, 0);
    check_equal(it.outcome, NOT_KEPT);
    free(it.response.data);

    item(&it, 20);
    it.outcome = IN_DOUBT;
    ngx_idempotency_seal(&first, &it, 1, 1);
    check_equal(it.response.len, 0);
    check_equal(it.outcome, IN_DOUBT);
    free(it.response.data);

    no_random = 0;
}


/* a record and its response, by the description in docs/guarantees.md alone */

static void
marked(ngx_idempotency_item_t *it, u_char kind, ngx_uint_t times, u_char *mac)
{
    u_char         key[32], data[256], *p;
    unsigned int   len;

    check(hkdf(A, EVP_PKEY_HKDEF_MODE_EXTRACT_AND_EXPAND, "record", NULL, 0,
               key, 32));

    p = data;
    *p++ = kind;
    *p++ = (u_char) times;
    p = ngx_cpymem(p, it->token, 32);
    p = ngx_cpymem(p, it->fingerprint, 32);
    p = ngx_cpymem(p, it->parts.identity, 16);
    p = ngx_cpymem(p, it->parts.action, 4);
    p = ngx_cpymem(p, it->parts.body, 4);
    p = ngx_cpymem(p, it->parts.settings, 3);
    *p++ = it->parts.version;
    p = number(p, it->instance);
    p = number(p, it->sequence);
    p = number(p, it->window);

    if (kind != 'C') {
        p = number(p, it->status);
        p = number(p, times ? it->recorded : 0);
        p = number(p, times ? it->ends : 0);
    }

    check(HMAC(EVP_sha256(), key, 32, data, p - data, mac, &len) != NULL);
}


unit_case("marks, as another program makes them")
{
    u_char                  mac[32], response[32], key[32];
    u_char                  text[1 + 16 + 20];
    ngx_uint_t              times, i;
    unsigned int            len;
    ngx_idempotency_item_t  it;

    static struct {
        ngx_idempotency_item_e     what;
        ngx_idempotency_outcome_e  outcome;
        u_char                     kind;
    } tried[] = {
        { NGX_IDEMPOTENCY_ITEM_ASK, PENDING, 'C' },
        { NGX_IDEMPOTENCY_ITEM_PUT, PENDING, 'C' },
        { NGX_IDEMPOTENCY_ITEM_PUT, DONE, 'E' },
        { NGX_IDEMPOTENCY_ITEM_PUT, NOT_KEPT, 'E' },
        { NGX_IDEMPOTENCY_ITEM_PUT, IN_DOUBT, 'U' }
    };

    for (times = 0; times < 2; times++) {
        for (i = 0; i < sizeof(tried) / sizeof(tried[0]); i++) {
            item(&it, 20);

            it.what = tried[i].what;
            it.outcome = tried[i].outcome;
            it.response.len = (tried[i].outcome == DONE) ? 20 : 0;

            marked(&it, tried[i].kind, times, mac);

            ngx_idempotency_seal(&keyed, &it, 1, times);
            check(ngx_memcmp(it.mac, mac, 16) == 0);

            check_equal(open_with(&keyed, &it, times), OPEN);
            check_equal(it.result, NGX_IDEMPOTENCY_BOUND);
            check_equal(it.outcome, tried[i].outcome);
            check(it.response.len == 0 || is_whole(&it, 20));

            free(it.response.data);
        }
    }

    /* a response's own, behind it */

    item(&it, 20);
    marked(&it, 'E', 1, mac);

    text[0] = 'R';
    ngx_memcpy(text + 1, mac, 16);
    ngx_memcpy(text + 17, it.response.data, 20);

    check(hkdf(A, EVP_PKEY_HKDEF_MODE_EXTRACT_AND_EXPAND, "record", NULL, 0,
               key, 32));
    check(HMAC(EVP_sha256(), key, 32, text, 37, response, &len) != NULL);

    ngx_idempotency_seal(&keyed, &it, 1, 1);
    check_equal(it.response.len, 37);
    check(ngx_memcmp(it.response.data + 20, response, 16) == 0);
    check_equal(it.response.data[36], 2);
    free(it.response.data);
}


/* with a key to seal by, and without */

unit_case("a change of any bit of a record that is marked")
{
    u_char                    *place;
    ngx_uint_t                 i, k, bit, known;
    ngx_idempotency_item_t     it, made, kept;
    ngx_idempotency_secret_t  *secret;

    struct {
        void                  *place;
        size_t                 len;
    } all[] = {
        { &made.token, 32 },
        { &made.fingerprint, 32 },
        { &made.parts, sizeof(ngx_idempotency_parts_t) },
        { &made.mac, NGX_IDEMPOTENCY_MAC_LEN },
        { &made.instance, 8 },
        { &made.sequence, 8 },
        { &made.status, 8 },
        { &made.window, 8 },
        { &made.recorded, 8 },
        { &made.ends, 8 }
    };

    for (k = 0; k < 2; k++) {
        secret = k ? &keyed : &sealing;

        item(&made, 20);
        ngx_idempotency_seal(secret, &made, 1, 1);
        kept = made;

        for (i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
            place = all[i].place;

            for (bit = 0; bit < 8 * all[i].len; bit++) {
                place[bit / 8] ^= (u_char) (1 << (bit % 8));
                it = made;

                (void) open_with(secret, &it, 1);

                known = it.seal == FORGED
                        ? it.result != NGX_IDEMPOTENCY_UNAVAILABLE
                        : (it.seal != BROKEN || it.outcome != NOT_KEPT
                           || it.status || it.response.len);

                if (!check(!known)) {
                    unit_note("bit %u of %u", (unsigned) bit, (unsigned) i);
                }

                made = kept;
            }
        }

        free(made.response.data);
    }

    item(&made, 20);
    ngx_idempotency_seal(&keyed, &made, 1, 1);

    for (bit = 0; bit < 8 * 36; bit++) {
        made.response.data[bit / 8] ^= (u_char) (1 << (bit % 8));
        it = made;

        check_equal(open_with(&keyed, &it, 1), BROKEN);
        check_equal(it.outcome, NOT_KEPT);
        check_equal(it.response.len, 0);

        made.response.data[bit / 8] ^= (u_char) (1 << (bit % 8));
    }

    free(made.response.data);
}


/* which of the others a mark says, too */

unit_case("what changes without a key")
{
    ngx_uint_t              i;
    ngx_idempotency_item_t  it;

    static struct {
        ngx_idempotency_outcome_e  from;
        ngx_idempotency_outcome_e  to;
        ngx_idempotency_seal_e     seal;
    } tried[] = {
        { PENDING, IN_DOUBT, OPEN },
        { PENDING, NOT_KEPT, BROKEN },
        { IN_DOUBT, PENDING, FORGED },
        { IN_DOUBT, NOT_KEPT, BROKEN },
        { DONE, NOT_KEPT, OPEN },
        { DONE, IN_DOUBT, FORGED },
        { DONE, PENDING, FORGED },
        /* it has no response that could be sent */
        { NOT_KEPT, DONE, OPEN }
    };

    for (i = 0; i < sizeof(tried) / sizeof(tried[0]); i++) {
        item(&it, 20);
        it.status = (tried[i].from == PENDING) ? 0 : 201;
        it.outcome = tried[i].from;
        it.response.len = 0;

        ngx_idempotency_seal(&keyed, &it, 1, 1);

        it.outcome = tried[i].to;

        check_equal(open_with(&keyed, &it, 1), tried[i].seal);
        free(it.response.data);
    }

    /* a response that nobody has marked */

    item(&it, 20);
    ngx_idempotency_seal(&keyed, &it, 1, 1);
    it.response.len = 21;
    it.response.data[20] = 0;
    check_equal(open_with(&keyed, &it, 1), BROKEN);
    free(it.response.data);
}


/* whether there is a key or not */

bare_case("what is no record")
{
    ngx_uint_t              i, k;
    ngx_idempotency_item_t  it;

    for (i = 0; i < 10; i++) {
        for (k = 0; k < 2; k++) {
            unit_setup();
            item(&it, 20);

            switch (i) {

            case 0: it.fence = (uint64_t) 1 << 53; break;
            case 1: it.window = -1; break;
            case 2: it.window = (int64_t) 1 << 62; break;
            case 3: it.recorded = -INT64_MAX; break;
            case 4: it.ends = INT64_MAX; break;
            case 5: it.status = (ngx_uint_t) 1 << 31; break;
            case 6: it.outcome = PENDING; break;
            case 7: it.outcome = NOT_KEPT; break;
            case 8: it.outcome = IN_DOUBT + 1; break;
            case 9: it.sequence = (uint64_t) 1 << 53; break;
            }

            ngx_idempotency_seal(k ? &keyed : &none, &it, 1, 1);

            check_equal(open_with(k ? &keyed : &none, &it, 1), FORGED);
            check_equal(it.result, NGX_IDEMPOTENCY_UNAVAILABLE);

            free(it.response.data);
        }
    }
}
