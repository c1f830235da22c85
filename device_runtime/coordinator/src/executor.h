/* One engine executing a range of a video's blocks, with what the CPU does between them: the same in both processes. */
#ifndef HVDC_EXECUTOR_H
#define HVDC_EXECUTOR_H

#include "sha256.h"
#include "slot.h"

/* Lanes of the trace; a span of time on one of them. */
enum hvdc_lane { HVDC_LANE_GPU = 1, HVDC_LANE_NPU, HVDC_LANE_CPU, HVDC_LANE_HANDOFF, HVDC_LANE_DECODE };

enum hvdc_activity {
    HVDC_DOES_LOAD = 1, /* reading a video's inputs */
    HVDC_DOES_PROJECT_TEXT,
    HVDC_DOES_SET_TEXT,
    HVDC_DOES_EMBED,
    HVDC_DOES_BLOCKS, /* [position, position + count) */
    HVDC_DOES_ADVANCE,
    HVDC_DOES_WAIT, /* between handoff and resumption */
    HVDC_DOES_DECODE,
    HVDC_DOES_KEEP,  /* writing a result */
    HVDC_DOES_SLICE, /* columns of one linear of a block */
    HVDC_DOES_JOIN   /* waiting for them */
};

/* Times are hvdc_clock_ns. */
typedef struct hvdc_span_of_time {
    uint32_t lane, activity, video, position, count, reserved;
    uint64_t start_ns, end_ns;
} hvdc_span_of_time;

/* Keys and values of a text follow from the prompt: videos with the same embeds share them. */
typedef struct hvdc_text_given {
    bool there;
    uint32_t video;                    /* the last one that it is for */
    uint8_t embeds[HVDC_SHA256_BYTES]; /* of that video */
} hvdc_text_given;

typedef struct hvdc_executor {
    hvdc_engine *engine;
    hvdc_host_ops host;
    const hvdc_trajectory *trajectory;
    enum hvdc_lane lane; /* of the engine */
    uint32_t blocks_per_call;
    float *text;              /* [text_tokens][width] */
    hvdc_text_given given[2]; /* by expert: the text that the engine has */
    void *context;
    bool (*span)(void *context, const hvdc_span_of_time *span, hvdc_failure *failure);
    bool (*cancelled)(void *context); /* asked before each call of the engine; NULL: never */
} hvdc_executor;

enum hvdc_executed { HVDC_EXECUTED = 0, HVDC_CANCELLED, HVDC_NOT_EXECUTED };

/* Allocates `text`; the other fields are the caller's. Released by hvdc_executor_free. */
bool hvdc_executor_init(hvdc_executor *executor, hvdc_failure *failure);
void hvdc_executor_free(hvdc_executor *executor);

/* The engine's texts are not to be relied on any more. */
void hvdc_executor_forget_texts(hvdc_executor *executor);

/* Blocks [from, to) of the video in a slot. Inside a step it resumes from slot->hidden, at the start of one from the
 * latent. NOT_EXECUTED fills `failure`. */
enum hvdc_executed hvdc_execute(hvdc_executor *executor, hvdc_slot *slot, uint32_t video, uint32_t from, uint32_t to,
                                hvdc_failure *failure);

#endif
