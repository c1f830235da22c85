/* Lanes where there are no vector floats. */

#define LANES_EACH(name, expression) \
    LANES_INLINE lanes name(lanes a, lanes b) { \
        union { \
            lanes vector; \
            float values[LANES]; \
        } x = {.vector = a}, y = {.vector = b}; \
        _Pragma("clang loop unroll(disable) vectorize(disable)") for (uint32_t i = 0; i < LANES; i++) { \
            x.values[i] = expression; \
        } \
        return x.vector; \
    }

LANES_EACH(lanes_add, x.values[i] + y.values[i])
LANES_EACH(lanes_sub, x.values[i] - y.values[i])
LANES_EACH(lanes_mul, x.values[i] * y.values[i])
LANES_EACH(lanes_max, x.values[i] > y.values[i] ? x.values[i] : y.values[i])
LANES_EACH(lanes_min, x.values[i] < y.values[i] ? x.values[i] : y.values[i])

/* Weight codes, each in the top byte of a word, as integers, and their scales as they are. */
LANES_INLINE lanes lanes_codes(lanes words) { return Q6_Vw_vasr_VwR(words, 24); }
LANES_INLINE lanes lanes_code_scales(lanes scale) { return scale; }

/* Their products, to nearest even; 0 for what FP32 has subnormal. An 8-bit magnitude times 24 bits is a word. */
LANES_INLINE lanes lanes_scaled(lanes integers, lanes scale) {
    const lanes one = Q6_V_vsplat_R(1), zero = Q6_V_vzero();
    lanes sign = Q6_V_vand_VV(Q6_V_vxor_VV(integers, scale), Q6_V_vsplat_R(LANES_SIGN));
    lanes exponent = Q6_Vuw_vlsr_VuwR(lanes_magnitude(scale), 23);
    lanes fraction = Q6_V_vor_VV(Q6_V_vand_VV(scale, Q6_V_vsplat_R(0x7fffff)), Q6_V_vsplat_R(0x800000));
    lanes product = Q6_Vw_vmpyie_VwVuh(fraction, Q6_Vw_vabs_Vw(integers));
    lanes zeros = Q6_Vuw_vcl0_Vuw(product);
    lanes n = Q6_Vw_vasl_VwVw(product, Q6_Vw_vsub_VwVw(zeros, one)); /* the first bit at 30 */
    lanes last = Q6_V_vand_VV(Q6_Vuw_vlsr_VuwR(n, 7), one);
    n = Q6_Vuw_vlsr_VuwR(Q6_Vw_vadd_VwVw(Q6_Vw_vadd_VwVw(n, Q6_V_vsplat_R(0x3f)), last), 7);
    exponent = Q6_Vw_vsub_VwVw(Q6_Vw_vadd_VwVw(exponent, Q6_V_vsplat_R(8)), zeros);
    /* The fraction's first bit, and its carry, add to the exponent. */
    lanes bits = Q6_Vw_vadd_VwVw(Q6_Vw_vasl_VwR(Q6_Vw_vsub_VwVw(exponent, one), 23), n);
    bits = lanes_select(Q6_Q_vcmp_gt_VwVw(exponent, Q6_V_vsplat_R(254)), Q6_V_vsplat_R(LANES_INFINITE), bits);
    HVX_VectorPred none = Q6_Q_or_QQ(Q6_Q_vcmp_eq_VwVw(product, zero), Q6_Q_vcmp_gt_VwVw(one, exponent));
    return Q6_V_vor_VV(lanes_select(none, zero, bits), sign);
}

