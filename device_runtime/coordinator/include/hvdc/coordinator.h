/* A stream of videos on two engines.
 *
 * The N * L block executions of a video are one sequence, numbered from 0 (`position`). In mode HVDC_MODE_HETERO the GPU
 * executes [0, cut) and the NPU [cut, N * L) and the decoder. The NPU's engine lives in the process that calls
 * hvdc_stream_run (the owner), the GPU's in a worker process, so that the GPU executes the prefix of video i + 1 while
 * the NPU executes the suffix of video i. A video's state lives in a slot of shared memory: hidden state, running latent,
 * prompt. Both engines work on it in place; the one handoff of a video is a message. It may fall inside a step.
 *
 * The owner:
 *
 *     hvdc_stream stream = {.trajectory = hvdc_trajectory_of(artifact), .weights = shared, .npu = npu_engine,
 *                           .host = ops, .io = io, .options = {.mode = HVDC_MODE_HETERO, .cut = 51, .videos = 10,
 *                           .worker_argv = argv, .stop_fd = hvdc_stop_signals(&failure), …}};
 *     hvdc_stream_report report = {.videos = room_for_10};
 *     if (!hvdc_stream_run(&stream, &report, &failure)) …          one sentence says why
 *
 * The worker is the same program or another, started as `worker_argv` with its end of a socket as descriptor
 * HVDC_WORKER_FD. It opens the artifact and calls hvdc_worker_serve, whose result is its exit status. It dies with its
 * owner, whatever happens, and ignores SIGINT and SIGTERM: its owner tells it when to stop. Its stdout is stderr.
 *
 * With a policy, each video of mode HVDC_MODE_HETERO has a cut of its own, chosen when it is begun by what the engines have
 * shown so far (hvdc/stream_policy.h). What a video becomes depends on its cut, not on who chose it.
 *
 * HVDC_MODE_TENSOR is what the others are compared with: no video is cut, and each linear of the NPU's engine is. The
 * worker computes its share of the columns meanwhile, and the two wait for each other after every one.
 *
 * Threads. hvdc_stream_run calls `npu`, `host` and `decode` from one thread that it starts, the others of
 * hvdc_stream_io from the caller's. Call it from a thread that lives as long as the call, and with the signals of
 * hvdc_stop_signals blocked in all threads. It returns with no thread, process, mapping or descriptor left behind. A call
 * of the NPU's engine, of `host` or of `decode` that does not return is waited for, or, with `npu_silence_timeout_s`, given
 * up: then report->npu_hangs says so, and the thread that is in it keeps what it was given. The caller says why and ends
 * the process (_exit), without closing the engine, weights or anything else that the call may use.
 *
 * Faults. If the worker dies, refuses, is silent for too long or says what it cannot have done, its videos go on from
 * the last step whose latent is whole, on the NPU, and the rest of the stream too (or the stream stops, by option). If
 * the owner dies, the worker does, and no memory is left: finished videos are in `directory`, and a stream with `resume`
 * executes the others. */
#ifndef HVDC_COORDINATOR_H
#define HVDC_COORDINATOR_H

#include <stdbool.h>
#include <stdint.h>

#include "hvdc/artifact.h"
#include "hvdc/engine.h"
#include "hvdc/failure.h"
#include "hvdc/partner.h"
#include "hvdc/shared_weights.h"
#include "hvdc/stream_policy.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HVDC_WORKER_FD 3
#define HVDC_STEPS_MAX 1024u
#define HVDC_SLOTS_MAX 16u

/* What a video is made of. A running latent is float [tokens][latent_values], in the order of quant/paths/host.py;
 * embeds are float [text_tokens][text_width], text is float [text_tokens][width]. */
typedef struct hvdc_trajectory {
    uint32_t steps;  /* N */
    uint32_t layers; /* L */
    uint32_t tokens; /* M */
    uint32_t width;
    uint32_t latent_values; /* patch volume * channels */
    uint32_t text_tokens;
    uint32_t text_width;
    uint8_t experts[HVDC_STEPS_MAX]; /* HVDC_EXPERT_… of each step */
} hvdc_trajectory;

