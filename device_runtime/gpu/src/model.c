#include "model.h"

#include <stdlib.h>
#include <string.h>

#include "windows.h"

const char *const HVDC_LINEAR_NAMES[HVDC_LINEARS] = {"attn1.to_q",     "attn1.to_k", "attn1.to_v", "attn1.to_out.0",
                                                     "attn2.to_q",     "attn2.to_k", "attn2.to_v", "attn2.to_out.0",
                                                     "ffn.net.0.proj", "ffn.net.2"};
static const char *const NORM_NAMES[HVDC_NORMS] = {"attn1.norm_q", "attn1.norm_k", "attn2.norm_q", "attn2.norm_k"};

static bool place(const hvdc_model *m, const hvdc_values *values, hvdc_place *out, hvdc_failure *failure) {
    for (uint32_t i = 0; i < m->window_count; ++i) {
        const hvdc_window *w = &m->windows[i];
        if (w->file == values->file && values->offset >= w->first &&
            values->offset + values->bytes <= w->first + w->bytes) {
            *out = (hvdc_place){w->memory, (uint32_t)((values->offset - w->first) / 4)};
            return true;
        }
    }
    return hvdc_fail(failure, HVDC_FAILURE_ARTIFACT, "a tensor of data file %u lies in none of the GPU's windows",
                     (unsigned)values->file);
}

static bool vector(const hvdc_model *m, uint32_t block, const char *name, const char *part, hvdc_place *out,
                   hvdc_failure *failure) {
    hvdc_values values;
    return hvdc_weights_in_block(m->weights, block, name, part, &values, failure) && place(m, &values, out, failure);
}

/* `staged`: its weight gets a place later. */
static bool matrix(const hvdc_model *m, uint32_t block, const char *linear, const char *part, bool staged,
                   hvdc_matrix *out, hvdc_failure *failure) {
    hvdc_values weight, scales;
    if (!hvdc_weights_in_block(m->weights, block, linear, part, &weight, failure)) {
        return false;
    }
    if (weight.record->dims != 2 || weight.record->tile_order != HVDC_TILE_HMX_INT8_K4_ID ||
        !hvdc_weights_tensor(m->weights, weight.record->scale, &scales)) {
        return hvdc_fail(failure, HVDC_FAILURE_ARTIFACT,
                         "blocks.%u.%s.%s is no quantised weight in the tile order that the GPU reads", (unsigned)block,
                         linear, part);
    }
    out->n = weight.record->padded[0];
    out->k = weight.record->padded[1];
    return (staged || place(m, &weight, &out->weight, failure)) && place(m, &scales, &out->scales, failure);
}

static bool resolve_linear(hvdc_model *m, uint32_t block, uint32_t id, bool adapted, hvdc_failure *failure) {
    const char *name = HVDC_LINEAR_NAMES[id];
    hvdc_linear *linear = &m->blocks[block].linears[id];
    const bool staged = id == HVDC_FFN_UP || id == HVDC_FFN_DOWN;
    if (!matrix(m, block, name, "weight", staged, &linear->base, failure) ||
        !vector(m, block, name, "bias", &linear->bias, failure)) {
        return false;
    }
    if (staged) {
        hvdc_values values;
        const uint32_t which = id == HVDC_FFN_UP ? 0 : 1;
        if (!hvdc_weights_in_block(m->weights, block, name, "weight", &values, failure)) {
            return false;
        }
        m->blocks[block].pair[which] = values.data;
        m->pair_bytes[which] = values.bytes; /* of every block alike: the reader has checked the geometry */
        return true;
    }
    return !adapted || (matrix(m, block, name, "lora_A.weight", false, &linear->a, failure) &&
                        matrix(m, block, name, "lora_B.weight", false, &linear->b, failure));
}

