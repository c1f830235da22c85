#include "check_kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "attention.h"

/* The words of a question behind its first, taken one after another. Whatever fails makes all that follows fail. */
typedef struct question {
    check_kernels *k;
    char *const *words;
    int count, at;
    bool good;
    hvdc_buffer buffers[CHECK_MAX_WORDS];
    int held;
    hvdc_failure *failure;
} question;

static const char *word(question *q) { return q->at < q->count ? q->words[q->at++] : ""; }
static uint32_t number(question *q) { return (uint32_t)strtoul(word(q), NULL, 10); }
static float real(question *q) { return strtof(word(q), NULL); }

static hvdc_buffer hold(question *q, uint64_t bytes) {
    hvdc_buffer buffer = {NULL, 0};
    q->good = q->good && hvdc_device_allocate(&q->k->device, "a file", bytes, true, &buffer, q->failure);
    if (q->good) {
        q->buffers[q->held++] = buffer;
    }
    return buffer;
}

/* A file's bytes on the device, and `slack` more; NULL for "-". */
static cl_mem input(question *q, uint64_t slack) {
    const char *path = word(q);
    if (strcmp(path, "-") == 0) {
        return NULL;
    }
    FILE *file = q->good ? fopen(path, "rb") : NULL;
    long bytes = file != NULL && fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    uint8_t *data = bytes > 0 ? malloc((size_t)bytes) : NULL;
    cl_mem memory = NULL;
    if (data != NULL && fseek(file, 0, SEEK_SET) == 0 && fread(data, 1, (size_t)bytes, file) == (size_t)bytes) {
        memory = hold(q, (uint64_t)bytes + slack).memory;
        q->good = q->good && hvdc_device_write(&q->k->device, memory, 0, data, (uint64_t)bytes, q->failure);
    } else if (q->good) {
        q->good = hvdc_fail(q->failure, HVDC_FAILURE_FILE, "%s cannot be read", path);
    }
    free(data);
    if (file != NULL) {
        (void)fclose(file);
    }
    return memory;
}

static bool output(question *q, cl_mem memory, uint64_t bytes) {
    const char *path = word(q);
    uint8_t *data = malloc((size_t)bytes);
    bool good = q->good && data != NULL && hvdc_device_read(&q->k->device, memory, 0, data, bytes, q->failure);
    FILE *file = good ? fopen(path, "wb") : NULL;
    if (good) {
        good = file != NULL && fwrite(data, 1, (size_t)bytes, file) == bytes;
        good = (file == NULL || fclose(file) == 0) && good;
        if (!good) {
            hvdc_fail(q->failure, HVDC_FAILURE_FILE, "%s cannot be written", path);
        }
    }
    free(data);
    return good;
}

static uint32_t stride_of(uint32_t width) { return (width + 31) / 32 * 32; }

static hvdc_extent extent(question *q) {
    const uint32_t rows = number(q), width = number(q);
    return (hvdc_extent){rows, stride_of(width), width};
}

static hvdc_place place(cl_mem memory) { return (hvdc_place){memory, 0}; }

static bool scratch(question *q, const hvdc_product *p) {
    hvdc_gemm *g = &q->k->gemm;
    hvdc_device_free(&q->k->device, &g->packed);
    hvdc_device_free(&q->k->device, &g->row_sums);
    hvdc_device_free(&q->k->device, &g->column_sums);
    hvdc_gemm_need(g, p->rows, p->words, p->columns, p->batches);
    return hvdc_gemm_allocate(&q->k->device, g, q->failure);
}

/* Slack for codes that a GEMM reads beyond the last row. */
static cl_mem codes(question *q, uint32_t row_bytes) { return input(q, (uint64_t)HVDC_GEMM_SLACK_ROWS * row_bytes); }

static hvdc_product product(question *q, uint32_t batches) {
    const uint32_t rows = number(q), columns = number(q), k = number(q);
    return (hvdc_product){.a = codes(q, k),
                          .a_row = k / 4,
                          .a_batch = rows * (k / 4),
                          .b = input(q, 0),
                          .b_batch = columns * (k / 4),
                          .words = k / 4,
                          .rows = rows,
                          .columns = columns,
                          .batches = batches};
}

/* sums BATCHES ROWS COLUMNS K A B OUT */
static bool sums(question *q) {
    const hvdc_product p = product(q, number(q));
    const uint64_t bytes = (uint64_t)p.batches * p.rows * p.columns * sizeof(int32_t);
    const cl_mem out = hold(q, bytes).memory;
    return q->good && scratch(q, &p) &&
           hvdc_gemm_sums(&q->k->device, &q->k->gemm, &p, out, p.columns, p.rows * p.columns, q->failure) &&
           output(q, out, bytes);
}

