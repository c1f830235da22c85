/* Vectors of 32 FP32 lanes, and their ways from and to INT8 and FP16: all that the vector unit's kernels are made of.
 * Everything else of a kernel is written once.
 *
 * Builds. On a device, lanes are computed by HVX's floats: IEEE instructions from v79 on, qf32 with a conversion before.
 * An emulator has no vector floats, so there (HVDC_HEXAGON_EMULATED) an FP32 operation is Hexagon's scalar IEEE
 * instruction for each lane, and conversions are HVX integer instructions that round to nearest even, subnormal numbers
 * and infinity included. What HVX's floats round differently on a device, only a device can tell. */
#ifndef HVDC_HEXAGON_LANES_H
#define HVDC_HEXAGON_LANES_H

#include <stdint.h>
#include <string.h>

#include <hexagon_types.h>
#include <hexagon_protos.h>
#include <hvx_hexagon_protos.h>

#include "hvdc/rows.h"

#define LANES 32u
#define LANES_INLINE static inline __attribute__((always_inline, unused))

typedef HVX_Vector lanes;      /* 32 x FP32, or 32 words, or 64 halfwords */
typedef HVX_VectorPair lanes2; /* low: the first 32 */

/* Memory of any alignment, whole vectors. */
LANES_INLINE lanes lanes_load(const void *from) { return *(const HVX_UVector *)from; }
LANES_INLINE void lanes_store(void *to, lanes value) { *(HVX_UVector *)to = value; }

/* The first `bytes` <= 128 of a vector at any place; zeros beyond. Aligned vectors that hold some of them are read, so that
 * no page is touched but theirs. */
LANES_INLINE lanes lanes_load_part(const void *from, uint32_t bytes) {
    if (bytes >= sizeof(lanes)) return lanes_load(from);
    if (bytes == 0u) return Q6_V_vzero();
    uint32_t offset = (uint32_t)(uintptr_t)from % sizeof(lanes);
    const lanes *line = (const lanes *)((uintptr_t)from - offset);
    lanes low = line[0], high = offset + bytes > sizeof(lanes) ? line[1] : low;
    return Q6_V_vand_QV(Q6_Q_vsetq_R((int32_t)bytes), Q6_V_valign_VVR(high, low, (int32_t)offset));
}

/* Writes them; nothing beyond is touched. */
LANES_INLINE void lanes_store_part(void *to, lanes value, uint32_t bytes) {
    if (bytes >= sizeof(lanes)) {
        lanes_store(to, value);
    } else if (bytes > 0u) {
        uint32_t offset = (uint32_t)(uintptr_t)to % sizeof(lanes), end = offset + bytes;
        lanes *line = (lanes *)((uintptr_t)to - offset), turned = Q6_V_vlalign_VVR(value, value, (int32_t)offset);
        HVX_VectorPred before = Q6_Q_vsetq_R((int32_t)offset);
        HVX_VectorPred within = Q6_Q_vsetq2_R((int32_t)(end < sizeof(lanes) ? end : sizeof(lanes)));
        Q6_vmem_QRIV(Q6_Q_and_QQn(within, before), line, turned);
        if (end > sizeof(lanes)) Q6_vmem_QRIV(Q6_Q_vsetq_R((int32_t)(end - sizeof(lanes))), line + 1, turned);
    }
}

LANES_INLINE uint32_t lanes_bits_of(float value) {
    union {
        float value;
        uint32_t bits;
    } both = {.value = value};
    return both.bits;
}
LANES_INLINE lanes lanes_splat(float value) { return Q6_V_vsplat_R((int32_t)lanes_bits_of(value)); }

/* a where the words of `if_` are set, b elsewhere. */
LANES_INLINE lanes lanes_select(HVX_VectorPred if_, lanes a, lanes b) { return Q6_V_vmux_QVV(if_, a, b); }

#define LANES_SIGN (-0x7fffffff - 1)
#define LANES_INFINITE 0x7f800000
LANES_INLINE lanes lanes_magnitude(lanes x) { return Q6_V_vand_VV(x, Q6_V_vsplat_R(0x7fffffff)); }
LANES_INLINE HVX_VectorPred lanes_is_nan(lanes x) {
    return Q6_Q_vcmp_gt_VwVw(lanes_magnitude(x), Q6_V_vsplat_R(LANES_INFINITE));
}
/* NaN or infinite. */
LANES_INLINE HVX_VectorPred lanes_is_special(lanes x) {
    return Q6_Q_vcmp_gt_VwVw(lanes_magnitude(x), Q6_V_vsplat_R(LANES_INFINITE - 1));
}

#if defined(HVDC_HEXAGON_EMULATED)
#include "lanes_emulated.h"
#else
#include "lanes_device.h"
#endif

/* a + b exactly: the sum and what it lost. Source: Knuth, TAOCP 2, 4.2.2, theorem B. */
LANES_INLINE lanes lanes_two_sum(lanes a, lanes b, lanes *lost) {
    lanes sum = lanes_add(a, b), of_b = lanes_sub(sum, a);
    *lost = lanes_add(lanes_sub(a, lanes_sub(sum, of_b)), lanes_sub(b, of_b));
    return sum;
}

