/* What decoding a video takes, for hvdc_bench: alone, and while the GPU executes blocks. */
#ifndef HVDC_BENCH_DECODER_H
#define HVDC_BENCH_DECODER_H

#include "bench_options.h"
#include "bench_series.h"
#include "hvdc/artifact.h"

typedef struct bench_decoder bench_decoder;

/* NULL where nothing is to be decoded. A video is of the artifact's own size, and its latent all zeros: a decoder takes
 * as long for any. */
bool bench_decoder_open(const hvdc_artifact *artifact, const bench_options *options, bench_decoder **decoder,
                        hvdc_failure *failure);
void bench_decoder_close(bench_decoder *decoder);

/* As the backend calls itself. */
const char *bench_decoder_name(const bench_decoder *decoder);

bool bench_decode(bench_decoder *decoder, bench_series *series, uint32_t repeat, bench_progress *progress,
                  hvdc_failure *failure);

#endif
