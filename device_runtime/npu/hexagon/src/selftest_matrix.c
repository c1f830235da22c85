/* The matrix unit through its seam (hmx.h), then with operands in chosen places of VTCM; DMA. Numbers are small
 * integers and powers of two, whose sums are exact, so that what is due is known without a model. */
#include <stdlib.h>
#include <string.h>

#include "dma.h"
#include "hvdc/half.h"
#include "selftest_checks.h"
#include "unit.h"
#include "unit_lock.h"
#include "vtcm.h"

enum { TILE = HVDC_HMX_TILE, HALFS = HVDC_HMX_TILE_HALFS, K_TILES = 64, FLOATS = TILE * TILE };

static struct {
    _Alignas(2048) uint16_t rows[K_TILES * HALFS], weights[K_TILES * HALFS], out[4 * HALFS];
    _Alignas(128) float sums[FLOATS];
} memory;

static uint16_t half(float value) { return hvdc_half_from_float(value); }
static uint32_t at(uint32_t row, uint32_t col) { return HVDC_TILE_HMX_FP16_2_OFFSET(row, col); }

/* rows(r, k) and weights(k, n) everywhere 0. */
static void clear(void) { memset(&memory, 0, sizeof memory); }
static void set_row(uint32_t r, uint32_t k, float value) {
    memory.rows[k / TILE * HALFS + at(r, k % TILE)] = half(value);
}
static void set_weight(uint32_t k, uint32_t n, float value) {
    memory.weights[k / TILE * HALFS + at(k % TILE, n)] = half(value);
}

static void multiply(const hvdc_selftest_units *units, uint32_t k_tiles) {
    hvdc_hmx_matrix a = {memory.rows, k_tiles}, w = {memory.weights, k_tiles};
    units->hmx->multiply(a, w, 1, 1, k_tiles, memory.out, 1, NULL);
}

static bool is_due(uint32_t r, uint32_t n, uint16_t due, const char *what, char *why) {
    uint16_t found = memory.out[at(r, n)];
    if (found == due) return true;
    return CHECK_FAIL(why, "%s: row %" PRIu32 ", column %" PRIu32 " is 0x%04x, not 0x%04x", what, r, n, found, due);
}

/* The identity from either side gives the other operand, each of whose numbers is another. */
static bool layout(const hvdc_selftest_units *units, char *why) {
    for (uint32_t side = 0; side < 2u; side++) {
        clear();
        for (uint32_t i = 0; i < TILE; i++) {
            for (uint32_t j = 0; j < TILE; j++) {
                float one = i == j ? 1.0f : 0.0f, number = (float)(i * TILE + j) - 500.0f;
                set_row(i, j, side == 0u ? number : one);
                set_weight(i, j, side == 0u ? one : number);
            }
        }
        multiply(units, 1);
        for (uint32_t i = 0; i < TILE * TILE; i++) {
            const char *what = side == 0u ? "rows times one" : "one times weights";
            if (!is_due(i / TILE, i % TILE, half((float)i - 500.0f), what, why)) return false;
        }
    }
    return true;
}

/* Sums of as many pairs of tiles as instructions take at once, and one less, one more, twice as many. */
static bool ranges(const hvdc_selftest_units *units, char *why) {
    static const uint32_t COUNTS[] = {1, 2, 31, 32, 33, 64};
    char what[32];
    for (uint32_t i = 0; i < sizeof COUNTS / sizeof *COUNTS; i++) {
        int32_t due[TILE] = {0}; /* of each column: all rows are alike but for a factor */
        clear();
        for (uint32_t k = 0; k < COUNTS[i] * TILE; k++) {
            for (uint32_t n = 0; n < TILE; n++) {
                int32_t weight = (int32_t)((k * 5u + n * 3u) % 7u) - 3, row = (int32_t)(k % 3u);
                set_row(n, k, (float)(n % 2u == 0u ? row : -row));
                set_weight(k, n, (float)weight);
                due[n] += row * weight;
            }
        }
        multiply(units, COUNTS[i]);
        (void)snprintf(what, sizeof what, "%" PRIu32 " pairs of tiles", COUNTS[i]);
        for (uint32_t j = 0; j < TILE * TILE; j++) {
            int32_t sum = j / TILE % 2u == 0u ? due[j % TILE] : -due[j % TILE]; /* 0 has no sign here */
            if (!is_due(j / TILE, j % TILE, half((float)sum), what, why)) return false;
        }
    }
    return true;
}

