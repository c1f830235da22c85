/* What the files of the self-test share. */
#ifndef HVDC_HEXAGON_SELFTEST_CHECKS_H
#define HVDC_HEXAGON_SELFTEST_CHECKS_H

#include <inttypes.h>
#include <stdio.h>

#include "selftest.h"

/* False, with a sentence in `why`; true with one: not checked. */
typedef bool hvdc_check_run(const hvdc_selftest_units *units, char why[HVDC_SELFTEST_WHY_BYTES]);

/* If it fails: results that differ in their last bits, or none of any worth. */
enum hvdc_check_gravity { LAST_BITS, WORTHLESS };

typedef struct hvdc_check {
    const char *name, *meaning;
    enum hvdc_check_gravity gravity;
    hvdc_check_run *run;
} hvdc_check;

extern const hvdc_check hvdc_vector_checks[], hvdc_matrix_checks[];
extern const uint32_t hvdc_vector_check_count, hvdc_matrix_check_count;

#define CHECK_FAIL(why, ...) ((void)snprintf(why, HVDC_SELFTEST_WHY_BYTES, __VA_ARGS__), false)
#define CHECK_LEFT_OUT(why, ...) ((void)snprintf(why, HVDC_SELFTEST_WHY_BYTES, __VA_ARGS__), true)

#endif
