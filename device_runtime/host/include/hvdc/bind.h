/* Tensors of an artifact as a computation needs them: found by name, and refused unless dtype, shape and tile order
 * are those that it was written for. */
#ifndef HVDC_BIND_H
#define HVDC_BIND_H

#include <stdbool.h>
#include <stdint.h>

#include "hvdc/weights.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A weight [n][k] in tiles of hmx-int8-k4, stored [n_tiles][k_tiles], with a scale for each of its 32 · n_tiles
 * columns. */
typedef struct hvdc_weight {
    const int8_t *tiles;
    const float *scale;
    uint32_t n, k, n_tiles, k_tiles;
} hvdc_weight;

/* FP32 [shape[0]]…[shape[dims - 1]], row-major. A vector may be stored with padding behind its last value. */
bool hvdc_bind_floats(const hvdc_weights *weights, const char *name, const uint32_t *shape, uint32_t dims,
                      const float **floats, hvdc_failure *failure);

/* FP64 [count]. */
bool hvdc_bind_doubles(const hvdc_weights *weights, const char *name, uint32_t count, const double **doubles,
                       hvdc_failure *failure);

/* FP32 "blocks.<block>.<name>" [count], with padding up to a multiple of 32 if `padded`. */
bool hvdc_bind_vector(const hvdc_weights *weights, uint32_t block, const char *name, uint32_t count, bool padded,
                      const float **floats, hvdc_failure *failure);

/* "blocks.<block>.<linear>.<suffix>", [n][k]. */
bool hvdc_bind_weight(const hvdc_weights *weights, uint32_t block, const char *linear, const char *suffix, uint32_t n,
                      uint32_t k, hvdc_weight *weight, hvdc_failure *failure);

#ifdef __cplusplus
}
#endif

#endif
