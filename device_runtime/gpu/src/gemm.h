/* INT8 GEMMs: kernels/gemm.cl in a shape and a dot form that suit the device. */
#ifndef HVDC_GPU_GEMM_H
#define HVDC_GPU_GEMM_H

#include "device.h"

/* How a work-item's part of the product is cut, and how work-items are grouped. */
typedef struct hvdc_gemm_shape {
    uint32_t vector, parts, rows; /* columns = vector * parts */
    bool pairs;                   /* CPUs: the plain form in pairs of products */
    uint32_t group_columns, group_rows;
} hvdc_gemm_shape;

typedef struct hvdc_gemm {
    enum hvdc_gpu_dot dot;
    hvdc_gemm_shape shape;
    char options[96];
    cl_program program;
    cl_kernel sums, linear, scores, values;
    cl_kernel pack, sums_of_rows, sums_of_columns;          /* `pack` with pairs alone */
    uint64_t packed_bytes, row_sum_bytes, column_sum_bytes; /* what the largest product needs: hvdc_gemm_need */
    hvdc_buffer packed, row_sums, column_sums;
} hvdc_gemm;

/* A product of `batches` matrices; offsets, strides and K are in words of four codes. See kernels/gemm.cl. */
typedef struct hvdc_product {
    cl_mem a;
    uint32_t a_offset, a_row, a_batch;
    cl_mem b;
    uint32_t b_offset, b_batch;
    uint32_t words, rows, columns, batches;
} hvdc_product;

/* Rows that `a` must have allocated beyond its last one. */
#define HVDC_GEMM_SLACK_ROWS 16u

/* Builds the kernels. A failure says why they do not compile. */
bool hvdc_gemm_build(hvdc_device *device, enum hvdc_gpu_dot dot, bool emulate, const hvdc_gemm_shape *shape,
                     const char *standard, hvdc_gemm *gemm, hvdc_failure *failure);
void hvdc_gemm_keep(hvdc_device *device, const hvdc_gemm *gemm); /* its program in the cache */
void hvdc_gemm_release(hvdc_device *device, hvdc_gemm *gemm);

/* Chooses dot form and shape: hvdc_gemm_open of what compiles and gives right values, the fastest of a few shapes. */
bool hvdc_gemm_open(hvdc_device *device, const hvdc_gpu_options *options, hvdc_gemm *gemm, hvdc_failure *failure);

/* Scratch for products up to this size; then, once, the memory. */
void hvdc_gemm_need(hvdc_gemm *gemm, uint32_t rows, uint32_t words, uint32_t columns, uint32_t batches);
bool hvdc_gemm_allocate(hvdc_device *device, hvdc_gemm *gemm, hvdc_failure *failure);

/* INT32 sums [batch][row][column]; out_row, out_batch in elements. */
bool hvdc_gemm_sums(hvdc_device *device, hvdc_gemm *gemm, const hvdc_product *product, cl_mem out, uint32_t out_row,
                    uint32_t out_batch, hvdc_failure *failure);

/* FP32 [row][column] = sum * (scale_x * scales) and what `add` says. Scales and bias are given with their offset. */
enum hvdc_gemm_add { HVDC_GEMM_ADD_NOTHING = 0, HVDC_GEMM_ADD_BIAS = 1, HVDC_GEMM_ADD_TO_OUT = 2 };
typedef struct hvdc_place {
    cl_mem memory;
    uint32_t offset; /* in elements of four bytes */
} hvdc_place;
bool hvdc_gemm_linear(hvdc_device *device, hvdc_gemm *gemm, const hvdc_product *product, cl_mem out, uint32_t out_row,
                      float scale_x, hvdc_place scales, hvdc_place bias, enum hvdc_gemm_add add, hvdc_failure *failure);

/* FP16 [batch][row][column] = sum * factor. */
bool hvdc_gemm_scores(hvdc_device *device, hvdc_gemm *gemm, const hvdc_product *product, cl_mem out, uint32_t out_row,
                      uint32_t out_batch, float factor, hvdc_failure *failure);

/* FP32 [row][batch * out_batch + column] = sum * scale_v / totals[batch][row], from row out_offset / out_row on. */
bool hvdc_gemm_values(hvdc_device *device, hvdc_gemm *gemm, const hvdc_product *product, cl_mem out,
                      uint32_t out_offset, uint32_t out_row, uint32_t out_batch, float scale_v, cl_mem totals,
                      hvdc_failure *failure);

#endif
