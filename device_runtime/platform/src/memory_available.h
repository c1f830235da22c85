#ifndef HVDC_MEMORY_AVAILABLE_H
#define HVDC_MEMORY_AVAILABLE_H

#include <stdint.h>

/* hvdc_memory_available_bytes, by ROOT/proc and ROOT/sys. */
uint64_t hvdc_memory_available_in(const char *root);

#endif
