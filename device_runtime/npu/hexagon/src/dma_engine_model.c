/* The DMA engine under an emulator: it goes on by one descriptor whenever it is asked how it is, and until then the
 * destination holds NaNs, as in dma_copy.c. */
#include <string.h>

#include "dma_engine.h"
#include "fault.h"

static dma_descriptor *at; /* NULL: idle */

static void *memory(uint32_t address, uint32_t offset) { return (void *)((uintptr_t)address + offset); }

struct copy {
    uint32_t row_bytes, rows, from_stride, to_stride;
};

static struct copy read_descriptor(const dma_descriptor *d) {
    hvdc_npu_require((uintptr_t)d % sizeof *d == 0u, "a DMA descriptor is not aligned");
    if ((d->state & DMA_SIZE_MASK) == DMA_SIZE_1D) {
        return (struct copy){.row_bytes = d->state & DMA_FIELD_MASK, .rows = 1};
    }
    hvdc_npu_require((d->state & DMA_SIZE_MASK) == DMA_SIZE_2D && d->type == DMA_TYPE_WIDE_2D && d->offset == 0u,
                     "a DMA descriptor of another kind");
    return (struct copy){.row_bytes = d->row_bytes & DMA_FIELD_MASK,
                         .rows = d->row_bytes >> DMA_FIELD_BITS | (d->from_stride & 0xffu) << 8,
                         .from_stride = d->from_stride >> 8,
                         .to_stride = d->state & DMA_FIELD_MASK};
}

static void spoil(const dma_descriptor *d) {
    const struct copy copy = read_descriptor(d);
    for (uint32_t row = 0; row < copy.rows; row++) {
        memset(memory(d->to, row * copy.to_stride), 0xff, copy.row_bytes);
    }
}

void dma_engine_start(dma_descriptor *first) {
    hvdc_npu_require(at == NULL, "the DMA engine is started while it works");
    spoil(first);
    at = first;
}

void dma_engine_link(dma_descriptor *last, dma_descriptor *next) {
    hvdc_npu_require(last->next == 0u, "a DMA descriptor has a successor already");
    spoil(next);
    last->next = (uint32_t)(uintptr_t)next;
    at = at == NULL ? next : at;
}

uint32_t dma_engine_poll(void) {
    if (at == NULL) {
        return 0;
    }
    const struct copy copy = read_descriptor(at);
    hvdc_npu_require((at->state & DMA_DONE) == 0u, "a DMA descriptor was done before");
    for (uint32_t row = 0; row < copy.rows; row++) {
        memcpy(memory(at->to, row * copy.to_stride), memory(at->from, row * copy.from_stride), copy.row_bytes);
    }
    at->state |= DMA_DONE;
    at = memory(at->next, 0);
    return at == NULL ? 0 : 1;
}
