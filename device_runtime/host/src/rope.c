#include <math.h>
#include <stdlib.h>

#include "hvdc/bind.h"
#include "hvdc/host.h"

bool hvdc_rope_rotations(const hvdc_weights *weights, const hvdc_grid *grid, float **rotations, hvdc_failure *failure) {
    static const char *const NAMES[3] = {"schedule.rope_freqs_frame", "schedule.rope_freqs_row",
                                         "schedule.rope_freqs_col"};
    const hvdc_geometry *g = hvdc_artifact_geometry(weights->artifact);
    const double *frequencies[3];
    size_t pairs = 0;
    for (size_t axis = 0; axis < 3u; axis++) {
        if (!hvdc_bind_doubles(weights, NAMES[axis], g->rope_dims[axis] / 2u, &frequencies[axis], failure)) {
            return false;
        }
        pairs += g->rope_dims[axis] / 2u;
    }
    if (2u * pairs != g->width / g->heads) {
        return hvdc_fail(failure, HVDC_FAILURE_ARTIFACT, "RoPE rotates %zu channels of a head's %u", 2u * pairs,
                         (unsigned)(g->width / g->heads));
    }
    uint32_t tokens = hvdc_grid_tokens(grid);
    float *made = malloc(2u * pairs * tokens * sizeof *made);
    if (made == NULL) {
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no memory for RoPE's rotations of %u tokens", (unsigned)tokens);
    }
    float *at = made;
    for (uint32_t token = 0; token < tokens; token++) {
        const uint32_t position[3] = {token / (grid->rows * grid->columns), token / grid->columns % grid->rows,
                                      token % grid->columns};
        for (size_t axis = 0; axis < 3u; axis++) {
            for (uint32_t i = 0; i < g->rope_dims[axis] / 2u; i++) {
                double angle = (double)position[axis] * frequencies[axis][i];
                *at++ = (float)cos(angle);
                *at++ = (float)sin(angle);
            }
        }
    }
    *rotations = made;
    return true;
}
