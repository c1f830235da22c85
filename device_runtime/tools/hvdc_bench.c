/* hvdc_bench: what a block takes on each engine of this machine, alone and while the other one works. `--help` says more;
 * docs/RUNTIME.md says what the numbers mean. The engines are two threads of one process here, two processes in
 * hvdc_runner. Blocks are executed on made-up numbers, each on what the one before left: norms keep that bounded. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_series.h"
#include "hvdc/clock.h"
#include "hvdc/host.h"
#include "hvdc/json.h"
#include "hvdc/npu.h"
#ifdef HVDC_WITH_GPU
#include "hvdc/gpu.h"
#endif

#define REPORT_VERSION 1

enum { EXIT_STEADY = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_UNSTEADY = 3, EXIT_ARTIFACT = 4, EXIT_DEVICE = 5 };

static const char HELP[] =
    "usage: hvdc_bench ARTIFACT [options]\n"
    "\n"
    "Measures seconds per block of the NPU's and of the GPU's engine on this machine: each alone, then both at once;\n"
    "of the semantic and of the detail expert; and what a prompt's text takes. Videos are not made.\n"
    "\n"
    "  --engine both|npu|gpu what to measure (both)\n"
    "  --tokens N            tokens of a block; the artifact's own number\n"
    "  --warm-up N           blocks of each expert that are executed before any is counted (1)\n"
    "  --repeat N            blocks of each expert that are counted, 1 to 1000 (5)\n"
    "  --threads N           threads of the NPU's engine and of the CPU; one for each processor\n"
    "  --spread-limit X      (largest - smallest) / median of a series above this is not steady (0.1)\n"
    "  --platform TEXT  --device TEXT  --kernel-cache DIR\n"
    "                        OpenCL platform and device, by index or a part of the name; where kernels are kept\n"
    "  --json                the report as JSON on standard output, in place of a table\n"
    "\n"
    "Exit statuses: 0 measured; 3 measured, but not steady; 1 failure; 2 usage; 4 an artifact that cannot be used;\n"
    "5 no device.\n";

typedef struct options {
    const char *artifact, *platform, *device, *kernel_cache;
    bool npu, gpu, json, help;
    uint32_t tokens, warm_up, repeat, threads;
    double spread_limit;
} options;

typedef struct bench {
    options options;
    hvdc_artifact *artifact;
    hvdc_weights weights;
    hvdc_trajectory trajectory; /* its tokens are those that are measured */
    uint32_t own_tokens;
    hvdc_pool *pool;
    hvdc_host *host;
    hvdc_engine *engines[2];
    bench_engine measured[2];
    bench_series projection[HVDC_TIMED_EXPERTS]; /* of a prompt's embeddings, on the CPU */
    bool steady;
} bench;

enum { NPU = 0, GPU, ENGINES };
static const char *const ENGINE_NAMES[ENGINES] = {"npu", "gpu"};
static const char *const EXPERT_NAMES[HVDC_TIMED_EXPERTS] = {"semantic", "detail"};

static bool count_of(const char *text, uint32_t least, uint32_t most, uint32_t *count) {
    char *end;
    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != 0 || errno != 0 || value < least || value > most) return false;
    *count = (uint32_t)value;
    return true;
}

static bool take(options *o, const char *name, const char *value) {
    if (strcmp(name, "--engine") == 0) {
        o->npu = strcmp(value, "gpu") != 0;
        o->gpu = strcmp(value, "npu") != 0;
        return !(o->npu && o->gpu) || strcmp(value, "both") == 0;
    }
    if (strcmp(name, "--tokens") == 0) return count_of(value, 1, UINT32_MAX, &o->tokens);
    if (strcmp(name, "--warm-up") == 0) return count_of(value, 0, BENCH_REPEAT_MAX, &o->warm_up);
    if (strcmp(name, "--repeat") == 0) return count_of(value, 1, BENCH_REPEAT_MAX, &o->repeat);
    if (strcmp(name, "--threads") == 0) return count_of(value, 0, HVDC_POOL_MAX_THREADS, &o->threads);
    if (strcmp(name, "--spread-limit") == 0) {
        char *end;
        o->spread_limit = strtod(value, &end);
        return end != value && *end == 0 && isfinite(o->spread_limit) && o->spread_limit >= 0.0;
    }
    const char **text = strcmp(name, "--platform") == 0 ? &o->platform
                        : strcmp(name, "--device") == 0 ? &o->device
                                                        : &o->kernel_cache;
    *text = value;
    return *value != 0;
}

