
/*
 * Seeds: which are tried, by several processes at once, and a story of each
 * that fails, of as few events as can be.
 */


#include "world.h"
#include "disk.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <malloc.h>
#include <time.h>


#define JOBS  64

/* seconds of a processor: no seed takes a tenth of it, but one without an end */

#define LIMIT  30


static struct {
    char                           *worker;
    char                           *list;
    char                           *server;
    char                           *clock;
    uint64_t                        seed;
    uint64_t                        from;
    uint64_t                        count;
    uint64_t                        seconds;
    uint64_t                        hours;
    uint64_t                        jobs;
    uint64_t                        most;
    uint64_t                        minimise;
} option = {
    .worker = "worker.so",
    .count = (uint64_t) 1 << 62,
    /* so long, or without an end */
    .seconds = (uint64_t) 1 << 32,
    .jobs = 1,
    .most = 1,
    .minimise = 20
};


static const struct {
    char                           *name;
    char                          **text;
    uint64_t                       *number;
} options[] = {
    { "--worker", &option.worker, NULL },
    { "--list", &option.list, NULL },
    { "--server", &option.server, NULL },
    { "--clock", &option.clock, NULL },
    { "--seed", NULL, &option.seed },
    { "--from", NULL, &option.from },
    { "--count", NULL, &option.count },
    { "--seconds", NULL, &option.seconds },
    { "--hours", NULL, &option.hours },
    { "--jobs", NULL, &option.jobs },
    { "--most", NULL, &option.most },
    { "--minimise", NULL, &option.minimise },
    { NULL, NULL, NULL }
};


/* of each process, where all of them see it */

static uint64_t  (*counted)[N_COUNTS];


/* --- a seed --------------------------------------------------------------- */


/* one without an end is ended, by its processor's time */

static ngx_uint_t
run_within(uint64_t seed)
{
    struct itimerval  limit;

    memset(&limit, 0, sizeof(limit));
    limit.it_value.tv_sec = LIMIT;
    setitimer(ITIMER_PROF, &limit, NULL);

    return run(seed);
}


/* what is wrong, without which request it is */

static uint64_t
fault_kind(void)
{
    char      *p;
    uint64_t   kind;

    for (p = fault_text, kind = 0; *p; p++) {
        if ((*p < '0' || *p > '9')
            && (p[1] != ' ' || p == fault_text || p[-1] != ' '))
        {
            kind = kind * 31 + *p;
        }
    }

    return kind;
}


/* with less in its plan it fails, too: by this seed of chance, or by another */

static ngx_uint_t
fails(uint64_t *seed, uint64_t kind)
{
    uint64_t    other;
    ngx_uint_t  i;

    for (i = 0; i < 12; i++) {
        other = *seed + i;

        if (!run_within(other) && fault_kind() == kind) {
            *seed = other;
            return 1;
        }
    }

    return 0;
}


static void
minimise(uint64_t *seed)
{
    time_t      end;
    uint64_t    kind;
    ngx_uint_t  i, k, n, less;

    kind = fault_kind();
    end = time(NULL) + option.minimise;

    for (n = planned / 2; n; n = less ? n : n / 2) {
        less = 0;

        for (i = 0; i < planned; i += n) {

            for (k = i, less = 0; k < planned && k < i + n; k++) {
                less += !plan[k].left_out;
                plan[k].left_out |= 2;
            }

            if (less && time(NULL) < end && fails(seed, kind)) {
                for (k = i; k < planned && k < i + n; k++) {
                    plan[k].left_out = 1;
                }

                continue;
            }

            for (k = i; k < planned && k < i + n; k++) {
                plan[k].left_out &= ~2;
            }
        }

        less = 0;

        if (n == 1) {
            break;
        }
    }
}


