#include "halves.h"

#include "hvdc/half.h"
#include "hvdc/tiles.h"

#define TILE HVDC_TILE_HMX_FP16_2_ROWS

static float power_of_two(int32_t exponent) { return hvdc_float_of_bits((uint32_t)(127 + exponent) << 23); }

#if defined(HVDC_HEXAGON_DEVICE)
#include <hexagon_protos.h>
#include <hexagon_types.h>
#include <hvx_hexagon_protos.h>

static int splat(float power) {
    const uint32_t half = hvdc_half_from_float(power);
    return (int)(half << 16 | half);
}

/* A vector of a tile has two rows, which the widening product puts apart: even elements, odd elements. Vector floats by
 * IEEE 754 (-mhvx-ieee-fp). */
void hvdc_halves_join(const uint16_t *first, const uint16_t *second, int32_t exponent, float *sums, size_t stride) {
    const HVX_Vector *left = (const void *)first, *right = (const void *)second;
    const HVX_Vector scale = Q6_V_vsplat_R(splat(power_of_two(exponent)));
    const HVX_Vector small = Q6_V_vsplat_R(splat(power_of_two(exponent - HVDC_HALVES_SHIFT)));
    for (uint32_t row = 0; row < TILE; row += 2u) {
        const HVX_VectorPair high = Q6_Wsf_vmpy_VhfVhf(*left++, scale), low = Q6_Wsf_vmpy_VhfVhf(*right++, small);
        HVX_Vector *even = (void *)(sums + row * stride), *odd = (void *)(sums + (row + 1u) * stride);
        *even = Q6_Vsf_vadd_VsfVsf(Q6_V_lo_W(high), Q6_V_lo_W(low));
        *odd = Q6_Vsf_vadd_VsfVsf(Q6_V_hi_W(high), Q6_V_hi_W(low));
    }
}
#else
void hvdc_halves_join(const uint16_t *first, const uint16_t *second, int32_t exponent, float *sums, size_t stride) {
    const float scale = power_of_two(exponent), small = power_of_two(exponent - HVDC_HALVES_SHIFT);
    for (uint32_t row = 0; row < TILE; row++) {
        for (uint32_t col = 0; col < TILE; col++) {
            const uint32_t at = HVDC_TILE_HMX_FP16_2_OFFSET(row, col);
            sums[row * stride + col] = hvdc_half_to_float(first[at]) * scale + hvdc_half_to_float(second[at]) * small;
        }
    }
}
#endif
