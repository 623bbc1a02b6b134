
/*
 * Where a store in a file can't be: each reason in words that tell an operator
 * what to do.
 */


#include "ngx_idempotency_db.h"
#include "ngx_idempotency_place.h"


#if (NGX_IDEMPOTENCY_FILE)

#include <dirent.h>
#include <sys/vfs.h>


/* what SQLite's file format says: the header, and where in it */

#define PLACE_HEADER       100
#define PLACE_MAGIC        "SQLite format 3"
#define PLACE_PAGE_SIZE    16
#define PLACE_CHANGES      24
#define PLACE_PAGES        28
#define PLACE_VERSION      60
#define PLACE_ID           68
#define PLACE_CHANGES_OF   92

/* and of the index of a log: numbers as the machine has them, of pages */

#define PLACE_INDEX        100
#define PLACE_INDEX_IS     3007000
#define PLACE_INDEX_LOGGED 16
#define PLACE_INDEX_FILED  96

#define PLACE_NAME         (NGX_IDEMPOTENCY_FILE_PATH + 16)


typedef struct {
    long         type;
    const char  *name;
} place_network_t;


static ngx_uint_t place_may_make(const char *dir);
static ngx_uint_t place_may_give(int fd);
static ngx_int_t place_directory(ngx_idempotency_place_t *place);
static ngx_int_t place_parent(const char *path, char *dir);
static ngx_int_t place_network(ngx_idempotency_place_t *place,
    const char *dir);
static ngx_int_t place_file(ngx_idempotency_place_t *place);
static ngx_int_t place_rights(ngx_idempotency_place_t *place, const char *name,
    struct stat *st);
static ngx_int_t place_beside(ngx_idempotency_place_t *place, off_t *log);
static ngx_int_t place_logged(ngx_idempotency_place_t *place);
static ngx_int_t place_header(ngx_idempotency_place_t *place, off_t log);
static ngx_int_t place_stamp(ngx_idempotency_place_t *place, u_char *header);
static ngx_uint_t place_number(u_char *p);


/* whose server may be asked from several machines, while locks and memory that
   is shared are each machine's own */

static place_network_t  place_networks[] = {
    { 0x6969, "NFS" },
    { 0x517b, "SMB" },
    { (long) 0xff534d42, "CIFS" },
    { (long) 0xfe534d42, "SMB" },
    { 0x00c36400, "Ceph" },
    { 0x5346414f, "AFS" },
    { 0x6b414653, "AFS" },
    { 0x7461636f, "OCFS2" },
    { 0x01161970, "GFS2" },
    { 0x0bd00bd0, "Lustre" },
    { 0, NULL }
};


/* itself, and what may stand beside it; the first of these are logs */

#define PLACE_LOGS  3

static const char  *place_suffixes[] = {
    "",
    "-wal",
    "-journal",
    "-shm",
    "-owners",
    NULL
};


