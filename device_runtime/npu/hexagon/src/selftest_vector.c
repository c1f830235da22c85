/* The vector unit, as lanes.h has it: on a device HVX's floats. */
#include <string.h>

#include "hvx_units.h"
#include "lanes.h"
#include "selftest_checks.h"
#include "soft_float.h"

static float float_of(uint32_t bits) { return hvdc_float_of_bits(bits); }

/* Ties and their neighbours, carries into the next binary place, the ends of the range, subnormal numbers, 0, ∞, NaN;
 * each with both signs, then arbitrary ones. */
static const uint32_t CHOSEN[] = {
    0x00000000, 0x00000001, 0x00000003, 0x00400000, 0x007fffff, 0x00800000, 0x00800001, 0x00ffffff, 0x01000000,
    0x0c800000, 0x1f800000, 0x33000000, 0x337fffff, 0x33800000, 0x33800001, 0x34000000, 0x34000001, 0x387fc000,
    0x3effffff, 0x3f000000, 0x3f7fffff, 0x3f800000, 0x3f800001, 0x3f800002, 0x3f800003, 0x3fc00000, 0x3fffffff,
    0x40000000, 0x40490fdb, 0x477fe000, 0x477ff000, 0x4b7fffff, 0x4b800000, 0x4b800001, 0x5f7fffff, 0x7e800000,
    0x7effffff, 0x7f000000, 0x7f7fffff, 0x7f800000, 0x7fc00000,
};
enum { CHOSEN_COUNT = sizeof CHOSEN / sizeof *CHOSEN, OPERANDS = 160 };
_Static_assert(2 * CHOSEN_COUNT < OPERANDS && OPERANDS % LANES == 0, "room for arbitrary ones, whole vectors");

static void fill_operands(uint32_t operands[OPERANDS]) {
    uint32_t state = 0x2545f491u;
    for (uint32_t i = 0; i < OPERANDS; i++) {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        operands[i] = i < 2u * CHOSEN_COUNT ? CHOSEN[i / 2u] | (i % 2u == 0u ? 0u : SOFT_SIGN)
                                            : (state & 0x807fffffu) | (0x38000000u + (state & 0x0f800000u));
    }
}

enum operation { SUM, DIFFERENCE, PRODUCT };

static lanes operate(enum operation operation, lanes a, lanes b) {
    switch (operation) {
        case SUM: return lanes_add(a, b);
        case DIFFERENCE: return lanes_sub(a, b);
        default: return lanes_mul(a, b);
    }
}

static uint32_t due_of(enum operation operation, uint32_t a, uint32_t b) {
    switch (operation) {
        case SUM: return soft_add(a, b);
        case DIFFERENCE: return soft_add(a, b ^ SOFT_SIGN);
        default: return soft_multiply(a, b);
    }
}

/* Pairs with subnormal operands or results, or all others. */
static bool operates(enum operation operation, bool subnormal, char *why) {
    static const char SIGNS[] = {'+', '-', '*'};
    uint32_t operands[OPERANDS], found[LANES];
    fill_operands(operands);
    for (uint32_t i = 0; i < OPERANDS; i++) {
        const lanes b = Q6_V_vsplat_R((int32_t)operands[i]);
        for (uint32_t j = 0; j < OPERANDS; j += LANES) {
            lanes_store(found, operate(operation, lanes_load(operands + j), b));
            for (uint32_t lane = 0; lane < LANES; lane++) {
                uint32_t a = operands[j + lane], due = due_of(operation, a, operands[i]);
                bool tiny = soft_is_subnormal(a) || soft_is_subnormal(operands[i]) || soft_is_subnormal(due);
                bool same = found[lane] == due || (soft_is_nan(due) && soft_is_nan(found[lane]));
                if (tiny == subnormal && !same) {
                    return CHECK_FAIL(why, "0x%08" PRIx32 " %c 0x%08" PRIx32 " is 0x%08" PRIx32 ", not 0x%08" PRIx32, a,
                                      SIGNS[operation], operands[i], found[lane], due);
                }
            }
        }
    }
    return true;
}

