
/*
 * The file that remembers: what each item does.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "unit.h"
#include "file.h"


#define ASK      NGX_IDEMPOTENCY_ITEM_ASK
#define PUT      NGX_IDEMPOTENCY_ITEM_PUT
#define RELEASE  NGX_IDEMPOTENCY_ITEM_RELEASE
#define FIND     NGX_IDEMPOTENCY_ITEM_FIND
#define FORGET   NGX_IDEMPOTENCY_ITEM_FORGET

#define PENDING   NGX_IDEMPOTENCY_PENDING
#define DONE      NGX_IDEMPOTENCY_DONE
#define NOT_KEPT  NGX_IDEMPOTENCY_NOT_KEPT
#define IN_DOUBT  NGX_IDEMPOTENCY_IN_DOUBT


void
unit_teardown(void)
{
    file_remove();
}


void
unit_setup(void)
{
    file_make(NULL);
    file_open(NGX_IDEMPOTENCY_SYNC_BATCHED, 0);
    check(file.db != NULL);
}


static ngx_idempotency_result_e
do_one(ngx_idempotency_item_e what, ngx_uint_t token, uint64_t fence)
{
    ngx_idempotency_item_t    item;
    ngx_idempotency_result_e  result;

    result = file_do(file_item(&item, what, token, fence));
    file_done(&item);

    return result;
}


static ngx_idempotency_result_e
do_of(ngx_idempotency_item_e what, ngx_uint_t token, uint64_t instance,
    uint64_t fence)
{
    ngx_idempotency_item_t    item;
    ngx_idempotency_result_e  result;

    file_item(&item, what, token, fence);
    item.instance = instance;
    result = file_do(&item);
    file_done(&item);

    return result;
}


static ngx_idempotency_result_e
put(ngx_uint_t token, uint64_t fence, ngx_idempotency_outcome_e outcome)
{
    ngx_idempotency_item_t  item;

    return file_do(file_outcome(&item, token, fence, outcome,
                                outcome == DONE ? 100 : 0));
}


/* what there is: an outcome, or -1 */

static ngx_int_t
outcome(ngx_uint_t token)
{
    ngx_idempotency_item_t  item;

    (void) file_find(&item, token);
    file_done(&item);

    return (item.result == NGX_IDEMPOTENCY_BOUND) ? (ngx_int_t) item.outcome
                                                  : -1;
}


static uint64_t
fence_of(ngx_uint_t token)
{
    ngx_idempotency_item_t  item;

    (void) file_find(&item, token);
    file_done(&item);

    return item.fence;
}


unit_case("ASK for what is absent")
{
    ngx_idempotency_item_t  item;

    file_item(&item, ASK, 1, 10);
    item.old = 1;
    check_equal(file_do(&item), NGX_IDEMPOTENCY_ABSENT);
    check_equal(file_has(1), 0);

    file_item(&item, ASK, 1, 10);
    check_equal(file_do(&item), NGX_IDEMPOTENCY_CLAIMED);

    check_equal(file_find(&item, 1), NGX_IDEMPOTENCY_BOUND);
    check_equal(item.outcome, PENDING);
    check_equal(item.instance, file.start.instance);
    check_equal(item.fence, 10);
    check_equal(item.recorded, file.now);
    check_equal(item.parts.identity[3], 'p');

    /* it is on disk, too, for others */

    file_close();
    file_open(NGX_IDEMPOTENCY_SYNC_BATCHED, 0);
    check_equal(outcome(1), PENDING);
}


unit_case("ASK for what its own instance has pending")
{
    ngx_idempotency_item_t  item;

    check_equal(do_one(ASK, 1, 10), NGX_IDEMPOTENCY_CLAIMED);
    check_equal(do_one(ASK, 1, 10), NGX_IDEMPOTENCY_CLAIMED);
    check_equal(fence_of(1), 10);
    check_equal(do_one(ASK, 1, 12), NGX_IDEMPOTENCY_CLAIMED);
    check_equal(fence_of(1), 12);
    check_equal(do_one(ASK, 1, 11), NGX_IDEMPOTENCY_CLAIMED);
    check_equal(fence_of(1), 11);

    /* a zone that was made anew does not know what became of it */

    file_item(&item, ASK, 1, 20);
    item.floor = 11;
    check_equal(file_do(&item), NGX_IDEMPOTENCY_CLAIMED);

    file_item(&item, ASK, 1, 30);
    item.floor = 21;
    check_equal(file_do(&item), NGX_IDEMPOTENCY_BOUND);
    check_equal(item.outcome, IN_DOUBT);
    check_equal(item.fence, 20);
    check_equal(outcome(1), IN_DOUBT);
}


