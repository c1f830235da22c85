/* hvdc_dump [--deep] DIRECTORY: everything that the reader sees in an artifact, as JSON; the same artifact gives the
 * same text.
 *
 * Floating-point numbers are printed as their bits, "0x3f800000", so that nothing is rounded. With --deep the data
 * files are validated first and every tensor gets the SHA-256 of its stored bytes. Exit status: 0; 4 for an artifact
 * that is refused, with {"code": 21, "name": "INDEX_MAGIC", ...}; 2 for other arguments. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "hvdc/artifact.h"
#include "hvdc/json.h"
#include "sha256.h"

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef float f32;
typedef double f64;

enum scalar { SCALAR_u8, SCALAR_u16, SCALAR_u32, SCALAR_u64, SCALAR_f32, SCALAR_f64 };

static void print_text(const char *text) {
    if (text == NULL) {
        (void)fputs("null", stdout);
        return;
    }
    hvdc_json_text(stdout, text); /* of an index: printable ASCII */
}

static void print_hex(const uint8_t *data, size_t bytes) {
    (void)putchar('"');
    for (size_t i = 0; i < bytes; i++) (void)printf("%02x", (unsigned)data[i]);
    (void)putchar('"');
}

static void print_scalar(enum scalar type, const uint8_t *at) {
    uint16_t v16;
    uint32_t v32;
    uint64_t v64;
    switch (type) {
        case SCALAR_u8: (void)printf("%u", (unsigned)*at); break;
        case SCALAR_u16:
            memcpy(&v16, at, sizeof v16);
            (void)printf("%u", (unsigned)v16);
            break;
        case SCALAR_u32:
            memcpy(&v32, at, sizeof v32);
            (void)printf("%" PRIu32, v32);
            break;
        case SCALAR_u64:
            memcpy(&v64, at, sizeof v64);
            (void)printf("%" PRIu64, v64);
            break;
        case SCALAR_f32:
            memcpy(&v32, at, sizeof v32);
            (void)printf("\"0x%08" PRIx32 "\"", v32);
            break;
        case SCALAR_f64:
            memcpy(&v64, at, sizeof v64);
            (void)printf("\"0x%016" PRIx64 "\"", v64);
            break;
    }
}

/* `"name": value, `: a number, a list, or for bytes a string of hexadecimal digits. */
static void print_field(const char *name, enum scalar type, size_t scalar_bytes, size_t count, const void *at) {
    (void)printf("\"%s\": ", name);
    if (type == SCALAR_u8) {
        print_hex(at, count);
    } else if (count == 1) {
        print_scalar(type, at);
    } else {
        for (size_t i = 0; i < count; i++) {
            (void)fputs(i == 0 ? "[" : ", ", stdout);
            print_scalar(type, (const uint8_t *)at + i * scalar_bytes);
        }
        (void)putchar(']');
    }
    (void)fputs(", ", stdout);
}

#define FIELD(type, field, count) print_field(#field, SCALAR_##type, sizeof(type), count, &record->field);

static void print_span(const hvdc_span *span) {
    (void)fputs("{\"path\": ", stdout);
    print_text(span->path);
    (void)printf(", \"offset\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"first\": ", span->offset, span->bytes);
    print_hex(span->data, span->bytes < 16u ? (size_t)span->bytes : 16u);
    (void)putchar('}');
}

static void print_file(const hvdc_artifact *artifact, uint32_t i) {
    const hvdc_file *record = hvdc_artifact_file(artifact, i);
    (void)putchar('{');
    HVDC_FILE_FIELDS(FIELD)
    (void)fputs("\"path_text\": ", stdout);
    print_text(hvdc_artifact_text(artifact, record->path));
    (void)putchar('}');
}

