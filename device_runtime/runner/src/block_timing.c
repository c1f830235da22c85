#include "block_timing.h"

#include <stdlib.h>

#include "hvdc/clock.h"

#define NANOSECOND 1e-9

/* Numbers of the magnitude of a hidden state, from a generator of Park and Miller. */
static void make_up(float *values, size_t count) {
    uint64_t state = 1;
    for (size_t i = 0; i < count; i++) {
        state = state * 48271u % 2147483647u;
        values[i] = (float)state * (2.0f / 2147483647.0f) - 1.0f;
    }
}

static bool begin_hidden(hvdc_timing *timing, size_t values, hvdc_failure *failure) {
    hvdc_hidden *hidden = &timing->hidden;
    if (!hvdc_hidden_open(hidden, timing->engine, "hvdc:timing", values, failure)) return false;
    make_up(hidden->values, values);
    return hvdc_hidden_share(hidden, timing->engine, failure);
}

bool hvdc_timing_begin(hvdc_timing *timing, hvdc_engine *engine, const hvdc_trajectory *trajectory,
                       hvdc_failure *failure) {
    size_t text_values = (size_t)trajectory->text_tokens * trajectory->width;
    *timing = (hvdc_timing){.engine = engine, .hidden = HVDC_NO_HIDDEN};
    for (uint32_t step = trajectory->steps; step-- > 0;) {
        uint32_t expert = trajectory->experts[step] % HVDC_TIMED_EXPERTS;
        timing->exists[expert] = true;
        timing->step[expert] = step;
    }
    timing->text = malloc(text_values * sizeof *timing->text);
    bool good = timing->text != NULL || hvdc_fail(failure, HVDC_FAILURE_MEMORY, "there is no memory to time a block");
    if (good) make_up(timing->text, text_values);
    good = good && begin_hidden(timing, (size_t)trajectory->tokens * trajectory->width, failure);
    for (uint32_t expert = 0; good && expert < HVDC_TIMED_EXPERTS; expert++)
        good = !timing->exists[expert] || engine->set_text(engine, expert, timing->text, failure);
    for (uint32_t expert = 0; good && expert < HVDC_TIMED_EXPERTS;
         expert++) { /* keys and values of the text, first touch */
        hvdc_timed_block first;
        good = !timing->exists[expert] || hvdc_timing_block(timing, &first, failure);
    }
    return good;
}

void hvdc_timing_end(hvdc_timing *timing) {
    hvdc_hidden_close(&timing->hidden, timing->engine);
    free(timing->text);
    timing->text = NULL;
}

bool hvdc_timing_text(hvdc_timing *timing, uint32_t expert, hvdc_timed_block *timed, hvdc_failure *failure) {
    uint64_t start = hvdc_clock_ns();
    if (!timing->engine->set_text(timing->engine, expert, timing->text, failure)) return false;
    *timed = (hvdc_timed_block){.expert = expert, .seconds = (double)(hvdc_clock_ns() - start) * NANOSECOND};
    return true;
}

bool hvdc_timing_block(hvdc_timing *timing, hvdc_timed_block *timed, hvdc_failure *failure) {
    uint32_t expert = timing->exists[timing->next] ? timing->next : (timing->next + 1u) % HVDC_TIMED_EXPERTS;
    uint64_t start = hvdc_clock_ns();
    if (!timing->engine->run(timing->engine, timing->step[expert], 0, 1, timing->hidden.values, failure)) return false;
    *timed = (hvdc_timed_block){.expert = expert, .seconds = (double)(hvdc_clock_ns() - start) * NANOSECOND};
    timing->next = (expert + 1u) % HVDC_TIMED_EXPERTS;
    return true;
}
