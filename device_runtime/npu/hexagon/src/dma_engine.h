/* The user-mode DMA engine of a hardware thread, which goes along a chain of descriptors in memory. dma_user.c makes
 * them; dma_engine_device.c has the instructions, dma_engine_model.c reads descriptors as the engine is said to.
 *
 * Source of the layout: qualcomm/hexagon-mlir, bin/runtime/UserDMA/UserDMADescriptors.h (from Qualcomm's User DMA
 * Specification 80-V9418-29 Rev. D) and qualcomm/qemu, target/hexagon/dma/dma_descriptor.h. */
#ifndef HVDC_NPU_DMA_ENGINE_H
#define HVDC_NPU_DMA_ENGINE_H

#include <stdint.h>

#define DMA_FIELD_BITS 24u /* of lengths and strides; strides had 16 before V75 */
#define DMA_FIELD_MASK 0xffffffu
#define DMA_ROWS_MASK 0xffffu
#define DMA_SIZE_MASK (3u << 24)
#define DMA_SIZE_1D 0u
#define DMA_SIZE_2D (1u << 24)
#define DMA_DONE (1u << 31)
#define DMA_TYPE_WIDE_2D 9u /* addresses of 32 bits, strides of 24 */
#define DMA_STATUS_MASK 3u
#define DMA_STATUS_RUNNING 1u
#define DMA_STATUS_ERROR 2u

/* One of one dimension ends before `type`. Aligned to its size. */
typedef struct dma_descriptor {
    uint32_t next;  /* address, or 0 */
    uint32_t state; /* 23:0 bytes, or the destination's stride; 25:24 size; 31 done */
    uint32_t from, to;
    uint32_t type;
    uint32_t row_bytes;   /* 23:0; and 31:24 rows, bits 7:0 */
    uint32_t from_stride; /* 31:8; and 7:0 rows, bits 15:8 */
    uint32_t offset;
} __attribute__((aligned(32))) dma_descriptor;

_Static_assert(sizeof(dma_descriptor) == 32, "as the engine reads it");

/* Begins a chain; the engine is idle. */
void dma_engine_start(dma_descriptor *first);

/* Puts `next` behind the last descriptor of the chain, whether the engine is done with that or not. */
void dma_engine_link(dma_descriptor *last, dma_descriptor *next);

/* Status of the engine: DMA_STATUS_MASK. */
uint32_t dma_engine_poll(void);

#endif
