/* accessors GOOD BAD EXTRA PLAIN DAMAGED: what the public header promises about questions that have no answer, and
 * about failed openings. PLAIN has neither calibration nor decoder; of DAMAGED the last graph's binary is another. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hvdc/artifact.h"

#define CHECK(what) \
    do { \
        if (!(what)) { \
            (void)fprintf(stderr, "line %d: %s\n", __LINE__, #what); \
            exit(1); \
        } \
    } while (0)

static int next_descriptor(void) {
    int fd = dup(0);
    (void)close(fd);
    return fd;
}

int main(int argc, char **argv) {
    hvdc_artifact *a, *b;
    hvdc_error error;
    hvdc_span region, pair, span;
    char name[HVDC_TEXT_LIMIT + 100];
    CHECK(argc == 6);

    /* A failed opening tells why, sets NULL, and gives every descriptor and byte back (LeakSanitizer watches). */
    int before = next_descriptor();
    for (int i = 0; i < 100; i++) {
        a = (hvdc_artifact *)(void *)&error;
        CHECK(hvdc_artifact_open(argv[2], &a, &error) == HVDC_E_FILE_SIZE);
        CHECK(a == NULL && error.code == HVDC_E_FILE_SIZE && error.message[0] != 0);
        CHECK(strncmp(error.file, "regions/", 8) == 0);
        CHECK(hvdc_artifact_open(argv[2], &a, NULL) == HVDC_E_FILE_SIZE);
        CHECK(hvdc_artifact_open(argv[3], &a, &error) == HVDC_E_EXTRA_FILE && a == NULL);
        CHECK(strcmp(error.file, "regions/extra") == 0);
    }
    CHECK(next_descriptor() == before);
    hvdc_artifact_close(NULL);

    /* Two openings of one artifact do not know of each other. */
    CHECK(hvdc_artifact_open(argv[1], &b, NULL) == HVDC_E_OK);
    CHECK(hvdc_artifact_open(argv[1], &a, &error) == HVDC_E_OK && error.code == HVDC_E_OK);
    hvdc_artifact_close(b);
    CHECK(hvdc_artifact_validate_deep(a, NULL) == HVDC_E_OK);

    const hvdc_geometry *g = hvdc_artifact_geometry(a);
    uint32_t tensors = hvdc_artifact_tensor_count(a);
    CHECK(hvdc_artifact_file(a, hvdc_artifact_file_count(a)) == NULL);
    CHECK(hvdc_artifact_tensor(a, tensors) == NULL && hvdc_artifact_tensor(a, HVDC_NONE) == NULL);
    CHECK(hvdc_artifact_step(a, g->steps) == NULL);
    CHECK(hvdc_artifact_text(a, HVDC_NONE) == NULL);
    CHECK(!hvdc_artifact_file_span(a, HVDC_NONE, &span) && !hvdc_artifact_tensor_span(a, tensors, &span));
    CHECK(!hvdc_artifact_region(a, g->layers, &span) && !hvdc_artifact_region(a, HVDC_NONE, &span));
    CHECK(!hvdc_artifact_adapter(a, g->layers, &span) && !hvdc_artifact_ffn_pair(a, g->layers, &span));
    CHECK(hvdc_artifact_adaln(a, g->steps, 0) == NULL && hvdc_artifact_adaln(a, 0, g->layers) == NULL);
    CHECK(hvdc_artifact_head(a, g->steps) == NULL && hvdc_artifact_head(a, HVDC_NONE) == NULL);

    /* Activation scales: a row is what single questions give; nothing beyond the last step, block or input. */
    uint32_t inputs = hvdc_artifact_gemm_input_count(a);
    uint32_t hidden = hvdc_artifact_find_gemm_input(a, "attn1.to_q.lora_hidden");
    const float *row = hvdc_artifact_activation_scales(a, 1, 0);
    CHECK(hvdc_artifact_calibration(a)->mode == HVDC_CALIBRATION_MODE_PERCENTILE && inputs == 3 && hidden == 2);
    CHECK(hvdc_artifact_gemm_input(a, hidden)->experts == 1u << HVDC_EXPERT_DETAIL);
    CHECK(hvdc_artifact_gemm_input(a, inputs) == NULL && hvdc_artifact_gemm_input(a, HVDC_NONE) == NULL);
    CHECK(hvdc_artifact_find_gemm_input(a, "") == HVDC_NONE && hvdc_artifact_find_gemm_input(a, "attn1") == HVDC_NONE);
    for (uint32_t i = 0; i < inputs; i++) CHECK(row[i] > 0 && hvdc_artifact_activation_scale(a, 1, 0, i) == row[i]);
    CHECK(hvdc_artifact_activation_scale(a, 0, 0, hidden) == 0 && hvdc_artifact_activation_scale(a, 1, 0, inputs) == 0);
    CHECK(hvdc_artifact_activation_scale(a, g->steps, 0, 0) == 0);
    CHECK(hvdc_artifact_activation_scale(a, 0, 0, HVDC_NONE) == 0);
    CHECK(hvdc_artifact_activation_scales(a, g->steps, 0) == NULL);
    CHECK(hvdc_artifact_activation_scales(a, 0, g->layers) == NULL);
    CHECK(hvdc_artifact_open(argv[4], &b, NULL) == HVDC_E_OK && hvdc_artifact_calibration(b) == NULL);
    CHECK(hvdc_artifact_gemm_input_count(b) == 0 && hvdc_artifact_find_gemm_input(b, "attn1.input") == HVDC_NONE);
    CHECK(hvdc_artifact_activation_scales(b, 0, 0) == NULL && hvdc_artifact_activation_scale(b, 0, 0, 0) == 0);
    CHECK(hvdc_artifact_decoder(b) == NULL && hvdc_artifact_decoder_graph(b, 0) == NULL);
    CHECK(hvdc_artifact_decoder_port(b, 0) == NULL && hvdc_artifact_find_decoder_graph(b, "decoder") == HVDC_NONE);
    CHECK(hvdc_artifact_decoder_binary(b, 0) == NULL);
    CHECK(hvdc_artifact_opaque(b, 0, &span, &error) == HVDC_E_MISSING_FILE && error.code == HVDC_E_MISSING_FILE);
    CHECK(span.data == NULL && span.bytes == 0);
    hvdc_artifact_close(b);

    /* The decoder: graphs by name, their ports one behind the other, its files whole and as they are. */
    const hvdc_decoder *d = hvdc_artifact_decoder(a);
    CHECK(d != NULL && d->graphs == 4 && d->backend == HVDC_DECODER_BACKEND_QNN);
    CHECK(hvdc_artifact_decoder_graph(a, d->graphs) == NULL && hvdc_artifact_decoder_graph(a, HVDC_NONE) == NULL);
    CHECK(hvdc_artifact_decoder_port(a, d->ports) == NULL && hvdc_artifact_decoder_port(a, HVDC_NONE) == NULL);
    CHECK(hvdc_artifact_find_decoder_graph(a, "") == HVDC_NONE);
    const hvdc_decoder_binary *binary = hvdc_artifact_decoder_binary(a, d->binaries - 1u);
    CHECK(strcmp(hvdc_artifact_text(a, binary->build_id), "v2.0.test") == 0 && binary->soc == 69 && binary->arch == 79);
    CHECK(hvdc_artifact_decoder_binary(a, d->binaries) == NULL && hvdc_artifact_decoder_binary(a, HVDC_NONE) == NULL);
    uint32_t last = hvdc_artifact_find_decoder_graph(a, "decoder_later-up");
    CHECK(last == d->graphs - 1u);
    const hvdc_decoder_graph *graph = hvdc_artifact_decoder_graph(a, last);
    const hvdc_decoder_port *cache = hvdc_artifact_decoder_port(a, graph->first_port + 1u);
    CHECK(graph->variant == HVDC_DECODER_VARIANT_LATER && graph->binary == binary->binary);
    CHECK(graph->first_port + graph->inputs + graph->outputs == d->ports);
    CHECK(strcmp(hvdc_artifact_text(a, cache->name), "cache.up") == 0 && cache->dtype == HVDC_PORT_DTYPE_UINT16);
    CHECK(hvdc_artifact_opaque(a, graph->binary, &span, &error) == HVDC_E_OK && error.code == HVDC_E_OK);
    CHECK(span.bytes == 129 && span.offset == 0 && span.data[128] == 0x80);
    CHECK(strcmp(span.path, "decoder/last.bin") == 0);
    CHECK(hvdc_artifact_opaque(a, graph->model, &span, NULL) == HVDC_E_OK && span.bytes == 70);
    CHECK(hvdc_artifact_opaque(a, 0, &span, NULL) == HVDC_E_MISSING_FILE);
    CHECK(hvdc_artifact_opaque(a, HVDC_NONE, &span, NULL) == HVDC_E_MISSING_FILE);

    /* A binary that is another one is not handed out; the others are. */
    CHECK(hvdc_artifact_open(argv[5], &b, NULL) == HVDC_E_OK);
    CHECK(hvdc_artifact_opaque(b, graph->binary, &span, &error) == HVDC_E_DATA_HASH && span.data == NULL);
    CHECK(strcmp(error.file, "decoder/last.bin") == 0);
    CHECK(hvdc_artifact_opaque(b, graph->model, &span, NULL) == HVDC_E_OK);
    hvdc_artifact_close(b);

    CHECK(hvdc_artifact_find(a, "") == HVDC_NONE && hvdc_artifact_find(a, "~") == HVDC_NONE);
    CHECK(hvdc_artifact_find(a, "schedule.adal") == HVDC_NONE && hvdc_artifact_find(a, "schedule.adalnn") == HVDC_NONE);
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = 0;
    CHECK(hvdc_artifact_find(a, name) == HVDC_NONE);
    CHECK(hvdc_artifact_find_in_block(a, 0, name, "weight") == HVDC_NONE);
    CHECK(hvdc_artifact_find_in_block(a, g->layers, "ffn.net.2", "weight") == HVDC_NONE);
    uint32_t id = hvdc_artifact_find_in_block(a, 0, "ffn.net.2", "weight");
    CHECK(id == hvdc_artifact_find(a, "blocks.0.ffn.net.2.weight") && id != HVDC_NONE);

    /* The pair lies inside its region, ends where its second weight ends, and its descriptor reads the same bytes. */
    CHECK(hvdc_artifact_region(a, 0, &region) && hvdc_artifact_ffn_pair(a, 0, &pair));
    CHECK(hvdc_artifact_tensor_span(a, id, &span));
    CHECK(pair.data == region.data + pair.offset && pair.data + pair.bytes == span.data + span.bytes);
    CHECK(pair.fd == region.fd && pair.offset % HVDC_TENSOR_ALIGNMENT_BYTES == 0);
    uint8_t bytes[64];
    CHECK(pread(pair.fd, bytes, sizeof bytes, (off_t)pair.offset) == (ssize_t)sizeof bytes);
    CHECK(memcmp(bytes, pair.data, sizeof bytes) == 0);

    CHECK(strcmp(hvdc_code_name(HVDC_E_DATA_SCALE), "DATA_SCALE") == 0);
    CHECK(strcmp(hvdc_code_name((enum hvdc_code)99), "UNKNOWN") == 0);
    hvdc_artifact_close(a);
    CHECK(next_descriptor() == before);
    return 0;
}
