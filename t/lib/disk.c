
/*
 * A disk with its troubles, for LD_PRELOAD: what is done to files whose path
 * contains DISK_FILES hangs, fails or is slow, as the file DISK says, which
 * everybody has mapped.  Its bytes: one for each kind of operation (see below),
 * and behind them, as numbers, how many hang now, and for each kind how many
 * milliseconds longer it takes.  See Disk.pm.
 *
 * '.' is well; 'h' hangs until it is not any more; 'k' does, too, and keeps the
 * process' files open, as the kernel does for a thread that it holds, even if the
 * process has ended; 'e' is EIO, 'f' ENOSPC, 'n'
 * ENOENT; 's' is slow, and a sync that is slow is no more than that: the disk below
 * may be slower.
 */

#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>


enum { DISK_OPEN, DISK_READ, DISK_WRITE, DISK_SYNC, DISK_ALL };


typedef struct {
    volatile char  how[16];
    int            hung;
    volatile int   slow[DISK_ALL];
} disk_t;


static disk_t  *disk;
static char     disk_files[256];


__attribute__((constructor))
static void
disk_init(void)
{
    int    fd;
    void  *p;

    if (getenv("DISK_FILES") == NULL || getenv("DISK") == NULL) {
        return;
    }

    /* nginx writes its processes' titles over the environment */

    (void) strncpy(disk_files, getenv("DISK_FILES"), sizeof(disk_files) - 1);

    fd = syscall(SYS_openat, AT_FDCWD, getenv("DISK"), O_RDWR|O_CLOEXEC, 0);

    if (fd == -1) {
        return;
    }

    p = mmap(NULL, sizeof(disk_t), PROT_READ|PROT_WRITE, MAP_SHARED, fd, 0);

    (void) syscall(SYS_close, fd);

    if (p != MAP_FAILED) {
        disk = p;
    }
}


static void
disk_hang(int op, char how)
{
    (void) __sync_fetch_and_add(&disk->hung, 1);

    if (how == 'k' && syscall(SYS_clone, CLONE_FILES, 0, 0, 0, 0) == 0) {

        while (disk->how[op] == how) {
            (void) usleep(1000);
        }

        _exit(0);
    }

    while (disk->how[op] == how) {
        (void) usleep(1000);
    }

    (void) __sync_fetch_and_sub(&disk->hung, 1);
}


/* 0: it may go on */

static int
disk_trouble(int op, const char *path)
{
    char  how;

    if (strstr(path, disk_files) == NULL) {
        return 0;
    }

    how = disk->how[op];

    if (how == 'h' || how == 'k') {
        disk_hang(op, how);
    }

    switch (disk->how[op]) {

    case 'e':
        errno = EIO;
        return -1;

    case 'f':
        errno = ENOSPC;
        return -1;

    case 'n':
        errno = ENOENT;
        return -1;

    case 's':
        (void) usleep(1000 * disk->slow[op]);
    }

    return 0;
}


static int
disk_path(int op, const char *path)
{
    if (disk == NULL || disk->how[op] == '.') {
        return 0;
    }

    return disk_trouble(op, path);
}


static int
disk_fd(int op, int fd)
{
    int      saved, rc;
    char     name[32], path[4096];
    ssize_t  n;

    if (disk == NULL || disk->how[op] == '.') {
        return 0;
    }

    saved = errno;

    (void) snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
    n = readlink(name, path, sizeof(path) - 1);

    rc = 0;
    errno = saved;

    if (n > 0) {
        path[n] = '\0';
        rc = disk_trouble(op, path);
    }

    return rc;
}


static int
disk_open(int dir, const char *path, int flags, mode_t mode)
{
    if (disk_path(DISK_OPEN, path) != 0) {
        return -1;
    }

    return syscall(SYS_openat, dir, path, flags, mode);
}


#define DISK_MODE(mode, flags)                                               \
    do {                                                                     \
        va_list  args;                                                       \
                                                                             \
        mode = 0;                                                            \
                                                                             \
        if (flags & (O_CREAT|O_TMPFILE)) {                                   \
            va_start(args, flags);                                           \
            mode = va_arg(args, mode_t);                                     \
            va_end(args);                                                    \
        }                                                                    \
    } while (0)


int
open(const char *path, int flags, ...)
{
    mode_t  mode;

    DISK_MODE(mode, flags);
    return disk_open(AT_FDCWD, path, flags, mode);
}


int
open64(const char *path, int flags, ...)
{
    mode_t  mode;

    DISK_MODE(mode, flags);
    return disk_open(AT_FDCWD, path, flags, mode);
}


int
openat(int dir, const char *path, int flags, ...)
{
    mode_t  mode;

    DISK_MODE(mode, flags);
    return disk_open(dir, path, flags, mode);
}


int
openat64(int dir, const char *path, int flags, ...)
{
    mode_t  mode;

    DISK_MODE(mode, flags);
    return disk_open(dir, path, flags, mode);
}


ssize_t
read(int fd, void *buf, size_t n)
{
    return disk_fd(DISK_READ, fd) ? -1 : syscall(SYS_read, fd, buf, n);
}


ssize_t
pread(int fd, void *buf, size_t n, off_t at)
{
    return disk_fd(DISK_READ, fd) ? -1 : syscall(SYS_pread64, fd, buf, n, at);
}


ssize_t
pread64(int fd, void *buf, size_t n, off64_t at)
{
    return pread(fd, buf, n, at);
}


ssize_t
write(int fd, const void *buf, size_t n)
{
    return disk_fd(DISK_WRITE, fd) ? -1 : syscall(SYS_write, fd, buf, n);
}


ssize_t
pwrite(int fd, const void *buf, size_t n, off_t at)
{
    return disk_fd(DISK_WRITE, fd) ? -1 : syscall(SYS_pwrite64, fd, buf, n, at);
}


ssize_t
pwrite64(int fd, const void *buf, size_t n, off64_t at)
{
    return pwrite(fd, buf, n, at);
}


int
ftruncate(int fd, off_t size)
{
    return disk_fd(DISK_WRITE, fd) ? -1 : syscall(SYS_ftruncate, fd, size);
}


int
ftruncate64(int fd, off64_t size)
{
    return ftruncate(fd, size);
}


static int
disk_sync(int fd, long call)
{
    if (disk_fd(DISK_SYNC, fd) != 0) {
        return -1;
    }

    return (disk && disk->how[DISK_SYNC] == 's') ? 0 : syscall(call, fd);
}


int
fsync(int fd)
{
    return disk_sync(fd, SYS_fsync);
}


int
fdatasync(int fd)
{
    return disk_sync(fd, SYS_fdatasync);
}
