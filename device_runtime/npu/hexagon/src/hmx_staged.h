/* The seam hmx.h for a matrix unit that reads VTCM alone: operands are fetched there, a few strips ahead of the unit
 * (vtcm.h, dma.h), and results are copied out.
 *
 * `multiply` narrows exact sums once, as hmx_exact.c does. `sums` come in two parts, since the unit can only narrow:
 *
 *   first = fp16(c · sum), second = fp16(2^11 · c · (sum − first / c)), sum ≈ first / c + second / (2^11 · c)
 *
 * for c = 2^-e, e = min(15, ⌈log2(32 · k_tiles)⌉). The unit subtracts: with the sum still in it, it adds `first` as an
 * activation times −2^e of the identity. If first is finite, so is second, since |sum − first / c| <= 2^-11 · max(|sum|,
 * 2^-14 / c). Both are narrowed to nearest, so that the result is off by no more than
 *
 *   2^-22 · |sum| + 2^-36 / c,  and FP32's 2^-24 · |sum| for the last addition.
 *
 * First is finite for |sum| < 65520 · 2^e; which attention's sums are, whose activations are weights of at most 1 and
 * whose values are FP16: |sum| <= 32 · k_tiles · 65504. Beyond it, and where an operand is not finite, all sums of a
 * row's tile may be NaN. */
#ifndef HVDC_NPU_HMX_STAGED_H
#define HVDC_NPU_HMX_STAGED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hmx.h"

/* The unit and `bytes` of VTCM, aligned to a tile, are the process's from here on; `context` is that of the compute
 * resource that holds them (HAP_compute_res_acquire), 0 where there is none. Fails if they are too few. */
bool hvdc_hmx_staged_open(void *vtcm, size_t bytes, uint32_t context, hvdc_failure *failure);

void hvdc_hmx_staged_close(void);

/* The unit, or NULL unless it is open. */
const hvdc_hmx *hvdc_hmx_staged(void);

#endif