#define OPERATES(name, operation, subnormal) \
    static bool name(const hvdc_selftest_units *units, char *why) { \
        (void)units; \
        return operates(operation, subnormal, why); \
    }
OPERATES(sums, SUM, false)
OPERATES(sums_subnormal, SUM, true)
OPERATES(differences, DIFFERENCE, false)
OPERATES(differences_subnormal, DIFFERENCE, true)
OPERATES(products, PRODUCT, false)
OPERATES(products_subnormal, PRODUCT, true)

/* Numbers in order, which every FP16 number of them is. */
static bool order(const hvdc_selftest_units *units, char *why) {
    float in[2u * LANES];
    uint16_t narrowed[2u * LANES], turns[2u * LANES];
    (void)units;
    for (uint32_t i = 0; i < 2u * LANES; i++) in[i] = (float)i;
    lanes first = lanes_load(in), second = lanes_load(in + LANES);
    lanes_store(narrowed, lanes_narrow(first, second));
    lanes_store(turns, lanes_narrow_turns(first, second));
    for (uint32_t i = 0; i < 2u * LANES; i++) {
        uint32_t turn = i / 2u + i % 2u * LANES;
        if (narrowed[i] != hvdc_half_from_float((float)i)) {
            return CHECK_FAIL(why, "place %" PRIu32 " of what was narrowed in order has 0x%04x", i, narrowed[i]);
        }
        if (turns[i] != hvdc_half_from_float((float)turn)) {
            return CHECK_FAIL(why, "place %" PRIu32 " of two that take turns has 0x%04x", i, turns[i]);
        }
    }
    return true;
}

/* Every finite FP16 number, the tie above it, and its neighbours, with both signs. */
static bool narrowing(const hvdc_selftest_units *units, char *why) {
    (void)units;
    for (uint32_t half = 0; half < 0x7c00u; half += LANES / 4u) {
        uint32_t in[2u * LANES];
        uint16_t found[2u * LANES];
        for (uint32_t i = 0; i < LANES / 4u; i++) {
            float low = hvdc_half_to_float((uint16_t)(half + i));
            float high = half + i + 1u < 0x7c00u ? hvdc_half_to_float((uint16_t)(half + i + 1u)) : 65536.0f;
            uint32_t tie = hvdc_bits_of_float(0.5f * (low + high));
            const uint32_t values[] = {hvdc_bits_of_float(low), tie - 1u, tie, tie + 1u};
            for (uint32_t j = 0; j < 4u; j++) {
                in[4u * i + j] = values[j];
                in[LANES + 4u * i + j] = values[j] | SOFT_SIGN;
            }
        }
        lanes_store(found, lanes_narrow(lanes_load(in), lanes_load(in + LANES)));
        for (uint32_t i = 0; i < 2u * LANES; i++) {
            uint16_t due = hvdc_half_from_float(float_of(in[i]));
            if (found[i] != due) {
                return CHECK_FAIL(why, "0x%08" PRIx32 " becomes 0x%04x, not 0x%04x", in[i], found[i], due);
            }
        }
    }
    return true;
}

static bool widening(const hvdc_selftest_units *units, char *why) {
    (void)units;
    for (uint32_t half = 0; half < 0x10000u; half += 2u * LANES) {
        uint16_t in[2u * LANES];
        uint32_t found[2u * LANES];
        for (uint32_t i = 0; i < 2u * LANES; i++) in[i] = (uint16_t)(half + i);
        lanes2 wide = lanes_widen(lanes_load(in));
        lanes_store(found, Q6_V_lo_W(wide));
        lanes_store(found + LANES, Q6_V_hi_W(wide));
        for (uint32_t i = 0; i < 2u * LANES; i++) {
            uint32_t due = hvdc_bits_of_float(hvdc_half_to_float(in[i]));
            if (found[i] != due && !(soft_is_nan(due) && soft_is_nan(found[i]))) {
                return CHECK_FAIL(why, "0x%04x becomes 0x%08" PRIx32 ", not 0x%08" PRIx32, in[i], found[i], due);
            }
        }
    }
    return true;
}

