/* Attention in the flash form: scores of a piece of the keys at a time, so that memory does not grow with their
 * number. What was summed so far shrinks when a larger score turns up. Source: Dao et al., FlashAttention (2022),
 * algorithm 1. */
#include <math.h>
#include <string.h>

#include "npu_internal.h"

struct work {
    npu_engine *npu;
    const npu_keys *keys;
    uint32_t query_parts;
};

/* Query rows [32 · first, …) of one head. */
static void attend(const struct work *work, uint32_t head, uint32_t first, npu_scratch *scratch) {
    const npu_engine *npu = work->npu;
    const npu_keys *keys = work->keys;
    uint32_t d = npu->head_tiles, columns = d * TILE, all = npu_tiles(npu->tokens);
    uint32_t row_tiles = all - first < NPU_QUERY_TILES ? all - first : NPU_QUERY_TILES, rows = row_tiles * TILE;
    size_t query_stride = (size_t)npu->geometry.heads * d;
    hvdc_hmx_matrix q = {npu->query + ((size_t)first * query_stride + (size_t)head * d) * TILE_HALFS, query_stride};
    float scale = (float)(1.4426950408889634 / sqrt((double)npu->head_dim)); /* log2(e) / √head_dim */
    for (uint32_t r = 0; r < rows; r++) {
        scratch->max[r] = -INFINITY;
        scratch->sum[r] = 0.0f;
    }
    memset(scratch->total, 0, (size_t)rows * columns * sizeof *scratch->total);
    for (uint32_t tile = 0; tile < keys->tiles; tile += HVDC_HVX_KEY_TILES) {
        uint32_t part = keys->tiles - tile < HVDC_HVX_KEY_TILES ? keys->tiles - tile : HVDC_HVX_KEY_TILES;
        uint32_t left = keys->count - tile * TILE, count = left < part * TILE ? left : part * TILE;
        size_t at = ((size_t)head * keys->tiles + tile) * d * TILE_HALFS;
        hvdc_hmx_matrix v = {keys->values + ((size_t)head * d * keys->tiles + tile) * TILE_HALFS, keys->tiles};
        for (uint32_t c = 0; c < part; c += HVDC_HMX_COL_TILES) {
            uint32_t some = part - c < HVDC_HMX_COL_TILES ? part - c : HVDC_HMX_COL_TILES;
            hvdc_hmx_matrix k = {keys->keys + at + (size_t)c * d * TILE_HALFS, d};
            npu->hmx->multiply(q, k, row_tiles, some, d, scratch->tiles + (size_t)c * TILE_HALFS, part, scratch->hmx);
        }
        for (uint32_t r = 0; r < row_tiles; r++) {
            npu->hvx->weigh(scratch->tiles + (size_t)r * part * TILE_HALFS, count, scale, scratch->max + r * TILE,
                            scratch->sum + r * TILE, scratch->factor + r * TILE);
        }
        for (uint32_t c = 0; c < d; c += HVDC_HMX_COL_TILES) { /* one pass for heads of up to 256 channels */
            uint32_t some = d - c < HVDC_HMX_COL_TILES ? d - c : HVDC_HMX_COL_TILES;
            hvdc_hmx_matrix p = {scratch->tiles, part}, w = {v.tiles + (size_t)c * v.stride * TILE_HALFS, v.stride};
            npu->hmx->sums(p, w, row_tiles, some, part, scratch->part, scratch->hmx);
            npu->hvx->carry(scratch->total + (size_t)c * TILE * rows, scratch->part, scratch->factor, rows,
                            some * TILE);
        }
    }
    uint32_t valid = npu->tokens - first * TILE < rows ? npu->tokens - first * TILE : rows;
    uint16_t *y = npu->output + (size_t)first * TILE * npu->geometry.width + (size_t)head * npu->head_dim;
    for (uint32_t c = 0; c < d; c += HVDC_HMX_COL_TILES) {
        uint32_t some = d - c < HVDC_HMX_COL_TILES ? d - c : HVDC_HMX_COL_TILES;
        uint32_t begin = c * TILE, end = begin + some * TILE < npu->head_dim ? begin + some * TILE : npu->head_dim;
        npu->hvx->divide(scratch->total + (size_t)begin * rows, (size_t)some * TILE, scratch->sum, valid, end - begin,
                         y + begin, npu->geometry.width);
    }
}

static void attend_parts(void *context, uint32_t first, uint32_t count, uint32_t worker) {
    const struct work *work = context;
    for (uint32_t i = first; i < first + count; i++) {
        attend(work, i / work->query_parts, i % work->query_parts * NPU_QUERY_TILES, &work->npu->scratch[worker]);
    }
}

void npu_attend(npu_engine *npu, const npu_keys *keys) {
    uint32_t parts = (npu_tiles(npu->tokens) + NPU_QUERY_TILES - 1u) / NPU_QUERY_TILES;
    struct work work = {npu, keys, parts};
    hvdc_pool_run(npu->pool, npu->geometry.heads * parts, 1, attend_parts, &work);
}
