/* What both ends of shared weights consist of. */
#ifndef HVDC_SHARED_WEIGHTS_INTERNAL_H
#define HVDC_SHARED_WEIGHTS_INTERNAL_H

#include "hvdc/shared_memory.h"
#include "hvdc/shared_weights.h"

struct hvdc_shared_weights {
    const hvdc_memory_kind *kind; /* NULL: received */
    uint32_t count;               /* files of the artifact */
    hvdc_memory *memory;          /* by file */
    const uint8_t **files;
    int *fds;
    hvdc_weights view;
    uint64_t bytes;
};

/* Whether a file is copied into shared memory: what an engine may import. */
bool hvdc_is_shared_file(const hvdc_file *file);

/* An empty one, and `memory[file]` becoming part of its view. */
hvdc_shared_weights *hvdc_shared_weights_new(const hvdc_artifact *artifact, hvdc_failure *failure);
void hvdc_shared_weights_add(hvdc_shared_weights *shared, uint32_t file);

#endif