static bool resolve(hvdc_model *m, hvdc_failure *failure) {
    const hvdc_geometry *g = hvdc_artifact_geometry(m->weights->artifact);
    m->layers = g->layers;
    m->blocks = calloc(g->layers, sizeof *m->blocks);
    if (m->blocks == NULL) {
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "out of memory for the tables of %u blocks",
                         (unsigned)g->layers);
    }
    for (uint32_t b = 0; b < g->layers; ++b) {
        for (uint32_t id = 0; id < HVDC_LINEARS; ++id) {
            if (!resolve_linear(m, b, id, g->rank > 0, failure)) {
                return false;
            }
        }
        for (uint32_t id = 0; id < HVDC_NORMS; ++id) {
            if (!vector(m, b, NORM_NAMES[id], "weight", &m->blocks[b].norms[id], failure)) {
                return false;
            }
        }
        if (hvdc_artifact_find_in_block(m->weights->artifact, b, "norm2", "weight") != HVDC_NONE &&
            (!vector(m, b, "norm2", "weight", &m->blocks[b].norm2_gain, failure) ||
             !vector(m, b, "norm2", "bias", &m->blocks[b].norm2_bias, failure))) {
            return false;
        }
    }
    return true;
}

static bool reserve_stage(hvdc_device *d, hvdc_model *m, hvdc_failure *failure) {
    if (!hvdc_device_allocate(d, "the staged feed-forward pair", m->pair_bytes[0] + m->pair_bytes[1], false, &m->staged,
                              failure)) {
        return false;
    }
    for (uint32_t b = 0; b < m->layers; ++b) {
        m->blocks[b].linears[HVDC_FFN_UP].base.weight = (hvdc_place){m->staged.memory, 0};
        m->blocks[b].linears[HVDC_FFN_DOWN].base.weight =
            (hvdc_place){m->staged.memory, (uint32_t)(m->pair_bytes[0] / 4)};
    }
    return true;
}

bool hvdc_model_open(hvdc_device *d, const hvdc_weights *weights, const hvdc_gpu_options *options, hvdc_model *m,
                     hvdc_failure *failure) {
    memset(m, 0, sizeof *m);
    m->weights = weights;
    if (hvdc_import_choose(d, options, &m->import, failure) && hvdc_windows_open(d, options, m, failure) &&
        resolve(m, failure) && reserve_stage(d, m, failure)) {
        return true;
    }
    hvdc_model_close(d, m);
    return false;
}

bool hvdc_model_count(hvdc_device *d, const hvdc_weights *weights, const hvdc_gpu_options *options, hvdc_model *m,
                      hvdc_failure *failure) {
    memset(m, 0, sizeof *m);
    m->weights = weights;
    m->layers = hvdc_artifact_geometry(weights->artifact)->layers;
    m->import.way = options->import == HVDC_GPU_IMPORT_COPY ? HVDC_GPU_IMPORT_COPY : HVDC_GPU_IMPORT_HOST_POINTER;
    m->blocks = calloc(m->layers, sizeof *m->blocks);
    bool good = m->blocks != NULL || hvdc_fail(failure, HVDC_FAILURE_MEMORY,
                                               "out of memory for the tables of %u blocks", (unsigned)m->layers);
    for (uint32_t which = 0; good && which < 2; ++which) {
        hvdc_values values;
        good = hvdc_weights_in_block(weights, 0, HVDC_LINEAR_NAMES[which == 0 ? HVDC_FFN_UP : HVDC_FFN_DOWN], "weight",
                                     &values, failure);
        m->pair_bytes[which] = good ? values.bytes : 0;
    }
    good = good && hvdc_windows_plan(d, m, failure) && reserve_stage(d, m, failure);
    for (uint32_t i = 0; good && m->import.way == HVDC_GPU_IMPORT_COPY && i < m->window_count; ++i) {
        good = hvdc_device_allocate(d, "a copy of weights", m->windows[i].bytes, false, &m->windows[i].copy, failure);
    }
    return good;
}

void hvdc_model_close(hvdc_device *d, hvdc_model *m) {
    hvdc_device_free(d, &m->staged);
    hvdc_windows_close(d, m);
    free(m->blocks);
    memset(m, 0, sizeof *m);
}

bool hvdc_model_stage(hvdc_device *d, hvdc_model *m, uint32_t block, hvdc_failure *failure) {
    /* Not waited for: the queue is in order, and the pages outlive the engine. */
    uint64_t offset = 0;
    for (uint32_t i = 0; i < 2; ++i) {
        cl_int code = d->cl.clEnqueueWriteBuffer(d->queue, m->staged.memory, CL_FALSE, (size_t)offset,
                                                 (size_t)m->pair_bytes[i], m->blocks[block].pair[i], 0, NULL, NULL);
        if (code != CL_SUCCESS) {
            return hvdc_opencl_fail(failure, code, "to stage a feed-forward pair");
        }
        offset += m->pair_bytes[i];
    }
    return true;
}
