
/*
 * A disk that forgets.  The files themselves have all that was written, as a
 * running system sees it; the record has what of it is on disk, and every
 * write since, in its order.  Which names there are is looked up at each event
 * and is on disk when the directory is synced: before that, the names are
 * those of some moment since.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <sys/mman.h>
#include <dirent.h>
#include <sqlite3.h>

#include "unit.h"
#include "disk.h"


#define DISK_FILES    64
#define DISK_SIZE     ((size_t) 32 << 20)
#define DISK_WRITES   65536
#define DISK_BYTES    ((size_t) 256 << 20)
#define DISK_MOMENTS  256
#define DISK_NAMES    16
#define DISK_NAME     32

/* SQLite's index of the log is of a running system, and none on disk */

#define DISK_INDEX    "-shm"


typedef struct {
    ino_t              ino;
    size_t             size;
} disk_file_t;


/* bytes, or where the file ends from then on */

typedef struct {
    ngx_uint_t         file;
    ngx_uint_t         truncates;
    off_t              offset;
    size_t             len;
    size_t             data;
} disk_write_t;


typedef struct {
    char               name[DISK_NAME];
    ngx_uint_t         file;
} disk_name_t;


typedef struct {
    ngx_uint_t         n;
    disk_name_t        names[DISK_NAMES];
} disk_moment_t;


typedef struct {
    char               dir[256];
    char               image[256];
    uint64_t           random;
    ngx_uint_t         lies;
    ngx_uint_t         events;
    ngx_uint_t         at;
    ngx_uint_t         cut;

    ngx_uint_t         nfiles;
    disk_file_t        files[DISK_FILES];
    ngx_uint_t         nwrites;
    disk_write_t       writes[DISK_WRITES];
    size_t             nbytes;
    /* the first one is on disk */
    ngx_uint_t         nmoments;
    disk_moment_t      moments[DISK_MOMENTS];
} disk_t;


static disk_t  *disk;
static u_char  *disk_data;
static u_char  *disk_bytes;


static void *disk_map(size_t size);
static void disk_read(disk_name_t *name);
static void disk_look(disk_moment_t *moment, disk_moment_t *last);
static ngx_uint_t disk_file(ino_t ino, disk_moment_t *last);
static ngx_int_t disk_of(int fd);
static void disk_add(int fd, ngx_uint_t truncates, off_t offset, size_t len,
    const void *data);
static void disk_event(void);
static void disk_synced(ngx_uint_t file);
static void disk_apply(ngx_uint_t file, disk_write_t *write, off_t offset,
    size_t len);
static ssize_t disk_pwrite(int fd, const void *data, size_t len, off_t offset);
static int disk_ftruncate(int fd, off_t size);
ssize_t __real_pwrite64(int fd, const void *data, size_t len, off_t offset);
ssize_t __wrap_pwrite64(int fd, const void *data, size_t len, off_t offset);
static int disk_unlink(const char *name);
static void disk_forget(void);
static void disk_make(disk_name_t *name);


#define disk_content(file)  (disk_data + (file) * DISK_SIZE)


void
disk_init(void)
{
    sqlite3_vfs  *vfs;

    disk = disk_map(sizeof(disk_t));

    /* it has one of the first two */

    vfs = sqlite3_vfs_find(NULL);

    (void) vfs->xSetSystemCall(vfs, "pwrite",
                               (sqlite3_syscall_ptr) disk_pwrite);
    (void) vfs->xSetSystemCall(vfs, "pwrite64",
                               (sqlite3_syscall_ptr) disk_pwrite);
    (void) vfs->xSetSystemCall(vfs, "ftruncate",
                               (sqlite3_syscall_ptr) disk_ftruncate);
    (void) vfs->xSetSystemCall(vfs, "unlink",
                               (sqlite3_syscall_ptr) disk_unlink);
}


static void *
disk_map(size_t size)
{
    void  *p;

    p = mmap(NULL, size, PROT_READ|PROT_WRITE,
             MAP_SHARED|MAP_ANON|MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED) {
        unit_note("mmap() failed");
        exit(1);
    }

    return p;
}


void
disk_lies(ngx_uint_t lies)
{
    disk->lies = lies;
}


ngx_uint_t
disk_is_cut(void)
{
    return disk->cut;
}


void
disk_end(void)
{
    disk->dir[0] = '\0';

    if (disk_data) {
        (void) munmap(disk_data, DISK_FILES * DISK_SIZE);
        (void) munmap(disk_bytes, DISK_BYTES);
        disk_data = NULL;
    }
}


