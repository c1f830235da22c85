/* What the kinds of shared memory on Android have in common: each is a DMA-BUF underneath. */
#ifndef HVDC_DMA_BUF_H
#define HVDC_DMA_BUF_H

#include "hvdc/shared_memory.h"

/* DMA_BUF_IOCTL_SYNC: the caches of the CPU before and after it reads or writes. */
bool hvdc_dma_buf_begin_write(hvdc_memory *memory, hvdc_failure *failure);
bool hvdc_dma_buf_end_write(hvdc_memory *memory, hvdc_failure *failure);

/* A function of a vendor's library, which is looked for when the program runs: there are phones without it. Function
 * pointers are not object pointers in ISO C; `function` is the address of one. */
bool hvdc_library_function(void *library, const char *name, void *function, size_t function_bytes);

#endif
