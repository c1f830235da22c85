/* The vector unit on a CPU, in loops that compilers make vectors of. */
#include "hvx.h"

#include <math.h>
#include <string.h>

#include "hvdc/half.h"
#include "hvdc/rows.h"
#include "portable.h"

#define TILE HVDC_HMX_TILE
#define HALFS HVDC_HMX_TILE_HALFS
#define PAIR (2u * TILE) /* two rows of a tile lie interleaved */
#define AT(row, col) HVDC_TILE_HMX_FP16_2_OFFSET(row, col)

_Static_assert(AT(1u, 0u) == 1u && AT(0u, 1u) == 2u && AT(2u, 0u) == PAIR, "pairs of rows are interleaved");

static void widen(const int8_t *tiles, const float *scale, uint32_t count, uint16_t *out) {
    float scales[4u * TILE]; /* a scale for each byte of four rows */
    for (uint32_t k = 0; k < 4u; k++) {
        for (uint32_t n = 0; n < TILE; n++) {
            scales[HVDC_TILE_HMX_INT8_K4_OFFSET(k, n)] = scale[n];
        }
    }
    for (uint32_t tile = 0; tile < count; tile++, tiles += HVDC_TILE_HMX_INT8_K4_BYTES, out += HALFS) {
        float values[HALFS];
        uint16_t halfs[HALFS];
        for (uint32_t i = 0; i < HALFS; i += 4u * TILE) {
            for (uint32_t j = 0; j < 4u * TILE; j++) {
                values[i + j] = (float)tiles[i + j] * scales[j];
            }
        }
        hvdc_halfs_from_floats(values, HALFS, halfs);
        for (uint32_t k = 0; k < TILE; k += 2u) { /* two neighbours in k lie side by side in both orders */
            for (uint32_t n = 0; n < TILE; n++) {
                memcpy(out + AT(k, n), halfs + HVDC_TILE_HMX_INT8_K4_OFFSET(k, n), 2u * sizeof *out);
            }
        }
    }
}

static void pack_rows(const uint16_t *x, size_t stride, uint32_t rows, uint32_t columns, uint16_t *out,
                      size_t stride_tiles) {
    for (uint32_t first = 0; first < columns; first += TILE, out += stride_tiles * HALFS) {
        uint32_t count = columns - first < TILE ? columns - first : TILE;
        for (uint32_t row = 0; row < TILE; row += 2u) {
            uint16_t above[TILE] = {0}, below[TILE] = {0};
            if (row < rows) {
                memcpy(above, x + row * stride + first, count * sizeof *x);
            }
            if (row + 1u < rows) {
                memcpy(below, x + (row + 1u) * stride + first, count * sizeof *x);
            }
            uint16_t *pair = out + AT(row, 0u);
            for (size_t col = 0; col < TILE; col++) {
                pair[2u * col] = above[col];
                pair[2u * col + 1u] = below[col];
            }
        }
    }
}

static void pack_columns(const uint16_t *x, size_t stride, uint32_t rows, uint32_t columns, uint16_t *out,
                         size_t stride_tiles) {
    for (uint32_t first = 0; first < columns; first += TILE, out += stride_tiles * HALFS) {
        uint32_t count = columns - first < TILE ? columns - first : TILE;
        for (uint32_t row = 0; row < TILE; row++) {
            uint16_t values[TILE] = {0};
            if (row < rows) {
                memcpy(values, x + row * stride + first, count * sizeof *x);
            }
            for (uint32_t col = 0; col < TILE; col += 2u) {
                memcpy(out + AT(col, row), values + col, 2u * sizeof *out);
            }
        }
    }
}

static void narrow(const float *x, size_t count, uint16_t *y) { hvdc_halfs_from_floats(x, count, y); }

static void layer_norm(const float *x, uint32_t width, double eps, const float *factor, const float *addend,
                       float *work, uint16_t *y) {
    hvdc_layer_norm_row(x, width, eps, factor, addend, work);
    hvdc_halfs_from_floats(work, width, y);
}

