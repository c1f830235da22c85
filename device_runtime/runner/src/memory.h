/* What a run will need, before a weight is read. */
#ifndef HVDC_RUNNER_MEMORY_H
#define HVDC_RUNNER_MEMORY_H

#include "report.h"

/* Fills outcome->forecast, and refuses, part by part, what is more than options->memory_mib, or, where that is 0, than is
 * available. Of the decoder it has inputs, outputs, a clip's frames and blending. The CPU's part around the blocks and
 * what drivers need, as QNN for its contexts, are not in it; contexts are loaded already, and so no more available. */
bool hvdc_memory_is_there(const hvdc_artifact *artifact, hvdc_outcome *outcome, hvdc_failure *failure);

#endif
