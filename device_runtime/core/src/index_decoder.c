/* The checks of a decoder's own sections, in the order of hvdc/artifact/index_decoder.py. */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "error.h"
#include "index.h"

#define REFUSE(code, ...) return hvdc_refuse(error, HVDC_E_##code, HVDC_INDEX_NAME, __VA_ARGS__)

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/* A letter, then letters, digits, '_' and '-'. */
static bool is_graph_name(const char *text, size_t length) {
    if (length < 1u || length > HVDC_GRAPH_LIMIT || !is_letter(text[0])) return false;
    for (size_t i = 1; i < length; i++)
        if (!is_letter(text[i]) && !(text[i] >= '0' && text[i] <= '9') && text[i] != '_' && text[i] != '-')
            return false;
    return true;
}

static bool is_printable(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (text[i] < '!' || text[i] > '~') return false;
    return length >= 1u && length <= HVDC_TEXT_LIMIT;
}

/* The record agrees with the other sections and the model, and its tiles are possible. */
static enum hvdc_code check_record(const hvdc_index *index, hvdc_error *error) {
    const hvdc_decoder *d = index->decoder;
    bool counted = d->graphs >= 2u && d->graphs <= HVDC_MAX_DECODER_GRAPHS && d->graphs == index->graphs.count &&
                   d->ports <= HVDC_MAX_DECODER_PORTS && d->ports == index->ports.count &&
                   (d->binaries == 0) == (d->backend == HVDC_DECODER_BACKEND_ONNX);
    const uint32_t *latent = index->geometry->latent; /* frames, rows, columns */
    bool tiled = d->tile_rows > 0 && d->tile_columns > 0 && d->tile_rows <= latent[1] && d->tile_columns <= latent[2] &&
                 2u * (uint64_t)d->overlap_rows <= d->tile_rows && 2u * (uint64_t)d->overlap_columns <= d->tile_columns;
    if (!HVDC_DECODER_BACKEND_KNOWN(d->backend) || !counted || !tiled || d->spatial_scale == 0 ||
        d->temporal_scale == 0 || d->channels != index->geometry->out_channels)
        REFUSE(INDEX_DECODER,
               "decoder: backend %" PRIu32 ", %" PRIu32 " graphs of %" PRIu32 ", %" PRIu32 " ports of %" PRIu32
               ", %" PRIu32 " binaries, %" PRIu32 " channels or the tiles do not fit together",
               d->backend, d->graphs, index->graphs.count, d->ports, index->ports.count, d->binaries, d->channels);
    return HVDC_E_OK;
}

/* What a graph says of its binary. Which tensors are binaries is checked later. */
static enum hvdc_code check_binary(const hvdc_index *index, uint32_t i, hvdc_error *error) {
    const hvdc_decoder_graph *g = hvdc_index_graph(index, i);
    bool compiled = index->decoder->backend != HVDC_DECODER_BACKEND_ONNX, good;
    if (compiled && g->binary != HVDC_NONE) {
        size_t length = 0;
        const char *name = hvdc_index_text_at(index, g->name_in_binary, &length);
        if (name == NULL)
            REFUSE(INDEX_STRING, "decoder graph %" PRIu32 ": no string starts at %" PRIu32, i, g->name_in_binary);
        if (!is_printable(name, length))
            REFUSE(INDEX_STRING, "decoder graph %" PRIu32 ": \"%.*s\" in its binary", i, (int)length, name);
        good = g->optimization >= 1u && g->optimization <= 3u;
    } else {
        good = !compiled && g->binary == HVDC_NONE && g->name_in_binary == HVDC_NONE && g->optimization == 0 &&
               g->vtcm_bytes == 0 && g->spill_fill_bytes == 0;
    }
    if (!good || g->reserved != 0)
        REFUSE(INDEX_DECODER, "decoder graph %" PRIu32 ": binary %" PRIu32 ", optimization %" PRIu32, i, g->binary,
               g->optimization);
    return HVDC_E_OK;
}

