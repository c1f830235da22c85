/* Slices of linears for another engine: hvdc/partner.h. Rows come in FP16, which is what that engine multiplies, and become
 * the codes that quant/paths/tensor.py says. */
#include <stddef.h>

#include "engine.h"

/* Which scale belongs to what enters a linear; quant/gemms.py has the same table. */
static const enum hvdc_input_id ENTERS[HVDC_LINEARS] = {
    [HVDC_SELF_Q] = HVDC_IN_SELF,       [HVDC_SELF_K] = HVDC_IN_SELF,         [HVDC_SELF_V] = HVDC_IN_SELF,
    [HVDC_SELF_OUT] = HVDC_IN_SELF_OUT, [HVDC_CROSS_Q] = HVDC_IN_CROSS_Q,     [HVDC_CROSS_K] = HVDC_IN_TEXT,
    [HVDC_CROSS_V] = HVDC_IN_TEXT,      [HVDC_CROSS_OUT] = HVDC_IN_CROSS_OUT, [HVDC_FFN_UP] = HVDC_IN_FFN_UP,
    [HVDC_FFN_DOWN] = HVDC_IN_FFN_DOWN,
};

static bool check(const hvdc_gpu *g, const hvdc_slice *s, const hvdc_exchange *exchange, hvdc_failure *failure) {
    bool there = s->linear < HVDC_LINEARS && s->block < g->model.layers &&
                 hvdc_artifact_step(g->model.weights->artifact, s->step) != NULL;
    const hvdc_matrix *w = there ? &g->model.blocks[s->block].linears[s->linear].base : NULL;
    if (w == NULL || s->tiles == 0 || s->tiles > w->n / HVDC_SLICE_COLUMNS) {
        return hvdc_fail(failure, HVDC_FAILURE_USAGE,
                         "the first %u tiles of columns of linear %u in block %u at step %u are none of this artifact",
                         (unsigned)s->tiles, (unsigned)s->linear, (unsigned)s->block, (unsigned)s->step);
    }
    uint64_t widest = w->k > s->tiles * HVDC_SLICE_COLUMNS ? w->k : s->tiles * HVDC_SLICE_COLUMNS;
    return s->rows * widest <= exchange->values ||
           hvdc_fail(failure, HVDC_FAILURE_USAGE, "%u rows of %llu values do not fit an exchange of %llu",
                     (unsigned)s->rows, (unsigned long long)widest, (unsigned long long)exchange->values);
}

/* All slices of a block come one after the other, so that its pair is staged once. */
static bool stage(hvdc_gpu *g, const hvdc_slice *s, hvdc_failure *failure) {
    if ((s->linear != HVDC_FFN_UP && s->linear != HVDC_FFN_DOWN) || g->sliced_block == s->block + 1u) {
        return true;
    }
    g->sliced_block = 0;
    if (!hvdc_model_stage(&g->device, &g->model, s->block, failure)) {
        return false;
    }
    g->sliced_block = s->block + 1u;
    return true;
}

bool hvdc_gpu_multiply(hvdc_engine *engine, const hvdc_slice *s, const hvdc_exchange *exchange, hvdc_failure *failure) {
    hvdc_gpu *g = (hvdc_gpu *)((char *)engine - offsetof(hvdc_gpu, face));
    hvdc_device *d = &g->device;
    float scale;
    if (!check(g, s, exchange, failure) || !stage(g, s, failure) ||
        !hvdc_gpu_scale(g, s->step, s->block, ENTERS[s->linear], &scale, failure)) {
        return false;
    }
    const uint32_t k = g->model.blocks[s->block].linears[s->linear].base.k, columns = s->tiles * HVDC_SLICE_COLUMNS;
    for (uint32_t first = 0; first < s->rows; first += g->max_rows) {
        const uint32_t rows = s->rows - first < g->max_rows ? s->rows - first : g->max_rows;
        const hvdc_extent extent = {rows, k, k};
        if (!hvdc_device_write(d, g->y.memory, 0, exchange->input + (size_t)first * k,
                               (uint64_t)rows * k * sizeof(uint16_t), failure) ||
            !hvdc_rows_quantize_hidden(d, &g->rows, extent, g->y.memory, 0, scale, g->codes.memory, failure) ||
            !hvdc_gpu_columns(g, s->step, s->block, (enum hvdc_linear_id)s->linear, columns, rows, scale, failure) ||
            !hvdc_device_read(d, g->y.memory, 0, exchange->output + (size_t)first * columns,
                              (uint64_t)rows * columns * sizeof(float), failure)) {
            return false;
        }
    }
    return true;
}
