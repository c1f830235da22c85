/* Transfers by the user-mode DMA engine of a hardware thread: a ring of descriptors, each linked to the end of a chain
 * while the engine goes along it. V73 has strides of 16 bits, which would cut ours off: there each row of a transfer is a
 * descriptor of one dimension. */
#include "dma.h"
#include "dma_engine.h"
#include "fault.h"

#define DESCRIPTORS 128u

/* Of the one thread that has the unit. */
static struct {
    dma_descriptor chain[DESCRIPTORS];
    hvdc_dma_ticket started, done;
} ring;

static uint32_t address(const void *memory, size_t offset) { return (uint32_t)((uintptr_t)memory + offset); }

static void wait_for(hvdc_dma_ticket ticket) {
    while (ring.done < ticket) {
        const volatile uint32_t *state = &ring.chain[ring.done % DESCRIPTORS].state;
        while ((*state & DMA_DONE) == 0u) {
            hvdc_npu_require((dma_engine_poll() & DMA_STATUS_MASK) != DMA_STATUS_ERROR, "the DMA engine stopped");
        }
        ring.done++;
    }
    __asm__ volatile("" ::: "memory");
}

static void add(dma_descriptor descriptor) {
    if (ring.started - ring.done == DESCRIPTORS - 1u) { /* the end of the chain stays */
        wait_for(ring.done + 1u);
    }
    dma_descriptor *last = &ring.chain[(ring.started + DESCRIPTORS - 1u) % DESCRIPTORS];
    dma_descriptor *next = &ring.chain[ring.started % DESCRIPTORS];
    *next = descriptor;
    if (ring.started == 0u) {
        dma_engine_start(next);
    } else {
        dma_engine_link(last, next);
    }
    ring.started++;
}

static void add_row(const hvdc_dma_copy *copy, uint32_t row) {
    add((dma_descriptor){.state = DMA_SIZE_1D | copy->row_bytes,
                         .from = address(copy->from, row * copy->from_stride_bytes),
                         .to = address(copy->to, row * copy->to_stride_bytes)});
}

#if __HEXAGON_ARCH__ >= 75
static int fits_one(const hvdc_dma_copy *copy) {
    return copy->from_stride_bytes >> DMA_FIELD_BITS == 0u && copy->to_stride_bytes >> DMA_FIELD_BITS == 0u &&
           copy->rows <= DMA_ROWS_MASK;
}

static void add_rows(const hvdc_dma_copy *copy) {
    add((dma_descriptor){.state = DMA_SIZE_2D | (uint32_t)copy->to_stride_bytes,
                         .from = address(copy->from, 0),
                         .to = address(copy->to, 0),
                         .type = DMA_TYPE_WIDE_2D,
                         .row_bytes = (copy->rows & 0xffu) << DMA_FIELD_BITS | copy->row_bytes,
                         .from_stride = copy->rows >> 8 | (uint32_t)copy->from_stride_bytes << 8});
}
#endif

void hvdc_dma_open(void) { ring.started = ring.done = 0; }

hvdc_dma_ticket hvdc_dma_start(const hvdc_dma_copy *copy) {
    hvdc_npu_require(copy->row_bytes >> DMA_FIELD_BITS == 0u, "a row is longer than a DMA transfer can be");
#if __HEXAGON_ARCH__ >= 75
    if (copy->rows > 1u && fits_one(copy)) {
        add_rows(copy);
        return ring.started;
    }
#endif
    for (uint32_t row = 0; row < copy->rows; row++) {
        add_row(copy, row);
    }
    return ring.started;
}

void hvdc_dma_wait(hvdc_dma_ticket ticket) { wait_for(ticket); }

/* A descriptor is done before its engine is idle, and another chain begins with an idle one. */
void hvdc_dma_close(void) {
    wait_for(ring.started);
    while ((dma_engine_poll() & DMA_STATUS_MASK) == DMA_STATUS_RUNNING) {
    }
}
