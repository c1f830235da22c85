/* hvdc_bench: what a block takes on each engine of this machine, alone and while the other one works. `--help` says more;
 * docs/RUNTIME.md says what the numbers mean. The engines are two threads of one process here, two processes in
 * hvdc_runner; both read one shared copy of the weights, as there. Blocks are executed on made-up numbers, each on what the one before left: norms keep that bounded. */
#define _POSIX_C_SOURCE 200809L

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench_answer.h"
#include "bench_decoder.h"
#include "bench_options.h"
#include "bench_series.h"
#include "hvdc/clock.h"
#include "hvdc/dsp.h"
#include "hvdc/host.h"
#include "hvdc/json.h"
#include "hvdc/npu.h"
#include "hvdc/shared_memory.h"
#include "hvdc/shared_weights.h"
#ifdef HVDC_WITH_GPU
#include "hvdc/gpu.h"
#endif

#define REPORT_VERSION 2
#define PROBE_BYTES 65536u /* whole pages, whatever their size */

enum {
    EXIT_STEADY = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_UNSTEADY = 3,
    EXIT_ARTIFACT = 4,
    EXIT_DEVICE = 5,
    EXIT_WRONG = 6
};

typedef struct bench {
    bench_options options;
    hvdc_artifact *artifact;
    hvdc_shared_weights *shared; /* NULL: the artifact's own mapping */
    hvdc_weights weights;
    hvdc_trajectory trajectory; /* its tokens are those that are measured */
    uint32_t own_tokens;
    hvdc_pool *pool;
    hvdc_host *host;
    hvdc_engine *engines[2];
    bench_engine measured[2];
    bench_series projection[HVDC_TIMED_EXPERTS]; /* of a prompt's embeddings, on the CPU */
    bench_decoder *decoder;
    bench_series decode[2];   /* alone, beside the GPU's blocks */
    hvdc_answer_file *answer; /* with --answer */
    bench_answers answers;
    bench_progress progress;
    char npu[96]; /* what the NPU's engine runs on */
    bool steady;
} bench;

enum { NPU = 0, GPU, ENGINES };
static const char *const ENGINE_NAMES[ENGINES] = {"npu", "gpu"};
static const char *const EXPERT_NAMES[HVDC_TIMED_EXPERTS] = {"semantic", "detail"};

#ifdef HVDC_WITH_GPU
/* Imports of memory that others share are judged on a page of the same kind. */
static bool open_gpu(bench *b, const hvdc_grid *grid, hvdc_failure *failure) {
    hvdc_memory page = HVDC_NO_MEMORY;
    const hvdc_memory_kind *kind = NULL;
    if (b->shared != NULL) {
        kind = hvdc_memory_choose(failure);
        if (kind == NULL || !kind->create("hvdc:gpu-probe", PROBE_BYTES, &page, failure)) return false;
    }
    const hvdc_gpu_probe probe = {.data = page.data, .bytes = page.bytes, .fd = page.fd};
    const hvdc_gpu_options gpu = {.grid = {grid->frames, grid->rows, grid->columns},
                                  .platform = b->options.platform,
                                  .device = b->options.device,
                                  .cache_directory = b->options.kernel_cache,
                                  .probe = kind != NULL ? &probe : NULL};
    const bool opened = hvdc_gpu_open(&b->weights, &gpu, &b->engines[GPU], failure);
    if (kind != NULL) kind->close(&page);
    return opened;
}
#else
static bool open_gpu(bench *b, const hvdc_grid *grid, hvdc_failure *failure) {
    (void)b, (void)grid;
    return hvdc_fail(failure, HVDC_FAILURE_DEVICE, "this program was built without the executor of the GPU");
}
#endif

/* Positions do not change what a block takes, so that any grid of so many tokens serves: one row, or, if that is too
 * long, the fewest that are alike. 0 is the artifact's own. */