hvdc_trajectory hvdc_trajectory_of(const hvdc_artifact *artifact);

/* What the CPU does around the blocks, in FP32. Each function fails with a sentence. */
typedef struct hvdc_host_ops {
    void *context;
    /* Patch embedding: the first hidden state float [tokens][width] of a step. */
    bool (*embed)(void *context, const float *latent, float *hidden, hvdc_failure *failure);
    /* An expert's own text projection. */
    bool (*project_text)(void *context, uint32_t expert, const float *embeds, float *text, hvdc_failure *failure);
    /* After a step's last block: the head of the step's expert, and Euler: next = latent + v * (sigma_next - sigma).
     * `latent` and `next` do not overlap: the old one stays intact, so that a step can be done again. */
    bool (*advance)(void *context, uint32_t step, const float *hidden, const float *latent, float *next,
                    hvdc_failure *failure);
} hvdc_host_ops;

enum hvdc_mode {
    HVDC_MODE_NPU = 0, /* everything in the owner; no worker */
    HVDC_MODE_GPU,     /* all blocks in the worker, decoding in the owner */
    HVDC_MODE_HETERO,  /* [0, cut) in the worker, the rest in the owner */
    HVDC_MODE_DP,      /* each engine takes whole videos from one queue; decoding in the owner */
    HVDC_MODE_TENSOR   /* everything in the owner, and of each linear a share of its columns in the worker */
};

const char *hvdc_mode_name(enum hvdc_mode mode);                /* "npu", "gpu", "hetero", "dp", "hetero-tensor" */
bool hvdc_mode_of_name(const char *name, enum hvdc_mode *mode); /* false for another name */

/* A cut that a policy chose, and what for: see hvdc_cut_decision. Seconds of the stream. */
typedef struct hvdc_cut_choice {
    bool made; /* false: no policy, or no GPU any more */
    double at_s, arrival_s, not_before_s;
    hvdc_rates rates;                /* as observed until then */
    uint32_t gpu_videos, npu_videos; /* of so many videos */
    hvdc_ready ready;                /* when the engines would be free for it, as far as these rates tell */
} hvdc_cut_choice;

/* How a video came to be: what a stream reports of each, and what is kept with its result. Seconds; points in time are
 * counted from the start of the stream, and 0 where nothing happened. */
typedef struct hvdc_video {
    uint32_t video;
    uint32_t cut;        /* executions [0, cut) are meant for the GPU */
    uint32_t gpu_blocks; /* executions [0, gpu_blocks) of the result are the GPU's, the others the NPU's; in mode
                          * HVDC_MODE_TENSOR: those in which the GPU had its share */
    bool recovered;      /* the GPU's process was lost meanwhile: resumed from the last step that was whole */
    bool skipped;        /* was there already: nothing was executed, all times are 0 */
    bool kept;           /* its latent was there already: it was decoded, and the times of engines and CPU are 0 */
    double started_s, finished_s;
    double gpu_s, npu_s; /* in the engines' blocks, and in slices of linears */
    double cpu_s;        /* in the functions of hvdc_host_ops, of both processes */
    double waiting_s;    /* between the handoff and its resumption; of the NPU for slices, which npu_s holds too */
    double decode_s;
    /* From the start to the end of its blocks on an engine, with what the CPU does between them: what a policy observes. */
    double gpu_stage_s, npu_stage_s;
    hvdc_cut_choice choice;
} hvdc_video;

enum hvdc_event {
    HVDC_EVENT_STARTED,  /* the worker is ready (modes with a worker), the stream starts */
    HVDC_EVENT_BLOCKS,   /* `video` has reached `position` */
    HVDC_EVENT_HANDOFF,  /* `video` crosses from GPU to NPU at `position` */
    HVDC_EVENT_DECODING, /* `done` of `total` pieces of `video` are decoded */
    HVDC_EVENT_FINISHED, /* `video` is decoded and kept; `record` says how it came to be */
    HVDC_EVENT_SKIPPED,  /* `video` had been finished before */
    HVDC_EVENT_GPU_LOST, /* `text` says what happened and how it goes on */
    HVDC_EVENT_STOPPING, /* asked to stop */
    HVDC_EVENT_CUT       /* a policy has chosen `position` as the cut of `video`; `record` holds what for */
};

