
/*
 * Responses of all sizes, and what others do to a token while one is copied
 * in or out piece by piece.
 */


#include "zone.h"
#include "workers_double.h"


#define PAGE   4096
#define ZONE   (4 * 1024 * 1024)

/* so many bytes of a response are in a chunk of a full page */

#define CHUNK  (ngx_pagesize - offsetof(ngx_idempotency_chunk_t, data))

/* copied in five pieces; read as a scratch and five pieces */

#define LARGE  (4 * NGX_IDEMPOTENCY_SHM_PIECE + 20000)


/* op is the claim that is completed in pieces, or the one that reads them; other
   is what a hook saw or did */


void
unit_setup(void)
{
    double_reset();
    zone_open(&zone, ZONE, 0);
}


void
unit_teardown(void)
{
    check_equal(zone_between_due(), 0);
    zone_check_empty(&zone);
    zone_close(&zone);
}


static void
forget_it(zone_t *z)
{
    op_t  f;

    op_init(&f, 1, 1, 100);
    check_equal(op_forget(z, &f), NGX_IDEMPOTENCY_OK);
}


static void
round_trip(size_t size)
{
    op_t        o;
    ngx_uint_t  pages;

    pages = zone.shm.shpool->pfree;

    check_equal(op_bind(&zone, size, 1, 100, 1000, size), NGX_IDEMPOTENCY_OK);
    zone_check(&zone);

    /* what the claim was promised was enough */

    pages -= zone.shm.shpool->pfree;
    check(pages <= ngx_idempotency_chunks_pages(size) + 1);

    check_equal(op_claims(&o, size, 1, 101), NGX_IDEMPOTENCY_BOUND);
    check_equal(o.replays, size ? 1 : 0);

    if (!op_responded(&o, size, size)) {
        unit_note("size %zu", size);
    }

    check_equal(op_forget(&zone, &o), NGX_IDEMPOTENCY_OK);

    ngx_reset_pool(unit_pool);
}


unit_case("responses of all sizes come back")
{
    size_t     i, size;
    uint64_t   seed;
    ngx_int_t  d;

    round_trip(0);
    round_trip(1);
    round_trip(2);

    /* slots of 8, 16, 32 bytes ... with the chunk's head in them */

    for (size = 16; size <= ngx_pagesize; size *= 2) {
        for (d = -1; d <= 1; d++) {
            round_trip(size - (ngx_pagesize - CHUNK) + d);
        }
    }

    /* pages, and a tail in each slot */

    for (i = 1; i <= 40; i++) {
        for (d = -9; d <= 9; d++) {
            round_trip(i * CHUNK + d);
            round_trip(i * ngx_pagesize + d);
        }
    }

    for (size = 1; size <= CHUNK; size *= 2) {
        round_trip(CHUNK + size);
        round_trip(17 * CHUNK + size - 1);
    }

    /* pieces, behind the read's scratch too */

    for (i = 1; i <= 4; i++) {
        for (d = -2; d <= 2; d++) {
            round_trip(i * NGX_IDEMPOTENCY_SHM_PIECE + d);
            round_trip(i * NGX_IDEMPOTENCY_SHM_PIECE + PAGE + d);
        }
    }

    round_trip(2000000);

    seed = unit_setting("UNIT_SEED", 1);

    for (i = 0; i < 300; i++) {
        round_trip(unit_below(&seed, 3 * NGX_IDEMPOTENCY_SHM_PIECE));
    }
}


/* the same bytes, whatever pieces they come in */

