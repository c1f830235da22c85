/* Who chooses the cut of each video of a stream, from what the stream itself has shown: the classes Replan, Adaptive and
 * DeadlineAware of hvdc/plan/policies.py, bit for bit. It knows no clock: whoever runs a stream says when things were. */
#ifndef HVDC_STREAM_POLICY_H
#define HVDC_STREAM_POLICY_H

#include "hvdc/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

enum hvdc_policy {
    HVDC_POLICY_STATIC = 0, /* one cut for the stream; nothing below is for it */
    HVDC_POLICY_REPLAN,     /* the best cut for the rates as observed */
    HVDC_POLICY_ADAPTIVE,   /* that with which the GPU is done when the NPU is free */
    HVDC_POLICY_DEADLINE    /* as adaptive, but fewer blocks, begun later, where a video would be late */
};

const char *hvdc_policy_name(enum hvdc_policy policy);                /* "static", "replan", "adaptive", "deadline" */
bool hvdc_policy_of_name(const char *name, enum hvdc_policy *policy); /* false for another name */

/* Of a new observation against all before it; and the share of a deadline that is kept for what rates do not tell. */
#define HVDC_POLICY_WEIGHT 0.25
#define HVDC_POLICY_RESERVE 0.05

typedef struct hvdc_policy_options {
    enum hvdc_policy policy;
    hvdc_rates rates; /* that it begins with */
    double handoff_s; /* from the GPU's last block to the NPU's first one; 0 or more */
    /* DEADLINE: seconds, above 0, from when a video is asked for, or from its first block. */
    double deadline_s;
    bool from_start;
} hvdc_policy_options;

typedef struct hvdc_stream_policy {
    hvdc_policy_options options;
    uint32_t executions;
    hvdc_rates rates; /* as observed so far */
} hvdc_stream_policy;

/* A video on its way, as a policy sees it; seconds of the stream, NAN for what has not happened yet. The GPU's do not
 * matter with a cut of 0. */
typedef struct hvdc_in_flight {
    uint32_t video, cut;
    double gpu_start_s, gpu_end_s, npu_start_s;
} hvdc_in_flight;

/* The cut of a video, and the second before which the GPU does not begin it while one before it is in flight. `ready`:
 * what it was chosen for. */
typedef struct hvdc_cut_decision {
    uint32_t cut;
    double not_before_s;
    hvdc_ready ready;
} hvdc_cut_decision;

/* Fails with a sentence for rates that place no cut and for a deadline that is none. */
bool hvdc_stream_policy_begin(const hvdc_policy_options *options, uint32_t executions, hvdc_stream_policy *policy,
                              hvdc_failure *failure);

/* `in_flight`: the videos that were begun before and are not finished, in order. `arrival_s`: when this one was asked for. */
bool hvdc_stream_policy_decide(const hvdc_stream_policy *policy, double now_s, double arrival_s,
                               const hvdc_in_flight *in_flight, uint32_t count, hvdc_cut_decision *decision,
                               hvdc_failure *failure);

/* The GPU has executed a video's first blocks; the NPU its last ones (perhaps none), and decoded it. */
void hvdc_stream_policy_gpu_done(hvdc_stream_policy *policy, uint32_t blocks, double seconds);
void hvdc_stream_policy_npu_done(hvdc_stream_policy *policy, uint32_t blocks, double seconds, double decode_s);

#ifdef __cplusplus
}
#endif

#endif
