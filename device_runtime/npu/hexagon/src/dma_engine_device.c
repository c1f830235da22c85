/* Compiled alone: no emulator at hand has these instructions. */
#include <hexagon_protos.h>

#include "dma_engine.h"

/* Makes sure that memory has a descriptor before the engine reads it. */
static void release(const dma_descriptor *descriptor) {
    __asm__ volatile("release(%0):at" ::"r"(descriptor) : "memory");
}

void dma_engine_start(dma_descriptor *first) {
    release(first);
    Q6_dmstart_A(first);
}

void dma_engine_link(dma_descriptor *last, dma_descriptor *next) {
    release(next);
    Q6_dmlink_AA(last, next);
}

/* Faults of the engine are raised by this instruction, too. */
uint32_t dma_engine_poll(void) { return (uint32_t)Q6_R_dmpoll(); }
