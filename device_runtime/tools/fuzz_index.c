/* libFuzzer target: whatever the bytes, hvdc_index_parse does not crash, and what it accepts can be used.
 *
 * The size and the checksum in the header are set right first, or no mutation would ever get past them. */
#include <stdlib.h>
#include <string.h>

#include "index.h"

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes);

/* Read everything that the accessors promise to be there. */
static uint64_t use(const hvdc_index *index) {
    uint64_t sum = index->geometry->tokens;
    for (uint32_t i = 0; i < index->files.count; i++) {
        const hvdc_file *file = hvdc_index_file(index, i);
        sum += strlen(index->strings + file->path) + file->bytes;
        sum += hvdc_index_tensor(index, file->first_tensor + file->tensor_count - 1u)->bytes;
    }
    for (uint32_t i = 0; i < index->tensors.count; i++) {
        const hvdc_tensor *tensor = hvdc_index_tensor(index, i);
        if (hvdc_index_find(index, index->strings + tensor->name) != i) abort();
        if (tensor->offset + tensor->bytes > hvdc_index_file(index, tensor->file)->bytes) abort();
    }
    for (uint32_t i = 0; i < index->geometry->steps; i++) sum += hvdc_index_step(index, i)->expert;
    for (uint32_t i = 0; i < index->inputs.count; i++)
        if (hvdc_index_find_input(index, index->strings + hvdc_index_input(index, i)->name) != i) abort();
    if (index->calibration != NULL) sum += hvdc_index_tensor(index, index->calibration->table)->bytes;
    for (uint32_t i = 0; i < index->graphs.count; i++) {
        const hvdc_decoder_graph *graph = hvdc_index_graph(index, i);
        if (hvdc_index_find_graph(index, index->strings + graph->name) != i) abort();
        sum += hvdc_index_tensor(index, graph->model)->bytes;
        if (graph->binary != HVDC_NONE)
            sum += hvdc_index_tensor(index, graph->binary)->bytes + strlen(index->strings + graph->name_in_binary);
        for (uint32_t p = 0; p < graph->inputs + graph->outputs; p++)
            sum += strlen(index->strings + hvdc_index_port(index, graph->first_port + p)->name);
    }
    for (uint32_t i = 0; i < index->binaries.count; i++) {
        const hvdc_decoder_binary *binary = hvdc_index_binary(index, i);
        sum += hvdc_index_tensor(index, binary->binary)->bytes + strlen(index->strings + binary->build_id);
    }
    if (index->decoder != NULL) sum += hvdc_index_tensor(index, index->decoder->encodings)->bytes;
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t bytes) {
    hvdc_index index;
    hvdc_error error;
    uint8_t *data = malloc(bytes > 0 ? bytes : 1u);
    if (data == NULL) return 0;
    if (bytes > 0) memcpy(data, input, bytes);
    if (bytes >= sizeof(hvdc_header)) {
        hvdc_header *header = (void *)data;
        header->total_bytes = bytes;
        hvdc_index_checksum(data, bytes, header->index_sha256);
    }
    if (hvdc_index_parse(data, bytes, &index, &error) == HVDC_E_OK) {
        volatile uint64_t used = use(&index);
        (void)used;
        hvdc_index_free(&index);
    }
    free(data);
    return 0;
}
