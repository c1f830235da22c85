/* What clang calls where Hexagon has no instruction: integer division, FP64 division and square root, the last two
 * correctly rounded. Names are the compiler's. */
#include <math.h>
#include <stdint.h>
#include <string.h>

uint64_t __hexagon_udivdi3(uint64_t n, uint64_t d);
uint64_t __hexagon_umoddi3(uint64_t n, uint64_t d);
int64_t __hexagon_divdi3(int64_t n, int64_t d);
int64_t __hexagon_moddi3(int64_t n, int64_t d);
uint32_t __hexagon_udivsi3(uint32_t n, uint32_t d);
uint32_t __hexagon_umodsi3(uint32_t n, uint32_t d);
int32_t __hexagon_divsi3(int32_t n, int32_t d);
int32_t __hexagon_modsi3(int32_t n, int32_t d);
double __hexagon_divdf3(double n, double d);

/* Quotient, remainder: a bit at a time, from the first one that can be set. */
static uint64_t divide(uint64_t n, uint64_t d, uint64_t *remainder) {
    uint64_t quotient = 0;
    if (d != 0u && n >= d) {
        int shift = __builtin_clzll(d) - __builtin_clzll(n);
        for (d <<= shift; shift >= 0; shift--, d >>= 1) {
            if (n >= d) {
                n -= d;
                quotient |= (uint64_t)1 << shift;
            }
        }
    }
    *remainder = n;
    return quotient;
}

static uint64_t magnitude(int64_t value) { return value < 0 ? 0u - (uint64_t)value : (uint64_t)value; }

static int64_t with_sign(uint64_t value, int64_t sign) { return (int64_t)(sign < 0 ? 0u - value : value); }

uint64_t __hexagon_udivdi3(uint64_t n, uint64_t d) {
    uint64_t remainder;
    return divide(n, d, &remainder);
}

uint64_t __hexagon_umoddi3(uint64_t n, uint64_t d) {
    uint64_t remainder;
    (void)divide(n, d, &remainder);
    return remainder;
}

int64_t __hexagon_divdi3(int64_t n, int64_t d) {
    return with_sign(__hexagon_udivdi3(magnitude(n), magnitude(d)), n ^ d);
}

int64_t __hexagon_moddi3(int64_t n, int64_t d) { return with_sign(__hexagon_umoddi3(magnitude(n), magnitude(d)), n); }

uint32_t __hexagon_udivsi3(uint32_t n, uint32_t d) { return (uint32_t)__hexagon_udivdi3(n, d); }

uint32_t __hexagon_umodsi3(uint32_t n, uint32_t d) { return (uint32_t)__hexagon_umoddi3(n, d); }

int32_t __hexagon_divsi3(int32_t n, int32_t d) { return (int32_t)__hexagon_divdi3(n, d); }

int32_t __hexagon_modsi3(int32_t n, int32_t d) { return (int32_t)__hexagon_moddi3(n, d); }

#define SIGN 0x8000000000000000u
#define INFINITE 0x7ff0000000000000u
#define QUIET_NAN 0x7ff8000000000000u

static uint64_t bits_of(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static double of_bits(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* A finite magnitude, not 0, as fraction · 2^exponent, fraction in [2^52, 2^53). */
static uint64_t unpacked(uint64_t bits, int *exponent) {
    uint64_t fraction = bits & 0xfffffffffffffu;
    *exponent = (int)(bits >> 52);
    if (*exponent != 0) {
        fraction |= 0x10000000000000u;
    } else {
        int shift = __builtin_clzll(fraction) - 11;
        fraction <<= shift;
        *exponent = 1 - shift;
    }
    *exponent -= 1075;
    return fraction;
}

/* fraction · 2^exponent, fraction in [2^54, 2^56) with its lowest bit set where digits were lost; to nearest even. */
static double packed(uint64_t fraction, int exponent) {
    int drop = 63 - __builtin_clzll(fraction) - 52;
    if (exponent + drop < -1074) drop = -1074 - exponent;
    if (drop > 60) return 0.0;
    uint64_t kept = fraction >> drop, lost = fraction & (((uint64_t)1 << drop) - 1u), half = (uint64_t)1 << (drop - 1);
    kept += lost > half || (lost == half && (kept & 1u) != 0u);
    exponent += drop;
    /* kept may be 2^53 now, or a subnormal number; the exponent's addition carries into the right place for both. */
    uint64_t bits = kept < 0x10000000000000u ? kept : ((uint64_t)(exponent + 1074) << 52) + kept;
    return of_bits(bits >= INFINITE ? INFINITE : bits);
}

double __hexagon_divdf3(double n, double d) {
    const uint64_t sign = (bits_of(n) ^ bits_of(d)) & SIGN, a = bits_of(n) & ~SIGN, b = bits_of(d) & ~SIGN;
    if (a > INFINITE || b > INFINITE || (a == INFINITE && b == INFINITE) || (a == 0u && b == 0u))
        return of_bits(QUIET_NAN);
    if (a == INFINITE || b == 0u) return of_bits(sign | INFINITE);
    if (a == 0u || b == INFINITE) return of_bits(sign);
    int above, below;
    uint64_t rest = unpacked(a, &above), divisor = unpacked(b, &below), quotient = 0;
    for (int i = 0; i < 56; i++) { /* 56 digits of rest / divisor, which is in (1/2, 2): the first is its integer */
        quotient <<= 1;
        if (rest >= divisor) {
            rest -= divisor;
            quotient |= 1u;
        }
        rest <<= 1;
    }
    return of_bits(sign | bits_of(packed(quotient | (rest != 0u), above - below - 55)));
}

double sqrt(double x) {
    const uint64_t bits = bits_of(x);
    if ((bits & ~SIGN) == 0u || bits == INFINITE || (bits & ~SIGN) > INFINITE) return x;
    if ((bits & SIGN) != 0u) return of_bits(QUIET_NAN);
    int exponent;
    uint64_t fraction = unpacked(bits, &exponent), root = 0, rest = 0;
    if ((exponent & 1) != 0) {
        fraction <<= 1;
        exponent--;
    }
    /* 55 digits of the root of fraction · 2^56, two digits of it at a time; fraction takes 27 pairs. */
    for (int i = 26; i > -29; i--) {
        rest = rest << 2 | (i >= 0 ? fraction >> (2 * i) & 3u : 0u);
        root <<= 1;
        if (rest >= 2u * root + 1u) {
            rest -= 2u * root + 1u;
            root |= 1u;
        }
    }
    return packed(root << 1 | (rest != 0u), exponent / 2 - 28 - 1);
}

/* What clang makes of a memcpy of at least 32 bytes, a multiple of 8. */
void *__hexagon_memcpy_likely_aligned_min32bytes_mult8bytes(void *restrict to, const void *restrict from, size_t bytes);
void *__hexagon_memcpy_likely_aligned_min32bytes_mult8bytes(void *restrict to, const void *restrict from,
                                                            size_t bytes) {
    return memcpy(to, from, bytes);
}
