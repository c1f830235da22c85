/* The VAE's decoder on the device: an artifact's QNN context binaries, executed tile by tile and latent frame by latent
 * frame, and blended into whole frames. docs/DECODER.md describes the graphs, docs/FORMAT.md the records.
 *
 * Nothing is believed that can be checked here, for the libraries check next to nothing: the interface's version, the
 * SHA-256 of a binary before it is loaded, the SoC, architecture and build that it was compiled for, and name, type,
 * shape, scale and zero point of each of its tensors. A wrong size would be read or written past its end.
 *
 * Lifetime. The artifact outlives the decoder. What options point to is copied, functions and their `user` pointers are
 * not: they live as long as the decoder.
 *
 * Threads. One decoder is used by one thread at a time. QNN's log callback has no user pointer, so the last error that a
 * library logged is kept for the whole process, behind a lock. */
#ifndef HVDC_DECODER_H
#define HVDC_DECODER_H

#include <stdbool.h>
#include <stdint.h>

#include "hvdc/artifact.h"
#include "hvdc/failure.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hvdc_frame_decoder hvdc_frame_decoder;

/* Memory for one input or output. `fd` is a descriptor of exactly these bytes from offset 0 that the NPU's driver can
 * import, or -1: then the backend copies. */
typedef struct hvdc_decoder_buffer {
    void *data;
    uint64_t bytes;
    int fd;
} hvdc_decoder_buffer;

typedef struct hvdc_decoder_options {
    const char *libraries;       /* directory of QNN's libraries, absolute on Android */
    const char *backend_library; /* file in it; NULL: "libQnnHtp.so" */
    const char *system_library;  /* file in it; NULL: "libQnnSystem.so" */
    uint32_t soc, arch;          /* what this device is: QNN's SoC number and the Hexagon architecture (69, 79); 0: not
                                  * known: then binaries are only compared with the artifact and with each other */
    bool emulator;               /* the backend is the one that emulates the NPU on x86: it checks no architecture and
                                  * crashes on a binary with shared weights, so such a one is refused */

    /* Memory of inputs and outputs; both or neither. Without them it is anonymous shared memory (memfd) of the host.
     * Where the backend refuses to register it, it is given as client buffers: hvdc_decoder_facts says which. */
    bool (*allocate)(void *user, uint64_t bytes, hvdc_decoder_buffer *buffer, hvdc_failure *failure);
    void (*release)(void *user, hvdc_decoder_buffer *buffer);
    void *memory_user;

    /* Called before the first graph of a clip runs and after its last one, also after a failure: whoever holds the
     * NPU's matrix unit and VTCM gives them back, and takes them again. If giving back fails, nothing else is called.
     * Each may be NULL. */
    bool (*give_back)(void *user, hvdc_failure *failure);
    bool (*take_again)(void *user, hvdc_failure *failure);
    void *hook_user;

    /* After each latent frame of each tile; false stops the clip. NULL is allowed. */
    bool (*progress)(void *user, uint64_t done, uint64_t total);
    void *progress_user;
} hvdc_decoder_options;

/* All NULL and 0, `emulator` as this program's architecture implies: true on x86. */
hvdc_decoder_options hvdc_decoder_default_options(void);

#define HVDC_DECODER_TEXT_BYTES 256

/* What was opened. */
typedef struct hvdc_decoder_facts {
    char backend_build[HVDC_DECODER_TEXT_BYTES]; /* of the loaded backend, as "v2.51.0.260929181845" */
    char binary_build[HVDC_DECODER_TEXT_BYTES];  /* of the compiler that made the binaries; the newest of several */
    char memory[HVDC_DECODER_TEXT_BYTES];        /* "shared memory", or "client buffers: " and why */
    bool memory_is_shared;
    uint32_t core_api[3];     /* version of the backend's interface */
    uint32_t soc, arch;       /* of the binaries */
    uint32_t contexts;        /* context binaries */
    uint32_t contexts_loaded; /* fewer where not all fit at once: then those of one variant are loaded at a time */
    uint64_t buffer_bytes;    /* inputs and outputs */
    uint64_t clip_bytes;      /* frames and blending of the clip that was decoded last */
} hvdc_decoder_facts;

/* A final latent, as the transformer leaves it: float [channels][frames][rows][columns], all finite, at least a tile. */
typedef struct hvdc_decoder_latent {
    const float *values;
    uint32_t channels, frames, rows, columns;
} hvdc_decoder_latent;

/* One whole frame: uint8 [height][width][3], RGB, valid during the call; `frame` counts from 0 in order. The frames come
 * while the last tile is decoded. False stops the clip, with the failure that was filled. */
typedef bool (*hvdc_decoder_sink)(void *user, uint32_t frame, const uint8_t *rgb, hvdc_failure *failure);

/* Opens an artifact's decoder: loads the libraries and binaries, checks everything, allocates all inputs and outputs.
 * On failure *decoder is NULL and nothing is left behind. */
bool hvdc_frame_decoder_open(const hvdc_artifact *artifact, const hvdc_decoder_options *options,
                             hvdc_frame_decoder **decoder, hvdc_failure *failure);

/* NULL is allowed. */
void hvdc_frame_decoder_close(hvdc_frame_decoder *decoder);

void hvdc_frame_decoder_facts(const hvdc_frame_decoder *decoder, hvdc_decoder_facts *facts);

/* Frames, height and width that a latent of this size gives: 1 + temporal_scale * (frames - 1), and spatial_scale times
 * rows and columns. False for a latent that does not fit. */
bool hvdc_frame_decoder_size(const hvdc_frame_decoder *decoder, const hvdc_decoder_latent *latent, uint32_t size[3],
                             hvdc_failure *failure);

/* hvdc_decoder_facts.clip_bytes of a clip of this size, whose values are not looked at, before it is decoded. */
bool hvdc_frame_decoder_forecast(const hvdc_frame_decoder *decoder, const hvdc_decoder_latent *latent, uint64_t *bytes,
                                 hvdc_failure *failure);

/* Decodes a clip. What a pixel becomes: exporters/decoder/blending.py blends neighbouring tiles in FP32, and (x + 1) / 2,
 * clamped to [0, 1], is rounded to the nearest of 255 steps. */
bool hvdc_frame_decoder_decode(hvdc_frame_decoder *decoder, const hvdc_decoder_latent *latent, hvdc_decoder_sink sink,
                               void *sink_user, hvdc_failure *failure);

#ifdef __cplusplus
}
#endif

#endif
