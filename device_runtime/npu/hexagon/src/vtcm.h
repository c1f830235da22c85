/* What the matrix unit keeps in VTCM, the DSP's tightly coupled memory and the only one that the unit reads. This is
 * the one place with sizes of it.
 *
 *   | constants | 3 of results | 3 of rows | weights                            |
 *     2 tiles     rows · parts   rows · k    as many strips of k tiles as stay
 *
 * A strip is what one row of tiles of an activation, or one column of tiles of a weight, has in k. The unit sums over k
 * without leaving anything behind, so that weights stay while rows pass by, `rows` strips at a time, and the next
 * ones are fetched while the unit works. Where not even a few strips fit, k is cut: one row and one column at a time, whose
 * sums stay in the unit while pieces of both pass by. There are three of what changes: one with which the unit works, one
 * that is fetched or copied out, and one with which the unit may not be done yet. Sums have no order (see hmx.h), so that a budget decides how much
 * is fetched, and no bit of a result. */
#ifndef HVDC_NPU_VTCM_H
#define HVDC_NPU_VTCM_H

#include <stdbool.h>
#include <stdint.h>

#include "hvdc/failure.h"
#include "hvdc/tiles.h"

#define HVDC_VTCM_V79_BYTES (8u << 20) /* what a DSP of the Snapdragon 8 Elite has */

/* More is not used, so that other sessions may have the rest: an option of the build (CMake: HVDC_VTCM_KIB). A session
 * may have less. */
#if defined(HVDC_VTCM_KIB)
#define HVDC_VTCM_MOST_BYTES (HVDC_VTCM_KIB * 1024u)
#else
#define HVDC_VTCM_MOST_BYTES HVDC_VTCM_V79_BYTES
#endif

#define HVDC_VTCM_TILE_BYTES HVDC_TILE_HMX_FP16_2_BYTES /* activations and weights are aligned to their size */
#define HVDC_VTCM_SCALE_BYTES 256u                      /* so are scales */
#define HVDC_VTCM_BANK_BYTES (4u << 20)                 /* no operand may cross a multiple of it */

/* Constants: the scales of whole results, of a sum's first part and of its second one, then a tile. */
#define HVDC_VTCM_SCALE_ONE_AT 0u
#define HVDC_VTCM_SCALE_FIRST_AT HVDC_VTCM_SCALE_BYTES
#define HVDC_VTCM_SCALE_SECOND_AT (HVDC_VTCM_SCALE_FIRST_AT + HVDC_VTCM_SCALE_BYTES)
#define HVDC_VTCM_DIAGONAL_AT HVDC_VTCM_TILE_BYTES
#define HVDC_VTCM_CONSTANT_TILES 2u

#define HVDC_VTCM_CHUNK_TILES 128u /* of rows that are fetched at once: enough for the DMA engine to be fast */

#define HVDC_VTCM_SLOTS 3u

/* All tiles of a plan. */
#define HVDC_VTCM_TILES(rows, w_slots, k, parts) \
    (HVDC_VTCM_CONSTANT_TILES + HVDC_VTCM_SLOTS * (rows) * ((parts) + (k)) + (w_slots) * (k))

/* With strips of one tile, and sums of two parts, every product can be made. */
#define HVDC_VTCM_LEAST_BYTES (HVDC_VTCM_TILES(1u, HVDC_VTCM_SLOTS, 1u, 2u) * HVDC_VTCM_TILE_BYTES)

_Static_assert(HVDC_VTCM_MOST_BYTES >= HVDC_VTCM_LEAST_BYTES, "HVDC_VTCM_KIB is too little");

/* The largest linear (K = 8960, so 280 tiles): the weights of eight columns of tiles stay in a V79's memory, those of
 * four in half of it. */
_Static_assert(HVDC_VTCM_TILES(1u, 8u, 280u, 1u) * HVDC_VTCM_TILE_BYTES <= HVDC_VTCM_V79_BYTES, "eight columns stay");
_Static_assert(HVDC_VTCM_TILES(1u, 4u, 280u, 1u) * HVDC_VTCM_TILE_BYTES <= HVDC_VTCM_V79_BYTES / 2u, "four stay");
_Static_assert(3u * HVDC_VTCM_SCALE_BYTES <= HVDC_VTCM_DIAGONAL_AT, "scales end before the tile");
_Static_assert(HVDC_VTCM_BANK_BYTES % HVDC_VTCM_TILE_BYTES == 0u, "banks are whole tiles");

/* Products of [rows][k] and [columns][k] tiles; `parts`: tiles that each sum becomes, 1 or 2. */
typedef struct hvdc_vtcm_shape {
    uint32_t row_tiles, col_tiles, k_tiles, parts;
} hvdc_vtcm_shape;

typedef struct hvdc_vtcm_plan {
    uint32_t rows;                            /* strips of rows that are fetched at once */
    uint32_t cols;                            /* columns of tiles that rows pass by */
    uint32_t k;                               /* tiles of a strip: all, or a piece of it if rows = cols = 1 */
    uint32_t w_slots;                         /* strips of weights that there is room for */
    uint32_t results_at, rows_at, weights_at; /* bytes from the area's begin */
    uint32_t bytes;
} hvdc_vtcm_plan;

/* Fails if `budget_bytes` are fewer than HVDC_VTCM_LEAST_BYTES; all sizes are at least 1. */
bool hvdc_vtcm_plan_for(uint32_t budget_bytes, const hvdc_vtcm_shape *shape, hvdc_vtcm_plan *plan,
                        hvdc_failure *failure);

/* Tiles that a product fetches from other memory. */
uint64_t hvdc_vtcm_fetched_tiles(const hvdc_vtcm_shape *shape, const hvdc_vtcm_plan *plan);

#endif
