/* Opening an engine: what is checked, chosen and allocated. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "hvdc/host.h"
#include "hvdc/tiles.h"

#define DEFAULT_MAX_ROWS 1024u
#define MAX_TOKENS (1u << 24)
#define TILE HVDC_TILE_HMX_INT8_K4_ROWS

/* quant/gemms.py names them. */
static const char *const INPUT_NAMES[HVDC_IN_LORA] = {"attn1.input",     "attn1.to_out.0.input", "attn2.to_q.input",
                                                      "attn2.text",      "attn2.to_out.0.input", "ffn.net.0.proj.input",
                                                      "ffn.net.2.input", "attn1.query",          "attn1.key",
                                                      "attn1.value",     "attn2.query",          "attn2.key",
                                                      "attn2.value"};
#define HIDDEN_SUFFIX ".lora_hidden"

static uint32_t round_up(uint32_t value, uint32_t multiple) { return (value + multiple - 1) / multiple * multiple; }
static uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }
static uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

static bool find_inputs(hvdc_gpu *g, const hvdc_artifact *artifact, hvdc_failure *failure) {
    if (hvdc_artifact_calibration(artifact) == NULL) {
        return hvdc_fail(
            failure, HVDC_FAILURE_ARTIFACT,
            "the artifact has no activation scales, without which the GPU cannot compute; compile it with a "
            "calibration (hvdc compile --prompts or --calibration), or run on the NPU alone");
    }
    const uint32_t count = g->geometry->rank > 0 ? HVDC_INPUTS : HVDC_IN_LORA;
    for (uint32_t i = 0; i < count; ++i) {
        char name[64];
        if (i < HVDC_IN_LORA) {
            (void)snprintf(name, sizeof name, "%s", INPUT_NAMES[i]);
        } else {
            (void)snprintf(name, sizeof name, "%s" HIDDEN_SUFFIX, HVDC_LINEAR_NAMES[i - HVDC_IN_LORA]);
        }
        g->inputs[i] = hvdc_artifact_find_gemm_input(artifact, name);
        if (g->inputs[i] == HVDC_NONE) {
            return hvdc_fail(failure, HVDC_FAILURE_ARTIFACT,
                             "the artifact has no activation scales for %s; compile it again with this release", name);
        }
    }
    return true;
}

static bool measure(hvdc_gpu *g, const hvdc_gpu_options *options, uint32_t grid[3], hvdc_failure *failure) {
    const hvdc_geometry *geometry = g->geometry;
    uint64_t tokens = 1;
    for (uint32_t i = 0; i < 3; ++i) {
        grid[i] = options->grid[0] == 0 ? geometry->latent[i] / geometry->patch[i] : options->grid[i];
        tokens *= grid[i];
        if (grid[i] == 0 || tokens > MAX_TOKENS) {
            return hvdc_fail(failure, HVDC_FAILURE_USAGE, "a grid of %u x %u x %u tokens is not possible",
                             (unsigned)options->grid[0], (unsigned)options->grid[1], (unsigned)options->grid[2]);
        }
    }
    if (options->max_rows % TILE != 0) {
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "%u rows at once: it must be a multiple of %u",
                         (unsigned)options->max_rows, (unsigned)TILE);
    }
    g->tokens = (uint32_t)tokens;
    g->tokens_stored = hvdc_attention_stored(g->tokens);
    g->text_stored = hvdc_attention_stored(geometry->text_tokens);
    g->width_stored = round_up(geometry->width, TILE);
    g->ffn_stored = round_up(geometry->ffn_width, TILE);
    g->rank_stored = round_up(geometry->rank, TILE);
    g->max_rows = options->max_rows == 0 ? DEFAULT_MAX_ROWS : options->max_rows;
    if (g->max_rows > larger(g->tokens_stored, g->text_stored)) {
        g->max_rows = larger(g->tokens_stored, g->text_stored);
    }
    return true;
}

/* The rotations of all tokens, cosines and sines apart. */
static bool write_rotations(hvdc_gpu *g, const uint32_t grid[3], hvdc_failure *failure) {
    const hvdc_grid positions = {grid[0], grid[1], grid[2]};
    float *rotations = NULL;
    if (!hvdc_rope_rotations(g->model.weights, &positions, &rotations, failure)) {
        return false;
    }
    const size_t count = (size_t)g->tokens * (g->attention.head / 2);
    float *cosines = malloc(count * sizeof *cosines), *sines = malloc(count * sizeof *sines);
    bool good = cosines != NULL && sines != NULL;
    if (!good) {
        hvdc_fail(failure, HVDC_FAILURE_MEMORY, "out of memory for the rotations of %u tokens", (unsigned)g->tokens);
    }
    for (size_t i = 0; good && i < count; ++i) {
        cosines[i] = rotations[2 * i];
        sines[i] = rotations[2 * i + 1];
    }
    good = good && hvdc_device_write(&g->device, g->cosines.memory, 0, cosines, g->cosines.bytes, failure) &&
           hvdc_device_write(&g->device, g->sines.memory, 0, sines, g->sines.bytes, failure);
    free(cosines);
    free(sines);
    free(rotations);
    return good;
}