/* One graph: its name, its variant, which is not before `variant`, its binary, its ports from `first` on. */
static enum hvdc_code check_graph(const hvdc_index *index, uint32_t i, uint32_t variant, uint32_t first,
                                  hvdc_error *error) {
    const hvdc_decoder_graph *g = hvdc_index_graph(index, i);
    size_t length = 0;
    const char *name = hvdc_index_text_at(index, g->name, &length);
    if (name == NULL) REFUSE(INDEX_STRING, "decoder graph %" PRIu32 ": no string starts at %" PRIu32, i, g->name);
    if (!is_graph_name(name, length)) REFUSE(INDEX_STRING, "decoder graph %" PRIu32 ": \"%.*s\"", i, (int)length, name);
    if (hvdc_index_find_graph(index, name) != i)
        REFUSE(INDEX_DECODER, "decoder graph %" PRIu32 ": \"%s\" again", i, name);
    if (!HVDC_DECODER_VARIANT_KNOWN(g->variant) || g->variant < variant ||
        (i == 0 && g->variant != HVDC_DECODER_VARIANT_FIRST))
        REFUSE(INDEX_DECODER, "decoder graph %" PRIu32 ": variant %" PRIu32 " after %" PRIu32, i, g->variant, variant);
    enum hvdc_code code = check_binary(index, i, error);
    if (code != HVDC_E_OK) return code;
    if (g->first_port != first || g->inputs < 1u || g->outputs < 1u ||
        (uint64_t)g->inputs + g->outputs > index->ports.count - first ||
        (g->variant == HVDC_DECODER_VARIANT_FIRST && g->inputs != 1u))
        REFUSE(INDEX_DECODER,
               "decoder graph %" PRIu32 ": expected ports from %" PRIu32 ", found %" PRIu32 " + %" PRIu32
               " from %" PRIu32,
               i, first, g->inputs, g->outputs, g->first_port);
    return HVDC_E_OK;
}

/* First graphs, then later ones, each with its ports behind those of the one before. */
static enum hvdc_code check_graphs(const hvdc_index *index, hvdc_error *error) {
    uint32_t variant = HVDC_DECODER_VARIANT_FIRST, first = 0;
    for (uint32_t i = 0; i < index->graphs.count; i++) {
        const hvdc_decoder_graph *g = hvdc_index_graph(index, i);
        enum hvdc_code code = check_graph(index, i, variant, first, error);
        if (code != HVDC_E_OK) return code;
        variant = g->variant;
        first += g->inputs + g->outputs;
    }
    if (first != index->ports.count)
        REFUSE(INDEX_DECODER, "decoder graphs: expected %" PRIu32 " ports in all, found %" PRIu32, index->ports.count,
               first);
    if (variant != HVDC_DECODER_VARIANT_LATER) REFUSE(INDEX_DECODER, "decoder graphs: none of the later frames");
    return HVDC_E_OK;
}

static bool is_port_good(const hvdc_decoder_port *p) {
    if (!HVDC_PORT_DTYPE_KNOWN(p->dtype) || p->dims < 1u || p->dims > HVDC_MAX_DIMS) return false;
    for (uint32_t d = 0; d < HVDC_MAX_DIMS; d++)
        if ((p->shape[d] != 0) != (d < p->dims)) return false;
    return p->zero_point < (p->dtype == HVDC_PORT_DTYPE_UINT8 ? 1u << 8 : 1u << 16) && isfinite(p->scale) &&
           p->scale >= FLT_MIN;
}

static enum hvdc_code check_ports(const hvdc_index *index, hvdc_error *error) {
    for (uint32_t i = 0; i < index->ports.count; i++) {
        const hvdc_decoder_port *p = hvdc_index_port(index, i);
        size_t length = 0;
        const char *name = hvdc_index_text_at(index, p->name, &length);
        if (name == NULL) REFUSE(INDEX_STRING, "decoder port %" PRIu32 ": no string starts at %" PRIu32, i, p->name);
        if (!hvdc_index_is_name(name, length))
            REFUSE(INDEX_STRING, "decoder port %" PRIu32 ": \"%.*s\"", i, (int)length, name);
        if (!is_port_good(p))
            REFUSE(INDEX_DECODER,
                   "decoder port %" PRIu32 ": dtype %" PRIu32 ", %" PRIu32 " dimensions, zero point %" PRIu32
                   " or scale %g",
                   i, p->dtype, p->dims, p->zero_point, (double)p->scale);
    }
    return HVDC_E_OK;
}

