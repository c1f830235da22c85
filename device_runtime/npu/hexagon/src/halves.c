#include "halves.h"

#include "hvdc/half.h"
#include "hvdc/tiles.h"

#define TILE HVDC_TILE_HMX_FP16_2_ROWS
#define AT(row, col) HVDC_TILE_HMX_FP16_2_OFFSET(row, col)

static float power_of_two(int32_t exponent) { return hvdc_float_of_bits((uint32_t)(127 + exponent) << 23); }

#if defined(__hexagon__)
#include "lanes.h"

/* Two rows of a tile are a vector, taking turns. */
void hvdc_halves_join(const uint16_t *first, const uint16_t *second, int32_t exponent, float *sums, size_t stride) {
    const lanes scale = lanes_splat(power_of_two(exponent));
    const lanes small = lanes_splat(power_of_two(exponent - HVDC_HALVES_SHIFT));
    for (uint32_t row = 0; row < TILE; row += 2u, sums += 2u * stride) {
        const lanes2 high = lanes_widen_turns(lanes_load(first + AT(row, 0u)));
        const lanes2 low = lanes_widen_turns(lanes_load(second + AT(row, 0u)));
        lanes_store(sums, lanes_add(lanes_mul(Q6_V_lo_W(high), scale), lanes_mul(Q6_V_lo_W(low), small)));
        lanes_store(sums + stride, lanes_add(lanes_mul(Q6_V_hi_W(high), scale), lanes_mul(Q6_V_hi_W(low), small)));
    }
}
#else
void hvdc_halves_join(const uint16_t *first, const uint16_t *second, int32_t exponent, float *sums, size_t stride) {
    const float scale = power_of_two(exponent), small = power_of_two(exponent - HVDC_HALVES_SHIFT);
    for (uint32_t row = 0; row < TILE; row++) {
        for (uint32_t col = 0; col < TILE; col++) {
            const uint32_t at = AT(row, col);
            sums[row * stride + col] = hvdc_half_to_float(first[at]) * scale + hvdc_half_to_float(second[at]) * small;
        }
    }
}
#endif
