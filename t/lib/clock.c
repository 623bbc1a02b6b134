
/* A wall clock that goes wrong by CLOCK_WRONG seconds, for LD_PRELOAD. */

#define _GNU_SOURCE

#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>


static long  wrong;


__attribute__((constructor))
static void
clock_init(void)
{
    const char  *by;

    by = getenv("CLOCK_WRONG");
    wrong = by ? atol(by) : 0;
}


int
clock_gettime(clockid_t id, struct timespec *ts)
{
    int  rc;

    rc = (int) syscall(SYS_clock_gettime, id, ts);

    if (rc == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        ts->tv_sec += wrong;
    }

    return rc;
}


int
gettimeofday(struct timeval *restrict tv, void *restrict tz)
{
    struct timespec  ts;

    (void) tz;

    if (clock_gettime(CLOCK_REALTIME, &ts) != 0) {
        return -1;
    }

    tv->tv_sec = ts.tv_sec;
    tv->tv_usec = ts.tv_nsec / 1000;

    return 0;
}


time_t
time(time_t *t)
{
    struct timespec  ts;

    if (clock_gettime(CLOCK_REALTIME, &ts) != 0) {
        return (time_t) -1;
    }

    if (t != NULL) {
        *t = ts.tv_sec;
    }

    return ts.tv_sec;
}
