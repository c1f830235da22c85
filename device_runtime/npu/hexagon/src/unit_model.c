/* The matrix unit as a model: exact sums (exact_sum.h), rounded once when they are stored. That is how Qualcomm's first
 * emulator has it, whose accumulator is of fixed point (quic/qemu, target/hexagon/hmx/mpy_fp16.c). A later one describes a
 * floating accumulator of 30 significant bits (qualcomm/qemu, target/hexagon/hmx_config.c), which is exact as long as
 * no sum needs more: which of them a phone has, only a phone can tell.
 *
 * The model does nothing until somebody waits for a result, or many instructions wait: who changes an operand too early,
 * or reads a result, computes something else. */
#include "exact_sum.h"
#include "fault.h"
#include "hmx.h"
#include "hvdc/half.h"
#include "unit.h"
#include "vtcm.h"

#define TILE HVDC_HMX_TILE
#define HALFS HVDC_HMX_TILE_HALFS

#define QUEUE 1024u

struct instruction {
    enum { CLEAR, ACCUMULATE, SCALE, STORE, STORE_AND_KEEP } what;
    const uint8_t *from, *weights;
    uint8_t *to;
    uint32_t tiles;
};

/* There is one unit. */
static struct {
    struct instruction queue[QUEUE];
    uint32_t told, done;
    exact_sum sums[TILE][TILE];
    double special[TILE][TILE]; /* Σ of products that are not finite: 0, infinite or NaN */
    uint16_t scales[TILE];
} unit;

static int is_finite(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

static double widen(uint16_t half) { return (double)hvdc_half_to_float(half); }

static void clear(void) {
    for (uint32_t row = 0; row < TILE; row++) {
        for (uint32_t col = 0; col < TILE; col++) {
            unit.sums[row][col] = (exact_sum){{0}};
            unit.special[row][col] = 0.0;
        }
    }
}

static void add(uint32_t row, uint32_t col, uint16_t a, uint16_t w) {
    if (is_finite(a) && is_finite(w)) {
        exact_add(&unit.sums[row][col], a, w);
    } else {
        unit.special[row][col] += widen(a) * widen(w);
    }
}

static void accumulate(const uint16_t *a, const uint16_t *w, uint32_t tiles) {
    for (uint32_t tile = 0; tile < tiles; tile++, a += HALFS, w += HALFS) {
        for (uint32_t row = 0; row < TILE; row++) {
            for (uint32_t k = 0; k < TILE; k++) {
                const uint16_t left = a[HVDC_TILE_HMX_FP16_2_OFFSET(row, k)];
                for (uint32_t col = 0; col < TILE; col++) {
                    add(row, col, left, w[HVDC_TILE_HMX_FP16_2_OFFSET(k, col)]);
                }
            }
        }
    }
}

static void scale(const uint32_t *words) {
    for (uint32_t col = 0; col < TILE; col++) {
        const uint32_t fraction = words[col] & 0x3ffu, exponent = words[col] >> 10 & 31u;
        hvdc_npu_require(
            words[col] >> 15 == 0u && fraction == 0u && exponent != 0u && exponent != 31u && words[TILE + col] == 0u,
            "a scale is not a power of two, or has a bias");
        unit.scales[col] = (uint16_t)words[col];
    }
}

static uint16_t narrowed(uint32_t row, uint32_t col) {
    const double special = unit.special[row][col];
    if (!(special == 0.0)) {
        return hvdc_half_from_float((float)special);
    }
    return hvdc_half_from_float(exact_odd_float(exact_to_odd(&unit.sums[row][col]) * widen(unit.scales[col])));
}

static void store(uint16_t *to, int keep) {
    for (uint32_t row = 0; row < TILE; row++) {
        for (uint32_t col = 0; col < TILE; col++) {
            to[HVDC_TILE_HMX_FP16_2_OFFSET(row, col)] = narrowed(row, col);
            if (!keep) { /* so that sums which are not cleared show */
                unit.special[row][col] = (double)hvdc_float_of_bits(0x7fc00000u);
            }
        }
    }
}

static void execute(const struct instruction *i) {
    switch (i->what) {
        case CLEAR: clear(); break;
        case ACCUMULATE: accumulate((const void *)i->from, (const void *)i->weights, i->tiles); break;
        case SCALE: scale((const void *)i->from); break;
        case STORE: store((void *)i->to, 0); break;
        case STORE_AND_KEEP: store((void *)i->to, 1); break;
    }
}

static void tell(struct instruction instruction) {
    if (unit.told - unit.done == QUEUE) {
        execute(&unit.queue[unit.done++ % QUEUE]);
    }
    unit.queue[unit.told++ % QUEUE] = instruction;
}

static void require_tiles(const void *address, uint32_t tiles) {
    hvdc_npu_require_operand(address, tiles * HVDC_VTCM_TILE_BYTES, HVDC_VTCM_TILE_BYTES, HVDC_VTCM_BANK_BYTES);
}

void hvdc_unit_clear(void) { tell((struct instruction){.what = CLEAR}); }

void hvdc_unit_accumulate(const void *rows, const void *weights, uint32_t tiles) {
    hvdc_npu_require(tiles <= HVDC_UNIT_PACKET_TILES, "more pairs of tiles than an instruction multiplies");
    require_tiles(rows, tiles);
    require_tiles(weights, tiles);
    tell((struct instruction){.what = ACCUMULATE, .from = rows, .weights = weights, .tiles = tiles});
}

void hvdc_unit_scale(const void *scales) {
    hvdc_npu_require_operand(scales, HVDC_VTCM_SCALE_BYTES, HVDC_VTCM_SCALE_BYTES, HVDC_VTCM_BANK_BYTES);
    tell((struct instruction){.what = SCALE, .from = scales});
}

void hvdc_unit_store(void *tile) {
    require_tiles(tile, 1);
    tell((struct instruction){.what = STORE, .to = tile});
}

void hvdc_unit_store_and_keep(void *tile) {
    require_tiles(tile, 1);
    tell((struct instruction){.what = STORE_AND_KEEP, .to = tile});
}

void hvdc_unit_finish(const void *tile) {
    bool written = false;
    while (!written && unit.done != unit.told) {
        const struct instruction *next = &unit.queue[unit.done++ % QUEUE];
        execute(next);
        written = next->to == tile;
    }
    hvdc_npu_require(written, "a result is waited for that nobody asked for");
}