unit_case("responses in all kinds of pieces come back")
{
    size_t         n, size;
    u_char         data[3 * PAGE];
    ngx_buf_t     *b;
    ngx_uint_t     i, variant;
    ngx_chain_t  **last, *cl;

    for (i = 0; i < sizeof(data); i++) {
        data[i] = (u_char) (i * 7 + i / 251);
    }

    for (variant = 0; variant < 6; variant++) {

        check_equal(op_claims(&op, 1, 1, 100), NGX_IDEMPOTENCY_CLAIMED);

        last = &op.pieces;

        for (size = 0; size < sizeof(data); size += n) {

            switch (variant) {
            case 0:
                n = sizeof(data);
                break;
            case 1:
                n = 1;
                break;
            case 2:
                n = CHUNK;
                break;
            case 3:
                n = PAGE;
                break;
            case 4:
                n = CHUNK - 1;
                break;
            default:
                n = 1 + size / 3;
            }

            n = ngx_min(n, sizeof(data) - size);

            /* three empty ones before each */

            for (i = 0; i < 4; i++) {
                b = ngx_calloc_buf(unit_pool);
                b->pos = &data[size];
                b->last = &data[size] + (i == 3 ? n : 0);

                cl = ngx_alloc_chain_link(unit_pool);
                cl->buf = b;
                cl->next = NULL;
                *last = cl;
                last = &cl->next;
            }
        }

        op.size = sizeof(data);
        op.outcome = NGX_IDEMPOTENCY_DONE;
        check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_OK);
        zone_check(&zone);

        check_equal(op_claims(&op, 1, 1, 100), NGX_IDEMPOTENCY_BOUND);
        check(op.response.len == sizeof(data)
              && ngx_memcmp(op.response.data, data, sizeof(data)) == 0);

        forget_it(&zone);
        ngx_reset_pool(unit_pool);
    }
}


unit_case("no memory to read into is an error")
{
    check_equal(op_bind(&zone, 1, 1, 100, 1000, LARGE), NGX_IDEMPOTENCY_OK);

    op_init(&op, 1, 1, 100);
    zone_no_memory = 1;
    check_equal(op_try_claim(&zone, &op), NGX_ERROR);
    zone_no_memory = 0;

    check_equal(zone.shm.sh->inside, 0);
    check_equal(*zone.shm.shpool->mutex.lock, 0);

    op_init(&op, 1, 1, 100);
    zone_no_memory = 1;
    check_equal(op_try_read(&zone, &op), NGX_ERROR);
    check_equal(op_find(&zone, &op), NGX_IDEMPOTENCY_BOUND);
    zone_no_memory = 0;

    check_equal(zone.shm.sh->inside, 0);

    check_equal(op_claims(&op, 1, 1, 100), NGX_IDEMPOTENCY_BOUND);
    op_responded(&op, LARGE, 1);

    forget_it(&zone);
}


/* who looks may have the response as well, and that is no replay */

unit_case("looked at with its response")
{
    ngx_uint_t  i;

    static const size_t  sizes[] = { 0, 1, 4096, 4097, PAGE * 20, LARGE };

    for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {

        check_equal(op_bind(&zone, 1, 1, 100, 1000, sizes[i]),
                    NGX_IDEMPOTENCY_OK);

        op_init(&op, 1, 2, 100);
        check_equal(op_try_read(&zone, &op), NGX_OK);
        check_equal(op.result, NGX_IDEMPOTENCY_BOUND);
        check_equal(op.outcome, NGX_IDEMPOTENCY_DONE);
        check_equal(op.replays, 0);
        op_responded(&op, sizes[i], 1);

        forget_it(&zone);
    }

    check_equal(op_try_read(&zone, &op), NGX_OK);
    check_equal(op.result, NGX_IDEMPOTENCY_ABSENT);

    /* what is under way is nobody's yet */

    check_equal(op_claims(&other, 1, 1, 100), NGX_IDEMPOTENCY_CLAIMED);

    op_init(&op, 1, 1, 100);
    check_equal(op_try_read(&zone, &op), NGX_OK);
    check_equal(op.outcome, NGX_IDEMPOTENCY_PENDING);
    op_responded(&op, 0, 1);

    check_equal(op_release(&zone, &other), NGX_IDEMPOTENCY_OK);
}