unit_case("ASK for what is pending elsewhere")
{
    ngx_idempotency_item_t  item;

    check_equal(do_of(ASK, 1, FILE_LIVING, 10), NGX_IDEMPOTENCY_CLAIMED);

    file_item(&item, ASK, 1, 20);
    ngx_memset(item.fingerprint, 'x', NGX_IDEMPOTENCY_DIGEST_LEN);
    item.retry = 1;
    check_equal(file_do(&item), NGX_IDEMPOTENCY_BOUND);
    check_equal(item.outcome, PENDING);
    check_equal(item.instance, FILE_LIVING);
    check_equal(item.fence, 10);
    check_equal(item.fingerprint[0], 'f');
    check_equal(item.parts.body[1], 'p');

    /* its owner is gone: in doubt from now on, for its window */

    check_equal(do_of(ASK, 2, FILE_DEAD, 10), NGX_IDEMPOTENCY_CLAIMED);

    file.now += FILE_HOUR * 48;
    file_item(&item, ASK, 2, 20);
    check_equal(file_do(&item), NGX_IDEMPOTENCY_BOUND);
    check_equal(item.outcome, IN_DOUBT);
    check_equal(item.instance, FILE_DEAD);
    check_equal(item.ends, file.now + FILE_HOUR);
    check_equal(item.status, 0);
    check_equal(item.response.len, 0);

    /* it ends no earlier than its claim said */

    file_item(&item, ASK, 3, 10);
    item.instance = FILE_DEAD;
    item.ends = file.now + FILE_HOUR * 5;
    check_equal(file_do(&item), NGX_IDEMPOTENCY_CLAIMED);
    file_item(&item, ASK, 3, 20);
    check_equal(file_do(&item), NGX_IDEMPOTENCY_BOUND);
    check_equal(item.ends, file.now + FILE_HOUR * 5);
}


unit_case("ASK for what is in doubt")
{
    ngx_uint_t              i;
    ngx_idempotency_item_t  item;

    /* a gateway's error may be kept with it */

    check_equal(file_do(file_outcome(&item, 1, 10, IN_DOUBT, 5000)),
                NGX_IDEMPOTENCY_OK);

    file_item(&item, ASK, 1, 20);
    check_equal(file_do(&item), NGX_IDEMPOTENCY_BOUND);
    check_equal(item.outcome, IN_DOUBT);
    check_equal(item.status, 201);
    check_equal(item.response.len, 5000);
    file_done(&item);

    /* another's, or another request, does not take it over */

    for (i = 0; i < 2; i++) {
        file_item(&item, ASK, 1, 20);
        item.retry = 1;

        if (i) {
            item.parts.identity[15] = 'x';
        } else {
            item.fingerprint[31] = 'x';
        }

        check_equal(file_do(&item), NGX_IDEMPOTENCY_BOUND);
        check_equal(item.response.len, 5000);
        file_done(&item);
    }

    /* a fence that isn't higher is to be another one */

    for (i = 9; i <= 10; i++) {
        file_item(&item, ASK, 1, i);
        item.retry = 1;
        item.instance = FILE_LIVING;
        check_equal(file_do(&item), NGX_IDEMPOTENCY_CHANGED);
        check_equal(item.fence, 10);
        check_equal(outcome(1), IN_DOUBT);
    }

    file_item(&item, ASK, 1, 11);
    item.retry = 1;
    item.instance = FILE_LIVING;
    item.parts.action[0] = 'x';
    check_equal(file_do(&item), NGX_IDEMPOTENCY_CLAIMED);
    check_equal(file_find(&item, 1), NGX_IDEMPOTENCY_BOUND);
    check_equal(item.outcome, PENDING);
    check_equal(item.instance, FILE_LIVING);
    check_equal(item.response.len, 0);

    /* it was nobody's that is known: whoever comes may */

    file_outcome(&item, 2, 10, IN_DOUBT, 0);
    ngx_memzero(item.parts.identity, NGX_IDEMPOTENCY_IDENTITY_LEN);
    check_equal(file_do(&item), NGX_IDEMPOTENCY_OK);
    file_item(&item, ASK, 2, 11);
    item.retry = 1;
    check_equal(file_do(&item), NGX_IDEMPOTENCY_CLAIMED);

    /* a dead one's, in one step */

    check_equal(do_of(ASK, 3, FILE_DEAD, 10), NGX_IDEMPOTENCY_CLAIMED);
    file_item(&item, ASK, 3, 11);
    item.retry = 1;
    check_equal(file_do(&item), NGX_IDEMPOTENCY_CLAIMED);
    check_equal(outcome(3), PENDING);
    check_equal(fence_of(3), 11);
}


