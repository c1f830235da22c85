/* The kinds of shared memory, each in a file of its own. */
#ifndef HVDC_MEMORY_KINDS_H
#define HVDC_MEMORY_KINDS_H

#include "hvdc/shared_memory.h"

extern const hvdc_memory_kind hvdc_memory_memfd;
#if defined(HVDC_ANDROID_MEMORY) /* Android, or a test with stand-ins for its libraries */
extern const hvdc_memory_kind hvdc_memory_dma_heap, hvdc_memory_hardware_buffer, hvdc_memory_rpcmem;
#endif

/* mmap of a whole descriptor. */
bool hvdc_memory_map(int fd, uint64_t bytes, bool writable, uint8_t **data, hvdc_failure *failure);

#endif
