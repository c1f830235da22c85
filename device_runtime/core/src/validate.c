/* The deep checks: every byte of the data files. The order, which the Python validator shares: file by file in table
 * order; in a file its hash, then for each tensor in id order the gap before it, its padding, its values, what
 * calibration asks of them; then the gap after the last tensor. A decoder's files are opaque: of them the hash is all.
 * The first fault is the answer. */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "artifact_internal.h"
#include "error.h"
#include "sha256.h"

/* A tensor with what messages and checks need. */
typedef struct stored {
    const hvdc_tensor *tensor;
    const uint8_t *data;
    const char *path, *name;
    bool is_scale;
} stored;

static enum hvdc_code check_hash(const hvdc_file *file, const hvdc_span *span, hvdc_error *error) {
    uint8_t digest[HVDC_SHA256_BYTES];
    hvdc_sha256 sha;
    hvdc_sha256_init(&sha);
    hvdc_sha256_update(&sha, span->data, (size_t)span->bytes);
    hvdc_sha256_final(&sha, digest);
    if (memcmp(digest, file->sha256, sizeof digest) != 0)
        return hvdc_refuse(error, HVDC_E_DATA_HASH, span->path, "its SHA-256 is not the one in %s", HVDC_INDEX_NAME);
    return HVDC_E_OK;
}

static enum hvdc_code check_gap(const hvdc_span *file, uint64_t start, uint64_t end, hvdc_error *error) {
    for (uint64_t at = start; at < end; at++)
        if (file->data[at] != 0)
            return hvdc_refuse(error, HVDC_E_DATA_PADDING, file->path, "byte %" PRIu64 " between tensors is %u", at,
                               (unsigned)file->data[at]);
    return HVDC_E_OK;
}

/* Of an element; at least 1, since an index with another dtype was refused. */
static uint64_t element_bytes(const stored *s) {
    uint64_t bytes = HVDC_DTYPE_BYTES(s->tensor->dtype);
    return bytes == 0 ? 1 : bytes;
}

/* Whether the stored elements [first, last) hold what padding holds: 1.0 in scales, else zeros; as bits. */
static bool is_filler(const stored *s, uint64_t first, uint64_t last) {
    static const uint8_t one[4] = {0x00, 0x00, 0x80, 0x3f}, zero[8];
    uint64_t size = element_bytes(s);
    for (uint64_t i = first; i < last; i++)
        if (memcmp(s->data + i * size, s->is_scale ? one : zero, (size_t)size) != 0) return false;
    return true;
}

static enum hvdc_code refuse_padding(const stored *s, hvdc_error *error) {
    return hvdc_refuse(error, HVDC_E_DATA_PADDING, s->path, "padding of %s is not %s", s->name,
                       s->is_scale ? "ones" : "zeros");
}

/* Row-major: goes through the rows along the last axis; `at` counts the others like an odometer. */
static enum hvdc_code check_row_major_padding(const stored *s, hvdc_error *error) {
    const hvdc_tensor *t = s->tensor;
    uint32_t last = t->dims - 1u, at[HVDC_MAX_DIMS] = {0};
    uint64_t elements = t->bytes / element_bytes(s);
    for (uint64_t row = 0; row < elements; row += t->padded[last]) {
        bool inside = true;
        for (uint32_t d = 0; d < last; d++) inside = inside && at[d] < t->shape[d];
        if (!is_filler(s, row + (inside ? t->shape[last] : 0u), row + t->padded[last])) return refuse_padding(s, error);
        for (uint32_t d = last; d-- > 0;) {
            if (++at[d] < t->padded[d]) break;
            at[d] = 0;
        }
    }
    return HVDC_E_OK;
}

