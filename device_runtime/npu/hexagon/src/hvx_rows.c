/* Rows of activations: norms, RoPE, the residual stream. A row is of any length, so that its end is part of a vector. */
#include <math.h>

#include "hvx_units.h"
#include "lanes.h"

/* Each kernel goes over whole vectors, and then over what is left of the row if anything is: `count` is LANES in the
 * first, so that a compiler leaves out of the loop what only the second needs. */
LANES_INLINE lanes load_floats(const float *x, uint32_t count) {
    return lanes_load_part(x, count * (uint32_t)sizeof *x);
}
LANES_INLINE void store_floats(float *x, lanes values, uint32_t count) {
    lanes_store_part(x, values, count * (uint32_t)sizeof *x);
}
/* Up to 2 · LANES of FP16. */
LANES_INLINE lanes2 load_halfs(const uint16_t *x, uint32_t count) {
    return lanes_widen(lanes_load_part(x, count * (uint32_t)sizeof *x));
}

LANES_INLINE void narrow(const float *x, uint32_t count, uint16_t *y) {
    lanes low = load_floats(x, count < LANES ? count : LANES);
    lanes high = count > LANES ? load_floats(x + LANES, count - LANES) : Q6_V_vzero();
    lanes_store_part(y, lanes_narrow(low, high), count * (uint32_t)sizeof *y);
}

void hvx_narrow(const float *x, size_t count, uint16_t *y) {
    size_t i = 0;
    for (; i + 2u * LANES <= count; i += 2u * LANES) narrow(x + i, 2u * LANES, y + i);
    if (i < count) narrow(x + i, (uint32_t)(count - i), y + i);
}

/* A sum of each lane and what it lost. */
typedef struct lost_sum {
    lanes sum, lost;
} lost_sum;

LANES_INLINE void add_to(lost_sum *of, lanes value) {
    lanes lost;
    of->sum = lanes_two_sum(of->sum, value, &lost);
    of->lost = lanes_add(of->lost, lost);
}

static double total_of(lost_sum of) {
    float sums[LANES], losts[LANES];
    double total = 0.0;
    lanes_store(sums, of.sum);
    lanes_store(losts, of.lost);
    for (uint32_t i = 0; i < LANES; i++) total += (double)sums[i] + (double)losts[i];
    return total;
}

LANES_INLINE void add_square(lost_sum *sum, const float *x, uint32_t count, lanes minus) {
    lanes low, lost, high = lanes_two_sum(load_floats(x, count), minus, &low);
    lanes product = lanes_two_product(high, high, &lost);
    lost = lanes_add(lost, lanes_mul(lanes_splat(2.0f), lanes_mul(high, low)));
    if (count < LANES) {
        const HVX_VectorPred within = Q6_Q_vsetq_R((int32_t)(count * sizeof *x));
        product = lanes_select(within, product, Q6_V_vzero());
        lost = lanes_select(within, lost, Q6_V_vzero());
    }
    add_to(sum, product);
    sum->lost = lanes_add(sum->lost, lost);
}

/* Variance about `mean`, which is FP32: of differences that are exact, as two FP32 numbers each. */
static double variance_of(const float *x, uint32_t width, double exact_mean, float mean) {
    lost_sum sum = {Q6_V_vzero(), Q6_V_vzero()};
    const lanes minus = lanes_splat(-mean);
    uint32_t i = 0;
    for (; i + LANES <= width; i += LANES) add_square(&sum, x + i, LANES, minus);
    if (i < width) add_square(&sum, x + i, width - i, minus);
    double off = (double)mean - exact_mean, variance = total_of(sum) / (double)width - off * off;
    return variance > 0.0 ? variance : variance != variance ? variance : 0.0;
}

LANES_INLINE void norm(const float *x, uint32_t width, lanes mean, lanes scale, const float *factor,
                       const float *addend, float *y) {
    for (uint32_t i = 0; i < width; i += LANES) {
        uint32_t count = width - i < LANES ? width - i : LANES;
        lanes normed = lanes_mul(lanes_sub(load_floats(x + i, count), mean), scale);
        if (factor != NULL) normed = lanes_mul(normed, load_floats(factor + i, count));
        if (addend != NULL) normed = lanes_add(normed, load_floats(addend + i, count));
        store_floats(y + i, normed, count);
    }
}

void hvx_layer_norm(const float *x, uint32_t width, double eps, const float *factor, const float *addend, float *work,
                    uint16_t *y) {
    lost_sum sum = {Q6_V_vzero(), Q6_V_vzero()};
    uint32_t i = 0, whole = width / LANES * LANES;
    for (; i < whole; i += LANES) add_to(&sum, lanes_load(x + i));
    if (i < width) add_to(&sum, load_floats(x + i, width - i));
    double exact_mean = total_of(sum) / (double)width;
    float mean = (float)exact_mean, scale = (float)(1.0 / sqrt(variance_of(x, width, exact_mean, mean) + eps));
    if (width == whole && factor != NULL && addend != NULL) { /* every norm of a block, with nothing to ask */
        norm(x, whole, lanes_splat(mean), lanes_splat(scale), factor, addend, work);
    } else {
        norm(x, width, lanes_splat(mean), lanes_splat(scale), factor, addend, work);
    }
    hvx_narrow(work, width, y);
}

