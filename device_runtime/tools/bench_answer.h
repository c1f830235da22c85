/* Blocks whose results an artifact's answer.bin holds, executed here and compared, for hvdc_bench. */
#ifndef HVDC_BENCH_ANSWER_H
#define HVDC_BENCH_ANSWER_H

#include "hvdc/answer_file.h"
#include "hvdc/engine.h"

/* What one block execution gave. The difference is to the stored answer. */
typedef struct bench_answer {
    const char *engine;
    uint32_t expert, step, block;
    uint64_t values, different; /* values that are not the stored ones to the bit */
    double max_abs;             /* largest difference */
    double relative;            /* RMS of the difference / RMS of what the block changes; may be infinite or NaN */
    double limit;               /* of `relative`; 0: every bit decides */
    bool right;
} bench_answer;

typedef struct bench_answers {
    bench_answer of[HVDC_ANSWER_MAX];
    uint32_t count;
    bool right; /* all of them */
} bench_answers;

/* Adds the answers of an engine. `by_bits`: its sums are those of the stored answer, so that no bit may differ. */
bool bench_answer_ask(hvdc_engine *engine, enum hvdc_answer_engine kind, bool by_bits, const hvdc_answer_file *file,
                      const hvdc_artifact *artifact, bench_answers *answers, hvdc_failure *failure);

/* A table on standard output, or the JSON array of `answers` and whether all are `right`, without what is around. */
void bench_answer_print(const bench_answers *answers, bool json);

#endif