static void rms_norm(const uint16_t *x, uint32_t width, double eps, const float *gain, uint32_t heads,
                     const float *rotations, float *work, uint16_t *y) {
    hvdc_halfs_to_floats(x, width, work);
    hvdc_rms_norm_row(work, width, eps, gain);
    if (rotations != NULL) {
        hvdc_rotate_row(work, heads, width / heads, rotations);
    }
    hvdc_halfs_from_floats(work, width, y);
}

/* The row of a tile as floats. */
static void row_of(const float values[HALFS], uint32_t row, float out[TILE]) {
    for (uint32_t col = 0; col < TILE; col++) {
        out[col] = values[AT(row, col)];
    }
}

static void add_bias(const uint16_t *tile, const float *bias, uint32_t rows, uint32_t columns, uint16_t *y,
                     size_t stride) {
    float values[HALFS], row[TILE];
    uint16_t narrowed[TILE];
    hvdc_halfs_to_floats(tile, HALFS, values);
    for (uint32_t r = 0; r < rows; r++) {
        row_of(values, r, row);
        for (uint32_t col = 0; col < TILE; col++) {
            row[col] += bias[col];
        }
        hvdc_halfs_from_floats(row, TILE, narrowed);
        memcpy(y + r * stride, narrowed, columns * sizeof *y);
    }
}

static void add_bias_gelu(const uint16_t *tile, const float *bias, uint16_t *y) {
    float biases[PAIR], values[HALFS];
    for (uint32_t col = 0; col < TILE; col++) {
        biases[AT(0u, col)] = biases[AT(1u, col)] = bias[col];
    }
    hvdc_halfs_to_floats(tile, HALFS, values);
    for (uint32_t pair = 0; pair < HALFS; pair += PAIR) {
        for (uint32_t i = 0; i < PAIR; i++) {
            values[pair + i] += biases[i];
        }
    }
    hvdc_halfs_from_floats(values, HALFS, y);
    hvdc_halfs_to_floats(y, HALFS, values);
    for (uint32_t i = 0; i < HALFS; i++) {
        values[i] = hvdc_gelu(values[i]);
    }
    hvdc_halfs_from_floats(values, HALFS, y);
}

static void add(const uint16_t *tile, uint32_t rows, uint32_t columns, uint16_t *y, size_t stride) {
    float values[HALFS], row[TILE], before[TILE] = {0};
    uint16_t narrowed[TILE];
    hvdc_halfs_to_floats(tile, HALFS, values);
    for (uint32_t r = 0; r < rows; r++) {
        row_of(values, r, row);
        hvdc_halfs_to_floats(y + r * stride, columns, before);
        for (uint32_t col = 0; col < TILE; col++) {
            row[col] = before[col] + row[col];
        }
        hvdc_halfs_from_floats(row, TILE, narrowed);
        memcpy(y + r * stride, narrowed, columns * sizeof *y);
    }
}

static void residual(float *x, const uint16_t *y, const float *gate, uint32_t width) {
    float values[TILE];
    for (uint32_t first = 0; first < width; first += TILE) {
        uint32_t count = width - first < TILE ? width - first : TILE;
        hvdc_halfs_to_floats(y + first, count, values);
        for (uint32_t i = 0; i < count; i++) {
            x[first + i] += gate == NULL ? values[i] : values[i] * gate[first + i];
        }
    }
}

#define KEYS (HVDC_HVX_KEY_TILES * TILE)

