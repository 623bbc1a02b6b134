
/*
 * A zone in which a process died half way through a change: refused to all,
 * touched by nobody, and made anew by processes of a later generation only.
 */


#include "zone.h"
#include "workers_double.h"


#define ZONE  (256 * 1024)


/* claimed before it was torn */

static op_t    owner;


static void list_nothing(zone_t *z);


void
unit_setup(void)
{
    ngx_uint_t  i;

    double_reset();
    zone_open(&zone, ZONE, 0);

    for (i = 0; i < 20; i++) {
        check_equal(op_bind(&zone, i, 1, 100, 1000, i * 400),
                    NGX_IDEMPOTENCY_OK);
    }

    double_become(3);
    check_equal(op_claims(&owner, 100, 1, 100), NGX_IDEMPOTENCY_CLAIMED);
    owner.outcome = NGX_IDEMPOTENCY_DONE;
    op_respond(&owner, 100, 1);

    /* much is to be done here: it is dead, and much has expired */

    double_workers[3].state = DOUBLE_DEAD;
    double_become(0);
}


/* as one that died inside, and whose lock nginx gave back */

static void
tear(void)
{
    zone.shm.sh->inside = 4711;
}


static void
all_operations(zone_t *z)
{
    op_t  op;

    op_init(&op, 100, 1, 100000);
    op.retry = 1;
    op.wait = 1;
    check_equal(op_claim(z, &op), NGX_IDEMPOTENCY_UNAVAILABLE);
    check_equal(op.waiting, 0);

    op_init(&op, 1, 1, 100000);
    check_equal(op_find(z, &op), NGX_IDEMPOTENCY_UNAVAILABLE);
    check_equal(op_forget(z, &op), NGX_IDEMPOTENCY_UNAVAILABLE);

    op = owner;
    check_equal(op_complete(z, &op), NGX_IDEMPOTENCY_UNAVAILABLE);

    op = owner;
    check_equal(op_release(z, &op), NGX_IDEMPOTENCY_UNAVAILABLE);

    list_nothing(z);

    ngx_idempotency_shm_sweep(&z->shm, 100000);
}


static void
list_nothing(zone_t *z)
{
    ngx_idempotency_list_t    list;
    ngx_idempotency_listed_t  listed;

    ngx_memzero(&list, sizeof(ngx_idempotency_list_t));
    list.listed = &listed;
    list.n = 1;

    check_equal(op_list(z, &list), NGX_IDEMPOTENCY_UNAVAILABLE);
    check_equal(list.n, 0);
}


unit_case("a torn zone is refused, and untouched")
{
    u_char                   *before;
    ngx_uint_t                i;
    ngx_idempotency_shm_sh_t  sh;

    before = ngx_palloc(unit_pool, ZONE);
    ngx_memcpy(before, zone.zone.shm.addr, ZONE);

    /* each operation may be the first that notices it */

    for (i = 0; i < 7; i++) {

        tear();
        op = owner;
        double_workers[0].owned = 0;

        switch (i) {
        case 0:
            check_equal(op_claim(&zone, &op), NGX_IDEMPOTENCY_UNAVAILABLE);
            check_equal(double_workers[0].owned, 0);
            break;
        case 1:
            check_equal(op_find(&zone, &op), NGX_IDEMPOTENCY_UNAVAILABLE);
            break;
        case 2:
            check_equal(op_forget(&zone, &op), NGX_IDEMPOTENCY_UNAVAILABLE);
            break;
        case 3:
            check_equal(op_complete(&zone, &op), NGX_IDEMPOTENCY_UNAVAILABLE);
            check_equal(double_workers[0].owned, -1);
            break;
        case 4:
            check_equal(op_release(&zone, &op), NGX_IDEMPOTENCY_UNAVAILABLE);
            check_equal(double_workers[0].owned, -1);
            break;
        case 5:
            list_nothing(&zone);
            break;
        case 6:
            ngx_idempotency_shm_sweep(&zone.shm, 100000);
            break;
        }

        /* said once */

        check(unit_logged("zone \"unit\" was left inconsistent by "
                          "process 4711"));
        check_equal(zone.shm.sh->poisoned, 1);

        all_operations(&zone);

        check_equal(*zone.shm.shpool->mutex.lock, 0);

        /* but for the mark nothing has changed */

        sh = *zone.shm.sh;
        zone.shm.sh->poisoned = 0;
        check_equal(sh.inside, 0);
        check(ngx_memcmp(before, zone.zone.shm.addr, ZONE) == 0);
        zone.shm.sh->poisoned = sh.poisoned;

        /* the next one is to notice it anew */

        zone.shm.sh->poisoned = 0;
    }

    check_equal(double_nwakes, 0);
    zone_close(&zone);
}


