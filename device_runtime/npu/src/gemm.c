/* Linears: columns of tiles of the weight are shared among the threads; each widens its columns once and goes over
 * all rows. */
#include <string.h>

#include "npu_internal.h"

struct work {
    npu_engine *npu;
    const npu_gemm *gemm;
};

/* One tile of sums, the (r, c) of the result. */
static void finish(const struct work *work, uint32_t r, uint32_t c, const uint16_t *tile) {
    const npu_gemm *gemm = work->gemm;
    const hvdc_hvx *hvx = work->npu->hvx;
    uint32_t n = gemm->weight->n, row = r * TILE, column = c * TILE;
    uint32_t rows = gemm->rows - row < TILE ? gemm->rows - row : TILE, columns = n - column < TILE ? n - column : TILE;
    size_t next = ((size_t)r * gemm->weight->n_tiles + c) * TILE_HALFS, y = (size_t)row * n + column;
    switch (gemm->result) {
        case NPU_TILES: memcpy(gemm->out + next, tile, HVDC_TILE_HMX_FP16_2_BYTES); break;
        case NPU_ROWS: hvx->add_bias(tile, gemm->bias + column, rows, columns, gemm->out + y, n); break;
        case NPU_ADD: hvx->add(tile, rows, columns, gemm->out + y, n); break;
        case NPU_GELU: hvx->add_bias_gelu(tile, gemm->bias + column, gemm->out + next); break;
    }
}

static void multiply_columns(void *context, uint32_t first, uint32_t count, uint32_t worker) {
    const struct work *work = context;
    const npu_gemm *gemm = work->gemm;
    const hvdc_weight *weight = gemm->weight;
    npu_scratch *scratch = &work->npu->scratch[worker];
    first += gemm->first;
    uint32_t k_tiles = weight->k_tiles, row_tiles = npu_tiles(gemm->rows);
    hvdc_hmx_matrix w = {scratch->weights, k_tiles};
    if (gemm->widened != NULL) {
        w.tiles = gemm->widened + (size_t)first * k_tiles * TILE_HALFS;
    } else {
        for (uint32_t c = 0; c < count; c++) {
            size_t column = first + c;
            work->npu->hvx->widen(weight->tiles + column * k_tiles * HVDC_TILE_HMX_INT8_K4_BYTES,
                                  weight->scale + column * TILE, k_tiles,
                                  scratch->weights + (size_t)c * k_tiles * TILE_HALFS);
        }
    }
    for (uint32_t r = 0; r < row_tiles; r += HVDC_HMX_ROW_TILES) {
        uint32_t part = row_tiles - r < HVDC_HMX_ROW_TILES ? row_tiles - r : HVDC_HMX_ROW_TILES;
        hvdc_hmx_matrix a = {gemm->input + (size_t)r * k_tiles * TILE_HALFS, k_tiles};
        work->npu->hmx->multiply(a, w, part, count, k_tiles, scratch->tiles, count, scratch->hmx);
        for (uint32_t i = 0; i < part; i++) {
            for (uint32_t c = 0; c < count; c++) {
                finish(work, r + i, first + c, scratch->tiles + ((size_t)i * count + c) * TILE_HALFS);
            }
        }
    }
}

void npu_multiply(npu_engine *npu, const npu_gemm *gemm) {
    struct work work = {npu, gemm};
    uint32_t all = gemm->weight->n_tiles - gemm->first, columns = all / (2u * hvdc_pool_threads(npu->pool));
    columns = columns < 1u ? 1u : columns > npu->hmx->col_tiles ? npu->hmx->col_tiles : columns;
    hvdc_pool_run(npu->pool, all, columns, multiply_columns, &work);
}

void npu_apply(npu_engine *npu, const npu_linear *linear, uint32_t expert, uint32_t rows, uint16_t *y) {
    uint32_t given = npu_given(npu, linear);
    npu_begin(npu, linear, npu->input, rows);
    double start = npu_now_s();
    npu_multiply(npu, &(npu_gemm){.input = npu->input,
                                  .rows = rows,
                                  .weight = &linear->base,
                                  .first = given,
                                  .result = NPU_ROWS,
                                  .bias = linear->bias,
                                  .out = y});
    double base = npu_now_s();
    npu->seconds[HVDC_NPU_LINEAR] += base - start;
    if (expert == HVDC_EXPERT_DETAIL && linear->a.tiles != NULL && given < linear->base.n_tiles) {
        npu_gemm a = {.input = npu->input, .rows = rows, .weight = &linear->a, .result = NPU_TILES, .out = npu->low};
        npu_gemm b = {
            .input = npu->low, .rows = rows, .weight = &linear->b, .first = given, .result = NPU_ADD, .out = y};
        npu_multiply(npu, &a);
        npu_multiply(npu, &b);
        npu->seconds[HVDC_NPU_ADAPTER] += npu_now_s() - base;
    }
    npu_join(npu, linear, NPU_ROWS, y);
}

struct widening {
    const npu_engine *npu;
    const hvdc_weight *weight;
    uint32_t first;
    uint16_t *tiles;
};

static void widen_columns(void *context, uint32_t first, uint32_t count, uint32_t worker) {
    const struct widening *w = context;
    (void)worker;
    first += w->first;
    for (size_t column = first; column < (size_t)first + count; column++) {
        w->npu->hvx->widen(w->weight->tiles + column * w->weight->k_tiles * HVDC_TILE_HMX_INT8_K4_BYTES,
                           w->weight->scale + column * TILE, w->weight->k_tiles,
                           w->tiles + column * w->weight->k_tiles * TILE_HALFS);
    }
}

void npu_widen(npu_engine *npu, const hvdc_weight *weight, uint32_t first, uint16_t *tiles) {
    struct widening widening = {npu, weight, first, tiles};
    hvdc_pool_run(npu->pool, weight->n_tiles - first, 1, widen_columns, &widening);
}
