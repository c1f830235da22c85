/* In place of clips.c in a build without the decoder. */
#include "clips.h"

bool hvdc_clips_open(const hvdc_options *options, const hvdc_artifact *artifact, uint32_t videos, hvdc_clips **clips,
                     hvdc_failure *failure) {
    (void)artifact, (void)videos;
    *clips = NULL;
    return options->qnn_libraries == NULL || hvdc_fail(failure, HVDC_FAILURE_USAGE,
                                                       "this program was built without the decoder: leave out "
                                                       "--qnn-libraries, or build it with device_runtime/decoder");
}

void hvdc_clips_close(hvdc_clips *clips) { (void)clips; }

void hvdc_clips_describe(const hvdc_clips *clips, hvdc_clips_facts *facts) {
    (void)clips;
    *facts = (hvdc_clips_facts){.contexts = 0};
}

bool hvdc_clips_decode(void *clips, uint32_t video, const float *latent, const hvdc_decoding *decoding,
                       hvdc_failure *failure) {
    (void)clips, (void)video, (void)latent, (void)decoding;
    return hvdc_fail(failure, HVDC_FAILURE_USAGE, "this program was built without the decoder");
}

bool hvdc_clips_check(void *clips, uint32_t video, const float *latent, bool *decoded, hvdc_failure *failure) {
    (void)clips, (void)video, (void)latent;
    *decoded = false;
    return hvdc_fail(failure, HVDC_FAILURE_USAGE, "this program was built without the decoder");
}