/* reading */

static void
bind_large(uint64_t seed)
{
    check_equal(op_claims(&op, 1, 1, 100), NGX_IDEMPOTENCY_CLAIMED);
    op.outcome = NGX_IDEMPOTENCY_DONE;
    op.status = 200;
    op_respond(&op, LARGE, seed);
    check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_OK);

    op_init(&op, 1, 1, 100);
}


static void
forget_and_bind_another(zone_t *z)
{
    forget_it(z);

    op_init(&other, 1, 1, 100);
    check_equal(op_claim(z, &other), NGX_IDEMPOTENCY_CLAIMED);
    other.outcome = NGX_IDEMPOTENCY_DONE;
    other.status = 201;
    op_respond(&other, LARGE + 1, 77);
    check_equal(op_complete(z, &other), NGX_IDEMPOTENCY_OK);
}


static void
forget_and_claim(zone_t *z)
{
    forget_it(z);

    double_become(9);
    op_init(&other, 1, 1, 100);
    check_equal(op_claim(z, &other), NGX_IDEMPOTENCY_CLAIMED);
    double_become(0);
}


static void
forget_and_bind_to_another(zone_t *z)
{
    forget_it(z);
    check_equal(op_bind(z, 1, 2, 100, 1000, 0), NGX_IDEMPOTENCY_OK);
}


/* another worker's clock says that it is over */

static void
expire(zone_t *z)
{
    ngx_idempotency_record_expire(&z->shm, 1100, 10);
    check_equal(zone_bound(z), 0);
}


static void
evict(zone_t *z)
{
    check_equal(ngx_idempotency_shm_lock(&z->shm), NGX_OK);
    check_equal(ngx_idempotency_record_free_some(&z->shm, 100), 1);
    ngx_idempotency_shm_unlock(&z->shm);
}


static void
tear(zone_t *z)
{
    z->shm.sh->inside = 12345;
}


/* the n-th critical section is the last one before it happens */

unit_case("forgotten while read: the token is fresh")
{
    uint64_t    fence;
    ngx_uint_t  n;

    for (n = 1; n <= 5; n++) {
        bind_large(5);
        fence = zone.shm.sh->fence;

        zone_between(n, forget_it, &zone);
        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
        check_equal(op.fence, fence + 1);
        check_equal(double_workers[0].owned, 1);
        check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
        zone_check_empty(&zone);
    }
}


unit_case("bound anew while read: nothing of the old one")
{
    ngx_uint_t  n;

    for (n = 1; n <= 5; n++) {
        bind_large(5);

        /* all of the new one, nothing of the old one */

        zone_between(n, forget_and_bind_another, &zone);
        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_BOUND);
        check_equal(op.status, 201);
        check_equal(op.fence, other.fence);
        check_equal(op.replays, 1);
        op_responded(&op, LARGE + 1, 77);

        forget_it(&zone);
        ngx_reset_pool(unit_pool);

        bind_large(5);

        zone_between(n, forget_and_claim, &zone);
        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_BOUND);
        check_equal(op.outcome, NGX_IDEMPOTENCY_PENDING);
        check_equal(op.response.len, 0);
        check(op.response.data == NULL);

        forget_it(&zone);
        ngx_reset_pool(unit_pool);

        bind_large(5);

        zone_between(n, forget_and_bind_to_another, &zone);
        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CONFLICT);
        check(op.response.data == NULL);

        forget_it(&zone);
        ngx_reset_pool(unit_pool);
    }
}


unit_case("expired while read: the token is fresh")
{
    ngx_uint_t  n;

    for (n = 1; n <= 5; n++) {
        bind_large(5);

        zone_between(n, expire, &zone);
        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_CLAIMED);
        check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_OK);
        ngx_reset_pool(unit_pool);
    }
}


