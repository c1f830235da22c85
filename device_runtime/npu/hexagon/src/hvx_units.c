/* The units of this build. */
#include "hvx_units.h"

static const hvdc_hvx HVX = {
    .widen = hvx_widen,
    .pack_rows = hvx_pack_rows,
    .pack_columns = hvx_pack_columns,
    .narrow = hvx_narrow,
    .layer_norm = hvx_layer_norm,
    .rms_norm = hvx_rms_norm,
    .add_bias = hvx_add_bias,
    .add_bias_gelu = hvx_add_bias_gelu,
    .add = hvx_add,
    .residual = hvx_residual,
    .weigh = hvx_weigh,
    .carry = hvx_carry,
    .divide = hvx_divide,
    .exp2 = hvx_exp2,
    .gelu = hvx_gelu,
};

const hvdc_hvx *hvdc_hvx_for(enum hvdc_cpu cpu) {
    (void)cpu;
    return &HVX;
}