/* Whether a graph is in a binary. */
static bool is_binary(const hvdc_index *index, uint32_t tensor) {
    for (uint32_t i = 0; i < index->graphs.count; i++)
        if (hvdc_index_graph(index, i)->binary == tensor) return true;
    return false;
}

/* Tensors of the kind are, by id: the model of each graph, the encodings, then the binaries, each of some graph. */
static enum hvdc_code check_tensors(const hvdc_index *index, hvdc_error *error) {
    const hvdc_decoder *d = index->decoder;
    uint64_t count = 0, due = (uint64_t)d->graphs + 1u + d->binaries;
    for (uint32_t i = 0; i < index->tensors.count; i++)
        if (hvdc_index_tensor(index, i)->kind == HVDC_TENSOR_KIND_DECODER) count++;
    if (count != due) REFUSE(INDEX_DECODER, "decoder: expected %" PRIu64 " files, found %" PRIu64, due, count);
    count = 0;
    for (uint32_t i = 0; i < index->tensors.count; i++) {
        if (hvdc_index_tensor(index, i)->kind != HVDC_TENSOR_KIND_DECODER) continue;
        bool good = count < d->graphs    ? hvdc_index_graph(index, (uint32_t)count)->model == i
                    : count == d->graphs ? d->encodings == i
                                         : is_binary(index, i);
        if (!good) REFUSE(INDEX_DECODER, "tensor %" PRIu32 ": not the file of the decoder that is due here", i);
        count++;
    }
    for (uint32_t i = 0; i < index->graphs.count; i++) { /* ids ascend, so a binary's is above that of the encodings */
        uint32_t binary = hvdc_index_graph(index, i)->binary;
        const hvdc_tensor *t = hvdc_index_tensor(index, binary);
        if (binary == HVDC_NONE) continue;
        if (t == NULL || t->kind != HVDC_TENSOR_KIND_DECODER || binary <= d->encodings)
            REFUSE(INDEX_DECODER, "decoder graph %" PRIu32 ": tensor %" PRIu32 " is no binary", i, binary);
    }
    return HVDC_E_OK;
}

/* Each binary by its id, in order, with a build that can be read. Before 1.3 there are no records. */
static enum hvdc_code check_binaries(const hvdc_index *index, hvdc_error *error) {
    const hvdc_decoder *d = index->decoder;
    if (index->header->minor < HVDC_BINARIES_MINOR) return HVDC_E_OK;
    if (index->binaries.count != d->binaries)
        REFUSE(INDEX_DECODER, "decoder binaries: expected %" PRIu32 " records, found %" PRIu32, d->binaries,
               index->binaries.count);
    uint32_t tensor = d->encodings; /* after it, tensors of the kind are binaries: check_tensors */
    for (uint32_t i = 0; i < index->binaries.count; i++) {
        const hvdc_decoder_binary *b = hvdc_index_binary(index, i);
        size_t length = 0;
        const char *build = hvdc_index_text_at(index, b->build_id, &length);
        do tensor++;
        while (hvdc_index_tensor(index, tensor)->kind != HVDC_TENSOR_KIND_DECODER);
        if (b->binary != tensor)
            REFUSE(INDEX_DECODER, "decoder binary %" PRIu32 ": expected tensor %" PRIu32 ", found %" PRIu32, i, tensor,
                   b->binary);
        if (build == NULL)
            REFUSE(INDEX_STRING, "decoder binary %" PRIu32 ": no string starts at %" PRIu32, i, b->build_id);
        if (!is_printable(build, length))
            REFUSE(INDEX_STRING, "decoder binary %" PRIu32 ": \"%.*s\" as a build", i, (int)length, build);
    }
    return HVDC_E_OK;
}

