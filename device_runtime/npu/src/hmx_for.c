#include "portable.h"

#if defined(HVDC_CPU_HAS_X86_64_LEVELS)
static const hvdc_hmx *const FAST[HVDC_CPU_LEVELS] = {&hvdc_hmx_portable_generic, &hvdc_hmx_portable_x86_64_v3,
                                                      &hvdc_hmx_portable_x86_64_v4};
static const hvdc_hmx *const EXACT[HVDC_CPU_LEVELS] = {&hvdc_hmx_exact_generic, &hvdc_hmx_exact_x86_64_v3,
                                                       &hvdc_hmx_exact_x86_64_v4};

const hvdc_hmx *hvdc_hmx_for(enum hvdc_cpu cpu, enum hvdc_npu_sums kind) {
    return kind == HVDC_NPU_SUMS_EXACT ? EXACT[cpu] : FAST[cpu];
}
#else
const hvdc_hmx *hvdc_hmx_for(enum hvdc_cpu cpu, enum hvdc_npu_sums kind) {
    (void)cpu;
    return kind == HVDC_NPU_SUMS_EXACT ? &hvdc_hmx_exact_generic : &hvdc_hmx_portable_generic;
}
#endif
