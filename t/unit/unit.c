
/*
 * Checks, cases, and the parts of nginx that its own files below need but
 * that are too much of a server to be linked: a cycle, a log, a clock.
 */


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>

#include "unit.h"


#define UNIT_SHOWN  10
#define UNIT_CASES  64


ngx_pool_t               *unit_pool;
ngx_cycle_t               unit_cycle;

unit_case_t               unit_cases[UNIT_CASES + 1];

static ngx_uint_t         unit_ncases;
static ngx_uint_t         unit_checks;
static ngx_uint_t         unit_failed;
static ngx_uint_t         unit_forked;

static ngx_uint_t         unit_warnings;
static char               unit_warning[512];
static char              *unit_expected;
static char              *unit_usual_one;


/* nginx's own */

volatile ngx_cycle_t     *ngx_cycle = &unit_cycle;
volatile ngx_msec_t       ngx_current_msec;
volatile ngx_time_t      *ngx_cached_time;
ngx_pid_t                 ngx_pid;
ngx_uint_t                ngx_process;
ngx_int_t                 ngx_last_process;
ngx_process_t             ngx_processes[NGX_MAX_PROCESSES];
ngx_int_t                 ngx_ncpu;
ngx_uint_t                ngx_test_config;


int
unit_check(int ok, char *text, char *file, int line)
{
    unit_checks++;

    if (!ok && ++unit_failed <= UNIT_SHOWN) {
        unit_note("%s:%d: not so: %s", file, line, text);
    }

    return ok;
}


int
unit_check_equal(int64_t got, int64_t wanted, char *text, char *file, int line)
{
    unit_checks++;

    if (got != wanted && ++unit_failed <= UNIT_SHOWN) {
        unit_note("%s:%d: not so: %s: %lld, not %lld", file, line, text,
                  (long long) got, (long long) wanted);
    }

    return got == wanted;
}


void
unit_note(char *fmt, ...)
{
    va_list  args;

    printf("# %s", unit_forked ? "(child) " : "");

    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);

    printf("\n");
    fflush(stdout);
}


/* by line, whichever the order of constructors */

void
unit_add(char *name, void (*run)(void), ngx_uint_t takes, int line)
{
    ngx_uint_t  i;

    if (unit_ncases == UNIT_CASES) {
        abort();
    }

    for (i = unit_ncases++; i && unit_cases[i - 1].line > line; i--) {
        unit_cases[i] = unit_cases[i - 1];
    }

    unit_cases[i].name = name;
    unit_cases[i].run = run;
    unit_cases[i].takes = takes;
    unit_cases[i].line = line;
}


int __attribute__((weak))
main(void)
{
    return unit_run();
}


int
unit_run(void)
{
    return unit_run_these(unit_cases);
}


int
unit_run_these(unit_case_t *cases)
{
    ngx_uint_t        i, failed;
    struct timespec   ts;
    static ngx_log_t  log;
    static ngx_time_t time;

    log.log_level = NGX_LOG_NOTICE;

    unit_cycle.log = &log;
    unit_cycle.conf_ctx = (void *) &unit_cycle;

    ngx_pid = getpid();
    ngx_ncpu = sysconf(_SC_NPROCESSORS_ONLN);
    ngx_pagesize = sysconf(_SC_PAGESIZE);
    ngx_cacheline_size = 64;

    for (i = ngx_pagesize; i >>= 1; ngx_pagesize_shift++) { /* void */ }

    clock_gettime(CLOCK_MONOTONIC, &ts);
    ngx_current_msec = ts.tv_sec * 1000 + ts.tv_nsec / 1000000;

    time.sec = ts.tv_sec;
    ngx_cached_time = &time;

    ngx_slab_sizes_init();

    /* whatever hangs is to fail */

    alarm(unit_setting("UNIT_TIMEOUT", 600));

    failed = 0;

    for (i = 0; cases[i].name; i++) {

        unit_checks = 0;
        unit_failed = 0;
        unit_warnings = 0;
        unit_expected = NULL;

        unit_pool = ngx_create_pool(4096, &log);
        if (unit_pool == NULL) {
            return 1;
        }

        unit_run_case(&cases[i]);

        if (unit_checks == 0) {
            unit_failed = 1;
            unit_note("nothing was checked");
        }

        if (unit_warnings) {
            unit_failed++;
            unit_note("logged, but not expected: %s", unit_warning);
        }

        ngx_destroy_pool(unit_pool);

        failed += (unit_failed != 0);

        printf("%s %u - %s\n", unit_failed ? "not ok" : "ok",
               (unsigned) i + 1, cases[i].name);
        fflush(stdout);
    }

    printf("1..%u\n", (unsigned) i);
    fflush(stdout);

    return failed != 0;
}


