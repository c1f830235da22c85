/* One block execution as launches. Only keys and values of self-attention are needed of all tokens at once; everything else
 * is done for max_rows tokens at a time, from the first norm to the last addition. */
#include <string.h>

#include "engine.h"

enum { SHIFT_ATTENTION = 0, SCALE_ATTENTION, GATE_ATTENTION, SHIFT_FFN, SCALE_FFN, GATE_FFN, MODULATIONS };

static const hvdc_place NONE = {NULL, 0};

bool hvdc_gpu_scale(const hvdc_gpu *gpu, uint32_t step, uint32_t block, uint32_t input, float *scale,
                    hvdc_failure *failure) {
    const hvdc_artifact *artifact = gpu->model.weights->artifact;
    const uint32_t id = input < HVDC_INPUTS ? gpu->inputs[input] : HVDC_NONE;
    *scale = hvdc_artifact_activation_scale(artifact, step, block, id);
    if (*scale > 0) {
        return true;
    }
    const hvdc_gemm_input *record = hvdc_artifact_gemm_input(artifact, id);
    return hvdc_fail(failure, HVDC_FAILURE_ARTIFACT, "the artifact has no scale for %s of block %u at step %u",
                     record == NULL ? "a GEMM input" : hvdc_artifact_text(artifact, record->name), (unsigned)block,
                     (unsigned)step);
}

/* Columns [0, columns) of a product, that far apart in `out`. */
static bool multiply(hvdc_gpu *gpu, cl_mem codes, const hvdc_matrix *w, uint32_t columns, uint32_t rows, float scale_x,
                     hvdc_place bias, enum hvdc_gemm_add add, cl_mem out, hvdc_failure *failure) {
    const hvdc_product product = {.a = codes,
                                  .a_row = w->k / 4,
                                  .b = w->weight.memory,
                                  .b_offset = w->weight.offset,
                                  .words = w->k / 4,
                                  .rows = rows,
                                  .columns = columns,
                                  .batches = 1};
    return hvdc_gemm_linear(&gpu->device, &gpu->gemm, &product, out, columns, scale_x, w->scales, bias, add, failure);
}

bool hvdc_gpu_linear(hvdc_gpu *gpu, uint32_t step, uint32_t block, enum hvdc_linear_id id, uint32_t rows, float scale_x,
                     hvdc_failure *failure) {
    return hvdc_gpu_columns(gpu, step, block, id, gpu->model.blocks[block].linears[id].base.n, rows, scale_x, failure);
}

bool hvdc_gpu_columns(hvdc_gpu *gpu, uint32_t step, uint32_t block, enum hvdc_linear_id id, uint32_t columns,
                      uint32_t rows, float scale_x, hvdc_failure *failure) {
    const hvdc_linear *linear = &gpu->model.blocks[block].linears[id];
    const uint32_t expert = hvdc_artifact_step(gpu->model.weights->artifact, step)->expert;
    if (!multiply(gpu, gpu->codes.memory, &linear->base, columns, rows, scale_x, linear->bias, HVDC_GEMM_ADD_BIAS,
                  gpu->y.memory, failure)) {
        return false;
    }
    if (expert != HVDC_EXPERT_DETAIL || linear->a.n == 0) {
        return true;
    }
    float scale_h;
    const hvdc_extent hidden = {rows, linear->a.n, gpu->geometry->rank};
    return hvdc_gpu_scale(gpu, step, block, HVDC_IN_LORA + (uint32_t)id, &scale_h, failure) &&
           multiply(gpu, gpu->codes.memory, &linear->a, linear->a.n, rows, scale_x, NONE, HVDC_GEMM_ADD_NOTHING,
                    gpu->lora.memory, failure) &&
           hvdc_rows_quantize(&gpu->device, &gpu->rows, hidden, gpu->lora.memory, scale_h, gpu->lora_codes.memory,
                              failure) &&
           multiply(gpu, gpu->lora_codes.memory, &linear->b, columns, rows, scale_h, NONE, HVDC_GEMM_ADD_TO_OUT,
                    gpu->y.memory, failure);
}

