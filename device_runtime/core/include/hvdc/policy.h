/* Where to cut a trajectory. The same arithmetic as hvdc/plan/cut.py and hvdc/plan/policies.py, bit for bit.
 *
 * Source: the paper, section 4.3, equation 4. The GPU executes blocks [0, k) of a video and the NPU the rest and the
 * decoder; in a stream both work at once, so a video is finished every
 *
 *     period(k) = max(k * T_G, (executions - k) * T_N + T_V)          seconds
 *
 * which is smallest at one of the two whole numbers beside (executions * T_N + T_V) / (T_G + T_N), where both are equal. */
#ifndef HVDC_POLICY_H
#define HVDC_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "hvdc/failure.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Measured while both engines work. Seconds; the first two above 0, the last 0 where nothing is decoded; all finite. */
typedef struct hvdc_rates {
    double gpu_block_s; /* T_G */
    double npu_block_s; /* T_N */
    double decode_s;    /* T_V: decoding one video, on the NPU */
} hvdc_rates;

/* Seconds of each engine per video, and of the stream per video: the larger one. `cut` is at most `executions`. */
double hvdc_gpu_stage_s(const hvdc_rates *rates, uint32_t cut);
double hvdc_npu_stage_s(const hvdc_rates *rates, uint32_t executions, uint32_t cut);
double hvdc_period_s(const hvdc_rates *rates, uint32_t executions, uint32_t cut);

/* The cut in [0, executions] with the shortest period; of two that are equally good that with the smaller latency of a
 * video, of those the smaller one. Fails for rates that are not positive numbers. */
bool hvdc_best_cut(const hvdc_rates *rates, uint32_t executions, uint32_t *cut, hvdc_failure *failure);

/* The share of each linear's columns with which both engines end at once, were a block nothing but linears and the
 * exchange free: T_N / (T_G + T_N). Fails for rates that are not positive numbers. */
bool hvdc_balanced_share(const hvdc_rates *rates, double *share, hvdc_failure *failure);

/* Cutting each video of a stream for itself, from what its engines have shown: see hvdc/stream_policy.h. */

/* Seconds from now until each engine is free for the next video, and of a handoff; 0 or more, finite. */
typedef struct hvdc_ready {
    double gpu_s, npu_s, handoff_s;
} hvdc_ready;

/* A rate, moved by `weight` (0 to 1) towards what `count` pieces of work took in `seconds`; not moved by none. */
double hvdc_observed(double before_s, double seconds, uint32_t count, double weight);

/* The cut, nearest to that with which the GPU hands a video over just when the NPU is free for it. `best` is that of
 * hvdc_best_cut for these rates: where T_N / T_G is above a half, what one video is late or early by would grow from
 * video to video, and the cut goes only so far from `best` that it is halved. */
uint32_t hvdc_meeting_cut(const hvdc_rates *rates, uint32_t executions, uint32_t best, const hvdc_ready *ready);

/* The largest cut, `most` at most, with which a video is in time; `*begin_s`: in how many seconds the GPU begins it, 0 for
 * as soon as it is free. `allowed_s` counts from now, or, `from_start`, from its first block: then the GPU begins it no
 * earlier than it must to be done when the NPU is free. `most` and 0 if there is no such cut: a video that is late anyway
 * delays no other. */
uint32_t hvdc_cut_in_time(const hvdc_rates *rates, uint32_t executions, uint32_t most, const hvdc_ready *ready,
                          double allowed_s, bool from_start, double *begin_s);

#ifdef __cplusplus
}
#endif

#endif
