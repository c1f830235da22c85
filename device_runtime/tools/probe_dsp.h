/* Whether the DSP sees memory that the CPU sees. */
#ifndef HVDC_PROBE_DSP_H
#define HVDC_PROBE_DSP_H

#include "hvdc/dsp.h"
#include "hvdc/shared_memory.h"

#define PROBE_PAGE_BYTES (UINT64_C(64) << 10) /* whole pages, whatever their size; memory has a multiple of it */

/* Maps memory, which stays mapped, and has the DSP read what the CPU wrote in its first and last page, and the CPU what the
 * DSP wrote. On failure it is not mapped. */
bool probe_dsp_map(hvdc_dsp_mapper *dsp, const hvdc_memory_kind *kind, hvdc_memory *memory, hvdc_failure *failure);

#endif
