#include "hvdc/policy.h"

#include <math.h>

/* Each product is a statement of its own: a compiler may fuse a product and a sum within one expression, and Python
 * doesn't. */

double hvdc_gpu_stage_s(const hvdc_rates *rates, uint32_t cut) { return (double)cut * rates->gpu_block_s; }

double hvdc_npu_stage_s(const hvdc_rates *rates, uint32_t executions, uint32_t cut) {
    double blocks_s = (double)(executions - cut) * rates->npu_block_s;
    return blocks_s + rates->decode_s;
}

double hvdc_period_s(const hvdc_rates *rates, uint32_t executions, uint32_t cut) {
    double gpu_s = hvdc_gpu_stage_s(rates, cut), npu_s = hvdc_npu_stage_s(rates, executions, cut);
    return gpu_s > npu_s ? gpu_s : npu_s;
}

static bool is_duration(double seconds) { return isfinite(seconds) && seconds > 0.0; }

static bool are_usable(const hvdc_rates *rates, const char *what_for, hvdc_failure *failure) {
    return (is_duration(rates->gpu_block_s) && is_duration(rates->npu_block_s) && isfinite(rates->decode_s) &&
            rates->decode_s >= 0.0) ||
           hvdc_fail(failure, HVDC_FAILURE_USAGE,
                     "the rates %g s per block on the GPU, %g s on the NPU and %g s per decode do not place a %s: "
                     "blocks take more than 0 s, a decode 0 s or more; measure them again",
                     rates->gpu_block_s, rates->npu_block_s, rates->decode_s, what_for);
}

bool hvdc_balanced_share(const hvdc_rates *rates, double *share, hvdc_failure *failure) {
    if (!are_usable(rates, "share", failure)) return false;
    *share = 1.0 / (1.0 + rates->gpu_block_s / rates->npu_block_s); /* their sum may be infinite */
    return true;
}

bool hvdc_best_cut(const hvdc_rates *rates, uint32_t executions, uint32_t *cut, hvdc_failure *failure) {
    if (!are_usable(rates, "cut", failure)) return false;
    double npu_s = hvdc_npu_stage_s(rates, executions, 0), both_s = rates->gpu_block_s + rates->npu_block_s;
    if (!isfinite(npu_s) || !isfinite(both_s))
        return hvdc_fail(failure, HVDC_FAILURE_USAGE,
                         "the rates are so large that their sum is infinite; measure them again");
    double balance = npu_s / both_s;
    uint32_t below = balance < (double)executions ? (uint32_t)balance : executions;
    uint32_t above = below < executions ? below + 1u : executions;
    double below_s = hvdc_period_s(rates, executions, below), above_s = hvdc_period_s(rates, executions, above);
    /* Of two equally good cuts that with the smaller latency: the engine with the shorter block gets one more. */
    bool is_gpu_faster = rates->gpu_block_s < rates->npu_block_s;
    *cut = (above_s < below_s || (is_gpu_faster && above_s <= below_s)) ? above : below;
    return true;
}
