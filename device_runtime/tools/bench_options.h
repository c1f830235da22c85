/* What hvdc_bench is asked. */
#ifndef HVDC_BENCH_OPTIONS_H
#define HVDC_BENCH_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "hvdc/failure.h"
#include "hvdc/npu_sums.h"

typedef struct bench_options {
    const char *artifact, *platform, *device, *kernel_cache;
    const char *fastrpc;       /* FastRPC's library; NULL: as the system finds it */
    const char *qnn_libraries; /* NULL: nothing is decoded */
    bool npu, gpu, json, help, progress;
    bool answer; /* nothing is measured: blocks are compared with the artifact's stored answer */
    bool mapped; /* weights are read where the artifact is mapped, not from shared memory */
    bool dsp;    /* the NPU's engine is the one on a DSP */
    enum hvdc_npu_sums sums;
    uint32_t tokens, warm_up, repeat, decode_repeat, threads, vtcm_kib, soc, arch;
    double spread_limit;
} bench_options;

extern const char BENCH_HELP[];

bool bench_options_parse(int argc, char *const *argv, bench_options *options, hvdc_failure *failure);

#endif
