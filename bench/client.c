
/*
 * The clients and the upstream of bench/run: one process on a core of its own
 * that never sleeps while it measures, so that nobody's wake-up is a part of
 * what is measured.
 *
 *     client CORE
 *
 * Prints the upstream's port, reads commands and answers each with a line:
 *
 *     burst PORT PID CONNECTIONS MS COUNT KEYS FILE
 *
 * sends the request in FILE over so many connections, which stay open, for MS
 * milliseconds or COUNT times (0: no such end), the first 503 being an end as
 * well.  A key of 36 times "K" in its header stands for a fresh one each time
 * at this port or, if KEYS isn't 0, for so many in turn; if it is less, for the
 * latest so many fresh ones, here and there.  The answer:
 *
 *     EXECUTED REPLAYED REFUSED CPU WORST
 *
 * what became of the requests, the nanoseconds that the main thread of process
 * PID was given meanwhile, and the longest that one took, in nanoseconds.
 *
 *     crowd PORT PID CONNECTIONS FILE FILE
 *
 * sends the first request, with one key, over so many connections of their own,
 * to an upstream that holds it ("/hold/SIZE").  Once the process has nothing to
 * do any more, it is answered, and the second request is sent again and again
 * over one connection until all have their answers.  The answer is the same,
 * WORST that of the second request.
 *
 * The upstream answers "/SIZE" with so many bytes.
 */


#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>


#define CONNS     20000
#define HEAD      2048
#define KEY       36
#define LARGEST   (4 * 1024 * 1024)


/* a message that is read or written: its head, and what is left of its body */

typedef struct {
    int      fd;
    int      upstream;
    int      writing;      /* EPOLLOUT is asked for */
    int      held;
    size_t   size;         /* of what the upstream is to answer */
    char     in[HEAD];
    size_t   nin;
    size_t   skip;         /* of a body that is read */
    int      body_next;      /* the head was read */
    int      code;
    int      replayed;
    char     out[HEAD];
    size_t   nout, sent;
    char    *body;
    size_t   nbody;
    int64_t  from;         /* a request is under way since then */
} conn_t;


typedef struct {
    char    *bytes;
    size_t   head, all;
    char    *key;
} request_t;


static int        ep, listener;
static conn_t    *conns[CONNS + 1024];     /* by descriptor */
static char       filler[LARGEST];
static uint64_t  *keys, crowds;
static uint64_t   executed, replayed, refused, outstanding;
static int64_t    worst;
static int        full;

/* what is sent again when there is an answer */

static request_t  sending, probing;
static int64_t    same;
static uint64_t   turn, left;
static int64_t    until;
static int        crowding;
static conn_t    *prober;


static void
die(const char *what)
{
    perror(what);
    exit(1);
}


static int64_t
now(void)
{
    struct timespec  ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);

    return (int64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}


static int64_t
cpu_of(int pid)
{
    char       path[64];
    FILE      *f;
    long long  ns;

    snprintf(path, sizeof(path), "/proc/%d/schedstat", pid);

    f = fopen(path, "r");
    if (f == NULL || fscanf(f, "%lld", &ns) != 1) {
        die(path);
    }

    fclose(f);

    return ns;
}


static conn_t *
conn_new(int fd, int upstream)
{
    int                 one = 1;
    conn_t             *c;
    struct epoll_event  ee;

    if (fd >= CONNS + 1024 || (c = calloc(1, sizeof(conn_t))) == NULL) {
        die("too many connections");
    }

    c->fd = fd;
    c->upstream = upstream;
    conns[fd] = c;

    fcntl(fd, F_SETFL, O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));

    ee.events = EPOLLIN;
    ee.data.ptr = c;

    if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ee) == -1) {
        die("epoll_ctl");
    }

    return c;
}


static void
conn_close(conn_t *c)
{
    conns[c->fd] = NULL;
    close(c->fd);
    free(c);
}


