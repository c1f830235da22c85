/* An artifact, mapped: open, validate, and what a runtime asks for. docs/FORMAT.md specifies the format.
 *
 * Lifetime. Every pointer, span and descriptor that these functions hand out belongs to the artifact and is valid until
 * hvdc_artifact_close. Data files are mapped read-only and shared, so two openings cost memory once. The files must not
 * change while an artifact is open: a file cut short under a mapping raises SIGBUS, as with any mapping.
 *
 * Errors. Functions that can fail return enum hvdc_code, HVDC_E_OK being 0, and fill `error` if it is not NULL; a failed
 * open leaves nothing behind and sets *artifact to NULL. Questions about things that the artifact does not have (a block
 * beyond the last, an unknown name) are not errors: they answer false, NULL or HVDC_NONE.
 *
 * Threads. There is no global state. One artifact may be used by any number of threads at once, until one closes it.
 *
 * Memory. An open artifact holds three allocations: itself, 24 bytes per data file, 5 bytes per tensor. Accessors do not
 * allocate. Each data file costs a descriptor and a mapping. */
#ifndef HVDC_ARTIFACT_H
#define HVDC_ARTIFACT_H

#include <stdbool.h>
#include <stdint.h>

#include "hvdc/codes.h"
#include "hvdc/records.h"
#include "hvdc/tiles.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HVDC_INDEX_NAME "index.bin"
#define HVDC_MANIFEST_NAME "manifest.json"
#define HVDC_RUNTIME_NAME "runtime" /* the one folder that an artifact may hold beside what index.bin names */
#define HVDC_ERROR_FILE_BYTES 256
#define HVDC_ERROR_MESSAGE_BYTES 512

/* The first fault: its code, the file inside the artifact (or the artifact itself), and a line of text: where in the
 * file, what was expected, what was found. Texts are cut off at the size of their fields. */
typedef struct hvdc_error {
    enum hvdc_code code;
    char file[HVDC_ERROR_FILE_BYTES];
    char message[HVDC_ERROR_MESSAGE_BYTES];
} hvdc_error;

/* Bytes of a data file: mapped at `data`; the same bytes are [offset, offset + bytes) of the file behind `fd`, whose
 * path is relative to the artifact. A driver that imports memory by descriptor uses fd and offset, everything else uses
 * data. */
typedef struct hvdc_span {
    const uint8_t *data;
    uint64_t bytes;
    uint64_t offset;
    int fd;
    const char *path;
} hvdc_span;

typedef struct hvdc_artifact hvdc_artifact;

/* "INDEX_MAGIC", or "UNKNOWN". */
const char *hvdc_code_name(enum hvdc_code code);
/* A sentence for people, without full stop. */
const char *hvdc_code_meaning(enum hvdc_code code);

/* Open the artifact in a directory and check everything but the contents of its data files: index.bin in full, the hash
 * of manifest.json, that every data file is there with its recorded size, and that the directory holds nothing else. */
enum hvdc_code hvdc_artifact_open(const char *directory, hvdc_artifact **artifact, hvdc_error *error);

/* A data file in memory that somebody else fills; data NULL: not here. */
typedef struct hvdc_memory_file {
    const uint8_t *data;
    uint64_t bytes;
} hvdc_memory_file;

#define HVDC_MEMORY_FILE_ALIGNMENT 128u

/* The same artifact without a directory, as the DSP has it: index.bin at `index`, at a multiple of 8 bytes, is checked
 * in full; its data files are `files`, in the order of its file records, each NULL or with exactly its recorded size at a
 * multiple of HVDC_MEMORY_FILE_ALIGNMENT bytes. All outlive the artifact. Spans have no descriptor (-1); for what lies
 * in a file that is not here, accessors answer false or NULL. Nothing is hashed but the index. */
enum hvdc_code hvdc_artifact_attach(const void *index, uint64_t index_bytes, const hvdc_memory_file *files,
                                    uint32_t file_count, hvdc_artifact **artifact, hvdc_error *error);

/* Release everything. NULL is allowed. */
void hvdc_artifact_close(hvdc_artifact *artifact);

/* Check every byte of the data files: hashes, padding, scales, no -128, no NaN or Inf, activation
 * scales that an engine can use; of a decoder's files the hashes only. Reads everything twice. */
enum hvdc_code hvdc_artifact_validate_deep(const hvdc_artifact *artifact, hvdc_error *error);

const hvdc_header *hvdc_artifact_header(const hvdc_artifact *artifact);
const hvdc_geometry *hvdc_artifact_geometry(const hvdc_artifact *artifact);

uint32_t hvdc_artifact_file_count(const hvdc_artifact *artifact);
uint32_t hvdc_artifact_tensor_count(const hvdc_artifact *artifact);
uint32_t hvdc_artifact_step_count(const hvdc_artifact *artifact);

/* Records by index; NULL beyond the last one. A tensor's index is its id. */
const hvdc_file *hvdc_artifact_file(const hvdc_artifact *artifact, uint32_t file);
const hvdc_tensor *hvdc_artifact_tensor(const hvdc_artifact *artifact, uint32_t tensor);
const hvdc_step *hvdc_artifact_step(const hvdc_artifact *artifact, uint32_t step);

