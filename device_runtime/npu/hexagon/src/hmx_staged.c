/* A product is a sequence of steps: `rows` tiles of rows times one column of tiles, over a strip. Before the unit begins
 * with a step, what the next one needs and nobody has fetched yet begins to be fetched. See vtcm.h for what stays where. */
#include "hmx_staged.h"

#include "dma.h"
#include "fault.h"
#include "halves.h"
#include "unit.h"
#include "unit_lock.h"
#include "vtcm.h"

#define TILE HVDC_HMX_TILE
#define HALFS HVDC_HMX_TILE_HALFS
#define TILE_BYTES HVDC_VTCM_TILE_BYTES
#define NO_STRIP UINT32_MAX
#define HALF_OF_POWER(exponent) ((uint16_t)((15 + (exponent)) << 10)) /* 2^exponent, -14 … 15 */
#define MOST_EXPONENT 15

/* There is one unit and one area. */
static struct {
    uint8_t *base;
    uint32_t bytes;
    int32_t exponent; /* e of the constants that are there */
} area;

struct product {
    hvdc_hmx_matrix a, w;
    hvdc_vtcm_shape shape;
    hvdc_vtcm_plan plan;
    uint32_t pieces; /* of k */
    int32_t exponent;
    uint16_t *halfs; /* where results go: tiles, */
    size_t halfs_stride;
    float *floats; /* or rows */
};

/* Rows [row, row + rows), column `col`, piece `piece` of k. */
struct step {
    uint32_t row, rows, col, piece;
};

/* What is under way. */
struct state {
    uint32_t rows_strips, weights_strips; /* that were fetched */
    hvdc_dma_ticket fetched;
    uint32_t steps;                          /* that the unit was given; the number names a slot of results */
    hvdc_dma_ticket copied[HVDC_VTCM_SLOTS]; /* out of it */
    struct step before;                      /* the latest of them, with which the unit may not be done */
};

static uint32_t at_most(uint32_t count, uint32_t limit) { return count < limit ? count : limit; }

static uint8_t *rows_slot(const struct product *p, uint32_t strip) {
    return area.base + p->plan.rows_at + (size_t)(strip % HVDC_VTCM_SLOTS) * p->plan.rows * p->plan.k * TILE_BYTES;
}

static uint8_t *weights_slot(const struct product *p, uint32_t strip) {
    return area.base + p->plan.weights_at + (size_t)(strip % p->plan.w_slots) * p->plan.k * TILE_BYTES;
}

static uint8_t *results_slot(const struct product *p, uint32_t count) {
    return area.base + p->plan.results_at +
           (size_t)(count % HVDC_VTCM_SLOTS) * p->plan.rows * p->shape.parts * TILE_BYTES;
}

static uint32_t tiles_of_piece(const struct product *p, uint32_t piece) {
    return at_most(p->shape.k_tiles - piece * p->plan.k, p->plan.k);
}

/* Strips are counted in the order in which they are fetched; the number names a slot. Where k is cut, each step has
 * its own. Else weights stay for all rows of a group, and rows for one group's columns, or all if they are one chunk. */
static uint32_t step_of_pieces(const struct product *p, const struct step *step) {
    return (step->col * p->shape.row_tiles + step->row) * p->pieces + step->piece;
}

static uint32_t rows_strip(const struct product *p, const struct step *step) {
    const uint32_t chunks = (p->shape.row_tiles + p->plan.rows - 1u) / p->plan.rows;
    if (p->pieces > 1u) {
        return step_of_pieces(p, step);
    }
    return chunks == 1u ? 0u : step->col / p->plan.cols * chunks + step->row / p->plan.rows;
}

static uint32_t weights_strip(const struct product *p, const struct step *step) {
    return p->pieces > 1u ? step_of_pieces(p, step) : step->col;
}

