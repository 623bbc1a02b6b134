
/* The file of idempotency_secret: what is taken, what is not, and why. */


#include "unit.h"
#include "store/ngx_idempotency_secret.h"


#define HEX1  "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
#define HEX2  "F0F1F2F3F4F5F6F7F8F9FAFBFCFDFEFF00112233445566778899aabbccddeeff"
#define B641  "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
#define B642  "8PHy8/T19vf4+fr7/P3+/wARIjNEVWZ3iJmqu8zd7v8"
#define HEX16 "00112233445566778899aabbccddeeff"


static ngx_idempotency_secret_t  secret;
static ngx_uint_t                line;


/* from memory of its own, which is to be wiped */

static char *
parse(char *text)
{
    char    *why;
    size_t   i, len;
    u_char  *data;

    len = strlen(text);

    data = ngx_alloc(ngx_max(len, 1), unit_cycle.log);
    ngx_memcpy(data, text, len);

    why = ngx_idempotency_secret_parse(&secret, data, len, &line);

    for (i = 0; i < len; i++) {
        check(data[i] == 0);
    }

    ngx_free(data);

    return why ? why : "taken";
}


static ngx_uint_t
keys(char *text, ngx_uint_t digests, ngx_uint_t seals)
{
    return check(strcmp(parse(text), "taken") == 0)
           && check_equal(secret.digest_key != NULL, digests)
           && check_equal(secret.nseals, seals);
}


unit_case("lines that are taken")
{
    keys("", 0, 0);
    keys("\n\n", 0, 0);
    keys("# digest\n  # seal\n\t\r\n", 0, 0);
    keys("digest " HEX1, 1, 0);
    keys("digest " HEX1 "\n", 1, 0);
    keys("\tdigest\t" HEX1 "\t\r\n", 1, 0);
    keys("digest " HEX1 " # of the store\n", 1, 0);
    keys("seal " HEX1 "\n", 0, 1);
    keys("seal " HEX1 " " HEX2 "\n", 0, 2);
    keys("seal " HEX1 "\nseal " HEX2 "\n", 0, 2);
    keys("seal " HEX1 "\r\n\r\ndigest " HEX2 "\r\n", 1, 1);
    keys("digest " B641 "\nseal " B642 "\n", 1, 1);
}


/* one line at a time is wrong: which, and how */

unit_case("lines that are refused, and why")
{
    ngx_uint_t  i, n;

    static struct {
        char        *text;
        char        *why;
        ngx_uint_t   line;
    } wrong[] = {
        { "x", "neither \"digest\" nor \"seal\"", 1 },
        { HEX1, "neither \"digest\" nor \"seal\"", 1 },
        { "\n#\nDigest " HEX1, "neither \"digest\" nor \"seal\"", 3 },
        { "digests " HEX1, "neither \"digest\" nor \"seal\"", 1 },
        { "digest", "not exactly one key of \"digest\"", 1 },
        { "digest # " HEX1, "not exactly one key of \"digest\"", 1 },
        { "digest " HEX1 " " HEX2, "not exactly one key of \"digest\"", 1 },
        { "digest " HEX1 "\ndigest " HEX2, "duplicate \"digest\"", 2 },
        { "digest " HEX1 "\ndigest " HEX1, "duplicate \"digest\"", 2 },
        { "seal", "no key of \"seal\"", 1 },
        { "\nseal # one\n", "no key of \"seal\"", 2 },
        { "seal " HEX1 "\nseal " HEX2 "\nseal " HEX1, "duplicate key", 3 },
        { "seal " HEX1 " " HEX1, "duplicate key", 1 },
        { "seal " HEX1 " " B641, "duplicate key", 1 },
        { "seal " HEX1 "\ndigest " HEX1, "duplicate key", 2 },
        { "digest " HEX2 "\nseal " B642, "duplicate key", 2 },
        { "digest " HEX16, "a key of less than 32 bytes", 1 },
        { "seal " HEX1 " " HEX16, "a key of less than 32 bytes", 1 },
        { "seal AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHg==",
          "a key of less than 32 bytes", 1 },
        { "seal x", "a key that is neither hexadecimal nor base64", 1 },
        { "seal 0" HEX1, "a key that is neither hexadecimal nor base64", 1 },
        { "seal 0ab" HEX1, "a key that is neither hexadecimal nor base64", 1 },
        { "seal " B641 "=", "a key that is neither hexadecimal nor base64",
          1 },
        { "seal " B642 "==", "a key that is neither hexadecimal nor base64",
          1 },
        { "seal A" B642 "A", "a key that is neither hexadecimal nor base64",
          1 },
        { "seal AA=" B642, "a key that is neither hexadecimal nor base64",
          1 },
        { "seal -" B642, "a key that is neither hexadecimal nor base64", 1 },
        { "seal =", "a key that is neither hexadecimal nor base64", 1 }
    };

    n = sizeof(wrong) / sizeof(wrong[0]);

    for (i = 0; i < n; i++) {
        if (!check(strcmp(parse(wrong[i].text), wrong[i].why) == 0)
            || !check_equal(line, wrong[i].line))
        {
            unit_note("\"%s\"", wrong[i].text);
        }

        check_equal(secret.digest_key == NULL, 1);
        check_equal(secret.nseals, 0);
    }
}


