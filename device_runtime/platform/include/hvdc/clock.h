/* Time that only goes forward and that all processes of the machine share. */
#ifndef HVDC_CLOCK_H
#define HVDC_CLOCK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Nanoseconds of CLOCK_MONOTONIC. */
uint64_t hvdc_clock_ns(void);

#ifdef __cplusplus
}
#endif

#endif