/* What a block execution needs to know everywhere. */
typedef struct at {
    hvdc_gpu *gpu;
    uint32_t step, block;
    const hvdc_block *weights;
    uint32_t first, rows; /* tokens */
    hvdc_extent extent;
    hvdc_failure *failure;
} at;

static bool scale_of(const at *a, uint32_t input, float *scale) {
    return hvdc_gpu_scale(a->gpu, a->step, a->block, input, scale, a->failure);
}

static uint32_t offset_of(const at *a) { return a->first * a->gpu->width_stored; }

static hvdc_place modulation(const at *a, uint32_t which) {
    return (hvdc_place){a->gpu->modulation.memory, which * a->gpu->width_stored};
}

static bool modulated(const at *a, uint32_t scale_row, uint32_t shift_row, uint32_t input, float *scale) {
    hvdc_gpu *g = a->gpu;
    return scale_of(a, input, scale) && hvdc_rows_norm(&g->device, &g->rows, a->extent, g->hidden.memory, offset_of(a),
                                                       (float)g->geometry->eps, modulation(a, scale_row), 1.0f,
                                                       modulation(a, shift_row), *scale, g->codes.memory, a->failure);
}

/* A linear's output, normed and perhaps rotated, as operand of attention. */
static bool normed(const at *a, enum hvdc_linear_id id, float scale_x, enum hvdc_norm_id norm, bool rotated,
                   uint32_t input, cl_mem codes, uint32_t keys_stored, float *scale) {
    hvdc_gpu *g = a->gpu;
    const hvdc_heads heads = {g->attention.head, g->attention.head_stride, keys_stored};
    return scale_of(a, input, scale) && hvdc_gpu_linear(g, a->step, a->block, id, a->rows, scale_x, a->failure) &&
           hvdc_rows_rms(&g->device, &g->rows, a->extent, g->y.memory, (float)g->geometry->eps, a->weights->norms[norm],
                         rotated ? g->cosines.memory : NULL, rotated ? g->sines.memory : NULL, a->first, *scale, codes,
                         heads, a->failure);
}

static bool valued(const at *a, enum hvdc_linear_id id, float scale_x, uint32_t input, cl_mem codes,
                   uint32_t keys_stored, float *scale) {
    hvdc_gpu *g = a->gpu;
    const hvdc_heads heads = {g->attention.head, g->attention.head_stride, keys_stored};
    return scale_of(a, input, scale) && hvdc_gpu_linear(g, a->step, a->block, id, a->rows, scale_x, a->failure) &&
           hvdc_rows_values(&g->device, &g->rows, a->extent, g->y.memory, a->first, *scale, codes, heads, a->failure);
}

/* gpu->queries over some keys, through the output linear, onto the hidden state. */
static bool attend(const at *a, float query_scale, const hvdc_keys *keys, enum hvdc_linear_id out, uint32_t out_input,
                   hvdc_place gate) {
    hvdc_gpu *g = a->gpu;
    float scale;
    return scale_of(a, out_input, &scale) &&
           hvdc_attention_run(&g->device, &g->gemm, &g->rows, &g->attention, g->queries.memory, query_scale, a->rows,
                              keys, g->y.memory, g->width_stored, a->failure) &&
           hvdc_rows_quantize(&g->device, &g->rows, a->extent, g->y.memory, scale, g->codes.memory, a->failure) &&
           hvdc_gpu_linear(g, a->step, a->block, out, a->rows, scale, a->failure) &&
           hvdc_rows_add(&g->device, &g->rows, a->extent, g->hidden.memory, offset_of(a), g->y.memory, gate,
                         a->failure);
}

static bool self_keys(const at *a, hvdc_keys *keys) {
    hvdc_gpu *g = a->gpu;
    float scale;
    return modulated(a, SCALE_ATTENTION, SHIFT_ATTENTION, HVDC_IN_SELF, &scale) &&
           normed(a, HVDC_SELF_K, scale, HVDC_SELF_NORM_K, true, HVDC_IN_SELF_KEY, keys->keys, g->tokens_stored,
                  &keys->key_scale) &&
           valued(a, HVDC_SELF_V, scale, HVDC_IN_SELF_VALUE, keys->values, g->tokens_stored, &keys->value_scale);
}

