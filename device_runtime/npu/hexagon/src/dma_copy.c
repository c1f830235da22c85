/* The DMA engine where there is none. A transfer happens when it is waited for, and until then its destination holds
 * NaNs: who reads too early, writes a source that is still to be read, or fetches to where something is in use, computes
 * something else. */
#include <string.h>

#include "dma.h"
#include "fault.h"

static struct {
    hvdc_dma_copy copies[HVDC_DMA_TRANSFERS];
    hvdc_dma_ticket started, done;
} engine;

static uint8_t *row_of(void *first, size_t stride, uint32_t row) { return (uint8_t *)first + row * stride; }

void hvdc_dma_open(void) {
    hvdc_npu_require(engine.started == engine.done, "a transfer of an earlier product is not done");
    engine.started = engine.done = 0;
}

hvdc_dma_ticket hvdc_dma_start(const hvdc_dma_copy *copy) {
    if (engine.started - engine.done == HVDC_DMA_TRANSFERS) {
        hvdc_dma_wait(engine.done + 1u);
    }
    for (uint32_t row = 0; row < copy->rows; row++) {
        memset(row_of(copy->to, copy->to_stride_bytes, row), 0xff, copy->row_bytes);
    }
    engine.copies[engine.started % HVDC_DMA_TRANSFERS] = *copy;
    return ++engine.started;
}

void hvdc_dma_wait(hvdc_dma_ticket ticket) {
    while (engine.done < ticket) {
        const hvdc_dma_copy *copy = &engine.copies[engine.done++ % HVDC_DMA_TRANSFERS];
        for (uint32_t row = 0; row < copy->rows; row++) {
            memcpy(row_of(copy->to, copy->to_stride_bytes, row),
                   (const uint8_t *)copy->from + row * copy->from_stride_bytes, copy->row_bytes);
        }
    }
}

void hvdc_dma_close(void) { hvdc_dma_wait(engine.started); }
