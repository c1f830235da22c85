/* Engines and host functions whose arithmetic tells every lost, repeated, swapped or misplaced block: whole numbers
 * modulo CHECK_PRIME, exact in FP32, in which each step multiplies and adds. tests/device_runtime/streams.py computes the
 * same. They take as long as the specification says. */
#ifndef HVDC_CHECK_ENGINE_H
#define HVDC_CHECK_ENGINE_H

#include "check_spec.h"

#define CHECK_PRIME 65521u

typedef struct check_engine {
    hvdc_engine engine;
    const check_spec *spec;
    bool is_gpu;
    float *text[2]; /* by expert */
    uint32_t video; /* the one that the text belongs to; the worker's faults are told by it */
} check_engine;

bool check_engine_open(const check_spec *spec, bool is_gpu, hvdc_engine **engine, hvdc_failure *failure);

/* `context`: the check_engine of the same process. */
hvdc_host_ops check_host_ops(hvdc_engine *engine);

/* Initial latent and embeds of a video. The first value of embeds is the video's number. */
void check_inputs(const check_spec *spec, uint32_t video, float *latent, float *embeds);

void check_sleep_us(uint32_t us);

#endif
