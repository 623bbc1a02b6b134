
/* What a token is bound to, part by part: who is answered, and why not. */


#include "zone.h"
#include "workers_double.h"


#define NOBODY  0


static void
number(u_char *digest, size_t len, ngx_uint_t n)
{
    ngx_memzero(digest, len);
    digest[len - 1] = (u_char) n;
}


/* the fingerprint is action and body, as digests of requests are */

static void
request(op_t *op, ngx_uint_t action, ngx_uint_t identity,
    ngx_uint_t body, ngx_uint_t settings)
{
    op_init(op, 1, 100 * action + body, 10);

    number(op->parts.identity, NGX_IDEMPOTENCY_IDENTITY_LEN, identity);
    number(op->parts.action, NGX_IDEMPOTENCY_HINT_LEN, action);
    number(op->parts.body, NGX_IDEMPOTENCY_HINT_LEN, body);
    number(op->parts.settings, NGX_IDEMPOTENCY_SETTINGS_LEN, settings);
}


static void
bind_to(ngx_uint_t action, ngx_uint_t identity, ngx_uint_t body,
    ngx_uint_t settings)
{
    op_t  op;

    request(&op, action, identity, body, settings);

    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);

    op.outcome = NGX_IDEMPOTENCY_DONE;
    op.status = 200;
    op_respond(&op, 100, 1);

    check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_OK);
}


/* each combination of what may differ */

unit_case("a conflict tells what differs")
{
    ngx_uint_t  differs;

    bind_to(1, 1, 1, 1);

    for (differs = 0; differs < 16; differs++) {

        request(&op,
                (differs & NGX_IDEMPOTENCY_DIFFERS_ACTION) ? 2 : 1,
                (differs & NGX_IDEMPOTENCY_DIFFERS_IDENTITY) ? 2 : 1,
                (differs & NGX_IDEMPOTENCY_DIFFERS_BODY) ? 2 : 1,
                (differs & NGX_IDEMPOTENCY_DIFFERS_SETTINGS) ? 2 : 1);

        /* settings alone are no difference: they made the same of it */

        if ((differs & ~NGX_IDEMPOTENCY_DIFFERS_SETTINGS) == 0) {
            check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_BOUND);
            check_equal(op.differs, 0);
            check_equal(op.anonymous, 0);
            op_responded(&op, 100, 1);
            continue;
        }

        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CONFLICT);
        check_equal(op.differs, differs);
        check(op.response.data == NULL);
    }

    forget(1, 10);
}


/* the fingerprint decides, and each of its bytes; the hints only explain */

unit_case("all bytes count")
{
    ngx_uint_t  i;

    bind_to(1, 1, 1, 1);

    for (i = 0; i < NGX_IDEMPOTENCY_DIGEST_LEN; i++) {
        request(&op, 1, 1, 1, 1);
        op.fingerprint[i] ^= 0x80;

        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CONFLICT);
        check_equal(op.differs, NGX_IDEMPOTENCY_DIFFERS_BODY);
    }

    for (i = 0; i < NGX_IDEMPOTENCY_IDENTITY_LEN; i++) {
        request(&op, 1, 1, 1, 1);
        op.parts.identity[i] ^= 0x80;

        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CONFLICT);
        check_equal(op.differs, NGX_IDEMPOTENCY_DIFFERS_IDENTITY);
    }

    for (i = 0; i < NGX_IDEMPOTENCY_HINT_LEN; i++) {
        request(&op, 1, 2, 1, 1);
        op.parts.action[i] ^= 0x80;
        op.parts.body[i] ^= 0x80;
        op.parts.settings[i % NGX_IDEMPOTENCY_SETTINGS_LEN] ^= 0x80;

        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CONFLICT);
        check_equal(op.differs, NGX_IDEMPOTENCY_DIFFERS_IDENTITY
                                |NGX_IDEMPOTENCY_DIFFERS_SETTINGS);
    }

    forget(1, 10);
}


/* whoever asks might have left his credentials out as well */

unit_case("what nobody in particular asked for is anybody's")
{
    op_t        look;
    ngx_uint_t  who;

    /* while it is pending, and after */

    request(&op, 1, NOBODY, 1, 1);
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);

    request(&look, 1, 1, 1, 1);
    look.wait = 1;
    check_equal(op_claim(&zone, &look), NGX_IDEMPOTENCY_BOUND);
    check_equal(look.outcome, NGX_IDEMPOTENCY_PENDING);
    check_equal(look.waiting, 1);
    check_equal(look.anonymous, 1);
    op_cancel(&zone, &look);

    op.outcome = NGX_IDEMPOTENCY_DONE;
    op_respond(&op, 100, 1);
    check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_OK);

    for (who = NOBODY; who < 3; who++) {
        request(&op, 1, who, 1, 1);
        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_BOUND);
        check_equal(op.anonymous, 1);
        op_responded(&op, 100, 1);

        request(&op, 1, who, 2, 1);
        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CONFLICT);
        check_equal(op.differs, NGX_IDEMPOTENCY_DIFFERS_BODY);
    }

    forget(1, 10);

    /* the other way round it is somebody's */

    bind_to(1, 1, 1, 1);

    request(&op, 1, NOBODY, 1, 1);
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CONFLICT);
    check_equal(op.differs, NGX_IDEMPOTENCY_DIFFERS_IDENTITY);
    check_equal(op.anonymous, 0);

    forget(1, 10);
}


/* else his response would be anybody's, too */

unit_case("who takes over makes it his own")
{
    request(&op, 1, NOBODY, 1, 1);
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
    op.outcome = NGX_IDEMPOTENCY_IN_DOUBT;
    op.status = 504;
    check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_OK);

    request(&op, 1, 1, 1, 1);
    op.retry = 1;
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);

    request(&op, 1, 2, 1, 1);
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CONFLICT);

    request(&op, 1, NOBODY, 1, 1);
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CONFLICT);

    request(&op, 1, 1, 1, 1);
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_BOUND);

    forget(1, 10);
}


unit_case("a token is found with what it is bound to")
{
    op_t  look;

    bind_to(1, 2, 3, 4);

    request(&op, 1, 2, 3, 4);
    check_equal(op_finds(&look, 1, 0, 10), NGX_IDEMPOTENCY_BOUND);
    check_equal(look.anonymous, 0);
    check(ngx_memcmp(&look.parts, &op.parts, sizeof(op.parts)) == 0);
    check(ngx_memcmp(look.fingerprint, op.fingerprint,
                     NGX_IDEMPOTENCY_DIGEST_LEN) == 0);

    forget(1, 10);

    bind_to(1, NOBODY, 3, 4);
    check_equal(op_finds(&look, 1, 0, 10), NGX_IDEMPOTENCY_BOUND);
    check_equal(look.anonymous, 1);

    forget(1, 10);
}


/* what is of two versions can't be compared, whatever it looks like */

unit_case("what is bound by another version is not compared")
{
    bind_to(1, 1, 1, 1);

    request(&op, 1, 1, 1, 1);
    op.parts.version = 1;

    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_VERSION);

    request(&op, 2, 2, 2, 2);
    op.parts.version = 1;

    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_VERSION);

    request(&op, 1, 1, 1, 1);
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_BOUND);

    forget(1, 10);

    /* fresh ones are of that of who claims */

    request(&op, 1, 1, 1, 1);
    op.parts.version = 7;
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);

    request(&op, 1, 1, 1, 1);
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_VERSION);

    forget(1, 10);
}
