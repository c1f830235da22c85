/* The matrix unit: products of 32 x 32 FP16 tiles (order hmx-fp16-2 of hvdc/tiles.h), accumulated in FP32 or wider
 * and rounded once. This is one of the two seams of the NPU executor: everything that multiplies matrices goes
 * through it, so that a device's unit can take the place of the portable one without a change elsewhere.
 *
 * There are two for a CPU. Both give the same bits on every processor, however a product is cut into calls by rows and
 * columns. Products of two FP16 values are exact in FP32; the fast unit adds them in FP32, 128 in the order of k and
 * then these sums. The exact unit rounds exact sums, which have no order. */
#ifndef HVDC_NPU_HMX_H
#define HVDC_NPU_HMX_H

#include <stddef.h>
#include <stdint.h>

#include "hvdc/cpu.h"
#include "hvdc/npu_sums.h"
#include "hvdc/tiles.h"

#define HVDC_HMX_TILE HVDC_TILE_HMX_FP16_2_ROWS
#define HVDC_HMX_TILE_HALFS (HVDC_TILE_HMX_FP16_2_BYTES / HVDC_TILE_HMX_FP16_2_ELEMENT_BYTES)

/* Limits of a call. */
#define HVDC_HMX_ROW_TILES 32u
#define HVDC_HMX_COL_TILES 8u
#define HVDC_HMX_QUERY_TILES 16u

/* A matrix as tiles: the tile (i, k) begins at tiles + (i · stride + k) · HVDC_HMX_TILE_HALFS. An activation has
 * (token, channel) in a tile and i counts tiles of tokens; a weight has (input k, output n) in it and i counts tiles
 * of outputs. */
typedef struct hvdc_hmx_matrix {
    const uint16_t *tiles;
    size_t stride;
} hvdc_hmx_matrix;

typedef struct hvdc_hmx {
    /* How many columns of tiles of a linear it likes to make at once, while rows pass by; and tiles of query rows of
     * attention, while keys do. */
    uint32_t col_tiles, query_tiles;

    /* Bytes that a call may write, aligned to 128, a thread's own. */
    size_t scratch_bytes;

    /* The tile (r, c) at out + (r · out_stride + c) · HVDC_HMX_TILE_HALFS becomes fp16(Σ_k a(r, k) · w(c, k)), for
     * r < row_tiles <= 32, c < col_tiles <= 8, k < k_tiles. */
    void (*multiply)(hvdc_hmx_matrix a, hvdc_hmx_matrix w, uint32_t row_tiles, uint32_t col_tiles, uint32_t k_tiles,
                     uint16_t *out, size_t out_stride, void *scratch);

    /* The same sums not narrowed: row-major FP32, rows 32 · col_tiles floats apart. Attention needs them, whose sums
     * may leave FP16's range before they are divided. A unit that can only narrow gives them in two parts: fp16(sum),
     * and what is left of the sum after that was subtracted (npu/hexagon/src/hmx_staged.h has the bound). */
    void (*sums)(hvdc_hmx_matrix a, hvdc_hmx_matrix w, uint32_t row_tiles, uint32_t col_tiles, uint32_t k_tiles,
                 float *sums, void *scratch);
} hvdc_hmx;

/* NULL on a DSP, whose unit an engine is given (hvdc/npu.h). */
const hvdc_hmx *hvdc_hmx_for(enum hvdc_cpu cpu, enum hvdc_npu_sums kind);

#endif
