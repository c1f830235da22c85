/* FP16 <-> FP32, IEEE 754 binary16 and binary32: widening is exact, narrowing rounds to nearest even. The same bits
 * on every processor, NaN payloads included: the portable form is what F16C's instructions compute. Without a library. */
#ifndef HVDC_HALF_H
#define HVDC_HALF_H

#include <stddef.h>
#include <stdint.h>

#if defined(__F16C__)
#include <immintrin.h>
#endif

static inline float hvdc_float_of_bits(uint32_t bits) {
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t hvdc_bits_of_float(float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The exponent is rebiased by a multiplication, which also normalises subnormal halves. */
static inline float hvdc_half_to_float(uint16_t half) {
    uint32_t magnitude = (uint32_t)(half & 0x7fffu) << 13, sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t finite = hvdc_bits_of_float(hvdc_float_of_bits(magnitude) * 0x1p112f);
    uint32_t special = magnitude | 0x7f800000u | ((half & 0x3ffu) != 0u ? 0x400000u : 0u); /* a NaN becomes quiet */
    return hvdc_float_of_bits(((half & 0x7c00u) == 0x7c00u ? special : finite) | sign);
}

/* Subnormal halves are rounded by adding 0.5, whose unit in the last place is theirs; the others as integers. */
static inline uint16_t hvdc_half_from_float(float value) {
    uint32_t bits = hvdc_bits_of_float(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    uint32_t subnormal = hvdc_bits_of_float(hvdc_float_of_bits(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t normal = (magnitude + 0xc8000fffu + (magnitude >> 13 & 1u)) >> 13; /* rebias by 15 - 127, and round */
    uint32_t special = magnitude > 0x7f800000u ? 0x7e00u | (magnitude >> 13 & 0x1ffu) : 0x7c00u;
    uint32_t half = magnitude >= 0x47800000u ? special : magnitude < 0x38800000u ? subnormal : normal;
    return (uint16_t)(half | sign);
}

/* Arrays. One copy in a file is enough: inlined everywhere, they would be most of its code. */
__attribute__((noinline, unused)) static void hvdc_halfs_to_floats(const uint16_t *halfs, size_t count, float *floats) {
    size_t done = 0;
#if defined(__F16C__)
    done = count / 8u * 8u;
    for (size_t i = 0; i < done; i += 8u) {
        _mm256_storeu_ps(floats + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(halfs + i))));
    }
#endif
    for (size_t i = done; i < count; i++) {
        floats[i] = hvdc_half_to_float(halfs[i]);
    }
}

__attribute__((noinline, unused)) static void hvdc_halfs_from_floats(const float *floats, size_t count,
                                                                     uint16_t *halfs) {
    size_t done = 0;
#if defined(__F16C__)
    done = count / 8u * 8u;
    for (size_t i = 0; i < done; i += 8u) {
        __m128i narrow = _mm256_cvtps_ph(_mm256_loadu_ps(floats + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm_storeu_si128((__m128i *)(void *)(halfs + i), narrow);
    }
#endif
    for (size_t i = done; i < count; i++) {
        halfs[i] = hvdc_half_from_float(floats[i]);
    }
}

#endif
