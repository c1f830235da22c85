/* index.bin: header, section table, tables. The checks are those of hvdc/artifact/index_read.py, in the same order. */
#include "index.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "sha256.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "records are read in place: a big-endian machine needs another reader"
#endif

#define REFUSE(code, ...) return hvdc_refuse(error, HVDC_E_##code, HVDC_INDEX_NAME, __VA_ARGS__)

/* What a section table entry says, for the kinds that this reader knows. */
typedef struct sections {
    hvdc_section of[HVDC_SECTION_KINDS + 1];
    bool present[HVDC_SECTION_KINDS + 1];
} sections;

void hvdc_index_checksum(const uint8_t *data, uint64_t bytes, uint8_t digest[32]) {
    static const uint8_t blank[HVDC_SHA256_BYTES];
    const size_t field = offsetof(hvdc_header, index_sha256), after = field + HVDC_SHA256_BYTES;
    hvdc_sha256 sha;
    hvdc_sha256_init(&sha);
    hvdc_sha256_update(&sha, data, field);
    hvdc_sha256_update(&sha, blank, sizeof blank);
    hvdc_sha256_update(&sha, data + after, (size_t)bytes - after);
    hvdc_sha256_final(&sha, digest);
}

static enum hvdc_code parse_header(const uint8_t *data, uint64_t bytes, hvdc_index *index, hvdc_error *error) {
    static const uint8_t magic[] = HVDC_INDEX_MAGIC;
    uint8_t digest[HVDC_SHA256_BYTES];
    if (bytes < sizeof(hvdc_header))
        REFUSE(INDEX_TOO_SHORT, "header: expected >= %zu bytes, found %" PRIu64, sizeof(hvdc_header), bytes);
    if ((uintptr_t)data % 8u != 0) REFUSE(IO, "index.bin is not in memory at a multiple of 8 bytes");
    const hvdc_header *header = (const void *)data;
    if (memcmp(header->magic, magic, sizeof magic) != 0) REFUSE(INDEX_MAGIC, "offset 0: not the magic bytes");
    if (header->major != HVDC_INDEX_MAJOR)
        REFUSE(INDEX_MAJOR, "header.major: expected %u, found %u", HVDC_INDEX_MAJOR, (unsigned)header->major);
    if (header->total_bytes != bytes || bytes > HVDC_MAX_INDEX_BYTES)
        REFUSE(INDEX_SIZE, "header.total_bytes: expected %" PRIu64 ", found %" PRIu64, header->total_bytes, bytes);
    hvdc_index_checksum(data, bytes, digest);
    if (memcmp(digest, header->index_sha256, sizeof digest) != 0)
        REFUSE(INDEX_CHECKSUM, "header.index_sha256 is not the SHA-256 of the file");
    uint64_t unknown = header->required_features & ~(uint64_t)HVDC_KNOWN_FEATURES;
    if (unknown != 0) REFUSE(INDEX_FEATURE, "header.required_features: unknown bits 0x%" PRIx64, unknown);
    index->header = header;
    return HVDC_E_OK;
}

static bool is_calibrated(const hvdc_header *header) {
    return (header->required_features & HVDC_FEATURE_CALIBRATION) != 0;
}

static bool has_decoder(const hvdc_header *header) { return (header->required_features & HVDC_FEATURE_DECODER) != 0; }

/* Sections that came with a feature are there exactly if its bit is set, those of a later version from it on; all others
 * are always there. */
static bool is_due(const hvdc_header *header, uint32_t kind) {
    switch (kind) {
        case HVDC_SECTION_CALIBRATION:
        case HVDC_SECTION_GEMM_INPUTS: return is_calibrated(header);
        case HVDC_SECTION_DECODER:
        case HVDC_SECTION_DECODER_GRAPHS:
        case HVDC_SECTION_DECODER_PORTS: return has_decoder(header);
        case HVDC_SECTION_DECODER_BINARIES: return has_decoder(header) && header->minor >= HVDC_BINARIES_MINOR;
        default: return true;
    }
}

