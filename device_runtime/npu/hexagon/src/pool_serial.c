/* hvdc/pool.h without threads: an emulator runs one. */
#include "hvdc/pool.h"

#include <stdlib.h>

struct hvdc_pool {
    uint32_t threads;
};

bool hvdc_pool_open(uint32_t threads, hvdc_pool **pool, hvdc_failure *failure) {
    *pool = NULL;
    if (threads > HVDC_POOL_MAX_THREADS) {
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "%u threads are more than the limit of %u", (unsigned)threads,
                         HVDC_POOL_MAX_THREADS);
    }
    hvdc_pool *made = malloc(sizeof *made);
    if (made == NULL) return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no memory for a pool of threads");
    made->threads = threads == 0u ? 1u : threads;
    *pool = made;
    return true;
}

void hvdc_pool_close(hvdc_pool *pool) { free(pool); }

uint32_t hvdc_pool_threads(const hvdc_pool *pool) { return pool->threads; }

void hvdc_pool_run(hvdc_pool *pool, uint32_t total, uint32_t grain, hvdc_pool_work *work, void *context) {
    uint32_t count, worker = 0;
    for (uint32_t first = 0; first < total; first += count, worker = (worker + 1u) % pool->threads) {
        uint32_t left = total - first;
        count = grain == 0u ? 1u : grain;
        count = left < count ? left : count;
        work(context, first, count, worker);
    }
}
