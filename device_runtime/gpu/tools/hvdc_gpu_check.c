/* hvdc_gpu_check [KEY=VALUE]…: answers questions about the GPU's engine on standard input, one line each; tests ask.
 *
 * Keys are those of hvdc_gpu_options: cache, library, platform, device, dot, emulate, as-gpu, gemm-shape, import,
 * max-buffer, max-rows, profile; and
 * probe=1, a writable object of shared memory by which ways of importing are judged (a file without a name), shared=1, data files
 * copied into such objects and read from there; hardware-buffer=1, the probe's address in the place of an AHardwareBuffer.
 *
 *   open ARTIFACT FRAMES ROWS COLUMNS    an engine; a grid of zeros is the artifact's own
 *   text EXPERT FILE                     FP32 [text_tokens][width]
 *   run STEP FIRST COUNT FILE OUT        FP32 [tokens][width], in and out
 *   time STEP FIRST COUNT FILE           seconds of the same
 *   slice STEP BLOCK LINEAR ROWS TILES FILE OUT    FP16 [rows][padded k] in, FP32 [rows][32 tiles] out; LINEAR by number
 *   memory | forecast | describe | close
 *   profile                              with profile=1: NAME SECONDS LAUNCHES of each kernel
 *   import                               only how memory would be shared
 *   weights ARTIFACT                     only the weights: WINDOWS BYTES that the device sees in place
 *   device …, sums …, norm …             single kernels: check_kernels.c
 *
 * The answer is "ok …" or "no KIND: SENTENCE". Exit status: 0 at the end of the input, 2 for another question. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check_kernels.h"
#include "engine.h"
#include "shared_files.h"

#define LINE_BYTES 8192
#define SLICE_LIMIT ((size_t)1 << 28)

typedef struct session {
    hvdc_gpu_options options;
    hvdc_gpu_probe probe;
    bool shared;
    hvdc_artifact *artifact;
    shared_files files;
    hvdc_weights weights;
    hvdc_engine *engine;
    check_kernels kernels;
} session;

static void close_engine(session *s) {
    hvdc_engine_close(s->engine);
    shared_files_close(&s->files);
    hvdc_artifact_close(s->artifact);
    s->engine = NULL;
    s->artifact = NULL;
}

static bool open_engine(session *s, char *const *words, int count, hvdc_failure *failure) {
    hvdc_error error;
    close_engine(s);
    if (count < 5) {
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "open ARTIFACT FRAMES ROWS COLUMNS");
    }
    if (hvdc_artifact_open(words[1], &s->artifact, &error) != HVDC_E_OK) {
        return hvdc_fail(failure, HVDC_FAILURE_ARTIFACT, "%s: %.400s", error.file, error.message);
    }
    for (int i = 0; i < 3; ++i) {
        s->options.grid[i] = (uint32_t)strtoul(words[2 + i], NULL, 10);
    }
    s->weights = (hvdc_weights){.artifact = s->artifact};
    if (s->shared) {
        if (!shared_files_open(s->artifact, &s->files, failure)) {
            return false;
        }
        s->weights.files = s->files.data;
        s->weights.fds = s->files.fds;
    }
    return hvdc_gpu_open(&s->weights, &s->options, &s->engine, failure);
}

static float *read_floats(const char *path, size_t count, hvdc_failure *failure) {
    FILE *file = fopen(path, "rb");
    float *data = malloc(count * sizeof *data);
    bool good = file != NULL && data != NULL && fread(data, sizeof *data, count, file) == count && fgetc(file) == EOF;
    if (file != NULL) {
        (void)fclose(file);
    }
    if (!good) {
        hvdc_fail(failure, HVDC_FAILURE_FILE, "%s is not a file of %zu FP32 numbers", path, count);
        free(data);
        return NULL;
    }
    return data;
}

static bool set_text(session *s, char *const *words, hvdc_failure *failure) {
    const hvdc_geometry *g = hvdc_artifact_geometry(s->artifact);
    float *text = read_floats(words[2], (size_t)g->text_tokens * g->width, failure);
    bool good = text != NULL && s->engine->set_text(s->engine, (uint32_t)strtoul(words[1], NULL, 10), text, failure);
    free(text);
    return good;
}

static size_t hidden_count(const session *s) {
    const hvdc_geometry *g = hvdc_artifact_geometry(s->artifact);
    const uint32_t *grid = s->options.grid;
    const size_t tokens = grid[0] == 0 ? g->tokens : (size_t)grid[0] * grid[1] * grid[2];
    return tokens * g->width;
}

static bool run(session *s, char *const *words, int count, char *answer, size_t bytes, hvdc_failure *failure) {
    const size_t numbers = hidden_count(s);
    float *hidden = read_floats(words[4], numbers, failure);
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    bool good = hidden != NULL &&
                s->engine->run(s->engine, (uint32_t)strtoul(words[1], NULL, 10), (uint32_t)strtoul(words[2], NULL, 10),
                               (uint32_t)strtoul(words[3], NULL, 10), hidden, failure);
    clock_gettime(CLOCK_MONOTONIC, &end);
    (void)snprintf(answer, bytes, "%.6f",
                   (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec));
    if (good && count > 5) {
        FILE *file = fopen(words[5], "wb");
        good = file != NULL && fwrite(hidden, sizeof *hidden, numbers, file) == numbers;
        good = (file == NULL || fclose(file) == 0) && good;
        if (!good) {
            hvdc_fail(failure, HVDC_FAILURE_FILE, "%s cannot be written", words[5]);
        }
    }
    free(hidden);
    return good;
}

static bool slice_numbers(const session *s, const hvdc_slice *slice, size_t *in, size_t *out) {
    const hvdc_geometry *g = hvdc_artifact_geometry(s->artifact);
    const size_t k = slice->linear == HVDC_FFN_DOWN ? g->ffn_width : g->width;
    *in = slice->rows * ((k + HVDC_SLICE_COLUMNS - 1) / HVDC_SLICE_COLUMNS * HVDC_SLICE_COLUMNS);
    *out = (size_t)slice->rows * slice->tiles * HVDC_SLICE_COLUMNS;
    return *in > 0 && *in < SLICE_LIMIT && *out < SLICE_LIMIT;
}

static bool multiply(session *s, char *const *words, hvdc_failure *failure) {
    uint32_t n[5];
    for (int i = 0; i < 5; ++i) {
        n[i] = (uint32_t)strtoul(words[1 + i], NULL, 10);
    }
    const hvdc_slice slice = {.step = n[0], .block = n[1], .linear = n[2], .rows = n[3], .tiles = n[4]};
    size_t in, out;
    if (!slice_numbers(s, &slice, &in, &out)) {
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "a slice of %u rows", (unsigned)slice.rows);
    }
    hvdc_exchange exchange = {.values = in > out ? in : out};
    exchange.input = malloc(in * sizeof *exchange.input);
    exchange.output = calloc(out + 1, sizeof *exchange.output);
    FILE *file = fopen(words[6], "rb");
    bool good = file != NULL && exchange.input != NULL && exchange.output != NULL &&
                fread(exchange.input, sizeof *exchange.input, in, file) == in && fgetc(file) == EOF;
    good = (file == NULL || fclose(file) == 0) && good;
    if (!good) {
        hvdc_fail(failure, HVDC_FAILURE_FILE, "%s is not a file of %zu FP16 numbers", words[6], in);
    }
    good = good && hvdc_gpu_multiply(s->engine, &slice, &exchange, failure);
    file = good ? fopen(words[7], "wb") : NULL;
    if (good && (file == NULL || fwrite(exchange.output, sizeof *exchange.output, out, file) != out)) {
        good = hvdc_fail(failure, HVDC_FAILURE_FILE, "%s cannot be written", words[7]);
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    free(exchange.input);
    free(exchange.output);
    return good;
}

static bool choose_import(session *s, char *answer, size_t bytes, hvdc_failure *failure) {
    hvdc_device device;
    hvdc_import import;
    if (!hvdc_device_open(&s->options, &device, failure)) {
        return false;
    }
    bool good = hvdc_import_choose(&device, &s->options, &import, failure);
    (void)snprintf(answer, bytes, "%s %u", hvdc_gpu_import_name(import.way), (unsigned)import.policy);
    hvdc_device_close(&device);
    return good;
}

/* The weights alone, which needs no kernel but the probe's. */
static bool see_weights(session *s, const char *path, char *answer, size_t bytes, hvdc_failure *failure) {
    hvdc_device device;
    hvdc_model model;
    hvdc_error error;
    close_engine(s);
    if (hvdc_artifact_open(path, &s->artifact, &error) != HVDC_E_OK) {
        return hvdc_fail(failure, HVDC_FAILURE_ARTIFACT, "%s: %.400s", error.file, error.message);
    }
    s->weights = (hvdc_weights){.artifact = s->artifact};
    if (s->shared && !shared_files_open(s->artifact, &s->files, failure)) {
        return false;
    }
    s->weights.files = s->files.data;
    s->weights.fds = s->files.fds;
    if (!hvdc_device_open(&s->options, &device, failure)) {
        return false;
    }
    bool good = hvdc_model_open(&device, &s->weights, &s->options, &model, failure);
    if (good) {
        (void)snprintf(answer, bytes, "%u %llu", (unsigned)model.window_count,
                       (unsigned long long)model.imported_bytes);
        hvdc_model_close(&device, &model);
    }
    hvdc_device_close(&device);
    return good;
}

