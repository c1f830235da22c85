#include "memory.h"

#include "engines.h"
#include "hvdc/npu.h"
#include "hvdc/shared_memory.h"
#include "hvdc/shared_weights.h"

static double mib(uint64_t bytes) { return (double)bytes / (1 << 20); }

bool hvdc_memory_is_there(const hvdc_artifact *artifact, hvdc_outcome *outcome, hvdc_failure *failure) {
    const hvdc_options *options = outcome->options;
    const bool has_gpu = hvdc_outcome_needs_gpu(outcome), shares = has_gpu && options->mode == HVDC_MODE_TENSOR;
    const hvdc_npu_options npu = {.threads = options->threads, .sums = options->npu_sums};
    hvdc_forecast *f = &outcome->forecast;
    *f = (hvdc_forecast){.weights_bytes = hvdc_shared_weights_due_bytes(artifact),
                         .slot_bytes = hvdc_stream_bytes(&outcome->trajectory, options->mode, 0,
                                                         shares ? hvdc_npu_exchange_values(artifact) : 0),
                         .decoder_bytes = outcome->decoder == NULL ? 0 : outcome->decoder->forecast_bytes};
    if (!hvdc_npu_forecast(artifact, &npu, &f->npu_engine_bytes, failure) ||
        (has_gpu && !hvdc_forecast_gpu(artifact, options, &f->gpu_engine_bytes, failure)))
        return false;
    const bool limited = options->memory_mib != 0;
    const uint64_t room = limited ? (uint64_t)options->memory_mib << 20 : hvdc_memory_available_bytes();
    const uint64_t all =
        f->weights_bytes + f->slot_bytes + f->npu_engine_bytes + f->gpu_engine_bytes + f->decoder_bytes;
    return all <= room ||
           hvdc_fail(failure, HVDC_FAILURE_MEMORY,
                     "this run needs %.1f MiB of memory and %.1f MiB are %s: weights %.1f MiB, videos in flight %.1f "
                     "MiB, the NPU's engine %.1f MiB, the GPU's %.1f MiB, the decoder %.1f MiB; %s, or take a smaller "
                     "clip%s%s",
                     mib(all), mib(room), limited ? "allowed" : "available", mib(f->weights_bytes), mib(f->slot_bytes),
                     mib(f->npu_engine_bytes), mib(f->gpu_engine_bytes), mib(f->decoder_bytes),
                     limited ? "raise --memory-mib" : "close other programs", has_gpu ? " or mode npu" : "",
                     f->decoder_bytes > 0 ? ", or decode later" : "");
}