unit_case("ASK for what is done")
{
    ngx_idempotency_item_t  item;

    check_equal(file_do(file_outcome(&item, 1, 10, DONE, 100)),
                NGX_IDEMPOTENCY_OK);
    check_equal(file_do(file_outcome(&item, 2, 10, NOT_KEPT, 0)),
                NGX_IDEMPOTENCY_OK);

    file.now += 1000;

    file_item(&item, ASK, 1, 20);
    item.retry = 1;
    item.old = 1;
    check_equal(file_do(&item), NGX_IDEMPOTENCY_BOUND);
    check_equal(item.outcome, DONE);
    check_equal(item.status, 201);
    check_equal(item.replays, 3);
    check_equal(item.fence, 10);
    check_equal(item.recorded, file.now - 1000);
    check_equal(item.ends, file.now - 1000 + FILE_HOUR);
    check_equal(item.response.len, 100);
    file_done(&item);

    file_item(&item, ASK, 2, 20);
    item.retry = 1;
    check_equal(file_do(&item), NGX_IDEMPOTENCY_BOUND);
    check_equal(item.outcome, NOT_KEPT);
    check_equal(item.response.len, 0);
}


unit_case("PUT of what is newer")
{
    ngx_uint_t              i;
    ngx_idempotency_item_t  item;

    /* what is there, what comes, and whether it is taken */

    static struct {
        int        was;
        uint64_t   was_fence;
        int        is;
        uint64_t   is_fence;
        int        taken;
    } cases[] = {
        { -1, 0, PENDING, 10, 1 },
        { -1, 0, DONE, 10, 1 },
        { PENDING, 10, PENDING, 10, 1 },
        { PENDING, 10, PENDING, 11, 1 },
        { PENDING, 10, PENDING, 9, 0 },
        { PENDING, 10, DONE, 10, 1 },
        { PENDING, 10, DONE, 11, 1 },
        { PENDING, 10, DONE, 9, 0 },
        { PENDING, 10, NOT_KEPT, 10, 1 },
        { PENDING, 10, IN_DOUBT, 10, 1 },
        { IN_DOUBT, 10, PENDING, 10, 0 },
        { IN_DOUBT, 10, PENDING, 11, 0 },
        { IN_DOUBT, 10, DONE, 10, 1 },
        { IN_DOUBT, 10, DONE, 9, 0 },
        { DONE, 10, PENDING, 10, 0 },
        { DONE, 10, PENDING, 11, 0 },
        { DONE, 10, IN_DOUBT, 11, 0 },
        { DONE, 10, DONE, 10, 1 },
        { DONE, 10, NOT_KEPT, 10, 1 },
        { DONE, 10, NOT_KEPT, 9, 0 },
        { NOT_KEPT, 10, PENDING, 10, 0 },
        { NOT_KEPT, 10, DONE, 11, 1 }
    };

    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {

        if (cases[i].was != -1) {
            check_equal(put(i, cases[i].was_fence, cases[i].was),
                        NGX_IDEMPOTENCY_OK);
        }

        if (!check_equal(put(i, cases[i].is_fence, cases[i].is),
                         cases[i].taken ? NGX_IDEMPOTENCY_OK
                                        : NGX_IDEMPOTENCY_STALE)
            || !check_equal(outcome(i), cases[i].taken ? cases[i].is
                                                       : cases[i].was)
            || !check_equal(fence_of(i), cases[i].taken ? cases[i].is_fence
                                                        : cases[i].was_fence))
        {
            unit_note("case %u", (unsigned) i);
        }
    }

    /* a claim takes the place of a doubt only if it knows of that */

    check_equal(put(99, 10, IN_DOUBT), NGX_IDEMPOTENCY_OK);
    file_outcome(&item, 99, 11, PENDING, 0);
    item.taken = 1;
    check_equal(file_do(&item), NGX_IDEMPOTENCY_OK);
    check_equal(do_one(RELEASE, 99, 11), NGX_IDEMPOTENCY_OK);
    check_equal(outcome(99), IN_DOUBT);

    /* ... and its release, sent twice, does not make the token fresh */

    check_equal(do_one(RELEASE, 99, 11), NGX_IDEMPOTENCY_ABSENT);
    check_equal(outcome(99), IN_DOUBT);

    /* ... but an operator does */

    file_item(&item, RELEASE, 99, 11);
    item.freed = 1;
    check_equal(file_do(&item), NGX_IDEMPOTENCY_OK);
    check_equal(outcome(99), -1);

    /* another's is left alone, whatever its fence */

    check_equal(do_of(PUT, 100, FILE_LIVING, 10), NGX_IDEMPOTENCY_OK);
    check_equal(put(100, 9, DONE), NGX_IDEMPOTENCY_STALE);
    check_equal(put(100, 10, DONE), NGX_IDEMPOTENCY_STALE);
    check_equal(put(100, 11, DONE), NGX_IDEMPOTENCY_STALE);
    check_equal(outcome(100), PENDING);

    /* and so it is once it was taken over */

    check_equal(put(101, 10, IN_DOUBT), NGX_IDEMPOTENCY_OK);
    file_item(&item, ASK, 101, 11);
    item.instance = FILE_LIVING;
    item.retry = 1;
    check_equal(file_do(&item), NGX_IDEMPOTENCY_CLAIMED);
    check_equal(put(101, 10, DONE), NGX_IDEMPOTENCY_STALE);
    check_equal(outcome(101), PENDING);

    /* an outcome that has left memory stays, whatever a later claim was made
       without asking for it: else its release would make the token fresh */

    check_equal(put(102, 10, DONE), NGX_IDEMPOTENCY_OK);
    check_equal(put(102, 12, PENDING), NGX_IDEMPOTENCY_STALE);
    check_equal(put(102, 12, IN_DOUBT), NGX_IDEMPOTENCY_STALE);
    check_equal(do_one(RELEASE, 102, 12), NGX_IDEMPOTENCY_ABSENT);
    check_equal(outcome(102), DONE);
    check_equal(fence_of(102), 10);

    check_equal(put(102, 12, NOT_KEPT), NGX_IDEMPOTENCY_OK);
    check_equal(fence_of(102), 12);
}


