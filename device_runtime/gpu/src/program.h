/* OpenCL programs: built from the embedded sources, or taken from the cache. */
#ifndef HVDC_GPU_PROGRAM_H
#define HVDC_GPU_PROGRAM_H

#include "device.h"

/* The sources of kernels/, embedded by CMake; `tiles_h` is core's hvdc/tiles.h. Ended by a 0. */
extern const char hvdc_source_tiles_h[], hvdc_source_common_cl[], hvdc_source_dot_cl[], hvdc_source_gemm_cl[],
    hvdc_source_rows_cl[], hvdc_source_probe_cl[];

/* What a program is made of, one source after another. */
typedef struct hvdc_sources {
    const char *texts[4];
    uint32_t count;
    const char *options;
} hvdc_sources;

/* Builds a program, or takes it from the cache. A failure has the compiler's first complaint. */
bool hvdc_program_build(hvdc_device *device, const hvdc_sources *sources, cl_program *program, hvdc_failure *failure);

/* Puts it into the cache, if it isn't there. Not done while building: some drivers compile everything again for that, so
 * only what is going to be used is kept. */
void hvdc_program_keep(hvdc_device *device, const hvdc_sources *sources, cl_program program);

bool hvdc_program_kernel(hvdc_device *device, cl_program program, const char *name, cl_kernel *kernel,
                         hvdc_failure *failure);

#endif