static bool parse(int argc, char *const *argv, options *o, hvdc_failure *failure) {
    static const char *const valued[] = {"--engine",       "--tokens",   "--warm-up", "--repeat",      "--threads",
                                         "--spread-limit", "--platform", "--device",  "--kernel-cache"};
    *o = (options){.npu = true, .gpu = true, .warm_up = 1, .repeat = 5, .spread_limit = 0.1};
    for (int i = 1; i < argc; i++) {
        size_t known = 0;
        while (known < sizeof valued / sizeof *valued && strcmp(argv[i], valued[known]) != 0) known++;
        if (strcmp(argv[i], "--json") == 0) {
            o->json = true;
        } else if (strcmp(argv[i], "--help") == 0) {
            o->help = true;
        } else if (known < sizeof valued / sizeof *valued) {
            if (i + 1 == argc) return hvdc_fail(failure, HVDC_FAILURE_USAGE, "%s needs a value", argv[i]);
            if (!take(o, argv[i], argv[i + 1]))
                return hvdc_fail(failure, HVDC_FAILURE_USAGE, "%s does not take %s; see hvdc_bench --help", argv[i],
                                 argv[i + 1]);
            i++;
        } else if (argv[i][0] == '-' || o->artifact != NULL) {
            return hvdc_fail(failure, HVDC_FAILURE_USAGE,
                             "%s is no option, or one argument too many; see hvdc_bench --help", argv[i]);
        } else {
            o->artifact = argv[i];
        }
    }
    return o->help || o->artifact != NULL ||
           hvdc_fail(failure, HVDC_FAILURE_USAGE, "ARTIFACT is missing; see hvdc_bench --help");
}

static bool open_gpu(bench *b, const hvdc_grid *grid, hvdc_failure *failure) {
#ifdef HVDC_WITH_GPU
    const hvdc_gpu_options gpu = {.grid = {grid->frames, grid->rows, grid->columns},
                                  .platform = b->options.platform,
                                  .device = b->options.device,
                                  .cache_directory = b->options.kernel_cache};
    return hvdc_gpu_open(&b->weights, &gpu, &b->engines[GPU], failure);
#else
    (void)b, (void)grid;
    return hvdc_fail(failure, HVDC_FAILURE_DEVICE, "this program was built without the executor of the GPU");
#endif
}

/* Positions do not change what a block takes, so that any grid of so many tokens serves: one row, or, if that is too
 * long, the fewest that are alike. 0 is the artifact's own. */
static hvdc_grid grid_of(uint32_t tokens) {
    if (tokens == 0) return (hvdc_grid){0, 0, 0};
    for (uint32_t rows = 1; rows <= HVDC_GRID_AXIS_MAX; rows++)
        if (tokens % rows == 0 && tokens / rows <= HVDC_GRID_AXIS_MAX) return (hvdc_grid){1, rows, tokens / rows};
    return (hvdc_grid){1, 1, tokens}; /* which is refused */
}

static bool open_all(bench *b, hvdc_failure *failure) {
    const options *o = &b->options;
    hvdc_error error;
    if (hvdc_artifact_open(o->artifact, &b->artifact, &error) != HVDC_E_OK)
        return hvdc_fail(failure, HVDC_FAILURE_ARTIFACT, "the artifact %s cannot be used: %s: %s [%s]", o->artifact,
                         error.file, error.message, hvdc_code_name(error.code));
    b->weights = (hvdc_weights){.artifact = b->artifact};
    b->trajectory = hvdc_trajectory_of(b->artifact);
    b->own_tokens = b->trajectory.tokens;
    if (o->gpu && hvdc_artifact_calibration(b->artifact) == NULL)
        return hvdc_fail(
            failure, HVDC_FAILURE_USAGE,
            "the artifact %s has no activation scales, which the GPU needs: give --engine npu, or compile it "
            "with --prompts or --calibration",
            o->artifact);
    const hvdc_grid asked = grid_of(o->tokens);
    hvdc_grid grid;
    if (!hvdc_grid_resolve(b->artifact, &asked, &grid, failure)) return false;
    b->trajectory.tokens = hvdc_grid_tokens(&grid);
    const hvdc_npu_options npu = {.threads = o->threads, .grid = grid};
    return hvdc_pool_open(o->threads, &b->pool, failure) &&
           hvdc_host_open(&b->weights, &grid, b->pool, &b->host, failure) &&
           (!o->npu || hvdc_npu_open(&b->weights, &npu, &b->engines[NPU], failure)) &&
           (!o->gpu || open_gpu(b, &grid, failure));
}

