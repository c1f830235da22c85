#include "blocks_partner.h"

#include <stdlib.h>

#ifdef HVDC_WITH_GPU
#include "hvdc/gpu.h"

static bool begin(void *context, const hvdc_slice *slice, hvdc_failure *failure) {
    blocks_partner *partner = context;
    partner->slice = *slice;
    return partner->face.share <= 1.0 || hvdc_fail(failure, HVDC_FAILURE_PEER, "the partner is gone");
}

static bool finish(void *context, hvdc_failure *failure) {
    const blocks_partner *partner = context;
    return hvdc_gpu_multiply(partner->gpu, &partner->slice, &partner->face.exchange, failure);
}

bool blocks_partner_open(const hvdc_weights *weights, const hvdc_grid *grid, double share, const char *kernel_cache,
                         blocks_partner *partner, hvdc_failure *failure) {
    const hvdc_gpu_options options = {.grid = {grid->frames, grid->rows, grid->columns},
                                      .cache_directory = kernel_cache};
    const hvdc_geometry *g = hvdc_artifact_geometry(weights->artifact);
    const size_t rows = (size_t)hvdc_grid_tokens(grid) + g->text_tokens;
    const size_t values = rows * ((g->width > g->ffn_width ? g->width : g->ffn_width) + HVDC_SLICE_COLUMNS);
    partner->face = (hvdc_partner){.share = share,
                                   .exchange = {.values = values,
                                                .input = malloc(values * sizeof(uint16_t)),
                                                .output = malloc(values * sizeof(float))},
                                   .context = partner,
                                   .begin = begin,
                                   .finish = finish};
    return ((partner->face.exchange.input != NULL && partner->face.exchange.output != NULL) ||
            hvdc_fail(failure, HVDC_FAILURE_MEMORY, "no memory for an exchange of %zu values", values)) &&
           hvdc_gpu_open(weights, &options, &partner->gpu, failure);
}
#else
bool blocks_partner_open(const hvdc_weights *weights, const hvdc_grid *grid, double share, const char *kernel_cache,
                         blocks_partner *partner, hvdc_failure *failure) {
    (void)weights, (void)grid, (void)share, (void)kernel_cache, (void)partner;
    return hvdc_fail(failure, HVDC_FAILURE_DEVICE, "this program was built without the executor of the GPU");
}
#endif

void blocks_partner_close(blocks_partner *partner) {
    hvdc_engine_close(partner->gpu);
    free(partner->face.exchange.input);
    free(partner->face.exchange.output);
}