typedef struct hvdc_progress {
    enum hvdc_event event;
    uint32_t video, position;
    uint64_t done, total;     /* of DECODING */
    const hvdc_video *record; /* of FINISHED, SKIPPED and CUT, else NULL */
    const char *text;         /* a sentence, or NULL */
    double at_s;              /* since the start of the stream */
    /* Of CUT: the videos before it that are not finished, in order. */
    const hvdc_in_flight *in_flight;
    uint32_t in_flight_count;
} hvdc_progress;

/* What a decoder calls after each piece of its work. */
typedef struct hvdc_decoding {
    void *context;
    /* False: the stream stops, and so does the decoder, which then fails. */
    bool (*progress)(void *context, uint64_t done, uint64_t total);
} hvdc_decoding;

/* What a stream takes and gives. */
typedef struct hvdc_stream_io {
    void *context;
    /* Fill in the initial latent and the embeds of `video`. Called in order, a video or two ahead; the same video gives
     * the same values whenever it is asked for. */
    bool (*load)(void *context, uint32_t video, float *latent, float *embeds, hvdc_failure *failure);
    /* Decode the final latent, float [tokens][latent_values]; counts as the NPU's time. What it writes is durable when it
     * returns, because then the video counts as finished. Its latent is kept meanwhile, so that a stream that is killed
     * while it decodes has nothing else to do again. NULL: nothing is decoded. */
    bool (*decode)(void *context, uint32_t video, const float *latent, const hvdc_decoding *decoding,
                   hvdc_failure *failure);
    /* Whether what `decode` would write for this latent, which is in `directory`, is there and whole; fails for what is
     * another's. Asked when a stream resumes; NULL: it always is. */
    bool (*check_decoded)(void *context, uint32_t video, const float *latent, bool *decoded, hvdc_failure *failure);
    /* NULL: silent. */
    void (*progress)(void *context, const hvdc_progress *progress);
} hvdc_stream_io;

enum hvdc_stop {
    HVDC_STOP_FINISH = 0, /* videos that have begun are finished, no others are begun; asked again: abandon */
    HVDC_STOP_ABANDON     /* stop before the next block; what has no final latent yet is dropped */
};

typedef struct hvdc_stream_options {
    enum hvdc_mode mode;
    uint32_t cut;                 /* HVDC_MODE_HETERO with policy static: 0 … steps * layers */
    double gpu_share;             /* HVDC_MODE_TENSOR: of each linear's columns, 0 to 1; 0 is mode npu */
    const char *npu_sums;         /* how `npu` adds, as it decides values: kept with results. NULL: "" */
    uint32_t videos;              /* prompts of the stream */
    uint32_t slots;               /* videos in flight; 0: as many as the mode needs (npu and tensor 1, dp 3, else 2) */
    uint32_t blocks_per_call;     /* of the engine; 0: 1. A call never crosses the end of a step */
    bool stop_when_gpu_lost;      /* else the stream goes on with the NPU alone */
    bool resume;                  /* skip videos whose results are there and verified; else a result that is there is
                                  an error */
    double start_timeout_s;       /* until the worker is ready: opening a device, compiling kernels; 0: 600 */
    double silence_timeout_s;     /* between two messages of the worker while it has work; 0: wait for ever */
    double npu_silence_timeout_s; /* of a call of the NPU's engine, of `host` or of `decode`; 0: wait for ever */
    uint64_t memory_limit_bytes;  /* slots beside the weights; 0: what the system says it has available */
    enum hvdc_stop on_stop;
    int stop_fd; /* of hvdc_stop_signals, or any that becomes readable; 0 or less: none */
    /* HVDC_MODE_HETERO: who chooses each video's cut. All videos are asked for at HVDC_EVENT_STARTED, from which deadlines
     * of an arrival count. */
    hvdc_policy_options policy;
    const char *directory;    /* results: see hvdc/result.h. NULL: none are kept */
    const char *trace;        /* path of a trace in Chrome's JSON format, or NULL */
    char *const *worker_argv; /* path and arguments, NULL-terminated; NULL in mode npu */
} hvdc_stream_options;

