/* Rates of both engines, measured at the start, while both work. */
#ifndef HVDC_RUNNER_TIMING_H
#define HVDC_RUNNER_TIMING_H

#include "block_timing.h"
#include "hvdc/coordinator.h"
#include "options.h"

/* What the timer's process tells its owner: an hvdc_timed_block, or why there are no more. */
enum hvdc_timer_say { HVDC_TIMER_SAY_BLOCK = 1, HVDC_TIMER_SAY_NO };

/* What a block of each expert took, so far. */
typedef struct hvdc_timed {
    double seconds[HVDC_TIMED_EXPERTS];
    uint32_t count[HVDC_TIMED_EXPERTS];
} hvdc_timed;

/* Fills gpu_block_s and npu_block_s: the mean of a trajectory's blocks. Starts a process with this program's timer for the
 * GPU, and runs `npu` beside it until both have done enough. Fails if `stop_fd` becomes readable: then *stopped. */
bool hvdc_time_engines(const hvdc_options *options, const hvdc_trajectory *trajectory, hvdc_engine *npu,
                       const char *gpu_cpus, int stop_fd, hvdc_rates *rates, bool *stopped, hvdc_failure *failure);

#endif
