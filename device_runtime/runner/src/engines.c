#include "engines.h"

#include "hvdc/npu.h"
#ifdef HVDC_WITH_GPU
#include "hvdc/gpu.h"
#include "hvdc/shared_memory.h"
#endif

#include <stdio.h>
#include <string.h>

#define PROBE_BYTES 65536u /* whole pages, whatever their size */

static bool embed(void *context, const float *latent, float *hidden, hvdc_failure *failure) {
    const hvdc_side *side = context;
    (void)failure;
    hvdc_host_embed(side->host, latent, hidden);
    return true;
}

static bool project_text(void *context, uint32_t expert, const float *embeds, float *text, hvdc_failure *failure) {
    const hvdc_side *side = context;
    return hvdc_host_project_text(side->host, expert, embeds, text, failure);
}

static bool advance(void *context, uint32_t step, const float *hidden, const float *latent, float *next,
                    hvdc_failure *failure) {
    const hvdc_side *side = context;
    memcpy(next, latent, side->latent_bytes);
    return hvdc_host_euler(side->host, step, hidden, next, failure);
}

bool hvdc_open_artifact(const char *directory, hvdc_artifact **artifact, hvdc_failure *failure) {
    hvdc_error error;
    if (hvdc_artifact_open(directory, artifact, &error) == HVDC_E_OK) return true;
    return hvdc_fail(failure, HVDC_FAILURE_ARTIFACT, "the artifact %s cannot be used: %s: %s: %s [%s]", directory,
                     error.file, hvdc_code_meaning(error.code), error.message, hvdc_code_name(error.code));
}

bool hvdc_side_open(const hvdc_weights *weights, const hvdc_options *options, hvdc_side *side, hvdc_failure *failure) {
    *side = (hvdc_side){.pool = NULL};
    if (!hvdc_pool_open(options->threads, &side->pool, failure)) return false;
    if (!hvdc_host_open(weights, NULL, side->pool, &side->host, failure)) {
        hvdc_side_close(side);
        return false;
    }
    side->ops = (hvdc_host_ops){.context = side, .embed = embed, .project_text = project_text, .advance = advance};
    side->latent_bytes = (size_t)hvdc_grid_tokens(hvdc_host_grid(side->host)) *
                         hvdc_token_width(hvdc_artifact_geometry(weights->artifact)) * sizeof(float);
    return true;
}

void hvdc_side_close(hvdc_side *side) {
    hvdc_host_close(side->host);
    hvdc_pool_close(side->pool);
    *side = (hvdc_side){.pool = NULL};
}

static bool open_on_dsp(const hvdc_weights *weights, const hvdc_options *options, hvdc_dsp_findings *findings,
                        hvdc_engine **engine, hvdc_failure *failure) {
    char folder[4096];
    *engine = NULL;
    if (snprintf(folder, sizeof folder, "%s/%s", options->artifact, HVDC_RUNTIME_NAME) >= (int)sizeof folder)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "the artifact's path is too long for the DSP");
    const hvdc_dsp_options dsp = {.library = options->fastrpc,
                                  .skel_folder = folder,
                                  .vtcm_bytes = options->vtcm_kib << 10,
                                  .sums = options->npu_sums,
                                  .findings = options->npu_unchecked ? NULL : findings};
    return hvdc_dsp_open(weights, &dsp, engine, failure);
}

void hvdc_npu_text(const hvdc_engine *engine, char text[HVDC_NPU_TEXT_BYTES]) {
    if (strcmp(engine->name, HVDC_DSP_NAME) != 0) {
        (void)snprintf(text, HVDC_NPU_TEXT_BYTES, "portable");
        return;
    }
    const hvdc_dsp_description *dsp = hvdc_dsp_describe_engine(engine);
    char arch[24] = "a stand-in";
    if (dsp->arch != 0) (void)snprintf(arch, sizeof arch, "Hexagon v%u", (unsigned)dsp->arch);
    (void)snprintf(text, HVDC_NPU_TEXT_BYTES, "%s, %u vector contexts, %u of %u KiB of VTCM", arch,
                   (unsigned)dsp->contexts, (unsigned)(dsp->vtcm_held_bytes >> 10), (unsigned)(dsp->vtcm_bytes >> 10));
}

void hvdc_npu_copies(const hvdc_engine *engine, uint64_t *weights_bytes, uint64_t *hidden_states) {
    const bool is_dsp = strcmp(engine->name, HVDC_DSP_NAME) == 0;
    *weights_bytes = is_dsp ? hvdc_dsp_describe_engine(engine)->copied_bytes : 0;
    *hidden_states = is_dsp ? hvdc_dsp_describe_engine(engine)->staged_runs : 0;
}

