/* index.bin, parsed: tables that point into the given bytes. */
#ifndef HVDC_INDEX_H
#define HVDC_INDEX_H

#include "hvdc/artifact.h"

/* Records of one kind. They may be longer than this reader knows: a newer minor version appended fields. */
typedef struct hvdc_table {
    const uint8_t *at;
    uint32_t count;
    uint32_t stride;
} hvdc_table;

typedef struct hvdc_index {
    const hvdc_header *header;
    const hvdc_geometry *geometry;
    const hvdc_calibration *calibration; /* NULL: uncalibrated */
    const hvdc_decoder *decoder;         /* NULL: none */
    hvdc_table files, tensors, steps, inputs, graphs, ports, binaries;
    const char *strings; /* ends with a zero byte */
    uint32_t string_bytes;
    uint32_t *by_name;    /* tensor ids in the order of their names; owns the only allocation */
    uint8_t *is_scale;    /* per tensor: whether an INT8 tensor names it; inside by_name's allocation */
    uint32_t adaln, head; /* tensor ids */
} hvdc_index;

/* Parse and check index.bin as docs/FORMAT.md, "Order of checks", says. `data` is 8-byte aligned and outlives the
 * index. On success hvdc_index_free gives back what the index holds; on failure there is nothing to give back. */
enum hvdc_code hvdc_index_parse(const uint8_t *data, uint64_t bytes, hvdc_index *index, hvdc_error *error);
void hvdc_index_free(hvdc_index *index);

const hvdc_file *hvdc_index_file(const hvdc_index *index, uint32_t file);
const hvdc_tensor *hvdc_index_tensor(const hvdc_index *index, uint32_t tensor);
const hvdc_step *hvdc_index_step(const hvdc_index *index, uint32_t step);

const hvdc_gemm_input *hvdc_index_input(const hvdc_index *index, uint32_t input);
const hvdc_decoder_graph *hvdc_index_graph(const hvdc_index *index, uint32_t graph);
const hvdc_decoder_port *hvdc_index_port(const hvdc_index *index, uint32_t port);
const hvdc_decoder_binary *hvdc_index_binary(const hvdc_index *index, uint32_t binary);

/* Tensor id, GEMM input, graph of the decoder, or HVDC_NONE. */
uint32_t hvdc_index_find(const hvdc_index *index, const char *name);
uint32_t hvdc_index_find_input(const hvdc_index *index, const char *name);
uint32_t hvdc_index_find_graph(const hvdc_index *index, const char *name);

/* SHA-256 of index.bin with the checksum field zero: what that field has to hold. */
void hvdc_index_checksum(const uint8_t *data, uint64_t bytes, uint8_t digest[32]);

/* The checks of the records (index_check.c), once the tables are known. Fills is_scale, by_name, adaln and head. */
enum hvdc_code hvdc_index_check(hvdc_index *index, hvdc_error *error);

/* The last of them (index_calibration.c, index_decoder.c): nothing to check without calibration, without a decoder. */
enum hvdc_code hvdc_index_check_calibration(const hvdc_index *index, hvdc_error *error);
enum hvdc_code hvdc_index_check_decoder(const hvdc_index *index, hvdc_error *error);

/* The string at a reference, and its length, at most HVDC_TEXT_LIMIT + 1; NULL if no string starts there. */
const char *hvdc_index_text_at(const hvdc_index *index, uint32_t reference, size_t *length);

/* Whether a text is a canonical name. */
bool hvdc_index_is_name(const char *text, size_t length);

/* The smallest multiple of `alignment` that is >= value; value + alignment must not overflow. */
static inline uint64_t hvdc_align_up(uint64_t value, uint64_t alignment) {
    return (value + alignment - 1u) / alignment * alignment;
}

#endif
