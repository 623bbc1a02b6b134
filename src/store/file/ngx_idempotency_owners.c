
/*
 * The files beside the file of a store.
 *
 * The owners are locks on bytes of a file that stays empty: one byte for each
 * instance, one for commits, and one for starts.
 *
 * The witness is two slots of a sector each, written in turn: if a power cut
 * tears one, the other one is whole.  It is written without a sync, into space
 * that it has from its beginning: a full disk does not stop it, and any version
 * of it on disk was once true.  One process writes at a time, else a late one
 * would overwrite the newer slot.
 */


#include "ngx_idempotency_owners.h"


#if (NGX_IDEMPOTENCY_FILE)


#define OWNERS_NAME    (NGX_IDEMPOTENCY_FILE_PATH + 16)

/* the first instance's lock; no instance's number is so high */

#define OWNERS_FIRST   16
#define OWNERS_NONE    ((off_t) 1 << 62)

/* locks in the store's file itself, far from SQLite's and from any content */

#define OWNERS_WAYS    ((off_t) 1 << 60)

/* no system call waits for a lock with a deadline: it is tried again after so
   many milliseconds */

#define OWNERS_POLL    1


#define WITNESS_MAGIC   "idem-wit"
#define WITNESS_SECTOR  512

/* in milliseconds: a process writes the witness at once, or is stopped */

#define WITNESS_WAIT    5


typedef struct {
    u_char                  magic[8];
    u_char                  identity[NGX_IDEMPOTENCY_MARK_LEN];
    uint64_t                number;
    /* CRC32 of all members before */
    uint32_t                sum;
} witness_slot_t;

/* the bytes summed, and the bytes written */

#define WITNESS_SUM   offsetof(witness_slot_t, sum)
#define WITNESS_SLOT  (WITNESS_SUM + sizeof(uint32_t))


static ngx_int_t owners_set(int fd, short type, off_t byte);
static ngx_uint_t owners_held(int fd, off_t from, off_t n);
static ngx_uint_t owners_held_but(int fd, off_t from, off_t to, off_t but);
static off_t owners_way(int fd);
static ngx_uint_t owners_other_way(int file, off_t byte);
static int witness_open(const char *path, int flags);
static witness_slot_t *witness_newer(int fd, witness_slot_t *slots);


int
ngx_idempotency_owners_open(const char *path, ngx_uint_t create)
{
    int          fd, flags;
    char         name[OWNERS_NAME];
    struct stat  st;

    (void) snprintf(name, OWNERS_NAME, "%s-owners", path);

    /* without O_NONBLOCK the open of a pipe would wait for a reader */

    flags = O_RDWR|O_CLOEXEC|O_NOFOLLOW|O_NONBLOCK;

    fd = open(name, create ? flags|O_CREAT : flags, 0600);

    if (fd == -1 || (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))) {
        return fd;
    }

    (void) close(fd);
    ngx_set_errno(NGX_EINVAL);

    return -1;
}


ngx_int_t
ngx_idempotency_owners_hold(int fd, short type, uint64_t instance)
{
    return owners_set(fd, type, OWNERS_FIRST + instance);
}


ngx_uint_t
ngx_idempotency_owners_alive(int fd, uint64_t instance)
{
    return owners_held(fd, OWNERS_FIRST + instance, 1);
}


ngx_uint_t
ngx_idempotency_owners_others(int fd, uint64_t own)
{
    return owners_held_but(fd, 0, OWNERS_NONE, own);
}


ngx_uint_t
ngx_idempotency_owners_strangers(int fd, uint64_t own, uint64_t was)
{
    off_t  first, n;

    n = (off_t) 1 << NGX_IDEMPOTENCY_OWNERS_STORE_SHIFT;
    first = own & ~(n - 1);

    return owners_held_but(fd, 0, first, was)
           || owners_held_but(fd, first + n, OWNERS_NONE, was);
}


