#include "engine.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static hvdc_gpu *of(hvdc_engine *engine) { return (hvdc_gpu *)((char *)engine - offsetof(hvdc_gpu, face)); }
static const hvdc_gpu *of_constant(const hvdc_engine *engine) {
    return (const hvdc_gpu *)((const char *)engine - offsetof(hvdc_gpu, face));
}

static bool set_text(hvdc_engine *engine, uint32_t expert, const float *text, hvdc_failure *failure) {
    hvdc_gpu *g = of(engine);
    if (expert >= g->geometry->experts) {
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "expert %u of an artifact with %u", (unsigned)expert,
                         (unsigned)g->geometry->experts);
    }
    g->text_is_set[expert] = false; /* what is half made is not used */
    g->text_is_set[expert] = hvdc_gpu_make_text(g, expert, text, failure);
    return g->text_is_set[expert];
}

/* The hidden state to the device or back, through scratch that no launch uses in between. */
static bool transfer(hvdc_gpu *g, float *hidden, bool to_device, hvdc_failure *failure) {
    hvdc_device *d = &g->device;
    const uint32_t width = g->geometry->width;
    for (uint32_t first = 0; first < g->tokens; first += g->max_rows) {
        const uint32_t rows = g->tokens - first < g->max_rows ? g->tokens - first : g->max_rows;
        const hvdc_extent extent = {rows, g->width_stored, width};
        const uint64_t bytes = (uint64_t)rows * width * sizeof(float);
        const uint32_t offset = first * g->width_stored;
        float *part = hidden + (size_t)first * width;
        const bool good =
            to_device ? hvdc_device_write(d, g->y.memory, 0, part, bytes, failure) &&
                            hvdc_rows_narrow(d, &g->rows, extent, g->y.memory, g->hidden.memory, offset, failure)
                      : hvdc_rows_widen(d, &g->rows, extent, g->hidden.memory, offset, g->y.memory, failure) &&
                            hvdc_device_read(d, g->y.memory, 0, part, bytes, failure);
        if (!good) {
            return false;
        }
    }
    return true;
}

static bool run(hvdc_engine *engine, uint32_t step, uint32_t first, uint32_t count, float *hidden,
                hvdc_failure *failure) {
    hvdc_gpu *g = of(engine);
    const hvdc_artifact *artifact = g->model.weights->artifact;
    const hvdc_step *record = hvdc_artifact_step(artifact, step);
    if (record == NULL || first > g->model.layers || count > g->model.layers - first) {
        return hvdc_fail(failure, HVDC_FAILURE_USAGE,
                         "blocks %u to %u of step %u, in an artifact of %u blocks and %u steps", (unsigned)first,
                         (unsigned)(first + count), (unsigned)step, (unsigned)g->model.layers,
                         (unsigned)hvdc_artifact_step_count(artifact));
    }
    if (!g->text_is_set[record->expert]) {
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "step %u is of expert %u, which has no text yet", (unsigned)step,
                         (unsigned)record->expert);
    }
    if (!transfer(g, hidden, true, failure)) {
        return false;
    }
    for (uint32_t block = first; block < first + count; ++block) {
        if (!hvdc_gpu_run_block(g, step, block, failure)) {
            return false;
        }
    }
    return transfer(g, hidden, false, failure);
}

static uint64_t memory_bytes(const hvdc_engine *engine) {
    const hvdc_gpu *g = of_constant(engine);
    return g->device.allocated_bytes + g->staging_bytes;
}

static void close_engine(hvdc_engine *engine) {
    hvdc_gpu *g = of(engine);
    hvdc_gpu_release(g);
    free(g);
}

bool hvdc_gpu_open(const hvdc_weights *weights, const hvdc_gpu_options *options, hvdc_engine **engine,
                   hvdc_failure *failure) {
    const hvdc_gpu_options defaults = {0};
    hvdc_gpu *g = calloc(1, sizeof *g);
    *engine = NULL;
    if (g == NULL) {
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "out of memory for the GPU's engine");
    }
    if (!hvdc_gpu_prepare(g, weights, options == NULL ? &defaults : options, failure)) {
        hvdc_gpu_release(g);
        free(g);
        return false;
    }
    g->face = (hvdc_engine){
        .name = "gpu", .set_text = set_text, .run = run, .memory_bytes = memory_bytes, .close = close_engine};
    *engine = &g->face;
    return true;
}

const hvdc_gpu_description *hvdc_gpu_describe(const hvdc_engine *engine) { return &of_constant(engine)->description; }

bool hvdc_gpu_profile(const hvdc_engine *engine, uint32_t index, hvdc_gpu_kernel *kernel) {
    const hvdc_device *d = &of_constant(engine)->device;
    if (index >= d->profiled) {
        return false;
    }
    *kernel = d->profile[index];
    return true;
}

const char *hvdc_gpu_dot_name(enum hvdc_gpu_dot dot) {
    static const char *const names[] = {"any", "khr", "qcom", "nvidia", "plain"};
    return names[dot];
}

const char *hvdc_gpu_import_name(enum hvdc_gpu_import import) {
    static const char *const names[] = {"any",      "khr-dma-buf", "qcom-dmabuf",  "qcom-ion",
                                        "qcom-ahb", "arm-dma-buf", "host-pointer", "copy"};
    return names[import];
}
