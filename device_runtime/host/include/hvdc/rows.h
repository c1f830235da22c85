/* What happens along a row of FP32 values: sums, norms, exponentials. Written so that a compiler makes vectors of it,
 * and so that every compiler and processor gives the same bits: partial sums are 16, whatever the vectors' size, and
 * nothing is fused (CMakeLists.txt: -ffp-contract=off). */
#ifndef HVDC_ROWS_H
#define HVDC_ROWS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "hvdc/half.h"

#define HVDC_PARTIAL_SUMS 16u

/* (ln 2)^k / k!, k = 7 … 0 */
#define HVDC_EXP2_SERIES \
    {1.52527338e-5f, 1.54035304e-4f, 1.33335581e-3f, 9.61812911e-3f, \
     5.55041087e-2f, 2.40226507e-1f, 6.93147181e-1f, 1.0f}

/* 2^x, relative error below 3e-7 for x in [-126, 127.5); 0 below -126.5, infinity above, NaN of NaN.
 * 2^x = 2^round(x) · e^(ln 2 · (x − round(x))), the second by Taylor's series: |ln 2 / 2|^8 / 8! < 6e-9. */
static inline float hvdc_exp2(float x) {
    const float round = 0x1.8p23f; /* adding it leaves no fraction, and the integer in the lowest bits */
#if defined(__hexagon__)
    if (x != x) {
        return x; /* LLVM 22 makes sfmax of what follows, which loses a NaN */
    }
#endif
    x = x < -127.0f ? -127.0f : x;
    x = x > 128.0f ? 128.0f : x;
    float shifted = x + round;
    float f = x - (shifted - round);
    static const float series[8] = HVDC_EXP2_SERIES;
    float p = series[0];
    for (size_t k = 1; k < 8u; k++) {
        p = p * f + series[k];
    }
    return p * hvdc_float_of_bits((hvdc_bits_of_float(shifted) + 127u) << 23); /* 2^-127 becomes 0, 2^128 infinity */
}

/* GELU by tanh: x/2 · (1 + tanh u) = x / (1 + e^(-2u)), u = √(2/π) · (x + 0.044715 x³). */
#define HVDC_GELU_CUBIC 0.044715f
#define HVDC_GELU_FACTOR (-2.30220819f) /* -2 · √(2/π) · log2(e) */

static inline float hvdc_gelu(float x) {
    return x / (1.0f + hvdc_exp2(HVDC_GELU_FACTOR * (x + HVDC_GELU_CUBIC * x * x * x)));
}

/* Mean of x and of x². Sums are FP64, where squares are exact: what is rounded to FP32 afterwards is, but in one of many
 * millions, what exact sums would give. */
typedef struct hvdc_row_means {
    double x, squares;
} hvdc_row_means;

static inline hvdc_row_means hvdc_means_of_row(const float *x, size_t count) {
    double sums[HVDC_PARTIAL_SUMS] = {0}, squares[HVDC_PARTIAL_SUMS] = {0};
    hvdc_row_means of = {0.0, 0.0};
    size_t i = 0;
    for (; i + HVDC_PARTIAL_SUMS <= count; i += HVDC_PARTIAL_SUMS) {
        for (size_t j = 0; j < HVDC_PARTIAL_SUMS; j++) {
            double value = (double)x[i + j];
            sums[j] += value;
            squares[j] += value * value;
        }
    }
    for (size_t j = 0; i < count; i++, j++) {
        double value = (double)x[i];
        sums[j] += value;
        squares[j] += value * value;
    }
    for (size_t j = 0; j < HVDC_PARTIAL_SUMS; j++) {
        of.x += sums[j];
        of.squares += squares[j];
    }
    of.x /= (double)count;
    of.squares /= (double)count;
    return of;
}

/* Layer norm, then y = normed · factor + addend: modulation is factor = 1 + scale, addend = shift; an affine norm is
 * factor = gain, addend = bias; NULL leaves either out. In place is allowed. */
static inline void hvdc_layer_norm_row(const float *x, size_t width, double eps, const float *factor,
                                       const float *addend, float *y) {
    hvdc_row_means of = hvdc_means_of_row(x, width);
    double variance = of.squares - of.x * of.x;
    float mean = (float)of.x, scale = (float)(1.0 / sqrt((variance > 0.0 ? variance : 0.0) + eps));
    for (size_t i = 0; i < width; i++) {
        float normed = (x[i] - mean) * scale;
        normed = factor == NULL ? normed : normed * factor[i];
        y[i] = addend == NULL ? normed : normed + addend[i];
    }
}

/* Root-mean-square norm times gain, in place. */
static inline void hvdc_rms_norm_row(float *x, size_t width, double eps, const float *gain) {
    float scale = (float)(1.0 / sqrt(hvdc_means_of_row(x, width).squares + eps));
    for (size_t i = 0; i < width; i++) {
        x[i] = x[i] * scale * gain[i];
    }
}

/* Adjacent pairs of channels turned as complex numbers, in place: rotations float [head_dim / 2][2], cosine and sine,
 * are the same for every head. Products are kept apart from sums, because GCC 12 makes one fused instruction
 * of both (vfmaddsub) even where it is told not to. */
static inline void hvdc_rotate_row(float *x, size_t heads, size_t head_dim, const float *rotations) {
    enum { AT_ONCE = 32 };
    float direct[AT_ONCE], crossed[AT_ONCE];
    for (size_t h = 0; h < heads; h++, x += head_dim) {
        for (size_t first = 0; first < head_dim; first += AT_ONCE) {
            size_t count = head_dim - first < AT_ONCE ? head_dim - first : AT_ONCE;
            float *part = x + first;
            const float *turn = rotations + first;
            for (size_t i = 0; i < count; i += 2u) {
                direct[i] = part[i] * turn[i];
                direct[i + 1u] = part[i + 1u] * turn[i];
                crossed[i] = part[i + 1u] * turn[i + 1u];
                crossed[i + 1u] = part[i] * turn[i + 1u];
            }
            for (size_t i = 0; i < count; i += 2u) {
                part[i] = direct[i] - crossed[i];
                part[i + 1u] = direct[i + 1u] + crossed[i + 1u];
            }
        }
    }
}

#endif