static const char *port_name(const hvdc_index *index, uint32_t port) {
    return index->strings + hvdc_index_port(index, port)->name;
}

/* The first output of a graph, as a port. */
static uint32_t first_output(const hvdc_decoder_graph *g) { return g->first_port + g->inputs; }

/* How often the graphs of a variant write a name; *last is the last port that does. */
static uint32_t writers(const hvdc_index *index, uint32_t variant, const char *name, uint32_t *last) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < index->graphs.count; i++) {
        const hvdc_decoder_graph *g = hvdc_index_graph(index, i);
        if (g->variant != variant) continue;
        for (uint32_t p = first_output(g); p < first_output(g) + g->outputs; p++)
            if (strcmp(port_name(index, p), name) == 0) {
                *last = p;
                count++;
            }
    }
    return count;
}

/* No name twice in a graph, among all that a variant writes, or in a binary: else nobody knows which is meant. */
static enum hvdc_code check_names(const hvdc_index *index, hvdc_error *error) {
    for (uint32_t i = 0; i < index->graphs.count; i++) {
        const hvdc_decoder_graph *g = hvdc_index_graph(index, i);
        uint32_t end = first_output(g) + g->outputs, last = 0;
        for (uint32_t p = g->first_port; p < end; p++) {
            for (uint32_t q = g->first_port; q < p; q++)
                if (strcmp(port_name(index, p), port_name(index, q)) == 0)
                    REFUSE(INDEX_DECODER, "decoder graph %" PRIu32 ": \"%s\" again", i, port_name(index, p));
            if (p >= first_output(g) && writers(index, g->variant, port_name(index, p), &last) != 1u)
                REFUSE(INDEX_DECODER, "decoder graph %" PRIu32 ": \"%s\" is written twice", i, port_name(index, p));
        }
        for (uint32_t j = 0; j < i; j++) {
            const hvdc_decoder_graph *other = hvdc_index_graph(index, j);
            if (g->binary != HVDC_NONE && g->binary == other->binary &&
                strcmp(index->strings + g->name_in_binary, index->strings + other->name_in_binary) == 0)
                REFUSE(INDEX_DECODER, "decoder graph %" PRIu32 ": \"%s\" again in its binary", i,
                       index->strings + g->name_in_binary);
        }
    }
    return HVDC_E_OK;
}

/* Whether two ports hold the same integers for the same numbers, whatever they are called. */
static bool is_same(const hvdc_decoder_port *a, const hvdc_decoder_port *b) {
    return a->dtype == b->dtype && a->dims == b->dims && a->zero_point == b->zero_point && a->scale == b->scale &&
           memcmp(a->shape, b->shape, sizeof a->shape) == 0;
}

/* Whether a port is [1, channels, frames, rows, columns]; none of them is 0. */
static bool is_shape(const hvdc_decoder_port *p, uint32_t channels, uint32_t frames, uint64_t rows, uint64_t columns) {
    const uint64_t due[HVDC_MAX_DIMS] = {1u, channels, frames, rows, columns};
    for (uint32_t d = 0; d < HVDC_MAX_DIMS; d++)
        if (p->shape[d] != due[d]) return false;
    return true;
}