bool hvdc_open_npu(const hvdc_weights *weights, const hvdc_options *options, hvdc_partner *partner,
                   hvdc_dsp_findings *findings, hvdc_engine **engine, hvdc_failure *failure) {
    *findings = (hvdc_dsp_findings){.failed = 0};
    if (options->npu == HVDC_NPU_DSP) return open_on_dsp(weights, options, findings, engine, failure);
    const bool shares = options->mode == HVDC_MODE_TENSOR;
    const hvdc_npu_options npu = {
        .threads = options->threads, .sums = options->npu_sums, .partner = shares ? partner : NULL};
    if (shares) partner->exchange.values = hvdc_npu_exchange_values(weights->artifact);
    return hvdc_npu_open(weights, &npu, engine, failure);
}

#ifdef HVDC_WITH_GPU
/* Index of a way's name; HVDC_GPU_IMPORT_COPY + 1 if there is none. */
static int import_of(const char *name) {
    int way = HVDC_GPU_IMPORT_ANY;
    while (name != NULL && way <= HVDC_GPU_IMPORT_COPY &&
           strcmp(name, hvdc_gpu_import_name((enum hvdc_gpu_import)way)) != 0)
        way++;
    return way;
}
#endif

bool hvdc_check_gpu_import(const hvdc_options *options, hvdc_failure *failure) {
#ifdef HVDC_WITH_GPU
    return import_of(options->gpu_import) <= HVDC_GPU_IMPORT_COPY ||
           hvdc_fail(failure, HVDC_FAILURE_USAGE, "--gpu-import does not take %s; see hvdc_runner --help",
                     options->gpu_import);
#else
    (void)options, (void)failure;
    return true;
#endif
}

#ifdef HVDC_WITH_GPU
static bool open_gpu(const hvdc_weights *weights, const hvdc_options *options, const hvdc_gpu_probe *probe,
                     hvdc_engine **engine, hvdc_failure *failure) {
    const hvdc_gpu_options gpu = {.platform = options->platform,
                                  .device = options->device,
                                  .cache_directory = options->kernel_cache,
                                  .import = (enum hvdc_gpu_import)import_of(options->gpu_import),
                                  .probe = probe};
    return hvdc_gpu_open(weights, &gpu, engine, failure);
}

/* Weights that have descriptors are of the first kind of shared memory that works; so is what judges imports of them. */
static bool open_gpu_on_shared(const hvdc_weights *weights, const hvdc_options *options, hvdc_engine **engine,
                               hvdc_failure *failure) {
    const hvdc_memory_kind *kind = hvdc_memory_choose(failure);
    hvdc_memory page;
    if (kind == NULL || !kind->create("hvdc:gpu-probe", PROBE_BYTES, &page, failure)) return false;
    const hvdc_gpu_probe probe = {.data = page.data, .bytes = page.bytes, .fd = page.fd};
    const bool opened = open_gpu(weights, options, &probe, engine, failure);
    kind->close(&page);
    return opened;
}
#endif

bool hvdc_open_gpu(const hvdc_weights *weights, const hvdc_options *options, hvdc_engine **engine,
                   hvdc_failure *failure) {
    *engine = NULL;
#ifdef HVDC_WITH_GPU
    return weights->fds != NULL ? open_gpu_on_shared(weights, options, engine, failure)
                                : open_gpu(weights, options, NULL, engine, failure);
#else
    (void)weights, (void)options;
    return hvdc_fail(failure, HVDC_FAILURE_DEVICE, "this program was built without the executor of the GPU");
#endif
}

bool hvdc_forecast_gpu(const hvdc_artifact *artifact, const hvdc_options *options, uint64_t *bytes,
                       hvdc_failure *failure) {
#ifdef HVDC_WITH_GPU
    const hvdc_gpu_options gpu = {.import = (enum hvdc_gpu_import)import_of(options->gpu_import)};
    return hvdc_gpu_forecast(artifact, &gpu, bytes, failure);
#else
    (void)artifact, (void)options, (void)failure;
    *bytes = 0; /* there is none to open, which is said when it is to be */
    return true;
#endif
}

bool hvdc_multiply_on_gpu(hvdc_engine *engine, const hvdc_slice *slice, const hvdc_exchange *exchange,
                          hvdc_failure *failure) {
#ifdef HVDC_WITH_GPU
    return hvdc_gpu_multiply(engine, slice, exchange, failure);
#else
    (void)engine, (void)slice, (void)exchange;
    return hvdc_fail(failure, HVDC_FAILURE_DEVICE, "this program was built without the executor of the GPU");
#endif
}

hvdc_weights_use hvdc_gpu_weights_use(const hvdc_engine *engine) {
    hvdc_weights_use use = {.import = ""};
#ifdef HVDC_WITH_GPU
    const hvdc_gpu_description *gpu = hvdc_gpu_describe(engine);
    (void)snprintf(use.import, sizeof use.import, "%s", hvdc_gpu_import_name(gpu->import));
    use.imported_bytes = gpu->imported_bytes;
    use.copied_bytes = gpu->copied_bytes;
#else
    (void)engine;
#endif
    return use;
}

const char *hvdc_gpu_text(const hvdc_engine *engine) {
#ifdef HVDC_WITH_GPU
    return hvdc_gpu_describe(engine)->device;
#else
    (void)engine;
    return "";
#endif
}