/* The step that follows: pieces of k, then columns of a group, then rows, then groups. False at the end. */
static bool advance(const struct product *p, struct step *step) {
    const uint32_t group = step->col / p->plan.cols * p->plan.cols;
    const uint32_t end = group + at_most(p->shape.col_tiles - group, p->plan.cols);
    if (++step->piece < p->pieces) {
        return true;
    }
    step->piece = 0;
    if (++step->col < end) {
        return true;
    }
    step->row += step->rows;
    if (step->row < p->shape.row_tiles) {
        step->col = group;
    } else if (end < p->shape.col_tiles) {
        step->row = 0;
    } else {
        return false;
    }
    step->rows = at_most(p->shape.row_tiles - step->row, p->plan.rows);
    return true;
}

static void fetch(struct state *s, uint8_t *to, uint32_t to_tiles, hvdc_hmx_matrix from, uint32_t i, uint32_t k,
                  uint32_t tiles, uint32_t rows) {
    s->fetched = hvdc_dma_start(&(hvdc_dma_copy){.to = to,
                                                 .from = from.tiles + ((size_t)i * from.stride + k) * HALFS,
                                                 .to_stride_bytes = (size_t)to_tiles * TILE_BYTES,
                                                 .from_stride_bytes = from.stride * TILE_BYTES,
                                                 .row_bytes = tiles * TILE_BYTES,
                                                 .rows = rows});
}

/* Begins to fetch what `step` needs and was not fetched before. */
static void prepare(const struct product *p, struct state *s, const struct step *step) {
    const uint32_t k = step->piece * p->plan.k, tiles = tiles_of_piece(p, step->piece);
    const uint32_t rows = rows_strip(p, step), weights = weights_strip(p, step);
    if (rows >= s->rows_strips) {
        fetch(s, rows_slot(p, rows), p->plan.k, p->a, step->row, k, tiles, step->rows);
        s->rows_strips = rows + 1u;
    }
    if (weights >= s->weights_strips) {
        fetch(s, weights_slot(p, weights), p->plan.k, p->w, step->col, k, tiles, 1);
        s->weights_strips = weights + 1u;
    }
}

/* As many instructions as it takes: none has more pairs than it may, and none an operand that crosses a bank. */
static void accumulate(const uint8_t *rows, const uint8_t *weights, uint32_t tiles) {
    while (tiles > 0u) {
        uint32_t count = at_most(tiles, HVDC_UNIT_PACKET_TILES);
        const uint8_t *operands[] = {rows, weights};
        for (uint32_t i = 0; i < 2u; i++) {
            uint32_t left = HVDC_VTCM_BANK_BYTES - (uint32_t)((uintptr_t)operands[i] % HVDC_VTCM_BANK_BYTES);
            count = at_most(count, left / TILE_BYTES);
        }
        hvdc_unit_accumulate(rows, weights, count);
        rows += (size_t)count * TILE_BYTES;
        weights += (size_t)count * TILE_BYTES;
        tiles -= count;
    }
}

/* Both parts of a sum: the second is what is left after the first was subtracted. */
static void store_parts(uint8_t *to) {
    hvdc_unit_scale(area.base + HVDC_VTCM_SCALE_FIRST_AT);
    hvdc_unit_store_and_keep(to);
    hvdc_unit_accumulate(to, area.base + HVDC_VTCM_DIAGONAL_AT, 1);
    hvdc_unit_scale(area.base + HVDC_VTCM_SCALE_SECOND_AT);
    hvdc_unit_store(to + TILE_BYTES);
}

static void join(const struct product *p, const struct step *step, const uint8_t *from) {
    const size_t stride = (size_t)p->shape.col_tiles * TILE;
    for (uint32_t i = 0; i < step->rows; i++) {
        const uint16_t *first = (const void *)(from + (size_t)i * 2u * TILE_BYTES);
        hvdc_halves_join(first, first + HALFS, p->exponent,
                         p->floats + (size_t)(step->row + i) * TILE * stride + (size_t)step->col * TILE, stride);
    }
}

