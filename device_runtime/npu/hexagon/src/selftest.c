#include "selftest.h"

#include <string.h>
#include <time.h>

#include "selftest_checks.h"

static double now_s(void) {
    struct timespec now;
    (void)timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* A clock that stands still makes reports of stages worthless; one that jumps, too. */
static bool clock_goes(const hvdc_selftest_units *units, char *why) {
    enum { READINGS = 1 << 20 };
    double first = now_s(), before = first;
    (void)units;
    for (uint32_t i = 0; i < READINGS; i++) {
        double now = now_s();
        if (now < before) return CHECK_FAIL(why, "it went back by %" PRIu32 " us", (uint32_t)((before - now) * 1e6));
        if (now > before + 3600.0) return CHECK_FAIL(why, "it went on by an hour between two readings");
        if (now > first) return true;
        before = now;
    }
    return CHECK_FAIL(why, "%d readings are equal", READINGS);
}

static const hvdc_check CLOCK = {"clock", "seconds of the NPU's stages mean nothing", LAST_BITS, clock_goes};

/* The next result, if the check is wanted; returns how many there are. */
static uint32_t run(const hvdc_check *check, const hvdc_selftest_units *units, hvdc_selftest_result *results,
                    uint32_t count) {
    if (units->only != NULL && strncmp(check->name, units->only, strlen(units->only)) != 0) return count;
    hvdc_selftest_result *result = &results[count];
    *result = (hvdc_selftest_result){
        .name = check->name, .meaning = check->meaning, .worthless = check->gravity == WORTHLESS};
    result->passed = check->run(units, result->why);
    return count + 1u;
}

uint32_t hvdc_selftest(const hvdc_selftest_units *units, hvdc_selftest_result results[HVDC_SELFTEST_CHECKS_MOST]) {
    uint32_t count = run(&CLOCK, units, results, 0);
    for (uint32_t i = 0; i < hvdc_vector_check_count; i++) count = run(&hvdc_vector_checks[i], units, results, count);
    for (uint32_t i = 0; units->hmx != NULL && i < hvdc_matrix_check_count; i++) {
        count = run(&hvdc_matrix_checks[i], units, results, count);
    }
    return count;
}

static const char *state_of(const hvdc_selftest_result *result) {
    return !result->passed ? "FAILED" : result->why[0] == 0 ? "passed" : "not checked";
}

uint32_t hvdc_selftest_text(const hvdc_selftest_result *results, uint32_t count, char *text, size_t bytes) {
    uint32_t failed = 0;
    size_t used = 0;
    if (bytes > 0u) text[0] = 0;
    for (uint32_t i = 0; i < count; i++) {
        const hvdc_selftest_result *r = &results[i];
        failed += r->passed ? 0u : 1u;
        if (used >= bytes) continue;
        int wrote = snprintf(text + used, bytes - used, "%s\t%s\t%s\t%s\n", r->name, state_of(r), r->why,
                             r->passed ? "" : r->meaning);
        used = wrote < 0 || (size_t)wrote >= bytes - used ? bytes : used + (size_t)wrote;
    }
    return failed;
}

uint32_t hvdc_selftest_worthless(const hvdc_selftest_result *results, uint32_t count) {
    uint32_t worthless = 0;
    for (uint32_t i = 0; i < count; i++) worthless += !results[i].passed && results[i].worthless ? 1u : 0u;
    return worthless;
}
