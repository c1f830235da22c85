/* A finished video's frames, with the guarantees of its latent (hvdc/result.h).
 *
 * DIRECTORY/video-<6 digits>.ppm holds binary PPM images (netpbm's P6, 8 bits, RGB) one behind the other, frame 0
 * first, which ffmpeg, ffplay, mpv and ImageMagick read as a video, and most viewers as its first frame. The first
 * image's comment is one line of JSON, all as text: format ("hvdc-frames-1"), decoder (who made them), video, frames,
 * height, width, artifact and latent (SHA-256 in hex of index.bin and of the latent's values); sha256, that of all bytes
 * behind the first image's header; and check, that of the JSON before it. A file appears whole and durable, or not at
 * all. */
#ifndef HVDC_FRAMES_FILE_H
#define HVDC_FRAMES_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hvdc/result.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HVDC_FRAMES_DECODER_BYTES 128

/* What decides frames. Each size is 1 or more. */
typedef struct hvdc_frames_key {
    uint32_t video, frames, height, width;
    char decoder[HVDC_FRAMES_DECODER_BYTES];  /* printable ASCII without quotes and backslashes */
    uint8_t artifact[HVDC_RESULT_HASH_BYTES]; /* as in hvdc_result_key */
    uint8_t latent[HVDC_RESULT_HASH_BYTES];   /* SHA-256 of float [tokens][latent_values]: hvdc_frames_key_latent */
} hvdc_frames_key;

/* Fills in key->latent. */
void hvdc_frames_key_latent(hvdc_frames_key *key, const float *latent, size_t values);

/* Name of a video's file in its directory. */
void hvdc_frames_name(uint32_t video, char name[HVDC_RESULT_NAME_BYTES]);

typedef struct hvdc_frames_writer hvdc_frames_writer;

/* Begins a file that nobody sees before hvdc_frames_end. On failure *writer is NULL. */
bool hvdc_frames_begin(const char *directory, const hvdc_frames_key *key, hvdc_frames_writer **writer,
                       hvdc_failure *failure);

/* The next frame: uint8 [height][width][3], RGB. */
bool hvdc_frames_put(hvdc_frames_writer *writer, const uint8_t *rgb, hvdc_failure *failure);

/* The file is there, durably; false if a frame is missing, too. Closes the writer either way. */
bool hvdc_frames_end(hvdc_frames_writer *writer, hvdc_failure *failure);

/* Closes the writer; nothing of the file is left. NULL is allowed. */
void hvdc_frames_drop(hvdc_frames_writer *writer);

/* Fails if a file with the frames of one of a stream's videos is there, whatever it holds. */
bool hvdc_frames_check_none(const char *directory, uint32_t videos, hvdc_failure *failure);

/* Reads a file back: VERIFIED if every byte of it is of this key and as it was written; DAMAGED and OTHER say more in
 * `failure`. */
enum hvdc_result_state hvdc_frames_check(const char *directory, const hvdc_frames_key *key, hvdc_failure *failure);

#ifdef __cplusplus
}
#endif

#endif
