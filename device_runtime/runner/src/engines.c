#include "engines.h"

#include "hvdc/npu.h"
#ifdef HVDC_WITH_GPU
#include "hvdc/gpu.h"
#endif

#include <string.h>

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

bool hvdc_open_npu(const hvdc_weights *weights, const hvdc_options *options, hvdc_engine **engine,
                   hvdc_failure *failure) {
    const hvdc_npu_options npu = {.threads = options->threads};
    return hvdc_npu_open(weights, &npu, engine, failure);
}

bool hvdc_open_gpu(const hvdc_weights *weights, const hvdc_options *options, hvdc_engine **engine,
                   hvdc_failure *failure) {
    *engine = NULL;
#ifdef HVDC_WITH_GPU
    const hvdc_gpu_options gpu = {
        .platform = options->platform, .device = options->device, .cache_directory = options->kernel_cache};
    return hvdc_gpu_open(weights, &gpu, engine, failure);
#else
    (void)weights, (void)options;
    return hvdc_fail(failure, HVDC_FAILURE_DEVICE, "this program was built without the executor of the GPU");
#endif
}

const char *hvdc_gpu_text(const hvdc_engine *engine) {
#ifdef HVDC_WITH_GPU
    return hvdc_gpu_describe(engine)->device;
#else
    (void)engine;
    return "";
#endif
}
