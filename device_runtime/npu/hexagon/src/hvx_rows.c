/* Rows of activations: norms, RoPE, the residual stream. A row is of any length, so that its end is part of a vector. */
#include <math.h>

#include "hvx_units.h"
#include "lanes.h"

/* How many of the lanes from `first` on are of a row. */
static inline uint32_t lanes_of(uint32_t first, uint32_t width) {
    return width - first < LANES ? width - first : LANES;
}

static inline lanes load_floats(const float *x, uint32_t first, uint32_t width) {
    return lanes_load_part(x + first, lanes_of(first, width) * (uint32_t)sizeof *x);
}

void hvx_narrow(const float *x, size_t count, uint16_t *y) {
    for (size_t i = 0; i < count; i += 2u * LANES) {
        uint32_t left = count - i < 2u * LANES ? (uint32_t)(count - i) : 2u * LANES;
        lanes low = lanes_load_part(x + i, lanes_of(0, left) * (uint32_t)sizeof *x);
        lanes high = left > LANES ? lanes_load_part(x + i + LANES, (left - LANES) * (uint32_t)sizeof *x) : Q6_V_vzero();
        lanes_store_part(y + i, lanes_narrow(low, high), left * (uint32_t)sizeof *y);
    }
}

/* A sum of each lane and what it lost. */
typedef struct lost_sum {
    lanes sum, lost;
} lost_sum;

static inline void add_to(lost_sum *of, lanes value) {
    lanes lost;
    of->sum = lanes_two_sum(of->sum, value, &lost);
    of->lost = lanes_add(of->lost, lost);
}

static double total_of(const lost_sum *of) {
    float sums[LANES], losts[LANES];
    double total = 0.0;
    lanes_store(sums, of->sum);
    lanes_store(losts, of->lost);
    for (uint32_t i = 0; i < LANES; i++) total += (double)sums[i] + (double)losts[i];
    return total;
}

/* Variance about `mean`, which is FP32: of differences that are exact, as two FP32 numbers each. */
static double variance_of(const float *x, uint32_t width, double exact_mean, float mean) {
    lost_sum sum = {Q6_V_vzero(), Q6_V_vzero()};
    const lanes minus = lanes_splat(-mean), two = lanes_splat(2.0f);
    for (uint32_t i = 0; i < width; i += LANES) {
        lanes low, lost, high = lanes_two_sum(load_floats(x, i, width), minus, &low);
        lanes product = lanes_two_product(high, high, &lost);
        lost = lanes_add(lost, lanes_mul(two, lanes_mul(high, low)));
        if (lanes_of(i, width) < LANES) {
            const HVX_VectorPred within = Q6_Q_vsetq_R((int32_t)(lanes_of(i, width) * sizeof *x));
            product = lanes_select(within, product, Q6_V_vzero());
            lost = lanes_select(within, lost, Q6_V_vzero());
        }
        add_to(&sum, product);
        sum.lost = lanes_add(sum.lost, lost);
    }
    double off = (double)mean - exact_mean, variance = total_of(&sum) / (double)width - off * off;
    return variance > 0.0 ? variance : variance != variance ? variance : 0.0;
}

void hvx_layer_norm(const float *x, uint32_t width, double eps, const float *factor, const float *addend, float *work,
                    uint16_t *y) {
    lost_sum sum = {Q6_V_vzero(), Q6_V_vzero()};
    for (uint32_t i = 0; i < width; i += LANES) add_to(&sum, load_floats(x, i, width));
    double exact_mean = total_of(&sum) / (double)width;
    float mean = (float)exact_mean, scale = (float)(1.0 / sqrt(variance_of(x, width, exact_mean, mean) + eps));
    for (uint32_t i = 0; i < width; i += LANES) {
        lanes normed = lanes_mul(lanes_sub(load_floats(x, i, width), lanes_splat(mean)), lanes_splat(scale));
        if (factor != NULL) normed = lanes_mul(normed, load_floats(factor, i, width));
        if (addend != NULL) normed = lanes_add(normed, load_floats(addend, i, width));
        lanes_store_part(work + i, normed, lanes_of(i, width) * (uint32_t)sizeof *work);
    }
    hvx_narrow(work, width, y);
}

/* A head's channels turned as complex numbers, pairs of which are neighbours: each times the cosine, and the other one of
 * its pair times the sine, with its sign. */
static void rotate(float *x, uint32_t head_dim, const float *rotations) {
    const lanes ones = Q6_V_lo_W(Q6_W_vshuff_VVR(Q6_V_vsplat_R(-1), Q6_V_vzero(), -4)); /* in odd words */
    const HVX_VectorPred odd = Q6_Q_vand_VR(ones, -1);
    const int32_t next = sizeof(float), before = sizeof(lanes) - sizeof(float);
    for (uint32_t i = 0; i < head_dim; i += LANES) {
        lanes values = load_floats(x, i, head_dim), turns = load_floats(rotations, i, head_dim);
        lanes cosines = lanes_select(odd, Q6_V_vror_VR(turns, before), turns);
        lanes sines = lanes_select(odd, turns, Q6_V_vror_VR(turns, next));
        lanes others = lanes_select(odd, Q6_V_vror_VR(values, before), Q6_V_vror_VR(values, next));
        lanes crossed = lanes_mul(others, sines);
        crossed = lanes_select(odd, crossed, Q6_V_vxor_VV(crossed, Q6_V_vsplat_R(LANES_SIGN)));
        lanes turned = lanes_add(lanes_mul(values, cosines), crossed);
        lanes_store_part(x + i, turned, lanes_of(i, head_dim) * (uint32_t)sizeof *x);
    }
}

void hvx_rms_norm(const uint16_t *x, uint32_t width, double eps, const float *gain, uint32_t heads,
                  const float *rotations, float *work, uint16_t *y) {
    lost_sum sum = {Q6_V_vzero(), Q6_V_vzero()};
    for (uint32_t i = 0; i < width; i += LANES) {
        uint32_t count = lanes_of(i, width);
        lanes values = Q6_V_lo_W(lanes_widen(lanes_load_part(x + i, count * (uint32_t)sizeof *x)));
        add_to(&sum, lanes_mul(values, values)); /* a square of FP16 is exact in FP32 */
        lanes_store_part(work + i, values, count * (uint32_t)sizeof *work);
    }
    const lanes scale = lanes_splat((float)(1.0 / sqrt(total_of(&sum) / (double)width + eps)));
    for (uint32_t i = 0; i < width; i += LANES) {
        lanes normed = lanes_mul(lanes_mul(load_floats(work, i, width), scale), load_floats(gain, i, width));
        lanes_store_part(work + i, normed, lanes_of(i, width) * (uint32_t)sizeof *work);
    }
    for (uint32_t head = 0; rotations != NULL && head < heads; head++) {
        rotate(work + (size_t)head * (width / heads), width / heads, rotations);
    }
    hvx_narrow(work, width, y);
}

void hvx_residual(float *x, const uint16_t *y, const float *gate, uint32_t width) {
    for (uint32_t i = 0; i < width; i += LANES) {
        uint32_t count = lanes_of(i, width);
        lanes added = Q6_V_lo_W(lanes_widen(lanes_load_part(y + i, count * (uint32_t)sizeof *y)));
        if (gate != NULL) added = lanes_mul(added, load_floats(gate, i, width));
        lanes_store_part(x + i, lanes_add(load_floats(x, i, width), added), count * (uint32_t)sizeof *x);
    }
}
