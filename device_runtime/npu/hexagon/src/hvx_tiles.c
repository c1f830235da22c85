/* Tiles: a weight's codes become FP16 values, rows of an activation become tiles. */
#include "hvx_units.h"
#include "lanes.h"

/* A vector of codes has four inputs k of 32 outputs n, byte 4n + k: sign-extended twice, each input is a vector of words
 * in the order of n, as the scales are. Two inputs, taking turns, are two rows of an FP16 tile. */
void hvx_widen(const int8_t *tiles, const float *scale, uint32_t count, uint16_t *out) {
    _Static_assert(HVDC_TILE_HMX_INT8_K4_OFFSET(1u, 0u) == 1u && HVDC_TILE_HMX_INT8_K4_OFFSET(0u, 1u) == 4u &&
                       HVDC_TILE_HMX_INT8_K4_OFFSET(4u, 0u) == sizeof(lanes),
                   "a vector holds four inputs of every output");
    enum { VECTORS = HVDC_TILE_HMX_INT8_K4_BYTES / sizeof(lanes), AT_ONCE = 4 };
    const lanes *restrict codes = (const lanes *)(const void *)tiles;
    const lanes scales = lanes_load(scale);
    lanes *restrict rows = (lanes *)(void *)out;
    _Static_assert(VECTORS % AT_ONCE == 0, "whole turns");
    for (uint32_t i = 0; i < count * VECTORS; i += AT_ONCE) {
        lanes products[4 * AT_ONCE]; /* of input 0, 1, 2, 3 */
#pragma clang loop unroll(full)
        for (uint32_t j = 0; j < AT_ONCE; j++) {
            lanes2 halfs = Q6_Wh_vsxt_Vb(codes[i + j]); /* low: inputs 0 and 2, high: 1 and 3 */
            lanes2 even = Q6_Ww_vsxt_Vh(Q6_V_lo_W(halfs)), odd = Q6_Ww_vsxt_Vh(Q6_V_hi_W(halfs));
            products[4u * j] = lanes_scaled(Q6_V_lo_W(even), scales);
            products[4u * j + 1u] = lanes_scaled(Q6_V_lo_W(odd), scales);
            products[4u * j + 2u] = lanes_scaled(Q6_V_hi_W(even), scales);
            products[4u * j + 3u] = lanes_scaled(Q6_V_hi_W(odd), scales);
        }
#pragma clang loop unroll(full)
        for (uint32_t j = 0; j < 2u * AT_ONCE; j++) {
            rows[2u * i + j] = lanes_narrow_turns(products[2u * j], products[2u * j + 1u]);
        }
    }
}

/* The 32 halfwords of a row that fall into a tile, in the lower half. */
static inline lanes part_of_row(const uint16_t *x, size_t stride, uint32_t row, uint32_t rows, uint32_t first,
                                uint32_t columns) {
    uint32_t count = columns - first < TILE ? columns - first : TILE;
    return row < rows ? lanes_load_part(x + row * stride + first, count * (uint32_t)sizeof *x) : Q6_V_vzero();
}

void hvx_pack_rows(const uint16_t *x, size_t stride, uint32_t rows, uint32_t columns, uint16_t *out,
                   size_t stride_tiles) {
    for (uint32_t first = 0; first < columns; first += TILE, out += stride_tiles * HALFS) {
        for (uint32_t row = 0; row < TILE; row += 2u) {
            lanes above = part_of_row(x, stride, row, rows, first, columns);
            lanes below = part_of_row(x, stride, row + 1u, rows, first, columns);
            *(lanes *)(void *)(out + AT(row, 0u)) = Q6_V_lo_W(Q6_W_vshuff_VVR(below, above, -2));
        }
    }
}

/* Each row is a column of the tile: a row's 16 pairs of channels are words, and become word `row` of 16 vectors. Vectors
 * that are half of their number apart take turns word by word, until each holds one pair of all rows in order. */
void hvx_pack_columns(const uint16_t *x, size_t stride, uint32_t rows, uint32_t columns, uint16_t *out,
                      size_t stride_tiles) {
    enum { PAIRS = HVDC_HMX_TILE / 2 };
    for (uint32_t first = 0; first < columns; first += TILE, out += stride_tiles * HALFS) {
        lanes part[PAIRS], turned[PAIRS];
        for (uint32_t row = 0; row < PAIRS; row++) {
            lanes upper = part_of_row(x, stride, row, rows, first, columns);
            lanes lower = part_of_row(x, stride, row + PAIRS, rows, first, columns);
            part[row] = Q6_V_lo_W(Q6_W_vshuff_VVR(lower, upper, -4));
        }
        for (uint32_t left = PAIRS; left > 1u; left /= 2u) {
            for (uint32_t i = 0; i < PAIRS / 2u; i++) {
                lanes2 turns = Q6_W_vshuff_VVR(part[i + PAIRS / 2u], part[i], -4);
                turned[2u * i] = Q6_V_lo_W(turns);
                turned[2u * i + 1u] = Q6_V_hi_W(turns);
            }
            memcpy(part, turned, sizeof part);
        }
        for (uint32_t i = 0; i < PAIRS; i++) {
            *(lanes *)(void *)(out + AT(2u * i, 0u)) = part[i];
        }
    }
}