/* A variant reads a tile of one latent frame, and writes that tile's frames. */
static enum hvdc_code check_shapes(const hvdc_index *index, hvdc_error *error) {
    const hvdc_decoder *d = index->decoder;
    uint64_t rows = (uint64_t)d->tile_rows * d->spatial_scale, columns = (uint64_t)d->tile_columns * d->spatial_scale;
    for (uint32_t i = 0; i < index->graphs.count; i++) {
        const hvdc_decoder_graph *g = hvdc_index_graph(index, i);
        uint32_t frames = g->variant == HVDC_DECODER_VARIANT_FIRST ? 1u : d->temporal_scale;
        bool begins = i == 0 || hvdc_index_graph(index, i - 1u)->variant != g->variant;
        bool ends = i + 1u == index->graphs.count || hvdc_index_graph(index, i + 1u)->variant != g->variant;
        if (begins && !is_shape(hvdc_index_port(index, g->first_port), d->channels, 1u, d->tile_rows, d->tile_columns))
            REFUSE(INDEX_DECODER, "decoder graph %" PRIu32 ": \"%s\" is not a tile of latents", i,
                   port_name(index, g->first_port));
        if (ends && !is_shape(hvdc_index_port(index, first_output(g)), HVDC_FRAME_CHANNELS, frames, rows, columns))
            REFUSE(INDEX_DECODER, "decoder graph %" PRIu32 ": \"%s\" is not the frames of a tile", i,
                   port_name(index, first_output(g)));
    }
    return HVDC_E_OK;
}

/* A graph that is not the first of its variant reads what the one before it writes first. */
static enum hvdc_code check_cuts(const hvdc_index *index, hvdc_error *error) {
    for (uint32_t i = 1; i < index->graphs.count; i++) {
        const hvdc_decoder_graph *before = hvdc_index_graph(index, i - 1u), *g = hvdc_index_graph(index, i);
        uint32_t written = first_output(before), read = g->first_port;
        if (before->variant == g->variant && (strcmp(port_name(index, written), port_name(index, read)) != 0 ||
                                              !is_same(hvdc_index_port(index, written), hvdc_index_port(index, read))))
            REFUSE(INDEX_DECODER, "decoder graph %" PRIu32 ": \"%s\" is not what the graph before it writes", i,
                   port_name(index, read));
    }
    return HVDC_E_OK;
}

/* Whether a variant writes `cache` under "next_" and its name, as it is read. */
static bool is_written(const hvdc_index *index, uint32_t variant, uint32_t cache) {
    static const char next[] = "next_";
    char name[sizeof next + HVDC_TEXT_LIMIT];
    uint32_t written = 0;
    size_t length = strlen(port_name(index, cache)); /* at most HVDC_TEXT_LIMIT: check_ports */
    memcpy(name, next, sizeof next - 1u);
    memcpy(name + sizeof next - 1u, port_name(index, cache), length + 1u);
    return writers(index, variant, name, &written) == 1u &&
           is_same(hvdc_index_port(index, written), hvdc_index_port(index, cache));
}

/* What a later graph reads beside its first input was written before, by either variant, under next_<name>. */
static enum hvdc_code check_caches(const hvdc_index *index, hvdc_error *error) {
    for (uint32_t i = 0; i < index->graphs.count; i++) {
        const hvdc_decoder_graph *g = hvdc_index_graph(index, i);
        for (uint32_t p = g->first_port + 1u; p < first_output(g); p++)
            if (!is_written(index, HVDC_DECODER_VARIANT_FIRST, p) || !is_written(index, HVDC_DECODER_VARIANT_LATER, p))
                REFUSE(INDEX_DECODER, "decoder graph %" PRIu32 ": \"%s\" is not written by either variant", i,
                       port_name(index, p));
    }
    return HVDC_E_OK;
}

enum hvdc_code hvdc_index_check_decoder(const hvdc_index *index, hvdc_error *error) {
    if (index->decoder == NULL) return HVDC_E_OK;
    enum hvdc_code code = check_record(index, error);
    if (code == HVDC_E_OK) code = check_graphs(index, error);
    if (code == HVDC_E_OK) code = check_ports(index, error);
    if (code == HVDC_E_OK) code = check_tensors(index, error);
    if (code == HVDC_E_OK) code = check_binaries(index, error);
    if (code == HVDC_E_OK) code = check_names(index, error);
    if (code == HVDC_E_OK) code = check_shapes(index, error);
    if (code == HVDC_E_OK) code = check_cuts(index, error);
    if (code == HVDC_E_OK) code = check_caches(index, error);
    return code;
}
