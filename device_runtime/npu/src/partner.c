/* Linears whose first columns a partner computes meanwhile: hvdc/partner.h.
 *
 * A partner that fails makes what is computed worthless, not wrong to compute: the block goes on without it, and the call
 * of the engine fails at its end. */
#include <string.h>

#include "npu_internal.h"

struct work {
    npu_engine *npu;
    const uint16_t *tiles; /* [row tiles][k_tiles] */
    uint32_t k_tiles, rows, n, n_tiles;
    uint16_t *out;
};

static uint32_t rows_of(const struct work *work, uint32_t tile) {
    return work->rows - tile * TILE < TILE ? work->rows - tile * TILE : TILE;
}

static void unpack(void *context, uint32_t first, uint32_t count, uint32_t worker) {
    const struct work *work = context;
    const size_t stride = (size_t)work->k_tiles * TILE;
    (void)worker;
    for (uint32_t tile = first; tile < first + count; tile++) {
        for (uint32_t k = 0; k < work->k_tiles; k++) {
            const uint16_t *from = work->tiles + ((size_t)tile * work->k_tiles + k) * TILE_HALFS;
            uint16_t *to = work->npu->partner->exchange.input + (size_t)tile * TILE * stride + (size_t)k * TILE;
            for (uint32_t row = 0; row < rows_of(work, tile); row++) {
                for (uint32_t col = 0; col < TILE; col++) {
                    to[row * stride + col] = from[HVDC_TILE_HMX_FP16_2_OFFSET(row, col)];
                }
            }
        }
    }
}

static void join_rows(void *context, uint32_t first, uint32_t count, uint32_t worker) {
    const struct work *work = context;
    const size_t stride = (size_t)work->npu->slice.tiles * TILE, columns = stride < work->n ? stride : work->n;
    (void)worker;
    for (size_t row = first; row < (size_t)first + count; row++) {
        work->npu->hvx->narrow(work->npu->partner->exchange.output + row * stride, columns, work->out + row * work->n);
    }
}

static void join_gelu(void *context, uint32_t first, uint32_t count, uint32_t worker) {
    static const float no_bias[TILE] = {0};
    const struct work *work = context;
    const hvdc_hvx *hvx = work->npu->hvx;
    const uint32_t tiles = work->npu->slice.tiles;
    const size_t stride = (size_t)tiles * TILE;
    uint16_t rows[TILE * TILE], tile[TILE_HALFS];
    (void)worker;
    for (uint32_t r = first; r < first + count; r++) {
        const float *y = work->npu->partner->exchange.output + (size_t)r * TILE * stride;
        for (uint32_t c = 0; c < tiles; c++) {
            for (uint32_t row = 0; row < rows_of(work, r); row++) {
                hvx->narrow(y + row * stride + (size_t)c * TILE, TILE, rows + (size_t)row * TILE);
            }
            hvx->pack_rows(rows, TILE, rows_of(work, r), TILE, tile, 1);
            hvx->add_bias_gelu(tile, no_bias, work->out + ((size_t)r * work->n_tiles + c) * TILE_HALFS);
        }
    }
}

static bool is_there(npu_engine *npu, bool good) {
    if (!good) {
        npu->lost = true;
        npu->slice.tiles = 0;
    }
    return good;
}

uint32_t npu_given(const npu_engine *npu, const npu_linear *linear) {
    const hvdc_partner *partner = npu->partner;
    bool there = partner != NULL && partner->begin != NULL && !npu->lost;
    return there ? hvdc_slice_tiles(partner->share, linear->base.n_tiles) : 0u;
}

void npu_begin(npu_engine *npu, const npu_linear *linear, const uint16_t *input, uint32_t rows) {
    hvdc_partner *partner = npu->partner;
    double start = npu_now_s();
    npu->slice.linear = linear->id;
    npu->slice.rows = rows;
    npu->slice.tiles = npu_given(npu, linear);
    if (npu->slice.tiles > 0u) {
        struct work work = {.npu = npu, .tiles = input, .k_tiles = linear->base.k_tiles, .rows = rows};
        hvdc_pool_run(npu->pool, npu_tiles(rows), 1, unpack, &work);
        (void)is_there(npu, partner->begin(partner->context, &npu->slice, &npu->why_lost));
        npu->seconds[HVDC_NPU_EXCHANGE] += npu_now_s() - start;
    }
}

void npu_join(npu_engine *npu, const npu_linear *linear, enum npu_result result, uint16_t *out) {
    double start = npu_now_s();
    if (npu->slice.tiles == 0u || !is_there(npu, npu->partner->finish(npu->partner->context, &npu->why_lost))) {
        return;
    }
    struct work work = {
        .npu = npu, .rows = npu->slice.rows, .n = linear->base.n, .n_tiles = linear->base.n_tiles, .out = out};
    if (result == NPU_GELU) {
        hvdc_pool_run(npu->pool, npu_tiles(work.rows), 1, join_gelu, &work);
    } else {
        hvdc_pool_run(npu->pool, work.rows, TILE, join_rows, &work);
    }
    npu->seconds[HVDC_NPU_EXCHANGE] += npu_now_s() - start;
}

bool npu_kept_partner(npu_engine *npu, hvdc_failure *failure) {
    return !npu->lost || hvdc_fail(failure, npu->why_lost.kind, "%s", npu->why_lost.message);
}

uint64_t npu_exchange_values(const hvdc_geometry *g, uint32_t tokens) {
    uint64_t longest = tokens > g->text_tokens ? tokens : g->text_tokens;
    uint64_t between = tokens < NPU_FFN_ROWS ? tokens : NPU_FFN_ROWS;
    uint64_t outside = longest * npu_tiles(g->width) * TILE, inside = between * npu_tiles(g->ffn_width) * TILE;
    return outside > inside ? outside : inside;
}

uint64_t hvdc_npu_exchange_values(const hvdc_artifact *artifact) {
    const hvdc_geometry *g = hvdc_artifact_geometry(artifact);
    return npu_exchange_values(g, g->tokens);
}
