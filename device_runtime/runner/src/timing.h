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

/* Why it ended early, beside failures. */
typedef struct hvdc_timed_end {
    bool stopped;   /* `stop_fd` became readable */
    bool npu_hangs; /* a call of the NPU's engine took longer than options->npu_silence_s, and may never return: the
                     * engine stays open, and the process has to end by _exit */
} hvdc_timed_end;

/* Fills gpu_block_s and npu_block_s: the mean of a trajectory's blocks. Starts a process with this program's timer for the
 * GPU, and runs `npu` beside it until both have done enough. */
bool hvdc_time_engines(const hvdc_options *options, const hvdc_trajectory *trajectory, hvdc_engine *npu,
                       const char *gpu_cpus, int stop_fd, hvdc_rates *rates, hvdc_timed_end *end,
                       hvdc_failure *failure);

#endif
