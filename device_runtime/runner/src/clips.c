#define _POSIX_C_SOURCE 200809L

#include "clips.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hvdc/decoder.h"
#include "hvdc/frames_file.h"
#include "hvdc/host.h"

struct hvdc_clips {
    const hvdc_artifact *artifact;
    const char *directory;
    hvdc_grid grid;
    hvdc_frame_decoder *decoder;
    hvdc_decoder_latent latent; /* its values are the clips' own */
    float *values;
    uint32_t size[3]; /* frames, height, width */
    uint64_t latent_bytes, forecast_clip_bytes;
    bool emulator;
    char name[HVDC_FRAMES_DECODER_BYTES];
    const hvdc_decoding *decoding; /* of the clip that is decoded now */
};

static bool more(void *user, uint64_t done, uint64_t total) {
    const hvdc_clips *clips = user;
    return clips->decoding == NULL || clips->decoding->progress(clips->decoding->context, done, total);
}

static hvdc_decoder_options decoder_options(const hvdc_options *options, hvdc_clips *clips) {
    hvdc_decoder_options given = hvdc_decoder_default_options();
    given.libraries = options->qnn_libraries;
    given.backend_library = options->qnn_backend;
    given.system_library = options->qnn_system;
    given.soc = options->soc;
    given.arch = options->arch;
    if (options->emulator != HVDC_EMULATOR_AS_BUILT) given.emulator = options->emulator == HVDC_EMULATOR_YES;
    /* give_back and take_again stay NULL: the portable build of the NPU's engine computes on processors, and holds
     * neither a matrix unit nor VTCM that the decoder would wait for. */
    given.progress = more;
    given.progress_user = clips;
    return given;
}

/* Into a file's line of JSON: printable, and without what JSON escapes. */
static void name_decoder(hvdc_clips *clips, const char *build) {
    (void)snprintf(clips->name, sizeof clips->name, "QNN %.64s on %s", build,
                   clips->emulator ? "the x86 emulator of the NPU" : "the NPU");
    for (char *at = clips->name; *at != 0; at++)
        if (*at < ' ' || *at > '~' || *at == '"' || *at == '\\') *at = '?';
}

static hvdc_frames_key key_of(const hvdc_clips *clips, uint32_t video, const float *latent) {
    hvdc_frames_key key = {.video = video, .frames = clips->size[0], .height = clips->size[1], .width = clips->size[2]};
    hvdc_frames_key_latent(
        &key, latent,
        (size_t)hvdc_grid_tokens(&clips->grid) * hvdc_token_width(hvdc_artifact_geometry(clips->artifact)));
    memcpy(key.decoder, clips->name, sizeof key.decoder);
    memcpy(key.artifact, hvdc_artifact_header(clips->artifact)->index_sha256, sizeof key.artifact);
    return key;
}

static bool open_decoder(hvdc_clips *clips, const hvdc_options *options, hvdc_failure *failure) {
    const hvdc_geometry *g = hvdc_artifact_geometry(clips->artifact);
    const hvdc_decoder_options given = decoder_options(options, clips);
    hvdc_decoder_facts facts;
    if (!hvdc_grid_resolve(clips->artifact, NULL, &clips->grid, failure) ||
        !hvdc_frame_decoder_open(clips->artifact, &given, &clips->decoder, failure))
        return false;
    clips->latent = (hvdc_decoder_latent){.channels = g->out_channels,
                                          .frames = clips->grid.frames * g->patch[0],
                                          .rows = clips->grid.rows * g->patch[1],
                                          .columns = clips->grid.columns * g->patch[2]};
    if (!hvdc_frame_decoder_size(clips->decoder, &clips->latent, clips->size, failure) ||
        !hvdc_frame_decoder_forecast(clips->decoder, &clips->latent, &clips->forecast_clip_bytes, failure))
        return false;
    clips->latent_bytes = (uint64_t)hvdc_grid_tokens(&clips->grid) * hvdc_token_width(g) * sizeof *clips->values;
    clips->values = calloc(1, (size_t)clips->latent_bytes);
    if (clips->values == NULL)
        return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "there is no memory for a latent that is decoded");
    clips->latent.values = clips->values;
    clips->emulator = given.emulator;
    hvdc_frame_decoder_facts(clips->decoder, &facts);
    name_decoder(clips, facts.backend_build);
    return true;
}

