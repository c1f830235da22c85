/* Series of times of one engine, alone or beside the other, for hvdc_bench. */
#ifndef HVDC_BENCH_SERIES_H
#define HVDC_BENCH_SERIES_H

#include <stdatomic.h>

#include "block_timing.h"

#define BENCH_REPEAT_MAX 1000u

/* Seconds of `count` executions of the same work. */
typedef struct bench_series {
    uint32_t count;
    double *seconds; /* sorted by bench_sort */
} bench_series;

/* Lines of JSON on standard error, one for each piece of work that is done. */
typedef struct bench_progress {
    bool on;
    uint32_t total;
    atomic_uint done;
} bench_progress;

/* From any thread. `what` needs no escapes. */
void bench_progress_say(bench_progress *progress, const char *what);

/* One engine: what its blocks took alone and while the other one worked, and its text's keys and values. By expert. */
typedef struct bench_engine {
    hvdc_timing timing;
    const char *name;
    bench_progress *progress;
    bool open;
    bench_series alone[HVDC_TIMED_EXPERTS], both[HVDC_TIMED_EXPERTS], text[HVDC_TIMED_EXPERTS];
} bench_engine;

bool bench_engine_begin(bench_engine *engine, hvdc_engine *opened, const hvdc_trajectory *trajectory, uint32_t repeat,
                        hvdc_failure *failure);
void bench_engine_end(bench_engine *engine);

/* `warm_up` blocks of each expert, then `repeat` that are kept; the same with the text. */
bool bench_alone(bench_engine *engine, uint32_t warm_up, uint32_t repeat, hvdc_failure *failure);

/* Both at once, each in a thread of its own: `repeat` blocks of each expert are kept of each engine, and an engine that
 * has them works on until the other one has. */
bool bench_both(bench_engine *npu, bench_engine *gpu, uint32_t warm_up, uint32_t repeat, hvdc_failure *failure);

/* Blocks in a thread of their own, which are not kept, until bench_beside_end. */
typedef struct bench_beside bench_beside;
bool bench_beside_begin(bench_engine *engine, bench_beside **beside, hvdc_failure *failure);
bool bench_beside_end(bench_beside *beside, hvdc_failure *failure);

bool bench_series_open(bench_series *series, uint32_t repeat, hvdc_failure *failure);
void bench_series_close(bench_series *series);
void bench_sort(bench_series *series);

/* Of a sorted series that is not empty. The spread is (largest - smallest) / median. */
double bench_median_s(const bench_series *series);
double bench_spread(const bench_series *series);

#endif