static enum hvdc_code parse_sections(const uint8_t *data, uint64_t bytes, sections *found, hvdc_error *error) {
    const hvdc_header *header = (const void *)data;
    uint32_t count = header->section_count, stride = header->section_record_bytes;
    /* No sum or product of these 32-bit numbers overflows 64 bits: (2^32 - 1)^2 + 2^32 - 1 < 2^64. */
    uint64_t end = header->header_bytes + (uint64_t)stride * count;
    if (count > HVDC_MAX_SECTIONS || header->header_bytes < sizeof(hvdc_header) || header->header_bytes % 8u != 0 ||
        stride < sizeof(hvdc_section) || stride % 8u != 0 || end > bytes)
        REFUSE(INDEX_SECTION, "section table: %" PRIu32 " x %" PRIu32 " at %" PRIu32 " in %" PRIu64 " bytes", count,
               stride, header->header_bytes, bytes);
    const uint8_t *table = data + header->header_bytes;
    for (uint32_t i = 0; i < count; i++) {
        const hvdc_section *s = (const void *)(table + (size_t)i * stride);
        uint64_t used = (uint64_t)s->count * s->record_bytes;
        if (s->offset != end || s->bytes % 8u != 0 || s->bytes > bytes - s->offset ||
            hvdc_align_up(used, 8) != s->bytes)
            REFUSE(INDEX_SECTION,
                   "section %" PRIu32 ": expected at %" PRIu64 ", found %" PRIu64 " bytes at %" PRIu64 ", %" PRIu32
                   " x %" PRIu32,
                   i, end, s->bytes, s->offset, s->count, s->record_bytes);
        end = s->offset + s->bytes;
        for (uint32_t j = 0; j < i; j++)
            if (((const hvdc_section *)(const void *)(table + (size_t)j * stride))->kind == s->kind)
                REFUSE(INDEX_SECTION, "section %" PRIu32 ": kind %" PRIu32 " again", i, s->kind);
        for (uint64_t at = s->offset + used; at < end; at++)
            if (data[at] != 0) REFUSE(INDEX_SECTION, "section %" PRIu32 ": padding is not zero", i);
        if (HVDC_SECTION_KNOWN(s->kind)) {
            found->of[s->kind] = *s;
            found->present[s->kind] = true;
        } else if ((s->flags & HVDC_SECTION_REQUIRED) != 0) {
            REFUSE(INDEX_FEATURE, "section %" PRIu32 ": required and of unknown kind %" PRIu32, i, s->kind);
        }
    }
    if (end != bytes)
        REFUSE(INDEX_SECTION, "end of the last section: expected %" PRIu64 ", found %" PRIu64, bytes, end);
    for (uint32_t kind = 1; kind <= HVDC_SECTION_KINDS; kind++) {
        bool due = is_due(header, kind);
        if (found->present[kind] != due)
            REFUSE(INDEX_SECTION, "the section of kind %" PRIu32 " is %s", kind, due ? "missing" : "not expected");
    }
    return HVDC_E_OK;
}

static enum hvdc_code parse_strings(const uint8_t *data, const hvdc_section *s, hvdc_index *index, hvdc_error *error) {
    uint64_t used = (uint64_t)s->count * s->record_bytes;
    if (used == 0 || used != s->count || data[s->offset + used - 1u] != 0)
        REFUSE(INDEX_STRING, "string section: expected bytes with a zero byte at their end");
    index->strings = (const char *)(data + s->offset);
    index->string_bytes = s->count;
    return HVDC_E_OK;
}

static enum hvdc_code parse_table(const uint8_t *data, const hvdc_section *s, size_t record_bytes, hvdc_table *table,
                                  hvdc_error *error) {
    if (s->record_bytes < record_bytes || s->record_bytes % 8u != 0)
        REFUSE(INDEX_SECTION, "section of kind %" PRIu32 ": expected records of >= %zu bytes, found %" PRIu32, s->kind,
               record_bytes, s->record_bytes);
    *table = (hvdc_table){.at = data + s->offset, .count = s->count, .stride = s->record_bytes};
    return HVDC_E_OK;
}