unit_case("RELEASE and FORGET")
{
    ngx_idempotency_item_t  item;

    check_equal(do_one(RELEASE, 1, 10), NGX_IDEMPOTENCY_ABSENT);

    check_equal(do_one(ASK, 1, 10), NGX_IDEMPOTENCY_CLAIMED);
    check_equal(do_one(RELEASE, 1, 9), NGX_IDEMPOTENCY_ABSENT);
    check_equal(do_of(RELEASE, 1, FILE_LIVING, 10), NGX_IDEMPOTENCY_ABSENT);
    check_equal(outcome(1), PENDING);
    check_equal(do_one(RELEASE, 1, 10), NGX_IDEMPOTENCY_OK);
    check_equal(outcome(1), -1);

    check_equal(do_one(ASK, 1, 10), NGX_IDEMPOTENCY_CLAIMED);
    check_equal(do_one(RELEASE, 1, 11), NGX_IDEMPOTENCY_OK);
    check_equal(outcome(1), -1);

    check_equal(put(1, 10, IN_DOUBT), NGX_IDEMPOTENCY_OK);
    check_equal(do_one(RELEASE, 1, 11), NGX_IDEMPOTENCY_ABSENT);
    check_equal(do_one(RELEASE, 1, 10), NGX_IDEMPOTENCY_OK);
    check_equal(outcome(1), -1);

    check_equal(put(1, 10, DONE), NGX_IDEMPOTENCY_OK);
    check_equal(do_one(RELEASE, 1, 10), NGX_IDEMPOTENCY_ABSENT);
    check_equal(do_one(RELEASE, 1, 11), NGX_IDEMPOTENCY_ABSENT);
    check_equal(outcome(1), DONE);

    /* by hand: whatever there is, or what has that fence */

    check_equal(do_one(FORGET, 1, 9), NGX_IDEMPOTENCY_ABSENT);
    check_equal(do_one(FORGET, 1, 10), NGX_IDEMPOTENCY_OK);
    check_equal(outcome(1), -1);
    check_equal(do_one(FORGET, 1, 0), NGX_IDEMPOTENCY_ABSENT);

    check_equal(do_of(ASK, 1, FILE_LIVING, 10), NGX_IDEMPOTENCY_CLAIMED);
    check_equal(do_one(FORGET, 1, 0), NGX_IDEMPOTENCY_OK);
    check_equal(outcome(1), -1);

    /* the zone's clock is read at another moment; told twice, it is not meant
       for what was claimed since */

    check_equal(put(3, 10, DONE), NGX_IDEMPOTENCY_OK);
    file_item(&item, FORGET, 3, 0);
    item.floor = 10;
    item.recorded = file.now - 5;
    check_equal(file_do(&item), NGX_IDEMPOTENCY_OK);
    check_equal(outcome(3), -1);
    check_equal(put(3, 11, DONE), NGX_IDEMPOTENCY_OK);
    check_equal(file_do(&item), NGX_IDEMPOTENCY_ABSENT);
    check_equal(outcome(3), DONE);

    /* ... nor for what another one has recorded since */

    item.instance = FILE_LIVING;
    check_equal(file_do(&item), NGX_IDEMPOTENCY_OK);
    check_equal(outcome(3), -1);
    check_equal(put(3, 11, DONE), NGX_IDEMPOTENCY_OK);
    item.recorded = file.now - 5000;
    check_equal(file_do(&item), NGX_IDEMPOTENCY_ABSENT);
    check_equal(outcome(3), DONE);

    /* it is the owner's no longer, but he may say what became of it */

    check_equal(do_one(ASK, 2, 10), NGX_IDEMPOTENCY_CLAIMED);
    check_equal(do_one(FORGET, 2, 10), NGX_IDEMPOTENCY_OK);
    check_equal(do_one(RELEASE, 2, 10), NGX_IDEMPOTENCY_ABSENT);
    check_equal(put(2, 10, DONE), NGX_IDEMPOTENCY_OK);
}


