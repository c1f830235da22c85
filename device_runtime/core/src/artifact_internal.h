/* What an open artifact consists of. */
#ifndef HVDC_ARTIFACT_INTERNAL_H
#define HVDC_ARTIFACT_INTERNAL_H

#include "index.h"

/* A file mapped from its start to its end; data is NULL for an empty one, and for one that was not given. */
typedef struct hvdc_mapped {
    const uint8_t *data;
    uint64_t bytes;
    int fd;
} hvdc_mapped;

struct hvdc_artifact {
    hvdc_mapped index_file;
    hvdc_index index;
    hvdc_mapped *files; /* one for each file record; those from open_files on are not open */
    uint32_t open_files;
    void (*release)(hvdc_artifact *artifact); /* of whoever opened it: frees everything */
};

#endif
