
/*
 * What the unit tests share: checks, cases as TAP lines, and an nginx that
 * consists of little more than memory and a log.
 *
 * A case fails if one of its checks does, if it made none, or if something
 * was logged as a warning or worse that the case did not ask for.
 */


#ifndef _UNIT_H_INCLUDED_
#define _UNIT_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>


/*
 * A case: its name, and its body behind that.  Cases run in the order of their
 * lines.  One that is for engines says what must be so of them: ZONE_...
 *
 * What all cases of a test begin and end with is its unit_setup() and
 * unit_teardown(); a bare case is without.
 */

#define unit_case(name)           unit_case_at(name, 0, __LINE__)
#define bare_case(name)           unit_case_at(name, UNIT_BARE, __LINE__)
#define engine_case(name, takes)  unit_case_at(name, takes, __LINE__)

#define UNIT_BARE  0x100

void unit_setup(void) __attribute__((weak));
void unit_teardown(void) __attribute__((weak));

#define unit_case_at(name, takes, line)  unit_case_of(name, takes, line)
#define unit_case_of(name, takes, line)                                       \
    static void unit_case_##line(void);                                       \
                                                                              \
    static void __attribute__((constructor))                                  \
    unit_add_##line(void)                                                     \
    {                                                                         \
        unit_add(name, unit_case_##line, takes, line);                        \
    }                                                                         \
                                                                              \
    static void                                                               \
    unit_case_##line(void)


typedef struct {
    char         *name;
    void        (*run)(void);
    ngx_uint_t    takes;
    int           line;
} unit_case_t;

void unit_add(char *name, void (*run)(void), ngx_uint_t takes, int line);

/* what main() does, if a test has none of its own; the cases end with no name */

int unit_run(void);
int unit_run_these(unit_case_t *cases);
void unit_run_case(const unit_case_t *c);

extern unit_case_t  unit_cases[];


/* true if it holds, so that a case can end where going on makes no sense */

#define check(expr)                                                           \
    unit_check((expr) ? 1 : 0, #expr, __FILE__, __LINE__)

#define check_equal(got, wanted)                                              \
    unit_check_equal((int64_t) (got), (int64_t) (wanted),                     \
                     #got " is " #wanted, __FILE__, __LINE__)

int unit_check(int ok, char *text, char *file, int line);
int unit_check_equal(int64_t got, int64_t wanted, char *text, char *file,
    int line);

/* more about a failure, as a TAP comment */

void unit_note(char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* was the latest warning or worse this one?  it is taken note of */

int unit_logged(char *text);

/* from here on, any number of these is no surprise; NULL: they are again */

void unit_expect(char *text);

/* likewise, of what an engine says of itself, whatever the case expects */

void unit_usual(char *text);

/* a number from the environment, for longer or shorter runs */

uint64_t unit_setting(char *name, uint64_t value);

/* splitmix64: equal everywhere for equal seeds */

uint64_t unit_random(uint64_t *state);
#define unit_below(state, n)  ((ngx_uint_t) (unit_random(state) % (n)))

/* a child makes checks too; unit_wait() fails if one of them did */

ngx_pid_t unit_fork(void (*run)(void *data), void *data);
int unit_wait(ngx_pid_t pid);
void unit_kill(ngx_pid_t pid);

/* a state of another process; a minute is longer than any takes */

void unit_await(volatile ngx_uint_t *step, ngx_uint_t value);

/* memory that is shared with children */

void *unit_shared(size_t size);
void unit_unshared(void *p, size_t size);


extern ngx_pool_t  *unit_pool;     /* one for each case */
extern ngx_cycle_t  unit_cycle;


#endif /* _UNIT_H_INCLUDED_ */