static hvdc_grid grid_of(uint32_t tokens) {
    if (tokens == 0) return (hvdc_grid){0, 0, 0};
    for (uint32_t rows = 1; rows <= HVDC_GRID_AXIS_MAX; rows++)
        if (tokens % rows == 0 && tokens / rows <= HVDC_GRID_AXIS_MAX) return (hvdc_grid){1, rows, tokens / rows};
    return (hvdc_grid){1, 1, tokens}; /* which is refused */
}

static hvdc_grid answered_grid(const hvdc_answer_file *answer) {
    const hvdc_answer_header *h = hvdc_answer_file_header(answer);
    return (hvdc_grid){h->frames, h->rows, h->columns};
}

static bool open_npu(bench *b, const hvdc_grid *grid, hvdc_failure *failure) {
    const bench_options *o = &b->options;
    if (!o->dsp) {
        const hvdc_npu_options npu = {.threads = o->threads, .sums = o->sums, .grid = *grid};
        (void)snprintf(b->npu, sizeof b->npu, "portable");
        return hvdc_npu_open(&b->weights, &npu, &b->engines[NPU], failure);
    }
    char folder[4096];
    if (snprintf(folder, sizeof folder, "%s/%s", o->artifact, HVDC_RUNTIME_NAME) >= (int)sizeof folder)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "the artifact's path is too long for the DSP");
    const hvdc_dsp_options dsp = {
        .library = o->fastrpc, .skel_folder = folder, .vtcm_bytes = o->vtcm_kib << 10, .sums = o->sums, .grid = *grid};
    if (!hvdc_dsp_open(&b->weights, &dsp, &b->engines[NPU], failure)) return false;
    const hvdc_dsp_description *d = hvdc_dsp_describe_engine(b->engines[NPU]);
    (void)snprintf(b->npu, sizeof b->npu,
                   "Hexagon v%" PRIu32 ", %" PRIu32 " vector contexts, %" PRIu32 " of %" PRIu32 " KiB of VTCM", d->arch,
                   d->contexts, d->vtcm_held_bytes >> 10, d->vtcm_bytes >> 10);
    return true;
}

static bool open_all(bench *b, hvdc_failure *failure) {
    const bench_options *o = &b->options;
    hvdc_error error;
    if (hvdc_artifact_open(o->artifact, &b->artifact, &error) != HVDC_E_OK)
        return hvdc_fail(failure, HVDC_FAILURE_ARTIFACT, "the artifact %s cannot be used: %s: %s [%s]", o->artifact,
                         error.file, error.message, hvdc_code_name(error.code));
    if (!o->mapped && !hvdc_shared_weights_load(b->artifact, 0, &b->shared, failure)) return false;
    b->weights = b->shared != NULL ? *hvdc_shared_weights_view(b->shared) : (hvdc_weights){.artifact = b->artifact};
    b->trajectory = hvdc_trajectory_of(b->artifact);
    b->own_tokens = b->trajectory.tokens;
    if (o->gpu && hvdc_artifact_calibration(b->artifact) == NULL)
        return hvdc_fail(
            failure, HVDC_FAILURE_USAGE,
            "the artifact %s has no activation scales, which the GPU needs: give --engine npu, or compile it "
            "with --prompts or --calibration",
            o->artifact);
    if (o->answer && !hvdc_answer_file_open(o->artifact, b->artifact, &b->answer, failure)) return false;
    const hvdc_grid asked = o->answer ? answered_grid(b->answer) : grid_of(o->tokens);
    hvdc_grid grid;
    if (!hvdc_grid_resolve(b->artifact, &asked, &grid, failure)) return false;
    b->trajectory.tokens = hvdc_grid_tokens(&grid);
    return hvdc_pool_open(o->threads, &b->pool, failure) &&
           hvdc_host_open(&b->weights, &grid, b->pool, &b->host, failure) && (!o->npu || open_npu(b, &grid, failure)) &&
           (!o->gpu || open_gpu(b, &grid, failure)) && bench_decoder_open(b->artifact, o, &b->decoder, failure);
}

