/* Rates of both engines, measured at the start, while both work. */
#ifndef HVDC_RUNNER_TIMING_H
#define HVDC_RUNNER_TIMING_H

#include "hvdc/coordinator.h"
#include "options.h"

/* What the timer's process tells its owner: how long one block of an expert took. */
enum hvdc_timer_say { HVDC_TIMER_SAY_BLOCK = 1, HVDC_TIMER_SAY_NO };

typedef struct hvdc_timed_block {
    uint32_t expert, reserved;
    double seconds;
} hvdc_timed_block;

/* What a block of each expert took, so far. */
typedef struct hvdc_timed {
    double seconds[2];
    uint32_t count[2];
} hvdc_timed;

/* An engine about to execute block 0 of one step of each expert, whose values are made up. */
typedef struct hvdc_timing {
    hvdc_engine *engine;
    float *hidden; /* [tokens][width] */
    uint32_t step[2];
    bool exists[2]; /* of each expert */
    uint32_t next;  /* expert */
} hvdc_timing;

bool hvdc_timing_begin(hvdc_timing *timing, hvdc_engine *engine, const hvdc_trajectory *trajectory,
                       hvdc_failure *failure);
void hvdc_timing_end(hvdc_timing *timing);

/* Executes one block, of the experts in turn. */
bool hvdc_timing_block(hvdc_timing *timing, hvdc_timed_block *timed, hvdc_failure *failure);

/* Fills gpu_block_s and npu_block_s: the mean of a trajectory's blocks. Starts a process with this program's timer for the
 * GPU, and runs `npu` beside it until both have done enough. Fails if `stop_fd` becomes readable: then *stopped. */
bool hvdc_time_engines(const hvdc_options *options, const hvdc_trajectory *trajectory, hvdc_engine *npu,
                       const char *gpu_cpus, int stop_fd, hvdc_rates *rates, bool *stopped, hvdc_failure *failure);

#endif
