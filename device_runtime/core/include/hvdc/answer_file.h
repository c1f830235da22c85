/* What blocks of an artifact must give on a made-up input: runtime/answer.bin, as Python wrote it. A device that gives
 * something else computes wrong numbers.
 *
 * The file is mapped read-only. Opening checks everything, hash and values included, and that the answers are of this very
 * artifact. It must not change while it is open. Pointers are valid until the close. */
#ifndef HVDC_ANSWER_FILE_H
#define HVDC_ANSWER_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "hvdc/answer_records.h"
#include "hvdc/artifact.h"
#include "hvdc/failure.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hvdc_answer_file hvdc_answer_file;

/* Of the artifact in `directory`, which is open as `artifact`. Fails with a sentence; then *file is NULL. */
bool hvdc_answer_file_open(const char *directory, const hvdc_artifact *artifact, hvdc_answer_file **file,
                           hvdc_failure *failure);

/* NULL is allowed. */
void hvdc_answer_file_close(hvdc_answer_file *file);

const hvdc_answer_header *hvdc_answer_file_header(const hvdc_answer_file *file);

/* An answer by index; NULL beyond the last one. Its values: [tokens][width] of HVDC_ANSWER_VALUE_BYTES of its engine. */
const hvdc_answer *hvdc_answer_file_answer(const hvdc_answer_file *file, uint32_t answer);
const void *hvdc_answer_file_values(const hvdc_answer_file *file, uint32_t answer);

/* The first `count` values of the made-up input of a seed and a unit. */
void hvdc_answer_make_up(uint32_t seed, float unit, float *values, uint64_t count);

#ifdef __cplusplus
}
#endif

#endif
