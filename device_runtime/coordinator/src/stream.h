/* A running stream: what its parts share. All of it belongs to the thread that called hvdc_stream_run. */
#ifndef HVDC_STREAM_H
#define HVDC_STREAM_H

#include "gpu_peer.h"
#include "hvdc/result.h"
#include "npu_lane.h"
#include "sharing.h"
#include "trace.h"

/* A sentence with the limit in seconds, and a place for what was executed. */
#define HVDC_NPU_HANGS "a call of the NPU's engine, or of the decoder, has not returned within %.1f s"

/* In the order of a video's way. HELD: the GPU is not told of it yet; FOR_NPU: the NPU's thread is not. */
enum hvdc_slot_use { HVDC_SLOT_FREE = 0, HVDC_SLOT_HELD, HVDC_SLOT_ON_GPU, HVDC_SLOT_FOR_NPU, HVDC_SLOT_ON_NPU };

/* When things were of the video in a slot; 0: not yet. */
typedef struct hvdc_on_way {
    uint64_t gpu_start_ns, gpu_end_ns; /* as its spans tell */
    uint64_t npu_start_ns;
    bool handed;       /* the GPU is done with it */
    uint32_t from;     /* FOR_NPU: where it goes on */
    uint64_t ready_ns; /* and since when it could */
} hvdc_on_way;

typedef struct hvdc_running {
    const hvdc_stream *stream;
    hvdc_stream_report *report;
    hvdc_failure *failure;
    uint32_t slot_count;
    hvdc_slot slots[HVDC_SLOTS_MAX];
    enum hvdc_slot_use use[HVDC_SLOTS_MAX];
    hvdc_video videos[HVDC_SLOTS_MAX]; /* of the video in each slot */
    hvdc_on_way on_way[HVDC_SLOTS_MAX];
    bool is_kept[HVDC_SLOTS_MAX]; /* its final latent is in the directory */
    uint8_t inputs[HVDC_SLOTS_MAX][HVDC_RESULT_HASH_BYTES];
    uint32_t next_video; /* the first one that has not begun */
    bool gpu;            /* there is a worker, and it is not lost */
    bool ready;          /* it has said so */
    bool stopping;       /* no more videos are begun */
    bool abandoned;
    int stop_fd;
    hvdc_gpu_peer peer;
    hvdc_npu_lane *lane;
    hvdc_memory exchange; /* of mode hetero-tensor */
    hvdc_sharing sharing;
    hvdc_stream_policy policy;
    uint32_t gpu_observed, npu_observed; /* videos that its rates know of */
    hvdc_trace trace;
    const hvdc_memory_kind *memory_kind;
    uint64_t origin_ns, started_ns, first_block_ns, first_result_ns, last_result_ns;
} hvdc_running;

/* stream_begin.c: refuses, allocates, starts; and gives everything back. */
bool hvdc_running_begin(hvdc_running *r);
bool hvdc_running_end(hvdc_running *r);

/* stream_cuts.c */
bool hvdc_has_policy(const hvdc_stream *stream);
/* Fills in the cut of the video that is to begin in a slot, and says what for. */
bool hvdc_running_choose_cut(hvdc_running *r, uint32_t slot);
/* What a policy learns from: `count` blocks of the video in a slot are done on an engine. */
void hvdc_running_gpu_observed(hvdc_running *r, uint32_t slot, uint32_t count);
void hvdc_running_npu_observed(hvdc_running *r, const hvdc_npu_job *job);

/* stream_work.c */
/* Videos into free slots, and work to the engines. */
bool hvdc_running_fill(hvdc_running *r);
/* Seconds until a video that is held is due on the GPU; infinite if none is. */
double hvdc_running_hold_s(const hvdc_running *r);
void hvdc_running_begun(hvdc_running *r, const hvdc_npu_job *job);
bool hvdc_running_handed_over(hvdc_running *r, const hvdc_handoff *handoff);
/* Its latent, which becomes a result; and its frames. */
bool hvdc_running_computed(hvdc_running *r, const hvdc_npu_job *job);
void hvdc_running_finished(hvdc_running *r, const hvdc_npu_job *job);
/* When nobody works any more, but for the NPU's thread where `hangs`: final latents that nobody has asked for become
 * results too. False with a failure if one cannot be written. */
bool hvdc_running_keep_complete(hvdc_running *r, bool hangs);
/* The worker is lost: its videos go on from their last boundaries on the NPU, or the stream fails, as the options say. */
bool hvdc_running_gpu_lost(hvdc_running *r, const hvdc_failure *why);
/* The same, as the NPU's thread has noticed in `job`. */
bool hvdc_running_partner_lost(hvdc_running *r, const hvdc_npu_job *job, const hvdc_failure *why);
bool hvdc_running_is_busy(const hvdc_running *r);

/* stream.c */
double hvdc_running_s(const hvdc_running *r, uint64_t at_ns);
void hvdc_running_tell(hvdc_running *r, enum hvdc_event event, uint32_t video, uint32_t position,
                       const hvdc_video *record, const char *text);
/* Into trace, timings and progress. */
void hvdc_running_span(hvdc_running *r, const hvdc_span_of_time *span);

/* Mode, and what it means for a video: the blocks [0, this) that the worker would execute, unless a policy chooses. */
uint32_t hvdc_gpu_part(const hvdc_stream *stream);
bool hvdc_needs_worker(const hvdc_stream *stream);

#endif
