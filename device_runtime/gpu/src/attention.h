/* Attention with INT8 operands on a block of query rows and all heads at a time: kernels/gemm.cl and rows.cl. */
#ifndef HVDC_GPU_ATTENTION_H
#define HVDC_GPU_ATTENTION_H

#include "rows.h"

#define HVDC_ATTENTION_ROWS 256u

typedef struct hvdc_attention {
    uint32_t heads, head, head_stride; /* channels of a head, and with padding to whole tiles */
    uint32_t rows;                     /* query rows at a time */
    hvdc_buffer scores;                /* FP16 [head][row][key] */
    hvdc_buffer probabilities;         /* INT8, the same; rows to spare as the GEMM wants them */
    hvdc_buffer totals;                /* INT32 [head][row] */
} hvdc_attention;

/* Keys and values of some tokens: tiles [head][key_tile][channel_tile] and [head][channel_tile][key_tile]. */
typedef struct hvdc_keys {
    cl_mem keys, values;
    uint32_t count, stored; /* tokens, and with padding to whole tiles */
    float key_scale, value_scale;
} hvdc_keys;

/* Tokens padded to whole tiles. */
uint32_t hvdc_attention_stored(uint32_t tokens);

/* For up to `most_rows` queries in a call and `most_keys` keys: as many rows at a time, up to 256, as buffers may hold.
 * Tells the GEMM what it will need. */
bool hvdc_attention_open(hvdc_device *device, hvdc_gemm *gemm, uint32_t heads, uint32_t head, uint32_t most_rows,
                         uint32_t most_keys, hvdc_attention *attention, hvdc_failure *failure);
void hvdc_attention_release(hvdc_device *device, hvdc_attention *attention);

/* Codes of queries [row][head][head_stride] to FP32 out [row][out_stride]. */
bool hvdc_attention_run(hvdc_device *device, hvdc_gemm *gemm, hvdc_rows *r, hvdc_attention *attention, cl_mem queries,
                        float query_scale, uint32_t rows, const hvdc_keys *keys, cl_mem out, uint32_t out_stride,
                        hvdc_failure *failure);

#endif