/* Two rows at once, as they lie: even places are the upper row's. Scores become weights, in `halfs`. */
static void weigh_pair(float *restrict values, uint16_t *restrict halfs, uint32_t count, float scale, float *max,
                       float *sum, float *factor) {
    float most[TILE], total[TILE] = {0}, sums[2] = {0};
    const float before[2] = {max[0], max[1]};
    for (uint32_t j = 0; j < TILE; j++) {
        most[j] = max[j % 2u];
    }
    for (uint32_t i = 0; i < count; i += TILE) {
        for (uint32_t j = 0; j < TILE; j++) {
            most[j] = values[i + j] > most[j] ? values[i + j] : most[j];
        }
    }
    for (uint32_t j = 0; j < TILE; j++) {
        max[j % 2u] = most[j] > max[j % 2u] ? most[j] : max[j % 2u];
    }
    for (uint32_t j = 0; j < TILE; j++) {
        most[j] = max[j % 2u];
    }
    for (uint32_t i = 0; i < count; i += TILE) {
        for (uint32_t j = 0; j < TILE; j++) {
            values[i + j] = hvdc_exp2((values[i + j] - most[j]) * scale);
        }
    }
    hvdc_halfs_from_floats(values, count, halfs);
    hvdc_halfs_to_floats(halfs, count, values); /* what is multiplied is what is summed */
    for (uint32_t i = 0; i < count; i += TILE) {
        for (uint32_t j = 0; j < TILE; j++) {
            total[j] += values[i + j];
        }
    }
    for (uint32_t j = 0; j < TILE; j++) {
        sums[j % 2u] += total[j];
    }
    for (uint32_t r = 0; r < 2u; r++) {
        factor[r] = hvdc_exp2((before[r] - max[r]) * scale);
        sum[r] = sum[r] * factor[r] + sums[r];
    }
}

static void weigh(uint16_t *scores, uint32_t keys, float scale, float *max, float *sum, float *factor) {
    uint32_t tiles = (keys + TILE - 1u) / TILE;
    for (uint32_t row = 0; row < TILE; row += 2u) {
        float values[2u * KEYS];
        uint16_t halfs[2u * KEYS];
        for (size_t tile = 0; tile < tiles; tile++) {
            hvdc_halfs_to_floats(scores + tile * HALFS + AT(row, 0u), (size_t)PAIR, values + tile * (size_t)PAIR);
        }
        for (uint32_t i = 2u * keys; i < tiles * PAIR; i++) {
            values[i] = -INFINITY;
        }
        weigh_pair(values, halfs, tiles * PAIR, scale, max + row, sum + row, factor + row);
        for (size_t tile = 0; tile < tiles; tile++) {
            memcpy(scores + tile * HALFS + AT(row, 0u), halfs + tile * (size_t)PAIR, (size_t)PAIR * sizeof *halfs);
        }
    }
}

static void carry(float *total, const float *part, const float *factor, uint32_t rows, uint32_t columns) {
    for (uint32_t r = 0; r < rows; r++, total += columns, part += columns) {
        for (uint32_t c = 0; c < columns; c++) {
            total[c] = total[c] * factor[r] + part[c];
        }
    }
}

static void divide(const float *total, size_t stride, const float *sum, uint32_t rows, uint32_t columns, uint16_t *y,
                   size_t y_stride) {
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t first = 0; first < columns; first += TILE) {
            uint32_t count = columns - first < TILE ? columns - first : TILE;
            float values[TILE];
            for (uint32_t c = 0; c < count; c++) {
                values[c] = total[r * stride + first + c] / sum[r];
            }
            hvdc_halfs_from_floats(values, count, y + r * y_stride + first);
        }
    }
}

static void exp2_each(float *x, size_t count) {
    for (size_t i = 0; i < count; i++) {
        x[i] = hvdc_exp2(x[i]);
    }
}

static void gelu_each(float *x, size_t count) {
    for (size_t i = 0; i < count; i++) {
        x[i] = hvdc_gelu(x[i]);
    }
}

const hvdc_hvx HVDC_FOR_CPU(hvdc_hvx_portable) = {
    .widen = widen,
    .pack_rows = pack_rows,
    .pack_columns = pack_columns,
    .narrow = narrow,
    .layer_norm = layer_norm,
    .rms_norm = rms_norm,
    .add_bias = add_bias,
    .add_bias_gelu = add_bias_gelu,
    .add = add,
    .residual = residual,
    .weigh = weigh,
    .carry = carry,
    .divide = divide,
    .exp2 = exp2_each,
    .gelu = gelu_each,
};
