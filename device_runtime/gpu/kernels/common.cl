/* What all kernels share: vectors of VECTOR elements (1, 4 or 16), a division that is the same everywhere, codes.
 *
 * Products and sums are never fused (the oracle's are not), except where fma() stands. Built without options that relax
 * arithmetic. Only FP32 is computed with; FP16 is read and written by vload_half and vstore_half, which need no extension. */
#pragma OPENCL FP_CONTRACT OFF

#define HVDC_JOIN_(a, b) a##b
#define HVDC_JOIN(a, b) HVDC_JOIN_(a, b)
#if VECTOR == 1
typedef float floats;
typedef int ints;
typedef uint uints;
#define LOAD_FLOATS(pointer) (*(pointer))
#define STORE_FLOATS(value, pointer) (*(pointer) = (value))
#define STORE_INTS(value, pointer) (*(pointer) = (value))
#define LOAD_HALFS(offset, pointer) vload_half(offset, pointer)
#define STORE_HALFS(value, offset, pointer) vstore_half_rte(value, offset, pointer)
#define STORE_CODES(value, pointer) (*(pointer) = convert_char(value))
#define AS_FLOATS(value) as_float(value)
#define TO_INTS(value) convert_int(value)
#define TO_FLOATS(value) convert_float(value)
#else
typedef HVDC_JOIN(float, VECTOR) floats;
typedef HVDC_JOIN(int, VECTOR) ints;
typedef HVDC_JOIN(uint, VECTOR) uints;
#define LOAD_FLOATS(pointer) HVDC_JOIN(vload, VECTOR)(0, pointer)
#define STORE_FLOATS(value, pointer) HVDC_JOIN(vstore, VECTOR)(value, 0, pointer)
#define STORE_INTS(value, pointer) HVDC_JOIN(vstore, VECTOR)(value, 0, pointer)
#define LOAD_HALFS(offset, pointer) HVDC_JOIN(vload_half, VECTOR)(0, (pointer) + (offset))
#define STORE_HALFS(value, offset, pointer) \
    HVDC_JOIN(HVDC_JOIN(vstore_half, VECTOR), _rte)(value, 0, (pointer) + (offset))
#define STORE_CODES(value, pointer) HVDC_JOIN(vstore, VECTOR)(HVDC_JOIN(convert_char, VECTOR)(value), 0, pointer)
#define AS_UINTS(value) HVDC_JOIN(as_uint, VECTOR)(value)
#define STORE_UINTS STORE_INTS
#define AS_FLOATS(value) HVDC_JOIN(as_float, VECTOR)(value)
#define TO_INTS(value) HVDC_JOIN(convert_int, VECTOR)(value)
#define TO_FLOATS(value) HVDC_JOIN(convert_float, VECTOR)(value)
#endif

#if VECTOR == 1
#define LANES_FROM(first) ((ints)(first))
static int total_of_ints(ints x) { return x; }
static float largest(floats x) { return x; }
#elif VECTOR == 4
#define LANES_FROM(first) ((ints)(first) + (ints)(0, 1, 2, 3))
static int total_of_ints(ints x) { return (x.s0 + x.s1) + (x.s2 + x.s3); }
static float largest(floats x) { return fmax(fmax(x.s0, x.s1), fmax(x.s2, x.s3)); }
#else
#define LANES_FROM(first) ((ints)(first) + (ints)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
static int total_of_ints(ints x) {
    int8 a = x.lo + x.hi;
    int4 b = a.lo + a.hi;
    return (b.s0 + b.s1) + (b.s2 + b.s3);
}
static float largest(floats x) {
    float8 a = fmax(x.lo, x.hi);
    float4 b = fmax(a.lo, a.hi);
    return fmax(fmax(b.s0, b.s1), fmax(b.s2, b.s3));
}
#endif

/* a / b to nearest. OpenCL lets a driver be 2.5 units off; with the remainder, which fma gives exactly, two steps are
 * enough from there (P. Markstein, IBM J. Res. Dev. 34(1), 1990). For quotients and remainders that are normal. */
