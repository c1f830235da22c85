/* A number as two FP16 numbers: sum ≈ first · 2^exponent + second · 2^(exponent − HVDC_HALVES_SHIFT). See hmx_staged.h. */
#ifndef HVDC_NPU_HALVES_H
#define HVDC_NPU_HALVES_H

#include <stddef.h>
#include <stdint.h>

#define HVDC_HALVES_SHIFT 11

/* Two tiles (hmx-fp16-2) to 32 rows of 32 FP32 sums, `stride` floats apart. Both products are exact in FP32, and their
 * sum is rounded once, where lanes are IEEE (lanes.h). */
void hvdc_halves_join(const uint16_t *first, const uint16_t *second, int32_t exponent, float *sums, size_t stride);

#endif