/* whether an instance from `from` up to `to` lives, other than `but` */

static ngx_uint_t
owners_held_but(int fd, off_t from, off_t to, off_t but)
{
    if (but >= from && but < to) {
        return owners_held_but(fd, from, but, to)
               || owners_held_but(fd, but + 1, to, to);
    }

    return from < to && owners_held(fd, OWNERS_FIRST + from, to - from);
}


ngx_int_t
ngx_idempotency_owners_lock(int fd, off_t byte, ngx_msec_t time)
{
    ngx_int_t  rc;

    for ( ;; ) {
        rc = owners_set(fd, F_WRLCK, byte);

        if (rc != NGX_BUSY || time < OWNERS_POLL) {
            return rc;
        }

        ngx_msleep(OWNERS_POLL);
        time -= OWNERS_POLL;
    }
}


void
ngx_idempotency_owners_unlock(int fd, off_t byte)
{
    (void) owners_set(fd, F_UNLCK, byte);
}


/* Locks the byte of the way by which this process reaches the file.  NGX_BUSY:
   another process came by another way.  The locks of others are looked at
   first: a process that is refused must keep no lock, as that would refuse the
   processes that came before it.  Two that come at the same moment by different
   ways both lock, and both are refused. */

ngx_int_t
ngx_idempotency_owners_only(int file, int fd)
{
    off_t  byte;

    byte = owners_way(fd);

    if (byte == OWNERS_WAYS) {
        return NGX_ERROR;
    }

    if (owners_other_way(file, byte)) {
        return NGX_BUSY;
    }

    if (owners_set(file, F_RDLCK, byte) != NGX_OK) {
        return NGX_ERROR;
    }

    return owners_other_way(file, byte) ? NGX_BUSY : NGX_OK;
}


ngx_uint_t
ngx_idempotency_owners_another_way(const char *path)
{
    int         file, fd;
    ngx_uint_t  other;

    file = open(path, O_RDONLY|O_CLOEXEC|O_NOFOLLOW|O_NONBLOCK);

    if (file == -1) {
        return 0;
    }

    fd = ngx_idempotency_owners_open(path, 0);
    other = owners_other_way(file, owners_way(fd));

    if (fd != -1) {
        (void) close(fd);
    }

    (void) close(file);

    return other;
}


/* the byte of the way by which this -owners was found; without one it is none
   that anybody locks */

static off_t
owners_way(int fd)
{
    struct stat  st;

    if (fstat(fd, &st) == -1) {
        return OWNERS_WAYS;
    }

    return OWNERS_WAYS + 1
           + (((uint64_t) st.st_ino * 0x9e3779b97f4a7c15ULL) >> 8
              ^ (uint64_t) st.st_dev) % (OWNERS_WAYS / 2);
}


/* length 0 means "to the end" for fcntl() */

static ngx_uint_t
owners_other_way(int file, off_t byte)
{
    return owners_held(file, OWNERS_WAYS, byte - OWNERS_WAYS)
           || owners_held(file, byte + 1, 0);
}


static ngx_int_t
owners_set(int fd, short type, off_t byte)
{
    struct flock  lock;

    ngx_memzero(&lock, sizeof(struct flock));

    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = byte;
    lock.l_len = 1;

    while (fcntl(fd, F_OFD_SETLK, &lock) == -1) {

        if (ngx_errno == NGX_EINTR) {
            continue;
        }

        return (ngx_errno == NGX_EAGAIN || ngx_errno == NGX_EACCES)
               ? NGX_BUSY : NGX_ERROR;
    }

    return NGX_OK;
}


/* whether another open file has the lock */

static ngx_uint_t
owners_held(int fd, off_t from, off_t n)
{
    struct flock  lock;

    ngx_memzero(&lock, sizeof(struct flock));

    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = from;
    lock.l_len = n;

    return fcntl(fd, F_OFD_GETLK, &lock) == -1 || lock.l_type != F_UNLCK;
}