static void describe(const session *s, char *answer, size_t bytes) {
    const hvdc_gpu_description *d = hvdc_gpu_describe(s->engine);
    (void)snprintf(answer, bytes,
                   "dot=%s import=%s compiled=%u attention_rows=%u largest=%llu imported=%llu / %s / %s / %s",
                   hvdc_gpu_dot_name(d->dot), hvdc_gpu_import_name(d->import), (unsigned)d->programs_compiled,
                   (unsigned)d->attention_rows, (unsigned long long)d->largest_buffer_bytes,
                   (unsigned long long)d->imported_bytes, d->gemm, d->platform, d->device);
}

static bool ask(session *s, char *const *words, int count, bool *known, char *answer, size_t bytes,
                hvdc_failure *failure) {
    const char *name = words[0];
    *known = true;
    if (strcmp(name, "open") == 0) {
        return open_engine(s, words, count, failure);
    }
    if (strcmp(name, "import") == 0) {
        return choose_import(s, answer, bytes, failure);
    }
    if (count == 2 && strcmp(name, "weights") == 0) {
        return see_weights(s, words[1], answer, bytes, failure);
    }
    if (s->engine != NULL && strcmp(name, "close") == 0) {
        close_engine(s);
        return true;
    }
    if (s->engine != NULL && strcmp(name, "forecast") == 0) {
        uint64_t forecast = 0;
        const bool good = hvdc_gpu_forecast(s->artifact, &s->options, &forecast, failure);
        (void)snprintf(answer, bytes, "%llu", (unsigned long long)forecast);
        return good;
    }
    if (s->engine != NULL && strcmp(name, "memory") == 0) {
        (void)snprintf(answer, bytes, "%llu", (unsigned long long)s->engine->memory_bytes(s->engine));
        return true;
    }
    if (s->engine != NULL && strcmp(name, "profile") == 0) {
        hvdc_gpu_kernel kernel;
        for (uint32_t i = 0; hvdc_gpu_profile(s->engine, i, &kernel); ++i) {
            const size_t used = strlen(answer);
            (void)snprintf(answer + used, bytes - used, "%s %.6f %llu ", kernel.name, kernel.seconds,
                           (unsigned long long)kernel.launches);
        }
        return true;
    }
    if (s->engine != NULL && strcmp(name, "describe") == 0) {
        describe(s, answer, bytes);
        return true;
    }
    if (s->engine != NULL && count >= 3 && strcmp(name, "text") == 0) {
        return set_text(s, words, failure);
    }
    if (s->engine != NULL && count >= 5 && (strcmp(name, "run") == 0 || strcmp(name, "time") == 0)) {
        return run(s, words, count, answer, bytes, failure);
    }
    if (s->engine != NULL && count >= 8 && strcmp(name, "slice") == 0) {
        return multiply(s, words, failure);
    }
    return check_kernel(&s->kernels, &s->options, words, count, known, answer, bytes, failure);
}

