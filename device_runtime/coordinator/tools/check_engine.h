/* Engines and host functions whose arithmetic tells every lost, repeated, swapped or misplaced block: whole numbers
 * modulo CHECK_PRIME, exact in FP32, in which each step multiplies and adds. tests/device_runtime/streams.py computes the
 * same. They take as long as the specification says. With a partner (mode hetero-tensor) a block is one linear, whose input
 * is whole numbers in the place of FP16: all that a block does with what it needs of its own, before what both can. */
#ifndef HVDC_CHECK_ENGINE_H
#define HVDC_CHECK_ENGINE_H

#include "check_spec.h"

#define CHECK_PRIME 65521u

typedef struct check_engine {
    hvdc_engine engine;
    const check_spec *spec;
    bool is_gpu;
    hvdc_partner *partner; /* of the NPU; NULL: none */
    float *text[2];        /* by expert */
    uint32_t video;        /* the one that the text belongs to; the worker's faults are told by it */
    uint32_t videos;       /* begun, as slices tell */
} check_engine;

/* `partner`: of the NPU, or NULL. */
bool check_engine_open(const check_spec *spec, bool is_gpu, hvdc_partner *partner, hvdc_engine **engine,
                       hvdc_failure *failure);

/* Worker's side of mode hetero-tensor. */
bool check_multiply(hvdc_engine *engine, const hvdc_slice *slice, const hvdc_exchange *exchange, hvdc_failure *failure);

/* `context`: the check_engine of the same process. */
hvdc_host_ops check_host_ops(hvdc_engine *engine);

/* Initial latent and embeds of a video. The first value of embeds is the video's number. */
void check_inputs(const check_spec *spec, uint32_t video, float *latent, float *embeds);

void check_sleep_us(uint32_t us);

#endif
