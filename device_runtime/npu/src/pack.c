/* Rows become operands: normalised and rotated where that is due, narrowed, and laid out as tiles. */
#include "npu_internal.h"

struct work {
    npu_engine *npu;
    const uint16_t *x;
    uint32_t rows;
    const float *gain, *rotations;
    enum npu_operand operand;
    npu_keys *keys;
};

/* 32 rows of all heads, from row-major FP16 `stride` apart. */
static void pack_tile(const struct work *work, uint32_t tile, const uint16_t *x, uint32_t count) {
    npu_engine *npu = work->npu;
    const hvdc_hvx *hvx = npu->hvx;
    uint32_t width = npu->geometry.width, heads = npu->geometry.heads, d = npu->head_tiles;
    if (work->operand == NPU_INPUT) {
        hvx->pack_rows(x, width, count, width, npu->input + (size_t)tile * npu->width_tiles * TILE_HALFS, 1);
        return;
    }
    for (uint32_t head = 0; head < heads; head++, x += npu->head_dim) {
        switch (work->operand) {
            case NPU_QUERY:
                hvx->pack_rows(x, width, count, npu->head_dim,
                               npu->query + ((size_t)tile * heads + head) * d * TILE_HALFS, 1);
                break;
            case NPU_KEYS:
                hvx->pack_columns(x, width, count, npu->head_dim,
                                  work->keys->keys + ((size_t)head * work->keys->tiles + tile) * d * TILE_HALFS, 1);
                break;
            default:
                hvx->pack_rows(x, width, count, npu->head_dim,
                               work->keys->values + ((size_t)head * d * work->keys->tiles + tile) * TILE_HALFS,
                               work->keys->tiles);
                break;
        }
    }
}

static void pack_tiles(void *context, uint32_t first, uint32_t tiles, uint32_t worker) {
    const struct work *work = context;
    npu_engine *npu = work->npu;
    npu_scratch *scratch = &npu->scratch[worker];
    uint32_t width = npu->geometry.width;
    for (uint32_t tile = first; tile < first + tiles; tile++) {
        uint32_t row = tile * TILE, count = work->rows - row < TILE ? work->rows - row : TILE;
        const uint16_t *x = work->x + (size_t)row * width;
        if (work->gain == NULL) {
            pack_tile(work, tile, x, count);
            continue;
        }
        for (uint32_t r = 0; r < count; r++) {
            const float *rotations =
                work->rotations == NULL ? NULL : work->rotations + (size_t)(row + r) * npu->head_dim;
            npu->hvx->rms_norm(x + (size_t)r * width, width, npu->geometry.eps, work->gain, npu->geometry.heads,
                               rotations, scratch->row, scratch->rows + (size_t)r * width);
        }
        pack_tile(work, tile, scratch->rows, count);
    }
}

void npu_pack(npu_engine *npu, const uint16_t *x, uint32_t rows, const float *gain, const float *rotations,
              enum npu_operand operand, npu_keys *keys) {
    double start = npu_now_s();
    struct work work = {npu, x, rows, gain, rotations, operand, keys};
    hvdc_pool_run(npu->pool, npu_tiles(rows), 1, pack_tiles, &work);
    npu->seconds[HVDC_NPU_NORM] += npu_now_s() - start;
}