unit_case("evicted while read: not kept")
{
    ngx_uint_t  n;

    zone.shm.evict = 1;

    for (n = 1; n <= 5; n++) {
        bind_large(5);

        zone_between(n, evict, &zone);
        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_BOUND);
        check_equal(op.outcome, NGX_IDEMPOTENCY_NOT_KEPT);
        check_equal(op.status, 200);
        check_equal(op.response.len, 0);
        check(op.response.data == NULL);

        forget_it(&zone);
        ngx_reset_pool(unit_pool);
    }
}


bare_case("torn while read: unavailable")
{
    ngx_uint_t  n;

    for (n = 1; n <= 5; n++) {
        unit_setup();
        bind_large(5);

        zone_between(n, tear, &zone);
        check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_UNAVAILABLE);
        check(unit_logged("was left inconsistent by process 12345"));

        zone_close(&zone);
        ngx_reset_pool(unit_pool);
    }
}


/* what came after the last piece was read doesn't matter */

unit_case("forgotten when all is read: replayed")
{
    bind_large(5);

    zone_between(6, forget_it, &zone);
    check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_BOUND);
    op_responded(&op, LARGE, 5);
}


/* completing */

static void
claim_large(void)
{
    check_equal(op_claims(&op, 1, 1, 100), NGX_IDEMPOTENCY_CLAIMED);
    op.outcome = NGX_IDEMPOTENCY_DONE;
    op.status = 200;
    op_respond(&op, LARGE, 5);
}


static void
look(zone_t *z)
{
    op_init(&other, 1, 1, 100);
    other.wait = 1;
    check_equal(op_claim(z, &other), NGX_IDEMPOTENCY_BOUND);
    check_equal(other.outcome, NGX_IDEMPOTENCY_PENDING);
    check_equal(other.waiting, 1);
    check_equal(other.response.len, 0);
    check(other.response.data == NULL);
    op_cancel(z, &other);

    op_init(&other, 1, 1, 100);
    check_equal(op_find(z, &other), NGX_IDEMPOTENCY_BOUND);
    check_equal(other.outcome, NGX_IDEMPOTENCY_PENDING);
    check_equal(other.replays, 0);

    zone_check(z);
}


static void
die(zone_t *z)
{
    double_workers[0].state = DOUBLE_DEAD;
    ngx_idempotency_shm_sweep(&z->shm, 100);
    check_equal(zone_records(z, NGX_IDEMPOTENCY_PENDING), 0);
    zone_check(z);
}


static void
die_and_retry(zone_t *z)
{
    double_workers[0].state = DOUBLE_DEAD;

    double_become(9);
    op_init(&other, 1, 1, 100);
    other.retry = 1;
    check_equal(op_claim(z, &other), NGX_IDEMPOTENCY_CLAIMED);
    double_become(0);

    zone_check(z);
}


static void
occupy(zone_t *z)
{
    zone_occupy(z, 1);
}


static void
nothing(zone_t *z)
{
    check(1);
}


unit_case("looked at while completed: pending")
{
    ngx_uint_t  n;

    for (n = 1; n <= 4; n++) {
        claim_large();

        zone_between(n, look, &zone);
        check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_OK);
        check(double_woke(ngx_idempotency_tree_key(op.token), 0, -1));

        check_equal(op_claims(&other, 1, 1, 100), NGX_IDEMPOTENCY_BOUND);
        check_equal(other.replays, 1);
        op_responded(&other, LARGE, 5);

        forget_it(&zone);
        ngx_reset_pool(unit_pool);
    }

    /* it takes five critical sections, and no more */

    claim_large();
    zone_between(6, nothing, &zone);
    check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_OK);
    check_equal(zone_between_due(), 1);
    zone_between(0, NULL, NULL);

    forget_it(&zone);
}