static void close_all(bench *b) {
    for (int i = 0; i < ENGINES; i++) {
        bench_engine_end(&b->measured[i]);
        hvdc_engine_close(b->engines[i]);
    }
    for (uint32_t e = 0; e < HVDC_TIMED_EXPERTS; e++) bench_series_close(&b->projection[e]);
    hvdc_host_close(b->host);
    hvdc_pool_close(b->pool);
    hvdc_artifact_close(b->artifact);
}

static bool project(bench *b, const hvdc_timing *timing, hvdc_failure *failure) {
    const hvdc_trajectory *t = &b->trajectory;
    float *embeds = calloc((size_t)t->text_tokens * t->text_width, sizeof *embeds);
    float *text = malloc((size_t)t->text_tokens * t->width * sizeof *text);
    bool good =
        (embeds != NULL && text != NULL) || hvdc_fail(failure, HVDC_FAILURE_MEMORY, "there is no memory for a text");
    for (uint32_t e = 0; good && e < HVDC_TIMED_EXPERTS; e++) {
        if (!timing->exists[e]) continue;
        bench_series *series = &b->projection[e];
        good = bench_series_open(series, b->options.repeat, failure);
        for (uint64_t i = 0; good && i < (uint64_t)b->options.warm_up + b->options.repeat; i++) {
            const uint64_t start = hvdc_clock_ns();
            good = hvdc_host_project_text(b->host, e, embeds, text, failure);
            if (i >= b->options.warm_up) series->seconds[series->count++] = (double)(hvdc_clock_ns() - start) * 1e-9;
        }
    }
    free(embeds);
    free(text);
    return good;
}

static bool measure(bench *b, hvdc_failure *failure) {
    const options *o = &b->options;
    bool good = true;
    for (int i = 0; good && i < ENGINES; i++)
        if (b->engines[i] != NULL)
            good = bench_engine_begin(&b->measured[i], b->engines[i], &b->trajectory, o->repeat, failure);
    for (int i = 0; good && i < ENGINES; i++)
        if (b->engines[i] != NULL) good = bench_alone(&b->measured[i], o->warm_up, o->repeat, failure);
    if (good && o->npu && o->gpu)
        good = bench_both(&b->measured[NPU], &b->measured[GPU], o->warm_up, o->repeat, failure);
    return good && project(b, &b->measured[o->npu ? NPU : GPU].timing, failure);
}

/* Series by series, in one order for the table and for JSON. */
static void put_series(bench *b, const char *engine, const char *what, const char *beside, bench_series *series,
                       bool *first) {
    for (uint32_t e = 0; e < HVDC_TIMED_EXPERTS; e++) {
        if (series[e].count == 0) continue;
        bench_sort(&series[e]);
        const double least = series[e].seconds[0], most = series[e].seconds[series[e].count - 1u];
        const double median = bench_median_s(&series[e]), spread = bench_spread(&series[e]);
        if (spread > b->options.spread_limit) b->steady = false;
        if (b->options.json)
            (void)printf(
                "%s\n  {\"engine\": \"%s\", \"what\": \"%s\", \"beside\": \"%s\", \"expert\": \"%s\", \"count\": "
                "%" PRIu32 ", \"min_s\": %.9g, \"median_s\": %.9g, \"max_s\": %.9g, \"spread\": %.6g}",
                *first ? "" : ",", engine, what, beside, EXPERT_NAMES[e], series[e].count, least, median, most, spread);
        else
            (void)printf("%-4s %-15s %-8s %-8s %12.6f %12.6f %12.6f %7.1f %%\n", engine, what, beside, EXPERT_NAMES[e],
                         least, median, most, 100.0 * spread);
        *first = false;
    }
}

static void put_all(bench *b) {
    bool first = true;
    for (int i = 0; i < ENGINES; i++) {
        bench_engine *m = &b->measured[i];
        put_series(b, ENGINE_NAMES[i], "block", "nothing", m->alone, &first);
        put_series(b, ENGINE_NAMES[i], "block", ENGINE_NAMES[ENGINES - 1 - i], m->both, &first);
        put_series(b, ENGINE_NAMES[i], "text_keys", "nothing", m->text, &first);
    }
    put_series(b, "cpu", "text_projection", "nothing", b->projection, &first);
}

/* Mean over a trajectory's steps of its experts' medians, while both engines work. */
static double rate_s(const bench *b, int engine) {
    double sum = 0.0;
    for (uint32_t step = 0; step < b->trajectory.steps; step++)
        sum += bench_median_s(&b->measured[engine].both[b->trajectory.experts[step] % HVDC_TIMED_EXPERTS]);
    return sum / (double)b->trajectory.steps;
}

