
/* The cases of most tests of a zone: each has one, which is empty again then. */


#include "zone.h"
#include "workers_double.h"


void
unit_setup(void)
{
    double_reset();
    zone_open(&zone, 512 * 1024, 0);
}


void
unit_teardown(void)
{
    zone_check_empty(&zone);
    zone_close(&zone);
}
