#include "hvdc/npu.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "npu_internal.h"

static void free_text(npu_engine *npu, uint32_t expert) {
    for (uint32_t block = 0; npu->text[expert] != NULL && block < npu->geometry.layers; block++) {
        npu_free_keys(&npu->text[expert][block]);
    }
    free(npu->text[expert]);
    npu->text[expert] = NULL;
}

static void close_npu(hvdc_engine *engine) {
    npu_engine *self = (npu_engine *)engine;
    for (uint32_t expert = 0; expert < NPU_EXPERTS; expert++) {
        free_text(self, expert);
    }
    npu_release(self);
    free(self->blocks);
    free(self->own_rotations);
    free(self);
}

static uint64_t memory_bytes(const hvdc_engine *engine) {
    const npu_engine *self = (const npu_engine *)engine;
    uint64_t rotations = self->own_rotations == NULL ? 0u : (uint64_t)self->tokens * self->head_dim * sizeof(float);
    return sizeof *self + self->bytes + rotations + self->geometry.layers * sizeof *self->blocks;
}

static bool allocate_text(npu_engine *npu, uint32_t expert, hvdc_failure *failure) {
    uint64_t before = npu->bytes;
    npu->text[expert] = calloc(npu->geometry.layers, sizeof *npu->text[expert]);
    bool good = npu->text[expert] != NULL ||
                hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no memory for the prompt's keys and values");
    for (uint32_t block = 0; good && block < npu->geometry.layers; block++) {
        good = npu_allocate_keys(npu, npu->geometry.text_tokens, &npu->text[expert][block], failure);
    }
    if (!good) {
        free_text(npu, expert);
        npu->bytes = before;
    }
    return good;
}

struct narrowing {
    npu_engine *npu;
    const float *text;
};

static void narrow_rows(void *context, uint32_t first, uint32_t count, uint32_t worker) {
    const struct narrowing *n = context;
    size_t width = n->npu->geometry.width;
    (void)worker;
    n->npu->hvx->narrow(n->text + first * width, count * width, n->npu->output + first * width);
}

static bool set_text(hvdc_engine *engine, uint32_t expert, const float *text, hvdc_failure *failure) {
    npu_engine *self = (npu_engine *)engine;
    const hvdc_geometry *g = &self->geometry;
    if (expert >= g->experts || expert >= NPU_EXPERTS) {
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "the artifact has %u experts, and none of number %u",
                         (unsigned)g->experts, (unsigned)expert);
    }
    if (self->text[expert] == NULL && !allocate_text(self, expert, failure)) {
        return false;
    }
    double seconds[HVDC_NPU_STAGE_COUNT];
    memcpy(seconds, self->seconds, sizeof seconds);
    self->lost = false;
    self->slice.step = 0;
    while (self->slice.step + 1u < g->steps &&
           hvdc_artifact_step(self->weights.artifact, self->slice.step)->expert != expert) {
        self->slice.step++;
    }
    hvdc_pool_run(self->pool, g->text_tokens, TILE, narrow_rows, &(struct narrowing){self, text});
    npu_pack(self, self->output, g->text_tokens, NULL, NULL, NPU_INPUT, NULL);
    for (uint32_t block = 0; block < g->layers; block++) {
        npu_text_keys(self, block, expert, &self->text[expert][block]);
    }
    memcpy(self->seconds, seconds, sizeof seconds); /* stages are those of `run` */
    return npu_kept_partner(self, failure);
}

