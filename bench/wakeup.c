
/*
 * The clients and the upstream of bench/wakeup, on one clock: when had the
 * upstream answered, and when was each of those answered who waited for that?
 * The upstream, the owners and the waiters are a process each, as ten thousand
 * of each are more connections than many systems let one process have.
 *
 *     wakeup PORT UPSTREAM_PORT TOKENS WAITERS ROUNDS
 *
 * In each round, TOKENS owners are held by the upstream and WAITERS clients
 * wait for each of them.  Once nothing has moved for a while the upstream
 * answers them all.  Prints a line for each waiter: the nanoseconds from the
 * upstream's answer to its token's owner, and from that owner's own answer,
 * to the one that it got.
 */


#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>


enum { LISTEN, GO, UPSTREAM, CLIENT };


typedef struct {
    int       fd;
    int       kind;
    int       token;
    int64_t  *answered;
} conn_t;


/* what the processes tell each other */

typedef struct {
    int       held;
    int       asked;
    int64_t   times[];      /* of release, of owners, of waiters */
} shared_t;


static int        epoll_fd;
static int        listen_fd;
static int        go_fd[2];
static int        port;

static int        replayed;
static int        answered;
static int        round_no;
static int        tokens;
static int        waiters_each;

static conn_t   **upstreams;

static volatile shared_t  *shared;
static int64_t   *released;
static int64_t   *owner_times;
static int64_t   *waiter_times;


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

    return ts.tv_sec * INT64_C(1000000000) + ts.tv_nsec;
}


static void
watch(conn_t *c)
{
    struct epoll_event  ev;

    ev.events = EPOLLIN;
    ev.data.ptr = c;

    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &ev) == -1) {
        die("epoll_ctl");
    }
}


static void
send_all(int fd, const char *buf, size_t len)
{
    if (write(fd, buf, len) != (ssize_t) len) {
        die("write");
    }
}


/* one request, on a connection of its own */

static void
ask(int token, int64_t *answered)
{
    int                 len, one;
    char                buf[512];
    conn_t             *c;
    struct linger       linger;
    struct sockaddr_in  sin;

    c = calloc(1, sizeof(conn_t));
    if (c == NULL) {
        die("calloc");
    }

    c->kind = CLIENT;
    c->token = token;
    c->answered = answered;

    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd == -1) {
        die("socket");
    }

    memset(&sin, 0, sizeof(sin));
    sin.sin_family = AF_INET;
    sin.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sin.sin_port = htons(port);

    if (connect(c->fd, (struct sockaddr *) &sin, sizeof(sin)) == -1) {
        die("connect");
    }

    one = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));

    /* closed by a reset, its port is free at once */

    linger.l_onoff = 1;
    linger.l_linger = 0;
    setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));

    len = sprintf(buf, "POST /%d HTTP/1.1\r\nHost: bench\r\n"
                  "Idempotency-Key: wake-%d-%d-%d\r\n"
                  "Content-Length: 4\r\n\r\nbody",
                  token, (int) getppid(), round_no, token);

    send_all(c->fd, buf, len);
    watch(c);
}


static void
accept_upstream(void)
{
    int      fd;
    conn_t  *c;

    while ((fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK)) != -1) {
        c = calloc(1, sizeof(conn_t));
        if (c == NULL) {
            die("calloc");
        }

        c->fd = fd;
        c->kind = UPSTREAM;
        c->token = -1;

        watch(c);
    }
}


/* whose request it is stands in its URI */

static void
read_upstream(conn_t *c)
{
    char     buf[4096];
    ssize_t  n;

    n = read(c->fd, buf, sizeof(buf) - 1);

    if (n <= 0) {
        if (n == -1 && errno == EAGAIN) {
            return;
        }

        close(c->fd);
        free(c);
        return;
    }

    buf[n] = '\0';

    if (sscanf(buf, "POST /%d ", &c->token) == 1) {
        upstreams[c->token] = c;
        shared->held++;
    }
}


static void
read_client(conn_t *c)
{
    char     buf[4096];
    int64_t  t;
    ssize_t  n;

    t = now();

    n = read(c->fd, buf, sizeof(buf) - 1);

    if (n <= 0) {
        fprintf(stderr, "a connection was closed without an answer\n");
        exit(1);
    }

    buf[n] = '\0';

    if (strncmp(buf, "HTTP/1.1 200", 12) != 0
        || (strstr(buf, "Idempotent-Replayed") != NULL) != replayed
        || strstr(buf, "\r\n\r\ndone") == NULL)
    {
        fprintf(stderr, "not the answer expected:\n%s\n", buf);
        exit(1);
    }

    *c->answered = t;
    answered++;
}


static void
release(void)
{
    int          i;
    char         byte;
    const char  *answer;

    answer = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n"
             "Connection: close\r\n\r\ndone";

    if (read(go_fd[0], &byte, 1) != 1) {
        exit(0);
    }

    for (i = 0; i < tokens; i++) {
        released[i] = now();
        send_all(upstreams[i]->fd, answer, strlen(answer));
    }
}


/* returns how much there was to do */