static void close_all(bench *b) {
    bench_decoder_close(b->decoder);
    for (int i = 0; i < 2; i++) bench_series_close(&b->decode[i]);
    for (int i = 0; i < ENGINES; i++) {
        bench_engine_end(&b->measured[i]);
        hvdc_engine_close(b->engines[i]);
    }
    for (uint32_t e = 0; e < HVDC_TIMED_EXPERTS; e++) bench_series_close(&b->projection[e]);
    hvdc_answer_file_close(b->answer);
    hvdc_host_close(b->host);
    hvdc_pool_close(b->pool);
    hvdc_shared_weights_close(b->shared);
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
            if (!good || i < b->options.warm_up) continue;
            series->seconds[series->count++] = (double)(hvdc_clock_ns() - start) * 1e-9;
            bench_progress_say(&b->progress, "text");
        }
    }
    free(embeds);
    free(text);
    return good;
}

static bool decode(bench *b, hvdc_failure *failure) {
    const uint32_t repeat = b->options.decode_repeat;
    if (b->decoder == NULL) return true;
    if (!bench_series_open(&b->decode[0], repeat, failure) ||
        !bench_decode(b->decoder, &b->decode[0], repeat, &b->progress, failure))
        return false;
    if (b->engines[GPU] == NULL) return true;
    bench_beside *beside;
    if (!bench_series_open(&b->decode[1], repeat, failure) || !bench_beside_begin(&b->measured[GPU], &beside, failure))
        return false;
    const bool decoded = bench_decode(b->decoder, &b->decode[1], repeat, &b->progress, failure);
    hvdc_failure unheard;
    return bench_beside_end(beside, decoded ? failure : &unheard) && decoded;
}

/* Pieces of work that are counted; see bench_progress_say. */
static uint32_t pieces(const bench *b) {
    const bench_options *o = &b->options;
    const uint32_t engines = (o->npu ? 1u : 0u) + (o->gpu ? 1u : 0u);
    const bench_engine *any = &b->measured[o->npu ? NPU : GPU];
    uint32_t experts = 0;
    for (uint32_t e = 0; e < HVDC_TIMED_EXPERTS; e++) experts += any->timing.exists[e] ? 1u : 0u;
    const uint32_t series = 2u * engines + (engines == 2u ? 2u : 0u) + 1u; /* alone, text; both; projection */
    return series * experts * o->repeat + (b->decoder == NULL ? 0u : (o->gpu ? 2u : 1u) * o->decode_repeat);
}

static bool measure(bench *b, hvdc_failure *failure) {
    const bench_options *o = &b->options;
    bool good = true;
    for (int i = 0; good && i < ENGINES; i++)
        if (b->engines[i] != NULL)
            good = bench_engine_begin(&b->measured[i], b->engines[i], &b->trajectory, o->repeat, failure);
    for (int i = 0; i < ENGINES; i++) {
        b->measured[i].name = ENGINE_NAMES[i];
        b->measured[i].progress = &b->progress;
    }
    b->progress.on = o->progress;
    b->progress.total = good ? pieces(b) : 0u;
    if (good && b->progress.on)
        (void)fprintf(stderr, "{\"event\": \"begun\", \"total\": %" PRIu32 "}\n", b->progress.total);
    for (int i = 0; good && i < ENGINES; i++)
        if (b->engines[i] != NULL) good = bench_alone(&b->measured[i], o->warm_up, o->repeat, failure);
    if (good && o->npu && o->gpu)
        good = bench_both(&b->measured[NPU], &b->measured[GPU], o->warm_up, o->repeat, failure);
    return good && project(b, &b->measured[o->npu ? NPU : GPU].timing, failure) && decode(b, failure);
}