unit_case("forgotten while completed: stale")
{
    ngx_uint_t  n;

    for (n = 1; n <= 4; n++) {
        claim_large();

        zone_between(n, forget_it, &zone);
        check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_STALE);
        check_equal(double_workers[0].owned, 0);
        zone_check_empty(&zone);
        ngx_reset_pool(unit_pool);
    }
}


unit_case("claimed anew while completed: stale")
{
    ngx_uint_t  n;

    for (n = 1; n <= 4; n++) {
        claim_large();

        zone_between(n, forget_and_claim, &zone);
        check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_STALE);
        zone_check(&zone);

        other.outcome = NGX_IDEMPOTENCY_DONE;
        op_respond(&other, 10, 3);
        check_equal(op_complete(&zone, &other), NGX_IDEMPOTENCY_OK);

        check_equal(op_claims(&op, 1, 1, 100), NGX_IDEMPOTENCY_BOUND);
        op_responded(&op, 10, 3);

        forget_it(&zone);
        ngx_reset_pool(unit_pool);
    }
}


unit_case("owner taken for dead while completed")
{
    ngx_uint_t  n;

    for (n = 1; n <= 4; n++) {
        claim_large();

        /* it was not dead: all that it says is heard, from the start */

        zone_between(n, die, &zone);
        check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_OK);
        zone_check(&zone);

        check_equal(op_claims(&other, 1, 1, 100), NGX_IDEMPOTENCY_BOUND);
        check_equal(other.outcome, NGX_IDEMPOTENCY_DONE);
        op_responded(&other, LARGE, 5);

        forget_it(&zone);
        zone_check_empty(&zone);
        double_renew(0);

        claim_large();

        zone_between(n, die_and_retry, &zone);
        check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_STALE);
        zone_check(&zone);

        other.settled = 1;
        check_equal(op_release(&zone, &other), NGX_IDEMPOTENCY_OK);
        zone_check_empty(&zone);
        double_renew(0);
        ngx_reset_pool(unit_pool);
    }
}


unit_case("no memory for a later piece: trimmed")
{
    ngx_uint_t  n;

    for (n = 1; n <= 4; n++) {
        claim_large();

        zone_between(n, occupy, &zone);
        check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_TRIMMED);
        zone_vacate(&zone);
        zone_check(&zone);

        check_equal(op_claims(&other, 1, 1, 100), NGX_IDEMPOTENCY_BOUND);
        check_equal(other.outcome, NGX_IDEMPOTENCY_NOT_KEPT);
        check_equal(other.status, 200);
        check_equal(other.replays, 0);
        check(other.response.data == NULL);

        forget_it(&zone);
        zone_check_empty(&zone);
        ngx_reset_pool(unit_pool);
    }
}


bare_case("torn while completed: unavailable")
{
    ngx_uint_t  n;

    for (n = 1; n <= 4; n++) {
        unit_setup();
        claim_large();

        zone_between(n, tear, &zone);
        check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_UNAVAILABLE);
        check_equal(double_workers[0].owned, 0);
        check(unit_logged("was left inconsistent by process 12345"));

        unit_unshared(zone.zone.shm.addr, ZONE);
        ngx_reset_pool(unit_pool);
    }
}


/* whatever happens between two pieces, what is told is of one record */

bare_case("looked at while it changes")
{
    ngx_uint_t  n;

    for (n = 1; n <= 4; n++) {

        unit_setup();
        bind_large(3);
        zone_between(n, forget_it, &zone);
        check_equal(op_try_read(&zone, &op), NGX_OK);
        check_equal(op.result, NGX_IDEMPOTENCY_ABSENT);
        unit_teardown();

        unit_setup();
        bind_large(3);
        zone_between(n, forget_and_bind_another, &zone);
        check_equal(op_try_read(&zone, &op), NGX_OK);
        check_equal(op.result, NGX_IDEMPOTENCY_BOUND);
        check_equal(op.status, 201);
        op_responded(&op, LARGE + 1, 77);
        forget_it(&zone);
        unit_teardown();
    }
}
