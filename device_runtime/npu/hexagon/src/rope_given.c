/* hvdc_rope_rotations on the DSP: they need FP64 cosines, and are the CPU's. */
#include "hvdc/host.h"

bool hvdc_rope_rotations(const hvdc_weights *weights, const hvdc_grid *grid, float **rotations, hvdc_failure *failure) {
    (void)weights, (void)grid;
    *rotations = NULL;
    return hvdc_fail(failure, HVDC_FAILURE_USAGE, "on the DSP, RoPE's rotations have to be given");
}
