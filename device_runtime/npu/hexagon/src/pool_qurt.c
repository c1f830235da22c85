/* hvdc/pool.h on QuRT: a thread for each vector context, which sleep on a futex between loops. Executed against a
 * stand-in of QuRT only. */
#include "hvdc/pool.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "dsp.h"
#include "hap.h"

#define STACK_BYTES (256u << 10)

struct member {
    struct hvdc_pool *pool;
    uint32_t worker;
    unsigned thread;
    void *stack;
};

struct hvdc_pool {
    uint32_t threads; /* the caller included */
    uint32_t started; /* members[1, started) exist */
    atomic_bool stop;
    atomic_uint loop; /* loops begun so far: what members sleep on */
    atomic_uint busy; /* members that may still work on it: what the caller sleeps on */
    atomic_uint next; /* indices from here on are not handed out */

    hvdc_pool_work *work;
    void *context;
    uint32_t total, grain;
    struct member members[];
};

static void take_pieces(hvdc_pool *pool, uint32_t worker) {
    unsigned first = atomic_load(&pool->next);
    while (first < pool->total) {
        const uint32_t left = pool->total - first, count = left < pool->grain ? left : pool->grain;
        if (!atomic_compare_exchange_weak(&pool->next, &first, first + count)) continue;
        pool->work(pool->context, first, count, worker);
        first = atomic_load(&pool->next);
    }
}

static void serve(void *argument) {
    struct member *member = argument;
    hvdc_pool *pool = member->pool;
    unsigned seen = 0;
    for (;;) {
        const unsigned loop = atomic_load(&pool->loop);
        if (loop == seen) {
            (void)qurt_futex_wait(&pool->loop, (int)seen);
            continue;
        }
        seen = loop;
        if (atomic_load(&pool->stop)) return;
        take_pieces(pool, member->worker);
        if (atomic_fetch_sub(&pool->busy, 1u) == 1u) (void)qurt_futex_wake(&pool->busy, 1);
    }
}

static bool start(hvdc_pool *pool, uint32_t worker) {
    struct member *member = &pool->members[worker];
    const int priority = qurt_thread_get_priority(qurt_thread_get_id());
    *member = (struct member){.pool = pool, .worker = worker, .stack = malloc(STACK_BYTES)};
    if (member->stack == NULL) return false;
    qurt_attributes attributes = {
        .name = "hvdc",
        .priority = (uint16_t)(priority > 0 && priority < QURT_PRIORITY_DEFAULT ? priority : QURT_PRIORITY_DEFAULT),
        .bus_priority = QURT_BUS_PRIORITY_DEFAULT,
        .timetest_id = QURT_TIMETEST_DEFAULT,
        .stack_bytes = STACK_BYTES,
        .stack = member->stack,
        .detach_state = QURT_JOINABLE};
    if (qurt_thread_create(&member->thread, &attributes, serve, member) == 0) return true;
    free(member->stack);
    return false;
}

bool hvdc_pool_open(uint32_t threads, hvdc_pool **pool, hvdc_failure *failure) {
    *pool = NULL;
    if (threads > HVDC_POOL_MAX_THREADS)
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "%u threads are more than the limit of %u", (unsigned)threads,
                         HVDC_POOL_MAX_THREADS);
    threads = threads == 0u ? hvdc_dsp_describe().contexts : threads;
    hvdc_pool *made = calloc(1, sizeof *made + threads * sizeof made->members[0]);
    if (made == NULL)
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no memory for a pool of %u threads", (unsigned)threads);
    made->threads = threads;
    made->started = 1;
    for (uint32_t worker = 1; worker < threads; worker++) {
        if (!start(made, worker)) {
            hvdc_pool_close(made);
            return hvdc_fail(failure, HVDC_FAILURE_MEMORY,
                             "thread %u of %u cannot be started on the DSP; ask for fewer threads",
                             (unsigned)worker + 1u, (unsigned)threads);
        }
        made->started++;
    }
    *pool = made;
    return true;
}

void hvdc_pool_close(hvdc_pool *pool) {
    if (pool == NULL) return;
    atomic_store(&pool->stop, true);
    (void)atomic_fetch_add(&pool->loop, 1u);
    (void)qurt_futex_wake(&pool->loop, (int)pool->threads);
    for (uint32_t worker = 1; worker < pool->started; worker++) {
        int status;
        (void)qurt_thread_join(pool->members[worker].thread, &status);
        free(pool->members[worker].stack);
    }
    free(pool);
}

uint32_t hvdc_pool_threads(const hvdc_pool *pool) { return pool->threads; }

void hvdc_pool_run(hvdc_pool *pool, uint32_t total, uint32_t grain, hvdc_pool_work *work, void *context) {
    pool->work = work;
    pool->context = context;
    pool->total = total;
    pool->grain = grain == 0u ? 1u : grain;
    atomic_store(&pool->next, 0u);
    if (total <= pool->grain) { /* one piece, or none */
        take_pieces(pool, 0);
        return;
    }
    atomic_store(&pool->busy, pool->threads - 1u);
    (void)atomic_fetch_add(&pool->loop, 1u);
    (void)qurt_futex_wake(&pool->loop, (int)pool->threads);
    take_pieces(pool, 0);
    for (unsigned busy = atomic_load(&pool->busy); busy != 0u; busy = atomic_load(&pool->busy))
        (void)qurt_futex_wait(&pool->busy, (int)busy);
}