static bool allocate_text(hvdc_gpu *g, hvdc_failure *failure) {
    const uint64_t bytes = (uint64_t)g->attention.heads * g->attention.head_stride * g->text_stored;
    for (uint32_t e = 0; e < g->geometry->experts; ++e) {
        g->text[e] = calloc(g->model.layers, sizeof *g->text[e]);
        if (g->text[e] == NULL) {
            return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "out of memory for the tables of the text");
        }
        for (uint32_t b = 0; b < g->model.layers; ++b) {
            if (!hvdc_device_allocate(&g->device, "keys of the text", bytes, true, &g->text[e][b].keys, failure) ||
                !hvdc_device_allocate(&g->device, "values of the text", bytes, true, &g->text[e][b].values, failure)) {
                return false;
            }
        }
    }
    return true;
}

/* Fewer rows at once where outputs of a linear, the largest scratch, would not fit a buffer. */
static void fit_rows(hvdc_gpu *g) {
    const uint64_t row_bytes = (uint64_t)larger(g->width_stored, g->ffn_stored) * sizeof(float);
    while (g->max_rows > TILE && g->max_rows * row_bytes > g->device.max_buffer_bytes) {
        g->max_rows -= TILE;
    }
}

static bool allocate(hvdc_gpu *g, hvdc_failure *failure) {
    hvdc_device *d = &g->device;
    const uint32_t widest = larger(g->width_stored, g->ffn_stored);
    const uint64_t rows = g->max_rows, slack_rows = rows + HVDC_GEMM_SLACK_ROWS;
    const uint64_t heads_stored = (uint64_t)g->attention.heads * g->attention.head_stride;
    const uint64_t rotations = (uint64_t)g->tokens * (g->attention.head / 2) * sizeof(float);
    const uint64_t floats = larger(g->max_rows, 6) * (uint64_t)g->width_stored;
    g->staging_bytes = floats * sizeof *g->staging;
    g->staging = d->counts ? NULL : malloc((size_t)g->staging_bytes);
    if (g->staging == NULL && !d->counts) {
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "out of memory for %llu numbers", (unsigned long long)floats);
    }
    hvdc_gemm_need(&g->gemm, g->max_rows, widest / 4, widest, 1);
    return hvdc_gemm_allocate(d, &g->gemm, failure) &&
           hvdc_device_allocate(d, "the hidden state", (uint64_t)g->tokens * g->width_stored * sizeof(uint16_t), true,
                                &g->hidden, failure) &&
           hvdc_device_allocate(d, "self-attention's keys", heads_stored * g->tokens_stored, true, &g->self_keys,
                                failure) &&
           hvdc_device_allocate(d, "self-attention's values", heads_stored * g->tokens_stored, true, &g->self_values,
                                failure) &&
           hvdc_device_allocate(d, "rotations", rotations, false, &g->cosines, failure) &&
           hvdc_device_allocate(d, "rotations", rotations, false, &g->sines, failure) &&
           hvdc_device_allocate(d, "a block's modulation", 6ull * g->width_stored * sizeof(float), false,
                                &g->modulation, failure) &&
           hvdc_device_allocate(d, "codes of activations", slack_rows * widest, true, &g->codes, failure) &&
           hvdc_device_allocate(d, "codes of queries", slack_rows * heads_stored, true, &g->queries, failure) &&
           hvdc_device_allocate(d, "outputs of a linear", rows * widest * sizeof(float), true, &g->y, failure) &&
           (g->rank_stored == 0 ||
            (hvdc_device_allocate(d, "an adapter's hidden", rows * g->rank_stored * sizeof(float), false, &g->lora,
                                  failure) &&
             hvdc_device_allocate(d, "codes of an adapter's hidden", slack_rows * g->rank_stored, true, &g->lora_codes,
                                  failure))) &&
           allocate_text(g, failure);
}

