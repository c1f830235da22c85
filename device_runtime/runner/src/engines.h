/* What both processes open over an artifact: threads, the CPU's part, and an engine. */
#ifndef HVDC_RUNNER_ENGINES_H
#define HVDC_RUNNER_ENGINES_H

#include "hvdc/coordinator.h"
#include "hvdc/host.h"
#include "options.h"

typedef struct hvdc_side {
    hvdc_pool *pool;
    hvdc_host *host;
    hvdc_host_ops ops; /* of `host` */
    size_t latent_bytes;
} hvdc_side;

/* hvdc_artifact_open, with a sentence. */
bool hvdc_open_artifact(const char *directory, hvdc_artifact **artifact, hvdc_failure *failure);

/* `weights` and what it points to outlive the side, and the side does not move. */
bool hvdc_side_open(const hvdc_weights *weights, const hvdc_options *options, hvdc_side *side, hvdc_failure *failure);

/* One that was never opened, all zeros, is allowed. After its engine. */
void hvdc_side_close(hvdc_side *side);

bool hvdc_open_npu(const hvdc_weights *weights, const hvdc_options *options, hvdc_engine **engine,
                   hvdc_failure *failure);
bool hvdc_open_gpu(const hvdc_weights *weights, const hvdc_options *options, hvdc_engine **engine,
                   hvdc_failure *failure);

/* The name of the device of an engine that hvdc_open_gpu opened. */
const char *hvdc_gpu_text(const hvdc_engine *engine);

#endif
