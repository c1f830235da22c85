#include "hvdc/bind.h"

#include <stdio.h>

#define NAME_BYTES (HVDC_TEXT_LIMIT + 1u)

static bool refuse(const hvdc_weights *weights, const hvdc_tensor *record, const char *due, hvdc_failure *failure) {
    return hvdc_fail(failure, HVDC_FAILURE_ARTIFACT,
                     "tensor %s is not %s: found dtype %u, tile order %u, %u dimensions, shape %u x %u; compile the "
                     "artifact anew with this version",
                     hvdc_artifact_text(weights->artifact, record->name), due, (unsigned)record->dtype,
                     (unsigned)record->tile_order, (unsigned)record->dims, (unsigned)record->shape[0],
                     (unsigned)record->shape[1]);
}

static bool row_major(const hvdc_weights *weights, const hvdc_values *values, uint32_t dtype, const uint32_t *shape,
                      uint32_t dims, const char *due, hvdc_failure *failure) {
    const hvdc_tensor *t = values->record;
    bool same = t->dtype == dtype && t->tile_order == HVDC_TILE_ROW_MAJOR_ID && t->dims == dims;
    for (uint32_t i = 0; same && i < dims; i++) {
        same = t->shape[i] == shape[i] && (dims == 1u || t->padded[i] == shape[i]);
    }
    return same || refuse(weights, t, due, failure);
}

bool hvdc_bind_floats(const hvdc_weights *weights, const char *name, const uint32_t *shape, uint32_t dims,
                      const float **floats, hvdc_failure *failure) {
    hvdc_values values;
    if (!hvdc_weights_named(weights, name, &values, failure) ||
        !row_major(weights, &values, HVDC_DTYPE_FLOAT32, shape, dims, "an FP32 tensor of the model's shape", failure)) {
        return false;
    }
    *floats = values.data;
    return true;
}

bool hvdc_bind_doubles(const hvdc_weights *weights, const char *name, uint32_t count, const double **doubles,
                       hvdc_failure *failure) {
    hvdc_values values;
    if (!hvdc_weights_named(weights, name, &values, failure) ||
        !row_major(weights, &values, HVDC_DTYPE_FLOAT64, &count, 1, "an FP64 vector of the model's length", failure)) {
        return false;
    }
    *doubles = values.data;
    return true;
}

bool hvdc_bind_vector(const hvdc_weights *weights, uint32_t block, const char *name, uint32_t count, bool padded,
                      const float **floats, hvdc_failure *failure) {
    char full[NAME_BYTES];
    (void)snprintf(full, sizeof full, "blocks.%u.%s", (unsigned)block, name);
    hvdc_values values;
    if (!hvdc_weights_named(weights, full, &values, failure) ||
        !row_major(weights, &values, HVDC_DTYPE_FLOAT32, &count, 1, "an FP32 vector of the model's width", failure)) {
        return false;
    }
    if (padded && values.record->padded[0] % HVDC_TILE_HMX_INT8_K4_COLS != 0u) {
        return refuse(weights, values.record, "padded to whole tiles", failure);
    }
    *floats = values.data;
    return true;
}

bool hvdc_bind_weight(const hvdc_weights *weights, uint32_t block, const char *linear, const char *suffix, uint32_t n,
                      uint32_t k, hvdc_weight *weight, hvdc_failure *failure) {
    hvdc_values values, scale;
    if (!hvdc_weights_in_block(weights, block, linear, suffix, &values, failure)) {
        return false;
    }
    const hvdc_tensor *t = values.record;
    if (t->dtype != HVDC_DTYPE_INT8 || t->tile_order != HVDC_TILE_HMX_INT8_K4_ID || t->dims != 2u || t->shape[0] != n ||
        t->shape[1] != k || !hvdc_weights_tensor(weights, t->scale, &scale)) {
        return refuse(weights, t, "an INT8 weight of the model's shape in tiles hmx-int8-k4", failure);
    }
    *weight = (hvdc_weight){
        .tiles = values.data,
        .scale = scale.data,
        .n = n,
        .k = k,
        .n_tiles = t->padded[0] / HVDC_TILE_HMX_INT8_K4_COLS,
        .k_tiles = t->padded[1] / HVDC_TILE_HMX_INT8_K4_ROWS,
    };
    return true;
}
