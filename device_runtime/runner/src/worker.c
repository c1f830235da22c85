/* The process of the GPU. */
#define _POSIX_C_SOURCE 200809L

#include "engines.h"
#include "hvdc/channel.h"
#include "processors.h"
#include "report.h"
#include "roles.h"

struct worker {
    const hvdc_options *options;
    hvdc_side side;
};

static bool open_engine(void *context, const hvdc_weights *weights, hvdc_engine **engine, hvdc_host_ops *host,
                        hvdc_failure *failure) {
    struct worker *worker = context;
    if (!hvdc_side_open(weights, worker->options, &worker->side, failure) ||
        !hvdc_open_gpu(weights, worker->options, engine, failure))
        return false;
    *host = worker->side.ops;
    hvdc_say(worker->options, "gpu", "GPU: %s", hvdc_gpu_text(*engine));
    return true;
}

enum hvdc_exit hvdc_be_worker(const hvdc_options *options) {
    struct worker worker = {.options = options};
    hvdc_say_aside(false);
    hvdc_artifact *artifact = NULL;
    hvdc_failure failure = {.kind = HVDC_FAILURE_NONE};
    if (!hvdc_processors_use(options->gpu_cpus, &failure) ||
        !hvdc_open_artifact(options->artifact, &artifact, &failure)) {
        hvdc_channel channel = hvdc_channel_on(HVDC_WORKER_FD);
        (void)hvdc_channel_refuse(&channel, HVDC_WORKER_SAY_NO, &failure); /* its owner says it */
        hvdc_say_no_more(HVDC_PROGRESS_PATIENCE_S);
        return HVDC_EXIT_FAILURE;
    }
    const hvdc_worker serving = {.artifact = artifact,
                                 .trajectory = hvdc_trajectory_of(artifact),
                                 .context = &worker,
                                 .open = open_engine,
                                 .weights_use = hvdc_gpu_weights_use,
                                 .multiply = hvdc_multiply_on_gpu};
    int status = hvdc_worker_serve(&serving);
    hvdc_side_close(&worker.side);
    hvdc_artifact_close(artifact);
    hvdc_say_no_more(HVDC_PROGRESS_PATIENCE_S);
    return status == 0 ? HVDC_EXIT_OK : HVDC_EXIT_FAILURE;
}
