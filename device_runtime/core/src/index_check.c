/* The checks of index.bin's records, in the order of hvdc/artifact/index_read.py. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "error.h"
#include "index.h"

#define REFUSE(code, ...) return hvdc_refuse(error, HVDC_E_##code, HVDC_INDEX_NAME, __VA_ARGS__)

static bool add(uint64_t *total, uint64_t value) {
    if (value > UINT64_MAX - *total) return false;
    *total += value;
    return true;
}

static bool multiply(uint64_t *product, uint64_t value) {
    if (value != 0 && *product > UINT64_MAX / value) return false;
    *product *= value;
    return true;
}

const char *hvdc_index_text_at(const hvdc_index *index, uint32_t reference, size_t *length) {
    if (reference >= index->string_bytes || (reference > 0 && index->strings[reference - 1u] != 0)) return NULL;
    const char *text = index->strings + reference;
    size_t n = 0;
    while (n <= HVDC_TEXT_LIMIT && text[n] != 0) n++; /* the section ends with a zero byte */
    *length = n;
    return text;
}

static bool is_path_char(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-'; }

static bool is_name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Non-empty words of `is_char` with single dots between them. */
static bool is_dotted(const char *text, size_t length, bool (*is_char)(char)) {
    bool in_word = false;
    for (size_t i = 0; i < length; i++) {
        if (is_char(text[i]))
            in_word = true;
        else if (text[i] == '.' && in_word)
            in_word = false;
        else
            return false;
    }
    return in_word;
}

bool hvdc_index_is_name(const char *text, size_t length) {
    return length <= HVDC_TEXT_LIMIT && is_dotted(text, length, is_name_char);
}

/* A folder without dots, '/', a dotted file name. */
static bool is_path(const char *text, size_t length) {
    size_t folder = 0;
    while (folder < length && is_path_char(text[folder])) folder++;
    return length <= HVDC_TEXT_LIMIT && folder > 0 && folder < length && text[folder] == '/' &&
           is_dotted(text + folder + 1u, length - folder - 1u, is_path_char);
}

static enum hvdc_code check_geometry(const hvdc_index *index, hvdc_error *error) {
    const hvdc_geometry *g = index->geometry;
    const uint32_t positive[] = {g->layers,      g->width,       g->ffn_width,    g->heads,     g->text_width,
                                 g->text_tokens, g->in_channels, g->out_channels, g->steps,     g->frames,
                                 g->height,      g->video_width, g->tokens,       g->latent[0], g->latent[1],
                                 g->latent[2],   g->patch[0],    g->patch[1],     g->patch[2]};
    for (size_t i = 0; i < sizeof positive / sizeof positive[0]; i++)
        if (positive[i] == 0) REFUSE(INDEX_GEOMETRY, "geometry: a size is 0");
    uint64_t rope = (uint64_t)g->rope_dims[0] + g->rope_dims[1] + g->rope_dims[2], tokens = 1;
    bool possible = g->width % g->heads == 0 && rope == g->width / g->heads && g->experts == (g->rank != 0 ? 2u : 1u) &&
                    g->steps == index->steps.count;
    for (unsigned i = 0; i < 3; i++)
        possible = possible && g->latent[i] % g->patch[i] == 0 && multiply(&tokens, g->latent[i] / g->patch[i]);
    if (!possible || tokens != g->tokens || !isfinite(g->eps) || !(g->eps > 0))
        REFUSE(INDEX_GEOMETRY, "geometry: sizes do not fit together");
    return HVDC_E_OK;
}

/* How many files of these kinds there are so far. */
typedef struct file_counts {
    uint32_t regions, calibrations;
} file_counts;

/* What the size of a file is a multiple of. An opaque one ends with its last byte: others read it as it is. */
static uint64_t granule_of(const hvdc_file *f) {
    return f->kind == HVDC_FILE_KIND_DECODER ? 1u : HVDC_REGION_GRANULE_BYTES;
}

static enum hvdc_code check_file(const hvdc_index *index, uint32_t i, uint32_t first, file_counts *counts,
                                 hvdc_error *error) {
    const hvdc_file *f = hvdc_index_file(index, i);
    uint32_t layers = index->geometry->layers;
    size_t length;
    const char *path = hvdc_index_text_at(index, f->path, &length);
    if (path == NULL) REFUSE(INDEX_STRING, "file %" PRIu32 ": no string starts at %" PRIu32, i, f->path);
    if (!is_path(path, length)) REFUSE(INDEX_PATH, "file %" PRIu32 ": \"%.*s\"", i, (int)length, path);
    bool in_model = f->first_block == HVDC_NONE && f->block_count == 0;
    if (f->kind == HVDC_FILE_KIND_REGION) { /* region i is block i */
        in_model = f->first_block == counts->regions && f->block_count == 1u && f->first_block < layers;
        counts->regions++;
    } else if (f->kind == HVDC_FILE_KIND_ADAPTER) {
        in_model = f->block_count > 0 && f->block_count <= layers && f->first_block <= layers - f->block_count;
    } else if (f->kind == HVDC_FILE_KIND_CALIBRATION) { /* unknown without the feature bit, as to version 1.0 */
        in_model = in_model && index->calibration != NULL;
        counts->calibrations++;
    } else if (f->kind == HVDC_FILE_KIND_DECODER) { /* as unknown without its bit */
        in_model = in_model && index->decoder != NULL;
    }
    if (!HVDC_FILE_KIND_KNOWN(f->kind) || !in_model)
        REFUSE(INDEX_FILE_RECORD, "file %" PRIu32 ": kind %" PRIu32 " with %" PRIu32 " blocks from %" PRIu32, i,
               f->kind, f->block_count, f->first_block);
    if (f->first_tensor != first || f->tensor_count < 1u || f->tensor_count > index->tensors.count - first ||
        (f->kind == HVDC_FILE_KIND_DECODER && f->tensor_count != 1u))
        REFUSE(INDEX_FILE_RECORD,
               "file %" PRIu32 ": expected tensors from %" PRIu32 ", found %" PRIu32 " from %" PRIu32, i, first,
               f->tensor_count, f->first_tensor);
    if (f->bytes == 0 || f->bytes % granule_of(f) != 0 || f->bytes > INT64_MAX)
        REFUSE(INDEX_FILE_RECORD, "file %" PRIu32 ": %" PRIu64 " bytes", i, f->bytes);
    if ((f->kind == HVDC_FILE_KIND_REGION || f->kind == HVDC_FILE_KIND_ADAPTER) &&
        f->bytes > index->geometry->region_cap_bytes)
        REFUSE(INDEX_REGION_CAP, "file %" PRIu32 ": expected <= %" PRIu64 " bytes, found %" PRIu64, i,
               index->geometry->region_cap_bytes, f->bytes);
    return HVDC_E_OK;
}

static enum hvdc_code check_files(const hvdc_index *index, hvdc_error *error) {
    uint32_t first = 0, calibrations = index->calibration != NULL ? 1u : 0u;
    file_counts counts = {0};
    if (index->files.count == 0) REFUSE(INDEX_FILE_RECORD, "there is no file");
    for (uint32_t i = 0; i < index->files.count; i++) {
        enum hvdc_code code = check_file(index, i, first, &counts, error);
        if (code != HVDC_E_OK) return code;
        first += hvdc_index_file(index, i)->tensor_count;
    }
    if (first != index->tensors.count)
        REFUSE(INDEX_FILE_RECORD, "files: expected %" PRIu32 " tensors in all, found %" PRIu32, index->tensors.count,
               first);
    if (counts.regions != index->geometry->layers)
        REFUSE(INDEX_FILE_RECORD, "files: expected %" PRIu32 " regions, found %" PRIu32, index->geometry->layers,
               counts.regions);
    if (counts.calibrations != calibrations)
        REFUSE(INDEX_FILE_RECORD, "files: expected %" PRIu32 " calibrations, found %" PRIu32, calibrations,
               counts.calibrations);
    return HVDC_E_OK;
}

static bool is_shape_good(const hvdc_tensor *t) {
    uint64_t bytes = HVDC_DTYPE_BYTES(t->dtype);
    if (t->dims < 1u || t->dims > HVDC_MAX_DIMS) return false;
    for (uint32_t i = 0; i < HVDC_MAX_DIMS; i++) {
        bool used = i < t->dims;
        if (used && (t->shape[i] == 0 || t->shape[i] > t->padded[i] || !multiply(&bytes, t->padded[i]))) return false;
        if (!used && (t->shape[i] != 0 || t->padded[i] != 0)) return false;
    }
    if (bytes != t->bytes) return false;
    if (t->tile_order == HVDC_TILE_ROW_MAJOR_ID) return true;
    return t->dims == 2u && HVDC_TILE_ORDER_ELEMENT_BYTES(t->tile_order) == HVDC_DTYPE_BYTES(t->dtype) &&
           t->padded[0] == hvdc_align_up(t->shape[0], HVDC_TILE_ORDER_COLS(t->tile_order)) &&
           t->padded[1] == hvdc_align_up(t->shape[1], HVDC_TILE_ORDER_ROWS(t->tile_order));
}

/* Bytes and no more: one dimension, neither tiled nor padded. */
static bool is_plain(const hvdc_tensor *t) {
    return t->dims == 1u && t->tile_order == HVDC_TILE_ROW_MAJOR_ID && t->shape[0] == t->padded[0];
}

static enum hvdc_code check_tensor_record(const hvdc_index *index, uint32_t i, uint32_t file, hvdc_error *error) {
    const hvdc_file *f = hvdc_index_file(index, file);
    const hvdc_tensor *t = hvdc_index_tensor(index, i);
    if (t->file != file || !HVDC_FILE_HOLDS(f->kind, t->kind) || !HVDC_EXPERT_KNOWN(t->expert))
        REFUSE(INDEX_TENSOR_RECORD,
               "tensor %" PRIu32 ": file %" PRIu32 ", kind %" PRIu32 ", expert %" PRIu32 " in file %" PRIu32, i,
               t->file, t->kind, t->expert, file);
    bool opaque = f->kind == HVDC_FILE_KIND_DECODER;
    if (opaque && (t->expert != HVDC_EXPERT_SHARED || t->linear != HVDC_NONE))
        REFUSE(INDEX_TENSOR_RECORD, "tensor %" PRIu32 ": expert %" PRIu32 " or a linear, but opaque", i, t->expert);
    bool in_file = f->block_count == 0 ? t->block == HVDC_NONE
                                       : t->block >= f->first_block && t->block - f->first_block < f->block_count;
    if (!in_file) REFUSE(INDEX_TENSOR_RECORD, "tensor %" PRIu32 ": block %" PRIu32, i, t->block);
    if (!HVDC_DTYPE_KNOWN(t->dtype)) REFUSE(INDEX_DTYPE, "tensor %" PRIu32 ": dtype %" PRIu32, i, t->dtype);
    if ((t->dtype == HVDC_DTYPE_UINT8) != opaque)
        REFUSE(INDEX_DTYPE, "tensor %" PRIu32 ": dtype %" PRIu32 " in a file of kind %" PRIu32, i, t->dtype, f->kind);
    if (!HVDC_TILE_ORDER_KNOWN(t->tile_order))
        REFUSE(INDEX_TILE_ORDER, "tensor %" PRIu32 ": tile order %" PRIu32, i, t->tile_order);
    if (!is_shape_good(t) || (opaque && !is_plain(t)))
        REFUSE(INDEX_SHAPE, "tensor %" PRIu32 ": %" PRIu32 " dimensions and %" PRIu64 " bytes do not agree", i, t->dims,
               t->bytes);
    return HVDC_E_OK;
}

static enum hvdc_code check_tensor(const hvdc_index *index, uint32_t i, uint32_t file, hvdc_error *error) {
    const hvdc_tensor *t = hvdc_index_tensor(index, i);
    size_t length = 0, linear_length = 0;
    const char *name = hvdc_index_text_at(index, t->name, &length), *linear = NULL;
    if (name == NULL) REFUSE(INDEX_STRING, "tensor %" PRIu32 ": no string starts at %" PRIu32, i, t->name);
    if (!hvdc_index_is_name(name, length)) REFUSE(INDEX_NAME, "tensor %" PRIu32 ": \"%.*s\"", i, (int)length, name);
    if (t->linear != HVDC_NONE) {
        linear = hvdc_index_text_at(index, t->linear, &linear_length);
        if (linear == NULL) REFUSE(INDEX_STRING, "tensor %" PRIu32 ": no string starts at %" PRIu32, i, t->linear);
        if (!hvdc_index_is_name(linear, linear_length))
            REFUSE(INDEX_STRING, "tensor %" PRIu32 ": linear \"%.*s\"", i, (int)linear_length, linear);
    }
    enum hvdc_code code = check_tensor_record(index, i, file, error);
    if (code == HVDC_E_OK && linear != NULL) {
        char prefix[HVDC_TEXT_LIMIT + 32u];
        int n = snprintf(prefix, sizeof prefix, "blocks.%" PRIu32 ".%s.", t->block, linear);
        if (strncmp(name, prefix, (size_t)n) != 0)
            REFUSE(INDEX_TENSOR_RECORD, "tensor %" PRIu32 ": \"%s\" does not start with \"%s\"", i, name, prefix);
    }
    return code;
}

/* A region holds two feed-forward weights one behind the other, so that they can be staged as one span. */
static enum hvdc_code check_pair(const hvdc_index *index, uint32_t file, hvdc_error *error) {
    const hvdc_file *f = hvdc_index_file(index, file);
    uint32_t count = 0, first = 0, last = 0;
    for (uint32_t i = f->first_tensor; i < f->first_tensor + f->tensor_count; i++)
        if (hvdc_index_tensor(index, i)->kind == HVDC_TENSOR_KIND_FFN_BASE) {
            if (count == 0) first = i;
            last = i;
            count++;
        }
    if (count != 2u || last != first + 1u)
        REFUSE(INDEX_FILE_RECORD,
               "file %" PRIu32 ": expected a contiguous feed-forward pair, found %" PRIu32 " weights", file, count);
    return HVDC_E_OK;
}

static enum hvdc_code check_tensors(const hvdc_index *index, hvdc_error *error) {
    for (uint32_t file = 0; file < index->files.count; file++) {
        const hvdc_file *f = hvdc_index_file(index, file);
        uint64_t end = 0; /* at most f->bytes < 2^63 */
        for (uint32_t i = f->first_tensor; i < f->first_tensor + f->tensor_count; i++) {
            const hvdc_tensor *t = hvdc_index_tensor(index, i);
            enum hvdc_code code = check_tensor(index, i, file, error);
            if (code != HVDC_E_OK) return code;
            uint64_t due = hvdc_align_up(end, HVDC_TENSOR_ALIGNMENT_BYTES);
            if (t->offset != due || t->offset > f->bytes || t->bytes > f->bytes - t->offset)
                REFUSE(INDEX_OFFSET, "tensor %" PRIu32 ": expected at %" PRIu64 ", found %" PRIu64 " bytes at %" PRIu64,
                       i, due, t->bytes, t->offset);
            end = t->offset + t->bytes;
        }
        if (hvdc_align_up(end, granule_of(f)) != f->bytes)
            REFUSE(INDEX_OFFSET, "file %" PRIu32 ": %" PRIu64 " bytes, but its tensors end at %" PRIu64, file, f->bytes,
                   end);
        enum hvdc_code code = f->kind == HVDC_FILE_KIND_REGION ? check_pair(index, file, error) : HVDC_E_OK;
        if (code != HVDC_E_OK) return code;
    }
    return HVDC_E_OK;
}

typedef const char *(*text_of)(const hvdc_index *index, uint32_t i);

static const char *path_of(const hvdc_index *index, uint32_t i) {
    return index->strings + hvdc_index_file(index, i)->path;
}

static const char *name_of(const hvdc_index *index, uint32_t i) {
    return index->strings + hvdc_index_tensor(index, i)->name;
}

static void sift_down(const hvdc_index *index, text_of text, uint32_t *ids, uint32_t root, uint32_t count) {
    for (;;) {
        uint64_t child = 2u * (uint64_t)root + 1u;
        if (child >= count) return;
        if (child + 1u < count && strcmp(text(index, ids[child]), text(index, ids[child + 1u])) < 0) child++;
        if (strcmp(text(index, ids[root]), text(index, ids[child])) >= 0) return;
        uint32_t swap = ids[root];
        ids[root] = ids[child];
        ids[child] = swap;
        root = (uint32_t)child;
    }
}

/* Fill `ids` with 0 … count - 1 sorted by their texts; false if two texts are equal. A heap sort: no recursion, no
 * memory, and no input that makes it slow. */
static bool sort_unique(const hvdc_index *index, text_of text, uint32_t *ids, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) ids[i] = i;
    for (uint32_t i = count / 2u; i-- > 0;) sift_down(index, text, ids, i, count);
    for (uint32_t last = count; last-- > 1u;) {
        uint32_t swap = ids[0];
        ids[0] = ids[last];
        ids[last] = swap;
        sift_down(index, text, ids, 0, last);
    }
    for (uint32_t i = 1; i < count; i++)
        if (strcmp(text(index, ids[i - 1u]), text(index, ids[i])) == 0) return false;
    return true;
}

