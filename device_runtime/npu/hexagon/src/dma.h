/* Copies that go on while a thread works, between VTCM and other memory. A seam in two builds:
 *
 *   dma_user.c   Hexagon: the user-mode DMA engine, of which each hardware thread has one, or a model of it
 *   dma_copy.c   a copy by the processor, at the latest moment
 *
 * One thread opens an engine, starts and waits, and closes it. */
#ifndef HVDC_NPU_DMA_H
#define HVDC_NPU_DMA_H

#include <stddef.h>
#include <stdint.h>

#define HVDC_DMA_TRANSFERS 8u /* under way at once; another one waits for the oldest */

/* `rows` pieces of `row_bytes`, at distances of their strides. */
typedef struct hvdc_dma_copy {
    void *to;
    const void *from;
    size_t to_stride_bytes, from_stride_bytes;
    uint32_t row_bytes, rows;
} hvdc_dma_copy;

/* Names a transfer; those that began earlier have smaller ones. */
typedef uint32_t hvdc_dma_ticket;

void hvdc_dma_open(void);
hvdc_dma_ticket hvdc_dma_start(const hvdc_dma_copy *copy);

/* Returns once the transfer, and each that began before it, is done. */
void hvdc_dma_wait(hvdc_dma_ticket ticket);

/* Waits for all. */
void hvdc_dma_close(void);

#endif
