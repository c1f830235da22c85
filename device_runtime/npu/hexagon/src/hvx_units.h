/* Kernels of hvx.h by the vector unit, a file for each kind; hvx_units.c makes the table of them. */
#ifndef HVDC_HEXAGON_HVX_UNITS_H
#define HVDC_HEXAGON_HVX_UNITS_H

#include "hvx.h"

#define TILE HVDC_HMX_TILE
#define HALFS HVDC_HMX_TILE_HALFS
#define PAIR (2u * TILE) /* two rows of a tile lie interleaved: a vector */
#define AT(row, col) HVDC_TILE_HMX_FP16_2_OFFSET(row, col)

_Static_assert(AT(1u, 0u) == 1u && AT(0u, 1u) == 2u && AT(2u, 0u) == PAIR, "pairs of rows are interleaved");

/* hvx_tiles.c */
void hvx_widen(const int8_t *tiles, const float *scale, uint32_t count, uint16_t *out);
void hvx_pack_rows(const uint16_t *x, size_t stride, uint32_t rows, uint32_t columns, uint16_t *out,
                   size_t stride_tiles);
void hvx_pack_columns(const uint16_t *x, size_t stride, uint32_t rows, uint32_t columns, uint16_t *out,
                      size_t stride_tiles);
/* hvx_rows.c */
void hvx_narrow(const float *x, size_t count, uint16_t *y);
void hvx_layer_norm(const float *x, uint32_t width, double eps, const float *factor, const float *addend, float *work,
                    uint16_t *y);
void hvx_rms_norm(const uint16_t *x, uint32_t width, double eps, const float *gain, uint32_t heads,
                  const float *rotations, float *work, uint16_t *y);
void hvx_residual(float *x, const uint16_t *y, const float *gate, uint32_t width);
/* hvx_results.c */
void hvx_add_bias(const uint16_t *tile, const float *bias, uint32_t rows, uint32_t columns, uint16_t *y, size_t stride);
void hvx_add_bias_gelu(const uint16_t *tile, const float *bias, uint16_t *y);
void hvx_add(const uint16_t *tile, uint32_t rows, uint32_t columns, uint16_t *y, size_t stride);
void hvx_gelu(float *x, size_t count);
/* hvx_attention.c */
void hvx_weigh(uint16_t *scores, uint32_t keys, float scale, float *max, float *sum, float *factor);
void hvx_carry(float *total, const float *part, const float *factor, uint32_t rows, uint32_t columns);
void hvx_divide(const float *total, size_t stride, const float *sum, uint32_t rows, uint32_t columns, uint16_t *y,
                size_t y_stride);
void hvx_exp2(float *x, size_t count);

#endif
