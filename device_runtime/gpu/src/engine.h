/* What an engine consists of. */
#ifndef HVDC_GPU_ENGINE_H
#define HVDC_GPU_ENGINE_H

#include "attention.h"
#include "hvdc/gpu.h"
#include "model.h"

#define HVDC_EXPERTS 2u

/* Columns of the table of activation scales, by GEMM input. */
enum hvdc_input_id {
    HVDC_IN_SELF = 0,
    HVDC_IN_SELF_OUT,
    HVDC_IN_CROSS_Q,
    HVDC_IN_TEXT,
    HVDC_IN_CROSS_OUT,
    HVDC_IN_FFN_UP,
    HVDC_IN_FFN_DOWN,
    HVDC_IN_SELF_QUERY,
    HVDC_IN_SELF_KEY,
    HVDC_IN_SELF_VALUE,
    HVDC_IN_CROSS_QUERY,
    HVDC_IN_CROSS_KEY,
    HVDC_IN_CROSS_VALUE,
    HVDC_IN_LORA, /* and one for each attention linear from here on */
    HVDC_INPUTS = HVDC_IN_LORA + HVDC_ATTENTION_LINEARS
};

/* Keys and values of the text, of one expert and block. */
typedef struct hvdc_text {
    hvdc_buffer keys, values;
} hvdc_text;

typedef struct hvdc_gpu {
    hvdc_engine face;
    hvdc_device device;
    hvdc_gemm gemm;
    hvdc_rows rows;
    hvdc_model model;
    hvdc_attention attention;
    hvdc_gpu_description description;
    const hvdc_geometry *geometry;
    uint32_t inputs[HVDC_INPUTS];
    uint32_t tokens, tokens_stored, text_stored;
    uint32_t width_stored, ffn_stored, rank_stored; /* padded to whole tiles */
    uint32_t max_rows;
    bool text_is_set[HVDC_EXPERTS];
    hvdc_text *text[HVDC_EXPERTS]; /* [layers] */
    hvdc_buffer hidden;            /* FP16 [tokens][width_stored] */
    hvdc_buffer self_keys, self_values;
    hvdc_buffer cosines, sines; /* FP32 [tokens][head / 2] */
    hvdc_buffer modulation;     /* FP32 [6][width_stored]: shift, scale, gate of attention, then of the feed-forward */
    /* Scratch for max_rows tokens. */
    hvdc_buffer codes;   /* INT8: what enters a linear */
    hvdc_buffer queries; /* INT8 [row][head][head_stride] */
    hvdc_buffer y;       /* FP32: what leaves one */
    hvdc_buffer lora, lora_codes;
    uint64_t staging_bytes;
    float *staging;        /* host: modulation and text with padding */
    uint32_t sliced_block; /* 1 + the block whose feed-forward pair hvdc_gpu_multiply has staged; 0: none */
} hvdc_gpu;

/* Chooses, checks and allocates; an engine that is not whole is released by hvdc_gpu_release. */
bool hvdc_gpu_prepare(hvdc_gpu *gpu, const hvdc_weights *weights, const hvdc_gpu_options *options,
                      hvdc_failure *failure);
void hvdc_gpu_release(hvdc_gpu *gpu);

/* The scale of an input at a step and block; fails where the table has none. */
bool hvdc_gpu_scale(const hvdc_gpu *gpu, uint32_t step, uint32_t block, uint32_t input, float *scale,
                    hvdc_failure *failure);

/* gpu->codes through a linear into gpu->y, with its adapter in steps of the detail expert. */
bool hvdc_gpu_linear(hvdc_gpu *gpu, uint32_t step, uint32_t block, enum hvdc_linear_id id, uint32_t rows, float scale_x,
                     hvdc_failure *failure);

/* Columns [0, columns) of the same, a multiple of 32, with rows that far apart. */
bool hvdc_gpu_columns(hvdc_gpu *gpu, uint32_t step, uint32_t block, enum hvdc_linear_id id, uint32_t columns,
                      uint32_t rows, float scale_x, hvdc_failure *failure);

/* Keys and values of all blocks from an expert's text, in gpu->y's layout [token][width_stored] on the host. */
bool hvdc_gpu_make_text(hvdc_gpu *gpu, uint32_t expert, const float *text, hvdc_failure *failure);

/* One block execution on gpu->hidden. */
bool hvdc_gpu_run_block(hvdc_gpu *gpu, uint32_t step, uint32_t block, hvdc_failure *failure);

#endif
