#define _POSIX_C_SOURCE 200809L

#include "hvdc/clock.h"

#include <time.h>

uint64_t hvdc_clock_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now); /* fails for a clock that does not exist, and this one does */
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
