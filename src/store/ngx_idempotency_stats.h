
/*
 * What a zone counts, in shared memory with it: results of requests, records,
 * times of waiting, use of space.  Counters only rise, over reloads, deaths of
 * workers and zones that are made anew.
 */


#ifndef _NGX_IDEMPOTENCY_STATS_H_INCLUDED_
#define _NGX_IDEMPOTENCY_STATS_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


/* the most results of a request that observe/log.c may count */

#define NGX_IDEMPOTENCY_STATS_RESULTS  16

/* the outcomes of records, and the differences between two requests */

#define NGX_IDEMPOTENCY_STATS_RECORDS  4
#define NGX_IDEMPOTENCY_STATS_DIFFERS  4

/* the bounds of a histogram, without the last one, infinity */

#define NGX_IDEMPOTENCY_STATS_BOUNDS   13

/* the trend of an hour compares a minute with the sixtieth behind it */

#define NGX_IDEMPOTENCY_STATS_MINUTES  61


/* why a backing did not answer */

typedef enum {
    NGX_IDEMPOTENCY_ERROR_TIMEOUT = 0,
    NGX_IDEMPOTENCY_ERROR_CONNECT,
    NGX_IDEMPOTENCY_ERROR_REFUSED,     /* the backing itself says so */
    NGX_IDEMPOTENCY_ERROR_PROTOCOL,    /* the answer is not understood */
    NGX_IDEMPOTENCY_ERROR_FULL,
    NGX_IDEMPOTENCY_ERROR_OTHER,
    NGX_IDEMPOTENCY_ERRORS
} ngx_idempotency_error_e;

extern const char  *ngx_idempotency_error_names[NGX_IDEMPOTENCY_ERRORS];


/* a histogram: how often it took so long; and the sum, in milliseconds */

typedef struct {
    ngx_atomic_t                    buckets[NGX_IDEMPOTENCY_STATS_BOUNDS + 1];
    ngx_atomic_t                    sum;
} ngx_idempotency_times_t;

extern const ngx_msec_t
    ngx_idempotency_stats_bounds[NGX_IDEMPOTENCY_STATS_BOUNDS];


typedef struct {
    ngx_atomic_t                    results[NGX_IDEMPOTENCY_STATS_RESULTS];
    /* results of a dry run */
    ngx_atomic_t                    dry_run[NGX_IDEMPOTENCY_STATS_RESULTS];
    ngx_atomic_t                    differs[NGX_IDEMPOTENCY_STATS_DIFFERS];

    ngx_atomic_t                    races;
    ngx_atomic_t                    unavailable;
    ngx_atomic_t                    abandoned;
    ngx_atomic_t                    replayed_bytes;
    ngx_idempotency_times_t         wait;

    /* of the backing */
    ngx_idempotency_times_t         latency;
    ngx_atomic_t                    errors[NGX_IDEMPOTENCY_ERRORS];

    /* changed with the zone's lock held only */
    uint64_t                        expired;
    uint64_t                        in_doubt;
    uint64_t                        released;
} ngx_idempotency_counters_t;


typedef struct {
    ngx_idempotency_counters_t      counters;

    /* the records now */
    uint64_t                        records[NGX_IDEMPOTENCY_STATS_RECORDS];

    /* the zone's pages; the last percentage that the log was warned of */
    ngx_uint_t                      pages;
    ngx_uint_t                      warned;

    /* the pages in use in each minute, in a ring; when the first minute began,
       in seconds, and how many were noted */
    uint32_t                        used[NGX_IDEMPOTENCY_STATS_MINUTES];
    uint32_t                        began;
    ngx_uint_t                      noted;
} ngx_idempotency_stats_t;


/* the figures of a store; sizes in bytes, times in milliseconds */

typedef struct {
    ngx_idempotency_counters_t      counters;
    uint64_t                        records[NGX_IDEMPOTENCY_STATS_RECORDS];

    size_t                          size;
    size_t                          used;
    ngx_uint_t                      evict;
    /* the age of the oldest record, if there is one */
    ngx_uint_t                      empty;
    ngx_msec_t                      oldest;
    /* growth in bytes per hour, over the last hour, if it is known; in how many
       seconds the zone will be full, or -1 for never */
    ngx_uint_t                      known;
    int64_t                         growth;
    int64_t                         full_in;

    /* NULL: there is no backing */
    const char                     *kind;
    const char                     *sync;
    ngx_uint_t                      up;
    uint64_t                        undelivered;
} ngx_idempotency_figures_t;


#define ngx_idempotency_stats_add(counter, n)                                \
    (void) ngx_atomic_fetch_add(&(counter), (ngx_atomic_int_t) (n))


void ngx_idempotency_stats_time(ngx_idempotency_times_t *times,
    ngx_msec_t ms);

/* with the zone's lock held: notes how many pages are free; returns the
   percentage to warn of now, or 0 */

ngx_uint_t ngx_idempotency_stats_space(ngx_idempotency_stats_t *stats,
    ngx_uint_t pfree, ngx_msec_t now);

/* with the zone's lock held: fills in growth and full_in */

void ngx_idempotency_stats_trend(ngx_idempotency_stats_t *stats,
    ngx_uint_t pfree, ngx_msec_t now, ngx_idempotency_figures_t *figures);


#endif /* _NGX_IDEMPOTENCY_STATS_H_INCLUDED_ */
