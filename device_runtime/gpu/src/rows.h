/* What happens between the GEMMs: kernels/rows.cl. Rows lie `stride` elements apart, a multiple of 32. */
#ifndef HVDC_GPU_ROWS_H
#define HVDC_GPU_ROWS_H

#include "gemm.h"

enum hvdc_row_kernel {
    HVDC_ROW_NORM = 0,
    HVDC_ROW_RMS,
    HVDC_ROW_QUANTIZE,
    HVDC_ROW_QUANTIZE_HIDDEN,
    HVDC_ROW_GELU,
    HVDC_ROW_VALUES,
    HVDC_ROW_SOFTMAX,
    HVDC_ROW_ADD,
    HVDC_ROW_NARROW,
    HVDC_ROW_WIDEN,
    HVDC_ROW_KERNELS
};

typedef struct hvdc_rows {
    cl_program program;
    cl_kernel kernels[HVDC_ROW_KERNELS];
    uint32_t vector, lanes;
} hvdc_rows;

/* For heads of `head` channels, a multiple of four. */
bool hvdc_rows_open(hvdc_device *device, uint32_t head, hvdc_rows *rows, hvdc_failure *failure);
void hvdc_rows_release(hvdc_device *device, hvdc_rows *rows);

/* Some rows: how many, how far apart, and how many channels are real. */
typedef struct hvdc_extent {
    uint32_t rows, stride, width;
} hvdc_extent;

/* Layer norm of FP16 rows from element `offset` on, times (gain + one) plus shift, as codes. */
bool hvdc_rows_norm(hvdc_device *device, hvdc_rows *r, hvdc_extent extent, cl_mem hidden, uint32_t offset, float eps,
                    hvdc_place gain, float one, hvdc_place shift, float scale, cl_mem codes, hvdc_failure *failure);

/* Where heads' codes go: rows [row][head][head_stride], or, with keys_stored > 0, tiles of keys or values. */
typedef struct hvdc_heads {
    uint32_t head, head_stride, keys_stored;
} hvdc_heads;

/* Root-mean-square norm of FP32 rows, rotation if there are tables (else NULL), codes as queries or tiles of keys. */
bool hvdc_rows_rms(hvdc_device *device, hvdc_rows *r, hvdc_extent extent, cl_mem y, float eps, hvdc_place gain,
                   cl_mem cosines, cl_mem sines, uint32_t first_token, float scale, cl_mem codes, hvdc_heads heads,
                   hvdc_failure *failure);

bool hvdc_rows_quantize(hvdc_device *device, hvdc_rows *r, hvdc_extent extent, cl_mem y, float scale, cl_mem codes,
                        hvdc_failure *failure);
bool hvdc_rows_quantize_hidden(hvdc_device *device, hvdc_rows *r, hvdc_extent extent, cl_mem hidden, uint32_t offset,
                               float scale, cl_mem codes, hvdc_failure *failure);
bool hvdc_rows_gelu(hvdc_device *device, hvdc_rows *r, hvdc_extent extent, cl_mem y, float scale, cl_mem codes,
                    hvdc_failure *failure);

/* Tiles of values. */
bool hvdc_rows_values(hvdc_device *device, hvdc_rows *r, hvdc_extent extent, cl_mem y, uint32_t first_token,
                      float scale, cl_mem codes, hvdc_heads heads, hvdc_failure *failure);

/* FP16 scores [head][row][keys_stored] to INT8 probabilities of the same order, and sums [head][row]. */
bool hvdc_rows_softmax(hvdc_device *device, hvdc_rows *r, cl_mem scores, uint32_t rows, uint32_t heads, uint32_t keys,
                       uint32_t keys_stored, cl_mem probabilities, cl_mem totals, hvdc_failure *failure);

/* hidden += y * gate; gate.memory NULL: 1. */
bool hvdc_rows_add(hvdc_device *device, hvdc_rows *r, hvdc_extent extent, cl_mem hidden, uint32_t offset, cl_mem y,
                   hvdc_place gate, hvdc_failure *failure);

/* FP32 [rows][width] to FP16 rows, and back. */
bool hvdc_rows_narrow(hvdc_device *device, hvdc_rows *r, hvdc_extent extent, cl_mem wide, cl_mem hidden,
                      uint32_t offset, hvdc_failure *failure);
bool hvdc_rows_widen(hvdc_device *device, hvdc_rows *r, hvdc_extent extent, cl_mem hidden, uint32_t offset, cl_mem wide,
                     hvdc_failure *failure);

#endif
