/* What the CPU does around the blocks: tokens from a latent, patch embedding, text projection, output head and Euler
 * step, and RoPE's rotations. Values are FP32; sums are FP64 and rounded once, as in quant/paths/host.py, so that they
 * depend neither on their order nor on the processor, but for a sum in many millions that lies next to a half.
 *
 * A latent [channels][frames][rows][columns] is kept as tokens [M][token_width] from the first step to the last ("the
 * running latent"): M in the order frame, row, column; within a token patch first, channel last. */
#ifndef HVDC_HOST_H
#define HVDC_HOST_H

#include <stdbool.h>
#include <stdint.h>

#include "hvdc/failure.h"
#include "hvdc/pool.h"
#include "hvdc/weights.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Far above what a model was trained for. */
#define HVDC_GRID_AXIS_MAX (1u << 16)
#define HVDC_GRID_TOKENS_MAX (1u << 24)

/* Token positions of a clip. */
typedef struct hvdc_grid {
    uint32_t frames, rows, columns;
} hvdc_grid;

/* `grid`, or where it is all zeros, the artifact's own. Fails for one that is empty, or that has too many tokens. */
bool hvdc_grid_resolve(const hvdc_artifact *artifact, const hvdc_grid *grid, hvdc_grid *resolved,
                       hvdc_failure *failure);

/* M = frames · rows · columns of a resolved grid. */
uint32_t hvdc_grid_tokens(const hvdc_grid *grid);

/* Channels of a token: patch volume · latent channels. */
uint32_t hvdc_token_width(const hvdc_geometry *geometry);

/* Latent [channels][frames · patch[0]][rows · patch[1]][columns · patch[2]] to tokens [M][token_width], and back. */
void hvdc_to_tokens(const hvdc_geometry *geometry, const hvdc_grid *grid, const float *latent, float *tokens);
void hvdc_to_latent(const hvdc_geometry *geometry, const hvdc_grid *grid, const float *tokens, float *latent);

/* RoPE: cosine and sine, FP32 [M][head_dim / 2][2], of position · frequency for each adjacent pair of channels
 * (frame, row, then column axis), from FP64 angles. To be freed by the caller. */
bool hvdc_rope_rotations(const hvdc_weights *weights, const hvdc_grid *grid, float **rotations, hvdc_failure *failure);

typedef struct hvdc_host hvdc_host;

/* Weights of the embedding and of both experts' heads are rearranged once, here. `weights` (copied) and what it
 * points to, and the pool, outlive the host. `grid` as for hvdc_grid_resolve. */
bool hvdc_host_open(const hvdc_weights *weights, const hvdc_grid *grid, hvdc_pool *pool, hvdc_host **host,
                    hvdc_failure *failure);

/* NULL is allowed. */
void hvdc_host_close(hvdc_host *host);

/* Bytes that it holds beside the weights. */
uint64_t hvdc_host_memory_bytes(const hvdc_host *host);

/* Tokens of a clip, its grid. */
const hvdc_grid *hvdc_host_grid(const hvdc_host *host);

/* An expert's own text projection: embeds [text_tokens][text_width] to text [text_tokens][width]. Fails if there is
 * no such expert, or no memory. */
bool hvdc_host_project_text(hvdc_host *host, uint32_t expert, const float *embeds, float *text, hvdc_failure *failure);

/* Patch embedding: the running latent [M][token_width] to the first hidden state [M][width]. */
void hvdc_host_embed(hvdc_host *host, const float *tokens, float *hidden);

/* The head of the step's expert: hidden [M][width] to the velocity of the running latent [M][token_width]. */
bool hvdc_host_velocity(hvdc_host *host, uint32_t step, const float *hidden, float *velocity, hvdc_failure *failure);

/* The same and the Euler step with it, in place: tokens += velocity · (σ_next − σ). */
bool hvdc_host_euler(hvdc_host *host, uint32_t step, const float *hidden, float *tokens, hvdc_failure *failure);

#ifdef __cplusplus
}
#endif

#endif
