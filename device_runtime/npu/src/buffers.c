/* Everything that an executor holds and no artifact gives: threads, units, buffers. */
#include <inttypes.h>
#include <stdlib.h>

#include "npu_internal.h"

#define ALIGNMENT 128u

_Static_assert(HVDC_HMX_QUERY_TILES *HVDC_HVX_KEY_TILES <= HVDC_HMX_ROW_TILES * HVDC_HMX_COL_TILES,
               "scores of a piece of attention fit where results go");

static void *allocate(npu_engine *npu, uint64_t count, uint64_t element_bytes, hvdc_failure *failure) {
    uint64_t bytes = (count * element_bytes + ALIGNMENT - 1u) / ALIGNMENT * ALIGNMENT;
    void *made = bytes > SIZE_MAX ? NULL : aligned_alloc(ALIGNMENT, (size_t)(bytes == 0u ? ALIGNMENT : bytes));
    if (made == NULL) {
        hvdc_fail(failure, HVDC_FAILURE_MEMORY,
                  "no memory for %" PRIu64 " MiB of the NPU executor's buffers; make a smaller clip", bytes >> 20);
        return NULL;
    }
    npu->bytes += bytes;
    return made;
}

static uint16_t *allocate_tiles(npu_engine *npu, uint64_t tiles, hvdc_failure *failure) {
    return allocate(npu, tiles, HVDC_TILE_HMX_FP16_2_BYTES, failure);
}

bool npu_allocate_keys(npu_engine *npu, uint32_t count, npu_keys *keys, hvdc_failure *failure) {
    keys->count = count;
    keys->tiles = npu_tiles(count);
    uint64_t tiles = (uint64_t)npu->geometry.heads * npu->head_tiles * keys->tiles;
    keys->keys = allocate_tiles(npu, tiles, failure);
    keys->values = allocate_tiles(npu, tiles, failure);
    return keys->keys != NULL && keys->values != NULL;
}

static bool allocate_scratch(npu_engine *npu, hvdc_failure *failure) {
    uint32_t threads = hvdc_pool_threads(npu->pool), k_tiles = npu->width_tiles;
    k_tiles = npu->rank_tiles > k_tiles ? npu->rank_tiles : k_tiles;
    uint64_t columns = npu->head_tiles < HVDC_HMX_COL_TILES ? HVDC_HMX_COL_TILES : npu->head_tiles;
    npu->scratch = calloc(threads, sizeof *npu->scratch);
    if (npu->scratch == NULL) {
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no memory for the scratch of %u threads", (unsigned)threads);
    }
    for (uint32_t i = 0; i < threads; i++) {
        npu_scratch *s = &npu->scratch[i];
        const uint64_t part = (uint64_t)npu->hmx->query_tiles * HVDC_HMX_COL_TILES;
        s->hmx = allocate(npu, npu->hmx->scratch_bytes, 1, failure);
        s->weights = allocate_tiles(npu, (uint64_t)npu->hmx->col_tiles * k_tiles, failure);
        s->tiles = allocate_tiles(npu, (uint64_t)HVDC_HMX_ROW_TILES * HVDC_HMX_COL_TILES, failure);
        s->rows = allocate_tiles(npu, npu->width_tiles, failure);
        s->row = allocate(npu, (uint64_t)npu->width_tiles * TILE, sizeof *s->row, failure);
        s->total = allocate(npu, npu->hmx->query_tiles * columns * TILE_HALFS, sizeof *s->total, failure);
        s->part = allocate(npu, part * TILE_HALFS, sizeof *s->part, failure);
        if (s->hmx == NULL || s->weights == NULL || s->tiles == NULL || s->rows == NULL || s->row == NULL ||
            s->total == NULL || s->part == NULL) {
            return false;
        }
    }
    return true;
}

static bool allocate_buffers(npu_engine *npu, hvdc_failure *failure) {
    const hvdc_geometry *g = &npu->geometry;
    uint64_t rows = npu->tokens > g->text_tokens ? npu->tokens : g->text_tokens, row_tiles = npu_tiles((uint32_t)rows);
    uint64_t pair = (uint64_t)npu->width_tiles * npu->ffn_tiles;
    uint64_t ffn_rows = row_tiles < HVDC_HMX_ROW_TILES ? row_tiles : HVDC_HMX_ROW_TILES;
    struct {
        uint16_t **at;
        uint64_t tiles;
    } parts[] = {
        {&npu->input, row_tiles * npu->width_tiles},
        {&npu->output, row_tiles * npu->width_tiles},
        {&npu->query, row_tiles * g->heads * npu->head_tiles},
        {&npu->low, row_tiles * npu->rank_tiles},
        {&npu->up, pair},
        {&npu->down, pair},
        {&npu->middle, ffn_rows * npu->ffn_tiles},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i].at = allocate_tiles(npu, parts[i].tiles, failure);
        if (*parts[i].at == NULL) {
            return false;
        }
    }
    npu->factor = allocate(npu, g->width, sizeof *npu->factor, failure);
    return npu->factor != NULL && npu_allocate_keys(npu, npu->tokens, &npu->self, failure) &&
           allocate_scratch(npu, failure);
}

void npu_free_keys(npu_keys *keys) {
    free(keys->keys);
    free(keys->values);
}

bool npu_prepare(npu_engine *npu, const hvdc_npu_options *options, hvdc_failure *failure) {
    const hvdc_geometry *geometry = &npu->geometry;
    enum hvdc_cpu cpu;
    if (!hvdc_cpu_select(options->cpu, &cpu, failure) || !hvdc_pool_open(options->threads, &npu->pool, failure)) {
        return false;
    }
    npu->hmx = options->unit == NULL ? hvdc_hmx_for(cpu, options->sums) : options->unit;
    if (npu->hmx == NULL) {
        return hvdc_fail(failure, HVDC_FAILURE_DEVICE,
                         "this processor has no matrix unit of its own: the session has to give the engine one");
    }
    npu->hvx = hvdc_hvx_for(cpu);
    npu->tokens = hvdc_grid_tokens(&npu->grid);
    npu->head_dim = geometry->width / geometry->heads;
    npu->head_tiles = npu_tiles(npu->head_dim);
    npu->width_tiles = npu_tiles(geometry->width);
    npu->ffn_tiles = npu_tiles(geometry->ffn_width);
    npu->rank_tiles = npu_tiles(geometry->rank);
    return allocate_buffers(npu, failure);
}

void npu_release(npu_engine *npu) {
    for (uint32_t i = 0; npu->scratch != NULL && i < hvdc_pool_threads(npu->pool); i++) {
        npu_scratch *s = &npu->scratch[i];
        void *parts[] = {s->hmx, s->weights, s->tiles, s->rows, s->row, s->total, s->part};
        for (size_t part = 0; part < sizeof parts / sizeof *parts; part++) {
            free(parts[part]);
        }
    }
    void *parts[] = {npu->scratch, npu->input, npu->output, npu->query, npu->low,
                     npu->up,      npu->down,  npu->middle, npu->factor};
    for (size_t part = 0; part < sizeof parts / sizeof *parts; part++) {
        free(parts[part]);
    }
    npu_free_keys(&npu->self);
    hvdc_pool_close(npu->pool);
}
