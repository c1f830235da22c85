#include "multiply.h"

hvdc_multiply *hvdc_multiply_for(enum hvdc_cpu cpu) {
#if defined(HVDC_CPU_HAS_X86_64_LEVELS)
    if (cpu == HVDC_CPU_X86_64_V4) {
        return hvdc_multiply_x86_64_v4;
    }
    if (cpu == HVDC_CPU_X86_64_V3) {
        return hvdc_multiply_x86_64_v3;
    }
#else
    (void)cpu;
#endif
    return hvdc_multiply_generic;
}