static bool self_attention(const at *a, const hvdc_keys *keys) {
    float scale, query_scale;
    return modulated(a, SCALE_ATTENTION, SHIFT_ATTENTION, HVDC_IN_SELF, &scale) &&
           normed(a, HVDC_SELF_Q, scale, HVDC_SELF_NORM_Q, true, HVDC_IN_SELF_QUERY, a->gpu->queries.memory, 0,
                  &query_scale) &&
           attend(a, query_scale, keys, HVDC_SELF_OUT, HVDC_IN_SELF_OUT, modulation(a, GATE_ATTENTION));
}

static bool cross_attention(const at *a) {
    hvdc_gpu *g = a->gpu;
    const uint32_t expert = hvdc_artifact_step(g->model.weights->artifact, a->step)->expert;
    const hvdc_text *text = &g->text[expert][a->block];
    hvdc_keys keys = {.keys = text->keys.memory,
                      .values = text->values.memory,
                      .count = g->geometry->text_tokens,
                      .stored = g->text_stored};
    float scale, query_scale;
    if (!scale_of(a, HVDC_IN_CROSS_Q, &scale) || !scale_of(a, HVDC_IN_CROSS_KEY, &keys.key_scale) ||
        !scale_of(a, HVDC_IN_CROSS_VALUE, &keys.value_scale)) {
        return false;
    }
    const bool crossing =
        a->weights->norm2_gain.memory == NULL
            ? hvdc_rows_quantize_hidden(&g->device, &g->rows, a->extent, g->hidden.memory, offset_of(a), scale,
                                        g->codes.memory, a->failure)
            : hvdc_rows_norm(&g->device, &g->rows, a->extent, g->hidden.memory, offset_of(a), (float)g->geometry->eps,
                             a->weights->norm2_gain, 0.0f, a->weights->norm2_bias, scale, g->codes.memory, a->failure);
    return crossing &&
           normed(a, HVDC_CROSS_Q, scale, HVDC_CROSS_NORM_Q, false, HVDC_IN_CROSS_QUERY, g->queries.memory, 0,
                  &query_scale) &&
           attend(a, query_scale, &keys, HVDC_CROSS_OUT, HVDC_IN_CROSS_OUT, NONE);
}

static bool feed_forward(const at *a) {
    hvdc_gpu *g = a->gpu;
    const hvdc_extent wide = {a->rows, g->ffn_stored, g->geometry->ffn_width};
    float scale, down_scale;
    return modulated(a, SCALE_FFN, SHIFT_FFN, HVDC_IN_FFN_UP, &scale) &&
           hvdc_gpu_linear(g, a->step, a->block, HVDC_FFN_UP, a->rows, scale, a->failure) &&
           scale_of(a, HVDC_IN_FFN_DOWN, &down_scale) &&
           hvdc_rows_gelu(&g->device, &g->rows, wide, g->y.memory, down_scale, g->codes.memory, a->failure) &&
           hvdc_gpu_linear(g, a->step, a->block, HVDC_FFN_DOWN, a->rows, down_scale, a->failure) &&
           hvdc_rows_add(&g->device, &g->rows, a->extent, g->hidden.memory, offset_of(a), g->y.memory,
                         modulation(a, GATE_FFN), a->failure);
}

static void take_rows(at *a, uint32_t first, uint32_t tokens) {
    a->first = first;
    a->rows = tokens - first < a->gpu->max_rows ? tokens - first : a->gpu->max_rows;
    a->extent = (hvdc_extent){a->rows, a->gpu->width_stored, a->gpu->geometry->width};
}

