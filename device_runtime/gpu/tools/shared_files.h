/* Data files in shared memory, as the process that owns the weights hands them over: for hvdc_gpu_check. */
#ifndef HVDC_GPU_SHARED_FILES_H
#define HVDC_GPU_SHARED_FILES_H

#include "hvdc/artifact.h"
#include "hvdc/gpu.h"

typedef struct shared_files {
    uint32_t count;
    const uint8_t **data; /* read-only mappings; NULL where a file is not shared */
    int *fds;
    uint64_t *bytes;
} shared_files;

/* Regions and adapters, each in an object of its own. */
bool shared_files_open(const hvdc_artifact *artifact, shared_files *files, hvdc_failure *failure);
void shared_files_close(shared_files *files);

/* One writable page. */
bool shared_probe(hvdc_gpu_probe *probe);
void shared_probe_close(hvdc_gpu_probe *probe);

#endif
