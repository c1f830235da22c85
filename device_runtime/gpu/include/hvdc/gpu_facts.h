/* What an OpenCL device really does, found out by values: for hvdc_probe, which has no artifact. */
#ifndef HVDC_GPU_FACTS_H
#define HVDC_GPU_FACTS_H

#include "hvdc/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hvdc_gpu_facts {
    char platform[64], device[128], driver[64];
    bool is_cpu;
    uint64_t max_buffer_bytes; /* CL_DEVICE_MAX_MEM_ALLOC_SIZE, as advertised */
} hvdc_gpu_facts;

typedef struct hvdc_gpu_prober hvdc_gpu_prober;

/* The device that the options name, else the first GPU, else the first. */
bool hvdc_gpu_prober_open(const hvdc_gpu_options *options, hvdc_gpu_prober **prober, hvdc_gpu_facts *facts,
                          hvdc_failure *failure);
void hvdc_gpu_prober_close(hvdc_gpu_prober *prober);

/* Whether a form of the dot product compiles and gives the right sums; if not, why. */
bool hvdc_gpu_prober_dot(hvdc_gpu_prober *prober, enum hvdc_gpu_dot dot, hvdc_failure *failure);

/* The first way of importing that works with this memory; COPY: none. It is the one of the calls that follow. */
bool hvdc_gpu_prober_import(hvdc_gpu_prober *prober, const hvdc_gpu_probe *memory, enum hvdc_gpu_import *way,
                            hvdc_failure *failure);

/* All of this memory, a multiple of 4 KiB, by values in its first and last page; which are overwritten. */
bool hvdc_gpu_prober_check(hvdc_gpu_prober *prober, const hvdc_gpu_probe *memory, hvdc_failure *failure);

/* Imports memory and keeps it so until the next hvdc_gpu_prober_drop, which lets go of all. */
bool hvdc_gpu_prober_keep(hvdc_gpu_prober *prober, const hvdc_gpu_probe *memory, hvdc_failure *failure);
void hvdc_gpu_prober_drop(hvdc_gpu_prober *prober);

#ifdef __cplusplus
}
#endif

#endif
