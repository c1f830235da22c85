/* DOT(w, x, sum): sum + the products of four INT8 codes in each of two words, in one of four forms (DOT_FORM):
 *   1  cl_khr_integer_dot_product's dot_acc_sat_4x8packed_ss_int; no sum here comes near where it saturates
 *   2  cl_qcom_dot_product8's unsigned qcom_udot8_acc: codes + 128, taken back by ZERO_POINT. (Its qcom_dot8_acc multiplies
 *      signed by unsigned, so it would be wrong here.)
 *   3  NVIDIA's instruction dp4a
 *   4  plain C
 * EMULATE_DOT puts C in the place of what a driver lacks, so that the forms can be tested without it. */
#define DOT_KHR 1
#define DOT_QCOM 2
#define DOT_NVIDIA 3
#define DOT_PLAIN 4

#if DOT_FORM == DOT_QCOM
#if defined(EMULATE_DOT)
static int qcom_udot8_acc(uint w, uint x, int sum) {
    const uchar4 a = as_uchar4(w), b = as_uchar4(x);
    return sum + a.s0 * b.s0 + a.s1 * b.s1 + a.s2 * b.s2 + a.s3 * b.s3;
}
#else
#pragma OPENCL EXTENSION cl_qcom_dot_product8 : enable
#endif
#define DOT(w, x, sum) qcom_udot8_acc((w) ^ 0x80808080u, (x) ^ 0x80808080u, sum)
/* sum (w + 128)(x + 128) = sum w x + 128 (sum w + sum x) + 128^2 k, with k = 4 words. */
#define ZERO_POINT(sum_w, sum_x, words) (-128 * ((sum_w) + (sum_x)) - 65536 * (int)(words))
#else
#define ZERO_POINT(sum_w, sum_x, words) 0

#if DOT_FORM == DOT_KHR && !defined(EMULATE_DOT)
#pragma OPENCL EXTENSION cl_khr_integer_dot_product : enable
#define DOT(w, x, sum) dot_acc_sat_4x8packed_ss_int(w, x, sum)
#elif DOT_FORM == DOT_NVIDIA && !defined(EMULATE_DOT)
#ifndef __NV_CL_C_VERSION /* another compiler may take the text and fail, or worse, when it assembles it */
#error "this compiler knows no PTX"
#endif
static int dp4a(uint w, uint x, int sum) {
    int result;
    __asm__("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(w), "r"(x), "r"(sum));
    return result;
}
#define DOT(w, x, sum) dp4a(w, x, sum)
#else
static int signed_products(uint w, uint x, int sum) {
    const char4 a = as_char4(w), b = as_char4(x);
    return sum + a.s0 * b.s0 + a.s1 * b.s1 + a.s2 * b.s2 + a.s3 * b.s3;
}
#define DOT(w, x, sum) signed_products(w, x, sum)
#endif
#endif

/* DOTS: the same for VECTOR columns. */
#if VECTOR == 1
#define DOTS(w, x, sum) DOT(w, x, sum)
#elif VECTOR == 4
#define DOTS(w, x, sum) (int4)(DOT(w.s0, x, sum.s0), DOT(w.s1, x, sum.s1), DOT(w.s2, x, sum.s2), DOT(w.s3, x, sum.s3))
#endif

/* PAIRS: plain C in another shape, for CPUs, which multiply pairs of 16-bit numbers and add the two products in one
 * instruction. A word's bytes 0 and 2 are one pair, 1 and 3 the other; rows come split that way (gemm.cl's `pack`). */
#ifdef PAIRS
typedef short pairs __attribute__((ext_vector_type(32)));
typedef union {
    uint16 words;
    pairs halves;
} word_pairs;

#if defined(__AVX512BW__)
typedef short pairs_of_x86 __attribute__((vector_size(64)));
typedef int sums_of_x86 __attribute__((vector_size(64)));
static int16 products_of_pairs(pairs a, pairs b) {
    union {
        pairs halves;
        pairs_of_x86 x86;
    } x = {a}, y = {b};
    union {
        sums_of_x86 x86;
        int16 sums;
    } result;
    result.x86 = __builtin_ia32_pmaddwd512(x.x86, y.x86);
    return result.sums;
}
#elif defined(__AVX2__)
typedef short pairs_of_x86 __attribute__((vector_size(32)));
typedef int sums_of_x86 __attribute__((vector_size(32)));
static int16 products_of_pairs(pairs a, pairs b) {
    union {
        pairs halves;
        pairs_of_x86 x86[2];
    } x = {a}, y = {b};
    union {
        sums_of_x86 x86[2];
        int16 sums;
    } result;
    result.x86[0] = __builtin_ia32_pmaddwd256(x.x86[0], y.x86[0]);
    result.x86[1] = __builtin_ia32_pmaddwd256(x.x86[1], y.x86[1]);
    return result.sums;
}
#else
typedef int products __attribute__((ext_vector_type(32)));
static int16 products_of_pairs(pairs a, pairs b) {
    const products p = __builtin_convertvector(a, products) * __builtin_convertvector(b, products);
    return __builtin_shufflevector(p, p, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
           __builtin_shufflevector(p, p, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}
#endif
#endif
