/* Final latents become frames, by the artifact's own decoder in the process of the NPU: OUT/video-NNNNNN.ppm, as
 * hvdc/frames_file.h describes it. */
#ifndef HVDC_RUNNER_CLIPS_H
#define HVDC_RUNNER_CLIPS_H

#include "hvdc/coordinator.h"
#include "options.h"

typedef struct hvdc_clips hvdc_clips;

/* What opened: a copy of hvdc_decoder_facts where this program has a decoder, for the report. */
typedef struct hvdc_clips_facts {
    char decoder[128];      /* who decodes, as the frames' files say it */
    char binary_build[256]; /* of the compiler */
    char memory[256];       /* of inputs and outputs: "shared memory", or "client buffers: " and why */
    bool emulator;
    uint32_t contexts, contexts_loaded;
    uint64_t buffer_bytes, clip_bytes; /* the second: of the clip that was decoded last */
    uint64_t latent_bytes;             /* in the decoder's order */
    uint64_t forecast_bytes;           /* all three, of any clip of the stream */
} hvdc_clips_facts;

/* Opens the decoder that options->qnn_libraries asks for; without it *clips is NULL. Fails for what could not decode
 * the artifact's latents, and, unless the stream resumes, for frames of one of its `videos` that are there. The options
 * and the artifact outlive it. */
bool hvdc_clips_open(const hvdc_options *options, const hvdc_artifact *artifact, uint32_t videos, hvdc_clips **clips,
                     hvdc_failure *failure);

/* NULL is allowed. */
void hvdc_clips_close(hvdc_clips *clips);

void hvdc_clips_describe(const hvdc_clips *clips, hvdc_clips_facts *facts);

/* hvdc_stream_io's decode and check_decoded; the context is the clips. The first is called by the NPU's thread, the
 * second by another, at the same time. */
bool hvdc_clips_decode(void *clips, uint32_t video, const float *latent, const hvdc_decoding *decoding,
                       hvdc_failure *failure);
bool hvdc_clips_check(void *clips, uint32_t video, const float *latent, bool *decoded, hvdc_failure *failure);

#endif
