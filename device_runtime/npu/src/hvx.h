/* The vector unit: everything of a block that is not a matrix product. This is the other seam of the NPU executor (see
 * hmx.h). Arithmetic is FP32; halfs are FP16, narrowed to nearest even. `stride`s count elements between rows.
 *
 * The portable unit gives the same bits on every processor. */
#ifndef HVDC_NPU_HVX_H
#define HVDC_NPU_HVX_H

#include <stddef.h>
#include <stdint.h>

#include "hmx.h"

/* Key tiles of a piece of attention. */
#define HVDC_HVX_KEY_TILES 16u

typedef struct hvdc_hvx {
    /* `count` INT8 tiles (hmx-int8-k4) of one column of tiles to FP16 tiles: fp16(q · scale[n]). */
    void (*widen)(const int8_t *tiles, const float *scale, uint32_t count, uint16_t *out);

    /* Rows of FP16, up to 32, to a row of tiles: tile j, which holds columns [32 j, 32 j + 32), at out + j ·
     * stride_tiles tiles. What is beyond the last row or column is 0. `pack_columns` has (column, row) in a tile
     * instead. */
    void (*pack_rows)(const uint16_t *x, size_t stride, uint32_t rows, uint32_t columns, uint16_t *out,
                      size_t stride_tiles);
    void (*pack_columns)(const uint16_t *x, size_t stride, uint32_t rows, uint32_t columns, uint16_t *out,
                         size_t stride_tiles);

    void (*narrow)(const float *x, size_t count, uint16_t *y);

    /* A row: layer norm, times factor, plus addend (either may be NULL); narrowed. `work` holds a row. */
    void (*layer_norm)(const float *x, uint32_t width, double eps, const float *factor, const float *addend,
                       float *work, uint16_t *y);

    /* A row: RMS norm times gain over all channels, then RoPE of each head unless `rotations` is NULL. */
    void (*rms_norm)(const uint16_t *x, uint32_t width, double eps, const float *gain, uint32_t heads,
                     const float *rotations, float *work, uint16_t *y);

    /* y = fp16(x + bias[column]) of a tile's first rows and columns, to row-major y. */
    void (*add_bias)(const uint16_t *tile, const float *bias, uint32_t rows, uint32_t columns, uint16_t *y,
                     size_t stride);

    /* y = fp16(gelu(fp16(x + bias[column]))), from tile to tile. */
    void (*add_bias_gelu)(const uint16_t *tile, const float *bias, uint16_t *y);

    /* y = fp16(y + x) for a tile's first rows and columns. */
    void (*add)(const uint16_t *tile, uint32_t rows, uint32_t columns, uint16_t *y, size_t stride);

    /* A row of the residual stream: x += y · gate, or x += y where `gate` is NULL. */
    void (*residual)(float *x, const uint16_t *y, const float *gate, uint32_t width);

    /* One step of attention in the flash form, for 32 rows and `keys` <= 32 · HVDC_HVX_KEY_TILES keys. Scores, FP16
     * tiles [key tile] of (row, key), become weights p = fp16(2^((score − max) · scale)), 0 beyond the last key;
     * `max` [32] and `sum` [32] (of p) are carried on, from −infinity and 0; `factor` [32] is by what earlier sums
     * shrink. */
    void (*weigh)(uint16_t *scores, uint32_t keys, float scale, float *max, float *sum, float *factor);

    /* total = total · factor[row] + part: FP32 [rows][columns]. */
    void (*carry)(float *total, const float *part, const float *factor, uint32_t rows, uint32_t columns);

    /* y = fp16(total / sum[row]) of FP32 rows `stride` floats apart, to FP16 rows `y_stride` apart. */
    void (*divide)(const float *total, size_t stride, const float *sum, uint32_t rows, uint32_t columns, uint16_t *y,
                   size_t y_stride);

    /* What weigh and add_bias_gelu are made of, in place: no part of an engine asks for them, but tests do. */
    void (*exp2)(float *x, size_t count);
    void (*gelu)(float *x, size_t count);
} hvdc_hvx;

const hvdc_hvx *hvdc_hvx_for(enum hvdc_cpu cpu);

#endif
