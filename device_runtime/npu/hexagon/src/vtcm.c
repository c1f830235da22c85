#include "vtcm.h"

static uint32_t at_most(uint32_t count, uint32_t limit) { return count < limit ? count : limit; }

static uint32_t parts_of(uint32_t count, uint32_t part) { return (count + part - 1u) / part; }

static bool cut(const hvdc_vtcm_shape *shape, const hvdc_vtcm_plan *plan) { return plan->k < shape->k_tiles; }

/* Strips of weights that a number of columns needs: all of these stay, and if others follow, those two that came before
 * are not overwritten (see vtcm.h). */
static uint32_t slots(const hvdc_vtcm_shape *shape, uint32_t cols) {
    return cols < shape->col_tiles && cols < HVDC_VTCM_SLOTS ? HVDC_VTCM_SLOTS : cols;
}

static bool fits(uint64_t tiles, const hvdc_vtcm_shape *shape, uint32_t rows, uint32_t cols) {
    uint64_t k = shape->k_tiles, parts = shape->parts;
    return HVDC_VTCM_TILES((uint64_t)rows, (uint64_t)slots(shape, cols), k, parts) <= tiles;
}

/* First as many columns as fit, since rows are fetched once for each group of columns; then rows. */
static void choose(uint64_t tiles, const hvdc_vtcm_shape *shape, hvdc_vtcm_plan *plan) {
    plan->rows = plan->cols = 1u;
    plan->k = shape->k_tiles;
    if (!fits(tiles, shape, 1u, 1u)) {
        /* All pieces of about one size. */
        uint32_t most = (uint32_t)(tiles - HVDC_VTCM_TILES(1u, 0u, 0u, shape->parts)) / (2u * HVDC_VTCM_SLOTS);
        plan->k = parts_of(shape->k_tiles, parts_of(shape->k_tiles, most));
        plan->w_slots = HVDC_VTCM_SLOTS;
        return;
    }
    while (plan->cols < shape->col_tiles && fits(tiles, shape, 1u, plan->cols + 1u)) {
        plan->cols++;
    }
    uint32_t rows = at_most(shape->row_tiles, parts_of(HVDC_VTCM_CHUNK_TILES, shape->k_tiles));
    while (plan->rows < rows && fits(tiles, shape, plan->rows + 1u, plan->cols)) {
        plan->rows++;
    }
    plan->w_slots = slots(shape, plan->cols);
}

bool hvdc_vtcm_plan_for(uint32_t budget_bytes, const hvdc_vtcm_shape *shape, hvdc_vtcm_plan *plan,
                        hvdc_failure *failure) {
    *plan = (hvdc_vtcm_plan){0};
    if (budget_bytes < HVDC_VTCM_LEAST_BYTES) {
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY,
                         "%u KiB of VTCM are too few for the matrix unit, which needs %u KiB at least and works best "
                         "with %u: let the session ask for more, or end what else holds it",
                         (unsigned)(budget_bytes >> 10), (unsigned)(HVDC_VTCM_LEAST_BYTES >> 10),
                         (unsigned)(HVDC_VTCM_V79_BYTES >> 10));
    }
    choose(budget_bytes / HVDC_VTCM_TILE_BYTES, shape, plan);
    plan->results_at = HVDC_VTCM_CONSTANT_TILES * HVDC_VTCM_TILE_BYTES;
    plan->rows_at = plan->results_at + HVDC_VTCM_SLOTS * plan->rows * shape->parts * HVDC_VTCM_TILE_BYTES;
    plan->weights_at = plan->rows_at + HVDC_VTCM_SLOTS * plan->rows * plan->k * HVDC_VTCM_TILE_BYTES;
    plan->bytes = plan->weights_at + plan->w_slots * plan->k * HVDC_VTCM_TILE_BYTES;
    return true;
}

uint64_t hvdc_vtcm_fetched_tiles(const hvdc_vtcm_shape *shape, const hvdc_vtcm_plan *plan) {
    uint64_t rows = (uint64_t)shape->row_tiles * shape->k_tiles, cols = (uint64_t)shape->col_tiles * shape->k_tiles;
    if (cut(shape, plan)) {
        return 2u * rows * shape->col_tiles;
    }
    uint32_t passes = plan->rows < shape->row_tiles ? parts_of(shape->col_tiles, plan->cols) : 1u;
    return rows * passes + cols;
}
