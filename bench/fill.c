
/*
 * Fills a store's file, made by an nginx that has ended, with so many records,
 * by the very functions that nginx commits with:
 *
 *     fill PATH RECORDS
 *
 * Each has a response of 100 bytes and ends in a day.  They come in the order
 * of their tokens, as that is fast; the file is as it would be if they had not,
 * but for its pages, which are fuller.
 */


#include <ngx_config.h>
#include <ngx_core.h>

#include "store/file/ngx_idempotency_db.h"


#define BATCH     4096
#define RESPONSE  100


static ngx_uint_t
nobody_lives(void *data, uint64_t instance)
{
    return 0;
}


static void
make_item(ngx_idempotency_item_t *item, uint64_t i, uint64_t n, int64_t now)
{
    size_t    k;
    uint64_t  high, low;

    static u_char  response[RESPONSE];

    ngx_memzero(item, sizeof(ngx_idempotency_item_t));

    /* evenly over all there are */

    high = (uint64_t) -1 / n * i;
    low = i * 0x9e3779b97f4a7c15ULL;

    for (k = 0; k < 8; k++) {
        item->token[k] = (u_char) (high >> (56 - 8 * k));
        item->token[8 + k] = (u_char) (low >> (8 * k));
        item->token[16 + k] = (u_char) (low >> (56 - 8 * k));
        item->fingerprint[k] = (u_char) (low >> (8 * k));
    }

    item->what = NGX_IDEMPOTENCY_ITEM_PUT;
    item->instance = 1;
    item->fence = 1;
    item->window = (int64_t) 24 * 3600 * 1000;
    item->recorded = now;
    item->ends = now + item->window;
    item->outcome = NGX_IDEMPOTENCY_DONE;
    item->status = 200;
    item->response.data = response;
    item->response.len = RESPONSE;
}


int
main(int argc, char **argv)
{
    char                        error[NGX_IDEMPOTENCY_DB_ERROR];
    int64_t                     now;
    uint64_t                    i, n, count;
    ngx_idempotency_db_t       *db;
    ngx_idempotency_db_conf_t   conf;

    static ngx_idempotency_item_t  items[BATCH];

    if (argc != 3 || (n = strtoull(argv[2], NULL, 10)) == 0) {
        fprintf(stderr, "usage: fill PATH RECORDS\n");
        return 2;
    }

    ngx_memzero(&conf, sizeof(ngx_idempotency_db_conf_t));

    conf.path = argv[1];
    conf.sync = NGX_IDEMPOTENCY_SYNC_BATCHED;
    conf.alive = nobody_lives;

    db = ngx_idempotency_db_open(&conf, error, sizeof(error));

    if (db == NULL) {
        fprintf(stderr, "fill: \"%s\" %s\n", argv[1], error);
        return 1;
    }

    now = (int64_t) time(NULL) * 1000;

    for (i = 0; i < n; i += count) {

        for (count = 0; count < BATCH && i + count < n; count++) {
            make_item(&items[count], i + count, n, now);
        }

        if (ngx_idempotency_db_commit(db, items, count, now) != NGX_OK) {
            fprintf(stderr, "fill: \"%s\" %s\n", argv[1],
                    ngx_idempotency_db_state(db)->error);
            return 1;
        }
    }

    ngx_idempotency_db_close(db);

    return 0;
}
