/* What only a device can tell, asked of it: does its vector unit round as IEEE 754 says, does its matrix unit do what
 * the model of it does, does its DMA engine copy? Every check knows its answer from integers or from small numbers
 * whose sums are exact. Under the emulator all of them pass (tests/device_runtime/test_selftest.py). */
#ifndef HVDC_HEXAGON_SELFTEST_H
#define HVDC_HEXAGON_SELFTEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hmx.h"

#define HVDC_SELFTEST_WHY_BYTES 160u
#define HVDC_SELFTEST_CHECKS_MOST 40u

/* All zeros: the vector unit alone, and the clock. */
typedef struct hvdc_selftest_units {
    const hvdc_hmx *hmx; /* hvdc_hmx_staged(), or NULL */
    uint8_t *vtcm;       /* what it was opened with */
    uint32_t vtcm_bytes;
    const char *only; /* how the names of the checks begin that are wanted, or NULL: all */
} hvdc_selftest_units;

typedef struct hvdc_selftest_result {
    const char *name, *meaning; /* the second: what it means if it fails */
    bool worthless;             /* … then no result is of any worth; else some differ in their last bits */
    bool passed;
    char why[HVDC_SELFTEST_WHY_BYTES]; /* what was found, and what is due; with `passed`: why it was not checked */
} hvdc_selftest_result;

/* Checks everything that `units` has and wants; returns how many results there are. */
uint32_t hvdc_selftest(const hvdc_selftest_units *units, hvdc_selftest_result results[HVDC_SELFTEST_CHECKS_MOST]);

/* A line for each result, its name, "passed", "FAILED" or "not checked", why, and what a failure means, with tabs
 * between, as far as they fit, and a zero byte. Returns how many have failed. */
uint32_t hvdc_selftest_text(const hvdc_selftest_result *results, uint32_t count, char *text, size_t bytes);

/* How many have failed that leave no result of any worth. */
uint32_t hvdc_selftest_worthless(const hvdc_selftest_result *results, uint32_t count);

#endif