/* linear ROWS COLUMNS K A B SCALE SCALES BIAS|- BEFORE|- OUT: with BEFORE it is added to that. */
static bool linear(question *q) {
    const hvdc_product p = product(q, 1);
    const float scale = real(q);
    const cl_mem scales = input(q, 0), bias = input(q, 0), before = input(q, 0);
    const uint64_t bytes = (uint64_t)p.rows * p.columns * sizeof(float);
    const cl_mem out = before != NULL ? before : hold(q, bytes).memory;
    const enum hvdc_gemm_add add = before != NULL ? HVDC_GEMM_ADD_TO_OUT
                                   : bias != NULL ? HVDC_GEMM_ADD_BIAS
                                                  : HVDC_GEMM_ADD_NOTHING;
    return q->good && scratch(q, &p) &&
           hvdc_gemm_linear(&q->k->device, &q->k->gemm, &p, out, p.columns, scale, place(scales), place(bias), add,
                            q->failure) &&
           output(q, out, bytes);
}

/* time-linear ROWS COLUMNS K REPEATS: seconds of the fastest, with codes of zero; the first compiles, and does not count. */
static bool time_linear(question *q, char *answer, size_t bytes) {
    const uint32_t rows = number(q), columns = number(q), k = number(q), repeats = number(q);
    const cl_mem scales = hold(q, (uint64_t)columns * sizeof(float)).memory;
    const cl_mem out = hold(q, (uint64_t)rows * columns * sizeof(float)).memory;
    const hvdc_product p = {.a = hold(q, (uint64_t)(rows + HVDC_GEMM_SLACK_ROWS) * k).memory,
                            .a_row = k / 4,
                            .b = hold(q, (uint64_t)columns * k).memory,
                            .words = k / 4,
                            .rows = rows,
                            .columns = columns,
                            .batches = 1};
    double best = 1e9;
    bool good = q->good && scratch(q, &p);
    for (uint32_t i = 0; good && i <= repeats; ++i) {
        struct timespec start, end;
        clock_gettime(CLOCK_MONOTONIC, &start);
        good = hvdc_gemm_linear(&q->k->device, &q->k->gemm, &p, out, columns, 1.0f, place(scales), place(scales),
                                HVDC_GEMM_ADD_BIAS, q->failure) &&
               hvdc_device_finish(&q->k->device, q->failure);
        clock_gettime(CLOCK_MONOTONIC, &end);
        const double spent = (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
        best = i > 0 && spent < best ? spent : best;
    }
    (void)snprintf(answer, bytes, "%.6f", best);
    return good;
}

/* norm ROWS WIDTH EPS ONE SCALE HIDDEN GAIN SHIFT OUT */
static bool norm(question *q) {
    const hvdc_extent e = extent(q);
    const float eps = real(q), one = real(q), scale = real(q);
    const cl_mem hidden = input(q, 0), gain = input(q, 0), shift = input(q, 0);
    const cl_mem out = hold(q, (uint64_t)e.rows * e.stride).memory;
    return q->good &&
           hvdc_rows_norm(&q->k->device, &q->k->rows, e, hidden, 0, eps, place(gain), one, place(shift), scale, out,
                          q->failure) &&
           output(q, out, (uint64_t)e.rows * e.stride);
}

static hvdc_heads heads_of(uint32_t head, uint32_t keys_stored) {
    return (hvdc_heads){head, stride_of(head), keys_stored};
}

/* rms ROWS WIDTH HEAD EPS SCALE FIRST KEYS_STORED Y GAIN COSINES|- SINES|- OUT */
static bool rms(question *q) {
    const hvdc_extent e = extent(q);
    const uint32_t head = number(q);
    const float eps = real(q), scale = real(q);
    const uint32_t first = number(q);
    const hvdc_heads heads = heads_of(head, number(q));
    const cl_mem y = input(q, 0), gain = input(q, 0), cosines = input(q, 0), sines = input(q, 0);
    const uint64_t rows = heads.keys_stored > 0 ? heads.keys_stored : e.rows;
    const uint64_t bytes = q->good ? rows * (e.width / head) * heads.head_stride : 1;
    const cl_mem out = hold(q, bytes).memory;
    return q->good &&
           hvdc_rows_rms(&q->k->device, &q->k->rows, e, y, eps, place(gain), cosines, sines, first, scale, out, heads,
                         q->failure) &&
           output(q, out, bytes);
}

/* values ROWS WIDTH HEAD SCALE FIRST KEYS_STORED Y OUT */
static bool values(question *q) {
    const hvdc_extent e = extent(q);
    const uint32_t head = number(q);
    const float scale = real(q);
    const uint32_t first = number(q);
    const hvdc_heads heads = heads_of(head, number(q));
    const cl_mem y = input(q, 0);
    const uint64_t bytes = q->good ? (uint64_t)heads.keys_stored * (e.width / head) * heads.head_stride : 1;
    const cl_mem out = hold(q, bytes).memory;
    return q->good && hvdc_rows_values(&q->k->device, &q->k->rows, e, y, first, scale, out, heads, q->failure) &&
           output(q, out, bytes);
}

/* quantize|quantize-hidden|gelu ROWS WIDTH SCALE X OUT */
static bool elementwise(question *q, const char *which) {
    const hvdc_extent e = extent(q);
    const float scale = real(q);
    const cl_mem x = input(q, 0), out = hold(q, (uint64_t)e.rows * e.stride).memory;
    hvdc_device *d = &q->k->device;
    hvdc_rows *r = &q->k->rows;
    return q->good &&
           (strcmp(which, "gelu") == 0       ? hvdc_rows_gelu(d, r, e, x, scale, out, q->failure)
            : strcmp(which, "quantize") == 0 ? hvdc_rows_quantize(d, r, e, x, scale, out, q->failure)
                                             : hvdc_rows_quantize_hidden(d, r, e, x, 0, scale, out, q->failure)) &&
           output(q, out, (uint64_t)e.rows * e.stride);
}

/* add ROWS WIDTH HIDDEN Y GATE|- OUT */
static bool add(question *q) {
    const hvdc_extent e = extent(q);
    const cl_mem hidden = input(q, 0), y = input(q, 0), gate = input(q, 0);
    return q->good && hvdc_rows_add(&q->k->device, &q->k->rows, e, hidden, 0, y, place(gate), q->failure) &&
           output(q, hidden, (uint64_t)e.rows * e.stride * sizeof(uint16_t));
}

/* attention HEADS HEAD ROWS KEYS QUERY_SCALE KEY_SCALE VALUE_SCALE Q K V OUT: codes of queries, tiles of keys and values. */
static bool attention(question *q) {
    hvdc_device *d = &q->k->device;
    hvdc_attention a;
    const uint32_t heads = number(q), head = number(q), rows = number(q), count = number(q);
    const float query_scale = real(q), key_scale = real(q), value_scale = real(q);
    const cl_mem queries = codes(q, heads * stride_of(head)), keys = input(q, 0), values_of = input(q, 0);
    const hvdc_keys k = {keys, values_of, count, hvdc_attention_stored(count), key_scale, value_scale};
    const uint64_t bytes = (uint64_t)rows * heads * head * sizeof(float);
    const cl_mem out = hold(q, bytes).memory;
    const hvdc_product none = {0};
    if (!q->good || !hvdc_attention_open(d, &q->k->gemm, heads, head, rows, count, &a, q->failure)) {
        return false;
    }
    bool good = scratch(q, &none) &&
                hvdc_attention_run(d, &q->k->gemm, &q->k->rows, &a, queries, query_scale, rows, &k, out, heads * head,
                                   q->failure) &&
                output(q, out, bytes);
    hvdc_attention_release(d, &a);
    return good;
}

/* device HEAD: for heads of so many channels; answers with what was chosen. */
static bool open_device(question *q, const hvdc_gpu_options *options, char *answer, size_t bytes) {
    check_kernels *k = q->k;
    check_kernels_close(k);
    if (!hvdc_device_open(options, &k->device, q->failure)) {
        return false;
    }
    k->open = true;
    if (!hvdc_gemm_open(&k->device, options, &k->gemm, q->failure) ||
        !hvdc_rows_open(&k->device, number(q), &k->rows, q->failure)) {
        check_kernels_close(k);
        return false;
    }
    (void)snprintf(answer, bytes, "%s %u %s / %s / %s", hvdc_gpu_dot_name(k->gemm.dot),
                   (unsigned)k->device.programs_compiled, k->gemm.options, k->device.platform_name, k->device.name);
    return true;
}

void check_kernels_close(check_kernels *k) {
    if (k->open) {
        hvdc_rows_release(&k->device, &k->rows);
        hvdc_gemm_release(&k->device, &k->gemm);
        hvdc_device_close(&k->device);
    }
    memset(k, 0, sizeof *k);
}

bool check_kernel(check_kernels *k, const hvdc_gpu_options *options, char *const *words, int count, bool *known,
                  char *answer, size_t answer_bytes, hvdc_failure *failure) {
    static const struct {
        const char *name;
        bool (*ask)(question *q);
    } questions[] = {{"sums", sums}, {"linear", linear}, {"norm", norm},          {"rms", rms},
                     {"add", add},   {"values", values}, {"attention", attention}};
    question q = {.k = k, .words = words, .count = count, .at = 1, .good = true, .failure = failure};
    const char *name = words[0];
    bool good = false;
    *known = true;
    if (strcmp(name, "device") == 0) {
        return open_device(&q, options, answer, answer_bytes);
    }
    if (!k->open) {
        *known = false;
        return false;
    }
    if (strcmp(name, "quantize") == 0 || strcmp(name, "quantize-hidden") == 0 || strcmp(name, "gelu") == 0) {
        good = elementwise(&q, name);
    } else if (strcmp(name, "time-linear") == 0) {
        good = time_linear(&q, answer, answer_bytes);
    } else {
        *known = false;
        for (size_t i = 0; i < sizeof questions / sizeof questions[0]; ++i) {
            if (strcmp(name, questions[i].name) == 0) {
                *known = true;
                good = questions[i].ask(&q);
            }
        }
    }
    for (int i = 0; i < q.held; ++i) {
        hvdc_device_free(&k->device, &q.buffers[i]);
    }
    return good;
}
