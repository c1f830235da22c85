#define _GNU_SOURCE

#include "shared_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE_BYTES 4096u

/* A file without a name, mapped; the descriptor stays open. */
static void *shared_memory(uint64_t bytes, int *fd) {
    *fd = memfd_create("hvdc-gpu-check", 0);
    if (*fd < 0) {
        return NULL;
    }
    void *data = ftruncate(*fd, (off_t)bytes) == 0
                     ? mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0)
                     : MAP_FAILED;
    if (data == MAP_FAILED) {
        close(*fd);
        *fd = -1;
        return NULL;
    }
    return data;
}

bool shared_files_open(const hvdc_artifact *artifact, shared_files *files, hvdc_failure *failure) {
    files->count = hvdc_artifact_file_count(artifact);
    files->data = calloc(files->count, sizeof *files->data);
    files->fds = calloc(files->count, sizeof *files->fds);
    files->bytes = calloc(files->count, sizeof *files->bytes);
    bool good = files->data != NULL && files->fds != NULL && files->bytes != NULL;
    for (uint32_t i = 0; good && i < files->count; ++i) {
        const hvdc_file *record = hvdc_artifact_file(artifact, i);
        hvdc_span span;
        files->fds[i] = -1;
        if (record->kind != HVDC_FILE_KIND_REGION && record->kind != HVDC_FILE_KIND_ADAPTER) {
            continue;
        }
        void *data = hvdc_artifact_file_span(artifact, i, &span) ? shared_memory(span.bytes, &files->fds[i]) : NULL;
        good = data != NULL;
        if (good) {
            memcpy(data, span.data, (size_t)span.bytes);
            good = mprotect(data, (size_t)span.bytes, PROT_READ) == 0;
            files->data[i] = data;
            files->bytes[i] = span.bytes;
        }
    }
    return good || hvdc_fail(failure, HVDC_FAILURE_MEMORY, "shared memory for the data files cannot be made");
}

/* The mapping that shared_files_open made, as what unmaps it wants it. */
static void unmap(const uint8_t *data, uint64_t bytes) {
    union {
        const uint8_t *constant;
        void *given;
    } memory = {data};
    munmap(memory.given, (size_t)bytes);
}

void shared_files_close(shared_files *files) {
    for (uint32_t i = 0; files->data != NULL && i < files->count; ++i) {
        if (files->data[i] != NULL) {
            unmap(files->data[i], files->bytes[i]);
            close(files->fds[i]);
        }
    }
    free(files->data);
    free(files->fds);
    free(files->bytes);
    memset(files, 0, sizeof *files);
}

bool shared_probe(hvdc_gpu_probe *probe) {
    probe->data = shared_memory(PAGE_BYTES, &probe->fd);
    probe->bytes = PAGE_BYTES;
    return probe->data != NULL;
}

void shared_probe_close(hvdc_gpu_probe *probe) {
    if (probe->data != NULL) {
        munmap(probe->data, PAGE_BYTES);
        close(probe->fd);
    }
}