static enum hvdc_code check_unique(hvdc_index *index, hvdc_error *error) {
    /* every file has a tensor, so there is room for the files' ids */
    if (!sort_unique(index, path_of, index->by_name, index->files.count)) REFUSE(INDEX_PATH, "a path occurs twice");
    if (!sort_unique(index, name_of, index->by_name, index->tensors.count)) REFUSE(INDEX_NAME, "a name occurs twice");
    return HVDC_E_OK;
}

/* An INT8 tensor has one FP32 scale per padded output column; nothing else has a scale. */
static enum hvdc_code check_scales(hvdc_index *index, hvdc_error *error) {
    for (uint32_t i = 0; i < index->tensors.count; i++) {
        const hvdc_tensor *t = hvdc_index_tensor(index, i);
        if (t->dtype != HVDC_DTYPE_INT8) {
            if (t->scale != HVDC_NONE) REFUSE(INDEX_SCALE_LINK, "tensor %" PRIu32 ": a scale, but not INT8", i);
            continue;
        }
        const hvdc_tensor *s = hvdc_index_tensor(index, t->scale);
        if (s == NULL) REFUSE(INDEX_SCALE_LINK, "tensor %" PRIu32 ": its scale is tensor %" PRIu32, i, t->scale);
        if (s->dtype != HVDC_DTYPE_FLOAT32 || s->dims != 1u || s->shape[0] != t->shape[0] ||
            s->padded[0] != t->padded[0] || s->file != t->file)
            REFUSE(INDEX_SCALE_LINK,
                   "tensor %" PRIu32 ": expected %" PRIu32 " FP32 scales in the same file, found tensor %" PRIu32, i,
                   t->padded[0], t->scale);
        index->is_scale[t->scale] = 1;
    }
    return HVDC_E_OK;
}