unit_case("what is over goes, in steps")
{
    ngx_uint_t              i, left;
    ngx_idempotency_item_t  item;
    u_char                  tokens[64][NGX_IDEMPOTENCY_DIGEST_LEN];

    for (i = 0; i < 20; i++) {
        file.now++;
        check_equal(put(i, 10, DONE), NGX_IDEMPOTENCY_OK);
    }

    check_equal(do_one(ASK, 20, 10), NGX_IDEMPOTENCY_CLAIMED);

    /* to the millisecond; what is pending stays */

    file.now += FILE_HOUR - 1;
    check_equal(file_has(19), 1);

    file.now++;
    check_equal(file_has(19), 0);

    /* each commit takes three for each item, the oldest first: of 20, three
       have gone by the first find, and three and that one by the other */

    left = ngx_idempotency_db_tokens(file.db, NULL, tokens, 64);
    check_equal(left, 20 - 3 - 3 - 1 + 1);

    check_equal(do_one(FIND, 20, 0), NGX_IDEMPOTENCY_BOUND);
    check_equal(ngx_idempotency_db_tokens(file.db, NULL, tokens, 64), left - 3);

    /* what is over is neither in the way nor found */

    check_equal(do_one(ASK, 18, 5), NGX_IDEMPOTENCY_CLAIMED);
    check_equal(put(17, 5, DONE), NGX_IDEMPOTENCY_OK);
    check_equal(do_one(FORGET, 16, 0), NGX_IDEMPOTENCY_ABSENT);
    check_equal(do_one(RELEASE, 15, 10), NGX_IDEMPOTENCY_ABSENT);

    file_item(&item, ASK, 14, 5);
    item.old = 1;
    check_equal(file_do(&item), NGX_IDEMPOTENCY_ABSENT);

    /* the rest in a quiet moment */

    while (ngx_idempotency_db_tidy(file.db, file.now, 2) == NGX_AGAIN) { }

    check_equal(ngx_idempotency_db_tokens(file.db, NULL, tokens, 64), 3);
}