static int
poll_once(int timeout)
{
    int                 i, n;
    conn_t             *c;
    struct epoll_event  events[512];

    n = epoll_wait(epoll_fd, events, 512, timeout);

    for (i = 0; i < n; i++) {
        c = events[i].data.ptr;

        switch (c->kind) {

        case LISTEN:
            accept_upstream();
            break;

        case GO:
            release();
            break;

        case UPSTREAM:
            read_upstream(c);
            break;

        default:
            read_client(c);
        }
    }

    return n;
}


static void
be_upstream(void)
{
    conn_t  listening, go;

    listening.fd = listen_fd;
    listening.kind = LISTEN;
    watch(&listening);

    go.fd = go_fd[0];
    go.kind = GO;
    watch(&go);

    for ( ;; ) {
        poll_once(-1);
    }
}


static void
be_clients(int count, int each, int64_t *times)
{
    int  i;

    for (i = 0; i < count; i++) {
        ask(i / each, &times[i]);

        if (i % 64 == 0) {
            poll_once(0);
        }
    }

    shared->asked++;

    while (answered < count) {
        if (poll_once(30000) == 0) {
            fprintf(stderr, "%d of %d were never answered\n",
                    count - answered, count);
            exit(1);
        }
    }

    exit(0);
}


static pid_t
spawn(void)
{
    pid_t  pid;

    pid = fork();

    if (pid == -1) {
        die("fork");
    }

    if (pid == 0) {
        epoll_fd = epoll_create1(0);
        if (epoll_fd == -1) {
            die("epoll_create1");
        }
    }

    return pid;
}


static void
join(pid_t pid)
{
    int  status;

    if (waitpid(pid, &status, 0) == -1 || status != 0) {
        exit(1);
    }
}


/* until what another process counts is there, or that process has gone */

static void
await(volatile int *count, int value, pid_t pid)
{
    while (*count < value) {
        if (waitpid(pid, NULL, WNOHANG) != 0) {
            exit(1);
        }

        usleep(500);
    }
}


static void
play(void)
{
    int    i, count;
    pid_t  upstream, owners, waiters;

    count = tokens * waiters_each;

    shared->held = 0;
    shared->asked = 0;

    if (pipe(go_fd) == -1) {
        die("pipe");
    }

    upstream = spawn();
    if (upstream == 0) {
        close(go_fd[1]);
        be_upstream();
    }

    owners = spawn();
    if (owners == 0) {
        be_clients(tokens, 1, owner_times);
    }

    await(&shared->held, tokens, owners);
    await(&shared->asked, 1, owners);

    waiters = spawn();
    if (waiters == 0) {
        replayed = 1;
        be_clients(count, waiters_each, waiter_times);
    }

    await(&shared->asked, 2, waiters);

    /* nginx gets around to reading them all; nothing is to be heard of that */

    usleep(count < 1000 ? 10000 : 500000);

    if (write(go_fd[1], "", 1) != 1) {
        die("write");
    }

    join(owners);
    join(waiters);

    kill(upstream, SIGKILL);
    waitpid(upstream, NULL, 0);
    close(go_fd[0]);
    close(go_fd[1]);

    for (i = 0; i < count; i++) {
        printf("%lld %lld\n",
               (long long) (waiter_times[i] - released[i / waiters_each]),
               (long long) (waiter_times[i] - owner_times[i / waiters_each]));
    }

    fflush(stdout);
}


int
main(int argc, char **argv)
{
    int                 one, rounds;
    size_t              size;
    struct rlimit       limit;
    struct sockaddr_in  sin;

    if (argc != 6) {
        fprintf(stderr, "usage: wakeup PORT UPSTREAM_PORT TOKENS WAITERS "
                "ROUNDS\n");
        return 2;
    }

    port = atoi(argv[1]);
    tokens = atoi(argv[3]);
    waiters_each = atoi(argv[4]);
    rounds = atoi(argv[5]);

    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);

    upstreams = calloc(tokens, sizeof(conn_t *));

    size = sizeof(shared_t)
           + (2 * tokens + (size_t) tokens * waiters_each) * sizeof(int64_t);

    shared = mmap(NULL, size, PROT_READ|PROT_WRITE, MAP_SHARED|MAP_ANONYMOUS,
                  -1, 0);

    listen_fd = socket(AF_INET, SOCK_STREAM|SOCK_NONBLOCK, 0);

    if (upstreams == NULL || shared == MAP_FAILED || listen_fd == -1) {
        die("start");
    }

    released = (int64_t *) shared->times;
    owner_times = released + tokens;
    waiter_times = owner_times + tokens;

    one = 1;
    setsockopt(listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));

    memset(&sin, 0, sizeof(sin));
    sin.sin_family = AF_INET;
    sin.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sin.sin_port = htons(atoi(argv[2]));

    if (bind(listen_fd, (struct sockaddr *) &sin, sizeof(sin)) == -1
        || listen(listen_fd, 4096) == -1)
    {
        die("listen");
    }

    for (round_no = 0; round_no < rounds; round_no++) {
        play();
    }

    return 0;
}