/* A head's channels turned as complex numbers, pairs of which are neighbours: each times the cosine, and the other one of
 * its pair times the sine, with its sign. */
LANES_INLINE void turn(float *x, uint32_t count, const float *rotations, HVX_VectorPred odd) {
    const int32_t next = sizeof(float), before = sizeof(lanes) - sizeof(float);
    lanes values = load_floats(x, count), turns = load_floats(rotations, count);
    lanes cosines = lanes_select(odd, Q6_V_vror_VR(turns, before), turns);
    lanes sines = lanes_select(odd, turns, Q6_V_vror_VR(turns, next));
    lanes others = lanes_select(odd, Q6_V_vror_VR(values, before), Q6_V_vror_VR(values, next));
    lanes crossed = lanes_mul(others, sines);
    crossed = lanes_select(odd, crossed, Q6_V_vxor_VV(crossed, Q6_V_vsplat_R(LANES_SIGN)));
    store_floats(x, lanes_add(lanes_mul(values, cosines), crossed), count);
}

static void rotate(float *x, uint32_t head_dim, const float *rotations) {
    const lanes ones = Q6_V_lo_W(Q6_W_vshuff_VVR(Q6_V_vsplat_R(-1), Q6_V_vzero(), -4)); /* in odd words */
    const HVX_VectorPred odd = Q6_Q_vand_VR(ones, -1);
    uint32_t i = 0;
    for (; i + LANES <= head_dim; i += LANES) turn(x + i, LANES, rotations + i, odd);
    if (i < head_dim) turn(x + i, head_dim - i, rotations + i, odd);
}

LANES_INLINE void add_widened(lost_sum *squares, const uint16_t *x, uint32_t count, float *work) {
    lanes2 values = load_halfs(x, count);
    lanes low = Q6_V_lo_W(values), high = Q6_V_hi_W(values);
    add_to(squares, lanes_mul(low, low)); /* a square of FP16 is exact in FP32 */
    add_to(squares, lanes_mul(high, high));
    store_floats(work, low, count < LANES ? count : LANES);
    if (count > LANES) store_floats(work + LANES, high, count - LANES);
}

LANES_INLINE void gain_by(float *x, uint32_t count, lanes scale, const float *gain) {
    store_floats(x, lanes_mul(lanes_mul(load_floats(x, count), scale), load_floats(gain, count)), count);
}

void hvx_rms_norm(const uint16_t *x, uint32_t width, double eps, const float *gain, uint32_t heads,
                  const float *rotations, float *work, uint16_t *y) {
    lost_sum sum = {Q6_V_vzero(), Q6_V_vzero()};
    uint32_t i = 0;
    for (; i + 2u * LANES <= width; i += 2u * LANES) add_widened(&sum, x + i, 2u * LANES, work + i);
    if (i < width) add_widened(&sum, x + i, width - i, work + i);
    const lanes scale = lanes_splat((float)(1.0 / sqrt(total_of(sum) / (double)width + eps)));
    for (i = 0; i + LANES <= width; i += LANES) gain_by(work + i, LANES, scale, gain + i);
    if (i < width) gain_by(work + i, width - i, scale, gain + i);
    for (uint32_t head = 0; rotations != NULL && head < heads; head++) {
        rotate(work + (size_t)head * (width / heads), width / heads, rotations);
    }
    hvx_narrow(work, width, y);
}

LANES_INLINE void add_gated(float *x, lanes added, const float *gate, uint32_t count) {
    if (gate != NULL) added = lanes_mul(added, load_floats(gate, count));
    store_floats(x, lanes_add(load_floats(x, count), added), count);
}

void hvx_residual(float *x, const uint16_t *y, const float *gate, uint32_t width) {
    const uint32_t most = 2u * LANES;
    uint32_t i = 0;
    for (; i + most <= width; i += most) {
        lanes2 added = load_halfs(y + i, most);
        add_gated(x + i, Q6_V_lo_W(added), gate == NULL ? NULL : gate + i, LANES);
        add_gated(x + i + LANES, Q6_V_hi_W(added), gate == NULL ? NULL : gate + i + LANES, LANES);
    }
    if (i < width) {
        uint32_t left = width - i;
        lanes2 added = load_halfs(y + i, left);
        add_gated(x + i, Q6_V_lo_W(added), gate == NULL ? NULL : gate + i, left < LANES ? left : LANES);
        if (left > LANES) {
            add_gated(x + i + LANES, Q6_V_hi_W(added), gate == NULL ? NULL : gate + i + LANES, left - LANES);
        }
    }
}
