/* The portable units, as they are compiled for each level of hvdc/cpu.h. */
#ifndef HVDC_NPU_PORTABLE_H
#define HVDC_NPU_PORTABLE_H

#include "hmx.h"
#include "hvx.h"

extern const hvdc_hmx hvdc_hmx_portable_generic, hvdc_hmx_portable_x86_64_v3, hvdc_hmx_portable_x86_64_v4;
extern const hvdc_hmx hvdc_hmx_exact_generic, hvdc_hmx_exact_x86_64_v3, hvdc_hmx_exact_x86_64_v4;
extern const hvdc_hvx hvdc_hvx_portable_generic, hvdc_hvx_portable_x86_64_v3, hvdc_hvx_portable_x86_64_v4;

#endif
