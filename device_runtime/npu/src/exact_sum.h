/* Sums of products of FP16 numbers as the matrix unit of Hexagon has them: exact, and rounded once. Plain C without a
 * library, so that it serves where there is none.
 *
 * A finite FP16 number is an integer of up to 11 bits times 2^-24 · 2^shift, shift <= 29; so a product is one of up to
 * 22 bits times 2^-48 · 2^shift, shift <= 58, and 128 bits hold any sum of them. */
#ifndef HVDC_NPU_EXACT_SUM_H
#define HVDC_NPU_EXACT_SUM_H

#include <stdint.h>

/* Σ limbs[i] · 2^(16 i − 48). A product adds less than 2^38 to one limb, so that 2^24 products cannot overflow it. */
typedef struct exact_sum {
    int64_t limbs[4];
} exact_sum;

static inline uint64_t exact_bits_of_double(double value) {
    union {
        double value;
        uint64_t bits;
    } both = {.value = value};
    return both.bits;
}

static inline double exact_double_of_bits(uint64_t bits) {
    union {
        uint64_t bits;
        double value;
    } both = {.bits = bits};
    return both.value;
}

/* Adds the product of two finite FP16 numbers. */
static inline void exact_add(exact_sum *sum, uint16_t a, uint16_t b) {
    uint32_t a_exponent = a >> 10 & 31u, b_exponent = b >> 10 & 31u;
    int64_t a_integer = (a & 0x3ff) | (a_exponent == 0u ? 0 : 0x400);
    int64_t b_integer = (b & 0x3ff) | (b_exponent == 0u ? 0 : 0x400);
    uint32_t shift = (a_exponent == 0u ? 0u : a_exponent - 1u) + (b_exponent == 0u ? 0u : b_exponent - 1u);
    int64_t product = a_integer * b_integer * ((int64_t)1 << shift % 16u);
    sum->limbs[shift / 16u] += ((a ^ b) & 0x8000) != 0 ? -product : product;
}

/* The sum in FP64, rounded to odd: cut off, and the last of the 53 bits set if anything was. Rounding this once more, to
 * 51 bits or fewer, gives what rounding the sum itself gives. Source: Boldo and Melquiond, Emulation of FMA and correctly
 * rounded sums (2008), theorem 3. Zero is +0. */
static inline double exact_to_odd(const exact_sum *sum) {
    uint64_t high = 0, low = 0; /* two's complement */
    for (uint32_t i = 0; i < 4u; i++) {
        uint64_t limb = (uint64_t)sum->limbs[i], sign = sum->limbs[i] < 0 ? UINT64_MAX : 0u;
        uint64_t added = limb << 16u * i;
        low += added;
        high += (i == 0u ? sign : sign << 16u * i | limb >> (64u - 16u * i)) + (low < added ? 1u : 0u);
    }
    const uint64_t negative = high >> 63;
    if (negative != 0u) {
        low = ~low + 1u;
        high = ~high + (low == 0u ? 1u : 0u);
    }
    uint32_t exponent = 1023u - 48u;
    uint64_t lost = 0;
    while (high != 0u || low >> 53 != 0u) {
        lost |= low & 1u;
        low = low >> 1 | high << 63;
        high >>= 1;
        exponent++;
    }
    double magnitude = (double)(low | lost) * exact_double_of_bits((uint64_t)exponent << 52);
    return negative != 0u ? -magnitude : magnitude;
}

/* FP64 to FP32's 24 bits, rounded to odd: to be rounded once more, to FP16. */
static inline float exact_odd_float(double value) {
    const uint64_t beyond = ((uint64_t)1 << 29) - 1u; /* bits that FP32 has no room for */
    uint64_t bits = exact_bits_of_double(value);
    bits = (bits | ((bits & beyond) + beyond)) & ~beyond; /* the sum reaches bit 29 if any of them is set */
    return (float)exact_double_of_bits(bits);
}

#endif
