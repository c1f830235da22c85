/* Tiles: a weight's codes become FP16 values, rows of an activation become tiles. */
#include "hvx_units.h"
#include "lanes.h"

/* A vector of codes has four inputs k of 32 outputs n, byte 4n + k. Each input becomes a vector of words in the order of n,
 * as the scales are, the code in a word's top byte: signs need no extension there, and of all ways apart this one leaves
 * the shifter and the multipliers free. Two inputs, taking turns, are two rows of an FP16 tile.
 *
 * Four stages, of a vector each: parted, converted, multiplied, narrowed. A turn does one stage of four vectors that
 * follow each other, so that nothing waits for what the turn began. docs/BENCHMARKS.md counts its packets. */
typedef struct widening {
    lanes words[4], codes[4], products[4]; /* of input 0, 1, 2, 3 */
} widening;

LANES_INLINE void part(widening *at, lanes codes) {
    const lanes zero = Q6_V_vzero(), top = Q6_V_vsplat_R((int32_t)0xff000000u);
    lanes even = Q6_Vb_vshuffe_VbVb(codes, zero); /* inputs 0 and 2, each in the upper byte of its halfword */
    lanes odd = Q6_V_vand_VV(codes, Q6_V_vsplat_R((int32_t)0xff00ff00u));
    at->words[0] = Q6_Vh_vshuffe_VhVh(even, zero);
    at->words[1] = Q6_Vh_vshuffe_VhVh(odd, zero);
    at->words[2] = Q6_V_vand_VV(even, top);
    at->words[3] = Q6_V_vand_VV(codes, top);
}

LANES_INLINE void convert(widening *at) {
#pragma clang loop unroll(full)
    for (uint32_t k = 0; k < 4u; k++) at->codes[k] = lanes_codes(at->words[k]);
}

LANES_INLINE void scale_codes(widening *at, lanes scales) {
#pragma clang loop unroll(full)
    for (uint32_t k = 0; k < 4u; k++) at->products[k] = lanes_scaled(at->codes[k], scales);
}

LANES_INLINE void put(const widening *at, lanes *rows) {
    rows[0] = lanes_narrow_turns(at->products[0], at->products[1]);
    rows[1] = lanes_narrow_turns(at->products[2], at->products[3]);
}

/* One more vector begins, and one is done. */
LANES_INLINE void advance(widening *at, lanes scales, lanes codes, lanes *rows) {
    put(at, rows);
    scale_codes(at, scales);
    convert(at);
    part(at, codes);
}

void hvx_widen(const int8_t *tiles, const float *scale, uint32_t count, uint16_t *out) {
    _Static_assert(HVDC_TILE_HMX_INT8_K4_OFFSET(1u, 0u) == 1u && HVDC_TILE_HMX_INT8_K4_OFFSET(0u, 1u) == 4u &&
                       HVDC_TILE_HMX_INT8_K4_OFFSET(4u, 0u) == sizeof(lanes),
                   "a vector holds four inputs of every output");
    enum { VECTORS = HVDC_TILE_HMX_INT8_K4_BYTES / sizeof(lanes), AT_ONCE = 4, BEGUN = 3 };
    _Static_assert(VECTORS == 2 * AT_ONCE, "whole turns, but for what is begun before them");
    const lanes *restrict codes = (const lanes *)(const void *)tiles;
    const lanes scales = lanes_code_scales(lanes_load(scale));
    lanes *restrict rows = (lanes *)(void *)out;
    if (count == 0u) return;
    widening at;
    part(&at, codes[0]);
    convert(&at);
    scale_codes(&at, scales);
    part(&at, codes[1]);
    convert(&at);
    part(&at, codes[2]);
    for (uint32_t turn = 0; turn < 2u * count - 1u; turn++, codes += AT_ONCE, rows += 2 * AT_ONCE) {
#pragma clang loop unroll(full)
        for (uint32_t j = 0; j < AT_ONCE; j++) advance(&at, scales, codes[BEGUN + j], rows + 2u * j);
    }
    advance(&at, scales, codes[BEGUN], rows);
    put(&at, rows + 2);
    scale_codes(&at, scales);
    convert(&at);
    put(&at, rows + 4);
    scale_codes(&at, scales);
    put(&at, rows + 6);
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
