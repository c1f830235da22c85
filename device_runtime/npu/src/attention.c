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

/* Query rows of one head, which one thread works on: `row_tiles` tiles from the tile `first` on. */
struct rows {
    const npu_engine *npu;
    const npu_keys *keys;
    npu_scratch *scratch; /* total: a part [rows][32 · columns] for every HVDC_HMX_COL_TILES columns of tiles */
    uint32_t head, first, row_tiles;
};

static uint32_t at_most(uint32_t count, uint32_t limit) { return count < limit ? count : limit; }

/* Scores of `count` tiles of keys from the tile `tile` on, then weights in their place. */
static void weigh(const struct rows *rows, uint32_t tile, uint32_t count) {
    const npu_engine *npu = rows->npu;
    npu_scratch *scratch = rows->scratch;
    uint32_t d = npu->head_tiles, keys = at_most(rows->keys->count - tile * TILE, count * TILE);
    size_t stride = (size_t)npu->geometry.heads * d, head = (size_t)rows->head * d;
    hvdc_hmx_matrix q = {npu->query + (rows->first * stride + head) * TILE_HALFS, stride};
    for (uint32_t c = 0; c < count; c += HVDC_HMX_COL_TILES) {
        size_t key = head * rows->keys->tiles + (size_t)(tile + c) * d;
        hvdc_hmx_matrix k = {rows->keys->keys + key * TILE_HALFS, d};
        npu->hmx->multiply(q, k, rows->row_tiles, at_most(count - c, HVDC_HMX_COL_TILES), d,
                           scratch->tiles + (size_t)c * TILE_HALFS, count, scratch->hmx);
    }
    float scale = (float)(1.4426950408889634 / sqrt((double)npu->head_dim)); /* log2(e) / √head_dim */
    for (uint32_t r = 0; r < rows->row_tiles; r++) {
        npu->hvx->weigh(scratch->tiles + (size_t)r * count * TILE_HALFS, keys, scale, scratch->max + r * TILE,
                        scratch->sum + r * TILE, scratch->factor + r * TILE);
    }
}

/* Adds the weighted values of these keys. Heads of up to 256 channels take one pass. */
static void add_values(const struct rows *rows, uint32_t tile, uint32_t count) {
    const npu_engine *npu = rows->npu;
    npu_scratch *scratch = rows->scratch;
    uint32_t d = npu->head_tiles, row_count = rows->row_tiles * TILE;
    hvdc_hmx_matrix p = {scratch->tiles, count};
    for (uint32_t c = 0; c < d; c += HVDC_HMX_COL_TILES) {
        uint32_t columns = at_most(d - c, HVDC_HMX_COL_TILES);
        size_t value = ((size_t)rows->head * d + c) * rows->keys->tiles + tile;
        hvdc_hmx_matrix v = {rows->keys->values + value * TILE_HALFS, rows->keys->tiles};
        npu->hmx->sums(p, v, rows->row_tiles, columns, count, scratch->part, scratch->hmx);
        npu->hvx->carry(scratch->total + (size_t)c * TILE * row_count, scratch->part, scratch->factor, row_count,
                        columns * TILE);
    }
}

static void attend(const struct rows *rows) {
    const npu_engine *npu = rows->npu;
    npu_scratch *scratch = rows->scratch;
    uint32_t d = npu->head_tiles, row = rows->first * TILE, row_count = rows->row_tiles * TILE;
    for (uint32_t r = 0; r < row_count; r++) {
        scratch->max[r] = -INFINITY;
        scratch->sum[r] = 0.0f;
    }
    memset(scratch->total, 0, (size_t)row_count * d * TILE * sizeof *scratch->total);
    for (uint32_t tile = 0; tile < rows->keys->tiles; tile += HVDC_HVX_KEY_TILES) {
        uint32_t count = at_most(rows->keys->tiles - tile, HVDC_HVX_KEY_TILES);
        weigh(rows, tile, count);
        add_values(rows, tile, count);
    }
    uint16_t *y = npu->output + (size_t)row * npu->geometry.width + (size_t)rows->head * npu->head_dim;
    for (uint32_t c = 0; c < d; c += HVDC_HMX_COL_TILES) {
        uint32_t columns = at_most(d - c, HVDC_HMX_COL_TILES) * TILE, begin = c * TILE;
        npu->hvx->divide(scratch->total + (size_t)begin * row_count, columns, scratch->sum,
                         at_most(npu->tokens - row, row_count), at_most(npu->head_dim - begin, columns), y + begin,
                         npu->geometry.width);
    }
}

static void attend_parts(void *context, uint32_t first, uint32_t count, uint32_t worker) {
    const struct work *work = context;
    for (uint32_t i = first; i < first + count; i++) {
        struct rows rows = {.npu = work->npu, .keys = work->keys, .scratch = &work->npu->scratch[worker]};
        rows.head = i / work->query_parts;
        rows.first = i % work->query_parts * work->npu->hmx->query_tiles;
        rows.row_tiles = at_most(npu_tiles(work->npu->tokens) - rows.first, work->npu->hmx->query_tiles);
        attend(&rows);
    }
}

void npu_attend(npu_engine *npu, const npu_keys *keys) {
    uint32_t query_tiles = npu->hmx->query_tiles, parts = (npu_tiles(npu->tokens) + query_tiles - 1u) / query_tiles;
    struct work work = {npu, keys, parts};
    hvdc_pool_run(npu->pool, npu->geometry.heads * parts, 1, attend_parts, &work);
}