unit_case("how long a key may be, and how many there may be")
{
    char        text[8192], *p;
    ngx_uint_t  i, n;

    for (n = 256; n <= 300; n++) {

        p = text + sprintf(text, "digest ");

        for (i = 0; i < n; i++) {
            p += sprintf(p, "%02x", (unsigned) i % 256);
        }

        check(strcmp(parse(text), n == 256 ? "taken"
                                  : "a key of more than 256 bytes") == 0);
    }

    for (n = 340; n <= 346; n++) {

        p = text + sprintf(text, "seal ");

        for (i = 0; i < n; i++) {
            *p++ = 'Q';
        }

        *p = '\0';

        check(strcmp(parse(text),
                     n % 4 == 1 && n < 345
                         ? "a key that is neither hexadecimal nor base64"
                         : n <= 342 ? "taken" : "a key of more than 256 bytes")
              == 0);
    }

    p = text;

    for (i = 0; i < 17; i++) {
        p += sprintf(p, "seal %062x%02x\n", 1, (unsigned) i);
    }

    check(strcmp(parse(text), "too many keys of \"seal\"") == 0);
    check_equal(line, 17);

    text[16 * (5 + 64 + 1)] = '\0';
    keys(text, 0, 16);
}


/* what is written in two ways is one key; what differs in a bit is another */

unit_case("a stamp tells one digest key from another")
{
    u_char         stamp[NGX_IDEMPOTENCY_STAMP_LEN];

    static u_char  none[NGX_IDEMPOTENCY_STAMP_LEN];

    keys("digest " HEX1, 1, 0);
    ngx_memcpy(stamp, secret.stamp, sizeof(stamp));

    check_equal(ngx_idempotency_stamp_differs(stamp, none),
                NGX_IDEMPOTENCY_STAMP_NEW);
    check_equal(ngx_idempotency_stamp_differs(none, stamp),
                NGX_IDEMPOTENCY_STAMP_GONE);
    check_equal(ngx_idempotency_stamp_differs(none, none),
                NGX_IDEMPOTENCY_STAMP_SAME);

    keys("seal " HEX2 "\ndigest " B641, 1, 1);
    check_equal(ngx_idempotency_stamp_differs(secret.stamp, stamp),
                NGX_IDEMPOTENCY_STAMP_SAME);

    ngx_idempotency_secret_wipe(&secret);
    check(secret.digest_key == NULL);

    keys("digest 1" HEX1 "0", 1, 0);
    check_equal(ngx_idempotency_stamp_differs(secret.stamp, stamp),
                NGX_IDEMPOTENCY_STAMP_ANOTHER);

    keys("seal " HEX1, 0, 1);
    check_equal(ngx_idempotency_stamp_differs(secret.stamp, none),
                NGX_IDEMPOTENCY_STAMP_SAME);
}
