
/*
 * A wall clock that goes wrong by CLOCK_WRONG seconds, for LD_PRELOAD; or one
 * that another program holds: its microseconds stand in CLOCK_FILE, and 0 is the
 * real time.
 */

#define _GNU_SOURCE

#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>


static long              wrong;
static volatile int64_t *held;


__attribute__((constructor))
static void
clock_init(void)
{
    int          fd;
    void        *p;
    const char  *by;

    by = getenv("CLOCK_WRONG");
    wrong = by ? atol(by) : 0;

    by = getenv("CLOCK_FILE");
    fd = by ? open(by, O_RDONLY|O_CLOEXEC) : -1;

    if (fd != -1) {
        p = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
        held = (p == MAP_FAILED) ? NULL : p;
        close(fd);
    }
}


/* a Valkey that finds a processor's counter there tells the time by that */

FILE *
fopen(const char *path, const char *mode)
{
    FILE  *(*real)(const char *, const char *);

    if (held && strcmp(path, "/proc/cpuinfo") == 0) {
        return NULL;
    }

    *(void **) &real = dlsym(RTLD_NEXT, "fopen");

    return real(path, mode);
}


FILE *
fopen64(const char *path, const char *mode)
{
    return fopen(path, mode);
}


int
clock_gettime(clockid_t id, struct timespec *ts)
{
    int  rc;

    rc = (int) syscall(SYS_clock_gettime, id, ts);

    if (rc == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        ts->tv_sec += wrong;

        if (held && *held) {
            ts->tv_sec = *held / 1000000;
            ts->tv_nsec = *held % 1000000 * 1000;
        }
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