void
disk_begin(char *dir, char *image, ngx_uint_t events, uint64_t seed)
{
    ngx_uint_t  i;

    disk_end();

    /* zeros, as files are where nothing was written */

    disk_data = disk_map(DISK_FILES * DISK_SIZE);
    disk_bytes = disk_map(DISK_BYTES);

    snprintf(disk->dir, sizeof(disk->dir), "%s", dir);
    snprintf(disk->image, sizeof(disk->image), "%s", image);

    disk->random = seed;
    disk->events = 0;
    disk->at = events;
    disk->cut = 0;
    disk->nfiles = 0;
    disk->nwrites = 0;
    disk->nbytes = 0;
    disk->nmoments = 1;

    disk_look(&disk->moments[0], NULL);

    for (i = 0; i < disk->moments[0].n; i++) {
        disk_read(&disk->moments[0].names[i]);
    }
}


static void
disk_read(disk_name_t *name)
{
    int      fd;
    char     path[512];
    ssize_t  n;

    snprintf(path, sizeof(path), "%s/%s", disk->dir, name->name);

    fd = open(path, O_RDONLY);
    n = (fd == -1) ? -1 : read(fd, disk_content(name->file), DISK_SIZE);

    if (n == -1 || n == (ssize_t) DISK_SIZE) {
        unit_note("read() \"%s\" failed", path);
        exit(1);
    }

    close(fd);
    disk->files[name->file].size = n;
}


/* names, in the order in which they are found */

static void
disk_look(disk_moment_t *moment, disk_moment_t *last)
{
    DIR            *d;
    disk_name_t    *name;
    struct dirent  *e;

    moment->n = 0;

    d = opendir(disk->dir);

    while (d && (e = readdir(d)) != NULL) {

        if (e->d_name[0] == '.') {
            continue;
        }

        if (moment->n == DISK_NAMES || strlen(e->d_name) >= DISK_NAME) {
            unit_note("what is \"%s\"?", e->d_name);
            exit(1);
        }

        name = &moment->names[moment->n++];

        ngx_memzero(name, sizeof(disk_name_t));
        strcpy(name->name, e->d_name);
        name->file = disk_file(e->d_ino, last);
    }

    closedir(d);
}


/* one that was not there before is new, though it may have the number of one
   that is gone */

static ngx_uint_t
disk_file(ino_t ino, disk_moment_t *last)
{
    ngx_uint_t  i;

    for (i = 0; last && i < last->n; i++) {
        if (disk->files[last->names[i].file].ino == ino) {
            return last->names[i].file;
        }
    }

    if (disk->nfiles == DISK_FILES) {
        unit_note("too many files");
        exit(1);
    }

    disk->files[disk->nfiles].ino = ino;
    disk->files[disk->nfiles].size = 0;

    return disk->nfiles++;
}


/* -1: it is none of the directory's */

static ngx_int_t
disk_of(int fd)
{
    ngx_uint_t      i;
    struct stat     st;
    disk_moment_t  *last;

    if (fstat(fd, &st) == -1) {
        return -1;
    }

    disk_event();

    last = &disk->moments[disk->nmoments - 1];

    for (i = 0; i < last->n; i++) {
        if (disk->files[last->names[i].file].ino == st.st_ino
            && strstr(last->names[i].name, DISK_INDEX) == NULL)
        {
            return last->names[i].file;
        }
    }

    return -1;
}


static void
disk_event(void)
{
    disk_moment_t  *moment, *last;

    if (disk->nmoments == DISK_MOMENTS) {
        unit_note("too many changes of names");
        exit(1);
    }

    last = &disk->moments[disk->nmoments - 1];
    moment = last + 1;

    disk_look(moment, last);

    if (moment->n != last->n
        || ngx_memcmp(moment->names, last->names,
                      last->n * sizeof(disk_name_t)) != 0)
    {
        disk->nmoments++;
    }

    disk->events++;

    if (disk->events == disk->at) {
        disk_cut();
        _exit(0);
    }
}


static ssize_t
disk_pwrite(int fd, const void *data, size_t len, off_t offset)
{
    return __wrap_pwrite64(fd, data, len, offset);
}


ssize_t
__wrap_pwrite64(int fd, const void *data, size_t len, off_t offset)
{
    disk_add(fd, 0, offset, len, data);

    return __real_pwrite64(fd, data, len, offset);
}


static int
disk_ftruncate(int fd, off_t size)
{
    disk_add(fd, 1, size, 0, NULL);

    return ftruncate(fd, size);
}


static int
disk_unlink(const char *name)
{
    int  rc;

    rc = unlink(name);

    if (disk && disk->dir[0]) {
        disk_event();
    }

    return rc;
}


/* the cut may come before this, and this may be the first that is not there */