/* Row r of a product whose weights are 1 in column 0: `count` numbers, each at a place of its own over two tiles. */
static void put(uint32_t r, const float *numbers, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) set_row(r, i * 19u % (2u * TILE), numbers[i]);
}

static void ones(uint32_t k_tiles, float value) {
    clear();
    for (uint32_t k = 0; k < k_tiles * TILE; k++) set_weight(k, 0, value);
}

/* Large numbers that cancel leave what is small: with 24 bits of a sum nothing would be left of it. */
static bool cancelling(const hvdc_selftest_units *units, char *why) {
    static const float ROWS[][4] = {{0x1p15f, 0x1p-9f, -0x1p15f, 0x1p-10f},
                                    {0x1p-14f, 0x1p15f, 0x1p15f, -0x1p15f},
                                    {0x1p-24f, 0x1p10f, -0x1p10f, 0.0f}};
    static const float DUE[] = {0x1.8p6f, 0.0f, 0x1p-9f};
    ones(2, 0x1p15f);
    for (uint32_t r = 0; r < 3u; r++) put(r, ROWS[r], 4);
    multiply(units, 2);
    return is_due(0, 0, half(DUE[0]), "sums that cancel", why) && is_due(1, 0, 0x7c00, "an overflow", why) &&
           is_due(2, 0, half(DUE[2]), "a subnormal number beside large ones", why);
}

/* To nearest, ties to even, what is below a tie's last bit included. */
static bool rounding(const hvdc_selftest_units *units, char *why) {
    static const struct {
        float numbers[3], due;
    } ROWS[] = {{{2048.0f, 1.0f, 0.0f}, 2048.0f},         {{2050.0f, 1.0f, 0.0f}, 2052.0f},
                {{2048.0f, 1.0f, 0x1p-24f}, 2050.0f},     {{2050.0f, 1.0f, -0x1p-24f}, 2050.0f},
                {{-2048.0f, -1.0f, -0x1p-24f}, -2050.0f}, {{65504.0f, 15.0f, 0.0f}, 65504.0f},
                {{0x1p-24f, 0x1p-24f, 0.0f}, 0x1p-23f},   {{0x1p-14f, -0x1p-24f, 0.0f}, 0x1.ff8p-15f}};
    ones(2, 1.0f);
    for (uint32_t r = 0; r < sizeof ROWS / sizeof *ROWS; r++) put(r, ROWS[r].numbers, 3);
    put(TILE - 1u, (const float[]){65504.0f, 16.0f, 0.0f}, 3);
    multiply(units, 2);
    for (uint32_t r = 0; r < sizeof ROWS / sizeof *ROWS; r++) {
        if (!is_due(r, 0, half(ROWS[r].due), "a sum", why)) return false;
    }
    return is_due(TILE - 1u, 0, 0x7c00, "the least sum that is infinite", why);
}

/* Products of rows and columns of tiles land where they belong. */
static bool strides(const hvdc_selftest_units *units, char *why) {
    clear();
    hvdc_hmx_matrix a = {memory.rows, 3}, w = {memory.weights, 5};
    for (uint32_t i = 0; i < 2u; i++) {
        for (uint32_t n = 0; n < TILE; n++) {
            memory.rows[i * 3u * HALFS + at(n, 0)] = half((float)(i + 1u));
            memory.weights[i * 5u * HALFS + at(0, n)] = half((float)(10u * (i + 1u) + n));
        }
    }
    units->hmx->multiply(a, w, 2, 2, 1, memory.out, 2, NULL);
    for (uint32_t i = 0; i < 4u; i++) {
        for (uint32_t j = 0; j < TILE * TILE; j++) {
            uint16_t found = memory.out[i * HALFS + at(j / TILE, j % TILE)];
            const uint32_t pair = i / 2u, product = (pair + 1u) * (10u * (i % 2u + 1u) + j % TILE);
            uint16_t due = half((float)product);
            if (found != due) {
                return CHECK_FAIL(why, "tile %" PRIu32 ", row %" PRIu32 ", column %" PRIu32 " is 0x%04x, not 0x%04x", i,
                                  j / TILE, j % TILE, found, due);
            }
        }
    }
    return true;
}