static enum hvdc_code check_steps(const hvdc_index *index, hvdc_error *error) {
    for (uint32_t i = 0; i < index->steps.count; i++) {
        const hvdc_step *s = hvdc_index_step(index, i);
        if (!isfinite(s->timestep) || !isfinite(s->sigma) || !isfinite(s->sigma_next) || !isfinite(s->step_size) ||
            s->expert >= index->geometry->experts)
            REFUSE(INDEX_STEP_RECORD, "step %" PRIu32 ": not finite, or expert %" PRIu32, i, s->expert);
        float difference = s->sigma_next - s->sigma; /* exact for the schedule that wrote it: one FP32 subtraction */
        if (!(s->sigma_next >= 0) || !(s->sigma_next < s->sigma) || s->step_size != difference)
            REFUSE(INDEX_STEP_RECORD, "step %" PRIu32 ": sigma %a to %a by %a", i, (double)s->sigma,
                   (double)s->sigma_next, (double)s->step_size);
        if (i > 0 && hvdc_index_step(index, i - 1u)->sigma_next != s->sigma)
            REFUSE(INDEX_STEP_RECORD, "step %" PRIu32 ": sigma %a is not where the step before ends", i,
                   (double)s->sigma);
    }
    return HVDC_E_OK;
}

/* What a record says that the tensors of a kind take: geometry's, or of the section that came with the kind. */
static uint64_t recorded_bytes(const hvdc_index *index, uint32_t kind) {
    if (kind <= HVDC_GEOMETRY_KINDS) return index->geometry->kind_bytes[kind - 1u];
    if (kind == HVDC_TENSOR_KIND_CALIBRATION) return index->calibration != NULL ? index->calibration->bytes : 0;
    return index->decoder != NULL ? index->decoder->bytes : 0;
}

