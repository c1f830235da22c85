/* The artifact's blocks as the device sees them: where every operand lies. */
#ifndef HVDC_GPU_MODEL_H
#define HVDC_GPU_MODEL_H

#include "gemm.h"
#include "hvdc/partner.h"
#include "import.h"

#define HVDC_ATTENTION_LINEARS 8
extern const char *const HVDC_LINEAR_NAMES[HVDC_LINEARS];

/* One quantised weight: tiles of `n` columns and `k` inputs, both padded to whole tiles. */
typedef struct hvdc_matrix {
    hvdc_place weight, scales;
    uint32_t n, k;
} hvdc_matrix;

typedef struct hvdc_linear {
    hvdc_matrix base;
    hvdc_place bias;
    hvdc_matrix a, b; /* the adapter; `n` is 0 where there is none */
} hvdc_linear;

enum hvdc_norm_id { HVDC_SELF_NORM_Q = 0, HVDC_SELF_NORM_K, HVDC_CROSS_NORM_Q, HVDC_CROSS_NORM_K, HVDC_NORMS };

/* The weights of the feed-forward pair have no place of their own: they are staged (hvdc_model_stage). */
typedef struct hvdc_block {
    hvdc_linear linears[HVDC_LINEARS];
    hvdc_place norms[HVDC_NORMS];
    hvdc_place norm2_gain, norm2_bias; /* memory NULL: the model has no norm before cross-attention */
    const void *pair[2];               /* up, down: bytes to stage */
} hvdc_block;

/* Bytes [first, first + bytes) of a data file, seen by the device. */
typedef struct hvdc_window {
    uint32_t file;
    uint64_t first, bytes;
    cl_mem memory;
    hvdc_buffer copy; /* where there is no import */
} hvdc_window;

typedef struct hvdc_model {
    const hvdc_weights *weights;
    hvdc_import import;
    hvdc_window *windows;
    uint32_t window_count;
    uint32_t layers;
    hvdc_block *blocks;
    uint64_t pair_bytes[2];
    hvdc_buffer staged; /* one block's feed-forward pair */
    uint64_t imported_bytes;
    uint64_t copied_bytes;
} hvdc_model;

bool hvdc_model_open(hvdc_device *device, const hvdc_weights *weights, const hvdc_gpu_options *options,
                     hvdc_model *model, hvdc_failure *failure);
/* The buffers of a model on a device that counts: copies of weights only where options->import says so. Closed alike. */
bool hvdc_model_count(hvdc_device *device, const hvdc_weights *weights, const hvdc_gpu_options *options,
                      hvdc_model *model, hvdc_failure *failure);
void hvdc_model_close(hvdc_device *device, hvdc_model *model);

/* Puts a block's feed-forward pair where the linears HVDC_FFN_UP and HVDC_FFN_DOWN of all blocks say. */
bool hvdc_model_stage(hvdc_device *device, hvdc_model *model, uint32_t block, hvdc_failure *failure);

#endif
