/* The end of a program that would compute wrong values: an operand where no operand may be, or an engine that stopped.
 * A device cannot go on from there, and neither can a test. */
#ifndef HVDC_NPU_FAULT_H
#define HVDC_NPU_FAULT_H

#include <stdint.h>

_Noreturn void hvdc_npu_fault(const char *what);

static inline void hvdc_npu_require(int holds, const char *what) {
    if (!holds) {
        hvdc_npu_fault(what);
    }
}

/* An operand of the matrix unit: `bytes` from `address` on, which is a multiple of `alignment`, inside one bank. */
static inline void hvdc_npu_require_operand(const void *address, uint32_t bytes, uint32_t alignment, uint32_t bank) {
    uintptr_t first = (uintptr_t)address, last = first + bytes - 1u;
    hvdc_npu_require(first % alignment == 0u, "an operand of the matrix unit is not aligned to its size");
    hvdc_npu_require(bytes > 0u && first / bank == last / bank, "an operand of the matrix unit crosses a bank of VTCM");
}

#endif