static conn_t *
conn_open(int port)
{
    int                 fd;
    struct sockaddr_in  sin;

    memset(&sin, 0, sizeof(sin));
    sin.sin_family = AF_INET;
    sin.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sin.sin_port = htons(port);

    fd = socket(AF_INET, SOCK_STREAM, 0);

    if (fd == -1
        || connect(fd, (struct sockaddr *) &sin, sizeof(sin)) == -1)
    {
        die("connect");
    }

    return conn_new(fd, 0);
}


static void
conn_write(conn_t *c)
{
    int                 writing;
    size_t              in_head;
    ssize_t             n;
    struct iovec        iov[2];
    struct epoll_event  ee;

    while (c->sent < c->nout + c->nbody) {
        in_head = c->sent < c->nout ? c->sent : c->nout;

        iov[0].iov_base = c->out + in_head;
        iov[0].iov_len = c->nout - in_head;
        iov[1].iov_base = c->body + (c->sent - in_head);
        iov[1].iov_len = c->nbody - (c->sent - in_head);

        n = writev(c->fd, iov, 2);

        if (n == -1) {
            if (errno == EAGAIN) {
                break;
            }

            die("writev");
        }

        c->sent += n;
    }

    writing = (c->sent < c->nout + c->nbody);

    if (writing != c->writing) {
        c->writing = writing;
        ee.events = EPOLLIN | (writing ? EPOLLOUT : 0);
        ee.data.ptr = c;
        epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &ee);
    }
}


static void
request_send(conn_t *c, request_t *request)
{
    char      text[KEY + 1];
    uint64_t  key;

    memcpy(c->out, request->bytes, request->head);

    if (request->key) {
        key = crowding ? crowds
              : same > 0 ? turn++ % same
              : same < 0 ? *keys - 1 - turn++ * 7919 % -same
              : (*keys)++;

        snprintf(text, sizeof(text), "%08x-93d1-4c1b-8a55-%012llx",
                 crowding ? 3 : same > 0 ? 2 : 1, (unsigned long long) key);
        memcpy(c->out + (request->key - request->bytes), text, KEY);
    }

    c->nout = request->head;
    c->body = request->bytes + request->head;
    c->nbody = request->all - request->head;
    c->sent = 0;
    c->from = now();
    outstanding++;

    conn_write(c);
}


static void
upstream_answer(conn_t *c)
{
    c->held = 0;
    c->nout = snprintf(c->out, sizeof(c->out),
                       "HTTP/1.1 200 OK\r\n"
                       "Content-Type: application/json\r\n"
                       "Content-Length: %zu\r\n"
                       "Cache-Control: no-store\r\n"
                       "ETag: \"5f0c2a7e93d14c1b\"\r\n"
                       "Vary: Accept, Origin\r\n"
                       "X-Request-Id: c0a80101-7b2f-4e3d-9a10-6f1e2d3c4b5a"
                       "\r\n\r\n", c->size);
    c->body = filler;
    c->nbody = c->size;
    c->sent = 0;

    conn_write(c);
}


/* a whole message was read */

static void
conn_message(conn_t *c)
{
    int64_t  at, took;

    if (c->upstream) {
        if (!c->held) {
            upstream_answer(c);
        }

        return;
    }

    outstanding--;
    at = now();
    took = at - c->from;
    c->from = 0;

    if (c == prober || !crowding) {
        worst = took > worst ? took : worst;
    }

    if (c->code != 200) {
        refused++;
        full |= (c->code == 503);

    } else if (c->replayed) {
        replayed++;

    } else {
        executed++;
    }

    if (c == prober) {
        if (outstanding) {
            request_send(c, &probing);
        }

    } else if (!crowding && left && !full && at < until) {
        left--;
        request_send(c, &sending);
    }
}


static void
conn_head(conn_t *c, char *end)
{
    char    *p;
    size_t   size;

    *end = '\0';

    p = strcasestr(c->in, "\ncontent-length:");
    size = p ? strtoul(p + 16, NULL, 10) : 0;

    if (c->upstream) {
        p = strchr(c->in, '/');
        c->held = (p && strncmp(p, "/hold", 5) == 0);
        c->size = p ? strtoul(p + (c->held ? 6 : 1), NULL, 10) : 0;

        if (c->size > LARGEST) {
            c->size = LARGEST;
        }

    } else {
        c->replayed = strcasestr(c->in, "\nidempotent-replayed:") != NULL;
    }

    c->body_next = 1;
    c->code = atoi(c->in + 9);
    c->skip = size;
}


