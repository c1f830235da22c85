/* The GPU's engine as the partner of the NPU's, in one process. */
#ifndef HVDC_BLOCKS_PARTNER_H
#define HVDC_BLOCKS_PARTNER_H

#include "hvdc/npu.h"

typedef struct blocks_partner {
    hvdc_partner face;
    hvdc_engine *gpu;
    hvdc_slice slice; /* asked for last */
} blocks_partner;

/* The partner does not move. A share above 1: it fails whenever it is asked. `kernel_cache` may be NULL. What was made is
 * released by blocks_partner_close, also after a failure; one that is all zeros too. */
bool blocks_partner_open(const hvdc_weights *weights, const hvdc_grid *grid, double share, const char *kernel_cache,
                         blocks_partner *partner, hvdc_failure *failure);
void blocks_partner_close(blocks_partner *partner);

#endif
