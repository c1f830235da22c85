#include "multiply.h"

#include <string.h>

#include "hvdc/panel.h"

#define WIDE 8u
#define TILE_ROWS 4u

typedef float narrow __attribute__((vector_size(4u * WIDE)));
typedef double wide __attribute__((vector_size(8u * WIDE)));

/* Products of two FP32 numbers are exact in FP64, so that it does not matter whether they are fused with the sum. */
static inline void tile(const float *x, size_t x_stride, uint32_t rows, uint32_t k, const float *panel, double *sums) {
    wide sum[TILE_ROWS] = {{0}};
    for (uint32_t i = 0; i < k; i++) {
        narrow part;
        memcpy(&part, panel + (size_t)i * HVDC_PANEL_COLUMNS, sizeof part);
        wide column = __builtin_convertvector(part, wide);
        for (uint32_t r = 0; r < rows; r++) {
            sum[r] += column * (double)x[r * x_stride + i];
        }
    }
    memcpy(sums, sum, sizeof sum);
}

void HVDC_FOR_CPU(hvdc_multiply)(const float *x, size_t x_stride, uint32_t rows, uint32_t k, const float *panel,
                                 uint32_t columns, const float *bias, float *y, size_t y_stride) {
    double sums[TILE_ROWS * WIDE];
    for (uint32_t row = 0; row < rows; row += TILE_ROWS) {
        uint32_t count = rows - row < TILE_ROWS ? rows - row : TILE_ROWS;
        const float *from = x + row * x_stride;
        for (uint32_t first = 0; first < columns; first += WIDE) {
            if (count == TILE_ROWS) {
                tile(from, x_stride, TILE_ROWS, k, panel + first, sums); /* a constant: sums stay in registers */
            } else {
                tile(from, x_stride, count, k, panel + first, sums);
            }
            uint32_t last = columns - first < WIDE ? columns - first : WIDE;
            for (uint32_t r = 0; r < count; r++) {
                for (uint32_t c = 0; c < last; c++) {
                    double value = sums[r * WIDE + c] + (bias == NULL ? 0.0 : (double)bias[first + c]);
                    y[(row + r) * y_stride + first + c] = (float)value;
                }
            }
        }
    }
}
