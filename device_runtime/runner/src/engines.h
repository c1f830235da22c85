/* What both processes open over an artifact: threads, the CPU's part, and an engine. */
#ifndef HVDC_RUNNER_ENGINES_H
#define HVDC_RUNNER_ENGINES_H

#include "hvdc/coordinator.h"
#include "hvdc/dsp.h"
#include "hvdc/host.h"
#include "options.h"

#define HVDC_NPU_TEXT_BYTES 96

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

/* Where the options want it. Fills in the size of the partner's exchange, in the mode that has one. The partner outlives
 * the engine. A DSP's units are tested first, unless the options say no; `findings` are zeros where nothing is. */
bool hvdc_open_npu(const hvdc_weights *weights, const hvdc_options *options, hvdc_partner *partner,
                   hvdc_dsp_findings *findings, hvdc_engine **engine, hvdc_failure *failure);
/* What it runs on, for people: "portable", or "Hexagon v79, …". */
void hvdc_npu_text(const hvdc_engine *engine, char text[HVDC_NPU_TEXT_BYTES]);
/* What it had to copy, in any place but the DSP nothing: bytes of weights, and hidden states since it was opened. */
void hvdc_npu_copies(const hvdc_engine *engine, uint64_t *weights_bytes, uint64_t *hidden_states);
/* Whether options->gpu_import names a way of hvdc_gpu_import_name, or none. */
bool hvdc_check_gpu_import(const hvdc_options *options, hvdc_failure *failure);
bool hvdc_open_gpu(const hvdc_weights *weights, const hvdc_options *options, hvdc_engine **engine,
                   hvdc_failure *failure);

/* hvdc_gpu_forecast. */
bool hvdc_forecast_gpu(const hvdc_artifact *artifact, const hvdc_options *options, uint64_t *bytes,
                       hvdc_failure *failure);

/* hvdc_gpu_multiply. */
bool hvdc_multiply_on_gpu(hvdc_engine *engine, const hvdc_slice *slice, const hvdc_exchange *exchange,
                          hvdc_failure *failure);

/* What an engine that hvdc_open_gpu opened reads through imports, and what it had to copy. */
hvdc_weights_use hvdc_gpu_weights_use(const hvdc_engine *engine);

/* The name of the device of an engine that hvdc_open_gpu opened. */
const char *hvdc_gpu_text(const hvdc_engine *engine);

#endif
