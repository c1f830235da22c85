#define _POSIX_C_SOURCE 200809L

#include "bench_series.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

void bench_progress_say(bench_progress *progress, const char *what) {
    const uint32_t done = atomic_fetch_add(&progress->done, 1u) + 1u;
    if (progress->on)
        (void)fprintf(stderr,
                      "{\"event\": \"measured\", \"what\": \"%s\", \"done\": %" PRIu32 ", \"total\": %" PRIu32 "}\n",
                      what, done, progress->total);
}

bool bench_series_open(bench_series *series, uint32_t repeat, hvdc_failure *failure) {
    *series = (bench_series){.seconds = calloc(repeat, sizeof *series->seconds)};
    return series->seconds != NULL || hvdc_fail(failure, HVDC_FAILURE_MEMORY, "there is no memory for times");
}

void bench_series_close(bench_series *series) {
    free(series->seconds);
    *series = (bench_series){.count = 0};
}

static int compare(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

void bench_sort(bench_series *series) { qsort(series->seconds, series->count, sizeof *series->seconds, compare); }

double bench_median_s(const bench_series *series) {
    const uint32_t middle = series->count / 2u;
    if (series->count % 2u == 1u) return series->seconds[middle];
    return (series->seconds[middle - 1u] + series->seconds[middle]) / 2.0;
}

double bench_spread(const bench_series *series) {
    return (series->seconds[series->count - 1u] - series->seconds[0]) / bench_median_s(series);
}

bool bench_engine_begin(bench_engine *engine, hvdc_engine *opened, const hvdc_trajectory *trajectory, uint32_t repeat,
                        hvdc_failure *failure) {
    engine->open = hvdc_timing_begin(&engine->timing, opened, trajectory, failure);
    if (!engine->open) hvdc_timing_end(&engine->timing);
    bool good = engine->open;
    for (uint32_t e = 0; good && e < HVDC_TIMED_EXPERTS; e++)
        good = bench_series_open(&engine->alone[e], repeat, failure) &&
               bench_series_open(&engine->both[e], repeat, failure) &&
               bench_series_open(&engine->text[e], repeat, failure);
    return good;
}

void bench_engine_end(bench_engine *engine) {
    if (engine->open) hvdc_timing_end(&engine->timing);
    for (uint32_t e = 0; e < HVDC_TIMED_EXPERTS; e++) {
        bench_series_close(&engine->alone[e]);
        bench_series_close(&engine->both[e]);
        bench_series_close(&engine->text[e]);
    }
    engine->open = false;
}

static uint32_t experts_of(const bench_engine *engine) {
    uint32_t experts = 0;
    for (uint32_t e = 0; e < HVDC_TIMED_EXPERTS; e++) experts += engine->timing.exists[e] ? 1u : 0u;
    return experts;
}

/* One block; kept while there is room for `repeat` of its expert. */
static bool one_block(bench_engine *engine, bench_series *series, uint32_t repeat, hvdc_failure *failure) {
    hvdc_timed_block block;
    if (!hvdc_timing_block(&engine->timing, &block, failure)) return false;
    bench_series *of = &series[block.expert % HVDC_TIMED_EXPERTS];
    if (of->count < repeat) {
        of->seconds[of->count++] = block.seconds;
        bench_progress_say(engine->progress, engine->name);
    }
    return true;
}

bool bench_alone(bench_engine *engine, uint32_t warm_up, uint32_t repeat, hvdc_failure *failure) {
    const uint64_t experts = experts_of(engine);
    bool good = true;
    for (uint64_t i = 0; good && i < warm_up * experts; i++) good = one_block(engine, engine->alone, 0, failure);
    for (uint64_t i = 0; good && i < repeat * experts; i++) good = one_block(engine, engine->alone, repeat, failure);
    for (uint32_t e = 0; e < HVDC_TIMED_EXPERTS; e++)
        for (uint64_t i = 0; good && engine->timing.exists[e] && i < (uint64_t)warm_up + repeat; i++) {
            hvdc_timed_block text;
            good = hvdc_timing_text(&engine->timing, e, &text, failure);
            if (!good || i < warm_up) continue;
            engine->text[e].seconds[engine->text[e].count++] = text.seconds;
            bench_progress_say(engine->progress, engine->name);
        }
    return good;
}

/* What both threads see: who has begun, who has enough, and whether one of them cannot go on. */
typedef struct bench_race {
    atomic_uint warm, done;
    atomic_bool stop;
} bench_race;

typedef struct bench_runner {
    bench_engine *engine;
    bench_race *race;
    uint32_t warm_up, repeat;
    bool good;
    hvdc_failure failure;
} bench_runner;

static void *run(void *context) {
    bench_runner *r = context;
    const uint64_t experts = experts_of(r->engine);
    for (uint64_t i = 0; r->good && i < r->warm_up * experts; i++)
        r->good = one_block(r->engine, r->engine->both, 0, &r->failure);
    (void)atomic_fetch_add(&r->race->warm, 1u);
    bool counted = false;
    for (uint64_t kept = 0; r->good && !atomic_load(&r->race->stop) && atomic_load(&r->race->done) < 2u;) {
        const bool together = atomic_load(&r->race->warm) == 2u; /* until then the other one may stand still */
        r->good = one_block(r->engine, r->engine->both, together ? r->repeat : 0, &r->failure);
        kept += together ? 1u : 0u;
        if (!counted && kept >= r->repeat * experts) {
            counted = true;
            (void)atomic_fetch_add(&r->race->done, 1u);
        }
    }
    if (!r->good) atomic_store(&r->race->stop, true);
    return NULL;
}

bool bench_both(bench_engine *npu, bench_engine *gpu, uint32_t warm_up, uint32_t repeat, hvdc_failure *failure) {
    bench_race race;
    atomic_init(&race.warm, 0u);
    atomic_init(&race.done, 0u);
    atomic_init(&race.stop, false);
    bench_runner runners[2] = {
        {.engine = npu, .race = &race, .warm_up = warm_up, .repeat = repeat, .good = true},
        {.engine = gpu, .race = &race, .warm_up = warm_up, .repeat = repeat, .good = true},
    };
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, &runners[1]) != 0)
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no thread can be started for the GPU");
    (void)run(&runners[0]);
    (void)pthread_join(thread, NULL);
    for (int i = 0; i < 2; i++)
        if (!runners[i].good) return hvdc_fail(failure, runners[i].failure.kind, "%s", runners[i].failure.message);
    return true;
}

struct bench_beside {
    bench_engine *engine;
    pthread_t thread;
    atomic_bool stop;
    bool good;
    hvdc_failure failure;
};

static void *go_on(void *context) {
    bench_beside *b = context;
    while (b->good && !atomic_load(&b->stop)) b->good = one_block(b->engine, b->engine->both, 0, &b->failure);
    return NULL;
}

bool bench_beside_begin(bench_engine *engine, bench_beside **beside, hvdc_failure *failure) {
    bench_beside *b = calloc(1, sizeof *b);
    *beside = NULL;
    if (b == NULL) return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "there is no memory for a thread");
    b->engine = engine;
    b->good = true;
    atomic_init(&b->stop, false);
    if (pthread_create(&b->thread, NULL, go_on, b) != 0) {
        free(b);
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no thread can be started for the GPU");
    }
    *beside = b;
    return true;
}

bool bench_beside_end(bench_beside *b, hvdc_failure *failure) {
    atomic_store(&b->stop, true);
    (void)pthread_join(b->thread, NULL);
    const bool good = b->good || hvdc_fail(failure, b->failure.kind, "%s", b->failure.message);
    free(b);
    return good;
}