ngx_int_t
ngx_idempotency_place_check(ngx_idempotency_place_t *place)
{
    off_t  log;

    place->found = 0;
    place->left = 0;
    place->open = 0;

    if (place_directory(place) != NGX_OK) {
        return NGX_ERROR;
    }

    if (place->promised) {
        return NGX_OK;
    }

    if (place_file(place) != NGX_OK
        || place_beside(place, &log) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return place->found ? place_header(place, log) : NGX_OK;
}


/* as nginx does it with its own paths; whatever goes wrong is the check's to
   tell */

void
ngx_idempotency_place_give(ngx_idempotency_place_t *place, ngx_uid_t user,
    ngx_uint_t only_look)
{
    int          fd;
    char         dir[NGX_IDEMPOTENCY_FILE_PATH + 1];
    struct stat  st;

    if (ngx_strlen(place->path) > NGX_IDEMPOTENCY_FILE_PATH
        || place_parent(place->path, dir) != NGX_OK)
    {
        return;
    }

    if (lstat(dir, &st) == -1) {

        if (ngx_errno != NGX_ENOENT || !place_may_make(dir)) {
            return;
        }

        if (only_look) {
            place->promised = 1;
            return;
        }

        if (mkdir(dir, 0700) == -1) {
            return;
        }

        place->given = 1;
    }

    if (geteuid() != 0 || user == 0) {
        return;
    }

    fd = open(dir, O_RDONLY|O_DIRECTORY|O_CLOEXEC|O_NOFOLLOW);

    if (fd == -1) {
        return;
    }

    if (place_may_give(fd)) {

        if (only_look) {
            place->promised = 1;

        } else if (fchown(fd, user, -1) == 0) {
            place->given = 1;
        }
    }

    (void) close(fd);
}


/* nobody may put another one in its place who isn't root */

static ngx_uint_t
place_may_make(const char *dir)
{
    char         above[NGX_IDEMPOTENCY_FILE_PATH + 1];
    struct stat  st;

    if (place_parent(dir, above) != NGX_OK || stat(above, &st) == -1) {
        return 0;
    }

    return geteuid() != 0
           || (st.st_uid == 0
               && ((st.st_mode & S_ISVTX)
                   || (st.st_mode & (S_IWGRP|S_IWOTH)) == 0));
}


/* one with something in it may be meant for something else */

static ngx_uint_t
place_may_give(int fd)
{
    int             copy;
    DIR            *dir;
    ngx_uint_t      n;
    struct stat     st;
    struct dirent  *entry;

    if (fstat(fd, &st) == -1 || st.st_uid != 0
        || (st.st_mode & (S_IWGRP|S_IWOTH)))
    {
        return 0;
    }

    copy = dup(fd);
    dir = (copy == -1) ? NULL : fdopendir(copy);

    if (dir == NULL) {

        if (copy != -1) {
            (void) close(copy);
        }

        return 0;
    }

    n = 0;

    while ((entry = readdir(dir)) != NULL) {

        if (ngx_strcmp(entry->d_name, ".") != 0
            && ngx_strcmp(entry->d_name, "..") != 0)
        {
            n++;
            break;
        }
    }

    (void) closedir(dir);

    return n == 0;
}


/* SQLite makes files beside its own, and removes them */

static ngx_int_t
place_directory(ngx_idempotency_place_t *place)
{
    char         dir[NGX_IDEMPOTENCY_FILE_PATH + 1];
    struct stat  st;

    if (ngx_strlen(place->path) > NGX_IDEMPOTENCY_FILE_PATH) {
        return ngx_idempotency_place_refuse(place, 0,
                   "has too long a name: %d bytes are possible",
                   NGX_IDEMPOTENCY_FILE_PATH);
    }

    if (place_parent(place->path, dir) != NGX_OK) {
        return ngx_idempotency_place_refuse(place, 0,
                                            "is no path of a file");
    }

    if (stat(dir, &st) == -1) {

        if (ngx_errno == NGX_ENOENT && place->promised) {
            return NGX_OK;
        }

        if (ngx_errno == NGX_ENOENT) {
            return ngx_idempotency_place_refuse(place, 0,
                       "can't be there: make its directory, for the user that "
                       "the workers run as: install -d -m 0700 -o USER %s",
                       dir);
        }

        return ngx_idempotency_place_refuse(place, ngx_errno,
                   "can't be reached by the user that the workers run as, "
                   "which is %d", (int) geteuid());
    }

    if (!S_ISDIR(st.st_mode)) {
        return ngx_idempotency_place_refuse(place, 0,
                   "can't be there: %s is no directory", dir);
    }

    if ((st.st_mode & S_IWOTH) && !(st.st_mode & S_ISVTX)) {
        place->anybodys = st.st_mode & 07777;
    }

    if (!place->promised && access(dir, W_OK|X_OK) == -1) {
        return ngx_idempotency_place_refuse(place, ngx_errno,
                   "can't be used: the user that the workers run as, which is "
                   "%d, must be able to write to its directory: chown %d %s",
                   (int) geteuid(), (int) geteuid(), dir);
    }

    return place_network(place, dir);
}


static ngx_int_t
place_parent(const char *path, char *dir)
{
    char  *slash;

    strcpy(dir, path);

    slash = strrchr(dir, '/');
    if (slash == NULL || slash[1] == '\0') {
        return NGX_ERROR;
    }

    slash[slash == dir] = '\0';

    return NGX_OK;
}


static ngx_int_t
place_network(ngx_idempotency_place_t *place, const char *dir)
{
    struct statfs     fs;
    place_network_t  *network;

    if (statfs(dir, &fs) == -1) {
        return ngx_idempotency_place_refuse(place, ngx_errno,
                                            "can't be used: statfs() failed");
    }

    for (network = place_networks; network->name; network++) {

        if ((uint32_t) fs.f_type == (uint32_t) network->type) {
            return ngx_idempotency_place_refuse(place, 0,
                       "is on a network file system (%s); name a path on a "
                       "disk of this machine", network->name);
        }
    }

    return NGX_OK;
}


static ngx_int_t
place_file(ngx_idempotency_place_t *place)
{
    struct stat  st;

    if (lstat(place->path, &st) == -1) {

        if (ngx_errno == NGX_ENOENT) {
            return NGX_OK;
        }

        return ngx_idempotency_place_refuse(place, ngx_errno,
                                            "can't be looked at");
    }

    place->found = 1;

    if (S_ISDIR(st.st_mode)) {
        return ngx_idempotency_place_refuse(place, 0,
                                       "is a directory; name a file in it");
    }

    /* its other files and its locks have their names from its own */

    if (S_ISLNK(st.st_mode)) {
        return ngx_idempotency_place_refuse(place, 0,
                   "is a symbolic link; name the file itself");
    }

    if (place_rights(place, place->path, &st) != NGX_OK) {
        return NGX_ERROR;
    }

    if (st.st_size == 0) {
        return ngx_idempotency_place_refuse(place, 0,
                   "is empty, what it knew is lost; restore it, or remove it "
                   "to begin anew");
    }

    return NGX_OK;
}


static ngx_int_t
place_rights(ngx_idempotency_place_t *place, const char *name,
    struct stat *st)
{
    if (!S_ISREG(st->st_mode)) {
        return ngx_idempotency_place_refuse(place, 0,
                   "can't be used: %s is no regular file; remove that", name);
    }

    if (st->st_nlink > 1) {
        return ngx_idempotency_place_refuse(place, 0,
                   "can't be used: %s has %d names, and may have one; copy "
                   "it, and remove the others", name, (int) st->st_nlink);
    }

    if (st->st_uid != geteuid()) {
        return ngx_idempotency_place_refuse(place, 0,
                   "can't be used: %s belongs to user %d, and the workers run "
                   "as %d; chown %d %s", name, (int) st->st_uid,
                   (int) geteuid(), (int) geteuid(), name);
    }

    if ((st->st_mode & 0600) != 0600) {
        return ngx_idempotency_place_refuse(place, 0,
                   "can't be used: %s has the mode %04o; chmod 0600 %s",
                   name, (int) (st->st_mode & 07777), name);
    }

    if ((st->st_mode & 077) && place->open == 0) {
        place->open = st->st_mode & 07777;
    }

    return NGX_OK;
}


/*
 * What stands beside it, as it was left; a log may hold all that was written
 * of late, and would be taken for one of a new file's.
 */

static ngx_int_t
place_beside(ngx_idempotency_place_t *place, off_t *log)
{
    char           name[PLACE_NAME];
    ngx_uint_t     i;
    struct stat    st;

    *log = 0;

    for (i = 1; place_suffixes[i]; i++) {

        (void) snprintf(name, PLACE_NAME, "%s%s", place->path,
                        place_suffixes[i]);

        if (lstat(name, &st) == -1) {
            continue;
        }

        if (place_rights(place, name, &st) != NGX_OK) {
            return NGX_ERROR;
        }

        if (i >= PLACE_LOGS) {
            continue;
        }

        *log += st.st_size;

        place->left |= (st.st_size != 0);
    }

    return place->found ? place_logged(place) : NGX_OK;
}


/*
 * Who closes the file orderly leaves no index.  One that was left, without its
 * log, knows whether that had anything that is not in the file.
 */

static ngx_int_t
place_logged(ngx_idempotency_place_t *place)
{
    int           fd;
    char          name[PLACE_NAME];
    u_char        index[PLACE_INDEX];
    ssize_t       n;
    uint32_t      is, logged, filed;
    struct stat   st;

    (void) snprintf(name, PLACE_NAME, "%s-wal", place->path);

    if (lstat(name, &st) == 0) {
        return NGX_OK;
    }

    (void) snprintf(name, PLACE_NAME, "%s-shm", place->path);

    fd = open(name, O_RDONLY|O_CLOEXEC|O_NOFOLLOW|O_NONBLOCK);

    if (fd == -1) {
        return NGX_OK;
    }

    n = pread(fd, index, PLACE_INDEX, 0);

    (void) close(fd);

    if (n != PLACE_INDEX) {
        return NGX_OK;
    }

    ngx_memcpy(&is, index, sizeof(uint32_t));
    ngx_memcpy(&logged, index + PLACE_INDEX_LOGGED, sizeof(uint32_t));
    ngx_memcpy(&filed, index + PLACE_INDEX_FILED, sizeof(uint32_t));

    if (is != PLACE_INDEX_IS || logged <= filed) {
        return NGX_OK;
    }

    return ngx_idempotency_place_refuse(place, 0,
               "is without %s-wal, which had what was written last; restore "
               "that, or remove %s* to begin anew", place->path, place->path);
}


/* before SQLite has it in its hands, as that repairs what it takes for its
   own; and all that nginx -t looks at */

static ngx_int_t
place_header(ngx_idempotency_place_t *place, off_t log)
{
    int           fd;
    off_t         size;
    u_char        header[PLACE_HEADER];
    ssize_t       n;
    ngx_err_t     err;
    struct stat   st;

    fd = open(place->path, O_RDONLY|O_CLOEXEC|O_NOFOLLOW|O_NONBLOCK);

    if (fd == -1) {
        return ngx_idempotency_place_refuse(place, ngx_errno,
                                            "can't be opened");
    }

    ngx_memzero(header, PLACE_HEADER);

    n = pread(fd, header, PLACE_HEADER, 0);
    err = (n == -1 || fstat(fd, &st) == -1) ? ngx_errno : 0;

    (void) close(fd);

    if (err) {
        return ngx_idempotency_place_refuse(place, err, "can't be read");
    }

    if (place_stamp(place, header) != NGX_OK) {
        return NGX_ERROR;
    }

    /* who wrote it before there were so many pages did not count them */

    if (log || ngx_memcmp(header + PLACE_CHANGES, header + PLACE_CHANGES_OF, 4)
               != 0)
    {
        return NGX_OK;
    }

    size = (header[PLACE_PAGE_SIZE] << 8) + header[PLACE_PAGE_SIZE + 1];
    size = (size == 1) ? 65536 : size;
    size *= place_number(header + PLACE_PAGES);

    if (st.st_size < size) {
        return ngx_idempotency_place_refuse(place, 0,
                   "is damaged, %lld of its %lld bytes are there; restore it, "
                   "or remove it to begin anew", (long long) st.st_size,
                   (long long) size);
    }

    return NGX_OK;
}


static ngx_int_t
place_stamp(ngx_idempotency_place_t *place, u_char *header)
{
    ngx_uint_t     version;
    static u_char  zeros[PLACE_HEADER];

    if (ngx_memcmp(header, zeros, PLACE_HEADER) == 0) {
        return ngx_idempotency_place_refuse(place, 0,
                   "is damaged, it begins with zeros; restore it, or remove "
                   "it to begin anew");
    }

    if (ngx_memcmp(header, PLACE_MAGIC, sizeof(PLACE_MAGIC)) != 0
        || place_number(header + PLACE_ID) != NGX_IDEMPOTENCY_DB_ID)
    {
        return ngx_idempotency_place_refuse(place, 0,
                   "is a file of another program, or damaged; name another "
                   "path");
    }

    version = place_number(header + PLACE_VERSION);

    if (version != NGX_IDEMPOTENCY_DB_VERSION) {
        return ngx_idempotency_place_refuse(place, 0,
                   "is of version %d, and this module knows version %d; "
                   "load the module that wrote it, or name another path",
                   (int) version, NGX_IDEMPOTENCY_DB_VERSION);
    }

    return NGX_OK;
}


static ngx_uint_t
place_number(u_char *p)
{
    return ((ngx_uint_t) p[0] << 24) + (p[1] << 16) + (p[2] << 8) + p[3];
}


ngx_int_t
ngx_idempotency_place_close(ngx_idempotency_place_t *place)
{
    int          fd;
    char         name[PLACE_NAME];
    ngx_err_t    err;
    ngx_uint_t   i;
    struct stat  st;

    for (i = 0; place_suffixes[i]; i++) {

        (void) snprintf(name, PLACE_NAME, "%s%s", place->path,
                        place_suffixes[i]);

        fd = open(name, O_RDONLY|O_CLOEXEC|O_NOFOLLOW|O_NONBLOCK);

        if (fd == -1) {
            continue;
        }

        err = 0;

        if (fstat(fd, &st) == -1
            || ((st.st_mode & 077) && fchmod(fd, 0600) == -1))
        {
            err = ngx_errno;
        }

        (void) close(fd);

        if (err) {
            return ngx_idempotency_place_refuse(place, err,
                       "can't be used: chmod 0600 %s failed", name);
        }
    }

    return NGX_OK;
}


ngx_int_t
ngx_idempotency_place_make(ngx_idempotency_place_t *place, const char *name)
{
    int  fd;

    /* what somebody left who was killed while he made it */

    ngx_idempotency_place_remove(name);

    fd = open(name, O_RDWR|O_CREAT|O_EXCL|O_CLOEXEC|O_NOFOLLOW, 0600);

    if (fd == -1) {
        return ngx_idempotency_place_refuse(place, ngx_errno,
                                            "can't be made");
    }

    (void) close(fd);

    return NGX_OK;
}


/* a file that is there is whole: it comes when it is one, name and all */

ngx_int_t
ngx_idempotency_place_take(ngx_idempotency_place_t *place, const char *name)
{
    int   fd, rc;
    char  dir[NGX_IDEMPOTENCY_FILE_PATH + 1];

    if (rename(name, place->path) == -1) {
        return ngx_idempotency_place_refuse(place, ngx_errno,
                                            "can't be made");
    }

    (void) place_parent(place->path, dir);

    fd = open(dir, O_RDONLY|O_DIRECTORY|O_CLOEXEC);

    rc = (fd == -1) ? -1 : fsync(fd);

    if (rc == -1) {
        (void) ngx_idempotency_place_refuse(place, ngx_errno,
                                            "can't be made: fsync() failed");
    }

    if (fd != -1) {
        (void) close(fd);
    }

    return rc == 0 ? NGX_OK : NGX_ERROR;
}


void
ngx_idempotency_place_remove(const char *name)
{
    (void) unlink(name);

    ngx_idempotency_place_remove_logs(name);
}


void
ngx_idempotency_place_remove_logs(const char *name)
{
    char        other[PLACE_NAME];
    ngx_uint_t  i;

    for (i = 1; i <= PLACE_LOGS; i++) {
        (void) snprintf(other, PLACE_NAME, "%s%s", name, place_suffixes[i]);
        (void) unlink(other);
    }
}


ngx_int_t
ngx_idempotency_place_refuse(ngx_idempotency_place_t *place, ngx_err_t err,
    const char *fmt, ...)
{
    va_list  args;

    va_start(args, fmt);
    (void) vsnprintf(place->why, sizeof(place->why), fmt, args);
    va_end(args);

    place->err = err;

    return NGX_ERROR;
}


#endif