/* The string at a record's reference; NULL for HVDC_NONE. Ask only for references of this artifact's own records. */
const char *hvdc_artifact_text(const hvdc_artifact *artifact, uint32_t reference);

/* Id of a tensor by name, or HVDC_NONE: a binary search. */
uint32_t hvdc_artifact_find(const hvdc_artifact *artifact, const char *name);

/* Id of "blocks.<block>.<linear>.<suffix>", say (3, "attn1.to_q", "lora_A.weight_scale"), or HVDC_NONE. */
uint32_t hvdc_artifact_find_in_block(const hvdc_artifact *artifact, uint32_t block, const char *linear,
                                     const char *suffix);

/* A whole data file; the stored bytes of a tensor, padding included. */
bool hvdc_artifact_file_span(const hvdc_artifact *artifact, uint32_t file, hvdc_span *span);
bool hvdc_artifact_tensor_span(const hvdc_artifact *artifact, uint32_t tensor, hvdc_span *span);

/* The region of a block: everything both engines read of it. */
bool hvdc_artifact_region(const hvdc_artifact *artifact, uint32_t block, hvdc_span *span);

/* The file that holds the adapter of a block, perhaps with other blocks'; false if there is one expert only. */
bool hvdc_artifact_adapter(const hvdc_artifact *artifact, uint32_t block, hvdc_span *span);

/* Both feed-forward weights of a block as one contiguous span of its region, so that they can be staged at once. */
bool hvdc_artifact_ffn_pair(const hvdc_artifact *artifact, uint32_t block, hvdc_span *span);

/* AdaLN row of a step and block, or NULL: 6 * width floats: shift, scale, gate of attention, then of the feed-forward. */
const float *hvdc_artifact_adaln(const hvdc_artifact *artifact, uint32_t step, uint32_t block);

/* Row of a step's output head, or NULL: 2 * width floats: shift, scale. */
const float *hvdc_artifact_head(const hvdc_artifact *artifact, uint32_t step);

/* Where the activation scales come from and how they were chosen (`mode`), or NULL: then the artifact is uncalibrated,
 * and an engine that quantises activations cannot execute it. */
const hvdc_calibration *hvdc_artifact_calibration(const hvdc_artifact *artifact);

/* GEMM inputs: 0 if uncalibrated. Their records by index; NULL beyond the last one. The index of the one of that name,
 * or HVDC_NONE: a linear search, so ask once. */
uint32_t hvdc_artifact_gemm_input_count(const hvdc_artifact *artifact);
const hvdc_gemm_input *hvdc_artifact_gemm_input(const hvdc_artifact *artifact, uint32_t input);
uint32_t hvdc_artifact_find_gemm_input(const hvdc_artifact *artifact, const char *name);

/* Scales of a step and block, one for each GEMM input, or NULL. A scale is 0 where the input does not exist. */
const float *hvdc_artifact_activation_scales(const hvdc_artifact *artifact, uint32_t step, uint32_t block);

/* One of them; 0 if there is none. */
float hvdc_artifact_activation_scale(const hvdc_artifact *artifact, uint32_t step, uint32_t block, uint32_t input);

/* The VAE's decoder, or NULL: then latents stay latents. It has `graphs` graphs and `ports` ports. */
const hvdc_decoder *hvdc_artifact_decoder(const hvdc_artifact *artifact);

/* Their records by index; NULL beyond the last one. Graphs of a variant run in the order of their indices. Ports of a
 * graph start at its first_port: inputs, then outputs. The first input is the latent, or what the graph before writes
 * first; each further one is a cache, which the call before wrote as "next_" and the input's name. The index of the
 * graph of a name, or HVDC_NONE. */
const hvdc_decoder_graph *hvdc_artifact_decoder_graph(const hvdc_artifact *artifact, uint32_t graph);
const hvdc_decoder_port *hvdc_artifact_decoder_port(const hvdc_artifact *artifact, uint32_t port);
uint32_t hvdc_artifact_find_decoder_graph(const hvdc_artifact *artifact, const char *name);

/* What the decoder's binaries were compiled for, by index; NULL beyond the last one, and for all of them in an artifact
 * of a version before 1.3, which does not say. */
const hvdc_decoder_binary *hvdc_artifact_decoder_binary(const hvdc_artifact *artifact, uint32_t binary);

/* A file of the decoder (`model`, `binary`, `encodings` are tensors), exactly as others wrote and read it, after its
 * SHA-256 was compared: a context binary holds no checksum of its own, and a driver believes it, so ask here each time
 * before one is loaded. DATA_HASH, or MISSING_FILE for a tensor that is no such file; then the span is empty. */
enum hvdc_code hvdc_artifact_opaque(const hvdc_artifact *artifact, uint32_t tensor, hvdc_span *span, hvdc_error *error);

#ifdef __cplusplus
}
#endif

#endif