static void put_gpu(const bench *b) {
#ifdef HVDC_WITH_GPU
    if (b->engines[GPU] != NULL) {
        const hvdc_gpu_description *d = hvdc_gpu_describe(b->engines[GPU]);
        (void)fputs(b->options.json ? ", \"gpu\": {\"platform\": " : "GPU: ", stdout);
        b->options.json ? hvdc_json_text(stdout, d->platform) : (void)fputs(d->platform, stdout);
        (void)fputs(b->options.json ? ", \"device\": " : ", ", stdout);
        b->options.json ? hvdc_json_text(stdout, d->device) : (void)fputs(d->device, stdout);
        (void)printf(b->options.json ? ", \"dot\": \"%s\", \"import\": \"%s\"}" : ", dot %s, weights by %s\n",
                     hvdc_gpu_dot_name(d->dot), hvdc_gpu_import_name(d->import));
        return;
    }
#endif
    if (b->options.json) (void)fputs(", \"gpu\": null", stdout);
}

static bool report(bench *b) {
    const options *o = &b->options;
    b->steady = true;
    if (o->json) {
        (void)printf("{\"hvdc_bench\": %d, \"artifact\": ", REPORT_VERSION);
        hvdc_json_text(stdout, o->artifact);
        (void)fputs(", \"index_sha256\": \"", stdout);
        for (size_t i = 0; i < 32u; i++)
            (void)printf("%02x", (unsigned)hvdc_artifact_header(b->artifact)->index_sha256[i]);
        (void)printf("\", \"tokens\": %" PRIu32 ", \"own_tokens\": %" PRIu32 ", \"threads\": %" PRIu32
                     ", \"warm_up\": %" PRIu32 ", \"repeat\": %" PRIu32 ", \"spread_limit\": %.6g",
                     b->trajectory.tokens, b->own_tokens, hvdc_pool_threads(b->pool), o->warm_up, o->repeat,
                     o->spread_limit);
        put_gpu(b);
        (void)fputs(", \"series\": [", stdout);
    } else {
        (void)printf("%" PRIu32 " tokens, %" PRIu32 " threads; %" PRIu32 " of each expert to warm up, then %" PRIu32
                     "\n",
                     b->trajectory.tokens, hvdc_pool_threads(b->pool), o->warm_up, o->repeat);
        put_gpu(b);
        (void)printf("%-4s %-15s %-8s %-8s %12s %12s %12s %9s\n", "on", "what", "beside", "expert", "min s", "median s",
                     "max s", "spread");
    }
    put_all(b);
    const bool rates = o->npu && o->gpu;
    if (o->json)
        (void)printf(rates ? "\n], \"rates\": {\"gpu_block_s\": %.9g, \"npu_block_s\": %.9g}" : "\n], \"rates\": null",
                     rates ? rate_s(b, GPU) : 0.0, rates ? rate_s(b, NPU) : 0.0);
    else if (rates)
        (void)printf("rates: --gpu-block-s %.6g --npu-block-s %.6g\n", rate_s(b, GPU), rate_s(b, NPU));
    if (o->json) (void)printf(", \"steady\": %s}\n", b->steady ? "true" : "false");
    return fflush(stdout) == 0 && ferror(stdout) == 0;
}

static int status_of(const hvdc_failure *failure) {
    switch (failure->kind) {
        case HVDC_FAILURE_USAGE: return EXIT_USAGE;
        case HVDC_FAILURE_ARTIFACT: return EXIT_ARTIFACT;
        case HVDC_FAILURE_DEVICE: return EXIT_DEVICE;
        default: return EXIT_FAILED;
    }
}

int main(int argc, char **argv) {
    bench b = {.artifact = NULL};
    hvdc_failure failure = {.kind = HVDC_FAILURE_NONE};
    bool good = parse(argc, argv, &b.options, &failure);
    if (good && b.options.help) return fputs(HELP, stdout) < 0 ? EXIT_FAILED : EXIT_STEADY;
    good = good && open_all(&b, &failure) && measure(&b, &failure);
    if (good && !report(&b)) good = hvdc_fail(&failure, HVDC_FAILURE_FILE, "the report cannot be written");
    close_all(&b);
    if (!good) {
        (void)fprintf(stderr, "hvdc_bench: %s\n", failure.message);
        return status_of(&failure);
    }
    if (b.steady) return EXIT_STEADY;
    (void)fprintf(
        stderr,
        "hvdc_bench: not steady: times of the same work differ by more than %.3g of their median; let the device "
        "cool, end what else runs, or give --repeat or --spread-limit\n",
        b.options.spread_limit);
    return EXIT_UNSTEADY;
}