/* FP32 sums, in two parts where the unit narrows: as near as hmx_staged.h says. */
static bool parts(const hvdc_selftest_units *units, char *why) {
    enum { PAIRS = 16 };
    clear();
    double due[TILE] = {0};
    for (uint32_t k = 0; k < PAIRS * TILE; k++) {
        for (uint32_t n = 0; n < TILE; n++) {
            int32_t weight = (int32_t)(k * 37u % 2001u) - 1000 + (int32_t)n * 16, row = (int32_t)(k * 11u % 64u);
            set_row(n, k, (float)row / 64.0f);
            set_weight(k, n, (float)weight);
            due[n] += (double)row * (double)weight / 64.0;
        }
    }
    hvdc_hmx_matrix a = {memory.rows, PAIRS}, w = {memory.weights, PAIRS};
    units->hmx->sums(a, w, 1, 1, PAIRS, memory.sums, NULL);
    for (uint32_t i = 0; i < FLOATS; i++) {
        double off = (double)memory.sums[i] - due[i % TILE],
               size = due[i % TILE] < 0.0 ? -due[i % TILE] : due[i % TILE];
        double most = size * 0x1p-21 + 0x1p-27;
        if (!(off <= most && -off <= most)) {
            return CHECK_FAIL(why,
                              "row %" PRIu32 ", column %" PRIu32 " has bits 0x%08" PRIx32 ", off by more than 2^-21",
                              i / TILE, i % TILE, hvdc_bits_of_float(memory.sums[i]));
        }
    }
    return true;
}

/* One product of `tiles` pairs whose rows lie at `rows` and whose weights lie behind the constants of VTCM. */
static bool product_at(uint8_t *rows, uint8_t *weights, uint32_t tiles, uint8_t *out, const char *where, char *why) {
    uint8_t *scales = out + HVDC_VTCM_TILE_BYTES;
    uint32_t words[2u * TILE] = {0};
    for (uint32_t n = 0; n < TILE; n++) words[n] = half(n % 2u == 0u ? 1.0f : 0.125f);
    memcpy(scales, words, sizeof words);
    for (uint32_t i = 0; i < tiles * HALFS; i++) {
        const uint32_t tile = i / HALFS;
        ((uint16_t *)(void *)rows)[i] = half((float)(tile + 1u));
        ((uint16_t *)(void *)weights)[i] = half(1.0f);
    }
    hvdc_unit_scale(scales);
    hvdc_unit_clear();
    hvdc_unit_accumulate(rows, weights, tiles);
    hvdc_unit_store_and_keep(out);
    hvdc_unit_finish(out);
    memcpy(memory.out, out, HVDC_VTCM_TILE_BYTES);
    const uint32_t pairs = TILE * tiles * (tiles + 1u) / 2u;
    float sum = (float)pairs;
    for (uint32_t i = 0; i < TILE * TILE; i++) {
        uint16_t due = half(i % 2u == 0u ? sum : sum * 0.125f);
        if (!is_due(i / TILE, i % TILE, due, where, why)) return false;
    }
    hvdc_unit_accumulate(rows, weights, 1); /* to what was kept */
    hvdc_unit_store(out);
    hvdc_unit_finish(out);
    memcpy(memory.out, out, HVDC_VTCM_TILE_BYTES);
    return is_due(0, 0, half(sum + (float)TILE), "one more, to what was kept", why);
}

/* Operands of 1, 31 and 32 tiles that end where VTCM does, and where a bank does; scales of columns. */
static bool ends(const hvdc_selftest_units *units, char *why) {
    enum { MOST = 32, TILE_BYTES = HVDC_VTCM_TILE_BYTES };
    static const uint32_t COUNTS[] = {1, 31, MOST};
    uint8_t *weights = units->vtcm + HVDC_VTCM_CONSTANT_TILES * TILE_BYTES, *out = weights + MOST * TILE_BYTES;
    const uint32_t least = (HVDC_VTCM_CONSTANT_TILES + 2u * MOST + 2u) * TILE_BYTES; /* and scales behind `out` */
    const uint32_t end = units->vtcm_bytes / TILE_BYTES * TILE_BYTES;
    const uint32_t past =
        (uint32_t)((uintptr_t)(units->vtcm + end) % HVDC_VTCM_BANK_BYTES); /* of the last bank's end */
    bool good = true;
    if (end < least) {
        return CHECK_LEFT_OUT(why, "it takes %" PRIu32 " KiB of VTCM, and there are %" PRIu32, least >> 10, end >> 10);
    }
    hvdc_unit_lock();
    for (uint32_t i = 0; good && i < sizeof COUNTS / sizeof *COUNTS; i++) {
        const uint32_t bytes = COUNTS[i] * TILE_BYTES;
        if (past == 0u || past >= bytes) {
            good = product_at(units->vtcm + end - bytes, weights, COUNTS[i], out, "at the end of VTCM", why);
        }
        if (good && past != 0u && end - past >= least) {
            good = product_at(units->vtcm + end - past - bytes, weights, COUNTS[i], out, "at the end of a bank", why);
        }
    }
    hvdc_unit_unlock();
    return good;
}