static enum hvdc_code check_totals(const hvdc_index *index, hvdc_error *error) {
    uint64_t kinds[HVDC_TENSOR_KINDS] = {0}, data = 0;
    bool good = true;
    for (uint32_t i = 0; i < index->tensors.count; i++) {
        const hvdc_tensor *t = hvdc_index_tensor(index, i);
        good = add(&kinds[t->kind - 1u], t->bytes) && good;
    }
    for (uint32_t i = 0; i < index->files.count; i++) good = add(&data, hvdc_index_file(index, i)->bytes) && good;
    for (uint32_t k = 0; k < HVDC_TENSOR_KINDS; k++)
        if (!good || kinds[k] != recorded_bytes(index, k + 1u))
            REFUSE(INDEX_TOTALS, "kind %" PRIu32 ": expected %" PRIu64 " bytes, found %" PRIu64, k + 1u, kinds[k],
                   recorded_bytes(index, k + 1u));
    if (data != index->geometry->data_bytes)
        REFUSE(INDEX_TOTALS, "data_bytes: expected %" PRIu64 ", found %" PRIu64, data, index->geometry->data_bytes);
    return HVDC_E_OK;
}

/* A table that steps read rows of: FP32, unpadded, of this shape. */
static bool is_table(const hvdc_index *index, uint32_t id, const uint32_t shape[HVDC_MAX_DIMS]) {
    const hvdc_tensor *t = hvdc_index_tensor(index, id);
    return t != NULL && t->kind == HVDC_TENSOR_KIND_SCHEDULE && t->dtype == HVDC_DTYPE_FLOAT32 &&
           memcmp(t->shape, shape, sizeof t->shape) == 0 && memcmp(t->padded, shape, sizeof t->padded) == 0;
}

