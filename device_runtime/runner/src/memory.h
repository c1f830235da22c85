/* What a run will need, before a weight is read. */
#ifndef HVDC_RUNNER_MEMORY_H
#define HVDC_RUNNER_MEMORY_H

#include "report.h"

/* Fills outcome->forecast, and refuses, part by part, what is more than options->memory_mib, or, where that is 0, than is
 * available. The CPU's part around the blocks and what drivers need are not in it. */
bool hvdc_memory_is_there(const hvdc_artifact *artifact, hvdc_outcome *outcome, hvdc_failure *failure);

#endif