unit_case("only a reload makes it anew")
{
    zone_t    second, third;
    uint64_t  fence;

    fence = zone.shm.sh->fence;

    zone_reload(&second, &zone);
    check_equal(zone_init_process(&second), NGX_OK);
    check_equal(zone.shm.sh->generation, 1);

    /* the claim of the dead was swept on the way; another one */

    double_renew(3);
    double_become(3);
    op_init(&owner, 101, 1, 100);
    check_equal(op_claim(&second, &owner), NGX_IDEMPOTENCY_CLAIMED);
    owner.outcome = NGX_IDEMPOTENCY_DONE;
    op_respond(&owner, 100, 1);
    double_become(0);
    fence = owner.fence;

    /* a process of the old generation, shutting down, notices it */

    tear();
    check_equal(op_claims(&op, 1, 1, 100), NGX_IDEMPOTENCY_UNAVAILABLE);
    check(unit_logged("4711"));
    check_equal(zone.shm.sh->poisoned, 2);

    /* successors in either generation change nothing */

    check_equal(zone_init_process(&zone), NGX_OK);
    all_operations(&zone);
    all_operations(&second);

    check_equal(zone_init_process(&second), NGX_OK);
    all_operations(&zone);
    all_operations(&second);

    /* nor does a new configuration by itself */

    zone_reload(&third, &second);
    all_operations(&second);

    check_equal(zone_init_process(&third), NGX_OK);
    check(unit_logged("zone \"unit\" was recreated"));

    check_equal(third.shm.sh->poisoned, 0);
    check_equal(third.shm.sh->generation, 2);
    zone_check_empty(&third);

    /* what it knew is forgotten: late owners are told */

    double_become(3);
    check_equal(op_complete(&second, &owner), NGX_IDEMPOTENCY_STALE);
    double_become(0);

    op_init(&op, 1, 1, 100);
    check_equal(op_find(&third, &op), NGX_IDEMPOTENCY_ABSENT);
    check_equal(op_find(&zone, &op), NGX_IDEMPOTENCY_ABSENT);

    /* fences go on rising; all generations work in it */

    check_equal(op_claims(&op, 101, 1, 100), NGX_IDEMPOTENCY_CLAIMED);
    check(op.fence > fence);

    check_equal(op_complete(&second, &owner), NGX_IDEMPOTENCY_STALE);

    op.outcome = NGX_IDEMPOTENCY_DONE;
    op_respond(&op, 5000, 3);
    check_equal(op_complete(&third, &op), NGX_IDEMPOTENCY_OK);

    op_init(&op, 101, 1, 100);
    check_equal(op_claim(&second, &op), NGX_IDEMPOTENCY_BOUND);
    op_responded(&op, 5000, 3);
    check_equal(op_forget(&second, &op), NGX_IDEMPOTENCY_OK);

    /* once is enough */

    check_equal(zone_init_process(&third), NGX_OK);
    zone_check_empty(&third);
    zone_close(&third);
}


/* noticed only by the workers of a reload: which is somebody's decision too */

unit_case("torn, and noticed by a reload")
{
    uint64_t  fence;
    zone_t    second;

    fence = zone.shm.sh->fence;
    tear();

    zone_reload(&second, &zone);
    check_equal(zone_init_process(&second), NGX_OK);
    check(unit_logged("was recreated"));
    check(second.shm.sh->fence > fence);
    zone_check_empty(&second);

    zone_close(&second);
}