/* Pieces with strides into VTCM and out of it, more at once than the engine takes. */
static bool copies(const hvdc_selftest_units *units, char *why) {
    enum { ROWS = 5, ROW_BYTES = 256, FROM = 384, TO = 640, COPIES = 2 * HVDC_DMA_TRANSFERS, PLACE = ROWS * TO };
    uint8_t *there = units->vtcm + HVDC_VTCM_CONSTANT_TILES * HVDC_VTCM_TILE_BYTES;
    uint8_t *from = (void *)memory.rows, *back = (void *)memory.weights;
    hvdc_dma_ticket last = 0;
    if (units->vtcm_bytes < HVDC_VTCM_CONSTANT_TILES * HVDC_VTCM_TILE_BYTES + COPIES * PLACE) {
        return CHECK_LEFT_OUT(why, "there are only %" PRIu32 " KiB of VTCM", units->vtcm_bytes >> 10);
    }
    _Static_assert(COPIES * ROWS * FROM <= sizeof memory.rows, "room");
    clear();
    const uint32_t bytes = sizeof memory.rows;
    for (uint32_t i = 0; i < bytes; i++) from[i] = (uint8_t)(i * 31u >> 3 | 1u);
    hvdc_unit_lock();
    memset(there, 0, COPIES * PLACE);
    hvdc_dma_open();
    for (uint32_t i = 0; i < COPIES; i++) {
        last = hvdc_dma_start(&(hvdc_dma_copy){there + i * PLACE, from + i * ROWS * FROM, TO, FROM, ROW_BYTES, ROWS});
    }
    hvdc_dma_wait(last);
    last = hvdc_dma_start(&(hvdc_dma_copy){back, there, COPIES * PLACE, COPIES * PLACE, COPIES * PLACE, 1});
    hvdc_dma_wait(last);
    hvdc_dma_close();
    hvdc_unit_unlock();
    for (uint32_t i = 0; i < COPIES * PLACE; i++) {
        uint32_t row = i / TO, byte = i % TO;
        uint8_t due = byte < ROW_BYTES ? from[row * FROM + byte] : 0u;
        if (back[i] != due) {
            return CHECK_FAIL(why, "byte %" PRIu32 " of piece %" PRIu32 " is 0x%02x, not 0x%02x", byte, row, back[i],
                              due);
        }
    }
    return true;
}

#define WORDS "the matrix unit's instructions do something else here: use the NPU for nothing"
const hvdc_check hvdc_matrix_checks[] = {
    {"matrix: layout of tiles", WORDS, WORTHLESS, layout},
    {"matrix: pairs of tiles", WORDS, WORTHLESS, ranges},
    {"matrix: rows and columns of tiles", WORDS, WORTHLESS, strides},
    {"matrix: exact sums", "long sums lose bits: results differ from the reference's, by how much is unknown",
     LAST_BITS, cancelling},
    {"matrix: rounding", "results of products differ in their last bit", LAST_BITS, rounding},
    {"matrix: sums in two parts", "attention's sums are not what they should be", WORTHLESS, parts},
    {"matrix: ends of VTCM, scales, sums that are kept", WORDS, WORTHLESS, ends},
    {"DMA: copies", "operands do not arrive where they should: use the NPU for nothing", WORTHLESS, copies},
};
const uint32_t hvdc_matrix_check_count = sizeof hvdc_matrix_checks / sizeof *hvdc_matrix_checks;
_Static_assert(sizeof hvdc_matrix_checks / sizeof *hvdc_matrix_checks + 16u <= HVDC_SELFTEST_CHECKS_MOST, "room");