/* a · b exactly, without a fused instruction. Source: Dekker, A floating-point technique for extending the available
 * precision (1971). Neither factor nor product is near overflow. */
LANES_INLINE void lanes_split(lanes a, lanes *high, lanes *low) {
    lanes c = lanes_mul(a, lanes_splat(4097.0f)); /* 2^12 + 1 */
    *high = lanes_sub(c, lanes_sub(c, a));
    *low = lanes_sub(a, *high);
}
LANES_INLINE lanes lanes_two_product(lanes a, lanes b, lanes *lost) {
    lanes product = lanes_mul(a, b), a_high, a_low, b_high, b_low;
    lanes_split(a, &a_high, &a_low);
    lanes_split(b, &b_high, &b_low);
    lanes rest = lanes_sub(lanes_mul(a_high, b_high), product);
    rest = lanes_add(rest, lanes_mul(a_high, b_low));
    rest = lanes_add(rest, lanes_mul(a_low, b_high));
    *lost = lanes_add(rest, lanes_mul(a_low, b_low));
    return product;
}

/* n − q · d, exact where q is one of the two neighbours of n / d. */
LANES_INLINE lanes lanes_remainder(lanes n, lanes q, lanes d) {
    lanes lost, product = lanes_two_product(q, d, &lost);
    return lanes_sub(lanes_sub(n, product), lost);
}

/* n / d to nearest, for d > 0 and results that are not subnormal; beyond 2^100, d counts as that. Newton's reciprocal, a
 * quotient corrected by its remainder, and the last bit decided by the remainder that is left: is it more than half of
 * what the neighbour would add? Nothing in that question is rounded, and a quotient is never half-way. */
LANES_INLINE lanes lanes_div(lanes n, lanes d) {
    const lanes two = lanes_splat(2.0f), most = lanes_splat(0x1p100f), one = Q6_V_vsplat_R(1);
    HVX_VectorPred infinite = Q6_Q_vcmp_eq_VwVw(d, Q6_V_vsplat_R(LANES_INFINITE));
    HVX_VectorPred special = Q6_Q_or_QQ(lanes_is_special(n), lanes_is_special(d));
    special = Q6_Q_or_QQ(special, Q6_Q_vcmp_eq_VwVw(lanes_magnitude(n), Q6_V_vzero()));
    lanes held = lanes_select(Q6_Q_vcmp_gt_VwVw(d, most), most, d); /* of positive numbers, bits are in their order */
    lanes r = Q6_Vw_vsub_VwVw(Q6_V_vsplat_R(0x7ef311c7), held);     /* to 12 %, and each step squares that */
    for (int i = 0; i < 3; i++) {
        r = lanes_mul(r, lanes_sub(two, lanes_mul(held, r)));
    }
    lanes first = lanes_mul(n, lanes_select(infinite, Q6_V_vzero(), r));
    lanes q = lanes_add(first, lanes_mul(lanes_remainder(n, first, held), r));
    lanes remainder = lanes_remainder(n, q, held);
    HVX_VectorPred away = Q6_Q_vcmp_gt_VwVw(Q6_V_vxor_VV(remainder, q), Q6_V_vsplat_R(-1)); /* of zero: same signs */
    lanes neighbour = Q6_Vw_vadd_VwVw(q, lanes_select(away, one, Q6_V_vsplat_R(-1)));
    lanes gap = lanes_magnitude(lanes_mul(lanes_sub(neighbour, q), held));
    HVX_VectorPred nearer = Q6_Q_vcmp_gt_VwVw(lanes_magnitude(lanes_mul(remainder, two)), gap);
    return lanes_select(special, first, lanes_select(nearer, neighbour, q));
}

/* hvdc_exp2 and hvdc_gelu of hvdc/rows.h, to the bit where lanes are IEEE's. */
LANES_INLINE lanes lanes_exp2(lanes x) {
    const lanes round = lanes_splat(0x1.8p23f);
    const float series[] = HVDC_EXP2_SERIES;
    lanes held = lanes_min(lanes_max(x, lanes_splat(-127.0f)), lanes_splat(128.0f));
    lanes shifted = lanes_add(held, round), f = lanes_sub(held, lanes_sub(shifted, round));
    lanes p = lanes_splat(series[0]);
    for (uint32_t i = 1; i < sizeof series / sizeof *series; i++) {
        p = lanes_add(lanes_mul(p, f), lanes_splat(series[i]));
    }
    lanes power = Q6_Vw_vasl_VwR(Q6_Vw_vadd_VwVw(shifted, Q6_V_vsplat_R(127)), 23);
    return lanes_select(lanes_is_nan(x), x, lanes_mul(p, power));
}

LANES_INLINE lanes lanes_gelu(lanes x) {
    lanes cube = lanes_mul(lanes_mul(lanes_mul(lanes_splat(HVDC_GELU_CUBIC), x), x), x);
    lanes u = lanes_mul(lanes_splat(HVDC_GELU_FACTOR), lanes_add(x, cube));
    return lanes_div(x, lanes_add(lanes_splat(1.0f), lanes_exp2(u)));
}

#endif
