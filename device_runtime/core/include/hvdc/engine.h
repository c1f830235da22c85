/* An engine executes blocks. Both have this one face, so that a coordinator, a test and a benchmark drive either.
 *
 * Between blocks only the hidden state crosses: float [M][width], M tokens in the order frame, row, column. What an engine
 * keeps it in (FP32 on the NPU, FP16 on the GPU) is its own affair; the GPU's values widen and narrow without loss.
 *
 * One engine is used by one thread at a time. What the numbers are: quant/paths in Python says it, and is the oracle. */
#ifndef HVDC_ENGINE_H
#define HVDC_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "hvdc/failure.h"
#include "hvdc/weights.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hvdc_engine hvdc_engine;

struct hvdc_engine {
    const char *name; /* "npu", "gpu" */

    /* The prompt, as an expert (HVDC_EXPERT_…) projected it: float [text_tokens][width]. Keys and values of all blocks
     * follow from it and are kept until the next call for this expert. */
    bool (*set_text)(hvdc_engine *engine, uint32_t expert, const float *text, hvdc_failure *failure);

    /* Blocks [first, first + count) of a step, in place. The step's expert must have its text. */
    bool (*run)(hvdc_engine *engine, uint32_t step, uint32_t first, uint32_t count, float *hidden,
                hvdc_failure *failure);

    /* Bytes that the engine holds beside the weights: scratch, keys and values. */
    uint64_t (*memory_bytes)(const hvdc_engine *engine);

    /* Memory that `run` will be given, or parts of it, from now on until unshare, with its descriptor. NULL in an engine
     * that needs no notice. Memory that was not announced works too, at the cost of copies. */
    bool (*share)(hvdc_engine *engine, void *data, uint64_t bytes, int fd, hvdc_failure *failure);
    void (*unshare)(hvdc_engine *engine, void *data);

    /* Releases everything; NULL-safe through hvdc_engine_close. */
    void (*close)(hvdc_engine *engine);
};

static inline void hvdc_engine_close(hvdc_engine *engine) {
    if (engine != NULL) {
        engine->close(engine);
    }
}

#ifdef __cplusplus
}
#endif

#endif
