
/* What is told of all tokens, some at a time, while others come and go. */


#include "zone.h"
#include "workers_double.h"


#define PAGE  4096
#define MANY  600


static ngx_uint_t                seen[4 * MANY];
static u_char                    tokens[4 * MANY][NGX_IDEMPOTENCY_DIGEST_LEN];
static ngx_idempotency_listed_t  listed[2 * MANY];
static ngx_idempotency_list_t    list;


static void
open_zone(size_t pages)
{
    ngx_uint_t  i;

    double_reset();
    zone_open(&zone, pages * PAGE, 0);
    ngx_memzero(seen, sizeof(seen));
    ngx_memzero(&list, sizeof(ngx_idempotency_list_t));

    for (i = 0; i < 4 * MANY; i++) {
        op_token(tokens[i], i);
    }
}


static void
close_zone(void)
{
    zone_check(&zone);
    zone_close(&zone);
}


static void
claim(ngx_uint_t token, ngx_msec_t now)
{
    op_t  op;

    op_init(&op, token, token + 1, now);
    op.least = 5000;
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
}


static ngx_uint_t
number(u_char *token)
{
    ngx_uint_t  i;

    for (i = 0; i < 4 * MANY; i++) {
        if (ngx_memcmp(tokens[i], token, NGX_IDEMPOTENCY_DIGEST_LEN) == 0) {
            return i;
        }
    }

    check(!"a token that nobody has");

    return 0;
}


/* true: there is more */

static ngx_uint_t
ask(ngx_idempotency_list_t *list, ngx_uint_t n, ngx_msec_t now)
{
    ngx_uint_t  i;

    list->op.now = now;
    list->listed = listed;
    list->n = n;
    list->behind = 0;

    ngx_memset(listed, 0xa5, sizeof(listed));

    check_equal(op_list(&zone, list), NGX_IDEMPOTENCY_OK);
    check(list->n <= n);

    /* no more while the lock is held once */

    check(list->n <= 64);
    check_equal(zone.shm.sh->inside, 0);

    for (i = 0; i < list->n; i++) {
        seen[number(listed[i].token)]++;
    }

    return list->cursor != 0;
}


/* whatever the number asked for, each is told once, and then all is told */

unit_case("each is listed once, in answers of any size")
{
    uint64_t    last;
    ngx_uint_t  i, n, steps;

    static const ngx_uint_t  rooms[] = { 1, 2, 7, 127, 128, 129, 2 * MANY };

    open_zone(256);

    last = ~(uint64_t) zone.shm.sh->mask;

    for (i = 0; i < MANY; i++) {
        claim(i, 100);
    }

    for (n = 0; n < sizeof(rooms) / sizeof(rooms[0]); n++) {

        ngx_memzero(seen, sizeof(seen));
        ngx_memset(&list, 0xff, sizeof(ngx_idempotency_list_t));
        list.cursor = 0;
        list.op.waiting = 0;

        /* the last one of the first bucket, and no cursor yet */

        ngx_memcpy(list.op.token, &last, sizeof(uint64_t));

        for (steps = 1; ask(&list, rooms[n], 200); steps++) {
            if (!check(steps < 2 * MANY)) {
                break;
            }
        }

        for (i = 0; i < MANY; i++) {
            check_equal(seen[i], 1);
        }

        /* no more than may be while the lock is held once */

        check(steps >= MANY / 128);
    }

    for (i = 0; i < MANY; i++) {
        forget(i, 200);
    }

    check_equal(list.cursor, 0);
    check_equal(ask(&list, 10, 200), 0);
    check_equal(list.n, 0);

    zone_check_empty(&zone);
    close_zone();
}


unit_case("what is told of each")
{
    uint64_t                  before;
    ngx_uint_t                i;
    ngx_idempotency_found_t  *found;

    open_zone(256);

    before = zone.shm.sh->fence;

    claim(1, 100);
    check_equal(op_bind(&zone, 2, 3, 150, 1000, 5000), NGX_IDEMPOTENCY_OK);
    check_equal(op_claims(&op, 2, 3, 160), NGX_IDEMPOTENCY_BOUND);

    check_equal(op_claims(&op, 3, 4, 170), NGX_IDEMPOTENCY_CLAIMED);
    op.outcome = NGX_IDEMPOTENCY_IN_DOUBT;
    op.status = 504;
    check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_OK);

    check_equal(ask(&list, 10, 400), 0);
    check_equal(list.n, 3);

    for (i = 0; i < 3; i++) {

        op_init(&op, 0, number(listed[i].token) + 1, 0);
        check(ngx_memcmp(listed[i].fingerprint, op.fingerprint,
                         NGX_IDEMPOTENCY_DIGEST_LEN) == 0);

        found = &listed[i].found;
        check(found->response.data == NULL);
        check_equal(found->anonymous, 1);

        switch (number(listed[i].token)) {

        case 1:
            check_equal(found->outcome, NGX_IDEMPOTENCY_PENDING);
            check_equal(found->age, 300);
            check_equal(found->left, 0);
            check_equal(found->fence, before + 1);
            check_equal(found->response.len, 0);
            break;

        case 2:
            check_equal(found->outcome, NGX_IDEMPOTENCY_DONE);
            check_equal(found->status, 200);
            check_equal(found->age, 250);
            check_equal(found->left, 750);
            check_equal(found->fence, before + 2);
            check_equal(found->replays, 1);
            check_equal(found->response.len, 5000);
            break;

        case 3:
            check_equal(found->outcome, NGX_IDEMPOTENCY_IN_DOUBT);
            check_equal(found->status, 504);
            check_equal(found->age, 230);
            check_equal(found->fence, before + 3);
            break;

        default:
            check(!"another one");
        }
    }

    close_zone();
}