static void
tell_story(uint64_t seed)
{
    uint64_t    found;
    ngx_uint_t  i, n;

    printf("# seed %llu fails: %s\n", (unsigned long long) seed, fault_text);

    found = seed;

    if (option.minimise) {
        minimise(&found);
    }

    for (i = 0, n = 0; i < planned; i++) {
        n += !plan[i].left_out;
    }

    telling = 1;
    (void) run_within(found);
    telling = 0;

    printf("# again: util/sim --seed %llu\n# with %u of %u events of its "
           "plan:\n\n%s\n", (unsigned long long) seed, (unsigned) n,
           (unsigned) planned, story);
    fflush(stdout);
}


/* only with a real server those that have one */

static ngx_uint_t
wanted(uint64_t seed)
{
    settings(seed);

    return set.store == SIM_REDIS || !server_there();
}


static void
try(uint64_t seed)
{
    if (!wanted(seed)) {
        return;
    }

    counts[N_SEED] = seed;
    settings(seed);
    plan_make(seed);

    if (!run_within(seed)) {
        counts[N_FAILED]++;
        tell_story(seed);
    }

    counts[N_SEEDS]++;
}


/* a file's lines: a seed, and whatever else */

static void
try_list(char *path)
{
    FILE      *f;
    char       line[512], *end;
    uint64_t   seed;

    f = fopen(path, "r");

    if (f == NULL) {
        perror(path);
        exit(2);
    }

    while (fgets(line, sizeof(line), f)) {
        seed = strtoull(line, &end, 10);

        if (end != line) {
            try(seed);
        }
    }

    fclose(f);
}



/* --- many of them --------------------------------------------------------- */


static uint64_t
counted_by_all(ngx_uint_t n)
{
    uint64_t    sum;
    ngx_uint_t  i;

    for (sum = 0, i = 0; i < option.jobs; i++) {
        sum += counted[i][n];
    }

    return sum;
}


static void
try_all(ngx_uint_t job, time_t end)
{
    uint64_t  n;

    counts = counted[job];
    disk_init();

    if (option.server) {
        server_open(option.server, option.clock);
    }

    if (option.seed) {
        try(option.seed);
        return;
    }

    if (option.list && job == 0) {
        try_list(option.list);
    }

    for (n = job; n < option.count; n += option.jobs) {

        if (counted_by_all(N_FAILED) >= option.most || time(NULL) >= end) {
            return;
        }

        try(option.from + n);
    }
}


/* false: one of them did not come to its end */

static ngx_uint_t
jobs_run(time_t end)
{
    int         status;
    pid_t       pids[JOBS];
    ngx_uint_t  i, well;

    for (i = 0; i < option.jobs; i++) {
        pids[i] = fork();

        if (pids[i] == 0) {
            (void) prctl(PR_SET_PDEATHSIG, SIGKILL);
            try_all(i, end);
            fflush(stdout);
            _exit(0);
        }
    }

    for (well = 1, i = 0; i < option.jobs; i++) {

        if (waitpid(pids[i], &status, 0) == -1 || status) {
            printf("# seed %llu %s: %s %d\n",
                   (unsigned long long) counted[i][N_SEED],
                   WTERMSIG(status) == SIGPROF ? "does not end"
                                               : "ends the world",
                   WIFSIGNALED(status) ? "signal" : "status",
                   WIFSIGNALED(status) ? WTERMSIG(status)
                                       : WEXITSTATUS(status));
            well = 0;
        }
    }

    return well;
}


