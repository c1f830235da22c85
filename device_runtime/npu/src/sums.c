#include "hvdc/npu_sums.h"

#include <string.h>

static const char *const NAMES[] = {"fast", "exact"};

const char *hvdc_npu_sums_name(enum hvdc_npu_sums sums) { return NAMES[sums]; }

bool hvdc_npu_sums_of_name(const char *name, enum hvdc_npu_sums *sums) {
    for (unsigned i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        if (strcmp(name, NAMES[i]) == 0) {
            *sums = (enum hvdc_npu_sums)i;
            return true;
        }
    }
    return false;
}
