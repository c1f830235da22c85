/* What a runtime asks an open artifact. The index was checked, so nothing here can be out of range. */
#include <stdio.h>

#include "artifact_internal.h"

void hvdc_artifact_close(hvdc_artifact *artifact) {
    if (artifact != NULL) artifact->release(artifact);
}

const hvdc_header *hvdc_artifact_header(const hvdc_artifact *artifact) { return artifact->index.header; }

const hvdc_geometry *hvdc_artifact_geometry(const hvdc_artifact *artifact) { return artifact->index.geometry; }

uint32_t hvdc_artifact_file_count(const hvdc_artifact *artifact) { return artifact->index.files.count; }

uint32_t hvdc_artifact_tensor_count(const hvdc_artifact *artifact) { return artifact->index.tensors.count; }

uint32_t hvdc_artifact_step_count(const hvdc_artifact *artifact) { return artifact->index.steps.count; }

const hvdc_file *hvdc_artifact_file(const hvdc_artifact *artifact, uint32_t file) {
    return hvdc_index_file(&artifact->index, file);
}

const hvdc_tensor *hvdc_artifact_tensor(const hvdc_artifact *artifact, uint32_t tensor) {
    return hvdc_index_tensor(&artifact->index, tensor);
}

const hvdc_step *hvdc_artifact_step(const hvdc_artifact *artifact, uint32_t step) {
    return hvdc_index_step(&artifact->index, step);
}

const char *hvdc_artifact_text(const hvdc_artifact *artifact, uint32_t reference) {
    return reference < artifact->index.string_bytes ? artifact->index.strings + reference : NULL;
}

uint32_t hvdc_artifact_find(const hvdc_artifact *artifact, const char *name) {
    return hvdc_index_find(&artifact->index, name);
}

uint32_t hvdc_artifact_find_in_block(const hvdc_artifact *artifact, uint32_t block, const char *linear,
                                     const char *suffix) {
    char name[HVDC_TEXT_LIMIT + 1u];
    int length = snprintf(name, sizeof name, "blocks.%u.%s.%s", (unsigned)block, linear, suffix);
    if (length < 0 || (size_t)length >= sizeof name) return HVDC_NONE; /* longer than any name */
    return hvdc_index_find(&artifact->index, name);
}

/* Of an artifact in memory, not every file may have been given. */
static bool is_there(const hvdc_artifact *artifact, uint32_t file) {
    return artifact->files[file].data != NULL || hvdc_index_file(&artifact->index, file)->bytes == 0;
}

/* [offset, offset + bytes) of a file, which the index's checks have shown to be inside of it. */
static bool span_of(const hvdc_artifact *artifact, uint32_t file, uint64_t offset, uint64_t bytes, hvdc_span *span) {
    const hvdc_mapped *mapped = &artifact->files[file];
    if (!is_there(artifact, file)) return false;
    *span = (hvdc_span){
        .data = mapped->data + offset,
        .bytes = bytes,
        .offset = offset,
        .fd = mapped->fd,
        .path = artifact->index.strings + hvdc_index_file(&artifact->index, file)->path,
    };
    return true;
}

bool hvdc_artifact_file_span(const hvdc_artifact *artifact, uint32_t file, hvdc_span *span) {
    const hvdc_file *record = hvdc_index_file(&artifact->index, file);
    return record != NULL && span_of(artifact, file, 0, record->bytes, span);
}

bool hvdc_artifact_tensor_span(const hvdc_artifact *artifact, uint32_t tensor, hvdc_span *span) {
    const hvdc_tensor *t = hvdc_index_tensor(&artifact->index, tensor);
    return t != NULL && span_of(artifact, t->file, t->offset, t->bytes, span);
}

/* The file of a kind that holds a block, or HVDC_NONE. There are few files: a search is cheaper than a table. */
static uint32_t file_of_block(const hvdc_artifact *artifact, uint32_t kind, uint32_t block) {
    for (uint32_t i = 0; i < artifact->index.files.count; i++) {
        const hvdc_file *file = hvdc_index_file(&artifact->index, i);
        if (file->kind == kind && block >= file->first_block && block - file->first_block < file->block_count) return i;
    }
    return HVDC_NONE;
}

bool hvdc_artifact_region(const hvdc_artifact *artifact, uint32_t block, hvdc_span *span) {
    return hvdc_artifact_file_span(artifact, file_of_block(artifact, HVDC_FILE_KIND_REGION, block), span);
}

