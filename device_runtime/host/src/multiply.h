/* Rows times a panel, for any number of rows: compiled once for each level of hvdc/cpu.h. */
#ifndef HVDC_MULTIPLY_H
#define HVDC_MULTIPLY_H

#include <stddef.h>
#include <stdint.h>

#include "hvdc/cpu.h"

/* y[r][c] = bias[c] + Σ_k x[r][k] · panel[k][c], FP32 from sums in FP64 that are rounded once, c < columns <= 32; `bias`
 * may be NULL. x and y have rows
 * `x_stride` and `y_stride` floats apart; the panel is [k][32]. */
typedef void hvdc_multiply(const float *x, size_t x_stride, uint32_t rows, uint32_t k, const float *panel,
                           uint32_t columns, const float *bias, float *y, size_t y_stride);

hvdc_multiply *hvdc_multiply_for(enum hvdc_cpu cpu);

hvdc_multiply hvdc_multiply_generic, hvdc_multiply_x86_64_v3, hvdc_multiply_x86_64_v4;

#endif