static enum hvdc_code check_schedule(hvdc_index *index, hvdc_error *error) {
    const hvdc_geometry *g = index->geometry;
    const uint32_t adaln[HVDC_MAX_DIMS] = {g->steps, g->layers, 6, g->width};
    const uint32_t head[HVDC_MAX_DIMS] = {g->steps, 2, g->width};
    index->adaln = hvdc_index_find(index, HVDC_ADALN_NAME);
    index->head = hvdc_index_find(index, HVDC_HEAD_NAME);
    if (!is_table(index, index->adaln, adaln)) REFUSE(INDEX_SCHEDULE, "%s is missing or misshapen", HVDC_ADALN_NAME);
    if (!is_table(index, index->head, head)) REFUSE(INDEX_SCHEDULE, "%s is missing or misshapen", HVDC_HEAD_NAME);
    return HVDC_E_OK;
}

enum hvdc_code hvdc_index_check(hvdc_index *index, hvdc_error *error) {
    enum hvdc_code code = check_geometry(index, error);
    if (code == HVDC_E_OK) code = check_files(index, error);
    if (code == HVDC_E_OK) code = check_tensors(index, error);
    if (code == HVDC_E_OK) code = check_unique(index, error);
    if (code == HVDC_E_OK) code = check_scales(index, error);
    if (code == HVDC_E_OK) code = check_steps(index, error);
    if (code == HVDC_E_OK) code = check_totals(index, error);
    if (code == HVDC_E_OK) code = check_schedule(index, error);
    if (code == HVDC_E_OK) code = hvdc_index_check_calibration(index, error);
    if (code == HVDC_E_OK) code = hvdc_index_check_decoder(index, error);
    return code;
}