bool hvdc_clips_open(const hvdc_options *options, const hvdc_artifact *artifact, uint32_t videos, hvdc_clips **made,
                     hvdc_failure *failure) {
    *made = NULL;
    if (options->qnn_libraries == NULL) return true;
    if (!options->resume && !hvdc_frames_check_none(options->output, videos, failure)) return false;
    hvdc_clips *clips = calloc(1, sizeof *clips);
    if (clips == NULL) return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "there is no memory for a decoder");
    clips->artifact = artifact;
    clips->directory = options->output;
    if (open_decoder(clips, options, failure)) {
        *made = clips;
        return true;
    }
    hvdc_clips_close(clips);
    return false;
}

void hvdc_clips_close(hvdc_clips *clips) {
    if (clips == NULL) return;
    hvdc_frame_decoder_close(clips->decoder);
    free(clips->values);
    free(clips);
}

void hvdc_clips_describe(const hvdc_clips *clips, hvdc_clips_facts *facts) {
    hvdc_decoder_facts found;
    hvdc_frame_decoder_facts(clips->decoder, &found);
    *facts =
        (hvdc_clips_facts){.emulator = clips->emulator,
                           .contexts = found.contexts,
                           .contexts_loaded = found.contexts_loaded,
                           .buffer_bytes = found.buffer_bytes,
                           .clip_bytes = found.clip_bytes,
                           .latent_bytes = clips->latent_bytes,
                           .forecast_bytes = found.buffer_bytes + clips->forecast_clip_bytes + clips->latent_bytes};
    (void)snprintf(facts->decoder, sizeof facts->decoder, "%s", clips->name);
    (void)snprintf(facts->binary_build, sizeof facts->binary_build, "%s", found.binary_build);
    (void)snprintf(facts->memory, sizeof facts->memory, "%s", found.memory);
}

static bool put(void *user, uint32_t frame, const uint8_t *rgb, hvdc_failure *failure) {
    (void)frame;
    return hvdc_frames_put(user, rgb, failure);
}

bool hvdc_clips_decode(void *context, uint32_t video, const float *latent, const hvdc_decoding *decoding,
                       hvdc_failure *failure) {
    hvdc_clips *clips = context;
    hvdc_frames_writer *writer;
    hvdc_failure why = {.kind = HVDC_FAILURE_NONE};
    const hvdc_frames_key key = key_of(clips, video, latent);
    if (!hvdc_frames_begin(clips->directory, &key, &writer, failure)) return false;
    hvdc_to_latent(hvdc_artifact_geometry(clips->artifact), &clips->grid, latent, clips->values);
    clips->decoding = decoding;
    bool decoded = hvdc_frame_decoder_decode(clips->decoder, &clips->latent, put, writer, &why);
    clips->decoding = NULL;
    if (decoded) return hvdc_frames_end(writer, failure);
    hvdc_frames_drop(writer);
    return hvdc_fail(failure, why.kind, "video %" PRIu32 " cannot be decoded: %.460s", video, why.message);
}

bool hvdc_clips_check(void *context, uint32_t video, const float *latent, bool *decoded, hvdc_failure *failure) {
    const hvdc_clips *clips = context;
    const hvdc_frames_key key = key_of(clips, video, latent);
    const enum hvdc_result_state state = hvdc_frames_check(clips->directory, &key, failure);
    *decoded = state == HVDC_RESULT_VERIFIED;
    return state != HVDC_RESULT_OTHER;
}