static bool count(hvdc_gpu *g, const hvdc_weights *weights, const hvdc_gpu_options *options, hvdc_failure *failure) {
    uint32_t grid[3];
    g->geometry = hvdc_artifact_geometry(weights->artifact);
    const uint32_t head = g->geometry->width / g->geometry->heads;
    if (!measure(g, options, grid, failure)) {
        return false;
    }
    hvdc_device_count(options, &g->device);
    fit_rows(g);
    return hvdc_model_count(&g->device, weights, options, &g->model, failure) &&
           hvdc_attention_open(&g->device, &g->gemm, g->geometry->heads, head, smaller(g->max_rows, g->tokens),
                               larger(g->tokens, g->geometry->text_tokens), &g->attention, failure) &&
           allocate(g, failure);
}

bool hvdc_gpu_forecast(const hvdc_artifact *artifact, const hvdc_gpu_options *options, uint64_t *bytes,
                       hvdc_failure *failure) {
    const hvdc_gpu_options defaults = {0};
    const hvdc_weights weights = {.artifact = artifact};
    hvdc_gpu *g = calloc(1, sizeof *g);
    if (g == NULL) {
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "out of memory for a forecast of the GPU's engine");
    }
    const bool counted = count(g, &weights, options == NULL ? &defaults : options, failure);
    *bytes = g->device.allocated_bytes + g->staging_bytes;
    for (uint32_t e = 0; e < HVDC_EXPERTS; ++e) {
        free(g->text[e]);
    }
    free(g->model.windows);
    free(g->model.blocks);
    free(g);
    return counted;
}

static void describe(hvdc_gpu *g) {
    hvdc_gpu_description *out = &g->description;
    memcpy(out->platform, g->device.platform_name, sizeof out->platform);
    memcpy(out->device, g->device.name, sizeof out->device);
    memcpy(out->driver, g->device.driver, sizeof out->driver);
    out->dot = g->gemm.dot;
    out->import = g->model.import.way;
    (void)snprintf(out->gemm, sizeof out->gemm, "%.63s", g->gemm.options);
    out->programs_compiled = g->device.programs_compiled;
    out->attention_rows = g->attention.rows;
    out->largest_buffer_bytes = g->device.largest_bytes;
    out->imported_bytes = g->model.imported_bytes;
    out->copied_bytes = g->model.copied_bytes;
}

bool hvdc_gpu_prepare(hvdc_gpu *g, const hvdc_weights *weights, const hvdc_gpu_options *options,
                      hvdc_failure *failure) {
    uint32_t grid[3];
    g->geometry = hvdc_artifact_geometry(weights->artifact);
    const uint32_t head = g->geometry->width / g->geometry->heads;
    if (!find_inputs(g, weights->artifact, failure) || !measure(g, options, grid, failure) ||
        !hvdc_device_open(options, &g->device, failure)) {
        return false;
    }
    fit_rows(g);
    if (!hvdc_model_open(&g->device, weights, options, &g->model, failure) ||
        !hvdc_gemm_open(&g->device, options, &g->gemm, failure) ||
        !hvdc_rows_open(&g->device, head, &g->rows, failure) ||
        !hvdc_attention_open(&g->device, &g->gemm, g->geometry->heads, head, smaller(g->max_rows, g->tokens),
                             larger(g->tokens, g->geometry->text_tokens), &g->attention, failure) ||
        !allocate(g, failure) || !write_rotations(g, grid, failure)) {
        return false;
    }
    describe(g);
    hvdc_device_reset_profile(&g->device);
    return true;
}

void hvdc_gpu_release(hvdc_gpu *g) {
    if (g->device.context == NULL) {
        return;
    }
    hvdc_device *d = &g->device;
    d->cl.clFinish(d->queue);
    hvdc_buffer *buffers[] = {&g->hidden, &g->self_keys, &g->self_values, &g->cosines, &g->sines,     &g->modulation,
                              &g->codes,  &g->queries,   &g->y,           &g->lora,    &g->lora_codes};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; ++i) {
        hvdc_device_free(d, buffers[i]);
    }
    for (uint32_t e = 0; e < HVDC_EXPERTS; ++e) {
        for (uint32_t b = 0; g->text[e] != NULL && b < g->model.layers; ++b) {
            hvdc_device_free(d, &g->text[e][b].keys);
            hvdc_device_free(d, &g->text[e][b].values);
        }
        free(g->text[e]);
    }
    hvdc_attention_release(d, &g->attention);
    hvdc_model_close(d, &g->model);
    hvdc_rows_release(d, &g->rows);
    hvdc_gemm_release(d, &g->gemm);
    hvdc_device_close(d);
    free(g->staging);
}