/* A tile of all codes, columns with scales of 32 binary exponents, so that results are subnormal, and infinite. */
static bool weights(const hvdc_selftest_units *units, char *why) {
    static _Alignas(128) int8_t codes[HVDC_TILE_HMX_INT8_K4_BYTES];
    static _Alignas(128) uint16_t out[HALFS];
    _Alignas(128) float scale[TILE];
    (void)units;
    for (uint32_t turn = 0; turn < 8u; turn++) {
        for (uint32_t n = 0; n < TILE; n++) {
            scale[n] = float_of((uint32_t)(127 - 30 + (int32_t)(n * 45u / TILE)) << 23 |
                                (n * 0x12345u * (turn + 1u) & 0x7fffffu));
        }
        for (uint32_t k = 0; k < TILE; k++) {
            for (uint32_t n = 0; n < TILE; n++) {
                codes[HVDC_TILE_HMX_INT8_K4_OFFSET(k, n)] = (int8_t)((int32_t)((k + TILE * turn + n) % 255u) - 127);
            }
        }
        hvx_widen(codes, scale, 1, out);
        for (uint32_t i = 0; i < TILE * TILE; i++) {
            uint32_t k = i / TILE, n = i % TILE;
            const int8_t code = codes[HVDC_TILE_HMX_INT8_K4_OFFSET(k, n)];
            float q = (float)code;
            uint16_t found = out[HVDC_TILE_HMX_FP16_2_OFFSET(k, n)];
            uint16_t due =
                hvdc_half_from_float(float_of(soft_multiply(hvdc_bits_of_float(q), hvdc_bits_of_float(scale[n]))));
            if (found != due) {
                return CHECK_FAIL(why, "%d * 0x%08" PRIx32 " is 0x%04x, not 0x%04x", (int)q,
                                  hvdc_bits_of_float(scale[n]), found, due);
            }
        }
    }
    return true;
}

/* Of every FP16 number; powers of two are exact, what is too small is 0, and what is too large infinite. */
static bool exponentials(const hvdc_selftest_units *units, char *why) {
    (void)units;
    for (uint32_t half = 0; half < 0x10000u; half += LANES) {
        float in[LANES];
        uint32_t found[LANES];
        for (uint32_t i = 0; i < LANES; i++) in[i] = hvdc_half_to_float((uint16_t)(half + i));
        lanes_store(found, lanes_exp2(lanes_load(in)));
        for (uint32_t i = 0; i < LANES; i++) {
            uint32_t due = hvdc_bits_of_float(hvdc_exp2(in[i]));
            int32_t whole = in[i] >= -126.0f && in[i] < 128.0f ? (int32_t)in[i] : 0;
            bool power = (float)whole == in[i] && found[i] != (uint32_t)(whole + 127) << 23;
            if (power || (found[i] != due && !(soft_is_nan(due) && soft_is_nan(found[i])))) {
                return CHECK_FAIL(why, "2^x of the FP16 number 0x%04x is 0x%08" PRIx32 ", not 0x%08" PRIx32,
                                  (unsigned)(half + i), found[i], due);
            }
        }
    }
    return true;
}

/* What quotients are asked for: GELU's and the softmax's are far from the ends of the range. */
static bool is_moderate(uint32_t magnitude) { return magnitude >= 0x2b800000u && magnitude <= 0x53800000u; }

