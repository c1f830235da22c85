/* The matrix unit on a CPU. Tiles are widened to FP32 rows when they are needed, a few tiles of k at a time, so that
 * both operands stay in cache; what that costs is shared by the tiles of the call. */
#include "hmx.h"

#include <string.h>

#include "hvdc/half.h"
#include "hvdc/panel.h"
#include "portable.h"

#define TILE HVDC_HMX_TILE
#define HALFS HVDC_HMX_TILE_HALFS
#define K_STEP 4u /* tiles of k that are widened at once */

_Static_assert(TILE == HVDC_PANEL_COLUMNS, "a tile's columns are a panel's");

struct scratch {
    float sums[HVDC_HMX_ROW_TILES * HVDC_HMX_COL_TILES][TILE * TILE];
    float weights[HVDC_HMX_COL_TILES][K_STEP * TILE * TILE]; /* [k][32] */
    float rows[TILE * K_STEP * TILE];                        /* [32][K_STEP * 32] */
};

/* Element (row, col) of a tile to rows[row * stride + col]. */
static void widen(const uint16_t *tile, float *restrict rows, size_t stride) {
    float values[HALFS];
    hvdc_halfs_to_floats(tile, HALFS, values);
    for (uint32_t row = 0; row < TILE; row++) {
        for (uint32_t col = 0; col < TILE; col++) {
            rows[row * stride + col] = values[HVDC_TILE_HMX_FP16_2_OFFSET(row, col)];
        }
    }
}

static const uint16_t *tile_of(hvdc_hmx_matrix matrix, uint32_t i, uint32_t k) {
    return matrix.tiles + ((size_t)i * matrix.stride + k) * HALFS;
}

static void accumulate(hvdc_hmx_matrix a, hvdc_hmx_matrix w, uint32_t row_tiles, uint32_t col_tiles, uint32_t k_tiles,
                       struct scratch *s) {
    memset(s->sums, 0, sizeof s->sums[0] * row_tiles * col_tiles);
    for (uint32_t start = 0; start < k_tiles; start += K_STEP) {
        uint32_t count = k_tiles - start < K_STEP ? k_tiles - start : K_STEP;
        for (uint32_t c = 0; c < col_tiles; c++) {
            for (uint32_t k = 0; k < count; k++) {
                widen(tile_of(w, c, start + k), s->weights[c] + k * TILE * TILE, TILE);
            }
        }
        for (uint32_t r = 0; r < row_tiles; r++) {
            for (uint32_t k = 0; k < count; k++) {
                widen(tile_of(a, r, start + k), s->rows + k * TILE, K_STEP * TILE);
            }
            for (uint32_t c = 0; c < col_tiles; c++) {
                hvdc_panel_tile(s->rows, K_STEP * TILE, s->weights[c], count * TILE, s->sums[r * col_tiles + c]);
            }
        }
    }
}

static void multiply(hvdc_hmx_matrix a, hvdc_hmx_matrix w, uint32_t row_tiles, uint32_t col_tiles, uint32_t k_tiles,
                     uint16_t *out, size_t out_stride, void *scratch) {
    struct scratch *s = scratch;
    accumulate(a, w, row_tiles, col_tiles, k_tiles, s);
    for (uint32_t tile = 0; tile < row_tiles * col_tiles; tile++) {
        uint16_t *to = out + (tile / col_tiles * out_stride + tile % col_tiles) * HALFS;
        float values[HALFS];
        for (uint32_t row = 0; row < TILE; row++) {
            for (uint32_t col = 0; col < TILE; col++) {
                values[HVDC_TILE_HMX_FP16_2_OFFSET(row, col)] = s->sums[tile][row * TILE + col];
            }
        }
        hvdc_halfs_from_floats(values, HALFS, to);
    }
}

static void sums(hvdc_hmx_matrix a, hvdc_hmx_matrix w, uint32_t row_tiles, uint32_t col_tiles, uint32_t k_tiles,
                 float *out, void *scratch) {
    struct scratch *s = scratch;
    accumulate(a, w, row_tiles, col_tiles, k_tiles, s);
    for (uint32_t r = 0; r < row_tiles; r++) {
        for (uint32_t row = 0; row < TILE; row++) {
            for (uint32_t c = 0; c < col_tiles; c++, out += TILE) {
                memcpy(out, s->sums[r * col_tiles + c] + row * TILE, TILE * sizeof *out);
            }
        }
    }
}

const hvdc_hmx HVDC_FOR_CPU(hvdc_hmx_portable) = {
    .col_tiles = 4,
    .query_tiles = 4,
    .scratch_bytes = sizeof(struct scratch),
    .multiply = multiply,
    .sums = sums,
};
