/* The NPU executor: blocks in FP16 arithmetic over INT8 weights, with an FP32 residual stream, as quant/paths/npu.py
 * defines. Its kernels lie behind two seams, a vector unit and a matrix unit; portable ones run on any CPU.
 *
 * With exact sums, its results are the oracle's with `exact`, to the bit. With fast ones, GEMMs add in FP32, in an order
 * of their own.
 *
 * Results do not depend on the number of threads, nor on the processor. */
#ifndef HVDC_NPU_H
#define HVDC_NPU_H

#include <stdbool.h>
#include <stdint.h>

#include "hvdc/engine.h"
#include "hvdc/host.h"
#include "hvdc/npu_sums.h"
#include "hvdc/partner.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All zeros: fast sums, one thread for each processor, the artifact's own grid, the best kernels of this processor. */
typedef struct hvdc_npu_options {
    uint32_t threads;
    hvdc_grid grid;
    const char *cpu; /* a name of hvdc/cpu.h, or NULL */
    enum hvdc_npu_sums sums;
    const struct hvdc_hmx *unit; /* a device's matrix unit, which outlives the engine; NULL: that of this processor */
    hvdc_partner *partner; /* of every linear; outlives the engine. NULL: none */
    /* What hvdc_rope_rotations gives for the grid, which outlives the engine: for a processor that cannot compute it.
     * NULL: it is computed. */
    const float *rotations;
} hvdc_npu_options;

/* `weights` is copied; what it points to outlives the engine. `options` may be NULL. On failure *engine is NULL. */
bool hvdc_npu_open(const hvdc_weights *weights, const hvdc_npu_options *options, hvdc_engine **engine,
                   hvdc_failure *failure);

/* Values of an exchange with a partner, at the artifact's own grid. A call in which the partner fails fails with its
 * sentence: hidden state, or keys and values of the text, are worthless then. */
uint64_t hvdc_npu_exchange_values(const hvdc_artifact *artifact);

/* Where a block's time goes. */
#define HVDC_NPU_STAGES(X) \
    X(NORM, "norms, modulation, RoPE, packing") \
    X(LINEAR, "linears of attention, widening included") \
    X(ADAPTER, "adapters") \
    X(SELF_ATTENTION, "self-attention") \
    X(CROSS_ATTENTION, "cross-attention") \
    X(WIDEN, "widening the feed-forward pair") \
    X(FEED_FORWARD, "feed-forward GEMMs and GELU") \
    X(RESIDUAL, "gated additions") \
    X(EXCHANGE, "exchange with a partner, and waiting for it")

enum hvdc_npu_stage {
#define HVDC_NPU_STAGE(name, text) HVDC_NPU_##name,
    HVDC_NPU_STAGES(HVDC_NPU_STAGE)
#undef HVDC_NPU_STAGE
        HVDC_NPU_STAGE_COUNT
};

const char *hvdc_npu_stage_name(enum hvdc_npu_stage stage);

/* Seconds spent so far in each stage of `run`; `engine` is one that hvdc_npu_open made. */
void hvdc_npu_seconds(const hvdc_engine *engine, double seconds[HVDC_NPU_STAGE_COUNT]);

#ifdef __cplusplus
}
#endif

#endif
