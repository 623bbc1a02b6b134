
/*
 * The witness, in bytes: two slots of a sector each, written in turn, so that
 * one that is torn by a power cut leaves the other.  A slot is
 *
 *     0   8   "idem-wit"
 *     8   16  the file's identity
 *     24  8   the number, the lowest byte first
 *     32  4   CRC32 of what is before
 *
 * It is written without a sync, into space that it has from its beginning: a
 * full disk does not stop it, and what of it is on disk is some earlier truth.
 * One writes at a time, or a late one would take the newer slot.
 */


#include "ngx_idempotency_owners.h"
#include "ngx_idempotency_witness.h"


#if (NGX_IDEMPOTENCY_FILE)


#define WITNESS_MAGIC   "idem-wit"
#define WITNESS_SECTOR  512
#define WITNESS_SUM     32
#define WITNESS_SLOT    36

/* milliseconds: who writes it does so at once, or is stopped */

#define WITNESS_WAIT    5


static int witness_open(const char *path, int flags);
static void witness_slots(int fd, ngx_idempotency_mark_t *mark,
    ngx_uint_t *valid);


ngx_int_t
ngx_idempotency_witness_read(const char *path, ngx_idempotency_mark_t *mark)
{
    int                     fd;
    ngx_uint_t              valid[2];
    ngx_idempotency_mark_t  marks[2];

    fd = witness_open(path, O_RDONLY);

    if (fd == -1) {
        return (ngx_errno == NGX_ENOENT) ? NGX_DECLINED : NGX_ERROR;
    }

    witness_slots(fd, marks, valid);

    (void) close(fd);

    if (!valid[0] && !valid[1]) {
        return NGX_DECLINED;
    }

    *mark = marks[valid[1] && (!valid[0]
                               || marks[1].number > marks[0].number)];

    return NGX_OK;
}


ngx_int_t
ngx_idempotency_witness_write(const char *path, ngx_idempotency_mark_t *mark,
    ngx_uint_t anew)
{
    int                     fd, rc;
    u_char                  slot[WITNESS_SLOT];
    uint32_t                sum;
    ngx_uint_t              i, newer, valid[2];
    struct stat             st;
    ngx_idempotency_mark_t  marks[2];

    static u_char           zeros[2 * WITNESS_SECTOR];

    fd = witness_open(path, O_RDWR|O_CREAT);

    if (fd == -1) {
        return NGX_ERROR;
    }

    rc = 0;

    if (ngx_idempotency_owners_witness_lock(fd, WITNESS_WAIT) == NGX_BUSY) {
        goto done;
    }

    if (fstat(fd, &st) == -1) {
        rc = -1;
        goto done;
    }

    if (st.st_size < (off_t) sizeof(zeros)
        && pwrite(fd, zeros, sizeof(zeros), 0) != (ssize_t) sizeof(zeros))
    {
        rc = -1;
        goto done;
    }

    witness_slots(fd, marks, valid);

    newer = (valid[1] && (!valid[0] || marks[1].number > marks[0].number));

    if (valid[newer] && !anew
        && (ngx_memcmp(marks[newer].identity, mark->identity,
                       NGX_IDEMPOTENCY_MARK_LEN) != 0
            || marks[newer].number >= mark->number))
    {
        goto done;
    }

    ngx_memcpy(slot, WITNESS_MAGIC, 8);
    ngx_memcpy(slot + 8, mark->identity, NGX_IDEMPOTENCY_MARK_LEN);

    for (i = 0; i < 8; i++) {
        slot[24 + i] = (u_char) ((uint64_t) mark->number >> (8 * i));
    }

    sum = ngx_crc32_long(slot, WITNESS_SUM);

    for (i = 0; i < 4; i++) {
        slot[WITNESS_SUM + i] = (u_char) (sum >> (8 * i));
    }

    if (pwrite(fd, slot, WITNESS_SLOT,
               (valid[newer] ? !newer : 0) * WITNESS_SECTOR) != WITNESS_SLOT)
    {
        rc = -1;
    }

    /* what was another file's must not be taken for the newer one */

    if (anew && rc == 0
        && pwrite(fd, slot, WITNESS_SLOT,
                  (valid[newer] ? newer : 1) * WITNESS_SECTOR) != WITNESS_SLOT)
    {
        rc = -1;
    }

done:

    (void) close(fd);

    return rc == 0 ? NGX_OK : NGX_ERROR;
}


static int
witness_open(const char *path, int flags)
{
    int   fd;
    char  name[NGX_IDEMPOTENCY_FILE_PATH + sizeof(NGX_IDEMPOTENCY_WITNESS)];

    if (ngx_strlen(path) > NGX_IDEMPOTENCY_FILE_PATH) {
        ngx_set_errno(NGX_ENAMETOOLONG);
        return -1;
    }

    (void) ngx_sprintf((u_char *) name, "%s" NGX_IDEMPOTENCY_WITNESS "%Z",
                       path);

    fd = open(name, flags|O_CLOEXEC|O_NOFOLLOW|O_NONBLOCK, 0600);

    return fd;
}


static void
witness_slots(int fd, ngx_idempotency_mark_t *marks, ngx_uint_t *valid)
{
    u_char      slot[WITNESS_SLOT];
    uint32_t    sum;
    uint64_t    number;
    ngx_uint_t  i, k;

    for (i = 0; i < 2; i++) {
        valid[i] = 0;

        if (pread(fd, slot, WITNESS_SLOT, i * WITNESS_SECTOR) != WITNESS_SLOT
            || ngx_memcmp(slot, WITNESS_MAGIC, 8) != 0)
        {
            continue;
        }

        sum = 0;
        number = 0;

        for (k = 4; k; k--) {
            sum = sum << 8 | slot[WITNESS_SUM + k - 1];
        }

        for (k = 8; k; k--) {
            number = number << 8 | slot[24 + k - 1];
        }

        if (sum == ngx_crc32_long(slot, WITNESS_SUM)) {
            ngx_memcpy(marks[i].identity, slot + 8, NGX_IDEMPOTENCY_MARK_LEN);
            marks[i].number = number;
            marks[i].filed = 0;
            valid[i] = 1;
        }
    }
}


#endif