/* hvdc_half_from_float of hvdc/half.h, in the low halfword of each word. */
LANES_INLINE lanes lanes_halfs(lanes x) {
    const lanes one = Q6_V_vsplat_R(1);
    lanes sign = Q6_V_vand_VV(Q6_Vuw_vlsr_VuwR(x, 16), Q6_V_vsplat_R(0x8000)), magnitude = lanes_magnitude(x);
    lanes last = Q6_V_vand_VV(Q6_Vuw_vlsr_VuwR(magnitude, 13), one);
    lanes normal = Q6_Vw_vadd_VwVw(magnitude, Q6_V_vsplat_R((int32_t)0xc8000fffu)); /* rebias by 15 - 127, and round */
    normal = Q6_Vuw_vlsr_VuwR(Q6_Vw_vadd_VwVw(normal, last), 13);
    /* Subnormal: the fraction is shifted to units of 2^-24. From 25 on nothing is left. */
    lanes shift = Q6_Vw_vsub_VwVw(Q6_V_vsplat_R(126), Q6_Vuw_vlsr_VuwR(magnitude, 23));
    shift = Q6_Vw_vmax_VwVw(Q6_Vw_vmin_VwVw(shift, Q6_V_vsplat_R(25)), one);
    lanes fraction = Q6_V_vor_VV(Q6_V_vand_VV(magnitude, Q6_V_vsplat_R(0x7fffff)), Q6_V_vsplat_R(0x800000));
    last = Q6_V_vand_VV(Q6_Vw_vlsr_VwVw(fraction, shift), one);
    lanes half = Q6_Vw_vasl_VwVw(one, Q6_Vw_vsub_VwVw(shift, one));
    lanes subnormal = Q6_Vw_vsub_VwVw(Q6_Vw_vadd_VwVw(Q6_Vw_vadd_VwVw(fraction, half), last), one);
    subnormal = Q6_Vw_vlsr_VwVw(subnormal, shift);
    lanes payload = Q6_V_vand_VV(Q6_Vuw_vlsr_VuwR(magnitude, 13), Q6_V_vsplat_R(0x1ff));
    lanes special = lanes_select(Q6_Q_vcmp_gt_VwVw(magnitude, Q6_V_vsplat_R(LANES_INFINITE)),
                                 Q6_V_vor_VV(payload, Q6_V_vsplat_R(0x7e00)), Q6_V_vsplat_R(0x7c00));
    lanes bits = lanes_select(Q6_Q_vcmp_gt_VwVw(Q6_V_vsplat_R(0x38800000), magnitude), subnormal, normal);
    bits = lanes_select(Q6_Q_vcmp_gt_VwVw(magnitude, Q6_V_vsplat_R(0x47800000 - 1)), special, bits);
    return Q6_V_vor_VV(bits, sign);
}

LANES_INLINE lanes lanes_narrow_turns(lanes even, lanes odd) {
    return Q6_Vh_vshuffe_VhVh(lanes_halfs(odd), lanes_halfs(even));
}
LANES_INLINE lanes lanes_narrow(lanes first, lanes second) {
    return Q6_Vh_vpacke_VwVw(lanes_halfs(second), lanes_halfs(first));
}

/* hvdc_half_to_float of hvdc/half.h, of the low halfword of each word. */
LANES_INLINE lanes lanes_floats(lanes halfs) {
    lanes sign = Q6_Vw_vasl_VwR(Q6_V_vand_VV(halfs, Q6_V_vsplat_R(0x8000)), 16);
    lanes magnitude = Q6_V_vand_VV(halfs, Q6_V_vsplat_R(0x7fff));
    lanes normal = Q6_Vw_vadd_VwVw(Q6_Vw_vasl_VwR(magnitude, 13), Q6_V_vsplat_R(112 << 23));
    lanes zeros = Q6_Vuw_vcl0_Vuw(magnitude); /* subnormal: the first bit goes to 23, into the exponent */
    lanes subnormal = Q6_Vw_vasl_VwVw(magnitude, Q6_Vw_vsub_VwVw(zeros, Q6_V_vsplat_R(8)));
    lanes exponent = Q6_Vw_vsub_VwVw(Q6_V_vsplat_R(133), zeros);
    subnormal = Q6_Vw_vadd_VwVw(subnormal, Q6_Vw_vasl_VwR(exponent, 23));
    subnormal = lanes_select(Q6_Q_vcmp_eq_VwVw(magnitude, Q6_V_vzero()), Q6_V_vzero(), subnormal);
    lanes quiet =
        lanes_select(Q6_Q_vcmp_gt_VwVw(magnitude, Q6_V_vsplat_R(0x7c00)), Q6_V_vsplat_R(0x400000), Q6_V_vzero());
    lanes special = Q6_V_vor_VV(Q6_V_vor_VV(Q6_Vw_vasl_VwR(magnitude, 13), Q6_V_vsplat_R(LANES_INFINITE)), quiet);
    lanes bits = lanes_select(Q6_Q_vcmp_gt_VwVw(Q6_V_vsplat_R(0x400), magnitude), subnormal, normal);
    bits = lanes_select(Q6_Q_vcmp_gt_VwVw(magnitude, Q6_V_vsplat_R(0x7bff)), special, bits);
    return Q6_V_vor_VV(bits, sign);
}

LANES_INLINE lanes2 lanes_widen_turns(lanes halfs) {
    lanes even = Q6_V_vand_VV(halfs, Q6_V_vsplat_R(0xffff)), odd = Q6_Vuw_vlsr_VuwR(halfs, 16);
    return Q6_W_vcombine_VV(lanes_floats(odd), lanes_floats(even));
}
LANES_INLINE lanes2 lanes_widen(lanes halfs) {
    lanes2 words = Q6_Wuw_vunpack_Vuh(halfs);
    return Q6_W_vcombine_VV(lanes_floats(Q6_V_hi_W(words)), lanes_floats(Q6_V_lo_W(words)));
}