/* The portable engine's exact sums are those of the stored answer; a DSP's own unit adds in its one way. */
static bool compare(bench *b, hvdc_failure *failure) {
    const bool by_bits = !b->options.dsp && b->options.sums == HVDC_NPU_SUMS_EXACT;
    return (b->engines[NPU] == NULL || bench_answer_ask(b->engines[NPU], HVDC_ANSWER_ENGINE_NPU, by_bits, b->answer,
                                                        b->artifact, &b->answers, failure)) &&
           (b->engines[GPU] == NULL || bench_answer_ask(b->engines[GPU], HVDC_ANSWER_ENGINE_GPU, false, b->answer,
                                                        b->artifact, &b->answers, failure));
}

/* Series by series, in one order for the table and for JSON. `expert` NULL: of no expert. */
static void put_one(bench *b, const char *engine, const char *what, const char *beside, const char *expert,
                    bench_series *series, bool *first) {
    if (series->count == 0) return;
    bench_sort(series);
    const double least = series->seconds[0], most = series->seconds[series->count - 1u];
    const double median = bench_median_s(series), spread = bench_spread(series);
    if (spread > b->options.spread_limit) b->steady = false;
    if (b->options.json)
        (void)printf(
            "%s\n  {\"engine\": \"%s\", \"what\": \"%s\", \"beside\": \"%s\", \"expert\": %s%s%s, \"count\": "
            "%" PRIu32 ", \"min_s\": %.9g, \"median_s\": %.9g, \"max_s\": %.9g, \"spread\": %.6g}",
            *first ? "" : ",", engine, what, beside, expert == NULL ? "" : "\"", expert == NULL ? "null" : expert,
            expert == NULL ? "" : "\"", series->count, least, median, most, spread);
    else
        (void)printf("%-4s %-15s %-8s %-8s %12.6f %12.6f %12.6f %7.1f %%\n", engine, what, beside,
                     expert == NULL ? "-" : expert, least, median, most, 100.0 * spread);
    *first = false;
}

