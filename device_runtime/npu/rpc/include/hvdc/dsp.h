/* The NPU executor on the DSP of a Snapdragon, behind FastRPC: an hvdc_engine that calls libhvdc_skel.so, which holds the
 * engine of hvdc/npu.h. docs/HEXAGON.md says what crosses.
 *
 * The process must be able to load FastRPC's library, libcdsprpc.so of Android's vendor partition; the DSP's process is
 * an unsigned one. Weights and what RoPE needs cross once, as descriptors of shared memory. `run` works in place in
 * memory that hvdc_engine.share announced; a hidden state that lies elsewhere is copied there and back. */
#ifndef HVDC_DSP_H
#define HVDC_DSP_H

#include <stdbool.h>
#include <stdint.h>

#include "hvdc/engine.h"
#include "hvdc/npu.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HVDC_DSP_NAME "npu-dsp" /* of its engine */

#define HVDC_DSP_REPORT_BYTES 16384u

/* What the self-test of a DSP's units found. `report`: a line for each check, its name, "passed", "FAILED" or "not
 * checked", why, and what a failure means, with tabs between. */
typedef struct hvdc_dsp_findings {
    uint32_t failed, worthless; /* checks; the second: after which no result is of any worth */
    char report[HVDC_DSP_REPORT_BYTES];
} hvdc_dsp_findings;

typedef struct hvdc_dsp_line {
    char *name, *state, *why, *meaning;
} hvdc_dsp_line;

/* Takes the next line of a report apart, in place; false at its end. */
bool hvdc_dsp_next_line(char **report, hvdc_dsp_line *line);

/* All zeros: libcdsprpc.so as the system finds it, skels where DSP_LIBRARY_PATH says, one thread for each of the DSP's
 * vector contexts, what is free of the VTCM that the engine uses, the artifact's own grid. */
typedef struct hvdc_dsp_options {
    const char *library;     /* FastRPC's, a name or a path */
    const char *skel_folder; /* of hexagon-vNN-libhvdc_skel.so, unless DSP_LIBRARY_PATH is set */
    uint32_t threads;
    uint32_t vtcm_bytes;     /* this much, or a refusal; 0: as above, for hvdc_dsp_check as much as is free */
    enum hvdc_npu_sums sums; /* a DSP's own unit has one way of adding */
    hvdc_grid grid;
    /* Filled in, unless NULL, before the engine takes the units; no failure of a check is one of opening. Nothing is
     * asked of a stand-in that has no such units. */
    hvdc_dsp_findings *findings;
} hvdc_dsp_options;

/* `weights` and what it points to outlive the engine; its descriptors are shared with the DSP, and where there are none
 * (fds NULL, or -1) the bytes are copied into shared memory. `options` may be NULL. On failure *engine is NULL. */
bool hvdc_dsp_open(const hvdc_weights *weights, const hvdc_dsp_options *options, hvdc_engine **engine,
                   hvdc_failure *failure);

/* hvdc_npu_seconds of the engine on the DSP; `engine` is one that hvdc_dsp_open made. */
bool hvdc_dsp_seconds(hvdc_engine *engine, double seconds[HVDC_NPU_STAGE_COUNT], hvdc_failure *failure);

/* What the DSP said of itself when the session began. */
typedef struct hvdc_dsp_description {
    uint32_t arch; /* 79 for V79; 0 where a stand-in of the DSP is no Hexagon */
    uint32_t contexts, vtcm_bytes;
    uint32_t vtcm_held_bytes; /* of them, by the engine */
    uint64_t copied_bytes;    /* of weights that had no descriptor */
    uint64_t staged_runs;     /* calls of `run` whose hidden state had to be copied */
} hvdc_dsp_description;

const hvdc_dsp_description *hvdc_dsp_describe_engine(const hvdc_engine *engine);

/* The self-test of the DSP's units, with a session of its own; no engine may be open. Of `options`, `library`,
 * `skel_folder` and `vtcm_bytes` count; it may be NULL. */
bool hvdc_dsp_check(const hvdc_dsp_options *options, hvdc_dsp_findings *findings, hvdc_dsp_description *description,
                    hvdc_failure *failure);

/* A session that only maps memory: what the DSP takes, and how much of it. No engine may be open. Every function fails
 * with a sentence; what is mapped goes with the session. */
typedef struct hvdc_dsp_mapper hvdc_dsp_mapper;

bool hvdc_dsp_mapper_open(const hvdc_dsp_options *options, hvdc_dsp_mapper **mapper, hvdc_dsp_description *description,
                          hvdc_failure *failure);
void hvdc_dsp_mapper_close(hvdc_dsp_mapper *mapper);

/* Memory of this process by its descriptor, for reading and writing. */
bool hvdc_dsp_mapper_map(hvdc_dsp_mapper *mapper, void *data, int fd, uint64_t bytes, hvdc_failure *failure);

/* In the last one that was mapped, the DSP reads these bytes and writes the complement of each; the offset is a multiple of
 * 128. What the CPU wrote must have left its caches, and what is in them after is old. */
bool hvdc_dsp_mapper_invert(hvdc_dsp_mapper *mapper, uint64_t offset, uint64_t bytes, hvdc_failure *failure);

/* The last one that was mapped, no more. */
bool hvdc_dsp_mapper_unmap(hvdc_dsp_mapper *mapper, hvdc_failure *failure);

#ifdef __cplusplus
}
#endif

#endif
