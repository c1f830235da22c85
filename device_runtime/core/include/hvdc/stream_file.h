/* A stream directory, as Python wrote it: initial latents, prompts' embeddings, which video takes which prompt.
 *
 * DIRECTORY/stream.bin is mapped read-only. Opening checks everything: magic, version, sizes and offsets, the SHA-256 of
 * the whole file, that every video's prompt is there and every value is finite. The file must not change while it is
 * open: one cut short under a mapping raises SIGBUS. Pointers are valid until the close. */
#ifndef HVDC_STREAM_FILE_H
#define HVDC_STREAM_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "hvdc/failure.h"
#include "hvdc/stream_records.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hvdc_stream_file hvdc_stream_file;

/* Fails with a sentence; then *file is NULL. */
bool hvdc_stream_file_open(const char *directory, hvdc_stream_file **file, hvdc_failure *failure);

/* NULL is allowed. */
void hvdc_stream_file_close(hvdc_stream_file *file);

const hvdc_stream_header *hvdc_stream_file_header(const hvdc_stream_file *file);

/* A video's record, its initial latent float [tokens][latent_values], its prompt's float [text_tokens][text_width]; NULL
 * beyond the last one. */
const hvdc_stream_video *hvdc_stream_file_video(const hvdc_stream_file *file, uint32_t video);
const float *hvdc_stream_file_latent(const hvdc_stream_file *file, uint32_t video);
const float *hvdc_stream_file_embeds(const hvdc_stream_file *file, uint32_t video);

#ifdef __cplusplus
}
#endif

#endif