static floats divided(floats a, floats b) {
    floats inverse = 1.0f / b;
    inverse = fma(fma(-b, inverse, (floats)(1.0f)), inverse, inverse);
    floats quotient = a * inverse;
    quotient = fma(fma(-b, quotient, a), inverse, quotient);
    return fma(fma(-b, quotient, a), inverse, quotient);
}

/* clip(round_half_even(x / scale), -127, 127); `inverse` is 1 / scale to nearest. The quotient is that of IEEE: see
 * `divided`. Beyond the codes the steps must not overflow, so they start from within. */
static ints codes_of(floats x, float scale, float inverse) {
    const floats low = -256.0f, high = 256.0f;
    floats quotient = clamp(x * inverse, low, high);
    quotient = clamp(fma(fma(-quotient, (floats)(scale), x), (floats)(inverse), quotient), low, high);
    quotient = fma(fma(-quotient, (floats)(scale), x), (floats)(inverse), quotient);
    return TO_INTS(rint(clamp(quotient, (floats)(-127.0f), (floats)(127.0f))));
}

/* e^x, x within +-87 or taken to be there; wrong in the last place only next to a half, so that it is nearly always what
 * another good exponential gives. x = n ln 2 + f + f_low, |f| <= ln(2) / 2, and the Taylor series of e^f, whose rest after
 * f^8 is below 2e-10; what 1 + f loses is kept. `low`: what the result lost. The same bits on every device. */
static floats exponential_parts(floats x, floats *low) {
    x = clamp(x, (floats)(-87.0f), (floats)(87.0f));
    const floats n = rint(x * 1.44269504f);
    const floats reduced = fma(n, (floats)(-0.693359375f), x); /* exact: the factor has few bits */
    const floats f = fma(n, (floats)(2.12194440e-4f), reduced);
    const floats f_low = fma(n, (floats)(2.12194440e-4f), reduced - f) - n * 1.6465950e-12f;
    floats p = 1.0f / 40320.0f;
    p = fma(p, f, (floats)(1.0f / 5040.0f));
    p = fma(p, f, (floats)(1.0f / 720.0f));
    p = fma(p, f, (floats)(1.0f / 120.0f));
    p = fma(p, f, (floats)(1.0f / 24.0f));
    p = fma(p, f, (floats)(1.0f / 6.0f));
    p = fma(p, f, (floats)(0.5f));
    const floats sum = 1.0f + f;
    const floats lost = f - (sum - 1.0f);
    const floats rest = fma(p, f * f, lost + fma(f_low, f, f_low));
    const floats power = AS_FLOATS((TO_INTS(n) + 127) << 23);
    const floats high = sum + rest;
    *low = (rest - (high - sum)) * power;
    return high * power;
}

static floats exponential(floats x) {
    floats low;
    return exponential_parts(x, &low);
}

/* Words (four codes) of a tile: one column's next four codes, and from those of a column to those of the next. */
#define TILE_WORDS (HVDC_TILE_HMX_INT8_K4_BYTES / 4u)
#define TILE_GROUPS (HVDC_TILE_HMX_INT8_K4_ROWS / 4u)
#define WORDS_TO_NEXT_GROUP (HVDC_TILE_HMX_INT8_K4_OFFSET(4u, 0u) / 4u)

/* Byte of (k, n) in a matrix of tiles [n_tile][k_tile]. */
static size_t tiled(uint k, uint n, uint k_tiles) {
    const uint tile = n / HVDC_TILE_HMX_INT8_K4_COLS * k_tiles + k / HVDC_TILE_HMX_INT8_K4_ROWS;
    return (size_t)tile * HVDC_TILE_HMX_INT8_K4_BYTES +
           HVDC_TILE_HMX_INT8_K4_OFFSET(k % HVDC_TILE_HMX_INT8_K4_ROWS, n % HVDC_TILE_HMX_INT8_K4_COLS);
}