static void
disk_add(int fd, ngx_uint_t truncates, off_t offset, size_t len,
    const void *data)
{
    ngx_int_t      file;
    disk_write_t  *write;

    if (disk == NULL || disk->dir[0] == '\0') {
        return;
    }

    file = disk_of(fd);

    if (file == -1) {
        return;
    }

    if (disk->nwrites == DISK_WRITES || disk->nbytes + len > DISK_BYTES
        || offset + len > DISK_SIZE)
    {
        unit_note("too much was written");
        exit(1);
    }

    write = &disk->writes[disk->nwrites++];

    write->file = file;
    write->truncates = truncates;
    write->offset = offset;
    write->len = len;
    write->data = disk->nbytes;

    if (len) {
        ngx_memcpy(disk_bytes + disk->nbytes, data, len);
        disk->nbytes += len;
    }
}


/* SQLite takes this one for directories as well */

int
fdatasync(int fd)
{
    ngx_int_t    file;
    struct stat  st;

    if (disk == NULL || disk->dir[0] == '\0') {
        return 0;
    }

    file = disk_of(fd);

    if (disk->lies) {
        return 0;
    }

    if (file != -1) {
        disk_synced(file);

    } else if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode)) {
        disk->moments[0] = disk->moments[disk->nmoments - 1];
        disk->nmoments = 1;
    }

    return 0;
}


int
fsync(int fd)
{
    return fdatasync(fd);
}


static void
disk_synced(ngx_uint_t file)
{
    ngx_uint_t     i, k;
    disk_write_t  *write;

    for (i = 0, k = 0; i < disk->nwrites; i++) {
        write = &disk->writes[i];

        if (write->file == file) {
            disk_apply(file, write, write->offset, write->len);
        } else {
            disk->writes[k++] = *write;
        }
    }

    disk->nwrites = k;

    if (k == 0) {
        disk->nbytes = 0;
    }
}


/* a part of what was written */

static void
disk_apply(ngx_uint_t file, disk_write_t *write, off_t offset, size_t len)
{
    size_t  *size, end;

    size = &disk->files[file].size;
    end = offset + len;

    /* what lies between, and what a file has lost, is zero */

    if (write->truncates && end < *size) {
        ngx_memzero(disk_content(file) + end, *size - end);
        *size = end;
    }

    ngx_memcpy(disk_content(file) + offset,
               disk_bytes + write->data + (offset - write->offset), len);

    *size = ngx_max(*size, end);
}


/* each block that was written since the last sync is there or isn't, and the
   file is as long as it was to be, or as what is there */

static void
disk_forget(void)
{
    off_t          offset, end;
    ngx_uint_t     i, block, chance;
    disk_write_t  *write;

    static ngx_uint_t  blocks[] = { 4096, 4096, 4096, 512 };
    static ngx_uint_t  chances[] = { 0, 10, 10, 50, 50, 50, 90, 90, 100 };

    block = blocks[unit_below(&disk->random, 4)];
    chance = chances[unit_below(&disk->random, 9)];

    for (i = 0; i < disk->nwrites; i++) {
        write = &disk->writes[i];

        for (offset = write->offset;
             offset <= write->offset + (off_t) write->len;
             offset = end)
        {
            end = (offset / block + 1) * block;
            end = ngx_min(end, write->offset + (off_t) write->len);

            if (unit_below(&disk->random, 100) < chance) {
                disk_apply(write->file, write, offset, end - offset);
            }

            if (end == write->offset + (off_t) write->len) {
                break;
            }
        }

        if (unit_below(&disk->random, 2)) {
            offset = write->offset + write->len;
            disk->files[write->file].size =
                ngx_max(disk->files[write->file].size, (size_t) offset);
        }
    }
}


static void
disk_make(disk_name_t *name)
{
    int          fd;
    char         path[512];
    size_t       size;
    u_char      *content;
    ngx_uint_t   i;

    size = disk->files[name->file].size;
    content = disk_content(name->file);

    /* of the index there is anything, or nothing */

    if (strstr(name->name, DISK_INDEX)) {
        size = unit_below(&disk->random, 3) * 16384;

        for (i = 0; i < size; i++) {
            content[i] = (u_char) unit_random(&disk->random);
        }
    }

    snprintf(path, sizeof(path), "%s/%s", disk->image, name->name);

    fd = open(path, O_WRONLY|O_CREAT|O_TRUNC, 0600);

    if (fd == -1 || write(fd, content, size) != (ssize_t) size) {
        unit_note("write() \"%s\" failed", path);
        exit(1);
    }

    close(fd);
}


void
disk_cut(void)
{
    ngx_uint_t      i;
    disk_moment_t  *moment;

    disk->cut = 1;

    disk_forget();

    moment = &disk->moments[unit_below(&disk->random, disk->nmoments)];

    for (i = 0; i < moment->n; i++) {
        disk_make(&moment->names[i]);
    }

    /* nothing that is written from now on is of any interest */

    disk->dir[0] = '\0';
}