bool hvdc_artifact_adapter(const hvdc_artifact *artifact, uint32_t block, hvdc_span *span) {
    return hvdc_artifact_file_span(artifact, file_of_block(artifact, HVDC_FILE_KIND_ADAPTER, block), span);
}

bool hvdc_artifact_ffn_pair(const hvdc_artifact *artifact, uint32_t block, hvdc_span *span) {
    uint32_t file = file_of_block(artifact, HVDC_FILE_KIND_REGION, block);
    if (file == HVDC_NONE) return false;
    uint32_t first = hvdc_index_file(&artifact->index, file)->first_tensor;
    while (hvdc_index_tensor(&artifact->index, first)->kind != HVDC_TENSOR_KIND_FFN_BASE) first++;
    const hvdc_tensor *a = hvdc_index_tensor(&artifact->index, first);
    const hvdc_tensor *b = hvdc_index_tensor(&artifact->index, first + 1u); /* every region has exactly these two */
    return span_of(artifact, file, a->offset, b->offset + b->bytes - a->offset, span);
}

/* Row `row` of a checked FP32 table, `floats` long, or NULL where its file was not given. Tensors lie at multiples of 128 bytes, so floats are aligned. */
static const float *table_row(const hvdc_artifact *artifact, uint32_t tensor, uint64_t row, uint64_t floats) {
    const hvdc_tensor *t = hvdc_index_tensor(&artifact->index, tensor);
    if (!is_there(artifact, t->file)) return NULL;
    return (const float *)(const void *)(artifact->files[t->file].data + t->offset) + row * floats;
}

const float *hvdc_artifact_adaln(const hvdc_artifact *artifact, uint32_t step, uint32_t block) {
    const hvdc_geometry *g = artifact->index.geometry;
    if (step >= g->steps || block >= g->layers) return NULL;
    return table_row(artifact, artifact->index.adaln, (uint64_t)step * g->layers + block, 6u * (uint64_t)g->width);
}

const float *hvdc_artifact_head(const hvdc_artifact *artifact, uint32_t step) {
    const hvdc_geometry *g = artifact->index.geometry;
    if (step >= g->steps) return NULL;
    return table_row(artifact, artifact->index.head, step, 2u * (uint64_t)g->width);
}

const hvdc_calibration *hvdc_artifact_calibration(const hvdc_artifact *artifact) { return artifact->index.calibration; }

uint32_t hvdc_artifact_gemm_input_count(const hvdc_artifact *artifact) { return artifact->index.inputs.count; }

const hvdc_gemm_input *hvdc_artifact_gemm_input(const hvdc_artifact *artifact, uint32_t input) {
    return hvdc_index_input(&artifact->index, input);
}

uint32_t hvdc_artifact_find_gemm_input(const hvdc_artifact *artifact, const char *name) {
    return hvdc_index_find_input(&artifact->index, name);
}

const float *hvdc_artifact_activation_scales(const hvdc_artifact *artifact, uint32_t step, uint32_t block) {
    const hvdc_geometry *g = artifact->index.geometry;
    const hvdc_calibration *c = artifact->index.calibration;
    if (c == NULL || step >= g->steps || block >= g->layers) return NULL;
    return table_row(artifact, c->table, (uint64_t)step * g->layers + block, c->inputs);
}

float hvdc_artifact_activation_scale(const hvdc_artifact *artifact, uint32_t step, uint32_t block, uint32_t input) {
    const float *scales = hvdc_artifact_activation_scales(artifact, step, block);
    return scales != NULL && input < artifact->index.inputs.count ? scales[input] : 0.0f;
}

const hvdc_decoder *hvdc_artifact_decoder(const hvdc_artifact *artifact) { return artifact->index.decoder; }

const hvdc_decoder_graph *hvdc_artifact_decoder_graph(const hvdc_artifact *artifact, uint32_t graph) {
    return hvdc_index_graph(&artifact->index, graph);
}

const hvdc_decoder_port *hvdc_artifact_decoder_port(const hvdc_artifact *artifact, uint32_t port) {
    return hvdc_index_port(&artifact->index, port);
}

const hvdc_decoder_binary *hvdc_artifact_decoder_binary(const hvdc_artifact *artifact, uint32_t binary) {
    return hvdc_index_binary(&artifact->index, binary);
}

uint32_t hvdc_artifact_find_decoder_graph(const hvdc_artifact *artifact, const char *name) {
    return hvdc_index_find_graph(&artifact->index, name);
}