static hvdc_dma_ticket copy_out(const struct product *p, const struct step *step, const uint8_t *from) {
    return hvdc_dma_start(&(hvdc_dma_copy){.to = p->halfs + ((size_t)step->row * p->halfs_stride + step->col) * HALFS,
                                           .from = from,
                                           .to_stride_bytes = p->halfs_stride * TILE_BYTES,
                                           .from_stride_bytes = TILE_BYTES,
                                           .row_bytes = TILE_BYTES,
                                           .rows = step->rows});
}

static bool is_last(const struct product *p, const struct step *step) { return step->piece + 1u == p->pieces; }

/* Waits until the unit is done with the step before, while it works on the next one. Then nobody uses what that step
 * fetched, and its results can leave VTCM. */
static void release(const struct product *p, struct state *s) {
    if (s->steps == 0u) {
        return;
    }
    const uint32_t slot = s->steps - 1u, parts = is_last(p, &s->before) ? p->shape.parts : 1u;
    const uint8_t *from = results_slot(p, slot);
    hvdc_unit_finish(from + (size_t)(s->before.rows * parts - 1u) * TILE_BYTES);
    if (is_last(p, &s->before) && p->floats == NULL) {
        s->copied[slot % HVDC_VTCM_SLOTS] = copy_out(p, &s->before, from);
    } else if (is_last(p, &s->before)) {
        join(p, &s->before, from);
    }
}

static void work(const struct product *p, struct state *s, const struct step *step) {
    const uint8_t *rows = rows_slot(p, rows_strip(p, step)), *weights = weights_slot(p, weights_strip(p, step));
    uint8_t *to = results_slot(p, s->steps);
    hvdc_dma_wait(s->copied[s->steps % HVDC_VTCM_SLOTS]);
    for (uint32_t i = 0; i < step->rows; i++, to += (size_t)p->shape.parts * TILE_BYTES) {
        if (step->piece == 0u) {
            hvdc_unit_clear();
        }
        accumulate(rows + (size_t)i * p->plan.k * TILE_BYTES, weights, tiles_of_piece(p, step->piece));
        if (!is_last(p, step)) {
            hvdc_unit_store_and_keep(to); /* says that the unit is done with this piece; of no other use */
        } else if (p->floats == NULL) {
            hvdc_unit_store(to);
        } else {
            store_parts(to);
        }
    }
    release(p, s);
    s->before = *step;
    s->steps++;
}

static void write_scales(uint32_t at, int32_t exponent) {
    uint32_t *words = (void *)(area.base + at);
    for (uint32_t col = 0; col < TILE; col++) {
        words[col] = HALF_OF_POWER(exponent);
        words[TILE + col] = 0;
    }
}

static void write_constants(int32_t exponent) {
    uint16_t *diagonal = (void *)(area.base + HVDC_VTCM_DIAGONAL_AT);
    write_scales(HVDC_VTCM_SCALE_ONE_AT, 0);
    write_scales(HVDC_VTCM_SCALE_FIRST_AT, -exponent);
    write_scales(HVDC_VTCM_SCALE_SECOND_AT, HVDC_HALVES_SHIFT - exponent);
    for (uint32_t row = 0; row < TILE; row++) {
        for (uint32_t col = 0; col < TILE; col++) {
            diagonal[HVDC_TILE_HMX_FP16_2_OFFSET(row, col)] =
                (uint16_t)(row == col ? 0x8000u | HALF_OF_POWER(exponent) : 0u);
        }
    }
    area.exponent = exponent;
}

static void run(struct product *p) {
    struct state s = {0};
    struct step step = {.rows = p->plan.rows}, next;
    if (p->floats != NULL && p->exponent != area.exponent) {
        write_constants(p->exponent);
    }
    hvdc_unit_scale(area.base + HVDC_VTCM_SCALE_ONE_AT);
    hvdc_dma_open();
    prepare(p, &s, &step);
    for (bool more = true; more; step = next) {
        hvdc_dma_wait(s.fetched);
        next = step;
        more = advance(p, &next);
        if (more) {
            prepare(p, &s, &next);
        }
        work(p, &s, &step);
    }
    release(p, &s);
    hvdc_dma_close();
}

