
/*
 * Cases that run on each engine that can live in a unit test: shared memory;
 * the one that answers late; a file behind shared memory, with each mode, and
 * with another nginx that has it, too, while memory keeps nothing it need not.
 */


#ifndef _ENGINES_H_INCLUDED_
#define _ENGINES_H_INCLUDED_


#include "zone.h"


typedef struct {
    char        *name;
    void       (*run)(void);
    /* ZONE_...: what must be so of an engine; 0: it may be any */
    ngx_uint_t   takes;
} engine_case_t;

#define engine_cases_end  { NULL, NULL, 0 }


/* UNIT_ENGINE=NAME: on that one alone */

int engines_run(engine_case_t *cases);


#endif /* _ENGINES_H_INCLUDED_ */