static int index_of(const char *name, const char *(*name_of)(int), int count) {
    for (int i = 0; i < count; ++i) {
        if (strcmp(name, name_of(i)) == 0) {
            return i;
        }
    }
    return 0;
}
static const char *dot_name(int i) { return hvdc_gpu_dot_name((enum hvdc_gpu_dot)i); }
static const char *import_name(int i) { return hvdc_gpu_import_name((enum hvdc_gpu_import)i); }

static bool set_option(session *s, const char *option) {
    const char *value = strchr(option, '=');
    if (value == NULL) {
        return false;
    }
    const size_t length = (size_t)(value++ - option);
    hvdc_gpu_options *o = &s->options;
#define IS(name) (strlen(name) == length && strncmp(option, name, length) == 0)
    if (IS("cache")) {
        o->cache_directory = value[0] == 0 ? NULL : value;
    } else if (IS("library")) {
        o->library = value;
    } else if (IS("platform")) {
        o->platform = value;
    } else if (IS("device")) {
        o->device = value;
    } else if (IS("dot")) {
        o->dot = (enum hvdc_gpu_dot)index_of(value, dot_name, HVDC_GPU_DOT_PLAIN + 1);
    } else if (IS("emulate")) {
        o->emulate_dot = true;
    } else if (IS("profile")) {
        o->profile = true;
    } else if (IS("as-gpu")) {
        o->as_gpu = true;
    } else if (IS("gemm-shape")) {
        o->gemm_shape = (uint32_t)strtoul(value, NULL, 10);
    } else if (IS("import")) {
        o->import = (enum hvdc_gpu_import)index_of(value, import_name, HVDC_GPU_IMPORT_COPY + 1);
    } else if (IS("max-buffer")) {
        o->max_buffer_bytes = strtoull(value, NULL, 10);
    } else if (IS("max-rows")) {
        o->max_rows = (uint32_t)strtoul(value, NULL, 10);
    } else if (IS("probe")) {
        return shared_probe(&s->probe) && (o->probe = &s->probe) != NULL;
    } else if (IS("hardware-buffer")) {
        s->probe.hardware_buffer = s->probe.data;
    } else if (IS("shared")) {
        s->shared = true;
    } else {
        return false;
    }
#undef IS
    return true;
}