static void print_tensor(const hvdc_artifact *artifact, uint32_t i, bool deep) {
    const hvdc_tensor *record = hvdc_artifact_tensor(artifact, i);
    const char *name = hvdc_artifact_text(artifact, record->name);
    const char *linear = hvdc_artifact_text(artifact, record->linear);
    uint32_t in_block = HVDC_NONE;
    hvdc_span span;
    (void)hvdc_artifact_tensor_span(artifact, i, &span);
    if (linear != NULL) { /* the name starts with "blocks.<block>.<linear>." */
        const char *suffix = strchr(name + strlen("blocks."), '.') + 1 + strlen(linear) + 1;
        in_block = hvdc_artifact_find_in_block(artifact, record->block, linear, suffix);
    }
    (void)putchar('{');
    HVDC_TENSOR_FIELDS(FIELD)
    (void)fputs("\"name_text\": ", stdout);
    print_text(name);
    (void)fputs(", \"linear_text\": ", stdout);
    print_text(linear);
    (void)printf(", \"found\": %" PRIu32 ", \"found_in_block\": %" PRIu32 ", \"span\": ",
                 hvdc_artifact_find(artifact, name), in_block);
    print_span(&span);
    if (deep) {
        uint8_t digest[HVDC_SHA256_BYTES];
        hvdc_sha256 sha;
        hvdc_sha256_init(&sha);
        hvdc_sha256_update(&sha, span.data, (size_t)span.bytes);
        hvdc_sha256_final(&sha, digest);
        (void)fputs(", \"sha256\": ", stdout);
        print_hex(digest, sizeof digest);
    }
    (void)putchar('}');
}

/* The first two and the last value of a row, as bits. */
static void print_row(const float *row, size_t floats) {
    const size_t at[] = {0, 1, floats - 1u};
    for (size_t i = 0; i < 3; i++) {
        (void)fputs(i == 0 ? "[" : ", ", stdout);
        print_scalar(SCALAR_f32, (const uint8_t *)(row + at[i]));
    }
    (void)putchar(']');
}

static const char *separator(uint32_t i) { return i == 0 ? "\n    " : ",\n    "; }

static void print_blocks(const hvdc_artifact *artifact, const char *name,
                         bool (*span_of)(const hvdc_artifact *, uint32_t, hvdc_span *)) {
    (void)printf("  \"%s\": [", name);
    for (uint32_t block = 0; block < hvdc_artifact_geometry(artifact)->layers; block++) {
        hvdc_span span;
        (void)fputs(separator(block), stdout);
        if (span_of(artifact, block, &span))
            print_span(&span);
        else
            (void)fputs("null", stdout);
    }
    (void)fputs("\n  ],\n", stdout);
}

static void print_steps(const hvdc_artifact *artifact) {
    const hvdc_geometry *geometry = hvdc_artifact_geometry(artifact);
    (void)fputs("  \"steps\": [", stdout);
    for (uint32_t i = 0; i < hvdc_artifact_step_count(artifact); i++) {
        const hvdc_step *record = hvdc_artifact_step(artifact, i);
        (void)printf("%s{", separator(i));
        HVDC_STEP_FIELDS(FIELD)
        (void)fputs("\"head\": ", stdout);
        print_row(hvdc_artifact_head(artifact, i), 2u * (size_t)geometry->width);
        (void)fputs(", \"adaln\": [", stdout);
        for (uint32_t block = 0; block < geometry->layers; block++) {
            (void)fputs(block == 0 ? "" : ", ", stdout);
            print_row(hvdc_artifact_adaln(artifact, i, block), 6u * (size_t)geometry->width);
        }
        (void)fputs("]}", stdout);
    }
    (void)fputs("\n  ]\n", stdout);
}

static void print_scales(const hvdc_artifact *artifact, uint32_t step, uint32_t block) {
    const float *scales = hvdc_artifact_activation_scales(artifact, step, block);
    for (uint32_t i = 0; i < hvdc_artifact_gemm_input_count(artifact); i++) {
        (void)fputs(i == 0 ? "[" : ", ", stdout);
        print_scalar(SCALAR_f32, (const uint8_t *)(scales + i));
    }
    (void)putchar(']');
}

