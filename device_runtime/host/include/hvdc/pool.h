/* A fixed pool of worker threads that share loops. Indices are handed out in pieces as threads become free; as long
 * as what is written for an index depends on that index alone, results do not depend on the number of threads. */
#ifndef HVDC_POOL_H
#define HVDC_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "hvdc/failure.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HVDC_POOL_MAX_THREADS 256u

typedef struct hvdc_pool hvdc_pool;

/* Work on the indices [first, first + count). `worker` < threads names the thread, for scratch memory of its own. */
typedef void hvdc_pool_work(void *context, uint32_t first, uint32_t count, uint32_t worker);

/* A pool of `threads`, the caller of hvdc_pool_run being one of them; 0 means one for each processor that is online. */
bool hvdc_pool_open(uint32_t threads, hvdc_pool **pool, hvdc_failure *failure);

/* Ends the threads. NULL is allowed. */
void hvdc_pool_close(hvdc_pool *pool);

uint32_t hvdc_pool_threads(const hvdc_pool *pool);

/* Work on [0, total) in pieces of `grain` indices (at least 1; the last piece is what is left), and wait for all of
 * it. One caller at a time, and not from inside a piece of work. */
void hvdc_pool_run(hvdc_pool *pool, uint32_t total, uint32_t grain, hvdc_pool_work *work, void *context);

#ifdef __cplusplus
}
#endif

#endif