unit_case("numbers of 64 bits, responses of any size")
{
    size_t                  size;
    ngx_uint_t              i;
    ngx_idempotency_item_t  item;

    static uint64_t  fences[] = {
        1, 0x7fffffff, 0x80000000, NGX_IDEMPOTENCY_DB_MOST - 2
    };

    static size_t  sizes[] = {
        0, 1, 100, 3600, 3700, 3800, 3900, 4000, 4096, 4097, 8192, 1 << 20
    };

    /* fences rise, and instances are any, though SQLite's numbers have a sign */

    for (i = 0; i < 4; i++) {
        check_equal(put(1, fences[i], DONE), NGX_IDEMPOTENCY_OK);
        check(fence_of(1) == fences[i]);

        if (i) {
            check_equal(put(1, fences[i - 1], DONE), NGX_IDEMPOTENCY_STALE);
        }

        check_equal(do_of(ASK, 10 + i, ~fences[i], 7), NGX_IDEMPOTENCY_CLAIMED);
        check_equal(do_of(ASK, 10 + i, ~fences[i], 7), NGX_IDEMPOTENCY_CLAIMED);
    }

    for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        size = sizes[i];

        check_equal(file_do(file_outcome(&item, 100 + i, 1, DONE, size)),
                    NGX_IDEMPOTENCY_OK);
        check_equal(file_find(&item, 100 + i), NGX_IDEMPOTENCY_BOUND);
        check_equal(item.response.len, size);
        file_done(&item);

        /* what is in doubt may get any outcome yet */

        check_equal(put(200 + i, 1, IN_DOUBT), NGX_IDEMPOTENCY_OK);
        check_equal(file_do(file_outcome(&item, 200 + i, 1, DONE, size)),
                    NGX_IDEMPOTENCY_OK);
        check_equal(file_find(&item, 200 + i), NGX_IDEMPOTENCY_BOUND);
        check_equal(item.response.len, size);
        file_done(&item);
    }

    file_close();
    file_open(NGX_IDEMPOTENCY_SYNC_BATCHED, 0);

    for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        check_equal(file_has(100 + i), 1);
        check_equal(file_has(200 + i), 1);
    }

    /* the highest fence is known at the next start, or one above */

    file_close();
    check_equal(file_start(1), NGX_OK);
    check(file.start.fence >= fences[3]);
}


unit_case("all tokens, in pages")
{
    u_char                   tokens[7][NGX_IDEMPOTENCY_DIGEST_LEN];
    u_char                   last[NGX_IDEMPOTENCY_DIGEST_LEN];
    ngx_int_t                n;
    ngx_uint_t               i, count, disorder;
    ngx_idempotency_item_t  *items;

    items = calloc(300, sizeof(ngx_idempotency_item_t));

    for (i = 0; i < 300; i++) {
        if (i % 3) {
            file_outcome(&items[i], i, 1, DONE, 50);
        } else {
            file_item(&items[i], ASK, i, 1);
        }
    }

    check_equal(ngx_idempotency_db_commit(file.db, items, 300, file.now),
                NGX_OK);

    for (i = 0; i < 300; i++) {
        file_done(&items[i]);
    }

    free(items);

    count = 0;
    disorder = 0;

    do {
        n = ngx_idempotency_db_tokens(file.db, count ? last : NULL, tokens, 7);

        for (i = 0; n > 0 && i < (ngx_uint_t) n; i++) {
            disorder += (count
                         && ngx_memcmp(tokens[i], last,
                                       NGX_IDEMPOTENCY_DIGEST_LEN) <= 0);
            ngx_memcpy(last, tokens[i], NGX_IDEMPOTENCY_DIGEST_LEN);
            count++;
        }
    } while (n > 0);

    check_equal(n, 0);
    check_equal(count, 300);
    check_equal(disorder, 0);
}


unit_case("what is denied is not written")
{
    ngx_idempotency_item_t  item;

    file.denied = 1;
    file_item(&item, ASK, 1, 10);
    check_equal(ngx_idempotency_db_commit(file.db, &item, 1, file.now),
                NGX_DECLINED);
    check_equal(item.result, NGX_IDEMPOTENCY_UNAVAILABLE);

    file.denied = 0;
    check_equal(file_has(1), 0);
    check_equal(file_do(&item), NGX_IDEMPOTENCY_CLAIMED);
}