static void
figures(time_t took)
{
    ngx_uint_t     i, n;
    struct rusage  use;

    (void) getrusage(RUSAGE_CHILDREN, &use);

    printf("# %llu seeds in %ld s, %.1f of a processor, %llu failed: %llu "
           "events, %.1f simulated hours, %llu executions, %llu replays, %llu "
           "in doubt, %llu unavailable, %llu over a quota\n",
           (unsigned long long) counted_by_all(N_SEEDS), (long) took,
           use.ru_utime.tv_sec + use.ru_stime.tv_sec
           + (use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6,
           (unsigned long long) counted_by_all(N_FAILED),
           (unsigned long long) counted_by_all(N_EVENTS),
           counted_by_all(N_MSEC) / 3600e3,
           (unsigned long long) counted_by_all(N_EXECS),
           (unsigned long long) counted_by_all(N_REPLAYS),
           (unsigned long long) counted_by_all(N_DOUBTS),
           (unsigned long long) counted_by_all(N_REFUSED),
           (unsigned long long) counted_by_all(N_LIMITED));

    for (i = 1; i < P_KINDS; i++) {
        n = counted_by_all(N_TROUBLES + i);

        if (n) {
            printf("#   %s: %lu\n", plan_names[i], (unsigned long) n);
        }
    }

    printf("# trace %016llx\n",
           (unsigned long long) counted_by_all(N_TRACE));
}


static void
world_init(void)
{
    char        command[1024];
    ngx_uint_t  i;

    static ngx_log_t   log;
    static ngx_time_t  time;
    static char        dir[128];

    snprintf(dir, sizeof(dir), "%s/sim.XXXXXX",
             getenv("TMPDIR") ? getenv("TMPDIR")
             : access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    directory = mkdtemp(dir);

    if (directory == NULL) {
        perror(dir);
        exit(2);
    }

    for (i = 0; i < NGINX * SIM_SLOTS; i++) {
        snprintf(command, sizeof(command), "cp '%s' '%s/%c%u.so'",
                 option.worker, directory, (char) ('A' + i / SIM_SLOTS),
                 (unsigned) i % SIM_SLOTS);

        if (system(command) != 0) {
            exit(2);
        }
    }

    /* what is given back to the system is wanted again at once */

    (void) mallopt(M_TRIM_THRESHOLD, 256 << 20);
    (void) mallopt(M_MMAP_THRESHOLD, 256 << 20);
    (void) mallopt(M_TOP_PAD, 16 << 20);

    unit_cycle.log = &log;
    ngx_pid = getpid();
    ngx_ncpu = 1;
    ngx_pagesize = 4096;
    ngx_cacheline_size = 64;
    ngx_cached_time = &time;
    ngx_slab_sizes_init();
    unit_expect("");
}


static void
world_done(void)
{
    char  command[256];

    snprintf(command, sizeof(command), "rm -r '%s'", directory);
    (void) !system(command);
}


static void
arguments(int argc, char **argv)
{
    int         i;
    ngx_uint_t  k;

    for (i = 1; i < argc; i += 2) {

        for (k = 0; options[k].name; k++) {
            if (strcmp(argv[i], options[k].name) == 0) {
                break;
            }
        }

        if (options[k].name == NULL || i + 1 == argc) {
            fprintf(stderr, "what is %s?\n", argv[i]);
            exit(2);
        }

        if (options[k].text) {
            *options[k].text = argv[i + 1];

        } else {
            *options[k].number = strtoull(argv[i + 1], NULL, 0);
        }
    }

    if (option.hours) {
        option.seconds = option.hours * 3600;
    }

    /* a seed alone, or a server, is for one */

    if (option.seed || option.server || option.jobs == 0
        || option.jobs > JOBS)
    {
        option.jobs = 1;
    }
}


int
main(int argc, char **argv)
{
    time_t      began;
    ngx_uint_t  bad;

    option.from = (uint64_t) time(NULL) * 1000003 + getpid();
    arguments(argc, argv);

    counted = unit_shared(sizeof(*counted) * JOBS);
    world_init();

    if (option.seed == 0) {
        printf("# seeds from %llu on\n", (unsigned long long) option.from);
    }

    fflush(stdout);
    began = time(NULL);
    bad = !jobs_run(began + option.seconds) + counted_by_all(N_FAILED);

    if (option.seed == 0) {
        figures(time(NULL) - began);
    }

    printf("# sim tests: %llu passed, %lu failed\n",
           (unsigned long long) (counted_by_all(N_SEEDS)
                                 - counted_by_all(N_FAILED)),
           (unsigned long) bad);
    world_done();

    return bad != 0;
}