typedef struct hvdc_stream {
    hvdc_trajectory trajectory;
    const hvdc_shared_weights *weights; /* NULL: engines that need none */
    hvdc_engine *npu;
    hvdc_partner *partner; /* HVDC_MODE_TENSOR: the one that `npu` was opened with. Its exchange.values is how many it
                            * needs; hvdc_stream_run fills in the rest, and empties it at the end */
    hvdc_host_ops host;
    hvdc_stream_io io;
    hvdc_stream_options options;
} hvdc_stream;

/* Where an engine reads weights. */
typedef struct hvdc_weights_use {
    char import[16]; /* "host-pointer", "copy", …: how its device sees shared pages; "": not known */
    uint64_t imported_bytes, copied_bytes; /* seen through imports; copied into memory of its own */
} hvdc_weights_use;

/* `videos` has options.videos entries, by video; the caller's, or NULL. */
typedef struct hvdc_stream_report {
    hvdc_video *videos;
    uint32_t finished, skipped;
    bool gpu_lost;  /* `note` says why */
    bool npu_hangs; /* see "Threads" above */
    bool stopped;   /* by request, before all videos were finished */
    char note[HVDC_FAILURE_MESSAGE_BYTES];
    double seconds;      /* from the first block to the last result */
    double period_s;     /* between finished videos, without the first one (the fill); 0 below two videos */
    uint64_t slot_bytes; /* shared memory beside the weights: slots, and the exchange of HVDC_MODE_TENSOR */
    uint64_t gpu_engine_bytes, npu_engine_bytes; /* as the engines say */
    hvdc_weights_use gpu_weights;                /* from HVDC_EVENT_STARTED on, in modes with a worker */
} hvdc_stream_report;

/* Bytes of shared memory that a stream needs beside the weights: slots (0: as many as the mode needs), and, unless
 * `exchange_values` is 0, an exchange. */
uint64_t hvdc_stream_bytes(const hvdc_trajectory *trajectory, enum hvdc_mode mode, uint32_t slots,
                           uint64_t exchange_values);

/* Runs the stream to its end. True if every video is finished or skipped, or if it stopped because it was asked to
 * (report->stopped). False with a sentence for what is refused at the start, and for a stream that could not go on;
 * finished videos are kept either way and `report` counts them. */
bool hvdc_stream_run(const hvdc_stream *stream, hvdc_stream_report *report, hvdc_failure *failure);

/* Blocks SIGTERM and SIGINT in the calling thread and returns a descriptor that becomes readable when one comes; close
 * it at the end. -1 with a failure. Call it before any thread is started. */
int hvdc_stop_signals(hvdc_failure *failure);

/* The worker's side. */
typedef struct hvdc_worker {
    const hvdc_artifact *artifact; /* NULL: engines that need no weights */
    hvdc_trajectory trajectory;
    void *context;
    /* Makes the engine and the functions beside it, once, when the weights are there (NULL if there is no artifact).
     * Its failure is what hvdc_stream_run refuses with. The engine is closed by hvdc_worker_serve; `host->context`
     * stays the caller's. */
    bool (*open)(void *context, const hvdc_weights *weights, hvdc_engine **engine, hvdc_host_ops *host,
                 hvdc_failure *failure);
    /* What its engine has made of the weights. NULL: not known. */
    hvdc_weights_use (*weights_use)(const hvdc_engine *engine);
    /* HVDC_MODE_TENSOR: a slice of a linear by this engine, in place of its blocks. NULL: that mode is refused. */
    bool (*multiply)(hvdc_engine *engine, const hvdc_slice *slice, const hvdc_exchange *exchange,
                     hvdc_failure *failure);
} hvdc_worker;

/* A worker that cannot even serve says why with hvdc_channel_refuse, this kind, as its first message. */
#define HVDC_WORKER_SAY_NO 9u

/* Serves the owner behind HVDC_WORKER_FD until it says that the stream is over. Returns the exit status: 0, or 1 after
 * a failure, which it has told its owner and writes to stderr. */
int hvdc_worker_serve(const hvdc_worker *worker);

#ifdef __cplusplus
}
#endif

#endif