static void put_series(bench *b, const char *engine, const char *what, const char *beside, bench_series *series,
                       bool *first) {
    for (uint32_t e = 0; e < HVDC_TIMED_EXPERTS; e++)
        put_one(b, engine, what, beside, EXPERT_NAMES[e], &series[e], first);
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
    put_one(b, ENGINE_NAMES[NPU], "decode", "nothing", NULL, &b->decode[0], &first);
    put_one(b, ENGINE_NAMES[NPU], "decode", ENGINE_NAMES[GPU], NULL, &b->decode[1], &first);
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

static void put_npu(const bench *b) {
    const bench_options *o = &b->options;
    if (o->json) {
        (void)printf(o->npu ? ", \"npu\": {\"place\": \"%s\", \"sums\": \"%s\"}" : ", \"npu\": null", b->npu,
                     hvdc_npu_sums_name(o->sums));
        (void)printf(", \"weights\": \"%s\"", b->shared != NULL ? hvdc_shared_weights_kind(b->shared) : "mapped");
        (void)fputs(", \"decoder\": ", stdout);
        b->decoder == NULL ? (void)fputs("null", stdout) : hvdc_json_text(stdout, bench_decoder_name(b->decoder));
        return;
    }
    if (o->npu) (void)printf("NPU: %s, sums %s\n", b->npu, hvdc_npu_sums_name(o->sums));
    if (b->decoder != NULL) (void)printf("decoder: %s\n", bench_decoder_name(b->decoder));
}

/* What a rate table needs: while both engines work. */
static void put_rates(bench *b) {
    const bench_options *o = &b->options;
    const bool decodes = b->decode[1].count > 0u;
    if (!o->npu || !o->gpu) {
        if (o->json) (void)fputs("\n], \"rates\": null", stdout);
        return;
    }
    (void)printf(o->json ? "\n], \"rates\": {\"gpu_block_s\": %.9g, \"npu_block_s\": %.9g, \"decode_s\": "
                         : "rates: --gpu-block-s %.6g --npu-block-s %.6g",
                 rate_s(b, GPU), rate_s(b, NPU));
    if (decodes) {
        (void)printf(o->json ? "%.9g}" : " --decode-s %.6g\n", bench_median_s(&b->decode[1]));
        return;
    }
    (void)fputs(o->json ? "null}" : "\n", stdout);
}

static void put_measured(bench *b) {
    const bench_options *o = &b->options;
    if (o->json)
        (void)fputs(", \"series\": [", stdout);
    else
        (void)printf("%-4s %-15s %-8s %-8s %12s %12s %12s %9s\n", "on", "what", "beside", "expert", "min s", "median s",
                     "max s", "spread");
    put_all(b);
    put_rates(b);
    if (o->json) (void)printf(", \"steady\": %s", b->steady ? "true" : "false");
}

static void put_compared(const bench *b) {
    if (b->options.json) (void)fputs(", ", stdout);
    bench_answer_print(&b->answers, b->options.json);
}

static bool report(bench *b) {
    const bench_options *o = &b->options;
    b->steady = true;
    if (o->json) {
        (void)printf("{\"hvdc_bench\": %d, \"artifact\": ", REPORT_VERSION);
        hvdc_json_text(stdout, o->artifact);
        (void)fputs(", \"index_sha256\": \"", stdout);
        for (size_t i = 0; i < 32u; i++)
            (void)printf("%02x", (unsigned)hvdc_artifact_header(b->artifact)->index_sha256[i]);
        (void)printf("\", \"tokens\": %" PRIu32 ", \"own_tokens\": %" PRIu32 ", \"threads\": %" PRIu32,
                     b->trajectory.tokens, b->own_tokens, hvdc_pool_threads(b->pool));
        if (!o->answer)
            (void)printf(", \"warm_up\": %" PRIu32 ", \"repeat\": %" PRIu32 ", \"decode_repeat\": %" PRIu32
                         ", \"spread_limit\": %.6g",
                         o->warm_up, o->repeat, o->decode_repeat, o->spread_limit);
        put_gpu(b);
        put_npu(b);
    } else {
        (void)printf("%" PRIu32 " tokens, %" PRIu32 " threads", b->trajectory.tokens, hvdc_pool_threads(b->pool));
        if (!o->answer) (void)printf("; %" PRIu32 " of each expert to warm up, then %" PRIu32, o->warm_up, o->repeat);
        (void)fputs("\n", stdout);
        put_npu(b);
        put_gpu(b);
    }
    o->answer ? put_compared(b) : put_measured(b);
    if (o->json) (void)fputs("}\n", stdout);
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
    bool good = bench_options_parse(argc, argv, &b.options, &failure);
    if (good && b.options.help) return fputs(BENCH_HELP, stdout) < 0 ? EXIT_FAILED : EXIT_STEADY;
    /* Libraries print to standard output when they are loaded: the report alone goes there. */
    const int output = dup(STDOUT_FILENO);
    good = good && ((output >= 0 && dup2(STDERR_FILENO, STDOUT_FILENO) >= 0) ||
                    hvdc_fail(&failure, HVDC_FAILURE_FILE, "there is no standard output"));
    good = good && open_all(&b, &failure) && (b.options.answer ? compare(&b, &failure) : measure(&b, &failure));
    if (output >= 0) {
        (void)fflush(stdout);
        (void)dup2(output, STDOUT_FILENO);
        (void)close(output);
    }
    if (good && !report(&b)) good = hvdc_fail(&failure, HVDC_FAILURE_FILE, "the report cannot be written");
    close_all(&b);
    if (!good) {
        (void)fprintf(stderr, "hvdc_bench: %s\n", failure.message);
        return status_of(&failure);
    }
    if (b.options.answer) {
        if (b.answers.right) return EXIT_STEADY;
        (void)fputs(
            "hvdc_bench: a block gives something else than the artifact's weights must give: results of this "
            "device are wrong\n",
            stderr);
        return EXIT_WRONG;
    }
    if (b.steady) return EXIT_STEADY;
    (void)fprintf(
        stderr,
        "hvdc_bench: not steady: times of the same work differ by more than %.3g of their median; let the device "
        "cool, end what else runs, or give --repeat or --spread-limit\n",
        b.options.spread_limit);
    return EXIT_UNSTEADY;
}