enum hvdc_code hvdc_index_parse(const uint8_t *data, uint64_t bytes, hvdc_index *index, hvdc_error *error) {
    sections found;
    hvdc_table geometry = {0}, calibration = {0}, decoder = {0};
    memset(&found, 0, sizeof found);
    memset(index, 0, sizeof *index);
    enum hvdc_code code = parse_header(data, bytes, index, error);
    if (code == HVDC_E_OK) code = parse_sections(data, bytes, &found, error);
    if (code == HVDC_E_OK) code = parse_strings(data, &found.of[HVDC_SECTION_STRINGS], index, error);
    struct {
        enum hvdc_section_kind kind;
        size_t record_bytes;
        hvdc_table *table;
    } const tables[] = {
        {HVDC_SECTION_GEOMETRY, sizeof(hvdc_geometry), &geometry},
        {HVDC_SECTION_FILES, sizeof(hvdc_file), &index->files},
        {HVDC_SECTION_TENSORS, sizeof(hvdc_tensor), &index->tensors},
        {HVDC_SECTION_STEPS, sizeof(hvdc_step), &index->steps},
        {HVDC_SECTION_CALIBRATION, sizeof(hvdc_calibration), &calibration},
        {HVDC_SECTION_GEMM_INPUTS, sizeof(hvdc_gemm_input), &index->inputs},
        {HVDC_SECTION_DECODER, sizeof(hvdc_decoder), &decoder},
        {HVDC_SECTION_DECODER_GRAPHS, sizeof(hvdc_decoder_graph), &index->graphs},
        {HVDC_SECTION_DECODER_PORTS, sizeof(hvdc_decoder_port), &index->ports},
        {HVDC_SECTION_DECODER_BINARIES, sizeof(hvdc_decoder_binary), &index->binaries},
    };
    for (size_t i = 0; code == HVDC_E_OK && i < sizeof tables / sizeof tables[0]; i++)
        if (found.present[tables[i].kind])
            code = parse_table(data, &found.of[tables[i].kind], tables[i].record_bytes, tables[i].table, error);
    if (code == HVDC_E_OK && geometry.count != 1)
        code = hvdc_refuse(error, HVDC_E_INDEX_GEOMETRY, HVDC_INDEX_NAME, "expected 1 geometry, found %" PRIu32,
                           geometry.count);
    if (code == HVDC_E_OK && is_calibrated(index->header) && calibration.count != 1)
        code = hvdc_refuse(error, HVDC_E_INDEX_CALIBRATION, HVDC_INDEX_NAME, "expected 1 calibration, found %" PRIu32,
                           calibration.count);
    if (code == HVDC_E_OK && has_decoder(index->header) && decoder.count != 1)
        code = hvdc_refuse(error, HVDC_E_INDEX_DECODER, HVDC_INDEX_NAME, "expected 1 decoder, found %" PRIu32,
                           decoder.count);
    if (code == HVDC_E_OK) {
        index->geometry = (const void *)geometry.at;
        index->calibration = (const void *)calibration.at;
        index->decoder = (const void *)decoder.at;
        index->by_name = calloc((size_t)index->tensors.count + 1u, sizeof(uint32_t) + 1u);
        if (index->by_name == NULL)
            return hvdc_refuse(error, HVDC_E_IO, HVDC_INDEX_NAME, "no memory for %" PRIu32 " names",
                               index->tensors.count);
        index->is_scale = (uint8_t *)(index->by_name + index->tensors.count + 1u);
        code = hvdc_index_check(index, error);
    }
    if (code != HVDC_E_OK) hvdc_index_free(index);
    return code;
}

void hvdc_index_free(hvdc_index *index) {
    free(index->by_name);
    memset(index, 0, sizeof *index);
}

static const void *record(const hvdc_table *table, uint32_t i) {
    return i < table->count ? table->at + (size_t)i * table->stride : NULL;
}

const hvdc_file *hvdc_index_file(const hvdc_index *index, uint32_t file) { return record(&index->files, file); }

const hvdc_tensor *hvdc_index_tensor(const hvdc_index *index, uint32_t tensor) {
    return record(&index->tensors, tensor);
}

const hvdc_step *hvdc_index_step(const hvdc_index *index, uint32_t step) { return record(&index->steps, step); }

const hvdc_gemm_input *hvdc_index_input(const hvdc_index *index, uint32_t input) {
    return record(&index->inputs, input);
}

const hvdc_decoder_graph *hvdc_index_graph(const hvdc_index *index, uint32_t graph) {
    return record(&index->graphs, graph);
}

const hvdc_decoder_port *hvdc_index_port(const hvdc_index *index, uint32_t port) { return record(&index->ports, port); }

const hvdc_decoder_binary *hvdc_index_binary(const hvdc_index *index, uint32_t binary) {
    return record(&index->binaries, binary);
}

uint32_t hvdc_index_find_graph(const hvdc_index *index, const char *name) {
    for (uint32_t i = 0; i < index->graphs.count; i++)
        if (strcmp(index->strings + hvdc_index_graph(index, i)->name, name) == 0) return i;
    return HVDC_NONE;
}

uint32_t hvdc_index_find_input(const hvdc_index *index, const char *name) {
    for (uint32_t i = 0; i < index->inputs.count; i++)
        if (strcmp(index->strings + hvdc_index_input(index, i)->name, name) == 0) return i;
    return HVDC_NONE;
}

uint32_t hvdc_index_find(const hvdc_index *index, const char *name) {
    uint32_t low = 0, high = index->tensors.count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2u, id = index->by_name[middle];
        int order = strcmp(index->strings + hvdc_index_tensor(index, id)->name, name);
        if (order == 0) return id;
        if (order < 0)
            low = middle + 1u;
        else
            high = middle;
    }
    return HVDC_NONE;
}