static int
conn_read(conn_t *c)
{
    char         *p, *end;
    size_t        more;
    ssize_t       n;

    static char   buf[262144];

    for ( ;; ) {
        n = read(c->fd, buf, sizeof(buf));

        if (n == 0) {
            /* idle ones may be, as their server has ended */

            if (c->from) {
                fprintf(stderr, "a connection was closed\n");
                exit(1);
            }

            return 0;
        }

        if (n == -1) {
            return errno == EAGAIN || !c->upstream;
        }

        for (p = buf; n; /* void */ ) {

            if (c->body_next == 0) {
                more = sizeof(c->in) - 1 - c->nin;
                more = (size_t) n < more ? (size_t) n : more;

                memcpy(c->in + c->nin, p, more);
                c->in[c->nin + more] = '\0';

                end = strstr(c->in, "\r\n\r\n");

                if (end == NULL) {
                    c->nin += more;
                    p += more;
                    n -= more;

                    if (c->nin == sizeof(c->in) - 1) {
                        fprintf(stderr, "a long head\n");
                        exit(1);
                    }

                    continue;
                }

                more = end + 4 - c->in - c->nin;
                p += more;
                n -= more;

                conn_head(c, end);
            }

            more = (size_t) n < c->skip ? (size_t) n : c->skip;
            c->skip -= more;
            p += more;
            n -= more;

            if (c->skip == 0) {
                c->body_next = 0;
                c->nin = 0;
                conn_message(c);
            }
        }

        /* of a crowd each in turn, as what is timed waits for that */

        if (crowding && c != prober) {
            return 1;
        }
    }
}


/* what there is to do now */

static void
events(void)
{
    int                 i, n, fd;
    conn_t             *c;

    struct epoll_event  ee[256];

    n = epoll_wait(ep, ee, 256, 0);

    for (i = 0; i < n; i++) {
        c = ee[i].data.ptr;

        if (prober) {
            (void) conn_read(prober);
        }

        if (c == NULL) {
            while ((fd = accept(listener, NULL, NULL)) != -1) {
                conn_new(fd, 1);
            }

            continue;
        }

        if (ee[i].events & EPOLLOUT) {
            conn_write(c);
        }

        if ((ee[i].events & ~EPOLLOUT) && !conn_read(c)) {
            conn_close(c);
        }
    }
}


static request_t
request_read(char *path)
{
    char        *end;
    FILE        *f;
    request_t    r;
    struct stat  st;

    if ((f = fopen(path, "r")) == NULL || fstat(fileno(f), &st) == -1) {
        die(path);
    }

    r.all = st.st_size;
    r.bytes = malloc(r.all + 1);

    if (fread(r.bytes, 1, r.all, f) != r.all) {
        die(path);
    }

    r.bytes[r.all] = '\0';
    end = strstr(r.bytes, "\r\n\r\n");

    if (end == NULL || (r.head = end + 4 - r.bytes) > HEAD) {
        fprintf(stderr, "%s: no request\n", path);
        exit(1);
    }

    r.key = memmem(r.bytes, r.head, "KKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKK",
                   KEY);
    fclose(f);

    return r;
}


static void
answer(int64_t cpu)
{
    printf("%llu %llu %llu %lld %lld\n", (unsigned long long) executed,
           (unsigned long long) replayed, (unsigned long long) refused,
           (long long) cpu, (long long) worst);
    fflush(stdout);
}


static void
burst(int port, int pid, int n, int64_t ms, uint64_t count, char *path)
{
    int            i;
    int64_t        cpu;

    static int       ports[16], open[16];
    static conn_t   *pool[16][256];
    static uint64_t  fresh[16];

    for (i = 0; i < 15 && ports[i] && ports[i] != port; i++) { /* void */ }

    ports[i] = port;
    port = i;
    keys = &fresh[i];

    while (open[port] < n && open[port] < 256) {
        pool[port][open[port]++] = conn_open(ports[port]);
    }

    sending = request_read(path);
    until = ms ? now() + ms * 1000000 : INT64_MAX;
    left = count ? count : UINT64_MAX;
    crowding = 0;

    cpu = cpu_of(pid);

    for (i = 0; i < n && left; i++, left--) {
        request_send(pool[port][i], &sending);
    }

    while (outstanding) {
        events();
    }

    answer(cpu_of(pid) - cpu);
    free(sending.bytes);
}


