
/*
 * A record on its way to a store and back, where somebody else has changed what
 * he likes of it: it is what it was, or no answer.
 */


#include "fuzz.h"


#define LEN  40


static ngx_idempotency_secret_t  secrets[4];
static ngx_uint_t                ready;


static void
begin(void)
{
    u_char      text[256];
    ngx_uint_t  i, line;

    static const char  *keys[] = {
        "# none",
        "digest 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "seal 1123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "digest 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n"
        "seal 1123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
    };

    for (i = 0; i < 4; i++) {
        (void) ngx_cpystrn(text, (u_char *) keys[i], sizeof(text));

        hold(ngx_idempotency_secret_parse(&secrets[i], text,
                                          ngx_strlen(keys[i]), &line)
             == NULL);
    }

    ready = 1;
}


static ngx_uint_t
same_claim(ngx_idempotency_item_t *item, ngx_idempotency_item_t *was)
{
    return ngx_memcmp(item->token, was->token, 32) == 0
           && ngx_memcmp(item->fingerprint, was->fingerprint, 32) == 0
           && ngx_memcmp(&item->parts, &was->parts, sizeof(was->parts)) == 0
           && item->instance == was->instance
           && item->sequence == was->sequence
           && item->window == was->window;
}


int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t                           len;
    u_char                           sent[LEN + NGX_IDEMPOTENCY_SEAL_LEN];
    u_char                          *response;
    ngx_uint_t                       i, times;
    ngx_idempotency_item_t           item, was;
    const ngx_idempotency_secret_t  *secret;

    static u_char  zero[LEN];

    if (!ready) {
        begin();
    }

    if (size < 1) {
        return 0;
    }

    secret = &secrets[data[0] & 3];
    times = (data[0] >> 2) & 1;

    ngx_memzero(&item, sizeof(ngx_idempotency_item_t));

    item.what = NGX_IDEMPOTENCY_ITEM_PUT;
    item.token[0] = 1;
    item.fingerprint[0] = 2;
    item.parts.identity[0] = 3;
    item.instance = 4;
    item.sequence = 5;
    item.window = 86400000;
    item.recorded = 1700000000123;
    item.ends = 1700086400123;
    item.outcome = (data[0] >> 3) & 3;
    item.status = item.outcome ? 201 : 0;

    if (item.outcome == NGX_IDEMPOTENCY_DONE) {
        ngx_memzero(sent, sizeof(sent));
        item.response.data = sent;
        item.response.len = LEN;
    }

    ngx_idempotency_seal(secret, &item, 1, times);

    was = item;

    for (i = 1; i + 10 <= size; i += 10) {
        fuzz_change(&item, data + i);
    }

    /* in memory of its own size, so that a read beyond it is seen */

    len = item.response.len;
    response = malloc(len ? len : 1);
    ngx_memcpy(response, sent, len);

    item.response.data = response;
    item.what = NGX_IDEMPOTENCY_ITEM_ASK;
    item.result = NGX_IDEMPOTENCY_BOUND;

    ngx_idempotency_unseal(secret, &item, 1, times);

    hold(item.response.len <= len);

    if (item.result == NGX_IDEMPOTENCY_BOUND) {
        fuzz_sound(&item);

    } else {
        hold(item.result == NGX_IDEMPOTENCY_UNAVAILABLE
             && item.seal == NGX_IDEMPOTENCY_SEAL_FORGED);
    }

    /* what is answered with a response, by who has a key */

    if (secret != &secrets[0] && item.result == NGX_IDEMPOTENCY_BOUND
        && item.seal == NGX_IDEMPOTENCY_SEAL_OPEN && item.response.len)
    {
        hold(was.outcome == NGX_IDEMPOTENCY_DONE
             && item.outcome == was.outcome
             && item.response.len == LEN
             && ngx_memcmp(item.response.data, zero, LEN) == 0
             && same_claim(&item, &was) && item.status == was.status
             && (!times || (item.recorded == was.recorded
                            && item.ends == was.ends)));
    }

    /* what says that it is being executed, or may have been */

    if (secret->digest_key && item.result == NGX_IDEMPOTENCY_BOUND
        && (item.outcome == NGX_IDEMPOTENCY_PENDING
            || item.outcome == NGX_IDEMPOTENCY_IN_DOUBT))
    {
        hold(same_claim(&item, &was));
    }

    free(response);

    return 0;
}