static bool run(hvdc_engine *engine, uint32_t step, uint32_t first, uint32_t count, float *hidden,
                hvdc_failure *failure) {
    npu_engine *self = (npu_engine *)engine;
    const hvdc_step *record = hvdc_artifact_step(self->weights.artifact, step);
    if (record == NULL || first > self->geometry.layers || count > self->geometry.layers - first) {
        return hvdc_fail(failure, HVDC_FAILURE_USAGE,
                         "blocks [%u, %" PRIu64 ") of step %u are not in a trajectory of %u steps of %u blocks",
                         (unsigned)first, (uint64_t)first + count, (unsigned)step, (unsigned)self->geometry.steps,
                         (unsigned)self->geometry.layers);
    }
    if (record->expert >= NPU_EXPERTS || self->text[record->expert] == NULL) {
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "expert %u of step %u has no text yet: set_text comes before run",
                         (unsigned)record->expert, (unsigned)step);
    }
    self->lost = false;
    for (uint32_t block = first; block < first + count && !self->lost; block++) {
        npu_run_block(self, step, block, record->expert, hidden);
    }
    return npu_kept_partner(self, failure);
}

static bool check_partner(const npu_engine *npu, hvdc_failure *failure) {
    uint64_t needed = npu_exchange_values(&npu->geometry, hvdc_grid_tokens(&npu->grid));
    return npu->partner == NULL || npu->partner->exchange.values >= needed ||
           hvdc_fail(failure, HVDC_FAILURE_USAGE, "an exchange of %" PRIu64 " values for linears of %" PRIu64,
                     npu->partner->exchange.values, needed);
}

static bool bind_blocks(npu_engine *npu, hvdc_failure *failure) {
    npu->blocks = calloc(npu->geometry.layers, sizeof *npu->blocks);
    if (npu->blocks == NULL) {
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no memory for a table of %u blocks",
                         (unsigned)npu->geometry.layers);
    }
    for (uint32_t block = 0; block < npu->geometry.layers; block++) {
        if (!npu_bind_block(npu, block, &npu->blocks[block], failure)) {
            return false;
        }
    }
    return true;
}

static bool find_rotations(npu_engine *npu, const hvdc_npu_options *options, hvdc_failure *failure) {
    npu->rotations = options->rotations;
    if (npu->rotations != NULL) return true;
    if (!hvdc_rope_rotations(&npu->weights, &npu->grid, &npu->own_rotations, failure)) return false;
    npu->rotations = npu->own_rotations;
    return true;
}

/* An artifact in memory may lack it. */
static bool check_schedule(const hvdc_weights *weights, hvdc_failure *failure) {
    return hvdc_artifact_adaln(weights->artifact, 0, 0) != NULL ||
           hvdc_fail(failure, HVDC_FAILURE_ARTIFACT, "the artifact came without its file of modulation tables");
}

bool hvdc_npu_open(const hvdc_weights *weights, const hvdc_npu_options *options, hvdc_engine **engine,
                   hvdc_failure *failure) {
    *engine = NULL;
    const hvdc_npu_options defaults = {0};
    npu_engine *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no memory for the NPU executor");
    }
    made->face = (hvdc_engine){
        .name = "npu", .set_text = set_text, .run = run, .memory_bytes = memory_bytes, .close = close_npu};
    made->weights = *weights;
    made->geometry = *hvdc_artifact_geometry(weights->artifact);
    options = options == NULL ? &defaults : options;
    made->partner = options->partner;
    if (!hvdc_grid_resolve(weights->artifact, &options->grid, &made->grid, failure) ||
        !check_schedule(weights, failure) || !check_partner(made, failure) || !bind_blocks(made, failure) ||
        !npu_prepare(made, options, failure) || !find_rotations(made, options, failure)) {
        close_npu(&made->face);
        return false;
    }
    *engine = &made->face;
    return true;
}

const char *hvdc_npu_stage_name(enum hvdc_npu_stage stage) {
    static const char *const NAMES[] = {
#define NAME(name, text) text,
        HVDC_NPU_STAGES(NAME)
#undef NAME
    };
    return stage < HVDC_NPU_STAGE_COUNT ? NAMES[stage] : "";
}

void hvdc_npu_seconds(const hvdc_engine *engine, double seconds[HVDC_NPU_STAGE_COUNT]) {
    memcpy(seconds, ((const npu_engine *)engine)->seconds, sizeof(double) * HVDC_NPU_STAGE_COUNT);
}