ngx_int_t
ngx_idempotency_witness_read(const char *path, ngx_idempotency_mark_t *mark)
{
    int              fd;
    witness_slot_t  *newer, slots[2];

    fd = witness_open(path, O_RDONLY);

    if (fd == -1) {
        return (ngx_errno == NGX_ENOENT) ? NGX_DECLINED : NGX_ERROR;
    }

    newer = witness_newer(fd, slots);

    (void) close(fd);

    if (newer == NULL) {
        return NGX_DECLINED;
    }

    ngx_memcpy(mark->identity, newer->identity, NGX_IDEMPOTENCY_MARK_LEN);
    mark->number = newer->number;
    mark->filed = 0;

    return NGX_OK;
}


ngx_int_t
ngx_idempotency_witness_write(const char *path, ngx_idempotency_mark_t *mark,
    ngx_uint_t anew)
{
    int              fd;
    off_t            at;
    ngx_int_t        rc;
    struct stat      st;
    witness_slot_t   slot, *newer, slots[2];

    static u_char    zeros[2 * WITNESS_SECTOR];

    fd = witness_open(path, O_RDWR|O_CREAT);

    if (fd == -1) {
        return NGX_ERROR;
    }

    rc = NGX_OK;

    if (ngx_idempotency_owners_lock(fd, 0, WITNESS_WAIT) == NGX_BUSY) {
        goto done;
    }

    if (fstat(fd, &st) == -1
        || (st.st_size < (off_t) sizeof(zeros)
            && pwrite(fd, zeros, sizeof(zeros), 0) != (ssize_t) sizeof(zeros)))
    {
        rc = NGX_ERROR;
        goto done;
    }

    newer = witness_newer(fd, slots);

    if (newer && !anew
        && (ngx_memcmp(newer->identity, mark->identity,
                       NGX_IDEMPOTENCY_MARK_LEN) != 0
            || newer->number >= mark->number))
    {
        goto done;
    }

    ngx_memcpy(slot.magic, WITNESS_MAGIC, sizeof(slot.magic));
    ngx_memcpy(slot.identity, mark->identity, NGX_IDEMPOTENCY_MARK_LEN);
    slot.number = mark->number;
    slot.sum = ngx_crc32_long((u_char *) &slot, WITNESS_SUM);

    at = (newer == &slots[0]) ? WITNESS_SECTOR : 0;

    /* the other slot, too: another file's must not count as newer */

    if (pwrite(fd, &slot, WITNESS_SLOT, at) != (ssize_t) WITNESS_SLOT
        || (anew && pwrite(fd, &slot, WITNESS_SLOT, WITNESS_SECTOR - at)
                    != (ssize_t) WITNESS_SLOT))
    {
        rc = NGX_ERROR;
    }

done:

    (void) close(fd);

    return rc;
}


static int
witness_open(const char *path, int flags)
{
    char  name[OWNERS_NAME];

    (void) snprintf(name, OWNERS_NAME, "%s-witness", path);

    return open(name, flags|O_CLOEXEC|O_NOFOLLOW|O_NONBLOCK, 0600);
}


/* NULL: neither slot is whole */

static witness_slot_t *
witness_newer(int fd, witness_slot_t *slots)
{
    ngx_uint_t       i;
    witness_slot_t  *slot, *newer;

    newer = NULL;

    for (i = 0; i < 2; i++) {
        slot = &slots[i];

        if (pread(fd, slot, WITNESS_SLOT, i * WITNESS_SECTOR)
            == (ssize_t) WITNESS_SLOT
            && ngx_memcmp(slot->magic, WITNESS_MAGIC, sizeof(slot->magic)) == 0
            && slot->sum == ngx_crc32_long((u_char *) slot, WITNESS_SUM)
            && (newer == NULL || slot->number > newer->number))
        {
            newer = slot;
        }
    }

    return newer;
}


#endif
