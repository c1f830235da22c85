/* FP32 sums and products computed with integers, to nearest even: what IEEE 754 says, on any processor. For tests. */
#ifndef HVDC_HEXAGON_SOFT_FLOAT_H
#define HVDC_HEXAGON_SOFT_FLOAT_H

#include <stdbool.h>
#include <stdint.h>

#define SOFT_SIGN 0x80000000u
#define SOFT_INFINITE 0x7f800000u
#define SOFT_NAN 0x7fc00000u
#define SOFT_FIRST_NORMAL 0x00800000u

static inline bool soft_is_nan(uint32_t x) { return (x & ~SOFT_SIGN) > SOFT_INFINITE; }
static inline bool soft_is_infinite(uint32_t x) { return (x & ~SOFT_SIGN) == SOFT_INFINITE; }
static inline bool soft_is_subnormal(uint32_t x) {
    return (x & ~SOFT_SIGN) != 0u && (x & ~SOFT_SIGN) < SOFT_FIRST_NORMAL;
}

/* |x| = fraction · 2^exponent. */
static inline uint64_t soft_fraction(uint32_t x) {
    return (x & SOFT_INFINITE) == 0u ? x & 0x7fffffu : (x & 0x7fffffu) | 0x800000u;
}
static inline int32_t soft_exponent(uint32_t x) {
    int32_t biased = (int32_t)(x >> 23 & 0xffu);
    return (biased == 0 ? 1 : biased) - 150;
}

/* fraction · 2^exponent to FP32. */
static inline uint32_t soft_round(uint32_t sign, uint64_t fraction, int32_t exponent) {
    if (fraction == 0u) return sign;
    int32_t top = 63;
    while (fraction >> top == 0u) top--;
    int32_t last = exponent + top - 23; /* the exponent of the last bit that stays */
    if (last < -149) last = -149;
    int32_t shift = last - exponent;
    if (shift <= 0) {
        fraction <<= -shift;
    } else if (shift > 63) {
        fraction = 0; /* less than half of the least number */
    } else {
        uint64_t rest = fraction & ((UINT64_C(1) << shift) - 1u), half = UINT64_C(1) << (shift - 1);
        fraction >>= shift;
        if (rest > half || (rest == half && (fraction & 1u) != 0u)) fraction++;
    }
    if (fraction >> 24 != 0u) {
        fraction >>= 1;
        last++;
    }
    if (fraction < 0x800000u) return sign | (uint32_t)fraction;
    if (last + 150 >= 255) return sign | SOFT_INFINITE;
    return sign | (uint32_t)(last + 150) << 23 | (uint32_t)(fraction & 0x7fffffu);
}

static inline uint32_t soft_multiply(uint32_t a, uint32_t b) {
    uint32_t sign = (a ^ b) & SOFT_SIGN;
    bool zero = (a & ~SOFT_SIGN) == 0u || (b & ~SOFT_SIGN) == 0u;
    if (soft_is_nan(a) || soft_is_nan(b)) return SOFT_NAN;
    if (soft_is_infinite(a) || soft_is_infinite(b)) return zero ? SOFT_NAN : sign | SOFT_INFINITE;
    return soft_round(sign, soft_fraction(a) * soft_fraction(b), soft_exponent(a) + soft_exponent(b));
}

static inline uint32_t soft_add(uint32_t a, uint32_t b) {
    enum { ROOM = 38 }; /* bits that a fraction of 24 can move up */
    if (soft_is_nan(a) || soft_is_nan(b)) return SOFT_NAN;
    if (soft_is_infinite(a)) return soft_is_infinite(b) && a != b ? SOFT_NAN : a;
    if (soft_is_infinite(b)) return b;
    if (soft_exponent(a) < soft_exponent(b)) {
        uint32_t other = a;
        a = b;
        b = other;
    }
    int32_t apart = soft_exponent(a) - soft_exponent(b), up = apart < ROOM ? apart : ROOM, down = apart - up;
    uint64_t of_a = soft_fraction(a) << up, of_b = soft_fraction(b);
    if (down > 0) { /* far below any bit that stays: that it is there is all that counts */
        of_b = of_b == 0u ? 0u : 1u;
    }
    if (((a ^ b) & SOFT_SIGN) == 0u) return soft_round(a & SOFT_SIGN, of_a + of_b, soft_exponent(a) - up);
    if (of_a == of_b) return 0;
    uint32_t sign = of_a > of_b ? a & SOFT_SIGN : b & SOFT_SIGN;
    return soft_round(sign, of_a > of_b ? of_a - of_b : of_b - of_a, soft_exponent(a) - up);
}

#endif