/* The record, its inputs, and for each step and block the scales of all inputs. */
static void print_calibration(const hvdc_artifact *artifact) {
    const hvdc_geometry *geometry = hvdc_artifact_geometry(artifact);
    const hvdc_calibration *calibration = hvdc_artifact_calibration(artifact);
    (void)fputs("  \"calibration\": ", stdout);
    if (calibration == NULL) {
        (void)fputs("null,\n", stdout);
        return;
    }
    (void)putchar('{');
    {
        const hvdc_calibration *record = calibration;
        HVDC_CALIBRATION_FIELDS(FIELD)
    }
    (void)fputs("\"gemm_inputs\": [", stdout);
    for (uint32_t i = 0; i < hvdc_artifact_gemm_input_count(artifact); i++) {
        const hvdc_gemm_input *record = hvdc_artifact_gemm_input(artifact, i);
        const char *name = hvdc_artifact_text(artifact, record->name);
        (void)printf("%s{", separator(i));
        HVDC_GEMM_INPUT_FIELDS(FIELD)
        (void)fputs("\"name_text\": ", stdout);
        print_text(name);
        (void)printf(", \"found\": %" PRIu32 "}", hvdc_artifact_find_gemm_input(artifact, name));
    }
    (void)fputs("],\n  \"scales\": [", stdout);
    for (uint32_t step = 0; step < geometry->steps; step++)
        for (uint32_t block = 0; block < geometry->layers; block++) {
            (void)fputs(separator(step + block), stdout);
            print_scales(artifact, step, block);
        }
    (void)fputs("]},\n", stdout);
}

static void print_graph(const hvdc_artifact *artifact, uint32_t i) {
    const hvdc_decoder_graph *record = hvdc_artifact_decoder_graph(artifact, i);
    const char *name = hvdc_artifact_text(artifact, record->name);
    (void)putchar('{');
    HVDC_DECODER_GRAPH_FIELDS(FIELD)
    (void)fputs("\"name_text\": ", stdout);
    print_text(name);
    (void)fputs(", \"name_in_binary_text\": ", stdout);
    print_text(hvdc_artifact_text(artifact, record->name_in_binary));
    (void)printf(", \"found\": %" PRIu32 "}", hvdc_artifact_find_decoder_graph(artifact, name));
}

static void print_port(const hvdc_artifact *artifact, uint32_t i) {
    const hvdc_decoder_port *record = hvdc_artifact_decoder_port(artifact, i);
    (void)putchar('{');
    HVDC_DECODER_PORT_FIELDS(FIELD)
    (void)fputs("\"name_text\": ", stdout);
    print_text(hvdc_artifact_text(artifact, record->name));
    (void)putchar('}');
}

static void print_binary(const hvdc_artifact *artifact, const hvdc_decoder_binary *record) {
    (void)putchar('{');
    HVDC_DECODER_BINARY_FIELDS(FIELD)
    (void)fputs("\"build_id_text\": ", stdout);
    print_text(hvdc_artifact_text(artifact, record->build_id));
    (void)putchar('}');
}

/* The record, its graphs, ports and binaries. */
static void print_decoder(const hvdc_artifact *artifact) {
    const hvdc_decoder *record = hvdc_artifact_decoder(artifact);
    (void)fputs("  \"decoder\": ", stdout);
    if (record == NULL) {
        (void)fputs("null,\n", stdout);
        return;
    }
    (void)putchar('{');
    HVDC_DECODER_FIELDS(FIELD)
    (void)fputs("\"graph_records\": [", stdout);
    for (uint32_t i = 0; i < record->graphs; i++) {
        (void)fputs(separator(i), stdout);
        print_graph(artifact, i);
    }
    (void)fputs("],\n  \"port_records\": [", stdout);
    for (uint32_t i = 0; i < record->ports; i++) {
        (void)fputs(separator(i), stdout);
        print_port(artifact, i);
    }
    (void)fputs("],\n  \"binary_records\": [", stdout);
    for (uint32_t i = 0; hvdc_artifact_decoder_binary(artifact, i) != NULL; i++) {
        (void)fputs(separator(i), stdout);
        print_binary(artifact, hvdc_artifact_decoder_binary(artifact, i));
    }
    (void)fputs("]},\n", stdout);
}