static bool write_modulation(hvdc_gpu *g, uint32_t step, uint32_t block, hvdc_failure *failure) {
    const float *table = hvdc_artifact_adaln(g->model.weights->artifact, step, block);
    const uint32_t width = g->geometry->width, stored = g->width_stored;
    for (uint32_t i = 0; i < MODULATIONS; ++i) {
        memset(g->staging + (size_t)i * stored, 0, stored * sizeof(float));
        memcpy(g->staging + (size_t)i * stored, table + (size_t)i * width, width * sizeof(float));
    }
    return hvdc_device_write(&g->device, g->modulation.memory, 0, g->staging,
                             (uint64_t)MODULATIONS * stored * sizeof(float), failure);
}

bool hvdc_gpu_run_block(hvdc_gpu *g, uint32_t step, uint32_t block, hvdc_failure *failure) {
    at a = {.gpu = g, .step = step, .block = block, .weights = &g->model.blocks[block], .failure = failure};
    hvdc_keys keys = {
        .keys = g->self_keys.memory, .values = g->self_values.memory, .count = g->tokens, .stored = g->tokens_stored};
    g->sliced_block = 0;
    if (!write_modulation(g, step, block, failure) || !hvdc_model_stage(&g->device, &g->model, block, failure)) {
        return false;
    }
    for (uint32_t first = 0; first < g->tokens; first += g->max_rows) {
        take_rows(&a, first, g->tokens);
        if (!self_keys(&a, &keys)) {
            return false;
        }
    }
    for (uint32_t first = 0; first < g->tokens; first += g->max_rows) {
        take_rows(&a, first, g->tokens);
        if (!self_attention(&a, &keys) || !cross_attention(&a) || !feed_forward(&a)) {
            return false;
        }
        g->device.cl.clFlush(g->device.queue);
    }
    return hvdc_device_finish(&g->device, failure);
}

/* The first step of an expert: what depends on the text alone has the same scales in all of them. */
static bool first_step(const hvdc_gpu *g, uint32_t expert, uint32_t *step, hvdc_failure *failure) {
    const hvdc_artifact *artifact = g->model.weights->artifact;
    for (uint32_t s = 0; s < hvdc_artifact_step_count(artifact); ++s) {
        if (hvdc_artifact_step(artifact, s)->expert == expert) {
            *step = s;
            return true;
        }
    }
    return hvdc_fail(failure, HVDC_FAILURE_USAGE, "no step of this artifact is done by expert %u", (unsigned)expert);
}

bool hvdc_gpu_make_text(hvdc_gpu *g, uint32_t expert, const float *text, hvdc_failure *failure) {
    at a = {.gpu = g, .failure = failure};
    const uint32_t tokens = g->geometry->text_tokens, width = g->geometry->width, stored = g->width_stored;
    if (!first_step(g, expert, &a.step, failure)) {
        return false;
    }
    for (uint32_t first = 0; first < tokens; first += g->max_rows) {
        take_rows(&a, first, tokens);
        for (uint32_t i = 0; i < a.rows; ++i) {
            memset(g->staging + (size_t)i * stored, 0, stored * sizeof(float));
            memcpy(g->staging + (size_t)i * stored, text + (size_t)(first + i) * width, width * sizeof(float));
        }
        for (a.block = 0; a.block < g->model.layers; ++a.block) {
            const hvdc_text *out = &g->text[expert][a.block];
            float scale, unused;
            a.weights = &g->model.blocks[a.block];
            /* A linear leaves its output where the text was, so it is written again. */
            if (!hvdc_device_write(&g->device, g->y.memory, 0, g->staging, (uint64_t)a.rows * stored * sizeof(float),
                                   failure) ||
                !scale_of(&a, HVDC_IN_TEXT, &scale) ||
                !hvdc_rows_quantize(&g->device, &g->rows, a.extent, g->y.memory, scale, g->codes.memory, failure) ||
                !normed(&a, HVDC_CROSS_K, scale, HVDC_CROSS_NORM_K, false, HVDC_IN_CROSS_KEY, out->keys.memory,
                        g->text_stored, &unused) ||
                !valued(&a, HVDC_CROSS_V, scale, HVDC_IN_CROSS_VALUE, out->values.memory, g->text_stored, &unused)) {
                return false;
            }
        }
    }
    return hvdc_device_finish(&g->device, failure);
}