static bool quotients(const hvdc_selftest_units *units, char *why) {
    uint32_t operands[OPERANDS], found[LANES];
    (void)units;
    fill_operands(operands);
    for (uint32_t i = 0; i < OPERANDS; i++) {
        const uint32_t d = operands[i];
        if (!is_moderate(d)) continue;
        for (uint32_t j = 0; j < OPERANDS; j += LANES) {
            lanes_store(found, lanes_div(lanes_load(operands + j), Q6_V_vsplat_R((int32_t)d)));
            for (uint32_t lane = 0; lane < LANES; lane++) {
                uint32_t n = operands[j + lane], due = hvdc_bits_of_float(float_of(n) / float_of(d));
                if (is_moderate(n & ~SOFT_SIGN) && found[lane] != due) {
                    return CHECK_FAIL(why, "0x%08" PRIx32 " / 0x%08" PRIx32 " is 0x%08" PRIx32 ", not 0x%08" PRIx32, n,
                                      d, found[lane], due);
                }
            }
        }
    }
    return true;
}

/* Parts of vectors at every place of memory: what is loaded, and that nothing else is written. */
static bool parts(const hvdc_selftest_units *units, char *why) {
    enum { BYTES = 3 * sizeof(lanes) };
    _Alignas(128) uint8_t memory[BYTES], loaded[sizeof(lanes)];
    (void)units;
    for (uint32_t at = 0; at < sizeof(lanes); at += 2u) {
        for (uint32_t bytes = 0; bytes <= sizeof(lanes); bytes += bytes < 8u ? 1u : 10u) {
            for (uint32_t i = 0; i < BYTES; i++) memory[i] = (uint8_t)(i * 7u + 1u);
            lanes_store(loaded, lanes_load_part(memory + at, bytes));
            for (uint32_t i = 0; i < sizeof(lanes); i++) {
                uint8_t due = i < bytes ? (uint8_t)((at + i) * 7u + 1u) : 0u;
                if (loaded[i] != due) {
                    return CHECK_FAIL(why,
                                      "%" PRIu32 " bytes loaded from byte %" PRIu32 " on: byte %" PRIu32 " is wrong",
                                      bytes, at, i);
                }
            }
            lanes_store_part(memory + at, Q6_V_vsplat_R(-1), bytes);
            for (uint32_t i = 0; i < BYTES; i++) {
                uint8_t due = i >= at && i < at + bytes ? 0xffu : (uint8_t)(i * 7u + 1u);
                if (memory[i] != due) {
                    return CHECK_FAIL(why,
                                      "%" PRIu32 " bytes stored from byte %" PRIu32 " on: byte %" PRIu32 " is wrong",
                                      bytes, at, i);
                }
            }
        }
    }
    return true;
}

#define DIFFERS "the NPU's numbers differ in their last bits from those of the emulated kernels"
#define SMALL "numbers below 2^-126 become 0 or differ; no result in FP16 can tell"
const hvdc_check hvdc_vector_checks[] = {
    {"vector: sums", DIFFERS, LAST_BITS, sums},
    {"vector: sums of subnormal numbers", SMALL, LAST_BITS, sums_subnormal},
    {"vector: differences", DIFFERS, LAST_BITS, differences},
    {"vector: differences of subnormal numbers", SMALL, LAST_BITS, differences_subnormal},
    {"vector: products", DIFFERS, LAST_BITS, products},
    {"vector: products that are subnormal", SMALL, LAST_BITS, products_subnormal},
    {"vector: quotients", DIFFERS, LAST_BITS, quotients},
    {"vector: order of narrowing", "every operand of the matrix unit has its values in the wrong places", WORTHLESS,
     order},
    {"vector: rounding of narrowing", DIFFERS, LAST_BITS, narrowing},
    {"vector: widening", "FP16 numbers are read wrongly: no result is of any worth", WORTHLESS, widening},
    {"vector: weights", "weights differ from what the compiler promised: quality may suffer", LAST_BITS, weights},
    {"vector: exponentials", "attention's weights differ, by how much is unknown", LAST_BITS, exponentials},
    {"vector: parts of vectors", "the ends of rows are read or written wrongly", WORTHLESS, parts},
};
const uint32_t hvdc_vector_check_count = sizeof hvdc_vector_checks / sizeof *hvdc_vector_checks;
