/* The checks of a calibrated artifact's own sections, in the order of hvdc/artifact/index_calibration.py. */
#include <inttypes.h>
#include <string.h>

#include "error.h"
#include "index.h"

#define REFUSE(code, ...) return hvdc_refuse(error, HVDC_E_##code, HVDC_INDEX_NAME, __VA_ARGS__)

/* The record agrees with the section of inputs, with its own mode, and with the geometry's video. */
static enum hvdc_code check_record(const hvdc_index *index, hvdc_error *error) {
    const hvdc_calibration *c = index->calibration;
    const hvdc_geometry *g = index->geometry;
    bool at_own = c->frames == g->frames && c->height == g->height && c->video_width == g->video_width;
    bool is_other = (c->flags & HVDC_CALIBRATION_OTHER_GEOMETRY) != 0;
    bool has_percentile =
        c->mode == HVDC_CALIBRATION_MODE_PERCENTILE ? c->percentile > 0 && c->percentile <= 100 : c->percentile == 0;
    if (c->inputs < 1u || c->inputs > HVDC_MAX_GEMM_INPUTS || c->inputs != index->inputs.count ||
        !HVDC_CALIBRATION_MODE_KNOWN(c->mode) || !has_percentile || c->frames == 0 || c->height == 0 ||
        c->video_width == 0 || is_other == at_own)
        REFUSE(INDEX_CALIBRATION,
               "calibration: %" PRIu32 " inputs of %" PRIu32 ", mode %" PRIu32 ", percentile %g, flags 0x%" PRIx32
               " do not fit together",
               c->inputs, index->inputs.count, c->mode, c->percentile, c->flags);
    return HVDC_E_OK;
}

static enum hvdc_code check_inputs(const hvdc_index *index, hvdc_error *error) {
    uint32_t known = (1u << index->geometry->experts) - 1u;
    for (uint32_t i = 0; i < index->inputs.count; i++) {
        const hvdc_gemm_input *input = hvdc_index_input(index, i);
        size_t length = 0;
        const char *name = hvdc_index_text_at(index, input->name, &length);
        if (name == NULL) REFUSE(INDEX_STRING, "GEMM input %" PRIu32 ": no string starts at %" PRIu32, i, input->name);
        if (!hvdc_index_is_name(name, length))
            REFUSE(INDEX_STRING, "GEMM input %" PRIu32 ": \"%.*s\"", i, (int)length, name);
        if (!HVDC_SCALE_PER_KNOWN(input->per) || input->experts == 0 || (input->experts & ~known) != 0)
            REFUSE(INDEX_CALIBRATION, "GEMM input %" PRIu32 ": per %u, experts 0x%x", i, (unsigned)input->per,
                   (unsigned)input->experts);
        if (hvdc_index_find_input(index, name) != i)
            REFUSE(INDEX_CALIBRATION, "GEMM input %" PRIu32 ": \"%s\" again", i, name);
    }
    return HVDC_E_OK;
}

static bool is_table(const hvdc_index *index, const hvdc_tensor *t) {
    const uint32_t shape[HVDC_MAX_DIMS] = {index->geometry->steps, index->geometry->layers, index->inputs.count};
    return strcmp(index->strings + t->name, HVDC_ACTIVATION_SCALES_NAME) == 0 &&
           memcmp(t->shape, shape, sizeof shape) == 0;
}

static bool is_smoothing(const hvdc_index *index, const hvdc_tensor *t) {
    return strncmp(index->strings + t->name, HVDC_SMOOTHING_PREFIX, sizeof HVDC_SMOOTHING_PREFIX - 1u) == 0 &&
           t->dims == 2u && t->shape[0] == index->geometry->layers;
}

/* The table has the shape that its index says; all other tensors of the kind are smoothing factors. */
static enum hvdc_code check_tensors(const hvdc_index *index, hvdc_error *error) {
    const hvdc_calibration *c = index->calibration;
    const hvdc_tensor *table = hvdc_index_tensor(index, c->table);
    uint32_t count = 0;
    if (table == NULL || table->kind != HVDC_TENSOR_KIND_CALIBRATION)
        REFUSE(INDEX_CALIBRATION, "calibration: tensor %" PRIu32 " is no table of its kind", c->table);
    for (uint32_t i = 0; i < index->tensors.count; i++)
        if (hvdc_index_tensor(index, i)->kind == HVDC_TENSOR_KIND_CALIBRATION) count++;
    if (count - 1u != c->smoothed_sites)
        REFUSE(INDEX_CALIBRATION, "calibration: expected %" PRIu32 " smoothed sites, found %" PRIu32, c->smoothed_sites,
               count - 1u);
    for (uint32_t i = 0; i < index->tensors.count; i++) {
        const hvdc_tensor *t = hvdc_index_tensor(index, i);
        if (t->kind != HVDC_TENSOR_KIND_CALIBRATION) continue;
        bool good = i == c->table ? is_table(index, t) : is_smoothing(index, t);
        if (!good || t->dtype != HVDC_DTYPE_FLOAT32 || t->tile_order != HVDC_TILE_ROW_MAJOR_ID ||
            t->expert != HVDC_EXPERT_SHARED || memcmp(t->shape, t->padded, sizeof t->shape) != 0)
            REFUSE(INDEX_CALIBRATION, "tensor %" PRIu32 ": \"%s\" is misshapen or of another name", i,
                   index->strings + t->name);
    }
    return HVDC_E_OK;
}

enum hvdc_code hvdc_index_check_calibration(const hvdc_index *index, hvdc_error *error) {
    if (index->calibration == NULL) return HVDC_E_OK;
    enum hvdc_code code = check_record(index, error);
    if (code == HVDC_E_OK) code = check_inputs(index, error);
    if (code == HVDC_E_OK) code = check_tensors(index, error);
    return code;
}
