/* The pool of threads for QuRT (npu/hexagon/src/pool_qurt.c) on a stand-in of QuRT: pthreads, and Linux's futexes.
 *
 *   qurt_pool THREADS LOOPS    loops of many sizes over counters; prints "right" if every index was worked on once, by a
 *                              worker below THREADS, and something ran on more than one thread */
#define _GNU_SOURCE

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "dsp.h"
#include "hap.h"
#include "hvdc/pool.h"

#define THREADS_MAX 32u
#define INDICES_MAX 4096u

static struct started {
    pthread_t thread;
    void (*entry)(void *);
    void *argument;
} started[THREADS_MAX];
static unsigned started_count;

static void *enter(void *argument) {
    const struct started *s = argument;
    s->entry(s->argument);
    return NULL;
}

int qurt_thread_create(unsigned *thread, qurt_attributes *attributes, void (*entry)(void *), void *argument) {
    if (started_count == THREADS_MAX || attributes->stack == NULL || attributes->stack_bytes < 65536u ||
        attributes->detach_state != QURT_JOINABLE || attributes->priority == 0)
        return -1;
    struct started *s = &started[started_count];
    *s = (struct started){.entry = entry, .argument = argument};
    *thread = started_count++;
    return pthread_create(&s->thread, NULL, enter, s);
}

int qurt_thread_join(unsigned thread, int *status) {
    *status = 0;
    return pthread_join(started[thread].thread, NULL);
}

unsigned qurt_thread_get_id(void) { return 7; }

int qurt_thread_get_priority(unsigned thread) { return thread == 7u ? 100 : -1; }

int qurt_futex_wait(void *word, int value) {
    return (int)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

int qurt_futex_wake(void *word, int threads) {
    return (int)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, threads, NULL, NULL, 0);
}

hvdc_dsp_facts hvdc_dsp_describe(void) { return (hvdc_dsp_facts){.contexts = 6}; }

static unsigned worked[INDICES_MAX]; /* plain: the pool orders what is before and after a loop */
static unsigned by_worker[THREADS_MAX];

static void work(void *context, uint32_t first, uint32_t count, uint32_t worker) {
    const unsigned *spin = context;
    for (uint32_t i = first; i < first + count; i++) worked[i]++;
    by_worker[worker]++;
    for (volatile unsigned i = 0; i < *spin; i++) {
    }
}

int main(int argc, char **argv) {
    const uint32_t asked = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0;
    const unsigned loops = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 100;
    hvdc_pool *pool;
    hvdc_failure failure;
    unsigned spin = 200;
    if (!hvdc_pool_open(asked, &pool, &failure)) {
        (void)printf("%s\n", failure.message);
        return 1;
    }
    const uint32_t threads = hvdc_pool_threads(pool);
    bool right = threads == (asked == 0 ? 6u : asked);
    for (unsigned loop = 0; loop < loops; loop++) {
        const uint32_t total = loop * 37u % INDICES_MAX, grain = loop % 5u;
        for (uint32_t i = 0; i < INDICES_MAX; i++) worked[i] = 0;
        hvdc_pool_run(pool, total, grain, work, &spin);
        for (uint32_t i = 0; i < INDICES_MAX; i++) right = right && worked[i] == (i < total ? 1u : 0u);
    }
    unsigned busy = 0;
    for (uint32_t i = 0; i < THREADS_MAX; i++) busy += by_worker[i] != 0u;
    right = right && busy <= threads && (threads == 1u || busy > 1u);
    hvdc_pool_close(pool);
    (void)printf("%s\n", right ? "right" : "wrong");
    return 0;
}
