/* A hidden state where the runner has it: in shared memory that an engine works in, if it wants that. */
#ifndef HVDC_RUNNER_HIDDEN_H
#define HVDC_RUNNER_HIDDEN_H

#include <stddef.h>

#include "hvdc/engine.h"
#include "hvdc/shared_memory.h"

typedef struct hvdc_hidden {
    float *values; /* [tokens][width] */
    const hvdc_memory_kind *kind;
    hvdc_memory memory; /* none where `values` are on the heap */
    bool announced;
} hvdc_hidden;

#define HVDC_NO_HIDDEN ((hvdc_hidden){.memory = HVDC_NO_MEMORY})

/* Memory for `count` values, for the CPU to fill before hvdc_hidden_share. `name` is shown in /proc. On failure there is
 * nothing to close. */
bool hvdc_hidden_open(hvdc_hidden *hidden, const hvdc_engine *engine, const char *name, size_t count,
                      hvdc_failure *failure);

/* From now on the engine's `run` works in the values. */
bool hvdc_hidden_share(hvdc_hidden *hidden, hvdc_engine *engine, hvdc_failure *failure);

/* Allowed on HVDC_NO_HIDDEN, and twice. `engine`: that it was announced to, or NULL. */
void hvdc_hidden_close(hvdc_hidden *hidden, hvdc_engine *engine);

#endif
