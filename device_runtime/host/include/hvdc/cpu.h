/* Hot kernels are compiled once for each of these levels of a processor, and chosen when the program runs: the x86-64
 * psABI's microarchitecture levels. Other processors have "generic" alone, built for what CMake is told.
 *
 * The NPU executor's kernels give the same bits at every level: sums have one order, and only products that are exact
 * are fused with their addition. The host's FP32 products are fused where a processor can, which rounds once less. */
#ifndef HVDC_CPU_H
#define HVDC_CPU_H

#include <stdbool.h>

#include "hvdc/failure.h"

#ifdef __cplusplus
extern "C" {
#endif

enum hvdc_cpu { HVDC_CPU_GENERIC, HVDC_CPU_X86_64_V3, HVDC_CPU_X86_64_V4, HVDC_CPU_LEVELS };

/* Whether this program has kernels for a level, and this processor can execute them. */
bool hvdc_cpu_usable(enum hvdc_cpu cpu);

/* The level of a name ("generic", "x86-64-v3", "x86-64-v4"), or the best one for NULL. Fails for a name that is
 * unknown, or a level that is not usable. */
bool hvdc_cpu_select(const char *name, enum hvdc_cpu *cpu, hvdc_failure *failure);

/* The name of a symbol in the object that is compiled for a level: HVDC_FOR_CPU(table) is table_x86_64_v3, say. */
#define HVDC_FOR_CPU_JOINED(symbol, level) symbol##_##level
#define HVDC_FOR_CPU_EXPANDED(symbol, level) HVDC_FOR_CPU_JOINED(symbol, level)
#define HVDC_FOR_CPU(symbol) HVDC_FOR_CPU_EXPANDED(symbol, HVDC_CPU_LEVEL)

#ifdef __cplusplus
}
#endif

#endif
