/* Where an engine finds the bytes of an artifact's tensors: in the artifact's own mapping, or in shared memory that
 * another process filled. Engines read weights through this alone, so that neither knows which it is. */
#ifndef HVDC_WEIGHTS_H
#define HVDC_WEIGHTS_H

#include <stdbool.h>
#include <stdint.h>

#include "hvdc/artifact.h"
#include "hvdc/failure.h"

#ifdef __cplusplus
extern "C" {
#endif

/* `files[i]` is the first byte of the artifact's data file i, or NULL where the artifact's own mapping is meant; it may
 * be NULL as a whole. `fds[i]` is a descriptor of the same bytes from offset 0, for drivers that import by descriptor,
 * or -1; it may be NULL as a whole. Everything outlives whoever reads it. */
typedef struct hvdc_weights {
    const hvdc_artifact *artifact;
    const uint8_t *const *files;
    const int *fds;
} hvdc_weights;

/* One tensor: `data` holds its padded values, `record` says which they are. `file`, `offset`: where in the files. */
typedef struct hvdc_values {
    const void *data;
    uint64_t bytes;
    const hvdc_tensor *record;
    uint32_t file;
    uint64_t offset;
} hvdc_values;

/* The tensor of an id; false for HVDC_NONE and beyond the last one. */
bool hvdc_weights_tensor(const hvdc_weights *weights, uint32_t tensor, hvdc_values *values);

/* "blocks.<block>.<linear>.<suffix>", and a tensor by its whole name. Fails with a sentence that names it. */
bool hvdc_weights_in_block(const hvdc_weights *weights, uint32_t block, const char *linear, const char *suffix,
                           hvdc_values *values, hvdc_failure *failure);
bool hvdc_weights_named(const hvdc_weights *weights, const char *name, hvdc_values *values, hvdc_failure *failure);

#ifdef __cplusplus
}
#endif

#endif
