/* Where to cut a trajectory. The same arithmetic as hvdc/plan/cut.py, bit for bit.
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

#ifdef __cplusplus
}
#endif

#endif