/* Tiles that lie inside the logical shape have no padding; `tile` is the first element of the others. */
static enum hvdc_code check_tile_padding(const stored *s, hvdc_error *error) {
    const hvdc_tensor *t = s->tensor;
    const uint32_t order = t->tile_order, rows = HVDC_TILE_ORDER_ROWS(order), cols = HVDC_TILE_ORDER_COLS(order);
    uint64_t n = t->shape[0], k = t->shape[1], tile = 0;
    for (uint64_t n0 = 0; n0 < t->padded[0]; n0 += cols)
        for (uint64_t k0 = 0; k0 < t->padded[1]; k0 += rows, tile += (uint64_t)rows * cols) {
            if (n0 + cols <= n && k0 + rows <= k) continue;
            for (uint32_t row = 0; row < rows; row++)
                for (uint32_t col = 0; col < cols; col++) {
                    uint64_t at = tile + HVDC_TILE_ORDER_OFFSET(order, row, col);
                    if ((k0 + row >= k || n0 + col >= n) && !is_filler(s, at, at + 1u)) return refuse_padding(s, error);
                }
        }
    return HVDC_E_OK;
}

static enum hvdc_code check_padding(const stored *s, hvdc_error *error) {
    const hvdc_tensor *t = s->tensor;
    if (memcmp(t->shape, t->padded, sizeof t->shape) == 0) return HVDC_E_OK;
    return t->tile_order == HVDC_TILE_ROW_MAJOR_ID ? check_row_major_padding(s, error) : check_tile_padding(s, error);
}

static enum hvdc_code check_floats(const stored *s, hvdc_error *error) {
    uint64_t size = element_bytes(s);
    for (uint64_t at = 0; at < s->tensor->bytes; at += size) {
        double value;
        if (size == 4u) {
            float narrow;
            memcpy(&narrow, s->data + at, sizeof narrow);
            value = (double)narrow;
        } else {
            memcpy(&value, s->data + at, sizeof value);
        }
        if (s->is_scale ? isfinite(value) && value > 0 : isfinite(value)) continue;
        return hvdc_refuse(error, s->is_scale ? HVDC_E_DATA_SCALE : HVDC_E_DATA_NOT_FINITE, s->path,
                           "element %" PRIu64 " of %s is %g", at / size, s->name, value);
    }
    return HVDC_E_OK;
}

static enum hvdc_code check_values(const stored *s, hvdc_error *error) {
    if (s->tensor->dtype == HVDC_DTYPE_UINT8) return HVDC_E_OK;
    if (s->tensor->dtype != HVDC_DTYPE_INT8) return check_floats(s, error);
    const uint8_t *bad = memchr(s->data, 0x80, (size_t)s->tensor->bytes);
    if (bad != NULL)
        return hvdc_refuse(error, HVDC_E_DATA_MINUS_128, s->path, "stored byte %" PRIu64 " of %s is -128",
                           (uint64_t)(bad - s->data), s->name);
    return HVDC_E_OK;
}

/* Whether an engine may divide by it: FLT_MIN, 2^-126, is the smallest normal number. */
static bool is_divisor(float value) { return isfinite(value) && value >= FLT_MIN; }

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* One scale of the table: 0 where its input does not exist; `first` is that of the first step of the same expert. */
static bool is_activation_scale(float value, float first, bool exists, bool per_expert) {
    if (!exists) return bits_of(value) == 0; /* -0.0 is not it */
    return is_divisor(value) && (!per_expert || bits_of(value) == bits_of(first));
}

static uint32_t first_step_of(const hvdc_index *index, uint32_t expert) {
    uint32_t step = 0;
    while (hvdc_index_step(index, step)->expert != expert) step++;
    return step;
}

static enum hvdc_code check_activation_scales(const hvdc_artifact *artifact, const stored *s, hvdc_error *error) {
    const hvdc_index *index = &artifact->index;
    for (uint32_t step = 0; step < index->geometry->steps; step++) {
        uint32_t expert = hvdc_index_step(index, step)->expert, first = first_step_of(index, expert);
        for (uint32_t block = 0; block < index->geometry->layers; block++)
            for (uint32_t i = 0; i < index->inputs.count; i++) {
                const hvdc_gemm_input *input = hvdc_index_input(index, i);
                float value = hvdc_artifact_activation_scale(artifact, step, block, i);
                float at_first = hvdc_artifact_activation_scale(artifact, first, block, i);
                bool exists = ((uint32_t)input->experts >> expert & 1u) != 0;
                if (!is_activation_scale(value, at_first, exists, input->per == HVDC_SCALE_PER_EXPERT))
                    return hvdc_refuse(error, HVDC_E_DATA_CALIBRATION, s->path,
                                       "%s: step %" PRIu32 ", block %" PRIu32 ", %s is %g", s->name, step, block,
                                       index->strings + input->name, (double)value);
            }
    }
    return HVDC_E_OK;
}

