/* How the NPU executor adds up a GEMM's products. */
#ifndef HVDC_NPU_SUMS_H
#define HVDC_NPU_SUMS_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

enum hvdc_npu_sums {
    HVDC_NPU_SUMS_FAST = 0, /* in FP32 */
    HVDC_NPU_SUMS_EXACT     /* exactly, rounded once: quant/paths/exact.py */
};

/* "fast", "exact" */
const char *hvdc_npu_sums_name(enum hvdc_npu_sums sums);

/* False for another name. */
bool hvdc_npu_sums_of_name(const char *name, enum hvdc_npu_sums *sums);

#ifdef __cplusplus
}
#endif

#endif
