/* Lanes of a device: HVX's floats. Never executed where this was written; see docs/HEXAGON.md. */

#if __HVX_ARCH__ >= 79
LANES_INLINE lanes lanes_add(lanes a, lanes b) { return Q6_Vsf_vadd_VsfVsf(a, b); }
LANES_INLINE lanes lanes_sub(lanes a, lanes b) { return Q6_Vsf_vsub_VsfVsf(a, b); }
LANES_INLINE lanes lanes_mul(lanes a, lanes b) { return Q6_Vsf_vmpy_VsfVsf(a, b); }
#else
LANES_INLINE lanes lanes_add(lanes a, lanes b) { return Q6_Vsf_equals_Vqf32(Q6_Vqf32_vadd_VsfVsf(a, b)); }
LANES_INLINE lanes lanes_sub(lanes a, lanes b) { return Q6_Vsf_equals_Vqf32(Q6_Vqf32_vsub_VsfVsf(a, b)); }
LANES_INLINE lanes lanes_mul(lanes a, lanes b) { return Q6_Vsf_equals_Vqf32(Q6_Vqf32_vmpy_VsfVsf(a, b)); }
#endif
LANES_INLINE lanes lanes_max(lanes a, lanes b) { return Q6_Vsf_vmax_VsfVsf(a, b); }
LANES_INLINE lanes lanes_min(lanes a, lanes b) { return Q6_Vsf_vmin_VsfVsf(a, b); }

/* Weight codes, each in the top byte of a word, and the scales to multiply what they are converted to. Both factors are
 * off by 2^24, exactly; a scale for which that is not so, below 2^-102, gives 0 in FP16 either way. */
LANES_INLINE lanes lanes_codes(lanes words) { return Q6_Vsf_equals_Vw(words); }
LANES_INLINE lanes lanes_code_scales(lanes scale) { return lanes_mul(scale, lanes_splat(0x1p-24f)); }
LANES_INLINE lanes lanes_scaled(lanes codes, lanes scales) { return lanes_mul(codes, scales); }

/* To FP16. The instruction takes turns between its two inputs, which is how a tile holds two rows; in the order of
 * elements, evens and odds are parted again. */
LANES_INLINE lanes lanes_narrow_turns(lanes even, lanes odd) { return Q6_Vhf_vcvt_VsfVsf(odd, even); }
LANES_INLINE lanes lanes_narrow(lanes first, lanes second) { return Q6_Vh_vdeal_Vh(lanes_narrow_turns(first, second)); }

/* From FP16: even elements low, odd ones high; and in the order of elements. */
LANES_INLINE lanes2 lanes_widen_turns(lanes halfs) { return Q6_Wsf_vcvt_Vhf(halfs); }
LANES_INLINE lanes2 lanes_widen(lanes halfs) { return lanes_widen_turns(Q6_Vh_vshuff_Vh(halfs)); }
