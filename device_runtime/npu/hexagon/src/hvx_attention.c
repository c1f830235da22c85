/* Softmax in the flash form. A vector of scores is two rows, taking turns, and 32 keys. */
#include <math.h>

#include "hvx_units.h"
#include "lanes.h"

/* Rows take turns within each vector as they do within a pair of rows: what was low and high after widening in the order
 * of elements are 16 keys each. */
static inline lanes2 scores_of(const uint16_t *scores, uint32_t tile, uint32_t row, uint32_t keys) {
    lanes halfs = *(const lanes *)(const void *)(scores + tile * HALFS + AT(row, 0u));
    uint32_t left = keys - tile * TILE;
    if (left < TILE) {
        halfs = lanes_select(Q6_Q_vsetq_R((int32_t)(left * 2u * sizeof *scores)), halfs, Q6_Vh_vsplat_R(0xfc00));
    }
    return lanes_widen(halfs);
}

/* Lanes of a row's largest score, or of its sum, to one number for each of the two rows. */
static void largest_of(lanes most, float largest[2]) {
    float values[LANES];
    lanes_store(values, most);
    for (uint32_t i = 0; i < LANES; i++) largest[i % 2u] = values[i] > largest[i % 2u] ? values[i] : largest[i % 2u];
}

static void sums_of(lanes total, float sums[2]) {
    float values[LANES];
    lanes_store(values, total);
    for (uint32_t i = 0; i < LANES; i++) sums[i % 2u] += values[i];
}

static inline lanes of_rows(const float values[2]) {
    return Q6_V_lo_W(Q6_W_vshuff_VVR(lanes_splat(values[1]), lanes_splat(values[0]), -4));
}

static void weigh_pair(uint16_t *scores, uint32_t row, uint32_t keys, float scale, float *max, float *sum,
                       float *factor) {
    const uint32_t tiles = (keys + TILE - 1u) / TILE;
    const float before[2] = {max[0], max[1]};
    float sums[2] = {0.0f, 0.0f};
    lanes most = of_rows(max), total = Q6_V_vzero();
    for (uint32_t tile = 0; tile < tiles; tile++) {
        lanes2 values = scores_of(scores, tile, row, keys);
        most = lanes_max(Q6_V_hi_W(values), lanes_max(Q6_V_lo_W(values), most));
    }
    largest_of(most, max);
    most = of_rows(max);
    for (uint32_t tile = 0; tile < tiles; tile++) {
        lanes2 values = scores_of(scores, tile, row, keys);
        lanes low = lanes_exp2(lanes_mul(lanes_sub(Q6_V_lo_W(values), most), lanes_splat(scale)));
        lanes high = lanes_exp2(lanes_mul(lanes_sub(Q6_V_hi_W(values), most), lanes_splat(scale)));
        lanes weights = lanes_narrow(low, high);
        *(lanes *)(void *)(scores + tile * HALFS + AT(row, 0u)) = weights;
        values = lanes_widen(weights); /* what is multiplied is what is summed */
        total = lanes_add(lanes_add(total, Q6_V_lo_W(values)), Q6_V_hi_W(values));
    }
    sums_of(total, sums);
    const float shrunk[2] = {(before[0] - max[0]) * scale, (before[1] - max[1]) * scale};
    float factors[LANES];
    lanes_store(factors, lanes_exp2(of_rows(shrunk)));
    for (uint32_t r = 0; r < 2u; r++) {
        factor[r] = factors[r];
        sum[r] = sum[r] * factor[r] + sums[r];
    }
}

void hvx_weigh(uint16_t *scores, uint32_t keys, float scale, float *max, float *sum, float *factor) {
    for (uint32_t row = 0; row < TILE; row += 2u) {
        weigh_pair(scores, row, keys, scale, max + row, sum + row, factor + row);
    }
}

void hvx_carry(float *total, const float *part, const float *factor, uint32_t rows, uint32_t columns) {
    for (uint32_t r = 0; r < rows; r++) {
        const lanes factors = lanes_splat(factor[r]);
        for (uint32_t c = 0; c < columns; c += LANES, total += LANES, part += LANES) { /* columns: whole tiles */
            lanes_store(total, lanes_add(lanes_mul(lanes_load(total), factors), lanes_load(part)));
        }
    }
}

void hvx_divide(const float *total, size_t stride, const float *sum, uint32_t rows, uint32_t columns, uint16_t *y,
                size_t y_stride) {
    for (uint32_t r = 0; r < rows; r++) {
        const lanes sums = lanes_splat(sum[r]);
        for (uint32_t first = 0; first < columns; first += LANES) {
            uint32_t count = columns - first < LANES ? columns - first : LANES;
            lanes values = lanes_load_part(total + r * stride + first, count * (uint32_t)sizeof *total);
            lanes halfs = lanes_narrow(lanes_div(values, sums), Q6_V_vzero());
            lanes_store_part(y + r * y_stride + first, halfs, count * (uint32_t)sizeof *y);
        }
    }
}

void hvx_exp2(float *x, size_t count) {
    for (size_t i = 0; i < count; i += LANES) {
        uint32_t bytes = (uint32_t)((count - i < LANES ? count - i : LANES) * sizeof *x);
        lanes_store_part(x + i, lanes_exp2(lanes_load_part(x + i, bytes)), bytes);
    }
}
