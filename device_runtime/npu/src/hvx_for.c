#include "portable.h"

#if defined(HVDC_CPU_HAS_X86_64_LEVELS)
static const hvdc_hvx *const UNITS[HVDC_CPU_LEVELS] = {&hvdc_hvx_portable_generic, &hvdc_hvx_portable_x86_64_v3,
                                                       &hvdc_hvx_portable_x86_64_v4};

const hvdc_hvx *hvdc_hvx_for(enum hvdc_cpu cpu) { return UNITS[cpu]; }
#else
const hvdc_hvx *hvdc_hvx_for(enum hvdc_cpu cpu) {
    (void)cpu;
    return &hvdc_hvx_portable_generic;
}
#endif