static void print_artifact(const hvdc_artifact *artifact, bool deep) {
    (void)fputs("{\n  \"header\": {", stdout);
    {
        const hvdc_header *record = hvdc_artifact_header(artifact);
        HVDC_HEADER_FIELDS(FIELD)
    }
    (void)printf("\"files\": %" PRIu32 ", \"tensors\": %" PRIu32 "},\n  \"geometry\": {",
                 hvdc_artifact_file_count(artifact), hvdc_artifact_tensor_count(artifact));
    {
        const hvdc_geometry *record = hvdc_artifact_geometry(artifact);
        HVDC_GEOMETRY_FIELDS(FIELD)
    }
    (void)fputs("\"records\": 1},\n  \"files\": [", stdout);
    for (uint32_t i = 0; i < hvdc_artifact_file_count(artifact); i++) {
        (void)fputs(separator(i), stdout);
        print_file(artifact, i);
    }
    (void)fputs("\n  ],\n  \"tensors\": [", stdout);
    for (uint32_t i = 0; i < hvdc_artifact_tensor_count(artifact); i++) {
        (void)fputs(separator(i), stdout);
        print_tensor(artifact, i, deep);
    }
    (void)fputs("\n  ],\n", stdout);
    print_blocks(artifact, "regions", hvdc_artifact_region);
    print_blocks(artifact, "ffn_pairs", hvdc_artifact_ffn_pair);
    print_blocks(artifact, "adapters", hvdc_artifact_adapter);
    print_calibration(artifact);
    print_decoder(artifact);
    print_steps(artifact);
    (void)fputs("}\n", stdout);
}

static int refuse(const hvdc_error *error) {
    (void)printf("{\"code\": %d, \"name\": \"%s\", \"meaning\": ", (int)error->code, hvdc_code_name(error->code));
    print_text(hvdc_code_meaning(error->code));
    (void)fputs(", \"file\": ", stdout);
    print_text(error->file);
    (void)fputs(", \"message\": ", stdout);
    print_text(error->message);
    (void)fputs("}\n", stdout);
    return 4;
}

static const char HELP[] =
    "usage: hvdc_dump [--deep] DIRECTORY\n"
    "\n"
    "Prints everything that the reader sees in an artifact as JSON, floating-point numbers as their bits.\n"
    "\n"
    "  --deep  validate the data files first, and print the SHA-256 of each tensor's bytes\n"
    "\n"
    "Exit statuses: 0; 2 usage; 4 an artifact that is refused: the JSON then says why.\n";

int main(int argc, char **argv) {
    bool deep = argc == 3 && strcmp(argv[1], "--deep") == 0;
    hvdc_artifact *artifact;
    hvdc_error error;
    if (argc == 2 && strcmp(argv[1], "--help") == 0) return fputs(HELP, stdout) < 0 ? 1 : 0;
    if (argc != (deep ? 3 : 2)) {
        (void)fputs("usage: hvdc_dump [--deep] DIRECTORY\n", stderr);
        return 2;
    }
    if (hvdc_artifact_open(argv[argc - 1], &artifact, &error) != HVDC_E_OK) return refuse(&error);
    int status = 0;
    if (deep && hvdc_artifact_validate_deep(artifact, &error) != HVDC_E_OK)
        status = refuse(&error);
    else
        print_artifact(artifact, deep);
    hvdc_artifact_close(artifact);
    return status;
}