/* what has ended is not told; nor is what a release left to those who wait */

unit_case("what is over is not listed")
{
    ngx_uint_t  i;

    open_zone(256);

    for (i = 0; i < 10; i++) {
        check_equal(op_bind(&zone, i, 1, 100, (i < 5) ? 100 : 101, 10),
                    NGX_IDEMPOTENCY_OK);
    }

    op_init(&op, 10, 1, 100);
    op.leave = 1;
    op.status = 429;
    op_respond(&op, 10, 1);
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);

    op_init(&other, 10, 1, 100);
    other.wait = 1;
    check_equal(op_claim(&zone, &other), NGX_IDEMPOTENCY_BOUND);

    check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
    op_cancel(&zone, &other);
    check_equal(zone_bound(&zone), 11);

    check_equal(ask(&list, 100, 199), 0);
    check_equal(list.n, 10);

    ngx_memzero(seen, sizeof(seen));
    check_equal(ask(&list, 100, 200), 0);
    check_equal(list.n, 5);

    for (i = 0; i < 11; i++) {
        check_equal(seen[i], i >= 5 && i < 10);
    }

    close_zone();
}


/* one window is as long as what a release leaves stays */

unit_case("those of any window")
{
    open_zone(256);

    check_equal(op_bind(&zone, 1, 1, 100, 2 * NGX_IDEMPOTENCY_SHM_LEFTOVER, 0),
                NGX_IDEMPOTENCY_OK);
    check_equal(op_bind(&zone, 2, 1, 100, NGX_IDEMPOTENCY_SHM_LEFTOVER, 0),
                NGX_IDEMPOTENCY_OK);

    check_equal(ask(&list, 100, 200), 0);
    check_equal(list.n, 2);
    check_equal(zone_records(&zone, NGX_IDEMPOTENCY_DONE), 2);

    close_zone();
}


/* those that stay are told once, whatever comes and goes before and behind */

unit_case("others come and go meanwhile")
{
    uint64_t    state;
    ngx_uint_t  i, n, round;
    ngx_uint_t  there[4 * MANY];

    open_zone(1024);
    ngx_memzero(there, sizeof(there));

    for (i = 0; i < MANY; i++) {
        claim(i, 100);
    }

    state = unit_setting("UNIT_SEED", 1);

    for (round = 0; round < 50; round++) {

        ngx_memzero(seen, sizeof(seen));
        ngx_memzero(&list, sizeof(ngx_idempotency_list_t));

        while (ask(&list, 1 + unit_below(&state, 50), 200)) {

            for (n = unit_below(&state, 100); n; n--) {
                i = MANY + unit_below(&state, 3 * MANY);

                if (there[i]) {
                    forget(i, 200);

                } else {
                    claim(i, 200);
                }

                there[i] = !there[i];
            }
        }

        for (i = 0; i < MANY; i++) {
            check_equal(seen[i], 1);
        }

        zone_check(&zone);
    }

    close_zone();
}


/* tokens that begin alike are in an order, too */

unit_case("tokens with equal first bytes")
{
    ngx_uint_t  i;

    open_zone(64);

    for (i = 0; i < 20; i++) {
        ngx_memcpy(tokens[i], tokens[0], sizeof(uint64_t));

        op_init(&op, 0, 1, 100);
        ngx_memcpy(op.token, tokens[i], NGX_IDEMPOTENCY_DIGEST_LEN);
        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
    }

    for (i = 0; i < 30 && ask(&list, 1, 100); i++) {
        check_equal(list.n, 1);
    }

    for (i = 0; i < 20; i++) {
        check_equal(seen[i], 1);
    }

    close_zone();
}


/* much that is empty takes more than one answer */

unit_case("a large zone that is empty")
{
    ngx_uint_t  n;

    open_zone(16 * 1024);

    check(zone.shm.sh->mask >= 4096);

    ngx_memset(&list, 0xa5, sizeof(ngx_idempotency_list_t));
    list.cursor = 0;
    list.op.waiting = 0;

    for (n = 1; ask(&list, 100, 100); n++) {
        check_equal(list.n, 0);
    }

    check_equal(n, (zone.shm.sh->mask + 1) / 4096);

    /* a token from before does not hide what is there */

    claim(1, 100);
    ngx_memset(&list, 0xff, sizeof(ngx_idempotency_list_t));
    list.cursor = 0;
    list.op.waiting = 0;

    while (ask(&list, 100, 100)) { /* void */ }

    check_equal(seen[1], 1);

    close_zone();
}
