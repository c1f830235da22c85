/* An engine each of whose calls has a limit of time, outside of a stream, which watches its own. */
#ifndef HVDC_RUNNER_WATCHED_ENGINE_H
#define HVDC_RUNNER_WATCHED_ENGINE_H

#include "hvdc/engine.h"

/* A sentence with the limit in seconds. */
#define HVDC_WATCHED_HANGS "a call of the NPU's engine has not returned within %.1f s; no video has begun"

/* The face of `engine`, which is called in a thread of its own. A call that takes longer than `limit_s` (0: waits for
 * ever) fails with kind DEVICE, and so do all that follow. `engine` outlives it and is not closed with it. */
bool hvdc_watched_engine_open(hvdc_engine *engine, double limit_s, hvdc_engine **watched, hvdc_failure *failure);

/* Whether a call has not returned in time. It may still use what it was given, and the engine: nothing of that may be
 * released, and the process has to end by _exit. Closing the watched engine does nothing then. */
bool hvdc_watched_engine_hangs(const hvdc_engine *watched);

#endif
