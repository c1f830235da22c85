/* What hvdc_stream_check is asked for: "key=value" words, the same ones for owner and worker. */
#ifndef HVDC_CHECK_SPEC_H
#define HVDC_CHECK_SPEC_H

#include "hvdc/coordinator.h"

#define CHECK_WORDS_MAX 64
#define CHECK_NOWHERE UINT32_MAX

/* A place in a stream: a video and a block execution of it. */
typedef struct check_place {
    uint32_t video, position;
} check_place;

typedef struct check_spec {
    hvdc_trajectory trajectory;
    hvdc_stream_options options;
    uint32_t seed, switch_step; /* the detail expert's first step */
    uint32_t gpu_block_us, npu_block_us, host_us, decode_us, load_us;
    check_place gpu_slows, npu_slows; /* from this video on a block takes so many times as long */
    uint32_t wild; /* not 0: and in each video, on each engine, a sixteenth of that to four times, by this seed */
    bool decodes;  /* else it has no decoder */
    const char *artifact; /* weights to share; the sizes are its own then */
    uint32_t limit_kib;   /* of shared weights */
    /* Faults of the worker: it kills itself in a block; in the middle of writing a step's latent; after scribbling over
     * the latent of the last boundary; it ends; it waits for ever; its engine fails; its engine does not open; it
     * changes the hidden state after it was handed over. */
    check_place die_at, die_in_advance, scribble_at, exit_at, hang_at, gpu_fail_at;
    uint32_t open_fails, open_hangs;
    uint32_t refuses; /* 1: the worker ends before it serves; 2: the same, when its owner has spoken unheard */
    /* Faults of the owner. One that hangs is in a call of its engine, or of its decoder, for ever. */
    check_place npu_fail_at, npu_hang_at, abort_at;
    uint32_t load_fails_at, decode_fails_at, decode_hangs_at; /* videos */
    /* What stands between the two: "flip:worker:12" damages the 12th message that the worker sends. */
    const char *proxy;
} check_spec;

/* Fills in `spec` from words; returns the first one that is not understood, or NULL. Words outlive the spec. */
const char *check_spec_read(char *const *words, int count, check_spec *spec);

#endif