static void
crowd(int port, int pid, int n, char *path, char *probe)
{
    int       i;
    int64_t   cpu, idle, last, end;
    conn_t  **c;

    sending = request_read(path);
    probing = request_read(probe);
    crowding = 1;
    crowds++;

    c = calloc(n + 1, sizeof(conn_t *));

    for (i = 0; i < n; i++) {
        c[i] = conn_open(port);
        request_send(c[i], &sending);
        events();
    }

    /* a quarter of a second in which the process had next to nothing to do; not
       for long, as those who wait look again every half a second */

    last = cpu_of(pid);
    idle = now();
    end = idle + 5000000000;

    while (now() - idle < 250000000 && now() < end) {
        events();

        cpu = cpu_of(pid);

        if (cpu - last > 2000000) {
            last = cpu;
            idle = now();
        }
    }

    c[n] = conn_open(port);
    request_send(c[n], &probing);

    while (outstanding > (uint64_t) n) {
        events();
    }

    prober = c[n];
    executed = 0;

    worst = 0;
    cpu = cpu_of(pid);
    request_send(c[n], &probing);

    for (i = 0; i < CONNS + 1024; i++) {
        if (conns[i] && conns[i]->held) {
            upstream_answer(conns[i]);
        }
    }

    while (outstanding) {
        events();
    }

    answer(cpu_of(pid) - cpu);
    prober = NULL;

    for (i = 0; i <= n; i++) {
        conn_close(c[i]);
    }

    free(c);
    free(sending.bytes);
    free(probing.bytes);
}


int
main(int argc, char **argv)
{
    int                 port, pid, n;
    char                line[1024], a[400], b[400];
    size_t              i;
    long long           ms, some;
    socklen_t           len;
    cpu_set_t           set;
    struct rlimit       rl;
    struct sockaddr_in  sin;
    struct epoll_event  ee;
    unsigned long long  count;

    CPU_ZERO(&set);
    CPU_SET(argc > 1 ? atoi(argv[1]) : 0, &set);
    sched_setaffinity(0, sizeof(set), &set);

    getrlimit(RLIMIT_NOFILE, &rl);
    rl.rlim_cur = rl.rlim_max;
    setrlimit(RLIMIT_NOFILE, &rl);

    for (i = 0; i < sizeof(filler); i++) {
        filler[i] = 'a' + i * 7 % 23;
    }

    memset(&sin, 0, sizeof(sin));
    sin.sin_family = AF_INET;
    sin.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    len = sizeof(sin);

    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);

    if (bind(listener, (struct sockaddr *) &sin, len) == -1
        || listen(listener, 4096) == -1
        || getsockname(listener, (struct sockaddr *) &sin, &len) == -1
        || (ep = epoll_create1(0)) == -1)
    {
        die("listen");
    }

    ee.events = EPOLLIN;
    ee.data.ptr = NULL;
    epoll_ctl(ep, EPOLL_CTL_ADD, listener, &ee);

    printf("%d\n", ntohs(sin.sin_port));
    fflush(stdout);

    while (fgets(line, sizeof(line), stdin)) {
        executed = replayed = refused = 0;
        worst = full = 0;

        if (sscanf(line, "burst %d %d %d %lld %llu %lld %399s",
                   &port, &pid, &n, &ms, &count, &some, a) == 7)
        {
            same = some;
            burst(port, pid, n, ms, count, a);

        } else if (sscanf(line, "crowd %d %d %d %399s %399s",
                          &port, &pid, &n, a, b) == 5)
        {
            same = 0;
            crowd(port, pid, n, a, b);

        } else {
            fprintf(stderr, "no command: %s", line);
            return 1;
        }
    }

    return 0;
}