/* again and again, full of anything */

unit_case("made anew any number of times")
{
    uint64_t    fence;
    ngx_uint_t  i, n;

    fence = zone.shm.sh->fence;

    for (n = 0; n < 5; n++) {

        for (i = 0; i < 30; i++) {
            op_bind(&zone, 1000 + i, 1, 100, 10 + i, 700 * i);
        }

        check(zone.shm.sh->fence > fence);
        fence = zone.shm.sh->fence;

        /* nothing is believed of it, but for its fence */

        ngx_memset(zone.shm.sh->buckets, 0x5a, 64);
        ngx_memset(&zone.shm.shpool->free, 0x5a, sizeof(ngx_slab_page_t));
        ngx_memset(zone.shm.shpool->start + ngx_pagesize, 0x5a,
                   20 * ngx_pagesize);
        tear();

        check_equal(op_claims(&op, 1, 1, 100), NGX_IDEMPOTENCY_UNAVAILABLE);
        check(unit_logged("4711"));

        zone_reload(&zone, &zone);
        check_equal(zone_init_process(&zone), NGX_OK);
        check(unit_logged("was recreated"));
        check(zone.shm.sh->fence > fence);
        check_equal(zone.shm.sh->generation, n + 1);
        zone_check_empty(&zone);
    }

    zone_close(&zone);
}


/* noticed by the successor of the one that died: nothing was decided yet */

unit_case("torn, and noticed by a successor")
{
    tear();

    check_equal(zone_init_process(&zone), NGX_OK);
    check_equal(zone.shm.sh->poisoned, 1);
    check(unit_logged("was left inconsistent by process 4711"));
    all_operations(&zone);

    zone_reload(&zone, &zone);
    check_equal(zone_init_process(&zone), NGX_OK);
    check(unit_logged("was recreated"));
    zone_check_empty(&zone);

    zone_close(&zone);
}


/* who dies while it makes the zone anew leaves a torn one */

static void
die_making_it(void *data)
{
    zone_t  next;

    zone_die_after = *(ngx_uint_t *) data;
    zone_reload(&next, &zone);
    zone_init_process(&next);

    exit(0);
}


bare_case("dies while it makes it anew")
{
    int         status;
    ngx_pid_t   pid;
    ngx_uint_t  n, died;

    died = 0;

    for (n = 1; n <= 3; n++) {

        unit_setup();
        tear();

        pid = unit_fork(die_making_it, &n);
        check_equal(waitpid(pid, &status, 0), pid);

        if (!WIFSIGNALED(status)) {
            /* there is less to be allocated */
            check_equal(n, 3);
            zone_close(&zone);
            break;
        }

        died++;

        /* as the master does */

        ngx_shmtx_force_unlock(&zone.shm.shpool->mutex, pid);
        unit_expect("was left inconsistent");
        all_operations(&zone);
        unit_expect(NULL);

        zone_reload(&zone, &zone);
        zone_reload(&zone, &zone);
        check_equal(zone_init_process(&zone), NGX_OK);
        check(unit_logged("was recreated"));
        zone_check_empty(&zone);
        zone_close(&zone);
    }

    check_equal(died, 2);
}


/* others would look for it where it was */

unit_case("made anew at another place")
{
    zone_t                     next;
    ngx_idempotency_shm_sh_t  *sh;

    zone_reload(&next, &zone);

    sh = ngx_palloc(unit_pool, sizeof(ngx_idempotency_shm_sh_t));
    *sh = *zone.shm.sh;
    sh->inside = 4711;
    next.shm.sh = sh;

    check_equal(zone_init_process(&next), NGX_OK);
    check(unit_logged("cannot be recreated, restart nginx"));
    check(sh->poisoned > next.shm.generation);

    unit_unshared(zone.zone.shm.addr, zone.zone.shm.size);
}
