/* The NPU's thread in the owner: suffixes, whole videos and decoding, one video after the other.
 *
 * The caller submits videos in slots and hears of what happened through a descriptor that becomes readable. */
#ifndef HVDC_NPU_LANE_H
#define HVDC_NPU_LANE_H

#include "sharing.h"

typedef struct hvdc_npu_lane hvdc_npu_lane;

typedef struct hvdc_npu_job {
    uint32_t video, slot, from; /* blocks [from, end) and the decoder */
    uint64_t ready_ns;          /* when it could be resumed; 0: it was not handed over */
    bool shared;                /* the worker computes slices of its linears */
    bool kept;                  /* its result was there already: there is no news of its latent */
    /* In news: when it was begun, and when its last block was done. */
    uint64_t begun_ns, computed_ns;
} hvdc_npu_job;

enum hvdc_npu_news_kind {
    HVDC_NPU_BEGUN, /* `job`; nothing else of it came before */
    HVDC_NPU_SPAN,
    HVDC_NPU_LATENT,   /* the slot of `job` has the final latent, which only the decoder reads from now on */
    HVDC_NPU_DECODING, /* `done` of `total` pieces of `job` are decoded */
    HVDC_NPU_DONE,     /* `job` is decoded */
    HVDC_NPU_ALONE,    /* the worker was lost in `job`, which is undone; `failure` says how; no other job begins */
    HVDC_NPU_FAILED    /* `failure` of `job`; nothing follows */
};

typedef struct hvdc_npu_news {
    enum hvdc_npu_news_kind kind;
    hvdc_span_of_time span; /* SPAN */
    hvdc_npu_job job;
    uint64_t done, total; /* DECODING */
    hvdc_failure failure;
} hvdc_npu_news;

/* Starts the thread, which alone uses `engine`, `host`, io->decode and `sharing` from now on. */
bool hvdc_npu_lane_start(const hvdc_stream *stream, hvdc_slot *slots, hvdc_sharing *sharing, hvdc_npu_lane **lane,
                         hvdc_failure *failure);

/* Jobs wait in the order of their videos. */
void hvdc_npu_lane_submit(hvdc_npu_lane *lane, hvdc_npu_job job);

/* After ALONE: takes back the shared jobs that wait, in their order, and says how many there were; and lets jobs begin
 * again. Between the two they are submitted anew, so that the order of the videos stays. */
uint32_t hvdc_npu_lane_undo_shared(hvdc_npu_lane *lane, hvdc_npu_job undone[HVDC_SLOTS_MAX]);
void hvdc_npu_lane_go_on(hvdc_npu_lane *lane);

/* Jobs that are submitted and not yet DONE, or ALONE. */
uint32_t hvdc_npu_lane_load(hvdc_npu_lane *lane);

/* Readable when there is news. */
int hvdc_npu_lane_fd(const hvdc_npu_lane *lane);
bool hvdc_npu_lane_news(hvdc_npu_lane *lane, hvdc_npu_news *news);

/* Seconds until a call of the engine, of the host's functions or of the decoder will have taken `silence_s`; infinite
 * while the thread is in none, or waits for the worker, and where `silence_s` is 0. */
double hvdc_npu_lane_patience_s(hvdc_npu_lane *lane, double silence_s);

/* The video that was begun last. */
uint32_t hvdc_npu_lane_video(hvdc_npu_lane *lane);

/* Lets the running call of the engine return, drops the rest, ends the thread; news that waits stays. NULL, and one that
 * was stopped before, is allowed. False if that call takes longer than `silence_s` (0: waits for ever): then the thread,
 * and what it was given, stay as they are. */
bool hvdc_npu_lane_stop(hvdc_npu_lane *lane, double silence_s);

/* After it was stopped. NULL is allowed. */
void hvdc_npu_lane_free(hvdc_npu_lane *lane);

#endif
