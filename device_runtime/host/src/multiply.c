#include "multiply.h"

#include <string.h>

#include "hvdc/panel.h"

#define TILE_ROWS 32u
#define K_STEP 256u /* rows and panel of a step stay in the first two levels of cache */

void HVDC_FOR_CPU(hvdc_multiply)(const float *x, size_t x_stride, uint32_t rows, uint32_t k, const float *panel,
                                 uint32_t columns, const float *bias, float *y, size_t y_stride) {
    float sums[TILE_ROWS * HVDC_PANEL_COLUMNS], last[TILE_ROWS * K_STEP];
    for (uint32_t row = 0; row < rows; row += TILE_ROWS) {
        uint32_t count = rows - row < TILE_ROWS ? rows - row : TILE_ROWS;
        memset(sums, 0, sizeof sums);
        for (uint32_t start = 0; start < k; start += K_STEP) {
            uint32_t part = k - start < K_STEP ? k - start : K_STEP;
            const float *from = x + row * x_stride + start, *b = panel + (size_t)start * HVDC_PANEL_COLUMNS;
            if (count == TILE_ROWS) {
                hvdc_panel_tile(from, x_stride, b, part, sums);
                continue;
            }
            memset(last, 0, sizeof last);
            for (uint32_t r = 0; r < count; r++) {
                memcpy(last + r * K_STEP, from + r * x_stride, part * sizeof *last);
            }
            hvdc_panel_tile(last, K_STEP, b, part, sums);
        }
        for (uint32_t r = 0; r < count; r++) {
            for (uint32_t c = 0; c < columns; c++) {
                y[(row + r) * y_stride + c] = sums[r * HVDC_PANEL_COLUMNS + c] + (bias == NULL ? 0.0f : bias[c]);
            }
        }
    }
}
