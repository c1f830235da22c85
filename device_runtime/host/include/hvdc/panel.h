/* Matrix products in FP32, as every GEMM on a CPU is made of them: rows times a panel of 32 columns, which stay in
 * registers. The order of a sum is fixed by the caller's steps in k alone, whatever the number of threads or of lanes.
 * Compiled for each level of hvdc/cpu.h; `lanes` are the compiler's vectors (GCC's and clang's extension). */
#ifndef HVDC_PANEL_H
#define HVDC_PANEL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HVDC_PANEL_COLUMNS 32u

#if defined(__AVX512F__)
#define HVDC_LANES 16u
#define HVDC_PANEL_ROWS 8u
#elif defined(__AVX__)
#define HVDC_LANES 8u
#define HVDC_PANEL_ROWS 4u
#elif defined(__aarch64__)
#define HVDC_LANES 4u
#define HVDC_PANEL_ROWS 8u
#else
#define HVDC_LANES 4u
#define HVDC_PANEL_ROWS 4u
#endif

typedef float hvdc_lanes __attribute__((vector_size(4u * HVDC_LANES)));

static inline hvdc_lanes hvdc_lanes_load(const float *from) {
    hvdc_lanes lanes;
    memcpy(&lanes, from, sizeof lanes);
    return lanes;
}

static inline void hvdc_lanes_store(float *to, hvdc_lanes lanes) { memcpy(to, &lanes, sizeof lanes); }

/* sums[r][c] += (Σ_k a[r][k] · panel[k][c]) for HVDC_PANEL_ROWS rows `stride` floats apart; c < 32. The sum over k
 * begins at zero: a few short sums, added, lose less to rounding than one long one. */
static inline void hvdc_panel_rows(const float *restrict a, size_t stride, const float *restrict panel, uint32_t k,
                                   float *restrict sums) {
    for (uint32_t c = 0; c < HVDC_PANEL_COLUMNS; c += 2u * HVDC_LANES) {
        hvdc_lanes low[HVDC_PANEL_ROWS] = {{0}}, high[HVDC_PANEL_ROWS] = {{0}};
        for (uint32_t i = 0; i < k; i++) {
            hvdc_lanes left = hvdc_lanes_load(panel + (size_t)i * HVDC_PANEL_COLUMNS + c);
            hvdc_lanes right = hvdc_lanes_load(panel + (size_t)i * HVDC_PANEL_COLUMNS + c + HVDC_LANES);
            for (uint32_t r = 0; r < HVDC_PANEL_ROWS; r++) {
                float x = a[r * stride + i];
                low[r] += left * x;
                high[r] += right * x;
            }
        }
        for (uint32_t r = 0; r < HVDC_PANEL_ROWS; r++) {
            float *to = sums + (size_t)r * HVDC_PANEL_COLUMNS + c;
            hvdc_lanes_store(to, hvdc_lanes_load(to) + low[r]);
            hvdc_lanes_store(to + HVDC_LANES, hvdc_lanes_load(to + HVDC_LANES) + high[r]);
        }
    }
}

/* The same for 32 rows. */
static inline void hvdc_panel_tile(const float *restrict a, size_t stride, const float *restrict panel, uint32_t k,
                                   float *restrict sums) {
    for (uint32_t r = 0; r < 32u; r += HVDC_PANEL_ROWS) {
        hvdc_panel_rows(a + r * stride, stride, panel, k, sums + (size_t)r * HVDC_PANEL_COLUMNS);
    }
}

#endif
