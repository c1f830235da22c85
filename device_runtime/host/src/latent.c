/* Grids, and tokens from a latent and back. */
#include "hvdc/host.h"

bool hvdc_grid_resolve(const hvdc_artifact *artifact, const hvdc_grid *grid, hvdc_grid *resolved,
                       hvdc_failure *failure) {
    const hvdc_geometry *g = hvdc_artifact_geometry(artifact);
    if (grid == NULL || (grid->frames == 0u && grid->rows == 0u && grid->columns == 0u)) {
        *resolved = (hvdc_grid){g->latent[0] / g->patch[0], g->latent[1] / g->patch[1], g->latent[2] / g->patch[2]};
    } else {
        *resolved = *grid;
    }
    const uint32_t limit = HVDC_GRID_AXIS_MAX;
    uint64_t tokens = (uint64_t)resolved->frames * resolved->rows;
    if (tokens == 0u || resolved->columns == 0u || resolved->frames > limit || resolved->rows > limit ||
        resolved->columns > limit || tokens * resolved->columns > HVDC_GRID_TOKENS_MAX) {
        return hvdc_fail(
            failure, HVDC_FAILURE_USAGE,
            "a grid of %u x %u x %u tokens is empty, has an axis of more than %u, or is above 2^24 tokens; give "
            "frames, rows and columns of tokens, or none for the artifact's own",
            (unsigned)resolved->frames, (unsigned)resolved->rows, (unsigned)resolved->columns, (unsigned)limit);
    }
    return true;
}

uint32_t hvdc_grid_tokens(const hvdc_grid *grid) { return grid->frames * grid->rows * grid->columns; }

uint32_t hvdc_token_width(const hvdc_geometry *geometry) {
    return geometry->patch[0] * geometry->patch[1] * geometry->patch[2] * geometry->out_channels;
}

/* Calls `move` for every value of a clip, with its place in the latent and in the tokens. */
static void for_each_value(const hvdc_geometry *geometry, const hvdc_grid *grid,
                           void (*move)(void *context, size_t latent, size_t token), void *context) {
    const uint32_t *p = geometry->patch;
    size_t columns = (size_t)grid->columns * p[2], plane = columns * grid->rows * p[1];
    size_t channel = plane * grid->frames * p[0], token = 0;
    for (uint32_t t = 0; t < grid->frames; t++) {
        for (uint32_t h = 0; h < grid->rows; h++) {
            for (uint32_t w = 0; w < grid->columns; w++) {
                for (uint32_t i = 0; i < p[0] * p[1] * p[2]; i++) {
                    uint32_t pt = i / (p[1] * p[2]), ph = i / p[2] % p[1], pw = i % p[2];
                    size_t at =
                        ((size_t)t * p[0] + pt) * plane + ((size_t)h * p[1] + ph) * columns + (size_t)w * p[2] + pw;
                    for (uint32_t c = 0; c < geometry->out_channels; c++) {
                        move(context, at + c * channel, token++);
                    }
                }
            }
        }
    }
}

struct ends {
    const float *from;
    float *to;
};

static void from_latent(void *context, size_t latent, size_t token) {
    struct ends *ends = context;
    ends->to[token] = ends->from[latent];
}

static void from_tokens(void *context, size_t latent, size_t token) {
    struct ends *ends = context;
    ends->to[latent] = ends->from[token];
}

void hvdc_to_tokens(const hvdc_geometry *geometry, const hvdc_grid *grid, const float *latent, float *tokens) {
    for_each_value(geometry, grid, from_latent, &(struct ends){latent, tokens});
}

void hvdc_to_latent(const hvdc_geometry *geometry, const hvdc_grid *grid, const float *tokens, float *latent) {
    for_each_value(geometry, grid, from_tokens, &(struct ends){tokens, latent});
}
