/* A finished video's latent, kept so that nobody mistakes it for another one.
 *
 * DIRECTORY/video-<6 digits>.safetensors holds one tensor, "tokens", F32 [tokens, latent_values]: the final latent in the
 * order of quant/paths/host.py. Its __metadata__ says what it was made from and how, all as text: format
 * ("hvdc-result-1"), video, artifact and input (SHA-256 in hex), mode, cut, gpu_share (17 digits),
 * npu_sums, gpu_blocks, recovered ("0" or "1"); policy, if one chose the cut; sha256, that of the tensor's bytes; and check, that of the file's text before it. A file appears whole and durable, or not at
 * all. */
#ifndef HVDC_RESULT_H
#define HVDC_RESULT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hvdc/coordinator.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HVDC_RESULT_NAME_BYTES 40
#define HVDC_RESULT_HASH_BYTES 32

/* What decides a result's values. */
typedef struct hvdc_result_key {
    uint32_t video;
    uint32_t tokens, latent_values;
    enum hvdc_mode mode;
    uint32_t cut;       /* with a policy: of this video, written and not compared */
    const char *policy; /* the name of that which chose the cut, "": none did */
    double gpu_share;
    const char *npu_sums;                     /* a word */
    uint8_t artifact[HVDC_RESULT_HASH_BYTES]; /* SHA-256 of index.bin as its header holds it; zeros: no artifact */
    uint8_t input[HVDC_RESULT_HASH_BYTES];    /* SHA-256 of the initial latent's bytes, then the embeds' */
} hvdc_result_key;

/* Name of a video's file in its directory. */
void hvdc_result_name(uint32_t video, char name[HVDC_RESULT_NAME_BYTES]);

/* Writes a result; `video` gives gpu_blocks and recovered. */
bool hvdc_result_write(const char *directory, const hvdc_result_key *key, const hvdc_video *video, const float *latent,
                       hvdc_failure *failure);

enum hvdc_result_state {
    HVDC_RESULT_ABSENT = 0,
    HVDC_RESULT_VERIFIED, /* every byte is what hvdc_result_write would write for this key */
    HVDC_RESULT_DAMAGED,  /* cut short, changed or unreadable: to be done again */
    HVDC_RESULT_OTHER     /* whole, but of another key */
};

/* Reads a result back. VERIFIED fills cut, gpu_blocks and recovered of `video`, and `latent`, float [tokens][latent_values],
 * unless it is NULL; the last two states say more in `failure`. */
enum hvdc_result_state hvdc_result_check(const char *directory, const hvdc_result_key *key, hvdc_video *video,
                                         float *latent, hvdc_failure *failure);

#ifdef __cplusplus
}
#endif

#endif
