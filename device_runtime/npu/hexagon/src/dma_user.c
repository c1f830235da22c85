/* The user-mode DMA engine of a hardware thread: a chain of descriptors in memory, to whose end the thread adds others
 * while the engine goes along it.
 *
 * Source of the descriptors: qualcomm/hexagon-mlir, bin/runtime/UserDMA/UserDMADescriptors.h (from Qualcomm's User DMA
 * Specification 80-V9418-29 Rev. D) and qualcomm/qemu, target/hexagon/dma/dma_descriptor.h. Since V75 there are strides
 * of 24 bits; those of 16 bits before would cut ours off, so that V73 is given one descriptor for each row.
 *
 * This file was compiled alone: no emulator at hand has the engine. */
#include <hexagon_protos.h>

#include "dma.h"
#include "fault.h"

#define DESCRIPTORS 128u
#define FIELD_BITS 24u /* of lengths and strides */
#define MOST_ROWS 0xffffu

#define SIZE_1D 0u /* bits 25:24 of the second word */
#define SIZE_2D (1u << 24)
#define DONE (1u << 31)
#define TYPE_WIDE_2D 9u /* 32-bit addresses, 24-bit strides */
#define STATUS_MASK 3u
#define STATUS_ERROR 2u

/* Aligned to its size, in memory that the engine sees through the second-level cache, as it does operands. */
struct descriptor {
    uint32_t next;
    volatile uint32_t size_and_state; /* 23:0 bytes, or the destination's stride; 25:24 size; 31 done */
    uint32_t from, to;
    uint32_t type;
    uint32_t row_bytes_rows;   /* 23:0 bytes of a row; 31:24 rows, bits 7:0 */
    uint32_t rows_from_stride; /* 7:0 rows, bits 15:8; 31:8 the source's stride */
    uint32_t offset;
} __attribute__((aligned(32)));

_Static_assert(sizeof(struct descriptor) == 32, "as the engine reads it");

/* Of the one thread that has the unit. */
static struct {
    struct descriptor chain[DESCRIPTORS];
    hvdc_dma_ticket started, done;
} engine;

static uint32_t address(const void *memory, size_t offset) { return (uint32_t)((uintptr_t)memory + offset); }

static void wait_for(hvdc_dma_ticket ticket) {
    while (engine.done < ticket) {
        const struct descriptor *oldest = &engine.chain[engine.done % DESCRIPTORS];
        while ((oldest->size_and_state & DONE) == 0u) {
            /* Faults of the engine are raised by this instruction, too. */
            hvdc_npu_require(((uint32_t)Q6_R_dmpoll() & STATUS_MASK) != STATUS_ERROR, "the DMA engine stopped");
        }
        engine.done++;
    }
    __asm__ volatile("" ::: "memory");
}

/* Adds a descriptor to the chain, or begins one. */
static void add(struct descriptor descriptor) {
    if (engine.started - engine.done == DESCRIPTORS - 1u) { /* the end of the chain stays */
        wait_for(engine.done + 1u);
    }
    struct descriptor *last = &engine.chain[(engine.started + DESCRIPTORS - 1u) % DESCRIPTORS];
    struct descriptor *next = &engine.chain[engine.started % DESCRIPTORS];
    *next = descriptor;
    __asm__ volatile("release(%0):at" ::"r"(next) : "memory"); /* written before the engine reads it */
    if (engine.started == 0u) {
        Q6_dmstart_A(next);
    } else {
        Q6_dmlink_AA(last, next);
    }
    engine.started++;
}

static void add_row(const hvdc_dma_copy *copy, uint32_t row) {
    add((struct descriptor){.size_and_state = SIZE_1D | copy->row_bytes,
                            .from = address(copy->from, row * copy->from_stride_bytes),
                            .to = address(copy->to, row * copy->to_stride_bytes)});
}

#if __HEXAGON_ARCH__ >= 75
static int is_wide_enough(const hvdc_dma_copy *copy) {
    return copy->from_stride_bytes >> FIELD_BITS == 0u && copy->to_stride_bytes >> FIELD_BITS == 0u &&
           copy->rows <= MOST_ROWS;
}

static void add_rows(const hvdc_dma_copy *copy) {
    add((struct descriptor){
        .size_and_state = SIZE_2D | (uint32_t)copy->to_stride_bytes,
        .from = address(copy->from, 0),
        .to = address(copy->to, 0),
        .type = TYPE_WIDE_2D,
        .row_bytes_rows = (copy->rows & 0xffu) << 24 | copy->row_bytes,
        .rows_from_stride = copy->rows >> 8 | (uint32_t)copy->from_stride_bytes << 8,
    });
}
#endif

void hvdc_dma_open(void) { engine.started = engine.done = 0; }

hvdc_dma_ticket hvdc_dma_start(const hvdc_dma_copy *copy) {
    hvdc_npu_require(copy->row_bytes >> FIELD_BITS == 0u, "a row is longer than a DMA transfer can be");
#if __HEXAGON_ARCH__ >= 75
    if (copy->rows > 1u && is_wide_enough(copy)) {
        add_rows(copy);
        return engine.started;
    }
#endif
    for (uint32_t row = 0; row < copy->rows; row++) {
        add_row(copy, row);
    }
    return engine.started;
}

void hvdc_dma_wait(hvdc_dma_ticket ticket) { wait_for(ticket); }

void hvdc_dma_close(void) { wait_for(engine.started); }