void
unit_run_case(const unit_case_t *c)
{
    if (unit_setup && !(c->takes & UNIT_BARE)) {
        unit_setup();
    }

    c->run();

    if (unit_teardown && !(c->takes & UNIT_BARE)) {
        unit_teardown();
    }
}


uint64_t
unit_setting(char *name, uint64_t value)
{
    char  *text;

    text = getenv(name);

    return text ? strtoull(text, NULL, 0) : value;
}


uint64_t
unit_random(uint64_t *state)
{
    uint64_t  n;

    n = (*state += 0x9e3779b97f4a7c15);
    n = (n ^ (n >> 30)) * 0xbf58476d1ce4e5b9;
    n = (n ^ (n >> 27)) * 0x94d049bb133111eb;

    return n ^ (n >> 31);
}


ngx_pid_t
unit_fork(void (*run)(void *data), void *data)
{
    ngx_pid_t  pid;

    fflush(stdout);

    pid = fork();

    if (pid == 0) {

#if (NGX_HAVE_PR_SET_DUMPABLE)
        /* it does not outlive a test that is interrupted */
        prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
#endif

        ngx_pid = getpid();
        unit_forked = 1;
        unit_failed = 0;
        unit_warnings = 0;

        run(data);

        if (unit_warnings) {
            unit_failed++;
            unit_note("logged, but not expected: %s", unit_warning);
        }

        fflush(stdout);
        _exit(unit_failed != 0);
    }

    check(pid > 0);

    return pid;
}


int
unit_wait(ngx_pid_t pid)
{
    int  status;

    while (waitpid(pid, &status, 0) == -1) {
        if (ngx_errno != NGX_EINTR) {
            return check(!"waitpid() failed");
        }
    }

    return check(WIFEXITED(status)) && check_equal(WEXITSTATUS(status), 0);
}


void
unit_kill(ngx_pid_t pid)
{
    int  status;

    kill(pid, SIGKILL);
    check_equal(waitpid(pid, &status, 0), pid);
}


void
unit_await(volatile ngx_uint_t *step, ngx_uint_t value)
{
    ngx_uint_t  i;

    for (i = 0; i < 60000; i++) {
        if (*step >= value) {
            return;
        }

        usleep(1000);
    }

    check(!"another process goes on");
}


void *
unit_shared(size_t size)
{
    void  *p;

    p = mmap(NULL, size, PROT_READ|PROT_WRITE, MAP_SHARED|MAP_ANON, -1, 0);

    if (p == MAP_FAILED) {
        unit_note("mmap() of %zu bytes failed", size);
        exit(1);
    }

    return p;
}


void
unit_unshared(void *p, size_t size)
{
    munmap(p, size);
}


int
unit_logged(char *text)
{
    int  found;

    found = (unit_warnings == 1 && strstr(unit_warning, text) != NULL);

    if (!found) {
        unit_note("%u times logged, wanted once: %s; last: %s",
                  (unsigned) unit_warnings, text, unit_warning);
    }

    unit_warnings = 0;
    unit_warning[0] = '\0';

    return found;
}


void
unit_expect(char *text)
{
    unit_expected = text;
}


void
unit_usual(char *text)
{
    unit_usual_one = text;
}


void
ngx_log_error_core(ngx_uint_t level, ngx_log_t *log, ngx_err_t err,
    const char *fmt, ...)
{
    char      text[512];
    u_char   *p;
    va_list   args;

    if (level > NGX_LOG_WARN) {
        return;
    }

    va_start(args, fmt);
    p = ngx_vslprintf((u_char *) text, (u_char *) text + sizeof(text) - 1,
                      fmt, args);
    va_end(args);

    *p = '\0';

    if ((unit_expected && strstr(text, unit_expected))
        || (unit_usual_one && strstr(text, unit_usual_one)))
    {
        return;
    }

    unit_warnings++;
    strcpy(unit_warning, text);
}


void ngx_cdecl
ngx_conf_log_error(ngx_uint_t level, ngx_conf_t *cf, ngx_err_t err,
    const char *fmt, ...)
{
    ngx_log_error(level, unit_cycle.log, err, "%s", fmt);
}


void
ngx_debug_point(void)
{
    abort();
}