static enum hvdc_code check_smoothing(const stored *s, hvdc_error *error) {
    for (uint64_t i = 0; i < s->tensor->bytes / sizeof(float); i++) {
        float value;
        memcpy(&value, s->data + i * sizeof value, sizeof value);
        if (!is_divisor(value))
            return hvdc_refuse(error, HVDC_E_DATA_CALIBRATION, s->path, "element %" PRIu64 " of %s is %g", i, s->name,
                               (double)value);
    }
    return HVDC_E_OK;
}

static enum hvdc_code check_calibration(const hvdc_artifact *artifact, uint32_t id, const stored *s,
                                        hvdc_error *error) {
    if (s->tensor->kind != HVDC_TENSOR_KIND_CALIBRATION) return HVDC_E_OK;
    return id == artifact->index.calibration->table ? check_activation_scales(artifact, s, error)
                                                    : check_smoothing(s, error);
}

static enum hvdc_code check_file(const hvdc_artifact *artifact, uint32_t i, hvdc_error *error) {
    const hvdc_file *file = hvdc_index_file(&artifact->index, i);
    hvdc_span span;
    (void)hvdc_artifact_file_span(artifact, i, &span);
    enum hvdc_code code = check_hash(file, &span, error);
    uint64_t end = 0;
    for (uint32_t id = file->first_tensor; code == HVDC_E_OK && id < file->first_tensor + file->tensor_count; id++) {
        const hvdc_tensor *t = hvdc_index_tensor(&artifact->index, id);
        stored s = {
            .tensor = t,
            .data = span.data + t->offset,
            .path = span.path,
            .name = artifact->index.strings + t->name,
            .is_scale = artifact->index.is_scale[id] != 0,
        };
        code = check_gap(&span, end, t->offset, error);
        if (code == HVDC_E_OK) code = check_padding(&s, error);
        if (code == HVDC_E_OK) code = check_values(&s, error);
        if (code == HVDC_E_OK) code = check_calibration(artifact, id, &s, error);
        end = t->offset + t->bytes;
    }
    return code == HVDC_E_OK ? check_gap(&span, end, span.bytes, error) : code;
}

enum hvdc_code hvdc_artifact_validate_deep(const hvdc_artifact *artifact, hvdc_error *error) {
    enum hvdc_code code = HVDC_E_OK;
    if (error != NULL) *error = (hvdc_error){.code = HVDC_E_OK};
    for (uint32_t i = 0; code == HVDC_E_OK && i < artifact->index.files.count; i++)
        code = check_file(artifact, i, error);
    return code;
}

enum hvdc_code hvdc_artifact_opaque(const hvdc_artifact *artifact, uint32_t tensor, hvdc_span *span,
                                    hvdc_error *error) {
    const hvdc_tensor *t = hvdc_index_tensor(&artifact->index, tensor);
    if (error != NULL) *error = (hvdc_error){.code = HVDC_E_OK};
    *span = (hvdc_span){.fd = -1};
    if (t == NULL || t->kind != HVDC_TENSOR_KIND_DECODER)
        return hvdc_refuse(error, HVDC_E_MISSING_FILE, HVDC_INDEX_NAME, "tensor %" PRIu32 " is no file of a decoder",
                           tensor);
    hvdc_span found;
    (void)hvdc_artifact_file_span(artifact, t->file, &found); /* the file is the tensor */
    enum hvdc_code code = check_hash(hvdc_index_file(&artifact->index, t->file), &found, error);
    if (code == HVDC_E_OK) *span = found;
    return code;
}
