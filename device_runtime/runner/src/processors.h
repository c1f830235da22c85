/* Which processors a process may use. */
#ifndef HVDC_RUNNER_PROCESSORS_H
#define HVDC_RUNNER_PROCESSORS_H

#include <stdbool.h>
#include <stdint.h>

#include "hvdc/failure.h"

#define HVDC_CPU_LIST_BYTES 512

/* Restricts this process to a list such as "0,2-5", before it starts threads, which inherit it. NULL: no change. Fails
 * for a list that is none, and for processors that this process may not use. */
bool hvdc_processors_use(const char *list, hvdc_failure *failure);

/* Fails as hvdc_processors_use would, and changes nothing. */
bool hvdc_processors_check(const char *list, hvdc_failure *failure);

/* Those that this process may use: how many, and as a list. */
uint32_t hvdc_processors_count(void);
bool hvdc_processors_list(char list[HVDC_CPU_LIST_BYTES], hvdc_failure *failure);

#endif