int main(int argc, char **argv) {
    static session s;
    char line[LINE_BYTES];
    int status = 0;
    s.probe = (hvdc_gpu_probe){NULL, 0, -1, NULL};
    for (int i = 1; i < argc; ++i) {
        if (!set_option(&s, argv[i])) {
            (void)fprintf(stderr, "hvdc_gpu_check: %s is no option\n", argv[i]);
            return 2;
        }
    }
    while (status == 0 && fgets(line, sizeof line, stdin) != NULL) {
        char *words[CHECK_MAX_WORDS], *rest = NULL, answer[2048] = "";
        int count = 0;
        hvdc_failure failure = {HVDC_FAILURE_NONE, ""};
        bool known = false;
        for (char *word = strtok_r(line, " \n", &rest); word != NULL && count < CHECK_MAX_WORDS;
             word = strtok_r(NULL, " \n", &rest)) {
            words[count++] = word;
        }
        const bool good = count > 0 && ask(&s, words, count, &known, answer, sizeof answer, &failure);
        if (!known) {
            status = 2;
        } else if (good) {
            printf("ok %s\n", answer);
        } else {
            printf("no %d: %s\n", (int)failure.kind, failure.message);
        }
        (void)fflush(stdout);
    }
    close_engine(&s);
    check_kernels_close(&s.kernels);
    shared_probe_close(&s.probe);
    return status;
}