static void make(struct product *p) {
    hvdc_failure failure;
    if (p->shape.row_tiles == 0u || p->shape.col_tiles == 0u || p->shape.k_tiles == 0u) {
        return;
    }
    hvdc_unit_lock();
    hvdc_npu_require(area.base != NULL, "it has no VTCM");
    hvdc_npu_require(
        hvdc_vtcm_plan_for(area.bytes, &p->shape, &p->plan, &failure) && p->plan.k > 0u && p->plan.bytes <= area.bytes,
        "a plan leaves its area of VTCM");
    p->pieces = (p->shape.k_tiles + p->plan.k - 1u) / p->plan.k;
    run(p);
    hvdc_unit_unlock();
}

static void multiply(hvdc_hmx_matrix a, hvdc_hmx_matrix w, uint32_t row_tiles, uint32_t col_tiles, uint32_t k_tiles,
                     uint16_t *out, size_t out_stride, void *scratch) {
    (void)scratch;
    make(&(struct product){
        .a = a, .w = w, .shape = {row_tiles, col_tiles, k_tiles, 1}, .halfs = out, .halfs_stride = out_stride});
}

/* Of 2^exponent >= 32 · k_tiles the smallest, as far as FP16 has it. */
static int32_t exponent_for(uint32_t k_tiles) {
    int32_t exponent = 5;
    while (exponent < MOST_EXPONENT && k_tiles > 1u << (exponent - 5)) {
        exponent++;
    }
    return exponent;
}

static void sums(hvdc_hmx_matrix a, hvdc_hmx_matrix w, uint32_t row_tiles, uint32_t col_tiles, uint32_t k_tiles,
                 float *out, void *scratch) {
    (void)scratch;
    make(&(struct product){
        .a = a, .w = w, .shape = {row_tiles, col_tiles, k_tiles, 2}, .exponent = exponent_for(k_tiles), .floats = out});
}

static const hvdc_hmx STAGED = {
    .col_tiles = HVDC_HMX_COL_TILES, .query_tiles = HVDC_HMX_QUERY_TILES, .multiply = multiply, .sums = sums};

bool hvdc_hmx_staged_open(void *vtcm, size_t bytes, uint32_t context, hvdc_failure *failure) {
    hvdc_vtcm_plan plan;
    const hvdc_vtcm_shape least = {1, HVDC_VTCM_SLOTS, 1, 2};
    if (area.base != NULL) {
        return hvdc_fail(failure, HVDC_FAILURE_USAGE, "the matrix unit has its VTCM already: close that session first");
    }
    if (vtcm == NULL || (uintptr_t)vtcm % TILE_BYTES != 0u) {
        return hvdc_fail(failure, HVDC_FAILURE_DEVICE,
                         "VTCM for the matrix unit has to begin at a multiple of %u bytes: ask for one page",
                         (unsigned)TILE_BYTES);
    }
    const uint32_t budget = bytes > HVDC_VTCM_MOST_BYTES ? HVDC_VTCM_MOST_BYTES : (uint32_t)bytes;
    if (!hvdc_vtcm_plan_for(budget, &least, &plan, failure)) {
        return false;
    }
    area.base = vtcm;
    area.bytes = budget;
    hvdc_unit_lock_open(context);
    write_constants(exponent_for(1));
    return true;
}

void hvdc_hmx_staged_close(void) {
    if (area.base != NULL) {
        hvdc_unit_lock_close();
    }
    area.base = NULL;
    area.bytes = 0;
}

const hvdc_hmx *hvdc_hmx_staged(void) { return area.base == NULL ? NULL : &STAGED; }
