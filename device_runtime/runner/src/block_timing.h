/* How long an engine takes for a block, on numbers that are made up: for the cut, and for hvdc_bench. */
#ifndef HVDC_RUNNER_BLOCK_TIMING_H
#define HVDC_RUNNER_BLOCK_TIMING_H

#include "hvdc/coordinator.h"
#include "hvdc/engine.h"
#include "hidden.h"

#define HVDC_TIMED_EXPERTS 2u

typedef struct hvdc_timed_block {
    uint32_t expert, reserved;
    double seconds;
} hvdc_timed_block;

/* An engine about to execute block 0 of one step of each expert, whose values are made up. */
typedef struct hvdc_timing {
    hvdc_engine *engine;
    hvdc_hidden hidden;                /* [tokens][width] */
    float *text;                       /* [text_tokens][width] */
    uint32_t step[HVDC_TIMED_EXPERTS]; /* the first of each expert */
    bool exists[HVDC_TIMED_EXPERTS];
    uint32_t next; /* expert */
} hvdc_timing;

/* Sets the text of each expert of the trajectory, and executes one block of it: first touches are not timed. The
 * trajectory's tokens are those that the engine was opened for. After a failure, too, hvdc_timing_end is called. */
bool hvdc_timing_begin(hvdc_timing *timing, hvdc_engine *engine, const hvdc_trajectory *trajectory,
                       hvdc_failure *failure);
void hvdc_timing_end(hvdc_timing *timing);

/* Executes one block, of the experts in turn. */
bool hvdc_timing_block(hvdc_timing *timing, hvdc_timed_block *timed, hvdc_failure *failure);

/* Computes keys and values of the text for all blocks of an expert. */
bool hvdc_timing_text(hvdc_timing *timing, uint32_t expert, hvdc_timed_block *timed, hvdc_failure *failure);

#endif
