#include "bench_decoder.h"

#include <stdio.h>
#include <stdlib.h>

#ifdef HVDC_WITH_DECODER
#include "hvdc/clock.h"
#include "hvdc/decoder.h"
#include "hvdc/host.h"

struct bench_decoder {
    hvdc_frame_decoder *decoder;
    hvdc_decoder_latent latent; /* its values are the decoder's own */
    float *values;
    char name[HVDC_DECODER_TEXT_BYTES + 64];
};

static bool open_decoder(const hvdc_artifact *artifact, const bench_options *options, bench_decoder *d,
                         hvdc_failure *failure) {
    const hvdc_geometry *g = hvdc_artifact_geometry(artifact);
    hvdc_decoder_options given = hvdc_decoder_default_options();
    hvdc_decoder_facts facts;
    hvdc_grid grid;
    given.libraries = options->qnn_libraries;
    given.soc = options->soc;
    given.arch = options->arch;
    if (!hvdc_grid_resolve(artifact, NULL, &grid, failure) ||
        !hvdc_frame_decoder_open(artifact, &given, &d->decoder, failure))
        return false;
    d->latent = (hvdc_decoder_latent){.channels = g->out_channels,
                                      .frames = grid.frames * g->patch[0],
                                      .rows = grid.rows * g->patch[1],
                                      .columns = grid.columns * g->patch[2]};
    d->values = calloc((size_t)hvdc_grid_tokens(&grid) * hvdc_token_width(g), sizeof *d->values);
    if (d->values == NULL) return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "there is no memory for a latent");
    d->latent.values = d->values;
    hvdc_frame_decoder_facts(d->decoder, &facts);
    (void)snprintf(d->name, sizeof d->name, "QNN %s on %s", facts.backend_build,
                   given.emulator ? "the x86 emulator of the NPU" : "the NPU");
    return true;
}

bool bench_decoder_open(const hvdc_artifact *artifact, const bench_options *options, bench_decoder **decoder,
                        hvdc_failure *failure) {
    *decoder = NULL;
    if (options->qnn_libraries == NULL) return true;
    bench_decoder *d = calloc(1, sizeof *d);
    if (d == NULL) return hvdc_fail(failure, HVDC_FAILURE_MEMORY, "there is no memory for a decoder");
    if (!open_decoder(artifact, options, d, failure)) {
        bench_decoder_close(d);
        return false;
    }
    *decoder = d;
    return true;
}

void bench_decoder_close(bench_decoder *d) {
    if (d == NULL) return;
    hvdc_frame_decoder_close(d->decoder);
    free(d->values);
    free(d);
}

const char *bench_decoder_name(const bench_decoder *d) { return d->name; }

static bool drop(void *user, uint32_t frame, const uint8_t *rgb, hvdc_failure *failure) {
    (void)user, (void)frame, (void)rgb, (void)failure;
    return true;
}

bool bench_decode(bench_decoder *d, bench_series *series, uint32_t repeat, bench_progress *progress,
                  hvdc_failure *failure) {
    for (uint32_t i = 0; i < repeat; i++) {
        const uint64_t start = hvdc_clock_ns();
        if (!hvdc_frame_decoder_decode(d->decoder, &d->latent, drop, NULL, failure)) return false;
        series->seconds[series->count++] = (double)(hvdc_clock_ns() - start) * 1e-9;
        bench_progress_say(progress, "decode");
    }
    return true;
}
#else
bool bench_decoder_open(const hvdc_artifact *artifact, const bench_options *options, bench_decoder **decoder,
                        hvdc_failure *failure) {
    (void)artifact;
    *decoder = NULL;
    return options->qnn_libraries == NULL ||
           hvdc_fail(failure, HVDC_FAILURE_USAGE, "this program was built without the decoder");
}
void bench_decoder_close(bench_decoder *decoder) { (void)decoder; }
const char *bench_decoder_name(const bench_decoder *decoder) {
    (void)decoder;
    return "";
}
bool bench_decode(bench_decoder *decoder, bench_series *series, uint32_t repeat, bench_progress *progress,
                  hvdc_failure *failure) {
    (void)decoder, (void)series, (void)repeat, (void)progress;
    return hvdc_fail(failure, HVDC_FAILURE_USAGE, "this program was built without the decoder");
}
#endif
